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

/* Returns true if no other host takes part, now or later. */
static bool here_only(const gr_launch_job *job)
{
    return !gr_launch_changing(job->config) &&
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
                                    .world_max = gr_launch_slots(job->config),
                                    .members_min = job->config->workers_min,
                                    .secret = job->secret,
                                    .encrypt = job->config->encrypt,
                                    .peer_timeout_us = job->config->remote.host_timeout_us,
                                    .log = job->config->log};
    status = gr_rendezvous_listen(here_only(job), job->config->command.environment, &config, diag);
    if (status == GR_OK) {
        status = gr_coordinator_create(&config, &job->coordinator, diag);
    }
    return status;
}

/* In the launcher, for each worker: both ends of two pipes, and two files with --log-dir; a
 * connection takes the place of the pipes' other ends. A record is one more, for as many as may
 * have it. */
enum { EVENTS_BESIDE = 16 }; /* that wait, other than of agents */
enum { DESCRIPTORS_A_WORKER = 4, DESCRIPTORS_OF_LOGS = 2, DESCRIPTORS_BESIDE = 256 };
enum { DESCRIPTORS_A_HOST = 3 }; /* its agent's sockets, and the agent */

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
    rlim_t each =
        DESCRIPTORS_A_WORKER + (job->config->output.log_dir != NULL ? DESCRIPTORS_OF_LOGS : 0);
    int slots = gr_launch_slots(job->config);
    int hosts = gr_launch_changing(job->config) ? GR_HOSTS_MAX
                : job->config->hosts != NULL    ? job->config->hosts->count
                                                : 1;
    rlim_t least = (rlim_t)slots * each + (rlim_t)hosts * DESCRIPTORS_A_HOST + DESCRIPTORS_BESIDE;
    job->setup.records_max = slots;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return GR_OK;
    }
    rlim_t reached = raise_limit(&limit, least, least + (rlim_t)slots);
    if (reached == 0) {
        return gr_fail(
            diag, GR_E_INVALID,
            "-np: %d workers need %llu descriptors in the launcher, and it may have %llu: "
            "start fewer workers, or raise the hard limit (ulimit -Hn; LimitNOFILE= of "
            "systemd)",
            slots, (unsigned long long)least, (unsigned long long)limit.rlim_max);
    }
    job->setup.records_max = (int)(reached - least);
    if (reached > limit.rlim_cur) {
        job->setup.descriptors = limit.rlim_cur; /* the workers' */
    }
    return GR_OK;
}

void gr_launch_job_add_agent(gr_launch_job *job, int number, const gr_host *host)
{
    job->agents[number] =
        (gr_host_agent){.job = job,
                        .number = number,
                        .host = *host,
                        .placement = gr_placement_of(host, job->config->remote.placement),
                        .process = {.fd = -1},
                        .control_fd = -1,
                        .words_fd = -1};
}

static gr_status add_hosts(gr_launch_job *job, const gr_host_list *hosts, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    for (int i = 0; i < hosts->count; i++) {
        gr_host host = hosts->at[i];
        if (!gr_launch_elastic(config)) {
            host.slots = host.workers; /* nobody comes later */
        }
        if (host.slots == 0) {
            continue;
        }
        int number = gr_scheduler_add(&job->schedule, host.slots, host.workers,
                                      gr_placement_of(&host, config->remote.placement)->once);
        if (number < 0) {
            return gr_fail(diag, GR_E_INVALID, "run: there are no more than %d slots for workers",
                           gr_launch_slots(config));
        }
        gr_launch_job_add_agent(job, number, &host);
    }
    for (int i = 0; i < config->server.count; i++) {
        gr_host host = gr_launch_job_server_host(config, i);
        gr_launch_job_add_agent(job, job->schedule.config.host_room + i, &host);
    }
    job->setup.name_hosts =
        config->hosts != NULL && (job->schedule.host_count > 1 || gr_launch_changing(config));
    return GR_OK;
}

/* For each server the number of the first one on the same host. */
static void find_sites(const gr_launch_config *config, int *sites)
{
    for (int i = 0; i < config->server.count; i++) {
        const gr_host host = gr_launch_job_server_host(config, i);
        sites[i] = 0;
        for (bool same = false; !same; sites[i] += !same) {
            const gr_host other = gr_launch_job_server_host(config, sites[i]);
            same = strcmp(gr_host_label(&host), gr_host_label(&other)) == 0;
        }
    }
}

static gr_status prepare_schedule(gr_launch_job *job, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    const gr_host_list here = {
        .count = 1,
        .at[0] = {.slots = gr_launch_at_once(config), .workers = config->workers, .local = true}};
    const gr_host_list *hosts = config->hosts != NULL ? config->hosts : &here;
    const gr_scheduler_config rules = {
        .workers = config->workers,
        .workers_min = config->workers_min,
        .workers_max = gr_launch_most(config),
        .spares = config->spares,
        .restarts = config->restarts,
        .helpers = config->helpers,
        .slots = gr_launch_slots(config),
        .servers = config->server.count,
        .host_room = gr_launch_changing(config) ? GR_HOSTS_MAX : hosts->count,
        .attempt = config->attempt,
        .elastic = gr_launch_elastic(config),
        .changing = gr_launch_changing(config),
        .left_is_done = config->zero_is_done,
        .all_join = config->all_join,
        .servers_spare = config->server.spare,
        .servers_again = config->server.spare && config->server.count > 1,
        .start_timeout_us = config->start_timeout_us,
        .grace_us = config->grace_us,
        /* By the time of a renewal the others have waited in vain for the rest of it. */
        .fence_us = config->fence_us - gr_launch_stall_us(config->fence_us),
        .crash = config->crash};
    size_t agents = (size_t)(rules.host_room + rules.servers), servers = (size_t)rules.servers + 1;
    int *sites = gr_arena_alloc(&job->arena, servers * sizeof *sites);
    job->events.max = (int)agents + EVENTS_BESIDE;
    job->events.at = gr_arena_alloc(&job->arena, (size_t)job->events.max * sizeof *job->events.at);
    job->agents = gr_arena_alloc(&job->arena, agents * sizeof *job->agents);
    job->servers = gr_arena_alloc(&job->arena, servers * sizeof *job->servers);
    if (sites == NULL || job->events.at == NULL || job->agents == NULL || job->servers == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu hosts", agents);
    }
    for (size_t i = 0; i < agents; i++) {
        job->agents[i].control_fd = job->agents[i].words_fd = job->agents[i].process.fd = -1;
        job->agents[i].job = job;
    }
    find_sites(config, sites);
    job->setup.first_host = hosts->at[0];
    gr_status status = gr_scheduler_init(&job->schedule, &rules, sites, &job->arena, diag);
    return status == GR_OK ? add_hosts(job, hosts, diag) : status;
}

gr_status gr_launch_job_prepare(gr_launch_job *job, gr_diag *diag)
{
    gr_status status = prepare_coordinator(job, diag);
    if (status == GR_OK) {
        status = prepare_schedule(job, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    const gr_launch_config *config = job->config;
    size_t faults = (size_t)config->fault_count;
    job->fault_next_us = gr_arena_alloc(&job->arena, (faults + 1) * sizeof *job->fault_next_us);
    if (job->fault_next_us == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d faults", config->fault_count);
    }
    for (size_t i = 0; i < faults; i++) {
        job->fault_next_us[i] = config->faults[i].at_us;
    }
    status = gr_spawn_make_stdin(config->command.document, &job->setup.stdin_fd, diag);
    if (status == GR_OK) {
        status = gr_spawn_make_stdin(config->server.document, &job->setup.server_stdin_fd, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    job->records = gr_records_create(gr_launch_slots(job->config), job->setup.records_max);
    return gr_rendezvous_free_port(&job->setup.master_port, diag);
}

/* ---- What a host gets ------------------------------------------------------------------------ */

static gr_spawn spawn_at(const gr_launch_job *job, int slot, char **environment)
{
    return (gr_spawn){.argv = job->config->command.argv,
                      .file = job->config->command.file,
                      .environment = environment,
                      .stdin_fd = job->setup.stdin_fd,
                      .descriptors = job->setup.descriptors,
                      .stdout_fd = gr_output_worker_fd(job->output, slot, 0),
                      .stderr_fd = gr_output_worker_fd(job->output, slot, 1)};
}

/* What a process on that host inherits. */
static char *const *inherited_at(const gr_launch_config *config, const gr_host *host)
{
    return host->local ? config->command.environment : config->command.exported;
}

static gr_status set_up_server(const gr_launch_job *job, const gr_host_agent *of,
                               const char *secret_hex, gr_arena *arena,
                               const gr_agent_config *agent, gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    int slot = gr_launch_job_host(of)->first;
    const gr_scheduler_server *server =
        &job->schedule.servers[gr_launch_job_server_number(job, slot)];
    const gr_environ_config environment = {.inherited = inherited_at(config, &of->host),
                                           .serves = true,
                                           .reads_document = config->server.document != NULL,
                                           .servers = server->replaces ? job->server_list : NULL,
                                           .rank = gr_launch_job_server_number(job, slot),
                                           .secret_hex = secret_hex,
                                           .set = config->command.set,
                                           .defaults = config->command.defaults};
    gr_status status = gr_environ_build(&environment, arena, agent->environment, diag);
    gr_spawn *spawn = agent->spawns;
    *spawn = spawn_at(job, slot, *agent->environment);
    spawn->argv = config->server.argv;
    spawn->stdin_fd = job->setup.server_stdin_fd;
    spawn->file = "/proc/self/exe";
    spawn->descriptors = 0;
    spawn->cores = config->restrict_cores ? config->cores : NULL;
    return status;
}

static void find_cores(const gr_launch_job *job, int count, int at, gr_cores *part, gr_spawn *spawn)
{
    const gr_launch_config *config = job->config;
    int most = gr_launch_most(config) < count ? gr_launch_most(config) : count;
    if (config->bind && at < most && gr_cores_deal(config->cores, most, at, part)) {
        spawn->cores = part;
    } else if (config->restrict_cores) {
        spawn->cores = config->cores;
    }
}

/* Which host this is among those that begin with a worker of the local rank, and how many there
 * are. */
static void find_cross(const gr_launch_job *job, const gr_scheduler_host *own, int local_rank,
                       gr_environ_config *environment)
{
    environment->cross_rank = 0;
    environment->cross_size = 1;
    for (int i = 0; i < job->schedule.host_count; i++) {
        const gr_scheduler_host *other = &job->schedule.hosts[i];
        if (other != own && !other->removed && other->workers > local_rank) {
            environment->cross_size++;
            environment->cross_rank += other->first < own->first;
        }
    }
}

static gr_status set_up_workers(const gr_launch_job *job, const gr_host_agent *agent,
                                const char *secret_hex, gr_arena *arena, const gr_agent_config *to,
                                gr_diag *diag)
{
    const gr_launch_config *config = job->config;
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    gr_cores *parts = gr_arena_alloc(arena, (size_t)host->slot_count * sizeof *parts);
    if (parts == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", host->slot_count);
    }
    gr_environ_config environment = {.inherited = inherited_at(config, &agent->host),
                                     .world_size = config->workers,
                                     .local_size = host->workers > 0 ? host->workers : 1,
                                     .host = gr_host_label(&agent->host),
                                     .restarts = config->attempt,
                                     .workers_min = config->workers_min,
                                     .workers_max =
                                         gr_launch_elastic(config) ? gr_launch_slots(config) : 0,
                                     .secret_hex = secret_hex,
                                     .master_port = job->setup.master_port,
                                     .servers = job->server_list,
                                     .set = config->command.set,
                                     .defaults = config->command.defaults};
    const gr_rendezvous rendezvous = {.here_only = here_only(job),
                                      .first = &job->setup.first_host,
                                      .environment = config->command.environment,
                                      .coordinator = gr_coordinator_address(job->coordinator)};
    gr_status status = gr_rendezvous_find(&rendezvous, &agent->host, arena, &environment, diag);
    for (int i = 0; i < host->slot_count && status == GR_OK; i++) {
        int slot = host->first + i;
        environment.rank = slot;
        environment.local_rank = i;
        find_cross(job, host, i, &environment);
        environment.record = agent->placement->here ? gr_records_path(job->records, slot) : NULL;
        status = gr_environ_build(&environment, arena, &to->environment[i], diag);
        to->spawns[i] = spawn_at(job, slot, to->environment[i]);
        find_cores(job, host->slot_count, i, &parts[i], &to->spawns[i]);
    }
    return status;
}

gr_status gr_launch_job_set_up(const gr_launch_job *job, const gr_host_agent *agent,
                               gr_arena *arena, gr_agent_config *config_out, gr_diag *diag)
{
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    size_t count = (size_t)host->slot_count;
    bool serves = gr_launch_job_serves(agent);
    bool stays = !serves && gr_launch_elastic(job->config);
    *config_out = (gr_agent_config){
        .workers = job->schedule.going && !serves ? 0 : host->workers,
        .slots = stays ? host->slot_count : 0,
        .spawns = gr_arena_alloc(arena, count * sizeof(gr_spawn)),
        .environment = gr_arena_alloc(arena, count * sizeof *config_out->environment)};
    if (config_out->spawns == NULL || config_out->environment == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", host->slot_count);
    }
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    gr_hex(job->secret, GR_SECRET_BYTES, secret_hex);
    gr_status status = serves ? set_up_server(job, agent, secret_hex, arena, config_out, diag)
                              : set_up_workers(job, agent, secret_hex, arena, config_out, diag);
    gr_wipe(secret_hex, sizeof secret_hex);
    return status;
}
