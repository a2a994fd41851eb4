/* SPDX-License-Identifier: Apache-2.0 */

/* Lines, states and windows. Who stores what others wait for looks afterwards whether all have
 * stored theirs: the last one sees it, since these stores and loads have one order, and wakes
 * whoever sleeps; the others need not. */

#include "coll/lane_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINGER_LOOKS = 500,
    LINGER_YIELDS = 32,
    SHARE_BYTES = 32 << 10,
    SHARE_BYTES_MIN = 4 << 10,
    SHARES_MAX = 32
};

/* ---- Life ------------------------------------------------------------------------------------ */
static bool has_news(const void *arg);

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
    gr_mesh_listen(mesh, has_news, lanes);
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
                                        .heap_bytes = shared[peer].heap_bytes};
    }
    lane->own = lane->peers[rank].area;
    lane->cma = gr_lane_cma_can(lane);
    lane->claims = (lane_claim *)(void *)(shared[0].open + (size_t)id * GR_SHARED_OPEN_BYTES);
    lanes->open[id] = lane;
    return lane;
}

void gr_lane_close(gr_lane *lane)
{
    if (!lane) {
        return;
    }
    for (int i = 0; i < lane->tree_count; i++) {
        gr_lane_tree_destroy(lane->trees[i]);
    }
    lane->lanes->open[lane->id] = NULL;
    free(lane);
}

/* ---- What all store and wait for ------------------------------------------------------------- */
void gr_lane_nudge_all(const gr_lane *lane)
{
    for (int peer = 0; peer < lane->size; peer++) {
        if (peer != lane->rank) {
            gr_mesh_nudge(lane->lanes->mesh, lane->peers[peer].world);
        }
    }
}

static lane_line *line_of(const gr_lane_op *op, int peer)
{
    return &op->lane->peers[peer].area->slots[op->seq % LANE_SLOTS].line;
}

static _Atomic uint32_t *done_of(const gr_lane_op *op, int peer)
{
    return &op->lane->peers[peer].area->dids[op->seq % LANE_SLOTS].done;
}

static uint8_t *beside(const gr_lane_op *op, int peer)
{
    return op->lane->peers[peer].area->slots[op->seq % LANE_SLOTS].beside;
}

/* Ranks from *arrived_io on that have posted (or done their share of) the operation. */
static bool all_posted(const gr_lane_op *op, int *arrived_io)
{
    while (*arrived_io < op->lane->size &&
           atomic_load(&line_of(op, *arrived_io)->posted) == op->seq + 1) {
        ++*arrived_io;
    }
    return *arrived_io == op->lane->size;
}

static bool all_did(const gr_lane_op *op, int *arrived_io)
{
    while (*arrived_io < op->lane->size && atomic_load(done_of(op, *arrived_io)) == op->seq + 1) {
        ++*arrived_io;
    }
    return *arrived_io == op->lane->size;
}

/* Have all stored what it waits for? */
static bool all_came(const gr_lane_op *op, int *arrived_io)
{
    return op->state == LANE_POSTED ? all_posted(op, arrived_io) : all_did(op, arrived_io);
}

/* The look at the others' follows in settle: the later, the more of them find their lines not in
 * use when they store. */
static void say(gr_lane_op *op, _Atomic uint32_t *word)
{
    atomic_store(word, op->seq + 1);
    op->said = true;
}

static void settle(gr_lane_op *op)
{
    if (op->said) {
        int arrived = op->arrived;
        op->said = false;
        if (all_came(op, &arrived)) {
            gr_lane_nudge_all(op->lane);
        }
    }
}

static lane_claim *claim_of(const gr_lane_op *op)
{
    return &op->lane->claims[op->seq % LANE_SLOTS];
}

static bool claims_done(const gr_lane_op *op)
{
    uint64_t done = atomic_load(&claim_of(op)->done);
    return (uint32_t)(done >> 32) == op->seq + 1 && (uint32_t)done >= op->shares;
}

/* A slot is free when nobody reads any more what was posted there 16 operations ago. */
static bool has_room(gr_lane *lane, uint32_t seq)
{
    if ((int32_t)(seq - lane->room_until) < 0) {
        return true;
    }
    uint32_t least = atomic_load(&lane->peers[0].area->finished);
    for (int peer = 1; peer < lane->size; peer++) {
        uint32_t finished = atomic_load(&lane->peers[peer].area->finished);
        least = (int32_t)(finished - least) < 0 ? finished : least;
    }
    lane->room_until = least + LANE_SLOTS;
    return (int32_t)(seq - lane->room_until) < 0;
}

/* Not each time: who wants room waits for operations that all have posted, and that we will have
 * finished one day; the last of them are published by then, or there was room. */
static void publish_finished(gr_lane *lane)
{
    uint32_t finished = lane->head ? lane->head->seq : lane->next_seq;
    if (finished - lane->published < LANE_FINISHED_MAX) {
        return;
    }
    lane->published = finished;
    atomic_store(&lane->own->finished, finished);
    for (int peer = 0; peer < lane->size; peer++) {
        if (peer != lane->rank && atomic_load(&lane->peers[peer].area->wants_room) != 0) {
            gr_mesh_nudge(lane->lanes->mesh, lane->peers[peer].world);
        }
    }
}

void gr_lane_finish(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    gr_lane_op *before = NULL;
    for (gr_lane_op *at = lane->head; at != op; at = at->next) {
        before = at;
    }
    if (before) {
        before->next = op->next;
    } else {
        lane->head = op->next;
    }
    if (lane->tail == op) {
        lane->tail = before;
    }
    op->linked = false;
    op->state = LANE_FINISHED;
    op->moved = true;
    if (!before) {
        publish_finished(lane);
    }
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

gr_lane_way gr_lane_way_of(size_t most_bytes, bool registered, bool kernel, bool roomy)
{
    if (most_bytes <= (registered ? LANE_PACK_MAX : LANE_SMALL_MAX)) {
        return GR_LANE_BESIDE;
    }
    if (!registered) {
        return kernel && roomy ? GR_LANE_KERNEL : GR_LANE_WINDOWS;
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
    op->arrived = 0;
    op->said = false;
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
    op->small = gr_lane_way_of(packed_bytes, false, false, lane->roomy) == GR_LANE_BESIDE;
    op->always_packed = gr_lane_way_of(packed_bytes, true, false, lane->roomy) == GR_LANE_BESIDE;
    op->reduce = gr_reduce_kernel(lanes->isa, request->dtype, request->op);
    op->divisor = request->divisor;
    op->prescale = request->prescale;
    op->postscale = request->postscale;
    op->user = request->op == GR_USER ? request->user : NULL;
    op->user_arg = request->user_arg;
    return GR_OK;
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
    op->next = NULL;
    op->seq = lane->next_seq++;
    op->state = LANE_QUEUED;
    op->linked = true;
    if (lane->tail) {
        lane->tail->next = op;
    } else {
        lane->head = op;
    }
    lane->tail = op;
    *op_out = op;
    return GR_OK;
}

void gr_lane_note(gr_lane *lane)
{
    uint32_t seq = lane->next_seq++;
    atomic_store(&lane->own->notes[seq % LANE_SLOTS], seq + 1);
    if (!lane->head) {
        publish_finished(lane);
    }
    gr_lane_nudge_all(lane);
}

void gr_lane_release(gr_lane_op *op)
{
    gr_lanes *lanes = op->lane->lanes;
    if (op->linked) {
        bool never_posted = op->state == LANE_QUEUED && op->seq + 1 == op->lane->next_seq;
        op->lane->next_seq -= never_posted;
        if (!never_posted) {
            gr_lane_cma_close(op->lane);
        }
        gr_lane_finish(op);
    }
    op->state = LANE_FREE;
    op->next = lanes->free_ops;
    lanes->free_ops = op;
}

/* ---- Post ------------------------------------------------------------------------------------ */
/* Offset in our heap plus one; 0: it lies elsewhere. */
static uint64_t heap_offset(const gr_lane *lane, const void *mem, size_t size_bytes)
{
    const lane_peer *own = &lane->peers[lane->rank];
    uintptr_t at = (uintptr_t)mem, heap = (uintptr_t)own->heap;
    return at >= heap && at - heap <= own->heap_bytes && size_bytes <= own->heap_bytes - (at - heap)
               ? at - heap + 1
               : 0;
}

static void say_where(gr_lane_op *op, lane_line *line)
{
    size_t size_bytes = op->count * op->element_bytes;
    line->body.at.out = heap_offset(op->lane, op->out, size_bytes);
    line->body.at.prescale = op->prescale;
    bool registered = line->body.at.out != 0;
    for (int i = 0; i < op->input_count; i++) {
        uint64_t at = heap_offset(op->lane, op->inputs[i], size_bytes);
        registered = registered && at != 0;
        if (i == 0) {
            line->body.at.input = at;
        } else {
            memcpy(beside(op, op->lane->rank) + (size_t)i * sizeof at, &at, sizeof at);
        }
    }
    line->registered = registered;
    line->cma = op->lane->cma;
    if (!registered && op->lane->cma) {
        gr_lane_cma_say_where(op, line, beside(op, op->lane->rank));
    }
}

/* Begin to take a line from other caches, to be written soon. */
static void own_soon(const volatile void *line)
{
#if defined(__x86_64__)
    /* Of every processor of this architecture; the built-in would only read without -mprfchw. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const volatile char *)line));
#else
    __builtin_prefetch((const void *)(uintptr_t)line, 1);
#endif
}

static bool is_in_line(const gr_lane_op *op)
{
    return op->count * op->element_bytes * (size_t)op->tree->inputs_most <= LANE_INLINE;
}

static void pack(gr_lane_op *op)
{
    int rank = op->lane->rank;
    gr_lane_pack(op, 0, op->count,
                 is_in_line(op) ? line_of(op, rank)->body.bytes : beside(op, rank),
                 op->count * op->element_bytes);
}

static void post(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    lane_line *line = line_of(op, lane->rank);
    line->fingerprint = op->fingerprint;
    line->packed = op->small;
    line->registered = 0;
    if (op->count > 0 && !op->always_packed) {
        say_where(op, line);
        line->packed = op->small && !line->registered;
    }
    if (op->count > 0 && line->packed) {
        pack(op);
    }
    op->state = LANE_POSTED;
    op->moved = true;
    say(op, &line->posted);
    /* Others have read the lines that come next: take them back while there is time. */
    own_soon(done_of(op, lane->rank));
    lane_slot *next = &lane->own->slots[(op->seq + 1) % LANE_SLOTS];
    own_soon(&next->line);
    if (!line->packed || op->count == 0 || is_in_line(op)) {
        /* A single peer has often come by now: its line is to be here when the record is written.
         * (One that still copies beside its line would lose it once more.) */
        if (lane->size == 2) {
            __builtin_prefetch(line_of(op, 1 - lane->rank));
        }
    } else { /* the next one may well be as small */
        size_t used = op->count * op->element_bytes * (size_t)op->tree->inputs_most;
        for (size_t at = 0; at < used && at < LANE_SMALL_MAX; at += LANE_LINE) {
            own_soon(next->beside + at);
        }
    }
}

/* ---- All have come --------------------------------------------------------------------------- */
/* What `peer` said of a buffer, as seen from here or, through the kernel, from there; NULL: outside
 * its heap. */
static uint8_t *find(const gr_lane_op *op, int peer, uint64_t said)
{
    const lane_peer *from = &op->lane->peers[peer];
    size_t size_bytes = op->count * op->element_bytes;
    if (op->cma && !line_of(op, peer)->registered) {
        return (uint8_t *)(uintptr_t)said;
    }
    return said - 1 <= from->heap_bytes && size_bytes <= from->heap_bytes - (said - 1)
               ? from->heap + (said - 1)
               : NULL;
}

/* False: outside the heap of rank op->arrived. */
static bool find_all(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    op->out_count = lane->size;
    op->scaled = true;
    for (int i = 0; i < lane->size; i++) {
        int peer = (lane->rank + i) % lane->size;
        op->prescales[peer] = line_of(op, peer)->body.at.prescale;
        op->scaled = op->scaled && op->prescales[peer] == 1;
        op->outs[i] = find(op, peer, line_of(op, peer)->body.at.out);
        if (!op->outs[i]) {
            op->arrived = peer;
            return false;
        }
    }
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        lane_leaf from = op->tree->leaves[leaf];
        uint64_t at = line_of(op, from.rank)->body.at.input;
        if (from.input > 0) {
            memcpy(&at, beside(op, from.rank) + (size_t)from.input * sizeof at, sizeof at);
        }
        op->at[leaf] = find(op, from.rank, at);
        if (!op->at[leaf]) {
            op->arrived = from.rank;
            return false;
        }
    }
    return true;
}

static bool begin_direct(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    if (!find_all(op)) {
        return false;
    }
    if (lane->roomy) {
        op->begin =
            gr_lane_cut(op->count, op->element_bytes, (size_t)lane->size, (size_t)lane->rank);
        op->end =
            gr_lane_cut(op->count, op->element_bytes, (size_t)lane->size, (size_t)lane->rank + 1);
        op->state = LANE_DIRECT;
        return true;
    }
    size_t size_bytes = op->count * op->element_bytes;
    size_t shares = size_bytes / SHARE_BYTES + 1;
    if (shares < lane->cores) { /* one for each, unless it is hardly worth it */
        shares = size_bytes / SHARE_BYTES_MIN < lane->cores ? 1 : lane->cores;
    }
    op->shares = (uint32_t)(shares < SHARES_MAX ? shares : SHARES_MAX);
    op->shares_done = 0;
    op->state = LANE_CLAIM;
    return true;
}

static void add_small(gr_lane_op *op)
{
    size_t size_bytes = op->count * op->element_bytes;
    bool in_line = is_in_line(op);
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        lane_leaf from = op->tree->leaves[leaf];
        const uint8_t *packed =
            in_line ? line_of(op, from.rank)->body.bytes : beside(op, from.rank);
        op->at[leaf] = packed + (size_t)from.input * size_bytes;
    }
    op->scaled = true;
    op->outs[0] = op->out;
    op->out_count = 1;
    gr_lane_add(op, 0, op->count, 0);
}

/* Ours is done: now we wait for the others. */
static void say_done(gr_lane_op *op, lane_state next)
{
    op->state = next;
    op->arrived = 0;
    say(op, done_of(op, op->lane->rank));
    settle(op);
}

/* Small. Who could have let the others read its memory has not packed; if they could not all, it
 * packs now. */
static gr_status meet_small(gr_lane_op *op, bool all_packed)
{
    if (!all_packed) {
        if (!line_of(op, op->lane->rank)->packed) {
            pack(op);
        }
        say_done(op, LANE_PACKED);
        return GR_PENDING;
    }
    if (op->count > 0) {
        add_small(op);
    }
    gr_lane_finish(op);
    return GR_OK;
}

static gr_status meet(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    bool all_registered = !op->always_packed, all_packed = op->small, all_cma = true;
    for (int peer = 0; peer < lane->size; peer++) {
        const lane_line *line = line_of(op, peer);
        if (line->fingerprint != op->fingerprint) {
            op->arrived = peer;
            op->state = LANE_STUCK;
            return GR_E_MISMATCH;
        }
        all_registered = all_registered && line->registered;
        all_packed = all_packed && line->packed;
        all_cma = all_cma && line->cma;
    }
    op->moved = true;
    if (op->small && !all_registered) {
        return meet_small(op, all_packed);
    }
    op->cma = !all_registered && all_cma && op->tree->leaf_count <= LANE_CMA_LEAVES_MAX;
    if (!all_registered && !op->cma) {
        op->window_first = op->window_end = 0;
        op->state = LANE_STAGED;
        return GR_PENDING;
    }
    if (begin_direct(op)) {
        return GR_PENDING;
    }
    op->state = LANE_STUCK;
    return GR_E_PROTOCOL;
}

/* The rank that we wait for has noted a plan in place of this operation. */
static bool is_elsewhere(const gr_lane_op *op)
{
    const lane_area *area = op->lane->peers[op->arrived].area;
    uint32_t noted = atomic_load(&area->notes[op->seq % LANE_SLOTS]);
    return noted != 0 && (int32_t)(noted - (op->seq + 1)) >= 0 &&
           atomic_load(&line_of(op, op->arrived)->posted) != op->seq + 1;
}

/* ---- Work ------------------------------------------------------------------------------------ */
static gr_status add_own_share(gr_lane_op *op)
{
    size_t most = LANE_BUDGET / op->element_bytes;
    size_t end = op->end - op->begin < most ? op->end : op->begin + most;
    if (op->cma) {
        gr_status status = gr_lane_cma_add(op, op->begin, end);
        if (status != GR_OK) {
            return status;
        }
    } else {
        gr_lane_add(op, op->begin, end, 0);
    }
    op->begin = end;
    op->moved = true;
    if (op->begin == op->end) {
        say_done(op, LANE_DONE);
    }
    return GR_PENDING;
}

/* The lower half of a word counts for this operation from here on. */
static void claim_word(_Atomic uint64_t *word, uint32_t seq)
{
    uint64_t seen = atomic_load(word);
    while (seen >> 32 != (uint64_t)seq + 1 &&
           !atomic_compare_exchange_weak(word, &seen, ((uint64_t)seq + 1) << 32)) {
    }
}

/* A share that nobody has taken, at best one that this core took the last time: what it touches may
 * still lie in its cache. `shares`: none is left. */
static uint32_t take_share(const gr_lane_op *op)
{
    _Atomic uint64_t *taken = &claim_of(op)->taken;
    int core = sched_getcpu();
    uint32_t cores = op->lane->cores;
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
static void add_free_share(gr_lane_op *op)
{
    uint32_t part = take_share(op);
    op->moved = true;
    if (part < op->shares) {
        gr_lane_add(op, gr_lane_cut(op->count, op->element_bytes, op->shares, part),
                    gr_lane_cut(op->count, op->element_bytes, op->shares, part + 1), 0);
        op->shares_done++;
        return;
    }
    _Atomic uint64_t *done = &claim_of(op)->done;
    op->state = LANE_DONE;
    if (op->shares_done > 0) {
        claim_word(done, op->seq);
        uint32_t before = (uint32_t)atomic_fetch_add(done, op->shares_done);
        if (before + op->shares_done == op->shares) {
            gr_lane_nudge_all(op->lane);
        }
    }
    atomic_store_explicit(done_of(op, op->lane->rank), op->seq + 1, memory_order_release);
}

/* ---- Moving on ------------------------------------------------------------------------------- */
static bool can_move(const gr_lane_op *op)
{
    int arrived = op->arrived;
    switch (op->state) {
    case LANE_QUEUED:
        return has_room(op->lane, op->seq);
    case LANE_POSTED:
        return all_posted(op, &arrived) || arrived != op->arrived || is_elsewhere(op);
    case LANE_PACKED:
        return all_did(op, &arrived);
    case LANE_STAGED:
        return gr_lane_windows_can_move(op);
    case LANE_DONE:
        return op->lane->roomy ? all_did(op, &arrived) : claims_done(op);
    case LANE_DIRECT:
    case LANE_CLAIM:
        return true;
    default:
        return false;
    }
}

static bool has_news(const void *arg)
{
    const gr_lanes *lanes = arg;
    for (int id = 0; id < GR_SHARED_LANES; id++) {
        const gr_lane *lane = lanes->open[id];
        for (const gr_lane_op *op = lane ? lane->head : NULL; op; op = op->next) {
            if (can_move(op)) {
                return true;
            }
        }
    }
    return false;
}

/* Who finishes looks whether we want room after it has stored that it has, and we look for room
 * after we have stored that we want it. */
static void try_post(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    if (!has_room(lane, op->seq)) {
        atomic_store(&lane->own->wants_room, 1);
        if (!has_room(lane, op->seq)) {
            return;
        }
    }
    if (atomic_load_explicit(&lane->own->wants_room, memory_order_relaxed) != 0) {
        atomic_store_explicit(&lane->own->wants_room, 0, memory_order_relaxed);
    }
    post(op);
}

void gr_lane_post(gr_lane_op *op, uint64_t fingerprint)
{
    op->fingerprint = fingerprint;
    try_post(op);
}

static gr_status move_once(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    settle(op);
    switch (op->state) {
    case LANE_QUEUED:
        try_post(op);
        break;
    case LANE_POSTED:
        if (all_came(op, &op->arrived)) {
            return meet(op);
        }
        if (is_elsewhere(op)) {
            op->state = LANE_STUCK;
            return GR_E_MISMATCH;
        }
        break;
    case LANE_PACKED:
        return all_came(op, &op->arrived) ? meet_small(op, true) : GR_PENDING;
    case LANE_DIRECT:
        return add_own_share(op);
    case LANE_CLAIM:
        add_free_share(op);
        break;
    case LANE_STAGED:
        gr_lane_windows_move(op);
        break;
    case LANE_DONE:
        if (lane->roomy ? all_came(op, &op->arrived) : claims_done(op)) {
            gr_lane_finish(op);
        }
        break;
    default:
        break;
    }
    return op->state == LANE_FINISHED ? GR_OK : GR_PENDING;
}

/* Bytes that the next step will add or copy, at most. */
static size_t step_bytes(const gr_lane_op *op)
{
    switch (op->state) {
    case LANE_DIRECT:
        return LANE_BUDGET;
    case LANE_CLAIM:
        return op->count * op->element_bytes / op->shares;
    case LANE_STAGED:
        return LANE_HALF;
    default:
        return 0;
    }
}

gr_status gr_lane_move(gr_lane_op *op)
{
    size_t left = LANE_BUDGET;
    gr_status status = GR_PENDING;
    bool moved = op->moved;
    do {
        size_t bytes = step_bytes(op);
        op->moved = false;
        status = move_once(op);
        moved = moved || op->moved;
        left -= bytes < left ? bytes : left;
    } while (status == GR_PENDING && op->moved && left > 0);
    op->moved = moved;
    return status;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool gr_lane_ready(gr_lane_op *op)
{
    settle(op);
    return can_move(op);
}

bool gr_lane_linger(gr_lane_op *op)
{
    for (int i = 0; i < LINGER_YIELDS && !op->lane->roomy; i++) {
        if (gr_lane_ready(op)) {
            return true;
        }
        sched_yield(); /* whom we wait for may need this very core */
    }
    for (int i = 0; i < LINGER_LOOKS && op->lane->roomy; i++) {
        if (gr_lane_ready(op)) {
            return true;
        }
        relax(); /* who stores had better not find its line in use by us */
    }
    return false;
}

int gr_lane_arrived(const gr_lane_op *op)
{
    return op->state == LANE_QUEUED ? 0 : op->state == LANE_POSTED ? op->arrived : op->lane->size;
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

bool gr_lane_moved(gr_lane_op *op)
{
    bool moved = op->moved;
    op->moved = false;
    return moved;
}

bool gr_lane_needs(const gr_lane_op *op, int peer)
{
    const lane_area *area = op->lane->peers[peer].area;
    if (peer == op->lane->rank) {
        return false;
    }
    switch (op->state) {
    case LANE_QUEUED:
        return (int32_t)(op->seq - atomic_load(&area->finished) - LANE_SLOTS) >= 0;
    case LANE_POSTED:
        return atomic_load(&line_of(op, peer)->posted) != op->seq + 1;
    case LANE_PACKED:
    case LANE_DIRECT:
        return atomic_load(done_of(op, peer)) != op->seq + 1;
    case LANE_CLAIM:
        return false;
    case LANE_DONE:
        return op->lane->roomy ? atomic_load(done_of(op, peer)) != op->seq + 1
                               : !claims_done(op) && atomic_load(done_of(op, peer)) != op->seq + 1;
    case LANE_STAGED:
        return gr_lane_windows_need(op, peer);
    case LANE_STUCK:
        return peer == op->arrived;
    default:
        return false;
    }
}

int gr_lane_late(const gr_lane_op *op)
{
    int peer = 0;
    while (peer < op->lane->size && !gr_lane_needs(op, peer)) {
        peer++;
    }
    return peer < op->lane->size ? peer : -1;
}
