/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_SHARDS_H
#define GRADUS_SHARDS_H

/* Exact sums over shards: a batch is cut into shards, of which each rank has some, and the gradient
 * has the same bits for every world size. */

#include <gradus/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exact allreduce over shards: the sum over `shards` contributions, which are assigned to
 * the ranks in contiguous ranges (gr_shard_range), in the order of a fixed binary tree over the
 * shards. The result has the same bits for every world size.
 *
 * partials  gr_shard_partials(shards, world size, rank) buffers of `count` elements, which do not
 *           overlap: the sums of the largest whole subtrees of this rank's range, from left to
 *           right. They may be overwritten; partials[0] receives the result on every rank.
 * op        GR_AVERAGE divides by `shards`. */
GR_API gr_status gr_allreduce_shards(gr_comm *comm, void *const *partials, int shards, size_t count,
                                     gr_dtype dtype, gr_redop op) GR_MUST_CHECK;
GR_API gr_status gr_allreduce_shards_start(gr_comm *comm, void *const *partials, int shards,
                                           size_t count, gr_dtype dtype, gr_redop op,
                                           gr_op **op_out) GR_MUST_CHECK;

/* The shards [*first_out, *first_out + *count_out) of `rank`: as even as can be, the first ranks
 * get one more. Ranks past the number of shards get none. A result whose pointer is NULL is not
 * given. */
GR_API void gr_shard_range(int shards, int world_size, int rank, int *first_out, int *count_out);

/* How many buffers `rank` passes to gr_allreduce_shards: one for each largest whole subtree of its
 * range, at most GR_SHARD_PARTIALS_MAX. A rank without shards passes one, of any content, to
 * receive the result. 0 if an argument is out of range. */
enum { GR_SHARD_PARTIALS_MAX = 64 };
GR_API int gr_shard_partials(int shards, int world_size, int rank);

/* The order in which `rank` adds up its own shards. It computes them from the first to the last.
 * The gradient of `shard` goes into buffer `slot`, which is returned. Then buffer `slot` is added
 * to buffer `slot` - 1, that one to the one before it, and so on, *merges_out times. After the last
 * shard the buffers from 0 on are the partials of gr_allreduce_shards.
 *
 *   for (int s = first; s < first + count; s++) {
 *       int merges, slot = gr_shard_slot(shards, world_size, rank, s, &merges);
 *       compute_gradient(s, buffers[slot]);
 *       for (; merges > 0; merges--, slot--) {
 *           add(buffers[slot - 1], buffers[slot]);    // left = left + right
 *       }
 *   }
 *
 * Returns -1, and no merges, if `shard` is none of the rank's or an argument is out of range. */
GR_API int gr_shard_slot(int shards, int world_size, int rank, int shard, int *merges_out);

/* How many buffers that takes: gr_shard_partials or a few more, at most GR_SHARD_PARTIALS_MAX. 0 if
 * an argument is out of range. */
GR_API int gr_shard_buffers(int shards, int world_size, int rank);

#ifdef __cplusplus
}
#endif
#endif
