/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_COMBINE_H
#define GR_COLL_PLAN_COMBINE_H

/* What the canonical algorithms share: who holds which subtrees of the shard tree, and the program
 * by which one rank adds them up. Internal to src/coll. */

#include "coll/plan/plan.h"

#include <gradus/shards.h>

/* ---- Where sums are kept on the way ---------------------------------------------------------- */
typedef struct gr_sums {
    int first_slot; /* scratch slots from here on */
    uint32_t taken; /* bit i: slot first_slot + i holds a sum */
    bool has_spare; /* a place in the result that nobody reads yet: taken before scratch */
    bool spare_used;
    gr_operand spare;
} gr_sums;

/* Where a + b is kept: over one of them, if that is a sum or, unless `keeps_own`, a contribution in
 * the result, else in a place of its own. */
gr_operand gr_sums_place(gr_sums *sums, gr_operand a, gr_operand b, uint32_t block, bool keeps_own);
void gr_sums_release(gr_sums *sums, gr_operand operand); /* others than sums are passed over */

/* ---- Units ----------------------------------------------------------------------------------- */
/* A whole subtree that one rank holds: as shards that it was assigned, or as a sum made before. */
typedef struct gr_unit {
    gr_tree_range range;
    int rank;
    gr_operand here; /* on that rank; its block is whichever is asked for */
} gr_unit;

typedef struct gr_units {
    gr_unit *all;    /* left to right */
    uint32_t *order; /* indices into `all`, in the order in which a combining rank asks for them */
    uint32_t count;
    int shards;
    /* What this rank holds, in that order; -1: to be looked for. */
    int own_count;
    uint32_t own[GR_SHARD_PARTIALS_MAX];
} gr_units;

/* The contributions of all ranks. A failure is kept in plan->failed; the units are then empty. */
bool gr_units_init(gr_units *units, const gr_plan_shape *shape, gr_plan *plan);
/* Room for `count` units that cover the tree over `shards`; gr_units_order once they are in. */
bool gr_units_reserve(gr_units *units, uint32_t count, int shards, gr_plan *plan);
void gr_units_order(gr_units *units);
void gr_units_fini(gr_units *units);

/* Sends block `block` of all that this rank holds to a rank that combines it. */
void gr_units_send(const gr_units *units, int peer, int block, gr_plan *plan);

typedef struct gr_combine {
    gr_operand dst; /* where the sum ends; its block is the one to be added */
    int first_slot; /* scratch slots from here on are free */
    /* How many of them may receive; they must not do anything else in the same plan, hence the
     * same number each time. 0: as many as are of use here. */
    int receive_slots;
    bool keeps_own; /* this rank's contributions stay as they are */
    bool shared;    /* this rank also sends what it holds of the block: the same, on the way */
} gr_combine;

int gr_units_receive_slots(const gr_units *units, int rank);

/* Receives a block of what the others hold and adds it to what this rank holds, in the order of the
 * tree. A receive stands directly before the addition that reads it, on all links in the order of
 * the additions. */
void gr_units_combine(const gr_units *units, const gr_combine *how, gr_plan *plan);

#endif
