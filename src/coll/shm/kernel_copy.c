/* SPDX-License-Identifier: Apache-2.0 */

/* Memory that is not shared, through the kernel: who adds a share fetches a piece of all
 * contributions into its second cache, adds there, and puts the sum where the others want it. Each
 * byte passes through the kernel once on its way in and once on its way out, and through no window.
 * Where ranks share cores, whoever runs takes shares (work.c): nobody leaves its core for the
 * sake of a window, and a core keeps its shares of all buffers in its cache. What that costs is a
 * system call for each piece of each rank, and the kernel's look at each page: with many ranks, or
 * few bytes, windows are faster (gr_shm_coll_way_of). What is not added up goes from one buffer
 * straight into another one, if whoever copies it is one of the two ranks (transfer.c).
 *
 * What peers write into is plain memory, which its owner may use for anything once the operation is
 * over, a failed one as well. So who writes says first into whose memory, and then looks whether it
 * is revoked; who gives an operation up revokes its memory first, and waits for those who write
 * there. These stores and loads have one order: no write begins after the wait. (Only a
 * process that is stopped between the look and the write, for longer than we wait, would still
 * write.) */

#include "base/clock.h"
#include "coll/shm/shm_coll_internal.h"

#include <sched.h>
#include <string.h>

enum { CLOSE_MS = 1000, PAGE_LEAST = 4096 };

bool gr_shm_coll_cma_can(const gr_shm_coll *shm)
{
    bool all = true;
    for (int peer = 0; peer < shm->size; peer++) {
        all = all && gr_mesh_cma(shm->shms->mesh, shm->peers[peer].world);
    }
    return all;
}

/* Not everything that a process can read can the kernel copy for others: memory of a device, say.
 * We try both ends of a buffer once. */
bool gr_shm_coll_cma_usable(gr_shm_coll *shm, const void *mem, size_t size_bytes, bool written)
{
    uintptr_t at = (uintptr_t)mem;
    for (int i = 0; i < SHM_COLL_KNOWN; i++) {
        const shm_known *known = &shm->known[i];
        if (known->at == at && known->size_bytes >= size_bytes && (known->written || !written)) {
            return true;
        }
    }
    gr_mesh *mesh = shm->shms->mesh;
    int self = shm->peers[shm->rank].world;
    const uint64_t ends[] = {at, at + size_bytes - 1};
    for (int i = 0; i < 2; i++) {
        uint8_t byte;
        if (gr_mesh_cma_read(mesh, self, ends[i], &byte, 1) != GR_OK ||
            (written && gr_mesh_cma_write(mesh, self, ends[i], &byte, 1) != GR_OK)) {
            return false;
        }
    }
    shm->known[shm->known_next++ % SHM_COLL_KNOWN] = (shm_known){at, size_bytes, written};
    return true;
}

bool gr_shm_coll_is_far(const gr_shm_coll_op *op, int peer)
{
    return op->cma && peer != op->shm->rank && (op->peer_kinds[peer] & SHM_COLL_IN_HEAP) == 0;
}

uint8_t *gr_shm_coll_room(const gr_shm_coll_op *op)
{
    return op->shm->shms->temps + (size_t)SHM_COLL_TEMPS * SHM_COLL_CHUNK;
}

/* Of memory of ours that was given up meanwhile, the kernel says the same as of the peer's. */
static bool is_ours_there(const gr_shm_coll *shm, const uint8_t *ours, size_t size_bytes)
{
    gr_status status = GR_OK;
    for (size_t at = 0; at < size_bytes && status == GR_OK; at += PAGE_LEAST) {
        uint8_t byte;
        status = gr_mesh_cma_read(shm->shms->mesh, shm->peers[shm->rank].world,
                                  (uint64_t)(uintptr_t)(ours + at), &byte, 1);
    }
    return status == GR_OK;
}

/* `ours`: what the kernel copied to or from it. */
static gr_status stick(gr_shm_coll_op *op, int peer, gr_status status, const uint8_t *ours,
                       size_t size_bytes)
{
    op->state = SHM_COLL_FAILED;
    op->arrived = peer;
    if (status == GR_E_PEER_LOST || atomic_load(&op->shm->peers[peer].area->revoked) != 0) {
        return GR_PENDING;
    }
    op->arrived = is_ours_there(op->shm, ours, size_bytes) ? peer : op->shm->rank;
    return GR_E_PROTOCOL;
}

static gr_status write_to(const gr_shm_coll_op *op, int peer, uint8_t *at, const uint8_t *from,
                          size_t size_bytes)
{
    const gr_shm_coll *shm = op->shm;
    const shm_peer *to = &shm->peers[peer];
    if (!gr_shm_coll_is_far(op, peer)) {
        if (at != from) {
            memcpy(at, from, size_bytes);
        }
        return GR_OK;
    }
    atomic_store(&shm->own->writing, (uint32_t)peer + 1);
    gr_status status = atomic_load(&to->area->revoked) != 0
                           ? GR_E_PEER_LOST
                           : gr_mesh_cma_write(shm->shms->mesh, to->world, (uint64_t)(uintptr_t)at,
                                               from, size_bytes);
    atomic_store(&shm->own->writing, 0);
    return status;
}

static gr_status fetch(gr_shm_coll_op *op, int peer, uint8_t *to, const uint8_t *at,
                       size_t size_bytes)
{
    const gr_shm_coll *shm = op->shm;
    if (!gr_shm_coll_is_far(op, peer)) {
        memcpy(to, at, size_bytes);
        return GR_OK;
    }
    gr_status status = gr_mesh_cma_read(shm->shms->mesh, shm->peers[peer].world,
                                        (uint64_t)(uintptr_t)at, to, size_bytes);
    return status == GR_OK ? GR_OK : stick(op, peer, status, to, size_bytes);
}

static gr_status put(gr_shm_coll_op *op, int peer, uint8_t *at, const uint8_t *from,
                     size_t size_bytes)
{
    gr_status status = write_to(op, peer, at, from, size_bytes);
    return status == GR_OK ? GR_OK : stick(op, peer, status, from, size_bytes);
}

gr_status gr_shm_coll_cma_copy(gr_shm_coll_op *op, int from, const uint8_t *src, int to,
                               uint8_t *dst, size_t size_bytes)
{
    if (!gr_shm_coll_is_far(op, from)) {
        return put(op, to, dst, src, size_bytes);
    }
    if (!gr_shm_coll_is_far(op, to)) {
        return fetch(op, from, dst, src, size_bytes);
    }
    uint8_t *room = gr_shm_coll_room(op);
    gr_status status = GR_OK;
    for (size_t at = 0; at < size_bytes && status == GR_OK; at += SHM_COLL_COPY) {
        size_t count = size_bytes - at < SHM_COLL_COPY ? size_bytes - at : SHM_COLL_COPY;
        status = fetch(op, from, room, src + at, count);
        status = status == GR_OK ? put(op, to, dst + at, room, count) : status;
    }
    return status;
}

/* Elements [begin, end), of which all that is fetched fits the cache. `piece`: the operation on
 * them. */
static gr_status add_piece(gr_shm_coll_op *op, gr_shm_coll_op *piece, size_t begin, size_t end)
{
    size_t offset = begin * op->element_bytes, size_bytes = (end - begin) * op->element_bytes;
    size_t stride = (size_bytes + SHM_COLL_LINE - 1) / SHM_COLL_LINE * SHM_COLL_LINE;
    uint8_t *fetched = gr_shm_coll_room(op);
    /* Each rank begins with its own: of two that fetch of the same one at the same time, one waits
     * for the lock of its page table. */
    int leaves = op->tree->leaf_count, first = op->shm->rank * leaves / op->shm->size;
    for (int i = 0; i < leaves; i++) {
        int leaf = (first + i) % leaves;
        int rank = op->tree->leaves[leaf].rank;
        piece->at[leaf] = op->at[leaf] + offset;
        if (gr_shm_coll_is_far(op, rank)) {
            gr_status status = fetch(op, rank, fetched, piece->at[leaf], size_bytes);
            if (status != GR_OK) {
                return status;
            }
            piece->at[leaf] = fetched;
            fetched += stride;
        }
    }
    bool far = gr_shm_coll_is_far(op, op->out_ranks[0]);
    piece->outs[0] = far ? fetched : op->outs[0] + offset;
    bool multiply = op->factors_differ && op->out_count > 1; /* the first of several is not far */
    if (multiply) {
        piece->out_factors[0] = 1;
    }
    gr_shm_coll_add(piece, begin, end, begin);
    for (int i = far ? 0 : 1; i < op->out_count; i++) {
        const uint8_t *sum = piece->outs[0];
        if (multiply && op->out_factors[i] != 1) {
            gr_scale_to(fetched, sum, end - begin, op->dtype, op->out_factors[i]);
            sum = fetched;
        }
        gr_status status = put(op, op->out_ranks[i], op->outs[i] + offset, sum, size_bytes);
        if (status != GR_OK) {
            return status;
        }
    }
    if (multiply && op->out_factors[0] != 1) {
        gr_scale(piece->outs[0], end - begin, op->dtype, op->out_factors[0]);
    }
    return GR_OK;
}

/* Room for all contributions and the sum. */
size_t gr_shm_coll_cma_piece(const gr_shm_coll_op *op)
{
    return SHM_COLL_CMA / (size_t)(op->tree->leaf_count + 1) / SHM_COLL_LINE * SHM_COLL_LINE;
}

gr_status gr_shm_coll_cma_add(gr_shm_coll_op *op, size_t begin, size_t end)
{
    const uint8_t *at[SHM_COLL_CMA_LEAVES_MAX];
    gr_shm_coll_op piece = *op;
    piece.at = at;
    piece.out_count = 1;
    size_t most = gr_shm_coll_cma_piece(op) / op->element_bytes;
    gr_status status = GR_OK;
    while (status == GR_OK && begin < end) {
        size_t next = end - begin < most ? end : begin + most;
        status = add_piece(op, &piece, begin, next);
        begin = next;
    }
    return status;
}

void gr_shm_coll_cma_wait(const gr_shm_coll *shm)
{
    int64_t end_ns = gr_now_ns() + INT64_C(1000000) * CLOSE_MS;
    for (int peer = 0; peer < shm->size; peer++) {
        while (atomic_load(&shm->peers[peer].area->writing) == (uint32_t)shm->rank + 1 &&
               gr_mesh_cma_alive(shm->shms->mesh, shm->peers[peer].world) && gr_now_ns() < end_ns) {
            sched_yield();
        }
    }
}
