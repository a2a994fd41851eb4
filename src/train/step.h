/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_STEP_H
#define GR_TRAIN_STEP_H

/* One training step of one worker, and everything that it needs from step to step.
 *
 * The step vector is [GR_STEP_HEADER numbers about the step][the model's flat vector]: the loss is
 * added up with the gradients, in the same order and by the same operations, so that it is exact
 * and costs nothing of its own. */

#include "coll/diagnose/timeline.h"
#include "data/loader.h"
#include "train/buckets.h"
#include "train/checkpoint/checkpoint_save.h"
#include "train/job/job.h"
#include "train/metrics.h"
#include "train/shards.h"

/* The control header of a step vector: one cache line, to keep the gradients behind it aligned. */
enum {
    GR_STEP_HEADER = 16,
    GR_STEP_LOSS = 0,
    GR_STEP_CORRECT = 1,
    GR_STEP_STOP = 2,  /* not 0: somebody wants the training to end after this step */
    GR_STEP_SAVE = 3,  /* not 0: a checkpoint is due after it */
    GR_STEP_RENEW = 4, /* not 0: the next step is one of another generation */
    GR_STEP_UNDO = 5   /* not 0: somebody ends without this round of local steps */
};

enum { GR_READ_AHEAD_MAX = 16 }; /* batches */

/* A range of the step vector that is looked over for NaN before it is reduced: the loss and the
 * small tensors. */
typedef struct gr_watch {
    size_t begin, end;
} gr_watch;

/* What depends on who the members are. */
typedef struct gr_generation_state {
    gr_comm *comm;         /* borrowed */
    gr_timeline *timeline; /* of comm; NULL: none is wanted */
    int rank, world_size;
    gr_loader *loader;
    gr_shard_plan plan;
    int assigned_shards; /* of what is assigned to the ranks at a time: the job's, or one a rank */
    gr_compressor compressor;
    size_t cuts[GR_BUCKETS_MAX]; /* ends of the buckets, in a group of one as well */
    int cut_count;
    gr_buckets buckets;   /* empty in a group of one */
    void *strategy_state; /* the strategy's own; NULL */
    float **vectors;      /* plan.slots step vectors; made by the strategy */
    uint64_t own_step;    /* asynchronous: the next step by this rank's own count */
} gr_generation_state;

/* What changes from step to step. */
typedef struct gr_step_state {
    /* What this rank asks for in the next step, and what any rank has asked for in the last one. */
    bool asks_stop, asks_save, asks_renew;
    bool stop, save, renew;
    bool inside_round; /* between two steps of a round: ranks have weights of their own */
    bool rolled_back;  /* the last step has not happened, and no other one of its round */

    /* Of the pass that is running. */
    int shard_index, micro_index; /* of the own shards, and of its micro batches */
    size_t done;                  /* elements [0, done) of the shard's vector have been taken */
    int cut;                      /* and buckets [0, cut) */
    int watched;                  /* watches [0, watched) have been looked at */
    bool bad;            /* this rank's own sums hold NaN or infinity, as far as they are watched */
    gr_status reduction; /* first failure of an operation during the backward pass */
} gr_step_state;

/* What lasts as long as the job, and the other two. */
typedef struct gr_trainer {
    gr_job *job;                 /* borrowed */
    const gr_strategy *strategy; /* the job's */
    gr_model *model;
    gr_optimizer *optimizer;
    uint8_t *secret;   /* ps: the job's (gr_secret_keep); NULL */
    int64_t run;       /* ps: what makes this run another one than others; 0: not agreed on yet */
    float *micro;      /* gradient of the second and later micro batches; NULL: there are none */
    float *values;     /* the weights; of local steps those of the last round's end */
    float *outer;      /* momentum of an outer optimizer; NULL: there is none */
    size_t length;     /* of a step vector */
    size_t parameters; /* where the parameters begin in it */
    gr_watch *watches; /* ascending */
    int watch_count;
    gr_saver *saver;   /* rank 0's, borrowed: weights do not change before it has them; NULL */
    uint64_t reached;  /* steps of the job that this rank knows to be done */
    uint64_t restored; /* of the checkpoint that the job has gone on from */
    int64_t wait_ns;   /* time spent waiting for others, since the trainer was made */
    gr_generation_state gen;
    gr_step_state step;
} gr_trainer;

/* gr_trainer_prepare makes all that needs no other worker: model, optimizer, initial weights.
 * Then gr_trainer_enter, gr_trainer_seek. */
gr_status gr_trainer_prepare(gr_trainer *trainer, gr_job *job, gr_diag *diag) GR_MUST_CHECK;
void gr_trainer_fini(gr_trainer *trainer);

/* From one generation of the group to the next: gr_trainer_exit gives back all that depends on who
 * computes which shards, gr_trainer_enter makes it anew, and gr_trainer_seek says what the next
 * step is. Model, weights and optimizer stay. To be left before the communicator ends. */
void gr_trainer_exit(gr_trainer *trainer);
gr_status gr_trainer_enter(gr_trainer *trainer, gr_comm *comm, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_trainer_seek(gr_trainer *trainer, uint64_t step, gr_diag *diag) GR_MUST_CHECK;

/* The step `step` (from 0), on all ranks; its numbers are added to `meter`. No heap, unless it
 * fails. GR_E_NOT_FINITE: loss or gradients hold NaN or infinity; the same sentence on every
 * rank, and this trainer is of no further use. */
gr_status gr_trainer_step(gr_trainer *trainer, uint64_t step, gr_meter *meter,
                          gr_diag *diag) GR_MUST_CHECK;

/* The vectors that belong to the weights, and are the same on all ranks: the optimizer's, then the
 * outer one's. Each has the name that checkpoints give it. NULL past the end. */
float *gr_trainer_state(gr_trainer *trainer, int index, const char **name_out);

/* A loader of this rank's shards for steps [first_step, total_steps). */
gr_status gr_trainer_load(gr_trainer *trainer, uint64_t first_step, uint64_t total_steps,
                          gr_loader **loader_out, gr_diag *diag) GR_MUST_CHECK;

/* Returns `status`; a failure of the communicator is reported in the words of its own diagnosis. */
gr_status gr_trainer_comm_status(const gr_comm *comm, gr_status status, const char *what,
                                 gr_diag *diag) GR_MUST_CHECK;

/* ---- NaN and infinity (notfinite.c) ---------------------------------------------------------- */

/* What is looked at while the sums are still this rank's own. A NaN that reaches a layer's
 * gradient shows in its bias or scale as well, so the small tensors show nearly everything at
 * nearly no cost; the reduced sum is looked over in full. */
gr_status gr_not_finite_watch(gr_trainer *trainer, gr_diag *diag) GR_MUST_CHECK;

/* Where this rank's shards (trainer->gen.plan) of step `step` first show a number that is not
 * finite, as a key whose order is that of the appearance: the minimum over the ranks tells the
 * first place of all. INT64_MAX: nowhere. `values`: the weights from before the step. */
gr_status gr_not_finite_find(gr_trainer *trainer, const float *values, uint64_t step,
                             int64_t *key_out, gr_diag *diag) GR_MUST_CHECK;
/* The minimum over the ranks. Collective. */
gr_status gr_not_finite_agree(gr_trainer *trainer, int64_t *key, gr_diag *diag) GR_MUST_CHECK;
/* It was in this shard, and nobody knows where. */
int64_t gr_not_finite_unknown(int shard);

/* Agree with the other ranks and fill `diag`; always a failure, and none of a peer, for the step
 * must not be repeated. `key` is this rank's, `sum` the reduced step vector, of which element `at`
 * is not finite. Collective. */
gr_status gr_not_finite_fail(gr_trainer *trainer, uint64_t step, int64_t key, const float *sum,
                             size_t at, gr_diag *diag);

#endif
