/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_PHILOX_NORMAL_H
#define GR_BASE_PHILOX_NORMAL_H

/* Normal numbers for gr_philox_normal. libm's log, sin and cos differ in the last bit between C
 * libraries and machines. What stands here uses only +, -, *, / and sqrt of IEEE double in a fixed
 * order, which every machine rounds alike (the build forbids the compiler to contract a product and
 * a sum into one rounding), and selects by bits where others branch: so the compiler makes vector
 * instructions of it, with the same result. */

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t gr_bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double gr_double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Natural logarithm of (word + 1) / 2^32, by ln m = 2 artanh((m - 1) / (m + 1)). */
static inline double gr_log_unit(uint32_t word)
{
    /* word + 1, exact, 1 .. 2^32, by way of a signed number, which machines convert at once. */
    double x = (double)(int32_t)(word ^ UINT32_C(0x80000000)) + 2147483649.0;
    uint64_t bits = gr_bits_of(x), fraction = bits & ((UINT64_C(1) << 52) - 1);
    /* m is 1 .. 2, or half of that from the square root of 2 on: the series converges fastest
     * around 1. The exponent comes as the lowest bits of 2^52. */
    uint64_t over = (UINT64_C(0x6a09e667f3bcd) - fraction) >> 63;
    double m = gr_double_of(fraction | (1023 - over) << 52);
    double exponent = gr_double_of(((bits >> 52) + over) | UINT64_C(0x4330000000000000)) -
                      (0x1p52 + 1023.0 + 32.0);
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s; /* at most 0.0295: eleven terms reach the precision of double */
    double sum = 1.0 / 21.0;
    for (int n = 19; n >= 1; n -= 2) {
        sum = sum * z + 1.0 / (double)n;
    }
    return exponent * 0.69314718055994530942 + 2.0 * s * sum;
}

/* Sine and cosine of 2 pi word / 2^32. The reduction to an eighth of the circle is exact. */
static inline void gr_sin_cos_turn(uint32_t word, double *sin_out, double *cos_out)
{
    uint32_t quadrant = (word + (UINT32_C(1) << 29)) >> 30; /* the nearest, modulo 4 */
    int32_t rest = (int32_t)(word - (quadrant << 30));      /* -2^29 .. 2^29 */
    double t = (double)rest * (6.28318530717958647693 * 0x1p-32);
    double z = t * t;
    double s = 1.0;
    double c = 1.0;
    for (int n = 16; n >= 2; n -= 2) { /* Taylor, nested */
        s = 1.0 - s * z * (1.0 / (double)(n * (n + 1)));
        c = 1.0 - c * z * (1.0 / (double)(n * (n - 1)));
    }
    s *= t;
    /* In the quadrants 1 and 3 they are each other; sine is negative in 2 and 3, cosine in 1, 2. */
    uint64_t q = quadrant, swap = 0 - (q & 1);
    uint64_t sine = gr_bits_of(s), cosine = gr_bits_of(c), differ = (sine ^ cosine) & swap;
    *sin_out = gr_double_of(sine ^ differ ^ (q & 2) << 62);
    *cos_out = gr_double_of(cosine ^ differ ^ ((q + 1) & 2) << 62);
}

/* Box-Muller: two numbers of two words, `pairs` times. */
static inline void gr_normal_pairs(const uint32_t *restrict words, float *restrict out, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        double sine, cosine, radius = sqrt(-2.0 * gr_log_unit(words[2 * i]));
        gr_sin_cos_turn(words[2 * i + 1], &sine, &cosine);
        out[2 * i] = (float)(radius * cosine);
        out[2 * i + 1] = (float)(radius * sine);
    }
}

#endif
