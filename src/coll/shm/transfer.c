/* SPDX-License-Identifier: Apache-2.0 */

/* What an operation consists of, for every collective alike: the work is a row of elements, cut
 * into ranges. Each range of the result comes from one rank, or is a sum over all, and goes to
 * one rank or to all. Whoever is assigned a part of the row computes it straight from the
 * contributions into the results, in memory that is mapped here or, through the kernel, where it
 * is not.
 *
 * An alltoall is a row of pairs of ranks: who has a pair exchanges both of its blocks, so that
 * ranks in place and out of place may take part in one operation. */

#include "coll/shm/shm_coll_internal.h"

#include <string.h>

enum { COPY_BYTES = 64 << 10 }; /* that go to several ranks while they are in a cache */

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

static void copy_range(const gr_shm_coll_op *op, const shm_range *range)
{
    size_t most = range->to >= 0 ? range->count : COPY_BYTES / op->element_bytes;
    for (size_t done = 0; done < range->count; done += most) {
        size_t count = range->count - done < most ? range->count - done : most;
        const uint8_t *src = place(op->ins[range->from], op, range->first + done);
        for (int i = 0, to; (to = receiver(op, range->to, i)) >= 0; i++) {
            if (to != range->from || !is_in_place(op, to)) {
                memcpy(place(op->results[to], op, range->first + done), src,
                       count * op->element_bytes);
            }
        }
    }
}

/* ---- Pairs ----------------------------------------------------------------------------------- */
/* Elements [at, at + count) of what ranks a and b, which may be one, exchange. */
static void exchange(const gr_shm_coll_op *op, int a, int b, size_t at, size_t count)
{
    size_t bytes = count * op->element_bytes;
    const uint8_t *from_a = place(op->ins[a], op, op->firsts[b] + at);
    const uint8_t *from_b = place(op->ins[b], op, op->firsts[a] + at);
    uint8_t *to_a = place(op->results[a], op, op->firsts[b] + at);
    uint8_t *to_b = place(op->results[b], op, op->firsts[a] + at);
    bool in_place = is_in_place(op, a) || is_in_place(op, b);
    if (a == b && !in_place) {
        memcpy(to_a, from_a, bytes);
    } else if (a != b && !in_place) {
        memcpy(to_a, from_b, bytes);
        memcpy(to_b, from_a, bytes);
    }
    for (size_t i = 0; a != b && in_place && i < bytes; i += SHM_COLL_CHUNK) {
        size_t size = bytes - i < SHM_COLL_CHUNK ? bytes - i : SHM_COLL_CHUNK;
        uint8_t *room = op->shm->shms->temps;
        memcpy(room, from_a + i, size);
        memcpy(room + SHM_COLL_CHUNK, from_b + i, size);
        memcpy(to_a + i, room + SHM_COLL_CHUNK, size);
        memcpy(to_b + i, room, size);
    }
}

/* Part of pairs, of which the row has `largest` elements each: (0,0), (0,1), ... (1,1), (1,2),
 * ... */
static void exchange_range(const gr_shm_coll_op *op, size_t begin, size_t end)
{
    int size = op->shm->size;
    size_t pair = begin / op->largest;
    int a = 0;
    while (pair >= (size_t)(size - a)) {
        pair -= (size_t)(size - a++);
    }
    int b = a + (int)pair;
    while (begin < end) {
        size_t at = begin % op->largest, left = op->largest - at;
        size_t count = end - begin < left ? end - begin : left;
        exchange(op, a, b, at, count);
        begin += count;
        if (++b == size) {
            b = ++a;
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------------ */
static gr_status reduce_range(gr_shm_coll_op *op, const shm_range *range)
{
    op->out_count = 0;
    for (int i = 0, to; (to = receiver(op, range->to, i)) >= 0; i++) {
        op->out_ranks[op->out_count] = to;
        op->outs[op->out_count++] = (uint8_t *)op->results[to];
    }
    if (op->cma) {
        return gr_shm_coll_cma_add(op, range->first, range->first + range->count);
    }
    gr_shm_coll_add(op, range->first, range->first + range->count, 0);
    return GR_OK;
}

gr_status gr_shm_coll_do(gr_shm_coll_op *op, size_t begin, size_t end)
{
    if (op->coll == GR_COLL_ALLTOALL) {
        exchange_range(op, begin, end);
        return GR_OK;
    }
    gr_status status = GR_OK;
    while (begin < end && status == GR_OK) {
        shm_range range = range_at(op, begin);
        range.count = range.count < end - begin ? range.count : end - begin;
        if (range.from < 0) {
            status = reduce_range(op, &range);
        } else {
            copy_range(op, &range);
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
