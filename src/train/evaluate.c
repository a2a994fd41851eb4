/* SPDX-License-Identifier: Apache-2.0 */
#include "train/evaluate.h"

#include "base/fail.h"
#include "base/memory.h"
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
    float *outputs;
    int64_t classes; /* 0: a regression */
    int64_t counted; /* classes of the confusion matrix; 0: none */
    double *sums;    /* BATCH_SUMS of each batch, then correct samples, then the matrix */
    size_t sum_count;
    int64_t width; /* of an output */
};

/* Of a batch; all but the loss of a regression. */
enum { SUM_LOSS, SUM_ABSOLUTE, SUM_SQUARES, SUM_MEAN, SUM_DEVIATIONS, BATCH_SUMS };

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
    made->classes = gr_dataset_classes(job->dataset);
    made->counted = made->classes <= GR_CONFUSION_CLASSES_MAX ? made->classes : 0;
    made->width = gr_shape_count(gr_model_spec_output(job->spec));
    made->sum_count = (size_t)(made->batches * BATCH_SUMS + 1 + made->counted * made->counted);
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
    made->outputs = calloc(rows * (size_t)made->width, sizeof *made->outputs);
    made->sums = calloc(made->sum_count, sizeof *made->sums);
    if (made->outputs == NULL || made->numbers == NULL || made->x == NULL || made->labels == NULL ||
        made->targets == NULL || made->sums == NULL) {
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
    free(evaluator->outputs);
    free(evaluator->sums);
    free(evaluator);
}

/* Mean and squared deviations are those of the targets, for R2. */
static void add_errors(const gr_evaluator *e, int counted, double *sums)
{
    for (int i = 0; i < counted; i++) {
        double target = (double)e->targets[i], error = (double)e->outputs[i] - target;
        sums[SUM_ABSOLUTE] += fabs(error);
        sums[SUM_SQUARES] += error * error;
        sums[SUM_MEAN] += target / counted;
    }
    for (int i = 0; i < counted; i++) {
        double deviation = (double)e->targets[i] - sums[SUM_MEAN];
        sums[SUM_DEVIATIONS] += deviation * deviation;
    }
}

/* The first of the largest outputs is the prediction, as in the count of correct samples. */
static void add_predictions(const gr_evaluator *e, int counted, double *matrix)
{
    for (int i = 0; i < counted && e->counted > 0; i++) {
        const float *outputs = e->outputs + i * e->width;
        int64_t best = 0;
        for (int64_t k = 1; k < e->width; k++) {
            best = outputs[k] > outputs[best] ? k : best;
        }
        matrix[e->labels[i] * e->counted + best] += 1;
    }
}

static gr_status run_batch(gr_evaluator *e, const float *values, int64_t index, gr_diag *diag)
{
    bool classes = e->classes > 0;
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
    status = gr_model_evaluate(e->model, values, &batch, counted, &result, e->outputs, diag);
    if (status != GR_OK) {
        return status;
    }
    double *sums = e->sums + index * BATCH_SUMS, *whole = e->sums + e->batches * BATCH_SUMS;
    sums[SUM_LOSS] = result.loss;
    whole[0] += (double)result.correct;
    if (classes) {
        add_predictions(e, counted, whole + 1);
    } else {
        add_errors(e, counted, sums);
    }
    return GR_OK;
}

/* Squared deviations around the mean of all, batch by batch as in Chan, Golub, LeVeque (1979). */
static void sum_regression(const gr_evaluator *e, gr_evaluation *evaluation)
{
    double mean = 0, around = 0, seen = 0, absolute = 0, squares = 0;
    for (int64_t i = 0; i < e->batches; i++) {
        const double *sums = e->sums + i * BATCH_SUMS;
        int64_t left = e->samples - i * e->batch;
        double count = (double)(left < e->batch ? left : e->batch), delta = sums[SUM_MEAN] - mean;
        around += sums[SUM_DEVIATIONS] + delta * delta * seen * count / (seen + count);
        mean += delta * count / (seen + count);
        seen += count;
        absolute += sums[SUM_ABSOLUTE];
        squares += sums[SUM_SQUARES];
    }
    evaluation->correct = -1;
    evaluation->rmse = sqrt(squares / (double)e->samples);
    evaluation->mae = absolute / (double)e->samples;
    evaluation->r2 = around > 0 ? 1 - squares / around : (double)NAN;
}

static gr_evaluation sum_up(const gr_evaluator *e)
{
    const gr_csv_layout *layout = gr_dataset_layout(e->job->dataset);
    const double *whole = e->sums + e->batches * BATCH_SUMS;
    gr_evaluation evaluation = gr_evaluation_none();
    evaluation.samples = e->samples;
    evaluation.correct = (int64_t)whole[0];
    evaluation.loss = 0;
    for (int64_t i = 0; i < e->batches; i++) {
        evaluation.loss += e->sums[i * BATCH_SUMS + SUM_LOSS];
    }
    evaluation.loss /= (double)e->samples;
    if (e->classes == 0) {
        sum_regression(e, &evaluation);
    } else if (e->counted > 0) {
        bool columns = layout != NULL && layout->column != NULL;
        evaluation.confusion =
            (gr_confusion){.classes = e->counted,
                           .names = columns ? layout->column[layout->label_column - 1].texts : NULL,
                           .counts = whole + 1};
    }
    return evaluation;
}

gr_status gr_evaluator_run(gr_evaluator *evaluator, const float *values, gr_comm *comm,
                           gr_evaluation *evaluation_out, gr_diag *diag)
{
    gr_evaluator *e = evaluator;
    int64_t world_size = comm != NULL ? gr_comm_size(comm) : 1;
    int64_t rank = comm != NULL ? gr_comm_rank(comm) : 0;
    *evaluation_out = gr_evaluation_none();
    if (e->samples == 0) {
        return GR_OK;
    }
    memset(e->sums, 0, e->sum_count * sizeof *e->sums);
    for (int64_t i = e->batches * rank / world_size; i < e->batches * (rank + 1) / world_size;
         i++) {
        gr_status status = run_batch(e, values, i, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    if (world_size > 1) {
        /* Of a batch's sums one rank's are not zero, and counts are whole numbers: any order of
         * adding gives these bits. */
        gr_status status = gr_allreduce(comm, e->sums, e->sum_count, GR_F64, GR_SUM);
        if (status != GR_OK) {
            const gr_diag *cause = gr_comm_diag(comm);
            return gr_fail(diag, status, "the evaluation could not be added up: %s",
                           cause->status != GR_OK ? cause->text : gr_status_text(status));
        }
    }
    *evaluation_out = sum_up(e);
    return GR_OK;
}

/* ---- gradus eval ----------------------------------------------------------------------------- */

/* The matrix outlives the evaluator. */
static gr_status keep_counts(gr_job *job, gr_confusion *confusion, gr_diag *diag)
{
    size_t bytes = (size_t)(confusion->classes * confusion->classes) * sizeof *confusion->counts;
    double *counts = gr_arena_alloc(&job->arena, bytes + 1);
    if (counts == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a confusion matrix");
    }
    if (confusion->counts != NULL) {
        memcpy(counts, confusion->counts, bytes);
    }
    confusion->counts = counts;
    return GR_OK;
}

static gr_status evaluate_file(gr_job *job, gr_evaluator *evaluator, const char *weights_path,
                               float *values, gr_eval_result *result_out, gr_diag *diag)
{
    gr_status status =
        gr_weights_load(evaluator->model, weights_path, values, result_out->weights_sha256, diag);
    if (status == GR_OK) {
        status = gr_evaluator_run(evaluator, values, NULL, &result_out->evaluation, diag);
    }
    return status == GR_OK ? keep_counts(job, &result_out->evaluation.confusion, diag) : status;
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
    float *values = gr_zeros(gr_model_values(evaluator->model) * sizeof *values);
    if (values == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the weights");
    } else {
        status = evaluate_file(job, evaluator, weights_path, values, result_out, diag);
    }
    free(values);
    gr_evaluator_destroy(evaluator);
    return status;
}
