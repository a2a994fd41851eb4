/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/comm.h"
#include "base/fail.h"
#include "base/hash.h"
#include "coll/comm_internal.h"
#include "coll/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_BYTES_MAX = 64 << 10, MEMORY_ALIGN = 64 };

/* ---- Life ------------------------------------------------------------------------------------ */
/* A thread of our own pays where the kernel moves bytes only when asked, and where there is a core
 * for it. Where every core computes, it costs: 4 MiB over tcp beside 3 ms of computing took 1.4 ms
 * more with it and 0.9 ms without; over shm there was no difference (bench_allreduce -o). */
static bool wants_thread(const gr_comm *comm, const gr_group_config *config)
{
    if (config->progress != GR_PROGRESS_AUTO) {
        return config->progress == GR_PROGRESS_THREAD;
    }
    cpu_set_t cores;
    int core_count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return comm->selection.link == GR_LINK_TCP && core_count > comm->local_size;
}

static gr_status join_others(gr_comm *comm, const gr_group_config *config, gr_diag *diag)
{
    /* Before anything starts, and in a group of one as well: is the choice one at all? */
    gr_selection_config choosing = {.text = config->algorithm,
                                    .exact = config->exact,
                                    .link = GR_LINK_SHM,
                                    .world_size = config->rank < 0 ? 1 : (int)config->world_size,
                                    .segment_bytes = (size_t)config->segment_bytes,
                                    .log = &comm->log};
    gr_status status = gr_selection_init(&comm->selection, &choosing, diag);
    if (status == GR_OK) {
        status = gr_group_join(config, &comm->log, &comm->group, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    comm->mesh = gr_group_mesh(comm->group);
    comm->rank = gr_group_rank(comm->group);
    comm->size = gr_group_size(comm->group);
    if (config->local_size == 0) { /* whoever started us does not say */
        const gr_topology *topology = gr_group_topology(comm->group);
        comm->local_rank = topology->local_rank[comm->rank];
        comm->local_size = topology->local_size[topology->host_of[comm->rank]];
    }
    if (!comm->mesh) {
        return GR_OK;
    }
    choosing.link = gr_group_link_kind(comm->group);
    status = gr_selection_init(&comm->selection, &choosing, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_exec_config exec_config = {.mesh = comm->mesh,
                                  .rank = comm->rank,
                                  .world_size = comm->size,
                                  .op_timeout_us = config->op_timeout_us,
                                  .segment_bytes = config->segment_bytes,
                                  .clock = gr_clock_real(),
                                  .log = &comm->log,
                                  .owner = comm};
    status = gr_exec_create(&exec_config, &comm->exec, diag);
    if (status == GR_OK) {
        status = gr_tune_start(comm, config, diag);
    }
    if (status == GR_OK && wants_thread(comm, config)) {
        status = gr_comm_thread_start(comm, diag);
    }
    return status;
}

gr_status gr_comm_create_from(const gr_group_config *config, gr_comm **comm_out, gr_diag *diag)
{
    gr_comm *comm = calloc(1, sizeof *comm);
    if (!comm) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    }
    gr_arena_init(&comm->arena, CONFIG_BYTES_MAX);
    gr_diag_clear(&comm->fine);
    comm->log = (gr_log){
        .level = (gr_log_level)config->log_level, .sink = gr_log_to_file, .sink_arg = stderr};
    comm->size = 1;
    comm->local_size = config->rank < 0 ? 1 : (int)config->local_size;
    comm->local_rank = config->rank < 0 ? 0 : (int)config->local_rank;
    comm->alone = gr_op_create_finished();
    gr_status status = comm->alone ? join_others(comm, config, diag)
                                   : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a communicator");
    if (status != GR_OK) {
        gr_comm_destroy(comm);
        return status;
    }
    *comm_out = comm;
    return GR_OK;
}

gr_status gr_comm_create(gr_comm **comm_out, gr_diag *diag)
{
    gr_arena arena;
    gr_arena_init(&arena, CONFIG_BYTES_MAX);
    gr_group_config config;
    gr_status status = gr_config_defaults(&gr_group_config_table, &config, &arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(&gr_group_config_table, &config, environ, &arena, diag);
    }
    if (status == GR_OK) {
        status = gr_comm_create_from(&config, comm_out, diag);
    }
    if (status == GR_OK && config.secret_hex) {
        gr_wipe((void *)(uintptr_t)config.secret_hex, strlen(config.secret_hex)); /* the arena's */
    }
    gr_arena_fini(&arena);
    return status;
}

static void free_blocks(gr_comm *comm);

void gr_comm_destroy(gr_comm *comm)
{
    if (!comm) {
        return;
    }
    gr_comm_thread_stop(comm);
    gr_group_leave(comm->group); /* the mesh first: it may still read what operations lent it */
    gr_exec_destroy(comm->exec);
    gr_programs_fini(&comm->programs);
    gr_op_destroy_finished(comm->alone);
    free_blocks(comm);
    gr_arena_fini(&comm->arena);
    free(comm);
}

/* ---- Questions ------------------------------------------------------------------------------- */
int gr_comm_rank(const gr_comm *comm)
{
    return comm->rank;
}

int gr_comm_size(const gr_comm *comm)
{
    return comm->size;
}

int gr_comm_local_rank(const gr_comm *comm)
{
    return comm->local_rank;
}

int gr_comm_local_size(const gr_comm *comm)
{
    return comm->local_size;
}

const gr_diag *gr_comm_diag(const gr_comm *comm)
{
    return comm->exec ? gr_exec_diag(comm->exec) : &comm->fine;
}

const char *gr_comm_link_name(const gr_comm *comm)
{
    return comm->mesh ? gr_link_kind_name(comm->selection.link) : "none";
}

/* ---- Memory ---------------------------------------------------------------------------------- */
/* In a group of one there is nobody to share memory with: plain memory behind a line of its own. */
struct gr_comm_block {
    gr_comm_block *next, *before;
};
_Static_assert(sizeof(struct gr_comm_block) <= MEMORY_ALIGN, "fits before the memory");

static gr_status alloc_alone(gr_comm *comm, size_t size_bytes, void **mem_out)
{
    if (size_bytes > SIZE_MAX - 2 * (size_t)MEMORY_ALIGN) {
        return GR_E_NO_MEMORY;
    }
    size_t rounded = (size_bytes + MEMORY_ALIGN - 1) & ~(size_t)(MEMORY_ALIGN - 1);
    gr_comm_block *block = aligned_alloc(MEMORY_ALIGN, MEMORY_ALIGN + rounded);
    if (!block) {
        return GR_E_NO_MEMORY;
    }
    *block = (gr_comm_block){.next = comm->blocks};
    if (comm->blocks) {
        comm->blocks->before = block;
    }
    comm->blocks = block;
    *mem_out = memset((uint8_t *)block + MEMORY_ALIGN, 0, rounded);
    return GR_OK;
}

static void free_alone(gr_comm *comm, void *mem)
{
    gr_comm_block *block = (gr_comm_block *)(void *)((uint8_t *)mem - MEMORY_ALIGN);
    if (block->next) {
        block->next->before = block->before;
    }
    if (block->before) {
        block->before->next = block->next;
    } else {
        comm->blocks = block->next;
    }
    free(block);
}

static void free_blocks(gr_comm *comm)
{
    while (comm->blocks) {
        free_alone(comm, (uint8_t *)comm->blocks + MEMORY_ALIGN);
    }
}

gr_status gr_alloc(gr_comm *comm, size_t size_bytes, void **mem_out)
{
    if (!comm || !mem_out || size_bytes == 0) {
        return GR_E_INVALID;
    }
    if (!comm->mesh) {
        return alloc_alone(comm, size_bytes, mem_out);
    }
    gr_comm_lock(comm);
    gr_status status = gr_mesh_alloc(comm->mesh, size_bytes, mem_out);
    gr_comm_unlock(comm);
    return status;
}

void gr_free(gr_comm *comm, void *mem)
{
    if (!comm || !mem) {
        return;
    }
    if (!comm->mesh) {
        free_alone(comm, mem);
        return;
    }
    gr_comm_lock(comm);
    gr_mesh_free(comm->mesh, mem);
    gr_comm_unlock(comm);
}
