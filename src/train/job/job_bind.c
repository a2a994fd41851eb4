/* SPDX-License-Identifier: Apache-2.0 */

/* What a job is with its data: steps, and the shapes of the model. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "train/early_stopping.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { SHAPE_HINT_BYTES = 256 };

/* Each asynchronous worker takes other samples than the rest, as many as a shard has. */
static gr_status check_samples(const gr_job *job, int64_t samples, gr_diag *diag)
{
    int64_t most = samples / job->shard_batch;
    if (!gr_job_is_asynchronous(job) || job->trains_nothing || job->workers_max <= most) {
        return GR_OK;
    }
    return gr_node_fail(gr_node_setting(job->config.distribution, "strategy"), diag, GR_E_INVALID,
                        "%s%d workers take %" PRId64 " samples each (of a shard), more than the "
                        "%" PRId64 " training samples; start at most %" PRId64
                        ", or set a smaller global_batch",
                        job->workers_max > job->workers ? "up to " : "", job->workers_max,
                        job->shard_batch, samples, most);
}

static gr_status bind_steps(gr_job *job, gr_diag *diag)
{
    const gr_node *root = job->root;
    int64_t samples = gr_dataset_count(job->dataset, GR_SPLIT_TRAIN);
    int64_t batch = job->config.global_batch;
    if (batch > samples && samples < job->shards) {
        return gr_node_fail(gr_node_setting(root, "global_batch"), diag, GR_E_INVALID,
                            "%" PRId64 " samples are more than the %" PRId64 " training samples, "
                            "which are fewer than the %d shards; set distribution.shards to at "
                            "most %" PRId64 ", and this to a multiple of it, or give more data",
                            batch, samples, job->shards, samples);
    }
    if (batch > samples) {
        return gr_node_fail(gr_node_setting(root, "global_batch"), diag, GR_E_INVALID,
                            "%" PRId64 " samples are more than the %" PRId64 " training samples; "
                            "set it to at most %" PRId64,
                            batch, samples, samples / job->shards * job->shards);
    }
    gr_status status = check_samples(job, samples, diag);
    if (status != GR_OK) {
        return status;
    }
    job->steps_per_epoch = (uint64_t)(samples / batch);
    if (job->config.steps > 0) {
        job->total_steps = (uint64_t)job->config.steps;
        return GR_OK;
    }
    double steps = round(job->config.epochs * (double)job->steps_per_epoch);
    if (steps > 9007199254740992.0) {
        return gr_node_fail(gr_node_setting(root, "epochs"), diag, GR_E_INVALID,
                            "these are %g steps, more than can be counted; give fewer", steps);
    }
    job->total_steps = steps < 1 ? 1 : (uint64_t)steps;
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

static gr_status bind_model(gr_job *job, gr_diag *diag)
{
    const gr_node *list = job->config.model;
    job->input.dims = gr_dataset_dims(job->dataset, job->input.dim);
    gr_status status = gr_model_spec_read(list, &job->input, &job->arena, &job->spec, diag);
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
        return gr_node_fail(
            node, diag, GR_E_INVALID,
            "the model ends with values of the shape %s; add flatten, or global_pool "
            "for images, and then linear: %" PRId64,
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

gr_status gr_job_bind(gr_job *job, gr_diag *diag)
{
    gr_status status =
        gr_dataset_open(&job->data, job->path, (uint64_t)job->config.seed, &job->dataset, diag);
    if (status == GR_OK) {
        status = bind_steps(job, diag);
    }
    if (status == GR_OK) {
        status = gr_job_resolve_intervals(job, diag);
    }
    if (status == GR_OK) {
        status = bind_model(job, diag);
    }
    return status == GR_OK ? gr_early_stopping_bind(job, diag) : status;
}
