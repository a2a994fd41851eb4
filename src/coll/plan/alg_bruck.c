/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
 * multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997): log2 n rounds
 * for any n. Blocks are named, so that nothing has to be rotated. */

/* In each round a rank has the blocks from its own on, and gets as many more. */
void gr_bruck_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    for (int have = 1; have < n; have *= 2) {
        int count = have < n - have ? have : n - have;
        int to = (shape->rank + n - have) % n;
        int from = (shape->rank + have) % n;
        for (int i = 0; i < count; i++) {
            gr_plan_send(plan, to, i == 0 ? own : gr_user(0, (shape->rank + i) % n));
        }
        for (int i = 0; i < count; i++) {
            gr_plan_recv(plan, from, gr_user(0, (from + i) % n));
        }
    }
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}

/* ---- Alltoall -------------------------------------------------------------------------------- */
/* A block that has to go d ranks further goes there by the bits of d, from the lowest on. On its
 * way it is kept in scratch: in two places for each d, in turn, so that nobody has to send before
 * he may receive; and copied there, so that the link is free for those behind it. */
enum { RECEIVE_SLOTS = 4 };

static int moves_before(int d, int bit)
{
    int moves = 0;
    for (int below = d & (bit - 1); below != 0; below &= below - 1) {
        moves++;
    }
    return moves;
}

static gr_operand on_the_way(const gr_plan_shape *shape, int d, int moves)
{
    return gr_scratch(RECEIVE_SLOTS + 2 * d + moves % 2, (shape->rank + d) % shape->world_size);
}

static gr_operand at_first(const gr_plan *plan, int d)
{
    int n = plan->shape.world_size;
    int to = (plan->shape.rank + d) % n;
    return plan->shape.out_of_place ? gr_input(0, to) : gr_scratch(RECEIVE_SLOTS + 2 * n + d, to);
}

static gr_operand after_moves(const gr_plan *plan, int d, int bit)
{
    int moves = moves_before(d, bit);
    return moves == 0 ? at_first(plan, d) : on_the_way(&plan->shape, d, moves);
}

static void move_on(gr_plan *plan, int bit)
{
    int n = plan->shape.world_size;
    int rank = plan->shape.rank;
    for (int d = 1; d < n; d++) {
        if (d & bit) {
            gr_plan_send(plan, (rank + bit) % n, after_moves(plan, d, bit));
        }
    }
    int from = (rank + n - bit) % n;
    for (int d = 1, received = 0; d < n; d++) {
        if (!(d & bit)) {
            continue;
        }
        if (d < 2 * bit) { /* no higher bit is set: it has arrived */
            gr_plan_recv(plan, from, gr_user(0, (rank + n - d) % n));
            continue;
        }
        gr_operand kept = after_moves(plan, d, 2 * bit);
        gr_operand received_in = gr_scratch(received++ % RECEIVE_SLOTS, (int)kept.block);
        gr_plan_recv(plan, from, received_in);
        gr_plan_copy(plan, kept, received_in);
    }
}

bool gr_bruck_alltoall_fits(const gr_plan_shape *shape)
{
    return !shape->uneven && 3 * (long)shape->world_size + RECEIVE_SLOTS <= GR_PLAN_SLOTS_MAX;
}

void gr_bruck_alltoall(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    for (int d = 1; d < n && !shape->out_of_place; d++) {
        gr_operand first = at_first(plan, d);
        gr_plan_copy(plan, first, gr_user(0, (int)first.block));
    }
    for (int bit = 1; bit < n; bit *= 2) {
        move_on(plan, bit);
    }
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
}
