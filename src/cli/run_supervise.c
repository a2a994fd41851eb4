/* SPDX-License-Identifier: Apache-2.0 */

/* How a job of `gradus run` outlives it: its supervisor is a process of its own, and `gradus run`
 * is the first of its launchers. */

#include "cli/run.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/number.h"
#include "cli/attach.h"
#include "launch/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static gr_status read_outlive(const char *text, int64_t *outlive_us_out, gr_diag *diag)
{
    static const gr_number_unit units[] = {{"us", 1},     {"ms", 1e3},    {"s", 1e6}, {"min", 60e6},
                                           {"h", 3600e6}, {"d", 86400e6}, {NULL, 0}};
    const int64_t most_us = (int64_t)366 * 86400 * 1000000;
    int64_t value = -1;
    if (strcmp(text, "forever") == 0) {
        *outlive_us_out = GR_OUTLIVE_FOREVER;
        return GR_OK;
    }
    if (gr_number_with_unit(text, units, 1e6, &value) != GR_NUMBER_OK || value < 0 ||
        value > most_us) {
        return gr_fail(diag, GR_E_INVALID,
                       "--outlive must be a time such as 90s, 10min or 8h (at most a year), 0 or "
                       "forever, not \"%s\"",
                       text);
    }
    *outlive_us_out = value;
    return GR_OK;
}

/* ---- A job that the same line has started ---------------------------------------------------- */

/* True: *code_out is the exit code of this process. Without a name there may be several, with
 * launchers of their own: this one is another. */
static bool take_over(const gr_cli_run *run, const char *name, int *code_out)
{
    gr_job_folder folder;
    gr_job_record record;
    gr_job_end end;
    gr_diag diag = {0};
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return false;
    }
    if (!gr_job_folder_record(&folder, &record) || record.identity != run->record.identity ||
        gr_job_folder_state(&folder, &end) == GR_JOB_LOST) {
        gr_job_folder_close(&folder);
        return false;
    }
    bool taken = gr_attach_to(&folder, code_out, &diag);
    if (!taken && run->options.name != NULL) {
        *code_out = gr_cli_fail(GR_EXIT_INPUT, &diag);
        return true;
    }
    return taken;
}

static bool take_over_any(const gr_cli_run *run, int *code_out)
{
    enum { LISTED_MAX = 1024 };
    if (run->options.name != NULL) {
        return take_over(run, run->options.name, code_out);
    }
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, NULL) : 0;
    bool taken = false;
    for (int i = 0; i < count && !taken; i++) {
        taken = take_over(run, names[i], code_out);
    }
    free(names);
    return taken;
}

/* ---- The supervisor -------------------------------------------------------------------------- */

gr_status gr_run_publish(gr_cli_run *run, gr_diag *diag)
{
    gr_status status =
        gr_supervisor_publish(run->supervisor, run->options.name, &run->record, diag);
    if (status != GR_OK && status != GR_E_INVALID) {
        gr_log_write(&run->log, GR_LOG_WARN, "run",
                     "%s; the job ends with gradus run, as with --outlive 0", diag->text);
        gr_diag_clear(diag);
        return GR_OK;
    }
    return status;
}

static ssize_t write_line(void *supervisor, const char *text, size_t size_bytes)
{
    gr_supervisor_say(supervisor, text, size_bytes);
    return (ssize_t)size_bytes;
}

/* What we write to stderr goes the way of the job's output, and so reaches a later launcher. */
static int supervise(gr_cli_run *run, const gr_supervisor_config *config,
                     int (*work)(gr_cli_run *run))
{
    FILE *const terminal = stderr;
    run->supervisor = gr_supervisor_create(config);
    FILE *lines =
        run->supervisor != NULL
            ? fopencookie(run->supervisor, "w", (cookie_io_functions_t){.write = write_line})
            : NULL;
    if (lines == NULL) {
        fputs("gradus: no memory for the job\n", stderr);
        gr_supervisor_destroy(run->supervisor);
        return GR_EXIT_FAILED;
    }
    setbuf(lines, NULL);
    stderr = lines;
    run->log.sink_arg = lines;
    int code = work(run);
    stderr = terminal;
    fclose(lines);
    gr_supervisor_end(run->supervisor, code);
    gr_supervisor_destroy(run->supervisor);
    run->supervisor = NULL;
    return code;
}

/* Nothing of the launcher's session reaches it: no signal of its terminal, and not its stdin. */
static void settle(void)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd >= 0) {
        (void)dup2(null_fd, STDIN_FILENO);
        close(null_fd);
    }
    (void)setsid();
    (void)prctl(PR_SET_NAME, "gradus-job", 0L, 0L, 0L);
    (void)signal(SIGPIPE, SIG_IGN);
}

int gr_run_supervise(gr_cli_run *run, int argc, char *const *argv, int (*work)(gr_cli_run *run))
{
    int64_t outlive_us = 0;
    int ends[2], code;
    gr_diag diag = {0};
    gr_status status = read_outlive(run->options.outlive, &outlive_us, &diag);
    if (status == GR_OK && run->options.name != NULL) {
        status = gr_job_name_check(run->options.name, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    run->record =
        (gr_job_record){.start_s = (int64_t)time(NULL), .identity = gr_job_identity(argc, argv)};
    gr_job_describe(argc, argv, run->record.command);
    if (take_over_any(run, &code)) {
        return code;
    }
    gr_supervisor_config config = {
        .launcher_fd = -1, .launcher = getpid(), .outlive_us = outlive_us};
    if (outlive_us == 0) {
        return supervise(run, &config, work);
    }
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fprintf(stderr, "gradus: the socket of the job cannot be made: %s\n", strerror(errno));
        return GR_EXIT_FAILED;
    }
    sigset_t before;
    gr_signals_hold(&before); /* none ends the launcher before it can hand it on */
    pid_t pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        close(ends[0]);
        settle();
        config.launcher_fd = ends[1];
        return supervise(run, &config, work);
    }
    close(ends[1]);
    gr_join_wipe_token(); /* the supervisor has it */
    if (pid < 0) {
        fprintf(stderr, "gradus: the job's process cannot be started: %s; see ulimit -u\n",
                strerror(errno));
        close(ends[0]);
        return GR_EXIT_FAILED;
    }
    gr_process supervisor = gr_process_open(pid);
    return gr_attach_follow(ends[0], &supervisor, true);
}
