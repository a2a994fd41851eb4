/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm. Training normalises with the statistics of this call's samples (a shard) and leaves
 * them, the variance unbiased, in the gradient vector; evaluation uses the running ones. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/ref.h"

#include <string.h>

enum { FORWARD, BACKWARD, RUNNING, MEAN, VARIANCE };

static gr_status norm_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    (void)node, (void)diag;
    spec->info.output = spec->shape_in;
    spec->info.parameters = 2 * spec->shape_in.dim[0];
    return GR_OK;
}

static int norm_tensors(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX])
{
    gr_shape shape = {.dims = 1, .dim = {spec->shape_in.dim[0]}};
    needs[0] = (gr_tensor_need){.role = GR_ROLE_WEIGHT, .suffix = "weight", .shape = shape};
    needs[1] = (gr_tensor_need){.role = GR_ROLE_BIAS, .suffix = "bias", .shape = shape};
    needs[2] = (gr_tensor_need){
        .role = GR_ROLE_MEAN, .suffix = "running_mean", .shape = shape, .statistic = true};
    needs[3] = (gr_tensor_need){
        .role = GR_ROLE_VARIANCE, .suffix = "running_var", .shape = shape, .statistic = true};
    return 4;
}

static int64_t channels_of(const gr_layer *layer)
{
    return layer->spec->shape_in.dim[0];
}

static int64_t pixels_of(const gr_layer *layer)
{
    return gr_shape_count(&layer->spec->shape_in) / channels_of(layer);
}

static gr_status norm_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    size_t bytes = (size_t)channels_of(layer) * sizeof(float);
    float epsilon = (float)layer->spec->set.epsilon;
    gr_status status = GR_OK;
    if (model->config.training) {
        layer->at[MEAN] = gr_reserve(&layer->keep_bytes, bytes);
        layer->at[VARIANCE] = gr_reserve(&layer->keep_bytes, bytes);
    }
    if (!model->dnn) {
        return GR_OK;
    }
    status = gr_dnn_norm_forward(model->dnn, layer->want, channels_of(layer), epsilon, true,
                                 &layer->op[RUNNING], diag);
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_norm_forward(model->dnn, layer->want, channels_of(layer), epsilon, false,
                                     &layer->op[FORWARD], diag);
    }
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_norm_backward(model->dnn, layer->op[FORWARD], channels_of(layer), epsilon,
                                      &layer->op[BACKWARD], diag);
    }
    for (int i = FORWARD; status == GR_OK && i <= RUNNING; i++) {
        layer->at[i] =
            gr_reserve(&layer->scratch_bytes, gr_dnn_op_bytes(layer->op[i], GR_SLOT_SCRATCH));
    }
    return status;
}

static gr_status norm_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    const float *x = gr_layer_x(model, layer);
    float *y = gr_layer_y(model, layer);
    const float *scale = pass->values + layer->offset[GR_ROLE_WEIGHT];
    const float *shift = pass->values + layer->offset[GR_ROLE_BIAS];
    const float *mean = pass->values + layer->offset[GR_ROLE_MEAN];
    const float *variance = pass->values + layer->offset[GR_ROLE_VARIANCE];
    if (pass->training) {
        float *own_mean = gr_layer_keep(model, layer, layer->at[MEAN]);
        float *own_variance = gr_layer_keep(model, layer, layer->at[VARIANCE]);
        if (!model->dnn) {
            gr_ref_norm_statistics(model->config.batch, channels_of(layer), pixels_of(layer), x,
                                   own_mean, own_variance);
        }
        mean = own_mean;
        variance = own_variance;
    }
    if (!model->dnn) {
        gr_ref_norm_forward(model->config.batch, channels_of(layer), pixels_of(layer),
                            layer->spec->set.epsilon, x, mean, variance, scale, shift, y);
        return GR_OK;
    }
    int which = pass->training ? FORWARD : RUNNING;
    gr_dnn_op *op = layer->op[which];
    gr_dnn_op_bind(op, GR_SLOT_SRC, x);
    gr_dnn_op_bind(op, GR_SLOT_DST, y);
    gr_dnn_op_bind(op, GR_SLOT_MEAN, mean);
    gr_dnn_op_bind(op, GR_SLOT_VARIANCE, variance);
    gr_dnn_op_bind(op, GR_SLOT_SCALE, scale);
    gr_dnn_op_bind(op, GR_SLOT_SHIFT, shift);
    gr_dnn_op_bind(op, GR_SLOT_SCRATCH, gr_layer_scratch(model, layer, layer->at[which]));
    return gr_dnn_op_run(model->dnn, op, diag);
}

void gr_norm_publish(const gr_model *model, const gr_layer *layer, float *gradients)
{
    size_t channels = (size_t)channels_of(layer);
    double count = (double)(model->config.batch * pixels_of(layer));
    double unbiased = count > 1 ? count / (count - 1) : 1.0;
    const float *variance = gr_layer_keep(model, layer, layer->at[VARIANCE]);
    memcpy(gradients + layer->offset[GR_ROLE_MEAN], gr_layer_keep(model, layer, layer->at[MEAN]),
           channels * sizeof(float));
    for (size_t c = 0; c < channels; c++) {
        gradients[layer->offset[GR_ROLE_VARIANCE] + c] = (float)((double)variance[c] * unbiased);
    }
}

static gr_status norm_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    const float *x = gr_layer_x(model, layer), *dy = gr_layer_dy(model, layer);
    const float *mean = gr_layer_keep(model, layer, layer->at[MEAN]);
    const float *variance = gr_layer_keep(model, layer, layer->at[VARIANCE]);
    const float *scale = pass->values + layer->offset[GR_ROLE_WEIGHT];
    float *dscale = pass->gradients + layer->offset[GR_ROLE_WEIGHT];
    float *dshift = pass->gradients + layer->offset[GR_ROLE_BIAS];
    float *dx = gr_layer_dx(model, layer);
    if (!model->dnn) {
        gr_ref_norm_backward(model->config.batch, channels_of(layer), pixels_of(layer),
                             layer->spec->set.epsilon, x, mean, variance, scale, dy, dx, dscale,
                             dshift);
        return GR_OK;
    }
    gr_dnn_op *op = layer->op[BACKWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, x);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, dy);
    /* The kernel always writes the input's gradient; where nobody wants it, over the output's. */
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, dx ? dx : dy);
    gr_dnn_op_bind(op, GR_SLOT_MEAN, mean);
    gr_dnn_op_bind(op, GR_SLOT_VARIANCE, variance);
    gr_dnn_op_bind(op, GR_SLOT_SCALE, scale);
    gr_dnn_op_bind(op, GR_SLOT_SHIFT, pass->values + layer->offset[GR_ROLE_BIAS]);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SCALE, dscale);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SHIFT, dshift);
    gr_dnn_op_bind(op, GR_SLOT_SCRATCH, gr_layer_scratch(model, layer, layer->at[BACKWARD]));
    return gr_dnn_op_run(model->dnn, op, diag);
}

const gr_layer_ops gr_batch_norm_ops = {
    .kind = "batch_norm",
    .prefix = "bn",
    .needs_input_back = true,
    .shape = norm_shape,
    .tensors = norm_tensors,
    .create = norm_create,
    .forward = norm_forward,
    .backward = norm_backward,
};
