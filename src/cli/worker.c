/* SPDX-License-Identifier: Apache-2.0 */

/* What `gradus run job.yaml` starts once for each rank. Not meant to be typed. */

#include "base/fail.h"
#include "cli/cli.h"
#include "launch/launch.h"
#include "train/train.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct worker_options {
    bool json;
    const char *output;
    const char *checkpoint_every, *checkpoint_to;
    const char *resume, *chaos;
    const char *const *set;
    int64_t workers, shards, chaos_after;
} worker_options;

static const gr_config_field worker_fields[] = {
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(worker_options, json),
     .help = "report as JSON, one object a line"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, output),
     .value_name = "DIR",
     .help = "folder for weights and metrics"},
    {.flag = "--checkpoint-every",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, checkpoint_every),
     .help = "as of run"},
    {.flag = "--checkpoint-to",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, checkpoint_to),
     .help = "as of run"},
    {.flag = "--resume",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, resume),
     .help = "the checkpoint to go on from"},
    {.flag = "--set",
     .type = GR_CONFIG_LIST,
     .offset = offsetof(worker_options, set),
     .help = "as of run"},
    {.flag = "--workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(worker_options, workers),
     .help = "with how many the job was started"},
    {.flag = "--shards",
     .type = GR_CONFIG_INT,
     .offset = offsetof(worker_options, shards),
     .help = "its shards, where the job says none"},
    {.flag = "--chaos",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(worker_options, chaos),
     .help = "as of run"},
    {.flag = "--chaos-after",
     .type = GR_CONFIG_INT,
     .offset = offsetof(worker_options, chaos_after),
     .help = "faults of steps up to this one have happened"},
    {.key = NULL},
};

static const gr_config_table worker_table = {.name = "worker",
                                             .title = "One worker of a native job",
                                             .fields = worker_fields,
                                             .struct_bytes = sizeof(worker_options)};

/* Who failed only since another one did says so by its exit code, so that the launcher looks for
 * the other one. NaN or infinity is found by all ranks together: rank 0 speaks for them. */
static int fail(const gr_comm *comm, gr_status status, const gr_diag *diag)
{
    bool together = status == GR_E_NOT_FINITE && comm != NULL && gr_comm_rank(comm) != 0;
    if (together) {
        return GR_LAUNCH_EXIT_PEER;
    }
    gr_cli_fail(GR_EXIT_FAILED, diag);
    return gr_fault_of_peer(status) ? GR_LAUNCH_EXIT_PEER : GR_EXIT_FAILED;
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

static gr_status train(const worker_options *options, const char *path, gr_comm **comm,
                       gr_arena *arena, gr_diag *diag)
{
    gr_chaos chaos = {.count = 0};
    const gr_job_overrides overrides = {.workers = (int)options->workers,
                                        .output = options->output,
                                        .shards = (int)options->shards,
                                        .checkpoint_every = options->checkpoint_every,
                                        .checkpoint_to = options->checkpoint_to,
                                        .set = options->set};
    gr_job *job;
    /* The launcher knows how many servers there are. */
    gr_status status = options->chaos != NULL ? gr_chaos_parse(options->chaos, options->workers,
                                                               INT64_MAX, arena, &chaos, diag)
                                              : GR_OK;
    if (status == GR_OK) {
        status = gr_job_open(path, &overrides, &job, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    const gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    sigset_t held = signals_to_hold(job);
    bool joining = getenv("GRADUS_JOINING") != NULL;
    if (joining) {
        hold_signals(&held); /* what others do ends its waiting: they stop, and it is dismissed */
    }
    const gr_train_options training = {.style = options->json ? GR_REPORT_JSON : GR_REPORT_AUTO,
                                       .out = stdout,
                                       .log = &log,
                                       .resume = options->resume,
                                       .stop = is_asked_to_stop,
                                       .stop_arg = &held,
                                       .joined = hold_signals,
                                       .joined_arg = &held,
                                       .chaos = &chaos,
                                       .chaos_after = (uint64_t)options->chaos_after,
                                       .joining = joining};
    status = gr_train_run(job, comm, &training, diag);
    gr_job_close(job);
    return status;
}

static void print_usage(void)
{
    puts("gradus worker is what gradus run starts for each rank of a job; not meant to be typed\n");
}

static int work(const gr_cli_line *line)
{
    gr_diag diag = {0};
    gr_comm *comm = NULL; /* made when everything else is: nobody waits for what it needs */
    int code = GR_EXIT_DONE;
    gr_status status = train(line->options, line->words[0], &comm, line->arena, &diag);
    if (status == GR_E_CANCELLED) {
        code = GR_LAUNCH_EXIT_RESUME;
    } else if (status != GR_OK) {
        code = fail(comm, status, &diag);
    }
    gr_comm_destroy(comm);
    return code != GR_EXIT_DONE ? code : gr_cli_flush();
}

const gr_cli_form gr_worker_form = {.table = &worker_table,
                                    .usage = print_usage,
                                    .words_min = 1,
                                    .words_max = 1,
                                    .words_missing = "needs a job file",
                                    .work = work};
