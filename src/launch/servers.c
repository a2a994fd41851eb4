/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "launch/launch_job.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Spread over the hosts of the job, one after the other; where hosts come and go they are here, and
 * so they stay as long as the job. */
gr_host gr_launch_job_server_host(const gr_launch_config *config, int number)
{
    gr_host host = {.name = "localhost", .local = true};
    if (config->hosts != NULL && !gr_launch_changing(config)) {
        host = config->hosts->at[number % config->hosts->count];
    }
    host.slots = host.workers = 1;
    return host;
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

/* With commas between. NULL: one has not said where it is, or no memory. */
static char *list_addresses(gr_launch_job *job)
{
    size_t size = 1;
    for (int i = 0; i < job->config->server.count; i++) {
        if (job->servers[i].address == NULL) {
            return NULL;
        }
        size += strlen(job->servers[i].address) + 1;
    }
    char *list = gr_arena_alloc(&job->arena, size), *at = list;
    for (int i = 0; i < job->config->server.count && list != NULL; i++) {
        at = stpcpy(at, i > 0 ? "," : "");
        at = stpcpy(at, job->servers[i].address);
    }
    return list;
}

static const char run_mark[] = "# of run ";

static gr_status write_servers(void *arg, int fd, gr_diag *diag)
{
    const gr_launch_job *job = arg;
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    gr_hex(job->secret, GR_SECRET_BYTES, secret_hex);
    int written = dprintf(fd, "%s%s\nGRADUS_SERVERS=%s\nGRADUS_SECRET=%s\n%s", run_mark,
                          job->config->server.run, job->server_list, secret_hex,
                          job->config->encrypt ? "GRADUS_ENCRYPT=yes\n" : "");
    int error = written < 0 ? errno : 0;
    gr_wipe(secret_hex, sizeof secret_hex);
    gr_wipe_stack();
    return error == 0 ? GR_OK : gr_fail_errno(diag, "write", job->config->server.file, error);
}

/* Returns true if the file is what an earlier supervisor of this job has left, which was killed. */
static bool is_own_file(const gr_launch_job *job)
{
    enum { FILE_BYTES_MAX = 1 << 20 };
    const char *run = job->config->server.run;
    char *text = NULL;
    size_t size, mark = sizeof run_mark - 1, length = strlen(run);
    if (gr_file_read(job->config->server.file, FILE_BYTES_MAX, &text, &size, NULL) != GR_OK) {
        return false;
    }
    bool own = size > mark + length && memcmp(text, run_mark, mark) == 0 &&
               memcmp(text + mark, run, length) == 0 && text[mark + length] == '\n';
    gr_wipe(text, size);
    free(text);
    return own;
}

/* All that a client of this job's servers needs, in a file that nobody else may read. What is there
 * already may be another job's, and is left alone. */
static gr_status write_file(gr_launch_job *job, gr_diag *diag)
{
    const char *path = job->config->server.file;
    if (path == NULL) {
        return GR_OK;
    }
    if (job->servers_filed || is_own_file(job)) {
        job->servers_filed = true;
        return gr_file_replace_by(path, write_servers, job, diag);
    }
    gr_diag why = {0};
    job->servers_filed = gr_file_make_by(path, write_servers, job, &why) == GR_OK;
    if (!job->servers_filed) {
        return gr_fail(diag, GR_E_INVALID, "--servers-file: %s%s", why.text,
                       access(path, F_OK) == 0 ? "; unless a job that runs has made it, remove it"
                                               : "");
    }
    return GR_OK;
}

void gr_launch_job_remove_servers(gr_launch_job *job)
{
    if (job->servers_filed) {
        (void)unlink(job->config->server.file);
        job->servers_filed = false;
    }
}

gr_status gr_launch_job_publish_servers(gr_launch_job *job, gr_diag *diag)
{
    job->server_list = list_addresses(job);
    return job->server_list != NULL ? write_file(job, diag)
                                    : gr_fail(diag, GR_E_NO_MEMORY, "no memory for addresses");
}

/* Those that come later get the new address. The job does not need the file. */
void gr_launch_job_republish_servers(gr_launch_job *job)
{
    gr_diag why = {0};
    const char *list = list_addresses(job);
    job->server_list = list != NULL ? list : job->server_list;
    if (write_file(job, &why) != GR_OK) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "%s", why.text);
    }
}

/* ---- What they write ------------------------------------------------------------------------- */

/* `line` NULL: one that is too long. */
static void take_line(gr_launch_job *job, int slot, const char *line)
{
    static const char met[] = "GRADUS_SERVERS_MET=yes";
    int number = gr_launch_job_server_number(job, slot);
    gr_server *server = &job->servers[number];
    gr_scheduler_event event = {.kind = GR_EVENT_SERVER_MET, .slot = slot};
    gr_diag diag = {0};
    if (server->address == NULL) {
        const char *address = line != NULL ? find_address(line) : NULL;
        server->address = address != NULL ? gr_arena_strdup(&job->arena, address) : NULL;
        event.kind = server->address != NULL ? GR_EVENT_SERVER_READY : GR_EVENT_FAILED;
        event.value = GR_REASON_NOT_STARTED;
    } else if (line == NULL || strcmp(line, met) != 0) {
        return;
    }
    if (event.kind == GR_EVENT_FAILED) {
        (void)gr_fail(&diag, GR_E_PROTOCOL,
                      "parameter server %d says something else than where it is: is the gradus "
                      "there of another version?",
                      number);
    }
    gr_launch_job_happen(job, &event, &diag);
}

void gr_launch_job_receive_server(gr_launch_job *job, int slot, const char *text, size_t size_bytes)
{
    gr_server *server = &job->servers[gr_launch_job_server_number(job, slot)];
    for (size_t i = 0; i < size_bytes && job->schedule.phase == GR_PHASE_RUNNING; i++) {
        bool fits = server->said_bytes < sizeof server->said - 1;
        if (text[i] == '\n') {
            server->said[server->said_bytes] = '\0';
            server->said_bytes = 0;
            take_line(job, slot, fits ? server->said : NULL);
        } else if (fits) {
            server->said[server->said_bytes++] = text[i];
        }
    }
}
