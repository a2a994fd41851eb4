/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/exec.h"
#include "base/fail.h"
#include "coll/exec_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEGMENT_ALIGN = 64,
    SKEW_WINDOW = 16,
    SMALL_BYTES = 4096,
    GLANCE_TICKS = 1 << 24 /* some milliseconds, less than a second by any processor's counter */
};

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_exec_create(const gr_exec_config *config, gr_exec **exec_out, gr_diag *diag)
{
    size_t ranks = (size_t)config->world_size;
    gr_exec *exec = calloc(1, sizeof *exec);
    if (!exec) {
        goto undo_nothing;
    }
    char why[128];
    exec->record = gr_record_create(config->record, why);
    if (why[0]) {
        gr_log_write(config->log, GR_LOG_INFO, "coll", "operations are not recorded in %s", why);
    }
    exec->links = calloc(ranks, sizeof *exec->links);
    exec->posts = calloc(2 * ranks, sizeof *exec->posts);
    exec->tickets = calloc(ranks * GR_EXEC_TICKETS, sizeof *exec->tickets);
    if (!exec->record || !exec->links || !exec->posts || !exec->tickets) {
        goto undo_exec;
    }
    int64_t segment = config->segment_bytes > 0 ? config->segment_bytes : GR_SEGMENT_BYTES_DEFAULT;
    segment = segment < GR_SEGMENT_BYTES_MAX ? segment : GR_SEGMENT_BYTES_MAX;
    exec->segment_bytes = ((size_t)segment + SEGMENT_ALIGN - 1) & ~(size_t)(SEGMENT_ALIGN - 1);
    exec->slice_bytes =
        config->slice_bytes > 0 ? (size_t)config->slice_bytes : GR_SLICE_BYTES_DEFAULT;
    exec->flushes = exec->posts + ranks;
    exec->mesh = config->mesh;
    exec->rank = config->rank;
    exec->world_size = config->world_size;
    gr_exec_scratch_init(exec, config->scratch_bytes);
    exec->op_timeout_us = config->op_timeout_us;
    exec->clock = config->clock;
    bool real = config->clock.now_us == gr_clock_real().now_us;
    exec->glance_ticks = real ? GLANCE_TICKS : 0; /* simulated runs are to repeat */
    exec->log = config->log;
    exec->owner = config->owner;
    exec->stall_warn_us = config->stall_warn_us;
    exec->host_name = config->host_name;
    exec->host_arg = config->host_arg;
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
        exec->shares_memory |= link->link && gr_link_kind_of(link->link) == GR_LINK_SHM;
    }
    for (int i = GR_EXEC_OPS_MAX - 1; i >= 0; i--) {
        exec->ops[i].exec = exec;
        exec->ops[i].next_free = exec->free_ops;
        exec->free_ops = &exec->ops[i];
        exec->free_count++;
    }
    *exec_out = exec;
    return GR_OK;

undo_exec:
    gr_exec_destroy(exec);
undo_nothing:
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the executor of %zu ranks", ranks);
}

void gr_exec_destroy(gr_exec *exec)
{
    if (!exec) {
        return;
    }
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_exec_grow_fini(&exec->ops[i]);
    }
    for (int i = 0; i < GR_EXEC_GROUPS_MAX; i++) {
        free(exec->members[i].local);
    }
    gr_exec_scratch_fini(exec);
    free(exec->tickets);
    free(exec->posts);
    gr_record_destroy(exec->record);
    free(exec->links);
    free(exec);
}

/* ---- Groups ---------------------------------------------------------------------------------- */
int gr_exec_group_close(gr_exec *exec, const gr_exec_group *group)
{
    int active = 0;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        const gr_op *op = &exec->ops[i];
        active += op->state == GR_OP_ACTIVE && !op->over && op->comm == group->id;
    }
    if (active > 0) {
        return active;
    }
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        if (op->state == GR_OP_FINISHED && op->comm == group->id && op->head == op && !op->done) {
            (void)gr_op_release(op);
        }
    }
    gr_exec_members *members = &exec->members[group->id];
    free(members->local);
    *members = (gr_exec_members){.group = NULL};
    return 0;
}

/* ---- The end of operations ------------------------------------------------------------------- */
void gr_exec_finish(gr_exec *exec, gr_op *head, gr_status status)
{
    head->state = GR_OP_FINISHED;
    head->status = status;
    if (head->done) {
        head->next_done = NULL;
        if (exec->done_tail) {
            exec->done_tail->next_done = head;
        } else {
            exec->done_head = head;
        }
        exec->done_tail = head;
    }
}

/* A small operation is over when its last message is here: the clock was read for that already. */
static uint64_t end_ticks(const gr_exec *exec, const gr_op *op)
{
    return op->total_bytes <= SMALL_BYTES && exec->arrived > 0 ? exec->arrived : gr_record_now();
}

void gr_exec_record_end(gr_exec *exec, const gr_op *op, gr_status status)
{
    gr_record *record = exec->record;
    uint64_t ended = end_ticks(exec, op);
    if (op->timeline) {
        gr_timeline_end(op->timeline, ended, status, op->waited, op->waited_for);
    }
    if (record->begun - op->record <= GR_RECORD_ENTRIES) {
        gr_record_entry *entry = &record->entries[op->record % GR_RECORD_ENTRIES];
        entry->ended = ended;
        entry->status = status;
    }
}

void gr_exec_part_over(gr_exec *exec, gr_op *op)
{
    op->over = true;
    exec->active--;
    gr_exec_scratch_leave(exec, op);
    if (op->settles && op->record >= exec->settled) {
        exec->settled = op->record + 1;
    }
    gr_exec_record_end(exec, op, GR_OK);
    if (--op->head->parts_left == 0) {
        gr_exec_finish(exec, op->head, GR_OK);
    }
}

/* ---- Progress -------------------------------------------------------------------------------- */
bool gr_exec_move_driven(gr_op *op)
{
    gr_exec *exec = op->exec;
    bool moved = false;
    gr_diag diag;
    gr_status status = op->driver->move(op->driver_state, &moved, &diag);
    if (status == GR_PENDING) {
        op->moved = op->moved || moved;
        exec->moved = exec->moved || moved;
        return moved;
    }
    exec->moved = true;
    if (status != GR_OK) {
        gr_exec_fail(exec, &diag);
        return true;
    }
    int at = 0;
    while (exec->driven[at] != op) {
        at++;
    }
    for (exec->driven_count--; at < exec->driven_count; at++) {
        exec->driven[at] = exec->driven[at + 1];
    }
    if (op->driver->end) {
        op->driver->end(op->driver_state, GR_OK);
    }
    gr_exec_part_over(exec, op);
    return true;
}

static void move_all_driven(gr_exec *exec)
{
    for (int i = 0; i < exec->driven_count && exec->diag.status == GR_OK && !exec->doubt.on;) {
        gr_op *op = exec->driven[i];
        (void)gr_exec_move_driven(op);
        i += !op->over;
    }
}

bool gr_exec_progress(gr_exec *exec)
{
    if (gr_exec_active(exec) == 0 && !gr_exec_unsure(exec)) {
        return false;
    }
    bool moved_before = exec->moved;
    exec->moved = false;
    exec->arrived = 0;
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
    move_all_driven(exec); /* now, since what lies on the links may show that they are in error */
    if (status != GR_OK && exec->diag.status == GR_OK) {
        gr_exec_mesh_failed(exec, status, &diag); /* what the links still held was taken above */
    }
    bool moved = exec->moved;
    exec->moved = moved || moved_before;
    return moved;
}

static void wait_for(gr_exec *exec, const gr_op *op, const _Atomic int *yield)
{
    bool waited = false;
    while (op ? op->state == GR_OP_ACTIVE : gr_exec_active(exec) > 0) {
        if (yield && (*yield || exec->done_head)) {
            return;
        }
        if (gr_exec_progress(exec)) {
            continue;
        }
        int64_t deadline_us = gr_exec_look(exec, waited);
        if (op ? op->state != GR_OP_ACTIVE : gr_exec_active(exec) == 0) {
            return;
        }
        gr_mesh_wait(exec->mesh, deadline_us);
        waited = true;
    }
}

void gr_exec_wait(gr_exec *exec, const gr_op *op, const _Atomic int *yield)
{
    exec->blocked = op;
    wait_for(exec, op, yield);
    exec->blocked = NULL;
}

void gr_exec_set_calling(gr_exec *exec, bool calling)
{
    exec->calls = calling;
}

int gr_exec_active(const gr_exec *exec)
{
    return exec->active + (exec->doubt.on && exec->diag.status == GR_OK);
}

bool gr_exec_unsure(const gr_exec *exec)
{
    return exec->unsettled > exec->settled && exec->diag.status == GR_OK;
}

void gr_exec_glance(gr_exec *exec, uint64_t now)
{
    if (gr_exec_unsure(exec) && now - exec->glanced >= exec->glance_ticks) {
        exec->glanced = now;
        if (!gr_exec_progress(exec)) {
            (void)gr_exec_look(exec, false);
        }
    }
}

/* ---- Operations ------------------------------------------------------------------------------ */
bool gr_op_finished(const gr_op *op)
{
    return op->state == GR_OP_FINISHED;
}

bool gr_op_released(const gr_op *op)
{
    return op->state == GR_OP_FREE;
}

gr_status gr_op_release(gr_op *op)
{
    gr_status status = op->status;
    gr_exec *exec = op->exec;
    if (!exec) {
        return status;
    }
    for (gr_op *part = op; part;) {
        gr_op *next = part->next_part;
        part->state = GR_OP_FREE;
        part->done = NULL;
        part->next_part = NULL;
        part->next_free = exec->free_ops;
        exec->free_ops = part;
        exec->free_count++;
        part = next;
    }
    return status;
}

bool gr_exec_take_done(gr_exec *exec, gr_exec_done *done_out)
{
    gr_op *op = exec->done_head;
    if (!op) {
        return false;
    }
    exec->done_head = op->next_done;
    exec->done_tail = exec->done_head ? exec->done_tail : NULL;
    *done_out = (gr_exec_done){.done = op->done, .arg = op->done_arg, .status = op->status};
    (void)gr_op_release(op);
    return true;
}

bool gr_exec_done_pending(const gr_exec *exec)
{
    return exec->done_head != NULL;
}

uint32_t gr_op_number(const gr_op *op)
{
    return op->number;
}

uint64_t gr_op_fingerprint(const gr_op *op)
{
    return op->fingerprint;
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

/* ---- Who uses what --------------------------------------------------------------------------- */
static bool meets(const void *buffer, size_t buffer_bytes, const void *at, size_t size_bytes)
{
    uintptr_t a = (uintptr_t)buffer, b = (uintptr_t)at;
    return buffer && buffer_bytes > 0 && a < b + size_bytes && b < a + buffer_bytes;
}

static bool op_uses(const gr_op *op, const void *at, size_t size_bytes, bool to_write)
{
    if (op->driver) {
        return op->driver->uses && op->driver->uses(op->driver_state, at, size_bytes, to_write);
    }
    for (uint16_t slot = 0; slot < op->program->user_slots; slot++) {
        if (meets(op->user[slot], op->bytes[0], at, size_bytes)) {
            return true;
        }
    }
    for (uint16_t slot = 0; to_write && slot < op->program->input_slots; slot++) {
        if (meets(op->input[slot], op->bytes[1], at, size_bytes)) {
            return true;
        }
    }
    return false;
}

bool gr_exec_uses(const gr_exec *exec, const void *at, size_t size_bytes, bool to_write,
                  char *what_out, size_t what_bytes)
{
    int left = exec->active;
    for (int i = 0; i < GR_EXEC_OPS_MAX && left > 0; i++) {
        const gr_op *op = &exec->ops[i];
        bool active = op->state == GR_OP_ACTIVE && !op->over;
        left -= active;
        if (active && op_uses(op, at, size_bytes, to_write)) {
            gr_exec_say(exec, op, what_out, what_bytes);
            return true;
        }
    }
    return false;
}

/* ---- What is kept of the past ---------------------------------------------------------------- */
void gr_exec_set_timeline(gr_exec *exec, gr_timeline *timeline)
{
    exec->timeline = timeline;
}

void gr_exec_record_in(gr_exec *exec, const char *path)
{
    char why[128] = "";
    exec->record = gr_record_move(exec->record, path, why);
    if (why[0] != '\0') {
        gr_log_write(exec->log, GR_LOG_INFO, "coll", "operations are not recorded in %s", why);
    }
}

gr_record *gr_exec_record(const gr_exec *exec)
{
    return exec->record;
}

void gr_op_arrived(gr_op *op, int peer, bool awaited)
{
    gr_exec_link *link = &op->exec->links[peer];
    op->exec->arrived = gr_record_now();
    link->came = (gr_exec_mark){
        .valid = true, .comm = op->comm, .number = op->number, .fingerprint = op->fingerprint};
    uint64_t late = op->exec->arrived - op->started;
    /* Counters of two processors may differ a little. */
    late = awaited && late <= UINT64_MAX / 2 ? late : 0;
    /* A division takes longer than all the rest. */
    double part =
        ++link->skew_count < SKEW_WINDOW ? 1.0 / (double)link->skew_count : 1.0 / SKEW_WINDOW;
    link->skew_sum += (double)late;
    link->skew_recent += ((double)late - link->skew_recent) * part;
    link->skew_max = late > link->skew_max ? late : link->skew_max;
    if (late > op->waited) {
        op->waited = late;
        op->waited_for = peer;
    }
}

void gr_exec_get_skew(const gr_exec *exec, int peer, gr_exec_skew *skew_out)
{
    const gr_exec_link *link = &exec->links[peer];
    double us = gr_record_ns_per_tick(exec->record) / 1000;
    double count = link->skew_count > 0 ? (double)link->skew_count : 1;
    *skew_out = (gr_exec_skew){.count = link->skew_count,
                               .mean_us = link->skew_sum / count * us,
                               .recent_us = link->skew_recent * us,
                               .max_us = (double)link->skew_max * us};
}
