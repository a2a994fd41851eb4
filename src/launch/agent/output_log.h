/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_OUTPUT_LOG_H
#define GR_LAUNCH_AGENT_OUTPUT_LOG_H

/* What a job has written to stdout (stream 0) and stderr (stream 1), in the order in which it came:
 * two files in the job's folder, of which the older one is dropped when the newer one is full.
 * Bytes of a stream are counted from the start of the job, so that a reader sees what is missing.
 *
 * A file is a row of records: size u32, stream u32, number of the first byte u64, bytes. */

#include "launch/agent/job_folder.h"

enum {
    GR_OUTPUT_RECORD_BYTES = 32 * 1024,
    GR_OUTPUT_FILE_BYTES = 8 << 20 /* of each of the two */
};

typedef struct gr_output_log gr_output_log;

/* `folder_fd` is borrowed until destroy. GR_E_NO_MEMORY, GR_E_IO */
gr_status gr_output_log_create(int folder_fd, gr_output_log **log_out, gr_diag *diag) GR_MUST_CHECK;
void gr_output_log_destroy(gr_output_log *log); /* NULL ok; writes what it holds back */
/* May hold the bytes back until flush. What the file system refuses is left out. */
void gr_output_log_put(gr_output_log *log, int stream, const char *data, size_t size_bytes);
void gr_output_log_flush(gr_output_log *log);
/* Bytes ever put. */
uint64_t gr_output_log_total(const gr_output_log *log, int stream);

/* Reads while the log is written, perhaps by another process. */
typedef struct gr_output_reader {
    int folder_fd; /* borrowed */
    int fd;        /* of the file that it is in; -1: none was there */
    uint64_t next[GR_JOB_STREAMS];
    uint64_t missing; /* bytes between `from` and what was read that are not there any more */
} gr_output_reader;

/* From byte from[s] of each stream on. */
void gr_output_reader_open(gr_output_reader *reader, int folder_fd,
                           const uint64_t from[GR_JOB_STREAMS]);
void gr_output_reader_close(gr_output_reader *reader);
/* The next bytes, all of one stream; 0: there are no more now. */
size_t gr_output_reader_next(gr_output_reader *reader, int *stream_out,
                             char data_out[GR_OUTPUT_RECORD_BYTES]);

#endif
