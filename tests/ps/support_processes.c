/* SPDX-License-Identifier: Apache-2.0 */
#include "support_processes.h"

#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 1024 };

static void serve(int number, int count, bool tcp, int64_t timeout_us, int out,
                  void (*made)(int number))
{
    gr_ps_server_config config;
    gr_ps_server *server;
    gr_diag diag = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gr_ps_server_config_init(&config);
    config.number = number;
    config.servers = count;
    config.replicas = 1;
    config.secret = test_secret;
    config.link = tcp ? GR_LINK_ALL_TCP : GR_LINK_AUTO;
    config.peer_timeout_us = timeout_us;
    config.updaters = gr_updater_ops();
    if (gr_ps_server_create(&config, &server, &diag) != GR_OK) {
        _exit(1);
    }
    const char *address = gr_ps_server_address(server);
    if (write(out, address, strlen(address) + 1) < 0) {
        _exit(1);
    }
    if (made != NULL) {
        made(number);
    }
    for (;;) {
        gr_status status = gr_ps_server_poll(server, &diag);
        if (status == GR_OK) {
            gr_ps_server_wait(server, GR_NEVER);
        } else if (status != GR_PENDING) {
            _exit(status == GR_E_PEER_LOST ? 42 : 1);
        }
    }
}

void processes_start(processes *servers, int count, bool tcp, int64_t timeout_us)
{
    processes_start_with(servers, count, tcp, timeout_us, NULL);
}

void processes_start_with(processes *servers, int count, bool tcp, int64_t timeout_us,
                          void (*made)(int number))
{
    *servers = (processes){.count = count, .tcp = tcp, .reached = {.tcp = tcp}};
    setenv("GRADUS_LINK", tcp ? "tcp" : "auto", 1);
    for (int i = 0; i < count; i++) {
        int ends[2];
        char address[TEXT_BYTES];
        size_t got = 0;
        assert_int_equal(pipe(ends), 0);
        servers->pid[i] = fork();
        assert_true(servers->pid[i] >= 0);
        if (servers->pid[i] == 0) {
            close(ends[0]);
            serve(i, count, tcp, timeout_us, ends[1], made);
        }
        close(ends[1]);
        while (got == 0 || address[got - 1] != '\0') {
            ssize_t some = read(ends[0], address + got, sizeof address - got);
            assert_true(some > 0);
            got += (size_t)some;
        }
        servers->out[i] = ends[0];
        strcat(servers->reached.addresses, i > 0 ? "," : "");
        strcat(servers->reached.addresses, address);
    }
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
            kill(servers->pid[i], SIGKILL);
            int status = process_end(servers, i);
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
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
