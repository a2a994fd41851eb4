/* SPDX-License-Identifier: Apache-2.0 */

/* How a job of `gradus run` outlives it: its supervisor is a process of its own, and `gradus run`
 * is the first of its launchers. */

#include "cli/run.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/number.h"
#include "cli/attach.h"
#include "launch/process_tree.h"
#include "launch/signals.h"
#include "link/secret.h"

#include <dirent.h>
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
        const char *variable = gr_config_variable(environ, "GRADUS_OUTLIVE");
        bool by_variable = variable != NULL && strcmp(variable, text) == 0;
        return gr_fail(diag, GR_E_INVALID,
                       "%s must be a time such as 90s, 10min or 8h (at most a year), 0 or "
                       "forever, not \"%s\"",
                       by_variable ? "GRADUS_OUTLIVE" : "--outlive", text);
    }
    *outlive_us_out = value;
    return GR_OK;
}

/* ---- A job that the same line has started ---------------------------------------------------- */

/* The job of `loss` is gone on with, by another supervisor: with its name, and behind what it has
 * written. */
static gr_status continue_lost(gr_cli_run *run, const gr_attach_loss *loss, gr_diag *diag)
{
    const gr_job_record *before = &loss->record;
    run->options.name = gr_arena_strdup(&run->arena, loss->name);
    run->record.start_s = before->start_s;
    /* Who gives the line once more may do so any number of times. */
    run->record.attempt = before->attempt < before->restarts ? before->attempt + 1 : 1;
    run->again = run->record.attempt > 0;
    memcpy(run->record.run, before->run, sizeof run->record.run);
    return run->options.name != NULL ? GR_OK
                                     : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a name");
}

/* Nothing is there, or nothing in it. */
static bool is_gone(const char *folder)
{
    DIR *entries = opendir(folder);
    if (entries == NULL) {
        return errno == ENOENT;
    }
    int count = 0;
    while (count <= 2 && readdir(entries) != NULL) { /* "." and ".." */
        count++;
    }
    closedir(entries);
    return count <= 2;
}

/* Who has removed what the job had left, or changed its file or script since, wants another run.
 * Whoever has only lost a launcher wants the end, and finds both as they were. */
static bool is_outdated(const gr_cli_run *run, const gr_job_folder *folder)
{
    static const char then[] = "the job begins anew";
    char sentence[PATH_MAX + sizeof then + 64];
    gr_job_end end;
    if (gr_job_folder_state(folder, &end) != GR_JOB_ENDED) {
        return false;
    }
    uint64_t content = end.content != 0 ? gr_run_content(run) : 0;
    const char *output = end.output;
    if (content != 0 && content != end.content) {
        snprintf(sentence, sizeof sentence, "; %s was changed since it was read: %s",
                 run->job_path != NULL ? run->job_path : "a file that the command names", then);
    } else if (output[0] != '\0' && is_gone(output)) {
        snprintf(sentence, sizeof sentence, "; what it had left in %s is gone: %s", output, then);
    } else {
        return false;
    }
    gr_attach_print_end(folder, &end, sentence);
    return true;
}

/* True: *code_out is the exit code of this process, or GR_ATTACH_LOST. Without a name there may be
 * several, with launchers of their own: this one is another. */
static bool take_over(const gr_cli_run *run, const char *name, int *code_out,
                      gr_attach_loss *loss_out)
{
    gr_job_folder folder;
    gr_job_record record;
    gr_diag diag = {0};
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return false;
    }
    if (!gr_job_folder_record(&folder, &record) || record.identity != run->record.identity) {
        gr_job_folder_close(&folder);
        return false;
    }
    if (is_outdated(run, &folder)) {
        gr_job_folder_remove(&folder);
        gr_job_folder_close(&folder);
        return false;
    }
    bool taken = gr_attach_to(&folder, "; given once more, the same command line starts it again",
                              code_out, loss_out, &diag);
    if (!taken && run->options.name != NULL && gr_job_folder_open(name, &folder, NULL) == GR_OK) {
        gr_job_folder_close(&folder);
        *code_out = gr_cli_fail(GR_EXIT_INPUT, &diag);
        return true;
    }
    return taken;
}

static bool take_over_any(const gr_cli_run *run, int *code_out, gr_attach_loss *loss_out)
{
    enum { LISTED_MAX = 1024 };
    if (run->options.name != NULL) {
        return take_over(run, run->options.name, code_out, loss_out);
    }
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, NULL) : 0;
    bool taken = false;
    for (int i = 0; i < count && !taken; i++) {
        taken = take_over(run, names[i], code_out, loss_out);
    }
    free(names);
    return taken;
}

/* ---- The supervisor -------------------------------------------------------------------------- */

/* By the time, for people, and by chance: which run pushes to parameter servers. Those that are
 * begun again are the same run. */
static void name_run(char run_out[GR_JOB_RUN_BYTES])
{
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    uint8_t random[4] = {0};
    gr_diag diag;
    if (gmtime_r(&now, &utc) != NULL) {
        strftime(when, sizeof when, "%Y%m%d-%H%M%S", &utc);
    }
    gr_status status = gr_random_bytes(random, sizeof random, &diag);
    (void)status; /* then by the time and the process alone */
    snprintf(run_out, GR_JOB_RUN_BYTES, "%s-%d-%02x%02x%02x%02x", when, (int)getpid(), random[0],
             random[1], random[2], random[3]);
}

gr_status gr_run_publish(gr_cli_run *run, gr_diag *diag)
{
    run->record.restarts = run->options.restarts > 0 ? (int)run->options.restarts : 0;
    if (run->bound) {
        (void)prctl(PR_SET_PDEATHSIG, 0L, 0L, 0L, 0L);
        run->bound = false;
    }
    gr_status status =
        gr_supervisor_publish(run->supervisor, run->options.name, &run->record, diag);
    if (status != GR_OK && status != GR_E_INVALID && status != GR_E_CANCELLED) {
        gr_log_write(&run->log, GR_LOG_WARN, "run",
                     "%s; the job ends with gradus run, as with --outlive 0", diag->text);
        gr_diag_clear(diag);
        return GR_OK;
    }
    return status;
}

static ssize_t write_line(void *supervisor, const char *text, size_t size_bytes)
{
    gr_supervisor_print(supervisor, text, size_bytes);
    return (ssize_t)size_bytes;
}

/* What we write to stderr goes the way of the job's output, and so reaches a later launcher. */
static int supervise(gr_cli_run *run, const gr_supervisor_config *config,
                     int (*work)(gr_cli_run *run))
{
    /* Who looks at it later finds the end of a job that outlives its launcher. */
    const bool counts = run->job_path == NULL && config->outlive_us != 0;
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
    if (counts) {
        run->content = gr_run_content(run);
    }
    int code = work(run);
    stderr = terminal;
    fclose(lines);
    /* What has changed meanwhile the command may have written itself. */
    bool changed = counts && run->content != gr_run_content(run);
    gr_job_end end = {.code = code, .content = changed ? 0 : run->content};
    if (run->output != NULL && !is_gone(run->output)) {
        snprintf(end.output, sizeof end.output, "%s", run->output);
    }
    gr_supervisor_end(run->supervisor, &end);
    gr_supervisor_destroy(run->supervisor);
    run->supervisor = NULL;
    return code;
}

/* Nothing of the launcher's session reaches it: no signal of its terminal, and not its stdin.
 * Before its job can be found it ends with the launcher. */
static void settle(gr_cli_run *run, pid_t launcher)
{
    run->bound = run->record.attempt == 0;
    if (run->bound &&
        (prctl(PR_SET_PDEATHSIG, (long)SIGTERM, 0L, 0L, 0L) != 0 || getppid() != launcher)) {
        _exit(GR_EXIT_FAILED);
    }
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd >= 0) {
        (void)dup2(null_fd, STDIN_FILENO);
        close(null_fd);
    }
    (void)setsid();
    (void)prctl(PR_SET_NAME, "gradus-job", 0L, 0L, 0L);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* Starts the supervisor, and is its launcher. Returns in both. */
static int launch(gr_cli_run *run, gr_supervisor_config *config, int (*work)(gr_cli_run *run),
                  uint8_t **token, gr_attach_loss *loss_out)
{
    int ends[2];
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        fprintf(stderr, "gradus: the socket of the job cannot be made: %s\n", strerror(errno));
        return GR_EXIT_FAILED;
    }
    sigset_t before;
    gr_signals_hold(&before); /* none ends the launcher before it can hand it on */
    gr_join_show_token(*token);
    pid_t pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        close(ends[0]);
        settle(run, config->launcher);
        config->launcher_fd = ends[1];
        return supervise(run, config, work);
    }
    close(ends[1]);
    gr_secret_forget(*token);
    *token = gr_join_wipe_token(); /* for the next supervisor */
    if (pid < 0) {
        fprintf(stderr, "gradus: the job's process cannot be started: %s; see ulimit -u\n",
                strerror(errno));
        close(ends[0]);
        return GR_EXIT_FAILED;
    }
    gr_process supervisor = gr_process_open(pid);
    return gr_attach_follow(ends[0], &supervisor, true, run->record.run, loss_out);
}

/* Starts supervisors until one has ended with a word, from the job's first attempt on, or after
 * the loss that is told of. */
static int launch_until_over(gr_cli_run *run, int64_t outlive_us, gr_attach_loss *loss, bool lost,
                             int (*work)(gr_cli_run *run))
{
    enum { PATIENCE_US = 1000000, EARLY_MAX = 3 };
    const int64_t patience_us = run->options.orphans == GR_RUN_ORPHANS_FINISH
                                    ? run->options.grace_us + PATIENCE_US
                                    : PATIENCE_US;
    uint8_t *token = NULL;
    gr_diag diag = {0};
    int code, early_count = 0;
    (void)gr_process_tree_adopt(); /* what a supervisor leaves becomes ours */
    do {
        gr_supervisor_config config = {
            .launcher_fd = -1, .launcher = getpid(), .outlive_us = outlive_us};
        if (lost && continue_lost(run, loss, &diag) != GR_OK) {
            code = gr_cli_fail(GR_EXIT_FAILED, &diag);
            break;
        }
        *loss = (gr_attach_loss){.supervisor = 0};
        code = outlive_us == 0 ? supervise(run, &config, work)
                               : launch(run, &config, work, &token, loss);
        lost = code == GR_ATTACH_LOST;
        if (lost) {
            gr_process_tree_end(patience_us);
            gr_attach_find_lost(loss);
        }
        bool early = lost && !loss->begun;
        if (early && early_count++ < EARLY_MAX) {
            fprintf(stderr,
                    "gradus: the process that supervises the job (gradus-job, pid %d) was killed "
                    "before the job had begun; another one is started\n",
                    (int)loss->supervisor);
            lost = loss->found; /* else it had no folder yet */
        } else if (lost) {
            code = gr_attach_goes_on(loss, !early) ? GR_ATTACH_LOST : GR_EXIT_FAILED;
        }
    } while (code == GR_ATTACH_LOST);
    gr_secret_forget(token);
    return code;
}

int gr_run_supervise(gr_cli_run *run, int argc, char *const *argv, int (*work)(gr_cli_run *run))
{
    int64_t outlive_us = 0;
    int code = 0;
    gr_attach_loss loss = {.supervisor = 0};
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
    name_run(run->record.run);
    bool taken = take_over_any(run, &code, &loss);
    bool lost = taken && code == GR_ATTACH_LOST;
    if (lost && loss.found && !gr_attach_deliver(&loss)) {
        return GR_EXIT_FAILED;
    }
    if (lost && loss.found) { /* while nobody looked: who gives the line once more wants it */
        fprintf(stderr,
                "gradus: job %s is lost: the process that supervised it was killed; it is "
                "restarted\n",
                loss.name);
    } else if (lost) {
        gr_attach_find_lost(&loss);
        if (!gr_attach_goes_on(&loss, true)) {
            return GR_EXIT_FAILED;
        }
    }
    return taken && !lost ? code : launch_until_over(run, outlive_us, &loss, lost, work);
}
