/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/plan.h"

int gr_tree_left_count(int count)
{
    int left = 1;
    while (left < count - left) {
        left *= 2;
    }
    return left;
}

gr_tree_range gr_tree_left(gr_tree_range node)
{
    return (gr_tree_range){node.first, gr_tree_left_count(node.count)};
}

gr_tree_range gr_tree_right(gr_tree_range node)
{
    int left = gr_tree_left_count(node.count);
    return (gr_tree_range){node.first + left, node.count - left};
}

/* The depth is at most 31 for any int, since each left child has at least half of its parent and is
 * perfect, and each right child less than half or, being perfect too, exactly half. */
static int cover_node(gr_tree_range node, int first, int end, gr_tree_range *ranges_out, int found)
{
    int node_end = node.first + node.count;
    if (node_end <= first || end <= node.first) {
        return found;
    }
    if (first <= node.first && node_end <= end) {
        ranges_out[found] = node;
        return found + 1;
    }
    found = cover_node(gr_tree_left(node), first, end, ranges_out, found);
    return cover_node(gr_tree_right(node), first, end, ranges_out, found);
}

int gr_tree_cover(int shards, int first, int count, gr_tree_range *ranges_out)
{
    if (shards < 1 || first < 0 || count < 1 || first > shards - count) {
        return 0;
    }
    return cover_node((gr_tree_range){0, shards}, first, first + count, ranges_out, 0);
}

bool gr_tree_siblings(int shards, gr_tree_range left, gr_tree_range right)
{
    if (left.count < 1 || right.count < 1 || right.first != left.first + left.count) {
        return false;
    }
    gr_tree_range node = {0, shards};
    while (node.count > 1) {
        gr_tree_range node_left = gr_tree_left(node);
        gr_tree_range node_right = gr_tree_right(node);
        if (left.first == node_left.first && left.count == node_left.count) {
            return right.count == node_right.count;
        }
        node = left.first < node_right.first ? node_left : node_right;
    }
    return false;
}

void gr_shard_range(int shards, int world_size, int rank, int *first_out, int *count_out)
{
    int first = 0, count = 0;
    if (shards >= 1 && rank >= 0 && rank < world_size) {
        int each = shards / world_size, more = shards % world_size;
        first = rank * each + (rank < more ? rank : more);
        count = each + (rank < more ? 1 : 0);
    }
    if (first_out) {
        *first_out = first;
    }
    if (count_out) {
        *count_out = count;
    }
}

int gr_shard_partials(int shards, int world_size, int rank)
{
    if (shards < 1 || world_size < 1 || rank < 0 || rank >= world_size) {
        return 0;
    }
    int first, count;
    gr_shard_range(shards, world_size, rank, &first, &count);
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int found = gr_tree_cover(shards, first, count, ranges);
    return found > 0 ? found : 1;
}

/* The buffers in use are the largest whole subtrees of the shards that were computed. */
int gr_shard_slot(int shards, int world_size, int rank, int shard, int *merges_out)
{
    int first, count;
    gr_shard_range(shards, world_size, rank, &first, &count);
    *merges_out = 0;
    if (shard < first || shard >= first + count) {
        return -1;
    }
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int slot = gr_tree_cover(shards, first, shard - first, ranges);
    *merges_out = slot + 1 - gr_tree_cover(shards, first, shard - first + 1, ranges);
    return slot;
}

int gr_shard_buffers(int shards, int world_size, int rank)
{
    if (shards < 1 || world_size < 1 || rank < 0 || rank >= world_size) {
        return 0;
    }
    int first, count, merges, most = 1;
    gr_shard_range(shards, world_size, rank, &first, &count);
    for (int shard = first; shard < first + count; shard++) {
        int used = gr_shard_slot(shards, world_size, rank, shard, &merges) + 1;
        most = used > most ? used : most;
    }
    return most;
}
