/* SPDX-License-Identifier: Apache-2.0 */

/* What a client makes of a table of servers that comes while it connects. The servers are meshes of
 * this thread: the test decides what each of them says, and when. */

#include "ps/message.h"
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

/* ---- A server that says what the test says --------------------------------------------------- */

typedef struct scripted {
    gr_mesh *mesh;
    gr_link *link; /* to the client; NULL: not there */
    bool ended;
} scripted;

static void scripted_open(scripted *s, int number)
{
    gr_mesh_config config;
    gr_diag diag = {0};
    gr_mesh_config_init(&config);
    config.kind = GR_LINK_TCP;
    config.dynamic_peers = true;
    config.rank = number;
    config.world_size = GR_PS_PEERS_MAX;
    config.secret = test_secret;
    *s = (scripted){0};
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
        assert_int_equal(peer, CLIENT);
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

/* The ticket of the next message of this kind; those before it are passed over. */
static uint32_t scripted_take(scripted *s, gr_ps_kind kind)
{
    gr_frame frame = {0};
    for (scripted_accept(s); frame.comm != kind;) {
        gr_status status = gr_link_peek(s->link, &frame);
        if (status == GR_PENDING) {
            scripted_wait(s);
            continue;
        }
        assert_int_equal(status, GR_OK);
        gr_link_next(s->link, NULL);
    }
    return frame.op_seq;
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
        scripted_open(&server[i], i);
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
        scripted_open(&server[i], i);
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
        scripted_open(&server[i], i);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_told_of_a_new_server_gives_up_the_old_address),
        cmocka_unit_test(client_told_of_two_new_servers_connects_to_that_of_the_newest_table),
        cmocka_unit_test(client_reaching_a_server_that_the_table_has_lost_does_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
