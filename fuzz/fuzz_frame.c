/* SPDX-License-Identifier: Apache-2.0 */

/* The header of a frame, and that of a part: what decodes must be within its limits and encode to
 * the same bytes. Half of the inputs get a right checksum, so that the fuzzer sees what is behind
 * it. */

#include "base/codec.h"
#include "base/hash.h"
#include "link/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_header(const uint8_t bytes[GR_FRAME_BYTES])
{
    gr_frame frame;
    uint8_t again[GR_FRAME_BYTES];
    gr_diag diag = {0};
    if (gr_frame_decode(bytes, &frame, &diag) != GR_OK) {
        if (diag.text[0] == '\0') {
            abort();
        }
        return;
    }
    gr_frame_encode(&frame, again);
    if (memcmp(again, bytes, sizeof again) != 0 || frame.size_bytes > GR_FRAME_PAYLOAD_MAX) {
        abort();
    }
}

static void try_part(const uint8_t bytes[GR_PART_HEAD_BYTES])
{
    gr_part part;
    uint8_t again[GR_PART_HEAD_BYTES];
    gr_diag diag = {0};
    if (gr_part_decode(bytes, &part, &diag) != GR_OK) {
        if (diag.text[0] == '\0') {
            abort();
        }
        return;
    }
    gr_part_encode(&part, again);
    if (memcmp(again, bytes, sizeof again) != 0 || part.size_bytes > GR_PART_BYTES) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= GR_PART_HEAD_BYTES) {
        uint8_t bytes[GR_PART_HEAD_BYTES];
        memcpy(bytes, data, sizeof bytes);
        try_part(bytes);
        gr_put_u32(bytes, GR_PART_MAGIC);
        gr_put_u64(bytes + 16, gr_hash64(bytes, 16, GR_PART_MAGIC));
        try_part(bytes);
    }
    if (size >= GR_FRAME_BYTES) {
        uint8_t bytes[GR_FRAME_BYTES];
        memcpy(bytes, data, sizeof bytes);
        try_header(bytes);
        gr_put_u64(bytes + 32, gr_hash64(bytes, 32, GR_FRAME_MAGIC));
        try_header(bytes);
    }
    return 0;
}
