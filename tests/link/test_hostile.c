/* SPDX-License-Identifier: Apache-2.0 */

/* Unauthenticated peers, liars and members that send garbage: none gets in or disturbs the others,
 * and nothing crashes. */

#include "link/address.h"
#include "link/auth.h"
#include "link/frame.h"
#include "link/shm/segment.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PEERS = 300, HALF_OPEN = 8, SHORT_US = 300000, TURN_US = 100 };

/* Its time goes on by its turns alone: who needs few of them is never late. */
typedef struct host {
    gr_mesh *mesh;
    gr_link_kind kind;
    int64_t now_us;
} host;

static void host_open_in(host *h, gr_link_kind kind, int world_size)
{
    gr_mesh_config config = test_config(kind, 0, world_size);
    *h = (host){.kind = kind, .now_us = 1000000};
    config.half_open_max = HALF_OPEN;
    config.handshake_timeout_us = SHORT_US;
    config.clock = gr_clock_simulated(&h->now_us);
    assert_int_equal(gr_mesh_create(&config, &h->mesh, NULL), GR_OK);
}

static void host_open(host *h, gr_link_kind kind)
{
    host_open_in(h, kind, 2);
}

static int dial(const host *h)
{
    int fd = -1;
    gr_status status = gr_address_connect(gr_mesh_address(h->mesh), &fd, NULL);
    return status >= 0 ? fd : -1;
}

static gr_status turn(host *h, gr_diag *diag)
{
    h->now_us += TURN_US;
    return gr_mesh_progress(h->mesh, diag);
}

static void progress_ok(host *h)
{
    gr_diag diag = {0};
    if (turn(h, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

/* Move the host on until the other end of `fd` is closed; how many bytes came before. */
static size_t bytes_until_closed(host *h, int fd)
{
    uint8_t data[4096];
    size_t total = 0;
    for (int64_t end = test_now_us() + PATIENCE_US;;) {
        assert_true(test_now_us() < end);
        progress_ok(h);
        ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
        if (got > 0) {
            total += (size_t)got;
        } else if (got == 0 || errno != EAGAIN) {
            return total;
        }
    }
}

static uint64_t pending(const host *h)
{
    gr_mesh_stats stats;
    gr_mesh_get_stats(h->mesh, &stats);
    return stats.unauthenticated_refused;
}

static void test_garbage_gets_a_challenge_and_the_door(gr_link_kind kind)
{
    static const struct {
        char bytes[100];
        size_t size;
        bool may_become_one; /* a handshake: only the timeout ends it */
    } words[] = {{"GET / HTTP/1.1\r\n\r\n", 18, false},
                 {"\x16\x03\x01\x02\x00\x01", 6, false},
                 {"G", 1, true},
                 {"GRA1\x01\x00\x01\x02 but the checksum is wrong", 100, false}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        host h;
        host_open(&h, kind);
        int64_t late_us = h.now_us + SHORT_US;
        int fd = dial(&h);
        assert_true(fd >= 0);
        assert_int_equal(send(fd, words[i].bytes, words[i].size, MSG_NOSIGNAL), words[i].size);
        assert_true(bytes_until_closed(&h, fd) <= GR_AUTH_CHALLENGE_BYTES);
        /* What is recognised is closed at once. */
        assert_int_equal(h.now_us >= late_us, words[i].may_become_one);
        assert_int_equal(pending(&h), 1);
        assert_null(gr_mesh_link(h.mesh, 1));
        close(fd);
        gr_mesh_destroy(h.mesh);
    }
}

static gr_link *join_of(host *h, gr_mesh **mesh_out, int rank, int world_size)
{
    gr_mesh_config config = test_config(h->kind, rank, world_size);
    assert_int_equal(gr_mesh_create(&config, mesh_out, NULL), GR_OK);
    assert_int_equal(gr_mesh_connect(*mesh_out, 0, gr_mesh_address(h->mesh), NULL), GR_OK);
    gr_link *link = NULL;
    for (int64_t end = test_now_us() + PATIENCE_US; link == NULL || !gr_mesh_link(h->mesh, rank);) {
        gr_diag diag = {0};
        assert_true(test_now_us() < end);
        progress_ok(h);
        if (gr_mesh_progress(*mesh_out, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
        link = gr_mesh_link(*mesh_out, 0); /* no wait: the time of the host stood still in it */
    }
    return link;
}

static gr_link *join_as(host *h, gr_mesh **mesh_out, int rank)
{
    return join_of(h, mesh_out, rank, 2);
}

/* Far more connections than places, and none of them says a word: the honest one still comes in. */
static void test_half_open_flood(gr_link_kind kind)
{
    host h;
    host_open(&h, kind);
    int fds[PEERS];
    for (int i = 0; i < PEERS; i++) {
        fds[i] = dial(&h);
        if (i % 50 == 0) {
            progress_ok(&h);
        }
    }
    int before = open_fds();
    progress_ok(&h);
    assert_true(open_fds() <= before + HALF_OPEN);
    gr_mesh *other = NULL;
    gr_link *link = join_as(&h, &other, 1);
    assert_non_null(link);
    assert_true(pending(&h) >= PEERS - HALF_OPEN);
    for (int i = 0; i < PEERS; i++) {
        if (fds[i] >= 0) {
            assert_true(bytes_until_closed(&h, fds[i]) <= GR_AUTH_CHALLENGE_BYTES);
            close(fds[i]);
        }
    }
    gr_mesh_destroy(other);
    gr_mesh_destroy(h.mesh);
}

static void test_slow_one_is_closed(gr_link_kind kind)
{
    host h;
    host_open(&h, kind);
    int fd = dial(&h);
    assert_int_equal(send(fd, "GRA", 3, MSG_NOSIGNAL), 3);
    assert_int_equal(bytes_until_closed(&h, fd), GR_AUTH_CHALLENGE_BYTES);
    close(fd);
    gr_mesh_destroy(h.mesh);
}

/* ---- Liars ----------------------------------------------------------------------------------- */

/* A handshake by hand with the right secret. True if the host proved itself in turn. */
static bool shake_as(host *h, int fd, int rank, gr_auth_rail stream)
{
    gr_auth auth;
    uint8_t data[GR_AUTH_BYTES];
    size_t size, used;
    assert_int_equal(gr_auth_init(&auth, GR_AUTH_CONNECTOR, rank, test_secret, NULL), GR_OK);
    gr_auth_name_rail(&auth, stream);
    for (int64_t end = test_now_us() + PATIENCE_US; !auth.done;) {
        assert_true(test_now_us() < end);
        const uint8_t *from = gr_auth_pending(&auth, &size);
        if (size > 0) {
            ssize_t sent = send(fd, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
            gr_auth_sent(&auth, sent > 0 ? (size_t)sent : 0);
        }
        progress_ok(h);
        ssize_t got = recv(fd, data, GR_AUTH_BYTES - auth.in_filled, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            return false;
        }
        if (got > 0) {
            gr_status status = gr_auth_take(&auth, data, (size_t)got, &used, NULL);
            if (status == GR_E_IN_USE) {
                return false;
            }
            assert_true(status >= 0);
        }
    }
    gr_auth_fini(&auth);
    return true;
}

static bool shake(host *h, int fd, int rank)
{
    return shake_as(h, fd, rank, (gr_auth_rail){.index = 0, .count = 1});
}

static void test_false_ranks(gr_link_kind kind)
{
    static const int ranks[] = {2, -1, 0, INT32_MAX, INT32_MIN};
    host h;
    host_open(&h, kind);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        int fd = dial(&h);
        assert_false(shake(&h, fd, ranks[i]));
        close(fd);
    }
    assert_int_equal(pending(&h), 0); /* these hold the secret */
    gr_mesh_destroy(h.mesh);
}

static void test_second_of_a_rank(gr_link_kind kind)
{
    host h;
    host_open_in(&h, kind, 3); /* one is missing: the door stays open */
    int first = dial(&h), second = dial(&h);
    assert_true(shake(&h, first, 1));
    progress_ok(&h);
    assert_false(shake(&h, second, 1));
    close(first);
    close(second);
    gr_mesh_destroy(h.mesh);
}

static void test_wrong_secret(gr_link_kind kind)
{
    static const uint8_t wrong[GR_SECRET_BYTES] = {1};
    host h;
    gr_diag diag = {0};
    gr_mesh *other;
    host_open(&h, kind);
    gr_mesh_config config = test_config(kind, 1, 2);
    config.secret = wrong;
    assert_int_equal(gr_mesh_create(&config, &other, NULL), GR_OK);
    assert_int_equal(gr_mesh_connect(other, 0, gr_mesh_address(h.mesh), NULL), GR_OK);
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        progress_ok(&h);
        status = gr_mesh_progress(other, &diag);
        gr_mesh_wait(other, test_now_us() + 1000);
    }
    assert_int_equal(status, GR_E_AUTH);
    assert_int_equal(diag.peer_rank, 0);
    assert_non_null(strstr(diag.text, "GRADUS_SECRET"));
    assert_null(gr_mesh_link(h.mesh, 1));
    assert_true(pending(&h) > 0);
    gr_mesh_destroy(other);
    gr_mesh_destroy(h.mesh);
}

static void test_nobody_listens(gr_link_kind kind)
{
    host h;
    gr_diag diag = {0};
    char address[GR_ADDRESS_BYTES];
    host_open(&h, kind);
    snprintf(address, sizeof address, "%s", gr_mesh_address(h.mesh));
    gr_mesh_destroy(h.mesh);
    gr_mesh_config config = test_config(kind, 1, 2);
    gr_mesh *other;
    assert_int_equal(gr_mesh_create(&config, &other, NULL), GR_OK);
    assert_int_equal(gr_mesh_connect(other, 0, address, NULL), GR_OK);
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        status = gr_mesh_progress(other, &diag);
        if (status == GR_OK) {
            gr_mesh_wait(other, end);
        }
    }
    assert_int_equal(status, GR_E_PEER_LOST);
    assert_int_equal(diag.peer_rank, 0);
    assert_non_null(strstr(diag.text, address));
    gr_mesh_destroy(other);
}

static void test_bad_addresses(gr_link_kind kind)
{
    static const char *const bad[] = {"",      "unix:@",         "unix:/tmp/x", "tcp:",
                                      "tcp:h", "tcp:127.0.0.1:", "tcp::5",      "tcp:127.0.0.1:x1",
                                      "udp:1"};
    (void)kind;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int fd = -1;
        gr_diag diag = {0};
        assert_int_equal(gr_address_connect(bad[i], &fd, &diag), GR_E_INVALID);
        assert_true(diag.text[0] != '\0');
    }
}

/* ---- Members that send garbage --------------------------------------------------------------- */

/* Move the host on until it tells of a failure. */
static void expect_failure(host *h, gr_status expected, const char *word)
{
    gr_diag diag = {0};
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        status = turn(h, &diag);
        gr_frame frame;
        if (status == GR_OK && gr_mesh_link(h->mesh, 1) != NULL &&
            gr_link_peek(gr_mesh_link(h->mesh, 1), &frame) == GR_OK) {
            gr_link_next(gr_mesh_link(h->mesh, 1), NULL);
        }
    }
    assert_int_equal(status, expected);
    assert_int_equal(diag.peer_rank, 1);
    if (strstr(diag.text, word) == NULL) {
        fail_msg("\"%s\" is not in: %s", word, diag.text);
    }
    gr_frame frame;
    gr_status left = gr_link_peek(gr_mesh_link(h->mesh, 1), &frame);
    assert_int_equal(left, expected == GR_E_PROTOCOL ? GR_E_PROTOCOL : GR_E_PEER_LOST);
}

static void test_garbage_after_the_handshake(gr_link_kind kind)
{
    host h;
    uint8_t garbage[200];
    int before = open_fds();
    memset(garbage, 0x5a, sizeof garbage);
    host_open(&h, kind);
    int fd = dial(&h);
    assert_true(shake(&h, fd, 1));
    assert_int_equal(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
    expect_failure(&h, GR_E_PROTOCOL, kind == GR_LINK_TCP ? "mark" : "no memory file");
    close(fd);
    gr_mesh_destroy(h.mesh);
    assert_int_equal(open_fds(), before);
}

static void test_tcp_frame_with_a_flipped_bit(void **state)
{
    (void)state;
    host h;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 1};
    uint8_t bytes[2 * GR_FRAME_BYTES + 1];
    gr_frame_encode(&frame, bytes);
    bytes[GR_FRAME_BYTES] = 'x';
    gr_frame_encode(&frame, bytes + GR_FRAME_BYTES + 1);
    bytes[GR_FRAME_BYTES + 1 + 9] ^= 4;
    host_open(&h, GR_LINK_TCP);
    int fd = dial(&h);
    assert_true(shake(&h, fd, 1));
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    expect_failure(&h, GR_E_PROTOCOL, "checksum");
    close(fd);
    gr_mesh_destroy(h.mesh);
}

/* ---- Links of several rails ---------------------------------------------------------------- */

static gr_auth_rail stream_of(uint8_t index, uint8_t count)
{
    return (gr_auth_rail){.index = index, .count = count};
}

/* What a stream says of itself must fit the link that it belongs to, and be legal at all. */
static void test_false_rails(void **state)
{
    static const gr_auth_rail bad[] = {{0, 0}, {1, 1}, {2, 2}, {0, GR_LINK_RAILS_MAX + 1}};
    (void)state;
    host h;
    host_open(&h, GR_LINK_TCP);
    uint64_t refused = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int fd = dial(&h);
        assert_false(shake_as(&h, fd, 1, bad[i]));
        assert_int_equal(pending(&h), ++refused);
        close(fd);
    }
    int second = dial(&h), first = dial(&h), other = dial(&h);
    assert_true(shake_as(&h, second, 1, stream_of(1, 2)));
    progress_ok(&h);
    assert_null(gr_mesh_link(h.mesh, 1)); /* its first one is missing */
    assert_false(shake_as(&h, other, 1, stream_of(0, 3)));
    close(other);
    other = dial(&h);
    assert_false(shake_as(&h, other, 1, stream_of(1, 2)));
    close(other);
    /* Who does not hold the secret is no stream either. */
    other = dial(&h);
    gr_auth liar;
    static const uint8_t wrong[GR_SECRET_BYTES] = {1};
    assert_int_equal(gr_auth_init(&liar, GR_AUTH_CONNECTOR, 1, wrong, NULL), GR_OK);
    gr_auth_name_rail(&liar, stream_of(0, 2));
    assert_int_equal(send(other, liar.out, sizeof liar.out, MSG_NOSIGNAL), sizeof liar.out);
    assert_true(bytes_until_closed(&h, other) <= GR_AUTH_CHALLENGE_BYTES);
    close(other);
    assert_true(shake_as(&h, first, 1, stream_of(0, 2)));
    progress_ok(&h);
    assert_non_null(gr_mesh_link(h.mesh, 1));
    assert_int_equal(gr_link_rails(gr_mesh_link(h.mesh, 1)), 2);
    assert_int_equal(pending(&h), refused + 1);
    close(first);
    close(second);
    gr_mesh_destroy(h.mesh);
}

/* The rest of a link does not come: because its process is gone, or for no reason. */
static void test_streams_that_do_not_come(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        host h;
        host_open(&h, GR_LINK_TCP);
        int fd = dial(&h);
        assert_true(shake_as(&h, fd, 1, stream_of(0, 2)));
        if (gone) {
            close(fd);
        }
        expect_failure(&h, gone ? GR_E_PEER_LOST : GR_E_PEER_SLOW, gone ? "died" : "in time");
        if (!gone) {
            close(fd);
        }
        gr_mesh_destroy(h.mesh);
    }
}

/* A member of two rails by hand. */
static void open_two(host *h, int fd[2])
{
    host_open(h, GR_LINK_TCP);
    for (uint8_t i = 0; i < 2; i++) {
        fd[i] = dial(h);
        assert_true(shake_as(h, fd[i], 1, stream_of(i, 2)));
    }
}

static void put_part(int fd, uint32_t message, uint32_t offset, uint32_t size_bytes)
{
    const gr_part part = {.message = message, .offset = offset, .size_bytes = size_bytes};
    uint8_t head[GR_PART_HEAD_BYTES];
    gr_part_encode(&part, head);
    assert_int_equal(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
}

static void put_header(int fd, uint32_t size_bytes)
{
    const gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = size_bytes};
    uint8_t header[GR_FRAME_BYTES];
    gr_frame_encode(&frame, header);
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
}

static void test_garbage_on_a_stream(void **state)
{
    enum { SIZE = 2 * GR_PART_BYTES + 5 };
    static const struct {
        int stream;
        gr_part part;
        const char *word;
    } bad[] = {
        {1, {0, 0, 5}, "not one of its message"},                      /* the front's place */
        {1, {0, GR_PART_BYTES, 5}, "not one of its message"},          /* too short */
        {1, {0, 3 * GR_PART_BYTES, 5}, "not one of its message"},      /* behind the end */
        {1, {0, 1, 5}, "a part of 5 bytes at 1"},                      /* between two places */
        {1, {0, GR_PART_BYTES, GR_PART_BYTES + 1}, "a part of 65537"}, /* too long */
        {1, {4000, GR_PART_BYTES, 5}, "of a message that is none"},
        {1, {UINT32_MAX, GR_PART_BYTES, 0}, NULL}, /* its end */
        {0, {0, 0, 0}, "of a message that is none"},
        {0, {1, GR_PART_BYTES, 5}, "of a message that is none"}, /* before its header */
    };
    (void)state;
    uint8_t *data = calloc(1, SIZE);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        host h;
        int fd[2];
        open_two(&h, fd);
        put_header(fd[0], SIZE);
        assert_int_equal(send(fd[0], data, GR_PART_BYTES, MSG_NOSIGNAL), GR_PART_BYTES);
        put_part(fd[bad[i].stream], bad[i].part.message, bad[i].part.offset,
                 bad[i].part.size_bytes);
        gr_diag diag = {0};
        gr_status status = GR_OK;
        bool closed = bad[i].word == NULL;
        if (closed) {
            close(fd[0]); /* all is read, but never becomes whole */
        }
        for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
            gr_frame frame;
            gr_link *link = gr_mesh_link(h.mesh, 1);
            if (link != NULL && gr_link_peek(link, &frame) == GR_OK) {
                (void)!gr_link_read(link, data);
            }
            status = turn(&h, &diag);
        }
        assert_int_equal(status, closed ? GR_E_PEER_LOST : GR_E_PROTOCOL);
        if (strstr(diag.text, closed ? "died" : bad[i].word) == NULL) {
            fail_msg("case %zu: %s", i, diag.text);
        }
        if (!closed) {
            close(fd[0]);
        }
        close(fd[1]);
        gr_mesh_destroy(h.mesh);
    }
    free(data);
}

/* A member by hand, with a memory file of its own whose contents the test chooses. */
typedef struct forger {
    host h;
    int fd;
    gr_shm_segment own;
    gr_shm_pair *pair;
} forger;

static void forger_open(forger *f)
{
    host_open(&f->h, GR_LINK_SHM);
    f->fd = dial(&f->h);
    assert_true(shake(&f->h, f->fd, 1));
    assert_int_equal(gr_shm_segment_create(1, 2, 1 << 20, &f->own, NULL), GR_OK);
    f->pair = gr_shm_pair_of(&f->own, 0);
    assert_int_equal(gr_shm_segment_give(f->fd, &f->own, 1, 2, NULL), GR_OK);
    for (int64_t end = test_now_us() + PATIENCE_US; gr_mesh_link(f->h.mesh, 1) == NULL;) {
        assert_true(test_now_us() < end);
        progress_ok(&f->h);
    }
}

static void forger_close(forger *f)
{
    gr_shm_segment_close(&f->own);
    close(f->fd);
    gr_mesh_destroy(f->h.mesh);
}

static void forge(forger *f, gr_shm_slot slot)
{
    memcpy((uint8_t *)&f->pair->slots[0] + 4, (uint8_t *)&slot + 4, sizeof slot - 4);
    atomic_store(&f->pair->slots[0].sequence, 1);
}

/* Stands for 50 bytes before the end of the file. */
#define NEAR_END UINT64_C(0x123456789)

static void test_shm_forged_descriptors(void **state)
{
    (void)state;
    const gr_shm_slot forged[] = {
        {.kind = 1,
         .place = GR_SHM_WHOLE,
         .size_bytes = 100,
         .payload.far.offset = UINT64_MAX - 50},
        {.kind = 1,
         .place = GR_SHM_WHOLE,
         .size_bytes = 100,
         .payload.far.offset = UINT64_C(1) << 40},
        {.kind = 1, .place = GR_SHM_WHOLE, .size_bytes = 100, .payload.far.offset = NEAR_END},
        {.kind = 1, .place = GR_SHM_WHOLE, .size_bytes = UINT32_MAX},
        {.kind = 1, .place = GR_SHM_INLINE, .size_bytes = GR_SHM_INLINE_MAX + 1},
        {.kind = 1, .place = 0, .size_bytes = 1},
        {.kind = 1, .place = 77, .size_bytes = 1},
        {.kind = 9, .place = GR_SHM_INLINE},
        {.kind = GR_FRAME_ABORT,
         .place = GR_SHM_WHOLE,
         .size_bytes = 400,
         .payload.far.offset = UINT64_MAX},
        {.kind = GR_FRAME_ABORT, .place = GR_SHM_PIECE, .size_bytes = 400, .message = 45},
    };
    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        forger f;
        gr_shm_slot slot = forged[i];
        forger_open(&f);
        if (slot.payload.far.offset == NEAR_END) {
            slot.payload.far.offset = f.own.size_bytes - 50;
        }
        forge(&f, slot);
        expect_failure(&f.h, GR_E_PROTOCOL, "rank 1 sent");
        forger_close(&f);
    }
}

static void shm_abort_with_an_unknown_status_breaks_the_communicator(void **state)
{
    const uint32_t statuses[] = {45, 1000, INT32_MAX, (uint32_t)INT32_MIN};
    (void)state;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        forger f;
        forger_open(&f);
        forge(&f, (gr_shm_slot){.kind = GR_FRAME_ABORT,
                                .place = GR_SHM_INLINE,
                                .message = statuses[i],
                                .segment = 1,
                                .size_bytes = 3,
                                .payload.bytes = "why"});
        expect_failure(&f.h, GR_E_COMM_BROKEN, "why");
        forger_close(&f);
    }
}

static void test_shm_forged_pieces(void **state)
{
    (void)state;
    const gr_shm_slot forged[] = {
        {.place = GR_SHM_PIECE, .size_bytes = 1000, .payload.far = {4096, 2000, 0}},
        {.place = GR_SHM_PIECE, .size_bytes = 1000, .payload.far = {4096, 100, 50}},
        {.place = GR_SHM_PIECE, .size_bytes = 1000, .payload.far = {4096, 0, 0}},
        {.place = GR_SHM_PIECE, .size_bytes = 1000, .payload.far = {UINT64_MAX, 100, 0}},
    };
    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        forger f;
        gr_shm_slot slot = forged[i];
        uint8_t dst[1000];
        gr_frame frame;
        slot.kind = GR_FRAME_DATA;
        forger_open(&f);
        forge(&f, slot);
        gr_link *link = gr_mesh_link(f.h.mesh, 1);
        gr_status status = gr_link_peek(link, &frame);
        if (status == GR_OK) {
            status = gr_link_read(link, dst);
        }
        assert_int_equal(status, GR_E_PROTOCOL);
        forger_close(&f);
    }
}

static void test_shm_forged_counters(void **state)
{
    (void)state;
    forger f;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 4};
    uint64_t ticket;
    forger_open(&f);
    atomic_store(&f.pair->slots[0].sequence, 12345);
    expect_failure(&f.h, GR_E_PROTOCOL, "where 1 was due");
    forger_close(&f);

    forger_open(&f);
    gr_link *link = gr_mesh_link(f.h.mesh, 1);
    atomic_store(&f.pair->released, 1000000);
    gr_status status = GR_OK;
    for (int i = 0; i < 2 * GR_SHM_SLOTS && status == GR_OK; i++) {
        status = gr_link_send(link, &frame, "abcd", &ticket);
    }
    assert_int_equal(status, GR_E_PEER_LOST);
    assert_int_equal(gr_link_diag(link)->status, GR_E_PROTOCOL);
    forger_close(&f);
}

/* With dynamic peers: whoever proves itself and then sends garbage, or nothing, is told of to the
 * host alone, and disturbs no other one. */
static void test_garbage_of_a_dynamic_peer(gr_link_kind kind)
{
    enum { HONEST = 1, LIAR = 2 };
    host h;
    uint8_t garbage[200];
    int before = open_fds();
    memset(garbage, 0x5a, sizeof garbage);
    host_open_in(&h, kind, 3);
    gr_mesh *other = NULL;
    gr_link *link = join_of(&h, &other, HONEST, 3);
    for (int silent = 0; silent < 2; silent++) {
        int fd = dial(&h), peer = -1;
        bool ended = false;
        uint64_t data = 7;
        gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof data}, head;
        uint64_t ticket;
        /* On tcp a link of one stream would be up, and may be silent for ever. */
        bool several = silent != 0 && ((int)kind & 0xff) == GR_LINK_TCP;
        assert_true(shake_as(&h, fd, LIAR, (gr_auth_rail){.index = 0, .count = several ? 2 : 1}));
        if (silent == 0) {
            assert_int_equal(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
        }
        for (int64_t end = test_now_us() + PATIENCE_US; peer != LIAR || !ended;) {
            assert_true(test_now_us() < end);
            progress_ok(&h);
            (void)gr_mesh_next_change(h.mesh, &peer, &ended);
        }
        assert_int_equal(gr_link_diag(gr_mesh_link(h.mesh, LIAR))->status,
                         silent == 0 ? GR_E_PROTOCOL : GR_E_PEER_SLOW);
        gr_mesh_remove(h.mesh, LIAR);
        assert_int_equal(gr_link_send(link, &frame, &data, &ticket), GR_OK);
        for (int64_t end = test_now_us() + PATIENCE_US;
             gr_link_peek(gr_mesh_link(h.mesh, HONEST), &head) == GR_PENDING;) {
            assert_true(test_now_us() < end);
            assert_int_equal(gr_mesh_progress(other, NULL), GR_OK);
            progress_ok(&h);
        }
        gr_link_next(gr_mesh_link(h.mesh, HONEST), NULL);
        close(fd);
    }
    gr_mesh_destroy(other);
    gr_mesh_destroy(h.mesh);
    assert_int_equal(open_fds(), before);
}

/* Files that could fault under our reading are refused before they are mapped. */
static void test_shm_bad_files(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        host h;
        gr_shm_segment own, bad;
        host_open(&h, GR_LINK_SHM);
        int fd = dial(&h);
        assert_true(shake(&h, fd, 1));
        assert_int_equal(gr_shm_segment_create(1, 2, 1 << 20, &own, NULL), GR_OK);
        bad = own;
        FILE *file = tmpfile();
        assert_non_null(file);
        if (how == 0) {
            bad.fd = fileno(file); /* no memory file */
        } else if (how == 1) {
            bad.size_bytes += 1 << 20; /* shorter than it says */
        } else {
            memset(own.base + GR_SHM_FRONT_BYTES, 0, 64); /* no card in it */
        }
        assert_int_equal(gr_shm_segment_give(fd, &bad, 1, 2, NULL), GR_OK);
        expect_failure(&h, GR_E_PROTOCOL, "memory file");
        fclose(file);
        gr_shm_segment_close(&own);
        close(fd);
        gr_mesh_destroy(h.mesh);
    }
}

static void test_closed_when_all_are_here(gr_link_kind kind)
{
    host h;
    host_open(&h, kind);
    char address[GR_ADDRESS_BYTES];
    snprintf(address, sizeof address, "%s", gr_mesh_address(h.mesh));
    gr_mesh *other;
    (void)join_as(&h, &other, 1);
    int fd = -1;
    gr_status status = gr_address_connect(address, &fd, NULL);
    assert_true(status == GR_E_PEER_LOST || status == GR_PENDING);
    if (status == GR_PENDING) { /* TCP tells later */
        struct pollfd at = {.fd = fd, .events = POLLOUT};
        int error = 0;
        socklen_t size = sizeof error;
        assert_int_equal(poll(&at, 1, 10000), 1);
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
        assert_int_equal(error, ECONNREFUSED);
        close(fd);
    }
    gr_mesh_destroy(other);
    gr_mesh_destroy(h.mesh);
}

/* Of a door, whether it is ever shut or not. */
#define ACCEPTOR_TEST(X)                                                                           \
    X(garbage_gets_a_challenge_and_the_door)                                                       \
    X(half_open_flood)                                                                             \
    X(slow_one_is_closed)                                                                          \
    X(false_ranks)                                                                                 \
    X(second_of_a_rank)                                                                            \
    X(wrong_secret)                                                                                \
    X(nobody_listens)

#define EACH_TEST(X)                                                                               \
    ACCEPTOR_TEST(X)                                                                               \
    X(bad_addresses)                                                                               \
    X(garbage_after_the_handshake)                                                                 \
    X(closed_when_all_are_here)

#define DEFINE(name)                                                                               \
    static void shm_##name(void **state)                                                           \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name(GR_LINK_SHM);                                                                  \
    }                                                                                              \
    static void tcp_##name(void **state)                                                           \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name(GR_LINK_TCP);                                                                  \
    }
EACH_TEST(DEFINE)

#define DYNAMIC_TEST(X) ACCEPTOR_TEST(X) X(garbage_of_a_dynamic_peer)

#define DEFINE_DYNAMIC(name)                                                                       \
    static void shm_dynamic_##name(void **state)                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name((gr_link_kind)((int)GR_LINK_SHM | (int)WITH_DYNAMIC_PEERS));                   \
    }                                                                                              \
    static void tcp_dynamic_##name(void **state)                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name((gr_link_kind)((int)GR_LINK_TCP | (int)WITH_DYNAMIC_PEERS));                   \
    }
DYNAMIC_TEST(DEFINE_DYNAMIC)

#define LIST_DYNAMIC(name)                                                                         \
    cmocka_unit_test(shm_dynamic_##name), cmocka_unit_test(tcp_dynamic_##name),
#define LIST(name) cmocka_unit_test(shm_##name), cmocka_unit_test(tcp_##name),

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_TEST(LIST) DYNAMIC_TEST(LIST_DYNAMIC)
            cmocka_unit_test(test_tcp_frame_with_a_flipped_bit),
        cmocka_unit_test(test_false_rails),
        cmocka_unit_test(test_streams_that_do_not_come),
        cmocka_unit_test(test_garbage_on_a_stream),
        cmocka_unit_test(test_shm_forged_descriptors),
        cmocka_unit_test(shm_abort_with_an_unknown_status_breaks_the_communicator),
        cmocka_unit_test(test_shm_forged_pieces),
        cmocka_unit_test(test_shm_forged_counters),
        cmocka_unit_test(test_shm_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
