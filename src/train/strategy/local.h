/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_LOCAL_H
#define GR_TRAIN_LOCAL_H

/* `strategy: local` in numbers; what it does is in strategy_local.c. */

#include "train/job/job.h"

/* The number of steps that are done when the round of step `step` (from 0) ends: after each
 * job->sync_steps steps of an epoch, with the epoch, and with the job. Pure. */
uint64_t gr_local_round_end(const gr_job *job, uint64_t step);

/* How many of the optimizer's vectors are averaged with the weights: none if shards keep them, or
 * if the one of plain SGD says nothing of the next step. */
int gr_local_averaged_states(const gr_job *job);

/* Memory for the copies of so many shards, each of `values` weights. */
uint64_t gr_local_bytes(const gr_job *job, size_t values, int own_shards);

#endif
