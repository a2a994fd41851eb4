/* SPDX-License-Identifier: Apache-2.0 */

/* Copies past the caches: whichever way is chosen, all bytes arrive and no others change. */

#include "base/stream.h"
#include "support_base.h"

#include <string.h>

enum { MOST = 9000, EDGE = 200 };

static void check_copy(gr_stream *stream, uint64_t round, size_t to_at, size_t from_at,
                       size_t size_bytes)
{
    static _Alignas(64) unsigned char to[MOST + 2 * EDGE], from[MOST + 2 * EDGE];
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (unsigned char)(i * 7 + i / 251 + round);
    }
    memset(to, 0xEE, sizeof to);
    gr_stream_copy(stream, round, to + to_at, from + from_at, size_bytes);
    assert_memory_equal(to + to_at, from + from_at, size_bytes);
    for (size_t i = 0; i < sizeof to; i++) {
        if (i < to_at || i >= to_at + size_bytes) {
            assert_int_equal(to[i], 0xEE);
        }
    }
}

static void all_bytes_arrive_at_any_place(void **state)
{
    (void)state;
    static const size_t places[] = {0, 1, 16, 63, 64, 65, 127};
    static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 4097, 4159, 4160, 8192, MOST};
    size_t count = sizeof places / sizeof places[0], size_count = sizeof sizes / sizeof sizes[0];
    gr_stream stream = {0};
    /* A trial goes both ways, whatever is fast here; the rounds after it go the way it chose. */
    for (uint64_t round = 0; round < 24; round++) {
        for (size_t i = 0; i < count * size_count; i++) {
            check_copy(&stream, round, places[i % count], places[(i + round) % count],
                       sizes[i / count]);
        }
    }
}

/* Rounds are counted by 32 bits in places, and begin anew. */
static void rounds_may_begin_anew(void **state)
{
    (void)state;
    gr_stream stream = {0};
    for (uint64_t round = UINT64_MAX - 40; round != 40; round++) {
        check_copy(&stream, round, 0, 0, 8192);
    }
    check_copy(&stream, 3, 0, 0, 8192);
}

static void what_a_trial_found_stays_during_the_next_one(void **state)
{
    (void)state;
    gr_stream stream = {0};
    assert_true(stream.ns == 0);
    for (uint64_t round = 0; round < 4; round++) {
        check_copy(&stream, round, 0, 0, MOST);
    }
    assert_true(stream.ns > 0);
    uint64_t next = stream.trial + stream.span;
    check_copy(&stream, next, 0, 0, MOST);
    assert_int_equal(stream.trial, next);
    assert_true(stream.ns > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_arrive_at_any_place),
        cmocka_unit_test(rounds_may_begin_anew),
        cmocka_unit_test(what_a_trial_found_stays_during_the_next_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
