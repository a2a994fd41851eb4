/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/exec_view.h"
#include "coll/engine/exec_internal.h"

gr_op *gr_exec_in_flight(gr_exec *exec, int *at)
{
    while (*at < exec->ops_used) {
        gr_op *op = &exec->ops[(*at)++];
        if (op->state == GR_OP_ACTIVE && !op->over && !op->stopped) {
            return op;
        }
    }
    return NULL;
}

const gr_op *gr_exec_oldest_plan(const gr_exec *exec)
{
    return exec->ring[exec->oldest_seq & (GR_EXEC_RING - 1)];
}

gr_op_watch *gr_op_watched(gr_op *op)
{
    return &op->watch;
}

bool gr_op_waits_for_own(const gr_op *op)
{
    return gr_op_lacks_scratch(op);
}

/* The only rank at the other end of a message; -1: there may be several. */
static int only_partner(const gr_op *op)
{
    const gr_exec *exec = op->exec;
    const gr_exec_group *group = exec->members[op->comm].group;
    if (op->partner >= 0 || !op->is_message || (group ? group->size : exec->world_size) != 2) {
        return op->partner;
    }
    return gr_op_world(op, 1 - gr_op_local(op, exec->rank));
}

/* A receive that nothing has met has the number of the next message from its source: it cannot be
 * one before. */
gr_op_id gr_op_identity(const gr_op *op)
{
    int partner = only_partner(op);
    bool open = op->is_message && op->number == GR_FLIGHT_RECORDER_NO_NUMBER && partner >= 0;
    return (gr_op_id){.comm = op->comm,
                      .is_message = op->is_message,
                      .sends = op->is_message && op->sends,
                      .number = open ? op->exec->links[partner].mail.seen : op->number,
                      .partner = partner,
                      .fingerprint = op->fingerprint};
}

gr_op_id gr_op_id_of_frame(const gr_frame *frame, int rank)
{
    bool is_message = (frame->fingerprint & GR_FINGERPRINT_MESSAGE) != 0;
    return (gr_op_id){.comm = frame->comm,
                      .is_message = is_message,
                      .sends = is_message,
                      .number = frame->op_seq,
                      .partner = is_message ? rank : -1,
                      .fingerprint = frame->fingerprint};
}

uint64_t gr_op_record(const gr_op *op)
{
    return op->record;
}

bool gr_op_is_custom(const gr_op *op)
{
    return op->ops != NULL;
}

bool gr_op_is_stopped(const gr_op *op)
{
    return op->stopped;
}

/* Something of it is still to go there, or to be taken. */
static bool owes(const gr_exec_link *link, const gr_op *op)
{
    return link->send.seq == op->seq ||
           (link->ticket_count > 0 && link->tickets[link->ticket_head].op == op);
}

bool gr_exec_awaits(const gr_exec *exec, const gr_op *op, int peer, gr_op_wait what)
{
    const gr_exec_link *link = &exec->links[peer];
    if (!link->link) {
        return false;
    }
    if (op->is_message) {
        bool may_be = op->message.any_source ? gr_op_local(op, peer) >= 0 : op->partner == peer;
        return may_be && what == (op->sends ? GR_OP_WAIT_SEND : GR_OP_WAIT_RECEIVE);
    }
    if (op->ops) {
        return what == GR_OP_WAIT_RECEIVE && op->ops->waits_for &&
               op->ops->waits_for(op->ops_state, peer);
    }
    return what == GR_OP_WAIT_RECEIVE ? link->recv.seq == op->seq
                                      : what == GR_OP_WAIT_SEND && owes(link, op);
}

bool gr_exec_lacks(const gr_exec *exec, const gr_op *op, int peer)
{
    if (op->is_message) {
        return only_partner(op) == peer &&
               op->message.stage == (op->sends ? GR_MESSAGE_ANNOUNCED : GR_MESSAGE_QUEUED);
    }
    bool member = exec->links[peer].link && gr_op_local(op, peer) >= 0;
    return gr_exec_awaits(exec, op, peer, GR_OP_WAIT_RECEIVE) ||
           gr_exec_awaits(exec, op, peer, GR_OP_WAIT_SEND) ||
           (member && (op->needs == GR_NEEDS_ALL || op->needs == peer));
}

bool gr_exec_is_blocked(const gr_exec *exec, const gr_op *op)
{
    if (exec->blocked != op->head || op->stopped ||
        (exec->may_start && exec->may_start(exec->owner))) {
        return false;
    }
    for (int i = 0; i < exec->ops_used; i++) {
        const gr_op *other = &exec->ops[i];
        if (other->state == GR_OP_ACTIVE && other->head->done) {
            return false; /* its callback may start something */
        }
    }
    return true;
}

bool gr_exec_has_begun(const gr_exec *exec, const gr_op_id *id, int peer)
{
    const gr_exec_link *link = &exec->links[peer];
    if (id->is_message) {
        return id->sends ? gr_exec_message_is_matched(link, id->number)
                         : (int32_t)(id->number - link->messages_sent) < 0;
    }
    return id->comm >= GR_EXEC_GROUPS_MAX ||
           (int32_t)(id->number - exec->members[id->comm].next_number) < 0;
}

bool gr_exec_is_missing(const gr_exec *exec, const gr_op_id *id, int peer)
{
    const gr_exec_link *link = &exec->links[peer];
    if (!id->is_message) {
        return !gr_exec_has_begun(exec, id, peer);
    }
    /* What was sent may be under way: then the peer has not seen all that this rank has sent. */
    return id->sends ? gr_exec_message_is_kept(link, id->number)
                     : id->partner == exec->rank && id->number == link->messages_sent;
}

bool gr_exec_shares_comm(const gr_exec *exec, uint16_t comm, int peer)
{
    const gr_exec_members *members = comm < GR_EXEC_GROUPS_MAX ? &exec->members[comm] : NULL;
    return members && (comm == 0 || members->group) &&
           (!members->local || members->local[peer] >= 0);
}

bool gr_exec_holds_back(const gr_exec *exec, int peer)
{
    const gr_exec_link *link = &exec->links[peer];
    gr_frame frame;
    return link->link && !link->reading && gr_link_peek(link->link, &frame) == GR_OK;
}

bool gr_exec_is_behind_peer(const gr_exec *exec, int peer, int other)
{
    return gr_exec_is_behind(&exec->links[peer].recv, &exec->links[other].recv);
}

bool gr_exec_at_start(const gr_exec *exec, int peer)
{
    return gr_exec_at_first(&exec->links[peer].recv);
}

gr_timeline *gr_exec_timeline(const gr_exec *exec)
{
    return exec->timeline;
}

void gr_exec_set_arbitrating(gr_exec *exec, bool arbitrating)
{
    exec->arbitrating = arbitrating;
}

void gr_exec_discard_data(gr_exec *exec)
{
    (void)gr_exec_discard_all(exec); /* a sentence that turns up ends the link, and with it all */
}
