/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/metrics.h"

#include <inttypes.h>
#include <string.h>

static const struct {
    const char *kind, *framework;
} frameworks[] = {
    {"MPIJob", "mpi"}, {"PyTorchJob", "pytorch"}, {"TFJob", "tensorflow"}, {"GradusJob", "gradus"}};

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
