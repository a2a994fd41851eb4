/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, BLOCK_BYTES_MIN = 4 << 10, BLOCK_BYTES_MAX = 1 << 20 };

struct gr_arena_block {
    gr_arena_block *next;
    size_t size_bytes; /* of data */
    size_t used_bytes;
    _Alignas(ALIGN) unsigned char data[];
};

void gr_arena_init(gr_arena *arena, size_t max_bytes)
{
    *arena = (gr_arena){.max_bytes = max_bytes};
}

void gr_arena_fini(gr_arena *arena)
{
    gr_arena_block *block = arena->head;
    while (block != NULL) {
        gr_arena_block *next = block->next;
        free(block);
        block = next;
    }
    arena->head = NULL;
    arena->used_bytes = 0;
}

static gr_arena_block *add_block(gr_arena *arena, size_t need_bytes)
{
    size_t size_bytes = BLOCK_BYTES_MIN;
    if (arena->head != NULL) {
        size_bytes = arena->head->size_bytes < BLOCK_BYTES_MAX / 2 ? arena->head->size_bytes * 2
                                                                   : (size_t)BLOCK_BYTES_MAX;
    }
    if (size_bytes < need_bytes) {
        size_bytes = need_bytes;
    }
    if (size_bytes > PTRDIFF_MAX - sizeof(gr_arena_block)) { /* no object may be larger */
        return NULL;
    }
    gr_arena_block *block = malloc(sizeof *block + size_bytes);
    if (block == NULL) {
        return NULL;
    }
    block->next = arena->head;
    block->size_bytes = size_bytes;
    block->used_bytes = 0;
    arena->head = block;
    return block;
}

void *gr_arena_alloc(gr_arena *arena, size_t size_bytes)
{
    size_t room = arena->max_bytes - arena->used_bytes;
    if (size_bytes > room || size_bytes > SIZE_MAX - ALIGN) {
        return NULL;
    }
    /* At least one unit, so that even allocations of nothing run into the limit. */
    size_t units = size_bytes > 0 ? (size_bytes + ALIGN - 1) / ALIGN : 1;
    size_t rounded = units * ALIGN;
    if (size_bytes == 0 && room == 0) {
        return NULL;
    }
    gr_arena_block *block = arena->head;
    if (block == NULL || rounded > block->size_bytes - block->used_bytes) {
        block = add_block(arena, rounded);
        if (block == NULL) {
            return NULL;
        }
    }
    void *memory = block->data + block->used_bytes;
    block->used_bytes += rounded;
    arena->used_bytes += rounded < room ? rounded : room;
    return memset(memory, 0, rounded);
}

char *gr_arena_strdup(gr_arena *arena, const char *text)
{
    size_t size_bytes = strlen(text) + 1;
    char *copy = gr_arena_alloc(arena, size_bytes);
    return copy != NULL ? memcpy(copy, text, size_bytes) : NULL;
}

char *gr_arena_printf(gr_arena *arena, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return NULL;
    }
    char *text = gr_arena_alloc(arena, (size_t)length + 1);
    if (text != NULL) {
        va_start(arguments, format);
        vsnprintf(text, (size_t)length + 1, format, arguments);
        va_end(arguments);
    }
    return text;
}
