/* SPDX-License-Identifier: Apache-2.0 */

/* Shared-memory collectives of a communicator, their memory, and what an operation is made of when
 * it starts. */

#include "coll/shm/shm_coll_internal.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- Life ------------------------------------------------------------------------------------ */
gr_shm_colls *gr_shm_colls_create(gr_mesh *mesh)
{
    gr_shm_colls *shms = calloc(1, sizeof *shms);
    uint8_t *temps =
        aligned_alloc(SHM_COLL_LINE, (size_t)SHM_COLL_TEMPS * SHM_COLL_CHUNK + SHM_COLL_CMA);
    if (!shms || !temps) {
        free(shms);
        free(temps);
        return NULL;
    }
    shms->mesh = mesh;
    shms->temps = temps;
    shms->isa = gr_isa_best();
    shms->kernel_cost = gr_cma_cost(gr_mesh_cma_setting(mesh), &shms->kernel_ns);
    for (int i = GR_SHM_COLL_OPS_MAX - 1; i >= 0; i--) {
        shms->ops[i].next = shms->free_ops;
        shms->free_ops = &shms->ops[i];
    }
    gr_mesh_set_poll_hook(mesh, gr_shm_coll_has_news, shms);
    return shms;
}

void gr_shm_colls_destroy(gr_shm_colls *shms)
{
    if (!shms) {
        return;
    }
    gr_mesh_set_poll_hook(shms->mesh, NULL, NULL);
    for (int id = 0; id < GR_SHARED_COLLS; id++) {
        gr_shm_coll_close(shms->open[id]);
    }
    for (int i = 0; i < GR_SHM_COLL_OPS_MAX; i++) {
        free(shms->ops[i].at);
    }
    free(shms->temps);
    free(shms);
}

/* Returns true if this rank reaches the memory of all. */
static bool reach_all(gr_mesh *mesh, int size, const int *world,
                      gr_shared shared_out[GR_SHM_COLL_RANKS_MAX])
{
    bool all = size >= 2 && size <= GR_SHM_COLL_RANKS_MAX;
    for (int peer = 0; all && peer < size; peer++) {
        all = gr_mesh_shared(mesh, world[peer], &shared_out[peer]);
    }
    return all;
}

gr_shm_meeting gr_shm_coll_meet(gr_mesh *mesh, int size, const int *world)
{
    gr_shared shared[GR_SHM_COLL_RANKS_MAX];
    return !reach_all(mesh, size, world, shared) ? GR_SHM_APART
           : gr_mesh_not_oversubscribed(mesh)    ? GR_SHM_MEET_ON_CORES
                                                 : GR_SHM_MEET;
}

gr_shm_coll *gr_shm_coll_open(gr_shm_colls *shms, int id, int rank, int size, const int *world,
                              gr_shm_meeting meeting, bool *no_memory_out)
{
    *no_memory_out = false;
    gr_shared shared[GR_SHM_COLL_RANKS_MAX];
    if (id < 0 || id >= GR_SHARED_COLLS || meeting == GR_SHM_APART || shms->open[id] ||
        !reach_all(shms->mesh, size, world, shared)) {
        return NULL;
    }
    gr_shm_coll *shm = calloc(1, sizeof *shm + (size_t)size * sizeof *shm->peers);
    if (!shm) {
        *no_memory_out = true;
        return NULL;
    }
    shm->shms = shms;
    shm->id = id;
    shm->rank = rank;
    shm->size = size;
    shm->not_oversubscribed = meeting == GR_SHM_MEET_ON_CORES;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    shm->cores = cores > 0 ? (uint32_t)(cores < UINT8_MAX ? cores : UINT8_MAX) : 1;
    for (int peer = 0; peer < size; peer++) {
        uint8_t *area = shared[peer].shms + (size_t)id * GR_SHARED_COLL_BYTES;
        shm->peers[peer] = (shm_peer){.world = world[peer],
                                      .area = (shm_area *)(void *)area,
                                      .heap = shared[peer].heap,
                                      .heap_bytes = shared[peer].heap_bytes,
                                      .core = -1};
    }
    shm->own = shm->peers[rank].area;
    shm->cma = gr_shm_coll_cma_can(shm);
    shm->work_bitmaps =
        (shm_work_bitmap *)(void *)(shared[0].open + (size_t)id * GR_SHARED_OPEN_BYTES);
    shms->open[id] = shm;
    return shm;
}

/* From here on nobody writes into our plain memory, and what others have read of it counts for
 * nothing: its owner may use it for anything. */
static void revoke_memory(gr_shm_coll *shm)
{
    atomic_store(&shm->own->revoked, 1);
    if (shm->cma) {
        gr_shm_coll_cma_wait(shm);
    }
}

void gr_shm_coll_close(gr_shm_coll *shm)
{
    if (!shm) {
        return;
    }
    if (shm->head) {
        revoke_memory(shm);
    }
    while (shm->trees) {
        shm_tree *tree = shm->trees;
        shm->trees = tree->next;
        gr_shm_coll_tree_destroy(tree);
    }
    shm->shms->open[shm->id] = NULL;
    free(shm);
}

/* ---- Start ----------------------------------------------------------------------------------- */
static const shm_tree *find_tree(const gr_shm_coll *shm, int shards)
{
    const shm_tree *tree = shm->trees;
    while (tree && tree->shards != shards) {
        tree = tree->next;
    }
    return tree;
}

/* The most that a copy by the kernel may take, in plain copies, to be faster than windows, through
 * which each byte is copied two to four times: as both ways came out for two ranks, 32 KiB to
 * 4 MiB, where it took 5; of a broadcast, where windows are written past the caches. A call costs
 * as much as CALL_BYTES. */
static double cost_limit(gr_coll coll, size_t most_bytes)
{
    enum { CALL_BYTES = 32 << 10 };
    static const double limits[GR_COLL_COUNT] = {
        [GR_COLL_ALLREDUCE] = 3,   [GR_COLL_REDUCE] = 2.2,   [GR_COLL_REDUCE_SCATTER] = 4.3,
        [GR_COLL_BROADCAST] = 2.4, [GR_COLL_ALLGATHER] = 5,  [GR_COLL_GATHER] = 4.6,
        [GR_COLL_SCATTER] = 5.5,   [GR_COLL_ALLTOALL] = 3.1,
    };
    return limits[coll] * (double)most_bytes / (double)(most_bytes + CALL_BYTES);
}

/* Where it is faster than windows. A core calls the system for all leaves of a piece. Where cores
 * are shared, windows copy what all get hardly more often, and in fewer calls. */
static bool is_for_kernel(gr_coll coll, size_t most_bytes, int leaves, double kernel_cost,
                          bool not_oversubscribed)
{
    size_t square = (size_t)leaves * (size_t)leaves;
    if (kernel_cost > cost_limit(coll, most_bytes)) {
        return false;
    }
    bool sums = gr_coll_traits_of[coll].reduces;
    if (not_oversubscribed) {
        return !sums || (leaves <= SHM_COLL_CMA_LEAVES_MAX &&
                         (coll != GR_COLL_REDUCE || most_bytes <= SHM_COLL_CMA_REDUCE_MAX));
    }
    switch (coll) {
    case GR_COLL_GATHER:
    case GR_COLL_SCATTER:
        return true;
    case GR_COLL_ALLTOALL:
        return most_bytes >= (size_t)leaves * SHM_COLL_CMA_BLOCK_MIN;
    case GR_COLL_ALLREDUCE:
    case GR_COLL_REDUCE:
        return leaves <= SHM_COLL_CMA_LEAVES_SHARED && most_bytes >= square * SHM_COLL_CMA_MIN;
    default:
        return false;
    }
}

/* What is packed although it could be read where it is. Of a rank that waits for nobody if it packs
 * a copy of more is worth it, and of as much as fits if others need its core. */
static size_t pack_max(bool rooted, bool not_oversubscribed)
{
    return !rooted              ? SHM_COLL_PACK_MAX
           : not_oversubscribed ? SHM_COLL_PACK_ROOTED_MAX
                                : SHM_COLL_SMALL_MAX;
}

gr_shm_coll_way gr_shm_coll_way_of(gr_coll coll, size_t most_bytes, int leaves, bool registered,
                                   double kernel_cost, bool not_oversubscribed)
{
    bool rooted = gr_coll_traits_of[coll].rooted;
    if (most_bytes <= (registered ? pack_max(rooted, not_oversubscribed) : SHM_COLL_SMALL_MAX)) {
        return GR_SHM_COLL_EAGER;
    }
    if (!registered) {
        return is_for_kernel(coll, most_bytes, leaves, kernel_cost, not_oversubscribed)
                   ? GR_SHM_COLL_KERNEL
                   : GR_SHM_COLL_WINDOWS;
    }
    return not_oversubscribed ? GR_SHM_COLL_OWN : GR_SHM_COLL_FREE;
}

/* Until this rank has filled windows, what the kernel takes in plain copies tells; from then on,
 * what filling them takes, which depends on how far the readers' cores are. A rank that fills none
 * leaves the choice to those that do. */
static double kernel_cost_of(const gr_shm_coll_op *op)
{
    const double window_copies = 0.75; /* a window's byte, so that limits by plain copies hold */
    const gr_shm_coll *shm = op->shm;
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    double cost = shm->shms->kernel_cost, window_ns = shm->to_windows.ns;
    bool at_root = shm->rank == op->root;
    if (!shm->cma || cost == HUGE_VAL) {
        return HUGE_VAL;
    }
    if (at_root ? traits->receives == GR_PARTY_ROOT : traits->gives == GR_PARTY_ROOT) {
        return 0;
    }
    bool counts = cost > 0 && window_ns > 0 && (shm->not_oversubscribed || !traits->reduces);
    return counts ? shm->shms->kernel_ns / (window_copies * window_ns) : cost;
}

bool gr_shm_coll_wants_kernel(const gr_shm_coll_op *op)
{
    int leaves = op->tree ? op->tree->leaf_count : op->shm->size;
    return !op->small &&
           gr_shm_coll_way_of(op->coll, op->packed_bytes, leaves, false, kernel_cost_of(op),
                              op->shm->not_oversubscribed) == GR_SHM_COLL_KERNEL;
}

/* All objects at once: which one is taken next time depends on how many are over by then, and it
 * must not need memory. */
static gr_status grow(gr_shm_colls *shms, int leaves)
{
    for (int i = 0; i < GR_SHM_COLL_OPS_MAX && leaves > shms->leaves_max; i++) {
        gr_shm_coll_op *op = &shms->ops[i];
        const uint8_t **at = realloc(op->at, (size_t)leaves * sizeof *op->at);
        if (!at) {
            return GR_E_NO_MEMORY;
        }
        op->at = at;
    }
    shms->leaves_max = leaves > shms->leaves_max ? leaves : shms->leaves_max;
    return GR_OK;
}

/* Where the blocks begin, and how many elements the largest one has. */
static size_t cut_blocks(gr_shm_coll_op *op, const gr_shm_coll_request *request)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[request->coll];
    size_t first = 0, largest = 0;
    op->blocks = traits->blocks ? op->shm->size : 1;
    for (int block = 0; block < op->blocks; block++) {
        size_t count = request->counts ? request->counts[block] : request->count;
        op->firsts[block] = first;
        first += count;
        largest = count > largest ? count : largest;
    }
    op->firsts[op->blocks] = first;
    op->count = request->coll == GR_COLL_BARRIER ? 0 : first;
    return largest;
}

static gr_status prepare_sums(gr_shm_coll_op *op, const gr_shm_coll_request *request)
{
    gr_shm_coll *shm = op->shm;
    gr_shm_colls *shms = shm->shms;
    op->tree = find_tree(shm, request->shards);
    if (!op->tree) {
        shm_tree *tree = gr_shm_coll_tree_create(request->shards, shm->size, shm->rank);
        if (!tree) {
            return GR_E_NO_MEMORY;
        }
        tree->next = shm->trees;
        shm->trees = tree;
        op->tree = tree;
    }
    if (grow(shms, op->tree->leaf_count) != GR_OK) {
        return GR_E_NO_MEMORY;
    }
    op->input_count = op->tree->inputs_own;
    op->reduce = gr_reduce_kernel(shms->isa, request->dtype, request->op);
    bool as_it_is = request->divisor == 1 && request->postscale == 1;
    op->reduce_both =
        as_it_is ? gr_reduce_both_kernel(shms->isa, request->dtype, request->op) : NULL;
    return GR_OK;
}

/* Ranks that wait for each other are never far apart. Where each rank has a core, large operands of
 * sums in all slots, which the first cache does not hold, cost more than the distance saves. */
static uint32_t depth_of(const gr_shm_coll_op *op)
{
    enum { SUM_BYTES = 512 };
    size_t most_bytes = !op->is_rooted ? SHM_COLL_INLINE
                        : op->tree && op->shm->not_oversubscribed
                            ? SUM_BYTES
                            : sizeof op->shm->own->slots[0].eager;
    return op->always_packed && op->packed_bytes <= most_bytes ? SHM_COLL_SLOTS : SHM_COLL_PLACES;
}

static gr_status prepare(gr_shm_coll_op *op, const gr_shm_coll_request *request)
{
    gr_shm_coll *shm = op->shm;
    const gr_coll_traits *traits = &gr_coll_traits_of[request->coll];
    op->coll = request->coll;
    op->root = request->root;
    op->dtype = request->dtype;
    op->element_bytes = request->coll == GR_COLL_BARRIER ? 1 : gr_dtype_bytes(request->dtype);
    op->input_count = 0;
    op->tree = NULL;
    op->small = op->always_packed = true;
    op->packed_bytes = 0;
    op->out = request->out;
    op->fingerprint = 0;
    op->divisor = request->divisor;
    op->prescale = request->prescale;
    op->postscale = request->postscale;
    op->user = request->op == GR_USER ? request->user : NULL;
    op->user_arg = request->user_arg;
    op->largest = cut_blocks(op, request);
    if (op->count > 0) {
        op->input_count = gr_coll_gives(op->coll, shm->rank, op->root);
        gr_status status = traits->reduces ? prepare_sums(op, request) : GR_OK;
        if (status != GR_OK) {
            return status;
        }
        int leaves = op->tree ? op->tree->leaf_count : shm->size;
        size_t inputs_most = op->tree ? (size_t)op->tree->inputs_most : 1;
        op->inputs[0] = request->inputs[0];
        for (int i = 1; i < op->input_count; i++) {
            op->inputs[i] = request->inputs[i];
        }
        op->packed_bytes =
            (traits->gives_own ? op->largest : op->count) * op->element_bytes * inputs_most;
        op->small = gr_shm_coll_way_of(op->coll, op->packed_bytes, leaves, false, HUGE_VAL,
                                       shm->not_oversubscribed) == GR_SHM_COLL_EAGER;
        op->always_packed = gr_shm_coll_way_of(op->coll, op->packed_bytes, leaves, true, HUGE_VAL,
                                               shm->not_oversubscribed) == GR_SHM_COLL_EAGER;
        op->chunk = (op->tree ? op->tree->chunk_bytes : SHM_COLL_CHUNK) / op->element_bytes;
        gr_shm_coll_measure_row(op);
    }
    op->is_rooted = op->small && op->count > 0 && traits->rooted;
    op->depth = depth_of(op);
    op->gives_own = traits->gives_own;
    size_t given_end;
    gr_shm_coll_extent(op, shm->rank, false, &op->given, &given_end);
    op->given_count = given_end - op->given;
    gr_shm_coll_extent(op, shm->rank, true, &op->taken, &op->taken_end);
    if (op->coll == GR_COLL_BROADCAST && op->root == shm->rank && op->inputs[0] == op->out) {
        op->taken_end = op->taken; /* it is there, wherever gr_shm_coll_use puts it */
    }
    gr_shm_coll_prepare_waits(op);
    return GR_OK;
}

gr_status gr_shm_coll_start(gr_shm_coll *shm, const gr_shm_coll_request *request,
                            gr_shm_coll_op **op_out)
{
    gr_shm_coll_op *op = shm->shms->free_ops;
    if (!op) {
        return GR_E_NO_MEMORY;
    }
    op->shm = shm;
    gr_status status = prepare(op, request);
    if (status != GR_OK) {
        return status;
    }
    shm->shms->free_ops = op->next;
    *op_out = op;
    return GR_OK;
}

gr_status gr_shm_coll_keep(gr_shm_coll *shm, const gr_shm_coll_request *request,
                           gr_shm_coll_op **op_out)
{
    gr_shm_coll_op *op = calloc(1, sizeof *op);
    if (!op) {
        return GR_E_NO_MEMORY;
    }
    op->shm = shm;
    op->kept = true;
    if (prepare(op, request) != GR_OK) {
        free(op);
        return GR_E_NO_MEMORY;
    }
    if (op->tree) {
        op->at = malloc((size_t)op->tree->leaf_count * sizeof *op->at);
        if (!op->at) {
            free(op);
            return GR_E_NO_MEMORY;
        }
    }
    *op_out = op;
    return GR_OK;
}

void gr_shm_coll_use(gr_shm_coll_op *op, void *buf)
{
    op->out = buf;
    op->inputs[0] = buf;
}

void gr_shm_coll_release(gr_shm_coll_op *op)
{
    gr_shm_colls *shms = op->shm->shms;
    if (op->linked) {
        revoke_memory(op->shm);
        gr_shm_coll_finish(op);
    }
    if (op->kept) {
        free(op->at);
        free(op);
        return;
    }
    op->state = SHM_COLL_FREE;
    op->next = shms->free_ops;
    shms->free_ops = op;
}
