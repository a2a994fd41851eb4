/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* ---- Pairwise exchange ----------------------------------------------------------------------- */
/* Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
 * Int. J. High Perform. Comput. Appl. 19 (2005), section 4.4. Each block goes straight to its
 * destination; the rounds say in which order. */

/* The partner of a round in which ranks exchange in pairs: by XOR where n is a power of two, else
 * as in a tournament, where a rank may be its own partner, which is a pause. */
static int partner_of(int n, int rank, int round)
{
    return (n & (n - 1)) == 0 ? rank ^ round : (round + n - rank) % n;
}

/* In place a block may be received only where the one that stood there has gone. One of each pair
 * first sets its own aside, else each would wait for the other; the two halves of a rank's
 * partners see it do so. */
static bool sets_aside(int rank, int partner)
{
    return (rank + partner) % 2 == 1 ? rank < partner : rank > partner;
}

/* The copy for one partner is made while the one before is sent. */
enum { ASIDE_SLOTS = 4 };

static void exchange_in_place(const gr_plan_shape *shape, gr_plan *plan)
{
    int set_aside = 0;
    for (int round = 0; round < shape->world_size; round++) {
        int partner = partner_of(shape->world_size, shape->rank, round);
        gr_operand own = gr_user(0, partner);
        if (partner == shape->rank) {
            continue;
        }
        if (sets_aside(shape->rank, partner)) {
            gr_operand aside = gr_scratch(set_aside++ % ASIDE_SLOTS, partner);
            gr_plan_copy(plan, aside, own);
            own = aside;
        }
        gr_plan_send(plan, partner, own);
        gr_plan_recv(plan, partner, gr_user(0, partner));
    }
}

void gr_pairwise_alltoall(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    if (!shape->out_of_place) {
        exchange_in_place(shape, plan);
        return;
    }
    for (int round = 1; round < n; round++) {
        bool pairs = (n & (n - 1)) == 0;
        int to = pairs ? shape->rank ^ round : (shape->rank + round) % n;
        int from = pairs ? to : (shape->rank + n - round) % n;
        gr_plan_send(plan, to, gr_input(0, to));
        gr_plan_recv(plan, from, gr_user(0, from));
    }
    gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
}
