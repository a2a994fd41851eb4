/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_SIM_H
#define GR_TESTS_COLL_SUPPORT_SIM_H

/* All ranks of a job in one process, over a simulated network: who has something to do is run, in
 * an order that the seed decides; when nobody has, the clock moves on. */

#include "link/sim/sim.h"
#include "support_call.h"

enum { SIM_WORLD_MAX = 64, SIM_OPS_MAX = 6 };

typedef struct sim_rank {
    gr_mesh *mesh;
    gr_exec *exec;
    gr_programs programs;
    void *user[SIM_OPS_MAX][GR_SHARD_PARTIALS_MAX];
    gr_op *ops[SIM_OPS_MAX];
    gr_status result[SIM_OPS_MAX];
    int64_t ended_us[SIM_OPS_MAX];
    int started, finished;
    bool dead;         /* killed */
    bool absent;       /* lives, but never calls anything */
    bool waits;        /* inside gr_mesh_wait */
    int64_t starts_us; /* earliest time of its next call */
    int64_t busy_us;   /* it computes until then */
    int64_t look_us;   /* gr_exec_look asked to be called then */
} sim_rank;

typedef struct sim_world {
    gr_sim_net *net;
    int size, call_count;
    const call_spec *calls;       /* by operation */
    const call_spec *other_calls; /* what rank `other` calls instead; NULL */
    int other;
    bool one_at_a_time; /* a rank waits for an operation before it calls the next */
    bool leaves;        /* a rank leaves as soon as it has finished, or failed */
    int think_us;       /* up to so long before a call */
    int step_us;        /* up to so long for a pass that moved something */
    int slow_rank, slow_factor;
    void (*event)(struct sim_world *world); /* called before each step, may be NULL... */
    int64_t event_us; /* ...and at this time even if nobody has anything to do; it sets it anew */
    void *event_arg;
    uint64_t steps;
    sim_rank ranks[SIM_WORLD_MAX];
} sim_world;

/* False if a mesh or an executor cannot be made: then what to do is printed. */
bool sim_open(sim_world *world, const gr_sim_config *config, size_t segment_bytes,
              int window_segments, int64_t op_timeout_us);
void sim_close(sim_world *world);
/* Until every living rank has all its results, at most until that time; false: somebody hangs. */
bool sim_run(sim_world *world, int64_t until_us);
bool sim_finished(const sim_world *world);

#endif
