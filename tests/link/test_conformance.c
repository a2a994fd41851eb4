/* SPDX-License-Identifier: Apache-2.0 */

/* What every kind of link must do, in one list that runs over each of them. */

#include "link/mesh.h"
#include "link/shared.h"
#include "sanitized.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LARGE = 5 * 1000 * 1000 + 13, MANY = 3000 };

static uint8_t pattern(size_t at, uint32_t salt)
{
    return (uint8_t)(at * 2654435761U + salt * 97 + (at >> 8));
}

static void paint(uint8_t *data, size_t size, uint32_t salt)
{
    for (size_t i = 0; i < size; i++) {
        data[i] = pattern(i, salt);
    }
}

static void check_painted(const uint8_t *data, size_t size, uint32_t salt)
{
    for (size_t i = 0; i < size; i++) {
        if (data[i] != pattern(i, salt)) {
            fail_msg("byte %zu of %zu is 0x%02x", i, size, data[i]);
        }
    }
}

/* Memory of the program, registered: whole pages. */
static uint8_t *register_memory(gr_mesh *mesh, size_t size_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (size_bytes + page - 1) / page * page;
    uint8_t *mem = aligned_alloc(page, whole);
    assert_non_null(mem);
    assert_int_equal(gr_mesh_register(mesh, mem, whole, NULL), GR_OK);
    return mem;
}

static void free_registered(gr_mesh *mesh, uint8_t *mem)
{
    assert_int_equal(gr_mesh_unregister(mesh, mem, NULL), GR_OK);
    free(mem);
}

static void test_connects(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    assert_int_equal(gr_link_diag(p.link[0])->status, GR_OK);
    assert_null(gr_mesh_link(p.mesh[0], 0));
    assert_null(gr_mesh_link(p.mesh[0], 2));
    assert_null(gr_mesh_link(p.mesh[0], -1));
    gr_frame frame;
    assert_int_equal(gr_link_peek(p.link[0], &frame), GR_PENDING);
    pair_close(&p);
}

static void test_frame_arrives_as_sent(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    const gr_frame sent = {.kind = GR_FRAME_DATA,
                           .op_seq = 0xfffffff1,
                           .message = 7,
                           .segment = 0x80000000,
                           .size_bytes = 3,
                           .fingerprint = 0x123456789abcdef0};
    uint64_t ticket;
    assert_int_equal(gr_link_send(p.link[1], &sent, "abc", &ticket), GR_OK);
    gr_frame got = pair_await(&p, 0);
    assert_int_equal(got.kind, sent.kind);
    assert_int_equal(got.op_seq, sent.op_seq);
    assert_int_equal(got.message, sent.message);
    assert_int_equal(got.segment, sent.segment);
    assert_int_equal(got.size_bytes, sent.size_bytes);
    assert_int_equal(got.fingerprint, sent.fingerprint);
    char text[4] = "";
    pair_read(&p, 0, text);
    assert_string_equal(text, "abc");
    pair_close(&p);
}

/* All sizes around every border that a link might have, from plain, shared and registered memory,
 * aligned or not. */
static void test_sizes(gr_link_kind kind)
{
    static const uint32_t sizes[] = {0,      1,      31,     32,     33,     63,     64,     65,
                                     1023,   1024,   1025,   4095,   8151,   8152,   8153,   65536,
                                     131071, 131072, 131073, 524287, 524288, 524289, 3000001};
    pair p;
    pair_open(&p, kind);
    void *shared;
    uint8_t *plain = malloc(LARGE), *in = malloc(LARGE);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], LARGE, &shared), GR_OK);
    uint8_t *registered = register_memory(p.mesh[0], LARGE);
    uint8_t *const places[] = {plain, shared, (uint8_t *)shared + 3, registered, registered + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint32_t how = 0; how < sizeof places / sizeof places[0]; how++) {
            uint8_t *out = places[how];
            paint(out, sizes[i], how);
            uint64_t ticket = pair_send(&p, 0, how, out, sizes[i]);
            gr_frame frame = pair_await(&p, 1);
            assert_int_equal(frame.size_bytes, sizes[i]);
            assert_int_equal(frame.op_seq, how);
            memset(in, 0xee, (size_t)sizes[i] + 1);
            pair_read(&p, 1, in);
            check_painted(in, sizes[i], how);
            assert_int_equal(in[sizes[i]], 0xee);
            for (int64_t end = test_now_us() + PATIENCE_US; !gr_link_sent(p.link[0], ticket);) {
                assert_true(test_now_us() < end);
                pair_pump(&p);
            }
        }
    }
    gr_mesh_free(p.mesh[0], shared);
    free_registered(p.mesh[0], registered);
    free(plain);
    free(in);
    pair_close(&p);
}

static void test_largest_message_and_beyond(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    uint8_t *out = malloc(GR_FRAME_PAYLOAD_MAX), *in = malloc(GR_FRAME_PAYLOAD_MAX);
    paint(out, GR_FRAME_PAYLOAD_MAX, 5);
    (void)pair_send(&p, 0, 1, out, GR_FRAME_PAYLOAD_MAX);
    pair_read(&p, 1, in);
    check_painted(in, GR_FRAME_PAYLOAD_MAX, 5);
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = GR_FRAME_PAYLOAD_MAX + 1};
    uint64_t ticket;
    assert_int_equal(gr_link_send(p.link[0], &frame, out, &ticket), GR_E_INVALID);
    free(out);
    free(in);
    pair_close(&p);
}

/* Both send large messages before either reads: nobody may wait for the other to read first. */
static void test_both_ways_at_once(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    uint8_t *out[2], *in[2];
    bool done[2] = {false, false};
    uint64_t ticket[2];
    for (int i = 0; i < 2; i++) {
        out[i] = malloc(LARGE);
        in[i] = malloc(LARGE);
        paint(out[i], LARGE, (uint32_t)i);
        ticket[i] = pair_send(&p, i, 1, out[i], LARGE);
    }
    int64_t end = test_now_us() + PATIENCE_US;
    while (!done[0] || !done[1]) {
        assert_true(test_now_us() < end);
        pair_pump(&p);
        for (int i = 0; i < 2; i++) {
            gr_frame frame;
            if (!done[i] && gr_link_peek(p.link[i], &frame) == GR_OK) {
                done[i] = gr_link_read(p.link[i], in[i]) == GR_OK;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        gr_link_next(p.link[i], NULL);
        check_painted(in[i], LARGE, (uint32_t)(1 - i));
        while (!gr_link_sent(p.link[i], ticket[i])) {
            pair_pump(&p);
        }
        free(out[i]);
        free(in[i]);
    }
    pair_close(&p);
}

static void test_order(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    enum { ROUNDS = 400, SIZE_MAX_HERE = 70000 };
    uint8_t *in = malloc(SIZE_MAX_HERE);
    uint8_t *out = malloc(SIZE_MAX_HERE + 256);
    paint(out, SIZE_MAX_HERE + 256, 9);
    uint32_t sent = 0, got = 0, random = 1;
    int64_t end = test_now_us() + PATIENCE_US;
    while (got < ROUNDS) {
        assert_true(test_now_us() < end);
        gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = sent};
        random = random * 1664525 + 1013904223;
        frame.size_bytes = (random >> 8) % ((random & 3) == 0 ? SIZE_MAX_HERE : 300);
        uint64_t ticket;
        if (sent < ROUNDS && gr_link_send(p.link[0], &frame, out + sent % 256, &ticket) == GR_OK) {
            sent++;
        }
        pair_pump(&p);
        while ((sent == ROUNDS || sent > got + 20) && gr_link_peek(p.link[1], &frame) == GR_OK &&
               gr_link_read(p.link[1], in) == GR_OK) {
            assert_int_equal(frame.op_seq, got);
            assert_memory_equal(in, out + got % 256, frame.size_bytes);
            gr_link_next(p.link[1], NULL);
            got++;
        }
    }
    free(in);
    free(out);
    pair_close(&p);
}

static void test_back_pressure(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    enum { SIZE = 100000 };
    void *out;
    uint8_t *in = malloc(SIZE);
    uint64_t ticket = 0, last = 0;
    uint32_t sent = 0;
    assert_int_equal(gr_mesh_alloc(p.mesh[0], SIZE, &out), GR_OK);
    paint(out, SIZE, 1);
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = SIZE};
    gr_status status;
    while ((status = gr_link_send(p.link[0], &frame, out, &ticket)) == GR_OK) {
        assert_true(ticket > last);
        last = ticket;
        frame.op_seq = ++sent;
        assert_true(sent < 100000);
    }
    assert_int_equal(status, GR_E_AGAIN);
    assert_false(gr_link_sent(p.link[0], last));
    for (uint32_t got = 0; got < sent; got++) {
        assert_int_equal(pair_await(&p, 1).op_seq, got);
        pair_read(&p, 1, in);
        check_painted(in, SIZE, 1);
    }
    pair_pump(&p);
    assert_true(gr_link_sent(p.link[0], last));
    assert_int_equal(gr_link_send(p.link[0], &frame, out, &ticket), GR_OK);
    free(in);
    pair_close(&p);
}

/* Small messages from plain memory go on the stack of the caller as soon as they are sent. */
static void test_many_small(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    uint32_t got = 0;
    for (uint32_t sent = 0; sent < MANY; sent++) {
        uint32_t value = sent * 3;
        uint64_t ticket = pair_send(&p, 0, sent, &value, sizeof value);
        for (int64_t end = test_now_us() + PATIENCE_US; !gr_link_sent(p.link[0], ticket);) {
            assert_true(test_now_us() < end);
            pair_pump(&p);
        }
        value = 0xdeadbeef;
        if (sent % 100 == 99 || sent == MANY - 1) {
            for (; got <= sent; got++) {
                uint32_t read;
                assert_int_equal(pair_await(&p, 1).op_seq, got);
                pair_read(&p, 1, &read);
                assert_int_equal(read, got * 3);
            }
        }
    }
    pair_close(&p);
}

/* Held messages keep their bytes while others come and go, and are released in any order. */
static void test_views_and_holds(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    enum { HELD = 64, SIZE = 500 };
    const void *view[HELD];
    uint64_t hold[HELD], ticket[HELD];
    uint8_t *out;
    void *memory;
    assert_int_equal(gr_mesh_alloc(p.mesh[0], (size_t)HELD * SIZE, &memory), GR_OK);
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < HELD; i++) {
            out = (uint8_t *)memory + (size_t)i * SIZE;
            paint(out, SIZE, i);
            ticket[i] = pair_send(&p, 0, i, out, SIZE);
            assert_int_equal(pair_await(&p, 1).op_seq, i);
            assert_int_equal(gr_link_view(p.link[1], &view[i]), GR_OK);
            gr_link_next(p.link[1], &hold[i]);
        }
        for (uint32_t i = 0; i < HELD; i++) {
            check_painted(view[i], SIZE, i);
        }
        for (uint32_t i = 0; i < HELD; i++) {
            gr_link_release(p.link[1], hold[(i * 37 + (uint32_t)round) % HELD]);
        }
        pair_pump(&p);
        for (uint32_t i = 0; i < HELD; i++) {
            assert_true(gr_link_sent(p.link[0], ticket[i]));
        }
    }
    pair_close(&p);
}

/* A message that nobody reads is passed over, whether all of it has come or not. */
static void test_next_without_reading(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    uint8_t *out = malloc(LARGE), *in = malloc(LARGE);
    paint(out, LARGE, 3);
    for (uint32_t i = 0; i < 3; i++) {
        (void)pair_send(&p, 0, 1, out, LARGE);
        (void)pair_await(&p, 1);
        if (i == 1) {
            gr_status status = gr_link_read(p.link[1], in); /* some of it */
            assert_true(status >= 0);
        }
        gr_link_next(p.link[1], NULL);
        (void)pair_send(&p, 0, 2, "after", 6);
        assert_int_equal(pair_await(&p, 1).op_seq, 2);
        char text[6];
        pair_read(&p, 1, text);
        assert_string_equal(text, "after");
    }
    free(out);
    free(in);
    pair_close(&p);
}

static void test_alloc(gr_link_kind kind)
{
    enum { COUNT = 200 };
    pair p;
    void *mem[COUNT];
    uint32_t random = 7;
    pair_open(&p, kind);
    memset(mem, 0, sizeof mem);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], 0, &mem[0]), GR_E_INVALID);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], SIZE_MAX - 10, &mem[0]), GR_E_NO_MEMORY);
    for (int i = 0; i < 5 * COUNT; i++) {
        int at = (int)(i * 37 % COUNT);
        random = random * 1664525 + 1013904223;
        size_t size = (random >> 4) % 60000 + 1;
        gr_mesh_free(p.mesh[0], mem[at]);
        assert_int_equal(gr_mesh_alloc(p.mesh[0], size, &mem[at]), GR_OK);
        assert_int_equal((uintptr_t)mem[at] % 64, 0);
        uint8_t *byte = mem[at];
        for (size_t j = 0; j < size; j++) {
            assert_int_equal(byte[j], 0);
        }
        memset(byte, 0xa5, size);
    }
    pair_close(&p); /* which frees the rest */
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static void test_bye(gr_link_kind kind)
{
    pair p;
    gr_frame frame;
    gr_diag diag = {0};
    pair_open(&p, kind);
    (void)pair_send(&p, 1, 5, "last words", 11);
    gr_mesh_destroy(p.mesh[1]);
    int64_t end = test_now_us() + PATIENCE_US;
    while (gr_link_diag(p.link[0])->status == GR_OK) {
        assert_true(test_now_us() < end);
        assert_int_equal(gr_mesh_progress(p.mesh[0], &diag), GR_OK);
        (void)!gr_link_peek(p.link[0], &frame);
        if (gr_link_peek(p.link[0], &frame) == GR_OK) {
            char text[11];
            assert_int_equal(gr_link_read(p.link[0], text), GR_OK);
            assert_string_equal(text, "last words");
            gr_link_next(p.link[0], NULL);
        }
    }
    while (gr_link_peek(p.link[0], &frame) == GR_OK) {
        gr_link_next(p.link[0], NULL);
    }
    assert_int_equal(gr_link_peek(p.link[0], &frame), GR_E_PEER_LOST);
    assert_non_null(strstr(gr_link_diag(p.link[0])->text, "left in order"));
    assert_int_equal(gr_link_diag(p.link[0])->peer_rank, 1);
    uint64_t ticket;
    frame = (gr_frame){.kind = GR_FRAME_DATA};
    assert_int_equal(gr_link_send(p.link[0], &frame, "", &ticket), GR_E_PEER_LOST);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(gr_mesh_progress(p.mesh[0], &diag), GR_OK);
    }
    gr_mesh_destroy(p.mesh[0]);
}

/* What the capabilities say is so. */
static void test_capabilities(gr_link_kind kind)
{
    static uint8_t plain[4096], taken[4096];
    pair p;
    void *mem;
    gr_shared shared;
    gr_mesh_stats before, after;
    pair_open(&p, kind);
    const gr_link_caps *caps = gr_link_capabilities(p.link[0]);
    assert_ptr_equal(caps, gr_mesh_capabilities(p.mesh[0]));
    assert_int_equal(gr_mesh_shared(p.mesh[0], 1, &shared), caps->one_sided);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], sizeof plain, &mem), GR_OK);
    uint8_t *registered = register_memory(p.mesh[0], sizeof plain);
    gr_mesh_get_stats(p.mesh[0], &before);
    (void)pair_send(&p, 0, 1, mem, sizeof plain);
    pair_read(&p, 1, taken);
    (void)pair_send(&p, 0, 1, registered, sizeof plain);
    pair_read(&p, 1, taken);
    gr_mesh_get_stats(p.mesh[0], &after);
    assert_int_equal(after.bytes_copied, before.bytes_copied);
    (void)pair_send(&p, 0, 2, plain, sizeof plain);
    pair_read(&p, 1, taken);
    gr_mesh_get_stats(p.mesh[0], &after);
    assert_int_equal(after.bytes_copied > before.bytes_copied, caps->registered_memory);
    free_registered(p.mesh[0], registered);
    pair_close(&p);
}

static void test_abort(gr_link_kind kind)
{
    pair p;
    static const char sentence[] = "rank 7 was killed by signal 9\x1b[31m";
    gr_diag diag = {0};
    gr_frame frame = {.kind = GR_FRAME_ABORT,
                      .message = (uint32_t)-GR_E_MISMATCH,
                      .segment = 7,
                      .size_bytes = sizeof sentence - 1};
    uint64_t ticket;
    pair_open(&p, kind);
    assert_int_equal(gr_link_send(p.link[1], &frame, sentence, &ticket), GR_OK);
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        status = gr_mesh_progress(p.mesh[0], &diag);
    }
    assert_int_equal(status, GR_E_MISMATCH);
    assert_string_equal(diag.text, "rank 7 was killed by signal 9 [31m");
    assert_int_equal(diag.peer_rank, 7);
    assert_string_equal(gr_link_diag(p.link[0])->text, diag.text);
    assert_int_equal(gr_link_peek(p.link[0], &frame), GR_E_PEER_LOST);
    /* Told once. */
    assert_int_equal(gr_mesh_progress(p.mesh[0], &diag), GR_OK);
    pair_close(&p);
}

/* Data that nobody reads, more than sockets hold; then an ABORT: whoever wants no data any more
 * finds it, and what is queued the other way does not keep it waiting. */
static void test_discard(gr_link_kind kind)
{
    enum { BIG = 8 << 20, COUNT = 4 };
    static const char sentence[] = "rank 2 died";
    pair p;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = BIG};
    uint64_t ticket;
    uint8_t *data[2] = {calloc(1, BIG), calloc(1, BIG)};
    assert_true(data[0] != NULL && data[1] != NULL);
    pair_open(&p, kind);
    for (int i = 0; i < COUNT; i++) {
        for (int at = 0; at < 2; at++) {
            gr_status sent = gr_link_send(p.link[at], &frame, data[at], &ticket);
            assert_true(sent == GR_OK || sent == GR_E_AGAIN);
        }
    }
    (void)pair_await(&p, 0);
    gr_status reading = gr_link_read(p.link[0], data[0]);
    assert_true(reading == GR_OK || reading == GR_PENDING);
    gr_link_discard(p.link[1]);
    frame = (gr_frame){.kind = GR_FRAME_ABORT, .size_bytes = sizeof sentence - 1};
    assert_int_equal(gr_link_send(p.link[1], &frame, sentence, &ticket), GR_OK);
    gr_link_discard(p.link[0]);
    assert_true(gr_link_peek(p.link[0], &frame) != GR_OK);
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        status = gr_mesh_progress(p.mesh[0], NULL);
        (void)!gr_mesh_progress(p.mesh[1], NULL); /* sees the link end once the sentence is there */
    }
    assert_int_equal(status, GR_E_COMM_BROKEN);
    assert_string_equal(gr_link_diag(p.link[0])->text, sentence);
    assert_int_equal(gr_link_peek(p.link[0], &frame), GR_E_PEER_LOST);
    pair_close(&p);
    free(data[0]);
    free(data[1]);
}

/* An ABORT gets through when the sender has no room for data any more. */
static void test_abort_when_full(gr_link_kind kind)
{
    pair p;
    static const char sentence[] = "no more";
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof sentence};
    uint64_t ticket;
    pair_open(&p, kind);
    /* Over TCP it must queue behind the data: fill no more than the peer can take in unread. */
    bool tcp = kind != GR_LINK_SHM;
    int count = tcp ? 20 : 100000;
    for (int i = 0; i < count; i++) {
        if (gr_link_send(p.link[1], &frame, sentence, &ticket) != GR_OK) {
            break;
        }
    }
    for (int i = 0; tcp && i < 20; i++) {
        (void)pair_await(&p, 0);
        gr_link_next(p.link[0], NULL);
    }
    frame = (gr_frame){.kind = GR_FRAME_ABORT, .size_bytes = sizeof sentence - 1};
    assert_int_equal(gr_link_send(p.link[1], &frame, sentence, &ticket), GR_OK);
    gr_status status = GR_OK;
    for (int64_t end = test_now_us() + PATIENCE_US; status == GR_OK && test_now_us() < end;) {
        status = gr_mesh_progress(p.mesh[0], NULL);
    }
    assert_int_equal(status, GR_E_COMM_BROKEN);
    pair_close(&p);
}

/* ---- Another process ------------------------------------------------------------------------- */

typedef struct lone {
    gr_mesh *mesh;
    gr_link *link;
    pid_t helper;
} lone;

static void lone_open(lone *l, gr_link_kind kind, helper_body *body)
{
    gr_mesh_config config = test_config(kind, 0, 2);
    assert_int_equal(gr_mesh_create(&config, &l->mesh, NULL), GR_OK);
    l->helper = helper_start(kind, gr_mesh_address(l->mesh), body);
    l->link = await_link(l->mesh, 1);
    assert_non_null(l->link);
}

static int body_echo(gr_mesh *mesh, gr_link *link)
{
    static uint8_t data[LARGE];
    uint64_t ticket = 0;
    for (;;) {
        gr_frame frame;
        gr_status status = gr_link_peek(link, &frame);
        if (status == GR_OK && gr_link_sent(link, ticket) && gr_link_read(link, data) == GR_OK) {
            gr_link_next(link, NULL);
            while (gr_link_send(link, &frame, data, &ticket) == GR_E_AGAIN) {
                gr_mesh_wait(mesh, test_now_us() + 10000);
                (void)!gr_mesh_progress(mesh, NULL);
            }
            continue;
        }
        if (status != GR_OK && status != GR_PENDING) {
            return strstr(gr_link_diag(link)->text, "left in order") != NULL ? 0 : 1;
        }
        gr_mesh_wait(mesh, test_now_us() + 1000000);
        (void)!gr_mesh_progress(mesh, NULL);
    }
}

static void test_another_process(gr_link_kind kind)
{
    static const uint32_t sizes[] = {0, 4, 40, 4000, 400000, LARGE};
    static uint8_t out[LARGE], in[LARGE];
    lone l;
    lone_open(&l, kind, body_echo);
    for (uint32_t i = 0; i < 60; i++) {
        uint64_t ticket;
        gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = i, .size_bytes = sizes[i % 6]};
        paint(out, frame.size_bytes, i);
        assert_int_equal(gr_link_send(l.link, &frame, out, &ticket), GR_OK);
        gr_status status = GR_PENDING;
        for (int64_t end = test_now_us() + PATIENCE_US; status == GR_PENDING;) {
            assert_true(test_now_us() < end);
            assert_int_equal(gr_mesh_progress(l.mesh, NULL), GR_OK);
            status = gr_link_peek(l.link, &frame);
            if (status == GR_OK) {
                status = gr_link_read(l.link, in);
            }
            if (status == GR_PENDING) {
                gr_mesh_wait(l.mesh, end);
            }
        }
        assert_int_equal(status, GR_OK);
        gr_link_next(l.link, NULL);
        assert_int_equal(frame.op_seq, i);
        check_painted(in, sizes[i % 6], i);
        assert_true(gr_link_sent(l.link, ticket));
    }
    gr_mesh_destroy(l.mesh);
    assert_int_equal(helper_end(l.helper), 0);
}

static _Noreturn int body_idle(gr_mesh *mesh, gr_link *link)
{
    uint64_t ticket;
    const gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 5};
    (void)!gr_link_send(link, &frame, "ready", &ticket);
    for (;;) {
        (void)!gr_mesh_progress(mesh, NULL);
        gr_mesh_wait(mesh, test_now_us() + PATIENCE_US);
    }
}

static _Noreturn int body_flood(gr_mesh *mesh, gr_link *link)
{
    static uint8_t data[LARGE];
    for (;;) {
        uint64_t ticket;
        const gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof data};
        if (gr_link_send(link, &frame, data, &ticket) != GR_OK) {
            gr_mesh_wait(mesh, test_now_us() + 1000000);
        }
        (void)!gr_mesh_progress(mesh, NULL);
    }
}

/* Kill the helper and see it noticed: in peek, in progress, with its name. The end of its
 * connection ends the wait: nothing else would in time. */
static void expect_death(lone *l, bool keep_reading)
{
    static uint8_t in[LARGE];
    gr_diag diag = {0};
    gr_frame frame;
    gr_status told = GR_OK, status = GR_PENDING;
    int64_t killed_us = test_now_us();
    assert_int_equal(kill(l->helper, SIGKILL), 0);
    while (status == GR_PENDING || status == GR_OK) {
        assert_true(test_now_us() < killed_us + PATIENCE_US);
        gr_status now = gr_mesh_progress(l->mesh, &diag);
        told = told == GR_OK ? now : told;
        status = gr_link_peek(l->link, &frame);
        if (status == GR_OK && keep_reading) {
            status = gr_link_read(l->link, in);
            if (status == GR_OK) {
                gr_link_next(l->link, NULL);
            }
        }
        if (status == GR_PENDING && told == GR_OK) {
            gr_mesh_wait(l->mesh, killed_us + PATIENCE_US);
        }
    }
    if (told == GR_OK) {
        told = gr_mesh_progress(l->mesh, &diag); /* the link told first */
    }
    assert_int_equal(status, GR_E_PEER_LOST);
    assert_int_equal(told, GR_E_PEER_LOST);
    assert_int_equal(diag.peer_rank, 1);
    assert_non_null(strstr(diag.text, "rank 1 died"));
    uint64_t ticket;
    frame = (gr_frame){.kind = GR_FRAME_DATA};
    assert_int_equal(gr_link_send(l->link, &frame, "", &ticket), GR_E_PEER_LOST);
    gr_mesh_destroy(l->mesh);
    assert_int_equal(helper_end(l->helper), -SIGKILL);
}

static void test_death_while_idle(gr_link_kind kind)
{
    lone l;
    lone_open(&l, kind, body_idle);
    expect_death(&l, true);
}

static void test_death_while_sending(gr_link_kind kind)
{
    lone l;
    static uint8_t in[LARGE];
    lone_open(&l, kind, body_flood);
    for (int i = 0; i < 3; i++) {
        gr_frame frame;
        gr_status status = GR_PENDING;
        while (status == GR_PENDING) {
            assert_int_equal(gr_mesh_progress(l.mesh, NULL), GR_OK);
            status = gr_link_peek(l.link, &frame);
            if (status == GR_OK) {
                status = gr_link_read(l.link, in);
            }
        }
        assert_int_equal(status, GR_OK);
        gr_link_next(l.link, NULL);
    }
    expect_death(&l, true);
}

static void test_death_while_receiving(gr_link_kind kind)
{
    lone l;
    static uint8_t out[LARGE];
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = sizeof out};
    uint64_t ticket;
    lone_open(&l, kind, body_idle);
    assert_int_equal(gr_link_send(l.link, &frame, out, &ticket), GR_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(gr_mesh_progress(l.mesh, NULL), GR_OK);
    }
    assert_false(gr_link_sent(l.link, ticket)); /* the helper reads nothing, the kernel is full */
    expect_death(&l, true);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void test_mesh_waits_to_deadline_sleeps(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    pair_pump(&p);
    for (int64_t sleep_us = 1000; sleep_us <= 64000; sleep_us *= 8) {
        int64_t start = test_now_us(), deadline = start + sleep_us;
        int turns = 0;
        while (test_now_us() < deadline) {
            gr_mesh_wait(p.mesh[0], deadline);
            assert_int_equal(gr_mesh_progress(p.mesh[0], NULL), GR_OK);
            turns++;
        }
        assert_true(test_now_us() - start < PATIENCE_US);
        assert_true(turns < 100); /* it slept */
    }
    pair_close(&p);
}

/* A message that was seen but not taken does not keep the process awake. */
static void test_wait_sleeps_over_what_was_seen(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    uint8_t *out = malloc(LARGE);
    (void)pair_send(&p, 1, 1, "x", 2);
    (void)pair_send(&p, 1, 2, "y", 2);
    paint(out, LARGE, 0);
    (void)pair_send(&p, 1, 3, out, LARGE);
    (void)pair_await(&p, 0);
    pair_pump(&p);
    int turns = 0;
    for (int64_t end = test_now_us() + 50000; test_now_us() < end; turns++) {
        gr_mesh_wait(p.mesh[0], end);
        assert_int_equal(gr_mesh_progress(p.mesh[0], NULL), GR_OK);
    }
    assert_true(turns < 60);
    free(out);
    pair_close(&p);
}

typedef struct waker {
    gr_mesh *mesh;
    atomic_int stage;
} waker;

static void *wake_it(void *arg)
{
    waker *w = arg;
    atomic_store(&w->stage, 1);
    gr_mesh_wake(w->mesh);
    return NULL;
}

static void test_wake(gr_link_kind kind)
{
    pair p;
    pair_open(&p, kind);
    pair_pump(&p);
    p.mesh[0]->sleep_us = 2 * PATIENCE_US; /* no sleep ends by itself in time */
    for (int i = 0; i < 50; i++) {
        waker w = {.mesh = p.mesh[0]};
        pthread_t thread;
        atomic_init(&w.stage, 0);
        int64_t start = test_now_us();
        assert_int_equal(pthread_create(&thread, NULL, wake_it, &w), 0);
        while (atomic_load(&w.stage) == 0) {
            gr_mesh_wait(p.mesh[0], start + PATIENCE_US);
            assert_int_equal(gr_mesh_progress(p.mesh[0], NULL), GR_OK);
        }
        assert_true(test_now_us() - start < PATIENCE_US);
        pthread_join(thread, NULL);
    }
    /* A wake before the wait is not lost: else this one ended at its deadline. */
    gr_mesh_wake(p.mesh[0]);
    int64_t end = test_now_us() + PATIENCE_US;
    gr_mesh_wait(p.mesh[0], end);
    assert_true(test_now_us() < end);
    pair_close(&p);
}

static void test_nothing_is_left(gr_link_kind kind)
{
    int before = open_fds();
    pair p;
    pair_open(&p, kind);
    (void)pair_send(&p, 0, 1, "x", 2);
    assert_true(open_fds() > before);
    pair_close(&p);
    assert_int_equal(open_fds(), before);
}

/* ---- The list -------------------------------------------------------------------------------- */

/* In a mesh with dynamic peers the end of a link is told otherwise: test_dynamic_peers.c. */
#define FAILURE_TEST(X)                                                                            \
    X(abort)                                                                                       \
    X(abort_when_full)                                                                             \
    X(discard)                                                                                     \
    X(death_while_idle)                                                                            \
    X(death_while_sending)                                                                         \
    X(death_while_receiving)

#define EACH_TEST(X)                                                                               \
    X(connects)                                                                                    \
    X(capabilities)                                                                                \
    X(frame_arrives_as_sent)                                                                       \
    X(sizes)                                                                                       \
    X(largest_message_and_beyond)                                                                  \
    X(both_ways_at_once)                                                                           \
    X(order)                                                                                       \
    X(back_pressure)                                                                               \
    X(many_small)                                                                                  \
    X(views_and_holds)                                                                             \
    X(next_without_reading)                                                                        \
    X(alloc)                                                                                       \
    X(bye)                                                                                         \
    X(another_process)                                                                             \
    X(mesh_waits_to_deadline_sleeps)                                                               \
    X(wait_sleeps_over_what_was_seen)                                                              \
    X(wake)                                                                                        \
    X(nothing_is_left)

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
    }                                                                                              \
    static void tcp_of_2_streams_##name(void **state)                                              \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name(TCP_RAILS(2));                                                                 \
    }                                                                                              \
    static void tcp_of_4_streams_##name(void **state)                                              \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name(TCP_RAILS(4));                                                                 \
    }                                                                                              \
    static void tls_##name(void **state)                                                           \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name((gr_link_kind)(GR_LINK_TCP | TCP_ENCRYPTED));                                  \
    }                                                                                              \
    static void tls_of_4_streams_##name(void **state)                                              \
    {                                                                                              \
        (void)state;                                                                               \
        test_##name((gr_link_kind)(TCP_RAILS(4) | TCP_ENCRYPTED));                                 \
    }
EACH_TEST(DEFINE)
FAILURE_TEST(DEFINE)

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
EACH_TEST(DEFINE_DYNAMIC)

#define LIST_DYNAMIC(name)                                                                         \
    cmocka_unit_test(shm_dynamic_##name), cmocka_unit_test(tcp_dynamic_##name),

#define LIST(name)                                                                                 \
    cmocka_unit_test(shm_##name), cmocka_unit_test(tcp_##name),                                    \
        cmocka_unit_test(tcp_of_2_streams_##name), cmocka_unit_test(tcp_of_4_streams_##name),      \
        cmocka_unit_test(tls_##name), cmocka_unit_test(tls_of_4_streams_##name),

int main(void)
{
    const struct CMUnitTest tests[] = {EACH_TEST(LIST) FAILURE_TEST(LIST)};
    const struct CMUnitTest with_dynamic_peers[] = {EACH_TEST(LIST_DYNAMIC)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    /* The same code but for who may come; with a sanitizer once is long enough. */
    return failed + (SANITIZED ? 0 : cmocka_run_group_tests(with_dynamic_peers, NULL, NULL));
}
