/* SPDX-License-Identifier: Apache-2.0 */
/* Written for the C API of oneDNN 2.6 (Debian 12). Version 3 drops the operation descriptors and
 * makes memory descriptors opaque: the constructors below are what changes then. */
#include "nn/onednn.h"

#include "base/fail.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

struct gr_layout {
    dnnl_memory_desc_t desc;
    gr_layout *next;
};

struct gr_dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr;      /* scratch memory is ours */
    dnnl_primitive_attr_t attr_relu; /* the same, and a ReLU behind the operation */
    dnnl_post_ops_t relu;
    gr_layout *layouts;
};

struct gr_dnn_op {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    const gr_layout *layout[GR_SLOTS];
    dnnl_memory_t memory[GR_SLOTS];
    const void *bound[GR_SLOTS];
    int arg_count;
    dnnl_exec_arg_t args[GR_SLOTS];
};

/* Which argument of the library a slot is, and how to ask a primitive for its layout. */
typedef struct slot_rule {
    gr_slot slot;
    int arg;
    dnnl_query_t query;
    int index;
} slot_rule;

static gr_status dnn_fail(gr_diag *diag, dnnl_status_t status, const char *what)
{
    switch (status) {
    case dnnl_success:
        return GR_OK;
    case dnnl_out_of_memory:
        return gr_fail(diag, GR_E_NO_MEMORY, "oneDNN has no memory for %s", what);
    case dnnl_unimplemented:
        return gr_fail(diag, GR_E_UNSUPPORTED,
                       "this build of oneDNN has no kernel for %s on this processor", what);
    default:
        return gr_fail(diag, GR_E_BUG, "oneDNN refused %s (its status %d)", what, (int)status);
    }
}

gr_status gr_dnn_create(gr_dnn **dnn_out, gr_diag *diag)
{
    gr_dnn *dnn = calloc(1, sizeof *dnn);
    if (!dnn) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the engine");
    }
    dnnl_status_t status = dnnl_engine_create(&dnn->engine, dnnl_cpu, 0);
    if (status == dnnl_success) {
        status = dnnl_stream_create(&dnn->stream, dnn->engine, dnnl_stream_default_flags);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_create(&dnn->attr);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_scratchpad_mode(dnn->attr, dnnl_scratchpad_mode_user);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_clone(&dnn->attr_relu, dnn->attr);
    }
    if (status == dnnl_success) {
        status = dnnl_post_ops_create(&dnn->relu);
    }
    if (status == dnnl_success) {
        status = dnnl_post_ops_append_eltwise(dnn->relu, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
    }
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_post_ops(dnn->attr_relu, dnn->relu);
    }
    if (status != dnnl_success) {
        gr_dnn_destroy(dnn);
        return dnn_fail(diag, status, "its start");
    }
    *dnn_out = dnn;
    return GR_OK;
}

void gr_dnn_destroy(gr_dnn *dnn)
{
    if (!dnn) {
        return;
    }
    while (dnn->layouts) {
        gr_layout *layout = dnn->layouts;
        dnn->layouts = layout->next;
        free(layout);
    }
    if (dnn->relu) {
        dnnl_post_ops_destroy(dnn->relu);
    }
    if (dnn->attr_relu) {
        dnnl_primitive_attr_destroy(dnn->attr_relu);
    }
    if (dnn->attr) {
        dnnl_primitive_attr_destroy(dnn->attr);
    }
    if (dnn->stream) {
        dnnl_stream_destroy(dnn->stream);
    }
    if (dnn->engine) {
        dnnl_engine_destroy(dnn->engine);
    }
    free(dnn);
}

/* ---- Layouts --------------------------------------------------------------------------------- */

static const gr_layout *layout_keep(gr_dnn *dnn, const dnnl_memory_desc_t *desc)
{
    for (const gr_layout *layout = dnn->layouts; layout; layout = layout->next) {
        if (dnnl_memory_desc_equal(&layout->desc, desc)) {
            return layout;
        }
    }
    gr_layout *layout = calloc(1, sizeof *layout);
    if (layout) {
        layout->desc = *desc;
        layout->next = dnn->layouts;
        dnn->layouts = layout;
    }
    return layout;
}

static dnnl_memory_desc_t desc_make(int dims, const dnnl_dims_t dim, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t desc;
    memset(&desc, 0, sizeof desc);
    /* Fails only for impossible sizes, which the reader of the job file refused. */
    if (dnnl_memory_desc_init_by_tag(&desc, dims, dim, dnnl_f32, tag) != dnnl_success) {
        memset(&desc, 0, sizeof desc);
    }
    return desc;
}

static dnnl_memory_desc_t desc_1d(int64_t count)
{
    return desc_make(1, (const dnnl_dims_t){count}, dnnl_a);
}

static dnnl_memory_desc_t desc_2d(int64_t rows, int64_t columns, dnnl_format_tag_t tag)
{
    return desc_make(2, (const dnnl_dims_t){rows, columns}, tag);
}

static dnnl_memory_desc_t desc_4d(int64_t a, int64_t b, int64_t c, int64_t d, dnnl_format_tag_t tag)
{
    return desc_make(4, (const dnnl_dims_t){a, b, c, d}, tag);
}

const gr_layout *gr_layout_plain(gr_dnn *dnn, int64_t batch, const gr_shape *shape)
{
    dnnl_memory_desc_t desc =
        shape->dims == 1 ? desc_2d(batch, shape->dim[0], dnnl_ab)
                         : desc_4d(batch, shape->dim[0], shape->dim[1], shape->dim[2], dnnl_abcd);
    return layout_keep(dnn, &desc);
}

const gr_layout *gr_layout_blocked(gr_dnn *dnn, int64_t batch, const gr_shape *shape, size_t block)
{
    dnnl_memory_desc_t desc =
        desc_4d(batch, shape->dim[0], shape->dim[1], shape->dim[2],
                block == 16 ? dnnl_aBcd16b : (block == 8 ? dnnl_aBcd8b : dnnl_abcd));
    return layout_keep(dnn, &desc);
}

const gr_layout *gr_layout_conv_weights(gr_dnn *dnn, const gr_conv_shape *shape)
{
    dnnl_memory_desc_t desc =
        desc_4d(shape->channels_out, shape->channels_in, shape->kernel, shape->kernel, dnnl_abcd);
    return layout_keep(dnn, &desc);
}

bool gr_layout_equal(const gr_layout *a, const gr_layout *b)
{
    return a == b || dnnl_memory_desc_equal(&a->desc, &b->desc);
}

size_t gr_layout_block(const gr_layout *layout)
{
    static const struct {
        dnnl_format_tag_t tag;
        size_t block;
    } known[] = {{dnnl_aBcd16b, 16}, {dnnl_aBcd8b, 8}, {dnnl_abcd, 1}};
    for (size_t i = 0; layout->desc.ndims == 4 && i < sizeof known / sizeof known[0]; i++) {
        dnnl_memory_desc_t desc = desc_make(4, layout->desc.dims, known[i].tag);
        if (dnnl_memory_desc_equal(&layout->desc, &desc)) {
            return known[i].block;
        }
    }
    return 0;
}

size_t gr_layout_bytes(const gr_layout *layout)
{
    return dnnl_memory_desc_get_size(&layout->desc);
}

/* ---- Operations ------------------------------------------------------------------------------ */

void gr_dnn_op_destroy(gr_dnn_op *op)
{
    if (!op) {
        return;
    }
    for (int slot = 0; slot < GR_SLOTS; slot++) {
        if (op->memory[slot]) {
            dnnl_memory_destroy(op->memory[slot]);
        }
    }
    if (op->primitive) {
        dnnl_primitive_destroy(op->primitive);
    }
    if (op->pd) {
        dnnl_primitive_desc_destroy(op->pd);
    }
    free(op);
}

static dnnl_status_t op_add(gr_dnn *dnn, gr_dnn_op *op, gr_slot slot, int arg,
                            const dnnl_memory_desc_t *desc)
{
    if (!desc || dnnl_memory_desc_get_size(desc) == 0) {
        return dnnl_success;
    }
    op->layout[slot] = layout_keep(dnn, desc);
    if (!op->layout[slot]) {
        return dnnl_out_of_memory;
    }
    dnnl_status_t status =
        dnnl_memory_create(&op->memory[slot], desc, dnn->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success) {
        op->args[op->arg_count].arg = arg;
        op->args[op->arg_count].memory = op->memory[slot];
        op->arg_count++;
    }
    return status;
}

/* Takes `pd` over, also when it fails. The vectors of batch norm have no query: `vectors` of
 * `channels` values each. */
static gr_status op_make(gr_dnn *dnn, dnnl_primitive_desc_t pd, const slot_rule *rules,
                         int64_t channels, const char *what, gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_op *op = calloc(1, sizeof *op);
    if (!op) {
        dnnl_primitive_desc_destroy(pd);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", what);
    }
    op->pd = pd;
    dnnl_status_t status = dnnl_primitive_create(&op->primitive, pd);
    dnnl_memory_desc_t vector = desc_1d(channels > 0 ? channels : 1);
    for (; status == dnnl_success && rules->arg; rules++) {
        const dnnl_memory_desc_t *desc =
            rules->query == dnnl_query_undef
                ? &vector
                : dnnl_primitive_desc_query_md(pd, rules->query, rules->index);
        status = op_add(dnn, op, rules->slot, rules->arg, desc);
    }
    if (status == dnnl_success) {
        status = op_add(dnn, op, GR_SLOT_SCRATCH, DNNL_ARG_SCRATCHPAD,
                        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    }
    if (status != dnnl_success) {
        gr_dnn_op_destroy(op);
        return dnn_fail(diag, status, what);
    }
    *op_out = op;
    return GR_OK;
}

const gr_layout *gr_dnn_op_layout(const gr_dnn_op *op, gr_slot slot)
{
    return op->layout[slot];
}

size_t gr_dnn_op_bytes(const gr_dnn_op *op, gr_slot slot)
{
    return op && op->layout[slot] ? gr_layout_bytes(op->layout[slot]) : 0;
}

void gr_dnn_op_bind(gr_dnn_op *op, gr_slot slot, const void *data)
{
    if (!op->memory[slot] || op->bound[slot] == data) {
        return;
    }
    /* The library writes only to outputs; its interface knows no const. It cannot fail for a memory
     * object that exists. */
    union {
        const void *in;
        void *out;
    } handle = {.in = data};
    GR_CHECK(dnnl_memory_set_data_handle(op->memory[slot], handle.out) == dnnl_success);
    op->bound[slot] = data;
}

gr_status gr_dnn_op_run(gr_dnn *dnn, gr_dnn_op *op, gr_diag *diag)
{
    dnnl_status_t status =
        dnnl_primitive_execute(op->primitive, dnn->stream, op->arg_count, op->args);
    return status == dnnl_success ? GR_OK : dnn_fail(diag, status, "to run a kernel");
}

gr_status gr_dnn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                       int64_t ldc, gr_diag *diag)
{
    dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                      1.0f, a, lda, b, ldb, 0.0f, c, ldc);
    return status == dnnl_success ? GR_OK : dnn_fail(diag, status, "a matrix product");
}

gr_status gr_dnn_linear_forward(gr_dnn *dnn, int64_t batch, int64_t in, int64_t out, bool bias,
                                bool relu, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {{GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {GR_SLOT_WEIGHTS, DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                                      {GR_SLOT_BIAS, DNNL_ARG_BIAS, dnnl_query_weights_md, 1},
                                      {GR_SLOT_DST, DNNL_ARG_DST, dnnl_query_dst_md, 0},
                                      {0, 0, 0, 0}};
    dnnl_memory_desc_t src = desc_2d(batch, in, dnnl_ab), weights = desc_2d(in, out, dnnl_ba);
    dnnl_memory_desc_t bias_desc = desc_2d(1, out, dnnl_ab), dst = desc_2d(batch, out, dnnl_ab);
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        dnnl_matmul_desc_init(&desc, &src, &weights, bias ? &bias_desc : NULL, &dst);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, relu ? dnn->attr_relu : dnn->attr,
                                            dnn->engine, NULL);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "a linear layer");
    }
    return op_make(dnn, pd, rules, 0, "a linear layer", op_out, diag);
}

typedef struct conv_geometry {
    dnnl_dims_t stride, padding;
} conv_geometry;

static conv_geometry geometry_of(const gr_conv_shape *shape)
{
    conv_geometry geometry = {.stride = {shape->stride, shape->stride},
                              .padding = {shape->padding, shape->padding}};
    return geometry;
}

/* What the last window needs behind the image; less than nothing where windows end before it. */
static void padding_behind(const gr_conv_shape *shape, dnnl_dims_t behind_out)
{
    behind_out[0] =
        (shape->height_out - 1) * shape->stride + shape->kernel - shape->height_in - shape->padding;
    behind_out[1] =
        (shape->width_out - 1) * shape->stride + shape->kernel - shape->width_in - shape->padding;
}

gr_status gr_dnn_conv_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool relu,
                              gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {{GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {GR_SLOT_WEIGHTS, DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
                                      {GR_SLOT_BIAS, DNNL_ARG_BIAS, dnnl_query_weights_md, 1},
                                      {GR_SLOT_DST, DNNL_ARG_DST, dnnl_query_dst_md, 0},
                                      {0, 0, 0, 0}};
    dnnl_memory_desc_t src = desc_4d(shape->batch, shape->channels_in, shape->height_in,
                                     shape->width_in, dnnl_format_tag_any);
    dnnl_memory_desc_t weights = desc_4d(shape->channels_out, shape->channels_in, shape->kernel,
                                         shape->kernel, dnnl_format_tag_any);
    dnnl_memory_desc_t bias = desc_1d(shape->channels_out);
    dnnl_memory_desc_t dst = desc_4d(shape->batch, shape->channels_out, shape->height_out,
                                     shape->width_out, dnnl_format_tag_any);
    conv_geometry geometry = geometry_of(shape);
    dnnl_dims_t behind = {0};
    padding_behind(shape, behind);
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_convolution_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_convolution_direct, &src, &weights,
        shape->bias ? &bias : NULL, &dst, geometry.stride, geometry.padding, behind);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, relu ? dnn->attr_relu : dnn->attr,
                                            dnn->engine, NULL);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "a convolution");
    }
    return op_make(dnn, pd, rules, 0, "a convolution", op_out, diag);
}

gr_status gr_dnn_conv_backward_data(gr_dnn *dnn, const gr_conv_shape *shape,
                                    const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_DIFF_SRC, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
        {GR_SLOT_WEIGHTS, DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
        {GR_SLOT_DIFF_DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
        {0, 0, 0, 0}};
    dnnl_memory_desc_t weights = desc_4d(shape->channels_out, shape->channels_in, shape->kernel,
                                         shape->kernel, dnnl_format_tag_any);
    conv_geometry geometry = geometry_of(shape);
    dnnl_dims_t behind = {0};
    padding_behind(shape, behind);
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_convolution_backward_data_desc_init(
        &desc, dnnl_convolution_direct, &forward->layout[GR_SLOT_SRC]->desc, &weights,
        &forward->layout[GR_SLOT_DST]->desc, geometry.stride, geometry.padding, behind);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, forward->pd);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "a convolution's backward pass");
    }
    return op_make(dnn, pd, rules, 0, "a convolution's backward pass", op_out, diag);
}

gr_status gr_dnn_conv_backward_weights(gr_dnn *dnn, const gr_conv_shape *shape,
                                       const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
        {GR_SLOT_DIFF_WEIGHTS, DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0},
        {GR_SLOT_DIFF_BIAS, DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1},
        {GR_SLOT_DIFF_DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
        {0, 0, 0, 0}};
    dnnl_memory_desc_t weights = desc_4d(shape->channels_out, shape->channels_in, shape->kernel,
                                         shape->kernel, dnnl_format_tag_any);
    dnnl_memory_desc_t bias = desc_1d(shape->channels_out);
    conv_geometry geometry = geometry_of(shape);
    dnnl_dims_t behind = {0};
    padding_behind(shape, behind);
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_convolution_backward_weights_desc_init(
        &desc, dnnl_convolution_direct, &forward->layout[GR_SLOT_SRC]->desc, &weights,
        shape->bias ? &bias : NULL, &forward->layout[GR_SLOT_DST]->desc, geometry.stride,
        geometry.padding, behind);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, forward->pd);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "a convolution's backward pass");
    }
    return op_make(dnn, pd, rules, 0, "a convolution's backward pass", op_out, diag);
}

gr_status gr_dnn_pool_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                              const gr_layout *src, bool training, gr_dnn_op **op_out,
                              gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
        {GR_SLOT_DST, DNNL_ARG_DST, dnnl_query_dst_md, 0},
        {GR_SLOT_WORKSPACE, DNNL_ARG_WORKSPACE, dnnl_query_workspace_md, 0},
        {0, 0, 0, 0}};
    dnnl_memory_desc_t dst = desc_4d(shape->batch, shape->channels_out, shape->height_out,
                                     shape->width_out, dnnl_format_tag_any);
    conv_geometry geometry = geometry_of(shape);
    dnnl_dims_t behind = {0}, kernel = {shape->kernel, shape->kernel};
    padding_behind(shape, behind);
    dnnl_pooling_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_pooling_forward_desc_init(
        &desc, training ? dnnl_forward_training : dnnl_forward_inference,
        max ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding, &src->desc, &dst,
        geometry.stride, kernel, geometry.padding, behind);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, NULL);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "pooling");
    }
    return op_make(dnn, pd, rules, 0, "pooling", op_out, diag);
}

gr_status gr_dnn_pool_backward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                               const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_DIFF_SRC, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
        {GR_SLOT_DIFF_DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
        {GR_SLOT_WORKSPACE, DNNL_ARG_WORKSPACE, dnnl_query_workspace_md, 0},
        {0, 0, 0, 0}};
    conv_geometry geometry = geometry_of(shape);
    dnnl_dims_t behind = {0}, kernel = {shape->kernel, shape->kernel};
    padding_behind(shape, behind);
    dnnl_pooling_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_pooling_backward_desc_init(
        &desc, max ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding,
        &forward->layout[GR_SLOT_SRC]->desc, &forward->layout[GR_SLOT_DST]->desc, geometry.stride,
        kernel, geometry.padding, behind);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, forward->pd);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "pooling's backward pass");
    }
    return op_make(dnn, pd, rules, 0, "pooling's backward pass", op_out, diag);
}

gr_status gr_dnn_norm_forward(gr_dnn *dnn, const gr_layout *data, int64_t channels, float epsilon,
                              bool running, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {{GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {GR_SLOT_DST, DNNL_ARG_DST, dnnl_query_dst_md, 0},
                                      {GR_SLOT_MEAN, DNNL_ARG_MEAN, dnnl_query_undef, 0},
                                      {GR_SLOT_VARIANCE, DNNL_ARG_VARIANCE, dnnl_query_undef, 0},
                                      {GR_SLOT_SCALE, DNNL_ARG_SCALE, dnnl_query_undef, 0},
                                      {GR_SLOT_SHIFT, DNNL_ARG_SHIFT, dnnl_query_undef, 0},
                                      {0, 0, 0, 0}};
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    dnnl_batch_normalization_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_batch_normalization_forward_desc_init(
        &desc, running ? dnnl_forward_inference : dnnl_forward_training, &data->desc, epsilon,
        running ? flags | dnnl_use_global_stats : flags);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, NULL);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "batch norm");
    }
    return op_make(dnn, pd, rules, channels, "batch norm", op_out, diag);
}

gr_status gr_dnn_norm_backward(gr_dnn *dnn, const gr_dnn_op *forward, int64_t channels,
                               float epsilon, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
        {GR_SLOT_DIFF_SRC, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
        {GR_SLOT_DIFF_DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
        {GR_SLOT_MEAN, DNNL_ARG_MEAN, dnnl_query_undef, 0},
        {GR_SLOT_VARIANCE, DNNL_ARG_VARIANCE, dnnl_query_undef, 0},
        {GR_SLOT_SCALE, DNNL_ARG_SCALE, dnnl_query_undef, 0},
        {GR_SLOT_SHIFT, DNNL_ARG_SHIFT, dnnl_query_undef, 0}, /* not read, but asked for */
        {GR_SLOT_DIFF_SCALE, DNNL_ARG_DIFF_SCALE, dnnl_query_undef, 0},
        {GR_SLOT_DIFF_SHIFT, DNNL_ARG_DIFF_SHIFT, dnnl_query_undef, 0},
        {0, 0, 0, 0}};
    const dnnl_memory_desc_t *data = &forward->layout[GR_SLOT_SRC]->desc;
    dnnl_batch_normalization_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_batch_normalization_backward_desc_init(
        &desc, dnnl_backward, data, data, epsilon, dnnl_use_scale | dnnl_use_shift);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, forward->pd);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "batch norm's backward pass");
    }
    return op_make(dnn, pd, rules, channels, "batch norm's backward pass", op_out, diag);
}

gr_status gr_dnn_gelu_forward(gr_dnn *dnn, const gr_layout *data, gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {{GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
                                      {GR_SLOT_DST, DNNL_ARG_DST, dnnl_query_dst_md, 0},
                                      {0, 0, 0, 0}};
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_eltwise_forward_desc_init(
        &desc, dnnl_forward_training, dnnl_eltwise_gelu_erf, &data->desc, 0.0f, 0.0f);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, NULL);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "GELU");
    }
    return op_make(dnn, pd, rules, 0, "GELU", op_out, diag);
}

gr_status gr_dnn_gelu_backward(gr_dnn *dnn, const gr_dnn_op *forward, gr_dnn_op **op_out,
                               gr_diag *diag)
{
    static const slot_rule rules[] = {
        {GR_SLOT_SRC, DNNL_ARG_SRC, dnnl_query_src_md, 0},
        {GR_SLOT_DIFF_SRC, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
        {GR_SLOT_DIFF_DST, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
        {0, 0, 0, 0}};
    const dnnl_memory_desc_t *data = &forward->layout[GR_SLOT_SRC]->desc;
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        dnnl_eltwise_backward_desc_init(&desc, dnnl_eltwise_gelu_erf, data, data, 0.0f, 0.0f);
    if (status == dnnl_success) {
        status = dnnl_primitive_desc_create(&pd, &desc, dnn->attr, dnn->engine, forward->pd);
    }
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "GELU's backward pass");
    }
    return op_make(dnn, pd, rules, 0, "GELU's backward pass", op_out, diag);
}

gr_status gr_dnn_reorder(gr_dnn *dnn, const gr_layout *src, const gr_layout *dst,
                         gr_dnn_op **op_out, gr_diag *diag)
{
    static const slot_rule rules[] = {{GR_SLOT_SRC, DNNL_ARG_FROM, dnnl_query_src_md, 0},
                                      {GR_SLOT_DST, DNNL_ARG_TO, dnnl_query_dst_md, 0},
                                      {0, 0, 0, 0}};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(&pd, &src->desc, dnn->engine,
                                                              &dst->desc, dnn->engine, dnn->attr);
    if (status != dnnl_success) {
        return dnn_fail(diag, status, "a change of layout");
    }
    return op_make(dnn, pd, rules, 0, "a change of layout", op_out, diag);
}
