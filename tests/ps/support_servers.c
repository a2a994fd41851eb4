/* SPDX-License-Identifier: Apache-2.0 */
#include "support_servers.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

const uint8_t test_secret[GR_SECRET_BYTES] = "thirty-two bytes nobody guesses";

pid_t test_fork(void)
{
    pid_t parent = getpid(), child = fork();
    assert_true(child >= 0);
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) {
        _exit(1);
    }
    return child;
}

static void *serve(void *arg)
{
    test_server *at = arg;
    gr_clock clock = gr_clock_real();
    gr_diag diag = {0};
    while (!atomic_load(&at->stop)) {
        gr_status status = gr_ps_server_poll(at->server, &diag);
        if (status == GR_OK) {
            gr_ps_server_wait(at->server, gr_clock_deadline_us(&clock, 1000000));
        } else if (status != GR_PENDING) {
            fprintf(stderr, "a server ended: %s\n", diag.text);
            abort();
        }
    }
    return NULL;
}

void test_server_run(test_server *at)
{
    atomic_init(&at->stop, false);
    assert_int_equal(pthread_create(&at->thread, NULL, serve, at), 0);
}

void test_servers_start(test_servers *servers, int count, bool tcp,
                        const gr_ps_server_config *config)
{
    *servers = (test_servers){.count = count, .tcp = tcp};
    setenv("GRADUS_LINK", tcp ? "tcp" : "auto", 1);
    for (int i = 0; i < count; i++) {
        test_server *at = &servers->at[i];
        gr_ps_server_config own;
        gr_diag diag = {0};
        gr_ps_server_config_init(&own);
        if (config != NULL) {
            own = *config;
        }
        own.number = i;
        own.servers = count;
        own.secret = test_secret;
        own.link = tcp ? GR_LINK_ALL_TCP : GR_LINK_AUTO;
        if (gr_ps_server_create(&own, &at->server, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
        if (i > 0) {
            strcat(servers->addresses, ",");
        }
        strcat(servers->addresses, gr_ps_server_address(at->server));
        test_server_run(at);
    }
}

void test_server_stop(test_servers *servers, int index)
{
    test_server *at = &servers->at[index];
    if (at->server != NULL) {
        atomic_store(&at->stop, true);
        gr_ps_server_wake(at->server);
        pthread_join(at->thread, NULL);
        gr_ps_server_destroy(at->server);
        at->server = NULL;
    }
}

void test_servers_stop(test_servers *servers)
{
    for (int i = 0; i < servers->count; i++) {
        test_server_stop(servers, i);
    }
}

gr_ps *test_connect(const test_servers *servers, int worker)
{
    const gr_ps_config config = {
        .servers = servers->addresses, .secret = test_secret, .worker = worker};
    gr_ps *ps = NULL;
    gr_diag diag = {0};
    if (gr_ps_connect(&config, &ps, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return ps;
}

bool test_servers_have(gr_ps *ps, uint64_t clients)
{
    int64_t until_ns = gr_now_ns() + INT64_C(60000000000);
    for (int server = 0; server < gr_ps_servers(ps);) {
        gr_ps_counters counters;
        if (gr_ps_read_counters(ps, server, &counters) != GR_OK || gr_now_ns() > until_ns) {
            return false;
        }
        server += counters.clients == clients;
    }
    return true;
}

void expect_ok(gr_ps *ps, gr_status is)
{
    if (is != GR_OK) {
        fail_msg("%s: %s", gr_status_name(is), gr_ps_last_error(ps)->text);
    }
}

void expect_failure(gr_ps *ps, gr_status is, gr_status wanted, const char *says)
{
    assert_int_equal(is, wanted);
    if (strstr(gr_ps_last_error(ps)->text, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", gr_ps_last_error(ps)->text, says);
    }
}
