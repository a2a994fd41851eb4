/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/takeover.h"

#include "base/fail.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { ASK_MS = 2000, ATTACH_MS = 60000 };

static gr_status connect_to(const gr_job_folder *folder, int *connection_out, gr_diag *diag)
{
    *connection_out = gr_job_folder_connect(folder);
    if (*connection_out >= 0) {
        return GR_OK;
    }
    return errno == ECONNREFUSED || errno == ENOENT
               ? GR_E_AGAIN
               : gr_fail(diag, GR_E_IO, "job %s cannot be reached: %s", folder->name,
                         strerror(errno));
}

static gr_status exchange(const gr_job_folder *folder, int connection, gr_job_message *message,
                          const int *fds, int timeout_ms, gr_diag *diag)
{
    struct pollfd reply = {.fd = connection, .events = POLLIN};
    int error = gr_job_send(connection, message, fds);
    if (error == 0 && poll(&reply, 1, timeout_ms) == 0) {
        return gr_fail(diag, GR_E_TIMEOUT,
                       "job %s does not answer: it may be between two starts of all workers; try "
                       "again",
                       folder->name);
    }
    error = error == 0 ? gr_job_receive(connection, message, NULL) : error;
    if (error == EPIPE) {
        return GR_E_AGAIN;
    }
    return error == 0 ? GR_OK
                      : gr_fail(diag, GR_E_IO,
                                "job %s cannot be asked: %s; is it of another version of gradus?",
                                folder->name, strerror(error));
}

gr_status gr_takeover(const gr_job_folder *folder, int *connection_out, gr_process *supervisor_out,
                      int *launcher_out, gr_diag *diag)
{
    static const int ours[] = {STDOUT_FILENO, STDERR_FILENO};
    gr_job_message message = {.kind = GR_JOB_ATTACH};
    int connection;
    *launcher_out = 0;
    gr_status status = connect_to(folder, &connection, diag);
    if (status != GR_OK) {
        return status;
    }
    status = exchange(folder, connection, &message, ours, ATTACH_MS, diag);
    if (status == GR_OK && message.kind == GR_JOB_TAKEN) {
        *launcher_out = message.status.launcher;
        status = gr_fail(diag, GR_E_INVALID,
                         "job %s has a launcher (process %d), and cannot have two; gradus logs -f "
                         "%s shows its output",
                         folder->name, message.status.launcher, folder->name);
    }
    if (status != GR_OK) {
        close(connection);
        return status;
    }
    *supervisor_out = gr_process_open(message.status.code);
    *connection_out = connection;
    return GR_OK;
}

gr_status gr_takeover_ask(const gr_job_folder *folder, int kind, int want,
                          gr_job_status *status_out, gr_diag *diag)
{
    gr_job_message message = {.kind = kind, .status = {.want = want}};
    int connection;
    gr_status status = connect_to(folder, &connection, diag);
    if (status == GR_OK) {
        const int patience_ms = kind == GR_JOB_SCALE ? ATTACH_MS : ASK_MS;
        status = exchange(folder, connection, &message, NULL, patience_ms, diag);
        close(connection);
    }
    if (status == GR_OK) {
        *status_out = message.status;
    }
    return status;
}

gr_status gr_takeover_find(const gr_job_folder *folder, gr_process *supervisor_out, gr_diag *diag)
{
    int connection;
    pid_t pid;
    uid_t uid;
    gr_status status = connect_to(folder, &connection, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_job_peer(connection, &pid, &uid) ? GR_OK : GR_E_AGAIN;
    *supervisor_out = gr_process_open(status == GR_OK ? pid : 0);
    close(connection);
    return status;
}
