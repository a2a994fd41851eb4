/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher says to a host that has not answered yet. */
#include "launch/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { START_US = 300000, SILENCE_US = 60000000 };

static void find_words(const gr_remote_config *config, gr_remote_words *words)
{
    (void)config;
    (void)words;
}

typedef struct silent_host {
    pid_t relay;
    int control_fd, words_fd;
} silent_host;

/* By a shell that says nothing. */
static void call(silent_host *host)
{
    static const char *const first[] = {"sleep", "1000", NULL};
    static const gr_remote_shell shell = {
        .name = "sleep", .first = first, .find_words = find_words};
    int control[2], words[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
    assert_int_equal(pipe2(words, O_CLOEXEC), 0);
    host->relay = fork();
    assert_true(host->relay >= 0);
    if (host->relay == 0) {
        int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        char secret[] = "GRADUS_SECRET=00", *entries[] = {secret, NULL, NULL};
        char **environment[] = {entries};
        gr_spawn spawn = {.stdin_fd = null_fd, .stdout_fd = null_fd, .stderr_fd = null_fd};
        gr_remote_config config = {.shell = &shell,
                                   .host = "silent",
                                   .start_timeout_us = START_US,
                                   .silence_us = SILENCE_US,
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

static void say(const silent_host *host, int kind)
{
    const gr_agent_message message = {.kind = kind, .pid = getpid(), .value = SIGTERM};
    assert_int_equal(gr_agent_send(host->control_fd, &message), 0);
}

/* The exit code; *done_out: it has said that all has ended there. */
static int hang_up(silent_host *host, bool *done_out)
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
    silent_host host;
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
        silent_host host;
        bool done;
        call(&host);
        say(&host, kinds[i]);
        assert_int_equal(hang_up(&host, &done), 0);
        assert_true(done);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remote_fault_before_the_host_has_answered_is_ignored),
        cmocka_unit_test(remote_end_before_the_host_has_answered_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
