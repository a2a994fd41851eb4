/* SPDX-License-Identifier: Apache-2.0 */

/* One group ends, the others go on. Whatever fails in a group alone (ranks that call different
 * operations, a stall, an abort) ends it on all its ranks:
 *
 *   a rank                                       the other ranks of the group
 *   fails: its operations stop, and
 *     use nobody else's memory any more
 *             ------------- ENDED, and why ----> their operations stop, too
 *             <------------ ENDED -------------- each tells all others
 *   has it from all, and no link reads what
 *   it sent: its operations are over             the same
 *
 * So a buffer is its owner's again when its operation is over: nobody reads it or writes there any
 * more. ENDED goes through the coordinator (group/op_report.h), since what stands behind data on a
 * link cannot be read by a rank that waits elsewhere; it is said again until it is answered. What
 * comes over links for a group that has ended is dropped.
 *
 * A rank that does not answer may still use what it was lent: then everything ends, after
 * ANSWER_US. So it does where there is no way to a coordinator. */

#include "coll/engine/exec_group_end.h"
#include "base/fail.h"
#include "coll/engine/exec_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_US = 10000000, /* a rank may compute, and look at nothing meanwhile */
    REPEAT_US = 200000,
    RANKS_SHOWN = 8,
    RANKS_BYTES = 120,
    WHY_BYTES = 64
};

/* ---- What it is called ----------------------------------------------------------------------- */
/* "ranks 0, 2 and 4", "ranks 0, 1, ... and 30 more" */
static void list_ranks(const gr_exec_group *group, char text_out[RANKS_BYTES])
{
    int shown = group->size <= RANKS_SHOWN ? group->size : RANKS_SHOWN - 1, used = 0;
    used += snprintf(text_out, RANKS_BYTES, group->size == 1 ? "rank" : "ranks");
    for (int i = 0; i < shown; i++) {
        bool last = i > 0 && i == group->size - 1;
        used += snprintf(text_out + used, (size_t)(RANKS_BYTES - used), "%s%d",
                         i == 0 ? " "
                         : last ? " and "
                                : ", ",
                         group->world[i]);
    }
    if (shown < group->size) {
        snprintf(text_out + used, (size_t)(RANKS_BYTES - used), " and %d more",
                 group->size - shown);
    }
}

/* ---- Telling others -------------------------------------------------------------------------- */
static int32_t rank_in_job(const gr_exec *exec, int32_t rank)
{
    return rank >= 0 && rank < exec->world_size ? rank : -1;
}

/* `asks`: the ranks have not told us. A report that is lost is said again. */
static void notify_ranks(const gr_exec *exec, const gr_exec_ending *ending, const int *ranks,
                         int count, bool asks)
{
    gr_op_report report = {.kind = GR_REPORT_ENDED,
                           .rank = exec->rank,
                           .peer = rank_in_job(exec, ending->diag.peer_rank),
                           .via = -1,
                           .op = {.comm = ending->comm, .partner = -1},
                           .serial = ending->serial,
                           .called_at = (uint32_t)(-ending->diag.status),
                           .answers = asks};
    memcpy(report.text, ending->diag.text, sizeof report.text);
    while (count > 0) {
        report.awaits_count = count < GR_REPORT_AWAITS_MAX ? (uint32_t)count : GR_REPORT_AWAITS_MAX;
        memcpy(report.awaits, ranks, report.awaits_count * sizeof report.awaits[0]);
        ranks += report.awaits_count;
        count -= (int)report.awaits_count;
        (void)gr_diagnosis_send(exec->diagnosis, &report);
    }
}
_Static_assert((int)GR_REPORT_TEXT_BYTES == (int)GR_DIAG_TEXT_BYTES, "a sentence is told whole");

static void notify_missing(gr_exec *exec, gr_exec_ending *ending, int64_t now_us)
{
    notify_ranks(exec, ending, ending->world, ending->missing, true);
    ending->repeat_us = now_us + REPEAT_US;
}

/* ---- The end of a group ---------------------------------------------------------------------- */
static gr_exec_ending *make_ending(const gr_exec *exec, const gr_exec_group *group,
                                   const gr_diag *diag)
{
    gr_exec_ending *ending =
        calloc(1, sizeof *ending + (size_t)group->size * sizeof ending->world[0]);
    if (!ending) {
        return NULL;
    }
    ending->comm = group->id;
    ending->serial = group->serial;
    ending->diag = *diag;
    ending->size = group->size;
    ending->world = (int *)(void *)(ending + 1);
    for (int i = 0; i < group->size; i++) {
        if (group->world[i] != exec->rank) {
            ending->world[ending->missing++] = group->world[i];
        }
    }
    ending->limit_us = gr_clock_deadline_us(&exec->clock, ANSWER_US);
    return ending;
}

static void stop(gr_exec *exec, gr_op *op)
{
    op->stopped = true;
    gr_diagnosis_op_over(exec->diagnosis, op);
    if (op->ops) {
        gr_exec_remove_custom(exec, op);
        if (op->ops->cancel) {
            op->ops->cancel(op->ops_state);
        }
    } else if (op->is_message) {
        gr_exec_message_stop(exec, op);
    } else {
        gr_exec_plan_stop(exec, op);
    }
}

/* NULL: no memory; then everything has ended. */
static gr_exec_ending *begin_ending(gr_exec *exec, const gr_exec_group *group, const gr_diag *diag)
{
    gr_exec_ending *ending = make_ending(exec, group, diag);
    if (!ending) {
        gr_exec_fail(exec, diag);
        return NULL;
    }
    ending->next = exec->endings;
    exec->endings = ending;
    exec->any_ended = exec->sweeps = true;
    exec->finished++;
    exec->moved = true;
    group->outcome->diag = *diag;
    atomic_store_explicit(&group->outcome->ended, true, memory_order_release);
    exec->members[group->id].group = NULL;
    exec->members[group->id].ended_serial = group->serial;
    gr_log_write(exec->log, GR_LOG_DEBUG, "coll", "%s", diag->text);
    if (exec->timeline) {
        gr_timeline_mark(exec->timeline, GR_TIMELINE_FAILURE, diag->text);
    }
    gr_diagnosis_group_ended(exec->diagnosis, group->id, group->serial);
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        if (op->state == GR_OP_ACTIVE && !op->over && op->comm == group->id) {
            stop(exec, op);
        }
    }
    gr_exec_messages_drop(exec, group->id);
    return ending;
}

void gr_exec_end_group(gr_exec *exec, uint16_t comm, const gr_diag *diag)
{
    const gr_exec_members *members = comm < GR_EXEC_GROUPS_MAX ? &exec->members[comm] : NULL;
    const gr_exec_group *group = members ? members->group : NULL;
    if (exec->diag.status != GR_OK || (comm != 0 && members && members->ended_serial && !group)) {
        return;
    }
    if (comm == 0 || !group || !group->outcome ||
        (group->size > 1 && !gr_diagnosis_has_channel(exec->diagnosis))) {
        gr_exec_fail(exec, diag);
        return;
    }
    char ranks[RANKS_BYTES];
    gr_diag named;
    list_ranks(group, ranks);
    (void)gr_fail_peer(&named, (gr_status)diag->status, diag->peer_rank,
                       "sub-group %u of %s has ended: %.440s", comm, ranks, diag->text);
    gr_exec_ending *ending = begin_ending(exec, group, &named);
    if (ending) {
        notify_missing(exec, ending, gr_clock_now_us(&exec->clock));
    }
}

/* ---- What others tell ------------------------------------------------------------------------ */
static void note_reported(gr_exec_ending *ending, int rank)
{
    for (int i = 0; i < ending->missing; i++) {
        if (ending->world[i] == rank) {
            ending->world[i] = ending->world[--ending->missing];
            return;
        }
    }
}

static gr_exec_ending *find_ending(const gr_exec *exec, const gr_op_report *report)
{
    gr_exec_ending *ending = exec->endings;
    while (ending && (ending->serial != report->serial || ending->comm != report->op.comm)) {
        ending = ending->next;
    }
    return ending;
}

static gr_diag diag_of(const gr_op_report *report)
{
    gr_diag diag;
    gr_status status = (gr_status)(-(int64_t)report->called_at);
    bool sound = report->called_at <= INT16_MAX && gr_status_scope(status) >= GR_SCOPE_PEER;
    (void)gr_fail_peer(&diag, sound ? status : GR_E_COMM_BROKEN, report->peer, "%s", report->text);
    return diag;
}

void gr_exec_end_reported(gr_exec *exec, const gr_op_report *report)
{
    uint16_t comm = report->op.comm;
    if (comm == 0 || comm >= GR_EXEC_GROUPS_MAX || report->rank == exec->rank) {
        return;
    }
    gr_exec_members *members = &exec->members[comm];
    const gr_exec_group *group = members->group;
    gr_exec_ending *ending = find_ending(exec, report);
    bool lives = group && group->serial == report->serial;
    if (lives && group->outcome) {
        gr_diag diag = diag_of(report);
        ending = begin_ending(exec, group, &diag);
        if (ending) {
            note_reported(ending, report->rank);
            notify_missing(exec, ending, gr_clock_now_us(&exec->clock));
        }
    } else if (lives || report->serial > exec->serial_seen) {
        return; /* it is being made here: the rank asks again */
    } else if (report->serial > members->ended_serial) {
        members->ended_serial = report->serial; /* it was destroyed here */
        exec->any_ended = exec->sweeps = true;
    }
    if (ending) {
        note_reported(ending, report->rank);
    }
    if (report->answers != 0 && exec->diag.status == GR_OK) {
        const gr_exec_ending answer = {/* the rank knows why */
                                       .comm = comm,
                                       .serial = report->serial,
                                       .diag = {.status = GR_E_COMM_BROKEN, .peer_rank = -1}};
        const int rank = report->rank;
        notify_ranks(exec, &answer, &rank, 1, false);
    }
}

bool gr_exec_is_stale(const gr_exec *exec, const gr_frame *frame)
{
    if (frame->comm == 0 || frame->comm >= GR_EXEC_GROUPS_MAX) {
        return false;
    }
    const gr_exec_members *members = &exec->members[frame->comm];
    uint64_t serial = frame->fingerprint & GR_FINGERPRINT_SERIAL;
    return members->ended_serial != 0 && serial == gr_exec_serial_bits(members->ended_serial) &&
           !(members->group && serial == gr_exec_serial_bits(members->group->serial));
}

bool gr_exec_op_has_ended(const gr_exec *exec, const gr_op_id *id)
{
    const gr_frame frame = {.comm = id->comm, .fingerprint = id->fingerprint};
    return gr_exec_is_stale(exec, &frame);
}

uint32_t gr_exec_serial(const gr_exec *exec, uint16_t comm)
{
    const gr_exec_group *group = comm < GR_EXEC_GROUPS_MAX ? exec->members[comm].group : NULL;
    return group && group->outcome ? group->serial : 0;
}

bool gr_exec_has_ended(const gr_exec *exec, uint32_t serial)
{
    bool ended = false;
    for (int i = 0; i < GR_EXEC_GROUPS_MAX && serial != 0; i++) {
        ended = ended || exec->members[i].ended_serial == serial;
    }
    return ended;
}

/* ---- Until all have said so ------------------------------------------------------------------ */
static bool is_read(const gr_exec *exec, const gr_op *op)
{
    return !op->ops &&
           (op->is_message ? gr_exec_message_is_read(exec, op) : gr_exec_plan_is_read(exec, op));
}

/* Returns true if an operation of the group is not over. */
static bool close_one(gr_exec *exec, const gr_exec_ending *ending)
{
    bool left = false;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        if (op->state != GR_OP_ACTIVE || !op->stopped || op->over || op->comm != ending->comm) {
            continue;
        }
        if (is_read(exec, op)) {
            left = true;
            continue;
        }
        op->over = true;
        exec->active--;
        exec->moved = true;
        if (!op->ops && !op->is_message) {
            gr_exec_scratch_leave(exec, op);
        }
        gr_exec_record_end(exec, op, (gr_status)ending->diag.status);
        if (--op->head->parts_left == 0) {
            gr_exec_finish(exec, op->head, (gr_status)ending->diag.status);
        }
    }
    return left;
}

/* A rank whose process has ended uses nothing any more. */
static void pass_over_lost(const gr_exec *exec, gr_exec_ending *ending)
{
    for (int i = ending->missing - 1; i >= 0; i--) {
        const gr_link *link = exec->links[ending->world[i]].link;
        if (link && gr_link_diag(link)->status != GR_OK) {
            note_reported(ending, ending->world[i]);
        }
    }
}

void gr_exec_close_endings(gr_exec *exec)
{
    for (gr_exec_ending **at = &exec->endings; *at;) {
        gr_exec_ending *ending = *at;
        pass_over_lost(exec, ending);
        if (ending->missing > 0 || close_one(exec, ending)) {
            at = &ending->next;
            continue;
        }
        *at = ending->next;
        free(ending);
    }
}

int64_t gr_exec_poll_endings(gr_exec *exec, int64_t now_us, int64_t skipped_us)
{
    int64_t next_us = GR_NEVER;
    gr_exec_close_endings(exec);
    for (gr_exec_ending *ending = exec->endings; ending; ending = ending->next) {
        ending->limit_us += skipped_us;
        if (now_us >= ending->limit_us) {
            gr_diag diag;
            char why[WHY_BYTES] = "a rank has not taken what was sent";
            int rank = ending->diag.peer_rank;
            if (ending->missing > 0) {
                rank = ending->world[0];
                snprintf(why, sizeof why, "rank %d has not confirmed that", rank);
            }
            (void)gr_fail_peer(&diag, (gr_status)ending->diag.status, rank,
                               "%.360s; %s for %d s, so that all communicators end",
                               ending->diag.text, why, ANSWER_US / 1000000);
            gr_exec_fail(exec, &diag);
            return GR_NEVER; /* all are gone */
        }
        if (ending->missing > 0 && now_us >= ending->repeat_us) {
            notify_missing(exec, ending, now_us);
        }
        next_us =
            gr_earlier_us(next_us, ending->missing > 0 ? ending->repeat_us : now_us + REPEAT_US);
    }
    return next_us;
}

void gr_exec_free_endings(gr_exec *exec)
{
    while (exec->endings) {
        gr_exec_ending *next = exec->endings->next;
        free(exec->endings);
        exec->endings = next;
    }
}
