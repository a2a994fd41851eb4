/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/lane_internal.h"

#include <string.h>

static uint8_t *temp(const gr_lane_op *op, int index)
{
    return op->lane->lanes->temps + (size_t)index * LANE_CHUNK;
}

/* A leaf or a sum under way; `spare`: where a leaf times prescale may lie. */
static const uint8_t *operand(const gr_lane_op *op, int32_t which, size_t offset, size_t count,
                              int spare)
{
    if (which >= 0) {
        return temp(op, which);
    }
    const uint8_t *leaf = op->at[~which] + offset;
    double factor = op->scaled ? 1 : op->prescales[op->tree->leaves[~which].rank];
    if (factor == 1) {
        return leaf;
    }
    gr_scale_to(temp(op, spare), leaf, count, op->dtype, factor);
    return temp(op, spare);
}

static void add(const gr_lane_op *op, uint8_t *dst, const uint8_t *a, const uint8_t *b,
                size_t count)
{
    if (op->user) {
        op->user(dst, a, b, count, op->user_arg);
    } else {
        op->reduce(dst, a, b, count);
    }
}

/* At most LANE_CHUNK bytes. The last addition may overwrite its operands: the result of a rank
 * often takes the place of its contribution, and all others of the chunk have been read by then. */
static void add_chunk(const gr_lane_op *op, size_t offset, size_t count)
{
    const lane_tree *tree = op->tree;
    uint8_t *out = op->outs[0] + offset;
    for (int i = 0; i < tree->step_count; i++) {
        const lane_step *step = &tree->steps[i];
        const uint8_t *a = operand(op, step->a, offset, count, LANE_TEMPS - 1);
        const uint8_t *b = operand(op, step->b, offset, count, LANE_TEMPS - 2);
        add(op, i + 1 < tree->step_count ? temp(op, step->dst) : out, a, b, count);
    }
    if (tree->step_count == 0) {
        const uint8_t *only = operand(op, ~0, offset, count, LANE_TEMPS - 1);
        if (only != out) {
            memcpy(out, only, count * op->element_bytes);
        }
    }
    if (op->divisor > 1) {
        gr_scale_inverse(out, count, op->dtype, op->divisor);
    }
    if (op->postscale != 1) {
        gr_scale(out, count, op->dtype, op->postscale);
    }
    for (int i = 1; i < op->out_count; i++) {
        if (op->outs[i] != op->outs[0]) {
            memcpy(op->outs[i] + offset, out, count * op->element_bytes);
        }
    }
}

void gr_lane_add(const gr_lane_op *op, size_t begin, size_t end, size_t origin)
{
    size_t chunk = op->tree->chunk_bytes / op->element_bytes;
    while (begin < end) {
        size_t count = end - begin < chunk ? end - begin : chunk;
        add_chunk(op, (begin - origin) * op->element_bytes, count);
        begin += count;
    }
}

void gr_lane_pack(const gr_lane_op *op, size_t begin, size_t end, uint8_t *to, size_t stride)
{
    for (int i = 0; i < op->input_count; i++) {
        const uint8_t *from = op->inputs[i] + begin * op->element_bytes;
        if (op->prescale != 1) {
            gr_scale_to(to + (size_t)i * stride, from, end - begin, op->dtype, op->prescale);
        } else {
            memcpy(to + (size_t)i * stride, from, (end - begin) * op->element_bytes);
        }
    }
}
