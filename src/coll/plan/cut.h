/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_CUT_H
#define GR_COLL_PLAN_CUT_H

/* How buffers are cut: into blocks, which a plan names; a block into segments, each a message; and
 * how many segments are in scratch at a time (a slice). The executor, the cost model and the
 * simulator cut alike. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GR_CUT_LINE_BYTES = 64 };

/* Block b has `block_units` units, one more if b < `block_extra`; the last one ends with the
 * buffer, so that the last blocks of a small buffer are empty. */
typedef struct gr_cut {
    size_t total_bytes, unit_bytes, block_units, block_extra;
    size_t largest; /* bytes of the largest block, with its unit filled */
} gr_cut;

/* Into equal blocks of whole elements, of which there are enough; `element_bytes` 0: on cache
 * lines, so that no two ranks write to one line. */
static inline gr_cut gr_cut_evenly(size_t total_bytes, size_t blocks, size_t element_bytes)
{
    const size_t line_bytes = GR_CUT_LINE_BYTES;
    bool equal = element_bytes > 0;
    size_t units =
        equal ? total_bytes / element_bytes : (total_bytes + line_bytes - 1) / line_bytes;
    gr_cut cut = {.total_bytes = total_bytes, .unit_bytes = equal ? element_bytes : line_bytes};
    cut.block_units = blocks > 1 ? units / blocks : units;
    cut.block_extra = equal ? 0 : units - cut.block_units * blocks;
    cut.largest = (cut.block_units + (cut.block_extra > 0)) * cut.unit_bytes;
    return cut;
}

static inline size_t gr_cut_offset(const gr_cut *cut, size_t block)
{
    size_t extra = block < cut->block_extra ? block : cut->block_extra;
    size_t offset = (block * cut->block_units + extra) * cut->unit_bytes;
    return offset < cut->total_bytes ? offset : cut->total_bytes;
}

static inline size_t gr_cut_block_bytes(const gr_cut *cut, size_t block)
{
    return gr_cut_offset(cut, block + 1) - gr_cut_offset(cut, block);
}

/* Of a block; 0: it is empty. */
static inline uint32_t gr_cut_segments(size_t block_bytes, size_t segment_bytes)
{
    if (block_bytes <= segment_bytes) {
        return block_bytes > 0; /* small operations feel a division */
    }
    return (uint32_t)((block_bytes + segment_bytes - 1) / segment_bytes);
}

/* Segments of a slice of `slice_bytes`. At least two: while one is on its way, the other one is
 * added. */
static inline uint32_t gr_cut_slice(uint32_t segments, size_t segment_bytes, size_t slice_bytes)
{
    size_t slice = segments > 2 ? slice_bytes / segment_bytes : 2;
    slice = slice > 2 ? slice : 2;
    slice = slice < segments ? slice : segments;
    return slice > 0 ? (uint32_t)slice : 1;
}

#endif
