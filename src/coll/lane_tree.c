/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/lane_internal.h"
#include "coll/plan.h"

#include <stdlib.h>

typedef struct builder {
    lane_tree *tree;
    gr_tree_range *ranges; /* by leaf */
    int next_leaf;         /* leaves come in the order of the tree */
    int temps, most_temps; /* sums under way */
} builder;

/* The leaves of all ranks, from left to right. */
static int find_leaves(int shards, int size, lane_leaf *leaves, gr_tree_range *ranges, int *most)
{
    int found = 0;
    *most = 1;
    for (int rank = 0; rank < size; rank++) {
        gr_tree_range own[GR_SHARD_PARTIALS_MAX];
        int first, count;
        gr_shard_range(shards, size, rank, &first, &count);
        int parts = count > 0 ? gr_tree_cover(shards, first, count, own) : 0;
        *most = parts > *most ? parts : *most;
        for (int i = 0; i < parts; i++) {
            leaves[found] = (lane_leaf){.rank = rank, .input = i};
            ranges[found++] = own[i];
        }
    }
    return found;
}

/* Returns the operand that holds the sum of this node. */
static int32_t add_node(builder *b, gr_tree_range node)
{
    if (b->ranges[b->next_leaf].count == node.count) {
        return ~(int32_t)b->next_leaf++;
    }
    int left_count = gr_tree_left_count(node.count);
    int temps = b->temps;
    int32_t left = add_node(b, (gr_tree_range){node.first, left_count});
    int32_t right = add_node(b, (gr_tree_range){node.first + left_count, node.count - left_count});
    b->temps = temps + 1;
    b->most_temps = b->temps > b->most_temps ? b->temps : b->most_temps;
    b->tree->steps[b->tree->step_count++] = (lane_step){.dst = temps, .a = left, .b = right};
    return temps;
}

lane_tree *gr_lane_tree_create(int shards, int size, int rank)
{
    size_t most =
        (size_t)(shards < GR_SHARD_PARTIALS_MAX * size ? shards : GR_SHARD_PARTIALS_MAX * size);
    lane_tree *tree = calloc(1, sizeof *tree);
    gr_tree_range *ranges = calloc(most, sizeof *ranges);
    if (!tree || !ranges) {
        goto undo;
    }
    tree->leaves = calloc(most, sizeof *tree->leaves);
    tree->steps = calloc(most, sizeof *tree->steps);
    if (!tree->leaves || !tree->steps) {
        goto undo;
    }
    tree->shards = shards;
    tree->leaf_count = find_leaves(shards, size, tree->leaves, ranges, &tree->inputs_most);
    for (int leaf = 0; leaf < tree->leaf_count; leaf++) {
        tree->inputs_own += tree->leaves[leaf].rank == rank;
    }
    builder b = {.tree = tree, .ranges = ranges};
    (void)add_node(&b, (gr_tree_range){0, shards});
    tree->chunk_bytes = LANE_CHUNK;
    while (tree->chunk_bytes > LANE_CHUNK_MIN &&
           tree->chunk_bytes * (size_t)(tree->leaf_count + b.most_temps) > LANE_CACHE) {
        tree->chunk_bytes /= 2;
    }
    free(ranges);
    return tree;

undo:
    free(ranges);
    gr_lane_tree_destroy(tree);
    return NULL;
}

void gr_lane_tree_destroy(lane_tree *tree)
{
    if (tree) {
        free(tree->leaves);
        free(tree->steps);
        free(tree);
    }
}
