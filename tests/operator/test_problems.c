/* SPDX-License-Identifier: Apache-2.0 */

/* What is wrong with an object: of texts that its user chose, however long they are. */

#include "operator/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void problem_behind_a_text_of_any_length_stays_inside(void **state)
{
    const int room = (int)sizeof(((gr_problems *)NULL)->text);
    char sentence[GR_EVENT_BYTES];
    (void)state;
    for (int length = room - 8; length <= room + 8; length++) {
        gr_problems p = {.used = 0};
        for (int i = 0; i < 3; i++) {
            gr_problem(&p, "%0*d", i == 0 ? length : room / 2, 0);
            assert_true(p.used < sizeof p.text && strlen(p.text) == p.used);
        }
        assert_int_equal(p.count, 3);
        gr_problems_describe(&p, sentence);
        assert_string_equal(sentence + sizeof sentence - 4, "...");
    }
}

static void several_problems_are_one_sentence(void **state)
{
    char sentence[GR_EVENT_BYTES];
    gr_problems p = {.used = 0};
    (void)state;
    gr_problems_describe(&p, sentence);
    assert_string_equal(sentence, "");
    gr_problem(&p, "spec.a: %s", "wrong");
    gr_problems_describe(&p, sentence);
    assert_string_equal(sentence, "Found validation errors: spec.a: wrong");
    gr_problem(&p, "spec.b: %d", 7);
    gr_problems_describe(&p, sentence);
    assert_string_equal(sentence, "Found validation errors: [spec.a: wrong, spec.b: 7]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problem_behind_a_text_of_any_length_stays_inside),
        cmocka_unit_test(several_problems_are_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
