/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/binary_groups.h"
#include "coll/plan/traits.h"

#include <string.h>

/* What is simulated. Slots are 16-bit numbers, and there is a limit on steps: see both before this
 * grows. */
enum { WORLD_SIZE_MAX = 100000 };

static bool fits_any(const gr_plan_shape *shape)
{
    return shape->world_size >= 1 && shape->world_size <= WORLD_SIZE_MAX && shape->rank >= 0 &&
           shape->rank < shape->world_size && shape->root >= 0 && shape->root < shape->world_size &&
           shape->shards >= 1;
}

static bool fits_one_each(const gr_plan_shape *shape)
{
    return fits_any(shape) && shape->shards == shape->world_size;
}

static bool fits_segmented_ring(const gr_plan_shape *shape)
{
    return fits_one_each(shape) && gr_segmented_ring_fits(shape);
}

static bool fits_groups(const gr_plan_shape *shape)
{
    return fits_any(shape) && gr_binary_groups_fit(shape);
}

/* Ranks are placed host by host. */
static bool fits_hosts(const gr_plan_shape *shape)
{
    return fits_any(shape) && gr_hierarchical_fits(shape, true);
}

static bool fits_hosts_one_each(const gr_plan_shape *shape)
{
    return fits_hosts(shape) && fits_one_each(shape);
}

static bool fits_hosts_in_any_order(const gr_plan_shape *shape)
{
    return fits_one_each(shape) && gr_hierarchical_fits(shape, false);
}

static bool fits_bruck_alltoall(const gr_plan_shape *shape)
{
    return fits_any(shape) && gr_bruck_alltoall_fits(shape);
}

static bool fits_shared(const gr_plan_shape *shape)
{
    return fits_any(shape) && shape->shared && shape->world_size >= 2 &&
           shape->world_size <= GR_SHARED_RANKS_MAX &&
           !(shape->coll == GR_COLL_ALLTOALL && shape->uneven);
}

#define SHARED(coll)                                                                               \
    {                                                                                              \
        "shm", coll, true, "in each other's memory, without messages; 2 to 64 ranks of one host",  \
            fits_shared, NULL                                                                      \
    }

const gr_algorithm gr_algorithms[] = {
    SHARED(GR_COLL_ALLREDUCE),
    SHARED(GR_COLL_REDUCE_SCATTER),
    SHARED(GR_COLL_ALLGATHER),
    SHARED(GR_COLL_BROADCAST),
    SHARED(GR_COLL_BARRIER),
    SHARED(GR_COLL_REDUCE),
    SHARED(GR_COLL_GATHER),
    SHARED(GR_COLL_SCATTER),
    SHARED(GR_COLL_ALLTOALL),
    {"direct", GR_COLL_ALLREDUCE, true,
     "each block is added by its owner, who sends the sum to all; any world size, any shards",
     fits_any, gr_direct_allreduce},
    {"halving-doubling", GR_COLL_ALLREDUCE, true,
     "recursive vector halving, then doubling (Thakur et al. 2005), in groups of powers of two",
     fits_groups, gr_halving_doubling_allreduce},
    {"tree", GR_COLL_ALLREDUCE, true,
     "up the shard tree to rank 0, then a binomial broadcast; for small messages", fits_any,
     gr_tree_allreduce},
    {"gather", GR_COLL_ALLREDUCE, true,
     "everybody sends all to everybody, each adds for itself; for tiny messages", fits_any,
     gr_gather_allreduce},
    {"ring", GR_COLL_ALLREDUCE, false,
     "once around to add, once to spread (Patarasuk and Yuan 2009); not in tree order",
     fits_one_each, gr_ring_allreduce},
    {"direct", GR_COLL_REDUCE_SCATTER, true, "each block is added by its owner", fits_one_each,
     gr_direct_reduce_scatter},
    {"ring", GR_COLL_REDUCE_SCATTER, false,
     "each block goes once around (Patarasuk and Yuan 2009); not in tree order", fits_one_each,
     gr_ring_reduce_scatter},
    {"direct", GR_COLL_ALLGATHER, true, "each rank sends its block to all others", fits_any,
     gr_direct_allgather},
    {"ring", GR_COLL_ALLGATHER, true, "each block goes once around", fits_any, gr_ring_allgather},
    {"binomial", GR_COLL_BROADCAST, true, "down a binomial tree", fits_any, gr_binomial_broadcast},
    {"direct", GR_COLL_BROADCAST, true, "the root sends to each rank itself", fits_any,
     gr_direct_broadcast},
    {"dissemination", GR_COLL_BARRIER, true,
     "log2 n rounds of empty messages (Hensgen, Finkel and Manber 1988)", fits_any,
     gr_dissemination_barrier},
    {"direct", GR_COLL_REDUCE, true, "each rank sends to the root, which adds", fits_one_each,
     gr_direct_reduce},
    {"binomial", GR_COLL_REDUCE, true, "up the shard tree, turned so that it ends at the root",
     fits_one_each, gr_binomial_reduce},
    {"direct", GR_COLL_GATHER, true, "each rank sends to the root", fits_any, gr_direct_gather},
    {"direct", GR_COLL_SCATTER, true, "the root sends to each rank", fits_any, gr_direct_scatter},
    {"pairwise", GR_COLL_ALLTOALL, true,
     "each block straight to its destination, in rounds of pairs", fits_any, gr_pairwise_alltoall},
    {"recursive-doubling", GR_COLL_ALLREDUCE, true,
     "log2 n exchanges of all (Thakur et al. 2005); for small messages", fits_groups,
     gr_recursive_doubling_allreduce},
    {"segmented-ring", GR_COLL_ALLREDUCE, false,
     "the ring with four chunks a block, so that it is busy while sums are made; not in tree order",
     fits_segmented_ring, gr_segmented_ring_allreduce},
    {"double-tree", GR_COLL_ALLREDUCE, false,
     "up and down two trees, half in each (Sanders, Speck, Traeff 2009); not in tree order",
     fits_one_each, gr_double_tree_allreduce},
    {"recursive-halving", GR_COLL_REDUCE_SCATTER, true,
     "half of the blocks in each exchange (Thakur et al. 2005), in groups of powers of two",
     fits_one_each, gr_recursive_halving_reduce_scatter},
    {"recursive-doubling", GR_COLL_ALLGATHER, true,
     "twice the blocks in each exchange (Thakur et al. 2005), in groups of powers of two", fits_any,
     gr_recursive_doubling_allgather},
    {"bruck", GR_COLL_ALLGATHER, true, "log2 n rounds for any n (Bruck et al. 1997)", fits_any,
     gr_bruck_allgather},
    {"chain", GR_COLL_BROADCAST, true,
     "from each rank to the next, pipelined; for large messages on few ranks", fits_any,
     gr_chain_broadcast},
    {"double-tree", GR_COLL_BROADCAST, true,
     "down two trees, half in each (Sanders, Speck and Traeff 2009)", fits_any,
     gr_double_tree_broadcast},
    {"chain", GR_COLL_REDUCE, false,
     "from each rank to the next, pipelined; for large messages; not in tree order", fits_one_each,
     gr_chain_reduce},
    {"double-tree", GR_COLL_REDUCE, false,
     "up two trees, half in each (Sanders, Speck and Traeff 2009); not in tree order",
     fits_one_each, gr_double_tree_reduce},
    {"binomial", GR_COLL_GATHER, true, "up a binomial tree", fits_any, gr_binomial_gather},
    {"binomial", GR_COLL_SCATTER, true, "down a binomial tree", fits_any, gr_binomial_scatter},
    {"bruck", GR_COLL_ALLTOALL, true,
     "log2 n rounds by way of others (Bruck et al. 1997); for small even blocks",
     fits_bruck_alltoall, gr_bruck_alltoall},
    {"hierarchical", GR_COLL_ALLREDUCE, true,
     "inside each host, then between them, a stream for each local rank; hosts one after another",
     fits_hosts, gr_hierarchical_sums},
    {"hierarchical-any-order", GR_COLL_ALLREDUCE, false,
     "the same with hosts in any order and one sum a host; not in tree order",
     fits_hosts_in_any_order, gr_hierarchical_any_order_sums},
    {"hierarchical", GR_COLL_REDUCE_SCATTER, true,
     "inside each host, then between them, a stream for each local rank; hosts one after another",
     fits_hosts_one_each, gr_hierarchical_sums},
    {"hierarchical-any-order", GR_COLL_REDUCE_SCATTER, false,
     "the same with hosts in any order and one sum a host; not in tree order",
     fits_hosts_in_any_order, gr_hierarchical_any_order_sums},
    {"hierarchical", GR_COLL_ALLGATHER, true,
     "once between each two hosts, a stream for each local rank, then inside the hosts", fits_any,
     gr_hierarchical_allgather},
    {"hierarchical", GR_COLL_BROADCAST, true,
     "from host to host, a stream for each local rank, pipelined; then inside the hosts", fits_any,
     gr_hierarchical_broadcast},
    {"hierarchical", GR_COLL_REDUCE, true,
     "inside each host, then between them, then to the root; hosts one after another",
     fits_hosts_one_each, gr_hierarchical_sums},
    {"hierarchical-any-order", GR_COLL_REDUCE, false,
     "the same with hosts in any order and one sum a host; not in tree order",
     fits_hosts_in_any_order, gr_hierarchical_any_order_sums},
    {.name = NULL},
};

const gr_algorithm *gr_algorithm_find(gr_coll coll, const char *name)
{
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        if (at->coll == coll && strcmp(at->name, name) == 0) {
            return at;
        }
    }
    return NULL;
}

void gr_plan_emit(const gr_algorithm *algorithm, const gr_plan_shape *shape, gr_plan *plan_out)
{
    gr_plan_init(plan_out, shape);
    if (shape->world_size > 1) {
        algorithm->plan(shape, plan_out);
    } else if (plan_out->user_slots > 0 && plan_out->input_slots > 0) {
        gr_plan_copy(plan_out, gr_user(0, 0), gr_input(0, 0));
    }
}

const char *gr_coll_name(gr_coll coll)
{
    return (unsigned)coll < GR_COLL_COUNT ? gr_coll_traits_of[coll].name : "?";
}
