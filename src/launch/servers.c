/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "launch/environ.h"
#include "launch/launch_job.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static gr_server *server_of(const gr_launch_job *job, int place)
{
    return &job->servers[gr_launch_job_server_number(job, place)];
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Spread over the hosts of the job, one after the other; where hosts come and go they are here, and
 * so they stay as long as the job. */
static gr_host host_of(const gr_launch_job *job, int number)
{
    const gr_launch_config *config = job->config;
    const gr_host_list *hosts = config->hosts;
    gr_host host = {.name = "localhost", .local = true};
    if (hosts != NULL && config->discovery == NULL && config->acceptor == NULL) {
        host = hosts->at[number % hosts->count];
    }
    host.first = job->slots + number;
    host.slots = host.workers = 1;
    return host;
}

gr_status gr_launch_job_set_up_server(const gr_launch_job *job, const gr_host_agent *agent,
                                      gr_arena *arena, gr_agent_config *config_out, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    int place = agent->host.first;
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    *config_out =
        (gr_agent_config){.workers = 1,
                          .spawns = gr_arena_alloc(arena, sizeof(gr_spawn)),
                          .environment = gr_arena_alloc(arena, sizeof *config_out->environment)};
    if (config_out->spawns == NULL || config_out->environment == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a parameter server");
    }
    gr_hex(job->secret, GR_SECRET_BYTES, secret_hex);
    const gr_environ_config environment = {.inherited = agent->host.local ? config->environment
                                                                          : config->exported,
                                           .serves = true,
                                           .rank = gr_launch_job_server_number(job, place),
                                           .secret_hex = secret_hex,
                                           .set = config->set,
                                           .defaults = config->defaults};
    gr_status status = gr_environ_build(&environment, arena, config_out->environment, diag);
    gr_wipe(secret_hex, sizeof secret_hex);
    *config_out->spawns = (gr_spawn){.argv = config->server_argv,
                                     .file = "/proc/self/exe",
                                     .environment = *config_out->environment,
                                     .stdin_fd = job->stdin_fd,
                                     .stdout_fd = gr_output_worker_fd(job->output, place, 0),
                                     .stderr_fd = gr_output_worker_fd(job->output, place, 1),
                                     .cores = config->restrict_cores ? config->cores : NULL};
    return status;
}

static void on_timeout(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    int number = 0;
    while (number + 1 < job->config->servers && job->servers[number].address != NULL) {
        number++;
    }
    gr_diag diag = {0};
    (void)gr_fail(&diag, GR_E_TIMEOUT,
                  "parameter server %d was not ready within %.0f s of the start (--start-timeout "
                  "sets the time)",
                  number, (double)job->config->start_timeout_us * 1e-6);
    gr_launch_job_blame_for(job, GR_REASON_NOT_JOINED, &diag);
    gr_launch_job_end_after_failure(job);
}

gr_status gr_launch_job_start_all(gr_launch_job *job, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    gr_status status = GR_OK;
    if (config->servers == 0) {
        return gr_launch_job_start_agents(job, diag);
    }
    job->servers = gr_arena_alloc(&job->arena, (size_t)config->servers * sizeof *job->servers);
    if (job->servers == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d parameter servers", config->servers);
    }
    for (int i = 0; i < config->servers; i++) {
        job->servers[i].agent = (gr_host_agent){.job = job,
                                                .host = host_of(job, i),
                                                .serves = true,
                                                .seats = 1,
                                                .control_fd = -1,
                                                .words_fd = -1};
        job->places[job->slots + i] = (gr_place){.agent = &job->servers[i].agent, .busy = true};
    }
    for (int i = 0; i < config->servers && status == GR_OK; i++) {
        status = gr_launch_job_start_agent(&job->servers[i].agent, diag);
    }
    if (status == GR_OK && config->start_timeout_us > 0) {
        (void)uv_timer_start(&job->join_timer, on_timeout,
                             (uint64_t)config->start_timeout_us / 1000, 0);
    }
    return status;
}

/* ---- Where they are -------------------------------------------------------------------------- */

/* In "GRADUS_SERVER_3=unix:@...+tcp:...". NULL: that is not what it says; it may have come from
 * another host. */
static const char *find_address(const char *line)
{
    static const char name[] = "GRADUS_SERVER";
    const char *at = strncmp(line, name, sizeof name - 1) == 0 ? strchr(line, '=') : NULL;
    bool good = at != NULL && at[1] != '\0';
    for (const char *c = at; good && *c != '\0'; c++) {
        good = isgraph((unsigned char)*c) && *c != ',';
    }
    return good ? at + 1 : NULL;
}

/* With commas between. NULL: no memory, or one has not said it yet. */
static char *list_addresses(gr_launch_job *job)
{
    size_t size = 1;
    for (int i = 0; i < job->config->servers; i++) {
        const char *address = job->servers[i].address;
        if (address == NULL) {
            return NULL;
        }
        size += strlen(address) + 1;
    }
    char *list = gr_arena_alloc(&job->arena, size), *at = list;
    for (int i = 0; i < job->config->servers && list != NULL; i++) {
        at = stpcpy(at, i > 0 ? "," : "");
        at = stpcpy(at, job->servers[i].address);
    }
    return list;
}

/* All that a client of this job's servers needs, in a file that nobody else may read. What is there
 * already may be another job's, and is left alone. */
static gr_status write_file(gr_launch_job *job, gr_diag *diag)
{
    const char *path = job->config->servers_file;
    if (path == NULL) {
        return GR_OK;
    }
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, S_IRUSR | S_IWUSR);
    if (fd < 0) {
        return gr_fail(diag, GR_E_INVALID, "--servers-file: cannot make \"%s\": %s%s", path,
                       strerror(errno),
                       errno == EEXIST ? "; unless a job that runs has made it, remove it" : "");
    }
    job->servers_filed = true;
    gr_hex(job->secret, GR_SECRET_BYTES, secret_hex);
    int written = dprintf(fd, "GRADUS_SERVERS=%s\nGRADUS_SECRET=%s\n%s", job->server_list,
                          secret_hex, job->config->encrypt ? "GRADUS_ENCRYPT=yes\n" : "");
    gr_wipe(secret_hex, sizeof secret_hex);
    gr_wipe_stack();
    int error = written < 0 ? errno : 0;
    error = close(fd) != 0 && error == 0 ? errno : error;
    return error == 0 ? GR_OK : gr_fail_errno(diag, "write", path, error);
}

void gr_launch_job_remove_servers(gr_launch_job *job)
{
    if (job->servers_filed) {
        (void)unlink(job->config->servers_file);
        job->servers_filed = false;
    }
}

static void fail(gr_launch_job *job, const gr_diag *why)
{
    gr_launch_job_blame_for(job, GR_REASON_NOT_STARTED, why);
    gr_launch_job_end_after_failure(job);
}

/* All are ready. */
static void start_workers(gr_launch_job *job)
{
    gr_diag diag = {0};
    uv_timer_stop(&job->join_timer);
    gr_status status = write_file(job, &diag);
    if (status == GR_OK) {
        status = gr_launch_job_start_agents(job, &diag);
    }
    if (status != GR_OK) {
        fail(job, &diag);
    }
}

/* `line` NULL: one that is too long. */
static void take_line(gr_launch_job *job, int place, const char *line)
{
    static const char met[] = "GRADUS_SERVERS_MET=yes";
    gr_server *server = server_of(job, place);
    if (server->address != NULL) {
        server->met = server->met || (line != NULL && strcmp(line, met) == 0);
        return;
    }
    const char *address = line != NULL ? find_address(line) : NULL;
    if (address != NULL) {
        server->address = gr_arena_strdup(&job->arena, address);
    }
    if (server->address == NULL) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_PROTOCOL,
                      "parameter server %d says something else than where it is: is the gradus "
                      "there of another version?",
                      gr_launch_job_server_number(job, place));
        fail(job, &diag);
        return;
    }
    job->server_list = list_addresses(job);
    if (job->server_list != NULL) {
        start_workers(job);
    }
}

void gr_launch_job_receive_server(gr_launch_job *job, int place, const char *text,
                                  size_t size_bytes)
{
    gr_server *server = server_of(job, place);
    for (size_t i = 0; i < size_bytes && job->phase == GR_PHASE_RUNNING; i++) {
        bool fits = server->said_bytes < sizeof server->said - 1;
        if (text[i] == '\n') {
            server->said[server->said_bytes] = '\0';
            server->said_bytes = 0;
            take_line(job, place, fits ? server->said : NULL);
        } else if (fits) {
            server->said[server->said_bytes++] = text[i];
        }
    }
}

/* ---- The end --------------------------------------------------------------------------------- */

/* Can those that are left agree that server `number` is dead? On its host they know it; on others
 * they have to be a quorum of those that lived: more than half, or half with the lowest number
 * (ps/server/membership_view.h). */
static bool can_agree(const gr_launch_job *job, int number)
{
    const gr_host *host = &job->servers[number].agent.host;
    int left = 0, lowest = number;
    for (int i = 0; i < job->config->servers; i++) {
        const gr_host *other = &job->servers[i].agent.host;
        if (!job->places[job->slots + i].busy) {
            continue;
        }
        if (strcmp(gr_host_label(other), gr_host_label(host)) == 0) {
            return true;
        }
        left++;
        lowest = i < lowest ? i : lowest;
    }
    return left > 1 || (left == 1 && lowest != number);
}

/* A server is gone, as the sentence says. Does the job go on without it, with so many others? */
static bool spare(gr_launch_job *job, int least, const char *sentence)
{
    int left = 0;
    bool met = true;
    for (int i = 0; i < job->config->servers; i++) {
        left += job->places[job->slots + i].busy;
        met = met && job->servers[i].met;
    }
    bool on = job->config->servers_spare && met && left >= least && job->phase == GR_PHASE_RUNNING;
    if (on) {
        job->servers_spared++;
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "%s; the other%s go%s on with what it kept", sentence, left == 1 ? "" : "s",
                     left == 1 ? "es" : "");
    }
    return on;
}

void gr_launch_job_server_ended(gr_launch_job *job, const gr_agent_message *message)
{
    gr_worker_end *end = &job->ends[message->rank];
    end->ended = true;
    end->wait_status = message->value;
    end->order = job->ended++;
    end->end_us = gr_launch_job_now_us();
    job->places[message->rank].busy = false;
    gr_output_renew(job->output, message->rank); /* what it said last may still be unread */
    bool asked = WIFEXITED(end->wait_status) || WTERMSIG(end->wait_status) == SIGTERM;
    if (job->servers_told && (asked || job->phase >= GR_PHASE_KILLING)) {
        return;
    }
    char what[GR_DIAG_TEXT_BYTES];
    gr_root_cause_describe("parameter server", gr_launch_job_server_number(job, message->rank), end,
                           what, sizeof what);
    if (can_agree(job, gr_launch_job_server_number(job, message->rank)) && spare(job, 1, what)) {
        return;
    }
    /* Workers that fail do so because of it, also those that were heard of before it. */
    job->lost_server = job->lost_server < 0 ? message->rank : job->lost_server;
    if (job->phase <= GR_PHASE_SETTLING) {
        gr_launch_job_blame(job, GR_REASON_SERVER, GR_E_PEER_LOST);
        gr_launch_job_end_after_failure(job);
    }
}

void gr_launch_job_server_lost(gr_host_agent *agent, const gr_diag *why)
{
    gr_launch_job *job = agent->job;
    /* Servers that see nothing of others but their silence wait, unless they are the majority. */
    int majority = job->config->servers / 2 + 1;
    job->places[agent->host.first].busy = false;
    if (job->servers_told || job->phase > GR_PHASE_SETTLING || spare(job, majority, why->text)) {
        return;
    }
    gr_launch_job_blame_loss(job, true, why);
    gr_launch_job_end_after_failure(job);
}

bool gr_launch_job_end_servers(gr_launch_job *job)
{
    bool any = false;
    /* The end of one of them may be why the workers failed, and be heard of in a moment. */
    bool tell = !job->servers_told && job->phase != GR_PHASE_SETTLING;
    for (int i = 0; i < job->config->servers && job->servers != NULL; i++) {
        const gr_host_agent *agent = &job->servers[i].agent;
        any = any || gr_launch_job_is_active(agent);
        if (tell) {
            gr_launch_job_notify_agent(agent, GR_AGENT_SIGNAL, 0, SIGTERM);
        }
    }
    if (any && tell) {
        job->servers_told = true;
        gr_launch_job_wait_for_end(job, job->config->grace_us / 1000);
    }
    return any;
}

void gr_launch_job_kill_servers(gr_launch_job *job)
{
    job->servers_told = true;
    for (int i = 0; i < job->config->servers && job->servers != NULL; i++) {
        gr_launch_job_notify_agent(&job->servers[i].agent, GR_AGENT_KILL, 0, 0);
    }
}
