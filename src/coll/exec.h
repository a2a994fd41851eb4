/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_EXEC_H
#define GR_COLL_EXEC_H

/* The executor runs programs (plans made ready) over the links of a mesh: it owns segments, the
 * order of messages, views and scratch, deadlines, failure and its spreading.
 *
 * How it stays free of deadlock: on each link, messages go and are taken in one order that both
 * sides know: by operation, then by message of the plan, then by segment. A plan is free of
 * deadlock with no room on the way at all (verify.h), and whatever runs ahead of it here takes
 * nothing that an earlier message needs: scratch holds whole blocks; and a view, which may keep
 * the sender from sending, is copied and given back when nothing moves.
 *
 * Threads: an executor belongs to one thread at a time (comm.c serialises). No call allocates once
 * operations of their kind and size have run. */

#include "coll/program.h"
#include "link/link.h"

typedef struct gr_exec gr_exec;

enum {
    GR_EXEC_OPS_MAX = 128,                /* operations in flight or not yet waited for */
    GR_SEGMENT_BYTES_DEFAULT = 256 << 10, /* flat from 128 KiB on; less costs up to a fifth */
    GR_SEGMENT_BYTES_MAX = GR_FRAME_PAYLOAD_MAX
};

typedef struct gr_exec_config {
    gr_mesh *mesh; /* borrowed; fully wired */
    int rank, world_size;
    int64_t op_timeout_us; /* nothing moved for that long: fails; 0: never */
    int64_t segment_bytes; /* 0: the default; made a multiple of 64 */
    gr_clock clock;
    const gr_log *log; /* may be NULL */
    void *owner;       /* for gr_op_owner */
} gr_exec_config;

gr_status gr_exec_create(const gr_exec_config *config, gr_exec **exec_out,
                         gr_diag *diag) GR_MUST_CHECK;
/* Frees all; operations in flight vanish. The mesh must have been destroyed before, since it may
 * still read what an unfinished operation lent it. NULL ok. */
void gr_exec_destroy(gr_exec *exec);

/* What an operation is, as every rank must agree. Packed into the fingerprint of its frames, so
 * that whoever sees a foreign one can say what the other rank called. */
typedef struct gr_op_desc {
    gr_coll coll;
    gr_dtype dtype;
    gr_redop op;
    int algorithm; /* index in gr_algorithms */
    int param;     /* root or shards */
    uint64_t count;
} gr_op_desc;

enum { GR_OP_PARAM_MAX = (1 << 14) - 1, GR_OP_ALGORITHM_MAX = 15 };
#define GR_OP_COUNT_MAX ((UINT64_C(1) << 38) - 1)

uint64_t gr_op_fingerprint(const gr_op_desc *desc);
/* "allreduce of 1000 f32 (sum)" */
void gr_op_describe(uint64_t fingerprint, char *text_out, size_t size_bytes);

typedef struct gr_exec_request {
    const gr_program *program; /* borrowed until the operation is released */
    void *const *user;         /* program->user_slots pointers, copied; the buffers are borrowed */
    gr_op_desc desc;           /* count: elements that desc says, also in errors */
    size_t total_count;        /* elements of one user buffer */
    bool fixed_blocks;         /* blocks of exactly total_count / blocks elements */
    int divisor;               /* of SCALE steps */
} gr_exec_request;

/* GR_E_NO_MEMORY: too many in flight, or memory. */
gr_status gr_exec_start(gr_exec *exec, const gr_exec_request *request, gr_op **op_out,
                        gr_diag *diag) GR_MUST_CHECK;

/* Moves everything on without waiting; true if anything moved. */
bool gr_exec_progress(gr_exec *exec);
/* To be called when a pass moved nothing: looks at the clock, lets go of views that were held too
 * long, fails the oldest operation if nothing moved for too long. Returns when to look again.
 * `waited`: the caller did nothing but wait since the last look; else long gaps are its own time.
 * */
int64_t gr_exec_look(gr_exec *exec, bool waited);
/* Progress until `op` is finished, at most until something else wants the executor (*yield != 0,
 * may be NULL); sleeps by gr_mesh_wait. */
void gr_exec_wait(gr_exec *exec, const gr_op *op, const _Atomic int *yield);
/* Operations that have not finished. */
int gr_exec_active(const gr_exec *exec);

bool gr_op_finished(const gr_op *op);
/* The result of a finished operation; gives the object back. */
gr_status gr_op_release(gr_op *op);
/* The owner that gr_exec_create was told; NULL for gr_op_create_finished. */
void *gr_op_owner(const gr_op *op);

/* An operation that is finished and stays so, whoever releases it: all that a group of one needs.
 * NULL: no memory. */
gr_op *gr_op_create_finished(void);
void gr_op_destroy_finished(gr_op *op); /* NULL ok */

/* The first failure; status GR_OK while there was none. Once it is set, the mesh is never moved
 * again: buffers of failed operations belong to their owners. */
const gr_diag *gr_exec_diag(const gr_exec *exec);

#endif
