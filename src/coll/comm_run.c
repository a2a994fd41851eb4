/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/reduce.h"

#include <string.h>

enum { WHAT_BYTES = 160, UNKNOWN_BYTES = 1 << 20 };

/* ---- A group of one -------------------------------------------------------------------------- */
static void run_alone(const gr_task *task)
{
    const gr_call *call = task->call;
    void *result = call->partials ? call->partials[0] : task->user;
    size_t count = task->user_elements;
    if (count == 0 || !result) {
        return;
    }
    if (task->input) {
        memcpy(result, task->input, count * gr_dtype_bytes(call->dtype));
    }
    if (task->prescale != 1) {
        gr_scale(result, count, call->dtype, task->prescale);
    }
    if (task->reduces && call->op == GR_AVERAGE && task->shards > 1) {
        gr_scale_inverse(result, count, call->dtype, task->shards);
    }
    if (task->postscale != 1) {
        gr_scale(result, count, call->dtype, task->postscale);
    }
}

static gr_status start_alone(gr_comm *comm, const gr_task *tasks, int count, gr_op **op_out,
                             gr_diag *diag)
{
    gr_family *family = comm->family;
    if (tasks[0].call->done) {
        if (family->alone_count == GR_EXEC_OPS_MAX) {
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "%d callbacks wait to be called: call gr_comm_poll or gr_comm_drain",
                           GR_EXEC_OPS_MAX);
        }
        int at = (family->alone_first + family->alone_count++) % GR_EXEC_OPS_MAX;
        family->alone_done[at] =
            (gr_alone_done){.done = tasks[0].call->done, .arg = tasks[0].call->done_arg};
    }
    for (int i = 0; i < count; i++) {
        run_alone(&tasks[i]);
    }
    *op_out = family->alone;
    return GR_OK;
}

/* ---- In the terms of the executor ------------------------------------------------------------ */
static bool order_free(const gr_task *task)
{
    bool integer = task->call->dtype == GR_I8 || task->call->dtype == GR_U8 ||
                   task->call->dtype == GR_I16 || task->call->dtype == GR_I32 ||
                   task->call->dtype == GR_I64;
    return !task->reduces || (integer && task->call->op != GR_USER);
}

static gr_plan_shape shape_of(const gr_comm *comm, const gr_task *task)
{
    bool several_hosts = comm->topology && comm->topology->host_count > 1;
    return (gr_plan_shape){.coll = task->call->coll,
                           .rank = comm->rank,
                           .world_size = comm->size,
                           .shards = task->shards,
                           .root = task->call->root,
                           .out_of_place = task->out_of_place,
                           .uneven = task->uneven,
                           .topology = several_hosts ? comm->topology : NULL};
}

static int divisor_of(const gr_task *task)
{
    return task->reduces && task->call->op == GR_AVERAGE ? task->shards : 1;
}

/* Every rank must choose alike, whatever is its part: the shape for the choice is nobody's. */
static gr_choice choose(gr_comm *comm, const gr_task *task, const gr_plan_shape *shape)
{
    gr_coll coll = task->call->coll;
    if (coll == GR_COLL_SEND || coll == GR_COLL_RECV) {
        return (gr_choice){.algorithm = gr_algorithm_find(coll, "direct")};
    }
    gr_plan_shape any = *shape;
    any.rank = 0;
    any.root = 0;
    any.out_of_place = false;
    /* How much the others exchange with each other, nobody knows. */
    bool unknown = coll == GR_COLL_ALLTOALL && task->uneven;
    size_t size_bytes =
        unknown ? UNKNOWN_BYTES : task->all_elements * gr_dtype_bytes(task->call->dtype);
    bool exact = comm->selection.exact;
    bool ordered = task->reduces && task->call->op == GR_USER;
    comm->selection.exact = exact || ordered; /* a caller's function may need its operands' order */
    gr_choice choice =
        gr_select(&comm->selection, &any, task->call->dtype, size_bytes, order_free(task));
    comm->selection.exact = exact;
    return choice;
}

const char *gr_comm_algorithm_name(gr_comm *comm, const gr_call *call)
{
    gr_task task;
    gr_diag diag;
    if (comm->size == 1 || gr_task_init(&task, call, comm->rank, comm->size, &diag) != GR_OK ||
        gr_family_enter(comm->family, false) != GR_OK) {
        return "none";
    }
    if (gr_comm_lane_takes(comm, &task)) {
        gr_family_leave_calling(comm->family);
        return "lane";
    }
    gr_plan_shape shape = shape_of(comm, &task);
    gr_choice choice = choose(comm, &task, &shape);
    gr_family_leave_calling(comm->family);
    return choice.algorithm != NULL ? choice.algorithm->name : "none";
}

static gr_status find_program(gr_comm *comm, const gr_task *task, gr_exec_request *request,
                              gr_diag *diag)
{
    gr_plan_shape shape = shape_of(comm, task);
    gr_choice choice = choose(comm, task, &shape);
    if (!choice.algorithm) {
        return gr_fail(diag, GR_E_UNSUPPORTED, "no algorithm can do %s for %d ranks",
                       gr_coll_name(task->call->coll), comm->size);
    }
    request->desc.algorithm = (int)(choice.algorithm - gr_algorithms);
    request->segment_bytes = choice.segment_bytes;
    bool scale = request->divisor > 1 || request->postscale != 1;
    return gr_programs_get(&comm->programs, choice.algorithm, &shape, scale,
                           gr_exec_active(comm->family->exec) == 0, &request->program, diag);
}

/* That all ranks must agree on. */
static uint64_t count_of(const gr_task *task)
{
    if (task->uneven && task->call->coll == GR_COLL_ALLTOALL) {
        return 0;
    }
    return task->uneven ? task->all_elements : task->count;
}

/* All members, a store each: that costs less than to clear them all before. */
static void fill_desc(gr_op_desc *desc, const gr_task *task, const void *caller)
{
    const gr_call *call = task->call;
    desc->coll = call->coll;
    desc->dtype = call->dtype;
    desc->op = task->reduces ? call->op : GR_SUM;
    desc->algorithm = 0;
    desc->root = call->root;
    desc->tag = call->tag;
    desc->shards = task->shards;
    desc->count = count_of(task);
    desc->name = call->name;
    desc->site = call->site;
    desc->caller = caller;
}

/* All members but those that find_program sets. */
static void fill_request(gr_exec_request *request, const gr_comm *comm, gr_task *task,
                         const void *caller)
{
    const gr_call *call = task->call;
    request->group = &comm->group;
    request->user = call->partials ? call->partials : &task->user;
    request->input = &task->input;
    fill_desc(&request->desc, task, caller);
    request->total_count = task->all_elements;
    request->fixed_blocks = task->by_block;
    request->user_counts = task->user_counts;
    request->input_counts = task->input_counts;
    request->user_only = task->user_only;
    request->input_only = task->input_only;
    request->reduce = call->reduce;
    request->reduce_arg = call->reduce_arg;
    request->divisor = divisor_of(task);
    request->postscale = task->postscale;
    request->done = call->done;
    request->done_arg = call->done_arg;
}

_Static_assert(sizeof(gr_exec_request) == 192 || sizeof(void *) != 8,
               "a new member is to be set too");

/* ---- Starting -------------------------------------------------------------------------------- */
static bool uses(const gr_exec *exec, gr_range range, bool to_write, char what[WHAT_BYTES])
{
    return range.first < range.end &&
           gr_exec_uses(exec, (const void *)range.first, range.end - range.first, to_write, what,
                        WHAT_BYTES);
}

/* Memory that an unfinished operation uses must not be written, nor what it writes read. */
static gr_status check_free(const gr_comm *comm, const gr_task *task, gr_diag *diag)
{
    const gr_exec *exec = comm->family->exec;
    char what[WHAT_BYTES];
    bool used = uses(exec, task->writes, true, what) || uses(exec, task->reads, false, what);
    size_t bytes = task->count * gr_dtype_bytes(task->call->dtype);
    for (int i = 0; i < gr_task_partials(task, comm->rank, comm->size) && !used; i++) {
        uintptr_t at = (uintptr_t)task->call->partials[i];
        used = uses(exec, (gr_range){.first = at, .end = at + bytes}, true, what);
    }
    if (!used) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s on rank %d: a buffer is still used by %s; wait for that operation first",
                   gr_coll_name(task->call->coll), comm->rank, what);
}

static gr_status check_ready(const gr_comm *comm, const gr_task *tasks, int count, gr_diag *diag)
{
    const gr_exec *exec = comm->family->exec;
    const gr_diag *cause = gr_exec_diag(exec);
    if (cause->status != GR_OK) {
        return gr_fail_peer(diag, GR_E_COMM_BROKEN, cause->peer_rank,
                            "the communicator ended with an earlier failure: %.400s", cause->text);
    }
    for (int i = 0; i < count && gr_exec_active(exec) > 0; i++) {
        gr_status status = check_free(comm, &tasks[i], diag);
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

/* Under the lock. All or nothing. */
static gr_status begin(gr_comm *comm, gr_task *tasks, int count, const void *caller, gr_op **op_out,
                       gr_diag *diag)
{
    gr_family *family = comm->family;
    gr_status status = GR_OK;
    if (count == 1 && gr_comm_lane_takes(comm, &tasks[0])) {
        gr_op_desc desc;
        fill_desc(&desc, &tasks[0], caller);
        return gr_comm_lane_start(comm, &tasks[0], &desc, op_out, diag);
    }
    gr_exec_request requests[GR_CALLS_MAX];
    gr_temp *key = NULL;
    for (int i = 0; i < count && status == GR_OK; i++) {
        status = gr_task_prescale(comm, &tasks[i], &key, diag);
        if (status == GR_OK) {
            fill_request(&requests[i], comm, &tasks[i], caller);
            status = find_program(comm, &tasks[i], &requests[i], diag);
        }
    }
    if (status == GR_OK && key && requests[0].done) {
        key->done = requests[0].done;
        key->done_arg = requests[0].done_arg;
        requests[0].done = gr_temps_done;
        requests[0].done_arg = key;
    }
    if (status == GR_OK) {
        status = gr_exec_start(family->exec, requests, count, op_out, diag);
    }
    if (status == GR_OK) {
        gr_comm_lane_note(comm, tasks, count);
    }
    if (status != GR_OK && key) {
        gr_temps_give(family, key);
    } else if (key && !key->done) {
        key->op = *op_out;
        family->temp_ops++;
    }
    return status;
}

static gr_status check(const gr_comm *comm, const gr_call *calls, int count, gr_task *tasks,
                       gr_diag *diag)
{
    if (!calls || count < 1 || count > GR_CALLS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "rank %d: a group has 1 .. %d calls, not %d", comm->rank,
                       GR_CALLS_MAX, calls ? count : 0);
    }
    for (int i = 0; i < count; i++) {
        gr_status status = gr_task_init(&tasks[i], &calls[i], comm->rank, comm->size, diag);
        if (status != GR_OK) {
            return status;
        }
        if (i > 0 && calls[i].done) {
            return gr_fail(diag, GR_E_INVALID,
                           "rank %d: the callback of a group is that of its first call; call %d "
                           "must have none",
                           comm->rank, i);
        }
    }
    return count == 1 ? GR_OK : gr_tasks_apart(tasks, count, comm->rank, comm->size, diag);
}

/* Checks and starts, under the lock; keeps the sentence of a failure. */
static gr_status check_and_begin(gr_comm *comm, const gr_call *calls, int count, const void *caller,
                                 gr_op **op_out)
{
    gr_task tasks[GR_CALLS_MAX];
    gr_diag diag;
    gr_status status = check(comm, calls, count, tasks, &diag);
    if (status == GR_OK && comm->family->exec) {
        status = check_ready(comm, tasks, count, &diag);
    }
    if (status == GR_OK) {
        status = comm->size == 1 ? start_alone(comm, tasks, count, op_out, &diag)
                                 : begin(comm, tasks, count, caller, op_out, &diag);
    }
    return status == GR_OK ? GR_OK : gr_family_note(comm->family, &diag);
}

static gr_status release(gr_family *family, gr_op *op)
{
    if (family->temp_ops > 0) {
        gr_temps_give_op(family, op);
    }
    return gr_op_release(op);
}

/* ---- Waiting --------------------------------------------------------------------------------- */
/* Entered; leaves. Who waited for it would wait forever. */
static gr_status refuse_released(gr_family *family)
{
    gr_diag diag;
    (void)gr_fail(&diag, GR_E_INVALID,
                  "the operation is over and was waited for already: gr_wait, gr_test and "
                  "gr_wait_any release it");
    gr_status status = gr_family_note(family, &diag);
    gr_family_leave_calling(family);
    return status;
}

/* Entered; leaves. */
static gr_status wait_inside(gr_family *family, gr_op *op)
{
    for (;;) {
        if (gr_op_released(op)) {
            return refuse_released(family);
        }
        if (!gr_op_finished(op)) {
            gr_family_wait(family, op);
        }
        if (gr_op_finished(op)) {
            gr_status status = release(family, op);
            gr_family_leave_calling(family);
            return status;
        }
        gr_family_leave_calling(family);
        gr_status status = gr_family_enter(family, true);
        if (status != GR_OK) {
            return status;
        }
    }
}

gr_status gr_comm_run(gr_comm *comm, const gr_call *calls, int count, const void *caller)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    gr_status status = gr_family_enter(family, true);
    if (status != GR_OK) {
        return status;
    }
    gr_op *op = calls && count == 1 ? gr_comm_lane_repeat(comm, &calls[0], caller) : NULL;
    if (op) {
        gr_comm_lane_linger(comm, op);
        return wait_inside(family, op);
    }
    if (calls && count > 0 && calls[0].done) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_INVALID,
                      "gr_run on rank %d: `done` is set, but the call waits; use gr_start",
                      comm->rank);
        status = gr_family_note(family, &diag);
    } else {
        status = check_and_begin(comm, calls, count, caller, &op);
    }
    if (status != GR_OK || comm->size == 1) {
        gr_family_leave_calling(family);
        return status;
    }
    gr_comm_lane_linger(comm, op);
    return wait_inside(family, op);
}

gr_status gr_comm_start(gr_comm *comm, const gr_call *calls, int count, const void *caller,
                        gr_op **op_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    gr_status status = gr_family_enter(family, false);
    if (status != GR_OK) {
        return status;
    }
    bool calls_back = calls && count > 0 && calls[0].done;
    gr_op *op = NULL;
    if (calls_back == (op_out != NULL)) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_INVALID, "gr_start on rank %d: %s", comm->rank,
                      calls_back ? "there is a callback, so op_out must be NULL: the operation "
                                   "releases itself"
                                 : "op_out is NULL, and there is no callback either");
        status = gr_family_note(family, &diag);
    } else {
        status = check_and_begin(comm, calls, count, caller, &op);
    }
    if (status == GR_OK) {
        gr_comm_lane_look(comm, op);
    }
    if (status == GR_OK && op_out) {
        *op_out = op;
    }
    gr_family_leave(family);
    return status;
}

gr_status gr_test(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_family *family = gr_op_owner(op);
    if (!family) {
        return gr_op_release(op);
    }
    gr_status status = gr_family_enter(family, false);
    if (status != GR_OK) {
        return status;
    }
    if (gr_op_released(op)) {
        return refuse_released(family);
    }
    if (!gr_op_finished(op) && !gr_exec_progress(family->exec)) {
        (void)gr_exec_look(family->exec, false);
    }
    status = gr_op_finished(op) ? release(family, op) : GR_PENDING;
    gr_family_leave_calling(family);
    return status;
}

gr_status gr_wait(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_family *family = gr_op_owner(op);
    if (!family) {
        return gr_op_release(op);
    }
    gr_status status = gr_family_enter(family, true);
    return status == GR_OK ? wait_inside(family, op) : status;
}

/* The first of ops that is finished; -1: none. *family_out: whose they are, if anybody's. */
static int find_finished(gr_op **ops, int count, gr_family **family_out)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        gr_family *family = ops[i] ? gr_op_owner(ops[i]) : NULL;
        *family_out = family ? family : *family_out;
        if (ops[i] && found < 0 && gr_op_finished(ops[i])) {
            found = i;
        }
    }
    return found;
}

static bool any_released(gr_op *const *ops, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        any = any || (ops[i] && gr_op_released(ops[i]));
    }
    return any;
}

static gr_status take_one(gr_op **ops, int index, gr_family *family, int *index_out)
{
    gr_op *op = ops[index];
    ops[index] = NULL;
    *index_out = index;
    return family ? release(family, op) : gr_op_release(op);
}

gr_status gr_wait_any(gr_op **ops, int count, int *index_out)
{
    if (!index_out) {
        return GR_E_INVALID;
    }
    *index_out = -1;
    gr_family *family = NULL;
    int known = 0;
    for (int i = 0; ops && i < count; i++) {
        known += ops[i] != NULL;
        family = ops[i] && !family ? gr_op_owner(ops[i]) : family;
    }
    if (known == 0) {
        return GR_E_INVALID;
    }
    if (!family) { /* of a group of one: all are finished */
        return take_one(ops, find_finished(ops, count, &family), NULL, index_out);
    }
    for (;;) {
        gr_status status = gr_family_enter(family, true);
        if (status != GR_OK) {
            return status;
        }
        if (any_released(ops, count)) {
            return refuse_released(family);
        }
        int found = find_finished(ops, count, &family);
        if (found < 0) {
            gr_family_wait_any(family, ops, count);
            found = find_finished(ops, count, &family);
        }
        status = found >= 0 ? take_one(ops, found, family, index_out) : GR_PENDING;
        gr_family_leave_calling(family);
        if (found >= 0) {
            return status;
        }
    }
}

/* ---- Everything ------------------------------------------------------------------------------ */
/* Under the lock. */
static gr_status state_of(const gr_family *family)
{
    if (family->exec && gr_exec_diag(family->exec)->status != GR_OK) {
        return (gr_status)gr_exec_diag(family->exec)->status;
    }
    return family->exec && gr_exec_active(family->exec) > 0 ? GR_PENDING : GR_OK;
}

gr_status gr_comm_poll(gr_comm *comm)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    gr_status status = gr_family_enter(family, false);
    if (status != GR_OK) {
        return status;
    }
    if (family->exec && !gr_exec_progress(family->exec)) {
        (void)gr_exec_look(family->exec, false);
    }
    status = state_of(family);
    gr_family_leave_calling(family);
    return status;
}

gr_status gr_comm_drain(gr_comm *comm)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_family *family = comm->family;
    bool called;
    gr_status status;
    do { /* callbacks may start more */
        status = gr_family_enter(family, true);
        if (status != GR_OK) {
            return status;
        }
        if (family->exec) {
            gr_family_wait(family, NULL);
        }
        status = state_of(family);
        called = gr_family_leave_calling(family);
    } while (status == GR_PENDING || called);
    return status;
}

gr_status gr_run(gr_comm *comm, const gr_call *calls, int call_count)
{
    return gr_comm_run(comm, calls, call_count, __builtin_return_address(0));
}

gr_status gr_start(gr_comm *comm, const gr_call *calls, int call_count, gr_op **op_out)
{
    return gr_comm_start(comm, calls, call_count, __builtin_return_address(0), op_out);
}
