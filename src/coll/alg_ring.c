/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"
#include "coll/combine.h"

/* Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
 * Parallel Distrib. Comput. 69 (2009), section 3. A block travels once around the ring and collects
 * a share at each rank; it ends at the rank of its number. The order of the additions depends on
 * the block, so that the result is not canonical. */

/* Two receive slots let the next block arrive while this one is added. */
enum { RECEIVE_SLOTS = 2 };

/* What comes is added to this rank's share: in place in its own buffer; out of place in scratch,
 * but for the block that ends here, and in an allreduce in the result. */
static gr_operand sum_of(const gr_plan *plan, int t, int block)
{
    bool in_result = !plan->shape.out_of_place || plan->shape.coll == GR_COLL_ALLREDUCE ||
                     block == plan->shape.rank;
    return in_result ? gr_user(0, block) : gr_scratch(RECEIVE_SLOTS + t % RECEIVE_SLOTS, block);
}

static void reduce_around(gr_plan *plan)
{
    int n = plan->shape.world_size;
    int rank = plan->shape.rank;
    gr_operand given = gr_contribution(plan, 0, (rank + n - 1) % n);
    for (int t = 0; t < n - 1; t++) {
        int taken = (rank + 2 * n - 2 - t) % n;
        gr_operand share = gr_scratch(t % RECEIVE_SLOTS, taken);
        gr_operand sum = sum_of(plan, t, taken);
        gr_plan_send(plan, (rank + 1) % n, given);
        gr_plan_recv(plan, (rank + n - 1) % n, share);
        gr_plan_reduce(plan, sum, share, gr_contribution(plan, 0, taken));
        given = sum;
    }
}

static void spread_around(gr_plan *plan, gr_operand own)
{
    int n = plan->shape.world_size;
    int rank = plan->shape.rank;
    for (int t = 0; t < n - 1; t++) {
        gr_operand given = t == 0 ? own : gr_user(0, (rank + n - t) % n);
        gr_plan_send(plan, (rank + 1) % n, given);
        gr_plan_recv(plan, (rank + n - 1) % n, gr_user(0, (rank + n - 1 - t) % n));
    }
}

void gr_ring_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    if (!gr_plan_alone(plan)) {
        reduce_around(plan);
    }
}

void gr_ring_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    if (gr_plan_alone(plan)) {
        return;
    }
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    spread_around(plan, own);
    if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
}

void gr_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    if (gr_plan_alone(plan)) {
        return;
    }
    plan->blocks = (uint32_t)shape->world_size;
    reduce_around(plan);
    spread_around(plan, gr_user(0, shape->rank));
}
