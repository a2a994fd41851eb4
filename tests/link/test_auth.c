/* SPDX-License-Identifier: Apache-2.0 */

/* The handshake as a state machine: in any cuts, golden answers, and every way to cheat. */

#include "base/codec.h"
#include "base/hash.h"
#include "link/auth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

static const uint8_t secret[GR_SECRET_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8};

static void begin(gr_auth *connector, gr_auth *acceptor)
{
    assert_int_equal(gr_auth_init(connector, GR_AUTH_CONNECTOR, 3, secret, NULL), GR_OK);
    assert_int_equal(gr_auth_init(acceptor, GR_AUTH_ACCEPTOR, 1, secret, NULL), GR_OK);
}

/* Give up to `cut` bytes of what `from` wants to say to `to`. True if anything moved. */
static bool pass(gr_auth *from, gr_auth *to, size_t cut, gr_status *status)
{
    size_t size, used;
    const uint8_t *data = gr_auth_pending(from, &size);
    size = size < cut ? size : cut;
    if (size == 0) {
        return false;
    }
    *status = gr_auth_take(to, data, size, &used, NULL);
    assert_int_equal(used, size);
    gr_auth_sent(from, size);
    return true;
}

static void test_in_all_cuts(void **state)
{
    (void)state;
    for (size_t cut = 1; cut <= GR_AUTH_BYTES; cut++) {
        gr_auth connector, acceptor;
        gr_status status = GR_OK;
        begin(&connector, &acceptor);
        while (pass(&connector, &acceptor, cut, &status) ||
               pass(&acceptor, &connector, cut, &status)) {
            assert_true(status >= 0);
        }
        assert_true(connector.done && acceptor.done);
        assert_int_equal(connector.peer_rank, 1);
        assert_int_equal(acceptor.peer_rank, 3);
        gr_auth_fini(&connector);
        gr_auth_fini(&acceptor);
    }
}

static void test_takes_no_more_than_its_own(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    gr_status status = GR_OK;
    uint8_t more[GR_AUTH_ANSWER_BYTES + 5] = {0};
    size_t size, used;
    begin(&connector, &acceptor);
    (void)pass(&acceptor, &connector, GR_AUTH_BYTES, &status);
    (void)pass(&connector, &acceptor, GR_AUTH_CHALLENGE_BYTES, &status);
    memcpy(more, gr_auth_pending(&connector, &size), GR_AUTH_ANSWER_BYTES);
    assert_int_equal(size, GR_AUTH_ANSWER_BYTES);
    assert_int_equal(gr_auth_take(&acceptor, more, sizeof more, &used, NULL), GR_PENDING);
    assert_int_equal(used, GR_AUTH_ANSWER_BYTES);
    assert_true(acceptor.checked);
}

/* The acceptor shows nothing but a challenge before the connector proved itself. */
static void test_acceptor_waits_for_proof(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    gr_status status = GR_OK;
    size_t size;
    begin(&connector, &acceptor);
    (void)gr_auth_pending(&acceptor, &size);
    assert_int_equal(size, GR_AUTH_CHALLENGE_BYTES);
    gr_auth_sent(&acceptor, size);
    (void)pass(&connector, &acceptor, GR_AUTH_CHALLENGE_BYTES, &status);
    (void)gr_auth_pending(&acceptor, &size);
    assert_int_equal(size, 0);
}

static void set_nonce(gr_auth *auth, uint8_t value)
{
    memset(auth->out + 24, value, 32);
}

/* Computed apart, by Python's hmac over the same bytes. */
static void test_golden(void **state)
{
    (void)state;
    static const char challenge_hex[] =
        "47524131020001020300000000010000186a47b3626235a8c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0"
        "c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0";
    static const char connector_hex[] =
        "47524132020001001fefc73fe1506e11da3ba072e263d7ec51e50097c1b17e00791737f90d1c8477";
    static const char acceptor_hex[] =
        "475241320200020041ff6adbc484036ba68efe49a1f20616986dfc643e6dc8694be2013ca6a2bdf6";
    char hex[2 * GR_AUTH_BYTES + 1];
    gr_auth connector, acceptor;
    gr_status status = GR_OK;
    begin(&connector, &acceptor);
    set_nonce(&connector, 0xc0);
    set_nonce(&acceptor, 0xa0);
    gr_hex(connector.out, GR_AUTH_CHALLENGE_BYTES, hex);
    assert_string_equal(hex, challenge_hex);
    while (pass(&connector, &acceptor, 1000, &status) ||
           pass(&acceptor, &connector, 1000, &status)) {
    }
    assert_true(connector.done && acceptor.done);
    gr_hex(connector.out + GR_AUTH_CHALLENGE_BYTES, GR_AUTH_ANSWER_BYTES, hex);
    assert_string_equal(hex, connector_hex);
    gr_hex(acceptor.out + GR_AUTH_CHALLENGE_BYTES, GR_AUTH_ANSWER_BYTES, hex);
    assert_string_equal(hex, acceptor_hex);
}

static gr_status give(gr_auth *to, const uint8_t *data, size_t size)
{
    size_t used;
    return gr_auth_take(to, data, size, &used, NULL);
}

static void test_wrong_secret(void **state)
{
    (void)state;
    static const uint8_t other[GR_SECRET_BYTES] = {1, 2, 3, 4, 5, 6, 7, 9};
    gr_auth connector, acceptor;
    assert_int_equal(gr_auth_init(&connector, GR_AUTH_CONNECTOR, 3, other, NULL), GR_OK);
    assert_int_equal(gr_auth_init(&acceptor, GR_AUTH_ACCEPTOR, 1, secret, NULL), GR_OK);
    assert_int_equal(give(&connector, acceptor.out, GR_AUTH_CHALLENGE_BYTES), GR_PENDING);
    assert_int_equal(give(&acceptor, connector.out, GR_AUTH_BYTES), GR_E_AUTH);
    assert_false(acceptor.done || acceptor.checked);
    size_t size;
    (void)gr_auth_pending(&acceptor, &size);
    assert_int_equal(size, 0);
    /* It stays refused, with the right answer as well. */
    assert_int_equal(give(&acceptor, connector.out, 1), GR_E_AUTH);
}

static void test_reflected(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    begin(&connector, &acceptor);
    assert_int_equal(give(&acceptor, acceptor.out, GR_AUTH_CHALLENGE_BYTES), GR_E_AUTH);
    assert_int_equal(give(&connector, connector.out, GR_AUTH_CHALLENGE_BYTES), GR_E_AUTH);
    gr_auth_fini(&connector);
    gr_auth_fini(&acceptor);

    /* With the roles turned round, the random bytes still tell. */
    begin(&connector, &acceptor);
    uint8_t turned[GR_AUTH_CHALLENGE_BYTES];
    memcpy(turned, acceptor.out, sizeof turned);
    turned[6] = GR_AUTH_CONNECTOR;
    turned[7] = GR_AUTH_ACCEPTOR;
    gr_put_u64(turned + 16, gr_hash64(turned, 16, 0x31415247));
    assert_int_equal(give(&acceptor, turned, sizeof turned), GR_E_AUTH);
}

/* The acceptor's own kind of answer, got from another of its connections, does not serve. */
static void test_answer_of_the_other_role(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    gr_status status = GR_OK;
    begin(&connector, &acceptor);
    while (pass(&connector, &acceptor, 1000, &status) ||
           pass(&acceptor, &connector, 1000, &status)) {
    }
    assert_true(acceptor.done);
    gr_auth victim = acceptor;
    victim.in_filled = GR_AUTH_CHALLENGE_BYTES;
    victim.checked = victim.done = false;
    victim.out_ready = victim.out_sent = GR_AUTH_CHALLENGE_BYTES;
    assert_int_equal(give(&victim, acceptor.out + GR_AUTH_CHALLENGE_BYTES, GR_AUTH_ANSWER_BYTES),
                     GR_E_AUTH);
}

static void test_replayed(void **state)
{
    (void)state;
    gr_auth connector, acceptor, again;
    gr_status status = GR_OK;
    begin(&connector, &acceptor);
    while (pass(&connector, &acceptor, 1000, &status) ||
           pass(&acceptor, &connector, 1000, &status)) {
    }
    assert_true(acceptor.done);
    assert_int_equal(gr_auth_init(&again, GR_AUTH_ACCEPTOR, 1, secret, NULL), GR_OK);
    assert_int_equal(give(&again, connector.out, GR_AUTH_BYTES), GR_E_AUTH);
}

/* Rank and role are under the answer: who changes them on the way breaks it. */
static void test_changed_on_the_way(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    begin(&connector, &acceptor);
    uint8_t changed[GR_AUTH_BYTES];
    assert_int_equal(give(&connector, acceptor.out, GR_AUTH_CHALLENGE_BYTES), GR_PENDING);
    memcpy(changed, connector.out, sizeof changed);
    gr_put_u32(changed + 8, 2);
    gr_put_u64(changed + 16, gr_hash64(changed, 16, 0x31415247));
    assert_int_equal(give(&acceptor, changed, sizeof changed), GR_E_AUTH);
}

/* That there is no place is proved as well: one cannot make such an answer on the way. */
static void test_no_place(void **state)
{
    (void)state;
    for (int forged = 0; forged < 2; forged++) {
        gr_auth connector, acceptor;
        gr_status status = GR_OK;
        size_t size;
        begin(&connector, &acceptor);
        (void)pass(&acceptor, &connector, GR_AUTH_BYTES, &status);
        (void)pass(&connector, &acceptor, GR_AUTH_BYTES, &status);
        assert_true(acceptor.checked);
        if (!forged) {
            assert_int_equal(gr_auth_refuse(&acceptor, NULL), GR_OK);
        }
        uint8_t answer[GR_AUTH_ANSWER_BYTES];
        const uint8_t *out = gr_auth_pending(&acceptor, &size);
        assert_int_equal(size, sizeof answer);
        memcpy(answer, out, sizeof answer);
        answer[7] = 1;
        assert_int_equal(give(&connector, answer, sizeof answer), forged ? GR_E_AUTH : GR_E_IN_USE);
        assert_false(connector.done);
    }
}

static void test_garbage_at_its_first_byte(void **state)
{
    (void)state;
    gr_auth connector, acceptor;
    begin(&connector, &acceptor);
    assert_int_equal(give(&acceptor, (const uint8_t *)"G", 1), GR_PENDING);
    assert_int_equal(give(&acceptor, (const uint8_t *)"E", 1), GR_E_PROTOCOL);
    assert_int_equal(give(&connector, (const uint8_t *)"GRA1\x03", 5), GR_E_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_all_cuts),
        cmocka_unit_test(test_takes_no_more_than_its_own),
        cmocka_unit_test(test_acceptor_waits_for_proof),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_reflected),
        cmocka_unit_test(test_answer_of_the_other_role),
        cmocka_unit_test(test_replayed),
        cmocka_unit_test(test_changed_on_the_way),
        cmocka_unit_test(test_no_place),
        cmocka_unit_test(test_garbage_at_its_first_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
