/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/diagnosis_internal.h"

#include <stdio.h>
#include <string.h>

/* Finds ranks that call different operations. A fingerprint only says that two differ. A rank that
 * meets a foreign fingerprint, in a frame or in the report of a rank that waits, reports what it
 * called itself; the coordinator forwards that to the peer, which knows its own call, and reports
 * both to all. A frame proves for ever that the two differ. A report proves it while the peer is in
 * that wait, which only the peer knows: numbers of sub-groups are used again, and reports may
 * arrive late. */

enum {
    ARBITRATION_US = 5000000, /* a busy machine may keep the peer from its answer for a while */
    DISCARD_US = 50000,       /* a sender of what was not taken yet waits, and so can answer */
    CALL_BYTES = 200,
    HOW_BYTES = 64
};

/* ---- Saying which operation it is ------------------------------------------------------------ */
static void describe_entry(const gr_diagnosis *d, const gr_flight_recorder_entry *entry,
                           char *text_out, size_t size_bytes)
{
    char what[GR_FLIGHT_RECORDER_TEXT_BYTES], number[GR_FLIGHT_RECORDER_NUMBER_BYTES];
    gr_flight_recorder_describe(entry, what, sizeof what);
    gr_flight_recorder_describe_number(gr_diagnosis_record(d), entry->comm, entry->number,
                                       gr_flight_recorder_is_message(entry), number);
    snprintf(text_out, size_bytes, "%.145s as %.45s", what, number);
}

void gr_diagnosis_describe_call(const gr_diagnosis *d, uint64_t record, char *text_out,
                                size_t size_bytes)
{
    const gr_flight_recorder_entry *entry = gr_flight_recorder_at(gr_diagnosis_record(d), record);
    snprintf(text_out, size_bytes, "an operation that is no longer known");
    if (entry) {
        describe_entry(d, entry, text_out, size_bytes);
    }
}

void gr_exec_describe_op(const gr_exec *exec, const gr_op *op, char *text_out, size_t size_bytes)
{
    char what[GR_FLIGHT_RECORDER_TEXT_BYTES] = "no longer known";
    char number[GR_FLIGHT_RECORDER_NUMBER_BYTES];
    const gr_flight_recorder *record = gr_exec_record(exec);
    const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, gr_op_record(op));
    gr_op_id id = gr_op_identity(op);
    if (entry) {
        gr_flight_recorder_describe(entry, what, sizeof what);
    }
    gr_flight_recorder_describe_number(record, id.comm, entry ? entry->number : id.number,
                                       id.is_message, number);
    snprintf(text_out, size_bytes, "%.45s (%.140s)", number, what);
}

/* ---- What was called here instead ------------------------------------------------------------ */
/* `ours`: this rank names the operation, else the peer does. */
static const gr_flight_recorder_entry *find_entry(const gr_diagnosis *d, int peer,
                                                  const gr_op_id *id, bool ours)
{
    const gr_flight_recorder *record = gr_diagnosis_record(d);
    if (!id->is_message) {
        return gr_flight_recorder_find(record, id->comm, id->number);
    }
    gr_coll coll = id->sends == ours ? GR_COLL_SEND : GR_COLL_RECV;
    return gr_flight_recorder_find_message(record, coll, peer, id->number);
}

/* The operations are of two communicators. */
static void fail_orders(gr_diagnosis *d, int peer, const char *ours, const char *theirs)
{
    gr_diag diag;
    (void)gr_fail_peer(&diag, GR_E_MISMATCH, peer,
                       "the ranks start operations in different orders: rank %d called %.125s; "
                       "rank %d called %.125s; the communicators of one gr_comm_create that two "
                       "ranks share have one order, whichever threads call; threads without a "
                       "common order need a gr_comm_create each",
                       d->config.rank, ours, peer, theirs);
    gr_exec_end_group(d->config.exec, 0, &diag);
}

/* The sentence that all ranks get. `comm`: the communicator that ends by it; 0: all. */
static void fail_both(gr_diagnosis *d, uint16_t comm, int peer, const char *ours,
                      const char *theirs)
{
    gr_diag diag;
    (void)gr_fail_peer(&diag, GR_E_MISMATCH, peer,
                       "the ranks call different operations: rank %d called %.190s; rank %d called "
                       "%.190s; all ranks must call the same operations in the same order",
                       d->config.rank, ours, peer, theirs);
    gr_exec_end_group(d->config.exec, comm, &diag);
}

/* ---- Arbitration ----------------------------------------------------------------------------- */
/* The peer is in `id`; this rank called `entry` instead, NULL: nothing. `how` it differs, where the
 * two do not show it; else "". */
static void begin_arbitration(gr_diagnosis *d, int peer, const gr_op_id *id,
                              const gr_flight_recorder_entry *entry, const char *how)
{
    gr_diagnosis_arbitration *arbitration = &d->arbitration;
    if (arbitration->on || gr_diagnosis_is_over(d) || gr_exec_op_has_ended(d->config.exec, id)) {
        return;
    }
    uint16_t called_in = entry ? entry->comm : id->comm;
    uint32_t serial = gr_exec_serial(d->config.exec, called_in);
    arbitration->comm = id->comm;
    arbitration->serial = serial;
    arbitration->ends = called_in == id->comm ? id->comm : 0;
    arbitration->discards = serial == 0 && gr_exec_serial(d->config.exec, id->comm) == 0;
    char what[CALL_BYTES] = "nothing that goes with it", number[GR_FLIGHT_RECORDER_NUMBER_BYTES];
    if (entry) {
        describe_entry(d, entry, what, sizeof what);
    }
    /* A peer that sends data of a later operation than the one that this rank needs data of has
     * called something else there: that tells more. */
    bool comparable = entry && !id->is_message && !gr_flight_recorder_is_message(entry) &&
                      entry->comm == id->comm;
    gr_op_report report = {.kind = GR_REPORT_MISMATCH,
                           .rank = d->config.rank,
                           .peer = peer,
                           .via = -1,
                           .op = *id,
                           .serial = serial,
                           .called_at = comparable ? entry->number : id->number};
    if (serial != 0 && called_in != id->comm && !id->is_message &&
        !gr_flight_recorder_is_message(entry)) {
        /* Asks the peer, which knows it, whether it called something else in the sub-group that
         * this rank waits in, or started the two in another order. */
        report.op = (gr_op_id){.comm = entry->comm,
                               .number = entry->number,
                               .partner = -1,
                               .fingerprint = entry->fingerprint};
        report.met = (uint16_t)(id->comm + 1);
    }
    snprintf(report.text, sizeof report.text, "%s%s", what, how);
    gr_flight_recorder_describe_number(gr_diagnosis_record(d), id->comm, id->number, id->is_message,
                                       number);
    (void)gr_fail_peer(&arbitration->own_account, GR_E_MISMATCH, peer,
                       "the ranks call different operations: rank %d called %.200s; rank %d is at "
                       "%s, a different one, and has not said which; all ranks must call the same "
                       "operations in the same order",
                       d->config.rank, report.text, peer, number);
    if (!gr_diagnosis_send(d, &report)) {
        gr_exec_end_group(d->config.exec, arbitration->ends, &arbitration->own_account);
        return;
    }
    arbitration->on = true;
    gr_exec_set_arbitrating(d->config.exec, true);
    arbitration->until_us = gr_clock_deadline_us(&d->config.clock, ARBITRATION_US);
}

int64_t gr_diagnosis_poll_arbitration(gr_diagnosis *d, int64_t now_us)
{
    if (!d->arbitration.on || gr_diagnosis_is_over(d)) {
        return GR_NEVER;
    }
    if (now_us >= d->arbitration.until_us) {
        gr_exec_end_group(d->config.exec, d->arbitration.ends, &d->arbitration.own_account);
        return GR_NEVER;
    }
    if (!d->arbitration.discards) {
        return d->arbitration.until_us; /* the data of others are needed if a group ends alone */
    }
    int64_t discard_us = d->arbitration.until_us - ARBITRATION_US + DISCARD_US;
    if (now_us < discard_us) {
        return discard_us;
    }
    gr_exec_discard_data(d->config.exec); /* the peer's sentence may stand behind data */
    return d->arbitration.until_us;
}

void gr_diagnosis_group_ended(gr_diagnosis *diagnosis, uint16_t comm, uint32_t serial)
{
    gr_diagnosis_arbitration *arbitration = &diagnosis->arbitration;
    if (arbitration->on && (arbitration->comm == comm || arbitration->serial == serial)) {
        arbitration->on = false;
        gr_exec_set_arbitrating(diagnosis->config.exec, false);
    }
}

const gr_diag *gr_diagnosis_own_account(const gr_diagnosis *diagnosis)
{
    return &diagnosis->arbitration.own_account;
}

void gr_diagnosis_take_mismatch(gr_diagnosis *d, const gr_op_report *report)
{
    const gr_flight_recorder_entry *entry = NULL;
    const gr_exec *exec = d->config.exec;
    char ours[CALL_BYTES] = "an operation that is no longer known";
    if (gr_exec_has_ended(exec, report->serial) || gr_exec_op_has_ended(exec, &report->op)) {
        return; /* which is why the two differ: the rank hears of it, too */
    }
    if (report->answers != 0) {
        if (gr_diagnosis_is_current(d, report)) {
            gr_diagnosis_fail_wait(d, report);
        }
        return;
    }
    if (report->met == 0 && report->called_at != report->op.number && !report->op.is_message) {
        entry = gr_flight_recorder_find(gr_diagnosis_record(d), report->op.comm, report->called_at);
    }
    entry = entry ? entry : find_entry(d, report->rank, &report->op, true);
    if (report->met != 0 && (!entry || entry->fingerprint == report->op.fingerprint)) {
        entry = gr_flight_recorder_find(gr_diagnosis_record(d), (uint16_t)(report->met - 1),
                                        report->called_at);
    }
    if (entry) {
        describe_entry(d, entry, ours, sizeof ours);
    }
    bool same_comm = report->serial == gr_exec_serial(exec, report->op.comm) &&
                     (entry ? entry->comm == report->op.comm : report->met == 0);
    if (entry && entry->comm != report->op.comm) {
        fail_orders(d, report->rank, ours, report->text);
    } else {
        fail_both(d, same_comm ? report->op.comm : 0, report->rank, ours, report->text);
    }
}

/* ---- Ranks that wait ------------------------------------------------------------------------- */
bool gr_diagnosis_compare(gr_diagnosis *d, const gr_op_report *report)
{
    bool concerns_us = report->op.is_message
                           ? report->op.partner == d->config.rank
                           : gr_exec_shares_comm(d->config.exec, report->op.comm, report->rank);
    if (!concerns_us) {
        return true;
    }
    if (!gr_exec_has_begun(d->config.exec, &report->op, report->rank)) {
        return false;
    }
    /* Messages are compared where they meet. */
    const gr_flight_recorder_entry *entry =
        report->op.is_message ? NULL : find_entry(d, report->rank, &report->op, false);
    if (entry && entry->fingerprint != report->op.fingerprint) {
        gr_op_report met = {.kind = GR_REPORT_MISMATCH,
                            .rank = d->config.rank,
                            .peer = report->rank,
                            .via = -1,
                            .op = report->op,
                            .serial = gr_exec_serial(d->config.exec, report->op.comm),
                            .called_at = report->op.number,
                            .answers = report->seq};
        describe_entry(d, entry, met.text, sizeof met.text);
        (void)gr_diagnosis_send(d, &met); /* else it remains a stall */
    }
    return true;
}

void gr_diagnosis_fail_wait(gr_diagnosis *d, const gr_op_report *report)
{
    char ours[CALL_BYTES];
    gr_diagnosis_describe_call(d, d->report_record, ours, sizeof ours);
    uint16_t own = d->report.op.comm;
    if (own != report->op.comm) {
        fail_orders(d, report->rank, ours, report->text);
    } else {
        fail_both(d, own, report->rank, ours, report->text);
    }
}

/* ---- A foreign frame ------------------------------------------------------------------------- */
static void fail_size(gr_diagnosis *d, int peer, const gr_frame *frame, const gr_op *op)
{
    char what[CALL_BYTES];
    gr_exec_describe_op(d->config.exec, op, what, sizeof what);
    gr_diag diag;
    (void)gr_fail_peer(
        &diag, GR_E_MISMATCH, peer,
        "%s: rank %d sent segment %u of message %u with %u bytes, which does not fit "
        "on rank %d; is GRADUS_SEGMENT the same on all ranks?",
        what, peer, frame->segment, frame->message, frame->size_bytes, d->config.rank);
    gr_exec_end_group(d->config.exec, frame->comm, &diag);
}

void gr_diagnosis_foreign_frame(gr_diagnosis *diagnosis, int peer, const gr_frame *frame,
                                const gr_op *op, bool uneven, size_t size_bytes)
{
    gr_diagnosis *d = diagnosis;
    const gr_flight_recorder *record = gr_diagnosis_record(d);
    gr_op_id id = gr_op_id_of_frame(frame, d->config.rank),
             own = op ? gr_op_identity(op) : (gr_op_id){.number = 0};
    bool same =
        op && id.comm == own.comm && id.number == own.number && id.fingerprint == own.fingerprint;
    if (same && uneven) {
        /* An alltoall: the fingerprint has no counts, which only two ranks know. */
        char how[HOW_BYTES];
        snprintf(how, sizeof how, ", to get %zu bytes from rank %d, not %u", size_bytes, peer,
                 frame->size_bytes);
        begin_arbitration(d, peer, &id, gr_flight_recorder_at(record, gr_op_record(op)), how);
        return;
    }
    if (same) {
        fail_size(d, peer, frame, op);
        return;
    }
    /* What stands at the same place here says most; else what this rank waits in. */
    const gr_flight_recorder_entry *entry = find_entry(d, peer, &id, false);
    if (op && (!entry || own.is_message || entry->fingerprint == id.fingerprint)) {
        entry = gr_flight_recorder_at(record, gr_op_record(op));
    }
    begin_arbitration(d, peer, &id, entry, "");
}

void gr_diagnosis_mismatch(gr_diagnosis *diagnosis, uint16_t comm, uint32_t number,
                           uint64_t fingerprint, int peer)
{
    const gr_op_id id = {.comm = comm, .number = number, .partner = -1, .fingerprint = fingerprint};
    begin_arbitration(diagnosis, peer, &id,
                      gr_flight_recorder_find(gr_diagnosis_record(diagnosis), comm, number), "");
}
