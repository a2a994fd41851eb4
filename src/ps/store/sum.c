/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/store/sum.h"

#include "base/fail.h"
#include "coll/plan/plan.h"
#include "coll/sparse/cast.h"

#include <string.h>

/* Like a binary counter: sums lie on a stack, the two topmost become one when they are the children
 * of one node. */
int gr_ps_sum_plan(int shards, gr_ps_part *parts, int part_count)
{
    gr_tree_range stack[GR_PS_SUM_DEPTH];
    int depth = 0;
    int most = 0;
    for (int i = 0; i < part_count; i++) {
        GR_CHECK(depth < GR_PS_SUM_DEPTH);
        parts[i].merges = 0;
        stack[depth++] = (gr_tree_range){parts[i].first, parts[i].count};
        most = depth > most ? depth : most;
        while (depth > 1 && gr_tree_siblings(shards, stack[depth - 2], stack[depth - 1])) {
            stack[depth - 2].count += stack[depth - 1].count;
            depth--;
            parts[i].merges++;
        }
    }
    GR_CHECK(depth == 1 && stack[0].count == shards);
    /* The topmost of the stack is never a sum while another one is made above it. */
    return most > 1 ? most - 1 : 0;
}

void gr_ps_add(const gr_ps_adder *add, float *sum, const float *a, const float *b, size_t count)
{
    add->add(sum, a, b, count);
    if (add->type != GR_F32) {
        gr_round_cast(add->type, sum, count);
    }
}

const float *gr_ps_sum_piece(const gr_ps_adder *add, const gr_ps_part *parts, int part_count,
                             size_t at, size_t count, float *scratch, float *out)
{
    const float *stack[GR_PS_SUM_DEPTH];
    int depth = 0;
    for (int i = 0; i < part_count; i++) {
        stack[depth++] = parts[i].values + at;
        for (int m = 0; m < parts[i].merges; m++) {
            depth--;
            float *sum =
                depth == 1 && out != NULL ? out : scratch + (size_t)(depth - 1) * GR_PS_PIECE;
            gr_ps_add(add, sum, stack[depth - 1], stack[depth], count);
            stack[depth - 1] = sum;
        }
    }
    if (out != NULL && part_count == 1) {
        memcpy(out, stack[0], count * sizeof *out);
        return out;
    }
    return stack[0];
}
