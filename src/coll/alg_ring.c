/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/algorithms.h"

/* Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
 * Parallel Distrib. Comput. 69 (2009), section 3. A block travels once around the ring and collects
 * a share at each rank; it ends at the rank of its number. The order of the additions depends on
 * the block, so that the result is not canonical. */

/* Two receive slots let the next block arrive while this one is added. */
enum { RECEIVE_SLOTS = 2 };

void gr_ring_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    int next = (shape->rank + 1) % n;
    int previous = (shape->rank + n - 1) % n;
    plan->blocks = (uint16_t)n;
    for (int t = 0; t < n - 1; t++) {
        int given = (shape->rank + 2 * n - 1 - t) % n;
        int taken = (shape->rank + 2 * n - 2 - t) % n;
        gr_operand share = gr_scratch(t % RECEIVE_SLOTS, taken);
        gr_plan_send(plan, next, gr_user(0, given));
        gr_plan_recv(plan, previous, share);
        gr_plan_reduce(plan, gr_user(0, taken), share, gr_user(0, taken));
    }
}

void gr_ring_allgather(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    int next = (shape->rank + 1) % n;
    int previous = (shape->rank + n - 1) % n;
    plan->blocks = (uint16_t)n;
    for (int t = 0; t < n - 1; t++) {
        gr_plan_send(plan, next, gr_user(0, (shape->rank + n - t) % n));
        gr_plan_recv(plan, previous, gr_user(0, (shape->rank + n - 1 - t) % n));
    }
}

void gr_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_ring_reduce_scatter(shape, plan);
    gr_ring_allgather(shape, plan);
}
