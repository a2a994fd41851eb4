/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_INPUT_STREAM_H
#define GR_DATA_INPUT_STREAM_H

/* The bytes of a data file from front to back, unpacked if it is gzip (seen by its content, not
 * by its name). One thread at a time. */

#include <gradus/status.h>

typedef struct gr_input_stream gr_input_stream;

/* `path` is also the name in messages. GR_E_NOT_FOUND, GR_E_IO, GR_E_INVALID (no regular file). */
gr_status gr_input_stream_open(const char *path, gr_input_stream **source_out,
                               gr_diag *diag) GR_MUST_CHECK;

/* For tests: the same over borrowed memory, which must outlive the stream. */
gr_status gr_input_stream_open_memory(const char *name, const void *data, size_t size_bytes,
                                      gr_input_stream **source_out, gr_diag *diag) GR_MUST_CHECK;
void gr_input_stream_close(gr_input_stream *source); /* NULL ok */

/* Fills `buffer` as far as the data goes: *got_out is below size_bytes only at the end or in
 * front of damage, which the next call reports. 0: the end. */
gr_status gr_input_stream_read(gr_input_stream *source, void *buffer, size_t size_bytes,
                               size_t *got_out, gr_diag *diag) GR_MUST_CHECK;

const char *gr_input_stream_name(const gr_input_stream *source);

/* May be read at any place: a plain file. Then its descriptor (borrowed) and its size; else -1. */
int gr_input_stream_seekable(const gr_input_stream *source, uint64_t *size_out);

#endif
