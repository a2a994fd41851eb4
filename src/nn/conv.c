/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/layer.h"

#include "nn/ref.h"

/* The flat vector holds weights as written, the kernels want them in blocks: they are converted
 * when needed. Against the convolution itself that is little. */
enum {
    FORWARD,
    BACK_DATA,
    BACK_WEIGHTS,
    WEIGHTS_IN,      /* for FORWARD */
    WEIGHTS_IN_BACK, /* for BACK_DATA */
    WEIGHTS_OUT      /* from BACK_WEIGHTS */
};

typedef struct conv_settings {
    gr_window_settings window;
    int64_t channels;
    bool bias;
} conv_settings;

static const gr_config_field fields[] = {
    {.key = "channels",
     .type = GR_CONFIG_INT,
     .offset = offsetof(conv_settings, channels),
     .min = 1,
     .max = 1 << 20,
     .help = "of the image that it gives"},
    GR_WINDOW_FIELDS(conv_settings, "1", "pixels from one window to the next"),
    {.key = "bias",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(conv_settings, bias),
     .default_text = "true",
     .help = "a value of its own is added to each channel; needless in front of batch_norm"},
    {0}};
static const gr_config_table table = {
    .name = "conv2d", .fields = fields, .struct_bytes = sizeof(conv_settings)};

static gr_status conv_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    const conv_settings *set = spec->set;
    int64_t kernel = set->window.kernel;
    gr_status status = gr_window_shape(spec, set->channels, node, diag);
    if (status == GR_OK) {
        spec->info.parameters = set->channels * spec->shape_in.dim[0] * kernel * kernel +
                                (set->bias ? set->channels : 0);
    }
    return status;
}

static int conv_tensors(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX])
{
    const conv_settings *set = spec->set;
    int64_t kernel = set->window.kernel;
    gr_shape shape = {.dims = 4, .dim = {set->channels, spec->shape_in.dim[0], kernel, kernel}};
    needs[0] =
        (gr_tensor_need){.role = GR_ROLE_WEIGHT, .suffix = "weight", .shape = shape, .decay = true};
    needs[1] = (gr_tensor_need){
        .role = GR_ROLE_BIAS, .suffix = "bias", .shape = {.dims = 1, .dim = {set->channels}}};
    return set->bias ? 2 : 1;
}

static gr_conv_shape window_of(const gr_model *model, const gr_layer *layer)
{
    gr_conv_shape shape = gr_layer_window(model, layer);
    shape.bias = ((const conv_settings *)layer->spec->set)->bias;
    return shape;
}

/* A conversion between the weights as written and as `op` wants them; none if they are the same. */
static gr_status weights_between(gr_model *model, gr_layer *layer, const gr_layout *plain,
                                 const gr_dnn_op *op, gr_slot slot, int into, gr_diag *diag)
{
    const gr_layout *blocked = gr_dnn_op_layout(op, slot);
    if (gr_layout_equal(plain, blocked)) {
        return GR_OK;
    }
    bool back = slot == GR_SLOT_DIFF_WEIGHTS;
    gr_status status = gr_dnn_reorder(model->dnn, back ? blocked : plain, back ? plain : blocked,
                                      &layer->op[into], diag);
    if (status == GR_OK) {
        layer->at[into] = gr_reserve(&layer->scratch_bytes, gr_layout_bytes(blocked));
    }
    return status;
}

static gr_status create_back(gr_model *model, gr_layer *layer, const gr_conv_shape *shape,
                             const gr_layout *plain, gr_diag *diag)
{
    gr_status status = gr_dnn_conv_backward_weights(model->dnn, shape, layer->op[FORWARD],
                                                    &layer->op[BACK_WEIGHTS], diag);
    if (status == GR_OK) {
        status = weights_between(model, layer, plain, layer->op[BACK_WEIGHTS], GR_SLOT_DIFF_WEIGHTS,
                                 WEIGHTS_OUT, diag);
    }
    if (status == GR_OK && layer->dx_mode != GR_DX_NONE) {
        status = gr_dnn_conv_backward_data(model->dnn, shape, layer->op[FORWARD],
                                           &layer->op[BACK_DATA], diag);
        if (status == GR_OK) {
            status = weights_between(model, layer, plain, layer->op[BACK_DATA], GR_SLOT_WEIGHTS,
                                     WEIGHTS_IN_BACK, diag);
        }
    }
    return status;
}

static gr_status conv_create(gr_model *model, gr_layer *layer, gr_diag *diag)
{
    gr_conv_shape shape = window_of(model, layer);
    const gr_layout *plain = gr_layout_conv_weights(model->dnn, &shape);
    gr_status status = gr_layout_check(plain, "a convolution", diag);
    if (status == GR_OK) {
        status =
            gr_dnn_conv_forward(model->dnn, &shape, layer->fused_relu, &layer->op[FORWARD], diag);
    }
    if (status == GR_OK) {
        layer->want = gr_dnn_op_layout(layer->op[FORWARD], GR_SLOT_SRC);
        layer->layout = gr_dnn_op_layout(layer->op[FORWARD], GR_SLOT_DST);
        status = weights_between(model, layer, plain, layer->op[FORWARD], GR_SLOT_WEIGHTS,
                                 WEIGHTS_IN, diag);
    }
    if (status == GR_OK && model->config.training) {
        status = create_back(model, layer, &shape, plain, diag);
    }
    return status;
}

/* The weights as `convert` makes them; as they are if there is none. */
static gr_status weights_for(gr_model *model, gr_layer *layer, const float *weights, int convert,
                             const float **weights_out, gr_diag *diag)
{
    gr_dnn_op *op = layer->op[convert];
    *weights_out = weights;
    if (!op) {
        return GR_OK;
    }
    float *blocked = gr_layer_scratch(model, layer, layer->at[convert]);
    gr_dnn_op_bind(op, GR_SLOT_SRC, weights);
    gr_dnn_op_bind(op, GR_SLOT_DST, blocked);
    *weights_out = blocked;
    return gr_layer_run(model, layer, convert, diag);
}

static gr_status conv_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    const float *weights = pass->values + layer->offset[GR_ROLE_WEIGHT];
    gr_status status = weights_for(model, layer, weights, WEIGHTS_IN, &weights, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_dnn_op *op = layer->op[FORWARD];
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_WEIGHTS, weights);
    gr_dnn_op_bind(op, GR_SLOT_BIAS, pass->values + layer->offset[GR_ROLE_BIAS]);
    gr_dnn_op_bind(op, GR_SLOT_DST, gr_layer_y(model, layer));
    return gr_layer_run(model, layer, FORWARD, diag);
}

static gr_status back_weights(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    float *dweights = pass->gradients + layer->offset[GR_ROLE_WEIGHT];
    gr_dnn_op *op = layer->op[BACK_WEIGHTS], *convert = layer->op[WEIGHTS_OUT];
    float *target = convert ? gr_layer_scratch(model, layer, layer->at[WEIGHTS_OUT]) : dweights;
    gr_dnn_op_bind(op, GR_SLOT_SRC, gr_layer_x(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, gr_layer_dy(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_DIFF_WEIGHTS, target);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_BIAS, pass->gradients + layer->offset[GR_ROLE_BIAS]);
    gr_status status = gr_layer_run(model, layer, BACK_WEIGHTS, diag);
    if (status == GR_OK && convert) {
        gr_dnn_op_bind(convert, GR_SLOT_SRC, target);
        gr_dnn_op_bind(convert, GR_SLOT_DST, dweights);
        status = gr_layer_run(model, layer, WEIGHTS_OUT, diag);
    }
    return status;
}

static gr_status conv_backward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    const float *weights = pass->values + layer->offset[GR_ROLE_WEIGHT];
    float *dx = gr_layer_dx(model, layer);
    gr_status status = back_weights(model, layer, pass, diag);
    if (status == GR_OK && dx) {
        status = weights_for(model, layer, weights, WEIGHTS_IN_BACK, &weights, diag);
    }
    if (status != GR_OK || !dx) {
        return status;
    }
    gr_dnn_op *op = layer->op[BACK_DATA];
    gr_dnn_op_bind(op, GR_SLOT_DIFF_DST, gr_layer_dy(model, layer));
    gr_dnn_op_bind(op, GR_SLOT_WEIGHTS, weights);
    gr_dnn_op_bind(op, GR_SLOT_DIFF_SRC, dx);
    return gr_layer_run(model, layer, BACK_DATA, diag);
}

const gr_kernels gr_conv2d_onednn = {.create = conv_create,
                                     .forward = conv_forward,
                                     .backward = conv_backward,
                                     .any_layout = true,
                                     .takes_relu = true};

static gr_status plain_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)diag;
    gr_conv_shape shape = window_of(model, layer);
    gr_ref_conv_forward(
        &shape, gr_layer_x(model, layer), pass->values + layer->offset[GR_ROLE_WEIGHT],
        shape.bias ? pass->values + layer->offset[GR_ROLE_BIAS] : NULL, gr_layer_y(model, layer));
    return GR_OK;
}

static gr_status plain_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)diag;
    gr_conv_shape shape = window_of(model, layer);
    gr_ref_conv_backward(&shape, gr_layer_x(model, layer),
                         pass->values + layer->offset[GR_ROLE_WEIGHT], gr_layer_dy(model, layer),
                         gr_layer_dx(model, layer), pass->gradients + layer->offset[GR_ROLE_WEIGHT],
                         shape.bias ? pass->gradients + layer->offset[GR_ROLE_BIAS] : NULL);
    return GR_OK;
}

const gr_layer_ops gr_conv2d_ops = {
    .kind = "conv2d",
    .prefix = "conv",
    .help = "sums over windows, weighted for each channel; takes an image",
    .settings = &table,
    .needs_input_back = true,
    .shape = conv_shape,
    .tensors = conv_tensors,
    .init = gr_init_weight,
    .reference = {.forward = plain_forward, .backward = plain_backward},
};
