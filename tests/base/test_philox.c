/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "base/philox.h"
#include "base/philox_lanes.h"
#include "base/philox_normal.h"
#include "support_base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The known answers that come with the authors' Random123. */
static void philox_of_published_inputs_matches(void **state)
{
    (void)state;
    static const struct {
        uint32_t key[2], counter[4], out[4];
    } known[] = {
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        gr_philox(known[i].key, known[i].counter, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* The documented layout of key and counter, whatever the instruction set and the count. */
static void philox_fill_equals_the_stream(void **state)
{
    (void)state;
    enum { COUNT = 3 * GR_PHILOX_CHUNK_WORDS + 7 };
    const uint64_t seed = 0x299f31d0a4093822;
    const uint64_t high = 0x0370734413198a2e;
    const uint32_t low = 0x85a308d3;
    uint32_t expected[COUNT + 4];
    for (uint32_t block = 0; block < (COUNT + 3) / 4; block++) {
        const uint32_t key[2] = {0xa4093822, 0x299f31d0};
        const uint32_t counter[4] = {block, low, 0x13198a2e, 0x03707344};
        gr_philox(key, counter, expected + 4 * (size_t)block);
    }
    for (size_t count = 0; count <= COUNT; count++) {
        uint32_t out[COUNT + 1];
        out[count] = 0xABCD;
        gr_philox_fill(seed, high, low, out, count);
        assert_memory_equal(out, expected, count * sizeof out[0]);
        assert_int_equal(out[count], 0xABCD);
    }
}

static void philox_chunk_in_plain_c_equals_the_stream(void **state)
{
    (void)state;
    uint32_t out[GR_PHILOX_CHUNK_WORDS];
    uint32_t expected[2 * GR_PHILOX_CHUNK_WORDS];
    gr_philox_fill(5, 6, 7, expected, 2 * GR_PHILOX_CHUNK_WORDS);
    gr_philox_chunk(5, 6, 7, GR_PHILOX_LANES, out);
    assert_memory_equal(out, expected + GR_PHILOX_CHUNK_WORDS, sizeof out);
}

static void philox_normal_equals_box_muller(void **state)
{
    (void)state;
    enum { COUNT = 40001 };
    uint32_t *words = malloc(sizeof *words * (COUNT + 3));
    float *values = malloc(sizeof *values * COUNT);
    assert_non_null(words);
    assert_non_null(values);
    gr_philox_fill(11, 12, 13, words, COUNT + 3);
    gr_philox_normal(11, 12, 13, values, COUNT);
    double sum = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i < COUNT; i++) {
        size_t pair = i & ~(size_t)1;
        double radius = sqrt(-2.0 * log(((double)words[pair] + 1.0) * 0x1p-32));
        double angle = 6.28318530717958647693 * 0x1p-32 * words[pair + 1];
        double expected = radius * (i == pair ? cos(angle) : sin(angle));
        assert_true(fabs(values[i] - expected) <= 4e-7);
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    assert_true(fabs(sum / COUNT) < 0.02);
    assert_true(fabs(squares / COUNT - 1.0) < 0.03);
    free(words);
    free(values);
}

/* The bits that every machine and compiler must give: weights of a job start with them. */
static void philox_normal_bits_equal_the_stored_hash(void **state)
{
    (void)state;
    float values[4096];
    gr_philox_normal(2026, 1, 2, values, 4096);
    uint8_t bytes[4 * 4096];
    for (size_t i = 0; i < 4096; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        for (size_t b = 0; b < 4; b++) {
            bytes[4 * i + b] = (uint8_t)(bits >> (8 * b));
        }
    }
    assert_true(gr_hash64(bytes, sizeof bytes, 0) == UINT64_C(0xfd262c3994f27e40));
}

/* However many are computed side by side, with whichever instructions. */
static void philox_normal_of_fewer_is_a_prefix(void **state)
{
    (void)state;
    enum { MOST = 200 };
    float all[MOST], some[MOST + 1];
    uint32_t words[MOST];
    gr_philox_normal(2026, 1, 2, all, MOST);
    gr_philox_fill(2026, 1, 2, words, MOST);
    gr_normal_pairs(words, some, MOST / 2);
    assert_memory_equal(some, all, sizeof all);
    for (size_t count = 0; count <= MOST; count++) {
        some[count] = 7.0f;
        gr_philox_normal(2026, 1, 2, some, count);
        assert_memory_equal(some, all, count * sizeof *all);
        assert_true(some[count] == 7.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_of_published_inputs_matches),
        cmocka_unit_test(philox_fill_equals_the_stream),
        cmocka_unit_test(philox_chunk_in_plain_c_equals_the_stream),
        cmocka_unit_test(philox_normal_equals_box_muller),
        cmocka_unit_test(philox_normal_bits_equal_the_stored_hash),
        cmocka_unit_test(philox_normal_of_fewer_is_a_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
