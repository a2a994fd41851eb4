/* SPDX-License-Identifier: Apache-2.0 */

/* What the verifier's parts share: how a fault is told, and what a step is. */

#include "sim/verify_internal.h"

#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- Words ----------------------------------------------------------------------------------- */
static void describe_operand(gr_operand operand, char *text, size_t size_bytes)
{
    if (operand.space == GR_SPACE_SCRATCH) {
        snprintf(text, size_bytes, "scratch %d", operand.slot);
    } else {
        snprintf(text, size_bytes, "block %u of %s %d", operand.block,
                 operand.space == GR_SPACE_INPUT ? "input" : "buffer", operand.slot);
    }
}

static void describe_step(const gr_step *step, char *text, size_t size_bytes)
{
    char dst[48], a[48], b[48];
    describe_operand(step->dst, dst, sizeof dst);
    describe_operand(step->a, a, sizeof a);
    describe_operand(step->b, b, sizeof b);
    switch (step->kind) {
    case GR_STEP_SEND:
        snprintf(text, size_bytes, "send %s to rank %d", a, step->peer);
        break;
    case GR_STEP_RECV:
        snprintf(text, size_bytes, "receive from rank %d into %s", step->peer, dst);
        break;
    case GR_STEP_REDUCE:
        snprintf(text, size_bytes, "add %s and %s into %s", a, b, dst);
        break;
    case GR_STEP_COPY:
        snprintf(text, size_bytes, "copy %s to %s", a, dst);
        break;
    case GR_STEP_SIGNAL:
        snprintf(text, size_bytes, "signal rank %d", step->peer);
        break;
    case GR_STEP_AWAIT:
        snprintf(text, size_bytes, "await rank %d", step->peer);
        break;
    default:
        snprintf(text, size_bytes, "step of unknown kind %d", step->kind);
        break;
    }
}

gr_status gr_verify_wrong(const gr_verify *v, int rank, uint32_t step, const char *format, ...)
{
    char what[256], where[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (step >= v->plans[rank].step_count) {
        return gr_fail_peer(v->diag, GR_E_BUG, rank,
                            "%s plan, rank %d of %d, after its last step: %s",
                            gr_coll_name(v->plans[rank].shape.coll), rank, v->world_size, what);
    }
    describe_step(&v->plans[rank].steps[step], where, sizeof where);
    return gr_fail_peer(v->diag, GR_E_BUG, rank, "%s plan, rank %d of %d, step %u (%s): %s",
                        gr_coll_name(v->plans[rank].shape.coll), rank, v->world_size, step, where,
                        what);
}

gr_status gr_verify_no_memory(const gr_verify *v)
{
    return gr_fail(v->diag, GR_E_NO_MEMORY, "no memory to verify the plans of %d ranks, %u steps",
                   v->world_size, v->total);
}

/* ---- Looking up ------------------------------------------------------------------------------ */
int gr_verify_rank_of(const gr_verify *v, uint32_t number)
{
    int low = 0;
    int high = v->world_size;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (v->first[middle] <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int gr_step_accesses(const gr_step *step, gr_access accesses_out[GR_ACCESSES_MAX])
{
    switch (step->kind) {
    case GR_STEP_SEND:
        accesses_out[0] = (gr_access){step->a, false};
        return 1;
    case GR_STEP_RECV:
        accesses_out[0] = (gr_access){step->dst, true};
        return 1;
    case GR_STEP_REDUCE:
        accesses_out[0] = (gr_access){step->a, false};
        accesses_out[1] = (gr_access){step->b, false};
        accesses_out[2] = (gr_access){step->dst, true};
        return 3;
    case GR_STEP_COPY:
        accesses_out[0] = (gr_access){step->a, false};
        accesses_out[1] = (gr_access){step->dst, true};
        return 2;
    default:
        return 0;
    }
}
