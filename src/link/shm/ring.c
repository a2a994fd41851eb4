/* SPDX-License-Identifier: Apache-2.0 */

/* The data path between two processes: a ring of descriptors in the sender's file, a counter of
 * what was released in the receiver's. No locks, and no system call while nobody sleeps.
 *
 * Order of memory: the sender fills a descriptor and then stores its sequence; the receiver
 * loads the sequence and then reads the descriptor. The receiver is done with a payload and then
 * stores its counter; the sender loads the counter and then reuses the place. Both stores are
 * sequentially consistent because each is followed by a look at the other's doorbell: either the
 * sleeper sees the store before it sleeps, or the one that stored sees that it sleeps. */

#include "link/shm/shm.h"

#include "base/fail.h"
#include "link/frame.h"

#include <string.h>

enum {
    MASK = GR_SHM_SLOTS - 1,
    RESERVED = 2 /* descriptors that only BYE and ABORT may take: they must never be stuck */
};
#define NO_HOLD UINT64_MAX

static gr_shm_link *shm_of(gr_link *link)
{
    return (gr_shm_link *)link;
}

static gr_shm_mesh *mesh_of(const gr_shm_link *link)
{
    return (gr_shm_mesh *)link->base.mesh;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* Look at what the peer has released; false if it says nonsense (the link is broken then). */
static bool refresh(gr_shm_link *link)
{
    uint64_t freed = atomic_load_explicit(&link->in->released, memory_order_acquire);
    if (freed < link->freed || freed > link->head) {
        gr_link_break(&link->base, false, GR_E_PROTOCOL,
                      "rank %d says that it released message %llu of %llu", link->base.peer,
                      (unsigned long long)freed, (unsigned long long)link->head);
        return false;
    }
    link->freed = freed;
    if (freed > 0) {
        link->stage_tail =
            freed == link->head ? link->stage_head : link->stage_end[(freed - 1) & MASK];
    }
    if (link->wanted != 0 && freed >= link->wanted) {
        link->wanted = 0;
    }
    return true;
}

static void want(gr_shm_link *link, uint64_t released)
{
    if (link->wanted == 0 || released < link->wanted) {
        link->wanted = released;
    }
}

void gr_shm_link_poll_released(gr_shm_link *link)
{
    if (link->wanted != 0 && link->base.state == GR_LINK_UP) {
        (void)refresh(link);
    }
}

static bool slot_free(gr_shm_link *link, uint64_t reserved)
{
    if (link->head + 1 + reserved - link->freed <= GR_SHM_SLOTS) {
        return true;
    }
    return refresh(link) && link->head + 1 + reserved - link->freed <= GR_SHM_SLOTS;
}

/* Contiguous room in the stage: its offset in our file; 0 if there is none. */
static size_t stage_take(gr_shm_link *link, size_t size_bytes)
{
    uint64_t start = link->stage_head;
    size_t at = (size_t)(start % GR_SHM_STAGE_BYTES);
    if (at + size_bytes > GR_SHM_STAGE_BYTES) {
        start += GR_SHM_STAGE_BYTES - at;
    }
    if (start + size_bytes - link->stage_tail > GR_SHM_STAGE_BYTES &&
        (!refresh(link) || start + size_bytes - link->stage_tail > GR_SHM_STAGE_BYTES)) {
        return 0;
    }
    link->stage_head = (start + size_bytes + GR_SHM_LINE - 1) / GR_SHM_LINE * GR_SHM_LINE;
    return gr_shm_stage_offset(link->base.mesh->world_size, link->base.peer) +
           (size_t)(start % GR_SHM_STAGE_BYTES);
}

static gr_shm_slot *begin_slot(gr_shm_link *link, const gr_frame *frame, gr_shm_place place)
{
    gr_shm_slot *slot = &link->out->slots[link->head & MASK];
    slot->kind = frame->kind;
    slot->place = (uint8_t)place;
    slot->comm = frame->comm;
    slot->op_seq = frame->op_seq;
    slot->message = frame->message;
    slot->segment = frame->segment;
    slot->size_bytes = frame->size_bytes;
    slot->fingerprint = frame->fingerprint;
    return slot;
}

static void publish(gr_shm_link *link, gr_shm_slot *slot)
{
    link->borrowed[link->head & MASK] = link->last_borrowed;
    link->stage_end[link->head & MASK] = link->stage_head;
    link->head++;
    atomic_store(&slot->sequence, (uint32_t)link->head);
    if (gr_shm_link_wake(link)) {
        link->base.mesh->stats.system_calls++;
    }
}

static void send_far(gr_shm_link *link, const gr_frame *frame, gr_shm_place place, size_t offset,
                     uint32_t piece_bytes, uint32_t piece_at)
{
    gr_shm_slot *slot = begin_slot(link, frame, place);
    slot->payload.far.offset = offset;
    slot->payload.far.piece_bytes = piece_bytes;
    slot->payload.far.piece_at = piece_at;
    publish(link, slot);
}

/* Copy a part of a payload into the stage and publish it; false: no room. */
static bool send_staged(gr_shm_link *link, const gr_frame *frame, gr_shm_place place,
                        const uint8_t *data, uint32_t size_bytes, uint32_t piece_at)
{
    size_t offset;
    if (!slot_free(link, RESERVED) || (offset = stage_take(link, size_bytes)) == 0) {
        want(link, link->freed + 1);
        return false;
    }
    gr_stream_copy(&link->to_stage, link->stage_head / GR_SHM_STAGE_BYTES,
                   mesh_of(link)->own.base + offset, data, size_bytes);
    link->base.mesh->stats.bytes_copied += size_bytes;
    send_far(link, frame, place, offset, size_bytes, piece_at);
    return true;
}

void gr_shm_link_push(gr_shm_link *link)
{
    gr_shm_pending *pending = &link->pending;
    while (pending->active && link->base.state == GR_LINK_UP) {
        uint32_t left = pending->frame.size_bytes - pending->done_bytes;
        uint32_t size = left < GR_SHM_PIECE_BYTES ? left : GR_SHM_PIECE_BYTES;
        if (!send_staged(link, &pending->frame, GR_SHM_PIECE, pending->data + pending->done_bytes,
                         size, pending->done_bytes)) {
            return;
        }
        pending->done_bytes += size;
        pending->active = size < left;
    }
}

static void send_inline(gr_shm_link *link, const gr_frame *frame, const void *data)
{
    gr_shm_slot *slot = begin_slot(link, frame, GR_SHM_INLINE);
    if (frame->size_bytes > 0) {
        memcpy(slot->payload.bytes, data, frame->size_bytes);
    }
    publish(link, slot);
}

_Static_assert((int)GR_SHM_TEXT_BYTES == GR_FRAME_ABORT_MAX, "any sentence fits");

/* An ABORT has its own place in the file: it must get through when all else is full. */
static gr_status send_sentence(gr_shm_link *link, const gr_frame *frame, const void *data)
{
    char *text = link->out->text;
    if (!slot_free(link, 0)) {
        return GR_E_AGAIN;
    }
    memcpy(text, data, frame->size_bytes);
    send_far(link, frame, GR_SHM_WHOLE, (size_t)((uint8_t *)text - mesh_of(link)->own.base),
             frame->size_bytes, 0);
    return GR_OK;
}

/* Where our file has it; NULL: it has not. */
static const uint8_t *find_in_file(const gr_shm_link *link, const uint8_t *data, size_t size_bytes)
{
    const gr_shm_segment *own = &mesh_of(link)->own;
    uintptr_t heap = (uintptr_t)own->base + own->heap_offset, at = (uintptr_t)data;
    uintptr_t end = (uintptr_t)own->base + own->size_bytes;
    return at >= heap && at < end && size_bytes <= end - at
               ? data
               : gr_shm_registered_find(&mesh_of(link)->registered, data, size_bytes);
}

static gr_status send_data(gr_shm_link *link, const gr_frame *frame, const uint8_t *data)
{
    uint32_t size = frame->size_bytes;
    uint32_t eager = link->base.mesh->spin.allowed ? GR_SHM_EAGER_MAX : GR_SHM_EAGER_MAX_SHARED;
    const uint8_t *far = size > eager ? find_in_file(link, data, size) : NULL;
    if (size > GR_SHM_INLINE_MAX && far == NULL) {
        if (size <= GR_SHM_PIECE_BYTES) {
            return send_staged(link, frame, GR_SHM_WHOLE, data, size, 0) ? GR_OK : GR_E_AGAIN;
        }
        link->pending = (gr_shm_pending){.frame = *frame, .data = data, .active = true};
        gr_shm_link_push(link);
        return GR_OK;
    }
    if (!slot_free(link, RESERVED)) {
        want(link, link->freed + 1);
        return GR_E_AGAIN;
    }
    if (size <= GR_SHM_INLINE_MAX) {
        send_inline(link, frame, data);
    } else {
        link->last_borrowed = link->head + 1;
        send_far(link, frame, GR_SHM_WHOLE, (size_t)(far - mesh_of(link)->own.base), size, 0);
    }
    return GR_OK;
}

gr_status gr_shm_link_send(gr_link *base, const gr_frame *frame, const void *data,
                           uint64_t *ticket_out)
{
    gr_shm_link *link = shm_of(base);
    gr_status status = GR_E_AGAIN;
    if (frame->kind != GR_FRAME_DATA && frame->size_bytes > 0) {
        status = send_sentence(link, frame, data);
    } else if (frame->kind != GR_FRAME_DATA) {
        if (slot_free(link, 0)) {
            send_inline(link, frame, data);
            status = GR_OK;
        }
    } else {
        gr_shm_link_push(link);
        if (!link->pending.active) {
            status = send_data(link, frame, data);
        }
    }
    if (base->state != GR_LINK_UP) {
        return GR_E_PEER_LOST;
    }
    if (status == GR_OK) {
        uint32_t left = link->pending.active ? frame->size_bytes - link->pending.done_bytes : 0;
        *ticket_out = link->head + (left + GR_SHM_PIECE_BYTES - 1) / GR_SHM_PIECE_BYTES;
        base->mesh->stats.messages_sent++;
        base->mesh->stats.bytes_sent += frame->size_bytes;
    }
    return status;
}

bool gr_shm_link_sent(gr_link *base, uint64_t ticket)
{
    gr_shm_link *link = shm_of(base);
    gr_shm_link_push(link);
    if (ticket > link->head) {
        return base->state != GR_LINK_UP;
    }
    if (ticket <= link->freed) {
        return true;
    }
    /* Not freed: the note beside the descriptor is still about this message. */
    uint64_t borrowed = link->borrowed[(ticket - 1) & MASK];
    if (borrowed <= link->freed || !refresh(link) || borrowed <= link->freed) {
        return true;
    }
    want(link, borrowed);
    return false;
}

void gr_shm_link_leave(gr_link *base)
{
    gr_shm_link *link = shm_of(base);
    const gr_frame bye = {.kind = GR_FRAME_BYE};
    if (slot_free(link, 0)) {
        send_inline(link, &bye, "");
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static const gr_shm_slot *slot_at(const gr_shm_link *link, uint64_t index)
{
    return &link->in->slots[index & MASK];
}

static bool arrived(const gr_shm_link *link, uint64_t index)
{
    return atomic_load_explicit(&slot_at(link, index)->sequence, memory_order_acquire) ==
           (uint32_t)(index + 1);
}

bool gr_shm_link_has_events(const gr_shm_link *link)
{
    /* Sequentially consistent: a sleeper looks here after it said that it sleeps. */
    uint32_t sequence = atomic_load(&slot_at(link, link->seen)->sequence);
    return sequence == (uint32_t)(link->seen + 1) ||
           (link->wanted != 0 && atomic_load(&link->in->released) >= link->wanted);
}

/* A copy of the descriptor that the peer cannot change any more, checked; false: not arrived, or
 * the link is broken. */
static bool load_slot(gr_shm_link *link, uint64_t index, gr_shm_slot *copy)
{
    const gr_shm_slot *slot = slot_at(link, index);
    uint32_t sequence = atomic_load_explicit(&slot->sequence, memory_order_acquire);
    if (sequence != (uint32_t)(index + 1)) {
        uint32_t before = index < GR_SHM_SLOTS ? 0 : (uint32_t)(index + 1 - GR_SHM_SLOTS);
        if (sequence != before) {
            gr_link_break(&link->base, false, GR_E_PROTOCOL,
                          "rank %d wrote descriptor %u where %u was due", link->base.peer, sequence,
                          (uint32_t)(index + 1));
        }
        return false;
    }
    memcpy((void *)copy, (const void *)slot, sizeof *copy);
    bool far = copy->place == GR_SHM_WHOLE || copy->place == GR_SHM_PIECE;
    gr_frame frame = {.kind = copy->kind, .size_bytes = copy->size_bytes};
    gr_diag diag = {0};
    uint64_t size = copy->place == GR_SHM_PIECE ? copy->payload.far.piece_bytes : copy->size_bytes;
    uint64_t end = link->theirs.size_bytes;
    if (gr_frame_check(&frame, &diag) != GR_OK) {
        gr_link_break(&link->base, false, GR_E_PROTOCOL, "rank %d sent %s", link->base.peer,
                      diag.text);
    } else if ((!far && copy->place != GR_SHM_INLINE) ||
               (!far && copy->size_bytes > GR_SHM_INLINE_MAX) ||
               (copy->place == GR_SHM_PIECE && copy->kind != GR_FRAME_DATA) ||
               (far && (copy->payload.far.offset > end || size > end - copy->payload.far.offset))) {
        gr_link_break(&link->base, false, GR_E_PROTOCOL,
                      "rank %d sent a message that lies outside its memory file", link->base.peer);
    } else {
        return true;
    }
    return false;
}

static gr_frame frame_of(const gr_shm_slot *slot)
{
    return (gr_frame){.kind = slot->kind,
                      .comm = slot->comm,
                      .op_seq = slot->op_seq,
                      .message = slot->message,
                      .segment = slot->segment,
                      .size_bytes = slot->size_bytes,
                      .fingerprint = slot->fingerprint};
}

void gr_shm_link_scan(gr_shm_link *link)
{
    if (arrived(link, link->seen)) {
        gr_link_set_ready(&link->base);
    }
    while (link->base.state == GR_LINK_UP && arrived(link, link->seen)) {
        uint8_t kind = slot_at(link, link->seen)->kind;
        gr_shm_slot copy;
        if (kind == GR_FRAME_BYE) {
            gr_link_left(&link->base);
        } else if (kind == GR_FRAME_ABORT && load_slot(link, link->seen, &copy) &&
                   copy.kind == GR_FRAME_ABORT) {
            const void *text = copy.place == GR_SHM_INLINE
                                   ? (const void *)copy.payload.bytes
                                   : link->theirs.base + copy.payload.far.offset;
            const gr_frame frame = frame_of(&copy);
            gr_link_aborted(&link->base, &frame, text);
        }
        link->seen++;
    }
}

/* Publish how many descriptors were released without a gap: to nobody once the link has ended, when
 * the counter may be another one's already. */
static void advance_released(gr_shm_link *link)
{
    uint64_t released = link->released;
    if (link->base.state != GR_LINK_UP) {
        return;
    }
    while (released < link->tail &&
           (link->held[(released & MASK) / 64] >> (released % 64) & 1) == 0) {
        released++;
    }
    if (released == link->released) {
        return;
    }
    link->released = released;
    atomic_store(&link->out->released, released);
    if (atomic_load(&link->doorbell->sleeping) != 0) {
        uint64_t wake_at = atomic_load(&link->in->wake_at);
        if (wake_at != 0 && released >= wake_at && gr_shm_link_wake(link)) {
            link->base.mesh->stats.system_calls++;
        }
    }
}

static void drop_tail(gr_shm_link *link)
{
    link->tail++;
    if (link->seen < link->tail) {
        link->seen = link->tail;
    }
    advance_released(link);
}

/* The descriptor of data at the tail; at BYE or ABORT the link ends. */
static bool load_data(gr_shm_link *link, gr_shm_slot *copy)
{
    if (!load_slot(link, link->tail, copy)) {
        return false;
    }
    if (copy->kind != GR_FRAME_DATA) {
        gr_shm_link_scan(link);
        return false;
    }
    return true;
}

/* The next piece of the message at the head, which begins at `at` of it. NULL: not there yet. */
static const uint8_t *take_piece(gr_shm_link *link, uint32_t at, uint32_t *size_out)
{
    gr_shm_slot piece;
    if (!load_data(link, &piece)) {
        return NULL;
    }
    uint32_t size = piece.payload.far.piece_bytes;
    if (piece.place != GR_SHM_PIECE || piece.payload.far.piece_at != at || size == 0 ||
        size > link->frame.size_bytes - at || piece.size_bytes != link->frame.size_bytes ||
        piece.op_seq != link->frame.op_seq || piece.message != link->frame.message ||
        piece.segment != link->frame.segment) {
        gr_link_break(&link->base, false, GR_E_PROTOCOL,
                      "rank %d sent pieces that do not belong together", link->base.peer);
        return NULL;
    }
    *size_out = size;
    return link->theirs.base + piece.payload.far.offset;
}

void gr_shm_link_skip(gr_shm_link *link)
{
    uint32_t size;
    while (link->skip_bytes > 0 &&
           take_piece(link, link->frame.size_bytes - link->skip_bytes, &size) != NULL) {
        link->skip_bytes -= size;
        drop_tail(link);
    }
}

gr_status gr_shm_link_peek(gr_link *base, gr_frame *frame_out)
{
    gr_shm_link *link = shm_of(base);
    if (!link->have) {
        gr_shm_slot copy;
        gr_shm_link_skip(link);
        if (link->skip_bytes > 0 || !load_data(link, &copy)) {
            return GR_PENDING;
        }
        if (link->seen <= link->tail) {
            link->seen = link->tail + 1;
        }
        link->frame = frame_of(&copy);
        link->place = copy.place;
        link->got_bytes = 0;
        link->at = copy.place == GR_SHM_INLINE ? slot_at(link, link->tail)->payload.bytes
                                               : link->theirs.base + copy.payload.far.offset;
        link->have = true;
    }
    *frame_out = link->frame;
    return GR_OK;
}

gr_status gr_shm_link_view(gr_link *base, const void **data_out)
{
    gr_shm_link *link = shm_of(base);
    if (!link->have || link->place == GR_SHM_PIECE) {
        return GR_E_UNSUPPORTED;
    }
    *data_out = link->at;
    return GR_OK;
}

gr_status gr_shm_link_read(gr_link *base, void *dst)
{
    gr_shm_link *link = shm_of(base);
    if (!link->have) {
        return GR_PENDING;
    }
    uint32_t size = link->frame.size_bytes;
    if (link->place != GR_SHM_PIECE) {
        if (size > 0) {
            memcpy(dst, link->at, size);
        }
        return GR_OK;
    }
    while (link->got_bytes < size) {
        uint32_t piece_bytes;
        const uint8_t *piece = take_piece(link, link->got_bytes, &piece_bytes);
        if (piece == NULL) {
            return GR_PENDING;
        }
        memcpy((uint8_t *)dst + link->got_bytes, piece, piece_bytes);
        link->got_bytes += piece_bytes;
        drop_tail(link);
    }
    return GR_OK;
}

void gr_shm_link_next(gr_link *base, uint64_t *hold_out)
{
    gr_shm_link *link = shm_of(base);
    if (hold_out != NULL) {
        *hold_out = NO_HOLD;
    }
    if (!link->have) {
        return;
    }
    link->have = false;
    if (link->place == GR_SHM_PIECE) {
        link->skip_bytes = link->frame.size_bytes - link->got_bytes;
        gr_shm_link_skip(link);
        return;
    }
    uint64_t bit = UINT64_C(1) << (link->tail % 64);
    uint64_t *word = &link->held[(link->tail & MASK) / 64];
    if (hold_out != NULL) {
        *word |= bit;
        *hold_out = link->tail;
    } else {
        *word &= ~bit;
    }
    link->tail++;
    advance_released(link);
}

void gr_shm_link_discard(gr_link *base)
{
    shm_of(base)->pending.active = false;
    gr_shm_link_scan(shm_of(base));
}

void gr_shm_link_release(gr_link *base, uint64_t hold)
{
    gr_shm_link *link = shm_of(base);
    if (hold >= link->tail || hold < link->released) {
        return;
    }
    link->held[(hold & MASK) / 64] &= ~(UINT64_C(1) << (hold % 64));
    advance_released(link);
}
