/* SPDX-License-Identifier: Apache-2.0 */

/* Control slots and states: how an operation gets from its start to its end.
 *
 *   start --> QUEUED --> POSTED --+--------------------> FINISHED  parts are eager data
 *            (no free    (until   +--> PACKED ---------> FINISHED  small, some were not there yet
 *             slot)       those   +--> DIRECT -> DONE -> FINISHED  all buffers are reached, a core
 *                         that it |                                for each rank
 *                         needs   +--> CLAIM --> DONE -> FINISHED  the same, fewer cores: whoever
 *                         have    |                                runs takes a free share
 *                         come)   +--> STAGED ---------> FINISHED  through bounce buffers
 *                                 +--> FAILED another call, or nonsense in a slot
 *
 * Who stores what others wait for looks afterwards whether all have stored theirs: the last one
 * sees it, since these stores and loads have one order, and wakes whoever sleeps; the others need
 * not. */

#include "coll/shm/shm_coll_internal.h"

#include <sched.h>
#include <string.h>

enum { ROOTED_PAUSES = 4, SPIN_POLLS = 500, SPIN_POLLS_SHARED = 30, SPIN_YIELDS = 32 };

/* ---- What all store and wait for ------------------------------------------------------------- */
void gr_shm_coll_wake_all(const gr_shm_coll *shm)
{
    for (int peer = 0; peer < shm->size; peer++) {
        if (peer != shm->rank) {
            gr_mesh_wake_peer(shm->shms->mesh, shm->peers[peer].world);
        }
    }
}

/* Returns true if the operation waits here for `peer` to arrive. */
static bool awaits(const gr_shm_coll_op *op, int peer)
{
    return op->waits == SHM_COLL_FOR_ALL || (op->waits == SHM_COLL_FOR_ROOT && peer == op->root);
}

/* Bits. */
static uint64_t other_ranks(const gr_shm_coll *shm)
{
    return UINT64_MAX >> (GR_SHM_COLL_RANKS_MAX - shm->size) & ~(UINT64_C(1) << shm->rank);
}

uint64_t gr_shm_coll_awaited(const gr_shm_coll_op *op)
{
    return op->waits == SHM_COLL_FOR_ALL    ? other_ranks(op->shm)
           : op->waits == SHM_COLL_FOR_ROOT ? UINT64_C(1) << op->root
                                            : 0;
}

/* A small operation with a root. A rank whose contribution is eager data waits for nobody. A
 * rank that takes from the root alone waits for the root, and for the others as well if the root
 * has left its contribution in its heap. */
static shm_waits waits_of(const gr_shm_coll_op *op, bool packed)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    bool at_root = op->shm->rank == op->root, root_gives = traits->gives == GR_PARTY_ROOT;
    if (!op->is_rooted || at_root != root_gives) {
        return op->is_rooted && root_gives ? SHM_COLL_FOR_ROOT : SHM_COLL_FOR_ALL;
    }
    return packed ? SHM_COLL_FOR_NOBODY : SHM_COLL_FOR_ALL;
}

/* Where all pack, only those that take wait, and only for those that give. */
void gr_shm_coll_prepare_waits(gr_shm_coll_op *op)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[op->coll];
    bool at_root = op->shm->rank == op->root;
    bool is_awaited = at_root ? traits->gives == GR_PARTY_ROOT : traits->receives == GR_PARTY_ROOT;
    op->waits_packed = waits_of(op, true);
    op->is_silent = op->is_rooted && op->always_packed && !is_awaited;
}

/* Ranks from *arrived_io on that have posted (or done their share of) the operation. We have, and
 * do not read our own slot, here or later: it is with those that read it, and to have it back
 * would cost as much as to get theirs. */
static bool all_posted(const gr_shm_coll_op *op, int *arrived_io)
{
    const gr_shm_coll *shm = op->shm;
    if (op->waits != SHM_COLL_FOR_ALL) {
        bool come = op->waits == SHM_COLL_FOR_NOBODY || op->root == shm->rank ||
                    atomic_load(&gr_shm_coll_control_of(op, op->root)->sequence) == op->seq + 1;
        *arrived_io = come ? shm->size : *arrived_io < op->root ? op->root : *arrived_io;
        return come;
    }
    while (*arrived_io < shm->size &&
           (*arrived_io == shm->rank ||
            atomic_load(&gr_shm_coll_control_of(op, *arrived_io)->sequence) == op->seq + 1)) {
        ++*arrived_io;
    }
    return *arrived_io == shm->size;
}

/* Returns true if the operation waits here for `peer` to do its share. Of ranks that pack, it waits
 * for those that had not packed when they arrived. */
static bool awaits_done(const gr_shm_coll_op *op, int peer)
{
    return peer != op->shm->rank &&
           (op->state != SHM_COLL_PACKED || (op->peer_kinds[peer] & SHM_COLL_EAGER) == 0);
}

static bool all_did(const gr_shm_coll_op *op, int *arrived_io)
{
    const gr_shm_coll *shm = op->shm;
    while (*arrived_io < shm->size &&
           (!awaits_done(op, *arrived_io) ||
            atomic_load(gr_shm_coll_done_of(op, *arrived_io)) == op->seq + 1)) {
        ++*arrived_io;
    }
    return *arrived_io == shm->size;
}

/* SHM_COLL_CLAIM: all shares are done. */
static bool claims_done(const gr_shm_coll_op *op)
{
    uint64_t done = atomic_load(&gr_shm_coll_claim_of(op)->done);
    return (uint32_t)(done >> 32) == op->seq + 1 && (uint32_t)done >= op->shares;
}

/* Returns true if all have stored what the operation waits for. */
static bool all_came(const gr_shm_coll_op *op, int *arrived_io)
{
    return op->state == SHM_COLL_POSTED ? all_posted(op, arrived_io) : all_did(op, arrived_io);
}

/* Where not all wait for all, nobody is the last one: who gives wakes those that take. */
static void wake_takers(const gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
    if (shm->rank == op->root && gr_coll_traits_of[op->coll].gives == GR_PARTY_ROOT) {
        gr_shm_coll_wake_all(shm);
    } else if (shm->rank != op->root && gr_coll_traits_of[op->coll].receives == GR_PARTY_ROOT) {
        gr_mesh_wake_peer(shm->shms->mesh, shm->peers[op->root].world);
    }
}

/* What follows does not wait until the store has reached the others, which takes as long as their
 * stores take to us: only flush_wakeups does, when there is nothing better to do. */
static void store_number(const gr_shm_coll_op *op, _Atomic uint32_t *word)
{
#if defined(__SANITIZE_THREAD__) /* which knows no fences */
    atomic_store(word, op->seq + 1);
#else
    atomic_store_explicit(word, op->seq + 1, memory_order_release);
#endif
}

static void publish(gr_shm_coll_op *op, _Atomic uint32_t *word)
{
    store_number(op, word);
    op->unflushed = true;
}

/* Wakes those that sleep if this rank was the last to store, as all do before they let go of the
 * operation or sleep. The fences of the ranks have one order: who has the last one finds what all
 * have stored before theirs. A sleeper has said that it sleeps, sequentially consistently, before
 * it looked: if it looked behind the last fence it saw all, and if before, the last one sees that
 * it sleeps. */
static void flush_wakeups(gr_shm_coll_op *op, bool all)
{
    if (op->unflushed) {
        int arrived = op->arrived;
        op->unflushed = false;
#if !defined(__SANITIZE_THREAD__)
        atomic_thread_fence(memory_order_seq_cst);
#endif
        if (op->is_rooted) {
            wake_takers(op);
        }
        if (op->waits == SHM_COLL_FOR_ALL && (all || all_came(op, &arrived))) {
            gr_shm_coll_wake_all(op->shm);
        }
    }
}

/* The end of a wait for what all store. */
static bool met(gr_shm_coll_op *op)
{
    bool all = all_came(op, &op->arrived);
    if (all) {
        flush_wakeups(op, true);
    }
    return all;
}

/* Returns true if an operation that was started earlier must be posted first. */
static bool is_behind_queued(const gr_shm_coll_op *op)
{
    const gr_shm_coll_op *at = op->shm->head;
    while (at != op && at->state != SHM_COLL_QUEUED) {
        at = at->next;
    }
    return at != op;
}

/* A slot is free when nobody reads any more what was posted there SHM_COLL_SLOTS operations ago;
 * the same is so of a place. */
static bool has_room(const gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    if (is_behind_queued(op)) {
        return false;
    }
    if ((int32_t)(op->seq - shm->all_finished - op->depth) < 0) {
        return true;
    }
    uint32_t least = atomic_load(&shm->peers[0].area->finished);
    for (int peer = 1; peer < shm->size; peer++) {
        uint32_t finished = atomic_load(&shm->peers[peer].area->finished);
        least = (int32_t)(finished - least) < 0 ? finished : least;
    }
    shm->all_finished = least;
    return (int32_t)(op->seq - least - op->depth) < 0;
}

/* All have come, and said how far they had come: who goes on with the others needs no look at their
 * `finished`. `most`: unfinished, of any of them, when it posted. */
static void learn_room(gr_shm_coll *shm, const gr_shm_coll_op *op, uint32_t most)
{
    uint32_t least = op->seq - most, own = shm->head->seq;
    uint32_t all = (int32_t)(own - least) < 0 ? own : least;
    if (most < SHM_COLL_UNFINISHED_MANY && (int32_t)(all - shm->all_finished) > 0) {
        shm->all_finished = all;
    }
}

/* Whether `peer` has called the same. Its word is of this operation, or of an earlier one, until
 * this rank publishes that it has finished it. */
typedef enum shm_called { SHM_COLL_NOT_YET, SHM_COLL_ALIKE, SHM_COLL_DIFFERENT } shm_called;

static shm_call *call_of(const gr_shm_coll *shm, uint32_t seq, int peer)
{
    return &shm->peers[peer].area->calls[seq % SHM_COLL_SLOTS];
}

static shm_called called_by(const gr_shm_coll *shm, uint32_t seq, uint64_t fingerprint, int peer)
{
    const shm_call *call = call_of(shm, seq, peer);
    if (atomic_load(&call->sequence) != seq + 1) {
        return SHM_COLL_NOT_YET;
    }
    bool alike = atomic_load_explicit(&call->fingerprint, memory_order_relaxed) == fingerprint;
    return alike ? SHM_COLL_ALIKE : SHM_COLL_DIFFERENT;
}

/* Oldest first: who has not posted one of them has posted none that comes later, and every look
 * takes a line from its owner. Each difference is found once. */
static bool find_difference(gr_shm_coll *shm, shm_difference *found)
{
    uint64_t behind = 0;
    _Static_assert(SHM_COLL_SLOTS == 64, "a bit of unchecked_slots each");
    uint32_t first = shm->next_seq % SHM_COLL_SLOTS;
    uint64_t slots = shm->unchecked_slots;
    slots = slots >> first | slots << (-first % SHM_COLL_SLOTS);
    for (; slots != 0; slots &= slots - 1) {
        uint32_t slot = (first + (uint32_t)__builtin_ctzll(slots)) % SHM_COLL_SLOTS;
        shm_unchecked *unchecked = &shm->unchecked[slot];
        for (uint64_t peers = unchecked->peers & ~behind; peers != 0; peers &= peers - 1) {
            int peer = __builtin_ctzll(peers);
            shm_called called = called_by(shm, unchecked->seq, unchecked->fingerprint, peer);
            if (called == SHM_COLL_NOT_YET) {
                behind |= UINT64_C(1) << peer;
                continue;
            }
            unchecked->peers &= ~(UINT64_C(1) << peer);
            if (called == SHM_COLL_DIFFERENT) {
                *found = (shm_difference){
                    .fingerprint = unchecked->fingerprint, .seq = unchecked->seq, .peer = peer};
                return true;
            }
        }
        if (unchecked->peers == 0) {
            shm->unchecked_slots &= ~(UINT64_C(1) << slot);
        }
    }
    return false;
}

/* Keeps what it finds for gr_shm_coll_mismatch. */
static bool look_for_difference(gr_shm_coll *shm)
{
    shm->differs =
        shm->differs || (shm->unchecked_slots != 0 && find_difference(shm, &shm->difference));
    return shm->differs;
}

bool gr_shm_coll_mismatch(gr_shm_coll *shm, uint32_t *number_out, uint64_t *fingerprint_out,
                          int *peer_out)
{
    if (!look_for_difference(shm)) {
        return false;
    }
    *number_out = shm->difference.seq;
    *fingerprint_out = shm->difference.fingerprint;
    *peer_out = shm->difference.peer;
    shm->differs = false;
    return true;
}

/* What the others have posted so far can be read for the last time. Of two ranks that wait for
 * nobody, one sees what the other one has called: whose fence is the last one. */
static void look_for_the_last_time(gr_shm_coll *shm)
{
    if (shm->unchecked_slots != 0) {
#if !defined(__SANITIZE_THREAD__) /* where posts are sequentially consistent */
        atomic_thread_fence(memory_order_seq_cst);
#endif
        (void)look_for_difference(shm);
    }
}

__attribute__((noinline)) /* seldom: what it needs of the stack is not set up each time */
static void
say_finished(gr_shm_coll *shm, uint32_t finished)
{
    look_for_the_last_time(shm);
    shm->published = finished;
    /* From here on the others may use the slots of these operations again. */
    for (uint64_t slots = shm->unchecked_slots; slots != 0; slots &= slots - 1) {
        int slot = __builtin_ctzll(slots);
        if ((int32_t)(finished - shm->unchecked[slot].seq) > 0) {
            shm->unchecked_slots &= ~(UINT64_C(1) << slot);
        }
    }
    atomic_store(&shm->own->finished, finished);
    for (int peer = 0; peer < shm->size; peer++) {
        if (peer != shm->rank && atomic_load(&shm->peers[peer].area->wants_room) != 0) {
            gr_mesh_wake_peer(shm->shms->mesh, shm->peers[peer].world);
        }
    }
}

/* Not each time: who wants room waits for operations that all have posted, and that we will have
 * finished one day; the last of them are published by then, or there was room. */
static void publish_finished(gr_shm_coll *shm)
{
    uint32_t finished = shm->head ? shm->head->seq : shm->next_seq;
    if (finished - shm->published >= SHM_COLL_FINISHED_MAX) {
        say_finished(shm, finished);
    }
}

void gr_shm_coll_finish(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    gr_shm_coll_op *before = NULL;
    for (gr_shm_coll_op *at = shm->head; at != op; at = at->next) {
        before = at;
    }
    if (before) {
        before->next = op->next;
    } else {
        shm->head = op->next;
    }
    if (shm->tail == op) {
        shm->tail = before;
    }
    op->linked = false;
    op->state = SHM_COLL_FINISHED;
    op->moved = true;
    if (!before) {
        publish_finished(shm);
    }
}

/* ---- Post ------------------------------------------------------------------------------------ */
/* Takes a cache line from other caches: it is written soon. */
static void prefetch_for_write(const volatile void *line)
{
#if defined(__x86_64__)
    /* Of every processor of this architecture; the built-in would only read without -mprfchw. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const volatile char *)line));
#else
    __builtin_prefetch((const void *)(uintptr_t)line, 1);
#endif
}

static inline void pack(gr_shm_coll_op *op)
{
    uint8_t *to = gr_shm_coll_packed(op, op->shm->rank);
    size_t size_bytes = op->given_count * op->element_bytes;
    if (op->input_count == 1 && op->prescale == 1 && size_bytes <= SHM_COLL_PACK_MAX) {
        gr_shm_coll_copy(to, op->inputs[0] + op->given * op->element_bytes, size_bytes);
    } else if (op->input_count > 0) {
        size_t inputs = op->tree ? (size_t)op->tree->inputs_most : 1;
        gr_shm_coll_pack(op, op->given, op->given + op->given_count, to, op->packed_bytes / inputs,
                         &op->shm->to_slots, op->seq / SHM_COLL_SLOTS);
    }
}

/* For who compares it later. */
static void publish_call(const gr_shm_coll_op *op)
{
    shm_call *call = call_of(op->shm, op->seq, op->shm->rank);
    atomic_store_explicit(&call->fingerprint, op->fingerprint, memory_order_relaxed);
    store_number(op, &call->sequence);
}

/* A rank that nobody waits for. */
static void post_silently(gr_shm_coll_op *op)
{
    op->kinds = SHM_COLL_EAGER;
    if (op->count > 0 && op->prescale != 1) {
        pack(op); /* it takes its own contribution from there */
    }
    op->waits = op->waits_packed;
}

static void post_control(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    shm_control *control = gr_shm_coll_control_of(op, shm->rank);
    uint8_t kinds = op->always_packed ? 0 : gr_shm_coll_publish_buffers(op, control);
    bool packed = op->small && (kinds & SHM_COLL_IN_HEAP) == 0;
    op->kinds = packed ? kinds | SHM_COLL_EAGER : kinds;
    if (op->count > 0 && packed) {
        pack(op);
    }
    /* In one go, at the end: others poll this cache line, and take it away each time. */
    control->fingerprint = op->fingerprint;
    uint32_t unfinished = op->seq - shm->head->seq;
    unfinished = unfinished < SHM_COLL_UNFINISHED_MANY ? unfinished : SHM_COLL_UNFINISHED_MANY;
    atomic_store_explicit(&control->kinds,
                          (uint8_t)(op->kinds | unfinished << SHM_COLL_UNFINISHED_SHIFT),
                          memory_order_relaxed);
    control->core = shm->not_oversubscribed ? 0 : (int16_t)sched_getcpu();
    control->cores = (uint8_t)shm->cores;
    shm->peers[shm->rank].core = control->core;
    op->waits = packed ? op->waits_packed : waits_of(op, false);
    publish(op, &control->sequence);
    /* Others have read the lines that come next: take them back while there is time. */
    if (!op->always_packed) {
        prefetch_for_write(gr_shm_coll_done_of(op, shm->rank));
    }
    prefetch_for_write(&shm->own->slots[(op->seq + 1) % SHM_COLL_SLOTS].control);
    if (packed && op->count > 0 && !gr_shm_coll_in_line(op)) { /* the next may be as small */
        /* No more than a core fetches at a time: stores behind further ones would wait. */
        for (size_t at = 0; at < op->packed_bytes && at < SHM_COLL_PACK_MAX; at += SHM_COLL_LINE) {
            prefetch_for_write(gr_shm_coll_eager_of(op, shm->rank, op->seq + 1) + at);
        }
    }
}

static void post(gr_shm_coll_op *op)
{
    publish_call(op);
    if (op->is_silent) {
        post_silently(op);
    } else {
        post_control(op);
    }
    op->state = SHM_COLL_POSTED;
    op->moved = true;
}

/* ---- All have come --------------------------------------------------------------------------- */
/* Ours is done: now we wait for the others. */
static void publish_done(gr_shm_coll_op *op, shm_state next)
{
    op->state = next;
    op->arrived = 0;
    publish(op, gr_shm_coll_done_of(op, op->shm->rank));
}

/* ---- Calls that are compared later ----------------------------------------------------------- */
static void compare_later(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    uint64_t peers = other_ranks(shm) & ~gr_shm_coll_awaited(op);
    if (peers != 0) {
        uint32_t slot = op->seq % SHM_COLL_SLOTS;
        shm->unchecked[slot] =
            (shm_unchecked){.fingerprint = op->fingerprint, .peers = peers, .seq = op->seq};
        shm->unchecked_slots |= UINT64_C(1) << slot;
    }
}

/* Small. Who could have let the others read its memory has not packed; if they could not all, it
 * packs now. */
static gr_status meet_small(gr_shm_coll_op *op, bool all_packed)
{
    if (!all_packed) {
        if ((op->kinds & SHM_COLL_EAGER) == 0) {
            pack(op);
        }
        publish_done(op, SHM_COLL_PACKED);
        return GR_PENDING;
    }
    if (op->count > 0 && op->taken != op->taken_end) {
        gr_shm_coll_do_small(op);
    }
    if (op->is_rooted) {
        compare_later(op);
    }
    flush_wakeups(op, true); /* behind so little work, when the store has arrived */
    gr_shm_coll_finish(op);
    return GR_OK;
}

/* The buffers of all are known. */
static gr_status begin_direct(gr_shm_coll_op *op, bool found)
{
    if (!found) {
        op->state = SHM_COLL_FAILED;
        return GR_E_PROTOCOL;
    }
    gr_shm_coll_assign(op);
    return GR_PENDING;
}

static gr_status differ(gr_shm_coll_op *op, int peer)
{
    flush_wakeups(op, true);
    op->arrived = peer;
    op->state = SHM_COLL_FAILED;
    return GR_E_MISMATCH;
}

static gr_status meet(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    if (op->waits == SHM_COLL_FOR_NOBODY) {
        op->moved = true;
        return meet_small(op, true);
    }
    uint8_t all = op->kinds;
    uint32_t unfinished = 0;
    op->cores = shm->cores;
    int first = op->waits == SHM_COLL_FOR_ROOT ? op->root : 0;
    int end = op->waits == SHM_COLL_FOR_ROOT ? op->root + 1 : shm->size;
    for (int peer = first; peer < end; peer++) {
        const shm_control *control = gr_shm_coll_control_of(op, peer);
        if (peer == shm->rank) {
            continue;
        }
        if (control->fingerprint != op->fingerprint) {
            return differ(op, peer);
        }
        op->peer_kinds[peer] = atomic_load_explicit(&control->kinds, memory_order_relaxed);
        op->cores = control->cores < op->cores ? control->cores : op->cores;
        all &= op->peer_kinds[peer];
        uint32_t before = (uint32_t)op->peer_kinds[peer] >> SHM_COLL_UNFINISHED_SHIFT;
        unfinished = before > unfinished ? before : unfinished;
        shm->peers[peer].core = control->core;
    }
    if (op->waits == SHM_COLL_FOR_ALL) {
        learn_room(shm, op, unfinished);
    }
    op->moved = true;
    if (op->cores == 0) {
        op->state = SHM_COLL_FAILED;
        return GR_E_PROTOCOL;
    }
    if (op->waits == SHM_COLL_FOR_ROOT && (op->peer_kinds[op->root] & SHM_COLL_EAGER) == 0) {
        op->waits = SHM_COLL_FOR_ALL;
        op->arrived = 0;
        op->unflushed = true; /* the ranks that wait for all have not been woken by us */
        return GR_PENDING;
    }
    if ((all & SHM_COLL_EAGER) != 0 || op->waits != SHM_COLL_FOR_ALL) {
        return meet_small(op, true);
    }
    if (op->is_rooted) { /* those that wait for all, where the last rank waited for none */
        gr_shm_coll_wake_all(shm);
    }
    bool registered = (all & SHM_COLL_IN_HEAP) != 0;
    size_t share_bytes = (op->own_end - op->own_begin) * op->element_bytes;
    if (!registered || !shm->not_oversubscribed ||
        share_bytes > SHM_COLL_SMALL_MAX) { /* else behind our share */
        flush_wakeups(op, true);
    }
    if (op->small && !registered) {
        return meet_small(op, false);
    }
    if (op->tree) {
        gr_shm_coll_learn_postscales(op);
    }
    op->cma = !registered && (all & SHM_COLL_BY_KERNEL) != 0;
    if (!registered && !op->cma) {
        op->window_first = op->window_end = 0;
        op->state = SHM_COLL_STAGED;
        return GR_PENDING;
    }
    return begin_direct(op, gr_shm_coll_locate(op));
}

/* ---- Moving on ------------------------------------------------------------------------------- */
static gr_status add_own_share(gr_shm_coll_op *op)
{
    gr_status status = gr_shm_coll_add_own(op);
    if (status != GR_OK) {
        return status;
    }
    flush_wakeups(op, true); /* of what was posted */
    publish_done(op, SHM_COLL_DONE);
    return GR_PENDING;
}

static bool can_move(const gr_shm_coll_op *op)
{
    int arrived = op->arrived;
    switch (op->state) {
    case SHM_COLL_QUEUED:
        return has_room(op);
    case SHM_COLL_POSTED:
        return all_posted(op, &arrived) || arrived != op->arrived;
    case SHM_COLL_PACKED:
        return all_did(op, &arrived);
    case SHM_COLL_STAGED:
        return gr_shm_coll_windows_can_move(op);
    case SHM_COLL_DONE:
        return op->claims ? claims_done(op) : all_did(op, &arrived);
    case SHM_COLL_DIRECT:
    case SHM_COLL_CLAIM:
        return true;
    default:
        return false;
    }
}

/* Returns true if all ranks whose contributions the operation takes have them in their slots. */
static bool is_all_eager(const gr_shm_coll_op *op)
{
    bool eager = op->waits != SHM_COLL_FOR_ALL || (op->kinds & SHM_COLL_EAGER) != 0;
    for (int peer = 0; peer < op->shm->size && eager; peer++) {
        const shm_control *control = gr_shm_coll_control_of(op, peer);
        eager = peer == op->shm->rank || !awaits(op, peer) ||
                (atomic_load(&control->kinds) & SHM_COLL_EAGER) != 0;
    }
    return eager;
}

bool gr_shm_coll_is_complete(const gr_shm_coll_op *op)
{
    int arrived = op->arrived;
    if (op->state == SHM_COLL_POSTED) {
        return all_posted(op, &arrived) && is_all_eager(op);
    }
    return (op->state == SHM_COLL_PACKED || op->state == SHM_COLL_DONE) && can_move(op);
}

bool gr_shm_coll_has_news(const void *arg)
{
    const gr_shm_colls *shms = arg;
    for (int id = 0; id < GR_SHARED_COLLS; id++) {
        const gr_shm_coll *shm = shms->open[id];
        for (const gr_shm_coll_op *op = shm ? shm->head : NULL; op; op = op->next) {
            if (can_move(op)) {
                return true;
            }
        }
    }
    return false;
}

/* Who finishes looks whether we want room after it has stored that it has, and we look for room
 * after we have stored that we want it. */
static void try_post(gr_shm_coll_op *op)
{
    gr_shm_coll *shm = op->shm;
    if (!has_room(op)) {
        atomic_store(&shm->own->wants_room, 1);
        if (!has_room(op)) {
            return;
        }
    }
    if (atomic_load_explicit(&shm->own->wants_room, memory_order_relaxed) != 0) {
        atomic_store_explicit(&shm->own->wants_room, 0, memory_order_relaxed);
    }
    post(op);
}

static void enter(gr_shm_coll *shm, gr_shm_coll_op *op)
{
    op->next = NULL;
    op->arrived = 0;
    op->unflushed = false;
    op->spins = false;
    op->state = SHM_COLL_QUEUED;
    op->linked = true;
    if (shm->tail) {
        shm->tail->next = op;
    } else {
        shm->head = op;
    }
    shm->tail = op;
}

void gr_shm_coll_post(gr_shm_coll_op *op, uint32_t number, uint64_t fingerprint)
{
    gr_shm_coll *shm = op->shm;
    op->seq = number;
    op->fingerprint = fingerprint;
    shm->next_seq = number + 1;
    enter(shm, op);
    /* The operations before this one that ran as plans need no slot: who waits for room learns that
     * they are over. */
    publish_finished(shm);
    try_post(op);
}

static gr_status move_once(gr_shm_coll_op *op)
{
    switch (op->state) {
    case SHM_COLL_QUEUED:
        try_post(op);
        break;
    case SHM_COLL_POSTED:
        if (all_came(op, &op->arrived)) {
            return meet(op);
        }
        break;
    case SHM_COLL_PACKED:
        return met(op) ? meet_small(op, true) : GR_PENDING;
    case SHM_COLL_DIRECT:
        return add_own_share(op);
    case SHM_COLL_CLAIM:
        return gr_shm_coll_add_free(op);
    case SHM_COLL_STAGED:
        gr_shm_coll_windows_move(op);
        break;
    case SHM_COLL_DONE:
        if (op->claims ? claims_done(op) : met(op)) {
            gr_shm_coll_finish(op);
        }
        break;
    default:
        break;
    }
    return op->state == SHM_COLL_FINISHED ? GR_OK : GR_PENDING;
}

/* Bytes that the next step will add or copy, at most. */
static size_t step_bytes(const gr_shm_coll_op *op)
{
    switch (op->state) {
    case SHM_COLL_DIRECT:
        return SHM_COLL_BUDGET;
    case SHM_COLL_CLAIM:
        return op->work * op->element_bytes / op->shares;
    case SHM_COLL_STAGED:
        return SHM_COLL_WINDOW;
    default:
        return 0;
    }
}

gr_status gr_shm_coll_move(gr_shm_coll_op *op)
{
    size_t left = SHM_COLL_BUDGET;
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
    if (!op->spins) {
        flush_wakeups(op, false);
    }
    return status;
}

/* Returns true if a short spin is likely to see the operation end. */
static bool may_end_soon(const gr_shm_coll_op *op)
{
    return op->always_packed ||
           (op->shm->not_oversubscribed && op->work * op->element_bytes <= SHM_COLL_BUDGET);
}

/* As long as the others are quick; then who sleeps is woken. */
static gr_status move_on(gr_shm_coll_op *op)
{
    gr_status status = GR_PENDING;
    for (int polls = SPIN_POLLS; status == GR_PENDING && polls > 0;) {
        if (can_move(op)) {
            status = move_once(op);
        } else {
            polls--;
            gr_relax();
        }
    }
    if (status == GR_PENDING) {
        flush_wakeups(op, false);
    } else if (status != GR_OK) {
        op->state = SHM_COLL_DIRECT; /* where it failed: the next move returns why */
    }
    return status;
}

bool gr_shm_coll_try(gr_shm_coll_op *op, bool *waited_out)
{
    gr_shm_coll *shm = op->shm;
    if (op->state != SHM_COLL_POSTED || !may_end_soon(op)) {
        return false;
    }
    int pauses = op->is_rooted && op->always_packed ? ROOTED_PAUSES : 1;
    int polls = shm->not_oversubscribed ? SPIN_POLLS / pauses : 0;
    *waited_out = false;
    while (!all_posted(op, &op->arrived)) {
        if (polls-- == 0) {
            return false;
        }
        *waited_out = true;
        for (int i = 0; i < pauses; i++) {
            gr_relax();
        }
    }
    if (op->waits == SHM_COLL_FOR_ALL && look_for_difference(shm)) {
        return false;
    }
    gr_status status = meet(op);
    if (status == GR_PENDING && !op->always_packed) {
        return move_on(op) == GR_OK;
    }
    if (status != GR_OK) { /* the next move returns why */
        op->state = SHM_COLL_POSTED;
    }
    return status == GR_OK;
}

bool gr_shm_coll_differs(const gr_shm_coll *shm)
{
    return shm->differs;
}

bool gr_shm_coll_ready(gr_shm_coll_op *op)
{
    flush_wakeups(op, false);
    return can_move(op);
}

static bool poll_ready(const gr_shm_coll_op *op, int times)
{
    for (int i = 0; i < times; i++) {
        if (can_move(op)) {
            return true;
        }
        gr_relax();
    }
    return false;
}

/* Returns true if one of the awaited ranks was on this core when it last posted: it is not running
 * then. */
static bool holds_up(const gr_shm_coll_op *op)
{
    const gr_shm_coll *shm = op->shm;
    int core = sched_getcpu();
    int peer = 0;
    while (peer < shm->size && (shm->peers[peer].core != core || !gr_shm_coll_needs(op, peer))) {
        peer++;
    }
    return peer < shm->size;
}

/* Where cores are shared: to leave this one for somebody who can do nothing either costs two turns,
 * so the others are given a moment if nobody whom we wait for needs it. */
bool gr_shm_coll_spin(gr_shm_coll_op *op)
{
    op->spins = op->shm->not_oversubscribed;
    if (op->spins && poll_ready(op, SPIN_POLLS)) {
        return true;
    }
    for (int i = 0; i < SPIN_YIELDS && !op->spins; i++) {
        if (gr_shm_coll_ready(op) || (!holds_up(op) && poll_ready(op, SPIN_POLLS_SHARED))) {
            return true;
        }
        sched_yield();
    }
    op->spins = false;
    return gr_shm_coll_ready(op);
}

int gr_shm_coll_arrived(const gr_shm_coll_op *op)
{
    return op->state == SHM_COLL_QUEUED   ? 0
           : op->state == SHM_COLL_POSTED ? op->arrived
                                          : op->shm->size;
}

bool gr_shm_coll_moved(gr_shm_coll_op *op)
{
    bool moved = op->moved;
    op->moved = false;
    return moved;
}

bool gr_shm_coll_needs(const gr_shm_coll_op *op, int peer)
{
    const shm_area *area = op->shm->peers[peer].area;
    if (peer == op->shm->rank) {
        return false;
    }
    switch (op->state) {
    case SHM_COLL_QUEUED:
        return (int32_t)(op->seq - atomic_load(&area->finished) - op->depth) >= 0;
    case SHM_COLL_POSTED:
        return awaits(op, peer) &&
               atomic_load(&gr_shm_coll_control_of(op, peer)->sequence) != op->seq + 1;
    case SHM_COLL_PACKED:
    case SHM_COLL_DIRECT:
        return awaits_done(op, peer) && atomic_load(gr_shm_coll_done_of(op, peer)) != op->seq + 1;
    case SHM_COLL_CLAIM:
        return false;
    case SHM_COLL_DONE:
        return !(op->claims && claims_done(op)) &&
               atomic_load(gr_shm_coll_done_of(op, peer)) != op->seq + 1;
    case SHM_COLL_STAGED:
        return gr_shm_coll_windows_need(op, peer);
    case SHM_COLL_FAILED:
        return peer == op->arrived;
    default:
        return false;
    }
}

int gr_shm_coll_late(const gr_shm_coll_op *op)
{
    if (op->state == SHM_COLL_FAILED) {
        return op->arrived;
    }
    int peer = 0;
    while (peer < op->shm->size && !gr_shm_coll_needs(op, peer)) {
        peer++;
    }
    return peer < op->shm->size ? peer : -1;
}

bool gr_shm_coll_called_other(const gr_shm_coll_op *op, int peer)
{
    return op->state == SHM_COLL_POSTED &&
           called_by(op->shm, op->seq, op->fingerprint, peer) == SHM_COLL_DIFFERENT;
}
