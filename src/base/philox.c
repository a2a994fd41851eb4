/* SPDX-License-Identifier: Apache-2.0 */
#include "base/philox.h"

#include "base/fail.h"
#include "base/philox_lanes.h"
#include "base/philox_normal.h"

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

static void chunks_portable(uint64_t seed, uint64_t stream_high, uint32_t stream_low,
                            uint32_t first_block, uint32_t *out, size_t chunks)
{
    for (size_t i = 0; i < chunks; i++) {
        gr_philox_chunk(seed, stream_high, stream_low,
                        first_block + (uint32_t)(i * GR_PHILOX_LANES),
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
        choose_chunks()(seed, stream_high, stream_low, 0, out, chunks);
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

/* ---- Normal numbers -------------------------------------------------------------------------- */

static void normals_portable(const uint32_t *words, float *out, int pairs)
{
    gr_normal_pairs(words, out, pairs);
}

static gr_normals *choose_normals(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return gr_normals_avx2;
    }
#endif
    return normals_portable;
}

void gr_philox_normal(uint64_t seed, uint64_t stream_high, uint32_t stream_low, float *out,
                      size_t count)
{
    GR_CHECK(count <= (size_t)GR_PHILOX_STREAM_WORDS_MAX);
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[GR_PHILOX_CHUNK_WORDS];
    size_t done = 0;
    for (; count - done >= GR_PHILOX_CHUNK_WORDS; done += GR_PHILOX_CHUNK_WORDS) {
        choose_chunks()(seed, stream_high, stream_low, (uint32_t)(done / 4), words, 1);
        choose_normals()(words, out + done, GR_PHILOX_CHUNK_WORDS / 2);
    }
    int rest = (int)(count - done);
    for (int i = 0; i < rest; i += 4) {
        const uint32_t counter[4] = {(uint32_t)((done + (size_t)i) / 4), stream_low,
                                     (uint32_t)stream_high, (uint32_t)(stream_high >> 32)};
        gr_philox(key, counter, words + i);
    }
    float values[GR_PHILOX_CHUNK_WORDS];
    choose_normals()(words, values, (rest + 1) / 2);
    memcpy(out + done, values, (size_t)rest * sizeof *out);
}
