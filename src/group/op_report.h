/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_OP_REPORT_H
#define GR_GROUP_OP_REPORT_H

/* What ranks and coordinator tell each other about operations that do not go on: the body of a
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
    GR_REPORT_IDLE = 1,     /* from a rank: it waits for nobody (any more) */
    GR_REPORT_WAITS = 2,    /* from a rank: `op` has not moved for some time. To a rank: of another
                             * one, which waits for it */
    GR_REPORT_MISMATCH = 3, /* from a rank: `peer` sent data of `op`, or waits in `op` as its wait
                             * `answers` says, where this rank called `text`. To that peer: the
                             * same */
    GR_REPORT_CAUSE = 4,    /* to a rank in its wait `answers`: `peer` is the root cause, reached
                          * through `via`; `text` says what the root cause waits in itself, if it
                          * does */
    GR_REPORT_ENDED = 5,    /* from a rank to the ranks in `awaits`: it has ended the sub-group
                          * `op.comm` with number `serial`, and uses nothing of its members any
                          * more; `text` says why, `peer` is the rank at fault, `called_at` the
                          * status negated. With `answers` 1 it has not heard the same of them */
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
    int32_t rank;        /* whose report it is; the coordinator sets it */
    int32_t peer, via;   /* see the kinds; -1: none */
    gr_op_id op;
    uint32_t serial; /* ENDED: of the sub-group. MISMATCH: of that in which the rank has called
                         * `text`. 0: the whole job */
    uint16_t met;    /* MISMATCH: `op` is what the rank waits in, and `peer` sent data of operation
                         * `called_at` of communicator `met` - 1 instead. 0: it sent data of `op` */
    uint32_t called_at; /* MISMATCH: the number at which `peer` looks for what it called instead */
    bool stuck;         /* WAITS: the rank can start nothing before `op` is over */
    bool deadlock; /* WAITS, to a rank in its wait `answers`: it and the reporting rank wait for
                    * each other for ever */
    uint32_t seq;  /* WAITS: the number of this wait of the rank, from 1; another one when `op` or
                    * `stuck` is another one */
    uint32_t
        answers; /* the number of a wait of another rank, see the kinds; 0: of none. WAITS, from
                       * a rank: the operation of that wait of `peer` is not begun here and cannot
                       * begin, while `op` needs `peer` */
    uint32_t awaits_count;
    int32_t awaits[GR_REPORT_AWAITS_MAX]; /* WAITS: ranks that `op` waits for */
    char text[GR_REPORT_TEXT_BYTES];      /* the call, with its place in the program */
} gr_op_report;

/* Returns the size in bytes, at most GR_REPORT_BYTES_MAX. */
size_t gr_op_report_put(const gr_op_report *report, uint8_t *out);
/* GR_E_PROTOCOL: malformed. Ranks are below `rank_max`. */
gr_status gr_op_report_get(const uint8_t *data, size_t size_bytes, int rank_max,
                           gr_op_report *report_out, gr_diag *diag) GR_MUST_CHECK;

#endif
