/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdio.h>
#include <string.h>

/* Do all ranks call the same? A fingerprint only says that they do not. So whoever meets a foreign
 * one tells the peer what it called itself (a CLAIM), and the peer, who knows what it called, says
 * both to all. */

enum {
    DOUBT_US = 500000,
    DISCARD_US = 50000, /* a sender of what was not taken yet waits, and so can answer */
    SIDE_BYTES = 200,
    HOW_BYTES = 64
};

/* ---- Saying which operation it is ------------------------------------------------------------ */
/* `allreduce of 100 f32 (sum over 4) by direct "grads" at train.c:88 as operation 17`. */
static void say_entry(const gr_record_entry *entry, char *text_out, size_t size_bytes)
{
    char what[GR_RECORD_TEXT_BYTES];
    gr_record_describe(entry, what, sizeof what);
    if (entry->peer >= 0) {
        snprintf(text_out, size_bytes, "%.150s as message %u", what, entry->number);
    } else if (entry->comm == 0) {
        snprintf(text_out, size_bytes, "%.150s as operation %u", what, entry->number);
    } else {
        snprintf(text_out, size_bytes, "%.150s as operation %u of sub-group %u", what,
                 entry->number, entry->comm);
    }
}

void gr_exec_say(const gr_exec *exec, const gr_op *op, char *text_out, size_t size_bytes)
{
    char what[GR_RECORD_TEXT_BYTES] = "no longer known";
    const gr_record_entry *entry = gr_record_at(exec->record, op->record);
    if (entry) {
        gr_record_describe(entry, what, sizeof what);
    }
    const char *kind = op->is_message ? "message" : "operation";
    if (op->comm == 0) {
        snprintf(text_out, size_bytes, "%s %u (%.150s)", kind, op->number, what);
    } else {
        snprintf(text_out, size_bytes, "%s %u of sub-group %u (%.150s)", kind, op->number, op->comm,
                 what);
    }
}

/* ---- Marks ----------------------------------------------------------------------------------- */
gr_exec_mark gr_exec_mark_of(const gr_frame *frame)
{
    bool data = frame->kind == GR_FRAME_DATA;
    bool word = frame->kind == GR_FRAME_WORD;
    return (gr_exec_mark){.valid = true,
                          .waits = word || (!data && (frame->message & GR_WORD_WAITS) != 0),
                          .sends = data || (frame->message & GR_WORD_SENDS) != 0,
                          .comm = frame->comm,
                          .number = frame->op_seq,
                          .fingerprint = frame->fingerprint};
}

static bool is_of_message(const gr_exec_mark *mark)
{
    return (mark->fingerprint & GR_FINGERPRINT_MESSAGE) != 0;
}

bool gr_exec_is_ahead(const gr_exec *exec, const gr_exec_link *link, const gr_exec_mark *mark)
{
    if (is_of_message(mark)) {
        uint32_t next = mark->sends ? link->messages_received : link->messages_sent;
        return (int32_t)(mark->number - next) >= 0;
    }
    return mark->comm < GR_EXEC_GROUPS_MAX &&
           (int32_t)(mark->number - exec->members[mark->comm].next_number) >= 0;
}

/* What we called at that place. `ours`: the mark is our own, else the peer's. */
static const gr_record_entry *find_entry(const gr_exec *exec, int peer, const gr_exec_mark *mark,
                                         bool ours)
{
    if (!is_of_message(mark)) {
        return gr_record_find(exec->record, mark->comm, mark->number);
    }
    gr_coll coll = mark->sends == ours ? GR_COLL_SEND : GR_COLL_RECV;
    return gr_record_find_message(exec->record, coll, peer, mark->number);
}

/* ---- In doubt -------------------------------------------------------------------------------- */
static void post_claim(gr_exec *exec)
{
    gr_exec_doubt *doubt = &exec->doubt;
    if (!doubt->posted) {
        gr_status status = gr_link_send(exec->links[doubt->peer].link, &doubt->frame, doubt->claim,
                                        &doubt->ticket);
        doubt->posted = status != GR_E_AGAIN; /* a broken link is told of by itself */
    }
}

/* The place at which the peer is to look what it called itself. Who sends data of a later operation
 * than the one that we need data of has called another one there: that one tells more. */
static uint32_t claimed_number(const gr_exec_mark *mark, const gr_record_entry *entry)
{
    bool comparable = entry && !mark->waits && !is_of_message(mark) && entry->peer < 0 &&
                      entry->comm == mark->comm;
    return comparable ? entry->number : mark->number;
}

/* The peer is at `mark`; what we called instead is `entry`, NULL: nothing. `how` it differs, where
 * that does not say it; else "". */
static void begin_doubt(gr_exec *exec, gr_exec_link *link, const gr_exec_mark *mark,
                        const gr_record_entry *entry, const char *how)
{
    gr_exec_doubt *doubt = &exec->doubt;
    if (doubt->on || exec->diag.status != GR_OK) {
        return;
    }
    char what[SIDE_BYTES] = "nothing that goes with it";
    if (entry) {
        say_entry(entry, what, sizeof what);
    }
    snprintf(doubt->claim, sizeof doubt->claim, "%s%s", what, how);
    const char *kind = is_of_message(mark) ? "message" : "operation";
    gr_status status = gr_fail_peer(
        &doubt->alone, GR_E_MISMATCH, link->peer,
        "the ranks call different operations: rank %d called %.200s; rank %d is at %s %u%s, a "
        "different one, and has not said which; all ranks must call the same operations in the "
        "same order",
        exec->rank, doubt->claim, link->peer, kind, mark->number,
        mark->comm ? " of a sub-group" : "");
    (void)status; /* is in the diagnosis */
    doubt->on = true;
    doubt->posted = false;
    doubt->peer = link->peer;
    doubt->until_us = gr_clock_deadline_us(&exec->clock, DOUBT_US);
    doubt->frame =
        (gr_frame){.kind = GR_FRAME_CLAIM,
                   .comm = mark->comm,
                   .op_seq = mark->number,
                   .message = (mark->waits ? GR_WORD_WAITS : 0) | (mark->sends ? GR_WORD_SENDS : 0),
                   .segment = claimed_number(mark, entry),
                   .fingerprint = mark->fingerprint,
                   .size_bytes = (uint32_t)strlen(doubt->claim)};
    post_claim(exec);
}

int64_t gr_exec_look_doubt(gr_exec *exec, int64_t now_us)
{
    if (!exec->doubt.on) {
        return GR_NEVER;
    }
    if (now_us >= exec->doubt.until_us) {
        gr_exec_fail(exec, &exec->doubt.alone);
        return GR_NEVER;
    }
    post_claim(exec);
    int64_t discard_us = exec->doubt.until_us - DOUBT_US + DISCARD_US;
    if (now_us < discard_us) {
        return discard_us;
    }
    (void)gr_exec_discard_all(exec); /* words may stand behind data, and this is the end anyway */
    return exec->doubt.until_us;
}

static void answer_claim(gr_exec *exec, const gr_exec_link *link, const gr_frame *frame,
                         const char *theirs)
{
    gr_exec_mark mark = gr_exec_mark_of(frame);
    const gr_record_entry *entry = NULL;
    if (frame->segment != mark.number && !is_of_message(&mark)) {
        entry = gr_record_find(exec->record, mark.comm, frame->segment);
    }
    if (!entry) {
        entry = find_entry(exec, link->peer, &mark, true);
    }
    char ours[GR_RECORD_TEXT_BYTES] = "an operation that is no longer known";
    if (entry) {
        say_entry(entry, ours, sizeof ours);
    }
    gr_diag diag;
    gr_status status = gr_fail_peer(
        &diag, GR_E_MISMATCH, link->peer,
        "the ranks call different operations: rank %d called %.190s; rank %d called %.190s; all "
        "ranks must call the same operations in the same order",
        exec->rank, ours, link->peer, theirs);
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

/* ---- What the peer waits in ------------------------------------------------------------------ */
bool gr_exec_is_stuck(const gr_exec *exec, const gr_op *op)
{
    if (exec->blocked != op->head || exec->calls) {
        return false;
    }
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        const gr_op *other = &exec->ops[i];
        if (other->state == GR_OP_ACTIVE && other->head->done) {
            return false; /* its callback may start something */
        }
    }
    return true;
}

/* The peer waits for us, and begins nothing until we come; and so do we in one of ours, which it
 * has not begun. No order of time can bring these together: the calls differ. */
static void meet_stuck(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    gr_exec_mark mark = gr_exec_mark_of(frame);
    const gr_op *op = exec->blocked;
    while (op && ((uint32_t)op->fingerprint & GR_WORD_MASK) != (frame->message & GR_WORD_MASK)) {
        op = op->next_part;
    }
    if (op && gr_exec_is_stuck(exec, op) && gr_exec_lacks(link, op) &&
        gr_exec_is_ahead(exec, link, &mark)) {
        begin_doubt(exec, link, &mark, gr_record_at(exec->record, op->record), "");
    }
}

/* The peer says that it waits. */
static void hear_waits(gr_exec *exec, gr_exec_link *link, const gr_frame *frame)
{
    bool compared = link->waits.valid && link->waits.compared && link->waits.comm == frame->comm &&
                    link->waits.number == frame->op_seq &&
                    link->waits.fingerprint == frame->fingerprint;
    link->waits = gr_exec_mark_of(frame);
    link->waits.compared = compared;
    link->waits.blamed = (int)frame->segment;
    link->waits.heard_us = gr_clock_now_us(&exec->clock);
    gr_exec_compare_waits(exec, link);
    if (frame->message & GR_WORD_STUCK) {
        meet_stuck(exec, link, frame);
    }
}

void gr_exec_hear_all(gr_exec *exec)
{
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        gr_exec_link *link = &exec->links[peer];
        gr_frame frame;
        char text[GR_CLAIM_TEXT_BYTES];
        if (link->link && gr_link_claim(link->link, &frame, text) == GR_OK) {
            answer_claim(exec, link, &frame, text);
        } else if (link->link && gr_link_word(link->link, &frame) == GR_OK) {
            hear_waits(exec, link, &frame);
        }
    }
}

void gr_exec_compare_waits(gr_exec *exec, gr_exec_link *link)
{
    gr_exec_mark *mark = &link->waits;
    if (!mark->valid || mark->compared || gr_exec_is_ahead(exec, link, mark)) {
        return;
    }
    mark->compared = true;
    const gr_record_entry *entry = find_entry(exec, link->peer, mark, false);
    if (entry && entry->fingerprint != mark->fingerprint) {
        begin_doubt(exec, link, mark, entry, "");
    }
}

/* ---- A foreign frame ------------------------------------------------------------------------- */
static void fail_size(gr_exec *exec, const gr_exec_link *link, const gr_frame *frame,
                      const gr_op *op)
{
    char what[SIDE_BYTES];
    gr_exec_say(exec, op, what, sizeof what);
    gr_diag diag;
    gr_status status = gr_fail_peer(
        &diag, GR_E_MISMATCH, link->peer,
        "%s: rank %d sent segment %u of message %u with %u bytes, which does not fit "
        "on rank %d; is GRADUS_SEGMENT the same on all ranks?",
        what, link->peer, frame->segment, frame->message, frame->size_bytes, exec->rank);
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

void gr_exec_fail_foreign(gr_exec *exec, gr_exec_link *link, const gr_frame *frame, const gr_op *op,
                          size_t size_bytes)
{
    gr_exec_mark mark = gr_exec_mark_of(frame);
    bool same = op && frame->comm == op->comm && frame->op_seq == op->number &&
                frame->fingerprint == op->fingerprint;
    if (same && op->uneven) {
        /* An alltoall: the fingerprint has no counts, which only two ranks know. */
        char how[HOW_BYTES];
        snprintf(how, sizeof how, ", to get %zu bytes from rank %d, not %u", size_bytes, link->peer,
                 frame->size_bytes);
        begin_doubt(exec, link, &mark, gr_record_at(exec->record, op->record), how);
        return;
    }
    if (same) {
        fail_size(exec, link, frame, op);
        return;
    }
    /* What stands at the same place here says most; else what we wait in. */
    const gr_record_entry *entry = find_entry(exec, link->peer, &mark, false);
    if ((!entry || entry->fingerprint == mark.fingerprint) && op) {
        entry = gr_record_at(exec->record, op->record);
    }
    begin_doubt(exec, link, &mark, entry, "");
}

void gr_exec_mismatch(gr_exec *exec, const gr_op *op, int peer)
{
    gr_exec_mark mark = {.valid = true,
                         .sends = true,
                         .comm = op->comm,
                         .number = op->number,
                         .fingerprint = op->fingerprint};
    begin_doubt(exec, &exec->links[peer], &mark, gr_record_at(exec->record, op->record), "");
}
