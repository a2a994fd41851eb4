/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_COMM_INTERNAL_H
#define GR_COLL_COMM_INTERNAL_H

/* The inside of a communicator: comm.c (life, memory), comm_ops.c (operations), comm_thread.c (the
 * background thread), programs.c (plans that were made already). */

#include "base/arena.h"
#include "coll/comm.h"
#include "coll/exec.h"
#include "coll/programs.h"
#include "coll/select.h"
#include "group/group.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* GRADUS_PROGRESS, in the order of its choices. */
typedef enum gr_progress { GR_PROGRESS_AUTO, GR_PROGRESS_THREAD, GR_PROGRESS_INLINE } gr_progress;

/* The background thread moves operations on while their owner computes. `lock` guards the executor,
 * the mesh and the programs; no other lock is taken under it. The thread holds it even while it
 * sleeps in gr_mesh_wait, since that belongs to the mesh: whoever wants it sets `wanted`, wakes the
 * mesh and then takes it. Only one thread at a time uses a communicator, so `wanted` is a flag. */
typedef struct gr_comm_thread {
    bool running;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond; /* signalled when the lock is given back with operations in flight */
    _Atomic int wanted;
    _Atomic int in_wait; /* the thread may be in gr_mesh_wait */
    bool stop;           /* under lock */
} gr_comm_thread;

typedef struct gr_comm_block gr_comm_block; /* gr_alloc memory in a group of one */

struct gr_comm {
    int rank, size, local_rank, local_size;
    gr_group *group;
    gr_mesh *mesh; /* NULL in a group of one, as is exec */
    gr_exec *exec;
    gr_selection selection;
    gr_programs programs;
    gr_op *alone; /* the operation of a group of one */
    gr_comm_block *blocks;
    gr_comm_thread thread;
    gr_arena arena; /* texts of the configuration */
    gr_log log;
    gr_diag fine; /* what gr_comm_diag shows while nothing has failed */
};

gr_status gr_comm_thread_start(gr_comm *comm, gr_diag *diag) GR_MUST_CHECK;
void gr_comm_thread_stop(gr_comm *comm);
void gr_comm_lock(gr_comm *comm);
void gr_comm_unlock(gr_comm *comm);

#endif
