/* SPDX-License-Identifier: Apache-2.0 */

/* What is a proof that another server is dead, and what is none. */

#include "support_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_US INT64_C(60000000)
enum { ELEMENTS = 5000, FILES_MAX = 1024 };

static int declare(gr_ps *ps)
{
    static float zeros[ELEMENTS];
    int id = -1;
    const gr_ps_spec spec = {.name = "w", .elements = ELEMENTS, .consistency = GR_ASYNC};
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    expect_ok(ps, gr_ps_set(ps, id, zeros));
    return id;
}

static void push(gr_ps *ps, int id, uint64_t sequence)
{
    static float ones[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        ones[i] = 1;
    }
    const gr_ps_gradient gradient = {.values = ones, .sequence = sequence, .factor = 1};
    expect_ok(ps, gr_ps_push_run(ps, id, &gradient));
}

static void expect_sum(gr_ps *ps, int id, float sum)
{
    float values[ELEMENTS];
    expect_ok(ps, gr_ps_pull_run(ps, id, 0, values, NULL));
    for (int i = 0; i < ELEMENTS; i++) {
        assert_true(values[i] == sum);
    }
}

/* ---- A process whose sockets close one after the other --------------------------------------- */

/* The server's listeners outlive it: in a process that takes what comes there, as the system does
 * for one that it has not ended yet, until another server has begun to speak to it. */
static void hold_listeners(int alive, int test)
{
    static struct pollfd listeners[FILES_MAX];
    int count = 0;
    char byte;
    for (int fd = 3; fd < FILES_MAX; fd++) {
        int listens = 0;
        socklen_t size = sizeof listens;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens) {
            listeners[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        } else if (fd != alive && fd != test) {
            close(fd);
        }
    }
    listeners[count] = (struct pollfd){.fd = test, .events = POLLIN};
    while (read(alive, &byte, 1) < 0) { /* until the server is killed */
    }
    while (poll(listeners, (nfds_t)count + 1, -1) >= 0 && listeners[count].revents == 0) {
        for (int i = 0; i < count; i++) {
            int fd = listeners[i].revents != 0 ? accept(listeners[i].fd, NULL, NULL) : -1;
            if (fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 && recv(fd, &byte, 1, 0) > 0) {
                _exit(0);
            }
            close(fd);
        }
    }
    _exit(1);
}

static int lives[2]; /* the test holds its second end, and servers do */

static void fork_holder(int number)
{
    int alive[2];
    if (number != 0 || pipe(alive) != 0) {
        return;
    }
    if (_Fork() == 0) { /* the library's own handlers would close its listeners */
        close(alive[1]);
        close(lives[1]);
        hold_listeners(alive[0], lives[0]);
    }
    close(alive[0]);
}

static void a_server_that_takes_long_to_die_is_replaced(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        processes servers;
        assert_int_equal(pipe(lives), 0);
        processes_start_with(&servers, 2, tcp != 0, WAIT_US, fork_holder);
        gr_ps *ps = test_connect(&servers.reached, 0);
        int id = declare(ps);
        push(ps, id, 1);
        kill(servers.pid[0], SIGKILL);
        process_end(&servers, 0);
        push(ps, id, 2);
        expect_sum(ps, id, 2);
        gr_ps_close(ps);
        processes_stop(&servers);
        close(lives[0]);
        close(lives[1]);
    }
}

/* ---- A host that refuses --------------------------------------------------------------------- */

enum { PAIRS_MAX = 8 };

/* Stands for another host: who connects to it has reached server 0, through an address that is not
 * that of its own end. Once it has stopped its host refuses, as a firewall may. */
typedef struct relay {
    struct sockaddr_in address, server;
    int listener, stop[2];
    pthread_t thread;
} relay;

static void pass_on(int from, int to, bool *open)
{
    char bytes[4096];
    ssize_t got = recv(from, bytes, sizeof bytes, 0);
    ssize_t sent = 0;
    while (got > 0 && sent < got) {
        ssize_t some = send(to, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL);
        got = some < 0 ? -1 : got;
        sent += some;
    }
    *open = got > 0;
}

static void *relay_run(void *arg)
{
    relay *r = arg;
    struct pollfd at[2 + 2 * PAIRS_MAX] = {{.fd = r->stop[0], .events = POLLIN},
                                           {.fd = r->listener, .events = POLLIN}};
    int count = 2;
    while (poll(at, (nfds_t)count, -1) > 0 && at[0].revents == 0) {
        for (int i = 2; i < count; i++) {
            int other = i % 2 == 0 ? i + 1 : i - 1;
            bool open = true;
            if (at[i].fd >= 0 && at[i].revents != 0) {
                pass_on(at[i].fd, at[other].fd, &open);
            }
            if (!open) {
                close(at[i].fd);
                close(at[other].fd);
                at[i].fd = at[other].fd = -1;
            }
        }
        if (at[1].revents != 0 && count < 2 + 2 * PAIRS_MAX) {
            int here = accept(r->listener, NULL, NULL);
            int there = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (connect(there, (struct sockaddr *)&r->server, sizeof r->server) == 0) {
                at[count++] = (struct pollfd){.fd = here, .events = POLLIN};
                at[count++] = (struct pollfd){.fd = there, .events = POLLIN};
            }
        }
    }
    for (int i = 1; i < count; i++) {
        if (at[i].fd >= 0) {
            close(at[i].fd);
        }
    }
    return NULL;
}

/* On the port where it was before, if it was. */
static void relay_start(relay *r)
{
    int one = 1;
    socklen_t size = sizeof r->address;
    r->address.sin_family = AF_INET;
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &r->address.sin_addr), 1);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(r->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&r->address, size), 0);
    assert_int_equal(listen(r->listener, PAIRS_MAX), 0);
    assert_int_equal(getsockname(r->listener, (struct sockaddr *)&r->address, &size), 0);
    assert_int_equal(pipe(r->stop), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

static void relay_stop(relay *r)
{
    close(r->stop[1]);
    pthread_join(r->thread, NULL);
    close(r->stop[0]);
}

/* Server 0 goes on, as the one with the lower number; server 1 cannot know whether it does, and
 * waits until it reaches server 0 again, and hears that it is out. */
static void a_host_that_refuses_is_not_taken_for_dead(void **state)
{
    (void)state;
    processes servers;
    relay r = {0};
    test_servers through = {.tcp = true};
    unsigned port;
    processes_start(&servers, 2, true, WAIT_US);
    assert_int_equal(sscanf(servers.reached.addresses, "tcp:127.0.0.1:%u", &port), 1);
    r.server = (struct sockaddr_in){.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                    .sin_port = htons((uint16_t)port)};
    relay_start(&r);
    snprintf(through.addresses, sizeof through.addresses, "tcp:127.0.0.2:%u%s",
             (unsigned)ntohs(r.address.sin_port), strchr(servers.reached.addresses, ','));
    gr_ps_close(test_connect(&through, -1)); /* which tells server 1 where server 0 is */
    gr_ps *ps = test_connect(&servers.reached, 0);
    int id = declare(ps);
    push(ps, id, 1);
    relay_stop(&r);
    push(ps, id, 2);
    relay_start(&r);
    int status = process_end(&servers, 1);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    push(ps, id, 3);
    expect_sum(ps, id, 3);
    gr_ps_close(ps);
    processes_stop(&servers);
    relay_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_takes_long_to_die_is_replaced),
        cmocka_unit_test(a_host_that_refuses_is_not_taken_for_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
