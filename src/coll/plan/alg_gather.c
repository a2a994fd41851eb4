/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/combine.h"

/* Everybody sends all that it holds to everybody, and each adds it up for itself, in the order of
 * the shard tree: one message of latency at the price of n - 1 times the bytes. For tiny messages.
 * The sums go to scratch, so that no addition waits for a send of what it would overwrite. */
void gr_gather_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    gr_units units;
    if (!gr_units_init(&units, shape, plan)) {
        return;
    }
    for (int i = 1; i < shape->world_size; i++) {
        gr_units_send(&units, (shape->rank + i) % shape->world_size, 0, plan);
    }
    gr_combine how = {.dst = gr_user(0, 0), .shared = true};
    gr_units_combine(&units, &how, plan);
    gr_units_fini(&units);
}
