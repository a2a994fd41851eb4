/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_ALGORITHMS_H
#define GR_COLL_PLAN_ALGORITHMS_H

/* The algorithms behind gr_algorithms, one file a family. Internal to src/coll: everybody else
 * finds them through gr_algorithm_find. */

#include "coll/plan/plan.h"

void gr_direct_allreduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_allgather(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_broadcast(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_reduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_gather(const gr_plan_shape *shape, gr_plan *plan);
void gr_direct_scatter(const gr_plan_shape *shape, gr_plan *plan);

void gr_pairwise_alltoall(const gr_plan_shape *shape, gr_plan *plan);

void gr_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan);
bool gr_segmented_ring_fits(const gr_plan_shape *shape);
void gr_segmented_ring_allreduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_ring_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan);
void gr_ring_allgather(const gr_plan_shape *shape, gr_plan *plan);

void gr_halving_doubling_allreduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_recursive_halving_reduce_scatter(const gr_plan_shape *shape, gr_plan *plan);
void gr_recursive_doubling_allgather(const gr_plan_shape *shape, gr_plan *plan);
void gr_recursive_doubling_allreduce(const gr_plan_shape *shape, gr_plan *plan);

void gr_tree_allreduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_binomial_broadcast(const gr_plan_shape *shape, gr_plan *plan);
void gr_binomial_reduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_binomial_gather(const gr_plan_shape *shape, gr_plan *plan);
void gr_binomial_scatter(const gr_plan_shape *shape, gr_plan *plan);

void gr_double_tree_allreduce(const gr_plan_shape *shape, gr_plan *plan);
void gr_double_tree_broadcast(const gr_plan_shape *shape, gr_plan *plan);
void gr_double_tree_reduce(const gr_plan_shape *shape, gr_plan *plan);

void gr_chain_broadcast(const gr_plan_shape *shape, gr_plan *plan);
void gr_chain_reduce(const gr_plan_shape *shape, gr_plan *plan);

void gr_bruck_allgather(const gr_plan_shape *shape, gr_plan *plan);
bool gr_bruck_alltoall_fits(const gr_plan_shape *shape);
void gr_bruck_alltoall(const gr_plan_shape *shape, gr_plan *plan);

bool gr_hierarchical_fits(const gr_plan_shape *shape, bool canonical);
/* Of an allreduce, a reduce-scatter or a reduce. */
void gr_hierarchical_sums(const gr_plan_shape *shape, gr_plan *plan);
void gr_hierarchical_any_order_sums(const gr_plan_shape *shape, gr_plan *plan);
void gr_hierarchical_allgather(const gr_plan_shape *shape, gr_plan *plan);
void gr_hierarchical_broadcast(const gr_plan_shape *shape, gr_plan *plan);

void gr_gather_allreduce(const gr_plan_shape *shape, gr_plan *plan);

void gr_dissemination_barrier(const gr_plan_shape *shape, gr_plan *plan);

#endif
