/* SPDX-License-Identifier: Apache-2.0 */
/* The part of passes_body.h that is max pooling, included by it alone. No include guard. */

#include "nn/passes.h"

#include <string.h>

/* For what compilers do not vectorise by themselves. */
typedef float eight_floats __attribute__((vector_size(32)));
typedef int32_t eight_ints __attribute__((vector_size(32)));
typedef uint8_t eight_bytes __attribute__((vector_size(8)));

/* The part of a window that lies inside the image, in one direction. */
typedef struct pool_range {
    int64_t first, last; /* places in the window, last excluded */
    int64_t start;       /* place in the image of window place 0; may be negative */
} pool_range;

static inline pool_range pool_range_of(int64_t out, int64_t size, const gr_pool_numbers *n)
{
    pool_range range = {.start = out * n->stride - n->padding};
    range.first = range.start < 0 ? -range.start : 0;
    range.last = range.start + n->kernel > size ? size - range.start : n->kernel;
    return range;
}

static inline void pool_eight(const gr_pool_numbers *n, const float *image, pool_range rows,
                              pool_range columns, size_t inner, float *y, uint8_t *at)
{
    eight_ints best, place = {0};
    place += (int32_t)(rows.first * n->kernel + columns.first);
    const float *from =
        image +
        (size_t)((rows.start + rows.first) * n->width_in + columns.start + columns.first) * inner;
    memcpy(&best, from, sizeof best);
    for (int64_t i = rows.first; i < rows.last; i++) {
        for (int64_t j = columns.first; j < columns.last; j++) {
            eight_floats value;
            from = image + (size_t)((rows.start + i) * n->width_in + columns.start + j) * inner;
            memcpy(&value, from, sizeof value);
            eight_ints better = (value > (eight_floats)best) | (value != value);
            eight_ints here = (eight_ints){0} + (int32_t)(i * n->kernel + j);
            best = ((eight_ints)value & better) | (best & ~better);
            place = (here & better) | (place & ~better);
        }
    }
    eight_bytes bytes = __builtin_convertvector(place, eight_bytes);
    memcpy(y, &best, sizeof best);
    memcpy(at, &bytes, sizeof bytes);
}

static inline void pool_one(const gr_pool_numbers *n, const float *image, pool_range rows,
                            pool_range columns, float *y, uint8_t *at)
{
    int64_t place = rows.first * n->kernel + columns.first;
    float best = image[(rows.start + rows.first) * n->width_in + columns.start + columns.first];
    for (int64_t i = rows.first; i < rows.last; i++) {
        for (int64_t j = columns.first; j < columns.last; j++) {
            float value = image[(rows.start + i) * n->width_in + columns.start + j];
            bool better = value > best || value != value;
            best = better ? value : best;
            place = better ? i * n->kernel + j : place;
        }
    }
    *y = best;
    *at = (uint8_t)place;
}

/* One window; `inner` is a constant wherever this is inlined. */
static inline void pool_window(const gr_pool_numbers *n, const float *image, pool_range rows,
                               pool_range columns, size_t inner, float *y, uint8_t *at)
{
    if (inner == 1) {
        pool_one(n, image, rows, columns, y, at);
    }
    for (size_t c = 0; c + 8 <= inner; c += 8) {
        pool_eight(n, image + c, rows, columns, inner, y + c, at + c);
    }
}

static inline void pool_images(const gr_pool_numbers *n, const float *x, float *y, uint8_t *at,
                               size_t inner)
{
    size_t in = (size_t)(n->height_in * n->width_in) * inner;
    for (size_t image = 0; image < n->outer; image++) {
        for (int64_t h = 0; h < n->height_out; h++) {
            pool_range rows = pool_range_of(h, n->height_in, n);
            for (int64_t w = 0; w < n->width_out; w++) {
                pool_window(n, x + image * in, rows, pool_range_of(w, n->width_in, n), inner, y,
                            at);
                y += inner;
                at += inner;
            }
        }
    }
}

static void pass_max_pool(const gr_pool_numbers *n, const float *x, float *y, uint8_t *at)
{
    if (n->inner == 16) {
        pool_images(n, x, y, at, 16);
    } else if (n->inner == 8) {
        pool_images(n, x, y, at, 8);
    } else {
        pool_images(n, x, y, at, 1);
    }
}

static inline void unpool_eight(const gr_pool_numbers *n, float *image, pool_range rows,
                                pool_range columns, size_t inner, const float *dy, const float *y,
                                const uint8_t *at, bool whole)
{
    eight_floats part, output;
    eight_bytes bytes;
    memcpy(&part, dy, sizeof part);
    memcpy(&bytes, at, sizeof bytes);
    eight_ints place = __builtin_convertvector(bytes, eight_ints);
    if (y) {
        memcpy(&output, y, sizeof output);
        part = (eight_floats)((eight_ints)part & (output > 0.0f));
    }
    for (int64_t i = rows.first; i < rows.last; i++) {
        for (int64_t j = columns.first; j < columns.last; j++) {
            float *to =
                image + (size_t)((rows.start + i) * n->width_in + columns.start + j) * inner;
            eight_ints chosen = place == (int32_t)(i * n->kernel + j);
            eight_floats value = (eight_floats)((eight_ints)part & chosen), sum;
            if (!whole) {
                memcpy(&sum, to, sizeof sum);
                value = sum + value;
            }
            memcpy(to, &value, sizeof value);
        }
    }
}

static inline void unpool_one(const gr_pool_numbers *n, float *image, pool_range rows,
                              pool_range columns, const float *dy, const float *y,
                              const uint8_t *at, bool whole)
{
    float part = y && !(*y > 0.0f) ? 0.0f : *dy;
    for (int64_t i = rows.first; i < rows.last; i++) {
        for (int64_t j = columns.first; j < columns.last; j++) {
            float *to = image + (rows.start + i) * n->width_in + columns.start + j;
            float value = *at == i * n->kernel + j ? part : 0.0f;
            *to = whole ? value : *to + value;
        }
    }
}

/* `whole`: windows cover the image and do not overlap, so each place is written exactly once. */
static inline void unpool_window(const gr_pool_numbers *n, float *image, pool_range rows,
                                 pool_range columns, size_t inner, const float *dy, const float *y,
                                 const uint8_t *at, bool whole)
{
    if (inner == 1) {
        unpool_one(n, image, rows, columns, dy, y, at, whole);
    }
    for (size_t c = 0; c + 8 <= inner; c += 8) {
        unpool_eight(n, image + c, rows, columns, inner, dy + c, y ? y + c : NULL, at + c, whole);
    }
}

static inline void unpool_images(const gr_pool_numbers *n, const float *dy, const float *y,
                                 const uint8_t *at, float *dx, size_t inner, bool whole)
{
    size_t in = (size_t)(n->height_in * n->width_in) * inner;
    if (!whole) {
        memset(dx, 0, n->outer * in * sizeof *dx);
    }
    for (size_t image = 0; image < n->outer; image++) {
        for (int64_t h = 0; h < n->height_out; h++) {
            pool_range rows = pool_range_of(h, n->height_in, n);
            for (int64_t w = 0; w < n->width_out; w++) {
                unpool_window(n, dx + image * in, rows, pool_range_of(w, n->width_in, n), inner, dy,
                              y, at, whole);
                dy += inner;
                y = y ? y + inner : NULL;
                at += inner;
            }
        }
    }
}

static void pass_max_pool_backward(const gr_pool_numbers *n, const float *dy, const float *y,
                                   const uint8_t *at, float *dx)
{
    bool whole = n->stride == n->kernel && n->padding == 0 &&
                 n->height_out * n->stride == n->height_in &&
                 n->width_out * n->stride == n->width_in;
    if (n->inner == 16 && whole) {
        unpool_images(n, dy, y, at, dx, 16, true);
    } else if (n->inner == 16) {
        unpool_images(n, dy, y, at, dx, 16, false);
    } else if (n->inner == 8) {
        unpool_images(n, dy, y, at, dx, 8, whole);
    } else {
        unpool_images(n, dy, y, at, dx, 1, whole);
    }
}
