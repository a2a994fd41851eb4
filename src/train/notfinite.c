/* SPDX-License-Identifier: Apache-2.0 */
#include "train/strategy/strategy.h"

#include "base/fail.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* A place as a number: [phase][order of the layer][shard]. Within a phase the layers are
 * numbered in the order in which they run: the backward pass runs from the last to the first. */
enum { SHARD_BITS = 24, LAYER_BITS = 24, LAYER_MASK = (1 << LAYER_BITS) - 1 };
enum { PHASE_FORWARD = 0, PHASE_BACKWARD = 1, PHASE_UNKNOWN = 2 };

static int64_t make_key(int phase, int layer, int shard)
{
    int64_t order = phase == PHASE_BACKWARD ? LAYER_MASK - layer : layer;
    return ((int64_t)phase << (LAYER_BITS + SHARD_BITS)) | (order << SHARD_BITS) | shard;
}

static int key_shard(int64_t key)
{
    return (int)(key & ((1 << SHARD_BITS) - 1));
}

static int key_phase(int64_t key)
{
    return (int)(key >> (LAYER_BITS + SHARD_BITS));
}

static int key_layer(int64_t key)
{
    int order = (int)(key >> SHARD_BITS) & LAYER_MASK;
    return key_phase(key) == PHASE_BACKWARD ? LAYER_MASK - order : order;
}

enum { WATCHED_VALUES = 16384 /* larger tensors are not watched */ };

gr_status gr_not_finite_watch(gr_trainer *trainer, gr_diag *diag)
{
    gr_trainer *t = trainer;
    int tensors = gr_model_tensors(t->model);
    t->watches = calloc((size_t)tensors + 1, sizeof *t->watches);
    if (t->watches == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to watch %d tensors", tensors);
    }
    t->watches[t->watch_count++] = (gr_watch){0, GR_STEP_HEADER};
    for (int i = 0; i < tensors; i++) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        size_t begin = GR_STEP_HEADER + tensor->offset;
        if (tensor->count <= WATCHED_VALUES) {
            t->watches[t->watch_count++] = (gr_watch){begin, begin + tensor->count};
        }
    }
    return GR_OK;
}

static gr_status find_in_batch(gr_trainer *t, const float *values, const gr_loaded *loaded,
                               float *scratch, int64_t *key, gr_diag *diag)
{
    gr_batch batch = {.x = loaded->x,
                      .labels = loaded->labels,
                      .targets = loaded->targets,
                      .step = loaded->step,
                      .sample_first = loaded->sample_first};
    int layer = -1;
    bool backward = false;
    gr_status status =
        gr_model_find_not_finite(t->model, values, &batch, scratch, &layer, &backward, diag);
    if (status == GR_OK && layer >= 0) {
        int64_t found = make_key(backward ? PHASE_BACKWARD : PHASE_FORWARD, layer, loaded->shard);
        *key = found < *key ? found : *key;
    }
    return status;
}

int64_t gr_not_finite_unknown(int shard)
{
    return make_key(PHASE_UNKNOWN, 0, shard);
}

gr_status gr_not_finite_find(gr_trainer *trainer, const float *values, uint64_t step,
                             int64_t *key_out, gr_diag *diag)
{
    gr_trainer *t = trainer;
    /* The gradient vectors are on their way to the others; this one is for the search alone. */
    float *scratch = gr_zeros(gr_model_values(t->model) * sizeof *scratch);
    if (scratch == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to look for the NaN of step %llu",
                       (unsigned long long)step + 1);
    }
    gr_loader *loader = NULL;
    gr_status status = gr_trainer_load(t, step, step + 1, &loader, diag);
    int64_t key = gr_not_finite_unknown(t->gen.plan.first);
    int64_t batches = (int64_t)t->gen.plan.count * t->job->config.micro_batches;
    for (int64_t i = 0; i < batches && status == GR_OK; i++) {
        gr_loaded loaded;
        status = gr_loader_next(loader, &loaded, diag);
        if (status == GR_OK) {
            status = find_in_batch(t, values, &loaded, scratch, &key, diag);
        }
    }
    gr_loader_stop(loader);
    free(scratch);
    if (status == GR_OK) {
        *key_out = key;
    }
    return status;
}

/* The tensor that an element of the step vector belongs to. */
static const char *tensor_at(const gr_trainer *t, size_t at)
{
    for (int i = 0; at >= GR_STEP_HEADER && i < gr_model_tensors(t->model); i++) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        if (at - GR_STEP_HEADER - tensor->offset < tensor->count) {
            return tensor->name;
        }
    }
    return "the loss";
}

static int shard_rank(const gr_trainer *t, int shard)
{
    for (int rank = 0; rank < t->gen.world_size; rank++) {
        int first, count;
        gr_shard_range(t->job->shards, t->gen.world_size, rank, &first, &count);
        if (shard >= first && shard < first + count) {
            return rank;
        }
    }
    return 0;
}

gr_status gr_not_finite_agree(gr_trainer *trainer, int64_t *key, gr_diag *diag)
{
    gr_trainer *t = trainer;
    gr_status status =
        t->gen.world_size > 1 ? gr_allreduce(t->gen.comm, key, 1, GR_I64, GR_MIN) : GR_OK;
    return gr_trainer_comm_status(t->gen.comm, status, "the ranks could not agree on a NaN", diag);
}

/* No rank has seen it in what it watches: a large tensor's sum overflowed, in a shard or between
 * shards. A part of the weights is new by now, so only what the backward pass says is believed;
 * those that the bad gradient has spoiled are set to zero, or the forward pass would see them. */
static gr_status look_again(gr_trainer *t, uint64_t step, int64_t *key, gr_diag *diag)
{
    gr_saver_settle(t->saver);
    for (size_t i = 0; i < gr_model_values(t->model); i++) {
        t->values[i] = isfinite(t->values[i]) ? t->values[i] : 0.0f;
    }
    gr_status status = gr_not_finite_find(t, t->values, step, key, diag);
    if (status != GR_OK) {
        return status;
    }
    *key = key_phase(*key) == PHASE_BACKWARD ? *key : INT64_MAX;
    return gr_not_finite_agree(t, key, diag);
}

gr_status gr_not_finite_fail(gr_trainer *trainer, uint64_t step, int64_t key, const float *sum,
                             size_t at, gr_diag *diag)
{
    gr_trainer *t = trainer;
    char remedy[96], what[128];
    unsigned long long number = (unsigned long long)step + 1;
    double rate = t->job->optimizer.learning_rate;
    bool unclipped =
        t->job->optimizer.clip_norm == 0.0 && !t->strategy->needs_servers; /* which do not clip */
    snprintf(remedy, sizeof remedy, "lower the learning rate (%g)%s", rate,
             unclipped ? " or clip gradients (clip_norm)" : "");
    const char *became = isnan(sum[at]) ? "NaN" : "infinite";
    if (at < GR_STEP_HEADER) {
        snprintf(what, sizeof what, "the loss became %s", became);
    } else {
        snprintf(what, sizeof what, "the gradient of %.80s became %s", tensor_at(t, at), became);
    }
    gr_status status = gr_not_finite_agree(t, &key, diag);
    if (status == GR_OK && key == INT64_MAX) {
        status = look_again(t, step, &key, diag);
    }
    if (gr_fault_of_peer(status)) {
        /* No other generation repeats the step: a part of the weights may be new by now. */
        return gr_fail(diag, GR_E_NOT_FINITE,
                       "step %llu: %s, and a rank was lost before it was known where first; %s",
                       number, what, remedy);
    }
    if (status != GR_OK) {
        return status;
    }
    if (key == INT64_MAX) {
        return gr_fail(diag, GR_E_NOT_FINITE,
                       "step %llu: %s when the shards' finite ones were added up; %s", number, what,
                       remedy);
    }
    int shard = key_shard(key), rank = shard_rank(t, shard), phase = key_phase(key);
    if (phase == PHASE_UNKNOWN) {
        return gr_fail_peer(diag, GR_E_NOT_FINITE, rank, "step %llu: %s on rank %d; %s", number,
                            what, rank, remedy);
    }
    return gr_fail_peer(diag, GR_E_NOT_FINITE, rank,
                        "step %llu: %s: first seen in the %s of layer \"%s\" on rank %d (shard "
                        "%d); %s",
                        number, what, phase == PHASE_FORWARD ? "output" : "gradient",
                        gr_model_spec_layer(t->job->spec, key_layer(key))->name, rank, shard,
                        remedy);
}
