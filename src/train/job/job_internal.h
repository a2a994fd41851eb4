/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_JOB_INTERNAL_H
#define GR_TRAIN_JOB_INTERNAL_H

/* What the files of src/train/job/ share; for them only. */

#include "train/job/job.h"

enum {
    GR_JOB_ARENA_BYTES_MAX = 64 << 20,
    GR_JOB_WORKERS_MAX = 4096,
    GR_JOB_SHARDS_MAX = 65536,
    GR_JOB_SHARDS_DEFAULT = 8
};

/* A part of the settings: a table, its struct in gr_job, and where in gr_job the map stands that it
 * is read from: `root`, or a GR_CONFIG_NODE field of a part before it. */
typedef struct gr_job_part {
    const gr_config_table *table;
    size_t config, section;
} gr_job_part;
enum { GR_JOB_PARTS = 7 };
extern const gr_job_part gr_job_parts[GR_JOB_PARTS];

/* The part that is read from the field at `offset` of gr_job; NULL: the field is no part. */
const gr_job_part *gr_job_part_at(size_t offset);
static inline const gr_node *gr_job_section(const gr_job *job, const gr_job_part *part)
{
    return *(const gr_node *const *)(const void *)((const char *)job + part->section);
}

/* Returns true if the job has this part. Parts of strategies and of rare features may be
 * missing. */
bool gr_job_has_part(const gr_job *job, const gr_config_table *table);

/* An empty job; NULL: no memory. */
gr_job *gr_job_create(const char *path, gr_diag *diag);
/* Reads all parts from the sections at `root`: defaults, then the file, then `environment`, unless
 * that is NULL. */
gr_status gr_job_read_parts(gr_job *job, char *const *environment, gr_diag *diag) GR_MUST_CHECK;

/* The choices of `consistency`; NULL behind the last. */
const char *gr_job_consistency_name(int index);

/* Which settings belong to the strategy; before the workers. */
gr_status gr_job_resolve_strategy(gr_job *job, gr_diag *diag) GR_MUST_CHECK;
/* Checks that the strategy can have so many workers. */
gr_status gr_job_check_workers(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* Names and folders for output and checkpoints: can the folders be made and written? Leaves nothing
 * behind. */
gr_status gr_job_resolve_output(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

/* How often weights are averaged (strategy local) and checkpoints are written; once more when
 * steps_per_epoch is known. */
gr_status gr_job_resolve_intervals(gr_job *job, gr_diag *diag) GR_MUST_CHECK;

#endif
