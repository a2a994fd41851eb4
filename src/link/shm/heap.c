/* SPDX-License-Identifier: Apache-2.0 */
#include "link/shm/heap.h"

#include "base/fail.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, FIRST_CAPACITY = 256 };

gr_status gr_shm_heap_init(gr_shm_heap *heap, uint8_t *base, size_t size_bytes, int fd,
                           size_t file_offset)
{
    *heap = (gr_shm_heap){.base = base, .fd = fd, .file_offset = file_offset};
    heap->extents = calloc(FIRST_CAPACITY, sizeof *heap->extents);
    if (heap->extents == NULL) {
        return GR_E_NO_MEMORY;
    }
    heap->capacity = FIRST_CAPACITY;
    heap->extents[0] = (gr_shm_extent){.offset = 0, .size_bytes = size_bytes};
    heap->count = 1;
    return GR_OK;
}

void gr_shm_heap_fini(gr_shm_heap *heap)
{
    free(heap->extents);
    heap->extents = NULL;
    heap->count = heap->capacity = 0;
}

/* An allocation cuts one extent into at most three. */
static gr_status reserve(gr_shm_heap *heap)
{
    if (heap->count + 2 <= heap->capacity) {
        return GR_OK;
    }
    size_t capacity = heap->capacity * 2;
    gr_shm_extent *grown =
        capacity <= GR_SHM_EXTENTS_MAX ? realloc(heap->extents, capacity * sizeof *grown) : NULL;
    if (grown == NULL) {
        return GR_E_NO_MEMORY;
    }
    heap->extents = grown;
    heap->capacity = capacity;
    return GR_OK;
}

/* Cut extent `at` so that its first part has size_bytes (less than it has). */
static void split(gr_shm_heap *heap, size_t at, size_t size_bytes)
{
    gr_shm_extent *extent = &heap->extents[at];
    memmove(extent + 2, extent + 1, (heap->count - at - 1) * sizeof *extent);
    extent[1] = (gr_shm_extent){.offset = extent->offset + size_bytes,
                                .size_bytes = extent->size_bytes - size_bytes,
                                .used = extent->used};
    extent->size_bytes = size_bytes;
    heap->count++;
}

gr_status gr_shm_heap_alloc(gr_shm_heap *heap, size_t size_bytes, void **mem_out)
{
    size_t align = size_bytes >= GR_SHM_HEAP_PAGED ? PAGE : GR_SHM_HEAP_ALIGN;
    if (size_bytes == 0 || size_bytes > SIZE_MAX / 2 || reserve(heap) != GR_OK) {
        return GR_E_NO_MEMORY;
    }
    size_t size = (size_bytes + align - 1) / align * align;
    for (size_t i = 0; i < heap->count; i++) {
        const gr_shm_extent *extent = &heap->extents[i];
        size_t gap = (align - extent->offset % align) % align;
        if (extent->used || extent->size_bytes < gap || extent->size_bytes - gap < size) {
            continue;
        }
        if (gap > 0) {
            split(heap, i, gap);
            i++;
        }
        if (heap->extents[i].size_bytes > size) {
            split(heap, i, size);
        }
        heap->extents[i].used = 1;
        *mem_out = heap->base + heap->extents[i].offset;
        return GR_OK;
    }
    return GR_E_NO_MEMORY;
}

static void merge_with_next(gr_shm_heap *heap, size_t at)
{
    gr_shm_extent *extent = &heap->extents[at];
    if (at + 1 < heap->count && !extent->used && !extent[1].used) {
        extent->size_bytes += extent[1].size_bytes;
        memmove(extent + 1, extent + 2, (heap->count - at - 2) * sizeof *extent);
        heap->count--;
    }
}

void gr_shm_make_zero(uint8_t *at, size_t size_bytes, int fd, size_t file_offset)
{
    size_t end = file_offset + size_bytes;
    size_t first_page = (file_offset + PAGE - 1) / PAGE * PAGE, last_page = end / PAGE * PAGE;
    if (first_page >= last_page ||
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)first_page,
                  (off_t)(last_page - first_page)) != 0) {
        memset(at, 0, size_bytes);
        return;
    }
    memset(at, 0, first_page - file_offset);
    memset(at + (last_page - file_offset), 0, end - last_page);
}

void gr_shm_heap_free(gr_shm_heap *heap, void *mem)
{
    size_t offset = (size_t)((uint8_t *)mem - heap->base);
    size_t low = 0, high = heap->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (heap->extents[middle].offset <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    /* A pointer that is none of ours would corrupt the heap of a running training. */
    GR_CHECK(heap->extents[low].offset == offset && heap->extents[low].used);
    gr_shm_make_zero(mem, heap->extents[low].size_bytes, heap->fd, heap->file_offset + offset);
    heap->extents[low].used = 0;
    merge_with_next(heap, low);
    if (low > 0) {
        merge_with_next(heap, low - 1);
    }
}
