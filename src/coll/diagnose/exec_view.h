/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_EXEC_VIEW_H
#define GR_COLL_DIAGNOSE_EXEC_VIEW_H

/* What the engine shows of its operations to diagnosis: which are in flight, since when nothing of
 * them moved, and which ranks they wait for. Ranks are those of the job. */

#include "coll/diagnose/timeline.h"
#include "group/op_report.h"
#include "link/link.h"
#include <gradus/coll.h>

typedef struct gr_exec gr_exec; /* engine/exec.h */

/* What diagnosis keeps of an operation. */
typedef struct gr_op_watch {
    bool moved; /* the engine: since diagnosis has looked */
    bool warned;
    int64_t idle_since_us;
} gr_op_watch;

/* The operations in flight, in no order. *at is 0 first; NULL: no more. */
gr_op *gr_exec_in_flight(gr_exec *exec, int *at);
/* The plan in flight that began first: messages of later ones may stand behind its own. NULL: no
 * plan is in flight. */
const gr_op *gr_exec_oldest_plan(const gr_exec *exec);

gr_op_watch *gr_op_watched(gr_op *op);
/* It waits for an older operation of this rank, not for a peer. */
bool gr_op_waits_for_own(const gr_op *op);
gr_op_id gr_op_identity(const gr_op *op);
/* The sender of a frame to `rank` names it. */
gr_op_id gr_op_id_of_frame(const gr_frame *frame, int rank);
uint64_t gr_op_record(const gr_op *op); /* index of its entry in the flight recorder */
bool gr_op_is_custom(const gr_op *op);
bool gr_op_is_stopped(const gr_op *op); /* its group has ended by itself */

typedef enum gr_op_wait {
    GR_OP_WAIT_NONE,
    GR_OP_WAIT_RECEIVE, /* something must come from the peer */
    GR_OP_WAIT_SEND     /* something must go to the peer, or be taken by it */
} gr_op_wait;
/* What of `op` comes next on the way to or from the peer. */
bool gr_exec_awaits(const gr_exec *exec, const gr_op *op, int peer, gr_op_wait what);
/* `op` cannot be over before this peer begins it, as far as is known here. */
bool gr_exec_lacks(const gr_exec *exec, const gr_op *op, int peer);
/* Nothing can be started here until `op` is over. */
bool gr_exec_is_blocked(const gr_exec *exec, const gr_op *op);
/* The same, and `op` is a message of this rank to itself. */
bool gr_exec_waits_for_itself(const gr_exec *exec, const gr_op *op);
/* The operation that `peer` names was started here. */
bool gr_exec_has_begun(const gr_exec *exec, const gr_op_id *id, int peer);
/* It was not, and nothing that is under way can still become it. */
bool gr_exec_is_missing(const gr_exec *exec, const gr_op_id *id, int peer);
/* This rank's communicator of that number has the peer in it. */
bool gr_exec_shares_comm(const gr_exec *exec, uint16_t comm, int peer);
/* Something has come from the peer that cannot be taken yet. */
bool gr_exec_holds_back(const gr_exec *exec, int peer);
/* Of two peers that one operation awaits: less has come from `peer` than from `other`. */
bool gr_exec_is_behind_peer(const gr_exec *exec, int peer, int other);
/* Nothing of what it receives next has come from the peer. */
bool gr_exec_at_start(const gr_exec *exec, int peer);

/* The serial number of the communicator; 0: it cannot end by itself, or is not open. */
uint32_t gr_exec_serial(const gr_exec *exec, uint16_t comm);
/* The group with this serial number, which this rank was in, has ended by itself. */
bool gr_exec_has_ended(const gr_exec *exec, uint32_t serial);
/* The operation is one of a group of this rank that has ended by itself. */
bool gr_exec_op_has_ended(const gr_exec *exec, const gr_op_id *id);
/* Another rank has ended a group of which both are members. */
void gr_exec_end_reported(gr_exec *exec, const gr_op_report *report);
/* The coordinator says that a rank of the job is gone: `left` in order, or for the reason `why`. */
void gr_exec_peer_gone(gr_exec *exec, int peer, bool left, const char *why);

gr_timeline *gr_exec_timeline(const gr_exec *exec); /* NULL: none */
/* A mismatch is being looked into: that a peer is gone, or has taken a message, means nothing. */
void gr_exec_set_arbitrating(gr_exec *exec, bool arbitrating);
/* Data that peers sent are of no use any more: what explains the failure may stand behind them. */
void gr_exec_discard_data(gr_exec *exec);

/* Ends the group of this number alone, on all its ranks (exec_group_end.c), if it can end by
 * itself; else everything. Nothing happens if it has ended already. */
void gr_exec_end_group(gr_exec *exec, uint16_t comm, const gr_diag *diag);
/* The operations started last. */
gr_flight_recorder *gr_exec_record(const gr_exec *exec);
/* The first failure; status GR_OK while there was none. Once it is set, the mesh is never moved
 * again: buffers of failed operations belong to their owners. */
const gr_diag *gr_exec_diag(const gr_exec *exec);

/* How late the first message of an operation came from a peer, counted from our own start: 0 if it
 * was there already. In operations that were started early and looked at late, our own lateness
 * counts for all peers alike: compare peers. */
typedef struct gr_exec_skew {
    uint64_t count;
    double mean_us;   /* of all */
    double recent_us; /* exponential, over about 16 operations */
    double max_us;
} gr_exec_skew;

#endif
