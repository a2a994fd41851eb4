/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/binary_groups.h"

gr_binary_group gr_binary_group_of(int world_size, int rank)
{
    gr_binary_group group = {0, 0};
    while (group.first + group.size <= rank) {
        group.first += group.size;
        group.size = 1;
        while (group.size <= (world_size - group.first) / 2) {
            group.size *= 2;
        }
    }
    return group;
}

gr_binary_group gr_binary_group_before(int world_size, gr_binary_group group)
{
    return group.first > 0 ? gr_binary_group_of(world_size, group.first - 1)
                           : (gr_binary_group){0, 0};
}

gr_binary_group gr_binary_group_behind(int world_size, gr_binary_group group)
{
    int next = group.first + group.size;
    return next < world_size ? gr_binary_group_of(world_size, next) : (gr_binary_group){0, 0};
}

static bool is_one_subtree(const gr_plan_shape *shape, int first_rank, int rank_count)
{
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int first, last, count;
    gr_shard_range(shape->shards, shape->world_size, first_rank, &first, &count);
    gr_shard_range(shape->shards, shape->world_size, first_rank + rank_count - 1, &last, &count);
    return gr_tree_cover(shape->shards, first, last + count - first, ranges) == 1;
}

bool gr_binary_groups_fit(const gr_plan_shape *shape)
{
    int n = shape->world_size;
    if (shape->shards == n) {
        return true;
    }
    if (shape->shards < n) {
        return false;
    }
    for (gr_binary_group group = gr_binary_group_of(n, 0); group.size > 0;
         group = gr_binary_group_behind(n, group)) {
        if (!is_one_subtree(shape, group.first, n - group.first)) {
            return false;
        }
        for (int size = 1; size <= group.size; size *= 2) {
            for (int at = 0; at < group.size; at += size) {
                if (!is_one_subtree(shape, group.first + at, size)) {
                    return false;
                }
            }
        }
    }
    return true;
}
