/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus ls`, `gradus logs`, `gradus wait`, `gradus stop`: the jobs of this user on this host.
 * With the flags of a cluster they are those there (cluster.h). */

#include "base/fail.h"
#include "base/file.h"
#include "cli/cluster.h"
#include "launch/agent/output_log.h"
#include "launch/agent/takeover.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- ls -------------------------------------------------------------------------------------- */

enum { LISTED_MAX = 1024, WHEN_BYTES = 32, SHOWN_BYTES = 64 };

typedef struct ls_options {
    gr_cluster_flags cluster;
    bool json;
} ls_options;

static const gr_config_field ls_fields[] = {
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(ls_options, json),
     .help = "one JSON object a line"},
    GR_CLI_ROWS_CLUSTER(ls_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_ls_table = {.name = "ls",
                                     .title = "Flags of `gradus ls`",
                                     .fields = ls_fields,
                                     .struct_bytes = sizeof(ls_options)};

static void print_ls_usage(void)
{
    puts("usage: gradus ls [--json]\n"
         "       gradus ls -n NAMESPACE [--context NAME]\n\n"
         "Lists your jobs on this host: those that run, and those that have ended without a "
         "launcher\n"
         "to receive their exit code (gradus attach shows it).\n"
         "  running   a launcher is attached       detached  none is\n"
         "  ending    it was asked to end          busy      it does not answer at the moment\n"
         "  ended N   with that exit code          lost      the process that supervised it was\n"
         "                                                   killed, and its workers with it; the\n"
         "                                                   same command line goes on with it\n"
         "With the flags of a cluster: the jobs there that gradus submit has sent, and all\n"
         "GradusJobs, MPIJobs, PyTorchJobs and TFJobs.\n");
}

typedef struct job_line {
    gr_job_record record;
    char state[24];
    gr_job_status status;
    bool known; /* the status is */
} job_line;

static bool look_at(const char *name, job_line *line_out)
{
    gr_job_folder folder;
    gr_job_end end;
    *line_out = (job_line){.known = false};
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return false;
    }
    gr_job_state state = gr_job_folder_state(&folder, &end);
    const char *word = "lost";
    if (state == GR_JOB_RUNS) {
        gr_diag diag;
        gr_status status = gr_takeover_ask(&folder, GR_JOB_STATUS, 0, &line_out->status, &diag);
        line_out->known = status == GR_OK;
        word = status != GR_OK                  ? "busy"
               : line_out->status.ending        ? "ending"
               : line_out->status.launcher == 0 ? "detached"
                                                : "running";
    }
    snprintf(line_out->state, sizeof line_out->state, "%s", word);
    if (state == GR_JOB_ENDED) {
        snprintf(line_out->state, sizeof line_out->state, "ended %d", end.code);
    }
    /* The first that goes when a job is forgotten: without it the state says nothing. */
    bool there = gr_job_folder_record(&folder, &line_out->record);
    gr_job_folder_close(&folder);
    return there;
}

static void print_line(const char *name, const job_line *line)
{
    char when[WHEN_BYTES] = "", workers[16] = "-", step[24] = "-";
    time_t start_s = (time_t)line->record.start_s;
    struct tm local;
    if (localtime_r(&start_s, &local) != NULL) {
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    }
    if (line->known) {
        snprintf(workers, sizeof workers, "%d", line->status.workers);
    }
    if (line->status.step > 0) {
        snprintf(step, sizeof step, "%" PRIu64, line->status.step);
    }
    printf("%-16s %-10s %7s %10s  %-19s  %.*s\n", name, line->state, workers, step, when,
           SHOWN_BYTES, line->record.command);
}

static gr_status print_json(const char *name, const job_line *line, gr_diag *diag)
{
    return gr_cli_print_json(
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:I, s:s}", "name", name, "state", line->state,
                  "workers", line->known ? json_integer(line->status.workers) : json_null(), "step",
                  line->status.step > 0 ? json_integer((json_int_t)line->status.step) : json_null(),
                  "launcher",
                  line->status.launcher > 0 ? json_integer(line->status.launcher) : json_null(),
                  "since", (json_int_t)line->record.start_s, "command", line->record.command),
        diag);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int list(const gr_cli_line *line)
{
    const ls_options *options = line->options;
    gr_diag diag = {0};
    if (gr_cluster_is_meant(&options->cluster)) {
        return gr_cluster_ls(&options->cluster, options->json);
    }
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, &diag) : 0;
    if (diag.text[0] != '\0') {
        free(names);
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    if (count > 0) {
        qsort(names, (size_t)count, sizeof *names, compare_names);
    }
    if (!options->json && count > 0) {
        printf("%-16s %-10s %7s %10s  %-19s  %s\n", "name", "state", "workers", "step", "since",
               "command");
    }
    gr_status status = GR_OK;
    for (int i = 0; i < count && status == GR_OK; i++) {
        job_line found;
        if (!look_at(names[i], &found)) {
            continue; /* it has ended just now */
        }
        if (options->json) {
            status = print_json(names[i], &found, &diag);
        } else {
            print_line(names[i], &found);
        }
    }
    free(names);
    return status == GR_OK ? gr_cli_flush() : gr_cli_fail(GR_EXIT_FAILED, &diag);
}

const gr_cli_form gr_ls_form = {.table = &gr_ls_table, .usage = print_ls_usage, .work = list};

/* ---- A job that is lost ---------------------------------------------------------------------- */

enum { LOOK_MS = 50 };

static bool is_gradus(pid_t pid)
{
    char path[64];
    struct stat its, ours;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return pid > 0 && stat(path, &its) == 0 && stat("/proc/self/exe", &ours) == 0 &&
           its.st_dev == ours.st_dev && its.st_ino == ours.st_ino;
}

/* The supervisor was killed. A launcher that is there restarts the job, by another supervisor in a
 * new folder, or forgets it: this waits until it has done so. `known`: the record as it was before.
 * True: `folder` is that of the job that goes on. */
static bool find_restarted(gr_job_folder *folder, gr_job_record *known)
{
    gr_job_record now;
    gr_job_end end;
    bool is_launched = true;
    if (gr_job_folder_record(folder, &now)) {
        *known = now;
    }
    while (is_launched) {
        is_launched = is_gradus(known->launcher); /* it may have ended when we have looked */
        gr_job_folder again;
        bool found = gr_job_folder_open(folder->name, &again, NULL) == GR_OK;
        bool is_it = found && gr_job_folder_record(&again, &now) && now.identity == known->identity;
        if (is_it && gr_job_folder_state(&again, &end) != GR_JOB_LOST) {
            gr_job_folder_close(folder);
            *folder = again;
            *known = now;
            return true;
        }
        if (found) {
            gr_job_folder_close(&again);
        }
        if (is_launched) {
            (void)poll(NULL, 0, LOOK_MS);
        }
    }
    return false;
}

/* ---- logs ------------------------------------------------------------------------------------ */

typedef struct logs_options {
    gr_cluster_flags cluster;
    bool follow;
} logs_options;

static const gr_config_field logs_fields[] = {
    {.flag = "--follow",
     .short_flag = 'f',
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(logs_options, follow),
     .help = "and what it writes from now on, until it has ended"},
    GR_CLI_ROWS_CLUSTER(logs_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_logs_table = {.name = "logs",
                                       .title = "Flags of `gradus logs`",
                                       .fields = logs_fields,
                                       .struct_bytes = sizeof(logs_options)};

static void print_logs_usage(void)
{
    puts("usage: gradus logs JOB [-f]\n"
         "       gradus logs JOB [-f] -n NAMESPACE [--context NAME]\n\n"
         "Writes what a job of yours on this host has written, its last 8 MiB at least: stdout to\n"
         "stdout, stderr to stderr. It disturbs neither the job nor its launcher.\n"
         "Exit code: 0 done, 1 it cannot be written, 2 there is no such job.\n"
         "With the flags of a cluster: what the pods of a job there write, and with -f what goes\n"
         "wrong, until the job has ended: 0, or 1 if it failed.\n");
}

/* 0 or errno. */
static int copy(gr_output_reader *reader)
{
    char data[GR_OUTPUT_RECORD_BYTES];
    size_t size;
    int stream, error = 0;
    while (error == 0 && (size = gr_output_reader_next(reader, &stream, data)) > 0) {
        error = gr_fd_write(stream == 0 ? STDOUT_FILENO : STDERR_FILENO, data, size);
    }
    return error;
}

/* Until something is written in the folder; a supervisor that is killed writes nothing. */
static void wait_for_change(int watch_fd)
{
    enum { CHANGE_MS = 1000 };
    char events[4096];
    struct pollfd watched = {.fd = watch_fd, .events = POLLIN};
    (void)poll(&watched, 1, CHANGE_MS);
    while (read(watch_fd, events, sizeof events) > 0) {
    }
}

static int follow(const gr_job_folder *folder, gr_output_reader *reader, gr_job_state *state_out)
{
    char path[64];
    gr_job_end end;
    int error = 0, watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", folder->fd);
    (void)inotify_add_watch(watch_fd, path, IN_MODIFY | IN_CREATE | IN_DELETE | IN_MOVED_TO);
    *state_out = GR_JOB_RUNS;
    while (error == 0 && *state_out == GR_JOB_RUNS) {
        *state_out = gr_job_folder_state(folder, &end);
        error = copy(reader);
        if (error == 0 && *state_out == GR_JOB_RUNS) {
            wait_for_change(watch_fd);
        }
    }
    close(watch_fd);
    return error;
}

static int logs(const gr_cli_line *line)
{
    const logs_options *options = line->options;
    static const uint64_t begin[GR_JOB_STREAMS];
    gr_diag diag = {0};
    gr_job_folder folder;
    gr_output_reader reader;
    if (gr_cluster_is_meant(&options->cluster)) {
        return gr_cluster_logs(&options->cluster, line->words[0], options->follow);
    }
    gr_status status = gr_job_folder_open(line->words[0], &folder, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    gr_job_state state = GR_JOB_ENDED;
    gr_job_record record = {.launcher = 0};
    (void)gr_job_folder_record(&folder, &record);
    int error;
    do {
        gr_output_reader_open(&reader, folder.fd, begin);
        error = options->follow ? follow(&folder, &reader, &state) : copy(&reader);
        gr_output_reader_close(&reader);
    } while (error == 0 && state == GR_JOB_LOST && find_restarted(&folder, &record));
    gr_job_folder_close(&folder);
    if (error != 0) {
        fprintf(stderr, "gradus: the output cannot be written: %s\n", strerror(error));
        return GR_EXIT_FAILED;
    }
    return GR_EXIT_DONE;
}

const gr_cli_form gr_logs_form = {.table = &gr_logs_table,
                                  .usage = print_logs_usage,
                                  .words_min = 1,
                                  .words_max = 1,
                                  .words_missing = "needs the name of a job (gradus ls)",
                                  .work = logs};

/* ---- stop ------------------------------------------------------------------------------------ */

typedef struct stop_options {
    gr_cluster_flags cluster;
    bool now;
} stop_options;

static const gr_config_field stop_fields[] = {
    {.flag = "--now",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(stop_options, now),
     .help = "kill its workers, without a checkpoint"},
    GR_CLI_ROWS_CLUSTER(stop_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_stop_table = {.name = "stop",
                                       .title = "Flags of `gradus stop`",
                                       .fields = stop_fields,
                                       .struct_bytes = sizeof(stop_options)};

static void print_stop_usage(void)
{
    puts(
        "usage: gradus stop JOB [--now]\n"
        "       gradus stop JOB [--now] -n NAMESPACE [--context NAME]\n\n"
        "Ends a job of yours on this host as SIGTERM to its launcher does, and waits for its end:\n"
        "the workers of a job file write a checkpoint, and the job ends with exit code 75. One "
        "that\n"
        "is lost is forgotten: the same command line begins it, and goes on with nothing.\n"
        "Exit code: 0 it has ended, 1 it could not be asked, 2 there is no such job.\n"
        "With the flags of a cluster: deletes a job there, and all that belongs to it.\n");
}

/* One that is killed meanwhile has a deputy. */
static gr_status signal_supervisor(const gr_job_folder *folder, gr_process *supervisor_out,
                                   gr_diag *diag)
{
    for (;;) {
        gr_status status = gr_takeover_find(folder, supervisor_out, diag);
        if (status != GR_OK || gr_process_signal(supervisor_out, SIGTERM)) {
            return status;
        }
        gr_process_close(supervisor_out);
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* A deputy does; what only holds the lock is a process that cannot be killed. */
static bool listens(const gr_job_folder *folder)
{
    int fd = gr_job_folder_connect(folder);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

/* Returns when the job has ended: its supervisor, and the deputies that went on in its place. Those
 * that have not heard of a signal (`asked`) get one. */
static void wait_for_end(const gr_job_folder *folder, const gr_process *supervisor, bool asked)
{
    struct pollfd watched = {.fd = supervisor->fd, .events = POLLIN};
    gr_job_status answer;
    gr_job_end end;
    gr_diag diag = {0};
    if (supervisor->fd >= 0) {
        while (poll(&watched, 1, -1) < 0 && errno == EINTR) {
        }
    }
    while (gr_job_folder_state(folder, &end) == GR_JOB_RUNS && listens(folder)) {
        gr_process deputy = {.fd = -1};
        if (asked && gr_takeover_ask(folder, GR_JOB_STATUS, 0, &answer, &diag) == GR_OK &&
            !answer.ending && signal_supervisor(folder, &deputy, &diag) == GR_OK) {
            gr_process_close(&deputy);
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
}

static gr_status end_job(const gr_job_folder *folder, bool now, gr_diag *diag)
{
    gr_process supervisor = {.fd = -1};
    gr_job_status answer;
    gr_status status = signal_supervisor(folder, &supervisor, diag);
    if (status == GR_OK) {
        /* One that does not answer is between two starts, and SIGTERM is enough. */
        gr_status killed = now ? gr_takeover_ask(folder, GR_JOB_KILL, 0, &answer, diag) : GR_OK;
        (void)killed;
        wait_for_end(folder, &supervisor, true);
        gr_process_close(&supervisor);
    }
    return status == GR_E_AGAIN ? GR_OK : status;
}

static int stop(const gr_cli_line *line)
{
    const stop_options *options = line->options;
    gr_diag diag = {0};
    gr_job_folder folder;
    gr_job_end end;
    if (gr_cluster_is_meant(&options->cluster)) {
        return gr_cluster_stop(&options->cluster, line->words[0], options->now);
    }
    gr_status status = gr_job_folder_open(line->words[0], &folder, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    gr_job_record record;
    bool was_lost =
        gr_job_folder_state(&folder, &end) == GR_JOB_LOST && gr_job_folder_record(&folder, &record);
    if (was_lost) {
        gr_job_folder_remove(&folder);
    } else if (gr_job_folder_state(&folder, &end) == GR_JOB_RUNS) {
        status = end_job(&folder, options->now, &diag);
    }
    if (status == GR_OK && gr_job_folder_state(&folder, &end) == GR_JOB_ENDED) {
        printf("job %s has ended with exit code %d\n", folder.name, end.code);
    } else if (status == GR_OK) {
        printf("job %s %s\n", folder.name, was_lost ? "was lost, and is forgotten" : "has ended");
    }
    gr_job_folder_close(&folder);
    return status == GR_OK ? gr_cli_flush() : gr_cli_fail(GR_EXIT_FAILED, &diag);
}

const gr_cli_form gr_stop_form = {.table = &gr_stop_table,
                                  .usage = print_stop_usage,
                                  .words_min = 1,
                                  .words_max = 1,
                                  .words_missing = "needs the name of a job (gradus ls)",
                                  .work = stop};

/* ---- wait ------------------------------------------------------------------------------------ */

typedef struct wait_options {
    gr_cluster_flags cluster;
} wait_options;

static const gr_config_field wait_fields[] = {
    GR_CLI_ROWS_CLUSTER(wait_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_wait_table = {.name = "wait",
                                       .title = "Flags of `gradus wait`",
                                       .fields = wait_fields,
                                       .struct_bytes = sizeof(wait_options)};

static void print_wait_usage(void)
{
    puts("usage: gradus wait JOB\n"
         "       gradus wait JOB -n NAMESPACE [--context NAME]\n\n"
         "Waits until a job of yours on this host has ended, and disturbs neither it nor its\n"
         "launcher. Exit code: that of the job if no launcher receives it, else 0; 2 there is no\n"
         "such job.\n"
         "With the flags of a cluster: until a job there has ended: 0, or 1 if it failed.\n");
}

/* Until nothing of it runs: its supervisor, deputies, and agents that outlive them for a while. */
static gr_job_state wait_for_all(const gr_job_folder *folder, gr_job_end *end_out)
{
    gr_job_state state;
    while ((state = gr_job_folder_state(folder, end_out)) == GR_JOB_RUNS) {
        gr_process supervisor = {.fd = -1};
        gr_diag diag = {0};
        gr_status found = gr_takeover_find(folder, &supervisor, &diag);
        wait_for_end(folder, &supervisor, false); /* also of one that cannot be found */
        if (found == GR_OK) {
            gr_process_close(&supervisor);
        } else {
            (void)poll(NULL, 0, LOOK_MS);
        }
    }
    return state;
}

static int wait_for(const gr_cli_line *line)
{
    const wait_options *options = line->options;
    gr_diag diag = {0};
    gr_job_folder folder;
    gr_job_end end;
    if (gr_cluster_is_meant(&options->cluster)) {
        return gr_cluster_wait_for(&options->cluster, line->words[0]);
    }
    gr_status status = gr_job_folder_open(line->words[0], &folder, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    gr_job_state state;
    gr_job_record record = {.launcher = 0};
    (void)gr_job_folder_record(&folder, &record);
    do {
        state = wait_for_all(&folder, &end);
    } while (state == GR_JOB_LOST && find_restarted(&folder, &record));
    int code = state == GR_JOB_ENDED ? end.code : GR_EXIT_DONE;
    gr_job_folder again;
    if (state == GR_JOB_LOST && gr_job_folder_open(line->words[0], &again, NULL) == GR_OK) {
        gr_job_folder_close(&again); /* else its launcher was there, and has forgotten it */
        fprintf(stderr, "gradus: job %s is lost: the process that supervised it was killed\n",
                line->words[0]);
        code = GR_EXIT_FAILED;
    }
    gr_job_folder_close(&folder);
    return code;
}

const gr_cli_form gr_wait_form = {.table = &gr_wait_table,
                                  .usage = print_wait_usage,
                                  .words_min = 1,
                                  .words_max = 1,
                                  .words_missing = "needs the name of a job (gradus ls)",
                                  .work = wait_for};

/* ---- top ------------------------------------------------------------------------------------- */

typedef struct top_options {
    gr_cluster_flags cluster;
} top_options;

static const gr_config_field top_fields[] = {
    GR_CLI_ROWS_CLUSTER(top_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_top_table = {.name = "top",
                                      .title = "Flags of `gradus top`",
                                      .fields = top_fields,
                                      .struct_bytes = sizeof(top_options)};

static void print_top_usage(void)
{
    puts(
        "usage: gradus top JOB [-n NAMESPACE] [--context NAME]\n\n"
        "Prints what the pods of a job of a Kubernetes cluster use, where the cluster measures it\n"
        "(metrics-server).\n");
}

static int top(const gr_cli_line *line)
{
    const top_options *options = line->options;
    return gr_cluster_top(&options->cluster, line->words[0]);
}

const gr_cli_form gr_top_form = {.table = &gr_top_table,
                                 .usage = print_top_usage,
                                 .words_min = 1,
                                 .words_max = 1,
                                 .words_missing = "needs the name of a job (gradus ls -n NAME)",
                                 .work = top};
