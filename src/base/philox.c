/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

#include "base/fail.h"
#include "base/philox_lanes.h"

#include <math.h>
#include <string.h>

void gr_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < GR_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)GR_PHILOX_MULTIPLIER_0 * c[0];
        uint64_t p1 = (uint64_t)GR_PHILOX_MULTIPLIER_1 * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p0;
        k0 += GR_PHILOX_WEYL_0;
        k1 += GR_PHILOX_WEYL_1;
    }
    memcpy(out, c, sizeof c);
}

static void chunks_portable(uint64_t seed, uint64_t stream_high, uint32_t stream_low, uint32_t *out,
                            size_t chunks)
{
    for (size_t i = 0; i < chunks; i++) {
        gr_philox_chunk(seed, stream_high, stream_low, (uint32_t)(i * GR_PHILOX_LANES),
                        out + i * GR_PHILOX_CHUNK_WORDS);
    }
}

static gr_philox_chunks *choose_chunks(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return gr_philox_chunks_avx2;
    }
#endif
    return chunks_portable;
}

void gr_philox_fill(uint64_t seed, uint64_t stream_high, uint32_t stream_low, uint32_t *out,
                    size_t count)
{
    /* Beyond 2^32 blocks the stream would repeat itself. */
    GR_CHECK(count <= (size_t)GR_PHILOX_STREAM_WORDS_MAX);
    size_t chunks = count / GR_PHILOX_CHUNK_WORDS;
    size_t done = chunks * GR_PHILOX_CHUNK_WORDS;
    if (chunks > 0) {
        choose_chunks()(seed, stream_high, stream_low, out, chunks);
    }
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    while (done < count) {
        const uint32_t counter[4] = {(uint32_t)(done / 4), stream_low, (uint32_t)stream_high,
                                     (uint32_t)(stream_high >> 32)};
        uint32_t block[4];
        gr_philox(key, counter, block);
        size_t take = count - done < 4 ? count - done : 4;
        memcpy(out + done, block, take * sizeof block[0]);
        done += take;
    }
}

/* ---- Normal numbers ----------------------------------------------------------------------------
 * libm's log, sin and cos differ in the last bit between C libraries and machines. What stands here
 * uses only +, -, *, / and sqrt of IEEE double in a fixed order, which every machine rounds alike
 * (the build forbids the compiler to contract a product and a sum into one rounding). */

/* Natural logarithm of (word + 1) / 2^32, by ln m = 2 artanh((m - 1) / (m + 1)). */
static double log_unit(uint32_t word)
{
    double x = (double)word + 1.0; /* exact, 1 .. 2^32 */
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023 - 32;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    double m; /* 1 .. 2 */
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) { /* the series converges fastest around 1 */
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s; /* at most 0.0295: eleven terms reach the precision of double */
    double sum = 1.0 / 21.0;
    for (int n = 19; n >= 1; n -= 2) {
        sum = sum * z + 1.0 / (double)n;
    }
    return (double)exponent * 0.69314718055994530942 + 2.0 * s * sum;
}

/* Sine and cosine of 2 pi word / 2^32. The reduction to an eighth of the circle is exact. */
static void sin_cos_turn(uint32_t word, double *sin_out, double *cos_out)
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
    switch (quadrant & 3) {
    case 0:
        *sin_out = s;
        *cos_out = c;
        break;
    case 1:
        *sin_out = c;
        *cos_out = -s;
        break;
    case 2:
        *sin_out = -s;
        *cos_out = -c;
        break;
    default:
        *sin_out = -c;
        *cos_out = s;
        break;
    }
}

void gr_philox_normal(uint64_t seed, uint64_t stream_high, uint32_t stream_low, float *out,
                      size_t count)
{
    GR_CHECK(count <= (size_t)GR_PHILOX_STREAM_WORDS_MAX);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (size_t at = 0; at < count; at += 4) {
        const uint32_t counter[4] = {(uint32_t)(at / 4), stream_low, (uint32_t)stream_high,
                                     (uint32_t)(stream_high >> 32)};
        uint32_t word[4];
        float value[4];
        gr_philox(key, counter, word);
        for (int i = 0; i < 4; i += 2) {
            double radius = sqrt(-2.0 * log_unit(word[i]));
            double sine;
            double cosine;
            sin_cos_turn(word[i + 1], &sine, &cosine);
            value[i] = (float)(radius * cosine);
            value[i + 1] = (float)(radius * sine);
        }
        size_t take = count - at < 4 ? count - at : 4;
        memcpy(out + at, value, take * sizeof value[0]);
    }
}
