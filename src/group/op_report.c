/* SPDX-License-Identifier: Apache-2.0 */
#include "group/op_report.h"

#include "base/codec.h"

/*  0  u16  kind           24  u32  number            48  u32  ranks awaited
 *  2  u16  flags          28  u32  called_at         52  u16  communicator
 *  4  i32  rank           32  u64  fingerprint       54  u16  met
 *  8  u64  generation     40  u32  seq               56  i32  partner
 * 16  i32  peer           44  u32  answers           60  u32  serial
 * 20  i32  via            64  i32 for each rank awaited, then the text */
enum { FIXED_BYTES = 64 };
enum { FLAG_MESSAGE = 1, FLAG_SENDS = 2, FLAG_BLOCKED = 4, FLAG_DEADLOCK = 8, FLAGS_ALL = 15 };

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
    gr_put_u32(out + 4, (uint32_t)report->rank);
    gr_put_u64(out + 8, report->generation);
    gr_put_u32(out + 16, (uint32_t)report->peer);
    gr_put_u32(out + 20, (uint32_t)report->via);
    gr_put_u32(out + 24, report->op.number);
    gr_put_u32(out + 28, report->called_at);
    gr_put_u64(out + 32, report->op.fingerprint);
    gr_put_u32(out + 40, report->seq);
    gr_put_u32(out + 44, report->answers);
    gr_put_u32(out + 48, report->awaits_count);
    gr_put_u16(out + 52, report->op.comm);
    gr_put_u16(out + 54, report->met);
    gr_put_u32(out + 56, (uint32_t)report->op.partner);
    gr_put_u32(out + 60, report->serial);
    uint8_t *at = out + FIXED_BYTES;
    for (uint32_t i = 0; i < report->awaits_count; i++, at += 4) {
        gr_put_u32(at, (uint32_t)report->awaits[i]);
    }
    return (size_t)(put_text(at, report->text) - out);
}

static gr_status malformed(gr_diag *diag)
{
    return gr_fail(diag, GR_E_PROTOCOL, "a malformed REPORT message");
}

static bool is_rank(int32_t rank, int rank_max, bool may_be_none)
{
    return rank < rank_max && rank >= (may_be_none ? -1 : 0);
}

gr_status gr_op_report_get(const uint8_t *data, size_t size_bytes, int rank_max,
                           gr_op_report *report_out, gr_diag *diag)
{
    if (size_bytes < FIXED_BYTES) {
        return malformed(diag);
    }
    uint32_t flags = gr_get_u16(data + 2);
    gr_op_report report = {.kind = (gr_op_report_kind)gr_get_u16(data),
                           .generation = gr_get_u64(data + 8),
                           .rank = (int32_t)gr_get_u32(data + 4),
                           .peer = (int32_t)gr_get_u32(data + 16),
                           .via = (int32_t)gr_get_u32(data + 20),
                           .op = {.comm = gr_get_u16(data + 52),
                                  .is_message = (flags & FLAG_MESSAGE) != 0,
                                  .sends = (flags & FLAG_SENDS) != 0,
                                  .number = gr_get_u32(data + 24),
                                  .partner = (int32_t)gr_get_u32(data + 56),
                                  .fingerprint = gr_get_u64(data + 32)},
                           .serial = gr_get_u32(data + 60),
                           .met = gr_get_u16(data + 54),
                           .called_at = gr_get_u32(data + 28),
                           .blocked = (flags & FLAG_BLOCKED) != 0,
                           .deadlock = (flags & FLAG_DEADLOCK) != 0,
                           .seq = gr_get_u32(data + 40),
                           .answers = gr_get_u32(data + 44),
                           .awaits_count = gr_get_u32(data + 48)};
    bool sound =
        report.kind >= GR_REPORT_IDLE && report.kind < GR_REPORT_KIND_END &&
        (flags & ~(uint32_t)FLAGS_ALL) == 0 && report.awaits_count <= GR_REPORT_AWAITS_MAX &&
        size_bytes >= FIXED_BYTES + 4 * (size_t)report.awaits_count &&
        is_rank(report.rank, rank_max, false) && is_rank(report.peer, rank_max, true) &&
        is_rank(report.via, rank_max, true) && is_rank(report.op.partner, rank_max, true) &&
        (report.kind != GR_REPORT_MISMATCH || report.peer >= 0) &&
        (report.kind != GR_REPORT_GONE || report.peer >= 0) &&
        (report.kind != GR_REPORT_ENDED || report.serial != 0);
    const uint8_t *at = data + FIXED_BYTES;
    for (uint32_t i = 0; sound && i < report.awaits_count; i++, at += 4) {
        report.awaits[i] = (int32_t)gr_get_u32(at);
        sound = is_rank(report.awaits[i], rank_max, false);
    }
    if (!sound || gr_get_text(at, data + size_bytes, report.text, sizeof report.text, false) !=
                      data + size_bytes) {
        return malformed(diag);
    }
    *report_out = report;
    return GR_OK;
}
