/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/metrics.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

static const struct {
    const char *kind, *framework;
} frameworks[] = {
    {"MPIJob", "mpi"}, {"PyTorchJob", "pytorch"}, {"TFJob", "tensorflow"}, {"GradusJob", "gradus"}};

void gr_metrics_controller_name(const gr_operator_kind *kind, char name_out[GR_METRICS_NAME_BYTES])
{
    snprintf(name_out, GR_METRICS_NAME_BYTES, "%s-controller", kind->kind);
    for (char *at = name_out; *at != '\0'; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
}

void gr_metrics_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void print_mpi(FILE *out, const gr_controller_counts *counts, size_t count)
{
    static const struct {
        gr_job_count what;
        const char *name, *help;
    } metrics[] = {
        {GR_JOBS_CREATED, "mpi_operator_jobs_created_total", "MPIJobs created"},
        {GR_JOBS_SUCCESSFUL, "mpi_operator_jobs_successful_total", "MPIJobs that succeeded"},
        {GR_JOBS_FAILED, "mpi_operator_jobs_failed_total", "MPIJobs that failed"}};
    for (size_t m = 0; m < sizeof metrics / sizeof metrics[0]; m++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < count; i++) {
            sum += counts[i].kind == &gr_mpijob_v2 ? counts[i].counts[metrics[m].what] : 0;
        }
        gr_metrics_head(out, metrics[m].name, "counter", metrics[m].help);
        fprintf(out, "%s %" PRIu64 "\n", metrics[m].name, sum);
    }
}

static void print_training(FILE *out, const gr_controller_counts *counts, size_t count)
{
    static const struct {
        const char *name, *help;
    } metrics[GR_JOB_COUNTS] = {
        [GR_JOBS_CREATED] = {"training_operator_jobs_created_total", "Jobs created"},
        [GR_JOBS_DELETED] = {"training_operator_jobs_deleted_total", "Jobs deleted"},
        [GR_JOBS_SUCCESSFUL] = {"training_operator_jobs_successful_total", "Jobs that succeeded"},
        [GR_JOBS_FAILED] = {"training_operator_jobs_failed_total", "Jobs that failed"},
        [GR_JOBS_RESTARTED] = {"training_operator_jobs_restarted_total", "Jobs that restarted"}};
    for (size_t m = 0; m < GR_JOB_COUNTS; m++) {
        gr_metrics_head(out, metrics[m].name, "counter", metrics[m].help);
        for (size_t i = 0; i < count; i++) {
            size_t f = 0, end = sizeof frameworks / sizeof frameworks[0];
            while (f < end && strcmp(frameworks[f].kind, counts[i].kind->kind) != 0) {
                f++;
            }
            if (f < end && counts[i].kind != &gr_mpijob_v2) {
                fprintf(out, "%s{job_namespace=\"%s\",framework=\"%s\"} %" PRIu64 "\n",
                        metrics[m].name, counts[i].space, frameworks[f].framework,
                        counts[i].counts[m]);
            }
        }
    }
}

void gr_metrics_counts(FILE *out, const gr_controller_counts *counts, size_t count, bool is_leader)
{
    print_mpi(out, counts, count);
    gr_metrics_head(out, "mpi_operator_is_leader", "gauge", "1 in the operator that leads");
    fprintf(out, "mpi_operator_is_leader %d\n", is_leader ? 1 : 0);
    print_training(out, counts, count);
}

/* ---- Queues ---------------------------------------------------------------------------------- */
void gr_metrics_observe(gr_metrics_times *times, int64_t time_us)
{
    double time_s = (double)(time_us > 0 ? time_us : 0) * 1e-6, limit_s = 1e-8;
    int bucket = 0;
    while (bucket < GR_METRICS_BUCKETS && time_s > limit_s) {
        limit_s *= 10;
        bucket++;
    }
    times->counts[bucket]++;
    times->sum_s += time_s;
}

static void print_times(FILE *out, const char *name, const char *queue,
                        const gr_metrics_times *times)
{
    static const char *const limits[GR_METRICS_BUCKETS + 1] = {
        "1e-08", "1e-07", "1e-06", "1e-05", "0.0001", "0.001", "0.01",
        "0.1",   "1",     "10",    "100",   "1000",   "+Inf"};
    uint64_t sum = 0;
    for (int i = 0; i <= GR_METRICS_BUCKETS; i++) {
        sum += times->counts[i];
        fprintf(out, "%s_bucket{name=\"%s\",le=\"%s\"} %" PRIu64 "\n", name, queue, limits[i], sum);
    }
    fprintf(out, "%s_sum{name=\"%s\"} %.9g\n%s_count{name=\"%s\"} %" PRIu64 "\n", name, queue,
            times->sum_s, name, queue, sum);
}

typedef enum queue_metric { DEPTH, ADDS, RETRIES, WAITS, LOOKS, UNFINISHED, LONGEST } queue_metric;

static void print_queue(FILE *out, const char *name, queue_metric what,
                        const gr_metrics_queue *queue)
{
    char label[GR_METRICS_NAME_BYTES];
    gr_metrics_controller_name(queue->kind, label);
    switch (what) {
    case WAITS:
        print_times(out, name, label, &queue->waits);
        break;
    case LOOKS:
        print_times(out, name, label, &queue->looks);
        break;
    case UNFINISHED:
    case LONGEST:
        fprintf(out, "%s{name=\"%s\"} %.9g\n", name, label,
                what == LONGEST ? queue->longest_s : queue->unfinished_s);
        break;
    default:
        fprintf(out, "%s{name=\"%s\"} %" PRIu64 "\n", name, label,
                what == DEPTH  ? queue->depth
                : what == ADDS ? queue->adds
                               : queue->retries);
    }
}

void gr_metrics_queues(FILE *out, const gr_metrics_queue *queues, size_t count)
{
    static const struct {
        queue_metric what;
        const char *name, *type, *help;
    } metrics[] = {
        {DEPTH, "workqueue_depth", "gauge", "Jobs that are due to be looked at"},
        {ADDS, "workqueue_adds_total", "counter", "Jobs that were queued"},
        {WAITS, "workqueue_queue_duration_seconds", "histogram",
         "How long jobs were due before they were looked at"},
        {LOOKS, "workqueue_work_duration_seconds", "histogram",
         "How long looks took, with all of their writes"},
        {UNFINISHED, "workqueue_unfinished_work_seconds", "gauge",
         "How long the looks take already that have not ended, all together"},
        {LONGEST, "workqueue_longest_running_processor_seconds", "gauge",
         "How long the longest of them takes already"},
        {RETRIES, "workqueue_retries_total", "counter", "Looks that failed, and are repeated"}};
    for (size_t m = 0; m < sizeof metrics / sizeof metrics[0]; m++) {
        gr_metrics_head(out, metrics[m].name, metrics[m].type, metrics[m].help);
        for (size_t i = 0; i < count; i++) {
            print_queue(out, metrics[m].name, metrics[m].what, &queues[i]);
        }
    }
}
