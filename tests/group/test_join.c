/* SPDX-License-Identifier: Apache-2.0 */

/* Ranks meet at a coordinator, each in a process of its own. The parent is the launcher. */

#include "base/arena.h"
#include "base/fork.h"
#include "base/hash.h"
#include "group/group.h"
#include "group/message.h"
#include "link/acceptor.h"
#include "link/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 8, PATIENCE_US = 60000000, TEXT_BYTES = 600 };

static const uint8_t secret[GR_SECRET_BYTES] = {42, 1, 2, 3};

static int64_t now_us(void)
{
    return gr_now_ns() / 1000;
}

/* What a worker reports: status, rank that the failure is about, time that the join took,
 * sentence. */
typedef struct report {
    int32_t status, peer_rank;
    int64_t took_us;
    int host, host_count, local_rank;
    char kinds[RANKS_MAX + 1]; /* of the links: s, t, or - for itself */
    char host_name[GR_HOST_NAME_BYTES];
    char text[TEXT_BYTES];
} report;

typedef struct worker {
    pid_t pid;
    int fd; /* reports come here */
} worker;

typedef struct order {
    int rank, world_size;
    int members_min; /* 0: all */
    int link;
    int64_t timeout_us;
    const char *secret_hex; /* NULL: the right one */
    bool die_in_group;      /* instead of leaving */
    const char *host;       /* NULL: all are on one, and the launcher says so */
    const char *interfaces, *ports;
} order;

static void look_around(gr_group *group, report *r)
{
    const gr_topology *topology = gr_group_topology(group);
    int rank = gr_group_rank(group);
    r->host = topology->host_of[rank];
    r->host_count = topology->host_count;
    r->local_rank = topology->local_rank[rank];
    snprintf(r->host_name, sizeof r->host_name, "%s", gr_group_host_name(group, rank));
    for (int peer = 0; peer < gr_group_size(group) && gr_group_mesh(group) != NULL; peer++) {
        gr_link *link = gr_mesh_link(gr_group_mesh(group), peer);
        r->kinds[peer] = link == NULL ? '-' : gr_link_capabilities(link)->one_sided ? 's' : 't';
    }
}

static void work(const gr_coordinator *coordinator, const order *o, int fd)
{
    char hex[2 * GR_SECRET_BYTES + 1];
    gr_hex(secret, sizeof secret, hex);
    gr_group_config config = {.rank = o->rank,
                              .world_size = o->world_size,
                              .members_min = o->members_min,
                              .local_rank = o->host == NULL ? o->rank : 0,
                              .local_size = o->host == NULL ? o->world_size : 0,
                              .host = o->host,
                              .interfaces = o->interfaces,
                              .ports = o->ports,
                              .coordinator = gr_coordinator_address(coordinator),
                              .secret_hex = o->secret_hex != NULL ? o->secret_hex : hex,
                              .link = o->link,
                              .join_timeout_us = o->timeout_us,
                              .spin_us = 50};
    gr_group *group = NULL;
    gr_diag diag = {.peer_rank = -1};
    report r = {0};
    int64_t start = now_us();
    gr_status status = gr_group_join(&config, NULL, &group, &diag);
    r.took_us = now_us() - start;
    r.status = status;
    r.peer_rank = diag.peer_rank;
    snprintf(r.text, sizeof r.text, "%s", diag.text);
    if (status == GR_OK && (gr_group_rank(group) != o->rank || gr_group_generation(group) != 1 ||
                            gr_group_size(group) != o->world_size ||
                            (gr_group_mesh(group) == NULL) != (o->world_size == 1))) {
        r.status = GR_E_BUG;
    }
    for (int peer = 0; status == GR_OK && peer < o->world_size; peer++) {
        if (peer != o->rank && gr_mesh_link(gr_group_mesh(group), peer) == NULL) {
            r.status = GR_E_BUG;
        }
    }
    if (r.status == GR_OK) {
        look_around(group, &r);
    }
    ssize_t put = write(fd, &r, sizeof r);
    char go;
    /* Stay until the parent has seen all reports. */
    ssize_t got = read(fd, &go, 1);
    if (put == sizeof r && got >= 0 && !o->die_in_group) {
        gr_group_leave(group);
    }
    _exit(0);
}

static worker start(const gr_coordinator *coordinator, const order *o)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* What it inherited would keep the others' connections open. */
        (void)close_range(3, (unsigned)fds[1] - 1, 0);
        (void)close_range((unsigned)fds[1] + 1, ~0U, 0);
        work(coordinator, o, fds[1]);
    }
    close(fds[1]);
    return (worker){.pid = pid, .fd = fds[0]};
}

static void turn(gr_coordinator *coordinator)
{
    gr_diag diag = {0};
    struct pollfd at = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
    (void)poll(&at, 1, 2);
    if (gr_coordinator_progress(coordinator, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

static report await(gr_coordinator *coordinator, const worker *w)
{
    report r;
    for (int64_t end = now_us() + PATIENCE_US;;) {
        assert_true(now_us() < end);
        turn(coordinator);
        ssize_t got = recv(w->fd, &r, sizeof r, MSG_DONTWAIT);
        if (got == (ssize_t)sizeof r) {
            return r;
        }
        assert_true(got != 0);
    }
}

static void finish(const worker *w)
{
    int status;
    close(w->fd);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
}

static gr_coordinator *open_coordinator(int world_size, const char *host)
{
    gr_coordinator_config config = {
        .world_size = world_size, .secret = secret, .listen_host = host};
    gr_coordinator *coordinator = NULL;
    gr_diag diag = {0};
    if (gr_coordinator_create(&config, &coordinator, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return coordinator;
}

static void await_state(gr_coordinator *coordinator, int rank, int state)
{
    for (int64_t end = now_us() + PATIENCE_US;
         gr_coordinator_member_state(coordinator, rank) != state;) {
        assert_true(now_us() < end);
        turn(coordinator);
    }
}

static void join_all(int world_size, int link, const char *host)
{
    gr_coordinator *coordinator = open_coordinator(world_size, host);
    worker workers[RANKS_MAX];
    for (int rank = 0; rank < world_size; rank++) {
        order o = {.rank = rank,
                   .world_size = world_size,
                   .link = link,
                   .timeout_us = PATIENCE_US,
                   .die_in_group = rank == 1};
        assert_int_equal(gr_coordinator_member_state(coordinator, rank), 0);
        workers[rank] = start(coordinator, &o);
    }
    int64_t slowest = 0;
    for (int rank = 0; rank < world_size; rank++) {
        report r = await(coordinator, &workers[rank]);
        if (r.status != GR_OK) {
            fail_msg("rank %d of %d: %s", rank, world_size, r.text);
        }
        slowest = r.took_us > slowest ? r.took_us : slowest;
    }
    assert_int_equal(gr_coordinator_joined(coordinator), world_size);
    print_message("%d ranks, %s, %s: the slowest join took %lld us\n", world_size,
                  link == 2 ? "tcp" : "shm", host != NULL ? host : "unix", (long long)slowest);
    for (int rank = 0; rank < world_size; rank++) {
        assert_int_equal(gr_coordinator_member_state(coordinator, rank), 1);
        finish(&workers[rank]);
        await_state(coordinator, rank, rank == 1 ? 3 : 2);
    }
    gr_coordinator_destroy(coordinator);
}

static void test_join(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 4, 8};
    for (size_t i = 0; i < 4; i++) {
        join_all(sizes[i], 1, NULL);
        join_all(sizes[i], 2, NULL);
        join_all(sizes[i], 0, "127.0.0.1");
    }
}

static void test_missing_ranks_are_named(void **state)
{
    (void)state;
    gr_coordinator *coordinator = open_coordinator(4, NULL);
    worker workers[2];
    for (int i = 0; i < 2; i++) {
        order o = {.rank = 2 * i, .world_size = 4, .timeout_us = 2000000};
        workers[i] = start(coordinator, &o);
    }
    for (int i = 0; i < 2; i++) { /* the second by the first's sentence, perhaps */
        report r = await(coordinator, &workers[i]);
        assert_int_equal(r.status, GR_E_TIMEOUT);
        assert_int_equal(r.peer_rank, 1);
        assert_non_null(strstr(r.text, "ranks 1, 3 did not come within 2 s"));
        finish(&workers[i]);
    }
    gr_coordinator_destroy(coordinator);
}

static void test_death_ends_the_join_of_all(void **state)
{
    (void)state;
    gr_coordinator *coordinator = open_coordinator(3, NULL);
    worker workers[2];
    for (int rank = 0; rank < 2; rank++) {
        order o = {.rank = rank, .world_size = 3, .timeout_us = PATIENCE_US};
        workers[rank] = start(coordinator, &o);
        await_state(coordinator, rank, 1);
    }
    assert_int_equal(kill(workers[0].pid, SIGKILL), 0);
    report r = await(coordinator, &workers[1]);
    assert_int_equal(r.status, GR_E_PEER_LOST);
    assert_int_equal(r.peer_rank, 0);
    assert_non_null(strstr(r.text, "rank 0 (process "));
    assert_int_equal(gr_coordinator_member_state(coordinator, 0), 3);
    /* Whoever comes later is told as well. */
    order o = {.rank = 2, .world_size = 3, .timeout_us = PATIENCE_US};
    worker late = start(coordinator, &o);
    r = await(coordinator, &late);
    assert_int_equal(r.status, GR_E_PEER_LOST);
    assert_int_equal(r.peer_rank, 0);
    finish(&workers[0]);
    finish(&workers[1]);
    finish(&late);
    gr_coordinator_destroy(coordinator);
}

static void test_same_rank_twice(void **state)
{
    (void)state;
    gr_coordinator *coordinator = open_coordinator(2, NULL);
    order o = {.rank = 0, .world_size = 2, .timeout_us = PATIENCE_US};
    worker first = start(coordinator, &o);
    await_state(coordinator, 0, 1);
    worker second = start(coordinator, &o);
    report r = await(coordinator, &second);
    assert_int_equal(r.status, GR_E_INVALID);
    assert_non_null(strstr(r.text, "rank 0 has called in already"));
    o.rank = 1;
    worker other = start(coordinator, &o);
    assert_int_equal(await(coordinator, &first).status, GR_OK);
    assert_int_equal(await(coordinator, &other).status, GR_OK);
    finish(&first);
    finish(&second);
    finish(&other);
    gr_coordinator_destroy(coordinator);
}

static void expect_refused(const order *o, int world_size, gr_status status, const char *word)
{
    gr_coordinator *coordinator = open_coordinator(world_size, NULL);
    worker w = start(coordinator, o);
    report r = await(coordinator, &w);
    assert_int_equal(r.status, status);
    if (strstr(r.text, word) == NULL) {
        fail_msg("\"%s\" is not in: %s", word, r.text);
    }
    finish(&w);
    gr_coordinator_destroy(coordinator);
}

/* A link of its own for each: that is no loss of a member, so nobody tries again. */
static void elastic_join_with_different_links_says_so_to_all(void **state)
{
    (void)state;
    gr_coordinator_config config = {.world_size = 2, .members_min = 1, .secret = secret};
    gr_coordinator *coordinator = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_coordinator_create(&config, &coordinator, &diag), GR_OK);
    worker workers[2];
    for (int rank = 0; rank < 2; rank++) {
        order o = {.rank = rank,
                   .world_size = 2,
                   .members_min = 1,
                   .link = 1 + rank,
                   .timeout_us = PATIENCE_US};
        workers[rank] = start(coordinator, &o);
    }
    for (int rank = 0; rank < 2; rank++) {
        report r = await(coordinator, &workers[rank]);
        assert_int_equal(r.status, GR_E_INVALID);
        assert_non_null(strstr(r.text, "set GRADUS_LINK alike for all"));
        finish(&workers[rank]);
    }
    gr_coordinator_destroy(coordinator);
}

static void join_without_an_end_to_its_time_comes_about(void **state)
{
    (void)state;
    for (int link = 1; link <= 2; link++) {
        gr_coordinator *coordinator = open_coordinator(2, NULL);
        worker workers[2];
        for (int rank = 0; rank < 2; rank++) {
            order o = {.rank = rank, .world_size = 2, .link = link, .timeout_us = INT64_MAX};
            workers[rank] = start(coordinator, &o);
        }
        for (int rank = 0; rank < 2; rank++) {
            report r = await(coordinator, &workers[rank]);
            if (r.status != GR_OK) {
                fail_msg("rank %d: %s", rank, r.text);
            }
        }
        for (int rank = 0; rank < 2; rank++) {
            finish(&workers[rank]);
        }
        gr_coordinator_destroy(coordinator);
    }
}

static void test_wrong_settings(void **state)
{
    (void)state;
    order o = {.rank = 0, .world_size = 2, .timeout_us = PATIENCE_US};
    o.secret_hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    expect_refused(&o, 2, GR_E_AUTH, "GRADUS_SECRET");
    o.secret_hex = "beef";
    expect_refused(&o, 2, GR_E_INVALID, "GRADUS_SECRET must be 64");
    o.secret_hex = NULL;
    expect_refused(&o, 3, GR_E_INVALID, "GRADUS_WORLD_SIZE");
    o.rank = 2;
    expect_refused(&o, 2, GR_E_INVALID, "GRADUS_RANK");
}

typedef struct place {
    const char *host;
    const char *kinds; /* what its links must be */
    int host_at, local_rank;
} place;

static void join_hosts(int world_size, const place *places, int link)
{
    gr_coordinator *coordinator = open_coordinator(world_size, NULL);
    worker workers[RANKS_MAX];
    for (int rank = 0; rank < world_size; rank++) {
        order o = {.rank = rank,
                   .world_size = world_size,
                   .link = link,
                   .timeout_us = PATIENCE_US,
                   .host = places[rank].host};
        workers[rank] = start(coordinator, &o);
    }
    for (int rank = 0; rank < world_size; rank++) {
        report r = await(coordinator, &workers[rank]);
        if (r.status != GR_OK) {
            fail_msg("rank %d of %d: %s", rank, world_size, r.text);
        }
        assert_string_equal(r.kinds, places[rank].kinds);
        assert_string_equal(r.host_name, places[rank].host);
        assert_int_equal(r.host, places[rank].host_at);
        assert_int_equal(r.local_rank, places[rank].local_rank);
    }
    for (int rank = 0; rank < world_size; rank++) {
        finish(&workers[rank]);
    }
    gr_coordinator_destroy(coordinator);
}

static void test_hosts(void **state)
{
    (void)state;
    static const place mixed[] = {
        {"a", "-tst", 0, 0}, {"b", "t-tt", 1, 0}, {"a", "st-t", 0, 1}, {"c", "ttt-", 2, 0}};
    static const place one[] = {{"a", "-s", 0, 0}, {"a", "s-", 0, 1}};
    static const place forced[] = {{"a", "-tt", 0, 0}, {"a", "t-t", 0, 1}, {"b", "tt-", 1, 0}};
    join_hosts(4, mixed, 0);
    join_hosts(2, one, 0);
    join_hosts(3, forced, 2);
}

/* Memory between hosts is refused on every rank, with both names. */
static void test_shm_between_hosts(void **state)
{
    (void)state;
    gr_coordinator *coordinator = open_coordinator(2, NULL);
    worker workers[2];
    for (int rank = 0; rank < 2; rank++) {
        order o = {.rank = rank,
                   .world_size = 2,
                   .link = 1,
                   .timeout_us = PATIENCE_US,
                   .host = rank == 0 ? "here" : "there"};
        workers[rank] = start(coordinator, &o);
    }
    for (int rank = 0; rank < 2; rank++) {
        report r = await(coordinator, &workers[rank]);
        assert_int_equal(r.status, GR_E_INVALID);
        assert_non_null(strstr(r.text, "rank 0 is on host here and rank 1 on host there"));
        finish(&workers[rank]);
    }
    gr_coordinator_destroy(coordinator);
}

/* One range of ports for all: exactly as many ranks as there are ports can listen. */
static void test_ports(void **state)
{
    (void)state;
    int fd;
    char address[GR_ADDRESS_BYTES], ports[32];
    /* A port that was free just now, and held, so that the second rank finds none. */
    assert_int_equal(gr_address_listen("127.0.0.1", (gr_ports){0, 0}, address, &fd, NULL), GR_OK);
    snprintf(ports, sizeof ports, "%s", strrchr(address, ':') + 1);
    order o = {.rank = 0, .world_size = 2, .link = 2, .timeout_us = PATIENCE_US, .ports = ports};
    expect_refused(&o, 2, GR_E_IO, "GRADUS_PORTS");
    gr_fork_close(fd);
    o.ports = "70000";
    expect_refused(&o, 2, GR_E_INVALID, "40000-40100");
    o.ports = "50-40";
    expect_refused(&o, 2, GR_E_INVALID, "40000-40100");
    o.ports = NULL;
    o.interfaces = "nosuch0";
    expect_refused(&o, 2, GR_E_INVALID, "it has ");
    o.interfaces = "10.0.0.0/99";
    expect_refused(&o, 2, GR_E_INVALID, "is not a subnet");
}

/* Garbage, silence and floods on the coordinator's port while the ranks join. */
static void test_garbage_disturbs_nobody(void **state)
{
    (void)state;
    enum { CONNECTIONS = 400 };
    for (int tcp = 0; tcp < 2; tcp++) {
        gr_coordinator *coordinator = open_coordinator(2, tcp ? "127.0.0.1" : NULL);
        int fds[CONNECTIONS];
        for (int i = 0; i < CONNECTIONS; i++) {
            fds[i] = -1;
            gr_status status =
                gr_address_connect(gr_coordinator_address(coordinator), &fds[i], NULL);
            if (status >= 0 && i % 3 == 0) {
                ssize_t sent = send(fds[i], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
                assert_true(sent <= 18);
            }
            if (i % 10 == 0) {
                turn(coordinator);
            }
        }
        worker workers[2];
        for (int rank = 0; rank < 2; rank++) {
            order o = {.rank = rank, .world_size = 2, .timeout_us = PATIENCE_US};
            workers[rank] = start(coordinator, &o);
        }
        for (int rank = 0; rank < 2; rank++) {
            report r = await(coordinator, &workers[rank]);
            if (r.status != GR_OK) {
                fail_msg("rank %d: %s", rank, r.text);
            }
            finish(&workers[rank]);
        }
        for (int i = 0; i < CONNECTIONS; i++) {
            if (fds[i] >= 0) {
                gr_fork_close(fds[i]);
            }
        }
        gr_coordinator_destroy(coordinator);
    }
}

static void test_alone(void **state)
{
    (void)state;
    gr_arena arena;
    gr_group_config config;
    char *environment[] = {NULL};
    gr_group *group = NULL;
    gr_arena_init(&arena, 65536);
    assert_int_equal(gr_config_defaults(&gr_group_config_table, &config, &arena, NULL), GR_OK);
    assert_int_equal(gr_config_from_env(&gr_group_config_table, &config, environment, &arena, NULL),
                     GR_OK);
    assert_int_equal(config.rank, -1);
    assert_int_equal(config.spin_us, 50);
    assert_true(config.exact);
    assert_int_equal(gr_group_join(&config, NULL, &group, NULL), GR_OK);
    assert_int_equal(gr_group_rank(group), 0);
    assert_int_equal(gr_group_size(group), 1);
    assert_null(gr_group_mesh(group));
    gr_group_leave(group);
    gr_group_leave(NULL);
    /* Half an environment is a mistake, not a group of one. */
    char *half[] = {"GRADUS_RANK=0", "GRADUS_WORLD_SIZE=2", NULL};
    gr_diag diag = {0};
    assert_int_equal(gr_config_from_env(&gr_group_config_table, &config, half, &arena, NULL),
                     GR_OK);
    assert_int_equal(gr_group_join(&config, NULL, &group, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "GRADUS_COORDINATOR is not"));
    gr_arena_fini(&arena);
}

/* Connects as the member `rank`, with the secret. */
static int call_as(gr_coordinator *coordinator, int rank)
{
    gr_diag diag;
    gr_accepted arrival;
    gr_acceptor *acceptor = NULL;
    const gr_acceptor_config config = {.rank = rank,
                                       .secret = secret,
                                       .half_open_max = 1,
                                       .outgoing_max = 1,
                                       .timeout_us = PATIENCE_US,
                                       .clock = gr_clock_real()};
    assert_int_equal(gr_acceptor_create(&config, &acceptor, &diag), GR_OK);
    assert_int_equal(gr_acceptor_connect(acceptor, GR_AUTH_RANK_COORDINATOR,
                                         (gr_auth_rail){.count = 1},
                                         gr_coordinator_address(coordinator), &diag),
                     GR_OK);
    while (!gr_acceptor_accept(acceptor, &arrival)) {
        assert_int_equal(gr_acceptor_progress(acceptor, &diag), GR_OK);
        turn(coordinator);
    }
    gr_acceptor_destroy(acceptor);
    return arrival.fd;
}

static int call_in_as(gr_coordinator *coordinator, int rank, int world_size)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    const gr_hello hello = {.world_size = (uint32_t)world_size, .pid = 1, .generation = 1};
    int fd = call_as(coordinator, rank);
    size_t size = gr_message_put_hello(&hello, message);
    assert_int_equal(send(fd, message, size, MSG_NOSIGNAL), (ssize_t)size);
    await_state(coordinator, rank, 1);
    return fd;
}

/* A member that floods the coordinator is lost to it, and the others hear why. */
static void flood_of_a_member_ends_that_member(void **state)
{
    (void)state;
    enum { PINGS = 80, SENDS_MAX = 200000, WORLD = 3 };
    uint8_t pings[PINGS * GR_MESSAGE_HEAD_BYTES], in[GR_MESSAGE_SMALL_MAX];
    gr_coordinator *coordinator = open_coordinator(WORLD, NULL); /* rank 2 never comes */
    int flooder = call_in_as(coordinator, 0, WORLD), other = call_in_as(coordinator, 1, WORLD);
    size_t size = 0, at = 0;
    while (size < sizeof pings) {
        size += gr_message_put_empty(GR_MESSAGE_PING, pings + size);
    }
    ssize_t put = 0;
    for (int i = 0; i < SENDS_MAX && (put >= 0 || errno == EAGAIN); i++) {
        put = send(flooder, pings + at, size - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        at = put > 0 ? (at + (size_t)put) % size : at;
        gr_status status = gr_coordinator_progress(coordinator, NULL);
        assert_int_equal(status, GR_OK);
    }
    assert_true(put < 0 && (errno == EPIPE || errno == ECONNRESET));
    assert_int_equal(gr_coordinator_member_state(coordinator, 0), 3);
    ssize_t got = recv(other, in, sizeof in, 0);
    gr_message_kind kind;
    const uint8_t *body;
    size_t body_bytes;
    gr_diag failure;
    assert_true(got > 0);
    assert_int_equal(gr_message_get(in, (size_t)got, &kind, &body, &body_bytes, NULL), GR_OK);
    assert_int_equal(kind, GR_MESSAGE_FAIL);
    assert_int_equal(gr_message_get_fail(body, body_bytes, &failure, NULL), GR_OK);
    assert_int_equal(failure.peer_rank, 0);
    assert_non_null(strstr(failure.text, "more messages than a rank has to"));
    gr_fork_close(flooder);
    gr_fork_close(other);
    gr_coordinator_destroy(coordinator);
}

/* Reads messages until one of this kind comes. */
static void read_until(gr_coordinator *coordinator, int fd, gr_message_kind wanted,
                       gr_assignment *assignment_out)
{
    static uint8_t in[4 * GR_MESSAGE_SMALL_MAX];
    static size_t have;
    for (int64_t end = now_us() + PATIENCE_US; now_us() < end;) {
        gr_message_kind kind = GR_MESSAGE_KIND_END;
        const uint8_t *body;
        size_t body_bytes, size = 0;
        while (have >= GR_MESSAGE_HEAD_BYTES) {
            size = GR_MESSAGE_HEAD_BYTES + (size_t)in[8] + ((size_t)in[9] << 8);
            if (have < size) {
                break;
            }
            assert_int_equal(gr_message_get(in, size, &kind, &body, &body_bytes, NULL), GR_OK);
            if (kind == GR_MESSAGE_ASSIGN) {
                assert_int_equal(gr_message_get_assignment(body, body_bytes, assignment_out, NULL),
                                 GR_OK);
            }
            have -= size;
            memmove(in, in + size, have);
            if (kind == wanted) {
                return;
            }
        }
        turn(coordinator);
        ssize_t got = recv(fd, in + have, sizeof in - have, MSG_DONTWAIT);
        assert_true(got > 0 || (got < 0 && errno == EAGAIN));
        have += got > 0 ? (size_t)got : 0;
    }
    fail_msg("no message %d", (int)wanted);
}

static void put(int fd, const uint8_t *message, size_t size)
{
    assert_int_equal(send(fd, message, size, MSG_NOSIGNAL), (ssize_t)size);
}

/* A program that renews until others have come sends few messages of each generation, but many a
 * second. */
static void test_renewing_again_and_again_is_no_flood(void **state)
{
    (void)state;
    enum { TIMES = 2000 };
    const gr_coordinator_config config = {.world_size = 2, .members_min = 1, .secret = secret};
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_assignment assignment = {.generation = 1};
    gr_coordinator *coordinator = NULL;
    assert_int_equal(gr_coordinator_create(&config, &coordinator, NULL), GR_OK);
    int fd = call_in_as(coordinator, 0, 2), other = call_in_as(coordinator, 1, 2);
    read_until(coordinator, fd, GR_MESSAGE_MEMBERS, &assignment);
    put(fd, message, gr_message_put_ready(assignment.generation, message));
    put(other, message, gr_message_put_ready(assignment.generation, message));
    gr_fork_close(other); /* from now on rank 0 is alone */
    for (int i = 0; i < TIMES; i++) {
        put(fd, message, gr_message_put_empty(GR_MESSAGE_RENEW, message));
        read_until(coordinator, fd, GR_MESSAGE_ASSIGN, &assignment);
        const gr_hello hello = {
            .world_size = assignment.world_size, .pid = 1, .generation = assignment.generation};
        put(fd, message, gr_message_put_hello(&hello, message));
        read_until(coordinator, fd, GR_MESSAGE_MEMBERS, &assignment);
        put(fd, message, gr_message_put_ready(assignment.generation, message));
    }
    gr_fork_close(fd);
    gr_coordinator_destroy(coordinator);
}

/* A member that takes over hears from others who the members were. */
static void test_numbers_that_nobody_has(void **state)
{
    (void)state;
    gr_diag diag;
    const gr_coordinator_config config = {.world_size = 2, .members_min = 1, .secret = secret};
    gr_coordinator *coordinator = NULL;
    assert_int_equal(gr_coordinator_create(&config, &coordinator, &diag), GR_OK);
    gr_coordinator_member_ended(coordinator, 2);
    gr_coordinator_member_ended(coordinator, GR_GROUP_WORLD_MAX - 1);
    gr_coordinator_member_ended(coordinator, -1);
    assert_int_equal(gr_coordinator_member_state(coordinator, 0), 0);
    gr_coordinator_destroy(coordinator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_death_ends_the_join_of_all),
        cmocka_unit_test(test_same_rank_twice),
        cmocka_unit_test(elastic_join_with_different_links_says_so_to_all),
        cmocka_unit_test(join_without_an_end_to_its_time_comes_about),
        cmocka_unit_test(test_wrong_settings),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_shm_between_hosts),
        cmocka_unit_test(test_ports),
        cmocka_unit_test(flood_of_a_member_ends_that_member),
        cmocka_unit_test(test_renewing_again_and_again_is_no_flood),
        cmocka_unit_test(test_numbers_that_nobody_has),
        cmocka_unit_test(test_garbage_disturbs_nobody),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
