/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_ONEDNN_H
#define GR_NN_ONEDNN_H

/* All of oneDNN that the engine uses; onednn.c is the only file that calls it, in version 2 or 3.
 *
 * An operation is created once with its memory objects; afterwards only pointers are put into its
 * slots. Its scratch memory is the caller's too (slot GR_SLOT_SCRATCH). A layout says how a tensor
 * lies in memory; layouts live as long as their gr_dnn. */

#include "nn/model.h"

typedef struct gr_dnn gr_dnn;
typedef struct gr_layout gr_layout;
typedef struct gr_dnn_op gr_dnn_op;

typedef enum gr_slot {
    GR_SLOT_SRC,
    GR_SLOT_WEIGHTS,
    GR_SLOT_BIAS,
    GR_SLOT_DST,
    GR_SLOT_DIFF_SRC,
    GR_SLOT_DIFF_WEIGHTS,
    GR_SLOT_DIFF_BIAS,
    GR_SLOT_DIFF_DST,
    GR_SLOT_MEAN,
    GR_SLOT_VARIANCE,
    GR_SLOT_SCALE,
    GR_SLOT_SHIFT,
    GR_SLOT_DIFF_SCALE,
    GR_SLOT_DIFF_SHIFT,
    GR_SLOT_WORKSPACE,
    GR_SLOT_SCRATCH,
    GR_SLOTS
} gr_slot;

gr_status gr_dnn_create(gr_dnn **dnn_out, gr_diag *diag) GR_MUST_CHECK;
void gr_dnn_destroy(gr_dnn *dnn); /* after all its operations */

/* Row-major, batch first; NULL without memory. */
const gr_layout *gr_layout_plain(gr_dnn *dnn, int64_t batch, const gr_shape *shape);
/* Images in blocks of 1, 8 or 16 channels, filled up with zeros: see gr_layout_block. */
const gr_layout *gr_layout_blocked(gr_dnn *dnn, int64_t batch, const gr_shape *shape, size_t block);
bool gr_layout_equal(const gr_layout *a, const gr_layout *b);
size_t gr_layout_bytes(const gr_layout *layout);

/* b of images that lie as [batch][channels / b][height][width][b]; plain: 1; other layouts: 0. */
size_t gr_layout_block(const gr_layout *layout);

typedef struct gr_conv_shape {
    int64_t batch, channels_in, height_in, width_in;
    int64_t channels_out, height_out, width_out;
    int64_t kernel, stride, padding;
    bool bias;
} gr_conv_shape;

/* dst = src * weights^T + bias, then ReLU if asked; weights lie [out][in]. */
gr_status gr_dnn_linear_forward(gr_dnn *dnn, int64_t batch, int64_t in, int64_t out, bool bias,
                                bool relu, gr_dnn_op **op_out, gr_diag *diag) GR_MUST_CHECK;

/* Chooses the layouts of src, weights and dst itself: ask gr_dnn_op_layout. Training and evaluation
 * use the same kernel, so that they have the same bits. */
gr_status gr_dnn_conv_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool relu,
                              gr_dnn_op **op_out, gr_diag *diag) GR_MUST_CHECK;
/* In the layouts that `forward` chose. */
gr_status gr_dnn_conv_backward_data(gr_dnn *dnn, const gr_conv_shape *shape,
                                    const gr_dnn_op *forward, gr_dnn_op **op_out,
                                    gr_diag *diag) GR_MUST_CHECK;
gr_status gr_dnn_conv_backward_weights(gr_dnn *dnn, const gr_conv_shape *shape,
                                       const gr_dnn_op *forward, gr_dnn_op **op_out,
                                       gr_diag *diag) GR_MUST_CHECK;
/* Weights as the flat vector holds them: [out][in][height][width]. */
const gr_layout *gr_layout_conv_weights(gr_dnn *dnn, const gr_conv_shape *shape);

/* Pooling: max, or the average over what lies inside the image. channels_out = channels_in. */
gr_status gr_dnn_pool_forward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                              const gr_layout *src, bool training, gr_dnn_op **op_out,
                              gr_diag *diag) GR_MUST_CHECK;
gr_status gr_dnn_pool_backward(gr_dnn *dnn, const gr_conv_shape *shape, bool max,
                               const gr_dnn_op *forward, gr_dnn_op **op_out,
                               gr_diag *diag) GR_MUST_CHECK;

/* Batch norm over `data`; running: with given mean and variance, else it computes them. */
gr_status gr_dnn_norm_forward(gr_dnn *dnn, const gr_layout *data, int64_t channels, float epsilon,
                              bool running, gr_dnn_op **op_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_dnn_norm_backward(gr_dnn *dnn, const gr_dnn_op *forward, int64_t channels,
                               float epsilon, gr_dnn_op **op_out, gr_diag *diag) GR_MUST_CHECK;

/* GELU with the error function. */
gr_status gr_dnn_gelu_forward(gr_dnn *dnn, const gr_layout *data, gr_dnn_op **op_out,
                              gr_diag *diag) GR_MUST_CHECK;
gr_status gr_dnn_gelu_backward(gr_dnn *dnn, const gr_dnn_op *forward, gr_dnn_op **op_out,
                               gr_diag *diag) GR_MUST_CHECK;

gr_status gr_dnn_reorder(gr_dnn *dnn, const gr_layout *src, const gr_layout *dst,
                         gr_dnn_op **op_out, gr_diag *diag) GR_MUST_CHECK;

void gr_dnn_op_destroy(gr_dnn_op *op); /* NULL is fine */
/* The layout that the operation expects in a slot; NULL where it has no such slot. */
const gr_layout *gr_dnn_op_layout(const gr_dnn_op *op, gr_slot slot);
size_t gr_dnn_op_bytes(const gr_dnn_op *op, gr_slot slot); /* 0 without such a slot */
/* The memory must stay until the operation ran; binding the same pointer again costs nothing. */
void gr_dnn_op_bind(gr_dnn_op *op, gr_slot slot, const void *data);
gr_status gr_dnn_op_run(gr_dnn *dnn, gr_dnn_op *op, gr_diag *diag) GR_MUST_CHECK;

/* c[m][n] = op(a) * op(b), row-major; transposed where asked. */
gr_status gr_dnn_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                       const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                       int64_t ldc, gr_diag *diag) GR_MUST_CHECK;

#endif
