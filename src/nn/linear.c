/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/layer.h"

#include "base/fail.h"
#include "nn/passes.h"
#include "nn/ref.h"

enum { OP_FORWARD, TURNED };

typedef struct linear_settings {
    int64_t units;
    bool bias;
} linear_settings;

static const gr_config_field fields[] = {{.key = "units",
                                          .type = GR_CONFIG_INT,
                                          .offset = offsetof(linear_settings, units),
                                          .min = 1,
                                          .max = 1 << 24,
                                          .help = "features that it gives"},
                                         {.key = "bias",
                                          .type = GR_CONFIG_BOOL,
                                          .offset = offsetof(linear_settings, bias),
                                          .default_text = "true",
                                          .help = "a value of its own is added to each feature"},
                                         {0}};
static const gr_config_table table = {
    .name = "linear", .fields = fields, .struct_bytes = sizeof(linear_settings)};

/* The weights lie [out][in], the wrong way round for x * weights^T: the library copies them in
 * passing, which for a small batch takes longer than the product. There it is faster to compute
 * weights * x^T and to turn the small result. For very few samples the kernel for that is bad. */
enum { TURN_BATCH_MIN = 12, TURN_BATCH_MAX = 128 };

static bool turns(const gr_model *model)
{
    return model->config.batch >= TURN_BATCH_MIN && model->config.batch <= TURN_BATCH_MAX;
}

static gr_status linear_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    if (spec->shape_in.dims != 1) {
        char text[80];
        gr_shape_format(&spec->shape_in, text, sizeof text);
        return gr_node_fail(
            node, diag, GR_E_INVALID,
            "the input of %s has the shape %s, but a linear layer needs a flat list "
            "of features: add flatten before it",
            spec->info.name, text);
    }
    const linear_settings *set = spec->set;
    int64_t in = spec->shape_in.dim[0], out = set->units;
    spec->info.output = (gr_shape){.dims = 1, .dim = {out}};
    spec->info.parameters = in * out + (set->bias ? out : 0);
    return GR_OK;
}

static int linear_tensors(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX])
{
    const linear_settings *set = spec->set;
    int64_t in = spec->shape_in.dim[0], out = set->units;
    needs[0] = (gr_tensor_need){.role = GR_ROLE_WEIGHT,
                                .suffix = "weight",
                                .shape = {.dims = 2, .dim = {out, in}},
                                .decay = true};
    needs[1] = (gr_tensor_need){
        .role = GR_ROLE_BIAS, .suffix = "bias", .shape = {.dims = 1, .dim = {out}}};
    return set->bias ? 2 : 1;
}

static gr_status linear_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    const gr_layer_spec *spec = layer->spec;
    const linear_settings *set = spec->set;
    if (turns(model)) {
        layer->at[TURNED] = gr_reserve(&layer->scratch_bytes, gr_layout_bytes(layer->layout));
        return GR_OK;
    }
    return gr_dnn_linear_forward(model->dnn, model->config.batch, spec->shape_in.dim[0], set->units,
                                 set->bias, layer->fused_relu, &layer->op[OP_FORWARD], diag);
}

static gr_status forward_turned(gr_model *model, gr_layer *layer, const float *weight,
                                const float *bias, gr_diag *diag)
{
    int64_t batch = model->config.batch, in = layer->spec->shape_in.dim[0];
    int64_t out = layer->spec->info.output.dim[0];
    float *turned = gr_layer_scratch(model, layer, layer->at[TURNED]);
    gr_status status = gr_dnn_sgemm(false, true, out, batch, in, weight, in,
                                    gr_layer_x(model, layer), in, turned, batch, diag);
    if (status == GR_OK) {
        gr_transpose_add(turned, (size_t)out, (size_t)batch, bias, layer->fused_relu,
                         gr_layer_y(model, layer));
    }
    return status;
}

static const float *bias_of(const gr_layer *layer, const float *values)
{
    const linear_settings *set = layer->spec->set;
    return set->bias ? values + layer->offset[GR_ROLE_BIAS] : NULL;
}

static float *dbias_of(const gr_layer *layer, float *gradients)
{
    const linear_settings *set = layer->spec->set;
    return set->bias ? gradients + layer->offset[GR_ROLE_BIAS] : NULL;
}

static gr_status linear_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    const float *weight = pass->values + layer->offset[GR_ROLE_WEIGHT];
    const float *bias = bias_of(layer, pass->values);
    if (turns(model)) {
        return forward_turned(model, layer, weight, bias, diag);
    }
    gr_dnn_op *op = layer->op[OP_FORWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_WEIGHTS, weight);
    gr_dnn_op_bind(op, GR_SLOT_BIAS, bias);
    gr_dnn_op_bind(op, GR_SLOT_DST, gr_layer_y(model, layer));
    return gr_layer_run(model, layer, OP_FORWARD, diag);
}

static gr_status linear_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                 gr_diag *diag)
{
    const gr_layer_spec *spec = layer->spec;
    int64_t batch = model->config.batch, in = spec->shape_in.dim[0], out = spec->info.output.dim[0];
    const float *weight = pass->values + layer->offset[GR_ROLE_WEIGHT];
    const float *x = gr_layer_x(model, layer), *dy = gr_layer_dy(model, layer);
    float *dx = gr_layer_dx(model, layer);
    float *dweight = pass->gradients + layer->offset[GR_ROLE_WEIGHT];
    float *dbias = dbias_of(layer, pass->gradients);
    if (dbias) {
        gr_column_sums(dy, (size_t)batch, (size_t)out, dbias);
    }
    gr_status status = gr_dnn_sgemm(true, false, out, in, batch, dy, out, x, in, dweight, in, diag);
    if (status == GR_OK && dx) {
        status = gr_dnn_sgemm(false, false, batch, in, out, dy, out, weight, in, dx, in, diag);
    }
    return status;
}

const gr_kernels gr_linear_onednn = {.create = linear_create,
                                     .forward = linear_forward,
                                     .backward = linear_backward,
                                     .takes_relu = true};

static gr_status plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)diag;
    const gr_layer_spec *spec = layer->spec;
    gr_ref_linear_forward(model->config.batch, spec->shape_in.dim[0], spec->info.output.dim[0],
                          gr_layer_x(model, layer), pass->values + layer->offset[GR_ROLE_WEIGHT],
                          bias_of(layer, pass->values), gr_layer_y(model, layer));
    return GR_OK;
}

static gr_status plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)diag;
    const gr_layer_spec *spec = layer->spec;
    gr_ref_linear_backward(model->config.batch, spec->shape_in.dim[0], spec->info.output.dim[0],
                           gr_layer_x(model, layer), pass->values + layer->offset[GR_ROLE_WEIGHT],
                           gr_layer_dy(model, layer), gr_layer_dx(model, layer),
                           pass->gradients + layer->offset[GR_ROLE_WEIGHT],
                           dbias_of(layer, pass->gradients));
    return GR_OK;
}

const gr_layer_ops gr_linear_ops = {
    .kind = "linear",
    .prefix = "linear",
    .help = "each output a weighted sum of all features; takes features",
    .settings = &table,
    .main = "units",
    .needs_input_back = true,
    .shape = linear_shape,
    .tensors = linear_tensors,
    .init = gr_init_weight,
    .reference = {.forward = plain_forward, .backward = plain_backward},
};
