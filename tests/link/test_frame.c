/* SPDX-License-Identifier: Apache-2.0 */

/* The wire header: golden bytes, and everything that must be refused. */

#include "link/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

static const gr_frame sample = {.kind = GR_FRAME_DATA,
                                .op_seq = 0x01020304,
                                .message = 0x11121314,
                                .segment = 0x21222324,
                                .size_bytes = 0x00010203,
                                .fingerprint = 0x3132333435363738};

/* The checksum was computed apart, by Python over libxxhash (XXH3, seed "GRF1"). */
static const uint8_t golden[GR_FRAME_BYTES] = {
    'G',  'R',  'F',  '1',  0x02, 0x01, 0x00, 0x00, 0x04, 0x03, 0x02, 0x01, 0x14, 0x13,
    0x12, 0x11, 0x24, 0x23, 0x22, 0x21, 0x03, 0x02, 0x01, 0x00, 0x38, 0x37, 0x36, 0x35,
    0x34, 0x33, 0x32, 0x31, 0xc1, 0x1c, 0xb4, 0xdd, 0xa0, 0xcf, 0x43, 0x8d};

static void test_golden(void **state)
{
    (void)state;
    uint8_t bytes[GR_FRAME_BYTES];
    gr_frame frame;
    gr_frame_encode(&sample, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    assert_int_equal(gr_frame_decode(golden, &frame, NULL), GR_OK);
    assert_int_equal(frame.kind, sample.kind);
    assert_int_equal(frame.op_seq, sample.op_seq);
    assert_int_equal(frame.message, sample.message);
    assert_int_equal(frame.segment, sample.segment);
    assert_int_equal(frame.size_bytes, sample.size_bytes);
    assert_int_equal(frame.fingerprint, sample.fingerprint);
}

static void test_every_flipped_bit_is_seen(void **state)
{
    (void)state;
    for (int bit = 0; bit < 8 * GR_FRAME_BYTES; bit++) {
        uint8_t bytes[GR_FRAME_BYTES];
        gr_frame frame;
        gr_diag diag = {0};
        memcpy(bytes, golden, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(gr_frame_decode(bytes, &frame, &diag), GR_E_PROTOCOL);
        assert_true(diag.text[0] != '\0');
    }
}

static gr_status decode_of(uint8_t kind, uint32_t size_bytes)
{
    gr_frame frame = {.kind = kind, .size_bytes = size_bytes}, out;
    uint8_t bytes[GR_FRAME_BYTES];
    gr_frame_encode(&frame, bytes);
    return gr_frame_decode(bytes, &out, NULL);
}

static void test_limits(void **state)
{
    (void)state;
    assert_int_equal(decode_of(GR_FRAME_DATA, GR_FRAME_PAYLOAD_MAX), GR_OK);
    assert_int_equal(decode_of(GR_FRAME_DATA, GR_FRAME_PAYLOAD_MAX + 1), GR_E_PROTOCOL);
    assert_int_equal(decode_of(GR_FRAME_BYE, 0), GR_OK);
    assert_int_equal(decode_of(GR_FRAME_BYE, 1), GR_E_PROTOCOL);
    assert_int_equal(decode_of(GR_FRAME_ABORT, GR_FRAME_ABORT_MAX), GR_OK);
    assert_int_equal(decode_of(GR_FRAME_ABORT, GR_FRAME_ABORT_MAX + 1), GR_E_PROTOCOL);
    assert_int_equal(decode_of(0, 0), GR_E_PROTOCOL);
    assert_int_equal(decode_of(GR_FRAME_KIND_END, 0), GR_E_PROTOCOL);
    assert_int_equal(decode_of(255, 0), GR_E_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_every_flipped_bit_is_seen),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
