/* SPDX-License-Identifier: Apache-2.0 */

/* The lane (lane.h) as an operation of the executor: it takes a number, stands in the record, and
 * ends like all others when a rank fails. */

#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/lane.h"

#include <stdlib.h>

enum { REMEMBERED = 4 }; /* kinds of calls that may be repeated */

typedef struct lane_run lane_run;
struct lane_run {
    gr_comm *comm;
    gr_lane_op *lane_op;
    gr_op *op;
    int arrived;    /* ranks before this one have come, and the executor knows */
    uint32_t plans; /* gr_comm_lanes.plans when it started */
    bool partials;
    bool repeats; /* if it ends well it keeps lane_op, to be started as it is: see
                     gr_comm_lane_repeat */
    gr_op_desc desc;
    uint64_t fingerprint;
    double prescale, postscale; /* as the caller said them */
    lane_run *next;
};

struct gr_comm_lanes {
    gr_lanes *lanes;
    const lane_run *last; /* what was started last */
    /* Groups of operations that ran as plans, and how many of them had when the last operation of a
     * lane to end was started. */
    uint32_t plans, plans_sure;
    lane_run *free_runs; /* what ended last stands first */
    lane_run runs[GR_EXEC_OPS_MAX];
};

/* ---- Life ------------------------------------------------------------------------------------ */
gr_status gr_comm_lane_open(gr_comm *comm, int number, gr_diag *diag)
{
    gr_family *family = comm->family;
    bool no_memory = false;
    if (!family->mesh || comm->size < 2) {
        return GR_OK;
    }
    if (!family->lanes) {
        gr_comm_lanes *all = calloc(1, sizeof *all);
        gr_lanes *lanes = all ? gr_lanes_create(family->mesh) : NULL;
        if (!lanes) {
            free(all);
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the lanes of a communicator");
        }
        all->lanes = lanes;
        for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
            all->runs[i].next = all->free_runs;
            all->free_runs = &all->runs[i];
        }
        family->lanes = all;
    }
    comm->lane =
        gr_lane_open(family->lanes->lanes, number, comm->rank, comm->size, comm->world, &no_memory);
    return no_memory ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the lane of a communicator")
                     : GR_OK;
}

static void let_go(lane_run *run)
{
    if (run->lane_op) {
        gr_lane_release(run->lane_op);
        run->lane_op = NULL;
    }
}

void gr_comm_lane_close(gr_comm *comm)
{
    if (!comm->lane) {
        return;
    }
    gr_comm_lanes *all = comm->family->lanes;
    for (lane_run *run = all->free_runs; run; run = run->next) {
        if (run->comm == comm) {
            let_go(run);
            run->repeats = false;
        }
    }
    all->last = NULL;
    gr_lane_close(comm->lane);
    comm->lane = NULL;
}

void gr_comm_lanes_destroy(gr_family *family)
{
    if (family->lanes) {
        gr_lanes_destroy(family->lanes->lanes);
        free(family->lanes);
        family->lanes = NULL;
    }
}

/* ---- The driver ------------------------------------------------------------------------------ */
static void begin(void *state, gr_op *op)
{
    lane_run *run = state;
    run->op = op;
    run->fingerprint = gr_op_fingerprint(op);
    gr_lane_post(run->lane_op, run->fingerprint);
}

/* A rank that died or left while nothing needed it is not told of again. */
static gr_status check_late(const lane_run *run, gr_diag *diag)
{
    int late = gr_lane_late(run->lane_op);
    int peer = late >= 0 ? run->comm->world[late] : -1;
    const gr_link *link = late >= 0 ? gr_mesh_link(run->comm->family->mesh, peer) : NULL;
    const gr_diag *cause = link ? gr_link_diag(link) : NULL;
    /* What it did before its end counts: hence the second look. */
    if (!cause || cause->status == GR_OK || !gr_lane_needs(run->lane_op, late)) {
        return GR_PENDING;
    }
    if (gr_status_scope((gr_status)cause->status) >= GR_SCOPE_COMM) {
        *diag = *cause;
        return (gr_status)cause->status;
    }
    return gr_fail_peer(diag, (gr_status)cause->status, peer, "%.300s; an operation needs it",
                        cause->text);
}

static gr_status move(void *state, bool *moved_out, gr_diag *diag)
{
    lane_run *run = state;
    const gr_comm *comm = run->comm;
    gr_status status = gr_lane_move(run->lane_op);
    *moved_out = gr_lane_moved(run->lane_op);
    /* The lane looks for them in their order: only the first was waited for, the others may have
     * been there long since. */
    bool awaited = true;
    for (int come = gr_lane_arrived(run->lane_op); run->arrived < come; run->arrived++) {
        if (run->arrived != comm->rank) {
            gr_op_arrived(run->op, comm->world[run->arrived], awaited);
            awaited = false;
        }
    }
    if (status == GR_E_MISMATCH) {
        /* Both sides say what they called, and then the executor fails. */
        gr_exec_mismatch(comm->family->exec, run->op, comm->world[gr_lane_late(run->lane_op)]);
        return GR_PENDING;
    }
    if (status == GR_E_PROTOCOL) {
        int peer = comm->world[gr_lane_late(run->lane_op)];
        return gr_fail_peer(diag, status, peer,
                            "a buffer of rank %d lies outside the memory that it shares, or was "
                            "freed while the operation ran",
                            peer);
    }
    return status == GR_PENDING && !*moved_out ? check_late(run, diag) : status;
}

static void end(void *state, gr_status status)
{
    lane_run *run = state;
    gr_comm_lanes *all = run->comm->family->lanes;
    all->plans_sure = run->plans;
    run->repeats = run->repeats && status == GR_OK;
    if (!run->repeats) {
        let_go(run);
    }
    run->next = all->free_runs;
    all->free_runs = run;
}

static bool needs(const void *state, int peer)
{
    const lane_run *run = state;
    int rank = 0;
    while (rank < run->comm->size && run->comm->world[rank] != peer) {
        rank++;
    }
    return rank < run->comm->size && gr_lane_needs(run->lane_op, rank);
}

/* Partials may be written by a plan, and so are refused alike. */
static bool uses(const void *state, const void *at, size_t size_bytes, bool to_write)
{
    const lane_run *run = state;
    return gr_lane_uses(run->lane_op, at, size_bytes, to_write || run->partials);
}

static const gr_op_driver driver = {
    .begin = begin, .move = move, .end = end, .needs = needs, .uses = uses};

/* ---- Operations ------------------------------------------------------------------------------ */
/* In place, one contribution, and nothing that must be looked at again. */
static bool can_repeat(const gr_comm *comm, const gr_task *task)
{
    const gr_call *call = task->call;
    return !call->partials && !task->input && !call->name && !call->done && !call->reduce &&
           task->shards == comm->size && (task->count > 0 || call->coll == GR_COLL_BARRIER);
}

static gr_lane_request request_of(const gr_task *task)
{
    const gr_call *call = task->call;
    return (gr_lane_request){
        .coll = call->coll,
        .dtype = call->dtype,
        .op = task->reduces ? call->op : GR_SUM,
        .count = task->count,
        .shards = task->shards,
        .inputs = call->partials ? (const void *const *)call->partials
                  : task->input  ? &task->input
                                 : (const void *const *)&task->user,
        .out = call->partials ? call->partials[0] : task->user,
        .divisor = call->coll == GR_COLL_ALLREDUCE && call->op == GR_AVERAGE ? task->shards : 1,
        .prescale = task->prescale,
        .postscale = task->postscale,
        .user = call->reduce,
        .user_arg = call->reduce_arg};
}

bool gr_comm_lane_takes(const gr_comm *comm, const gr_task *task)
{
    size_t size_bytes = task->all_elements * gr_dtype_bytes(task->call->dtype);
    gr_coll coll = task->call->coll;
    return comm->lane && gr_select_lane(&comm->selection, coll, size_bytes, comm->size) &&
           gr_lane_takes(comm->lane, coll, task->count, task->shards);
}

/* A free one: not what may soon be repeated. */
static lane_run *take_run(gr_comm_lanes *all)
{
    lane_run **at = &all->free_runs;
    for (int i = 1; i < REMEMBERED && *at && (*at)->next; i++) {
        at = &(*at)->next;
    }
    lane_run *run = *at;
    if (run) {
        *at = run->next;
        let_go(run);
    }
    return run;
}

static void give_run(gr_comm_lanes *all, lane_run *run)
{
    run->repeats = false;
    run->next = all->free_runs;
    all->free_runs = run;
}

gr_status gr_comm_lane_start(gr_comm *comm, const gr_task *task, const gr_op_desc *desc,
                             gr_op **op_out, gr_diag *diag)
{
    gr_comm_lanes *all = comm->family->lanes;
    gr_lane_request request = request_of(task);
    gr_lane_op *lane_op = NULL;
    lane_run *run = take_run(all);
    gr_status status = run ? gr_lane_start(comm->lane, &request, &lane_op) : GR_E_NO_MEMORY;
    if (status != GR_OK) {
        if (run) {
            give_run(all, run);
        }
        return gr_fail(diag, status,
                       "no memory for %s, or too many operations in flight: at most %d may be "
                       "unfinished; call gr_wait on the older ones",
                       gr_coll_name(task->call->coll), GR_EXEC_OPS_MAX);
    }
    *run = (lane_run){.comm = comm,
                      .lane_op = lane_op,
                      .plans = all->plans,
                      .partials = task->call->partials,
                      .repeats = can_repeat(comm, task),
                      .desc = *desc,
                      .prescale = task->call->prescale,
                      .postscale = task->call->postscale};
    run->desc.algorithm = GR_LANE_ALGORITHM;
    status = gr_exec_start_driven(comm->family->exec, &driver, run, &run->desc, &comm->group,
                                  task->call->done, task->call->done_arg, op_out, diag);
    if (status != GR_OK) {
        let_go(run);
        give_run(all, run);
        return status;
    }
    all->last = run;
    return GR_OK;
}

static bool is_like(const gr_comm *comm, const gr_call *call, const lane_run *run)
{
    const gr_op_desc *desc = &run->desc;
    bool same = call->coll == desc->coll && call->dtype == desc->dtype && call->op == desc->op &&
                call->count == desc->count && call->root == desc->root && call->tag == desc->tag &&
                call->prescale == run->prescale && call->postscale == run->postscale;
    return same && run->repeats && run->comm == comm && !call->in && !call->counts &&
           !call->recv_counts && !call->reduce && call->shards == 0 && !call->partials &&
           !call->name && !call->done && (call->out || call->coll == GR_COLL_BARRIER);
}

gr_op *gr_comm_lane_repeat(const gr_comm *comm, const gr_call *call, const void *caller)
{
    gr_comm_lanes *all = comm->family->lanes;
    gr_exec *exec = comm->family->exec;
    if (!comm->lane || all->plans != all->plans_sure || !gr_exec_may_repeat(exec, &comm->group)) {
        return NULL;
    }
    lane_run **at = &all->free_runs;
    for (int i = 1; *at && !is_like(comm, call, *at); i++) {
        if (i == REMEMBERED) {
            return NULL;
        }
        at = &(*at)->next;
    }
    lane_run *run = *at;
    if (!run) {
        return NULL;
    }
    *at = run->next;
    all->last = run;
    run->arrived = 0;
    run->plans = all->plans;
    run->desc.site = call->site;
    run->desc.caller = caller;
    gr_lane_repeat(run->lane_op, call->out);
    return gr_exec_repeat(exec, &driver, run, &run->desc, &comm->group, run->fingerprint);
}

/* Was it started last, in the lane, and behind nothing that a peer may have sent in a plan that
 * expects nothing here (two roots, say), which would never be looked at in the lane? */
static bool is_plain(const gr_comm *comm, const gr_op *op)
{
    const gr_comm_lanes *all = comm->family->lanes;
    return all->last && all->last->op == op && all->plans == all->plans_sure;
}

void gr_comm_lane_look(const gr_comm *comm, gr_op *op)
{
    const gr_comm_lanes *all = comm->family->lanes;
    if (!comm->lane || !all->last || all->last->op != op) {
        return;
    }
    if (all->plans != all->plans_sure) {
        (void)gr_exec_progress(comm->family->exec);
    } else if (gr_lane_ready(all->last->lane_op)) {
        (void)gr_exec_move_driven(op);
    }
}

void gr_comm_lane_note(const gr_comm *comm, const gr_task *tasks, int count)
{
    gr_comm_lanes *all = comm->family->lanes;
    if (!all) {
        return;
    }
    all->last = NULL;
    all->plans++;
    for (int i = 0; i < count && comm->lane; i++) {
        if (tasks[i].call->coll != GR_COLL_SEND && tasks[i].call->coll != GR_COLL_RECV) {
            gr_lane_note(comm->lane);
        }
    }
}

void gr_comm_lane_linger(const gr_comm *comm, gr_op *op)
{
    const gr_comm_lanes *all = comm->family->lanes;
    if (!comm->lane || !is_plain(comm, op) || gr_exec_active(comm->family->exec) > 1) {
        gr_comm_lane_look(comm, op);
        return;
    }
    while (!gr_op_finished(op) && gr_lane_linger(all->last->lane_op)) {
        (void)gr_exec_move_driven(op);
    }
}
