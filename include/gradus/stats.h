/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_STATS_H
#define GRADUS_STATS_H

/* What a communicator knows of its past: which rank is late. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How late another rank came to the operations that both were in: the time from the moment at which
 * this rank started an operation to the first that came from the other one; 0 where that was there
 * already, or came while this rank waited for yet another one. It is kept for all operations of a
 * context together, always.
 *
 * Where an algorithm sends nothing directly from the other rank to this one, nothing is counted.
 * What this rank itself starts early and looks at late (gr_start, long computing, gr_wait without a
 * progress thread) counts for all others alike: so compare ranks with each other. A rank that waits
 * for a third one before it can send looks late as well; the cause is the rank that is late for
 * others and waits for none. */
typedef struct gr_skew {
    uint64_t operations; /* that were counted */
    double mean_us;      /* over all of them */
    double recent_us;    /* over about the last 16 */
    double max_us;
} gr_skew;

/* rank      of this communicator; for the caller's own all is 0
 * skew_out  filled on success
 * Returns   GR_OK; GR_E_INVALID (no such rank, skew_out NULL).
 * Local: no other rank takes part. Still possible when the communicator has ended. */
GR_API gr_status gr_comm_skew(gr_comm *comm, int rank, gr_skew *skew_out) GR_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
