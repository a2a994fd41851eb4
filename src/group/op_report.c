/* SPDX-License-Identifier: Apache-2.0 */
#include "group/op_report.h"

#include "base/codec.h"

/* u16 kind, u16 flags, the fields, i32 for each rank awaited, the text */
enum { FLAG_MESSAGE = 1, FLAG_SENDS = 2, FLAG_BLOCKED = 4, FLAG_DEADLOCK = 8, FLAGS_ALL = 15 };

static const gr_wire_field fields[] = {
    {GR_WIRE(32, gr_op_report, rank)},
    {GR_WIRE(64, gr_op_report, generation)},
    {GR_WIRE(32, gr_op_report, peer)},
    {GR_WIRE(32, gr_op_report, via)},
    {GR_WIRE(32, gr_op_report, op.number)},
    {GR_WIRE(32, gr_op_report, called_at)},
    {GR_WIRE(64, gr_op_report, op.fingerprint)},
    {GR_WIRE(32, gr_op_report, seq)},
    {GR_WIRE(32, gr_op_report, answers)},
    {GR_WIRE(32, gr_op_report, awaits_count), .max = GR_REPORT_AWAITS_MAX},
    {GR_WIRE(16, gr_op_report, op.comm)},
    {GR_WIRE(16, gr_op_report, met)},
    {GR_WIRE(32, gr_op_report, op.partner)},
    {GR_WIRE(32, gr_op_report, serial)},
    {0},
};

/* Names and places are the program's own: whatever stands in them, the message is sound. */
static uint8_t *put_text(uint8_t *at, const char *text)
{
    char clean[GR_REPORT_TEXT_BYTES];
    size_t size = strnlen(text, sizeof clean - 1);
    memcpy(clean, text, size);
    clean[size] = '\0';
    for (size_t i = 0; i < size && !gr_text_printable(clean, size, false); i++) {
        clean[i] = clean[i] >= ' ' && clean[i] <= '~' ? clean[i] : '?';
    }
    return gr_put_text(at, clean, sizeof clean);
}

size_t gr_op_report_put(const gr_op_report *report, uint8_t *out)
{
    gr_put_u16(out, (uint16_t)report->kind);
    gr_put_u16(out + 2, (uint16_t)((report->op.is_message ? FLAG_MESSAGE : 0) |
                                   (report->op.sends ? FLAG_SENDS : 0) |
                                   (report->blocked ? FLAG_BLOCKED : 0) |
                                   (report->deadlock ? FLAG_DEADLOCK : 0)));
    uint8_t *at = gr_wire_put(fields, report, out + 4);
    for (uint32_t i = 0; i < report->awaits_count; i++, at += 4) {
        gr_put_u32(at, (uint32_t)report->awaits[i]);
    }
    return (size_t)(put_text(at, report->text) - out);
}

static bool is_rank(int32_t rank, int rank_max, bool may_be_none)
{
    return rank < rank_max && rank >= (may_be_none ? -1 : 0);
}

gr_status gr_op_report_get(const uint8_t *data, size_t size_bytes, int rank_max,
                           gr_op_report *report_out, gr_diag *diag)
{
    uint32_t flags = size_bytes >= 4 ? gr_get_u16(data + 2) : 0;
    gr_op_report report = {
        .kind = (gr_op_report_kind)(size_bytes >= 4 ? gr_get_u16(data) : 0),
        .op = {.is_message = (flags & FLAG_MESSAGE) != 0, .sends = (flags & FLAG_SENDS) != 0},
        .blocked = (flags & FLAG_BLOCKED) != 0,
        .deadlock = (flags & FLAG_DEADLOCK) != 0};
    const uint8_t *end = data + size_bytes, *at = NULL;
    if (report.kind >= GR_REPORT_IDLE && report.kind < GR_REPORT_KIND_END &&
        (flags & ~(uint32_t)FLAGS_ALL) == 0) {
        at = gr_wire_get(fields, data + 4, end, &report);
    }
    bool sound = at != NULL && (size_t)(end - at) >= 4 * (size_t)report.awaits_count &&
                 is_rank(report.rank, rank_max, false) && is_rank(report.peer, rank_max, true) &&
                 is_rank(report.via, rank_max, true) &&
                 is_rank(report.op.partner, rank_max, true) &&
                 (report.kind != GR_REPORT_MISMATCH || report.peer >= 0) &&
                 (report.kind != GR_REPORT_ENDED || report.serial != 0);
    for (uint32_t i = 0; sound && i < report.awaits_count; i++, at += 4) {
        report.awaits[i] = (int32_t)gr_get_u32(at);
        sound = is_rank(report.awaits[i], rank_max, false);
    }
    if (!sound || gr_get_text(at, end, report.text, sizeof report.text, false) != end) {
        return gr_fail(diag, GR_E_PROTOCOL, "a malformed REPORT message");
    }
    *report_out = report;
    return GR_OK;
}
