/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_THREAD_H
#define GR_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread that takes no signals: they belong to the program's own threads. `attributes` may
 * be NULL. Returns 0 or errno. */
int gr_thread_create(pthread_t *thread_out, const pthread_attr_t *attributes, void *(*run)(void *),
                     void *arg);
/* How many threads of gr_thread_create this process has. Counts one from before its start until its
 * function has returned. Any thread. */
int gr_thread_count(void);

#endif
