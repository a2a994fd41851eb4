/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of passes.h, included by one file for each instruction set, which names the table by
 * GR_PASSES_TABLE. No include guard. Loops are written so that both compilers vectorise them; sums
 * run in LANES interleaved partial sums, whatever the width of the machine's registers. */

#include "nn/exp.h"
#include "nn/passes.h"
#include "nn/passes_pool.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static void pass_relu(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = x[i] < 0.0f ? 0.0f : x[i];
    }
}

static void pass_relu_backward(float *dx, const float *dy, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
    }
}

static void pass_sigmoid(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double e = gr_exp_negative(-fabs((double)x[i]));
        y[i] = (float)((x[i] < 0.0f ? e : 1.0) / (1.0 + e));
    }
}

static void pass_sigmoid_backward(float *dx, const float *dy, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = dy[i] * y[i] * (1.0f - y[i]);
    }
}

/* Near zero the quotient cancels; there two terms of the series are exact to the last bit. */
static void pass_tanh(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double v = (double)x[i], size = fabs(v), e = gr_exp_negative(-2.0 * size);
        double far = (1.0 - e) / (1.0 + e), near = size - size * size * size / 3.0;
        y[i] = (float)copysign(size < 1e-3 ? near : far, v);
    }
}

static void pass_tanh_backward(float *dx, const float *dy, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = dy[i] * (1.0f - y[i] * y[i]);
    }
}

/* Of one sample: `classes` values, each `stride` behind the one before, for each place below
 * `stride`. */
static void pass_softmax(float *y, const float *x, size_t classes, size_t stride)
{
    for (size_t at = 0; at < stride; at++) {
        float top = x[at];
        for (size_t c = 1; c < classes; c++) {
            float value = x[c * stride + at];
            top = value > top || value != value ? value : top;
        }
        double sum = 0;
        for (size_t c = 0; c < classes; c++) {
            sum += gr_exp_negative((double)x[c * stride + at] - (double)top);
        }
        for (size_t c = 0; c < classes; c++) {
            double e = gr_exp_negative((double)x[c * stride + at] - (double)top);
            y[c * stride + at] = (float)(e / sum);
        }
    }
}

static void pass_softmax_backward(float *dx, const float *dy, const float *y, size_t classes,
                                  size_t stride)
{
    for (size_t at = 0; at < stride; at++) {
        double dot = 0;
        for (size_t c = 0; c < classes; c++) {
            dot += (double)dy[c * stride + at] * (double)y[c * stride + at];
        }
        for (size_t c = 0; c < classes; c++) {
            size_t i = c * stride + at;
            dx[i] = (float)((double)y[i] * ((double)dy[i] - dot));
        }
    }
}

static void pass_add(float *dst, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dst[i] = a[i] + b[i];
    }
}

static void pass_column_sums(const float *x, size_t rows, size_t columns, float *restrict sums)
{
    memset(sums, 0, columns * sizeof *sums);
    for (size_t row = 0; row < rows; row++) {
        const float *restrict from = x + row * columns;
        for (size_t i = 0; i < columns; i++) {
            sums[i] += from[i];
        }
    }
}

/* A square of eight rows and columns: pairs, then fours, then halves change places. */
static inline void transpose_square(const float *x, size_t columns, const float *bias, bool relu,
                                    float *y, size_t rows)
{
    eight_floats in[8], pair[8], four[8], add = {0};
    for (size_t i = 0; i < 8; i++) {
        memcpy(&in[i], x + i * columns, sizeof in[i]);
    }
    for (size_t i = 0; i < 8; i += 2) {
        pair[i] = __builtin_shufflevector(in[i], in[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pair[i + 1] = __builtin_shufflevector(in[i], in[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (size_t i = 0; i < 8; i += 4) {
        for (size_t j = 0; j < 2; j++) {
            four[i + 2 * j] =
                __builtin_shufflevector(pair[i + j], pair[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            four[i + 2 * j + 1] =
                __builtin_shufflevector(pair[i + j], pair[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    if (bias) {
        memcpy(&add, bias, sizeof add);
    }
    for (size_t i = 0; i < 8; i++) {
        eight_floats out =
            i < 4 ? __builtin_shufflevector(four[i], four[i + 4], 0, 1, 2, 3, 8, 9, 10, 11)
                  : __builtin_shufflevector(four[i - 4], four[i], 4, 5, 6, 7, 12, 13, 14, 15);
        out = out + add;
        if (relu) {
            out = (eight_floats)((eight_ints)out & ~(out < 0.0f));
        }
        memcpy(y + i * rows, &out, sizeof out);
    }
}

static void pass_transpose_add(const float *x, size_t rows, size_t columns, const float *bias,
                               bool relu, float *y)
{
    size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (size_t column = 0; column < whole_columns; column += 8) {
        for (size_t row = 0; row < whole_rows; row += 8) {
            transpose_square(x + row * columns + column, columns, bias ? bias + row : NULL, relu,
                             y + column * rows + row, rows);
        }
    }
    for (size_t column = 0; column < columns; column++) {
        for (size_t row = column < whole_columns ? whole_rows : 0; row < rows; row++) {
            float value = x[row * columns + column] + (bias ? bias[row] : 0.0f);
            y[column * rows + row] = relu && value < 0.0f ? 0.0f : value;
        }
    }
}

static void pass_row_means(const float *x, size_t rows, size_t columns, float *means)
{
    for (size_t row = 0; row < rows; row++) {
        const float *from = x + row * columns;
        float shm[LANES] = {0};
        size_t whole = columns / LANES * LANES;
        for (size_t i = 0; i < whole; i += LANES) {
            for (size_t j = 0; j < LANES; j++) {
                shm[j] += from[i + j];
            }
        }
        for (size_t i = whole; i < columns; i++) {
            shm[i - whole] += from[i];
        }
        for (size_t half = LANES / 2; half > 0; half /= 2) {
            for (size_t j = 0; j < half; j++) {
                shm[j] += shm[j + half];
            }
        }
        means[row] = shm[0] / (float)columns;
    }
}

static void pass_dropout(float *y, uint8_t *restrict mask, const float *x,
                         const uint32_t *restrict words, uint32_t threshold, float scale,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool stays = (words[i] >> 8) >= threshold;
        mask[i] = stays;
        y[i] = stays ? x[i] * scale : 0.0f;
    }
}

static void pass_dropout_backward(float *dx, const float *dy, const uint8_t *restrict mask,
                                  float scale, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = mask[i] ? dy[i] * scale : 0.0f;
    }
}

/* ---- Sums and checks ------------------------------------------------------------------------- */

static double pass_square_sum(const float *x, size_t count)
{
    double shm[LANES] = {0};
    size_t whole = count / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            double v = (double)x[i + j];
            shm[j] += v * v;
        }
    }
    for (size_t i = whole; i < count; i++) {
        double v = (double)x[i];
        shm[i - whole] += v * v;
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t j = 0; j < half; j++) {
            shm[j] += shm[j + half];
        }
    }
    return shm[0];
}

static bool pass_any_not_finite(const float *x, size_t count)
{
    /* By pieces, so that a bad vector is left early and the loop inside still has no branch. */
    enum { PIECE = 4096 };
    for (size_t at = 0; at < count; at += PIECE) {
        size_t end = count - at < PIECE ? count : at + PIECE;
        uint32_t bad = 0;
        for (size_t i = at; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bad |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        if (bad) {
            return true;
        }
    }
    return false;
}

static void pass_blend(float *restrict values, const float *restrict gradients, float keep,
                       float take, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = keep * values[i] + take * gradients[i];
    }
}

/* The larger of `largest` and |x| as bits, in which everything that is not finite is at least
 * NOT_FINITE_BITS: it costs an update, which waits for memory, nothing. */
#define NOT_FINITE_BITS 0x7f800000u
static inline uint32_t larger_bits(uint32_t largest, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffffu;
    return bits > largest ? bits : largest;
}

static bool pass_sgd(float *restrict w, float *restrict m, const float *restrict g,
                     const gr_sgd_numbers *n, size_t count)
{
    const float factor = n->gradient_factor, decay = n->weight_decay, momentum = n->momentum;
    const float rate = n->learning_rate;
    uint32_t largest = 0;
    if (n->nesterov) {
        for (size_t i = 0; i < count; i++) {
            largest = larger_bits(largest, g[i]);
            float d = g[i] * factor + decay * w[i];
            float v = momentum * m[i] + d;
            m[i] = v;
            w[i] = w[i] - rate * (d + momentum * v);
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            largest = larger_bits(largest, g[i]);
            float v = momentum * m[i] + (g[i] * factor + decay * w[i]);
            m[i] = v;
            w[i] = w[i] - rate * v;
        }
    }
    return largest < NOT_FINITE_BITS;
}

static bool pass_adam(float *restrict w, float *restrict m, float *restrict v,
                      const float *restrict g, const gr_adam_numbers *n, size_t count)
{
    const gr_adam_numbers k = *n;
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        largest = larger_bits(largest, g[i]);
        float d = g[i] * k.gradient_factor + k.l2 * w[i];
        float first = k.beta1 * m[i] + (1.0f - k.beta1) * d;
        float second = k.beta2 * v[i] + (1.0f - k.beta2) * (d * d);
        m[i] = first;
        v[i] = second;
        float kept = w[i] - k.decoupled * w[i];
        w[i] = kept - k.rate * first / (sqrtf(second * k.second_scale) + k.epsilon);
    }
    return largest < NOT_FINITE_BITS;
}

const gr_passes GR_PASSES_TABLE = {
    .relu = pass_relu,
    .relu_backward = pass_relu_backward,
    .sigmoid = pass_sigmoid,
    .sigmoid_backward = pass_sigmoid_backward,
    .tanh = pass_tanh,
    .tanh_backward = pass_tanh_backward,
    .softmax = pass_softmax,
    .softmax_backward = pass_softmax_backward,
    .add = pass_add,
    .column_sums = pass_column_sums,
    .transpose_add = pass_transpose_add,
    .row_means = pass_row_means,
    .dropout = pass_dropout,
    .dropout_backward = pass_dropout_backward,
    .max_pool = pass_max_pool,
    .max_pool_backward = pass_max_pool_backward,
    .square_sum = pass_square_sum,
    .any_not_finite = pass_any_not_finite,
    .blend = pass_blend,
    .sgd = pass_sgd,
    .adam = pass_adam,
};
