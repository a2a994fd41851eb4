/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid, tanh and softmax. Their passes are our own: exact to the last bits or nearly so, and the
 * same on every instruction set and for any number of threads. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/passes.h"
#include "nn/ref.h"

/* ---- sigmoid --------------------------------------------------------------------------------- */

static gr_status sigmoid_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_passes_best()->sigmoid(gr_layer_y(model, layer), gr_layer_x(model, layer),
                              gr_layer_elements(layer));
    return GR_OK;
}

static gr_status sigmoid_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_passes_best()->sigmoid_backward(dx, gr_layer_dy(model, layer), gr_layer_y(model, layer),
                                           gr_layer_elements(layer));
    }
    return GR_OK;
}

static gr_status sigmoid_plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                       gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_ref_sigmoid_forward(gr_layer_x(model, layer), gr_layer_y(model, layer),
                           gr_layer_elements(layer));
    return GR_OK;
}

static gr_status sigmoid_plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                        gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_ref_sigmoid_backward(gr_layer_y(model, layer), gr_layer_dy(model, layer), dx,
                                gr_layer_elements(layer));
    }
    return GR_OK;
}

/* Not in blocked layouts, whose padding must stay zero. */
const gr_kernels gr_sigmoid_onednn = {.forward = sigmoid_forward, .backward = sigmoid_backward};

const gr_layer_ops gr_sigmoid_ops = {
    .kind = "sigmoid",
    .prefix = "sigmoid",
    .help = "1 / (1 + e^-x) of each value",
    .needs_output_back = true,
    .in_place = true,
    .reference = {.forward = sigmoid_plain_forward, .backward = sigmoid_plain_backward},
};

/* ---- tanh ------------------------------------------------------------------------------------ */

static gr_status tanh_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_passes_best()->tanh(gr_layer_y(model, layer), gr_layer_x(model, layer),
                           gr_layer_elements(layer));
    return GR_OK;
}

static gr_status tanh_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_passes_best()->tanh_backward(dx, gr_layer_dy(model, layer), gr_layer_y(model, layer),
                                        gr_layer_elements(layer));
    }
    return GR_OK;
}

static gr_status tanh_plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                    gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_ref_tanh_forward(gr_layer_x(model, layer), gr_layer_y(model, layer),
                        gr_layer_elements(layer));
    return GR_OK;
}

static gr_status tanh_plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                     gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_ref_tanh_backward(gr_layer_y(model, layer), gr_layer_dy(model, layer), dx,
                             gr_layer_elements(layer));
    }
    return GR_OK;
}

const gr_kernels gr_tanh_onednn = {
    .forward = tanh_forward, .backward = tanh_backward, .any_layout = true};

const gr_layer_ops gr_tanh_ops = {
    .kind = "tanh",
    .prefix = "tanh",
    .help = "the hyperbolic tangent of each value",
    .needs_output_back = true,
    .in_place = true,
    .reference = {.forward = tanh_plain_forward,
                  .backward = tanh_plain_backward,
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

typedef void softmax_pass(float *to, const float *a, const float *b, size_t classes, size_t stride);

/* Runs a pass over the samples: `b` may be NULL. */
static void each_sample(const gr_model *model, const gr_layer *layer, softmax_pass *pass, float *to,
                        const float *a, const float *b)
{
    size_t count = (size_t)gr_shape_count(&layer->spec->shape_in);
    size_t classes = (size_t)layer->spec->shape_in.dim[0];
    for (size_t n = 0; n < (size_t)model->config.batch; n++) {
        pass(to + n * count, a + n * count, b ? b + n * count : NULL, classes, count / classes);
    }
}

static void fast_forward(float *y, const float *x, const float *none, size_t classes, size_t stride)
{
    (void)none;
    gr_passes_best()->softmax(y, x, classes, stride);
}

static void fast_backward(float *dx, const float *dy, const float *y, size_t classes, size_t stride)
{
    gr_passes_best()->softmax_backward(dx, dy, y, classes, stride);
}

static void plain_forward(float *y, const float *x, const float *none, size_t classes,
                          size_t stride)
{
    (void)none;
    gr_ref_softmax_forward(x, y, classes, stride);
}

static void plain_backward(float *dx, const float *dy, const float *y, size_t classes,
                           size_t stride)
{
    gr_ref_softmax_backward(y, dy, dx, classes, stride);
}

static gr_status softmax_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)pass, (void)diag;
    each_sample(model, layer, fast_forward, gr_layer_y(model, layer), gr_layer_x(model, layer),
                NULL);
    return GR_OK;
}

static gr_status softmax_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        each_sample(model, layer, fast_backward, dx, gr_layer_dy(model, layer),
                    gr_layer_y(model, layer));
    }
    return GR_OK;
}

const gr_kernels gr_softmax_onednn = {.forward = softmax_forward, .backward = softmax_backward};

static gr_status softmax_plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                       gr_diag *diag)
{
    (void)pass, (void)diag;
    each_sample(model, layer, plain_forward, gr_layer_y(model, layer), gr_layer_x(model, layer),
                NULL);
    return GR_OK;
}

static gr_status softmax_plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                        gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        each_sample(model, layer, plain_backward, dx, gr_layer_dy(model, layer),
                    gr_layer_y(model, layer));
    }
    return GR_OK;
}

const gr_layer_ops gr_softmax_ops = {
    .kind = "softmax",
    .prefix = "softmax",
    .help = "e^x over the sum of all features' (of an image: all channels' of a pixel): positive, "
            "sum 1",
    .needs_output_back = true,
    .shape = softmax_shape,
    .reference = {.forward = softmax_plain_forward, .backward = softmax_plain_backward},
};
