/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_EXEC_H
#define GR_COLL_ENGINE_EXEC_H

/* The executor runs compiled schedules (plans made ready) over the links of a mesh: it owns
 * segments, the order of messages, views and scratch, deadlines, failure and its spreading. One
 * executor serves a job's communicator and all its sub-groups: they share links and lock. A
 * sub-group may end alone; a lost link or process ends all.
 *
 * One operation object serves plans and shared memory (gr_op_ops), with one sequence of numbers for
 * each communicator:
 *
 *                                             a rank calls something else
 *   gr_exec_start --------------> ACTIVE -----> arbitration ------+
 *                                 |   |                           v
 *                all steps done,  |   +-- link lost, stall --> the executor fails:
 *           or ops->progress: OK  |                            all that is ACTIVE ends (or all
 *                                 v                            of a sub-group), on all its ranks
 *                              FINISHED <-------------------------+
 *                                 |
 *                                 +--> gr_op_release, or the callback --> FREE
 *
 * Slices: of large blocks the plan runs for the first segments of each block, then for the next
 * ones, and so on: scratch holds no more than that of a block, however large the operation. Nothing
 * waits for a slice to end: a segment of the next one begins as soon as the scratch that it needs
 * is free, and its turn has come on the link.
 *
 * How it stays free of deadlock: on each link, messages go and are taken in one order that both
 * sides know: by operation in the order of their start, then by slice, then by message of the plan,
 * then by segment. A plan is free of deadlock with no room on the way at all (verify.h), hence one
 * slice behind the other is; and whatever runs ahead of it here takes nothing that an earlier
 * message needs. A view, which may keep the sender from sending, is copied and given back when
 * nothing moves.
 *
 * Who calls what is checked all the time: each frame carries the communicator, the number of the
 * operation in it, and a fingerprint of all that ranks must agree on. What follows from one that
 * differs, or from an operation that does not move, is the matter of diagnosis
 * (diagnose/diagnosis.h).
 *
 * Threads: an executor belongs to one thread at a time (comm.c serialises). No call allocates once
 * operations of their kind and size have run. */

#include "coll/diagnose/channel.h"
#include "coll/diagnose/exec_view.h"
#include "coll/diagnose/flight_recorder.h"
#include "coll/diagnose/timeline.h"
#include "coll/engine/coll_args.h"
#include "coll/engine/schedule.h"
#include "link/link.h"

enum {
    GR_EXEC_OPS_MAX = 128,     /* operations in flight or not yet waited for */
    GR_EXEC_GROUPS_MAX = 1024, /* numbers of communicators */
    /* With the header of its message it fits in what TCP hands to the network at once: 64,240 bytes
     * or more at an MTU of 1,500. A little more would leave as two packets, the second a tiny one,
     * which costs as much: at 64 KiB there are 1.3 times as many. */
    GR_SEGMENT_UNIT_BYTES = 62 << 10,
    /* Flat from two units on; less costs up to a fifth. */
    GR_SEGMENT_BYTES_DEFAULT = 4 * GR_SEGMENT_UNIT_BYTES,
    GR_SEGMENT_BYTES_MAX = GR_FRAME_PAYLOAD_MAX,
    GR_SLICE_BYTES_DEFAULT = 512 << 10 /* a few of them fit in the caches of a core */
};

typedef struct gr_exec_config {
    gr_mesh *mesh; /* borrowed; fully wired */
    int rank, world_size;
    int64_t op_timeout_us; /* an operation in which nothing moved for that long fails; 0: never */
    int64_t stall_warn_us; /* ... is reported in the log, once; 0: never */
    int64_t segment_bytes; /* 0: the default; made a multiple of 64 */
    int64_t slice_bytes;   /* of a block; 0: the default; at least two segments */
    int64_t
        scratch_bytes; /* of all operations together, if one does not need more; 0: the default */
    gr_clock clock;
    const gr_log *log;  /* may be NULL */
    void *owner;        /* for gr_op_owner */
    const char *record; /* the file in which what is called is recorded; NULL: plain memory */
    /* The host that a rank runs on, for sentences; NULL, or returns NULL: not known. */
    const char *(*host_name)(const void *host_arg, int rank);
    const void *host_arg;
    gr_diagnosis_channel channel; /* to the coordinator; all zero: none */
    /* Returns true if a thread other than the waiting one may start operations (it runs a callback,
     * say): who waits is not taken for one that can start nothing then. NULL: none does. */
    bool (*may_start)(const void *owner);
} gr_exec_config;

gr_status gr_exec_create(const gr_exec_config *config, gr_exec **exec_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* Frees all; operations in flight vanish. The mesh must have been destroyed before, since it may
 * still read what an unfinished operation lent it. NULL ok. */
void gr_exec_destroy(gr_exec *exec);

/* ---- Groups ----------------------------------------------------------------------------------
 * The ranks of one communicator. Schedules speak of group ranks, links of ranks in the job. */
/* How a group has ended while the others go on. Any thread reads it. */
typedef struct gr_exec_outcome {
    _Atomic bool ended; /* `diag` is set, and does not change any more */
    gr_diag diag;
} gr_exec_outcome;

typedef struct gr_exec_group {
    uint16_t id; /* below GR_EXEC_GROUPS_MAX; the same on all its ranks */
    int rank, size;
    const int *world; /* by group rank: the rank in the job */
    /* Of one that can end by itself; NULL: its failure is that of all. */
    gr_exec_outcome *outcome;
    uint32_t serial; /* above 0; the same on all its ranks, larger than that of any group which one
                        of them was in before */
} gr_exec_group;

/* Before its first operation: messages of its other ranks about the group are understood from now
 * on. A group that cannot end by itself needs no call. GR_E_NO_MEMORY. */
gr_status gr_exec_group_open(gr_exec *exec, const gr_exec_group *group,
                             gr_diag *diag) GR_MUST_CHECK;

/* The group is no more, so that its number can be used again. Returns how many of its operations
 * are in flight: then nothing happened. Those that are finished are released. */
int gr_exec_group_close(gr_exec *exec, const gr_exec_group *group);
/* An operation of a group that has ended, which is not over yet; NULL: none. */
gr_op *gr_exec_group_unfinished(gr_exec *exec, const gr_exec_group *group);

/* ---- Operations ------------------------------------------------------------------------------ */
/* What an operation is. All but the root of a message, `site` and `caller` must agree on all ranks:
 * with the communicator's number it makes the fingerprint. */
typedef struct gr_op_desc {
    gr_coll coll;
    gr_dtype dtype;
    gr_redop op;
    int algorithm; /* index in gr_algorithms */
    int root;      /* of messages: the peer, a group rank; a receive: or GR_ANY_SOURCE */
    uint32_t tag;  /* of messages; a receive: or GR_ANY_TAG */
    int shards;
    uint64_t count;     /* as the caller passed it */
    const char *name;   /* NULL: none; copied up to GR_FLIGHT_RECORDER_NAME_BYTES - 1 */
    const char *site;   /* "train.c:88"; copied the same way; NULL: */
    const void *caller; /* the address that the call returns to */
} gr_op_desc;

/* What moves an operation on that runs no plan: a schedule in shared memory. */
typedef struct gr_op_ops {
    /* The operation has its number and fingerprint: what others wait for goes out now, before it is
     * recorded. May be NULL. */
    void (*begin)(void *state, gr_op *op);
    /* One step without blocking: GR_OK: over, and `state` is not used any more; GR_PENDING: not
     * yet, *moved_out tells if anything moved; else it failed, and the sentence in diag ends the
     * communicator. */
    gr_status (*progress)(void *state, bool *moved_out, gr_diag *diag);
    /* The executor has failed; `state` is not used any more. May be NULL. */
    void (*cancel)(void *state);
    /* Returns true if the operation still needs this rank of the job, which has died, left, or not
     * arrived yet. May be NULL: all members of the group are needed, and nobody is known to be
     * late. */
    bool (*waits_for)(const void *state, int peer);
    /* Returns true if all that the operation needs has arrived, so that the next step ends it and
     * uses no buffer of another rank. It then finishes though the communicator fails. May be NULL:
     * never. */
    bool (*is_complete)(const void *state);
} gr_op_ops;

/* One plan to run, or one operation that `ops` moves on: then of the members behind `desc` only
 * user_counts and the callback matter; or one message, which needs neither schedule nor ops, and
 * sends input[0] (user[0] where there is no input), or receives user[0]. Pointers are borrowed for
 * the call, buffers, program, ops and group until the operation is over.
 *
 * How buffers are cut into the schedule's blocks: evenly on cache lines, or `fixed_blocks`: into
 * equal blocks, or by `user_counts` (elements of each block) and `input_counts` (NULL: the same).
 * `user_only`, `input_only`: the buffer holds this block alone, and begins with it. */
typedef struct gr_exec_request {
    const gr_schedule *schedule; /* NULL: `ops` is set */
    const gr_op_ops *ops;
    void *state;                  /* of ops */
    const gr_exec_group *group;   /* NULL: the whole job, as number 0 */
    const gr_call_memory *memory; /* that it uses, copied; NULL: none that others could use */
    void *const *user;            /* program->user_slots pointers, copied */
    const void *const *input;     /* program->input_slots pointers, copied */
    gr_op_desc desc;
    size_t total_count; /* elements of all blocks; with user_counts: not used */
    bool fixed_blocks;
    const size_t *user_counts, *input_counts; /* copied */
    int user_only, input_only;                /* -1: all */
    size_t segment_bytes;                     /* 0: that of gr_exec_config; a multiple of 64 */
    gr_reduce_user *reduce;                   /* NULL: the kernel of dtype and op */
    void *reduce_arg;
    double prescale;               /* of PRESCALE steps; 0 or 1: none */
    int divisor;                   /* of SCALE steps: of GR_AVERAGE; 0 or 1: none */
    double postscale;              /* of SCALE steps, behind the division; 0 or 1: none */
    gr_message_source *source_out; /* of a receive; NULL ok */
    gr_done *done;                 /* of the first request: see gr_exec_take_done */
    void *done_arg;
} gr_exec_request;

/* Several requests (at most GR_EXEC_OPS_MAX) become one operation: all begin or none. With `done`
 * the operation releases itself, and *op_out is not for gr_op_release.
 * GR_E_NO_MEMORY: too many in flight, or memory; GR_E_INVALID: counts that do not fit the plan. */
gr_status gr_exec_start(gr_exec *exec, const gr_exec_request *requests, int request_count,
                        gr_op **op_out, gr_diag *diag) GR_MUST_CHECK;

/* A message of this rank to itself would not be over before another call: a receive of what was not
 * sent, or a send of more than is kept that no receive waits for. */
bool gr_exec_would_wait_for_itself(const gr_exec *exec, const gr_exec_group *group,
                                   const gr_op_desc *desc);

/* A message between two ranks that needs no operation: small enough for the link to copy it, in a
 * blocking call, while nothing is under way. What else a call has to be was checked. False: nothing
 * has happened, or the message has not come within a moment: it is to be started. */
bool gr_exec_send_short(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                        const void *data);
bool gr_exec_recv_short(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                        void *data);

/* ---- Operations that run no plan ------------------------------------------------------------- */
/* One of which all but the site and the caller in `desc` is as in one before, which had this
 * fingerprint, may be started if nothing is under way, and all is well. It takes the next number of
 * its communicator and, when that is posted, an entry in the record. If it ends before anything
 * happens, the executor keeps nothing more of it; else it becomes an operation. */
typedef struct gr_exec_short {
    const gr_exec_group *group;
    const gr_op_desc *desc;
    uint64_t fingerprint;
    uint32_t number;
    uint64_t record, started; /* gr_exec_short_record sets these */
} gr_exec_short;
bool gr_exec_may_repeat(const gr_exec *exec, const gr_exec_group *group);
uint32_t gr_exec_take_number(gr_exec *exec, const gr_exec_group *group);
void gr_exec_short_record(gr_exec *exec, gr_exec_short *call);
/* It has ended. `came`: bits of the group's ranks that it needed; `waited`: they came late. */
void gr_exec_short_end(gr_exec *exec, const gr_exec_short *call, uint64_t came, bool waited);
gr_op *gr_exec_short_go_on(gr_exec *exec, const gr_exec_short *call, const gr_op_ops *ops,
                           void *state, const gr_call_memory *memory);
/* One move of one such operation, for who waits for it without a look at anything else; true if
 * anything moved. */
bool gr_exec_progress_custom(gr_op *op);
/* The first word of `peer` (a rank of the job) about an operation has come. Not `awaited`: nobody
 * knows since when it is there, so it counts as in time. See gr_exec_skew. */
void gr_op_arrived(gr_op *op, int peer, bool awaited);
uint32_t gr_op_number(const gr_op *op); /* in its communicator */
uint64_t gr_op_fingerprint(const gr_op *op);
/* Another rank (of the job) is at the same number of the same communicator in a different
 * operation: both sides' words are brought together, and the communicator ends. */
void gr_exec_mismatch(gr_exec *exec, uint16_t comm, uint32_t number, uint64_t fingerprint,
                      int peer);
/* `compare` is called where gr_exec_progress looks at what ranks have called after an operation was
 * over here; it may call gr_exec_mismatch. */
void gr_exec_set_compare(gr_exec *exec, void (*compare)(void *arg), void *arg);

/* ---- Progress -------------------------------------------------------------------------------- */
/* Moves everything on without waiting; true if anything moved. */
bool gr_exec_progress(gr_exec *exec);
/* To be called when a pass moved nothing: looks at the clock, lets go of views that were held too
 * long, tells of operations that stand still and fails those that do for too long. Returns when to
 * look again.
 * `waited`: the caller did nothing but wait since the last look; else long gaps are its own time.
 * */
int64_t gr_exec_poll_timers(gr_exec *exec, bool waited);
/* What ends a wait: the first of these that is so. */
typedef struct gr_exec_until {
    const gr_op *op; /* is finished; NULL: no operation is active. The calling thread starts nothing
                        before, and the diagnosis of hangs builds on that */
    const _Atomic int *wanted; /* is not 0: something else wants the executor; NULL: nothing does */
    bool callback;             /* a callback is due */
    bool any;                  /* any operation has finished since the wait began */
    int64_t deadline_us;       /* has come, by the clock of the executor; GR_NEVER: does not come */
} gr_exec_until;
/* Moves everything on until then; sleeps by gr_mesh_wait. */
void gr_exec_wait(gr_exec *exec, const gr_exec_until *until);
/* How many operations have finished, and failures ended all of them, so far. */
uint64_t gr_exec_finished(const gr_exec *exec);
/* Plans and custom operations that have not finished; one more while it is being found out whether
 * another rank called something else. */
int gr_exec_active(const gr_exec *exec);
/* Some rank may have called something else than what is over here (two roots that only sent, say).
 * Then a pass and a look are worth their while though nothing is under way. */
bool gr_exec_has_unmatched(const gr_exec *exec);
/* One of these two, or a sub-group that has ended here has not on all its ranks: else nobody looks
 * at what the links have. */
bool gr_exec_looks(const gr_exec *exec);
/* Ranks may report something while nothing is under way here: what they called instead of an
 * operation that is over, or the end of a sub-group. */
bool gr_exec_may_hear(const gr_exec *exec);

bool gr_op_finished(const gr_op *op);
/* Given back already, and no newer operation has taken its place. */
bool gr_op_released(const gr_op *op);
/* The result of a finished operation; gives the object back. */
gr_status gr_op_release(gr_op *op);
/* The owner that was passed to gr_exec_create; NULL for gr_op_create_finished. */
void *gr_op_owner(const gr_op *op);

/* An operation that is finished and stays so, whoever releases it: all that a group of one needs.
 * NULL: no memory. */
gr_op *gr_op_create_finished(void);
void gr_op_destroy_finished(gr_op *op); /* NULL ok */

/* What the caller of a persistent operation holds: it stands for the operation that was started for
 * it last (`running`), until that one is released. The first: NULL, no memory. `exec` NULL: of a
 * group of one. `state` is the owner's. */
gr_op *gr_op_create_handle(gr_exec *exec, void *state);
void gr_op_destroy_handle(gr_op *handle);
void gr_op_detach_handle(gr_op *handle);   /* the executor ends before it */
void *gr_op_handle_state(const gr_op *op); /* NULL: `op` is no handle */
void gr_op_set_running(gr_op *handle, gr_op *op);
/* The operation that a handle stands for, NULL: none; any other `op` itself. */
gr_op *gr_op_running(gr_op *op);

/* Callbacks of finished operations, one by one, in the order in which they finished; to be run by
 * the caller when it has given its lock back. False: none is due. */
typedef struct gr_exec_done {
    gr_done *done;
    void *arg;
    gr_status status;
} gr_exec_done;
bool gr_exec_take_done(gr_exec *exec, gr_exec_done *done_out);
bool gr_exec_done_pending(const gr_exec *exec);

/* Returns true if an unfinished operation writes what is in `memory`, or uses what is written
 * there. what_out: which operation. */
bool gr_exec_uses(const gr_exec *exec, const gr_call_memory *memory, char *what_out,
                  size_t what_bytes);

/* ---- The end --------------------------------------------------------------------------------- */
/* The same for any thread, also while another one moves the executor on: NULL until all operations
 * have ended with the failure; what it points to does not change any more. */
const gr_diag *gr_exec_first_failure(const gr_exec *exec);
/* Of those that wait for nothing: moves everything on. Where nothing is under way, so that nobody
 * looks at the links, ends everything if a peer has said there that the communicator has ended, and
 * a sub-group if a rank of it has reported its end; what else has come stays for the operations to
 * come. */
void gr_exec_look(gr_exec *exec);
/* Moves everything on, and ends it if a peer is gone, though nothing under way needs it. */
void gr_exec_check_members(gr_exec *exec);
/* Ends everything with this cause, unless it has ended; all peers receive it. */
void gr_exec_fail(gr_exec *exec, const gr_diag *diag);
/* Ends everything with GR_E_CANCELLED before the executor is destroyed. Peers are not notified. */
void gr_exec_cancel(gr_exec *exec);

/* ---- What is kept of the past ---------------------------------------------------------------- */
void gr_exec_get_skew(const gr_exec *exec, int peer, gr_exec_skew *skew_out);

/* Operations, stalls and the failure are written there from now on; borrowed until destroy. */
void gr_exec_set_timeline(gr_exec *exec, gr_timeline *timeline);

/* The program's own operations begin here: those before belong to the start-up. The same point of
 * the job's communicator on all ranks. */
void gr_exec_startup_over(gr_exec *exec);

#endif
