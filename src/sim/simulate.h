/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_SIMULATE_H
#define GR_SIM_SIMULATE_H

/* How long would an operation take on a cluster that is only described? The plans of all ranks run
 * in simulated time: no bytes move. Each host has one full-duplex network interface that its ranks
 * share, each rank one thread that sends, receives and adds.
 *
 * A world whose plans are too large for that is extrapolated from smaller ones of the same kind:
 * blocks of the same size, the same ranks on each host, fewer hosts. The result says so, with the
 * error that the same extrapolation makes for the largest world that was simulated.
 *
 * Threads: a simulator belongs to one thread. */

#include "coll/plan/plan.h"

typedef struct gr_cluster {
    int64_t hosts, ranks_per_host;
    double latency_us;     /* one way, between two hosts */
    double bandwidth_gbit; /* payload of one host, each way at the same time; 10^9 bit/s */
    double incast_gbit;    /* of one that receives from several hosts at once, which lose packets to
                           one another; 0: the same */
    int64_t burst_bytes; /* that pass at once after a pause, where a token bucket limits the rate */
    double overhead_us;  /* a rank's work for one message over the network, at each end */
    double copy_gbyte;   /* speed at which it moves bytes to and from the network, 10^9 byte/s; 0:
                              free */
    double local_latency_us, local_overhead_us;
    double local_gbyte;    /* copying out of a peer's memory */
    double reduce_gbyte;   /* adding, counted in bytes of the result; 0: free */
    int64_t segment_bytes; /* 0: what the library takes for such hosts */
    int64_t cores;         /* of a host; 0: one for each rank */
    int64_t shared_cores;  /* of all hosts together, when they are namespaces of one machine; 0 */
} gr_cluster;

/* Where the time goes, along the chain of events that ends last. */
typedef enum gr_time_part {
    GR_TIME_LATENCY = 0,   /* messages on their way */
    GR_TIME_BANDWIDTH = 1, /* bytes on the wire, or being copied inside a host */
    GR_TIME_REDUCTION = 2, /* additions */
    GR_TIME_OVERHEAD = 3,  /* a rank's work for messages */
    GR_TIME_PARTS = 4
} gr_time_part;

typedef struct gr_simulated {
    double time_us;
    double part_us[GR_TIME_PARTS]; /* their sum is time_us */
    double wire_bytes;             /* the most that one host sends */
    double messages;               /* the most that one rank sends */
    bool extrapolated;
    double error;              /* of an extrapolation, relative; 0: simulated */
    int64_t largest_simulated; /* ranks */
} gr_simulated;

enum { GR_CLUSTER_RANKS_MAX = 1 << 17 };

typedef struct gr_simulator gr_simulator;

/* GR_E_UNSUPPORTED: the algorithm has no plan for such a world; GR_E_INVALID: the cluster makes no
 * sense; GR_E_NO_MEMORY. The cluster is copied. */
gr_status gr_simulator_create(const gr_cluster *cluster, const gr_algorithm *algorithm,
                              gr_simulator **simulator_out, gr_diag *diag) GR_MUST_CHECK;
void gr_simulator_destroy(gr_simulator *simulator); /* NULL ok */
/* `size_bytes`: of one rank's whole buffer, all blocks together. GR_E_NO_MEMORY. */
gr_status gr_simulator_run(gr_simulator *simulator, size_t size_bytes, gr_simulated *simulated_out,
                           gr_diag *diag) GR_MUST_CHECK;

/* ---- A training step --------------------------------------------------------------------------
 * The forward pass, the backward pass, in which gradients become ready at an even pace, and an
 * allreduce for each full bucket, one after the other. */
typedef struct gr_training_step {
    int64_t gradient_bytes, bucket_bytes;
    double forward_us, backward_us, update_us;
    bool overlap; /* a bucket starts as soon as it is full; else behind the backward pass */
} gr_training_step;

typedef struct gr_simulated_step {
    double time_us;      /* of a step */
    double compute_us;   /* forward, backward, update */
    double allreduce_us; /* of all buckets together */
    double exposed_us;   /* the part of it that the step waits for */
    double wire_bytes;   /* the most that one host sends in a step */
    int64_t buckets;
    double error; /* as of gr_simulated */
    bool extrapolated;
} gr_simulated_step;

/* The allreduces of a step, whatever it computes. */
typedef struct gr_simulated_buckets {
    const gr_algorithm *algorithm; /* NULL: a world of one rank has none */
    gr_simulated full, rest;       /* of a full bucket; of the last one, where it is not full */
} gr_simulated_buckets;

/* By the algorithm that is the fastest one for a bucket: the one of that name; or, if `name` is
 * NULL, of all, or of those whose sums do not depend on the number of ranks (`exact`).
 * GR_E_UNSUPPORTED: none has a plan for such a world; else as of gr_simulator_create. */
gr_status gr_simulate_buckets(const gr_training_step *step, const gr_cluster *cluster,
                              const char *name, bool exact, gr_simulated_buckets *buckets_out,
                              gr_diag *diag) GR_MUST_CHECK;
gr_simulated_step gr_simulate_step(const gr_training_step *step,
                                   const gr_simulated_buckets *buckets);

#endif
