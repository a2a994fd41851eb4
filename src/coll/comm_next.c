/* SPDX-License-Identifier: Apache-2.0 */

/* The next generation's communicator, made by a thread of its own while the program goes on with
 * this one: links, executor, lane, and what the program makes ahead. */

#include "base/fail.h"
#include "coll/comm_internal.h"

#include <signal.h>
#include <stdlib.h>

/* `lock` guards `family`, by which the owner's thread ends what this one waits in; gr_mesh_wake is
 * called under it, nothing else. The rest is the thread's until it is joined. */
struct gr_comm_next {
    pthread_t thread;
    pthread_mutex_t lock;
    gr_family *of;     /* that goes on meanwhile; only what does not change is looked at */
    gr_family *family; /* whose operations may be under way; NULL: none */
    bool given_up;     /* under the lock as well */
    gr_model model;    /* what was measured for it */
    gr_comm_ahead ahead;
    gr_comm *comm;      /* NULL: it came to nothing */
    bool made;          /* what the program makes ahead is */
    _Atomic bool ready; /* the coordinator is told that all is ready here, or will be right now */
    _Atomic bool done;  /* the thread ends */
};

static void show_family(gr_comm_next *next, gr_family *family)
{
    pthread_mutex_lock(&next->lock);
    next->family = family;
    if (family && next->given_up) {
        gr_family_give_up(family);
    }
    pthread_mutex_unlock(&next->lock);
}

static void undo(gr_comm_next *next, gr_family *family, gr_comm *comm)
{
    if (next->made) {
        next->ahead.drop(next->ahead.arg);
        next->made = false;
    }
    gr_family_destroy(family, true);
    if (comm) {
        gr_comm_free(comm);
    }
}

static gr_status make(gr_comm_next *next, gr_family *family, gr_comm **comm_out, gr_diag *diag)
{
    const gr_group_config *config = &next->of->config;
    gr_status status = gr_family_open(family, config, &next->model, comm_out, diag);
    if (status == GR_OK && next->ahead.make) {
        status = next->ahead.make(next->ahead.arg, *comm_out, diag);
        next->made = status == GR_OK;
    }
    if (status == GR_OK) {
        atomic_store(&next->ready, true);
        status = gr_group_say_ready(family->group, diag);
    }
    return status;
}

static void *run(void *next_arg)
{
    gr_comm_next *next = next_arg;
    gr_family *family = NULL;
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_status status = gr_family_create(&next->of->config, NULL, next->of->group, &family, &diag);
    if (status == GR_OK) {
        show_family(next, family);
        status = make(next, family, &comm, &diag);
        show_family(next, NULL);
        if (status == GR_OK) {
            next->comm = comm;
        } else {
            undo(next, family, comm);
        }
    }
    if (status != GR_OK) {
        gr_log_write(&next->of->log, GR_LOG_DEBUG, "coll", "the next generation is given up: %s",
                     diag.text);
    }
    atomic_store(&next->done, true);
    return NULL;
}

static void start(gr_comm *comm)
{
    gr_comm_next *next = calloc(1, sizeof *next);
    if (!next) {
        return; /* it is offered still, and tried again after the next step */
    }
    next->of = comm->family;
    next->model = comm->selection.model;
    next->ahead = comm->family->ahead;
    pthread_mutex_init(&next->lock, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&next->thread, NULL, run, next);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        pthread_mutex_destroy(&next->lock);
        free(next);
        return;
    }
    comm->family->next = next;
}

/* The thread ends soon, whatever it waits for. */
static void give_up(gr_comm_next *next)
{
    gr_group_withdraw(next->of->group);
    pthread_mutex_lock(&next->lock);
    next->given_up = true;
    if (next->family) {
        gr_family_give_up(next->family);
    }
    pthread_mutex_unlock(&next->lock);
}

static gr_comm *end(gr_comm_next *next)
{
    pthread_join(next->thread, NULL);
    pthread_mutex_destroy(&next->lock);
    next->of->next = NULL;
    return next->comm;
}

void gr_comm_next_drop(gr_family *family)
{
    gr_comm_next *next = family->next;
    if (!next) {
        return;
    }
    if (!atomic_load(&next->done)) {
        give_up(next);
    }
    gr_comm *comm = end(next);
    if (comm) {
        undo(next, comm->family, comm);
    }
    free(next);
}

void gr_comm_next_look(gr_comm *comm)
{
    gr_family *family = comm->family;
    gr_comm_next *next = family->next;
    if (!next) {
        if (gr_group_offered(family->group)) {
            start(comm);
        }
        return;
    }
    bool off = gr_group_is_called_off(family->group);
    if (!atomic_load(&next->done)) {
        if (off) {
            give_up(next);
        }
    } else if (off || !next->comm) {
        gr_comm_next_drop(family);
    }
}

gr_comm *gr_comm_next_take(gr_comm *comm, bool agreed)
{
    gr_family *family = comm->family;
    gr_comm_next *next = family->next;
    if (!next) {
        return NULL;
    }
    if (!atomic_load(&next->ready)) {
        gr_comm_next_drop(family);
        return NULL;
    }
    gr_comm *made = end(next);
    if (made &&
        !gr_group_may_go_over(made->family->group, agreed, family->config.join_timeout_us)) {
        undo(next, made->family, made);
        made = NULL;
    }
    free(next);
    return made;
}
