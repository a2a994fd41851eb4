/* SPDX-License-Identifier: Apache-2.0 */

/* Links of several rails. Of a large payload the front follows its header on the first rail; the
 * rest is cut into parts, and whichever rail has room takes the next one. A rail has room when
 * the wire has taken what it got before (TCP_NOTSENT_LOWAT), so each carries as much as its path
 * does. One that is so slow that another would have sent all the rest before it has sent one part
 * gets none: what each delivers is measured all the time. That says too little of a rail whose
 * peer was kept from reading, and nothing more while the rail gets no part: the speed of such a
 * rail is taken for twice as much after a while, until it is tried again. A part says where it
 * belongs and is read straight to there; it waits in its rail until its message is the head and
 * the caller has said where that goes. Parts are striped in the order of their messages, so that
 * none waits behind a later one's. */

#include "link/tcp/tcp.h"

#include "base/fail.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum {
    QUEUE_MASK = GR_TCP_QUEUE - 1,
    SAMPLE_EVERY_US = 200,          /* how often the rails' speeds are looked at */
    SAMPLE_US = 1000,               /* a speed is that over at least so long, */
    SAMPLE_BYTES = 64 << 10,        /* and so many bytes, */
    SAMPLE_LONG_US = 20000,         /* or over so long */
    ALL_BUT_THROUGH = 16 << 10,     /* less is under way: the rail may have been idle */
    RETRY_US = 200000,              /* a rail without a part for so long counts twice its speed, */
    RETRY_SHARE = 64,               /* and at least this part of the fastest one's */
    AHEAD_BYTES = 8 * GR_PART_BYTES /* so much waits at most for a part of a slower rail */
};

/* ---- Speeds ---------------------------------------------------------------------------------- */

static void sample_speed(gr_tcp_rail *rail, int64_t now_us)
{
    int queued = 0;
    gr_link *base = &rail->link->base;
    base->mesh->stats.system_calls++;
    if (ioctl(*gr_link_fd(base, rail->index), SIOCOUTQ, &queued) != 0) {
        return;
    }
    if ((uint64_t)queued > rail->sent_bytes) {
        queued = (int)rail->sent_bytes; /* the handshake went before */
    }
    rail->unacknowledged = (uint64_t)queued;
    uint64_t acknowledged = rail->sent_bytes - (uint64_t)queued;
    uint64_t moved = acknowledged - rail->acknowledged_then;
    int64_t elapsed_us = now_us - rail->since_us;
    double speed = elapsed_us > 0 ? (double)(moved + 1) / (double)elapsed_us : 0;
    bool through = queued < ALL_BUT_THROUGH;
    if (through && moved >= SAMPLE_BYTES && speed > rail->bytes_a_us) {
        rail->bytes_a_us = speed; /* at least that, since it was idle in between */
    } else if (!through && elapsed_us >= SAMPLE_US &&
               (moved >= SAMPLE_BYTES || elapsed_us >= SAMPLE_LONG_US)) {
        rail->bytes_a_us = speed;
    } else if (!through) {
        return;
    }
    rail->since_us = now_us;
    rail->acknowledged_then = acknowledged;
}

/* Of too high a speed the next part shows the truth, of too low a one nothing would. */
static void raise_untried(gr_tcp_link *link, int64_t now_us)
{
    double fastest = 0;
    for (int i = 0; i < link->base.rails; i++) {
        double speed = gr_tcp_rail_at(link, i)->bytes_a_us;
        fastest = speed > fastest ? speed : fastest;
    }
    for (int i = 0; i < link->base.rails; i++) {
        gr_tcp_rail *rail = gr_tcp_rail_at(link, i);
        double raised = 2 * rail->bytes_a_us;
        if (raised > 0 && raised <= fastest && now_us - rail->tried_us >= RETRY_US) {
            double least = fastest / RETRY_SHARE;
            rail->bytes_a_us = raised > least ? raised : least;
            rail->tried_us = now_us;
        }
    }
}

static void sample_speeds(gr_tcp_link *link)
{
    int64_t now_us = gr_clock_now_us(&link->base.mesh->clock);
    if (now_us - link->sampled_us < SAMPLE_EVERY_US) {
        return;
    }
    link->sampled_us = now_us;
    for (int i = 0; i < link->base.rails; i++) {
        sample_speed(gr_tcp_rail_at(link, i), now_us);
    }
    raise_untried(link, now_us);
}

/* No other rail would be through with what is left, or with AHEAD_BYTES, before this one is with
 * the next part. It is so of the rail that would be first with this part. */
static bool is_worthwhile(const gr_tcp_rail *rail, uint32_t part_bytes)
{
    gr_tcp_link *link = rail->link;
    uint64_t left = link->unstriped_bytes < AHEAD_BYTES ? link->unstriped_bytes : AHEAD_BYTES;
    double own_us = (double)(rail->unacknowledged + part_bytes) / rail->bytes_a_us;
    for (int i = 0; i < link->base.rails && rail->bytes_a_us > 0; i++) {
        const gr_tcp_rail *other = gr_tcp_rail_at(link, i);
        double all_bytes = (double)(other->unacknowledged + left);
        if (other->bytes_a_us > 0 && all_bytes / other->bytes_a_us < own_us) {
            return false;
        }
    }
    return true;
}

/* ---- Sending --------------------------------------------------------------------------------- */

uint64_t gr_tcp_parts_striped(const gr_tcp_link *link)
{
    return link->part_message + (link->part_offset > 0 ? 1 : 0);
}

/* The message that the next part is of, beyond which `limit` is; NULL: there is none. */
static gr_tcp_message *next_to_stripe(gr_tcp_link *link, uint64_t limit)
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

/* How far a rail may take parts: on the first one they follow their message's header. */
static uint64_t limit_of(const gr_tcp_rail *rail)
{
    return rail->index == 0 ? rail->link->announced : rail->link->head;
}

static bool take_part(gr_tcp_rail *rail)
{
    gr_tcp_link *link = rail->link;
    const gr_tcp_message *message = next_to_stripe(link, limit_of(rail));
    rail->deferred = false;
    if (message == NULL) {
        return false;
    }
    uint32_t front = gr_tcp_inline_bytes(link, message->size_bytes);
    uint32_t at = link->part_offset > front ? link->part_offset : front;
    uint32_t left = message->size_bytes - at;
    gr_part part = {.message = (uint32_t)link->part_message,
                    .offset = at,
                    .size_bytes = left < GR_PART_BYTES ? left : GR_PART_BYTES};
    rail->deferred = !is_worthwhile(rail, part.size_bytes);
    if (rail->deferred) {
        return false;
    }
    rail->tried_us = link->sampled_us;
    gr_part_encode(&part, rail->out_head);
    rail->out_message = link->part_message;
    rail->out_data = message->data + at;
    rail->out_bytes = GR_PART_HEAD_BYTES + part.size_bytes;
    rail->out_written = 0;
    link->part_offset = at + part.size_bytes;
    link->unstriped_bytes -= part.size_bytes;
    return true;
}

static size_t write_part(gr_tcp_rail *rail)
{
    struct iovec parts[2];
    int count = 0;
    uint32_t at = 0;
    if (rail->out_written < GR_PART_HEAD_BYTES) {
        parts[count++] = (struct iovec){.iov_base = rail->out_head + rail->out_written,
                                        .iov_len = GR_PART_HEAD_BYTES - rail->out_written};
    } else {
        at = rail->out_written - GR_PART_HEAD_BYTES;
    }
    parts[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(rail->out_data + at),
                                    .iov_len = rail->out_bytes - GR_PART_HEAD_BYTES - at};
    size_t sent = gr_tcp_rail_write(rail, parts, count);
    rail->out_written += (uint32_t)sent;
    if (rail->out_written == rail->out_bytes) {
        gr_tcp_link *link = rail->link;
        link->queue[rail->out_message & QUEUE_MASK].left_bytes -=
            rail->out_bytes - GR_PART_HEAD_BYTES;
        rail->out_bytes = 0;
        gr_tcp_finish_written(link);
    }
    return sent;
}

/* One call on this rail; how many bytes went. A message of the first rail is ended before a
 * part follows, and parts go before the next message. */
static size_t pump(gr_tcp_rail *rail)
{
    gr_tcp_link *link = rail->link;
    if (rail->writable && gr_tcp_rail_holds(rail)) {
        (void)gr_tcp_rail_write(rail, NULL, 0);
        gr_tcp_finish_written(link);
    }
    if (!rail->writable) {
        return 0;
    }
    bool within = rail->index == 0 && link->written > 0;
    if (!within && (rail->out_bytes > 0 || take_part(rail))) {
        return write_part(rail);
    }
    /* No header before the parts that are left to another rail: this one may get them yet. */
    return rail->index == 0 && !rail->deferred && link->announced < link->head
               ? gr_tcp_write_messages(link)
               : 0;
}

void gr_tcp_link_stripe(gr_tcp_link *link)
{
    size_t turn = 0, before;
    if (link->unstriped_bytes > 0) {
        sample_speeds(link);
    }
    do {
        before = turn;
        for (int i = 0; i < link->base.rails; i++) {
            turn += pump(gr_tcp_rail_at(link, i));
        }
    } while (turn > before && turn < GR_TCP_BYTES_A_TURN);
}

void gr_tcp_leave_parts(gr_tcp_link *link)
{
    const gr_part end = {0};
    for (int i = 1; i < link->base.rails; i++) {
        gr_tcp_rail *rail = gr_tcp_rail_at(link, i);
        gr_part_encode(&end, rail->out_head);
        struct iovec head = {.iov_base = rail->out_head, .iov_len = GR_PART_HEAD_BYTES};
        (void)gr_tcp_rail_write(rail, &head, 1); /* else it looks as if we had died */
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static void break_link(const gr_tcp_rail *rail, const char *what)
{
    gr_link *base = &rail->link->base;
    gr_link_break(base, false, GR_E_PROTOCOL, "rank %d sent %s (rail %d of %d)", base->peer, what,
                  rail->index, base->rails);
}

/* Take the head of a part off the buffer. False: it is not there, or the first rail has a message
 * there. */
static bool parse_part(gr_tcp_rail *rail)
{
    gr_tcp_link *link = rail->link;
    gr_diag diag = {0};
    const uint8_t *head = rail->buffer + rail->start;
    if (gr_tcp_buffered(rail) < GR_PART_HEAD_BYTES || (rail->index == 0 && !gr_part_marked(head))) {
        return false;
    }
    if (gr_part_decode(head, &rail->in, &diag) != GR_OK) {
        break_link(rail, diag.text);
        return false;
    }
    rail->start += GR_PART_HEAD_BYTES;
    int32_t ahead = (int32_t)(rail->in.message - link->number);
    if (rail->in.size_bytes == 0 && rail->index > 0) {
        rail->left = true;
        return false;
    }
    if (rail->in.size_bytes == 0 || ahead > GR_TCP_QUEUE ||
        (rail->index == 0 && ahead >= (link->have ? 1 : 0))) {
        break_link(rail, "a part of a message that is none");
        return false;
    }
    rail->in_have = true;
    rail->in_checked = false;
    rail->in_got = 0;
    return true;
}

typedef enum part_use { PART_WAIT, PART_SKIP, PART_READ } part_use;

static part_use use_of(const gr_tcp_rail *rail)
{
    const gr_tcp_link *link = rail->link;
    int32_t ahead = (int32_t)(rail->in.message - link->number);
    if (ahead < 0 || link->base.discard) {
        return PART_SKIP;
    }
    return ahead == 0 && link->have && link->dst != NULL ? PART_READ : PART_WAIT;
}

/* The part lies within the head's payload, and it is the first to say so. */
static bool fits(gr_tcp_rail *rail)
{
    gr_tcp_link *link = rail->link;
    const gr_part *part = &rail->in;
    uint32_t size = link->frame.size_bytes, index = part->offset / GR_PART_BYTES;
    uint8_t *bits = &link->parts_begun[index / 8], bit = (uint8_t)(1U << index % 8);
    bool legal = part->offset >= link->inline_max && part->offset < size &&
                 part->size_bytes ==
                     (size - part->offset < GR_PART_BYTES ? size - part->offset : GR_PART_BYTES) &&
                 (*bits & bit) == 0;
    *bits |= bit;
    rail->in_checked = true;
    if (!legal) {
        break_link(rail, "a part that is not one of its message");
    }
    return legal;
}

/* Move the part that is read on; false: not now. */
static bool read_part(gr_tcp_rail *rail)
{
    gr_tcp_link *link = rail->link;
    part_use now = use_of(rail);
    if (now == PART_WAIT || (now == PART_READ && !rail->in_checked && !fits(rail))) {
        return false;
    }
    uint8_t *to = now == PART_READ ? link->dst + rail->in.offset + rail->in_got : NULL;
    uint32_t left = rail->in.size_bytes - rail->in_got;
    size_t got = gr_tcp_rail_take(rail, to, left);
    if (got == 0 && rail->readable) {
        /* The next part's head comes along. What is not wanted goes through the buffer. */
        uint32_t room = rail->index > 0 && to != NULL ? GR_PART_HEAD_BYTES : GR_TCP_BUFFER;
        got = gr_tcp_rail_read(rail, to, to != NULL ? left : 0, room);
        if (got == 0) {
            got = gr_tcp_rail_take(rail, to, left);
        }
    }
    rail->in_got += (uint32_t)got;
    link->part_bytes += to != NULL ? (uint32_t)got : 0;
    rail->in_have = rail->in_got < rail->in.size_bytes;
    return got > 0;
}

/* The first rail's bytes are for this file once the head's front is read. */
static bool may_read_head(const gr_tcp_rail *rail)
{
    const gr_tcp_link *link = rail->link;
    return rail->index > 0 ? !rail->left
                           : link->have && link->got_bytes == link->inline_max &&
                                 gr_tcp_buffered(rail) < GR_PART_HEAD_BYTES;
}

void gr_tcp_rail_receive_parts(gr_tcp_rail *rail)
{
    bool on = true;
    while (on && rail->link->base.state == GR_LINK_UP) {
        on = rail->in_have ? read_part(rail) : parse_part(rail);
        if (!on && !rail->in_have && rail->readable && may_read_head(rail) &&
            rail->link->base.state == GR_LINK_UP) {
            uint32_t room =
                rail->index > 0 ? GR_PART_HEAD_BYTES - gr_tcp_buffered(rail) : GR_TCP_BUFFER;
            uint32_t had = gr_tcp_buffered(rail);
            (void)gr_tcp_rail_read(rail, NULL, 0, room);
            on = gr_tcp_buffered(rail) > had;
        }
    }
}

void gr_tcp_receive_parts(gr_tcp_link *link)
{
    for (int i = 0; i < link->base.rails; i++) {
        gr_tcp_rail_receive_parts(gr_tcp_rail_at(link, i));
    }
}

static bool may_read(const gr_tcp_rail *rail)
{
    return rail->readable && (rail->in_have ? use_of(rail) != PART_WAIT : may_read_head(rail));
}

/* Nothing is left to be read that the end of a rail may be behind. */
static bool ended(gr_tcp_link *link)
{
    bool unread = link->have && !gr_tcp_small(link) && link->dst == NULL && !link->base.discard;
    bool front = link->first.readable && (!link->have || link->got_bytes < link->inline_max);
    bool more = unread || front;
    for (int i = 0; i < link->base.rails && !more; i++) {
        more = may_read(gr_tcp_rail_at(link, i));
    }
    return !more;
}

void gr_tcp_report_lost_rail(gr_tcp_link *link)
{
    if (link->lost && link->base.state == GR_LINK_UP && ended(link)) {
        gr_link_closed(&link->base, link->lost_error);
    }
}

bool gr_tcp_parts_busy(gr_tcp_link *link)
{
    bool busy = link->lost && ended(link);
    for (int i = 0; i < link->base.rails && !busy; i++) {
        gr_tcp_rail *rail = gr_tcp_rail_at(link, i);
        busy =
            may_read(rail) ||
            (rail->writable && (rail->out_bytes > 0 ||
                                (!rail->deferred && next_to_stripe(link, limit_of(rail)) != NULL)));
    }
    return busy;
}
