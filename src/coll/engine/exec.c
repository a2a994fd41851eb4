/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/engine/exec.h"
#include "base/fail.h"
#include "coll/engine/exec_group_end.h"
#include "coll/engine/exec_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEGMENT_ALIGN = 64,
    SMALL_BYTES = 4096,
    LOOK_GAP_US =
        100000, /* a caller that computed in between did not wait: longer gaps do not count */
    HOLD_US = 1000,
    POLL_EVERY_TICKS =
        1 << 24 /* some milliseconds, less than a second by any processor's counter */
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
    exec->record = gr_flight_recorder_create(config->record, why);
    if (why[0]) {
        gr_log_write(config->log, GR_LOG_INFO, "coll", "operations are not recorded in %s", why);
    }
    exec->links = calloc(ranks, sizeof *exec->links);
    exec->posts = calloc(3 * ranks, sizeof *exec->posts);
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
    exec->busy = exec->flushes + ranks;
    exec->mesh = config->mesh;
    exec->rank = config->rank;
    exec->world_size = config->world_size;
    gr_exec_scratch_init(exec, config->scratch_bytes);
    exec->clock = config->clock;
    bool real = config->clock.now_us == gr_clock_real().now_us;
    exec->poll_every_ticks = real ? POLL_EVERY_TICKS : 0; /* simulated runs are to repeat */
    exec->log = config->log;
    exec->owner = config->owner;
    exec->may_start = config->may_start;
    gr_diag_clear(&exec->diag);
    const gr_diagnosis_config diagnosis = {.exec = exec,
                                           .rank = config->rank,
                                           .world_size = config->world_size,
                                           .op_timeout_us = config->op_timeout_us,
                                           .stall_warn_us = config->stall_warn_us,
                                           .clock = config->clock,
                                           .log = config->log,
                                           .host_name = config->host_name,
                                           .host_arg = config->host_arg,
                                           .channel = config->channel};
    exec->diagnosis = gr_diagnosis_create(&diagnosis);
    if (!exec->diagnosis) {
        goto undo_exec;
    }
    for (int peer = 0; peer < exec->world_size; peer++) {
        gr_exec_link *link = &exec->links[peer];
        link->peer = peer;
        link->link = peer == exec->rank ? NULL : gr_mesh_link(exec->mesh, peer);
        link->tickets = &exec->tickets[(size_t)peer * GR_EXEC_TICKETS];
        if (peer != exec->rank && !link->link && !gr_mesh_on_demand(exec->mesh)) {
            gr_exec_destroy(exec);
            return gr_fail_peer(diag, GR_E_BUG, peer, "rank %d has no link to rank %d",
                                config->rank, peer);
        }
        exec->shares_memory |= link->link && gr_link_capabilities(link->link)->registered_memory;
    }
    exec->shares_memory |=
        gr_mesh_on_demand(exec->mesh) && gr_mesh_capabilities(exec->mesh)->registered_memory;
    gr_exec_messages_init(exec);
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
    gr_exec_free_endings(exec);
    gr_exec_scratch_fini(exec);
    gr_exec_messages_fini(exec);
    free(exec->tickets);
    free(exec->posts);
    gr_diagnosis_destroy(exec->diagnosis);
    gr_flight_recorder_destroy(exec->record);
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
    gr_exec_messages_drop(exec, group->id);
    gr_exec_members *members = &exec->members[group->id];
    free(members->local);
    *members = (gr_exec_members){.ended_serial = members->ended_serial};
    return 0;
}

gr_op *gr_exec_group_unfinished(gr_exec *exec, const gr_exec_group *group)
{
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        gr_op *op = &exec->ops[i];
        if (op->state == GR_OP_ACTIVE && op->stopped && op->comm == group->id) {
            return op->head;
        }
    }
    return NULL;
}

/* ---- The end of operations ------------------------------------------------------------------- */
void gr_exec_finish(gr_exec *exec, gr_op *head, gr_status status)
{
    head->state = GR_OP_FINISHED;
    head->status = status;
    exec->finished++;
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

/* A small operation without a schedule is over when the last word of a peer is here: the clock was
 * read for that already. Of one with a schedule the first of several messages had it read. */
static uint64_t end_ticks(const gr_exec *exec, const gr_op *op)
{
    bool one_word = op->ops || op->is_message;
    bool known = one_word && exec->arrived_op == op && op->total_bytes <= SMALL_BYTES;
    return known ? exec->arrived : gr_flight_recorder_now();
}

void gr_exec_record_end(gr_exec *exec, const gr_op *op, gr_status status)
{
    gr_flight_recorder *record = exec->record;
    uint64_t ended = end_ticks(exec, op);
    if (op->timeline) {
        gr_timeline_end(op->timeline, ended, status, op->waited, op->waited_for);
    }
    if (record->begun - op->record <= GR_FLIGHT_RECORDER_ENTRIES) {
        gr_flight_recorder_entry *entry = &record->entries[op->record % GR_FLIGHT_RECORDER_ENTRIES];
        entry->ended = ended;
        entry->status = status;
    }
}

void gr_exec_part_over(gr_exec *exec, gr_op *op)
{
    op->over = true;
    exec->active--;
    gr_exec_scratch_leave(exec, op);
    if (op->matches && op->record >= exec->matched) {
        exec->matched = op->record + 1;
    }
    gr_exec_record_end(exec, op, GR_OK);
    gr_diagnosis_op_over(exec->diagnosis, op);
    if (--op->head->parts_left == 0) {
        gr_exec_finish(exec, op->head, GR_OK);
    }
}

/* ---- Progress -------------------------------------------------------------------------------- */
void gr_exec_remove_custom(gr_exec *exec, const gr_op *op)
{
    int at = 0;
    while (exec->custom[at] != op) {
        at++;
    }
    for (exec->custom_count--; at < exec->custom_count; at++) {
        exec->custom[at] = exec->custom[at + 1];
    }
}

bool gr_exec_progress_custom(gr_op *op)
{
    gr_exec *exec = op->exec;
    bool moved = false;
    gr_diag diag;
    gr_status status = op->ops->progress(op->ops_state, &moved, &diag);
    if (status == GR_PENDING) {
        op->watch.moved = op->watch.moved || moved;
        exec->moved = exec->moved || moved;
        return moved;
    }
    exec->moved = true;
    if (status != GR_OK) {
        /* Nonsense that a rank has posted is the group's matter, a lost rank that of all. */
        gr_exec_end_group(exec, status == GR_E_PROTOCOL ? op->comm : 0, &diag);
        return true;
    }
    gr_exec_remove_custom(exec, op);
    gr_exec_part_over(exec, op);
    return true;
}

static void progress_all_custom(gr_exec *exec)
{
    for (int i = 0; i < exec->custom_count && exec->diag.status == GR_OK && !exec->arbitrating;) {
        gr_op *op = exec->custom[i];
        (void)gr_exec_progress_custom(op);
        i += !op->over && !op->stopped;
    }
}

void gr_exec_mark_busy(gr_exec *exec, gr_exec_link *link)
{
    if (!link->busy && link->peer != exec->rank) {
        link->busy = true;
        exec->busy[exec->busy_count++] = link->peer;
    }
    if (!link->link) {
        link->link = gr_mesh_link(exec->mesh, link->peer);
    }
}

/* No operation moves anything over it, and nothing stands there. */
static bool is_idle(const gr_exec *exec, const gr_exec_link *link)
{
    gr_frame frame;
    return link->ticket_count == 0 && link->send.seq == exec->next_seq &&
           link->recv.seq == exec->next_seq && !gr_exec_messages_busy(link) &&
           (!link->link || link->closed || gr_link_peek(link->link, &frame) != GR_OK);
}

static void visit_busy_links(gr_exec *exec)
{
    int peer;
    while (gr_mesh_next_ready(exec->mesh, &peer)) {
        gr_exec_mark_busy(exec, &exec->links[peer]);
    }
    for (int i = 0; i < exec->busy_count && exec->diag.status == GR_OK && gr_exec_looks(exec);) {
        gr_exec_link *link = &exec->links[exec->busy[i]];
        if (link->ticket_count > 0 || gr_exec_messages_busy(link)) {
            gr_exec_reap(exec, link);
            gr_exec_messages_push(exec, link);
        }
        if (link->send.seq != exec->next_seq) {
            gr_exec_mark_post(exec, link);
        }
        gr_exec_drain(exec);
        gr_exec_take(exec, link);
        if (gr_exec_looks(exec) && is_idle(exec, link)) {
            link->busy = false;
            exec->busy[i] = exec->busy[--exec->busy_count];
        } else {
            i++;
        }
    }
}

bool gr_exec_progress(gr_exec *exec)
{
    if (!gr_exec_looks(exec)) {
        return false;
    }
    bool moved_before = exec->moved;
    exec->moved = false;
    exec->arrived_op = NULL;
    gr_diag diag;
    gr_status status = gr_mesh_progress(exec->mesh, &diag);
    visit_busy_links(exec);
    if (exec->compare && exec->diag.status == GR_OK && gr_exec_has_unmatched(exec)) {
        exec->compare(exec->compare_arg);
    }
    progress_all_custom(
        exec); /* now, since what lies on the links may show that they are in error */
    if (status != GR_OK && exec->diag.status == GR_OK) {
        gr_exec_mesh_failed(exec, status, &diag); /* what the links still held was taken above */
    }
    if (exec->endings) {
        gr_exec_close_endings(exec);
    }
    bool moved = exec->moved;
    exec->moved = moved || moved_before;
    return moved;
}

/* Drops what is there of a group that has ended: its senders wait, and this may be the last look of
 * this rank for long. */
static void sweep(gr_exec *exec)
{
    for (int peer = 0; peer < exec->world_size; peer++) {
        if (exec->links[peer].link) {
            gr_exec_mark_busy(exec, &exec->links[peer]);
        }
    }
    visit_busy_links(exec);
    exec->sweeps = false; /* a link at which something stands is busy still */
}

int64_t gr_exec_poll_timers(gr_exec *exec, bool waited)
{
    if (!gr_exec_looks(exec) && !gr_exec_may_hear(exec)) {
        return GR_NEVER;
    }
    int64_t now_us = gr_clock_now_us(&exec->clock);
    int64_t skipped_us = now_us - exec->last_look_us;
    skipped_us = waited || skipped_us <= LOOK_GAP_US ? 0 : skipped_us;
    if (exec->moved) {
        exec->moved = false;
        exec->idle_since_us = now_us;
    } else {
        exec->idle_since_us += skipped_us;
    }
    exec->last_look_us = now_us;
    int64_t next_us = gr_diagnosis_poll(exec->diagnosis, now_us, skipped_us);
    if (exec->diag.status != GR_OK) {
        return GR_NEVER;
    }
    if (exec->sweeps) {
        sweep(exec);
        next_us = exec->moved ? now_us : next_us; /* what was taken may let others move */
    }
    if (exec->endings) {
        next_us = gr_earlier_us(next_us, gr_exec_poll_endings(exec, now_us, skipped_us));
    }
    next_us = gr_earlier_us(next_us, gr_exec_scratch_look(exec, now_us));
    if (exec->holds > 0) {
        if (now_us - exec->idle_since_us >= HOLD_US) {
            gr_exec_release_views(exec);
        }
        if (exec->holds > 0) {
            next_us = gr_earlier_us(next_us, exec->idle_since_us + HOLD_US);
        }
    }
    return next_us;
}

static bool is_reached(const gr_exec *exec, const gr_exec_until *until, uint64_t finished)
{
    return (until->op ? until->op->state != GR_OP_ACTIVE : gr_exec_active(exec) == 0) ||
           (until->wanted && *until->wanted) || (until->callback && exec->done_head) ||
           (until->any && exec->finished != finished);
}

static void wait_until(gr_exec *exec, const gr_exec_until *until)
{
    bool waited = false;
    uint64_t finished = exec->finished;
    while (!is_reached(exec, until, finished)) {
        bool moved = gr_exec_progress(exec);
        if (until->deadline_us != GR_NEVER && gr_clock_now_us(&exec->clock) >= until->deadline_us) {
            return;
        }
        if (moved) {
            continue;
        }
        int64_t look_us = gr_exec_poll_timers(exec, waited);
        if (is_reached(exec, until, finished)) {
            return;
        }
        gr_mesh_wait(exec->mesh, look_us < until->deadline_us ? look_us : until->deadline_us);
        waited = true;
    }
}

void gr_exec_wait(gr_exec *exec, const gr_exec_until *until)
{
    /* Whoever waits for a limited time may start something after it. */
    exec->blocked = until->deadline_us == GR_NEVER ? until->op : NULL;
    wait_until(exec, until);
    exec->blocked = NULL;
}

uint64_t gr_exec_finished(const gr_exec *exec)
{
    return exec->finished;
}

int gr_exec_active(const gr_exec *exec)
{
    return exec->active + (exec->arbitrating && exec->diag.status == GR_OK);
}

void gr_exec_set_compare(gr_exec *exec, void (*compare)(void *arg), void *arg)
{
    exec->compare = compare;
    exec->compare_arg = arg;
}

bool gr_exec_has_unmatched(const gr_exec *exec)
{
    return exec->unmatched > exec->matched && exec->diag.status == GR_OK;
}

bool gr_exec_looks(const gr_exec *exec)
{
    return gr_exec_active(exec) > 0 || gr_exec_has_unmatched(exec) || exec->endings || exec->sweeps;
}

bool gr_exec_may_hear(const gr_exec *exec)
{
    return gr_exec_has_unmatched(exec) || (exec->serial_seen > 0 && exec->diag.status == GR_OK);
}

void gr_exec_periodic_poll(gr_exec *exec, uint64_t now)
{
    if (gr_exec_may_hear(exec) && now - exec->polled_ticks >= exec->poll_every_ticks) {
        exec->polled_ticks = now;
        if (!gr_exec_progress(exec)) {
            (void)gr_exec_poll_timers(exec, false);
        }
    }
}

/* ---- Operations ------------------------------------------------------------------------------ */
gr_op *gr_op_create_handle(gr_exec *exec, void *state)
{
    gr_op *handle = calloc(1, sizeof *handle);
    if (handle) {
        handle->exec = exec;
        handle->handle_state = state;
    }
    return handle;
}

void gr_op_destroy_handle(gr_op *handle)
{
    free(handle);
}

void gr_op_detach_handle(gr_op *handle)
{
    handle->exec = NULL;
    handle->running = NULL;
}

void *gr_op_handle_state(const gr_op *op)
{
    return op->handle_state;
}

void gr_op_set_running(gr_op *handle, gr_op *op)
{
    handle->running = op;
}

gr_op *gr_op_running(gr_op *op)
{
    return op->handle_state ? op->running : op;
}

bool gr_op_finished(const gr_op *op)
{
    const gr_op *running = op->handle_state ? op->running : op;
    return running && running->state == GR_OP_FINISHED;
}

bool gr_op_released(const gr_op *op)
{
    const gr_op *running = op->handle_state ? op->running : op;
    return !running || running->state == GR_OP_FREE;
}

gr_status gr_op_release(gr_op *op)
{
    if (op->handle_state) {
        gr_op *running = op->running;
        op->running = NULL;
        return running ? gr_op_release(running) : GR_E_INVALID;
    }
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
bool gr_exec_uses(const gr_exec *exec, const gr_call_memory *memory, char *what_out,
                  size_t what_bytes)
{
    int left = exec->active;
    for (int i = 0; i < GR_EXEC_OPS_MAX && left > 0; i++) {
        const gr_op *op = &exec->ops[i];
        bool active = op->state == GR_OP_ACTIVE && !op->over;
        left -= active;
        if (active && gr_call_memory_meets(&op->memory, memory)) {
            gr_exec_describe_op(exec, op, what_out, what_bytes);
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

void gr_exec_startup_over(gr_exec *exec)
{
    exec->record->first_number = exec->members[0].next_number;
}

gr_flight_recorder *gr_exec_record(const gr_exec *exec)
{
    return exec->record;
}

void gr_op_arrived(gr_op *op, int peer, bool awaited)
{
    gr_op_id id = gr_op_identity(op);
    op->exec->arrived = gr_flight_recorder_now();
    op->exec->arrived_op = op;
    uint64_t late = op->exec->arrived - op->started;
    /* Counters of two processors may differ a little. */
    late = awaited && late <= UINT64_MAX / 2 ? late : 0;
    gr_diagnosis_arrived(op->exec->diagnosis, &id, peer, late);
    if (late > op->waited) {
        op->waited = late;
        op->waited_for = peer;
    }
}

void gr_exec_get_skew(const gr_exec *exec, int peer, gr_exec_skew *skew_out)
{
    gr_diagnosis_get_skew(exec->diagnosis, peer, skew_out);
}

void gr_exec_mismatch(gr_exec *exec, uint16_t comm, uint32_t number, uint64_t fingerprint, int peer)
{
    if (comm != 0 && !exec->members[comm].group) {
        return; /* it has ended */
    }
    gr_diagnosis_mismatch(exec->diagnosis, comm, number, fingerprint, peer);
}
