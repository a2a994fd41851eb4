/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_SAMPLER_H
#define GR_DATA_SAMPLER_H

#include <stdint.h>

/* The order of an epoch: a keyed permutation of [0, count) that anybody can evaluate at any
 * position in O(1) memory: a Feistel network over the next even number of bits, with cycle
 * walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Seed and
 * epoch give the keys of its rounds through Philox. */
enum { GR_SAMPLER_ROUNDS = 8 };

typedef struct gr_sampler {
    uint64_t count;
    uint32_t half_bits;
    uint64_t seed, epoch;
    uint64_t keys[GR_SAMPLER_ROUNDS];
} gr_sampler;

void gr_sampler_init(gr_sampler *sampler, uint64_t seed, uint64_t epoch, uint64_t count);
uint64_t gr_sampler_at(const gr_sampler *sampler, uint64_t position); /* position < count */

#endif
