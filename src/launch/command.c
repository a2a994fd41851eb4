/* SPDX-License-Identifier: Apache-2.0 */

/* The end that sends a command, and the agent that listens. */

#include "launch/command.h"

#include "base/clock.h"
#include "base/codec.h"
#include "base/fail.h"
#include "launch/channel.h"
#include "launch/command_session.h"
#include "launch/join.h"
#include "launch/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_AGAIN_MS = 500, REAP_MS = 1000 };

/* ---- The agent ------------------------------------------------------------------------------- */
typedef struct command_server {
    gr_acceptor *acceptor;
    pid_t sessions[GR_COMMANDS_MAX]; /* 0: free */
} command_server;

/* As the first process of a container it has the orphans of all commands for children. */
static void reap(command_server *server)
{
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        for (int i = 0; i < GR_COMMANDS_MAX; i++) {
            server->sessions[i] = server->sessions[i] == pid ? 0 : server->sessions[i];
        }
    }
}

static void begin(command_server *server, gr_host *host)
{
    int free_place = 0;
    while (free_place < GR_COMMANDS_MAX && server->sessions[free_place] != 0) {
        free_place++;
    }
    if (free_place < GR_COMMANDS_MAX) {
        pid_t parent = getpid(), pid = fork();
        if (pid == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != parent) {
                _exit(1);
            }
            gr_command_session(host->fd, host->tls);
        }
        server->sessions[free_place] = pid > 0 ? pid : 0;
    }
    gr_join_refuse(host); /* the session has it */
}

static gr_status wait_and_work(command_server *server, gr_diag *diag)
{
    gr_host host;
    char name[GR_HOSTS_NAME_BYTES];
    gr_status status = gr_acceptor_progress(server->acceptor, diag);
    while (status >= 0 && gr_join_take(server->acceptor, name, &host)) {
        begin(server, &host);
    }
    if (status >= 0) {
        int64_t left_us = gr_acceptor_next_us(server->acceptor) - gr_now_ns() / 1000;
        int wait_ms = left_us < 0                ? 0
                      : left_us / 1000 < REAP_MS ? (int)(left_us / 1000) + 1
                                                 : REAP_MS;
        gr_signals_sleep(gr_acceptor_fd(server->acceptor), wait_ms);
        reap(server);
    }
    return status;
}

gr_status gr_command_serve(const char *at, const uint8_t token[GR_SECRET_BYTES], const gr_log *log,
                           gr_diag *diag)
{
    command_server server = {.acceptor = NULL};
    gr_signals_hold(NULL);
    gr_status status = gr_join_listen(at, token, NULL, &server.acceptor, diag);
    if (status == GR_OK) {
        gr_log_write(log, GR_LOG_INFO, "agent", "waits for commands at %s",
                     gr_acceptor_remote_address(server.acceptor));
    }
    while (status >= 0 && gr_signals_waiting() == 0) {
        status = wait_and_work(&server, diag);
    }
    for (int i = 0; i < GR_COMMANDS_MAX; i++) {
        if (server.sessions[i] > 0) {
            (void)kill(server.sessions[i], SIGTERM);
        }
    }
    for (int i = 0; i < GR_COMMANDS_MAX; i++) {
        if (server.sessions[i] > 0) {
            (void)waitpid(server.sessions[i], NULL, 0);
        }
    }
    gr_acceptor_destroy(server.acceptor);
    return status < 0 ? status : GR_OK;
}

/* ---- Who sends a command --------------------------------------------------------------------- */
typedef struct command_client {
    gr_channel channel;
    bool is_stdin_open, has_ended;
    size_t window_bytes; /* of stdin that the agent has room for */
    int code;
} command_client;

static bool write_whole(int fd, const uint8_t *data, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t put = write(fd, data, size_bytes);
        if (put < 0 && errno == EAGAIN) { /* whoever gave us the descriptor made it so */
            struct pollfd out = {.fd = fd, .events = POLLOUT};
            (void)poll(&out, 1, -1);
        } else if (put < 0 && errno != EINTR) {
            return false;
        }
        data += put > 0 ? put : 0;
        size_bytes -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* False: what came makes no sense, or nobody reads what the command writes. */
static bool take_packets(command_client *client)
{
    gr_packet packet;
    int error = 0;
    while (!client->has_ended && gr_channel_next(&client->channel, &packet, &error)) {
        bool is_output = packet.kind == GR_PACKET_OUTPUT &&
                         (packet.number == STDOUT_FILENO || packet.number == STDERR_FILENO);
        if (is_output && !write_whole((int)packet.number, packet.data, packet.size_bytes)) {
            return false;
        }
        if (packet.kind == GR_PACKET_MESSAGE) {
            client->has_ended = true;
            client->code = (int)packet.number;
        } else if (packet.kind == GR_PACKET_TAKEN &&
                   packet.number <= GR_COMMAND_INPUT_BYTES - client->window_bytes) {
            client->window_bytes += packet.number;
        } else if (!is_output) {
            return false;
        }
    }
    return error == 0;
}

static void send_stdin(command_client *client)
{
    uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    ssize_t got = read(STDIN_FILENO, data,
                       client->window_bytes < sizeof data ? client->window_bytes : sizeof data);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    client->is_stdin_open = got > 0;
    client->window_bytes -= got > 0 ? (size_t)got : 0;
    (void)gr_channel_put(&client->channel, GR_PACKET_OUTPUT, STDIN_FILENO, data,
                         got > 0 ? (size_t)got : 0);
}

static bool turn(command_client *client)
{
    gr_channel *channel = &client->channel;
    if (gr_channel_flush(channel) != 0) {
        return false;
    }
    bool takes_stdin =
        client->is_stdin_open && client->window_bytes > 0 && gr_channel_has_room(channel);
    struct pollfd polls[] = {
        {.fd = channel->in_fd,
         .events = (short)(POLLIN | (gr_channel_holds(channel) ? POLLOUT : 0))},
        {.fd = takes_stdin ? STDIN_FILENO : -1, .events = POLLIN}};
    bool more = channel->more;
    if (poll(polls, 2, more ? 0 : -1) < 0) {
        return errno == EINTR;
    }
    if (polls[1].revents != 0) {
        send_stdin(client);
    }
    if (polls[0].revents != 0 || more) {
        int error = gr_channel_fill(channel);
        return take_packets(client) && (error == 0 || error == EAGAIN || client->has_ended);
    }
    return true;
}

static gr_status send_command(command_client *client, const char *command, gr_diag *diag)
{
    size_t left = strlen(command);
    do {
        size_t size = left < GR_PACKET_DATA_BYTES_MAX ? left : GR_PACKET_DATA_BYTES_MAX;
        if (!gr_channel_put(&client->channel, GR_PACKET_ORDER, size == left, command, size)) {
            struct pollfd out = {.fd = client->channel.out_fd, .events = POLLOUT};
            if (gr_channel_flush(&client->channel) != 0) {
                return gr_fail(diag, GR_E_PEER_LOST, "the connection broke");
            }
            (void)poll(&out, 1, LOOK_AGAIN_MS);
            continue;
        }
        command += size;
        left -= size;
    } while (left > 0);
    return GR_OK;
}

gr_status gr_command_run(const char *at, const uint8_t token[GR_SECRET_BYTES], int64_t wait_us,
                         const char *command, int *code_out, gr_diag *diag)
{
    command_client client = {.is_stdin_open = true, .window_bytes = GR_COMMAND_INPUT_BYTES};
    gr_accepted accepted;
    (void)signal(SIGPIPE, SIG_IGN);
    if (strlen(command) > GR_COMMAND_BYTES_MAX) {
        return gr_fail(diag, GR_E_INVALID, "a command may have %d bytes", GR_COMMAND_BYTES_MAX);
    }
    gr_status status = gr_join_dial(at, 1, token, wait_us, NULL, &accepted, diag);
    if (status != GR_OK) {
        return status;
    }
    int error = gr_channel_init(&client.channel, accepted.fd, accepted.fd, accepted.tls);
    status = error == 0
                 ? send_command(&client, command, diag)
                 : gr_fail(diag, GR_E_IO, "the connection cannot be used: %s", strerror(error));
    while (status == GR_OK && !client.has_ended) {
        if (!turn(&client)) {
            status = gr_fail(diag, GR_E_PEER_LOST,
                             "the connection broke while the command ran, or nobody reads what it "
                             "writes");
        }
    }
    gr_channel_fini(&client.channel);
    gr_tls_destroy(accepted.tls);
    close(accepted.fd);
    *code_out = client.code;
    return status;
}
