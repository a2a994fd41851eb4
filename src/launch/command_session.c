/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/command_session.h"

#include "base/clock.h"
#include "launch/channel.h"
#include "launch/command.h"
#include "launch/process_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ORDER_US = 30000000, GRACE_US = 5000000, FIRST_FD = 3, SHELL_FAILED = 127, BY_SIGNAL = 128 };

typedef struct command_session {
    gr_channel channel;
    char *command;
    size_t command_bytes;
    int signal_fd;
    pid_t child;     /* 0: not started */
    int ends[3];     /* ours of its stdin, stdout and stderr; -1: closed */
    bool has_ended;  /* its code is known */
    bool is_dropped; /* its caller is gone, or the agent is to end */
    int code;
    uint8_t input[GR_COMMAND_INPUT_BYTES]; /* for its stdin, not taken yet */
    size_t input_first, input_bytes;
    size_t taken_bytes; /* of it, and its caller has not been told */
    bool input_ends;    /* behind that */
} command_session;

/* ---- Start ----------------------------------------------------------------------------------- */
_Noreturn static void exec_command(const command_session *s, const int theirs[3])
{
    sigset_t none;
    sigemptyset(&none);
    (void)setsid();
    for (int i = 0; i < 3; i++) {
        if (dup2(theirs[i], i) < 0) {
            _exit(SHELL_FAILED);
        }
    }
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    execl("/bin/sh", "sh", "-c", s->command, (char *)NULL);
    _exit(SHELL_FAILED);
}

static bool start(command_session *s)
{
    int theirs[3] = {-1, -1, -1};
    bool failed = false;
    for (int i = 0; i < 3 && !failed; i++) {
        int both[2];
        failed = pipe2(both, O_CLOEXEC) != 0;
        if (!failed) {
            theirs[i] = both[i == 0 ? 0 : 1];
            s->ends[i] = both[i == 0 ? 1 : 0];
            failed = fcntl(s->ends[i], F_SETFL, O_NONBLOCK) != 0;
        }
    }
    s->child = failed ? -1 : fork();
    if (s->child == 0) {
        exec_command(s, theirs);
    }
    for (int i = 0; i < 3; i++) {
        if (theirs[i] >= 0) {
            close(theirs[i]);
        }
    }
    return s->child > 0;
}

/* ---- What comes ------------------------------------------------------------------------------ */
static bool take_order(command_session *s, const gr_packet *packet)
{
    size_t size = s->command_bytes + packet->size_bytes;
    char *longer = size <= GR_COMMAND_BYTES_MAX ? realloc(s->command, size + 1) : NULL;
    if (longer == NULL || s->child != 0) {
        s->command = longer != NULL ? longer : s->command;
        return false;
    }
    memcpy(longer + s->command_bytes, packet->data, packet->size_bytes);
    longer[size] = '\0';
    s->command = longer;
    s->command_bytes = size;
    return packet->number == 0 || start(s);
}

static void close_end(command_session *s, int index)
{
    if (s->ends[index] >= 0) {
        close(s->ends[index]);
        s->ends[index] = -1;
    }
}

static void take_input(command_session *s, size_t size_bytes)
{
    s->input_first += size_bytes;
    s->input_bytes -= size_bytes;
    s->taken_bytes += size_bytes;
    s->input_first = s->input_bytes > 0 ? s->input_first : 0;
}

/* A command that does not read its stdin any more may go on all the same. */
static void feed(command_session *s)
{
    while (s->input_bytes > 0 && s->ends[0] >= 0) {
        ssize_t put = write(s->ends[0], s->input + s->input_first, s->input_bytes);
        if (put < 0 && errno == EAGAIN) {
            return;
        }
        if (put < 0 && errno != EINTR) {
            close_end(s, 0);
        }
        take_input(s, put > 0 ? (size_t)put : 0);
    }
    take_input(s, s->input_bytes); /* nobody wants it */
    if (s->input_ends) {
        close_end(s, 0);
    }
}

/* False: there is more than its caller was told to have room. */
static bool add_input(command_session *s, const gr_packet *packet)
{
    if (packet->size_bytes > sizeof s->input - s->input_bytes) {
        return false;
    }
    if (packet->size_bytes > sizeof s->input - s->input_first - s->input_bytes) {
        memmove(s->input, s->input + s->input_first, s->input_bytes);
        s->input_first = 0;
    }
    memcpy(s->input + s->input_first + s->input_bytes, packet->data, packet->size_bytes);
    s->input_bytes += packet->size_bytes;
    s->input_ends |= packet->size_bytes == 0;
    feed(s);
    return true;
}

/* False: it makes no sense. */
static bool take_packets(command_session *s)
{
    gr_packet packet;
    int error = 0;
    while (gr_channel_next(&s->channel, &packet, &error)) {
        if (packet.kind == GR_PACKET_ORDER) {
            if (!take_order(s, &packet)) {
                return false;
            }
        } else if (packet.kind == GR_PACKET_OUTPUT && packet.number == STDIN_FILENO &&
                   s->child > 0) {
            if (!add_input(s, &packet)) {
                return false;
            }
        } else {
            return false;
        }
    }
    return error == 0;
}

/* ---- What goes ------------------------------------------------------------------------------- */
/* Takes what the command has written, as far as there is room. True: there may be more. */
static bool read_output(command_session *s, int index)
{
    uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    if (s->ends[index] < 0 || !gr_channel_has_room(&s->channel)) {
        return s->ends[index] >= 0;
    }
    ssize_t got = read(s->ends[index], data, sizeof data);
    if (got > 0) {
        (void)gr_channel_put(&s->channel, GR_PACKET_OUTPUT, (uint32_t)index, data, (size_t)got);
        return true;
    }
    if (got < 0 && errno == EINTR) {
        return true;
    }
    if (got == 0 || errno != EAGAIN) {
        close_end(s, index);
    }
    return false;
}

static void take_signals(command_session *s)
{
    struct signalfd_siginfo info;
    int how;
    while (read(s->signal_fd, &info, sizeof info) == sizeof info) {
        s->is_dropped |= info.ssi_signo != SIGCHLD;
    }
    if (s->child > 0 && !s->has_ended && waitpid(s->child, &how, WNOHANG) == s->child) {
        s->has_ended = true;
        s->code = WIFEXITED(how) ? WEXITSTATUS(how) : BY_SIGNAL + WTERMSIG(how);
    }
}

static void send_taken(command_session *s)
{
    if (s->taken_bytes >= GR_COMMAND_INPUT_BYTES / 2 &&
        gr_channel_put(&s->channel, GR_PACKET_TAKEN, (uint32_t)s->taken_bytes, NULL, 0)) {
        s->taken_bytes = 0;
    }
}

/* ---- The loop -------------------------------------------------------------------------------- */
static void turn(command_session *s, int64_t until_us)
{
    gr_channel *channel = &s->channel;
    send_taken(s);
    if (gr_channel_flush(channel) != 0) {
        s->is_dropped = true;
        return;
    }
    bool room = gr_channel_has_room(channel);
    struct pollfd polls[] = {
        {.fd = channel->in_fd,
         .events = (short)(POLLRDHUP | POLLIN | (gr_channel_holds(channel) ? POLLOUT : 0))},
        {.fd = s->signal_fd, .events = POLLIN},
        {.fd = s->input_bytes > 0 ? s->ends[0] : -1, .events = POLLOUT},
        {.fd = room ? s->ends[1] : -1, .events = POLLIN},
        {.fd = room ? s->ends[2] : -1, .events = POLLIN}};
    bool more = channel->more;
    int64_t left_us = until_us - gr_now_ns() / 1000;
    int wait_ms = more                   ? 0
                  : until_us == GR_NEVER ? -1
                  : left_us > 0          ? (int)(left_us / 1000) + 1
                                         : 0;
    if (poll(polls, sizeof polls / sizeof polls[0], wait_ms) < 0) {
        return;
    }
    if (polls[1].revents != 0) {
        take_signals(s);
    }
    if (polls[2].revents != 0) {
        feed(s);
    }
    for (int i = 1; i <= 2; i++) {
        if (polls[2 + i].revents != 0) {
            (void)read_output(s, i);
        }
    }
    int error = polls[0].revents != 0 || more ? gr_channel_fill(channel) : 0;
    bool is_gone =
        (error != 0 && error != EAGAIN) || (polls[0].revents & (POLLERR | POLLRDHUP)) != 0;
    s->is_dropped |= is_gone || !take_packets(s);
}

/* What it has written, then its code. */
static void send_end(command_session *s)
{
    bool is_told = false, is_empty = false;
    while (!s->is_dropped && !(is_told && !gr_channel_holds(&s->channel))) {
        struct pollfd polls[] = {{.fd = s->channel.out_fd, .events = POLLOUT},
                                 {.fd = s->signal_fd, .events = POLLIN}};
        take_signals(s);
        if (!is_empty) {
            bool more = read_output(s, 1);
            is_empty = !(read_output(s, 2) || more);
        } else if (!is_told) {
            is_told = gr_channel_put(&s->channel, GR_PACKET_MESSAGE, (uint32_t)s->code, NULL, 0);
        }
        s->is_dropped |= gr_channel_flush(&s->channel) != 0;
        if (!s->is_dropped && gr_channel_holds(&s->channel)) {
            (void)poll(polls, 2, GRACE_US / 1000);
        }
    }
}

/* Closed with input unread the connection would be reset, and what was told be lost. */
static void wait_for_close(command_session *s)
{
    const int64_t until_us = gr_now_ns() / 1000 + GRACE_US;
    int64_t left_us = GRACE_US;
    ssize_t got = 1;
    while (!s->is_dropped && left_us > 0 &&
           (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))) {
        struct pollfd polls[] = {{.fd = s->channel.in_fd, .events = POLLIN},
                                 {.fd = s->signal_fd, .events = POLLIN}};
        (void)poll(polls, 2, (int)(left_us / 1000) + 1);
        take_signals(s);
        got = read(s->channel.in_fd, s->input, sizeof s->input); /* nobody wants it */
        left_us = until_us - gr_now_ns() / 1000;
    }
}

/* Nobody waits for it any more. */
static void end_command(command_session *s)
{
    const int64_t until_us = gr_now_ns() / 1000 + GRACE_US;
    if (kill(-s->child, SIGTERM) != 0) { /* it has no session of its own yet */
        (void)kill(s->child, SIGTERM);
    }
    while (!s->has_ended && gr_now_ns() / 1000 < until_us) {
        struct pollfd signals = {.fd = s->signal_fd, .events = POLLIN};
        (void)poll(&signals, 1, (int)((until_us - gr_now_ns() / 1000) / 1000) + 1);
        take_signals(s);
    }
    gr_process_tree_end(0); /* what is left of it, in whatever session */
}

_Noreturn void gr_command_session(int fd, gr_tls *tls)
{
    command_session session = {.ends = {-1, -1, -1}}, *s = &session;
    sigset_t signals;
    sigprocmask(SIG_SETMASK, NULL, &signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    if (fd > FIRST_FD) { /* what the agent has is not for the command */
        (void)close_range(FIRST_FD, (unsigned)fd - 1, 0);
    }
    (void)close_range((unsigned)fd + 1, ~0U, 0);
    s->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (gr_process_tree_adopt() != 0 || s->signal_fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        gr_channel_init(&s->channel, fd, fd, tls) != 0) {
        _exit(1);
    }
    const int64_t order_us = gr_now_ns() / 1000 + ORDER_US;
    while (!s->is_dropped && s->child == 0) {
        turn(s, order_us);
        s->is_dropped |= s->child == 0 && gr_now_ns() / 1000 >= order_us;
    }
    while (!s->is_dropped && !s->has_ended) {
        turn(s, GR_NEVER);
    }
    if (s->has_ended) {
        send_end(s);
        wait_for_close(s);
    } else if (s->child > 0) {
        end_command(s);
    }
    _exit(0);
}
