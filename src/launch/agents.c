/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "launch/agent/supervisor.h"
#include "launch/environ.h"
#include "launch/launch_job.h"
#include "launch/process_tree.h"
#include "launch/remote.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 256 << 20 }; /* of one host, for the time that it takes to start it */

static void on_control(uv_poll_t *poll, int status, int events);

void gr_launch_job_notify_agent(gr_host_agent *agent, int kind, int rank, int value)
{
    const gr_agent_message message = {.kind = kind, .rank = rank, .pid = getpid(), .value = value};
    if (kind == GR_AGENT_START) {
        gr_supervisor_begin(agent->job->config->supervisor);
    }
    if (!gr_scheduler_is_active(gr_launch_job_host(agent)) || agent->control_fd < 0) {
        return;
    }
    bool waited = gr_agent_queue_holds(&agent->unsent);
    int error = gr_agent_queue_send(&agent->unsent, agent->control_fd, &message);
    if (error == 0 && !waited && gr_agent_queue_holds(&agent->unsent)) {
        (void)uv_poll_start(&agent->poll, UV_READABLE | UV_WRITABLE, on_control);
    }
    if (error == ENOBUFS || error == ENOMEM) {
        gr_log_write(agent->job->config->log, GR_LOG_WARN, "launch",
                     "host %s does not read what it is told, and is given up",
                     gr_host_label(&agent->host));
        (void)shutdown(agent->control_fd, SHUT_RDWR); /* seen as its end */
    }
}

void gr_launch_job_notify(gr_launch_job *job, bool servers, int kind, int value)
{
    const gr_scheduler *schedule = &job->schedule;
    int first = servers ? schedule->config.host_room : 0;
    int count = servers ? schedule->config.servers : schedule->host_count;
    for (int i = first; i < first + count; i++) {
        gr_launch_job_notify_agent(&job->agents[i], kind, 0, value);
    }
}

void gr_launch_job_notify_worker(gr_launch_job *job, int slot, int kind, int value)
{
    int host = job->schedule.slots[slot].host;
    if (host >= 0) {
        gr_launch_job_notify_agent(&job->agents[host], kind, slot - job->schedule.hosts[host].first,
                                   value);
    }
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Where the launcher reads the output, for who is to do so when it is gone; and to the agents of
 * servers it is not gone before that one is. */
static void keep_output(gr_launch_job *job, gr_agent_config *agent)
{
    int slots = gr_launch_all_slots(job->config);
    int *fds = gr_arena_alloc(&job->arena, (size_t)slots * 3 * sizeof *fds);
    for (int slot = 0; fds != NULL && slot < slots; slot++) {
        fds[agent->read_count++] = gr_output_read_fd(job->output, slot, 0);
        fds[agent->read_count++] = gr_output_read_fd(job->output, slot, 1);
    }
    for (int i = 0; fds != NULL && i < job->config->server.count; i++) {
        fds[agent->read_count++] = job->agents[job->schedule.config.host_room + i].control_fd;
    }
    agent->read_fds = fds;
    agent->orphan_grace_us = fds != NULL ? job->config->orphan_grace_us : 0;
}

/* In the process that was forked for it. */
_Noreturn static void become_agent(const gr_host_agent *of, gr_agent_config *agent, int words_fd)
{
    const gr_launch_config *config = of->job->config;
    const gr_host *host = &of->host;
    /* We have no loop. But at each fork libuv makes the pipe of its signals anew, and would close
     * what has that pipe's numbers by then. */
    uv_library_shutdown();
    if (of->placement->here && config->orphan_grace_us > 0 && !gr_launch_job_serves(of)) {
        keep_output(of->job, agent);
    }
    char folder[PATH_MAX] = "/";
    (void)!getcwd(folder, sizeof folder);
    gr_remote_config remote = {.shell = of->placement->shell,
                               .host = host->name,
                               .program = config->remote.program,
                               .ssh_port = config->remote.ssh_port,
                               .identity = config->remote.ssh_identity,
                               .start_timeout_us = config->start_timeout_us,
                               .silence_us = config->remote.host_timeout_us,
                               .environment = config->command.environment,
                               .order = {.workers = agent->workers,
                                         .slots = agent->slots,
                                         .bind = config->bind && !gr_launch_job_serves(of),
                                         .silence_us = config->remote.host_timeout_us,
                                         .cores = config->remote.cores_text,
                                         .folder = folder,
                                         .argv = (char **)(uintptr_t)agent->spawns[0].argv,
                                         .document = gr_launch_job_serves(of)
                                                         ? config->server.document
                                                         : config->command.document,
                                         .self = agent->spawns[0].file != NULL,
                                         .environment = agent->environment},
                               .agent = *agent,
                               .joined_fd = host->fd,
                               .tls = host->tls,
                               .words_fd = words_fd};
    of->placement->start(&remote);
    _exit(1);
}

static gr_status make_sockets(int ends[2], int words[2], gr_diag *diag)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made: %s", strerror(errno));
    }
    if (fcntl(ends[0], F_SETFL, O_RDWR | O_NONBLOCK) != 0 ||
        pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0) {
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        return gr_fail(diag, GR_E_IO, "a pipe cannot be made: %s", strerror(error));
    }
    return GR_OK;
}

static void stop_placement(gr_host_agent *agent)
{
    if (agent->placement->stop != NULL) {
        agent->placement->stop(&agent->host);
    }
}

/* With no handler of ours between fork and the agent's own preparations. 0 or errno. */
static int fork_agent(gr_host_agent *agent, gr_agent_config *config, const int ends[2],
                      const int words[2])
{
    sigset_t all, before;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
    agent->pid = fork();
    if (agent->pid == 0) {
        config->control_fd = ends[1];
        config->lock_fd = gr_supervisor_lock_fd(agent->job->config->supervisor);
        become_agent(agent, config, words[1]);
    }
    int error = agent->pid < 0 ? errno : 0;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    close(words[1]);
    stop_placement(agent);
    agent->control_fd = ends[0];
    agent->words_fd = words[0];
    agent->pid = agent->pid < 0 ? 0 : agent->pid;
    agent->guarded = 0;
    agent->process = gr_process_open(agent->pid);
    return error;
}

static gr_status watch_agent(gr_host_agent *agent, gr_diag *diag)
{
    gr_launch_job *job = agent->job;
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    gr_status status = GR_OK;
    for (int slot = host->first; slot < host->first + host->slot_count && status == GR_OK; slot++) {
        status = gr_output_watch(job->output, slot, diag);
    }
    int error =
        status == GR_OK ? uv_poll_init(&job->loop.loop, &agent->poll, agent->control_fd) : 0;
    if (status == GR_OK && error == 0) {
        agent->poll.data = agent;
        error = uv_poll_start(&agent->poll, UV_READABLE, on_control);
    }
    return error == 0
               ? status
               : gr_fail(diag, GR_E_IO, "the agent cannot be watched: %s", uv_strerror(error));
}

/* Of one that is a child of the process that was the supervisor when it was started. */
static void wait_for_stranger(const gr_process *process)
{
    struct pollfd end = {.fd = process->fd, .events = POLLIN};
    while (process->fd >= 0 && poll(&end, 1, -1) < 0 && errno == EINTR) {
    }
}

typedef enum agent_end { AGENT_ENDED, AGENT_KILLED, AGENT_WAS_NOT_OURS } agent_end;

/* Waits for its end. What one that was killed has left is ours. */
static agent_end forget_agent(gr_host_agent *agent)
{
    agent_end end = AGENT_ENDED;
    int wait_status = 0;
    if (agent->control_fd >= 0) {
        close(agent->control_fd);
        close(agent->words_fd);
    }
    agent->control_fd = agent->words_fd = -1;
    gr_agent_queue_fini(&agent->unsent);
    while (agent->pid > 0 && waitpid(agent->pid, &wait_status, 0) < 0) {
        if (errno != EINTR) {
            wait_for_stranger(&agent->process);
            end = AGENT_WAS_NOT_OURS;
            break;
        }
    }
    gr_process_close(&agent->process);
    agent->pid = 0;
    return WIFSIGNALED(wait_status) ? AGENT_KILLED : end;
}

gr_status gr_launch_job_start_agent(gr_host_agent *agent, gr_diag *diag)
{
    gr_launch_job *job = agent->job;
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    int ends[2], words[2], end = host->first + host->slot_count;
    const char *shown = job->setup.name_hosts ? gr_host_label(&agent->host) : NULL;
    gr_agent_config config;
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = GR_OK;
    for (int slot = host->first; slot < end && status == GR_OK; slot++) {
        status = gr_output_open(job->output, slot, shown, diag);
    }
    if (status == GR_OK) {
        status = gr_launch_job_set_up(job, agent, &arena, &config, diag);
        gr_wipe_stack();
    }
    if (status == GR_OK) {
        status = make_sockets(ends, words, diag);
    }
    if (status == GR_OK) {
        int error = fork_agent(agent, &config, ends, words);
        for (int i = 0; i < host->slot_count; i++) {
            gr_environ_wipe(config.environment[i]);
        }
        status = error == 0 ? watch_agent(agent, diag)
                            : gr_fail(diag, GR_E_IO,
                                      "the agent process cannot be started: %s; see ulimit -u",
                                      strerror(error));
    }
    gr_arena_fini(&arena);
    if (status != GR_OK) {
        (void)forget_agent(agent);
    }
    return status;
}

void gr_launch_job_seal(gr_launch_job *job)
{
    bool hosts_come = job->config->hosts != NULL && gr_launch_elastic(job->config);
    if (!hosts_come && !job->schedule.config.servers_again) {
        gr_secret_forget(job->secret);
        job->secret = NULL;
    }
}

/* What killed agents have left. We have adopted it, and know all our other children. */
static void clear_orphans(uv_timer_t *timer)
{
    enum { LOOK_AGAIN_MS = 20 };
    gr_launch_job *job = timer->data;
    const gr_scheduler_config *config = &job->schedule.config;
    const int agents = config->host_room + config->servers;
    pid_t *known = calloc(2 * (size_t)agents + 2, sizeof *known);
    int count = 0;
    for (int i = 0; known != NULL && i < agents; i++) {
        if (job->agents[i].pid > 0) {
            known[count++] = job->agents[i].pid;
            known[count++] = job->agents[i].guarded; /* ours when its guard is killed */
        }
    }
    if (known != NULL && job->seek.discovery.pid > 0) {
        known[count++] = job->seek.discovery.pid;
    }
    if (known != NULL && gr_deputy_pid(job->loop.deputy) > 0) {
        known[count++] = gr_deputy_pid(job->loop.deputy);
    }
    if (known == NULL || gr_process_tree_clear(known, count) > 0) {
        (void)uv_timer_start(timer, clear_orphans, LOOK_AGAIN_MS, 0);
    }
    free(known);
}

/* What it has written is still read. */
static void on_agent_closed(uv_handle_t *handle)
{
    gr_host_agent *agent = handle->data;
    agent_end end = forget_agent(agent);
    if (end == AGENT_KILLED) {
        clear_orphans(&agent->job->loop.orphan_timer);
    } else if (end == AGENT_WAS_NOT_OURS) {
        gr_supervisor_leave_orphans(agent->job->config->supervisor);
    }
    gr_launch_job_happen(agent->job,
                         &(gr_scheduler_event){.kind = GR_EVENT_AGENT_GONE, .host = agent->number},
                         NULL);
}

void gr_launch_job_close_agent(gr_host_agent *agent)
{
    uv_close((uv_handle_t *)&agent->poll, on_agent_closed);
}

/* ---- What they tell -------------------------------------------------------------------------- */

static void on_worker_message(const gr_host_agent *agent, const gr_agent_message *message)
{
    gr_launch_job *job = agent->job;
    gr_scheduler_event event = {.host = agent->number,
                                .slot = gr_launch_job_host(agent)->first + message->rank,
                                .value = message->value,
                                .pid = message->pid,
                                .label =
                                    job->setup.name_hosts ? gr_host_label(&agent->host) : NULL};
    bool serves = gr_launch_job_serves(agent);
    gr_diag why = {0};
    if (message->kind == GR_AGENT_STARTED) {
        event.kind = GR_EVENT_WORKER_STARTED;
    } else if (message->kind == GR_AGENT_EXITED) {
        event.kind = GR_EVENT_WORKER_ENDED;
        gr_launch_job_progress(job); /* its last message may still be unread */
        if (serves) {
            gr_output_renew(job->output, event.slot); /* what it said last may still be unread */
        } else {
            gr_records_ended(job->records, event.slot);
            event.place = gr_records_place(job->records, event.slot);
        }
    } else {
        gr_spawn_error error = {.step = message->value, .error = message->error};
        char *const *argv = serves ? job->config->server.argv : job->config->command.argv;
        event.kind = GR_EVENT_WORKER_NOT_STARTED;
        (void)!gr_spawn_fail(argv[0], &error, &why);
    }
    gr_launch_job_happen(job, &event, &why);
}

static void on_message(gr_host_agent *agent, const gr_agent_message *message)
{
    gr_scheduler_event event = {.kind = GR_EVENT_AGENT_READY, .host = agent->number};
    /* What comes from another host is not taken for sound: no number leads out of its workers. */
    bool known = message->rank >= 0 && message->rank < gr_launch_job_host(agent)->slot_count;
    if (message->kind == GR_AGENT_READY) {
        agent->guarded = agent->placement->here ? message->pid : 0;
        gr_launch_job_happen(agent->job, &event, NULL);
    } else if (message->kind == GR_AGENT_DONE) {
        event.kind = GR_EVENT_AGENT_DONE;
        gr_launch_job_happen(agent->job, &event, NULL);
    } else if (known && (message->kind == GR_AGENT_STARTED || message->kind == GR_AGENT_EXITED ||
                         message->kind == GR_AGENT_NOT_STARTED)) {
        on_worker_message(agent, message);
    } else if (message->kind == GR_AGENT_MOVED) {
        const char *host = agent->job->setup.name_hosts ? gr_host_label(&agent->host) : NULL;
        gr_log_write(agent->job->config->log, GR_LOG_WARN, "launch",
                     "the process that looks after %s%s%s (gradus-agent, pid %d) was killed; its "
                     "guard (pid %d) goes on in its place",
                     gr_launch_job_serves(agent) ? "a parameter server" : "the workers",
                     host != NULL ? " on " : "", host != NULL ? host : "", message->value,
                     (int)message->pid);
    } else if (known && message->kind == GR_AGENT_FAULT) {
        gr_log_write(agent->job->config->log, GR_LOG_WARN, "chaos", "rank %d has no %s%s%s",
                     gr_launch_job_host(agent)->first + message->rank,
                     message->value == GR_AGENT_FAULT_CUT ? "tcp link that could be cut"
                                                          : "socket that listens",
                     message->error != 0 ? ": " : "",
                     message->error != 0 ? strerror(message->error) : "");
    }
}

/* Why the agent, or the way to it, is gone. */
static void describe_loss(const gr_host_agent *agent, gr_diag *diag)
{
    const gr_launch_job *job = agent->job;
    char words[GR_DIAG_TEXT_BYTES / 2], what[48];
    ssize_t got = agent->words_fd >= 0 ? read(agent->words_fd, words, sizeof words - 1) : 0;
    words[got > 0 ? got : 0] = '\0';
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    int busy = gr_scheduler_count_busy_of(&job->schedule, agent->number);
    const gr_placement_loss loss = {.shell = agent->placement->shell,
                                    .host = &agent->host,
                                    .program = job->config->remote.program,
                                    .what = what,
                                    .words = words,
                                    .starting = host->state == GR_HOST_STARTING,
                                    .going = job->schedule.going,
                                    .serves = gr_launch_job_serves(agent),
                                    .pid = agent->pid};
    if (loss.serves) {
        snprintf(what, sizeof what, "parameter server %d",
                 gr_launch_job_server_number(job, host->first));
    } else {
        snprintf(what, sizeof what, "its %d worker%s", busy, busy == 1 ? "" : "s");
    }
    agent->placement->watch(&loss, diag);
}

/* The agent, or the way to it, is gone, and its workers with it. */
static void on_agent_lost(const gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    gr_diag why;
    describe_loss(agent, &why);
    for (int slot = host->first; slot < host->first + host->slot_count; slot++) {
        if (!gr_launch_job_serves(agent) && job->schedule.slots[slot].busy) {
            gr_records_ended(job->records, slot);
        }
    }
    const gr_scheduler_event event = {.kind = GR_EVENT_AGENT_LOST,
                                      .host = agent->number,
                                      .label = job->setup.name_hosts ? gr_host_label(&agent->host)
                                                                     : NULL};
    gr_launch_job_happen(job, &event, &why);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    gr_host_agent *agent = poll->data;
    (void)status;
    if ((events & UV_WRITABLE) != 0) {
        if (gr_agent_queue_flush(&agent->unsent, agent->control_fd) != 0) {
            gr_agent_queue_fini(&agent->unsent); /* it is gone, as is read next */
        }
        if (!gr_agent_queue_holds(&agent->unsent)) {
            (void)uv_poll_start(poll, UV_READABLE, on_control);
        }
    }
    while (gr_scheduler_is_active(gr_launch_job_host(agent))) {
        gr_agent_message message;
        int error = gr_agent_receive(agent->control_fd, &message);
        if (error == EAGAIN) {
            return;
        }
        if (error != 0) {
            on_agent_lost(agent);
        } else {
            on_message(agent, &message);
        }
    }
}

/* Without waiting for its end. */
static void hang_up(gr_host_agent *agent)
{
    agent->pid = agent->job->schedule.reason == GR_REASON_STUCK ? 0 : agent->pid;
    if (agent->control_fd >= 0) {
        close(agent->control_fd);
        close(agent->words_fd);
    }
    agent->control_fd = agent->words_fd = -1;
}

void gr_launch_job_stop_agents(gr_launch_job *job)
{
    const gr_scheduler_config *config = &job->schedule.config;
    int count = job->agents != NULL ? config->host_room + config->servers : 0;
    for (int i = 0; i < count; i++) {
        hang_up(&job->agents[i]);
    }
    for (int i = 0; i < count; i++) {
        (void)forget_agent(&job->agents[i]);
        if (job->agents[i].placement != NULL) {
            stop_placement(&job->agents[i]);
        }
    }
}
