/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/diagnosis_internal.h"

#include <stdio.h>
#include <string.h>

/* Operations in which nothing moves: which rank has not come, and what did it do last? */

enum { LIST_MAX = 8, OPERATION_BYTES = 200 };

/* ---- The root cause -------------------------------------------------------------------------- */
/* `peer` keeps the operation waiting; `via` is the rank that it waits for itself. -1: not known. */
typedef struct culprit {
    int peer, via;
    bool takes; /* `via` is to take something, not to send it */
    const char *waits_in;
} culprit;

/* As far as this rank can see: of several, the one of which least has come. */
static culprit find_here(const gr_diagnosis *d, const gr_op *op)
{
    culprit found = {.peer = -1, .via = -1, .waits_in = ""};
    const gr_exec *exec = d->config.exec;
    gr_op_report list;
    gr_diagnosis_list_awaited(d, op, &list);
    for (uint32_t i = 0; i < list.awaits_count; i++) {
        int peer = list.awaits[i];
        if (found.peer < 0 ||
            (!gr_op_is_custom(op) && gr_exec_is_behind_peer(exec, peer, found.peer))) {
            found.peer = found.via = peer;
        }
    }
    found.takes = found.peer >= 0 && !gr_exec_awaits(exec, op, found.peer, GR_OP_WAIT_RECEIVE) &&
                  gr_exec_awaits(exec, op, found.peer, GR_OP_WAIT_SEND);
    return found;
}

/* The coordinator knows what other ranks wait for. */
static culprit find_culprit(const gr_diagnosis *d, const gr_op *op)
{
    culprit found = find_here(d, op);
    const gr_op_report *cause = &d->cause;
    gr_op_report list;
    if (cause->kind != GR_REPORT_CAUSE || cause->peer < 0 || cause->via < 0) {
        return found;
    }
    gr_diagnosis_list_awaited(d, op, &list);
    for (uint32_t i = 0; i < list.awaits_count; i++) {
        if (list.awaits[i] == cause->via && cause->peer != d->config.rank) {
            found.peer = cause->peer;
            found.via = cause->via;
            found.waits_in = cause->text;
            return found;
        }
    }
    return found;
}

/* ---- Saying it ------------------------------------------------------------------------------- */
static void describe_rank(const gr_diagnosis *d, int rank, char *text_out, size_t size_bytes)
{
    const char *host =
        d->config.host_name && rank >= 0 ? d->config.host_name(d->config.host_arg, rank) : NULL;
    if (host) {
        snprintf(text_out, size_bytes, "rank %d (host %.40s)", rank, host);
    } else if (rank >= 0) {
        snprintf(text_out, size_bytes, "rank %d", rank);
    } else {
        snprintf(text_out, size_bytes, "its peers");
    }
}

static void describe_last(const gr_diagnosis *d, const culprit *found, const gr_op *op,
                          char *text_out, size_t size_bytes)
{
    const gr_diagnosis_peer *from = found->peer >= 0 ? &d->peers[found->peer] : NULL;
    gr_op_id own = gr_op_identity(op);
    text_out[0] = '\0';
    if (!from) {
        return;
    }
    if (found->waits_in[0]) {
        snprintf(text_out, size_bytes, "; it waits itself in %.120s", found->waits_in);
    } else if (!from->any) {
        snprintf(text_out, size_bytes, "; nothing has come from it so far");
    } else if (gr_diagnosis_has_arrived(d, &own, found->peer)) {
        snprintf(text_out, size_bytes, "; it has %s",
                 gr_op_is_custom(op) ? "begun it" : "sent a part of it");
    } else {
        const gr_op_id *last = &from->last_rx;
        const gr_flight_recorder *record = gr_diagnosis_record(d);
        const gr_flight_recorder_entry *entry =
            last->is_message
                ? gr_flight_recorder_find_message(record, GR_COLL_RECV, found->peer, last->number)
                : gr_flight_recorder_find(record, last->comm, last->number);
        char what[GR_FLIGHT_RECORDER_TEXT_BYTES] = "no longer known";
        char number[GR_FLIGHT_RECORDER_NUMBER_BYTES];
        if (entry) {
            gr_flight_recorder_describe(entry, what, sizeof what);
        }
        gr_flight_recorder_describe_number(record, last->comm, last->number, last->is_message,
                                           number);
        snprintf(text_out, size_bytes, "; the last that came from it was of %.35s (%.80s)", number,
                 what);
    }
}

/* "; nor has anything come from rank 3, 4 and 2 more" */
static void describe_others(const gr_diagnosis *d, int named, const gr_op *op, char *text_out,
                            size_t size_bytes)
{
    const gr_exec *exec = d->config.exec;
    int count = 0;
    int used = 0;
    text_out[0] = '\0';
    for (int peer = 0; peer < d->config.world_size; peer++) {
        if (peer == named || !gr_exec_awaits(exec, op, peer, GR_OP_WAIT_RECEIVE) ||
            gr_exec_holds_back(exec, peer) ||
            (!gr_op_is_custom(op) && !gr_exec_at_start(exec, peer))) {
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

static void describe_stall(const gr_diagnosis *d, const gr_op *op, int64_t idle_us,
                           gr_diag *diag_out)
{
    culprit found = find_culprit(d, op);
    char what[OPERATION_BYTES], rank[64], last[160], others[128];
    gr_exec_describe_op(d->config.exec, op, what, sizeof what);
    describe_rank(d, found.peer, rank, sizeof rank);
    if (found.peer == found.via) {
        describe_last(d, &found, op, last, sizeof last);
        describe_others(d, found.peer, op, others, sizeof others);
    } else {
        snprintf(last, sizeof last, "; so does rank %d, through which it would come here",
                 found.via);
        others[0] = '\0';
    }
    (void)gr_fail_peer(
        diag_out, GR_E_PEER_SLOW, found.peer,
        "%.180s on rank %d has waited %.1f s for %s to %s%s%s; it is stopped, stuck or elsewhere "
        "in its program (GRADUS_STALL_FAIL sets how long to wait)",
        what, d->config.rank, (double)idle_us / 1e6, rank,
        found.takes ? "take what was sent" : "send its part", last, others);
}

/* ---- One operation --------------------------------------------------------------------------- */
/* How much longer a rank waits that waits for the root cause by way of others: the rank beside the
 * root cause knows more and fails first, also where it has to wait for a core. */
static int64_t chain_us(int64_t limit_us)
{
    enum { CHAIN_MIN_US = 100000, CHAIN_MAX_US = 5000000, CHAIN_PART = 4 };
    const int64_t part_us = limit_us / CHAIN_PART;
    return part_us < CHAIN_MIN_US ? CHAIN_MIN_US : part_us > CHAIN_MAX_US ? CHAIN_MAX_US : part_us;
}

/* Returns when to look again; GR_NEVER also if the communicator has ended. */
static int64_t poll_timeout(gr_diagnosis *d, const gr_op *op, int64_t idle_us, int64_t since_us)
{
    if (d->config.op_timeout_us <= 0) {
        return GR_NEVER;
    }
    int64_t limit_us = d->config.op_timeout_us;
    if (idle_us >= limit_us) {
        culprit found = find_culprit(d, op);
        limit_us += found.peer == found.via ? 0 : chain_us(limit_us);
    }
    if (idle_us >= limit_us) {
        gr_diag diag;
        describe_stall(d, op, idle_us, &diag);
        gr_exec_end_group(d->config.exec, gr_op_identity(op).comm, &diag);
        return GR_NEVER;
    }
    return since_us + limit_us;
}

static int64_t poll_warning(gr_diagnosis *d, gr_op *op, int64_t idle_us, int64_t since_us)
{
    gr_op_watch *watch = gr_op_watched(op);
    if (d->config.stall_warn_us <= 0 || watch->warned) {
        return GR_NEVER;
    }
    if (idle_us < d->config.stall_warn_us) {
        return since_us + d->config.stall_warn_us;
    }
    gr_diag diag;
    watch->warned = true;
    describe_stall(d, op, idle_us, &diag);
    gr_log_write(d->config.log, GR_LOG_WARN, "coll", "%s", diag.text);
    gr_timeline *timeline = gr_exec_timeline(d->config.exec);
    if (timeline) {
        gr_timeline_mark(timeline, GR_TIMELINE_STALL, diag.text);
    }
    return GR_NEVER;
}

/* Certain at once, whatever the timeouts are. */
static void fail_own_message(gr_diagnosis *d, const gr_op *op)
{
    gr_diag diag;
    char what[OPERATION_BYTES];
    gr_exec_describe_op(d->config.exec, op, what, sizeof what);
    (void)gr_fail_peer(&diag, GR_E_MISMATCH, d->config.rank,
                       "%.180s on rank %d is from this rank to itself, and nothing goes with it, "
                       "while the rank waits for it and can start nothing else; start the receive "
                       "before the send, or both in one call",
                       what, d->config.rank);
    gr_exec_end_group(d->config.exec, gr_op_identity(op).comm, &diag);
}

int64_t gr_diagnosis_poll_op(gr_diagnosis *d, gr_op *op, int64_t now_us, int64_t skipped_us)
{
    gr_op_watch *watch = gr_op_watched(op);
    if (gr_exec_waits_for_itself(d->config.exec, op)) {
        fail_own_message(d, op);
        return GR_NEVER;
    }
    if (watch->moved || gr_op_waits_for_own(op)) {
        watch->moved = false;
        watch->idle_since_us = now_us;
    } else {
        watch->idle_since_us += skipped_us;
    }
    int64_t idle_us = now_us - watch->idle_since_us, since_us = watch->idle_since_us;
    int64_t next_us = poll_timeout(d, op, idle_us, since_us);
    return gr_diagnosis_is_over(d) || gr_op_is_stopped(op)
               ? GR_NEVER
               : gr_earlier_us(next_us, poll_warning(d, op, idle_us, since_us));
}
