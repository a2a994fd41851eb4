/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_REDUCE_REDUCE_TABLE_H
#define GR_COLL_REDUCE_REDUCE_TABLE_H

/* What one instruction set offers. Internal to the reduction kernels. */

#include "coll/reduce/reduce.h"

typedef void gr_scale_fn(void *buf, size_t count, int divisor);

typedef void gr_multiply_fn(void *dst, const void *src, size_t count, double factor);

typedef struct gr_reduce_table {
    gr_reduce_fn *reduce[GR_DTYPE_COUNT][GR_REDOP_COUNT];
    gr_reduce_both_fn *sum_both[GR_DTYPE_COUNT];
    gr_scale_fn *scale[GR_DTYPE_COUNT];
    gr_multiply_fn *multiply[GR_DTYPE_COUNT];
    gr_add_scaled_fn *add_scaled;
} gr_reduce_table;

extern const gr_reduce_table gr_reduce_c;
#if defined(__x86_64__)
extern const gr_reduce_table gr_reduce_avx2;
extern const gr_reduce_table gr_reduce_avx512;
#elif defined(__aarch64__)
extern const gr_reduce_table gr_reduce_neon;
#endif

#endif
