/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus tune`: measures every algorithm of every collective by size on this host, and writes what
 * is fastest into a file for GRADUS_TUNE. */

#include "cli/tune.h"
#include "base/fail.h"
#include "cli/cli.h"
#include "cli/self.h"
#include "launch/launch.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_BYTES = 64 };

static const double size_max = 1LL << 32;

#define AT(member) .offset = offsetof(gr_tune_options, member)
static const gr_config_field tune_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     AT(workers),
     .min = 2,
     .max = GR_LAUNCH_WORKERS_MAX,
     .help = "number of ranks to start on this host; otherwise one for each core, at least 2"},
    {.flag = "--output",
     .short_flag = 'o',
     .type = GR_CONFIG_TEXT,
     AT(output),
     .value_name = "FILE",
     .help = "what to write; otherwise tune-LINK-RANKS.txt"},
    {.flag = "--link",
     GR_GROUP_ROW_LINK,
     AT(link),
     .help = "how ranks reach each other; auto: shm if all are on one host"},
    {.flag = "--time",
     .type = GR_CONFIG_DURATION,
     AT(time_us),
     .default_text = "20ms",
     .min = 1,
     .max = 60e6,
     .help = "time to measure each algorithm at each size; at least one operation a round"},
    {.flag = "--rounds",
     .type = GR_CONFIG_INT,
     AT(rounds),
     .default_text = "5",
     .min = 1,
     .max = 15,
     .help = "passes over the algorithms at each size; the median counts"},
    {.flag = "--begin",
     .short_flag = 'b',
     .type = GR_CONFIG_BYTES,
     AT(begin_bytes),
     .default_text = "64",
     .min = 4,
     .max = size_max,
     .help = "smallest size"},
    {.flag = "--end",
     .short_flag = 'e',
     .type = GR_CONFIG_BYTES,
     AT(end_bytes),
     .default_text = "16m",
     .min = 4,
     .max = size_max,
     .help = "largest size; from one to the next it is four times more"},
    {.key = NULL},
};
#undef AT

const gr_config_table gr_tune_table = {.name = "tune",
                                       .title = "Flags of `gradus tune`",
                                       .fields = tune_fields,
                                       .struct_bytes = sizeof(gr_tune_options)};

static void print_usage(void)
{
    puts("usage: gradus tune [flags]\n"
         "       gradus run [flags] -- gradus tune [flags]\n\n"
         "Runs every algorithm of every collective at each size, prints the fastest ones, and\n"
         "writes a file. GRADUS_TUNE=FILE makes jobs on such a machine, with as many ranks over\n"
         "the same link, choose by it. Leave the machine alone meanwhile.\n");
}

/* ---- A rank ---------------------------------------------------------------------------------- */
static gr_status write_file(gr_comm *comm, const gr_tune_options *options,
                            const gr_tune_points *points, gr_diag *diag)
{
    char path[PATH_BYTES];
    const gr_selection *selection = gr_comm_selection(comm);
    gr_tuning *tuning = malloc(sizeof *tuning);
    if (!tuning) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the rules");
    }
    gr_tuning_init(tuning, gr_comm_size(comm), selection->link, selection->rails);
    tuning->model = selection->model;
    for (int exact = 0; exact < 2; exact++) {
        gr_tune_rules(points, exact, &tuning->rules[exact]);
    }
    snprintf(path, sizeof path, "tune-%s-%d.txt", gr_link_kind_name(selection->link),
             gr_comm_size(comm));
    const char *name = options->output ? options->output : path;
    gr_status status = gr_tuning_write(name, tuning, points->all, points->count, diag);
    if (status == GR_OK) {
        printf("\nwritten to %s; use it by GRADUS_TUNE=%s\n", name, name);
    }
    free(tuning);
    return status;
}

static int run_rank(const gr_tune_options *options, gr_group_config *job)
{
    gr_tune_points points = {.all = NULL};
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_diag_clear(&diag);
    int rank = (int)job->rank;
    job->link = options->link;
    job->algorithm = NULL;
    job->exact = false;
    job->tune = "auto";
    gr_status status = job->world_size >= 2 ? gr_comm_create_from(job, &comm, &diag)
                                            : gr_fail(&diag, GR_E_INVALID,
                                                      "tune: one rank alone has nothing to choose");
    gr_group_config_wipe(job);
    if (status == GR_OK) {
        status = gr_tune_measure(comm, options, &points, &diag);
    }
    if (status == GR_OK && rank == 0) {
        status = write_file(comm, options, &points, &diag);
    }
    int code = status == GR_OK ? gr_cli_flush() : gr_self_failed(rank, status, &diag);
    gr_comm_destroy(comm);
    free(points.all);
    return code;
}

static int tune(const gr_cli_line *line)
{
    const gr_tune_options *options = line->options;
    gr_diag diag = {0};
    gr_group_config job;
    int ranks = 0;
    gr_status status = options->end_bytes >= options->begin_bytes
                           ? gr_group_config_from_env(&job, line->arena, &diag)
                           : gr_fail(&diag, GR_E_INVALID, "tune: --end must be at least --begin");
    if (status == GR_OK) {
        status = gr_self_count(options->workers, 2, &ranks, &diag);
    }
    if (status == GR_OK && job.rank < 0 && options->output != NULL) {
        status = gr_cli_check_target(options->output, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    return job.rank >= 0 ? run_rank(options, &job)
                         : gr_self_launch(line->argc, line->argv, ranks, line->arena);
}

const gr_cli_form gr_tune_form = {
    .table = &gr_tune_table, .usage = print_usage, .by_environment = true, .work = tune};
