/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_BACKEND_H
#define GR_NN_BACKEND_H

/* Kernels by backend. A backend has kernels for some kinds of layers; for all others those of the
 * layer itself run, the reference: slow, plain, the oracle of the tests. */

#include "nn/model.h"

typedef struct gr_layer_ops gr_layer_ops;
typedef struct gr_layer gr_layer;
typedef struct gr_pass gr_pass;

/* The kernels of one kind of layer. */
typedef struct gr_kernels {
    /* Creates operations and says what memory they need. With `any_layout` may set layer->want and
     * layer->layout, both at first the layout in which the input comes. May be NULL. */
    gr_status (*create)(gr_model *model, gr_layer *layer, gr_diag *diag);
    gr_status (*forward)(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);
    gr_status (*backward)(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);
    /* Of kinds that compute each value by itself, whose passes are gr_map_forward and
     * gr_map_backward: y from x; dx from dy and y with `needs_output_back`, else from dy and x. */
    void (*map)(float *y, const float *x, size_t count);
    void (*map_back)(float *dx, const float *dy, const float *by, size_t count);
    bool any_layout; /* else input and output lie row-major, batch first */
    bool takes_relu; /* can do the ReLU right behind it as well: layer->fused_relu */
    bool masks_relu; /* can do the backward pass of the ReLU before it: layer->mask_pooled */
} gr_kernels;

typedef struct gr_backend_kernels {
    const gr_layer_ops *of; /* NULL: the end */
    const gr_kernels *kernels;
} gr_backend_kernels;

struct gr_backend {
    const char *name;
    gr_status (*open)(gr_model *model, gr_diag *diag); /* NULL: there is nothing to open */
    const gr_backend_kernels *kernels;
};

/* By name, NULL: "onednn". GR_E_INVALID: there is none of that name. */
gr_status gr_backend_find(const char *name, const gr_backend **backend_out,
                          gr_diag *diag) GR_MUST_CHECK;
/* Those of the backend, else the layer's own. */
const gr_kernels *gr_backend_kernels_of(const gr_backend *backend, const gr_layer_ops *ops);

gr_status gr_map_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);
gr_status gr_map_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag);

extern const gr_kernels gr_linear_onednn, gr_conv2d_onednn, gr_batch_norm_onednn, gr_gelu_onednn,
    gr_max_pool_onednn, gr_avg_pool_onednn, gr_add_onednn, gr_sigmoid_onednn, gr_tanh_onednn,
    gr_softmax_onednn;

/* Further backends; as gr_extra_layers. */
extern const gr_backend *const gr_extra_backends[];

#endif
