/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/net/net.h"

#include "base/fail.h"
#include "base/hash.h"
#include "link/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static gr_sim_net *net_of(const gr_link *link)
{
    return ((const gr_sim_mesh *)link->mesh)->net;
}

static gr_sim_stream *incoming(const gr_link *link)
{
    return gr_sim_stream_of(net_of(link), link->peer, link->mesh->rank);
}

static gr_sim_stream *outgoing(const gr_link *link)
{
    return gr_sim_stream_of(net_of(link), link->mesh->rank, link->peer);
}

/* ---- The mesh -------------------------------------------------------------------------------- */
static gr_status open_mesh(gr_mesh *base, const gr_mesh_config *config, gr_diag *diag)
{
    gr_sim_mesh *mesh = (gr_sim_mesh *)base;
    gr_sim_net *net = config->net;
    if (net == NULL || net->config.world_size != base->world_size ||
        net->ranks[base->rank].mesh != NULL || net->ranks[base->rank].gone) {
        return gr_fail(diag, GR_E_INVALID,
                       "rank %d cannot join the simulated network: there is none, it is of another "
                       "size, or the rank has been in it already",
                       base->rank);
    }
    for (int peer = 0; peer < base->world_size; peer++) {
        if (peer == base->rank) {
            continue;
        }
        gr_link *link = calloc(1, sizeof *link);
        if (link == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a link to rank %d", peer);
        }
        link->mesh = base;
        link->ops = base->ops;
        link->peer = peer;
        link->fd = -1;
        link->rails = 1;
        link->state = GR_LINK_UP;
        gr_diag_clear(&link->diag);
        gr_mesh_add_link(base, link);
        base->links_up++;
    }
    mesh->net = net;
    net->ranks[base->rank].mesh = base;
    return GR_OK;
}

static void close_mesh(gr_mesh *base)
{
    gr_sim_mesh *mesh = (gr_sim_mesh *)base;
    if (mesh->net != NULL) {
        gr_sim_left(mesh->net, base->rank);
        mesh->net->ranks[base->rank].mesh = NULL;
    }
}

static void detach(gr_link *link)
{
    (void)link;
}

static void note_freed(gr_sim_net *net, gr_sim_stream *out)
{
    while (out->freed < out->sent &&
           gr_sim_message_at(net, out, out->freed)->freed_us <= net->now_us) {
        out->freed++;
    }
}

static void look(gr_link *link)
{
    gr_sim_net *net = net_of(link);
    note_freed(net, outgoing(link));
    gr_sim_stream *in = incoming(link);
    while (link->state == GR_LINK_UP && in->seen < in->sent) {
        const gr_sim_message *message = gr_sim_message_at(net, in, in->seen);
        if (message->arrives_us > net->now_us) {
            break;
        }
        in->seen++;
        gr_link_set_ready(link);
        if (message->frame.kind == GR_FRAME_BYE) {
            gr_link_left(link);
        } else if (message->frame.kind == GR_FRAME_ABORT) {
            gr_link_aborted(link, &message->frame, (const char *)message->data);
        }
    }
    if (link->state == GR_LINK_UP && in->end_us <= net->now_us) {
        gr_link_closed(link, in->cut ? ETIMEDOUT : 0);
    }
}

static void progress(gr_mesh *mesh)
{
    gr_sim_net *net = ((gr_sim_mesh *)mesh)->net;
    net->ranks[mesh->rank].again_us = GR_NEVER;
    for (int peer = 0; peer < mesh->world_size; peer++) {
        if (mesh->links[peer] != NULL) {
            look(mesh->links[peer]);
        }
    }
}

static void wait_for_news(gr_mesh *mesh, int64_t now_us, int64_t until_us)
{
    gr_sim_net *net = ((gr_sim_mesh *)mesh)->net;
    (void)now_us;
    if (net->wait != NULL) {
        net->wait(net->wait_arg, mesh->rank, until_us);
        return;
    }
    int64_t next_us = gr_sim_next_us(net, mesh->rank);
    gr_sim_advance(net, next_us < until_us ? next_us : until_us);
}

static void wake(gr_mesh *mesh)
{
    (void)mesh; /* it sleeps in its own thread only */
}

/* ---- Sending --------------------------------------------------------------------------------- */
static gr_status enqueue(gr_link *link, const gr_frame *frame, const void *data,
                         uint64_t *ticket_out)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *out = outgoing(link);
    gr_sim_message *message = gr_sim_message_at(net, out, out->sent);
    uint8_t *own = NULL;
    if (frame->size_bytes > 0 && (net->config.copies || frame->kind != GR_FRAME_DATA)) {
        own = malloc(frame->size_bytes);
        if (own == NULL) {
            return GR_E_NO_MEMORY;
        }
        memcpy(own, data, frame->size_bytes);
        link->mesh->stats.bytes_copied += frame->size_bytes;
    }
    free(message->own);
    *message = (gr_sim_message){.frame = *frame,
                                .data = own != NULL ? own : data,
                                .own = own,
                                .arrives_us = GR_NEVER,
                                .freed_us = GR_NEVER,
                                .limit = frame->size_bytes};
    message->sum = frame->size_bytes > 0 ? gr_hash64(message->data, frame->size_bytes, 1) : 0;
    if (!out->cut) {
        int64_t at_us = net->now_us + gr_sim_delay_us(net);
        out->last_us = at_us > out->last_us ? at_us : out->last_us;
        message->arrives_us = out->last_us;
    }
    *ticket_out = out->sent++;
    net->accepted++;
    link->mesh->stats.messages_sent++;
    link->mesh->stats.bytes_sent += frame->size_bytes;
    return GR_OK;
}

static gr_status send_message(gr_link *link, const gr_frame *frame, const void *data,
                              uint64_t *ticket_out)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *out = outgoing(link);
    gr_sim_rank *rank = &net->ranks[link->mesh->rank];
    note_freed(net, out);
    bool last_words = frame->kind != GR_FRAME_DATA;
    uint64_t room = (uint64_t)net->config.room + (last_words ? GR_SIM_RESERVED : 0);
    if (out->sent - out->freed >= room) {
        return GR_E_AGAIN;
    }
    if (!last_words && gr_sim_chance(net, net->config.refuse_percent)) {
        int64_t again_us =
            net->now_us + 1 + (int64_t)gr_sim_random(net, (uint64_t)net->config.delay_us + 1);
        rank->again_us = again_us < rank->again_us ? again_us : rank->again_us;
        return GR_E_AGAIN;
    }
    return enqueue(link, frame, data, ticket_out);
}

/* What the net has copied needs no release; the rest finishes in order. */
static bool is_sent(gr_link *link, uint64_t ticket)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *out = outgoing(link);
    if (ticket >= out->sent && !net->ranks[link->mesh->rank].gone) {
        gr_sim_complain(net, "a ticket that was never given out", link->mesh->rank, link->peer);
    }
    note_freed(net, out);
    for (uint64_t at = out->freed; at <= ticket && at < out->sent; at++) {
        const gr_sim_message *message = gr_sim_message_at(net, out, at);
        if (message->own == NULL && message->frame.size_bytes > 0) {
            return false;
        }
    }
    return true;
}

/* Buffers are their owners' again: the net keeps a copy of what is under way. */
static void discard(gr_link *link)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *out = outgoing(link);
    for (uint64_t at = out->freed; at < out->sent; at++) {
        gr_sim_message *message = gr_sim_message_at(net, out, at);
        uint32_t size_bytes = message->frame.size_bytes;
        if (message->own != NULL || size_bytes == 0 || message->released) {
            continue;
        }
        message->own = malloc(size_bytes);
        if (message->own == NULL) {
            gr_sim_complain(net, "no memory for what is under way", link->mesh->rank, link->peer);
            return;
        }
        memcpy(message->own, message->data, size_bytes);
        message->data = message->own;
    }
}

static void leave(gr_link *link)
{
    gr_sim_net *net = net_of(link);
    uint64_t ticket;
    if (!net->ranks[link->mesh->rank].gone) {
        (void)!send_message(link, &(gr_frame){.kind = GR_FRAME_BYE}, NULL, &ticket);
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */
static void next(gr_link *link, uint64_t *hold_out);

static gr_status peek(gr_link *link, gr_frame *frame_out)
{
    gr_sim_stream *in = incoming(link);
    const gr_sim_message *message = gr_sim_message_at(net_of(link), in, in->taken);
    if (in->taken == in->seen) {
        return GR_PENDING;
    }
    if (message->frame.kind == GR_FRAME_BYE || message->frame.kind == GR_FRAME_ABORT) {
        return GR_PENDING; /* the link has ended with it */
    }
    *frame_out = message->frame;
    return GR_OK;
}

static void complain(const gr_link *link, const char *what)
{
    gr_sim_complain(net_of(link), what, link->peer, link->mesh->rank);
}

static gr_status view(gr_link *link, const void **data_out)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *in = incoming(link);
    const gr_sim_message *message = gr_sim_message_at(net, in, in->taken);
    if (in->taken == in->seen || in->read_bytes > 0) {
        complain(link, "a view of no message, or of one that is being read");
    }
    if (message->limit < message->frame.size_bytes ||
        !gr_sim_chance(net, net->config.view_percent)) {
        return GR_E_UNSUPPORTED;
    }
    *data_out = message->data;
    return GR_OK;
}

/* The sender borrowed its data out until it is told otherwise: it must be as it was. */
static void check_sum(const gr_link *link, const gr_sim_message *message, const void *data)
{
    if (message->frame.size_bytes > 0 &&
        gr_hash64(data, message->frame.size_bytes, 1) != message->sum) {
        complain(link, "data that changed between gr_link_send and gr_link_sent");
    }
}

static gr_status read_message(gr_link *link, void *dst)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *in = incoming(link);
    const gr_sim_message *message = gr_sim_message_at(net, in, in->taken);
    if (in->taken == in->seen || (in->read_bytes > 0 && in->reading != dst)) {
        complain(link, "a read of no message, or of the same one to another place");
    }
    bool up = link->state == GR_LINK_UP;
    if (up && in->read_bytes > 0 && net->now_us < in->more_us) {
        return GR_PENDING;
    }
    in->reading = dst;
    uint32_t left = message->limit - in->read_bytes;
    uint32_t part = left;
    if (up && left > 1 && gr_sim_chance(net, net->config.pieces_percent)) {
        part = 1 + (uint32_t)gr_sim_random(net, left - 1);
        in->more_us =
            net->now_us + 1 + (int64_t)gr_sim_random(net, (uint64_t)net->config.delay_us / 4 + 1);
    }
    if (part > 0) {
        memcpy((uint8_t *)dst + in->read_bytes, message->data + in->read_bytes, part);
        in->read_bytes += part;
    }
    if (in->read_bytes < message->frame.size_bytes) {
        in->more_us = in->read_bytes == message->limit ? GR_NEVER : in->more_us;
        return GR_PENDING;
    }
    check_sum(link, message, dst);
    return GR_OK;
}

static void release(gr_link *link, uint64_t position)
{
    gr_sim_net *net = net_of(link);
    gr_sim_stream *in = incoming(link);
    gr_sim_message *message = gr_sim_message_at(net, in, position);
    if (position >= in->taken || message->released) {
        complain(link, "a view that was never held, or is released twice");
        return;
    }
    if (net->ranks[link->peer].mesh != NULL) {
        check_sum(link, message, message->data);
    }
    message->released = true;
    if (!outgoing(link)->cut) {
        message->freed_us = net->now_us + gr_sim_delay_us(net);
    }
}

static void next(gr_link *link, uint64_t *hold_out)
{
    gr_sim_stream *in = incoming(link);
    if (in->taken == in->seen) {
        complain(link, "gr_link_next without a message");
        return;
    }
    uint64_t position = in->taken++;
    in->read_bytes = 0;
    if (hold_out != NULL) {
        *hold_out = position;
    } else {
        release(link, position);
    }
}

const gr_link_ops gr_sim_ops = {
    .name = "sim",
    .caps = {.payload_max_bytes = GR_FRAME_PAYLOAD_MAX},
    .mesh_bytes = sizeof(gr_sim_mesh),
    .link_bytes = sizeof(gr_link),
    .inside = true,
    .open = open_mesh,
    .close = close_mesh,
    .detach = detach,
    .leave = leave,
    .progress = progress,
    .wait = wait_for_news,
    .wake = wake,
    .send = send_message,
    .sent = is_sent,
    .peek = peek,
    .view = view,
    .read = read_message,
    .next = next,
    .release = release,
    .discard = discard,
};
