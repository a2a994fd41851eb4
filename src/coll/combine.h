/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMBINE_H
#define GR_COLL_COMBINE_H

/* What the canonical algorithms share: who holds which subtrees of the shard tree, and the program
 * by which one rank adds them up. Internal to src/coll. */

#include "coll/plan.h"

/* A largest whole subtree that one rank holds, as its user slot. */
typedef struct gr_unit {
    gr_tree_range range;
    int rank, slot;
} gr_unit;

typedef struct gr_units {
    gr_unit *all;    /* of all ranks, left to right */
    uint32_t *order; /* indices into `all`, in the order in which a combining rank asks for them */
    uint32_t count;
    int shards;
} gr_units;

/* A failure is kept in plan->failed; the units are then empty. */
bool gr_units_init(gr_units *units, const gr_plan_shape *shape, gr_plan *plan);
void gr_units_fini(gr_units *units);

/* Sends block `block` of all that this rank holds to a rank that combines it. */
void gr_units_send(const gr_units *units, int peer, int block, gr_plan *plan);

/* Receives block `block` of what the others hold and adds it to what this rank holds, in the order
 * of the tree; the sum ends in gr_user(0, block). A receive stands directly before the addition
 * that reads it, on all links in the order of the additions: so a receive may be given a window
 * smaller than its message. in_place: may this rank's own slots be overwritten on the way? */
void gr_units_combine(const gr_units *units, int block, bool in_place, gr_plan *plan);

#endif
