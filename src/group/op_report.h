/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_OP_REPORT_H
#define GR_GROUP_OP_REPORT_H

/* The messages between ranks and coordinator about operations that do not go on: the body of a
 * REPORT message. Pure functions.
 *
 * Messages are on their way while ranks go on. A rank therefore numbers its waits (`seq`), and what
 * follows from a wait names it (`answers`): it holds as long as the rank is in that wait, and means
 * nothing after it. */

#include "base/fail.h"

enum {
    GR_REPORT_TEXT_BYTES = GR_DIAG_TEXT_BYTES,
    GR_REPORT_AWAITS_MAX = 16, /* ranks that one report lists */
    GR_REPORT_BYTES_MAX = 72 + GR_REPORT_TEXT_BYTES + 4 * GR_REPORT_AWAITS_MAX
};

typedef enum gr_op_report_kind {
    /* From a rank: it does not wait (any more). */
    GR_REPORT_IDLE = 1,
    /* From a rank: `op` has not moved for some time. To a rank: another rank waits for it. */
    GR_REPORT_WAITS = 2,
    /* From a rank: it has called `text`, and `peer` has sent data of `op` instead, or waits in `op`
     * (its wait `answers`). The coordinator passes this on to `peer`. */
    GR_REPORT_MISMATCH = 3,
    /* To a rank in its wait `answers`: `peer` is the root cause, reached through `via`. `text` is
     * the call that the root cause waits in itself, if it waits. */
    GR_REPORT_CAUSE = 4,
    /* From a rank to the ranks in `awaits`: it has ended the sub-group `op.comm` with number
     * `serial`, and uses no memory of the members any more. `text` is the reason, `peer` the rank
     * at fault, `called_at` the negated status. `answers` 1: those ranks have not reported the same
     * yet, and are asked to. */
    GR_REPORT_ENDED = 5,
    /* To a rank: `peer` is no member of the generation any more: it was lost, or asks for the next
     * generation (`text` is the reason), or it has left in order (`answers` 1). A rank that has no
     * connection to it could not know. */
    GR_REPORT_GONE = 6,
    GR_REPORT_KIND_END
} gr_op_report_kind;

/* An operation as all ranks know it. */
typedef struct gr_op_id {
    uint16_t comm;
    bool is_message;
    bool sends;      /* of a message: the rank that names it sends it */
    uint32_t number; /* in its communicator; of a message: on its link and direction */
    int32_t partner; /* of a message: the rank at its other end; else -1 */
    uint64_t fingerprint;
} gr_op_id;

typedef struct gr_op_report {
    gr_op_report_kind kind;
    uint64_t generation; /* of the group */
    int32_t rank;        /* that reports; the coordinator sets it */
    int32_t peer, via;   /* see the kinds; -1: none */
    gr_op_id op;
    /* ENDED: number of the sub-group. MISMATCH: number of the sub-group in which the rank has
     * called `text`. 0: the communicator of all ranks. */
    uint32_t serial;
    /* MISMATCH. 0: `peer` sent data of `op`. Else the rank waits in `op`, and `peer` sent data of
     * operation `called_at` of communicator `met` - 1. */
    uint16_t met;
    /* MISMATCH: the number of the call that `peer` is to look up. */
    uint32_t called_at;
    /* WAITS: the rank can start nothing before `op` is over. */
    bool blocked;
    /* WAITS, to a rank in its wait `answers`: that rank and the reporting rank wait for each
     * other. */
    bool deadlock;
    /* WAITS: the number of this wait of the rank, from 1. It changes with `op` and `blocked`. */
    uint32_t seq;
    /* The number of a wait of another rank, see the kinds; 0: none. WAITS, from a rank: the
     * operation of that wait of `peer` cannot begin here while `op` needs `peer`. */
    uint32_t answers;
    /* WAITS: the ranks that `op` waits for. */
    uint32_t awaits_count;
    int32_t awaits[GR_REPORT_AWAITS_MAX];
    char text[GR_REPORT_TEXT_BYTES]; /* the call, with its place in the program */
} gr_op_report;

/* Returns the size in bytes, at most GR_REPORT_BYTES_MAX. */
size_t gr_op_report_put(const gr_op_report *report, uint8_t *out);
/* GR_E_PROTOCOL: malformed. Ranks are below `rank_max`. */
gr_status gr_op_report_get(const uint8_t *data, size_t size_bytes, int rank_max,
                           gr_op_report *report_out, gr_diag *diag) GR_MUST_CHECK;

#endif
