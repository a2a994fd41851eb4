/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_REDUCE_REDUCE_H
#define GR_COLL_REDUCE_REDUCE_H

#include "coll/plan/counts.h"

#include <stdbool.h>

/* dst[i] = a[i] (op) b[i]; dst may be a or b; no alignment needed. GR_AVERAGE adds like GR_SUM. The
 * result is bit for bit that of the plain C reference on every instruction set (f16 and bf16: each
 * addition or product in f32, rounded to nearest even). */
typedef void gr_reduce_fn(void *dst, const void *a, const void *b, size_t count);

typedef enum gr_isa { GR_ISA_C = 0, GR_ISA_AVX2, GR_ISA_AVX512, GR_ISA_NEON, GR_ISA_COUNT } gr_isa;
/* For tests. */
const char *gr_isa_name(gr_isa isa);
int gr_isa_usable(gr_isa isa); /* built in and supported by this processor */
gr_isa gr_isa_best(void);

/* The same operations for every usable isa: what an isa does not speed up is the C reference. NULL:
 * the type has no such operation (gr_dtype_reduces), or it is GR_USER. */
gr_reduce_fn *gr_reduce_kernel(gr_isa isa, gr_dtype dtype, gr_redop op);

/* The same into two places, each of which may be a or b, in one pass. NULL: there is none for this
 * type and operation. */
typedef void gr_reduce_both_fn(void *dst, void *also, const void *a, const void *b, size_t count);
gr_reduce_both_fn *gr_reduce_both_kernel(gr_isa isa, gr_dtype dtype, gr_redop op);

/* What elements of a type can do; the numbers must be those of a type and an operation. */
bool gr_dtype_reduces(gr_dtype dtype, gr_redop op); /* GR_USER: any type */
bool gr_dtype_scales(gr_dtype dtype);               /* has an average, and factors */
/* What gr_scale multiplies by is finite if the factor is, and 0 only if that is. */
bool gr_dtype_holds_factor(gr_dtype dtype, double factor);
bool gr_dtype_any_order(gr_dtype dtype); /* in any order, reductions give the same bits */
/* "sum, average or product". */
void gr_dtype_list_reductions(gr_dtype dtype, char *text, size_t size_bytes);

/* Of types that gr_dtype_scales. buf[i] /= divisor (GR_AVERAGE's second half). */
void gr_scale_inverse(void *buf, size_t count, gr_dtype dtype, int divisor);
/* buf[i] *= factor. f32, f16, bf16 and complex64 multiply by the f32 nearest to it, in f32;
 * integers multiply in f64, truncate, and stop at the ends of their range. No alignment needed. */
void gr_scale(void *buf, size_t count, gr_dtype dtype, double factor);
/* dst[i] = src[i] * factor; dst may be src. */
void gr_scale_to(void *dst, const void *src, size_t count, gr_dtype dtype, double factor);

/* to[i] += factor * from[i], which lie apart; false: one of `from` is NaN or infinite. */
typedef bool gr_add_scaled_fn(float *to, const float *from, float factor, size_t count);
gr_add_scaled_fn *gr_add_scaled_best(void);

#endif
