/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdio.h>
#include <string.h>

/* A caller that computed in between did not wait: longer gaps between two looks do not count. */
enum { LOOK_GAP_US = 100000, HOLD_US = 1000, FLUSH_ROUNDS_MAX = 10000, FLUSH_SLEEP_US = 1000 };

/* ---- What an operation is -------------------------------------------------------------------- */
uint64_t gr_op_fingerprint(const gr_op_desc *desc)
{
    return (uint64_t)desc->coll | (uint64_t)desc->dtype << 3 | (uint64_t)desc->op << 6 |
           (uint64_t)desc->algorithm << 8 | (uint64_t)desc->param << 12 | desc->count << 26;
}

void gr_op_describe(uint64_t fingerprint, char *text_out, size_t size_bytes)
{
    gr_coll coll = (gr_coll)(fingerprint & 7);
    gr_dtype dtype = (gr_dtype)(fingerprint >> 3 & 7);
    gr_redop op = (gr_redop)(fingerprint >> 6 & 3);
    int algorithm = (int)(fingerprint >> 8 & 15);
    int param = (int)(fingerprint >> 12 & GR_OP_PARAM_MAX);
    unsigned long long count = fingerprint >> 26;
    if (coll >= GR_COLL_COUNT || dtype >= GR_DTYPE_COUNT) {
        snprintf(text_out, size_bytes, "an unknown operation");
        return;
    }
    int known = 0;
    while (known < algorithm && gr_algorithms[known].name) {
        known++;
    }
    const char *by = gr_algorithms[known].name ? gr_algorithms[known].name : "an unknown algorithm";
    const char *name = gr_coll_name(coll);
    switch (coll) {
    case GR_COLL_BARRIER:
        snprintf(text_out, size_bytes, "%s by %s", name, by);
        break;
    case GR_COLL_BROADCAST:
        snprintf(text_out, size_bytes, "%s of %llu %s from rank %d by %s", name, count,
                 gr_dtype_name(dtype), param, by);
        break;
    case GR_COLL_ALLGATHER:
        snprintf(text_out, size_bytes, "%s of %llu %s a rank by %s", name, count,
                 gr_dtype_name(dtype), by);
        break;
    default:
        snprintf(text_out, size_bytes, "%s of %llu %s (%s over %d) by %s", name, count,
                 gr_dtype_name(dtype), gr_redop_name(op), param, by);
        break;
    }
}

enum { DESCRIPTION_BYTES = 128 };

/* ---- The end --------------------------------------------------------------------------------- */
static bool abort_possible(const gr_exec_link *link)
{
    return link->link && !link->closed && !link->abort_done &&
           gr_link_diag(link->link)->status == GR_OK;
}

/* Posts the sentence where there is room; true if every living peer has it. */
static bool abort_round(gr_exec *exec, const gr_frame *frame)
{
    bool all = true;
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_link *link = &exec->links[peer];
        if (!abort_possible(link)) {
            continue;
        }
        if (!link->abort_posted) {
            gr_status status =
                gr_link_send(link->link, frame, exec->diag.text, &link->abort_ticket);
            link->abort_posted = status == GR_OK;
            link->abort_done = status != GR_OK && status != GR_E_AGAIN;
        }
        if (link->abort_posted && gr_link_sent(link->link, link->abort_ticket)) {
            link->abort_done = true;
        }
        all = all && link->abort_done;
    }
    return all;
}

/* Tells the living why. Bounded in time: who does not take it will see our link end instead. */
static void spread_abort(gr_exec *exec)
{
    gr_frame frame = {.kind = GR_FRAME_ABORT,
                      .op_seq = exec->oldest_seq,
                      .message = (uint32_t)(-exec->diag.status),
                      .segment = (uint32_t)exec->diag.peer_rank,
                      .size_bytes = (uint32_t)strlen(exec->diag.text)};
    int64_t end_us = gr_clock_deadline_us(&exec->clock, GR_EXEC_ABORT_FLUSH_US);
    for (int round = 0; round < FLUSH_ROUNDS_MAX; round++) {
        if (abort_round(exec, &frame)) {
            return;
        }
        int64_t now_us = gr_clock_now_us(&exec->clock);
        if (now_us >= end_us) {
            return;
        }
        gr_diag ignored; /* further losses change nothing */
        if (gr_mesh_progress(exec->mesh, &ignored) == GR_OK) {
            gr_mesh_wait(exec->mesh, now_us + FLUSH_SLEEP_US);
        }
    }
}

static void end_operations(gr_exec *exec)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        if (op->state == GR_OP_ACTIVE) {
            op->state = GR_OP_FINISHED;
            op->status = (gr_status)exec->diag.status;
        }
        op->in_work = false;
    }
    memset(exec->ring, 0, sizeof exec->ring);
    exec->active = 0;
    exec->oldest_seq = exec->next_seq;
    exec->work_head = NULL;
    exec->work_tail = NULL;
    exec->post_count = 0;
}

/* Data are of no use any more: behind those that nobody took there may stand what explains the
 * failure. That sentence, or NULL. */
static const gr_diag *discard_all(gr_exec *exec)
{
    const gr_diag *sentence = NULL;
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_link *link = &exec->links[peer];
        if (link->link) {
            gr_link_discard(link->link);
            const gr_diag *diag = gr_link_diag(link->link);
            if (!sentence && gr_status_scope((gr_status)diag->status) >= GR_SCOPE_COMM) {
                sentence = diag;
            }
        }
    }
    return sentence;
}

/* Whoever was told by another rank tells all others as well: it may leave before that one's word
 * has come everywhere, and the others must not take its leaving for the cause. */
void gr_exec_fail(gr_exec *exec, const gr_diag *diag)
{
    if (exec->diag.status != GR_OK) {
        return;
    }
    exec->diag = *diag;
    gr_log_write(exec->log, GR_LOG_DEBUG, "coll", "the communicator ends: %s", diag->text);
    (void)discard_all(exec); /* peers that wait for us to read may have to tell us the same */
    spread_abort(exec);
    end_operations(exec);
}

/* ---- A peer is gone -------------------------------------------------------------------------- */
void gr_exec_lost(gr_exec *exec, gr_exec_link *link, gr_status status, const gr_op *op)
{
    const gr_diag *cause = gr_link_diag(link->link);
    if (gr_status_scope((gr_status)cause->status) >= GR_SCOPE_COMM) {
        gr_exec_fail(exec, cause); /* the peer's own sentence */
        return;
    }
    /* It may have taken our last messages just before its end, and then nothing is missing. */
    gr_exec_reap(exec, link);
    if (!gr_exec_needs(exec, link)) {
        link->closed = true;
        return;
    }
    const gr_diag *told = discard_all(exec);
    if (told) {
        gr_exec_fail(exec, told); /* another peer knows better why this one is gone */
        return;
    }
    op = op ? op : gr_exec_op_at(exec, exec->oldest_seq);
    char what[DESCRIPTION_BYTES] = "";
    if (op) {
        gr_op_describe(op->fingerprint, what, sizeof what);
    }
    gr_diag diag;
    status = cause->status != GR_OK ? (gr_status)cause->status : status;
    status = gr_fail_peer(&diag, status, link->peer, "%.300s; operation %u (%s) needs it",
                          cause->text, op ? op->seq : exec->next_seq, what);
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

void gr_exec_mesh_failed(gr_exec *exec, gr_status status, const gr_diag *diag)
{
    bool found = false;
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        gr_exec_link *link = &exec->links[peer];
        if (link->link && gr_link_diag(link->link)->status != GR_OK) {
            gr_frame frame;
            found = true;
            /* What came before the end may be all that is needed, once its turn has come. */
            if (gr_link_peek(link->link, &frame) != GR_OK) {
                gr_exec_lost(exec, link, status, NULL);
            }
        }
    }
    if (!found) {
        gr_exec_fail(exec, diag);
    }
}

/* ---- The peer calls something else ----------------------------------------------------------- */
void gr_exec_fail_foreign(gr_exec *exec, gr_exec_link *link, const gr_frame *frame, const gr_op *op)
{
    char ours[DESCRIPTION_BYTES] = "nothing from there";
    char theirs[DESCRIPTION_BYTES];
    gr_op_describe(frame->fingerprint, theirs, sizeof theirs);
    if (op) {
        gr_op_describe(op->fingerprint, ours, sizeof ours);
    } else if (gr_exec_op_at(exec, frame->op_seq)) {
        op = gr_exec_op_at(exec, frame->op_seq);
        gr_op_describe(op->fingerprint, ours, sizeof ours);
    }
    gr_diag diag;
    gr_status status = GR_OK;
    if (op && frame->op_seq == op->seq && frame->fingerprint == op->fingerprint) {
        status = gr_fail_peer(&diag, GR_E_MISMATCH, link->peer,
                              "operation %u (%s): rank %d sent segment %u of message %u with %u "
                              "bytes, which does not fit on rank %d; is GRADUS_SEGMENT the same "
                              "on all ranks?",
                              op->seq, ours, link->peer, frame->segment, frame->message,
                              frame->size_bytes, exec->rank);
    } else {
        status = gr_fail_peer(&diag, GR_E_MISMATCH, link->peer,
                              "the ranks call different operations: rank %d is at number %u, %s; "
                              "rank %d is at number %u, %s; every rank must call the same "
                              "operations in the same order",
                              exec->rank, op ? op->seq : exec->next_seq, ours, link->peer,
                              frame->op_seq, theirs);
    }
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

/* ---- Deadlines ------------------------------------------------------------------------------- */
/* Whom does the oldest operation wait for? Of several, the one of whom least has come: the others
 * may wait for it as well. *sends_out: to take something, not to send it. */
static int find_late_peer(const gr_exec *exec, const gr_op *op, bool *sends_out)
{
    int late = -1;
    *sends_out = false;
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        if (link->link && link->recv.seq == op->seq &&
            (late < 0 || link->recv.index < exec->links[late].recv.index)) {
            late = peer;
        }
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

static void fail_slow(gr_exec *exec, int64_t idle_us)
{
    const gr_op *op = gr_exec_op_at(exec, exec->oldest_seq);
    bool sends = false;
    int peer = find_late_peer(exec, op, &sends);
    char what[DESCRIPTION_BYTES];
    gr_op_describe(op->fingerprint, what, sizeof what);
    gr_diag diag;
    gr_status status = gr_fail_peer(
        &diag, GR_E_PEER_SLOW, peer,
        "operation %u (%s) on rank %d has waited %.1f s for rank %d to %s; it is stopped, stuck or "
        "elsewhere in its program (GRADUS_OP_TIMEOUT sets how long to wait)",
        op->seq, what, exec->rank, (double)idle_us / 1e6, peer,
        sends ? "take what was sent" : "send its part");
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

int64_t gr_exec_look(gr_exec *exec, bool waited)
{
    if (exec->active == 0) {
        return GR_NEVER;
    }
    int64_t now_us = gr_clock_now_us(&exec->clock);
    if (exec->moved) {
        exec->moved = false;
        exec->idle_since_us = now_us;
    } else if (!waited && now_us - exec->last_look_us > LOOK_GAP_US) {
        exec->idle_since_us += now_us - exec->last_look_us;
    }
    exec->last_look_us = now_us;
    int64_t idle_us = now_us - exec->idle_since_us;
    if (exec->op_timeout_us > 0 && idle_us >= exec->op_timeout_us) {
        fail_slow(exec, idle_us);
        return GR_NEVER;
    }
    if (exec->holds > 0 && idle_us >= HOLD_US) {
        gr_exec_let_go(exec);
    }
    int64_t next_us =
        exec->op_timeout_us > 0 ? exec->idle_since_us + exec->op_timeout_us : GR_NEVER;
    if (exec->holds > 0 && exec->idle_since_us + HOLD_US < next_us) {
        next_us = exec->idle_since_us + HOLD_US;
    }
    return next_us;
}
