/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_HOST_MEMORY_H
#define GR_COLL_HOST_MEMORY_H

/* Finds out whether this process can read a buffer. A pointer of a device, or a wild one, is
 * refused before it ends the process. The kernel is asked once for each page at an end of a buffer:
 * memory that is unmapped later goes unnoticed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GR_HOST_PAGES_LOG2 = 9, GR_HOST_PAGES = 1 << GR_HOST_PAGES_LOG2 };

typedef int gr_pointer_attribute(void *data, int attribute, unsigned long long pointer);

typedef struct gr_host_memory {
    uintptr_t pages[GR_HOST_PAGES]; /* known to be readable, in two places each; 0: none */
    unsigned long long loads;       /* libraries that were loaded when the driver was looked for */
    gr_pointer_attribute *ask_driver; /* NULL: the program has not loaded it */
} gr_host_memory;

/* Buffers lie at multiples of powers of two: all bits of a page's number count. */
static inline size_t gr_host_memory_place(uintptr_t page)
{
    return (size_t)(((uint64_t)page * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - GR_HOST_PAGES_LOG2));
}

bool gr_host_memory_ask(gr_host_memory *memory, uintptr_t address);

static inline bool gr_host_memory_knows(gr_host_memory *memory, uintptr_t address)
{
    uintptr_t page = address >> 12;
    size_t at = gr_host_memory_place(page);
    return memory->pages[at] == page || memory->pages[at ^ 1] == page ||
           gr_host_memory_ask(memory, address);
}

/* True for no bytes. */
static inline bool gr_host_memory_has(gr_host_memory *memory, const void *at, size_t size_bytes)
{
    uintptr_t first = (uintptr_t)at, last = first + size_bytes - 1;
    return size_bytes == 0 || (gr_host_memory_knows(memory, first) &&
                               (first >> 12 == last >> 12 || gr_host_memory_knows(memory, last)));
}

#endif
