/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_RANKS_H
#define GR_TESTS_COLL_SUPPORT_RANKS_H

/* Runs a function as every rank of a job: one process each, joined by a coordinator in the test. */

#include "coll/comm.h"
#include "link/link.h"

#include <stdio.h>

typedef struct ranks_job {
    int size;
    const char *link;      /* "shm", "tcp", "auto" */
    const char *algorithm; /* as GRADUS_ALGORITHM, may be NULL */
    const char *tune;      /* as GRADUS_TUNE; NULL: the default */
    bool inexact;
    bool quiet;                    /* ranks may fail to join, and need not say so */
    int progress;                  /* as GRADUS_PROGRESS: 0 auto, 1 thread, 2 inline */
    gr_cma cma;                    /* copies by the kernel */
    int threads;                   /* as GRADUS_THREADS: 0 auto, 1 one, 2 many */
    int64_t segment_bytes;         /* 0: the default */
    int64_t op_timeout_us;         /* 0: 20 s */
    int members_min;               /* 0: all; else the job goes on while so many live */
    bool on_demand;                /* ranks make connections when they need them */
    int joining;                   /* so many, the last ones, come when the others run */
    bool hosted;                   /* the coordinator is rank 0's */
    const gr_group_config *config; /* in a rank: what it joined by */
    int per_host;    /* 0: all on one host; else hosts of so many ranks, over `link` "auto" */
    const void *arg; /* the function's own */
} ranks_job;

/* Returns 0 if all is well; everything else is a failure. It owns the communicator, and may
 * destroy it and end. Says what is wrong on stderr. */
typedef int ranks_function(gr_comm *comm, const ranks_job *job);

/* In a rank: say what is wrong and end with 1. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d of %d: not so: %s (%s; %s)\n", __FILE__, __LINE__,     \
                    gr_comm_rank(comm), gr_comm_size(comm), #condition, gr_comm_diag(comm)->text,  \
                    gr_comm_last_error(comm)->text);                                               \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Collective: the processes of all ranks; room for gr_comm_size. */
gr_status ranks_get_pids(gr_comm *comm, int32_t *pids_out) GR_MUST_CHECK;

/* Returns when every other rank was seen to sleep, or has ended: each has called an operation, and
 * found nothing to do for so long. This rank sleeps between two looks, so that two may wait. */
void ranks_wait_until_others_sleep(const gr_comm *comm, const int32_t *pids);

/* 0 if every rank returned 0; else a bit for each rank that did not (rank 0: bit 0). A rank that
 * was killed counts as failed unless it is in `may_die`. Bounded in time. */
uint64_t ranks_run(const ranks_job *job, ranks_function *function, uint64_t may_die);
/* With `first` to `last` ranks over shared memory, without a progress thread. */
uint64_t ranks_run_sizes(ranks_function *function, int first, int last);
/* Two ranks, over each link, with and without a progress thread; job->arg: two ints, a pipe. */
uint64_t ranks_run_pairs(ranks_function *function);

#endif
