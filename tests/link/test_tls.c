/* SPDX-License-Identifier: Apache-2.0 */

/* What somebody on the wire can do: read, change, cut; and members that do not agree on TLS. */

#include "link/tls.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECORDED_MAX = 4 << 20, SECRET_TEXT_BYTES = 20000 };

/* Between member 1, which connects to it, and member 0: passes bytes on and keeps them. */
typedef struct relay {
    pair p;
    int listener, side[2]; /* side[i]: towards member i */
    char address[64];
    size_t flip_at; /* the byte from member 1 that is changed; 0: none */
    size_t cut_at;  /* where member 1's bytes end; 0: nowhere */
    size_t count;
    uint8_t *recorded; /* from member 1 */
} relay;

static struct sockaddr_in address_of(const char *text)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strrchr(text, ':') + 1));
    return address;
}

static void relay_open(relay *r, const bool encrypt[2])
{
    gr_diag diag = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    *r = (relay){.side = {-1, -1}, .recorded = malloc(RECORDED_MAX)};
    assert_non_null(r->recorded);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(r->listener, 8), 0);
    assert_int_equal(getsockname(r->listener, (struct sockaddr *)&address, &size), 0);
    snprintf(r->address, sizeof r->address, "tcp:127.0.0.1:%d", ntohs(address.sin_port));
    for (int i = 0; i < 2; i++) {
        gr_mesh_config config = test_config(GR_LINK_TCP, i, 2);
        config.encrypt = encrypt[i];
        assert_int_equal(gr_mesh_create(&config, &r->p.mesh[i], &diag), GR_OK);
    }
    assert_int_equal(gr_mesh_connect(r->p.mesh[1], 0, r->address, &diag), GR_OK);
    r->side[1] = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    r->side[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address = address_of(gr_mesh_address(r->p.mesh[0]));
    assert_true(r->side[1] >= 0);
    assert_int_equal(connect(r->side[0], (struct sockaddr *)&address, sizeof address), 0);
}

static void relay_close(relay *r)
{
    pair_close(&r->p);
    close(r->listener);
    close(r->side[0]);
    close(r->side[1]);
    free(r->recorded);
}

static void pass(relay *r, int from)
{
    uint8_t data[4096];
    ssize_t got = recv(r->side[from], data, sizeof data, MSG_DONTWAIT);
    if (got <= 0) {
        if (got == 0) {
            shutdown(r->side[1 - from], SHUT_WR);
        }
        return;
    }
    size_t size = (size_t)got;
    if (from == 1) {
        if (r->flip_at > 0 && r->flip_at >= r->count && r->flip_at < r->count + size) {
            data[r->flip_at - r->count] ^= 1;
        }
        assert_true(r->count + size <= RECORDED_MAX);
        memcpy(r->recorded + r->count, data, size);
        r->count += size;
        if (r->cut_at > 0 && r->count >= r->cut_at) {
            size_t beyond = r->count - r->cut_at;
            size = size > beyond ? size - beyond : 0;
        }
    }
    if (size > 0) {
        assert_int_equal(send(r->side[1 - from], data, size, MSG_NOSIGNAL), (ssize_t)size);
    }
    if (from == 1 && r->cut_at > 0 && r->count >= r->cut_at) {
        shutdown(r->side[0], SHUT_WR);
    }
}

/* One turn of all three; the first failure of either member. */
static gr_status turn(relay *r, gr_diag *diag)
{
    gr_status status = gr_mesh_progress(r->p.mesh[1], diag);
    pass(r, 1);
    gr_status other = gr_mesh_progress(r->p.mesh[0], status == GR_OK ? diag : NULL);
    pass(r, 0);
    return status != GR_OK ? status : other;
}

static void link_up(relay *r)
{
    gr_diag diag = {0};
    int64_t end_us = test_now_us() + PATIENCE_US;
    do {
        assert_true(test_now_us() < end_us);
        gr_status status = turn(r, &diag);
        if (status != GR_OK) {
            fail_msg("%s", diag.text);
        }
        r->p.link[0] = gr_mesh_link(r->p.mesh[0], 1);
        r->p.link[1] = gr_mesh_link(r->p.mesh[1], 0);
    } while (r->p.link[0] == NULL || r->p.link[1] == NULL);
}

static bool was_seen(const relay *r, const void *what, size_t size_bytes)
{
    return memmem(r->recorded, r->count, what, size_bytes) != NULL;
}

static void fill(uint8_t text[SECRET_TEXT_BYTES])
{
    for (int i = 0; i < SECRET_TEXT_BYTES; i++) {
        text[i] = (uint8_t)("these are weights"[i % 17] + i / 255);
    }
}

/* Send the text from member 1 to member 0: its status there. */
static gr_status send_through(relay *r, const uint8_t *text, gr_diag *diag)
{
    uint8_t *got = malloc(SECRET_TEXT_BYTES);
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = SECRET_TEXT_BYTES};
    uint64_t ticket;
    assert_non_null(got);
    assert_int_equal(gr_link_send(r->p.link[1], &frame, text, &ticket), GR_OK);
    gr_status status = GR_PENDING;
    int64_t end_us = test_now_us() + PATIENCE_US;
    while (status == GR_PENDING) {
        assert_true(test_now_us() < end_us);
        gr_status failed = turn(r, diag);
        status = failed != GR_OK ? failed : gr_link_peek(r->p.link[0], &frame);
        if (status == GR_OK) {
            status = gr_link_read(r->p.link[0], got);
        }
    }
    if (status == GR_OK) {
        assert_memory_equal(got, text, SECRET_TEXT_BYTES);
    }
    free(got);
    return status;
}

static void test_nothing_is_seen_on_the_wire(void **state)
{
    (void)state;
    uint8_t text[SECRET_TEXT_BYTES];
    fill(text);
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        relay r;
        gr_diag diag = {0};
        relay_open(&r, (bool[2]){encrypt != 0, encrypt != 0});
        link_up(&r);
        assert_int_equal(send_through(&r, text, &diag), GR_OK);
        assert_true(r.count > SECRET_TEXT_BYTES);
        for (int at = 0; at + 16 <= SECRET_TEXT_BYTES; at += 4000) {
            assert_int_equal(was_seen(&r, text + at, 16), encrypt == 0);
        }
        assert_false(was_seen(&r, test_secret, 10));
        relay_close(&r);
    }
}

static void test_a_changed_byte_ends_the_link(void **state)
{
    (void)state;
    /* Of a record: its version, the front and the rest of its text, its tag; the next records'. A
     * longer length would only make the reader wait for more. */
    static const size_t places[] = {1, 6, 17, 100, 5000, 16404, SECRET_TEXT_BYTES};
    uint8_t text[SECRET_TEXT_BYTES];
    fill(text);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        relay r;
        gr_diag diag = {0};
        relay_open(&r, (bool[2]){true, true});
        link_up(&r);
        r.flip_at = r.count + places[i];
        assert_int_equal(send_through(&r, text, &diag), GR_E_PROTOCOL);
        assert_non_null(strstr(gr_link_diag(r.p.link[0])->text, "was changed on its way"));
        relay_close(&r);
    }
}

static void test_a_cut_is_a_lost_peer(void **state)
{
    (void)state;
    uint8_t text[SECRET_TEXT_BYTES];
    gr_diag diag = {0};
    relay r;
    fill(text);
    relay_open(&r, (bool[2]){true, true});
    link_up(&r);
    r.cut_at = r.count + 3000;
    assert_int_equal(send_through(&r, text, &diag), GR_E_PEER_LOST);
    relay_close(&r);
}

static void test_a_change_during_the_handshake(void **state)
{
    (void)state;
    /* The announcement of TLS itself; the answer; the first bytes of TLS; its key share. */
    static const size_t places[] = {14, 60, 97, 130, 250};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        relay r;
        gr_diag diag = {0};
        relay_open(&r, (bool[2]){true, true});
        r.flip_at = places[i];
        int64_t end_us = test_now_us() + PATIENCE_US;
        gr_status status = GR_OK;
        while (status == GR_OK && test_now_us() < end_us) {
            status = turn(&r, &diag);
            assert_true(gr_mesh_link(r.p.mesh[0], 1) == NULL);
            gr_mesh_stats stats;
            gr_mesh_get_stats(r.p.mesh[0], &stats);
            if (stats.unauthenticated_refused > 0) {
                break; /* member 1 would try again, where nobody passes it on */
            }
        }
        assert_true(test_now_us() < end_us);
        relay_close(&r);
    }
}

typedef struct heard {
    char text[GR_DIAG_TEXT_BYTES];
} heard;

static void hear(void *heard_arg, gr_log_level level, const char *part, const char *text)
{
    heard *h = heard_arg;
    (void)part;
    if (level <= GR_LOG_WARN) {
        snprintf(h->text, sizeof h->text, "%s", text);
    }
}

static void test_one_without_tls(void **state)
{
    (void)state;
    for (int with = 0; with < 2; with++) {
        pair p;
        gr_diag diag = {0};
        heard h = {0};
        gr_log log = {.level = GR_LOG_WARN, .sink = hear, .sink_arg = &h};
        for (int i = 0; i < 2; i++) {
            gr_mesh_config config = test_config(GR_LINK_TCP, i, 2);
            config.encrypt = i == with;
            config.log = i == 0 ? &log : NULL;
            assert_int_equal(gr_mesh_create(&config, &p.mesh[i], &diag), GR_OK);
        }
        assert_int_equal(gr_mesh_connect(p.mesh[1], 0, gr_mesh_address(p.mesh[0]), &diag), GR_OK);
        int64_t end_us = test_now_us() + PATIENCE_US;
        gr_status status = GR_OK;
        while ((status == GR_OK || h.text[0] == '\0') && test_now_us() < end_us) {
            gr_status now = gr_mesh_progress(p.mesh[1], status == GR_OK ? &diag : NULL);
            status = status == GR_OK ? now : status;
            assert_int_equal(gr_mesh_progress(p.mesh[0], NULL), GR_OK);
        }
        assert_int_equal(status, GR_E_INVALID);
        assert_non_null(strstr(diag.text, with == 0 ? "rank 0 encrypts" : "rank 0 does not"));
        assert_non_null(strstr(diag.text, "GRADUS_ENCRYPT"));
        assert_non_null(strstr(h.text, with == 1 ? "rank 1 encrypts" : "rank 1 does not"));
        pair_close(&p);
    }
}

/* Two sessions over a socket pair: their first failures, or GR_OK. */
static gr_status shake_hands(const uint8_t *client_key, const uint8_t *server_key)
{
    int fds[2];
    gr_tls *tls[2];
    gr_diag diag = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(gr_tls_create(GR_TLS_CLIENT, fds[0], client_key, &tls[0], &diag), GR_OK);
    assert_int_equal(gr_tls_create(GR_TLS_SERVER, fds[1], server_key, &tls[1], &diag), GR_OK);
    gr_status status[2] = {GR_PENDING, GR_PENDING};
    for (int i = 0; i < 10 && status[0] >= 0 && status[1] >= 0; i++) {
        status[i % 2] = status[i % 2] == GR_OK ? GR_OK : gr_tls_shake(tls[i % 2], &diag);
    }
    for (int i = 0; i < 2; i++) {
        gr_tls_destroy(tls[i]);
        close(fds[i]);
    }
    return status[0] < 0 ? status[0] : status[1];
}

static void test_another_key(void **state)
{
    (void)state;
    uint8_t key[GR_SHA256_BYTES] = {1, 2, 3}, other[GR_SHA256_BYTES] = {1, 2, 4};
    assert_int_equal(shake_hands(key, key), GR_OK);
    assert_int_equal(shake_hands(key, other), GR_E_AUTH);
    assert_int_equal(shake_hands(other, key), GR_E_AUTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_seen_on_the_wire),
        cmocka_unit_test(test_a_changed_byte_ends_the_link),
        cmocka_unit_test(test_a_cut_is_a_lost_peer),
        cmocka_unit_test(test_a_change_during_the_handshake),
        cmocka_unit_test(test_one_without_tls),
        cmocka_unit_test(test_another_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
