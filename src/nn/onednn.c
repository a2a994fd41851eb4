/* SPDX-License-Identifier: Apache-2.0 */
/* Written for the C APIs of oneDNN 2 and 3: what differs stands behind onednn_version.h. */
#include "nn/onednn.h"

#include "base/fail.h"
#include "nn/onednn_version.h"

#include <stdlib.h>

struct gr_layout {
    gr_dnn_desc *desc;
    size_t block; /* see gr_layout_block */
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

/* Which argument of the library each slot is, and how to ask a primitive for its layout; batch
 * norm's vectors have no query. */
static const struct {
    int arg;
    dnnl_query_t query;
    int index;
} slot_rules[GR_SLOTS] = {
    [GR_SLOT_SRC] = {DNNL_ARG_SRC, dnnl_query_src_md, 0}, /* and DNNL_ARG_FROM, which is the same */
    [GR_SLOT_WEIGHTS] = {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
    [GR_SLOT_BIAS] = {DNNL_ARG_BIAS, dnnl_query_weights_md, 1},
    [GR_SLOT_DST] = {DNNL_ARG_DST, dnnl_query_dst_md, 0}, /* and DNNL_ARG_TO */
    [GR_SLOT_DIFF_SRC] = {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
    [GR_SLOT_DIFF_WEIGHTS] = {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0},
    [GR_SLOT_DIFF_BIAS] = {DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1},
    [GR_SLOT_DIFF_DST] = {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
    [GR_SLOT_MEAN] = {DNNL_ARG_MEAN, dnnl_query_undef, 0},
    [GR_SLOT_VARIANCE] = {DNNL_ARG_VARIANCE, dnnl_query_undef, 0},
    [GR_SLOT_SCALE] = {DNNL_ARG_SCALE, dnnl_query_undef, 0},
    [GR_SLOT_SHIFT] = {DNNL_ARG_SHIFT, dnnl_query_undef, 0},
    [GR_SLOT_DIFF_SCALE] = {DNNL_ARG_DIFF_SCALE, dnnl_query_undef, 0},
    [GR_SLOT_DIFF_SHIFT] = {DNNL_ARG_DIFF_SHIFT, dnnl_query_undef, 0},
    [GR_SLOT_WORKSPACE] = {DNNL_ARG_WORKSPACE, dnnl_query_workspace_md, 0},
    [GR_SLOT_SCRATCH] = {DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md, 0},
};
_Static_assert(DNNL_ARG_FROM == DNNL_ARG_SRC && DNNL_ARG_TO == DNNL_ARG_DST, "one table for all");
#define SLOT(name) (UINT32_C(1) << GR_SLOT_##name)

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
        status = gr_dnn_append_relu(dnn->relu);
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
        gr_dnn_desc_destroy(layout->desc);
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

/* Writes 0 for layouts that gr_layout_block does not know. Returns false without memory. */
static bool find_block(const gr_dnn_desc *desc, size_t *block_out)
{
    static const struct {
        dnnl_format_tag_t tag;
        size_t block;
    } known[] = {{dnnl_aBcd16b, 16}, {dnnl_aBcd8b, 8}, {dnnl_abcd, 1}};
    dnnl_dims_t dim = {0};
    int dims = gr_dnn_desc_dims(desc, dim);
    *block_out = 0;
    for (size_t i = 0; dims == 4 && *block_out == 0 && i < sizeof known / sizeof known[0]; i++) {
        gr_dnn_desc *other = NULL;
        if (gr_dnn_desc_create(4, dim, known[i].tag, &other) != dnnl_success) {
            return false;
        }
        if (dnnl_memory_desc_equal(desc, other)) {
            *block_out = known[i].block;
        }
        gr_dnn_desc_destroy(other);
    }
    return true;
}

/* Takes over `desc`. Returns the layout that is equal to it, a new one if there is none; NULL
 * without memory. */
static const gr_layout *layout_take(gr_dnn *dnn, gr_dnn_desc *desc)
{
    for (const gr_layout *layout = dnn->layouts; layout; layout = layout->next) {
        if (dnnl_memory_desc_equal(layout->desc, desc)) {
            gr_dnn_desc_destroy(desc);
            return layout;
        }
    }
    gr_layout *layout = calloc(1, sizeof *layout);
    if (!layout || !find_block(desc, &layout->block)) {
        free(layout);
        gr_dnn_desc_destroy(desc);
        return NULL;
    }
    layout->desc = desc;
    layout->next = dnn->layouts;
    dnn->layouts = layout;
    return layout;
}

/* Fails only without memory: the reader of the job file has refused impossible sizes. */
static const gr_layout *layout_make(gr_dnn *dnn, int dims, const dnnl_dims_t dim,
                                    dnnl_format_tag_t tag)
{
    gr_dnn_desc *desc = NULL;
    return gr_dnn_desc_create(dims, dim, tag, &desc) == dnnl_success ? layout_take(dnn, desc)
                                                                     : NULL;
}

/* The three below write a descriptor that lives as long as `dnn`; they return false without
 * memory. */
static bool desc_1d(gr_dnn *dnn, int64_t count, const gr_dnn_desc **desc_out)
{
    const gr_layout *layout = layout_make(dnn, 1, (const dnnl_dims_t){count}, dnnl_a);
    *desc_out = layout ? layout->desc : NULL;
    return layout;
}

static bool desc_2d(gr_dnn *dnn, int64_t rows, int64_t columns, dnnl_format_tag_t tag,
                    const gr_dnn_desc **desc_out)
{
    const gr_layout *layout = layout_make(dnn, 2, (const dnnl_dims_t){rows, columns}, tag);
    *desc_out = layout ? layout->desc : NULL;
    return layout;
}

/* Four dimensions in a layout that the primitive chooses. */
static bool desc_any(gr_dnn *dnn, int64_t a, int64_t b, int64_t c, int64_t d,
                     const gr_dnn_desc **desc_out)
{
    const gr_layout *layout =
        layout_make(dnn, 4, (const dnnl_dims_t){a, b, c, d}, dnnl_format_tag_any);
    *desc_out = layout ? layout->desc : NULL;
    return layout;
}

const gr_layout *gr_layout_plain(gr_dnn *dnn, int64_t batch, const gr_shape *shape)
{
    static const dnnl_format_tag_t tags[] = {dnnl_a,     dnnl_ab,     dnnl_abc,     dnnl_abcd,
                                             dnnl_abcde, dnnl_abcdef, dnnl_abcdefg, dnnl_abcdefgh};
    _Static_assert(sizeof tags / sizeof tags[0] == GR_DIMS_MAX,
                   "a tag for the batch and all others");
    dnnl_dims_t dim = {batch};
    for (int i = 0; i < shape->dims; i++) {
        dim[i + 1] = shape->dim[i];
    }
    return layout_make(dnn, shape->dims + 1, dim, tags[shape->dims]);
}

const gr_layout *gr_layout_blocked(gr_dnn *dnn, int64_t batch, const gr_shape *shape, size_t block)
{
    const dnnl_dims_t dim = {batch, shape->dim[0], shape->dim[1], shape->dim[2]};
    return layout_make(dnn, 4, dim,
                       block == 16 ? dnnl_aBcd16b : (block == 8 ? dnnl_aBcd8b : dnnl_abcd));
}

const gr_layout *gr_layout_conv_weights(gr_dnn *dnn, const gr_conv_shape *shape)
{
    const dnnl_dims_t dim = {shape->channels_out, shape->channels_in, shape->kernel, shape->kernel};
    return layout_make(dnn, 4, dim, dnnl_abcd);
}

bool gr_layout_equal(const gr_layout *a, const gr_layout *b)
{
    return a == b || dnnl_memory_desc_equal(a->desc, b->desc);
}

size_t gr_layout_block(const gr_layout *layout)
{
    return layout->block;
}

size_t gr_layout_bytes(const gr_layout *layout)
{
    return dnnl_memory_desc_get_size(layout->desc);
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
                            const gr_dnn_desc *desc)
{
    if (!desc || dnnl_memory_desc_get_size(desc) == 0) {
        return dnnl_success;
    }
    gr_dnn_desc *own = NULL;
    dnnl_status_t status = gr_dnn_desc_clone(desc, &own);
    if (status != dnnl_success) {
        return status;
    }
    op->layout[slot] = layout_take(dnn, own);
    if (!op->layout[slot]) {
        return dnnl_out_of_memory;
    }
    status = dnnl_memory_create(&op->memory[slot], op->layout[slot]->desc, dnn->engine,
                                DNNL_MEMORY_NONE);
    if (status == dnnl_success) {
        op->args[op->arg_count].arg = arg;
        op->args[op->arg_count].memory = op->memory[slot];
        op->arg_count++;
    }
    return status;
}

/* Adds the memory objects of the slots. Each vector of batch norm has `channels` values. */
static dnnl_status_t op_fill(gr_dnn *dnn, gr_dnn_op *op, uint32_t slots, int64_t channels)
{
    const gr_dnn_desc *vector = NULL;
    if (channels > 0 && !desc_1d(dnn, channels, &vector)) {
        return dnnl_out_of_memory;
    }
    dnnl_status_t status = dnnl_success;
    for (int slot = 0; slot < GR_SLOTS && status == dnnl_success; slot++) {
        dnnl_query_t query = slot_rules[slot].query;
        if ((slots >> slot & 1) != 0) {
            status =
                op_add(dnn, op, (gr_slot)slot, slot_rules[slot].arg,
                       query == dnnl_query_undef
                           ? vector
                           : dnnl_primitive_desc_query_md(op->pd, query, slot_rules[slot].index));
        }
    }
    return status;
}

/* `status` is the result of making `pd`, which is taken over. Each operation has scratch memory. */
static gr_status op_make(gr_dnn *dnn, dnnl_status_t status, dnnl_primitive_desc_t pd,
                         uint32_t slots, int64_t channels, const char *what, gr_dnn_op **op_out,
                         gr_diag *diag)
{
    if (status != dnnl_success) {
        return dnn_fail(diag, status, what);
    }
    gr_dnn_op *op = calloc(1, sizeof *op);
    if (!op) {
        dnnl_primitive_desc_destroy(pd);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s", what);
    }
    op->pd = pd;
    status = dnnl_primitive_create(&op->primitive, pd);
    if (status == dnnl_success) {
        status = op_fill(dnn, op, slots | SLOT(SCRATCH), channels);
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
    gr_dnn_tensors on = {.engine = dnn->engine, .attr = relu ? dnn->attr_relu : dnn->attr};
    bool made = desc_2d(dnn, batch, in, dnnl_ab, &on.src) &&
                desc_2d(dnn, in, out, dnnl_ba, &on.weights) &&
                (!bias || desc_2d(dnn, 1, out, dnnl_ab, &on.bias)) &&
                desc_2d(dnn, batch, out, dnnl_ab, &on.dst);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = made ? gr_dnn_matmul(&on, &pd) : dnnl_out_of_memory;
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(WEIGHTS) | SLOT(BIAS) | SLOT(DST), 0,
                   "a linear layer", op_out, diag);
}

static gr_dnn_windows windows_of(const gr_conv_shape *shape)
{
    gr_dnn_windows windows = {.kernel = {shape->kernel, shape->kernel},
                              .stride = {shape->stride, shape->stride},
                              .before = {shape->padding, shape->padding}};
    /* What the last window needs behind the image; negative where windows end before its edge. */
    windows.behind[0] =
        (shape->height_out - 1) * shape->stride + shape->kernel - shape->height_in - shape->padding;
    windows.behind[1] =
        (shape->width_out - 1) * shape->stride + shape->kernel - shape->width_in - shape->padding;
    return windows;
}

static bool conv_weights(gr_dnn *dnn, const gr_conv_shape *shape, gr_dnn_tensors *on)
{
    return desc_any(dnn, shape->channels_out, shape->channels_in, shape->kernel, shape->kernel,
                    &on->weights) &&
           (!shape->bias || desc_1d(dnn, shape->channels_out, &on->bias));
}

/* What a backward pass shares with its forward pass: the layouts of data and where it was made. */
static gr_dnn_tensors back_of(gr_dnn *dnn, const gr_dnn_op *forward)
{
    return (gr_dnn_tensors){.src = forward->layout[GR_SLOT_SRC]->desc,
                            .dst = forward->layout[GR_SLOT_DST]->desc,
                            .engine = dnn->engine,
                            .attr = dnn->attr,
                            .forward = forward->pd};
}

gr_status gr_dnn_conv_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool relu,
                              gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_tensors on = {.engine = dnn->engine, .attr = relu ? dnn->attr_relu : dnn->attr};
    bool made = desc_any(dnn, shape->batch, shape->channels_in, shape->height_in, shape->width_in,
                         &on.src) &&
                conv_weights(dnn, shape, &on) &&
                desc_any(dnn, shape->batch, shape->channels_out, shape->height_out,
                         shape->width_out, &on.dst);
    gr_dnn_windows windows = windows_of(shape);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = made ? gr_dnn_convolution(&on, &windows, &pd) : dnnl_out_of_memory;
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(WEIGHTS) | SLOT(BIAS) | SLOT(DST), 0,
                   "a convolution", op_out, diag);
}

/* Either half of the backward pass, as `make` describes it. */
static gr_status conv_backward(gr_dnn *dnn, const gr_conv_shape *shape, const gr_dnn_op *forward,
                               dnnl_status_t (*make)(const gr_dnn_tensors *on,
                                                     const gr_dnn_windows *windows,
                                                     dnnl_primitive_desc_t *pd_out),
                               uint32_t slots, gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_tensors on = back_of(dnn, forward);
    gr_dnn_windows windows = windows_of(shape);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        conv_weights(dnn, shape, &on) ? make(&on, &windows, &pd) : dnnl_out_of_memory;
    return op_make(dnn, status, pd, slots, 0, "a convolution's backward pass", op_out, diag);
}

gr_status gr_dnn_conv_backward_data(gr_dnn *dnn, const gr_conv_shape *shape,
                                    const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    return conv_backward(dnn, shape, forward, gr_dnn_convolution_data,
                         SLOT(DIFF_SRC) | SLOT(WEIGHTS) | SLOT(DIFF_DST), op_out, diag);
}

gr_status gr_dnn_conv_backward_weights(gr_dnn *dnn, const gr_conv_shape *shape,
                                       const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    return conv_backward(dnn, shape, forward, gr_dnn_convolution_weights,
                         SLOT(SRC) | SLOT(DIFF_WEIGHTS) | SLOT(DIFF_BIAS) | SLOT(DIFF_DST), op_out,
                         diag);
}

gr_status gr_dnn_pool_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                              const gr_layout *src, bool training, gr_dnn_op **op_out,
                              gr_diag *diag)
{
    gr_dnn_tensors on = {.src = src->desc, .engine = dnn->engine, .attr = dnn->attr};
    bool made = desc_any(dnn, shape->batch, shape->channels_out, shape->height_out,
                         shape->width_out, &on.dst);
    gr_dnn_windows windows = windows_of(shape);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        made ? gr_dnn_pooling(&on, &windows,
                              training ? dnnl_forward_training : dnnl_forward_inference,
                              max ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding, &pd)
             : dnnl_out_of_memory;
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(DST) | SLOT(WORKSPACE), 0, "pooling", op_out,
                   diag);
}

gr_status gr_dnn_pool_backward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                               const gr_dnn_op *forward, gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_tensors on = back_of(dnn, forward);
    gr_dnn_windows windows = windows_of(shape);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = gr_dnn_pooling_back(
        &on, &windows, max ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding, &pd);
    return op_make(dnn, status, pd, SLOT(DIFF_SRC) | SLOT(DIFF_DST) | SLOT(WORKSPACE), 0,
                   "pooling's backward pass", op_out, diag);
}

gr_status gr_dnn_norm_forward(gr_dnn *dnn, const gr_layout *data, int64_t channels, float epsilon,
                              bool running, gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_tensors on = {.src = data->desc, .engine = dnn->engine, .attr = dnn->attr};
    unsigned flags = dnnl_use_scale | dnnl_use_shift;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        gr_dnn_batch_norm(&on, running ? dnnl_forward_inference : dnnl_forward_training, epsilon,
                          running ? flags | dnnl_use_global_stats : flags, &pd);
    return op_make(dnn, status, pd,
                   SLOT(SRC) | SLOT(DST) | SLOT(MEAN) | SLOT(VARIANCE) | SLOT(SCALE) | SLOT(SHIFT),
                   channels, "batch norm", op_out, diag);
}

gr_status gr_dnn_norm_backward(gr_dnn *dnn, const gr_dnn_op *forward, int64_t channels,
                               float epsilon, gr_dnn_op **op_out, gr_diag *diag)
{
    uint32_t slots = SLOT(SRC) | SLOT(DIFF_SRC) | SLOT(DIFF_DST) | SLOT(MEAN) | SLOT(VARIANCE) |
                     SLOT(SCALE) | SLOT(DIFF_SCALE) | SLOT(DIFF_SHIFT);
#if DNNL_VERSION_MAJOR == 2 /* demands this argument without reading it; version 3 refuses it */
    slots |= SLOT(SHIFT);
#endif
    gr_dnn_tensors on = back_of(dnn, forward);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        gr_dnn_batch_norm_back(&on, epsilon, dnnl_use_scale | dnnl_use_shift, &pd);
    return op_make(dnn, status, pd, slots, channels, "batch norm's backward pass", op_out, diag);
}

gr_status gr_dnn_gelu_forward(gr_dnn *dnn, const gr_layout *data, gr_dnn_op **op_out, gr_diag *diag)
{
    gr_dnn_tensors on = {.src = data->desc, .engine = dnn->engine, .attr = dnn->attr};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = gr_dnn_gelu(&on, &pd);
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(DST), 0, "GELU", op_out, diag);
}

gr_status gr_dnn_gelu_backward(gr_dnn *dnn, const gr_dnn_op *forward, gr_dnn_op **op_out,
                               gr_diag *diag)
{
    gr_dnn_tensors on = back_of(dnn, forward);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = gr_dnn_gelu_back(&on, &pd);
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(DIFF_SRC) | SLOT(DIFF_DST), 0,
                   "GELU's backward pass", op_out, diag);
}

gr_status gr_dnn_reorder(gr_dnn *dnn, const gr_layout *src, const gr_layout *dst,
                         gr_dnn_op **op_out, gr_diag *diag)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(&pd, src->desc, dnn->engine,
                                                              dst->desc, dnn->engine, dnn->attr);
    return op_make(dnn, status, pd, SLOT(SRC) | SLOT(DST), 0, "a change of layout", op_out, diag);
}
