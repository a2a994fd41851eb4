/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/cores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const gr_cores allowed = {.count = 6, .id = {0, 1, 2, 3, 8, 9}};

static void expect_cores(const char *text, const char *printed)
{
    gr_cores cores;
    gr_diag diag;
    char list[GR_CORES_TEXT_BYTES];
    assert_int_equal(gr_cores_parse(text, "--cores", &allowed, &cores, &diag), GR_OK);
    gr_cores_print(&cores, list, sizeof list);
    assert_string_equal(list, printed);
}

static void lists_are_read(void **state)
{
    (void)state;
    expect_cores("0", "0");
    expect_cores("0,2-3", "0,2-3");
    expect_cores("9,0-2,1,8", "0-2,8-9");
    expect_cores("3-3", "3");
    expect_cores("0002", "2");
}

static void expect_refused(const char *text, const char *says)
{
    gr_cores cores = {.count = -1};
    gr_diag diag;
    assert_int_equal(gr_cores_parse(text, "--cores", &allowed, &cores, &diag), GR_E_INVALID);
    assert_int_equal(cores.count, -1);
    assert_non_null(strstr(diag.text, "--cores: "));
    assert_non_null(strstr(diag.text, says));
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    static const char *const malformed[] = {
        "",    ",",  "0,", "0,,1", "-1",    "1-",   "a",
        "0x1", "0 ", " 0", "0 1",  "1-2-3", "1024", "0-99999999999999999999"};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        expect_refused(malformed[i], "is not a list of cores");
    }
    expect_refused("3-1", "write 1-3");
    expect_refused("0,4", "core 4 is not one that this process may use; those are 0-3,8-9");
    expect_refused("2-9", "core 4");
}

static void every_worker_gets_the_same_number(void **state)
{
    (void)state;
    gr_cores part;
    for (int workers = 1; workers <= 6; workers++) {
        bool used[16] = {false};
        for (int index = 0; index < workers; index++) {
            assert_true(gr_cores_deal(&allowed, workers, index, &part));
            assert_int_equal(part.count, 6 / workers);
            for (int i = 0; i < part.count; i++) {
                assert_false(used[part.id[i]]);
                used[part.id[i]] = true;
            }
        }
    }
    assert_false(gr_cores_deal(&allowed, 7, 0, &part));
}

static void workers_are_spread_evenly_over_fewer_cores(void **state)
{
    (void)state;
    gr_cores part;
    int workers_on[16] = {0};
    for (int index = 0; index < 3 * allowed.count; index++) {
        assert_true(gr_cores_deal(&allowed, 3 * allowed.count, index, &part));
        assert_int_equal(part.count, 1);
        workers_on[part.id[0]]++;
    }
    for (int i = 0; i < allowed.count; i++) {
        assert_int_equal(workers_on[allowed.id[i]], 3);
    }
}

static void a_long_list_is_cut(void **state)
{
    (void)state;
    gr_cores cores = {.count = 200};
    for (int i = 0; i < cores.count; i++) {
        cores.id[i] = 2 * i;
    }
    char text[20];
    for (size_t size = 5; size <= sizeof text; size++) {
        gr_cores_print(&cores, text, size);
        assert_true(strlen(text) < size);
        assert_string_equal(text + strlen(text) - 3, "...");
    }
}

static void sorting_loses_no_core(void **state)
{
    (void)state;
    gr_cores cores;
    assert_int_equal(gr_cores_allowed(&cores, NULL), GR_OK);
    assert_true(cores.count >= 1);
    gr_cores sorted = cores;
    gr_cores_sort_by_topology(&sorted);
    assert_int_equal(sorted.count, cores.count);
    for (int i = 0; i < cores.count; i++) {
        bool found = false;
        for (int j = 0; j < sorted.count; j++) {
            found = found || sorted.id[j] == cores.id[i];
        }
        assert_true(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(every_worker_gets_the_same_number),
        cmocka_unit_test(workers_are_spread_evenly_over_fewer_cores),
        cmocka_unit_test(a_long_list_is_cut),
        cmocka_unit_test(sorting_loses_no_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
