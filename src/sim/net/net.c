/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/net/net.h"

#include "base/fail.h"

#include <stdio.h>
#include <stdlib.h>

enum { START_US = 1000000 };

/* ---- Random numbers -------------------------------------------------------------------------- */
uint64_t gr_sim_random(gr_sim_net *net, uint64_t below)
{
    /* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
    uint64_t x = net->state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return below > 0 ? x % below : 0;
}

bool gr_sim_chance(gr_sim_net *net, int percent)
{
    return percent > 0 && gr_sim_random(net, 100) < (uint64_t)percent;
}

static int64_t random_us(gr_sim_net *net, int64_t most_us)
{
    return (int64_t)gr_sim_random(net, (uint64_t)most_us + 1);
}

int64_t gr_sim_delay_us(gr_sim_net *net)
{
    const gr_sim_config *config = &net->config;
    int64_t delay_us = config->delay_us + random_us(net, config->jitter_us);
    return gr_sim_chance(net, config->stall_percent) ? delay_us + random_us(net, config->stall_us)
                                                     : delay_us;
}

void gr_sim_complain(gr_sim_net *net, const char *what, int from, int to)
{
    if (net->complaint[0] == '\0') {
        snprintf(net->complaint, sizeof net->complaint, "%s (rank %d to rank %d)", what, from, to);
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */
static bool config_valid(const gr_sim_config *config)
{
    return config->world_size >= 1 && config->world_size <= GR_MESH_WORLD_MAX &&
           config->room >= 1 && config->room <= GR_SIM_ROOM_MAX && config->delay_us >= 0 &&
           config->jitter_us >= 0 && config->stall_us >= 0 && config->notice_us >= 0 &&
           config->silence_us >= 0 && config->refuse_percent < 100 && config->pieces_percent < 100;
}

gr_status gr_sim_net_create(const gr_sim_config *config, gr_sim_net **net_out, gr_diag *diag)
{
    if (!config_valid(config)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a simulated network needs 1 to %d ranks, room for 1 to %d messages on a "
                       "link, times that are not negative, and less than 100 %% of refusals",
                       GR_MESH_WORLD_MAX, GR_SIM_ROOM_MAX);
    }
    size_t ranks = (size_t)config->world_size;
    uint32_t ring_size = 1;
    while (ring_size < (uint32_t)config->room + GR_SIM_RESERVED) {
        ring_size *= 2;
    }
    gr_sim_net *net = calloc(1, sizeof *net);
    if (net == NULL) {
        goto undo_nothing;
    }
    net->streams = calloc(ranks * ranks, sizeof *net->streams);
    net->messages = calloc(ranks * ranks * ring_size, sizeof *net->messages);
    net->ranks = calloc(ranks, sizeof *net->ranks);
    if (net->streams == NULL || net->messages == NULL || net->ranks == NULL) {
        goto undo_net;
    }
    net->config = *config;
    net->state = config->seed * UINT64_C(0xd1342543de82ef95) + 1;
    net->now_us = START_US;
    net->ring_size = ring_size;
    for (size_t i = 0; i < ranks * ranks; i++) {
        net->streams[i].ring = &net->messages[i * ring_size];
        net->streams[i].end_us = GR_NEVER;
    }
    for (size_t i = 0; i < ranks; i++) {
        net->ranks[i].again_us = GR_NEVER;
    }
    *net_out = net;
    return GR_OK;

undo_net:
    gr_sim_net_destroy(net);
undo_nothing:
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a simulated network of %zu ranks", ranks);
}

void gr_sim_net_destroy(gr_sim_net *net)
{
    if (net == NULL) {
        return;
    }
    size_t ranks = (size_t)net->config.world_size;
    for (size_t i = 0; net->messages != NULL && i < ranks * ranks * net->ring_size; i++) {
        free(net->messages[i].own);
    }
    free(net->ranks);
    free(net->messages);
    free(net->streams);
    free(net);
}

/* ---- Time ------------------------------------------------------------------------------------ */
static int64_t read_now_us(void *clock_arg)
{
    return ((const gr_sim_net *)clock_arg)->now_us;
}

gr_clock gr_sim_clock(gr_sim_net *net)
{
    return (gr_clock){.now_us = read_now_us, .clock_arg = net};
}

int64_t gr_sim_now_us(const gr_sim_net *net)
{
    return net->now_us;
}

void gr_sim_advance(gr_sim_net *net, int64_t to_us)
{
    if (to_us > net->now_us && to_us != GR_NEVER) {
        net->now_us = to_us;
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t gr_sim_next_us(gr_sim_net *net, int rank)
{
    int64_t next_us = net->ranks[rank].again_us;
    const gr_mesh *mesh = net->ranks[rank].mesh;
    for (int peer = 0; peer < net->config.world_size && mesh != NULL; peer++) {
        if (mesh->links[peer] == NULL || mesh->links[peer]->state != GR_LINK_UP) {
            continue;
        }
        const gr_sim_stream *in = gr_sim_stream_of(net, peer, rank);
        if (in->seen < in->sent) {
            next_us = earlier(next_us, gr_sim_message_at(net, in, in->seen)->arrives_us);
        }
        if (in->read_bytes > 0) {
            next_us = earlier(next_us, in->more_us);
        }
        next_us = earlier(next_us, in->end_us);
        const gr_sim_stream *out = gr_sim_stream_of(net, rank, peer);
        if (out->freed < out->sent) {
            next_us = earlier(next_us, gr_sim_message_at(net, out, out->freed)->freed_us);
        }
    }
    return next_us;
}

void gr_sim_on_wait(gr_sim_net *net, gr_sim_wait *wait, void *wait_arg)
{
    net->wait = wait;
    net->wait_arg = wait_arg;
}

/* ---- Faults ---------------------------------------------------------------------------------- */
/* Of the messages that nobody can have looked at yet, the last ones are lost; of the first of these
 * a part may come. */
static void lose_tail(gr_sim_net *net, gr_sim_stream *stream)
{
    uint64_t open = stream->sent - stream->seen;
    if (open == 0) {
        return;
    }
    uint64_t kept = stream->seen + gr_sim_random(net, open + 1);
    gr_sim_message *torn = gr_sim_message_at(net, stream, kept);
    bool part = kept < stream->sent && torn->frame.kind == GR_FRAME_DATA &&
                torn->frame.size_bytes > 1 && gr_sim_chance(net, 50);
    if (part) {
        torn->limit = (uint32_t)gr_sim_random(net, torn->frame.size_bytes);
    }
    stream->sent = kept + part;
}

void gr_sim_kill(gr_sim_net *net, int rank)
{
    if (net->ranks[rank].gone) {
        return;
    }
    net->ranks[rank].gone = true;
    for (int peer = 0; peer < net->config.world_size; peer++) {
        gr_sim_stream *stream = gr_sim_stream_of(net, rank, peer);
        if (peer != rank) {
            lose_tail(net, stream);
            stream->end_us =
                earlier(stream->end_us, net->now_us + random_us(net, net->config.notice_us));
        }
    }
}

void gr_sim_left(gr_sim_net *net, int rank)
{
    if (net->ranks[rank].gone) {
        return;
    }
    net->ranks[rank].gone = true;
    for (int peer = 0; peer < net->config.world_size; peer++) {
        gr_sim_stream *stream = gr_sim_stream_of(net, rank, peer);
        if (peer != rank && !stream->cut) {
            int64_t end_us = net->now_us + gr_sim_delay_us(net);
            end_us =
                stream->sent > stream->seen && stream->last_us > end_us ? stream->last_us : end_us;
            stream->end_us = earlier(stream->end_us, end_us);
        }
    }
}

void gr_sim_partition(gr_sim_net *net, const uint8_t *side_of_rank)
{
    for (int from = 0; from < net->config.world_size; from++) {
        for (int to = 0; to < net->config.world_size; to++) {
            gr_sim_stream *stream = gr_sim_stream_of(net, from, to);
            if (side_of_rank[from] == side_of_rank[to]) {
                continue;
            }
            stream->cut = true;
            for (uint64_t at = stream->seen; at < stream->sent; at++) {
                gr_sim_message *message = gr_sim_message_at(net, stream, at);
                if (message->arrives_us > net->now_us) {
                    message->arrives_us = GR_NEVER;
                }
            }
            /* The word that the sender is gone does not pass either. */
            if (stream->end_us > net->now_us) {
                stream->end_us =
                    net->now_us + net->config.silence_us + random_us(net, net->config.notice_us);
            }
        }
    }
}

void gr_sim_heal(gr_sim_net *net)
{
    for (int from = 0; from < net->config.world_size; from++) {
        for (int to = 0; to < net->config.world_size; to++) {
            gr_sim_stream *stream = gr_sim_stream_of(net, from, to);
            if (!stream->cut) {
                continue;
            }
            stream->cut = false;
            for (uint64_t at = stream->seen; at < stream->sent; at++) {
                gr_sim_message *message = gr_sim_message_at(net, stream, at);
                if (message->arrives_us == GR_NEVER) {
                    int64_t arrives_us = net->now_us + gr_sim_delay_us(net);
                    stream->last_us = arrives_us > stream->last_us ? arrives_us : stream->last_us;
                    message->arrives_us = stream->last_us;
                }
            }
            for (uint64_t at = stream->freed; at < stream->taken; at++) {
                gr_sim_message *message = gr_sim_message_at(net, stream, at);
                if (message->released && message->freed_us == GR_NEVER) {
                    message->freed_us = net->now_us + gr_sim_delay_us(net);
                }
            }
            /* A side that has given up is found out by the other as soon as the two can talk. */
            bool given_up = stream->end_us <= net->now_us;
            bool other_gave_up = gr_sim_stream_of(net, to, from)->end_us <= net->now_us;
            if (!given_up) {
                int64_t end_us = net->now_us + random_us(net, net->config.notice_us);
                end_us = stream->last_us > end_us ? stream->last_us : end_us;
                stream->end_us = other_gave_up || net->ranks[from].gone ? end_us : GR_NEVER;
            }
        }
    }
}

void gr_sim_break(gr_sim_net *net, int from, int to)
{
    gr_sim_stream *stream = gr_sim_stream_of(net, from, to);
    stream->end_us = earlier(stream->end_us, net->now_us + random_us(net, net->config.notice_us));
}

/* ---- What was seen --------------------------------------------------------------------------- */
const char *gr_sim_complaint(const gr_sim_net *net)
{
    return net->complaint[0] != '\0' ? net->complaint : NULL;
}

uint64_t gr_sim_messages(const gr_sim_net *net)
{
    return net->accepted;
}
