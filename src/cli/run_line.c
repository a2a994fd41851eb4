/* SPDX-License-Identifier: Apache-2.0 */

/* What stands on the line of `gradus run`: its flags, and a job file or a command. */

#include "cli/run.h"

#include "base/fail.h"
#include "ps/place.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const success_choices[] = {"auto", "chief", "all-workers", NULL};
static const char *const orphan_choices[] = {"end", "finish", NULL};
const char *const gr_run_link_choices[] = {"job", "auto", "shm", "tcp", NULL};

static const gr_config_field run_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, workers),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help =
         "number of workers; otherwise what the job file says, or one for each slot of the hosts, "
         "or for each core"},
    {.flag = "--roles",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, roles),
     .value_name = "ROLE=N,...",
     .help = "command: tasks of TensorFlow, \"chief=1,worker=3,ps=2,evaluator=1\", a worker each, "
             "with TF_CONFIG; when those of --success-policy have ended, so do the others "
             "(docs/tensorflow.md)"},
    {.flag = "--success-policy",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(gr_run_options, success),
     .default_text = "auto",
     .choices = success_choices,
     .help = "--roles: who has to end for the job to end; all-workers: the chief and all of them; "
             "auto: the chief, where there are parameter servers and a chief, else all-workers"},
    {.flag = "--min-workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, workers_min),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help =
         "when workers are killed, the job goes on while so many are left; otherwise 1 for a job "
         "file, and a command needs all"},
    {.flag = "--max-workers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, workers_max),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "as many as the job may be given while it runs (gradus scale); otherwise what the job "
             "file says, or as many as it starts with"},
    {.flag = "--min-np",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, workers_min),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "the same as --min-workers"},
    {.flag = "--max-np",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, workers_max),
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "the same as --max-workers"},
    {.flag = "--restarts",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, restarts),
     .default_text = "-1",
     .min = -1,
     .max = 1e6,
     .help = "another worker, or parameter server, is started in place of one that was killed, so "
             "many times for each; and when none is left to go on, all of them, so many times; -1: "
             "3 for a job file, 0 for a command"},
    {.flag = "--spare",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, spares),
     .default_text = "0",
     .min = 0,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "so many more workers are started and wait, to take the place of one that is killed"},
    {.flag = "--servers",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, servers),
     .min = 1,
     .max = GR_PS_SERVERS_MAX,
     .help = "so many parameter servers are started beside the workers, who find them by "
             "GRADUS_SERVERS (docs/ps.md); otherwise what the job file says, or none"},
    {.flag = "--server-replicas",
     .env = "GRADUS_SERVER_REPLICAS",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, replicas),
     .default_text = "-1",
     .min = -1,
     .max = 1,
     .help = "1: what a parameter server keeps is on another one as well, if there is one, and the "
             "job goes on when one is lost; 0: it is not; -1: as the job file says, or 1"},
    {.flag = "--servers-file",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, servers_file),
     .value_name = "FILE",
     .help = "while the job runs, FILE (mode 0600) has where its parameter servers are and the "
             "job's secret, as lines for a shell, so that gradus ps can ask them"},
    {.flag = "--hosts",
     .short_flag = 'H',
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.hosts),
     .value_name = "HOST:SLOTS,...",
     .help = "hosts to start workers on, and how many each may get; otherwise this one"},
    {.flag = "--hostfile",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.hostfile),
     .value_name = "FILE",
     .help = "the same from a file with lines like \"host1 slots=4\""},
    {.flag = "--host-discovery-script",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.discovery),
     .value_name = "PROGRAM",
     .help = "a program that prints the hosts that there are, a line like host1:4 for each; run "
             "again and again: workers are started on hosts that come, and leave those that go"},
    {.flag = "--discovery-interval",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_run_options, where.discovery_us),
     .default_text = "1s",
     .min = 0.1e6,
     .max = 3600e6,
     .help = "between two runs of it"},
    {.flag = "--slots-per-host",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, where.slots_per_host),
     .default_text = "1",
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "workers of a host for which it prints no number"},
    {.flag = "--listen",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.listen),
     .value_name = "HOST:PORT",
     .help = "wait here for agents that offer their hosts (gradus agent --join), with the token of "
             "GRADUS_JOIN_TOKEN_FILE or GRADUS_JOIN_TOKEN; others may come while the job runs"},
    {.flag = "--slurm",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, where.slurm),
     .default_text = "yes",
     .help = "in a Slurm job: start the workers on its nodes, by srun; otherwise on this host"},
    {.flag = "--ssh-port",
     .short_flag = 'p',
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, where.ssh_port),
     .min = 1,
     .max = 65535,
     .help = "port of ssh on the other hosts; otherwise what ssh's configuration says"},
    {.flag = "--ssh-identity-file",
     .short_flag = 'i',
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.ssh_identity),
     .value_name = "FILE",
     .help = "private key for ssh; otherwise what ssh's configuration says"},
    {.flag = "--remote-program",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, where.remote_program),
     .value_name = "PATH",
     .help = "gradus on the other hosts; otherwise the path that it has here"},
    {.flag = "--export",
     .type = GR_CONFIG_LIST,
     .offset = offsetof(gr_run_options, export),
     .value_name = "NAMES",
     .help = "variables that workers on other hosts get besides the usual ones: NAME, PREFIX*, "
             "NAME=VALUE (on every host), ALL or NONE; any number of times; docs/run.md"},
    {.flag = "--stdin",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, input),
     .value_name = "FILE",
     .help = "command: a text of up to 48 MiB that each worker, on whichever host, reads from its "
             "standard input; otherwise there is nothing to read"},
    {.flag = "--host-timeout",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_run_options, where.host_timeout_us),
     .default_text = "10s",
     .min = 0.1e6,
     .max = 3600e6,
     .help = "a host of which nothing is heard for so long is lost, with its workers"},
    {.flag = "--cores",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, cores),
     .value_name = "LIST",
     .help = "the cores that the workers may use, like 0,2-3; otherwise those of the launcher"},
    {.flag = "--bind",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, bind),
     .default_text = "yes",
     .help = "bind each worker to cores of its own, where there are enough"},
    {.flag = "--threads",
     .type = GR_CONFIG_INT,
     .offset = offsetof(gr_run_options, threads),
     .min = 1,
     .max = GR_CORES_MAX,
     .help = "OMP_NUM_THREADS of each worker; otherwise yours, or 1"},
    {.flag = "--link",
     .env = "GRADUS_LINK",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(gr_run_options, link),
     .default_text = "job",
     .choices = gr_run_link_choices,
     .help = "how workers reach each other; job: as the job file says"},
    {.flag = "--encrypt",
     .env = "GRADUS_ENCRYPT",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, encrypt),
     .default_text = "no",
     .help = "TLS 1.3 on all that goes by tcp; also if the job file says encrypt: true"},
    {.flag = "--quiet",
     .short_flag = 'q',
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, quiet),
     .help = "show the output of rank 0 only"},
    {.flag = "--prefix",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, prefix),
     .default_text = "yes",
     .help = "write [rank] in front of each line"},
    {.flag = "--timestamps",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, timestamps),
     .help = "write the time of day behind [rank]"},
    {.flag = "--log-dir",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, log_dir),
     .value_name = "DIR",
     .help = "write each rank's output to DIR/rank.R.out and DIR/rank.R.err besides"},
    {.flag = "--grace",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_run_options, grace_us),
     .default_text = "5s",
     .min = 0,
     .max = 86400e6,
     .help = "time that workers get to end after SIGINT or SIGTERM, before SIGKILL"},
    {.flag = "--outlive",
     .env = "GRADUS_OUTLIVE",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, outlive),
     .default_text = "10min",
     .value_name = "TIME",
     .help =
         "when gradus run is killed, or its terminal is gone, the job goes on for so long until "
         "another launcher attaches (gradus attach, or the same command line again); then its "
         "workers get SIGTERM; 0: it ends with gradus run; forever"},
    {.flag = "--name",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, name),
     .value_name = "NAME",
     .help = "of the job, for gradus ls, attach, logs, stop and scale; otherwise a short one is "
             "made; a job of that name that the same command line has started is taken over"},
    {.flag = "--orphans",
     .type = GR_CONFIG_CHOICE,
     .offset = offsetof(gr_run_options, orphans),
     .default_text = "end",
     .choices = orphan_choices,
     .help = "what the workers do when the process that supervises them is killed (with --outlive "
             "0: gradus run); finish: a job file's write a last "
             "checkpoint first, within --grace, where all of them are on this host"},
    {.flag = "--start-timeout",
     .env = "GRADUS_START_TIMEOUT",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_run_options, start_timeout_us),
     .default_text = "30s",
     .min = 0,
     .max = 86400e6,
     .help = "time in which all hosts must be ready, and all workers must have joined the group "
             "once one has; 0: any"},
    {.flag = "--fence-after",
     .env = "GRADUS_FENCE",
     .former_flag = "--expel-after",
     .former_env = "GRADUS_EXPEL",
     .type = GR_CONFIG_DURATION,
     .offset = offsetof(gr_run_options, fence_us),
     .default_text = "0",
     .min = 0,
     .max = 86400e6,
     .help = "a worker that stands still, and that the others have waited for so long, is killed, "
             "and the job goes on without it; 0: they wait"},
    {.flag = "--dry-run",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, dry_run),
     .help = "check everything, print what would run, start nothing; a job file's data may be "
             "missing"},
    {.flag = "--cluster",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, cluster),
     .value_name = "FILE",
     .help = "--dry-run of a job with parameter servers: the network for which it says how many "
             "servers the workers need, as for gradus simulate; otherwise what that assumes"},
    {.flag = "--json",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, job.run.json),
     .help = "job file: report as JSON, one object a line; with --dry-run: print the job document, "
             "without a look at the data"},
    {.flag = "--output",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, job.output),
     .value_name = "DIR",
     .help = "job file: folder for weights and metrics"},
    {.flag = "--set",
     .type = GR_CONFIG_LIST,
     .offset = offsetof(gr_run_options, job.set),
     .value_name = "KEY=VALUE",
     .help = "job file: this value in place of the file's, optimizer.learning_rate=0.01 say; any "
             "number of times"},
    {.flag = "--checkpoint-every",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, job.checkpoint_every),
     .value_name = "100 steps",
     .help =
         "job file: write a checkpoint every so many steps, epochs (1 epoch) or minutes (5 min)"},
    {.flag = "--checkpoint-to",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, job.checkpoint_to),
     .value_name = "DIR",
     .help = "job file: folder for checkpoints"},
    {.flag = "--resume",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(gr_run_options, resume),
     .help =
         "job file: go on from the newest sound checkpoint; from the beginning if there is none"},
    {.flag = "--timeline",
     .env = "GRADUS_TIMELINE",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, timeline),
     .value_name = "FILE",
     .help = "write what each rank did when to FILE, for ui.perfetto.dev or chrome://tracing"},
    {.flag = "--chaos",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(gr_run_options, job.run.chaos),
     .value_name = "FAULTS",
     .help = "faults to inject, \"kill:rank=2@step=50; stop:rank=1@time=3s,for=3s\"; see "
             "docs/chaos.md"},
    {.key = NULL},
};

const gr_config_table gr_run_table = {.name = "run",
                                      .title = "Flags of `gradus run`",
                                      .fields = run_fields,
                                      .foreign = gr_run_foreign,
                                      .struct_bytes = sizeof(gr_run_options)};

void gr_run_print_help(void)
{
    puts("usage: gradus run [flags] job.yaml [flags]\n"
         "       gradus run [flags] [--] command [arguments]\n"
         "       gradus run -f manifest.yaml (a Kubernetes job; see gradus run -f x --help)\n\n"
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

/* What only a job file has a use for. */
static gr_status check_command(const gr_run_options *options, const char *command, gr_diag *diag)
{
    const struct {
        const char *flag;
        bool is_given;
    } of_jobs[] = {{"--json", options->job.run.json},
                   {"--output", options->job.output != NULL},
                   {"--set", options->job.set != NULL},
                   {"--checkpoint-every", options->job.checkpoint_every != NULL},
                   {"--checkpoint-to", options->job.checkpoint_to != NULL}};
    for (size_t i = 0; i < sizeof of_jobs / sizeof of_jobs[0]; i++) {
        if (of_jobs[i].is_given) {
            return gr_fail(diag, GR_E_INVALID, "run: %s is for job files; \"%s\" is a command",
                           of_jobs[i].flag, command);
        }
    }
    return options->resume ? gr_fail(diag, GR_E_INVALID,
                                     "run: --resume is for job files; \"%s\" is a command, and "
                                     "goes on by its own means",
                                     command)
                           : GR_OK;
}

gr_status gr_run_read_line(gr_cli_run *run, int argc, char *const *argv, bool *help_out,
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
        return check_command(&run->options, argv[at], diag);
    }
    run->job_path = argv[at++];
    status = gr_config_from_args(&gr_run_table, &run->options, argc, argv, &at, &dashes, help_out,
                                 &run->arena, diag);
    int settings = 0;
    while (status == GR_OK && run->options.job.set != NULL &&
           run->options.job.set[settings] != NULL) {
        settings++;
    }
    if (settings > GR_RUN_SETTINGS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "run: --set stands there %d times; at most %d", settings,
                       GR_RUN_SETTINGS_MAX);
    }
    if (status == GR_OK && !*help_out && at < argc) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: \"%s\" behind the job file \"%s\" means nothing here; to run a "
                       "command, write -- in front of it",
                       argv[at], run->job_path);
    }
    return status;
}
