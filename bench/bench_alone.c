/* SPDX-License-Identifier: Apache-2.0 */
/* Training as a program would do it that knows nothing of workers: loader, forward, backward,
 * update in one loop, on a job file. What `gradus run -np 1` takes longer than this is the price of
 * distribution for somebody who does not use it.
 *
 *   bench_alone job.yaml      prints one JSON object; bench/alone.py compares */
#include "base/clock.h"
#include "data/loader.h"
#include "train/job/job.h"

#include <stdlib.h>
#include <string.h>

typedef struct alone {
    gr_job *job;
    gr_model *model;
    gr_optimizer *optimizer;
    gr_loader *loader;
    float *values, *gradients;
} alone;

static gr_status prepare(alone *a, const char *path, gr_diag *diag)
{
    gr_job_overrides overrides = {.run = {.workers = 1}};
    gr_status status = gr_job_open(path, &overrides, &a->job, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_job *job = a->job;
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->config.global_batch,
                              .loss = (gr_loss_kind)job->config.loss,
                              .gradient_scale = (float)(1.0 / (double)job->config.global_batch),
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    gr_loader_config loader = {.dataset = job->dataset,
                               .seed = (uint64_t)job->config.seed,
                               .global_batch = job->config.global_batch,
                               .shards = 1,
                               .shard_count = 1,
                               .total_steps = job->total_steps,
                               .micro_batches = 1,
                               .depth = 2};
    status = gr_model_create(&config, &a->model, diag);
    if (status == GR_OK) {
        status = gr_optimizer_create(&job->optimizer, a->model, &a->optimizer, diag);
    }
    if (status == GR_OK) {
        status = gr_loader_start(&loader, &a->loader, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    size_t bytes = (gr_model_values(a->model) * sizeof(float) + 63) / 64 * 64;
    a->values = aligned_alloc(64, bytes);
    a->gradients = aligned_alloc(64, bytes);
    if (a->values == NULL || a->gradients == NULL) {
        return GR_E_NO_MEMORY;
    }
    memset(a->values, 0, bytes);
    memset(a->gradients, 0, bytes);
    gr_model_init_weights(a->model, a->values);
    return GR_OK;
}

static gr_status step(alone *a, uint64_t number, double *loss, gr_diag *diag)
{
    const gr_job *job = a->job;
    gr_loaded loaded;
    gr_batch_result result = {0};
    gr_status status = gr_loader_next(a->loader, &loaded, diag);
    gr_batch batch = {.x = loaded.x,
                      .labels = loaded.labels,
                      .targets = loaded.targets,
                      .step = number,
                      .sample_first = loaded.sample_first};
    if (status == GR_OK) {
        status = gr_model_forward(a->model, a->values, &batch, &result, diag);
    }
    if (status == GR_OK) {
        status = gr_model_backward(a->model, a->values, &batch, a->gradients, NULL, NULL, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_optimizer_begin(a->optimizer, number,
                       gr_learning_rate(&job->optimizer, number, (double)job->steps_per_epoch,
                                        job->total_steps, job->config.global_batch),
                       1.0f);
    gr_optimizer_update(a->optimizer, a->values, a->gradients, 0, gr_model_values(a->model));
    gr_model_update_statistics(a->model, a->values, a->gradients, 1.0f);
    *loss = result.loss / (double)job->config.global_batch;
    return GR_OK;
}

int main(int argc, char **argv)
{
    alone a = {0};
    gr_diag diag = {0};
    double loss = 0.0;
    if (argc != 2) {
        fprintf(stderr, "usage: bench_alone job.yaml\n");
        return 2;
    }
    gr_status status = prepare(&a, argv[1], &diag);
    int64_t begin_ns = gr_now_ns();
    for (uint64_t i = 0; status == GR_OK && i < a.job->total_steps; i++) {
        status = step(&a, i, &loss, &diag);
    }
    double seconds = (double)(gr_now_ns() - begin_ns) * 1e-9;
    if (status == GR_OK) {
        printf("{\"samples_per_s\": %.0f, \"loss\": %.9g}\n",
               (double)a.job->total_steps * (double)a.job->config.global_batch / seconds, loss);
    } else {
        fprintf(stderr, "bench_alone: %s\n", diag.text);
    }
    gr_loader_stop(a.loader);
    gr_optimizer_destroy(a.optimizer);
    gr_model_destroy(a.model);
    gr_job_close(a.job);
    free(a.values);
    free(a.gradients);
    return status == GR_OK ? 0 : 1;
}
