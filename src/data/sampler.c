/* SPDX-License-Identifier: Apache-2.0 */
#include "data/sampler.h"

#include "base/philox.h"

enum {
    ORDER_TAG = 0x6f726400, /* keeps our counters apart from other streams */
    /* A network over a few bits mixes badly however many rounds it has; small counts walk
     * instead. */
    ORDER_HALF_BITS_MIN = 4
};

void gr_sampler_init(gr_sampler *sampler, uint64_t seed, uint64_t epoch, uint64_t count)
{
    sampler->count = count;
    sampler->seed = seed;
    sampler->epoch = epoch;
    sampler->half_bits = ORDER_HALF_BITS_MIN;
    while (sampler->half_bits < 32 && (count - 1) >> (2 * sampler->half_bits) != 0) {
        sampler->half_bits++;
    }
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (uint32_t round = 0; round < GR_SAMPLER_ROUNDS; round += 2) {
        uint32_t counter[4] = {round, ORDER_TAG, (uint32_t)epoch, (uint32_t)(epoch >> 32)};
        uint32_t random[4];
        gr_philox(key, counter, random);
        sampler->keys[round] = (uint64_t)random[1] << 32 | random[0];
        sampler->keys[round + 1] = (uint64_t)random[3] << 32 | random[2];
    }
}

/* Every bit of the result depends on every bit of value and key (the finalizer of SplitMix64;
 * Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). Philox
 * itself would cost ten times as much here, and a sample of a small model takes no longer than
 * that. */
static uint32_t mix(uint32_t value, uint64_t key)
{
    uint64_t x = value + key;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 32 ^ x);
}

/* One walk through the Feistel network over 2 * half_bits bits. */
static uint64_t permute(const gr_sampler *sampler, uint64_t value)
{
    const uint32_t mask =
        sampler->half_bits == 32 ? UINT32_MAX : (UINT32_C(1) << sampler->half_bits) - 1;
    uint32_t left = (uint32_t)(value >> sampler->half_bits) & mask;
    uint32_t right = (uint32_t)value & mask;
    for (int round = 0; round < GR_SAMPLER_ROUNDS; round++) {
        uint32_t next = left ^ (mix(right, sampler->keys[round]) & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << sampler->half_bits | right;
}

uint64_t gr_sampler_at(const gr_sampler *sampler, uint64_t position)
{
    /* Cycle walking: the domain is at most four times the count, so this takes four walks at most
     * on average, and it ends because position itself lies on the cycle. */
    do {
        position = permute(sampler, position);
    } while (position >= sampler->count);
    return position;
}
