/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_RECOVER_H
#define GR_TRAIN_RECOVER_H

/* What the members of a new generation must have alike before they can go on. Since weights change
 * only when a step's whole sum has come, and nobody begins a step before all have sent what the one
 * before needs, members differ by one step at most, and who is behind has its old state whole.
 * Joining workers have done no step. */

#include "train/step.h"

/* How far a member has come, beside weights and optimizer. */
typedef struct gr_training_progress {
    uint64_t steps;        /* done */
    uint64_t epochs;       /* ended: evaluated, and reported */
    uint64_t first_step;   /* done before this run began */
    double seconds_before; /* that they took */
    gr_meter epoch;        /* of the running epoch, or of the one in which the job ends */
    gr_meter total;        /* of the whole epochs before */
    double last_loss;
    gr_best best;             /* of the metric that the job watches */
    uint64_t run;             /* the same in all that have been in a generation; 0: not yet */
    gr_epoch_record reported; /* of the epoch that ended last; epoch 0: none has here */
} gr_training_progress;

enum { GR_PROGRESS_BYTES = 302 };

/* As bytes on the wire. gr_progress_get returns false, with *progress_out as it was, if they are of
 * another version. */
void gr_progress_put(const gr_training_progress *progress, uint8_t bytes_out[GR_PROGRESS_BYTES]);
bool gr_progress_get(const uint8_t bytes[GR_PROGRESS_BYTES], gr_training_progress *progress_out);

/* Collective, first in every generation: all end with the run, and with the progress, the weights
 * and the optimizer's state of a member that has come farthest. A failure leaves everything as it
 * was. */
gr_status gr_recover_agree(gr_trainer *trainer, gr_training_progress *progress,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
