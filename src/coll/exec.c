/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/exec.h"
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdlib.h>
#include <string.h>

/* Blocks begin at a cache line of their own, so that no two ranks write to one line. */
enum { BLOCK_ALIGN = 64 };

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_exec_create(const gr_exec_config *config, gr_exec **exec_out, gr_diag *diag)
{
    size_t ranks = (size_t)config->world_size;
    gr_exec *exec = calloc(1, sizeof *exec);
    if (!exec) {
        goto undo_nothing;
    }
    exec->links = calloc(ranks, sizeof *exec->links);
    exec->posts = calloc(ranks, sizeof *exec->posts);
    exec->tickets = calloc(ranks * GR_EXEC_TICKETS, sizeof *exec->tickets);
    if (!exec->links || !exec->posts || !exec->tickets) {
        goto undo_exec;
    }
    int64_t segment = config->segment_bytes > 0 ? config->segment_bytes : GR_SEGMENT_BYTES_DEFAULT;
    segment = segment < GR_SEGMENT_BYTES_MAX ? segment : GR_SEGMENT_BYTES_MAX;
    exec->segment_bytes = ((size_t)segment + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
    exec->mesh = config->mesh;
    exec->rank = config->rank;
    exec->world_size = config->world_size;
    exec->op_timeout_us = config->op_timeout_us;
    exec->clock = config->clock;
    exec->log = config->log;
    exec->owner = config->owner;
    gr_diag_clear(&exec->diag);
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_link *link = &exec->links[peer];
        link->peer = peer;
        link->link = peer == exec->rank ? NULL : gr_mesh_link(exec->mesh, peer);
        link->tickets = &exec->tickets[(size_t)peer * GR_EXEC_TICKETS];
        if (peer != exec->rank && !link->link) {
            gr_exec_destroy(exec);
            return gr_fail_peer(diag, GR_E_BUG, peer, "rank %d has no link to rank %d",
                                config->rank, peer);
        }
    }
    for (int i = GR_EXEC_OPS_MAX - 1; i >= 0; i--) {
        exec->ops[i].exec = exec;
        exec->ops[i].next_free = exec->free_ops;
        exec->free_ops = &exec->ops[i];
    }
    *exec_out = exec;
    return GR_OK;

undo_exec:
    gr_exec_destroy(exec);
undo_nothing:
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the executor of %zu ranks", ranks);
}

static void free_scratch(gr_op *op)
{
    if (op->scratch_shared) {
        gr_mesh_free(op->exec->mesh, op->scratch);
    } else {
        free(op->scratch);
    }
    op->scratch = NULL;
    op->scratch_capacity = 0;
}

void gr_exec_destroy(gr_exec *exec)
{
    if (!exec) {
        return;
    }
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        free(op->done);
        free(op->views);
        if (!op->scratch_shared) {
            free(op->scratch);
        }
    }
    free(exec->tickets);
    free(exec->posts);
    free(exec->links);
    free(exec);
}

/* ---- Start ----------------------------------------------------------------------------------- */
static void cut_blocks(gr_exec *exec, gr_op *op, const gr_exec_request *request)
{
    size_t blocks = request->program->blocks;
    op->element_bytes = gr_dtype_bytes(request->desc.dtype);
    op->total_bytes = request->total_count * op->element_bytes;
    if (request->fixed_blocks) {
        op->unit_bytes = op->element_bytes;
        op->block_units = request->total_count / blocks;
        op->block_extra = 0;
    } else {
        size_t units = (op->total_bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN;
        op->unit_bytes = BLOCK_ALIGN;
        op->block_units = units / blocks;
        op->block_extra = units % blocks;
    }
    size_t largest = (op->block_units + (op->block_extra > 0)) * op->unit_bytes;
    op->segments = (uint32_t)((largest + exec->segment_bytes - 1) / exec->segment_bytes);
    op->scratch_stride = (largest + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
}

/* Objects grow to what the largest operation so far has needed: whichever is taken next time, it
 * need not grow again. */
static size_t raise_to(size_t *max, size_t needed)
{
    *max = needed > *max ? needed : *max;
    return *max;
}

static bool grow_steps(gr_op *op, size_t steps)
{
    if (steps <= op->step_capacity) {
        return true;
    }
    uint32_t *memory = malloc(steps * (2 * sizeof *memory + 1));
    if (!memory) {
        return false;
    }
    free(op->done);
    op->done = memory;
    op->queue = memory + steps;
    op->queued = (uint8_t *)(memory + 2 * steps);
    op->step_capacity = steps;
    return true;
}

static bool grow_scratch(gr_op *op, const gr_program *program)
{
    size_t needed = (size_t)program->scratch_slots * op->segments;
    if (needed == 0) {
        return true;
    }
    size_t views = raise_to(&op->exec->views_max, needed);
    if (views > op->view_capacity) {
        free(op->views);
        op->view_capacity = 0;
        op->views = malloc(views * sizeof *op->views);
        if (!op->views) {
            return false;
        }
        op->view_capacity = views;
    }
    size_t size = raise_to(&op->exec->scratch_max, program->scratch_slots * op->scratch_stride);
    if (size <= op->scratch_capacity && (op->scratch_shared || !program->sends_scratch)) {
        return true;
    }
    if (op->scratch) {
        free_scratch(op);
    }
    void *memory = NULL;
    op->scratch_shared =
        program->sends_scratch && gr_mesh_alloc(op->exec->mesh, size, &memory) == GR_OK;
    op->scratch = op->scratch_shared ? memory : aligned_alloc(BLOCK_ALIGN, size);
    op->scratch_capacity = op->scratch ? size : 0;
    return op->scratch != NULL;
}

static gr_status prepare(gr_exec *exec, gr_op *op, const gr_exec_request *request, gr_diag *diag)
{
    const gr_program *program = request->program;
    cut_blocks(exec, op, request);
    if (!grow_steps(op, raise_to(&exec->steps_max, program->step_count)) ||
        !grow_scratch(op, program)) {
        char what[128];
        gr_op_describe(gr_op_fingerprint(&request->desc), what, sizeof what);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %s: it needs %zu bytes of scratch",
                       what, program->scratch_slots * op->scratch_stride);
    }
    op->program = program;
    op->fingerprint = gr_op_fingerprint(&request->desc);
    op->dtype = request->desc.dtype;
    op->divisor = request->divisor;
    op->reduce = gr_reduce_kernel(gr_isa_best(), request->desc.dtype, request->desc.op);
    for (uint16_t slot = 0; slot < program->user_slots && request->user; slot++) {
        op->user[slot] = request->user[slot];
    }
    memset(op->done, 0, program->step_count * sizeof *op->done);
    memset(op->queued, 0, program->step_count);
    if (program->scratch_slots > 0 && op->segments > 0) {
        memset(op->views, 0, (size_t)program->scratch_slots * op->segments * sizeof *op->views);
    }
    op->queue_head = 0;
    op->queue_count = 0;
    op->left = (uint64_t)(program->step_count - program->whole_count) * op->segments +
               program->whole_count;
    return GR_OK;
}

static void enter(gr_exec *exec, gr_op *op)
{
    op->state = GR_OP_ACTIVE;
    exec->ring[op->seq & (GR_EXEC_RING - 1)] = op;
    exec->active++;
    const gr_program *program = op->program;
    for (uint32_t i = 0; i < program->root_count; i++) {
        gr_exec_queue_if_ready(exec, op, program->roots[i]);
    }
    exec->moved = true;
}

gr_status gr_exec_start(gr_exec *exec, const gr_exec_request *request, gr_op **op_out,
                        gr_diag *diag)
{
    gr_op *op = exec->free_ops;
    if (!op || exec->next_seq - exec->oldest_seq >= GR_EXEC_RING - 1) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "too many operations in flight: at most %d may be unfinished or not waited "
                       "for; call gr_wait on the older ones",
                       GR_EXEC_OPS_MAX);
    }
    gr_status status = prepare(exec, op, request, diag);
    if (status != GR_OK) {
        return status;
    }
    exec->free_ops = op->next_free;
    op->seq = exec->next_seq++;
    if (op->left > 0) {
        enter(exec, op);
    } else {
        op->state = GR_OP_FINISHED;
        op->status = GR_OK;
        exec->oldest_seq += exec->active == 0;
    }
    for (int i = 1; i < exec->world_size; i++) {
        gr_exec_link *link = &exec->links[(exec->rank + i) % exec->world_size];
        if (link->recv.seq == op->seq) {
            gr_exec_advance(exec, link, false);
        }
        if (link->send.seq == op->seq) {
            gr_exec_advance(exec, link, true);
            gr_exec_mark_post(exec, link);
        }
    }
    gr_exec_drain(exec);
    *op_out = op;
    return GR_OK;
}

/* ---- Progress -------------------------------------------------------------------------------- */
bool gr_exec_progress(gr_exec *exec)
{
    if (exec->active == 0) {
        return false;
    }
    bool moved_before = exec->moved;
    exec->moved = false;
    gr_diag diag;
    gr_status status = gr_mesh_progress(exec->mesh, &diag);
    int peer = exec->rank;
    for (int i = 1; i < exec->world_size && exec->diag.status == GR_OK; i++) {
        peer = peer + 1 == exec->world_size ? 0 : peer + 1;
        gr_exec_link *link = &exec->links[peer];
        if (link->ticket_count > 0) {
            gr_exec_reap(exec, link);
        }
        if (link->send.seq != exec->next_seq) {
            gr_exec_mark_post(exec, link);
        }
        gr_exec_drain(exec);
        gr_exec_take(exec, link);
    }
    if (status != GR_OK && exec->active > 0) {
        gr_exec_mesh_failed(exec, status, &diag); /* what the links still held was taken above */
    }
    bool moved = exec->moved;
    exec->moved = moved || moved_before;
    return moved;
}

void gr_exec_wait(gr_exec *exec, const gr_op *op, const _Atomic int *yield)
{
    bool waited = false;
    while (op ? op->state == GR_OP_ACTIVE : exec->active > 0) {
        if (yield && *yield) {
            return;
        }
        if (gr_exec_progress(exec)) {
            continue;
        }
        int64_t deadline_us = gr_exec_look(exec, waited);
        if ((op && op->state != GR_OP_ACTIVE) || exec->active == 0) {
            return;
        }
        gr_mesh_wait(exec->mesh, deadline_us);
        waited = true;
    }
}

int gr_exec_active(const gr_exec *exec)
{
    return exec->active;
}

/* ---- Operations ------------------------------------------------------------------------------ */
bool gr_op_finished(const gr_op *op)
{
    return op->state == GR_OP_FINISHED;
}

gr_status gr_op_release(gr_op *op)
{
    gr_status status = op->status;
    if (!op->exec) {
        return status;
    }
    op->state = GR_OP_FREE;
    op->next_free = op->exec->free_ops;
    op->exec->free_ops = op;
    return status;
}

void *gr_op_owner(const gr_op *op)
{
    return op->exec ? op->exec->owner : NULL;
}

gr_op *gr_op_create_finished(void)
{
    gr_op *op = calloc(1, sizeof *op);
    if (op) {
        op->state = GR_OP_FINISHED;
        op->status = GR_OK;
    }
    return op;
}

void gr_op_destroy_finished(gr_op *op)
{
    free(op);
}

const gr_diag *gr_exec_diag(const gr_exec *exec)
{
    return &exec->diag;
}
