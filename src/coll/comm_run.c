/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/plan/cut.h"
#include "coll/plan/traits.h"
#include "coll/reduce/reduce.h"

#include <string.h>

enum { WHAT_BYTES = 160, UNKNOWN_BYTES = 1 << 20 };

/* ---- A group of one -------------------------------------------------------------------------- */
void gr_comm_run_self(const gr_coll_args *args)
{
    const gr_call *call = args->call;
    void *result = call->partials ? call->partials[0] : args->user;
    size_t count = args->user_elements;
    if (count == 0 || !result) {
        return;
    }
    if (args->input) {
        memcpy(result, args->input, count * gr_dtype_bytes(call->dtype));
    }
    if (args->prescale != 1) {
        gr_scale(result, count, call->dtype, args->prescale);
    }
    if (args->reduces && call->op == GR_AVERAGE && args->shards > 1) {
        gr_scale_inverse(result, count, call->dtype, args->shards);
    }
    if (args->postscale != 1) {
        gr_scale(result, count, call->dtype, args->postscale);
    }
}

bool gr_comm_runs_self(const gr_comm *comm, const gr_call *call)
{
    return comm->size == 1 && !gr_coll_traits_of[call->coll].message;
}

static gr_status start_self(gr_comm *comm, const gr_coll_args *all_args, int count, gr_op **op_out,
                            gr_diag *diag)
{
    gr_context *context = comm->context;
    if (all_args[0].call->done) {
        if (context->self_count == GR_EXEC_OPS_MAX) {
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "%d callbacks wait to be called: call gr_comm_poll or gr_comm_drain",
                           GR_EXEC_OPS_MAX);
        }
        int at = (context->self_first + context->self_count++) % GR_EXEC_OPS_MAX;
        context->self_done[at] =
            (gr_self_done){.done = all_args[0].call->done, .arg = all_args[0].call->done_arg};
    }
    for (int i = 0; i < count; i++) {
        gr_comm_run_self(&all_args[i]);
    }
    gr_context_raise_event(context);
    *op_out = context->self_op;
    return GR_OK;
}

/* ---- In the terms of the executor ------------------------------------------------------------ */
static bool order_free(const gr_coll_args *args)
{
    return !args->reduces || (gr_dtype_any_order(args->call->dtype) && args->call->op != GR_USER);
}

static gr_plan_shape shape_of(const gr_comm *comm, const gr_coll_args *args)
{
    bool several_hosts = comm->topology && comm->topology->host_count > 1;
    return (gr_plan_shape){.coll = args->call->coll,
                           .rank = comm->rank,
                           .world_size = comm->size,
                           .shards = args->shards,
                           .root = args->call->root,
                           .out_of_place = args->out_of_place,
                           .uneven = args->uneven,
                           .shared = comm->selection.shared,
                           .topology = several_hosts ? comm->topology : NULL};
}

static int divisor_of(const gr_coll_args *args)
{
    return args->reduces && args->call->op == GR_AVERAGE ? args->shards : 1;
}

/* Every rank must choose alike, whatever is its part: the shape for the choice is nobody's. */
static gr_choice choose(gr_comm *comm, const gr_coll_args *args, const gr_plan_shape *shape)
{
    gr_coll coll = args->call->coll;
    gr_plan_shape any = *shape;
    any.rank = 0;
    any.root = 0;
    any.out_of_place = false;
    /* How much the others exchange with each other, nobody knows. */
    bool unknown = coll == GR_COLL_ALLTOALL && args->uneven;
    size_t size_bytes =
        unknown ? UNKNOWN_BYTES : args->all_elements * gr_dtype_bytes(args->call->dtype);
    bool exact = comm->selection.exact;
    bool ordered = args->reduces && args->call->op == GR_USER;
    comm->selection.exact = exact || ordered; /* a caller's function may need its operands' order */
    gr_choice choice =
        gr_select(&comm->selection, &any, args->call->dtype, size_bytes, order_free(args));
    comm->selection.exact = exact;
    return choice;
}

const char *gr_comm_algorithm_name(gr_comm *comm, const gr_call *call)
{
    gr_coll_args args;
    gr_diag diag;
    if (comm->size == 1 || gr_coll_args_init(&args, call, comm->rank, comm->size, &diag) != GR_OK ||
        gr_context_enter(comm->context, false) != GR_OK) {
        return "none";
    }
    if (gr_coll_traits_of[call->coll].message) {
        gr_context_leave_calling(comm->context);
        return "direct";
    }
    gr_plan_shape shape = shape_of(comm, &args);
    gr_choice choice = choose(comm, &args, &shape);
    gr_context_leave_calling(comm->context);
    return choice.algorithm != NULL ? choice.algorithm->name : "none";
}

/* A power of two, so that there are few schedules; 0: every block may have something. */
static uint32_t lines_of(const gr_comm *comm, const gr_coll_args *args)
{
    size_t bytes = args->all_elements * gr_dtype_bytes(args->call->dtype);
    uint32_t lines = 1;
    while (lines * GR_CUT_LINE_BYTES < bytes && lines < (uint32_t)comm->size) {
        lines *= 2;
    }
    return args->uneven || args->by_block || lines >= (uint32_t)comm->size ? 0 : lines;
}

/* A plan, or what runs in shared memory. */
static gr_status find_program(gr_comm *comm, const gr_coll_args *args, bool keep,
                              gr_exec_request *request, gr_diag *diag)
{
    gr_plan_shape shape = shape_of(comm, args);
    gr_choice choice = choose(comm, args, &shape);
    if (!choice.algorithm) {
        return gr_fail(diag, GR_E_UNSUPPORTED, "no algorithm can do %s for %d ranks",
                       gr_coll_name(args->call->coll), comm->size);
    }
    request->desc.algorithm = (int)(choice.algorithm - gr_algorithms);
    request->segment_bytes = choice.segment_bytes;
    if (!choice.algorithm->plan) {
        return gr_comm_shm_prepare(comm, args, keep, request, diag);
    }
    shape.lines = lines_of(comm, args);
    gr_scaling scaling = {.contributions = request->prescale != 1,
                          .result = request->divisor > 1 || request->postscale != 1};
    return gr_schedules_get(&comm->schedules, choice.algorithm, &shape, scaling, &request->schedule,
                            diag);
}

/* That all ranks must agree on. */
static uint64_t count_of(const gr_coll_args *args)
{
    if (args->uneven && args->call->coll == GR_COLL_ALLTOALL) {
        return 0;
    }
    return args->uneven ? args->all_elements : args->count;
}

/* All members, a store each: that costs less than to clear them all before. */
static void fill_desc(gr_op_desc *desc, const gr_coll_args *args, const void *caller)
{
    const gr_call *call = args->call;
    desc->coll = call->coll;
    desc->dtype = call->dtype;
    desc->op = args->reduces ? call->op : GR_SUM;
    desc->algorithm = 0;
    desc->root = call->root;
    desc->tag = call->tag;
    desc->shards = args->shards;
    desc->count = count_of(args);
    desc->name = call->name;
    desc->site = call->site;
    desc->caller = caller;
}

/* All members but those that find_program sets. */
static void fill_request(gr_exec_request *request, const gr_comm *comm, gr_coll_args *args,
                         const void *caller)
{
    const gr_call *call = args->call;
    request->schedule = NULL;
    request->ops = NULL;
    request->state = NULL;
    request->group = &comm->group;
    request->memory = &args->memory;
    request->user = call->partials ? call->partials : &args->user;
    request->input = &args->input;
    fill_desc(&request->desc, args, caller);
    request->total_count = args->all_elements;
    request->fixed_blocks = args->by_block;
    request->user_counts = args->user_counts;
    request->input_counts = args->input_counts;
    request->user_only = args->user_only;
    request->input_only = args->input_only;
    request->reduce = call->reduce;
    request->reduce_arg = call->reduce_arg;
    request->prescale = args->prescale;
    request->divisor = divisor_of(args);
    request->postscale = args->postscale;
    request->done = call->done;
    request->source_out = call->source_out;
    request->done_arg = call->done_arg;
}

_Static_assert(sizeof(gr_exec_request) == 232 || sizeof(void *) != 8,
               "a new member is to be set too");

gr_status gr_comm_fill_request(gr_comm *comm, gr_coll_args *args, bool keep, const void *caller,
                               gr_exec_request *request, gr_diag *diag)
{
    fill_request(request, comm, args, caller);
    if (gr_coll_traits_of[args->call->coll].message) {
        return GR_OK;
    }
    return find_program(comm, args, keep, request, diag);
}

/* ---- Starting -------------------------------------------------------------------------------- */
static gr_status check_ready(const gr_comm *comm, const gr_coll_args *all_args, int count,
                             gr_diag *diag)
{
    const gr_exec *exec = comm->context->exec;
    const gr_diag *cause = gr_comm_diag(comm);
    if (comm->closed) {
        return gr_fail(diag, GR_E_INVALID,
                       "the communicator is being destroyed: its last callbacks cannot use it");
    }
    if (cause->status != GR_OK) {
        return gr_fail_peer(diag, GR_E_COMM_BROKEN, cause->peer_rank,
                            "the communicator ended with an earlier failure: %.400s", cause->text);
    }
    char what[WHAT_BYTES];
    for (int i = 0; i < count && gr_exec_active(exec) > 0; i++) {
        if (gr_exec_uses(exec, &all_args[i].memory, what, sizeof what)) {
            return gr_fail(
                diag, GR_E_INVALID,
                "%s on rank %d: a buffer is still used by %s; wait for that operation first",
                gr_coll_name(all_args[i].call->coll), comm->rank, what);
        }
    }
    return GR_OK;
}

/* Under the lock. All or nothing. */
static gr_status begin(gr_comm *comm, gr_coll_args *all_args, int count, const void *caller,
                       gr_op **op_out, gr_diag *diag)
{
    gr_context *context = comm->context;
    gr_status status = GR_OK;
    gr_exec_request requests[GR_CALLS_MAX];
    bool any_ops = false; /* over shared memory */
    int filled = 0;
    if (gr_exec_active(context->exec) == 0 && !context->persistent) {
        gr_schedules_trim(&comm->schedules);
    }
    do {
        status =
            gr_comm_fill_request(comm, &all_args[filled], false, caller, &requests[filled], diag);
        filled += status == GR_OK;
    } while (filled < count && status == GR_OK);
    if (status == GR_OK) {
        status = gr_exec_start(context->exec, requests, count, op_out, diag);
    }
    for (int i = 0; i < filled; i++) {
        any_ops = any_ops || requests[i].ops;
        if (status == GR_OK) {
            gr_comm_shm_note(comm, &requests[i]);
        } else {
            gr_comm_shm_drop(&requests[i]);
        }
    }
    if (status == GR_OK && count > 1 && any_ops) {
        (void)gr_exec_progress(context->exec); /* as gr_comm_shm_look of each */
    }
    return status;
}

/* The messages of the calls first, which may fail to begin; the rest is over at once then. */
static gr_status begin_alone(gr_comm *comm, const gr_coll_args *all_args, int count,
                             const void *caller, gr_op **op_out, gr_diag *diag)
{
    gr_coll_args messages[GR_CALLS_MAX];
    int message_count = 0;
    for (int i = 0; i < count; i++) {
        if (!gr_comm_runs_self(comm, all_args[i].call)) {
            messages[message_count++] = all_args[i];
        }
    }
    if (message_count == 0) {
        return start_self(comm, all_args, count, op_out, diag);
    }
    gr_call first = *messages[0].call; /* the callback is that of all */
    first.done = all_args[0].call->done;
    first.done_arg = all_args[0].call->done_arg;
    messages[0].call = &first;
    gr_status status = begin(comm, messages, message_count, caller, op_out, diag);
    for (int i = 0; status == GR_OK && i < count; i++) {
        if (gr_comm_runs_self(comm, all_args[i].call)) {
            gr_comm_run_self(&all_args[i]);
        }
    }
    return status;
}

gr_status gr_comm_check_memory(const gr_comm *comm, const gr_coll_args *args, gr_diag *diag)
{
    const gr_call *call = args->call;
    if (call->memory != GR_MEMORY_HOST) {
        return gr_fail(
            diag, GR_E_UNSUPPORTED,
            "%s on rank %d: buffers of kind %d are not supported; copy them to memory of "
            "the host (GR_MEMORY_HOST) first",
            gr_coll_name(call->coll), comm->rank, (int)call->memory);
    }
    bool fine = true;
    for (int i = 0; i < args->memory.partial_count + 2 && fine; i++) {
        gr_range range = gr_call_memory_range(&args->memory, i);
        fine = gr_host_memory_has(&comm->context->host_memory, (const void *)range.first,
                                  range.end - range.first);
    }
    return fine ? GR_OK
                : gr_fail(diag, GR_E_UNSUPPORTED,
                          "%s on rank %d: a buffer is memory that this process cannot read: of a "
                          "device, or not mapped; copy device memory to the host first",
                          gr_coll_name(call->coll), comm->rank);
}

gr_status gr_comm_check_ready(const gr_comm *comm, const gr_coll_args *args, gr_diag *diag)
{
    gr_status status = gr_comm_check_memory(comm, args, diag);
    return status == GR_OK ? check_ready(comm, args, 1, diag) : status;
}

static gr_status check(const gr_comm *comm, const gr_call *calls, int count, gr_coll_args *all_args,
                       gr_diag *diag)
{
    if (!calls || count < 1 || count > GR_CALLS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "rank %d: a group has 1 .. %d calls, not %d", comm->rank,
                       GR_CALLS_MAX, calls ? count : 0);
    }
    for (int i = 0; i < count; i++) {
        gr_status status = gr_coll_args_init(&all_args[i], &calls[i], comm->rank, comm->size, diag);
        if (status == GR_OK) {
            status = gr_comm_check_memory(comm, &all_args[i], diag);
        }
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
    return count == 1 ? GR_OK : gr_coll_args_apart(all_args, count, comm->rank, comm->size, diag);
}

/* A blocking message of the rank to itself, which no other thread can help. */
static gr_status check_own_message(const gr_comm *comm, const gr_coll_args *args, gr_diag *diag)
{
    const gr_call *call = args->call;
    if (!gr_coll_traits_of[call->coll].message || call->root != comm->rank ||
        gr_context_may_start(comm->context)) {
        return GR_OK;
    }
    gr_op_desc desc;
    fill_desc(&desc, args, NULL);
    if (!gr_exec_would_wait_for_itself(comm->context->exec, &comm->group, &desc)) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s on rank %d is from this rank to itself, and would wait for ever: %s",
                   gr_coll_name(call->coll), comm->rank,
                   call->coll == GR_COLL_SEND
                       ? "a message of this size is not kept; start the receive first"
                       : "no such message was sent");
}

/* Checks and starts, under the lock; keeps the sentence of a failure. */
static gr_status check_and_begin(gr_comm *comm, const gr_call *calls, int count, bool waits,
                                 const void *caller, gr_op **op_out)
{
    gr_coll_args all_args[GR_CALLS_MAX];
    gr_diag diag;
    gr_status status = check(comm, calls, count, all_args, &diag);
    if (status == GR_OK) {
        status = check_ready(comm, all_args, count, &diag);
    }
    if (status == GR_OK && waits && count == 1) {
        status = check_own_message(comm, &all_args[0], &diag);
    }
    if (status == GR_OK) {
        status = comm->size == 1 ? begin_alone(comm, all_args, count, caller, op_out, &diag)
                                 : begin(comm, all_args, count, caller, op_out, &diag);
    }
    return status == GR_OK ? GR_OK : gr_context_note(comm->context, &diag);
}

/* ---- Waiting --------------------------------------------------------------------------------- */
/* Entered; leaves. Who waited for it would wait forever. */
static gr_status refuse_released(gr_context *context)
{
    gr_diag diag;
    (void)gr_fail(&diag, GR_E_INVALID,
                  "the operation is over and was waited for already: gr_wait, gr_test and "
                  "gr_wait_any release it");
    gr_status status = gr_context_note(context, &diag);
    gr_context_leave_calling(context);
    return status;
}

static bool is_past(int64_t deadline_us)
{
    gr_clock clock = gr_clock_real();
    return deadline_us != GR_NEVER && gr_clock_now_us(&clock) >= deadline_us;
}

/* Entered; leaves. */
static gr_status wait_inside(gr_context *context, gr_op *op, int64_t deadline_us)
{
    for (;;) {
        if (gr_op_released(op)) {
            return refuse_released(context);
        }
        if (!gr_op_finished(op)) {
            gr_context_wait(context, &op, 1, deadline_us);
        }
        if (gr_op_finished(op)) {
            gr_status status = gr_op_release(op);
            gr_context_leave_calling(context);
            return status;
        }
        gr_context_leave_calling(context);
        if (is_past(deadline_us)) {
            return GR_E_TIMEOUT;
        }
        gr_status status = gr_context_enter(context, true);
        if (status != GR_OK) {
            return status;
        }
    }
}

/* ---- Messages that need no operation --------------------------------------------------------- */
static const void *buffer_of(const gr_call *call)
{
    return call->coll == GR_COLL_SEND ? call->in : call->out;
}

/* Nothing is to be said against it but by who moves it, and its buffer can be used. */
static bool is_plain_message(gr_comm *comm, const gr_call *call)
{
    const void *buffer = buffer_of(call);
    return (call->coll == GR_COLL_SEND || call->coll == GR_COLL_RECV) &&
           gr_coll_is_plain(call, comm->size) && buffer &&
           gr_host_memory_has(&comm->context->host_memory, buffer,
                              call->count * gr_dtype_bytes(call->dtype));
}

static bool overlap(const gr_call *a, const gr_call *b)
{
    uintptr_t at = (uintptr_t)buffer_of(a), other = (uintptr_t)buffer_of(b);
    return at < other + b->count * gr_dtype_bytes(b->dtype) &&
           other < at + a->count * gr_dtype_bytes(a->dtype);
}

static bool move_short(gr_comm *comm, const gr_call *call, const void *caller)
{
    const gr_op_desc desc = {.coll = call->coll,
                             .dtype = call->dtype,
                             .op = GR_SUM,
                             .root = call->root,
                             .tag = call->tag,
                             .shards = comm->size,
                             .count = call->count,
                             .name = call->name,
                             .site = call->site,
                             .caller = caller};
    gr_exec *exec = comm->context->exec;
    bool moved = call->coll == GR_COLL_SEND
                     ? gr_exec_send_short(exec, &comm->group, &desc, call->in)
                     : gr_exec_recv_short(exec, &comm->group, &desc, call->out);
    if (moved) {
        gr_comm_shm_note_plan(comm);
    }
    return moved;
}

/* A send, a receive, or one of each of a blocking call, the send first: *calls_io and *count_io are
 * what is left, and is to be started. */
static void run_messages(gr_comm *comm, const gr_call **calls_io, int *count_io, const void *caller)
{
    const gr_call *calls = *calls_io;
    int count = *count_io;
    if (count > 2 || comm->size == 1 || gr_comm_diag(comm)->status != GR_OK ||
        !is_plain_message(comm, &calls[0]) ||
        (count == 2 && (calls[0].coll == calls[1].coll || !is_plain_message(comm, &calls[1]) ||
                        overlap(&calls[0], &calls[1])))) {
        return;
    }
    int first = count == 2 && calls[1].coll == GR_COLL_SEND;
    if (!move_short(comm, &calls[first], caller)) {
        return;
    }
    *count_io = 0;
    if (count == 2 && !move_short(comm, &calls[1 - first], caller)) {
        *calls_io = &calls[1 - first];
        *count_io = 1;
    }
}

gr_status gr_comm_run(gr_comm *comm, const gr_call *calls, int count, const void *caller)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, true);
    if (status != GR_OK) {
        return status;
    }
    gr_op *op = NULL;
    if (calls && count == 1 && gr_comm_shm_repeat(comm, &calls[0], caller, &op)) {
        if (!op) {
            gr_context_leave_calling(context);
            return GR_OK;
        }
        gr_comm_shm_spin(comm, op);
        return wait_inside(context, op, GR_NEVER);
    }
    if (calls && count > 0) {
        run_messages(comm, &calls, &count, caller);
        if (count == 0) {
            gr_context_leave_calling(context);
            return GR_OK;
        }
    }
    if (calls && count > 0 && calls[0].done) {
        gr_diag diag;
        (void)gr_fail(&diag, GR_E_INVALID,
                      "gr_run on rank %d: `done` is set, but the call waits; use gr_start",
                      comm->rank);
        status = gr_context_note(context, &diag);
    } else {
        status = check_and_begin(comm, calls, count, true, caller, &op);
    }
    if (status != GR_OK || op == context->self_op) {
        gr_context_leave_calling(context);
        return status;
    }
    gr_comm_shm_spin(comm, op);
    return wait_inside(context, op, GR_NEVER);
}

gr_status gr_comm_start(gr_comm *comm, const gr_call *calls, int count, const void *caller,
                        gr_op **op_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
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
        status = gr_context_note(context, &diag);
    } else {
        status = check_and_begin(comm, calls, count, false, caller, &op);
    }
    if (status == GR_OK) {
        gr_comm_shm_look(comm, op);
    }
    if (status == GR_OK && calls_back) {
        gr_context_note_callback(context);
    }
    if (status == GR_OK && op_out) {
        *op_out = op;
    }
    gr_context_leave(context);
    return status;
}

gr_status gr_test(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_context *context = gr_op_owner(op);
    if (!context) {
        return gr_op_release(op);
    }
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    if (gr_op_released(op)) {
        return refuse_released(context);
    }
    if (!gr_op_finished(op) && !gr_exec_progress(context->exec)) {
        (void)gr_exec_poll_timers(context->exec, false);
    }
    status = gr_op_finished(op) ? gr_op_release(op) : GR_PENDING;
    gr_context_leave_calling(context);
    return status;
}

/* Entered; leaves. */
static gr_status wait_for(gr_context *context, gr_op *op, int64_t deadline_us)
{
    const gr_comm *comm = gr_op_persistent_comm(op);
    if (comm && !gr_op_released(op)) {
        gr_comm_shm_spin(comm, gr_op_running(op));
    }
    return wait_inside(context, op, deadline_us);
}

gr_status gr_wait(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_context *context = gr_op_owner(op);
    if (!context) {
        return gr_op_release(op);
    }
    gr_status status = gr_context_enter(context, true);
    return status == GR_OK ? wait_for(context, op, GR_NEVER) : status;
}

gr_status gr_wait_for(gr_op *op, int64_t timeout_us)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_context *context = gr_op_owner(op);
    if (!context) {
        return gr_op_release(op);
    }
    gr_clock clock = gr_clock_real();
    int64_t deadline_us = timeout_us < 0    ? GR_NEVER
                          : timeout_us == 0 ? gr_clock_now_us(&clock)
                                            : gr_clock_deadline_us(&clock, timeout_us);
    gr_status status = gr_context_enter(context, true);
    return status == GR_OK ? wait_for(context, op, deadline_us) : status;
}

/* The first of ops that is finished; -1: none. *context_out: whose they are, if anybody's. */
static int find_finished(gr_op **ops, int count, gr_context **context_out)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        gr_context *context = ops[i] ? gr_op_owner(ops[i]) : NULL;
        *context_out = context ? context : *context_out;
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

static gr_status take_one(gr_op **ops, int index, int *index_out)
{
    gr_op *op = ops[index];
    ops[index] = NULL;
    *index_out = index;
    return gr_op_release(op);
}

gr_status gr_wait_any(gr_op **ops, int count, int *index_out)
{
    if (!index_out) {
        return GR_E_INVALID;
    }
    *index_out = -1;
    gr_context *context = NULL;
    int known = 0;
    for (int i = 0; ops && i < count; i++) {
        known += ops[i] != NULL;
        context = ops[i] && !context ? gr_op_owner(ops[i]) : context;
    }
    if (known == 0) {
        return GR_E_INVALID;
    }
    if (!context) { /* of a group of one: finished; or of a communicator that was destroyed */
        int found = find_finished(ops, count, &context);
        return found >= 0 ? take_one(ops, found, index_out) : GR_E_INVALID;
    }
    for (;;) {
        gr_status status = gr_context_enter(context, true);
        if (status != GR_OK) {
            return status;
        }
        if (any_released(ops, count)) {
            return refuse_released(context);
        }
        int found = find_finished(ops, count, &context);
        if (found < 0) {
            gr_context_wait(context, ops, count, GR_NEVER);
            found = find_finished(ops, count, &context);
        }
        status = found >= 0 ? take_one(ops, found, index_out) : GR_PENDING;
        gr_context_leave_calling(context);
        if (found >= 0) {
            return status;
        }
    }
}

/* ---- Everything ------------------------------------------------------------------------------ */
/* Under the lock. */
static gr_status state_of(const gr_comm *comm)
{
    const gr_context *context = comm->context;
    const gr_diag *cause = gr_comm_diag(comm);
    return cause->status != GR_OK              ? (gr_status)cause->status
           : gr_exec_active(context->exec) > 0 ? GR_PENDING
                                               : GR_OK;
}

gr_status gr_comm_poll(gr_comm *comm)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_exec_look(context->exec);
    status = state_of(comm);
    gr_context_leave_calling(context);
    return status;
}

gr_status gr_comm_drain(gr_comm *comm)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    bool called;
    gr_status status;
    do { /* callbacks may start more */
        status = gr_context_enter(context, true);
        if (status != GR_OK) {
            return status;
        }
        gr_context_wait(context, NULL, 0, GR_NEVER);
        while (context->deliverer != 0 && state_of(comm) != GR_PENDING) {
            gr_context_follow(context, GR_NEVER);
        }
        status = state_of(comm);
        called = gr_context_leave_calling(context);
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
