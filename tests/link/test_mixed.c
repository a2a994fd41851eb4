/* SPDX-License-Identifier: Apache-2.0 */

/* One mesh with links of both kinds: memory to a peer on the host, sockets to one elsewhere. */

#include "base/fork.h"
#include "link/address.h"
#include "link/mesh.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NEAR = 1, FAR = 2, WORLD = 3, ROUNDS = 300, BIG = 3 << 20, SLEEP_US = 2 * PATIENCE_US };

static gr_mesh_config mixed_config(int rank)
{
    gr_mesh_config config = test_config(GR_LINK_SHM, rank, WORLD);
    config.mixed = true;
    return config;
}

/* Sends every message back; ends when the peer has left. */
static int echo(gr_mesh *mesh, gr_link *link)
{
    uint8_t *data = malloc(BIG);
    int64_t end_us = test_now_us() + PATIENCE_US;
    mesh->sleep_us = SLEEP_US;
    for (;;) {
        gr_frame frame;
        uint64_t ticket = 0;
        gr_status status = gr_link_peek(link, &frame);
        if (status == GR_OK) {
            while ((status = gr_link_read(link, data)) == GR_PENDING) {
                gr_mesh_wait(mesh, end_us);
                (void)!gr_mesh_progress(mesh, NULL);
            }
            gr_link_next(link, NULL);
            while (status == GR_OK && gr_link_send(link, &frame, data, &ticket) == GR_E_AGAIN) {
                status = gr_mesh_progress(mesh, NULL);
            }
            while (status == GR_OK && !gr_link_sent(link, ticket)) {
                gr_mesh_wait(mesh, end_us);
                status = gr_mesh_progress(mesh, NULL);
            }
        }
        if (status < 0 || test_now_us() > end_us) {
            free(data);
            return status < 0 ? 0 : 97;
        }
        gr_mesh_wait(mesh, end_us); /* in this order: what progress has seen ends no wait */
        (void)!gr_mesh_progress(mesh, NULL);
    }
}

static pid_t start(int rank, const char *address)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close_range(3, ~0U, 0);
    gr_mesh_config config = mixed_config(rank);
    gr_mesh *mesh = NULL;
    int result = 99;
    if (gr_mesh_create(&config, &mesh, NULL) == GR_OK &&
        gr_mesh_connect(mesh, 0, address, NULL) == GR_OK) {
        gr_link *link = await_link(mesh, 0);
        result = link != NULL ? echo(mesh, link) : 98;
    }
    gr_mesh_destroy(mesh);
    _exit(result);
}

typedef struct trio {
    gr_mesh *mesh;
    gr_link *link[WORLD];
    pid_t pid[WORLD];
} trio;

static void trio_open(trio *t)
{
    gr_mesh_config config = mixed_config(0);
    gr_diag diag = {0};
    if (gr_mesh_create(&config, &t->mesh, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    t->pid[NEAR] = start(NEAR, gr_mesh_address(t->mesh));
    t->pid[FAR] = start(FAR, gr_mesh_remote_address(t->mesh));
    for (int peer = NEAR; peer <= FAR; peer++) {
        t->link[peer] = await_link(t->mesh, peer);
        assert_non_null(t->link[peer]);
    }
}

/* One message there and back. */
static void round_trip(trio *t, int peer, const void *data, size_t size_bytes, void *back)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = (uint32_t)size_bytes}, head;
    uint64_t ticket;
    gr_status status = GR_PENDING;
    int64_t end_us = test_now_us() + PATIENCE_US;
    assert_int_equal(gr_link_send(t->link[peer], &frame, data, &ticket), GR_OK);
    while (status == GR_PENDING) {
        assert_true(test_now_us() < end_us);
        assert_int_equal(gr_mesh_progress(t->mesh, NULL), GR_OK);
        status = gr_link_peek(t->link[peer], &head);
        if (status == GR_OK) {
            status = gr_link_read(t->link[peer], back);
        }
        if (status == GR_PENDING) {
            gr_mesh_wait(t->mesh, end_us);
        }
    }
    assert_int_equal(status, GR_OK);
    assert_true(gr_link_sent(t->link[peer], ticket));
    gr_link_next(t->link[peer], NULL);
}

static void trio_close(trio *t)
{
    gr_mesh_destroy(t->mesh);
    for (int peer = NEAR; peer <= FAR; peer++) {
        assert_int_equal(helper_end(t->pid[peer]), 0);
    }
}

static void test_kinds(void **state)
{
    (void)state;
    trio t;
    trio_open(&t);
    assert_true(gr_link_capabilities(t.link[NEAR])->one_sided);
    assert_false(gr_link_capabilities(t.link[FAR])->one_sided);
    trio_close(&t);
}

/* Data of every size, from memory that can be shared and from other memory, over both. */
static void test_data(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 32, 33, 1024, 1025, 70000, BIG};
    trio t;
    void *shared;
    uint8_t *plain = malloc(BIG), *back = malloc(BIG);
    assert_true(plain != NULL && back != NULL);
    trio_open(&t);
    assert_int_equal(gr_mesh_alloc(t.mesh, BIG, &shared), GR_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int peer = NEAR; peer <= FAR; peer++) {
            memset(shared, (int)i + peer, BIG);
            memset(plain, (int)i + peer + 100, BIG);
            memset(back, 0, BIG);
            round_trip(&t, peer, shared, sizes[i], back);
            assert_memory_equal(back, shared, sizes[i]);
            round_trip(&t, peer, plain, sizes[i], back);
            assert_memory_equal(back, plain, sizes[i]);
        }
    }
    gr_mesh_free(t.mesh, shared);
    trio_close(&t);
    free(plain);
    free(back);
}

/* Whoever sleeps is woken by either kind: no sleep ends by itself in time. */
static void test_mixed_message_wakes_sleeper(void **state)
{
    (void)state;
    trio t;
    uint64_t data = 5, back = 0;
    trio_open(&t);
    t.mesh->sleep_us = SLEEP_US;
    for (int i = 0; i < ROUNDS; i++) {
        round_trip(&t, NEAR, &data, sizeof data, &back);
        round_trip(&t, FAR, &data, sizeof data, &back);
    }
    trio_close(&t);
}

static void test_deaths(void **state)
{
    (void)state;
    for (int victim = NEAR; victim <= FAR; victim++) {
        trio t;
        gr_diag diag = {0};
        gr_status status = GR_OK;
        trio_open(&t);
        int64_t end_us = test_now_us() + PATIENCE_US;
        kill(t.pid[victim], SIGKILL);
        while (status == GR_OK && test_now_us() < end_us) {
            status = gr_mesh_progress(t.mesh, &diag);
            gr_mesh_wait(t.mesh, end_us);
        }
        assert_int_equal(status, GR_E_PEER_LOST);
        assert_int_equal(diag.peer_rank, victim);
        gr_mesh_destroy(t.mesh);
        assert_int_equal(helper_end(t.pid[victim]), -SIGKILL);
        assert_int_equal(helper_end(t.pid[NEAR + FAR - victim]), 0);
    }
}

/* No more descriptors than a listener, two epolls, an eventfd, a memory file and one a peer. */
static void test_descriptors(void **state)
{
    (void)state;
    trio t;
    int before = open_fds();
    trio_open(&t);
    assert_true(open_fds() - before <= 5 + 2);
    trio_close(&t);
    assert_int_equal(open_fds(), before);
}

/* Garbage, silence, and a peer with another secret at both its doors: the links come up as ever. */
static void test_unauthenticated_peers(void **state)
{
    (void)state;
    enum { PEERS = 20 };
    static const char garbage[] = "GET / HTTP/1.0\r\n\r\n and more than any handshake has, "
                                  "so that it is seen to be garbage at once and not later on";
    static const uint8_t other_secret[GR_SECRET_BYTES] = {9};
    gr_mesh_config config = mixed_config(0), other = mixed_config(FAR);
    gr_mesh_stats stats = {0};
    gr_mesh *liar = NULL;
    trio t = {0};
    int fds[PEERS];
    gr_status status = GR_OK;
    gr_diag diag = {0};
    assert_int_equal(gr_mesh_create(&config, &t.mesh, NULL), GR_OK);
    for (int i = 0; i < PEERS; i++) {
        const char *acceptor =
            i % 2 == 0 ? gr_mesh_address(t.mesh) : gr_mesh_remote_address(t.mesh);
        assert_true(gr_address_connect(acceptor, &fds[i], NULL) >= 0);
    }
    other.secret = other_secret;
    assert_int_equal(gr_mesh_create(&other, &liar, NULL), GR_OK);
    assert_int_equal(gr_mesh_connect(liar, 0, gr_mesh_remote_address(t.mesh), NULL), GR_OK);
    for (int64_t end_us = test_now_us() + PATIENCE_US;
         (status == GR_OK || stats.unauthenticated_refused < PEERS / 2) &&
         test_now_us() < end_us;) {
        for (int i = 0; i < PEERS / 2; i++) { /* the others stay silent */
            (void)!send(fds[i], garbage, sizeof garbage, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        assert_int_equal(gr_mesh_progress(t.mesh, NULL), GR_OK);
        status = status == GR_OK ? gr_mesh_progress(liar, &diag) : status;
        gr_mesh_get_stats(t.mesh, &stats);
    }
    assert_int_equal(status, GR_E_AUTH);
    assert_true(stats.unauthenticated_refused >= PEERS / 2);
    gr_mesh_destroy(liar);
    t.pid[NEAR] = start(NEAR, gr_mesh_address(t.mesh));
    t.pid[FAR] = start(FAR, gr_mesh_remote_address(t.mesh));
    for (int peer = NEAR; peer <= FAR; peer++) {
        t.link[peer] = await_link(t.mesh, peer);
        assert_non_null(t.link[peer]);
    }
    for (int i = 0; i < PEERS; i++) {
        gr_fork_close(fds[i]);
    }
    trio_close(&t);
}

/* Several addresses: those that lead nowhere, to nobody or to another rank are passed over. */
static void test_addresses_that_lead_elsewhere(void **state)
{
    (void)state;
    gr_mesh *mesh[3] = {NULL, NULL, NULL};
    char addresses[3 * GR_ADDRESS_BYTES];
    for (int rank = 0; rank < 3; rank++) {
        gr_mesh_config config = mixed_config(rank);
        assert_int_equal(gr_mesh_create(&config, &mesh[rank], NULL), GR_OK);
    }
    snprintf(addresses, sizeof addresses, "tcp:127.0.0.1:1 unix:@gradus-nobody %s %s",
             gr_mesh_remote_address(mesh[1]), gr_mesh_remote_address(mesh[0]));
    assert_int_equal(gr_mesh_connect(mesh[2], 0, addresses, NULL), GR_OK);
    for (int64_t end_us = test_now_us() + PATIENCE_US; gr_mesh_link(mesh[2], 0) == NULL;) {
        assert_true(test_now_us() < end_us);
        for (int rank = 0; rank < 3; rank++) {
            gr_diag diag = {0};
            if (gr_mesh_progress(mesh[rank], &diag) != GR_OK) {
                fail_msg("rank %d: %s", rank, diag.text);
            }
        }
    }
    assert_false(gr_link_capabilities(gr_mesh_link(mesh[2], 0))->one_sided);
    assert_null(gr_mesh_link(mesh[2], 1));
    for (int rank = 0; rank < 3; rank++) {
        gr_mesh_destroy(mesh[rank]);
    }
}

static void test_config_refused(void **state)
{
    (void)state;
    gr_mesh_config config = test_config(GR_LINK_TCP, 0, 2);
    gr_mesh *mesh = NULL;
    config.mixed = true;
    assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_mixed_message_wakes_sleeper),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_unauthenticated_peers),
        cmocka_unit_test(test_addresses_that_lead_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
