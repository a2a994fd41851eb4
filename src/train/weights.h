/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_WEIGHTS_H
#define GR_TRAIN_WEIGHTS_H

/* A model's values as tensors of a file, and as one hash. */

#include "nn/model.h"
#include "train/safetensors.h"
#include <gradus/comm.h>

/* Writes all tensors of `values`, running statistics included, and tells their SHA-256 (see
 * gr_safetensors_sha256). */
gr_status gr_weights_save(const gr_model *model, const float *values, const char *path,
                          char sha256_out[65], gr_diag *diag) GR_MUST_CHECK;

/* Fills `values` from a file that holds exactly the model's tensors, f32, with the model's
 * shapes. */
gr_status gr_weights_load(const gr_model *model, const char *path, float *values,
                          char sha256_out[65], gr_diag *diag) GR_MUST_CHECK;

/* Of the above: all tensors as parts of a file, in heap memory (free; NULL: there is none); values
 * from a file that has been read, which is called `path` in sentences. */
gr_safetensors_part *gr_weights_parts(const gr_model *model, const float *values);
gr_status gr_weights_fill(const gr_model *model, const gr_safetensors *file, const char *path,
                          float *values, gr_diag *diag) GR_MUST_CHECK;

/* Checks that all ranks hold the same weights, bit for bit. Collective. GR_E_BUG with a sentence
 * that names the ranks that differ from rank 0, the same on every rank. */
gr_status gr_weights_agree(const gr_model *model, const float *values, gr_comm *comm,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
