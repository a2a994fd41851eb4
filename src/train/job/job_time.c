/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job/job.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"
#include "nn/threads.h"

#include <stdlib.h>

enum { ROUNDS = 3 }; /* the kernels are made in the first; the least time of the others counts */

/* What a worker has to compute with, its samples all zeros: how long a step takes does not depend
 * on them. */
typedef struct bench {
    gr_model *model;
    gr_optimizer *optimizer;
    float *values, *gradients, *x, *targets;
    int32_t *labels;
    gr_batch batch;
} bench;

static gr_status make(const gr_job *job, bench *b, gr_diag *diag)
{
    const gr_model_config config = {.spec = job->spec,
                                    .batch = (int)job->micro_batch,
                                    .loss = (gr_loss_kind)job->config.loss,
                                    .gradient_scale = 1,
                                    .seed = (uint64_t)job->config.seed,
                                    .training = true};
    gr_status status = gr_model_create(&config, &b->model, diag);
    if (status == GR_OK) {
        status = gr_optimizer_create(&job->optimizer, b->model, &b->optimizer, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    size_t values = gr_model_values(b->model), samples = (size_t)job->micro_batch;
    size_t outputs = (size_t)gr_shape_count(gr_model_spec_output(job->spec));
    b->values = gr_zeros(values * sizeof *b->values);
    b->gradients = gr_zeros(values * sizeof *b->gradients);
    b->x = gr_zeros(samples * (size_t)gr_shape_count(&job->input) * sizeof *b->x);
    b->targets = gr_zeros(samples * outputs * sizeof *b->targets);
    b->labels = gr_zeros(samples * sizeof *b->labels);
    if (!b->values || !b->gradients || !b->x || !b->targets || !b->labels) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to measure a step of the job");
    }
    gr_model_init_weights(b->model, b->values);
    bool classes = gr_loss_ops_at(job->config.loss)->classes;
    b->batch = (gr_batch){
        .x = b->x, .labels = classes ? b->labels : NULL, .targets = classes ? NULL : b->targets};
    return GR_OK;
}

static double since_us(int64_t start_ns)
{
    return (double)(gr_now_ns() - start_ns) * 1e-3;
}

static gr_status time_once(bench *b, gr_job_times *times_out, gr_diag *diag)
{
    gr_batch_result result;
    int64_t start_ns = gr_now_ns();
    gr_status status = gr_model_forward(b->model, b->values, &b->batch, &result, diag);
    times_out->forward_us = since_us(start_ns);
    start_ns = gr_now_ns();
    if (status == GR_OK) {
        status = gr_model_backward(b->model, b->values, &b->batch, b->gradients, NULL, NULL, diag);
    }
    times_out->backward_us = since_us(start_ns);
    start_ns = gr_now_ns();
    gr_optimizer_begin(b->optimizer, 0, 0, 1);
    (void)gr_optimizer_update(b->optimizer, b->values, b->gradients, 0, gr_model_values(b->model));
    times_out->update_us = since_us(start_ns);
    return status;
}

static void keep_least(double *least, double us)
{
    *least = us < *least ? us : *least;
}

gr_status gr_job_measure(const gr_job *job, gr_job_times *times_out, gr_diag *diag)
{
    bench b = {0};
    gr_kernels_use_threads((int)job->distribution.worker_threads);
    gr_job_times least = {.forward_us = 1e18, .backward_us = 1e18, .update_us = 1e18};
    gr_status status = make(job, &b, diag);
    for (int round = 0; round < ROUNDS && status == GR_OK; round++) {
        gr_job_times now;
        status = time_once(&b, &now, diag);
        if (round > 0) {
            keep_least(&least.forward_us, now.forward_us);
            keep_least(&least.backward_us, now.backward_us);
            keep_least(&least.update_us, now.update_us);
        }
    }
    if (status == GR_OK) {
        int64_t shards = (job->shards + job->workers - 1) / job->workers;
        double micro = (double)(shards * job->config.micro_batches);
        *times_out =
            (gr_job_times){.forward_us = least.forward_us * micro,
                           .backward_us = least.backward_us * micro,
                           .update_us = least.update_us,
                           .parameter_bytes = (int64_t)(gr_model_values(b.model) * sizeof(float))};
    }
    free(b.values);
    free(b.gradients);
    free(b.x);
    free(b.targets);
    free(b.labels);
    gr_optimizer_destroy(b.optimizer);
    gr_model_destroy(b.model);
    return status;
}
