/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "coll/comm_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The lock -------------------------------------------------------------------------------- */
static uintptr_t this_thread(void)
{
    return (uintptr_t)pthread_self();
}

static void wait_for_turn(gr_context *context, uint32_t ticket)
{
    gr_comm_thread *thread = &context->thread;
    /* Sequentially consistent on both sides: either the thread that is about to sleep in the mesh
     * sees that the lock is wanted, or this one sees `in_wait` and wakes the mesh. */
    atomic_fetch_add(&thread->wanted, 1);
    if (atomic_load(&thread->in_wait)) {
        gr_mesh_wake(context->mesh);
    }
    gr_fair_lock_await(&thread->lock, ticket);
    atomic_fetch_sub(&thread->wanted, 1);
}

static void lock(gr_context *context)
{
    uint32_t ticket;
    if (!gr_fair_lock_ask(&context->thread.lock, &ticket)) {
        wait_for_turn(context, ticket);
    }
    atomic_store_explicit(&context->owner, this_thread(), memory_order_relaxed);
    context->mode = gr_float_mode_enter();
}

static void unlock(gr_context *context)
{
    gr_float_mode_leave(context->mode);
    atomic_store_explicit(&context->owner, 0, memory_order_relaxed);
    gr_fair_lock_give(&context->thread.lock);
}

void gr_context_notify(gr_context *context)
{
    if (context->thread.followers > 0) {
        gr_counter_raise(&context->thread.news);
    }
}

/* Returns true if a caller is to be notified of operations that have finished. */
static bool has_listener(const gr_context *context)
{
    return context->thread.followers > 0 || context->event_fd >= 0;
}

/* Under the lock. Other threads may wait for what has finished meanwhile. */
static void notify_finished(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    if (context->exec && has_listener(context)) {
        uint64_t finished = gr_exec_finished(context->exec);
        if (finished != thread->finished) {
            thread->finished = finished;
            gr_context_notify(context);
            gr_context_raise_event(context);
        }
    }
}

static bool callbacks_left(const gr_context *context)
{
    return context->self_count > 0 || (context->exec && gr_exec_done_pending(context->exec));
}

/* Returns true if the progress thread has work. */
static bool has_work(const gr_context *context)
{
    const gr_comm_thread *thread = &context->thread;
    return thread->stop || (!thread->led && (gr_exec_active(context->exec) > 0 ||
                                             (callbacks_left(context) && context->deliverer == 0)));
}

void gr_comm_thread_wake(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    if (thread->asleep) {
        thread->asleep = false;
        gr_counter_raise(&thread->work);
    }
}

void gr_context_leave(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    notify_finished(context);
    if (thread->asleep && has_work(context)) {
        gr_comm_thread_wake(context);
    }
    unlock(context);
}

/* ---- Who may come in ------------------------------------------------------------------------- */
static gr_status refuse(gr_context *context, const char *why)
{
    gr_diag diag;
    (void)gr_fail(&diag, GR_E_INVALID, "%s", why);
    return gr_context_note(context, &diag);
}

/* Progress threads of all contexts that may call the program, which may start operations of any
 * context there. The library's other threads start none. */
static _Atomic int calling_back;

/* How many threads this process has; 0: not known. */
static int count_threads(void)
{
    enum { BEFORE = 17 }; /* fields between the name, which ends with the last bracket, and it */
    char text[512];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) {
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    const char *at = strrchr(text, ')');
    for (int i = 0; at && i <= BEFORE; i++) {
        at = strchr(at + 1, ' ');
    }
    return at ? atoi(at) : 0;
}

bool gr_context_may_start(const void *context_arg)
{
    const gr_context *context = context_arg;
    const gr_comm_thread *thread = &context->thread;
    if (thread->several || context->deliverer != 0 || context->config.threads == GR_THREADS_MANY) {
        return true;
    }
    if (context->config.threads != GR_THREADS_AUTO) {
        return false;
    }
    int others = atomic_load(&calling_back) - (thread->running && thread->calls_back);
    /* More under TSan, which has one of its own. */
    return count_threads() != 1 + gr_thread_count() - others;
}

void gr_context_note_callback(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    if (!thread->calls_back) {
        thread->calls_back = true;
        atomic_fetch_add(&calling_back, thread->running);
    }
}

static void meet_thread(gr_context *context, uintptr_t self)
{
    gr_comm_thread *thread = &context->thread;
    if (context->deliverer != self) {
        thread->several = thread->several || thread->user != 0;
        thread->user = self;
    }
}

/* The lock may be held by a thread that this process does not have. */
static gr_status refuse_forked(gr_context *context)
{
    return refuse(context, "this process was forked from the one that created the communicator, "
                           "and cannot use it: create one of its own");
}

gr_status gr_context_enter(gr_context *context, bool waits)
{
    uintptr_t self = this_thread();
    if (gr_context_is_forked(context)) {
        return refuse_forked(context);
    }
    if (atomic_load_explicit(&context->owner, memory_order_relaxed) == self) {
        return refuse(context, "a reduction function and a log function must not call Gradus");
    }
    lock(context);
    const char *why = NULL;
    if (context->closed) {
        why = "the communicator is being destroyed: its last callbacks cannot use it any more";
    } else if (waits && context->deliverer == self) {
        why = "a callback must not wait for operations: start them with a callback of their own, "
              "or wait elsewhere";
    }
    if (why) {
        gr_status status = refuse(context, why);
        gr_context_leave(context);
        return status;
    }
    if (context->thread.user != self) {
        meet_thread(context, self);
    }
    return GR_OK;
}

void gr_context_reenter(gr_context *context)
{
    lock(context);
}

/* ---- What was wrong -------------------------------------------------------------------------- */
static gr_thread_error *find_error(gr_context *context, uintptr_t thread)
{
    for (int i = 0; i < GR_THREAD_ERRORS_MAX; i++) {
        if (context->errors[i].thread == thread) {
            return &context->errors[i];
        }
    }
    return NULL;
}

gr_status gr_context_note(gr_context *context, const gr_diag *diag)
{
    uintptr_t self = this_thread();
    gr_thread_error *error = find_error(context, self);
    for (int i = 0; i < GR_THREAD_ERRORS_MAX; i++) { /* the one that is free, or the oldest */
        gr_thread_error *other = &context->errors[i];
        error = error && (error->thread == self || error->age <= other->age) ? error : other;
    }
    error->thread = self;
    error->age = ++context->error_count;
    error->diag = *diag;
    gr_log_write(&context->log, GR_LOG_ERROR, "coll", "%s", diag->text);
    return (gr_status)diag->status;
}

const gr_diag *gr_comm_last_error(const gr_comm *comm)
{
    if (!comm) {
        return gr_comm_no_comm();
    }
    gr_context *context = comm->context;
    uintptr_t self = this_thread();
    bool inside = gr_context_is_forked(context) ||
                  atomic_load_explicit(&context->owner, memory_order_relaxed) == self;
    if (!inside) {
        lock(context);
    }
    const gr_thread_error *error = find_error(context, self);
    if (!inside) {
        gr_context_leave(context);
    }
    return error ? &error->diag : &context->fine;
}

/* ---- Waiting --------------------------------------------------------------------------------- */
static bool any_finished(gr_op *const *ops, int count)
{
    for (int i = 0; i < count; i++) {
        if (ops[i] && gr_op_finished(ops[i])) {
            return true;
        }
    }
    return false;
}

static bool callback_due(const gr_context *context)
{
    return context->deliverer == 0 && callbacks_left(context);
}

void gr_context_follow(gr_context *context, int64_t deadline_us)
{
    gr_comm_thread *thread = &context->thread;
    uint32_t seen = atomic_load(&thread->news);
    int64_t limit_us = -1;
    if (deadline_us != GR_NEVER) {
        gr_clock clock = gr_clock_real();
        int64_t left_us = deadline_us - gr_clock_now_us(&clock);
        limit_us = left_us > 0 ? left_us : 0;
    }
    thread->followers++;
    gr_context_leave(context);
    gr_counter_sleep(&thread->news, seen, limit_us);
    lock(context);
    thread->followers--;
}

/* Moves operations on until the wait is over or another thread wants the lock. */
static void lead(gr_context *context, gr_exec_until *until)
{
    gr_comm_thread *thread = &context->thread;
    thread->led = true;
    until->wanted = &thread->wanted;
    until->callback = context->deliverer == 0;
    until->any = until->any || has_listener(context);
    atomic_store(&thread->in_wait, 1);
    gr_exec_wait(context->exec, until);
    atomic_store(&thread->in_wait, 0);
    notify_finished(context);
    if (atomic_load(&thread->wanted) > 0) {
        unlock(context);
        lock(context);
    }
    thread->led = false;
}

static bool is_over(gr_context *context, gr_op *const *ops, int count)
{
    return (count > 0 ? any_finished(ops, count) : gr_exec_active(context->exec) == 0) ||
           callback_due(context);
}

void gr_context_wait(gr_context *context, gr_op *const *ops, int count, int64_t deadline_us)
{
    gr_comm_thread *thread = &context->thread;
    gr_clock clock = gr_clock_real();
    bool led = false;
    while (!is_over(context, ops, count)) {
        if (!thread->led) {
            gr_exec_until until = {.op = count == 1 ? gr_op_running(ops[0]) : NULL,
                                   .any = count > 1,
                                   .deadline_us = deadline_us};
            led = true;
            lead(context, &until);
        } else {
            gr_context_follow(context, deadline_us);
        }
        if (deadline_us != GR_NEVER && gr_clock_now_us(&clock) >= deadline_us) {
            break;
        }
    }
    if (led) {
        gr_context_notify(context); /* one of the followers leads now */
    }
}

/* ---- Callbacks ------------------------------------------------------------------------------- */
enum { CALLS_AT_ONCE = 16 };

/* Under the lock. */
static int take_callbacks(gr_context *context, gr_exec_done *calls)
{
    int count = 0;
    while (count < CALLS_AT_ONCE && context->self_count > 0) {
        gr_self_done *from = &context->self_done[context->self_first];
        calls[count++] = (gr_exec_done){.done = from->done, .arg = from->arg, .status = GR_OK};
        context->self_first = (context->self_first + 1) % GR_EXEC_OPS_MAX;
        context->self_count--;
    }
    while (count < CALLS_AT_ONCE && context->exec &&
           gr_exec_take_done(context->exec, &calls[count])) {
        count++;
    }
    return count;
}

/* Under the lock, which is given back meanwhile. One thread at a time delivers, so that callbacks
 * are called one by one, in the order in which their operations finished. */
static bool deliver(gr_context *context)
{
    if (context->deliverer != 0 || !callbacks_left(context)) {
        return false; /* the thread that delivers finds what is left */
    }
    context->deliverer = this_thread();
    gr_exec_done calls[CALLS_AT_ONCE];
    for (int count; (count = take_callbacks(context, calls)) > 0;) {
        gr_context_leave(context); /* the others move on meanwhile */
        for (int i = 0; i < count; i++) {
            calls[i].done(calls[i].status, calls[i].arg);
        }
        lock(context);
    }
    context->deliverer = 0;
    gr_context_notify(context); /* gr_comm_drain waits for this */
    return true;
}

bool gr_context_leave_calling(gr_context *context)
{
    bool called = deliver(context);
    gr_context_leave(context);
    return called;
}

void gr_context_call_back_last(gr_context *context)
{
    lock(context);
    context->closed = true;
    (void)deliver(context);
    unlock(context);
}

/* ---- The progress thread --------------------------------------------------------------------- */
enum { POLL_US = 100000 };

/* Under the lock, which is given back meanwhile. If some rank may have called something else than
 * what is over here, or may end a sub-group, what it sent is looked at now and then: an error that
 * waits for the program's next call might wait for long, and the rank for an answer. So is the end
 * of the communicator, if the program polls for it. */
static void idle(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    bool polled = context->event_fd >= 0 && !gr_exec_first_failure(context->exec);
    bool looks = polled || gr_exec_may_hear(context->exec);
    uint32_t seen = atomic_load(&thread->work);
    thread->asleep = true;
    unlock(context);
    gr_counter_sleep(&thread->work, seen, looks ? POLL_US : -1);
    lock(context);
    /* A leader looks itself, and as a thread that waits in an operation; it wakes nobody when it
     * leaves. */
    if (thread->asleep && looks && !thread->led) {
        gr_exec_look(context->exec);
        notify_finished(context);
    }
    thread->asleep = false;
}

static void *run_thread(void *arg)
{
    gr_context *context = arg;
    gr_comm_thread *thread = &context->thread;
    lock(context);
    while (!thread->stop) {
        (void)deliver(context);
        if (thread->stop) {
            break;
        }
        if (atomic_load(&thread->wanted) > 0 || !has_work(context)) {
            idle(context);
            continue;
        }
        gr_exec_until until = {.wanted = &thread->wanted,
                               .callback = context->deliverer == 0,
                               .any = has_listener(context),
                               .deadline_us = GR_NEVER};
        atomic_store(&thread->in_wait, 1);
        gr_exec_wait(context->exec, &until);
        atomic_store(&thread->in_wait, 0);
        notify_finished(context);
    }
    unlock(context);
    return NULL;
}

gr_status gr_comm_thread_start(gr_context *context, gr_diag *diag)
{
    gr_comm_thread *thread = &context->thread;
    int error = gr_thread_create(&thread->thread, NULL, run_thread, context);
    if (error != 0) {
        return gr_fail(diag, GR_E_IO,
                       "the progress thread cannot be started: %s; GRADUS_PROGRESS=inline does "
                       "without it",
                       strerror(error));
    }
    thread->running = true;
    atomic_fetch_add(&calling_back, thread->calls_back);
    return GR_OK;
}

void gr_comm_thread_stop(gr_context *context)
{
    gr_comm_thread *thread = &context->thread;
    if (!thread->running) {
        return;
    }
    lock(context);
    thread->stop = true;
    gr_context_leave(context);
    pthread_join(thread->thread, NULL);
    thread->running = false;
    atomic_fetch_sub(&calling_back, thread->calls_back);
}
