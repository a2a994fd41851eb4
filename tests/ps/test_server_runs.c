/* SPDX-License-Identifier: Apache-2.0 */

/* Servers that stand, and workers of several runs: tensors are those of one. */

#include "support_servers.h"

#include "base/clock.h"
#include "ps/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ELEMENTS = 3000, SERVERS = 2 };

static gr_status connect_as(const test_servers *servers, int worker, const char *run, gr_ps **ps,
                            gr_diag *diag)
{
    const gr_ps_config config = {
        .servers = servers->addresses, .secret = test_secret, .worker = worker, .run = run};
    *ps = NULL;
    return gr_ps_connect(&config, ps, diag);
}

static gr_ps *connected(const test_servers *servers, int worker, const char *run)
{
    gr_ps *ps;
    gr_diag diag = {0};
    if (connect_as(servers, worker, run, &ps, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return ps;
}

static gr_status declare(gr_ps *ps, int *id)
{
    const gr_ps_spec spec = {.name = "w", .elements = ELEMENTS, .consistency = GR_ASYNC};
    return gr_ps_declare(ps, &spec, id);
}

static void expect_refusal(const gr_diag *diag)
{
    const char *says[] = {"tensors of run first", "this worker is of run second",
                          "start servers anew", "GRADUS_RUN=first"};
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        if (strstr(diag->text, says[i]) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", diag->text, says[i]);
        }
    }
}

/* Its first run has gone when the second one comes, and what it left has as many updates as the
 * other one has made: none. */
static void servers_with_tensors_of_another_run_refuse_a_worker(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        gr_diag diag = {0};
        gr_ps *ps;
        float values[ELEMENTS] = {7};
        int id;
        test_servers_start(&servers, SERVERS, tcp != 0, NULL);
        ps = connected(&servers, 0, "first");
        expect_ok(ps, declare(ps, &id));
        expect_ok(ps, gr_ps_set(ps, id, values));
        gr_ps_close(ps);
        assert_int_equal(connect_as(&servers, 1, "second", &ps, &diag), GR_E_INVALID);
        expect_refusal(&diag);
        ps = connected(&servers, 2, "first"); /* one of it that comes later */
        expect_ok(ps, declare(ps, &id));
        gr_ps_close(ps);
        ps = connected(&servers, 3, ""); /* of no run */
        expect_ok(ps, declare(ps, &id));
        gr_ps_close(ps);
        gr_ps_entry entry;
        ps = connected(&servers, -1, "second"); /* it reads only */
        expect_ok(ps, gr_ps_list(ps, 0, &entry));
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
}

static void of_two_runs_at_once_the_first_to_declare_has_the_servers(void **state)
{
    (void)state;
    test_servers servers;
    int id;
    test_servers_start(&servers, SERVERS, false, NULL);
    gr_ps *first = connected(&servers, 0, "first"), *second = connected(&servers, 1, "second");
    expect_ok(first, declare(first, &id));
    assert_int_equal(declare(second, &id), GR_E_INVALID);
    expect_refusal(gr_ps_last_error(second));
    gr_ps_close(second);
    gr_ps_close(first);
    test_servers_stop(&servers);
}

/* ---- A worker that does not go -------------------------------------------------------------- */

/* Until the link has a message, or has ended: as gr_link_peek. */
static gr_status next_message(gr_mesh *mesh, gr_link *link, gr_frame *frame)
{
    gr_clock clock = gr_clock_real();
    int64_t until_us = gr_clock_deadline_us(&clock, 60000000);
    gr_status status;
    while ((status = gr_link_peek(link, frame)) == GR_PENDING) {
        assert_true(gr_clock_now_us(&clock) < until_us);
        assert_int_equal(gr_mesh_progress(mesh, NULL), GR_OK);
        gr_mesh_wait(mesh, until_us);
    }
    return status;
}

static gr_mesh *reach(const char *address)
{
    gr_mesh_config config;
    gr_mesh *mesh;
    gr_mesh_config_init(&config);
    config.kind = GR_LINK_TCP;
    config.dynamic_peers = true;
    config.rank = GR_PS_WORKERS_AT + 5;
    config.world_size = GR_PS_PEERS_MAX;
    config.secret = test_secret;
    assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_OK);
    assert_int_equal(gr_mesh_connect(mesh, 0, address, NULL), GR_OK);
    while (gr_mesh_link(mesh, 0) == NULL || !gr_link_is_up(gr_mesh_link(mesh, 0))) {
        assert_int_equal(gr_mesh_progress(mesh, NULL), GR_OK);
    }
    return mesh;
}

/* It was refused, and asks for more all the same: with that its link ends, and says why. */
static void a_worker_that_was_sent_away_is_told_so_with_its_next_request(void **state)
{
    (void)state;
    test_servers servers;
    gr_frame frame;
    uint8_t hello[GR_PS_SMALL_MAX];
    uint64_t ticket;
    int id;
    test_servers_start(&servers, 1, true, NULL);
    gr_ps *ps = connected(&servers, 0, "first");
    expect_ok(ps, declare(ps, &id));
    gr_mesh *mesh = reach(servers.addresses);
    gr_link *link = gr_mesh_link(mesh, 0);
    const gr_ps_hello second = {.protocol = GR_PS_PROTOCOL, .servers = 1, .run = "second"};
    gr_frame request = {.kind = GR_FRAME_DATA,
                        .comm = GR_PS_HELLO,
                        .size_bytes = (uint32_t)gr_ps_put_hello(&second, hello)};
    assert_int_equal(gr_link_send(link, &request, hello, &ticket), GR_OK);
    assert_int_equal(next_message(mesh, link, &frame), GR_OK);
    assert_int_equal(frame.comm, GR_PS_DONE);
    uint8_t answer[GR_PS_SMALL_MAX];
    gr_ps_done done;
    assert_int_equal(gr_link_read(link, answer), GR_OK);
    assert_int_equal(gr_ps_get_done(answer, frame.size_bytes, &done, NULL), GR_OK);
    gr_link_next(link, NULL);
    assert_int_equal(done.status, GR_E_INVALID);
    request = (gr_frame){.kind = GR_FRAME_DATA, .comm = GR_PS_STATS, .op_seq = 1};
    assert_int_equal(gr_link_send(link, &request, NULL, &ticket), GR_OK);
    assert_int_equal(next_message(mesh, link, &frame), GR_E_PEER_LOST);
    assert_non_null(strstr(gr_link_diag(link)->text, "requests of another run, which was refused"));
    gr_mesh_destroy(mesh);
    expect_ok(ps, declare(ps, &id)); /* the others do not notice it */
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

static void a_name_that_cannot_be_is_refused(void **state)
{
    (void)state;
    test_servers servers = {.addresses = "tcp:127.0.0.1:1"};
    const char *names[] = {"a name of forty-eight bytes, which is one too much..", "two\nlines"};
    for (int i = 0; i < 2; i++) {
        gr_ps *ps;
        gr_diag diag = {0};
        assert_int_equal(connect_as(&servers, 0, names[i], &ps, &diag), GR_E_INVALID);
        assert_non_null(strstr(diag.text, "GRADUS_RUN"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_with_tensors_of_another_run_refuse_a_worker),
        cmocka_unit_test(of_two_runs_at_once_the_first_to_declare_has_the_servers),
        cmocka_unit_test(a_worker_that_was_sent_away_is_told_so_with_its_next_request),
        cmocka_unit_test(a_name_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
