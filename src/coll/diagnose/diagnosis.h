/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_DIAGNOSIS_H
#define GR_COLL_DIAGNOSE_DIAGNOSIS_H

/* Why operations do not go on: ranks that call different things (mismatch.c), ranks that do not
 * come (stall.c), ranks that come late (lateness).
 *
 * Diagnosis stands beside the engine. The engine tells it what arrives and when time has passed;
 * diagnosis looks at operations through exec_view.h, and ends the communicator by
 * gr_exec_fail. With other ranks it speaks over a channel to the job's coordinator
 * (group/wait_graph.h), never over links: what stands behind data on a link cannot be read by a
 * rank that waits elsewhere. Without a channel it says what this rank can see.
 *
 * Threads: those of the engine. */

#include "coll/diagnose/channel.h"
#include "coll/diagnose/exec_view.h"
#include "link/link.h"

typedef struct gr_diagnosis gr_diagnosis;

typedef struct gr_diagnosis_config {
    gr_exec *exec; /* borrowed */
    int rank, world_size;
    int64_t op_timeout_us; /* as in gr_exec_config */
    int64_t stall_warn_us;
    gr_clock clock;
    const gr_log *log;
    const char *(*host_name)(const void *host_arg, int rank);
    const void *host_arg;
    gr_diagnosis_channel channel; /* send NULL: none */
} gr_diagnosis_config;

gr_diagnosis *gr_diagnosis_create(const gr_diagnosis_config *config); /* NULL: no memory */
void gr_diagnosis_destroy(gr_diagnosis *diagnosis);                   /* NULL ok */

/* ---- What the engine tells ------------------------------------------------------------------- */
/* The first word of `peer` about an operation has come `late` ticks after it began here. */
void gr_diagnosis_arrived(gr_diagnosis *diagnosis, const gr_op_id *op, int peer, uint64_t late);
/* That was reported already. */
bool gr_diagnosis_has_arrived(const gr_diagnosis *diagnosis, const gr_op_id *op, int peer);
/* A frame from `peer` is nothing that `op` (NULL: anything) expects, which are `size_bytes`. */
void gr_diagnosis_foreign_frame(gr_diagnosis *diagnosis, int peer, const gr_frame *frame,
                                const gr_op *op, bool uneven, size_t size_bytes);
/* `peer` is in another operation than this rank at the same number of the same communicator. */
void gr_diagnosis_mismatch(gr_diagnosis *diagnosis, uint16_t comm, uint32_t number,
                           uint64_t fingerprint, int peer);
void gr_diagnosis_op_over(gr_diagnosis *diagnosis, const gr_op *op);
/* A group has ended by itself: what was found out about it does not matter any more. */
void gr_diagnosis_group_ended(gr_diagnosis *diagnosis, uint16_t comm, uint32_t serial);
/* The way to the coordinator, and through it to other ranks: there is one; it takes a report,
 * which may be lost nevertheless. */
bool gr_diagnosis_has_channel(const gr_diagnosis *diagnosis);
bool gr_diagnosis_send(gr_diagnosis *diagnosis, const gr_op_report *report);
/* Some time has passed in which the engine moved nothing; `skipped_us` of it were the caller's own.
 * May end the communicator. Returns when to call again. */
int64_t gr_diagnosis_poll(gr_diagnosis *diagnosis, int64_t now_us, int64_t skipped_us);

/* ---- What it answers ------------------------------------------------------------------------- */
/* What this rank knows by itself of the mismatch that it has met. */
const gr_diag *gr_diagnosis_own_account(const gr_diagnosis *diagnosis);
void gr_diagnosis_get_skew(const gr_diagnosis *diagnosis, int peer, gr_exec_skew *skew_out);
/* "operation 17 (allreduce of ... at train.c:88)" */
void gr_exec_describe_op(const gr_exec *exec, const gr_op *op, char *text_out, size_t size_bytes);

#endif
