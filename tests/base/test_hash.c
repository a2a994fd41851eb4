/* SPDX-License-Identifier: Apache-2.0 */

/* Checksums, digests, hexadecimal and little-endian codecs. */

#include "base/codec.h"
#include "base/hash.h"
#include "support_base.h"

#include <string.h>

static void assert_hex(const uint8_t *data, const char *text)
{
    char hex[GR_SHA256_HEX_BYTES];
    gr_hex(data, GR_SHA256_BYTES, hex);
    assert_string_equal(hex, text);
}

static void sha256_of_fips_180_inputs_matches(void **state)
{
    (void)state;
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    gr_sha256 *sha = NULL;
    char hex[GR_SHA256_HEX_BYTES];
    assert_int_equal(gr_sha256_create(&sha), GR_OK);
    assert_int_equal(gr_sha256_add(sha, text, 10), GR_OK);
    assert_int_equal(gr_sha256_add(sha, NULL, 0), GR_OK);
    assert_int_equal(gr_sha256_add(sha, text + 10, sizeof text - 11), GR_OK);
    assert_int_equal(gr_sha256_end(sha, hex), GR_OK);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_int_equal(gr_sha256_add(sha, text, 1), GR_E_INVALID); /* it has ended */
    assert_int_equal(gr_sha256_end(sha, hex), GR_E_INVALID);
    gr_sha256_destroy(sha);
    gr_sha256_destroy(NULL);
}

static void hmac_of_rfc_4231_inputs_matches(void **state)
{
    (void)state;
    uint8_t key[131];
    uint8_t mac[GR_SHA256_BYTES];
    assert_int_equal(
        gr_hmac_sha256((const uint8_t *)"Jefe", 4, "what do ya want for nothing?", 28, mac), GR_OK);
    assert_hex(mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xAA, sizeof key);
    static const char text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    assert_int_equal(gr_hmac_sha256(key, sizeof key, text, sizeof text - 1, mac), GR_OK);
    assert_hex(mac, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void hash64_of_known_inputs_is_that_of_xxhash(void **state)
{
    (void)state;
    assert_true(gr_hash64("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(gr_hash64("abc", 3, 1) != gr_hash64("abc", 3, 2));
}

static void hex_written_is_read_back(void **state)
{
    (void)state;
    const uint8_t bytes[4] = {0x00, 0x9F, 0xA5, 0xFF};
    char text[9];
    uint8_t back[4] = {0};
    gr_hex(bytes, 4, text);
    assert_string_equal(text, "009fa5ff");
    assert_int_equal(gr_unhex("009Fa5fF", back, 4), GR_OK);
    assert_memory_equal(back, bytes, 4);
    static const char *const bad[] = {"",         "009fa5f",  "009fa5ff0",
                                      "009fa5fg", "009fa5f ", "0x9fa5ff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memset(back, 7, sizeof back);
        assert_int_equal(gr_unhex(bad[i], back, 4), GR_E_INVALID);
        assert_int_equal(back[0], 7); /* untouched */
    }
}

static void secret_after_use_is_wiped(void **state)
{
    (void)state;
    uint8_t a[32];
    uint8_t b[32];
    gr_diag diag;
    assert_int_equal(gr_random_bytes(a, sizeof a, &diag), GR_OK);
    memcpy(b, a, sizeof b);
    assert_true(gr_equal_constant_time(a, b, sizeof a));
    b[31] ^= 1;
    assert_false(gr_equal_constant_time(a, b, sizeof a));
    assert_true(gr_equal_constant_time(a, b, 0));
    assert_int_equal(gr_random_bytes(b, sizeof b, &diag), GR_OK);
    assert_memory_not_equal(a, b, sizeof a);
    gr_wipe(a, sizeof a);
    static const uint8_t zero[32];
    assert_memory_equal(a, zero, sizeof a);
}

/* What stands in a vector register would be saved on the stack at the first call of a function. */
static void registers_are_wiped_with_the_stack(void **state)
{
    (void)state;
#if defined(__x86_64__) && defined(__has_attribute)
#if __has_attribute(zero_call_used_regs)
    static const uint8_t zero[32];
    uint8_t secret[32], left[32];
    memset(secret, 0x5a, sizeof secret);
    __asm__ volatile("movdqu (%0), %%xmm1\n\tmovdqu 16(%0), %%xmm15" ::"r"(secret)
                     : "memory", "xmm1", "xmm15");
    gr_wipe_stack();
    __asm__ volatile("movdqu %%xmm1, (%0)\n\tmovdqu %%xmm15, 16(%0)" ::"r"(left) : "memory");
    assert_memory_equal(left, zero, sizeof left);
#endif
#endif
}

typedef struct message {
    uint64_t wide;
    int32_t below_zero;
    uint8_t narrow;
    bool flag;
    uint8_t bytes[9];
    char text[6];
} message;

static const gr_wire_field message_fields[] = {
    {GR_WIRE(64, message, wide)},
    {GR_WIRE(32, message, below_zero)},
    {GR_WIRE(16, message, narrow)},
    {GR_WIRE(32, message, flag), .max = 1},
    {.bytes = 2}, /* zero */
    {GR_WIRE(72, message, bytes)},
    {GR_WIRE(0, message, text)},
    {0},
};

static const message example = {.wide = 0x0102030405060708,
                                .below_zero = -2,
                                .narrow = 0x7f,
                                .flag = true,
                                .bytes = "12345678",
                                .text = "abc"};
enum { EXAMPLE_BYTES = 34 };

static void codec_table_writes_fields_in_order(void **state)
{
    (void)state;
    static const char expected[EXAMPLE_BYTES + 1] =
        "\10\7\6\5\4\3\2\1\376\377\377\377\177\0\1\0\0\0"
        "\0\00012345678\0\3\0abc";
    uint8_t out[64];
    message back = {0};
    assert_ptr_equal(gr_wire_put(message_fields, &example, out), out + EXAMPLE_BYTES);
    assert_memory_equal(out, expected, EXAMPLE_BYTES);
    assert_ptr_equal(gr_wire_get(message_fields, out, out + EXAMPLE_BYTES, &back),
                     out + EXAMPLE_BYTES);
    assert_int_equal(back.wide, example.wide);
    assert_int_equal(back.below_zero, -2);
    assert_int_equal(back.narrow, 0x7f);
    assert_true(back.flag);
    assert_memory_equal(back.bytes, example.bytes, sizeof back.bytes);
    assert_string_equal(back.text, "abc");
}

static void codec_table_refuses_what_is_not_sound(void **state)
{
    (void)state;
    uint8_t out[64];
    message back;
    /* a number that its member cannot hold, one above `max`, a field that must be zero, a text that
     * is too long for its member */
    static const int wrong_at[] = {13, 14, 19, 29};
    for (size_t size = 0; size < EXAMPLE_BYTES; size++) {
        (void)gr_wire_put(message_fields, &example, out);
        assert_null(gr_wire_get(message_fields, out, out + size, &back));
    }
    for (size_t i = 0; i < sizeof wrong_at / sizeof wrong_at[0]; i++) {
        (void)gr_wire_put(message_fields, &example, out);
        out[wrong_at[i]] += 3;
        assert_null(gr_wire_get(message_fields, out, out + sizeof out, &back));
    }
    assert_null(gr_wire_get(message_fields, NULL, out, &back));
}

static void codec_numbers_are_little_endian(void **state)
{
    (void)state;
    uint8_t bytes[14];
    gr_put_u16(bytes, 0x8102);
    gr_put_u32(bytes + 2, 0x83040586);
    gr_put_u64(bytes + 6, UINT64_C(0x8708098a0b0c0d8e));
    static const uint8_t expected[14] = {0x02, 0x81, 0x86, 0x05, 0x04, 0x83, 0x8e,
                                         0x0d, 0x0c, 0x0b, 0x8a, 0x09, 0x08, 0x87};
    assert_memory_equal(bytes, expected, sizeof bytes);
    assert_int_equal(gr_get_u16(bytes), 0x8102);
    assert_true(gr_get_u32(bytes + 2) == 0x83040586);
    assert_true(gr_get_u64(bytes + 6) == UINT64_C(0x8708098a0b0c0d8e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_of_fips_180_inputs_matches),
        cmocka_unit_test(hmac_of_rfc_4231_inputs_matches),
        cmocka_unit_test(hash64_of_known_inputs_is_that_of_xxhash),
        cmocka_unit_test(hex_written_is_read_back),
        cmocka_unit_test(secret_after_use_is_wiped),
        cmocka_unit_test(registers_are_wiped_with_the_stack),
        cmocka_unit_test(codec_numbers_are_little_endian),
        cmocka_unit_test(codec_table_writes_fields_in_order),
        cmocka_unit_test(codec_table_refuses_what_is_not_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
