/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_STORE_H
#define GR_DATA_STORE_H

/* Records of one size by number: in memory while they are few, in an unlinked temporary file when
 * they are many, or straight in a plain file of somebody else. Filled by one thread, then sealed;
 * from then on any thread may read. */

#include <gradus/status.h>
#include <stdbool.h>

typedef struct gr_store gr_store;

/* `name` (of the data file) is for messages. Up to memory_max bytes stay in memory. */
gr_status gr_store_create(const char *name, size_t record_bytes, uint64_t memory_max,
                          gr_store **store_out, gr_diag *diag) GR_MUST_CHECK;

/* Records that lie one behind the other in the file `fd` (duplicated, the caller keeps its own)
 * from `base` on. Nothing is loaded. */
gr_status gr_store_over_file(const char *name, int fd, uint64_t base, size_t record_bytes,
                             uint64_t count, gr_store **store_out, gr_diag *diag) GR_MUST_CHECK;
void gr_store_destroy(gr_store *store);

gr_status gr_store_append(gr_store *store, const void *record, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_store_seal(gr_store *store, gr_diag *diag) GR_MUST_CHECK;

const char *gr_store_kept(const gr_store *store); /* "in memory", "in a temporary file" */
uint64_t gr_store_memory(const gr_store *store);  /* bytes of heap that it holds */

/* Bytes [first, first + size) of a record (part of it, so that large records need no large
 * buffer). */
gr_status gr_store_get(const gr_store *store, uint64_t record, size_t first, size_t size,
                       void *bytes_out, gr_diag *diag) GR_MUST_CHECK;

/* Is a file of somebody else still as it was? Once a batch: it costs a system call. */
gr_status gr_store_check(const gr_store *store, gr_diag *diag) GR_MUST_CHECK;

/* A plain file must stay as it is while it is in use; this finds out whether it has. */
typedef struct gr_file_mark {
    int64_t size, seconds, nanoseconds;
} gr_file_mark;
gr_status gr_file_mark_take(const char *name, int fd, gr_file_mark *mark_out,
                            gr_diag *diag) GR_MUST_CHECK;
gr_status gr_file_mark_check(const char *name, int fd, const gr_file_mark *mark,
                             gr_diag *diag) GR_MUST_CHECK;

#endif
