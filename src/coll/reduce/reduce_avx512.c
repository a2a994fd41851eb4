/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdint.h>

/* Compilers do not turn integer arithmetic into the conversions. */
#define GR_F16_BLOCK 16

/* Without optimization the intrinsic is a macro, and gcc warns of the mask -1 in it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static inline void store_f16(void *dst, __m512 values)
{
    _mm256_storeu_si256(dst, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
#pragma GCC diagnostic pop

static inline void gr_f16_add_block(void *dst, const void *a, const void *b)
{
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256(a));
    __m512 y = _mm512_cvtph_ps(_mm256_loadu_si256(b));
    store_f16(dst, _mm512_add_ps(x, y));
}

static inline void gr_f16_multiply_block(void *dst, const void *a, const void *b)
{
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256(a));
    __m512 y = _mm512_cvtph_ps(_mm256_loadu_si256(b));
    store_f16(dst, _mm512_mul_ps(x, y));
}

static inline void gr_f16_divide_block(void *buf, float by)
{
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256(buf));
    store_f16(buf, _mm512_div_ps(x, _mm512_set1_ps(by)));
}

#define GR_REDUCE_TABLE gr_reduce_avx512
#include "coll/reduce/reduce_kernels.h"
