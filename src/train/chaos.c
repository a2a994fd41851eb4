/* SPDX-License-Identifier: Apache-2.0 */
#include "train/chaos.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LISTENER_LOOKS = 5000, /* so often it is looked whether one is open */
    LISTENER_PAUSE_NS = 1000000
};

static void pause_ns(int64_t ns)
{
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

/* A child wakes us, more than once where we come to stop only when the time is over: SIGUSR2 tells
 * it that we are awake. It keeps none of our descriptors: if we are killed meanwhile, the peers are
 * to see our sockets close. */
static void stop_for(int64_t us)
{
    const struct timespec again = {.tv_nsec = 20000000};
    sigset_t awake, before;
    sigemptyset(&awake);
    sigaddset(&awake, SIGUSR2);
    (void)pthread_sigmask(SIG_BLOCK, &awake, &before);
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0L, 0L, 0L);
        (void)close_range(0, ~0U, 0);
        pause_ns(us * 1000);
        do {
            (void)kill(self, SIGCONT);
        } while (sigtimedwait(&awake, NULL, &again) < 0 && getppid() == self);
        _exit(0);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child > 0) {
        (void)raise(SIGSTOP);
        (void)kill(child, SIGUSR2);
        (void)waitpid(child, NULL, 0);
    }
}

/* A worker listens only while a generation comes about: until then it is waited for. The
 * connections come at every look, as long as it listens. */
static void *send_to_listeners(void *arg)
{
    bool found = false;
    (void)arg;
    for (int look = 0; look < LISTENER_LOOKS; look++) {
        bool any = gr_fault_send_garbage(0) > 0;
        if (found && !any) {
            break;
        }
        found = found || any;
        pause_ns(LISTENER_PAUSE_NS);
    }
    return NULL;
}

static void send_garbage(const gr_chaos_run *run)
{
    pthread_t thread;
    if (run->coordinator != NULL) {
        gr_fault_send_garbage_to(run->coordinator);
    }
    if (pthread_create(&thread, NULL, send_to_listeners, NULL) == 0) {
        (void)pthread_detach(thread);
    }
}

static void *heal(void *arg)
{
    pause_ns((int64_t)(intptr_t)arg * 1000);
    (void)gr_fault_cut(0, false);
    return NULL;
}

static void cut_for(const gr_chaos_run *run, int64_t us)
{
    pthread_t healer;
    if (gr_fault_cut(0, true) <= 0) {
        gr_log_write(run->log, GR_LOG_WARN, "chaos",
                     "rank %d has no tcp link that could be cut (--link tcp)", run->rank);
    } else if (pthread_create(&healer, NULL, heal, (void *)(intptr_t)us) == 0) {
        (void)pthread_detach(healer);
    }
}

static void be_slow(const gr_fault *fault, int64_t work_ns)
{
    if (fault->until == NULL || access(fault->until, F_OK) != 0) {
        pause_ns(fault->by_us * 1000 +
                 (fault->times > 0 ? (int64_t)((double)work_ns * (fault->times - 1)) : 0));
    }
}

void gr_chaos_step(gr_chaos_run *run, uint64_t step, int64_t work_ns)
{
    uint64_t last = run->step == 0 || run->step >= step ? step - 1 : run->step;
    run->step = step;
    for (int i = 0; run->chaos != NULL && i < run->chaos->count; i++) {
        const gr_fault *fault = &run->chaos->faults[i];
        if (fault->server >= 0 || fault->rank != (fault->again ? run->rank_now : run->rank)) {
            continue;
        }
        uint64_t at = (uint64_t)fault->step;
        if (fault->kind == GR_FAULT_SLOW && step >= at) {
            be_slow(fault, work_ns);
        }
        bool over = at <= run->after || (run->done & (uint64_t)1 << i) != 0;
        if (at <= last || at > step || (over && !fault->again)) {
            continue;
        }
        run->done |= (uint64_t)1 << i;
        switch ((gr_fault_kind)fault->kind) {
        case GR_FAULT_KILL:
            (void)signal(gr_fault_signals[fault->signal], SIG_DFL); /* a sanitizer has its own */
            (void)raise(gr_fault_signals[fault->signal]);
            break;
        case GR_FAULT_STOP:
            stop_for(fault->for_us);
            break;
        case GR_FAULT_GARBAGE:
            send_garbage(run);
            break;
        case GR_FAULT_CUT:
            cut_for(run, fault->for_us);
            break;
        case GR_FAULT_SLOW:
            break;
        }
    }
}
