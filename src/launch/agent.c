/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent.h"

#include "base/clock.h"
#include "base/codec.h"
#include "base/hash.h"
#include "launch/agent/deputy.h"
#include "launch/environ.h"
#include "launch/process_tree.h"
#include "link/fault.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    AGENT_MAGIC = 0x4147, /* "GA" */
    AGENT_VERSION = 1,
    LOOK_AGAIN_MS = 20, /* while killing: somebody may have been forked while we looked */
    DROP_BYTES = 4096
};

struct agent {
    const gr_agent_config *config;
    int control_fd, signal_fd;
    gr_deputy *deputy; /* NULL: when it is killed its workers are */
    pid_t *pids;       /* one a rank; 0: not running */
    uint8_t *secret;   /* of those that come later (gr_secret_keep); NULL: nobody does */
    int running;
    bool go;      /* the workers may run */
    bool ending;  /* a signal went out: what outlives its worker has time too */
    bool killing; /* everything ends now */
    bool stays;   /* others may come */
};

/* magic u16, version u16, kind u16, error u16, rank u32, pid u32, value u32, zero u32 */
void gr_agent_encode(const gr_agent_message *message, uint8_t bytes_out[GR_AGENT_MESSAGE_BYTES])
{
    gr_put_u16(bytes_out, AGENT_MAGIC);
    gr_put_u16(bytes_out + 2, AGENT_VERSION);
    gr_put_u16(bytes_out + 4, (uint16_t)message->kind);
    gr_put_u16(bytes_out + 6, (uint16_t)message->error);
    gr_put_u32(bytes_out + 8, (uint32_t)message->rank);
    gr_put_u32(bytes_out + 12, (uint32_t)message->pid);
    gr_put_u32(bytes_out + 16, (uint32_t)message->value);
    gr_put_u32(bytes_out + 20, 0);
}

gr_status gr_agent_decode(const uint8_t *bytes, size_t size_bytes, gr_agent_message *message_out)
{
    if (size_bytes != GR_AGENT_MESSAGE_BYTES || gr_get_u16(bytes) != AGENT_MAGIC ||
        gr_get_u16(bytes + 2) != AGENT_VERSION) {
        return GR_E_PROTOCOL;
    }
    int kind = gr_get_u16(bytes + 4);
    if (kind < GR_AGENT_STARTED || kind >= GR_AGENT_KIND_END) {
        return GR_E_PROTOCOL;
    }
    message_out->kind = kind;
    message_out->error = gr_get_u16(bytes + 6);
    message_out->rank = (int)gr_get_u32(bytes + 8);
    message_out->pid = (pid_t)gr_get_u32(bytes + 12);
    message_out->value = (int)gr_get_u32(bytes + 16);
    return GR_OK;
}

int gr_agent_send(int socket_fd, const gr_agent_message *message)
{
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES];
    gr_agent_encode(message, bytes);
    ssize_t sent;
    do {
        sent = send(socket_fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0 ? 0 : errno;
}

int gr_agent_receive(int socket_fd, gr_agent_message *message_out)
{
    uint8_t bytes[GR_AGENT_MESSAGE_BYTES + 1];
    ssize_t got;
    bool was_reset = false, again;
    do {
        got = recv(socket_fd, bytes, sizeof bytes, 0);
        /* The other side has ended without reading all that we sent: that is told once, ahead of
         * what it has said before. */
        again = got < 0 && (errno == EINTR || (errno == ECONNRESET && !was_reset));
        was_reset = was_reset || (got < 0 && errno == ECONNRESET);
    } while (again);
    if (got < 0) {
        return errno == ECONNRESET ? EPIPE : errno;
    }
    if (got == 0) {
        return EPIPE;
    }
    return gr_agent_decode(bytes, (size_t)got, message_out) == GR_OK ? 0 : EPROTO;
}

/* Whatever cannot be told to the launcher need not be: it is gone, and its end of the socket, which
 * we watch, says so. */
static void send_message(const struct agent *agent, gr_agent_message message)
{
    (void)gr_agent_send(agent->control_fd, &message);
}

static int compare_ints(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

/* Keeps the workers' descriptors and our own; 0, 1, 2 become /dev/null: the launcher's files, and
 * the sockets of its loop, must not outlive it because of us. */
static int close_unrelated(const gr_agent_config *config, const int also[GR_AGENT_KEEP])
{
    int slots = gr_agent_slot_count(config);
    size_t count = 0, room = (size_t)slots * 3 + (size_t)config->read_count + 2 + GR_AGENT_KEEP;
    int *keep = malloc(room * sizeof *keep);
    if (keep == NULL) {
        return ENOMEM;
    }
    keep[count++] = config->control_fd;
    keep[count++] = config->lock_fd;
    for (int i = 0; i < GR_AGENT_KEEP; i++) {
        keep[count++] = also[i];
    }
    for (int rank = 0; rank < slots; rank++) {
        keep[count++] = config->spawns[rank].stdin_fd;
        keep[count++] = config->spawns[rank].stdout_fd;
        keep[count++] = config->spawns[rank].stderr_fd;
    }
    for (int i = 0; i < config->read_count; i++) {
        keep[count++] = config->read_fds[i];
    }
    qsort(keep, count, sizeof *keep, compare_ints);
    unsigned int next = 3;
    for (size_t i = 0; i < count; i++) {
        unsigned int fd = keep[i] >= 0 ? (unsigned int)keep[i] : 0;
        if (fd > next) {
            gr_spawn_close(next, fd - 1);
        }
        next = fd >= next ? fd + 1 : next;
    }
    gr_spawn_close(next, ~0U);
    free(keep);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0) {
        return errno;
    }
    for (int fd = 0; fd < 3; fd++) {
        if (dup2(null_fd, fd) < 0) {
            return errno;
        }
    }
    close(null_fd);
    return 0;
}

int gr_agent_settle(const gr_agent_config *config, const char *name, const int keep[GR_AGENT_KEEP])
{
    sigset_t all;
    sigfillset(&all);
    if (sigprocmask(SIG_SETMASK, &all, NULL) != 0) {
        return errno;
    }
    (void)setsid(); /* Ctrl-C is for the launcher, which tells us what to do */
    (void)prctl(PR_SET_NAME, name, 0L, 0L, 0L);
    int error = gr_process_tree_adopt();
    return error != 0 ? error : close_unrelated(config, keep);
}

/* For those that come later it is kept apart: their lists have it while they are started. */
static int keep_secret(struct agent *agent)
{
    const gr_agent_config *config = agent->config;
    uint8_t secret[GR_SECRET_BYTES];
    bool found = true;
    for (int rank = 0; rank < config->slots && found; rank++) {
        found = gr_environ_secret(config->environment[rank], secret);
        if (rank >= config->workers) {
            gr_environ_wipe(config->environment[rank]);
        }
    }
    if (found && config->slots > 0) {
        agent->secret = gr_secret_keep(secret);
    }
    gr_wipe(secret, sizeof secret);
    gr_wipe_stack();
    return !found ? EINVAL : agent->secret == NULL && config->slots > 0 ? ENOMEM : 0;
}

static int set_up(struct agent *agent)
{
    static const int none[GR_AGENT_KEEP] = {-1, -1};
    int error = gr_agent_settle(agent->config, "gradus-agent", none);
    if (error != 0) {
        return error;
    }
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    agent->signal_fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    agent->pids = calloc((size_t)gr_agent_slot_count(agent->config), sizeof *agent->pids);
    if (agent->signal_fd < 0) {
        return errno;
    }
    return agent->pids == NULL ? ENOMEM : keep_secret(agent);
}

static void report_not_started(struct agent *agent, int rank, const gr_spawn_error *error)
{
    send_message(agent, (gr_agent_message){.kind = GR_AGENT_NOT_STARTED,
                                           .rank = rank,
                                           .value = error->step,
                                           .error = error->error});
    agent->killing = true;
    agent->stays = false;
}

static void start_workers(struct agent *agent)
{
    const gr_agent_config *config = agent->config;
    gr_spawn_error error;
    for (int rank = 0; rank < config->workers; rank++) {
        pid_t pid = agent->killing ? 0 : gr_spawn_start(&config->spawns[rank], &error);
        gr_environ_wipe(config->environment[rank]);
        if (config->slots == 0) { /* else those that come later need them, too */
            close(config->spawns[rank].stdout_fd);
            close(config->spawns[rank].stderr_fd);
        }
        if (pid > 0) {
            agent->pids[rank] = pid;
            agent->running++;
            send_message(agent,
                         (gr_agent_message){.kind = GR_AGENT_STARTED, .rank = rank, .pid = pid});
        } else if (pid < 0) {
            report_not_started(agent, rank, &error);
        }
    }
}

/* One that comes later. If it cannot be started, that is no end of the others. */
static void start_another(struct agent *agent, const gr_agent_message *order)
{
    const gr_agent_config *config = agent->config;
    const int rank = order->rank;
    gr_spawn_error error = {.step = GR_SPAWN_SETUP, .error = EBUSY};
    if (rank < 0 || rank >= config->slots || agent->ending || agent->killing) {
        return;
    }
    gr_environ_mark_joining(config->environment[rank]);
    gr_environ_move_record(config->environment[rank], order->pid);
    const gr_spawn spawn = config->spawns[rank];
    gr_environ_fill(config->environment[rank], agent->secret);
    pid_t pid = agent->pids[rank] == 0 ? gr_spawn_start(&spawn, &error) : -1;
    gr_environ_wipe(config->environment[rank]);
    if (pid > 0) {
        agent->pids[rank] = pid;
        agent->running++;
        send_message(agent, (gr_agent_message){.kind = GR_AGENT_STARTED, .rank = rank, .pid = pid});
    } else {
        send_message(agent, (gr_agent_message){.kind = GR_AGENT_NOT_STARTED,
                                               .rank = rank,
                                               .value = error.step,
                                               .error = error.error});
    }
}

static int rank_of(const struct agent *agent, pid_t pid)
{
    for (int rank = 0; rank < gr_agent_slot_count(agent->config); rank++) {
        if (agent->pids[rank] == pid) {
            return rank;
        }
    }
    return -1;
}

/* True when no child is left, and with that nobody of the whole process tree. */
static bool reap(struct agent *agent)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == 0 || (pid < 0 && errno != ECHILD && errno != EINTR)) {
            return false;
        }
        if (pid < 0 && errno == ECHILD) {
            return true;
        }
        int rank = pid > 0 ? rank_of(agent, pid) : -1;
        if (rank >= 0) {
            agent->pids[rank] = 0;
            agent->running--;
            send_message(agent,
                         (gr_agent_message){
                             .kind = GR_AGENT_EXITED, .rank = rank, .pid = pid, .value = status});
        }
    }
}

/* To the groups of the workers that run, and when none does, to whatever they have left behind: the
 * program of a shell that died, say. */
static void signal_all(const struct agent *agent, int signal_number)
{
    for (int rank = 0; rank < gr_agent_slot_count(agent->config); rank++) {
        if (agent->pids[rank] > 0) {
            (void)kill(-agent->pids[rank], signal_number);
            (void)kill(-agent->pids[rank], SIGCONT); /* who is stopped must hear of it too */
        }
    }
    if (agent->running == 0) {
        (void)gr_process_tree_signal(signal_number);
    }
}

static void do_fault(const struct agent *agent, int rank, int what)
{
    pid_t group = agent->pids[rank];
    if (what < GR_AGENT_FAULT_CUT) {
        (void)kill(-group, what);
        return;
    }
    int done = 0;
    if (what == GR_AGENT_FAULT_GARBAGE) {
        const char *at = gr_environ_find(agent->config->environment[rank], "GRADUS_COORDINATOR");
        if (at != NULL) {
            gr_fault_send_garbage_to(at);
        }
        done = gr_fault_send_garbage(group) + (at != NULL);
    } else {
        done = gr_fault_cut(group, what == GR_AGENT_FAULT_CUT);
    }
    if (done <= 0 && what != GR_AGENT_FAULT_HEAL) {
        send_message(agent,
                     (gr_agent_message){
                         .kind = GR_AGENT_FAULT, .rank = rank, .value = what, .error = -done});
    }
}

/* False when the launcher is gone. */
static bool take_orders(struct agent *agent)
{
    gr_agent_message message;
    int error = gr_agent_receive(agent->control_fd, &message);
    if (error != 0) {
        return error == EAGAIN;
    }
    if (message.kind == GR_AGENT_START) {
        for (int rank = 0; rank < agent->config->workers; rank++) {
            gr_environ_move_record(agent->config->environment[rank], message.pid);
        }
        agent->go = true;
    } else if (message.kind == GR_AGENT_SIGNAL) {
        agent->ending = true;
        agent->stays = false;
        signal_all(agent, message.value);
    } else if (message.kind == GR_AGENT_KILL) {
        agent->killing = true;
        agent->stays = false;
    } else if (message.kind == GR_AGENT_FAULT && message.rank >= 0 &&
               message.rank < gr_agent_slot_count(agent->config) && agent->pids[message.rank] > 0) {
        do_fault(agent, message.rank, message.value);
    } else if (message.kind == GR_AGENT_SPAWN) {
        start_another(agent, &message);
    }
    return true;
}

/* Until the launcher or a worker has something for us. Here the guard goes on in our place. */
static void rest(const struct agent *agent, struct pollfd watched[2], int timeout_ms)
{
    const int fds[2] = {agent->control_fd, agent->signal_fd};
    watched[0] = (struct pollfd){.fd = fds[0], .events = POLLIN};
    watched[1] = (struct pollfd){.fd = fds[1], .events = POLLIN};
    if (agent->deputy != NULL) {
        pid_t self = getpid();
        if (gr_deputy_wait(agent->deputy, fds, 2, timeout_ms)) {
            send_message(agent, (gr_agent_message){
                                    .kind = GR_AGENT_MOVED, .pid = getpid(), .value = (int)self});
        }
        timeout_ms = 0;
    }
    if (poll(watched, 2, timeout_ms) < 0) {
        watched[0].revents = watched[1].revents = 0; /* EINTR */
    }
}

/* False when the launcher is gone, or wants an end before there was a beginning. */
static bool wait_for_start(struct agent *agent)
{
    struct pollfd watched[2];
    send_message(agent, (gr_agent_message){.kind = GR_AGENT_READY, .pid = getpid()});
    while (!agent->go && !agent->ending && !agent->killing) {
        rest(agent, watched, -1);
        if (watched[0].revents != 0 && !take_orders(agent)) {
            return false;
        }
    }
    return agent->go;
}

/* True when all is over, false when the launcher is gone. */
static bool look_after(struct agent *agent)
{
    for (;;) {
        bool alone = reap(agent);
        if (alone && !agent->stays) {
            return true;
        }
        /* What has outlived all workers. */
        bool clearing = agent->killing || (agent->running == 0 && !agent->ending && !alone);
        if (clearing) {
            (void)gr_process_tree_signal(SIGKILL);
        }
        struct pollfd watched[2];
        rest(agent, watched, clearing ? LOOK_AGAIN_MS : -1);
        if (watched[1].revents != 0) {
            struct signalfd_siginfo info;
            while (read(agent->signal_fd, &info, sizeof info) > 0) {
            }
        }
        if (watched[0].revents != 0 && !take_orders(agent)) {
            return false;
        }
    }
}

static void drop_output(const gr_agent_config *config)
{
    char dropped[DROP_BYTES];
    for (int i = 0; i < config->read_count; i++) {
        while (read(config->read_fds[i], dropped, sizeof dropped) > 0) {
        }
    }
}

/* The launcher is gone: the workers may go on to their next checkpoint. */
static void let_finish(struct agent *agent)
{
    int64_t end_us = gr_now_ns() / 1000 + agent->config->orphan_grace_us;
    agent->ending = true;
    signal_all(agent, SIGTERM);
    while (!reap(agent) && agent->running > 0 && gr_now_ns() / 1000 < end_us) {
        struct pollfd watched = {.fd = agent->signal_fd, .events = POLLIN};
        struct signalfd_siginfo info;
        (void)poll(&watched, 1, LOOK_AGAIN_MS); /* their pipes hold more than they write by then */
        while (read(agent->signal_fd, &info, sizeof info) > 0) {
        }
        drop_output(agent->config);
    }
}

static void fail_start(const struct agent *agent, int error)
{
    send_message(agent, (gr_agent_message){
                            .kind = GR_AGENT_NOT_STARTED, .value = GR_SPAWN_SETUP, .error = error});
    send_message(agent, (gr_agent_message){.kind = GR_AGENT_DONE});
    _exit(1);
}

/* In the agent's process, below the guard if there is one. */
static void work(gr_deputy *deputy, void *agent_arg)
{
    struct agent *agent = agent_arg;
    int error = deputy != NULL ? gr_process_tree_adopt() : 0;
    if (error != 0) {
        fail_start(agent, error);
    }
    agent->deputy = deputy;
    for (int rank = 0; rank < gr_agent_slot_count(agent->config); rank++) {
        agent->config->spawns[rank].outlives = deputy != NULL;
    }
    if (wait_for_start(agent)) {
        start_workers(agent);
    }
    if (look_after(agent)) {
        send_message(agent, (gr_agent_message){.kind = GR_AGENT_DONE});
        _exit(0);
    }
    if (agent->config->orphan_grace_us > 0) {
        let_finish(agent);
    }
    gr_process_tree_end(0);
    _exit(1);
}

_Noreturn void gr_agent_run(const gr_agent_config *config)
{
    struct agent agent = {.config = config,
                          .control_fd = config->control_fd,
                          .signal_fd = -1,
                          .stays = config->slots > 0};
    int error = set_up(&agent);
    if (error != 0) {
        fail_start(&agent, error);
    }
    gr_deputy_guard("gradus-guard", work, &agent);
}
