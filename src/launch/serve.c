/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/serve.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fail.h"
#include "base/hash.h"
#include "launch/agent_queue.h"
#include "launch/channel.h"
#include "launch/environ.h"
#include "launch/launch_spec.h"
#include "launch/process_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PINGS_A_SILENCE = 4, PIPES = 2, ARENA_BYTES_MAX = 128 << 20, FIXED_POLLS = 3 };

struct serve {
    gr_channel channel;
    gr_arena arena;
    char *const *environment; /* ours */
    uint8_t *bytes;           /* the order, as it comes */
    size_t used, room;
    gr_launch_spec order; /* no slots: it is not there yet */
    gr_spawn *spawns;
    int *worker_fds, *pipes; /* PIPES for each worker: its ends and ours; -1: closed */
    struct pollfd *polls;
    int control_fd, stdin_fd;
    pid_t agent;
    gr_agent_queue unsent; /* to the agent */
    bool done;             /* the agent has ended: what is in the pipes is the rest */
};

static int64_t now_us(void)
{
    return gr_now_ns() / 1000;
}

/* ---- The order ------------------------------------------------------------------------------- */

static gr_status make_pipes(struct serve *serve, gr_diag *diag)
{
    size_t count = (size_t)gr_launch_spec_slot_count(&serve->order) * PIPES;
    serve->worker_fds = gr_arena_alloc(&serve->arena, count * sizeof *serve->worker_fds);
    serve->pipes = gr_arena_alloc(&serve->arena, count * sizeof *serve->pipes);
    serve->polls = gr_arena_alloc(&serve->arena, (count + FIXED_POLLS) * sizeof *serve->polls);
    if (serve->worker_fds == NULL || serve->pipes == NULL || serve->polls == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu pipes", count);
    }
    for (size_t i = 0; i < count; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETFL, O_RDONLY | O_NONBLOCK) != 0) {
            return gr_fail(diag, GR_E_IO, "a pipe for the output of a worker cannot be made: %s",
                           strerror(errno));
        }
        serve->pipes[i] = ends[0];
        serve->worker_fds[i] = ends[1];
    }
    return gr_spawn_make_stdin(serve->order.document, &serve->stdin_fd, diag);
}

static gr_status make_spawns(struct serve *serve, gr_diag *diag)
{
    const gr_launch_spec *order = &serve->order;
    int slots = gr_launch_spec_slot_count(order);
    gr_cores *cores = gr_arena_alloc(&serve->arena, 2 * sizeof *cores);
    gr_cores *parts = gr_arena_alloc(&serve->arena, (size_t)slots * sizeof *parts);
    serve->spawns = gr_arena_alloc(&serve->arena, (size_t)slots * sizeof *serve->spawns);
    if (cores == NULL || parts == NULL || serve->spawns == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", slots);
    }
    gr_cores *allowed = cores + 1;
    gr_status status = gr_cores_allowed(allowed, diag);
    *cores = *allowed;
    if (status == GR_OK && order->cores != NULL) {
        status = gr_cores_parse(order->cores, "--cores", allowed, cores, diag);
    }
    gr_cores_sort_by_topology(cores);
    for (int rank = 0; rank < slots && status == GR_OK; rank++) {
        gr_spawn *spawn = &serve->spawns[rank];
        *spawn = (gr_spawn){.argv = order->argv,
                            .file = order->self ? "/proc/self/exe" : NULL,
                            .environment = order->environment[rank],
                            .stdin_fd = serve->stdin_fd,
                            .stdout_fd = serve->worker_fds[rank * PIPES],
                            .stderr_fd = serve->worker_fds[rank * PIPES + 1]};
        if (order->bind && gr_cores_deal(cores, slots, rank, &parts[rank])) {
            spawn->cores = &parts[rank];
        } else if (order->cores != NULL) {
            spawn->cores = cores;
        }
    }
    return status;
}

static gr_status start_agent(struct serve *serve, gr_diag *diag)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made: %s", strerror(errno));
    }
    serve->agent = fork();
    if (serve->agent == 0) {
        gr_agent_config config = {.workers = serve->order.workers,
                                  .slots = serve->order.slots,
                                  .spawns = serve->spawns,
                                  .environment = serve->order.environment,
                                  .control_fd = ends[1]};
        gr_channel_fini(&serve->channel);
        gr_agent_run(&config);
    }
    int fork_error = errno;
    close(ends[1]);
    serve->control_fd = ends[0];
    for (int i = 0; i < gr_launch_spec_slot_count(&serve->order) * PIPES; i++) {
        close(serve->worker_fds[i]);
    }
    for (int rank = 0; rank < gr_launch_spec_slot_count(&serve->order); rank++) {
        gr_environ_wipe(serve->order.environment[rank]);
    }
    if (serve->agent < 0) {
        return gr_fail(diag, GR_E_IO, "the agent process cannot be started: %s; see ulimit -u",
                       strerror(fork_error));
    }
    return fcntl(serve->control_fd, F_SETFL, O_RDWR | O_NONBLOCK) == 0
               ? GR_OK
               : gr_fail(diag, GR_E_IO, "the agent's socket cannot be made non-blocking: %s",
                         strerror(errno));
}

static gr_status obey(struct serve *serve, gr_diag *diag)
{
    gr_launch_spec order;
    gr_status status =
        gr_launch_spec_decode(serve->bytes, serve->used, serve->environment, &serve->arena, &order);
    gr_wipe(serve->bytes, serve->used);
    serve->used = 0;
    if (status != GR_OK) {
        return gr_fail(diag, status,
                       "the order of the launcher cannot be read: the gradus there "
                       "is of another version?");
    }
    if (chdir(order.folder) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "the folder \"%s\" cannot be entered here: %s; workers start where the "
                       "launcher was started: make it, or share it",
                       order.folder, strerror(errno));
    }
    serve->order = order;
    status = make_pipes(serve, diag);
    if (status == GR_OK) {
        status = make_spawns(serve, diag);
    }
    return status == GR_OK ? start_agent(serve, diag) : status;
}

static gr_status take_piece(struct serve *serve, const gr_packet *packet, gr_diag *diag)
{
    if (serve->used + packet->size_bytes > serve->room) {
        size_t room = serve->room > 0 ? serve->room * 2 : 256 * 1024;
        uint8_t *larger = room <= GR_LAUNCH_SPEC_BYTES_MAX ? malloc(room) : NULL;
        if (larger == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the order of the launcher");
        }
        if (serve->used > 0) {
            memcpy(larger, serve->bytes, serve->used);
            gr_wipe(serve->bytes, serve->used);
        }
        free(serve->bytes);
        serve->bytes = larger;
        serve->room = room;
    }
    memcpy(serve->bytes + serve->used, packet->data, packet->size_bytes);
    gr_wipe(packet->data, packet->size_bytes);
    serve->used += packet->size_bytes;
    return packet->number == 1 ? obey(serve, diag) : GR_OK;
}

/* ---- Carrying -------------------------------------------------------------------------------- */

static gr_status take_packets(struct serve *serve, gr_diag *diag)
{
    gr_packet packet;
    int error = 0;
    gr_status status = GR_OK;
    while (status == GR_OK && gr_channel_next(&serve->channel, &packet, &error)) {
        gr_agent_message message;
        bool ordered = gr_launch_spec_slot_count(&serve->order) > 0;
        if (packet.kind == GR_PACKET_ORDER && !ordered) {
            status = take_piece(serve, &packet, diag);
            gr_wipe_stack(); /* of the registers that the dynamic linker saved there */
        } else if (packet.kind == GR_PACKET_MESSAGE && ordered &&
                   gr_agent_decode(packet.data, packet.size_bytes, &message) == GR_OK) {
            int unsent = gr_agent_queue_send(&serve->unsent, serve->control_fd, &message);
            if (unsent == ENOBUFS || unsent == ENOMEM) {
                status = gr_fail(diag, GR_E_NO_MEMORY,
                                 "the process that looks after the workers (gradus-agent, pid %d) "
                                 "does not read what it is told",
                                 (int)serve->agent);
            }
        } else if (packet.kind != GR_PACKET_PING) {
            error = EPROTO;
            break;
        }
    }
    return error == 0 ? status
                      : gr_fail(diag, GR_E_PROTOCOL,
                                "the launcher sends what makes no sense here: its gradus is of "
                                "another version?");
}

/* From the agent, as far as there is room. False: it was killed. */
static bool take_messages(struct serve *serve)
{
    gr_agent_message message;
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    while (!serve->done && gr_channel_has_room_for_message(&serve->channel)) {
        int error = gr_agent_receive(serve->control_fd, &message);
        if (error != 0) {
            return error == EAGAIN;
        }
        serve->done = message.kind == GR_AGENT_DONE;
        gr_agent_encode(&message, bytes);
        if (!serve->done) { /* DONE goes behind all output */
            (void)gr_channel_put(&serve->channel, GR_PACKET_MESSAGE, 0, bytes, sizeof bytes);
        }
    }
    return true;
}

/* Takes what one pipe holds, as far as there is room. */
static void read_pipe(struct serve *serve, int index)
{
    uint8_t data[GR_PACKET_DATA_BYTES_MAX];
    while (serve->pipes[index] >= 0 && gr_channel_has_room(&serve->channel)) {
        ssize_t got = read(serve->pipes[index], data, sizeof data);
        if (got > 0) {
            (void)gr_channel_put(&serve->channel, GR_PACKET_OUTPUT, (uint32_t)index, data,
                                 (size_t)got);
        } else if (got == 0 || (errno != EINTR && errno != EAGAIN) ||
                   (errno == EAGAIN && serve->done)) {
            close(serve->pipes[index]);
            serve->pipes[index] = -1;
        } else if (errno == EAGAIN) {
            break;
        }
        if (!serve->done) {
            break; /* the others come in between */
        }
    }
}

static bool pipes_are_empty(const struct serve *serve)
{
    for (int i = 0; i < gr_launch_spec_slot_count(&serve->order) * PIPES; i++) {
        if (serve->pipes[i] >= 0) {
            return false;
        }
    }
    return true;
}

/* Who waits for what; how many entries. */
static int fill_polls(struct serve *serve, struct pollfd *polls)
{
    const gr_channel *channel = &serve->channel;
    int count = FIXED_POLLS;
    polls[0] = (struct pollfd){.fd = channel->in_fd, .events = POLLIN};
    polls[1] =
        (struct pollfd){.fd = gr_channel_holds(channel) ? channel->out_fd : -1, .events = POLLOUT};
    bool room = gr_channel_has_room(channel), holds = gr_agent_queue_holds(&serve->unsent);
    short from_agent = gr_channel_has_room_for_message(channel) ? POLLIN : 0;
    short to_agent = holds ? POLLOUT : 0;
    bool talks = !serve->done && (from_agent | to_agent) != 0;
    polls[2] = (struct pollfd){.fd = talks ? serve->control_fd : -1,
                               .events = (short)(from_agent | to_agent)};
    for (int i = 0; i < gr_launch_spec_slot_count(&serve->order) * PIPES; i++) {
        polls[count++] = (struct pollfd){.fd = room ? serve->pipes[i] : -1, .events = POLLIN};
    }
    return count;
}

static gr_status check_silence(struct serve *serve, int *wait_ms_out, gr_diag *diag)
{
    gr_channel *channel = &serve->channel;
    const int64_t silence_us = serve->order.silence_us, now = now_us();
    *wait_ms_out = -1;
    if (silence_us == 0) {
        return GR_OK; /* there is no order yet */
    }
    if (gr_channel_is_silent(channel, now, silence_us)) {
        return gr_fail(diag, GR_E_TIMEOUT,
                       "nothing was heard of the launcher for %.1f s: the workers here end, and "
                       "the job goes on where it reaches others, if it may (--min-workers)",
                       (double)silence_us * 1e-6);
    }
    if (now >= channel->said_us + silence_us / PINGS_A_SILENCE && channel->out_used == 0) {
        (void)gr_channel_put(channel, GR_PACKET_PING, 0, NULL, 0);
    }
    *wait_ms_out = (int)(silence_us / PINGS_A_SILENCE / 1000);
    return GR_OK;
}

static gr_status turn(struct serve *serve, gr_diag *diag)
{
    struct pollfd before[FIXED_POLLS], *polls = serve->polls != NULL ? serve->polls : before;
    int wait_ms = -1;
    gr_status status = check_silence(serve, &wait_ms, diag);
    if (status != GR_OK) {
        return status;
    }
    if (gr_channel_flush(&serve->channel) != 0) {
        return gr_fail(diag, GR_E_PEER_LOST, "the launcher is gone");
    }
    int count = fill_polls(serve, polls);
    bool more = serve->channel.more;
    bool at_once = more || (serve->done && gr_channel_has_room(&serve->channel));
    if (poll(polls, (nfds_t)count, at_once ? 0 : wait_ms) < 0) {
        return GR_OK; /* EINTR */
    }
    if (polls[2].revents != 0 && gr_agent_queue_flush(&serve->unsent, serve->control_fd) != 0) {
        gr_agent_queue_fini(&serve->unsent); /* it is gone, as is read next */
    }
    if (polls[2].revents != 0 && !take_messages(serve)) {
        return gr_fail(diag, GR_E_IO,
                       "the process that looks after the workers (gradus-agent, pid "
                       "%d) was killed, and they with it",
                       (int)serve->agent);
    }
    for (int i = 0; i < count - FIXED_POLLS; i++) {
        if (polls[FIXED_POLLS + i].revents != 0 || serve->done) {
            read_pipe(serve, i);
        }
    }
    if (polls[0].revents != 0 || more) {
        int error = gr_channel_fill(&serve->channel);
        if (error != 0 && error != EAGAIN) {
            return gr_fail(diag, GR_E_PEER_LOST, "the launcher is gone");
        }
        status = take_packets(serve, diag);
    }
    return status;
}

/* The launcher may hang up as soon as it has the last word: that is no failure. */
static gr_status send_rest(struct serve *serve, gr_diag *diag)
{
    gr_channel *channel = &serve->channel;
    int error = gr_channel_flush(channel);
    while (error == 0 && gr_channel_holds(channel)) {
        struct pollfd out = {.fd = channel->out_fd, .events = POLLOUT};
        bool late = poll(&out, 1, (int)(serve->order.silence_us / 1000)) == 0;
        error = late ? ETIMEDOUT : gr_channel_flush(channel);
    }
    return error == 0 ? GR_OK : gr_fail(diag, GR_E_PEER_LOST, "the launcher is gone");
}

static gr_status carry(struct serve *serve, gr_diag *diag)
{
    gr_status status = GR_OK;
    while (status == GR_OK && !(serve->done && pipes_are_empty(serve))) {
        status = turn(serve, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    gr_agent_encode(&(gr_agent_message){.kind = GR_AGENT_DONE}, bytes);
    status = send_rest(serve, diag); /* so that there is room */
    if (status == GR_OK) {
        (void)gr_channel_put(&serve->channel, GR_PACKET_MESSAGE, 0, bytes, sizeof bytes);
        status = send_rest(serve, diag);
    }
    return status;
}

/* The address of the launcher: of the host where srun runs, else as sshd saw it come. */
static void launcher_address(char *const *environment, char *address_out, size_t size_bytes)
{
    const char *value = gr_config_variable(environment, "SLURM_LAUNCH_NODE_IPADDR");
    if (value == NULL) {
        value = gr_config_variable(environment, "SSH_CONNECTION");
    }
    value = value != NULL ? value : "127.0.0.1";
    snprintf(address_out, size_bytes, "%.*s", (int)strcspn(value, " "), value);
}

gr_status gr_serve_run(const gr_serve_way *way, char *const *environment, bool *needed_out,
                       gr_diag *diag)
{
    struct serve serve = {.environment = environment, .control_fd = -1};
    char address[64];
    launcher_address(environment, address, sizeof address);
    if (way->launcher != NULL) {
        snprintf(address, sizeof address, "%s", way->launcher);
    }
    (void)prctl(PR_SET_NAME, "gradus-serve", 0L, 0L, 0L);
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    /* Slurm tells each task of a job that its time is over. The launcher is told as well, has the
     * workers write a checkpoint, and says when this ends. */
    static const int told[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; way->tls == NULL && i < sizeof told / sizeof told[0]; i++) {
        (void)sigaction(told[i], &ignore, NULL);
    }
    int error = gr_process_tree_adopt();
    if (error == 0) {
        error = gr_channel_init(&serve.channel, way->in_fd, way->out_fd, way->tls);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "nothing can be started here: %s", strerror(error));
    }
    gr_arena_init(&serve.arena, ARENA_BYTES_MAX);
    (void)gr_channel_put(&serve.channel, GR_PACKET_HELLO, 0, address, strlen(address));
    gr_status status = carry(&serve, diag);
    bool needed = gr_launch_spec_slot_count(&serve.order) > 0;
    if (status == GR_E_PEER_LOST && way->tls != NULL && !needed) {
        status = GR_OK; /* it has joined, and was not needed */
    }
    if (needed_out != NULL) {
        *needed_out = needed;
    }
    gr_process_tree_end(0);
    gr_channel_fini(&serve.channel);
    gr_agent_queue_fini(&serve.unsent);
    free(serve.bytes);
    gr_arena_fini(&serve.arena);
    return status;
}
