/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* Gather and scatter along a binomial tree (Thakur, Rabenseifner and Gropp 2005, section 4): the
 * root has log2 n neighbours instead of n - 1. Ranks are counted from the root; a rank's subtree is
 * the ranks from its own up to the next one with fewer zeros at the end. */

/* What is handed on is in scratch only until it has gone. */
enum { SLOTS = 16 };

typedef struct subtree {
    int self, parent, end; /* counted from the root; the root has no parent */
} subtree;

static subtree subtree_of(const gr_plan_shape *shape)
{
    int n = shape->world_size;
    int self = (shape->rank + n - shape->root) % n;
    int low = self & -self;
    int end = self == 0 || self + low > n ? n : self + low;
    return (subtree){.self = self, .parent = self - low, .end = end};
}

/* The child whose subtree has `other`: the own number with the highest bit in which they differ. */
static int child_towards(int self, int other)
{
    int bit = 1;
    while (2 * bit <= other - self) {
        bit *= 2;
    }
    return self + bit;
}

static int rank_of(const gr_plan_shape *shape, int from_root)
{
    return (from_root + shape->root) % shape->world_size;
}

void gr_binomial_gather(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    subtree t = subtree_of(shape);
    bool is_root = shape->rank == shape->root;
    if (!is_root) {
        gr_plan_send(plan, rank_of(shape, t.parent), own);
    } else if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
    for (int at = t.self + 1; at < t.end; at++) {
        int block = rank_of(shape, at);
        gr_operand to = is_root ? gr_user(0, block) : gr_scratch(at % SLOTS, block);
        gr_plan_recv(plan, rank_of(shape, child_towards(t.self, at)), to);
        if (!is_root) {
            gr_plan_send(plan, rank_of(shape, t.parent), to);
        }
    }
}

void gr_binomial_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    subtree t = subtree_of(shape);
    bool is_root = shape->rank == shape->root;
    if (!is_root) {
        gr_plan_recv(plan, rank_of(shape, t.parent), gr_user(0, shape->rank));
    } else if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
    for (int at = t.self + 1; at < t.end; at++) {
        int block = rank_of(shape, at);
        gr_operand from = is_root ? gr_contribution(plan, 0, block) : gr_scratch(at % SLOTS, block);
        if (!is_root) {
            gr_plan_recv(plan, rank_of(shape, t.parent), from);
        }
        gr_plan_send(plan, rank_of(shape, child_towards(t.self, at)), from);
    }
}
