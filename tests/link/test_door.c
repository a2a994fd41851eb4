/* SPDX-License-Identifier: Apache-2.0 */

/* What one source of strangers can take of a door, and what a door tells of those it cannot reach:
 * on a clock of the test's own. */

#include "link/address.h"
#include "link/door.h"
#include "link/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 8, PATIENCE_MS = 10000, TOLD_BYTES = 300 };

typedef struct guarded {
    gr_door *door;
    int64_t now_us;
    gr_log log;
    int told; /* warnings */
    char last[TOLD_BYTES];
} guarded;

static void hear(void *arg, gr_log_level level, const char *source, const char *text)
{
    guarded *g = arg;
    (void)source;
    if (level == GR_LOG_WARN) {
        g->told++;
        snprintf(g->last, sizeof g->last, "%s", text);
    }
}

static void guard(guarded *g)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    *g = (guarded){.now_us = 1000000, .log = {.level = GR_LOG_WARN, .sink = hear, .sink_arg = g}};
    gr_door_config config = {.rank = 0,
                             .secret = secret,
                             .listen_host = "127.0.0.1",
                             .half_open_max = PLACES,
                             .timeout_us = 5000000,
                             .clock = gr_clock_simulated(&g->now_us),
                             .log = &g->log};
    assert_int_equal(gr_door_create(&config, &g->door, NULL), GR_OK);
}

/* A stranger from 127.0.0.`host`, once the door has looked at it; whether it got a challenge. */
static bool knock(guarded *g, int host, int *fd_out)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    const char *port = strrchr(gr_door_address(g->door), ':') + 1;
    from.sin_addr.s_addr = htonl(0x7f000000U + (uint32_t)host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(port));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    g->now_us++; /* so that one is the oldest */
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(gr_door_progress(g->door, NULL), GR_OK);
    struct pollfd at = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&at, 1, PATIENCE_MS), 1);
    uint8_t challenge[GR_AUTH_CHALLENGE_BYTES];
    ssize_t got = recv(fd, challenge, sizeof challenge, 0);
    if (fd_out != NULL) {
        *fd_out = fd;
    } else {
        close(fd);
    }
    return got > 0;
}

static bool is_closed(int fd)
{
    uint8_t byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) >= 0;
}

static void test_a_source_has_its_share_of_places(void **state)
{
    guarded g;
    int silent[PLACES], other;
    (void)state;
    guard(&g);
    for (int i = 0; i < PLACES; i++) {
        assert_int_equal(knock(&g, 2, &silent[i]), i < PLACES / 2);
    }
    assert_true(knock(&g, 3, &other)); /* at once: places are left */
    assert_int_equal(gr_door_strangers(g.door), PLACES / 2);
    g.now_us += 200000; /* time enough for a handshake */
    assert_true(knock(&g, 2, &silent[PLACES - 1]));
    assert_true(is_closed(silent[0])); /* the oldest of the same source, ... */
    assert_false(is_closed(silent[1]));
    assert_false(is_closed(other)); /* ...no other one */
    gr_door_destroy(g.door);
}

static void test_a_flood_costs_no_handshakes(void **state)
{
    enum { FLOOD = 700, LIMIT = 500 };
    guarded g;
    int challenged = 0;
    (void)state;
    guard(&g);
    for (int i = 0; i < FLOOD; i++) {
        challenged += knock(&g, 2, NULL);
        assert_int_equal(gr_door_progress(g.door, NULL), GR_OK); /* sees that it has closed */
    }
    assert_in_range(challenged, 1, LIMIT);
    assert_int_equal(gr_door_strangers(g.door), FLOOD);
    assert_true(knock(&g, 3, NULL));
    assert_int_equal(g.told, 1); /* of all of them in that second */
    g.now_us += 1000000;
    assert_true(knock(&g, 2, NULL));
    assert_int_equal(gr_door_progress(g.door, NULL), GR_OK);
    assert_int_equal(g.told, 2);
    assert_non_null(strstr(g.last, " connections to tcp:127.0.0.1:"));
    gr_door_destroy(g.door);
}

/* As many as do not lead anywhere, each by a call of its own. */
static void test_each_failed_dial_is_told(void **state)
{
    (void)state;
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    enum { DIALS = 5 };
    gr_door *door;
    int64_t now_us = 1000000;
    int told = 0;
    const gr_door_config config = {.rank = 0,
                                   .secret = secret,
                                   .half_open_max = 1,
                                   .outgoing_max = DIALS,
                                   .timeout_us = 5000000,
                                   .clock = gr_clock_simulated(&now_us)};
    assert_int_equal(gr_door_create(&config, &door, NULL), GR_OK);
    for (int peer = 1; peer <= DIALS; peer++) {
        assert_int_equal(gr_door_dial(door, peer, (gr_auth_stream){.count = 1},
                                      "unix:@gradus-nobody-is-here", NULL),
                         GR_OK);
    }
    for (int turn = 0; gr_door_dialing(door); turn++) {
        gr_diag why = {0};
        assert_true(turn < 1000);
        if (gr_door_progress(door, &why) != GR_OK) {
            assert_int_equal(why.status, GR_E_PEER_LOST);
            assert_false(told >> why.peer_rank & 1);
            told |= 1 << why.peer_rank;
        }
        now_us += 100;
    }
    assert_int_equal(told, 2 * ((1 << DIALS) - 1));
    assert_true(now_us < 1000000 + config.timeout_us / 2);
    gr_door_destroy(door);
}

static void test_sources(void **state)
{
    static const struct {
        const char *address, *text;
    } cases[] = {{"::ffff:10.1.2.3", "10.1.2.3"},
                 {"fe80::1", "fe80:0:0:0::/64"},
                 {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"}};
    char text[GR_SOURCE_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sockaddr_storage from = {.ss_family = AF_INET6};
        assert_int_equal(inet_pton(AF_INET6, cases[i].address,
                                   &((struct sockaddr_in6 *)(void *)&from)->sin6_addr),
                         1);
        gr_source_text(gr_source_of(&from), text);
        assert_string_equal(text, cases[i].text);
    }
    struct sockaddr_storage local = {.ss_family = AF_UNIX};
    gr_source_text(gr_source_of(&local), text);
    assert_string_equal(text, "this host");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_source_has_its_share_of_places),
        cmocka_unit_test(test_a_flood_costs_no_handshakes),
        cmocka_unit_test(test_each_failed_dial_is_told),
        cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
