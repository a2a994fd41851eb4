/* SPDX-License-Identifier: Apache-2.0 */
#include "train/early_stopping.h"

#include "train/job/job_internal.h"

#include <math.h>

gr_best gr_best_none(void)
{
    return (gr_best){.value = (double)NAN};
}

const char *gr_best_metric(const gr_job *job)
{
    return job->metric >= 0 ? gr_metric_names[job->metric] : NULL;
}

static double value_of(const gr_epoch_record *record, int metric)
{
    switch ((gr_metric)metric) {
    case GR_METRIC_TEST_LOSS:
        return record->test_loss;
    case GR_METRIC_TEST_ACCURACY:
        return record->test_accuracy;
    case GR_METRIC_TEST_RMSE:
        return record->test_rmse;
    case GR_METRIC_TEST_MAE:
        return record->test_mae;
    case GR_METRIC_TEST_R2:
        return record->test_r2;
    case GR_METRIC_LOSS:
        return record->loss;
    }
    return (double)NAN;
}

void gr_best_update(gr_best *best, const gr_job *job, const gr_epoch_record *record)
{
    double value = job->metric >= 0 ? value_of(record, job->metric) : (double)NAN;
    if (isnan(value)) {
        return;
    }
    bool larger = job->metric == GR_METRIC_TEST_ACCURACY || job->metric == GR_METRIC_TEST_R2;
    double gain = larger ? value - best->value : best->value - value;
    if (isnan(best->value) || gain > job->early_stopping.min_delta) {
        *best = (gr_best){.value = value, .step = record->step};
    } else {
        best->wait++;
    }
}

bool gr_early_stopping_reached(const gr_job *job, const gr_best *best)
{
    return job->early_stopping.wanted && best->wait >= job->early_stopping.patience;
}

/* ---- The job --------------------------------------------------------------------------------- */

static gr_status check_metric(const gr_job *job, const gr_node *node, gr_diag *diag)
{
    const char *name = gr_best_metric(job);
    bool of_classes = job->metric == GR_METRIC_TEST_ACCURACY;
    bool of_numbers = job->metric == GR_METRIC_TEST_RMSE || job->metric == GR_METRIC_TEST_MAE ||
                      job->metric == GR_METRIC_TEST_R2;
    if (job->data.regression ? of_classes : of_numbers) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "%s does not exist for %s; watch test_loss or %s", name,
                            job->data.regression ? "a regression" : "classes",
                            job->data.regression ? "test_mae" : "test_accuracy");
    }
    if (job->metric != GR_METRIC_LOSS && job->config.eval_every == 0) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "%s is not known before the end with eval_every: 0; set eval_every: 1",
                            name);
    }
    if (gr_job_is_asynchronous(job)) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "needs workers that have the same weights at the end of an epoch; "
                            "consistency ssp and async are asynchronous: set bsp");
    }
    return GR_OK;
}

/* The part that says that a metric is watched. */
static const gr_node *section_of(const gr_job *job)
{
    return job->early_stopping.wanted ? job->config.early_stopping : job->config.checkpoint;
}

gr_status gr_early_stopping_resolve(gr_job *job, gr_diag *diag)
{
    const gr_node *metric = gr_node_get(job->config.checkpoint, "metric");
    bool best = job->checkpoint.keep_best;
    job->metric = job->early_stopping.wanted ? job->early_stopping.metric
                  : best                     ? job->checkpoint.metric
                                             : -1;
    if (metric != NULL && job->metric != job->checkpoint.metric) {
        return gr_node_fail(metric, diag, GR_E_INVALID,
                            "is %s, but early_stopping watches %s; let both watch the same",
                            gr_metric_names[job->checkpoint.metric], gr_best_metric(job));
    }
    if (job->metric < 0) {
        return GR_OK;
    }
    job->checkpoint.metric = job->metric;
    return check_metric(job, section_of(job), diag);
}

gr_status gr_early_stopping_bind(const gr_job *job, gr_diag *diag)
{
    if (job->metric < 0 || job->metric == GR_METRIC_LOSS ||
        gr_dataset_count(job->dataset, GR_SPLIT_TEST) > 0) {
        return GR_OK;
    }
    return gr_node_fail(section_of(job), diag, GR_E_INVALID,
                        "%s needs test samples: set test_count or test files under data, or watch "
                        "loss, that of the training",
                        gr_best_metric(job));
}
