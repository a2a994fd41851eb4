/* SPDX-License-Identifier: Apache-2.0 */

/* Meshes whose peers come, leave, die and come again. */

#include "link/mesh.h"
#include "sanitized.h"
#include "sim/net/sim.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORLD = 256,
    FIRST = 16,
    PEERS_MAX = 3, /* in this process, at a time */
    BIG = 3 << 20, /* on shm more than a stage, on tcp more than the kernel takes */
    COMINGS = THOROUGH(100),
    ALL_PEERS = THOROUGH(300),
    SHORT_US = 30000
};

/* The host is number 0; its peers are in this process unless a test starts them. */
typedef struct fixture {
    gr_link_kind kind;
    gr_mesh *host;
    gr_mesh *peer[PEERS_MAX];
    uint8_t *data, *back; /* BIG */
} fixture;

static gr_mesh_config peer_config(gr_link_kind kind, int number)
{
    return test_config((gr_link_kind)((int)kind | (int)WITH_DYNAMIC_PEERS), number, WORLD);
}

static void fixture_open(fixture *h, gr_link_kind kind, bool mixed)
{
    gr_mesh_config config = peer_config(kind, 0);
    gr_diag diag = {0};
    *h = (fixture){.kind = kind, .data = malloc(BIG), .back = malloc(BIG)};
    assert_true(h->data != NULL && h->back != NULL);
    for (size_t i = 0; i < BIG; i++) {
        h->data[i] = (uint8_t)(i * 7 + i / 4096);
    }
    config.mixed = mixed;
    if (gr_mesh_create(&config, &h->host, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

static void fixture_close(fixture *h)
{
    gr_mesh_destroy(h->host);
    for (int i = 0; i < PEERS_MAX; i++) {
        gr_mesh_destroy(h->peer[i]);
    }
    free(h->data);
    free(h->back);
}

/* Nobody's end is anybody's failure. */
static void pump(fixture *h)
{
    gr_diag diag = {0};
    if (gr_mesh_progress(h->host, &diag) != GR_OK) {
        fail_msg("the host: %s", diag.text);
    }
    for (int i = 0; i < PEERS_MAX; i++) {
        if (h->peer[i] != NULL && gr_mesh_progress(h->peer[i], &diag) != GR_OK) {
            fail_msg("peer %d: %s", i, diag.text);
        }
    }
}

/* Move all on until the host is told of a change: it is that. */
static gr_link *expect_change(fixture *h, int number, bool ended)
{
    int peer = -1;
    bool has_ended = false;
    for (int64_t end_us = test_now_us() + PATIENCE_US;
         !gr_mesh_next_change(h->host, &peer, &has_ended);) {
        assert_true(test_now_us() < end_us);
        pump(h);
        gr_mesh_wait(h->host, test_now_us() + 500);
    }
    assert_int_equal(peer, number);
    assert_int_equal(has_ended, ended);
    return gr_mesh_link(h->host, number);
}

/* A peer that may come, on its way. */
static void invite(fixture *h, int at, int number, const char *address)
{
    gr_mesh_config config = peer_config(h->kind, number);
    gr_diag diag = {0};
    config.mixed = gr_mesh_remote_address(h->host) != NULL && h->kind == GR_LINK_SHM;
    if (gr_mesh_create(&config, &h->peer[at], &diag) != GR_OK ||
        kind_connect(h->peer[at], h->kind, 0, address, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

/* Until its side is up as well; the host's link to it. */
static gr_link *welcome(fixture *h, int at, int number)
{
    gr_link *link = expect_change(h, number, false);
    for (int64_t end_us = test_now_us() + PATIENCE_US; gr_mesh_link(h->peer[at], 0) == NULL;) {
        assert_true(test_now_us() < end_us);
        pump(h);
    }
    assert_non_null(link);
    return link;
}

static gr_link *come(fixture *h, int at, int number)
{
    invite(h, at, number, gr_mesh_address(h->host));
    return welcome(h, at, number);
}

static void leave(fixture *h, int at)
{
    gr_mesh_destroy(h->peer[at]);
    h->peer[at] = NULL;
}

/* The sentence of the link's end, and then it is forgotten. */
static void see_off(fixture *h, int number, gr_status status, const char *words)
{
    gr_link *link = expect_change(h, number, true);
    assert_non_null(link);
    assert_int_equal(gr_link_diag(link)->status, status);
    assert_int_equal(gr_link_diag(link)->peer_rank, number);
    if (strstr(gr_link_diag(link)->text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, gr_link_diag(link)->text);
    }
    gr_mesh_remove(h->host, number);
    assert_null(gr_mesh_link(h->host, number));
}

static void carry(fixture *h, gr_link *from, gr_link *to, size_t size_bytes)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = (uint32_t)size_bytes};
    uint64_t ticket = 0;
    gr_status status;
    int64_t end_us = test_now_us() + PATIENCE_US;
    while ((status = gr_link_send(from, &frame, h->data, &ticket)) == GR_E_AGAIN) {
        assert_true(test_now_us() < end_us);
        pump(h);
    }
    assert_int_equal(status, GR_OK);
    while ((status = gr_link_peek(to, &frame)) == GR_PENDING ||
           (status == GR_OK && (status = gr_link_read(to, h->back)) == GR_PENDING)) {
        assert_true(test_now_us() < end_us);
        pump(h);
    }
    assert_int_equal(status, GR_OK);
    gr_link_next(to, NULL);
    assert_int_equal(frame.size_bytes, size_bytes);
    assert_memory_equal(h->back, h->data, size_bytes);
    while (!gr_link_sent(from, ticket)) {
        assert_true(test_now_us() < end_us);
        pump(h);
    }
}

/* Data of all kinds of places go both ways. */
static void talk(fixture *h, int at, gr_link *link)
{
    static const size_t sizes[] = {1, 1000, 100000};
    pump(h);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        carry(h, link, gr_mesh_link(h->peer[at], 0), sizes[i]);
        carry(h, gr_mesh_link(h->peer[at], 0), link, sizes[i]);
    }
}

/* Bytes mapped, in how many mappings. */
typedef struct maps {
    int count;
    uint64_t bytes;
} maps;

static maps maps_now(void)
{
    maps now = {0};
    char line[512];
    unsigned long long from, to;
    FILE *file = fopen("/proc/self/maps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        /* What the C library's allocator keeps is not the mesh's affair. */
        if (strstr(line, "memfd:") != NULL && sscanf(line, "%llx-%llx", &from, &to) == 2) {
            now.count++;
            now.bytes += to - from;
        }
    }
    fclose(file);
    return now;
}

static void assert_same_maps(maps before)
{
    maps now = maps_now();
    assert_int_equal(now.count, before.count);
    assert_int_equal(now.bytes, before.bytes);
}

/* ---- Coming and going ------------------------------------------------------------------------ */

static void test_comes_and_leaves(void **state)
{
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    for (int round = 0; round < 3; round++) {
        gr_link *link = come(&h, 0, FIRST);
        talk(&h, 0, link);
        carry(&h, link, gr_mesh_link(h.peer[0], 0), BIG);
        leave(&h, 0);
        see_off(&h, FIRST, GR_E_PEER_LOST, "rank 16 has left in order");
    }
    fixture_close(&h);
}

/* What arrived before the end is handed out after it; and one that is not forgotten is kept. */
static void test_last_words(void **state)
{
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *link = come(&h, 0, FIRST);
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 100}, head;
    uint64_t ticket;
    assert_int_equal(gr_link_send(gr_mesh_link(h.peer[0], 0), &frame, h.data, &ticket), GR_OK);
    assert_true(gr_link_sent(gr_mesh_link(h.peer[0], 0), ticket) || h.kind == GR_LINK_SHM);
    leave(&h, 0);
    if (h.kind == GR_LINK_SHM) { /* elsewhere the end is behind what is not read */
        assert_ptr_equal(expect_change(&h, FIRST, true), link);
    }
    for (int64_t end_us = test_now_us() + PATIENCE_US; gr_link_peek(link, &head) == GR_PENDING;) {
        assert_true(test_now_us() < end_us);
        pump(&h);
    }
    assert_int_equal(gr_link_read(link, h.back), GR_OK);
    assert_memory_equal(h.back, h.data, 100);
    gr_link_next(link, NULL);
    if (h.kind != GR_LINK_SHM) {
        assert_ptr_equal(expect_change(&h, FIRST, true), link);
    }
    assert_int_equal(gr_link_peek(link, &head), GR_E_PEER_LOST);
    assert_int_equal(gr_link_send(link, &frame, h.data, &ticket), GR_E_PEER_LOST);
    assert_int_equal(gr_mesh_connect(h.host, FIRST, "tcp:127.0.0.1:1", NULL), GR_E_INVALID);
    gr_mesh_remove(h.host, FIRST);
    gr_mesh_remove(h.host, FIRST);
    gr_mesh_remove(h.host, -1);
    gr_mesh_remove(h.host, WORLD);
    fixture_close(&h);
}

/* One that came and left before the host looked is told of twice, as everybody. */
static void test_short_visit(void **state)
{
    int peer;
    bool ended;
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    invite(&h, 0, FIRST, gr_mesh_address(h.host));
    for (int64_t end_us = test_now_us() + PATIENCE_US;
         gr_mesh_link(h.peer[0], 0) == NULL || gr_mesh_link(h.host, FIRST) == NULL;) {
        assert_true(test_now_us() < end_us);
        pump(&h);
    }
    leave(&h, 0);
    for (int64_t end_us = test_now_us() + PATIENCE_US;
         gr_link_diag(gr_mesh_link(h.host, FIRST))->status == GR_OK;) {
        assert_true(test_now_us() < end_us);
        pump(&h);
    }
    assert_non_null(expect_change(&h, FIRST, false));
    assert_non_null(expect_change(&h, FIRST, true));
    assert_false(gr_mesh_next_change(h.host, &peer, &ended));
    fixture_close(&h);
}

/* Others stay, some with links that ended and are not forgotten: nothing grows, nobody is mixed
 * up. */
static void test_many_peers(void **state)
{
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *resident = come(&h, 0, WORLD - 1);
    talk(&h, 0, resident);
    int fds = open_fds();
    maps before = maps_now();
    for (int i = 0; i < ALL_PEERS; i++) {
        int number = FIRST + i % (WORLD - 1 - FIRST);
        gr_link *link = come(&h, 1, number);
        assert_int_equal(link->peer, number);
        talk(&h, 1, link);
        leave(&h, 1);
        see_off(&h, number, GR_E_PEER_LOST, "left in order");
    }
    assert_int_equal(open_fds(), fds);
    assert_same_maps(before);
    talk(&h, 0, resident);
    fixture_close(&h);
}

/* ---- Deaths ---------------------------------------------------------------------------------- */

static pid_t start(const fixture *h, int number, helper_body *body)
{
    char address[GR_ADDRESS_BYTES];
    snprintf(address, sizeof address, "%s", gr_mesh_address(h->host));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close_range(3, ~0U, 0);
    gr_mesh_config config = peer_config(h->kind, number);
    gr_mesh *mesh = NULL;
    int result = 99;
    if (gr_mesh_create(&config, &mesh, NULL) == GR_OK &&
        kind_connect(mesh, h->kind, 0, address, NULL) == GR_OK) {
        gr_link *link = await_link(mesh, 0);
        result = link != NULL ? body(mesh, link) : 98;
    }
    gr_mesh_destroy(mesh);
    _exit(result);
}

static int die_at_once(gr_mesh *mesh, gr_link *link)
{
    (void)mesh;
    (void)link;
    return raise(SIGKILL);
}

/* Some of a payload is sent when it dies, and the rest is still here. */
static int die_sending(gr_mesh *mesh, gr_link *link)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = GR_FRAME_PAYLOAD_MAX};
    uint64_t ticket;
    uint8_t *data = calloc(1, GR_FRAME_PAYLOAD_MAX);
    (void)mesh; /* which is not moved on */
    do {
        if (data == NULL || gr_link_send(link, &frame, data, &ticket) != GR_OK) {
            return 97;
        }
    } while (gr_link_sent(link, ticket));
    return raise(SIGKILL);
}

static int die_receiving(gr_mesh *mesh, gr_link *link)
{
    gr_frame frame;
    uint8_t *data = calloc(1, GR_FRAME_PAYLOAD_MAX);
    while (gr_link_peek(link, &frame) == GR_PENDING) {
        (void)!gr_mesh_progress(mesh, NULL);
        gr_mesh_wait(mesh, test_now_us() + 10000);
    }
    (void)!gr_link_read(link, data); /* not all: more is on its way than fits anywhere */
    return raise(SIGKILL);
}

static void test_deaths(void **state)
{
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *resident = come(&h, 0, WORLD - 1);
    int fds = open_fds();
    maps before = maps_now();
    for (int i = 0; i < COMINGS; i++) {
        pid_t pid = start(&h, FIRST, die_at_once);
        (void)expect_change(&h, FIRST, false);
        see_off(&h, FIRST, GR_E_PEER_LOST, "rank 16 died");
        assert_int_equal(helper_end(pid), -SIGKILL);
    }
    assert_int_equal(open_fds(), fds);
    assert_same_maps(before);
    talk(&h, 0, resident);
    fixture_close(&h);
}

static void test_death_in_a_payload(void **state)
{
    fixture h;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = GR_FRAME_PAYLOAD_MAX};
    uint8_t *payload = calloc(1, GR_FRAME_PAYLOAD_MAX);
    uint64_t ticket = 0;
    assert_non_null(payload);
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *resident = come(&h, 0, WORLD - 1);
    int fds = open_fds();
    maps before = maps_now();
    for (int way = 0; way < 2; way++) {
        pid_t pid = start(&h, FIRST, way == 0 ? die_sending : die_receiving);
        gr_link *link = expect_change(&h, FIRST, false);
        gr_status status = GR_PENDING;
        int64_t end_us = test_now_us() + PATIENCE_US;
        if (way == 0) {
            siginfo_t info; /* read meanwhile, all of it could come */
            assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
            while ((status = gr_link_peek(link, &frame)) >= 0) {
                if (status == GR_OK && (status = gr_link_read(link, payload)) == GR_OK) {
                    gr_link_next(link, NULL);
                } else if (status < 0) {
                    break;
                }
                assert_true(test_now_us() < end_us);
                talk(&h, 0, resident);
            }
        } else {
            frame.size_bytes = GR_FRAME_PAYLOAD_MAX;
            while ((status = gr_link_send(link, &frame, payload, &ticket)) != GR_E_PEER_LOST) {
                assert_true(test_now_us() < end_us);
                talk(&h, 0, resident);
            }
            assert_true(gr_link_sent(link, ticket));
        }
        assert_int_equal(status, GR_E_PEER_LOST);
        see_off(&h, FIRST, GR_E_PEER_LOST, "rank 16");
        assert_int_equal(helper_end(pid), -SIGKILL);
    }
    assert_int_equal(open_fds(), fds);
    assert_same_maps(before);
    talk(&h, 0, resident);
    free(payload);
    fixture_close(&h);
}

/* ---- Views ----------------------------------------------------------------------------------- */

enum { VIEWED = 1000, VIEWS = 3 };

/* Out of memory that the host can read where it lies, if there is such. */
static int send_and_wait(gr_mesh *mesh, gr_link *link)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = VIEWED};
    void *data;
    uint64_t ticket;
    if (gr_mesh_alloc(mesh, VIEWED, &data) != GR_OK) {
        return 97;
    }
    memset(data, 5, VIEWED);
    for (int i = 0; i < VIEWS; i++) {
        if (gr_link_send(link, &frame, data, &ticket) != GR_OK) {
            return 96;
        }
    }
    for (;;) { /* until it is killed */
        (void)!gr_mesh_progress(mesh, NULL);
        gr_mesh_wait(mesh, test_now_us() + 100000);
    }
}

static void assert_all(const uint8_t *data, uint8_t value, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        assert_int_equal(data[i], value);
    }
}

static void view_all(fixture *h, gr_link *link, const void *view[VIEWS], uint64_t hold[VIEWS])
{
    gr_frame frame;
    int64_t end_us = test_now_us() + PATIENCE_US;
    for (int i = 0; i < VIEWS; i++) {
        while (gr_link_peek(link, &frame) == GR_PENDING) {
            assert_true(test_now_us() < end_us);
            pump(h);
        }
        assert_int_equal(gr_link_view(link, &view[i]), GR_OK);
        gr_link_next(link, &hold[i]);
    }
}

/* Until there is no room, and all is taken: so the sender believes what is said to be released. */
static void fill(fixture *h, gr_link *from, gr_link *to)
{
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 20000};
    uint64_t ticket;
    gr_status status = GR_OK;
    int sent = 0, taken = 0;
    while (sent < WORLD && (status = gr_link_send(from, &frame, h->data, &ticket)) == GR_OK) {
        sent++;
    }
    assert_true(status == GR_E_AGAIN || sent == WORLD);
    for (int64_t end_us = test_now_us() + PATIENCE_US; taken < sent;) {
        assert_true(test_now_us() < end_us);
        pump(h);
        while (gr_link_peek(to, &frame) == GR_OK) {
            gr_link_next(to, NULL);
            taken++;
        }
    }
}

static void test_views_outlive_their_peer(void **state)
{
    fixture h;
    const void *view[VIEWS];
    uint64_t hold[VIEWS];
    fixture_open(&h, *(gr_link_kind *)*state, false);
    int fds = open_fds();
    maps before = maps_now();
    pid_t pid = start(&h, FIRST, send_and_wait);
    gr_link *dead = expect_change(&h, FIRST, false);
    view_all(&h, dead, view, hold);
    kill(pid, SIGKILL);
    assert_int_equal(helper_end(pid), -SIGKILL);
    see_off(&h, FIRST, GR_E_PEER_LOST, "rank 16 died");

    /* The next of that number has places of its own. */
    gr_link *next = come(&h, 0, FIRST);
    talk(&h, 0, next);
    gr_link_release(dead, hold[1]);
    fill(&h, gr_mesh_link(h.peer[0], 0), next);
    assert_all(view[0], 5, VIEWED);
    gr_link_release(dead, hold[0]);
    fill(&h, gr_mesh_link(h.peer[0], 0), next);
    talk(&h, 0, next);
    leave(&h, 0);
    see_off(&h, FIRST, GR_E_PEER_LOST, "left");
    assert_all(view[2], 5, VIEWED);
    gr_link_release(dead, hold[2]);
    assert_int_equal(open_fds(), fds);
    assert_same_maps(before);
    fixture_close(&h);
}

/* Views that nobody releases go with the mesh. */
static void test_views_that_stay(void **state)
{
    fixture h;
    const void *view[VIEWS];
    uint64_t hold[VIEWS];
    fixture_open(&h, *(gr_link_kind *)*state, false);
    pid_t pid = start(&h, FIRST, send_and_wait);
    gr_link *dead = expect_change(&h, FIRST, false);
    view_all(&h, dead, view, hold);
    kill(pid, SIGKILL);
    assert_int_equal(helper_end(pid), -SIGKILL);
    see_off(&h, FIRST, GR_E_PEER_LOST, "rank 16 died");
    maps before = maps_now();
    fixture_close(&h);
    assert_true(maps_now().count < before.count || h.kind != GR_LINK_SHM);
}

/* ---- Sent away, refused, made to wait -------------------------------------------------------- */

static void test_sent_away(void **state)
{
    fixture h;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = BIG};
    uint64_t ticket;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *other = come(&h, 1, FIRST + 1);
    for (int round = 0; round < 3; round++) {
        gr_link *link = come(&h, 0, FIRST), *theirs = gr_mesh_link(h.peer[0], 0);
        if (round > 0) { /* in the middle of a payload of either side */
            assert_int_equal(gr_link_send(round == 1 ? link : theirs, &frame, h.data, &ticket),
                             GR_OK);
            pump(&h);
        }
        gr_link_close(link, GR_E_NOT_FINITE, "worker 16 pushed a NaN");
        gr_link_close(link, GR_E_INVALID, "no second one");
        assert_int_equal(gr_link_send(link, &frame, h.data, &ticket), GR_E_PEER_LOST);
        assert_int_equal(gr_link_peek(link, &frame), GR_E_PEER_LOST);
        frame.size_bytes = BIG;
        for (int64_t end_us = test_now_us() + PATIENCE_US; gr_link_diag(theirs)->status == GR_OK;) {
            gr_frame head;
            assert_true(test_now_us() < end_us);
            /* On tcp what was sent before the sentence is in its way. */
            if (gr_link_peek(theirs, &head) == GR_OK && gr_link_read(theirs, h.back) == GR_OK) {
                gr_link_next(theirs, NULL);
            }
            pump(&h);
        }
        assert_string_equal(gr_link_diag(theirs)->text, "worker 16 pushed a NaN");
        assert_int_equal(gr_link_diag(theirs)->status, GR_E_PEER_LOST);
        see_off(&h, FIRST, GR_E_NOT_FINITE, "worker 16 pushed a NaN");
        talk(&h, 1, other);
        leave(&h, 0);
    }
    fixture_close(&h);
}

/* It takes nothing any more, not even the sentence. */
static void test_stalled(void **state)
{
    fixture h;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 300000};
    gr_status status = GR_OK;
    uint64_t ticket = 0;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *other = come(&h, 1, FIRST + 1), *link = come(&h, 0, FIRST);
    gr_mesh *stalled = h.peer[0];
    h.peer[0] = NULL; /* nobody moves it on */
    for (int i = 0; i < 1000 && status == GR_OK; i++) {
        status = gr_link_send(link, &frame, h.data, &ticket);
        pump(&h);
    }
    assert_int_equal(status, GR_E_AGAIN);
    talk(&h, 1, other);
    assert_false(gr_link_sent(link, ticket));
    int64_t start_us = test_now_us();
    gr_link_close(link, GR_E_PEER_SLOW, "worker 16 does not read");
    assert_false(gr_link_sent(link, ticket));
    while (gr_link_diag(link)->status == GR_OK) {
        talk(&h, 1, other);
    }
    (void)expect_change(&h, FIRST, true);
    assert_true(gr_link_sent(link, ticket));
    assert_in_range(test_now_us() - start_us, GR_LINK_CLOSE_US, GR_LINK_CLOSE_US + PATIENCE_US);
    gr_mesh_remove(h.host, FIRST);
    talk(&h, 0, come(&h, 0, FIRST));
    talk(&h, 1, other);
    gr_mesh_destroy(stalled);
    fixture_close(&h);
}

static void test_second_of_a_number(void **state)
{
    fixture h;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_link *link = come(&h, 0, FIRST);
    invite(&h, 1, FIRST, gr_mesh_address(h.host));
    gr_mesh *second = h.peer[1];
    h.peer[1] = NULL;
    for (int64_t end_us = test_now_us() + PATIENCE_US; status == GR_OK;) {
        assert_true(test_now_us() < end_us);
        status = gr_mesh_progress(second, &diag);
        talk(&h, 0, link);
    }
    if (status != GR_E_IN_USE) {
        fail_msg("%s", diag.text);
    }
    assert_non_null(strstr(diag.text, "has a member of our rank already"));
    assert_ptr_equal(gr_mesh_link(h.host, FIRST), link);
    talk(&h, 0, link);
    gr_mesh_destroy(second);
    fixture_close(&h);
}

/* Both have proved themselves before either is a link: one is, and the other is told so. */
static void test_two_of_a_number_at_once(void **state)
{
    fixture h;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    gr_mesh *both[2];
    for (int i = 0; i < 2; i++) {
        invite(&h, i, FIRST, gr_mesh_address(h.host));
        both[i] = h.peer[i];
        h.peer[i] = NULL;
    }
    int refused = 1;
    for (int64_t end_us = test_now_us() + PATIENCE_US; status == GR_OK;) {
        assert_true(test_now_us() < end_us);
        refused = !refused;
        status = gr_mesh_progress(both[refused], &diag);
        if (refused) {
            pump(&h); /* both have gone as far */
        }
    }
    if (status != GR_E_IN_USE) {
        fail_msg("%s", diag.text);
    }
    gr_mesh_destroy(both[refused]);
    h.peer[0] = both[!refused];
    talk(&h, 0, welcome(&h, 0, FIRST));
    fixture_close(&h);
}

/* The number is that of one that has ended: whoever comes waits until that is forgotten. */
static void test_waits_for_its_number(void **state)
{
    fixture h;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    (void)come(&h, 0, FIRST);
    leave(&h, 0);
    (void)expect_change(&h, FIRST, true);
    invite(&h, 1, FIRST, gr_mesh_address(h.host));
    for (int64_t end_us = test_now_us() + SHORT_US; test_now_us() < end_us;) {
        pump(&h);
        assert_null(gr_mesh_link(h.peer[1], 0));
    }
    gr_mesh_remove(h.host, FIRST);
    talk(&h, 1, welcome(&h, 1, FIRST));
    gr_mesh_stats stats;
    gr_mesh_get_stats(h.host, &stats);
    assert_int_equal(stats.unauthenticated_refused, 0);
    fixture_close(&h);
}

/* ---- What absent dynamic peers cost ---------------------------------------------------------- */

/* Exact, other than what /proc/self/statm tells. */
static uint64_t resident_bytes(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "Rss: %llu", &kib) != 1) {
    }
    fclose(file);
    return kib << 10;
}

/* Above what one of two needs; a sanitizer's notes of what was allocated do not count. */
static void test_absent_ones_take_no_memory(void **state)
{
    gr_link_kind kind = *(gr_link_kind *)*state;
    uint64_t took[2];
    for (int large = 0; large < 2; large++) {
        gr_mesh_config config = peer_config(kind, 0);
        gr_mesh *mesh;
        config.world_size = large ? WORLD : 2;
        uint64_t before = resident_bytes();
        assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_OK);
        assert_int_equal(gr_mesh_progress(mesh, NULL), GR_OK);
        took[large] = resident_bytes() - before;
        gr_mesh_destroy(mesh);
    }
    assert_true(SANITIZED || took[1] <= took[0] + (64 << 10));
}

/* Who is there pays nothing for the open door: no look at a socket more than once in 10 ms. */
static void test_open_door_costs_no_calls(void **state)
{
    enum { LOOKS = 20000, BETWEEN_US = 10000, FEW = 10 };
    fixture h;
    gr_mesh_stats before, after;
    (void)state;
    fixture_open(&h, GR_LINK_SHM, true);
    gr_link *link = come(&h, 0, FIRST);
    invite(&h, 1, FIRST + 1, gr_mesh_remote_address(h.host)); /* as from another host */
    gr_link *far = welcome(&h, 1, FIRST + 1);
    assert_true(gr_link_capabilities(link)->one_sided);
    assert_false(gr_link_capabilities(far)->one_sided);
    talk(&h, 0, link);
    talk(&h, 1, far);
    leave(&h, 1);
    see_off(&h, FIRST + 1, GR_E_PEER_LOST, "left in order");
    talk(&h, 0, link);
    pump(&h);
    gr_mesh_get_stats(h.host, &before);
    int64_t start_us = test_now_us();
    for (int i = 0; i < LOOKS; i++) {
        gr_frame frame;
        assert_int_equal(gr_mesh_progress(h.host, NULL), GR_OK);
        assert_int_equal(gr_link_peek(link, &frame), GR_PENDING);
    }
    gr_mesh_get_stats(h.host, &after);
    uint64_t turns = (uint64_t)((test_now_us() - start_us) / BETWEEN_US);
    assert_true(after.system_calls - before.system_calls <= turns + FEW);
    fixture_close(&h);
}

enum { SLEEP_US = 2 * PATIENCE_US };

static int echo(gr_mesh *mesh, gr_link *link)
{
    gr_status status;
    uint64_t data, ticket;
    gr_frame frame;
    int peer;
    bool ended;
    mesh->sleep_us = SLEEP_US;
    while ((status = gr_link_peek(link, &frame)) >= 0) {
        if (status == GR_OK && gr_link_read(link, &data) == GR_OK) {
            gr_link_next(link, NULL);
            status = gr_link_send(link, &frame, &data, &ticket);
        } else {
            /* In this order: what progress has seen ends no wait. */
            gr_mesh_wait(mesh, test_now_us() + PATIENCE_US);
            (void)!gr_mesh_progress(mesh, NULL);
            while (gr_mesh_next_change(mesh, &peer, &ended)) { /* else there is no sleep */
            }
        }
    }
    return 0;
}

/* Whoever sleeps is woken, wherever it does: it does so on the bell, and after a while on the
 * sockets. No sleep ends by itself in time: a wake that is lost ends the test. */
static void test_dynamic_peers_message_wakes_sleeper(void **state)
{
    enum { ROUNDS = THOROUGH(300), A_WHILE = 30, LONG_US = 15000 };
    fixture h;
    uint64_t data = 5, ticket;
    int peer;
    bool ended;
    fixture_open(&h, *(gr_link_kind *)*state, false);
    h.host->sleep_us = SLEEP_US;
    pid_t pid = start(&h, FIRST, echo);
    gr_link *link = expect_change(&h, FIRST, false);
    assert_false(gr_mesh_next_change(h.host, &peer, &ended));
    for (int i = 0; i < ROUNDS; i++) {
        int64_t start_us = test_now_us();
        gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof data};
        for (int64_t end_us = start_us + LONG_US; i % A_WHILE == 0 && test_now_us() < end_us;) {
            pump(&h);
            gr_mesh_wait(h.host, end_us);
        }
        start_us = test_now_us();
        assert_int_equal(gr_link_send(link, &frame, &data, &ticket), GR_OK);
        while (gr_link_peek(link, &frame) == GR_PENDING) {
            assert_true(test_now_us() < start_us + PATIENCE_US);
            gr_mesh_wait(h.host, start_us + PATIENCE_US);
            pump(&h);
        }
        gr_link_next(link, NULL);
    }
    gr_mesh_destroy(h.host);
    h.host = NULL;
    assert_int_equal(helper_end(pid), 0);
    fixture_close(&h);
}

static void test_simulated_mesh_has_none(void **state)
{
    (void)state;
    gr_mesh_config config = peer_config(GR_LINK_SIM, 0);
    config.ops = &gr_sim_ops;
    gr_mesh *mesh = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_mesh_create(&config, &mesh, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "no dynamic peers"));
}

static gr_link_kind shm = GR_LINK_SHM, tcp = GR_LINK_TCP, rails = TCP_RAILS(3),
                    tls = (gr_link_kind)((int)GR_LINK_TCP | (int)TCP_ENCRYPTED);

#define OVER(kind, test)                                                                           \
    {                                                                                              \
#kind "_" #test, test_##test, NULL, NULL, &(kind)                                          \
    }
#define OVER_ALL(test) OVER(shm, test), OVER(tcp, test), OVER(rails, test), OVER(tls, test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OVER_ALL(comes_and_leaves),
        OVER_ALL(last_words),
        OVER_ALL(short_visit),
        OVER_ALL(many_peers),
        OVER_ALL(deaths),
        OVER_ALL(death_in_a_payload),
        OVER_ALL(views_outlive_their_peer),
        OVER_ALL(views_that_stay),
        OVER_ALL(sent_away),
        OVER_ALL(stalled),
        OVER_ALL(second_of_a_number),
        OVER(shm, two_of_a_number_at_once),
        OVER(tcp, two_of_a_number_at_once),
        OVER(tls, two_of_a_number_at_once),
        OVER_ALL(waits_for_its_number),
        OVER_ALL(dynamic_peers_message_wakes_sleeper),
        OVER(shm, absent_ones_take_no_memory),
        OVER(tcp, absent_ones_take_no_memory),
        cmocka_unit_test(test_open_door_costs_no_calls),
        cmocka_unit_test(test_simulated_mesh_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
