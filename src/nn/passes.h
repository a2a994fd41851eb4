/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_PASSES_H
#define GR_NN_PASSES_H

/* One pass over vectors each. The same source is compiled for several instruction sets
 * (passes_body.h), without contraction and with sums in a fixed order: all give the same bits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gr_sgd_numbers {
    float gradient_factor, weight_decay, momentum, learning_rate;
    bool nesterov;
} gr_sgd_numbers;

typedef struct gr_adam_numbers {
    float gradient_factor, l2; /* l2: weight decay that is added to the gradient */
    float decoupled;           /* learning rate * weight decay: taken from the weight */
    float beta1, beta2, epsilon;
    float rate;         /* learning rate / (1 - beta1^t) */
    float second_scale; /* 1 / (1 - beta2^t) */
} gr_adam_numbers;

/* Images of `inner` channels side by side: [outer][height][width][inner], inner 1, 8 or 16. */
typedef struct gr_pool_numbers {
    size_t outer, inner;
    int64_t height_in, width_in, height_out, width_out;
    int64_t kernel, stride, padding; /* kernel <= GR_POOL_KERNEL_MAX */
} gr_pool_numbers;
enum { GR_POOL_KERNEL_MAX = 15 }; /* places in the window fit a byte */

typedef struct gr_passes {
    void (*relu)(float *y, const float *x, size_t count);
    void (*relu_backward)(float *dx, const float *dy, const float *y, size_t count);
    void (*sigmoid)(float *y, const float *x, size_t count);
    void (*sigmoid_backward)(float *dx, const float *dy, const float *y, size_t count);
    void (*tanh)(float *y, const float *x, size_t count);
    void (*tanh_backward)(float *dx, const float *dy, const float *y, size_t count);
    /* Over `classes` values of a sample, each `stride` behind the one before: y > 0, sum 1. */
    void (*softmax)(float *y, const float *x, size_t classes, size_t stride);
    void (*softmax_backward)(float *dx, const float *dy, const float *y, size_t classes,
                             size_t stride);
    void (*add)(float *dst, const float *a, const float *b, size_t count);
    void (*column_sums)(const float *x, size_t rows, size_t columns, float *sums);
    void (*transpose_add)(const float *x, size_t rows, size_t columns, const float *bias, bool relu,
                          float *y);
    void (*row_means)(const float *x, size_t rows, size_t columns, float *means);
    void (*dropout)(float *y, uint8_t *mask, const float *x, const uint32_t *words,
                    uint32_t threshold, float scale, size_t count);
    void (*dropout_backward)(float *dx, const float *dy, const uint8_t *mask, float scale,
                             size_t count);
    void (*max_pool)(const gr_pool_numbers *n, const float *x, float *y, uint8_t *at);
    void (*max_pool_backward)(const gr_pool_numbers *n, const float *dy, const float *y,
                              const uint8_t *at, float *dx);
    double (*square_sum)(const float *x, size_t count);
    bool (*any_not_finite)(const float *x, size_t count);
    void (*blend)(float *values, const float *gradients, float keep, float take, size_t count);
    /* False if a gradient is not finite. */
    bool (*sgd)(float *w, float *m, const float *g, const gr_sgd_numbers *n, size_t count);
    bool (*adam)(float *w, float *m, float *v, const float *g, const gr_adam_numbers *n,
                 size_t count);
} gr_passes;

extern const gr_passes gr_passes_portable;
#if defined(__x86_64__)
extern const gr_passes gr_passes_avx2, gr_passes_avx512;
#endif
/* The fastest that this processor can run. */
const gr_passes *gr_passes_best(void);

/* y may be x, dx may be dy. Not-a-number goes through a ReLU: it must be found, not hidden. */
void gr_relu_f32(float *y, const float *x, size_t count);
void gr_relu_backward_f32(float *dx, const float *dy, const float *y, size_t count);
/* As the passes of these names. */
void gr_sigmoid_f32(float *y, const float *x, size_t count);
void gr_sigmoid_backward_f32(float *dx, const float *dy, const float *y, size_t count);
void gr_tanh_f32(float *y, const float *x, size_t count);
void gr_tanh_backward_f32(float *dx, const float *dy, const float *y, size_t count);
void gr_softmax_f32(float *y, const float *x, size_t classes, size_t stride);
void gr_softmax_backward_f32(float *dx, const float *dy, const float *y, size_t classes,
                             size_t stride);
void gr_column_sums(const float *x, size_t rows, size_t columns, float *sums);
/* y[column][row] = x[row][column] + bias[row] (bias may be NULL), then ReLU if asked. */
void gr_transpose_add(const float *x, size_t rows, size_t columns, const float *bias, bool relu,
                      float *y);
void gr_row_means(const float *x, size_t rows, size_t columns, float *means);
/* Keeps a value with probability 1 - rate and then divides by that; mask: 1 where it stays. */
void gr_dropout_f32(float *y, uint8_t *mask, const float *x, const uint32_t *words, double rate,
                    size_t count);
void gr_dropout_backward_f32(float *dx, const float *dy, const uint8_t *mask, double rate,
                             size_t count);
/* The first largest value of each window; NaN is larger than all. at: its place in the window. */
void gr_max_pool_f32(const gr_pool_numbers *n, const float *x, float *y, uint8_t *at);
/* y: not NULL where a ReLU stands before the pooling: its mask is applied as well. */
void gr_max_pool_backward_f32(const gr_pool_numbers *n, const float *dy, const float *y,
                              const uint8_t *at, float *dx);
/* values = keep * values + take * gradients. */
void gr_blend_f32(float *values, const float *gradients, float keep, float take, size_t count);

#endif
