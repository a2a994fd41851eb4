/* SPDX-License-Identifier: Apache-2.0 */

/* What the workers of `gradus run` get, their start, and all of it once more when nobody is left to
 * go on with. */

#include "cli/run.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/file.h"
#include "cli/timeline.h"
#include "launch/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int terminal_columns(int fd)
{
    struct winsize size;
    if (!isatty(fd)) {
        return 0;
    }
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static bool wants_color(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");
    return isatty(fd) && (no_color == NULL || no_color[0] == '\0') &&
           (kind == NULL || strcmp(kind, "dumb") != 0);
}

/* What each parameter server is told: nobody reaches it from outside if all are on this host. */
static char *server_document(const gr_cli_run *run)
{
    return gr_cli_server_document(run->options.servers, run->options.replicas > 0,
                                  gr_run_elsewhere(run) ? "*" : "127.0.0.1");
}

/* `later`: it is not the first attempt, so that what was done before can be gone on from. */
static int report_end(const gr_cli_run *run, gr_status status, const gr_launch_report *report,
                      bool later, const gr_diag *diag)
{
    bool untouched = later && status == GR_E_CANCELLED && report->step == 0;
    if (report->resumable || (untouched && run->job_path != NULL)) {
        fprintf(stderr, "gradus: %s; %s\n", diag->text,
                run->job_path != NULL ? "--resume goes on from the checkpoint, if there is one"
                                      : "the command says that it can go on");
        return GR_EXIT_RESUME;
    }
    fprintf(stderr, "gradus: %s\n%s%s", diag->text, report->tail, report->last);
    return status == GR_E_NOT_FOUND || status == GR_E_INVALID ? GR_EXIT_INPUT : GR_EXIT_FAILED;
}

enum { HOLD_PATIENCE_MS = 2000, HOLD_LOOK_MS = 20 };
enum { SET_OWN_MAX = 9, SET_MAX = SET_OWN_MAX + GR_EXPORT_SET_MAX };

/* What the workers find in their environment: `set` over it, `defaults` under it. */
static void surround(gr_cli_run *run, const char *timeline, const char *set[SET_MAX],
                     const char *defaults[SET_MAX])
{
    enum { JOIN_SLACK_S = 5 };
    const gr_run_options *options = &run->options;
    size_t set_count = 0, default_count = 0;
    for (; run->exported.set[set_count] != NULL; set_count++) {
        set[set_count] = run->exported.set[set_count];
    }
    set[set_count++] =
        gr_arena_printf(&run->arena, "GRADUS_TERMINAL_COLUMNS=%d", terminal_columns(STDOUT_FILENO));
    if (run->job_path != NULL) {
        set[set_count++] = "GRADUS_JOB_FD=0";
    }
    if (options->link != GR_RUN_LINK_OF_JOB) {
        set[set_count++] =
            gr_arena_printf(&run->arena, "GRADUS_LINK=%s", gr_run_link_choices[options->link]);
    }
    if (options->encrypt) {
        set[set_count++] = "GRADUS_ENCRYPT=yes";
    }
    if (run->inexact) {
        set[set_count++] = "GRADUS_EXACT=no";
    }
    if (options->threads > 0) {
        set[set_count++] =
            gr_arena_printf(&run->arena, "OMP_NUM_THREADS=%lld", (long long)options->threads);
    } else {
        defaults[default_count++] = "OMP_NUM_THREADS=1";
    }
    if (options->start_timeout_us > 0) {
        /* A little more than ours: we can say more about who is missing. */
        defaults[default_count++] =
            gr_arena_printf(&run->arena, "GRADUS_JOIN_TIMEOUT=%llds",
                            (long long)(options->start_timeout_us / 1000000 + JOIN_SLACK_S));
    }
    if (options->fence_us > 0) {
        set[set_count++] = gr_arena_printf(&run->arena, "GRADUS_STALL_FAIL=%lldus",
                                           (long long)gr_launch_stall_us(options->fence_us));
    }
    if (run->hosts.count > 0) {
        /* Ranks give up a host when the launcher does. */
        defaults[default_count++] =
            gr_arena_printf(&run->arena, "GRADUS_PEER_TIMEOUT=%lldms",
                            (long long)(options->where.host_timeout_us / 1000));
    }
    if (timeline != NULL) {
        set[set_count++] = gr_arena_printf(&run->arena, "GRADUS_TIMELINE=%s", timeline);
    }
    defaults[default_count++] = "PYTHONUNBUFFERED=1"; /* lines when they are written */
    defaults[default_count++] = gr_arena_printf(&run->arena, "GRADUS_RUN=%s", run->record.run);
}

/* Those of a time that is past have happened. */
static void drop_past_faults(gr_cli_run *run, int64_t elapsed_us)
{
    int left = 0;
    for (int i = 0; i < run->fault_count; i++) {
        gr_launch_fault fault = run->faults[i];
        if (fault.at_us > elapsed_us || fault.every_us > 0) {
            fault.at_us -= fault.every_us > 0 ? 0 : elapsed_us;
            run->faults[left++] = fault;
        }
    }
    run->fault_count = left;
}

static void report_restart(const gr_cli_run *run)
{
    const gr_job_record *record = &run->record;
    char times[64] = "";
    if (record->attempt <= record->restarts) {
        snprintf(times, sizeof times, " (%d of at most %d times, --restarts)", record->attempt,
                 record->restarts);
    }
    gr_log_write(&run->log, GR_LOG_WARN, "run", "all workers are restarted%s%s%s", times,
                 run->resume != NULL     ? "; the job goes on from "
                 : run->job_path != NULL ? "; the job begins from its first step"
                                         : "",
                 run->resume != NULL ? run->resume : "");
}

/* Makes ready what is to be restarted. */
static gr_status prepare_restart(gr_cli_run *run, gr_launch_config *config,
                                 const gr_launch_report *report, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    run->past_step = report->step;
    config->crash = report->crash;
    config->attempt = ++run->record.attempt;
    gr_supervisor_note_attempt(run->supervisor, &run->record);
    gr_status status = run->job_path != NULL ? gr_run_read_job_again(run, diag) : GR_OK;
    if (status == GR_OK && run->acceptor != NULL) {
        gr_log_write(&run->log, GR_LOG_WARN, "run",
                     "agents with slots for %lld workers are waited for, to restart with them",
                     (long long)options->workers);
    }
    if (status == GR_OK) {
        status = gr_run_gather_hosts(run, (int)options->workers, diag);
    }
    if (status == GR_OK && run->hosts.count > 0) {
        status = gr_host_list_deal(&run->hosts, (int)options->workers, diag);
    }
    if (status == GR_OK) {
        report_restart(run);
    }
    return status;
}

/* Somebody wants an end while nobody is left, or nobody is there again. */
static int end_between(const gr_cli_run *run, int signal_number)
{
    fprintf(stderr, "gradus: ended by %s before all workers were restarted; %s\n",
            gr_signals_name(signal_number),
            run->job_path != NULL ? "--resume goes on from the newest checkpoint, if there is one"
                                  : "the command can be started again");
    return GR_EXIT_RESUME;
}

/* Runs it, and runs it again when nobody is left to go on with. */
static int run_again_and_again(gr_cli_run *run, gr_launch_config *config)
{
    gr_launch_report report;
    gr_diag diag;
    for (;;) {
        int64_t begin_us = gr_now_ns() / 1000;
        config->fault_count = run->fault_count;
        config->command.document = run->document;
        gr_diag_clear(&diag);
        gr_status status = gr_launch_run(config, &report, &diag);
        for (int i = 0; i < run->hosts.count; i++) {
            run->hosts.at[i].tls = NULL; /* the connection was taken */
        }
        if (status == GR_OK) {
            return GR_EXIT_DONE;
        }
        int code = report_end(run, status, &report, config->attempt > 0, &diag);
        if (config->attempt >= config->restarts || !report.again) {
            return config->attempt > 0 && code == GR_EXIT_INPUT ? GR_EXIT_FAILED : code;
        }
        drop_past_faults(run, gr_now_ns() / 1000 - begin_us);
        status = report.signal_number == 0 ? prepare_restart(run, config, &report, &diag)
                                           : GR_E_CANCELLED;
        if (status == GR_E_CANCELLED) {
            return end_between(run, report.signal_number != 0 ? report.signal_number
                                                              : gr_signals_waiting());
        }
        if (status != GR_OK) {
            return gr_cli_fail(GR_EXIT_FAILED, &diag);
        }
        (void)gr_cli_begin_timeline(run->options.timeline, gr_launch_slots(config), &run->arena);
    }
}

/* What is started for each worker. NULL: no memory. */
static char *const *worker_words(gr_cli_run *run)
{
    static char *const of_job[] = {"gradus", "worker", NULL};
    if (run->job_path != NULL || run->roles.tasks == 0) {
        return run->job_path != NULL ? of_job : run->command;
    }
    size_t count = 0, beside = 3;
    while (run->command[count] != NULL) {
        count++;
    }
    const char **words = gr_arena_alloc(&run->arena, (beside + count + 1) * sizeof *words);
    if (words != NULL) {
        words[0] = "gradus";
        words[1] = "role";
        words[2] = run->options.roles;
        memcpy(words + beside, run->command, count * sizeof *words);
        words[beside + count] = NULL;
    }
    return (char *const *)(uintptr_t)words;
}

static int attempt(gr_cli_run *run)
{
    const gr_run_options *options = &run->options;
    const char *set[SET_MAX] = {NULL}, *defaults[SET_MAX] = {NULL};
    static char *const server[] = {"gradus", "server", NULL};
    char *const *words = worker_words(run);
    char *document = server_document(run);
    bool own = words != run->command; /* this program, with these words */
    if (words == NULL || document == NULL) {
        free(document);
        gr_diag diag = {0};
        return gr_cli_refuse(gr_fail(&diag, GR_E_NO_MEMORY, "no memory for the command"), &diag);
    }
    const char *timeline =
        gr_cli_begin_timeline(options->timeline, GR_LAUNCH_WORKERS_MAX, &run->arena);
    surround(run, timeline, set, defaults);
    gr_launch_config config = {
        .workers = (int)options->workers,
        .workers_min = (int)options->workers_min,
        .workers_max = (int)options->workers_max,
        .spares = (int)options->spares,
        .restarts = run->record.restarts,
        .attempt = run->record.attempt,
        .cores = &run->cores,
        .bind = options->bind,
        .encrypt = options->encrypt,
        .restrict_cores = options->cores != NULL,
        .hosts = run->hosts.count > 0 ? &run->hosts : NULL,
        .helpers = run->helpers,
        .all_join = own,
        .zero_is_done = run->job_path != NULL,
        .start_timeout_us = options->start_timeout_us,
        .grace_us = options->grace_us,
        .orphan_grace_us = options->orphans == GR_RUN_ORPHANS_FINISH ? options->grace_us : 0,
        .fence_us = options->fence_us,
        .faults = run->faults,
        .command = {.argv = words,
                    .file = own ? "/proc/self/exe" : NULL,
                    .environment = environ,
                    .exported = run->exported.environment,
                    .set = set,
                    .defaults = defaults},
        .server = {.count = (int)options->servers,
                   .argv = server,
                   .document = document,
                   .spare = options->replicas > 0,
                   .file = options->servers_file,
                   .run = run->record.run},
        .remote = {.cores_text = options->cores,
                   .program = run->program,
                   .placement = run->placement,
                   .ssh_port = (int)options->where.ssh_port,
                   .ssh_identity = options->where.ssh_identity,
                   .host_timeout_us = options->where.host_timeout_us},
        .discovery = {.acceptor = run->acceptor,
                      .script = options->where.discovery,
                      .slots = (int)options->where.slots_per_host,
                      .pause_us = options->where.discovery_us},
        .output = {.out_fd = STDOUT_FILENO,
                   .err_fd = STDERR_FILENO,
                   .quiet = options->quiet,
                   .prefix = options->prefix,
                   .raw_rank0 = run->job_path != NULL,
                   .timestamps = options->timestamps,
                   .color_out = wants_color(STDOUT_FILENO),
                   .color_err = wants_color(STDERR_FILENO),
                   .log_dir = options->log_dir},
        .supervisor = run->supervisor,
        .log = &run->log};
    if (run->again) {
        drop_past_faults(run, ((int64_t)time(NULL) - run->record.start_s) * 1000000);
        report_restart(run);
    }
    gr_signals_hold(NULL); /* who asks for an end between two attempts is heard as well */
    int code = run_again_and_again(run, &config);
    free(document);
    if (timeline != NULL) {
        gr_cli_merge_timeline(timeline, gr_launch_slots(&config));
    }
    return code;
}

/* Two jobs would mix what they write. The folder itself is locked: nothing more lies in it. Where
 * the file system knows no such locks (NFS) nothing is held. */
static gr_status hold_output(const gr_cli_run *run, int *fd_out, gr_diag *diag)
{
    const int64_t deadline_ns = gr_now_ns() + HOLD_PATIENCE_MS * INT64_C(1000000);
    *fd_out = -1;
    if (run->job_path == NULL || run->output == NULL) {
        return GR_OK;
    }
    gr_status status = gr_dir_create(run->output, diag);
    int fd = status == GR_OK ? open(run->output, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (gr_now_ns() >= deadline_ns) {
            close(fd);
            return gr_fail(diag, GR_E_INVALID,
                           "another run writes into %s; wait for its end (gradus ls shows the jobs "
                           "that run, gradus attach their output), or choose another folder "
                           "(output, --output)",
                           run->output);
        }
        (void)poll(NULL, 0, HOLD_LOOK_MS); /* it may be about to end */
    }
    *fd_out = fd;
    return status;
}

int gr_run_attempts(gr_cli_run *run)
{
    gr_diag diag = {0};
    int output_fd = -1;
    const char *timeline = run->options.timeline;
    bool traces = timeline != NULL && timeline[0] != '\0';
    gr_status status = traces ? gr_cli_check_target(timeline, &diag) : GR_OK;
    if (status == GR_OK) {
        status = hold_output(run, &output_fd, &diag);
    }
    if (status != GR_OK && run->again) { /* it had begun, and what is left of it may hold both */
        status = GR_OK;
    }
    int code = status == GR_OK ? attempt(run) : gr_cli_refuse(status, &diag);
    if (output_fd >= 0) {
        close(output_fd);
    }
    return code;
}
