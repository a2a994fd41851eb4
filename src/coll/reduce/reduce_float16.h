/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_REDUCE_REDUCE_FLOAT16_H
#define GR_COLL_REDUCE_REDUCE_FLOAT16_H

/* The two 16-bit floating types in integer arithmetic: the meaning that every faster way must keep.
 * Internal to the reduction kernels. */

#include <stdint.h>
#include <string.h>

static inline float gr_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t gr_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float gr_f32_of_f16(uint16_t half)
{
    const uint32_t exponent_mask = 0x0f800000u;
    uint32_t bits = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t exponent = bits & exponent_mask;
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    bits += 112u << 23; /* from the bias of binary16 to that of binary32 */
    if (exponent == exponent_mask) {
        bits += 112u << 23; /* infinity, NaN */
    } else if (exponent == 0) {
        /* Zero or subnormal: as 2^-14 + its value, of which 2^-14 is taken away exactly. */
        float value = gr_f32_of_bits(bits + (1u << 23)) - gr_f32_of_bits(113u << 23);
        bits = gr_bits_of_f32(value);
    }
    return gr_f32_of_bits(bits | sign);
}

/* To nearest, ties to even; a NaN becomes a quiet NaN. */
static inline uint16_t gr_f16_of_f32(float value)
{
    uint32_t bits = gr_bits_of_f32(value);
    uint32_t sign = bits & 0x80000000u;
    uint32_t half;
    bits ^= sign;
    if (bits >= 143u << 23) {
        half = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (bits < 113u << 23) {
        /* Subnormal in binary16: adding 2^-1 lets the hardware round at the right place. */
        const uint32_t magic = 126u << 23;
        half = gr_bits_of_f32(gr_f32_of_bits(bits) + gr_f32_of_bits(magic)) - magic;
    } else {
        uint32_t odd = bits >> 13 & 1u;
        half = (bits - (112u << 23) + 0xfffu + odd) >> 13;
    }
    return (uint16_t)(half | sign >> 16);
}

static inline float gr_f32_of_bf16(uint16_t upper)
{
    return gr_f32_of_bits((uint32_t)upper << 16);
}

/* To nearest, ties to even; a NaN becomes a quiet NaN. */
static inline uint16_t gr_bf16_of_f32(float value)
{
    uint32_t bits = gr_bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
