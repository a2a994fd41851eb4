/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include "data/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_bijective(uint64_t seed, uint64_t epoch, uint64_t count)
{
    gr_sampler sampler;
    gr_sampler_init(&sampler, seed, epoch, count);
    uint8_t *seen = calloc(count, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = gr_sampler_at(&sampler, i);
        assert_true(at < count);
        assert_int_equal(seen[at], 0);
        seen[at] = 1;
    }
    free(seen);
}

static void test_bijective(void **state)
{
    (void)state;
    for (uint64_t count = 1; count <= 70; count++) {
        for (uint64_t epoch = 0; epoch < 5; epoch++) {
            check_bijective(count * 7919, epoch, count);
        }
    }
    static const uint64_t counts[] = {127,  128,  129,  255,  256,  257,  1023,  1024,
                                      1025, 1437, 1797, 4095, 4096, 4097, 10007, 65536};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_bijective(UINT64_C(0xdeadbeefcafe), i, counts[i]);
    }
}

/* A billion positions are too many to visit; spots lie inside, and differ from each other. */
static void test_large(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1000000000, (UINT64_C(1) << 40) + 1, UINT64_MAX};
    enum { SPOTS = 512 };
    for (size_t c = 0; c < 3; c++) {
        gr_sampler sampler;
        uint64_t spot[SPOTS];
        gr_sampler_init(&sampler, 42, 3, counts[c]);
        for (uint64_t i = 0; i < SPOTS; i++) {
            uint64_t position = i % 2 != 0 ? i : counts[c] - 1 - i;
            spot[i] = gr_sampler_at(&sampler, position);
            assert_true(spot[i] < counts[c]);
            for (uint64_t k = 0; k < i; k++) {
                assert_true(spot[k] != spot[i]);
            }
        }
    }
}

static void test_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    gr_sampler a, b, c;
    gr_sampler_init(&a, 1, 0, 1000);
    gr_sampler_init(&b, 2, 0, 1000);
    gr_sampler_init(&c, 1, 1, 1000);
    int ab = 0, ac = 0, own = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        ab += gr_sampler_at(&a, i) == gr_sampler_at(&b, i);
        ac += gr_sampler_at(&a, i) == gr_sampler_at(&c, i);
        own += gr_sampler_at(&a, i) == i;
    }
    /* Fixed points of a random permutation: one on average, 12 with a chance of 1 in 10^9. */
    assert_in_range(ab, 0, 12);
    assert_in_range(ac, 0, 12);
    assert_in_range(own, 0, 12);
}

/* Over many epochs each sample comes equally often to each position: chi-square, whose deviation
 * from its mean is within 5 sigma. */
static void chi_square(uint64_t count)
{
    enum { EPOCHS = 8000 };
    double *hits = calloc(count * count, sizeof *hits);
    assert_non_null(hits);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        gr_sampler sampler;
        gr_sampler_init(&sampler, 99, epoch, count);
        for (uint64_t i = 0; i < count; i++) {
            hits[i * count + gr_sampler_at(&sampler, i)]++;
        }
    }
    double expected = (double)EPOCHS / (double)count, chi = 0;
    for (uint64_t i = 0; i < count * count; i++) {
        chi += (hits[i] - expected) * (hits[i] - expected) / expected;
    }
    free(hits);
    double freedom = (double)((count - 1) * (count - 1));
    if (fabs(chi - freedom) > 5 * sqrt(2 * freedom)) {
        fail_msg("count %d: chi-square %g with %g degrees of freedom", (int)count, chi, freedom);
    }
}

static void test_uniform(void **state)
{
    (void)state;
    static const uint64_t counts[] = {2, 3, 4, 5, 7, 8, 10, 16, 17};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        chi_square(counts[i]);
    }
}

/* Neighbours of an epoch are not neighbours in the file: the correlation of successive places is
 * that of independent numbers. */
static void test_no_serial_correlation(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    gr_sampler sampler;
    gr_sampler_init(&sampler, 7, 0, COUNT);
    double sum = 0;
    double middle = (COUNT - 1) / 2.0, variance = ((double)COUNT * COUNT - 1) / 12;
    double before = (double)gr_sampler_at(&sampler, 0) - middle;
    for (uint64_t i = 1; i < COUNT; i++) {
        double now = (double)gr_sampler_at(&sampler, i) - middle;
        sum += before * now;
        before = now;
    }
    assert_true(fabs(sum / (COUNT * variance)) < 5 / sqrt(COUNT));
}

/* Orders are part of a job's bits: they must never change. */
static void test_golden(void **state)
{
    (void)state;
    gr_sampler sampler;
    gr_sampler_init(&sampler, UINT64_C(0x0123456789abcdef), 2, 1797);
    uint64_t hash = 0;
    for (uint64_t i = 0; i < 1797; i++) {
        hash = hash * UINT64_C(6364136223846793005) + gr_sampler_at(&sampler, i) + 1;
    }
    assert_int_equal(hash, UINT64_C(0xa8531b7bbf029083));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bijective),
                                       cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_depends_on_seed_and_epoch),
                                       cmocka_unit_test(test_uniform),
                                       cmocka_unit_test(test_no_serial_correlation),
                                       cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
