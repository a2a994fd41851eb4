/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"
#include "coll/combine.h"

/* Recursive vector halving with distance doubling, then recursive doubling back (Thakur,
 * Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J.
 * High Perform. Comput. Appl. 19 (2005), section 4.5, there with the distances the other way
 * round). Neighbours meet first, then pairs of pairs: these are the nodes of the shard tree from
 * the leaves up, so that the sums are canonical at no cost. Each rank sends 2 (n - 1) / n of the
 * buffer in 2 log2 n exchanges. */

typedef struct span {
    int first, count; /* blocks */
} span;

/* The blocks that `rank` is still responsible for when it has met the partners of `rounds`
 * rounds. */
static span responsible(int world_size, int rank, int rounds)
{
    span own = {0, world_size};
    for (int round = 0; round < rounds; round++) {
        own.count /= 2;
        own.first += (rank >> round & 1) ? own.count : 0;
    }
    return own;
}

static int rounds_of(int world_size)
{
    int rounds = 0;
    while (1 << rounds < world_size) {
        rounds++;
    }
    return rounds;
}

bool gr_halving_doubling_fits(const gr_plan_shape *shape)
{
    int n = shape->world_size;
    if ((n & (n - 1)) != 0 || shape->shards < n) {
        return false;
    }
    /* Every aligned group of 1, 2, 4, ... ranks must hold one whole subtree. */
    for (int size = 1; size <= n; size *= 2) {
        for (int rank = 0; rank < n; rank += size) {
            gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
            int first, last, count;
            gr_shard_range(shape->shards, n, rank, &first, &count);
            gr_shard_range(shape->shards, n, rank + size - 1, &last, &count);
            if (gr_tree_cover(shape->shards, first, last + count - first, ranges) != 1) {
                return false;
            }
        }
    }
    return true;
}

static gr_operand sum_of(const gr_plan *plan, int round, int block)
{
    return round == 0 ? gr_contribution(plan, 0, block) : gr_user(0, block);
}

static void halve(gr_plan *plan, int round)
{
    int rank = plan->shape.rank;
    int partner = rank ^ (1 << round);
    span given = responsible(plan->shape.world_size, partner, round + 1);
    span kept = responsible(plan->shape.world_size, rank, round + 1);
    for (int i = 0; i < given.count; i++) {
        gr_plan_send(plan, partner, sum_of(plan, round, given.first + i));
    }
    for (int i = 0; i < kept.count; i++) {
        gr_plan_recv(plan, partner, gr_scratch(i, kept.first + i));
    }
    for (int i = 0; i < kept.count; i++) {
        gr_operand own = sum_of(plan, round, kept.first + i);
        gr_operand other = gr_scratch(i, kept.first + i);
        bool left = rank < partner;
        gr_plan_reduce(plan, gr_user(0, kept.first + i), left ? own : other, left ? other : own);
    }
}

static void double_back(gr_plan *plan, int round)
{
    int partner = plan->shape.rank ^ (1 << round);
    span given = responsible(plan->shape.world_size, plan->shape.rank, round + 1);
    span taken = responsible(plan->shape.world_size, partner, round + 1);
    for (int i = 0; i < given.count; i++) {
        gr_plan_send(plan, partner, gr_user(0, given.first + i));
    }
    for (int i = 0; i < taken.count; i++) {
        gr_plan_recv(plan, partner, gr_user(0, taken.first + i));
    }
}

void gr_halving_doubling_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    int rounds = rounds_of(shape->world_size);
    if (gr_plan_alone(plan)) {
        return;
    }
    plan->blocks = (uint32_t)shape->world_size;
    for (int round = 0; round < rounds; round++) {
        halve(plan, round);
    }
    for (int round = rounds - 1; round >= 0; round--) {
        double_back(plan, round);
    }
}
