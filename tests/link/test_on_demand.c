/* SPDX-License-Identifier: Apache-2.0 */

/* Links that are made when they are first needed: whoever begins, and whatever becomes of the peer.
 * All members are in this process, on a clock of the test's own. */

#include "link/acceptor.h"
#include "link/mesh.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { MEMBERS = 4, TURNS_MAX = 100000, STEP_US = 100, LONG_US = 11000000 };

typedef struct team {
    gr_mesh *mesh[MEMBERS];
    gr_link_kind kind;
    int rails;
    int64_t now_us;
    bool gone[MEMBERS];
    char gone_address[GR_ADDRESS_BYTES];
} team;

static gr_status find_route(void *arg, int peer, gr_peer_route *route_out, gr_diag *diag)
{
    const team *t = arg;
    (void)diag;
    route_out->kind = t->kind;
    route_out->rails = t->rails;
    for (int i = 0; i < t->rails; i++) {
        snprintf(route_out->addresses[i], GR_ROUTE_BYTES, "%s",
                 t->gone[peer] ? t->gone_address : gr_mesh_address(t->mesh[peer]));
    }
    return GR_OK;
}

static void team_open(team *t, gr_link_kind kind, int rails)
{
    *t = (team){.kind = (gr_link_kind)(kind & 0xff), .rails = rails, .now_us = 1000000};
    for (int i = 0; i < MEMBERS; i++) {
        gr_mesh_config config = test_config(kind, i, MEMBERS);
        config.rails_max = rails;
        config.on_demand = true;
        config.clock = gr_clock_simulated(&t->now_us);
        assert_int_equal(gr_mesh_create(&config, &t->mesh[i], NULL), GR_OK);
        gr_mesh_set_router(t->mesh[i], find_route, t, MEMBERS);
    }
}

static void team_close(team *t)
{
    for (int i = 0; i < MEMBERS; i++) {
        gr_mesh_destroy(t->mesh[i]);
    }
}

/* One turn of all members. A failure is in *diag_out. */
static gr_status team_turn(team *t, gr_diag *diag_out)
{
    gr_status failed = GR_OK;
    t->now_us += STEP_US;
    for (int i = 0; i < MEMBERS; i++) {
        gr_diag diag = {0};
        gr_status status = t->mesh[i] != NULL ? gr_mesh_progress(t->mesh[i], &diag) : GR_OK;
        if (status != GR_OK) {
            failed = status;
            *diag_out = diag;
        }
    }
    return failed;
}

static void await_up(team *t, const gr_link *one, const gr_link *other)
{
    gr_diag diag = {0};
    for (int turn = 0; !gr_link_is_up(one) || (other != NULL && !gr_link_is_up(other)); turn++) {
        assert_true(turn < TURNS_MAX);
        assert_int_equal(team_turn(t, &diag), GR_OK);
    }
}

static void send_number(team *t, gr_link *from, gr_link *to, uint32_t number)
{
    uint64_t ticket;
    uint32_t got = 0;
    gr_diag diag = {0};
    gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = number, .size_bytes = sizeof number};
    assert_int_equal(gr_link_send(from, &frame, &number, &ticket), GR_OK);
    for (int turn = 0; gr_link_peek(to, &frame) == GR_PENDING; turn++) {
        assert_true(turn < TURNS_MAX);
        (void)gr_link_sent(from, ticket);
        assert_int_equal(team_turn(t, &diag), GR_OK);
    }
    assert_int_equal(gr_link_read(to, &got), GR_OK);
    gr_link_next(to, NULL);
    assert_int_equal(got, number);
}

typedef struct way {
    gr_link_kind kind;
    int rails;
} way;
static const way ways[] = {{GR_LINK_SHM, 1}, {GR_LINK_TCP, 1}, {GR_LINK_TCP, 3}};
enum { WAYS = 3 };

static void on_demand_both_begin_and_one_link_comes_up(void **unused)
{
    (void)unused;
    for (int i = 0; i < WAYS; i++) {
        team t;
        team_open(&t, ways[i].kind, ways[i].rails);
        int before = open_fds();
        gr_link *a = gr_mesh_open_link(t.mesh[1], 2, true);
        gr_link *b = gr_mesh_open_link(t.mesh[2], 1, true);
        gr_frame frame;
        uint64_t ticket;
        assert_int_equal(gr_link_peek(a, &frame), GR_PENDING);
        frame = (gr_frame){.kind = GR_FRAME_DATA};
        assert_int_equal(gr_link_send(a, &frame, NULL, &ticket), GR_E_AGAIN);
        await_up(&t, a, b);
        for (int turn = 0; turn < 500; turn++) { /* what was given up is closed */
            gr_diag diag = {0};
            assert_int_equal(team_turn(&t, &diag), GR_OK);
        }
        int files = ways[i].kind == GR_LINK_SHM ? 2 : 0; /* a pidfd on each side */
        assert_int_equal(open_fds() - before, 2 * ways[i].rails + files);
        assert_int_equal(gr_link_rails(a), ways[i].rails);
        assert_int_equal(gr_link_rails(b), ways[i].rails);
        send_number(&t, a, b, 1);
        send_number(&t, b, a, 2);
        assert_null(gr_mesh_link(t.mesh[0], 1));
        team_close(&t);
    }
}

/* In which order the sides look is up to the scheduler: the rank that lags has each number of
 * turns. */
static void on_demand_both_begin_at_different_times(void **unused)
{
    (void)unused;
    for (int lag = 0; lag < 24; lag++) {
        team t;
        gr_diag diag = {0};
        team_open(&t, ways[lag % WAYS].kind, ways[lag % WAYS].rails);
        int first = lag / WAYS % 2 == 0 ? 1 : 2, second = 3 - first;
        gr_link *a = gr_mesh_open_link(t.mesh[first], second, true), *b = NULL;
        for (int turn = 0; turn < lag / 6; turn++) {
            assert_int_equal(gr_mesh_progress(t.mesh[turn % 2 ? second : first], &diag), GR_OK);
            t.now_us += STEP_US;
        }
        b = gr_mesh_open_link(t.mesh[second], first, true);
        await_up(&t, a, b);
        send_number(&t, a, b, 1);
        send_number(&t, b, a, 2);
        team_close(&t);
    }
}

/* For the rank that connects a connection with TLS is made before the other rank has all of it. */
static void on_demand_answered_connection_comes_before_a_new_one(void **unused)
{
    (void)unused;
    for (int i = 0; i < 4; i++) {
        team t;
        gr_diag diag = {0};
        bool fails = i % 2 == 1;
        team_open(&t, (gr_link_kind)(GR_LINK_TCP | TCP_ENCRYPTED), i < 2 ? 1 : 3);
        gr_link *a = gr_mesh_open_link(t.mesh[1], 2, true);
        for (int turn = 0; !gr_acceptor_promised(t.mesh[2]->acceptor, 1); turn++) {
            assert_true(turn < TURNS_MAX);
            assert_int_equal(gr_mesh_progress(t.mesh[turn % 2 ? 2 : 1], &diag), GR_OK);
            t.now_us += STEP_US;
        }
        gr_link *b = gr_mesh_open_link(t.mesh[2], 1, true);
        assert_false(b->connecting);
        if (fails) { /* then it is this side's turn, after all */
            gr_acceptor_cancel(t.mesh[1]->acceptor, 2);
        }
        await_up(&t, a, b);
        send_number(&t, a, b, 1);
        send_number(&t, b, a, 2);
        team_close(&t);
    }
}

static void on_demand_one_side_begins_whatever_its_rank(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2 * WAYS; i++) {
        team t;
        team_open(&t, ways[i / 2].kind, ways[i / 2].rails);
        int from = i % 2 == 0 ? 0 : 3, to = 3 - from;
        gr_link *a = gr_mesh_open_link(t.mesh[from], to, true);
        await_up(&t, a, NULL);
        int ready = -1;
        for (int turn = 0; gr_mesh_link(t.mesh[to], from) == NULL; turn++) {
            gr_diag diag = {0};
            assert_true(turn < TURNS_MAX);
            assert_int_equal(team_turn(&t, &diag), GR_OK);
        }
        assert_true(gr_mesh_next_ready(t.mesh[to], &ready));
        assert_int_equal(ready, from);
        gr_link *b = gr_mesh_open_link(t.mesh[to], from, true); /* the same one */
        assert_ptr_equal(b, gr_mesh_link(t.mesh[to], from));
        assert_false(gr_mesh_next_ready(t.mesh[to], &ready));
        uint64_t ticket;
        gr_frame frame = {.kind = GR_FRAME_DATA, .op_seq = 7};
        assert_int_equal(gr_link_send(a, &frame, NULL, &ticket), GR_OK);
        for (int turn = 0; !gr_mesh_next_ready(t.mesh[to], &ready); turn++) {
            gr_diag diag = {0};
            assert_true(turn < TURNS_MAX);
            assert_int_equal(team_turn(&t, &diag), GR_OK);
        }
        assert_int_equal(ready, from);
        assert_int_equal(gr_link_peek(b, &frame), GR_OK);
        team_close(&t);
    }
}

static void on_demand_side_that_waits_connects_in_the_end(void **unused)
{
    (void)unused;
    team t;
    gr_diag diag = {0};
    team_open(&t, GR_LINK_TCP, 1);
    gr_link *a = gr_mesh_open_link(t.mesh[0], 3, false);
    for (int turn = 0; turn < 100; turn++) {
        assert_int_equal(team_turn(&t, &diag), GR_OK);
    }
    assert_false(gr_link_is_up(a));
    t.now_us += LONG_US;
    await_up(&t, a, NULL);
    team_close(&t);
}

static void on_demand_peer_that_is_gone_ends_the_link_with_a_sentence(void **unused)
{
    (void)unused;
    for (int i = 0; i < WAYS; i++) {
        team t;
        gr_diag diag = {0};
        gr_frame frame;
        team_open(&t, ways[i].kind, ways[i].rails);
        snprintf(t.gone_address, sizeof t.gone_address, "%s", gr_mesh_address(t.mesh[2]));
        t.gone[2] = true;
        gr_mesh_destroy(t.mesh[2]);
        t.mesh[2] = NULL;
        gr_link *a = gr_mesh_open_link(t.mesh[1], 2, true);
        for (int turn = 0; team_turn(&t, &diag) == GR_OK; turn++) {
            assert_true(turn < TURNS_MAX);
        }
        assert_int_equal(diag.status, GR_E_PEER_LOST);
        assert_int_equal(diag.peer_rank, 2);
        assert_non_null(strstr(gr_link_diag(a)->text, "cannot connect to rank 2"));
        assert_int_equal(gr_link_peek(a, &frame), GR_E_PEER_LOST);
        assert_int_equal(team_turn(&t, &diag), GR_OK); /* it is told once */
        gr_link *b = gr_mesh_open_link(t.mesh[1], 0, true);
        await_up(&t, b, NULL); /* the others are reached as before */
        team_close(&t);
    }
}

/* A peer that does not answer yet is busy elsewhere: nothing fails, however long that takes. */
static void on_demand_silent_peer_is_waited_for(void **unused)
{
    (void)unused;
    team t;
    gr_diag diag = {0};
    team_open(&t, GR_LINK_TCP, 1);
    gr_link *a = gr_mesh_open_link(t.mesh[0], 3, true);
    for (int turn = 0; turn < 100; turn++) {
        t.now_us += LONG_US;
        assert_int_equal(gr_mesh_progress(t.mesh[0], &diag), GR_OK);
    }
    await_up(&t, a, NULL);
    team_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_demand_both_begin_and_one_link_comes_up),
        cmocka_unit_test(on_demand_both_begin_at_different_times),
        cmocka_unit_test(on_demand_answered_connection_comes_before_a_new_one),
        cmocka_unit_test(on_demand_one_side_begins_whatever_its_rank),
        cmocka_unit_test(on_demand_side_that_waits_connects_in_the_end),
        cmocka_unit_test(on_demand_peer_that_is_gone_ends_the_link_with_a_sentence),
        cmocka_unit_test(on_demand_silent_peer_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
