/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_LAYER_H
#define GR_NN_LAYER_H

/* Inside of the engine: what a layer is, as read (gr_layer_spec) and as built into a model
 * (gr_layer), and the table of functions that each kind of layer brings (gr_layer_ops). */

#include "base/config.h"
#include "nn/backend.h"
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

typedef struct gr_layer_spec {
    gr_layer_info info;
    const gr_layer_ops *ops;
    int input; /* the layer whose output this one reads, or GR_MODEL_INPUT */
    int other; /* of a layer that joins: the second one; else GR_NO_LAYER */
    gr_shape shape_in;
    void *set; /* the settings: the struct of ops->settings, in the arena of the model's spec */
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
    double momentum; /* statistic: share of a batch's own value in each update */
} gr_tensor_need;

/* Settings of a layer with windows that move over an image; the struct begins with them. */
typedef struct gr_window_settings {
    int64_t kernel, stride;   /* stride 0: the kernel */
    const char *padding_text; /* pixels, or "same" */
    int64_t padding;          /* what it comes to, of gr_window_shape */
} gr_window_settings;
#define GR_WINDOW_FIELDS(of, default_stride, stride_help)                                          \
    {.key = "kernel",                                                                              \
     .type = GR_CONFIG_INT,                                                                        \
     .offset = offsetof(of, window.kernel),                                                        \
     .min = 1,                                                                                     \
     .max = 1024,                                                                                  \
     .unit = "pixels",                                                                             \
     .help = "edge of a window"},                                                                  \
        {.key = "stride",                                                                          \
         .type = GR_CONFIG_INT,                                                                    \
         .offset = offsetof(of, window.stride),                                                    \
         .default_text = default_stride,                                                           \
         .min = default_stride[0] - '0',                                                           \
         .max = 1024,                                                                              \
         .unit = "pixels",                                                                         \
         .help = stride_help},                                                                     \
    {                                                                                              \
        .key = "padding", .type = GR_CONFIG_TEXT, .offset = offsetof(of, window.padding_text),     \
        .default_text = "0",                                                                       \
        .help = "zeros around the image, in pixels; same: as many as keep its size (odd kernels)"  \
    }

/* Settings of a layer that joins; the struct begins with them. */
typedef struct gr_join_settings {
    const char *from; /* name of the second layer, or "input" */
} gr_join_settings;

struct gr_layer_ops {
    const char *kind;   /* as in the job file */
    const char *prefix; /* of made-up names */
    const char *help;   /* one line: what it takes and gives */
    /* Of a struct of its own; a setting without a default must be given. NULL: there are none. */
    const gr_config_table *settings;
    unsigned types;   /* of tensors that it computes with, 1u << GR_F32 | ...; 0: f32 */
    const char *main; /* the setting that may stand alone behind the kind, `linear: 10`; or NULL */
    /* What the passes read again, and whether the output may lie where the input lay. */
    bool needs_input_back, needs_output_back, in_place;
    bool view;      /* the output is the input, seen otherwise */
    bool joins;     /* reads a second layer, that of gr_join_settings */
    bool rectifies; /* a rectifier: He's initial weights in front of it, else Glorot's ... */
    bool passes_on; /* ... looking through layers that only scale, choose or move values */
    /* Checks the settings against the input, fills info.output and info.parameters. NULL: the
     * output has the shape of the input, and there are no parameters. */
    gr_status (*shape)(gr_layer_spec *spec, const gr_node *node, gr_diag *diag);
    /* What it keeps in the flat vector, and the initial values, zero until then. NULL: nothing. */
    int (*tensors)(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX]);
    void (*init)(const gr_model *model, const gr_layer *layer, float *values);
    /* At the start of a backward pass: the batch's own statistics into the gradients. Or NULL. */
    void (*publish)(const gr_model *model, const gr_layer *layer, float *gradients);
    /* Leaves work to its neighbours: the layer before it and the one behind it, each NULL unless
     * this one is its only neighbour there. Or NULL. */
    void (*fuse)(gr_layer *before, gr_layer *layer, gr_layer *after);
    gr_kernels reference; /* the slow and plain ones, for all that a backend lacks */
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
    const gr_kernels *kernels;
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
    gr_dnn_op *op[GR_LAYER_OPS_MAX];     /* by the layer's own enum */
    size_t at[GR_LAYER_OPS_MAX];         /* places in keep or scratch, likewise */
    size_t scratch_at[GR_LAYER_OPS_MAX]; /* in scratch, of what operations need themselves */
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
    const gr_backend *backend;
    int layer_count;
    gr_layer *layers;
    int tensor_count;
    gr_tensor_info *tensors;
    size_t values, parameters;
    gr_dnn *dnn; /* of backend oneDNN; else NULL, and all layouts are plain and NULL */
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
/* Random initial weights [out][in] or [out][in][height][width] of tensor GR_ROLE_WEIGHT. */
void gr_init_weight(const gr_model *model, const gr_layer *layer, float *values);
/* Fails with the sentence that `what` has no memory if `layout` is NULL. */
gr_status gr_layout_check(const gr_layout *layout, const char *what, gr_diag *diag) GR_MUST_CHECK;
/* What lies before the model's first layer or behind another one: its layout. */
const gr_layout *gr_model_layout_of(const gr_model *model, int index);
/* Runs operation `which`, all of whose slots but its scratch memory are bound. */
gr_status gr_layer_run(gr_model *model, gr_layer *layer, int which, gr_diag *diag) GR_MUST_CHECK;
/* Reserves `size_bytes` and returns their place. */
size_t gr_reserve(size_t *bytes, size_t size_bytes);
/* A convolution's or pooling's numbers, but for `bias`. */
gr_conv_shape gr_layer_window(const gr_model *model, const gr_layer *layer);
/* Checks that the input has channels, height and width. GR_E_INVALID with a sentence: it has
 * not. */
gr_status gr_layer_needs_image(const gr_layer_spec *spec, const gr_node *node,
                               gr_diag *diag) GR_MUST_CHECK;
/* Settles the gr_window_settings that the settings begin with, and fills info.output. */
gr_status gr_window_shape(gr_layer_spec *spec, int64_t channels, const gr_node *node,
                          gr_diag *diag) GR_MUST_CHECK;

/* ---- Kinds ----------------------------------------------------------------------------------- */

extern const gr_layer_ops gr_linear_ops, gr_conv2d_ops, gr_batch_norm_ops, gr_relu_ops, gr_gelu_ops,
    gr_max_pool_ops, gr_avg_pool_ops, gr_global_pool_ops, gr_flatten_ops, gr_dropout_ops,
    gr_add_ops, gr_sigmoid_ops, gr_tanh_ops, gr_softmax_ops;

/* Further kinds, which ends with NULL. A program that links the engine defines the array to add its
 * own; else it is empty. */
extern const gr_layer_ops *const gr_extra_layers[];

#endif
