/* SPDX-License-Identifier: Apache-2.0 */
/* The host's end of the way to a launcher: what a launcher that does not read, and an agent that
 * does not, are told in the end. */
#include "launch/agent_queue.h"
#include "launch/channel.h"
#include "launch/launch_spec.h"
#include "launch/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    SILENCE_US = 60000000,
    KEPT = 5000,    /* messages; a socket has room for some hundreds */
    UNREAD = 12000, /* and the channel and its pipe, for less than this */
    PATIENCE_MS = 60000
};

/* ---- The queue ------------------------------------------------------------------------------- */

static void agent_queue_of_a_full_socket_keeps_all_in_order(void **state)
{
    gr_agent_queue queue = {.at = NULL};
    gr_agent_message message = {.kind = GR_AGENT_SPAWN};
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
    for (message.rank = 0; message.rank < KEPT; message.rank++) {
        assert_int_equal(gr_agent_queue_send(&queue, ends[0], &message), 0);
    }
    assert_true(gr_agent_queue_holds(&queue));
    for (int rank = 0; rank < KEPT; rank++) {
        int error = gr_agent_receive(ends[1], &message);
        if (error == EAGAIN) {
            assert_int_equal(gr_agent_queue_flush(&queue, ends[0]), 0);
            error = gr_agent_receive(ends[1], &message);
        }
        assert_int_equal(error, 0);
        assert_int_equal(message.rank, rank);
    }
    assert_false(gr_agent_queue_holds(&queue));
    gr_agent_queue_fini(&queue);
    close(ends[0]);
    close(ends[1]);
}

static void agent_queue_that_nobody_reads_is_bounded(void **state)
{
    gr_agent_queue queue = {.at = NULL};
    const gr_agent_message message = {.kind = GR_AGENT_SPAWN};
    int ends[2], error = 0;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
    for (int i = 0; i < 2 * GR_AGENT_QUEUE_MAX && error == 0; i++) {
        error = gr_agent_queue_send(&queue, ends[0], &message);
    }
    assert_int_equal(error, ENOBUFS);
    assert_int_equal(queue.count, GR_AGENT_QUEUE_MAX);
    close(ends[1]);
    assert_int_not_equal(gr_agent_queue_flush(&queue, ends[0]), 0);
    gr_agent_queue_fini(&queue);
    assert_false(gr_agent_queue_holds(&queue));
    close(ends[0]);
}

/* ---- Serving --------------------------------------------------------------------------------- */

typedef struct far_host {
    pid_t pid, agent;
    gr_channel channel; /* of the launcher, which is the test */
} far_host;

static void start(far_host *host)
{
    int there[2], back[2];
    assert_int_equal(pipe2(there, O_CLOEXEC), 0);
    assert_int_equal(pipe2(back, O_CLOEXEC), 0);
    host->pid = fork();
    assert_true(host->pid >= 0);
    if (host->pid == 0) {
        char *own[] = {NULL};
        gr_diag diag = {0};
        const gr_serve_way way = {.in_fd = there[0], .out_fd = back[1]};
        close(there[1]);
        close(back[0]);
        _exit(gr_serve_run(&way, own, NULL, &diag) == GR_OK ? 0 : 1);
    }
    close(there[0]);
    close(back[1]);
    assert_int_equal(gr_channel_init(&host->channel, back[0], there[1], NULL), 0);
}

static void put(far_host *host, int kind, uint32_t number, const void *data, size_t size_bytes)
{
    while (!gr_channel_put(&host->channel, kind, number, data, size_bytes)) {
        struct pollfd out = {.fd = host->channel.out_fd, .events = POLLOUT};
        assert_int_equal(poll(&out, 1, PATIENCE_MS), 1);
        assert_int_equal(gr_channel_flush(&host->channel), 0);
    }
}

static void flush(far_host *host)
{
    assert_int_equal(gr_channel_flush(&host->channel), 0);
    while (gr_channel_holds(&host->channel)) {
        struct pollfd out = {.fd = host->channel.out_fd, .events = POLLOUT};
        assert_int_equal(poll(&out, 1, PATIENCE_MS), 1);
        assert_int_equal(gr_channel_flush(&host->channel), 0);
    }
}

static void tell(far_host *host, int kind)
{
    const gr_agent_message message = {.kind = kind, .pid = getpid()};
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    gr_agent_encode(&message, bytes);
    put(host, GR_PACKET_MESSAGE, 0, bytes, sizeof bytes);
}

/* The next message of one of these kinds; what else comes is counted, and dropped. */
static int await(far_host *host, int kind, int or_kind, int *others)
{
    for (;;) {
        gr_packet packet;
        int error = 0;
        while (gr_channel_next(&host->channel, &packet, &error)) {
            gr_agent_message message;
            if (packet.kind != GR_PACKET_MESSAGE) {
                continue;
            }
            assert_int_equal(gr_agent_decode(packet.data, packet.size_bytes, &message), GR_OK);
            if (message.kind == kind || message.kind == or_kind) {
                host->agent = message.kind == GR_AGENT_READY ? message.pid : host->agent;
                return message.kind;
            }
            *others += message.kind == GR_AGENT_NOT_STARTED;
        }
        assert_int_equal(error, 0);
        struct pollfd in = {.fd = host->channel.in_fd, .events = POLLIN};
        assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
        error = gr_channel_fill(&host->channel);
        assert_true(error == 0 || error == EAGAIN);
    }
}

/* One worker, which writes without an end. */
static void order(far_host *host)
{
    char *argv[] = {"cat", "/dev/zero", NULL};
    char secret[] =
        "GRADUS_SECRET=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char *entries[] = {"PATH=/usr/bin:/bin", secret, NULL, NULL};
    char **environment[] = {entries};
    const gr_launch_spec spec = {.workers = 1,
                                 .slots = 1,
                                 .silence_us = SILENCE_US,
                                 .folder = "/",
                                 .argv = argv,
                                 .environment = environment};
    uint8_t *bytes = NULL;
    size_t size = 0;
    int others = 0;
    assert_int_equal(gr_launch_spec_encode(&spec, "127.0.0.1", &bytes, &size), GR_OK);
    put(host, GR_PACKET_ORDER, 1, bytes, size);
    free(bytes);
    flush(host);
    (void)await(host, GR_AGENT_READY, GR_AGENT_READY, &others);
    tell(host, GR_AGENT_START);
    flush(host);
    (void)await(host, GR_AGENT_STARTED, GR_AGENT_STARTED, &others);
    assert_int_equal(others, 0);
}

/* Until the agent has done all that it can. */
static void wait_for_rest(const far_host *host)
{
    enum { LOOKS = 20, LOOK_MS = 5 };
    char path[64], state = 'R';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)host->agent);
    for (int rests = 0; rests < LOOKS; rests = state == 'S' ? rests + 1 : 0) {
        FILE *file = fopen(path, "re");
        assert_non_null(file);
        assert_int_equal(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* Each order is answered: the worker runs already. Until all are given nobody reads the answers, so
 * that these wait in the agent, which then reads no orders. */
static void serve_orders_and_answers_that_nobody_reads_are_kept(void **state)
{
    far_host host;
    int answers = 0, wait_status = 0;
    (void)state;
    start(&host);
    order(&host);
    for (int i = 0; i < UNREAD; i++) {
        tell(&host, GR_AGENT_SPAWN);
    }
    flush(&host);
    wait_for_rest(&host);
    tell(&host, GR_AGENT_KILL);
    flush(&host);
    while (await(&host, GR_AGENT_DONE, GR_AGENT_EXITED, &answers) != GR_AGENT_DONE) {
    }
    assert_int_equal(answers, UNREAD);
    close(host.channel.in_fd);
    close(host.channel.out_fd);
    gr_channel_fini(&host.channel);
    assert_int_equal(waitpid(host.pid, &wait_status, 0), host.pid);
    assert_int_equal(wait_status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agent_queue_of_a_full_socket_keeps_all_in_order),
        cmocka_unit_test(agent_queue_that_nobody_reads_is_bounded),
        cmocka_unit_test(serve_orders_and_answers_that_nobody_reads_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
