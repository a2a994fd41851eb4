/* SPDX-License-Identifier: Apache-2.0 */

/* Persistent operations (as in MPI-4): the arguments of a call are checked once, and what follows
 * from them (algorithm, compiled schedule, or the operation in shared memory) is kept. The caller
 * holds a handle; each start runs one operation of the executor for it. */

#include "base/fail.h"
#include "coll/comm_internal.h"

#include <stdlib.h>
#include <string.h>

struct gr_persistent {
    gr_comm *comm; /* NULL: destroyed before */
    gr_op *handle;
    gr_call call; /* its arrays and texts are in this piece of memory */
    gr_coll_args args;
    gr_exec_request request; /* of a collective of one rank nothing is set */
    gr_persistent *next;     /* of the same context */
};

/* ---- The copy of a call ---------------------------------------------------------------------- */
static size_t rounded(size_t size_bytes)
{
    return (size_bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
}

static const void *keep(uint8_t **to, const void *from, size_t size_bytes)
{
    if (!from) {
        return NULL;
    }
    void *at = memcpy(*to, from, size_bytes);
    *to += rounded(size_bytes);
    return at;
}

/* NULL: no memory. */
static gr_persistent *copy_call(gr_comm *comm, const gr_call *call, int partials)
{
    size_t counts = (size_t)comm->size * sizeof *call->counts;
    size_t buffers = (size_t)partials * sizeof *call->partials;
    size_t name = call->name ? strlen(call->name) + 1 : 0;
    size_t site = call->site ? strlen(call->site) + 1 : 0;
    gr_persistent *kept = calloc(1, rounded(sizeof *kept) + 2 * rounded(counts) + rounded(buffers) +
                                        rounded(name) + rounded(site));
    if (!kept) {
        return NULL;
    }
    uint8_t *at = (uint8_t *)kept + rounded(sizeof *kept);
    kept->comm = comm;
    kept->call = *call;
    kept->call.counts = keep(&at, call->counts, counts);
    kept->call.recv_counts = keep(&at, call->recv_counts, counts);
    kept->call.partials = keep(&at, call->partials, buffers);
    kept->call.name = keep(&at, call->name, name);
    kept->call.site = keep(&at, call->site, site);
    return kept;
}

/* ---- Life ------------------------------------------------------------------------------------ */
/* Entered. */
static gr_status create(gr_comm *comm, const gr_call *call, const void *caller, gr_op **op_out,
                        gr_diag *diag)
{
    gr_coll_args args;
    if (call->done) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_op_create on rank %d: `done` is set, but a persistent operation has no "
                       "callback; wait for each start",
                       comm->rank);
    }
    gr_status status = gr_coll_args_init(&args, call, comm->rank, comm->size, diag);
    if (status == GR_OK) {
        status = gr_comm_check_memory(comm, &args, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_persistent *kept = copy_call(comm, call, args.memory.partial_count);
    gr_op *handle = kept ? gr_op_create_handle(comm->context->exec, kept) : NULL;
    if (!handle) {
        free(kept);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a persistent operation");
    }
    status = gr_coll_args_init(&kept->args, &kept->call, comm->rank, comm->size, diag);
    if (status == GR_OK && !gr_comm_runs_self(comm, &kept->call)) {
        status = gr_comm_fill_request(comm, &kept->args, true, caller, &kept->request, diag);
    }
    if (status != GR_OK) {
        gr_op_destroy_handle(handle);
        free(kept);
        return status;
    }
    kept->handle = handle;
    kept->next = comm->context->persistent;
    comm->context->persistent = kept;
    *op_out = handle;
    return GR_OK;
}

gr_status gr_op_create(gr_comm *comm, const gr_call *call, gr_op **op_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_diag diag;
    gr_status status = gr_context_enter(comm->context, false);
    if (status == GR_OK) {
        status = call && op_out
                     ? create(comm, call, __builtin_return_address(0), op_out, &diag)
                     : gr_fail(&diag, GR_E_INVALID, "gr_op_create on rank %d: %s is NULL",
                               comm->rank, call ? "op_out" : "call");
        status = status == GR_OK ? GR_OK : gr_context_note(comm->context, &diag);
        gr_context_leave(comm->context);
    }
    return status;
}

void gr_context_detach_persistent(gr_context *context, const gr_comm *comm)
{
    for (gr_persistent **at = &context->persistent; *at;) {
        gr_persistent *kept = *at;
        if (comm && kept->comm != comm) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        gr_comm_shm_drop(&kept->request);
        kept->comm = NULL;
        gr_op_detach_handle(kept->handle);
    }
}

gr_comm *gr_op_persistent_comm(const gr_op *op)
{
    const gr_persistent *kept = gr_op_handle_state(op);
    return kept ? kept->comm : NULL;
}

void gr_op_destroy(gr_op *op)
{
    gr_persistent *kept = op ? gr_op_handle_state(op) : NULL;
    if (!kept) {
        return;
    }
    gr_comm *comm = kept->comm;
    if (comm) {
        if (gr_op_running(op)) {
            (void)!gr_wait(op);
        }
        if (gr_context_enter(comm->context, true) != GR_OK) {
            return;
        }
        gr_persistent **at = &comm->context->persistent;
        while (*at != kept) {
            at = &(*at)->next;
        }
        *at = kept->next;
        gr_comm_shm_drop(&kept->request);
        gr_context_leave(comm->context);
    }
    gr_op_destroy_handle(op);
    free(kept);
}

/* ---- Starting -------------------------------------------------------------------------------- */
/* Entered. */
static gr_status start(gr_persistent *kept, gr_diag *diag)
{
    gr_comm *comm = kept->comm;
    gr_op *op = NULL;
    if (gr_op_running(kept->handle)) {
        return gr_fail(diag, GR_E_INVALID,
                       "gr_op_start on rank %d: %s was started before and not waited for",
                       comm->rank, gr_coll_name(kept->call.coll));
    }
    gr_status status = gr_comm_check_ready(comm, &kept->args, diag);
    if (status == GR_OK && gr_comm_runs_self(comm, &kept->call)) {
        gr_comm_run_self(&kept->args);
        gr_context_raise_event(comm->context);
        op = comm->context->self_op;
    } else if (status == GR_OK) {
        status = gr_exec_start(comm->context->exec, &kept->request, 1, &op, diag);
        gr_comm_shm_note(comm, &kept->request);
    }
    if (status == GR_OK) {
        gr_op_set_running(kept->handle, op);
        gr_comm_shm_look(comm, op);
    }
    return status;
}

gr_status gr_op_start(gr_op *op)
{
    gr_persistent *kept = op ? gr_op_handle_state(op) : NULL;
    if (!kept || !kept->comm) {
        return GR_E_INVALID;
    }
    gr_diag diag;
    gr_context *context = kept->comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status == GR_OK) {
        status = start(kept, &diag);
        status = status == GR_OK ? GR_OK : gr_context_note(context, &diag);
        gr_context_leave(context);
    }
    return status;
}
