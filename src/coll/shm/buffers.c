/* SPDX-License-Identifier: Apache-2.0 */

/* Where the buffers of an operation are: what each rank says of its own, and how the others reach
 * them. A buffer is named by where its first element stands, or would stand if the rank had all
 * blocks. */

#include "coll/shm/shm_coll_internal.h"

#include <string.h>

/* ---- Ours ------------------------------------------------------------------------------------ */
typedef struct shm_buffer {
    uintptr_t base, at; /* of the whole, and of what is used of it */
    size_t size_bytes;
} shm_buffer;

static shm_buffer buffer_of(const gr_shm_coll_op *op, const void *base, bool result)
{
    size_t first, end;
    gr_shm_coll_extent(op, op->shm->rank, result, &first, &end);
    return (shm_buffer){.base = (uintptr_t)base,
                        .at = (uintptr_t)base + first * op->element_bytes,
                        .size_bytes = (end - first) * op->element_bytes};
}

/* Returns true if the buffer is in the heap, or registered. *posted_out is then what the others
 * read: the offset of the base, plus one. */
static bool is_in_heap(const gr_shm_coll *shm, shm_buffer b, uint64_t *posted_out)
{
    const shm_peer *own = &shm->peers[shm->rank];
    uintptr_t heap = (uintptr_t)own->heap;
    bool inside = b.size_bytes == 0 || (b.at >= heap && b.at - heap <= own->heap_bytes &&
                                        b.size_bytes <= own->heap_bytes - (b.at - heap));
    *posted_out = (uint64_t)b.base - (uint64_t)heap + 1;
    if (inside) {
        return true;
    }
    uintptr_t found =
        (uintptr_t)gr_mesh_find_registered(shm->shms->mesh, (const void *)b.at, b.size_bytes);
    *posted_out += (uint64_t)found - (uint64_t)b.at;
    return found != 0;
}

static void publish_input(const gr_shm_coll_op *op, shm_control *control, int input, uint64_t at)
{
    if (input == 0) {
        control->body.at.input = at;
    } else {
        memcpy(gr_shm_coll_eager(op, op->shm->rank) + (size_t)input * sizeof at, &at, sizeof at);
    }
}

/* By their offsets. False: some are not in the heap, and what was published does not count. */
static bool publish_in_heap(const gr_shm_coll_op *op, shm_control *control)
{
    uint64_t at;
    if (!is_in_heap(op->shm, buffer_of(op, op->out, true), &at)) {
        return false;
    }
    control->body.at.out = at;
    for (int i = 0; i < op->input_count; i++) {
        if (!is_in_heap(op->shm, buffer_of(op, op->inputs[i], false), &at)) {
            return false;
        }
        publish_input(op, control, i, at);
    }
    return true;
}

/* By their addresses. Does the kernel copy all of them for others? */
static bool publish_addresses(const gr_shm_coll_op *op, bool by_kernel, shm_control *control)
{
    shm_buffer b = buffer_of(op, op->out, true);
    bool reached =
        by_kernel && (b.size_bytes == 0 ||
                      gr_shm_coll_cma_usable(op->shm, (const void *)b.at, b.size_bytes, true));
    control->body.at.out = (uint64_t)b.base;
    for (int i = 0; i < op->input_count; i++) {
        b = buffer_of(op, op->inputs[i], false);
        reached =
            reached && (b.size_bytes == 0 ||
                        gr_shm_coll_cma_usable(op->shm, (const void *)b.at, b.size_bytes, false));
        publish_input(op, control, i, (uint64_t)b.base);
    }
    return reached;
}

uint8_t gr_shm_coll_publish_buffers(const gr_shm_coll_op *op, shm_control *control)
{
    control->body.at.prescale = op->prescale;
    control->body.at.postscale = op->postscale;
    control->body.at.input = 0; /* of who gives nothing */
    bool by_kernel = gr_shm_coll_wants_kernel(op);
    if (publish_in_heap(op, control)) {
        return (uint8_t)(SHM_COLL_IN_HEAP | (by_kernel ? SHM_COLL_BY_KERNEL : 0));
    }
    return publish_addresses(op, by_kernel, control) ? SHM_COLL_BY_KERNEL : 0;
}

/* ---- Theirs ---------------------------------------------------------------------------------- */
/* A buffer of `peer`, which has posted it. False: what is used of it lies outside its heap.
 * */
static bool find(const gr_shm_coll_op *op, int peer, uint64_t posted, bool result,
                 uintptr_t *base_out)
{
    const shm_peer *from = &op->shm->peers[peer];
    size_t first, end;
    gr_shm_coll_extent(op, peer, result, &first, &end);
    if (gr_shm_coll_is_far(op, peer)) {
        *base_out = (uintptr_t)posted;
        return true;
    }
    uint64_t at = posted - 1 + first * op->element_bytes;
    *base_out = (uintptr_t)from->heap + (uintptr_t)(posted - 1);
    return first == end ||
           (at <= from->heap_bytes && (end - first) * op->element_bytes <= from->heap_bytes - at);
}

/* A rank without shards has no contribution to a sum. */
static bool gives(const gr_shm_coll_op *op, int peer)
{
    int first, assigned = 1;
    if (op->tree && op->tree->shards < op->shm->size) {
        gr_shard_range(op->tree->shards, op->shm->size, peer, &first, &assigned);
    }
    return assigned > 0;
}

static bool find_leaves(gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
    for (int leaf = 0; op->tree && leaf < op->tree->leaf_count; leaf++) {
        shm_leaf from = op->tree->leaves[leaf];
        uintptr_t base =
            from.rank == shm->rank ? (uintptr_t)op->inputs[from.input] : op->ins[from.rank];
        if (from.rank != shm->rank && from.input > 0) {
            uint64_t at;
            memcpy(&at, gr_shm_coll_eager(op, from.rank) + (size_t)from.input * sizeof at,
                   sizeof at);
            if (!find(op, from.rank, at, false, &base)) {
                op->arrived = from.rank;
                return false;
            }
        }
        op->at[leaf] = (const uint8_t *)base;
    }
    return true;
}

static void learn_who_differs(gr_shm_coll_op *op)
{
    int first = -1; /* of those that have a result */
    for (int peer = 0; peer < op->shm->size; peer++) {
        if (gr_coll_receives(op->coll, peer, op->root)) {
            first = first < 0 ? peer : first;
            op->factors_differ =
                op->factors_differ || op->postscales[peer] != op->postscales[first];
        }
    }
    op->factor = op->factors_differ || first < 0 ? 1 : op->postscales[first];
}

void gr_shm_coll_learn_postscales(gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
    bool alike = true;
    for (int peer = 0; peer < shm->size; peer++) {
        op->postscales[peer] =
            peer == shm->rank ? op->postscale : gr_shm_coll_control_of(op, peer)->body.at.postscale;
        alike = alike && op->postscales[peer] == op->postscale;
    }
    op->factors_differ = false;
    op->factor = op->postscale;
    if (!alike) {
        learn_who_differs(op);
    }
}

static void locate_own(gr_shm_coll_op *op)
{
    int rank = op->shm->rank;
    op->scaled = op->prescale == 1;
    op->prescales[rank] = op->prescale;
    op->ins[rank] = (uintptr_t)op->inputs[0];
    op->results[rank] = (uintptr_t)op->out;
}

bool gr_shm_coll_locate(gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
    locate_own(op);
    for (int peer = 0; peer < shm->size; peer++) {
        if (peer == shm->rank) {
            continue;
        }
        const shm_control *control = gr_shm_coll_control_of(op, peer);
        op->prescales[peer] = control->body.at.prescale;
        op->scaled = op->scaled && op->prescales[peer] == 1;
        if ((gives(op, peer) && !find(op, peer, control->body.at.input, false, &op->ins[peer])) ||
            !find(op, peer, control->body.at.out, true, &op->results[peer])) {
            op->arrived = peer;
            return false;
        }
    }
    return find_leaves(op);
}
