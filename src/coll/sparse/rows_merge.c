/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/sparse/rows.h"

#include <gradus/shards.h>

#include <string.h>

int gr_row_units(int shards, int world_size, gr_row_unit *units)
{
    int count = 0;
    for (int rank = 0; rank < world_size; rank++) {
        int first, held;
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        gr_shard_range(shards, world_size, rank, &first, &held);
        int found = gr_tree_cover(shards, first, held, ranges);
        for (int i = 0; i < found; i++) {
            if (units) {
                units[count + i] = (gr_row_unit){.range = ranges[i]};
            }
        }
        count += found;
    }
    return count;
}

/* The sum of the units below `node` that have a row of this index; NULL if none has. Units are
 * taken from *next on. Sums of a node and of those below its right child are alive together, so the
 * depth tells where to put one. */
static const uint8_t *sum_node(gr_row_merge *m, gr_tree_range node, uint32_t index, int *next,
                               int depth)
{
    gr_row_unit *unit = &m->units[*next];
    if (unit->range.first == node.first && unit->range.count == node.count) {
        (*next)++;
        if (unit->at == unit->rows || unit->indices[unit->at] != index) {
            return NULL;
        }
        return unit->values + unit->at++ * m->row_bytes;
    }
    const uint8_t *a = sum_node(m, gr_tree_left(node), index, next, depth);
    const uint8_t *b = sum_node(m, gr_tree_right(node), index, next, depth + 1);
    uint8_t *sum = m->sums + (size_t)depth * m->row_bytes;
    if (a && b) {
        m->add(sum, a, b, m->width);
        return sum;
    }
    if (b && b == sum + m->row_bytes) {
        memcpy(sum, b, m->row_bytes); /* where it lies belongs to what is right of this node */
        return sum;
    }
    return a ? a : b;
}

/* The lowest index that is still to be merged; false if there is none. */
static bool lowest(const gr_row_merge *m, uint32_t *index_out)
{
    bool found = false;
    for (int i = 0; i < m->unit_count; i++) {
        const gr_row_unit *unit = &m->units[i];
        if (unit->at < unit->rows && (!found || unit->indices[unit->at] < *index_out)) {
            *index_out = unit->indices[unit->at];
            found = true;
        }
    }
    return found;
}

void gr_rows_merge(gr_row_merge *merge)
{
    uint32_t index = 0;
    while (lowest(merge, &index)) {
        int next = 0;
        const uint8_t *row = sum_node(merge, (gr_tree_range){0, merge->shards}, index, &next, 0);
        merge->found(merge->found_arg, index, row);
    }
}
