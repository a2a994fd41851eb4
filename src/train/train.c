/* SPDX-License-Identifier: Apache-2.0 */
#include "train/train.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "coll/comm.h"
#include "coll/late.h"
#include "train/checkpoint_state.h"
#include "train/evaluate.h"
#include "train/report.h"
#include "train/step.h"
#include "train/weights.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One run of a job on one worker. */
typedef struct run {
    gr_job *job;
    gr_comm *comm;
    const gr_train_options *options;
    bool lead; /* rank 0 reports and writes */
    gr_trainer trainer;
    gr_evaluator *evaluator;
    gr_report report;
    FILE *metrics;         /* rank 0: <output>/metrics.jsonl */
    char *metrics_path;    /* in the job's arena */
    char *weights_path;    /* in the job's arena */
    gr_meter epoch, total; /* since the last report; of the job */
    gr_evaluation evaluation;
    uint64_t evaluated_step; /* the steps done when `evaluation` was made */
    double last_loss;        /* of the last epoch */
    int64_t begin_ns;
    uint64_t first_step;   /* done before this run began */
    double seconds_before; /* that they took */
    float *residuals;      /* rank 0, topk: of all shards, for the last checkpoint; NULL */
    int64_t saved_ns;      /* when the last checkpoint was begun */
    bool skip_told;
    gr_skew *skews; /* what had come late before the first step, by rank */
} run;

static gr_status open_output(run *r, gr_diag *diag)
{
    const char *output = r->job->config.output;
    r->metrics_path = gr_arena_printf(&r->job->arena, "%s/metrics.jsonl", output);
    r->weights_path = gr_arena_printf(&r->job->arena, "%s/model.safetensors", output);
    if (r->metrics_path == NULL || r->weights_path == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of the output files");
    }
    if (!r->lead) {
        return GR_OK;
    }
    gr_status status = gr_dir_create(output, diag);
    if (status != GR_OK) {
        return status;
    }
    if (r->options->resume != NULL) {
        status = gr_metrics_cut(r->metrics_path, r->first_step, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    r->metrics = fopen(r->metrics_path, r->options->resume != NULL ? "ae" : "we");
    if (r->metrics == NULL) {
        return gr_fail(diag, GR_E_IO, "cannot write %s: %s", r->metrics_path, strerror(errno));
    }
    return GR_OK;
}

static gr_status begin(run *r, gr_diag *diag)
{
    const gr_job *job = r->job;
    gr_start_record record = {.name = job->config.name,
                              .link = gr_comm_link_name(r->trainer.comm),
                              .workers = r->trainer.world_size,
                              .shards = job->shards,
                              .global_batch = job->config.global_batch,
                              .parameters = (int64_t)gr_model_parameters(r->trainer.model),
                              .total_steps = job->total_steps,
                              .steps_per_epoch = job->steps_per_epoch,
                              .step = r->first_step};
    r->skews = calloc((size_t)r->trainer.world_size, sizeof *r->skews);
    if (r->skews == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for what is known of %d ranks",
                       r->trainer.world_size);
    }
    gr_status status = gr_late_begin(r->comm, r->skews);
    r->begin_ns = r->saved_ns = gr_now_ns();
    if (status != GR_OK || !r->lead) {
        return status == GR_OK
                   ? GR_OK
                   : gr_trainer_comm_failed(r->comm, status, "training could not begin", diag);
    }
    status = gr_start_write(&record, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_start(&r->report, &record, r->begin_ns, diag);
}

/* The test part with the weights as they are after `step` steps, unless that is known. */
static gr_status evaluate(run *r, uint64_t step, gr_diag *diag)
{
    if (r->evaluated_step == step) {
        return GR_OK;
    }
    gr_status status =
        gr_evaluator_run(r->evaluator, r->trainer.values, r->comm, &r->evaluation, diag);
    if (status != GR_OK) {
        return status;
    }
    r->evaluated_step = step;
    if (r->evaluation.samples > 0 && !isfinite(r->evaluation.loss)) {
        return gr_fail(diag, GR_E_NOT_FINITE,
                       "after step %llu the loss on the test part is %s: the weights have grown "
                       "out of bounds; lower the learning rate (%g) or clip gradients (clip_norm)",
                       (unsigned long long)step, isnan(r->evaluation.loss) ? "NaN" : "infinite",
                       r->job->optimizer.learning_rate);
    }
    return GR_OK;
}

static double test_accuracy(const run *r)
{
    bool known = r->evaluation.samples > 0 && r->job->config.loss == GR_LOSS_CROSS_ENTROPY;
    return known ? (double)r->evaluation.correct / (double)r->evaluation.samples : (double)NAN;
}

static gr_status end_epoch(run *r, uint64_t step, gr_diag *diag)
{
    const gr_job *job = r->job;
    uint64_t epoch = (step - 1) / job->steps_per_epoch + 1;
    bool evaluates = job->config.eval_every > 0 && epoch % (uint64_t)job->config.eval_every == 0;
    if (evaluates) {
        gr_status status = evaluate(r, step, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    bool classes = job->config.loss == GR_LOSS_CROSS_ENTROPY;
    gr_epoch_record record = {
        .epoch = epoch,
        .epochs = (job->total_steps + job->steps_per_epoch - 1) / job->steps_per_epoch,
        .step = step,
        .total_steps = job->total_steps,
        .loss = gr_meter_loss(&r->epoch),
        .accuracy = classes ? gr_meter_accuracy(&r->epoch) : (double)NAN,
        .test_loss = evaluates ? r->evaluation.loss : (double)NAN,
        .test_accuracy = evaluates ? test_accuracy(r) : (double)NAN,
        .samples_per_s = gr_meter_samples_per_s(&r->epoch),
        .comm_wait_share = gr_meter_wait_share(&r->epoch),
        .learning_rate = gr_learning_rate(&job->optimizer, step - 1, (double)job->steps_per_epoch,
                                          job->total_steps, job->config.global_batch)};
    r->last_loss = record.loss;
    gr_meter_add(&r->total, &r->epoch);
    r->epoch = (gr_meter){0};
    if (!r->lead) {
        return GR_OK;
    }
    gr_status status = gr_epoch_write(&record, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_epoch(&r->report, &record, diag);
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

/* Rank 0 decides, and the step that is about to run tells all. The last step is always due; others
 * are left out while an earlier checkpoint is still being written. */
static bool is_due(run *r, uint64_t step)
{
    const gr_job *job = r->job;
    if (!r->lead || job->checkpoint.every == NULL || step == job->total_steps) {
        return r->lead && job->checkpoint.every != NULL;
    }
    bool due = job->checkpoint_steps > 0 ? step % job->checkpoint_steps == 0
                                         : (gr_now_ns() - r->saved_ns) / 1000 >= job->checkpoint_us;
    if (!due || !gr_saver_busy(r->trainer.saver)) {
        return due;
    }
    if (!r->skip_told) {
        r->skip_told = true;
        gr_log_write(r->options->log, GR_LOG_WARN, "checkpoint",
                     "at step %llu the last one is still being written: this one is left out, and "
                     "so may others be; write to a faster folder, or not so often",
                     (unsigned long long)step);
    }
    return false;
}

static void begin_checkpoint(run *r, uint64_t step, bool goes_on)
{
    const gr_job *job = r->job;
    gr_checkpoint_info info = {.step = step,
                               .total_steps = job->total_steps,
                               .steps_per_epoch = job->steps_per_epoch,
                               .shards = job->shards,
                               .seconds =
                                   r->seconds_before + (double)(gr_now_ns() - r->begin_ns) * 1e-9,
                               .last_loss = r->last_loss,
                               .epoch = r->epoch,
                               .total = r->total};
    r->saved_ns = gr_now_ns();
    gr_saver_begin(r->trainer.saver, &info, r->residuals, goes_on);
}

/* Ends the training: the last checkpoint is written before anything else happens. */
static gr_status stop(run *r, uint64_t step, gr_diag *diag)
{
    char path[PATH_MAX] = "";
    gr_stop_record record = {.step = step, .total_steps = r->job->total_steps, .checkpoint = path};
    if (r->lead) {
        gr_status status = gr_saver_wait(r->trainer.saver, diag);
        if (status == GR_OK) {
            status = gr_checkpoint_path(r->job->checkpoint.to, step, path, sizeof path, diag);
        }
        if (status == GR_OK) {
            status = gr_stop_write(&record, r->metrics, r->metrics_path, diag);
        }
        if (status == GR_OK) {
            status = gr_report_stop(&r->report, &record, diag);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return gr_fail(diag, GR_E_CANCELLED, "stopped after step %llu of %llu, as asked",
                   (unsigned long long)step, (unsigned long long)r->job->total_steps);
}

/* `step` steps are done, and all ranks know what any of them has said. */
static gr_status save_or_stop(run *r, uint64_t step, gr_diag *diag)
{
    gr_trainer *t = &r->trainer;
    bool ends = step == r->job->total_steps, stops = t->stop && !ends;
    if (!t->save && !stops) {
        return GR_OK;
    }
    if (r->lead && (ends || stops)) {
        gr_diag before; /* the thread has warned of it */
        (void)!gr_saver_wait(t->saver, &before);
    }
    gr_status status = gr_state_gather(t, &r->residuals, diag);
    if (status == GR_OK && r->lead) {
        begin_checkpoint(r, step, !ends && !stops);
    }
    return status == GR_OK && stops ? stop(r, step, diag) : status;
}

/* From a checkpoint, if one is to be gone on from; then the thread that writes them. */
static gr_status prepare_checkpoints(run *r, gr_diag *diag)
{
    gr_status status = GR_OK;
    gr_checkpoint_info info = {.last_loss = (double)NAN};
    if (r->options->resume != NULL) {
        status = gr_state_restore(&r->trainer, r->options->resume, &info, diag);
    }
    r->first_step = info.step;
    r->seconds_before = info.seconds;
    r->last_loss = info.last_loss;
    r->epoch = info.epoch;
    r->total = info.total;
    if (status == GR_OK && r->lead) {
        gr_checkpoint_tensors tensors = gr_state_tensors(&r->trainer);
        status = gr_saver_create(r->job, &tensors, r->options->log, &r->trainer.saver, diag);
    }
    return status;
}

/* ---- The training ---------------------------------------------------------------------------- */

static gr_status train(run *r, gr_diag *diag)
{
    const gr_job *job = r->job;
    const gr_train_options *options = r->options;
    for (uint64_t step = r->first_step; step < job->total_steps; step++) {
        r->trainer.says_stop = options->stop != NULL && options->stop(options->stop_arg);
        r->trainer.says_save = is_due(r, step + 1);
        gr_status status = gr_trainer_step(&r->trainer, step, &r->epoch, diag);
        if (status != GR_OK) {
            return status;
        }
        gr_report_step(&r->report, step + 1, gr_now_ns());
        if ((step + 1) % job->steps_per_epoch == 0 || step + 1 == job->total_steps) {
            status = end_epoch(r, step + 1, diag);
        }
        if (status == GR_OK) {
            status = save_or_stop(r, step + 1, diag);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* The mean over the ranks: a slow rank makes the others wait, itself it waits for nobody. */
static gr_status mean_wait_share(run *r, double *share_out, gr_diag *diag)
{
    double share = gr_meter_wait_share(&r->total);
    if (r->trainer.world_size > 1) {
        gr_status status = gr_allreduce(r->comm, &share, 1, GR_F64, GR_SUM);
        if (status != GR_OK) {
            return gr_trainer_comm_failed(r->comm, status, "the waiting times were not collected",
                                          diag);
        }
    }
    *share_out = share / r->trainer.world_size;
    return GR_OK;
}

/* Who has cost the others a twentieth of the time, if one rank has. */
static gr_status find_late(run *r, double seconds, gr_late *late_out, gr_diag *diag)
{
    gr_status status = gr_late_find(r->comm, r->skews, seconds * 1e6 / 20, late_out);
    return status == GR_OK
               ? GR_OK
               : gr_trainer_comm_failed(r->comm, status, "who came late was not collected", diag);
}

static gr_status finish(run *r, gr_diag *diag)
{
    char sha256[65];
    double share = 0.0;
    double seconds = (double)(gr_now_ns() - r->begin_ns) * 1e-9;
    gr_late late = {.rank = -1};
    gr_status status = find_late(r, seconds, &late, diag);
    if (status == GR_OK) {
        status = evaluate(r, r->job->total_steps, diag);
    }
    if (status == GR_OK) {
        status = gr_weights_agree(r->trainer.model, r->trainer.values, r->comm, diag);
    }
    if (status == GR_OK) {
        status = mean_wait_share(r, &share, diag);
    }
    if (status != GR_OK || !r->lead) {
        return status;
    }
    status = gr_weights_save(r->trainer.model, r->trainer.values, r->weights_path, sha256, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_saver_counts counts = gr_saver_counts_of(r->trainer.saver);
    gr_end_record record = {.loss = r->last_loss,
                            .test_loss = r->evaluation.loss,
                            .test_accuracy = test_accuracy(r),
                            .test_samples = r->evaluation.samples,
                            .weights = r->weights_path,
                            .weights_sha256 = sha256,
                            .workers = r->trainer.world_size,
                            .shards = r->job->shards,
                            .steps = r->job->total_steps,
                            .seconds = r->seconds_before + seconds,
                            .samples_per_s = gr_meter_samples_per_s(&r->total),
                            .comm_wait_share = share,
                            .late_rank = late.rank,
                            .late_us = late.mean_us,
                            .checkpoints = counts.begun,
                            .checkpoint_wait_s = (double)counts.held_ns * 1e-9};
    status = gr_end_write(&record, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_end(&r->report, &record, diag);
}

static gr_status run_all(run *r, gr_diag *diag)
{
    gr_status status = gr_trainer_init(&r->trainer, r->job, r->comm, diag);
    if (status == GR_OK) {
        status = prepare_checkpoints(r, diag);
    }
    if (status == GR_OK) {
        status = open_output(r, diag);
    }
    if (status == GR_OK) {
        status = gr_evaluator_create(r->job, &r->evaluator, diag);
    }
    if (status == GR_OK) {
        status = begin(r, diag);
    }
    if (status == GR_OK) {
        status = train(r, diag);
    }
    if (status == GR_OK) {
        status = finish(r, diag);
    }
    return status;
}

gr_status gr_train_run(gr_job *job, gr_comm *comm, const gr_train_options *options, gr_diag *diag)
{
    run r = {.job = job, .comm = comm, .options = options, .lead = gr_comm_rank(comm) == 0};
    r.evaluated_step = UINT64_MAX;
    r.trainer.comm = comm;
    r.evaluation.loss = (double)NAN;
    int columns = gr_report_columns(getenv("GRADUS_TERMINAL_COLUMNS"));
    gr_report_init(&r.report, r.lead ? options->style : GR_REPORT_NONE, options->out, columns);
    gr_status status = run_all(&r, diag);
    if (status != GR_OK) {
        gr_report_abandon(&r.report);
    }
    gr_saver_destroy(r.trainer.saver); /* before the memory that it may still read */
    gr_evaluator_destroy(r.evaluator);
    gr_trainer_fini(&r.trainer);
    free(r.residuals);
    free(r.skews);
    if (r.metrics != NULL) {
        fclose(r.metrics);
    }
    return status;
}
