/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_SAVE_H
#define GR_TRAIN_CHECKPOINT_SAVE_H

/* Checkpoints are written by a thread of their own, beside the training (rank 0).
 *
 * Weights and optimizer state do not change between the update of a step and the update of the next
 * one. So the thread copies them while the next step computes its gradients, and the trainer has to
 * ask only just before that update (gr_saver_settle): what has not been copied by then it copies
 * itself, so it never waits for the other thread to be scheduled. Then the thread writes the copy
 * and makes it durable, however long that takes. */

#include "train/checkpoint/checkpoint.h"

typedef struct gr_saver gr_saver;

/* `source` is where the tensors lie; it, job and log are borrowed. Takes the folder where the job
 * says how often to write; a folder that cannot be written, or that another run still holds, is
 * only a warning, and is tried again with each checkpoint. GR_E_NO_MEMORY; GR_E_IO: no thread. */
gr_status gr_saver_create(const gr_job *job, const gr_checkpoint_tensors *source,
                          const gr_checkpoint_writer *writer, const gr_log *log,
                          gr_saver **saver_out, gr_diag *diag) GR_MUST_CHECK;
/* Finishes what is being written. */
void gr_saver_destroy(gr_saver *saver);

/* Returns true if the last checkpoint is still being written. */
bool gr_saver_busy(gr_saver *saver);
/* Begins the next one; must not be busy. With `copy` the source may change after gr_saver_settle,
 * else after gr_saver_wait, as `residuals` (of all shards; NULL) may in both cases. No heap in the
 * calling thread. */
void gr_saver_begin(gr_saver *saver, const gr_checkpoint_info *info, const float *residuals,
                    bool copy);
/* Returns when the source may change. Cheap when nothing is on its way; NULL: nothing is. */
void gr_saver_settle(gr_saver *saver);
/* Until nothing is being written; the result of the last one. */
gr_status gr_saver_wait(gr_saver *saver, gr_diag *diag) GR_MUST_CHECK;

/* How many were begun, and for how long the caller was held up by gr_saver_begin and _settle. */
typedef struct gr_saver_counts {
    int64_t begun, held_ns;
} gr_saver_counts;
gr_saver_counts gr_saver_counts_of(const gr_saver *saver);

#endif
