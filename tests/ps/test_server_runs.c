/* SPDX-License-Identifier: Apache-2.0 */

/* Servers that stand, and workers of several runs: tensors are those of one. */

#include "support_servers.h"

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
        cmocka_unit_test(a_name_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
