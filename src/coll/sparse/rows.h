/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SPARSE_ROWS_H
#define GR_COLL_SPARSE_ROWS_H

/* The merge behind all sparse sums: gr_allreduce_rows, sparse.h, and tables on parameter servers.
 * Internal. */

#include "coll/plan/plan.h"
#include "coll/reduce/reduce.h"

/* What one rank contributes for one whole subtree of the shards: rows by ascending index, each
 * index once. */
typedef struct gr_row_unit {
    gr_tree_range range;
    uint32_t rows, at; /* at: the next one to be merged */
    const uint32_t *indices;
    const uint8_t *values;
} gr_row_unit;

/* Called for each index that occurs, ascending. `row` is valid for the call. */
typedef void gr_row_found(void *arg, uint32_t index, const void *row);

enum { GR_ROW_SUMS = 32 }; /* rows of `sums`: the depth of the tree over any number of shards */

typedef struct gr_row_merge {
    gr_row_unit *units; /* of all ranks, left to right in the tree */
    int unit_count;
    int shards;
    size_t width, row_bytes;
    gr_reduce_fn *add;
    uint8_t *sums; /* GR_ROW_SUMS x row_bytes */
    gr_row_found *found;
    void *found_arg;
} gr_row_merge;

void gr_rows_merge(gr_row_merge *merge);

/* Fills the ranges of the units that all ranks hold, left to right; returns how many. units NULL:
 * only counts. */
int gr_row_units(int shards, int world_size, gr_row_unit *units);

/* Ends the communicator: `rank` reports `value` of `what`, of which it can have `most`.
 * Returns GR_E_PROTOCOL; GR_E_COMM_BROKEN where another rank was first to end it for that. */
gr_status gr_rows_refuse_peer(gr_comm *comm, int rank, uint64_t value, const char *what,
                              uint64_t most) GR_MUST_CHECK;

#endif
