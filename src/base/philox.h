/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_PHILOX_H
#define GR_BASE_PHILOX_H

/* Counter-based random numbers: Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011). A pure function of key and counter: the same
 * position gives the same number everywhere. */

#include <stddef.h>
#include <stdint.h>

void gr_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* A stream: key = (low, high half of seed); counter = (block, stream_low, low, high half of
 * stream_high). Block b gives the words 4b .. 4b+3 of the stream. */
#define GR_PHILOX_STREAM_WORDS_MAX (UINT64_C(1) << 34)

/* Sets out[i] to word i of a stream; count is at most GR_PHILOX_STREAM_WORDS_MAX. */
void gr_philox_fill(uint64_t seed, uint64_t stream_high, uint32_t stream_low, uint32_t *out,
                    size_t count);

/* Sets out[i] to `count` normal numbers with mean 0 and standard deviation 1, one word of the
 * stream each: Box-Muller in double, with its own logarithm, sine and cosine, so every machine
 * gets the same bits. */
void gr_philox_normal(uint64_t seed, uint64_t stream_high, uint32_t stream_low, float *out,
                      size_t count);

#endif
