/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/programs.h"
#include "base/fail.h"

#include <stdlib.h>

static void forget_all(gr_programs *programs)
{
    for (int i = 0; i < programs->count; i++) {
        gr_program_destroy(programs->entries[i].program);
    }
    programs->count = 0;
    programs->last = 0;
}

void gr_programs_fini(gr_programs *programs)
{
    forget_all(programs);
    free(programs->entries);
    *programs = (gr_programs){.entries = NULL};
}

/* Rank, world size and topology are always those of the communicator. */
static bool is_it(const gr_programs_entry *entry, const gr_algorithm *algorithm,
                  const gr_plan_shape *shape, bool scale)
{
    return entry->algorithm == algorithm && entry->root == shape->root &&
           entry->shards == shape->shards && entry->out_of_place == shape->out_of_place &&
           entry->uneven == shape->uneven && entry->scale == scale;
}

static gr_status make_program(const gr_algorithm *algorithm, const gr_plan_shape *shape, bool scale,
                              gr_program **program_out, gr_diag *diag)
{
    gr_plan plan;
    gr_plan_init(&plan, shape);
    algorithm->plan(shape, &plan);
    gr_status status = gr_plan_finish(&plan);
    if (status == GR_OK) {
        status = gr_program_create(&plan, scale, program_out, diag);
    } else {
        status = gr_fail(diag, status, "the plan %s=%s for %d ranks cannot be made: %s",
                         gr_coll_name(algorithm->coll), algorithm->name, shape->world_size,
                         gr_status_text(status));
    }
    gr_plan_fini(&plan);
    return status;
}

static bool make_room(gr_programs *programs, bool may_forget)
{
    if (programs->count < programs->capacity) {
        return true;
    }
    if (programs->capacity == GR_PROGRAMS_MAX) {
        if (may_forget) {
            forget_all(programs);
        }
        return may_forget;
    }
    int capacity = programs->capacity ? 2 * programs->capacity : 16;
    gr_programs_entry *entries =
        realloc(programs->entries, (size_t)capacity * sizeof *programs->entries);
    if (!entries) {
        return false;
    }
    programs->entries = entries;
    programs->capacity = capacity;
    return true;
}

gr_status gr_programs_get(gr_programs *programs, const gr_algorithm *algorithm,
                          const gr_plan_shape *shape, bool scale, bool may_forget,
                          const gr_program **program_out, gr_diag *diag)
{
    for (int i = 0; i < programs->count; i++) {
        int at = (programs->last + i) % programs->count;
        if (is_it(&programs->entries[at], algorithm, shape, scale)) {
            programs->last = at;
            *program_out = programs->entries[at].program;
            return GR_OK;
        }
    }
    if (!make_room(programs, may_forget)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no room for one more plan: there are %d",
                       programs->count);
    }
    gr_program *program = NULL;
    gr_status status = make_program(algorithm, shape, scale, &program, diag);
    if (status != GR_OK) {
        return status;
    }
    programs->last = programs->count;
    programs->entries[programs->count++] = (gr_programs_entry){.algorithm = algorithm,
                                                               .root = shape->root,
                                                               .shards = shape->shards,
                                                               .out_of_place = shape->out_of_place,
                                                               .uneven = shape->uneven,
                                                               .scale = scale,
                                                               .program = program};
    *program_out = program;
    return GR_OK;
}
