/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_SIMULATE_WORLD_H
#define GR_SIM_SIMULATE_WORLD_H

/* The plans of all ranks of one world, and their run in simulated time. Internal to simulate*.c. */

#include "coll/engine/schedule.h"
#include "sim/simulate.h"

/* A segment of a message, in the order in which the executor sends them and takes them: the
 * messages of the plan, first the first slice of each of them, then the next one. */
typedef struct gr_simcursor {
    uint32_t slice; /* its first segment */
    uint32_t index; /* of the message; the number of messages: behind the last one */
    uint32_t segment;
} gr_simcursor;

/* The messages from one rank to another, as one of the two sees them. */
typedef struct gr_simpath {
    int peer;
    bool local;            /* on the same host */
    uint32_t first, count; /* in program->send_steps or recv_steps */
    uint32_t remote;       /* index of the same path at the peer */
    /* Of a run: */
    gr_simcursor next; /* to be sent or taken */
    uint32_t arrived;  /* receiving: segments that are here and not taken */
    gr_simcursor wire; /* sending: the first segment that is not through the interface */
    size_t wire_left;  /* of it; 0: all */
    size_t posting;    /* sending: bytes that are being written, */
    size_t written;    /* that the kernel has, */
    size_t in_queue;   /* and that it has queued at the interface, */
    uint32_t packets;  /* in so many packets */
    bool queued;       /* waits for the rank's thread */
} gr_simpath;

typedef struct gr_simrank {
    gr_schedule *schedule;
    gr_simpath *out, *in;
    uint32_t out_count, in_count;
    uint32_t *path_of; /* by step: its path; of SEND, RECV, SIGNAL, AWAIT */
} gr_simrank;

typedef struct gr_simworld {
    gr_cluster cluster; /* with the number of hosts of this world */
    int size;
    gr_coll coll;
    gr_simrank *ranks;
    gr_topology *topology;
    const int *host_of; /* of it */
    uint64_t steps;     /* of all plans */
    int blocks;
} gr_simworld;

/* The steps of all ranks' plans, about; 0: the algorithm has no plan for such a world. */
uint64_t gr_simworld_steps(const gr_cluster *cluster, const gr_algorithm *algorithm);
gr_status gr_simworld_create(const gr_cluster *cluster, const gr_algorithm *algorithm,
                             gr_simworld **world_out, gr_diag *diag) GR_MUST_CHECK;
void gr_simworld_destroy(gr_simworld *world); /* NULL ok */
gr_status gr_simworld_run(gr_simworld *world, size_t size_bytes, gr_simulated *simulated_out,
                          gr_diag *diag) GR_MUST_CHECK;

#endif
