/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/engine/exec_group_end.h"
#include "coll/engine/exec_internal.h"

#include <stdio.h>
#include <string.h>

enum {
    FLUSH_ROUNDS_MAX = 10000,
    FLUSH_SLEEP_US = 1000,
    MISMATCH_FLUSH_US = 2000000,
    DESCRIPTION_BYTES = 200
};

/* ---- The end --------------------------------------------------------------------------------- */
static bool abort_possible(const gr_exec_link *link)
{
    return link->link && gr_link_is_up(link->link) && !link->closed && !link->abort_done &&
           gr_link_diag(link->link)->status == GR_OK;
}

/* A socket that is closed while data are under way to it is reset, and what its owner wrote last
 * may be lost. A peer whose calls differ may be sending us much, and must know why: it has read our
 * sentence when it ends its side. What else fails is found out by the others as well, and is not to
 * take any longer. */
static bool hears_out(const gr_exec *exec, const gr_exec_link *link)
{
    return exec->diag.status == GR_E_MISMATCH && gr_link_capabilities(link->link)->pollable;
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
        if (link->abort_posted && gr_link_sent(link->link, link->abort_ticket) &&
            !hears_out(exec, link)) {
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
    int64_t limit_us = GR_EXEC_ABORT_FLUSH_US;
    if (exec->diag.status == GR_E_MISMATCH) {
        /* Ranks that call different operations all live, and have data on their way before this. */
        limit_us = MISMATCH_FLUSH_US;
    } else if (exec->diag.status == GR_E_ABORTED) {
        limit_us = GR_EXEC_ABORT_NOW_US; /* other threads wait for the end */
    }
    int64_t end_us = gr_clock_deadline_us(&exec->clock, limit_us);
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

/* The failure may be one of a later operation, on another rank: what is complete here came before
 * it. exec->diag is set, so that nothing else that these find is the cause. */
static void finish_complete(gr_exec *exec)
{
    for (int i = 0; i < exec->custom_count;) {
        gr_op *op = exec->custom[i];
        if (op->ops->is_complete && op->ops->is_complete(op->ops_state)) {
            (void)gr_exec_progress_custom(op);
        }
        i += !op->over;
    }
}

static void end_operations(gr_exec *exec)
{
    gr_status status = (gr_status)exec->diag.status;
    finish_complete(exec);
    atomic_store_explicit(&exec->ended, true, memory_order_release);
    exec->finished++;
    memset(exec->ring, 0, sizeof exec->ring);
    exec->active = 0;
    exec->custom_count = 0;
    exec->oldest_seq = exec->next_seq;
    gr_exec_messages_end(exec);
    gr_exec_free_endings(exec);
    exec->sweeps = false;
    exec->work_head = NULL;
    exec->work_tail = NULL;
    exec->post_count = 0;
    exec->flush_count = 0;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        op->in_work = false;
        if (op->state != GR_OP_ACTIVE || op->over) {
            continue;
        }
        op->over = true;
        gr_exec_record_end(exec, op, status);
        if (op->ops && op->ops->cancel && !op->stopped) {
            op->ops->cancel(op->ops_state);
        }
        if (op->head->state == GR_OP_ACTIVE) {
            gr_exec_finish(exec, op->head, status);
        }
    }
}

const gr_diag *gr_exec_discard_all(gr_exec *exec)
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

/* A rank that learns of a failure from another one passes it on: the other may leave before its
 * word has come everywhere, and its leaving must not be taken for the cause. */
void gr_exec_fail(gr_exec *exec, const gr_diag *diag)
{
    if (exec->diag.status != GR_OK) {
        return;
    }
    exec->diag = *diag;
    /* Another rank, stopped for a while say, may have all that it needs to finish what failed here,
     * and will be believed: it must not read zeros. */
    gr_mesh_keep(exec->mesh);
    gr_log_write(exec->log, GR_LOG_DEBUG, "coll", "the communicator ends: %s", diag->text);
    if (exec->timeline) {
        gr_timeline_mark(exec->timeline, GR_TIMELINE_FAILURE, diag->text);
    }
    (void)gr_exec_discard_all(
        exec); /* peers that wait for us to read may have to tell us the same */
    spread_abort(exec);
    end_operations(exec);
}

void gr_exec_cancel(gr_exec *exec)
{
    if (exec->diag.status == GR_OK) {
        gr_status status =
            gr_fail(&exec->diag, GR_E_CANCELLED, "rank %d destroyed the communicator", exec->rank);
        (void)status; /* is in exec->diag */
        end_operations(exec);
    }
}

const gr_diag *gr_exec_first_failure(const gr_exec *exec)
{
    return atomic_load_explicit(&exec->ended, memory_order_acquire) ? &exec->diag : NULL;
}

/* ---- A peer is gone -------------------------------------------------------------------------- */
/* The peer that is gone in arbitration has ended over the same difference, and has told both sides
 * to somebody. If its sentence was lost with its link, others hand it on. */
static void lose_in_arbitration(gr_exec *exec, gr_exec_link *link)
{
    const gr_diag *reported = gr_exec_discard_all(exec);
    bool others = false;
    link->closed = true;
    for (int peer = 0; peer < exec->world_size; peer++) {
        const gr_exec_link *other = &exec->links[peer];
        others |= other->link && !other->closed && gr_link_diag(other->link)->status == GR_OK;
    }
    if (reported || !others) {
        gr_exec_fail(exec, reported ? reported : gr_diagnosis_own_account(exec->diagnosis));
    }
}

void gr_exec_lost(gr_exec *exec, gr_exec_link *link, gr_status status, const gr_op *op)
{
    const gr_diag *cause = gr_link_diag(link->link);
    if (gr_status_scope((gr_status)cause->status) >= GR_SCOPE_COMM) {
        gr_exec_fail(exec, cause); /* the peer's own sentence */
        return;
    }
    if (exec->arbitrating) {
        lose_in_arbitration(exec, link);
        return;
    }
    /* It may have taken our last messages just before its end, and then nothing is missing. */
    gr_exec_reap(exec, link);
    if (!gr_exec_needs(exec, link)) {
        link->closed = true;
        return;
    }
    const gr_diag *reported = gr_exec_discard_all(exec);
    if (reported) {
        gr_exec_fail(exec, reported); /* another peer knows better why this one is gone */
        return;
    }
    op = op ? op : gr_exec_message_that_needs(exec, link->peer);
    op = op ? op : gr_exec_op_at(exec, exec->oldest_seq);
    op = op || exec->custom_count == 0 ? op : exec->custom[0];
    char what[DESCRIPTION_BYTES] = "what comes next";
    if (op) {
        gr_exec_describe_op(exec, op, what, sizeof what);
    }
    gr_diag diag;
    status = cause->status != GR_OK ? (gr_status)cause->status : status;
    status = gr_fail_peer(&diag, status, link->peer, "%.300s; %s needs it", cause->text, what);
    (void)status; /* is in diag */
    gr_exec_fail(exec, &diag);
}

void gr_exec_mesh_failed(gr_exec *exec, gr_status status, const gr_diag *diag)
{
    bool found = false;
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        gr_exec_link *link = &exec->links[peer];
        link->link = link->link ? link->link : gr_mesh_link(exec->mesh, peer);
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

void gr_exec_peer_gone(gr_exec *exec, int peer, bool left, const char *why)
{
    gr_mesh_peer_gone(exec->mesh, peer, left, why);
    exec->moved = true; /* the link that has ended is looked at next */
}

static void look_for_end(gr_exec *exec)
{
    uint64_t now = gr_flight_recorder_now();
    if (exec->diag.status != GR_OK || now - exec->polled_ticks < exec->poll_every_ticks) {
        return;
    }
    exec->polled_ticks = now;
    gr_diag diag;
    gr_status status = gr_mesh_progress(exec->mesh, &diag);
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_link *link = peer == exec->rank ? NULL : gr_mesh_link(exec->mesh, peer);
        gr_frame frame;
        if (!link) {
            continue;
        }
        if (gr_link_peek(link, &frame) == GR_OK) {
            exec->sweeps = exec->sweeps || (exec->any_ended && gr_exec_is_stale(exec, &frame));
        } else if (gr_status_scope((gr_status)gr_link_diag(link)->status) >= GR_SCOPE_COMM) {
            gr_exec_fail(exec, gr_link_diag(link));
            return;
        }
    }
    if (status != GR_OK) {
        gr_exec_mesh_failed(exec, status, &diag);
    }
    (void)gr_exec_poll_timers(exec, false); /* the end of a sub-group is reported */
}

void gr_exec_look(gr_exec *exec)
{
    if (!gr_exec_looks(exec)) {
        look_for_end(exec);
    } else if (!gr_exec_progress(exec)) {
        (void)gr_exec_poll_timers(exec, false);
    }
}

void gr_exec_check_members(gr_exec *exec)
{
    gr_diag diag;
    (void)gr_exec_progress(exec);
    if (exec->diag.status == GR_OK) {
        gr_status status = gr_mesh_progress(exec->mesh, &diag);
        (void)status; /* the links tell which */
    }
    for (int peer = 0; peer < exec->world_size && exec->diag.status == GR_OK; peer++) {
        const gr_exec_link *link = &exec->links[peer];
        const gr_diag *cause = link->link ? gr_link_diag(link->link) : NULL;
        if (cause && cause->status != GR_OK) {
            gr_exec_fail(exec, cause);
        }
    }
}
