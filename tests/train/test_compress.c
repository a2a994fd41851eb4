/* SPDX-License-Identifier: Apache-2.0 */

/* What each compression does to a vector. That jobs with it do not depend on the number of workers
 * is shown by tests/blackbox/test_training.py. */

#include "train/compress.h"

#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 1000, PLAIN = 16 };

/* Small whole numbers, so that sums are exact and equal magnitudes are frequent. */
static void fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)((int)(seed >> 24) - 128);
    }
}

static int by_magnitude(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return (x < y) - (x > y);
}

/* `wanted` values are sent, none of them smaller than one that is not; what was sent and what was
 * left out is together what there was. */
static void check_topk(gr_compressor *c, int shard, float *vector, size_t begin, size_t end,
                       size_t wanted)
{
    size_t count = end - begin;
    float before[LENGTH], sorted[LENGTH];
    float *residual = c->residuals + (size_t)shard * (LENGTH - PLAIN) + (begin - PLAIN);
    for (size_t i = 0; i < count; i++) {
        before[i] = vector[begin + i] + residual[i];
    }
    memcpy(sorted, before, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_magnitude);
    gr_compress(c, shard, vector, begin, end);
    size_t sent = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(vector[begin + i] + residual[i] == before[i]);
        assert_true(vector[begin + i] == 0.0f || residual[i] == 0.0f);
        assert_true(fabsf(residual[i]) <= fabsf(sorted[wanted - 1]));
        if (vector[begin + i] != 0.0f) {
            assert_true(fabsf(vector[begin + i]) >= fabsf(sorted[wanted - 1]));
            sent++;
        }
    }
    assert_true(sent <= wanted);
    assert_true(sent == wanted || sorted[wanted - 1] == 0.0f);
}

static void test_topk(void **state)
{
    (void)state;
    static const double ratios[] = {1e-6, 0.01, 0.1, 0.5, 1.0};
    for (size_t r = 0; r < sizeof ratios / sizeof ratios[0]; r++) {
        gr_compressor c;
        assert_int_equal(
            gr_compressor_init(&c, GR_COMPRESSION_TOPK, ratios[r], PLAIN, LENGTH, 2, LENGTH, NULL),
            GR_OK);
        for (uint32_t step = 0; step < 20; step++) {
            float vector[LENGTH];
            fill(vector, LENGTH, 1 + step);
            static const size_t cuts[] = {PLAIN, 17, 300, LENGTH};
            for (int i = 0; i < 3; i++) {
                double share = (double)(cuts[i + 1] - cuts[i]) * ratios[r];
                size_t wanted = share < 1 ? 1 : (size_t)ceil(share);
                check_topk(&c, (int)(step % 2), vector, cuts[i], cuts[i + 1], wanted);
            }
        }
        gr_compressor_fini(&c);
    }
}

static void test_topk_ties_and_nan(void **state)
{
    (void)state;
    gr_compressor c;
    assert_int_equal(gr_compressor_init(&c, GR_COMPRESSION_TOPK, 0.5, 0, 6, 1, 6, NULL), GR_OK);
    float vector[6] = {1, -1, 1, -1, 1, -1};
    gr_compress(&c, 0, vector, 0, 6);
    static const float first_three[6] = {1, -1, 1, 0, 0, 0};
    assert_memory_equal(vector, first_three, sizeof vector);
    float bad[6] = {9, 9, 9, 9, 9, NAN};
    gr_compress(&c, 0, bad, 0, 6);
    assert_true(isnan(bad[5])); /* it must not hide in what is left out */
    gr_compressor_fini(&c);
}

static void test_narrow(void **state)
{
    (void)state;
    static const gr_compression kinds[] = {GR_COMPRESSION_F16, GR_COMPRESSION_BF16};
    for (int k = 0; k < 2; k++) {
        gr_dtype dtype = gr_compression_dtype(kinds[k]);
        float values[LENGTH], rounded[LENGTH], back[LENGTH];
        uint16_t narrow[LENGTH];
        fill(values, LENGTH, 7);
        for (int i = 0; i < LENGTH; i++) {
            values[i] *= 1.0009765f;
        }
        values[0] = INFINITY;
        values[1] = -0.0f;
        values[2] = 1e-7f;
        memcpy(rounded, values, sizeof rounded);
        gr_round_cast(dtype, rounded, LENGTH);
        gr_cast_down(dtype, narrow, rounded, LENGTH);
        gr_cast_up(dtype, back, narrow, LENGTH);
        assert_memory_equal(back, rounded, sizeof back); /* what was rounded travels unchanged */
        double unit = dtype == GR_F16 ? 1.0 / 2048 : 1.0 / 256;
        int changed = 0;
        for (int i = 3; i < LENGTH; i++) {
            assert_true(fabs((double)rounded[i] - (double)values[i]) <=
                        unit * fabs((double)values[i]));
            changed += rounded[i] != values[i];
        }
        assert_true(changed > LENGTH / 2);
        gr_compressor c;
        assert_int_equal(gr_compressor_init(&c, kinds[k], 0.01, 0, LENGTH, 1, LENGTH, NULL), GR_OK);
        gr_compress(&c, 0, values, 0, LENGTH);
        assert_memory_equal(values, rounded, sizeof values);
        gr_compressor_fini(&c);
    }
}

static void test_sparse_has_no_negative_zero(void **state)
{
    (void)state;
    gr_compressor c;
    assert_int_equal(gr_compressor_init(&c, GR_COMPRESSION_SPARSE, 0.01, 0, 3, 1, 3, NULL), GR_OK);
    float values[3] = {-0.0f, 2.5f, -1e-30f};
    gr_compress(&c, 0, values, 0, 3);
    static const float wanted[3] = {0.0f, 2.5f, -1e-30f};
    assert_memory_equal(values, wanted, sizeof values);
    gr_compressor_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_topk_ties_and_nan),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_sparse_has_no_negative_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
