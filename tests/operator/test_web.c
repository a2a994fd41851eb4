/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of a process that has no descriptor left. */
#include "operator/serve/web.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILES_MAX = 64, PATIENCE_MS = 20000 };

typedef struct crowd {
    gr_web *web;
    int first, second; /* clients' sockets, made before there is no descriptor left */
    struct sockaddr_in at;
    int filled[FILES_MAX], filled_count;
    struct rlimit before;
} crowd;

static char *print(void *arg, int *code_out)
{
    (void)arg;
    (void)code_out;
    return strdup("yes\n");
}

static void open_crowd(crowd *c)
{
    static const gr_web_page pages[] = {{.path = "/", .type = "text/plain", .print = print},
                                        {.path = NULL}};
    static const char *const addresses[] = {"127.0.0.1:0", NULL};
    *c = (crowd){.at = {.sin_family = AF_INET}};
    assert_int_equal(gr_web_open(addresses, pages, NULL, &c->web, NULL), GR_OK);
    c->at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->at.sin_port = htons((uint16_t)atoi(strrchr(gr_web_where(c->web), ':') + 1));
    c->first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    c->second = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(c->first >= 0 && c->second >= 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &c->before), 0);
}

/* All that are left. */
static void fill(crowd *c)
{
    const struct rlimit few = {.rlim_cur = FILES_MAX, .rlim_max = c->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        c->filled[c->filled_count++] = fd;
    }
    assert_int_equal(errno, EMFILE);
}

static void close_crowd(crowd *c)
{
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &c->before), 0);
    for (int i = 0; i < c->filled_count; i++) {
        close(c->filled[i]);
    }
    close(c->first);
    close(c->second);
    gr_web_close(c->web);
}

static void connect_to(const crowd *c, int fd)
{
    assert_int_equal(connect(fd, (const struct sockaddr *)&c->at, sizeof c->at), 0);
}

static bool wants_to_run(const crowd *c, int timeout_ms)
{
    struct pollfd in = {.fd = gr_web_fd(c->web), .events = POLLIN};
    return poll(&in, 1, timeout_ms) > 0;
}

/* What the client gets until the connection ends. */
static void run_until_closed(const crowd *c, int fd, char *text_out, size_t size_bytes)
{
    size_t size = 0;
    for (struct pollfd in = {.fd = fd, .events = POLLIN};;) {
        while (wants_to_run(c, 0)) {
            (void)gr_web_run(c->web, 1);
        }
        assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
        ssize_t got = recv(fd, text_out + size, size_bytes - 1 - size, 0);
        if (got <= 0) {
            break;
        }
        size += (size_t)got;
    }
    text_out[size] = '\0';
}

static void web_without_descriptors_turns_clients_away(void **state)
{
    char text[256];
    crowd c;
    (void)state;
    open_crowd(&c);
    fill(&c);
    connect_to(&c, c.first);
    assert_true(wants_to_run(&c, PATIENCE_MS));
    (void)gr_web_run(c.web, 1);
    assert_false(wants_to_run(&c, 0));
    run_until_closed(&c, c.first, text, sizeof text);
    assert_string_equal(text, "");
    close_crowd(&c);
}

static void web_without_descriptors_drops_the_oldest_client(void **state)
{
    static const char question[] = "GET / HTTP/1.1\r\n\r\n";
    char text[256];
    crowd c;
    (void)state;
    open_crowd(&c);
    connect_to(&c, c.first);
    assert_true(wants_to_run(&c, PATIENCE_MS));
    (void)gr_web_run(c.web, 1);
    fill(&c);
    connect_to(&c, c.second);
    assert_true(wants_to_run(&c, PATIENCE_MS));
    (void)gr_web_run(c.web, 1);
    assert_int_equal(send(c.second, question, sizeof question - 1, 0), sizeof question - 1);
    assert_true(wants_to_run(&c, PATIENCE_MS));
    run_until_closed(&c, c.second, text, sizeof text);
    assert_non_null(strstr(text, "yes\n"));
    run_until_closed(&c, c.first, text, sizeof text);
    assert_string_equal(text, "");
    close_crowd(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(web_without_descriptors_turns_clients_away),
        cmocka_unit_test(web_without_descriptors_drops_the_oldest_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
