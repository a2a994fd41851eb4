/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_TCP_TCP_H
#define GR_LINK_TCP_TCP_H

#include "link/frame.h"
#include "link/mesh.h"

enum {
    GR_TCP_QUEUE = 128,      /* messages that wait for the kernel; a power of two */
    GR_TCP_BUFFER = 8192,    /* headers and small payloads are read through it */
    GR_TCP_SMALL_MAX = 1024, /* payloads up to this can be viewed */
    GR_TCP_VIEWS = GR_LINK_HOLDS_MAX + 1
};

typedef struct gr_tcp_block {
    struct gr_tcp_block *previous, *next;
} gr_tcp_block;

typedef struct gr_tcp_mesh {
    gr_mesh base;
    gr_tcp_block blocks; /* of gr_mesh_alloc: a ring through this one */
} gr_tcp_mesh;

typedef struct gr_tcp_message {
    uint8_t header[GR_FRAME_BYTES];
    uint32_t size_bytes;
    const uint8_t *data; /* the caller's until the message is written */
} gr_tcp_message;

typedef struct gr_tcp_link {
    gr_link base;
    bool readable, writable; /* what the last event or call said; edges come only once */
    bool hung_up;            /* the end of the stream is near: read until it comes */

    /* Sending: messages [done, head) are queued, of the first of them `written` bytes are gone. */
    uint64_t head, done;
    size_t written;
    gr_tcp_message queue[GR_TCP_QUEUE];

    /* Receiving: buffer[start, end) is read but not taken. */
    uint32_t start, end;
    bool have; /* frame is the head's; its header is off the buffer, its payload is not */
    gr_frame frame;
    uint32_t got_bytes;  /* of a payload that is read straight to dst */
    uint32_t skip_bytes; /* of a payload that nobody wanted whole */
    uint8_t *dst;        /* of an unfinished gr_link_read */
    int view;            /* index in views of the head's copy; -1: not viewed */
    uint8_t (*views)[GR_TCP_SMALL_MAX];
    uint16_t free_views[GR_TCP_VIEWS];
    int free_view_count;
    uint8_t buffer[GR_TCP_BUFFER];
} gr_tcp_link;

/* stream.c */
void gr_tcp_link_flush(gr_tcp_link *link);      /* write what the kernel takes */
void gr_tcp_link_receive(gr_tcp_link *link);    /* read what may be read without the caller */
bool gr_tcp_link_busy(const gr_tcp_link *link); /* one of these two would do something */
void gr_tcp_link_leave(gr_link *link);
gr_status gr_tcp_link_send(gr_link *link, const gr_frame *frame, const void *data,
                           uint64_t *ticket_out);
bool gr_tcp_link_sent(gr_link *link, uint64_t ticket);
gr_status gr_tcp_link_peek(gr_link *link, gr_frame *frame_out);
gr_status gr_tcp_link_view(gr_link *link, const void **data_out);
gr_status gr_tcp_link_read(gr_link *link, void *dst);
void gr_tcp_link_next(gr_link *link, uint64_t *hold_out);
void gr_tcp_link_release(gr_link *link, uint64_t hold);
void gr_tcp_link_discard(gr_link *link);

#endif
