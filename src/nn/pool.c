/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool, avg_pool and global_pool. The average is over the pixels inside the image: padding does
 * not count. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/passes.h"
#include "nn/ref.h"

enum { FORWARD, BACKWARD, WORKSPACE };

typedef struct pool_settings {
    gr_window_settings window;
} pool_settings;

static const gr_config_field pool_fields[] = {
    GR_WINDOW_FIELDS(pool_settings, "0", "pixels from one window to the next; 0: the kernel"), {0}};
static const gr_config_table max_table = {
    .name = "max_pool", .fields = pool_fields, .struct_bytes = sizeof(pool_settings)};
static const gr_config_table avg_table = {
    .name = "avg_pool", .fields = pool_fields, .struct_bytes = sizeof(pool_settings)};

static gr_status pool_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    return gr_window_shape(spec, spec->shape_in.dim[0], node, diag);
}

static gr_status create_dnn(gr_model *model, gr_layer *layer, bool max, gr_diag *diag)
{
    bool training = model->config.training;
    gr_conv_shape shape = gr_layer_window(model, layer);
    gr_status status = gr_dnn_pool_forward(model->dnn, &shape, max, layer->want, training,
                                           &layer->op[FORWARD], diag);
    if (status == GR_OK && training) {
        status = gr_dnn_pool_backward(model->dnn, &shape, max, layer->op[FORWARD],
                                      &layer->op[BACKWARD], diag);
    }
    if (status == GR_OK) {
        layer->layout = gr_dnn_op_layout(layer->op[FORWARD], GR_SLOT_DST);
        layer->at[WORKSPACE] =
            gr_reserve(&layer->keep_bytes, gr_dnn_op_bytes(layer->op[FORWARD], GR_SLOT_WORKSPACE));
    }
    return status;
}

static gr_status forward_dnn(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    gr_dnn_op *op = layer->op[FORWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DST, gr_layer_y(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_WORKSPACE, gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    return gr_layer_run(model, layer, FORWARD, diag);
}

static gr_status backward_dnn(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    float *dx = gr_layer_dx(model, layer);
    if (!dx) {
        return GR_OK;
    }
    gr_dnn_op *op = layer->op[BACKWARD];
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, gr_layer_dy(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, dx);
    gr_dnn_op_bind(op, GR_SLOT_WORKSPACE, gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    return gr_layer_run(model, layer, BACKWARD, diag);
}

/* ---- avg_pool -------------------------------------------------------------------------------- */

static gr_status avg_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    return create_dnn(model, layer, false, diag);
}

const gr_kernels gr_avg_pool_onednn = {
    .create = avg_create, .forward = forward_dnn, .backward = backward_dnn, .any_layout = true};

static gr_status avg_plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                   gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_conv_shape shape = gr_layer_window(model, layer);
    gr_ref_avg_pool_forward(&shape, gr_layer_x(model, layer), gr_layer_y(model, layer));
    return GR_OK;
}

static gr_status avg_plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                    gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_conv_shape shape = gr_layer_window(model, layer);
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_ref_avg_pool_backward(&shape, gr_layer_dy(model, layer), dx);
    }
    return GR_OK;
}

const gr_layer_ops gr_avg_pool_ops = {
    .kind = "avg_pool",
    .prefix = "avg_pool",
    .help = "the average of each window, padding not counted; takes an image",
    .settings = &avg_table,
    .main = "kernel",
    .passes_on = true,
    .shape = pool_shape,
    .reference = {.forward = avg_plain_forward, .backward = avg_plain_backward},
};

/* ---- max_pool -------------------------------------------------------------------------------- */

/* Our own kernel is several times faster for images of channels side by side. */
static bool own_max(const gr_layer *layer)
{
    const gr_window_settings *set = layer->spec->set;
    return set->kernel <= GR_POOL_KERNEL_MAX && gr_layout_block(layer->want) > 0;
}

static gr_pool_numbers numbers_of(const gr_model *model, const gr_layer *layer)
{
    gr_conv_shape s = gr_layer_window(model, layer);
    size_t inner = gr_layout_block(layer->want);
    gr_pool_numbers numbers = {.inner = inner,
                               .height_in = s.height_in,
                               .width_in = s.width_in,
                               .height_out = s.height_out,
                               .width_out = s.width_out,
                               .kernel = s.kernel,
                               .stride = s.stride,
                               .padding = s.padding};
    size_t image = (size_t)(s.height_out * s.width_out) * inner;
    numbers.outer = gr_layer_elements(layer) / image;
    return numbers;
}

static gr_status max_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    if (!own_max(layer)) {
        return create_dnn(model, layer, true, diag);
    }
    layer->layout = gr_layout_blocked(model->dnn, model->config.batch, &layer->spec->info.output,
                                      gr_layout_block(layer->want));
    gr_status status = gr_layout_check(layer->layout, "pooling", diag);
    if (status == GR_OK) {
        layer->at[WORKSPACE] =
            gr_reserve(&layer->keep_bytes, gr_layout_bytes(layer->layout) / sizeof(float));
    }
    return status;
}

static gr_status max_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    if (!own_max(layer)) {
        return forward_dnn(model, layer, pass, diag);
    }
    gr_pool_numbers numbers = numbers_of(model, layer);
    gr_max_pool_f32(&numbers, gr_layer_x(model, layer), gr_layer_y(model, layer),
                    gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    return GR_OK;
}

/* A gradient arrives only where the largest value came from, and that value is this layer's output:
 * the mask of a ReLU before it can be applied here, to fewer numbers. */
static gr_status max_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    float *dx = gr_layer_dx(model, layer), *dy = gr_layer_dy(model, layer);
    const float *mask = layer->mask_pooled ? gr_layer_y(model, layer) : NULL;
    if (!dx) {
        return GR_OK;
    }
    if (own_max(layer)) {
        gr_pool_numbers numbers = numbers_of(model, layer);
        gr_max_pool_backward_f32(&numbers, dy, mask,
                                 gr_layer_keep(model, layer, layer->at[WORKSPACE]), dx);
        return GR_OK;
    }
    if (mask) {
        gr_relu_backward_f32(dy, dy, mask, gr_layer_elements(layer));
    }
    return backward_dnn(model, layer, pass, diag);
}

const gr_kernels gr_max_pool_onednn = {.create = max_create,
                                       .forward = max_forward,
                                       .backward = max_backward,
                                       .any_layout = true,
                                       .masks_relu = true};

static gr_status max_plain_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    (void)model, (void)diag;
    layer->at[WORKSPACE] =
        gr_reserve(&layer->keep_bytes, gr_layer_elements(layer) * sizeof(int32_t));
    return GR_OK;
}

static gr_status max_plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                   gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_conv_shape shape = gr_layer_window(model, layer);
    gr_ref_max_pool_forward(&shape, gr_layer_x(model, layer), gr_layer_y(model, layer),
                            gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    return GR_OK;
}

static gr_status max_plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                    gr_diag *diag)
{
    (void)pass, (void)diag;
    gr_conv_shape shape = gr_layer_window(model, layer);
    float *dx = gr_layer_dx(model, layer);
    if (dx) {
        gr_ref_max_pool_backward(&shape, gr_layer_dy(model, layer),
                                 gr_layer_keep(model, layer, layer->at[WORKSPACE]), dx);
    }
    return GR_OK;
}

const gr_layer_ops gr_max_pool_ops = {
    .kind = "max_pool",
    .prefix = "max_pool",
    .help = "the largest value of each window; takes an image",
    .settings = &max_table,
    .main = "kernel",
    .needs_output_back = true, /* for the mask; it is kept for the next layer anyway */
    .passes_on = true,
    .shape = pool_shape,
    .reference = {.create = max_plain_create,
                  .forward = max_plain_forward,
                  .backward = max_plain_backward},
};

/* ---- global_pool: the average of each channel, as features ----------------------------------- */

static gr_status global_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    gr_status status = gr_layer_needs_image(spec, node, diag);
    if (status != GR_OK) {
        return status;
    }
    spec->info.output = (gr_shape){.dims = 1, .dim = {spec->shape_in.dim[0]}};
    return GR_OK;
}

static gr_status global_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)pass, (void)diag;
    const gr_shape *in = &layer->spec->shape_in;
    size_t rows = (size_t)(model->config.batch * in->dim[0]);
    size_t pixels = (size_t)(in->dim[1] * in->dim[2]);
    gr_row_means(gr_layer_x(model, layer), rows, pixels, gr_layer_y(model, layer));
    return GR_OK;
}

static gr_status global_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)pass, (void)diag;
    const gr_shape *in = &layer->spec->shape_in;
    size_t rows = (size_t)(model->config.batch * in->dim[0]);
    size_t pixels = (size_t)(in->dim[1] * in->dim[2]);
    const float *dy = gr_layer_dy(model, layer);
    float *dx = gr_layer_dx(model, layer), part = 1.0f / (float)pixels;
    for (size_t row = 0; dx && row < rows; row++) {
        for (size_t i = 0; i < pixels; i++) {
            dx[row * pixels + i] = dy[row] * part;
        }
    }
    return GR_OK;
}

const gr_layer_ops gr_global_pool_ops = {
    .kind = "global_pool",
    .prefix = "global_pool",
    .help = "the average of each channel, as features; takes an image",
    .shape = global_shape,
    .reference = {.forward = global_forward, .backward = global_backward},
};
