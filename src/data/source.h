/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_SOURCE_H
#define GR_DATA_SOURCE_H

/* The bytes of a data file from front to back, unpacked if it is gzip (seen by its content, not
 * by its name). One thread at a time. */

#include <gradus/status.h>
#include <stdbool.h>

typedef struct gr_source gr_source;

/* `path` is also the name in messages. GR_E_NOT_FOUND, GR_E_IO, GR_E_INVALID (no regular file). */
gr_status gr_source_open(const char *path, gr_source **source_out, gr_diag *diag) GR_MUST_CHECK;

/* The same over borrowed memory, which must outlive the source. */
gr_status gr_source_open_memory(const char *name, const void *data, size_t size_bytes,
                                gr_source **source_out, gr_diag *diag) GR_MUST_CHECK;
void gr_source_close(gr_source *source); /* NULL ok */

/* Fills `buffer` as far as the data goes: *got_out is below size_bytes only at the end or in
 * front of damage, which the next call reports. 0: the end. */
gr_status gr_source_read(gr_source *source, void *buffer, size_t size_bytes, size_t *got_out,
                         gr_diag *diag) GR_MUST_CHECK;

const char *gr_source_name(const gr_source *source);

/* May be read at any place: a plain file. Then its descriptor (borrowed) and its size; else -1. */
int gr_source_seekable(const gr_source *source, uint64_t *size_out);

#endif
