/* SPDX-License-Identifier: Apache-2.0 */

/* Where the buckets are cut. What they reduce is tested through whole runs (test_train.c). */

#include "train/buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CAPACITY = 64 };

static void check_cuts(const size_t *ends, int end_count, size_t first, size_t values,
                       const size_t *wanted, int wanted_count)
{
    size_t cuts[CAPACITY] = {0};
    int count = gr_buckets_cut(ends, end_count, 0, first, values, cuts, CAPACITY);
    assert_int_equal(count, wanted_count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(cuts[i], wanted[i]);
    }
}

static void small_layers_share_a_bucket(void **state)
{
    (void)state;
    const size_t ends[] = {16, 64, 160, 480, 1600};
    check_cuts(ends, 5, 100, 1000, (const size_t[]){160, 1600}, 2);
}

static void the_rest_is_a_bucket(void **state)
{
    (void)state;
    const size_t ends[] = {128, 256, 272};
    check_cuts(ends, 3, 200, 1000, (const size_t[]){256, 272}, 2);
    check_cuts(ends, 3, 4000, 4000, (const size_t[]){272}, 1);
}

static void a_huge_layer_is_cut(void **state)
{
    (void)state;
    const size_t ends[] = {16, 16016};
    check_cuts(ends, 2, 16, 4000, (const size_t[]){16, 4016, 8016, 12016, 16016}, 5);
}

/* Whatever the sizes: ascending, whole, aligned but for the end. */
static void nothing_is_left_out(void **state)
{
    (void)state;
    for (size_t first = 1; first < 3000; first = first * 2 + 3) {
        for (size_t values = 1; values < 5000; values = values * 2 + 1) {
            const size_t ends[] = {16, 48, 1024, 1040, 5008, 5024, 20000};
            size_t cuts[CAPACITY];
            int count = gr_buckets_cut(ends, 7, 0, first, values, cuts, CAPACITY);
            assert_in_range(count, 1, CAPACITY);
            for (int i = 0; i < count; i++) {
                assert_true(cuts[i] > (i > 0 ? cuts[i - 1] : 0));
                assert_true(cuts[i] % 16 == 0 || i == count - 1);
            }
            assert_int_equal(cuts[count - 1], 20000);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_layers_share_a_bucket),
        cmocka_unit_test(the_rest_is_a_bucket),
        cmocka_unit_test(a_huge_layer_is_cut),
        cmocka_unit_test(nothing_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
