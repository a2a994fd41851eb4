/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_TCP_TCP_H
#define GR_LINK_TCP_TCP_H

#include "link/frame.h"
#include "link/mesh.h"

#include <sys/uio.h>

enum {
    GR_TCP_QUEUE = 128,      /* messages that wait for the kernel; a power of two */
    GR_TCP_BUFFER = 8192,    /* headers and small payloads are read through it */
    GR_TCP_SMALL_MAX = 1024, /* payloads up to this can be viewed */
    GR_TCP_VIEWS = GR_LINK_HOLDS_MAX + 1,
    GR_TCP_BYTES_A_TURN = 8 << 20 /* so that one link does not starve the others */
};

typedef struct gr_tcp_mesh {
    gr_mesh base;
    int cores;
} gr_tcp_mesh;

typedef struct gr_tcp_link gr_tcp_link;

typedef struct gr_tcp_message {
    uint8_t header[GR_FRAME_BYTES];
    uint32_t size_bytes;
    uint32_t left_bytes; /* of its parts: not written yet */
    const uint8_t *data; /* the caller's until the message is written */
} gr_tcp_message;

/* One connection of a link. The first carries all headers, and the payloads up to inline_max; where
 * there are several, what is beyond goes in parts over any of them. */
typedef struct gr_tcp_rail {
    gr_tcp_link *link;
    int index;
    bool readable, writable; /* the result of the last event or call; edges come only once */
    bool hung_up;            /* the end of the rail is near: read until it comes */
    bool left;               /* the peer has announced that nothing more comes */

    /* How fast it is, of several: what the peer has acknowledged of `sent_bytes` over a while. */
    bool deferred;     /* the next part would be there sooner over another rail */
    double bytes_a_us; /* 0: not known yet */
    uint64_t sent_bytes, unacknowledged;
    uint64_t acknowledged_then; /* at since_us */
    int64_t since_us;
    int64_t tried_us; /* when it got its last part, or its speed was raised for want of one */

    /* The part that is written, and the one that is read: its head is off the buffer. */
    uint64_t out_message;
    const uint8_t *out_data;
    uint32_t out_bytes, out_written; /* with the head; 0: none */
    uint8_t out_head[GR_PART_HEAD_BYTES];
    bool in_have, in_checked;
    uint32_t in_got;
    gr_part in;

    uint32_t start, end; /* buffer[start, end) is read but not taken */
    uint8_t buffer[GR_TCP_BUFFER];
} gr_tcp_rail;

struct gr_tcp_link {
    gr_link base;
    uint32_t inline_max; /* so much of a payload follows its header; UINT32_MAX: one rail */
    bool lost;           /* one of several rails has ended: what is here is still read */
    int lost_error;      /* errno; 0: end of file */

    /* Sending: messages [done, head) are queued. Of the one at `announced` `written` bytes are
     * gone, of those before it all that is not in parts. The next part to be striped is that at
     * part_offset of part_message; 0: that one's first. */
    uint64_t head, done, announced, part_message;
    uint64_t unstriped_bytes; /* of all parts that no rail has yet */
    int64_t sampled_us;       /* when the rails' speeds were looked at */
    uint32_t part_offset;
    size_t written;
    gr_tcp_message queue[GR_TCP_QUEUE];

    /* Receiving. */
    bool have; /* frame is the head's; its header is off the buffer, its payload is not */
    gr_frame frame;
    uint32_t number;     /* of the head among all messages; of the next one if there is none */
    uint32_t got_bytes;  /* of a payload that is read straight to dst: those behind the header */
    uint32_t part_bytes; /* those that came in parts */
    uint32_t skip_bytes; /* of a payload that nobody wanted whole */
    uint8_t *dst;        /* of an unfinished gr_link_read */
    int view;            /* index in views of the head's copy; -1: not viewed */
    uint8_t (*views)[GR_TCP_SMALL_MAX];
    uint16_t free_views[GR_TCP_VIEWS];
    int free_view_count;
    uint8_t parts_begun[GR_PARTS_MAX / 8]; /* bits: of the head */
    gr_tcp_rail *more;                     /* all but the first rail */
    gr_tcp_rail first;
};

static inline gr_tcp_rail *gr_tcp_rail_at(gr_tcp_link *link, int index)
{
    return index == 0 ? &link->first : &link->more[index - 1];
}

static inline uint32_t gr_tcp_buffered(const gr_tcp_rail *rail)
{
    return rail->end - rail->start;
}

/* How much of a payload follows its header. */
static inline uint32_t gr_tcp_inline_bytes(const gr_tcp_link *link, uint32_t size_bytes)
{
    return size_bytes < link->inline_max ? size_bytes : link->inline_max;
}

/* The head's payload is to be had without the caller's memory. */
static inline bool gr_tcp_small(const gr_tcp_link *link)
{
    return link->frame.size_bytes <= GR_TCP_SMALL_MAX;
}

/* rail.c: the bytes of one rail. */
/* Some that was written still waits here for the socket: TLS holds it. */
bool gr_tcp_rail_holds(const gr_tcp_rail *rail);
/* One call that writes; how many bytes went. No parts: what TLS holds is moved on. */
size_t gr_tcp_rail_write(gr_tcp_rail *rail, struct iovec *parts, int count);
/* One call that reads: first up to size_bytes to `to`, then up to `room` into the buffer, which is
 * empty or has room. How many came to `to`; the link may have ended. */
size_t gr_tcp_rail_read(gr_tcp_rail *rail, uint8_t *to, size_t size_bytes, uint32_t room);
/* What the buffer has of size_bytes; `to` NULL: thrown away. */
size_t gr_tcp_rail_take(gr_tcp_rail *rail, uint8_t *to, size_t size_bytes);
/* Nothing more goes out, nothing that came is wanted. */
void gr_tcp_rail_end(gr_tcp_rail *rail);

/* stripe.c: links of several rails. */
void gr_tcp_link_stripe(gr_tcp_link *link); /* write what the kernel takes, whichever rail it is */
void gr_tcp_receive_parts(gr_tcp_link *link);
void gr_tcp_rail_receive_parts(gr_tcp_rail *rail);
bool gr_tcp_parts_busy(gr_tcp_link *link); /* one of these would do something */
uint64_t
gr_tcp_parts_striped(const gr_tcp_link *link); /* behind the last message with a part out */
void gr_tcp_report_lost_rail(
    gr_tcp_link *link); /* break the link if a rail is lost and nothing is left */
void gr_tcp_leave_parts(gr_tcp_link *link);

/* message.c */
size_t gr_tcp_write_messages(gr_tcp_link *link); /* one call; how many bytes went */
void gr_tcp_finish_written(gr_tcp_link *link);   /* messages are done that are written whole */
void gr_tcp_link_flush(gr_tcp_link *link);       /* write what the kernel takes */
void gr_tcp_link_receive(gr_tcp_link *link);     /* read what may be read without the caller */
bool gr_tcp_link_busy(gr_tcp_link *link);        /* one of these two would do something */
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
