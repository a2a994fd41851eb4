/* SPDX-License-Identifier: Apache-2.0 */

/* What goes to a server at which pace, over a way of given speed and length. */

#include "ps/client/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BLOCKS = 4096, BLOCK_BYTES = 54656, TICK_US = 50, LONG_US = 100000000 };

typedef struct way {
    double bytes_a_us;  /* of the slowest wire */
    int64_t length_us;  /* there and back */
    int64_t nothing_us; /* until then nobody else pushes */
} way;

typedef struct outcome {
    int64_t end_us;       /* the last values */
    int64_t gone_us;      /* the last block went */
    uint64_t on_way_most; /* once as much had come as was ever on the way before */
} outcome;

/* Blocks follow each other on the wire, and their values come a way later. */
static outcome push(gr_ps_pace *pace, const way *w, int64_t begin_us)
{
    static int64_t back_us[BLOCKS];
    outcome o = {0};
    double wire_us = (double)begin_us;
    int went = 0, came = 0;
    for (int64_t now_us = begin_us; came < BLOCKS; now_us += TICK_US) {
        assert_true(now_us - begin_us < LONG_US);
        for (; came < went && back_us[came] <= now_us; came++) {
            gr_ps_pace_came(pace, (uint64_t)came, BLOCK_BYTES, now_us);
        }
        while (went < BLOCKS && gr_ps_pace_allows(pace, BLOCK_BYTES, now_us)) {
            gr_ps_pace_went(pace, (uint64_t)went, BLOCK_BYTES, now_us);
            wire_us = wire_us > (double)now_us ? wire_us : (double)now_us;
            wire_us += BLOCK_BYTES / w->bytes_a_us;
            int64_t there_us = (int64_t)wire_us;
            there_us = there_us > begin_us + w->nothing_us ? there_us : begin_us + w->nothing_us;
            back_us[went++] = there_us + w->length_us;
            o.gone_us = now_us - begin_us;
        }
        if (came > BLOCKS / 4 && pace->on_way_bytes > o.on_way_most) {
            o.on_way_most = pace->on_way_bytes;
        }
        o.end_us = now_us - begin_us;
    }
    assert_int_equal(pace->on_way_bytes, 0);
    return o;
}

static double share_of(const way *w, int64_t time_us)
{
    return (double)BLOCKS * BLOCK_BYTES / w->bytes_a_us / (double)time_us;
}

static void a_near_server_is_kept_busy_with_little_on_the_way(void **state)
{
    (void)state;
    const way near = {.bytes_a_us = 60, .length_us = 500}, fast = {1500, 300, 0};
    gr_ps_pace pace = {0};
    for (int step = 0; step < 3; step++) {
        outcome o = push(&pace, &near, (int64_t)step * LONG_US);
        assert_true(share_of(&near, o.end_us) > 0.99);
        assert_true(o.on_way_most < GR_PS_PACE_BYTES + 3 * BLOCK_BYTES);
    }
    pace = (gr_ps_pace){0};
    assert_true(share_of(&fast, push(&pace, &fast, 0).end_us) > 0.6);
    assert_true(share_of(&fast, push(&pace, &fast, LONG_US).end_us) > 0.9);
}

static void a_far_server_gets_what_its_way_holds(void **state)
{
    (void)state;
    const way far = {.bytes_a_us = 60, .length_us = 40000};
    gr_ps_pace pace = {0};
    (void)push(&pace, &far, 0);
    outcome o = push(&pace, &far, LONG_US);
    assert_true(share_of(&far, o.end_us) > 0.9);
    assert_true(o.on_way_most < 60 * 40000 + 2 * GR_PS_PACE_BYTES);
}

static void who_waits_for_others_pushes_all_meanwhile(void **state)
{
    (void)state;
    const way late = {.bytes_a_us = 1e9, .length_us = 500, .nothing_us = 5000000};
    gr_ps_pace pace = {0};
    outcome o = push(&pace, &late, 0);
    assert_true(o.gone_us < 15 * GR_PS_PACE_US);
    /* The next time nobody is late: as little as ever. */
    const way near = {.bytes_a_us = 60, .length_us = 500};
    assert_true(push(&pace, &near, LONG_US).on_way_most < GR_PS_PACE_BYTES + 3 * BLOCK_BYTES);
}

static void what_was_forgotten_counts_no_more(void **state)
{
    (void)state;
    gr_ps_pace pace = {0};
    uint64_t block = 0;
    for (; gr_ps_pace_allows(&pace, BLOCK_BYTES, 0); block++) {
        gr_ps_pace_went(&pace, block, BLOCK_BYTES, 0);
    }
    gr_ps_pace_forget(&pace, block * BLOCK_BYTES);
    const way near = {.bytes_a_us = 60, .length_us = 500};
    assert_true(share_of(&near, push(&pace, &near, 1000).end_us) > 0.99);
    assert_true(pace.least_us < 2500);
}

static void large_blocks_go_several_at_a_time(void **state)
{
    (void)state;
    gr_ps_pace pace = {0};
    for (uint64_t i = 0; i < GR_PS_PACE_BLOCKS; i++) {
        assert_true(gr_ps_pace_allows(&pace, 1 << 20, 0));
        gr_ps_pace_went(&pace, i, 1 << 20, 0);
    }
    assert_false(gr_ps_pace_allows(&pace, 1 << 20, 0));
    assert_int_equal(gr_ps_pace_next_us(&pace), GR_PS_PACE_US);
    assert_true(gr_ps_pace_allows(&pace, 1 << 20, GR_PS_PACE_US));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_near_server_is_kept_busy_with_little_on_the_way),
        cmocka_unit_test(a_far_server_gets_what_its_way_holds),
        cmocka_unit_test(who_waits_for_others_pushes_all_meanwhile),
        cmocka_unit_test(what_was_forgotten_counts_no_more),
        cmocka_unit_test(large_blocks_go_several_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
