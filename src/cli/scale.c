/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus scale`: another number of workers for a job that runs. */

#include "base/fail.h"
#include "base/number.h"
#include "cli/cluster.h"
#include "launch/agent/takeover.h"
#include "launch/launch.h"
#include "launch/schedule/schedule.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct scale_options {
    gr_cluster_flags cluster;
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
    GR_CLI_ROWS_CLUSTER(scale_options, cluster),
    {.key = NULL},
};

const gr_config_table gr_scale_table = {.name = "scale",
                                        .title = "Flags of `gradus scale`",
                                        .fields = scale_fields,
                                        .struct_bytes = sizeof(scale_options)};

static void print_usage(void)
{
    puts("usage: gradus scale [JOB [N]]\n"
         "       gradus scale [--to N] [--job JOB]\n"
         "       gradus scale JOB [N] -n NAMESPACE [--context NAME]\n\n"
         "Gives a job that runs on this host more workers, or fewer. It grows and shrinks between\n"
         "two steps, within what it was started for (--min-workers, --max-workers of gradus run,\n"
         "or number_of_workers: {min, max}), and ends with the same bits as without.\n"
         "Exit code: 0 done, 1 the job refuses or does not answer, 2 what was given is wrong.\n"
         "With the flags of a cluster: a job there, if it is a GradusJob, an MPIJob or a\n"
         "PyTorchJob, or was sent by gradus submit --elastic.\n");
}

/* Returns true if `launcher` has the job; with 0, if the job can grow or shrink. */
static bool is_meant(const char *name, pid_t launcher)
{
    gr_job_folder folder;
    gr_job_status status = {.most = 0};
    if (gr_job_folder_open(name, &folder, NULL) != GR_OK) {
        return false;
    }
    bool asked = gr_takeover_ask(&folder, GR_JOB_STATUS, 0, &status, NULL) == GR_OK;
    gr_job_folder_close(&folder);
    return asked && (launcher != 0 ? status.launcher == launcher : status.most > 0);
}

/* The job that has this launcher, or, with 0, one that can grow or shrink. Returns how many there
 * are. */
static int find_jobs(pid_t launcher, char name_out[GR_JOB_NAME_BYTES])
{
    enum { NAMES_MAX = 1024 };
    char(*names)[GR_JOB_NAME_BYTES] = malloc(NAMES_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, NAMES_MAX, NULL) : 0, found = 0;
    for (int i = 0; i < count; i++) {
        if (is_meant(names[i], launcher)) {
            snprintf(name_out, GR_JOB_NAME_BYTES, "%s", names[i]);
            found++;
        }
    }
    free(names);
    return found;
}

/* Which job to ask: the one of that name, or of the launcher with that number. */
static gr_status find_job(const char *job, gr_job_folder *folder_out, gr_diag *diag)
{
    char name[GR_JOB_NAME_BYTES] = "";
    int64_t number = 0;
    if (job == NULL) {
        int count = find_jobs(0, name);
        if (count != 1) {
            return gr_fail(
                diag, GR_E_INVALID,
                count == 0 ? "scale: you have no job on this host that can grow or shrink"
                           : "scale: you have several jobs on this host; say which (gradus ls)");
        }
        return gr_job_folder_open(name, folder_out, diag);
    }
    if (gr_job_folder_open(job, folder_out, NULL) == GR_OK) {
        return GR_OK;
    }
    if (gr_number_int(job, &number) == GR_NUMBER_OK && number > 0 && number <= INT32_MAX &&
        find_jobs((pid_t)number, name) > 0) {
        return gr_job_folder_open(name, folder_out, diag);
    }
    return gr_fail(diag, GR_E_INVALID,
                   "scale: you have no job \"%s\" that runs on this host; gradus ls lists those "
                   "that you have",
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

/* What came of it; `job` is as it was before, with the scheduler's word. */
static int print_answer(const gr_job_status *job, int asked)
{
    const char *workers = job->want == 1 ? "worker" : "workers";
    if (job->most > 0 && job->word == GR_WORD_NONE) {
        printf("the job has %d %s; it may have %d to %d\n", job->want, workers, job->least,
               job->most);
        return gr_cli_flush();
    }
    if (job->most > 0 && job->word == GR_WORD_GRANTED) {
        printf("the job goes from %d to %d workers\n", job->want, asked);
        return gr_cli_flush();
    }
    if (job->most == 0) {
        fprintf(stderr,
                "gradus: the job has %d %s, and can neither grow nor shrink (--min-workers and "
                "--max-workers of gradus run)\n",
                job->want, workers);
    } else if (job->word == GR_WORD_NEVER) {
        fprintf(stderr,
                "gradus: the job may have %d to %d workers, %d are not possible (--min-workers and "
                "--max-workers of gradus run, and the slots of its hosts)\n",
                job->least, job->most, asked);
    } else {
        fprintf(stderr, "gradus: the job is %s; it has %d %s\n",
                job->word == GR_WORD_STARTING ? "still starting: try again" : "about to end",
                job->want, workers);
    }
    return GR_EXIT_FAILED;
}

static int scale(const gr_cli_line *line)
{
    scale_options *options = line->options;
    gr_diag diag = {0};
    gr_job_folder folder;
    gr_job_status job;
    gr_status status = read_words(line, options, &diag);
    if (status == GR_OK && gr_cluster_is_meant(&options->cluster)) {
        return options->job != NULL
                   ? gr_cluster_scale(&options->cluster, options->job, options->to)
                   : gr_cli_refuse(gr_fail(&diag, GR_E_INVALID,
                                           "scale needs the name of a job of the cluster"),
                                   &diag);
    }
    if (status == GR_OK) {
        status = find_job(options->job, &folder, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    status = gr_takeover_ask(&folder, options->to > 0 ? GR_JOB_SCALE : GR_JOB_STATUS,
                             (int)options->to, &job, &diag);
    if (status == GR_E_AGAIN) {
        (void)gr_fail(&diag, status, "scale: job %s does not run any more", folder.name);
    }
    gr_job_folder_close(&folder);
    if (status != GR_OK) {
        return gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    return print_answer(&job, (int)options->to);
}

const gr_cli_form gr_scale_form = {
    .table = &gr_scale_table, .usage = print_usage, .words_max = 2, .work = scale};
