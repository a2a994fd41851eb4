/* SPDX-License-Identifier: Apache-2.0 */

/* Where the workers of `gradus run` are to be: hosts, and the cores of this one. */

#include "cli/run.h"

#include "base/fail.h"
#include "base/hash.h"
#include "launch/discover.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool gr_run_elsewhere(const gr_cli_run *run)
{
    return run->options.where.discovery != NULL || run->options.where.listen != NULL ||
           (run->hosts.count > 0 && !gr_host_list_all_local(&run->hosts));
}

static gr_status open_door(gr_cli_run *run, gr_diag *diag)
{
    uint8_t token[GR_SECRET_BYTES];
    gr_status status = gr_join_token(true, token, diag);
    if (status == GR_OK) {
        status = gr_join_listen(run->options.where.listen, token, &run->log, &run->acceptor, diag);
        gr_wipe(token, sizeof token);
    }
    if (status == GR_OK) {
        fprintf(stderr, "gradus: agents may join at %s\n",
                gr_acceptor_remote_address(run->acceptor));
    }
    return status;
}

gr_status gr_run_gather_hosts(gr_cli_run *run, int need, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    gr_status status = GR_OK;
    if (options->where.discovery != NULL) {
        gr_discovery discovery = {.script = options->where.discovery,
                                  .environment = environ,
                                  .slots_per_host = (int)options->where.slots_per_host};
        status = gr_discovery_gather(&discovery, need, options->where.discovery_us,
                                     options->start_timeout_us, &run->arena, &run->hosts, diag);
    } else if (run->acceptor != NULL) {
        status = gr_join_gather(run->acceptor, need, options->start_timeout_us, &run->arena,
                                &run->hosts, diag);
    }
    return status;
}

/* One host, which is this one, needs no list. */
static gr_status find_allocation(gr_cli_run *run, gr_diag *diag)
{
    const gr_placement *found = NULL;
    gr_status status = gr_placement_list(environ, &run->arena, &run->hosts, &found, diag);
    run->placement = status == GR_OK ? found : run->placement;
    return status == GR_E_NOT_FOUND ? GR_OK : status;
}

gr_status gr_run_find_hosts(gr_cli_run *run, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    gr_status status = GR_OK;
    const char *const ways[][2] = {{"-H", options->where.hosts},
                                   {"--hostfile", options->where.hostfile},
                                   {"--host-discovery-script", options->where.discovery},
                                   {"--listen", options->where.listen}};
    const char *said = NULL;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (ways[i][1] != NULL && said != NULL) {
            return gr_fail(diag, GR_E_INVALID,
                           "run: %s and %s both say which hosts to use; leave one of them out",
                           said, ways[i][0]);
        }
        said = ways[i][1] != NULL ? ways[i][0] : said;
    }
    if (options->where.remote_program != NULL &&
        strlen(options->where.remote_program) >= PATH_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: --remote-program has %zu characters; no path has more than %d",
                       strlen(options->where.remote_program), PATH_MAX - 1);
    }
    int64_t need = options->workers > 0 ? options->workers : options->workers_min;
    need = need > 0 ? need : 1;
    if (options->where.listen != NULL && !options->dry_run) {
        status = open_door(run, diag);
    }
    if (status == GR_OK && (options->where.discovery != NULL || run->acceptor != NULL)) {
        status = gr_run_gather_hosts(run, (int)need, diag);
    } else if (options->where.hosts != NULL) {
        status = gr_host_list_parse(options->where.hosts, "-H", &run->arena, &run->hosts, diag);
    } else if (options->where.hostfile != NULL) {
        status = gr_host_list_read(options->where.hostfile, &run->arena, &run->hosts, diag);
    }
    run->placement = &gr_placement_ssh;
    if (status == GR_OK && said == NULL && options->where.slurm) {
        status = find_allocation(run, diag);
    }
    if (status != GR_OK || options->where.remote_program != NULL) {
        snprintf(run->program, sizeof run->program, "%s",
                 status == GR_OK ? options->where.remote_program : "");
        return status;
    }
    ssize_t size = readlink("/proc/self/exe", run->program, sizeof run->program - 1);
    run->program[size > 0 ? size : 0] = '\0';
    return GR_OK;
}

static bool uses_own_cores(const gr_cli_run *run)
{
    bool local = run->hosts.count == 0;
    for (int i = 0; i < run->hosts.count; i++) {
        local = local || run->hosts.at[i].local;
    }
    return local;
}

gr_status gr_run_find_cores(gr_cli_run *run, gr_diag *diag)
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

int gr_run_room(const gr_cli_run *run)
{
    int room = run->hosts.count > 0 ? gr_host_list_slots(&run->hosts) : run->cores.count;
    return room < GR_LAUNCH_WORKERS_MAX ? room : GR_LAUNCH_WORKERS_MAX;
}
