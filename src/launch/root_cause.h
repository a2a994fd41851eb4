/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_ROOT_CAUSE_H
#define GR_LAUNCH_ROOT_CAUSE_H

/* Which worker's end was the cause of the job's failure, and the sentence about it. Pure. */

#include "coll/diagnose/flight_recorder.h"

#include <sys/types.h>

enum { GR_CRASH_HOST_BYTES = 64, GR_CRASH_TEXT_BYTES = 192 };

typedef struct gr_worker_end {
    pid_t pid;
    bool started;
    bool ended;
    int wait_status; /* of waitpid */
    int order;       /* the how many-th that ended, from 0 */
    int64_t start_us, end_us;
    bool was_asked;   /* it ended after, and perhaps by, a signal of ours */
    bool spared;      /* the others go on without it */
    const char *host; /* where it ran; NULL: there is only one host */
    bool lost;        /* with its host: how it ended is not known */
} gr_worker_end;

/* The order in which ends count as causes: the smaller, the likelier the cause. */
typedef enum gr_end_class {
    GR_END_KILLED = 0, /* by a signal that was not ours */
    GR_END_FAILED,     /* by an exit code */
    GR_END_PEER,       /* only because somebody else failed: GR_LAUNCH_EXIT_PEER */
    GR_END_ASKED,      /* because we, or others, asked it to */
    GR_END_FINE        /* exit code 0, or still running */
} gr_end_class;

gr_end_class gr_root_cause_class(const gr_worker_end *end);

/* The rank that failed first in class, then in time; -1 if nobody failed on its own account. */
int gr_root_cause_root(const gr_worker_end *ends, int workers);

/* 0: all workers ended with exit code 0. GR_LAUNCH_EXIT_RESUME: all with that or 0. -1: any other
 * end. Who was spared does not count, nor beside a GR_LAUNCH_EXIT_RESUME who was asked to end and
 * lost with its host. `holds`: workers that have met take SIGTERM by themselves. So one that it
 * kills, or that was never started, has done nothing that could be lost, nor have the others. */
int gr_root_cause_code(const gr_worker_end *ends, int workers, bool holds);

/* Returns true if the same work would end the worker in the same way again. True of the signals
 * that a program brings upon itself; a worker that was killed or lost did nothing wrong. */
bool gr_root_cause_crashed(const gr_worker_end *end);

/* A worker's crash. */
typedef struct gr_crash {
    int signal_number; /* 0: there was none */
    int rank;
    char host[GR_CRASH_HOST_BYTES]; /* "": there is only one */
    int attempt;                    /* how often the job had been restarted */
    gr_flight_recorder_place place;
} gr_crash;
/* It has come again: the same end in the same step, or in the same operation where steps are not
 * known, in another attempt at it. In whichever rank: a step that is repeated is dealt anew. */
bool gr_crash_repeats(const gr_crash *before, const gr_crash *now);
/* ", in step 50, as rank 2 on host b was before": behind a sentence about one that repeats. */
void gr_crash_describe(const gr_crash *before, char *text_out, size_t text_bytes);

/* "rank 2 (pid 123) was killed by signal 9 (Killed) after 3.2 s"; `what`: "rank". */
void gr_root_cause_describe(const char *what, int number, const gr_worker_end *end, char *text_out,
                            size_t text_bytes);

/* "ranks 0, 2 and 3" or "rank 5" of those with `chosen`; cut with "..." after a few. */
void gr_root_cause_list(const bool *chosen, int workers, char *text_out, size_t text_bytes);

#endif
