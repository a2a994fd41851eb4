/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/channel.h"
#include "launch/command.h"
#include "launch/command_session.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* What the kernel keeps for a command that does not read: a pipe. */
enum { PIPE_BYTES = 64 * 1024 };

/* The session of a command, and the channel of its caller. */
static pid_t begin(const char *command, gr_channel *channel)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        gr_command_session(ends[1], NULL);
    }
    close(ends[1]);
    assert_int_equal(gr_channel_init(channel, ends[0], ends[0], NULL), 0);
    assert_true(gr_channel_put(channel, GR_PACKET_ORDER, 1, command, strlen(command)));
    return pid;
}

/* Sends so many bytes of stdin. False: the session has closed before. */
static bool send_input(gr_channel *channel, size_t size_bytes)
{
    static const uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    bool is_there = true;
    for (size_t sent = 0; is_there && (sent < size_bytes || gr_channel_holds(channel));) {
        if (sent < size_bytes && gr_channel_has_room(channel)) {
            assert_true(gr_channel_put(channel, GR_PACKET_OUTPUT, 0, data, sizeof data));
            sent += sizeof data;
        }
        struct pollfd out = {.fd = channel->out_fd, .events = POLLOUT};
        is_there = gr_channel_flush(channel) == 0 && poll(&out, 1, -1) == 1;
    }
    return is_there;
}

static void end(gr_channel *channel, pid_t pid)
{
    int how;
    gr_channel_fini(channel);
    close(channel->in_fd);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
}

static void session_takes_all_that_it_has_room_for(void **state)
{
    (void)state;
    gr_channel channel;
    pid_t pid = begin("exec sleep 1000", &channel);
    assert_true(send_input(&channel, GR_COMMAND_INPUT_BYTES));
    struct pollfd in = {.fd = channel.in_fd, .events = POLLIN};
    assert_int_equal(poll(&in, 1, 0), 0); /* nothing is told of less than half of it */
    end(&channel, pid);
}

static void session_ends_when_more_is_sent_than_it_has_room_for(void **state)
{
    (void)state;
    gr_channel channel;
    pid_t pid = begin("exec sleep 1000", &channel);
    (void)send_input(&channel, GR_COMMAND_INPUT_BYTES + PIPE_BYTES + GR_PACKET_DATA_BYTES_MAX);
    struct pollfd in = {.fd = channel.in_fd, .events = POLLIN};
    assert_int_equal(poll(&in, 1, -1), 1);
    assert_int_not_equal(gr_channel_fill(&channel), 0);
    end(&channel, pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_takes_all_that_it_has_room_for),
        cmocka_unit_test(session_ends_when_more_is_sent_than_it_has_room_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
