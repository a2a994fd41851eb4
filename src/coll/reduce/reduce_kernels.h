/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels, once for each instruction set: reduce_<isa>.c defines GR_REDUCE_TABLE (the name of
 * its table) and includes this file; the compiler vectorises the loops with the instructions that
 * CMake allows for that file. Plain loops keep the bits: contraction is off, and each element is
 * computed by itself. The conversions of f16 an instruction set gives itself, by defining
 * GR_F16_BLOCK (elements) and gr_f16_<add, multiply, divide>_block.
 *
 * NaN: a sum, product, minimum or maximum of which an operand is a NaN is a NaN, whose sign and
 * payload are not defined. Minimum and maximum count -0 as less than +0. Integers wrap around: they
 * add and multiply as unsigned numbers. */
#ifndef GR_REDUCE_TABLE
#error "define GR_REDUCE_TABLE before including coll/reduce_kernels.h"
#endif

#include "coll/reduce/reduce_float16.h"
#include "coll/reduce/reduce_table.h"

/* The buffers are either the same or apart: no iteration reads what another one writes. */
#if defined(__clang__)
#define GR_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define GR_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Buffers of any alignment and of any type. */
#define GR_ANYWHERE __attribute__((aligned(1), may_alias))
typedef float any_f32 GR_ANYWHERE;
typedef double any_f64 GR_ANYWHERE;
typedef uint8_t any_u8 GR_ANYWHERE;
typedef uint16_t any_u16 GR_ANYWHERE;
typedef uint32_t any_u32 GR_ANYWHERE;
typedef uint64_t any_u64 GR_ANYWHERE;
typedef int8_t any_i8 GR_ANYWHERE;
typedef int16_t any_i16 GR_ANYWHERE;
typedef int32_t any_i32 GR_ANYWHERE;
typedef int64_t any_i64 GR_ANYWHERE;

#define GR_KERNEL(name, type, element)                                                             \
    static void name(void *dst, const void *a, const void *b, size_t count)                        \
    {                                                                                              \
        type *out = dst;                                                                           \
        const type *x = a;                                                                         \
        const type *y = b;                                                                         \
        GR_INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++) {                                                       \
            out[i] = element(x[i], y[i]);                                                          \
        }                                                                                          \
    }

#define GR_KERNEL_BOTH(name, type, element)                                                        \
    static void name(void *dst, void *also, const void *a, const void *b, size_t count)            \
    {                                                                                              \
        type *out = dst;                                                                           \
        type *too = also;                                                                          \
        const type *x = a;                                                                         \
        const type *y = b;                                                                         \
        GR_INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++) {                                                       \
            type sum = element(x[i], y[i]);                                                        \
            out[i] = sum;                                                                          \
            too[i] = sum;                                                                          \
        }                                                                                          \
    }

/* ---- f32, f64 -------------------------------------------------------------------------------- */
#define GR_PLUS(x, y) ((x) + (y))
#define GR_TIMES(x, y) ((x) * (y))

static inline double f64_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Equal operands have equal bits, but for the two zeros: there `or` gives -0 and `and` gives +0. */
#define GR_EXTREME(name, number, before, both, of_bits, bits_of)                                   \
    static inline number name(number x, number y)                                                  \
    {                                                                                              \
        number first = x before y ? x : y; /* y if one is NaN */                                   \
        number equal = of_bits(bits_of(x) both bits_of(y));                                        \
        number result = x == y ? equal : first;                                                    \
        return x != x ? x : result;                                                                \
    }

GR_EXTREME(min_f32, float, <, |, gr_f32_of_bits, gr_bits_of_f32)
GR_EXTREME(max_f32, float, >, &, gr_f32_of_bits, gr_bits_of_f32)
GR_EXTREME(min_f64, double, <, |, f64_of_bits, bits_of_f64)
GR_EXTREME(max_f64, double, >, &, f64_of_bits, bits_of_f64)

/* ---- f16, bf16 ------------------------------------------------------------------------------- */
#define GR_BY_F32(name, type, operation)                                                           \
    static inline uint16_t name(uint16_t x, uint16_t y)                                            \
    {                                                                                              \
        return gr_##type##_of_f32(operation(gr_f32_of_##type(x), gr_f32_of_##type(y)));            \
    }

GR_BY_F32(add_f16, f16, GR_PLUS)
GR_BY_F32(add_bf16, bf16, GR_PLUS)
GR_BY_F32(times_f16, f16, GR_TIMES)
GR_BY_F32(times_bf16, bf16, GR_TIMES)

/* An integer that grows with the number, -0 below +0; NaNs are at both ends. */
static inline int16_t order_of(uint16_t bits)
{
    int16_t negative = (int16_t)((int16_t)bits >> 15);
    return (int16_t)(bits ^ ((uint16_t)negative & 0x7fffu));
}

static inline uint16_t pick(uint16_t x, uint16_t y, int take_x, uint16_t infinity)
{
    uint16_t chosen = take_x ? x : y;
    chosen = (y & 0x7fffu) > infinity ? y : chosen;
    return (x & 0x7fffu) > infinity ? x : chosen;
}

#define GR_PICK(name, before, infinity)                                                            \
    static inline uint16_t name(uint16_t x, uint16_t y)                                            \
    {                                                                                              \
        return pick(x, y, order_of(x) before order_of(y), infinity);                               \
    }

GR_PICK(min_f16, <, 0x7c00u)
GR_PICK(max_f16, >, 0x7c00u)
GR_PICK(min_bf16, <, 0x7f80u)
GR_PICK(max_bf16, >, 0x7f80u)

GR_KERNEL(sum_f32, any_f32, GR_PLUS)
GR_KERNEL(product_f32, any_f32, GR_TIMES)
GR_KERNEL(smallest_f32, any_f32, min_f32)
GR_KERNEL(largest_f32, any_f32, max_f32)
GR_KERNEL(sum_f64, any_f64, GR_PLUS)
GR_KERNEL(product_f64, any_f64, GR_TIMES)
GR_KERNEL(smallest_f64, any_f64, min_f64)
GR_KERNEL(largest_f64, any_f64, max_f64)
GR_KERNEL(product_bf16, any_u16, times_bf16)
GR_KERNEL(smallest_f16, any_u16, min_f16)
GR_KERNEL(largest_f16, any_u16, max_f16)
GR_KERNEL(smallest_bf16, any_u16, min_bf16)
GR_KERNEL(largest_bf16, any_u16, max_bf16)

#ifndef GR_F16_BLOCK
GR_KERNEL(sum_f16, any_u16, add_f16)
GR_KERNEL(product_f16, any_u16, times_f16)
#else
#define GR_KERNEL_F16(name, block, element)                                                        \
    static void name(void *dst, const void *a, const void *b, size_t count)                        \
    {                                                                                              \
        any_u16 *out = dst;                                                                        \
        const any_u16 *x = a;                                                                      \
        const any_u16 *y = b;                                                                      \
        size_t i = 0;                                                                              \
        for (; i + GR_F16_BLOCK <= count; i += GR_F16_BLOCK) {                                     \
            block(out + i, x + i, y + i);                                                          \
        }                                                                                          \
        for (; i < count; i++) {                                                                   \
            out[i] = element(x[i], y[i]);                                                          \
        }                                                                                          \
    }

GR_KERNEL_F16(sum_f16, gr_f16_add_block, add_f16)
GR_KERNEL_F16(product_f16, gr_f16_multiply_block, times_f16)
#endif

/* Two elements in one integer: each half is an f32 with the other half masked away, so that a
 * vector of them needs no widening and no packing. */
static inline uint32_t rounded_bf16(float value)
{
    uint32_t bits = gr_bits_of_f32(value);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

static inline uint32_t add_bf16_pair(uint32_t x, uint32_t y)
{
    float low = gr_f32_of_bits(x << 16) + gr_f32_of_bits(y << 16);
    float high = gr_f32_of_bits(x & 0xffff0000u) + gr_f32_of_bits(y & 0xffff0000u);
    return rounded_bf16(low) >> 16 | (rounded_bf16(high) & 0xffff0000u);
}

GR_KERNEL(sum_bf16_pairs, any_u32, add_bf16_pair)

static void sum_bf16(void *dst, const void *a, const void *b, size_t count)
{
    sum_bf16_pairs(dst, a, b, count / 2);
    if (count % 2 != 0) {
        any_u16 *out = dst;
        const any_u16 *x = a;
        const any_u16 *y = b;
        out[count - 1] = add_bf16(x[count - 1], y[count - 1]);
    }
}

#include "coll/reduce/reduce_factors.h"
#include "coll/reduce/reduce_integers.h"

static bool add_scaled(float *restrict to, const float *restrict from, float factor, size_t count)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        bad |= (gr_bits_of_f32(from[i]) & 0x7f800000u) == 0x7f800000u;
        to[i] += factor * from[i];
    }
    return bad == 0;
}

GR_KERNEL_BOTH(sum_both_f32, any_f32, GR_PLUS)
GR_KERNEL_BOTH(sum_both_f64, any_f64, GR_PLUS)

#include "coll/reduce/reduce_complex.h"

#define GR_FLOAT_OPS(type)                                                                         \
    {                                                                                              \
        [GR_SUM] = sum_##type, [GR_AVERAGE] = sum_##type, [GR_MIN] = smallest_##type,              \
        [GR_MAX] = largest_##type, [GR_PRODUCT] = product_##type                                   \
    }
#define GR_INTEGER_OPS(type, bits)                                                                 \
    {                                                                                              \
        [GR_SUM] = sum_u##bits, [GR_AVERAGE] = sum_u##bits, [GR_MIN] = smallest_##type,            \
        [GR_MAX] = largest_##type, [GR_PRODUCT] = product_u##bits, [GR_BAND] = band_u##bits,       \
        [GR_BOR] = bor_u##bits, [GR_BXOR] = bxor_u##bits                                           \
    }
#define GR_COMPLEX_OPS(type)                                                                       \
    {                                                                                              \
        [GR_SUM] = sum_##type, [GR_AVERAGE] = sum_##type, [GR_PRODUCT] = product_##type            \
    }

#define GR_OF_NUMBERS(operation)                                                                   \
    {                                                                                              \
        [GR_F32] = operation##_f32, [GR_F64] = operation##_f64, [GR_F16] = operation##_f16,        \
        [GR_BF16] = operation##_bf16, [GR_I8] = operation##_i8, [GR_I16] = operation##_i16,        \
        [GR_I32] = operation##_i32, [GR_I64] = operation##_i64, [GR_U8] = operation##_u8,          \
        [GR_U16] = operation##_u16, [GR_U32] = operation##_u32, [GR_U64] = operation##_u64,        \
        [GR_COMPLEX64] = operation##_complex64, [GR_COMPLEX128] = operation##_complex128           \
    }

/* What is not here is refused: a type has no such operation. */
const gr_reduce_table GR_REDUCE_TABLE = {
    .reduce =
        {
            [GR_F32] = GR_FLOAT_OPS(f32),
            [GR_F64] = GR_FLOAT_OPS(f64),
            [GR_F16] = GR_FLOAT_OPS(f16),
            [GR_BF16] = GR_FLOAT_OPS(bf16),
            [GR_I8] = GR_INTEGER_OPS(i8, 8),
            [GR_I16] = GR_INTEGER_OPS(i16, 16),
            [GR_I32] = GR_INTEGER_OPS(i32, 32),
            [GR_I64] = GR_INTEGER_OPS(i64, 64),
            [GR_U8] = GR_INTEGER_OPS(u8, 8),
            [GR_U16] = GR_INTEGER_OPS(u16, 16),
            [GR_U32] = GR_INTEGER_OPS(u32, 32),
            [GR_U64] = GR_INTEGER_OPS(u64, 64),
            [GR_BOOL] = {[GR_SUM] = any_bool,
                         [GR_MIN] = all_bool,
                         [GR_MAX] = any_bool,
                         [GR_PRODUCT] = all_bool,
                         [GR_BAND] = all_bool,
                         [GR_BOR] = any_bool,
                         [GR_BXOR] = odd_bool},
            [GR_COMPLEX64] = GR_COMPLEX_OPS(complex64),
            [GR_COMPLEX128] = GR_COMPLEX_OPS(complex128),
        },
    .sum_both = {[GR_F32] = sum_both_f32,
                 [GR_F64] = sum_both_f64,
                 [GR_COMPLEX64] = sum_both_complex64,
                 [GR_COMPLEX128] = sum_both_complex128},
    .scale = GR_OF_NUMBERS(scale),
    .multiply = GR_OF_NUMBERS(multiply),
    .add_scaled = add_scaled,
};
