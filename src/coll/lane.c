/* SPDX-License-Identifier: Apache-2.0 */

/* Lanes and their memory, and what an operation is made of when it starts. */

#include "coll/lane_internal.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- Life ------------------------------------------------------------------------------------ */
gr_lanes *gr_lanes_create(gr_mesh *mesh)
{
    gr_lanes *lanes = calloc(1, sizeof *lanes);
    uint8_t *temps = aligned_alloc(LANE_LINE, (size_t)LANE_TEMPS * LANE_CHUNK + LANE_CMA);
    if (!lanes || !temps) {
        free(lanes);
        free(temps);
        return NULL;
    }
    lanes->mesh = mesh;
    lanes->temps = temps;
    lanes->isa = gr_isa_best();
    for (int i = GR_LANE_OPS_MAX - 1; i >= 0; i--) {
        lanes->ops[i].next = lanes->free_ops;
        lanes->free_ops = &lanes->ops[i];
    }
    gr_mesh_listen(mesh, gr_lane_has_news, lanes);
    return lanes;
}

void gr_lanes_destroy(gr_lanes *lanes)
{
    if (!lanes) {
        return;
    }
    gr_mesh_listen(lanes->mesh, NULL, NULL);
    for (int id = 0; id < GR_SHARED_LANES; id++) {
        gr_lane_close(lanes->open[id]);
    }
    for (int i = 0; i < GR_LANE_OPS_MAX; i++) {
        free(lanes->ops[i].at);
    }
    free(lanes->temps);
    free(lanes);
}

gr_lane *gr_lane_open(gr_lanes *lanes, int id, int rank, int size, const int *world,
                      bool *no_memory_out)
{
    *no_memory_out = false;
    if (id < 0 || id >= GR_SHARED_LANES || size < 2 || size > GR_LANE_RANKS_MAX ||
        lanes->open[id]) {
        return NULL;
    }
    gr_shared shared[GR_LANE_RANKS_MAX];
    for (int peer = 0; peer < size; peer++) {
        if (!gr_mesh_shared(lanes->mesh, world[peer], &shared[peer])) {
            return NULL;
        }
    }
    gr_lane *lane = calloc(1, sizeof *lane + (size_t)size * sizeof *lane->peers);
    if (!lane) {
        *no_memory_out = true;
        return NULL;
    }
    lane->lanes = lanes;
    lane->id = id;
    lane->rank = rank;
    lane->size = size;
    lane->roomy = gr_mesh_roomy(lanes->mesh);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    lane->cores = cores > 0 ? (uint32_t)cores : 1;
    lane->room_until = LANE_SLOTS;
    for (int peer = 0; peer < size; peer++) {
        uint8_t *area = shared[peer].lanes + (size_t)id * GR_SHARED_LANE_BYTES;
        lane->peers[peer] = (lane_peer){.world = world[peer],
                                        .area = (lane_area *)(void *)area,
                                        .heap = shared[peer].heap,
                                        .heap_bytes = shared[peer].heap_bytes,
                                        .core = -1};
    }
    lane->own = lane->peers[rank].area;
    lane->cma = gr_lane_cma_can(lane);
    lane->claims = (lane_claim *)(void *)(shared[0].open + (size_t)id * GR_SHARED_OPEN_BYTES);
    lanes->open[id] = lane;
    return lane;
}

/* From here on nobody writes into our plain memory, and what others have read of it counts for
 * nothing: its owner may use it for anything. */
static void shut(gr_lane *lane)
{
    atomic_store(&lane->own->shut, 1);
    if (lane->cma) {
        gr_lane_cma_wait(lane);
    }
}

void gr_lane_close(gr_lane *lane)
{
    if (!lane) {
        return;
    }
    if (lane->head) {
        shut(lane);
    }
    for (int i = 0; i < lane->tree_count; i++) {
        gr_lane_tree_destroy(lane->trees[i]);
    }
    lane->lanes->open[lane->id] = NULL;
    free(lane);
}

/* ---- Start ----------------------------------------------------------------------------------- */
static const lane_tree *find_tree(const gr_lane *lane, int shards)
{
    for (int i = 0; i < lane->tree_count; i++) {
        if (lane->trees[i]->shards == shards) {
            return lane->trees[i];
        }
    }
    return NULL;
}

bool gr_lane_does(gr_coll coll, int size)
{
    return (coll == GR_COLL_ALLREDUCE || coll == GR_COLL_BARRIER) && size >= 2 &&
           size <= GR_LANE_RANKS_MAX;
}

/* A core calls the system for all leaves of a piece, and there are fewer cores than leaves. */
static bool is_for_kernel(size_t most_bytes, int leaves, bool roomy)
{
    size_t square = (size_t)leaves * (size_t)leaves;
    return roomy ? leaves <= LANE_CMA_LEAVES_MAX
                 : leaves <= LANE_CMA_LEAVES_SHARED && most_bytes >= square * LANE_CMA_MIN;
}

gr_lane_way gr_lane_way_of(size_t most_bytes, int leaves, bool registered, bool kernel, bool roomy)
{
    if (most_bytes <= (registered ? LANE_PACK_MAX : LANE_SMALL_MAX)) {
        return GR_LANE_BESIDE;
    }
    if (!registered) {
        return kernel && is_for_kernel(most_bytes, leaves, roomy) ? GR_LANE_KERNEL
                                                                  : GR_LANE_WINDOWS;
    }
    return roomy ? GR_LANE_OWN : GR_LANE_FREE;
}

bool gr_lane_takes(const gr_lane *lane, gr_coll coll, size_t count, int shards)
{
    if (coll == GR_COLL_BARRIER) {
        return true;
    }
    return coll == GR_COLL_ALLREDUCE && count <= SIZE_MAX / 16 &&
           (find_tree(lane, shards) || lane->tree_count < LANE_TREES_MAX);
}

/* All objects at once: which one is taken next time depends on how many are over by then, and it
 * must not need memory. */
static gr_status grow(gr_lanes *lanes, int leaves)
{
    for (int i = 0; i < GR_LANE_OPS_MAX && leaves > lanes->leaves_max; i++) {
        gr_lane_op *op = &lanes->ops[i];
        const uint8_t **at = realloc(op->at, (size_t)leaves * sizeof *op->at);
        if (!at) {
            return GR_E_NO_MEMORY;
        }
        op->at = at;
    }
    lanes->leaves_max = leaves > lanes->leaves_max ? leaves : lanes->leaves_max;
    return GR_OK;
}

static gr_status prepare(gr_lane_op *op, const gr_lane_request *request)
{
    gr_lane *lane = op->lane;
    gr_lanes *lanes = lane->lanes;
    bool barrier = request->coll == GR_COLL_BARRIER;
    op->count = barrier ? 0 : request->count;
    op->dtype = request->dtype;
    op->element_bytes = barrier ? 1 : gr_dtype_bytes(request->dtype);
    op->input_count = 0;
    op->tree = NULL;
    op->small = op->always_packed = true;
    op->out = request->out;
    op->fingerprint = 0;
    if (op->count == 0) {
        return GR_OK;
    }
    op->tree = find_tree(lane, request->shards);
    if (!op->tree) {
        lane_tree *tree = gr_lane_tree_create(request->shards, lane->size, lane->rank);
        if (!tree) {
            return GR_E_NO_MEMORY;
        }
        lane->trees[lane->tree_count++] = tree;
        op->tree = tree;
    }
    if (grow(lanes, op->tree->leaf_count) != GR_OK) {
        return GR_E_NO_MEMORY;
    }
    op->input_count = op->tree->inputs_own;
    for (int i = 0; i < op->input_count; i++) {
        op->inputs[i] = request->inputs[i];
    }
    size_t packed_bytes = op->count * op->element_bytes * (size_t)op->tree->inputs_most;
    int leaves = op->tree->leaf_count;
    gr_lane_way other = gr_lane_way_of(packed_bytes, leaves, false, lane->cma, lane->roomy);
    op->small = other == GR_LANE_BESIDE;
    op->by_kernel = other == GR_LANE_KERNEL;
    op->always_packed =
        gr_lane_way_of(packed_bytes, leaves, true, false, lane->roomy) == GR_LANE_BESIDE;
    op->chunk = op->tree->chunk_bytes / op->element_bytes;
    size_t size = (size_t)lane->size, rank = (size_t)lane->rank;
    op->own_begin = gr_lane_cut(op->count, op->element_bytes, size, rank);
    op->own_end = gr_lane_cut(op->count, op->element_bytes, size, rank + 1);
    op->reduce = gr_reduce_kernel(lanes->isa, request->dtype, request->op);
    bool as_it_is = request->divisor == 1 && request->postscale == 1;
    op->reduce_both =
        as_it_is ? gr_reduce_both_kernel(lanes->isa, request->dtype, request->op) : NULL;
    op->divisor = request->divisor;
    op->prescale = request->prescale;
    op->postscale = request->postscale;
    op->user = request->op == GR_USER ? request->user : NULL;
    op->user_arg = request->user_arg;
    return GR_OK;
}

static void enter(gr_lane *lane, gr_lane_op *op)
{
    op->next = NULL;
    op->arrived = 0;
    op->said = false;
    op->lingers = false;
    op->seq = lane->next_seq++;
    op->state = LANE_QUEUED;
    op->linked = true;
    if (lane->tail) {
        lane->tail->next = op;
    } else {
        lane->head = op;
    }
    lane->tail = op;
}

gr_status gr_lane_start(gr_lane *lane, const gr_lane_request *request, gr_lane_op **op_out)
{
    gr_lane_op *op = lane->lanes->free_ops;
    if (!op) {
        return GR_E_NO_MEMORY;
    }
    op->lane = lane;
    gr_status status = prepare(op, request);
    if (status != GR_OK) {
        return status;
    }
    lane->lanes->free_ops = op->next;
    enter(lane, op);
    *op_out = op;
    return GR_OK;
}

void gr_lane_repeat(gr_lane_op *op, void *buf)
{
    op->out = buf;
    op->inputs[0] = buf;
    enter(op->lane, op);
}

void gr_lane_release(gr_lane_op *op)
{
    gr_lanes *lanes = op->lane->lanes;
    if (op->linked) {
        bool never_posted = op->state == LANE_QUEUED && op->seq + 1 == op->lane->next_seq;
        op->lane->next_seq -= never_posted;
        if (!never_posted) {
            shut(op->lane);
        }
        gr_lane_finish(op);
    }
    op->state = LANE_FREE;
    op->next = lanes->free_ops;
    lanes->free_ops = op;
}

static bool meets(const void *buffer, size_t buffer_bytes, const void *at, size_t size_bytes)
{
    uintptr_t a = (uintptr_t)buffer, b = (uintptr_t)at;
    return buffer && a < b + size_bytes && b < a + buffer_bytes;
}

bool gr_lane_uses(const gr_lane_op *op, const void *at, size_t size_bytes, bool to_write)
{
    size_t bytes = op->count * op->element_bytes;
    if (meets(op->out, bytes, at, size_bytes)) {
        return true;
    }
    for (int i = 0; to_write && i < op->input_count; i++) {
        if (meets(op->inputs[i], bytes, at, size_bytes)) {
            return true;
        }
    }
    return false;
}
