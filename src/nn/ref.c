/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/ref.h"

#include <math.h>
#include <string.h>

void gr_ref_linear_forward(int64_t batch, int64_t in, int64_t out, const float *x, const float *w,
                           const float *bias, float *y)
{
    for (int64_t n = 0; n < batch; n++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int64_t i = 0; i < in; i++) {
                sum += (double)x[n * in + i] * (double)w[o * in + i];
            }
            y[n * out + o] = (float)sum;
        }
    }
}

void gr_ref_linear_backward(int64_t batch, int64_t in, int64_t out, const float *x, const float *w,
                            const float *dy, float *dx, float *dw, float *dbias)
{
    for (int64_t o = 0; o < out; o++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t n = 0; n < batch; n++) {
                sum += (double)dy[n * out + o] * (double)x[n * in + i];
            }
            dw[o * in + i] = (float)sum;
        }
        double sum = 0;
        for (int64_t n = 0; n < batch; n++) {
            sum += (double)dy[n * out + o];
        }
        if (dbias) {
            dbias[o] = (float)sum;
        }
    }
    for (int64_t n = 0; dx && n < batch; n++) {
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) {
                sum += (double)dy[n * out + o] * (double)w[o * in + i];
            }
            dx[n * in + i] = (float)sum;
        }
    }
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* Element (n, c, h, w) of a tensor with these numbers of channels, rows and columns. */
static size_t at4(int64_t channels, int64_t height, int64_t width, int64_t n, int64_t c, int64_t h,
                  int64_t w)
{
    return (size_t)(((n * channels + c) * height + h) * width + w);
}

static size_t at_in(const gr_conv_shape *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return at4(s->channels_in, s->height_in, s->width_in, n, c, h, w);
}

static size_t at_out(const gr_conv_shape *s, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return at4(s->channels_out, s->height_out, s->width_out, n, c, h, w);
}

static bool inside(const gr_conv_shape *s, int64_t h, int64_t w)
{
    return h >= 0 && h < s->height_in && w >= 0 && w < s->width_in;
}

/* What one window sees: the sum over channels and kernel of x * w. */
static double conv_window(const gr_conv_shape *s, const float *x, const float *w, int64_t n,
                          int64_t o, int64_t h, int64_t v)
{
    double sum = 0;
    for (int64_t c = 0; c < s->channels_in; c++) {
        for (int64_t i = 0; i < s->kernel; i++) {
            for (int64_t j = 0; j < s->kernel; j++) {
                int64_t row = h * s->stride + i - s->padding, col = v * s->stride + j - s->padding;
                if (inside(s, row, col)) {
                    sum += (double)x[at_in(s, n, c, row, col)] *
                           (double)w[at4(s->channels_in, s->kernel, s->kernel, o, c, i, j)];
                }
            }
        }
    }
    return sum;
}

void gr_ref_conv_forward(const gr_conv_shape *s, const float *x, const float *w, const float *bias,
                         float *y)
{
    for (int64_t n = 0; n < s->batch; n++) {
        for (int64_t o = 0; o < s->channels_out; o++) {
            for (int64_t h = 0; h < s->height_out; h++) {
                for (int64_t v = 0; v < s->width_out; v++) {
                    double sum = conv_window(s, x, w, n, o, h, v) + (bias ? (double)bias[o] : 0.0);
                    y[at_out(s, n, o, h, v)] = (float)sum;
                }
            }
        }
    }
}

static void conv_backward_weights(const gr_conv_shape *s, const float *x, const float *dy,
                                  float *dw)
{
    for (int64_t o = 0; o < s->channels_out; o++) {
        for (int64_t c = 0; c < s->channels_in; c++) {
            for (int64_t at = 0; at < s->kernel * s->kernel; at++) {
                int64_t i = at / s->kernel, j = at % s->kernel;
                double sum = 0;
                for (int64_t p = 0; p < s->batch * s->height_out * s->width_out; p++) {
                    int64_t v = p % s->width_out, h = p / s->width_out % s->height_out;
                    int64_t n = p / s->width_out / s->height_out;
                    int64_t row = h * s->stride + i - s->padding;
                    int64_t col = v * s->stride + j - s->padding;
                    if (inside(s, row, col)) {
                        sum +=
                            (double)x[at_in(s, n, c, row, col)] * (double)dy[at_out(s, n, o, h, v)];
                    }
                }
                dw[at4(s->channels_in, s->kernel, s->kernel, o, c, i, j)] = (float)sum;
            }
        }
    }
}

/* The gradient at one pixel: from each output whose window covers it. */
static double conv_pixel(const gr_conv_shape *s, const float *w, const float *dy, int64_t n,
                         int64_t c, int64_t row, int64_t col)
{
    double sum = 0;
    for (int64_t i = 0; i < s->kernel; i++) {
        for (int64_t j = 0; j < s->kernel; j++) {
            int64_t h = row + s->padding - i, v = col + s->padding - j;
            if (h < 0 || v < 0 || h % s->stride || v % s->stride ||
                h / s->stride >= s->height_out || v / s->stride >= s->width_out) {
                continue;
            }
            for (int64_t o = 0; o < s->channels_out; o++) {
                sum += (double)w[at4(s->channels_in, s->kernel, s->kernel, o, c, i, j)] *
                       (double)dy[at_out(s, n, o, h / s->stride, v / s->stride)];
            }
        }
    }
    return sum;
}

void gr_ref_conv_backward(const gr_conv_shape *s, const float *x, const float *w, const float *dy,
                          float *dx, float *dw, float *dbias)
{
    conv_backward_weights(s, x, dy, dw);
    int64_t pixels = s->height_out * s->width_out;
    for (int64_t o = 0; dbias && o < s->channels_out; o++) {
        double sum = 0;
        for (int64_t n = 0; n < s->batch; n++) {
            for (int64_t p = 0; p < pixels; p++) {
                sum += (double)dy[(n * s->channels_out + o) * pixels + p];
            }
        }
        dbias[o] = (float)sum;
    }
    for (int64_t n = 0; dx && n < s->batch; n++) {
        for (int64_t c = 0; c < s->channels_in; c++) {
            for (int64_t h = 0; h < s->height_in; h++) {
                for (int64_t v = 0; v < s->width_in; v++) {
                    dx[at_in(s, n, c, h, v)] = (float)conv_pixel(s, w, dy, n, c, h, v);
                }
            }
        }
    }
}

/* ---- Pooling --------------------------------------------------------------------------------- */

void gr_ref_max_pool_forward(const gr_conv_shape *s, const float *x, float *y, int32_t *at)
{
    for (int64_t p = 0; p < s->batch * s->channels_in * s->height_out * s->width_out; p++) {
        int64_t v = p % s->width_out, h = p / s->width_out % s->height_out;
        const float *image = x + p / s->width_out / s->height_out * s->height_in * s->width_in;
        int64_t best = -1;
        for (int64_t i = 0; i < s->kernel * s->kernel; i++) {
            int64_t row = h * s->stride + i / s->kernel - s->padding;
            int64_t col = v * s->stride + i % s->kernel - s->padding;
            int64_t place = row * s->width_in + col;
            if (inside(s, row, col) && (best < 0 || image[place] > image[best])) {
                best = place;
            }
        }
        y[p] = image[best];
        if (at) {
            at[p] = (int32_t)best;
        }
    }
}

void gr_ref_max_pool_backward(const gr_conv_shape *s, const float *dy, const int32_t *at, float *dx)
{
    int64_t images = s->batch * s->channels_in, in = s->height_in * s->width_in;
    int64_t out = s->height_out * s->width_out;
    memset(dx, 0, (size_t)(images * in) * sizeof *dx);
    for (int64_t p = 0; p < images * out; p++) {
        dx[p / out * in + at[p]] += dy[p];
    }
}

static int64_t pixels_inside(const gr_conv_shape *s, int64_t h, int64_t v)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->kernel * s->kernel; i++) {
        count += inside(s, h * s->stride + i / s->kernel - s->padding,
                        v * s->stride + i % s->kernel - s->padding);
    }
    return count;
}

void gr_ref_avg_pool_forward(const gr_conv_shape *s, const float *x, float *y)
{
    for (int64_t p = 0; p < s->batch * s->channels_in * s->height_out * s->width_out; p++) {
        int64_t v = p % s->width_out, h = p / s->width_out % s->height_out;
        const float *image = x + p / s->width_out / s->height_out * s->height_in * s->width_in;
        double sum = 0;
        for (int64_t i = 0; i < s->kernel * s->kernel; i++) {
            int64_t row = h * s->stride + i / s->kernel - s->padding;
            int64_t col = v * s->stride + i % s->kernel - s->padding;
            if (inside(s, row, col)) {
                sum += (double)image[row * s->width_in + col];
            }
        }
        y[p] = (float)(sum / (double)pixels_inside(s, h, v));
    }
}

void gr_ref_avg_pool_backward(const gr_conv_shape *s, const float *dy, float *dx)
{
    int64_t in = s->height_in * s->width_in;
    memset(dx, 0, (size_t)(s->batch * s->channels_in * in) * sizeof *dx);
    for (int64_t p = 0; p < s->batch * s->channels_in * s->height_out * s->width_out; p++) {
        int64_t v = p % s->width_out, h = p / s->width_out % s->height_out;
        float *image = dx + p / s->width_out / s->height_out * in;
        float part = (float)((double)dy[p] / (double)pixels_inside(s, h, v));
        for (int64_t i = 0; i < s->kernel * s->kernel; i++) {
            int64_t row = h * s->stride + i / s->kernel - s->padding;
            int64_t col = v * s->stride + i % s->kernel - s->padding;
            if (inside(s, row, col)) {
                image[row * s->width_in + col] += part;
            }
        }
    }
}

/* ---- Batch norm ------------------------------------------------------------------------------ */

void gr_ref_norm_statistics(int64_t batch, int64_t channels, int64_t pixels, const float *x,
                            float *mean, float *variance)
{
    double count = (double)(batch * pixels);
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < batch * pixels; i++) {
            sum += (double)x[(i / pixels * channels + c) * pixels + i % pixels];
        }
        for (int64_t i = 0; i < batch * pixels; i++) {
            double d = (double)x[(i / pixels * channels + c) * pixels + i % pixels] - sum / count;
            squares += d * d;
        }
        mean[c] = (float)(sum / count);
        variance[c] = (float)(squares / count);
    }
}

void gr_ref_norm_forward(int64_t batch, int64_t channels, int64_t pixels, double epsilon,
                         const float *x, const float *mean, const float *variance,
                         const float *scale, const float *shift, float *y)
{
    for (int64_t i = 0; i < batch * channels * pixels; i++) {
        int64_t c = i / pixels % channels;
        double normal = ((double)x[i] - (double)mean[c]) / sqrt((double)variance[c] + epsilon);
        y[i] = (float)(normal * (double)scale[c] + (double)shift[c]);
    }
}

void gr_ref_norm_backward(int64_t batch, int64_t channels, int64_t pixels, double epsilon,
                          const float *x, const float *mean, const float *variance,
                          const float *scale, const float *dy, float *dx, float *dscale,
                          float *dshift)
{
    double count = (double)(batch * pixels);
    for (int64_t c = 0; c < channels; c++) {
        double inverse = 1.0 / sqrt((double)variance[c] + epsilon);
        double sum = 0, product = 0;
        for (int64_t i = 0; i < batch * pixels; i++) {
            int64_t at = (i / pixels * channels + c) * pixels + i % pixels;
            sum += (double)dy[at];
            product += (double)dy[at] * ((double)x[at] - (double)mean[c]) * inverse;
        }
        dscale[c] = (float)product;
        dshift[c] = (float)sum;
        for (int64_t i = 0; dx && i < batch * pixels; i++) {
            int64_t at = (i / pixels * channels + c) * pixels + i % pixels;
            double normal = ((double)x[at] - (double)mean[c]) * inverse;
            dx[at] = (float)((double)scale[c] * inverse *
                             ((double)dy[at] - sum / count - normal * product / count));
        }
    }
}

/* ---- GELU ------------------------------------------------------------------------------------ */

void gr_ref_gelu(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double v = (double)x[i];
        y[i] = (float)(0.5 * v * (1.0 + erf(v * 0.70710678118654752440)));
    }
}

void gr_ref_gelu_backward(float *dx, const float *dy, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double v = (double)x[i];
        double cumulative = 0.5 * (1.0 + erf(v * 0.70710678118654752440));
        double density = 0.39894228040143267794 * exp(-0.5 * v * v);
        dx[i] = (float)((double)dy[i] * (cumulative + v * density));
    }
}

void gr_ref_sigmoid(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = (float)(1.0 / (1.0 + exp(-(double)x[i])));
    }
}

void gr_ref_sigmoid_backward(float *dx, const float *dy, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = (float)((double)dy[i] * (double)y[i] * (1.0 - (double)y[i]));
    }
}

void gr_ref_tanh(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        y[i] = (float)tanh((double)x[i]);
    }
}

void gr_ref_tanh_backward(float *dx, const float *dy, const float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        dx[i] = (float)((double)dy[i] * (1.0 - (double)y[i] * (double)y[i]));
    }
}

void gr_ref_softmax(float *y, const float *x, size_t classes, size_t stride)
{
    for (size_t at = 0; at < stride; at++) {
        double top = (double)x[at], sum = 0;
        for (size_t c = 0; c < classes; c++) {
            top = fmax(top, (double)x[c * stride + at]);
        }
        for (size_t c = 0; c < classes; c++) {
            sum += exp((double)x[c * stride + at] - top);
        }
        for (size_t c = 0; c < classes; c++) {
            y[c * stride + at] = (float)(exp((double)x[c * stride + at] - top) / sum);
        }
    }
}

/* The whole matrix of derivatives: dy_c / dx_d = y_c (1 if c = d, less y_d). */
void gr_ref_softmax_backward(float *dx, const float *dy, const float *y, size_t classes,
                             size_t stride)
{
    for (size_t at = 0; at < stride; at++) {
        for (size_t d = 0; d < classes; d++) {
            double sum = 0, own = (double)y[d * stride + at];
            for (size_t c = 0; c < classes; c++) {
                double one = c == d ? 1.0 : 0.0;
                sum += (double)dy[c * stride + at] * (double)y[c * stride + at] * (one - own);
            }
            dx[d * stride + at] = (float)sum;
        }
    }
}
