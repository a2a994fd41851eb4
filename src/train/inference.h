/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_INFERENCE_H
#define GR_TRAIN_INFERENCE_H

/* What a prediction needs beside the weights: the layers of the model, what the columns of the data
 * mean, how values are scaled, and the names of the classes. It is a JSON object, the member
 * "inference" of a checkpoint's manifest. */

#include "data/table.h"
#include "train/job/job.h"

/* More values of a sample than this are not described, since each may have a mean of its own. */
enum { GR_INFERENCE_VALUES_MAX = 100000 };

typedef struct gr_inference {
    gr_model_spec *spec;
    gr_shape input;
    gr_loss_kind loss;
    int64_t values;                 /* of a sample */
    int64_t outputs;                /* of the model: the classes; 1: a number */
    const char *const *class_names; /* [outputs]; NULL: classes are numbers */
    gr_scaler scaler;
    const double *column_mean, *column_factor; /* [values], behind the scaler; NULL: none */
    const char *format;                        /* of the samples: the name of their reader */
    bool header;                               /* csv: the first line holds names */
    char delimiter;                            /* csv */
    gr_csv_layout layout; /* csv: of the training data, label included; `column` is set */
} gr_inference;

/* The JSON text of `job`, which is open, in `arena`. "": a sample has more than
 * GR_INFERENCE_VALUES_MAX values. GR_E_NO_MEMORY. */
gr_status gr_inference_print(const gr_job *job, gr_arena *arena, const char **text_out,
                             gr_diag *diag) GR_MUST_CHECK;

/* Reads it back. The result lies in `arena` and in the document of `node`. GR_E_INVALID with file
 * and line; GR_E_NO_MEMORY. */
gr_status gr_inference_read(const gr_node *node, gr_arena *arena, gr_inference *inference_out,
                            gr_diag *diag) GR_MUST_CHECK;

#endif
