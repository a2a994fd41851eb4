/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/select/cost_model.h"
#include "coll/plan/cut.h"
#include "coll/plan/traits.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEPS_MAX = 4096, /* of all ranks together, to walk them all */
    RANKS_MAX = 512,
    STAND_INS = 5,   /* ranks that stand for all where these are too many */
    HOST_FIGURES = 5 /* in gr_cost.host_us */
};

#define NOBODY UINT32_MAX
/* Ranks that have more to do than others do not always share their core with one that has less: of
 * what the busiest one has above the mean, this part prolongs the whole. */
#define UNEVEN 0.32
/* Longer ones do not leave together. */
enum { TOGETHER_BYTES_MAX = 4096 };

typedef struct walk_rank {
    int rank;
    gr_plan plan;
    int peers;             /* with which it exchanges messages */
    int sent_to, got_from; /* in its last such step; -1: none yet */
    bool waited;           /* since it last sent */
    uint32_t first;        /* of its steps in the arrays of the walk */
    uint32_t next;         /* step to be walked */
    double clock_us;       /* its processor is free */
    double mirror_us;      /* its last send ended */
    double busy_us;
    double sending_us; /* of that, what messages cost that it sends, however long they are */
    double moved;      /* bytes copied, received and added */
    double left;       /* bytes sent to other hosts */
    double entered;
    uint64_t messages, bytes_sent;
} walk_rank;

struct gr_cost {
    gr_plan_shape shape;
    int rank_count;
    walk_rank *ranks;
    uint32_t step_count;
    bool *waits;           /* by step: a receive for which its rank has to wait */
    uint32_t *from;        /* by step: the send that a receive waits for; NOBODY */
    double *begun, *ended; /* by step: its first segment, its last one, is done */
    double *host_us;       /* by host: busy; bytes that left, entered, were moved inside; sending */
    double sending_us;     /* see gr_cost_sending_us */
};

/* What is constant during one walk. */
typedef struct walk_at {
    const gr_cost_model *model;
    double add_byte_us, copy_byte_us;
    gr_cut cut;
    uint32_t segments;
    bool oversubscribed; /* more ranks than cores on a host */
    double wait_us;      /* of one receive that waits */
    bool far;            /* buffers beyond the caches */
    bool finds_waits;
} walk_at;

/* ---- Defaults -------------------------------------------------------------------------------- */
/* Fitted to allreduces with all algorithms: 2, 4 and 8 ranks, 4 B to 16 MiB, two cores. */
static const gr_link_cost shm_cost = {.latency_us = 0.1,
                                      .send_us = 0.11,
                                      .recv_us = 0.11,
                                      .send_byte_us = 1e-5,
                                      .recv_byte_us = 2.5e-5,
                                      .wire_byte_us = 1.3e-4,
                                      .next_share = 1,
                                      .together_share = 1};
static const gr_link_cost tcp_cost = {.latency_us = 0.3,
                                      .send_us = 2.4,
                                      .recv_us = 1.6,
                                      .send_byte_us = 5.7e-5,
                                      .recv_byte_us = 1.04e-4,
                                      .view_byte_us = 5.9e-5,
                                      .next_share = 0.6,
                                      .together_share = 0.1,
                                      .peer_share = 0.046};
/* 10 Gbit/s, 50 us. */
static const gr_link_cost wire_cost = {.latency_us = 50,
                                       .send_us = 3.8,
                                       .recv_us = 1.1,
                                       .send_byte_us = 1.1e-4,
                                       .recv_byte_us = 1e-5,
                                       .view_byte_us = 1.2e-4,
                                       .wire_byte_us = 8.5e-4,
                                       .host_byte_us = 8.5e-4,
                                       .next_share = 1,
                                       .together_share = 1};

void gr_cost_model_defaults(gr_cost_model *model, gr_link_kind inside)
{
    bool shm = inside == GR_LINK_SHM;
    *model = (gr_cost_model){.start_us = shm ? 1.1 : 0.2,
                             .wait_us = shm ? 5 : 0.4,
                             .turn_us = shm ? 0 : 0.94,
                             .copy_byte_us = 1e-4,
                             .far_byte_us = shm ? 5e-6 : 3e-5,
                             .memory_byte_us = shm ? 1e-5 : 3e-5,
                             .cache_bytes = 3 << 20,
                             .cores = 2};
    model->link[GR_MODEL_INSIDE] = shm ? shm_cost : tcp_cost;
    model->link[GR_MODEL_BETWEEN] = wire_cost;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        model->add_byte_us[dtype] = dtype == GR_F16 || dtype == GR_BF16 ? 2e-4 : 7e-5;
    }
}

/* ---- Plans ----------------------------------------------------------------------------------- */
/* Peers that some step sends to, or receives from; at least one. */
static int count_peers(const gr_plan *plan)
{
    int count = 0;
    bool *seen = calloc((size_t)plan->shape.world_size, sizeof *seen);
    for (uint32_t i = 0; i < plan->step_count && seen; i++) {
        const gr_step *step = &plan->steps[i];
        if ((gr_step_gives(step) || gr_step_takes(step)) && !seen[step->peer]) {
            seen[step->peer] = true;
            count++;
        }
    }
    free(seen);
    return count > 0 ? count : 1;
}

static gr_status add_rank(gr_cost *walk, const gr_algorithm *algorithm, int rank)
{
    walk_rank *at = &walk->ranks[walk->rank_count];
    gr_plan_shape shape = walk->shape;
    shape.rank = rank;
    *at = (walk_rank){.rank = rank, .first = walk->step_count};
    gr_plan_emit(algorithm, &shape, &at->plan);
    gr_status status = gr_plan_finish(&at->plan);
    at->peers = count_peers(&at->plan);
    walk->rank_count++;
    walk->step_count += at->plan.step_count;
    return status;
}

static void drop_ranks(gr_cost *walk)
{
    for (int i = 0; i < walk->rank_count; i++) {
        gr_plan_fini(&walk->ranks[i].plan);
    }
    walk->rank_count = 0;
    walk->step_count = 0;
}

/* All ranks, or a few if all are too much: then every receive of theirs is taken to end as if its
 * sender were where they are themselves, which is so in all algorithms that need many steps. */
static gr_status add_ranks(gr_cost *walk, const gr_algorithm *algorithm)
{
    int n = walk->shape.world_size;
    gr_status status = GR_OK;
    for (int rank = 0; rank < n && n <= RANKS_MAX && status == GR_OK; rank++) {
        status = add_rank(walk, algorithm, rank);
        if (walk->step_count > STEPS_MAX || (rank == 0 && walk->step_count > STEPS_MAX / 2)) {
            break;
        }
    }
    if (status != GR_OK || walk->rank_count == n) {
        return status;
    }
    const int chosen[STAND_INS] = {walk->shape.root, 0, 1, n / 2, n - 1};
    drop_ranks(walk);
    for (int i = 0; i < STAND_INS && status == GR_OK; i++) {
        bool there = false;
        for (int j = 0; j < i; j++) {
            there |= chosen[j] == chosen[i];
        }
        status = there ? GR_OK : add_rank(walk, algorithm, chosen[i]);
    }
    return status;
}

/* Finds the send of each receive: the sends of a rank to a peer are numbered, as are the receives
 * there. */
static gr_status match_messages(gr_cost *walk)
{
    size_t n = (size_t)walk->shape.world_size;
    size_t ranks = (size_t)walk->rank_count;
    uint32_t *index = malloc(n * sizeof *index);           /* by rank: in walk->ranks */
    uint32_t *head = malloc(ranks * ranks * sizeof *head); /* by pair: its latest send */
    uint32_t *before = malloc((walk->step_count + 1u) * sizeof *before); /* the send before it */
    gr_status status = index && head && before ? GR_OK : GR_E_NO_MEMORY;
    if (status == GR_OK) {
        memset(index, 0xff, n * sizeof *index);
        memset(head, 0xff, ranks * ranks * sizeof *head);
        for (size_t i = 0; i < ranks; i++) {
            index[walk->ranks[i].rank] = (uint32_t)i;
        }
    }
    /* Chains run backwards, so receives are walked backwards as well. */
    for (size_t i = 0; i < ranks && status == GR_OK; i++) {
        const walk_rank *at = &walk->ranks[i];
        for (uint32_t s = 0; s < at->plan.step_count; s++) {
            const gr_step *step = &at->plan.steps[s];
            if (gr_step_gives(step) && index[step->peer] != NOBODY) {
                uint32_t *chain = &head[i * ranks + index[step->peer]];
                before[at->first + s] = *chain;
                *chain = at->first + s;
            }
        }
    }
    for (size_t i = 0; i < ranks && status == GR_OK; i++) {
        const walk_rank *at = &walk->ranks[i];
        for (uint32_t s = at->plan.step_count; s-- > 0;) {
            const gr_step *step = &at->plan.steps[s];
            walk->from[at->first + s] = NOBODY;
            if (gr_step_takes(step) && index[step->peer] != NOBODY) {
                uint32_t *chain = &head[index[step->peer] * ranks + i];
                walk->from[at->first + s] = *chain;
                *chain = *chain == NOBODY ? NOBODY : before[*chain];
            }
        }
    }
    free(before);
    free(head);
    free(index);
    return status;
}

/* ---- Walking --------------------------------------------------------------------------------- */
/* As the executor cuts a buffer of this size. */
static gr_cut cut_of(const gr_cost *walk, size_t size_bytes)
{
    const gr_plan *plan = &walk->ranks[0].plan; /* all cut alike */
    bool fixed = gr_coll_traits_of[plan->shape.coll].blocks;
    return gr_cut_evenly(size_bytes, plan->blocks, fixed ? 1 : 0);
}

size_t gr_cost_block_bytes(const gr_cost *walk, size_t size_bytes)
{
    gr_cut cut = cut_of(walk, size_bytes);
    return gr_cut_block_bytes(&cut, 0);
}

int gr_cost_hosts(const gr_cost *walk)
{
    return walk->shape.topology ? walk->shape.topology->host_count : 1;
}

bool gr_cost_uses_scratch(const gr_cost *walk)
{
    bool uses = false;
    for (int i = 0; i < walk->rank_count; i++) {
        uses |= walk->ranks[i].plan.scratch_slots > 0;
    }
    return uses;
}

static const gr_link_cost *link_to(const gr_cost *walk, const walk_at *at, int rank, int peer,
                                   bool *outside_out)
{
    const gr_topology *topology = walk->shape.topology;
    *outside_out = topology && topology->host_of[rank] != topology->host_of[peer];
    return &at->model->link[*outside_out ? GR_MODEL_BETWEEN : GR_MODEL_INSIDE];
}

/* A step of `cost_us` in all: its first segment is done a segment's cost after it may begin, its
 * last one not before the last segment of what it waits for, and not before the processor has done
 * the work. */
static void take_processor(walk_rank *rank, uint32_t segments, double cost_us, double *first_us,
                           double *last_us)
{
    double part_us = cost_us / segments;
    double begin_us = *first_us > rank->clock_us ? *first_us : rank->clock_us;
    double end_us = begin_us + cost_us;
    rank->clock_us = end_us;
    rank->busy_us += cost_us;
    *first_us = begin_us + part_us;
    *last_us = *last_us + part_us > end_us ? *last_us + part_us : end_us;
}

static double more_peers(const walk_rank *rank, const gr_link_cost *link)
{
    return 1 + link->peer_share * (rank->peers - 1);
}

/* Of what a message costs, for this one. */
static double share_of(const gr_link_cost *link, size_t bytes, bool same_peer, bool waited)
{
    if (!same_peer) {
        return 1;
    }
    return waited || bytes > TOGETHER_BYTES_MAX ? link->next_share : link->together_share;
}

static void walk_send(gr_cost *walk, const walk_at *at, walk_rank *rank, const gr_step *step,
                      double *first_us, double *last_us)
{
    bool outside;
    const gr_link_cost *link = link_to(walk, at, rank->rank, step->peer, &outside);
    size_t bytes = step->kind == GR_STEP_SIGNAL ? 0 : gr_cut_block_bytes(&at->cut, step->a.block);
    uint32_t messages = step->kind == GR_STEP_SIGNAL ? 1 : at->segments;
    if (bytes == 0 && step->kind == GR_STEP_SEND) {
        return;
    }
    double bytes_us = link->send_byte_us * (double)bytes * more_peers(rank, link);
    double each = messages - 1 + share_of(link, bytes, step->peer == rank->sent_to, rank->waited);
    rank->sent_to = step->peer;
    rank->waited = false;
    rank->sending_us += link->send_us * each;
    take_processor(rank, messages, link->send_us * each + bytes_us, first_us, last_us);
    rank->messages += messages;
    rank->bytes_sent += bytes;
    rank->left += outside ? (double)bytes : 0;
    rank->mirror_us = *last_us;
}

/* False: the send was not walked yet. */
static bool walk_recv(gr_cost *walk, const walk_at *at, walk_rank *rank, uint32_t index,
                      double *first_us, double *last_us)
{
    const gr_step *step = &rank->plan.steps[index];
    bool outside;
    const gr_link_cost *link = link_to(walk, at, rank->rank, step->peer, &outside);
    bool await = step->kind == GR_STEP_AWAIT;
    size_t bytes = await ? 0 : gr_cut_block_bytes(&at->cut, step->dst.block);
    uint32_t from = walk->from[rank->first + index];
    if (from != NOBODY && walk->begun[from] < 0) {
        return false;
    }
    if (bytes == 0 && !await) {
        return true;
    }
    uint32_t messages = await ? 1 : at->segments;
    double wire_us = link->wire_byte_us * (double)bytes / messages; /* of each */
    double sent_first = from == NOBODY ? rank->mirror_us : walk->begun[from];
    double sent_last = from == NOBODY ? rank->mirror_us : walk->ended[from];
    double first = sent_first + link->latency_us + wire_us;
    double last = sent_last + link->latency_us + wire_us;
    double wire_last = first + wire_us * (messages - 1);
    last = last > wire_last ? last : wire_last;
    *first_us = first > *first_us ? first : *first_us;
    *last_us = last > *last_us ? last : *last_us;
    bool view = step->dst.space == GR_SPACE_SCRATCH;
    double byte_us = view ? link->view_byte_us : link->recv_byte_us;
    if (at->finds_waits) {
        walk->waits[rank->first + index] = *first_us > rank->clock_us;
    }
    bool waits = walk->waits[rank->first + index];
    double each = messages - 1 + share_of(link, bytes, step->peer == rank->got_from, waits);
    rank->got_from = step->peer;
    rank->waited |= waits;
    double cost_us = link->recv_us * each + byte_us * (double)bytes * more_peers(rank, link);
    if (at->oversubscribed && waits) {
        cost_us += at->wait_us;
    }
    take_processor(rank, messages, cost_us, first_us, last_us);
    rank->entered += outside ? (double)bytes : 0;
    rank->moved += view ? 0 : 2 * (double)bytes * more_peers(rank, link);
    return true;
}

static void walk_local(const walk_at *at, walk_rank *rank, const gr_step *step, double *first_us,
                       double *last_us)
{
    bool adds = step->kind == GR_STEP_REDUCE;
    double bytes = (double)gr_cut_block_bytes(&at->cut, step->dst.block);
    if (bytes > 0) {
        rank->moved += (adds ? 3 : 2) * bytes;
        take_processor(rank, at->segments, bytes * (adds ? at->add_byte_us : at->copy_byte_us),
                       first_us, last_us);
    }
}

/* Walks one rank until it has to wait for one that stands behind; false: nothing was walked. */
static bool walk_rank_on(gr_cost *walk, const walk_at *at, walk_rank *rank)
{
    uint32_t start = rank->next;
    for (; rank->next < rank->plan.step_count; rank->next++) {
        const gr_step *step = &rank->plan.steps[rank->next];
        double first_us = 0, last_us = 0;
        for (uint32_t i = 0; i < step->after_count; i++) {
            uint32_t other = rank->first + rank->plan.after[step->after_first + i];
            first_us = walk->begun[other] > first_us ? walk->begun[other] : first_us;
            last_us = walk->ended[other] > last_us ? walk->ended[other] : last_us;
        }
        if (gr_step_gives(step)) {
            walk_send(walk, at, rank, step, &first_us, &last_us);
        } else if (!gr_step_takes(step)) {
            walk_local(at, rank, step, &first_us, &last_us);
        } else if (!walk_recv(walk, at, rank, rank->next, &first_us, &last_us)) {
            break;
        }
        walk->begun[rank->first + rank->next] = first_us;
        walk->ended[rank->first + rank->next] = last_us > first_us ? last_us : first_us;
    }
    return rank->next > start;
}

static void begin_walk(gr_cost *walk)
{
    for (int i = 0; i < walk->rank_count; i++) {
        walk_rank *rank = &walk->ranks[i];
        rank->next = 0;
        rank->sent_to = rank->got_from = -1;
        rank->waited = false;
        rank->clock_us = rank->mirror_us = rank->busy_us = rank->sending_us = 0;
        rank->moved = rank->left = rank->entered = 0;
        rank->messages = rank->bytes_sent = 0;
    }
    for (uint32_t i = 0; i < walk->step_count; i++) {
        walk->begun[i] = -1;
        walk->ended[i] = -1;
    }
}

static void walk_all(gr_cost *walk, const walk_at *at)
{
    begin_walk(walk);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < walk->rank_count; i++) {
            moved |= walk_rank_on(walk, at, &walk->ranks[i]);
        }
        /* Steps that may run in any order can wait for one another in the plan's order: let one
         * receive go as if its message had been sent when its own rank last sent. */
        for (int i = 0; i < walk->rank_count && !moved; i++) {
            walk_rank *rank = &walk->ranks[i];
            if (rank->next < rank->plan.step_count) {
                walk->begun[walk->from[rank->first + rank->next]] = rank->mirror_us;
                walk->ended[walk->from[rank->first + rank->next]] = rank->mirror_us;
                moved = true;
            }
        }
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_cost_create(const gr_algorithm *algorithm, const gr_plan_shape *shape,
                         gr_cost **walk_out)
{
    gr_cost *walk = calloc(1, sizeof *walk);
    if (!walk) {
        return GR_E_NO_MEMORY;
    }
    size_t hosts = shape->topology ? (size_t)shape->topology->host_count : 1;
    size_t ranks = (size_t)(shape->world_size < RANKS_MAX ? shape->world_size : RANKS_MAX);
    walk->shape = *shape;
    walk->ranks = calloc(ranks + STAND_INS, sizeof *walk->ranks);
    walk->host_us = calloc(HOST_FIGURES * hosts, sizeof *walk->host_us);
    gr_status status = walk->ranks && walk->host_us ? add_ranks(walk, algorithm) : GR_E_NO_MEMORY;
    if (status == GR_OK) {
        walk->from = calloc(walk->step_count + 1u, sizeof *walk->from);
        walk->waits = calloc(walk->step_count + 1u, sizeof *walk->waits);
        walk->begun = calloc(2 * (walk->step_count + (size_t)1), sizeof *walk->begun);
        status = walk->from && walk->waits && walk->begun ? match_messages(walk) : GR_E_NO_MEMORY;
    }
    if (status != GR_OK) {
        gr_cost_destroy(walk);
        return status == GR_E_NO_MEMORY ? status : GR_E_BUG;
    }
    walk->ended = walk->begun + walk->step_count + 1;
    *walk_out = walk;
    return GR_OK;
}

void gr_cost_destroy(gr_cost *walk)
{
    if (walk) {
        drop_ranks(walk);
        free(walk->begun);
        free(walk->waits);
        free(walk->from);
        free(walk->host_us);
        free(walk->ranks);
        free(walk);
    }
}

/* ---- Bounds ---------------------------------------------------------------------------------- */
static int ranks_of_host(const gr_cost *walk, int host)
{
    return walk->shape.topology ? walk->shape.topology->local_size[host] : walk->shape.world_size;
}

typedef struct walk_bounds {
    double path_us, cores_us, memory_us, network_us;
    double sending_us; /* see gr_cost_sending_us; it does not bound the time */
} walk_bounds;

/* Where a few ranks stand for all, each host is as busy as they are on average. */
static walk_bounds find_bounds(gr_cost *walk, const walk_at *at)
{
    const gr_cost_model *model = at->model;
    const gr_topology *topology = walk->shape.topology;
    int hosts = topology ? topology->host_count : 1;
    bool whole = walk->rank_count == walk->shape.world_size;
    walk_bounds bounds = {.path_us = 0};
    memset(walk->host_us, 0, HOST_FIGURES * (size_t)hosts * sizeof *walk->host_us);
    double busiest_us = 0;
    double *left = walk->host_us + hosts, *entered = left + hosts, *moved = entered + hosts;
    double *sending_us = moved + hosts;
    for (int i = 0; i < walk->rank_count; i++) {
        const walk_rank *rank = &walk->ranks[i];
        bounds.path_us = rank->clock_us > bounds.path_us ? rank->clock_us : bounds.path_us;
        busiest_us = rank->busy_us > busiest_us ? rank->busy_us : busiest_us;
        int host = whole && topology ? topology->host_of[rank->rank] : 0;
        double weight = whole ? 1 : (double)ranks_of_host(walk, 0) / walk->rank_count;
        walk->host_us[host] += weight * rank->busy_us;
        left[host] += weight * rank->left;
        entered[host] += weight * rank->entered;
        moved[host] += weight * rank->moved;
        sending_us[host] += weight * rank->sending_us;
        if (rank->sending_us > bounds.sending_us) {
            bounds.sending_us = rank->sending_us;
        }
    }
    for (uint32_t i = 0; i < walk->step_count; i++) {
        bounds.path_us = walk->ended[i] > bounds.path_us ? walk->ended[i] : bounds.path_us;
    }
    for (int host = 0; host < (whole ? hosts : 1); host++) {
        double cores =
            ranks_of_host(walk, host) < model->cores ? ranks_of_host(walk, host) : model->cores;
        double busy_us = walk->host_us[host] / (cores > 1 ? cores : 1);
        if (at->oversubscribed) {
            busy_us += UNEVEN * (busiest_us - walk->host_us[host] / ranks_of_host(walk, host));
        }
        double most = left[host] > entered[host] ? left[host] : entered[host];
        double network_us = most * model->link[GR_MODEL_BETWEEN].host_byte_us;
        double memory_us = at->far ? moved[host] * model->memory_byte_us : 0;
        double sent_us = sending_us[host] / (cores > 1 ? cores : 1);
        bounds.sending_us = sent_us > bounds.sending_us ? sent_us : bounds.sending_us;
        bounds.cores_us = busy_us > bounds.cores_us ? busy_us : bounds.cores_us;
        bounds.memory_us = memory_us > bounds.memory_us ? memory_us : bounds.memory_us;
        bounds.network_us = network_us > bounds.network_us ? network_us : bounds.network_us;
    }
    return bounds;
}

static walk_at prepare(const gr_cost *walk, const gr_cost_model *model, gr_dtype dtype,
                       size_t size_bytes, size_t segment_bytes)
{
    int most = 0;
    int hosts = gr_cost_hosts(walk);
    for (int host = 0; host < hosts; host++) {
        most = ranks_of_host(walk, host) > most ? ranks_of_host(walk, host) : most;
    }
    gr_cut cut = cut_of(walk, size_bytes);
    uint32_t segments =
        segment_bytes > 0 ? gr_cut_segments(gr_cut_block_bytes(&cut, 0), segment_bytes) : 1;
    double working = (double)size_bytes * (most < model->cores ? 1 : most / model->cores);
    bool far = working > model->cache_bytes;
    double far_us = far ? model->far_byte_us : 0;
    return (walk_at){.model = model,
                     .add_byte_us = model->add_byte_us[dtype] + far_us,
                     .copy_byte_us = model->copy_byte_us + far_us,
                     .cut = cut,
                     .segments = segments > 0 ? segments : 1,
                     .oversubscribed = most > model->cores,
                     .wait_us = model->wait_us + model->turn_us * (most / model->cores - 1),
                     .far = far};
}

static double longest(const walk_bounds *bounds)
{
    double path = bounds->path_us > bounds->cores_us ? bounds->path_us : bounds->cores_us;
    double other = bounds->memory_us > bounds->network_us ? bounds->memory_us : bounds->network_us;
    return path > other ? path : other;
}

/* The model without the costs that grow with the bytes, or without those of adding alone. */
static gr_cost_model without(const gr_cost_model *model, bool all_bytes)
{
    gr_cost_model less = *model;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        less.add_byte_us[dtype] = 0;
    }
    for (int i = 0; i < GR_MODEL_LINKS && all_bytes; i++) {
        gr_link_cost *link = &less.link[i];
        link->send_byte_us = link->recv_byte_us = link->view_byte_us = 0;
        link->wire_byte_us = link->host_byte_us = 0;
    }
    if (all_bytes) {
        less.copy_byte_us = less.far_byte_us = less.memory_byte_us = 0;
    }
    return less;
}

/* Where ranks share cores, a rank that has to wait changes places with another, which costs; and
 * messages leave together only if none was waited for between. A rank waits where it would if bytes
 * cost nothing: more bytes do not make the sender come earlier. */
static void find_waits(gr_cost *walk, const walk_at *at)
{
    gr_cost_model no_bytes = without(at->model, true);
    walk_at finding = *at;
    finding.model = &no_bytes;
    finding.add_byte_us = finding.copy_byte_us = 0;
    finding.segments = 1;
    finding.finds_waits = true;
    walk_all(walk, &finding);
}

/* False: it makes no difference where a rank waits. */
static bool waits_matter(const walk_at *at)
{
    bool matter = at->oversubscribed;
    for (int i = 0; i < GR_MODEL_LINKS; i++) {
        const gr_link_cost *link = &at->model->link[i];
        matter = matter || link->together_share != link->next_share;
    }
    return matter;
}

double gr_cost_time(gr_cost *walk, const gr_cost_model *model, gr_dtype dtype, size_t size_bytes,
                    size_t segment_bytes)
{
    walk_at at = prepare(walk, model, dtype, size_bytes, segment_bytes);
    if (waits_matter(&at)) {
        find_waits(walk, &at);
    }
    walk_all(walk, &at);
    walk_bounds bounds = find_bounds(walk, &at);
    walk->sending_us = bounds.sending_us;
    return model->start_us + longest(&bounds);
}

double gr_cost_sending_us(const gr_cost *walk)
{
    return walk->sending_us;
}

gr_prediction gr_cost_predict(gr_cost *walk, const gr_cost_model *model, gr_dtype dtype,
                              size_t size_bytes, size_t segment_bytes)
{
    gr_cost_model no_adding = without(model, false), no_bytes = without(model, true);
    double rest_us = gr_cost_time(walk, &no_adding, dtype, size_bytes, segment_bytes);
    double latency_us = gr_cost_time(walk, &no_bytes, dtype, size_bytes, segment_bytes);
    walk_at at = prepare(walk, model, dtype, size_bytes, segment_bytes);
    gr_prediction p = {.time_us = gr_cost_time(walk, model, dtype, size_bytes, segment_bytes),
                       .segments = at.segments,
                       .ranks_walked = walk->rank_count};
    /* Who is given more to wait for waits less often: a part can come out above the whole. */
    rest_us = rest_us < p.time_us ? rest_us : p.time_us;
    p.latency_us = latency_us < rest_us ? latency_us : rest_us;
    p.bandwidth_us = rest_us - p.latency_us;
    p.reduction_us = p.time_us - rest_us;
    walk_bounds bounds = find_bounds(walk, &at);
    double most_us = longest(&bounds);
    p.bound = bounds.path_us >= most_us     ? "path"
              : bounds.cores_us >= most_us  ? "cores"
              : bounds.memory_us >= most_us ? "memory"
                                            : "network";
    for (int i = 0; i < walk->rank_count; i++) {
        p.messages = walk->ranks[i].messages > p.messages ? walk->ranks[i].messages : p.messages;
        p.bytes_sent =
            walk->ranks[i].bytes_sent > p.bytes_sent ? walk->ranks[i].bytes_sent : p.bytes_sent;
    }
    return p;
}
