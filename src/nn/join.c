/* SPDX-License-Identifier: Apache-2.0 */
/* flatten and add: layers that only move or join what others made. */
#include "nn/layer.h"

#include "nn/optimizer.h"

#include <string.h>

/* ---- flatten --------------------------------------------------------------------------------- */

static gr_status flatten_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    (void)node, (void)diag;
    spec->info.output = (gr_shape){.dims = 1, .dim = {gr_shape_count(&spec->shape_in)}};
    return GR_OK;
}

static gr_status flatten_nothing(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)model, (void)layer, (void)pass, (void)diag;
    return GR_OK;
}

/* The gradient goes on as it came, unless the two already lie in one place. */
static void pass_on(gr_model *model, const gr_layer *layer)
{
    float *dx = gr_layer_dx(model, layer);
    const float *dy = gr_layer_dy(model, layer);
    if (dx && dx != dy) {
        memcpy(dx, dy, gr_layer_elements(layer) * sizeof *dx);
    }
}

static gr_status flatten_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    (void)pass, (void)diag;
    pass_on(model, layer);
    return GR_OK;
}

const gr_layer_ops gr_flatten_ops = {
    .kind = "flatten",
    .prefix = "flatten",
    .help = "any shape as a flat list of features",
    .in_place = true,
    .view = true,
    .passes_on = true,
    .shape = flatten_shape,
    .reference = {.forward = flatten_nothing, .backward = flatten_backward},
};

/* ---- add ------------------------------------------------------------------------------------- */

enum { OTHER_IN, OTHER_BACK };

static const gr_config_field add_fields[] = {
    {.key = "from",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_join_settings, from),
     .value_name = "NAME",
     .help = "name of an earlier layer, or input: what is added"},
    {0}};
static const gr_config_table add_table = {
    .name = "add", .fields = add_fields, .struct_bytes = sizeof(gr_join_settings)};

/* The other layer's output may lie in another layout: it is converted on the way in and back. */
static gr_status add_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    const gr_layout *other = gr_model_layout_of(model, layer->spec->other);
    if (gr_layout_equal(other, layer->layout)) {
        return GR_OK;
    }
    gr_status status = gr_dnn_reorder(model->dnn, other, layer->layout, &layer->op[OTHER_IN], diag);
    layer->at[OTHER_IN] = gr_reserve(&layer->scratch_bytes, gr_layout_bytes(layer->layout));
    if (status == GR_OK && layer->other_dx) {
        status = gr_dnn_reorder(model->dnn, layer->layout, other, &layer->op[OTHER_BACK], diag);
        layer->at[OTHER_BACK] = gr_reserve(&layer->scratch_bytes, gr_layout_bytes(other));
    }
    return status;
}

/* *from as operation `which` converts it, if there is one. */
static gr_status convert(gr_model *model, gr_layer *layer, int which, const float **from,
                         gr_diag *diag)
{
    gr_dnn_op *op = layer->op[which];
    if (!op) {
        return GR_OK;
    }
    float *space = gr_layer_scratch(model, layer, layer->at[which]);
    gr_dnn_op_bind(op, GR_SLOT_SRC, *from);
    gr_dnn_op_bind(op, GR_SLOT_DST, space);
    *from = space;
    return gr_layer_run(model, layer, which, diag);
}

static gr_status add_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    const float *other = gr_model_output_of(model, layer->spec->other);
    gr_status status = convert(model, layer, OTHER_IN, &other, diag);
    if (status == GR_OK) {
        gr_add_f32(gr_layer_y(model, layer), gr_layer_x(model, layer), other,
                   gr_layer_elements(layer));
    }
    return status;
}

static gr_status add_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    const float *dy = gr_layer_dy(model, layer), *part = dy;
    size_t count = gr_layer_elements(layer);
    if (layer->other_dx) {
        float *target = gr_model_diff_of(model, layer->spec->other);
        gr_status status = convert(model, layer, OTHER_BACK, &part, diag);
        if (status != GR_OK) {
            return status;
        }
        if (part != dy) {
            count = model->layers[layer->spec->other].out_bytes / sizeof(float);
        }
        if (layer->other_adds) {
            gr_add_f32(target, target, part, count);
        } else {
            memcpy(target, part, count * sizeof *target);
        }
    }
    pass_on(model, layer);
    return GR_OK;
}

const gr_kernels gr_add_onednn = {
    .create = add_create, .forward = add_forward, .backward = add_backward, .any_layout = true};

const gr_layer_ops gr_add_ops = {
    .kind = "add",
    .prefix = "add",
    .help = "the sum of two layers' outputs of one shape",
    .settings = &add_table,
    .main = "from",
    .in_place = true,
    .joins = true,
    .passes_on = true,
    .reference = {.forward = add_forward, .backward = add_backward},
};
