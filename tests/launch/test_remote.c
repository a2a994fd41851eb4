/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a host that has not answered yet, and of one whose output nobody reads. */
#include "launch/channel.h"
#include "launch/remote.h"

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
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    START_US = 300000,
    SILENCE_US = 60000000,
    PIPE_BYTES = 65536,
    PACKETS = 4 * PIPE_BYTES / GR_PACKET_DATA_BYTES_MAX,
    LATE_MS = 6000 /* more than a host has that was told to kill */
};

static void find_words(const gr_remote_config *config, gr_remote_words *words)
{
    (void)config;
    (void)words;
}

typedef struct called_host {
    pid_t relay;
    int control_fd, words_fd;
} called_host;

/* By a shell of these words. `output_fd`: what the worker there writes. */
static void call_by(called_host *host, const char *const *first, int64_t start_us, int output_fd)
{
    const gr_remote_shell shell = {.name = first[0], .first = first, .find_words = find_words};
    int control[2], words[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
    assert_int_equal(pipe2(words, O_CLOEXEC), 0);
    host->relay = fork();
    assert_true(host->relay >= 0);
    if (host->relay == 0) {
        int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        char secret[] = "GRADUS_SECRET=00", *entries[] = {secret, NULL, NULL};
        char **environment[] = {entries};
        char *argv[] = {"true", NULL};
        gr_spawn spawn = {.stdin_fd = null_fd,
                          .stdout_fd = output_fd < 0 ? null_fd : output_fd,
                          .stderr_fd = null_fd};
        gr_remote_config config = {.shell = &shell,
                                   .host = "called",
                                   .start_timeout_us = start_us,
                                   .silence_us = SILENCE_US,
                                   .order = {.workers = 1,
                                             .silence_us = SILENCE_US,
                                             .folder = "/",
                                             .argv = argv,
                                             .environment = environment},
                                   .environment = environ,
                                   .agent = {.workers = 1,
                                             .spawns = &spawn,
                                             .environment = environment,
                                             .control_fd = control[1],
                                             .lock_fd = -1},
                                   .joined_fd = -1,
                                   .words_fd = words[1]};
        gr_remote_run(&config);
    }
    close(control[1]);
    close(words[1]);
    host->control_fd = control[0];
    host->words_fd = words[0];
}

/* By one that says nothing. */
static void call(called_host *host)
{
    static const char *const first[] = {"sleep", "1000", NULL};
    call_by(host, first, START_US, -1);
}

static void say(const called_host *host, int kind)
{
    const gr_agent_message message = {.kind = kind, .pid = getpid(), .value = SIGTERM};
    assert_int_equal(gr_agent_send(host->control_fd, &message), 0);
}

/* The exit code; *done_out: it has said that all has ended there. */
static int hang_up(called_host *host, bool *done_out)
{
    gr_agent_message message = {.kind = 0};
    int wait_status = 0;
    *done_out = gr_agent_receive(host->control_fd, &message) == 0 && message.kind == GR_AGENT_DONE;
    assert_int_equal(waitpid(host->relay, &wait_status, 0), host->relay);
    close(host->control_fd);
    close(host->words_fd);
    assert_true(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
}

static void remote_fault_before_the_host_has_answered_is_ignored(void **state)
{
    called_host host;
    char words[256] = "";
    bool done;
    (void)state;
    call(&host);
    say(&host, GR_AGENT_FAULT);
    say(&host, GR_AGENT_SPAWN);
    assert_true(read(host.words_fd, words, sizeof words - 1) > 0);
    assert_non_null(strstr(words, "did not answer in time"));
    assert_int_equal(hang_up(&host, &done), 1);
    assert_false(done);
}

static void remote_end_before_the_host_has_answered_is_one(void **state)
{
    static const int kinds[] = {GR_AGENT_SIGNAL, GR_AGENT_KILL};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        called_host host;
        bool done;
        call(&host);
        say(&host, kinds[i]);
        assert_int_equal(hang_up(&host, &done), 0);
        assert_true(done);
    }
}

/* All that the host will say: that it is there, much output, and that all has ended. */
static void write_words(const char *path)
{
    static uint8_t output[GR_PACKET_DATA_BYTES_MAX];
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    const gr_agent_message done = {.kind = GR_AGENT_DONE};
    gr_channel channel;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(gr_channel_init(&channel, fd, fd, NULL), 0);
    assert_true(gr_channel_put(&channel, GR_PACKET_HELLO, 0, "127.0.0.1", 9));
    for (int i = 0; i < PACKETS; i++) {
        assert_true(gr_channel_put(&channel, GR_PACKET_OUTPUT, 0, output, sizeof output));
        assert_int_equal(gr_channel_flush(&channel), 0);
    }
    gr_agent_encode(&done, bytes);
    assert_true(gr_channel_put(&channel, GR_PACKET_MESSAGE, 0, bytes, sizeof bytes));
    assert_int_equal(gr_channel_flush(&channel), 0);
    gr_channel_fini(&channel);
    close(fd);
}

static void remote_host_whose_output_nobody_reads_is_waited_for(void **state)
{
    char path[] = "/tmp/gradus-remote-XXXXXX", command[64], text[4096];
    const char *const first[] = {"sh", "-c", command, NULL};
    int output[2], there = 0;
    called_host host;
    bool done;
    ssize_t got;
    size_t total = 0;
    (void)state;
    close(mkstemp(path));
    write_words(path);
    snprintf(command, sizeof command, "cat %s; exec sleep 1000", path);
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    assert_true(fcntl(output[1], F_SETPIPE_SZ, PIPE_BYTES) >= 0);
    call_by(&host, first, 0, output[1]);
    close(output[1]);
    struct pollfd words = {.fd = host.words_fd, .events = POLLIN};
    while (there < PIPE_BYTES) { /* then it is full */
        assert_int_equal(ioctl(output[0], FIONREAD, &there), 0);
        assert_int_equal(poll(&words, 1, 1), 0);
    }
    say(&host, GR_AGENT_KILL);
    assert_int_equal(poll(&words, 1, LATE_MS), 0); /* no word that it is lost */
    while ((got = read(output[0], text, sizeof text)) > 0) {
        total += (size_t)got;
    }
    assert_int_equal(total, PACKETS * GR_PACKET_DATA_BYTES_MAX);
    assert_int_equal(hang_up(&host, &done), 0);
    assert_true(done);
    close(output[0]);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remote_fault_before_the_host_has_answered_is_ignored),
        cmocka_unit_test(remote_end_before_the_host_has_answered_is_one),
        cmocka_unit_test(remote_host_whose_output_nobody_reads_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
