/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SUPPORT_PLANS_H
#define SUPPORT_PLANS_H

/* The plans of all ranks of a world, made and verified together. */

#include "sim/verify.h"

enum { PLANS_WORLD_MAX = 64 };

typedef struct plans_world {
    gr_plan plans[PLANS_WORLD_MAX];
    int size;
    const gr_algorithm *algorithm;
    gr_diag diag;
} plans_world;

/* Which ranks are in place. */
typedef enum plans_placing {
    PLANS_IN_PLACE,
    PLANS_OUT_OF_PLACE,
    PLANS_MIXED,
    PLANS_PLACINGS
} plans_placing;

/* Finished plans of an algorithm; of_all->rank and out_of_place do not matter. */
void plans_open_shaped(plans_world *w, const gr_algorithm *algorithm, const gr_plan_shape *of_all,
                       plans_placing where);
/* In place, on one host. */
void plans_open(plans_world *w, gr_coll coll, const char *name, int size, int shards, int root);
/* Plans without any step yet. */
void plans_open_blank(plans_world *w, gr_coll coll, int size, plans_placing where);
void plans_finish(plans_world *w);
void plans_close(plans_world *w);
gr_status plans_verify(plans_world *w, bool canonical, long max_blocks);

gr_plan_shape plans_shape_of_rank(const gr_plan_shape *of_all, int rank, plans_placing where);
/* The which-th step of a kind, counted from 0. */
uint32_t plans_find_step(const plans_world *w, int rank, gr_step_kind kind, int which);
void plans_drop_step(gr_plan *plan, uint32_t index);

#endif
