/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

/* ---- The lock -------------------------------------------------------------------------------- */
static bool on_background(const gr_comm_thread *thread)
{
    return thread->running && pthread_equal(thread->thread, pthread_self());
}

static void wake_waiter(gr_family *family)
{
    /* Sequentially consistent on both sides: either the waiter sees that it is asked to make way,
     * or we see `in_wait` and wake the mesh. */
    if (atomic_load(&family->thread.in_wait)) {
        gr_mesh_wake(family->mesh);
    }
}

static void lock(gr_family *family)
{
    gr_comm_thread *thread = &family->thread;
    if (!thread->running) {
        return;
    }
    atomic_fetch_add(on_background(thread) ? &thread->asked : &thread->wanted, 1);
    wake_waiter(family);
    pthread_mutex_lock(&thread->lock);
}

static void unlock(gr_family *family)
{
    gr_comm_thread *thread = &family->thread;
    if (!thread->running) {
        return;
    }
    if (on_background(thread)) {
        atomic_fetch_sub(&thread->asked, 1);
        pthread_cond_signal(&thread->given);
    } else {
        atomic_fetch_sub(&thread->wanted, 1);
        if (gr_exec_active(family->exec) > 0 || gr_exec_done_pending(family->exec) ||
            thread->stop || (thread->asleep && gr_exec_unsure(family->exec))) {
            pthread_cond_signal(&thread->cond);
        }
    }
    pthread_mutex_unlock(&thread->lock);
}

/* Lets a callback in that asks for the lock. */
static void make_way(gr_family *family)
{
    gr_comm_thread *thread = &family->thread;
    while (atomic_load(&thread->asked) > 0) {
        pthread_cond_wait(&thread->given, &thread->lock);
    }
}

/* Another thread has given up what this one prepares: all operations end. */
static void end_if_given_up(gr_family *family)
{
    gr_diag diag;
    if (atomic_load(&family->given_up) && gr_exec_diag(family->exec)->status == GR_OK) {
        (void)gr_fail_peer(&diag, GR_E_PEER_LOST, gr_group_rank(family->group),
                           "rank %d does not prepare the next generation any more",
                           gr_group_rank(family->group));
        gr_exec_end(family->exec, &diag);
    }
}

void gr_family_give_up(gr_family *family)
{
    atomic_store(&family->given_up, 1);
    atomic_fetch_add(&family->thread.asked, 1); /* ends a wait */
    if (family->mesh) {
        gr_mesh_wake(family->mesh);
    }
}

void gr_family_wait(gr_family *family, const gr_op *op)
{
    gr_comm_thread *thread = &family->thread;
    end_if_given_up(family);
    if (!thread->running) {
        gr_exec_wait(family->exec, op, &thread->asked); /* nobody asks, but callbacks get due */
        return;
    }
    while (!gr_exec_done_pending(family->exec) &&
           (op ? !gr_op_finished(op) : gr_exec_active(family->exec) > 0)) {
        atomic_store(&thread->in_wait, 1);
        gr_exec_wait(family->exec, op, &thread->asked);
        atomic_store(&thread->in_wait, 0);
        make_way(family);
    }
}

static bool any_finished(gr_op *const *ops, int count)
{
    for (int i = 0; i < count; i++) {
        if (ops[i] && gr_op_finished(ops[i])) {
            return true;
        }
    }
    return false;
}

void gr_family_wait_any(gr_family *family, gr_op *const *ops, int count)
{
    gr_comm_thread *thread = &family->thread;
    bool waited = false;
    while (!any_finished(ops, count) && !gr_exec_done_pending(family->exec)) {
        if (gr_exec_progress(family->exec)) {
            continue;
        }
        int64_t deadline_us = gr_exec_look(family->exec, waited);
        if (any_finished(ops, count)) {
            return;
        }
        atomic_store(&thread->in_wait, 1);
        if (atomic_load(&thread->asked) == 0) {
            gr_mesh_wait(family->mesh, deadline_us);
        }
        atomic_store(&thread->in_wait, 0);
        make_way(family);
        waited = true;
    }
}

/* ---- Who may come in ------------------------------------------------------------------------- */
static gr_status turn_away(gr_family *family, uintptr_t self)
{
    atomic_store(&family->intruder, self);
    gr_log_write(&family->log, GR_LOG_ERROR, "coll", "%s", family->intrusion.text);
    return GR_E_INVALID;
}

gr_status gr_family_enter(gr_family *family, bool waits)
{
    uintptr_t self = (uintptr_t)pthread_self();
    bool background = on_background(&family->thread);
    if (!background) {
        uintptr_t owner = 0;
        if (!atomic_compare_exchange_strong(&family->owner, &owner, self)) {
            return turn_away(family, self);
        }
    } else if (!family->thread.calling) { /* a reduction of the caller's own, under the lock */
        return turn_away(family, self);
    }
    lock(family);
    if (waits &&
        (background || atomic_load_explicit(&family->deliverer, memory_order_relaxed) == self)) {
        gr_diag diag;
        gr_status status = gr_fail(&diag, GR_E_INVALID,
                                   "a callback must not wait for operations: start them with a "
                                   "callback of their own, or wait elsewhere");
        gr_family_note(family, &diag);
        gr_family_leave(family);
        return status;
    }
    return GR_OK;
}

void gr_family_leave(gr_family *family)
{
    bool background = on_background(&family->thread);
    unlock(family);
    if (!background) {
        atomic_store_explicit(&family->owner, 0, memory_order_release);
    }
}

gr_status gr_family_note(gr_family *family, const gr_diag *diag)
{
    uintptr_t self = (uintptr_t)pthread_self();
    atomic_compare_exchange_strong(&family->intruder, &self, 0);
    family->last = *diag;
    gr_log_write(&family->log, GR_LOG_ERROR, "coll", "%s", diag->text);
    return (gr_status)diag->status;
}

const gr_diag *gr_comm_last_error(const gr_comm *comm)
{
    gr_family *family = comm->family;
    bool turned_away = atomic_load(&family->intruder) == (uintptr_t)pthread_self();
    return turned_away ? &family->intrusion : &family->last;
}

/* ---- Callbacks ------------------------------------------------------------------------------- */
enum { CALLS_AT_ONCE = 16 };

/* Under the lock. */
static int take_callbacks(gr_family *family, gr_exec_done *calls)
{
    int count = 0;
    while (count < CALLS_AT_ONCE && family->alone_count > 0) {
        gr_alone_done *from = &family->alone_done[family->alone_first];
        calls[count++] = (gr_exec_done){.done = from->done, .arg = from->arg, .status = GR_OK};
        family->alone_first = (family->alone_first + 1) % GR_EXEC_OPS_MAX;
        family->alone_count--;
    }
    while (count < CALLS_AT_ONCE && family->exec &&
           gr_exec_take_done(family->exec, &calls[count])) {
        count++;
    }
    return count;
}

static bool callbacks_due(const gr_family *family)
{
    return family->alone_count > 0 || (family->exec && gr_exec_done_pending(family->exec));
}

bool gr_family_leave_calling(gr_family *family)
{
    if (!callbacks_due(family)) {
        gr_family_leave(family);
        return false;
    }
    uintptr_t self = (uintptr_t)pthread_self();
    if (on_background(&family->thread) || atomic_load(&family->deliverer) == self) {
        gr_family_leave(family); /* who delivers already will find them too */
        return false;
    }
    for (;;) {
        gr_exec_done calls[CALLS_AT_ONCE];
        int count = take_callbacks(family, calls);
        gr_family_leave(family);
        atomic_store(&family->deliverer, self);
        for (int i = 0; i < count; i++) {
            calls[i].done(calls[i].status, calls[i].arg);
        }
        atomic_store(&family->deliverer, 0);
        if (count == 0 || gr_family_enter(family, false) != GR_OK) {
            return true; /* if another thread is inside, it will find the rest */
        }
    }
}

/* ---- The background thread ------------------------------------------------------------------- */
/* Called with the lock, which it gives back for each function. */
static void call_back(gr_family *family)
{
    gr_exec_done call;
    while (gr_exec_take_done(family->exec, &call)) {
        gr_exec_set_calling(family->exec, true);
        pthread_mutex_unlock(&family->thread.lock);
        family->thread.calling = true;
        call.done(call.status, call.arg);
        family->thread.calling = false;
        pthread_mutex_lock(&family->thread.lock);
        gr_exec_set_calling(family->exec, false);
    }
}

enum { GLANCE_NS = 100000000 };

/* Nothing is under way. If some rank may have called something else all the same, what it sent is
 * looked at now and then: an error that waits for the program's next call might wait for long. */
static void idle(gr_family *family)
{
    gr_comm_thread *thread = &family->thread;
    if (!gr_exec_unsure(family->exec)) {
        thread->asleep = true;
        pthread_cond_wait(&thread->cond, &thread->lock);
        thread->asleep = false;
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GLANCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&thread->cond, &thread->lock, &until) == ETIMEDOUT &&
        !gr_exec_progress(family->exec)) {
        (void)gr_exec_look(family->exec, false);
    }
}

static void *run_thread(void *arg)
{
    gr_family *family = arg;
    gr_comm_thread *thread = &family->thread;
    pthread_mutex_lock(&thread->lock);
    while (!thread->stop) {
        call_back(family);
        if (atomic_load(&thread->wanted) || gr_exec_active(family->exec) == 0) {
            if (!thread->stop && !gr_exec_done_pending(family->exec)) {
                idle(family);
            }
            continue;
        }
        atomic_store(&thread->in_wait, 1);
        gr_exec_wait(family->exec, NULL, &thread->wanted);
        atomic_store(&thread->in_wait, 0);
    }
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

gr_status gr_comm_thread_start(gr_family *family, gr_diag *diag)
{
    gr_comm_thread *thread = &family->thread;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&thread->cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&thread->given, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->thread, NULL, run_thread, family);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        pthread_cond_destroy(&thread->given);
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

void gr_comm_thread_stop(gr_family *family)
{
    gr_comm_thread *thread = &family->thread;
    if (!thread->running) {
        return;
    }
    lock(family);
    thread->stop = true;
    unlock(family);
    pthread_join(thread->thread, NULL);
    pthread_cond_destroy(&thread->given);
    pthread_cond_destroy(&thread->cond);
    pthread_mutex_destroy(&thread->lock);
    thread->running = false;
}
