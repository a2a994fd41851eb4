/* SPDX-License-Identifier: Apache-2.0 */

/* The additions, and which rank does which of them. */

#include "coll/shm/shm_coll_internal.h"

#include <sched.h>
#include <string.h>

enum { SHARE_BYTES = 32 << 10, SHARE_BYTES_MIN = 4 << 10, SHARES_MAX = 32 };

static uint8_t *temp(const gr_shm_coll_op *op, int index)
{
    return op->shm->shms->temps + (size_t)index * SHM_COLL_CHUNK;
}

/* A leaf or a sum under way; `spare`: where a leaf times prescale may lie. */
static const uint8_t *operand(const gr_shm_coll_op *op, int32_t which, size_t offset, size_t count,
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

static void add(const gr_shm_coll_op *op, uint8_t *dst, const uint8_t *a, const uint8_t *b,
                size_t count)
{
    if (op->user) {
        op->user(dst, a, b, count, op->user_arg);
    } else {
        op->reduce(dst, a, b, count);
    }
}

/* The first result stands, not multiplied: the others, from `written` on, come from it. */
static void give_results(const gr_shm_coll_op *op, int written, size_t offset, size_t count)
{
    uint8_t *out = op->outs[0] + offset;
    for (int i = written; i < op->out_count; i++) {
        if (op->factors_differ) {
            gr_scale_to(op->outs[i] + offset, out, count, op->dtype, op->out_factors[i]);
        } else if (op->outs[i] != op->outs[0]) {
            memcpy(op->outs[i] + offset, out, count * op->element_bytes);
        }
    }
    if (op->factors_differ && op->out_factors[0] != 1) {
        gr_scale(out, count, op->dtype, op->out_factors[0]);
    }
}

/* At most SHM_COLL_CHUNK bytes. The last addition may overwrite its operands: the result of a rank
 * often takes the place of its contribution, and all others of the chunk have been read by then. */
static void add_chunk(const gr_shm_coll_op *op, size_t offset, size_t count)
{
    const shm_tree *tree = op->tree;
    uint8_t *out = op->outs[0] + offset;
    int written = 1; /* of the results */
    for (int i = 0; i < tree->step_count; i++) {
        const shm_step *step = &tree->steps[i];
        const uint8_t *a = operand(op, step->a, offset, count, SHM_COLL_TEMPS - 1);
        const uint8_t *b = operand(op, step->b, offset, count, SHM_COLL_TEMPS - 2);
        if (i + 1 < tree->step_count) {
            add(op, temp(op, step->dst), a, b, count);
        } else if (op->out_count > 1 && op->reduce_both && !op->factors_differ) {
            op->reduce_both(out, op->outs[written++] + offset, a, b, count);
        } else {
            add(op, out, a, b, count);
        }
    }
    if (tree->step_count == 0) {
        const uint8_t *only = operand(op, ~0, offset, count, SHM_COLL_TEMPS - 1);
        if (only != out) {
            memcpy(out, only, count * op->element_bytes);
        }
    }
    if (op->divisor > 1) {
        gr_scale_inverse(out, count, op->dtype, op->divisor);
    }
    if (op->factor != 1) {
        gr_scale(out, count, op->dtype, op->factor);
    }
    give_results(op, written, offset, count);
}

void gr_shm_coll_add(const gr_shm_coll_op *op, size_t begin, size_t end, size_t origin)
{
    while (begin < end) {
        size_t count = end - begin < op->chunk ? end - begin : op->chunk;
        add_chunk(op, (begin - origin) * op->element_bytes, count);
        begin += count;
    }
}

void gr_shm_coll_pack(const gr_shm_coll_op *op, size_t begin, size_t end, uint8_t *to,
                      size_t stride, gr_stream *stream, uint64_t round)
{
    for (int i = 0; i < op->input_count; i++) {
        const uint8_t *from = op->inputs[i] + begin * op->element_bytes;
        if (op->prescale != 1) {
            gr_scale_to(to + (size_t)i * stride, from, end - begin, op->dtype, op->prescale);
        } else {
            gr_stream_copy(stream, round, to + (size_t)i * stride, from,
                           (end - begin) * op->element_bytes);
        }
    }
}

/* ---- Shares ---------------------------------------------------------------------------------- */
size_t gr_shm_coll_cut(size_t count, size_t element_bytes, size_t parts, size_t part)
{
    size_t line = SHM_COLL_LINE / element_bytes;
    size_t lines = (count + line - 1) / line;
    size_t at = (lines * part / parts) * line;
    return at < count ? at : count;
}

/* As many for each core, if it is worth it. */
static uint32_t count_shares(const gr_shm_coll_op *op)
{
    size_t size_bytes = op->work * op->element_bytes, cores = op->cores;
    size_t each = op->cma && op->tree ? gr_shm_coll_cma_piece(op) : SHARE_BYTES;
    if (size_bytes / SHARE_BYTES_MIN < cores) {
        return 1;
    }
    size_t most = cores < SHARES_MAX ? SHARES_MAX / cores * cores : SHARES_MAX;
    size_t shares = ((size_bytes - 1) / (each * cores) + 1) * cores;
    return (uint32_t)(shares < most ? shares : most);
}

void gr_shm_coll_assign(gr_shm_coll_op *op)
{
    gr_shm_coll_share_row(op);
    op->claims = !op->shm->not_oversubscribed && (!op->cma || op->tree);
    if (!op->claims) {
        op->state = SHM_COLL_DIRECT;
        return;
    }
    op->shares = count_shares(op);
    op->shares_done = 0;
    op->state = SHM_COLL_CLAIM;
}

/* What was read of a rank that has revoked its memory may be anything: then our share does not
 * count, and the operation ends for us as it did for that rank. */
static bool is_in_vain(gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
#if !defined(__SANITIZE_THREAD__) /* which knows no fences */
    atomic_thread_fence(memory_order_acquire);
#endif
    for (int peer = 0; peer < shm->size; peer++) {
        if (atomic_load(&shm->peers[peer].area->revoked) != 0) {
            op->state = SHM_COLL_FAILED;
            op->arrived = peer;
            return true;
        }
    }
    return false;
}

gr_status gr_shm_coll_add_own(gr_shm_coll_op *op)
{
    size_t most = SHM_COLL_BUDGET / op->element_bytes;
    size_t end = op->end - op->begin < most ? op->end : op->begin + most;
    gr_status status = gr_shm_coll_do(op, op->begin, end);
    if (status != GR_OK) {
        return status;
    }
    op->begin = end;
    op->moved = true;
    return op->begin == op->end && !is_in_vain(op) ? GR_OK : GR_PENDING;
}

shm_work_bitmap *gr_shm_coll_claim_of(const gr_shm_coll_op *op)
{
    return &op->shm->work_bitmaps[op->seq % SHM_COLL_PLACES];
}

/* The lower half of a word counts for this operation from here on. */
static void claim_word(_Atomic uint64_t *word, uint32_t seq)
{
    uint32_t own = seq + 1; /* begins anew after 2^32 operations */
    uint64_t seen = atomic_load(word);
    while (seen >> 32 != own && !atomic_compare_exchange_weak(word, &seen, (uint64_t)own << 32)) {
    }
}

/* A share that nobody has taken, at best one that this core took the last time: what it touches may
 * still lie in its cache. `shares`: none is left. */
static uint32_t take_share(const gr_shm_coll_op *op)
{
    _Atomic uint64_t *taken = &gr_shm_coll_claim_of(op)->taken;
    int core = sched_getcpu();
    uint32_t cores = op->cores;
    uint32_t first = core > 0 ? (uint32_t)core % cores * op->shares / cores : 0;
    claim_word(taken, op->seq);
    uint64_t seen = atomic_load(taken);
    for (uint32_t i = 0; i < op->shares; i++) {
        uint32_t share = (first + i) % op->shares;
        uint64_t bit = UINT64_C(1) << share;
        if ((seen & bit) == 0) {
            seen = atomic_fetch_or(taken, bit);
            if ((seen & bit) == 0) {
                return share;
            }
        }
    }
    return op->shares;
}

/* With fewer cores than ranks, whoever runs does the work: a rank's own share would wait until the
 * rank is scheduled. */
gr_status gr_shm_coll_add_free(gr_shm_coll_op *op)
{
    uint32_t part = take_share(op);
    op->moved = true;
    if (part < op->shares) {
        gr_status status =
            gr_shm_coll_do(op, gr_shm_coll_cut(op->work, op->element_bytes, op->shares, part),
                           gr_shm_coll_cut(op->work, op->element_bytes, op->shares, part + 1));
        op->shares_done += status == GR_OK;
        return status == GR_OK ? GR_PENDING : status;
    }
    if (op->shares_done > 0 && is_in_vain(op)) {
        return GR_PENDING;
    }
    _Atomic uint64_t *done = &gr_shm_coll_claim_of(op)->done;
    op->state = SHM_COLL_DONE;
    if (op->shares_done > 0) {
        claim_word(done, op->seq);
        uint32_t before = (uint32_t)atomic_fetch_add(done, op->shares_done);
        if (before + op->shares_done == op->shares) {
            gr_shm_coll_wake_all(op->shm);
        }
    }
    atomic_store_explicit(gr_shm_coll_done_of(op, op->shm->rank), op->seq + 1,
                          memory_order_release);
    return GR_PENDING;
}
