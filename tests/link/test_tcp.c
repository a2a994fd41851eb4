/* SPDX-License-Identifier: Apache-2.0 */

/* What only links of the kind tcp have. */

#include "link/frame.h"
#include "link/mesh.h"
#include "link/tcp/tcp.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Pacing is for networks: inside a host no link may have an algorithm that paces. */
static void test_local_links_are_not_paced(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, GR_LINK_TCP);
    for (int i = 0; i < 2; i++) {
        char name[16] = "";
        socklen_t size = sizeof name;
        assert_int_equal(getsockopt(p.link[i]->fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
        assert_string_equal(name, "reno");
    }
    pair_close(&p);
}

/* Until somebody asks whether they are gone. */
static void test_small_messages_leave_at_once(void **state)
{
    enum { COUNT = 10 };
    (void)state;
    pair p;
    gr_mesh_stats before, after;
    uint64_t ticket = 0;
    uint8_t out[COUNT], in = 0;
    pair_open(&p, GR_LINK_TCP);
    gr_mesh_get_stats(p.mesh[0], &before);
    for (uint32_t i = 0; i < COUNT; i++) {
        gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = i, .size_bytes = 1};
        out[i] = (uint8_t)i;
        assert_int_equal(gr_link_send(p.link[0], &frame, &out[i], &ticket), GR_OK);
    }
    gr_mesh_get_stats(p.mesh[0], &after);
    assert_int_equal(after.system_calls, before.system_calls);
    assert_true(gr_link_sent(p.link[0], ticket));
    gr_mesh_get_stats(p.mesh[0], &after);
    assert_int_equal(after.system_calls, before.system_calls + 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        pair_read(&p, 1, &in);
        assert_int_equal(in, i);
    }
    pair_close(&p);
}

/* Large payloads go over all rails of a link, small ones over the first alone. */
static void test_streams_share_the_bytes(void **state)
{
    enum { SIZE = 4 << 20, TIMES = 8 };
    (void)state;
    pair p;
    gr_mesh_stats stats;
    pair_open(&p, TCP_RAILS(3));
    assert_int_equal(gr_link_rails(p.link[0]), 3);
    assert_int_equal(gr_link_rails(p.link[1]), 3);
    uint8_t *out = calloc(1, SIZE), *in = calloc(1, SIZE);
    (void)pair_send(&p, 0, 0, out, GR_PART_BYTES);
    pair_read(&p, 1, in);
    gr_mesh_get_stats(p.mesh[0], &stats);
    assert_true(stats.rail_bytes[0] > GR_PART_BYTES);
    assert_int_equal(stats.rail_bytes[1] + stats.rail_bytes[2], 0);
    for (uint32_t i = 0; i < TIMES; i++) {
        (void)pair_send(&p, 0, i, out, SIZE);
        pair_read(&p, 1, in);
    }
    gr_mesh_get_stats(p.mesh[0], &stats);
    for (int i = 0; i < 3; i++) {
        assert_true(stats.rail_bytes[i] > GR_PART_BYTES); /* more only if it is worth it */
    }
    /* Headers of messages and parts, and nothing twice. */
    uint64_t sum = stats.rail_bytes[0] + stats.rail_bytes[1] + stats.rail_bytes[2];
    assert_int_equal(sum, (uint64_t)SIZE * TIMES + GR_PART_BYTES + (TIMES + 1) * GR_FRAME_BYTES +
                              TIMES * (SIZE / GR_PART_BYTES - 1) * GR_PART_HEAD_BYTES);
    free(out);
    free(in);
    pair_close(&p);
}

/* A peer that is kept from reading for a moment makes a rail look slow, which gets no part then. */
static void tcp_rail_that_seemed_slow_is_tried_again(void **state)
{
    enum { SIZE = 4 << 20, BEFORE = 8, TRY_US = 20000000 };
    (void)state;
    pair p;
    gr_mesh_stats before, after;
    pair_open(&p, TCP_RAILS(2));
    uint8_t *out = calloc(1, SIZE), *in = calloc(1, SIZE);
    for (uint32_t i = 0; i < BEFORE; i++) {
        (void)pair_send(&p, 0, i, out, SIZE);
        pair_read(&p, 1, in);
    }
    gr_tcp_rail *rail = gr_tcp_rail_at((gr_tcp_link *)p.link[0], 1);
    rail->bytes_a_us = 1e-5;
    rail->acknowledged_then = rail->sent_bytes;
    gr_mesh_get_stats(p.mesh[0], &before);
    int64_t end_us = test_now_us() + TRY_US;
    do {
        (void)pair_send(&p, 0, 0, out, SIZE);
        pair_read(&p, 1, in);
        gr_mesh_get_stats(p.mesh[0], &after);
    } while (after.rail_bytes[1] - before.rail_bytes[1] < 2 * SIZE && test_now_us() < end_us);
    assert_true(after.rail_bytes[1] - before.rail_bytes[1] >= 2 * SIZE);
    free(out);
    free(in);
    pair_close(&p);
}

/* Whichever rail breaks: the link is broken on both sides, with the usual sentence. What arrived
 * whole is handed out first. */
static void test_death_of_a_stream(void **state)
{
    (void)state;
    for (int rail = 0; rail < 2; rail++) {
        pair p;
        char text[6] = "";
        pair_open(&p, TCP_RAILS(2));
        uint64_t ticket = pair_send(&p, 1, 7, "hello", sizeof text);
        assert_true(gr_link_sent(p.link[1], ticket));
        assert_int_equal(shutdown(*gr_link_fd(p.link[1], rail), SHUT_RDWR), 0);
        bool broken[2] = {false, false};
        for (int64_t end = test_now_us() + PATIENCE_US; !(broken[0] && broken[1]);) {
            assert_true(test_now_us() < end);
            for (int i = 0; i < 2; i++) {
                gr_diag diag = {0};
                gr_frame frame;
                if (gr_mesh_progress(p.mesh[i], &diag) != GR_OK) {
                    assert_int_equal(diag.status, GR_E_PEER_LOST);
                    assert_non_null(strstr(diag.text, "died: its connection to rank"));
                    broken[i] = true;
                }
                if (i == 0 && gr_link_peek(p.link[0], &frame) == GR_OK) {
                    assert_int_equal(gr_link_read(p.link[0], text), GR_OK);
                    gr_link_next(p.link[0], NULL);
                }
            }
        }
        assert_string_equal(text, "hello");
        pair_close(&p);
    }
}

/* Whoever waits for one peer reads from its socket, and need not ask epoll before. */
static void test_an_expected_message_is_read_at_once(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, GR_LINK_TCP);
    gr_frame frame;
    const gr_frame empty = {.kind = GR_FRAME_DATA};
    uint64_t ticket;
    assert_int_equal(gr_link_peek(p.link[1], &frame), GR_PENDING); /* nothing is readable now */
    assert_int_equal(gr_link_send(p.link[0], &empty, NULL, &ticket), GR_OK);
    assert_true(gr_link_sent(p.link[0], ticket));
    assert_int_equal(gr_link_peek(p.link[1], &frame), GR_PENDING); /* nobody has asked epoll */
    gr_mesh_stats before, after;
    gr_mesh_get_stats(p.mesh[1], &before);
    gr_link_expect(p.link[1]);
    assert_int_equal(gr_link_peek(p.link[1], &frame), GR_OK);
    gr_mesh_get_stats(p.mesh[1], &after);
    assert_int_equal(after.system_calls - before.system_calls, 1);
    assert_false(p.link[1]->expected);
    gr_link_next(p.link[1], NULL);
    pair_close(&p);
}

/* A wait that finds a message has read it: no further call is needed. */
static void test_a_wait_reads_what_is_expected(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, GR_LINK_TCP);
    gr_frame frame;
    const gr_frame empty = {.kind = GR_FRAME_DATA};
    uint64_t ticket;
    gr_link_expect(p.link[1]);
    assert_int_equal(gr_link_peek(p.link[1], &frame), GR_PENDING);
    assert_int_equal(gr_link_send(p.link[0], &empty, NULL, &ticket), GR_OK);
    assert_true(gr_link_sent(p.link[0], ticket));
    gr_mesh_stats before, after;
    gr_mesh_get_stats(p.mesh[1], &before);
    gr_mesh_wait(p.mesh[1], test_now_us() + PATIENCE_US);
    /* Before progress, which looks at all sockets from time to time. */
    assert_int_equal(gr_link_peek(p.link[1], &frame), GR_OK);
    gr_mesh_get_stats(p.mesh[1], &after);
    assert_int_equal(after.system_calls - before.system_calls, 1);
    gr_link_next(p.link[1], NULL);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_messages_leave_at_once),
        cmocka_unit_test(test_local_links_are_not_paced),
        cmocka_unit_test(test_streams_share_the_bytes),
        cmocka_unit_test(tcp_rail_that_seemed_slow_is_tried_again),
        cmocka_unit_test(test_death_of_a_stream),
        cmocka_unit_test(test_an_expected_message_is_read_at_once),
        cmocka_unit_test(test_a_wait_reads_what_is_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
