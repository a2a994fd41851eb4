/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus run`: a job file, or any command, with many workers, here or on other hosts. */

#include "cli/run.h"

#include "base/fail.h"
#include "base/file.h"
#include "cli/environment.h"
#include "launch/agent.h"
#include "link/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 4 << 20, INPUT_BYTES_MAX = 48 << 20, SLOW_PERIOD_US = 20000 };

static void print_plan(const gr_cli_run *run)
{
    int workers = (int)run->options.workers;
    gr_cores part;
    char list[GR_CORES_TEXT_BYTES];
    printf("%d worker%s of:", workers, workers == 1 ? "" : "s");
    for (char *const *word = run->command; *word != NULL; word++) {
        printf(" %s", *word);
    }
    putchar('\n');
    for (int role = 0; role < GR_ROLE_COUNT; role++) {
        int first = gr_roles_first(&run->roles, (gr_role)role), count = run->roles.counts[role];
        if (count > 0) {
            printf("%s: rank%s %d", gr_role_name((gr_role)role), count == 1 ? "" : "s", first);
            printf(count == 1 ? "\n" : " to %d\n", first + count - 1);
        }
    }
    if (run->options.servers > 0) {
        printf("%d parameter server%s beside them\n", (int)run->options.servers,
               run->options.servers == 1 ? "" : "s");
    }
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
    if (!run->options.bind || !gr_cores_deal(&run->cores, workers, 0, &part)) {
        gr_cores_print(&run->cores, list, sizeof list);
        printf("no worker is bound to a core of its own; all may use %s\n", list);
    }
}

static int64_t slots_of(const gr_run_options *options)
{
    int64_t most =
        options->workers_max > options->workers ? options->workers_max : options->workers;
    return most + options->spares;
}

/* Other hosts cannot tell a launcher that died from one that they are cut off from, and who is cut
 * off must end without a word: the others may go on. */
static gr_status check_orphans(gr_cli_run *run, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    if (options->orphans != GR_RUN_ORPHANS_FINISH ||
        (run->job_path != NULL && !gr_run_elsewhere(run))) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID, "run: --orphans finish is for job files on one host; %s",
                   run->job_path == NULL
                       ? "a command writes no checkpoint that is known here"
                       : "other hosts cannot know whether gradus run has died or they are cut off "
                         "from it while the others go on: leave them, or --orphans, out");
}

/* Which tasks the job does not wait for. With parameter servers the workers may be servers as well,
 * that the chief gives work to. */
static gr_status choose_helpers(gr_cli_run *run, gr_diag *diag)
{
    const int *counts = run->roles.counts;
    int success = run->options.success;
    bool chief = counts[GR_ROLE_CHIEF] + counts[GR_ROLE_MASTER] > 0;
    if (success == GR_RUN_SUCCESS_CHIEF && !chief) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --success-policy chief: --roles names no chief; add chief=1");
    }
    if (success == GR_RUN_SUCCESS_AUTO && chief && counts[GR_ROLE_PS] > 0) {
        success = GR_RUN_SUCCESS_CHIEF;
    }
    run->helpers = counts[GR_ROLE_PS] + counts[GR_ROLE_EVALUATOR] +
                   (success == GR_RUN_SUCCESS_CHIEF ? counts[GR_ROLE_WORKER] : 0);
    return GR_OK;
}

/* Each task is a worker, and none can be replaced: the others know its address. */
static gr_status check_roles(gr_cli_run *run, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    if (options->roles == NULL) {
        return options->success == GR_RUN_SUCCESS_AUTO
                   ? GR_OK
                   : gr_fail(diag, GR_E_INVALID, "run: --success-policy is for --roles");
    }
    if (run->job_path != NULL) {
        return gr_fail(diag, GR_E_INVALID, "run: --roles is for commands; \"%s\" is a job file",
                       run->job_path);
    }
    if (options->workers_min > 0 || options->workers_max > 0 || options->spares > 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: the tasks of --roles do not come and go; leave %s out",
                       options->workers_min > 0   ? "--min-workers"
                       : options->workers_max > 0 ? "--max-workers"
                                                  : "--spare");
    }
    gr_status status = gr_roles_parse(options->roles, &run->roles, diag);
    if (status == GR_OK && options->workers > 0 && options->workers != run->roles.tasks) {
        status = gr_fail(diag, GR_E_INVALID, "run: --roles are %d tasks, -np %lld workers",
                         run->roles.tasks, (long long)options->workers);
    }
    if (status == GR_OK) {
        status = choose_helpers(run, diag);
    }
    options->workers = run->roles.tasks;
    return status;
}

/* How many, for a command, and with how few: also before hosts are waited for, when the workers may
 * not be counted and the job not read yet. */
static gr_status check_numbers(gr_cli_run *run, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    bool counted = options->workers > 0, command = run->job_path == NULL;
    bool whole = command || run->document != NULL;
    if (options->workers_max > 0 && options->workers_max < options->workers) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --max-workers %lld is less than the %lld workers that the job starts "
                       "with",
                       (long long)options->workers_max, (long long)options->workers);
    }
    bool goes = (counted && options->workers_max > options->workers) || options->spares > 0;
    if (command && options->workers_min == 0 && goes) {
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
    if (whole && options->where.discovery != NULL &&
        (options->workers_min == 0 || (counted && options->workers_min >= slots_of(options)))) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --host-discovery-script is for jobs whose workers may come and go; "
                       "say between which numbers (--min-workers, --max-workers)");
    }
    if (options->cluster != NULL && !options->dry_run) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --cluster is for --dry-run, which says how many parameter servers the "
                       "workers of a job need");
    }
    if (whole && options->servers_file != NULL && options->servers == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --servers-file is for jobs with parameter servers (--servers)");
    }
    if (counted && options->workers_min > options->workers) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --min-workers %lld is more than the %lld workers that the job has",
                       (long long)options->workers_min, (long long)options->workers);
    }
    return GR_OK;
}

static gr_status check_workers(gr_cli_run *run, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    if (options->workers == 0) {
        options->workers = gr_run_room(run);
    }
    if (options->replicas < 0) {
        options->replicas = 1; /* for a command, which says nothing of it */
    }
    gr_status status = check_numbers(run, diag);
    return status == GR_OK && run->hosts.count > 0
               ? gr_host_list_deal(&run->hosts, (int)options->workers, diag)
               : status;
}

/* A command may set up its ranks as it likes: only what would be wrong for any is known here. */
static gr_status check_environment(gr_cli_run *run, gr_diag *diag)
{
    bool native = run->job_path != NULL;
    const gr_environment_job job = {
        .workers = (int)run->options.workers,
        .exact = native && !run->inexact,
        .all_join = native,
        .here = run->hosts.count == 0 || gr_host_list_all_local(&run->hosts),
        .by_tcp = strcmp(gr_run_link_choices[run->options.link], "tcp") == 0};
    return gr_environment_check_job(environ, &job, &run->arena, diag);
}

/* Of a time: `what` is done at once, and `then` (0: nothing) after its time. */
static void add_faults(gr_cli_run *run, const gr_fault *fault, int what, int then)
{
    bool of_server = fault->server >= 0;
    gr_launch_fault one = {.at_us = fault->time_us,
                           .of_server = of_server,
                           .number = (int)(of_server ? fault->server : fault->rank),
                           .what = what};
    int64_t for_us = fault->for_us;
    if (fault->kind == GR_FAULT_SLOW) { /* it stands still for the rest of each period */
        one.every_us = SLOW_PERIOD_US;
        one.at_us = (int64_t)(SLOW_PERIOD_US / fault->times);
        for_us = SLOW_PERIOD_US - one.at_us;
    }
    run->faults[run->fault_count++] = one;
    if (then != 0) {
        one.at_us += for_us;
        one.what = then;
        run->faults[run->fault_count++] = one;
    }
}

/* Faults of a time are the launcher's, and all of a command; those of a step are the workers'. */
static gr_status read_chaos(gr_cli_run *run, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    gr_chaos chaos = {.count = 0};
    gr_status status = options->job.run.chaos == NULL
                           ? GR_OK
                           : gr_chaos_parse(options->job.run.chaos, options->workers,
                                            options->servers, &run->arena, &chaos, diag);
    for (int i = 0; i < chaos.count && status == GR_OK; i++) {
        const gr_fault *fault = &chaos.faults[i];
        bool command = run->job_path == NULL;
        bool slow = fault->kind == GR_FAULT_SLOW;
        if (command && slow &&
            (fault->step > 0 || fault->times == 0 || fault->again || fault->until != NULL)) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: --chaos: a command has no steps that are known here: it is slow "
                           "all the time, as in slow:rank=%lld,x4",
                           (long long)fault->rank);
        }
        if (command && fault->step > 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: --chaos: a command has no steps that are known here; write a "
                           "time after the start, as in @time=3s");
        }
        if (!command && fault->kind == GR_FAULT_CUT &&
            strcmp(gr_run_link_choices[options->link], "tcp") != 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: --chaos: cut: is for tcp links, and the workers share memory; "
                           "add --link tcp");
        }
        if (fault->step > 0 || (slow && !command)) {
            continue; /* the worker's */
        }
        static const struct done {
            int what, then;
        } done[] = {[GR_FAULT_STOP] = {SIGSTOP, SIGCONT},
                    [GR_FAULT_SLOW] = {SIGSTOP, SIGCONT},
                    [GR_FAULT_CUT] = {GR_AGENT_FAULT_CUT, GR_AGENT_FAULT_HEAL},
                    [GR_FAULT_GARBAGE] = {GR_AGENT_FAULT_GARBAGE, 0}};
        bool kills = fault->kind == GR_FAULT_KILL;
        add_faults(run, fault, kills ? gr_fault_signals[fault->signal] : done[fault->kind].what,
                   kills ? 0 : done[fault->kind].then);
    }
    return status;
}

static gr_status read_export(gr_cli_run *run, gr_diag *diag)
{
    gr_status status = gr_export(run->options.export, environ, &run->arena, &run->exported, diag);
    if (status == GR_OK && run->exported.absent != NULL) {
        gr_log_write(&run->log, GR_LOG_WARN, "run", "--export: %s is not set here",
                     run->exported.absent);
    }
    return status;
}

static gr_status read_input(gr_cli_run *run, gr_diag *diag)
{
    const char *path = run->options.input;
    if (path == NULL) {
        return GR_OK;
    }
    if (run->job_path != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --stdin is for a command; the workers of a job file read the job");
    }
    size_t size_bytes = 0;
    gr_status status = gr_file_read(path, INPUT_BYTES_MAX, &run->document, &size_bytes, diag);
    if (status == GR_OK && strlen(run->document) != size_bytes) {
        return gr_fail(diag, GR_E_INVALID, "run: --stdin %s has a zero byte; give a text", path);
    }
    return status;
}

static gr_status check_job_file(gr_cli_run *run, gr_diag *diag)
{
    bool waits = run->options.where.listen != NULL || run->options.where.discovery != NULL;
    return run->job_path != NULL && waits && !run->again ? gr_run_check_job_file(run, diag) : GR_OK;
}

static gr_status read_job(gr_cli_run *run, gr_diag *diag)
{
    return run->job_path == NULL ? GR_OK
           : run->again          ? gr_run_read_job_again(run, diag)
                                 : gr_run_read_job(run, diag);
}

/* Everything that the user gave is checked before anything is started. */
static gr_status check(gr_cli_run *run, gr_diag *diag)
{
    static gr_status (*const checks[])(gr_cli_run * run, gr_diag * diag) = {
        read_export,       check_roles,       check_orphans,     check_numbers,
        check_job_file,    read_input, /* until here all before hosts are waited for */
        gr_run_find_hosts, check_orphans,     gr_run_find_cores, read_job,
        check_workers,     check_environment, read_chaos};
    gr_status status = GR_OK;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && status == GR_OK; i++) {
        status = checks[i](run, diag);
    }
    return status;
}

static int work(gr_cli_run *run)
{
    gr_diag diag = {0};
    gr_status status = check(run, &diag);
    if (status == GR_OK && run->supervisor != NULL) {
        status = gr_run_publish(run, &diag);
    }
    int code;
    if (status != GR_OK && run->again) { /* it had begun: the line was right then */
        code = gr_cli_fail(status == GR_E_CANCELLED ? GR_EXIT_RESUME : GR_EXIT_FAILED, &diag);
    } else if (status != GR_OK) {
        code = gr_cli_refuse(status, &diag);
    } else {
        gr_cores_sort_by_topology(&run->cores);
        if (run->options.dry_run && run->job_path == NULL) {
            print_plan(run);
        } else if (run->options.dry_run && run->options.job.run.json) {
            fputs(run->document, stdout);
        }
        code = run->options.dry_run ? gr_cli_flush() : gr_run_attempts(run);
    }
    for (int i = 0; i < run->hosts.count; i++) {
        gr_join_refuse(&run->hosts.at[i]); /* who has come and was not taken */
    }
    gr_acceptor_destroy(run->acceptor);
    return code;
}

int gr_verb_run(int argc, char *const *argv)
{
    if (gr_run_manifest_is_asked(argc, argv)) {
        return gr_run_manifest(argc, argv);
    }
    gr_cli_run run = {.log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr}};
    gr_diag diag = {0};
    bool help = false;
    gr_arena_init(&run.arena, ARENA_BYTES_MAX);
    gr_status status = gr_run_read_line(&run, argc, argv, &help, &diag);
    if (status == GR_OK && !help) {
        status = gr_environment_check(environ, &run.arena, &diag);
    }
    int code;
    if (status != GR_OK) {
        code = gr_cli_refuse(status, &diag);
    } else if (help) {
        gr_run_print_help();
        code = gr_cli_flush();
    } else if (run.options.dry_run) {
        code = work(&run);
    } else {
        code = gr_run_supervise(&run, argc, argv, work);
    }
    free(run.document);
    gr_arena_fini(&run.arena);
    return code;
}
