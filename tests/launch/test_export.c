/* SPDX-License-Identifier: Apache-2.0 */

/* Which variables travel to other hosts. */

#include "launch/export.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA_BYTES_MAX = 1 << 20, WORDS_MAX = 40 };

static const char *const here[] = {"PATH=/bin",
                                   "HOME=/root",
                                   "AWS_SECRET_ACCESS_KEY=x",
                                   "PYTHONPATH=/lib",
                                   "LC_ALL=C",
                                   "HF_HOME=h",
                                   "HF_TOKEN=t",
                                   "GRADUS_LOG=info",
                                   "PATHS=no",
                                   "EMPTY=",
                                   "LANG=C",
                                   "LANGUAGES=all",
                                   NULL};

static void expect(const char *const *words, const char *travels, const char *set,
                   const char *absent)
{
    gr_arena arena;
    gr_diag diag;
    gr_exported exported;
    char got[512] = "", got_set[128] = "";
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    assert_int_equal(gr_export(words, (char *const *)(uintptr_t)here, &arena, &exported, &diag),
                     GR_OK);
    for (size_t i = 0; exported.environment[i] != NULL; i++) {
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s ", exported.environment[i]);
    }
    for (size_t i = 0; exported.set[i] != NULL; i++) {
        size_t used = strlen(got_set);
        snprintf(got_set + used, sizeof got_set - used, "%s ", exported.set[i]);
    }
    assert_string_equal(got, travels);
    assert_string_equal(got_set, set);
    if (absent == NULL) {
        assert_null(exported.absent);
    } else {
        assert_string_equal(exported.absent, absent);
    }
    gr_arena_fini(&arena);
}

#define USUAL "PATH=/bin PYTHONPATH=/lib LC_ALL=C GRADUS_LOG=info LANG=C "

static void the_usual_variables_travel(void **state)
{
    (void)state;
    expect(NULL, USUAL, "", NULL);
}

static void others_travel_when_they_are_named(void **state)
{
    (void)state;
    const char *const one[] = {"HF_HOME", NULL}, *const some[] = {"EMPTY,HF_*", "PATHS", NULL};
    const char *const missing[] = {"HF_HOME,NOT_HERE", NULL}, *const no_such[] = {"NO_*", NULL};
    expect(one, "PATH=/bin PYTHONPATH=/lib LC_ALL=C HF_HOME=h GRADUS_LOG=info LANG=C ", "", NULL);
    expect(some,
           "PATH=/bin PYTHONPATH=/lib LC_ALL=C HF_HOME=h HF_TOKEN=t GRADUS_LOG=info PATHS=no "
           "EMPTY= LANG=C ",
           "", NULL);
    expect(missing, "PATH=/bin PYTHONPATH=/lib LC_ALL=C HF_HOME=h GRADUS_LOG=info LANG=C ", "",
           "NOT_HERE");
    expect(no_such, USUAL, "", NULL);
}

static void all_none_and_values(void **state)
{
    (void)state;
    char everything[512] = "";
    for (size_t i = 0; here[i] != NULL; i++) {
        size_t used = strlen(everything);
        snprintf(everything + used, sizeof everything - used, "%s ", here[i]);
    }
    const char *const all[] = {"ALL", NULL}, *const none[] = {"NONE,HF_HOME", NULL};
    const char *const values[] = {"A=1,2", "B=", "C=x=y", NULL};
    expect(all, everything, "", NULL);
    expect(none, "HF_HOME=h ", "", NULL);
    expect(values, USUAL, "A=1,2 B= C=x=y ", NULL);
}

static void what_is_no_variable_is_refused(void **state)
{
    (void)state;
    const char *const wrong[] = {"", "A,,B", "A-B", "*", "1A", "A*B", "=x", "A,B=1", "A b"};
    char many[WORDS_MAX][16];
    const char *words[WORDS_MAX + 1] = {NULL};
    gr_arena arena;
    gr_exported exported;
    gr_diag diag;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        words[0] = wrong[i];
        assert_int_equal(gr_export(words, (char *const *)(uintptr_t)here, &arena, &exported, &diag),
                         GR_E_INVALID);
        assert_non_null(strstr(diag.text, "is no variable; write NAME, PREFIX*, NAME=VALUE"));
    }
    for (int i = 0; i < WORDS_MAX; i++) {
        snprintf(many[i], sizeof many[i], "V%d=1", i);
        words[i] = many[i];
    }
    assert_int_equal(gr_export(words, (char *const *)(uintptr_t)here, &arena, &exported, &diag),
                     GR_E_INVALID);
    assert_non_null(strstr(diag.text, "more than 32 of NAME=VALUE"));
    gr_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_usual_variables_travel),
        cmocka_unit_test(others_travel_when_they_are_named),
        cmocka_unit_test(all_none_and_values),
        cmocka_unit_test(what_is_no_variable_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
