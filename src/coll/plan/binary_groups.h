/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_BINARY_GROUPS_H
#define GR_COLL_PLAN_BINARY_GROUPS_H

/* The ranks as groups of decreasing powers of two (11 = 8 + 2 + 1), as in Rabenseifner and Traeff,
 * "More efficient reduction algorithms for non-power-of-two number of processors in message-passing
 * parallel systems", EuroPVM/MPI 2004. The shard tree has the first group on the left of its root
 * and the others, cut in the same way, on the right: sums made inside the groups, then from the
 * smallest group up to the largest, are canonical. Internal to src/coll. */

#include "coll/plan/plan.h"

typedef struct gr_binary_group {
    int first, size; /* ranks */
} gr_binary_group;

/* A size of 0 says that there is none. */
gr_binary_group gr_binary_group_of(int world_size, int rank);
gr_binary_group gr_binary_group_before(int world_size,
                                       gr_binary_group group); /* the next larger one */
gr_binary_group gr_binary_group_behind(int world_size,
                                       gr_binary_group group); /* the next smaller one */

/* Returns true if the sum of each subtree of the ranks is that of one subtree of the shards. */
bool gr_binary_groups_fit(const gr_plan_shape *shape);

#endif
