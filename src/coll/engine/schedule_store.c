/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/schedule_store.h"
#include "base/fail.h"

#include <stdlib.h>

static void forget_all(gr_schedules *programs)
{
    for (int i = 0; i < programs->count; i++) {
        gr_schedule_destroy(programs->entries[i].program);
    }
    programs->count = 0;
    programs->last = 0;
}

void gr_schedules_fini(gr_schedules *programs)
{
    forget_all(programs);
    free(programs->entries);
    *programs = (gr_schedules){.entries = NULL};
}

/* Rank, world size and topology are always those of the communicator. */
static bool is_it(const gr_schedules_entry *entry, const gr_algorithm *algorithm,
                  const gr_plan_shape *shape, gr_scaling scaling)
{
    return entry->algorithm == algorithm && entry->root == shape->root &&
           entry->shards == shape->shards && entry->out_of_place == shape->out_of_place &&
           entry->uneven == shape->uneven &&
           entry->scaling.contributions == scaling.contributions &&
           entry->scaling.result == scaling.result;
}

/* The result has room for the scaled contribution, which then need not go through scratch. */
static bool has_room_for_contribution(const gr_plan_shape *shape)
{
    return shape->coll == GR_COLL_ALLREDUCE ||
           (shape->coll == GR_COLL_REDUCE && shape->rank == shape->root);
}

static gr_status make_program(const gr_algorithm *algorithm, const gr_plan_shape *shape,
                              gr_scaling scaling, gr_schedule **program_out, gr_diag *diag)
{
    gr_plan plan;
    gr_plan_shape planned = *shape;
    bool from_input =
        scaling.contributions && shape->out_of_place && has_room_for_contribution(shape);
    planned.out_of_place = shape->out_of_place && !from_input;
    gr_plan_init(&plan, &planned);
    algorithm->plan(&planned, &plan);
    if (scaling.contributions) {
        gr_plan_scale_contributions(&plan, from_input);
    }
    if (scaling.result) {
        gr_plan_scale_result(&plan);
    }
    gr_status status = gr_plan_finish(&plan);
    if (status == GR_OK) {
        status = gr_schedule_create(&plan, program_out, diag);
    } else {
        status = gr_fail(diag, status, "the plan %s=%s for %d ranks cannot be made: %s",
                         gr_coll_name(algorithm->coll), algorithm->name, shape->world_size,
                         gr_status_text(status));
    }
    gr_plan_fini(&plan);
    return status;
}

static bool make_room(gr_schedules *programs, bool may_forget)
{
    if (programs->count < programs->capacity) {
        return true;
    }
    if (programs->capacity == GR_SCHEDULES_MAX) {
        if (may_forget) {
            forget_all(programs);
        }
        return may_forget;
    }
    int capacity = programs->capacity ? 2 * programs->capacity : 16;
    gr_schedules_entry *entries =
        realloc(programs->entries, (size_t)capacity * sizeof *programs->entries);
    if (!entries) {
        return false;
    }
    programs->entries = entries;
    programs->capacity = capacity;
    return true;
}

gr_status gr_schedules_get(gr_schedules *programs, const gr_algorithm *algorithm,
                           const gr_plan_shape *shape, gr_scaling scaling, bool may_forget,
                           const gr_schedule **program_out, gr_diag *diag)
{
    for (int i = 0; i < programs->count; i++) {
        int at = (programs->last + i) % programs->count;
        if (is_it(&programs->entries[at], algorithm, shape, scaling)) {
            programs->last = at;
            *program_out = programs->entries[at].program;
            return GR_OK;
        }
    }
    if (!make_room(programs, may_forget)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no room for one more plan: there are %d",
                       programs->count);
    }
    gr_schedule *program = NULL;
    gr_status status = make_program(algorithm, shape, scaling, &program, diag);
    if (status != GR_OK) {
        return status;
    }
    programs->last = programs->count;
    programs->entries[programs->count++] = (gr_schedules_entry){.algorithm = algorithm,
                                                                .root = shape->root,
                                                                .shards = shape->shards,
                                                                .out_of_place = shape->out_of_place,
                                                                .uneven = shape->uneven,
                                                                .scaling = scaling,
                                                                .program = program};
    *program_out = program;
    return GR_OK;
}
