/* SPDX-License-Identifier: Apache-2.0 */
#include "train/train.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "coll/comm.h"
#include "coll/diagnose/lateness.h"
#include "nn/threads.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/early_stopping.h"
#include "train/evaluate.h"
#include "train/recover.h"
#include "train/report.h"
#include "train/strategy/strategy.h"
#include "train/weights.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* One run of a job on one worker. */
typedef struct training_run {
    gr_job *job;
    gr_comm *comm; /* of this generation */
    const gr_train_options *options;
    bool lead; /* rank 0 reports and writes */
    gr_trainer trainer;
    gr_evaluator *evaluator;
    gr_evaluation evaluation;
    uint64_t
        evaluated_step; /* the steps done when it was made; UINT64_MAX: not in this generation */
    gr_report report;
    FILE *metrics;                /* rank 0: <output>/metrics.jsonl */
    gr_metrics_reported reported; /* in it */
    char *metrics_path;           /* in the job's arena */
    char *weights_path;           /* in the job's arena */
    gr_training_progress progress;
    int64_t begin_ns;
    bool began;          /* all ranks were ready for the first step */
    bool ended;          /* this rank has written of the end: others may be lost behind it */
    float *residuals;    /* rank 0: what shards keep, for the last checkpoint; NULL */
    int64_t saved_ns;    /* when the last checkpoint was begun */
    uint64_t saved_step; /* the last step of which it was known whether one is due */
    uint64_t begun_step; /* of the last checkpoint that this process has begun; 0: none */
    bool skip_reported;
    int64_t lost_ns;  /* when the generation before ended; 0: none did, or it is reported */
    bool lost;        /* by the loss of a member */
    gr_skew *skews;   /* what had come late before this generation's first step, by rank; then what
                        had before this epoch */
    int64_t epoch_ns; /* when this epoch began, or its part in this generation */
    gr_staleness stale; /* of rank 0, where gradients are: before this epoch */
    gr_lateness late;   /* in the epoch that ended last, if it did in this generation */
    gr_recent recent;   /* of the last seconds */
    gr_chaos_run chaos;
} training_run;

static gr_status name_output(training_run *r, gr_diag *diag)
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
static gr_status open_output(training_run *r, gr_diag *diag)
{
    bool behind = r->began || r->progress.steps > 0;
    gr_status status = gr_dir_create(r->job->config.output, diag);
    if (status == GR_OK && behind) {
        status = gr_metrics_cut(r->metrics_path, r->progress.steps, r->progress.epochs,
                                &r->reported, diag);
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

static gr_status lead(training_run *r, gr_diag *diag)
{
    gr_checkpoint_tensors tensors = gr_state_tensors(&r->trainer);
    int columns = gr_report_columns(getenv("GRADUS_TERMINAL_COLUMNS"));
    gr_report_init(&r->report, r->options->style, r->options->out, columns);
    r->lead = true;
    const gr_checkpoint_writer writer = {.run = r->progress.run,
                                         .generation = gr_comm_generation(r->comm)};
    gr_status status =
        gr_saver_create(r->job, &tensors, &writer, r->options->log, &r->trainer.saver, diag);
    return status == GR_OK ? open_output(r, diag) : status;
}

/* The file last: by it the next rank 0 knows what was reported. If this one dies in between, the
 * epoch is printed once more; the other way round it would never be. */
static gr_status report_epoch(training_run *r, gr_diag *diag)
{
    gr_status status = gr_report_epoch(&r->report, &r->progress.reported, diag);
    r->reported.epoch = r->progress.reported.epoch;
    return status != GR_OK
               ? status
               : gr_epoch_write(&r->progress.reported, r->metrics, r->metrics_path, diag);
}

/* Reports the start, unless a rank 0 that died has. */
static gr_status report_start(training_run *r, bool anew, gr_diag *diag)
{
    const gr_job *job = r->job;
    gr_start_record record = {.name = job->config.name,
                              .link = gr_comm_link_name(r->comm),
                              .workers = r->trainer.gen.world_size,
                              .shards = job->shards,
                              .global_batch = job->config.global_batch,
                              .parameters = (int64_t)gr_model_parameters(r->trainer.model),
                              .total_steps = job->total_steps,
                              .steps_per_epoch = job->steps_per_epoch,
                              .step = r->progress.steps};
    gr_report_resume(&r->report, &record, r->begin_ns);
    gr_status status = GR_OK;
    if (anew || !r->reported.start) {
        status = gr_start_write(&record, r->metrics, r->metrics_path, diag);
        if (status == GR_OK) {
            status = gr_report_start(&r->report, &record, diag);
        }
    }
    return status;
}

/* All are ready for the first step of this generation. */
static gr_status begin(training_run *r, gr_diag *diag)
{
    gr_skew *skews = realloc(r->skews, 2 * (size_t)r->trainer.gen.world_size * sizeof *r->skews);
    if (skews == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for what is known of %d ranks",
                       r->trainer.gen.world_size);
    }
    r->skews = skews;
    gr_status status = gr_lateness_begin(r->comm, r->skews);
    if (status == GR_OK) {
        status = gr_lateness_begin(r->comm, r->skews + r->trainer.gen.world_size);
    }
    r->epoch_ns = gr_now_ns();
    r->late = (gr_lateness){.rank = -1};
    r->saved_step = r->progress.steps;
    if (status != GR_OK) {
        return gr_trainer_comm_status(r->comm, status, "training could not begin", diag);
    }
    bool takes_over = r->lead && r->report.total_steps == 0;
    bool anew = !r->began && r->progress.steps == r->progress.first_step;
    if (!r->began) {
        r->begin_ns = r->saved_ns = gr_now_ns();
        r->began = true;
    }
    status = takes_over ? report_start(r, anew, diag) : GR_OK;
    /* Rank 0 may have died before it reported the epoch that ended last; or, with an asynchronous
     * strategy, another rank has come farther. */
    bool untold = r->lead && !anew && r->reported.epoch < r->progress.reported.epoch;
    return status == GR_OK && untold ? report_epoch(r, diag) : status;
}

static gr_status report_recovery(training_run *r, gr_diag *diag)
{
    gr_recovery_record record = {.lost = r->lost,
                                 .step = r->progress.steps,
                                 .workers = r->trainer.gen.world_size,
                                 .seconds = (double)(gr_now_ns() - r->lost_ns) * 1e-9};
    r->lost_ns = 0;
    if (!r->lead || r->ended) { /* the end is the last that is reported */
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

/* The test part with the weights as they are after `step` steps, unless that is known. By all ranks
 * of `comm`; NULL: by this one alone. */
static gr_status evaluate(training_run *r, gr_comm *comm, uint64_t step, gr_diag *diag)
{
    if (r->evaluated_step == step) {
        return GR_OK;
    }
    gr_status status =
        gr_evaluator_run(r->evaluator, r->trainer.values, comm, &r->evaluation, diag);
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

/* Who has cost the others a twentieth of the time since `since`, if one rank has. */
static gr_status find_late(training_run *r, const gr_skew *since, double seconds,
                           gr_lateness *late_out, gr_diag *diag)
{
    gr_status status = gr_lateness_find(r->comm, since, seconds * 1e6 / 20, late_out);
    return gr_trainer_comm_status(r->comm, status, "who came late was not collected", diag);
}

/* NaN: of nothing. */
static double share_of(uint64_t part, uint64_t of)
{
    return of > 0 ? (double)part / (double)of : (double)NAN;
}

/* What held up this epoch: who came late where all wait for each other, else how old gradients
 * were. */
static gr_status judge_epoch(training_run *r, gr_epoch_record *record, gr_diag *diag)
{
    const gr_strategy *strategy = r->trainer.strategy;
    gr_skew *before = r->skews + r->trainer.gen.world_size;
    gr_lateness late = {.rank = -1};
    gr_status status = GR_OK;
    record->staleness = (double)NAN;
    if (strategy->count == NULL) {
        status = find_late(r, before, (double)(gr_now_ns() - r->epoch_ns) * 1e-9, &late, diag);
        if (status == GR_OK) {
            status = gr_lateness_begin(r->comm, before);
        }
    } else if (r->lead) {
        gr_staleness now;
        status = strategy->count(&r->trainer, &now, diag);
        if (status == GR_OK) {
            bool more = now.updates > r->stale.updates && now.sum >= r->stale.sum;
            record->staleness = /* less: a server is lost with what it had counted */
                more ? share_of(now.sum - r->stale.sum, now.updates - r->stale.updates)
                     : (double)NAN;
            r->stale = now;
        }
    }
    r->epoch_ns = gr_now_ns();
    r->late = late;
    record->late_rank = late.rank;
    record->late_us = late.mean_us;
    return status;
}

static gr_status end_epoch(training_run *r, uint64_t step, gr_diag *diag)
{
    const gr_job *job = r->job;
    uint64_t epoch = r->progress.epochs + 1;
    bool free = gr_job_is_asynchronous(job); /* rank 0 evaluates, and the others go on */
    bool evaluates = job->config.eval_every > 0 && epoch % (uint64_t)job->config.eval_every == 0 &&
                     (!free || r->lead);
    if (evaluates) {
        gr_status status = evaluate(r, free ? NULL : r->comm, step, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    bool classes = gr_loss_ops_at(job->config.loss)->classes;
    const gr_evaluation test = evaluates ? r->evaluation : gr_evaluation_none();
    gr_epoch_record record = {
        .epoch = epoch,
        .epochs = (job->total_steps + job->steps_per_epoch - 1) / job->steps_per_epoch,
        .step = step,
        .total_steps = job->total_steps,
        .loss = gr_meter_loss(&r->progress.epoch),
        .accuracy = classes ? gr_meter_accuracy(&r->progress.epoch) : (double)NAN,
        .test_loss = test.loss,
        .test_accuracy = gr_evaluation_accuracy(&test),
        .test_rmse = test.rmse,
        .test_mae = test.mae,
        .test_r2 = test.r2,
        .samples_per_s = gr_meter_samples_per_s(&r->progress.epoch),
        .comm_wait_share = gr_meter_wait_share(&r->progress.epoch),
        .learning_rate = gr_learning_rate(&job->optimizer, step - 1, (double)job->steps_per_epoch,
                                          job->total_steps, job->config.global_batch)};
    gr_status status = judge_epoch(r, &record, diag);
    if (status != GR_OK) {
        return status;
    }
    r->progress.last_loss = record.loss;
    if (step % job->steps_per_epoch == 0) { /* else the job ends: a longer one goes on within it */
        gr_meter_add(&r->progress.total, &r->progress.epoch);
        r->progress.epoch = (gr_meter){0};
    }
    r->progress.epochs++;
    r->progress.reported = record;
    gr_best_update(&r->progress.best, job, &record);
    return r->lead ? report_epoch(r, diag) : GR_OK;
}

/* ---- Checkpoints ----------------------------------------------------------------------------- */

/* All ranks know, since they know the same metrics. */
static bool is_over(const training_run *r, uint64_t step)
{
    return step == r->job->total_steps || gr_early_stopping_reached(r->job, &r->progress.best);
}

/* Returns true if these are the best weights so far, and nobody has saved them. By all ranks. */
static bool is_best(const training_run *r, uint64_t step)
{
    const gr_best *best = &r->progress.best;
    return r->job->checkpoint.keep_best && best->step == step && step > r->progress.first_step;
}

/* Rank 0 decides, and the step that is about to run tells all; with an asynchronous strategy steps
 * have been done that it has not seen. The last step is always due, as all know; others are left
 * out while an earlier checkpoint is still being written. */
static bool is_due(training_run *r, uint64_t step)
{
    const gr_job *job = r->job;
    if (!r->lead || job->checkpoint.every == NULL || step == job->total_steps) {
        return false;
    }
    uint64_t every = job->checkpoint_steps, before = r->saved_step;
    bool due = every > 0 ? step / every > before / every
                         : (gr_now_ns() - r->saved_ns) / 1000 >= job->checkpoint_us;
    r->saved_step = step;
    if (!due || !gr_saver_busy(r->trainer.saver)) {
        return due;
    }
    if (!r->skip_reported) {
        r->skip_reported = true;
        gr_log_write(r->options->log, GR_LOG_WARN, "checkpoint",
                     "at step %llu the last one is still being written: this one is left out, and "
                     "so may others be; write to a faster folder, or not so often",
                     (unsigned long long)step);
    }
    return false;
}

static void begin_checkpoint(training_run *r, uint64_t step, bool goes_on)
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
                               .total = r->progress.total,
                               .metric = job->metric,
                               .best = r->progress.best,
                               .keeps_best = job->checkpoint.keep_best};
    r->saved_ns = gr_now_ns();
    r->begun_step = step;
    gr_saver_begin(r->trainer.saver, &info, r->residuals, goes_on);
}

/* Ends the training: the last checkpoint is written before anything else happens. */
static gr_status stop(training_run *r, uint64_t step, gr_diag *diag)
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

/* By all ranks; with an asynchronous strategy, by rank 0. `goes_on`: weights will change again.
 *
 * Who was in a generation that was lost within the next step comes here once more: rank 0 has saved
 * this step then, or it is a new rank 0, which may be too late. */
static gr_status save(training_run *r, uint64_t step, bool goes_on, gr_diag *diag)
{
    bool again = goes_on && r->lead && r->begun_step == step && !gr_job_is_asynchronous(r->job);
    if (r->lead) {      /* one that is due by the clock or by steps finds nothing to wait for */
        gr_diag before; /* the thread has warned of it */
        (void)!gr_saver_wait(r->trainer.saver, &before);
    }
    gr_status status = gr_state_gather(&r->trainer, step, !again, &r->residuals, diag);
    if (status == GR_E_NOT_FOUND && goes_on) {
        gr_log_write(r->options->log, GR_LOG_WARN, "checkpoint",
                     "the best one, of step %llu, is left out unless it is there already: rank 0 "
                     "was lost when it was due, and the parameter servers have gone on",
                     (unsigned long long)step);
        return GR_OK;
    }
    if (status == GR_OK && r->lead && !again) {
        begin_checkpoint(r, step, goes_on);
    }
    return status;
}

/* Returns true if a checkpoint of the end is written. */
static bool saves_last(const training_run *r)
{
    return gr_job_writes_checkpoints(r->job) && r->progress.steps > r->progress.first_step;
}

/* `step` steps are done, and all ranks know what any of them has said; with an asynchronous
 * strategy rank 0 alone saves, and the end comes when all have met. */
static gr_status save_or_stop(training_run *r, uint64_t step, gr_diag *diag)
{
    bool free = gr_job_is_asynchronous(r->job);
    bool ends = is_over(r, step), stops = r->trainer.step.stop && !ends;
    bool due = free ? is_due(r, step)
                    : r->trainer.step.save || is_best(r, step) || (ends && saves_last(r));
    gr_status status = GR_OK;
    if ((due || stops) && (r->lead || !free)) {
        status = save(r, step, !ends && !stops, diag);
    }
    return status == GR_OK && stops ? stop(r, step, diag) : status;
}

/* From a checkpoint. */
static gr_status restore(training_run *r, gr_diag *diag)
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
        r->progress.best = info.metric == r->job->metric ? info.best : gr_best_none();
    }
    return status;
}

/* ---- The training ---------------------------------------------------------------------------- */

/* All have done the same step. Nobody goes before all have what they need from it. */
static gr_status leave_generation(training_run *r)
{
    if (r->trainer.gen.world_size > 1) {
        gr_status status = gr_barrier(r->comm);
        (void)status; /* who has gone already was through it */
    }
    return GR_PENDING;
}

/* A step has been done, and `before` is the epoch's meter without it. */
static void report_progress(training_run *r, const gr_meter *before)
{
    const gr_job *job = r->job;
    uint64_t step = r->progress.steps, each = job->steps_per_epoch;
    if (r->options->progress == NULL) {
        return;
    }
    gr_recent_add(&r->recent, before, &r->progress.epoch, gr_now_ns());
    const gr_train_figures figures = {
        .rank = r->trainer.gen.rank,
        .workers = r->trainer.gen.world_size,
        .step = step,
        .steps = job->total_steps,
        .epoch = (step + each - 1) / each,
        .epochs = (job->total_steps + each - 1) / each,
        .loss = r->recent.loss,
        .samples_per_s = r->recent.samples_per_s,
        .late_rank = r->late.rank,
        .late_us = r->late.mean_us,
        .late_host = r->late.rank >= 0 ? gr_comm_host_name(r->comm, r->late.rank) : ""};
    r->options->progress(r->options->progress_arg, &figures);
}

/* GR_PENDING: the next step is one of another generation. */
static gr_status train(training_run *r, gr_diag *diag)
{
    const gr_job *job = r->job;
    const gr_train_options *options = r->options;
    gr_trainer *t = &r->trainer;
    t->step.save = t->step.stop = t->step.renew = false;
    r->progress.steps = t->reached; /* others may have done some before this rank's first one */
    r->chaos.rank_now = t->gen.rank;
    int64_t work_ns = 0;                      /* of the last step */
    gr_training_progress alike = r->progress; /* when all had the same weights last */
    for (;;) {
        gr_status status = GR_OK;
        uint64_t step = r->progress.steps;
        if (r->progress.epochs < epochs_ended(job, step)) {
            /* With an asynchronous strategy others may have done several. */
            r->progress.epochs = epochs_ended(job, step) - 1;
            uint64_t end = (r->progress.epochs + 1) * job->steps_per_epoch;
            status = end_epoch(r, end < job->total_steps ? end : job->total_steps, diag);
        }
        bool asked = options->stop != NULL && options->stop(options->stop_arg);
        t->step.stop =
            t->step.stop || (asked && gr_job_is_asynchronous(job)); /* whatever the others do */
        if (status == GR_OK) {
            status = save_or_stop(r, step, diag);
        }
        if (status != GR_OK || is_over(r, step)) {
            return status;
        }
        if (t->step.renew) {
            return leave_generation(r);
        }
        t->step.asks_stop = asked;
        t->step.asks_save = !gr_job_is_asynchronous(job) && is_due(r, step + 1);
        t->step.asks_renew = gr_comm_change_wanted(r->comm);
        gr_comm_set_step(r->comm, step + 1);
        gr_chaos_step(&r->chaos, step + 1, work_ns);
        const gr_meter before = r->progress.epoch;
        alike = t->step.inside_round ? alike : r->progress;
        status = gr_trainer_step(t, step, &r->progress.epoch, diag);
        if (status != GR_OK) {
            r->progress = alike;
            return status == GR_PENDING ? leave_generation(r) : status;
        }
        if (t->step.rolled_back) {
            r->progress = alike;
            r->saved_step = alike.steps;
            continue;
        }
        work_ns = (r->progress.epoch.step_ns - before.step_ns) -
                  (r->progress.epoch.wait_ns - before.wait_ns);
        r->progress.steps = t->reached;
        gr_report_step(&r->report, t->reached, gr_now_ns());
        report_progress(r, &before);
    }
}

/* Of all steps. */
static gr_meter total_of(const training_run *r)
{
    gr_meter total = r->progress.total;
    gr_meter_add(&total, &r->progress.epoch);
    return total;
}

/* The mean over the ranks: a slow rank makes the others wait, itself it waits for nobody. */
static gr_status mean_wait_share(training_run *r, double *share_out, gr_diag *diag)
{
    const gr_meter total = total_of(r);
    double share = gr_meter_wait_share(&total);
    gr_status status = GR_OK;
    if (r->trainer.gen.world_size > 1) {
        status = gr_allreduce(r->comm, &share, 1, GR_F64, GR_SUM);
    }
    *share_out = share / r->trainer.gen.world_size;
    return gr_trainer_comm_status(r->comm, status, "the waiting times were not collected", diag);
}

static gr_status finish(training_run *r, gr_diag *diag)
{
    char sha256[65];
    double share = 0.0;
    double seconds = (double)(gr_now_ns() - r->begin_ns) * 1e-9;
    gr_lateness late = {.rank = -1};
    const gr_strategy *strategy = r->trainer.strategy;
    gr_status status = GR_OK;
    if (strategy->finish != NULL) {
        status = strategy->finish(&r->trainer, diag);
        r->evaluated_step = UINT64_MAX; /* of other weights */
        if (status == GR_OK && r->lead && saves_last(r)) {
            status = save(r, r->progress.steps, false, diag);
        }
    }
    if (status == GR_OK && strategy->count == NULL) { /* else nobody waits in a step */
        status = find_late(r, r->skews, seconds, &late, diag);
    }
    if (status == GR_OK) {
        status = evaluate(r, r->comm, r->progress.steps, diag);
    }
    if (status == GR_OK) {
        status = gr_weights_agree(r->trainer.model, r->trainer.values, r->comm, diag);
    }
    if (status == GR_OK) {
        status = mean_wait_share(r, &share, diag);
    }
    gr_staleness stale = {0};
    if (status == GR_OK && r->lead && strategy->count != NULL) {
        status = strategy->count(&r->trainer, &stale, diag);
    }
    if (status != GR_OK || !r->lead || r->ended) {
        return status;
    }
    status = gr_weights_save(r->trainer.model, r->trainer.values, r->weights_path, sha256, diag);
    if (status != GR_OK) {
        return status;
    }
    if (r->job->metric >= 0 && isnan(r->progress.best.value)) {
        gr_log_write(r->options->log, GR_LOG_WARN, "train",
                     "%s was null in every evaluation: %s had nothing to go by",
                     gr_best_metric(r->job),
                     r->job->early_stopping.wanted ? "early_stopping" : "keep_best");
    }
    gr_saver_counts counts = gr_saver_counts_of(r->trainer.saver);
    const gr_meter total = total_of(r);
    gr_end_record record = {.loss = r->progress.last_loss,
                            .test = r->evaluation,
                            .weights = r->weights_path,
                            .weights_sha256 = sha256,
                            .workers = r->trainer.gen.world_size,
                            .shards = r->job->shards,
                            .steps = r->progress.steps,
                            .metric = gr_best_metric(r->job),
                            .best = r->progress.best,
                            .stopped_early = r->progress.steps < r->job->total_steps,
                            .seconds = r->progress.seconds_before + seconds,
                            .samples_per_s = gr_meter_samples_per_s(&total),
                            .comm_wait_share = share,
                            .late_rank = late.rank,
                            .late_us = late.mean_us,
                            .staleness = share_of(stale.sum, stale.updates),
                            .staleness_most = (int64_t)stale.most,
                            .dropped_share = share_of(stale.dropped, stale.pushes),
                            .checkpoints = counts.begun,
                            .checkpoint_wait_s = (double)counts.held_ns * 1e-9};
    status = gr_end_write(&record, r->metrics, r->metrics_path, diag);
    if (status == GR_OK) {
        status = gr_report_end(&r->report, &record, diag);
    }
    r->ended = status == GR_OK;
    return status;
}

/* Nobody leaves before rank 0 has written everything: if it dies before, another one does. */
static gr_status wait_for_all(training_run *r, gr_diag *diag)
{
    gr_status status = r->trainer.gen.world_size > 1 ? gr_barrier(r->comm) : GR_OK;
    return gr_trainer_comm_status(r->comm, status, "the end did not come", diag);
}

/* ---- Generations ----------------------------------------------------------------------------- */

/* The kernels start their threads when they run first, and the threads keep the signal mask of that
 * moment. With all signals blocked they leave every one to this thread, which may hold it. */
static gr_status prepare_trainer(training_run *r, gr_diag *diag)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    gr_status status = gr_trainer_prepare(&r->trainer, r->job, diag);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

/* All that can be done without the others, who would have to wait for it. */
static gr_status prepare(training_run *r, gr_diag *diag)
{
    gr_status status = name_output(r, diag);
    if (status == GR_OK) {
        status = prepare_trainer(r, diag);
    }
    return status == GR_OK ? gr_evaluator_create(r->job, &r->evaluator, diag) : status;
}

/* Makes what this generation needs. */
static gr_status enter(training_run *r, gr_diag *diag)
{
    r->evaluated_step = UINT64_MAX; /* all evaluate again, or none does */
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
    if (status == GR_OK && !r->lead && r->trainer.gen.rank == 0) {
        status = lead(r, diag);
    }
    return status;
}

static gr_status run_generation(training_run *r, gr_diag *diag)
{
    gr_status status = enter(r, diag);
    if (status == GR_OK) {
        status = begin(r, diag);
    }
    if (status == GR_OK && r->lost_ns > 0) {
        status = report_recovery(r, diag);
    }
    if (status == GR_OK) {
        status = train(r, diag);
    }
    if (status == GR_OK) {
        status = finish(r, diag);
    }
    return status == GR_OK ? wait_for_all(r, diag) : status;
}

/* One generation after the other, as members are lost, come and go, until the training is over. */
static gr_status run_all(training_run *r, gr_comm **comm, gr_diag *diag)
{
    gr_status status = prepare(r, diag);
    if (status == GR_OK && *comm == NULL) {
        gr_comm_config config; /* loaders and savers compute and write; they start no operation */
        gr_comm_config_init(&config);
        config.threads = GR_THREADS_ONE;
        status = gr_comm_create(&config, comm, diag);
    }
    if (status != GR_OK) {
        return status == GR_E_CANCELLED ? GR_OK : status; /* not needed */
    }
    r->comm = *comm;
    r->chaos.rank = r->options->joining ? -1 : gr_comm_rank(r->comm);
    if (r->options->joined != NULL) {
        r->options->joined(r->options->joined_arg);
    }
    for (;;) {
        status = run_generation(r, diag);
        bool alone = r->trainer.gen.world_size == 1;
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
    training_run r = {.job = job, .options = options};
    r.chaos = (gr_chaos_run){.chaos = options->chaos,
                             .after = options->chaos_after,
                             .coordinator = getenv("GRADUS_COORDINATOR"),
                             .log = options->log};
    r.progress.last_loss = (double)NAN;
    r.progress.best = gr_best_none();
    gr_report_init(&r.report, GR_REPORT_NONE, options->out, -1);
    if (getenv("OMP_NUM_THREADS") == NULL) {
        /* Without a launcher, all cores: workers of a host would be in each other's way. */
        gr_kernels_use_threads((int)job->distribution.worker_threads);
    }
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
