/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SHM_HEAP_H
#define GR_LINK_SHM_HEAP_H

/* A first-fit allocator over a part of a memory file. What it knows lies outside that part, where
 * no peer sees it. Free memory is always zero: freeing gives the pages back to the system. */

#include <gradus/status.h>

typedef struct gr_shm_extent {
    size_t offset, size_bytes; /* in the heap; the next extent begins where it ends */
    int used;
} gr_shm_extent;

typedef struct gr_shm_heap {
    uint8_t *base;
    int fd; /* the file; base is at file_offset in it */
    size_t file_offset;
    gr_shm_extent *extents; /* by offset; they cover the heap without gaps */
    size_t count, capacity;
} gr_shm_heap;

enum { GR_SHM_EXTENTS_MAX = 1 << 20 };

gr_status gr_shm_heap_init(gr_shm_heap *heap, uint8_t *base, size_t size_bytes, int fd,
                           size_t file_offset) GR_MUST_CHECK;
void gr_shm_heap_fini(gr_shm_heap *heap);
/* 64-byte aligned, page-aligned from GR_SHM_HEAP_PAGED bytes on, zeroed. */
enum { GR_SHM_HEAP_ALIGN = 64, GR_SHM_HEAP_PAGED = 16 << 10 };
gr_status gr_shm_heap_alloc(gr_shm_heap *heap, size_t size_bytes, void **mem_out) GR_MUST_CHECK;
void gr_shm_heap_free(gr_shm_heap *heap, void *mem);
/* Zeros from `at` on, where `fd` has its byte number file_offset: whole pages go back to the
 * system, the edges are overwritten. */
void gr_shm_make_zero(uint8_t *at, size_t size_bytes, int fd, size_t file_offset);

#endif
