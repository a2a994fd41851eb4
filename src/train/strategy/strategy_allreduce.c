/* SPDX-License-Identifier: Apache-2.0 */

/* Gradients meet by allreduce: buckets of the step vector are summed over all ranks while the
 * backward pass goes on, and each rank updates its weights from the sums, which are the same on
 * all. */

#include "base/fail.h"
#include "coll/comm.h"
#include "train/strategy/strategy.h"

#include <stdlib.h>

enum { PIECE_VALUES = 4096 }; /* 16 KiB: checked and updated while it is in the first cache */

/* ---- A generation ---------------------------------------------------------------------------- */

static gr_status make_vectors(gr_trainer *t, gr_diag *diag)
{
    size_t bytes = t->length * sizeof(float);
    t->gen.vectors = calloc((size_t)t->gen.plan.slots, sizeof *t->gen.vectors);
    for (int i = 0; i < t->gen.plan.slots && t->gen.vectors != NULL; i++) {
        void *memory = NULL;
        gr_status status = gr_alloc(t->gen.comm, bytes, &memory);
        if (status != GR_OK) {
            return gr_fail(diag, status, "no memory for gradient vector %d of %d, %zu bytes each",
                           i + 1, t->gen.plan.slots, bytes);
        }
        t->gen.vectors[i] = memory;
    }
    return t->gen.vectors != NULL ? GR_OK
                                  : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a trainer");
}

static gr_status make_buckets(gr_trainer *t, gr_diag *diag)
{
    gr_buckets_config config;
    size_t *ends = NULL;
    gr_status status = gr_trainer_cut(t, &ends, &config, diag);
    if (status == GR_OK && t->gen.world_size > 1) {
        status = gr_buckets_init(&t->gen.buckets, &config, diag);
    }
    free(ends);
    return status;
}

/* All buckets in flight at once, before the first step: whatever operations will ever need, they
 * have afterwards. The first round finds out how much that is, the second gives it to each. */
static gr_status warm_up(gr_trainer *t, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int round = 0; round < 2 && t->gen.world_size > 1 && status == GR_OK; round++) {
        gr_buckets_begin(&t->gen.buckets);
        status = gr_buckets_ready(&t->gen.buckets, t->length);
        for (int i = 0; i < t->gen.buckets.count && status == GR_OK; i++) {
            status = gr_buckets_wait(&t->gen.buckets, i);
        }
        gr_buckets_drain(&t->gen.buckets);
    }
    t->gen.buckets.wait_ns = 0;
    return gr_trainer_comm_status(t->gen.comm, status, "the workers could not meet", diag);
}

static gr_status enter(gr_trainer *t, gr_diag *diag)
{
    gr_status status = gr_trainer_assign(t, t->job->shards, !t->job->distribution.exact, diag);
    if (status == GR_OK) {
        status = make_vectors(t, diag);
    }
    if (status == GR_OK) {
        status = make_buckets(t, diag);
    }
    return status == GR_OK ? warm_up(t, diag) : status;
}

static void leave(gr_trainer *t)
{
    gr_buckets_fini(&t->gen.buckets);
    gr_compressor_fini(&t->gen.compressor);
    for (int i = 0; t->gen.vectors != NULL && i < t->gen.plan.slots; i++) {
        if (t->gen.vectors[i] != NULL) {
            gr_free(t->gen.comm, t->gen.vectors[i]);
        }
    }
    free(t->gen.vectors);
    t->gen.vectors = NULL;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static uint64_t begin(gr_trainer *t, uint64_t step)
{
    gr_buckets_begin(&t->gen.buckets);
    return step;
}

static gr_status ready(gr_trainer *t, size_t end)
{
    bool now = t->gen.world_size > 1 && t->job->distribution.overlap;
    return now ? gr_buckets_ready(&t->gen.buckets, end) : GR_OK;
}

/* All buckets are summed before the first weight changes: a step that fails since a peer died has
 * changed nothing here, and can be run again. */
static gr_status wait_all(gr_trainer *t, gr_diag *diag)
{
    gr_status status = t->step.reduction;
    int64_t wait_ns = t->gen.buckets.wait_ns;
    if (status == GR_OK && t->gen.world_size > 1 && !t->job->distribution.overlap) {
        status = gr_buckets_ready(&t->gen.buckets, t->length);
    }
    for (int i = 0; i < t->gen.buckets.count && status == GR_OK; i++) {
        uint64_t begun = gr_timeline_now(t->gen.timeline);
        status = gr_buckets_wait(&t->gen.buckets, i);
        gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_WAIT, (uint64_t)i, begun);
    }
    gr_buckets_drain(&t->gen.buckets);
    t->wait_ns += t->gen.buckets.wait_ns - wait_ns;
    return gr_trainer_comm_status(t->gen.comm, status, "the gradients could not be reduced", diag);
}

/* Elements of the step vector. False: a gradient is not finite. */
static bool update_range(gr_trainer *t, size_t begin, size_t end)
{
    size_t from = begin < GR_STEP_HEADER ? GR_STEP_HEADER : begin;
    return from >= end ||
           gr_optimizer_update(t->optimizer, t->values, t->gen.vectors[0] + GR_STEP_HEADER,
                               from - GR_STEP_HEADER, end - GR_STEP_HEADER);
}

static bool is_finite(const gr_trainer *t, size_t begin, size_t end)
{
    return begin >= end || !gr_any_not_finite(t->gen.vectors[0] + begin, end - begin);
}

/* Clipping needs the norm of the whole gradient, so everything must have come. */
static void update_clipped(gr_trainer *t, uint64_t step)
{
    gr_saver_settle(t->saver);
    gr_trainer_begin_update(t, t->optimizer, step, t->gen.vectors[0] + GR_STEP_HEADER);
    (void)update_range(t, 0, t->length); /* take_sum has looked for what is not finite */
}

/* Looks over the sum and, unless clipping must see all of it first, updates the weights, piece by
 * piece, while each is in the cache. The update looks over what it reads; what it passes over, the
 * numbers about the step and the statistics, comes first. Returns the first element that is not
 * finite, or the vector's length. */
static size_t take_sum(gr_trainer *t, bool update)
{
    if (update) {
        gr_saver_settle(t->saver);
    }
    for (size_t at = 0; at < t->length; at += PIECE_VALUES) {
        size_t stop = t->length - at < PIECE_VALUES ? t->length : at + PIECE_VALUES;
        size_t checked = update ? (stop < t->parameters ? stop : t->parameters) : stop;
        bool finite = is_finite(t, at, checked);
        if (update && finite) {
            finite = update_range(t, at, stop);
        }
        if (!finite) {
            return gr_first_not_finite(t->gen.vectors[0], at, stop);
        }
    }
    return t->length;
}

/* A piece is updated before it is known to be finite. No harm is done: the step
 * fails, nobody uses the weights again, and a rank that knew of a NaN of its own has looked for the
 * place with the old weights (`key`). */
static gr_status update(gr_trainer *t, uint64_t step, int64_t key, gr_meter *now, gr_diag *diag)
{
    bool clip = t->job->optimizer.clip_norm > 0.0;
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    gr_trainer_begin_update(t, t->optimizer, step, NULL);
    size_t bad = take_sum(t, !clip && !t->step.bad);
    if (bad < t->length) {
        return gr_not_finite_fail(t, step, key, t->gen.vectors[0], bad, diag);
    }
    if (clip) {
        update_clipped(t, step);
    }
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_UPDATE, 0, begun);
    gr_trainer_take_header(t, now);
    return GR_OK;
}

const gr_strategy gr_strategy_allreduce = {.name = "allreduce",
                                           .enter = enter,
                                           .leave = leave,
                                           .kept = gr_trainer_left_out,
                                           .begin = begin,
                                           .ready = ready,
                                           .wait = wait_all,
                                           .update = update};
