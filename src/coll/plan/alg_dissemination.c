/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
 * Program. 17 (1988). In round k each rank tells the one 2^k further that everybody up to 2^k - 1
 * before it has come. */
void gr_dissemination_barrier(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    for (int distance = 1; distance < n; distance *= 2) {
        gr_plan_signal(plan, (shape->rank + distance) % n);
        gr_plan_await(plan, (shape->rank + n - distance) % n);
    }
}
