/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_RECORD_CACHE_H
#define GR_DATA_RECORD_CACHE_H

/* Records of one size by number: in memory while they are few, in an unlinked temporary file when
 * they are many, or straight in a plain file of somebody else. Filled by one thread, then sealed;
 * from then on any thread may read. */

#include <gradus/status.h>

typedef struct gr_record_cache gr_record_cache;

/* `name` (of the data file) is for messages. Up to memory_max bytes stay in memory. */
gr_status gr_record_cache_create(const char *name, size_t record_bytes, uint64_t memory_max,
                                 gr_record_cache **cache_out, gr_diag *diag) GR_MUST_CHECK;

/* Records that lie one behind the other in the file `fd` (duplicated, the caller keeps its own)
 * from `base` on. Nothing is loaded. */
gr_status gr_record_cache_over_file(const char *name, int fd, uint64_t base, size_t record_bytes,
                                    uint64_t count, gr_record_cache **cache_out,
                                    gr_diag *diag) GR_MUST_CHECK;
void gr_record_cache_destroy(gr_record_cache *cache);

gr_status gr_record_cache_append(gr_record_cache *cache, const void *record,
                                 gr_diag *diag) GR_MUST_CHECK;
gr_status gr_record_cache_seal(gr_record_cache *cache, gr_diag *diag) GR_MUST_CHECK;

/* Where records lie: "in memory", "in a temporary file". */
const char *gr_record_cache_kept(const gr_record_cache *cache);
uint64_t gr_record_cache_memory(const gr_record_cache *cache); /* bytes of heap that it holds */

/* Bytes [first, first + size) of a record (part of it, so that large records need no large
 * buffer). */
gr_status gr_record_cache_get(const gr_record_cache *cache, uint64_t record, size_t first,
                              size_t size, void *bytes_out, gr_diag *diag) GR_MUST_CHECK;

/* Fails if a file that somebody else owns has changed. Called once a batch: it costs a system
 * call. */
gr_status gr_record_cache_check(const gr_record_cache *cache, gr_diag *diag) GR_MUST_CHECK;

/* A plain file must stay as it is while it is in use; this finds out whether it has. */
typedef struct gr_file_mark {
    int64_t size, seconds, nanoseconds;
} gr_file_mark;
gr_status gr_file_mark_take(const char *name, int fd, gr_file_mark *mark_out,
                            gr_diag *diag) GR_MUST_CHECK;
gr_status gr_file_mark_check(const char *name, int fd, const gr_file_mark *mark,
                             gr_diag *diag) GR_MUST_CHECK;

#endif
