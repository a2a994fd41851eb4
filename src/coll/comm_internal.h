/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_INTERNAL_H
#define GR_COLL_COMM_INTERNAL_H

/* The inside of a communicator: comm.c (life), comm_thread.c (who may come in, callbacks, the
 * background thread), comm_memory.c (gr_alloc), comm_run.c (operations), comm_short.c (short
 * forms), comm_split.c (sub-groups), programs.c (plans that were made already). */

#include "base/arena.h"
#include "coll/comm.h"
#include "coll/exec.h"
#include "coll/lane.h"
#include "coll/programs.h"
#include "coll/select.h"
#include "coll/task.h"
#include "group/group.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* GRADUS_PROGRESS, in the order of its choices. */
typedef enum gr_progress { GR_PROGRESS_AUTO, GR_PROGRESS_THREAD, GR_PROGRESS_INLINE } gr_progress;

/* The background thread moves operations on while their owner computes. `lock` guards the executor,
 * the mesh, the programs and the memory; no other lock is taken under it, and no function of the
 * caller but a reduction runs under it. The thread holds it even while it sleeps in gr_mesh_wait,
 * since that belongs to the mesh: whoever wants it counts itself in `wanted`, wakes the mesh and
 * then takes it. The other way round, a callback on the background thread that starts operations
 * counts itself in `asked`, and whoever waits under the lock lets it in. */
typedef struct gr_comm_thread {
    bool running;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;  /* signalled when the lock is given back with operations in flight */
    pthread_cond_t given; /* signalled when a callback has given the lock back */
    _Atomic int wanted;
    _Atomic int asked;
    _Atomic int in_wait; /* somebody may be in gr_mesh_wait */
    bool stop;           /* under lock */
    bool asleep;         /* until it is signalled; under lock */
    bool calling;        /* the thread runs a callback; its own */
} gr_comm_thread;

/* What gr_alloc gave, by address. */
typedef struct gr_memory_block {
    uint8_t *at;
    size_t size_bytes;
} gr_memory_block;

typedef struct gr_memory {
    gr_memory_block *blocks;
    size_t count, capacity;
} gr_memory;
enum { GR_MEMORY_BLOCKS_MAX = 1 << 20 };

typedef struct gr_family gr_family;
typedef struct gr_comm_next gr_comm_next;   /* comm_next.c */
typedef struct gr_comm_lanes gr_comm_lanes; /* comm_lane.c */

/* Room for the scaled contribution of an operation that leaves what it reads as it is. */
typedef struct gr_temp gr_temp;
struct gr_temp {
    void *memory;
    size_t size_bytes;
    _Atomic(const gr_temp *) key; /* the first one of its operation; NULL: free */
    const gr_op *op;              /* at the key: whose it is; NULL: of one with a callback, */
    gr_done *done;                /* which is this */
    void *done_arg;
    gr_family *family;
};

typedef struct gr_alone_done {
    gr_done *done;
    void *arg;
} gr_alone_done;

/* What a communicator and all that were split from it have in common. `owner` is the thread that is
 * in a call: another one is turned away, since operations of two threads would start in an order
 * that no other rank can know. */
struct gr_family {
    int comms; /* that exist */
    gr_group *group;
    gr_mesh *mesh; /* NULL in a group of one, as are exec and topology */
    gr_exec *exec;
    const gr_topology *topology;               /* of the whole job */
    gr_record *record;                         /* of a group of one that is told where to write */
    gr_timeline *timeline;                     /* NULL: none is wanted */
    gr_comm_lanes *lanes;                      /* NULL: none yet */
    int next_lane;                             /* no lane had this number, nor a larger one */
    gr_selection_config choosing;              /* what the selections of all have in common */
    gr_op *alone;                              /* the operation of a group of one */
    gr_alone_done alone_done[GR_EXEC_OPS_MAX]; /* callbacks of a group of one, to be delivered */
    int alone_first, alone_count;
    /* While this one goes on, another one may be prepared for the next generation. */
    gr_group_config config; /* for that one; only if members may come and go */
    gr_comm_next *next;     /* NULL: none is prepared */
    gr_comm_ahead ahead;
    gr_group *beside;     /* this is the one that is prepared, while this group goes on; or NULL */
    _Atomic int given_up; /* nobody wants it any more: its operations fail */
    gr_memory memory;
    gr_temp temps[GR_EXEC_OPS_MAX];
    int temp_ops;                    /* operations without a callback that have some */
    uint64_t ids[GR_COMMS_MAX / 64]; /* bits: numbers of communicators in use here */
    int next_id;                     /* where to look for a free one first */
    gr_comm_thread thread;
    _Atomic uintptr_t owner;
    _Atomic uintptr_t deliverer; /* the thread that runs callbacks outside of the background one */
    _Atomic uintptr_t intruder;  /* the last thread that was turned away */
    gr_diag intrusion;           /* what it is told; does not change */
    gr_diag last;                /* the last failed call of the owner */
    gr_diag fine;                /* what gr_comm_diag shows while nothing has failed */
    gr_arena arena;              /* texts of the configuration */
    gr_log log;
};

struct gr_comm {
    gr_family *family;
    int rank, size, local_rank, local_size;
    int *world;            /* by rank: the rank in the job */
    gr_topology *topology; /* of these ranks; NULL in a group of one */
    gr_exec_group group;
    gr_lane *lane; /* NULL: everything runs as plans */
    gr_selection selection;
    gr_programs programs;
};

/* ---- comm_thread.c --------------------------------------------------------------------------- */
gr_status gr_comm_thread_start(gr_family *family, gr_diag *diag) GR_MUST_CHECK;
void gr_comm_thread_stop(gr_family *family);

/* Become the owner and take the lock. GR_E_INVALID: another thread is inside, or `waits` inside a
 * callback; the sentence stands where gr_comm_last_error finds it. */
gr_status gr_family_enter(gr_family *family, bool waits) GR_MUST_CHECK;
void gr_family_leave(gr_family *family);
/* The same, and run the callbacks of what is over; true: there were some. */
bool gr_family_leave_calling(gr_family *family);
/* Ends the operations of a family that is prepared, and all that are started in it, soon; any
 * thread, as long as it exists. */
void gr_family_give_up(gr_family *family);
/* Under the lock: until `op` (NULL: everything) is finished or a callback is due. */
void gr_family_wait(gr_family *family, const gr_op *op);
/* The same for one of several; NULL entries are passed over. */
void gr_family_wait_any(gr_family *family, gr_op *const *ops, int count);

/* Keeps the sentence for gr_comm_last_error and logs it; returns its status. */
gr_status gr_family_note(gr_family *family, const gr_diag *diag);

/* ---- comm.c ---------------------------------------------------------------------------------- */
/* Adds a communicator to the family. */
gr_status gr_comm_make(gr_family *family, const int *world, int size, int rank, uint16_t id,
                       gr_comm **comm_out, gr_diag *diag) GR_MUST_CHECK;
/* The reverse, for one that has started nothing or whose operations are over. */
void gr_comm_unmake(gr_comm *comm);
/* Frees what has no family any more. */
void gr_comm_free(gr_comm *comm);
/* The parts of a communicator's creation: a family in the next generation of `group`, which is the
 * family's from now on, also on failure, or in the one that is offered to `beside`, or, if both are
 * NULL, in a group that it joins; its first communicator, which works then; and what there can be
 * only once in a process. */
gr_status gr_family_create(const gr_group_config *config, gr_group *group, gr_group *beside,
                           gr_family **family_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_family_open(gr_family *family, const gr_group_config *config, const gr_model *before,
                         gr_comm **comm_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_family_begin(gr_comm *comm, const gr_group_config *config,
                          gr_diag *diag) GR_MUST_CHECK;
/* `leave`: the group as well. */
void gr_family_destroy(gr_family *family, bool leave);

/* ---- comm_next.c ----------------------------------------------------------------------------- */
/* A look at what the coordinator wants prepared, or does not want any more; never waits. */
void gr_comm_next_look(gr_comm *comm);
/* The next generation's communicator, if it is time to go over to it; its group is the job's not
 * yet. NULL: there is none, or it is no more. `agreed`: the word to do so is on its way. */
gr_comm *gr_comm_next_take(gr_comm *comm, bool agreed);
void gr_comm_next_drop(gr_family *family);

/* ---- comm_run.c ------------------------------------------------------------------------------ */
/* gr_run and gr_start with the address of the call, which is shown if there is no better site. */
gr_status gr_comm_run(gr_comm *comm, const gr_call *calls, int count,
                      const void *caller) GR_MUST_CHECK;
gr_status gr_comm_start(gr_comm *comm, const gr_call *calls, int count, const void *caller,
                        gr_op **op_out) GR_MUST_CHECK;

/* ---- comm_lane.c ----------------------------------------------------------------------------- */
/* `number` is the same on all ranks, and was never used by any of them: what lies in the shared
 * memory of a lane that is closed here may still be read elsewhere. Numbers that are too large have
 * no lane. */
gr_status gr_comm_lane_open(gr_comm *comm, int number, gr_diag *diag) GR_MUST_CHECK;
void gr_comm_lane_close(gr_comm *comm);
void gr_comm_lanes_destroy(gr_family *family); /* before the mesh */
/* Does the operation run in the lane, not as a plan? Alike on all ranks. */
bool gr_comm_lane_takes(const gr_comm *comm, const gr_task *task);
gr_status gr_comm_lane_start(gr_comm *comm, const gr_task *task, const gr_op_desc *desc,
                             gr_op **op_out, gr_diag *diag) GR_MUST_CHECK;
/* A call that is like one of the last few but for the place of its buffer needs no checks and none
 * of what follows from them: starts that operation once more, in the same objects, which were kept.
 * NULL: it is not like them, or something else is under way; nothing has happened. */
gr_op *gr_comm_lane_repeat(const gr_comm *comm, const gr_call *call, const void *caller);
/* These have begun as plans. */
void gr_comm_lane_note(const gr_comm *comm, const gr_task *tasks, int count);
/* One of these behind each start, or others wait for our next look. The second: the caller is about
 * to wait for `op` alone: if it is in the lane, its end may be near. */
void gr_comm_lane_look(const gr_comm *comm, gr_op *op);
void gr_comm_lane_linger(const gr_comm *comm, gr_op *op);

/* ---- comm_scale.c ---------------------------------------------------------------------------- */
/* Multiplies the contribution and lets the task find it. *key, NULL at first, names the memory that
 * the operation must give back in the end. GR_E_NO_MEMORY. */
gr_status gr_task_prescale(gr_comm *comm, gr_task *task, gr_temp **key,
                           gr_diag *diag) GR_MUST_CHECK;
void gr_temps_give(gr_family *family, const gr_temp *key);
void gr_temps_give_op(gr_family *family, const gr_op *op);
/* A gr_done: gives back, then calls the caller's. */
void gr_temps_done(gr_status status, void *arg);

/* ---- comm_memory.c --------------------------------------------------------------------------- */
void gr_memory_fini(gr_family *family);

#endif
