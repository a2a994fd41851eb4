/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/simulate_world.h"

#include "base/arena.h"
#include "base/fail.h"
#include "coll/engine/exec.h"
#include "coll/plan/cut.h"
#include "coll/plan/traits.h"
#include "coll/select/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run by events. Each rank is one thread that does one thing at a time, in the executor's order
 * of preference: send, then add, then take. Each host's interface sends what its ranks wrote, in
 * packets of one connection after the other, as the kernel does; the receiving interface is as
 * fast, and what finds it busy waits in the switch.
 *
 * Each event carries the parts of the time on the way to it: those of the event that caused it, and
 * its own. So the last event tells where the time went. */

enum {
    PACKET_BYTES = 45 * 1448, /* the largest that the kernel hands to an interface */
    QUEUED_PACKETS = 3,    /* of a connection there; with the bytes of two it gets no third one */
    COPY_BYTES = 64 << 10, /* what is copied before the transfer goes along, or after it */
    HEADER_BYTES = 40,     /* of a message on a byte stream */
    EVENTS_FIRST = 1024
};
/* Steps times segments of a run; more are simulated with larger segments. */
#define WORK_MAX UINT64_C(1000000)

typedef enum net_event_kind { THREAD_DONE, POSTED, WIRE_DONE, ARRIVED, WAKE } net_event_kind;

typedef struct net_event {
    double at_us;
    float part_us[GR_TIME_PARTS];
    uint8_t kind; /* event_kind */
    uint32_t who; /* rank; host of WIRE_DONE */
    uint32_t path;
} net_event;

typedef enum task_kind { TASK_NONE, TASK_SEND, TASK_LOCAL, TASK_TAKE } task_kind;

typedef struct work_ring {
    uint32_t *items;
    uint32_t head, count, capacity;
} work_ring;

typedef struct thread {
    uint32_t *done;           /* by step: finished segments */
    uint8_t *queued;          /* by step: waits in `local` */
    work_ring local, out, in; /* steps, and paths to and from peers, that can go on */
    task_kind task;           /* being done */
    uint32_t what;
    bool wants_core;
    bool posted; /* what it is sending goes to the wire by an event of its own */
    double idle_since_us;
    double spare_us; /* it has idled for so long, and copied what was arriving meanwhile */
    double sent;
} thread;

typedef struct packet {
    size_t bytes;
    int rank;
    uint32_t path;
} packet;

typedef struct interface {
    packet *packets; /* ring */
    uint32_t head, count, capacity;
    bool busy;
    double sent_bytes;
    double paid_until_us;     /* what was sent so far is worth the time up to then */
    double receives_until_us; /* what arrived so far is through then */
    int received_from;        /* host of the last packet, from 1; 0: none */
    float receive_part_us[GR_TIME_PARTS];
} interface;

typedef struct core_pool {
    int64_t free;
    work_ring waiting; /* ranks */
} core_pool;

typedef struct net_run {
    gr_simworld *world;
    const gr_cluster *cluster;
    gr_arena arena; /* of all that the pointers below name */
    gr_cut cut;
    size_t segment_bytes;
    uint32_t segments, slice_segments; /* of a block; of those in the same scratch */
    size_t packet_bytes;               /* the most */
    double wire_us_per_byte, incast_us_per_byte, burst_us, copy_us_per_byte, local_us_per_byte,
        reduce_us_per_byte;
    thread *threads;
    interface *interfaces;
    core_pool *pools; /* one for all hosts, or one a host */
    int pool_count;   /* 0: a core for everybody */
    net_event *heap;
    size_t event_count, event_capacity;
    uint64_t left; /* segments of steps that are not done */
    double now_us;
    float cause_us[GR_TIME_PARTS];
    bool failed; /* no memory */
} net_run;

/* Zeroed; NULL: no memory, which `failed` says. */
static void *take(net_run *r, size_t count, size_t size_bytes)
{
    void *memory = gr_arena_alloc(&r->arena, count * size_bytes);
    r->failed = r->failed || !memory;
    return memory;
}

static work_ring take_ring(net_run *r, uint32_t capacity)
{
    return (work_ring){.items = take(r, capacity, sizeof(uint32_t)), .capacity = capacity};
}

static void ring_add(work_ring *to, uint32_t item)
{
    to->items[(to->head + to->count++) % to->capacity] = item;
}

static void ring_add_first(work_ring *to, uint32_t item)
{
    to->head = (to->head + to->capacity - 1) % to->capacity;
    to->items[to->head] = item;
    to->count++;
}

static uint32_t ring_remove(work_ring *from)
{
    uint32_t item = from->items[from->head];
    from->head = (from->head + 1) % from->capacity;
    from->count--;
    return item;
}

/* ---- Events ---------------------------------------------------------------------------------- */
static void push(net_run *r, net_event e)
{
    if (r->event_count == r->event_capacity) {
        size_t capacity = r->event_capacity > 0 ? r->event_capacity * 2 : EVENTS_FIRST;
        net_event *heap = take(r, capacity, sizeof *heap);
        if (!heap) {
            return;
        }
        if (r->event_count > 0) {
            memcpy(heap, r->heap, r->event_count * sizeof *heap);
        }
        r->heap = heap;
        r->event_capacity = capacity;
    }
    size_t at = r->event_count++;
    while (at > 0 && r->heap[(at - 1) / 2].at_us > e.at_us) {
        r->heap[at] = r->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    r->heap[at] = e;
}

static net_event pop(net_run *r)
{
    net_event first = r->heap[0];
    net_event last = r->heap[--r->event_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= r->event_count) {
            break;
        }
        if (child + 1 < r->event_count && r->heap[child + 1].at_us < r->heap[child].at_us) {
            child++;
        }
        if (r->heap[child].at_us >= last.at_us) {
            break;
        }
        r->heap[at] = r->heap[child];
        at = child;
    }
    r->heap[at] = last;
    return first;
}

static net_event caused(const net_run *r, net_event_kind kind, uint32_t who, uint32_t path)
{
    net_event e = {.at_us = r->now_us, .kind = (uint8_t)kind, .who = who, .path = path};
    memcpy(e.part_us, r->cause_us, sizeof e.part_us);
    return e;
}

static void add_part(net_event *e, gr_time_part part, double us)
{
    e->at_us += us;
    e->part_us[part] += (float)us;
}

/* ---- Pieces ---------------------------------------------------------------------------------- */
static size_t piece_bytes(const net_run *r, uint32_t block, uint32_t segment)
{
    size_t size = gr_cut_block_bytes(&r->cut, block);
    size_t from = segment * r->segment_bytes;
    size_t rest = from < size ? size - from : 0;
    return rest < r->segment_bytes ? rest : r->segment_bytes;
}

static bool is_whole(const gr_schedule_step *step)
{
    return step->kind == GR_STEP_SIGNAL || step->kind == GR_STEP_AWAIT;
}

static uint32_t segments_of(const net_run *r, const gr_schedule_step *step)
{
    return is_whole(step) ? 1 : r->segments;
}

static bool is_done(const net_run *r, const thread *t, const gr_schedule *schedule, uint32_t at,
                    uint32_t segment, bool whole)
{
    const gr_schedule_step *step = &schedule->steps[at];
    return t->done[at] == segments_of(r, step) ||
           (!whole && !is_whole(step) && t->done[at] > segment);
}

/* Returns true if the scratch is free that the slice before this one used. */
static bool slice_is_free(const net_run *r, const thread *t, const gr_schedule *schedule,
                          const gr_schedule_step *step, uint32_t segment)
{
    const uint32_t *again = &schedule->after[step->again_first];
    for (uint32_t i = 0; i < step->again_count; i++) {
        if (t->done[again[i]] + r->slice_segments <= segment) {
            return false;
        }
    }
    return true;
}

static bool is_ready(const net_run *r, int rank, uint32_t at, uint32_t segment)
{
    const gr_schedule *schedule = r->world->ranks[rank].schedule;
    const gr_schedule_step *step = &schedule->steps[at];
    if (step->dst.space == GR_SPACE_SCRATCH && segment >= r->slice_segments &&
        !slice_is_free(r, &r->threads[rank], schedule, step, segment)) {
        return false;
    }
    for (uint32_t i = 0; i < step->after_count; i++) {
        if (!is_done(r, &r->threads[rank], schedule, schedule->after[step->after_first + i],
                     segment, is_whole(step))) {
            return false;
        }
    }
    return true;
}

static const gr_schedule_step *head_of(const net_run *r, int rank, const gr_simpath *path,
                                       bool sending, uint32_t index, uint32_t *at_out)
{
    const gr_schedule *schedule = r->world->ranks[rank].schedule;
    const uint32_t *steps = sending ? schedule->send_steps : schedule->recv_steps;
    *at_out = steps[path->first + index];
    return &schedule->steps[*at_out];
}

/* To the next segment of the message, the next message of the slice, or the next slice. */
static void pass(const net_run *r, int rank, const gr_simpath *path, bool sending,
                 gr_simcursor *cursor)
{
    uint32_t at;
    const gr_schedule_step *step = head_of(r, rank, path, sending, cursor->index, &at);
    if (++cursor->segment < segments_of(r, step) &&
        cursor->segment - cursor->slice < r->slice_segments) {
        return;
    }
    do {
        if (++cursor->index == path->count) {
            cursor->slice += r->slice_segments;
            if (cursor->slice >= r->segments) {
                return;
            }
            cursor->index = 0;
        }
        cursor->segment = cursor->slice;
    } while (cursor->slice > 0 && is_whole(head_of(r, rank, path, sending, cursor->index, &at)));
}

static size_t message_bytes(const net_run *r, const gr_schedule_step *step, uint32_t segment)
{
    if (is_whole(step)) {
        return 0;
    }
    return piece_bytes(r, step->kind == GR_STEP_SEND ? step->a.block : step->dst.block, segment);
}

/* ---- What can go on -------------------------------------------------------------------------- */
/* `next`: before all others, since the executor writes to one connection while it can. */
static void offer_send(net_run *r, int rank, uint32_t index, bool next)
{
    thread *t = &r->threads[rank];
    gr_simrank *own = &r->world->ranks[rank];
    gr_simpath *path = &own->out[index];
    uint32_t at;
    if (path->queued || path->next.index == path->count) {
        return;
    }
    (void)head_of(r, rank, path, true, path->next.index, &at);
    if (is_ready(r, rank, at, path->next.segment)) {
        path->queued = true;
        (next ? ring_add_first : ring_add)(&t->out, index);
    }
}

static void offer_take(net_run *r, int rank, uint32_t index)
{
    thread *t = &r->threads[rank];
    gr_simrank *own = &r->world->ranks[rank];
    gr_simpath *path = &own->in[index];
    uint32_t at;
    if (path->queued || path->next.index == path->count) {
        return;
    }
    const gr_schedule_step *step = head_of(r, rank, path, false, path->next.index, &at);
    bool here =
        path->arrived > 0 || (!is_whole(step) && message_bytes(r, step, path->next.segment) == 0);
    if (here && is_ready(r, rank, at, path->next.segment)) {
        path->queued = true;
        ring_add(&t->in, index);
    }
}

static void offer_local(net_run *r, int rank, uint32_t at)
{
    thread *t = &r->threads[rank];
    if (!t->queued[at] && t->done[at] < r->segments && is_ready(r, rank, at, t->done[at])) {
        t->queued[at] = 1;
        ring_add(&t->local, at);
    }
}

static void offer(net_run *r, int rank, uint32_t at)
{
    const gr_simrank *own = &r->world->ranks[rank];
    switch (own->schedule->steps[at].kind) {
    case GR_STEP_SEND:
    case GR_STEP_SIGNAL:
        offer_send(r, rank, own->path_of[at], false);
        break;
    case GR_STEP_RECV:
    case GR_STEP_AWAIT:
        offer_take(r, rank, own->path_of[at]);
        break;
    default:
        offer_local(r, rank, at);
        break;
    }
}

static void segment_done(net_run *r, int rank, uint32_t at)
{
    const gr_schedule *schedule = r->world->ranks[rank].schedule;
    const gr_schedule_step *step = &schedule->steps[at];
    r->threads[rank].done[at]++;
    r->left--;
    for (uint32_t i = 0; i < step->next_count; i++) {
        offer(r, rank, schedule->next[step->next_first + i]);
    }
}

/* ---- The wire -------------------------------------------------------------------------------- */
static void start_wire(net_run *r, int host)
{
    interface *net = &r->interfaces[host];
    if (net->busy || net->count == 0) {
        return;
    }
    net->busy = true;
    /* A pause is worth some bytes that then pass at once: those of a token bucket. */
    double since_us = fmax(net->paid_until_us, r->now_us - r->burst_us);
    net->paid_until_us = since_us + (double)net->packets[net->head].bytes * r->wire_us_per_byte;
    net_event e = caused(r, WIRE_DONE, (uint32_t)host, 0);
    add_part(&e, GR_TIME_BANDWIDTH, fmax(net->paid_until_us - r->now_us, 0));
    push(r, e);
}

/* A connection is a stream of bytes: what it has written by the time that it may queue a packet
 * goes along, so a segment can end in the packet of the next one. Less than a packet waits until
 * one that is queued has left (`one_left`), as the kernel corks it. */
static void queue_packets(net_run *r, int rank, gr_simpath *path, bool one_left)
{
    interface *net = &r->interfaces[r->world->host_of[rank]];
    const gr_simpath *own = r->world->ranks[rank].out;
    while (path->written > 0 && path->in_queue < 2 * r->packet_bytes &&
           path->packets < QUEUED_PACKETS) {
        size_t bytes = path->written < r->packet_bytes ? path->written : r->packet_bytes;
        if (bytes < r->packet_bytes && path->packets > 0 && !one_left) {
            return;
        }
        packet p = {.bytes = bytes, .rank = rank, .path = (uint32_t)(path - own)};
        path->written -= bytes;
        path->in_queue += bytes;
        path->packets++;
        net->packets[(net->head + net->count++) % net->capacity] = p;
    }
}

/* The packet that left one interface has to pass the other one as well, behind what is there. */
static net_event receive(net_run *r, int from_host, const gr_simpath *path, size_t bytes)
{
    interface *net = &r->interfaces[r->world->host_of[path->peer]];
    double pass_us = (double)bytes * r->wire_us_per_byte;
    net_event e = caused(r, ARRIVED, (uint32_t)path->peer, path->remote);
    add_part(&e, GR_TIME_LATENCY, r->cluster->latency_us);
    /* A packet passes a wire while it still leaves the other one; a token bucket has it whole, and
     * as much saved as it passes at once. */
    double free_us = fmax(net->receives_until_us, e.at_us - fmax(pass_us, r->burst_us));
    if (net->received_from != from_host + 1 && free_us + pass_us > e.at_us) {
        pass_us = (double)bytes * r->incast_us_per_byte;
    }
    net->received_from = from_host + 1;
    net->receives_until_us = free_us + pass_us;
    if (net->receives_until_us > e.at_us) {
        e.at_us = free_us;
        memcpy(e.part_us, net->receive_part_us, sizeof e.part_us);
        add_part(&e, GR_TIME_BANDWIDTH, pass_us);
    }
    memcpy(net->receive_part_us, e.part_us, sizeof e.part_us);
    return e;
}

static void kick(net_run *r, int rank);

/* To the segment that comes next on the wire; an empty one is no message. */
static void next_on_wire(const net_run *r, int rank, gr_simpath *path)
{
    while (path->wire_left == 0) {
        uint32_t at;
        const gr_schedule_step *step = head_of(r, rank, path, true, path->wire.index, &at);
        size_t size = message_bytes(r, step, path->wire.segment);
        if (size > 0 || is_whole(step)) {
            path->wire_left = size + HEADER_BYTES;
        } else {
            pass(r, rank, path, true, &path->wire);
        }
    }
}

static void wire_done(net_run *r, int host)
{
    interface *net = &r->interfaces[host];
    packet p = net->packets[net->head];
    gr_simpath *path = &r->world->ranks[p.rank].out[p.path];
    net->head = (net->head + 1) % net->capacity;
    net->count--;
    net->busy = false;
    net->sent_bytes += (double)p.bytes;
    path->in_queue -= p.bytes;
    path->packets--;
    net_event e = receive(r, host, path, p.bytes);
    while (p.bytes > 0) {
        next_on_wire(r, p.rank, path);
        size_t part = path->wire_left < p.bytes ? path->wire_left : p.bytes;
        path->wire_left -= part;
        p.bytes -= part;
        if (path->wire_left == 0) {
            uint32_t at;
            (void)head_of(r, p.rank, path, true, path->wire.index, &at);
            push(r, e);
            pass(r, p.rank, path, true, &path->wire);
            segment_done(r, p.rank, at);
        }
    }
    queue_packets(r, p.rank, path, true);
    start_wire(r, host);
    kick(r, p.rank);
}

/* ---- A rank's thread ------------------------------------------------------------------------- */
typedef struct cost {
    gr_time_part part;
    double us;
    double overhead_us;
} cost;

/* Copying goes along with the transfer, but for what comes first or last. */
static size_t edge_of(size_t size)
{
    return size < COPY_BYTES ? size : COPY_BYTES;
}

static cost cost_of_message(const net_run *r, const gr_simpath *path, const gr_schedule_step *step,
                            size_t size, bool taking)
{
    const gr_cluster *cluster = r->cluster;
    if (!path->local) {
        return (cost){GR_TIME_OVERHEAD, (double)size * r->copy_us_per_byte, cluster->overhead_us};
    }
    /* Inside a host the receiver reads where the sender's data lie: an addition reads them there,
     * everything else is copied. */
    bool copied = taking && (step->dst.space != GR_SPACE_SCRATCH || step->forwarded);
    return (cost){GR_TIME_BANDWIDTH, copied ? (double)size * r->local_us_per_byte : 0,
                  cluster->local_overhead_us};
}

static cost cost_of_task(const net_run *r, int rank)
{
    const thread *t = &r->threads[rank];
    const gr_simrank *own = &r->world->ranks[rank];
    if (t->task == TASK_LOCAL) {
        const gr_schedule_step *step = &own->schedule->steps[t->what];
        double size = (double)piece_bytes(r, step->dst.block, t->done[t->what]);
        return step->kind == GR_STEP_REDUCE
                   ? (cost){GR_TIME_REDUCTION, size * r->reduce_us_per_byte, 0}
                   : (cost){GR_TIME_BANDWIDTH, size * r->local_us_per_byte, 0};
    }
    bool sending = t->task == TASK_SEND;
    const gr_simpath *path = sending ? &own->out[t->what] : &own->in[t->what];
    uint32_t at;
    const gr_schedule_step *step = head_of(r, rank, path, sending, path->next.index, &at);
    size_t size = message_bytes(r, step, path->next.segment);
    return size > 0 || is_whole(step) ? cost_of_message(r, path, step, size, !sending)
                                      : (cost){GR_TIME_OVERHEAD, 0, 0};
}

static void posted(net_run *r, int rank, uint32_t index)
{
    gr_simpath *path = &r->world->ranks[rank].out[index];
    path->written += path->posting;
    path->posting = 0;
    queue_packets(r, rank, path, false);
    start_wire(r, r->world->host_of[rank]);
}

static void sent(net_run *r, int rank, uint32_t index)
{
    gr_simpath *path = &r->world->ranks[rank].out[index];
    uint32_t at;
    const gr_schedule_step *step = head_of(r, rank, path, true, path->next.index, &at);
    size_t size = message_bytes(r, step, path->next.segment);
    bool empty = !is_whole(step) && size == 0;
    if (!empty && path->local) {
        net_event e = caused(r, ARRIVED, (uint32_t)path->peer, path->remote);
        add_part(&e, GR_TIME_LATENCY, r->cluster->local_latency_us);
        push(r, e);
    }
    if (!empty && !path->local && !r->threads[rank].posted) {
        path->posting += size + HEADER_BYTES;
        posted(r, rank, index);
    }
    r->threads[rank].posted = false;
    pass(r, rank, path, true, &path->next);
    r->threads[rank].sent += !empty;
    if (empty) {
        segment_done(r, rank, at);
    }
}

static void taken(net_run *r, int rank, uint32_t index)
{
    gr_simpath *path = &r->world->ranks[rank].in[index];
    uint32_t at;
    const gr_schedule_step *step = head_of(r, rank, path, false, path->next.index, &at);
    bool empty = !is_whole(step) && message_bytes(r, step, path->next.segment) == 0;
    if (!empty) {
        path->arrived--;
    }
    if (!empty && path->local) {
        /* The sender may use its memory again. */
        const gr_simpath *from = &r->world->ranks[path->peer].out[path->remote];
        uint32_t sent_at;
        (void)head_of(r, path->peer, from, true, path->next.index, &sent_at);
        segment_done(r, path->peer, sent_at);
        push(r, caused(r, WAKE, (uint32_t)path->peer, 0));
    }
    pass(r, rank, path, false, &path->next);
    segment_done(r, rank, at);
}

static void task_done(net_run *r, int rank)
{
    thread *t = &r->threads[rank];
    task_kind task = t->task;
    uint32_t what = t->what;
    t->task = TASK_NONE;
    gr_simrank *own = &r->world->ranks[rank];
    if (task == TASK_SEND) {
        own->out[what].queued = false;
        sent(r, rank, what);
        offer_send(r, rank, what, true);
    } else if (task == TASK_TAKE) {
        own->in[what].queued = false;
        taken(r, rank, what);
        offer_take(r, rank, what);
    } else {
        t->queued[what] = 0;
        segment_done(r, rank, what);
        offer_local(r, rank, what);
    }
}

static void choose_task(thread *t)
{
    if (t->out.count > 0) {
        t->task = TASK_SEND;
        t->what = ring_remove(&t->out);
    } else if (t->local.count > 0) {
        t->task = TASK_LOCAL;
        t->what = ring_remove(&t->local);
    } else {
        t->task = TASK_TAKE;
        t->what = ring_remove(&t->in);
    }
}

/* The first bytes of a message are on the wire while the rest is still being copied. */
static void post_early(net_run *r, int rank, cost c)
{
    thread *t = &r->threads[rank];
    const gr_simrank *own = &r->world->ranks[rank];
    if (t->task != TASK_SEND || own->out[t->what].local) {
        return;
    }
    gr_simpath *path = &own->out[t->what];
    uint32_t at;
    const gr_schedule_step *step = head_of(r, rank, path, true, path->next.index, &at);
    size_t size = message_bytes(r, step, path->next.segment);
    path->posting += size + HEADER_BYTES;
    net_event e = caused(r, POSTED, (uint32_t)rank, t->what);
    add_part(&e, GR_TIME_OVERHEAD, c.overhead_us + (double)edge_of(size) * r->copy_us_per_byte);
    push(r, e);
    t->posted = true;
}

static core_pool *pool_of(const net_run *r, int rank)
{
    return r->pool_count == 0   ? NULL
           : r->pool_count == 1 ? &r->pools[0]
                                : &r->pools[r->world->host_of[rank]];
}

/* Who waits for messages copies what arrives of them, at most all that can be under way to it. */
static void count_idle(const net_run *r, thread *t, const gr_simrank *own)
{
    double most_us = (double)r->segment_bytes * r->copy_us_per_byte * own->in_count;
    t->spare_us = fmin(t->spare_us + r->now_us - t->idle_since_us, most_us);
    t->idle_since_us = r->now_us;
}

/* Gives the rank's thread something to do, if it is idle and there is something. */
static void kick(net_run *r, int rank)
{
    thread *t = &r->threads[rank];
    core_pool *pool = pool_of(r, rank);
    const gr_simrank *own = &r->world->ranks[rank];
    while (t->task == TASK_NONE && !t->wants_core) {
        if (t->out.count + t->local.count + t->in.count == 0) {
            return;
        }
        if (pool && pool->free == 0) {
            t->wants_core = true;
            count_idle(r, t, own);
            ring_add(&pool->waiting, (uint32_t)rank);
            return;
        }
        choose_task(t);
        cost c = cost_of_task(r, rank);
        count_idle(r, t, own);
        if (t->task == TASK_TAKE && !own->in[t->what].local) {
            double edge_us = fmin(c.us, COPY_BYTES * r->copy_us_per_byte);
            double done_us = fmin(t->spare_us, c.us - edge_us);
            t->spare_us -= done_us;
            c.us -= done_us;
        }
        if (c.us + c.overhead_us > 0) {
            post_early(r, rank, c);
            net_event e = caused(r, THREAD_DONE, (uint32_t)rank, 0);
            add_part(&e, c.part, c.us);
            add_part(&e, GR_TIME_OVERHEAD, c.overhead_us);
            push(r, e);
            if (pool) {
                pool->free--;
            }
            return;
        }
        task_done(r, rank);
    }
}

static void thread_done(net_run *r, int rank)
{
    core_pool *pool = pool_of(r, rank);
    r->threads[rank].idle_since_us = r->now_us;
    task_done(r, rank);
    if (pool) {
        pool->free++;
        while (pool->waiting.count > 0 && pool->free > 0) {
            int next = (int)ring_remove(&pool->waiting);
            r->threads[next].wants_core = false;
            r->threads[next].idle_since_us = r->now_us;
            kick(r, next);
        }
    }
    kick(r, rank);
}

static void arrived(net_run *r, int rank, uint32_t index)
{
    r->world->ranks[rank].in[index].arrived++;
    offer_take(r, rank, index);
    kick(r, rank);
}

/* ---- A run ----------------------------------------------------------------------------------- */
static double us_per_byte(double gbyte)
{
    return gbyte > 0 ? 1e-3 / gbyte : 0;
}

static void cut_blocks(net_run *r, size_t size_bytes)
{
    gr_simworld *world = r->world;
    size_t blocks = (size_t)(world->blocks > 0 ? world->blocks : 1);
    /* A block for each rank: as callers say it, they are all alike. */
    bool alike = gr_coll_traits_of[world->coll].blocks;
    size_t total_bytes = alike ? (size_bytes + blocks - 1) / blocks * blocks : size_bytes;
    r->cut = gr_cut_evenly(total_bytes, blocks, alike ? 1 : 0);
    size_t largest = r->cut.largest;
    const gr_cluster *cluster = r->cluster;
    r->wire_us_per_byte = us_per_byte(cluster->bandwidth_gbit / 8);
    r->segment_bytes = cluster->segment_bytes > 0
                           ? (size_t)cluster->segment_bytes
                           : gr_select_segment_default(cluster->hosts > 1, r->wire_us_per_byte);
    while ((largest / r->segment_bytes + 1) * world->steps > WORK_MAX &&
           r->segment_bytes < largest) {
        r->segment_bytes *= 2;
    }
    r->segments = gr_cut_segments(largest, r->segment_bytes);
    r->segments = r->segments > 0 ? r->segments : 1; /* an empty one */
    /* Of large segments each is at least two packets; more would cost time and tell little. */
    r->packet_bytes = r->segment_bytes / 2 > PACKET_BYTES ? r->segment_bytes / 2 : PACKET_BYTES;
    r->slice_segments = gr_cut_slice(r->segments, r->segment_bytes, GR_SLICE_BYTES_DEFAULT);
    r->incast_us_per_byte =
        cluster->incast_gbit > 0 ? us_per_byte(cluster->incast_gbit / 8) : r->wire_us_per_byte;
    r->burst_us = (double)cluster->burst_bytes * r->wire_us_per_byte;
    r->copy_us_per_byte = us_per_byte(cluster->copy_gbyte);
    r->local_us_per_byte = us_per_byte(cluster->local_gbyte);
    r->reduce_us_per_byte = us_per_byte(cluster->reduce_gbyte);
}

static void open_threads(net_run *r)
{
    gr_simworld *world = r->world;
    r->threads = take(r, (size_t)world->size, sizeof *r->threads);
    for (int rank = 0; !r->failed && rank < world->size; rank++) {
        gr_simrank *own = &world->ranks[rank];
        uint32_t steps = own->schedule->step_count;
        r->threads[rank] = (thread){.done = take(r, steps, sizeof(uint32_t)),
                                    .queued = take(r, steps, sizeof(uint8_t)),
                                    .local = take_ring(r, steps),
                                    .out = take_ring(r, own->out_count),
                                    .in = take_ring(r, own->in_count)};
        for (uint32_t i = 0; i < own->out_count + own->in_count; i++) {
            gr_simpath *path = i < own->out_count ? &own->out[i] : &own->in[i - own->out_count];
            path->next = path->wire = (gr_simcursor){0};
            path->wire_left = path->posting = path->written = path->in_queue = 0;
            path->arrived = path->packets = 0;
            path->queued = false;
        }
        for (uint32_t at = 0; at < steps; at++) {
            r->left += segments_of(r, &own->schedule->steps[at]);
        }
    }
}

static void open_hosts(net_run *r)
{
    const gr_simworld *world = r->world;
    const gr_cluster *cluster = r->cluster;
    size_t hosts = (size_t)cluster->hosts;
    r->interfaces = take(r, hosts, sizeof *r->interfaces);
    for (int rank = 0; !r->failed && rank < world->size; rank++) {
        r->interfaces[world->host_of[rank]].capacity +=
            QUEUED_PACKETS * world->ranks[rank].out_count;
    }
    for (size_t host = 0; !r->failed && host < hosts; host++) {
        r->interfaces[host].capacity += 1;
        r->interfaces[host].packets =
            take(r, r->interfaces[host].capacity, sizeof *r->interfaces[host].packets);
    }
    bool shared = cluster->shared_cores > 0;
    if (!shared && (cluster->cores == 0 || cluster->cores >= cluster->ranks_per_host)) {
        return;
    }
    r->pool_count = shared ? 1 : (int)hosts;
    r->pools = take(r, (size_t)r->pool_count, sizeof *r->pools);
    for (int i = 0; !r->failed && i < r->pool_count; i++) {
        r->pools[i].free = shared ? cluster->shared_cores : cluster->cores;
        r->pools[i].waiting =
            take_ring(r, (uint32_t)(shared ? world->size : (int)cluster->ranks_per_host));
    }
}

/* Another operation begins now: all that is left of the one before is what it saved or owes at the
 * interfaces. */
static void begin_again(net_run *r)
{
    for (int64_t host = 0; host < r->cluster->hosts; host++) {
        interface *net = &r->interfaces[host];
        net->paid_until_us -= r->now_us;
        net->receives_until_us -= r->now_us;
        net->received_from = 0;
        net->sent_bytes = 0;
        memset(net->receive_part_us, 0, sizeof net->receive_part_us);
    }
    memset(r->cause_us, 0, sizeof r->cause_us);
    r->now_us = 0;
}

static void run_events(net_run *r)
{
    for (int rank = 0; rank < r->world->size; rank++) {
        const gr_simrank *own = &r->world->ranks[rank];
        for (uint32_t at = 0; at < own->schedule->step_count; at++) {
            if (own->schedule->steps[at].after_count == 0) {
                offer(r, rank, at);
            }
        }
        kick(r, rank);
    }
    while (r->event_count > 0 && !r->failed) {
        net_event e = pop(r);
        r->now_us = e.at_us;
        memcpy(r->cause_us, e.part_us, sizeof r->cause_us);
        switch ((net_event_kind)e.kind) {
        case THREAD_DONE:
            thread_done(r, (int)e.who);
            break;
        case POSTED:
            posted(r, (int)e.who, e.path);
            break;
        case WIRE_DONE:
            wire_done(r, (int)e.who);
            break;
        case WAKE:
            kick(r, (int)e.who);
            break;
        default:
            arrived(r, (int)e.who, e.path);
            break;
        }
    }
}

static void take_result(const net_run *r, gr_simulated *out)
{
    *out = (gr_simulated){.time_us = r->now_us, .largest_simulated = r->world->size};
    double sum = 0;
    for (int part = 0; part < GR_TIME_PARTS; part++) {
        sum += (double)r->cause_us[part];
    }
    for (int part = 0; part < GR_TIME_PARTS; part++) {
        out->part_us[part] = sum > 0 ? (double)r->cause_us[part] * r->now_us / sum : 0;
    }
    for (int rank = 0; rank < r->world->size; rank++) {
        out->messages = fmax(out->messages, r->threads[rank].sent);
    }
    for (int64_t host = 0; host < r->cluster->hosts; host++) {
        out->wire_bytes = fmax(out->wire_bytes, r->interfaces[host].sent_bytes);
    }
}

gr_status gr_simworld_run(gr_simworld *world, size_t size_bytes, gr_simulated *simulated_out,
                          gr_diag *diag)
{
    net_run r = {.world = world, .cluster = &world->cluster};
    gr_status status = GR_OK;
    cut_blocks(&r, size_bytes);
    gr_arena_init(&r.arena, SIZE_MAX);
    open_hosts(&r);
    /* Where pauses are worth something, it is the second one of two operations: in the first one
     * some interfaces have paused before its end. */
    for (int left = r.burst_us > 0 ? 2 : 1; left > 0 && !r.failed; left--) {
        begin_again(&r);
        open_threads(&r);
        if (!r.failed) {
            run_events(&r);
        }
    }
    if (r.failed) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory to simulate %d ranks", world->size);
    } else if (r.left > 0) {
        status = gr_fail(diag, GR_E_BUG, "the plans of %d ranks do not end in the simulation",
                         world->size);
    } else {
        take_result(&r, simulated_out);
    }
    gr_arena_fini(&r.arena);
    return status;
}
