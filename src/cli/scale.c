/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus scale`: another number of workers for a job that runs. */

#include "launch/scale.h"
#include "base/fail.h"
#include "cli/cli.h"
#include "launch/launch.h"

#include <stddef.h>

typedef struct scale_options {
    int64_t job, to;
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
     .type = GR_CONFIG_INT,
     .offset = offsetof(scale_options, job),
     .value_name = "PID",
     .min = 1,
     .max = INT32_MAX,
     .help = "process number of its `gradus run`; not needed where you have one job on this host"},
    {.key = NULL},
};

const gr_config_table gr_scale_table = {.name = "scale",
                                        .title = "Flags of `gradus scale`",
                                        .fields = scale_fields,
                                        .struct_bytes = sizeof(scale_options)};

enum { LISTED_MAX = 8 };

static void print_usage(void)
{
    puts("usage: gradus scale [--to N] [--job PID]\n\n"
         "Gives a job that runs on this host more workers, or fewer. It grows and shrinks between\n"
         "two steps, within what it was started for (--min-workers, --max-workers of gradus run,\n"
         "or number_of_workers: {min, max}), and ends with the same bits as without.\n"
         "Exit code: 0 done, 1 the job refuses or does not answer, 2 what was given is wrong.\n");
}

static gr_status find_job(int64_t *job, gr_diag *diag)
{
    pid_t launchers[LISTED_MAX];
    int count = gr_scale_find(launchers, LISTED_MAX);
    if (count == 1) {
        *job = launchers[0];
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   count == 0 ? "scale: you have no job on this host that can grow or shrink"
                              : "scale: you have several jobs on this host; say which by --job PID "
                                "(of its gradus run)");
}

static int scale(const gr_cli_line *line)
{
    scale_options *options = line->options;
    gr_diag diag = {0};
    gr_scale_reply reply;
    gr_status status = options->job == 0 ? find_job(&options->job, &diag) : GR_OK;
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    status = gr_scale_ask((pid_t)options->job, (int)options->to, &reply, &diag);
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

const gr_cli_form gr_scale_form = {.table = &gr_scale_table, .usage = print_usage, .work = scale};
