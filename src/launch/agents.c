/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "launch/descent.h"
#include "launch/environ.h"
#include "launch/gang.h"
#include "launch/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void gr_gang_tell(gr_gang *gang, int kind, int value)
{
    gr_agent_message message = {.kind = kind, .value = value};
    for (int i = 0; i < gang->agents_begun; i++) {
        if (!gang->agents[i].over) { /* if it is gone, the poll says so */
            (void)gr_agent_send(gang->agents[i].control_fd, &message);
        }
    }
}

void gr_gang_signal_worker(gr_gang *gang, int rank, int signal_number)
{
    const gr_host *host = gr_hosts_of_rank(gang->hosts, rank);
    gr_agent_message message = {
        .kind = GR_AGENT_FAULT, .rank = rank - host->first, .value = signal_number};
    (void)gr_agent_send(gang->agents[host - gang->hosts->at].control_fd, &message);
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Where the launcher reads the workers' output, for who is to do so when it is gone. */
static void keep_output(gr_gang *gang, gr_agent_config *agent)
{
    int *fds = gr_arena_alloc(&gang->arena, (size_t)gang->slots * 2 * sizeof *fds);
    for (int rank = 0; fds != NULL && rank < gang->slots; rank++) {
        fds[agent->read_count++] = gr_output_read_fd(gang->output, rank, 0);
        fds[agent->read_count++] = gr_output_read_fd(gang->output, rank, 1);
    }
    agent->read_fds = fds;
    agent->orphan_grace_us = fds != NULL ? gang->config->orphan_grace_us : 0;
}

/* In the process that was forked for it. */
_Noreturn static void become_agent(gr_gang *gang, const gr_host *host, int control_fd, int words_fd)
{
    const gr_launch_config *config = gang->config;
    bool changes = gr_gang_may_change(gang);
    gr_agent_config agent = {.workers = changes ? config->workers : host->workers,
                             .slots = changes ? gang->slots : 0,
                             .newcomer = gang->newcomer,
                             .spawns = gang->spawns + host->first,
                             .environment = gang->environment + host->first,
                             .control_fd = control_fd};
    if (host->local) {
        if (config->orphan_grace_us > 0) {
            keep_output(gang, &agent);
        }
        gr_agent_run(&agent);
    }
    char folder[PATH_MAX] = "/";
    (void)!getcwd(folder, sizeof folder);
    gr_remote_config remote = {.host = host->name,
                               .program = config->program,
                               .ssh_port = config->ssh_port,
                               .identity = config->ssh_identity,
                               .start_timeout_us = config->start_timeout_us,
                               .silence_us = config->host_timeout_us,
                               .environment = config->environment,
                               .order = {.workers = host->workers,
                                         .bind = config->bind,
                                         .silence_us = config->host_timeout_us,
                                         .cores = config->cores_text,
                                         .folder = folder,
                                         .argv = (char **)(uintptr_t)config->argv,
                                         .self = config->file != NULL,
                                         .environment = agent.environment},
                               .agent = agent,
                               .words_fd = words_fd};
    gr_remote_run(&remote);
}

static gr_status start_agent(gr_gang *gang, const gr_host *host, gr_diag *diag)
{
    gr_host_agent *agent = &gang->agents[gang->agents_begun];
    int ends[2], words[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made: %s", strerror(errno));
    }
    if (pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0) {
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        return gr_fail(diag, GR_E_IO, "a pipe cannot be made: %s", strerror(error));
    }
    *agent =
        (gr_host_agent){.gang = gang, .host = host, .control_fd = ends[0], .words_fd = words[0]};
    gang->agents_begun++;
    agent->pid = fork();
    if (agent->pid == 0) {
        gr_wipe(gang->secret, sizeof gang->secret);
        gr_wipe(gang->secret_hex, sizeof gang->secret_hex);
        become_agent(gang, host, ends[1], words[1]);
    }
    int fork_error = errno;
    close(ends[1]);
    close(words[1]);
    if (agent->pid < 0) {
        agent->pid = 0;
        return gr_fail(diag, GR_E_IO, "the agent process cannot be started: %s; see ulimit -u",
                       strerror(fork_error));
    }
    if (fcntl(agent->control_fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made non-blocking: %s",
                       strerror(errno));
    }
    return GR_OK;
}

gr_status gr_gang_start_agents(gr_gang *gang, gr_diag *diag)
{
    gr_status status = GR_OK;
    gang->agents = gr_arena_alloc(&gang->arena, (size_t)gang->hosts->count * sizeof *gang->agents);
    if (gang->agents == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d hosts", gang->hosts->count);
    }
    for (int i = 0; i < gang->hosts->count && status == GR_OK; i++) {
        status = start_agent(gang, &gang->hosts->at[i], diag);
    }
    for (int rank = 0; rank < gang->slots; rank++) {
        gr_environ_wipe(gang->environment[rank]);
        if (gang->newcomer[rank] != NULL) {
            gr_environ_wipe(gang->newcomer[rank]);
        }
    }
    gr_wipe(gang->secret, sizeof gang->secret);
    gr_wipe(gang->secret_hex, sizeof gang->secret_hex);
    return status;
}

/* ---- What they tell -------------------------------------------------------------------------- */

/* A worker could not be started there, and so none runs on. */
static void on_not_started(gr_host_agent *agent, const gr_agent_message *message)
{
    gr_gang *gang = agent->gang;
    gr_spawn_error error = {.step = message->value, .error = message->error};
    gr_diag diag;
    gr_status status = gr_spawn_fail(gang->config->argv[0], &error, &diag);
    if (gang->places[message->rank].newcomer) {
        gr_gang_do_without(gang, message->rank, &diag);
        return;
    }
    gr_gang_blame(gang, GR_REASON_NOT_STARTED, status);
    if (gang->reason == GR_REASON_NOT_STARTED && agent->host->local) {
        gang->verdict = diag;
    } else if (gang->reason == GR_REASON_NOT_STARTED) {
        (void)gr_fail(&gang->verdict, status, "on host %s: %s", gr_host_label(agent->host),
                      diag.text);
    }
    gr_gang_kill_all(gang);
}

static void on_agent_over(gr_host_agent *agent)
{
    gr_gang *gang = agent->gang;
    agent->over = true;
    uv_poll_stop(&agent->poll);
    if (++gang->agents_over < gang->hosts->count) {
        return;
    }
    if (gang->any_lost) {
        gr_descent_end(); /* what its workers had started fell to us */
    }
    gr_gang_drain(gang);
}

static void on_message(gr_host_agent *agent, gr_agent_message *message)
{
    gr_gang *gang = agent->gang;
    /* What comes from another host is not taken for sound: no number leads out of its workers. */
    bool known = message->rank >= 0 && message->rank < agent->host->workers;
    message->rank = known ? message->rank + agent->host->first : -1;
    if (message->kind == GR_AGENT_READY) {
        /* Nothing runs anywhere until all hosts are there. */
        if (++gang->agents_ready == gang->hosts->count && gang->phase == GR_PHASE_RUNNING) {
            gr_gang_tell(gang, GR_AGENT_START, 0);
            gr_gang_play_faults(gang);
        }
    } else if (message->kind == GR_AGENT_STARTED && known) {
        gr_worker_end *end = &gang->ends[message->rank];
        end->started = true;
        end->spared = false;
        end->pid = message->pid;
        end->host = gr_launch_host_of(gang->config, message->rank);
        end->start_us = gr_gang_now_us();
        gang->started++;
    } else if (message->kind == GR_AGENT_EXITED && known) {
        gr_gang_worker_ended(gang, message);
    } else if (message->kind == GR_AGENT_NOT_STARTED && known) {
        on_not_started(agent, message);
    } else if (message->kind == GR_AGENT_DONE) {
        on_agent_over(agent);
    }
}

/* Why the agent, or the way to it, is gone. */
static void describe_loss(const gr_host_agent *agent, gr_diag *diag)
{
    const gr_gang *gang = agent->gang;
    const char *name = agent->host->name;
    char words[GR_DIAG_TEXT_BYTES];
    ssize_t got = agent->words_fd >= 0 ? read(agent->words_fd, words, sizeof words - 1) : 0;
    words[got > 0 ? got : 0] = '\0';
    if (agent->host->local) {
        (void)gr_fail(diag, GR_E_IO,
                      "the process that looks after the workers (gradus-agent, pid %d) was killed, "
                      "and they with it",
                      (int)agent->pid);
    } else if (gang->agents_ready < gang->hosts->count) {
        (void)gr_fail(diag, GR_E_NOT_FOUND,
                      "host %s cannot be used: %s; nothing was started; \"ssh %s %s version\" must "
                      "answer without a question (--ssh-port, --ssh-identity-file, "
                      "--remote-program)",
                      name, words[0] != '\0' ? words : "its relay was killed", name,
                      gang->config->program);
    } else {
        (void)gr_fail(diag, GR_E_PEER_LOST, "host %s was lost with its %d worker%s: %s", name,
                      agent->host->workers, agent->host->workers == 1 ? "" : "s",
                      words[0] != '\0' ? words : "the relay to it was killed");
    }
}

/* The agent, or the way to it, is gone, and its workers with it. */
static void on_agent_lost(gr_host_agent *agent)
{
    gr_gang *gang = agent->gang;
    gr_diag why;
    bool running = gang->agents_ready == gang->hosts->count;
    bool on = running && !gang->told && gang->hosts->count > 1;
    int lost = 0;
    describe_loss(agent, &why);
    gang->any_lost = true;
    for (int i = 0; i < agent->host->workers && running; i++) {
        int rank = agent->host->first + i;
        gr_worker_end *end = &gang->ends[rank];
        if (end->ended || !gang->places[rank].busy) {
            continue;
        }
        lost++;
        gang->places[rank].busy = false;
        end->started = end->ended = end->lost = true;
        end->wait_status = SIGKILL;
        end->order = gang->ended++;
        end->end_us = gr_gang_now_us();
        end->host = gr_launch_host_of(gang->config, rank);
        end->was_asked = gang->told;
        gr_records_ended(gang->records, rank);
        on = on && gr_gang_spare(gang, rank);
    }
    if (on && lost > 0) {
        gr_log_write(gang->config->log, GR_LOG_WARN, "launch", "%s", why.text);
    } else if (!on && !gang->told) {
        gang->reason = GR_REASON_AGENT_LOST;
        gang->status = (gr_status)why.status;
        gang->verdict = why;
        gr_gang_end_after_failure(gang);
    }
    on_agent_over(agent);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    gr_host_agent *agent = poll->data;
    (void)status;
    (void)events;
    while (!agent->over) {
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

int gr_gang_watch_agents(gr_gang *gang)
{
    int error = 0;
    for (int i = 0; i < gang->agents_begun && error == 0; i++) {
        gr_host_agent *agent = &gang->agents[i];
        agent->poll.data = agent;
        error = uv_poll_init(&gang->loop, &agent->poll, agent->control_fd);
        if (error == 0) {
            error = uv_poll_start(&agent->poll, UV_READABLE, on_control);
        }
    }
    return error;
}

void gr_gang_stop_agents(gr_gang *gang)
{
    for (int i = 0; i < gang->agents_begun; i++) {
        close(gang->agents[i].control_fd);
        close(gang->agents[i].words_fd);
    }
    for (int i = 0; i < gang->agents_begun && gang->reason != GR_REASON_STUCK; i++) {
        while (gang->agents[i].pid > 0 && waitpid(gang->agents[i].pid, NULL, 0) < 0 &&
               errno == EINTR) {
        }
    }
}
