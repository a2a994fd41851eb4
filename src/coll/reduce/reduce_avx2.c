/* SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <stdint.h>

/* Compilers do not turn integer arithmetic into the F16C conversions. */
#define GR_F16_BLOCK 8

static inline void gr_f16_add_block(void *dst, const void *a, const void *b)
{
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(a));
    __m256 y = _mm256_cvtph_ps(_mm_loadu_si128(b));
    _mm_storeu_si128(dst, _mm256_cvtps_ph(_mm256_add_ps(x, y), _MM_FROUND_TO_NEAREST_INT));
}

static inline void gr_f16_multiply_block(void *dst, const void *a, const void *b)
{
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(a));
    __m256 y = _mm256_cvtph_ps(_mm_loadu_si128(b));
    _mm_storeu_si128(dst, _mm256_cvtps_ph(_mm256_mul_ps(x, y), _MM_FROUND_TO_NEAREST_INT));
}

static inline void gr_f16_divide_block(void *buf, float by)
{
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(buf));
    __m256 quotient = _mm256_div_ps(x, _mm256_set1_ps(by));
    _mm_storeu_si128(buf, _mm256_cvtps_ph(quotient, _MM_FROUND_TO_NEAREST_INT));
}

#define GR_REDUCE_TABLE gr_reduce_avx2
#include "coll/reduce/reduce_kernels.h"
