/* SPDX-License-Identifier: Apache-2.0 */

/* Links of several streams. Of a large payload the front follows its header on the first stream;
 * the rest is cut into parts, and whichever stream has room takes the next one. A stream has room
 * when the wire has taken what it got before (TCP_NOTSENT_LOWAT), so each carries as much as its
 * path does. One that is so slow that another would have sent all the rest before it has sent one
 * part gets none: what each delivers is measured all the time. A part says where it belongs and is
 * read straight to there; it waits in its stream until its message is the head and the caller has
 * said where that goes. Parts are dealt in the order of their messages, so that none waits behind a
 * later one's. */

#include "link/tcp/tcp.h"

#include "base/fail.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum {
    QUEUE_MASK = GR_TCP_QUEUE - 1,
    LOOK_US = 200,                  /* how often the streams' speeds are looked at */
    SAMPLE_US = 1000,               /* a speed is that over at least so long, */
    SAMPLE_BYTES = 64 << 10,        /* and so many bytes, */
    SAMPLE_LONG_US = 20000,         /* or over so long */
    ALL_BUT_THROUGH = 16 << 10,     /* less is under way: the stream may have been idle */
    AHEAD_BYTES = 8 * GR_PART_BYTES /* so much waits at most for a part of a slower stream */
};

/* ---- Speeds ---------------------------------------------------------------------------------- */

static void look_at(gr_tcp_stream *stream, int64_t now_us)
{
    int queued = 0;
    gr_link *base = &stream->link->base;
    base->mesh->stats.system_calls++;
    if (ioctl(*gr_link_fd(base, stream->index), SIOCOUTQ, &queued) != 0) {
        return;
    }
    if ((uint64_t)queued > stream->sent_bytes) {
        queued = (int)stream->sent_bytes; /* the handshake went before */
    }
    stream->unacknowledged = (uint64_t)queued;
    uint64_t acknowledged = stream->sent_bytes - (uint64_t)queued;
    uint64_t moved = acknowledged - stream->acknowledged_then;
    int64_t elapsed_us = now_us - stream->since_us;
    double speed = elapsed_us > 0 ? (double)(moved + 1) / (double)elapsed_us : 0;
    bool through = queued < ALL_BUT_THROUGH;
    if (through && moved >= SAMPLE_BYTES && speed > stream->bytes_a_us) {
        stream->bytes_a_us = speed; /* at least that, since it was idle in between */
    } else if (!through && elapsed_us >= SAMPLE_US &&
               (moved >= SAMPLE_BYTES || elapsed_us >= SAMPLE_LONG_US)) {
        stream->bytes_a_us = speed;
    } else if (!through) {
        return;
    }
    stream->since_us = now_us;
    stream->acknowledged_then = acknowledged;
}

static void look_at_all(gr_tcp_link *link)
{
    int64_t now_us = gr_clock_now_us(&link->base.mesh->clock);
    if (now_us - link->looked_us < LOOK_US) {
        return;
    }
    link->looked_us = now_us;
    for (int i = 0; i < link->base.streams; i++) {
        look_at(gr_tcp_stream_at(link, i), now_us);
    }
}

/* No other stream would be through with what is left, or with AHEAD_BYTES, before this one is with
 * the next part. It is so of the stream that would be first with this part. */
static bool is_worth_it(const gr_tcp_stream *stream, uint32_t part_bytes)
{
    gr_tcp_link *link = stream->link;
    uint64_t left = link->undealt_bytes < AHEAD_BYTES ? link->undealt_bytes : AHEAD_BYTES;
    double own_us = (double)(stream->unacknowledged + part_bytes) / stream->bytes_a_us;
    for (int i = 0; i < link->base.streams && stream->bytes_a_us > 0; i++) {
        const gr_tcp_stream *other = gr_tcp_stream_at(link, i);
        double all_bytes = (double)(other->unacknowledged + left);
        if (other->bytes_a_us > 0 && all_bytes / other->bytes_a_us < own_us) {
            return false;
        }
    }
    return true;
}

/* ---- Sending --------------------------------------------------------------------------------- */

uint64_t gr_tcp_parts_dealt(const gr_tcp_link *link)
{
    return link->part_message + (link->part_offset > 0 ? 1 : 0);
}

/* The message that the next part is of, beyond which `limit` is; NULL: there is none. */
static gr_tcp_message *next_to_deal(gr_tcp_link *link, uint64_t limit)
{
    if (link->part_message < link->done) {
        link->part_message = link->done;
        link->part_offset = 0;
    }
    for (; link->part_message < limit; link->part_message++) {
        gr_tcp_message *message = &link->queue[link->part_message & QUEUE_MASK];
        uint32_t front = gr_tcp_inline_bytes(link, message->size_bytes);
        uint32_t at = link->part_offset > front ? link->part_offset : front;
        if (at < message->size_bytes) {
            return message;
        }
        link->part_offset = 0;
    }
    return NULL;
}

/* How far a stream may take parts: on the first one they follow their message's header. */
static uint64_t limit_of(const gr_tcp_stream *stream)
{
    return stream->index == 0 ? stream->link->announced : stream->link->head;
}

static bool take_part(gr_tcp_stream *stream)
{
    gr_tcp_link *link = stream->link;
    const gr_tcp_message *message = next_to_deal(link, limit_of(stream));
    stream->deferred = false;
    if (message == NULL) {
        return false;
    }
    uint32_t front = gr_tcp_inline_bytes(link, message->size_bytes);
    uint32_t at = link->part_offset > front ? link->part_offset : front;
    uint32_t left = message->size_bytes - at;
    gr_part part = {.message = (uint32_t)link->part_message,
                    .offset = at,
                    .size_bytes = left < GR_PART_BYTES ? left : GR_PART_BYTES};
    stream->deferred = !is_worth_it(stream, part.size_bytes);
    if (stream->deferred) {
        return false;
    }
    gr_part_encode(&part, stream->out_head);
    stream->out_message = link->part_message;
    stream->out_data = message->data + at;
    stream->out_bytes = GR_PART_HEAD_BYTES + part.size_bytes;
    stream->out_written = 0;
    link->part_offset = at + part.size_bytes;
    link->undealt_bytes -= part.size_bytes;
    return true;
}

static size_t write_part(gr_tcp_stream *stream)
{
    struct iovec parts[2];
    int count = 0;
    uint32_t at = 0;
    if (stream->out_written < GR_PART_HEAD_BYTES) {
        parts[count++] = (struct iovec){.iov_base = stream->out_head + stream->out_written,
                                        .iov_len = GR_PART_HEAD_BYTES - stream->out_written};
    } else {
        at = stream->out_written - GR_PART_HEAD_BYTES;
    }
    parts[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(stream->out_data + at),
                                    .iov_len = stream->out_bytes - GR_PART_HEAD_BYTES - at};
    size_t sent = gr_tcp_stream_write(stream, parts, count);
    stream->out_written += (uint32_t)sent;
    if (stream->out_written == stream->out_bytes) {
        gr_tcp_link *link = stream->link;
        link->queue[stream->out_message & QUEUE_MASK].left_bytes -=
            stream->out_bytes - GR_PART_HEAD_BYTES;
        stream->out_bytes = 0;
        gr_tcp_settle(link);
    }
    return sent;
}

/* One call on this stream; how many bytes went. A message of the first stream is ended before a
 * part follows, and parts go before the next message. */
static size_t feed(gr_tcp_stream *stream)
{
    gr_tcp_link *link = stream->link;
    if (stream->writable && gr_tcp_stream_holds(stream)) {
        (void)gr_tcp_stream_write(stream, NULL, 0);
        gr_tcp_settle(link);
    }
    if (!stream->writable) {
        return 0;
    }
    bool within = stream->index == 0 && link->written > 0;
    if (!within && (stream->out_bytes > 0 || take_part(stream))) {
        return write_part(stream);
    }
    /* No header before the parts that are left to another stream: this one may get them yet. */
    return stream->index == 0 && !stream->deferred && link->announced < link->head
               ? gr_tcp_write_messages(link)
               : 0;
}

void gr_tcp_link_deal(gr_tcp_link *link)
{
    size_t turn = 0, before;
    if (link->undealt_bytes > 0) {
        look_at_all(link);
    }
    do {
        before = turn;
        for (int i = 0; i < link->base.streams; i++) {
            turn += feed(gr_tcp_stream_at(link, i));
        }
    } while (turn > before && turn < GR_TCP_BYTES_A_TURN);
}

void gr_tcp_leave_parts(gr_tcp_link *link)
{
    const gr_part end = {0};
    for (int i = 1; i < link->base.streams; i++) {
        gr_tcp_stream *stream = gr_tcp_stream_at(link, i);
        gr_part_encode(&end, stream->out_head);
        struct iovec head = {.iov_base = stream->out_head, .iov_len = GR_PART_HEAD_BYTES};
        (void)gr_tcp_stream_write(stream, &head, 1); /* else it looks as if we had died */
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static void break_link(const gr_tcp_stream *stream, const char *what)
{
    gr_link *base = &stream->link->base;
    gr_link_break(base, false, GR_E_PROTOCOL, "rank %d sent %s (stream %d of %d)", base->peer, what,
                  stream->index, base->streams);
}

/* Take the head of a part off the buffer. False: it is not there, or the first stream has a message
 * there. */
static bool parse_part(gr_tcp_stream *stream)
{
    gr_tcp_link *link = stream->link;
    gr_diag diag = {0};
    const uint8_t *head = stream->buffer + stream->start;
    if (gr_tcp_buffered(stream) < GR_PART_HEAD_BYTES ||
        (stream->index == 0 && !gr_part_marked(head))) {
        return false;
    }
    if (gr_part_decode(head, &stream->in, &diag) != GR_OK) {
        break_link(stream, diag.text);
        return false;
    }
    stream->start += GR_PART_HEAD_BYTES;
    int32_t ahead = (int32_t)(stream->in.message - link->number);
    if (stream->in.size_bytes == 0 && stream->index > 0) {
        stream->left = true;
        return false;
    }
    if (stream->in.size_bytes == 0 || ahead > GR_TCP_QUEUE ||
        (stream->index == 0 && ahead >= (link->have ? 1 : 0))) {
        break_link(stream, "a part of a message that is none");
        return false;
    }
    stream->in_have = true;
    stream->in_checked = false;
    stream->in_got = 0;
    return true;
}

typedef enum fate { FATE_WAIT, FATE_SKIP, FATE_READ } fate;

static fate fate_of(const gr_tcp_stream *stream)
{
    const gr_tcp_link *link = stream->link;
    int32_t ahead = (int32_t)(stream->in.message - link->number);
    if (ahead < 0 || link->base.discard) {
        return FATE_SKIP;
    }
    return ahead == 0 && link->have && link->dst != NULL ? FATE_READ : FATE_WAIT;
}

/* The part lies within the head's payload, and it is the first to say so. */
static bool fits(gr_tcp_stream *stream)
{
    gr_tcp_link *link = stream->link;
    const gr_part *part = &stream->in;
    uint32_t size = link->frame.size_bytes, index = part->offset / GR_PART_BYTES;
    uint8_t *bits = &link->parts_begun[index / 8], bit = (uint8_t)(1U << index % 8);
    bool legal = part->offset >= link->inline_max && part->offset < size &&
                 part->size_bytes ==
                     (size - part->offset < GR_PART_BYTES ? size - part->offset : GR_PART_BYTES) &&
                 (*bits & bit) == 0;
    *bits |= bit;
    stream->in_checked = true;
    if (!legal) {
        break_link(stream, "a part that is not one of its message");
    }
    return legal;
}

/* Move the part that is read on; false: not now. */
static bool read_part(gr_tcp_stream *stream)
{
    gr_tcp_link *link = stream->link;
    fate now = fate_of(stream);
    if (now == FATE_WAIT || (now == FATE_READ && !stream->in_checked && !fits(stream))) {
        return false;
    }
    uint8_t *to = now == FATE_READ ? link->dst + stream->in.offset + stream->in_got : NULL;
    uint32_t left = stream->in.size_bytes - stream->in_got;
    size_t got = gr_tcp_stream_take(stream, to, left);
    if (got == 0 && stream->readable) {
        /* The next part's head comes along. What is not wanted goes through the buffer. */
        uint32_t room = stream->index > 0 && to != NULL ? GR_PART_HEAD_BYTES : GR_TCP_BUFFER;
        got = gr_tcp_stream_read(stream, to, to != NULL ? left : 0, room);
        if (got == 0) {
            got = gr_tcp_stream_take(stream, to, left);
        }
    }
    stream->in_got += (uint32_t)got;
    link->part_bytes += to != NULL ? (uint32_t)got : 0;
    stream->in_have = stream->in_got < stream->in.size_bytes;
    return got > 0;
}

/* The first stream's bytes are for this file once the head's front is read. */
static bool may_read_head(const gr_tcp_stream *stream)
{
    const gr_tcp_link *link = stream->link;
    return stream->index > 0 ? !stream->left
                             : link->have && link->got_bytes == link->inline_max &&
                                   gr_tcp_buffered(stream) < GR_PART_HEAD_BYTES;
}

void gr_tcp_stream_receive_parts(gr_tcp_stream *stream)
{
    bool on = true;
    while (on && stream->link->base.state == GR_LINK_UP) {
        on = stream->in_have ? read_part(stream) : parse_part(stream);
        if (!on && !stream->in_have && stream->readable && may_read_head(stream) &&
            stream->link->base.state == GR_LINK_UP) {
            uint32_t room =
                stream->index > 0 ? GR_PART_HEAD_BYTES - gr_tcp_buffered(stream) : GR_TCP_BUFFER;
            uint32_t had = gr_tcp_buffered(stream);
            (void)gr_tcp_stream_read(stream, NULL, 0, room);
            on = gr_tcp_buffered(stream) > had;
        }
    }
}

void gr_tcp_receive_parts(gr_tcp_link *link)
{
    for (int i = 0; i < link->base.streams; i++) {
        gr_tcp_stream_receive_parts(gr_tcp_stream_at(link, i));
    }
}

static bool may_read(const gr_tcp_stream *stream)
{
    return stream->readable &&
           (stream->in_have ? fate_of(stream) != FATE_WAIT : may_read_head(stream));
}

/* Nothing is left to be read that the end of a stream may be behind. */
static bool ended(gr_tcp_link *link)
{
    bool unread = link->have && !gr_tcp_small(link) && link->dst == NULL && !link->base.discard;
    bool front = link->first.readable && (!link->have || link->got_bytes < link->inline_max);
    bool more = unread || front;
    for (int i = 0; i < link->base.streams && !more; i++) {
        more = may_read(gr_tcp_stream_at(link, i));
    }
    return !more;
}

void gr_tcp_mourn(gr_tcp_link *link)
{
    if (link->lost && link->base.state == GR_LINK_UP && ended(link)) {
        gr_link_closed(&link->base, link->lost_error);
    }
}

bool gr_tcp_parts_busy(gr_tcp_link *link)
{
    bool busy = link->lost && ended(link);
    for (int i = 0; i < link->base.streams && !busy; i++) {
        gr_tcp_stream *stream = gr_tcp_stream_at(link, i);
        busy = may_read(stream) ||
               (stream->writable &&
                (stream->out_bytes > 0 ||
                 (!stream->deferred && next_to_deal(link, limit_of(stream)) != NULL)));
    }
    return busy;
}
