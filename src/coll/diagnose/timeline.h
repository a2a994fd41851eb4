/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_TIMELINE_H
#define GR_COLL_DIAGNOSE_TIMELINE_H

/* What each rank did when, for a picture: operations, phases of training, stalls, failures.
 *
 * Every rank writes a part of its own, FILE.<rank>, and gr_timeline_merge makes FILE of them, in
 * Chrome's trace format. A part is memory that is mapped from its file: to write an event is to
 * copy about a hundred bytes, nothing is formatted, and what was written is in the file whatever
 * becomes of the process, the operations that it was in included.
 *
 * Threads: any may write; events of one thread stand in their order. */

#include "base/log.h"
#include "coll/diagnose/flight_recorder.h"

typedef struct gr_timeline gr_timeline;
typedef struct gr_timeline_op gr_timeline_op; /* an operation that was begun */

/* Makes the part of `rank`, an old one is overwritten. `log` is copied, NULL ok.
 * GR_E_IO with the path: it cannot be written; GR_E_INVALID: another communicator writes it. */
gr_status gr_timeline_open(const char *path, int rank, int world_size, const char *host,
                           const gr_log *log, gr_timeline **timeline_out,
                           gr_diag *diag) GR_MUST_CHECK;
void gr_timeline_close(gr_timeline *timeline); /* NULL ok; operations are over, or unfinished */

/* ---- Events ---------------------------------------------------------------------------------- */
/* `number`: as people see it; `ranks`: of its communicator. NULL: no room; then there is nothing to
 * end either. */
gr_timeline_op *gr_timeline_begin(gr_timeline *timeline, const gr_flight_recorder_entry *entry,
                                  uint32_t number, uint64_t size_bytes, int ranks);
/* `waited_ticks`: until the first word of the last peer (a rank of the job) came; peer -1: nothing
 * is known of that. */
void gr_timeline_end(gr_timeline_op *op, uint64_t ended_ticks, gr_status status,
                     uint64_t waited_ticks, int waited_for);

typedef enum gr_timeline_mark_kind {
    GR_TIMELINE_STALL = 0,
    GR_TIMELINE_FAILURE = 1,
    GR_TIMELINE_MARK_COUNT = 2
} gr_timeline_mark_kind;
void gr_timeline_mark(gr_timeline *timeline, gr_timeline_mark_kind kind, const char *text);

/* Phases of training, nested by their times. */
typedef enum gr_timeline_phase {
    GR_TIMELINE_STEP = 0,
    GR_TIMELINE_DATA = 1,
    GR_TIMELINE_FORWARD = 2,
    GR_TIMELINE_BACKWARD = 3,
    GR_TIMELINE_WAIT = 4,
    GR_TIMELINE_UPDATE = 5,
    GR_TIMELINE_PHASE_COUNT = 6
} gr_timeline_phase;
/* When a phase begins: 0 if there is no timeline. */
static inline uint64_t gr_timeline_now(const gr_timeline *timeline)
{
    return timeline ? gr_flight_recorder_now() : 0;
}
/* It ends now. `number`: the step, the bucket; timeline NULL ok. */
void gr_timeline_phase_over(gr_timeline *timeline, gr_timeline_phase phase, uint64_t number,
                            uint64_t begun_ticks);

/* ---- Making one file ------------------------------------------------------------------------- */
typedef struct gr_timeline_summary {
    int ranks;           /* whose parts were there */
    int missing;         /* the first rank that has left none; -1: all have */
    int cut_rank;        /* the first whose part could not be read to its end; -1: none */
    uint64_t events;     /* that were written */
    uint64_t lost;       /* that had no room in their part */
    uint64_t unfinished; /* operations that their rank did not end */
} gr_timeline_summary;

/* FILE of the parts of ranks 0 .. rank_count - 1 (0: as many as the parts name), which are
 * removed; FILE is made anew. What is damaged is left out. Times are those of the monotonic clock,
 * which the processes of a host have in common; hosts are set against each other by their time of
 * day; they count from what the file's otherData gives as monotonic_ns.
 * GR_E_NOT_FOUND: there is no part; GR_E_IO; GR_E_NO_MEMORY. The parts stay if it fails. */
gr_status gr_timeline_merge(const char *path, int rank_count, gr_timeline_summary *summary_out,
                            gr_diag *diag) GR_MUST_CHECK;
/* Removes what an earlier job may have left in place of the parts of ranks 0 .. rank_count - 1. */
void gr_timeline_clear(const char *path, int rank_count);

#endif
