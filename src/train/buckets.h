/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_BUCKETS_H
#define GR_TRAIN_BUCKETS_H

/* The step vector cut into contiguous pieces, each reduced by one operation as soon as the
 * backward pass has finished it. Vectors and operations are numbered in the order of the
 * backward pass, which is the same on every rank, and so is the order in which the operations
 * start.
 *
 * One thread. No call after init allocates here. */

#include "coll/sparse/sparse.h"
#include "train/compress.h"

typedef struct gr_bucket {
    size_t begin, end; /* elements of the step vector */
    gr_op *op;         /* in flight; NULL before the start and after the end */
    bool deferred;     /* started, but it runs when it is waited for: a sparse sum */
    gr_status status;  /* of a finished one */
    void *pointers[GR_SHARD_PARTIALS_MAX];
} gr_bucket;

typedef struct gr_buckets {
    gr_comm *comm;
    int shards;
    bool exact;
    gr_bucket *list;
    int count;
    int started;     /* of this step: buckets [0, started) have been started */
    int finished;    /* and [0, finished) have ended */
    int64_t wait_ns; /* time inside gr_wait, since init */
    /* Compressed: all but the first bucket. */
    gr_compression compression;
    int partial_count;
    uint16_t *narrow[GR_SHARD_PARTIALS_MAX]; /* 16 bits: what travels, as long as a step vector */
    gr_sparse sparse;
} gr_buckets;

typedef struct gr_buckets_config {
    gr_comm *comm;
    int shards;
    bool exact;             /* false: one plain allreduce of vector 0 */
    float *const *partials; /* `partial_count` step vectors, borrowed until fini */
    int partial_count;
    const size_t *ends; /* ascending: where the backward pass finishes a layer; the last is the
                           vector's length */
    int end_count;
    size_t first_values, values; /* wanted size of the first bucket and of the others */
    gr_compression compression;
    size_t plain; /* compressed: elements [0, plain) are a bucket of their own, which is not */
} gr_buckets_config;

gr_status gr_buckets_init(gr_buckets *buckets, const gr_buckets_config *config,
                          gr_diag *diag) GR_MUST_CHECK;
/* Operations in flight must have ended or belong to a communicator that is broken. */
void gr_buckets_fini(gr_buckets *buckets);

/* The cuts alone: buckets of elements [begin, last end); a bucket ends at the first layer's end at
 * which it has its size, since nothing is won by holding back a finished layer's rest; a layer far
 * above the size is cut evenly. Fills at most `capacity` ends and returns how many. Never leaves
 * anything out: the last bucket takes all. */
int gr_buckets_cut(const size_t *ends, int end_count, size_t begin, size_t first_values,
                   size_t values, size_t *cuts_out, int capacity);
/* Those that gr_buckets_init makes, at most GR_BUCKETS_MAX. */
enum { GR_BUCKETS_MAX = 96 }; /* below what a communicator takes at a time */
int gr_buckets_cut_all(const gr_buckets_config *config, size_t cuts_out[GR_BUCKETS_MAX]);

/* A new step: nothing is started. All operations of the last one must have ended. */
void gr_buckets_begin(gr_buckets *buckets);

/* Elements [0, end) are final on this rank: start every bucket inside, then move all on. */
gr_status gr_buckets_ready(gr_buckets *buckets, size_t end) GR_MUST_CHECK;

/* Wait until bucket `index` has ended; returns its result. In ascending order. */
gr_status gr_buckets_wait(gr_buckets *buckets, int index) GR_MUST_CHECK;

/* Let everything in flight end, whatever its result. */
void gr_buckets_drain(gr_buckets *buckets);

#endif
