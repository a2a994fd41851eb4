/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_STRATEGY_H
#define GR_TRAIN_STRATEGY_H

/* How gradients meet: all of a training step that depends on the job's strategy. The rest of it, a
 * rank's own shards and their sums, is step.c's. */

#include "train/step.h"

/* How old gradients were when they were applied; by blocks of tensors. */
typedef struct gr_staleness {
    uint64_t updates, sum, most; /* of the updates; 0 updates: none is stale */
    uint64_t pushes, dropped;    /* came, and came too late; 0 pushes: none is dropped */
} gr_staleness;

struct gr_strategy {
    /* What others go by; nobody asks which strategy it is. */
    const char *name;      /* as in job files */
    bool asynchronous;     /* each worker takes steps by its own count, and waits for nobody: their
                            * weights are the same only after `finish` */
    bool updates_by_shard; /* an update is made of one shard's gradient, not of all shards' sum */
    bool averages_weights; /* weights travel, not gradients, at the end of rounds (sync_every) */
    bool needs_servers;    /* parameter servers */

    /* First of all, once; before the process is in a group. NULL: nothing. What it makes the
     * trainer frees. */
    gr_status (*prepare)(gr_trainer *t, gr_diag *diag);
    /* What a generation of the group needs: the shards of this rank (gr_trainer_assign), vectors
     * for their sums, and whatever else; also ahead, on another thread, in a trainer that has no
     * weights. `leave` gives it back, also where `enter` has failed half-way. */
    gr_status (*enter)(gr_trainer *t, gr_diag *diag);
    void (*leave)(gr_trainer *t);

    /* The weights are those after `step` steps, on all ranks; t->reached, if others are farther by
     * now. NULL: nothing. */
    gr_status (*seek)(gr_trainer *t, uint64_t step, gr_diag *diag);

    /* What the servers have counted since they began. NULL: there is nothing to count. */
    gr_status (*count)(gr_trainer *t, gr_staleness *staleness_out, gr_diag *diag);

    /* All have done the last step: from now on all have the same weights. NULL: they have. */
    gr_status (*finish)(gr_trainer *t, gr_diag *diag);

    /* Brings what the weights after `step` steps have beside them, the optimizer's vectors, to rank
     * 0, for a checkpoint; if `asynchronous`, rank 0 alone calls it, and weights come as well.
     * GR_E_NOT_FOUND: what comes after the next step is all that is left, as a generation has ended
     * within that. NULL: they are there. */
    gr_status (*gather)(gr_trainer *t, uint64_t step, gr_diag *diag);

    /* What a shard keeps to itself from step to step, and a checkpoint must hold: the `part`-th
     * vector of the `shard`-th own one, the same length for all shards. NULL past the last part; no
     * function: shards keep nothing. A job of which shards keep something needs all its workers. */
    float *(*kept)(gr_trainer *t, int shard, int part, size_t *count_out);

    /* A whole step: all that comes below, and computing the gradients, in another way. It adds to
     * `now` what `update` does. NULL: the usual one. */
    gr_status (*step)(gr_trainer *t, uint64_t step, gr_meter *now, gr_diag *diag);

    /* A step begins: nothing of it is under way. Returns the step of whose samples this rank
     * computes its part: this one, unless `asynchronous`. */
    uint64_t (*begin)(gr_trainer *t, uint64_t step);
    /* Called from the last shard's backward pass: elements [0, end) of this rank's sums are final.
     * The first failure is kept, for `wait`. */
    gr_status (*ready)(gr_trainer *t, size_t end);
    /* Until all that the update needs has come. It has changed no weight when it fails: the step
     * can be run again. GR_PENDING: in the next generation, to which this rank should go over.
     * Time spent waiting is added to t->wait_ns. */
    gr_status (*wait)(gr_trainer *t, gr_diag *diag);
    /* The new weights, and what the step tells: loss, correct, steps and samples of `now`, and
     * t->step.stop, .save, .renew; t->reached, if the job is not one step further than before.
     * `key` is of gr_not_finite_find, INT64_MAX if this rank has seen nothing. */
    gr_status (*update)(gr_trainer *t, uint64_t step, int64_t key, gr_meter *now, gr_diag *diag);
};

/* The name of the `index`-th choice, as in job files; NULL behind the last. */
const char *gr_strategy_name(int index);
/* The one that the settings ask for: job->strategy from then on. */
const gr_strategy *gr_strategy_of(const gr_job *job);

/* Sums over all ranks, and the same update on each of them (strategy_allreduce.c). */
extern const gr_strategy gr_strategy_allreduce;

/* Each shard trains weights of its own, which are averaged from time to time (strategy_local.c). */
extern const gr_strategy gr_strategy_local;

/* Servers add the shards' gradients in the order of the shard tree, and update the weights: the
 * same bits (strategy_ps.c). */
extern const gr_strategy gr_strategy_ps;

/* Servers update the weights as gradients come: asynchronous (strategy_ps_async.c). */
extern const gr_strategy gr_strategy_ps_async;

/* ---- Of step.c, for strategies --------------------------------------------------------------- */

/* Reads the micro batch t->step.micro_index of the own shard t->step.shard_index of step `step`,
 * and runs it forwards through `values`. */
gr_status gr_trainer_forward(gr_trainer *t, uint64_t step, const float *values, gr_batch *batch_out,
                             gr_batch_result *result_out, gr_diag *diag) GR_MUST_CHECK;

/* gr_optimizer_begin for step `step`. `gradient`: a whole one, of the model's length, which is
 * clipped if the job says so; NULL: it is not. */
void gr_trainer_begin_update(const gr_trainer *t, gr_optimizer *optimizer, uint64_t step,
                             const float *gradient);

/* What the job's clip_norm makes of a gradient of the model's length: the factor. */
float gr_trainer_clip(const gr_trainer *t, const float *gradient);

/* t->gen.plan: this rank's part of `shards` shards. `collapse`: see gr_shard_plan_init. */
gr_status gr_trainer_assign(gr_trainer *t, int shards, bool collapse, gr_diag *diag) GR_MUST_CHECK;

/* t->gen.cuts and .compressor, as the job compresses the gradients of t->gen.plan's shards; and,
 * whatever the status, *ends_out: heap memory (free), which the buckets of these cuts borrow. */
gr_status gr_trainer_cut(gr_trainer *t, size_t **ends_out, gr_buckets_config *config_out,
                         gr_diag *diag) GR_MUST_CHECK;

/* The `kept` of strategies whose shards are always the same: what topk has left out of the sums so
 * far. */
float *gr_trainer_left_out(gr_trainer *t, int shard, int part, size_t *count_out);

/* vectors[0] holds the header and the statistics summed over all shards: running statistics, the
 * numbers of the step and what ranks have reported are taken from there. */
void gr_trainer_take_header(gr_trainer *t, gr_meter *now);
/* Returns true if enough shards ask for an early end. Each has added one to the header. */
bool gr_trainer_stops(const gr_trainer *t, const float *sum);

#endif
