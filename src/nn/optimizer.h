/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_OPTIMIZER_H
#define GR_NN_OPTIMIZER_H

/* Optimizers over flat vectors, and learning-rate schedules. Compiled without contraction: the same
 * bits on every instruction set. */

#include "base/config.h"
#include "nn/model.h"
#include "nn/passes.h"

/* The first rows of gr_optimizer_ops_at and of gr_schedule_ops_at, for programs that name one. */
typedef enum gr_optimizer_kind {
    GR_OPT_SGD = 0,
    GR_OPT_ADAM = 1,
    GR_OPT_ADAMW = 2
} gr_optimizer_kind;
typedef enum gr_schedule_kind {
    GR_SCHEDULE_CONSTANT = 0,
    GR_SCHEDULE_STEP = 1,
    GR_SCHEDULE_COSINE = 2
} gr_schedule_kind;

enum { GR_OPTIMIZER_STATES_MAX = 2, GR_OPTIMIZER_OWN_MAX = 8 };

/* The `optimizer:` part of a job file. */
typedef struct gr_optimizer_config {
    int kind; /* a row of gr_optimizer_ops_at */
    double learning_rate;
    double momentum; /* sgd */
    bool nesterov;
    double beta1, beta2, epsilon; /* adam, adamw */
    double weight_decay;          /* sgd, adam: added to the gradient; adamw: decoupled */
    double clip_norm;             /* global norm; 0: none */
    int schedule;                 /* a row of gr_schedule_ops_at */
    double warmup_epochs;         /* linear from 0 */
    double step_epochs;           /* step: every so many epochs ... */
    double step_factor;           /* ... times this */
    double final_factor;          /* cosine: ends at learning_rate times this */
    bool linear_scaling; /* learning_rate is for reference_batch; times global batch / reference */
    int64_t reference_batch;
    double own[GR_OPTIMIZER_OWN_MAX]; /* numbers and truth values of kinds that a program adds */
} gr_optimizer_config;
extern const gr_config_table gr_optimizer_config_table;

/* What a step of a rule depends on besides its settings. */
typedef struct gr_optimizer_now {
    uint64_t step; /* from 0 */
    double learning_rate;
    double weight_decay;
    float gradient_factor;
} gr_optimizer_now;

enum { GR_OPTIMIZER_NUMBERS_BYTES = 64 };

/* A kind of optimizer. */
typedef struct gr_optimizer_ops {
    const char *name;                /* as in the job file */
    const gr_config_field *settings; /* of gr_optimizer_config; kinds may share them; NULL: none */
    const char *states[GR_OPTIMIZER_STATES_MAX + 1]; /* name of each vector of state, then NULL */
    /* Returns true if the states stay zero with these settings. NULL: never. */
    bool (*stays_zero)(const gr_optimizer_config *config);
    /* The numbers of a step, of a struct of its own. */
    void (*prepare)(const gr_optimizer_config *config, const gr_optimizer_now *now,
                    unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES]);
    /* As gr_optimizer_apply. */
    bool (*update)(const unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES], float *values,
                   float *const *states, const float *gradients, size_t count);
} gr_optimizer_ops;
/* Kind `index`: the array in optimizer.c, then gr_extra_optimizers. NULL behind the last. */
const gr_optimizer_ops *gr_optimizer_ops_at(int index);
extern const gr_optimizer_ops *const gr_extra_optimizers[]; /* as gr_extra_layers */

/* A schedule of the learning rate. */
typedef struct gr_schedule_ops {
    const char *name;
    const gr_config_field *settings; /* of gr_optimizer_config; NULL: none */
    bool by_length;                  /* depends on how many steps the job has */
    /* The learning rate behind the warm-up, of which `rate` is the full size. */
    double (*at)(const gr_optimizer_config *config, double rate, double step, double warmup_steps,
                 double steps_per_epoch, double total_steps);
} gr_schedule_ops;
const gr_schedule_ops *gr_schedule_ops_at(int index); /* NULL behind the last */

/* Returns true if `field` is a setting of the update itself: not of the learning rate, not of
 * another kind. */
bool gr_optimizer_is_rule(const gr_optimizer_config *config, const gr_config_field *field);
/* Behind gr_config_from_node with `map`: see gr_config_settle. */
gr_status gr_optimizer_settle(gr_optimizer_config *config, const gr_node *map, gr_arena *arena,
                              gr_diag *diag) GR_MUST_CHECK;

/* The learning rate of `step` (from 0), with linear scaling applied. Pure. */
double gr_learning_rate(const gr_optimizer_config *config, uint64_t step, double steps_per_epoch,
                        uint64_t total_steps, int64_t global_batch);

/* One step of the rule: its numbers, ready for the kernels. */
typedef struct gr_optimizer_step {
    const gr_optimizer_ops *ops;
    unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES];
} gr_optimizer_step;

/* How many vectors of state the rule has, and the name of each: "momentum"; "first_moment",
 * "second_moment". NULL past the end. */
int gr_optimizer_states(const gr_optimizer_config *config);
const char *gr_optimizer_state_name(const gr_optimizer_config *config, int index);

/* Step `step` (from 0; Adam's bias correction) with this learning rate and gradient factor (of
 * clipping; 1: none). Without weight decay if not `decay`. */
void gr_optimizer_step_init(gr_optimizer_step *now, const gr_optimizer_config *config,
                            uint64_t step, double learning_rate, float gradient_factor, bool decay);
/* Updates `count` elements of anything, with as many of each of their states, all zero before the
 * first step: the same bits wherever they lie and however they are cut. The vectors do not overlap.
 * False: a gradient is NaN or infinite; all are updated all the same. */
bool gr_optimizer_apply(const gr_optimizer_step *now, float *values, float *const *states,
                        const float *gradients, size_t count);

/* The optimizer of a model: states of its own, and weight decay where the model says so. */
typedef struct gr_optimizer gr_optimizer;
gr_status gr_optimizer_create(const gr_optimizer_config *config, const gr_model *model,
                              gr_optimizer **optimizer_out, gr_diag *diag) GR_MUST_CHECK;
void gr_optimizer_destroy(gr_optimizer *optimizer);

/* Begins a step: see gr_optimizer_step_init. */
void gr_optimizer_begin(gr_optimizer *optimizer, uint64_t step, double learning_rate,
                        float gradient_factor);
/* Updates the parameters in [begin, end) of the flat vector (statistics are passed over); any cut
 * into ranges gives the same bits. False: a gradient in there is NaN or infinite; the range is
 * updated all the same. */
bool gr_optimizer_update(gr_optimizer *optimizer, float *values, const float *gradients,
                         size_t begin, size_t end);

/* State for checkpoints: `index`-th vector (momentum; Adam: first, second moment), NULL past the
 * end. */
float *gr_optimizer_state(gr_optimizer *optimizer, int index, const char **name_out);

/* Sum of squares over the parameters' gradients, in double, in a fixed order. */
double gr_gradient_square_sum(const gr_model *model, const float *gradients);
/* Returns true if any element is NaN or infinite. */
bool gr_any_not_finite(const float *values, size_t count);
/* The first such element of begin .. end - 1; `end`: none. */
size_t gr_first_not_finite(const float *values, size_t begin, size_t end);

/* dst[i] = a[i] + b[i], the addition of the shard tree. */
void gr_add_f32(float *dst, const float *a, const float *b, size_t count);

#endif
