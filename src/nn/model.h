/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_MODEL_H
#define GR_NN_MODEL_H

/* A static graph of layers for one batch size (the shard's), planned once into one arena.
 *
 * The values that training changes lie in one flat f32 vector, which the caller owns; gradients lie
 * in vectors of the same layout, as many as the caller likes. Layout, each tensor 64-byte aligned:
 *   [statistics of batch norm] [parameters, in the order in which the backward pass finishes them]
 * so that a growing prefix of a gradient vector is final while the backward pass goes on. In a
 * gradient vector the place of a statistic holds this batch's own value (mean, variance).
 *
 * Bits: results depend only on weights, samples, seed, step and sample numbers. After creation no
 * call allocates from the heap, except what oneDNN takes and gives back within each call of a
 * kernel. One thread at a time. Vectors and samples are 64-byte aligned. */

#include "base/arena.h"
#include "doc/doc.h"
#include <gradus/coll.h>
#include <gradus/comm.h>
#include <gradus/status.h>

#include <stdio.h>

enum { GR_DIMS_MAX = 8, GR_TENSOR_NAME_BYTES = 96 };

/* What a tensor is; all zero but the dimensions: f32 in the memory of the host. Samples and outputs
 * of layers are without the batch, which is one dimension more: 1 (features), 3 (channels, height,
 * width), or any number up to GR_DIMS_MAX - 1. */
typedef struct gr_shape {
    int dims;
    int64_t dim[GR_DIMS_MAX];
    gr_dtype type;
    gr_memory_kind memory;
} gr_shape;
int64_t gr_shape_count(const gr_shape *shape);
void gr_shape_format(const gr_shape *shape, char *text_out, size_t size_bytes); /* "16x8x8" */

/* The rows of gr_loss_ops_at. */
typedef enum gr_loss_kind { GR_LOSS_CROSS_ENTROPY = 0, GR_LOSS_MSE = 1 } gr_loss_kind;
typedef struct gr_backend gr_backend;

typedef struct gr_model_spec gr_model_spec; /* the layers as the user wrote them, checked */
typedef struct gr_model gr_model;

/* `list` is the `model:` part of a job file (see docs/models.md): layers in order. Errors have file
 * and line: unknown layer (nearest named), missing or wrong setting, shapes that do not fit. */
gr_status gr_model_spec_read(const gr_node *list, const gr_shape *input, gr_arena *arena,
                             gr_model_spec **spec_out, gr_diag *diag) GR_MUST_CHECK;

/* The part of the reference page about layers. */
void gr_layers_print_markdown(FILE *file);

typedef struct gr_layer_info {
    const char *name; /* "conv1": given or made from kind and number */
    const char *kind; /* "conv2d" */
    gr_shape output;
    int64_t parameters; /* trainable values */
} gr_layer_info;
int gr_model_spec_layers(const gr_model_spec *spec);
const gr_layer_info *gr_model_spec_layer(const gr_model_spec *spec, int index);
const gr_shape *gr_model_spec_output(const gr_model_spec *spec);

typedef struct gr_model_config {
    const gr_model_spec *spec; /* must outlive the model */
    int batch;                 /* samples a call */
    gr_loss_kind loss;
    float gradient_scale; /* multiplies d(sum of the samples' losses): 1 / global batch */
    uint64_t seed;
    const char *backend; /* "onednn", "reference"; NULL: onednn */
    bool training;       /* false: forward only, less memory */
} gr_model_config;

gr_status gr_model_create(const gr_model_config *config, gr_model **model_out,
                          gr_diag *diag) GR_MUST_CHECK;
void gr_model_destroy(gr_model *model);

typedef struct gr_tensor_info {
    char name[GR_TENSOR_NAME_BYTES]; /* "conv1.weight", "bn1.running_mean" */
    gr_shape shape;
    size_t offset; /* in the flat vector, elements */
    size_t count;
    int layer;
    bool statistic;  /* a running statistic, not a parameter */
    double momentum; /* statistic: share of a batch's own value in each update */
    bool decay;      /* weight decay applies (weights: yes; biases, batch norm: no) */
} gr_tensor_info;

size_t gr_model_values(const gr_model *model);     /* length of the flat vector, padding included */
size_t gr_model_parameters(const gr_model *model); /* trainable values, without padding */
size_t gr_model_arena_bytes(const gr_model *model);
int gr_model_tensors(const gr_model *model);
const gr_tensor_info *gr_model_tensor(const gr_model *model, int index); /* ascending offset */

/* Initial weights from the seed (He for layers before a ReLU or GELU, else Glorot; biases zero;
 * batch norm 1, 0, mean 0, variance 1): the same on every rank. */
void gr_model_init_weights(const gr_model *model, float *values);

typedef struct gr_batch {
    const float *x;        /* batch x input shape, row-major */
    const int32_t *labels; /* batch class numbers (cross-entropy), or NULL */
    const float *targets;  /* batch x output (mean squared error), or NULL */
    uint64_t step;         /* of the job: dropout's key with `sample_first` */
    uint64_t sample_first; /* position of the first sample in the global batch */
} gr_batch;

typedef struct gr_batch_result {
    double loss;     /* sum over the samples */
    int64_t correct; /* samples whose largest output is the label; 0 for mean squared error */
} gr_batch_result;

/* Training: batch statistics, dropout on, activations kept for the backward pass. */
gr_status gr_model_forward(gr_model *model, const float *values, const gr_batch *batch,
                           gr_batch_result *result_out, gr_diag *diag) GR_MUST_CHECK;

/* `ready(ready_arg, end)` tells, each time a layer is done, that elements [0, end) of `gradients`
 * are final; the last call has end = gr_model_values. It may take its time (communication). */
typedef void gr_gradient_ready(void *ready_arg, size_t end);
gr_status gr_model_backward(gr_model *model, const float *values, const gr_batch *batch,
                            float *gradients, gr_gradient_ready *ready, void *ready_arg,
                            gr_diag *diag) GR_MUST_CHECK;

/* Evaluation: running statistics, no dropout. `samples` <= batch of them are counted. `outputs_out`
 * (batch x output) may be NULL. */
gr_status gr_model_evaluate(gr_model *model, const float *values, const gr_batch *batch,
                            int samples, gr_batch_result *result_out, float *outputs_out,
                            gr_diag *diag) GR_MUST_CHECK;

/* Running statistics from the sum of the shards' statistics in `gradients`: scale = 1 / shards. */
void gr_model_update_statistics(const gr_model *model, float *values, const float *gradients,
                                float scale);

/* Where does a non-finite number appear first? Repeats forward and backward with a check behind
 * every layer. *layer_out: index, or -1 if all is finite; *backward_out: in the backward pass. */
gr_status gr_model_find_not_finite(gr_model *model, const float *values, const gr_batch *batch,
                                   float *gradients, int *layer_out, bool *backward_out,
                                   gr_diag *diag) GR_MUST_CHECK;

#endif
