/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/self.h"
#include "base/fail.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/environment.h"
#include "launch/launch.h"

#include <string.h>
#include <unistd.h>

gr_status gr_self_count(int64_t asked, int least, int *ranks_out, gr_diag *diag)
{
    gr_cores cores;
    gr_status status = gr_cores_allowed(&cores, diag);
    int fitting = cores.count < GR_LAUNCH_WORKERS_MAX ? cores.count : GR_LAUNCH_WORKERS_MAX;
    *ranks_out = asked > 0 ? (int)asked : fitting > least ? fitting : least;
    return status;
}

int gr_self_launch(int argc, char *const *argv, int ranks, gr_arena *arena)
{
    const int64_t start_timeout_us = 30000000, grace_us = 5000000;
    char **words = gr_arena_alloc(arena, ((size_t)argc + 2) * sizeof *words);
    gr_cores cores;
    gr_diag diag = {0};
    gr_status status = words ? gr_cores_allowed(&cores, &diag)
                             : gr_fail(&diag, GR_E_NO_MEMORY, "the command line is too long");
    if (status == GR_OK) {
        status = gr_environment_check_job(
            environ, &(gr_environment_job){.workers = ranks, .here = true}, arena, &diag);
    }
    if (status != GR_OK) {
        return gr_cli_refuse(status, &diag);
    }
    words[0] = "gradus";
    memcpy(words + 1, argv, (size_t)argc * sizeof *words);
    words[argc + 1] = NULL;
    gr_cores_sort_by_topology(&cores);
    const gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    const char *const defaults[] = {"OMP_NUM_THREADS=1", NULL};
    const gr_launch_config config = {.workers = ranks,
                                     .command = {.argv = words,
                                                 .file = "/proc/self/exe",
                                                 .environment = environ,
                                                 .defaults = defaults},
                                     .cores = &cores,
                                     .bind = true,
                                     .all_join = true,
                                     .start_timeout_us = start_timeout_us,
                                     .grace_us = grace_us,
                                     .output = {.out_fd = STDOUT_FILENO,
                                                .err_fd = STDERR_FILENO,
                                                .prefix = true,
                                                .raw_rank0 = true},
                                     .log = &log};
    gr_launch_report report;
    status = gr_launch_run(&config, &report, &diag);
    if (status == GR_OK) {
        return GR_EXIT_DONE;
    }
    fprintf(stderr, "gradus: %s\n%s%s", diag.text, report.tail, report.last);
    return status == GR_E_NOT_FOUND || status == GR_E_INVALID ? GR_EXIT_INPUT : GR_EXIT_FAILED;
}

int gr_self_failed(int rank, gr_status status, const gr_diag *diag)
{
    bool input = status == GR_E_INVALID && rank != 0; /* rank 0 says it for all */
    if (!input) {
        gr_cli_fail(GR_EXIT_FAILED, diag);
    }
    return input || gr_fault_of_peer(status) ? GR_LAUNCH_EXIT_PEER
           : status == GR_E_INVALID          ? GR_EXIT_INPUT
                                             : GR_EXIT_FAILED;
}
