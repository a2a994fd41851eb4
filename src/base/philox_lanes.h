/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_PHILOX_LANES_H
#define GR_BASE_PHILOX_LANES_H

/* The parts of gr_philox_fill and gr_philox_normal. Each instruction set gives the same bits. */

#include <stddef.h>
#include <stdint.h>

enum {
    GR_PHILOX_ROUNDS = 10,
    GR_PHILOX_LANES = 16,                       /* blocks that are computed side by side */
    GR_PHILOX_CHUNK_WORDS = 4 * GR_PHILOX_LANES /* words that one chunk yields */
};

#define GR_PHILOX_MULTIPLIER_0 UINT32_C(0xD2511F53)
#define GR_PHILOX_MULTIPLIER_1 UINT32_C(0xCD9E8D57)
#define GR_PHILOX_WEYL_0 UINT32_C(0x9E3779B9)
#define GR_PHILOX_WEYL_1 UINT32_C(0xBB67AE85)

/* Blocks [first_block, first_block + GR_PHILOX_LANES) of a stream into out, in order. Plain loops
 * over independent lanes: the compiler turns them into vector instructions. */
static inline void gr_philox_chunk(uint64_t seed, uint64_t stream_high, uint32_t stream_low,
                                   uint32_t first_block, uint32_t out[GR_PHILOX_CHUNK_WORDS])
{
    uint32_t c0[GR_PHILOX_LANES];
    uint32_t c1[GR_PHILOX_LANES];
    uint32_t c2[GR_PHILOX_LANES];
    uint32_t c3[GR_PHILOX_LANES];
    for (uint32_t i = 0; i < GR_PHILOX_LANES; i++) {
        c0[i] = first_block + i;
        c1[i] = stream_low;
        c2[i] = (uint32_t)stream_high;
        c3[i] = (uint32_t)(stream_high >> 32);
    }
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < GR_PHILOX_ROUNDS; round++) {
        for (int i = 0; i < GR_PHILOX_LANES; i++) {
            uint64_t p0 = (uint64_t)GR_PHILOX_MULTIPLIER_0 * c0[i];
            uint64_t p1 = (uint64_t)GR_PHILOX_MULTIPLIER_1 * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += GR_PHILOX_WEYL_0;
        k1 += GR_PHILOX_WEYL_1;
    }
    for (int i = 0; i < GR_PHILOX_LANES; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

/* `chunks` whole chunks of the stream. */
typedef void gr_philox_chunks(uint64_t seed, uint64_t stream_high, uint32_t stream_low,
                              uint32_t first_block, uint32_t *out, size_t chunks);
/* philox_normal.h: gr_normal_pairs. */
typedef void gr_normals(const uint32_t *words, float *out, int pairs);

#if defined(__x86_64__)
/* In philox_avx2.c; only for machines that have AVX2. */
gr_philox_chunks gr_philox_chunks_avx2;
gr_normals gr_normals_avx2;
#endif

#endif
