/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/ps_simulate_run.h"

#include "base/arena.h"
#include "base/fail.h"
#include "base/philox.h"
#include "ps/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run by events. Workers and servers are processes: each sends and takes messages one at a time,
 * sends first. A message is a block, or several ones of a server: pushed, pulled, or copied to the
 * server that has the replica. What a server sends, its connections send in turn. Each host's wire
 * sends what its processes have written in the order in which it was written, of each process two
 * messages at a time, so that they share it evenly. The wire of the receiver is as fast; what finds
 * it busy waits, and all connections take turns.
 *
 * Copies to a replica go before all else. All workers wait for each; and as messages are larger
 * here than blocks are, it would take too long until each copy has its turn. */

enum {
    ON_WIRE_MAX = 2,     /* messages of a process that are written and not sent */
    PER_SERVER_MIN = 16, /* messages of a push to one server: how well pull and push overlap */
    PER_SERVER_MAX = 128,
    STEPS_STEADY = 3, /* where each step is like the one before */
    STEPS_MIN = 4,
    STEPS_EVEN = 50, /* at most, if computing times do not vary */
    STEPS_MAX = 120,
    CHILDREN = 4,         /* of a node of the heap of events */
    STALENESS_SEEN = 8192 /* what is staler counts as this stale */
};
/* Messages of a push by all workers, and of a whole run, if that leaves enough for a result. */
#define PUSH_WORK UINT64_C(131072)
#define RUN_WORK UINT64_C(524288)

enum { OUT = 0, IN = 1, WAYS = 2 };

typedef enum message_kind {
    PUSH, /* from a worker to the server of the block */
    PULL, /* back to the worker */
    COPY, /* of an update, to the server that has the block's replica */
    SAFE  /* the replica has it: no bytes */
} message_kind;

typedef struct message {
    double due_us; /* when its first byte arrives; inside a host, all of it */
    uint32_t chunk, step;
    uint16_t worker;
    uint8_t kind; /* message_kind */
    bool local;   /* inside a host */
} message;

typedef struct message_queue {
    message *items; /* ring */
    uint32_t head, count, capacity;
} message_queue;

typedef struct ps_process {
    int host;
    message_queue first, out, in; /* copies and their answers go first */
    int on_wire;
    bool busy, sending;
    message task; /* while busy */
} ps_process;

typedef struct worker {
    uint32_t step;   /* that it computes or pushes */
    uint32_t rounds; /* how often it has computed */
    uint32_t next;   /* chunk to be pushed */
    uint32_t pulled;
    uint32_t least; /* version of the chunks pulled */
    bool woken;     /* an event comes when the next chunk is computed */
    double begun_us, factor;
} worker;

typedef struct server {
    uint32_t chunks;
    uint32_t clock, at_clock; /* of the slowest worker, and how many are as slow */
    message_queue held;       /* pulls of workers that are too far ahead */
} server;

/* Messages of one connection: the first one takes its turn in a queue of all connections, the
 * others wait here. */
typedef struct flow {
    message_queue rest;
    bool turns;
} flow;

typedef struct host {
    message_queue wire;        /* to be sent */
    message_queue flying;      /* its first byte has not arrived */
    message_queue arriving;    /* of each connection the first message, in turn */
    message_queue local, safe; /* all of it; the latter from other hosts */
    message_queue copies;      /* as `arriving`, before it */
    message receives;          /* while it does */
    bool sending, receiving;
    double paid_until_us, receives_until_us;
    int received_from; /* host of the last message, from 1; 0: none */
    double busy_us[WAYS];
} host;

typedef enum ps_event_kind { DONE, WAKE, SENT, FIRST_BYTE, ARRIVED, LOCAL, SAFE_NOW } ps_event_kind;

typedef struct ps_event {
    double at_us;
    ps_event_kind kind;
    int who; /* process of DONE and WAKE, else host */
} ps_event;

typedef struct ps_run {
    const gr_ps_sim *sim;
    gr_arena arena; /* of all that follows */
    int workers, servers, hosts, worker_hosts;
    uint32_t chunks;
    double chunk_bytes, chunk_share, messages; /* blocks that a chunk stands for */
    double wire_us, incast_us, burst_us, copy_us, local_us, reduce_us, update_us; /* of a chunk */
    double sigma; /* of the logarithm of computing times */
    bool replicas;
    uint32_t need; /* pushes that make an update */
    ps_process *processes;
    worker *worker;
    server *server;
    host *host;
    flow *flow; /* arriving pushes, then pulls, then pulls to be sent; by worker and server */
    uint32_t *version; /* by chunk */
    uint32_t *pushed;  /* by chunk: of this step (bsp, backup) */
    bool *unsafe;      /* by chunk: the replica does not have the newest version (bsp, backup) */
    bool *waits;       /* by chunk and worker: for the next version (bsp, backup) */
    uint32_t *seen;    /* by worker and chunk: the version pulled */
    uint32_t *got;     /* by server and worker: chunks taken (ssp) */
    ps_event *heap;    /* one event at most of each kind and process or host */
    size_t event_count;
    double now_us;
    uint64_t applied, late, taken; /* chunks */
    uint64_t stale[STALENESS_SEEN + 1];
    bool failed; /* no memory */
} ps_run;

/* Zeroed; NULL: no memory, which `failed` says. */
static void *take(ps_run *r, size_t count, size_t size_bytes)
{
    void *memory = gr_arena_alloc(&r->arena, count * size_bytes);
    r->failed = r->failed || !memory;
    return memory;
}

/* ---- Queues and events ----------------------------------------------------------------------- */
static void enqueue(ps_run *r, message_queue *q, message m)
{
    if (q->count == q->capacity) {
        uint32_t capacity = q->capacity > 0 ? 2 * q->capacity : 16;
        message *items = take(r, capacity, sizeof *items);
        if (!items) {
            return;
        }
        for (uint32_t i = 0; i < q->count; i++) {
            items[i] = q->items[(q->head + i) & (q->capacity - 1)];
        }
        *q = (message_queue){.items = items, .count = q->count, .capacity = capacity};
    }
    q->items[(q->head + q->count++) & (q->capacity - 1)] = m;
}

static void take_turn(ps_run *r, flow *f, message_queue *turns, message m)
{
    enqueue(r, f->turns ? &f->rest : turns, m);
    f->turns = true;
}

static bool dequeue(message_queue *q, message *out)
{
    if (q->count == 0) {
        return false;
    }
    *out = q->items[q->head];
    q->head = (q->head + 1) & (q->capacity - 1);
    q->count--;
    return true;
}

/* Behind `dequeue` of the queue of all connections. */
static void end_turn(ps_run *r, flow *f, message_queue *turns)
{
    message next;
    f->turns = dequeue(&f->rest, &next);
    if (f->turns) {
        enqueue(r, turns, next);
    }
}

/* A heap of which each node has four children, which lie in about one cache line. */
static void push_event(ps_run *r, ps_event_kind kind, int who, double at_us)
{
    size_t at = r->event_count++;
    while (at > 0 && r->heap[(at - 1) / CHILDREN].at_us > at_us) {
        r->heap[at] = r->heap[(at - 1) / CHILDREN];
        at = (at - 1) / CHILDREN;
    }
    r->heap[at] = (ps_event){.at_us = at_us, .kind = kind, .who = who};
}

static ps_event pop_event(ps_run *r)
{
    ps_event first = r->heap[0];
    ps_event last = r->heap[--r->event_count];
    size_t at = 0, child;
    while ((child = CHILDREN * at + 1) < r->event_count) {
        size_t end = child + CHILDREN < r->event_count ? child + CHILDREN : r->event_count;
        for (size_t next = child + 1; next < end; next++) {
            child = r->heap[next].at_us < r->heap[child].at_us ? next : child;
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

/* What is on its way to a host comes in the order in which it was sent, so that the first is the
 * only one that needs an event. */
static void send_off(ps_run *r, message_queue *q, ps_event_kind kind, int to, message m)
{
    if (q->count == 0) {
        push_event(r, kind, to, m.due_us);
    }
    enqueue(r, q, m);
}

static bool come(ps_run *r, message_queue *q, ps_event_kind kind, int to, message *out)
{
    bool any = dequeue(q, out);
    if (q->count > 0) {
        push_event(r, kind, to, q->items[q->head].due_us);
    }
    return any;
}

/* ---- Computing ------------------------------------------------------------------------------- */
double gr_ps_sim_factor(const gr_ps_sim *sim, double sigma, int rank, uint32_t round)
{
    double factor = sim->slow ? sim->slow[rank] : 1;
    if (sigma > 0) {
        float z;
        gr_philox_normal(sim->seed, round, (uint32_t)rank, &z, 1);
        factor *= exp(sigma * (double)z - sigma * sigma / 2);
    }
    return factor;
}

double gr_ps_sim_sigma(const gr_ps_sim *sim)
{
    return sqrt(log1p(sim->spread * sim->spread));
}

static void begin_step(ps_run *r, int rank, double at_us)
{
    worker *w = &r->worker[rank];
    w->begun_us = at_us;
    w->factor = gr_ps_sim_factor(r->sim, r->sigma, rank, w->rounds++);
    w->next = 0;
    w->pulled = 0;
    w->least = UINT32_MAX;
}

/* Gradients become ready at an even pace during the backward pass. */
static double ready_us(const ps_run *r, const worker *w)
{
    const gr_training_step *step = &r->sim->step;
    double share = step->overlap ? (w->next + 1) * r->chunk_share : 1;
    return w->begun_us + w->factor * (step->forward_us + step->backward_us * share);
}

/* ---- Wires ----------------------------------------------------------------------------------- */
static int server_of(const ps_run *r, uint32_t chunk)
{
    return r->workers + (int)(chunk % (uint32_t)r->servers);
}

/* The next server; the blocks of one are spread over all others. */
static int replica_of(const ps_run *r, uint32_t chunk)
{
    uint32_t servers = (uint32_t)r->servers;
    uint32_t further = servers > 1 ? 1 + chunk / servers % (servers - 1) : 0;
    return r->workers + (int)((chunk + further) % servers);
}

static int receiver_of(const ps_run *r, const message *m)
{
    return m->kind == PULL   ? m->worker
           : m->kind == COPY ? replica_of(r, m->chunk)
                             : server_of(r, m->chunk);
}

static int sender_of(const ps_run *r, const message *m)
{
    return m->kind == PUSH   ? m->worker
           : m->kind == SAFE ? replica_of(r, m->chunk)
                             : server_of(r, m->chunk);
}

static message message_of(const ps_run *r, message_kind kind, const message *cause)
{
    message m = *cause;
    m.kind = (uint8_t)kind;
    m.local = r->processes[sender_of(r, &m)].host == r->processes[receiver_of(r, &m)].host;
    return m;
}

static void start_wire(ps_run *r, int at)
{
    host *h = &r->host[at];
    if (h->sending || h->wire.count == 0) {
        return;
    }
    h->sending = true;
    /* A pause is worth some bytes that then pass at once: those of a token bucket. */
    h->paid_until_us = fmax(h->paid_until_us, r->now_us - r->burst_us) + r->wire_us;
    h->busy_us[OUT] += r->wire_us;
    push_event(r, SENT, at, fmax(h->paid_until_us, r->now_us));
}

static void start_receiving(ps_run *r, int at)
{
    host *h = &r->host[at];
    message *m = &h->receives;
    if (h->receiving || (!dequeue(&h->copies, m) && !dequeue(&h->arriving, m))) {
        return;
    }
    int from = r->processes[sender_of(r, m)].host;
    /* It may have been free when the first byte came, which is a while ago. */
    double free_us = fmax(h->receives_until_us, m->due_us - r->burst_us);
    bool meets = h->received_from != from + 1 && h->receives_until_us > m->due_us;
    double pass_us = meets ? r->incast_us : r->wire_us;
    h->received_from = from + 1;
    h->receives_until_us = free_us + pass_us;
    h->busy_us[IN] += pass_us;
    h->receiving = true;
    push_event(r, ARRIVED, at, fmax(h->receives_until_us, fmax(m->due_us + r->wire_us, r->now_us)));
}

static flow *flow_of(const ps_run *r, const message *m, bool sending)
{
    size_t servers = (size_t)r->servers, all = (size_t)r->workers * servers;
    return &r->flow[(sending           ? 2 * all
                     : m->kind == PULL ? all
                                       : 0) +
                    m->worker * servers + m->chunk % (uint32_t)r->servers];
}

static void first_byte(ps_run *r, int at, message m)
{
    host *h = &r->host[at];
    if (m.kind == COPY) {
        enqueue(r, &h->copies, m);
    } else {
        take_turn(r, flow_of(r, &m, false), &h->arriving, m);
    }
    start_receiving(r, at);
}

static void kick(ps_run *r, int at);

static void deliver(ps_run *r, const message *m)
{
    int receiver = receiver_of(r, m);
    enqueue(r, &r->processes[receiver].in, *m);
    kick(r, receiver);
}

static void arrived(ps_run *r, int at)
{
    host *h = &r->host[at];
    message m = h->receives;
    h->receiving = false;
    if (m.kind != COPY) {
        end_turn(r, flow_of(r, &m, false), &h->arriving);
    }
    start_receiving(r, at);
    deliver(r, &m);
}

static void sent(ps_run *r, int at)
{
    message m;
    host *h = &r->host[at];
    h->sending = false;
    if (dequeue(&h->wire, &m)) {
        int sender = sender_of(r, &m), to = r->processes[receiver_of(r, &m)].host;
        r->processes[sender].on_wire--;
        m.due_us = r->now_us + r->sim->cluster.latency_us - r->wire_us;
        if (m.due_us > r->now_us) {
            send_off(r, &r->host[to].flying, FIRST_BYTE, to, m);
        } else {
            first_byte(r, to, m);
        }
        start_wire(r, at);
        kick(r, sender);
    }
}

/* ---- A server -------------------------------------------------------------------------------- */
static bool synchronous(const ps_run *r)
{
    return r->sim->mode == GR_PS_SIM_BSP || r->sim->mode == GR_PS_SIM_BACKUP;
}

static void send(ps_run *r, message m)
{
    ps_process *own = &r->processes[sender_of(r, &m)];
    if (m.kind == PULL) {
        take_turn(r, flow_of(r, &m, true), &own->out, m);
    } else {
        enqueue(r, &own->first, m);
    }
}

static void answer(ps_run *r, const message *m)
{
    send(r, message_of(r, PULL, m));
}

/* Who waits for the version gets it. Beginning with another one for each chunk: nobody is always
 * the last. */
static void answer_all(ps_run *r, const message *m)
{
    bool *waits = &r->waits[(size_t)m->chunk * (size_t)r->workers];
    for (int i = 0; i < r->workers; i++) {
        int rank = (int)((m->chunk / (uint32_t)r->servers + (uint32_t)i) % (uint32_t)r->workers);
        if (waits[rank]) {
            message pull = *m;
            pull.worker = (uint16_t)rank;
            waits[rank] = false;
            answer(r, &pull);
        }
    }
}

static void apply(ps_run *r, uint32_t chunk)
{
    r->version[chunk]++;
    r->applied++;
}

static void take_synchronous(ps_run *r, const message *m)
{
    bool *waits = &r->waits[(size_t)m->chunk * (size_t)r->workers];
    if (m->step != r->version[m->chunk]) {
        r->late++;
        waits[m->worker] = r->unsafe[m->chunk];
        if (!waits[m->worker]) {
            answer(r, m);
        }
        return;
    }
    waits[m->worker] = true;
    if (++r->pushed[m->chunk] < r->need) {
        return;
    }
    r->pushed[m->chunk] = 0;
    apply(r, m->chunk);
    r->unsafe[m->chunk] = r->replicas;
    if (r->replicas) {
        send(r, message_of(r, COPY, m));
    } else {
        answer_all(r, m);
    }
}

/* A worker's clock here: the steps of which it has pushed everything that this server has. */
static uint32_t clock_of(const ps_run *r, int at, int rank)
{
    size_t of = (size_t)at * (size_t)r->workers + (size_t)rank;
    return r->got[of] / r->server[at].chunks;
}

/* True: the slowest clock has gone on. */
static bool count_clock(ps_run *r, int at, int rank)
{
    server *s = &r->server[at];
    uint32_t before = clock_of(r, at, rank);
    r->got[(size_t)at * (size_t)r->workers + (size_t)rank]++;
    if (clock_of(r, at, rank) == before || before != s->clock || --s->at_clock > 0) {
        return false;
    }
    s->clock = UINT32_MAX;
    for (int i = 0; i < r->workers; i++) {
        uint32_t clock = clock_of(r, at, i);
        if (clock < s->clock) {
            s->clock = clock;
            s->at_clock = 0;
        }
        s->at_clock += clock == s->clock;
    }
    return true;
}

static bool may_pull(const ps_run *r, const server *s, const message *m)
{
    return (int64_t)m->step + 1 - r->sim->staleness <= (int64_t)s->clock;
}

/* Without waiting for slower workers, or when they have come. */
static void answer_one(ps_run *r, const message *m)
{
    server *s = &r->server[server_of(r, m->chunk) - r->workers];
    if (r->sim->mode == GR_PS_SIM_SSP && !may_pull(r, s, m)) {
        enqueue(r, &s->held, *m);
    } else {
        answer(r, m);
    }
}

static void release_held(ps_run *r, server *s)
{
    message pull;
    for (uint32_t left = s->held.count; left > 0 && dequeue(&s->held, &pull); left--) {
        answer_one(r, &pull);
    }
}

static void take_push(ps_run *r, const message *m)
{
    r->taken++;
    if (synchronous(r)) {
        take_synchronous(r, m);
        return;
    }
    uint32_t seen = r->seen[(size_t)m->worker * r->chunks + m->chunk];
    uint32_t staleness = r->version[m->chunk] - seen;
    r->stale[staleness < STALENESS_SEEN ? staleness : STALENESS_SEEN]++;
    apply(r, m->chunk);
    int at = server_of(r, m->chunk) - r->workers;
    if (r->sim->mode == GR_PS_SIM_SSP && count_clock(r, at, m->worker)) {
        release_held(r, &r->server[at]);
    }
    if (r->replicas) {
        send(r, message_of(r, COPY, m));
    } else {
        answer_one(r, m);
    }
}

/* The replica has the update: now it may be seen. */
static void take_safe(ps_run *r, const message *m)
{
    r->unsafe[m->chunk] = false;
    if (synchronous(r)) {
        answer_all(r, m);
    } else {
        answer_one(r, m);
    }
}

/* ---- A worker -------------------------------------------------------------------------------- */
static void take_pull(ps_run *r, const message *m)
{
    worker *w = &r->worker[m->worker];
    uint32_t version = m->step; /* as the server sent it */
    r->seen[(size_t)m->worker * r->chunks + m->chunk] = version;
    w->least = version < w->least ? version : w->least;
    if (++w->pulled == r->chunks) {
        /* Who was late goes on with the step that is not yet done. */
        w->step = synchronous(r) ? w->least : w->step + 1;
        begin_step(r, m->worker, r->now_us);
    }
}

static bool take_out(ps_run *r, int at, message *out)
{
    ps_process *own = &r->processes[at];
    if (own->on_wire == ON_WIRE_MAX) {
        return false;
    }
    if (at >= r->workers) {
        if (dequeue(&own->first, out)) {
            return true;
        }
        if (!dequeue(&own->out, out)) {
            return false;
        }
        end_turn(r, flow_of(r, out, true), &own->out);
        out->step = r->version[out->chunk];
        return true;
    }
    worker *w = &r->worker[at];
    if (w->next == r->chunks || w->woken) {
        return false;
    }
    double ready = ready_us(r, w);
    if (ready > r->now_us) {
        w->woken = true;
        push_event(r, WAKE, at, ready);
        return false;
    }
    *out = message_of(r, PUSH,
                      &(message){.chunk = w->next++, .step = w->step, .worker = (uint16_t)at});
    return true;
}

/* ---- A process ------------------------------------------------------------------------------- */
static double cost_us(const ps_run *r, const ps_process *own)
{
    const gr_cluster *cluster = &r->sim->cluster;
    const message *m = &own->task;
    double us = m->local ? cluster->local_overhead_us : cluster->overhead_us;
    us = us * r->messages + (m->local || m->kind == SAFE ? 0 : r->copy_us);
    if (own->sending || m->kind == SAFE) {
        return us;
    }
    if (m->kind == PULL) {
        return us + (m->local ? r->local_us : 0);
    }
    if (m->kind == COPY || !synchronous(r)) {
        return us + r->update_us;
    }
    if (m->step != r->version[m->chunk]) {
        return us;
    }
    /* The first gradient of a step is there as it came, the last one makes the update. */
    uint32_t before = r->pushed[m->chunk];
    return us + (before > 0 ? r->reduce_us : 0) + (before + 1 == r->need ? r->update_us : 0);
}

static void take_message(ps_run *r, const message *m)
{
    switch ((message_kind)m->kind) {
    case PUSH:
        take_push(r, m);
        break;
    case PULL:
        take_pull(r, m);
        break;
    case COPY:
        send(r, message_of(r, SAFE, m));
        break;
    case SAFE:
        take_safe(r, m);
        break;
    }
}

static void send_message(ps_run *r, int from, message m)
{
    int to = r->processes[receiver_of(r, &m)].host;
    if (m.local) {
        m.due_us = r->now_us + r->sim->cluster.local_latency_us;
        send_off(r, &r->host[to].local, LOCAL, to, m);
    } else if (m.kind == SAFE) {
        m.due_us = r->now_us + r->sim->cluster.latency_us;
        send_off(r, &r->host[to].safe, SAFE_NOW, to, m);
    } else {
        enqueue(r, &r->host[from].wire, m);
        start_wire(r, from);
    }
}

static void finish_task(ps_run *r, ps_process *own)
{
    message m = own->task;
    if (own->sending) {
        send_message(r, own->host, m);
    } else {
        take_message(r, &m);
    }
}

/* Whatever it can do now, until something takes time. */
static void kick(ps_run *r, int at)
{
    ps_process *own = &r->processes[at];
    while (!own->busy) {
        own->sending = take_out(r, at, &own->task);
        if (own->sending) {
            own->on_wire += !own->task.local && own->task.kind != SAFE;
        } else if (!dequeue(&own->in, &own->task)) {
            return;
        }
        double us = cost_us(r, own);
        if (us > 0) {
            own->busy = true;
            push_event(r, DONE, at, r->now_us + us);
            return;
        }
        finish_task(r, own);
    }
}

static void happen(ps_run *r, ps_event e)
{
    message m;
    r->now_us = e.at_us;
    switch (e.kind) {
    case DONE:
        r->processes[e.who].busy = false;
        finish_task(r, &r->processes[e.who]);
        kick(r, e.who);
        break;
    case WAKE:
        r->worker[e.who].woken = false;
        kick(r, e.who);
        break;
    case SENT:
        sent(r, e.who);
        break;
    case FIRST_BYTE:
        if (come(r, &r->host[e.who].flying, FIRST_BYTE, e.who, &m)) {
            first_byte(r, e.who, m);
        }
        break;
    case ARRIVED:
        arrived(r, e.who);
        break;
    case LOCAL:
        if (come(r, &r->host[e.who].local, LOCAL, e.who, &m)) {
            deliver(r, &m);
        }
        break;
    case SAFE_NOW:
        if (come(r, &r->host[e.who].safe, SAFE_NOW, e.who, &m)) {
            deliver(r, &m);
        }
        break;
    }
}

/* ---- Beginning and end ----------------------------------------------------------------------- */
static double us_of(double bytes, double gbyte)
{
    return gbyte > 0 ? bytes * 1e-3 / gbyte : 0;
}

/* The parameters as one tensor; in as many pieces as can be simulated. */
static void cut(ps_run *r)
{
    const gr_cluster *c = &r->sim->cluster;
    double bytes = (double)r->sim->step.gradient_bytes;
    double blocks = (double)gr_ps_cut_of((uint64_t)r->sim->step.gradient_bytes / 4).blocks;
    double servers = r->servers;
    double most = floor((double)PUSH_WORK / r->workers / servers);
    most = servers * fmin(fmax(most, PER_SERVER_MIN), PER_SERVER_MAX);
    double chunks = fmin(blocks, most);
    if (chunks > servers) {
        chunks = servers * ceil(chunks / servers); /* as even as the servers' shares are */
    }
    r->chunks = (uint32_t)chunks;
    r->chunk_bytes = bytes / chunks;
    r->chunk_share = 1 / chunks;
    r->messages = fmax(blocks / chunks, 1);
    r->wire_us = us_of(r->chunk_bytes, c->bandwidth_gbit / 8);
    r->incast_us = c->incast_gbit > 0 ? us_of(r->chunk_bytes, c->incast_gbit / 8) : r->wire_us;
    r->burst_us = us_of((double)c->burst_bytes, c->bandwidth_gbit / 8);
    r->copy_us = us_of(r->chunk_bytes, c->copy_gbyte);
    r->local_us = us_of(r->chunk_bytes, c->local_gbyte);
    r->reduce_us = us_of(r->chunk_bytes, c->reduce_gbyte);
    r->update_us = r->sim->step.update_us / chunks;
}

static void place(ps_run *r)
{
    const gr_ps_sim *sim = r->sim;
    for (int rank = 0; rank < r->workers; rank++) {
        r->processes[rank].host = (int)(rank / sim->cluster.ranks_per_host);
    }
    for (int at = 0; at < r->servers; at++) {
        int own = (int)(at / sim->servers_per_host);
        r->processes[r->workers + at].host =
            sim->beside_workers ? own % r->worker_hosts : r->worker_hosts + own;
        r->server[at].at_clock = (uint32_t)r->workers;
    }
    for (uint32_t chunk = 0; chunk < r->chunks; chunk++) {
        r->server[chunk % (uint32_t)r->servers].chunks++;
    }
}

static gr_status open_run(const gr_ps_sim *sim, ps_run *r, gr_diag *diag)
{
    r->sim = sim;
    r->worker_hosts = (int)sim->cluster.hosts;
    r->workers = (int)(sim->cluster.hosts * sim->cluster.ranks_per_host);
    r->servers = (int)sim->servers;
    r->hosts = r->worker_hosts;
    if (!sim->beside_workers) {
        r->hosts += (int)((sim->servers + sim->servers_per_host - 1) / sim->servers_per_host);
    }
    r->sigma = gr_ps_sim_sigma(sim);
    r->replicas = sim->replicas && sim->servers > 1;
    r->need = (uint32_t)(sim->mode == GR_PS_SIM_BACKUP ? sim->aggregate : r->workers);
    cut(r);
    size_t workers = (size_t)r->workers, servers = (size_t)r->servers, hosts = (size_t)r->hosts;
    gr_arena_init(&r->arena, SIZE_MAX);
    r->processes = take(r, workers + servers, sizeof *r->processes);
    r->worker = take(r, workers, sizeof *r->worker);
    r->server = take(r, servers, sizeof *r->server);
    r->host = take(r, hosts, sizeof *r->host);
    r->flow = take(r, 3 * workers * servers, sizeof *r->flow);
    r->version = take(r, r->chunks, sizeof *r->version);
    r->pushed = take(r, r->chunks, sizeof *r->pushed);
    r->unsafe = take(r, r->chunks, sizeof *r->unsafe);
    r->waits = take(r, workers * r->chunks, sizeof *r->waits);
    r->seen = take(r, workers * r->chunks, sizeof *r->seen);
    r->got = take(r, workers * servers, sizeof *r->got);
    r->heap = take(r, 2 * workers + servers + 5 * hosts, sizeof *r->heap);
    if (r->failed) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to simulate %d workers", r->workers);
    }
    place(r);
    return GR_OK;
}

/* Workers that wait for nobody come one after the other: that they begin together would be an
 * accident, and would last. */
static void begin_workers(ps_run *r)
{
    const gr_training_step *step = &r->sim->step;
    double compute_us = step->forward_us + step->backward_us;
    for (int rank = 0; rank < r->workers; rank++) {
        begin_step(r, rank, synchronous(r) ? 0 : compute_us * rank / r->workers);
        kick(r, rank);
    }
}

/* Until so many chunks have been updated; false: that does not come. */
static bool run_until(ps_run *r, uint64_t goal)
{
    while (r->applied < goal && r->event_count > 0 && !r->failed) {
        happen(r, pop_event(r));
    }
    return r->applied >= goal;
}

static void find_busiest(const ps_run *r, double us, gr_ps_sim_wire *out)
{
    double most = 0;
    for (int at = 0; at < r->hosts; at++) {
        for (int way = 0; way < WAYS; way++) {
            if (r->host[at].busy_us[way] <= most) {
                continue;
            }
            most = r->host[at].busy_us[way];
            bool own = at >= r->worker_hosts; /* of servers */
            *out = (gr_ps_sim_wire){
                .server = own, .host = own ? at - r->worker_hosts : at, .incoming = way == IN};
        }
    }
    out->share = us > 0 ? fmin(most / us, 1) : 0;
}

static void find_staleness(const ps_run *r, gr_ps_simulated *out)
{
    uint64_t count = 0, so_far = 0;
    double sum = 0;
    for (int i = 0; i <= STALENESS_SEEN; i++) {
        count += r->stale[i];
        sum += (double)i * (double)r->stale[i];
    }
    out->staleness_mean = count > 0 ? sum / (double)count : 0;
    for (int i = 0; i <= STALENESS_SEEN && so_far * 100 < count * 99; i++) {
        so_far += r->stale[i];
        out->staleness_p99 = i;
    }
}

static void forget_so_far(ps_run *r)
{
    for (int at = 0; at < r->hosts; at++) {
        memset(r->host[at].busy_us, 0, sizeof r->host[at].busy_us);
    }
    memset(r->stale, 0, sizeof r->stale);
    r->late = r->taken = 0;
}

static gr_status run_steps(ps_run *r, gr_ps_simulated *out, gr_diag *diag)
{
    uint64_t pushes = (uint64_t)r->chunks * (uint64_t)r->workers;
    uint64_t an_update = synchronous(r) ? r->chunks : pushes;
    uint64_t steps = RUN_WORK / pushes;
    uint64_t most = r->sigma > 0 ? STEPS_MAX : STEPS_EVEN;
    steps = steps < STEPS_MIN ? STEPS_MIN : steps > most ? most : steps;
    if (r->sim->mode == GR_PS_SIM_BSP && r->sigma == 0) {
        steps = STEPS_STEADY;
    }
    uint64_t first = steps / 4 > 0 ? steps / 4 : 1;
    begin_workers(r);
    bool ends = run_until(r, first * an_update);
    double from_us = r->now_us;
    forget_so_far(r);
    ends = ends && run_until(r, steps * an_update);
    if (r->failed) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to simulate %d workers", r->workers);
    }
    if (!ends) {
        return gr_fail(diag, GR_E_BUG, "the steps of %d workers do not end in the simulation",
                       r->workers);
    }
    double us = r->now_us - from_us;
    double used = synchronous(r) ? (double)r->need : (double)r->workers;
    *out = (gr_ps_simulated){.steps = (int64_t)(steps - first)};
    out->step_us = us / (double)(steps - first);
    out->gradients_per_s = out->step_us > 0 ? 1e6 * used / out->step_us : 0;
    out->dropped = r->taken > 0 ? (double)r->late / (double)r->taken : 0;
    find_staleness(r, out);
    find_busiest(r, us, &out->busiest);
    return GR_OK;
}

gr_status gr_ps_sim_run(const gr_ps_sim *sim, gr_ps_simulated *simulated_out, gr_diag *diag)
{
    ps_run *r = calloc(1, sizeof *r);
    if (!r) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to simulate parameter servers");
    }
    gr_status status = open_run(sim, r, diag);
    if (status == GR_OK) {
        status = run_steps(r, simulated_out, diag);
    }
    gr_arena_fini(&r->arena);
    free(r);
    return status;
}
