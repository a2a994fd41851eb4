/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"

#include <signal.h>
#include <string.h>

static void *run_thread(void *arg)
{
    gr_comm *comm = arg;
    gr_comm_thread *thread = &comm->thread;
    pthread_mutex_lock(&thread->lock);
    while (!thread->stop) {
        if (atomic_load(&thread->wanted) || gr_exec_active(comm->exec) == 0) {
            pthread_cond_wait(&thread->cond, &thread->lock);
            continue;
        }
        /* Sequentially consistent on both sides: either we see `wanted`, or its owner sees
         * `in_wait` and wakes the mesh. */
        atomic_store(&thread->in_wait, 1);
        gr_exec_wait(comm->exec, NULL, &thread->wanted);
        atomic_store(&thread->in_wait, 0);
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

gr_status gr_comm_thread_start(gr_comm *comm, gr_diag *diag)
{
    gr_comm_thread *thread = &comm->thread;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->cond, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->thread, NULL, run_thread, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        pthread_cond_destroy(&thread->cond);
        pthread_mutex_destroy(&thread->lock);
        return gr_fail(diag, GR_E_IO,
                       "the progress thread cannot be started: %s; GRADUS_PROGRESS=inline does "
                       "without it",
                       strerror(error));
    }
    thread->running = true;
    return GR_OK;
}

void gr_comm_lock(gr_comm *comm)
{
    gr_comm_thread *thread = &comm->thread;
    if (!thread->running) {
        return;
    }
    atomic_store(&thread->wanted, 1);
    if (atomic_load(&thread->in_wait)) {
        gr_mesh_wake(comm->mesh);
    }
    pthread_mutex_lock(&thread->lock);
}

void gr_comm_unlock(gr_comm *comm)
{
    gr_comm_thread *thread = &comm->thread;
    if (!thread->running) {
        return;
    }
    atomic_store(&thread->wanted, 0);
    if (gr_exec_active(comm->exec) > 0 || thread->stop) {
        pthread_cond_signal(&thread->cond);
    }
    pthread_mutex_unlock(&thread->lock);
}

void gr_comm_thread_stop(gr_comm *comm)
{
    gr_comm_thread *thread = &comm->thread;
    if (!thread->running) {
        return;
    }
    gr_comm_lock(comm);
    thread->stop = true;
    gr_comm_unlock(comm);
    pthread_join(thread->thread, NULL);
    pthread_cond_destroy(&thread->cond);
    pthread_mutex_destroy(&thread->lock);
    thread->running = false;
}
