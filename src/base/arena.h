/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_ARENA_H
#define GR_BASE_ARENA_H

#include <gradus/status.h>

/* A bump allocator: many small allocations, freed together. It grows by blocks up to its maximum.
 * One thread at a time uses an arena. */
typedef struct gr_arena_block gr_arena_block;
typedef struct gr_arena {
    gr_arena_block *head;
    size_t used_bytes; /* sum of all allocations */
    size_t max_bytes;  /* limit of used_bytes, fixed from the start */
} gr_arena;

void gr_arena_init(gr_arena *arena, size_t max_bytes);
void gr_arena_fini(gr_arena *arena);

/* Returns zeroed memory, 16-byte aligned, that lives until gr_arena_fini; NULL when the maximum or
 * the system's memory is exhausted. A size of 0 is valid. */
void *gr_arena_alloc(gr_arena *arena, size_t size_bytes);
char *gr_arena_strdup(gr_arena *arena, const char *text);
char *gr_arena_printf(gr_arena *arena, const char *format, ...) GR_PRINTF(2, 3);

#endif
