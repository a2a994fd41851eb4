/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_SHARDS_H
#define GR_TRAIN_SHARDS_H

/* How a worker adds up the gradients of its own shards in the order of the shard tree: like a
 * binary counter. Each shard's vector is put on a stack; while the two topmost sums are the two
 * children of one node of the tree, the right one is added to the left one. What lies on the
 * stack in the end are the partial sums that gr_allreduce_shards asks for. */

#include <gradus/status.h>
#include <stdbool.h>
#include <stddef.h>

/* What is done with the i-th own shard: its gradient goes into vector `slot`; then, `merges` times,
 * the topmost vector is added to the one below: slot - 1, slot - 2, ... */
typedef struct gr_shard_entry {
    int slot;
    int merges;
} gr_shard_entry;

typedef struct gr_shard_plan {
    int first, count; /* own shards [first, first + count) */
    int slots;        /* vectors needed at the same time; 1 for a rank without shards */
    int partials;     /* vectors 0 .. partials - 1 hold the sums in the end */
    gr_shard_entry *entries;
} gr_shard_plan;

/* `collapse`: after the last shard everything is added into vector 0, whatever the tree says (for
 * `exact: false`). GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_shard_plan_init(gr_shard_plan *plan, int shards, int world_size, int rank,
                             bool collapse, gr_diag *diag) GR_MUST_CHECK;
void gr_shard_plan_fini(gr_shard_plan *plan);

/* What a sum becomes after each addition; `arg` as given. */
typedef void gr_shard_round(const void *arg, float *values, size_t count);

/* The merges of own shard `shard_index` on elements [begin, end) of the vectors; `round` may be
 * NULL. Piecewise calls give the same bits as one. */
void gr_shard_merge(const gr_shard_plan *plan, int shard_index, float *const *vectors, size_t begin,
                    size_t end, gr_shard_round *round, const void *round_arg);

#endif
