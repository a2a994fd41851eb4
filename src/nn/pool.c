/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool, avg_pool and global_pool. The average is over the pixels inside the image: padding does
 * not count. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/passes.h"
#include "nn/ref.h"

enum { FORWARD, BACKWARD, WORKSPACE };

static gr_status pool_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    return gr_window_shape(spec, spec->shape_in.dim[0], node, diag);
}

static bool is_max(const gr_layer *layer)
{
    return layer->spec->ops == &gr_max_pool_ops;
}

static gr_status create_dnn(gr_model *model, gr_layer *layer, const gr_conv_shape *shape,
                            gr_diag *diag)
{
    bool training = model->config.training;
    gr_status status = gr_dnn_pool_forward(model->dnn, shape, is_max(layer), layer->want, training,
                                           &layer->op[FORWARD], diag);
    if (status == GR_OK && training) {
        status = gr_dnn_pool_backward(model->dnn, shape, is_max(layer), layer->op[FORWARD],
                                      &layer->op[BACKWARD], diag);
    }
    for (int i = FORWARD; status == GR_OK && i <= BACKWARD; i++) {
        layer->at[i] =
            gr_reserve(&layer->scratch_bytes, gr_dnn_op_bytes(layer->op[i], GR_SLOT_SCRATCH));
    }
    if (status == GR_OK) {
        layer->layout = gr_dnn_op_layout(layer->op[FORWARD], GR_SLOT_DST);
        layer->at[WORKSPACE] =
            gr_reserve(&layer->keep_bytes, gr_dnn_op_bytes(layer->op[FORWARD], GR_SLOT_WORKSPACE));
    }
    return status;
}

/* Our own kernel is several times faster for images of channels side by side. */
static bool own_max(const gr_model *model, const gr_layer *layer)
{
    return is_max(layer) && layer->spec->set.kernel <= GR_POOL_KERNEL_MAX && model->dnn &&
           gr_layout_block(layer->want) > 0;
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

static gr_status pool_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    gr_conv_shape shape = gr_layer_window(model, layer);
    if (own_max(model, layer)) {
        layer->layout = gr_layout_blocked(model->dnn, model->config.batch,
                                          &layer->spec->info.output, gr_layout_block(layer->want));
        if (!layer->layout) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for pooling");
        }
        layer->at[WORKSPACE] =
            gr_reserve(&layer->keep_bytes, gr_layout_bytes(layer->layout) / sizeof(float));
        return GR_OK;
    }
    if (model->dnn) {
        return create_dnn(model, layer, &shape, diag);
    }
    if (is_max(layer)) {
        layer->at[WORKSPACE] =
            gr_reserve(&layer->keep_bytes, gr_layer_elements(layer) * sizeof(int32_t));
    }
    return GR_OK;
}

static gr_status run_forward(gr_model *model, gr_layer *layer, float *y, gr_diag *diag)
{
    gr_dnn_op *op = layer->op[FORWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DST, y);
    gr_dnn_op_bind(op, GR_SLOT_WORKSPACE, gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    gr_dnn_op_bind(op, GR_SLOT_SCRATCH, gr_layer_scratch(model, layer, layer->at[FORWARD]));
    return gr_dnn_op_run(model->dnn, op, diag);
}

static gr_status run_backward(gr_model *model, gr_layer *layer, const float *dy, gr_diag *diag)
{
    gr_dnn_op *op = layer->op[BACKWARD];
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, dy);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, gr_layer_dx(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_WORKSPACE, gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    gr_dnn_op_bind(op, GR_SLOT_SCRATCH, gr_layer_scratch(model, layer, layer->at[BACKWARD]));
    return gr_dnn_op_run(model->dnn, op, diag);
}

static gr_status pool_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    float *y = gr_layer_y(model, layer);
    if (own_max(model, layer)) {
        gr_pool_numbers numbers = numbers_of(model, layer);
        gr_max_pool_f32(&numbers, gr_layer_x(model, layer), y,
                        gr_layer_keep(model, layer, layer->at[WORKSPACE]));
        return GR_OK;
    }
    if (model->dnn) {
        return run_forward(model, layer, y, diag);
    }
    gr_conv_shape shape = gr_layer_window(model, layer);
    if (is_max(layer)) {
        gr_ref_max_pool_forward(&shape, gr_layer_x(model, layer), y,
                                gr_layer_keep(model, layer, layer->at[WORKSPACE]));
    } else {
        gr_ref_avg_pool_forward(&shape, gr_layer_x(model, layer), y);
    }
    return GR_OK;
}

static gr_status pool_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    float *dx = gr_layer_dx(model, layer), *dy = gr_layer_dy(model, layer);
    if (!dx) {
        return GR_OK;
    }
    /* A gradient arrives only where the largest value came from, and that value is this layer's
     * output: the mask of a ReLU before it can be applied here, to fewer numbers. */
    if (own_max(model, layer)) {
        gr_pool_numbers numbers = numbers_of(model, layer);
        gr_max_pool_backward_f32(&numbers, dy, layer->mask_pooled ? gr_layer_y(model, layer) : NULL,
                                 gr_layer_keep(model, layer, layer->at[WORKSPACE]), dx);
        return GR_OK;
    }
    if (layer->mask_pooled) {
        gr_relu_backward_f32(dy, dy, gr_layer_y(model, layer), gr_layer_elements(layer));
    }
    if (model->dnn) {
        return run_backward(model, layer, dy, diag);
    }
    gr_conv_shape shape = gr_layer_window(model, layer);
    if (is_max(layer)) {
        gr_ref_max_pool_backward(&shape, dy, gr_layer_keep(model, layer, layer->at[WORKSPACE]), dx);
    } else {
        gr_ref_avg_pool_backward(&shape, dy, dx);
    }
    return GR_OK;
}

const gr_layer_ops gr_max_pool_ops = {
    .kind = "max_pool",
    .prefix = "max_pool",
    .needs_output_back = true, /* for the mask; it is kept for the next layer anyway */
    .shape = pool_shape,
    .create = pool_create,
    .forward = pool_forward,
    .backward = pool_backward,
};

const gr_layer_ops gr_avg_pool_ops = {
    .kind = "avg_pool",
    .prefix = "avg_pool",
    .shape = pool_shape,
    .create = pool_create,
    .forward = pool_forward,
    .backward = pool_backward,
};

/* ---- global_pool: the average of each channel, as features ----------------------------------- */

static gr_status global_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    if (spec->shape_in.dims != 3) {
        return gr_node_fail(
            node, diag, GR_E_INVALID,
            "%s needs images (channels x height x width), but its input is flat: put "
            "it before flatten and linear layers",
            spec->info.name);
    }
    spec->info.output = (gr_shape){.dims = 1, .dim = {spec->shape_in.dim[0]}};
    return GR_OK;
}

static gr_status global_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    const gr_layer_spec *spec = layer->spec;
    if (model->dnn) {
        layer->want = gr_layout_plain(model->dnn, model->config.batch, &spec->shape_in);
        layer->layout = gr_layout_plain(model->dnn, model->config.batch, &spec->info.output);
    }
    return !model->dnn || (layer->want && layer->layout)
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for pooling");
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
    .shape = global_shape,
    .create = global_create,
    .forward = global_forward,
    .backward = global_backward,
};
