/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/binary_groups.h"

/* Recursive vector halving with distance doubling, then recursive doubling back (Thakur,
 * Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", Int. J.
 * High Perform. Comput. Appl. 19 (2005), section 4.5, there with the distances the other way
 * round). Neighbours meet first, then pairs of pairs: these are the nodes of the shard tree from
 * the leaves up, so that the sums are canonical at no cost. Where the world size is no power of
 * two, each binary group does so by itself; its sums go to the next larger group, block by block,
 * and come back from there.
 *   After k rounds the member at place q of a group is responsible for the blocks whose number
 * agrees with q in the k lowest bits; in the end block b is with the member at place b modulo the
 * group's size. */

/* Enough to keep the additions going, at a bounded price in scratch. */
enum { RECEIVE_SLOTS = 8 };

typedef struct group_member {
    gr_plan *plan;
    gr_binary_group group;
    int place; /* in the group */
    int received;
    bool own_block_known; /* allgather: nobody needs to be sent the block of its own number */
} group_member;

static group_member member_of(gr_plan *plan)
{
    gr_binary_group group = gr_binary_group_of(plan->shape.world_size, plan->shape.rank);
    return (group_member){.plan = plan, .group = group, .place = plan->shape.rank - group.first};
}

static int holder_of(gr_binary_group group, int block)
{
    return group.first + block % group.size;
}

/* ---- Halving --------------------------------------------------------------------------------- */
/* Where the sums of a block are kept. Out of place a reduce-scatter has only its own block of the
 * result; a member keeps blocks of one parity. */
static gr_operand sum_place(const group_member *m, int block)
{
    const gr_plan_shape *shape = &m->plan->shape;
    bool in_result =
        !shape->out_of_place || shape->coll == GR_COLL_ALLREDUCE || block == shape->rank;
    return in_result ? gr_user(0, block) : gr_scratch(RECEIVE_SLOTS + block / 2, block);
}

/* A group of one has added nothing. */
static gr_operand group_sum(const group_member *m, int block)
{
    return m->group.size > 1 ? sum_place(m, block) : gr_contribution(m->plan, 0, block);
}

static void receive_and_add(group_member *m, int from, gr_operand own, bool own_is_left)
{
    int block = (int)own.block;
    gr_operand other = gr_scratch(m->received++ % RECEIVE_SLOTS, block);
    gr_plan_recv(m->plan, from, other);
    gr_plan_reduce(m->plan, sum_place(m, block), own_is_left ? own : other,
                   own_is_left ? other : own);
}

static gr_operand before_round(const group_member *m, int distance, int block)
{
    return distance == 1 ? gr_contribution(m->plan, 0, block) : sum_place(m, block);
}

static void halve(group_member *m)
{
    int blocks = (int)m->plan->blocks;
    for (int distance = 1; distance < m->group.size; distance *= 2) {
        int partner = m->place ^ distance;
        int stride = 2 * distance;
        for (int b = partner % stride; b < blocks; b += stride) {
            gr_plan_send(m->plan, m->group.first + partner, before_round(m, distance, b));
        }
        for (int b = m->place % stride; b < blocks; b += stride) {
            receive_and_add(m, m->group.first + partner, before_round(m, distance, b),
                            m->place < partner);
        }
    }
}

/* The sums of the smaller groups come, those with them go to the larger group. */
static void fold(group_member *m)
{
    int n = m->plan->shape.world_size;
    gr_binary_group behind = gr_binary_group_behind(n, m->group);
    gr_binary_group before = gr_binary_group_before(n, m->group);
    for (int b = m->place; behind.size > 0 && b < (int)m->plan->blocks; b += m->group.size) {
        receive_and_add(m, holder_of(behind, b), sum_place(m, b), true);
    }
    for (int b = m->place; before.size > 0 && b < (int)m->plan->blocks; b += m->group.size) {
        gr_plan_send(m->plan, holder_of(before, b), group_sum(m, b));
    }
}

/* ---- Doubling -------------------------------------------------------------------------------- */
static void give(const group_member *m, int to, int block)
{
    bool own = m->own_block_known && block == m->plan->shape.rank;
    if (!m->own_block_known || block != to) {
        gr_plan_send(m->plan, to, own ? gr_contribution(m->plan, 0, block) : gr_user(0, block));
    }
}

static void take(const group_member *m, int from, int block)
{
    if (!m->own_block_known || block != m->plan->shape.rank) {
        gr_plan_recv(m->plan, from, gr_user(0, block));
    }
}

/* What is finished comes from the larger group and goes to the smaller one. */
static void unfold(const group_member *m)
{
    int n = m->plan->shape.world_size;
    gr_binary_group behind = gr_binary_group_behind(n, m->group);
    gr_binary_group before = gr_binary_group_before(n, m->group);
    for (int b = m->place; before.size > 0 && b < (int)m->plan->blocks; b += m->group.size) {
        take(m, holder_of(before, b), b);
    }
    for (int b = m->place; behind.size > 0 && b < (int)m->plan->blocks; b += m->group.size) {
        give(m, holder_of(behind, b), b);
    }
}

static void double_back(const group_member *m)
{
    int blocks = (int)m->plan->blocks;
    for (int distance = m->group.size / 2; distance >= 1; distance /= 2) {
        int partner = m->place ^ distance;
        int stride = 2 * distance;
        for (int b = m->place % stride; b < blocks; b += stride) {
            give(m, m->group.first + partner, b);
        }
        for (int b = partner % stride; b < blocks; b += stride) {
            take(m, m->group.first + partner, b);
        }
    }
}

/* ---- Algorithms ------------------------------------------------------------------------------ */
void gr_halving_doubling_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    group_member m = member_of(plan);
    plan->blocks = (uint32_t)gr_binary_group_of(shape->world_size, 0).size;
    halve(&m);
    fold(&m);
    unfold(&m);
    double_back(&m);
}

/* The first group has the sums of all blocks, also of those that belong to ranks outside it. */
void gr_recursive_halving_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    group_member m = member_of(plan);
    gr_binary_group first = gr_binary_group_of(shape->world_size, 0);
    halve(&m);
    fold(&m);
    if (shape->rank >= first.size) {
        gr_plan_recv(plan, holder_of(first, shape->rank), gr_user(0, shape->rank));
    } else if (shape->rank + first.size < shape->world_size) {
        int owner = shape->rank + first.size;
        gr_plan_send(plan, owner, sum_place(&m, owner));
    }
}

void gr_recursive_doubling_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    group_member m = member_of(plan);
    gr_binary_group first = gr_binary_group_of(shape->world_size, 0);
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    m.own_block_known = true;
    if (shape->rank >= first.size) {
        gr_plan_send(plan, holder_of(first, shape->rank), own);
    } else if (shape->rank + first.size < shape->world_size) {
        int outside = shape->rank + first.size;
        gr_plan_recv(plan, outside, gr_user(0, outside));
    }
    unfold(&m);
    double_back(&m);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}
