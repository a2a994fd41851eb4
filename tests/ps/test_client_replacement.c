/* SPDX-License-Identifier: Apache-2.0 */

/* What a client makes of a table of servers that comes while it connects, what a server tells its
 * clients of a new one, and when a new one asks for its place. All others are meshes of this
 * thread: the test decides what each of them says, and when. */

#include "ps/message.h"
#include "ps/server/membership_view.h"
#include "ps/server/message.h"
#include "support_servers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENT = GR_PS_WORKERS_AT, SERVERS = 2, SERVERS_MAX = 3, CLOSES_MS = 10000 };
#define WAIT_US INT64_C(60000000)

/* ---- A server, or a client, that says what the test says ------------------------------------- */

typedef struct scripted {
    gr_mesh *mesh;
    int peer;      /* whom it speaks to */
    gr_link *link; /* to that one; NULL: not there */
    bool ended;
} scripted;

static void scripted_open(scripted *s, int number, int peer)
{
    gr_mesh_config config;
    gr_diag diag = {0};
    gr_mesh_config_init(&config);
    config.kind = GR_LINK_TCP;
    config.dynamic_peers = true;
    config.rank = number;
    config.world_size = GR_PS_PEERS_MAX;
    config.secret = test_secret;
    *s = (scripted){.peer = peer};
    if (gr_mesh_create(&config, &s->mesh, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

static void scripted_progress(scripted *s)
{
    gr_diag diag = {0};
    int peer;
    bool ended;
    if (gr_mesh_progress(s->mesh, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    while (gr_mesh_next_change(s->mesh, &peer, &ended)) {
        assert_int_equal(peer, s->peer);
        s->link = gr_mesh_link(s->mesh, peer);
        s->ended = ended;
    }
}

static void scripted_wait(scripted *s)
{
    gr_clock clock = gr_clock_real();
    gr_mesh_wait(s->mesh, gr_clock_deadline_us(&clock, WAIT_US));
    scripted_progress(s);
}

static void scripted_accept(scripted *s)
{
    for (scripted_progress(s); s->link == NULL;) {
        scripted_wait(s);
    }
}

/* The next message of this kind; those before it are passed over. */
static gr_frame scripted_read(scripted *s, gr_ps_kind kind, uint8_t payload[GR_PS_SMALL_MAX])
{
    gr_frame frame = {0};
    for (scripted_accept(s); frame.comm != kind;) {
        gr_status status = gr_link_peek(s->link, &frame);
        if (status == GR_PENDING) {
            scripted_wait(s);
            continue;
        }
        assert_int_equal(status, GR_OK);
        assert_true(frame.size_bytes < GR_PS_SMALL_MAX);
        while ((status = gr_link_read(s->link, payload)) == GR_PENDING) {
            scripted_wait(s);
        }
        assert_int_equal(status, GR_OK);
        gr_link_next(s->link, NULL);
    }
    payload[frame.size_bytes] = '\0';
    return frame;
}

/* Its ticket. */
static uint32_t scripted_take(scripted *s, gr_ps_kind kind)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    return scripted_read(s, kind, payload).op_seq;
}

static void scripted_send(scripted *s, gr_frame frame, const void *payload, size_t size_bytes)
{
    uint64_t ticket;
    frame.kind = GR_FRAME_DATA;
    frame.size_bytes = (uint32_t)size_bytes;
    assert_int_equal(gr_link_send(s->link, &frame, payload, &ticket), GR_OK);
    while (!gr_link_sent(s->link, ticket)) {
        scripted_wait(s);
    }
}

static void scripted_send_place(scripted *s, int number, uint64_t incarnation, const char *address)
{
    const gr_frame frame = {
        .comm = GR_PS_PEER, .segment = (uint32_t)number, .fingerprint = incarnation};
    scripted_send(s, frame, address, strlen(address));
}

static void scripted_send_table(scripted *s, const gr_ps_table *table)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    scripted_send(s, (gr_frame){.comm = GR_PS_TABLE}, payload, gr_ps_put_table(table, payload));
}

static void scripted_send_done(scripted *s, uint32_t ticket)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    const gr_ps_done done = {.status = GR_OK};
    scripted_send(s, (gr_frame){.comm = GR_PS_DONE, .op_seq = ticket}, payload,
                  gr_ps_put_done(&done, payload));
}

/* ---- A client in a thread of its own --------------------------------------------------------- */

typedef struct client {
    pthread_t thread;
    char addresses[TEST_ADDRESSES_BYTES];
    gr_status status;
    gr_diag diag;
} client;

static void *run_client(void *arg)
{
    client *c = arg;
    const gr_ps_config config = {
        .servers = c->addresses, .secret = test_secret, .timeout_us = WAIT_US};
    gr_ps *ps = NULL;
    c->status = gr_ps_connect(&config, &ps, &c->diag);
    gr_ps_close(ps);
    return NULL;
}

/* Of a third server there may be none: "". */
static void client_start(client *c, const char *first, const char *second, const char *third)
{
    setenv("GRADUS_LINK", "tcp", 1);
    snprintf(c->addresses, sizeof c->addresses, "%s,%s%s%s", first, second,
             third[0] != '\0' ? "," : "", third);
    assert_int_equal(pthread_create(&c->thread, NULL, run_client, c), 0);
}

static void client_expect_connected(client *c)
{
    pthread_join(c->thread, NULL);
    if (c->status != GR_OK) {
        fail_msg("%s", c->diag.text);
    }
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Somebody who accepts connections and says nothing. */
static int listen_silently(char address[GR_ADDRESS_BYTES])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    snprintf(address, GR_ADDRESS_BYTES, "tcp:127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

/* The other side closes it, whatever it has sent before. */
static void expect_closed(int fd)
{
    char some[256];
    ssize_t got;
    do {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&ready, 1, CLOSES_MS), 1);
        got = read(fd, some, sizeof some);
    } while (got > 0);
}

/* While the client still waits for an answer at the address from before. That attempt would fail
 * later, and be taken for the end of the new server. */
static void is_told_of_a_new_server(int replaced)
{
    enum { INCARNATION = 7 };
    static client c;
    scripted server[SERVERS];
    char address[SERVERS][GR_ADDRESS_BYTES];
    gr_ps_table table;
    int stays = 1 - replaced, silent = listen_silently(address[replaced]);
    for (int i = 0; i < SERVERS; i++) {
        scripted_open(&server[i], i, CLIENT);
    }
    snprintf(address[stays], GR_ADDRESS_BYTES, "%s", gr_mesh_address(server[stays].mesh));
    gr_ps_table_init(&table, SERVERS);
    assert_true(gr_ps_table_lose(&table, replaced));
    assert_true(gr_ps_table_add(&table, replaced, INCARNATION));

    client_start(&c, address[0], address[1], "");
    int old = accept(silent, NULL, NULL);
    assert_true(old >= 0);
    (void)scripted_take(&server[stays], GR_PS_HELLO);
    scripted_send_place(&server[stays], replaced, INCARNATION,
                        gr_mesh_address(server[replaced].mesh));
    scripted_send_table(&server[stays], &table);
    expect_closed(old);
    for (int i = 0; i < SERVERS; i++) {
        scripted_send_done(&server[i], scripted_take(&server[i], GR_PS_HELLO));
    }
    client_expect_connected(&c);

    close(old);
    close(silent);
    for (int i = 0; i < SERVERS; i++) {
        gr_mesh_destroy(server[i].mesh);
    }
}

static void client_told_of_a_new_server_gives_up_the_old_address(void **state)
{
    (void)state;
    is_told_of_a_new_server(1);
    is_told_of_a_new_server(0);
}

/* It was dialled before the table came. Whether it answers does not matter any more. */
static void client_reaching_a_server_that_the_table_has_lost_does_without_it(void **state)
{
    (void)state;
    static client c;
    scripted server[SERVERS];
    gr_ps_table table;
    for (int i = 0; i < SERVERS; i++) {
        scripted_open(&server[i], i, CLIENT);
    }
    gr_ps_table_init(&table, SERVERS);
    assert_true(gr_ps_table_lose(&table, 1));

    client_start(&c, gr_mesh_address(server[0].mesh), gr_mesh_address(server[1].mesh), "");
    (void)scripted_take(&server[0], GR_PS_HELLO);
    scripted_send_table(&server[0], &table);
    uint32_t ticket = scripted_take(&server[0], GR_PS_HELLO); /* by that table */
    scripted_accept(&server[1]);
    gr_link_close(server[1].link, GR_E_PEER_LOST, "the others go on without this one");
    while (!server[1].ended) { /* the client has seen it come, and go */
        scripted_wait(&server[1]);
    }
    scripted_send_done(&server[0], ticket);
    client_expect_connected(&c);

    for (int i = 0; i < SERVERS; i++) {
        gr_mesh_destroy(server[i].mesh);
    }
}

/* Its name led to the new process from the start, which says where it is in other words. The
 * connection stays. */
static void client_reaching_the_new_server_by_its_name_stays_there(void **state)
{
    (void)state;
    enum { INCARNATION = 7 };
    static client c;
    scripted server[SERVERS];
    char place[GR_ADDRESS_BYTES + sizeof "unix:@nobody+"];
    gr_ps_table table;
    for (int i = 0; i < SERVERS; i++) {
        scripted_open(&server[i], i, CLIENT);
    }
    gr_ps_table_init(&table, SERVERS);
    assert_true(gr_ps_table_lose(&table, 1));
    assert_true(gr_ps_table_add(&table, 1, INCARNATION));
    snprintf(place, sizeof place, "unix:@nobody+%s", gr_mesh_address(server[1].mesh));

    client_start(&c, gr_mesh_address(server[0].mesh), gr_mesh_address(server[1].mesh), "");
    for (int i = 0; i < SERVERS; i++) {
        (void)scripted_take(&server[i], GR_PS_HELLO);
    }
    scripted_send_place(&server[1], 1, INCARNATION, place);
    scripted_send_table(&server[1], &table);
    for (int i = 0; i < SERVERS; i++) {
        scripted_send_done(&server[i], scripted_take(&server[i], GR_PS_HELLO));
    }
    client_expect_connected(&c);

    for (int i = 0; i < SERVERS; i++) {
        gr_mesh_destroy(server[i].mesh);
    }
}

/* Server 2 is two tables behind, and tells of a process that was lost since, between the newest
 * one's address and its table. */
static void client_told_of_two_new_servers_connects_to_that_of_the_newest_table(void **state)
{
    (void)state;
    enum { FIRST = 7, SECOND = 8 };
    static client c;
    scripted server[SERVERS_MAX];
    char lost_address[GR_ADDRESS_BYTES];
    gr_ps_table table;
    int silent = listen_silently(lost_address);
    for (int i = 0; i < SERVERS_MAX; i++) {
        scripted_open(&server[i], i, CLIENT);
    }
    gr_ps_table_init(&table, SERVERS_MAX);
    assert_true(gr_ps_table_lose(&table, 1));

    client_start(&c, gr_mesh_address(server[0].mesh), lost_address,
                 gr_mesh_address(server[2].mesh));
    int old = accept(silent, NULL, NULL);
    assert_true(old >= 0);
    (void)scripted_take(&server[0], GR_PS_HELLO);
    (void)scripted_take(&server[2], GR_PS_HELLO);
    scripted_send_place(&server[0], 1, SECOND, gr_mesh_address(server[1].mesh));
    scripted_send_table(&server[0], &table);
    (void)scripted_take(&server[0], GR_PS_HELLO); /* by that table */
    (void)scripted_take(&server[2], GR_PS_HELLO);
    assert_true(gr_ps_table_add(&table, 1, FIRST));
    scripted_send_place(&server[2], 1, FIRST, lost_address);
    scripted_send_table(&server[2], &table);
    (void)scripted_take(&server[0], GR_PS_HELLO);
    (void)scripted_take(&server[2], GR_PS_HELLO);
    expect_closed(old);
    int lost = accept(silent, NULL, NULL);
    assert_true(lost >= 0);
    assert_true(gr_ps_table_lose(&table, 1));
    assert_true(gr_ps_table_add(&table, 1, SECOND));
    scripted_send_table(&server[0], &table);
    expect_closed(lost);
    for (int i = 0; i < SERVERS_MAX; i++) {
        scripted_send_done(&server[i], scripted_take(&server[i], GR_PS_HELLO));
    }
    client_expect_connected(&c);

    close(old);
    close(lost);
    close(silent);
    for (int i = 0; i < SERVERS_MAX; i++) {
        gr_mesh_destroy(server[i].mesh);
    }
}

/* ---- A server that is told of a new one ------------------------------------------------------ */

typedef struct real {
    gr_ps_server *server;
    pthread_t thread;
    atomic_bool stop;
} real;

static void *run_server(void *arg)
{
    real *r = arg;
    gr_clock clock = gr_clock_real();
    gr_diag diag = {0};
    while (!atomic_load(&r->stop)) {
        gr_status status = gr_ps_server_poll(r->server, &diag);
        if (status == GR_OK) {
            gr_ps_server_wait(r->server, gr_clock_deadline_us(&clock, WAIT_US));
        } else if (status != GR_PENDING) {
            fprintf(stderr, "the server ended: %s\n", diag.text);
            abort();
        }
    }
    return NULL;
}

/* Server 0. `others`: where all are, of which it replaces the first; NULL: it is that. */
static void real_start(real *r, const char *others)
{
    gr_ps_server_config config;
    gr_diag diag = {0};
    gr_ps_server_config_init(&config);
    config.replaces = others != NULL;
    config.others = others;
    config.servers = SERVERS_MAX;
    config.replicas = 1;
    config.secret = test_secret;
    config.link = GR_LINK_ALL_TCP;
    config.peer_timeout_us = WAIT_US;
    *r = (real){.server = NULL};
    assert_int_equal(gr_ps_server_create(&config, &r->server, &diag), GR_OK);
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r), 0);
}

static void real_stop(real *r)
{
    atomic_store(&r->stop, true);
    gr_ps_server_wake(r->server);
    pthread_join(r->thread, NULL);
    gr_ps_server_destroy(r->server);
}

static void scripted_connect(scripted *s, const real *r)
{
    gr_diag diag = {0};
    assert_int_equal(gr_mesh_connect(s->mesh, s->peer, gr_ps_server_address(r->server), &diag),
                     GR_OK);
    scripted_accept(s);
}

static void scripted_send_hello(scripted *s, int number, uint64_t incarnation)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    const gr_ps_hello hello = {
        .protocol = GR_PS_PROTOCOL, .servers = SERVERS_MAX, .number = (uint32_t)number};
    scripted_send(s, (gr_frame){.comm = GR_PS_HELLO, .fingerprint = incarnation}, payload,
                  gr_ps_put_hello(&hello, payload));
}

static void scripted_send_view(scripted *s, const gr_ps_membership *membership, uint64_t stamp)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    const gr_ps_beat beat = {.view = membership->own, .stamp = stamp};
    scripted_send(s, (gr_frame){.comm = GR_PS_VIEW}, payload, gr_ps_put_beat(&beat, payload));
}

/* Until the server says that it has this table. */
static void scripted_await_view(scripted *s, uint64_t epoch)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    gr_diag diag = {0};
    for (gr_ps_beat beat = {.view.epoch = UINT64_MAX}; beat.view.epoch != epoch;) {
        gr_frame frame = scripted_read(s, GR_PS_VIEW, payload);
        assert_int_equal(gr_ps_get_beat(payload, frame.size_bytes, &beat, &diag), GR_OK);
    }
}

/* Server 1 agrees to a new server 2 before that has said anything here: where the process before
 * was is no news for a client, which would try that until its time is over. */
static void server_tells_where_a_new_one_is_once_that_has_said_so(void **state)
{
    (void)state;
    enum { INCARNATION = 7 };
    uint8_t payload[GR_PS_SMALL_MAX];
    real r;
    scripted one, two, renewed, c;
    gr_ps_table table;
    gr_ps_membership membership;
    gr_ps_table_init(&table, SERVERS_MAX);
    gr_ps_membership_init(&membership, 1, &table);
    real_start(&r, NULL);
    scripted_open(&one, 1, 0);
    scripted_open(&two, 2, 0);
    scripted_open(&renewed, 2, 0);
    scripted_open(&c, CLIENT, 0);
    scripted_connect(&c, &r);
    scripted_send_hello(&c, 0, 0);
    scripted_send_place(&c, 2, 0, gr_mesh_address(two.mesh));
    scripted_connect(&one, &r);
    scripted_send_hello(&one, 1, 0);
    scripted_send_view(&one, &membership, 1);
    scripted_connect(&two, &r);
    scripted_send_hello(&two, 2, 0);
    scripted_send_view(&two, &membership, 1);
    (void)scripted_take(&c, GR_PS_DONE);
    gr_mesh_destroy(two.mesh);

    gr_ps_membership_lose(&membership, 2, false);
    scripted_send_view(&one, &membership, 1);
    scripted_await_view(&one, 1);
    assert_true(gr_ps_table_lose(&table, 2));
    gr_ps_membership_init(&membership, 1, &table);
    scripted_connect(&renewed, &r);
    gr_ps_membership_add(&membership, 2, INCARNATION);
    scripted_send_view(&one, &membership, 1);
    scripted_await_view(&one, 2);
    scripted_send_hello(&renewed, 2, INCARNATION);
    scripted_send_place(&renewed, 2, INCARNATION, gr_mesh_address(renewed.mesh));

    gr_frame place = scripted_read(&c, GR_PS_PEER, payload);
    assert_int_equal(place.segment, 2);
    assert_int_equal(place.fingerprint, INCARNATION);
    assert_string_equal((const char *)payload, gr_mesh_address(renewed.mesh));
    (void)scripted_take(&c, GR_PS_TABLE);

    real_stop(&r);
    gr_mesh_destroy(one.mesh);
    gr_mesh_destroy(renewed.mesh);
    gr_mesh_destroy(c.mesh);
}

/* Server 1 agrees to a new server 2 that has said nothing here, and may die before it does: without
 * the table that came of it server 1 would wait for it for ever. */
static void server_hands_a_table_on_before_it_knows_where_its_new_server_is(void **state)
{
    (void)state;
    enum { INCARNATION = 7 };
    real r;
    scripted one, two;
    gr_ps_table table;
    gr_ps_membership membership;
    gr_ps_table_init(&table, SERVERS_MAX);
    gr_ps_membership_init(&membership, 1, &table);
    real_start(&r, NULL);
    scripted_open(&one, 1, 0);
    scripted_open(&two, 2, 0);
    scripted_connect(&one, &r);
    scripted_send_hello(&one, 1, 0);
    scripted_send_view(&one, &membership, 1);
    scripted_connect(&two, &r);
    scripted_send_hello(&two, 2, 0);
    scripted_send_view(&two, &membership, 1);
    scripted_await_view(&two, 0);
    gr_mesh_destroy(two.mesh);
    gr_ps_membership_lose(&membership, 2, false);
    scripted_send_view(&one, &membership, 1);
    scripted_await_view(&one, 1);
    assert_true(gr_ps_table_lose(&table, 2));
    gr_ps_membership_init(&membership, 1, &table);
    gr_ps_membership_add(&membership, 2, INCARNATION);
    scripted_send_view(&one, &membership, 1);
    (void)scripted_take(&one, GR_PS_TABLE);

    real_stop(&r);
    gr_mesh_destroy(one.mesh);
}

/* Until the server has heard the view with this stamp. False: it said where it is before that, and
 * by that asks for a place. */
static bool scripted_await_echo(scripted *s, uint64_t stamp)
{
    uint8_t payload[GR_PS_SMALL_MAX];
    gr_ps_beat beat = {.stamp = 0};
    gr_diag diag = {0};
    bool asked = false;
    while (beat.echo != stamp) {
        gr_frame frame = {0};
        gr_status status;
        scripted_accept(s);
        while ((status = gr_link_peek(s->link, &frame)) == GR_PENDING) {
            scripted_wait(s);
        }
        assert_int_equal(status, GR_OK);
        asked = asked || frame.comm == GR_PS_PEER;
        frame = scripted_read(s, (gr_ps_kind)frame.comm, payload);
        if (frame.comm == GR_PS_VIEW) {
            assert_int_equal(gr_ps_get_beat(payload, frame.size_bytes, &beat, &diag), GR_OK);
        }
    }
    return !asked;
}

/* Server 2 is a new one as well, comes when server 0 has a place already, and was not asked for it.
 * It tells its clients nothing before it knows where server 0 is. */
static void new_server_tells_all_where_it_is_also_who_was_not_asked(void **state)
{
    (void)state;
    enum { INCARNATION = 7 };
    uint8_t payload[GR_PS_SMALL_MAX];
    char others[2 * GR_ADDRESS_BYTES];
    real r;
    scripted one, two;
    gr_ps_table table;
    gr_ps_membership membership;
    scripted_open(&one, 1, 0);
    scripted_open(&two, 2, 0);
    gr_ps_table_init(&table, SERVERS_MAX);
    assert_true(gr_ps_table_lose(&table, 2));
    assert_true(gr_ps_table_lose(&table, 0));
    gr_ps_membership_init(&membership, 1, &table);
    snprintf(others, sizeof others, "tcp:127.0.0.1:1,%s,tcp:127.0.0.1:1",
             gr_mesh_address(one.mesh));
    real_start(&r, others);
    scripted_accept(&one);
    scripted_send_hello(&one, 1, 0);
    scripted_send_table(&one, &table);
    scripted_send_view(&one, &membership, 1);
    gr_frame place = scripted_read(&one, GR_PS_PEER, payload);
    assert_true(gr_ps_table_add(&table, 2, INCARNATION));
    assert_true(gr_ps_table_add(&table, 0, place.fingerprint));
    gr_ps_membership_init(&membership, 1, &table);
    scripted_send_table(&one, &table);
    scripted_await_view(&one, table.epoch);
    scripted_connect(&two, &r);
    scripted_send_hello(&two, 2, INCARNATION);
    scripted_send_view(&two, &membership, 1);
    assert_false(scripted_await_echo(&two, 1)); /* it has told before that */

    real_stop(&r);
    gr_mesh_destroy(one.mesh);
    gr_mesh_destroy(two.mesh);
}

/* Server 0 was started with the address of the server 2 before, and keeps it while it has no place:
 * that is no news for a client. */
static void new_server_tells_no_client_where_another_one_was_before(void **state)
{
    (void)state;
    enum { INCARNATION = 7 };
    uint8_t payload[GR_PS_SMALL_MAX];
    char others[2 * GR_ADDRESS_BYTES];
    real r;
    scripted one, two, c;
    gr_ps_table table;
    gr_ps_membership membership;
    scripted_open(&one, 1, 0);
    scripted_open(&two, 2, 0);
    scripted_open(&c, CLIENT, 0);
    gr_ps_table_init(&table, SERVERS_MAX);
    assert_true(gr_ps_table_lose(&table, 2));
    assert_true(gr_ps_table_lose(&table, 0));
    gr_ps_membership_init(&membership, 1, &table);
    snprintf(others, sizeof others, "tcp:127.0.0.1:1,%s,tcp:127.0.0.1:1",
             gr_mesh_address(one.mesh));
    real_start(&r, others);
    scripted_accept(&one);
    scripted_send_hello(&one, 1, 0);
    scripted_connect(&two, &r);
    scripted_send_hello(&two, 2, INCARNATION);
    (void)scripted_take(&two, GR_PS_VIEW);
    scripted_send_table(&one, &table);
    scripted_send_view(&one, &membership, 1);
    gr_frame place = scripted_read(&one, GR_PS_PEER, payload);

    assert_true(gr_ps_table_add(&table, 2, INCARNATION));
    assert_true(gr_ps_table_add(&table, 0, place.fingerprint));
    gr_ps_membership_init(&membership, 1, &table);
    scripted_connect(&c, &r);
    scripted_send_hello(&c, 0, 0);
    scripted_send_table(&one, &table);
    scripted_await_view(&one, table.epoch);
    scripted_send_view(&one, &membership, 2);
    assert_true(scripted_await_echo(&one, 2));
    scripted_send_place(&two, 2, INCARNATION, gr_mesh_address(two.mesh));
    place = scripted_read(&c, GR_PS_PEER, payload);
    assert_int_equal(place.segment, 0); /* once, and not as long as the other one is not known */
    place = scripted_read(&c, GR_PS_PEER, payload);
    assert_int_equal(place.segment, 2);
    assert_string_equal((const char *)payload, gr_mesh_address(two.mesh));
    (void)scripted_take(&c, GR_PS_TABLE);

    real_stop(&r);
    gr_mesh_destroy(one.mesh);
    gr_mesh_destroy(two.mesh);
    gr_mesh_destroy(c.mesh);
}

/* Server 2 greets a process in place of server 0, but does not know yet that server 0 is lost, and
 * sends it away. Had that asked server 1 for its place, it would get it, and give up server 2. */
static void new_server_asks_for_its_place_once_all_have_taken_it(void **state)
{
    (void)state;
    uint8_t payload[GR_PS_SMALL_MAX];
    char others[3 * GR_ADDRESS_BYTES];
    real r;
    scripted one, two;
    gr_ps_table table;
    gr_ps_membership membership;
    scripted_open(&one, 1, 0);
    scripted_open(&two, 2, 0);
    gr_ps_table_init(&table, SERVERS_MAX);
    assert_true(gr_ps_table_lose(&table, 0));
    gr_ps_membership_init(&membership, 1, &table);
    snprintf(others, sizeof others, "tcp:127.0.0.1:1,%s,%s", gr_mesh_address(one.mesh),
             gr_mesh_address(two.mesh));
    real_start(&r, others);
    scripted_accept(&one);
    scripted_send_hello(&one, 1, 0);
    scripted_send_table(&one, &table);
    scripted_send_view(&one, &membership, 1);
    assert_true(scripted_await_echo(&one, 1));

    scripted_accept(&two);
    scripted_send_hello(&two, 2, 0);
    (void)scripted_take(&two, GR_PS_VIEW); /* so it has heard the greeting */
    scripted_send_view(&one, &membership, 2);
    assert_true(scripted_await_echo(&one, 2));
    gr_link_close(two.link, GR_E_AGAIN, "server 0 is not known to be lost");
    while (!two.ended) {
        scripted_wait(&two);
    }
    gr_mesh_remove(two.mesh, 0);
    two.link = NULL;
    scripted_accept(&two);
    scripted_send_hello(&two, 2, 0);
    scripted_send_view(&two, &membership, 1);
    (void)scripted_read(&two, GR_PS_PEER, payload);
    assert_string_equal((const char *)payload, gr_ps_server_address(r.server));
    (void)scripted_take(&one, GR_PS_PEER);

    real_stop(&r);
    gr_mesh_destroy(one.mesh);
    gr_mesh_destroy(two.mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_told_of_a_new_server_gives_up_the_old_address),
        cmocka_unit_test(client_told_of_two_new_servers_connects_to_that_of_the_newest_table),
        cmocka_unit_test(client_reaching_a_server_that_the_table_has_lost_does_without_it),
        cmocka_unit_test(client_reaching_the_new_server_by_its_name_stays_there),
        cmocka_unit_test(server_tells_where_a_new_one_is_once_that_has_said_so),
        cmocka_unit_test(server_hands_a_table_on_before_it_knows_where_its_new_server_is),
        cmocka_unit_test(new_server_asks_for_its_place_once_all_have_taken_it),
        cmocka_unit_test(new_server_tells_all_where_it_is_also_who_was_not_asked),
        cmocka_unit_test(new_server_tells_no_client_where_another_one_was_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
