/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_COMM_H
#define GRADUS_COMM_H

/* Communicators and collectives.
 *
 * A communicator joins the processes that `gradus run` started. Every rank calls the same
 * operations in the same order with the same counts and types; operations may overlap in time.
 * This header has the usual operations; coll.h has all of them in one form, and sub-groups.
 *
 * Threads: a communicator and its sub-groups together belong to one thread at a time. A call that
 * meets another thread inside returns GR_E_INVALID and changes nothing. Communicators that were
 * created separately are independent.
 *
 * A failure with scope GR_SCOPE_CALL (GR_E_INVALID, GR_E_NO_MEMORY) concerns the call alone, and
 * gr_comm_last_error says what was wrong. One with scope GR_SCOPE_PEER or GR_SCOPE_COMM ends the
 * communicator and its relatives: every later call returns GR_E_COMM_BROKEN, and gr_comm_diag tells
 * the first cause. */

#include <gradus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_comm gr_comm;
typedef struct gr_op gr_op;

typedef enum gr_dtype {
    GR_F32 = 0,
    GR_F64 = 1,
    GR_F16 = 2,  /* IEEE binary16 */
    GR_BF16 = 3, /* upper half of an f32 */
    GR_I32 = 4,
    GR_I64 = 5,
    GR_I8 = 6,
    GR_U8 = 7,
    GR_I16 = 8,
    GR_DTYPE_COUNT = 9
} gr_dtype;

typedef enum gr_redop {
    GR_SUM = 0,
    GR_AVERAGE = 1, /* sum, then divided by the number of contributions; integers truncate */
    GR_MIN = 2,     /* NaN if any contribution is NaN; -0 is less than +0 */
    GR_MAX = 3,     /* the same */
    GR_PRODUCT = 4, /* integers wrap around, as sums do */
    GR_USER = 5,    /* a function of the caller's, where a call takes one */
    GR_REDOP_COUNT = 6
} gr_redop;

/* Bytes of one element; 0 for a number that is no type. */
GR_API size_t gr_dtype_bytes(gr_dtype dtype);
GR_API const char *gr_dtype_name(gr_dtype dtype);
GR_API const char *gr_redop_name(gr_redop op);

/* Join the group that the environment describes (GRADUS_RANK, GRADUS_WORLD_SIZE, ...; set by
 * `gradus run`). Without GRADUS_RANK the process is alone: a group of one.
 *
 * comm_out  receives the communicator, owned by the caller; untouched on failure.
 * diag      filled on failure; may be NULL.
 * Returns   GR_OK; GR_E_INVALID, GR_E_NOT_FOUND (the environment is wrong, or a file it names);
 *           GR_E_TIMEOUT, GR_E_PEER_LOST (somebody did not come, the sentence names the rank);
 *           GR_E_AUTH; GR_E_NO_MEMORY; GR_E_IO;
 *           GR_E_MISMATCH (ranks that were through a moment earlier call different operations).
 * Effect    the value of GRADUS_SECRET is overwritten in the environment: children
 *           do not inherit it. No entry of the environment moves.
 * Order     every rank of the job calls it once; it returns when all have come. */
GR_API gr_status gr_comm_create(gr_comm **comm_out, gr_diag *diag) GR_MUST_CHECK;

/* Frees the communicator; the last one of its relatives (it, its parent, its sub-groups) leaves the
 * job and frees all gr_alloc memory. Accepts NULL. Does not wait for other ranks, unless this one
 * has taken over from the job's coordinator (GRADUS_SUCCESSION): then it serves them until they
 * have left as well, for 5 s at most.
 * Operations in flight vanish, and so do callbacks that were not called yet; peers that still need
 * this rank for them fail. If relatives live on, an unfinished operation of a destroyed sub-group
 * is a failure that ends them all. Not inside a callback. */
GR_API void gr_comm_destroy(gr_comm *comm);

/* When an operation has failed because a peer is lost, or gr_comm_change_wanted says so: goes on
 * with the members that live, in a job that was started so (gradus run --min-workers). Every
 * survivor calls it; it returns when all have come. Ranks follow the order of the old ones;
 * newcomers come behind.
 *
 * comm     replaced by the communicator of the survivors. All gr_alloc memory and operations of the
 *          old one are gone, and its sub-groups must have been destroyed before.
 * Returns  GR_OK; GR_E_INVALID (sub-groups live, a group of one; nothing happened);
 *          GR_E_UNSUPPORTED (the job cannot go on without a member), GR_E_CANCELLED (this rank is
 *          not needed any more, and should end), GR_E_COMM_BROKEN (fewer are left than the job
 *          needs), GR_E_TIMEOUT, GR_E_PEER_LOST (the coordinator is not reached),
 *          GR_E_NO_MEMORY, GR_E_IO; *comm is NULL then. */
GR_API gr_status gr_comm_renew(gr_comm **comm, gr_diag *diag) GR_MUST_CHECK;

/* Is somebody to come to the job, or to leave it, and all prepared for it; or does this rank of a
 * job that may go on without it not reach the job's coordinator any more? Then 1, else 0. It costs
 * a microsecond and waits for nobody; what is to be prepared a thread does, which it starts: so it
 * is to be called after every step. Ranks hear of it at different moments: they should agree (in a
 * sum that they make anyway) and all call gr_comm_renew after the same step. Newcomers are in
 * gr_comm_create meanwhile; who is cut off from the coordinator gets GR_E_PEER_LOST there, and
 * should end. */
GR_API int gr_comm_change_wanted(gr_comm *comm);

GR_API int gr_comm_rank(const gr_comm *comm);       /* 0 .. world size - 1 */
GR_API int gr_comm_size(const gr_comm *comm);       /* world size */
GR_API int gr_comm_local_rank(const gr_comm *comm); /* 0 .. local size - 1 on this host */
GR_API int gr_comm_local_size(const gr_comm *comm);

/* The first failure that ended the communicator and its relatives; status GR_OK while there was
 * none. Valid until destroy. */
GR_API const gr_diag *gr_comm_diag(const gr_comm *comm);

/* What was wrong with the last call on the communicator or its relatives that failed to begin, in
 * one sentence: a wrong argument, a buffer in use, no memory, a second thread, a gr_free that was
 * refused. status GR_OK while there was none. To be read by the thread that made the call, before
 * its next one; the pointer is valid until destroy. */
GR_API const gr_diag *gr_comm_last_error(const gr_comm *comm);

/* Memory that the peers on this host can read: collectives on it copy least. 64-byte aligned,
 * zeroed, valid until gr_free or until the communicator and its relatives are destroyed. Any of
 * these may use and free it. Any other memory may be used in operations as well.
 * Returns GR_OK; GR_E_INVALID (size 0); GR_E_NO_MEMORY. */
GR_API gr_status gr_alloc(gr_comm *comm, size_t size_bytes, void **mem_out) GR_MUST_CHECK;

/* NULL ok. Memory that an unfinished operation uses, or that is none of gr_alloc's, is not freed:
 * the log and gr_comm_last_error say so, nothing else happens. */
GR_API void gr_free(gr_comm *comm, void *mem);

/* ---- Operations -----------------------------------------------------------------------------
 * Each exists blocking and asynchronous. The asynchronous form stores an operation, which the
 * caller must finish with gr_wait, or with gr_test until it no longer returns GR_PENDING; both
 * release it. Buffers are borrowed until then; contents are undefined if the operation fails.
 * Returns of all: GR_OK; GR_E_INVALID; GR_E_NO_MEMORY (too many operations in flight);
 * GR_E_PEER_LOST, GR_E_PEER_SLOW, GR_E_PROTOCOL (a peer freed its buffer too early, say),
 * GR_E_MISMATCH, GR_E_COMM_BROKEN. */

/* Every rank ends with the reduction over all ranks of `buf` (count elements, in place). Sums are
 * added in the order of a fixed binary tree over the ranks, whatever the algorithm: the result has
 * the same bits for any link and any algorithm, unless the communicator was told `exact: false`
 * (GRADUS_EXACT=0). */
GR_API gr_status gr_allreduce(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                              gr_redop op) GR_MUST_CHECK;
GR_API gr_status gr_allreduce_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                                    gr_redop op, gr_op **op_out) GR_MUST_CHECK;

/* Exact allreduce over shards: the sum over `shards` contributions that are dealt to the ranks in
 * contiguous ranges (gr_shard_range), in the order of a fixed binary tree over the shards. The
 * result has the same bits for every world size.
 *
 * partials  gr_shard_partials(shards, world size, rank) buffers of `count` elements, which do not
 *           overlap: the sums of the largest whole subtrees of this rank's range, from left to
 *           right. They may be overwritten; partials[0] receives the result on every rank.
 * op        GR_AVERAGE divides by `shards`. */
GR_API gr_status gr_allreduce_shards(gr_comm *comm, void *const *partials, int shards, size_t count,
                                     gr_dtype dtype, gr_redop op) GR_MUST_CHECK;
GR_API gr_status gr_allreduce_shards_start(gr_comm *comm, void *const *partials, int shards,
                                           size_t count, gr_dtype dtype, gr_redop op,
                                           gr_op **op_out) GR_MUST_CHECK;

/* The shards [*first_out, *first_out + *count_out) of `rank`: as even as can be, the first ranks
 * get one more. Ranks past the number of shards get none. */
GR_API void gr_shard_range(int shards, int world_size, int rank, int *first_out, int *count_out);

/* How many buffers `rank` passes to gr_allreduce_shards: one for each largest whole subtree of its
 * range, at most GR_SHARD_PARTIALS_MAX. A rank without shards passes one, of any content, to
 * receive the result. 0 if an argument is out of range. */
enum { GR_SHARD_PARTIALS_MAX = 64 };
GR_API int gr_shard_partials(int shards, int world_size, int rank);

/* Rank r ends with the reduced block r. `buf` holds world size blocks of `block_count` elements; on
 * return block `rank` of it is the result, the other blocks are undefined. */
GR_API gr_status gr_reduce_scatter(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                                   gr_redop op) GR_MUST_CHECK;
GR_API gr_status gr_reduce_scatter_start(gr_comm *comm, void *buf, size_t block_count,
                                         gr_dtype dtype, gr_redop op, gr_op **op_out) GR_MUST_CHECK;

/* Rank r gives block r of `buf` (world size blocks of `block_count` elements); every rank ends with
 * all blocks. */
GR_API gr_status gr_allgather(gr_comm *comm, void *buf, size_t block_count,
                              gr_dtype dtype) GR_MUST_CHECK;
GR_API gr_status gr_allgather_start(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                                    gr_op **op_out) GR_MUST_CHECK;

/* Every rank ends with root's `count` elements. */
GR_API gr_status gr_broadcast(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                              int root) GR_MUST_CHECK;
GR_API gr_status gr_broadcast_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                                    int root, gr_op **op_out) GR_MUST_CHECK;

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

/* A message to one rank, which must receive as many elements of the same type. Messages between two
 * ranks match in the order of the calls. gr_send returns when `buf` may be used again, perhaps
 * before the peer has asked for it, perhaps not. */
GR_API gr_status gr_send(gr_comm *comm, const void *buf, size_t count, gr_dtype dtype,
                         int to) GR_MUST_CHECK;
GR_API gr_status gr_send_start(gr_comm *comm, const void *buf, size_t count, gr_dtype dtype, int to,
                               gr_op **op_out) GR_MUST_CHECK;
GR_API gr_status gr_recv(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                         int from) GR_MUST_CHECK;
GR_API gr_status gr_recv_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int from,
                               gr_op **op_out) GR_MUST_CHECK;

/* No rank returns before every rank has called it. */
GR_API gr_status gr_barrier(gr_comm *comm) GR_MUST_CHECK;
GR_API gr_status gr_barrier_start(gr_comm *comm, gr_op **op_out) GR_MUST_CHECK;

/* Move all operations on without waiting. GR_PENDING: not finished, `op` stays valid; anything else
 * is the operation's result, and `op` is released. GR_E_INVALID, here and in gr_wait, is also said
 * of one that was released before, as long as no newer operation has taken its place. */
GR_API gr_status gr_test(gr_op *op) GR_MUST_CHECK;

/* Wait until `op` is finished; its result is returned and `op` is released. */
GR_API gr_status gr_wait(gr_op *op) GR_MUST_CHECK;

/* ---- Who is late ---------------------------------------------------------------------------- */
/* How late another rank came to the operations that both were in: the time from the moment at which
 * this rank started an operation to the first that came from the other one; 0 where that was there
 * already, or came while this rank waited for yet another one. It is kept for all operations of a
 * communicator and its relatives together, always.
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
 * Returns   GR_OK; GR_E_INVALID (no such rank, skew_out NULL, another thread is inside).
 * Local: no other rank takes part. Still possible when the communicator has ended. */
GR_API gr_status gr_comm_skew(gr_comm *comm, int rank, gr_skew *skew_out) GR_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
