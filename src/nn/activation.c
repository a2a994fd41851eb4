/* SPDX-License-Identifier: Apache-2.0 */
/* relu, gelu and dropout: each value by itself. */
#include "nn/layer.h"

#include "base/philox.h"
#include "nn/passes.h"
#include "nn/ref.h"

#include <string.h>

gr_status gr_map_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    layer->kernels->map(gr_layer_y(model, layer), gr_layer_x(model, layer),
                        gr_layer_elements(layer));
    return GR_OK;
}

gr_status gr_map_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    bool output = layer->spec->ops->needs_output_back;
    if (dx) {
        layer->kernels->map_back(dx, gr_layer_dy(model, layer),
                                 output ? gr_layer_y(model, layer) : gr_layer_x(model, layer),
                                 gr_layer_elements(layer));
    }
    return GR_OK;
}

/* ---- relu ------------------------------------------------------------------------------------ */

static gr_status relu_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    if (!layer->fused) {
        gr_relu_f32(gr_layer_y(model, layer), gr_layer_x(model, layer), gr_layer_elements(layer));
    }
    return GR_OK;
}

static gr_status relu_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass, (void)diag;
    float *dx = gr_layer_dx(model, layer);
    const float *dy = gr_layer_dy(model, layer);
    if (!dx) {
        return GR_OK;
    }
    if (!layer->skip_back) {
        gr_relu_backward_f32(dx, dy, gr_layer_y(model, layer), gr_layer_elements(layer));
    } else if (dx != dy) {
        memcpy(dx, dy, gr_layer_elements(layer) * sizeof *dx);
    }
    return GR_OK;
}

/* Right behind a matrix product it becomes part of it. In front of a max pooling it leaves its
 * backward pass to the pooling. */
static void relu_fuse(gr_layer *before, gr_layer *layer, gr_layer *after)
{
    if (before && before->kernels->takes_relu) {
        before->fused_relu = layer->fused = true;
    }
    if (after && after->kernels->masks_relu) {
        after->mask_pooled = layer->skip_back = true;
    }
}

const gr_layer_ops gr_relu_ops = {
    .kind = "relu",
    .prefix = "relu",
    .help = "max(x, 0) of each value",
    .needs_output_back = true,
    .in_place = true,
    .rectifies = true,
    .fuse = relu_fuse,
    .reference = {.forward = relu_forward, .backward = relu_backward, .any_layout = true},
};

/* ---- gelu ------------------------------------------------------------------------------------ */

enum { GELU_FORWARD, GELU_BACKWARD };

static gr_status gelu_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    gr_status status =
        gr_dnn_gelu_forward(model->dnn, layer->layout, &layer->op[GELU_FORWARD], diag);
    if (status == GR_OK && model->config.training) {
        status = gr_dnn_gelu_backward(model->dnn, layer->op[GELU_FORWARD],
                                      &layer->op[GELU_BACKWARD], diag);
    }
    return status;
}

static gr_status gelu_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    gr_dnn_op *op = layer->op[GELU_FORWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DST, gr_layer_y(model, layer));
    return gr_layer_run(model, layer, GELU_FORWARD, diag);
}

static gr_status gelu_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)pass;
    float *dx = gr_layer_dx(model, layer);
    if (!dx) {
        return GR_OK;
    }
    gr_dnn_op *op = layer->op[GELU_BACKWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, gr_layer_dy(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, dx);
    return gr_layer_run(model, layer, GELU_BACKWARD, diag);
}

const gr_kernels gr_gelu_onednn = {
    .create = gelu_create, .forward = gelu_forward, .backward = gelu_backward, .any_layout = true};

const gr_layer_ops gr_gelu_ops = {
    .kind = "gelu",
    .prefix = "gelu",
    .help = "x * Phi(x) of each value, with the error function",
    .needs_input_back = true,
    .rectifies = true,
    .reference = {.forward = gr_map_forward,
                  .backward = gr_map_backward,
                  .map = gr_ref_gelu,
                  .map_back = gr_ref_gelu_backward,
                  .any_layout = true},
};

/* ---- dropout --------------------------------------------------------------------------------- */

/* Which values of a sample stay depends on seed, step, the sample's place in the global batch and
 * the layer: not on the shard or the worker that computes it. */
enum { DROPOUT_WORDS, DROPOUT_MASK };

typedef struct dropout_settings {
    double rate;
} dropout_settings;

static const gr_config_field dropout_fields[] = {
    {.key = "rate",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(dropout_settings, rate),
     .min = 0,
     .max = 0.999,
     .help = "share of the values that become zero in training"},
    {0}};
static const gr_config_table dropout_table = {
    .name = "dropout", .fields = dropout_fields, .struct_bytes = sizeof(dropout_settings)};

static double rate_of(const gr_layer *layer)
{
    return ((const dropout_settings *)layer->spec->set)->rate;
}

static gr_status dropout_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    (void)diag;
    size_t count = (size_t)gr_shape_count(&layer->spec->info.output);
    if (model->config.training) {
        layer->at[DROPOUT_WORDS] = gr_reserve(&layer->scratch_bytes, count * sizeof(uint32_t));
        layer->at[DROPOUT_MASK] =
            gr_reserve(&layer->keep_bytes, count * (size_t)model->config.batch);
    }
    return GR_OK;
}

static void dropout_words(const gr_model *model, const gr_layer *layer, const gr_batch *batch,
                          int64_t sample, uint32_t *words, size_t count)
{
    /* The layer goes into the key by an odd multiplier, so that layers do not share streams. */
    uint64_t key =
        model->config.seed ^ ((uint64_t)(layer->index + 1) * UINT64_C(0x9e3779b97f4a7c15));
    gr_philox_fill(key, batch->step, (uint32_t)(batch->sample_first + (uint64_t)sample), words,
                   count);
}

static gr_status dropout_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    (void)diag;
    const float *x = gr_layer_x(model, layer);
    float *y = gr_layer_y(model, layer);
    size_t count = (size_t)gr_shape_count(&layer->spec->info.output);
    double rate = rate_of(layer);
    if (!pass->training) {
        if (x != y) {
            memcpy(y, x, count * (size_t)model->config.batch * sizeof *y);
        }
        return GR_OK;
    }
    uint32_t *words = gr_layer_scratch(model, layer, layer->at[DROPOUT_WORDS]);
    uint8_t *mask = gr_layer_keep(model, layer, layer->at[DROPOUT_MASK]);
    for (int64_t n = 0; n < model->config.batch; n++) {
        dropout_words(model, layer, pass->batch, n, words, count);
        gr_dropout_f32(y + (size_t)n * count, mask + (size_t)n * count, x + (size_t)n * count,
                       words, rate, count);
    }
    return GR_OK;
}

static gr_status dropout_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    (void)pass, (void)diag;
    const float *dy = gr_layer_dy(model, layer);
    float *dx = gr_layer_dx(model, layer);
    const uint8_t *mask = gr_layer_keep(model, layer, layer->at[DROPOUT_MASK]);
    if (dx) {
        gr_dropout_backward_f32(dx, dy, mask, rate_of(layer),
                                (size_t)gr_shape_count(&layer->spec->info.output) *
                                    (size_t)model->config.batch);
    }
    return GR_OK;
}

const gr_layer_ops gr_dropout_ops = {
    .kind = "dropout",
    .prefix = "dropout",
    .help = "zeros in place of some values in training, chosen by seed, step and sample",
    .settings = &dropout_table,
    .main = "rate",
    .in_place = true,
    .passes_on = true,
    /* The mask goes by the place in the sample, so the sample must lie as written. */
    .reference = {.create = dropout_create,
                  .forward = dropout_forward,
                  .backward = dropout_backward},
};
