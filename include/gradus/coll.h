/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_COLL_H
#define GRADUS_COLL_H

/* Collectives and messages in one form: a gr_call says what to do, gr_run does it and waits,
 * gr_start begins it. comm.h has short forms of the most usual ones.
 *
 * Order: the ranks of a communicator start the same collectives in the same order, and two ranks
 * those of all the communicators that they share. A difference is GR_E_MISMATCH on all ranks, never
 * a wait without end; one that keeps nobody waiting (asynchronous operations of several
 * communicators on one host, say) may pass there, and fail elsewhere.
 *
 * Messages match by sender, tag and communicator, not by the order of calls; those that are equal
 * in all three match in the order in which they were sent, and their counts, types and names must
 * agree (GR_E_MISMATCH). A message may be received at any time after it was sent, also after
 * collectives that were started later. What was sent behind a collective that the receiver has not
 * started may come only when it starts it. */

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
    GR_COLL_RECV = 10
} gr_coll;

/* Where the buffers of a call are. */
typedef enum gr_memory_kind {
    GR_MEMORY_HOST = 0,
    GR_MEMORY_CUDA = 1 /* memory of an NVIDIA device; not supported yet: GR_E_UNSUPPORTED */
} gr_memory_kind;

/* A reduction of the caller's own, for GR_USER: dst[i] = a[i] (+) b[i] for `count` elements. It
 * must be associative; it need not be commutative, since `a` always comes from lower ranks than
 * `b`. dst may be a or b. Called on whichever thread moves the operation on, under the
 * communicator's lock: it must not call back into Gradus. */
typedef void gr_reduce_user(void *dst, const void *a, const void *b, size_t count, void *arg);

/* Called once when an operation is over, with its result; on the thread that moved it on, under no
 * lock, and never inside the call that started it. It may start further operations, but not wait
 * for any: gr_run, gr_wait and the like return GR_E_INVALID inside it. */
typedef void gr_done(gr_status status, void *arg);

#define GR_ANY_TAG UINT32_C(0xffffffff)

/* Where a message came from: what a receive with GR_ANY_SOURCE or GR_ANY_TAG has met. */
typedef struct gr_message_source {
    int rank; /* in the communicator */
    uint32_t tag;
} gr_message_source;

/* One operation. Set what it needs, leave the rest zero. The struct and the arrays `counts`,
 * `recv_counts` and `partials` are borrowed for the call; `in`, `out` and the buffers in `partials`
 * until the operation is over; `name` and `site` are copied.
 *
 * Buffers may stand at any address. `in` is not changed. `in` NULL means in place, and so does `in`
 * at exactly the place in `out` (or `out` in `in`, for reduce-scatter and scatter) where the
 * rank's own data stand; any other overlap of what one operation reads and writes, or with what an
 * unfinished operation uses, is refused. A buffer of no elements may be NULL.
 *
 * Factors multiply f32, f16, bf16 and complex64 in f32: one that is infinite there, or 0 without
 * being 0, is refused. They multiply integers in f64, which holds i64 and u64 up to 2^53 exactly;
 * the product is truncated, and stops at the ends of the type's range. */
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
    int root;     /* of broadcast, reduce, gather, scatter; the peer of send and recv; of recv also
                          GR_ANY_SOURCE */
    uint32_t tag; /* of send and recv: a receive takes the first message with its tag that its
                          source has sent in this communicator; any number but GR_ANY_TAG, which
                          is for recv and matches any tag */
    double prescale;        /* this rank's contribution is multiplied by it first; 0 means 1; not
                               of bool; may differ by rank */
    double postscale;       /* this rank's result is multiplied by it at the end; 0 means 1; not of
                               bool; may differ by rank, and of reduce the root's counts */
    gr_reduce_user *reduce; /* with GR_USER, and only then */
    void *reduce_arg;
    int shards;            /* allreduce over shards, see gr_allreduce_shards; 0: one a rank */
    gr_memory_kind memory; /* where `in`, `out` and `partials` are; memory of a device that is
                              passed as the host's is refused with GR_E_UNSUPPORTED as well, if this
                              process cannot read it */
    void *const *partials; /* its buffers; in and out stay NULL */
    const char *name;      /* shown in errors and timelines; must agree on all ranks; at most 47
                                  characters count; may be NULL */
    const char *site;      /* "train.c:88", shown in errors; NULL: the caller's address */
    gr_done *done;         /* called at the end; then gr_start's op_out must be NULL */
    void *done_arg;
    gr_message_source *source_out; /* of recv: receives where the message came from, when it has
                                      come; borrowed until the operation is over; may be NULL */
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

/* ---- Persistent operations -------------------------------------------------------------------
 * For a call that is made again and again with the same arguments, as in every training step: what
 * is checked, chosen and prepared for it is kept (as MPI_Allreduce_init and its like do). */

/* Makes an operation of `call` that can be started any number of times. `call` and its arrays
 * are copied; the buffers are borrowed until gr_op_destroy, and may be used freely while the
 * operation is not started. `done` must be NULL. Nothing is sent: ranks may create in any order,
 * and some may start an operation that others call by gr_run or gr_start.
 *
 * op_out    *op_out receives the operation, for gr_op_start, gr_wait, gr_test, gr_wait_any and
 * gr_op_destroy; set on success only. Returns   GR_OK; GR_E_INVALID, GR_E_NO_MEMORY,
 * GR_E_UNSUPPORTED (nothing was made; gr_comm_last_error says why). Thread    as for gr_start. */
GR_API gr_status gr_op_create(gr_comm *comm, const gr_call *call, gr_op **op_out) GR_MUST_CHECK;

/* Begins the operation once more; all ranks start or call the same operations in the same order.
 * gr_wait, gr_test and gr_wait_any finish that start: they return its result, and `op` stays, to
 * be started again. GR_E_INVALID: it was started before and not waited for, an unfinished
 * operation uses its buffers, it is not persistent, or its communicator was destroyed; else as
 * gr_start. */
GR_API gr_status gr_op_start(gr_op *op) GR_MUST_CHECK;

/* Frees a persistent operation, also after its communicator was destroyed; one that was started is
 * waited for first. NULL ok. No effect on operations of gr_start, nor inside a callback. */
GR_API void gr_op_destroy(gr_op *op);

/* Waits until one of ops[0 .. count) is finished, releases it and returns its result. *index_out:
 * which; its entry is set to NULL. NULL entries are passed over. All must belong to one
 * communicator or to its sub-groups. GR_E_INVALID with *index_out = -1: none to wait for, or one
 * that was released before. */
GR_API gr_status gr_wait_any(gr_op **ops, int count, int *index_out) GR_MUST_CHECK;

/* Moves all operations on without waiting, and runs the callbacks of those that are over. GR_OK:
 * none of the context is unfinished; GR_PENDING: some are. */
GR_API gr_status gr_comm_poll(gr_comm *comm) GR_MUST_CHECK;

/* Waits until no operation of the context is unfinished, runs all callbacks.
 * Results of operations without a callback are still to be fetched. GR_OK, or as gr_run. */
GR_API gr_status gr_comm_drain(gr_comm *comm) GR_MUST_CHECK;

/* ---- More short forms ------------------------------------------------------------------------
 * As those of comm.h. */
/* Root ends with the reduction over all ranks of `in` (count elements), in `out`, which the others
 * may leave NULL. `in` NULL: the contribution stands in `out`. */
GR_API gr_status gr_reduce(gr_comm *comm, const void *in, void *out, size_t count, gr_dtype dtype,
                           gr_redop op, int root) GR_MUST_CHECK;
GR_API gr_status gr_reduce_start(gr_comm *comm, const void *in, void *out, size_t count,
                                 gr_dtype dtype, gr_redop op, int root,
                                 gr_op **op_out) GR_MUST_CHECK;

/* Root ends with the blocks of all ranks in `out` (world size blocks of `block_count` elements),
 * which the others may leave NULL. `in` is this rank's block; NULL at root: it stands in its place
 * in `out`. */
GR_API gr_status gr_gather(gr_comm *comm, const void *in, void *out, size_t block_count,
                           gr_dtype dtype, int root) GR_MUST_CHECK;
GR_API gr_status gr_gather_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                                 gr_dtype dtype, int root, gr_op **op_out) GR_MUST_CHECK;

/* Rank r ends with block r of root's `in` (world size blocks of `block_count` elements; ignored
 * elsewhere) in `out`. `in` NULL at root: `out` holds all blocks there and stays as it is. */
GR_API gr_status gr_scatter(gr_comm *comm, const void *in, void *out, size_t block_count,
                            gr_dtype dtype, int root) GR_MUST_CHECK;
GR_API gr_status gr_scatter_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                                  gr_dtype dtype, int root, gr_op **op_out) GR_MUST_CHECK;

/* Block b of `in` goes to rank b; block b of `out` comes from rank b. `in` NULL: in place. */
GR_API gr_status gr_alltoall(gr_comm *comm, const void *in, void *out, size_t block_count,
                             gr_dtype dtype) GR_MUST_CHECK;
GR_API gr_status gr_alltoall_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                                   gr_dtype dtype, gr_op **op_out) GR_MUST_CHECK;

/* ---- Sums of rows ----------------------------------------------------------------------------
 * Sums of a few rows of a large matrix, as the gradient of an embedding is one. */
typedef struct gr_rows {
    size_t count;            /* rows; may be 0 */
    size_t width;            /* elements of a row, alike on all ranks */
    gr_dtype dtype;          /* alike on all ranks */
    const uint32_t *indices; /* count of them: which row of the matrix; any order, may repeat */
    const void *values;      /* count x width elements */
} gr_rows;

/* Every rank ends with the sum over all ranks of their rows: each index that any rank gave, once,
 * ascending.
 *
 * in        this rank's rows, borrowed for the call. Rows with one index are added to one another
 *           first, in the order in which they stand. The number of rows may differ by rank.
 * op        GR_SUM, or GR_AVERAGE: divided by the world size (a rank without the row counts as 0);
 *           not of bool.
 * rows_out  receives the sum; `indices` and `values` are owned by the caller, who releases them
 *           with gr_rows_release. Untouched on failure.
 * Order     rows are added in the order of a fixed binary tree over the ranks: the same bits for
 *           any link and any algorithm.
 * Returns   GR_OK; GR_E_INVALID; GR_E_NO_MEMORY, on every rank if any lacks it, and the
 *           communicator stays usable; what gr_allreduce returns.
 * Cost      world size times the rows of one rank are received; three small messages and two large
 *           ones to each rank. */
GR_API gr_status gr_allreduce_rows(gr_comm *comm, const gr_rows *in, gr_redop op,
                                   gr_rows *rows_out) GR_MUST_CHECK;

/* Frees what gr_allreduce_rows has filled and empties it. NULL ok. */
GR_API void gr_rows_release(gr_rows *rows);

/* ---- Memory of the program ------------------------------------------------------------------- */
/* Shares memory that the program has already with the peers on this host: from now on operations on
 * it copy as little as on memory of gr_alloc. Address and contents stay. Where peers share no
 * memory, over tcp say, and in a group of one, nothing changes.
 *
 * comm        The memory is shared by the communicators of this context only; those of another
 *             context refuse it.
 * mem         begins at a page (aligned_alloc(4096, ...), mmap), if it is to be shared. Its pages
 *             are replaced, the last one as a whole: nothing else lives in it, and no other thread
 *             uses the memory during the call. Memory that begins elsewhere (malloc) is registered
 *             and not shared, since other data live in its pages: operations copy it as before, and
 *             it may be passed in any size. The caller's; it stays allocated until gr_unregister.
 * size_bytes  of mem.
 * Returns     GR_OK; GR_E_INVALID (NULL, size 0, registered already or of gr_alloc, no memory
 *             there, used by an unfinished operation); GR_E_UNSUPPORTED (not the process's own
 *             memory, to read and write: a mapping that is shared already, a huge page of hugetlbfs
 *             that `mem` does not cover as a whole, the stack); GR_E_NO_MEMORY; GR_E_IO
 *             (/proc/self/maps cannot be read: no descriptor is left, say). Nothing has changed
 *             then.
 * Cost        The call, and gr_unregister, read /proc/self/maps and copy the memory once; for that
 *             time it takes twice its size. Huge pages are gone: shared ones are small, unless the
 *             kernel gives shared memory huge ones (transparent_hugepage/shmem_enabled). Worth it
 *             for what many operations use, a model's gradients say.
 * Fork        A forked child shares the memory: what it writes there the parent sees. It must not
 *             use the memory any more when the parent has unregistered it. */
GR_API gr_status gr_register(gr_comm *comm, void *mem, size_t size_bytes) GR_MUST_CHECK;

/* Makes memory private again, with its contents: before it is freed. So does the end of the
 * context, gr_comm_renew as well, with all that is registered and still mapped; what cannot be made
 * private then, as below, stays shared until it is unmapped. Any communicator of the context may be
 * passed, also after an operation has failed. No other thread uses the memory during the call.
 * Returns GR_OK; GR_E_INVALID (not registered, used by an unfinished operation, a forked child);
 * GR_E_NO_MEMORY or GR_E_IO, as gr_register. It stays registered then. */
GR_API gr_status gr_unregister(gr_comm *comm, void *mem) GR_MUST_CHECK;

/* ---- Sub-groups ----------------------------------------------------------------------------- */
/* A sub-group is a communicator over some ranks of its parent, which may be a sub-group itself. It
 * has no connections of its own: making one takes one small allgather in the parent. Parent and
 * sub-groups may be destroyed in any order; the last one leaves the job. They count as one
 * communicator where comm.h speaks of threads: two threads that start operations in two sub-groups
 * of the same ranks agree on an order, or each has a communicator of gr_comm_create, which is
 * independent. Where the order differs, everything ends with GR_E_MISMATCH and a sentence.
 *
 * What fails in a sub-group alone (ranks call different operations in it, one of its operations
 * waits for too long, gr_comm_abort of it) ends this sub-group on all its ranks. Its parent, its
 * siblings, and sub-groups that were made of it go on: gr_comm_split works as before, and the
 * sub-group is destroyed like any other. Its operations in flight end with the failure when all its
 * ranks have confirmed it, so that nobody reads or writes their buffers any more: ranks do so in
 * their calls. If one does not within 10 s, since it computes, is stopped or has no way to the
 * job's coordinator, everything ends.
 *
 * All communicators of one gr_comm_create end when a rank is lost that one of them needs, when the
 * order of operations differs between sub-groups, and with any failure of the first communicator:
 * those that a lost rank was no member of as well, since only gr_comm_renew makes a job without it.
 * Operations that were over before have their results. */

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
