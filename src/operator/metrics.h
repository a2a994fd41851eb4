/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_METRICS_H
#define GR_OPERATOR_METRICS_H

/* What an operator has counted, as Prometheus reads it. */

#include "operator/controller.h"

#include <stdio.h>

/* What training-operator calls the controller of a kind, "tfjob-controller". */
enum { GR_METRICS_NAME_BYTES = 64 };
void gr_metrics_controller_name(const gr_operator_kind *kind, char name_out[GR_METRICS_NAME_BYTES]);
/* The lines above a metric: "# HELP", "# TYPE". */
void gr_metrics_head(FILE *out, const char *name, const char *type, const char *help);
/* Times in the buckets of client-go's queues: 10 ns, and ten times as long 11 times. */
enum { GR_METRICS_BUCKETS = 12 };
typedef struct gr_metrics_times {
    uint64_t counts[GR_METRICS_BUCKETS + 1]; /* the last one: longer */
    double sum_s;
} gr_metrics_times;

void gr_metrics_observe(gr_metrics_times *times, int64_t time_us);

/* The metrics of client-go's work queues, for the jobs of one kind. */
typedef struct gr_metrics_queue {
    const gr_operator_kind *kind;
    uint64_t adds, retries;
    gr_metrics_times waits, looks; /* from when a job is due until it is looked at; until the last
                                    * write of that is answered */
    /* As it is now. */
    uint64_t depth;                 /* jobs that are due */
    double unfinished_s, longest_s; /* of the looks that have begun: all together; the longest */
} gr_metrics_queue;

/* workqueue_*, by the names of training-operator's controllers. */
void gr_metrics_queues(FILE *out, const gr_metrics_queue *queues, size_t count);

/* mpi_operator_* of MPIJob v2beta1 and training_operator_* of the kinds of v1. */
void gr_metrics_counts(FILE *out, const gr_controller_counts *counts, size_t count, bool is_leader);

#endif
