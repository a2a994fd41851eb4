/* SPDX-License-Identifier: Apache-2.0 */
/* From a list of layers to a model that can run: the flat vector's layout, what is fused, where
 * each gradient goes, the kernels, and the plan of the memory.
 *
 * Time in that plan: layer i runs forward at i, the loss at n, layer i backward at 2n - i. */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/loss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES_ALIGN = 16 }; /* elements: 64 bytes */

static size_t align_values(size_t count)
{
    return (count + VALUES_ALIGN - 1) / VALUES_ALIGN * VALUES_ALIGN;
}

size_t gr_reserve(size_t *bytes, size_t size_bytes)
{
    size_t at = *bytes;
    *bytes += (size_bytes + GR_MEMORY_ALIGN - 1) / GR_MEMORY_ALIGN * GR_MEMORY_ALIGN;
    return at;
}

gr_status gr_layout_check(const gr_layout *layout, const char *what, gr_diag *diag)
{
    return layout ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", what);
}

const gr_layout *gr_model_layout_of(const gr_model *model, int index)
{
    return index == GR_MODEL_INPUT ? model->input_layout : model->layers[index].layout;
}

/* ---- The flat vector ------------------------------------------------------------------------- */

static void place_tensors(gr_model *model, int index, bool statistics)
{
    gr_layer *layer = &model->layers[index];
    gr_tensor_need needs[GR_LAYER_TENSORS_MAX];
    int count = layer->spec->ops->tensors ? layer->spec->ops->tensors(layer->spec, needs) : 0;
    for (int t = 0; t < count; t++) {
        if (needs[t].statistic != statistics) {
            continue;
        }
        gr_tensor_info *info = &model->tensors[model->tensor_count++];
        snprintf(info->name, sizeof info->name, "%s.%s", layer->spec->info.name, needs[t].suffix);
        info->shape = needs[t].shape;
        info->offset = model->values;
        info->count = (size_t)gr_shape_count(&needs[t].shape);
        info->layer = index;
        info->statistic = statistics;
        info->momentum = needs[t].momentum;
        info->decay = needs[t].decay;
        layer->offset[needs[t].role] = model->values;
        model->values += align_values(info->count);
        model->parameters += statistics ? 0 : info->count;
    }
}

static void lay_out_values(gr_model *model)
{
    for (int i = 0; i < model->layer_count; i++) {
        place_tensors(model, i, true);
    }
    for (int i = model->layer_count - 1; i >= 0; i--) {
        place_tensors(model, i, false);
        model->layers[i].param_end = model->values;
    }
}

/* ---- Who reads what -------------------------------------------------------------------------- */

static int consumers(const gr_model *model, int index)
{
    int count = 0;
    for (int i = 0; i < model->layer_count; i++) {
        const gr_layer_spec *spec = model->layers[i].spec;
        count += (spec->input == index) + (spec->other == index);
    }
    return count;
}

static bool is_last(const gr_model *model, int index)
{
    return index == model->layer_count - 1;
}

/* A layer that is the only neighbour of the one before or behind it may leave work to that one. */
static void fuse(gr_model *model)
{
    for (int i = 0; i < model->layer_count; i++) {
        gr_layer *layer = &model->layers[i], *next = is_last(model, i) ? NULL : layer + 1;
        int before = layer->spec->input;
        bool only = before >= 0 && consumers(model, before) == 1;
        bool sole = next && next->spec->input == i && consumers(model, i) == 1;
        if (layer->spec->ops->fuse) {
            layer->spec->ops->fuse(only ? &model->layers[before] : NULL, layer, sole ? next : NULL);
        }
    }
}

/* Which gradients are needed, and who writes first and who adds. */
static void route_gradients(gr_model *model)
{
    bool *needed = model->needs_diff;
    bool written[GR_LAYERS_MAX] = {false};
    for (int i = 0; i < model->layer_count; i++) {
        const gr_layer_spec *spec = model->layers[i].spec;
        needed[i] = spec->info.parameters > 0 || (spec->input >= 0 && needed[spec->input]) ||
                    (spec->other >= 0 && needed[spec->other]);
    }
    for (int i = model->layer_count - 1; i >= 0; i--) {
        gr_layer *layer = &model->layers[i];
        int other = layer->spec->other, input = layer->spec->input;
        if (other >= 0 && needed[other]) {
            layer->other_dx = true;
            layer->other_adds = written[other];
            written[other] = true;
        }
        if (input >= 0 && needed[input]) {
            bool alias = layer->spec->ops->in_place && !written[input];
            layer->dx_mode = written[input] ? GR_DX_ADD : alias ? GR_DX_ALIAS : GR_DX_OWN;
            written[input] = true;
        }
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static gr_status create_kernels(gr_model *model, gr_diag *diag)
{
    for (int i = 0; i < model->layer_count; i++) {
        gr_layer *layer = &model->layers[i];
        const gr_layer_spec *spec = layer->spec;
        const gr_layout *comes = gr_model_layout_of(model, spec->input);
        layer->want = layer->layout = comes;
        layer->out_bytes = (size_t)gr_shape_count(&spec->info.output) *
                           (size_t)model->config.batch * sizeof(float);
        gr_status status = GR_OK;
        if (model->dnn && !layer->kernels->any_layout) {
            layer->want = gr_layout_plain(model->dnn, model->config.batch, &spec->shape_in);
            layer->layout = gr_layout_plain(model->dnn, model->config.batch, &spec->info.output);
            status = gr_layout_check(layer->want ? layer->layout : NULL, spec->info.name, diag);
        }
        if (status == GR_OK && layer->kernels->create) {
            status = layer->kernels->create(model, layer, diag);
        }
        for (int op = 0; op < GR_LAYER_OPS_MAX; op++) {
            size_t bytes = gr_dnn_op_bytes(layer->op[op], GR_SLOT_SCRATCH);
            layer->scratch_at[op] = gr_reserve(&layer->scratch_bytes, bytes);
        }
        if (status == GR_OK && model->dnn) {
            layer->out_bytes = gr_layout_bytes(layer->layout);
            if (!gr_layout_equal(comes, layer->want)) {
                status = gr_dnn_reorder(model->dnn, comes, layer->want, &layer->convert, diag);
                if (status == GR_OK && layer->dx_mode != GR_DX_NONE) {
                    status =
                        gr_dnn_reorder(model->dnn, layer->want, comes, &layer->convert_back, diag);
                }
            }
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* Losses and callers see outputs row by row. */
static gr_status create_output(gr_model *model, gr_diag *diag)
{
    model->plain_output = model->plain_diff = GR_NO_BUFFER;
    if (!model->dnn) {
        return GR_OK;
    }
    const gr_layout *have = gr_model_layout_of(model, model->layer_count - 1);
    const gr_layout *plain =
        gr_layout_plain(model->dnn, model->config.batch, gr_model_spec_output(model->config.spec));
    gr_status status = gr_layout_check(plain, "the model's output", diag);
    if (status != GR_OK || gr_layout_equal(have, plain)) {
        return status;
    }
    status = gr_dnn_reorder(model->dnn, have, plain, &model->output_convert, diag);
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_reorder(model->dnn, plain, have, &model->output_convert_back, diag);
    }
    return status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void extend_output(gr_model *model, int index, int time)
{
    if (index >= 0 && model->layers[index].out != GR_INPUT_ALIAS) {
        gr_memory_planner_extend(model->memory, model->layers[index].out, time);
    }
}

/* Returns true if the only reader of a layer's output may overwrite it. */
static bool may_overwrite(const gr_model *model, int index)
{
    if (index == GR_MODEL_INPUT || consumers(model, index) != 1) {
        return false;
    }
    const gr_layer *layer = &model->layers[index];
    if (layer->out == GR_INPUT_ALIAS ||
        (model->config.training && layer->spec->ops->needs_output_back)) {
        return false;
    }
    /* Through a view one sees what others may still read. */
    return !layer->spec->ops->view || layer->convert || may_overwrite(model, layer->spec->input);
}

static void place_output(gr_model *model, int i)
{
    gr_layer *layer = &model->layers[i];
    const gr_layer_ops *ops = layer->spec->ops;
    int input = layer->spec->input, back = 2 * model->layer_count - i;
    bool training = model->config.training;
    if (layer->convert) {
        layer->converted = gr_memory_planner_add(model->memory, gr_layout_bytes(layer->want), i);
        if (training && ops->needs_input_back) {
            gr_memory_planner_extend(model->memory, layer->converted, back);
        }
    }
    extend_output(model, input, i);
    extend_output(model, layer->spec->other, i);
    if (layer->convert && ops->in_place) {
        layer->out = layer->converted;
    } else if (ops->view && input == GR_MODEL_INPUT) {
        layer->out = GR_INPUT_ALIAS;
    } else if (ops->view || (ops->in_place && may_overwrite(model, input))) {
        layer->out = model->layers[input].out;
    } else {
        layer->out = gr_memory_planner_add(model->memory, layer->out_bytes, i);
    }
    if (training && ops->needs_input_back && !layer->convert) {
        extend_output(model, input, back);
    }
    if (training && ops->needs_output_back) {
        extend_output(model, i, back);
    }
    if (is_last(model, i)) {
        extend_output(model, i, model->layer_count);
    }
    layer->keep = gr_memory_planner_add(model->memory, layer->keep_bytes, i);
    layer->scratch_forward = gr_memory_planner_add(model->memory, layer->scratch_bytes, i);
    if (training) {
        gr_memory_planner_extend(model->memory, layer->keep, back);
        layer->scratch_back = gr_memory_planner_add(model->memory, layer->scratch_bytes, back);
    }
}

/* The buffer of `index`'s gradient holds something at `time`. */
static void use_diff(gr_model *model, int index, int time)
{
    gr_layer *layer = &model->layers[index];
    if (layer->diff == GR_NO_BUFFER) {
        layer->diff = gr_memory_planner_add(model->memory, layer->out_bytes, time);
    }
    gr_memory_planner_extend(model->memory, layer->diff, time);
}

static void place_diff(gr_model *model, int i)
{
    gr_layer *layer = &model->layers[i];
    int input = layer->spec->input, back = 2 * model->layer_count - i;
    if (!model->needs_diff[i]) {
        return;
    }
    use_diff(model, i, back);
    if (layer->other_dx) {
        use_diff(model, layer->spec->other, back);
    }
    if (layer->dx_mode == GR_DX_NONE) {
        return;
    }
    if (layer->convert) {
        bool in_place = layer->spec->ops->in_place;
        layer->converted_diff =
            in_place ? layer->diff
                     : gr_memory_planner_add(model->memory, gr_layout_bytes(layer->want), back);
        layer->dx_mode = layer->dx_mode == GR_DX_ALIAS ? GR_DX_OWN : layer->dx_mode;
    }
    if (layer->dx_mode == GR_DX_ALIAS) {
        model->layers[input].diff = layer->diff;
    }
    use_diff(model, input, back);
    if (layer->dx_mode == GR_DX_ADD) {
        layer->temp = gr_memory_planner_add(model->memory, model->layers[input].out_bytes, back);
    }
}

static gr_status plan_memory(gr_model *model, gr_diag *diag)
{
    int n = model->layer_count;
    gr_status status = gr_memory_planner_create(8 * n + 2, &model->memory, diag);
    if (status != GR_OK) {
        return status;
    }
    for (int i = 0; i < n; i++) {
        place_output(model, i);
    }
    if (model->output_convert) {
        model->plain_output = gr_memory_planner_add(
            model->memory, gr_dnn_op_bytes(model->output_convert, GR_SLOT_DST), n);
        model->plain_diff = gr_memory_planner_add(
            model->memory, gr_dnn_op_bytes(model->output_convert, GR_SLOT_DST), n);
    }
    if (model->config.training) {
        if (model->needs_diff[n - 1]) {
            use_diff(model, n - 1, n); /* the loss writes it */
        }
        for (int i = n - 1; i >= 0; i--) {
            place_diff(model, i);
        }
    }
    return gr_memory_planner_plan(model->memory, diag);
}

/* ---- Creation -------------------------------------------------------------------------------- */

/* Checks that the layer has kernels for this tensor. */
static gr_status check_tensor(const gr_layer_spec *spec, const char *tensor, const gr_shape *shape,
                              gr_diag *diag)
{
    unsigned types = spec->ops->types ? spec->ops->types : 1u << GR_F32;
    if (!(types >> shape->type & 1u)) {
        return gr_fail(
            diag, GR_E_UNSUPPORTED,
            "layer %s (%s) has no kernel for type %s of its tensor '%s'; convert it to a "
            "type that the layer computes with, f32 say",
            spec->info.name, spec->info.kind, gr_dtype_name(shape->type), tensor);
    }
    if (shape->memory != GR_MEMORY_HOST) {
        return gr_fail(diag, GR_E_UNSUPPORTED,
                       "layer %s (%s) computes in the memory of the host, but its tensor '%s' lies "
                       "in that of a device",
                       spec->info.name, spec->info.kind, tensor);
    }
    return GR_OK;
}

static gr_status check_tensors(const gr_layer_spec *spec, gr_diag *diag)
{
    gr_tensor_need needs[GR_LAYER_TENSORS_MAX];
    int count = spec->ops->tensors ? spec->ops->tensors(spec, needs) : 0;
    gr_status status = check_tensor(spec, "input", &spec->shape_in, diag);
    if (status == GR_OK) {
        status = check_tensor(spec, "output", &spec->info.output, diag);
    }
    for (int t = 0; t < count && status == GR_OK; t++) {
        status = check_tensor(spec, needs[t].suffix, &needs[t].shape, diag);
    }
    return status;
}

static gr_status check_config(const gr_model_config *config, gr_diag *diag)
{
    const gr_shape *output = gr_model_spec_output(config->spec);
    if (config->batch < 1) {
        return gr_fail(diag, GR_E_INVALID, "a model's batch must be at least 1, but it is %d",
                       config->batch);
    }
    if (gr_loss_ops_at((int)config->loss)->classes && output->dims != 1) {
        char text[80];
        gr_shape_format(output, text, sizeof text);
        return gr_fail(
            diag, GR_E_INVALID,
            "the model's output has the shape %s, but %s needs a flat list with one value for each "
            "class: end the model with flatten and linear",
            text, gr_loss_ops_at((int)config->loss)->title);
    }
    for (int i = 0; i < config->spec->count; i++) {
        const gr_layer_info *info = &config->spec->layers[i].info;
        if (gr_shape_count(&info->output) > INT64_MAX / 64 / config->batch) {
            return gr_fail(diag, GR_E_INVALID, "the batch %d is too large for layer %s",
                           config->batch, info->name);
        }
        gr_status status = check_tensors(&config->spec->layers[i], diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

static gr_status allocate(gr_model *model, gr_diag *diag)
{
    size_t n = (size_t)model->layer_count;
    model->layers = calloc(n, sizeof *model->layers);
    model->tensors = calloc(n * GR_LAYER_TENSORS_MAX, sizeof *model->tensors);
    model->needs_diff = calloc(n, sizeof *model->needs_diff);
    if (!model->layers || !model->tensors || !model->needs_diff) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a model of %d layers",
                       model->layer_count);
    }
    for (int i = 0; i < model->layer_count; i++) {
        gr_layer *layer = &model->layers[i];
        layer->spec = &model->config.spec->layers[i];
        layer->kernels = gr_backend_kernels_of(model->backend, layer->spec->ops);
        layer->index = i;
        layer->out = layer->diff = layer->keep = layer->temp = GR_NO_BUFFER;
        layer->scratch_forward = layer->scratch_back = GR_NO_BUFFER;
        layer->converted = layer->converted_diff = GR_NO_BUFFER;
    }
    return GR_OK;
}

static gr_status build(gr_model *model, gr_diag *diag)
{
    const gr_model_config *config = &model->config;
    gr_status status = allocate(model, diag);
    if (status != GR_OK) {
        return status;
    }
    lay_out_values(model);
    if (model->backend->open) {
        status = model->backend->open(model, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    fuse(model);
    if (config->training) {
        route_gradients(model);
    }
    status = create_kernels(model, diag);
    if (status == GR_OK) {
        status = create_output(model, diag);
    }
    return status == GR_OK ? plan_memory(model, diag) : status;
}

gr_status gr_model_create(const gr_model_config *config, gr_model **model_out, gr_diag *diag)
{
    const gr_backend *backend = NULL;
    gr_status status = check_config(config, diag);
    if (status == GR_OK) {
        status = gr_backend_find(config->backend, &backend, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_model *model = calloc(1, sizeof *model);
    if (!model) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a model");
    }
    model->config = *config;
    model->backend = backend;
    model->layer_count = config->spec->count;
    status = build(model, diag);
    if (status != GR_OK) {
        gr_model_destroy(model);
        return status;
    }
    *model_out = model;
    return GR_OK;
}

void gr_model_destroy(gr_model *model)
{
    if (!model) {
        return;
    }
    for (int i = 0; model->layers && i < model->layer_count; i++) {
        gr_layer *layer = &model->layers[i];
        for (int op = 0; op < GR_LAYER_OPS_MAX; op++) {
            gr_dnn_op_destroy(layer->op[op]);
        }
        gr_dnn_op_destroy(layer->convert);
        gr_dnn_op_destroy(layer->convert_back);
    }
    gr_dnn_op_destroy(model->output_convert);
    gr_dnn_op_destroy(model->output_convert_back);
    gr_memory_planner_destroy(model->memory);
    gr_dnn_destroy(model->dnn);
    free(model->needs_diff);
    free(model->tensors);
    free(model->layers);
    free(model);
}
