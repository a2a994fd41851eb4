/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_LOADER_H
#define GR_DATA_LOADER_H

#include "data/dataset.h"

/* A thread that reads ahead: the batches of the caller's shards, step by step, in order. The
 * global batch of step t of an epoch is positions [t * B, (t + 1) * B) of the epoch's order;
 * shard s takes its s-th part. The last, incomplete batch of an epoch is dropped. */
typedef struct gr_loader_config {
    const gr_dataset *dataset; /* must outlive the loader */
    uint64_t seed;
    int64_t global_batch;
    int shards, shard_first, shard_count; /* ours: [shard_first, + shard_count) */
    uint64_t first_step;                  /* of the job */
    uint64_t total_steps;
    int micro_batches; /* a shard's part is given out in so many pieces (gradient accumulation) */
    int depth;         /* batches read ahead */
} gr_loader_config;

typedef struct gr_loaded {
    const float *x;
    const int32_t *labels; /* or NULL */
    const float *targets;  /* or NULL */
    int count;             /* samples */
    uint64_t step;
    int shard, micro;
    uint64_t sample_first; /* position of the first sample in the global batch */
} gr_loaded;

typedef struct gr_loader gr_loader;
gr_status gr_loader_start(const gr_loader_config *config, gr_loader **loader_out,
                          gr_diag *diag) GR_MUST_CHECK;
void gr_loader_stop(gr_loader *loader); /* joins the thread; NULL ok */

/* The next batch; valid until the next call. GR_E_NOT_FOUND past the last one. Order: step, shard,
 * micro. No heap. */
gr_status gr_loader_next(gr_loader *loader, gr_loaded *loaded_out, gr_diag *diag) GR_MUST_CHECK;

#endif
