/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"
#include "coll/combine.h"

/* Block b belongs to rank b. Everybody sends its share of block b to rank b, which adds the shares
 * in the order of the shard tree and sends the sum to everybody: two messages of latency, and no
 * rank sends more than 2 (n - 1) / n of the buffer when each holds one partial. Each rank begins
 * with its right-hand neighbour, so that not all begin with the same one. */

static void send_shares(const gr_units *units, gr_plan *plan)
{
    int n = plan->shape.world_size;
    for (int i = 1; i < n; i++) {
        int owner = (plan->shape.rank + i) % n;
        gr_units_send(units, owner, owner, plan);
    }
}

static void exchange_blocks(gr_plan *plan)
{
    int n = plan->shape.world_size;
    int rank = plan->shape.rank;
    for (int i = 1; i < n; i++) {
        gr_plan_send(plan, (rank + i) % n, gr_user(0, rank));
    }
    for (int i = 1; i < n; i++) {
        int owner = (rank + n - i) % n;
        gr_plan_recv(plan, owner, gr_user(0, owner));
    }
}

void gr_direct_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_units units;
    plan->blocks = (uint16_t)shape->world_size;
    if (shape->world_size == 1 || !gr_units_init(&units, shape, plan)) {
        return;
    }
    send_shares(&units, plan);
    gr_units_combine(&units, shape->rank, true, plan);
    gr_units_fini(&units);
}

void gr_direct_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    plan->blocks = (uint16_t)shape->world_size;
    exchange_blocks(plan);
}

void gr_direct_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_direct_reduce_scatter(shape, plan);
    exchange_blocks(plan);
}

void gr_direct_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    if (shape->rank != shape->root) {
        gr_plan_recv(plan, shape->root, gr_user(0, 0));
        return;
    }
    for (int i = 1; i < shape->world_size; i++) {
        gr_plan_send(plan, (shape->root + i) % shape->world_size, gr_user(0, 0));
    }
}
