/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_COLL_H
#define GRADUS_COLL_H

/* Collectives and messages in one form: a gr_call says what to do, gr_run does it and waits,
 * gr_start begins it. comm.h has short forms of the most usual ones.
 *
 * Order: the ranks of a communicator start the same collectives in the same order. Two ranks start
 * whatever they have to do with each other, in all their communicators and messages included, in
 * one order; only a message this way and a message that way may change places. A difference is
 * GR_E_MISMATCH on all ranks, never a wait without end; one that keeps nobody waiting (asynchronous
 * operations of several communicators on one host, say) may pass there, and fail elsewhere. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What each takes and gives: n is the number of ranks, r the caller's rank, a block the part of a
 * buffer that belongs to one rank. Blocks stand in the order of the ranks, without gaps.
 *
 *                   in (out of place)           out                      in place, out holds
 *   allreduce       count                       count                    the contribution
 *   reduce          count                       count; root alone        the contribution
 *   reduce-scatter  n blocks                    block r                  n blocks; r is the result
 *   allgather       block r                     n blocks                 block r in its place
 *   gather          block r                     n blocks; root alone     block r in its place
 *   scatter         n blocks; root alone        block r                  at root n blocks
 *   alltoall        a block for each rank       a block from each rank   a block for each
 *   broadcast       count; root alone           count                    at root the data
 *   send            count                       -                        -
 *   recv            -                           count                    -
 *   barrier         -                           -                        - */
typedef enum gr_coll {
    GR_COLL_ALLREDUCE = 0,
    GR_COLL_REDUCE_SCATTER = 1,
    GR_COLL_ALLGATHER = 2,
    GR_COLL_BROADCAST = 3,
    GR_COLL_BARRIER = 4,
    GR_COLL_REDUCE = 5,
    GR_COLL_GATHER = 6,
    GR_COLL_SCATTER = 7,
    GR_COLL_ALLTOALL = 8,
    GR_COLL_SEND = 9, /* to one rank */
    GR_COLL_RECV = 10,
    GR_COLL_COUNT = 11
} gr_coll;

/* A reduction of the caller's own, for GR_USER: dst[i] = a[i] (+) b[i] for `count` elements. It
 * must be associative; it need not be commutative, since `a` always comes from lower ranks than
 * `b`. dst may be a or b. Called on whichever thread moves the operation on, under the
 * communicator's lock: it must not call back into Gradus. */
typedef void gr_reduce_user(void *dst, const void *a, const void *b, size_t count, void *arg);

/* Called once when an operation is over, with its result; on the thread that moved it on, under no
 * lock, and never inside the call that started it. It may start further operations, but not wait
 * for any: gr_run, gr_wait and the like return GR_E_INVALID inside it. */
typedef void gr_done(gr_status status, void *arg);

/* One operation. Set what it needs, leave the rest zero. The struct and the arrays `counts`,
 * `recv_counts` and `partials` are borrowed for the call; `in`, `out` and the buffers in `partials`
 * until the operation is over; `name` and `site` are copied.
 *
 * Buffers may stand at any address. `in` is not changed. `in` NULL means in place, and so does `in`
 * at exactly the place in `out` (or `out` in `in`, for reduce-scatter and scatter) where the
 * rank's own data stand; any other overlap of what one operation reads and writes, or with what an
 * unfinished operation uses, is refused. A buffer of no elements may be NULL. */
typedef struct gr_call {
    gr_coll coll;
    gr_dtype dtype;
    gr_redop op; /* of those that reduce; else ignored */
    const void *in;
    void *out;
    size_t count;         /* elements; of one block where there are blocks */
    const size_t *counts; /* instead of count: elements of each rank's block, for reduce-scatter,
                                  allgather, gather, scatter (alike on all ranks) and alltoall (what
                                  this rank sends to each) */
    const size_t *recv_counts; /* alltoall with counts: what comes from each rank */
    int root;               /* of broadcast, reduce, gather, scatter; the peer of send and recv */
    uint32_t tag;           /* of send and recv: must agree; messages between two ranks match in
                                  the order of the calls */
    double prescale;        /* every contribution is multiplied by it first; 0 means 1 */
    double postscale;       /* the result is multiplied by it at the end; 0 means 1 */
    gr_reduce_user *reduce; /* with GR_USER, and only then */
    void *reduce_arg;
    int shards;            /* allreduce over shards, see gr_allreduce_shards; 0: one a rank */
    void *const *partials; /* its buffers; in and out stay NULL */
    const char *name;      /* shown in errors and timelines; must agree on all ranks; at most 47
                                  characters count; may be NULL */
    const char *site;      /* "train.c:88", shown in errors; NULL: the caller's address */
    gr_done *done;         /* called at the end; then gr_start's op_out must be NULL */
    void *done_arg;
} gr_call;

enum { GR_CALLS_MAX = 64, GR_COMMS_MAX = 1024 };

/* Does `calls` (1 .. GR_CALLS_MAX) and waits. Several become one operation: either all begin or
 * none; all ranks group them alike; they run at the same time.
 *
 * Returns  GR_OK; GR_E_INVALID (nothing has begun, the communicator is as before,
 *          gr_comm_last_error says why); GR_E_NO_MEMORY (too many operations in flight: the same);
 *          GR_E_PEER_LOST, GR_E_PEER_SLOW, GR_E_PROTOCOL, GR_E_MISMATCH, GR_E_COMM_BROKEN (the end
 *          of the communicator and of all that were split from it, gr_comm_diag says why). */
GR_API gr_status gr_run(gr_comm *comm, const gr_call *calls, int call_count) GR_MUST_CHECK;

/* Begins them. Without `done`, *op_out receives the operation, which gr_wait, gr_test or
 * gr_wait_any must finish. With `done` in the first call (the others' must be NULL), op_out is NULL
 * and the operation releases itself; callbacks run inside gr_comm_poll, gr_comm_drain and all calls
 * that wait, and on the progress thread if there is one. Returns as gr_run, for the start alone. */
GR_API gr_status gr_start(gr_comm *comm, const gr_call *calls, int call_count,
                          gr_op **op_out) GR_MUST_CHECK;

/* Waits until one of ops[0 .. count) is finished, releases it and returns its result. *index_out:
 * which; its entry is set to NULL. NULL entries are passed over. All must belong to one
 * communicator or to its sub-groups. GR_E_INVALID with *index_out = -1: none to wait for, or one
 * that was released before. */
GR_API gr_status gr_wait_any(gr_op **ops, int count, int *index_out) GR_MUST_CHECK;

/* Moves all operations on without waiting, and runs the callbacks of those that are over. GR_OK:
 * none of the communicator or its relatives is unfinished; GR_PENDING: some are. */
GR_API gr_status gr_comm_poll(gr_comm *comm) GR_MUST_CHECK;

/* Waits until no operation of the communicator or its relatives is unfinished, runs all callbacks.
 * Results of operations without a callback are still to be fetched. GR_OK, or as gr_run. */
GR_API gr_status gr_comm_drain(gr_comm *comm) GR_MUST_CHECK;

/* ---- Sub-groups ----------------------------------------------------------------------------- */
/* A sub-group is a communicator over some ranks of its parent, which may be a sub-group itself. It
 * has no connections of its own: making one takes one small allgather in the parent. Parent and
 * sub-groups may be destroyed in any order; the last one leaves the job. A failure of one ends all
 * of them. They count as one communicator where comm.h speaks of threads. */

/* Collective on `parent`: the ranks that pass the same `color` become one communicator, ordered by
 * `key`, then by their rank in the parent. color < 0: none, *comm_out = NULL.
 *
 * diag      filled on failure; may be NULL.
 * Returns   GR_OK; GR_E_INVALID; GR_E_NO_MEMORY (GR_COMMS_MAX exist); else as gr_run. */
GR_API gr_status gr_comm_split(gr_comm *parent, int color, int key, gr_comm **comm_out,
                               gr_diag *diag) GR_MUST_CHECK;

/* Collective on `parent`: the ranks ranks[0 .. count) of it, all different, become a communicator
 * in this order. All members of the parent pass the same list; who is not in it gets NULL. */
GR_API gr_status gr_comm_subgroup(gr_comm *parent, const int *ranks, int count, gr_comm **comm_out,
                                  gr_diag *diag) GR_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
