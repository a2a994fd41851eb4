/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "support_plans.h"

gr_plan_shape plans_shape_of_rank(const gr_plan_shape *of_all, int rank, plans_placing where)
{
    gr_plan_shape shape = *of_all;
    shape.rank = rank;
    shape.out_of_place = where == PLANS_OUT_OF_PLACE || (where == PLANS_MIXED && rank % 3 != 1);
    return shape;
}

void plans_open_shaped(plans_world *w, const gr_algorithm *algorithm, const gr_plan_shape *of_all,
                       plans_placing where)
{
    assert_non_null(algorithm);
    assert_in_range(of_all->world_size, 1, PLANS_WORLD_MAX);
    w->algorithm = algorithm;
    w->size = of_all->world_size;
    for (int rank = 0; rank < w->size; rank++) {
        gr_plan_shape shape = plans_shape_of_rank(of_all, rank, where);
        assert_true(algorithm->fits(&shape));
        gr_plan_emit(algorithm, &shape, &w->plans[rank]);
        assert_int_equal(gr_plan_finish(&w->plans[rank]), GR_OK);
    }
}

void plans_open(plans_world *w, gr_coll coll, const char *name, int size, int shards, int root)
{
    gr_plan_shape shape = {.coll = coll, .world_size = size, .shards = shards, .root = root};
    plans_open_shaped(w, gr_algorithm_find(coll, name), &shape, PLANS_IN_PLACE);
}

void plans_open_blank(plans_world *w, gr_coll coll, int size, plans_placing where)
{
    gr_plan_shape of_all = {.coll = coll, .world_size = size, .shards = size};
    w->algorithm = NULL;
    w->size = size;
    for (int rank = 0; rank < size; rank++) {
        gr_plan_shape shape = plans_shape_of_rank(&of_all, rank, where);
        gr_plan_init(&w->plans[rank], &shape);
    }
}

void plans_finish(plans_world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        assert_int_equal(gr_plan_finish(&w->plans[rank]), GR_OK);
    }
}

void plans_close(plans_world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        gr_plan_fini(&w->plans[rank]);
    }
}

gr_status plans_verify(plans_world *w, bool canonical, long max_blocks)
{
    memset(&w->diag, 0, sizeof w->diag);
    return gr_plan_verify(w->plans, w->size, canonical, max_blocks, &w->diag);
}

uint32_t plans_find_step(const plans_world *w, int rank, gr_step_kind kind, int which)
{
    const gr_plan *plan = &w->plans[rank];
    for (uint32_t i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].kind == kind && which-- == 0) {
            return i;
        }
    }
    fail_msg("rank %d has no such step", rank);
    return 0;
}

void plans_drop_step(gr_plan *plan, uint32_t index)
{
    memmove(&plan->steps[index], &plan->steps[index + 1],
            (plan->step_count - index - 1) * sizeof *plan->steps);
    plan->step_count--;
}
