/* SPDX-License-Identifier: Apache-2.0 */
#include "train/step.h"

#include "base/clock.h"
#include "base/fail.h"
#include "coll/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_VALUES = 4096, /* 16 KiB: merged, checked and updated while it is in the first cache */
    ENDS_MAX = 4096,     /* layers of a model, as far as buckets are concerned */
};

gr_status gr_trainer_comm_failed(const gr_comm *comm, gr_status status, const char *what,
                                 gr_diag *diag)
{
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
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->micro_batch,
                              .loss = (gr_loss_kind)job->config.loss,
                              .gradient_scale = (float)(1.0 / (double)job->config.global_batch),
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    gr_status status = gr_model_create(&config, &t->model, diag);
    if (status != GR_OK) {
        return status;
    }
    t->length = GR_STEP_HEAD + gr_model_values(t->model);
    t->parameters = t->length;
    for (int i = gr_model_tensors(t->model) - 1; i >= 0; i--) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        t->parameters = tensor->statistic ? t->parameters : GR_STEP_HEAD + tensor->offset;
    }
    return gr_optimizer_create(&job->optimizer, t->model, &t->optimizer, diag);
}

static gr_status make_weights(gr_trainer *t, gr_diag *diag)
{
    size_t aligned = (t->length * sizeof(float) + 63) / 64 * 64;
    t->values = aligned_alloc(64, aligned);
    t->micro = t->job->config.micro_batches > 1 ? aligned_alloc(64, aligned) : NULL;
    if (t->values == NULL || (t->job->config.micro_batches > 1 && t->micro == NULL)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the weights, %zu bytes", aligned);
    }
    memset(t->values, 0, aligned);
    if (t->micro != NULL) {
        memset(t->micro, 0, aligned);
    }
    gr_model_init_weights(t->model, t->values);
    return GR_OK;
}

static gr_status make_vectors(gr_trainer *t, gr_diag *diag)
{
    size_t bytes = t->length * sizeof(float);
    t->vectors = calloc((size_t)t->plan.slots, sizeof *t->vectors);
    for (int i = 0; i < t->plan.slots && t->vectors != NULL; i++) {
        void *memory = NULL;
        gr_status status = gr_alloc(t->comm, bytes, &memory);
        if (status != GR_OK) {
            return gr_fail(diag, status, "no memory for gradient vector %d of %d, %zu bytes each",
                           i + 1, t->plan.slots, bytes);
        }
        t->vectors[i] = memory;
    }
    return t->vectors != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a trainer");
}

/* Where the backward pass finishes a layer, in elements of the step vector. */
static int layer_ends(const gr_trainer *t, size_t *ends_out)
{
    int count = 0;
    const gr_tensor_info *last = NULL;
    for (int i = 0; i < gr_model_tensors(t->model); i++) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        bool new_layer = last != NULL && !last->statistic && tensor->layer != last->layer;
        if (new_layer && count < ENDS_MAX - 1) {
            ends_out[count++] = GR_STEP_HEAD + tensor->offset;
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
    for (int i = 0; i < t->cut_count; i++) {
        size_t size = t->cuts[i] - (i > 0 ? t->cuts[i - 1] : 0);
        largest = size > largest ? size : largest;
    }
    return gr_compressor_init(&t->compressor, (gr_compression)d->compression, d->compression_ratio,
                              t->parameters, t->length, t->plan.count, largest, diag);
}

static gr_status make_buckets(gr_trainer *t, gr_diag *diag)
{
    size_t *ends = calloc(ENDS_MAX, sizeof *ends);
    if (ends == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to lay out the buckets");
    }
    const gr_distribution_config *d = &t->job->distribution;
    gr_buckets_config config = {.comm = t->comm,
                                .shards = t->job->shards,
                                .exact = d->exact,
                                .partials = t->vectors,
                                .partial_count = t->plan.partials,
                                .ends = ends,
                                .end_count = layer_ends(t, ends),
                                .first_values = (size_t)d->bucket_bytes_first / sizeof(float),
                                .values = (size_t)d->bucket_bytes / sizeof(float),
                                .compression = (gr_compression)d->compression,
                                .plain = t->parameters};
    t->cut_count = gr_buckets_cut_all(&config, t->cuts);
    gr_status status = make_compressor(t, diag);
    if (status == GR_OK && t->world_size > 1) {
        status = gr_buckets_init(&t->buckets, &config, diag);
    }
    free(ends);
    return status;
}

/* All buckets in flight at once, before the first step: whatever operations will ever need, they
 * have afterwards. The first round finds out how much that is, the second gives it to each. */
static gr_status warm_up(gr_trainer *t, gr_diag *diag)
{
    gr_status status = GR_OK;
    for (int round = 0; round < 2 && t->world_size > 1 && status == GR_OK; round++) {
        gr_buckets_begin(&t->buckets);
        status = gr_buckets_ready(&t->buckets, t->length);
        for (int i = 0; i < t->buckets.count && status == GR_OK; i++) {
            status = gr_buckets_wait(&t->buckets, i);
        }
        gr_buckets_drain(&t->buckets);
    }
    t->buckets.wait_ns = 0;
    return status == GR_OK
               ? GR_OK
               : gr_trainer_comm_failed(t->comm, status, "the workers could not meet", diag);
}

gr_status gr_trainer_load(gr_trainer *t, uint64_t first_step, uint64_t total_steps,
                          gr_loader **loader_out, gr_diag *diag)
{
    int64_t batches = (int64_t)t->plan.count * t->job->config.micro_batches * 2;
    gr_loader_config config = {.dataset = t->job->dataset,
                               .seed = (uint64_t)t->job->config.seed,
                               .global_batch = t->job->config.global_batch,
                               .shards = t->job->shards,
                               .shard_first = t->plan.first,
                               .shard_count = t->plan.count,
                               .first_step = first_step,
                               .total_steps = total_steps,
                               .micro_batches = (int)t->job->config.micro_batches,
                               .depth =
                                   batches > GR_READ_AHEAD_MAX ? GR_READ_AHEAD_MAX : (int)batches,
                               .cpu = -1};
    return gr_loader_start(&config, loader_out, diag);
}

gr_status gr_trainer_seek(gr_trainer *trainer, uint64_t step, gr_diag *diag)
{
    gr_loader_stop(trainer->loader);
    trainer->loader = NULL;
    return gr_trainer_load(trainer, step, trainer->job->total_steps, &trainer->loader, diag);
}

gr_status gr_trainer_enter(gr_trainer *trainer, gr_comm *comm, gr_diag *diag)
{
    gr_trainer *t = trainer;
    t->comm = comm;
    t->timeline = gr_comm_timeline(comm);
    t->rank = gr_comm_rank(comm);
    t->world_size = gr_comm_size(comm);
    if (t->world_size > t->job->shards) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: %d workers but only %d shards: some would have nothing to do; use "
                       "fewer workers or more shards",
                       t->job->path, t->world_size, t->job->shards);
    }
    gr_status status = gr_shard_plan_init(&t->plan, t->job->shards, t->world_size, t->rank,
                                          !t->job->distribution.exact, diag);
    if (status == GR_OK) {
        status = make_vectors(t, diag);
    }
    if (status == GR_OK) {
        status = make_buckets(t, diag);
    }
    return status == GR_OK ? warm_up(t, diag) : status;
}

void gr_trainer_exit(gr_trainer *trainer)
{
    gr_loader_stop(trainer->loader);
    gr_buckets_fini(&trainer->buckets);
    gr_compressor_fini(&trainer->compressor);
    for (int i = 0; trainer->vectors != NULL && i < trainer->plan.slots; i++) {
        if (trainer->vectors[i] != NULL) {
            gr_free(trainer->comm, trainer->vectors[i]);
        }
    }
    free(trainer->vectors);
    gr_shard_plan_fini(&trainer->plan);
    trainer->loader = NULL;
    trainer->vectors = NULL;
    trainer->comm = NULL;
}

static void nobody_wants(void *arg, size_t end)
{
    (void)arg;
    (void)end;
}

/* One micro batch, whose gradients nobody wants: the kernels are made when they run for the first
 * time, which takes as long as many steps, and the others would wait for a newcomer's. */
static gr_status rehearse(gr_trainer *t, gr_diag *diag)
{
    gr_loader *loader = NULL;
    gr_loaded loaded;
    float *gradients = aligned_alloc(64, (t->length * sizeof *gradients + 63) / 64 * 64);
    t->plan = (gr_shard_plan){.count = 1}; /* the first shard, whoever will have it */
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
            status = gr_model_backward(t->model, t->values, &batch, gradients + GR_STEP_HEAD,
                                       nobody_wants, NULL, diag);
        }
    }
    gr_loader_stop(loader);
    free(gradients);
    t->plan = (gr_shard_plan){.count = 0};
    return status;
}

gr_status gr_trainer_prepare(gr_trainer *trainer, gr_job *job, gr_diag *diag)
{
    gr_trainer made = {.job = job};
    gr_status status = make_model(&made, diag);
    if (status == GR_OK) {
        status = make_weights(&made, diag);
    }
    if (status == GR_OK) {
        status = gr_not_finite_watch(&made, diag);
    }
    if (status == GR_OK) {
        status = rehearse(&made, diag);
    }
    if (status != GR_OK) {
        gr_trainer_fini(&made);
        return status;
    }
    *trainer = made;
    return GR_OK;
}

gr_status gr_trainer_init(gr_trainer *trainer, gr_job *job, gr_comm *comm, gr_diag *diag)
{
    gr_trainer made;
    gr_status status = gr_trainer_prepare(&made, job, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_trainer_enter(&made, comm, diag);
    if (status == GR_OK) {
        status = gr_trainer_seek(&made, 0, diag);
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
    free(trainer->values);
    gr_optimizer_destroy(trainer->optimizer);
    gr_model_destroy(trainer->model);
    *trainer = (gr_trainer){0};
}

/* ---- The backward pass ----------------------------------------------------------------------- */

static void round_sum(const void *compressor, float *values, size_t count)
{
    gr_compress_sum(compressor, values, count);
}

/* The shard's gradient of a range is complete: it is compressed and added to the tree's sums. */
static void merge_range(gr_trainer *t, size_t begin, size_t end)
{
    bool compressed = t->compressor.kind != GR_COMPRESSION_NONE && begin >= t->parameters;
    if (compressed) {
        gr_compress(&t->compressor, t->turn, t->vectors[t->plan.turns[t->turn].slot], begin, end);
    }
    gr_shard_merge(&t->plan, t->turn, t->vectors, begin, end, compressed ? round_sum : NULL,
                   &t->compressor);
}

/* Takes a finished range of the micro batch's gradient while it is in the cache. */
static void take_part(gr_trainer *t, size_t begin, size_t end)
{
    float *own = t->vectors[t->plan.turns[t->turn].slot];
    bool last_micro = t->micro_index == t->job->config.micro_batches - 1;
    bool whole = gr_compression_whole(t->compressor.kind);
    for (size_t at = begin; at < end && t->micro_index > 0; at += PIECE_VALUES) {
        size_t count = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
        gr_add_f32(own + at, own + at, t->micro + at, count);
        if (last_micro && !whole) {
            merge_range(t, at, at + count);
        }
    }
    if (last_micro && begin < end && (t->micro_index == 0 || whole)) {
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
    if (!gr_compression_whole(t->compressor.kind)) {
        take_range(t, t->done, end);
        return end;
    }
    size_t done = t->done;
    while (t->cut < t->cut_count && t->cuts[t->cut] <= end) {
        take_range(t, done, t->cuts[t->cut]);
        done = t->cuts[t->cut++];
    }
    return done;
}

/* Elements [0, end) of this rank's sums are final, and still its own. */
static void watch_range(gr_trainer *t, size_t end)
{
    while (t->watched < t->watch_count && t->watches[t->watched].end <= end) {
        const gr_watch *watch = &t->watches[t->watched++];
        for (int p = 0; p < t->plan.partials && !t->bad; p++) {
            t->bad = gr_any_not_finite(t->vectors[p] + watch->begin, watch->end - watch->begin);
        }
    }
}

static void on_ready(void *ready_arg, size_t values_end)
{
    gr_trainer *t = ready_arg;
    size_t end = GR_STEP_HEAD + values_end;
    if (end <= t->done) {
        return;
    }
    end = take_until(t, end);
    t->done = end;
    if (t->turn < t->plan.count - 1 || t->micro_index < t->job->config.micro_batches - 1) {
        return;
    }
    watch_range(t, end);
    if (t->world_size > 1 && t->job->distribution.overlap && t->reduction == GR_OK) {
        t->reduction = gr_buckets_ready(&t->buckets, end);
    }
}

static gr_status run_micro_batch(gr_trainer *t, uint64_t step, double *loss, double *correct,
                                 gr_diag *diag)
{
    gr_loaded loaded;
    uint64_t shard = (uint64_t)(t->plan.first + t->turn), begun = gr_timeline_now(t->timeline);
    gr_status status = gr_loader_next(t->loader, &loaded, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_timeline_phase_over(t->timeline, GR_TIMELINE_DATA, shard, begun);
    if (loaded.step != step || loaded.shard != t->plan.first + t->turn ||
        loaded.micro != t->micro_index) {
        return gr_fail(diag, GR_E_BUG, "the loader is not at step %llu, shard %d",
                       (unsigned long long)step + 1, t->plan.first + t->turn);
    }
    gr_batch batch = {.x = loaded.x,
                      .labels = loaded.labels,
                      .targets = loaded.targets,
                      .step = step,
                      .sample_first = loaded.sample_first};
    gr_batch_result result;
    begun = gr_timeline_now(t->timeline);
    status = gr_model_forward(t->model, t->values, &batch, &result, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_timeline_phase_over(t->timeline, GR_TIMELINE_FORWARD, shard, begun);
    *loss += result.loss;
    *correct += (double)result.correct;
    float *own = t->vectors[t->plan.turns[t->turn].slot];
    memset(own, 0, GR_STEP_HEAD * sizeof *own);
    own[GR_STEP_LOSS] = (float)(*loss / (double)t->job->config.global_batch);
    own[GR_STEP_CORRECT] = (float)*correct;
    own[GR_STEP_STOP] = t->says_stop ? 1.0f : 0.0f;
    own[GR_STEP_SAVE] = t->says_save ? 1.0f : 0.0f;
    own[GR_STEP_RENEW] = t->says_renew ? 1.0f : 0.0f;
    t->done = 0;
    t->cut = 0;
    float *gradients = t->micro_index > 0 ? t->micro : own;
    begun = gr_timeline_now(t->timeline);
    status =
        gr_model_backward(t->model, t->values, &batch, gradients + GR_STEP_HEAD, on_ready, t, diag);
    gr_timeline_phase_over(t->timeline, GR_TIMELINE_BACKWARD, shard, begun);
    return status;
}

static gr_status run_shards(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    t->bad = false;
    t->watched = 0;
    t->reduction = GR_OK;
    for (t->turn = 0; t->turn < t->plan.count; t->turn++) {
        double loss = 0.0, correct = 0.0;
        for (t->micro_index = 0; t->micro_index < t->job->config.micro_batches; t->micro_index++) {
            gr_status status = run_micro_batch(t, step, &loss, &correct, diag);
            if (status != GR_OK) {
                return status;
            }
        }
    }
    return GR_OK;
}

/* ---- The update ------------------------------------------------------------------------------ */

static size_t first_not_finite(const float *sum, size_t begin, size_t end)
{
    while (begin < end && isfinite(sum[begin])) {
        begin++;
    }
    return begin;
}

static void begin_update(gr_trainer *t, uint64_t step, float gradient_factor)
{
    const gr_job *job = t->job;
    double rate = gr_learning_rate(&job->optimizer, step, (double)job->steps_per_epoch,
                                   job->total_steps, job->config.global_batch);
    gr_optimizer_begin(t->optimizer, step, rate, gradient_factor);
}

/* Elements of the step vector. False: a gradient is not finite. */
static bool update_range(gr_trainer *t, size_t begin, size_t end)
{
    size_t from = begin < GR_STEP_HEAD ? GR_STEP_HEAD : begin;
    return from >= end || gr_optimizer_update(t->optimizer, t->values, t->vectors[0] + GR_STEP_HEAD,
                                              from - GR_STEP_HEAD, end - GR_STEP_HEAD);
}

static bool is_finite(const gr_trainer *t, size_t begin, size_t end)
{
    return begin >= end || !gr_any_not_finite(t->vectors[0] + begin, end - begin);
}

/* Clipping needs the norm of the whole gradient, so everything must have come. */
static void update_clipped(gr_trainer *t, uint64_t step)
{
    gr_saver_settle(t->saver);
    double square = gr_gradient_square_sum(t->model, t->vectors[0] + GR_STEP_HEAD);
    double norm = sqrt(square), limit = t->job->optimizer.clip_norm;
    begin_update(t, step, norm > limit ? (float)(limit / norm) : 1.0f);
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
            return first_not_finite(t->vectors[0], at, stop);
        }
    }
    return t->length;
}

/* All buckets are summed before the first weight changes: a step that fails since a peer died has
 * changed nothing here, and can be run again. */
static gr_status reduce(gr_trainer *t, gr_diag *diag)
{
    gr_status status = t->reduction;
    if (status == GR_OK && t->world_size > 1 && !t->job->distribution.overlap) {
        status = gr_buckets_ready(&t->buckets, t->length);
    }
    for (int i = 0; i < t->buckets.count && status == GR_OK; i++) {
        uint64_t begun = gr_timeline_now(t->timeline);
        status = gr_buckets_wait(&t->buckets, i);
        gr_timeline_phase_over(t->timeline, GR_TIMELINE_WAIT, (uint64_t)i, begun);
    }
    gr_buckets_drain(&t->buckets);
    return status == GR_OK ? GR_OK
                           : gr_trainer_comm_failed(t->comm, status,
                                                    "the gradients could not be reduced", diag);
}

/* A piece is updated before it is known to be finite. No harm is done: the step
 * fails, nobody uses the weights again, and a rank that knew of a NaN of its own has looked for the
 * place with the old weights (`key`). */
static gr_status update(gr_trainer *t, uint64_t step, int64_t key, gr_diag *diag)
{
    bool clip = t->job->optimizer.clip_norm > 0.0;
    uint64_t begun = gr_timeline_now(t->timeline);
    begin_update(t, step, 1.0f);
    size_t bad = take_sum(t, !clip && !t->bad);
    if (bad < t->length) {
        return gr_not_finite_fail(t, step, key, t->vectors[0], bad, diag);
    }
    if (clip) {
        update_clipped(t, step);
    }
    gr_timeline_phase_over(t->timeline, GR_TIMELINE_UPDATE, 0, begun);
    return GR_OK;
}

gr_status gr_trainer_step(gr_trainer *trainer, uint64_t step, gr_meter *meter, gr_diag *diag)
{
    gr_trainer *t = trainer;
    int64_t begin_ns = gr_now_ns(), wait_ns = t->buckets.wait_ns;
    uint64_t begun = gr_timeline_now(t->timeline);
    gr_buckets_begin(&t->buckets);
    gr_status status = run_shards(t, step, diag);
    int64_t key = INT64_MAX;
    if (status == GR_OK && t->bad) {
        status = gr_not_finite_find(t, step, &key, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    status = reduce(t, diag);
    if (status == GR_OK) {
        status = update(t, step, key, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    const float *sum = t->vectors[0];
    int64_t parts = (int64_t)t->job->shards * t->job->config.micro_batches;
    gr_model_update_statistics(t->model, t->values, sum + GR_STEP_HEAD,
                               (float)(1.0 / (double)parts));
    t->stop = sum[GR_STEP_STOP] > 0.0f;
    t->save = sum[GR_STEP_SAVE] > 0.0f;
    t->renew = sum[GR_STEP_RENEW] > 0.0f;
    gr_meter now = {.loss = (double)sum[GR_STEP_LOSS],
                    .correct = (double)sum[GR_STEP_CORRECT],
                    .steps = 1,
                    .samples = t->job->config.global_batch,
                    .step_ns = gr_now_ns() - begin_ns,
                    .wait_ns = t->buckets.wait_ns - wait_ns};
    gr_meter_add(meter, &now);
    gr_timeline_phase_over(t->timeline, GR_TIMELINE_STEP, step + 1, begun);
    return GR_OK;
}
