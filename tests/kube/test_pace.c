/* SPDX-License-Identifier: Apache-2.0 */

/* How fast requests may come, with a clock of the test's. */

#include "base/support_base.h"
#include "kube/pace.h"

static void burst_comes_first_and_then_the_rate(void **state)
{
    (void)state;
    gr_kube_pace pace;
    int64_t now_us = 1000000;
    gr_kube_pace_init(&pace, 10, 3, now_us);
    for (int i = 0; i < 3; i++) {
        assert_true(gr_kube_pace_take(&pace, now_us));
    }
    for (int i = 0; i < 20; i++) {
        assert_false(gr_kube_pace_take(&pace, now_us));
        int64_t next_us = gr_kube_pace_next_us(&pace);
        assert_in_range(next_us - now_us, 99990, 100010);
        now_us = next_us;
        assert_true(gr_kube_pace_take(&pace, now_us));
    }
    now_us += 3600LL * 1000000; /* no more than a burst is saved */
    for (int i = 0; i < 3; i++) {
        assert_true(gr_kube_pace_take(&pace, now_us));
    }
    assert_false(gr_kube_pace_take(&pace, now_us));
    assert_false(gr_kube_pace_take(&pace, now_us - 5000000)); /* a clock that goes back */
}

static void no_limit_is_none(void **state)
{
    (void)state;
    gr_kube_pace pace;
    gr_kube_pace_init(&pace, -1, 1, 0);
    for (int i = 0; i < 1000; i++) {
        assert_true(gr_kube_pace_take(&pace, 0));
    }
}

static void pauses_double_up_to_their_end(void **state)
{
    (void)state;
    for (uint64_t noise = 0; noise < 1000; noise++) {
        assert_in_range(gr_kube_backoff_us(1, 100, 1000, noise), 50, 100);
        assert_in_range(gr_kube_backoff_us(3, 100, 1000, noise), 200, 400);
        assert_in_range(gr_kube_backoff_us(9, 100, 1000, noise), 500, 1000);
        assert_in_range(gr_kube_backoff_us(1000000, 100, 1000, noise), 500, 1000);
    }
    assert_int_not_equal(gr_kube_backoff_us(9, 100, 1000, 1), gr_kube_backoff_us(9, 100, 1000, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(burst_comes_first_and_then_the_rate),
        cmocka_unit_test(no_limit_is_none),
        cmocka_unit_test(pauses_double_up_to_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
