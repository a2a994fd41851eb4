/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHAOS_H
#define GR_TRAIN_CHAOS_H

/* Fault injection (`gradus run --chaos`): what happens to which worker when, so that users see how
 * their job survives it. Faults of a step happen in the worker itself; those of a time are its
 * launcher's. */

#include "base/arena.h"
#include "base/log.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum gr_fault_kind {
    GR_FAULT_KILL = 0, /* by `signal` */
    GR_FAULT_STOP,     /* SIGSTOP, and SIGCONT after `for_us` */
    GR_FAULT_SLOW,     /* its part of every step takes `times` as long */
    GR_FAULT_GARBAGE,  /* unauthenticated peers send garbage to the coordinator */
    GR_FAULT_CUT       /* for `for_us` nothing arrives over its tcp links */
} gr_fault_kind;

typedef struct gr_fault {
    int kind;        /* gr_fault_kind */
    int64_t rank;    /* at the start of the job */
    int64_t server;  /* a parameter server in place of a rank; -1 */
    int64_t step;    /* before this step is computed, from 1; 0: at `time_us` */
    int64_t time_us; /* after the start */
    int64_t for_us;
    double times;
    int signal; /* index into gr_fault_signals */
    bool again; /* whenever the step begins, in whoever has the rank then */
} gr_fault;

/* 0: SIGKILL; the others are those of a program that crashes. */
extern const int gr_fault_signals[];

enum { GR_FAULTS_MAX = 64 };

typedef struct gr_chaos {
    gr_fault faults[GR_FAULTS_MAX];
    int count;
} gr_chaos;

/* "kill:rank=2@step=50; stop:rank=1@time=3s,for=3s; ...". GR_E_INVALID: the sentence quotes the
 * fault that is wrong. */
gr_status gr_chaos_parse(const char *text, int64_t workers, int64_t servers, gr_arena *arena,
                         gr_chaos *chaos_out, gr_diag *diag) GR_MUST_CHECK;

/* Of one worker while it trains. */
typedef struct gr_chaos_run {
    const gr_chaos *chaos; /* borrowed; NULL: nothing happens */
    int rank;              /* at the start of the job; -1: came later */
    int rank_now;
    uint64_t after; /* faults of steps up to this one have happened in an earlier beginning */
    const char *coordinator;
    const gr_log *log;
    uint64_t step; /* that was begun last; some may be left out between two */
    uint64_t done; /* a bit for each fault: it happens once, also if its step is repeated */
} gr_chaos_run;

/* Does what is due before step `step` (from 1), of which a usual one takes `work_ns` without
 * waiting. May not return. */
void gr_chaos_step(gr_chaos_run *run, uint64_t step, int64_t work_ns);

#endif
