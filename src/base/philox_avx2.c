/* SPDX-License-Identifier: Apache-2.0 */

/* Compiled with AVX2 allowed: the same source as the portable version, the same bits. */

#include "base/philox_lanes.h"

void gr_philox_chunks_avx2(uint64_t seed, uint64_t stream_high, uint32_t stream_low, uint32_t *out,
                           size_t chunks)
{
    for (size_t i = 0; i < chunks; i++) {
        gr_philox_chunk(seed, stream_high, stream_low, (uint32_t)(i * GR_PHILOX_LANES),
                        out + i * GR_PHILOX_CHUNK_WORDS);
    }
}
