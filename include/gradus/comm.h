/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_COMM_H
#define GRADUS_COMM_H

/* Communicators and collectives.
 *
 * A communicator joins the processes that `gradus run` started. Every rank calls the same
 * operations in the same order with the same counts and types; operations may overlap in time.
 * This header has the usual operations; coll.h has all of them in one form, and sub-groups.
 *
 * Context: the communicator of one gr_comm_create and all sub-groups that come from it, directly or
 * not. They share connections, threads, memory and callbacks.
 *
 * Threads: any thread may call, and several at a time: calls on the communicators of one context
 * take effect one after the other, in the order in which they came. A thread that waits (gr_wait,
 * or an operation's blocking form) lets the others call meanwhile. What the ranks must agree on is
 * the program's matter: whichever threads start operations, they start in the same order on all
 * ranks (coll.h says which order). Threads that cannot agree on an order use communicators that
 * were created separately, which are independent. One operation is waited for by one thread.
 * gr_comm_destroy and gr_comm_renew must not run at the same time as another call on the same
 * communicator.
 *
 * Fork: a child that was forked from the process that created a communicator cannot use it: calls
 * return GR_E_INVALID, gr_comm_destroy does nothing. However the child ends, the parent and its
 * peers do not notice it. Memory of gr_alloc, as that of gr_register, is shared with the child
 * where peers share it: what the child writes there the parent and its operations see, and the
 * child sees what happens there later. It must not use the memory any more when the parent has
 * freed it, or has ended the context.
 *
 * Wrong arguments: a call that can return a status refuses NULL with GR_E_INVALID, but where it is
 * allowed. A communicator that was destroyed, and an operation that was released (but for what
 * gr_test says of it), are gone: any use of them, gr_comm_abort included, is undefined.
 *
 * A failure with scope GR_SCOPE_CALL (GR_E_INVALID, GR_E_NO_MEMORY) concerns the call alone, and
 * gr_comm_last_error says what was wrong. One with scope GR_SCOPE_PEER or GR_SCOPE_COMM ends the
 * communicator on all its ranks: every later call returns GR_E_COMM_BROKEN, and gr_comm_diag tells
 * the first cause. A failure of the communicator of gr_comm_create, and a lost rank wherever it is
 * missed, end all sub-groups as well; what fails in a sub-group alone ends that one (coll.h). */

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
    GR_BOOL = 9, /* a byte: 0 is false, 1 is true, and so is any other number */
    GR_U16 = 10,
    GR_U32 = 11,
    GR_U64 = 12,
    GR_COMPLEX64 = 13, /* two f32: the real part, then the imaginary part */
    GR_COMPLEX128 = 14 /* two f64 */
} gr_dtype;

/* Which type can be reduced how; anything else is refused with GR_E_INVALID.
 *
 *   f32, f64, f16, bf16     sum, average, min, max, product
 *   i8 to i64, u8 to u64    these, and band, bor, bxor
 *   bool                    sum, max, bor: true if any is; product, min, band: true if all are;
 *                           bxor: true if an odd number of them is
 *   complex64, complex128   sum, average, product
 *
 * GR_USER takes any type. Every type can be moved (broadcast, allgather, ...). */
typedef enum gr_redop {
    GR_SUM = 0,
    GR_AVERAGE = 1, /* sum, then divided by the number of contributions; integers truncate */
    GR_MIN = 2,     /* NaN if any contribution is NaN; -0 is less than +0 */
    GR_MAX = 3,     /* the same */
    GR_PRODUCT = 4, /* integers wrap around, as sums do; complex numbers: the plain formula, each
                       step rounded, so that an infinity may give NaN */
    GR_USER = 5,    /* a function of the caller's, where a call takes one */
    GR_BAND = 6,    /* bitwise and */
    GR_BOR = 7,     /* bitwise or */
    GR_BXOR = 8     /* bitwise exclusive or */
} gr_redop;

/* Bytes of one element; 0 for a number that is no type. */
GR_API size_t gr_dtype_bytes(gr_dtype dtype);
GR_API const char *gr_dtype_name(gr_dtype dtype);
GR_API const char *gr_redop_name(gr_redop op);

/* Gathers `size_bytes` bytes of each rank, in the order of ranks, into all_out (size times
 * size_bytes bytes), on all ranks: what a key-value store, PMIx, MPI, Spark or Ray offers.
 * `size_bytes` is the same on all ranks. Returns 0, or anything else for a failure.
 *
 * It is called twice for each communicator, by gr_comm_create alone: with a join timeout on a
 * thread of its own, else on the caller's thread. A call that has not returned when the join times
 * out is left behind; `arg` must live until it returns. */
typedef int gr_bootstrap_fn(void *arg, const void *mine, size_t size_bytes, void *all_out);

/* How many threads of a process start operations on a communicator. */
typedef enum gr_threads {
    GR_THREADS_AUTO = 0, /* as many as the process has, but for the library's own */
    GR_THREADS_ONE = 1,  /* one, which the caller promises: others compute, or read files */
    GR_THREADS_MANY = 2
} gr_threads;

/* How a communicator is made. gr_comm_config_init fills it; 0 and NULL mean "as the environment
 * says", and where the environment is silent the default. All texts are borrowed for the call. */
typedef struct gr_comm_config {
    size_t struct_size; /* sizeof(gr_comm_config); set by gr_comm_config_init */
    int rank, size;     /* 0 <= rank < size; size 0: rank, size and coordinator come from the
                           environment (gradus run, torchrun, mpirun, srun) */
    /* How `size` ranks find each other, if they are more than one: by a callback, which gathers
     * addresses and a fresh secret; or by the job's coordinator ("tcp:host:port") and secret (64
     * hexadecimal digits; NULL: GRADUS_SECRET or GRADUS_SECRET_FILE). */
    gr_bootstrap_fn *bootstrap;
    void *bootstrap_arg;
    const char *coordinator;
    const char *secret;
    int64_t join_timeout_us; /* for all ranks to come; negative: without limit */
    int64_t op_timeout_us;   /* an operation that waits for longer fails; negative: never; counts
                                before GRADUS_STALL_FAIL of the environment */
    const char *link;        /* "auto", "shm", "tcp"; must agree on all ranks */
    const char *host;        /* ranks with the same name share memory; NULL: found out */
    int inexact;             /* 1: sums may be added in any order, whatever is fastest */
    gr_log_level log_level;  /* GR_LOG_OFF: as GRADUS_LOG says; without it warnings in a worker of
                                `gradus run`, else nothing */
    gr_log_sink *log;        /* receives the log; NULL: stderr */
    void *log_arg;
    const char *const *settings; /* more settings, as the reference page lists them, each a text
                                    "GRADUS_SPIN=50us"; ends with NULL; may be NULL */
    /* Ranks that wait for each other in different operations for ever fail at once where each
     * has one thread only. Where another one may start what a peer waits for, they wait until the
     * operation times out. Threads of OpenMP, say, cannot be told from those that start operations:
     * GR_THREADS_ONE does. It is safe: a second thread that calls is met as one of many. */
    gr_threads threads;
} gr_comm_config;

/* Fills a config that means what the environment says. NULL ok. */
GR_API void gr_comm_config_init(gr_comm_config *config);

/* Makes a communicator of `size` processes, or of as many as the environment describes
 * (GRADUS_RANK, GRADUS_WORLD_SIZE, ..., set by `gradus run`; or another launcher's variables).
 * Without any of these the process is alone: a group of one. A process may have several such
 * communicators at a time, which have nothing in common.
 *
 * config    borrowed for the call; NULL: all from the environment.
 * comm_out  receives the communicator, owned by the caller; untouched on failure.
 * diag      filled on failure; may be NULL.
 * Returns   GR_OK; GR_E_INVALID, GR_E_NOT_FOUND (the config or the environment is wrong, or a file
 *           that it names); GR_E_UNSUPPORTED (the config is of a newer library); GR_E_TIMEOUT,
 *           GR_E_PEER_LOST (a rank did not come, the sentence names it); GR_E_AUTH; GR_E_IN_USE
 *           (another process has this rank); GR_E_NO_MEMORY;
 *           GR_E_PROTOCOL (the callback has mixed up the bytes of the ranks); GR_E_IO;
 *           GR_E_MISMATCH (ranks that were through a moment earlier call different operations).
 * Effect    the value of GRADUS_SECRET is overwritten in the environment: children do not inherit
 *           it. No entry of the environment moves.
 * Order     every rank calls it; it returns when all have come. */
GR_API gr_status gr_comm_create(const gr_comm_config *config, gr_comm **comm_out,
                                gr_diag *diag) GR_MUST_CHECK;

/* Frees the communicator. The last one of its context leaves the job and frees all gr_alloc memory.
 * Accepts NULL. Does not wait for other ranks, unless the job's coordinator runs in this process
 * (rank 0 hosts it, or this rank has taken over from it): then it serves the others until they have
 * left or need it no longer, for 5 s at most. Operations in flight end with GR_E_CANCELLED; peers
 * that still need this rank for them fail. Every callback that was not called yet is called before
 * gr_comm_destroy returns, on the calling thread: with the result of an operation that is over,
 * else with GR_E_CANCELLED. Such a callback cannot use the communicator: calls on it return
 * GR_E_INVALID. An unfinished operation of a destroyed sub-group is a failure that ends the other
 * communicators of the context; if the sub-group has ended already, destroying it first waits for
 * that operation to end. Not inside a callback. */
GR_API void gr_comm_destroy(gr_comm *comm);

/* Ends the communicator on all its ranks, and with that of gr_comm_create all sub-groups as well:
 * operations in flight fail with GR_E_ABORTED, all that wait return, later calls return
 * GR_E_COMM_BROKEN, and gr_comm_diag names this rank with the reason. Any thread, also while others
 * wait in the communicator, and inside a callback; not a signal handler. Does not wait for other
 * ranks. They notice it while operations of theirs are under way and they wait or have a progress
 * thread; with none under way in gr_comm_poll, in their next operation, or by the descriptor of
 * gr_comm_event_fd.
 *
 * reason   one sentence, shown on all ranks; 300 characters of it count; may be NULL
 * Returns  GR_OK, also if the communicator has ended already, of which the first cause stays;
 *          GR_E_INVALID (comm NULL, inside a reduction, in a forked child). */
GR_API gr_status gr_comm_abort(gr_comm *comm, const char *reason) GR_MUST_CHECK;

/* A descriptor for poll, epoll or an event loop. It becomes readable when an operation of the
 * context has finished or a callback is due, and when the communicator ends; it stays readable
 * until gr_comm_event_clear. The first call starts the progress thread, if there is none, and finds
 * the descriptor readable. To lose nothing: poll, gr_comm_event_clear, then gr_test on the
 * operations, or gr_comm_poll for callbacks.
 *
 * fd_out   receives the descriptor, which belongs to the communicator: only to be polled, until the
 *          last communicator of the context is destroyed
 * Returns  GR_OK; GR_E_INVALID; GR_E_IO (no descriptor, no thread; gr_comm_last_error says
 * which) */
GR_API gr_status gr_comm_event_fd(gr_comm *comm, int *fd_out) GR_MUST_CHECK;
/* Makes the descriptor unreadable until the next event. Any thread; NULL ok. */
GR_API void gr_comm_event_clear(gr_comm *comm);

/* Of NULL the ranks are -1 and the sizes 0. */
GR_API int gr_comm_rank(const gr_comm *comm);       /* 0 .. world size - 1 */
GR_API int gr_comm_size(const gr_comm *comm);       /* world size */
GR_API int gr_comm_local_rank(const gr_comm *comm); /* 0 .. local size - 1 on this host */
GR_API int gr_comm_local_size(const gr_comm *comm);

/* The first failure that ended the communicator, be it its own or that of its context; status GR_OK
 * while there was none. Of a sub-group that has ended alone it names the sub-group, its ranks in
 * the job and the rank at fault. Valid until destroy, and never changed once it is a failure. Any
 * thread, also while another one is in a call on the communicator. Of NULL, here and in
 * gr_comm_last_error: GR_E_INVALID, and a sentence that says so. */
GR_API const gr_diag *gr_comm_diag(const gr_comm *comm);

/* What was wrong with the calling thread's last call on a communicator of the context that failed
 * to begin, in one sentence: a wrong argument, a buffer in use, no memory, a gr_free that was
 * refused. status GR_OK while there was none. The text changes with the thread's next call that
 * fails; the pointer is valid until destroy. The sentences of the last 16 threads are kept. */
GR_API const gr_diag *gr_comm_last_error(const gr_comm *comm);

/* Memory that the peers on this host can read: collectives on it copy least. 64-byte aligned,
 * zeroed, valid until gr_free or until the last communicator of the context is destroyed. Every one
 * of them may use and free it. A forked child shares it (see Fork, above). Any other memory may be
 * used in operations as well.
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
 * the same bits for any link and any algorithm, unless the communicator has `exact: false`
 * (GRADUS_EXACT=0). */
GR_API gr_status gr_allreduce(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                              gr_redop op) GR_MUST_CHECK;
GR_API gr_status gr_allreduce_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype,
                                    gr_redop op, gr_op **op_out) GR_MUST_CHECK;

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

/* A message to one rank, which must receive as many elements of the same type. Messages match as in
 * MPI: by sender, tag (0 here; gr_call has others) and communicator, and in the order of the sends
 * where all these are equal. gr_send returns when `buf` may be used again, perhaps before the peer
 * has asked for it, perhaps not; one of more than 256 KiB (less among more than 32 ranks) waits for
 * the peer's receive.
 *
 * from  a rank, or GR_ANY_SOURCE: whichever sends first, in turn where several have sent; a rank
 *       that dies ends the receive with GR_E_PEER_LOST, one that leaves in order when no other one
 *       is left
 * A rank may send to itself: a message that is so small is kept until it is received. */
enum { GR_ANY_SOURCE = -1 };
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
 * is the operation's result, and `op` is released. GR_E_INVALID, here and in gr_wait, is also
 * returned for one that was released before, as long as no newer operation has taken its place. */
GR_API gr_status gr_test(gr_op *op) GR_MUST_CHECK;

/* Waits until `op` is finished; its result is returned and `op` is released. */
GR_API gr_status gr_wait(gr_op *op) GR_MUST_CHECK;

/* Waits until `op` is finished, for at most `timeout_us` microseconds. 0: looks once without
 * waiting; negative: waits without limit.
 * Returns   GR_E_TIMEOUT: not finished, `op` stays valid and goes on, its buffers stay borrowed;
 *           else as gr_wait. */
GR_API gr_status gr_wait_for(gr_op *op, int64_t timeout_us) GR_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
