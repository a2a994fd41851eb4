/* SPDX-License-Identifier: Apache-2.0 */
#include "data/loader.h"

#include "base/fail.h"
#include "base/thread.h"
#include "data/sampler.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LOADER_DEPTH_MAX = 1024 };

typedef struct loader_slot {
    gr_loaded loaded;
    float *x;
    int32_t *labels;
    float *targets;
} loader_slot;

struct gr_loader {
    gr_loader_config config;
    uint64_t steps_per_epoch;
    int shard_batch, micro_batch;

    /* Of the thread. */
    pthread_t thread;
    int64_t *numbers;   /* micro_batch */
    gr_sampler sampler; /* of the epoch that is being read */

    /* A ring of slots: filled[0 .. count) wait for the caller, the one before belongs to the caller
     * from its gr_loader_next to the next, the thread fills the one behind. */
    loader_slot *slots;
    int slot_count;
    float *memory_x; /* of all slots */
    int32_t *memory_labels;
    float *memory_targets;

    /* Guards all below; held for a few instructions only, never across a call. */
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    int first, count; /* slots that wait, in ring order */
    bool lent;        /* the caller holds slot first - 1 */
    bool stop, done;
    gr_status failed;
    gr_diag failed_diag;
};

static gr_status fill_slot(gr_loader *loader, loader_slot *slot, uint64_t step, int shard,
                           int micro, gr_diag *diag)
{
    const gr_loader_config *config = &loader->config;
    uint64_t in_epoch = step % loader->steps_per_epoch;
    uint64_t sample_first = (uint64_t)shard * (uint64_t)loader->shard_batch +
                            (uint64_t)micro * (uint64_t)loader->micro_batch;
    uint64_t position = in_epoch * (uint64_t)config->global_batch + sample_first;
    uint64_t epoch = step / loader->steps_per_epoch;
    if (epoch != loader->sampler.epoch) {
        gr_sampler_init(&loader->sampler, config->seed, epoch, loader->sampler.count);
    }
    for (int i = 0; i < loader->micro_batch; i++) {
        loader->numbers[i] = (int64_t)gr_sampler_at(&loader->sampler, position + (uint64_t)i);
    }
    slot->loaded = (gr_loaded){.x = slot->x,
                               .labels = slot->labels,
                               .targets = slot->targets,
                               .count = loader->micro_batch,
                               .step = step,
                               .shard = shard,
                               .micro = micro,
                               .sample_first = sample_first};
    return gr_dataset_read(config->dataset, GR_SPLIT_TRAIN, loader->numbers, loader->micro_batch,
                           slot->x, slot->labels, slot->targets, diag);
}

/* Waits until a slot is free; NULL: stop. */
static loader_slot *wait_free(gr_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop && loader->count + loader->lent == loader->slot_count) {
        pthread_cond_wait(&loader->freed, &loader->lock);
    }
    loader_slot *slot = &loader->slots[(loader->first + loader->count) % loader->slot_count];
    bool stop = loader->stop;
    pthread_mutex_unlock(&loader->lock);
    return stop ? NULL : slot;
}

static void publish(gr_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->count++;
    pthread_cond_signal(&loader->filled);
    pthread_mutex_unlock(&loader->lock);
}

static void finish(gr_loader *loader, gr_status status, const gr_diag *diag)
{
    pthread_mutex_lock(&loader->lock);
    loader->done = true;
    loader->failed = status;
    loader->failed_diag = *diag;
    pthread_cond_signal(&loader->filled);
    pthread_mutex_unlock(&loader->lock);
}

static void *loader_main(void *arg)
{
    gr_loader *loader = arg;
    const gr_loader_config *config = &loader->config;
    gr_diag diag;
    gr_diag_clear(&diag);
    gr_status status = GR_OK;
    for (uint64_t step = config->first_step; step < config->total_steps; step++) {
        for (int s = 0; s < config->shard_count; s++) {
            for (int micro = 0; micro < config->micro_batches; micro++) {
                loader_slot *slot = wait_free(loader);
                if (slot == NULL) {
                    return NULL;
                }
                status = fill_slot(loader, slot, step, config->shard_first + s, micro, &diag);
                if (status != GR_OK) {
                    goto end;
                }
                publish(loader);
            }
        }
    }
end:
    finish(loader, status, &diag);
    return NULL;
}

static gr_status check_config(const gr_loader_config *config, gr_diag *diag)
{
    int64_t train = gr_dataset_count(config->dataset, GR_SPLIT_TRAIN);
    if (config->shards < 1 || config->micro_batches < 1 || config->global_batch < 1 ||
        config->global_batch > INT32_MAX ||
        config->global_batch % ((int64_t)config->shards * config->micro_batches) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "a global batch of %" PRId64 " cannot be cut into %d shards of %d micro "
                       "batches",
                       config->global_batch, config->shards, config->micro_batches);
    }
    if (config->shard_first < 0 || config->shard_count < 0 ||
        config->shard_first + config->shard_count > config->shards) {
        return gr_fail(diag, GR_E_INVALID, "shards %d to %d are not all below %d",
                       config->shard_first, config->shard_first + config->shard_count - 1,
                       config->shards);
    }
    if (config->depth < 1 || config->depth > LOADER_DEPTH_MAX) {
        return gr_fail(diag, GR_E_INVALID, "%d batches cannot be read ahead; 1 to %d can",
                       config->depth, LOADER_DEPTH_MAX);
    }
    if (train < config->global_batch) {
        return gr_fail(diag, GR_E_INVALID,
                       "a global batch of %" PRId64 " samples cannot be taken from %" PRId64
                       " training samples",
                       config->global_batch, train);
    }
    return GR_OK;
}

static void loader_free(gr_loader *loader)
{
    free(loader->memory_targets);
    free(loader->memory_labels);
    free(loader->memory_x);
    free(loader->numbers);
    free(loader->slots);
    free(loader);
}

/* Memory for all batches, once. One slot more than read ahead: the one that the caller holds. */
static gr_status loader_memory(gr_loader *loader, gr_diag *diag)
{
    const gr_dataset *dataset = loader->config.dataset;
    size_t values = (size_t)gr_dataset_sample_values(dataset);
    size_t micro = (size_t)loader->micro_batch;
    bool classes = gr_dataset_classes(dataset) > 0;
    loader->slot_count = loader->config.depth + 1;
    size_t slots = (size_t)loader->slot_count;
    size_t x_count = (micro * values + 15) / 16 * 16; /* each batch on its own cache lines */
    loader->slots = calloc(slots, sizeof *loader->slots);
    loader->numbers = calloc(micro, sizeof *loader->numbers);
    if (x_count <= SIZE_MAX / sizeof(float) / slots) {
        loader->memory_x = aligned_alloc(64, slots * x_count * sizeof(float));
    }
    if (classes) {
        loader->memory_labels = calloc(slots * micro, sizeof *loader->memory_labels);
    } else {
        loader->memory_targets = calloc(slots * micro, sizeof *loader->memory_targets);
    }
    if (loader->slots == NULL || loader->numbers == NULL || loader->memory_x == NULL ||
        (classes ? (void *)loader->memory_labels : (void *)loader->memory_targets) == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "no memory to read %d batches of %zu samples of %zu values ahead",
                       loader->config.depth, micro, values);
    }
    for (size_t i = 0; i < slots; i++) {
        loader->slots[i].x = loader->memory_x + i * x_count;
        loader->slots[i].labels = classes ? loader->memory_labels + i * micro : NULL;
        loader->slots[i].targets = classes ? NULL : loader->memory_targets + i * micro;
    }
    return GR_OK;
}

static gr_status loader_thread(gr_loader *loader, gr_diag *diag)
{
    int error = gr_thread_create(&loader->thread, NULL, loader_main, loader);
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "the thread that reads the data cannot be started: %s",
                       strerror(error));
    }
    return GR_OK;
}

gr_status gr_loader_start(const gr_loader_config *config, gr_loader **loader_out, gr_diag *diag)
{
    gr_status status = check_config(config, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to read data ahead");
    }
    loader->config = *config;
    loader->steps_per_epoch =
        (uint64_t)(gr_dataset_count(config->dataset, GR_SPLIT_TRAIN) / config->global_batch);
    loader->shard_batch = (int)(config->global_batch / config->shards);
    loader->micro_batch = loader->shard_batch / config->micro_batches;
    gr_sampler_init(&loader->sampler, config->seed, config->first_step / loader->steps_per_epoch,
                    (uint64_t)gr_dataset_count(config->dataset, GR_SPLIT_TRAIN));
    status = loader_memory(loader, diag);
    if (status != GR_OK) {
        goto undo_loader;
    }
    if (pthread_mutex_init(&loader->lock, NULL) != 0) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory to read data ahead");
        goto undo_loader;
    }
    pthread_cond_init(&loader->filled, NULL); /* cannot fail on Linux */
    pthread_cond_init(&loader->freed, NULL);
    status = loader_thread(loader, diag);
    if (status != GR_OK) {
        goto undo_lock;
    }
    *loader_out = loader;
    return GR_OK;
undo_lock:
    pthread_cond_destroy(&loader->freed);
    pthread_cond_destroy(&loader->filled);
    pthread_mutex_destroy(&loader->lock);
undo_loader:
    loader_free(loader);
    return status;
}

void gr_loader_stop(gr_loader *loader)
{
    if (loader == NULL) {
        return;
    }
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_signal(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
    pthread_join(loader->thread, NULL);
    pthread_cond_destroy(&loader->freed);
    pthread_cond_destroy(&loader->filled);
    pthread_mutex_destroy(&loader->lock);
    loader_free(loader);
}

gr_status gr_loader_next(gr_loader *loader, gr_loaded *loaded_out, gr_diag *diag)
{
    pthread_mutex_lock(&loader->lock);
    if (loader->lent) {
        loader->lent = false;
        pthread_cond_signal(&loader->freed);
    }
    while (loader->count == 0 && !loader->done) {
        pthread_cond_wait(&loader->filled, &loader->lock);
    }
    bool any = loader->count > 0;
    if (any) {
        *loaded_out = loader->slots[loader->first].loaded;
        loader->first = (loader->first + 1) % loader->slot_count;
        loader->count--;
        loader->lent = true;
    }
    gr_status failed = loader->failed;
    pthread_mutex_unlock(&loader->lock);
    if (any) {
        return GR_OK;
    }
    if (failed != GR_OK) { /* nobody writes the diagnosis once `done` is set */
        if (diag != NULL) {
            *diag = loader->failed_diag;
        }
        return failed;
    }
    return gr_fail(diag, GR_E_NOT_FOUND, "there is no batch behind the last step");
}
