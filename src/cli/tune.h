/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_TUNE_H
#define GR_CLI_TUNE_H

/* What the files of `gradus tune` share: tune.c is the verb, tune_measure.c measures, tune_file.c
 * writes. */

#include "coll/comm_tune.h"

typedef struct gr_tune_options {
    int64_t workers;
    const char *output;
    int link;
    int64_t time_us, rounds;
    int64_t begin_bytes, end_bytes;
} gr_tune_options;

typedef struct gr_tuning_point {
    const gr_algorithm *algorithm;
    size_t size_bytes, segment_bytes;
    double time_us;
} gr_tuning_point;

typedef struct gr_tune_points {
    gr_tuning_point *all;
    size_t count, capacity;
} gr_tune_points;

/* Every algorithm of every collective at every size, on every rank; the times are those of all
 * ranks, alike on each. Rank 0 prints the best of each size. */
gr_status gr_tune_measure(gr_comm *comm, const gr_tune_options *options, gr_tune_points *points,
                          gr_diag *diag) GR_MUST_CHECK;

/* The fastest by size: ranges that meet where the times of two neighbours cross. */
void gr_tune_rules(const gr_tune_points *points, bool exact, gr_select_rules *rules_out);

/* Writes the file for GRADUS_TUNE; `points` are in it for people. GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_tuning_write(const char *path, const gr_tuning *tuning, const gr_tuning_point *points,
                          size_t point_count, gr_diag *diag) GR_MUST_CHECK;

#endif
