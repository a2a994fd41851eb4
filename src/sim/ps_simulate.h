/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_PS_SIMULATE_H
#define GR_SIM_PS_SIMULATE_H

/* How long would a training step by parameter servers take on a cluster that is only described? The
 * blocks of the parameters are pushed and pulled in simulated time: no bytes move. Beside it stand
 * the other ways in which gradients can meet, with the same cluster and the same computing times:
 * allreduce, and local steps.
 *
 * Pure: the same arguments give the same result. Threads: any, each call for itself. */

#include "sim/simulate.h"

enum {
    GR_PS_SIM_WORKERS_MAX = 1024,
    GR_PS_SIM_SERVERS_MAX = 64,
    GR_PS_SIM_STALENESS_MAX = 1000000
};

typedef enum gr_ps_sim_mode {
    GR_PS_SIM_BSP,    /* each step waits for all workers */
    GR_PS_SIM_BACKUP, /* each step waits for `aggregate` of them; what comes later is dropped */
    GR_PS_SIM_SSP,    /* a worker is at most `staleness` steps ahead of the slowest one */
    GR_PS_SIM_ASYNC   /* each gradient is applied as it comes */
} gr_ps_sim_mode;

typedef struct gr_ps_sim {
    gr_cluster cluster; /* of the workers, one a rank; `cores`, `shared_cores` and `segment_bytes`
                           do not count for pushes and pulls */
    int64_t servers, servers_per_host;
    bool beside_workers;   /* servers on the workers' hosts, from the first on; else on own ones */
    bool replicas;         /* an update is on another server before anybody sees it */
    gr_training_step step; /* gradients are as many bytes as parameters; `bucket_bytes` is
                              allreduce's. With `overlap` a block is pushed as soon as the
                              backward pass has it. `update_us` is the time for all parameters: the
                              servers share it, and spend it once an update. */
    double spread;         /* standard deviation of a worker's computing time, relative */
    const double *slow;    /* by worker: factor of its computing time; NULL: 1 */
    uint64_t seed;         /* of the spread */
    gr_ps_sim_mode mode;
    int64_t aggregate, staleness;
} gr_ps_sim;

/* One direction of a host's wire. */
typedef struct gr_ps_sim_wire {
    bool server;   /* of a host of servers alone; else of a host of workers */
    int64_t host;  /* number of the host among its like */
    bool incoming; /* bytes that the host receives */
    double share;  /* of the time in which it was busy; 0: nothing crossed any wire */
} gr_ps_sim_wire;

typedef struct gr_ps_simulated {
    double step_us; /* in which as many gradients are used as there are workers, or `aggregate` */
    double gradients_per_s; /* that are used */
    double dropped;         /* share of the gradients that came too late (backup) */
    double staleness_mean;  /* updates between pull and push of a gradient (async, ssp) */
    int64_t staleness_p99;
    gr_ps_sim_wire busiest;
    int64_t steps; /* that were simulated and counted */
} gr_ps_simulated;

/* GR_E_INVALID: it makes no sense; GR_E_NO_MEMORY. */
gr_status gr_ps_simulate(const gr_ps_sim *sim, gr_ps_simulated *simulated_out,
                         gr_diag *diag) GR_MUST_CHECK;

/* Workers meet after every `every` steps: the computing time of the slowest of them in so many
 * steps, on the average, as a multiple of what these steps take without spread and slow workers. */
double gr_ps_sim_slowest(const gr_ps_sim *sim, int64_t every);

/* The step by allreduce among the same workers: what the slowest one computes counts for all. */
gr_simulated_step gr_ps_sim_allreduce(const gr_ps_sim *sim, const gr_simulated_buckets *allreduce);
/* Steps on their own, and that allreduce of the parameters after every `every` of them; its time is
 * shared out evenly over these steps. */
gr_simulated_step gr_ps_sim_local(const gr_ps_sim *sim, int64_t every,
                                  const gr_simulated_buckets *allreduce);

/* ---- Advice: how many servers? ----------------------------------------------------------------
 * The smallest number beyond which no number up to `servers_max` makes a `bsp` step 5 % faster. */
typedef struct gr_ps_advice {
    int64_t workers, servers, servers_max;
    double step_us;                /* with `servers` of them */
    double one_us, most_us;        /* with one, and with servers_max */
    double allreduce_us;           /* a step with allreduce instead */
    const gr_algorithm *algorithm; /* of allreduce; NULL: one worker */
} gr_ps_advice;

/* `sim`: its servers, mode, spread and slow workers do not count. `allreduce`: by which the
 * alternative goes; NULL: the fastest one whose sums do not depend on the number of ranks is found
 * here. Errors as of gr_ps_simulate and gr_simulate_buckets. */
gr_status gr_ps_advise(const gr_ps_sim *sim, int64_t servers_max,
                       const gr_simulated_buckets *allreduce, gr_ps_advice *advice_out,
                       gr_diag *diag) GR_MUST_CHECK;

enum { GR_PS_ADVICE_BYTES = 512 };
/* The advice as a sentence for people, without a full stop. */
void gr_ps_advice_print(const gr_ps_advice *advice, char text_out[GR_PS_ADVICE_BYTES]);

#endif
