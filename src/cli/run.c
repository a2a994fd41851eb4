/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus run`: a job file, or any command, with many workers, here or on other hosts. */

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/timeline.h"
#include "launch/discover.h"
#include "launch/launch.h"
#include "train/chaos.h"
#include "train/checkpoint.h"
#include "train/compress.h"

#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct run_options {
    int64_t workers, workers_min, workers_max, spares, restarts;
    const char *cores;
    bool bind;
    bool encrypt;
    int64_t threads;
    int link;
    bool quiet, prefix, timestamps;
    const char *log_dir;
    int64_t grace_us, start_timeout_us, expel_us;
    int orphans;
    bool dry_run, json;
    const char *output;
    const char *checkpoint_every, *checkpoint_to;
    bool resume;
    const char *timeline, *chaos;
    const char *hosts, *hostfile, *discovery, *listen;
    int64_t slots_per_host, discovery_us;
    int64_t ssh_port;
    const char *ssh_identity, *remote_program;
    int64_t host_timeout_us;
} run_options;

enum { ARENA_BYTES_MAX = 4 << 20, LINK_OF_JOB = 0, WORKER_WORDS_MAX = 24, RESTARTS = 3 };

enum { ORPHANS_END = 0, ORPHANS_FINISH };
static const char *const orphan_choices[] = {"end", "finish", NULL};
static const char *const link_choices[] = {"job", "auto", "shm", "tcp", NULL};

static const gr_config_field run_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help =
         "number of workers; otherwise what the job file says, or one for each slot of the hosts, "
         "or for each core"},
    {.flag = "--min-workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, workers_min),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help =
         "when workers are killed, the job goes on while so many are left; otherwise 1 for a job "
         "file, and a command needs all"},
    {.flag = "--max-workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, workers_max),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "as many as the job may be given while it runs (gradus scale); otherwise what the job "
             "file says, or as many as it starts with"},
    {.flag = "--min-np",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, workers_min),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "the same as --min-workers"},
    {.flag = "--max-np",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, workers_max),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "the same as --max-workers"},
    {.flag = "--restarts",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, restarts),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .help = "another worker is started in place of one that was killed, so many times for each "
             "worker; and when none is left to go on, all of them, so many times; -1: 3 for a job "
             "file, 0 for a command"},
    {.flag = "--spare",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, spares),
     .default_text = "0",
     .min = 0,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "so many more workers are started and wait, to take the place of one that is killed"},
    {.flag = "--hosts",
     .short_flag = 'H',
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, hosts),
     .value_name = "HOST:SLOTS,...",
     .help = "hosts to start workers on, and how many each may get; otherwise this one"},
    {.flag = "--hostfile",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, hostfile),
     .value_name = "FILE",
     .help = "the same from a file with lines like \"host1 slots=4\""},
    {.flag = "--host-discovery-script",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, discovery),
     .value_name = "PROGRAM",
     .help = "a program that prints the hosts that there are, a line like host1:4 for each; run "
             "again and again: workers are started on hosts that come, and leave those that go"},
    {.flag = "--discovery-interval",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(run_options, discovery_us),
     .default_text = "1s",
     .min = 0.1e6,
     .max = 3600e6,
     .help = "between two runs of it"},
    {.flag = "--slots-per-host",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, slots_per_host),
     .default_text = "1",
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "workers of a host for which it prints no number"},
    {.flag = "--listen",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, listen),
     .value_name = "HOST:PORT",
     .help = "wait here for agents that offer their hosts (gradus agent --join), with the token of "
             "GRADUS_JOIN_TOKEN_FILE or GRADUS_JOIN_TOKEN; others may come while the job runs"},
    {.flag = "--ssh-port",
     .short_flag = 'p',
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, ssh_port),
     .min = 1,
     .max = 65535,
     .help = "port of ssh on the other hosts; otherwise what ssh's configuration says"},
    {.flag = "--ssh-identity-file",
     .short_flag = 'i',
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, ssh_identity),
     .value_name = "FILE",
     .help = "private key for ssh; otherwise what ssh's configuration says"},
    {.flag = "--remote-program",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, remote_program),
     .value_name = "PATH",
     .help = "gradus on the other hosts; otherwise the path that it has here"},
    {.flag = "--host-timeout",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(run_options, host_timeout_us),
     .default_text = "10s",
     .min = 0.1e6,
     .max = 3600e6,
     .help = "a host of which nothing is heard for so long is lost, with its workers"},
    {.flag = "--cores",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, cores),
     .value_name = "LIST",
     .help = "the cores that the workers may use, like 0,2-3; otherwise those of the launcher"},
    {.flag = "--bind",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, bind),
     .default_text = "yes",
     .help = "bind each worker to cores of its own, where there are enough"},
    {.flag = "--threads",
     .type = GR_CONFIG_INT,
     .offset = offsetof(run_options, threads),
     .min = 1,
     .max = GR_CORES_MAX,
     .help = "OMP_NUM_THREADS of each worker; otherwise yours, or 1"},
    {.flag = "--link",
     .env = "GRADUS_LINK",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(run_options, link),
     .default_text = "job",
     .choices = link_choices,
     .help = "how workers reach each other; job: as the job file says"},
    {.flag = "--encrypt",
     .env = "GRADUS_ENCRYPT",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, encrypt),
     .default_text = "no",
     .help = "TLS 1.3 on all that goes by tcp; also if the job file says encrypt: true"},
    {.flag = "--quiet",
     .short_flag = 'q',
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, quiet),
     .help = "show the output of rank 0 only"},
    {.flag = "--prefix",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, prefix),
     .default_text = "yes",
     .help = "write [rank] in front of each line"},
    {.flag = "--timestamps",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, timestamps),
     .help = "write the time of day behind [rank]"},
    {.flag = "--log-dir",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, log_dir),
     .value_name = "DIR",
     .help = "write each rank's output to DIR/rank.R.out and DIR/rank.R.err besides"},
    {.flag = "--grace",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(run_options, grace_us),
     .default_text = "5s",
     .min = 0,
     .max = 86400e6,
     .help = "time that workers get to end after SIGINT or SIGTERM, before SIGKILL"},
    {.flag = "--orphans",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(run_options, orphans),
     .default_text = "end",
     .choices = orphan_choices,
     .help = "what the workers do when gradus run is killed; finish: a job file's write a last "
             "checkpoint first, within --grace"},
    {.flag = "--start-timeout",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(run_options, start_timeout_us),
     .default_text = "30s",
     .min = 0,
     .max = 86400e6,
     .help = "time in which all workers must have joined the group once one has; 0: any"},
    {.flag = "--expel-after",
     .env = "GRADUS_EXPEL",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(run_options, expel_us),
     .default_text = "0",
     .min = 0,
     .max = 86400e6,
     .help = "a worker that stands still, and that the others have waited for so long, is killed, "
             "and the job goes on without it; 0: they wait"},
    {.flag = "--dry-run",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, dry_run),
     .help = "check everything, print what would run, start nothing"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, json),
     .help = "job file: report as JSON, one object a line"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, output),
     .value_name = "DIR",
     .help = "job file: folder for weights and metrics"},
    {.flag = "--checkpoint-every",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, checkpoint_every),
     .value_name = "100 steps",
     .help =
         "job file: write a checkpoint every so many steps, epochs (1 epoch) or minutes (5 min)"},
    {.flag = "--checkpoint-to",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, checkpoint_to),
     .value_name = "DIR",
     .help = "job file: folder for checkpoints"},
    {.flag = "--resume",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(run_options, resume),
     .help =
         "job file: go on from the newest sound checkpoint; from the beginning if there is none"},
    {.flag = "--timeline",
     .env = "GRADUS_TIMELINE",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, timeline),
     .value_name = "FILE",
     .help = "write what each rank did when to FILE, for ui.perfetto.dev or chrome://tracing"},
    {.flag = "--chaos",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(run_options, chaos),
     .value_name = "FAULTS",
     .help = "faults on order, \"kill:rank=2@step=50; stop:rank=1@time=3s,for=3s\"; see "
             "docs/chaos.md"},
    {.key = NULL},
};

const gr_config_table gr_run_table = {.name = "run",
                                      .title = "Flags of `gradus run`",
                                      .fields = run_fields,
                                      .struct_bytes = sizeof(run_options)};

static int64_t slots_of(const run_options *options)
{
    int64_t most =
        options->workers_max > options->workers ? options->workers_max : options->workers;
    return most + options->spares;
}

/* Everything that one `gradus run` knows. */
struct run {
    run_options options;
    gr_arena arena;
    gr_cores cores;
    gr_hosts hosts;         /* count 0: this host */
    gr_door *door;          /* where hosts come by themselves; NULL */
    char program[PATH_MAX]; /* on other hosts */
    const char *job_path;   /* NULL: a command */
    bool inexact;           /* the job permits what is fastest */
    const char *resume;     /* the checkpoint to go on from; NULL */
    bool writes;            /* checkpoints, while it trains */
    const char *past;       /* the step that an earlier beginning has come to; NULL: none has */
    const char *workers_text;
    const char *shards_text; /* its shards, which workers cannot count out of their number */
    char *const *command;    /* NULL-terminated */
    gr_launch_fault faults[2 * GR_FAULTS_MAX];
    int fault_count;
    gr_log log;
};

static void print_help(void)
{
    puts("usage: gradus run [flags] job.yaml [flags]\n"
         "       gradus run [flags] [--] command [arguments]\n\n"
         "Starts workers, here or on the hosts of -H: of the training job in the file, or any\n"
         "command. A worker finds its place in GRADUS_RANK, GRADUS_WORLD_SIZE, ..., and in RANK,\n"
         "WORLD_SIZE, ...\n"
         "Exit code: 0 all workers ended well, 1 the job failed, 2 what was given is wrong,\n"
         "75 ended on request (SIGTERM): --resume goes on.\n");
    gr_config_print_help(&gr_run_table, stdout);
}

static bool ends_in(const char *text, const char *ending)
{
    size_t size = strlen(text), ending_size = strlen(ending);
    return size > ending_size && strcmp(text + size - ending_size, ending) == 0;
}

/* Flags, then either a job file with flags around it, or a command whose words are its own. */
static gr_status read_line(struct run *run, int argc, char *const *argv, bool *help_out,
                           gr_diag *diag)
{
    int at = 1;
    bool dashes = false;
    gr_status status = gr_config_defaults(&gr_run_table, &run->options, &run->arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(&gr_run_table, &run->options, environ, &run->arena, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_args(&gr_run_table, &run->options, argc, argv, &at, &dashes,
                                     help_out, &run->arena, diag);
    }
    if (status != GR_OK || *help_out) {
        return status;
    }
    if (at >= argc) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: there is nothing to run; give a job file (gradus run job.yaml) or a "
                       "command (gradus run -np 2 -- command arguments)");
    }
    if (dashes || !(ends_in(argv[at], ".yaml") || ends_in(argv[at], ".yml"))) {
        run->command = argv + at;
        return run->options.resume
                   ? gr_fail(diag, GR_E_INVALID,
                             "run: --resume is for job files; \"%s\" is a command, and goes on by "
                             "its own means",
                             argv[at])
                   : GR_OK;
    }
    run->job_path = argv[at++];
    status = gr_config_from_args(&gr_run_table, &run->options, argc, argv, &at, &dashes, help_out,
                                 &run->arena, diag);
    if (status == GR_OK && !*help_out && at < argc) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: \"%s\" behind the job file \"%s\" means nothing here; to run a "
                       "command, write -- in front of it",
                       argv[at], run->job_path);
    }
    return status;
}

/* Until agents with enough slots are there. */
static gr_status wait_for_agents(struct run *run, int need, gr_diag *diag)
{
    const run_options *options = &run->options;
    uint8_t token[GR_SECRET_BYTES];
    gr_status status = gr_join_token(true, token, diag);
    if (status == GR_OK) {
        status = gr_join_listen(options->listen, token, &run->log, &run->door, diag);
        gr_wipe(token, sizeof token);
    }
    if (status == GR_OK) {
        fprintf(stderr, "gradus: agents may join at %s\n", gr_door_remote_address(run->door));
        status = gr_join_gather(run->door, need, options->start_timeout_us, &run->arena,
                                &run->hosts, diag);
    }
    return status;
}

/* The hosts, and what the other ones are to run. */
static gr_status find_hosts(struct run *run, gr_diag *diag)
{
    const run_options *options = &run->options;
    gr_status status = GR_OK;
    const char *const ways[][2] = {{"-H", options->hosts},
                                   {"--hostfile", options->hostfile},
                                   {"--host-discovery-script", options->discovery},
                                   {"--listen", options->listen}};
    const char *said = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (ways[i][1] != NULL && said != NULL) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: %s and %s both say which hosts to use; leave one of them out",
                           said, ways[i][0]);
        }
        said = ways[i][1] != NULL ? ways[i][0] : said;
    }
    int64_t need = options->workers > 0 ? options->workers : options->workers_min;
    need = need > 0 ? need : 1;
    if (options->discovery != NULL) {
        gr_discovery discovery = {.script = options->discovery,
                                  .environment = environ,
                                  .slots_per_host = (int)options->slots_per_host};
        status = gr_discovery_gather(&discovery, (int)need, options->discovery_us,
                                     options->start_timeout_us, &run->arena, &run->hosts, diag);
    } else if (options->listen != NULL && !options->dry_run) {
        status = wait_for_agents(run, (int)need, diag);
    } else if (options->hosts != NULL) {
        status = gr_hosts_parse(options->hosts, "-H", &run->arena, &run->hosts, diag);
    } else if (options->hostfile != NULL) {
        status = gr_hosts_read(options->hostfile, &run->arena, &run->hosts, diag);
    }
    if (status != GR_OK || options->remote_program != NULL) {
        snprintf(run->program, sizeof run->program, "%s",
                 status == GR_OK ? options->remote_program : "");
        return status;
    }
    ssize_t size = readlink("/proc/self/exe", run->program, sizeof run->program - 1);
    run->program[size > 0 ? size : 0] = '\0';
    return GR_OK;
}

static bool uses_own_cores(const struct run *run)
{
    bool local = run->hosts.count == 0;
    for (int i = 0; i < run->hosts.count; i++) {
        local = local || run->hosts.at[i].local;
    }
    return local;
}

static gr_status find_cores(struct run *run, gr_diag *diag)
{
    gr_cores allowed;
    gr_status status = gr_cores_allowed(&allowed, diag);
    if (status != GR_OK) {
        return status;
    }
    run->cores = allowed;
    return run->options.cores == NULL || !uses_own_cores(run)
               ? GR_OK
               : gr_cores_parse(run->options.cores, "--cores", &allowed, &run->cores, diag);
}

/* How many there are if nobody says: one for each slot of the hosts, or for each core. */
static int room_for_workers(const struct run *run)
{
    int room = run->hosts.count > 0 ? gr_hosts_slots(&run->hosts) : run->cores.count;
    return room < GR_LAUNCH_WORKERS_MAX ? room : GR_LAUNCH_WORKERS_MAX;
}

/* Which checkpoint the job goes on from, if it does. Its shards count where the job says none: then
 * the job is opened anew. */
static gr_status find_checkpoint(struct run *run, gr_job_overrides *overrides, gr_job **job,
                                 gr_diag *diag)
{
    gr_status status = gr_checkpoint_may_start(*job, run->options.resume, diag);
    gr_checkpoint *found = NULL;
    if (status == GR_OK && run->options.resume) {
        status = gr_checkpoint_find(*job, &run->log, &found, diag);
    }
    if (status != GR_OK || found == NULL) {
        return status;
    }
    const gr_checkpoint_info *info = gr_checkpoint_info_of(found);
    char path[PATH_MAX];
    if (info->shards != (*job)->shards) {
        overrides->shards = info->shards;
        gr_job_close(*job);
        *job = NULL;
        status = gr_job_open(run->job_path, overrides, job, diag);
        if (status == GR_OK) {
            status = gr_checkpoint_fits(*job, found, diag);
        }
    }
    if (status == GR_OK) {
        status = gr_checkpoint_path((*job)->checkpoint.to, info->step, path, sizeof path, diag);
    }
    gr_checkpoint_close(found);
    if (status != GR_OK) {
        return status;
    }
    run->resume = gr_arena_strdup(&run->arena, path);
    return run->resume != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a path");
}

/* With how few workers a job goes on. What topk has left out is known to one worker alone. */
static gr_status may_lose(struct run *run, const gr_job *job, gr_diag *diag)
{
    run_options *options = &run->options;
    bool topk = job->distribution.compression == GR_COMPRESSION_TOPK;
    options->workers_max = job->workers_max;
    if (topk && (options->spares > 0 || options->workers_max > options->workers)) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: with compression: topk no worker can come later, since each keeps "
                       "what it has left out; leave out %s",
                       options->spares > 0 ? "--spare" : "--max-workers (number_of_workers: max)");
    }
    if (topk && options->workers_min > 0 && options->workers_min < options->workers) {
        return gr_fail(
            diag, GR_E_INVALID,
            "run: --min-workers %lld: with compression: topk a job cannot go on without a "
            "worker, since each keeps what it has left out; leave one of the two out, and "
            "use checkpoints",
            (long long)options->workers_min);
    }
    if (options->workers_min == 0 && !topk) {
        options->workers_min = job->workers_min;
    }
    if (options->restarts < 0) {
        options->restarts = RESTARTS;
    }
    return GR_OK;
}

/* Reads and checks the job, so that whatever is wrong in it is said before anything starts. */
static gr_status read_job(struct run *run, gr_diag *diag)
{
    run_options *options = &run->options;
    int room = room_for_workers(run);
    gr_job_overrides overrides = {
        .workers = (int)options->workers,
        .workers_max = (int)options->workers_max,
        .default_workers = room,
        .link = options->link == LINK_OF_JOB ? NULL : link_choices[options->link],
        .output = options->output,
        .checkpoint_every = options->checkpoint_every,
        .checkpoint_to = options->checkpoint_to};
    gr_job *job = NULL;
    gr_status status = gr_job_open(run->job_path, &overrides, &job, diag);
    if (status == GR_OK) {
        status = find_checkpoint(run, &overrides, &job, diag);
    }
    if (status == GR_OK && options->dry_run) {
        status = gr_job_print(job, stdout, diag);
        if (run->resume != NULL) {
            printf("goes on from %s\n", run->resume);
        }
    }
    if (status == GR_OK) {
        options->workers = job->workers;
        run->workers_text = gr_arena_printf(&run->arena, "%d", job->workers);
        run->shards_text = gr_arena_printf(&run->arena, "%d", job->shards);
        status = may_lose(run, job, diag);
        options->link = LINK_OF_JOB + 1 + job->distribution.link;
        run->inexact = !job->distribution.exact;
        run->writes = job->checkpoint.every != NULL;
        options->encrypt = options->encrypt || job->distribution.encrypt;
        if (options->threads == 0) {
            options->threads = job->distribution.worker_threads;
        }
    }
    gr_job_close(job);
    return status;
}

static void print_plan(const struct run *run)
{
    int workers = (int)run->options.workers;
    gr_cores part;
    char list[GR_CORES_TEXT_BYTES];
    printf("%d worker%s of:", workers, workers == 1 ? "" : "s");
    for (char *const *word = run->command; *word != NULL; word++) {
        printf(" %s", *word);
    }
    putchar('\n');
    for (int i = 0; i < run->hosts.count; i++) {
        const gr_host *host = &run->hosts.at[i];
        if (host->workers == 0) {
            printf("%s: none at first\n", host->name);
            continue;
        }
        printf("%s%s: rank%s %d", host->name, host->local ? " (this host)" : "",
               host->workers == 1 ? "" : "s", host->first);
        printf(host->workers == 1 ? "\n" : " to %d\n", host->first + host->workers - 1);
    }
    if (run->hosts.count > 0) {
        return;
    }
    for (int rank = 0; rank < workers; rank++) {
        if (run->options.bind && gr_cores_deal(&run->cores, workers, rank, &part)) {
            gr_cores_print(&part, list, sizeof list);
            printf("rank %d is bound to core%s %s\n", rank, part.count == 1 ? "" : "s", list);
        }
    }
    if (!run->options.bind || workers > run->cores.count) {
        gr_cores_print(&run->cores, list, sizeof list);
        printf("no worker is bound to a core of its own; all may use %s\n", list);
    }
}

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

/* What each worker of a job file is started with. */
static void worker_words(const struct run *run, const char *words_out[WORKER_WORDS_MAX])
{
    const run_options *options = &run->options;
    const char *const flags[][2] = {{"--output", options->output},
                                    {"--checkpoint-every", options->checkpoint_every},
                                    {"--checkpoint-to", options->checkpoint_to},
                                    {"--resume", run->resume},
                                    {"--workers", run->workers_text},
                                    {"--shards", run->shards_text},
                                    {"--chaos", options->chaos},
                                    {"--chaos-after", run->past}};
    int count = 0;
    words_out[count++] = "gradus";
    words_out[count++] = "worker";
    words_out[count++] = run->job_path;
    words_out[count++] = options->json ? "--json" : "--no-json";
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (flags[i][1] != NULL) {
            words_out[count++] = flags[i][0];
            words_out[count++] = flags[i][1];
        }
    }
    words_out[count] = NULL;
}

static int report_end(const struct run *run, gr_status status, const gr_launch_report *report,
                      const gr_diag *diag)
{
    if (report->resumable) {
        fprintf(stderr, "gradus: %s; %s\n", diag->text,
                run->job_path != NULL ? "--resume goes on from the checkpoint"
                                      : "the command says that it can go on");
        return GR_EXIT_RESUME;
    }
    fprintf(stderr, "gradus: %s\n%s%s", diag->text, report->tail, report->last);
    return status == GR_E_NOT_FOUND || status == GR_E_INVALID ? GR_EXIT_INPUT : GR_EXIT_FAILED;
}

enum { SET_MAX = 9 };

/* What the workers find in their environment: `set` over it, `defaults` under it. */
static void surround(struct run *run, const char *timeline, const char *set[SET_MAX],
                     const char *defaults[SET_MAX])
{
    enum { JOIN_SLACK_S = 5 };
    const run_options *options = &run->options;
    size_t set_count = 0, default_count = 0;
    set[set_count++] =
        gr_arena_printf(&run->arena, "GRADUS_TERMINAL_COLUMNS=%d", terminal_columns(STDOUT_FILENO));
    if (options->link != LINK_OF_JOB) {
        set[set_count++] =
            gr_arena_printf(&run->arena, "GRADUS_LINK=%s", link_choices[options->link]);
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
    if (options->expel_us > 0) {
        set[set_count++] = gr_arena_printf(&run->arena, "GRADUS_STALL_FAIL=%lldus",
                                           (long long)gr_launch_stall_us(options->expel_us));
    }
    if (run->hosts.count > 0) {
        /* Ranks give up a host when the launcher does. */
        defaults[default_count++] = gr_arena_printf(&run->arena, "GRADUS_PEER_TIMEOUT=%lldms",
                                                    (long long)(options->host_timeout_us / 1000));
    }
    if (timeline != NULL) {
        set[set_count++] = gr_arena_printf(&run->arena, "GRADUS_TIMELINE=%s", timeline);
    }
    defaults[default_count++] = "PYTHONUNBUFFERED=1"; /* lines when they are written */
}

/* Those of a time that is past have happened. */
static void drop_past_faults(struct run *run, int64_t elapsed_us)
{
    int left = 0;
    for (int i = 0; i < run->fault_count; i++) {
        gr_launch_fault fault = run->faults[i];
        if (fault.at_us > elapsed_us) {
            fault.at_us -= elapsed_us;
            run->faults[left++] = fault;
        }
    }
    run->fault_count = left;
}

/* Makes ready what is to be begun anew: from the newest checkpoint where the job writes some, else
 * from its first step, which leads to the same bits. */
static gr_status begin_anew(struct run *run, gr_launch_config *config,
                            const gr_launch_report *report, gr_diag *diag)
{
    run_options *options = &run->options;
    gr_status status = GR_OK;
    bool needed = options->resume || run->writes;
    run->past = gr_arena_printf(&run->arena, "%llu", (unsigned long long)report->step);
    config->crash = report->crash;
    config->beginning++;
    run->resume = NULL;
    if (run->job_path != NULL) {
        options->resume = true; /* those that were left may have written one when they ended */
        status = read_job(run, diag);
    }
    if (status != GR_OK && !needed) {
        options->resume = false;
        status = read_job(run, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_log_write(&run->log, GR_LOG_WARN, "run",
                 "all workers are started anew (%d of at most %lld times, --restarts)%s%s",
                 config->beginning, (long long)options->restarts,
                 run->resume != NULL     ? "; the job goes on from "
                 : run->job_path != NULL ? "; the job begins from its first step"
                                         : "",
                 run->resume != NULL ? run->resume : "");
    return GR_OK;
}

/* Runs it, and runs it again when nobody is left to go on with. */
static int run_gangs(struct run *run, gr_launch_config *config, const char *worker[])
{
    gr_launch_report report;
    gr_diag diag;
    for (;;) {
        int64_t begin_us = gr_now_ns() / 1000;
        config->fault_count = run->fault_count;
        worker_words(run, worker);
        gr_diag_clear(&diag);
        gr_status status = gr_launch_run(config, &report, &diag);
        if (status == GR_OK) {
            return GR_EXIT_DONE;
        }
        int code = report_end(run, status, &report, &diag);
        /* Agents that have joined have ended with it. */
        bool again = config->beginning < run->options.restarts && report.again && run->door == NULL;
        if (!again) {
            return config->beginning > 0 && code == GR_EXIT_INPUT ? GR_EXIT_FAILED : code;
        }
        drop_past_faults(run, gr_now_ns() / 1000 - begin_us);
        if (begin_anew(run, config, &report, &diag) != GR_OK) {
            return gr_cli_fail(GR_EXIT_FAILED, &diag);
        }
        (void)gr_cli_begin_timeline(run->options.timeline, gr_launch_slots(config), &run->arena);
    }
}

static int launch(struct run *run)
{
    const run_options *options = &run->options;
    const char *set[SET_MAX] = {NULL}, *defaults[SET_MAX] = {NULL};
    const char *worker[WORKER_WORDS_MAX];
    const char *timeline =
        gr_cli_begin_timeline(options->timeline, GR_LAUNCH_WORKERS_MAX, &run->arena);
    surround(run, timeline, set, defaults);
    gr_launch_config config = {
        .workers = (int)options->workers,
        .workers_min = (int)options->workers_min,
        .workers_max = (int)options->workers_max,
        .spares = (int)options->spares,
        .restarts = options->restarts > 0 ? (int)options->restarts : 0,
        .argv = run->job_path != NULL ? (char *const *)(uintptr_t)worker : run->command,
        .file = run->job_path != NULL ? "/proc/self/exe" : NULL,
        .environment = environ,
        .set = set,
        .defaults = defaults,
        .cores = &run->cores,
        .bind = options->bind,
        .encrypt = options->encrypt,
        .restrict_cores = options->cores != NULL,
        .hosts = run->hosts.count > 0 ? &run->hosts : NULL,
        .cores_text = options->cores,
        .program = run->program,
        .ssh_port = (int)options->ssh_port,
        .ssh_identity = options->ssh_identity,
        .host_timeout_us = options->host_timeout_us,
        .door = run->door,
        .discovery = options->discovery,
        .discovery_slots = (int)options->slots_per_host,
        .discovery_us = options->discovery_us,
        .all_join = run->job_path != NULL,
        .zero_is_done = run->job_path != NULL,
        .start_timeout_us = options->start_timeout_us,
        .grace_us = options->grace_us,
        .orphan_grace_us = options->orphans == ORPHANS_FINISH ? options->grace_us : 0,
        .expel_us = options->expel_us,
        .out_fd = STDOUT_FILENO,
        .err_fd = STDERR_FILENO,
        .quiet = options->quiet,
        .prefix = options->prefix,
        .raw_rank0 = run->job_path != NULL,
        .timestamps = options->timestamps,
        .color_out = wants_color(STDOUT_FILENO),
        .color_err = wants_color(STDERR_FILENO),
        .faults = run->faults,
        .log_dir = options->log_dir,
        .log = &run->log};
    int code = run_gangs(run, &config, worker);
    if (timeline != NULL) {
        gr_cli_merge_timeline(timeline, gr_launch_slots(&config));
    }
    return code;
}

/* How many, for a command, and with how few. */
static gr_status check_workers(struct run *run, gr_diag *diag)
{
    run_options *options = &run->options;
    if (options->workers == 0) {
        options->workers = room_for_workers(run);
    }
    if (options->workers_max > 0 && options->workers_max < options->workers) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --max-workers %lld is less than the %lld workers that the job starts "
                       "with",
                       (long long)options->workers_max, (long long)options->workers);
    }
    bool goes = options->workers_max > options->workers || options->spares > 0;
    if (run->job_path == NULL && options->workers_min == 0 && goes) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: %s is for a command that can take workers in (gr_comm_renew); say "
                       "with how few it goes on (--min-workers)",
                       options->spares > 0 ? "--spare" : "--max-workers");
    }
    if (slots_of(options) > GR_LAUNCH_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: %lld workers, with those that may come later, are more than the %d "
                       "that one host starts",
                       (long long)slots_of(options), GR_LAUNCH_WORKERS_MAX);
    }
    if (options->orphans == ORPHANS_FINISH && (run->job_path == NULL || run->hosts.count > 0)) {
        return gr_fail(diag, GR_E_INVALID, "run: --orphans finish is for job files on one host; %s",
                       run->job_path == NULL ? "a command writes no checkpoint that is known here"
                                             : "leave it or the other hosts out");
    }
    if (options->discovery != NULL &&
        (options->workers_min == 0 || options->workers_min >= slots_of(options))) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --host-discovery-script is for jobs whose workers may come and go; "
                       "say between which numbers (--min-workers, --max-workers)");
    }
    if (options->workers_min > options->workers) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --min-workers %lld is more than the %lld workers that the job has",
                       (long long)options->workers_min, (long long)options->workers);
    }
    return run->hosts.count > 0 ? gr_hosts_deal(&run->hosts, (int)options->workers, diag) : GR_OK;
}

static void add_fault(struct run *run, int64_t at_us, int64_t rank, int signal_number)
{
    int at = run->fault_count++;
    while (at > 0 && run->faults[at - 1].at_us > at_us) {
        run->faults[at] = run->faults[at - 1];
        at--;
    }
    run->faults[at] = (gr_launch_fault){at_us, (int)rank, signal_number};
}

/* Faults of a time are the launcher's, those of a step the workers'. */
static gr_status read_chaos(struct run *run, gr_diag *diag)
{
    const run_options *options = &run->options;
    gr_chaos chaos = {.count = 0};
    gr_status status = options->chaos == NULL ? GR_OK
                                              : gr_chaos_parse(options->chaos, options->workers,
                                                               &run->arena, &chaos, diag);
    for (int i = 0; i < chaos.count && status == GR_OK; i++) {
        const gr_fault *fault = &chaos.faults[i];
        bool timed = fault->step == 0 && fault->kind != GR_FAULT_SLOW;
        if (timed) {
            bool kills = fault->kind == GR_FAULT_KILL;
            add_fault(run, fault->time_us, fault->rank,
                      kills ? gr_fault_signals[fault->signal] : SIGSTOP);
            if (!kills) {
                add_fault(run, fault->time_us + fault->for_us, fault->rank, SIGCONT);
            }
        } else if (run->job_path == NULL) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: --chaos: a command has no steps that are known here; only kill: "
                           "and stop: with @time= are for it");
        } else if (fault->kind == GR_FAULT_CUT && strcmp(link_choices[options->link], "tcp") != 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: --chaos: cut: is for tcp links, and the workers share memory; "
                           "add --link tcp");
        }
    }
    return status;
}

int gr_verb_run(int argc, char *const *argv)
{
    struct run run = {.log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr}};
    gr_diag diag = {0};
    bool help = false;
    gr_arena_init(&run.arena, ARENA_BYTES_MAX);
    gr_status status = read_line(&run, argc, argv, &help, &diag);
    if (status == GR_OK && !help) {
        status = find_hosts(&run, &diag);
    }
    if (status == GR_OK && !help) {
        status = find_cores(&run, &diag);
    }
    if (status == GR_OK && !help && run.job_path != NULL) {
        status = read_job(&run, &diag);
    }
    if (status == GR_OK && !help) {
        status = check_workers(&run, &diag);
    }
    if (status == GR_OK && !help) {
        status = read_chaos(&run, &diag);
    }
    int code;
    if (status != GR_OK) {
        code = gr_cli_refuse(status, &diag);
    } else if (help) {
        print_help();
        code = gr_cli_flush();
    } else {
        gr_cores_sort_by_topology(&run.cores);
        if (run.options.dry_run && run.job_path == NULL) {
            print_plan(&run);
        }
        code = run.options.dry_run ? gr_cli_flush() : launch(&run);
    }
    for (int i = 0; i < run.hosts.count && code == GR_EXIT_INPUT; i++) {
        gr_join_refuse(&run.hosts.at[i]); /* nothing was started */
    }
    gr_door_destroy(run.door);
    gr_arena_fini(&run.arena);
    return code;
}
