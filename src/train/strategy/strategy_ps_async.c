/* SPDX-License-Identifier: Apache-2.0 */

/* Gradients meet on parameter servers as they come. Workers are asynchronous: each computes the
 * gradient of as many samples as a shard has, pushes it, takes the weights as they are by then, and
 * starts the next one; which samples, it counts for itself. How far the job is the servers tell, by
 * the number of updates. As many as a step has shards make a step (async, ssp), or the first so
 * many gradients of one (backup workers).
 *
 * So who comes, goes or dies matters to nobody else, but that a new generation of the group begins:
 * for the end, when all meet. */

#include "base/fail.h"
#include "coll/comm.h"
#include "train/strategy/servers.h"

#include <gradus/ps.h>
#include <string.h>

#define CLOCK_OVER (UINT64_C(1) << 62)

/* ---- A generation ---------------------------------------------------------------------------- */

static gr_status enter(gr_trainer *t, gr_diag *diag)
{
    gr_status status = gr_trainer_assign(t, t->gen.world_size, false, diag);
    bool zeros = gr_compression_piece((gr_compression)t->job->distribution.compression) > 0;
    if (status == GR_OK && zeros) {
        status = gr_servers_compress(t, diag);
    }
    return status == GR_OK ? gr_servers_enter(t, gr_model_tensors(t->model), diag) : status;
}

static void leave(gr_trainer *t)
{
    gr_compressor_fini(&t->gen.compressor);
    gr_servers_leave(t);
}

/* Updates that all tensors have had. */
static uint64_t updates_done(const gr_servers *servers)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < servers->count; i++) {
        uint64_t version = servers->tensors[i].version;
        least = version < least ? version : least;
    }
    return least;
}

/* How far the job is by the values that came last. */
static void learn_progress(gr_trainer *t)
{
    gr_servers *servers = t->gen.strategy_state;
    uint64_t total = t->job->total_steps;
    servers->updates = updates_done(servers);
    uint64_t reached = servers->updates / gr_servers_updates(t->job);
    t->reached = reached < total ? reached : total;
}

static gr_status set_clock(gr_trainer *t, uint64_t clock, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_status status = t->job->consistency == GR_SSP ? gr_ps_clock(servers->ps, clock) : GR_OK;
    return gr_servers_status(servers, status, diag);
}

/* Nobody's clock may run before all have set theirs, or who is late would not be waited for. */
static gr_status seek(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    servers->clock = 0;
    gr_status status = set_clock(t, 0, diag);
    if (status == GR_OK) {
        status = gr_servers_fill(t, step, diag);
    }
    if (status == GR_OK) {
        status = gr_servers_pull(t, diag);
    }
    if (status == GR_OK) {
        (void)gr_servers_take_values(t);
        learn_progress(t); /* it may be over: others do not wait for this worker's first step */
        t->gen.own_step = step * (uint64_t)t->job->shards / (uint64_t)t->gen.world_size;
    }
    return status;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static uint64_t begin(gr_trainer *t, uint64_t step)
{
    gr_servers_begin(t, step);
    return t->gen.own_step++;
}

/* By how much this worker's samples would move the running statistics; in their place. */
static void take_statistics(gr_trainer *t)
{
    const gr_servers *servers = t->gen.strategy_state;
    size_t count = t->parameters - GR_STEP_HEADER;
    float *seen = t->gen.vectors[0] + GR_STEP_HEADER, *old = servers->come + GR_STEP_HEADER;
    memcpy(old, t->values, count * sizeof *old);
    gr_model_update_statistics(t->model, t->values, seen,
                               (float)(1.0 / (double)t->job->config.micro_batches));
    for (size_t i = 0; i < count; i++) {
        seen[i] = t->values[i] - old[i];
    }
    memcpy(t->values, old, count * sizeof *old);
}

static gr_status start_next(gr_trainer *t, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    const gr_server_tensor *tensor = &servers->tensors[servers->started];
    bool steps = t->job->consistency == GR_BSP_BACKUP;
    double share = 1.0 / (double)t->job->shards; /* of a step */
    const gr_ps_gradient push = {.values = t->gen.vectors[0] + tensor->begin,
                                 .step = servers->updates,
                                 .version = tensor->version,
                                 .sequence =
                                     gr_comm_generation(t->gen.comm) << 32 | (servers->clock + 1),
                                 .rate = steps ? servers->rate : servers->rate * share,
                                 .factor = steps || tensor->statistic ? (float)share : 1.0f};
    return gr_servers_push(t, servers->started, &push, true, diag);
}

/* This worker's own gradient: there is no other whole one. */
static void clip(gr_trainer *t)
{
    float *own = t->gen.vectors[0];
    float factor = gr_trainer_clip(t, own + GR_STEP_HEADER);
    for (size_t i = t->parameters; i < t->length && factor != 1.0f; i++) {
        own[i] *= factor;
    }
}

static gr_status ready(gr_trainer *t, size_t end)
{
    gr_servers *servers = t->gen.strategy_state;
    gr_status status = GR_OK;
    if (t->job->optimizer.clip_norm > 0.0) {
        if (end < t->length) {
            return GR_OK;
        }
        clip(t);
    }
    if (servers->started == 0 && t->parameters > GR_STEP_HEADER) {
        take_statistics(t);
    }
    while (status == GR_OK && servers->started < servers->count &&
           servers->tensors[servers->started].end <= end) {
        status = start_next(t, &servers->failure);
    }
    return status == GR_OK ? gr_servers_poll(t, &servers->failure) : status;
}

/* A gradient that is not finite is refused, and the worker that has it ends: others have none. */
static gr_status wait_all(gr_trainer *t, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    gr_status status = t->step.reduction;
    if (t->job->distribution.aggregate > t->gen.world_size) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: a step needs the gradients of %d workers (replicas_to_aggregate), but "
                       "there are %d: restart the job with more workers, or aggregate fewer",
                       t->job->path, (int)t->job->distribution.aggregate, t->gen.world_size);
    }
    if (status != GR_OK) {
        *diag = servers->failure;
    }
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    while (status == GR_OK && servers->finished < servers->started) {
        status = gr_servers_wait(t, diag);
    }
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_WAIT, 0, begun);
    if (status == GR_E_NOT_FINITE) {
        status = GR_E_INVALID; /* not of all ranks together */
        diag->status = status;
    }
    return status == GR_OK ? set_clock(t, ++servers->clock, diag) : status;
}

static gr_status take_values(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    if (gr_servers_take_values(t) < t->length) {
        return gr_fail(diag, GR_E_INVALID,
                       "step %llu: the weights have grown out of bounds; lower the learning rate "
                       "(%g)",
                       (unsigned long long)step + 1, t->job->optimizer.learning_rate);
    }
    return GR_OK;
}

/* Of the samples that all have trained on meanwhile, this worker's stand for the others'. */
static gr_status update(gr_trainer *t, uint64_t step, int64_t key, gr_meter *now, gr_diag *diag)
{
    (void)key;
    gr_servers *servers = t->gen.strategy_state;
    const gr_job *job = t->job;
    const float *own = t->gen.vectors[0];
    uint64_t before = servers->updates, parts = gr_servers_updates(job);
    gr_status status = take_values(t, step, diag);
    if (status != GR_OK) {
        return status;
    }
    learn_progress(t);
    t->step.renew = t->step.asks_renew;
    int64_t made = (int64_t)(servers->updates - before);
    now->samples = made * job->config.global_batch / (int64_t)parts;
    now->steps = 1;
    now->loss = (double)own[GR_STEP_LOSS] * job->shards;
    now->correct = (double)own[GR_STEP_CORRECT] / (double)job->shard_batch * (double)now->samples;
    return GR_OK;
}

/* Others go on meanwhile: what they have pushed since is in it or not. */
static gr_status gather(gr_trainer *t, uint64_t step, gr_diag *diag)
{
    gr_status status = gr_servers_gather_now(t, diag);
    return status == GR_OK ? take_values(t, step, diag) : status;
}

static gr_status count(gr_trainer *t, gr_staleness *staleness_out, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_staleness sums = {0};
    for (int s = 0; s < gr_ps_servers(servers->ps); s++) {
        gr_ps_counters counters;
        gr_status status = gr_ps_read_counters(servers->ps, s, &counters);
        if (gr_fault_of_peer(status)) {
            continue; /* others have its blocks, and have counted for themselves */
        }
        if (status != GR_OK) {
            return gr_servers_status(servers, status, diag);
        }
        if (t->job->consistency == GR_BSP_BACKUP) {
            sums.pushes += counters.pushes;
            sums.dropped += counters.late;
            continue;
        }
        sums.updates += counters.updates;
        sums.sum += counters.staleness_sum;
        sums.most = counters.staleness_most > sums.most ? counters.staleness_most : sums.most;
    }
    *staleness_out = sums;
    return GR_OK;
}

/* Who has come to the end is waited for by nobody. When all have, nobody pushes any more, and what
 * is there then is the same for all. */
static gr_status finish(gr_trainer *t, gr_diag *diag)
{
    gr_status status = set_clock(t, CLOCK_OVER, diag);
    if (status == GR_OK && t->gen.world_size > 1) {
        status = gr_trainer_comm_status(t->gen.comm, gr_barrier(t->gen.comm),
                                        "the workers did not meet", diag);
    }
    if (status == GR_OK) {
        status = gr_servers_pull(t, diag);
    }
    if (status == GR_OK) {
        (void)gr_servers_take_values(t);
    }
    return status;
}

const gr_strategy gr_strategy_ps_async = {.name = "ps",
                                          .asynchronous = true,
                                          .updates_by_shard = true,
                                          .needs_servers = true,
                                          .prepare = gr_servers_prepare,
                                          .enter = enter,
                                          .leave = leave,
                                          .seek = seek,
                                          .count = count,
                                          .finish = finish,
                                          .gather = gather,
                                          .begin = begin,
                                          .ready = ready,
                                          .wait = wait_all,
                                          .update = update};
