/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"
#include "coll/combine.h"

/* Trees: for messages whose cost is their latency. */

/* Two receive slots let the next sum arrive while this one is added. */
enum { RECEIVE_SLOTS = 2 };

typedef struct reduction {
    const gr_units *units;
    gr_plan *plan;
    uint32_t next; /* unit */
    int received;
} reduction;

/* The sum of a node is made where its leftmost shard is. All ranks walk the tree in the same order
 * and emit what concerns them: taken together one sequential program, which cannot deadlock. */
static const gr_unit *reduce_node(reduction *r, gr_tree_range node)
{
    const gr_unit *unit = &r->units->all[r->next];
    if (unit->range.first == node.first && unit->range.count == node.count) {
        r->next++;
        return unit;
    }
    int left_count = gr_tree_left_count(node.count);
    const gr_unit *left = reduce_node(r, (gr_tree_range){node.first, left_count});
    const gr_unit *right =
        reduce_node(r, (gr_tree_range){node.first + left_count, node.count - left_count});
    int rank = r->plan->shape.rank;
    gr_operand own = gr_user(left->slot, 0);
    gr_operand other = gr_user(right->slot, 0);
    if (left->rank == rank) {
        if (right->rank != rank) {
            other = gr_scratch(r->received++ % RECEIVE_SLOTS, 0);
            gr_plan_recv(r->plan, right->rank, other);
        }
        gr_plan_reduce(r->plan, own, own, other);
    } else if (right->rank == rank) {
        gr_plan_send(r->plan, left->rank, other);
    }
    return left;
}

static void broadcast_from(int root, gr_plan *plan)
{
    int n = plan->shape.world_size;
    int relative = (plan->shape.rank + n - root) % n;
    int reach = 1; /* the subtree below us covers relative ranks up to relative + reach */
    while (reach < n && !(relative & reach)) {
        reach *= 2;
    }
    if (relative != 0) {
        gr_plan_recv(plan, (relative - reach + root) % n, gr_user(0, 0));
    }
    for (reach /= 2; reach >= 1; reach /= 2) {
        if (relative + reach < n) {
            gr_plan_send(plan, (relative + reach + root) % n, gr_user(0, 0));
        }
    }
}

void gr_binomial_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    broadcast_from(shape->root, plan);
}

void gr_tree_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_units units;
    if (shape->world_size == 1 || !gr_units_init(&units, shape, plan)) {
        return;
    }
    reduction r = {.units = &units, .plan = plan};
    reduce_node(&r, (gr_tree_range){0, shape->shards});
    gr_units_fini(&units);
    /* Shard 0 is rank 0's, in its slot 0. */
    broadcast_from(0, plan);
}
