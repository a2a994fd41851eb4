/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_REF_H
#define GR_NN_REF_H

/* Each operation once more: slow, plain, sums in double. The oracle of the fast kernels. All
 * tensors row-major, batch first. dx may be NULL where nobody needs it. */

#include "nn/layer.h"

void gr_ref_linear_forward(int64_t batch, int64_t in, int64_t out, const float *x, const float *w,
                           const float *bias, float *y);
void gr_ref_linear_backward(int64_t batch, int64_t in, int64_t out, const float *x, const float *w,
                            const float *dy, float *dx, float *dw, float *dbias);
void gr_ref_conv_forward(const gr_conv_shape *s, const float *x, const float *w, const float *bias,
                         float *y);
void gr_ref_conv_backward(const gr_conv_shape *s, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *dbias);
/* `at`: for each output the place of the largest input in its image, for the way back. */
void gr_ref_max_pool_forward(const gr_conv_shape *s, const float *x, float *y, int32_t *at);
void gr_ref_max_pool_backward(const gr_conv_shape *s, const float *dy, const int32_t *at,
                              float *dx);
void gr_ref_avg_pool_forward(const gr_conv_shape *s, const float *x, float *y);
void gr_ref_avg_pool_backward(const gr_conv_shape *s, const float *dy, float *dx);
/* Mean and (biased) variance of each channel over batch and pixels. */
void gr_ref_norm_statistics(int64_t batch, int64_t channels, int64_t pixels, const float *x,
                            float *mean, float *variance);
void gr_ref_norm_forward(int64_t batch, int64_t channels, int64_t pixels, double epsilon,
                         const float *x, const float *mean, const float *variance,
                         const float *scale, const float *shift, float *y);
void gr_ref_norm_backward(int64_t batch, int64_t channels, int64_t pixels, double epsilon,
                          const float *x, const float *mean, const float *variance,
                          const float *scale, const float *dy, float *dx, float *dscale,
                          float *dshift);
/* The backward passes read the output. */
void gr_ref_sigmoid(float *y, const float *x, size_t count);
void gr_ref_sigmoid_backward(float *dx, const float *dy, const float *y, size_t count);
void gr_ref_tanh(float *y, const float *x, size_t count);
void gr_ref_tanh_backward(float *dx, const float *dy, const float *y, size_t count);
/* Over `classes` values of a sample, each `stride` behind the one before. */
void gr_ref_softmax(float *y, const float *x, size_t classes, size_t stride);
void gr_ref_softmax_backward(float *dx, const float *dy, const float *y, size_t classes,
                             size_t stride);
void gr_ref_gelu(float *y, const float *x, size_t count);
void gr_ref_gelu_backward(float *dx, const float *dy, const float *x, size_t count);

#endif
