/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SPARSE_SPARSE_H
#define GR_COLL_SPARSE_SPARSE_H

/* Sums of vectors that are mostly zero. What travels are pieces of `width` elements that are not
 * all zero, with their numbers; every rank merges what all have sent in the order of the shard
 * tree, in which an absent piece adds nothing: so the result has the same bits for any number of
 * ranks, and the bits of the dense sum but for the sign of a zero. gr_allreduce_rows is the face
 * for others. */

#include "coll/sparse/rows.h"

typedef struct gr_sparse {
    gr_comm *comm;
    int shards; /* contributions, as in gr_allreduce_shards; the world size: one a rank */
    size_t width, count_max;
    int unit_count, own_first, own_count; /* units of all ranks; those of this one */
    gr_row_unit *units;
    uint64_t *unit_rows; /* pieces by unit, then */
    size_t *unit_counts; /* units, pieces and elements by rank, `world size` of each */
    size_t rows_max;
    uint32_t *own_indices, *indices; /* rows_max of each */
    float *own_values, *values;      /* rows_max x width */
    float *sums;
    uint64_t dense_sums, sparse_sums; /* how often the vectors went whole, and how often not */
    uint64_t rows_sent;
} gr_sparse;

/* Vectors have at most count_max elements, less than 2^32. Collective; GR_E_NO_MEMORY. */
gr_status gr_sparse_init(gr_sparse *sparse, gr_comm *comm, int shards, size_t count_max,
                         size_t width, gr_diag *diag) GR_MUST_CHECK;
void gr_sparse_fini(gr_sparse *sparse);

/* partials: gr_shard_partials buffers of `count` elements (of gr_alloc best). The sum ends in
 * partials[0]; the others are undefined then. If the pieces of all ranks would be more than a
 * vector that goes whole, vectors go whole. Collective; allocates nothing; returns what gr_run
 * returns. */
gr_status gr_sparse_sum(gr_sparse *sparse, float *const *partials, size_t count) GR_MUST_CHECK;

#endif
