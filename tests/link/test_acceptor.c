/* SPDX-License-Identifier: Apache-2.0 */

/* What one source of unauthenticated peers can take of an acceptor, and what an acceptor tells
 * of those it cannot reach: on a clock of the test's own. */

#include "base/fork.h"
#include "link/acceptor.h"
#include "link/address.h"
#include "link/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PLACES = 8, PATIENCE_MS = 10000, TOLD_BYTES = 300 };

typedef struct guarded {
    gr_acceptor *acceptor;
    int64_t now_us;
    gr_log log;
    int logged; /* warnings */
    char last[TOLD_BYTES];
} guarded;

static void hear(void *arg, gr_log_level level, const char *source, const char *text)
{
    guarded *g = arg;
    (void)source;
    if (level == GR_LOG_WARN) {
        g->logged++;
        snprintf(g->last, sizeof g->last, "%s", text);
    }
}

static void guard(guarded *g)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    *g = (guarded){.now_us = 1000000, .log = {.level = GR_LOG_WARN, .sink = hear, .sink_arg = g}};
    gr_acceptor_config config = {.rank = 0,
                                 .secret = secret,
                                 .listen_host = "127.0.0.1",
                                 .half_open_max = PLACES,
                                 .timeout_us = 5000000,
                                 .clock = gr_clock_simulated(&g->now_us),
                                 .log = &g->log};
    assert_int_equal(gr_acceptor_create(&config, &g->acceptor, NULL), GR_OK);
}

/* A unauthenticated peer from 127.0.0.`host`, once the acceptor has looked at it; whether it got
 * a challenge. */
static bool knock(guarded *g, int host, int *fd_out)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    const char *port = strrchr(gr_acceptor_address(g->acceptor), ':') + 1;
    from.sin_addr.s_addr = htonl(0x7f000000U + (uint32_t)host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(port));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    g->now_us++; /* so that one is the oldest */
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(gr_acceptor_progress(g->acceptor, NULL), GR_OK);
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
    assert_int_equal(gr_acceptor_pending(g.acceptor), PLACES / 2);
    g.now_us += 200000; /* time enough for a handshake */
    assert_true(knock(&g, 2, &silent[PLACES - 1]));
    assert_true(is_closed(silent[0])); /* the oldest of the same source, ... */
    assert_false(is_closed(silent[1]));
    assert_false(is_closed(other)); /* ...no other one */
    gr_acceptor_destroy(g.acceptor);
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
        assert_int_equal(gr_acceptor_progress(g.acceptor, NULL),
                         GR_OK); /* sees that it has closed */
    }
    assert_in_range(challenged, 1, LIMIT);
    assert_int_equal(gr_acceptor_pending(g.acceptor), FLOOD);
    assert_true(knock(&g, 3, NULL));
    assert_int_equal(g.logged, 1); /* of all of them in that second */
    g.now_us += 1000000;
    assert_true(knock(&g, 2, NULL));
    assert_int_equal(gr_acceptor_progress(g.acceptor, NULL), GR_OK);
    assert_int_equal(g.logged, 2);
    assert_non_null(strstr(g.last, " connections to tcp:127.0.0.1:"));
    gr_acceptor_destroy(g.acceptor);
}

static void acceptor_without_descriptors_warns_once_a_second_and_goes_on(void **state)
{
    enum { TURN_US = 20000, SECONDS = 3 };
    guarded g;
    struct rlimit old, none;
    struct sockaddr_in to = {.sin_family = AF_INET};
    (void)state;
    guard(&g);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(gr_acceptor_address(g.acceptor), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), unused = dup(fd);
    assert_true(fd >= 0 && unused >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    close(unused);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){(rlim_t)unused, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int turn = 0; turn < SECONDS * 1000000 / TURN_US; turn++) {
        assert_int_equal(gr_acceptor_progress(g.acceptor, NULL), GR_OK);
        g.now_us += TURN_US;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(g.logged, SECONDS);
    assert_non_null(strstr(g.last, "(ulimit -n)"));
    while (!gr_acceptor_busy(g.acceptor)) {
        assert_int_equal(gr_acceptor_progress(g.acceptor, NULL), GR_OK);
        g.now_us += TURN_US;
    }
    close(fd);
    gr_acceptor_destroy(g.acceptor);
}

/* As many as do not lead anywhere, each by a call of its own. */
static void test_each_failed_dial_is_told(void **state)
{
    (void)state;
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    enum { DIALS = 5 };
    gr_acceptor *acceptor;
    int64_t now_us = 1000000;
    int logged = 0;
    const gr_acceptor_config config = {.rank = 0,
                                       .secret = secret,
                                       .half_open_max = 1,
                                       .outgoing_max = DIALS,
                                       .timeout_us = 5000000,
                                       .clock = gr_clock_simulated(&now_us)};
    assert_int_equal(gr_acceptor_create(&config, &acceptor, NULL), GR_OK);
    for (int peer = 1; peer <= DIALS; peer++) {
        assert_int_equal(gr_acceptor_connect(acceptor, peer, (gr_auth_rail){.count = 1},
                                             "unix:@gradus-nobody-is-here", NULL),
                         GR_OK);
    }
    for (int turn = 0; gr_acceptor_connecting(acceptor); turn++) {
        gr_diag why = {0};
        assert_true(turn < 1000);
        if (gr_acceptor_progress(acceptor, &why) != GR_OK) {
            assert_int_equal(why.status, GR_E_PEER_LOST);
            assert_false(logged >> why.peer_rank & 1);
            logged |= 1 << why.peer_rank;
        }
        now_us += 100;
    }
    assert_int_equal(logged, 2 * ((1 << DIALS) - 1));
    assert_true(now_us < 1000000 + config.timeout_us / 2);
    gr_acceptor_destroy(acceptor);
}

/* It has several addresses, and is not inside the library: nothing is closed meanwhile, which it
 * would take for unauthenticated peers. */
static void acceptor_busy_peer_of_several_addresses_is_waited_for(void **state)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    guarded g;
    gr_acceptor *caller;
    gr_accepted here = {.fd = -1}, there = {.fd = -1};
    char addresses[2 * GR_ADDRESS_BYTES];
    (void)state;
    guard(&g);
    const gr_acceptor_config config = {.rank = 1,
                                       .secret = secret,
                                       .half_open_max = 1,
                                       .outgoing_max = 1,
                                       .timeout_us = 5000000,
                                       .connect_timeout_us = GR_NEVER,
                                       .clock = gr_clock_simulated(&g.now_us)};
    assert_int_equal(gr_acceptor_create(&config, &caller, NULL), GR_OK);
    snprintf(addresses, sizeof addresses, "%s %s", gr_acceptor_address(g.acceptor),
             gr_acceptor_address(g.acceptor));
    assert_int_equal(gr_acceptor_connect(caller, 0, (gr_auth_rail){.count = 1}, addresses, NULL),
                     GR_OK);
    for (int turn = 0; turn < 30; turn++) {
        struct pollfd at = {.fd = gr_acceptor_fd(caller), .events = POLLIN};
        (void)poll(&at, 1, turn == 0 ? PATIENCE_MS : 0); /* connected */
        assert_int_equal(gr_acceptor_progress(caller, NULL), GR_OK);
        g.now_us += 1000000;
    }
    while (here.fd < 0 || there.fd < 0) {
        assert_int_equal(gr_acceptor_progress(g.acceptor, NULL), GR_OK);
        assert_int_equal(gr_acceptor_progress(caller, NULL), GR_OK);
        (void)(here.fd < 0 && gr_acceptor_accept(caller, &here));
        (void)(there.fd < 0 && gr_acceptor_accept(g.acceptor, &there));
    }
    assert_int_equal(gr_acceptor_pending(g.acceptor), 0);
    gr_fork_close(here.fd);
    gr_fork_close(there.fd);
    gr_acceptor_destroy(caller);
    gr_acceptor_destroy(g.acceptor);
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* A resolver of the test's own. It may wait until the test lets it go on. */
typedef struct names {
    const char *name;     /* that it is asked for; NULL: "coordinator.test" */
    const char *hosts[4]; /* in the resolver's order */
    int error;
    sem_t *wait; /* NULL: answers at once */
    atomic_int asked;
} names;

static int resolve(void *arg, const char *host, gr_host_addresses *found_out)
{
    names *of = arg;
    assert_string_equal(host, of->name != NULL ? of->name : "coordinator.test");
    if (of->wait != NULL) {
        sem_wait(of->wait);
    }
    found_out->count = 0;
    for (int i = 0; i < 4 && of->hosts[i] != NULL; i++) {
        struct sockaddr_storage *at = &found_out->at[found_out->count++];
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)at;
        struct sockaddr_in *four = (struct sockaddr_in *)(void *)at;
        memset(at, 0, sizeof *at);
        at->ss_family = strchr(of->hosts[i], ':') != NULL ? AF_INET6 : AF_INET;
        (void)inet_pton(at->ss_family, of->hosts[i],
                        at->ss_family == AF_INET6 ? (void *)&six->sin6_addr
                                                  : (void *)&four->sin_addr);
    }
    int error = of->error;
    atomic_fetch_add(&of->asked, 1); /* from here on the test may leave its stack */
    return error;
}

typedef struct named {
    gr_acceptor *listener, *caller;
    names names;
    char address[GR_ADDRESS_BYTES];
} named;

static void named_open(named *n)
{
    static const uint8_t secret[GR_SECRET_BYTES] = {1};
    gr_acceptor_config config = {.rank = 0,
                                 .secret = secret,
                                 .listen_host = "127.0.0.1",
                                 .half_open_max = PLACES,
                                 .timeout_us = 10000000,
                                 .clock = gr_clock_real()};
    assert_int_equal(gr_acceptor_create(&config, &n->listener, NULL), GR_OK);
    config.rank = 1;
    config.listen_host = NULL;
    config.outgoing_max = 2;
    config.resolver = resolve;
    config.resolver_arg = &n->names;
    assert_int_equal(gr_acceptor_create(&config, &n->caller, NULL), GR_OK);
    snprintf(n->address, sizeof n->address, "tcp:%s%s",
             n->names.name != NULL ? n->names.name : "coordinator.test",
             strrchr(gr_acceptor_address(n->listener), ':'));
}

static void named_close(named *n)
{
    gr_acceptor_destroy(n->caller);
    gr_acceptor_destroy(n->listener);
}

/* Until the call is through, or has failed. */
static gr_status named_call(named *n, gr_diag *diag)
{
    gr_accepted here = {.fd = -1}, there = {.fd = -1};
    gr_status status =
        gr_acceptor_connect(n->caller, 0, (gr_auth_rail){.count = 1}, n->address, diag);
    bool called = false, answered = false;
    while (status == GR_OK && !(called && answered)) {
        struct pollfd at[2] = {{.fd = gr_acceptor_fd(n->caller), .events = POLLIN},
                               {.fd = gr_acceptor_fd(n->listener), .events = POLLIN}};
        (void)poll(at, 2, 10);
        assert_int_equal(gr_acceptor_progress(n->listener, NULL), GR_OK);
        status = gr_acceptor_progress(n->caller, diag);
        called = called || gr_acceptor_accept(n->caller, &here);
        answered = answered || gr_acceptor_accept(n->listener, &there);
    }
    gr_fork_close(here.fd);
    gr_fork_close(there.fd);
    return status;
}

static void acceptor_all_addresses_of_a_name_are_tried(void **state)
{
    named n = {.names = {.hosts = {"::1", "127.0.0.3", "127.0.0.1"}}};
    gr_diag diag = {0};
    (void)state;
    named_open(&n);
    assert_int_equal(named_call(&n, &diag), GR_OK);
    assert_int_equal(atomic_load(&n.names.asked), 1);
    named_close(&n);
}

/* Four labels, the most that DNS has room for. */
static void acceptor_longest_name_is_looked_up_whole(void **state)
{
    char name[253 + 1];
    named n = {.names = {.name = name, .hosts = {"127.0.0.1"}}};
    gr_diag diag = {0};
    (void)state;
    memset(name, 'n', sizeof name - 1);
    name[63] = name[127] = name[191] = '.';
    name[sizeof name - 1] = '\0';
    named_open(&n);
    assert_int_equal(named_call(&n, &diag), GR_OK);
    assert_int_equal(atomic_load(&n.names.asked), 1);
    named_close(&n);
}

static void acceptor_name_with_nobody_there_fails_and_names_the_address(void **state)
{
    named n = {.names = {.hosts = {"127.0.0.3", "127.0.0.4"}}};
    gr_diag diag = {0};
    (void)state;
    named_open(&n);
    assert_int_equal(named_call(&n, &diag), GR_E_PEER_LOST);
    assert_non_null(strstr(diag.text, "tcp:coordinator.test:"));
    assert_true(atomic_load(&n.names.asked) > 1); /* it may have moved */
    named_close(&n);
}

static void acceptor_unknown_name_fails_at_once(void **state)
{
    named n = {.names = {.error = EAI_NONAME}};
    gr_diag diag = {0};
    (void)state;
    named_open(&n);
    assert_int_equal(named_call(&n, &diag), GR_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "cannot find the host \"coordinator.test\""));
    assert_int_equal(atomic_load(&n.names.asked), 1);
    named_close(&n);
}

/* While name servers do not answer, all else goes on; and a call that is given up is let go. */
static void acceptor_slow_name_server_blocks_nothing(void **state)
{
    sem_t wait;
    named n = {.names = {.hosts = {"127.0.0.1"}, .wait = &wait}};
    gr_accepted here = {.fd = -1};
    (void)state;
    assert_int_equal(sem_init(&wait, 0, 0), 0);
    named_open(&n);
    assert_int_equal(gr_acceptor_connect(n.caller, 0, (gr_auth_rail){.count = 1}, n.address, NULL),
                     GR_OK);
    assert_int_equal(gr_acceptor_connect(n.caller, 0, (gr_auth_rail){.count = 1},
                                         gr_acceptor_address(n.listener), NULL),
                     GR_OK);
    while (!gr_acceptor_accept(n.caller, &here)) {
        assert_int_equal(gr_acceptor_progress(n.listener, NULL), GR_OK);
        assert_int_equal(gr_acceptor_progress(n.caller, NULL), GR_OK);
    }
    gr_fork_close(here.fd);
    assert_int_equal(atomic_load(&n.names.asked), 0);
    named_close(&n);
    assert_int_equal(sem_post(&wait), 0);
    while (atomic_load(&n.names.asked) == 0) { /* the thread still uses what is on this stack */
        sched_yield();
    }
    sem_destroy(&wait);
}

static void host_addresses_families_take_turns(void **state)
{
    static const char given[] = "6664", expected[] = "6466", one[] = "444", mixed[] = "46644";
    static const char *const cases[][2] = {
        {given, expected}, {one, one}, {mixed, "46464"}, {"", ""}, {"6446", "6464"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_host_addresses list = {.count = (int)strlen(cases[i][0])};
        for (int k = 0; k < list.count; k++) {
            list.at[k].ss_family = cases[i][0][k] == '6' ? AF_INET6 : AF_INET;
        }
        gr_host_addresses_sort(&list);
        for (int k = 0; k < list.count; k++) {
            assert_int_equal(list.at[k].ss_family, cases[i][1][k] == '6' ? AF_INET6 : AF_INET);
        }
    }
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
        cmocka_unit_test(acceptor_without_descriptors_warns_once_a_second_and_goes_on),
        cmocka_unit_test(test_each_failed_dial_is_told),
        cmocka_unit_test(acceptor_busy_peer_of_several_addresses_is_waited_for),
        cmocka_unit_test(acceptor_all_addresses_of_a_name_are_tried),
        cmocka_unit_test(acceptor_longest_name_is_looked_up_whole),
        cmocka_unit_test(acceptor_name_with_nobody_there_fails_and_names_the_address),
        cmocka_unit_test(acceptor_unknown_name_fails_at_once),
        cmocka_unit_test(acceptor_slow_name_server_blocks_nothing),
        cmocka_unit_test(host_addresses_families_take_turns),
        cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
