/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "launch/environ.h"
#include "launch/launch_job.h"
#include "launch/rendezvous.h"
#include "link/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

bool gr_launch_job_may_change(const gr_launch_job *job)
{
    return gr_launch_elastic(job->config);
}

/* Does no other host take part, now or later? */
static bool here_only(const gr_launch_job *job)
{
    return job->config->discovery == NULL && job->config->acceptor == NULL &&
           (job->config->hosts == NULL || gr_host_list_all_local(job->config->hosts));
}

static gr_status prepare_coordinator(gr_launch_job *job, gr_diag *diag)
{
    uint8_t secret[GR_SECRET_BYTES];
    gr_status status = gr_random_bytes(secret, sizeof secret, diag);
    if (status == GR_OK && (job->secret = gr_secret_keep(secret)) == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
    }
    gr_wipe(secret, sizeof secret);
    if (status != GR_OK) {
        return status;
    }
    gr_coordinator_config config = {.world_size = job->config->workers,
                                    .world_max = job->slots,
                                    .members_min = job->config->workers_min,
                                    .secret = job->secret,
                                    .encrypt = job->config->encrypt,
                                    .peer_timeout_us = job->config->host_timeout_us,
                                    .log = job->config->log};
    status = gr_rendezvous_listen(here_only(job), job->config->environment, &config, diag);
    if (status == GR_OK) {
        status = gr_coordinator_create(&config, &job->coordinator, diag);
    }
    return status;
}

/* In the launcher, for each worker: both ends of two pipes, and two files with --log-dir; a
 * connection takes the place of the pipes' other ends. A record is one more, for as many as may
 * have it. */
enum { DESCRIPTORS_A_WORKER = 4, DESCRIPTORS_OF_LOGS = 2, DESCRIPTORS_BESIDE = 256 };

/* The soft limit that was reached, at least `least` and at most `most`; 0: `least` cannot be. */
static rlim_t raise_limit(const struct rlimit *limit, rlim_t least, rlim_t most)
{
    if (limit->rlim_cur >= most) {
        return most;
    }
    struct rlimit raised = {.rlim_cur = most,
                            .rlim_max = most > limit->rlim_max ? most : limit->rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) { /* only root raises the hard limit */
        return most;
    }
    raised = (struct rlimit){.rlim_cur = limit->rlim_max, .rlim_max = limit->rlim_max};
    return limit->rlim_max >= least && setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : 0;
}

gr_status gr_launch_job_raise_limit(gr_launch_job *job, gr_diag *diag)
{
    struct rlimit limit;
    rlim_t each = DESCRIPTORS_A_WORKER + (job->config->log_dir != NULL ? DESCRIPTORS_OF_LOGS : 0);
    rlim_t least = (rlim_t)job->slots * each + DESCRIPTORS_BESIDE;
    job->records_max = job->slots;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return GR_OK;
    }
    rlim_t reached = raise_limit(&limit, least, least + (rlim_t)job->slots);
    if (reached == 0) {
        return gr_fail(
            diag, GR_E_INVALID,
            "-np: %d workers need %llu descriptors in the launcher, and it may have %llu: "
            "start fewer workers, or raise the hard limit (ulimit -Hn; LimitNOFILE= of "
            "systemd)",
            job->slots, (unsigned long long)least, (unsigned long long)limit.rlim_max);
    }
    job->records_max = (int)(reached - least);
    if (reached > limit.rlim_cur) {
        job->descriptors = limit.rlim_cur; /* the workers' */
    }
    return GR_OK;
}

gr_status gr_launch_job_prepare(gr_launch_job *job, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    size_t count = (size_t)gr_launch_places(config);
    gr_status status = prepare_coordinator(job, diag);
    if (status != GR_OK) {
        return status;
    }
    size_t faults = (size_t)config->fault_count;
    job->fault_next_us = gr_arena_alloc(&job->arena, (faults + 1) * sizeof *job->fault_next_us);
    job->places = gr_arena_alloc(&job->arena, count * sizeof *job->places);
    job->ends = gr_arena_alloc(&job->arena, count * sizeof *job->ends);
    if (job->ends == NULL || job->places == NULL || job->fault_next_us == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", config->workers);
    }
    for (size_t i = 0; i < faults; i++) {
        job->fault_next_us[i] = config->faults[i].at_us;
    }
    for (int rank = 0; rank < job->slots; rank++) {
        job->places[rank].busy = rank < config->workers;
        job->ends[rank].spared = rank >= config->workers;
    }
    status = gr_spawn_make_stdin(config->document, &job->stdin_fd, diag);
    if (status != GR_OK) {
        return status;
    }
    job->records = gr_records_create(job->slots, job->records_max);
    return gr_rendezvous_free_port(&job->master_port, diag);
}

static void find_cores(const gr_launch_job *job, const gr_host_agent *agent, int seat,
                       gr_cores *part, gr_spawn *spawn)
{
    const gr_launch_config *config = job->config;
    int most = gr_launch_most(config) < agent->seats ? gr_launch_most(config) : agent->seats;
    if (config->bind && seat < most && gr_cores_deal(config->cores, most, seat, part)) {
        spawn->cores = part;
    } else if (config->restrict_cores) {
        spawn->cores = config->cores;
    }
}

gr_status gr_launch_job_set_up(const gr_launch_job *job, const gr_host_agent *agent,
                               gr_arena *arena, gr_agent_config *config_out, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    size_t seats = (size_t)agent->seats;
    const gr_host *host = &agent->host;
    bool changes = gr_launch_job_may_change(job);
    gr_cores *parts = gr_arena_alloc(arena, seats * sizeof *parts);
    *config_out = (gr_agent_config){
        .workers = job->going ? 0 : host->workers,
        .slots = changes ? agent->seats : 0,
        .spawns = gr_arena_alloc(arena, seats * sizeof(gr_spawn)),
        .environment = gr_arena_alloc(arena, seats * sizeof *config_out->environment)};
    if (parts == NULL || config_out->spawns == NULL || config_out->environment == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", agent->seats);
    }
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    gr_hex(job->secret, GR_SECRET_BYTES, secret_hex);
    gr_environ_config environment = {.inherited =
                                         agent->host.local ? config->environment : config->exported,
                                     .world_size = config->workers,
                                     .local_size = host->workers > 0 ? host->workers : 1,
                                     .workers_min = config->workers_min,
                                     .workers_max = changes ? job->slots : 0,
                                     .secret_hex = secret_hex,
                                     .master_port = job->master_port,
                                     .servers = job->server_list,
                                     .set = config->set,
                                     .defaults = config->defaults};
    const gr_rendezvous rendezvous = {.here_only = here_only(job),
                                      .first = &job->first_host,
                                      .environment = config->environment,
                                      .coordinator = gr_coordinator_address(job->coordinator)};
    gr_status status = gr_rendezvous_find(&rendezvous, host, arena, &environment, diag);
    for (int seat = 0; seat < agent->seats && status == GR_OK; seat++) {
        int rank = host->first + seat;
        environment.rank = rank;
        environment.local_rank = seat;
        environment.record = host->local ? gr_records_path(job->records, rank) : NULL;
        status = gr_environ_build(&environment, arena, &config_out->environment[seat], diag);
        gr_spawn *spawn = &config_out->spawns[seat];
        *spawn = (gr_spawn){.argv = config->argv,
                            .file = config->file,
                            .environment = config_out->environment[seat],
                            .stdin_fd = job->stdin_fd,
                            .descriptors = job->descriptors,
                            .stdout_fd = gr_output_worker_fd(job->output, rank, 0),
                            .stderr_fd = gr_output_worker_fd(job->output, rank, 1)};
        find_cores(job, agent, seat, &parts[seat], spawn);
    }
    gr_wipe(secret_hex, sizeof secret_hex);
    return status;
}
