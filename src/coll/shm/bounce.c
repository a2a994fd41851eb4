/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/shm/shm_coll_internal.h"

#include <string.h>

typedef enum window_counter { FILLED, REDUCED, COPIED } window_counter;

static _Atomic uint64_t *window_at(shm_area *area, window_counter which)
{
    return which == FILLED    ? &area->windows.filled
           : which == REDUCED ? &area->windows.reduced
                              : &area->windows.copied;
}

static bool all_windows(const gr_shm_coll *shm, window_counter which, uint64_t least)
{
    for (int peer = 0; peer < shm->size; peer++) {
        if (atomic_load(window_at(shm->peers[peer].area, which)) < least) {
            return false;
        }
    }
    return true;
}

/* Each rank has a ring of windows. A contribution goes into the window of its rank; every rank adds
 * its share of all contributions into its own window, in place, and copies all shares out. Several
 * windows are in flight: one rank fills the next while another empties the one before. */
static void window_range(const gr_shm_coll_op *op, uint64_t window, size_t *begin, size_t *end)
{
    *begin = (size_t)(window - op->window_first) * op->window_elements;
    *end = op->count - *begin < op->window_elements ? op->count : *begin + op->window_elements;
}

static uint8_t *window_of(const gr_shm_coll_op *op, int peer, uint64_t window)
{
    size_t slots = SHM_COLL_RING / op->window_bytes;
    return op->shm->peers[peer].area->ring + (size_t)(window % slots) * op->window_bytes;
}

static void store_window(const gr_shm_coll_op *op, window_counter which, uint64_t value)
{
    gr_shm_coll *shm = op->shm;
    atomic_store(window_at(shm->own, which), value);
    if (all_windows(shm, which, value)) {
        gr_shm_coll_wake_all(shm);
    }
}

static size_t stride_of(const gr_shm_coll_op *op)
{
    return op->window_elements * op->element_bytes;
}

static bool can_fill(const gr_shm_coll_op *op)
{
    uint64_t filled = atomic_load_explicit(&op->shm->own->windows.filled, memory_order_relaxed);
    uint64_t slots = SHM_COLL_RING / op->window_bytes;
    /* The operation before may have had windows of another size: all of them are empty first. */
    uint64_t least = filled - op->window_first < slots ? op->window_first : filled + 1 - slots;
    return filled < op->window_end && all_windows(op->shm, COPIED, least);
}

static bool can_reduce(const gr_shm_coll_op *op)
{
    const shm_bounce *own = &op->shm->own->windows;
    uint64_t reduced = atomic_load_explicit(&own->reduced, memory_order_relaxed);
    return reduced < op->window_end && all_windows(op->shm, FILLED, reduced + 1);
}

static bool can_copy(const gr_shm_coll_op *op)
{
    const shm_bounce *own = &op->shm->own->windows;
    uint64_t copied = atomic_load_explicit(&own->copied, memory_order_relaxed);
    return copied < op->window_end && all_windows(op->shm, REDUCED, copied + 1);
}

/* The share that a rank adds up itself is read where it lies, and its sum goes to the result:
 * it passes through the window for the others only. A factor is applied while packing, though. */
static bool reads_own(const gr_shm_coll_op *op)
{
    return op->prescale == 1;
}

/* Elements [*first, *last) of the window are the share of `rank`. */
static void share_of(const gr_shm_coll_op *op, size_t begin, size_t end, int rank, size_t *first,
                     size_t *last)
{
    size_t size = (size_t)op->shm->size;
    *first = gr_shm_coll_cut(end - begin, op->element_bytes, size, (size_t)rank);
    *last = gr_shm_coll_cut(end - begin, op->element_bytes, size, (size_t)rank + 1);
}

/* ---- What is not added up by shares ---------------------------------------------------------- */
/* A window holds the same part of every block that a rank gives; each rank takes what is its own
 * straight from the windows of the others. */
static bool gives_one_block(const gr_shm_coll_op *op)
{
    return op->blocks == 1 || gr_coll_traits_of[op->coll].gives_own;
}

static void slice_of(const gr_shm_coll_op *op, int block, uint64_t window, size_t *first,
                     size_t *end)
{
    size_t at = (size_t)(window - op->window_first) * op->window_elements;
    *first = op->firsts[block] + at;
    *first = *first < op->firsts[block + 1] ? *first : op->firsts[block + 1];
    size_t left = op->firsts[block + 1] - *first;
    *end = *first + (left < op->window_elements ? left : op->window_elements);
}

static const uint8_t *slice_at(const gr_shm_coll_op *op, int peer, int block, uint64_t window)
{
    size_t index = gives_one_block(op) ? 0 : (size_t)block;
    return window_of(op, peer, window) + index * stride_of(op);
}

/* Nobody else reads this block of our part, and we read it where it lies. */
static bool is_ours_alone(const gr_shm_coll_op *op, int block)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    bool alone = traits->receives_own || op->coll == GR_COLL_ALLTOALL ? block == op->shm->rank
                                                                      : op->shm->rank == op->root;
    return alone && reads_own(op) &&
           (traits->receives == GR_PARTY_ROOT || traits->receives_own ||
            op->coll == GR_COLL_ALLTOALL);
}

static void pack(const gr_shm_coll_op *op, size_t begin, size_t end, uint8_t *to, size_t stride)
{
    gr_shm_coll_pack(op, begin, end, to, stride, &op->shm->to_windows,
                     op->shm->windows_bytes / SHM_COLL_RING);
}

static void fill_slices(gr_shm_coll_op *op, uint64_t window)
{
    int rank = op->shm->rank;
    bool own = gr_coll_traits_of[op->coll].gives_own;
    for (int block = own ? rank : 0; block < (own ? rank + 1 : op->blocks); block++) {
        if (is_ours_alone(op, block)) {
            continue;
        }
        size_t first, end;
        slice_of(op, block, window, &first, &end);
        uint8_t *to =
            window_of(op, rank, window) + (gives_one_block(op) ? 0 : (size_t)block) * stride_of(op);
        pack(op, first, end, to, 0);
    }
}

static void take_sum(gr_shm_coll_op *op, int block, uint64_t window, size_t first, size_t end)
{
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        int from = op->tree->leaves[leaf].rank;
        op->at[leaf] = from == op->shm->rank && reads_own(op)
                           ? op->inputs[0] + first * op->element_bytes
                           : slice_at(op, from, block, window);
    }
    op->outs[0] = op->out + first * op->element_bytes;
    op->out_factors[0] = op->postscale;
    op->out_count = 1;
    gr_shm_coll_add(op, first, end, first);
}

static void take_slices(gr_shm_coll_op *op, uint64_t window)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    int rank = op->shm->rank;
    bool own = traits->receives_own, all = op->coll == GR_COLL_ALLTOALL;
    bool receives = gr_coll_receives(op->coll, rank, op->root);
    for (int block = own ? rank : 0; receives && block < (own ? rank + 1 : op->blocks); block++) {
        size_t first, end, given, given_end;
        slice_of(op, block, window, &first, &end);
        if (traits->reduces) {
            take_sum(op, block, window, first, end);
            continue;
        }
        int from = traits->gives == GR_PARTY_ROOT ? op->root : block;
        slice_of(op, all ? rank : block, window, &given, &given_end);
        const uint8_t *src = from == rank ? op->inputs[0] + given * op->element_bytes
                                          : slice_at(op, from, all ? rank : block, window);
        uint8_t *dst = op->out + first * op->element_bytes;
        if (dst != src && first < end) {
            memcpy(dst, src, (end - first) * op->element_bytes);
        }
    }
}

static bool can_take(const gr_shm_coll_op *op)
{
    uint64_t copied = atomic_load_explicit(&op->shm->own->windows.copied, memory_order_relaxed);
    return copied < op->window_end && all_windows(op->shm, FILLED, copied + 1);
}

static void take_window(gr_shm_coll_op *op)
{
    uint64_t window = atomic_load_explicit(&op->shm->own->windows.copied, memory_order_relaxed);
    take_slices(op, window);
    store_window(op, REDUCED, window + 1);
    store_window(op, COPIED, window + 1);
}

static void fill_window(gr_shm_coll_op *op)
{
    uint64_t window = atomic_load_explicit(&op->shm->own->windows.filled, memory_order_relaxed);
    op->shm->windows_bytes += op->window_bytes;
    if (op->coll != GR_COLL_ALLREDUCE) {
        if (op->input_count > 0) {
            fill_slices(op, window);
        }
        store_window(op, FILLED, window + 1);
        return;
    }
    size_t begin, end;
    window_range(op, window, &begin, &end);
    uint8_t *to = window_of(op, op->shm->rank, window);
    if (reads_own(op)) {
        size_t first, last;
        share_of(op, begin, end, op->shm->rank, &first, &last);
        pack(op, begin, begin + first, to, stride_of(op));
        pack(op, begin + last, end, to + last * op->element_bytes, stride_of(op));
    } else {
        pack(op, begin, end, to, stride_of(op));
    }
    store_window(op, FILLED, window + 1);
}

static void reduce_window(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    uint64_t window = atomic_load_explicit(&shm->own->windows.reduced, memory_order_relaxed);
    size_t begin, end, first, last;
    window_range(op, window, &begin, &end);
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        shm_leaf from = op->tree->leaves[leaf];
        op->at[leaf] = from.rank == shm->rank && reads_own(op)
                           ? op->inputs[from.input] + begin * op->element_bytes
                           : window_of(op, from.rank, window) + (size_t)from.input * stride_of(op);
    }
    share_of(op, begin, end, shm->rank, &first, &last);
    uint8_t *own = window_of(op, shm->rank, window), *out = op->out + begin * op->element_bytes;
    /* The sum passes by the caches on its way to the others alone. */
    bool aside = shm->to_windows.past_caches && !op->factors_differ;
    op->outs[0] = aside ? out : own;
    op->outs[1] = out;
    op->out_factors[0] = 1;
    op->out_factors[1] = op->postscale;
    op->out_count = aside ? 1 : 2;
    gr_shm_coll_add(op, begin + first, begin + last, begin);
    if (aside) {
        size_t at = first * op->element_bytes;
        gr_stream_copy(&shm->to_windows, shm->windows_bytes / SHM_COLL_RING, own + at, out + at,
                       (last - first) * op->element_bytes);
    }
    store_window(op, REDUCED, window + 1);
}

static void copy_window(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    uint64_t window = atomic_load_explicit(&shm->own->windows.copied, memory_order_relaxed);
    size_t begin, end, first, last;
    window_range(op, window, &begin, &end);
    for (int i = 1; i < shm->size; i++) {
        int peer = (shm->rank + i) % shm->size;
        share_of(op, begin, end, peer, &first, &last);
        uint8_t *to = op->out + (begin + first) * op->element_bytes;
        const uint8_t *from = window_of(op, peer, window) + first * op->element_bytes;
        if (op->factors_differ && op->postscale != 1) {
            gr_scale_to(to, from, last - first, op->dtype, op->postscale);
        } else {
            memcpy(to, from, (last - first) * op->element_bytes);
        }
    }
    store_window(op, COPIED, window + 1);
}

/* The windows belong to the oldest operation alone. */
bool gr_shm_coll_windows_can_move(const gr_shm_coll_op *op)
{
    return op->shm->head == op &&
           (op->window_first == op->window_end || can_fill(op) ||
            (op->coll == GR_COLL_ALLREDUCE ? can_copy(op) || can_reduce(op) : can_take(op)));
}

static void begin_windows(gr_shm_coll_op *op)
{
    size_t parts = op->tree ? (size_t)op->tree->inputs_most : 1;
    parts = gives_one_block(op) ? parts : (size_t)op->blocks;
    size_t each = SHM_COLL_WINDOW / parts / SHM_COLL_LINE * SHM_COLL_LINE;
    each = each < SHM_COLL_WINDOW_PART ? SHM_COLL_WINDOW_PART : each;
    op->window_bytes = each * parts;
    op->window_elements = each / op->element_bytes;
    op->window_first = op->shm->windows_next;
    op->window_end =
        op->window_first + (op->largest + op->window_elements - 1) / op->window_elements;
    op->scaled = true;
}

/* One step at most. */
void gr_shm_coll_windows_move(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    if (shm->head != op) {
        return;
    }
    if (op->window_first == op->window_end) {
        begin_windows(op);
    }
    bool shares = op->coll == GR_COLL_ALLREDUCE;
    if (!shares && can_take(op)) {
        take_window(op);
    } else if (shares && can_copy(op)) {
        copy_window(op);
    } else if (shares && can_reduce(op)) {
        reduce_window(op);
    } else if (can_fill(op)) {
        fill_window(op);
    } else {
        return;
    }
    op->moved = true;
    if (atomic_load_explicit(&shm->own->windows.copied, memory_order_relaxed) == op->window_end) {
        shm->windows_next = op->window_end;
        gr_shm_coll_finish(op);
    }
}

/* When a rank has added its share of all windows, it has no more to give. */
bool gr_shm_coll_windows_need(const gr_shm_coll_op *op, int peer)
{
    uint64_t reduced = atomic_load(&op->shm->peers[peer].area->windows.reduced);
    return op->window_first == op->window_end || reduced < op->window_end;
}
