/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_LOSS_H
#define GR_NN_LOSS_H

#include "nn/model.h"

/* A loss. */
typedef struct gr_loss_ops {
    const char *name;  /* as in the job file */
    const char *title; /* for people */
    bool classes; /* of batch->labels, and the output is flat: one value for each class; else of
                        * batch->targets */
    /* Losses of `samples` rows of `width` outputs, added up in the order of the rows. `gradient`
     * (rows x width) may be NULL: d(sum of losses)/d(outputs) * scale. */
    gr_status (*run)(const float *outputs, const gr_batch *batch, int64_t samples, int64_t width,
                     float scale, float *gradient, gr_batch_result *result_out, gr_diag *diag);
} gr_loss_ops;
/* Row `index`, and its name; NULL behind the last. */
const gr_loss_ops *gr_loss_ops_at(int index);
const char *gr_loss_name(int index);

#endif
