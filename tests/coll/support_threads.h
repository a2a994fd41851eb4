/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_THREADS_H
#define GR_TESTS_COLL_SUPPORT_THREADS_H

/* A coordinator on a thread of the test's own, and the configuration by which ranks join it: ranks
 * of one job may be threads of one process. */

#include "base/arena.h"
#include "coll/comm.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct threads_host {
    gr_coordinator *coordinator;
    gr_arena arena;
    gr_group_config config; /* all but the rank; the secret is secret_hex */
    char secret_hex[2 * 32 + 1];
    pthread_t thread;
    _Atomic bool stop;
} threads_host;

/* Returns 0, else -1 with a sentence on stderr. `link`: "shm" or "tcp". */
int threads_host_start(threads_host *host, int world_size, const char *link);
void threads_host_stop(threads_host *host);

/* Rank 0 .. size - 1 of one job, each on a thread. Returns 0 if all functions returned 0. */
typedef int threads_function(gr_comm *comm, void *arg);
int threads_run(int size, const char *link, int progress, threads_function *function, void *arg);

#endif
