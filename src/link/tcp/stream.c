/* SPDX-License-Identifier: Apache-2.0 */

/* The data path over a socket. Sending: a queue of messages whose payloads stay where the caller
 * has them, written with their headers in one call. Receiving: headers and small payloads through a
 * buffer, large payloads straight to where the caller wants them, with the next header behind. */

#include "link/tcp/tcp.h"

#include "base/fail.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    QUEUE_MASK = GR_TCP_QUEUE - 1,
    PARTS_A_CALL = 64,      /* of a scatter/gather call: two for each message */
    BYTES_A_TURN = 8 << 20, /* so that one link does not starve the others */
    DRAIN_BYTES_MAX = 4 << 20
};
#define NO_HOLD UINT64_MAX

static gr_tcp_link *tcp_of(gr_link *link)
{
    return (gr_tcp_link *)link;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* The parts of the queued messages that are not written yet, in order. */
static int gather(const gr_tcp_link *link, struct iovec *parts)
{
    int count = 0;
    size_t written = link->written;
    for (uint64_t i = link->done; i < link->head && count + 2 <= PARTS_A_CALL; i++) {
        const gr_tcp_message *message = &link->queue[i & QUEUE_MASK];
        if (written < GR_FRAME_BYTES) {
            parts[count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)(message->header + written),
                               .iov_len = GR_FRAME_BYTES - written};
            written = 0;
        } else {
            written -= GR_FRAME_BYTES;
        }
        if (message->size_bytes > written) {
            parts[count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)(message->data + written),
                               .iov_len = message->size_bytes - written};
        }
        written = 0;
    }
    return count;
}

static void advance(gr_tcp_link *link, size_t sent)
{
    link->written += sent;
    while (link->done < link->head) {
        size_t size = GR_FRAME_BYTES + link->queue[link->done & QUEUE_MASK].size_bytes;
        if (link->written < size) {
            break;
        }
        link->written -= size;
        link->done++;
    }
}

void gr_tcp_link_flush(gr_tcp_link *link)
{
    size_t turn = 0;
    while (link->writable && link->done < link->head && turn < BYTES_A_TURN) {
        struct iovec parts[PARTS_A_CALL];
        struct msghdr message = {.msg_iov = parts};
        message.msg_iovlen = (size_t)gather(link, parts);
        ssize_t sent = sendmsg(link->base.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        link->base.mesh->stats.system_calls++;
        if (sent > 0) {
            advance(link, (size_t)sent);
            turn += (size_t)sent;
        } else if (errno == EAGAIN) {
            link->writable = false;
        } else if (errno != EINTR) {
            /* What the peer said before it closed may explain it: the reading side ends the
             * link. */
            link->writable = false;
            link->readable = link->hung_up = true;
            return;
        }
    }
}

gr_status gr_tcp_link_send(gr_link *base, const gr_frame *frame, const void *data,
                           uint64_t *ticket_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (link->head - link->done == GR_TCP_QUEUE) {
        gr_tcp_link_flush(link);
        if (link->head - link->done == GR_TCP_QUEUE) {
            return GR_E_AGAIN;
        }
    }
    gr_tcp_message *message = &link->queue[link->head & QUEUE_MASK];
    gr_frame_encode(frame, message->header);
    message->size_bytes = frame->size_bytes;
    message->data = data;
    *ticket_out = ++link->head;
    base->mesh->stats.messages_sent++;
    base->mesh->stats.bytes_sent += frame->size_bytes;
    gr_tcp_link_flush(link);
    return GR_OK;
}

bool gr_tcp_link_sent(gr_link *base, uint64_t ticket)
{
    gr_tcp_link *link = tcp_of(base);
    if (link->done < ticket) {
        gr_tcp_link_flush(link);
    }
    return link->done >= ticket;
}

/* Closing a socket that holds unread bytes resets the connection and may destroy what is under way
 * to the peer, our BYE included: take them off first. */
void gr_tcp_link_leave(gr_link *base)
{
    gr_tcp_link *link = tcp_of(base);
    const gr_frame bye = {.kind = GR_FRAME_BYE};
    uint64_t ticket;
    if (gr_tcp_link_send(base, &bye, NULL, &ticket) != GR_OK || link->done < link->head) {
        return;
    }
    shutdown(base->fd, SHUT_WR);
    for (size_t drained = 0; drained < DRAIN_BYTES_MAX;) {
        ssize_t got = recv(base->fd, link->buffer, sizeof link->buffer, MSG_DONTWAIT);
        if (got <= 0) {
            break;
        }
        drained += (size_t)got;
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static uint32_t buffered(const gr_tcp_link *link)
{
    return link->end - link->start;
}

static bool small(const gr_tcp_link *link)
{
    return link->frame.size_bytes <= GR_TCP_SMALL_MAX;
}

static bool complete(const gr_tcp_link *link)
{
    return small(link) ? buffered(link) >= link->frame.size_bytes
                       : link->got_bytes == link->frame.size_bytes;
}

/* One read: first up to size_bytes to `to`, then into the buffer, which is empty or has room. How
 * many came to `to`; the link may have ended. */
static size_t receive_once(gr_tcp_link *link, uint8_t *to, size_t size_bytes)
{
    if (link->start == link->end) {
        link->start = link->end = 0;
    } else if (link->start > 0 && GR_TCP_BUFFER - link->end < GR_FRAME_BYTES + GR_TCP_SMALL_MAX) {
        memmove(link->buffer, link->buffer + link->start, buffered(link));
        link->end -= link->start;
        link->start = 0;
    }
    struct iovec parts[2] = {
        {.iov_base = to, .iov_len = size_bytes},
        {.iov_base = link->buffer + link->end, .iov_len = GR_TCP_BUFFER - link->end},
    };
    struct msghdr message = {.msg_iov = size_bytes > 0 ? parts : parts + 1,
                             .msg_iovlen = size_bytes > 0 ? 2 : 1};
    size_t room = size_bytes + parts[1].iov_len;
    ssize_t got = recvmsg(link->base.fd, &message, MSG_DONTWAIT);
    link->base.mesh->stats.system_calls++;
    if (got <= 0) {
        int error = got == 0 ? 0 : errno;
        if (error != EINTR) {
            link->readable = false;
        }
        if (error != EAGAIN && error != EINTR) {
            gr_link_closed(&link->base, error);
        }
        return 0;
    }
    /* Less than asked for: there is no more now, and an edge will tell when there is. The end of
     * the stream makes no further edge, so it is waited for by reading on. */
    if ((size_t)got < room && !link->hung_up) {
        link->readable = false;
    }
    size_t direct = (size_t)got < size_bytes ? (size_t)got : size_bytes;
    link->end += (uint32_t)((size_t)got - direct);
    return direct;
}

static size_t take_buffered(gr_tcp_link *link, uint8_t *to, size_t size_bytes)
{
    size_t count = buffered(link) < size_bytes ? buffered(link) : size_bytes;
    if (to != NULL && count > 0) {
        memcpy(to, link->buffer + link->start, count);
    }
    link->start += (uint32_t)count;
    return count;
}

static void skip(gr_tcp_link *link)
{
    do {
        link->skip_bytes -= (uint32_t)take_buffered(link, NULL, link->skip_bytes);
        if (link->skip_bytes > 0 && link->readable) {
            (void)receive_once(link, NULL, 0);
        }
    } while (link->skip_bytes > 0 && (buffered(link) > 0 || link->readable));
}

/* Take the next header off the buffer if it is there. */
static void parse(gr_tcp_link *link)
{
    gr_diag diag = {0};
    if (buffered(link) < GR_FRAME_BYTES) {
        return;
    }
    if (gr_frame_decode(link->buffer + link->start, &link->frame, &diag) != GR_OK) {
        link->start = link->end;
        gr_link_break(&link->base, false, GR_E_PROTOCOL, "rank %d sent %s", link->base.peer,
                      diag.text);
        return;
    }
    link->start += GR_FRAME_BYTES;
    link->have = true;
    link->got_bytes = 0;
    link->dst = NULL;
    link->view = -1;
}

/* The head is no data and all there: BYE and ABORT end the link. */
static void obey(gr_tcp_link *link)
{
    if (link->frame.kind == GR_FRAME_CLAIM) {
        gr_link_claimed(&link->base, &link->frame, (const char *)link->buffer + link->start);
        gr_tcp_link_next(&link->base, NULL);
        return;
    }
    if (link->frame.kind == GR_FRAME_BYE) {
        gr_link_left(&link->base);
    } else {
        gr_link_aborted(&link->base, &link->frame, (const char *)link->buffer + link->start);
    }
    link->have = link->readable = link->writable = false;
    link->start = link->end = 0;
}

static void read_to_dst(gr_tcp_link *link)
{
    uint32_t size = link->frame.size_bytes;
    size_t turn = 0;
    link->got_bytes +=
        (uint32_t)take_buffered(link, link->dst + link->got_bytes, size - link->got_bytes);
    while (link->got_bytes < size && link->readable && turn < BYTES_A_TURN) {
        size_t got = receive_once(link, link->dst + link->got_bytes, size - link->got_bytes);
        link->got_bytes += (uint32_t)got;
        turn += got;
    }
    if (link->got_bytes == size) {
        link->dst = NULL;
    }
}

/* Bytes that can be read without knowing where the caller wants them. */
static bool wants_buffer(const gr_tcp_link *link)
{
    return link->skip_bytes > 0 || !link->have || (small(link) && !complete(link));
}

void gr_tcp_link_receive(gr_tcp_link *link)
{
    for (;;) {
        if (link->skip_bytes > 0) {
            skip(link);
        }
        if (!link->have && link->skip_bytes == 0) {
            parse(link);
        }
        if (link->have && link->frame.kind != GR_FRAME_DATA && complete(link)) {
            obey(link);
            if (link->base.state != GR_LINK_UP) {
                return;
            }
            continue;
        }
        if (link->have && link->base.discard && link->frame.kind == GR_FRAME_DATA) {
            gr_tcp_link_next(&link->base, NULL);
            continue;
        }
        if (link->have && link->dst != NULL) {
            read_to_dst(link);
            return;
        }
        if (!link->readable || !wants_buffer(link)) {
            return;
        }
        (void)receive_once(link, NULL, 0);
    }
}

bool gr_tcp_link_busy(const gr_tcp_link *link)
{
    bool header_waits = !link->have && link->skip_bytes == 0 && buffered(link) >= GR_FRAME_BYTES;
    bool can_read = link->readable && (wants_buffer(link) || link->dst != NULL);
    return header_waits || can_read || (link->writable && link->done < link->head);
}

gr_status gr_tcp_link_peek(gr_link *base, gr_frame *frame_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (!link->have || (small(link) && !complete(link))) {
        gr_tcp_link_receive(link);
    }
    if (!link->have || link->frame.kind != GR_FRAME_DATA || (small(link) && !complete(link))) {
        return GR_PENDING;
    }
    *frame_out = link->frame;
    return GR_OK;
}

gr_status gr_tcp_link_view(gr_link *base, const void **data_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (!link->have || !small(link) || !complete(link)) {
        return GR_E_UNSUPPORTED;
    }
    if (link->view < 0) {
        if (link->free_view_count == 0) {
            return GR_E_UNSUPPORTED;
        }
        /* A copy, since the buffer moves on while the view may be held. */
        link->view = link->free_views[--link->free_view_count];
        memcpy(link->views[link->view], link->buffer + link->start, link->frame.size_bytes);
    }
    *data_out = link->views[link->view];
    return GR_OK;
}

gr_status gr_tcp_link_read(gr_link *base, void *dst)
{
    gr_tcp_link *link = tcp_of(base);
    if (!link->have) {
        return GR_PENDING;
    }
    if (small(link)) {
        if (complete(link) && link->frame.size_bytes > 0) {
            memcpy(dst, link->buffer + link->start, link->frame.size_bytes);
        }
    } else if (!complete(link)) {
        link->dst = dst;
        read_to_dst(link);
    }
    return complete(link) ? GR_OK : GR_PENDING;
}

void gr_tcp_link_next(gr_link *base, uint64_t *hold_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (hold_out != NULL) {
        *hold_out = NO_HOLD;
    }
    if (!link->have) {
        return;
    }
    if (link->view >= 0) {
        if (hold_out != NULL) {
            *hold_out = (uint64_t)link->view;
        } else {
            link->free_views[link->free_view_count++] = (uint16_t)link->view;
        }
        link->view = -1;
    }
    link->skip_bytes = link->frame.size_bytes - (small(link) ? 0 : link->got_bytes);
    link->skip_bytes -= (uint32_t)take_buffered(link, NULL, link->skip_bytes);
    link->have = false;
    link->dst = NULL;
}

/* What nobody began to write is forgotten; what is written in part must go on, since the peer reads
 * the next header behind it. */
void gr_tcp_link_discard(gr_link *base)
{
    gr_tcp_link *link = tcp_of(base);
    if (link->done < link->head) {
        link->head = link->done + (link->written > 0 ? 1 : 0);
    }
    gr_tcp_link_receive(link);
}

void gr_tcp_link_release(gr_link *base, uint64_t hold)
{
    gr_tcp_link *link = tcp_of(base);
    if (hold < GR_TCP_VIEWS && link->free_view_count < GR_TCP_VIEWS) {
        link->free_views[link->free_view_count++] = (uint16_t)hold;
    }
}
