/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_FRAME_H
#define GR_LINK_FRAME_H

/* The header that precedes each payload on a byte stream. Pure functions, for the fuzzer as well.
 *
 *  0  u32  magic "GRF1"        16  u32  segment
 *  4  u8   version             20  u32  size_bytes
 *  5  u8   kind                24  u64  fingerprint
 *  6  u16  comm                32  u64  XXH3-64 of bytes 0..31
 *  8  u32  op_seq
 * 12  u32  message             all little-endian, 40 bytes */

#include "link/link.h"

enum {
    GR_FRAME_BYTES = 40,
    GR_FRAME_MAGIC = 0x31465247,
    GR_FRAME_VERSION = 2,
    GR_FRAME_ABORT_MAX = GR_DIAG_TEXT_BYTES /* longest sentence that an ABORT or a CLAIM carries */
};

void gr_frame_encode(const gr_frame *frame, uint8_t out[GR_FRAME_BYTES]);

/* GR_OK; GR_E_PROTOCOL with what is wrong in diag: then frame_out is untouched. */
gr_status gr_frame_decode(const uint8_t in[GR_FRAME_BYTES], gr_frame *frame_out,
                          gr_diag *diag) GR_MUST_CHECK;

/* Kind and size within their limits: whatever way a frame came in. */
gr_status gr_frame_check(const gr_frame *frame, gr_diag *diag) GR_MUST_CHECK;

#endif
