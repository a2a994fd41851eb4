/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_SIM_H
#define GR_TESTS_COLL_SUPPORT_SIM_H

/* All ranks of a job in one process, over a simulated network: each is a fiber that calls the
 * public functions of communicators. Who has something to do is run, in an order that the seed
 * decides; when nobody has, the clock moves on. A rank is interrupted wherever it looks at the
 * clock. */

#include "coll/comm_internal.h"
#include "sim/net/sim.h"
#include "support_board.h"
#include "support_fiber.h"

enum { SIM_WORLD_MAX = 16, SIM_COMMS_MAX = 4 };

typedef struct sim_job sim_job;

typedef struct sim_rank {
    sim_job *job;
    gr_mesh *mesh;                 /* NULL in a group of one, and when it has left */
    gr_comm *comms[SIM_COMMS_MAX]; /* first the whole job, then what the body splits from it */
    gr_context *context;
    fiber *fiber;
    bool over;        /* its body has returned */
    bool dead;        /* killed */
    int64_t wakes_us; /* it sleeps until then... */
    bool listens;     /* ...or until its mesh has news */
} sim_rank;

struct sim_job {
    /* Set before sim_open: */
    gr_sim_config net_config;
    int size;
    uint64_t host_of[SIM_WORLD_MAX];
    const char *algorithm; /* as GRADUS_ALGORITHM */
    bool exact;
    size_t segment_bytes; /* 0: part of the choice */
    int64_t slice_bytes, scratch_bytes, op_timeout_us;
    int interrupt_percent;      /* looks at the clock that take time... */
    int step_us;                /* ...up to so long... */
    int slow_rank, slow_factor; /* ...and for this rank so many times as long */
    void (*body)(sim_job *job, int rank);
    void (*event)(sim_job *job); /* called before each step, may be NULL... */
    int64_t event_us; /* ...and at this time even if nobody has anything to do; it sets it anew */
    void *arg;        /* the caller's */
    /* Of the run: */
    gr_sim_net *net;
    gr_topology *topology;
    board board;
    int current; /* the rank that runs; -1: none */
    uint64_t steps;
    sim_rank ranks[SIM_WORLD_MAX];
};

/* False: something cannot be made, and it was said what. sim_close is due in any case. */
bool sim_open(sim_job *job);
/* Until every living rank's body has returned, at most until that time; false: somebody hangs. */
bool sim_run(sim_job *job, int64_t until_us);
void sim_close(sim_job *job);

/* For bodies: the rank does nothing until then; and its process ends in order. */
void sim_sleep(sim_job *job, int rank, int64_t until_us);
void sim_leave(sim_job *job, int rank);

#endif
