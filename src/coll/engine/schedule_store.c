/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/schedule_store.h"
#include "base/fail.h"

#include <stdlib.h>

static void forget_all(gr_schedules *schedules)
{
    for (int i = 0; i < schedules->count; i++) {
        gr_schedule_destroy(schedules->entries[i].schedule);
    }
    schedules->count = 0;
    schedules->last = 0;
}

void gr_schedules_fini(gr_schedules *schedules)
{
    forget_all(schedules);
    free(schedules->entries);
    *schedules = (gr_schedules){.entries = NULL};
}

void gr_schedules_trim(gr_schedules *schedules)
{
    if (schedules->count >= GR_SCHEDULES_MANY) {
        forget_all(schedules);
    }
}

/* Rank, world size and topology are always those of the communicator. */
static bool is_it(const gr_schedules_entry *entry, const gr_algorithm *algorithm,
                  const gr_plan_shape *shape, gr_scaling scaling)
{
    return entry->algorithm == algorithm && entry->root == shape->root &&
           entry->shards == shape->shards && entry->out_of_place == shape->out_of_place &&
           entry->uneven == shape->uneven && entry->lines == shape->lines &&
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
    gr_plan_emit(algorithm, &planned, &plan);
    if (scaling.contributions) {
        gr_plan_scale_contributions(&plan, from_input);
    }
    if (scaling.result) {
        gr_plan_scale_result(&plan);
    }
    gr_plan_drop_empty(&plan);
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

static bool make_room(gr_schedules *schedules)
{
    if (schedules->count < schedules->capacity) {
        return true;
    }
    int capacity = schedules->capacity ? 2 * schedules->capacity : 16;
    gr_schedules_entry *entries =
        realloc(schedules->entries, (size_t)capacity * sizeof *schedules->entries);
    if (!entries) {
        return false;
    }
    schedules->entries = entries;
    schedules->capacity = capacity;
    return true;
}

gr_status gr_schedules_get(gr_schedules *schedules, const gr_algorithm *algorithm,
                           const gr_plan_shape *shape, gr_scaling scaling,
                           const gr_schedule **program_out, gr_diag *diag)
{
    for (int i = 0; i < schedules->count; i++) {
        int at = (schedules->last + i) % schedules->count;
        if (is_it(&schedules->entries[at], algorithm, shape, scaling)) {
            schedules->last = at;
            *program_out = schedules->entries[at].schedule;
            return GR_OK;
        }
    }
    if (!make_room(schedules)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for one more plan beside %d",
                       schedules->count);
    }
    gr_schedule *schedule = NULL;
    gr_status status = make_program(algorithm, shape, scaling, &schedule, diag);
    if (status != GR_OK) {
        return status;
    }
    schedules->last = schedules->count;
    schedules->entries[schedules->count++] =
        (gr_schedules_entry){.algorithm = algorithm,
                             .root = shape->root,
                             .shards = shape->shards,
                             .out_of_place = shape->out_of_place,
                             .uneven = shape->uneven,
                             .lines = shape->lines,
                             .scaling = scaling,
                             .schedule = schedule};
    *program_out = schedule;
    return GR_OK;
}
