/* SPDX-License-Identifier: Apache-2.0 */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

/* Compilers do not turn integer arithmetic into the conversions, which every arm64 processor
 * has. */
#define GR_F16_BLOCK 4

static inline float32x4_t load_f16(const void *from)
{
    uint16x4_t bits;
    memcpy(&bits, from, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}

static inline void store_f16(void *to, float32x4_t value)
{
    uint16x4_t bits = vreinterpret_u16_f16(vcvt_f16_f32(value));
    memcpy(to, &bits, sizeof bits);
}

static inline void gr_f16_add_block(void *dst, const void *a, const void *b)
{
    store_f16(dst, vaddq_f32(load_f16(a), load_f16(b)));
}

static inline void gr_f16_multiply_block(void *dst, const void *a, const void *b)
{
    store_f16(dst, vmulq_f32(load_f16(a), load_f16(b)));
}

static inline void gr_f16_divide_block(void *buf, float by)
{
    store_f16(buf, vdivq_f32(load_f16(buf), vdupq_n_f32(by)));
}

#define GR_REDUCE_TABLE gr_reduce_neon
#include "coll/reduce/reduce_kernels.h"
