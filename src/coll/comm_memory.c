/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"

#include <stdlib.h>
#include <string.h>

/* The memory that gr_alloc gave is listed by address, so that gr_free can refuse what is no such
 * memory, and what an unfinished operation still uses: either would spoil data far away. */

enum { MEMORY_ALIGN = 64, FIRST_CAPACITY = 16, PLACE_BYTES = 160 };

/* The first block that does not stand before `at`. */
static size_t find(const gr_memory *memory, const void *at)
{
    size_t low = 0, high = memory->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)memory->blocks[middle].at < (uintptr_t)at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool make_room(gr_memory *memory)
{
    if (memory->count < memory->capacity) {
        return true;
    }
    size_t capacity = memory->capacity ? 2 * memory->capacity : FIRST_CAPACITY;
    gr_memory_block *blocks = capacity <= GR_MEMORY_BLOCKS_MAX
                                  ? realloc(memory->blocks, capacity * sizeof *blocks)
                                  : NULL;
    if (!blocks) {
        return false;
    }
    memory->blocks = blocks;
    memory->capacity = capacity;
    return true;
}

/* In a group of one there is nobody to share memory with. */
static gr_status take(gr_family *family, size_t size_bytes, void **mem_out)
{
    if (family->mesh) {
        return gr_mesh_alloc(family->mesh, size_bytes, mem_out);
    }
    if (size_bytes > SIZE_MAX / 2) {
        return GR_E_NO_MEMORY;
    }
    size_t rounded = (size_bytes + MEMORY_ALIGN - 1) & ~(size_t)(MEMORY_ALIGN - 1);
    void *mem = aligned_alloc(MEMORY_ALIGN, rounded);
    if (!mem) {
        return GR_E_NO_MEMORY;
    }
    *mem_out = memset(mem, 0, rounded);
    return GR_OK;
}

static void give(gr_family *family, void *mem)
{
    if (family->mesh) {
        gr_mesh_free(family->mesh, mem);
    } else {
        free(mem);
    }
}

gr_status gr_alloc(gr_comm *comm, size_t size_bytes, void **mem_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    gr_status status = gr_family_enter(family, false);
    if (status != GR_OK) {
        return status;
    }
    gr_memory *memory = &family->memory;
    gr_diag diag;
    void *mem = NULL;
    if (!mem_out || size_bytes == 0) {
        status = gr_fail(&diag, GR_E_INVALID, "gr_alloc on rank %d: %s", comm->rank,
                         mem_out ? "the size is 0" : "mem_out is NULL");
    } else if (!make_room(memory) || take(family, size_bytes, &mem) != GR_OK) {
        status = gr_fail(&diag, GR_E_NO_MEMORY, "gr_alloc on rank %d: no memory for %zu bytes",
                         comm->rank, size_bytes);
    }
    if (status == GR_OK) {
        size_t at = find(memory, mem);
        memmove(memory->blocks + at + 1, memory->blocks + at,
                (memory->count - at) * sizeof *memory->blocks);
        memory->blocks[at] = (gr_memory_block){.at = mem, .size_bytes = size_bytes};
        memory->count++;
        *mem_out = mem;
    } else {
        gr_family_note(family, &diag);
    }
    gr_family_leave(family);
    return status;
}

static gr_status free_block(gr_comm *comm, void *mem, gr_diag *diag)
{
    gr_family *family = comm->family;
    gr_memory *memory = &family->memory;
    size_t at = find(memory, mem);
    if (at == memory->count || memory->blocks[at].at != mem) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_free on rank %d: %p is no memory of gr_alloc, or was freed already",
                       comm->rank, mem);
    }
    size_t size_bytes = memory->blocks[at].size_bytes;
    char what[PLACE_BYTES];
    if (family->exec && gr_exec_uses(family->exec, mem, size_bytes, true, what, sizeof what)) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_free on rank %d: %s still uses the memory at %p, which stays allocated; "
                       "wait for the operation first",
                       comm->rank, what, mem);
    }
    memory->count--;
    memmove(memory->blocks + at, memory->blocks + at + 1,
            (memory->count - at) * sizeof *memory->blocks);
    give(family, mem);
    return GR_OK;
}

void gr_free(gr_comm *comm, void *mem)
{
    if (!comm || !mem || gr_family_enter(comm->family, false) != GR_OK) {
        return;
    }
    gr_diag diag;
    if (free_block(comm, mem, &diag) != GR_OK) {
        gr_family_note(comm->family, &diag);
    }
    gr_family_leave(comm->family);
}

void gr_memory_fini(gr_family *family)
{
    gr_memory *memory = &family->memory;
    for (size_t i = 0; i < memory->count && !family->mesh; i++) {
        free(memory->blocks[i].at); /* a mesh frees its own */
    }
    free(memory->blocks);
    *memory = (gr_memory){.blocks = NULL};
}
