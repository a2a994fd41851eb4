/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct thread_start {
    void *(*run)(void *);
    void *arg;
} thread_start;

static _Atomic int count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The child has the thread that forked, and no other. */
static void in_child(void)
{
    atomic_store(&count, 0);
}

static void install(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

static void *run_counted(void *start_arg)
{
    thread_start start = *(thread_start *)start_arg;
    free(start_arg);
    void *result = start.run(start.arg);
    atomic_fetch_sub(&count, 1);
    return result;
}

int gr_thread_create(pthread_t *thread_out, const pthread_attr_t *attributes, void *(*run)(void *),
                     void *arg)
{
    (void)pthread_once(&once, install);
    thread_start *start = malloc(sizeof *start);
    if (!start) {
        return ENOMEM;
    }
    *start = (thread_start){.run = run, .arg = arg};
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_fetch_add(&count, 1);
    int error = pthread_create(thread_out, attributes, run_counted, start);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        atomic_fetch_sub(&count, 1);
        free(start);
    }
    return error;
}

int gr_thread_count(void)
{
    return atomic_load(&count);
}
