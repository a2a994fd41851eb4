/* SPDX-License-Identifier: Apache-2.0 */
/* Division and multiplication of a buffer by one number: the part of the kernels that
 * reduce_kernels.h includes, which defines what is used here. */
#ifndef GR_REDUCE_TABLE
#error "define GR_REDUCE_TABLE and include coll/reduce_kernels.h"
#endif

/* ---- Division -------------------------------------------------------------------------------- */
/* A power of two divides by multiplying, to the same bits: its inverse is exact. */
static inline int is_power_of_two(int divisor)
{
    return divisor > 0 && (divisor & (divisor - 1)) == 0;
}

#define GR_SCALE_FLOAT(name, type, number)                                                         \
    static void name(void *buf, size_t count, int divisor)                                         \
    {                                                                                              \
        type *at = buf;                                                                            \
        number by = (number)divisor;                                                               \
        if (is_power_of_two(divisor)) {                                                            \
            number inverse = 1 / by;                                                               \
            for (size_t i = 0; i < count; i++) {                                                   \
                at[i] = at[i] * inverse;                                                           \
            }                                                                                      \
        } else {                                                                                   \
            for (size_t i = 0; i < count; i++) {                                                   \
                at[i] = at[i] / by;                                                                \
            }                                                                                      \
        }                                                                                          \
    }

/* A quotient never leaves the range of its dividend: divisors are positive. It is that of `wide`,
 * which holds all divisors. */
#define GR_SCALE_INTEGER(name, type, number, wide)                                                 \
    static void name(void *buf, size_t count, int divisor)                                         \
    {                                                                                              \
        type *at = buf;                                                                            \
        wide by = (wide)divisor;                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            at[i] = (number)(at[i] / by);                                                          \
        }                                                                                          \
    }

GR_SCALE_FLOAT(scale_f32, any_f32, float)
GR_SCALE_FLOAT(scale_f64, any_f64, double)
GR_SCALE_INTEGER(scale_i8, any_i8, int8_t, int)
GR_SCALE_INTEGER(scale_i16, any_i16, int16_t, int)
GR_SCALE_INTEGER(scale_i32, any_i32, int32_t, int)
GR_SCALE_INTEGER(scale_i64, any_i64, int64_t, int64_t)
GR_SCALE_INTEGER(scale_u8, any_u8, uint8_t, int)
GR_SCALE_INTEGER(scale_u16, any_u16, uint16_t, int)
GR_SCALE_INTEGER(scale_u32, any_u32, uint32_t, uint32_t)
GR_SCALE_INTEGER(scale_u64, any_u64, uint64_t, uint64_t)

static void scale_f16(void *buf, size_t count, int divisor)
{
    any_u16 *at = buf;
    float by = (float)divisor;
    size_t i = 0;
#ifdef GR_F16_BLOCK
    for (; i + GR_F16_BLOCK <= count; i += GR_F16_BLOCK) {
        gr_f16_divide_block(at + i, by);
    }
#endif
    for (; i < count; i++) {
        at[i] = gr_f16_of_f32(gr_f32_of_f16(at[i]) / by);
    }
}

static void scale_bf16(void *buf, size_t count, int divisor)
{
    any_u16 *at = buf;
    float by = (float)divisor;
    for (size_t i = 0; i < count; i++) {
        at[i] = gr_bf16_of_f32(gr_f32_of_bf16(at[i]) / by);
    }
}

/* ---- Multiplication by a factor -------------------------------------------------------------- */
#define GR_MULTIPLY(name, type, factor_type, element)                                              \
    static void name(void *dst, const void *src, size_t count, double factor)                      \
    {                                                                                              \
        type *out = dst;                                                                           \
        const type *x = src;                                                                       \
        factor_type by = (factor_type)factor;                                                      \
        GR_INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++) {                                                       \
            out[i] = element(x[i], by);                                                            \
        }                                                                                          \
    }

#define GR_TIMES_F16(x, by) gr_f16_of_f32(gr_f32_of_f16(x) * (by))
#define GR_TIMES_BF16(x, by) gr_bf16_of_f32(gr_f32_of_bf16(x) * (by))

/* The largest i64 and u64 are no f64: from 2^63 and 2^64 on they stand for the product. A NaN (of a
 * factor that is one) gives 0. */
#define GR_MULTIPLY_INTEGER(name, type, number, least, most)                                       \
    static inline number multiplied_##name(number x, double by)                                    \
    {                                                                                              \
        double product = (double)x * by;                                                           \
        if (product != product) {                                                                  \
            return 0;                                                                              \
        }                                                                                          \
        return product >= (double)most    ? most                                                   \
               : product <= (double)least ? least                                                  \
                                          : (number)product;                                       \
    }                                                                                              \
    GR_MULTIPLY(multiply_##name, type, double, multiplied_##name)

GR_MULTIPLY(multiply_f32, any_f32, float, GR_TIMES)
GR_MULTIPLY(multiply_f64, any_f64, double, GR_TIMES)
GR_MULTIPLY(multiply_f16, any_u16, float, GR_TIMES_F16)
GR_MULTIPLY(multiply_bf16, any_u16, float, GR_TIMES_BF16)
GR_MULTIPLY_INTEGER(i8, any_i8, int8_t, INT8_MIN, INT8_MAX)
GR_MULTIPLY_INTEGER(u8, any_u8, uint8_t, 0, UINT8_MAX)
GR_MULTIPLY_INTEGER(i16, any_i16, int16_t, INT16_MIN, INT16_MAX)
GR_MULTIPLY_INTEGER(i32, any_i32, int32_t, INT32_MIN, INT32_MAX)
GR_MULTIPLY_INTEGER(i64, any_i64, int64_t, INT64_MIN, INT64_MAX)
GR_MULTIPLY_INTEGER(u16, any_u16, uint16_t, 0, UINT16_MAX)
GR_MULTIPLY_INTEGER(u32, any_u32, uint32_t, 0, UINT32_MAX)
GR_MULTIPLY_INTEGER(u64, any_u64, uint64_t, 0, UINT64_MAX)
