/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdio.h>
#include <string.h>

/* Operations in which nothing moves: who has not come, and what did it do last? */

enum {
    LOOK_GAP_US = 100000, /* who computed in between did not wait: longer gaps do not count */
    HOLD_US = 1000,
    TELL_US = 100000, /* then the peers that we wait for are told what we wait in */
    LIST_MAX = 8,
    OPERATION_BYTES = 200
};

/* ---- Whom do we wait for? -------------------------------------------------------------------- */
static bool awaits(const gr_exec_link *link, const gr_op *op)
{
    return link->link && link->recv.seq == op->seq;
}

/* The peer has said that it waits in the same operation: it has come, and waits for others. */
static bool has_come(const gr_exec_link *link, const gr_op *op)
{
    return link->waits.valid && link->waits.fingerprint == op->fingerprint &&
           link->waits.comm == op->comm && link->waits.number == op->number;
}

/* Of several, one that has not come; else the one of whom least has come: the others may wait for
 * it as well. *sends_out: to take something, not to send it. */
static int find_late_peer(const gr_exec *exec, const gr_op *op, bool *sends_out)
{
    *sends_out = false;
    if (op->driver) {
        return op->driver->late_peer ? op->driver->late_peer(op->driver_state) : -1;
    }
    int late = -1;
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        if (!awaits(link, op)) {
            continue;
        }
        const gr_exec_link *best = late < 0 ? NULL : &exec->links[late];
        bool later =
            !best || has_come(best, op) > has_come(link, op) ||
            (has_come(best, op) == has_come(link, op) && link->recv.index < best->recv.index);
        late = later ? peer : late;
    }
    if (late >= 0) {
        return late;
    }
    *sends_out = true;
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        if (link->link && (link->send.seq == op->seq || link->ticket_count > 0)) {
            return peer;
        }
    }
    return -1;
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
    } else if (has_come(link, op)) {
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
    for (int peer = 0; peer < exec->world_size && !op->driver; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        if (peer == late || !awaits(link, op) || link->recv.index > 0 || has_come(link, op)) {
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
    bool sends = false;
    int peer = find_late_peer(exec, op, &sends);
    char what[OPERATION_BYTES], who[64], last[160], others[128];
    gr_exec_say(exec, op, what, sizeof what);
    say_rank(exec, peer, who, sizeof who);
    say_last(exec, peer, op, last, sizeof last);
    say_others(exec, peer, op, others, sizeof others);
    gr_status status = gr_fail_peer(
        diag_out, GR_E_PEER_SLOW, peer,
        "%.180s on rank %d has waited %.1f s for %s to %s%s%s; it is stopped, stuck or elsewhere "
        "in its program (GRADUS_STALL_FAIL sets how long to wait)",
        what, exec->rank, (double)idle_us / 1e6, who,
        sends ? "take what was sent" : "send its part", last, others);
    (void)status; /* is in the diagnosis */
}

/* ---- One operation --------------------------------------------------------------------------- */
/* Ranks that wait for one another in different operations may have nothing to send: so they say
 * what they wait in, once for each operation and link. */
static void tell_waits(gr_exec *exec, const gr_op *op)
{
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_link *link = &exec->links[peer];
        if (!awaits(link, op) || link->closed || (link->told && link->told_seq == op->seq)) {
            continue;
        }
        gr_frame frame = {.kind = GR_FRAME_DATA,
                          .comm = op->comm,
                          .op_seq = op->number,
                          .message = GR_MESSAGE_WAITS,
                          .fingerprint = op->fingerprint};
        uint64_t ticket;
        if (gr_link_send(link->link, &frame, NULL, &ticket) == GR_OK) {
            link->told = true;
            link->told_seq = op->seq;
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
    if (op->moved) {
        op->moved = false;
        op->idle_since_us = now_us;
    } else {
        op->idle_since_us += skipped_us;
    }
    int64_t idle_us = now_us - op->idle_since_us;
    int64_t next_us = GR_NEVER;
    if (exec->op_timeout_us > 0) {
        if (idle_us >= exec->op_timeout_us) {
            gr_diag diag;
            say_slow(exec, op, idle_us, &diag);
            gr_exec_fail(exec, &diag);
            return GR_NEVER;
        }
        next_us = op->idle_since_us + exec->op_timeout_us;
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
    } else if (!op->driver) {
        tell_waits(exec, op);
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
    gr_exec_hear_claims(exec);
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
