/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/plan.h"
#include "coll/plan/traits.h"

#include <stdlib.h>
#include <string.h>

/* ---- Emitting -------------------------------------------------------------------------------- */
static bool has_contribution(const gr_plan_shape *shape)
{
    return gr_coll_gives(shape->coll, shape->rank, shape->root);
}

static bool has_result(const gr_plan_shape *shape)
{
    return shape->coll == GR_COLL_BARRIER ||
           gr_coll_receives(shape->coll, shape->rank, shape->root);
}

void gr_plan_init(gr_plan *plan, const gr_plan_shape *shape)
{
    *plan = (gr_plan){.shape = *shape, .blocks = 1, .failed = GR_OK};
    if (gr_coll_traits_of[shape->coll].blocks) {
        plan->blocks = (uint32_t)shape->world_size;
    }
    uint16_t held = has_contribution(shape) ? 1 : 0;
    if (shape->coll == GR_COLL_ALLREDUCE) {
        held = (uint16_t)gr_shard_partials(shape->shards, shape->world_size, shape->rank);
    }
    plan->user_slots = has_result(shape) ? 1 : 0;
    if (shape->out_of_place) {
        plan->input_slots = held;
    } else if (held > plan->user_slots) {
        plan->user_slots = held;
    }
}

void gr_plan_fini(gr_plan *plan)
{
    free(plan->steps);
    free(plan->after);
    *plan = (gr_plan){.failed = GR_OK};
}

static gr_operand operand_of(gr_space space, int slot, int block)
{
    return (gr_operand){(uint8_t)space, (uint16_t)slot, (uint32_t)block};
}

gr_operand gr_user(int slot, int block)
{
    return operand_of(GR_SPACE_USER, slot, block);
}

gr_operand gr_scratch(int slot, int block)
{
    return operand_of(GR_SPACE_SCRATCH, slot, block);
}

gr_operand gr_input(int slot, int block)
{
    return operand_of(GR_SPACE_INPUT, slot, block);
}

gr_operand gr_contribution(const gr_plan *plan, int slot, int block)
{
    return plan->shape.out_of_place ? gr_input(slot, block) : gr_user(slot, block);
}

static void note_scratch(gr_plan *plan, gr_operand operand)
{
    if (operand.space == GR_SPACE_SCRATCH && operand.slot >= plan->scratch_slots) {
        plan->scratch_slots = (uint16_t)(operand.slot + 1);
    }
}

static void emit(gr_plan *plan, gr_step step)
{
    if (plan->failed != GR_OK) {
        return;
    }
    if (plan->step_count == plan->step_capacity) {
        uint32_t capacity = plan->step_capacity ? plan->step_capacity * 2 : 32;
        gr_step *steps =
            capacity <= GR_PLAN_STEPS_MAX ? realloc(plan->steps, capacity * sizeof *steps) : NULL;
        if (!steps) {
            plan->failed = GR_E_NO_MEMORY;
            return;
        }
        plan->steps = steps;
        plan->step_capacity = capacity;
    }
    step.last_reader = -1;
    note_scratch(plan, step.dst);
    note_scratch(plan, step.a);
    note_scratch(plan, step.b);
    plan->steps[plan->step_count++] = step;
}

void gr_plan_send(gr_plan *plan, int peer, gr_operand a)
{
    emit(plan, (gr_step){.kind = GR_STEP_SEND, .peer = peer, .a = a});
}

void gr_plan_recv(gr_plan *plan, int peer, gr_operand dst)
{
    emit(plan, (gr_step){.kind = GR_STEP_RECV, .peer = peer, .dst = dst});
}

void gr_plan_reduce(gr_plan *plan, gr_operand dst, gr_operand a, gr_operand b)
{
    emit(plan, (gr_step){.kind = GR_STEP_REDUCE, .peer = -1, .dst = dst, .a = a, .b = b});
}

void gr_plan_copy(gr_plan *plan, gr_operand dst, gr_operand a)
{
    emit(plan, (gr_step){.kind = GR_STEP_COPY, .peer = -1, .dst = dst, .a = a});
}

void gr_plan_signal(gr_plan *plan, int peer)
{
    emit(plan, (gr_step){.kind = GR_STEP_SIGNAL, .peer = peer});
}

void gr_plan_await(gr_plan *plan, int peer)
{
    emit(plan, (gr_step){.kind = GR_STEP_AWAIT, .peer = peer});
}

static bool is_local(uint8_t kind)
{
    return kind == GR_STEP_REDUCE || kind == GR_STEP_COPY || kind == GR_STEP_PRESCALE ||
           kind == GR_STEP_SCALE;
}

/* ---- Factors --------------------------------------------------------------------------------- */
static void emit_prescale(gr_plan *plan, gr_operand dst, gr_operand a)
{
    emit(plan, (gr_step){.kind = GR_STEP_PRESCALE, .peer = -1, .dst = dst, .a = a});
}

/* Contributions that stand in the user's buffer, or have their place there. */
static void prescale_user(gr_plan *plan, bool from_input)
{
    const gr_plan_shape *shape = &plan->shape;
    int first, assigned = has_contribution(shape);
    if (shape->coll == GR_COLL_ALLREDUCE) {
        gr_shard_range(shape->shards, shape->world_size, shape->rank, &first, &assigned);
    }
    for (int slot = 0; assigned > 0 && slot < plan->user_slots; slot++) {
        for (int block = 0; block < (int)plan->blocks; block++) {
            gr_operand user = gr_user(slot, block);
            emit_prescale(plan, user, from_input ? gr_input(slot, block) : user);
        }
    }
    plan->input_slots = from_input && assigned > 0 ? 1 : plan->input_slots;
}

/* `operand` of a step that follows: a block of an input is replaced by what it becomes in scratch.
 * slots[]: by input block, the scratch slot plus one. */
static gr_operand prescaled(gr_plan *plan, gr_operand operand, uint16_t *slots)
{
    if (operand.space != GR_SPACE_INPUT) {
        return operand;
    }
    uint16_t *slot = &slots[operand.slot * plan->blocks + operand.block];
    if (*slot == 0) {
        if (plan->scratch_slots == GR_PLAN_SLOTS_MAX) {
            plan->failed = GR_E_NO_MEMORY;
            return operand;
        }
        *slot = (uint16_t)(plan->scratch_slots + 1);
        emit_prescale(plan, gr_scratch(*slot - 1, (int)operand.block), operand);
    }
    return gr_scratch(*slot - 1, (int)operand.block);
}

void gr_plan_scale_contributions(gr_plan *plan, bool from_input)
{
    gr_step *steps = plan->steps;
    uint32_t count = plan->step_count;
    uint16_t *slots = calloc((size_t)plan->input_slots * plan->blocks + 1, sizeof *slots);
    if (!slots) {
        plan->failed = GR_E_NO_MEMORY;
        return;
    }
    plan->steps = NULL;
    plan->step_count = plan->step_capacity = 0;
    if (!plan->shape.out_of_place) {
        prescale_user(plan, from_input);
    }
    for (uint32_t i = 0; i < count; i++) {
        gr_step step = steps[i];
        if (plan->shape.out_of_place) {
            step.a = prescaled(plan, step.a, slots);
            step.b = prescaled(plan, step.b, slots);
        }
        emit(plan, step);
    }
    free(slots);
    free(steps);
}

static bool is_result(const gr_plan_shape *shape, int block)
{
    bool own_only = gr_coll_traits_of[shape->coll].receives_own;
    return has_result(shape) && shape->coll != GR_COLL_BARRIER &&
           (!own_only || block == shape->rank);
}

void gr_plan_scale_result(gr_plan *plan)
{
    for (int block = 0; block < (int)plan->blocks; block++) {
        if (is_result(&plan->shape, block)) {
            gr_operand user = gr_user(0, block);
            emit(plan, (gr_step){.kind = GR_STEP_SCALE, .peer = -1, .dst = user, .a = user});
        }
    }
}

static bool moves_nothing(const gr_step *step, uint32_t filled)
{
    bool whole = step->kind == GR_STEP_SIGNAL || step->kind == GR_STEP_AWAIT;
    return !whole && (step->kind == GR_STEP_SEND ? step->a : step->dst).block >= filled;
}

void gr_plan_drop_empty(gr_plan *plan)
{
    uint32_t filled = plan->shape.lines; /* with fewer lines than blocks the first have one each */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < plan->step_count && filled > 0; i++) {
        if (!moves_nothing(&plan->steps[i], filled)) {
            plan->steps[kept++] = plan->steps[i];
        }
    }
    plan->step_count = filled > 0 ? kept : plan->step_count;
}

/* ---- Finishing ------------------------------------------------------------------------------- */
/* What has happened to one operand so far: who wrote it last, and who has read that since (a chain
 * through derive.reads). Each step enters each chain once and leaves it once: linear time. */
typedef struct place {
    int32_t writer;
    int32_t readers; /* head of the chain in derive.reads, -1 if nobody */
} place;

typedef struct read_link {
    uint32_t step;
    int32_t next;
} read_link;

typedef struct derive {
    gr_plan *plan;
    place *places; /* user slots x blocks, input slots x blocks, scratch slots */
    read_link *reads;
    uint32_t *sent, *received; /* messages so far, by peer; NULL in short plans */
    uint32_t read_count;
    int32_t last_await;
} derive;

size_t gr_plan_place(const gr_plan *plan, gr_operand operand)
{
    size_t first = operand.space == GR_SPACE_USER ? 0 : plan->user_slots;
    if (operand.space == GR_SPACE_SCRATCH) {
        return (first + plan->input_slots) * plan->blocks + operand.slot;
    }
    return (first + operand.slot) * plan->blocks + operand.block;
}

size_t gr_plan_places(const gr_plan *plan)
{
    return ((size_t)plan->user_slots + plan->input_slots) * plan->blocks + plan->scratch_slots;
}

static void add_after(gr_plan *plan, gr_step *step, int32_t earlier)
{
    /* The readers of an operand are all different, so that only the (at most two) writers of the
     * operands that the step reads, named before, can be met again. */
    const uint32_t *own = plan->after + step->after_first;
    for (uint32_t i = 0; i < step->after_count && i < 2; i++) {
        if (own[i] == (uint32_t)earlier) {
            return;
        }
    }
    if (plan->after_count == plan->after_capacity) {
        uint32_t capacity = plan->after_capacity ? plan->after_capacity * 2 : 64;
        uint32_t *after = realloc(plan->after, capacity * sizeof *after);
        if (!after) {
            plan->failed = GR_E_NO_MEMORY;
            return;
        }
        plan->after = after;
        plan->after_capacity = capacity;
    }
    plan->after[plan->after_count++] = (uint32_t)earlier;
    step->after_count++;
}

static void derive_read(derive *d, uint32_t index, gr_operand operand)
{
    gr_step *step = &d->plan->steps[index];
    place *at = &d->places[gr_plan_place(d->plan, operand)];
    if (at->readers >= 0 && d->reads[at->readers].step == index) {
        return; /* both operands of a reduction are this one */
    }
    if (at->writer >= 0) {
        gr_step *writer = &d->plan->steps[at->writer];
        add_after(d->plan, step, at->writer);
        if (writer->kind == GR_STEP_RECV && operand.space == GR_SPACE_SCRATCH) {
            writer->last_reader = (int32_t)index;
        }
    }
    d->reads[d->read_count] = (read_link){index, at->readers};
    at->readers = (int32_t)d->read_count++;
}

static void derive_write(derive *d, uint32_t index, gr_operand operand)
{
    gr_step *step = &d->plan->steps[index];
    place *at = &d->places[gr_plan_place(d->plan, operand)];
    bool read_by_others = false;
    for (int32_t r = at->readers; r >= 0; r = d->reads[r].next) {
        if (d->reads[r].step != index) {
            add_after(d->plan, step, (int32_t)d->reads[r].step);
            read_by_others = true;
        }
    }
    /* Readers come after the writer themselves: it need not be named again. */
    if (at->writer >= 0 && !read_by_others) {
        add_after(d->plan, step, at->writer);
    }
    at->writer = (int32_t)index;
    at->readers = -1;
}

static void derive_await(derive *d, uint32_t index)
{
    gr_step *step = &d->plan->steps[index];
    const uint32_t *after = d->plan->after + step->after_first;
    if (d->last_await < 0) {
        return;
    }
    /* Whatever stands after the await depends on it already. */
    for (uint32_t i = 0; i < step->after_count; i++) {
        if (after[i] >= (uint32_t)d->last_await) {
            return;
        }
    }
    add_after(d->plan, step, d->last_await);
}

int gr_plan_slots(const gr_plan *plan, uint8_t space)
{
    return space == GR_SPACE_USER      ? plan->user_slots
           : space == GR_SPACE_INPUT   ? plan->input_slots
           : space == GR_SPACE_SCRATCH ? plan->scratch_slots
                                       : 0;
}

static bool operand_valid(const gr_plan *plan, gr_operand operand)
{
    return operand.slot < gr_plan_slots(plan, operand.space) && operand.block < plan->blocks;
}

static bool step_valid(const gr_plan *plan, const gr_step *step)
{
    bool local = is_local(step->kind);
    bool has_dst = step->kind == GR_STEP_RECV || local;
    bool has_a = step->kind == GR_STEP_SEND || local;
    if (!local && (step->peer < 0 || step->peer >= plan->shape.world_size ||
                   step->peer == plan->shape.rank)) {
        return false;
    }
    return (!has_dst || (operand_valid(plan, step->dst) && step->dst.space != GR_SPACE_INPUT)) &&
           (!has_a || operand_valid(plan, step->a)) &&
           (step->kind != GR_STEP_REDUCE || operand_valid(plan, step->b));
}

/* In a world of very many, a counter for each of them costs more than a look back. */
static uint32_t next_message(derive *d, uint32_t index, bool is_given)
{
    const gr_step *steps = d->plan->steps;
    int32_t peer = steps[index].peer;
    if (d->sent) {
        return is_given ? d->sent[peer]++ : d->received[peer]++;
    }
    for (uint32_t at = index; at-- > 0;) {
        if (steps[at].peer == peer &&
            (is_given ? gr_step_gives(&steps[at]) : gr_step_takes(&steps[at]))) {
            return steps[at].message + 1;
        }
    }
    return 0;
}

static void derive_step(derive *d, uint32_t index)
{
    gr_step *step = &d->plan->steps[index];
    step->after_first = d->plan->after_count;
    step->after_count = 0;
    step->last_reader = -1;
    switch (step->kind) {
    case GR_STEP_SEND:
        step->message = next_message(d, index, true);
        derive_read(d, index, step->a);
        break;
    case GR_STEP_RECV:
        step->message = next_message(d, index, false);
        derive_write(d, index, step->dst);
        break;
    case GR_STEP_REDUCE:
        derive_read(d, index, step->a);
        derive_read(d, index, step->b);
        derive_write(d, index, step->dst);
        break;
    case GR_STEP_COPY:
    case GR_STEP_PRESCALE:
    case GR_STEP_SCALE:
        derive_read(d, index, step->a);
        derive_write(d, index, step->dst);
        break;
    case GR_STEP_SIGNAL:
        step->message = next_message(d, index, true);
        break;
    default:
        step->message = next_message(d, index, false);
        break;
    }
    derive_await(d, index);
    if (step->kind == GR_STEP_AWAIT) {
        d->last_await = (int32_t)index;
    }
}

enum { SHORT_PLAN = 64 };

gr_status gr_plan_finish(gr_plan *plan)
{
    if (plan->failed != GR_OK) {
        return plan->failed;
    }
    size_t peers = (size_t)plan->shape.world_size;
    size_t places = gr_plan_places(plan);
    derive d = {.plan = plan, .last_await = -1};
    plan->after_count = 0;
    plan->failed = GR_E_NO_MEMORY;
    d.places = malloc((places + 1) * sizeof *d.places);
    d.reads = malloc((2 * (size_t)plan->step_count + 1) * sizeof *d.reads);
    if (plan->step_count > SHORT_PLAN) {
        d.sent = calloc(2 * peers + 1, sizeof *d.sent);
        d.received = d.sent ? d.sent + peers : NULL;
    }
    if (!d.places || !d.reads || (plan->step_count > SHORT_PLAN && !d.sent)) {
        goto done;
    }
    memset(d.places, 0xff, (places + 1) * sizeof *d.places); /* -1: nobody */
    plan->failed = GR_OK;
    for (uint32_t i = 0; i < plan->step_count && plan->failed == GR_OK; i++) {
        if (!step_valid(plan, &plan->steps[i])) {
            plan->failed = GR_E_BUG;
            break;
        }
        derive_step(&d, i);
    }
done:
    free(d.places);
    free(d.reads);
    free(d.sent);
    return plan->failed;
}
