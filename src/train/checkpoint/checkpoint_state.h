/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_STATE_H
#define GR_TRAIN_CHECKPOINT_STATE_H

/* Between a trainer and a checkpoint: collective, so that the checkpoint knows of no ranks. */

#include "train/checkpoint/checkpoint_file.h"
#include "train/step.h"

/* Where a trainer's tensors lie; without what topk has left out. */
gr_checkpoint_tensors gr_state_tensors(gr_trainer *trainer);

/* After `step` steps: to rank 0 comes what it has not, of the strategy (see there), and with topk
 * what all shards have left out so far, in the order of the shards: in *all, which is made at the
 * first call (free it). Collective. `wanted`: rank 0 needs it, else it only takes part.
 * GR_E_NOT_FOUND: that of the strategy is gone; all have taken part. */
gr_status gr_state_gather(gr_trainer *trainer, uint64_t step, bool wanted, float **all,
                          gr_diag *diag) GR_MUST_CHECK;

/* Rank 0 reads the checkpoint at `path`, and all ranks go on from it: the next step of the trainer
 * is info_out->step. Collective. GR_E_INVALID: damaged, or of another job; not the same on every
 * rank, those that were not notified fail by the loss of their peer. */
gr_status gr_state_restore(gr_trainer *trainer, const char *path, gr_checkpoint_info *info_out,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
