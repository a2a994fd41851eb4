/* SPDX-License-Identifier: Apache-2.0 */
#include "data/order.h"

#include "base/philox.h"

/* Small domains need more rounds than the four of Luby and Rackoff to be mixed well. */
enum { ORDER_ROUNDS = 8, ORDER_TAG = 0x6f726400 /* keeps our counters apart from other streams */ };

void gr_order_init(gr_order *order, uint64_t seed, uint64_t epoch, uint64_t count)
{
    order->count = count;
    order->seed = seed;
    order->epoch = epoch;
    order->half_bits = 1;
    while (order->half_bits < 32 && (count - 1) >> (2 * order->half_bits) != 0) {
        order->half_bits++;
    }
}

/* One walk through the Feistel network over 2 * half_bits bits. */
static uint64_t permute(const gr_order *order, uint64_t value)
{
    const uint32_t key[2] = {(uint32_t)order->seed, (uint32_t)(order->seed >> 32)};
    const uint32_t mask =
        order->half_bits == 32 ? UINT32_MAX : (UINT32_C(1) << order->half_bits) - 1;
    uint32_t left = (uint32_t)(value >> order->half_bits) & mask;
    uint32_t right = (uint32_t)value & mask;
    for (uint32_t round = 0; round < ORDER_ROUNDS; round++) {
        uint32_t counter[4] = {right, ORDER_TAG + round, (uint32_t)order->epoch,
                               (uint32_t)(order->epoch >> 32)};
        uint32_t random[4];
        gr_philox(key, counter, random);
        uint32_t next = left ^ (random[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << order->half_bits | right;
}

uint64_t gr_order_at(const gr_order *order, uint64_t position)
{
    /* Cycle walking: the domain is at most four times the count, so this takes four walks at most
     * on average, and it ends because position itself lies on the cycle. */
    do {
        position = permute(order, position);
    } while (position >= order->count);
    return position;
}
