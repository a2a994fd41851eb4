/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_VERIFY_H
#define GR_SIM_VERIFY_H

#include "coll/plan/plan.h"

/* Runs the finished plans of all ranks, plans[0 .. world_size), on symbols instead of numbers, over
 * links that hold one part of one message until its last reader has read it, and proves:
 *   - every message is matched, none is left over, and whatever runs first, nothing deadlocks;
 *   - the dependencies cover every hazard, and no step reads what nobody wrote;
 *   - every rank's result is complete, with each contribution exactly once, and in the order of the
 *     shard tree if `canonical`; a barrier lets nobody out before all are in;
 *   - a rank sends, and receives, at most max_blocks_sent blocks, unless that is negative.
 * Returns GR_OK; GR_E_BUG with one sentence in diag (may be NULL) that names rank, step and what is
 * wrong; GR_E_INVALID without ranks; GR_E_UNSUPPORTED for more than 16,384 steps a rank;
 * GR_E_NO_MEMORY. Any thread. */
gr_status gr_plan_verify(const gr_plan *plans, int world_size, bool canonical, long max_blocks_sent,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
