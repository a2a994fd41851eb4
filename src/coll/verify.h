/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_VERIFY_H
#define GR_COLL_VERIFY_H

#include "coll/plan.h"

/* Runs the plans of all ranks (plans[0 .. world_size)) on symbols instead of numbers, with links that
 * hold no message at all (a send meets its receive), and proves:
 *   every message is matched, none is left over; no deadlock; every rank's result is complete, with
 *   each contribution exactly once; in the order of the shard tree if `canonical`; no step reads what
 *   nobody wrote; a rank sends and receives at most *bytes bound (in blocks) if max_blocks_sent >= 0.
 * GR_E_BUG with one sentence in diag that names rank, step and what is wrong. */
gr_status gr_plan_verify(const gr_plan *plans, int world_size, bool canonical, long max_blocks_sent,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
