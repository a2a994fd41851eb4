/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

int gr_thread_create(pthread_t *thread_out, const pthread_attr_t *attributes, void *(*run)(void *),
                     void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread_out, attributes, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
