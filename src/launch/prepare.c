/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "launch/environ.h"
#include "launch/gang.h"
#include "launch/meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* On this host alone. */
bool gr_gang_may_change(const gr_gang *gang)
{
    return gr_launch_elastic(gang->config) && gang->config->hosts == NULL;
}

static gr_status prepare_coordinator(gr_gang *gang, gr_diag *diag)
{
    gr_status status = gr_random_bytes(gang->secret, sizeof gang->secret, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_hex(gang->secret, sizeof gang->secret, gang->secret_hex);
    gr_coordinator_config config = {.world_size = gang->config->workers,
                                    .world_max = gang->slots,
                                    .members_min = gang->config->workers_min,
                                    .secret = gang->secret,
                                    .encrypt = gang->config->encrypt,
                                    .log = gang->config->log};
    status = gr_meeting_listen(gang->hosts, gang->config->environment, &config, diag);
    return status != GR_OK ? status : gr_coordinator_create(&config, &gang->coordinator, diag);
}

static gr_status prepare_workers(gr_gang *gang, gr_diag *diag)
{
    const gr_launch_config *config = gang->config;
    size_t count = (size_t)gang->slots;
    gang->places = gr_arena_alloc(&gang->arena, count * sizeof *gang->places);
    gang->newcomer = gr_arena_alloc(&gang->arena, count * sizeof *gang->newcomer);
    gang->ends = gr_arena_alloc(&gang->arena, count * sizeof *gang->ends);
    gang->spawns = gr_arena_alloc(&gang->arena, count * sizeof *gang->spawns);
    gang->environment = gr_arena_alloc(&gang->arena, count * sizeof *gang->environment);
    gang->parts = gr_arena_alloc(&gang->arena, count * sizeof *gang->parts);
    if (gang->ends == NULL || gang->spawns == NULL || gang->environment == NULL ||
        gang->parts == NULL || gang->places == NULL || gang->newcomer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", config->workers);
    }
    gang->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (gang->null_fd < 0) {
        return gr_fail(diag, GR_E_IO, "/dev/null cannot be opened: %s", strerror(errno));
    }
    bool changes = gr_gang_may_change(gang);
    gr_environ_config environment = {.inherited = config->environment,
                                     .world_size = config->workers,
                                     .workers_min = config->workers_min,
                                     .workers_max = changes ? gang->slots : 0,
                                     .secret_hex = gang->secret_hex,
                                     .set = config->set,
                                     .defaults = config->defaults};
    gang->records = gr_records_create(gang->slots);
    gr_meeting meeting = {.hosts = gang->hosts,
                          .environment = config->environment,
                          .coordinator = gr_coordinator_address(gang->coordinator)};
    gr_status status = gr_meeting_free_port(&environment.master_port, diag);
    for (int rank = 0; rank < gang->slots && status == GR_OK; rank++) {
        gang->places[rank].busy = rank < config->workers;
        gang->ends[rank].spared = rank >= config->workers;
        gr_spawn *spawn = &gang->spawns[rank];
        const gr_host *host = gr_hosts_of_rank(gang->hosts, rank);
        environment.rank = rank;
        environment.local_rank = rank - host->first;
        environment.local_size = changes ? config->workers : host->workers;
        environment.newcomer = false;
        environment.record = host->local ? gr_records_path(gang->records, rank) : NULL;
        status = gr_meeting_find(&meeting, host, &gang->arena, &environment, diag);
        if (status == GR_OK) {
            status = gr_environ_build(&environment, &gang->arena, &gang->environment[rank], diag);
        }
        if (status == GR_OK && changes) {
            environment.newcomer = true;
            status = gr_environ_build(&environment, &gang->arena, &gang->newcomer[rank], diag);
        }
        *spawn = (gr_spawn){.argv = config->argv,
                            .file = config->file,
                            .environment = gang->environment[rank],
                            .stdin_fd = gang->null_fd,
                            .stdout_fd = gr_output_worker_fd(gang->output, rank, 0),
                            .stderr_fd = gr_output_worker_fd(gang->output, rank, 1)};
        int most = changes ? gr_launch_most(config) : host->workers;
        if (config->bind && rank - host->first < most &&
            gr_cores_deal(config->cores, most, rank - host->first, &gang->parts[rank])) {
            spawn->cores = &gang->parts[rank];
        } else if (config->restrict_cores) {
            spawn->cores = config->cores;
        }
    }
    return status;
}

gr_status gr_gang_prepare(gr_gang *gang, gr_diag *diag)
{
    gr_status status = prepare_coordinator(gang, diag);
    return status == GR_OK ? prepare_workers(gang, diag) : status;
}
