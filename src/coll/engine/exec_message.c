/* SPDX-License-Identifier: Apache-2.0 */

/* Messages between two ranks, matched as in MPI: a receive takes the first message of its
 * communicator that has its source and its tag; messages of one source and tag are taken in the
 * order in which they were sent. They are no part of the order of plans: their frames are taken
 * from a link whatever else is under way.
 *
 *   sender                                          receiver
 *   QUEUED --small, room in the window--> WHOLE --> received, or kept until a receive comes
 *      |        then SENT --link has done with it--> over        (CREDIT opens the window again)
 *      |
 *      +--else--> ANNOUNCE ---------------------> kept until a receive matches
 *                 ANNOUNCED <------ GRANT ------- ANNOUNCED
 *                 MOVING ---------- PAYLOAD ----> MOVING, until all is there: over
 *                 SENT: as above
 *
 * What a peer sends unasked is kept within a window of bytes for each pair of ranks, which shrinks
 * with the number of ranks; beyond that its messages wait at the sender. So every frame of a
 * message can be taken at any time, and nothing behind it on the link waits for a receive. */

#include "coll/engine/exec_message.h"
#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- Messages that are kept ------------------------------------------------------------------ */
static bool is_announcement(const gr_exec_kept *kept)
{
    return kept->frame.segment == GR_MESSAGE_ANNOUNCE;
}

gr_exec_kept *gr_exec_make_kept(gr_exec_mailbox *mail, const gr_frame *frame, size_t size_bytes)
{
    gr_exec_kept *kept = malloc(sizeof *kept + size_bytes);
    if (kept) {
        *kept = (gr_exec_kept){.frame = *frame};
        mail->kept_bytes += is_announcement(kept) ? 0 : gr_message_cost(size_bytes);
        mail->kept_announcements += is_announcement(kept);
    }
    return kept;
}

void gr_exec_append_kept(gr_exec_mailbox *mail, gr_exec_kept *kept)
{
    if (mail->kept_last) {
        mail->kept_last->next = kept;
    } else {
        mail->kept_first = kept;
    }
    mail->kept_last = kept;
}

void gr_exec_remove_kept(gr_exec_mailbox *mail, gr_exec_kept *kept)
{
    gr_exec_kept *before = NULL;
    for (gr_exec_kept *at = mail->kept_first; at != kept; at = at->next) {
        before = at;
    }
    if (before) {
        before->next = kept->next;
    } else {
        mail->kept_first = kept->next;
    }
    mail->kept_last = mail->kept_last == kept ? before : mail->kept_last;
    if (is_announcement(kept)) {
        mail->kept_announcements--;
    } else {
        mail->kept_bytes -= gr_message_cost(kept->frame.size_bytes);
        mail->owed_bytes += gr_message_cost(kept->frame.size_bytes);
    }
    free(kept);
}

void gr_exec_messages_init(gr_exec *exec)
{
    for (int peer = 0; peer < exec->world_size; peer++) {
        exec->links[peer].mail.window_bytes = gr_exec_window_bytes(exec);
    }
}

static void free_kept(gr_exec_mailbox *mail)
{
    for (gr_exec_kept *next, *at = mail->kept_first; at; at = next) {
        next = at->next;
        free(at);
    }
    free(mail->reading_kept);
    mail->kept_first = mail->kept_last = mail->reading_kept = NULL;
}

void gr_exec_messages_fini(gr_exec *exec)
{
    for (int peer = 0; exec->links && peer < exec->world_size; peer++) {
        free_kept(&exec->links[peer].mail);
    }
}

void gr_exec_messages_end(gr_exec *exec)
{
    exec->posted = (gr_exec_queue){.first = NULL};
    exec->any_source = 0;
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_mailbox *mail = &exec->links[peer].mail;
        free_kept(mail);
        *mail = (gr_exec_mailbox){.seen = mail->seen};
    }
}

static bool is_there(const gr_exec_queue *queue, const gr_op *op)
{
    const gr_op *at = queue->first;
    while (at && at != op) {
        at = at->message.next;
    }
    return at != NULL;
}

static bool remove_if_there(gr_exec_queue *queue, gr_op *op)
{
    bool there = is_there(queue, op);
    if (there) {
        gr_exec_queue_remove(queue, op);
    }
    return there;
}

/* The head of the link, or what is left of it, is a message that nobody wants. */
static void skip_head(gr_exec_link *link, size_t size_bytes)
{
    link->reading = false;
    link->mail.seen++;
    link->mail.owed_bytes += gr_message_cost(size_bytes);
    gr_link_next(link->link, NULL);
}

void gr_exec_messages_drop(gr_exec *exec, uint16_t comm)
{
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_mailbox *mail = &exec->links[peer].mail;
        for (gr_exec_kept *next, *at = mail->kept_first; at; at = next) {
            next = at->next;
            if (at->frame.comm == comm) {
                gr_exec_remove_kept(mail, at);
            }
        }
        if (mail->reading_kept && mail->reading_kept->frame.comm == comm) {
            size_t size = mail->reading_kept->frame.size_bytes;
            mail->kept_bytes -= gr_message_cost(size);
            free(mail->reading_kept);
            mail->reading_kept = NULL;
            skip_head(&exec->links[peer], size);
        }
    }
}

/* ---- Of a group that has ended --------------------------------------------------------------- */
void gr_exec_message_skip(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    exec->moved = true;
    if (gr_exec_is_message_frame(frame) && frame->segment == GR_MESSAGE_WHOLE) {
        skip_head(link, frame->size_bytes);
        return;
    }
    link->mail.seen += gr_exec_is_message_frame(frame) && frame->segment == GR_MESSAGE_ANNOUNCE;
    gr_link_next(link->link, NULL);
}

static void stop_send(gr_exec_mailbox *mail, gr_op *op)
{
    /* One that the link has nothing of stays where it is: the receiver counts messages. */
    if (remove_if_there(&mail->moving, op) && op->message.done_bytes > 0) {
        gr_exec_queue_push(&mail->sent, op);
    }
    (void)remove_if_there(&mail->announced, op);
}

static void stop_receive(gr_exec_link *link, gr_op *op)
{
    gr_exec_mailbox *mail = &link->mail;
    gr_frame frame;
    (void)remove_if_there(&mail->to_grant, op);
    (void)remove_if_there(&mail->granted, op);
    mail->awaited--;
    if (mail->reading == op) {
        mail->reading = NULL;
        skip_head(link, op->total_bytes);
    } else if (link->reading && !mail->reading && !mail->reading_kept &&
               gr_link_peek(link->link, &frame) == GR_OK && gr_exec_is_message_frame(&frame) &&
               frame.segment == GR_MESSAGE_PAYLOAD && frame.op_seq == op->number) {
        link->reading = false;
        gr_link_next(link->link, NULL);
    }
}

void gr_exec_message_stop(gr_exec *exec, gr_op *op)
{
    if (!op->message.entered) {
        return;
    }
    bool posted = !op->sends && remove_if_there(&exec->posted, op);
    if (op->message.any_source) {
        exec->any_source -= posted;
    } else if (op->sends) {
        stop_send(&exec->links[op->partner].mail, op);
    } else {
        stop_receive(&exec->links[op->partner], op);
    }
}

bool gr_exec_message_is_read(const gr_exec *exec, const gr_op *op)
{
    if (!op->sends || !op->message.entered) {
        return false;
    }
    const gr_exec_mailbox *mail = &exec->links[op->partner].mail;
    return is_there(&mail->to_send, op) || is_there(&mail->sent, op);
}

/* ---- The ends of messages -------------------------------------------------------------------- */
void gr_exec_receive_over(gr_exec *exec, gr_op *op)
{
    gr_op_has_moved(exec, op);
    exec->links[op->partner].mail.awaited--;
    if (op->message.source_out) {
        *op->message.source_out =
            (gr_message_source){.rank = gr_op_local(op, op->partner), .tag = op->message.tag};
    }
    gr_exec_part_over(exec, op);
}

/* ---- Matching -------------------------------------------------------------------------------- */
static bool matches(const gr_op *op, int peer, const gr_frame *frame)
{
    return op->comm == frame->comm && (op->message.any_tag || op->message.tag == frame->message) &&
           (op->message.any_source ? gr_op_local(op, peer) >= 0 : op->partner == peer);
}

static gr_op *find_posted(const gr_exec *exec, int peer, const gr_frame *frame)
{
    gr_op *op = exec->posted.first;
    while (op && !matches(op, peer, frame)) {
        op = op->message.next;
    }
    return op;
}

static gr_exec_kept *find_kept(const gr_exec_mailbox *mail, const gr_op *op, int peer)
{
    gr_exec_kept *kept = mail->kept_first;
    while (kept && !matches(op, peer, &kept->frame)) {
        kept = kept->next;
    }
    return kept;
}

/* A rank that tells itself two things. */
static void fail_own(gr_exec *exec, const gr_op *op, const gr_frame *frame)
{
    char what[GR_FLIGHT_RECORDER_TEXT_BYTES];
    gr_diag diag;
    gr_exec_describe_op(exec, op, what, sizeof what);
    (void)gr_fail_peer(&diag, GR_E_MISMATCH, exec->rank,
                       "rank %d sends itself message %u with tag %u, which has another type or "
                       "count than %.200s",
                       exec->rank, frame->op_seq + 1, frame->message, what);
    gr_exec_end_group(exec, op->comm, &diag);
}

/* The receive `op` takes the message that `frame` begins: from here on it is known which it is.
 * False: the two differ in what they have to agree on. */
static bool match(gr_exec *exec, gr_op *op, int peer, const gr_frame *frame, bool awaited)
{
    gr_exec_link *link = &exec->links[peer];
    if (op->message.any_source) {
        op->message.any_source = false;
        op->partner = peer;
        link->mail.awaited++;
        exec->next_source = peer + 1;
    }
    op->number = frame->op_seq;
    op->message.any_tag = false;
    op->message.tag = frame->message;
    gr_flight_recorder_matched(exec->record, op->record, op->number, peer, gr_op_local(op, peer),
                               frame->message);
    if (frame->fingerprint == op->fingerprint) {
        op->message.stage =
            frame->segment == GR_MESSAGE_ANNOUNCE ? GR_MESSAGE_ANNOUNCED : GR_MESSAGE_MOVING;
        gr_op_arrived(op, peer, awaited);
        gr_op_has_moved(exec, op);
        return true;
    }
    if (peer == exec->rank) {
        fail_own(exec, op, frame);
    } else {
        gr_diagnosis_foreign_frame(exec->diagnosis, peer, frame, op, false, op->total_bytes);
    }
    return false;
}

gr_op *gr_exec_match_posted(gr_exec *exec, int peer, const gr_frame *frame, bool *differs_out)
{
    gr_op *op = find_posted(exec, peer, frame);
    *differs_out = false;
    if (!op) {
        return NULL;
    }
    exec->any_source -= op->message.any_source;
    gr_exec_queue_remove(&exec->posted, op);
    if (!match(exec, op, peer, frame, true)) {
        *differs_out = true;
        return NULL;
    }
    return op;
}

/* ---- To itself ------------------------------------------------------------------------------- */
static void deliver_own(gr_exec *exec, gr_op *send, gr_op *receive)
{
    if (send->total_bytes > 0) {
        memcpy(receive->user[0], gr_op_message_data(send), send->total_bytes);
    }
    gr_op_has_moved(exec, send);
    gr_exec_part_over(exec, send);
    gr_exec_receive_over(exec, receive);
}

static bool fits_own(const gr_exec *exec, const gr_exec_mailbox *mail, size_t size_bytes)
{
    return size_bytes <= gr_exec_window_bytes(exec) / 2 &&
           mail->kept_bytes + gr_message_cost(size_bytes) <= gr_exec_window_bytes(exec);
}

static void send_own(gr_exec *exec, gr_op *op)
{
    gr_exec_mailbox *mail = &exec->links[exec->rank].mail;
    bool differs, whole = fits_own(exec, mail, op->total_bytes);
    gr_frame frame = gr_op_message_frame(op, whole ? GR_MESSAGE_WHOLE : GR_MESSAGE_ANNOUNCE,
                                         whole ? op->total_bytes : 0);
    gr_op *receive = gr_exec_match_posted(exec, exec->rank, &frame, &differs);
    mail->seen++;
    if (receive) {
        deliver_own(exec, op, receive);
        return;
    }
    if (differs) {
        return; /* what it belongs to has ended */
    }
    gr_exec_kept *kept = gr_exec_make_kept(mail, &frame, frame.size_bytes);
    if (!kept) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_NO_MEMORY, "no memory for a message of rank %d to itself",
                      exec->rank);
        gr_exec_fail(exec, &diag);
        return;
    }
    gr_exec_append_kept(mail, kept);
    if (!whole) {
        op->message.stage = GR_MESSAGE_ANNOUNCED;
        gr_exec_queue_push(&mail->announced, op);
        return;
    }
    if (op->total_bytes > 0) {
        memcpy(gr_exec_kept_bytes(kept), gr_op_message_data(op), op->total_bytes);
    }
    gr_exec_part_over(exec, op);
}

/* ---- Receives and sends begin ---------------------------------------------------------------- */
/* The rank of the job that has a message for `op`, sources of any in turn; -1: none has. */
static int find_source(const gr_exec *exec, const gr_op *op, gr_exec_kept **kept_out)
{
    int first = op->message.any_source ? exec->next_source : op->partner;
    int count = op->message.any_source ? exec->world_size : 1;
    for (int i = 0; i < count; i++) {
        int peer = (first + i) % exec->world_size;
        *kept_out = find_kept(&exec->links[peer].mail, op, peer);
        if (*kept_out) {
            return peer;
        }
    }
    return -1;
}

static void take_kept(gr_exec *exec, gr_op *op, int peer, gr_exec_kept *kept)
{
    gr_exec_link *link = &exec->links[peer];
    if (!match(exec, op, peer, &kept->frame, false)) {
        return;
    }
    if (!is_announcement(kept)) {
        if (op->total_bytes > 0) {
            memcpy(op->user[0], gr_exec_kept_bytes(kept), op->total_bytes);
        }
        gr_exec_remove_kept(&link->mail, kept);
        gr_exec_receive_over(exec, op);
    } else if (peer == exec->rank) {
        gr_op *send = gr_exec_queue_find(&link->mail.announced, kept->frame.op_seq);
        gr_exec_queue_remove(&link->mail.announced, send);
        gr_exec_remove_kept(&link->mail, kept);
        deliver_own(exec, send, op);
    } else {
        gr_exec_remove_kept(&link->mail, kept);
        gr_exec_queue_push(&link->mail.to_grant, op);
        gr_exec_mark_busy(exec, link);
    }
    gr_exec_messages_push(exec, link);
}

static void post_receive(gr_exec *exec, gr_op *op)
{
    gr_exec_queue_push(&exec->posted, op);
    if (!op->message.any_source) {
        gr_exec_open_link(exec, &exec->links[op->partner], false, true);
        return;
    }
    exec->any_source++;
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        if (gr_op_local(op, peer) >= 0) {
            gr_exec_open_link(exec, &exec->links[peer], false, true);
        }
    }
}

void gr_exec_message_enter(gr_exec *exec, gr_op *op)
{
    op->message.stage = GR_MESSAGE_QUEUED;
    op->message.done_bytes = 0;
    op->message.entered = true;
    if (!op->sends) {
        gr_exec_kept *kept = NULL;
        exec->links[op->message.any_source ? 0 : op->partner].mail.awaited +=
            !op->message.any_source;
        int source = find_source(exec, op, &kept);
        if (source >= 0) {
            take_kept(exec, op, source, kept);
        } else {
            post_receive(exec, op);
        }
        return;
    }
    if (op->partner == exec->rank) {
        send_own(exec, op);
        return;
    }
    gr_exec_link *link = &exec->links[op->partner];
    gr_exec_queue_push(&link->mail.to_send, op);
    gr_exec_open_link(exec, link, true, link->mail.awaited > 0);
    gr_exec_messages_push(exec, link);
}

/* ---- What others ask ------------------------------------------------------------------------- */
bool gr_exec_messages_busy(const gr_exec_link *link)
{
    const gr_exec_mailbox *mail = &link->mail;
    return mail->to_send.first || mail->announced.first || mail->moving.first || mail->sent.first ||
           mail->awaited > 0 || mail->control_waits || mail->reading_kept;
}

/* A rank that receives from any needs all that may still send: one that dies is missed at once, one
 * that leaves in order only when nobody is left. */
static bool needs_any(const gr_exec *exec, const gr_exec_link *link)
{
    for (const gr_op *op = exec->posted.first; op; op = op->message.next) {
        if (!op->message.any_source || gr_op_local(op, link->peer) < 0) {
            continue;
        }
        bool others = false;
        for (int peer = 0; peer < exec->world_size; peer++) {
            const gr_exec_link *other = &exec->links[peer];
            others |= gr_op_local(op, peer) >= 0 && peer != exec->rank && peer != link->peer &&
                      !other->closed; /* what it has sent may still be there */
        }
        if (!others || !gr_link_has_left(link->link)) {
            return true;
        }
    }
    return false;
}

bool gr_exec_messages_need(const gr_exec *exec, const gr_exec_link *link)
{
    const gr_exec_mailbox *mail = &link->mail;
    return mail->to_send.first || mail->announced.first || mail->moving.first || mail->sent.first ||
           mail->awaited > 0 || (exec->any_source > 0 && needs_any(exec, link));
}

const gr_op *gr_exec_message_that_needs(const gr_exec *exec, int peer)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        const gr_op *op = &exec->ops[i];
        if (op->state == GR_OP_ACTIVE && !op->over && !op->stopped && op->is_message &&
            (gr_exec_awaits(exec, op, peer, GR_OP_WAIT_RECEIVE) ||
             gr_exec_awaits(exec, op, peer, GR_OP_WAIT_SEND))) {
            return op;
        }
    }
    return NULL;
}

bool gr_exec_message_is_kept(const gr_exec_link *link, uint32_t number)
{
    const gr_exec_kept *kept = link->mail.kept_first;
    while (kept && kept->frame.op_seq != number) {
        kept = kept->next;
    }
    return kept != NULL;
}

bool gr_exec_message_is_matched(const gr_exec_link *link, uint32_t number)
{
    return (int32_t)(number - link->mail.seen) < 0 && !gr_exec_message_is_kept(link, number);
}

bool gr_exec_would_wait_for_itself(const gr_exec *exec, const gr_exec_group *group,
                                   const gr_op_desc *desc)
{
    const gr_exec_mailbox *mail = &exec->links[exec->rank].mail;
    if (desc->coll == GR_COLL_SEND) {
        const gr_frame frame = {.comm = group->id, .message = desc->tag};
        return !fits_own(exec, mail, desc->count * gr_dtype_bytes(desc->dtype)) &&
               !find_posted(exec, exec->rank, &frame);
    }
    const gr_op receive = {.comm = group->id,
                           .partner = exec->rank,
                           .message = {.tag = desc->tag, .any_tag = desc->tag == GR_ANY_TAG}};
    return !find_kept(mail, &receive, exec->rank);
}

bool gr_exec_waits_for_itself(const gr_exec *exec, const gr_op *op)
{
    return op->is_message && op->partner == exec->rank && gr_exec_is_blocked(exec, op);
}
