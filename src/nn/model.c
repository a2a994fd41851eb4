/* SPDX-License-Identifier: Apache-2.0 */
/* Running a built model. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/loss.h"
#include "nn/optimizer.h"
#include "nn/passes.h"

#include <math.h>
#include <string.h>

/* ---- What layers ask for --------------------------------------------------------------------- */

const float *gr_model_output_of(const gr_model *model, int index)
{
    if (index == GR_MODEL_INPUT || model->layers[index].out == GR_INPUT_ALIAS) {
        return model->x;
    }
    return gr_memory_planner_at(model->memory, model->layers[index].out);
}

float *gr_model_diff_of(const gr_model *model, int index)
{
    return gr_memory_planner_at(model->memory, model->layers[index].diff);
}

const float *gr_layer_x(const gr_model *model, const gr_layer *layer)
{
    return layer->convert ? gr_memory_planner_at(model->memory, layer->converted)
                          : gr_model_output_of(model, layer->spec->input);
}

float *gr_layer_y(const gr_model *model, const gr_layer *layer)
{
    return gr_memory_planner_at(model->memory, layer->out);
}

float *gr_layer_dy(const gr_model *model, const gr_layer *layer)
{
    return gr_memory_planner_at(model->memory, layer->diff);
}

float *gr_layer_dx(const gr_model *model, const gr_layer *layer)
{
    if (layer->dx_mode == GR_DX_NONE) {
        return NULL;
    }
    if (layer->convert) {
        return gr_memory_planner_at(model->memory, layer->converted_diff);
    }
    return layer->dx_mode == GR_DX_ADD ? gr_memory_planner_at(model->memory, layer->temp)
                                       : gr_model_diff_of(model, layer->spec->input);
}

void *gr_layer_keep(const gr_model *model, const gr_layer *layer, size_t at)
{
    unsigned char *keep = gr_memory_planner_at(model->memory, layer->keep);
    return keep ? keep + at : NULL;
}

void *gr_layer_scratch(const gr_model *model, const gr_layer *layer, size_t at)
{
    unsigned char *scratch = gr_memory_planner_at(
        model->memory, model->going_back ? layer->scratch_back : layer->scratch_forward);
    return scratch ? scratch + at : NULL;
}

size_t gr_layer_elements(const gr_layer *layer)
{
    return layer->out_bytes / sizeof(float);
}

gr_status gr_layer_run(gr_model *model, gr_layer *layer, int which, gr_diag *diag)
{
    gr_dnn_op_bind(layer->op[which], GR_SLOT_SCRATCH,
                   gr_layer_scratch(model, layer, layer->scratch_at[which]));
    return gr_dnn_op_run(model->dnn, layer->op[which], diag);
}

/* ---- What callers ask for -------------------------------------------------------------------- */

size_t gr_model_values(const gr_model *model)
{
    return model->values;
}

size_t gr_model_parameters(const gr_model *model)
{
    return model->parameters;
}

size_t gr_model_arena_bytes(const gr_model *model)
{
    return gr_memory_planner_bytes(model->memory);
}

int gr_model_tensors(const gr_model *model)
{
    return model->tensor_count;
}

const gr_tensor_info *gr_model_tensor(const gr_model *model, int index)
{
    return &model->tensors[index];
}

double gr_gradient_square_sum(const gr_model *model, const float *gradients)
{
    const gr_passes *passes = gr_passes_best();
    double sum = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        const gr_tensor_info *info = &model->tensors[i];
        if (!info->statistic) {
            sum += passes->square_sum(gradients + info->offset, info->count);
        }
    }
    return sum;
}

void gr_model_update_statistics(const gr_model *model, float *values, const float *gradients,
                                float scale)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gr_tensor_info *info = &model->tensors[i];
        if (info->statistic) {
            gr_blend_f32(values + info->offset, gradients + info->offset,
                         (float)(1.0 - info->momentum), (float)(info->momentum * (double)scale),
                         info->count);
        }
    }
}

/* ---- Forward --------------------------------------------------------------------------------- */

static gr_status convert(gr_model *model, gr_dnn_op *op, const float *src, float *dst,
                         gr_diag *diag)
{
    gr_dnn_op_bind(op, GR_SLOT_SRC, src);
    gr_dnn_op_bind(op, GR_SLOT_DST, dst);
    return gr_dnn_op_run(model->dnn, op, diag);
}

/* Returns true if each tensor of this layer in the flat vector `v` is finite. */
static bool tensors_finite(const gr_model *model, int index, const float *v)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const gr_tensor_info *info = &model->tensors[i];
        if (info->layer == index && gr_any_not_finite(v + info->offset, info->count)) {
            return false;
        }
    }
    return true;
}

/* found: NULL, or where to put the first layer with a number that is not finite; stops there. */
static gr_status run_forward(gr_model *model, const gr_pass *pass, int *found, gr_diag *diag)
{
    model->x = pass->batch->x;
    model->going_back = false;
    model->forward_done = false;
    for (int i = 0; i < model->layer_count; i++) {
        gr_layer *layer = &model->layers[i];
        gr_status status = GR_OK;
        if (layer->convert) {
            status = convert(model, layer->convert, gr_model_output_of(model, layer->spec->input),
                             gr_memory_planner_at(model->memory, layer->converted), diag);
        }
        if (status == GR_OK) {
            status = layer->kernels->forward(model, layer, pass, diag);
        }
        if (status != GR_OK) {
            return status;
        }
        if (found && (!tensors_finite(model, i, pass->values) ||
                      gr_any_not_finite(gr_model_output_of(model, i), gr_layer_elements(layer)))) {
            *found = i;
            return GR_OK;
        }
    }
    return GR_OK;
}

/* The last layer's output row by row. */
static gr_status plain_outputs(gr_model *model, const float **outputs_out, gr_diag *diag)
{
    *outputs_out = gr_model_output_of(model, model->layer_count - 1);
    if (!model->output_convert) {
        return GR_OK;
    }
    float *plain = gr_memory_planner_at(model->memory, model->plain_output);
    gr_status status = convert(model, model->output_convert, *outputs_out, plain, diag);
    *outputs_out = plain;
    return status;
}

static gr_status run_loss(gr_model *model, const gr_batch *batch, int samples, const float *outputs,
                          float *gradient, gr_batch_result *result_out, gr_diag *diag)
{
    int64_t width = gr_shape_count(gr_model_spec_output(model->config.spec));
    float scale = model->config.gradient_scale;
    return gr_loss_ops_at((int)model->config.loss)
        ->run(outputs, batch, samples, width, scale, gradient, result_out, diag);
}

/* The loss, and its gradient where the backward pass begins. */
static gr_status finish_forward(gr_model *model, const gr_batch *batch, gr_batch_result *result_out,
                                gr_diag *diag)
{
    int last = model->layer_count - 1;
    const float *outputs = NULL;
    gr_status status = plain_outputs(model, &outputs, diag);
    float *diff = model->needs_diff[last] ? gr_model_diff_of(model, last) : NULL;
    bool back = model->output_convert_back && diff;
    float *gradient = back ? gr_memory_planner_at(model->memory, model->plain_diff) : diff;
    if (status == GR_OK) {
        status = run_loss(model, batch, model->config.batch, outputs, gradient, result_out, diag);
    }
    if (status == GR_OK && back) {
        status = convert(model, model->output_convert_back, gradient, diff, diag);
    }
    model->forward_done = status == GR_OK;
    return status;
}

gr_status gr_model_forward(gr_model *model, const float *values, const gr_batch *batch,
                           gr_batch_result *result_out, gr_diag *diag)
{
    if (!model->config.training) {
        return gr_fail(diag, GR_E_BUG, "a model made for evaluation was asked to train");
    }
    gr_pass pass = {.values = values, .batch = batch, .training = true};
    gr_status status = run_forward(model, &pass, NULL, diag);
    return status == GR_OK ? finish_forward(model, batch, result_out, diag) : status;
}

gr_status gr_model_evaluate(gr_model *model, const float *values, const gr_batch *batch,
                            int samples, gr_batch_result *result_out, float *outputs_out,
                            gr_diag *diag)
{
    gr_pass pass = {.values = values, .batch = batch, .training = false};
    const float *outputs = NULL;
    if (samples < 0 || samples > model->config.batch) {
        return gr_fail(diag, GR_E_BUG, "%d samples were to be counted in a batch of %d", samples,
                       model->config.batch);
    }
    gr_status status = run_forward(model, &pass, NULL, diag);
    if (status == GR_OK) {
        status = plain_outputs(model, &outputs, diag);
    }
    if (status == GR_OK) {
        status = run_loss(model, batch, samples, outputs, NULL, result_out, diag);
    }
    if (status == GR_OK && outputs_out) {
        size_t width = (size_t)gr_shape_count(gr_model_spec_output(model->config.spec));
        memcpy(outputs_out, outputs, width * (size_t)samples * sizeof *outputs_out);
    }
    return status;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The space between tensors is part of what is sent and compared. */
static void clear_padding(const gr_model *model, float *gradients)
{
    for (int i = 0; i < model->tensor_count; i++) {
        size_t from = model->tensors[i].offset + model->tensors[i].count;
        size_t to = i + 1 < model->tensor_count ? model->tensors[i + 1].offset : model->values;
        memset(gradients + from, 0, (to - from) * sizeof *gradients);
    }
}

/* Puts the gradient that a layer made of its input where the input's layer looks for it. */
static gr_status deliver_dx(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    if (layer->dx_mode == GR_DX_NONE) {
        return GR_OK;
    }
    float *target = gr_model_diff_of(model, layer->spec->input);
    float *temp = gr_memory_planner_at(model->memory, layer->temp);
    gr_status status = GR_OK;
    if (layer->convert_back) {
        status = convert(model, layer->convert_back,
                         gr_memory_planner_at(model->memory, layer->converted_diff),
                         layer->dx_mode == GR_DX_ADD ? temp : target, diag);
    }
    if (status == GR_OK && layer->dx_mode == GR_DX_ADD) {
        gr_add_f32(target, target, temp, gr_layer_elements(&model->layers[layer->spec->input]));
    }
    return status;
}

enum { CHECK_PARTS = 16, CHECK_AT_LEAST = 4096 };

/* The kernels' ReLU and maximum turn NaN into a number. In most layers a weight that is not finite
 * still shows in the gradients of the layers before; in front of the first one nothing is. There a
 * share of the weights is looked at in each step: reading all of them would cost 2 %. */
static void show_bad_weights(const gr_model *model, const gr_layer *layer, const gr_pass *pass)
{
    if (layer->dx_mode != GR_DX_NONE || layer->spec->info.parameters == 0) {
        return;
    }
    for (int i = 0; i < model->tensor_count; i++) {
        const gr_tensor_info *info = &model->tensors[i];
        size_t part = (info->count + CHECK_PARTS - 1) / CHECK_PARTS;
        part = part > CHECK_AT_LEAST ? part : info->count;
        size_t from = pass->batch->step % CHECK_PARTS * part;
        if (part == info->count || from >= info->count) {
            from = 0;
        }
        size_t count = info->count - from < part ? info->count - from : part;
        if (info->layer == layer->index &&
            gr_any_not_finite(pass->values + info->offset + from, count)) {
            pass->gradients[layer->offset[GR_ROLE_WEIGHT]] = NAN;
        }
    }
}

static gr_status run_backward(gr_model *model, const gr_pass *pass, gr_gradient_ready *ready,
                              void *ready_arg, int *found, gr_diag *diag)
{
    model->going_back = true;
    clear_padding(model, pass->gradients);
    for (int i = 0; i < model->layer_count; i++) {
        const gr_layer_ops *ops = model->layers[i].spec->ops;
        if (ops->publish) {
            ops->publish(model, &model->layers[i], pass->gradients);
        }
    }
    for (int i = model->layer_count - 1; i >= 0 && model->needs_diff[i]; i--) {
        gr_layer *layer = &model->layers[i];
        if (found && gr_any_not_finite(gr_layer_dy(model, layer), gr_layer_elements(layer))) {
            *found = i;
            return GR_OK;
        }
        gr_status status = layer->kernels->backward(model, layer, pass, diag);
        if (status == GR_OK) {
            status = deliver_dx(model, layer, diag);
        }
        if (status != GR_OK) {
            return status;
        }
        show_bad_weights(model, layer, pass);
        if (found && !tensors_finite(model, i, pass->gradients)) {
            *found = i;
            return GR_OK;
        }
        if (ready && layer->spec->info.parameters > 0 && layer->param_end < model->values) {
            ready(ready_arg, layer->param_end);
        }
    }
    if (ready) {
        ready(ready_arg, model->values);
    }
    return GR_OK;
}

gr_status gr_model_backward(gr_model *model, const float *values, const gr_batch *batch,
                            float *gradients, gr_gradient_ready *ready, void *ready_arg,
                            gr_diag *diag)
{
    if (!model->forward_done) {
        return gr_fail(diag, GR_E_BUG,
                       "a backward pass was asked for without a forward pass right before it");
    }
    model->forward_done = false; /* it writes over what the forward pass left */
    model->x = batch->x;
    gr_pass pass = {.values = values, .gradients = gradients, .batch = batch, .training = true};
    return run_backward(model, &pass, ready, ready_arg, NULL, diag);
}

gr_status gr_model_find_not_finite(gr_model *model, const float *values, const gr_batch *batch,
                                   float *gradients, int *layer_out, bool *backward_out,
                                   gr_diag *diag)
{
    gr_pass pass = {.values = values, .gradients = gradients, .batch = batch, .training = true};
    gr_batch_result result;
    int found = -1;
    bool backward = false;
    size_t width = (size_t)gr_shape_count(&model->config.spec->input);
    gr_status status = GR_OK;
    if (gr_any_not_finite(batch->x, width * (size_t)model->config.batch)) {
        found = 0;
    } else {
        status = run_forward(model, &pass, &found, diag);
    }
    if (status == GR_OK && found < 0) {
        status = finish_forward(model, batch, &result, diag);
        model->forward_done = false;
        backward = true;
        if (status == GR_OK) {
            status = run_backward(model, &pass, NULL, NULL, &found, diag);
        }
    }
    if (status == GR_OK) {
        *layer_out = found;
        *backward_out = backward && found >= 0;
    }
    return status;
}
