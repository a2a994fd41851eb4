/* SPDX-License-Identifier: Apache-2.0 */
/* Complex numbers: the part of the kernels that reduce_kernels.h includes, which defines what is
 * used here. All but products are those of twice as many real numbers. */
#ifndef GR_REDUCE_TABLE
#error "define GR_REDUCE_TABLE and include coll/reduce_kernels.h"
#endif

/* A difference of products beside a sum of products becomes one fused operation in gcc 12.2 where
 * the processor has it, in spite of -ffp-contract=off: so the difference is a sum, of the second
 * product with its sign flipped. */
static inline float negative_f32(float x)
{
    return gr_f32_of_bits(gr_bits_of_f32(x) ^ UINT32_C(1) << 31);
}

static inline double negative_f64(double x)
{
    return f64_of_bits(bits_of_f64(x) ^ UINT64_C(1) << 63);
}

#define GR_COMPLEX(name, part, number)                                                             \
    static void sum_##name(void *dst, const void *a, const void *b, size_t count)                  \
    {                                                                                              \
        sum_##part(dst, a, b, 2 * count);                                                          \
    }                                                                                              \
    static void sum_both_##name(void *dst, void *also, const void *a, const void *b, size_t count) \
    {                                                                                              \
        sum_both_##part(dst, also, a, b, 2 * count);                                               \
    }                                                                                              \
    static void scale_##name(void *buf, size_t count, int divisor)                                 \
    {                                                                                              \
        scale_##part(buf, 2 * count, divisor);                                                     \
    }                                                                                              \
    static void multiply_##name(void *dst, const void *src, size_t count, double factor)           \
    {                                                                                              \
        multiply_##part(dst, src, 2 * count, factor);                                              \
    }                                                                                              \
    static void product_##name(void *dst, const void *a, const void *b, size_t count)              \
    {                                                                                              \
        any_##part *out = dst;                                                                     \
        const any_##part *x = a;                                                                   \
        const any_##part *y = b;                                                                   \
        GR_INDEPENDENT                                                                             \
        for (size_t i = 0; i < 2 * count; i += 2) {                                                \
            number real = x[i] * y[i] + negative_##part(x[i + 1] * y[i + 1]);                      \
            number imaginary = x[i] * y[i + 1] + x[i + 1] * y[i];                                  \
            out[i] = real;                                                                         \
            out[i + 1] = imaginary;                                                                \
        }                                                                                          \
    }

GR_COMPLEX(complex64, f32, float)
GR_COMPLEX(complex128, f64, double)
