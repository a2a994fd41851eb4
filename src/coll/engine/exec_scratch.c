/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/exec_internal.h"

#include <stdlib.h>

/* Where operations have their scratch. Who needs little has it to itself. Larger pieces are shared
 * by all operations, within a limit that does not depend on how many are in flight: those that find
 * none wait, in the order of their start, until an older one is over. The oldest one always has its
 * piece, so that in one order of operations on all ranks nobody waits forever. Sub-groups may go
 * round in a circle, each rank with another one first: then nothing moves any more, and the next
 * one gets a piece beyond the limit, if operations of several communicators are in flight. */
enum {
    SCRATCH_ALIGN = 64,
    OWN_BYTES_MAX = 16 << 10,
    OWN_PART = 64,           /* of the limit */
    PEER_BYTES = 1536 << 10, /* three slices: what algorithms take at most (test_verify.c) */
    BEYOND_LIMIT_US = 100 * 1000
};

void gr_exec_scratch_init(gr_exec *exec, int64_t limit_bytes)
{
    size_t peers = exec->world_size > 1 ? (size_t)exec->world_size - 1 : 1;
    exec->scratch_limit = limit_bytes > 0 ? (size_t)limit_bytes : peers * PEER_BYTES;
    size_t own = exec->scratch_limit / OWN_PART;
    exec->own_scratch_max = own < OWN_BYTES_MAX ? own : OWN_BYTES_MAX;
}

/* ---- Memory ---------------------------------------------------------------------------------- */
static void drop(gr_exec *exec, gr_exec_scratch *piece)
{
    if (piece->shared) {
        gr_mesh_free(exec->mesh, piece->at);
    } else {
        free(piece->at);
    }
    *piece = (gr_exec_scratch){.at = NULL};
}

static bool make(gr_exec *exec, gr_exec_scratch *piece, size_t size_bytes)
{
    void *memory = NULL;
    size_t size = (size_bytes + SCRATCH_ALIGN - 1) & ~(size_t)(SCRATCH_ALIGN - 1);
    bool shared = exec->shares_memory && gr_mesh_alloc(exec->mesh, size, &memory) == GR_OK;
    memory = shared ? memory : aligned_alloc(SCRATCH_ALIGN, size);
    *piece = (gr_exec_scratch){.at = memory, .capacity = memory ? size : 0, .shared = shared};
    return memory != NULL;
}

/* The mesh has gone, and what was its own with it. */
static void forget(const gr_exec_scratch *piece)
{
    if (!piece->shared) {
        free(piece->at);
    }
}

void gr_exec_scratch_fini(gr_exec *exec)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        forget(&exec->pieces[i]);
        forget(&exec->ops[i].own_scratch);
    }
}

/* ---- Pieces that all share ------------------------------------------------------------------- */
static gr_exec_scratch *find_free(gr_exec *exec, size_t size_bytes)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        if (!exec->pieces[i].used && exec->pieces[i].capacity >= size_bytes) {
            return &exec->pieces[i];
        }
    }
    return NULL;
}

/* A free one, made if the limit permits; others that are too small make room. NULL: not now. All
 * are made as large as the largest operation so far has needed. */
static gr_exec_scratch *provide(gr_exec *exec, size_t size_bytes, bool beyond_limit,
                                bool *no_memory)
{
    gr_exec_scratch *piece = find_free(exec, size_bytes);
    *no_memory = false;
    if (piece) {
        return piece;
    }
    size_t held = 0;
    for (int i = GR_EXEC_OPS_MAX - 1; i >= 0; i--) {
        if (exec->pieces[i].used) {
            held += exec->pieces[i].capacity;
            continue;
        }
        piece = &exec->pieces[i];
        if (piece->at) {
            drop(exec, piece);
        }
    }
    if (held > 0 && held + exec->scratch_max > exec->scratch_limit && !beyond_limit) {
        return NULL;
    }
    *no_memory = !piece || !make(exec, piece, exec->scratch_max);
    return *no_memory ? NULL : piece;
}

static bool take(gr_exec *exec, gr_op *op, bool beyond_limit)
{
    bool no_memory;
    op->piece = provide(exec, op->scratch_bytes, beyond_limit, &no_memory);
    if (op->piece) {
        op->piece->used = true;
        op->scratch = op->piece->at;
    }
    return op->piece != NULL;
}

bool gr_exec_scratch_prepare(gr_exec *exec, gr_op *op, size_t size_bytes)
{
    bool no_memory = false;
    op->scratch_bytes = size_bytes;
    op->piece = NULL;
    if (size_bytes > exec->own_scratch_max) {
        op->scratch = NULL;
        exec->scratch_max = size_bytes > exec->scratch_max ? size_bytes : exec->scratch_max;
        (void)provide(exec, size_bytes, false, &no_memory);
        return !no_memory;
    }
    gr_exec_scratch *own = &op->own_scratch;
    if (size_bytes > own->capacity) {
        drop(exec, own);
        no_memory = !make(exec, own, exec->own_scratch_max);
    }
    op->scratch = own->at;
    return !no_memory;
}

void gr_exec_scratch_enter(gr_exec *exec, gr_op *op)
{
    if (gr_op_lacks_scratch(op) && (exec->scratch_waits > 0 || !take(exec, op, false))) {
        exec->scratch_waits++;
    }
}

/* Those that wait get theirs, the oldest first. */
static void grant(gr_exec *exec, bool beyond_limit)
{
    for (uint32_t seq = exec->oldest_seq; seq != exec->next_seq && exec->scratch_waits > 0; seq++) {
        gr_op *op = gr_exec_op_at(exec, seq);
        if (!op || !gr_op_lacks_scratch(op)) {
            continue;
        }
        if (!take(exec, op, beyond_limit)) {
            return;
        }
        beyond_limit = false;
        exec->scratch_waits--;
        exec->moved = true;
        for (uint32_t at = 0; at < op->schedule->step_count; at++) {
            const gr_schedule_step *step = &op->schedule->steps[at];
            if (step->dst.space == GR_SPACE_SCRATCH && step->kind != GR_STEP_RECV) {
                gr_exec_queue_if_ready(exec, op, at);
            }
        }
    }
}

void gr_exec_scratch_leave(gr_exec *exec, gr_op *op)
{
    if (op->piece) {
        op->piece->used = false;
        op->piece = NULL;
        grant(exec, false);
    }
}

/* Operations of one communicator have one order on all ranks, however long they wait. The oldest
 * one lacks its piece only where there was no memory. */
static bool may_go_round(gr_exec *exec)
{
    const gr_op *first = NULL;
    for (uint32_t seq = exec->oldest_seq; seq != exec->next_seq; seq++) {
        const gr_op *op = gr_exec_op_at(exec, seq);
        if (op && (first ? op->comm != first->comm : gr_op_lacks_scratch(op))) {
            return true;
        }
        first = first ? first : op;
    }
    return false;
}

int64_t gr_exec_scratch_look(gr_exec *exec, int64_t now_us)
{
    if (exec->scratch_waits == 0 || !may_go_round(exec)) {
        return GR_NEVER;
    }
    if (now_us - exec->idle_since_us < BEYOND_LIMIT_US) {
        return exec->idle_since_us + BEYOND_LIMIT_US;
    }
    grant(exec, true);
    gr_exec_drain(exec);
    gr_exec_flush(exec);
    return exec->moved ? now_us : exec->idle_since_us + 2 * BEYOND_LIMIT_US;
}
