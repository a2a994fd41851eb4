/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "coll/engine/exec_internal.h"
#include "coll/plan/traits.h"

#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGN = 64 };

/* ---- Which operation it is ------------------------------------------------------------------- */
static bool has_root(const gr_op_desc *desc)
{
    const gr_coll_traits *traits = &gr_coll_traits_of[desc->coll];
    return traits->rooted && !traits->message;
}

/* A hash of all that ranks must agree on, and of nothing else. `counts`: of uneven blocks. */
uint64_t gr_exec_fingerprint(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                             const size_t *counts)
{
    uint16_t comm = group ? group->id : 0;
    size_t blocks = (size_t)(group ? group->size : exec->world_size);
    bool message = gr_coll_traits_of[desc->coll].message;
    uint64_t facts[GR_EXEC_FACTS] = {0};
    facts[0] = (uint64_t)comm << 32 | (uint64_t)(message ? GR_COLL_SEND : desc->coll);
    if (desc->coll != GR_COLL_BARRIER) {
        facts[0] |= (uint64_t)desc->dtype << 8;
        facts[1] = desc->count;
    }
    if (!message) {
        facts[0] |= (uint64_t)desc->algorithm << 16;
    }
    if (gr_coll_traits_of[desc->coll].reduces) {
        facts[0] |= (uint64_t)desc->op << 24;
        facts[2] = (uint64_t)desc->shards;
    }
    facts[3] = has_root(desc) ? (uint64_t)desc->root : 0; /* the tag of a message is matched */
    if (counts && desc->coll != GR_COLL_ALLTOALL) { /* there every rank has counts of its own */
        facts[4] = gr_hash64(counts, blocks * sizeof *counts, 1);
    }
    if (desc->name && desc->name[0]) { /* "" is shown as no name */
        facts[5] = gr_hash64(desc->name, strnlen(desc->name, GR_FLIGHT_RECORDER_NAME_BYTES - 1), 1);
    }
    if (exec->facts_hash == 0 || memcmp(facts, exec->facts, sizeof facts) != 0) {
        memcpy(exec->facts, facts, sizeof facts);
        exec->facts_hash = gr_hash64(facts, sizeof facts, 0);
    }
    uint64_t hash = exec->facts_hash & ~(GR_FINGERPRINT_MESSAGE | GR_FINGERPRINT_SERIAL);
    hash |= group ? gr_exec_serial_bits(group->serial) : 0;
    return message ? hash | GR_FINGERPRINT_MESSAGE : hash;
}

/* All but the numbers, and who takes part. It counts when it is committed. */
gr_flight_recorder_entry *gr_exec_write_entry(gr_exec *exec, const gr_op_desc *desc)
{
    gr_flight_recorder_entry *entry = gr_flight_recorder_begin(exec->record);
    entry->count = desc->count;
    entry->caller = (uintptr_t)desc->caller;
    entry->tag = desc->tag;
    entry->root = desc->root;
    entry->shards = desc->shards;
    entry->status = GR_PENDING;
    entry->coll = (uint8_t)desc->coll;
    entry->dtype = (uint8_t)desc->dtype;
    entry->op = (uint8_t)desc->op;
    entry->algorithm = (uint8_t)desc->algorithm;
    gr_flight_recorder_copy(entry->name, desc->name);
    gr_flight_recorder_copy(entry->site, desc->site);
    return entry;
}

static void begin_timeline(gr_exec *exec, gr_op *op, const gr_flight_recorder_entry *entry)
{
    op->waited = 0;
    op->waited_for = -1;
    op->timeline = NULL;
    if (exec->timeline) {
        const gr_exec_group *group = exec->members[op->comm].group;
        uint32_t number =
            gr_flight_recorder_shown_number(exec->record, op->comm, op->number, op->is_message);
        op->timeline = gr_timeline_begin(exec->timeline, entry, number, op->total_bytes,
                                         group ? group->size : exec->world_size);
    }
}

static void record(gr_exec *exec, gr_op *op, const gr_op_desc *desc)
{
    gr_flight_recorder_entry *entry = gr_exec_write_entry(exec, desc);
    op->record = exec->record->begun;
    op->started = entry->started;
    entry->fingerprint = op->fingerprint;
    entry->number = op->number;
    entry->peer = op->partner;
    entry->comm = op->comm;
    gr_flight_recorder_commit(exec->record);
    begin_timeline(exec, op, entry);
}

/* ---- The group ------------------------------------------------------------------------------- */
/* The first operation of a communicator: who is who? */
static gr_status meet_members(gr_exec *exec, const gr_exec_group *group, gr_diag *diag)
{
    gr_exec_members *members = &exec->members[group->id];
    bool same = group->size == exec->world_size;
    for (int rank = 0; rank < group->size && same; rank++) {
        same = group->world[rank] == rank;
    }
    int *local = NULL;
    if (!same) {
        local = malloc((size_t)exec->world_size * sizeof *local);
        if (!local) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group of %d ranks", group->size);
        }
        for (int world = 0; world < exec->world_size; world++) {
            local[world] = -1;
        }
        for (int rank = 0; rank < group->size; rank++) {
            local[group->world[rank]] = rank;
        }
    }
    free(members->local);
    *members = (gr_exec_members){
        .group = group, .same = same, .local = local, .ended_serial = members->ended_serial};
    return GR_OK;
}

gr_status gr_exec_group_open(gr_exec *exec, const gr_exec_group *group, gr_diag *diag)
{
    gr_status status = meet_members(exec, group, diag);
    if (status == GR_OK && group->serial > exec->serial_seen) {
        exec->serial_seen = group->serial;
    }
    return status;
}

static void join_known(const gr_exec *exec, gr_op *op, const gr_exec_group *group)
{
    const gr_exec_members *members = &exec->members[group->id];
    op->comm = group->id;
    op->world = members->same ? NULL : group->world;
    op->local = members->same ? NULL : members->local;
}

static gr_status join_group(gr_exec *exec, gr_op *op, const gr_exec_group *group, gr_diag *diag)
{
    op->comm = group ? group->id : 0;
    op->world = NULL;
    op->local = NULL;
    if (!group) {
        return GR_OK;
    }
    if (group->outcome && atomic_load(&group->outcome->ended)) {
        return gr_fail(diag, GR_E_COMM_BROKEN, "the communicator has ended: %.400s",
                       group->outcome->diag.text);
    }
    if (exec->members[group->id].group != group) {
        gr_status status = meet_members(exec, group, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    join_known(exec, op, group);
    return GR_OK;
}

/* ---- How buffers are cut --------------------------------------------------------------------- */
/* All ranks must cut alike, however much each of them has to keep. */
static void cut_segments(gr_op *op, size_t largest)
{
    op->segments = gr_cut_segments(largest, op->segment_bytes);
    if (op->segments == 0 && op->sends_empty) {
        op->segments = 1;
    }
    op->slice_segments = gr_cut_slice(op->segments, op->segment_bytes, op->exec->slice_bytes);
    size_t held = op->slice_segments * op->segment_bytes;
    held = largest < held ? largest : held;
    op->slice_stride = (held + SCRATCH_ALIGN - 1) & ~(size_t)(SCRATCH_ALIGN - 1);
}

static size_t scratch_bytes(const gr_op *op, const gr_schedule *schedule)
{
    return schedule->places * op->slice_stride;
}

static void cut_evenly(gr_op *op, const gr_exec_request *request)
{
    size_t blocks = request->schedule->blocks;
    op->total_bytes = request->total_count * op->element_bytes;
    op->cut = gr_cut_evenly(op->total_bytes, blocks, request->fixed_blocks ? op->element_bytes : 0);
    cut_segments(op, op->cut.largest);
    int only[2] = {request->user_only, request->input_only};
    for (int i = 0; i < 2; i++) {
        op->base[i] = only[i] < 0 ? 0 : gr_cut_offset(&op->cut, (size_t)only[i]);
    }
}

static bool grow_cut(gr_op *op, size_t blocks)
{
    size_t wanted = op->exec->blocks_max > blocks ? op->exec->blocks_max : blocks;
    op->exec->blocks_max = wanted;
    if (wanted <= op->cut_capacity) {
        return true;
    }
    size_t *memory = malloc(2 * (wanted + 1) * sizeof *memory);
    if (!memory) {
        return false;
    }
    free(op->offsets[0]);
    op->offsets[0] = memory;
    op->offsets[1] = memory + wanted + 1;
    op->cut_capacity = wanted;
    return true;
}

static bool cut_by_counts(gr_op *op, const gr_exec_request *request)
{
    size_t blocks = request->schedule->blocks;
    if (!grow_cut(op, blocks)) {
        return false;
    }
    const size_t *counts[2] = {request->user_counts, request->input_counts};
    counts[1] = counts[1] ? counts[1] : counts[0];
    int only[2] = {request->user_only, request->input_only};
    size_t largest = 1;
    for (int i = 0; i < 2; i++) {
        size_t *offsets = op->offsets[i];
        offsets[0] = 0;
        for (size_t block = 0; block < blocks; block++) {
            size_t size = counts[i][block] * op->element_bytes;
            offsets[block + 1] = offsets[block] + size;
            largest = size > largest ? size : largest;
        }
        op->base[i] = only[i] < 0 ? 0 : offsets[only[i]];
    }
    op->total_bytes = op->offsets[0][blocks];
    cut_segments(op, largest);
    return true;
}

/* ---- Memory ---------------------------------------------------------------------------------- */
void gr_exec_grow_fini(gr_op *op)
{
    free(op->queue);
    free(op->views);
    free(op->offsets[0]);
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
    if (steps > op->step_capacity) {
        uint32_t *memory = malloc(steps * (2 * sizeof *memory + 1));
        if (!memory) {
            return false;
        }
        free(op->queue);
        op->queue = memory;
        op->step_done = memory + steps;
        op->step_capacity = steps;
    }
    return true;
}

static bool grow_views(gr_op *op, size_t views)
{
    if (views > op->view_capacity) {
        free(op->views);
        op->view_capacity = 0;
        op->views = malloc(views * sizeof *op->views);
        if (!op->views) {
            return false;
        }
        op->view_capacity = views;
    }
    return true;
}

/* ---- Start ----------------------------------------------------------------------------------- */
static uint64_t count_left(const gr_op *op)
{
    const gr_schedule *schedule = op->schedule;
    return (uint64_t)(schedule->step_count - schedule->whole_count) * op->segments +
           schedule->whole_count;
}

static gr_status make_room(gr_exec *exec, gr_op *op, const gr_exec_request *request, gr_diag *diag)
{
    const gr_schedule *schedule = request->schedule;
    const gr_op_desc *desc = &request->desc;
    op->element_bytes = gr_dtype_bytes(desc->dtype);
    op->segment_bytes = request->segment_bytes > 0 ? request->segment_bytes : exec->segment_bytes;
    op->uneven = request->user_counts != NULL;
    /* Where each rank knows only its own counts, an empty message says that they agree; and one
     * that is awaited must come, even if it has nothing to say. */
    op->sends_empty = op->uneven && desc->coll == GR_COLL_ALLTOALL;
    bool fits = true;
    if (op->uneven) {
        fits = cut_by_counts(op, request);
    } else {
        cut_evenly(op, request);
    }
    size_t views = (size_t)schedule->receiving_places * op->slice_segments;
    if (!fits || !grow_steps(op, raise_to(&exec->steps_max, schedule->step_count)) ||
        !grow_views(op, raise_to(&exec->views_max, views)) ||
        !gr_exec_scratch_prepare(exec, op, scratch_bytes(op, schedule))) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "no memory for %s of %llu %s: it needs %zu bytes of scratch",
                       gr_coll_name(desc->coll), (unsigned long long)desc->count,
                       gr_dtype_name(desc->dtype), scratch_bytes(op, schedule));
    }
    return GR_OK;
}

static gr_status prepare_plan(gr_exec *exec, gr_op *op, const gr_exec_request *request,
                              gr_diag *diag)
{
    const gr_schedule *schedule = request->schedule;
    gr_status status = make_room(exec, op, request, diag);
    if (status != GR_OK) {
        return status;
    }
    op->schedule = schedule;
    op->dtype = request->desc.dtype;
    op->divisor = request->divisor;
    op->prescale = request->prescale;
    op->postscale = request->postscale != 0 ? request->postscale : 1;
    op->user_reduce = request->reduce;
    op->reduce_arg = request->reduce_arg;
    op->reduce = gr_reduce_kernel(gr_isa_best(), request->desc.dtype, request->desc.op);
    for (uint16_t slot = 0; slot < schedule->user_slots && request->user; slot++) {
        op->user[slot] = request->user[slot];
    }
    for (uint16_t slot = 0; slot < schedule->input_slots && request->input; slot++) {
        op->input[slot] = request->input[slot];
    }
    op->queued = (uint8_t *)(op->step_done + schedule->step_count);
    memset(op->step_done, 0, schedule->step_count * (sizeof *op->step_done + 1));
    if (schedule->receiving_places > 0) {
        memset(op->views, 0,
               (size_t)schedule->receiving_places * op->slice_segments * sizeof *op->views);
    }
    op->queue_head = 0;
    op->queue_count = 0;
    op->left = count_left(op);
    return GR_OK;
}

static void prepare_message(gr_op *op, const gr_exec_request *request)
{
    const gr_op_desc *desc = &request->desc;
    bool sends = desc->coll == GR_COLL_SEND;
    op->schedule = NULL;
    op->left = 1;
    op->user[0] = sends ? NULL : request->user[0];
    op->input[0] = request->input && request->input[0] ? request->input[0] : request->user[0];
    op->message.any_source = desc->root == GR_ANY_SOURCE;
    op->message.any_tag = !sends && desc->tag == GR_ANY_TAG;
    op->message.entered = false;
    op->message.tag = desc->tag;
    op->message.source_out = request->source_out;
}

static gr_status prepare(gr_exec *exec, gr_op *op, const gr_exec_request *request, gr_diag *diag)
{
    const gr_op_desc *desc = &request->desc;
    gr_status status = join_group(exec, op, request->group, diag);
    op->ops = request->ops;
    op->ops_state = request->state;
    op->total_bytes = desc->count * gr_dtype_bytes(desc->dtype);
    op->memory = request->memory ? *request->memory : (gr_call_memory){.partial_count = 0};
    for (int i = 0; i < op->memory.partial_count; i++) {
        op->user[i] = op->memory.partials[i];
    }
    op->memory.partials = op->user;
    op->is_message = gr_coll_traits_of[desc->coll].message;
    if (status == GR_OK && op->is_message) {
        prepare_message(op, request);
    } else if (status == GR_OK && !op->ops) {
        status = prepare_plan(exec, op, request, diag);
    }
    if (status == GR_OK) {
        op->fingerprint = gr_exec_fingerprint(exec, request->group, desc, request->user_counts);
    }
    return status;
}

/* What has a root or a single peer may be over here before all ranks have called it, or anything
 * else. */
static bool brings_all(const gr_op *op, const gr_op_desc *desc)
{
    return desc->coll == GR_COLL_BARRIER || (op->ops && !has_root(desc)) ||
           (op->total_bytes > 0 && !op->uneven && !op->is_message && !has_root(desc));
}

/* A rank that has a part in every result, or in ours. */
static int needs(const gr_exec *exec, const gr_op *op, const gr_op_desc *desc)
{
    if (brings_all(op, desc)) {
        return GR_NEEDS_ALL;
    }
    if (!has_root(desc) || op->total_bytes == 0 || op->uneven) {
        return GR_NEEDS_NONE;
    }
    int root = gr_op_world(op, desc->root);
    bool gives = gr_coll_traits_of[desc->coll].gives == GR_PARTY_ROOT;
    if (root == exec->rank) {
        return gives ? GR_NEEDS_NONE : GR_NEEDS_ALL;
    }
    return gives ? root : GR_NEEDS_NONE;
}

/* Of one that is recorded. */
static void judge_needs(gr_exec *exec, gr_op *op, const gr_op_desc *desc)
{
    op->needs = needs(exec, op, desc);
    op->matches = !op->local && brings_all(op, desc);
    if (!op->matches) {
        exec->unmatched = op->record + 1;
    }
}

static void activate(gr_exec *exec, gr_op *op)
{
    op->state = GR_OP_ACTIVE;
    op->over = false;
    op->stopped = false;
    op->watch.moved = true;
    op->watch.warned = false;
    exec->moved = true;
    exec->arrived_op = NULL;
    exec->active++;
}

/* From here on nothing can go wrong: the operation gets its numbers. */
static void begin(gr_exec *exec, gr_op *op, const gr_op_desc *desc)
{
    op->sends = desc->coll == GR_COLL_SEND;
    op->partner = op->is_message && desc->root != GR_ANY_SOURCE ? gr_op_world(op, desc->root) : -1;
    if (op->is_message) {
        op->number =
            op->sends ? exec->links[op->partner].messages_sent++ : GR_FLIGHT_RECORDER_NO_NUMBER;
    } else {
        op->number = exec->members[op->comm].next_number++;
    }
    activate(exec, op);
    if (op->ops) {
        exec->custom[exec->custom_count++] = op;
        if (op->ops->begin) {
            op->ops->begin(op->ops_state, op);
        }
    }
    record(exec, op, desc);
    judge_needs(exec, op, desc);
}

static void enter(gr_exec *exec, gr_op *op)
{
    if (op->ops) {
        return;
    }
    if (op->left == 0) {
        gr_exec_part_over(exec, op);
        return;
    }
    exec->ring[op->seq & (GR_EXEC_RING - 1)] = op;
    gr_exec_scratch_enter(exec, op);
    const gr_schedule *schedule = op->schedule;
    for (uint32_t i = 0; i < schedule->root_count; i++) {
        gr_exec_queue_if_ready(exec, op, schedule->roots[i]);
    }
}

/* Where both send, the higher rank connects. */
void gr_exec_open_link(gr_exec *exec, gr_exec_link *link, bool sends, bool receives)
{
    if (link->peer == exec->rank) {
        return;
    }
    gr_exec_mark_busy(exec, link);
    if (!link->link || !gr_link_is_up(link->link)) {
        bool connect = sends && (!receives || exec->rank > link->peer);
        gr_link *made = gr_mesh_open_link(exec->mesh, link->peer, connect);
        link->link = made ? made : link->link;
        if (!link->link) {
            gr_diag diag;
            (void)gr_fail_peer(&diag, GR_E_NO_MEMORY, link->peer, "no memory for a link to rank %d",
                               link->peer);
            gr_exec_fail(exec, &diag);
        }
    }
}

static void start_moving(gr_exec *exec, uint32_t first_seq)
{
    while (exec->oldest_seq != exec->next_seq && !gr_exec_op_at(exec, exec->oldest_seq)) {
        exec->oldest_seq++;
    }
    for (int i = 1; i < exec->world_size; i++) {
        gr_exec_link *link = &exec->links[(exec->rank + i) % exec->world_size];
        if (link->recv.seq == first_seq) {
            gr_exec_advance(exec, link, false);
        }
        if (link->send.seq == first_seq) {
            gr_exec_advance(exec, link, true);
            gr_exec_mark_post(exec, link);
        }
        bool sends = link->send.seq != exec->next_seq, receives = link->recv.seq != exec->next_seq;
        if (sends || receives) {
            gr_exec_open_link(exec, link, sends, receives);
        }
    }
    gr_exec_drain(exec);
}

static gr_op *take_free(gr_exec *exec)
{
    gr_op *op = exec->free_ops;
    exec->free_ops = op->next_free;
    exec->free_count--;
    int taken =
        GR_EXEC_OPS_MAX - exec->free_count; /* the first ones: who is free last goes first */
    exec->ops_used = taken > exec->ops_used ? taken : exec->ops_used;
    op->next_part = NULL;
    return op;
}

static gr_status check_room(const gr_exec *exec, int count, gr_diag *diag)
{
    if (exec->diag.status != GR_OK) {
        return gr_fail(diag, GR_E_COMM_BROKEN, "the communicator has ended: %.400s",
                       exec->diag.text);
    }
    if (exec->free_count < count ||
        exec->next_seq - exec->oldest_seq + (uint32_t)count > GR_EXEC_RING - 1) {
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "too many operations in flight: at most %d may be unfinished or not waited "
                       "for; call gr_wait on the older ones",
                       GR_EXEC_OPS_MAX);
    }
    return GR_OK;
}

/* Receives first: what a rank sends to itself finds them, and so does what is on its way. */
static void enter_messages(gr_exec *exec, gr_op *head)
{
    for (int sends = 0; sends < 2; sends++) {
        for (gr_op *op = head; op; op = op->next_part) {
            if (op->is_message && op->sends == (sends != 0) && !op->stopped &&
                exec->diag.status == GR_OK) {
                gr_exec_message_enter(exec, op);
            }
        }
    }
}

gr_status gr_exec_start(gr_exec *exec, const gr_exec_request *requests, int request_count,
                        gr_op **op_out, gr_diag *diag)
{
    gr_status status = check_room(exec, request_count, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_op *head = NULL;
    gr_op **last = &head;
    for (int i = 0; i < request_count; i++) {
        gr_op *op = take_free(exec);
        *last = op;
        last = &op->next_part;
        status = prepare(exec, op, &requests[i], diag);
        if (status != GR_OK) {
            (void)gr_op_release(head);
            return status;
        }
    }
    head->done = requests[0].done;
    head->done_arg = requests[0].done_arg;
    head->parts_left = request_count;
    uint32_t first_seq = exec->next_seq;
    const gr_exec_request *request = requests;
    for (gr_op *op = head; op; op = op->next_part) {
        op->head = head;
        if (!op->ops && !op->is_message) {
            op->seq = exec->next_seq++;
        }
        begin(exec, op, &request->desc);
        request++;
    }
    for (gr_op *op = head; op; op = op->next_part) {
        if (!op->is_message) {
            enter(exec, op);
        }
    }
    if (exec->next_seq != first_seq) {
        start_moving(exec, first_seq);
    }
    enter_messages(exec, head);
    gr_exec_flush(exec);
    if (!head->ops) {
        gr_exec_periodic_poll(exec, head->started);
    }
    *op_out = head;
    return GR_OK;
}

/* ---- Short operations ------------------------------------------------------------------------ */
bool gr_exec_may_repeat(const gr_exec *exec, const gr_exec_group *group)
{
    return exec->free_ops && exec->active == 0 && !exec->arbitrating &&
           exec->diag.status == GR_OK && exec->members[group->id].group == group;
}

uint32_t gr_exec_take_number(gr_exec *exec, const gr_exec_group *group)
{
    return exec->members[group->id].next_number++;
}

void gr_exec_short_record(gr_exec *exec, gr_exec_short *call)
{
    gr_flight_recorder_entry *entry = gr_exec_write_entry(exec, call->desc);
    call->record = exec->record->begun;
    call->started = entry->started;
    entry->fingerprint = call->fingerprint;
    entry->number = call->number;
    entry->peer = -1;
    entry->comm = call->group->id;
    gr_flight_recorder_commit(exec->record);
}

static void note_arrivals(gr_exec *exec, const gr_exec_short *call, uint64_t came, uint64_t late)
{
    const gr_op_id id = {.comm = call->group->id,
                         .number = call->number,
                         .partner = -1,
                         .fingerprint = call->fingerprint};
    for (; came != 0; came &= came - 1) { /* as in gr_op_arrived: only the first was waited for */
        int peer = call->group->world[__builtin_ctzll(came)];
        gr_diagnosis_arrived(exec->diagnosis, &id, peer, late);
        late = 0;
    }
}

void gr_exec_short_end(gr_exec *exec, const gr_exec_short *call, uint64_t came, bool waited)
{
    gr_flight_recorder_entry *entry =
        &exec->record->entries[call->record % GR_FLIGHT_RECORDER_ENTRIES];
    uint64_t ended = waited ? gr_flight_recorder_now() : call->started;
    uint64_t late = ended - call->started;
    note_arrivals(exec, call, came, late <= UINT64_MAX / 2 ? late : 0);
    entry->ended = ended;
    entry->status = GR_OK;
    bool matches = exec->members[call->group->id].same && !has_root(call->desc);
    *(matches ? &exec->matched : &exec->unmatched) = call->record + 1;
    exec->moved = true;
    exec->finished++;
}

gr_op *gr_exec_short_go_on(gr_exec *exec, const gr_exec_short *call, const gr_op_ops *ops,
                           void *state, const gr_call_memory *memory)
{
    gr_op *op = take_free(exec);
    join_known(exec, op, call->group);
    op->memory = *memory;
    op->done = NULL;
    op->ops = ops;
    op->ops_state = state;
    op->is_message = false;
    op->sends = false;
    op->partner = -1;
    op->number = call->number;
    op->fingerprint = call->fingerprint;
    op->total_bytes = call->desc->count * gr_dtype_bytes(call->desc->dtype);
    op->head = op;
    op->parts_left = 1;
    op->record = call->record;
    op->started = call->started;
    activate(exec, op);
    exec->custom[exec->custom_count++] = op;
    begin_timeline(exec, op, gr_flight_recorder_at(exec->record, op->record));
    judge_needs(exec, op, call->desc);
    return op;
}
