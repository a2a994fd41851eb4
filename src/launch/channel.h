/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_CHANNEL_H
#define GR_LAUNCH_CHANNEL_H

/* Packets over a byte stream (the stdin and stdout of ssh, or a socket with TLS), non-blocking, in
 * memory that is bounded from the start. Both ends of the way to another host use it. */

#include "link/tls.h"

typedef enum gr_packet_kind {
    /* from the host, first of all: under which address it sees the launcher, as text */
    GR_PACKET_HELLO = 1,
    GR_PACKET_ORDER,   /* to the host: bytes of the launch spec; number 1: the last */
    GR_PACKET_MESSAGE, /* a gr_agent_message, both ways */
    GR_PACKET_OUTPUT,  /* from the host: what a worker wrote; number: 2 * rank there + stream */
    GR_PACKET_PING,    /* both ways, when there is nothing else to send */
    GR_PACKET_TAKEN,   /* from the host: so many bytes of stdin, its number, make room for others */
    GR_PACKET_KIND_END
} gr_packet_kind;

enum {
    GR_PACKET_HEADER_BYTES = 16,
    GR_PACKET_DATA_BYTES_MAX = 32 * 1024,
    /* Kept free for messages: each worker starts and ends once. */
    GR_CHANNEL_RESERVE_BYTES = 32 * 1024
};

typedef struct gr_packet {
    int kind;
    uint32_t number;
    size_t size_bytes;
    uint8_t *data; /* the channel's, until the next gr_channel_next */
} gr_packet;

typedef struct gr_channel {
    int in_fd, out_fd;
    gr_tls *tls; /* NULL: none; else over the socket that both descriptors are */
    bool more;   /* more may be here although the descriptor is not readable: fill again */
    uint8_t *in, *out;
    size_t in_first, in_used, out_first, out_used;
    int64_t heard_us, said_us; /* when bytes came and went last */
} gr_channel;

/* Makes both descriptors non-blocking; they, and the session, stay the caller's. 0 or errno, as all
 * below. */
int gr_channel_init(gr_channel *channel, int in_fd, int out_fd, gr_tls *tls);
/* Overwrites what it held: there may be secrets in it. */
void gr_channel_fini(gr_channel *channel);

/* Reads what is there, once. EAGAIN: nothing; EPIPE: the other side is gone. */
int gr_channel_fill(gr_channel *channel);
/* Returns true if nothing has come for so long. What is here and was not read yet has come: whoever
 * stood still has not listened. */
bool gr_channel_is_silent(const gr_channel *channel, int64_t now_us, int64_t silence_us);
/* The next whole packet; false: more must be read. EPROTO: no packet; EPROTONOSUPPORT: of another
 * version. */
bool gr_channel_next(gr_channel *channel, gr_packet *packet_out, int *error_out);
/* Drops what stands in front of the first packet (a login script that prints). True: a packet has
 * begun. */
bool gr_channel_skip_noise(gr_channel *channel);

/* False: there is no room. Output must leave GR_CHANNEL_RESERVE_BYTES: see gr_channel_has_room. */
bool gr_channel_put(gr_channel *channel, int kind, uint32_t number, const void *data,
                    size_t size_bytes);
/* For the largest packet, and the reserve is left. */
bool gr_channel_has_room(const gr_channel *channel);
/* For a message, which may take of the reserve. */
bool gr_channel_has_room_for_message(const gr_channel *channel);
/* Writes what goes out at once, and wipes it here. */
int gr_channel_flush(gr_channel *channel);
/* Returns true if something has not gone out yet. */
bool gr_channel_holds(const gr_channel *channel);

#endif
