/* SPDX-License-Identifier: Apache-2.0 */

/* Small messages of blocking calls, which are over before anything else happens: their frames are
 * those of exec_message.c, and so are the numbers, the window and the record, but no operation
 * stands for them. Whatever is not as usual (something is under way, the window is closed, another
 * frame stands first, the message does not come within a moment) is left to an operation. */

#include "coll/engine/exec_message.h"
#include "link/shared.h"

#include <sched.h>

enum { SPIN_POLLS = 500, SPIN_YIELDS = 32 };

/* The link to the peer, if this message has it for itself. NULL: it has not. */
static gr_exec_link *find_link(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                               size_t size_bytes)
{
    int peer = group->world[desc->root];
    gr_exec_link *link = &exec->links[peer];
    bool usual = gr_exec_may_repeat(exec, group) && !exec->any_ended && !exec->timeline &&
                 peer != exec->rank && link->link && gr_link_is_up(link->link) &&
                 size_bytes <= gr_link_capabilities(link->link)->eager_max_bytes;
    if (!usual) {
        return NULL;
    }
    if (gr_exec_messages_busy(link)) {
        gr_exec_messages_reap(exec, link);
    }
    return gr_exec_messages_busy(link) || link->mail.kept_first ? NULL : link;
}

/* The message at the head of the link, behind the peer's word that it has room for more. */
static gr_status look_at_head(gr_exec *exec, gr_exec_link *link, gr_frame *frame)
{
    gr_status status = gr_link_peek(link->link, frame);
    while (status == GR_OK && gr_exec_is_message_frame(frame) &&
           frame->segment == GR_MESSAGE_CREDIT && gr_exec_message_take(exec, link, frame)) {
        status = gr_link_peek(link->link, frame);
    }
    return status;
}

/* It is over; it began at `since`, 0: just now. */
static void record(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                   const gr_frame *frame, uint64_t since)
{
    gr_flight_recorder_entry *entry = gr_exec_write_entry(exec, desc);
    uint64_t now = entry->started;
    int peer = group->world[desc->root];
    entry->started = since > 0 && since < now ? since : now;
    entry->ended = now;
    entry->fingerprint = frame->fingerprint;
    entry->number = frame->op_seq;
    entry->peer = peer;
    entry->comm = group->id;
    entry->status = GR_OK;
    gr_flight_recorder_commit(exec->record);
    if (desc->coll == GR_COLL_RECV) {
        const gr_op_id id = {.comm = group->id,
                             .is_message = true,
                             .number = frame->op_seq,
                             .partner = peer,
                             .fingerprint = frame->fingerprint};
        gr_diagnosis_arrived(exec->diagnosis, &id, peer, now - entry->started);
    }
    exec->unmatched = exec->record->begun;
    exec->moved = true;
    exec->finished++;
    gr_exec_periodic_poll(exec, now);
}

bool gr_exec_send_short(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                        const void *data)
{
    size_t size = desc->count * gr_dtype_bytes(desc->dtype);
    gr_exec_link *link = find_link(exec, group, desc, size);
    gr_frame frame = {.kind = 0};
    if (!link) {
        return false;
    }
    if (!gr_exec_goes_unasked(exec, &link->mail, size)) {
        (void)look_at_head(exec, link, &frame);
    }
    frame = (gr_frame){.kind = GR_FRAME_DATA,
                       .comm = group->id,
                       .op_seq = link->messages_sent,
                       .message = desc->tag,
                       .segment = GR_MESSAGE_WHOLE,
                       .size_bytes = (uint32_t)size,
                       .fingerprint = gr_exec_fingerprint(exec, group, desc, NULL)};
    uint64_t ticket;
    if (exec->diag.status != GR_OK || !gr_exec_goes_unasked(exec, &link->mail, size) ||
        gr_link_send(link->link, &frame, data, &ticket) != GR_OK) {
        return false;
    }
    link->messages_sent++;
    link->mail.window_bytes -= gr_message_cost(size);
    record(exec, group, desc, &frame, 0);
    return true;
}

bool gr_exec_recv_short(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                        void *data)
{
    size_t size = desc->count * gr_dtype_bytes(desc->dtype);
    gr_exec_link *link = find_link(exec, group, desc, size);
    if (!link) {
        return false;
    }
    bool spins = gr_mesh_not_oversubscribed(exec->mesh);
    int left = spins ? SPIN_POLLS : SPIN_YIELDS;
    uint64_t started = 0;
    gr_frame frame;
    gr_status status;
    while ((status = look_at_head(exec, link, &frame)) == GR_PENDING && left-- > 0) {
        started = started > 0 ? started : gr_flight_recorder_now();
        if (spins) {
            gr_relax();
        } else {
            sched_yield();
        }
    }
    gr_exec_mailbox *mail = &link->mail;
    bool fits = status == GR_OK && gr_exec_is_message_frame(&frame) &&
                frame.segment == GR_MESSAGE_WHOLE && frame.op_seq == mail->seen &&
                frame.comm == group->id && frame.message == desc->tag && frame.size_bytes == size &&
                frame.fingerprint == gr_exec_fingerprint(exec, group, desc, NULL);
    if (!fits || exec->diag.status != GR_OK || gr_link_read(link->link, data) != GR_OK) {
        return false;
    }
    gr_link_next(link->link, NULL);
    mail->seen++;
    mail->owed_bytes += gr_message_cost(size);
    if (gr_exec_owes_credit(exec, mail)) {
        gr_exec_messages_push(exec, link);
        gr_exec_flush(exec);
    }
    record(exec, group, desc, &frame, started);
    return true;
}
