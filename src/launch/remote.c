/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/remote.h"

#include "base/clock.h"
#include "base/hash.h"
#include "launch/channel.h"
#include "launch/environ.h"
#include "launch/process_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORDS_BYTES = 400,
    PINGS_A_SILENCE = 4,
    KILL_PATIENCE_US = 5000000, /* a host that was told to kill and does not answer is lost */
    LAST_WORDS_MS = 1000        /* for what the shell says when it ends */
};

struct relay {
    const gr_remote_config *config;
    gr_channel channel;
    int errors_fd; /* the shell's stderr */
    pid_t shell;
    uint8_t *order;
    size_t order_bytes, order_sent;
    bool hello;          /* gradus runs there */
    bool over;           /* DONE was there, or the launcher wants an end before the beginning */
    int64_t deadline_us; /* for HELLO, then for DONE after KILL; 0: none */
    int output_fd;       /* of a worker, for the rest of a packet; nothing else is read meanwhile */
    const uint8_t *output;
    size_t output_left;
    char line[WORDS_BYTES], words[WORDS_BYTES]; /* of the shell: as it comes; the last one */
    size_t line_used;
};

static int64_t now_us(void)
{
    return gr_now_ns() / 1000;
}

/* ---- The shell ------------------------------------------------------------------------------- */

/* 0 or errno; what is left open ends with this process. */
static int start_shell(struct relay *relay)
{
    const gr_remote_config *config = relay->config;
    const gr_remote_shell *shell = config->shell;
    gr_remote_words words = {0};
    int in[2], out[2], errors[2];
    gr_spawn_error error = {0};
    for (; shell->first[words.count] != NULL; words.count++) {
        words.at[words.count] = shell->first[words.count];
    }
    shell->find_words(config, &words);
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
        return errno;
    }
    const gr_spawn spawn = {.argv = (char *const *)(uintptr_t)words.at,
                            .environment = config->environment,
                            .stdin_fd = in[0],
                            .stdout_fd = out[1],
                            .stderr_fd = errors[1]};
    relay->shell = gr_spawn_start(&spawn, &error);
    close(in[0]);
    close(out[1]);
    close(errors[1]);
    if (relay->shell < 0) {
        snprintf(relay->words, sizeof relay->words, "%s cannot be started: %s%s%s%s", shell->name,
                 strerror(error.error), error.error == ENOENT ? "; install it (" : "",
                 error.error == ENOENT ? shell->package : "", error.error == ENOENT ? ")" : "");
        return error.error;
    }
    relay->errors_fd = errors[0];
    int failed = fcntl(errors[0], F_SETFL, O_RDONLY | O_NONBLOCK) == 0 ? 0 : errno;
    return failed != 0 ? failed : gr_channel_init(&relay->channel, out[0], in[1], NULL);
}

/* What the shell, and gradus there, say about themselves: the last line is kept. False: no more
 * comes. */
static bool read_errors(struct relay *relay)
{
    char text[512];
    ssize_t got = read(relay->errors_fd, text, sizeof text);
    if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    for (ssize_t i = 0; i < got; i++) {
        bool end = text[i] == '\n' || text[i] == '\r';
        bool aside = relay->line_used > 9 && strncmp(relay->line, "Warning: ", 9) == 0;
        if (end && aside) { /* that a host was not known before, say: that is not why */
            relay->line_used = 0;
        } else if (end && relay->line_used > 0) {
            memcpy(relay->words, relay->line, relay->line_used);
            relay->words[relay->line_used] = '\0';
            relay->line_used = 0;
        } else if (!end && relay->line_used + 1 < sizeof relay->line) {
            bool plain = (unsigned char)text[i] >= ' ' && text[i] != 0x7f;
            relay->line[relay->line_used++] = plain ? text[i] : '?';
        }
    }
    return true;
}

/* ---- The end --------------------------------------------------------------------------------- */

_Noreturn static void leave(struct relay *relay, int code)
{
    gr_process_tree_end(0);
    if (code == 0) {
        (void)gr_agent_send(relay->config->agent.control_fd,
                            &(gr_agent_message){.kind = GR_AGENT_DONE});
    }
    _exit(code);
}

/* Says why, as far as is known: `reason`, unless the shell has told. */
_Noreturn static void lose(struct relay *relay, bool listen, const char *reason)
{
    const int64_t end_us = now_us() + (int64_t)LAST_WORDS_MS * 1000;
    bool more = listen && relay->errors_fd >= 0;
    while (more && now_us() < end_us) {
        struct pollfd errors = {.fd = relay->errors_fd, .events = POLLIN};
        (void)poll(&errors, 1, LAST_WORDS_MS);
        more = read_errors(relay);
    }
    const char *words = listen && relay->words[0] != '\0' ? relay->words : reason;
    (void)!write(relay->config->words_fd, words, strlen(words));
    leave(relay, 1);
}

/* ---- Carrying -------------------------------------------------------------------------------- */

static void take_hello(struct relay *relay, const gr_packet *packet)
{
    char address[64];
    snprintf(address, sizeof address, "%.*s", (int)packet->size_bytes, (const char *)packet->data);
    address[strspn(address, "0123456789abcdefABCDEF.:%")] = '\0';
    gr_status status =
        gr_launch_spec_encode(&relay->config->order, address, &relay->order, &relay->order_bytes);
    for (int rank = 0; rank < gr_agent_slot_count(&relay->config->agent); rank++) {
        gr_environ_wipe(relay->config->agent.environment[rank]);
    }
    if (status != GR_OK) {
        lose(relay, false, "the command and its environment are too long");
    }
    relay->hello = true;
    relay->deadline_us = 0;
}

static void take_output(struct relay *relay, const gr_packet *packet)
{
    uint32_t rank = packet->number / 2;
    if (rank >= (uint32_t)gr_agent_slot_count(&relay->config->agent)) {
        lose(relay, false, "it sent output of a worker that it does not have");
    }
    const gr_spawn *of = &relay->config->agent.spawns[rank];
    relay->output_fd = packet->number % 2 == 0 ? of->stdout_fd : of->stderr_fd;
    relay->output = packet->data;
    relay->output_left = packet->size_bytes;
}

static void take_message(struct relay *relay, const gr_packet *packet)
{
    gr_agent_message message;
    if (gr_agent_decode(packet->data, packet->size_bytes, &message) != GR_OK) {
        lose(relay, false, "it sent a message that makes no sense");
    }
    if (message.kind == GR_AGENT_DONE) {
        relay->over = true;
        return;
    }
    (void)gr_agent_send(relay->config->agent.control_fd, &message);
}

static void push_output(struct relay *relay)
{
    while (relay->output_left > 0) {
        ssize_t written = write(relay->output_fd, relay->output, relay->output_left);
        if (written < 0 && errno == EAGAIN) {
            return;
        }
        if (written < 0 && errno != EINTR) { /* nobody reads: the launcher is going */
            relay->output_left = 0;
        } else if (written > 0) {
            relay->output += written;
            relay->output_left -= (size_t)written;
        }
    }
}

/* Packets, until there is none, or one is output that does not go out at once. */
static void take_packets(struct relay *relay)
{
    gr_packet packet;
    int error = 0;
    if (!relay->hello && !gr_channel_skip_noise(&relay->channel)) {
        return;
    }
    while (relay->output_left == 0 && !relay->over &&
           gr_channel_next(&relay->channel, &packet, &error)) {
        if (packet.kind == GR_PACKET_HELLO && !relay->hello) {
            take_hello(relay, &packet);
        } else if (packet.kind == GR_PACKET_OUTPUT && relay->hello) {
            take_output(relay, &packet);
            push_output(relay);
        } else if (packet.kind == GR_PACKET_MESSAGE && relay->hello) {
            take_message(relay, &packet);
        } else if (packet.kind != GR_PACKET_PING) {
            error = EPROTO;
            break;
        }
    }
    if (error != 0) {
        lose(relay, false,
             error == EPROTONOSUPPORT ? "the gradus there is of another version; install the same"
                                      : "what it sends makes no sense");
    }
}

static void send_order(struct relay *relay)
{
    while (relay->order != NULL && gr_channel_has_room(&relay->channel)) {
        size_t left = relay->order_bytes - relay->order_sent;
        size_t size = left < GR_PACKET_DATA_BYTES_MAX ? left : GR_PACKET_DATA_BYTES_MAX;
        (void)gr_channel_put(&relay->channel, GR_PACKET_ORDER, size == left,
                             relay->order + relay->order_sent, size);
        relay->order_sent += size;
        if (size == left) {
            gr_wipe(relay->order, relay->order_bytes);
            free(relay->order);
            relay->order = NULL;
        }
    }
}

static void take_orders(struct relay *relay)
{
    gr_agent_message message;
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    int error = gr_agent_receive(relay->config->agent.control_fd, &message);
    if (error == EAGAIN) {
        return;
    }
    if (error != 0) { /* the launcher is gone: with the shell its end there goes as well */
        gr_process_tree_end(0);
        _exit(1);
    }
    bool ends = message.kind == GR_AGENT_SIGNAL || message.kind == GR_AGENT_KILL;
    if (!relay->hello && ends) {
        leave(relay, 0); /* nothing runs there yet */
    }
    if (!relay->hello && message.kind != GR_AGENT_START) {
        return; /* there is no worker that could have a fault */
    }
    if (message.kind == GR_AGENT_KILL) {
        relay->deadline_us = now_us() + KILL_PATIENCE_US;
    }
    gr_agent_encode(&message, bytes);
    if (!gr_channel_put(&relay->channel, GR_PACKET_MESSAGE, 0, bytes, sizeof bytes)) {
        lose(relay, false, "it does not read what it is told");
    }
}

/* ---- Time ------------------------------------------------------------------------------------ */

static int64_t ping_us(const struct relay *relay)
{
    return relay->config->silence_us / PINGS_A_SILENCE;
}

/* Loses the host when it is late; else how long may be waited, in milliseconds. */
static int check_time(struct relay *relay)
{
    int64_t now = now_us(), next = INT64_MAX;
    const int64_t silence_us = relay->config->silence_us;
    if (relay->deadline_us > 0 && relay->output_left == 0) { /* else it is we who do not listen */
        if (now >= relay->deadline_us) {
            lose(relay, !relay->hello, "it did not answer in time");
        }
        next = relay->deadline_us;
    }
    if (relay->hello && relay->output_left == 0) {
        if (gr_channel_is_silent(&relay->channel, now, silence_us)) {
            char reason[96];
            snprintf(reason, sizeof reason, "nothing was heard of it for %.1f s (--host-timeout)",
                     (double)silence_us * 1e-6);
            lose(relay, false, reason);
        }
        int64_t silent = relay->channel.heard_us + silence_us;
        next = silent < next ? silent : next;
    }
    if (relay->hello) {
        if (now >= relay->channel.said_us + ping_us(relay) && relay->channel.out_used == 0) {
            (void)gr_channel_put(&relay->channel, GR_PACKET_PING, 0, NULL, 0);
        }
        int64_t ping = relay->channel.said_us + ping_us(relay);
        ping = ping > now ? ping : now + ping_us(relay);
        next = ping < next ? ping : next;
    }
    if (next == INT64_MAX) {
        return -1;
    }
    return next > now ? (int)((next - now) / 1000 + 1) : 0;
}

static void carry(struct relay *relay)
{
    gr_channel *channel = &relay->channel;
    bool errors_open = relay->errors_fd >= 0;
    while (!relay->over) {
        int wait_ms = check_time(relay);
        send_order(relay);
        if (gr_channel_flush(channel) != 0) {
            lose(relay, true, "the connection broke");
        }
        bool stuck = relay->output_left > 0, more = channel->more && !stuck;
        struct pollfd at[] = {
            {.fd = relay->config->agent.control_fd, .events = POLLIN},
            {.fd = stuck ? -1 : channel->in_fd, .events = POLLIN},
            {.fd = gr_channel_holds(channel) ? channel->out_fd : -1, .events = POLLOUT},
            {.fd = errors_open ? relay->errors_fd : -1, .events = POLLIN},
            {.fd = stuck ? relay->output_fd : -1, .events = POLLOUT}};
        if (poll(at, sizeof at / sizeof at[0], more ? 0 : wait_ms) < 0) {
            continue;
        }
        if (at[0].revents != 0) {
            take_orders(relay);
        }
        if (at[3].revents != 0) {
            errors_open = read_errors(relay);
        }
        if (at[4].revents != 0) {
            push_output(relay);
            channel->heard_us = now_us(); /* its silence counts from now on: we did not listen */
            relay->deadline_us = relay->deadline_us > 0 ? now_us() + KILL_PATIENCE_US : 0;
            take_packets(relay);
        }
        if (at[1].revents != 0 || more) {
            int error = gr_channel_fill(channel);
            take_packets(relay);
            if (error != 0 && error != EAGAIN && !relay->over && relay->output_left == 0) {
                lose(relay, true, "the connection broke");
            }
        }
    }
}

_Noreturn void gr_remote_run(const gr_remote_config *config)
{
    struct relay relay = {.config = config, .errors_fd = -1};
    const int keep[GR_AGENT_KEEP] = {config->words_fd,
                                     config->tls != NULL ? config->joined_fd : -1};
    int error = gr_agent_settle(&config->agent, "gradus-relay", keep);
    for (int rank = 0; rank < gr_agent_slot_count(&config->agent) && error == 0; rank++) {
        const gr_spawn *of = &config->agent.spawns[rank];
        if (fcntl(of->stdout_fd, F_SETFL, O_WRONLY | O_NONBLOCK) != 0 ||
            fcntl(of->stderr_fd, F_SETFL, O_WRONLY | O_NONBLOCK) != 0) {
            error = errno;
        }
    }
    if (error == 0 && config->tls != NULL) {
        error = gr_channel_init(&relay.channel, config->joined_fd, config->joined_fd, config->tls);
    } else if (error == 0) {
        error = start_shell(&relay);
    }
    if (error != 0) {
        lose(&relay, relay.words[0] != '\0', strerror(error));
    }
    if (config->start_timeout_us > 0) {
        relay.deadline_us = now_us() + config->start_timeout_us;
    }
    carry(&relay);
    leave(&relay, 0);
}
