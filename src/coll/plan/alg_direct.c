/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/combine.h"

/* Everybody exchanges with everybody, without rounds: one message of latency a phase. Each rank
 * begins with its right-hand neighbour, so that not all begin with the same one. */

/* ---- Reduce-scatter, allgather, allreduce ---------------------------------------------------- */
/* Block b belongs to rank b. Everybody sends its share of block b to rank b, which adds the shares
 * in the order of the shard tree and, in an allreduce, sends the sum to everybody: no rank sends
 * more than 2 (n - 1) / n of the buffer when each holds one partial. */
static void send_shares(const gr_units *units, gr_plan *plan)
{
    int n = plan->shape.world_size;
    for (int i = 1; i < n; i++) {
        int owner = (plan->shape.rank + i) % n;
        gr_units_send(units, owner, owner, plan);
    }
}

static void exchange_blocks(gr_operand own, gr_plan *plan)
{
    int n = plan->shape.world_size;
    int rank = plan->shape.rank;
    for (int i = 1; i < n; i++) {
        gr_plan_send(plan, (rank + i) % n, own);
    }
    for (int i = 1; i < n; i++) {
        int owner = (rank + n - i) % n;
        gr_plan_recv(plan, owner, gr_user(0, owner));
    }
}

void gr_direct_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_units units;
    plan->blocks = (uint32_t)shape->world_size;
    if (!gr_units_init(&units, shape, plan)) {
        return;
    }
    gr_combine how = {.dst = gr_user(0, shape->rank)};
    send_shares(&units, plan);
    gr_units_combine(&units, &how, plan);
    gr_units_fini(&units);
}

void gr_direct_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    exchange_blocks(own, plan);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}

void gr_direct_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_direct_reduce_scatter(shape, plan);
    exchange_blocks(gr_user(0, shape->rank), plan);
}

/* ---- From and to a root ---------------------------------------------------------------------- */
void gr_direct_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    if (shape->rank != shape->root) {
        gr_plan_recv(plan, shape->root, gr_user(0, 0));
        return;
    }
    gr_operand origin = gr_contribution(plan, 0, 0);
    for (int i = 1; i < shape->world_size; i++) {
        gr_plan_send(plan, (shape->root + i) % shape->world_size, origin);
    }
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, 0), origin);
    }
}

void gr_direct_reduce(const gr_plan_shape *shape, gr_plan *plan)
{
    if (shape->rank != shape->root) {
        gr_plan_send(plan, shape->root, gr_contribution(plan, 0, 0));
        return;
    }
    gr_units units;
    if (gr_units_init(&units, shape, plan)) {
        gr_combine how = {.dst = gr_user(0, 0)};
        gr_units_combine(&units, &how, plan);
        gr_units_fini(&units);
    }
}

void gr_direct_gather(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    if (shape->rank != shape->root) {
        gr_plan_send(plan, shape->root, own);
        return;
    }
    for (int i = 1; i < shape->world_size; i++) {
        int from = (shape->root + i) % shape->world_size;
        gr_plan_recv(plan, from, gr_user(0, from));
    }
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}

void gr_direct_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    if (shape->rank != shape->root) {
        gr_plan_recv(plan, shape->root, gr_user(0, shape->rank));
        return;
    }
    for (int i = 1; i < shape->world_size; i++) {
        int to = (shape->root + i) % shape->world_size;
        gr_plan_send(plan, to, gr_contribution(plan, 0, to));
    }
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
}
