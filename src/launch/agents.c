/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "launch/environ.h"
#include "launch/launch_job.h"
#include "launch/process_tree.h"
#include "launch/remote.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 256 << 20 }; /* of one host, for the time that it takes to start it */

bool gr_launch_job_is_active(const gr_host_agent *agent)
{
    return agent->state == GR_HOST_STARTING || agent->state == GR_HOST_UP;
}

void gr_launch_job_notify_agent(const gr_host_agent *agent, int kind, int rank, int value)
{
    const gr_agent_message message = {.kind = kind, .rank = rank, .value = value};
    if (gr_launch_job_is_active(agent)) {
        (void)gr_agent_send(agent->control_fd, &message);
    }
}

void gr_launch_job_notify(gr_launch_job *job, int kind, int value)
{
    for (int i = 0; i < job->agent_count; i++) {
        gr_launch_job_notify_agent(&job->agents[i], kind, 0, value);
    }
}

void gr_launch_job_notify_worker(gr_launch_job *job, int rank, int kind, int value)
{
    const gr_host_agent *agent = job->places[rank].agent;
    if (agent != NULL) {
        gr_launch_job_notify_agent(agent, kind, rank - agent->host.first, value);
    }
}

bool gr_launch_job_any_agent(const gr_launch_job *job)
{
    bool any = false;
    for (int i = 0; i < job->agent_count && !any; i++) {
        any = gr_launch_job_is_active(&job->agents[i]);
    }
    return any;
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Where the launcher reads the output, for who is to do so when it is gone; and to the agents of
 * servers it is not gone before that one is. */
static void keep_output(gr_launch_job *job, gr_agent_config *agent)
{
    int places = gr_launch_places(job->config);
    int *fds = gr_arena_alloc(&job->arena, (size_t)places * 3 * sizeof *fds);
    for (int place = 0; fds != NULL && place < places; place++) {
        fds[agent->read_count++] = gr_output_read_fd(job->output, place, 0);
        fds[agent->read_count++] = gr_output_read_fd(job->output, place, 1);
    }
    for (int i = 0; fds != NULL && i < job->config->servers; i++) {
        fds[agent->read_count++] = job->servers[i].agent.control_fd;
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
    if (host->local) {
        if (config->orphan_grace_us > 0 && !of->serves) {
            keep_output(of->job, agent);
        }
        gr_agent_run(agent);
    }
    char folder[PATH_MAX] = "/";
    (void)!getcwd(folder, sizeof folder);
    gr_remote_config remote = {.shell = config->shell,
                               .host = host->name,
                               .program = config->program,
                               .ssh_port = config->ssh_port,
                               .identity = config->ssh_identity,
                               .start_timeout_us = config->start_timeout_us,
                               .silence_us = config->host_timeout_us,
                               .environment = config->environment,
                               .order = {.workers = agent->workers,
                                         .slots = agent->slots,
                                         .bind = config->bind && !of->serves,
                                         .silence_us = config->host_timeout_us,
                                         .cores = config->cores_text,
                                         .folder = folder,
                                         .argv = (char **)(uintptr_t)agent->spawns[0].argv,
                                         .document = config->document,
                                         .self = agent->spawns[0].file != NULL,
                                         .environment = agent->environment},
                               .agent = *agent,
                               .joined_fd = host->fd,
                               .tls = host->tls,
                               .words_fd = words_fd};
    gr_remote_run(&remote);
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
        become_agent(agent, config, words[1]);
    }
    int error = agent->pid < 0 ? errno : 0;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    close(words[1]);
    gr_join_refuse(&agent->host); /* the relay has it, or nobody */
    agent->control_fd = ends[0];
    agent->words_fd = words[0];
    agent->pid = agent->pid < 0 ? 0 : agent->pid;
    return error;
}

static void on_control(uv_poll_t *poll, int status, int events);

static gr_status watch_agent(gr_host_agent *agent, gr_diag *diag)
{
    gr_launch_job *job = agent->job;
    gr_status status = GR_OK;
    for (int seat = 0; seat < agent->seats && status == GR_OK; seat++) {
        status = gr_output_watch(job->output, agent->host.first + seat, diag);
    }
    int error = status == GR_OK ? uv_poll_init(&job->loop, &agent->poll, agent->control_fd) : 0;
    if (status == GR_OK && error == 0) {
        agent->poll.data = agent;
        agent->state = GR_HOST_STARTING;
        error = uv_poll_start(&agent->poll, UV_READABLE, on_control);
    }
    return error == 0
               ? status
               : gr_fail(diag, GR_E_IO, "the agent cannot be watched: %s", uv_strerror(error));
}

static void forget_agent(gr_host_agent *agent)
{
    if (agent->control_fd >= 0) {
        close(agent->control_fd);
        close(agent->words_fd);
    }
    agent->control_fd = agent->words_fd = -1;
    while (agent->pid > 0 && waitpid(agent->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    agent->pid = 0;
}

gr_status gr_launch_job_start_agent(gr_host_agent *agent, gr_diag *diag)
{
    gr_launch_job *job = agent->job;
    int ends[2], words[2];
    const char *shown = job->name_hosts ? gr_host_label(&agent->host) : NULL;
    gr_agent_config config;
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = GR_OK;
    for (int seat = 0; seat < agent->seats && status == GR_OK; seat++) {
        status = gr_output_open(job->output, agent->host.first + seat, shown, diag);
    }
    if (status == GR_OK) {
        status = agent->serves ? gr_launch_job_set_up_server(job, agent, &arena, &config, diag)
                               : gr_launch_job_set_up(job, agent, &arena, &config, diag);
        gr_wipe_stack();
    }
    if (status == GR_OK) {
        status = make_sockets(ends, words, diag);
    }
    if (status == GR_OK) {
        int error = fork_agent(agent, &config, ends, words);
        for (int seat = 0; seat < agent->seats; seat++) {
            gr_environ_wipe(config.environment[seat]);
        }
        status = error == 0 ? watch_agent(agent, diag)
                            : gr_fail(diag, GR_E_IO,
                                      "the agent process cannot be started: %s; see ulimit -u",
                                      strerror(error));
    }
    gr_arena_fini(&arena);
    if (status != GR_OK) {
        forget_agent(agent);
        for (int seat = 0; seat < agent->seats; seat++) {
            gr_output_close(job->output, agent->host.first + seat);
        }
    }
    return status;
}

gr_status gr_launch_job_start_agents(gr_launch_job *job, gr_diag *diag)
{
    gr_status status = GR_OK;
    if (job->config->all_join && job->config->workers > 1) {
        gr_launch_job_time_joining(job);
    }
    for (int i = 0; i < job->agent_count && status == GR_OK; i++) {
        if (job->agents[i].host.workers > 0) {
            status = gr_launch_job_start_agent(&job->agents[i], diag);
        }
    }
    if (job->config->hosts == NULL || !gr_launch_job_may_change(job)) { /* nobody else gets it */
        gr_secret_forget(job->secret);
        job->secret = NULL;
    }
    return status;
}

/* ---- What they tell -------------------------------------------------------------------------- */

/* A worker could not be started there, and so none runs on. */
static void on_not_started(gr_host_agent *agent, const gr_agent_message *message)
{
    gr_launch_job *job = agent->job;
    gr_spawn_error error = {.step = message->value, .error = message->error};
    gr_diag diag;
    char *const *argv = agent->serves ? job->config->server_argv : job->config->argv;
    gr_status status = gr_spawn_fail(argv[0], &error, &diag);
    if (job->going && !job->places[message->rank].busy) { /* the agent itself: it is DONE then */
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "host %s: %s",
                     gr_host_label(&agent->host), diag.text);
        return;
    }
    if (job->places[message->rank].joining) {
        gr_launch_job_do_without(job, message->rank, &diag);
        return;
    }
    gr_diag why = diag;
    if (!agent->host.local) {
        (void)gr_fail(&why, status, "on host %s: %.400s", gr_host_label(&agent->host), diag.text);
    }
    gr_launch_job_blame_for(job, GR_REASON_NOT_STARTED, &why);
    gr_launch_job_kill_all(job);
}

/* What it has written is still read. */
static void on_agent_closed(uv_handle_t *handle)
{
    gr_host_agent *agent = handle->data;
    gr_launch_job *job = agent->job;
    forget_agent(agent);
    agent->state = GR_HOST_AWAY;
    if (job->phase >= GR_PHASE_DRAINING) {
        return;
    }
    for (int seat = 0; seat < agent->seats; seat++) {
        gr_output_close(job->output, agent->host.first + seat);
    }
    if (job->going && (agent->leaving || agent->host.joined)) {
        gr_launch_job_remove(agent); /* who has joined may join again */
    }
    gr_launch_job_fill(job);
}

static void on_agent_over(gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    agent->state = GR_HOST_CLOSING;
    uv_close((uv_handle_t *)&agent->poll, on_agent_closed);
    if (gr_launch_job_any_agent(job) || gr_launch_job_end_servers(job)) {
        return;
    }
    if (job->any_lost) {
        gr_process_tree_end(); /* what its workers had started fell to us */
    }
    gr_launch_job_drain(job);
}

/* Nothing runs anywhere until all hosts are there; who comes later starts at once. */
static void on_ready(gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    agent->state = GR_HOST_UP;
    agent->up_us = gr_launch_job_now_us();
    if (agent->serves) {
        gr_launch_job_notify_agent(agent, GR_AGENT_START, 0, 0);
        return;
    }
    if (job->going) {
        gr_launch_job_notify_agent(agent, GR_AGENT_START, 0, 0);
        gr_launch_job_fill(job);
        return;
    }
    bool all = job->phase == GR_PHASE_RUNNING;
    for (int i = 0; i < job->agent_count; i++) {
        all = all && job->agents[i].state != GR_HOST_STARTING;
    }
    if (all) {
        job->going = true;
        gr_launch_job_notify(job, GR_AGENT_START, 0);
        gr_launch_job_play_faults(job);
    }
}

static void on_started(gr_host_agent *agent, const gr_agent_message *message)
{
    gr_launch_job *job = agent->job;
    gr_worker_end *end = &job->ends[message->rank];
    end->started = true;
    end->spared = false;
    end->pid = message->pid;
    end->host = job->name_hosts ? gr_host_label(&agent->host) : NULL;
    end->start_us = gr_launch_job_now_us();
    job->started += !agent->serves;
}

static void on_message(gr_host_agent *agent, gr_agent_message *message)
{
    const gr_launch_job *job = agent->job;
    /* What comes from another host is not taken for sound: no number leads out of its workers, and
     * each of them begins once, and ends once. */
    bool known = message->rank >= 0 && message->rank < agent->seats;
    message->rank = known ? message->rank + agent->host.first : -1;
    bool expected = known && job->places[message->rank].busy;
    bool runs = expected && job->ends[message->rank].started;
    if (message->kind == GR_AGENT_READY && agent->state == GR_HOST_STARTING) {
        on_ready(agent);
    } else if (message->kind == GR_AGENT_STARTED && expected && !runs) {
        on_started(agent, message);
    } else if (message->kind == GR_AGENT_EXITED && runs && agent->serves) {
        gr_launch_job_server_ended(agent->job, message);
    } else if (message->kind == GR_AGENT_EXITED && runs) {
        gr_launch_job_worker_ended(agent->job, message);
    } else if (message->kind == GR_AGENT_NOT_STARTED && known && !runs) {
        on_not_started(agent, message);
    } else if (message->kind == GR_AGENT_FAULT && expected) {
        gr_log_write(job->config->log, GR_LOG_WARN, "chaos", "rank %d has no %s%s%s", message->rank,
                     message->value == GR_AGENT_FAULT_CUT ? "tcp link that could be cut"
                                                          : "socket that listens",
                     message->error != 0 ? ": " : "",
                     message->error != 0 ? strerror(message->error) : "");
    } else if (message->kind == GR_AGENT_DONE) {
        if (agent->state == GR_HOST_STARTING) {
            gr_launch_job_note_loss(agent);
        }
        on_agent_over(agent);
    }
}

/* Why the agent, or the way to it, is gone. */
static void describe_loss(const gr_host_agent *agent, gr_diag *diag)
{
    const gr_launch_job *job = agent->job;
    const char *name = agent->host.name;
    char words[GR_DIAG_TEXT_BYTES / 2];
    ssize_t got = agent->words_fd >= 0 ? read(agent->words_fd, words, sizeof words - 1) : 0;
    words[got > 0 ? got : 0] = '\0';
    int busy = gr_launch_job_count_busy_of(agent);
    char whom[48];
    if (agent->serves) {
        snprintf(whom, sizeof whom, "parameter server %d",
                 gr_launch_job_server_number(job, agent->host.first));
    } else {
        snprintf(whom, sizeof whom, "its %d worker%s", busy, busy == 1 ? "" : "s");
    }
    if (agent->host.local) {
        (void)gr_fail(diag, GR_E_IO,
                      "the process that looks after %s (gradus-agent, pid %d) was killed, and %s "
                      "with it",
                      agent->serves ? whom : "the workers", (int)agent->pid,
                      agent->serves ? "it" : "they");
    } else if (agent->state == GR_HOST_STARTING && agent->host.joined) {
        (void)gr_fail(diag, GR_E_PEER_LOST, "the agent that joined from %s is gone: %s", name,
                      words[0] != '\0' ? words : "its relay was killed");
    } else if (agent->state == GR_HOST_STARTING) {
        char advice[GR_DIAG_TEXT_BYTES];
        job->config->shell->advise(name, job->config->program, advice, sizeof advice);
        (void)gr_fail(diag, GR_E_NOT_FOUND, "host %s cannot be used: %s%s; %s", name,
                      words[0] != '\0' ? words : "its relay was killed",
                      job->going ? "" : "; nothing was started", advice);
    } else {
        (void)gr_fail(diag, GR_E_PEER_LOST, "host %s was lost with %s: %s", name, whom,
                      words[0] != '\0' ? words : "the relay to it was killed");
    }
}

/* Its workers are dead. Do the others go on? */
static bool lose_workers(gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    bool on = job->agent_count > 1;
    for (int seat = 0; seat < agent->seats; seat++) {
        int rank = agent->host.first + seat;
        gr_worker_end *end = &job->ends[rank];
        if (end->ended || !job->places[rank].busy) {
            continue;
        }
        job->places[rank].busy = false;
        end->started = end->ended = end->lost = true;
        end->wait_status = SIGKILL;
        end->order = job->ended++;
        end->end_us = gr_launch_job_now_us();
        end->host = job->name_hosts ? gr_host_label(&agent->host) : NULL;
        end->was_asked = job->told;
        gr_records_ended(job->records, rank);
        on = on && !job->told && gr_launch_job_spare(job, rank);
    }
    return on;
}

/* The agent, or the way to it, is gone, and its workers with it. */
static void on_agent_lost(gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    gr_diag why;
    describe_loss(agent, &why);
    job->any_lost = true;
    gr_launch_job_note_loss(agent);
    agent->state = GR_HOST_CLOSING; /* nobody is started there */
    if (agent->serves) {
        gr_launch_job_server_lost(agent, &why);
        on_agent_over(agent);
        return;
    }
    bool on = job->going && lose_workers(agent) &&
              (!agent->given_up || gr_launch_job_count_busy(job) >= job->config->workers_min);
    if (on && !job->told) {
        char next[64] = "; it is left alone from now on";
        if (agent->leaving || agent->host.joined) {
            next[0] = '\0';
        } else if (!agent->given_up) {
            snprintf(next, sizeof next, "; it is tried again in %.0f s",
                     (double)(agent->try_us - gr_launch_job_now_us()) * 1e-6);
        }
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "%s%s", why.text, next);
        gr_launch_job_set_target(job);
    } else if (!job->told) {
        gr_launch_job_blame_loss(job, false, &why);
        gr_launch_job_end_after_failure(job);
    }
    on_agent_over(agent);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    gr_host_agent *agent = poll->data;
    (void)status;
    (void)events;
    while (gr_launch_job_is_active(agent)) {
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
    agent->pid = agent->job->reason == GR_REASON_STUCK ? 0 : agent->pid;
    if (agent->control_fd >= 0) {
        close(agent->control_fd);
        close(agent->words_fd);
    }
    agent->control_fd = agent->words_fd = -1;
}

void gr_launch_job_stop_agents(gr_launch_job *job)
{
    int servers = job->servers != NULL ? job->config->servers : 0;
    for (int i = 0; i < job->agent_count; i++) {
        hang_up(&job->agents[i]);
    }
    for (int i = 0; i < servers; i++) {
        hang_up(&job->servers[i].agent);
    }
    for (int i = 0; i < job->agent_count; i++) {
        forget_agent(&job->agents[i]);
        gr_join_refuse(&job->agents[i].host);
    }
    for (int i = 0; i < servers; i++) {
        forget_agent(&job->servers[i].agent);
    }
}
