/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_STORE_SUM_H
#define GR_PS_STORE_SUM_H

/* The sum of what was pushed, in the order of the shard tree: the bits of gr_allreduce_shards. A
 * piece at a time, so that what is made of it can be used while it is in the nearest cache; pushed
 * data are read once, where they lie. */

#include "coll/reduce/reduce.h"

enum {
    GR_PS_PIECE = 512,   /* elements */
    GR_PS_SUM_DEPTH = 40 /* of a tree over shards: log2 of their largest number, and some */
};

/* How two become one. */
typedef struct gr_ps_adder {
    gr_reduce_fn *add;
    gr_dtype type; /* what sums are rounded to: GR_F32: they are not */
} gr_ps_adder;
void gr_ps_add(const gr_ps_adder *add, float *sum, const float *a, const float *b, size_t count);

/* What covers the shards [first, first + count), a whole subtree. */
typedef struct gr_ps_part {
    int first, count;
    int merges; /* how often the sum is then added to the one on its left */
    const float *values;
    const uint32_t *rows; /* of a table: which rows these are; else NULL */
    uint32_t row_count;
} gr_ps_part;

/* The parts cover the tree over `shards` from left to right, each shard once. Fills in `merges`;
 * returns how many pieces of scratch the sum takes at the same time. */
int gr_ps_sum_plan(int shards, gr_ps_part *parts, int part_count);

/* Elements [at, at + count) of the sum; count <= GR_PS_PIECE. They end in `out`, if it is not NULL,
 * else wherever they are: in the only part, or in scratch. */
const float *gr_ps_sum_piece(const gr_ps_adder *add, const gr_ps_part *parts, int part_count,
                             size_t at, size_t count, float *scratch, float *out);

#endif
