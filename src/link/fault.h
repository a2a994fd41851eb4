/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_FAULT_H
#define GR_LINK_FAULT_H

/* Fault injection (`gradus run --chaos`): what happens to which worker when, so that users see how
 * their job survives it. The launcher has the faults of a time done by the worker's agent, from
 * outside, to any program; the trainer does those of a step to itself (train/chaos.h). Not in the
 * library. */

#include "base/arena.h"

#include <gradus/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum gr_fault_kind {
    GR_FAULT_KILL = 0, /* by `signal` */
    GR_FAULT_STOP,     /* SIGSTOP, and SIGCONT after `for_us` */
    GR_FAULT_SLOW,     /* what it computes takes `times` as long, or `by_us` longer */
    GR_FAULT_GARBAGE,  /* unauthenticated peers send garbage */
    GR_FAULT_CUT       /* for `for_us` nothing arrives over its tcp links */
} gr_fault_kind;

typedef struct gr_fault {
    int kind;        /* gr_fault_kind */
    int64_t rank;    /* at the start of the job */
    int64_t server;  /* a parameter server in place of a rank; -1 */
    int64_t step;    /* before this step is computed, from 1; 0: at `time_us`; slow: from it on */
    int64_t time_us; /* after the start */
    int64_t for_us;
    double times;      /* 0: `by_us` counts */
    int64_t by_us;     /* more for each step */
    const char *until; /* it is over when this file is there; NULL: never */
    int signal;        /* index into gr_fault_signals */
    bool again;        /* whenever the step begins, in whoever has the rank then */
} gr_fault;

/* 0: SIGKILL; the others are those of a program that crashes. */
extern const int gr_fault_signals[];

enum { GR_FAULTS_MAX = 64 };

typedef struct gr_chaos {
    gr_fault faults[GR_FAULTS_MAX];
    int count;
} gr_chaos;

/* "kill:rank=2@step=50; stop:rank=1@time=3s,for=3s; ...". What it points to is the arena's.
 * GR_E_INVALID: the sentence quotes the fault that is wrong. */
gr_status gr_chaos_parse(const char *text, int64_t workers, int64_t servers, gr_arena *arena,
                         gr_chaos *chaos_out, gr_diag *diag) GR_MUST_CHECK;

/* To the processes of a process group that the caller may trace (it is their ancestor, say), or to
 * the calling process alone (`group` 0). They return at so many sockets it was done, or -errno
 * where it is not permitted at all. */

/* The kernel drops what arrives at the tcp sockets that are there now, acknowledgements too, as if
 * the cable were out; `cut` false: no longer. */
int gr_fault_cut(pid_t group, bool cut);
/* Connections that do not belong to the job come to each stream socket that listens, and send up
 * to 4 KiB of random bytes each. */
int gr_fault_send_garbage(pid_t group);
/* The same to an address; where nobody listens nothing happens. */
void gr_fault_send_garbage_to(const char *address);

#endif
