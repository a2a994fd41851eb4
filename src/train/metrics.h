/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_METRICS_H
#define GR_TRAIN_METRICS_H

/* The numbers of a training run: collected by step, reported by epoch, written as JSON lines. A
 * number that does not exist (accuracy of a regression, test part of size 0) is NaN here and
 * null in JSON. */

#include "train/evaluation.h"
#include <gradus/status.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Sums over the steps of an epoch or of the job. */
typedef struct gr_meter {
    double loss;    /* sum of the steps' mean losses */
    double correct; /* samples */
    int64_t steps, samples;
    int64_t step_ns, wait_ns; /* in training steps; of it, waiting for communication */
} gr_meter;

void gr_meter_add(gr_meter *meter, const gr_meter *more);
double gr_meter_loss(const gr_meter *meter);
double gr_meter_accuracy(const gr_meter *meter);
double gr_meter_samples_per_s(const gr_meter *meter);
double gr_meter_wait_share(const gr_meter *meter);

/* Means of the last seconds, whole steps; of the first ones as far as they have gone. */
typedef struct gr_recent {
    double loss, samples_per_s;
    gr_meter sum; /* of the seconds that go on */
    int64_t begin_ns;
    bool is_full; /* seconds were over before */
} gr_recent;

enum { GR_RECENT_S = 5 };

/* One more step, or several: `before` and `after` are the sums of an epoch. */
void gr_recent_add(gr_recent *recent, const gr_meter *before, const gr_meter *after,
                   int64_t now_ns);

/* The best value of the metric that a job watches. */
typedef struct gr_best {
    double value;  /* NaN: there was none yet */
    uint64_t step; /* after so many steps */
    int64_t wait;  /* evaluations since then, none of which was better */
} gr_best;

/* Before the first step. */
typedef struct gr_start_record {
    const char *name;
    const char *link; /* "shm", "tcp"; NULL or "none": one worker */
    int workers, shards;
    int64_t global_batch, parameters;
    uint64_t total_steps, steps_per_epoch;
    uint64_t step; /* done already: the training goes on from a checkpoint; 0: from the beginning */
} gr_start_record;

typedef struct gr_epoch_record {
    uint64_t epoch, epochs;     /* from 1 */
    uint64_t step, total_steps; /* steps done */
    double loss, accuracy, test_loss, test_accuracy, test_rmse, test_mae, test_r2;
    double samples_per_s, comm_wait_share, learning_rate;
    int late_rank;    /* that kept the others waiting in this epoch; -1: none did clearly */
    double late_us;   /* by so much, on average */
    double staleness; /* of a gradient when it was applied, on average; NaN: they are not stale */
} gr_epoch_record;

/* Members were lost, and the others go on. */
typedef struct gr_recovery_record {
    bool lost;      /* a member was; else members came or went as wanted */
    uint64_t step;  /* that were done, and need not be repeated */
    int workers;    /* that are left */
    double seconds; /* from the failure of an operation until all were ready again */
} gr_recovery_record;

/* The training was asked to end. */
typedef struct gr_stop_record {
    uint64_t step, total_steps;
    const char *checkpoint; /* path */
} gr_stop_record;

typedef struct gr_end_record {
    double loss;
    gr_evaluation test;
    const char *weights; /* path */
    const char *weights_sha256;
    int workers, shards;
    uint64_t steps;
    const char *metric; /* that was watched; NULL: none */
    gr_best best;
    bool stopped_early;
    double seconds, samples_per_s, comm_wait_share;
    int late_rank;            /* that kept the others waiting; -1: none did clearly */
    double late_us;           /* by so much, on average */
    double staleness;         /* as of an epoch */
    int64_t staleness_most;   /* of any gradient */
    double dropped_share;     /* of the gradients, which came too late; NaN: none are dropped */
    int64_t checkpoints;      /* begun */
    double checkpoint_wait_s; /* the training was held up by them, in all */
} gr_end_record;

/* One object and a newline. GR_E_NO_MEMORY, GR_E_IO (with errno text); `where` names the file. */
gr_status gr_start_write(const gr_start_record *record, FILE *file, const char *where,
                         gr_diag *diag) GR_MUST_CHECK;
gr_status gr_epoch_write(const gr_epoch_record *record, FILE *file, const char *where,
                         gr_diag *diag) GR_MUST_CHECK;
gr_status gr_recovery_write(const gr_recovery_record *record, FILE *file, const char *where,
                            gr_diag *diag) GR_MUST_CHECK;
gr_status gr_stop_write(const gr_stop_record *record, FILE *file, const char *where,
                        gr_diag *diag) GR_MUST_CHECK;
gr_status gr_end_write(const gr_end_record *record, FILE *file, const char *where,
                       gr_diag *diag) GR_MUST_CHECK;

/* The contents of the lines of a metrics file. */
typedef struct gr_metrics_reported {
    bool start;
    uint64_t epoch; /* the last one; 0: none */
} gr_metrics_reported;

/* Cuts the lines of a metrics file back to what was so after `step`, when `epochs` were over: later
 * lines, the end of a run, an epoch that a longer job goes on within, and a line that was not
 * finished go. No file: nothing happens. */
gr_status gr_metrics_cut(const char *path, uint64_t step, uint64_t epochs,
                         gr_metrics_reported *reported_out, gr_diag *diag) GR_MUST_CHECK;

#endif
