/* SPDX-License-Identifier: Apache-2.0 */
#include "group/bootstrap.h"

#include "base/codec.h"
#include "base/hash.h"

#include <string.h>

/*  0  u32  magic "GRBS"       16  u64  host
 *  4  u16  version            24  u32  status
 *  6  u16  kind               28  u32  zero
 *  8  u32  rank               32       secret
 * 12  u32  world size         64       text, with its length (u16) before it; then zeros
 *                            584  u64  XXH3-64 of all bytes before */
enum { MAGIC = 0x53425247, VERSION = 1, SECRET_AT = 32, TEXT_AT = 64, CHECKSUM_AT = 584 };
_Static_assert(TEXT_AT + 2 + GR_REMOTE_BYTES <= CHECKSUM_AT, "the longest text");
_Static_assert(SECRET_AT + GR_SECRET_BYTES == TEXT_AT, "the secret");
_Static_assert(CHECKSUM_AT + 8 == GR_RECORD_BYTES, "the checksum");

void gr_record_put(const gr_record *record, uint8_t out[GR_RECORD_BYTES])
{
    memset(out, 0, GR_RECORD_BYTES);
    gr_put_u32(out, MAGIC);
    gr_put_u16(out + 4, VERSION);
    gr_put_u16(out + 6, (uint16_t)record->kind);
    gr_put_u32(out + 8, record->rank);
    gr_put_u32(out + 12, record->world_size);
    gr_put_u64(out + 16, record->host);
    gr_put_u32(out + 24, (uint32_t)record->status);
    memcpy(out + SECRET_AT, record->secret, GR_SECRET_BYTES);
    (void)gr_put_text(out + TEXT_AT, record->text, sizeof record->text);
    gr_put_u64(out + CHECKSUM_AT, gr_hash64(out, CHECKSUM_AT, MAGIC));
}

gr_status gr_record_get(const uint8_t data[GR_RECORD_BYTES], gr_record *record_out)
{
    gr_record record = {.kind = (gr_record_kind)gr_get_u16(data + 6),
                        .rank = gr_get_u32(data + 8),
                        .world_size = gr_get_u32(data + 12),
                        .host = gr_get_u64(data + 16),
                        .status = (int32_t)gr_get_u32(data + 24)};
    bool known = record.kind == GR_RECORD_HOST || record.kind == GR_RECORD_COORDINATOR;
    if (gr_get_u32(data) != MAGIC || gr_get_u16(data + 4) != VERSION || !known ||
        gr_get_u32(data + 28) != 0 ||
        gr_get_u64(data + CHECKSUM_AT) != gr_hash64(data, CHECKSUM_AT, MAGIC) ||
        gr_get_text(data + TEXT_AT, data + CHECKSUM_AT, record.text, sizeof record.text, false) ==
            NULL) {
        return GR_E_PROTOCOL;
    }
    memcpy(record.secret, data + SECRET_AT, GR_SECRET_BYTES);
    *record_out = record;
    gr_wipe(record.secret, sizeof record.secret);
    return GR_OK;
}
