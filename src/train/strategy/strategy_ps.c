/* SPDX-License-Identifier: Apache-2.0 */

/* Gradients meet on parameter servers, step by step. A worker pushes the sums of its shards, each a
 * whole subtree of the shard tree; the servers add them in the order of that tree and run the same
 * optimizer, so the weights that come back have the bits of allreduce. Nothing in it depends on who
 * pushed what: when a worker dies, the step is run again with the shards assigned anew, and servers
 * recognise what they have. With clip_norm, for which the whole gradient must be known, servers
 * give the sums back, and each worker runs the optimizer on them.
 *
 * What stands before the parameters in a step vector, the numbers of the step and the statistics,
 * is a small sum over the ranks as ever. */

#include "coll/comm.h"
#include "coll/plan/plan.h"
#include "train/strategy/servers.h"

/* ---- A generation ---------------------------------------------------------------------------- */

static gr_status make_head(gr_trainer *t, gr_diag *diag)
{
    const gr_buckets_config config = {.comm = t->gen.comm,
                                      .shards = t->job->shards,
                                      .exact = true,
                                      .partials = t->gen.vectors,
                                      .partial_count = t->gen.plan.partials,
                                      .ends = &t->parameters,
                                      .end_count = 1,
                                      .first_values = t->parameters,
                                      .values = t->parameters};
    return t->gen.world_size > 1 ? gr_buckets_init(&t->gen.buckets, &config, diag) : GR_OK;
}

static gr_status enter(gr_trainer *t, gr_diag *diag)
{
    gr_status status = gr_trainer_assign(t, t->job->shards, false, diag);
    if (status == GR_OK) {
        status = gr_servers_compress(t, diag);
    }
    if (status == GR_OK) {
        status = gr_servers_enter(t, gr_model_tensors(t->model) * t->gen.plan.partials, diag);
    }
    return status == GR_OK ? make_head(t, diag) : status;
}

static void leave(gr_trainer *t)
{
    gr_buckets_fini(&t->gen.buckets);
    gr_compressor_fini(&t->gen.compressor);
    gr_servers_leave(t);
}

/* ---- A step ---------------------------------------------------------------------------------- */

static uint64_t begin(gr_trainer *t, uint64_t step)
{
    gr_buckets_begin(&t->gen.buckets);
    gr_servers_begin(t, step);
    return step;
}

/* One of the sums of a tensor, with the last of which its values come back. */
static gr_status start_next(gr_trainer *t, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int sums = gr_tree_cover(t->job->shards, t->gen.plan.first, t->gen.plan.count, ranges);
    int tensor = servers->started / sums, part = servers->started % sums;
    const gr_ps_gradient push = {.values = t->gen.vectors[part] + servers->tensors[tensor].begin,
                                 .step = servers->step,
                                 .first = ranges[part].first,
                                 .count = ranges[part].count,
                                 .rate = servers->rate,
                                 .factor = 1.0f};
    return gr_servers_push(t, tensor, &push, part + 1 == sums, diag);
}

/* All inside [0, end) of the step vector. */
static gr_status start_until(gr_trainer *t, size_t end, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    gr_status status = GR_OK;
    while (status == GR_OK && servers->started < servers->count * t->gen.plan.partials &&
           servers->tensors[servers->started / t->gen.plan.partials].end <= end) {
        status = start_next(t, diag);
    }
    if (status == GR_OK && t->gen.world_size > 1) {
        status = gr_trainer_comm_status(t->gen.comm, gr_buckets_ready(&t->gen.buckets, end),
                                        "the header of a step was not sent", diag);
    }
    return status;
}

static gr_status ready(gr_trainer *t, size_t end)
{
    gr_servers *servers = t->gen.strategy_state;
    if (!t->job->distribution.overlap) {
        return GR_OK;
    }
    gr_status status = start_until(t, end, &servers->failure);
    return status == GR_OK ? gr_servers_poll(t, &servers->failure) : status;
}

static gr_status wait_for_head(gr_trainer *t, gr_diag *diag)
{
    int64_t wait_ns = t->gen.buckets.wait_ns;
    gr_status status = GR_OK;
    for (int i = 0; i < t->gen.buckets.count && status == GR_OK; i++) {
        status = gr_buckets_wait(&t->gen.buckets, i);
    }
    gr_buckets_drain(&t->gen.buckets);
    t->wait_ns += t->gen.buckets.wait_ns - wait_ns;
    return gr_trainer_comm_status(t->gen.comm, status, "the header of a step was not received",
                                  diag);
}

/* The servers answer when all workers have pushed all, and so have begun the sum of the header:
 * it is there by then, or nearly. */
static gr_status wait_all(gr_trainer *t, gr_diag *diag)
{
    gr_servers *servers = t->gen.strategy_state;
    gr_status status = t->step.reduction;
    if (status != GR_OK) {
        *diag = servers->failure;
        return status;
    }
    status = start_until(t, t->length, diag);
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    while (status == GR_OK && servers->finished < servers->started) {
        status = gr_servers_wait(t, diag);
    }
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_WAIT, 0, begun);
    return status == GR_OK ? wait_for_head(t, diag) : status;
}

/* The sums of the gradients have come in place of the weights. Returns what gr_servers_take_values
 * does. */
static size_t update_from_sums(gr_trainer *t, uint64_t step)
{
    const gr_servers *servers = t->gen.strategy_state;
    size_t bad = gr_first_not_finite(servers->come, t->parameters, t->length);
    if (bad < t->length) {
        return bad;
    }
    const float *gradient = servers->come + GR_STEP_HEADER;
    gr_saver_settle(t->saver);
    gr_trainer_begin_update(t, t->optimizer, step, gradient);
    (void)gr_optimizer_update(t->optimizer, t->values, gradient, 0, t->length - GR_STEP_HEADER);
    return t->length;
}

/* A gradient that is not finite has made weights that are none. */
static gr_status update(gr_trainer *t, uint64_t step, int64_t key, gr_meter *now, gr_diag *diag)
{
    const gr_servers *servers = t->gen.strategy_state;
    uint64_t begun = gr_timeline_now(t->gen.timeline);
    const float *seen = t->gen.vectors[0];
    size_t bad = gr_first_not_finite(seen, 0, t->parameters);
    if (bad == t->parameters) {
        seen = servers->come;
        bad = gr_servers_only_add(t->job) ? update_from_sums(t, step) : gr_servers_take_values(t);
    }
    if (bad < t->length) {
        return gr_not_finite_fail(t, step, key, seen, bad, diag);
    }
    gr_timeline_phase_over(t->gen.timeline, GR_TIMELINE_UPDATE, 0, begun);
    gr_trainer_take_header(t, now);
    return GR_OK;
}

const gr_strategy gr_strategy_ps = {.name = "ps",
                                    .needs_servers = true,
                                    .prepare = gr_servers_prepare,
                                    .enter = enter,
                                    .leave = leave,
                                    .seek = gr_servers_fill,
                                    .gather = gr_servers_gather,
                                    .kept = gr_trainer_left_out,
                                    .begin = begin,
                                    .ready = ready,
                                    .wait = wait_all,
                                    .update = update};
