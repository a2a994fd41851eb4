/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/verify_internal.h"

#include <stdlib.h>

#include "base/fail.h"

/* Ancestors are kept as one bit for each pair of steps of a rank. */
enum { RANK_STEPS_MAX = 1 << 14 };

/* ---- Each plan by itself --------------------------------------------------------------------- */
static bool shape_possible(const gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    gr_coll coll = shape->coll;
    bool shard_each = coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_REDUCE;
    bool block_each = coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER ||
                      coll == GR_COLL_GATHER || coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
    return (unsigned)coll < GR_COLL_COUNT && shape->shards >= 1 && shape->root >= 0 &&
           shape->root < shape->world_size && plan->blocks >= 1 &&
           (!block_each || plan->blocks == (uint32_t)shape->world_size) &&
           (!shard_each || shape->shards == shape->world_size);
}

static bool alike(const gr_verify *v, const gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    const gr_plan_shape *other = &v->plans[0].shape;
    return shape->world_size == v->world_size && plan->blocks == v->plans[0].blocks &&
           shape->coll == other->coll && shape->shards == other->shards &&
           shape->root == other->root && shape->uneven == other->uneven;
}

/* How many contributions a rank has, and whether a result. */
static int held_by(const gr_plan_shape *shape)
{
    switch (shape->coll) {
    case GR_COLL_ALLREDUCE:
        return gr_shard_partials(shape->shards, shape->world_size, shape->rank);
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
        return shape->rank == shape->root;
    default:
        return shape->coll != GR_COLL_BARRIER;
    }
}

static gr_status check_slots(const gr_verify *v, int rank)
{
    const gr_plan *plan = &v->plans[rank];
    const gr_plan_shape *shape = &plan->shape;
    int held = held_by(shape);
    bool to_root = shape->coll == GR_COLL_REDUCE || shape->coll == GR_COLL_GATHER;
    int user = to_root && rank != shape->root ? 0 : 1;
    int input = shape->out_of_place ? held : 0;
    user = !shape->out_of_place && held > user ? held : user;
    if (plan->user_slots != user || plan->input_slots != input) {
        return gr_verify_wrong(v, rank, GR_NO_STEP,
                               "the plan is for %d buffers and %d inputs, the rank has %d and %d",
                               plan->user_slots, plan->input_slots, user, input);
    }
    return GR_OK;
}

static gr_status check_shape(const gr_verify *v, int rank)
{
    const gr_plan *plan = &v->plans[rank];
    const gr_plan_shape *shape = &plan->shape;
    if (plan->failed != GR_OK) {
        return gr_verify_wrong(v, rank, GR_NO_STEP, "the plan was not finished: %s",
                               gr_status_name(plan->failed));
    }
    if (shape->rank != rank || !alike(v, plan)) {
        return gr_verify_wrong(v, rank, GR_NO_STEP, "its shape is not that of rank 0's plan");
    }
    if (!shape_possible(plan)) {
        return gr_verify_wrong(v, rank, GR_NO_STEP,
                               "no such collective: root %d, %d shards, %u blocks", shape->root,
                               shape->shards, plan->blocks);
    }
    if (plan->step_count > RANK_STEPS_MAX) {
        return gr_fail_peer(v->diag, GR_E_UNSUPPORTED, rank,
                            "rank %d's plan has %u steps, the verifier takes at most %d", rank,
                            plan->step_count, RANK_STEPS_MAX);
    }
    return check_slots(v, rank);
}

/* Returns true if the caller has this part of its buffer at all. */
static bool exists(const gr_plan_shape *shape, gr_operand operand)
{
    bool own = operand.block == (uint32_t)shape->rank;
    bool is_user = operand.space == GR_SPACE_USER;
    if (operand.space == GR_SPACE_SCRATCH) {
        return true;
    }
    switch (shape->coll) {
    case GR_COLL_REDUCE_SCATTER:
        return own || !is_user || !shape->out_of_place;
    case GR_COLL_ALLGATHER:
        return own || is_user;
    case GR_COLL_GATHER:
        return own || (is_user && shape->rank == shape->root);
    case GR_COLL_SCATTER:
        return own || (shape->rank == shape->root && is_user != shape->out_of_place);
    default:
        return true;
    }
}

static gr_status check_bounds(const gr_verify *v, int rank, uint32_t index)
{
    const gr_plan *plan = &v->plans[rank];
    const gr_step *step = &plan->steps[index];
    gr_access accesses[GR_ACCESSES_MAX];
    int count = gr_step_accesses(step, accesses);
    if (step->kind > GR_STEP_AWAIT) {
        return gr_verify_wrong(v, rank, index, "there is no such kind of step");
    }
    for (int i = 0; i < count; i++) {
        gr_operand operand = accesses[i].operand;
        if (operand.slot >= gr_plan_slots(plan, operand.space) || operand.block >= plan->blocks) {
            return gr_verify_wrong(v, rank, index,
                                   "operand %d is outside the plan's %d buffers and %d inputs of "
                                   "%u blocks and %d scratch slots",
                                   i, plan->user_slots, plan->input_slots, plan->blocks,
                                   plan->scratch_slots);
        }
        if (!exists(&plan->shape, operand)) {
            return gr_verify_wrong(v, rank, index, "the caller has no such block");
        }
        if (accesses[i].writes && operand.space == GR_SPACE_INPUT) {
            return gr_verify_wrong(v, rank, index, "it writes to an input");
        }
    }
    bool message = gr_step_gives(step) || gr_step_takes(step);
    if (message && (step->peer < 0 || step->peer >= v->world_size || step->peer == rank)) {
        return gr_verify_wrong(v, rank, index, "rank %d is no peer of rank %d", step->peer, rank);
    }
    if (step->after_first > plan->after_count ||
        step->after_count > plan->after_count - step->after_first) {
        return gr_verify_wrong(v, rank, index, "its dependencies are outside the plan's list");
    }
    for (uint32_t i = 0; i < step->after_count; i++) {
        uint32_t earlier = plan->after[step->after_first + i];
        if (earlier >= index) {
            return gr_verify_wrong(v, rank, index, "it depends on step %u, which is not earlier",
                                   earlier);
        }
    }
    return GR_OK;
}

static gr_status check_volume(const gr_verify *v, int rank, long max_blocks)
{
    const gr_plan *plan = &v->plans[rank];
    long sent = 0, received = 0;
    for (uint32_t i = 0; i < plan->step_count && max_blocks >= 0; i++) {
        sent += plan->steps[i].kind == GR_STEP_SEND;
        received += plan->steps[i].kind == GR_STEP_RECV;
        if (sent > max_blocks || received > max_blocks) {
            return gr_verify_wrong(v, rank, i,
                                   "with it the rank %s %ld blocks, where %ld are enough",
                                   sent > max_blocks ? "sends" : "receives",
                                   sent > max_blocks ? sent : received, max_blocks);
        }
    }
    return GR_OK;
}

/* A slot that may be a view of a peer's memory must not be written by a step of this rank. */
static gr_status check_views(const gr_verify *v, int rank)
{
    const gr_plan *plan = &v->plans[rank];
    bool *received = calloc((size_t)plan->scratch_slots + 1, sizeof *received);
    gr_status status = received ? GR_OK : gr_verify_no_memory(v);
    for (uint32_t i = 0; status == GR_OK && i < plan->step_count; i++) {
        const gr_step *step = &plan->steps[i];
        if (step->kind == GR_STEP_RECV && step->dst.space == GR_SPACE_SCRATCH) {
            received[step->dst.slot] = true;
        }
    }
    for (uint32_t i = 0; status == GR_OK && i < plan->step_count; i++) {
        const gr_step *step = &plan->steps[i];
        if ((step->kind == GR_STEP_REDUCE || step->kind == GR_STEP_COPY) &&
            step->dst.space == GR_SPACE_SCRATCH && received[step->dst.slot]) {
            status = gr_verify_wrong(v, rank, i,
                                     "it writes to a slot that also receives: that may be a view "
                                     "of a peer's memory");
        }
    }
    free(received);
    return status;
}

static gr_status check_plan(const gr_verify *v, int rank, long max_blocks)
{
    gr_status status = check_shape(v, rank);
    for (uint32_t i = 0; status == GR_OK && i < v->plans[rank].step_count; i++) {
        status = check_bounds(v, rank, i);
    }
    if (status == GR_OK) {
        status = check_volume(v, rank, max_blocks);
    }
    if (status == GR_OK) {
        status = check_views(v, rank);
    }
    return status;
}

/* ---- Messages -------------------------------------------------------------------------------- */
/* The messages that one rank gives to or takes from each peer, in order: lists through `next`. */
typedef struct message_list {
    uint32_t head, tail, count;
} message_list;

static void append(message_list *to, uint32_t *next, uint32_t number)
{
    if (to->count++ == 0) {
        to->head = number;
    } else {
        next[to->tail] = number;
    }
    to->tail = number;
    next[number] = GR_NO_STEP;
}

static gr_status pair_up(gr_verify *v, const message_list *given, const message_list *taken,
                         const uint32_t *next, int from, int to)
{
    uint32_t give = given->count ? given->head : GR_NO_STEP;
    uint32_t take = taken->count ? taken->head : GR_NO_STEP;
    for (uint32_t i = 0; give != GR_NO_STEP || take != GR_NO_STEP; i++) {
        if (take == GR_NO_STEP) {
            return gr_verify_wrong(v, from, give - v->first[from],
                                   "nobody takes it: rank %d takes %u messages from rank %d", to, i,
                                   from);
        }
        if (give == GR_NO_STEP) {
            return gr_verify_wrong(v, to, take - v->first[to],
                                   "it never comes: rank %d gives rank %d only %u messages", from,
                                   to, i);
        }
        const gr_step *giver = &v->plans[from].steps[give - v->first[from]];
        const gr_step *taker = &v->plans[to].steps[take - v->first[to]];
        if ((giver->kind == GR_STEP_SEND) != (taker->kind == GR_STEP_RECV)) {
            return gr_verify_wrong(v, to, take - v->first[to],
                                   "it meets step %u of rank %d, which is of the other kind",
                                   give - v->first[from], from);
        }
        if (giver->message != i || taker->message != i) {
            return gr_verify_wrong(v, to, take - v->first[to],
                                   "message %u from rank %d is numbered %u there and %u here", i,
                                   from, giver->message, taker->message);
        }
        v->mate[give] = take;
        v->mate[take] = give;
        v->next_sent[give] = next[give];
        give = next[give];
        take = next[take];
    }
    return GR_OK;
}

static gr_status match_messages(gr_verify *v)
{
    size_t n = (size_t)v->world_size;
    message_list *given = calloc(n * n, sizeof *given); /* [from * n + to] */
    message_list *taken = calloc(n * n, sizeof *taken); /* [from * n + to] */
    uint32_t *next = malloc(((size_t)v->total + 1) * sizeof *next);
    gr_status status = given && taken && next ? GR_OK : gr_verify_no_memory(v);
    for (size_t rank = 0; status == GR_OK && rank < n; rank++) {
        for (uint32_t i = 0; i < v->plans[rank].step_count; i++) {
            const gr_step *step = &v->plans[rank].steps[i];
            v->mate[v->first[rank] + i] = GR_NO_STEP;
            v->next_sent[v->first[rank] + i] = GR_NO_STEP;
            if (gr_step_gives(step)) {
                append(&given[rank * n + (size_t)step->peer], next, v->first[rank] + i);
            } else if (gr_step_takes(step)) {
                append(&taken[(size_t)step->peer * n + rank], next, v->first[rank] + i);
            }
        }
    }
    for (size_t pair = 0; status == GR_OK && pair < n * n; pair++) {
        status = pair_up(v, &given[pair], &taken[pair], next, (int)(pair / n), (int)(pair % n));
    }
    free(given);
    free(taken);
    free(next);
    return status;
}

/* ---- All together ---------------------------------------------------------------------------- */
static gr_status verify_all(gr_verify *v, long max_blocks_sent)
{
    gr_status status = GR_OK;
    for (int rank = 0; status == GR_OK && rank < v->world_size; rank++) {
        status = check_plan(v, rank, max_blocks_sent);
    }
    if (status == GR_OK) {
        status = match_messages(v);
    }
    for (int rank = 0; status == GR_OK && rank < v->world_size; rank++) {
        status = gr_verify_hazards(v, rank);
    }
    if (status == GR_OK) {
        status = gr_verify_progress(v);
    }
    if (status == GR_OK) {
        status =
            v->plans[0].shape.coll == GR_COLL_BARRIER ? gr_verify_barrier(v) : gr_verify_results(v);
    }
    return status;
}

gr_status gr_plan_verify(const gr_plan *plans, int world_size, bool canonical, long max_blocks_sent,
                         gr_diag *diag)
{
    if (world_size < 1) {
        return gr_fail(diag, GR_E_INVALID, "there are no plans of %d ranks to verify", world_size);
    }
    gr_verify v = {.plans = plans, .world_size = world_size, .canonical = canonical, .diag = diag};
    gr_status status = GR_E_NO_MEMORY;
    v.first = malloc(((size_t)world_size + 1) * sizeof *v.first);
    if (!v.first) {
        return gr_verify_no_memory(&v);
    }
    for (int rank = 0; rank < world_size; rank++) {
        v.first[rank] = v.total;
        v.total += plans[rank].step_count;
    }
    v.first[world_size] = v.total;
    v.mate = malloc(((size_t)v.total + 1) * sizeof *v.mate);
    v.next_sent = malloc(((size_t)v.total + 1) * sizeof *v.next_sent);
    v.order = malloc(((size_t)v.total + 1) * sizeof *v.order);
    status = v.mate && v.next_sent && v.order ? verify_all(&v, max_blocks_sent)
                                              : gr_verify_no_memory(&v);
    free(v.first);
    free(v.mate);
    free(v.next_sent);
    free(v.order);
    return status;
}
