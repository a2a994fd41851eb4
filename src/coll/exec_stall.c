/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdio.h>
#include <string.h>

/* Operations in which nothing moves: who has not come, and what did it do last? */

enum {
    LOOK_GAP_US = 100000, /* who computed in between did not wait: longer gaps do not count */
    HOLD_US = 1000,
    TELL_US = 100000,    /* then those who wait together tell one another for whom */
    RETELL_US = 250000,  /* and again, so that a stopped one is known by its silence, ... */
    SILENT_US = 1000000, /* ... which is that of so long */
    LIST_MAX = 8,
    OPERATION_BYTES = 200
};

/* ---- Whom do we wait for? -------------------------------------------------------------------- */
bool gr_exec_awaits(const gr_exec_link *link, const gr_op *op)
{
    if (op->driver) {
        return link->link && op->driver->needs && op->driver->needs(op->driver_state, link->peer);
    }
    return link->link && link->recv.seq == op->seq;
}

/* The peer has said lately that it waits. */
static bool is_waiting(const gr_exec *exec, const gr_exec_link *link)
{
    return link->waits.valid && exec->last_look_us - link->waits.heard_us < SILENT_US;
}

/* Something has come that cannot be taken yet: it is not this peer that keeps us waiting. */
static bool is_ahead_of_us(const gr_exec_link *link)
{
    gr_frame frame;
    return !link->reading && gr_link_peek(link->link, &frame) == GR_OK;
}

/* The operation of which this link stands still: where something is to come, else where something
 * of ours is to go or to be taken; else the one that keeps us from what the peer waits for. NULL:
 * none. */
static const gr_op *stands_at(gr_exec *exec, const gr_exec_link *link)
{
    if (!link->link) {
        return NULL;
    }
    if (link->recv.seq != exec->next_seq) {
        return gr_exec_op_at(exec, link->recv.seq);
    }
    if (link->ticket_count > 0) {
        return link->tickets[link->ticket_head].op;
    }
    if (link->send.seq != exec->next_seq) {
        return gr_exec_op_at(exec, link->send.seq);
    }
    const gr_op *driven = exec->driven_count > 0 ? exec->driven[0] : NULL;
    if (driven && gr_exec_awaits(link, driven)) {
        return driven;
    }
    const gr_op *oldest = gr_exec_op_at(exec, exec->oldest_seq);
    oldest = oldest ? oldest : driven;
    bool asked = is_ahead_of_us(link) ||
                 (is_waiting(exec, link) &&
                  (link->waits.blamed == exec->rank || gr_exec_is_ahead(exec, link, &link->waits)));
    return asked && oldest && gr_op_local(oldest, link->peer) >= 0 ? oldest : NULL;
}

/* Something of it is still to go there, or to be taken. */
static bool owes(const gr_exec_link *link, const gr_op *op)
{
    return link->link && (link->send.seq == op->seq ||
                          (link->ticket_count > 0 && link->tickets[link->ticket_head].op == op));
}

bool gr_exec_lacks(const gr_exec_link *link, const gr_op *op)
{
    bool member = link->link && gr_op_local(op, link->peer) >= 0;
    return gr_exec_awaits(link, op) || owes(link, op) ||
           (member && (op->needs == GR_NEEDS_ALL || op->needs == link->peer));
}

/* In this operation: it has come. */
static bool has_come(const gr_exec *exec, const gr_exec_link *link, const gr_op *op)
{
    return is_waiting(exec, link) && link->waits.fingerprint == op->fingerprint &&
           link->waits.comm == op->comm && link->waits.number == op->number;
}

/* Whom an operation waits for. `by` is the peer that it waits for itself; if that one has come and
 * waits, too, `peer` is at the end of the chain. -1: not known. */
typedef struct culprit {
    int peer, by;
    bool takes; /* it is to take something, not to send it */
} culprit;

/* Of several, one that has not come; else one that says for whom it waits; and of those the one of
 * whom least has come. */
static int rate(const gr_exec *exec, const gr_exec_link *link, const gr_op *op)
{
    bool for_other = link->waits.blamed != exec->rank && link->waits.blamed != link->peer;
    if (is_waiting(exec, link) && for_other) {
        return 1;
    }
    return has_come(exec, link, op) ? 0 : 2;
}

static bool may_be_late(const gr_exec_link *link, const gr_op *op, bool takes)
{
    if (op->driver) { /* what comes on the links is not its own */
        return !takes && gr_exec_awaits(link, op);
    }
    return takes ? owes(link, op) : gr_exec_awaits(link, op) && !is_ahead_of_us(link);
}

static culprit find_late(const gr_exec *exec, const gr_op *op)
{
    culprit found = {.peer = -1, .by = -1};
    for (int takes = 0; takes < 2 && found.by < 0; takes++) {
        int best = -1;
        for (int peer = 0; peer < exec->world_size; peer++) {
            const gr_exec_link *link = &exec->links[peer];
            if (!may_be_late(link, op, takes)) {
                continue;
            }
            int rating = rate(exec, link, op);
            if (rating > best || (rating == best && !op->driver &&
                                  gr_exec_is_behind(&link->recv, &exec->links[found.by].recv))) {
                best = rating;
                found = (culprit){.peer = peer, .by = peer, .takes = takes};
            }
        }
        int blamed = best == 1 ? exec->links[found.by].waits.blamed : -1;
        found.peer = blamed >= 0 && blamed < exec->world_size ? blamed : found.peer;
    }
    if (op->driver) {
        return found;
    }
    /* Else its messages stand behind those of an older one. */
    const gr_op *oldest = exec->ring[exec->oldest_seq & (GR_EXEC_RING - 1)];
    return found.by < 0 && oldest && oldest != op ? find_late(exec, oldest) : found;
}

/* ---- Saying it ------------------------------------------------------------------------------- */
static void say_rank(const gr_exec *exec, int rank, char *text_out, size_t size_bytes)
{
    const char *host = exec->host_name && rank >= 0 ? exec->host_name(exec->host_arg, rank) : NULL;
    if (host) {
        snprintf(text_out, size_bytes, "rank %d (host %.40s)", rank, host);
    } else if (rank >= 0) {
        snprintf(text_out, size_bytes, "rank %d", rank);
    } else {
        snprintf(text_out, size_bytes, "its peers");
    }
}

static void say_last(const gr_exec *exec, int peer, const gr_op *op, char *text_out,
                     size_t size_bytes)
{
    const gr_exec_link *link = peer >= 0 ? &exec->links[peer] : NULL;
    if (!link) {
        text_out[0] = '\0';
    } else if (has_come(exec, link, op)) {
        snprintf(text_out, size_bytes, "; it waits in this operation itself");
    } else if (!link->came.valid) {
        snprintf(text_out, size_bytes, "; nothing has come from it so far");
    } else if (link->came.number == op->number && link->came.fingerprint == op->fingerprint) {
        snprintf(text_out, size_bytes, "; it has %s",
                 op->driver ? "begun it" : "sent a part of it");
    } else {
        const gr_exec_mark *came = &link->came;
        bool message = (came->fingerprint & GR_FINGERPRINT_MESSAGE) != 0;
        const gr_record_entry *entry =
            message ? gr_record_find_message(exec->record, GR_COLL_RECV, peer, came->number)
                    : gr_record_find(exec->record, came->comm, came->number);
        char what[GR_RECORD_TEXT_BYTES] = "no longer known";
        if (entry) {
            gr_record_describe(entry, what, sizeof what);
        }
        snprintf(text_out, size_bytes, "; the last that came from it was of %s %u (%.90s)",
                 message ? "message" : "operation", came->number, what);
    }
}

/* "; ranks 3, 4 and 2 more have not come either" */
static void say_others(const gr_exec *exec, int late, const gr_op *op, char *text_out,
                       size_t size_bytes)
{
    int count = 0;
    int used = 0;
    text_out[0] = '\0';
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        if (peer == late || !gr_exec_awaits(link, op) || has_come(exec, link, op) ||
            is_ahead_of_us(link) || (!op->driver && !gr_exec_at_first(&link->recv))) {
            continue;
        }
        if (count++ < LIST_MAX) {
            used += snprintf(text_out + used, size_bytes - (size_t)used, "%s%d",
                             count == 1 ? "; nor has anything come from rank " : ", ", peer);
        }
    }
    if (count > LIST_MAX) {
        snprintf(text_out + used, size_bytes - (size_t)used, " and %d more", count - LIST_MAX);
    }
}

static void say_slow(const gr_exec *exec, const gr_op *op, int64_t idle_us, gr_diag *diag_out)
{
    culprit found = find_late(exec, op);
    char what[OPERATION_BYTES], who[64], last[160], others[128];
    gr_exec_say(exec, op, what, sizeof what);
    say_rank(exec, found.peer, who, sizeof who);
    if (found.peer == found.by) {
        say_last(exec, found.peer, op, last, sizeof last);
        say_others(exec, found.peer, op, others, sizeof others);
    } else {
        snprintf(last, sizeof last, "; so does rank %d, through which it would come here",
                 found.by);
        others[0] = '\0';
    }
    gr_status status = gr_fail_peer(
        diag_out, GR_E_PEER_SLOW, found.peer,
        "%.180s on rank %d has waited %.1f s for %s to %s%s%s; it is stopped, stuck or elsewhere "
        "in its program (GRADUS_STALL_FAIL sets how long to wait)",
        what, exec->rank, (double)idle_us / 1e6, who,
        found.takes ? "take what was sent" : "send its part", last, others);
    (void)status; /* is in the diagnosis */
}

/* ---- One operation --------------------------------------------------------------------------- */
/* If the peer waits for us in what was not begun here, or has sent some of it, and nothing else can
 * be begun here before it comes to `op`, then it should know. As GR_WORD_STUCK; 0: no. */
static uint32_t stuck_before(gr_exec *exec, const gr_exec_link *link, const gr_op *op)
{
    if (!gr_exec_lacks(link, op) || !gr_exec_is_stuck(exec, op)) {
        return 0;
    }
    gr_frame frame;
    gr_exec_mark mark = link->waits;
    bool asked = mark.valid && mark.blamed == exec->rank;
    if (!asked && !link->reading && gr_link_peek(link->link, &frame) == GR_OK) {
        asked = true;
        mark = gr_exec_mark_of(&frame);
    }
    return asked && gr_exec_is_ahead(exec, link, &mark)
               ? GR_WORD_STUCK | ((uint32_t)mark.fingerprint & GR_WORD_MASK)
               : 0;
}

static bool tell(gr_exec_link *link, const gr_op *op, int blamed, uint32_t stuck)
{
    bool sends = op->is_message && !gr_exec_awaits(link, op);
    gr_frame frame = {.kind = GR_FRAME_WORD,
                      .comm = op->comm,
                      .op_seq = op->number,
                      .message = stuck | (sends ? GR_WORD_SENDS : 0),
                      .segment = (uint32_t)blamed,
                      .fingerprint = op->fingerprint};
    uint64_t ticket;
    return gr_link_send(link->link, &frame, NULL, &ticket) == GR_OK;
}

/* Ranks that wait for one another in different operations may have nothing to send; and who waits
 * for one that waits itself does not know for whom. So all say it to those they wait for and to
 * those who wait for them, when it changes and from time to time. */
static void tell_waits(gr_exec *exec, const gr_op *op, int64_t now_us)
{
    int blamed = find_late(exec, op).peer;
    for (int peer = 0; peer < exec->world_size && blamed >= 0; peer++) {
        gr_exec_link *link = &exec->links[peer];
        if (link->closed || stands_at(exec, link) != op ||
            (op->is_message && !gr_exec_lacks(link, op))) {
            continue;
        }
        uint32_t stuck = stuck_before(exec, link, op);
        bool known = link->told_record == op->record + 1 && link->told_blamed == blamed &&
                     link->told_stuck == stuck;
        if ((!known || now_us - link->told_us >= RETELL_US) && tell(link, op, blamed, stuck)) {
            link->told_record = op->record + 1;
            link->told_blamed = blamed;
            link->told_stuck = stuck;
            link->told_us = now_us;
        }
    }
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns when to look at it again. */
static int64_t look_at(gr_exec *exec, gr_op *op, int64_t now_us, int64_t skipped_us)
{
    if (op->moved || gr_op_lacks_scratch(op)) { /* that one waits for older ones of this rank */
        op->moved = false;
        op->idle_since_us = now_us;
    } else {
        op->idle_since_us += skipped_us;
    }
    int64_t idle_us = now_us - op->idle_since_us;
    int64_t next_us = GR_NEVER;
    if (exec->op_timeout_us > 0) {
        /* Who waits for the late one itself knows best what that one did last. */
        culprit found = idle_us >= exec->op_timeout_us ? find_late(exec, op) : (culprit){.peer = 0};
        int64_t limit_us = exec->op_timeout_us + (found.peer == found.by ? 0 : TELL_US);
        if (idle_us >= limit_us) {
            gr_diag diag;
            say_slow(exec, op, idle_us, &diag);
            gr_exec_fail(exec, &diag);
            return GR_NEVER;
        }
        next_us = op->idle_since_us + limit_us;
    }
    if (exec->stall_warn_us > 0 && !op->warned) {
        if (idle_us >= exec->stall_warn_us) {
            gr_diag diag;
            op->warned = true;
            say_slow(exec, op, idle_us, &diag);
            gr_log_write(exec->log, GR_LOG_WARN, "coll", "%s", diag.text);
            if (exec->timeline) {
                gr_timeline_mark(exec->timeline, GR_TIMELINE_STALL, diag.text);
            }
        } else {
            next_us = earlier(next_us, op->idle_since_us + exec->stall_warn_us);
        }
    }
    if (idle_us < TELL_US) {
        next_us = earlier(next_us, op->idle_since_us + TELL_US);
    } else {
        tell_waits(exec, op, now_us);
        next_us = earlier(next_us, now_us + RETELL_US);
    }
    return next_us;
}

/* ---- All ------------------------------------------------------------------------------------- */
int64_t gr_exec_look(gr_exec *exec, bool waited)
{
    if (gr_exec_active(exec) == 0 && !gr_exec_unsure(exec)) {
        return GR_NEVER;
    }
    int64_t now_us = gr_clock_now_us(&exec->clock);
    int64_t skipped_us = now_us - exec->last_look_us;
    skipped_us = waited || skipped_us <= LOOK_GAP_US ? 0 : skipped_us;
    if (exec->moved) {
        exec->moved = false;
        exec->idle_since_us = now_us;
    } else {
        exec->idle_since_us += skipped_us;
    }
    exec->last_look_us = now_us;
    gr_exec_hear_all(exec);
    int64_t next_us = gr_exec_look_doubt(exec, now_us);
    for (uint32_t seq = exec->oldest_seq; seq != exec->next_seq && exec->active > 0; seq++) {
        gr_op *op = gr_exec_op_at(exec, seq);
        if (op) {
            next_us = earlier(next_us, look_at(exec, op, now_us, skipped_us));
        }
    }
    for (int i = 0; i < exec->driven_count; i++) {
        next_us = earlier(next_us, look_at(exec, exec->driven[i], now_us, skipped_us));
    }
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        gr_exec_compare_waits(exec, &exec->links[peer]);
    }
    if (exec->diag.status != GR_OK) {
        return GR_NEVER;
    }
    next_us = earlier(next_us, gr_exec_scratch_look(exec, now_us));
    if (exec->holds > 0) {
        if (now_us - exec->idle_since_us >= HOLD_US) {
            gr_exec_let_go(exec);
        }
        if (exec->holds > 0) {
            next_us = earlier(next_us, exec->idle_since_us + HOLD_US);
        }
    }
    return next_us;
}
