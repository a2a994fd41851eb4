/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "launch/environ.h"
#include "launch/gang.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static gr_server *server_of(const gr_gang *gang, int place)
{
    return &gang->servers[gr_gang_server_number(gang, place)];
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Spread over the hosts of the job, one after the other; where hosts come and go they are here, and
 * so they stay as long as the job. */
static gr_host host_of(const gr_gang *gang, int number)
{
    const gr_launch_config *config = gang->config;
    const gr_host_list *hosts = config->hosts;
    gr_host host = {.name = "localhost", .local = true};
    if (hosts != NULL && config->discovery == NULL && config->acceptor == NULL) {
        host = hosts->at[number % hosts->count];
    }
    host.first = gang->slots + number;
    host.slots = host.workers = 1;
    return host;
}

gr_status gr_gang_equip_server(const gr_gang *gang, const gr_host_agent *agent, gr_arena *arena,
                               gr_agent_config *config_out, gr_diag *diag)
{
    const gr_launch_config *config = gang->config;
    int place = agent->host.first;
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    *config_out =
        (gr_agent_config){.workers = 1,
                          .spawns = gr_arena_alloc(arena, sizeof(gr_spawn)),
                          .environment = gr_arena_alloc(arena, sizeof *config_out->environment)};
    if (config_out->spawns == NULL || config_out->environment == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a parameter server");
    }
    gr_hex(gang->secret, GR_SECRET_BYTES, secret_hex);
    const gr_environ_config environment = {.inherited = config->environment,
                                           .serves = true,
                                           .rank = gr_gang_server_number(gang, place),
                                           .secret_hex = secret_hex,
                                           .set = config->set,
                                           .defaults = config->defaults};
    gr_status status = gr_environ_build(&environment, arena, config_out->environment, diag);
    gr_wipe(secret_hex, sizeof secret_hex);
    *config_out->spawns = (gr_spawn){.argv = config->server_argv,
                                     .file = "/proc/self/exe",
                                     .environment = *config_out->environment,
                                     .stdin_fd = gang->null_fd,
                                     .stdout_fd = gr_output_worker_fd(gang->output, place, 0),
                                     .stderr_fd = gr_output_worker_fd(gang->output, place, 1),
                                     .cores = config->restrict_cores ? config->cores : NULL};
    return status;
}

static void on_timeout(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    int number = 0;
    while (number + 1 < gang->config->servers && gang->servers[number].address != NULL) {
        number++;
    }
    gr_diag diag = {0};
    (void)gr_fail(&diag, GR_E_TIMEOUT,
                  "parameter server %d was not ready within %.0f s of the start (--start-timeout "
                  "sets the time)",
                  number, (double)gang->config->start_timeout_us * 1e-6);
    gr_gang_blame_for(gang, GR_REASON_NOT_JOINED, &diag);
    gr_gang_end_after_failure(gang);
}

gr_status gr_gang_start_all(gr_gang *gang, gr_diag *diag)
{
    const gr_launch_config *config = gang->config;
    gr_status status = GR_OK;
    if (config->servers == 0) {
        return gr_gang_start_agents(gang, diag);
    }
    gang->servers = gr_arena_alloc(&gang->arena, (size_t)config->servers * sizeof *gang->servers);
    if (gang->servers == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d parameter servers", config->servers);
    }
    for (int i = 0; i < config->servers; i++) {
        gang->servers[i].agent = (gr_host_agent){.gang = gang,
                                                 .host = host_of(gang, i),
                                                 .serves = true,
                                                 .seats = 1,
                                                 .control_fd = -1,
                                                 .words_fd = -1};
        gang->places[gang->slots + i] = (gr_place){.agent = &gang->servers[i].agent, .busy = true};
    }
    for (int i = 0; i < config->servers && status == GR_OK; i++) {
        status = gr_gang_start_agent(&gang->servers[i].agent, diag);
    }
    if (status == GR_OK && config->start_timeout_us > 0) {
        (void)uv_timer_start(&gang->join_timer, on_timeout,
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
static char *list_addresses(gr_gang *gang)
{
    size_t size = 1;
    for (int i = 0; i < gang->config->servers; i++) {
        const char *address = gang->servers[i].address;
        if (address == NULL) {
            return NULL;
        }
        size += strlen(address) + 1;
    }
    char *list = gr_arena_alloc(&gang->arena, size), *at = list;
    for (int i = 0; i < gang->config->servers && list != NULL; i++) {
        at = stpcpy(at, i > 0 ? "," : "");
        at = stpcpy(at, gang->servers[i].address);
    }
    return list;
}

/* All that a client of this job's servers needs, in a file that nobody else may read. What is there
 * already may be another job's, and is left alone. */
static gr_status write_file(gr_gang *gang, gr_diag *diag)
{
    const char *path = gang->config->servers_file;
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
    gang->servers_filed = true;
    gr_hex(gang->secret, GR_SECRET_BYTES, secret_hex);
    int written = dprintf(fd, "GRADUS_SERVERS=%s\nGRADUS_SECRET=%s\n%s", gang->server_list,
                          secret_hex, gang->config->encrypt ? "GRADUS_ENCRYPT=yes\n" : "");
    gr_wipe(secret_hex, sizeof secret_hex);
    gr_wipe_stack();
    int error = written < 0 ? errno : 0;
    error = close(fd) != 0 && error == 0 ? errno : error;
    return error == 0 ? GR_OK : gr_fail_errno(diag, "write", path, error);
}

void gr_gang_forget_servers(gr_gang *gang)
{
    if (gang->servers_filed) {
        (void)unlink(gang->config->servers_file);
        gang->servers_filed = false;
    }
}

static void fail(gr_gang *gang, const gr_diag *why)
{
    gr_gang_blame_for(gang, GR_REASON_NOT_STARTED, why);
    gr_gang_end_after_failure(gang);
}

/* All are ready. */
static void start_workers(gr_gang *gang)
{
    gr_diag diag = {0};
    uv_timer_stop(&gang->join_timer);
    gr_status status = write_file(gang, &diag);
    if (status == GR_OK) {
        status = gr_gang_start_agents(gang, &diag);
    }
    if (status != GR_OK) {
        fail(gang, &diag);
    }
}

/* `line` NULL: one that is too long. */
static void take_line(gr_gang *gang, int place, const char *line)
{
    static const char met[] = "GRADUS_SERVERS_MET=yes";
    gr_server *server = server_of(gang, place);
    if (server->address != NULL) {
        server->met = server->met || (line != NULL && strcmp(line, met) == 0);
        return;
    }
    const char *address = line != NULL ? find_address(line) : NULL;
    if (address != NULL) {
        server->address = gr_arena_strdup(&gang->arena, address);
    }
    if (server->address == NULL) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_PROTOCOL,
                      "parameter server %d says something else than where it is: is the gradus "
                      "there of another version?",
                      gr_gang_server_number(gang, place));
        fail(gang, &diag);
        return;
    }
    gang->server_list = list_addresses(gang);
    if (gang->server_list != NULL) {
        start_workers(gang);
    }
}

void gr_gang_hear_server(gr_gang *gang, int place, const char *text, size_t size_bytes)
{
    gr_server *server = server_of(gang, place);
    for (size_t i = 0; i < size_bytes && gang->phase == GR_PHASE_RUNNING; i++) {
        bool fits = server->said_bytes < sizeof server->said - 1;
        if (text[i] == '\n') {
            server->said[server->said_bytes] = '\0';
            server->said_bytes = 0;
            take_line(gang, place, fits ? server->said : NULL);
        } else if (fits) {
            server->said[server->said_bytes++] = text[i];
        }
    }
}

/* ---- The end --------------------------------------------------------------------------------- */

/* Can those that are left agree that server `number` is dead? On its host they know it; on others
 * they have to be a quorum of those that lived: more than half, or half with the lowest number
 * (ps/server/membership_view.h). */
static bool can_agree(const gr_gang *gang, int number)
{
    const gr_host *host = &gang->servers[number].agent.host;
    int left = 0, lowest = number;
    for (int i = 0; i < gang->config->servers; i++) {
        const gr_host *other = &gang->servers[i].agent.host;
        if (!gang->places[gang->slots + i].busy) {
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
static bool spare(gr_gang *gang, int least, const char *sentence)
{
    int left = 0;
    bool met = true;
    for (int i = 0; i < gang->config->servers; i++) {
        left += gang->places[gang->slots + i].busy;
        met = met && gang->servers[i].met;
    }
    bool on =
        gang->config->servers_spare && met && left >= least && gang->phase == GR_PHASE_RUNNING;
    if (on) {
        gang->servers_spared++;
        gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                     "%s; the other%s go%s on with what it kept", sentence, left == 1 ? "" : "s",
                     left == 1 ? "es" : "");
    }
    return on;
}

void gr_gang_server_ended(gr_gang *gang, const gr_agent_message *message)
{
    gr_worker_end *end = &gang->ends[message->rank];
    end->ended = true;
    end->wait_status = message->value;
    end->order = gang->ended++;
    end->end_us = gr_gang_now_us();
    gang->places[message->rank].busy = false;
    gr_output_renew(gang->output, message->rank); /* what it said last may still be unread */
    bool asked = WIFEXITED(end->wait_status) || WTERMSIG(end->wait_status) == SIGTERM;
    if (gang->servers_told && (asked || gang->phase >= GR_PHASE_KILLING)) {
        return;
    }
    char what[GR_DIAG_TEXT_BYTES];
    gr_verdict_describe("parameter server", gr_gang_server_number(gang, message->rank), end, what,
                        sizeof what);
    if (can_agree(gang, gr_gang_server_number(gang, message->rank)) && spare(gang, 1, what)) {
        return;
    }
    /* Workers that fail do so because of it, also those that were heard of before it. */
    gang->lost_server = gang->lost_server < 0 ? message->rank : gang->lost_server;
    if (gang->phase <= GR_PHASE_SETTLING) {
        gr_gang_blame(gang, GR_REASON_SERVER, GR_E_PEER_LOST);
        gr_gang_end_after_failure(gang);
    }
}

void gr_gang_server_lost(gr_host_agent *agent, const gr_diag *why)
{
    gr_gang *gang = agent->gang;
    /* Servers that see nothing of others but their silence wait, unless they are the majority. */
    int majority = gang->config->servers / 2 + 1;
    gang->places[agent->host.first].busy = false;
    if (gang->servers_told || gang->phase > GR_PHASE_SETTLING || spare(gang, majority, why->text)) {
        return;
    }
    gr_gang_blame_loss(gang, true, why);
    gr_gang_end_after_failure(gang);
}

bool gr_gang_end_servers(gr_gang *gang)
{
    bool any = false;
    /* The end of one of them may be why the workers failed, and be heard of in a moment. */
    bool tell = !gang->servers_told && gang->phase != GR_PHASE_SETTLING;
    for (int i = 0; i < gang->config->servers && gang->servers != NULL; i++) {
        const gr_host_agent *agent = &gang->servers[i].agent;
        any = any || gr_gang_is_active(agent);
        if (tell) {
            gr_gang_tell_agent(agent, GR_AGENT_SIGNAL, 0, SIGTERM);
        }
    }
    if (any && tell) {
        gang->servers_told = true;
        gr_gang_wait_for_end(gang, gang->config->grace_us / 1000);
    }
    return any;
}

void gr_gang_kill_servers(gr_gang *gang)
{
    gang->servers_told = true;
    for (int i = 0; i < gang->config->servers && gang->servers != NULL; i++) {
        gr_gang_tell_agent(&gang->servers[i].agent, GR_AGENT_KILL, 0, 0);
    }
}
