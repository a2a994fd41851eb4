/* SPDX-License-Identifier: Apache-2.0 */
#define GR_PASSES_TABLE gr_passes_portable
#include "nn/passes_body.h"

#include "nn/optimizer.h"

#include <math.h>

const gr_passes *gr_passes_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return &gr_passes_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &gr_passes_avx2;
    }
#endif
    return &gr_passes_portable;
}

void gr_relu_f32(float *y, const float *x, size_t count)
{
    gr_passes_best()->relu(y, x, count);
}

void gr_relu_backward_f32(float *dx, const float *dy, const float *y, size_t count)
{
    gr_passes_best()->relu_backward(dx, dy, y, count);
}

void gr_sigmoid_f32(float *y, const float *x, size_t count)
{
    gr_passes_best()->sigmoid(y, x, count);
}

void gr_sigmoid_backward_f32(float *dx, const float *dy, const float *y, size_t count)
{
    gr_passes_best()->sigmoid_backward(dx, dy, y, count);
}

void gr_tanh_f32(float *y, const float *x, size_t count)
{
    gr_passes_best()->tanh(y, x, count);
}

void gr_tanh_backward_f32(float *dx, const float *dy, const float *y, size_t count)
{
    gr_passes_best()->tanh_backward(dx, dy, y, count);
}

void gr_softmax_f32(float *y, const float *x, size_t classes, size_t stride)
{
    gr_passes_best()->softmax(y, x, classes, stride);
}

void gr_softmax_backward_f32(float *dx, const float *dy, const float *y, size_t classes,
                             size_t stride)
{
    gr_passes_best()->softmax_backward(dx, dy, y, classes, stride);
}

void gr_column_sums(const float *x, size_t rows, size_t columns, float *sums)
{
    gr_passes_best()->column_sums(x, rows, columns, sums);
}

void gr_transpose_add(const float *x, size_t rows, size_t columns, const float *bias, bool relu,
                      float *y)
{
    gr_passes_best()->transpose_add(x, rows, columns, bias, relu, y);
}

void gr_row_means(const float *x, size_t rows, size_t columns, float *means)
{
    gr_passes_best()->row_means(x, rows, columns, means);
}

/* The upper 24 bits of a word, as a fraction, are compared with the rate. */
void gr_dropout_f32(float *y, uint8_t *mask, const float *x, const uint32_t *words, double rate,
                    size_t count)
{
    gr_passes_best()->dropout(y, mask, x, words, (uint32_t)(rate * 0x1p24),
                              (float)(1.0 / (1.0 - rate)), count);
}

void gr_dropout_backward_f32(float *dx, const float *dy, const uint8_t *mask, double rate,
                             size_t count)
{
    gr_passes_best()->dropout_backward(dx, dy, mask, (float)(1.0 / (1.0 - rate)), count);
}

void gr_max_pool_f32(const gr_pool_numbers *n, const float *x, float *y, uint8_t *at)
{
    gr_passes_best()->max_pool(n, x, y, at);
}

void gr_max_pool_backward_f32(const gr_pool_numbers *n, const float *dy, const float *y,
                              const uint8_t *at, float *dx)
{
    gr_passes_best()->max_pool_backward(n, dy, y, at, dx);
}

void gr_blend_f32(float *values, const float *gradients, float keep, float take, size_t count)
{
    gr_passes_best()->blend(values, gradients, keep, take, count);
}

/* ---- The part of optimizer.h that is one pass ------------------------------------------------ */

void gr_add_f32(float *dst, const float *a, const float *b, size_t count)
{
    gr_passes_best()->add(dst, a, b, count);
}

bool gr_any_not_finite(const float *values, size_t count)
{
    return gr_passes_best()->any_not_finite(values, count);
}

size_t gr_first_not_finite(const float *values, size_t begin, size_t end)
{
    if (begin < end && !gr_any_not_finite(values + begin, end - begin)) {
        return end;
    }
    while (begin < end && isfinite(values[begin])) {
        begin++;
    }
    return begin;
}
