/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of sigmoid, tanh and softmax: against libm, at the ends, on each instruction set. */
#include "support_nn.h"

#include "base/philox.h"
#include "nn/passes.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 4000 };

/* Numbers of all sizes, both signs, and the ends. */
static void fill(float *x)
{
    static const float ends[] = {0,       -0.0f,     FLT_MIN,  -FLT_MIN, 1e-40f, 9.99e-4f,
                                 1e-3f,   -1.01e-3f, 88,       -88,      350,    -350,
                                 FLT_MAX, -FLT_MAX,  INFINITY, -INFINITY};
    enum { ENDS = sizeof ends / sizeof ends[0] };
    gr_philox_normal(3, 1, 0, x, COUNT);
    for (int i = 0; i < COUNT; i++) {
        x[i] = i < ENDS ? ends[i] : x[i] * powf(10.0f, (float)(i % 9) - 6.0f);
    }
}

/* The nearest float, or the one beside it. */
static void check_near(float got, double expected, float x)
{
    float nearest = (float)expected;
    if (!(fabsf(got - nearest) <= FLT_EPSILON * fabsf(nearest))) {
        fail_msg("of %.9g: %.9g, not %.9g", (double)x, (double)got, (double)nearest);
    }
}

static void sigmoid_and_tanh_are_exact_to_the_last_bit_but_one(void **state)
{
    (void)state;
    float x[COUNT], y[COUNT], z[COUNT];
    fill(x);
    gr_passes_best()->sigmoid(y, x, COUNT);
    gr_passes_best()->tanh(z, x, COUNT);
    for (int i = 0; i < COUNT; i++) {
        check_near(z[i], tanh((double)x[i]), x[i]);
        assert_int_equal(signbit(z[i]) != 0, signbit(x[i]) != 0);
        if (x[i] > -80.0f) { /* below, the result is no normal float */
            check_near(y[i], 1.0 / (1.0 + exp(-(double)x[i])), x[i]);
        } else {
            assert_true(y[i] >= 0.0f && y[i] < 1e-34f);
        }
    }
}

static void not_a_number_stays_one(void **state)
{
    (void)state;
    float x[5] = {1, 2, NAN, 3, -1}, y[5];
    gr_passes_best()->sigmoid(y, x, 5);
    assert_true(isnan(y[2]) && !isnan(y[1]));
    gr_passes_best()->tanh(y, x, 5);
    assert_true(isnan(y[2]) && !isnan(y[3]));
    gr_passes_best()->softmax(y, x, 5, 1);
    for (int i = 0; i < 5; i++) {
        assert_true(isnan(y[i]));
    }
}

static void softmax_of_large_numbers_is_finite_and_sums_to_one(void **state)
{
    (void)state;
    const float x[] = {1e4f, -3e38f, 9999, 0, 5, 1e4f, 3e38f, 2, 1, -3e38f, -1e4f, 9};
    float y[12], dx[12];
    gr_passes_best()->softmax(y, x, 4, 3); /* four classes at each of three places */
    for (int at = 0; at < 3; at++) {
        double sum = 0;
        for (int c = 0; c < 4; c++) {
            assert_true(y[3 * c + at] >= 0.0f);
            sum += (double)y[3 * c + at];
        }
        assert_true(fabs(sum - 1.0) < 1e-6);
    }
    assert_true(y[6] == 1.0f && y[0] == 0.0f);
    const float dy[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    gr_passes_best()->softmax_backward(dx, dy, y, 4, 3); /* the sum does not change */
    for (int i = 0; i < 12; i++) {
        assert_true(fabsf(dx[i]) < 1e-6f);
    }
}

typedef struct results {
    float y[6][COUNT];
} results;

static void run_all(const gr_passes *passes, results *r)
{
    static float x[COUNT], dy[COUNT];
    fill(x);
    memset(x, 0, 16 * sizeof *x); /* infinite differences have no softmax */
    gr_philox_normal(5, 2, 0, dy, COUNT);
    passes->sigmoid(r->y[0], x, COUNT);
    passes->sigmoid_backward(r->y[1], dy, r->y[0], COUNT);
    passes->tanh(r->y[2], x, COUNT);
    passes->tanh_backward(r->y[3], dy, r->y[2], COUNT);
    passes->softmax(r->y[4], x, 40, COUNT / 40);
    passes->softmax_backward(r->y[5], dy, r->y[4], 40, COUNT / 40);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    results *expected = malloc(sizeof *expected), *got = malloc(sizeof *got);
    run_all(&gr_passes_portable, expected);
    run_all(gr_passes_best(), got);
    assert_memory_equal(expected, got, sizeof *got);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        run_all(&gr_passes_avx2, got);
        assert_memory_equal(expected, got, sizeof *got);
    }
#endif
    free(expected);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sigmoid_and_tanh_are_exact_to_the_last_bit_but_one),
        cmocka_unit_test(not_a_number_stays_one),
        cmocka_unit_test(softmax_of_large_numbers_is_finite_and_sums_to_one),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
