/* SPDX-License-Identifier: Apache-2.0 */

/* What messages are on links: the diagram in exec_message.c. */

#include "base/fail.h"
#include "coll/engine/exec_message.h"

#include <string.h>

/* ---- The window ------------------------------------------------------------------------------ */
/* Two of the largest fit: one may be on its way while the credit for the one before is. */
bool gr_exec_goes_unasked(const gr_exec *exec, const gr_exec_mailbox *mail, size_t size_bytes)
{
    return size_bytes <= gr_exec_window_bytes(exec) / 2 &&
           gr_message_cost(size_bytes) <= mail->window_bytes;
}

bool gr_exec_owes_credit(const gr_exec *exec, const gr_exec_mailbox *mail)
{
    return mail->owed_bytes >= gr_exec_window_bytes(exec) / 4;
}

/* ---- Sending --------------------------------------------------------------------------------- */
static gr_status send_control(gr_exec_link *link, const gr_frame *frame)
{
    gr_status status = gr_link_send(link->link, frame, NULL, &link->mail.control_ticket);
    link->mail.control_waits = link->mail.control_waits || status == GR_OK;
    return status;
}

static gr_status send_grant(gr_exec *exec, gr_exec_link *link, gr_op *op)
{
    const gr_frame frame = gr_op_message_frame(op, GR_MESSAGE_GRANT, 0);
    gr_status status = send_control(link, &frame);
    if (status == GR_OK) {
        gr_exec_queue_remove(&link->mail.to_grant, op);
        gr_exec_queue_push(&link->mail.granted, op);
        op->message.stage = GR_MESSAGE_MOVING;
        gr_op_has_moved(exec, op);
    }
    return status;
}

static gr_status send_credit(gr_exec_link *link)
{
    const gr_frame frame = {.kind = GR_FRAME_DATA,
                            .op_seq = (uint32_t)link->mail.owed_bytes,
                            .segment = GR_MESSAGE_CREDIT,
                            .fingerprint = GR_FINGERPRINT_MESSAGE};
    gr_status status = send_control(link, &frame);
    link->mail.owed_bytes = status == GR_OK ? 0 : link->mail.owed_bytes;
    return status;
}

static gr_status send_first(gr_exec *exec, gr_exec_link *link, gr_op *op)
{
    gr_exec_mailbox *mail = &link->mail;
    bool whole = !op->stopped && gr_exec_goes_unasked(exec, mail, op->total_bytes);
    gr_status status;
    if (whole) {
        const gr_frame frame = gr_op_message_frame(op, GR_MESSAGE_WHOLE, op->total_bytes);
        const void *data = op->total_bytes > 0 ? gr_op_message_data(op) : NULL;
        status = gr_link_send(link->link, &frame, data, &op->message.ticket);
    } else {
        const gr_frame frame = gr_op_message_frame(op, GR_MESSAGE_ANNOUNCE, 0);
        status = send_control(link, &frame);
    }
    if (status == GR_OK) {
        gr_exec_queue_remove(&mail->to_send, op);
        mail->window_bytes -= whole ? gr_message_cost(op->total_bytes) : 0;
        op->message.stage = whole ? GR_MESSAGE_SENT : GR_MESSAGE_ANNOUNCED;
        if (!op->stopped) {
            gr_exec_queue_push(whole ? &mail->sent : &mail->announced, op);
        }
        gr_op_has_moved(exec, op);
    }
    return status;
}

static gr_status send_payload(gr_exec *exec, gr_exec_link *link, gr_op *op)
{
    gr_op_message *message = &op->message;
    size_t left = op->total_bytes - message->done_bytes;
    size_t size = left < exec->segment_bytes ? left : exec->segment_bytes;
    const gr_frame frame = gr_op_message_frame(op, GR_MESSAGE_PAYLOAD, size);
    gr_status status = gr_link_send(link->link, &frame,
                                    gr_op_message_data(op) + message->done_bytes, &message->ticket);
    if (status == GR_OK) {
        message->done_bytes += size;
        gr_op_has_moved(exec, op);
        if (message->done_bytes == op->total_bytes) {
            gr_exec_queue_remove(&link->mail.moving, op);
            gr_exec_queue_push(&link->mail.sent, op);
            message->stage = GR_MESSAGE_SENT;
        }
    }
    return status;
}

/* What a peer waits for first. */
static gr_status push_one(gr_exec *exec, gr_exec_link *link, gr_op **op_out)
{
    gr_exec_mailbox *mail = &link->mail;
    if ((*op_out = mail->to_grant.first) != NULL) {
        return send_grant(exec, link, *op_out);
    }
    if (gr_exec_owes_credit(exec, mail)) {
        return send_credit(link);
    }
    if ((*op_out = mail->to_send.first) != NULL) {
        return send_first(exec, link, *op_out);
    }
    *op_out = mail->moving.first;
    return *op_out ? send_payload(exec, link, *op_out) : GR_PENDING;
}

void gr_exec_messages_push(gr_exec *exec, gr_exec_link *link)
{
    bool pushed = false;
    gr_status status = GR_OK;
    while (status == GR_OK && link->link && exec->diag.status == GR_OK) {
        gr_op *op = NULL;
        status = push_one(exec, link, &op);
        pushed = pushed || status == GR_OK;
        if (status != GR_OK && status != GR_E_AGAIN && status != GR_PENDING) {
            gr_exec_lost(exec, link, status, op);
        }
    }
    if (pushed && !link->to_flush && exec->diag.status == GR_OK) {
        link->to_flush = true;
        exec->flushes[exec->flush_count++] = link->peer;
    }
}

void gr_exec_messages_reap(gr_exec *exec, gr_exec_link *link)
{
    gr_exec_mailbox *mail = &link->mail;
    if (mail->control_waits) {
        mail->control_waits = !gr_link_sent(link->link, mail->control_ticket);
    }
    /* In arbitration a peer throws away what it did not expect: that it is gone is no success. */
    while (mail->sent.first && !exec->arbitrating &&
           gr_link_sent(link->link, mail->sent.first->message.ticket)) {
        gr_op *op = mail->sent.first;
        gr_exec_queue_remove(&mail->sent, op);
        gr_op_has_moved(exec, op);
        if (!op->stopped) {
            gr_exec_part_over(exec, op);
        }
    }
}

/* ---- What comes ------------------------------------------------------------------------------ */
bool gr_exec_is_message_frame(const gr_frame *frame)
{
    return (frame->fingerprint & GR_FINGERPRINT_MESSAGE) != 0;
}

/* The head's bytes go to `dst`. True: all are there, and the head was taken off. */
static bool read_head(gr_exec *exec, gr_exec_link *link, const gr_op *op, void *dst,
                      size_t size_bytes)
{
    gr_status status = size_bytes > 0 ? gr_link_read(link->link, dst) : GR_OK;
    link->reading = status == GR_PENDING;
    if (status == GR_OK) {
        gr_link_next(link->link, NULL);
        return true;
    }
    if (status != GR_PENDING) {
        gr_exec_lost(exec, link, status, op);
    }
    return false;
}

/* The peer does not keep to the rules above. */
static bool refuse(gr_exec *exec, const gr_exec_link *link, const gr_frame *frame)
{
    gr_diag diag;
    (void)gr_fail_peer(&diag, GR_E_PROTOCOL, link->peer,
                       "rank %d sent a frame of kind %u about its message %u to rank %d, which "
                       "expects no such frame",
                       link->peer, frame->segment, frame->op_seq, exec->rank);
    gr_exec_fail(exec, &diag);
    return false;
}

static bool take_whole(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    gr_exec_mailbox *mail = &link->mail;
    size_t size = frame->size_bytes;
    if (!mail->reading && !mail->reading_kept) {
        bool differs;
        if (frame->op_seq != mail->seen ||
            mail->kept_bytes + gr_message_cost(size) > gr_exec_window_bytes(exec)) {
            return refuse(exec, link, frame);
        }
        mail->reading = gr_exec_match_posted(exec, link->peer, frame, &differs);
        if (mail->reading && size != mail->reading->total_bytes) {
            return refuse(exec, link, frame);
        }
        if (!mail->reading && !differs) {
            mail->reading_kept = gr_exec_make_kept(mail, frame, size);
        }
        if (!mail->reading && !mail->reading_kept) {
            return false; /* no memory: it stays where it is */
        }
    }
    gr_op *op = mail->reading;
    if (!read_head(exec, link, op, op ? op->user[0] : gr_exec_kept_bytes(mail->reading_kept),
                   size)) {
        return false;
    }
    mail->seen++;
    mail->reading = NULL;
    if (op) {
        mail->owed_bytes += gr_message_cost(size);
        gr_exec_receive_over(exec, op);
        return true;
    }
    gr_exec_kept *kept = mail->reading_kept;
    bool differs;
    mail->reading_kept = NULL;
    gr_exec_append_kept(mail, kept);
    op = gr_exec_match_posted(exec, link->peer, &kept->frame, &differs); /* started meanwhile */
    if (op) {
        memcpy(op->user[0], gr_exec_kept_bytes(kept), size);
        gr_exec_remove_kept(mail, kept);
        gr_exec_receive_over(exec, op);
    }
    return true;
}

static bool take_announcement(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    gr_exec_mailbox *mail = &link->mail;
    if (frame->op_seq != mail->seen || frame->size_bytes > 0 ||
        mail->kept_announcements == GR_EXEC_OPS_MAX) {
        return refuse(exec, link, frame);
    }
    bool differs;
    gr_op *op = gr_exec_match_posted(exec, link->peer, frame, &differs);
    gr_exec_kept *kept = op || differs ? NULL : gr_exec_make_kept(mail, frame, 0);
    if (!op && !kept) {
        return false;
    }
    if (op) {
        gr_exec_queue_push(&mail->to_grant, op);
    } else {
        gr_exec_append_kept(mail, kept);
    }
    mail->seen++;
    gr_link_next(link->link, NULL);
    return true;
}

static bool take_grant(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    gr_op *op = gr_exec_queue_find(&link->mail.announced, frame->op_seq);
    if (!op || frame->size_bytes > 0) {
        return refuse(exec, link, frame);
    }
    gr_exec_queue_remove(&link->mail.announced, op);
    /* One without bytes was announced as well, if the window was closed. */
    op->message.stage = op->total_bytes > 0 ? GR_MESSAGE_MOVING : GR_MESSAGE_SENT;
    gr_link_next(link->link, NULL);
    gr_op_has_moved(exec, op);
    if (op->total_bytes > 0) {
        gr_exec_queue_push(&link->mail.moving, op);
    } else {
        gr_exec_part_over(exec, op);
    }
    return true;
}

static bool take_payload(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    gr_op *op = gr_exec_queue_find(&link->mail.granted, frame->op_seq);
    if (!op || frame->size_bytes == 0 ||
        frame->size_bytes > op->total_bytes - op->message.done_bytes) {
        return refuse(exec, link, frame);
    }
    if (!read_head(exec, link, op, op->user[0] + op->message.done_bytes, frame->size_bytes)) {
        return false;
    }
    gr_op_has_moved(exec, op);
    op->message.done_bytes += frame->size_bytes;
    if (op->message.done_bytes == op->total_bytes) {
        gr_exec_queue_remove(&link->mail.granted, op);
        gr_exec_receive_over(exec, op);
    }
    return true;
}

static bool take_credit(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    if (frame->size_bytes > 0 ||
        frame->op_seq > gr_exec_window_bytes(exec) - link->mail.window_bytes) {
        return refuse(exec, link, frame);
    }
    link->mail.window_bytes += frame->op_seq;
    gr_link_next(link->link, NULL);
    return true;
}

bool gr_exec_message_take(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    static bool (*const takes[])(gr_exec *, gr_exec_link *, const gr_frame *) = {
        [GR_MESSAGE_WHOLE] = take_whole,   [GR_MESSAGE_ANNOUNCE] = take_announcement,
        [GR_MESSAGE_GRANT] = take_grant,   [GR_MESSAGE_PAYLOAD] = take_payload,
        [GR_MESSAGE_CREDIT] = take_credit,
    };
    if (frame->segment >= sizeof takes / sizeof takes[0]) {
        return refuse(exec, link, frame);
    }
    bool taken = takes[frame->segment](exec, link, frame);
    if (taken) {
        gr_exec_messages_push(exec, link);
    }
    return taken;
}
