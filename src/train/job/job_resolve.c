/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job/job_internal.h"

#include "base/fail.h"
#include "base/number.h"
#include "train/strategy/strategy.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WHENCE_BYTES = 96, SHAPE_HINT_BYTES = 256 };

static int64_t next_power_of_two(int64_t count)
{
    int64_t power = 1;
    while (power < count) {
        power *= 2;
    }
    return power;
}

static gr_status read_workers(gr_distribution_config *d, gr_diag *diag)
{
    static const char *const known[] = {"min", "max", NULL};
    const gr_node *node = d->workers;
    if (node == NULL || node->kind == GR_NODE_NULL) {
        return GR_OK;
    }
    if (node->kind != GR_NODE_MAP) {
        return gr_node_int(node, 1, GR_JOB_WORKERS_MAX, &d->number_of_workers, diag);
    }
    const gr_node *min = gr_node_get(node, "min"), *max = gr_node_get(node, "max");
    gr_status status = gr_node_only(node, known, diag);
    if (status == GR_OK && (min == NULL || max == NULL)) {
        status = gr_node_fail(node, diag, GR_E_INVALID,
                              "number_of_workers has %s, but no %s; write a number, or both, as in "
                              "{min: 2, max: 8}",
                              min != NULL ? "a min" : "a max", min != NULL ? "max" : "min");
    }
    if (status == GR_OK) {
        status = gr_node_int(min, 1, GR_JOB_WORKERS_MAX, &d->workers_min, diag);
    }
    if (status == GR_OK) {
        status = gr_node_int(max, d->workers_min, GR_JOB_WORKERS_MAX, &d->workers_max, diag);
    }
    return status;
}

static int64_t clip(int64_t value, int64_t min, int64_t max)
{
    value = max > 0 && value > max ? max : value;
    return value < min ? min : value;
}

/* Of the job alone, so that any number of workers gives the same bits: 8, or the largest power of
 * two that divides the global batch if that is less. */
static int64_t default_shards(int64_t global_batch)
{
    int64_t shards = GR_JOB_SHARDS_DEFAULT;
    while (global_batch % shards != 0) {
        shards /= 2;
    }
    return shards;
}

static gr_status resolve_workers(gr_job *job, const gr_job_overrides *overrides, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    gr_status status = read_workers(&job->distribution, diag);
    if (status != GR_OK) {
        return status;
    }
    int64_t shards = d->shards > 0           ? d->shards
                     : overrides->shards > 0 ? overrides->shards
                                             : default_shards(job->config.global_batch);
    int64_t cores = clip(overrides->default_workers, d->workers_min, d->workers_max);
    if (cores > shards && !gr_job_is_asynchronous(job)) {
        cores = clip(shards, d->workers_min, d->workers_max); /* nobody has asked for more */
    }
    int64_t workers = overrides->workers > 0     ? overrides->workers
                      : d->number_of_workers > 0 ? d->number_of_workers
                                                 : cores;
    workers = workers > 0 ? workers : 1;
    if (workers > GR_JOB_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "%" PRId64 " workers (-np): a job has at most %d",
                       workers, GR_JOB_WORKERS_MAX);
    }
    int64_t most = overrides->workers_max > 0 ? overrides->workers_max : d->workers_max;
    most = most > workers ? most : workers;
    if (most > shards && !gr_job_is_asynchronous(job)) {
        const char *whence = most > workers           ? "the most that it may get"
                             : overrides->workers > 0 ? "-np"
                                                      : "number_of_workers";
        return gr_node_fail(gr_job_setting(section, "shards"), diag, GR_E_INVALID,
                            "%" PRId64 " workers (%s) are more than the %" PRId64 " shards of a "
                            "global batch, so some would have nothing to do; start at most %" PRId64
                            " workers or set shards: %" PRId64,
                            most, whence, shards, shards, next_power_of_two(most));
    }
    job->workers = (int)workers;
    job->workers_min = d->workers_min > 0 ? (int)clip(d->workers_min, 1, workers) : 1;
    job->workers_max = (int)most;
    job->shards = (int)shards;
    return GR_OK;
}

static gr_status resolve_batch(gr_job *job, gr_diag *diag)
{
    int64_t batch = job->config.global_batch, shards = job->shards;
    const gr_node *root = gr_doc_root(job->doc);
    if (batch % shards != 0) {
        char whence[WHENCE_BYTES] = "";
        if (job->distribution.shards == 0) {
            snprintf(whence, sizeof whence, " (shards are those of the checkpoint)");
        }
        int64_t below = batch / shards * shards, above = below + shards;
        if (below == 0) {
            return gr_node_fail(gr_job_setting(root, "global_batch"), diag, GR_E_INVALID,
                                "%" PRId64 " samples cannot be cut into %" PRId64
                                " equal shards; the smallest batch that fits is %" PRId64 "%s",
                                batch, shards, above, whence);
        }
        return gr_node_fail(gr_job_setting(root, "global_batch"), diag, GR_E_INVALID,
                            "%" PRId64 " samples cannot be cut into %" PRId64
                            " equal shards; the nearest that fit are %" PRId64 " and %" PRId64 "%s",
                            batch, shards, below, above, whence);
    }
    job->shard_batch = batch / shards;
    int64_t micros = job->config.micro_batches;
    if (job->shard_batch % micros != 0) {
        int64_t below = micros < job->shard_batch ? micros : job->shard_batch;
        while (job->shard_batch % below != 0) {
            below--;
        }
        int64_t above = micros < job->shard_batch ? micros : job->shard_batch;
        while (job->shard_batch % above != 0) {
            above++;
        }
        char both[WHENCE_BYTES];
        snprintf(both, sizeof both, below == above ? "%" PRId64 : "%" PRId64 " and %" PRId64, below,
                 above);
        return gr_node_fail(gr_job_setting(root, "micro_batches"), diag, GR_E_INVALID,
                            "the %" PRId64 " samples of a shard (%" PRId64 " / %" PRId64
                            ") cannot be cut into %" PRId64
                            " equal pieces; the nearest that fit: %s",
                            job->shard_batch, batch, shards, micros, both);
    }
    job->micro_batch = job->shard_batch / micros;
    return GR_OK;
}

gr_status gr_job_resolve_steps(gr_job *job, gr_diag *diag)
{
    const gr_node *root = gr_doc_root(job->doc);
    int64_t samples = gr_dataset_count(job->dataset, GR_SPLIT_TRAIN);
    int64_t batch = job->config.global_batch;
    if (batch > samples) {
        return gr_node_fail(gr_job_setting(root, "global_batch"), diag, GR_E_INVALID,
                            "%" PRId64 " samples are more than the %" PRId64 " training samples; "
                            "set it to at most %" PRId64,
                            batch, samples, samples / job->shards * job->shards);
    }
    job->steps_per_epoch = (uint64_t)(samples / batch);
    if (job->config.steps > 0 && job->config.epochs > 0) {
        return gr_node_fail(gr_job_setting(root, "steps"), diag, GR_E_INVALID,
                            "epochs says already how long to train; remove one of the two");
    }
    if (job->config.steps > 0) {
        job->total_steps = (uint64_t)job->config.steps;
        return GR_OK;
    }
    if (!(job->config.epochs > 0)) {
        return gr_node_fail(root, diag, GR_E_INVALID,
                            "the job does not say how long to train; add epochs: N or steps: N");
    }
    double steps = round(job->config.epochs * (double)job->steps_per_epoch);
    if (steps > 9007199254740992.0) {
        return gr_node_fail(gr_job_setting(root, "epochs"), diag, GR_E_INVALID,
                            "these are %g steps, more than can be counted; give fewer", steps);
    }
    job->total_steps = steps < 1 ? 1 : (uint64_t)steps;
    return GR_OK;
}

gr_status gr_job_resolve_sync(gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    const double epoch = (double)job->steps_per_epoch;
    const gr_number_unit steps[] = {
        {"step", 1}, {"steps", 1}, {"epoch", epoch}, {"epochs", epoch}, {NULL, 0}};
    int64_t count = 0;
    if (!job->strategy->averages_weights) {
        return GR_OK;
    }
    if (d->sync_every == NULL) {
        return gr_node_fail(gr_job_setting(section, "strategy"), diag, GR_E_INVALID,
                            "strategy %s needs to know how often the weights are averaged; add "
                            "sync_every: 8 steps, or sync_every: epoch",
                            job->strategy->name);
    }
    if (strcmp(d->sync_every, "epoch") == 0) {
        count = (int64_t)job->steps_per_epoch;
    } else if (gr_number_with_unit(d->sync_every, steps, 1.0, &count) != GR_NUMBER_OK ||
               count < 1) {
        return gr_node_fail(gr_job_setting(section, "sync_every"), diag, GR_E_INVALID,
                            "\"%s\" does not say how often the weights are averaged; give steps or "
                            "an epoch, as in: 8 steps, epoch",
                            d->sync_every);
    }
    if ((uint64_t)count > job->steps_per_epoch) {
        return gr_node_fail(gr_job_setting(section, "sync_every"), diag, GR_E_INVALID,
                            "\"%s\" is more than the %" PRIu64 " steps of an epoch, at whose end "
                            "weights are averaged in any case; give fewer, or epoch",
                            d->sync_every, job->steps_per_epoch);
    }
    job->sync_steps = (uint64_t)count;
    return GR_OK;
}

gr_status gr_job_resolve_checkpoint(gr_job *job, gr_diag *diag)
{
    const double plain = 0.0, epoch = (double)job->steps_per_epoch;
    const gr_number_unit steps[] = {
        {"step", 1}, {"steps", 1}, {"epoch", epoch}, {"epochs", epoch}, {NULL, 0}};
    const gr_number_unit times[] = {{"ms", 1e3},   {"s", 1e6},        {"sec", 1e6}, {"min", 60e6},
                                    {"h", 3600e6}, {"hours", 3600e6}, {NULL, 0}};
    const char *every = job->checkpoint.every;
    int64_t count = 0;
    if (every == NULL) {
        return GR_OK;
    }
    if (gr_number_with_unit(every, steps, plain, &count) == GR_NUMBER_OK && count > 0) {
        job->checkpoint_steps = (uint64_t)count;
    } else if (gr_number_with_unit(every, times, plain, &count) == GR_NUMBER_OK && count > 0) {
        job->checkpoint_us = count;
    } else {
        return gr_node_fail(gr_node_get(job->config.checkpoint, "every"), diag, GR_E_INVALID,
                            "\"%s\" does not say how often checkpoints are written; give steps, "
                            "epochs or a time, as in: 100 steps, 1 epoch, 5 min",
                            every);
    }
    return GR_OK;
}

gr_status gr_job_resolve(gr_job *job, const gr_job_overrides *overrides, gr_diag *diag)
{
    gr_status status = gr_job_resolve_strategy(job, diag);
    if (status == GR_OK) {
        status = resolve_workers(job, overrides, diag);
    }
    if (status == GR_OK) {
        status = gr_job_check_workers(job, diag);
    }
    return status != GR_OK ? status : resolve_batch(job, diag);
}

static gr_status check_loss(const gr_job *job, gr_diag *diag)
{
    const gr_loss_ops *loss = gr_loss_ops_at(job->config.loss);
    const gr_node *node = gr_job_setting(gr_doc_root(job->doc), "loss");
    if (!loss->classes && !job->data.regression) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "%s predicts numbers, but the labels of the data are classes; set "
                            "regression: true in data, or loss: cross_entropy",
                            loss->name);
    }
    if (loss->classes && job->data.regression) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "%s needs classes, but regression: true in data makes the label a "
                            "number to predict; set loss: mse",
                            loss->name);
    }
    return GR_OK;
}

static const gr_node *last_layer(const gr_node *list)
{
    const gr_node *last = list;
    for (const gr_node *at = list->child; at != NULL; at = at->next) {
        last = at;
    }
    return last;
}

gr_status gr_job_resolve_model(gr_job *job, gr_diag *diag)
{
    gr_status status = check_loss(job, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_node *list = job->config.model;
    if (list == NULL || list->kind == GR_NODE_NULL) {
        return gr_node_fail(list != NULL ? list : gr_doc_root(job->doc), diag, GR_E_INVALID,
                            "the job has no model; add model: with the list of its layers");
    }
    job->input.dims = gr_dataset_dims(job->dataset, job->input.dim);
    status = gr_model_spec_read(list, &job->input, &job->arena, &job->spec, diag);
    if (status != GR_OK) {
        return status;
    }
    const gr_shape *output = gr_model_spec_output(job->spec);
    int64_t wanted = job->data.regression ? 1 : gr_dataset_classes(job->dataset);
    if (output->dims == 1 && output->dim[0] == wanted) {
        return GR_OK;
    }
    char shape[GR_TENSOR_NAME_BYTES];
    gr_shape_format(output, shape, sizeof shape);
    const gr_node *node = last_layer(list);
    if (output->dims != 1) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "the model ends with an image of %s values; add flatten or global_pool "
                            "and then linear: %" PRId64,
                            shape, wanted);
    }
    if (job->data.regression) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "the model ends with %s values, but one number is to be predicted; end "
                            "it with linear: 1",
                            shape);
    }
    char other[SHAPE_HINT_BYTES] = "";
    if (output->dim[0] > wanted) {
        snprintf(other, sizeof other, ", or say classes: %s in data if some do not occur", shape);
    } else if (output->dim[0] == wanted - 1) {
        snprintf(other, sizeof other,
                 ", or, if the labels go from 1 to %s, list them in data: class_names: [1, 2, ...]",
                 shape);
    }
    return gr_node_fail(node, diag, GR_E_INVALID,
                        "the model ends with %s values, but the data has %" PRId64
                        " classes; end it with linear: %" PRId64 "%s",
                        shape, wanted, wanted, other);
}
