/* SPDX-License-Identifier: Apache-2.0 */
#include "support_processes.h"

#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* What a server's process is told. */
typedef struct order {
    const processes *servers;
    int number, out;
    void (*made)(int number);
    const replacement *replaces; /* NULL: it is one of the first */
} order;

static void make_config(const order *by, gr_ps_server_config *config)
{
    gr_ps_server_config_init(config);
    config->number = by->number;
    config->servers = by->servers->count;
    config->replicas = 1;
    config->secret = test_secret;
    config->link = by->servers->tcp ? GR_LINK_ALL_TCP : GR_LINK_AUTO;
    config->peer_timeout_us = by->servers->timeout_us;
    config->updaters = gr_updater_ops();
    if (by->replaces != NULL) {
        config->replaces = true;
        config->others = by->servers->reached.addresses;
        config->run = by->replaces->run;
        config->peer_timeout_us =
            by->replaces->timeout_us > 0 ? by->replaces->timeout_us : config->peer_timeout_us;
        config->secret = by->replaces->secret != NULL ? by->replaces->secret : test_secret;
    }
}

static void serve(const order *by)
{
    gr_ps_server_config config;
    gr_ps_server *server;
    gr_diag diag = {0};
    make_config(by, &config);
    if (gr_ps_server_create(&config, &server, &diag) != GR_OK) {
        _exit(1);
    }
    const char *address = gr_ps_server_address(server);
    if (write(by->out, address, strlen(address) + 1) < 0) {
        _exit(1);
    }
    if (by->made != NULL) {
        by->made(by->number);
    }
    bool stops = by->replaces != NULL && by->replaces->stops;
    for (;;) {
        gr_status status = gr_ps_server_poll(server, &diag);
        if (stops && gr_ps_server_has_met(server)) {
            stops = false;
            raise(SIGSTOP);
        }
        if (status == GR_OK) {
            gr_ps_server_wait(server, GR_NEVER);
        } else if (status != GR_PENDING) {
            _exit(status == GR_E_PEER_LOST ? 42 : status == GR_E_AUTH ? 43 : 1);
        }
    }
}

/* Starts one, and reads where it is. */
static void start(processes *servers, int number, void (*made)(int number),
                  const replacement *replaces)
{
    int ends[2];
    char *address = servers->address[number];
    size_t got = 0;
    assert_int_equal(pipe(ends), 0);
    servers->pid[number] = test_fork();
    if (servers->pid[number] == 0) {
        close(ends[0]);
        const order by = {servers, number, ends[1], made, replaces};
        serve(&by);
    }
    close(ends[1]);
    while (got == 0 || address[got - 1] != '\0') {
        ssize_t some = read(ends[0], address + got, PROCESS_ADDRESS_BYTES - got);
        assert_true(some > 0);
        got += (size_t)some;
    }
    servers->out[number] = ends[0];
}

static void list_addresses(processes *servers)
{
    char *at = servers->reached.addresses;
    for (int i = 0; i < servers->count; i++) {
        at = stpcpy(at, i > 0 ? "," : "");
        at = stpcpy(at, servers->address[i]);
    }
}

void processes_start(processes *servers, int count, bool tcp, int64_t timeout_us)
{
    processes_start_with(servers, count, tcp, timeout_us, NULL);
}

void processes_start_with(processes *servers, int count, bool tcp, int64_t timeout_us,
                          void (*made)(int number))
{
    *servers =
        (processes){.count = count, .tcp = tcp, .timeout_us = timeout_us, .reached = {.tcp = tcp}};
    setenv("GRADUS_LINK", tcp ? "tcp" : "auto", 1);
    for (int i = 0; i < count; i++) {
        start(servers, i, made, NULL);
    }
    list_addresses(servers);
}

void processes_replace(processes *servers, int number, const replacement *how)
{
    assert_int_equal(servers->pid[number], 0);
    start(servers, number, NULL, how);
    list_addresses(servers);
}

void process_wait_for_stop(const processes *servers, int number)
{
    int status = 0;
    assert_int_equal(waitpid(servers->pid[number], &status, WUNTRACED), servers->pid[number]);
    assert_true(WIFSTOPPED(status));
}

void process_kill(processes *servers, int number)
{
    kill(servers->pid[number], SIGKILL);
    int status = process_end(servers, number);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int process_end(processes *servers, int number)
{
    int status = 0;
    assert_int_equal(waitpid(servers->pid[number], &status, 0), servers->pid[number]);
    close(servers->out[number]);
    servers->pid[number] = 0;
    return status;
}

void processes_stop(processes *servers)
{
    for (int i = 0; i < servers->count; i++) {
        if (servers->pid[i] != 0) {
            process_kill(servers, i);
        }
    }
}

int process_rounds(int usual)
{
    const char *more = getenv("GRADUS_TEST_KILLS");
    return more != NULL ? atoi(more) : usual;
}

void processes_wait_for_replicas(gr_ps *ps)
{
    int64_t until_ns = gr_now_ns() + INT64_C(60000000000);
    /* The first time round it is found out which servers are lost: before that the others may not
     * know it yet. Behind it they answer by the table without these. */
    for (int at = 0; at < 2 * gr_ps_servers(ps);) {
        gr_ps_counters counters;
        gr_status status = gr_ps_read_counters(ps, at % gr_ps_servers(ps), &counters);
        assert_true(gr_now_ns() < until_ns);
        at += status == GR_E_PEER_LOST || (status == GR_OK && counters.unreplicated == 0);
    }
}

void processes_wait_until_whole(gr_ps *ps)
{
    int64_t until_ns = gr_now_ns() + INT64_C(60000000000);
    for (int at = 0; at < gr_ps_servers(ps);) {
        gr_ps_counters counters;
        gr_status status = gr_ps_read_counters(ps, at, &counters);
        assert_true(gr_now_ns() < until_ns);
        assert_true(status == GR_OK || status == GR_E_PEER_LOST);
        at = status == GR_OK && counters.unreplicated == 0 ? at + 1 : 0;
    }
}
