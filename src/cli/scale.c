/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus scale`: another number of workers for a job that runs. */

#include "launch/scale.h"
#include "base/fail.h"
#include "base/number.h"
#include "cli/cli.h"
#include "launch/agent/takeover.h"
#include "launch/launch.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct scale_options {
    int64_t to;
    const char *job;
} scale_options;

static const gr_config_field scale_fields[] = {
    {.flag = "--to",
     .type = GR_CONFIG_INT,
     .offset = offsetof(scale_options, to),
     .value_name = "N",
     .min = 1,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "workers that the job is to have; otherwise only how many it has is told"},
    {.flag = "--job",
     .type = GR_CONFIG_TEXT,
     .offset = offsetof(scale_options, job),
     .value_name = "JOB",
     .help = "its name (gradus ls), or the process number of its launcher; not needed where you "
             "have one job on this host"},
    {.key = NULL},
};

const gr_config_table gr_scale_table = {.name = "scale",
                                        .title = "Flags of `gradus scale`",
                                        .fields = scale_fields,
                                        .struct_bytes = sizeof(scale_options)};

enum { LISTED_MAX = 8 };

static void print_usage(void)
{
    puts("usage: gradus scale [JOB [N]]\n"
         "       gradus scale [--to N] [--job JOB]\n\n"
         "Gives a job that runs on this host more workers, or fewer. It grows and shrinks between\n"
         "two steps, within what it was started for (--min-workers, --max-workers of gradus run,\n"
         "or number_of_workers: {min, max}), and ends with the same bits as without.\n"
         "Exit code: 0 done, 1 the job refuses or does not answer, 2 what was given is wrong.\n");
}

static gr_status find_only_job(pid_t *process_out, gr_diag *diag)
{
    pid_t launchers[LISTED_MAX];
    int count = gr_scale_find(launchers, LISTED_MAX);
    if (count == 1) {
        *process_out = launchers[0];
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   count == 0 ? "scale: you have no job on this host that can grow or shrink"
                              : "scale: you have several jobs on this host; say which (gradus ls)");
}

/* The supervisor of the job of that name, or, with a number above 0, of the one that has this
 * launcher; 0: there is none. */
static pid_t find_supervisor(const char *name, pid_t launcher)
{
    gr_process supervisor = {.fd = -1};
    gr_job_folder folder;
    gr_job_status status;
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return 0;
    }
    bool ours = launcher == 0 || (gr_takeover_ask(&folder, GR_JOB_STATUS, &status, NULL) == GR_OK &&
                                  status.launcher == launcher);
    if (ours && gr_takeover_find(&folder, &supervisor, NULL) == GR_OK) {
        gr_process_close(&supervisor);
    }
    gr_job_folder_close(&folder);
    return supervisor.pid;
}

static pid_t find_by_launcher(pid_t launcher)
{
    enum { NAMES_MAX = 1024 };
    char(*names)[GR_JOB_NAME_BYTES] = malloc(NAMES_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, NAMES_MAX, NULL) : 0;
    pid_t supervisor = 0;
    for (int i = 0; i < count && supervisor == 0; i++) {
        supervisor = find_supervisor(names[i], launcher);
    }
    free(names);
    return supervisor;
}

/* Which process to ask. */
static gr_status find_job(const char *job, pid_t *process_out, gr_diag *diag)
{
    int64_t number;
    if (job == NULL) {
        return find_only_job(process_out, diag);
    }
    *process_out = find_supervisor(job, 0);
    if (*process_out == 0 && gr_number_int(job, &number) == GR_NUMBER_OK && number > 0 &&
        number <= INT32_MAX) {
        pid_t supervisor = find_by_launcher((pid_t)number);
        *process_out = supervisor != 0 ? supervisor : (pid_t)number;
    }
    return *process_out != 0
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID,
                         "scale: you have no job \"%s\" that runs on this host; gradus ls lists "
                         "those that you have",
                         job);
}

static gr_status read_words(const gr_cli_line *line, scale_options *options, gr_diag *diag)
{
    if (line->word_count > 0) {
        options->job = line->words[0];
    }
    if (line->word_count > 1 && (gr_number_int(line->words[1], &options->to) != GR_NUMBER_OK ||
                                 options->to < 1 || options->to > GR_LAUNCH_WORKERS_MAX)) {
        return gr_fail(diag, GR_E_INVALID, "scale: \"%s\" is no number of workers from 1 to %d",
                       line->words[1], GR_LAUNCH_WORKERS_MAX);
    }
    return GR_OK;
}

static int scale(const gr_cli_line *line)
{
    scale_options *options = line->options;
    gr_diag diag = {0};
    gr_scale_reply reply;
    pid_t process = 0;
    gr_status status = read_words(line, options, &diag);
    if (status == GR_OK) {
        status = find_job(options->job, &process, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    status = gr_scale_ask(process, (int)options->to, &reply, &diag);
    if (status != GR_OK) {
        return gr_cli_fail(status == GR_E_NOT_FOUND ? GR_EXIT_INPUT : GR_EXIT_FAILED, &diag);
    }
    if (reply.status != GR_OK) {
        fprintf(stderr, "gradus: %s\n", reply.text);
        return GR_EXIT_FAILED;
    }
    puts(reply.text);
    return gr_cli_flush();
}

const gr_cli_form gr_scale_form = {
    .table = &gr_scale_table, .usage = print_usage, .words_max = 2, .work = scale};
