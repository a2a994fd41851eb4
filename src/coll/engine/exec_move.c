/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/exec_group_end.h"
#include "coll/engine/exec_internal.h"

#include <string.h>

/* ---- Where a segment lies -------------------------------------------------------------------- */
typedef struct piece {
    uint32_t block;
    size_t first; /* in a buffer of all blocks */
    size_t size;  /* 0: nothing is there */
} piece;

static const piece nothing = {.size = 0};

static inline piece piece_of(const gr_op *op, gr_operand operand, uint32_t segment)
{
    size_t first, end;
    if (op->uneven) {
        const size_t *offsets = op->offsets[operand.space == GR_SPACE_INPUT];
        first = offsets[operand.block];
        end = offsets[operand.block + 1];
    } else {
        first = gr_cut_offset(&op->cut, operand.block);
        end = gr_cut_offset(&op->cut, (size_t)operand.block + 1);
    }
    first += segment * op->segment_bytes;
    if (first >= end) {
        return nothing;
    }
    size_t size = end - first;
    return (piece){.block = operand.block,
                   .first = first,
                   .size = size < op->segment_bytes ? size : op->segment_bytes};
}

/* What a SEND or RECV moves. */
static gr_operand moved_by(const gr_schedule_step *step)
{
    return step->kind == GR_STEP_SEND ? step->a : step->dst;
}

/* Small operations feel a division. */
static uint32_t place_in_slice(const gr_op *op, uint32_t segment)
{
    return segment < op->slice_segments ? segment : segment % op->slice_segments;
}

/* Of a slot that receives. */
static gr_exec_view *view_of(const gr_op *op, uint32_t slot, uint32_t segment)
{
    return &op->views[(size_t)op->schedule->slot_places[slot] * op->slice_segments +
                      place_in_slice(op, segment)];
}

static uint8_t *scratch_at(const gr_op *op, uint32_t place, uint32_t segment)
{
    return op->scratch + place * op->slice_stride + place_in_slice(op, segment) * op->segment_bytes;
}

/* `p`, not an empty one, is that of one of the step's operands: evenly cut, it is that of all which
 * name the same block. */
static size_t offset_of(const gr_op *op, gr_operand operand, uint32_t segment, piece p)
{
    bool same = !op->uneven && operand.block == p.block;
    size_t first = same ? p.first : piece_of(op, operand, segment).first;
    return first - op->base[operand.space == GR_SPACE_INPUT];
}

static uint8_t *write_at(const gr_op *op, gr_operand operand, uint32_t segment, piece p)
{
    return operand.space == GR_SPACE_USER
               ? (uint8_t *)op->user[operand.slot] + offset_of(op, operand, segment, p)
               : scratch_at(op, op->schedule->slot_places[operand.slot], segment);
}

static const uint8_t *read_at(gr_op *op, gr_operand operand, bool received, uint32_t segment,
                              piece p)
{
    if (operand.space == GR_SPACE_INPUT) {
        return op->input[operand.slot] + offset_of(op, operand, segment, p);
    }
    return received ? view_of(op, operand.slot, segment)->at : write_at(op, operand, segment, p);
}

/* ---- What a finished segment sets free ------------------------------------------------------- */
static bool is_done(const gr_op *op, uint32_t at, uint32_t segment, bool whole)
{
    const gr_schedule_step *step = &op->schedule->steps[at];
    uint32_t segments = gr_op_segments(op, step);
    uint32_t done = op->step_done[at];
    return done == segments || (!whole && !gr_step_is_whole(step->kind) && done > segment);
}

/* Returns true if the scratch is free that the slice before this one used. */
static bool slice_is_free(const gr_op *op, const gr_schedule_step *step, uint32_t segment)
{
    const uint32_t *again = &op->schedule->after[step->again_first];
    for (uint32_t i = 0; i < step->again_count; i++) {
        if (op->step_done[again[i]] <= segment - op->slice_segments) {
            return false;
        }
    }
    return true;
}

static bool is_ready(const gr_op *op, uint32_t at, uint32_t segment)
{
    const gr_schedule_step *step = &op->schedule->steps[at];
    const uint32_t *after = &op->schedule->after[step->after_first];
    bool whole = gr_step_is_whole(step->kind);
    if (step->dst.space == GR_SPACE_SCRATCH &&
        (!op->scratch || (segment >= op->slice_segments && !slice_is_free(op, step, segment)))) {
        return false;
    }
    for (uint32_t i = 0; i < step->after_count; i++) {
        if (!is_done(op, after[i], segment, whole)) {
            return false;
        }
    }
    return true;
}

void gr_exec_mark_post(gr_exec *exec, gr_exec_link *link)
{
    if (!link->to_post) {
        link->to_post = true;
        exec->posts[exec->post_count++] = link->peer;
    }
}

/* The queue is a ring; `place` is less than twice its length. */
static uint32_t in_queue(const gr_op *op, uint32_t place)
{
    return place < op->schedule->step_count ? place : place - op->schedule->step_count;
}

void gr_exec_queue_if_ready(gr_exec *exec, gr_op *op, uint32_t at)
{
    uint32_t segment = op->step_done[at];
    if (op->queued[at] || segment == gr_op_segments(op, &op->schedule->steps[at]) ||
        !is_ready(op, at, segment)) {
        return;
    }
    op->queued[at] = 1;
    op->queue[in_queue(op, op->queue_head + op->queue_count++)] = at;
    if (!op->in_work) {
        op->in_work = true;
        op->next_work = NULL;
        if (exec->work_tail) {
            exec->work_tail->next_work = op;
        } else {
            exec->work_head = op;
        }
        exec->work_tail = op;
    }
}

void gr_exec_step_done(gr_exec *exec, gr_op *op, uint32_t at)
{
    const gr_schedule *schedule = op->schedule;
    const gr_schedule_step *step = &schedule->steps[at];
    op->step_done[at]++;
    op->left--;
    op->watch.moved = true;
    exec->moved = true;
    for (uint32_t i = 0; i < step->next_count; i++) {
        uint32_t next_at = schedule->next[step->next_first + i];
        const gr_schedule_step *next = &schedule->steps[next_at];
        switch (next->kind) {
        case GR_STEP_SEND:
        case GR_STEP_SIGNAL:
            gr_exec_mark_post(exec, &exec->links[gr_op_world(op, next->peer)]);
            break;
        case GR_STEP_RECV:
        case GR_STEP_AWAIT:
            break; /* every pass looks at every link */
        default:
            gr_exec_queue_if_ready(exec, op, next_at);
            break;
        }
    }
    if (op->left == 0) {
        exec->ring[op->seq & (GR_EXEC_RING - 1)] = NULL;
        while (exec->oldest_seq != exec->next_seq && !gr_exec_op_at(exec, exec->oldest_seq)) {
            exec->oldest_seq++;
        }
        gr_exec_part_over(exec, op);
    }
}

/* ---- Local steps ----------------------------------------------------------------------------- */
static void give_back(gr_exec *exec, gr_exec_view *view)
{
    gr_exec_link *link = &exec->links[view->peer];
    gr_link_release(link->link, view->hold);
    link->holds--;
    exec->holds--;
    view->held = false;
}

void gr_exec_release_views(gr_exec *exec)
{
    for (uint32_t seq = exec->oldest_seq; seq != exec->next_seq && exec->holds > 0; seq++) {
        gr_op *op = gr_exec_op_at(exec, seq);
        for (uint32_t place = 0; op && place < op->schedule->receiving_places; place++) {
            gr_exec_view *views = &op->views[(size_t)place * op->slice_segments];
            for (uint32_t i = 0; i < op->slice_segments; i++) {
                gr_exec_view *view = &views[i];
                if (view->held) {
                    uint8_t *own = scratch_at(op, place, view->segment);
                    gr_operand lies = {.space = GR_SPACE_SCRATCH, .block = view->block};
                    memcpy(own, view->at, piece_of(op, lies, view->segment).size);
                    view->at = own;
                    give_back(exec, view);
                }
            }
        }
    }
}

static void reader_done(gr_op *op, gr_operand operand, bool received, uint32_t segment)
{
    if (!received) {
        return;
    }
    gr_exec_view *view = view_of(op, operand.slot, segment);
    if (--view->readers == 0 && view->held) {
        give_back(op->exec, view);
    }
}

static void reduce(gr_op *op, const gr_schedule_step *step, uint32_t segment, piece p)
{
    uint8_t *dst = write_at(op, step->dst, segment, p);
    const uint8_t *a = read_at(op, step->a, step->a_received, segment, p);
    const uint8_t *b = read_at(op, step->b, step->b_received, segment, p);
    size_t count = p.size / op->element_bytes;
    if (op->user_reduce) {
        op->user_reduce(dst, a, b, count, op->reduce_arg);
    } else {
        op->reduce(dst, a, b, count);
    }
}

static void scale(const gr_op *op, uint8_t *dst, size_t count)
{
    if (op->divisor > 1) {
        gr_scale_inverse(dst, count, op->dtype, op->divisor);
    }
    if (op->postscale != 1) {
        gr_scale(dst, count, op->dtype, op->postscale);
    }
}

static void run_local(gr_exec *exec, gr_op *op, uint32_t at)
{
    const gr_schedule_step *step = &op->schedule->steps[at];
    uint32_t segment = op->step_done[at];
    piece p = piece_of(op, step->dst, segment);
    if (p.size > 0) {
        if (step->kind == GR_STEP_REDUCE) {
            reduce(op, step, segment, p);
        } else if (step->kind == GR_STEP_COPY) {
            memcpy(write_at(op, step->dst, segment, p),
                   read_at(op, step->a, step->a_received, segment, p), p.size);
        } else if (step->kind == GR_STEP_PRESCALE) {
            gr_scale_to(write_at(op, step->dst, segment, p),
                        read_at(op, step->a, false, segment, p), p.size / op->element_bytes,
                        op->dtype, op->prescale);
        } else {
            scale(op, write_at(op, step->dst, segment, p), p.size / op->element_bytes);
        }
    }
    reader_done(op, step->a, step->a_received, segment);
    reader_done(op, step->b, step->b_received, segment);
    gr_exec_step_done(exec, op, at);
    if (segment + 1 < op->segments) {
        gr_exec_queue_if_ready(exec, op, at);
    }
}

/* ---- Messages -------------------------------------------------------------------------------- */
/* `p` is what the step moves. Where nothing is there is no message, but for the first one of those
 * that tell the peer so. */
static bool has_message(const gr_op *op, const gr_schedule_step *step, uint32_t segment, piece p)
{
    return p.size > 0 || gr_step_is_whole(step->kind) || (op->sends_empty && segment == 0);
}

static bool has_messages(const gr_op *op, const gr_exec_link *link, uint32_t index, bool sending)
{
    const uint32_t *first = sending ? op->schedule->send_first : op->schedule->recv_first;
    int peer = gr_op_local(op, link->peer);
    return peer >= 0 && first[peer] + index < first[peer + 1];
}

/* The step that a cursor stands at. */
static uint32_t step_at(const gr_op *op, const gr_exec_link *link, const gr_exec_cursor *cursor,
                        bool sending)
{
    const gr_schedule *schedule = op->schedule;
    int peer = gr_op_local(op, link->peer);
    return sending ? schedule->send_steps[schedule->send_first[peer] + cursor->index]
                   : schedule->recv_steps[schedule->recv_first[peer] + cursor->index];
}

/* To the next message of the slice, or to the next slice; false: there is none. */
static bool next_message(const gr_op *op, const gr_exec_link *link, gr_exec_cursor *cursor,
                         bool sending)
{
    do {
        if (!has_messages(op, link, ++cursor->index, sending)) {
            cursor->index = 0;
            cursor->slice += op->slice_segments;
            if (cursor->slice >= op->segments) {
                return false;
            }
        }
        cursor->segment = cursor->slice;
    } while (cursor->slice > 0 &&
             gr_step_is_whole(op->schedule->steps[step_at(op, link, cursor, sending)].kind));
    return true;
}

/* Returns true if a message from the cursor on needs the link. Empty ones do not. */
static bool needs_link(gr_exec *exec, const gr_exec_link *link, gr_exec_cursor from, bool sending)
{
    while (from.seq != exec->next_seq) {
        const gr_op *op = gr_exec_op_at(exec, from.seq);
        bool left = op && has_messages(op, link, from.index, sending);
        if (left) {
            const gr_schedule_step *step = &op->schedule->steps[step_at(op, link, &from, sending)];
            piece p =
                gr_step_is_whole(step->kind) ? nothing : piece_of(op, moved_by(step), from.segment);
            if (has_message(op, step, from.segment, p)) {
                return true;
            }
        }
        if (!left || !next_message(op, link, &from, sending)) {
            from = (gr_exec_cursor){.seq = from.seq + 1};
        }
    }
    return false;
}

bool gr_exec_needs(gr_exec *exec, const gr_exec_link *link)
{
    for (uint32_t i = 0; i < link->ticket_count; i++) {
        if (!link->tickets[(link->ticket_head + i) & (GR_EXEC_TICKETS - 1)].empty) {
            return true;
        }
    }
    for (int i = 0; i < exec->custom_count; i++) {
        const gr_op *op = exec->custom[i];
        if (gr_op_local(op, link->peer) >= 0 &&
            (!op->ops->waits_for || op->ops->waits_for(op->ops_state, link->peer))) {
            return true;
        }
    }
    return gr_exec_messages_need(exec, link) || needs_link(exec, link, link->send, true) ||
           needs_link(exec, link, link->recv, false);
}

/* Moves a cursor to the next operation that has messages left on this link. */
void gr_exec_advance(gr_exec *exec, gr_exec_link *link, bool sending)
{
    gr_exec_cursor *cursor = sending ? &link->send : &link->recv;
    while (cursor->seq != exec->next_seq) {
        const gr_op *op = gr_exec_op_at(exec, cursor->seq);
        if (op && has_messages(op, link, cursor->index, sending)) {
            return;
        }
        *cursor = (gr_exec_cursor){.seq = cursor->seq + 1};
    }
}

static void segment_passed(gr_exec *exec, gr_exec_link *link, const gr_op *op, uint32_t at,
                           bool sending)
{
    gr_exec_cursor *cursor = sending ? &link->send : &link->recv;
    uint32_t left = gr_op_segments(op, &op->schedule->steps[at]) - ++cursor->segment;
    bool in_slice = left > 0 && cursor->segment - cursor->slice < op->slice_segments;
    if (!in_slice && !next_message(op, link, cursor, sending)) {
        *cursor = (gr_exec_cursor){.seq = cursor->seq + 1};
        gr_exec_advance(exec, link, sending);
    }
}

/* Finished in order: what the peer has taken, or what is written to the socket. */
static void reap_segments(gr_exec *exec, gr_exec_link *link)
{
    /* In arbitration a peer throws away what it did not expect: that it is gone is no success. */
    while (link->ticket_count > 0 && !exec->arbitrating) {
        gr_exec_ticket ticket = link->tickets[link->ticket_head];
        if (!ticket.empty && !gr_link_sent(link->link, ticket.ticket)) {
            return;
        }
        link->ticket_head = (link->ticket_head + 1) & (GR_EXEC_TICKETS - 1);
        link->ticket_count--;
        if (ticket.op->stopped) {
            exec->moved = true;
            continue;
        }
        const gr_schedule_step *step = &ticket.op->schedule->steps[ticket.step];
        if (step->kind == GR_STEP_SEND) {
            reader_done(ticket.op, step->a, step->a_received, ticket.segment);
        }
        gr_exec_step_done(exec, ticket.op, ticket.step);
    }
}

/* ---- An operation of a group that has ended -------------------------------------------------- */
static void give_back_all(gr_exec *exec, const gr_op *op)
{
    for (uint32_t place = 0; place < op->schedule->receiving_places; place++) {
        gr_exec_view *views = &op->views[(size_t)place * op->slice_segments];
        for (uint32_t i = 0; i < op->slice_segments; i++) {
            if (views[i].held) {
                give_back(exec, &views[i]);
            }
        }
    }
}

/* Its part of the head that is read just now goes, too. */
static void leave_link(gr_exec *exec, gr_exec_link *link, const gr_op *op)
{
    gr_frame frame;
    if (link->recv.seq == op->seq) {
        if (link->reading && gr_link_peek(link->link, &frame) == GR_OK &&
            !gr_exec_is_message_frame(&frame) && frame.comm == op->comm) {
            link->reading = false;
            gr_link_next(link->link, NULL);
        }
        link->recv = (gr_exec_cursor){.seq = op->seq + 1};
        gr_exec_advance(exec, link, false);
    }
    if (link->send.seq == op->seq) {
        link->send = (gr_exec_cursor){.seq = op->seq + 1};
        gr_exec_advance(exec, link, true);
    }
}

void gr_exec_plan_stop(gr_exec *exec, gr_op *op)
{
    give_back_all(exec, op);
    op->queue_count = 0;
    if (gr_op_lacks_scratch(op)) {
        exec->scratch_waits--;
        op->scratch_bytes = 0;
    }
    exec->ring[op->seq & (GR_EXEC_RING - 1)] = NULL;
    while (exec->oldest_seq != exec->next_seq && !gr_exec_op_at(exec, exec->oldest_seq)) {
        exec->oldest_seq++;
    }
    for (int peer = 0; peer < exec->world_size; peer++) {
        leave_link(exec, &exec->links[peer], op);
    }
}

bool gr_exec_plan_is_read(const gr_exec *exec, const gr_op *op)
{
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        for (uint32_t i = 0; i < link->ticket_count; i++) {
            const gr_exec_ticket *ticket =
                &link->tickets[(link->ticket_head + i) & (GR_EXEC_TICKETS - 1)];
            if (ticket->op == op) {
                return true;
            }
        }
    }
    return false;
}

void gr_exec_reap(gr_exec *exec, gr_exec_link *link)
{
    reap_segments(exec, link);
    gr_exec_messages_reap(exec, link);
}

/* Sends one segment, or passes over an empty one, which finishes behind those before it. GR_OK;
 * GR_E_AGAIN: no room, or not ready. */
static gr_status post_one(gr_exec *exec, gr_exec_link *link, gr_op *op)
{
    uint32_t at = step_at(op, link, &link->send, true);
    uint32_t segment = link->send.segment;
    const gr_schedule_step *step = &op->schedule->steps[at];
    if (!is_ready(op, at, segment)) {
        return GR_E_AGAIN;
    }
    bool whole = gr_step_is_whole(step->kind);
    piece p = whole ? nothing : piece_of(op, step->a, segment);
    if (link->ticket_count == GR_EXEC_TICKETS) {
        return GR_E_AGAIN;
    }
    uint64_t ticket = 0;
    bool empty = !has_message(op, step, segment, p); /* on either side */
    if (!empty) {
        gr_frame frame = {.kind = GR_FRAME_DATA,
                          .comm = op->comm,
                          .op_seq = op->number,
                          .message = step->message,
                          .segment = segment,
                          .size_bytes = (uint32_t)p.size,
                          .fingerprint = op->fingerprint};
        const void *data = p.size == 0 ? NULL : read_at(op, step->a, step->a_received, segment, p);
        gr_status status = gr_link_send(link->link, &frame, data, &ticket);
        if (status != GR_OK) {
            return status;
        }
    }
    op->watch.moved = true;
    exec->moved = true;
    uint32_t last = (link->ticket_head + link->ticket_count++) & (GR_EXEC_TICKETS - 1);
    link->tickets[last] = (gr_exec_ticket){
        .ticket = ticket, .op = op, .step = at, .segment = segment, .empty = empty};
    segment_passed(exec, link, op, at, true);
    return GR_OK;
}

static void post(gr_exec *exec, gr_exec_link *link)
{
    bool posted = false;
    bool large = false;
    while (link->link && link->send.seq != exec->next_seq) {
        gr_op *op = gr_exec_op_at(exec, link->send.seq);
        gr_status status = post_one(exec, link, op);
        if (status == GR_E_AGAIN) {
            break;
        }
        if (status != GR_OK) {
            gr_exec_lost(exec, link, status, op);
            return;
        }
        posted = true;
        large = op->slice_stride > GR_LINK_LAZY_BYTES;
    }
    if (posted && !link->to_flush) {
        link->to_flush = true;
        exec->flushes[exec->flush_count++] = link->peer;
    }
    if (large) {
        gr_exec_reap(exec, link);
    }
}

static void view_received(gr_op *op, const gr_schedule_step *step, uint32_t segment,
                          gr_exec_view view)
{
    view.readers = step->readers;
    *view_of(op, step->dst.slot, segment) = view;
}

/* Receives into scratch: looks at the payload where it lies if the link can show it. */
static gr_status take_scratch(gr_exec_link *link, gr_op *op, const gr_schedule_step *step,
                              uint32_t segment)
{
    const void *data = NULL;
    if (!link->reading && step->readers > 0 && !step->forwarded &&
        link->holds < GR_EXEC_HOLDS_MAX && gr_link_view(link->link, &data) == GR_OK) {
        gr_exec_view view = {
            .at = data, .peer = link->peer, .block = step->block, .segment = segment, .held = true};
        gr_link_next(link->link, &view.hold);
        link->holds++;
        op->exec->holds++;
        view_received(op, step, segment, view);
        return GR_OK;
    }
    uint8_t *dst = scratch_at(op, op->schedule->slot_places[step->dst.slot], segment);
    gr_status status = gr_link_read(link->link, dst);
    link->reading = status == GR_PENDING;
    if (status == GR_OK) {
        gr_link_next(link->link, NULL);
        view_received(op, step, segment, (gr_exec_view){.at = dst});
    }
    return status;
}

/* Takes the head, which is segment `segment` of step `at`. GR_PENDING: not all of it is here. */
static gr_status take_one(gr_exec_link *link, gr_op *op, const gr_schedule_step *step,
                          uint32_t segment, piece p)
{
    if (p.size == 0) {
        gr_link_next(link->link, NULL);
        return GR_OK;
    }
    if (step->dst.space == GR_SPACE_SCRATCH) {
        return take_scratch(link, op, step, segment);
    }
    gr_status status = gr_link_read(link->link, write_at(op, step->dst, segment, p));
    link->reading = status == GR_PENDING;
    if (status == GR_OK) {
        gr_link_next(link->link, NULL);
    }
    return status;
}

static bool is_expected(const gr_frame *frame, const gr_op *op, const gr_schedule_step *step,
                        uint32_t segment, piece p)
{
    return frame->op_seq == op->number && frame->comm == op->comm &&
           frame->fingerprint == op->fingerprint && frame->message == step->message &&
           frame->segment == segment && frame->size_bytes == p.size;
}

/* The peer's first message of an operation: it has come. */
static void note_arrival(gr_exec_link *link, gr_op *op)
{
    gr_op_id id = gr_op_identity(op);
    if (gr_diagnosis_has_arrived(op->exec->diagnosis, &id, link->peer)) {
        return; /* seen before it could be taken */
    }
    gr_op_arrived(op, link->peer, true);
}

/* Nothing can be started here before a message of that peer has moved, and that stands behind the
 * head, which is of an operation that was not started. */
static gr_op *blocked_message(const gr_exec *exec, const gr_exec_link *link)
{
    gr_op *found = NULL;
    for (gr_op *op = exec->blocked ? exec->blocked->head : NULL; op; op = op->next_part) {
        found = op->is_message && !op->over && gr_exec_lacks(exec, op, link->peer) ? op : found;
    }
    return found && gr_exec_is_blocked(exec, found) ? found : NULL;
}

/* A frame of which nothing was expected so far. */
static void look_at_foreign(gr_exec *exec, gr_exec_link *link, const gr_frame *frame, gr_op *op,
                            size_t size_bytes)
{
    gr_op_id id = gr_op_id_of_frame(frame, exec->rank);
    op = op || gr_exec_has_begun(exec, &id, link->peer) ? op : blocked_message(exec, link);
    if (op || gr_exec_has_begun(exec, &id, link->peer)) {
        gr_diagnosis_foreign_frame(exec->diagnosis, link->peer, frame, op,
                                   op && !op->is_message && op->uneven, size_bytes);
    }
}

/* What stands at the head of a link. */
typedef enum head_state { HEAD_EXPECTED, HEAD_TAKEN, HEAD_WAITS } head_state;

/* Takes the head off if it is of a group that has ended. */
static bool drop_stale(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    if (!exec->any_ended || link->reading || !gr_exec_is_stale(exec, frame)) {
        return false;
    }
    gr_exec_message_skip(exec, link, frame);
    return true;
}

/* Looks at the head of the link, of which `op` (NULL: nothing) expects `p` as a segment of `step`.
 * Takes it if it is a message's. */
static head_state look_at_head(gr_exec *exec, gr_exec_link *link, gr_op *op,
                               const gr_schedule_step *step, uint32_t segment, piece p)
{
    gr_frame frame;
    if (op || link->mail.awaited > 0) {
        gr_link_expect(link->link);
    }
    gr_status status = gr_link_peek(link->link, &frame);
    if (status != GR_OK) {
        if (status != GR_PENDING) {
            gr_exec_lost(exec, link, status, op);
        }
        return HEAD_WAITS;
    }
    if (drop_stale(exec, link, &frame)) {
        return HEAD_TAKEN;
    }
    if (gr_exec_is_message_frame(&frame)) {
        return gr_exec_message_take(exec, link, &frame) ? HEAD_TAKEN : HEAD_WAITS;
    }
    if (!op || !is_expected(&frame, op, step, segment, p)) {
        look_at_foreign(exec, link, &frame, op, p.size);
        return HEAD_WAITS;
    }
    if (gr_exec_at_first(&link->recv) && segment == 0) {
        note_arrival(link, op);
    }
    return HEAD_EXPECTED;
}

/* Whatever is expected next, and were it an empty segment that is not looked for: the head may be
 * of a group that has ended. One that is not there yet is dropped when it is looked at. */
static bool skip_stale(gr_exec *exec, gr_exec_link *link)
{
    gr_frame frame;
    return gr_link_peek(link->link, &frame) == GR_OK && drop_stale(exec, link, &frame);
}

/* One segment from this link; false if there is nothing to take (now). */
static bool take_next(gr_exec *exec, gr_exec_link *link)
{
    gr_op *op = link->recv.seq != exec->next_seq ? gr_exec_op_at(exec, link->recv.seq) : NULL;
    uint32_t segment = link->recv.segment;
    if (!link->link) {
        return false;
    }
    if (exec->any_ended && skip_stale(exec, link)) {
        return true;
    }
    if (!op) {
        bool look = !link->closed || link->mail.awaited > 0 || exec->any_source > 0;
        return look && look_at_head(exec, link, NULL, NULL, segment, nothing) == HEAD_TAKEN;
    }
    uint32_t at = step_at(op, link, &link->recv, false);
    const gr_schedule_step *step = &op->schedule->steps[at];
    bool whole = gr_step_is_whole(step->kind);
    piece p = whole ? nothing : piece_of(op, step->dst, segment);
    if (has_message(op, step, segment, p)) {
        head_state seen = look_at_head(exec, link, op, step, segment, p);
        if (seen != HEAD_EXPECTED || !is_ready(op, at, segment)) {
            return seen == HEAD_TAKEN;
        }
        gr_status status = take_one(link, op, step, segment, p);
        if (status != GR_OK) {
            if (status != GR_PENDING) {
                gr_exec_lost(exec, link, status, op);
            }
            return false;
        }
    } else if (!is_ready(op, at, segment)) {
        return false;
    }
    if (p.size == 0 && !whole && step->dst.space == GR_SPACE_SCRATCH) {
        view_received(op, step, segment, (gr_exec_view){.at = NULL});
    }
    segment_passed(exec, link, op, at, false);
    gr_exec_step_done(exec, op, at);
    return true;
}

void gr_exec_take(gr_exec *exec, gr_exec_link *link)
{
    while (exec->diag.status == GR_OK && gr_exec_looks(exec) && take_next(exec, link)) {
        gr_exec_drain(exec); /* while the segment is in the cache */
    }
    gr_exec_flush(exec);
}

void gr_exec_flush(gr_exec *exec)
{
    while (exec->flush_count > 0 && exec->diag.status == GR_OK) {
        for (int i = 0; i < exec->flush_count; i++) { /* in the order in which they were posted */
            gr_exec_link *link = &exec->links[exec->flushes[i]];
            link->to_flush = false;
            gr_exec_reap(exec, link);
        }
        exec->flush_count = 0;
        gr_exec_drain(exec);
    }
}

void gr_exec_drain(gr_exec *exec)
{
    while (exec->diag.status == GR_OK) {
        /* Messages first: the peer waits for them, while our own next segment waits for nobody. */
        if (exec->post_count > 0) {
            gr_exec_link *link = &exec->links[exec->posts[--exec->post_count]];
            link->to_post = false;
            post(exec, link);
            continue;
        }
        gr_op *op = exec->work_head;
        if (!op) {
            return;
        }
        if (op->queue_count == 0) {
            exec->work_head = op->next_work;
            exec->work_tail = exec->work_head ? exec->work_tail : NULL;
            op->in_work = false;
            continue;
        }
        uint32_t at = op->queue[op->queue_head];
        op->queue_head = in_queue(op, op->queue_head + 1);
        op->queue_count--;
        op->queued[at] = 0;
        run_local(exec, op, at);
    }
}
