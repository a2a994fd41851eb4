/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/lane_internal.h"

#include <string.h>

typedef enum window_counter { FILLED, REDUCED, COPIED } window_counter;

static _Atomic uint64_t *window_at(lane_area *area, window_counter which)
{
    return which == FILLED    ? &area->windows.filled
           : which == REDUCED ? &area->windows.reduced
                              : &area->windows.copied;
}

static bool all_windows(const gr_lane *lane, window_counter which, uint64_t least)
{
    for (int peer = 0; peer < lane->size; peer++) {
        if (atomic_load(window_at(lane->peers[peer].area, which)) < least) {
            return false;
        }
    }
    return true;
}

/* A contribution goes into our half of a window; everybody adds its share of all contributions to
 * the window into its own half, in place; and everybody copies all shares out. Two windows are
 * under way, so that filling one hides waiting for the other. */
static void window_range(const gr_lane_op *op, uint64_t window, size_t *begin, size_t *end)
{
    *begin = (size_t)(window - op->window_first) * op->window_elements;
    *end = op->count - *begin < op->window_elements ? op->count : *begin + op->window_elements;
}

static uint8_t *half(const gr_lane_op *op, int peer, uint64_t window)
{
    return op->lane->peers[peer].area->halves[window % 2];
}

static void store_window(const gr_lane_op *op, window_counter which, uint64_t value)
{
    gr_lane *lane = op->lane;
    atomic_store(window_at(lane->own, which), value);
    if (all_windows(lane, which, value)) {
        gr_lane_nudge_all(lane);
    }
}

static size_t stride_of(const gr_lane_op *op)
{
    return op->window_elements * op->element_bytes;
}

static bool can_fill(const gr_lane_op *op)
{
    uint64_t filled = atomic_load_explicit(&op->lane->own->windows.filled, memory_order_relaxed);
    return filled < op->window_end && (filled < 2 || all_windows(op->lane, COPIED, filled - 1));
}

static bool can_reduce(const gr_lane_op *op)
{
    const lane_windows *own = &op->lane->own->windows;
    uint64_t reduced = atomic_load_explicit(&own->reduced, memory_order_relaxed);
    return reduced < op->window_end && all_windows(op->lane, FILLED, reduced + 1);
}

static bool can_copy(const gr_lane_op *op)
{
    const lane_windows *own = &op->lane->own->windows;
    uint64_t copied = atomic_load_explicit(&own->copied, memory_order_relaxed);
    return copied < op->window_end && all_windows(op->lane, REDUCED, copied + 1);
}

/* The share that a rank adds up itself is read where it lies, and its sum goes to the result:
 * it passes through the window for the others only. A factor is applied while packing, though. */
static bool reads_own(const gr_lane_op *op)
{
    return op->prescale == 1;
}

/* Elements [*first, *last) of the window are the share of `rank`. */
static void share_of(const gr_lane_op *op, size_t begin, size_t end, int rank, size_t *first,
                     size_t *last)
{
    size_t size = (size_t)op->lane->size;
    *first = gr_lane_cut(end - begin, op->element_bytes, size, (size_t)rank);
    *last = gr_lane_cut(end - begin, op->element_bytes, size, (size_t)rank + 1);
}

static void fill_window(gr_lane_op *op)
{
    uint64_t window = atomic_load_explicit(&op->lane->own->windows.filled, memory_order_relaxed);
    size_t begin, end;
    window_range(op, window, &begin, &end);
    uint8_t *to = half(op, op->lane->rank, window);
    if (reads_own(op)) {
        size_t first, last;
        share_of(op, begin, end, op->lane->rank, &first, &last);
        gr_lane_pack(op, begin, begin + first, to, stride_of(op));
        gr_lane_pack(op, begin + last, end, to + last * op->element_bytes, stride_of(op));
    } else {
        gr_lane_pack(op, begin, end, to, stride_of(op));
    }
    store_window(op, FILLED, window + 1);
}

static void reduce_window(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    uint64_t window = atomic_load_explicit(&lane->own->windows.reduced, memory_order_relaxed);
    size_t begin, end, first, last;
    window_range(op, window, &begin, &end);
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        lane_leaf from = op->tree->leaves[leaf];
        op->at[leaf] = from.rank == lane->rank && reads_own(op)
                           ? op->inputs[from.input] + begin * op->element_bytes
                           : half(op, from.rank, window) + (size_t)from.input * stride_of(op);
    }
    op->outs[0] = half(op, lane->rank, window);
    op->outs[1] = op->out + begin * op->element_bytes;
    share_of(op, begin, end, lane->rank, &first, &last);
    gr_lane_add(op, begin + first, begin + last, begin);
    store_window(op, REDUCED, window + 1);
}

static void copy_window(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    uint64_t window = atomic_load_explicit(&lane->own->windows.copied, memory_order_relaxed);
    size_t begin, end, first, last;
    window_range(op, window, &begin, &end);
    for (int i = 1; i < lane->size; i++) {
        int peer = (lane->rank + i) % lane->size;
        share_of(op, begin, end, peer, &first, &last);
        memcpy(op->out + (begin + first) * op->element_bytes,
               half(op, peer, window) + first * op->element_bytes,
               (last - first) * op->element_bytes);
    }
    store_window(op, COPIED, window + 1);
}

/* The windows belong to the oldest operation alone. */
bool gr_lane_windows_can_move(const gr_lane_op *op)
{
    return op->lane->head == op &&
           (op->window_first == op->window_end || can_copy(op) || can_reduce(op) || can_fill(op));
}

static void begin_windows(gr_lane_op *op)
{
    size_t each = LANE_HALF / (size_t)op->tree->inputs_most / LANE_LINE * LANE_LINE;
    op->window_elements = each / op->element_bytes;
    op->window_first = op->lane->windows_next;
    op->window_end = op->window_first + (op->count + op->window_elements - 1) / op->window_elements;
    op->out_count = 2; /* the window and the result */
    op->scaled = true;
}

/* One step at most. */
void gr_lane_windows_move(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    if (lane->head != op) {
        return;
    }
    if (op->window_first == op->window_end) {
        begin_windows(op);
    }
    bool copy = can_copy(op);
    if (copy || can_reduce(op)) {
        if (copy) {
            copy_window(op);
        } else {
            reduce_window(op);
        }
    } else if (can_fill(op)) {
        fill_window(op);
    } else {
        return;
    }
    op->moved = true;
    if (atomic_load_explicit(&lane->own->windows.copied, memory_order_relaxed) == op->window_end) {
        lane->windows_next = op->window_end;
        gr_lane_finish(op);
    }
}

/* When a rank has added its share of all windows, it has no more to give. */
bool gr_lane_windows_need(const gr_lane_op *op, int peer)
{
    uint64_t reduced = atomic_load(&op->lane->peers[peer].area->windows.reduced);
    return op->window_first == op->window_end || reduced < op->window_end;
}
