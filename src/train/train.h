/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_TRAIN_H
#define GR_TRAIN_TRAIN_H

#include "base/log.h"
#include "train/chaos.h"
#include "train/evaluation.h"
#include "train/job/job.h"
#include <gradus/comm.h>

typedef enum gr_report_style {
    GR_REPORT_AUTO = 0, /* a bar on a terminal, lines elsewhere */
    GR_REPORT_LINES = 1,
    GR_REPORT_JSON = 2, /* one object a line */
    GR_REPORT_NONE = 3  /* ranks other than 0 */
} gr_report_style;

/* How far the training has come, as this rank knows it: all ranks know the same, but where each
 * makes steps of its own. */
typedef struct gr_train_figures {
    int rank, workers;
    uint64_t step, steps, epoch, epochs; /* steps that are done, of all; the epoch they are in */
    double loss, samples_per_s;          /* of the last seconds */
    int late_rank;         /* that kept the others waiting in the epoch that ended last; -1: none */
    double late_us;        /* by so much, on average */
    const char *late_host; /* "": nobody knows; until the call returns */
} gr_train_figures;

typedef struct gr_train_options {
    gr_report_style style; /* for rank 0, whoever that is */
    FILE *out;             /* of the report; borrowed */
    const gr_log *log;     /* for warnings; may be NULL */
    const char *resume;    /* the checkpoint to go on from; NULL: from the beginning */
    /* Asked before each step: is the training to end after it? Needs to be true on one rank only.
     * NULL: never. */
    bool (*stop)(void *stop_arg);
    void *stop_arg;
    void (*joined)(void *joined_arg); /* called when the communicator is there; NULL */
    void *joined_arg;
    /* Called after each step, by the thread that trains: it is to be quick. NULL. */
    void (*progress)(void *progress_arg, const gr_train_figures *figures);
    void *progress_arg;
    const gr_chaos *chaos; /* faults to inject; NULL: none */
    uint64_t chaos_after;  /* those of steps up to this one have happened */
    bool joining;          /* this worker was not there when the job began */
} gr_train_options;

/* Train the job as one worker of `comm`: collective over all ranks. *comm may be NULL: then all
 * that needs no other worker is made first, and gr_comm_create called after it. When members are
 * lost, and the job may go on without them, those that are left repeat the step in a new
 * generation; when others are to come or go, that begins after a step. *comm is replaced, or NULL
 * in the end if that came to nothing, or if this worker is not needed any more (which is GR_OK).
 * Rank 0 reports, and writes the metrics file, checkpoints and the weights. On failure diag holds
 * the sentence. GR_E_CANCELLED: ended because of `stop`, with a checkpoint to go on from. */
gr_status gr_train_run(gr_job *job, gr_comm **comm, const gr_train_options *options,
                       gr_diag *diag) GR_MUST_CHECK;

/* The evaluation of saved weights, as the end of training computes it. The result lives as long as
 * the job. */
typedef struct gr_eval_result {
    gr_evaluation evaluation;
    char weights_sha256[65];
} gr_eval_result;
gr_status gr_eval_run(gr_job *job, const char *weights_path, gr_eval_result *result_out,
                      gr_diag *diag) GR_MUST_CHECK;

#endif
