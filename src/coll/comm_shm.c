/* SPDX-License-Identifier: Apache-2.0 */

/* Collectives in shared memory (shm_coll.h) as operations of the executor: they take a number,
 * stand in the record, and end like all others when a rank fails. */

#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/shm/shm_coll.h"
#include "link/shared.h"

#include <stdlib.h>

enum { REMEMBERED = 4 }; /* kinds of calls that may be repeated */

typedef struct shm_run shm_run;
struct shm_run {
    gr_comm *comm;
    gr_shm_coll_op *shm_op;
    gr_op *op;
    int arrived;    /* ranks before this one have come, and the executor knows */
    uint32_t plans; /* gr_comm_shm.plans when it started */
    gr_call_memory memory;
    bool kept;            /* belongs to a persistent operation */
    bool repeats;         /* if it ends well it keeps shm_op, to be started as it is: see
                     gr_comm_shm_repeat */
    gr_op_desc desc;      /* of one that repeats */
    const void *in, *out; /* as the caller said them */
    bool moves;           /* may be repeated in place in another buffer */
    uint64_t fingerprint;
    double prescale, postscale; /* as the caller said them */
    shm_run *next;
};

struct gr_comm_shm {
    gr_shm_colls *shms;
    const gr_comm *comms[GR_SHARED_COLLS]; /* by number; NULL: none has it */
    const shm_run *last;                   /* what was started last */
    /* Groups of operations that ran as plans, and how many of them had when the last operation over
     * shared memory to end was started. */
    uint32_t plans, plans_sure;
    shm_run *free_runs; /* what ended last stands first */
    shm_run runs[GR_EXEC_OPS_MAX];
};

static void compare_all(void *arg);

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_comm_shm_open(gr_comm *comm, int number, gr_shm_meeting meeting, gr_diag *diag)
{
    gr_context *context = comm->context;
    bool no_memory = false;
    if (!context->mesh || comm->size < 2) {
        return GR_OK;
    }
    if (!context->shms) {
        gr_comm_shm *all = calloc(1, sizeof *all);
        gr_shm_colls *shms = all ? gr_shm_colls_create(context->mesh) : NULL;
        if (!shms) {
            free(all);
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "no memory for the shared-memory operations of a communicator");
        }
        all->shms = shms;
        for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
            all->runs[i].next = all->free_runs;
            all->free_runs = &all->runs[i];
        }
        context->shms = all;
        gr_exec_set_compare(context->exec, compare_all, all);
    }
    comm->shm = gr_shm_coll_open(context->shms->shms, number, comm->rank, comm->size, comm->world,
                                 meeting, &no_memory);
    if (comm->shm) {
        context->shms->comms[number] = comm;
    }
    comm->selection.shared = comm->shm != NULL;
    return no_memory ? gr_fail(diag, GR_E_NO_MEMORY,
                               "no memory for the shared-memory operations of a communicator")
                     : GR_OK;
}

static void let_go(shm_run *run)
{
    if (run->shm_op) {
        gr_shm_coll_release(run->shm_op);
        run->shm_op = NULL;
    }
}

void gr_comm_shm_forget(const gr_comm *comm)
{
    gr_comm_shm *all = comm->context->shms;
    for (shm_run *run = all ? all->free_runs : NULL; run; run = run->next) {
        if (run->comm == comm) {
            let_go(run);
            run->repeats = false;
            all->last = all->last == run ? NULL : all->last;
        }
    }
}

void gr_comm_shm_close(gr_comm *comm)
{
    if (!comm->shm) {
        return;
    }
    gr_comm_shm *all = comm->context->shms;
    gr_comm_shm_forget(comm);
    all->last = NULL;
    for (int i = 0; i < GR_SHARED_COLLS; i++) {
        all->comms[i] = all->comms[i] == comm ? NULL : all->comms[i];
    }
    gr_shm_coll_close(comm->shm);
    comm->shm = NULL;
}

void gr_comm_shm_destroy(gr_context *context)
{
    if (context->shms) {
        gr_exec_set_compare(context->exec, NULL, NULL);
        gr_shm_colls_destroy(context->shms->shms);
        free(context->shms);
        context->shms = NULL;
    }
}

/* ---- The operation's ops --------------------------------------------------------------------- */
static void set_last(shm_run *run, gr_op *op)
{
    gr_comm_shm *all = run->comm->context->shms;
    run->op = op;
    run->arrived = 0;
    run->plans = all->plans;
    all->last = run;
}

static void begin(void *state, gr_op *op)
{
    shm_run *run = state;
    set_last(run, op);
    run->fingerprint = gr_op_fingerprint(op);
    gr_shm_coll_post(run->shm_op, gr_op_number(op), run->fingerprint);
}

static bool compare_calls(const gr_comm *comm)
{
    uint32_t number;
    uint64_t fingerprint;
    int peer;
    if (!gr_shm_coll_mismatch(comm->shm, &number, &fingerprint, &peer)) {
        return false;
    }
    gr_exec_mismatch(comm->context->exec, comm->group.id, number, fingerprint, comm->world[peer]);
    return true;
}

static void compare_all(void *arg)
{
    const gr_comm_shm *all = arg;
    for (int i = 0; i < GR_SHARED_COLLS; i++) {
        if (all->comms[i] && !atomic_load(&all->comms[i]->outcome.ended) &&
            compare_calls(all->comms[i])) {
            return;
        }
    }
}

/* Both sides say what they called, and then the executor fails. */
static gr_status report_mismatch(const shm_run *run, int peer)
{
    const gr_comm *comm = run->comm;
    if (!compare_calls(comm)) {
        gr_exec_mismatch(comm->context->exec, comm->group.id, gr_op_number(run->op),
                         run->fingerprint, comm->world[peer]);
    }
    return GR_PENDING;
}

/* A rank that died or left while nothing needed it is not told of again. */
static gr_status check_late(const shm_run *run, gr_diag *diag)
{
    int late = gr_shm_coll_late(run->shm_op);
    int peer = late >= 0 ? run->comm->world[late] : -1;
    const gr_link *link = late >= 0 ? gr_mesh_link(run->comm->context->mesh, peer) : NULL;
    const gr_diag *cause = link ? gr_link_diag(link) : NULL;
    /* What it did before its end counts: hence the second look. */
    if (!cause || cause->status == GR_OK || !gr_shm_coll_needs(run->shm_op, late)) {
        return GR_PENDING;
    }
    if (gr_shm_coll_called_other(run->shm_op, late)) {
        return report_mismatch(run, late);
    }
    if (gr_status_scope((gr_status)cause->status) >= GR_SCOPE_COMM) {
        *diag = *cause;
        return (gr_status)cause->status;
    }
    return gr_fail_peer(diag, (gr_status)cause->status, peer, "%.300s; an operation needs it",
                        cause->text);
}

static void end(shm_run *run, bool fine)
{
    gr_comm_shm *all = run->comm->context->shms;
    all->plans_sure = run->plans;
    run->repeats = run->repeats && fine;
    if (!fine) {
        all->last = NULL;
    }
    if (!fine || (!run->kept && !run->repeats)) {
        let_go(run); /* of one that failed: nobody may write into its buffers any more */
    }
    if (!run->kept) {
        run->next = all->free_runs;
        all->free_runs = run;
    }
}

static gr_status progress(void *state, bool *moved_out, gr_diag *diag)
{
    shm_run *run = state;
    const gr_comm *comm = run->comm;
    gr_status status = gr_shm_coll_move(run->shm_op);
    *moved_out = gr_shm_coll_moved(run->shm_op);
    /* It looks for them in their order: only the first was waited for, the others may have
     * been there long since. */
    bool awaited = true;
    for (int come = gr_shm_coll_arrived(run->shm_op); run->arrived < come; run->arrived++) {
        if (run->arrived != comm->rank) {
            gr_op_arrived(run->op, comm->world[run->arrived], awaited);
            awaited = false;
        }
    }
    if (status == GR_E_MISMATCH) {
        return report_mismatch(run, gr_shm_coll_late(run->shm_op));
    }
    if (status == GR_E_PROTOCOL) {
        int peer = comm->world[gr_shm_coll_late(run->shm_op)];
        return gr_fail_peer(diag, status, peer,
                            "a buffer of rank %d lies outside the memory that it shares, or was "
                            "freed while the operation ran",
                            peer);
    }
    /* All have come to this operation, so that all have called those before it: a root that did not
     * look at them then does so now, and the executor fails instead. */
    if (status == GR_OK && compare_calls(comm)) {
        return GR_PENDING;
    }
    if (status == GR_OK) {
        end(run, true);
    }
    return status == GR_PENDING && !*moved_out ? check_late(run, diag) : status;
}

static void cancel(void *state)
{
    end(state, false);
}

static bool waits_for(const void *state, int peer)
{
    const shm_run *run = state;
    int rank = 0;
    while (rank < run->comm->size && run->comm->world[rank] != peer) {
        rank++;
    }
    return rank < run->comm->size && gr_shm_coll_needs(run->shm_op, rank);
}

static bool is_complete(const void *state)
{
    const shm_run *run = state;
    return gr_shm_coll_is_complete(run->shm_op);
}

static const gr_op_ops shm_ops = {.begin = begin,
                                  .progress = progress,
                                  .cancel = cancel,
                                  .waits_for = waits_for,
                                  .is_complete = is_complete};

/* ---- Operations ------------------------------------------------------------------------------ */
/* One contribution, and nothing that must be looked at again. */
static bool can_repeat(const gr_comm *comm, const gr_coll_args *args)
{
    const gr_call *call = args->call;
    return !call->partials && !args->uneven && !call->name && !call->done && !call->reduce &&
           args->shards == comm->size && (args->count > 0 || call->coll == GR_COLL_BARRIER);
}

/* Where the whole buffer would begin of which `at` is block `only` (-1: all). */
static void *whole_of(const gr_coll_args *args, const void *at, int only)
{
    size_t before = 0;
    for (int block = 0; block < only; block++) {
        before += args->user_counts ? args->user_counts[block] : args->count;
    }
    return (void *)((uintptr_t)at - before * gr_dtype_bytes(args->call->dtype));
}

/* `input`: to be borrowed, for the first contribution. */
static gr_shm_coll_request request_of(const gr_coll_args *args, const void **input)
{
    const gr_call *call = args->call;
    void *out = whole_of(args, args->user, args->user_only);
    *input = args->input ? whole_of(args, args->input, args->input_only) : out;
    return (gr_shm_coll_request){
        .coll = call->coll,
        .dtype = call->dtype,
        .op = args->reduces ? call->op : GR_SUM,
        .count = args->count,
        .counts = args->uneven ? args->user_counts : NULL,
        .root = call->root,
        .shards = args->shards,
        .inputs = call->partials ? (const void *const *)call->partials : input,
        .out = call->partials ? call->partials[0] : out,
        .divisor = args->reduces && call->op == GR_AVERAGE ? args->shards : 1,
        .prescale = args->prescale,
        .postscale = args->postscale,
        .user = call->reduce,
        .user_arg = call->reduce_arg};
}

/* A free one: not what may soon be repeated. */
static shm_run *take_run(gr_comm_shm *all)
{
    shm_run **at = &all->free_runs;
    for (int i = 1; i < REMEMBERED && *at && (*at)->next; i++) {
        at = &(*at)->next;
    }
    shm_run *run = *at;
    if (run) {
        *at = run->next;
        let_go(run);
    }
    return run;
}

gr_status gr_comm_shm_prepare(gr_comm *comm, const gr_coll_args *args, bool keep,
                              gr_exec_request *request, gr_diag *diag)
{
    const void *input;
    gr_shm_coll_request wanted = request_of(args, &input);
    gr_shm_coll_op *shm_op = NULL;
    shm_run *run = keep ? calloc(1, sizeof *run) : take_run(comm->context->shms);
    gr_status status = !run   ? GR_E_NO_MEMORY
                       : keep ? gr_shm_coll_keep(comm->shm, &wanted, &shm_op)
                              : gr_shm_coll_start(comm->shm, &wanted, &shm_op);
    request->ops = &shm_ops;
    request->state = run;
    if (run) {
        const gr_call *call = args->call;
        *run = (shm_run){.comm = comm,
                         .shm_op = shm_op,
                         .kept = keep,
                         .memory = args->memory,
                         .repeats = !keep && can_repeat(comm, args),
                         .desc = request->desc,
                         .in = call->in,
                         .out = call->out,
                         .moves = !call->in && args->user_only < 0 && args->input_only < 0,
                         .prescale = call->prescale,
                         .postscale = call->postscale};
    }
    if (status != GR_OK) {
        gr_comm_shm_drop(request);
        return gr_fail(diag, status,
                       "no memory for %s, or too many operations in flight: at most %d may be "
                       "unfinished; call gr_wait on the older ones",
                       gr_coll_name(args->call->coll), GR_EXEC_OPS_MAX);
    }
    return GR_OK;
}

void gr_comm_shm_drop(const gr_exec_request *request)
{
    shm_run *run = request->ops == &shm_ops ? request->state : NULL;
    if (run) {
        gr_comm_shm *all = run->comm->context->shms;
        all->last = all->last == run ? NULL : all->last;
        let_go(run);
        run->repeats = false;
        run->next = all->free_runs;
        if (run->kept) {
            free(run);
        } else {
            all->free_runs = run;
        }
    }
}

/* ---- Repeated calls -------------------------------------------------------------------------- */
static bool is_like(const gr_comm *comm, const gr_call *call, const shm_run *run)
{
    const gr_op_desc *desc = &run->desc;
    bool same = call->coll == desc->coll && call->dtype == desc->dtype && call->op == desc->op &&
                call->count == desc->count && call->root == desc->root && call->tag == desc->tag &&
                call->prescale == run->prescale && call->postscale == run->postscale;
    bool placed = call->in == run->in && (call->out == run->out || (run->moves && call->out));
    return same && placed && run->repeats && run->comm == comm && call->memory == GR_MEMORY_HOST &&
           !call->counts && !call->recv_counts && !call->reduce && call->shards == 0 &&
           !call->partials && !call->name && !call->done;
}

/* Posted and recorded. Most often it is over after a moment, and was never under way for anybody
 * else. */
static gr_op *run_short(gr_comm *comm, shm_run *run, gr_exec_short *call)
{
    gr_context *context = comm->context;
    gr_comm_shm *all = context->shms;
    bool waited;
    if (!context->timeline && gr_shm_coll_try(run->shm_op, &waited)) {
        gr_exec_short_end(context->exec, call, gr_shm_coll_awaited(run->shm_op), waited);
        run->next = all->free_runs;
        all->free_runs = run;
        all->last = NULL;
        if (gr_shm_coll_differs(comm->shm)) {
            (void)compare_calls(comm);
        }
        return NULL;
    }
    gr_op *op = gr_exec_short_go_on(context->exec, call, &shm_ops, run, &run->memory);
    set_last(run, op);
    return op;
}

/* The buffer of the next time; false: it is memory that this process cannot read, and the call is
 * to be refused. */
static bool move_to(shm_run *run, void *buffer)
{
    gr_range *used = run->memory.writes.end ? &run->memory.writes : &run->memory.reads;
    size_t size_bytes = used->end - used->first;
    if (used->first != (uintptr_t)buffer) {
        if (!gr_host_memory_has(&run->comm->context->host_memory, buffer, size_bytes)) {
            return false;
        }
        used->end = (uintptr_t)buffer + size_bytes;
        used->first = (uintptr_t)buffer;
        gr_shm_coll_use(run->shm_op, buffer);
    }
    return true;
}

bool gr_comm_shm_repeat(gr_comm *comm, const gr_call *call, const void *caller, gr_op **op_out)
{
    gr_comm_shm *all = comm->context->shms;
    gr_exec *exec = comm->context->exec;
    if (!comm->shm || all->plans != all->plans_sure || !gr_exec_may_repeat(exec, &comm->group)) {
        return false;
    }
    shm_run **at = &all->free_runs;
    for (int i = 1; *at && !is_like(comm, call, *at); i++) {
        if (i == REMEMBERED) {
            return false;
        }
        at = &(*at)->next;
    }
    shm_run *run = *at;
    if (!run || (run->moves && !move_to(run, call->out))) {
        return false;
    }
    *at = run->next;
    run->desc.site = call->site;
    run->desc.caller = caller;
    gr_exec_short begun = {.group = &comm->group,
                           .desc = &run->desc,
                           .fingerprint = run->fingerprint,
                           .number = gr_exec_take_number(exec, &comm->group)};
    gr_shm_coll_post(run->shm_op, begun.number, run->fingerprint);
    gr_exec_short_record(exec, &begun);
    *op_out = run_short(comm, run, &begun);
    return true;
}

/* Returns true if it was started last, over shared memory, and behind nothing that a peer may have
 * sent in a plan that expects nothing here (two roots, say), which nobody would look at then. */
static bool is_plain(const gr_comm *comm, const gr_op *op)
{
    const gr_comm_shm *all = comm->context->shms;
    return all->last && all->last->op == op && all->plans == all->plans_sure;
}

void gr_comm_shm_look(const gr_comm *comm, gr_op *op)
{
    const gr_comm_shm *all = comm->context->shms;
    if (!comm->shm || !all->last || all->last->op != op) {
        return;
    }
    if (all->plans != all->plans_sure) {
        (void)gr_exec_progress(comm->context->exec);
    } else if (gr_shm_coll_ready(all->last->shm_op)) {
        (void)gr_exec_progress_custom(op);
    }
}

void gr_comm_shm_note(const gr_comm *comm, const gr_exec_request *request)
{
    if (!request->ops) {
        gr_comm_shm_note_plan(comm);
    }
}

void gr_comm_shm_note_plan(const gr_comm *comm)
{
    gr_comm_shm *all = comm->context->shms;
    if (all) {
        all->last = NULL;
        all->plans++;
    }
}

void gr_comm_shm_spin(const gr_comm *comm, gr_op *op)
{
    const gr_comm_shm *all = comm->context->shms;
    if (!comm->shm || !is_plain(comm, op) || gr_exec_active(comm->context->exec) > 1) {
        gr_comm_shm_look(comm, op);
        return;
    }
    while (!gr_op_finished(op) && all->last && gr_shm_coll_spin(all->last->shm_op)) {
        (void)gr_exec_progress_custom(op);
    }
}
