/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_RECORDS_H
#define GR_LAUNCH_RECORDS_H

/* The flight recorders of the workers: a memory file for each, in which it records its operations
 * (coll/record.h), and which is read when the job has failed. A worker opens it through /proc, so
 * it inherits no descriptor; one that cannot records for itself alone. */

#include "coll/diagnose/flight_recorder.h"

typedef struct gr_records gr_records;

/* The first `count` workers have files. NULL, without files or memory: nothing is recorded, which
 * is no failure of a job. */
gr_records *gr_records_create(int workers, int count);
void gr_records_destroy(gr_records *records); /* NULL ok */

/* Where rank finds its file: for GRADUS_RECORD. NULL if there is none. */
const char *gr_records_path(const gr_records *records, int rank);
/* This process has them now, and has the descriptors of the one before. NULL ok. */
void gr_records_moved(gr_records *records);
/* Another worker is started in its place. */
void gr_records_begun(gr_records *records, int rank);
/* The worker has ended just now. */
void gr_records_ended(gr_records *records, int rank);
/* Where it is, or was. */
gr_flight_recorder_place gr_records_place(const gr_records *records, int rank);
/* What the ranks did last, a line each, `first` (-1: none) before the others, cut to a few; empty
 * if none has recorded anything. */
enum { GR_RECORDS_TEXT_BYTES = 4096 };
void gr_records_report(const gr_records *records, int first, char text_out[GR_RECORDS_TEXT_BYTES]);

#endif
