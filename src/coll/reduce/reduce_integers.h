/* SPDX-License-Identifier: Apache-2.0 */
/* Integers and bool: the part of the kernels that reduce_kernels.h includes, which defines what is
 * used here. */
#ifndef GR_REDUCE_TABLE
#error "define GR_REDUCE_TABLE and include coll/reduce_kernels.h"
#endif

#define GR_AND(x, y) ((x) & (y))
#define GR_OR(x, y) ((x) | (y))
#define GR_XOR(x, y) ((x) ^ (y))

/* What does not ask for the sign. In `wide`, which is unsigned and no smaller than int: no overflow
 * is undefined. */
#define GR_SIGNLESS(bits, wide)                                                                    \
    static inline uint##bits##_t add_u##bits(uint##bits##_t x, uint##bits##_t y)                   \
    {                                                                                              \
        return (uint##bits##_t)((wide)x + (wide)y);                                                \
    }                                                                                              \
    static inline uint##bits##_t times_u##bits(uint##bits##_t x, uint##bits##_t y)                 \
    {                                                                                              \
        return (uint##bits##_t)((wide)x * (wide)y);                                                \
    }                                                                                              \
    GR_KERNEL(sum_u##bits, any_u##bits, add_u##bits)                                               \
    GR_KERNEL(product_u##bits, any_u##bits, times_u##bits)                                         \
    GR_KERNEL(band_u##bits, any_u##bits, GR_AND)                                                   \
    GR_KERNEL(bor_u##bits, any_u##bits, GR_OR)                                                     \
    GR_KERNEL(bxor_u##bits, any_u##bits, GR_XOR)

GR_SIGNLESS(8, unsigned)
GR_SIGNLESS(16, unsigned)
GR_SIGNLESS(32, uint32_t)
GR_SIGNLESS(64, uint64_t)

#define GR_ORDERED(name, type)                                                                     \
    static inline type min_##name(type x, type y)                                                  \
    {                                                                                              \
        return x < y ? x : y;                                                                      \
    }                                                                                              \
    static inline type max_##name(type x, type y)                                                  \
    {                                                                                              \
        return x > y ? x : y;                                                                      \
    }                                                                                              \
    GR_KERNEL(smallest_##name, any_##name, min_##name)                                             \
    GR_KERNEL(largest_##name, any_##name, max_##name)

GR_ORDERED(i8, int8_t)
GR_ORDERED(i16, int16_t)
GR_ORDERED(i32, int32_t)
GR_ORDERED(i64, int64_t)
GR_ORDERED(u8, uint8_t)
GR_ORDERED(u16, uint16_t)
GR_ORDERED(u32, uint32_t)
GR_ORDERED(u64, uint64_t)

/* The result is 0 or 1, whichever numbers stand for true. */
static inline uint8_t either(uint8_t x, uint8_t y)
{
    return (x | y) != 0;
}

static inline uint8_t both(uint8_t x, uint8_t y)
{
    return (x != 0) & (y != 0);
}

static inline uint8_t one_of_both(uint8_t x, uint8_t y)
{
    return (x != 0) ^ (y != 0);
}

GR_KERNEL(any_bool, any_u8, either)
GR_KERNEL(all_bool, any_u8, both)
GR_KERNEL(odd_bool, any_u8, one_of_both)
