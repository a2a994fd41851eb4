/* SPDX-License-Identifier: Apache-2.0 */

/* Memory that is not shared, through the kernel: who adds a share fetches a piece of all
 * contributions into its second cache, adds there, and puts the sum where the others want it. Each
 * byte passes through the kernel once on its way in and once on its way out, and through no window.
 * Where ranks share cores, whoever runs takes shares (lane_work.c): nobody leaves its core for the
 * sake of a window, and a core keeps its shares of all buffers in its cache. What that costs is a
 * system call for each piece of each rank, and the kernel's look at each page: with many ranks, or
 * few bytes, windows are faster (gr_lane_way_of).
 *
 * What peers write into is plain memory, which its owner may use for anything once the operation is
 * over, a failed one as well. So who writes says first into whose memory, and then looks whether
 * that one has shut the lane; who gives an operation up shuts it first, and waits for those who
 * write there. These stores and loads have one order: no write begins after the wait. (Only a
 * process that is stopped between the look and the write, for longer than we wait, would still
 * write.) */

#include "base/clock.h"
#include "coll/lane_internal.h"

#include <sched.h>
#include <string.h>

enum { CLOSE_MS = 1000 };

bool gr_lane_cma_can(const gr_lane *lane)
{
    bool all = true;
    for (int peer = 0; peer < lane->size; peer++) {
        all = all && gr_mesh_cma(lane->lanes->mesh, lane->peers[peer].world);
    }
    return all;
}

/* Not everything that a process can read can the kernel copy for others: memory of a device, say.
 * We try both ends of a buffer once. */
static bool is_usable(gr_lane *lane, const void *mem, size_t size_bytes, bool written)
{
    uintptr_t at = (uintptr_t)mem;
    for (int i = 0; i < LANE_KNOWN; i++) {
        const lane_known *known = &lane->known[i];
        if (known->at == at && known->size_bytes >= size_bytes && (known->written || !written)) {
            return true;
        }
    }
    gr_mesh *mesh = lane->lanes->mesh;
    int self = lane->peers[lane->rank].world;
    const uint64_t ends[] = {at, at + size_bytes - 1};
    for (int i = 0; i < 2; i++) {
        uint8_t byte;
        if (gr_mesh_cma_read(mesh, self, ends[i], &byte, 1) != GR_OK ||
            (written && gr_mesh_cma_write(mesh, self, ends[i], &byte, 1) != GR_OK)) {
            return false;
        }
    }
    lane->known[lane->known_next++ % LANE_KNOWN] = (lane_known){at, size_bytes, written};
    return true;
}

bool gr_lane_cma_say_where(gr_lane_op *op, lane_line *line)
{
    uint8_t *beside = gr_lane_beside(op, op->lane->rank);
    size_t size_bytes = op->count * op->element_bytes;
    bool usable = is_usable(op->lane, op->out, size_bytes, true);
    line->body.at.out = (uint64_t)(uintptr_t)op->out;
    for (int i = 0; i < op->input_count; i++) {
        uint64_t at = (uint64_t)(uintptr_t)op->inputs[i];
        usable = usable && is_usable(op->lane, op->inputs[i], size_bytes, false);
        if (i == 0) {
            line->body.at.input = at;
        } else {
            memcpy(beside + (size_t)i * sizeof at, &at, sizeof at);
        }
    }
    return usable;
}

static bool is_far(const gr_lane_op *op, int peer)
{
    return peer != op->lane->rank && (gr_lane_line_of(op, peer)->kinds & LANE_IN_HEAP) == 0;
}

static gr_status stick(gr_lane_op *op, int peer, gr_status status)
{
    op->state = LANE_STUCK;
    op->arrived = peer;
    return status == GR_E_PEER_LOST || atomic_load(&op->lane->peers[peer].area->shut) != 0
               ? GR_PENDING
               : GR_E_PROTOCOL;
}

static gr_status write_to(const gr_lane_op *op, int peer, uint8_t *at, const uint8_t *from,
                          size_t size_bytes)
{
    const gr_lane *lane = op->lane;
    const lane_peer *to = &lane->peers[peer];
    if (!is_far(op, peer)) {
        if (at != from) {
            memcpy(at, from, size_bytes);
        }
        return GR_OK;
    }
    atomic_store(&lane->own->writing, (uint32_t)peer + 1);
    gr_status status = atomic_load(&to->area->shut) != 0
                           ? GR_E_PEER_LOST
                           : gr_mesh_cma_write(lane->lanes->mesh, to->world,
                                               (uint64_t)(uintptr_t)at, from, size_bytes);
    atomic_store(&lane->own->writing, 0);
    return status;
}

/* Elements [begin, end), of which all that is fetched fits the cache. `piece`: the operation on
 * them. */
static gr_status add_piece(gr_lane_op *op, gr_lane_op *piece, size_t begin, size_t end)
{
    gr_lane *lane = op->lane;
    size_t offset = begin * op->element_bytes, size_bytes = (end - begin) * op->element_bytes;
    size_t stride = (size_bytes + LANE_LINE - 1) / LANE_LINE * LANE_LINE;
    uint8_t *fetched = lane->lanes->temps + (size_t)LANE_TEMPS * LANE_CHUNK;
    /* Each rank begins with its own: of two that fetch of the same one at the same time, one waits
     * for the lock of its page table. */
    int leaves = op->tree->leaf_count, first = lane->rank * leaves / lane->size;
    for (int i = 0; i < leaves; i++) {
        int leaf = (first + i) % leaves;
        int rank = op->tree->leaves[leaf].rank;
        piece->at[leaf] = op->at[leaf] + offset;
        if (is_far(op, rank)) {
            gr_status status =
                gr_mesh_cma_read(lane->lanes->mesh, lane->peers[rank].world,
                                 (uint64_t)(uintptr_t)piece->at[leaf], fetched, size_bytes);
            if (status != GR_OK) {
                return stick(op, rank, status);
            }
            piece->at[leaf] = fetched;
            fetched += stride;
        }
    }
    piece->outs[0] = op->out + offset;
    gr_lane_add(piece, begin, end, begin);
    for (int i = 1; i < lane->size; i++) {
        int peer = (lane->rank + i) % lane->size;
        gr_status status = write_to(op, peer, op->outs[i] + offset, piece->outs[0], size_bytes);
        if (status != GR_OK) {
            return stick(op, peer, status);
        }
    }
    return GR_OK;
}

size_t gr_lane_cma_piece(const gr_lane_op *op)
{
    return LANE_CMA / (size_t)op->tree->leaf_count / LANE_LINE * LANE_LINE;
}

gr_status gr_lane_cma_add(gr_lane_op *op, size_t begin, size_t end)
{
    const uint8_t *at[LANE_CMA_LEAVES_MAX];
    gr_lane_op piece = *op;
    piece.at = at;
    piece.out_count = 1;
    size_t most = gr_lane_cma_piece(op) / op->element_bytes;
    gr_status status = GR_OK;
    while (status == GR_OK && begin < end) {
        size_t next = end - begin < most ? end : begin + most;
        status = add_piece(op, &piece, begin, next);
        begin = next;
    }
    return status;
}

void gr_lane_cma_wait(const gr_lane *lane)
{
    int64_t end_ns = gr_now_ns() + INT64_C(1000000) * CLOSE_MS;
    for (int peer = 0; peer < lane->size; peer++) {
        while (atomic_load(&lane->peers[peer].area->writing) == (uint32_t)lane->rank + 1 &&
               gr_mesh_cma_alive(lane->lanes->mesh, lane->peers[peer].world) &&
               gr_now_ns() < end_ns) {
            sched_yield();
        }
    }
}
