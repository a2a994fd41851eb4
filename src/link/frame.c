/* SPDX-License-Identifier: Apache-2.0 */
#include "link/frame.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

enum { CHECKSUM_AT = 32, PART_CHECKSUM_AT = 16 };

void gr_frame_encode(const gr_frame *frame, uint8_t out[GR_FRAME_BYTES])
{
    gr_put_u32(out, GR_FRAME_MAGIC);
    out[4] = GR_FRAME_VERSION;
    out[5] = frame->kind;
    gr_put_u16(out + 6, frame->comm);
    gr_put_u32(out + 8, frame->op_seq);
    gr_put_u32(out + 12, frame->message);
    gr_put_u32(out + 16, frame->segment);
    gr_put_u32(out + 20, frame->size_bytes);
    gr_put_u64(out + 24, frame->fingerprint);
    gr_put_u64(out + CHECKSUM_AT, gr_hash64(out, CHECKSUM_AT, GR_FRAME_MAGIC));
}

gr_status gr_frame_check(const gr_frame *frame, gr_diag *diag)
{
    uint32_t size_max = GR_FRAME_PAYLOAD_MAX;
    switch (frame->kind) {
    case GR_FRAME_DATA:
        break;
    case GR_FRAME_BYE:
        size_max = 0;
        break;
    case GR_FRAME_ABORT:
        size_max = GR_FRAME_ABORT_MAX;
        break;
    default:
        return gr_fail(diag, GR_E_PROTOCOL, "a frame of unknown kind %u", frame->kind);
    }
    if (frame->size_bytes > size_max) {
        return gr_fail(diag, GR_E_PROTOCOL,
                       "a frame of kind %u with %u bytes; at most %u are legal", frame->kind,
                       frame->size_bytes, size_max);
    }
    return GR_OK;
}

gr_status gr_frame_decode(const uint8_t in[GR_FRAME_BYTES], gr_frame *frame_out, gr_diag *diag)
{
    if (gr_get_u32(in) != GR_FRAME_MAGIC) {
        return gr_fail(diag, GR_E_PROTOCOL, "a frame does not begin with its mark (0x%08x)",
                       gr_get_u32(in));
    }
    if (in[4] != GR_FRAME_VERSION) {
        return gr_fail(diag, GR_E_PROTOCOL, "a frame of version %u; this build speaks version %d",
                       in[4], GR_FRAME_VERSION);
    }
    if (gr_get_u64(in + CHECKSUM_AT) != gr_hash64(in, CHECKSUM_AT, GR_FRAME_MAGIC)) {
        return gr_fail(diag, GR_E_PROTOCOL, "a frame header with a wrong checksum");
    }
    gr_frame frame = {
        .kind = in[5],
        .comm = gr_get_u16(in + 6),
        .op_seq = gr_get_u32(in + 8),
        .message = gr_get_u32(in + 12),
        .segment = gr_get_u32(in + 16),
        .size_bytes = gr_get_u32(in + 20),
        .fingerprint = gr_get_u64(in + 24),
    };
    gr_status status = gr_frame_check(&frame, diag);
    if (status == GR_OK) {
        *frame_out = frame;
    }
    return status;
}

void gr_part_encode(const gr_part *part, uint8_t out[GR_PART_HEAD_BYTES])
{
    gr_put_u32(out, GR_PART_MAGIC);
    gr_put_u32(out + 4, part->message);
    gr_put_u32(out + 8, part->offset);
    gr_put_u32(out + 12, part->size_bytes);
    gr_put_u64(out + PART_CHECKSUM_AT, gr_hash64(out, PART_CHECKSUM_AT, GR_PART_MAGIC));
}

bool gr_part_marked(const uint8_t in[GR_PART_HEAD_BYTES])
{
    return gr_get_u32(in) == GR_PART_MAGIC;
}

gr_status gr_part_decode(const uint8_t in[GR_PART_HEAD_BYTES], gr_part *part_out, gr_diag *diag)
{
    if (!gr_part_marked(in)) {
        return gr_fail(diag, GR_E_PROTOCOL, "a part does not begin with its mark (0x%08x)",
                       gr_get_u32(in));
    }
    if (gr_get_u64(in + PART_CHECKSUM_AT) != gr_hash64(in, PART_CHECKSUM_AT, GR_PART_MAGIC)) {
        return gr_fail(diag, GR_E_PROTOCOL, "the head of a part with a wrong checksum");
    }
    gr_part part = {.message = gr_get_u32(in + 4),
                    .offset = gr_get_u32(in + 8),
                    .size_bytes = gr_get_u32(in + 12)};
    if (part.size_bytes > GR_PART_BYTES || part.offset % GR_PART_BYTES != 0 ||
        part.offset >= GR_FRAME_PAYLOAD_MAX) {
        return gr_fail(diag, GR_E_PROTOCOL, "a part of %u bytes at %u of its message",
                       part.size_bytes, part.offset);
    }
    *part_out = part;
    return GR_OK;
}
