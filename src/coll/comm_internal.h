/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_INTERNAL_H
#define GR_COLL_COMM_INTERNAL_H

/* The inside of a communicator: comm.c (life), comm_thread.c (who may come in, callbacks, the
 * background thread), comm_memory.c (gr_alloc), comm_run.c (operations), comm_short.c (short
 * forms), comm_split.c (sub-groups), schedule_store.c (plans that were made already). */

#include "base/fair_lock.h"
#include "base/float_mode.h"
#include "base/fork.h"
#include "coll/comm.h"
#include "coll/engine/coll_args.h"
#include "coll/engine/exec.h"
#include "coll/engine/schedule_store.h"
#include "coll/host_memory.h"
#include "coll/select/select.h"
#include "coll/shm/shm_coll.h"
#include "group/group.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* GRADUS_PROGRESS, in the order of its choices. */
typedef enum gr_progress { GR_PROGRESS_AUTO, GR_PROGRESS_THREAD, GR_PROGRESS_INLINE } gr_progress;

/* Any thread may call; `lock` serialises all of them, the library's own progress thread included,
 * in the order in which they came. It guards the executor, the mesh, the programs, the memory and
 * all members here that are not atomic; no other lock is taken under it, and no function of the
 * caller but a reduction and the log's runs under it.
 *
 * Operations are moved on by one thread at a time, which holds the lock even while it sleeps in
 * gr_mesh_wait: the leader, or the progress thread while there is no leader. A thread that wants
 * the lock counts itself in `wanted` and wakes the mesh; the leader gives the lock away and queues
 * up again, the progress thread sleeps until there is something to do for it.
 *
 *   in a call, op unfinished --no leader--> leads --op finished, or time over--> leaves
 *            |                                ^
 *            +--there is a leader--> follows -+  woken by `news`: some operation has finished, or
 *                                                the leader has left */
typedef struct gr_comm_thread {
    gr_fair_lock lock;
    _Atomic int wanted;
    _Atomic int in_wait;   /* the leader or the progress thread may be in gr_mesh_wait */
    _Atomic uint32_t news; /* followers sleep on it */
    bool led;              /* there is a leader */
    int followers;
    uint64_t finished; /* of gr_exec_finished: followers and the event know of so many */
    uintptr_t user;    /* the thread that called last */
    bool several;      /* more than one has called */
    /* The progress thread. */
    bool running, stop, asleep;
    bool calls_back; /* operations with a callback were started: it may call the program */
    pthread_t thread;
    _Atomic uint32_t work; /* it sleeps on it */
} gr_comm_thread;

/* What was wrong with a thread's last call that failed to begin. */
typedef struct gr_thread_error {
    uintptr_t thread; /* 0: none */
    uint64_t age;     /* the oldest one makes room */
    gr_diag diag;
} gr_thread_error;
enum { GR_THREAD_ERRORS_MAX = 16 };

/* What gr_alloc gave, and what was registered, by address. */
typedef struct gr_memory_block {
    uint8_t *at;
    size_t size_bytes;
    bool registered, shared; /* shared: of what is registered, what peers read as well */
} gr_memory_block;

typedef struct gr_memory {
    gr_memory_block *blocks;
    size_t count, capacity;
} gr_memory;
enum { GR_MEMORY_BLOCKS_MAX = 1 << 20 };

typedef struct gr_context gr_context;
typedef struct gr_persistent gr_persistent; /* comm_persistent.c */
typedef struct gr_comm_shm gr_comm_shm;     /* comm_shm.c */

typedef struct gr_self_done {
    gr_done *done;
    void *arg;
} gr_self_done;

/* What a communicator and all that were split from it have in common. */
struct gr_context {
    int comms;              /* that exist */
    gr_group_config config; /* what it was created with; the texts are in `texts` */
    gr_arena texts;
    gr_group *group;
    gr_mesh *mesh;      /* the group's, or self_mesh */
    gr_mesh *self_mesh; /* of a group of one, which has no other; else NULL */
    gr_exec *exec;
    const gr_topology *topology;  /* of the whole job; NULL in a group of one */
    gr_timeline *timeline;        /* NULL: none is wanted */
    gr_comm_shm *shms;            /* NULL: none yet */
    int next_shm_area;            /* no area of shared memory had this number, nor a larger one */
    gr_selection_config choosing; /* what the selections of all have in common */
    gr_op *self_op;               /* a collective of one rank: finished when it starts */
    gr_self_done self_done[GR_EXEC_OPS_MAX]; /* callbacks of these, to be delivered */
    int self_first, self_count;
    gr_memory memory;
    gr_persistent *persistent;       /* operations of all communicators */
    uint64_t ids[GR_COMMS_MAX / 64]; /* bits: numbers of communicators in use here */
    int next_id;                     /* where to look for a free one first */
    gr_comm_thread thread;
    gr_host_memory host_memory;
    _Atomic uintptr_t owner; /* the thread that holds the lock; 0: none */
    gr_float_mode mode;      /* that it had before */
    uintptr_t deliverer;     /* the thread that runs callbacks; 0: none */
    bool closed;             /* it is being destroyed: calls are refused */
    uint32_t forks;          /* gr_fork_count of the process that created it */
    int event_fd;            /* -1: nobody polls */
    bool splitting;          /* a thread makes a sub-group: others that want to, wait */
    gr_thread_error errors[GR_THREAD_ERRORS_MAX];
    uint64_t error_count;
    gr_diag fine; /* what gr_comm_diag shows while nothing has failed */
    gr_log log;
};

struct gr_comm {
    gr_context *context;
    int rank, size, local_rank, local_size;
    int *world;            /* by rank: the rank in the job */
    gr_topology *topology; /* of these ranks; NULL in a group of one */
    bool closed;           /* it is being destroyed: nothing starts */
    gr_exec_group group;
    gr_exec_outcome outcome; /* of a sub-group, which may end while its context goes on */
    gr_shm_coll *shm;        /* NULL: everything runs as plans */
    gr_selection selection;
    gr_schedules schedules;
};

/* ---- comm_thread.c --------------------------------------------------------------------------- */
gr_status gr_comm_thread_start(gr_context *context, gr_diag *diag) GR_MUST_CHECK;
void gr_comm_thread_stop(gr_context *context);
/* Entered: the progress thread, if it sleeps, looks again what it is to do. */
void gr_comm_thread_wake(gr_context *context);

/* Takes the lock. GR_E_INVALID: the call stands in a reduction, or `waits` and stands in a
 * callback, or the communicator is being destroyed; gr_comm_last_error has the sentence. */
gr_status gr_context_enter(gr_context *context, bool waits) GR_MUST_CHECK;
/* The same for a call that has entered and left before, and has to come back. */
void gr_context_reenter(gr_context *context);
void gr_context_leave(gr_context *context);
/* The same, and run the callbacks of what is over; true: there were some. */
bool gr_context_leave_calling(gr_context *context);
/* At the end: runs all callbacks that are left. They cannot use the communicator any more. */
void gr_context_call_back_last(gr_context *context);
/* Entered: until one of ops[0 .. count) is finished (NULL entries are passed over; count 0: until
 * no operation is active), a callback is due that this thread may run, or the deadline has come.
 * Other threads may call meanwhile. */
void gr_context_wait(gr_context *context, gr_op *const *ops, int count, int64_t deadline_us);
/* Entered: gives the lock away until another thread has changed something. */
void gr_context_follow(gr_context *context, int64_t deadline_us);
/* Returns true unless the thread that is in the communicator is known to be the program's only one:
 * another one may start operations while it waits. `context` is a gr_context. */
bool gr_context_may_start(const void *context);
/* Entered: an operation with a callback of the program's was started. */
void gr_context_note_callback(gr_context *context);
/* Entered: wakes the threads in gr_context_follow. */
void gr_context_notify(gr_context *context);

/* Keeps the sentence for gr_comm_last_error and logs it; returns its status. */
gr_status gr_context_note(gr_context *context, const gr_diag *diag);

/* Returns true if this process is not the one that created the communicator. */
static inline bool gr_context_is_forked(const gr_context *context)
{
    return gr_fork_count() != context->forks;
}

/* ---- comm_control.c -------------------------------------------------------------------------- */
/* Whoever polls finds the descriptor readable. */
void gr_context_raise_event(gr_context *context);

/* ---- comm.c ---------------------------------------------------------------------------------- */
/* Adds a communicator to the context. `serial`: of a sub-group; 0: its end is that of all. */
gr_status gr_comm_make(gr_context *context, const int *world, int size, int rank, uint16_t id,
                       uint32_t serial, gr_comm **comm_out, gr_diag *diag) GR_MUST_CHECK;
/* The reverse, for one that has started nothing or whose operations are over. */
void gr_comm_unmake(gr_comm *comm);
/* Frees what has no context any more. */
void gr_comm_free(gr_comm *comm);
/* `leave`: the group as well. */
void gr_context_destroy(gr_context *context, bool leave);

/* What questions about a communicator that is NULL are answered with. */
const gr_diag *gr_comm_no_comm(void);

/* ---- comm_run.c ------------------------------------------------------------------------------ */
/* gr_run and gr_start with the address of the call, which is shown if there is no better site. */
gr_status gr_comm_run(gr_comm *comm, const gr_call *calls, int count,
                      const void *caller) GR_MUST_CHECK;
gr_status gr_comm_start(gr_comm *comm, const gr_call *calls, int count, const void *caller,
                        gr_op **op_out) GR_MUST_CHECK;

/* For persistent operations: the parts of a start. */
/* A collective of one rank, which is over at once. */
bool gr_comm_runs_self(const gr_comm *comm, const gr_call *call);
void gr_comm_run_self(const gr_coll_args *args);
/* `keep`: to be started any number of times, one start at a time. Ends with gr_comm_shm_drop if it
 * is not started, or is kept. */
gr_status gr_comm_fill_request(gr_comm *comm, gr_coll_args *args, bool keep, const void *caller,
                               gr_exec_request *request, gr_diag *diag) GR_MUST_CHECK;
/* The memory of the call is of the kind that the call names, and the kind is supported. */
gr_status gr_comm_check_memory(const gr_comm *comm, const gr_coll_args *args,
                               gr_diag *diag) GR_MUST_CHECK;
/* The same, no unfinished operation uses its buffers, and the communicator has not ended. */
gr_status gr_comm_check_ready(const gr_comm *comm, const gr_coll_args *args,
                              gr_diag *diag) GR_MUST_CHECK;

/* ---- comm_shm.c ----------------------------------------------------------------------------- */
/* `number` is the same on all ranks, and was never used by any of them: what lies in an area of
 * shared memory that is closed here may still be read elsewhere. Numbers that are too large have no
 * area. */
gr_status gr_comm_shm_open(gr_comm *comm, int number, gr_shm_meeting meeting,
                           gr_diag *diag) GR_MUST_CHECK;
void gr_comm_shm_close(gr_comm *comm);
void gr_comm_shm_destroy(gr_context *context); /* before the mesh */
/* Makes the request one for shared memory. `keep`: it belongs to a persistent operation. */
gr_status gr_comm_shm_prepare(gr_comm *comm, const gr_coll_args *args, bool keep,
                              gr_exec_request *request, gr_diag *diag) GR_MUST_CHECK;
/* Of a request for shared memory that was not started, or that was kept; others are passed over. */
void gr_comm_shm_drop(const gr_exec_request *request);
/* A call that is like one of the last few but for the place of its buffer needs no checks and none
 * of what follows from them: starts that operation once more, in the same objects, which were kept.
 * *op_out NULL: it is over, and well. False: it is not like them, or something else is under way;
 * nothing has happened. */
bool gr_comm_shm_repeat(gr_comm *comm, const gr_call *call, const void *caller, gr_op **op_out);
/* No call is like those before: algorithms are chosen anew. */
void gr_comm_shm_forget(const gr_comm *comm);
/* It has begun; the second: of something that does not go over shared memory. */
void gr_comm_shm_note(const gr_comm *comm, const gr_exec_request *request);
void gr_comm_shm_note_plan(const gr_comm *comm);
/* One of these follows each start, or others wait for our next poll. The second: the caller is
 * about to wait for `op` alone, which may end soon if it goes over shared memory. */
void gr_comm_shm_look(const gr_comm *comm, gr_op *op);
void gr_comm_shm_spin(const gr_comm *comm, gr_op *op);

/* ---- comm_persistent.c ----------------------------------------------------------------------- */
/* The persistent operations of a communicator (NULL: of all) can only be destroyed from here on.
 * None of them is under way. */
void gr_context_detach_persistent(gr_context *context, const gr_comm *comm);
gr_comm *gr_op_persistent_comm(const gr_op *op); /* NULL: not persistent, or detached */

/* ---- comm_memory.c --------------------------------------------------------------------------- */
void gr_memory_fini(gr_context *context);

#endif
