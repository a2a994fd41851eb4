/* SPDX-License-Identifier: Apache-2.0 */

/* Lines and states: how an operation gets from its post to its end. Who stores what others wait for
 * looks afterwards whether all have stored theirs: the last one sees it, since these stores and
 * loads have one order, and wakes whoever sleeps; the others need not. */

#include "coll/lane_internal.h"

#include <sched.h>
#include <string.h>

enum { LINGER_LOOKS = 500, LINGER_LOOKS_SHARED = 30, LINGER_YIELDS = 32 };

/* ---- What all store and wait for ------------------------------------------------------------- */
void gr_lane_nudge_all(const gr_lane *lane)
{
    for (int peer = 0; peer < lane->size; peer++) {
        if (peer != lane->rank) {
            gr_mesh_nudge(lane->lanes->mesh, lane->peers[peer].world);
        }
    }
}

/* Ranks from *arrived_io on that have posted (or done their share of) the operation. We have, and
 * do not look at our own line, here or later: it is with those that read it, and to have it back
 * would cost as much as to get theirs. */
static bool all_posted(const gr_lane_op *op, int *arrived_io)
{
    const gr_lane *lane = op->lane;
    while (*arrived_io < lane->size &&
           (*arrived_io == lane->rank ||
            atomic_load(&gr_lane_line_of(op, *arrived_io)->posted) == op->seq + 1)) {
        ++*arrived_io;
    }
    return *arrived_io == lane->size;
}

static bool all_did(const gr_lane_op *op, int *arrived_io)
{
    const gr_lane *lane = op->lane;
    while (*arrived_io < lane->size &&
           (*arrived_io == lane->rank ||
            atomic_load(gr_lane_done_of(op, *arrived_io)) == op->seq + 1)) {
        ++*arrived_io;
    }
    return *arrived_io == lane->size;
}

/* Have all stored what it waits for? */
static bool all_came(const gr_lane_op *op, int *arrived_io)
{
    return op->state == LANE_POSTED ? all_posted(op, arrived_io) : all_did(op, arrived_io);
}

/* What follows does not wait until the store has reached the others, which takes as long as their
 * stores take to us: only settle does, when there is nothing better to do. */
static void say(gr_lane_op *op, _Atomic uint32_t *word)
{
#if defined(__SANITIZE_THREAD__) /* which knows no fences */
    atomic_store(word, op->seq + 1);
#else
    atomic_store_explicit(word, op->seq + 1, memory_order_release);
#endif
    op->said = true;
}

/* Wakes those that sleep if this rank was the last to store, as all do before they let go of the
 * operation or sleep. The fences of the ranks have one order: who has the last one finds what all
 * have stored before theirs. A sleeper has said that it sleeps, sequentially consistently, before
 * it looked: if it looked behind the last fence it saw all, and if before, the last one sees that
 * it sleeps. */
static void settle(gr_lane_op *op, bool all)
{
    if (op->said) {
        int arrived = op->arrived;
        op->said = false;
#if !defined(__SANITIZE_THREAD__)
        atomic_thread_fence(memory_order_seq_cst);
#endif
        if (all || all_came(op, &arrived)) {
            gr_lane_nudge_all(op->lane);
        }
    }
}

/* The end of a wait for what all store. */
static bool met(gr_lane_op *op)
{
    bool all = all_came(op, &op->arrived);
    if (all) {
        settle(op, true);
    }
    return all;
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

/* All have come, and said how far they had come: who goes on with the others needs no look at their
 * `finished`. `most`: unfinished, of any of them, when it posted. */
static void learn_room(gr_lane *lane, const gr_lane_op *op, uint32_t most)
{
    uint32_t least = op->seq - most, own = lane->head->seq;
    uint32_t until = ((int32_t)(own - least) < 0 ? own : least) + LANE_SLOTS;
    if ((int32_t)(until - lane->room_until) > 0) {
        lane->room_until = until;
    }
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

void gr_lane_note(gr_lane *lane)
{
    uint32_t seq = lane->next_seq++;
    atomic_store(&lane->own->notes[seq % LANE_SLOTS], seq + 1);
    if (!lane->head) {
        publish_finished(lane);
    }
    gr_lane_nudge_all(lane);
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

/* Returns of what kinds our buffers are. */
static uint8_t say_where(gr_lane_op *op, lane_line *line)
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
            memcpy(gr_lane_beside(op, op->lane->rank) + (size_t)i * sizeof at, &at, sizeof at);
        }
    }
    bool reached = op->by_kernel && (registered || gr_lane_cma_say_where(op, line));
    return (uint8_t)((registered ? LANE_IN_HEAP : 0) | (reached ? LANE_BY_KERNEL : 0));
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
                 is_in_line(op) ? gr_lane_line_of(op, rank)->body.bytes : gr_lane_beside(op, rank),
                 op->count * op->element_bytes);
}

static void post(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    lane_line *line = gr_lane_line_of(op, lane->rank);
    uint8_t kinds = op->always_packed ? 0 : say_where(op, line);
    bool packed = op->small && (kinds & LANE_IN_HEAP) == 0;
    op->kinds = packed ? kinds | LANE_BESIDE : kinds;
    if (op->count > 0 && packed) {
        pack(op);
    }
    /* In one go, at the end: others look at this line, and take it away each time. */
    line->fingerprint = op->fingerprint;
    line->kinds = op->kinds;
    line->unfinished = (uint8_t)(op->seq - lane->head->seq);
    line->core = lane->roomy ? 0 : (int16_t)sched_getcpu();
    lane->peers[lane->rank].core = line->core;
    op->state = LANE_POSTED;
    op->moved = true;
    say(op, &line->posted);
    /* Others have read the lines that come next: take them back while there is time. */
    own_soon(gr_lane_done_of(op, lane->rank));
    lane_slot *next = &lane->own->slots[(op->seq + 1) % LANE_SLOTS];
    own_soon(&next->line);
    if (packed && op->count > 0 && !is_in_line(op)) { /* the next one may well be as small */
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
    if (op->cma && (gr_lane_line_of(op, peer)->kinds & LANE_IN_HEAP) == 0) {
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
    op->scaled = op->prescale == 1;
    op->prescales[lane->rank] = op->prescale;
    op->outs[0] = op->out;
    for (int i = 1; i < lane->size; i++) {
        int peer = (lane->rank + i) % lane->size;
        op->prescales[peer] = gr_lane_line_of(op, peer)->body.at.prescale;
        op->scaled = op->scaled && op->prescales[peer] == 1;
        op->outs[i] = find(op, peer, gr_lane_line_of(op, peer)->body.at.out);
        if (!op->outs[i]) {
            op->arrived = peer;
            return false;
        }
    }
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        lane_leaf from = op->tree->leaves[leaf];
        if (from.rank == lane->rank) {
            op->at[leaf] = op->inputs[from.input];
            continue;
        }
        uint64_t at = gr_lane_line_of(op, from.rank)->body.at.input;
        if (from.input > 0) {
            memcpy(&at, gr_lane_beside(op, from.rank) + (size_t)from.input * sizeof at, sizeof at);
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
    if (!find_all(op)) {
        return false;
    }
    gr_lane_deal(op);
    return true;
}

static void add_small(gr_lane_op *op)
{
    size_t size_bytes = op->count * op->element_bytes;
    bool in_line = is_in_line(op);
    for (int leaf = 0; leaf < op->tree->leaf_count; leaf++) {
        lane_leaf from = op->tree->leaves[leaf];
        const uint8_t *packed =
            in_line ? gr_lane_line_of(op, from.rank)->body.bytes : gr_lane_beside(op, from.rank);
        bool here = from.rank == op->lane->rank && op->prescale == 1;
        op->at[leaf] = here ? op->inputs[from.input] : packed + (size_t)from.input * size_bytes;
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
    say(op, gr_lane_done_of(op, op->lane->rank));
}

/* Small. Who could have let the others read its memory has not packed; if they could not all, it
 * packs now. */
static gr_status meet_small(gr_lane_op *op, bool all_packed)
{
    if (!all_packed) {
        if ((op->kinds & LANE_BESIDE) == 0) {
            pack(op);
        }
        say_done(op, LANE_PACKED);
        return GR_PENDING;
    }
    if (op->count > 0) {
        add_small(op);
    }
    settle(op, true); /* behind so little work, when the store has arrived */
    gr_lane_finish(op);
    return GR_OK;
}

static gr_status meet(gr_lane_op *op)
{
    gr_lane *lane = op->lane;
    uint8_t all = op->kinds;
    uint32_t unfinished = 0;
    for (int peer = 0; peer < lane->size; peer++) {
        const lane_line *line = gr_lane_line_of(op, peer);
        if (peer == lane->rank) {
            continue;
        }
        if (line->fingerprint != op->fingerprint) {
            settle(op, true);
            op->arrived = peer;
            op->state = LANE_STUCK;
            return GR_E_MISMATCH;
        }
        all &= line->kinds;
        unfinished = line->unfinished > unfinished ? line->unfinished : unfinished;
        lane->peers[peer].core = line->core;
    }
    learn_room(lane, op, unfinished);
    if (!lane->roomy) {
        gr_lane_look_at_cores(lane, op->seq);
    }
    op->moved = true;
    if ((all & LANE_BESIDE) != 0) {
        return meet_small(op, true);
    }
    bool registered = (all & LANE_IN_HEAP) != 0;
    size_t share_bytes = (op->own_end - op->own_begin) * op->element_bytes;
    if (!registered || !lane->roomy || share_bytes > LANE_SMALL_MAX) { /* else behind our share */
        settle(op, true);
    }
    if (op->small && !registered) {
        return meet_small(op, false);
    }
    op->cma = !registered && (all & LANE_BY_KERNEL) != 0;
    if (!registered && !op->cma) {
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
           atomic_load(&gr_lane_line_of(op, op->arrived)->posted) != op->seq + 1;
}

/* ---- Moving on ------------------------------------------------------------------------------- */
static gr_status add_own_share(gr_lane_op *op)
{
    gr_status status = gr_lane_add_own(op);
    if (status != GR_OK) {
        return status;
    }
    settle(op, true); /* of what was posted */
    say_done(op, LANE_DONE);
    return GR_PENDING;
}

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
        return op->lane->roomy ? all_did(op, &arrived) : gr_lane_claims_done(op);
    case LANE_DIRECT:
    case LANE_CLAIM:
        return true;
    default:
        return false;
    }
}

bool gr_lane_has_news(const void *arg)
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
        return met(op) ? meet_small(op, true) : GR_PENDING;
    case LANE_DIRECT:
        return add_own_share(op);
    case LANE_CLAIM:
        return gr_lane_add_free(op);
    case LANE_STAGED:
        gr_lane_windows_move(op);
        break;
    case LANE_DONE:
        if (lane->roomy ? met(op) : gr_lane_claims_done(op)) {
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
    if (!op->lingers) {
        settle(op, false);
    }
    return status;
}

bool gr_lane_ready(gr_lane_op *op)
{
    settle(op, false);
    return can_move(op);
}

static bool look(const gr_lane_op *op, int times)
{
    for (int i = 0; i < times; i++) {
        if (can_move(op)) {
            return true;
        }
        gr_relax();
    }
    return false;
}

/* Was one of those that we wait for on this core when it posted last? It is not running then. */
static bool holds_up(const gr_lane_op *op)
{
    const gr_lane *lane = op->lane;
    int core = sched_getcpu();
    int peer = 0;
    while (peer < lane->size && (lane->peers[peer].core != core || !gr_lane_needs(op, peer))) {
        peer++;
    }
    return peer < lane->size;
}

/* Where cores are shared: to leave this one for somebody who can do nothing either costs two turns,
 * so the others are given a moment if nobody whom we wait for needs it. */
bool gr_lane_linger(gr_lane_op *op)
{
    op->lingers = op->lane->roomy;
    if (op->lingers && look(op, LINGER_LOOKS)) {
        return true;
    }
    if (op->lane->must_go) {
        gr_lane_go(op->lane);
    }
    for (int i = 0; i < LINGER_YIELDS && !op->lingers; i++) {
        if (gr_lane_ready(op) || (!holds_up(op) && look(op, LINGER_LOOKS_SHARED))) {
            return true;
        }
        sched_yield();
    }
    op->lingers = false;
    return gr_lane_ready(op);
}

int gr_lane_arrived(const gr_lane_op *op)
{
    return op->state == LANE_QUEUED ? 0 : op->state == LANE_POSTED ? op->arrived : op->lane->size;
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
        return atomic_load(&gr_lane_line_of(op, peer)->posted) != op->seq + 1;
    case LANE_PACKED:
    case LANE_DIRECT:
        return atomic_load(gr_lane_done_of(op, peer)) != op->seq + 1;
    case LANE_CLAIM:
        return false;
    case LANE_DONE:
        return op->lane->roomy ? atomic_load(gr_lane_done_of(op, peer)) != op->seq + 1
                               : !gr_lane_claims_done(op) &&
                                     atomic_load(gr_lane_done_of(op, peer)) != op->seq + 1;
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
