/* SPDX-License-Identifier: Apache-2.0 */
#include "train/strategy/strategy.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"
#include "coll/comm.h"
#include "link/secret.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_VALUES = 4096 /* 16 KiB: merged while it is in the first cache */
};

gr_status gr_trainer_comm_status(const gr_comm *comm, gr_status status, const char *what,
                                 gr_diag *diag)
{
    if (status == GR_OK) {
        return GR_OK;
    }
    const gr_diag *cause = gr_comm_diag(comm);
    if (cause->status == GR_OK) {
        return gr_fail(diag, status, "%s: %s", what, gr_status_text(status));
    }
    if (diag != NULL) {
        *diag = *cause;
    }
    return status;
}

/* ---- Making and freeing ---------------------------------------------------------------------- */

static gr_status make_model(gr_trainer *t, gr_diag *diag)
{
    const gr_job *job = t->job;
    bool shard = job->strategy->updates_by_shard;
    double batch = (double)(shard ? job->shard_batch : job->config.global_batch); /* of an update */
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->micro_batch,
                              .loss = (gr_loss_kind)job->config.loss,
                              .gradient_scale = (float)(1.0 / batch),
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    gr_status status = gr_model_create(&config, &t->model, diag);
    if (status != GR_OK) {
        return status;
    }
    t->length = GR_STEP_HEADER + gr_model_values(t->model);
    t->parameters = t->length;
    for (int i = gr_model_tensors(t->model) - 1; i >= 0; i--) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        t->parameters = tensor->statistic ? t->parameters : GR_STEP_HEADER + tensor->offset;
    }
    return gr_optimizer_create(&job->optimizer, t->model, &t->optimizer, diag);
}

static gr_status make_weights(gr_trainer *t, gr_diag *diag)
{
    size_t bytes = t->length * sizeof(float);
    t->values = gr_zeros(bytes);
    t->micro = t->job->config.micro_batches > 1 ? gr_zeros(bytes) : NULL;
    t->outer = t->job->outer.wanted ? gr_zeros(bytes) : NULL;
    if (t->values == NULL || (t->job->config.micro_batches > 1 && t->micro == NULL) ||
        (t->job->outer.wanted && t->outer == NULL)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the weights, %zu bytes", bytes);
    }
    gr_model_init_weights(t->model, t->values);
    return GR_OK;
}

enum { ENDS_MAX = 4096 };

/* Where the backward pass finishes a layer, in elements of the step vector, ascending; returns how
 * many there are. */
static int bucket_ends(const gr_trainer *t, size_t ends_out[ENDS_MAX])
{
    int count = 0;
    const gr_tensor_info *last = NULL;
    for (int i = 0; i < gr_model_tensors(t->model); i++) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        bool new_layer = last != NULL && !last->statistic && tensor->layer != last->layer;
        if (new_layer && count < ENDS_MAX - 1) {
            ends_out[count++] = GR_STEP_HEADER + tensor->offset;
        }
        last = tensor;
    }
    ends_out[count++] = t->length;
    return count;
}

static gr_status make_compressor(gr_trainer *t, gr_diag *diag)
{
    const gr_distribution_config *d = &t->job->distribution;
    size_t largest = 0;
    for (int i = 0; i < t->gen.cut_count; i++) {
        size_t size = t->gen.cuts[i] - (i > 0 ? t->gen.cuts[i - 1] : 0);
        largest = size > largest ? size : largest;
    }
    return gr_compressor_init(&t->gen.compressor, (gr_compression)d->compression,
                              d->compression_ratio, t->parameters, t->length, t->gen.plan.count,
                              largest, diag);
}

gr_status gr_trainer_cut(gr_trainer *t, size_t **ends_out, gr_buckets_config *config_out,
                         gr_diag *diag)
{
    const gr_distribution_config *d = &t->job->distribution;
    size_t *ends = *ends_out = calloc(ENDS_MAX, sizeof *ends);
    if (ends == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to lay out the buckets");
    }
    *config_out = (gr_buckets_config){.comm = t->gen.comm,
                                      .shards = t->job->shards,
                                      .exact = d->exact,
                                      .partials = t->gen.vectors,
                                      .partial_count = t->gen.plan.partials,
                                      .ends = ends,
                                      .end_count = bucket_ends(t, ends),
                                      .first_values = (size_t)d->bucket_bytes_first / sizeof(float),
                                      .values = (size_t)d->bucket_bytes / sizeof(float),
                                      .compression = (gr_compression)d->compression,
                                      .plain = t->parameters};
    t->gen.cut_count = gr_buckets_cut_all(config_out, t->gen.cuts);
    return make_compressor(t, diag);
}

float *gr_trainer_left_out(gr_trainer *t, int shard, int part, size_t *count_out)
{
    size_t count = t->length - t->parameters;
    bool some = t->gen.compressor.kind == GR_COMPRESSION_TOPK && part == 0;
    *count_out = some ? count : 0;
    return some ? t->gen.compressor.residuals + (size_t)shard * count : NULL;
}

gr_status gr_trainer_load(gr_trainer *t, uint64_t first_step, uint64_t total_steps,
                          gr_loader **loader_out, gr_diag *diag)
{
    int64_t batches = (int64_t)t->gen.plan.count * t->job->config.micro_batches * 2;
    gr_loader_config config = {.dataset = t->job->dataset,
                               .seed = (uint64_t)t->job->config.seed,
                               .global_batch = t->gen.assigned_shards * t->job->shard_batch,
                               .shards = t->gen.assigned_shards,
                               .shard_first = t->gen.plan.first,
                               .shard_count = t->gen.plan.count,
                               .first_step = first_step,
                               .total_steps = total_steps,
                               .micro_batches = (int)t->job->config.micro_batches,
                               .depth =
                                   batches > GR_READ_AHEAD_MAX ? GR_READ_AHEAD_MAX : (int)batches};
    return gr_loader_start(&config, loader_out, diag);
}

gr_status gr_trainer_seek(gr_trainer *trainer, uint64_t step, gr_diag *diag)
{
    gr_loader_stop(trainer->gen.loader);
    trainer->gen.loader = NULL;
    trainer->reached = step;
    const gr_strategy *strategy = trainer->strategy;
    gr_status status = strategy->seek != NULL ? strategy->seek(trainer, step, diag) : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    bool own =
        gr_job_is_asynchronous(trainer->job); /* without an end: it follows from what all do */
    return gr_trainer_load(trainer, own ? trainer->gen.own_step : step,
                           own ? UINT64_MAX : trainer->job->total_steps, &trainer->gen.loader,
                           diag);
}

gr_status gr_trainer_assign(gr_trainer *t, int shards, bool collapse, gr_diag *diag)
{
    if (t->gen.world_size > shards) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: %d workers but only %d shards: some would have nothing to do; use "
                       "fewer workers or more shards",
                       t->job->path, t->gen.world_size, shards);
    }
    t->gen.assigned_shards = shards;
    return gr_shard_plan_init(&t->gen.plan, shards, t->gen.world_size, t->gen.rank, collapse, diag);
}

gr_status gr_trainer_enter(gr_trainer *trainer, gr_comm *comm, gr_diag *diag)
{
    gr_trainer *t = trainer;
    t->gen.comm = comm;
    t->gen.timeline = gr_comm_timeline(comm);
    t->gen.rank = gr_comm_rank(comm);
    t->gen.world_size = gr_comm_size(comm);
    return t->strategy->enter(t, diag);
}

void gr_trainer_exit(gr_trainer *trainer)
{
    gr_loader_stop(trainer->gen.loader);
    if (trainer->strategy != NULL) {
        trainer->strategy->leave(trainer);
    }
    gr_shard_plan_fini(&trainer->gen.plan);
    trainer->gen.loader = NULL;
    trainer->gen.comm = NULL;
}

/* One micro batch, whose gradients nobody wants: the kernels are made when they run for the first
 * time, which takes as long as many steps, and the others would wait for a joining worker's. */
static gr_status warm_up(gr_trainer *t, gr_diag *diag)
{
    gr_loader *loader = NULL;
    gr_loaded loaded;
    float *gradients = gr_zeros(t->length * sizeof *gradients);
    t->gen.plan = (gr_shard_plan){.count = 1}; /* the first shard, whoever will have it */
    t->gen.assigned_shards = t->job->shards;
    gr_status status = gradients != NULL ? gr_trainer_load(t, 0, 1, &loader, diag)
                                         : gr_fail(diag, GR_E_NO_MEMORY, "no memory for gradients");
    if (status == GR_OK) {
        status = gr_loader_next(loader, &loaded, diag);
    }
    if (status == GR_OK) {
        const gr_batch batch = {.x = loaded.x, .labels = loaded.labels, .targets = loaded.targets};
        gr_batch_result result;
        status = gr_model_forward(t->model, t->values, &batch, &result, diag);
        if (status == GR_OK) {
            status = gr_model_backward(t->model, t->values, &batch, gradients + GR_STEP_HEADER,
                                       NULL, NULL, diag);
        }
    }
    gr_loader_stop(loader);
    free(gradients);
    t->gen.plan = (gr_shard_plan){.count = 0};
    return status;
}

gr_status gr_trainer_prepare(gr_trainer *trainer, gr_job *job, gr_diag *diag)
{
    gr_trainer made = {.job = job, .strategy = job->strategy};
    gr_status status = made.strategy->prepare != NULL ? made.strategy->prepare(&made, diag) : GR_OK;
    if (status == GR_OK) {
        status = make_model(&made, diag);
    }
    if (status == GR_OK) {
        status = make_weights(&made, diag);
    }
    if (status == GR_OK) {
        status = gr_not_finite_watch(&made, diag);
    }
    if (status == GR_OK) {
        status = warm_up(&made, diag);
    }
    if (status != GR_OK) {
        gr_trainer_fini(&made);
        return status;
    }
    *trainer = made;
    return GR_OK;
}

void gr_trainer_fini(gr_trainer *trainer)
{
    gr_trainer_exit(trainer);
    free(trainer->watches);
    free(trainer->micro);
    free(trainer->outer);
    free(trainer->values);
    gr_optimizer_destroy(trainer->optimizer);
    gr_model_destroy(trainer->model);
    gr_secret_forget(trainer->secret);
    *trainer = (gr_trainer){0};
}

float *gr_trainer_state(gr_trainer *trainer, int index, const char **name_out)
{
    bool kept = trainer->job->distribution.local_state == GR_LOCAL_KEEP;
    int states = kept ? 0 : gr_optimizer_states(&trainer->job->optimizer);
    if (index == states && trainer->outer != NULL) {
        *name_out = "outer_momentum";
        return trainer->outer;
    }
    return index < states ? gr_optimizer_state(trainer->optimizer, index, name_out) : NULL;
}

/* ---- The backward pass ----------------------------------------------------------------------- */

static void round_sum(const void *compressor, float *values, size_t count)
{
    gr_compress_sum(compressor, values, count);
}

/* The shard's gradient of a range is complete: it is compressed and added to the tree's sums. */
static void merge_range(gr_trainer *t, size_t begin, size_t end)
{
    bool compressed = t->gen.compressor.kind != GR_COMPRESSION_NONE && begin >= t->parameters;
    if (compressed) {
        gr_compress(&t->gen.compressor, t->step.shard_index,
                    t->gen.vectors[t->gen.plan.entries[t->step.shard_index].slot], begin, end);
    }
    gr_shard_merge(&t->gen.plan, t->step.shard_index, t->gen.vectors, begin, end,
                   compressed ? round_sum : NULL, &t->gen.compressor);
}

/* Takes a finished range of the micro batch's gradient while it is in the cache. */
static void take_part(gr_trainer *t, size_t begin, size_t end)
{
    float *own = t->gen.vectors[t->gen.plan.entries[t->step.shard_index].slot];
    bool last_micro = t->step.micro_index == t->job->config.micro_batches - 1;
    bool whole = gr_compression_whole(t->gen.compressor.kind);
    for (size_t at = begin; at < end && t->step.micro_index > 0; at += PIECE_VALUES) {
        size_t count = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        gr_add_f32(own + at, own + at, t->micro + at, count);
        if (last_micro && !whole) {
            merge_range(t, at, at + count);
        }
    }
    if (last_micro && begin < end && (t->step.micro_index == 0 || whole)) {
        merge_range(t, begin, end);
    }
}

/* Compression begins at the parameters. */
static void take_range(gr_trainer *t, size_t begin, size_t end)
{
    size_t middle = begin < t->parameters ? t->parameters : begin;
    middle = middle < end ? middle : end;
    take_part(t, begin, middle);
    take_part(t, middle, end);
}

/* As far as ranges must be whole buckets, up to the last one that ends before `end`. */
static size_t take_until(gr_trainer *t, size_t end)
{
    if (!gr_compression_whole(t->gen.compressor.kind)) {
        take_range(t, t->step.done, end);
        return end;
    }
    size_t done = t->step.done;
    while (t->step.cut < t->gen.cut_count && t->gen.cuts[t->step.cut] <= end) {
        take_range(t, done, t->gen.cuts[t->step.cut]);
        done = t->gen.cuts[t->step.cut++];
    }
    return done;
}

/* Elements [0, end) of this rank's sums are final, and still its own. */
static void watch_range(gr_trainer *t, size_t end)
{
    while (t->step.watched < t->watch_count && t->watches[t->step.watched].end <= end) {
        const gr_watch *watch = &t->watches[t->step.watched++];
        for (int p = 0; p < t->gen.plan.partials && !t->step.bad; p++) {
            t->step.bad =
                gr_any_not_finite(t->gen.vectors[p] + watch->begin, watch->end - watch->begin);
        }
    }
}

static void on_ready(void *ready_arg, size_t values_end)
{
    gr_trainer *t = ready_arg;
    size_t end = GR_STEP_HEADER + values_end;
    if (end <= t->step.done) {
        return;
    }
    end = take_until(t, end);
    t->step.done = end;
    if (t->step.shard_index < t->gen.plan.count - 1 ||
        t->step.micro_index < t->job->config.micro_batches - 1) {
        return;
    }
    watch_range(t, end);
    if (t->step.reduction == GR_OK) {
        t->step.reduction = t->strategy->ready(t, end);
    }
}

gr_status gr_trainer_forward(gr_trainer *t, uint64_t step, const float *values, gr_batch *batch_out,
                             gr_batch_result *result_out, gr_diag *diag)
{
    gr_loaded loaded;
    uint64_t shard = (uint64_t)(t->gen.plan.first + t->step.shard_index),
             begun = gr_timeline_now(t->gen.timeline);
    gr_status status = gr_loader_next(t->gen.loader, &loaded, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_DATA, shard, begun);
    if (loaded.step != step || loaded.shard != t->gen.plan.first + t->step.shard_index ||
        loaded.micro != t->step.micro_index) {
        return gr_fail(diag, GR_E_BUG, "the loader is not at step %llu, shard %d",
                       (unsigned long long)step + 1, t->gen.plan.first + t->step.shard_index);
    }
    *batch_out = (gr_batch){.x = loaded.x,
                            .labels = loaded.labels,
                            .targets = loaded.targets,
                            .step = step,
                            .sample_first = loaded.sample_first};
    begun = gr_timeline_now(t->gen.timeline);
    status = gr_model_forward(t->model, values, batch_out, result_out, diag);
    if (status == GR_OK) {
        gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_FORWARD, shard, begun);
    }
    return status;
}

static gr_status run_micro_batch(gr_trainer *t, uint64_t step, double *loss, double *correct,
                                 gr_diag *diag)
{
    gr_batch batch;
    gr_batch_result result;
    uint64_t shard = (uint64_t)(t->gen.plan.first + t->step.shard_index);
    gr_status status = gr_trainer_forward(t, step, t->values, &batch, &result, diag);
    if (status != GR_OK) {
        return status;
    }
    *loss += result.loss;
    *correct += (double)result.correct;
    float *own = t->gen.vectors[t->gen.plan.entries[t->step.shard_index].slot];
    memset(own, 0, GR_STEP_HEADER * sizeof *own);
    own[GR_STEP_LOSS] = (float)(*loss / (double)t->job->config.global_batch);
    own[GR_STEP_CORRECT] = (float)*correct;
    own[GR_STEP_STOP] = t->step.asks_stop ? 1.0f : 0.0f;
    own[GR_STEP_SAVE] = t->step.asks_save ? 1.0f : 0.0f;
    own[GR_STEP_RENEW] = t->step.asks_renew ? 1.0f : 0.0f;
    t->step.done = 0;
    t->step.cut = 0;
    float *gradients = t->step.micro_index > 0 ? t->micro : own;
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    status = gr_model_backward(t->model, t->values, &batch, gradients + GR_STEP_HEADER, on_ready, t,
                               diag);
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_BACKWARD, shard, begun);
    return status;
}

static gr_status run_shards(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    t->step.bad = false;
    t->step.watched = 0;
    t->step.reduction = GR_OK;
    for (t->step.shard_index = 0; t->step.shard_index < t->gen.plan.count; t->step.shard_index++) {
        double loss = 0.0, correct = 0.0;
        for (t->step.micro_index = 0; t->step.micro_index < t->job->config.micro_batches;
             t->step.micro_index++) {
            gr_status status = run_micro_batch(t, step, &loss, &correct, diag);
            if (status != GR_OK) {
                return status;
            }
        }
    }
    return GR_OK;
}

float gr_trainer_clip(const gr_trainer *t, const float *gradient)
{
    double limit = t->job->optimizer.clip_norm, norm = 0.0;
    if (limit > 0.0) {
        norm = sqrt(gr_gradient_square_sum(t->model, gradient));
    }
    return norm > limit ? (float)(limit / norm) : 1.0f;
}

void gr_trainer_begin_update(const gr_trainer *t, gr_optimizer *optimizer, uint64_t step,
                             const float *gradient)
{
    const gr_job *job = t->job;
    double rate = gr_learning_rate(&job->optimizer, step, (double)job->steps_per_epoch,
                                   job->total_steps, job->config.global_batch);
    float factor = gradient != NULL ? gr_trainer_clip(t, gradient) : 1.0f;
    gr_optimizer_begin(optimizer, step, rate, factor);
}

/* ---- A step ---------------------------------------------------------------------------------- */

bool gr_trainer_stops(const gr_trainer *t, const float *sum)
{
    return sum[GR_STEP_STOP] > (t->job->run.all_stop ? (float)t->job->shards - 0.5f : 0.0f);
}

void gr_trainer_take_header(gr_trainer *t, gr_meter *now)
{
    const float *sum = t->gen.vectors[0];
    int64_t parts = (int64_t)t->job->shards * t->job->config.micro_batches;
    gr_model_update_statistics(t->model, t->values, sum + GR_STEP_HEADER,
                               (float)(1.0 / (double)parts));
    t->step.stop = gr_trainer_stops(t, sum);
    t->step.save = sum[GR_STEP_SAVE] > 0.0f;
    t->step.renew = sum[GR_STEP_RENEW] > 0.0f;
    now->loss = (double)sum[GR_STEP_LOSS];
    now->correct = (double)sum[GR_STEP_CORRECT];
    now->steps = 1;
    now->samples = t->job->config.global_batch;
}

static gr_status run_step(gr_trainer *t, uint64_t step, gr_meter *now, gr_diag *diag)
{
    int64_t key = INT64_MAX;
    uint64_t own = t->strategy->begin(t, step);
    gr_status status = run_shards(t, own, diag);
    if (status == GR_OK && t->step.bad) {
        status = gr_not_finite_find(t, t->values, own, &key, diag);
    }
    if (status == GR_OK) {
        status = t->strategy->wait(t, diag);
    }
    return status == GR_OK ? t->strategy->update(t, step, key, now, diag) : status;
}

gr_status gr_trainer_step(gr_trainer *trainer, uint64_t step, gr_meter *meter, gr_diag *diag)
{
    gr_trainer *t = trainer;
    int64_t begin_ns = gr_now_ns(), wait_ns = t->wait_ns;
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    gr_meter now = {0};
    t->reached = step + 1;
    gr_status status = t->strategy->step != NULL ? t->strategy->step(t, step, &now, diag)
                                                 : run_step(t, step, &now, diag);
    if (status != GR_OK) {
        return status;
    }
    now.step_ns = gr_now_ns() - begin_ns;
    now.wait_ns = t->wait_ns - wait_ns;
    gr_meter_add(meter, &now);
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_STEP, step + 1, begun);
    return GR_OK;
}
