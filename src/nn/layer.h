/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_LAYER_H
#define GR_NN_LAYER_H

/* Inside of the engine: what a layer is, as read (gr_layer_spec) and as built into a model
 * (gr_layer), and the table of functions that each kind of layer brings. */

#include "nn/memory_planner.h"
#include "nn/model.h"
#include "nn/onednn.h"

enum {
    GR_INPUT_ALIAS = -2, /* as a buffer: the samples' own memory */
    GR_MODEL_INPUT = -1, /* as the index of a layer that is read: the samples */
    GR_NO_LAYER = -2,
    GR_LAYERS_MAX = 1000,
    GR_LAYER_TENSORS_MAX = 4,
    GR_LAYER_OPS_MAX = 8
};
/* Values of one sample's activation, and of one tensor of weights. */
#define GR_TENSOR_COUNT_MAX ((int64_t)1 << 31)

typedef struct gr_layer_ops gr_layer_ops;
typedef struct gr_layer gr_layer;
typedef struct gr_pass gr_pass;

typedef struct gr_layer_settings {
    int64_t units;    /* linear */
    int64_t channels; /* conv2d */
    int64_t kernel, stride, padding;
    bool bias;
    double momentum, epsilon; /* batch_norm */
    double rate;              /* dropout */
} gr_layer_settings;

typedef struct gr_layer_spec {
    gr_layer_info info;
    const gr_layer_ops *ops;
    int input; /* the layer whose output this one reads, or GR_MODEL_INPUT */
    int other; /* add: the second one; else GR_NO_LAYER */
    gr_shape shape_in;
    gr_layer_settings set;
} gr_layer_spec;

struct gr_model_spec {
    gr_shape input;
    int count;
    gr_layer_spec *layers;
};

/* What a layer keeps in the flat vector. */
typedef enum gr_tensor_role {
    GR_ROLE_WEIGHT = 0, /* batch norm: the scale */
    GR_ROLE_BIAS = 1,   /* batch norm: the shift */
    GR_ROLE_MEAN = 2,
    GR_ROLE_VARIANCE = 3
} gr_tensor_role;

typedef struct gr_tensor_need {
    gr_tensor_role role;
    const char *suffix; /* "weight" */
    gr_shape shape;
    bool statistic, decay;
} gr_tensor_need;

struct gr_layer_ops {
    const char *kind;   /* as in the job file */
    const char *prefix; /* of made-up names */
    /* What the passes read again, and whether the output may lie where the input lay. */
    bool needs_input_back, needs_output_back, in_place;
    bool view; /* the output is the input, seen otherwise */
    /* Checks the settings against the input and fills info.output and info.parameters. */
    gr_status (*shape)(gr_layer_spec *spec, const gr_node *node, gr_diag *diag);
    int (*tensors)(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX]);
    /* Creates operations, says what memory it needs and, with oneDNN, changes layer->want and
     * layer->layout, both at first the layout in which the input comes. May be NULL. */
    gr_status (*create)(gr_model *model, gr_layer *layer, gr_diag *diag);
    gr_status (*forward)(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);
    gr_status (*backward)(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);
};

/* Where the gradient of the input goes. */
typedef enum gr_dx_mode {
    GR_DX_NONE = 0,  /* nobody needs it */
    GR_DX_OWN = 1,   /* its own buffer */
    GR_DX_ALIAS = 2, /* where the output's gradient lies */
    GR_DX_ADD = 3    /* a temporary buffer; then added to what others wrote */
} gr_dx_mode;

struct gr_layer {
    const gr_layer_spec *spec;
    int index;
    const gr_layout *layout; /* of the output and its gradient; NULL with the reference: plain */
    const gr_layout *want;   /* of the input; where it comes otherwise, the model converts it */
    gr_dnn_op *convert, *convert_back;
    size_t out_bytes;
    bool fused_relu;  /* the ReLU behind this layer is part of it */
    bool fused;       /* this ReLU is part of the layer before it */
    bool mask_pooled; /* max pooling: also does the backward pass of the ReLU before it */
    bool skip_back;   /* ReLU: the pooling behind it did it */
    gr_dx_mode dx_mode;
    bool other_adds;      /* add: the second gradient is added to, not written */
    bool other_dx;        /* add: somebody needs the second gradient */
    size_t keep_bytes;    /* from forward to backward */
    size_t scratch_bytes; /* within one call */
    int out, diff, keep;  /* buffers, or GR_NO_BUFFER */
    int scratch_forward, scratch_back;
    int temp;                            /* of GR_DX_ADD */
    int converted, converted_diff;       /* the input and its gradient in the layout wanted */
    size_t offset[GR_LAYER_TENSORS_MAX]; /* by role, in the flat vector */
    size_t
        param_end; /* elements [0, param_end) are final when this layer's backward pass is done */
    gr_dnn_op *op[GR_LAYER_OPS_MAX]; /* by the layer's own enum */
    size_t at[GR_LAYER_OPS_MAX];     /* places in keep or scratch, likewise */
};

/* One call's arguments. */
struct gr_pass {
    const float *values;
    float *gradients;
    const gr_batch *batch;
    bool training; /* batch statistics, dropout */
};

struct gr_model {
    gr_model_config config;
    int layer_count;
    gr_layer *layers;
    int tensor_count;
    gr_tensor_info *tensors;
    size_t values, parameters, statistics_end;
    gr_dnn *dnn; /* NULL: the reference */
    gr_memory_planner *memory;
    bool *needs_diff; /* by layer: its output's gradient is needed */
    const gr_layout *input_layout;
    gr_dnn_op *output_convert, *output_convert_back; /* if the last layer's output is not plain */
    int plain_output, plain_diff;
    const float *x;    /* of the running call */
    bool going_back;   /* the backward pass runs */
    bool forward_done; /* the activations in memory are those of a training forward pass */
};

/* ---- Helpers for the kinds of layers --------------------------------------------------------- */

const float *gr_layer_x(const gr_model *model, const gr_layer *layer); /* the input */
float *gr_layer_y(const gr_model *model, const gr_layer *layer);       /* the output */
float *gr_layer_dy(const gr_model *model, const gr_layer *layer);      /* gradient of the output */
float *gr_layer_dx(const gr_model *model,
                   const gr_layer *layer); /* of the input; NULL: not needed */
void *gr_layer_keep(const gr_model *model, const gr_layer *layer, size_t at);
void *gr_layer_scratch(const gr_model *model, const gr_layer *layer, size_t at);
/* The output or gradient of another layer. */
const float *gr_model_output_of(const gr_model *model, int index);
float *gr_model_diff_of(const gr_model *model, int index);
/* Elements of a layer's output as it lies in memory, the padding of blocked layouts included. */
size_t gr_layer_elements(const gr_layer *layer);
/* In the gradient vector: the batch's own statistics. */
void gr_norm_publish(const gr_model *model, const gr_layer *layer, float *gradients);
/* What lies before the model's first layer or behind another one: its layout. */
const gr_layout *gr_model_layout_of(const gr_model *model, int index);
/* Reserves `size_bytes` and returns their place. */
size_t gr_reserve(size_t *bytes, size_t size_bytes);
/* A convolution's or pooling's numbers. */
gr_conv_shape gr_layer_window(const gr_model *model, const gr_layer *layer);
gr_status gr_window_shape(gr_layer_spec *spec, int64_t channels, const gr_node *node,
                          gr_diag *diag) GR_MUST_CHECK;

/* ---- Kinds ----------------------------------------------------------------------------------- */

extern const gr_layer_ops gr_linear_ops, gr_conv2d_ops, gr_batch_norm_ops, gr_relu_ops, gr_gelu_ops,
    gr_max_pool_ops, gr_avg_pool_ops, gr_global_pool_ops, gr_flatten_ops, gr_dropout_ops,
    gr_add_ops;

#endif
