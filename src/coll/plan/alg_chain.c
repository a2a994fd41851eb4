/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* Pipelined chains: each rank hands on what it gets, segment by segment, so that in the end every
 * wire is busy all the time; for large messages. The chain goes from the root through the ranks in
 * their order. */

void gr_chain_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    bool is_root = shape->rank == shape->root;
    gr_operand origin = is_root ? gr_contribution(plan, 0, 0) : gr_user(0, 0);
    if (!is_root) {
        gr_plan_recv(plan, (shape->rank + n - 1) % n, origin);
    }
    if ((shape->rank + 1) % n != shape->root) {
        gr_plan_send(plan, (shape->rank + 1) % n, origin);
    }
    if (is_root && shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, 0), origin);
    }
}

void gr_chain_reduce(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    gr_operand sum = gr_contribution(plan, 0, 0);
    if ((shape->rank + 1) % n != shape->root) {
        gr_operand own = sum;
        gr_operand other = gr_scratch(0, 0);
        sum = shape->rank == shape->root ? gr_user(0, 0) : gr_scratch(1, 0);
        gr_plan_recv(plan, (shape->rank + 1) % n, other);
        gr_plan_reduce(plan, sum, own, other);
    }
    if (shape->rank != shape->root) {
        gr_plan_send(plan, (shape->rank + n - 1) % n, sum);
    }
}
