/* SPDX-License-Identifier: Apache-2.0 */

/* What `gradus run job.yaml` starts once for each rank: the job comes as a document. */

#include "base/fail.h"
#include "cli/cli.h"
#include "cli/run.h"
#include "cli/worker_page.h"
#include "launch/launch.h"
#include "train/strategy/strategy.h"
#include "train/train.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct worker_options {
    int64_t document_fd, workers;
    const char *document, *job, *output, *page;
    bool resume;
} worker_options;

static const gr_config_field worker_fields[] = {
    {.env = "GRADUS_JOB_FD",
     .type = GR_CONFIG_INT,
     .offset = offsetof(worker_options, document_fd),
     .default_text = "0",
     .min = 0,
     .max = INT_MAX,
     .help = "the descriptor from which a worker reads its job document"},
    {.env = "GRADUS_JOB",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, document),
     .help = "the job document itself, in place of the descriptor"},
    {.env = "GRADUS_PROGRESS_PAGE",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, page),
     .value_name = "HOST:PORT/PATH",
     .help = "where a worker shows how far it has come, as JSON by HTTP to whoever knows the path; "
             ":PORT/PATH: at all addresses; unset: nowhere. The operator sets it"},
    {.flag = "--job",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, job),
     .value_name = "FILE",
     .help = "a job file in place of the document, as the workers of a GradusJob have it: the job "
             "ends early only when all workers are asked to"},
    {.flag = "--workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(worker_options, workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "how many workers the job of --job has; otherwise 1"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, output),
     .value_name = "FOLDER",
     .help = "for the weights and metrics of the job of --job, in place of the folder that it "
             "names"},
    {.flag = "--resume",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(worker_options, resume),
     .help = "go on from the newest checkpoint, if there is one; gradus run names it in the "
             "document"},
    {.key = NULL},
};

const gr_config_table gr_worker_table = {
    .name = "worker",
    .title = "gradus worker: one worker of a job document",
    .fields = worker_fields,
    .struct_bytes = sizeof(worker_options),
};

static gr_status read_job(const worker_options *options, gr_job **job_out, gr_diag *diag)
{
    const gr_job_overrides overrides = {
        .run = {.workers = options->workers > 0 ? options->workers : 1, .all_stop = true},
        .output = options->output};
    const char *given = options->document;
    char *text = NULL;
    size_t size = given != NULL ? strlen(given) : 0;
    if (options->job != NULL) {
        gr_status parsed = gr_job_parse(options->job, &overrides, job_out, diag);
        return parsed == GR_OK ? gr_job_resolve(*job_out, diag) : parsed;
    }
    if (options->workers > 0 || options->output != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "worker: %s is for a job file (--job); a job document says it itself",
                       options->workers > 0 ? "--workers" : "--output");
    }
    gr_status status = given != NULL
                           ? GR_OK
                           : gr_cli_read_document("job document", "GRADUS_JOB_FD",
                                                  (int)options->document_fd, &text, &size, diag);
    if (status == GR_OK) {
        status = gr_job_parse_document(given != NULL ? given : text, size, job_out, diag);
    }
    free(text);
    return status == GR_OK ? gr_job_resolve(*job_out, diag) : status;
}

/* Who failed only since another one did says so by its exit code, so that the launcher looks for
 * the other one. NaN or infinity is found by all ranks together: rank 0 speaks for them. */
static int fail(const gr_job *job, const gr_comm *comm, gr_status status, const gr_diag *diag)
{
    bool together = status == GR_E_NOT_FINITE && comm != NULL && gr_comm_rank(comm) != 0;
    if (together) {
        return GR_LAUNCH_EXIT_PEER;
    }
    gr_cli_fail(GR_EXIT_FAILED, diag);
    /* The operator may hear of a lost server later. A launcher knows. */
    bool by_server = job->strategy->needs_servers && job->run.all_stop && status == GR_E_IO &&
                     diag->peer_rank >= 0;
    /* The others did not come. A launcher has seen why, an operator may try again. */
    bool by_absence = job->run.all_stop && comm == NULL && status == GR_E_TIMEOUT;
    return by_server || by_absence || gr_fault_of_peer(status) ? GR_LAUNCH_EXIT_PEER
                                                               : GR_EXIT_FAILED;
}

/* The training ends after a whole step, with a checkpoint: signals wait until they are asked for.
 * Ctrl-C ends at once where nobody wants checkpoints. */
static sigset_t signals_to_hold(const gr_job *job)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    if (gr_job_writes_checkpoints(job)) {
        sigaddset(&held, SIGINT);
    }
    return held;
}

static void hold_signals(void *held)
{
    (void)pthread_sigmask(SIG_BLOCK, held, NULL);
}

static bool is_asked_to_stop(void *stop_arg)
{
    const sigset_t *held = stop_arg;
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           ((sigismember(held, SIGTERM) == 1 && sigismember(&pending, SIGTERM) == 1) ||
            (sigismember(held, SIGINT) == 1 && sigismember(&pending, SIGINT) == 1));
}

/* NULL: nobody wants it, or it cannot be shown, which is no reason not to train. */
static gr_worker_page *open_page(const char *where, const gr_log *log)
{
    gr_worker_page *page = NULL;
    gr_diag diag = {0};
    if (where != NULL && where[0] != '\0' && gr_worker_page_open(where, &page, &diag) != GR_OK) {
        gr_log_write(log, GR_LOG_WARN, "progress", "nobody sees how far the training has come: %s",
                     diag.text);
    }
    return page;
}

/* The job runs already. */
static bool is_joining(void)
{
    return getenv("GRADUS_JOINING") != NULL;
}

static gr_status train(gr_job *job, gr_comm **comm, const char *page_where, gr_arena *arena,
                       gr_diag *diag)
{
    gr_chaos chaos = {.count = 0};
    /* The launcher knows how many servers there are. */
    gr_status status = job->run.chaos != NULL ? gr_chaos_parse(job->run.chaos, job->workers,
                                                               INT64_MAX, arena, &chaos, diag)
                                              : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    const gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    sigset_t held = signals_to_hold(job);
    bool joining = is_joining();
    if (joining) {
        hold_signals(&held); /* what others do ends its waiting: they stop, and it is dismissed */
    }
    gr_worker_page *page = open_page(page_where, &log);
    const gr_train_options training = {.style = job->run.json ? GR_REPORT_JSON : GR_REPORT_AUTO,
                                       .out = stdout,
                                       .log = &log,
                                       .resume = job->run.resume,
                                       .stop = is_asked_to_stop,
                                       .stop_arg = &held,
                                       .joined = hold_signals,
                                       .joined_arg = &held,
                                       .progress = page != NULL ? gr_worker_page_update : NULL,
                                       .progress_arg = page,
                                       .chaos = &chaos,
                                       .chaos_after = (uint64_t)job->run.chaos_after,
                                       .joining = joining};
    status = gr_train_run(job, comm, &training, diag);
    gr_worker_page_close(page);
    return status;
}

static void print_usage(void)
{
    puts("usage: gradus worker [--resume] < job.json\n"
         "       gradus worker [--resume] --job job.yaml --workers N\n\n"
         "What gradus run starts for each rank of a job: reads the job document that\n"
         "gradus run --dry-run --json job.yaml prints, and its place among the ranks from "
         "GRADUS_RANK\n"
         "and the other variables.\n");
}

/* Whoever joins gets the state from the others: that there is no checkpoint yet, only those that
 * begin tell. */
static gr_status find_checkpoint(gr_job *job, gr_arena *arena, gr_diag *diag)
{
    const gr_log log = {.level = is_joining() ? GR_LOG_ERROR : GR_LOG_WARN,
                        .sink = gr_log_to_file,
                        .sink_arg = stderr};
    return gr_run_find_checkpoint(job, &log, arena, diag);
}

static int work(const gr_cli_line *line)
{
    gr_diag diag = {0};
    gr_comm *comm = NULL; /* made when everything else is: nobody waits for what it needs */
    int code = GR_EXIT_DONE;
    const worker_options *options = line->options;
    gr_job *job = NULL;
    gr_status status = read_job(options, &job, &diag);
    if (status != GR_OK) {
        gr_job_close(job);
        return gr_cli_refuse(status, &diag);
    }
    status = gr_job_bind(job, &diag);
    if (status == GR_OK && options->resume) {
        status = find_checkpoint(job, line->arena, &diag);
    }
    if (status == GR_OK) {
        status = train(job, &comm, options->page, line->arena, &diag);
    }
    if (status == GR_E_CANCELLED) {
        code = GR_LAUNCH_EXIT_RESUME;
    } else if (status != GR_OK) {
        code = fail(job, comm, status, &diag);
    }
    gr_comm_destroy(comm);
    gr_job_close(job);
    return code != GR_EXIT_DONE ? code : gr_cli_flush();
}

const gr_cli_form gr_worker_form = {.table = &gr_worker_table, .usage = print_usage, .work = work};
