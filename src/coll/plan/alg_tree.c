/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/binomial.h"
#include "coll/plan/combine.h"

/* Trees: for messages whose cost is their latency. A rank's plan has O(log n) steps and is made in
 * O(log n) time. */

/* Two receive slots let the next sum arrive while this one is added. */
enum { RECEIVE_SLOTS = 2 };

/* ---- Up: the shard tree ---------------------------------------------------------------------- */
typedef struct reduction {
    gr_plan *plan;
    gr_tree_range own; /* this rank's shards */
    int target;        /* the rank where the whole sum ends */
    int target_shard;
    bool keeps_own; /* the contribution stays as it is */
    int slot;       /* this rank's next partial */
    int received;
    gr_sums sums;
} reduction;

static int rank_of_shard(const gr_plan_shape *shape, int shard)
{
    int each = shape->shards / shape->world_size;
    int more = shape->shards % shape->world_size;
    int of_more = more * (each + 1); /* the first ranks have one more */
    return shard < of_more ? shard / (each + 1) : more + (shard - of_more) / each;
}

/* The sum of a node is made where the whole sum ends if a shard of that rank is below it, else
 * where its leftmost shard is. So it is always the place of one of its children. */
static int place_of(const reduction *r, gr_tree_range node)
{
    if (node.first <= r->target_shard && r->target_shard < node.first + node.count) {
        return r->target;
    }
    return rank_of_shard(&r->plan->shape, node.first);
}

static gr_operand add(reduction *r, gr_operand a, gr_operand b, bool is_root)
{
    gr_operand dst = is_root ? gr_user(0, 0) : gr_sums_place(&r->sums, a, b, 0, r->keeps_own);
    gr_plan_reduce(r->plan, dst, a, b);
    return dst;
}

static gr_operand receive(reduction *r, int from)
{
    gr_operand to = gr_scratch(r->received++ % RECEIVE_SLOTS, 0);
    gr_plan_recv(r->plan, from, to);
    return to;
}

/* All ranks walk the tree in the same order and emit what concerns them: taken together one
 * sequential program, which cannot deadlock. A subtree without a shard of this rank does not
 * concern it. Returns where the sum is, if it is here. */
static gr_operand reduce_node(reduction *r, gr_tree_range node)
{
    int node_end = node.first + node.count;
    int own_end = r->own.first + r->own.count;
    if (node_end <= r->own.first || own_end <= node.first) {
        return gr_user(0, 0);
    }
    if (r->own.first <= node.first && node_end <= own_end) {
        return gr_contribution(r->plan, r->slot++, 0);
    }
    gr_tree_range left = gr_tree_left(node), right = gr_tree_right(node);
    gr_operand a = reduce_node(r, left);
    gr_operand b = reduce_node(r, right);
    int rank = r->plan->shape.rank;
    int place = place_of(r, node);
    int left_place = place_of(r, left);
    int right_place = place_of(r, right);
    if (place != rank) {
        if (left_place == rank || right_place == rank) {
            gr_operand sum = left_place == rank ? a : b;
            gr_plan_send(r->plan, place, sum);
            gr_sums_release(&r->sums, sum);
        }
        return a;
    }
    if (left_place != rank) {
        a = receive(r, left_place);
    }
    if (right_place != rank) {
        b = receive(r, right_place);
    }
    return add(r, a, b, node.count == r->plan->shape.shards);
}

static void reduce_to(int target, bool keeps_own, gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    bool has_result = plan->user_slots > 0;
    reduction r = {.plan = plan, .target = target, .keeps_own = keeps_own};
    r.sums = (gr_sums){.first_slot = RECEIVE_SLOTS,
                       .has_spare = shape->out_of_place && has_result,
                       .spare = gr_user(0, 0)};
    int count;
    gr_shard_range(shape->shards, shape->world_size, target, &r.target_shard, &count);
    gr_shard_range(shape->shards, shape->world_size, shape->rank, &r.own.first, &r.own.count);
    gr_operand sum = reduce_node(&r, (gr_tree_range){0, shape->shards});
    if (shape->rank == target && r.own.count == shape->shards && shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, 0), sum); /* it holds all shards itself */
    }
}

/* ---- Down: a binomial tree ------------------------------------------------------------------- */
static void broadcast_from(int root, gr_operand origin, gr_plan *plan)
{
    gr_binomial t = gr_binomial_of(&plan->shape, root);
    if (t.self != 0) {
        gr_plan_recv(plan, gr_binomial_rank(&t, t.parent), gr_user(0, 0));
        origin = gr_user(0, 0);
    }
    for (int far = gr_binomial_first(&t, t.self); far > 0; far = gr_binomial_next(&t, far)) {
        if (t.self + far < t.count) {
            gr_plan_send(plan, gr_binomial_rank(&t, t.self + far), origin);
        }
    }
}

/* ---- Algorithms ------------------------------------------------------------------------------ */
void gr_binomial_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_operand origin = gr_contribution(plan, 0, 0);
    broadcast_from(shape->root, origin, plan);
    if (shape->rank == shape->root && shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, 0), origin);
    }
}

void gr_binomial_reduce(const gr_plan_shape *shape, gr_plan *plan)
{
    reduce_to(shape->root, shape->rank != shape->root, plan);
}

void gr_tree_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    reduce_to(0, false, plan);
    /* Shard 0 is rank 0's: the sum is in its result. */
    broadcast_from(0, gr_user(0, 0), plan);
}
