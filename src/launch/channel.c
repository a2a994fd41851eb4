/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/channel.h"

#include "base/clock.h"
#include "base/codec.h"
#include "base/hash.h"
#include "launch/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAGIC_BYTES = 4,
    VERSION = 1,
    IN_BYTES = 2 * (GR_PACKET_DATA_BYTES_MAX + GR_PACKET_HEADER_BYTES),
    OUT_BYTES = 256 * 1024
};

/* Nothing that a login script prints. */
static const uint8_t magic[MAGIC_BYTES] = {0x00, 'G', 'R', 0xfe};

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : errno;
}

int gr_channel_init(gr_channel *channel, int in_fd, int out_fd, gr_tls *tls)
{
    *channel = (gr_channel){.in_fd = in_fd, .out_fd = out_fd, .tls = tls, .more = tls != NULL};
    int error = set_nonblocking(in_fd);
    if (error == 0) {
        error = set_nonblocking(out_fd);
    }
    if (error != 0) {
        return error;
    }
    channel->in = malloc(IN_BYTES);
    channel->out = malloc(OUT_BYTES);
    if (channel->in == NULL || channel->out == NULL) {
        free(channel->in);
        free(channel->out);
        channel->in = channel->out = NULL;
        return ENOMEM;
    }
    channel->heard_us = channel->said_us = gr_now_ns() / 1000;
    return 0;
}

void gr_channel_fini(gr_channel *channel)
{
    if (channel->in != NULL) {
        gr_wipe(channel->in, IN_BYTES);
        gr_wipe(channel->out, OUT_BYTES);
    }
    free(channel->in);
    free(channel->out);
    channel->in = channel->out = NULL;
}

static ssize_t get_bytes(gr_channel *channel, uint8_t *to, size_t room)
{
    const struct iovec part = {.iov_base = to, .iov_len = room};
    ssize_t got =
        channel->tls != NULL ? gr_tls_recv(channel->tls, &part, 1) : read(channel->in_fd, to, room);
    channel->more = channel->tls != NULL && got == (ssize_t)room;
    return got;
}

static ssize_t put_bytes(gr_channel *channel, uint8_t *from, size_t size)
{
    const struct iovec part = {.iov_base = from, .iov_len = size};
    return channel->tls != NULL ? gr_tls_send(channel->tls, &part, size > 0 ? 1 : 0)
                                : write(channel->out_fd, from, size);
}

int gr_channel_fill(gr_channel *channel)
{
    if (channel->in_first > 0) {
        memmove(channel->in, channel->in + channel->in_first, channel->in_used);
        channel->in_first = 0;
    }
    size_t room = IN_BYTES - channel->in_used;
    if (room == 0) {
        return EAGAIN; /* packets are taken out first */
    }
    ssize_t got;
    do {
        got = get_bytes(channel, channel->in + channel->in_used, room);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        return got == 0 || errno == ECONNRESET ? EPIPE : errno;
    }
    channel->in_used += (size_t)got;
    channel->heard_us = gr_now_ns() / 1000;
    return 0;
}

bool gr_channel_is_silent(const gr_channel *channel, int64_t now_us, int64_t silence_us)
{
    struct pollfd in = {.fd = channel->in_fd, .events = POLLIN};
    return now_us >= channel->heard_us + silence_us && !channel->more && poll(&in, 1, 0) == 0;
}

/* magic 4 bytes, version u8, kind u8, zero u16, number u32, size u32 */
bool gr_channel_next(gr_channel *channel, gr_packet *packet_out, int *error_out)
{
    uint8_t *at = channel->in + channel->in_first;
    *error_out = 0;
    if (channel->in_used < GR_PACKET_HEADER_BYTES) {
        return false;
    }
    uint32_t size = gr_get_u32(at + 12);
    if (memcmp(at, magic, MAGIC_BYTES) != 0) {
        *error_out = EPROTO;
    } else if (at[4] != VERSION) {
        *error_out = EPROTONOSUPPORT;
    } else if (at[5] < GR_PACKET_HELLO || at[5] >= GR_PACKET_KIND_END ||
               size > GR_PACKET_DATA_BYTES_MAX) {
        *error_out = EPROTO;
    }
    if (*error_out != 0 || channel->in_used < GR_PACKET_HEADER_BYTES + size) {
        return false;
    }
    *packet_out = (gr_packet){.kind = at[5],
                              .number = gr_get_u32(at + 8),
                              .size_bytes = size,
                              .data = at + GR_PACKET_HEADER_BYTES};
    channel->in_first += GR_PACKET_HEADER_BYTES + size;
    channel->in_used -= GR_PACKET_HEADER_BYTES + size;
    return true;
}

bool gr_channel_skip_noise(gr_channel *channel)
{
    while (channel->in_used >= MAGIC_BYTES &&
           memcmp(channel->in + channel->in_first, magic, MAGIC_BYTES) != 0) {
        channel->in_first++;
        channel->in_used--;
    }
    return channel->in_used >= MAGIC_BYTES;
}

static size_t room_of(const gr_channel *channel)
{
    return OUT_BYTES - channel->out_used;
}

bool gr_channel_has_room(const gr_channel *channel)
{
    return room_of(channel) >=
           GR_PACKET_HEADER_BYTES + GR_PACKET_DATA_BYTES_MAX + GR_CHANNEL_RESERVE_BYTES;
}

bool gr_channel_has_room_for_message(const gr_channel *channel)
{
    return room_of(channel) >= GR_PACKET_HEADER_BYTES + GR_AGENT_MESSAGE_BYTES;
}

bool gr_channel_put(gr_channel *channel, int kind, uint32_t number, const void *data,
                    size_t size_bytes)
{
    if (size_bytes > GR_PACKET_DATA_BYTES_MAX ||
        room_of(channel) < GR_PACKET_HEADER_BYTES + size_bytes) {
        return false;
    }
    if (channel->out_first > 0) {
        memmove(channel->out, channel->out + channel->out_first, channel->out_used);
        gr_wipe(channel->out + channel->out_used, channel->out_first);
        channel->out_first = 0;
    }
    uint8_t *at = channel->out + channel->out_used;
    memcpy(at, magic, MAGIC_BYTES);
    at[4] = VERSION;
    at[5] = (uint8_t)kind;
    gr_put_u16(at + 6, 0);
    gr_put_u32(at + 8, number);
    gr_put_u32(at + 12, (uint32_t)size_bytes);
    if (size_bytes > 0) {
        memcpy(at + GR_PACKET_HEADER_BYTES, data, size_bytes);
    }
    channel->out_used += GR_PACKET_HEADER_BYTES + size_bytes;
    return true;
}

int gr_channel_flush(gr_channel *channel)
{
    while (channel->out_used > 0) {
        ssize_t written = put_bytes(channel, channel->out + channel->out_first, channel->out_used);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return errno == EAGAIN ? 0 : errno;
        }
        gr_wipe(channel->out + channel->out_first, (size_t)written);
        channel->out_first += (size_t)written;
        channel->out_used -= (size_t)written;
        channel->said_us = gr_now_ns() / 1000;
    }
    channel->out_first = 0;
    if (gr_channel_holds(channel) && put_bytes(channel, NULL, 0) < 0 && errno != EAGAIN) {
        return errno;
    }
    return 0;
}

bool gr_channel_holds(const gr_channel *channel)
{
    return channel->out_used > 0 || (channel->tls != NULL && gr_tls_holds(channel->tls));
}
