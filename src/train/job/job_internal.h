/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_JOB_INTERNAL_H
#define GR_TRAIN_JOB_INTERNAL_H

/* The parts of gr_job_open; for src/train/job*.c only. */

#include "train/job/job.h"

enum {
    GR_JOB_ARENA_BYTES_MAX = 64 << 20,
    GR_JOB_WORKERS_MAX = 4096,
    GR_JOB_SHARDS_MAX = 65536,
    GR_JOB_SHARDS_DEFAULT = 8
};

/* Where a key of `section` stands, or at least the section; NULL if neither is in the file. */
const gr_node *gr_job_setting(const gr_node *section, const char *key);

/* Which settings belong to the strategy; before the workers. */
gr_status gr_job_resolve_strategy(gr_job *job, gr_diag *diag) GR_MUST_CHECK;
/* Can the strategy have so many workers? */
gr_status gr_job_check_workers(const gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* Workers, shards and batches from the settings alone. */
gr_status gr_job_resolve(gr_job *job, const gr_job_overrides *overrides,
                         gr_diag *diag) GR_MUST_CHECK;

/* Steps, against the open data set. */
gr_status gr_job_resolve_steps(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* Strategy local: how often weights are averaged; steps are known. */
gr_status gr_job_resolve_sync(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* How often checkpoints are written; steps are known. */
gr_status gr_job_resolve_checkpoint(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* The model, against data and loss. */
gr_status gr_job_resolve_model(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* Can the folder for `what` ("output", "checkpoint") be made and written? Leaves nothing behind.
 * `node` is where it is named (or NULL). */
gr_status gr_job_check_output(const char *what, const char *path, const gr_node *node,
                              gr_diag *diag) GR_MUST_CHECK;

#endif
