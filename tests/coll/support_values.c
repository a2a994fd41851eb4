/* SPDX-License-Identifier: Apache-2.0 */
#include "support_values.h"
#include "coll/plan/plan.h"
#include "coll/reduce/reduce.h"

#include <stdlib.h>
#include <string.h>

bool vals_complex(gr_dtype dtype)
{
    return dtype == GR_COMPLEX64 || dtype == GR_COMPLEX128;
}

bool vals_reducible(gr_dtype dtype, gr_redop op)
{
    bool bitwise = op == GR_BAND || op == GR_BOR || op == GR_BXOR;
    switch (dtype) {
    case GR_F32:
    case GR_F64:
    case GR_F16:
    case GR_BF16:
        return !bitwise;
    case GR_BOOL:
        return op != GR_AVERAGE;
    case GR_COMPLEX64:
    case GR_COMPLEX128:
        return !bitwise && op != GR_MIN && op != GR_MAX;
    default:
        return true;
    }
}

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A number with a random mantissa and one of several exponents, so that another order of additions
 * rounds differently; or a whole number in [-2, 2]. */
static float value_of(uint64_t bits, bool small)
{
    if (small) {
        return (float)(bits % 5) - 2.0f;
    }
    float scale = 1.0f / (float)(1 << bits % 11);
    return ((float)(bits >> 40) * 0x1p-24f - 0.5f) * 8.0f * scale;
}

static uint16_t f16_of(uint64_t bits, bool small)
{
    static const uint16_t whole[5] = {0xc000, 0xbc00, 0x0000, 0x3c00, 0x4000}; /* -2 .. 2 */
    if (small) {
        return whole[bits % 5];
    }
    /* Sign, an exponent of about one, any mantissa. */
    return (uint16_t)((bits & 0x83ff) | (12 + (bits >> 16) % 5) << 10);
}

static uint16_t bf16_of(uint64_t bits, bool small)
{
    float value = value_of(bits, small);
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return (uint16_t)(word >> 16);
}

void vals_fill(void *out, gr_dtype dtype, size_t count, uint64_t seed, int shard, bool small)
{
    if (vals_complex(dtype)) { /* two numbers each */
        vals_fill(out, dtype == GR_COMPLEX64 ? GR_F32 : GR_F64, 2 * count, seed, shard, small);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = mix(seed ^ mix((uint64_t)shard << 32 ^ i));
        switch (dtype) {
        case GR_F32:
            ((float *)out)[i] = value_of(bits, small);
            break;
        case GR_F64:
            ((double *)out)[i] = small ? (double)value_of(bits, true)
                                       : ((double)bits * 0x1p-61 - 4) / (double)(1 + bits % 999);
            break;
        case GR_F16:
            ((uint16_t *)out)[i] = f16_of(bits, small);
            break;
        case GR_BF16:
            ((uint16_t *)out)[i] = bf16_of(bits, small);
            break;
        case GR_I32:
            ((int32_t *)out)[i] = (int32_t)(bits % 2000001) - 1000000;
            break;
        case GR_I8:
        case GR_U8:
            ((uint8_t *)out)[i] = (uint8_t)(bits >> 32);
            break;
        case GR_BOOL:
            ((uint8_t *)out)[i] = bits >> 32 & 1;
            break;
        case GR_I16:
        case GR_U16:
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 32);
            break;
        case GR_U32:
            ((uint32_t *)out)[i] = (uint32_t)(bits >> 32);
            break;
        case GR_U64:
            ((uint64_t *)out)[i] = bits;
            break;
        default:
            ((int64_t *)out)[i] = (int64_t)(bits >> 8) - (INT64_C(1) << 55);
            break;
        }
    }
}

void vals_subtree(void *out, gr_dtype dtype, gr_redop op, size_t elements, uint64_t seed, int first,
                  int count, bool small)
{
    if (count == 1) {
        vals_fill(out, dtype, elements, seed, first, small);
        return;
    }
    int left = gr_tree_left_count(count);
    void *right = malloc(elements * gr_dtype_bytes(dtype) + 1);
    if (!right) {
        abort();
    }
    vals_subtree(out, dtype, op, elements, seed, first, left, small);
    vals_subtree(right, dtype, op, elements, seed, first + left, count - left, small);
    gr_reduce_kernel(GR_ISA_C, dtype, op)(out, out, right, elements);
    free(right);
}

void vals_expect(void *out, gr_dtype dtype, gr_redop op, size_t elements, uint64_t seed, int shards,
                 bool small)
{
    vals_subtree(out, dtype, op, elements, seed, 0, shards, small);
    if (op == GR_AVERAGE) {
        gr_scale_inverse(out, elements, dtype, shards);
    }
}
