/* SPDX-License-Identifier: Apache-2.0 */

/* What the settings leave open, and every check that needs no data. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "base/number.h"
#include "train/early_stopping.h"
#include "train/strategy/strategy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WHENCE_BYTES = 96, NEEDS_BYTES = 96 };

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

static gr_status resolve_workers(gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    gr_status status = read_workers(&job->distribution, diag);
    if (status != GR_OK) {
        return status;
    }
    int64_t shards = d->shards > 0                    ? d->shards
                     : job->run.checkpoint_shards > 0 ? job->run.checkpoint_shards
                                                      : default_shards(job->config.global_batch);
    int64_t cores = clip(job->run.default_workers, d->workers_min, d->workers_max);
    if (cores > shards && !gr_job_is_asynchronous(job)) {
        cores = clip(shards, d->workers_min, d->workers_max); /* nobody has asked for more */
    }
    int64_t workers = job->run.workers > 0       ? job->run.workers
                      : d->number_of_workers > 0 ? d->number_of_workers
                                                 : cores;
    workers = workers > 0 ? workers : 1;
    if (workers > GR_JOB_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "%" PRId64 " workers (-np): a job has at most %d",
                       workers, GR_JOB_WORKERS_MAX);
    }
    int64_t most = job->run.workers_max > 0 ? job->run.workers_max : d->workers_max;
    most = most > workers ? most : workers;
    if (most > shards && !gr_job_is_asynchronous(job)) {
        const char *whence = most > workers         ? "the most that it may get"
                             : job->run.workers > 0 ? "-np"
                                                    : "number_of_workers";
        return gr_node_fail(gr_node_setting(section, "shards"), diag, GR_E_INVALID,
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
    const gr_node *root = job->root;
    if (batch % shards != 0) {
        char whence[WHENCE_BYTES] = "";
        if (job->distribution.shards == 0) {
            snprintf(whence, sizeof whence, " (shards are those of the checkpoint)");
        }
        int64_t below = batch / shards * shards, above = below + shards;
        if (below == 0) {
            return gr_node_fail(gr_node_setting(root, "global_batch"), diag, GR_E_INVALID,
                                "%" PRId64 " samples cannot be cut into %" PRId64
                                " equal shards; the smallest batch that fits is %" PRId64 "%s",
                                batch, shards, above, whence);
        }
        return gr_node_fail(gr_node_setting(root, "global_batch"), diag, GR_E_INVALID,
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
        return gr_node_fail(gr_node_setting(root, "micro_batches"), diag, GR_E_INVALID,
                            "the %" PRId64 " samples of a shard (%" PRId64 " / %" PRId64
                            ") cannot be cut into %" PRId64
                            " equal pieces; the nearest that fit: %s",
                            job->shard_batch, batch, shards, micros, both);
    }
    job->micro_batch = job->shard_batch / micros;
    return GR_OK;
}

static gr_status check_loss(gr_job *job, gr_diag *diag)
{
    const gr_loss_ops *loss = gr_loss_ops_at(job->config.loss);
    const gr_node *node = gr_node_setting(job->root, "loss");
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

/* "consistency: ssp|async" as "strategy: ps with consistency: ssp or async". */
static void describe_needs(const gr_config_table *table, const char *needs,
                           char text_out[NEEDS_BYTES])
{
    const gr_config_field *field = table->fields;
    while (strncmp(field->key, needs, strlen(field->key)) != 0) {
        field++;
    }
    const char *bar = strchr(needs, '|');
    snprintf(text_out, NEEDS_BYTES, "%s%s%.*s%s%s", field->needs != NULL ? field->needs : "",
             field->needs != NULL ? " with " : "", (int)strcspn(needs, "|"), needs,
             bar != NULL ? " or " : "", bar != NULL ? bar + 1 : "");
}

/* What belongs to another strategy would change nothing, and nobody would notice. */
static gr_status check_needs(gr_job *job, gr_diag *diag)
{
    for (const gr_job_part *part = gr_job_parts; part < gr_job_parts + GR_JOB_PARTS; part++) {
        const void *config = (const char *)job + part->config;
        for (const gr_config_field *f = NULL; (f = gr_config_next(part->table, f)) != NULL;) {
            const gr_node *node = gr_node_get(gr_job_section(job, part), f->key);
            if (node != NULL && f->needs != NULL &&
                !gr_config_holds(part->table, config, f->needs)) {
                char needs[NEEDS_BYTES];
                describe_needs(part->table, f->needs, needs);
                return gr_node_fail(node, diag, GR_E_INVALID,
                                    "%s belongs to %s; set that, or remove the line", f->key,
                                    needs);
            }
        }
    }
    return GR_OK;
}

static gr_status check_type(gr_job *job, gr_diag *diag)
{
    const gr_node *node = gr_node_get(job->config.distribution, "distribution_type");
    if (job->distribution.distribution_type == 0) {
        return GR_OK;
    }
    return gr_node_fail(node, diag, GR_E_UNSUPPORTED,
                        "%s jobs belong to Kubernetes, where this version does not start anything; "
                        "remove the line or set Job to start workers on this host",
                        node->text);
}

static gr_status check_parts(gr_job *job, gr_diag *diag)
{
    const gr_node *list = job->config.model;
    if (job->config.data == NULL) {
        return gr_node_fail(job->root, diag, GR_E_INVALID,
                            "the job has no data; add data: with format and file");
    }
    if (list == NULL || list->kind == GR_NODE_NULL) {
        return gr_node_fail(list != NULL ? list : job->root, diag, GR_E_INVALID,
                            "the job has no model; add model: with the list of its layers");
    }
    if (job->config.steps > 0 && job->config.epochs > 0) {
        return gr_node_fail(gr_node_setting(job->root, "steps"), diag, GR_E_INVALID,
                            "epochs says already how long to train; remove one of the two");
    }
    if (job->config.steps == 0 && !(job->config.epochs > 0)) {
        return gr_node_fail(job->root, diag, GR_E_INVALID,
                            "the job does not say how long to train; add epochs: N or steps: N");
    }
    return GR_OK;
}

/* "8 steps", "2 epochs"; as many steps as can be if those of an epoch are not known yet. */
static gr_number_result read_steps(const gr_job *job, const char *text, double plain,
                                   int64_t *count_out)
{
    const double epoch = job->steps_per_epoch > 0 ? (double)job->steps_per_epoch : 1e6;
    const gr_number_unit units[] = {
        {"step", 1}, {"steps", 1}, {"epoch", epoch}, {"epochs", epoch}, {NULL, 0}};
    gr_number_result result = gr_number_with_unit(text, units, plain, count_out);
    return result == GR_NUMBER_OK && *count_out < 1 ? GR_NUMBER_MALFORMED : result;
}

static gr_status resolve_sync(gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    int64_t count = (int64_t)job->steps_per_epoch;
    if (!job->strategy->averages_weights) {
        return GR_OK;
    }
    if (d->sync_every == NULL) {
        return gr_node_fail(gr_node_setting(section, "strategy"), diag, GR_E_INVALID,
                            "strategy %s needs to know how often the weights are averaged; add "
                            "sync_every: 8 steps, or sync_every: epoch",
                            job->strategy->name);
    }
    if (strcmp(d->sync_every, "epoch") != 0 &&
        read_steps(job, d->sync_every, 1.0, &count) != GR_NUMBER_OK) {
        return gr_node_fail(gr_node_setting(section, "sync_every"), diag, GR_E_INVALID,
                            "\"%s\" does not say how often the weights are averaged; give steps or "
                            "an epoch, as in: 8 steps, epoch",
                            d->sync_every);
    }
    if (job->steps_per_epoch > 0 && (uint64_t)count > job->steps_per_epoch) {
        return gr_node_fail(gr_node_setting(section, "sync_every"), diag, GR_E_INVALID,
                            "\"%s\" is more than the %" PRIu64 " steps of an epoch, at whose end "
                            "weights are averaged in any case; give fewer, or epoch",
                            d->sync_every, job->steps_per_epoch);
    }
    job->sync_steps = (uint64_t)count;
    return GR_OK;
}

gr_status gr_job_resolve_intervals(gr_job *job, gr_diag *diag)
{
    static const gr_number_unit times[] = {{"ms", 1e3},   {"s", 1e6},    {"sec", 1e6},
                                           {"min", 60e6}, {"h", 3600e6}, {"hours", 3600e6},
                                           {NULL, 0}};
    const char *every = job->checkpoint.every;
    int64_t count = 0;
    gr_status status = resolve_sync(job, diag);
    if (status != GR_OK || every == NULL) {
        return status;
    }
    if (read_steps(job, every, 0.0, &count) == GR_NUMBER_OK) {
        job->checkpoint_steps = (uint64_t)count;
    } else if (gr_number_with_unit(every, times, 0.0, &count) == GR_NUMBER_OK && count > 0) {
        job->checkpoint_us = count;
    } else {
        return gr_node_fail(gr_node_get(job->config.checkpoint, "every"), diag, GR_E_INVALID,
                            "\"%s\" does not say how often checkpoints are written; give steps, "
                            "epochs or a time, as in: 100 steps, 1 epoch, 5 min",
                            every);
    }
    return GR_OK;
}

gr_status gr_job_resolve(gr_job *job, gr_diag *diag)
{
    static gr_status (*const all[])(gr_job *, gr_diag *) = {check_type,
                                                            check_needs,
                                                            check_parts,
                                                            gr_job_resolve_strategy,
                                                            resolve_workers,
                                                            gr_job_check_workers,
                                                            resolve_batch,
                                                            check_loss,
                                                            gr_job_resolve_output,
                                                            gr_job_resolve_intervals,
                                                            gr_early_stopping_resolve};
    gr_status status = GR_OK;
    for (size_t i = 0; status == GR_OK && i < sizeof all / sizeof all[0]; i++) {
        status = all[i](job, diag);
    }
    return status;
}
