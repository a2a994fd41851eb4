/* SPDX-License-Identifier: Apache-2.0 */

/* The data path. Sending: a queue of messages whose payloads stay where the caller has them,
 * written with their headers in one call. Receiving: headers and small payloads through a buffer,
 * large payloads straight to where the caller wants them, with the next header behind. Where a link
 * has several rails, this is the first one; the rest of large payloads is in stripe.c. */

#include "link/tcp/tcp.h"

#include "base/fail.h"

#include <string.h>
#include <sys/socket.h>

enum {
    QUEUE_MASK = GR_TCP_QUEUE - 1,
    PARTS_A_CALL = 64 /* of a scatter/gather call: two for each message */
};
#define NO_HOLD UINT64_MAX

static gr_tcp_link *tcp_of(gr_link *link)
{
    return (gr_tcp_link *)link;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* What is not written yet of the queued messages, in order: up to one whose parts have to go before
 * the next header. */
static int gather(const gr_tcp_link *link, struct iovec *parts)
{
    int count = 0;
    size_t written = link->written;
    for (uint64_t i = link->announced; i < link->head && count + 2 <= PARTS_A_CALL; i++) {
        const gr_tcp_message *message = &link->queue[i & QUEUE_MASK];
        uint32_t size = gr_tcp_inline_bytes(link, message->size_bytes);
        if (written < GR_FRAME_BYTES) {
            parts[count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)(message->header + written),
                               .iov_len = GR_FRAME_BYTES - written};
            written = 0;
        } else {
            written -= GR_FRAME_BYTES;
        }
        if (size > written) {
            parts[count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)(message->data + written),
                               .iov_len = size - written};
        }
        written = 0;
        if (size < message->size_bytes && link->part_message <= i) {
            break;
        }
    }
    return count;
}

static void advance(gr_tcp_link *link, size_t sent)
{
    link->written += sent;
    while (link->announced < link->head) {
        uint32_t payload = link->queue[link->announced & QUEUE_MASK].size_bytes;
        size_t size = GR_FRAME_BYTES + gr_tcp_inline_bytes(link, payload);
        if (link->written < size) {
            break;
        }
        link->written -= size;
        link->announced++;
    }
    gr_tcp_finish_written(link);
}

void gr_tcp_finish_written(gr_tcp_link *link)
{
    for (int i = 0; i < link->base.rails; i++) {
        if (gr_tcp_rail_holds(gr_tcp_rail_at(link, i))) {
            return;
        }
    }
    if (link->base.rails == 1) {
        link->done = link->announced;
        return;
    }
    while (link->done < link->announced && link->queue[link->done & QUEUE_MASK].left_bytes == 0) {
        link->done++;
    }
}

size_t gr_tcp_write_messages(gr_tcp_link *link)
{
    struct iovec parts[PARTS_A_CALL];
    size_t sent = gr_tcp_rail_write(&link->first, parts, gather(link, parts));
    advance(link, sent);
    return sent;
}

void gr_tcp_link_flush(gr_tcp_link *link)
{
    if (link->base.rails > 1) {
        gr_tcp_link_stripe(link);
        return;
    }
    for (size_t turn = 0;
         link->first.writable && link->done < link->head && turn < GR_TCP_BYTES_A_TURN;) {
        turn += gr_tcp_write_messages(link);
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
    message->left_bytes = frame->size_bytes - gr_tcp_inline_bytes(link, frame->size_bytes);
    link->unstriped_bytes += message->left_bytes;
    message->data = data;
    *ticket_out = ++link->head;
    base->mesh->stats.messages_sent++;
    base->mesh->stats.bytes_sent += frame->size_bytes;
    if (frame->kind != GR_FRAME_DATA || frame->size_bytes > GR_LINK_LAZY_BYTES) {
        gr_tcp_link_flush(link);
    }
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

void gr_tcp_link_leave(gr_link *base)
{
    gr_tcp_link *link = tcp_of(base);
    const gr_frame bye = {.kind = GR_FRAME_BYE};
    uint64_t ticket;
    if (gr_tcp_link_send(base, &bye, NULL, &ticket) != GR_OK || link->done < link->head) {
        return;
    }
    if (base->rails > 1) {
        gr_tcp_leave_parts(link);
    }
    for (int i = 0; i < base->rails; i++) {
        gr_tcp_rail_end(gr_tcp_rail_at(link, i));
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static bool complete(const gr_tcp_link *link)
{
    return gr_tcp_small(link) ? gr_tcp_buffered(&link->first) >= link->frame.size_bytes
                              : link->got_bytes + link->part_bytes == link->frame.size_bytes;
}

static void skip(gr_tcp_link *link)
{
    do {
        link->skip_bytes -= (uint32_t)gr_tcp_rail_take(&link->first, NULL, link->skip_bytes);
        if (link->skip_bytes > 0 && link->first.readable) {
            (void)gr_tcp_rail_read(&link->first, NULL, 0, GR_TCP_BUFFER);
        }
    } while (link->skip_bytes > 0 && (gr_tcp_buffered(&link->first) > 0 || link->first.readable));
}

/* Take the next header off the buffer if it is there. */
static void parse(gr_tcp_link *link)
{
    gr_diag diag;
    if (link->base.rails > 1) {
        gr_tcp_rail_receive_parts(&link->first); /* of messages that were not read whole */
        if (link->first.in_have || link->base.state != GR_LINK_UP) {
            return;
        }
    }
    if (gr_tcp_buffered(&link->first) < GR_FRAME_BYTES) {
        return;
    }
    if (gr_frame_decode(link->first.buffer + link->first.start, &link->frame, &diag) != GR_OK) {
        link->first.start = link->first.end;
        gr_link_break(&link->base, false, GR_E_PROTOCOL, "rank %d sent %s", link->base.peer,
                      diag.text);
        return;
    }
    link->first.start += GR_FRAME_BYTES;
    link->have = true;
    gr_link_set_ready(&link->base);
    link->got_bytes = link->part_bytes = 0;
    if (link->base.rails > 1) {
        memset(link->parts_begun, 0, sizeof link->parts_begun);
    }
    link->dst = NULL;
    link->view = -1;
}

/* The head is no data and all there: BYE and ABORT end the link. */
static void handle_control_frame(gr_tcp_link *link)
{
    if (link->frame.kind == GR_FRAME_BYE) {
        gr_link_left(&link->base);
    } else {
        gr_link_aborted(&link->base, &link->frame,
                        (const char *)link->first.buffer + link->first.start);
    }
    link->have = link->first.readable = link->first.writable = false;
    link->first.start = link->first.end = 0;
}

static void read_to_dst(gr_tcp_link *link)
{
    uint32_t size = gr_tcp_inline_bytes(link, link->frame.size_bytes);
    size_t turn = 0;
    link->got_bytes += (uint32_t)gr_tcp_rail_take(&link->first, link->dst + link->got_bytes,
                                                  size - link->got_bytes);
    while (link->got_bytes < size && link->first.readable && turn < GR_TCP_BYTES_A_TURN) {
        size_t got = gr_tcp_rail_read(&link->first, link->dst + link->got_bytes,
                                      size - link->got_bytes, GR_TCP_BUFFER);
        link->got_bytes += (uint32_t)got;
        turn += got;
    }
    if (link->base.rails > 1) {
        gr_tcp_receive_parts(link);
    }
    if (complete(link)) {
        link->dst = NULL;
    }
}

/* Bytes that can be read without knowing where the caller wants them. */
static bool wants_buffer(const gr_tcp_link *link)
{
    return link->skip_bytes > 0 || !link->have || (gr_tcp_small(link) && !complete(link));
}

static void receive_messages(gr_tcp_link *link)
{
    for (;;) {
        if (link->skip_bytes > 0) {
            skip(link);
        }
        if (!link->have && link->skip_bytes == 0) {
            parse(link);
        }
        if (link->have && link->frame.kind != GR_FRAME_DATA && complete(link)) {
            handle_control_frame(link);
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
        if (!link->first.readable || !wants_buffer(link)) {
            return;
        }
        (void)gr_tcp_rail_read(&link->first, NULL, 0, GR_TCP_BUFFER);
    }
}

void gr_tcp_link_receive(gr_tcp_link *link)
{
    receive_messages(link);
    if (link->base.rails > 1 && link->base.state == GR_LINK_UP) {
        gr_tcp_receive_parts(link);
        gr_tcp_report_lost_rail(link);
    }
}

bool gr_tcp_link_busy(gr_tcp_link *link)
{
    if (link->base.rails > 1 && gr_tcp_parts_busy(link)) {
        return true;
    }
    for (int i = 0; i < link->base.rails; i++) {
        const gr_tcp_rail *rail = gr_tcp_rail_at(link, i);
        if (rail->writable && gr_tcp_rail_holds(rail)) {
            return true;
        }
    }
    bool header_waits =
        !link->have && link->skip_bytes == 0 && gr_tcp_buffered(&link->first) >= GR_FRAME_BYTES;
    bool can_read = link->first.readable && (wants_buffer(link) || link->dst != NULL);
    return header_waits || can_read ||
           (link->first.writable && !link->first.deferred && link->announced < link->head);
}

gr_status gr_tcp_link_peek(gr_link *base, gr_frame *frame_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (!link->have || (gr_tcp_small(link) && !complete(link))) {
        link->first.readable = link->first.readable || base->expected;
        gr_tcp_link_receive(link);
    }
    if (!link->have || link->frame.kind != GR_FRAME_DATA ||
        (gr_tcp_small(link) && !complete(link))) {
        return GR_PENDING;
    }
    *frame_out = link->frame;
    return GR_OK;
}

gr_status gr_tcp_link_view(gr_link *base, const void **data_out)
{
    gr_tcp_link *link = tcp_of(base);
    if (!link->have || !gr_tcp_small(link) || !complete(link)) {
        return GR_E_UNSUPPORTED;
    }
    if (link->view < 0) {
        if (link->free_view_count == 0) {
            return GR_E_UNSUPPORTED;
        }
        /* A copy, since the buffer moves on while the view may be held. */
        link->view = link->free_views[--link->free_view_count];
        memcpy(link->views[link->view], link->first.buffer + link->first.start,
               link->frame.size_bytes);
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
    if (gr_tcp_small(link)) {
        if (complete(link) && link->frame.size_bytes > 0) {
            memcpy(dst, link->first.buffer + link->first.start, link->frame.size_bytes);
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
    link->skip_bytes = gr_tcp_inline_bytes(link, link->frame.size_bytes) -
                       (gr_tcp_small(link) ? 0 : link->got_bytes);
    link->skip_bytes -= (uint32_t)gr_tcp_rail_take(&link->first, NULL, link->skip_bytes);
    link->have = false;
    link->dst = NULL;
    link->number++;
}

/* What nobody began to write is forgotten; what is written in part must go on, since the peer reads
 * the next header behind it. */
void gr_tcp_link_discard(gr_link *base)
{
    gr_tcp_link *link = tcp_of(base);
    uint64_t begun = link->announced + (link->written > 0 ? 1 : 0);
    if (base->rails > 1 && gr_tcp_parts_striped(link) > begun) {
        begun = gr_tcp_parts_striped(link);
    }
    uint64_t end = link->head;
    link->head = link->head < begun ? link->head : begun;
    for (uint64_t at = begun; at < end; at++) {
        link->unstriped_bytes -= link->queue[at & QUEUE_MASK].left_bytes;
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
