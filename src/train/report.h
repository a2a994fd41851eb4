/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_REPORT_H
#define GR_TRAIN_REPORT_H

/* What a person or a program sees while a job trains. Rank 0 only; the other ranks' style is
 * GR_REPORT_NONE, and every call does nothing. */

#include "train/metrics.h"
#include "train/train.h"

typedef struct gr_report {
    gr_report_style style;
    FILE *out;
    int columns;    /* of the terminal; 0: no bar */
    bool bar_shown; /* the cursor stands behind an unfinished line */
    uint64_t first_step, total_steps, steps_per_epoch;
    int64_t global_batch;
    int64_t begin_ns, next_ns; /* of training; when the bar is drawn again */
} gr_report;

/* `out` is borrowed. The terminal's width is `columns`, or asked of `out` if 0; -1: no terminal. */
void gr_report_init(gr_report *report, gr_report_style style, FILE *out, int columns);
/* What GRADUS_TERMINAL_COLUMNS says (the launcher passes it to workers whose output it forwards
 * to a terminal); 0 without it or if it is no sensible number. */
int gr_report_columns(const char *text);

/* What is reported on: first of all. `now_ns`: when the training began. */
void gr_report_resume(gr_report *report, const gr_start_record *record, int64_t now_ns);
gr_status gr_report_start(gr_report *report, const gr_start_record *record,
                          gr_diag *diag) GR_MUST_CHECK;
gr_status gr_report_recovery(gr_report *report, const gr_recovery_record *record,
                             gr_diag *diag) GR_MUST_CHECK;
/* `step` steps are done. Cheap; draws a few times a second. No heap. */
void gr_report_step(gr_report *report, uint64_t step, int64_t now_ns);
gr_status gr_report_epoch(gr_report *report, const gr_epoch_record *record,
                          gr_diag *diag) GR_MUST_CHECK;
gr_status gr_report_stop(gr_report *report, const gr_stop_record *record,
                         gr_diag *diag) GR_MUST_CHECK;
gr_status gr_report_end(gr_report *report, const gr_end_record *record,
                        gr_diag *diag) GR_MUST_CHECK;
/* The job failed: leave the terminal's line clean. */
void gr_report_abandon(gr_report *report);

/* "12,345" and "1:02:03", at most 31 characters. */
void gr_format_thousands(double value, char text_out[32]);
void gr_format_duration(double seconds, char text_out[32]);

#endif
