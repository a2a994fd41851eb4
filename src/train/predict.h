/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_PREDICT_H
#define GR_TRAIN_PREDICT_H

/* Predictions for new samples with the weights of a checkpoint, whose manifest says how the samples
 * are read and scaled, and what the outputs mean. */

#include "train/checkpoint/checkpoint_file.h"

#include <stdio.h>

/* In the order of the choices of `--format`. */
typedef enum gr_predict_format { GR_PREDICT_CSV = 0, GR_PREDICT_JSONL = 1 } gr_predict_format;

/* Reads the samples in the file `data` (CSV or IDX images, as the training data; plain or gzip)
 * and writes a line for each to `out`, which is called `out_name` in sentences. The label column
 * may be there or not. GR_E_INVALID, GR_E_NOT_FOUND: the file or the checkpoint is wrong, with file
 * and line; GR_E_NOT_FINITE: the model has no finite output for a sample; GR_E_IO, GR_E_NO_MEMORY.
 * What was predicted before a failure has been written. */
gr_status gr_predict_run(const gr_checkpoint *checkpoint, const char *data,
                         gr_predict_format format, FILE *out, const char *out_name,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
