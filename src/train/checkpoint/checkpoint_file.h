/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_CHECKPOINT_FILE_H
#define GR_TRAIN_CHECKPOINT_FILE_H

/* One checkpoint: a folder that holds everything that is needed to go on bit for bit, whatever the
 * number of workers.
 *
 *   model.safetensors      the weights and running statistics; the bytes of the final weights' file
 *   optimizer.safetensors  the optimizer's vectors, "momentum.fc1.weight"
 *   residuals.safetensors  what each shard keeps to itself: topk: all that it has left out so far;
 *                          local_state: keep: the optimizer's vectors
 *   manifest.json          step, numbers of the epoch, the job's fingerprint
 *                          (checkpoint_fingerprint.h); what predictions need (inference.h); name,
 *                          size and SHA-256 of each file; and last the SHA-256 of the text before
 *
 * Every byte of every file is covered by a checksum. */

#include "doc/doc.h"
#include "nn/optimizer.h"
#include "train/checkpoint/checkpoint_fingerprint.h"
#include "train/metrics.h"
#include "train/safetensors.h"

enum { GR_CHECKPOINT_VERSION = 1, GR_CHECKPOINT_STATES_MAX = 3 };

#define GR_CHECKPOINT_MODEL "model.safetensors"
#define GR_CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define GR_CHECKPOINT_RESIDUALS "residuals.safetensors"
#define GR_CHECKPOINT_MANIFEST "manifest.json"

/* Where the training stands. */
typedef struct gr_checkpoint_info {
    uint64_t step, total_steps, steps_per_epoch; /* steps done; of the job; */
    int shards;
    int64_t time_s;        /* of writing, since 1970 */
    double seconds;        /* of training so far */
    double last_loss;      /* of the last whole epoch; NaN: there was none */
    gr_meter epoch, total; /* of the epoch that it lies in; of the whole ones before */
    int metric;            /* that the job watches: a gr_metric; -1: none */
    gr_best best;
    bool keeps_best; /* its checkpoint stays, whatever its age */
} gr_checkpoint_info;

/* Its tensors: flat vectors in the model's layout. */
typedef struct gr_checkpoint_tensors {
    const gr_model *model;
    const float *values;
    int states;
    const float *state[GR_CHECKPOINT_STATES_MAX];
    const char *state_name[GR_CHECKPOINT_STATES_MAX];
    const float *residuals; /* [shards][residual_count]; NULL: none */
    int shards;
    size_t residual_count;
} gr_checkpoint_tensors;

/* Writes all files into the existing, empty folder `path` and makes them durable; not yet the
 * folder's own name. On failure files may be left. Any thread. */
gr_status gr_checkpoint_write(const char *path, const gr_checkpoint_info *info,
                              const gr_fingerprint *fingerprint,
                              const gr_checkpoint_tensors *tensors, gr_diag *diag) GR_MUST_CHECK;

/* A checkpoint whose manifest has been read and is sound; of the files no more is known than that
 * they have their sizes. */
typedef struct gr_checkpoint gr_checkpoint;
/* GR_E_INVALID: damaged; GR_E_NOT_FOUND, GR_E_IO, GR_E_UNSUPPORTED (a later version). Sentences
 * name the file. */
gr_status gr_checkpoint_open(const char *path, gr_checkpoint **checkpoint_out,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_checkpoint_close(gr_checkpoint *checkpoint);
const gr_checkpoint_info *gr_checkpoint_info_of(const gr_checkpoint *checkpoint);
const gr_fingerprint *gr_checkpoint_fingerprint_of(const gr_checkpoint *checkpoint);
/* What predictions need, for gr_inference_read; as long as the checkpoint is open. NULL: it is of
 * an earlier version, or of samples with too many values. */
const gr_node *gr_checkpoint_inference_of(const gr_checkpoint *checkpoint);
const char *gr_checkpoint_path_of(const gr_checkpoint *checkpoint);
uint64_t gr_checkpoint_bytes(const gr_checkpoint *checkpoint); /* of all files, manifest included */

/* Checks that all bytes of all files are as they were written. */
gr_status gr_checkpoint_check(const gr_checkpoint *checkpoint, gr_diag *diag) GR_MUST_CHECK;
/* Returns true if the checkpoint has a file of this name. */
bool gr_checkpoint_has(const gr_checkpoint *checkpoint, const char *name);
/* One file, checked, parsed. */
gr_status gr_checkpoint_read(const gr_checkpoint *checkpoint, const char *name,
                             gr_safetensors **file_out, gr_diag *diag) GR_MUST_CHECK;
/* One file, checked: its bytes in heap memory (free). */
gr_status gr_checkpoint_read_bytes(const gr_checkpoint *checkpoint, const char *name,
                                   char **data_out, size_t *size_out, gr_diag *diag) GR_MUST_CHECK;

#endif
