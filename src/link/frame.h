/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_FRAME_H
#define GR_LINK_FRAME_H

/* The header that precedes each payload on a byte rail. Pure functions, for the fuzzer as well.
 *
 *  0  u32  magic "GRF1"        16  u32  segment
 *  4  u8   version             20  u32  size_bytes
 *  5  u8   kind                24  u64  fingerprint
 *  6  u16  comm                32  u64  XXH3-64 of bytes 0..31
 *  8  u32  op_seq
 * 12  u32  message             all little-endian, 40 bytes */

#include "link/link.h"

/* On a link of several rails a payload beyond GR_PART_BYTES continues in parts of that size, each
 * on any of the rails, with this before it (also little-endian):
 *
 *  0  u32  magic "GRP1"        12  u32  size_bytes; 0: the sender leaves this rail in order
 *  4  u32  message             16  u64  XXH3-64 of bytes 0..15
 *  8  u32  offset              24  the part */
typedef struct gr_part {
    uint32_t message;    /* number of the message on its link, from 0 on */
    uint32_t offset;     /* within the payload, a multiple of GR_PART_BYTES */
    uint32_t size_bytes; /* at most GR_PART_BYTES */
} gr_part;

enum {
    GR_PART_HEAD_BYTES = 24,
    GR_PART_MAGIC = 0x31505247,
    GR_PART_BYTES = 64 << 10,
    GR_PARTS_MAX = GR_FRAME_PAYLOAD_MAX / GR_PART_BYTES
};

enum {
    GR_FRAME_BYTES = 40,
    GR_FRAME_MAGIC = 0x31465247,
    GR_FRAME_VERSION = 2,
    GR_FRAME_ABORT_MAX = GR_DIAG_TEXT_BYTES /* longest sentence that an ABORT carries */
};

void gr_frame_encode(const gr_frame *frame, uint8_t out[GR_FRAME_BYTES]);

/* GR_OK; GR_E_PROTOCOL with what is wrong in diag: then frame_out is untouched. */
gr_status gr_frame_decode(const uint8_t in[GR_FRAME_BYTES], gr_frame *frame_out,
                          gr_diag *diag) GR_MUST_CHECK;

/* Kind and size within their limits: whatever way a frame came in. */
gr_status gr_frame_check(const gr_frame *frame, gr_diag *diag) GR_MUST_CHECK;

bool gr_part_marked(const uint8_t in[GR_PART_HEAD_BYTES]); /* no frame but a part begins here */
void gr_part_encode(const gr_part *part, uint8_t out[GR_PART_HEAD_BYTES]);
/* GR_OK; GR_E_PROTOCOL with what is wrong in diag: then part_out is untouched. */
gr_status gr_part_decode(const uint8_t in[GR_PART_HEAD_BYTES], gr_part *part_out,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
