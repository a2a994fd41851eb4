/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_LOSS_H
#define GR_NN_LOSS_H

#include "nn/model.h"

/* Losses of `samples` rows of `width` outputs, added up in the order of the rows. `gradient` (rows
 * x width) may be NULL: d(sum of losses)/d(outputs) * scale. */

/* -log softmax(outputs)[label], by log-sum-exp: finite for logits of any finite size. */
gr_status gr_loss_cross_entropy(const float *outputs, const int32_t *labels, int64_t samples,
                                int64_t width, float scale, float *gradient,
                                gr_batch_result *result_out, gr_diag *diag) GR_MUST_CHECK;
/* The mean of (output - target)^2 over a row. */
void gr_loss_mse(const float *outputs, const float *targets, int64_t samples, int64_t width,
                 float scale, float *gradient, gr_batch_result *result_out);

#endif
