/* SPDX-License-Identifier: Apache-2.0 */
#include "train/train.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "coll/comm.h"
#include "coll/late.h"
#include "train/checkpoint_state.h"
#include "train/recover.h"
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
    gr_comm *comm; /* of this generation */
    const gr_train_options *options;
    bool lead; /* rank 0 reports and writes */
    gr_trainer trainer;
    gr_evaluator *evaluator;
    gr_report report;
    FILE *metrics;        /* rank 0: <output>/metrics.jsonl */
    gr_metrics_told told; /* in it when this rank became rank 0 */
    char *metrics_path;   /* in the job's arena */
    char *weights_path;   /* in the job's arena */
    gr_progress progress;
    int64_t begin_ns;
    bool began;       /* all ranks were ready for the first step */
    float *residuals; /* rank 0, topk: of all shards, for the last checkpoint; NULL */
    int64_t saved_ns; /* when the last checkpoint was begun */
    bool skip_told;
    int64_t lost_ns; /* when the generation before ended; 0: none did, or it has been told of */
    bool lost;       /* by the loss of a member */
    gr_skew *skews;  /* what had come late before this generation's first step, by rank */
    gr_chaos_run chaos;
} run;

static gr_status name_output(run *r, gr_diag *diag)
{
    const char *output = r->job->config.output;
    r->metrics_path = gr_arena_printf(&r->job->arena, "%s/metrics.jsonl", output);
    r->weights_path = gr_arena_printf(&r->job->arena, "%s/model.safetensors", output);
    return r->metrics_path != NULL && r->weights_path != NULL
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of the output files");
}

/* Who becomes rank 0 writes from now on: behind what a rank 0 that died has written, if there was
 * one. */
static gr_status open_output(run *r, gr_diag *diag)
{
    bool behind = r->began || r->progress.steps > 0;
    gr_status status = gr_dir_create(r->job->config.output, diag);
    if (status == GR_OK && behind) {
        status = gr_metrics_cut(r->metrics_path, r->progress.steps, &r->told, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    r->metrics = fopen(r->metrics_path, behind ? "ae" : "we");
    if (r->metrics == NULL) {
        return gr_fail(diag, GR_E_IO, "cannot write %s: %s", r->metrics_path, strerror(errno));
    }
    return GR_OK;
}

static gr_status lead(run *r, gr_diag *diag)
{
    gr_checkpoint_tensors tensors = gr_state_tensors(&r->trainer);
    int columns = gr_report_columns(getenv("GRADUS_TERMINAL_COLUMNS"));
    gr_report_init(&r->report, r->options->style, r->options->out, columns);
    r->lead = true;
    gr_status status = gr_saver_create(r->job, &tensors, r->options->log, &r->trainer.saver, diag);
    return status == GR_OK ? open_output(r, diag) : status;
}

static gr_status tell_epoch(run *r, gr_diag *diag)
{
    gr_status status = gr_epoch_write(&r->progress.told, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_epoch(&r->report, &r->progress.told, diag);
}

/* Tells of the start; of one that a dead rank 0 has told of, only itself. */
static gr_status tell_start(run *r, bool anew, gr_diag *diag)
{
    const gr_job *job = r->job;
    gr_start_record record = {.name = job->config.name,
                              .link = gr_comm_link_name(r->comm),
                              .workers = r->trainer.world_size,
                              .shards = job->shards,
                              .global_batch = job->config.global_batch,
                              .parameters = (int64_t)gr_model_parameters(r->trainer.model),
                              .total_steps = job->total_steps,
                              .steps_per_epoch = job->steps_per_epoch,
                              .step = r->progress.steps};
    gr_report_resume(&r->report, &record, r->begin_ns);
    gr_status status = GR_OK;
    if (anew || !r->told.start) {
        status = gr_start_write(&record, r->metrics, r->metrics_path, diag);
        if (status == GR_OK) {
            status = gr_report_start(&r->report, &record, diag);
        }
    }
    /* Rank 0 may have died before it told of the epoch that ended last. */
    if (status == GR_OK && !anew && r->told.epoch < r->progress.told.epoch) {
        status = tell_epoch(r, diag);
    }
    return status;
}

/* All are ready for the first step of this generation. */
static gr_status begin(run *r, gr_diag *diag)
{
    gr_skew *skews = realloc(r->skews, (size_t)r->trainer.world_size * sizeof *r->skews);
    if (skews == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for what is known of %d ranks",
                       r->trainer.world_size);
    }
    r->skews = skews;
    gr_status status = gr_late_begin(r->comm, r->skews);
    if (status != GR_OK) {
        return gr_trainer_comm_failed(r->comm, status, "training could not begin", diag);
    }
    bool takes_over = r->lead && r->report.total_steps == 0;
    bool anew = !r->began && r->progress.steps == r->progress.first_step;
    if (!r->began) {
        r->begin_ns = r->saved_ns = gr_now_ns();
        r->began = true;
    }
    return takes_over ? tell_start(r, anew, diag) : GR_OK;
}

static gr_status tell_recovery(run *r, gr_diag *diag)
{
    gr_recovery_record record = {.lost = r->lost,
                                 .step = r->progress.steps,
                                 .workers = r->trainer.world_size,
                                 .seconds = (double)(gr_now_ns() - r->lost_ns) * 1e-9};
    r->lost_ns = 0;
    if (!r->lead) {
        return GR_OK;
    }
    gr_status status = gr_recovery_write(&record, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_recovery(&r->report, &record, diag);
}

/* How many epochs are over, the last one perhaps in part, when `step` steps are done. */
static uint64_t epochs_ended(const gr_job *job, uint64_t step)
{
    return step == job->total_steps ? (step + job->steps_per_epoch - 1) / job->steps_per_epoch
                                    : step / job->steps_per_epoch;
}

/* The test part with the weights as they are after `step` steps, unless that is known. */
static gr_status evaluate(run *r, uint64_t step, gr_diag *diag)
{
    if (r->progress.evaluated_step == step) {
        return GR_OK;
    }
    gr_evaluation evaluation;
    gr_status status =
        gr_evaluator_run(r->evaluator, r->trainer.values, r->comm, &evaluation, diag);
    if (status != GR_OK) {
        return status;
    }
    r->progress.evaluation = evaluation;
    r->progress.evaluated_step = step;
    if (r->progress.evaluation.samples > 0 && !isfinite(r->progress.evaluation.loss)) {
        return gr_fail(diag, GR_E_NOT_FINITE,
                       "after step %llu the loss on the test part is %s: the weights have grown "
                       "out of bounds; lower the learning rate (%g) or clip gradients (clip_norm)",
                       (unsigned long long)step,
                       isnan(r->progress.evaluation.loss) ? "NaN" : "infinite",
                       r->job->optimizer.learning_rate);
    }
    return GR_OK;
}

static double test_accuracy(const run *r)
{
    bool known = r->progress.evaluation.samples > 0 && r->job->config.loss == GR_LOSS_CROSS_ENTROPY;
    return known ? (double)r->progress.evaluation.correct / (double)r->progress.evaluation.samples
                 : (double)NAN;
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
        .loss = gr_meter_loss(&r->progress.epoch),
        .accuracy = classes ? gr_meter_accuracy(&r->progress.epoch) : (double)NAN,
        .test_loss = evaluates ? r->progress.evaluation.loss : (double)NAN,
        .test_accuracy = evaluates ? test_accuracy(r) : (double)NAN,
        .samples_per_s = gr_meter_samples_per_s(&r->progress.epoch),
        .comm_wait_share = gr_meter_wait_share(&r->progress.epoch),
        .learning_rate = gr_learning_rate(&job->optimizer, step - 1, (double)job->steps_per_epoch,
                                          job->total_steps, job->config.global_batch)};
    r->progress.last_loss = record.loss;
    gr_meter_add(&r->progress.total, &r->progress.epoch);
    r->progress.epoch = (gr_meter){0};
    r->progress.epochs++;
    r->progress.told = record;
    return r->lead ? tell_epoch(r, diag) : GR_OK;
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

/* Rank 0 decides, and the step that is about to run tells all. The last step is always due, as all
 * know; others are left out while an earlier checkpoint is still being written. */
static bool is_due(run *r, uint64_t step)
{
    const gr_job *job = r->job;
    if (!r->lead || job->checkpoint.every == NULL || step == job->total_steps) {
        return false;
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
                               .seconds = r->progress.seconds_before +
                                          (double)(gr_now_ns() - r->begin_ns) * 1e-9,
                               .last_loss = r->progress.last_loss,
                               .epoch = r->progress.epoch,
                               .total = r->progress.total};
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
    bool last = ends && r->job->checkpoint.every != NULL && step > r->progress.first_step;
    if (!t->save && !stops && !last) {
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

/* From a checkpoint. */
static gr_status restore(run *r, gr_diag *diag)
{
    gr_checkpoint_info info;
    gr_status status = gr_state_restore(&r->trainer, r->options->resume, &info, diag);
    if (status == GR_OK) {
        r->progress.first_step = r->progress.steps = info.step;
        r->progress.seconds_before = info.seconds;
        r->progress.epochs = epochs_ended(r->job, info.step);
        r->progress.last_loss = info.last_loss;
        r->progress.epoch = info.epoch;
        r->progress.total = info.total;
    }
    return status;
}

/* ---- The training ---------------------------------------------------------------------------- */

/* All have done the same step. Nobody goes before all have what they need from it. */
static gr_status leave_generation(run *r)
{
    if (r->trainer.world_size > 1) {
        gr_status status = gr_barrier(r->comm);
        (void)status; /* who has gone already was through it */
    }
    return GR_PENDING;
}

/* GR_PENDING: the next step is one of another generation. */
static gr_status train(run *r, gr_diag *diag)
{
    const gr_job *job = r->job;
    const gr_train_options *options = r->options;
    gr_trainer *t = &r->trainer;
    t->save = t->stop = t->renew = false;
    r->chaos.rank_now = t->rank;
    int64_t work_ns = 0; /* of the last step */
    for (;;) {
        gr_status status = GR_OK;
        uint64_t step = r->progress.steps;
        if (r->progress.epochs < epochs_ended(job, step)) {
            status = end_epoch(r, step, diag);
        }
        if (status == GR_OK) {
            status = save_or_stop(r, step, diag);
        }
        if (status != GR_OK || step == job->total_steps) {
            return status;
        }
        if (t->renew) {
            return leave_generation(r);
        }
        t->says_stop = options->stop != NULL && options->stop(options->stop_arg);
        t->says_save = is_due(r, step + 1);
        t->says_renew = gr_comm_change_wanted(r->comm);
        gr_comm_note_step(r->comm, step + 1);
        gr_chaos_step(&r->chaos, step + 1, work_ns);
        const gr_meter before = r->progress.epoch;
        status = gr_trainer_step(t, step, &r->progress.epoch, diag);
        if (status != GR_OK) {
            return status;
        }
        work_ns = (r->progress.epoch.step_ns - before.step_ns) -
                  (r->progress.epoch.wait_ns - before.wait_ns);
        r->progress.steps++;
        gr_report_step(&r->report, step + 1, gr_now_ns());
    }
}

/* The mean over the ranks: a slow rank makes the others wait, itself it waits for nobody. */
static gr_status mean_wait_share(run *r, double *share_out, gr_diag *diag)
{
    double share = gr_meter_wait_share(&r->progress.total);
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
    gr_end_record record = {.loss = r->progress.last_loss,
                            .test_loss = r->progress.evaluation.loss,
                            .test_accuracy = test_accuracy(r),
                            .test_samples = r->progress.evaluation.samples,
                            .weights = r->weights_path,
                            .weights_sha256 = sha256,
                            .workers = r->trainer.world_size,
                            .shards = r->job->shards,
                            .steps = r->job->total_steps,
                            .seconds = r->progress.seconds_before + seconds,
                            .samples_per_s = gr_meter_samples_per_s(&r->progress.total),
                            .comm_wait_share = share,
                            .late_rank = late.rank,
                            .late_us = late.mean_us,
                            .checkpoints = counts.begun,
                            .checkpoint_wait_s = (double)counts.held_ns * 1e-9};
    status = gr_end_write(&record, r->metrics, r->metrics_path, diag);
    return status != GR_OK ? status : gr_report_end(&r->report, &record, diag);
}

/* Nobody leaves before rank 0 has written everything: if it dies before, another one does. */
static gr_status part(run *r, gr_diag *diag)
{
    if (r->trainer.world_size == 1) {
        return GR_OK;
    }
    gr_status status = gr_barrier(r->comm);
    return status == GR_OK ? GR_OK
                           : gr_trainer_comm_failed(r->comm, status, "the end did not come", diag);
}

/* ---- Generations ----------------------------------------------------------------------------- */

/* All that can be done without the others, who would have to wait for it. */
static gr_status prepare(run *r, gr_diag *diag)
{
    gr_status status = name_output(r, diag);
    if (status == GR_OK) {
        status = gr_trainer_prepare(&r->trainer, r->job, diag);
    }
    return status == GR_OK ? gr_evaluator_create(r->job, &r->evaluator, diag) : status;
}

/* Makes what this generation needs. */
static gr_status enter(run *r, gr_diag *diag)
{
    gr_status status = gr_trainer_enter(&r->trainer, r->comm, diag);
    if (status == GR_OK) {
        status = gr_recover_agree(&r->trainer, &r->progress, diag);
    }
    if (status == GR_OK && r->options->resume != NULL && r->progress.steps == 0) {
        status = restore(r, diag);
    }
    if (status == GR_OK) {
        status = gr_trainer_seek(&r->trainer, r->progress.steps, diag);
    }
    if (status == GR_OK && !r->lead && r->trainer.rank == 0) {
        status = lead(r, diag);
    }
    return status;
}

static gr_status run_generation(run *r, gr_diag *diag)
{
    gr_status status = enter(r, diag);
    if (status == GR_OK) {
        status = begin(r, diag);
    }
    if (status == GR_OK && r->lost_ns > 0) {
        status = tell_recovery(r, diag);
    }
    if (status == GR_OK) {
        status = train(r, diag);
    }
    if (status == GR_OK) {
        status = finish(r, diag);
    }
    return status == GR_OK ? part(r, diag) : status;
}

/* One generation after the other, as members are lost, come and go, until the training is over. */
static gr_status run_all(run *r, gr_comm **comm, gr_diag *diag)
{
    gr_status status = prepare(r, diag);
    if (status == GR_OK && *comm == NULL) {
        status = gr_comm_create(comm, diag);
    }
    if (status != GR_OK) {
        return status == GR_E_CANCELLED ? GR_OK : status; /* not needed */
    }
    r->comm = *comm;
    r->chaos.rank = r->options->newcomer ? -1 : gr_comm_rank(r->comm);
    if (r->options->joined != NULL) {
        r->options->joined(r->options->joined_arg);
    }
    for (;;) {
        status = run_generation(r, diag);
        bool alone = r->trainer.world_size == 1;
        if (status != GR_PENDING && (!gr_fault_of_peer(status) || alone)) {
            return status;
        }
        gr_diag why;
        r->lost = status != GR_PENDING;
        r->lost_ns = gr_now_ns();
        gr_trainer_exit(&r->trainer);
        gr_status renewed = gr_comm_renew(comm, &why);
        r->comm = *comm;
        if (renewed == GR_E_UNSUPPORTED) {
            return status; /* the job needs all of its workers */
        }
        if (renewed == GR_E_CANCELLED) {
            return GR_OK; /* this one is not needed any more */
        }
        if (renewed != GR_OK) {
            *diag = why;
            return renewed;
        }
    }
}

gr_status gr_train_run(gr_job *job, gr_comm **comm, const gr_train_options *options, gr_diag *diag)
{
    run r = {.job = job, .options = options};
    r.chaos = (gr_chaos_run){.chaos = options->chaos,
                             .after = options->chaos_after,
                             .coordinator = getenv("GRADUS_COORDINATOR"),
                             .log = options->log};
    r.progress.evaluated_step = UINT64_MAX;
    r.progress.last_loss = (double)NAN;
    r.progress.evaluation.loss = (double)NAN;
    gr_report_init(&r.report, GR_REPORT_NONE, options->out, -1);
    gr_status status = run_all(&r, comm, diag);
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
