/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_SERVERS_H
#define GR_TRAIN_SERVERS_H

/* A trainer's connection to its parameter servers, for one generation of the group: each tensor of
 * the model's parameters is one there, under its own name; with an asynchronous strategy the
 * statistics as well.
 *
 * The connection is the generation's, since with it vanishes what was under way when a worker died:
 * a server may still read a gradient where it lies, and must not find that of other shards there.
 * Its number is that of no other worker in this generation or the two before: so nobody waits until
 * the servers have missed a worker that had it. */

#include "train/strategy/strategy.h"

#include <gradus/ps.h>

typedef struct gr_server_tensor {
    int id;            /* on the connection */
    size_t begin, end; /* elements of the step vector */
    bool statistic;
    uint64_t version; /* of the values that came last */
} gr_server_tensor;

typedef struct gr_servers {
    gr_ps *ps;
    gr_server_tensor *tensors; /* ascending */
    int count;
    float *come; /* a step vector: what comes from the servers, where these can write it */

    /* Of the step that is running. */
    uint64_t step;
    double rate;
    gr_ps_op **ops; /* in the order in which they start */
    int started, finished;
    int *pulls; /* of each the tensor whose values it brings; -1: none */
    /* Of asynchronous strategies: */
    uint64_t updates; /* that all tensors had had when values came last */
    uint64_t clock;   /* own steps in this generation */
    gr_diag failure;  /* the first one in the backward pass, which cannot return it */
} gr_servers;

/* The job's secret for t->secret, and whether there are servers at all. Before the process is in a
 * group: that wipes the environment. */
gr_status gr_servers_prepare(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;

/* Gradients are compressed by workers, each shard's by itself, in the buckets of allreduce; so the
 * sums that servers make of them are allreduce's. */
gr_status gr_servers_compress(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;

/* t->gen.strategy_state: connects and declares. t->gen.vectors: plan.slots of them, where servers
 * can read them. `ops`: how many a step has. */
gr_status gr_servers_enter(gr_trainer *t, int ops, gr_diag *diag) GR_MUST_CHECK;
void gr_servers_leave(gr_trainer *t);

/* Returns true if servers only add the gradients, and workers run the optimizer on the sums: where
 * the norm of the whole gradient must be known first. */
bool gr_servers_only_add(const gr_job *job);

/* How many updates of a tensor make a step: one, or with an asynchronous strategy as many as it has
 * shards. */
uint64_t gr_servers_updates(const gr_job *job);

/* Collective: rank 0 gives its weights, and the optimizer's vectors, as those after `step` steps,
 * and makes sure that the servers have them, or what comes one step later (with an asynchronous
 * strategy: or any later). It does so in each generation: who died may have left none behind, and
 * the first ones count. */
gr_status gr_servers_fill(gr_trainer *t, uint64_t step, gr_diag *diag) GR_MUST_CHECK;

/* Rank 0: the optimizer's vectors after `step` steps, from the servers where these have them.
 * GR_E_NOT_FOUND: they have those of a later step. */
gr_status gr_servers_gather(gr_trainer *t, uint64_t step, gr_diag *diag) GR_MUST_CHECK;

/* One more operation: a gradient of that tensor; `pull`: its values come back. If too many are
 * under way, it waits. */
gr_status gr_servers_push(gr_trainer *t, int tensor, const gr_ps_gradient *push, bool pull,
                          gr_diag *diag) GR_MUST_CHECK;
/* Rank 0: all tensors' values with the optimizer's vectors, as they are now, those of each block
 * from one moment: for gr_servers_take_values. */
gr_status gr_servers_gather_now(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;

/* All tensors' values as they are now. */
gr_status gr_servers_pull(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;
/* No operation is under way. */
void gr_servers_begin(gr_trainer *t, uint64_t step);

/* The oldest operation that has not ended: until it has, or somebody whom it needs is gone. The
 * others move on meanwhile. GR_PENDING: the strategy is asynchronous, and some workers may be in
 * the next generation already, without doing what this one waits for: so should this one. */
gr_status gr_servers_wait(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;
/* Without waiting. */
gr_status gr_servers_poll(gr_trainer *t, gr_diag *diag) GR_MUST_CHECK;

/* Returns `status`; a failure of the last call is reported in the servers' words. The loss of a
 * server is none of a member: the group cannot go on without it. */
gr_status gr_servers_status(const gr_servers *servers, gr_status status,
                            gr_diag *diag) GR_MUST_CHECK;

/* What has come becomes the weights; all of it is looked over. Returns the first element of the
 * step vector that is not finite, or its length. */
size_t gr_servers_take_values(gr_trainer *t);

#endif
