/* SPDX-License-Identifier: Apache-2.0 */
#include "support_double.h"
#include "base/fail.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 64, MEMORY_MAX = 256 };

typedef struct message {
    gr_frame frame;
    const uint8_t *data;
    uint64_t sum; /* of the data when it was sent */
    bool released;
} message;

/* One direction between two ranks. Tickets and holds are positions in the stream. */
typedef struct stream {
    message queue[QUEUE_MAX]; /* by position modulo QUEUE_MAX */
    uint64_t sent;            /* accepted */
    uint64_t visible;         /* arrived at the receiver */
    uint64_t taken;           /* gr_link_next */
    uint64_t finished;        /* all before are released */
    size_t read;              /* bytes of the head that were read */
    const void *reading_into;
} stream;

struct gr_link {
    gr_mesh *mesh;
    int peer;
    gr_diag diag;
    bool discard; /* data that arrive are thrown away */
    bool left;
};

struct gr_mesh {
    dbl_net *net;
    int rank;
    bool gone;     /* killed */
    bool reported; /* its loss, by gr_mesh_progress */
    gr_link *links;
    int ready_at; /* gr_mesh_next_ready has told of the peers before it */
};

struct dbl_net {
    dbl_options options;
    uint64_t state;
    int64_t now_us;
    gr_mesh *meshes;
    stream *streams; /* [from * world_size + to] */
    void *memory[MEMORY_MAX];
    int memory_count;
    char complaint[200];
    uint64_t accepted, peeks;
};

/* ---- The net --------------------------------------------------------------------------------- */
uint64_t dbl_random(dbl_net *net, uint64_t below)
{
    net->state = net->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = net->state ^ net->state >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (x ^ x >> 32) % below;
}

static bool chance(dbl_net *net, unsigned percent)
{
    return dbl_random(net, 100) < percent;
}

static void complain(dbl_net *net, const char *what, int from, int to)
{
    if (net->complaint[0] == '\0') {
        snprintf(net->complaint, sizeof net->complaint, "%s (rank %d to rank %d)", what, from, to);
    }
}

static void *need(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

dbl_net *dbl_create(const dbl_options *options)
{
    dbl_net *net = need(calloc(1, sizeof *net));
    size_t n = (size_t)options->world_size;
    net->options = *options;
    net->state = options->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    net->now_us = 1000000;
    net->meshes = need(calloc(n, sizeof *net->meshes));
    net->streams = need(calloc(n * n, sizeof *net->streams));
    for (size_t rank = 0; rank < n; rank++) {
        gr_mesh *mesh = &net->meshes[rank];
        mesh->net = net;
        mesh->rank = (int)rank;
        mesh->links = need(calloc(n, sizeof *mesh->links));
        for (size_t peer = 0; peer < n; peer++) {
            mesh->links[peer] = (gr_link){.mesh = mesh, .peer = (int)peer};
            gr_diag_clear(&mesh->links[peer].diag);
        }
    }
    return net;
}

void dbl_destroy(dbl_net *net)
{
    for (int i = 0; i < net->memory_count; i++) {
        free(net->memory[i]);
    }
    for (int rank = 0; rank < net->options.world_size; rank++) {
        free(net->meshes[rank].links);
    }
    free(net->meshes);
    free(net->streams);
    free(net);
}

gr_mesh *dbl_mesh(dbl_net *net, int rank)
{
    return &net->meshes[rank];
}

static int64_t read_now(void *arg)
{
    return ((dbl_net *)arg)->now_us;
}

gr_clock dbl_clock(dbl_net *net)
{
    return (gr_clock){.now_us = read_now, .clock_arg = net};
}

void dbl_advance(dbl_net *net, int64_t us)
{
    net->now_us += us;
}

const char *dbl_complaint(const dbl_net *net)
{
    return net->complaint[0] ? net->complaint : NULL;
}

uint64_t dbl_accepted(const dbl_net *net)
{
    return net->accepted;
}

static stream *stream_of(dbl_net *net, int from, int to)
{
    return &net->streams[from * net->options.world_size + to];
}

static stream *incoming(const gr_link *link)
{
    return stream_of(link->mesh->net, link->peer, link->mesh->rank);
}

static message *message_at(stream *s, uint64_t position)
{
    return &s->queue[position % QUEUE_MAX];
}

int dbl_unread(dbl_net *net)
{
    int unread = 0;
    for (int i = 0; i < net->options.world_size * net->options.world_size; i++) {
        stream *s = &net->streams[i];
        for (uint64_t at = s->taken; at < s->sent; at++) {
            unread += message_at(s, at)->frame.message != UINT32_MAX; /* no word of who waits */
        }
    }
    return unread;
}

/* ---- Ends ------------------------------------------------------------------------------------ */
void dbl_kill(dbl_net *net, int rank)
{
    net->meshes[rank].gone = true;
}

void dbl_leave(dbl_net *net, int rank)
{
    for (int to = 0; to < net->options.world_size; to++) {
        stream *s = stream_of(net, rank, to);
        *message_at(s, s->sent) = (message){.frame = {.kind = GR_FRAME_BYE}, .released = true};
        s->sent++;
    }
}

static bool peer_gone(const gr_link *link)
{
    return link->mesh->net->meshes[link->peer].gone;
}

static gr_status lose(gr_link *link)
{
    if (link->diag.status == GR_OK) {
        gr_status status = gr_fail_peer(&link->diag, GR_E_PEER_LOST, link->peer,
                                        "rank %d died: its connection broke", link->peer);
        return status;
    }
    return (gr_status)link->diag.status;
}

/* ---- The mesh -------------------------------------------------------------------------------- */
gr_status dbl_mesh_progress(gr_mesh *mesh, gr_diag *diag)
{
    dbl_net *net = mesh->net;
    mesh->ready_at = 0;
    for (int from = 0; from < net->options.world_size; from++) {
        stream *s = stream_of(net, from, mesh->rank);
        while (s->visible < s->sent && chance(net, 60)) {
            s->visible++;
        }
        gr_link *link = &mesh->links[from];
        if (net->meshes[from].gone && net->options.loss_in_progress && !mesh->reported &&
            s->visible == s->taken && chance(net, 30)) {
            mesh->reported = true;
            gr_status status = lose(link);
            *diag = link->diag;
            return status;
        }
    }
    return GR_OK;
}

bool dbl_mesh_next_ready(gr_mesh *mesh, int *peer_out)
{
    while (mesh->ready_at < mesh->net->options.world_size) {
        int peer = mesh->ready_at++;
        const stream *s = stream_of(mesh->net, peer, mesh->rank);
        if (peer != mesh->rank && (s->visible > s->taken || mesh->net->meshes[peer].gone)) {
            *peer_out = peer;
            return true;
        }
    }
    return false;
}

gr_link *dbl_mesh_open_link(gr_mesh *mesh, int peer, bool connect)
{
    (void)connect;
    return &mesh->links[peer];
}

bool dbl_mesh_on_demand(const gr_mesh *mesh)
{
    (void)mesh;
    return false;
}

static const gr_link_caps caps = {.payload_max_bytes = GR_FRAME_PAYLOAD_MAX};

const gr_link_caps *dbl_mesh_capabilities(const gr_mesh *mesh)
{
    (void)mesh;
    return &caps;
}

const gr_link_caps *dbl_link_capabilities(const gr_link *link)
{
    (void)link;
    return &caps;
}

bool dbl_link_is_up(const gr_link *link)
{
    (void)link;
    return true; /* an end is found by gr_link_diag */
}

uint64_t dbl_peeks(const dbl_net *net)
{
    return net->peeks;
}

gr_link *dbl_mesh_link(gr_mesh *mesh, int peer)
{
    return &mesh->links[peer];
}

void dbl_mesh_wait(gr_mesh *mesh, int64_t deadline_us)
{
    /* The other ranks stand still meanwhile: a millisecond would be unfair to their deadlines. */
    int64_t next_us = mesh->net->now_us + 1;
    mesh->net->now_us = deadline_us < next_us ? deadline_us : next_us;
}

gr_status dbl_mesh_alloc(gr_mesh *mesh, size_t size_bytes, void **mem_out)
{
    dbl_net *net = mesh->net;
    if (net->memory_count == MEMORY_MAX) {
        return GR_E_NO_MEMORY;
    }
    *mem_out = need(calloc(1, size_bytes));
    net->memory[net->memory_count++] = *mem_out;
    return GR_OK;
}

void dbl_mesh_free(gr_mesh *mesh, void *mem)
{
    dbl_net *net = mesh->net;
    for (int i = 0; i < net->memory_count; i++) {
        if (net->memory[i] == mem) {
            net->memory[i] = net->memory[--net->memory_count];
            free(mem);
            return;
        }
    }
    complain(net, "memory is freed that was not allocated here", mesh->rank, mesh->rank);
}

void dbl_mesh_keep(gr_mesh *mesh)
{
    (void)mesh; /* peers get copies here: nobody reads the memory of another */
}

/* ---- Sending --------------------------------------------------------------------------------- */
gr_status dbl_link_send(gr_link *link, const gr_frame *frame, const void *data,
                        uint64_t *ticket_out)
{
    dbl_net *net = link->mesh->net;
    stream *s = stream_of(net, link->mesh->rank, link->peer);
    if (link->diag.status != GR_OK || (peer_gone(link) && chance(net, 50))) {
        return lose(link);
    }
    /* Strict: what the receiver holds takes room as well. */
    if (s->sent - s->finished >= (uint64_t)net->options.room || chance(net, 20)) {
        return GR_E_AGAIN;
    }
    message *m = message_at(s, s->sent);
    *m = (message){.frame = *frame, .data = data};
    m->sum = gr_hash64(data, frame->size_bytes, 1);
    *ticket_out = s->sent++;
    net->accepted++;
    return GR_OK;
}

bool dbl_link_sent(gr_link *link, uint64_t ticket)
{
    dbl_net *net = link->mesh->net;
    stream *s = stream_of(net, link->mesh->rank, link->peer);
    if (ticket >= s->sent) {
        complain(net, "a ticket that was never given out", link->mesh->rank, link->peer);
    }
    return ticket < s->finished && (link->diag.status != GR_OK || chance(net, 80));
}

/* ---- Receiving ------------------------------------------------------------------------------- */
/* As the product's links do: the failure is the communicator's, not this peer's. */
static gr_status break_by_abort(gr_link *link, const message *m)
{
    gr_status status = -(gr_status)m->frame.message;
    status = gr_status_scope(status) < GR_SCOPE_COMM ? GR_E_COMM_BROKEN : status;
    return gr_fail_peer(&link->diag, status, (int)m->frame.segment, "%.*s",
                        (int)m->frame.size_bytes, (const char *)m->data);
}

static void drop(stream *s)
{
    message_at(s, s->taken)->released = true;
    s->taken++;
    s->read = 0;
    while (s->finished < s->taken && message_at(s, s->finished)->released) {
        s->finished++;
    }
}

/* Passes over data that nobody wants. */
static void pass_over(gr_link *link)
{
    stream *s = incoming(link);
    while (s->taken < s->visible) {
        const message *m = message_at(s, s->taken);
        if (m->frame.kind != GR_FRAME_DATA || !link->discard) {
            return;
        }
        drop(s);
    }
}

void dbl_link_discard(gr_link *link)
{
    link->discard = true;
    pass_over(link);
}

gr_status dbl_link_peek(gr_link *link, gr_frame *frame_out)
{
    dbl_net *net = link->mesh->net;
    stream *s = incoming(link);
    net->peeks++;
    pass_over(link);
    if (s->taken == s->visible) {
        if (link->diag.status != GR_OK) {
            return (gr_status)link->diag.status;
        }
        return peer_gone(link) && s->visible == s->sent && chance(net, 50) ? lose(link)
                                                                           : GR_PENDING;
    }
    message *m = message_at(s, s->taken);
    if (m->frame.kind == GR_FRAME_ABORT) {
        s->taken++;
        return break_by_abort(link, m);
    }
    if (m->frame.kind == GR_FRAME_BYE) {
        link->left = true;
        return gr_fail_peer(&link->diag, GR_E_PEER_LOST, link->peer, "rank %d has left in order",
                            link->peer);
    }
    *frame_out = m->frame;
    return GR_OK;
}

gr_status dbl_link_view(gr_link *link, const void **data_out)
{
    dbl_net *net = link->mesh->net;
    stream *s = incoming(link);
    if (s->taken == s->visible || s->read > 0) {
        complain(net, "a view of no message, or of one being read", link->peer, link->mesh->rank);
    }
    if (!net->options.views || chance(net, 20)) {
        return GR_E_UNSUPPORTED;
    }
    *data_out = message_at(s, s->taken)->data;
    return GR_OK;
}

static void check_sum(gr_link *link, const message *m, const void *data)
{
    if (gr_hash64(data, m->frame.size_bytes, 1) != m->sum) {
        complain(link->mesh->net, "data changed between send and sent", link->peer,
                 link->mesh->rank);
    }
}

gr_status dbl_link_read(gr_link *link, void *dst)
{
    dbl_net *net = link->mesh->net;
    stream *s = incoming(link);
    message *m = message_at(s, s->taken);
    if (s->taken == s->visible || (s->read > 0 && s->reading_into != dst)) {
        complain(net, "a read of no message, or into another place", link->peer, link->mesh->rank);
    }
    s->reading_into = dst;
    size_t left = m->frame.size_bytes - s->read;
    size_t part = left > 0 && chance(net, 40) ? dbl_random(net, left) : left;
    if (part > 0) {
        memcpy((uint8_t *)dst + s->read, m->data + s->read, part);
        s->read += part;
    }
    if (s->read < m->frame.size_bytes) {
        return GR_PENDING;
    }
    check_sum(link, m, dst);
    return GR_OK;
}

static void finish(gr_link *link, uint64_t position)
{
    stream *s = incoming(link);
    message *m = message_at(s, position);
    check_sum(link, m, m->data);
    m->released = true;
    while (s->finished < s->taken && message_at(s, s->finished)->released) {
        s->finished++;
    }
}

void dbl_link_next(gr_link *link, uint64_t *hold_out)
{
    stream *s = incoming(link);
    uint64_t position = s->taken++;
    s->read = 0;
    s->reading_into = NULL;
    if (hold_out) {
        *hold_out = position;
    } else {
        finish(link, position);
    }
}

void dbl_link_release(gr_link *link, uint64_t hold)
{
    stream *s = incoming(link);
    if (hold >= s->taken || message_at(s, hold)->released) {
        complain(link->mesh->net, "a view released twice", link->peer, link->mesh->rank);
    }
    finish(link, hold);
}

const gr_diag *dbl_link_diag(const gr_link *link)
{
    return &link->diag;
}

bool dbl_link_has_left(const gr_link *link)
{
    return link->left;
}

void dbl_link_expect(gr_link *link)
{
    (void)link;
}
