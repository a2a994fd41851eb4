/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_LATENESS_H
#define GR_COLL_DIAGNOSE_LATENESS_H

/* Which rank keeps the others waiting, of what each knows by gr_comm_skew. */

#include <gradus/comm.h>
#include <gradus/stats.h>

typedef struct gr_lateness {
    int rank;        /* -1: none is clearly late */
    double mean_us;  /* how late it came to operations, as the others saw it, on average */
    double total_us; /* in all */
} gr_lateness;

/* What this rank has seen so far, skews_out[gr_comm_size]: to leave it out later. */
gr_status gr_lateness_begin(gr_comm *comm, gr_skew *skews_out) GR_MUST_CHECK;

/* Collective: the same result on all ranks. A rank is named if it has cost the others `least_us` in
 * all, 50 us an operation on average, and at least twice as much as any other rank has: a rank that
 * is late since it waits for another one is no cause, so what a rank waited itself is taken off.
 * `since`: of gr_lateness_begin on this rank; NULL: all counts. Returns as gr_run;
 * GR_E_NO_MEMORY. */
gr_status gr_lateness_find(gr_comm *comm, const gr_skew *since, double least_us,
                           gr_lateness *late_out) GR_MUST_CHECK;

/* What a rank is to the others, on average over them. */
typedef struct gr_lateness_sums {
    double seen_by;  /* ranks that have seen it come late or in time */
    double mean_us;  /* sum over these */
    double total_us; /* sum over these */
    double waits_us; /* what the rank itself waited in all for whom it saw latest */
} gr_lateness_sums;
gr_lateness gr_lateness_judge(const gr_lateness_sums *ranks, int count, double least_us);

#endif
