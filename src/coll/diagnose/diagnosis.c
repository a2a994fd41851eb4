/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/diagnosis_internal.h"
#include "group/wait_graph.h"

#include <stdlib.h>
#include <string.h>

enum {
    SKEW_WINDOW = 16,
    REPORT_US = 100000 /* a rank that has waited for so long reports it */
};

/* ---- Life ------------------------------------------------------------------------------------ */
gr_diagnosis *gr_diagnosis_create(const gr_diagnosis_config *config)
{
    gr_diagnosis *d = calloc(1, sizeof *d);
    if (!d) {
        return NULL;
    }
    d->config = *config;
    d->peers = calloc((size_t)config->world_size, sizeof *d->peers);
    if (!d->peers) {
        free(d);
        return NULL;
    }
    return d;
}

void gr_diagnosis_destroy(gr_diagnosis *diagnosis)
{
    if (diagnosis) {
        free(diagnosis->peers);
        free(diagnosis);
    }
}

/* ---- Lateness -------------------------------------------------------------------------------- */
static bool same_id(const gr_op_id *a, const gr_op_id *b)
{
    return a->number == b->number && a->comm == b->comm && a->fingerprint == b->fingerprint;
}

bool gr_diagnosis_has_arrived(const gr_diagnosis *diagnosis, const gr_op_id *op, int peer)
{
    const gr_diagnosis_peer *from = &diagnosis->peers[peer];
    return from->any && same_id(&from->last_rx, op);
}

void gr_diagnosis_arrived(gr_diagnosis *diagnosis, const gr_op_id *op, int peer, uint64_t late)
{
    gr_diagnosis_peer *from = &diagnosis->peers[peer];
    from->any = true;
    from->last_rx = *op;
    /* A division takes longer than all the rest. */
    double part =
        ++from->skew_count < SKEW_WINDOW ? 1.0 / (double)from->skew_count : 1.0 / SKEW_WINDOW;
    from->skew_sum += (double)late;
    from->skew_recent += ((double)late - from->skew_recent) * part;
    from->skew_max = late > from->skew_max ? late : from->skew_max;
}

void gr_diagnosis_get_skew(const gr_diagnosis *diagnosis, int peer, gr_exec_skew *skew_out)
{
    const gr_diagnosis_peer *from = &diagnosis->peers[peer];
    double us = gr_flight_recorder_ns_per_tick(gr_diagnosis_record(diagnosis)) / 1000;
    double count = from->skew_count > 0 ? (double)from->skew_count : 1;
    *skew_out = (gr_exec_skew){.count = from->skew_count,
                               .mean_us = from->skew_sum / count * us,
                               .recent_us = from->skew_recent * us,
                               .max_us = (double)from->skew_max * us};
}

/* ---- Reports of this rank -------------------------------------------------------------------- */
bool gr_diagnosis_has_channel(const gr_diagnosis *diagnosis)
{
    return diagnosis->config.channel.send != NULL;
}

bool gr_diagnosis_send(gr_diagnosis *diagnosis, const gr_op_report *report)
{
    return diagnosis->config.channel.send &&
           diagnosis->config.channel.send(diagnosis->config.channel.arg, report);
}

static void report_idle(gr_diagnosis *d)
{
    const gr_op_report idle = {.kind = GR_REPORT_IDLE, .peer = -1, .via = -1};
    d->reported = false;
    d->cause.kind = 0;
    (void)gr_diagnosis_send(d, &idle); /* without it no report goes out any more */
}

void gr_diagnosis_op_over(gr_diagnosis *diagnosis, const gr_op *op)
{
    if (diagnosis->reported && diagnosis->report_record == gr_op_record(op)) {
        report_idle(diagnosis);
    }
}

static void list_awaited(const gr_diagnosis *d, const gr_op *op, gr_op_wait what,
                         gr_op_report *report)
{
    const gr_exec *exec = d->config.exec;
    for (int i = 1; i < d->config.world_size && report->awaits_count < GR_REPORT_AWAITS_MAX; i++) {
        int peer = (d->config.rank + i) % d->config.world_size;
        bool came = what == GR_OP_WAIT_RECEIVE && !gr_op_is_custom(op) &&
                    gr_exec_holds_back(exec, peer); /* it is not this peer that is missing */
        if (gr_exec_awaits(exec, op, peer, what) && !came) {
            report->awaits[report->awaits_count++] = peer;
        }
    }
}

void gr_diagnosis_list_awaited(const gr_diagnosis *d, const gr_op *op, gr_op_report *report)
{
    report->awaits_count = 0;
    list_awaited(d, op, GR_OP_WAIT_RECEIVE, report);
    if (report->awaits_count == 0) {
        list_awaited(d, op, GR_OP_WAIT_SEND, report);
    }
    /* Else its messages stand behind those of an older one. */
    const gr_op *oldest = gr_exec_oldest_plan(d->config.exec);
    if (report->awaits_count == 0 && !gr_op_is_custom(op) && oldest && oldest != op) {
        list_awaited(d, oldest, GR_OP_WAIT_RECEIVE, report);
        if (report->awaits_count == 0) {
            list_awaited(d, oldest, GR_OP_WAIT_SEND, report);
        }
    }
}

/* The rank that waits for this one needs an operation that cannot begin here. */
static void deny(const gr_diagnosis *d, const gr_op *op, gr_op_report *report)
{
    const gr_op_report *asker = &d->asker;
    if (asker->kind == GR_REPORT_WAITS && report->blocked &&
        gr_exec_lacks(d->config.exec, op, asker->rank) &&
        gr_exec_is_missing(d->config.exec, &asker->op, asker->rank)) {
        report->peer = asker->rank;
        report->answers = asker->seq;
    }
}

static bool is_same_report(const gr_op_report *a, const gr_op_report *b)
{
    return a->seq == b->seq && a->peer == b->peer && a->answers == b->answers &&
           a->awaits_count == b->awaits_count &&
           memcmp(a->awaits, b->awaits, a->awaits_count * sizeof a->awaits[0]) == 0;
}

static void note_denied(gr_diagnosis *d, const gr_op_report *report)
{
    for (uint32_t i = 0; i < d->denied_count; i++) {
        if (d->denied[i] == report->peer) {
            return;
        }
    }
    if (d->denied_count == GR_REPORT_AWAITS_MAX) {
        d->denied_count--;
        memmove(d->denied, d->denied + 1, d->denied_count * sizeof d->denied[0]);
    }
    d->denied[d->denied_count++] = report->peer;
}

/* The coordinator believes denials as long as the wait goes on: one that does not hold any more,
 * since something has gone to the peer, is taken back. */
static void take_back(gr_diagnosis *d, const gr_op *op, gr_op_report report)
{
    for (uint32_t i = 0; d->reported && i < d->denied_count;) {
        if (gr_exec_lacks(d->config.exec, op, d->denied[i])) {
            i++;
            continue;
        }
        report.peer = d->denied[i];
        report.answers = 0;
        d->denied[i] = d->denied[--d->denied_count];
        d->report = report;
        d->reported = gr_diagnosis_send(d, &report);
    }
}

void gr_diagnosis_report(gr_diagnosis *d, gr_op *op, int64_t now_us)
{
    gr_op_report report = {.kind = GR_REPORT_WAITS,
                           .rank = d->config.rank,
                           .peer = -1,
                           .via = -1,
                           .op = gr_op_identity(op),
                           .blocked = gr_exec_is_blocked(d->config.exec, op)};
    gr_diagnosis_list_awaited(d, op, &report);
    if (!d->reported || d->report_record != gr_op_record(op) ||
        report.blocked != d->report.blocked) {
        d->denied_count = 0;
        d->seq = d->seq == UINT32_MAX ? 1 : d->seq + 1;
    }
    report.seq = d->seq;
    if (d->denied_count > 0) {
        gr_diagnosis_describe_call(d, gr_op_record(op), report.text, sizeof report.text);
        take_back(d, op, report);
    }
    deny(d, op, &report);
    bool known = d->reported && is_same_report(&report, &d->report);
    if (known && now_us - d->report_us < gr_op_report_repeat_us(d->config.world_size)) {
        return;
    }
    gr_diagnosis_describe_call(d, gr_op_record(op), report.text, sizeof report.text);
    d->cause.kind = d->reported && d->report.seq == report.seq ? d->cause.kind : 0;
    d->report = report;
    d->report_record = gr_op_record(op);
    d->report_us = now_us;
    d->reported = gr_diagnosis_send(d, &report);
    if (report.answers != 0) {
        note_denied(d, &report);
    }
}

/* ---- Reports of others ----------------------------------------------------------------------- */
bool gr_diagnosis_is_current(const gr_diagnosis *d, const gr_op_report *report)
{
    return d->reported && report->answers == d->report.seq;
}

static void take(gr_diagnosis *d, const gr_op_report *report)
{
    bool known = report->rank >= 0 && report->rank < d->config.world_size &&
                 report->peer < d->config.world_size && report->via < d->config.world_size;
    if (!known) {
        return;
    }
    if (report->kind == GR_REPORT_CAUSE) {
        d->cause = gr_diagnosis_is_current(d, report) ? *report : d->cause;
    } else if (report->kind == GR_REPORT_MISMATCH) {
        gr_diagnosis_take_mismatch(d, report);
    } else if (report->kind == GR_REPORT_ENDED) {
        gr_exec_end_reported(d->config.exec, report);
    } else if (report->kind == GR_REPORT_GONE) {
        gr_exec_peer_gone(d->config.exec, report->peer, report->answers != 0, report->text);
    } else if (report->kind == GR_REPORT_WAITS && report->deadlock) {
        if (gr_diagnosis_is_current(d, report)) {
            gr_diagnosis_fail_wait(d, report);
        }
    } else if (report->kind == GR_REPORT_WAITS && report->rank != d->config.rank) {
        d->asker = *report;
        if (!d->reported) {
            report_idle(d); /* the coordinator knows then that this rank listens */
        }
    }
}

/* Up to the first report of a rank that waits for this one, which is to be answered before the next
 * one takes its place. True: there was one, and there may be more. */
static bool receive(gr_diagnosis *d)
{
    gr_op_report report;
    bool asked = false;
    while (!asked && !gr_diagnosis_is_over(d) && d->config.channel.next &&
           d->config.channel.next(d->config.channel.arg, &report)) {
        take(d, &report);
        asked = report.kind == GR_REPORT_WAITS;
    }
    if (!gr_diagnosis_is_over(d) && d->asker.kind == GR_REPORT_WAITS &&
        gr_diagnosis_compare(d, &d->asker)) {
        d->asker.kind = 0;
    }
    return asked;
}

/* ---- Time ------------------------------------------------------------------------------------ */
/* The operation of which the coordinator is told: the one that keeps this rank from all others,
 * else the oldest. */
static bool goes_first(const gr_diagnosis *d, const gr_op *op, const gr_op *other)
{
    bool blocked = gr_exec_is_blocked(d->config.exec, op);
    if (!other || blocked != gr_exec_is_blocked(d->config.exec, other)) {
        return !other || blocked;
    }
    return gr_op_record(op) < gr_op_record(other);
}

static void report_if_waits(gr_diagnosis *d, gr_op *idle, int64_t now_us)
{
    if (idle && !gr_op_is_stopped(idle) && !gr_diagnosis_is_over(d)) {
        gr_diagnosis_report(d, idle, now_us);
    }
}

int64_t gr_diagnosis_poll(gr_diagnosis *diagnosis, int64_t now_us, int64_t skipped_us)
{
    gr_diagnosis *d = diagnosis;
    bool asked = receive(d);
    int64_t next_us = gr_diagnosis_poll_arbitration(d, now_us);
    gr_op *idle = NULL, *op;
    for (int at = 0; !gr_diagnosis_is_over(d) && (op = gr_exec_in_flight(d->config.exec, &at));) {
        next_us = gr_earlier_us(next_us, gr_diagnosis_poll_op(d, op, now_us, skipped_us));
        int64_t report_us = gr_op_watched(op)->idle_since_us + REPORT_US;
        if (gr_op_is_stopped(op)) {
            continue;
        }
        if (now_us < report_us) {
            next_us = gr_earlier_us(next_us, report_us);
        } else if (goes_first(d, op, idle)) {
            idle = op;
        }
    }
    report_if_waits(d, idle, now_us);
    while (asked && !gr_diagnosis_is_over(d)) {
        asked = receive(d);
        report_if_waits(d, idle, now_us);
    }
    if (gr_diagnosis_is_over(d)) {
        return GR_NEVER;
    }
    if (idle) {
        next_us =
            gr_earlier_us(next_us, d->report_us + gr_op_report_repeat_us(d->config.world_size));
    }
    return next_us;
}
