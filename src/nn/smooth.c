/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid, tanh and softmax. Their passes are our own: exact to the last bits or nearly so, and the
 * same on every instruction set and for any number of threads. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/passes.h"
#include "nn/ref.h"

/* Not in blocked layouts, whose padding must stay zero. */
const gr_kernels gr_sigmoid_onednn = {.forward = gr_map_forward,
                                      .backward = gr_map_backward,
                                      .map = gr_sigmoid_f32,
                                      .map_back = gr_sigmoid_backward_f32};

const gr_layer_ops gr_sigmoid_ops = {
    .kind = "sigmoid",
    .prefix = "sigmoid",
    .help = "1 / (1 + e^-x) of each value",
    .needs_output_back = true,
    .in_place = true,
    .reference = {.forward = gr_map_forward,
                  .backward = gr_map_backward,
                  .map = gr_ref_sigmoid,
                  .map_back = gr_ref_sigmoid_backward},
};

const gr_kernels gr_tanh_onednn = {.forward = gr_map_forward,
                                   .backward = gr_map_backward,
                                   .map = gr_tanh_f32,
                                   .map_back = gr_tanh_backward_f32,
                                   .any_layout = true};

const gr_layer_ops gr_tanh_ops = {
    .kind = "tanh",
    .prefix = "tanh",
    .help = "the hyperbolic tangent of each value",
    .needs_output_back = true,
    .in_place = true,
    .reference = {.forward = gr_map_forward,
                  .backward = gr_map_backward,
                  .map = gr_ref_tanh,
                  .map_back = gr_ref_tanh_backward,
                  .any_layout = true},
};

/* ---- softmax --------------------------------------------------------------------------------- */

static gr_status softmax_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    if (spec->shape_in.dim[0] < 2) {
        char text[80];
        gr_shape_format(&spec->shape_in, text, sizeof text);
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "the input of %s has the shape %s, so its outputs would all be 1: "
                            "softmax needs at least two features or channels; sigmoid makes a "
                            "probability of one",
                            spec->info.name, text);
    }
    return GR_OK;
}

typedef struct softmax_size {
    size_t samples, values, classes, stride;
} softmax_size;

static softmax_size size_of(const gr_model *model, const gr_layer *layer)
{
    const gr_shape *shape = &layer->spec->shape_in;
    softmax_size size = {.samples = (size_t)model->config.batch,
                         .values = (size_t)gr_shape_count(shape),
                         .classes = (size_t)shape->dim[0]};
    size.stride = size.values / size.classes;
    return size;
}

static void run(const gr_model *model, const gr_layer *layer,
                void (*pass)(float *y, const float *x, size_t classes, size_t stride))
{
    softmax_size n = size_of(model, layer);
    for (size_t i = 0; i < n.samples; i++) {
        pass(gr_layer_y(model, layer) + i * n.values, gr_layer_x(model, layer) + i * n.values,
             n.classes, n.stride);
    }
}

static void run_back(const gr_model *model, const gr_layer *layer,
                     void (*pass)(float *dx, const float *dy, const float *y, size_t classes,
                                  size_t stride))
{
    softmax_size n = size_of(model, layer);
    float *dx = gr_layer_dx(model, layer);
    for (size_t i = 0; dx && i < n.samples; i++) {
        pass(dx + i * n.values, gr_layer_dy(model, layer) + i * n.values,
             gr_layer_y(model, layer) + i * n.values, n.classes, n.stride);
    }
}

static gr_status softmax_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)pass, (void)diag;
    run(model, layer, gr_softmax_f32);
    return GR_OK;
}

static gr_status softmax_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    (void)pass, (void)diag;
    run_back(model, layer, gr_softmax_backward_f32);
    return GR_OK;
}

const gr_kernels gr_softmax_onednn = {.forward = softmax_forward, .backward = softmax_backward};

static gr_status plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    run(model, layer, gr_ref_softmax);
    return GR_OK;
}

static gr_status plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)pass, (void)diag;
    run_back(model, layer, gr_ref_softmax_backward);
    return GR_OK;
}

const gr_layer_ops gr_softmax_ops = {
    .kind = "softmax",
    .prefix = "softmax",
    .help = "e^x over the sum of all features' (of an image: all channels' of a pixel): positive, "
            "sum 1",
    .needs_output_back = true,
    .shape = softmax_shape,
    .reference = {.forward = plain_forward, .backward = plain_backward},
};
