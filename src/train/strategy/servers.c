/* SPDX-License-Identifier: Apache-2.0 */
#include "train/strategy/servers.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "coll/comm.h"
#include "link/secret.h"
#include "train/updater.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENVIRONMENT_BYTES_MAX = 64 << 10,
    LOOK_EVERY_US = 10 * 1000, /* after members, while waiting for servers */
    PIECE_VALUES = 4096        /* looked over and copied while it is in the first cache */
};

/* ---- Coming and going ------------------------------------------------------------------------ */

gr_status gr_servers_prepare(gr_trainer *t, gr_diag *diag)
{
    gr_group_config environment;
    gr_arena arena;
    const char *servers = getenv("GRADUS_SERVERS");
    gr_status status = gr_job_check_servers(t->job, servers != NULL && servers[0] != '\0', diag);
    if (status != GR_OK) {
        return status;
    }
    gr_arena_init(&arena, ENVIRONMENT_BYTES_MAX);
    status = gr_group_config_from_env(&environment, &arena, diag);
    if (status == GR_OK) {
        status = gr_group_keep_secret(&environment, &t->secret, diag);
        if (environment.secret_hex != NULL) { /* the arena's copy */
            gr_wipe((void *)(uintptr_t)environment.secret_hex, strlen(environment.secret_hex));
        }
    }
    gr_arena_fini(&arena);
    return status;
}

/* A lost server is no fault of a peer of the communicator, after which the others could go on; who
 * looks at the diagnosis finds the server's number. */
static gr_status fail_by(gr_diag *diag, gr_status status, const gr_diag *cause, const char *text)
{
    return gr_fault_of_peer(status) ? gr_fail_peer(diag, GR_E_IO, cause->peer_rank, "%s", text)
                                    : gr_fail(diag, status, "%s", text);
}

gr_status gr_servers_status(const gr_servers *servers, gr_status status, gr_diag *diag)
{
    if (status == GR_OK) {
        return GR_OK;
    }
    const gr_diag *cause = gr_ps_last_error(servers->ps);
    return fail_by(diag, status, cause,
                   cause->status != GR_OK ? cause->text : gr_status_text(status));
}

static gr_status largest_of_all(gr_trainer *t, int64_t *value, gr_diag *diag)
{
    gr_status status =
        t->gen.world_size > 1 ? gr_allreduce(t->gen.comm, value, 1, GR_I64, GR_MAX) : GR_OK;
    return gr_trainer_comm_status(t->gen.comm, status, "the ranks could not agree on the run",
                                  diag);
}

/* Rank 0 of the first generation chooses a number; who joins later gets it from the others. */
static gr_status agree_on_run(gr_trainer *t, gr_diag *diag)
{
    gr_status status = largest_of_all(t, &t->run, diag);
    if (status != GR_OK || t->run != 0) {
        return status;
    }
    if (t->gen.rank == 0) {
        status = gr_random_bytes(&t->run, sizeof t->run, diag);
        t->run = (t->run & INT64_MAX) | 1;
    }
    return status == GR_OK ? largest_of_all(t, &t->run, diag) : status;
}

static gr_status connect_to(gr_trainer *t, gr_servers *servers, gr_diag *diag)
{
    uint64_t bands = GR_PS_WORKERS_MAX / GR_JOB_PS_WORKERS_MAX;
    uint64_t band = (gr_comm_generation(t->gen.comm) + bands - 1) % bands; /* at first: the ranks */
    char run[GR_PS_RUN_BYTES];
    const char *given = getenv("GRADUS_RUN");
    snprintf(run, sizeof run, "%016llx", (unsigned long long)t->run);
    const gr_ps_config config = {.secret = t->secret,
                                 .run = given != NULL && given[0] != '\0' ? given : run,
                                 .worker = t->gen.rank + (int)band * GR_JOB_PS_WORKERS_MAX,
                                 .encrypt = t->job->distribution.encrypt};
    gr_diag why = {0};
    gr_status status = gr_ps_connect(&config, &servers->ps, &why);
    return status == GR_OK ? GR_OK : fail_by(diag, status, &why, why.text);
}

static gr_status declare(gr_trainer *t, gr_servers *servers, const gr_tensor_info *tensor,
                         gr_diag *diag)
{
    const gr_job *job = t->job;
    char optimizer[GR_UPDATER_TEXT_BYTES];
    gr_updater_text(&job->optimizer, tensor->decay, optimizer);
    if (tensor->statistic) {
        optimizer[0] = '\0'; /* what is pushed is added */
    } else if (gr_servers_only_add(job)) {
        snprintf(optimizer, sizeof optimizer, "%s", GR_UPDATER_SUM);
    }
    bool backup = job->consistency == GR_BSP_BACKUP;
    gr_compression compression = (gr_compression)job->distribution.compression;
    const gr_ps_spec spec = {
        .name = tensor->name,
        .elements = tensor->count,
        .consistency = job->consistency,
        .shards = job->shards,
        .aggregate = backup ? (int)job->distribution.aggregate : 0,
        .total = backup ? job->workers : 0,
        .staleness = job->consistency == GR_SSP ? (int)job->distribution.staleness : 0,
        .adapt_rate = job->distribution.adapt_rate,
        .refuse_not_finite = gr_job_is_asynchronous(job),
        .optimizer = optimizer,
        .gradient_type = tensor->statistic ? GR_F32 : (int)gr_compression_dtype(compression)};
    gr_server_tensor *to = &servers->tensors[servers->count];
    gr_status status = gr_ps_declare(servers->ps, &spec, &to->id);
    if (status != GR_OK) {
        return gr_servers_status(servers, status, diag);
    }
    to->begin = GR_STEP_HEADER + tensor->offset;
    to->end = to->begin + tensor->count;
    to->statistic = tensor->statistic;
    servers->count++;
    return GR_OK;
}

static gr_status make_memory(gr_trainer *t, gr_servers *servers, gr_diag *diag)
{
    size_t bytes = t->length * sizeof(float);
    t->gen.vectors = calloc((size_t)t->gen.plan.slots, sizeof *t->gen.vectors);
    for (int i = -1; i < t->gen.plan.slots && t->gen.vectors != NULL; i++) {
        void *memory = NULL;
        gr_status status = gr_ps_alloc(servers->ps, bytes, &memory);
        if (status != GR_OK) {
            return gr_servers_status(servers, status, diag);
        }
        *(i < 0 ? &servers->come : &t->gen.vectors[i]) = memory;
    }
    return t->gen.vectors != NULL ? GR_OK
                                  : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a trainer");
}

gr_status gr_servers_compress(gr_trainer *t, gr_diag *diag)
{
    gr_buckets_config unused;
    size_t *ends = NULL;
    gr_status status = gr_trainer_cut(t, &ends, &unused, diag);
    free(ends);
    return status;
}

gr_status gr_servers_enter(gr_trainer *t, int ops, gr_diag *diag)
{
    int tensors = gr_model_tensors(t->model);
    gr_servers *servers = calloc(1, sizeof *servers);
    t->gen.strategy_state = servers;
    if (servers != NULL) {
        servers->tensors = calloc((size_t)tensors + 1, sizeof *servers->tensors);
        servers->ops = calloc((size_t)ops + 1, sizeof *servers->ops);
        servers->pulls = calloc((size_t)ops + 1, sizeof *servers->pulls);
    }
    if (servers == NULL || servers->tensors == NULL || servers->ops == NULL ||
        servers->pulls == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d tensors on servers", tensors);
    }
    gr_status status = agree_on_run(t, diag);
    if (status == GR_OK) {
        status = connect_to(t, servers, diag);
    }
    for (int i = 0; i < tensors && status == GR_OK; i++) {
        const gr_tensor_info *tensor = gr_model_tensor(t->model, i);
        bool theirs = !tensor->statistic || gr_job_is_asynchronous(t->job);
        status = theirs ? declare(t, servers, tensor, diag) : GR_OK;
    }
    return status == GR_OK ? make_memory(t, servers, diag) : status;
}

void gr_servers_leave(gr_trainer *t)
{
    gr_servers *servers = t->gen.strategy_state;
    if (servers != NULL) {
        gr_ps_close(servers->ps); /* and all of its memory */
        free(servers->tensors);
        free((void *)servers->ops);
        free(servers->pulls);
        free(servers);
    }
    free((void *)t->gen.vectors);
    t->gen.vectors = NULL;
    t->gen.strategy_state = NULL;
}

/* ---- Values ---------------------------------------------------------------------------------- */

bool gr_servers_only_add(const gr_job *job)
{
    return job->optimizer.clip_norm > 0.0 && !gr_job_is_asynchronous(job);
}

uint64_t gr_servers_updates(const gr_job *job)
{
    bool parts = gr_job_is_asynchronous(job) && job->consistency != GR_BSP_BACKUP;
    return parts ? (uint64_t)job->shards : 1;
}

/* This rank's vectors of the optimizer that the servers have as well. */
static int states_of(gr_trainer *t, const gr_server_tensor *tensor,
                     float *states_out[GR_OPTIMIZER_STATES_MAX])
{
    bool none = tensor->statistic || gr_servers_only_add(t->job);
    int count = none ? 0 : gr_optimizer_states(&t->job->optimizer);
    for (int s = 0; s < count; s++) {
        const char *name;
        states_out[s] =
            gr_optimizer_state(t->optimizer, s, &name) + (tensor->begin - GR_STEP_HEADER);
    }
    return count;
}

/* The version of what rank 0 gives. With an asynchronous strategy it has the optimizer's vectors of
 * the beginning only; what is later the servers have. */
static uint64_t given_version(const gr_trainer *t, uint64_t step)
{
    return (gr_job_is_asynchronous(t->job) ? t->restored : step) * gr_servers_updates(t->job);
}

static gr_status give(gr_trainer *t, const gr_server_tensor *tensor, uint64_t version)
{
    const gr_servers *servers = t->gen.strategy_state;
    float *states[GR_OPTIMIZER_STATES_MAX];
    int count = states_of(t, tensor, states);
    return gr_ps_restore(servers->ps, tensor->id, version,
                         t->values + (tensor->begin - GR_STEP_HEADER), (const float *const *)states,
                         count);
}

static bool is_ours(const gr_trainer *t, uint64_t given, uint64_t version)
{
    bool later =
        gr_job_is_asynchronous(t->job) ? gr_comm_generation(t->gen.comm) > 1 : version == given + 1;
    return version == given || later;
}

static gr_status fill(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    uint64_t given = given_version(t, step);
    gr_status status = GR_OK;
    for (int i = 0; i < servers->count && status == GR_OK; i++) {
        status = give(t, &servers->tensors[i], given);
    }
    if (status != GR_OK) {
        return gr_servers_status(servers, status, diag);
    }
    status = gr_servers_pull(t, diag);
    for (int i = 0; i < servers->count && status == GR_OK; i++) {
        uint64_t version = servers->tensors[i].version;
        if (!is_ours(t, given, version)) {
            return gr_fail(diag, GR_E_INVALID,
                           "the parameter servers have values after %llu updates, but the job is "
                           "at step %llu: they belong to another run; start servers anew for each",
                           (unsigned long long)version, (unsigned long long)step);
        }
    }
    return status;
}

gr_status gr_servers_fill(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    gr_status status = t->gen.rank == 0 ? fill(t, step, diag) : GR_OK;
    if (status == GR_OK && t->gen.world_size > 1) {
        status = gr_trainer_comm_status(t->gen.comm, gr_barrier(t->gen.comm),
                                        "the servers were not filled", diag);
    }
    return status;
}

gr_status gr_servers_gather(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    const char *name;
    float *state;
    gr_status status = GR_OK;
    bool theirs = t->gen.rank == 0 && !gr_servers_only_add(t->job);
    for (int s = 0; theirs && (state = gr_optimizer_state(t->optimizer, s, &name)) != NULL; s++) {
        for (int i = 0; i < servers->count && status == GR_OK; i++) {
            const gr_server_tensor *tensor = &servers->tensors[i];
            status = gr_ps_pull_state_run(servers->ps, tensor->id, s, step,
                                          state + (tensor->begin - GR_STEP_HEADER), NULL);
        }
    }
    if (status == GR_E_INVALID) { /* each vector is one of the optimizer: a block has gone on */
        return gr_fail(diag, GR_E_NOT_FOUND, "%s", gr_ps_last_error(servers->ps)->text);
    }
    return gr_servers_status(servers, status, diag);
}

gr_status gr_servers_gather_now(gr_trainer *t, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_status status = GR_OK;
    gr_saver_settle(t->saver);
    for (int i = 0; i < servers->count && status == GR_OK; i++) {
        gr_server_tensor *tensor = &servers->tensors[i];
        float *states[GR_OPTIMIZER_STATES_MAX];
        int count = states_of(t, tensor, states);
        status = gr_ps_pull_whole_run(servers->ps, tensor->id, 0, servers->come + tensor->begin,
                                      states, count, &tensor->version);
    }
    return gr_servers_status(servers, status, diag);
}

size_t gr_servers_take_values(gr_trainer *t)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_saver_settle(t->saver);
    for (int i = 0; i < servers->count; i++) {
        size_t end = servers->tensors[i].end;
        for (size_t at = servers->tensors[i].begin; at < end; at += PIECE_VALUES) {
            size_t count = end - at < PIECE_VALUES ? end - at : PIECE_VALUES;
            size_t bad = gr_first_not_finite(servers->come, at, at + count);
            if (bad < at + count) {
                return bad;
            }
            memcpy(t->values + (at - GR_STEP_HEADER), servers->come + at, count * sizeof(float));
        }
    }
    return t->length;
}

/* ---- Operations ------------------------------------------------------------------------------ */

void gr_servers_begin(gr_trainer *t, uint64_t step)
{
    gr_servers *servers = t->gen.strategy_state;
    const gr_job *job = t->job;
    servers->started = servers->finished = 0;
    servers->step = step;
    servers->rate = gr_learning_rate(&job->optimizer, step, (double)job->steps_per_epoch,
                                     job->total_steps, job->config.global_batch);
}

static gr_status over(gr_servers *servers, gr_status status, uint64_t version, gr_diag *diag)
{
    int pulled = servers->pulls[servers->finished++];
    if (status == GR_OK && pulled >= 0) {
        servers->tensors[pulled].version = version;
    }
    return gr_servers_status(servers, status, diag);
}

gr_status gr_servers_wait(gr_trainer *t, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    int64_t begin_ns = gr_now_ns();
    uint64_t version = 0;
    bool free = gr_job_is_asynchronous(t->job), leaves = false;
    gr_status status, members = GR_OK;
    do {
        status = gr_ps_wait(servers->ops[servers->finished], LOOK_EVERY_US, &version);
        if (status == GR_E_TIMEOUT) {
            members = gr_comm_check_members(t->gen.comm);
            leaves = free && members == GR_OK && gr_comm_change_wanted(t->gen.comm);
        }
    } while (status == GR_E_TIMEOUT && members == GR_OK && !leaves);
    t->wait_ns += gr_now_ns() - begin_ns;
    if (members != GR_OK) {
        return gr_trainer_comm_status(t->gen.comm, members, "a worker is gone", diag);
    }
    return leaves ? GR_PENDING : over(servers, status, version, diag);
}

gr_status gr_servers_poll(gr_trainer *t, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    gr_status status = GR_OK;
    while (servers->finished < servers->started && status == GR_OK) {
        uint64_t version = 0;
        status = gr_ps_test(servers->ops[servers->finished], &version);
        if (status == GR_PENDING) {
            return GR_OK;
        }
        status = over(servers, status, version, diag);
    }
    return status;
}

gr_status gr_servers_push(gr_trainer *t, int tensor, const gr_ps_gradient *push, bool pull,
                          gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    const gr_server_tensor *on = &servers->tensors[tensor];
    gr_ps_op **op = &servers->ops[servers->started];
    gr_ps_gradient sent = *push;
    sent.sparse = gr_compression_piece(t->gen.compressor.kind) > 0;
    for (;;) {
        gr_status status =
            pull ? gr_ps_push_pull_start(servers->ps, on->id, &sent, servers->come + on->begin, op)
                 : gr_ps_push_start(servers->ps, on->id, &sent, op);
        if (status == GR_OK) {
            servers->pulls[servers->started++] = pull ? tensor : -1;
            return GR_OK;
        }
        if (status != GR_E_NO_MEMORY || servers->finished == servers->started) {
            return gr_servers_status(servers, status, diag);
        }
        status = gr_servers_wait(t, diag); /* the oldest makes room */
        if (status != GR_OK) {
            return status;
        }
    }
}

gr_status gr_servers_pull(gr_trainer *t, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    gr_status status = GR_OK;
    for (int i = 0; i < servers->count && status == GR_OK; i++) {
        gr_server_tensor *tensor = &servers->tensors[i];
        status = gr_ps_pull_run(servers->ps, tensor->id, 0, servers->come + tensor->begin,
                                &tensor->version);
    }
    return gr_servers_status(servers, status, diag);
}
