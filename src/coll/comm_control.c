/* SPDX-License-Identifier: Apache-2.0 */

/* What a program does about a communicator from outside its operations: ends it from any thread,
 * and polls for news of it. */

#include "base/fail.h"
#include "base/fork.h"
#include "coll/comm_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- Abort ----------------------------------------------------------------------------------- */
gr_status gr_comm_abort(gr_comm *comm, const char *reason)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    int rank = comm->world[comm->rank];
    gr_diag diag;
    (void)gr_fail_peer(&diag, GR_E_ABORTED, rank, "rank %d aborted the communicator: %.300s", rank,
                       reason && reason[0] ? reason : "no reason is given");
    gr_exec_end_group(context->exec, comm->group.id, &diag);
    gr_context_leave(context);
    return GR_OK;
}

/* ---- The event ------------------------------------------------------------------------------- */
void gr_context_raise_event(gr_context *context)
{
    if (context->event_fd >= 0) {
        uint64_t one = 1;
        ssize_t put = write(context->event_fd, &one, sizeof one);
        (void)put; /* a full counter is readable just as well */
    }
}

/* Entered. Nothing but the progress thread moves operations on while the program polls. */
static gr_status open_event(gr_context *context, gr_diag *diag)
{
    if (!context->thread.running) {
        gr_status status = gr_comm_thread_start(context, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    context->event_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK); /* what is over is to be seen */
    if (context->event_fd < 0) {
        return gr_fail(diag, GR_E_IO, "gr_comm_event_fd: no descriptor: %s", strerror(errno));
    }
    gr_fork_guard(context->event_fd); /* a child would take what is there for the parent */
    gr_comm_thread_wake(context);     /* from now on it looks for the end, too */
    return GR_OK;
}

gr_status gr_comm_event_fd(gr_comm *comm, int *fd_out)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    gr_context *context = comm->context;
    gr_status status = gr_context_enter(context, false);
    if (status != GR_OK) {
        return status;
    }
    gr_diag diag;
    if (!fd_out) {
        status =
            gr_fail(&diag, GR_E_INVALID, "gr_comm_event_fd on rank %d: fd_out is NULL", comm->rank);
    } else if (context->event_fd < 0) {
        status = open_event(context, &diag);
    }
    if (status == GR_OK) {
        *fd_out = context->event_fd;
    } else {
        status = gr_context_note(context, &diag);
    }
    gr_context_leave(context);
    return status;
}

void gr_comm_event_clear(gr_comm *comm)
{
    if (comm && comm->context->event_fd >= 0 && !gr_context_is_forked(comm->context)) {
        uint64_t count;
        ssize_t got = read(comm->context->event_fd, &count, sizeof count);
        (void)got; /* nothing to read is nothing to clear */
    }
}
