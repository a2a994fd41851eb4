/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The memory that gr_alloc gave, and what was registered, is listed by address, so that gr_free and
 * gr_unregister can refuse what is no such memory, and what an unfinished operation still uses:
 * either would spoil data far away. */

enum { FIRST_CAPACITY = 16, PLACE_BYTES = 160 };

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

static void insert(gr_memory *memory, gr_memory_block block)
{
    size_t at = find(memory, block.at);
    memmove(memory->blocks + at + 1, memory->blocks + at,
            (memory->count - at) * sizeof *memory->blocks);
    memory->blocks[at] = block;
    memory->count++;
}

/* The end of each call: keeps the sentence of a failure. */
static gr_status leave(gr_context *context, gr_status status, const gr_diag *diag)
{
    if (status != GR_OK) {
        gr_context_note(context, diag);
    }
    gr_context_leave(context);
    return status;
}

gr_status gr_alloc(gr_comm *comm, size_t size_bytes, void **mem_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_memory *memory = &context->memory;
    gr_diag diag;
    void *mem = NULL;
    if (!mem_out || size_bytes == 0) {
        status = gr_fail(&diag, GR_E_INVALID, "gr_alloc on rank %d: %s", comm->rank,
                         mem_out ? "the size is 0" : "mem_out is NULL");
    } else if (!make_room(memory) || gr_mesh_alloc(context->mesh, size_bytes, &mem) != GR_OK) {
        status = gr_fail(&diag, GR_E_NO_MEMORY, "gr_alloc on rank %d: no memory for %zu bytes",
                         comm->rank, size_bytes);
    }
    if (status == GR_OK) {
        insert(memory, (gr_memory_block){.at = mem, .size_bytes = size_bytes});
        *mem_out = mem;
    }
    return leave(context, status, &diag);
}

/* Fails if an unfinished operation uses the memory. */
static gr_status check_unused(const gr_comm *comm, const char *call, const char *outcome,
                              const gr_memory_block *block, gr_diag *diag)
{
    const gr_exec *exec = comm->context->exec;
    char what[PLACE_BYTES];
    const uintptr_t first = (uintptr_t)block->at;
    const gr_call_memory memory = {.writes = {.first = first, .end = first + block->size_bytes}};
    return gr_exec_uses(exec, &memory, what, sizeof what)
               ? gr_fail(diag, GR_E_INVALID,
                         "%s on rank %d: %s still uses the memory at %p, which %s; "
                         "wait for the operation first",
                         call, comm->rank, what, (void *)block->at, outcome)
               : GR_OK;
}

static void take_out(gr_memory *memory, size_t at)
{
    memory->count--;
    memmove(memory->blocks + at, memory->blocks + at + 1,
            (memory->count - at) * sizeof *memory->blocks);
}

static gr_status free_block(gr_comm *comm, void *mem, gr_diag *diag)
{
    gr_memory *memory = &comm->context->memory;
    size_t at = find(memory, mem);
    if (at == memory->count || memory->blocks[at].at != mem || memory->blocks[at].registered) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_free on rank %d: %p is no memory of gr_alloc, or was freed already",
                       comm->rank, mem);
    }
    gr_status status = check_unused(comm, "gr_free", "stays allocated", &memory->blocks[at], diag);
    if (status == GR_OK) {
        take_out(memory, at);
        gr_mesh_free(comm->context->mesh, mem);
    }
    return status;
}

void gr_free(gr_comm *comm, void *mem)
{
    if (!comm || !mem || gr_context_enter(comm->context, false) != GR_OK) {
        return;
    }
    gr_diag diag;
    (void)leave(comm->context, free_block(comm, mem, &diag), &diag);
}

/* ---- Memory of the program ------------------------------------------------------------------- */
static gr_status check_block(gr_comm *comm, const gr_memory_block *block, gr_diag *diag)
{
    const gr_memory *memory = &comm->context->memory;
    uintptr_t first = (uintptr_t)block->at, end = first + block->size_bytes;
    if (!block->at || block->size_bytes == 0 || end < first) {
        return gr_fail(diag, GR_E_INVALID, "gr_register on rank %d: %s", comm->rank,
                       block->at ? "the size is 0, or larger than memory can be" : "mem is NULL");
    }
    if (!gr_host_memory_has(&comm->context->host_memory, block->at, block->size_bytes)) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_register on rank %d: there is no memory at %p, or not %zu bytes of it, "
                       "that this process can read",
                       comm->rank, (void *)block->at, block->size_bytes);
    }
    size_t at = find(memory, block->at);
    const gr_memory_block *before = at > 0 ? &memory->blocks[at - 1] : NULL;
    bool overlaps = (before && (uintptr_t)before->at + before->size_bytes > first) ||
                    (at < memory->count && (uintptr_t)memory->blocks[at].at < end);
    if (overlaps) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_register on rank %d: some of the memory at %p is registered already, or "
                       "of gr_alloc",
                       comm->rank, (void *)block->at);
    }
    return GR_OK;
}

static gr_status register_block(gr_comm *comm, const gr_memory_block *block, gr_diag *diag)
{
    gr_context *context = comm->context;
    gr_diag why;
    gr_status status = check_block(comm, block, diag);
    if (status == GR_OK) {
        status = check_unused(comm, "gr_register", "is not shared", block, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (!make_room(&context->memory)) {
        return gr_fail(diag, GR_E_NO_MEMORY, "gr_register on rank %d: no memory", comm->rank);
    }
    if (block->shared) {
        status = gr_mesh_register(context->mesh, block->at, block->size_bytes, &why);
    }
    if (status != GR_OK) {
        return gr_fail(diag, status, "gr_register on rank %d: %s", comm->rank, why.text);
    }
    insert(&context->memory, *block);
    return GR_OK;
}

gr_status gr_register(gr_comm *comm, void *mem, size_t size_bytes)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_status status = gr_context_enter(comm->context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_diag diag;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rest = size_bytes % page;
    gr_memory_block block = {.at = mem,
                             .size_bytes = size_bytes,
                             .registered = true,
                             .shared = (uintptr_t)mem % page == 0};
    if (block.shared && rest > 0) { /* else other data may live in its pages */
        block.size_bytes += page - rest;
    }
    status = register_block(comm, &block, &diag);
    return leave(comm->context, status, &diag);
}

static gr_status unregister_block(gr_comm *comm, void *mem, gr_diag *diag)
{
    gr_context *context = comm->context;
    gr_memory *memory = &context->memory;
    size_t at = find(memory, mem);
    if (at == memory->count || memory->blocks[at].at != mem || !memory->blocks[at].registered) {
        return gr_fail(diag, GR_E_INVALID, "gr_unregister on rank %d: %p is not registered",
                       comm->rank, mem);
    }
    gr_diag why;
    bool shared = memory->blocks[at].shared;
    gr_status status =
        check_unused(comm, "gr_unregister", "stays registered", &memory->blocks[at], diag);
    if (status != GR_OK) {
        return status;
    }
    if (shared) {
        status = gr_mesh_unregister(context->mesh, mem, &why);
    }
    if (status != GR_OK) {
        return gr_fail(diag, status, "gr_unregister on rank %d: %s", comm->rank, why.text);
    }
    take_out(memory, at);
    return GR_OK;
}

gr_status gr_unregister(gr_comm *comm, void *mem)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_status status = gr_context_enter(comm->context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_diag diag;
    status = unregister_block(comm, mem, &diag);
    return leave(comm->context, status, &diag);
}

void gr_memory_fini(gr_context *context)
{
    free(context->memory.blocks); /* the list: the memory is the mesh's */
    context->memory = (gr_memory){.blocks = NULL};
}
