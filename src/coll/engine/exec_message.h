/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_EXEC_MESSAGE_H
#define GR_COLL_ENGINE_EXEC_MESSAGE_H

/* Shared by exec_message.c (matching), exec_message_move.c (what passes over links) and
 * exec_message_short.c (messages without an operation) only. */

#include "coll/engine/exec_internal.h"

/* In `segment` of a frame. `op_seq` is the number of the message among all that its sender has sent
 * to this peer, `message` its tag; of CREDIT `op_seq` is the number of bytes. */
enum {
    GR_MESSAGE_WHOLE = 0,
    GR_MESSAGE_ANNOUNCE = 1,
    GR_MESSAGE_GRANT = 2,
    GR_MESSAGE_PAYLOAD = 3,
    GR_MESSAGE_CREDIT = 4
};

enum {
    WINDOW_BYTES_ALL = 16 << 20, /* of all ranks together, if they are no more than 1,024 */
    WINDOW_BYTES_MAX = 512 << 10,
    WINDOW_BYTES_MIN = 16 << 10,
    COST_MIN = 64 /* a message of no bytes takes memory as well */
};

/* ---- The window ------------------------------------------------------------------------------ */
static inline size_t gr_exec_window_bytes(const gr_exec *exec)
{
    size_t each = (size_t)WINDOW_BYTES_ALL / (size_t)exec->world_size;
    each = each < WINDOW_BYTES_MIN ? WINDOW_BYTES_MIN : each;
    return each < WINDOW_BYTES_MAX ? each : WINDOW_BYTES_MAX;
}

static inline size_t gr_message_cost(size_t size_bytes)
{
    return size_bytes > COST_MIN ? size_bytes : COST_MIN;
}

/* ---- Queues ---------------------------------------------------------------------------------- */
static inline void gr_exec_queue_push(gr_exec_queue *queue, gr_op *op)
{
    op->message.next = NULL;
    if (queue->last) {
        queue->last->message.next = op;
    } else {
        queue->first = op;
    }
    queue->last = op;
}

static inline void gr_exec_queue_remove(gr_exec_queue *queue, gr_op *op)
{
    gr_op *before = NULL;
    for (gr_op *at = queue->first; at != op; at = at->message.next) {
        before = at;
    }
    if (before) {
        before->message.next = op->message.next;
    } else {
        queue->first = op->message.next;
    }
    queue->last = queue->last == op ? before : queue->last;
}

static inline gr_op *gr_exec_queue_find(const gr_exec_queue *queue, uint32_t number)
{
    gr_op *op = queue->first;
    while (op && op->number != number) {
        op = op->message.next;
    }
    return op;
}

/* ---- Frames ---------------------------------------------------------------------------------- */
static inline const uint8_t *gr_op_message_data(const gr_op *op)
{
    return op->input[0];
}

static inline gr_frame gr_op_message_frame(const gr_op *op, uint32_t kind, size_t size_bytes)
{
    return (gr_frame){.kind = GR_FRAME_DATA,
                      .comm = op->comm,
                      .op_seq = op->number,
                      .message = op->message.tag,
                      .segment = kind,
                      .size_bytes = (uint32_t)size_bytes,
                      .fingerprint = op->fingerprint};
}

/* ---- exec_message_move.c --------------------------------------------------------------------- */
/* Returns true if so many bytes may be sent that the receiver has not asked for. */
bool gr_exec_goes_unasked(const gr_exec *exec, const gr_exec_mailbox *mail, size_t size_bytes);
/* Returns true if so much was taken that the sender must be notified. */
bool gr_exec_owes_credit(const gr_exec *exec, const gr_exec_mailbox *mail);

/* ---- exec_message.c -------------------------------------------------------------------------- */
/* A message, or its announcement, is to be kept; NULL: no memory. */
gr_exec_kept *gr_exec_make_kept(gr_exec_mailbox *mail, const gr_frame *frame, size_t size_bytes);
void gr_exec_append_kept(gr_exec_mailbox *mail, gr_exec_kept *kept);
/* Its bytes are not needed any more: its sender may send as many again. */
void gr_exec_remove_kept(gr_exec_mailbox *mail, gr_exec_kept *kept);
static inline uint8_t *gr_exec_kept_bytes(gr_exec_kept *kept)
{
    return (uint8_t *)(kept + 1);
}
/* The posted receive for the head of the link. NULL: there is none, or (*differs_out) it differs
 * from it. */
gr_op *gr_exec_match_posted(gr_exec *exec, int peer, const gr_frame *frame, bool *differs_out);
void gr_exec_receive_over(gr_exec *exec, gr_op *op);
static inline void gr_op_has_moved(gr_exec *exec, gr_op *op)
{
    op->watch.moved = true;
    exec->moved = true;
}

#endif
