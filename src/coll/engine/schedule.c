/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/schedule.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

static bool is_local(uint8_t kind)
{
    return kind == GR_STEP_REDUCE || kind == GR_STEP_COPY || kind == GR_STEP_PRESCALE ||
           kind == GR_STEP_SCALE;
}

/* The step reads `operand`: if that is what a RECV brought to scratch, the RECV has one reader
 * more. */
static bool note_read(gr_schedule *schedule, const uint32_t *slot_received, gr_operand operand,
                      bool by_send)
{
    if (operand.space != GR_SPACE_SCRATCH || slot_received[operand.slot] == 0) {
        return false;
    }
    gr_schedule_step *from = &schedule->steps[slot_received[operand.slot] - 1];
    from->readers++;
    from->forwarded |= by_send;
    return true;
}

static bool writes_scratch(uint8_t kind, gr_operand dst)
{
    return (kind == GR_STEP_RECV || kind == GR_STEP_REDUCE || kind == GR_STEP_COPY ||
            kind == GR_STEP_PRESCALE) &&
           dst.space == GR_SPACE_SCRATCH;
}

/* `slot_received`: not 0 for slots that receive. */
static void place_slots(gr_schedule *schedule, const uint32_t *slot_received)
{
    memset(schedule->slot_places, 0xff, schedule->scratch_slots * sizeof *schedule->slot_places);
    for (int receives = 1; receives >= 0; receives--) {
        for (uint32_t at = 0; at < schedule->step_count; at++) {
            const gr_schedule_step *step = &schedule->steps[at];
            uint16_t slot = step->dst.slot;
            if (writes_scratch(step->kind, step->dst) && (slot_received[slot] > 0) == receives &&
                schedule->slot_places[slot] == GR_SCHEDULE_NO_STEP) {
                schedule->slot_places[slot] = schedule->places++;
                schedule->receiving_places += (uint32_t)receives;
            }
        }
    }
}

/* Walks the schedule in its order and finds out who reads what was received into scratch. */
static bool find_readers(gr_schedule *schedule)
{
    uint32_t *slot_received = /* 1 + step; 0: nobody */
        calloc(schedule->scratch_slots + 1u, sizeof *slot_received);
    if (!slot_received) {
        return false;
    }
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        gr_schedule_step *step = &schedule->steps[at];
        if (step->kind == GR_STEP_SEND || step->kind == GR_STEP_REDUCE ||
            step->kind == GR_STEP_COPY) {
            step->a_received =
                note_read(schedule, slot_received, step->a, step->kind == GR_STEP_SEND);
            step->block = step->a.block;
        }
        if (step->kind == GR_STEP_REDUCE) {
            step->b_received = note_read(schedule, slot_received, step->b, false);
        }
        if (step->kind == GR_STEP_PRESCALE || step->kind == GR_STEP_SCALE) {
            step->block = step->dst.block;
        }
        if (step->kind == GR_STEP_RECV) {
            step->block = step->dst.block;
            if (step->dst.space == GR_SPACE_SCRATCH) {
                slot_received[step->dst.slot] = at + 1;
            }
        }
    }
    place_slots(schedule, slot_received);
    free(slot_received);
    return true;
}

static void copy_steps(gr_schedule *schedule, const gr_plan *plan)
{
    for (uint32_t at = 0; at < plan->step_count; at++) {
        const gr_step *from = &plan->steps[at];
        schedule->steps[at] = (gr_schedule_step){.kind = from->kind,
                                                 .peer = from->peer,
                                                 .dst = from->dst,
                                                 .a = from->a,
                                                 .b = from->b,
                                                 .message = from->message,
                                                 .after_first = from->after_first,
                                                 .after_count = from->after_count};
        schedule->whole_count += from->kind == GR_STEP_SIGNAL || from->kind == GR_STEP_AWAIT;
    }
}

/* ---- Scratch is used again ------------------------------------------------------------------- */
typedef struct slot_use {
    uint32_t first, last; /* steps that write it; NO_STEP: nobody does */
    uint32_t count;       /* of those that use it last: they read what `last` wrote, or are it */
} slot_use;

static bool is_last_reader(const slot_use *uses, uint32_t at, gr_operand operand)
{
    return operand.space == GR_SPACE_SCRATCH && at > uses[operand.slot].last;
}

/* Which slots does the step read that nobody writes afterwards? At most two. */
static int slots_read_last(const slot_use *uses, const gr_plan *plan, uint32_t at,
                           uint16_t slots_out[2])
{
    const gr_step *step = &plan->steps[at];
    int count = 0;
    bool reads =
        step->kind == GR_STEP_SEND || step->kind == GR_STEP_REDUCE || step->kind == GR_STEP_COPY;
    if (reads && is_last_reader(uses, at, step->a)) {
        slots_out[count++] = step->a.slot;
    }
    if (step->kind == GR_STEP_REDUCE && is_last_reader(uses, at, step->b) &&
        (count == 0 || step->b.slot != slots_out[0])) {
        slots_out[count++] = step->b.slot;
    }
    return count;
}

/* By slot; to be freed. NULL: no memory. */
static slot_use *find_uses(const gr_plan *plan)
{
    uint16_t slots[2];
    slot_use *uses = malloc((plan->scratch_slots + 1u) * sizeof *uses);
    for (uint16_t slot = 0; uses && slot < plan->scratch_slots; slot++) {
        uses[slot] = (slot_use){.first = GR_SCHEDULE_NO_STEP, .last = GR_SCHEDULE_NO_STEP};
    }
    for (uint32_t at = 0; uses && at < plan->step_count; at++) {
        const gr_step *step = &plan->steps[at];
        if (writes_scratch(step->kind, step->dst)) {
            slot_use *use = &uses[step->dst.slot];
            use->first = use->first == GR_SCHEDULE_NO_STEP ? at : use->first;
            use->last = at;
        }
    }
    for (uint32_t at = 0; uses && at < plan->step_count; at++) {
        for (int i = slots_read_last(uses, plan, at, slots); i-- > 0;) {
            uses[slots[i]].count++;
        }
    }
    return uses;
}

static uint32_t again_edges(const gr_plan *plan, const slot_use *uses)
{
    uint32_t edges = 0;
    for (uint16_t slot = 0; slot < plan->scratch_slots; slot++) {
        edges += uses[slot].count > 0 ? uses[slot].count : uses[slot].first != GR_SCHEDULE_NO_STEP;
    }
    return edges;
}

/* In the next slice, who writes a slot first waits for those who use it last. From `used` on
 * program->after is free. */
static void add_again(gr_schedule *schedule, const gr_plan *plan, const slot_use *uses,
                      uint32_t used)
{
    uint16_t slots[2];
    for (uint16_t slot = 0; slot < plan->scratch_slots; slot++) {
        const slot_use *use = &uses[slot];
        if (use->first == GR_SCHEDULE_NO_STEP) {
            continue;
        }
        gr_schedule_step *first = &schedule->steps[use->first];
        first->again_first = used;
        if (use->count == 0) {
            schedule->after[used + first->again_count++] = use->last;
        }
        used += use->count > 0 ? use->count : 1;
    }
    for (uint32_t at = 0; at < plan->step_count; at++) {
        for (int i = slots_read_last(uses, plan, at, slots); i-- > 0;) {
            gr_schedule_step *first = &schedule->steps[uses[slots[i]].first];
            schedule->after[first->again_first + first->again_count++] = at;
        }
    }
}

/* Step `at` waits for these `count` steps: counts it with them, or (fills) lists it. */
static void note_next(gr_schedule *schedule, uint32_t at, const uint32_t *after, uint32_t count,
                      bool fills)
{
    for (uint32_t i = 0; i < count; i++) {
        gr_schedule_step *before = &schedule->steps[after[i]];
        if (fills) {
            schedule->next[before->next_first + before->next_count] = at;
        }
        before->next_count++;
    }
}

static void note_all_next(gr_schedule *schedule, bool fills)
{
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        const gr_schedule_step *step = &schedule->steps[at];
        note_next(schedule, at, schedule->after + step->after_first, step->after_count, fills);
        note_next(schedule, at, schedule->after + step->again_first, step->again_count, fills);
    }
}

static void invert_edges(gr_schedule *schedule)
{
    note_all_next(schedule, false);
    uint32_t first = 0;
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        schedule->steps[at].next_first = first;
        first += schedule->steps[at].next_count;
        schedule->steps[at].next_count = 0;
    }
    note_all_next(schedule, true);
}

/* Lists the steps of two kinds by peer. Messages of one link stand in a plan in their order. */
static void list_messages(const gr_schedule *schedule, uint8_t kind, uint8_t other_kind,
                          uint32_t *first, uint32_t *steps)
{
    int world_size = schedule->shape.world_size;
    memset(first, 0, ((size_t)world_size + 1) * sizeof *first);
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        const gr_schedule_step *step = &schedule->steps[at];
        if (step->kind == kind || step->kind == other_kind) {
            first[step->peer + 1]++;
        }
    }
    for (int peer = 0; peer < world_size; peer++) {
        first[peer + 1] += first[peer];
    }
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        const gr_schedule_step *step = &schedule->steps[at];
        if (step->kind == kind || step->kind == other_kind) {
            steps[first[step->peer] + step->message] = at;
        }
    }
}

static void list_roots(gr_schedule *schedule)
{
    for (uint32_t at = 0; at < schedule->step_count; at++) {
        const gr_schedule_step *step = &schedule->steps[at];
        if (is_local(step->kind) && step->after_count == 0) {
            schedule->roots[schedule->root_count++] = at;
        }
    }
}

gr_status gr_schedule_create(const gr_plan *plan, gr_schedule **program_out, gr_diag *diag)
{
    size_t steps = plan->step_count;
    size_t peers = (size_t)plan->shape.world_size + 1;
    slot_use *uses = find_uses(plan);
    gr_schedule *schedule = calloc(1, sizeof *schedule);
    if (!uses || !schedule) {
        goto undo_program;
    }
    size_t edges = plan->after_count + again_edges(plan, uses);
    schedule->steps = calloc(steps + 1, sizeof *schedule->steps);
    schedule->after = calloc(2 * edges + 2 * peers + 3 * steps + plan->scratch_slots + 1,
                             sizeof *schedule->after);
    if (!schedule->steps || !schedule->after) {
        goto undo_program;
    }
    schedule->next = schedule->after + edges;
    schedule->send_first = schedule->next + edges;
    schedule->recv_first = schedule->send_first + peers;
    schedule->send_steps = schedule->recv_first + peers;
    schedule->recv_steps = schedule->send_steps + steps;
    schedule->roots = schedule->recv_steps + steps;
    schedule->slot_places = schedule->roots + steps;
    schedule->shape = plan->shape;
    schedule->blocks = plan->blocks;
    schedule->user_slots = plan->user_slots;
    schedule->input_slots = plan->input_slots;
    schedule->scratch_slots = plan->scratch_slots;
    schedule->step_count = plan->step_count;
    if (plan->after_count > 0) {
        memcpy(schedule->after, plan->after, plan->after_count * sizeof *schedule->after);
    }
    copy_steps(schedule, plan);
    if (!find_readers(schedule)) {
        goto undo_program;
    }
    add_again(schedule, plan, uses, plan->after_count);
    invert_edges(schedule);
    list_messages(schedule, GR_STEP_SEND, GR_STEP_SIGNAL, schedule->send_first,
                  schedule->send_steps);
    list_messages(schedule, GR_STEP_RECV, GR_STEP_AWAIT, schedule->recv_first,
                  schedule->recv_steps);
    list_roots(schedule);
    free(uses);
    *program_out = schedule;
    return GR_OK;

undo_program:
    gr_schedule_destroy(schedule);
    free(uses);
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a plan of %zu steps", steps);
}

void gr_schedule_destroy(gr_schedule *schedule)
{
    if (schedule) {
        free(schedule->after);
        free(schedule->steps);
        free(schedule);
    }
}
