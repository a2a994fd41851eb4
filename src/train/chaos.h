/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHAOS_H
#define GR_TRAIN_CHAOS_H

/* Faults of a step (link/fault.h): a worker does them to itself. */

#include "base/log.h"
#include "link/fault.h"

/* Of one worker while it trains. */
typedef struct gr_chaos_run {
    const gr_chaos *chaos; /* borrowed; NULL: nothing happens */
    int rank;              /* at the start of the job; -1: came later */
    int rank_now;
    uint64_t after; /* faults of steps up to this one have happened in an earlier attempt */
    const char *coordinator;
    const gr_log *log;
    uint64_t step; /* that was begun last; some may be left out between two */
    uint64_t done; /* a bit for each fault: it happens once, also if its step is repeated */
} gr_chaos_run;

/* Does what is due before step `step` (from 1), of which a usual one takes `work_ns` without
 * waiting. May not return. */
void gr_chaos_step(gr_chaos_run *run, uint64_t step, int64_t work_ns);

#endif
