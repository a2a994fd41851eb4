/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm. Training normalises with the statistics of this call's samples (a shard) and leaves
 * them, the variance unbiased, in the gradient vector; evaluation uses the running ones. */
#include "nn/layer.h"

#include "nn/ref.h"

#include <string.h>

enum { FORWARD, BACKWARD, RUNNING, MEAN, VARIANCE };

typedef struct norm_settings {
    double momentum, epsilon;
} norm_settings;

static const gr_config_field fields[] = {
    {.key = "momentum",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(norm_settings, momentum),
     .default_text = "0.1",
     .min = 0,
     .max = 1,
     .help = "share of a batch's own statistics in each update of the running ones"},
    {.key = "epsilon",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(norm_settings, epsilon),
     .default_text = "1e-5",
     .min = 1e-12,
     .max = 1,
     .help = "added to the variance"},
    {0}};
static const gr_config_table table = {
    .name = "batch_norm", .fields = fields, .struct_bytes = sizeof(norm_settings)};

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
    needs[2] = (gr_tensor_need){.role = GR_ROLE_MEAN,
                                .suffix = "running_mean",
                                .shape = shape,
                                .statistic = true,
                                .momentum = ((const norm_settings *)spec->set)->momentum};
    needs[3] = needs[2];
    needs[3].role = GR_ROLE_VARIANCE;
    needs[3].suffix = "running_var";
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

static double epsilon_of(const gr_layer *layer)
{
    return ((const norm_settings *)layer->spec->set)->epsilon;
}

static void norm_init(const gr_model *model, const gr_layer *layer, float *values)
{
    (void)model;
    for (int64_t c = 0; c < channels_of(layer); c++) {
        values[layer->offset[GR_ROLE_WEIGHT] + (size_t)c] = 1.0f;
        values[layer->offset[GR_ROLE_VARIANCE] + (size_t)c] = 1.0f;
    }
}

/* In either backend: room for the batch's own statistics. */
static gr_status keep_statistics(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    (void)diag;
    size_t bytes = (size_t)channels_of(layer) * sizeof(float);
    if (model->config.training) {
        layer->at[MEAN] = gr_reserve(&layer->keep_bytes, bytes);
        layer->at[VARIANCE] = gr_reserve(&layer->keep_bytes, bytes);
    }
    return GR_OK;
}

static gr_status norm_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    float epsilon = (float)epsilon_of(layer);
    const gr_layout *data = layer->want;
    gr_status status = keep_statistics(model, layer, diag);
    if (layer->spec->shape_in.dims > 3) { /* plain; and the library takes no more dimensions */
        const gr_shape flat = {.dims = 2, .dim = {channels_of(layer), pixels_of(layer)}};
        data = gr_layout_plain(model->dnn, model->config.batch, &flat);
    }
    if (status == GR_OK) {
        status = gr_layout_check(data, layer->spec->info.name, diag);
    }
    if (status == GR_OK) {
        status = gr_dnn_norm_forward(model->dnn, data, channels_of(layer), epsilon, true,
                                     &layer->op[RUNNING], diag);
    }
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_norm_forward(model->dnn, data, channels_of(layer), epsilon, false,
                                     &layer->op[FORWARD], diag);
    }
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_norm_backward(model->dnn, layer->op[FORWARD], channels_of(layer), epsilon,
                                      &layer->op[BACKWARD], diag);
    }
    return status;
}

/* The statistics that a forward pass normalises with. */
static const float *statistic_of(const gr_model *model, const gr_layer *layer, const gr_pass *pass,
                                 int own, gr_tensor_role running)
{
    return pass->training ? gr_layer_keep(model, layer, layer->at[own])
                          : pass->values + layer->offset[running];
}

static gr_status norm_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    int which = pass->training ? FORWARD : RUNNING;
    gr_dnn_op *op = layer->op[which];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DST, gr_layer_y(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_MEAN, statistic_of(model, layer, pass, MEAN, GR_ROLE_MEAN));
    gr_dnn_op_bind(op, GR_SLOT_VARIANCE,
                   statistic_of(model, layer, pass, VARIANCE, GR_ROLE_VARIANCE));
    gr_dnn_op_bind(op, GR_SLOT_SCALE, pass->values + layer->offset[GR_ROLE_WEIGHT]);
    gr_dnn_op_bind(op, GR_SLOT_SHIFT, pass->values + layer->offset[GR_ROLE_BIAS]);
    return gr_layer_run(model, layer, which, diag);
}

static void norm_publish(const gr_model *model, const gr_layer *layer, float *gradients)
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
    float *dx = gr_layer_dx(model, layer), *dy = gr_layer_dy(model, layer);
    gr_dnn_op *op = layer->op[BACKWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, dy);
    /* The kernel always writes the input's gradient; where nobody wants it, over the output's. */
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, dx ? dx : dy);
    gr_dnn_op_bind(op, GR_SLOT_MEAN, gr_layer_keep(model, layer, layer->at[MEAN]));
    gr_dnn_op_bind(op, GR_SLOT_VARIANCE, gr_layer_keep(model, layer, layer->at[VARIANCE]));
    gr_dnn_op_bind(op, GR_SLOT_SCALE, pass->values + layer->offset[GR_ROLE_WEIGHT]);
    gr_dnn_op_bind(op, GR_SLOT_SHIFT, pass->values + layer->offset[GR_ROLE_BIAS]);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SCALE, pass->gradients + layer->offset[GR_ROLE_WEIGHT]);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SHIFT, pass->gradients + layer->offset[GR_ROLE_BIAS]);
    return gr_layer_run(model, layer, BACKWARD, diag);
}

const gr_kernels gr_batch_norm_onednn = {
    .create = norm_create, .forward = norm_forward, .backward = norm_backward, .any_layout = true};

static gr_status plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)diag;
    const float *x = gr_layer_x(model, layer);
    int64_t batch = model->config.batch, channels = channels_of(layer), pixels = pixels_of(layer);
    if (pass->training) {
        gr_ref_norm_statistics(batch, channels, pixels, x,
                               gr_layer_keep(model, layer, layer->at[MEAN]),
                               gr_layer_keep(model, layer, layer->at[VARIANCE]));
    }
    gr_ref_norm_forward(batch, channels, pixels, epsilon_of(layer), x,
                        statistic_of(model, layer, pass, MEAN, GR_ROLE_MEAN),
                        statistic_of(model, layer, pass, VARIANCE, GR_ROLE_VARIANCE),
                        pass->values + layer->offset[GR_ROLE_WEIGHT],
                        pass->values + layer->offset[GR_ROLE_BIAS], gr_layer_y(model, layer));
    return GR_OK;
}

static gr_status plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)diag;
    gr_ref_norm_backward(model->config.batch, channels_of(layer), pixels_of(layer),
                         epsilon_of(layer), gr_layer_x(model, layer),
                         gr_layer_keep(model, layer, layer->at[MEAN]),
                         gr_layer_keep(model, layer, layer->at[VARIANCE]),
                         pass->values + layer->offset[GR_ROLE_WEIGHT], gr_layer_dy(model, layer),
                         gr_layer_dx(model, layer), pass->gradients + layer->offset[GR_ROLE_WEIGHT],
                         pass->gradients + layer->offset[GR_ROLE_BIAS]);
    return GR_OK;
}

const gr_layer_ops gr_batch_norm_ops = {
    .kind = "batch_norm",
    .prefix = "bn",
    .help = "each channel (of features: each feature) with mean 0 and deviation 1 over the batch",
    .settings = &table,
    .needs_input_back = true,
    .passes_on = true,
    .shape = norm_shape,
    .tensors = norm_tensors,
    .init = norm_init,
    .publish = norm_publish,
    .reference = {.create = keep_statistics, .forward = plain_forward, .backward = plain_backward},
};
