/* SPDX-License-Identifier: Apache-2.0 */

/* Each shard has a copy of the weights and of the optimizer's state, which takes steps of its own
 * with the shard's samples. A round is so many steps of an epoch; at its end the copies are
 * averaged, in the order of the shard tree, and all begin the next round alike.
 *
 * It is the shards that have copies, not the workers: so the bits do not depend on how many workers
 * there are, and a round that was broken off by the loss of one is computed again by the others,
 * from what all have had alike since its beginning (t->values, t->optimizer and t->outer, which
 * change at the end of a round only). */

#include "train/strategy/local.h"

#include "base/fail.h"
#include "base/memory.h"
#include "coll/comm.h"
#include "coll/reduce/reduce.h"
#include "train/strategy/strategy.h"
#include <gradus/coll.h>

#include <stdlib.h>
#include <string.h>

/* What one shard has for itself. */
typedef struct copy {
    float *values;
    gr_optimizer *optimizer;
    double loss, correct; /* of the round so far, as the headers of step vectors count them */
} copy;

typedef struct local {
    copy *copies; /* of own shards */
    int count;
    bool asks_stop, asks_save; /* in any step of the round */
    bool asks_undo;            /* and does not wait for its end */
    uint64_t bad_step;         /* this rank's first one with NaN or infinity; UINT64_MAX: none */
    int64_t bad_key;           /* where in it (notfinite.c) */
} local;

uint64_t gr_local_round_end(const gr_job *job, uint64_t step)
{
    uint64_t begun = step % job->steps_per_epoch / job->sync_steps * job->sync_steps;
    uint64_t room = job->steps_per_epoch - begun;
    uint64_t end = step - step % job->steps_per_epoch + begun +
                   (room < job->sync_steps ? room : job->sync_steps);
    return end < job->total_steps ? end : job->total_steps;
}

int gr_local_averaged_states(const gr_job *job)
{
    const gr_optimizer_config *optimizer = &job->optimizer;
    const gr_optimizer_ops *ops = gr_optimizer_ops_at(optimizer->kind);
    bool plain = ops->stays_zero && ops->stays_zero(optimizer);
    bool keep = job->distribution.local_state == GR_LOCAL_KEEP;
    return plain || keep ? 0 : gr_optimizer_states(optimizer);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

static copy *own_copy(const gr_trainer *t, int shard_index)
{
    const local *l = t->gen.strategy_state;
    return &l->copies[shard_index];
}

static size_t values_bytes(size_t values)
{
    return (values * sizeof(float) + 63) / 64 * 64;
}

uint64_t gr_local_bytes(const gr_job *job, size_t values, int own_shards)
{
    return (uint64_t)own_shards * (uint64_t)(1 + gr_optimizer_states(&job->optimizer)) *
           values_bytes(values);
}

static void leave(gr_trainer *t)
{
    local *l = t->gen.strategy_state;
    for (int i = 0; l != NULL && i < l->count; i++) {
        gr_optimizer_destroy(l->copies[i].optimizer);
        free(l->copies[i].values);
    }
    free(l != NULL ? l->copies : NULL);
    free(l);
    t->gen.strategy_state = NULL;
    gr_strategy_allreduce.leave(t);
}

static gr_status make_copy(const gr_trainer *t, int shard, copy *made, gr_diag *diag)
{
    size_t bytes = values_bytes(gr_model_values(t->model));
    made->values = gr_zeros(bytes);
    if (made->values == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "no memory for the weights of shard %d, %zu bytes: with strategy local each "
                       "shard has its own; use fewer shards a worker",
                       shard, bytes);
    }
    return gr_optimizer_create(&t->job->optimizer, t->model, &made->optimizer, diag);
}

/* What allreduce needs of a group, for the averages, and the copies. */
static gr_status enter(gr_trainer *t, gr_diag *diag)
{
    gr_status status = gr_strategy_allreduce.enter(t, diag);
    if (status != GR_OK) {
        return status;
    }
    local *l = t->gen.strategy_state = calloc(1, sizeof *l);
    if (l != NULL) {
        l->copies = calloc((size_t)t->gen.plan.count + 1, sizeof *l->copies);
        l->count = l->copies != NULL ? t->gen.plan.count : 0;
    }
    if (l == NULL || l->copies == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d shards", t->gen.plan.count);
    }
    for (int i = 0; i < l->count && status == GR_OK; i++) {
        status = make_copy(t, t->gen.plan.first + i, &l->copies[i], diag);
    }
    return status;
}

/* What is averaged: the weights, then the optimizer's vectors. */
static int part_count(const gr_trainer *t)
{
    return 1 + gr_local_averaged_states(t->job);
}

static float *part_of(float *values, gr_optimizer *optimizer, int part)
{
    const char *name;
    return part == 0 ? values : gr_optimizer_state(optimizer, part - 1, &name);
}

/* All copies become what all have alike: a round begins. */
static void begin_round(gr_trainer *t)
{
    local *l = t->gen.strategy_state;
    size_t bytes = gr_model_values(t->model) * sizeof(float);
    for (int i = 0; i < l->count; i++) {
        copy *c = &l->copies[i];
        c->loss = c->correct = 0.0;
        for (int part = 0; part < part_count(t); part++) {
            memcpy(part_of(c->values, c->optimizer, part), part_of(t->values, t->optimizer, part),
                   bytes);
        }
    }
    l->asks_stop = l->asks_save = l->asks_undo = false;
    l->bad_step = UINT64_MAX;
    l->bad_key = INT64_MAX;
    t->step.inside_round = false;
}

static gr_status seek(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    (void)step;
    (void)diag;
    begin_round(t);
    return GR_OK;
}

/* The optimizer's vectors, where they are not averaged. */
static float *kept(gr_trainer *t, int shard, int part, size_t *count_out)
{
    const char *name;
    *count_out = gr_model_values(t->model);
    return t->job->distribution.local_state == GR_LOCAL_KEEP
               ? gr_optimizer_state(own_copy(t, shard)->optimizer, part, &name)
               : NULL;
}

/* ---- A step of one shard --------------------------------------------------------------------- */

/* The gradient of the t->step.shard_index-th own shard at its own weights, in vector 0. */
static gr_status compute(gr_trainer *t, uint64_t step, double *loss, double *correct, gr_diag *diag)
{
    float *own = t->gen.vectors[0];
    const float *values = own_copy(t, t->step.shard_index)->values;
    for (t->step.micro_index = 0; t->step.micro_index < t->job->config.micro_batches;
         t->step.micro_index++) {
        gr_batch batch;
        gr_batch_result result;
        float *gradients = t->step.micro_index > 0 ? t->micro : own;
        gr_status status = gr_trainer_forward(t, step, values, &batch, &result, diag);
        if (status == GR_OK) {
            status = gr_model_backward(t->model, values, &batch, gradients + GR_STEP_HEADER, NULL,
                                       NULL, diag);
        }
        if (status != GR_OK) {
            return status;
        }
        *loss += result.loss;
        *correct += (double)result.correct;
        if (t->step.micro_index > 0) {
            gr_add_f32(own + GR_STEP_HEADER, own + GR_STEP_HEADER, gradients + GR_STEP_HEADER,
                       t->length - GR_STEP_HEADER);
        }
    }
    memset(own, 0, GR_STEP_HEADER * sizeof *own);
    own[GR_STEP_LOSS] = (float)(*loss / (double)t->job->config.global_batch);
    return GR_OK;
}

/* Nobody can be told of a NaN before the round ends, when all weights of the copy will be NaN: so
 * where the first one came from is found out now, with the weights from before it. */
static gr_status note_bad(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    local *l = t->gen.strategy_state;
    bool bad = false;
    for (int i = 0; i < t->watch_count && !bad; i++) {
        const gr_watch *watch = &t->watches[i];
        bad = gr_any_not_finite(t->gen.vectors[0] + watch->begin, watch->end - watch->begin);
    }
    if (!bad || l->bad_step != UINT64_MAX) {
        return GR_OK;
    }
    gr_shard_plan all = t->gen.plan;
    t->gen.plan.first += t->step.shard_index;
    t->gen.plan.count = 1;
    l->bad_step = step;
    gr_status status =
        gr_not_finite_find(t, l->copies[t->step.shard_index].values, step, &l->bad_key, diag);
    t->gen.plan = all;
    return status;
}

static void update(gr_trainer *t, uint64_t step)
{
    local *l = t->gen.strategy_state;
    copy *c = &l->copies[t->step.shard_index];
    const float *gradient = t->gen.vectors[0] + GR_STEP_HEADER;
    gr_trainer_begin_update(t, c->optimizer, step, gradient);
    bool finite =
        gr_optimizer_update(c->optimizer, c->values, gradient, 0, t->length - GR_STEP_HEADER);
    if (!finite && l->bad_step == UINT64_MAX) {
        l->bad_step = step;
        l->bad_key = gr_not_finite_unknown(t->gen.plan.first + t->step.shard_index);
    }
    gr_model_update_statistics(t->model, c->values, gradient,
                               (float)(1.0 / (double)t->job->config.micro_batches));
}

static gr_status run_shard(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    double loss = 0.0, correct = 0.0;
    copy *c = own_copy(t, t->step.shard_index);
    gr_status status = compute(t, step, &loss, &correct, diag);
    if (status == GR_OK) {
        status = note_bad(t, step, diag);
    }
    if (status == GR_OK) {
        uint64_t begun = gr_timeline_now(t->gen.timeline);
        update(t, step);
        gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_UPDATE, (uint64_t)t->step.shard_index,
                               begun);
        c->loss += loss / (double)t->job->config.global_batch;
        c->correct += correct;
    }
    return status;
}

/* ---- The end of a round ---------------------------------------------------------------------- */

static void write_header(const gr_trainer *t, int shard_index, float *header)
{
    const local *l = t->gen.strategy_state;
    memset(header, 0, GR_STEP_HEADER * sizeof *header);
    header[GR_STEP_LOSS] = (float)l->copies[shard_index].loss;
    header[GR_STEP_CORRECT] = (float)l->copies[shard_index].correct;
    header[GR_STEP_STOP] = l->asks_stop ? 1.0f : 0.0f;
    header[GR_STEP_UNDO] = l->asks_undo ? 1.0f : 0.0f;
    header[GR_STEP_SAVE] = l->asks_save ? 1.0f : 0.0f;
    header[GR_STEP_RENEW] = t->step.asks_renew ? 1.0f : 0.0f;
}

/* The sum of one part over all shards' copies, behind a header, in vector 0. */
static gr_status sum_part(gr_trainer *t, uint64_t step, int part, gr_diag *diag)
{
    const local *l = t->gen.strategy_state;
    for (int shard_index = 0; shard_index < l->count; shard_index++) {
        const copy *c = &l->copies[shard_index];
        float *own = t->gen.vectors[t->gen.plan.entries[shard_index].slot];
        write_header(t, shard_index, own);
        memcpy(own + GR_STEP_HEADER, part_of(c->values, c->optimizer, part),
               (t->length - GR_STEP_HEADER) * sizeof *own);
        gr_shard_merge(&t->gen.plan, shard_index, t->gen.vectors, 0, t->length, NULL, NULL);
    }
    gr_strategy_allreduce.begin(t, step);
    t->step.reduction = gr_strategy_allreduce.ready(t, t->length);
    return gr_strategy_allreduce.wait(t, diag);
}

/* All ranks have seen the same sum, and agree on who saw the first bad number, and where. */
static gr_status fail_not_finite(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    const local *l = t->gen.strategy_state;
    const float *sum = t->gen.vectors[0];
    size_t at = gr_first_not_finite(sum, 0, t->length - 1);
    int64_t first = l->bad_step < INT64_MAX ? (int64_t)l->bad_step : INT64_MAX;
    gr_status status = gr_not_finite_agree(t, &first, diag);
    int64_t key = (int64_t)l->bad_step == first ? l->bad_key : INT64_MAX;
    return status != GR_OK ? status
                           : gr_not_finite_fail(t, first < INT64_MAX ? (uint64_t)first : step, key,
                                                sum, at, diag);
}

/* The averages of all parts, in the memory of the first copy: what all have alike stays as it is
 * until everything has come. */
static gr_status average(gr_trainer *t, uint64_t step, gr_meter *now, gr_diag *diag)
{
    const copy *c = own_copy(t, 0);
    const float *sum = t->gen.vectors[0];
    size_t count = t->length - GR_STEP_HEADER;
    for (int part = 0; part < part_count(t); part++) {
        gr_status status = sum_part(t, step, part, diag);
        if (status != GR_OK) {
            return status;
        }
        t->step.rolled_back = sum[GR_STEP_UNDO] > 0.0f;
        if (t->step.rolled_back) {
            t->step.stop = true;
            return GR_OK;
        }
        if (gr_any_not_finite(sum, t->length)) {
            return fail_not_finite(t, step, diag);
        }
        float *mean = part_of(c->values, c->optimizer, part);
        memcpy(mean, sum + GR_STEP_HEADER, count * sizeof *mean);
        gr_scale_inverse(mean, count, GR_F32, t->job->shards);
    }
    now->loss = (double)sum[GR_STEP_LOSS];
    now->correct = (double)sum[GR_STEP_CORRECT];
    t->step.stop = gr_trainer_stops(t, sum);
    t->step.save = sum[GR_STEP_SAVE] > 0.0f;
    t->step.renew = sum[GR_STEP_RENEW] > 0.0f;
    return GR_OK;
}

/* The outer optimizer takes the way back from the mean to the last weights for a gradient. Running
 * statistics are no parameters: they become the mean. */
static void step_outer(gr_trainer *t, const float *mean)
{
    const gr_outer_config *outer = &t->job->outer;
    const gr_optimizer_config rule = {
        .kind = GR_OPT_SGD, .momentum = outer->momentum, .nesterov = outer->nesterov};
    size_t first = t->parameters - GR_STEP_HEADER, count = t->length - t->parameters;
    float *back = t->gen.vectors[0] + t->parameters;
    float *state[] = {t->outer + first};
    gr_optimizer_step now;
    for (size_t i = 0; i < count; i++) {
        back[i] = t->values[first + i] - mean[first + i];
    }
    memcpy(t->values, mean, first * sizeof *mean);
    gr_optimizer_step_init(&now, &rule, 0, outer->learning_rate, 1.0f, false);
    (void)gr_optimizer_apply(&now, t->values + first, state, back, count); /* they are finite */
}

static gr_status end_round(gr_trainer *t, uint64_t step, gr_meter *now, gr_diag *diag)
{
    const copy *c = own_copy(t, 0);
    size_t bytes = (t->length - GR_STEP_HEADER) * sizeof(float);
    gr_status status = average(t, step, now, diag);
    if (status != GR_OK) {
        return status;
    }
    if (t->step.rolled_back) {
        begin_round(t);
        return GR_OK;
    }
    gr_saver_settle(t->saver);
    if (t->outer != NULL) {
        step_outer(t, c->values);
    }
    for (int part = t->outer != NULL; part < part_count(t); part++) {
        memcpy(part_of(t->values, t->optimizer, part), part_of(c->values, c->optimizer, part),
               bytes);
    }
    begin_round(t);
    return GR_OK;
}

static gr_status take_step(gr_trainer *t, uint64_t step, gr_meter *now, gr_diag *diag)
{
    local *l = t->gen.strategy_state;
    /* Whoever is lost in a long round is missed at once, and not in its end. */
    gr_status status = t->gen.world_size > 1 ? gr_comm_poll(t->gen.comm) : GR_OK;
    if (status != GR_OK && status != GR_PENDING) {
        return gr_trainer_comm_status(t->gen.comm, status, "the round of local steps broke off",
                                      diag);
    }
    t->step.stop = t->step.save = t->step.renew = t->step.rolled_back = false;
    l->asks_stop = l->asks_stop || t->step.asks_stop;
    /* Whoever is asked to end may have less time than a round takes: it ends with what all had when
     * it began. But what shards keep to themselves is not as it was then. */
    l->asks_undo = t->step.asks_stop && !t->job->run.all_stop &&
                   t->job->distribution.local_state == GR_LOCAL_AVERAGE;
    if (l->asks_undo) {
        return end_round(t, step, now, diag);
    }
    for (t->step.shard_index = 0; t->step.shard_index < l->count; t->step.shard_index++) {
        status = run_shard(t, step, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    l->asks_save = l->asks_save || t->step.asks_save;
    t->step.inside_round = true;
    now->steps = 1;
    now->samples = t->job->config.global_batch;
    return step + 1 == gr_local_round_end(t->job, step) ? end_round(t, step, now, diag) : GR_OK;
}

const gr_strategy gr_strategy_local = {.name = "local",
                                       .updates_by_shard = true,
                                       .averages_weights = true,
                                       .enter = enter,
                                       .leave = leave,
                                       .seek = seek,
                                       .kept = kept,
                                       .step = take_step};
