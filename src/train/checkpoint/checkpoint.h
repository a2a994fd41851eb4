/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_H
#define GR_TRAIN_CHECKPOINT_H

/* The folder that the checkpoints of a job lie in.
 *
 *   step-000000400             a checkpoint (checkpoint_file.h), whole and durable
 *   .step-000000500.1.partial  one that is being written or removed, by the writer of generation 1
 *   .lock                      held by the process that writes here (checkpoint_lock.h)
 *
 * A name without "partial" appears by rename after everything in it is durable. Partial ones that
 * are there when a run takes the lock are of a dead run, and are removed. */

#include "base/log.h"
#include "train/checkpoint/checkpoint_file.h"
#include "train/checkpoint/checkpoint_lock.h"

/* ---- Looking --------------------------------------------------------------------------------- */

/* The steps of the checkpoints in `folder`, ascending, damaged ones included; heap memory (free).
 * No folder: none. */
gr_status gr_checkpoint_list(const char *folder, uint64_t **steps_out, int *count_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* "<folder>/step-000000400"; GR_E_INVALID: too long for a path. */
gr_status gr_checkpoint_path(const char *folder, uint64_t step, char *path_out, size_t path_bytes,
                             gr_diag *diag) GR_MUST_CHECK;
/* Opens the newest one of which every byte is sound; warns of those that are passed over.
 * GR_E_NOT_FOUND: there is none at all. GR_E_INVALID: none is sound. */
gr_status gr_checkpoint_newest(const char *folder, const gr_log *log,
                               gr_checkpoint **checkpoint_out, gr_diag *diag) GR_MUST_CHECK;

/* Before a run starts anything: does the folder belong to another run that goes on; without
 * `resume`, are there checkpoints that a start from the beginning would mix with its own (of
 * another job, if this one writes one only when it is asked to end)? GR_E_INVALID with a sentence
 * that says so. */
gr_status gr_checkpoint_may_start(const gr_job *job, bool resume, gr_diag *diag) GR_MUST_CHECK;
/* The checkpoint to go on from; *checkpoint_out NULL: there is none, start from the beginning.
 * GR_E_INVALID: none is sound, or it is of another job, or beyond this job's end. Warns where the
 * weights will not be those of an undisturbed run. A checkpoint of other `shards` than the job's is
 * returned unchecked where the job file has none: open the job again with these. */
gr_status gr_checkpoint_find(const gr_job *job, const gr_log *log, gr_checkpoint **checkpoint_out,
                             gr_diag *diag) GR_MUST_CHECK;
/* Checks that `job` can go on from the checkpoint. */
gr_status gr_checkpoint_fits(const gr_job *job, const gr_checkpoint *checkpoint,
                             gr_diag *diag) GR_MUST_CHECK;

/* ---- Writing: one owner ---------------------------------------------------------------------- */

/* What is known of a checkpoint in the folder. */
typedef struct gr_checkpoint_state {
    uint64_t step;
    bool sound;
} gr_checkpoint_state;

typedef struct gr_checkpoint_folder {
    const char *path; /* borrowed */
    int64_t keep;     /* 0: all */
    uint64_t best;    /* the step of one that stays whatever its age; 0: none */
    gr_checkpoint_writer writer;
    int lock_fd;                /* -1: not ours yet */
    uint64_t device;            /* of the folder when it was first ours; 0: never */
    gr_checkpoint_state *known; /* heap; what this writer has written or read since it opened */
    int known_count;
} gr_checkpoint_folder;

/* Makes the folder, takes the lock and removes what dead runs have left half-written. GR_E_INVALID:
 * another run holds the lock (the first time after some patience: it may be about to end), or a
 * later generation has taken it over. gr_checkpoint_put tries again after any failure. */
gr_status gr_checkpoint_folder_open(gr_checkpoint_folder *folder, gr_diag *diag) GR_MUST_CHECK;
void gr_checkpoint_folder_close(gr_checkpoint_folder *folder);

/* Writes a checkpoint, and makes it durable and visible. On failure nothing of it is left. */
gr_status gr_checkpoint_put(gr_checkpoint_folder *folder, const gr_checkpoint_info *info,
                            const gr_fingerprint *fingerprint, const gr_checkpoint_tensors *tensors,
                            gr_diag *diag) GR_MUST_CHECK;
/* Keeps the newest `keep` sound ones, that of step `written` among them, and the best one, and
 * removes what is older, damaged or not. Damaged ones count for nothing; those that this writer did
 * not write are read once. */
gr_status gr_checkpoint_retain(gr_checkpoint_folder *folder, uint64_t written,
                               gr_diag *diag) GR_MUST_CHECK;

#endif
