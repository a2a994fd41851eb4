/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus attach`, and what every launcher does whose job has a process of its own. */

#include "cli/attach.h"

#include "base/fail.h"
#include "base/file.h"
#include "launch/agent/output_log.h"
#include "launch/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Following ------------------------------------------------------------------------------- */

/* The supervisor has gone without a word. What has killed our child before it looked after signals
 * was meant for us. */
static int report_loss(const gr_process *supervisor, bool child)
{
    int status = 0;
    pid_t ended = child ? waitpid(supervisor->pid, &status, 0) : -1;
    if (ended > 0 && WIFEXITED(status)) {
        return WEXITSTATUS(status);
    }
    int number = ended > 0 ? WTERMSIG(status) : 0;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
        sigset_t none;
        sigemptyset(&none);
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
    }
    fprintf(stderr,
            "gradus: the process that supervises the job (gradus-job, pid %d) was killed, and the "
            "job with it\n",
            (int)supervisor->pid);
    return GR_EXIT_FAILED;
}

static int report_leaving(void)
{
    fputs("gradus: the terminal is gone; the job goes on without a launcher (gradus ls, attach)\n",
          stderr);
    return GR_EXIT_RESUME;
}

/* -1: the job goes on. */
static int take_message(int connection, const gr_process *supervisor, bool child)
{
    gr_job_message message;
    int error = gr_job_receive(connection, &message, NULL);
    if (error == 0 && message.kind == GR_JOB_END) {
        const gr_job_message received = {.kind = GR_JOB_RECEIVED};
        (void)gr_job_send(connection, &received, NULL);
        return message.status.code;
    }
    if (error == 0 && message.kind == GR_JOB_DROPPED) {
        return report_leaving();
    }
    return error == 0 || error == EAGAIN ? -1 : report_loss(supervisor, child);
}

int gr_attach_follow(int connection, gr_process *supervisor, bool child)
{
    gr_signals_hold(NULL);
    struct pollfd watched[2] = {{.fd = connection, .events = POLLIN},
                                {.fd = gr_signals_open(), .events = POLLIN}};
    int code = -1;
    while (code < 0) {
        if (poll(watched, 2, -1) < 0) {
            continue; /* EINTR */
        }
        if (watched[0].revents != 0) {
            code = take_message(connection, supervisor, child);
        } else if (watched[1].revents != 0) {
            int signal_number = gr_signals_take(watched[1].fd);
            if (signal_number == SIGHUP) {
                code = report_leaving();
            } else if (signal_number != 0) {
                gr_process_signal(supervisor, signal_number);
            }
        }
    }
    close(watched[1].fd);
    close(connection);
    gr_process_close(supervisor);
    return code;
}

/* ---- A job that is there --------------------------------------------------------------------- */

/* What no launcher has written, and the exit code; with that the job is over. */
static int deliver(const gr_job_folder *folder, const gr_job_end *end)
{
    char data[GR_OUTPUT_RECORD_BYTES], when[32] = "";
    gr_output_reader reader;
    size_t size;
    int stream, error = 0;
    gr_output_reader_open(&reader, folder->fd, end->delivered);
    while (error == 0 && (size = gr_output_reader_next(&reader, &stream, data)) > 0) {
        error = gr_fd_write(stream == 0 ? STDOUT_FILENO : STDERR_FILENO, data, size);
    }
    gr_output_reader_close(&reader);
    if (error != 0) {
        fprintf(stderr, "gradus: the output of job %s cannot be written: %s\n", folder->name,
                strerror(error));
        return GR_EXIT_FAILED;
    }
    time_t end_s = (time_t)end->end_s;
    struct tm local;
    if (localtime_r(&end_s, &local) != NULL) {
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    }
    fprintf(stderr, "gradus: job %s ended at %s with exit code %d, without a launcher\n",
            folder->name, when, end->code);
    gr_job_folder_remove(folder);
    return end->code;
}

/* GR_E_AGAIN: it is about to end. */
static gr_status attach_once(gr_job_folder *folder, int *code_out, int *launcher_out, gr_diag *diag)
{
    gr_job_end end;
    gr_job_record record;
    gr_process supervisor;
    int connection;
    const gr_job_state state = gr_job_folder_state(folder, &end);
    if (state == GR_JOB_ENDED) {
        *code_out = deliver(folder, &end);
        return GR_OK;
    }
    if (state == GR_JOB_LOST) {
        return gr_fail(diag, GR_E_PEER_LOST,
                       gr_job_folder_record(folder, &record)
                           ? "job %s is over: the process that supervised it was killed, and its "
                             "workers with it"
                           : "job %s has ended, and its launcher has the exit code",
                       folder->name);
    }
    sigset_t before;
    gr_signals_hold(&before); /* whoever is told of the new launcher may send one to it */
    gr_status status = gr_takeover(folder, &connection, &supervisor, launcher_out, diag);
    if (status == GR_OK) {
        gr_job_folder_close(folder);
        *code_out = gr_attach_follow(connection, &supervisor, false);
    } else {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
    }
    return status;
}

bool gr_attach_to(gr_job_folder *folder, int *code_out, gr_diag *diag)
{
    enum { TRIES = 1000, PAUSE_MS = 10 };
    int launcher = 0;
    gr_status status = attach_once(folder, code_out, &launcher, diag);
    for (int i = 0; i < TRIES && status == GR_E_AGAIN; i++) {
        (void)poll(NULL, 0, PAUSE_MS);
        status = attach_once(folder, code_out, &launcher, diag);
    }
    if (status == GR_E_AGAIN) {
        (void)gr_fail(diag, status, "job %s neither answers nor ends", folder->name);
    }
    if (status != GR_OK && launcher == 0) {
        *code_out = gr_cli_fail(GR_EXIT_FAILED, diag);
    }
    gr_job_folder_close(folder);
    return launcher == 0;
}

/* ---- The verb -------------------------------------------------------------------------------- */

typedef struct attach_options {
    char none;
} attach_options;

static const gr_config_field attach_fields[] = {{.key = NULL}};

static const gr_config_table attach_table = {.name = "attach",
                                             .title = "Flags of `gradus attach`",
                                             .fields = attach_fields,
                                             .struct_bytes = sizeof(attach_options)};

static void print_usage(void)
{
    puts("usage: gradus attach JOB\n\n"
         "Becomes the launcher of a job of yours on this host whose own launcher is gone\n"
         "(gradus ls lists them): shows what the job has written since, and what it writes, hands\n"
         "Ctrl-C and SIGTERM to its workers, and ends with its exit code. Of a job that has ended\n"
         "meanwhile it shows the rest and the exit code, once.\n"
         "Exit code: that of the job; 1 the job was killed, 2 there is no such job, or it has a\n"
         "launcher, 75 this terminal is gone.\n");
}

static int attach(const gr_cli_line *line)
{
    gr_diag diag = {0};
    gr_job_folder folder;
    int code;
    gr_status status = gr_job_folder_open(line->words[0], &folder, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    return gr_attach_to(&folder, &code, &diag) ? code : gr_cli_fail(GR_EXIT_INPUT, &diag);
}

const gr_cli_form gr_attach_form = {.table = &attach_table,
                                    .usage = print_usage,
                                    .words_min = 1,
                                    .words_max = 1,
                                    .words_missing = "needs the name of a job (gradus ls)",
                                    .work = attach};
