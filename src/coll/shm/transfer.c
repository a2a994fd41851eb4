/* SPDX-License-Identifier: Apache-2.0 */

/* What an operation consists of, for every collective alike: the work is a row of elements, cut
 * into ranges. Each range of the result comes from one rank, or is a sum over all, and goes to
 * one rank or to all. Whoever is assigned a part of the row computes it straight from the
 * contributions into the results, in memory that is mapped here or, through the kernel, where it
 * is not.
 *
 * An alltoall is a row of pairs of ranks: who has a pair exchanges both of its blocks, so that
 * ranks in place and out of place may take part in one operation. The share of a rank is of pairs
 * that it belongs to. */

#include "coll/shm/shm_coll_internal.h"

#include <string.h>

/* ---- Ranges ---------------------------------------------------------------------------------- */
typedef struct shm_range {
    size_t first, count; /* elements of the whole buffer */
    int from;            /* the rank that contributes it; -1: a sum over all */
    int to;              /* the rank that gets it; -1: all */
} shm_range;

void gr_shm_coll_extent(const gr_shm_coll_op *op, int rank, bool result, size_t *first, size_t *end)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    bool takes_part = result ? gr_coll_receives(op->coll, rank, op->root)
                             : gr_coll_gives(op->coll, rank, op->root);
    bool own = result ? traits->receives_own : traits->gives_own;
    *first = takes_part && own ? op->firsts[rank] : 0;
    *end = !takes_part ? 0 : own ? op->firsts[rank + 1] : op->firsts[op->blocks];
}

/* What stands from position `at` of the row on, up to the end of its range. Not of an alltoall. */
static shm_range range_at(const gr_shm_coll_op *op, size_t at)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    int block = 0;
    if (op->skips_root && at >= op->firsts[op->root]) {
        at += op->firsts[op->root + 1] - op->firsts[op->root];
    }
    while (op->firsts[block + 1] <= at) {
        block++;
    }
    return (shm_range){.first = at,
                       .count = op->firsts[block + 1] - at,
                       .from = traits->reduces                  ? -1
                               : traits->gives == GR_PARTY_ROOT ? op->root
                                                                : block,
                       .to = traits->receives_own                ? block
                             : traits->receives == GR_PARTY_ROOT ? op->root
                                                                 : -1};
}

/* The i-th rank that gets a range, ours first; -1: there are no more. */
static int receiver(const gr_shm_coll_op *op, int to, int i)
{
    if (to >= 0) {
        return i == 0 ? to : -1;
    }
    return i < op->shm->size ? (op->shm->rank + i) % op->shm->size : -1;
}

static uint8_t *place(uintptr_t base, const gr_shm_coll_op *op, size_t element)
{
    return (uint8_t *)(base + element * op->element_bytes);
}

/* ---- Copies ---------------------------------------------------------------------------------- */
static bool is_in_place(const gr_shm_coll_op *op, int rank)
{
    return op->ins[rank] == op->results[rank];
}

/* How many ranks do not have the range yet. */
static int copies_of(const gr_shm_coll_op *op, const shm_range *range)
{
    int copies = 0;
    for (int i = 0, to; (to = receiver(op, range->to, i)) >= 0; i++) {
        copies += to != range->from || !is_in_place(op, to);
    }
    return copies;
}

/* Of several ranks that get it this one is the first: it has what the others get from then on. */
static gr_status copy_range(gr_shm_coll_op *op, const shm_range *range)
{
    size_t most = range->count;
    if (copies_of(op, range) > 1) {
        most = SHM_COLL_COPY / op->element_bytes;
    }
    gr_status status = GR_OK;
    for (size_t done = 0; done < range->count; done += most) {
        size_t count = range->count - done < most ? range->count - done : most;
        int from = range->from;
        const uint8_t *src = place(op->ins[from], op, range->first + done);
        for (int i = 0, to; status == GR_OK && (to = receiver(op, range->to, i)) >= 0; i++) {
            uint8_t *dst = place(op->results[to], op, range->first + done);
            if (to != range->from || !is_in_place(op, to)) {
                status = gr_shm_coll_cma_copy(op, from, src, to, dst, count * op->element_bytes);
            }
            if (to == op->shm->rank && gr_shm_coll_is_far(op, from)) {
                from = to;
                src = dst;
            }
        }
    }
    return status;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */
typedef struct shm_end {
    int rank;
    const uint8_t *from;
    uint8_t *to;
} shm_end;

/* What both give is read before it is overwritten: of one of them it waits aside. */
static gr_status swap(gr_shm_coll_op *op, const shm_end *a, const shm_end *b, size_t size_bytes)
{
    size_t most = op->cma ? SHM_COLL_COPY : SHM_COLL_SWAP;
    uint8_t *aside = gr_shm_coll_room(op) + SHM_COLL_COPY; /* behind what passes through */
    int rank = op->shm->rank;
    gr_status status = GR_OK;
    for (size_t i = 0; i < size_bytes && status == GR_OK; i += most) {
        size_t size = size_bytes - i < most ? size_bytes - i : most;
        status = gr_shm_coll_cma_copy(op, a->rank, a->from + i, rank, aside, size);
        if (status == GR_OK) {
            status = gr_shm_coll_cma_copy(op, b->rank, b->from + i, a->rank, a->to + i, size);
        }
        if (status == GR_OK) {
            status = gr_shm_coll_cma_copy(op, rank, aside, b->rank, b->to + i, size);
        }
    }
    return status;
}

static shm_end end_of(const gr_shm_coll_op *op, int rank, int other, size_t at)
{
    return (shm_end){.rank = rank,
                     .from = place(op->ins[rank], op, op->firsts[other] + at),
                     .to = place(op->results[rank], op, op->firsts[other] + at)};
}

/* Elements [at, at + count) of what ranks a and b, which may be one, exchange. */
static gr_status exchange(gr_shm_coll_op *op, int a, int b, size_t at, size_t count)
{
    size_t size_bytes = count * op->element_bytes;
    shm_end of_a = end_of(op, a, b, at), of_b = end_of(op, b, a, at);
    bool in_place = is_in_place(op, a) || is_in_place(op, b);
    if (in_place) {
        return a == b ? GR_OK : swap(op, &of_a, &of_b, size_bytes);
    }
    gr_status status = gr_shm_coll_cma_copy(op, b, of_b.from, a, of_a.to, size_bytes);
    return status == GR_OK && a != b
               ? gr_shm_coll_cma_copy(op, a, of_a.from, b, of_b.to, size_bytes)
               : status;
}

/* Of which rank a begins the row with: (a,a), (a,a+1), ... as far as half of the ranks; two that
 * are as far from each other as can be have half of their pair each. */
static size_t pairs_of(const gr_shm_coll_op *op, int a)
{
    size_t size = (size_t)op->shm->size, half = op->largest / 2;
    size_t last = (size_t)a < size / 2 ? half : op->largest - half;
    return (size + 1) / 2 * op->largest + (size % 2 == 0 ? last : 0);
}

/* Part of the row. */
static gr_status exchange_range(gr_shm_coll_op *op, size_t begin, size_t end)
{
    int size = op->shm->size, a = 0;
    gr_status status = GR_OK;
    for (size_t first = 0; begin < end && status == GR_OK; first += pairs_of(op, a++)) {
        size_t next = first + pairs_of(op, a);
        while (begin < next && begin < end && status == GR_OK) {
            size_t further = (begin - first) / op->largest, at = (begin - first) % op->largest;
            size_t left = op->largest - at < next - begin ? op->largest - at : next - begin;
            size_t count = end - begin < left ? end - begin : left;
            bool second_half = 2 * further == (size_t)size && a >= size / 2;
            status = exchange(op, a, (a + (int)further) % size,
                              second_half ? at + op->largest / 2 : at, count);
            begin += count;
        }
    }
    return status;
}

/* ---- Sums ------------------------------------------------------------------------------------ */
static gr_status reduce_range(gr_shm_coll_op *op, const shm_range *range)
{
    op->out_count = 0;
    for (int i = 0, to; (to = receiver(op, range->to, i)) >= 0; i++) {
        op->out_ranks[op->out_count] = to;
        op->out_factors[op->out_count] = op->postscales[to];
        op->outs[op->out_count++] = (uint8_t *)op->results[to];
    }
    if (op->cma) {
        return gr_shm_coll_cma_add(op, range->first, range->first + range->count);
    }
    gr_shm_coll_add(op, range->first, range->first + range->count, 0);
    return GR_OK;
}

/* ---- The row --------------------------------------------------------------------------------- */
static void cut_evenly(const gr_shm_coll_op *op, size_t *begin, size_t *end)
{
    size_t size = (size_t)op->shm->size, rank = (size_t)op->shm->rank;
    *begin = gr_shm_coll_cut(op->work, op->element_bytes, size, rank);
    *end = gr_shm_coll_cut(op->work, op->element_bytes, size, rank + 1);
}

void gr_shm_coll_measure_row(gr_shm_coll_op *op)
{
    size_t size = (size_t)op->shm->size;
    op->skips_root = false;
    op->work = op->count;
    if (op->coll != GR_COLL_ALLTOALL) {
        cut_evenly(op, &op->own_begin, &op->own_end);
        return;
    }
    op->work = op->largest * (size * (size + 1) / 2);
    op->own_begin = 0;
    for (int before = 0; before < op->shm->rank; before++) {
        op->own_begin += pairs_of(op, before);
    }
    op->own_end = op->own_begin + pairs_of(op, op->shm->rank);
}

/* Of blocks that go through the kernel each of several ranks has its own: somebody else's would be
 * copied twice. One that stays where it is, is no work. */
void gr_shm_coll_share_row(gr_shm_coll_op *op)
{
    int rank = op->shm->rank;
    op->begin = op->own_begin;
    op->end = op->own_end;
    if (op->tree || op->blocks == 1 || op->coll == GR_COLL_ALLTOALL) {
        return;
    }
    bool by_block = op->cma && op->shm->size > 2;
    op->skips_root = !by_block && gr_coll_traits_of[op->coll].rooted && is_in_place(op, op->root);
    op->work = op->count;
    if (by_block) {
        op->begin = op->firsts[rank];
        op->end = op->firsts[rank + 1];
    } else if (op->skips_root) {
        op->work -= op->firsts[op->root + 1] - op->firsts[op->root];
        cut_evenly(op, &op->begin, &op->end);
    }
}

gr_status gr_shm_coll_do(gr_shm_coll_op *op, size_t begin, size_t end)
{
    if (op->coll == GR_COLL_ALLTOALL) {
        return exchange_range(op, begin, end);
    }
    gr_status status = GR_OK;
    while (begin < end && status == GR_OK) {
        shm_range range = range_at(op, begin);
        range.count = range.count < end - begin ? range.count : end - begin;
        if (range.from < 0) {
            status = reduce_range(op, &range);
        } else {
            status = copy_range(op, &range);
        }
        begin += range.count;
    }
    return status;
}

/* ---- Small ----------------------------------------------------------------------------------- */
/* Element `first` of what rank `from` contributes. */
static const uint8_t *packed_at(const gr_shm_coll_op *op, int from, size_t first)
{
    size_t begin = op->gives_own ? op->firsts[from] : 0;
    return gr_shm_coll_packed(op, from) + (first - begin) * op->element_bytes;
}

static void take_packed(const gr_shm_coll_op *op, int from, size_t first, size_t to, size_t count)
{
    const uint8_t *src = from == op->shm->rank ? op->inputs[0] + first * op->element_bytes
                                               : packed_at(op, from, first);
    uint8_t *dst = op->out + to * op->element_bytes;
    if (count > 0 && dst != src) {
        gr_shm_coll_copy(dst, src, count * op->element_bytes);
    }
}

static void add_packed(gr_shm_coll_op *op, size_t first, size_t end)
{
    size_t stride = op->packed_bytes / (size_t)op->tree->inputs_most;
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        shm_leaf from = op->tree->leaves[leaf];
        bool here = from.rank == op->shm->rank && op->prescale == 1;
        op->at[leaf] = here ? op->inputs[from.input] + first * op->element_bytes
                            : packed_at(op, from.rank, first) + (size_t)from.input * stride;
    }
    op->scaled = true;
    op->factor = op->postscale;
    op->factors_differ = false;
    op->outs[0] = op->out + first * op->element_bytes;
    op->out_count = 1;
    gr_shm_coll_add(op, first, end, first);
}

void gr_shm_coll_do_small(gr_shm_coll_op *op)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    int rank = op->shm->rank;
    size_t begin = op->taken, end = op->taken_end;
    if (traits->reduces) {
        add_packed(op, begin, end);
    } else if (traits->gives == GR_PARTY_ROOT) {
        take_packed(op, op->root, begin, begin, end - begin);
    } else if (op->gives_own) {
        for (int from = 0; from < op->shm->size; from++) {
            size_t first = op->firsts[from];
            take_packed(op, from, first, first, op->firsts[from + 1] - first);
        }
    } else { /* an alltoall */
        for (int from = 0; from < op->shm->size; from++) {
            take_packed(op, from, op->firsts[rank], op->firsts[from], op->firsts[1]);
        }
    }
}
