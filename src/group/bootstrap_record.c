/* SPDX-License-Identifier: Apache-2.0 */
#include "group/bootstrap.h"

#include "base/codec.h"
#include "base/hash.h"

#include <string.h>

/* u32 magic "GRBS", u16 version, the fields, zeros; at CHECKSUM_AT XXH3-64 of all bytes before */
enum { MAGIC = 0x53425247, VERSION = 1, FIELDS_AT = 6, CHECKSUM_AT = 584 };
_Static_assert(CHECKSUM_AT + 8 == GR_RECORD_BYTES, "the checksum");
_Static_assert(34 + GR_SECRET_BYTES + GR_REMOTE_BYTES <= CHECKSUM_AT, "the longest text");

static const gr_wire_field fields[] = {
    {GR_WIRE(16, gr_record, kind)},
    {GR_WIRE(32, gr_record, rank)},
    {GR_WIRE(32, gr_record, world_size)},
    {GR_WIRE(64, gr_record, host)},
    {GR_WIRE(32, gr_record, status)},
    {.bytes = 4}, /* zero */
    {GR_WIRE(8 * GR_SECRET_BYTES, gr_record, secret)},
    {GR_WIRE(0, gr_record, text)},
    {0},
};

void gr_record_put(const gr_record *record, uint8_t out[GR_RECORD_BYTES])
{
    memset(out, 0, GR_RECORD_BYTES);
    gr_put_u32(out, MAGIC);
    gr_put_u16(out + 4, VERSION);
    (void)gr_wire_put(fields, record, out + FIELDS_AT);
    gr_put_u64(out + CHECKSUM_AT, gr_hash64(out, CHECKSUM_AT, MAGIC));
}

gr_status gr_record_get(const uint8_t data[GR_RECORD_BYTES], gr_record *record_out)
{
    gr_record record = {0};
    bool sound = gr_get_u32(data) == MAGIC && gr_get_u16(data + 4) == VERSION &&
                 gr_get_u64(data + CHECKSUM_AT) == gr_hash64(data, CHECKSUM_AT, MAGIC) &&
                 gr_wire_get(fields, data + FIELDS_AT, data + CHECKSUM_AT, &record) != NULL &&
                 (record.kind == GR_RECORD_HOST || record.kind == GR_RECORD_COORDINATOR);
    if (sound) {
        *record_out = record;
    }
    gr_wipe(record.secret, sizeof record.secret);
    return sound ? GR_OK : GR_E_PROTOCOL;
}
