/* SPDX-License-Identifier: Apache-2.0 */
#include "train/evaluate.h"

#include "base/fail.h"
#include "train/train.h"
#include "train/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Not the training's batch: that depends on the number of shards, this must not. */
enum { EVALUATE_BATCH = 64 };

struct gr_evaluator {
    const gr_job *job;
    gr_model *model;
    int batch;
    int64_t samples, batches;
    int64_t *numbers;
    float *x;
    int32_t *labels;
    float *targets;
    double *sums; /* losses of the batches, then the correct count */
};

gr_status gr_evaluator_create(const gr_job *job, gr_evaluator **evaluator_out, gr_diag *diag)
{
    gr_evaluator *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to evaluate");
    }
    made->job = job;
    made->samples = gr_dataset_count(job->dataset, GR_SPLIT_TEST);
    made->batch =
        made->samples < EVALUATE_BATCH && made->samples > 0 ? (int)made->samples : EVALUATE_BATCH;
    made->batches = (made->samples + made->batch - 1) / made->batch;
    size_t rows = (size_t)made->batch;
    size_t row_values = (size_t)gr_dataset_sample_values(job->dataset);
    gr_model_config config = {.spec = job->spec,
                              .batch = made->batch,
                              .loss = (gr_loss_kind)job->config.loss,
                              .gradient_scale = 1.0f,
                              .seed = (uint64_t)job->config.seed};
    gr_status status = gr_model_create(&config, &made->model, diag);
    if (status != GR_OK) {
        gr_evaluator_destroy(made);
        return status;
    }
    made->numbers = calloc(rows, sizeof *made->numbers);
    made->x = calloc(rows * row_values + 1, sizeof *made->x);
    made->labels = calloc(rows, sizeof *made->labels);
    made->targets = calloc(rows, sizeof *made->targets);
    made->sums = calloc((size_t)made->batches + 1, sizeof *made->sums);
    if (made->numbers == NULL || made->x == NULL || made->labels == NULL || made->targets == NULL ||
        made->sums == NULL) {
        gr_evaluator_destroy(made);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to evaluate in batches of %zu", rows);
    }
    *evaluator_out = made;
    return GR_OK;
}

void gr_evaluator_destroy(gr_evaluator *evaluator)
{
    if (evaluator == NULL) {
        return;
    }
    gr_model_destroy(evaluator->model);
    free(evaluator->numbers);
    free(evaluator->x);
    free(evaluator->labels);
    free(evaluator->targets);
    free(evaluator->sums);
    free(evaluator);
}

static gr_status run_batch(gr_evaluator *e, const float *values, int64_t index, gr_diag *diag)
{
    bool classes = gr_dataset_classes(e->job->dataset) > 0;
    int64_t first = index * e->batch;
    int64_t left = e->samples - first;
    int counted = left < e->batch ? (int)left : e->batch;
    /* The last batch is filled up with its last sample, which is not counted again. */
    for (int i = 0; i < e->batch; i++) {
        e->numbers[i] = first + (i < counted ? i : counted - 1);
    }
    gr_status status =
        gr_dataset_read(e->job->dataset, GR_SPLIT_TEST, e->numbers, e->batch, e->x,
                        classes ? e->labels : NULL, classes ? NULL : e->targets, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_batch batch = {.x = e->x,
                      .labels = classes ? e->labels : NULL,
                      .targets = classes ? NULL : e->targets,
                      .sample_first = (uint64_t)first};
    gr_batch_result result = {0};
    status = gr_model_evaluate(e->model, values, &batch, counted, &result, NULL, diag);
    e->sums[index] = result.loss;
    e->sums[e->batches] += (double)result.correct;
    return status;
}

gr_status gr_evaluator_run(gr_evaluator *evaluator, const float *values, gr_comm *comm,
                           gr_evaluation *evaluation_out, gr_diag *diag)
{
    gr_evaluator *e = evaluator;
    int64_t world_size = comm != NULL ? gr_comm_size(comm) : 1;
    int64_t rank = comm != NULL ? gr_comm_rank(comm) : 0;
    *evaluation_out = (gr_evaluation){.loss = (double)NAN};
    if (e->samples == 0) {
        return GR_OK;
    }
    memset(e->sums, 0, ((size_t)e->batches + 1) * sizeof *e->sums);
    for (int64_t i = e->batches * rank / world_size; i < e->batches * (rank + 1) / world_size;
         i++) {
        gr_status status = run_batch(e, values, i, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    if (world_size > 1) {
        /* Every place has one rank that is not zero there: any order of adding gives these bits. */
        gr_status status = gr_allreduce(comm, e->sums, (size_t)e->batches + 1, GR_F64, GR_SUM);
        if (status != GR_OK) {
            const gr_diag *cause = gr_comm_diag(comm);
            return gr_fail(diag, status, "the evaluation could not be added up: %s",
                           cause->status != GR_OK ? cause->text : gr_status_text(status));
        }
    }
    double loss = 0.0;
    for (int64_t i = 0; i < e->batches; i++) {
        loss += e->sums[i];
    }
    *evaluation_out = (gr_evaluation){.samples = e->samples,
                                      .correct = (int64_t)e->sums[e->batches],
                                      .loss = loss / (double)e->samples};
    return GR_OK;
}

/* ---- gradus eval ----------------------------------------------------------------------------- */

static gr_status evaluate_file(gr_evaluator *evaluator, const char *weights_path, float *values,
                               gr_eval_result *result_out, gr_diag *diag)
{
    gr_eval_result result = {0};
    gr_evaluation evaluation;
    gr_status status =
        gr_weights_load(evaluator->model, weights_path, values, result.weights_sha256, diag);
    if (status == GR_OK) {
        status = gr_evaluator_run(evaluator, values, NULL, &evaluation, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    result.samples = evaluation.samples;
    result.loss = evaluation.loss;
    result.accuracy = (double)evaluation.correct / (double)evaluation.samples;
    *result_out = result;
    return GR_OK;
}

gr_status gr_eval_run(gr_job *job, const char *weights_path, gr_eval_result *result_out,
                      gr_diag *diag)
{
    if (gr_dataset_count(job->dataset, GR_SPLIT_TEST) == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: there is nothing to evaluate on: set test_count or test files under "
                       "data",
                       job->path);
    }
    gr_evaluator *evaluator = NULL;
    gr_status status = gr_evaluator_create(job, &evaluator, diag);
    if (status != GR_OK) {
        return status;
    }
    float *values = aligned_alloc(64, gr_model_values(evaluator->model) * sizeof *values + 64);
    if (values == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the weights");
    } else {
        status = evaluate_file(evaluator, weights_path, values, result_out, diag);
    }
    free(values);
    gr_evaluator_destroy(evaluator);
    return status;
}
