/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_EXEC_INTERNAL_H
#define GR_COLL_EXEC_INTERNAL_H

/* Shared by exec.c (life, start, progress), exec_move.c (messages and local steps) and exec_fail.c
 * (deadlines, failure and its spreading) only. */

#include "coll/exec.h"
#include "coll/reduce.h"

enum {
    GR_EXEC_RING = 256,      /* numbers between the oldest and the newest operation; power of two */
    GR_EXEC_TICKETS = 256,   /* messages on their way on one link; power of two */
    GR_EXEC_HOLDS_MAX = 128, /* views held on one link */
    GR_EXEC_ABORT_FLUSH_US = 100000
};

/* What lies in a scratch slot, for one segment. */
typedef struct gr_exec_view {
    const uint8_t *at;
    uint64_t hold;
    uint32_t readers; /* that have not read yet */
    int32_t peer;     /* whose memory it is, if held */
    uint32_t block;
    bool held;
} gr_exec_view;

typedef enum gr_op_state { GR_OP_FREE, GR_OP_ACTIVE, GR_OP_FINISHED } gr_op_state;

struct gr_op {
    gr_exec *exec;
    gr_op_state state;
    gr_status status;
    uint32_t seq;
    const gr_program *program;
    uint64_t fingerprint;
    uint8_t *user[GR_SHARD_PARTIALS_MAX];
    /* How a user buffer is cut: block b has `block_units` units, one more if b < `block_extra`, and
     * the last block ends with the buffer. */
    size_t unit_bytes, block_units, block_extra, total_bytes;
    uint32_t segments; /* of every block: the shorter ones have empty ones at their end */
    size_t element_bytes;
    gr_reduce_fn *reduce;
    gr_dtype dtype;
    int divisor;
    uint64_t left; /* segments of steps that are not done */

    /* By step; grown on first use. */
    uint32_t *done;  /* segments that are finished */
    uint8_t *queued; /* stands in `queue` */
    uint32_t *queue; /* ring of local steps that can run */
    uint32_t queue_head, queue_count;
    size_t step_capacity;
    gr_exec_view *views; /* [slot * segments + segment] */
    size_t view_capacity;
    uint8_t *scratch; /* [slot * scratch_stride] */
    size_t scratch_stride, scratch_capacity;
    bool scratch_shared; /* from gr_mesh_alloc */

    gr_op *next_work; /* list of operations with a non-empty queue */
    bool in_work;
    gr_op *next_free;
};

/* Where a link stands in the messages of an operation. Always at an operation that has messages
 * left on this link, or at the next one to be started. */
typedef struct gr_exec_cursor {
    uint32_t seq;
    uint32_t index; /* in the program's list for this link */
    uint32_t segment;
} gr_exec_cursor;

typedef struct gr_exec_ticket {
    uint64_t ticket;
    gr_op *op;
    uint32_t step;
    uint32_t segment;
    bool empty; /* an empty segment: there was no message */
} gr_exec_ticket;

typedef struct gr_exec_link {
    gr_link *link; /* NULL for ourselves */
    int peer;
    gr_exec_cursor send, recv;
    bool reading; /* gr_link_read has returned GR_PENDING for the head */
    bool to_post; /* stands in exec->posts */
    bool closed;  /* broken or left, and nothing needed it so far */
    bool abort_posted, abort_done;
    uint64_t abort_ticket;
    uint32_t holds; /* views held */
    uint32_t ticket_head, ticket_count;
    gr_exec_ticket *tickets; /* ring of GR_EXEC_TICKETS */
} gr_exec_link;

struct gr_exec {
    gr_mesh *mesh;
    int rank, world_size;
    int64_t op_timeout_us;
    size_t segment_bytes;
    gr_clock clock;
    const gr_log *log;
    void *owner;

    gr_exec_link *links;       /* by rank */
    gr_exec_ticket *tickets;   /* of all links */
    uint32_t next_seq;         /* of the next operation */
    uint32_t oldest_seq;       /* no active operation is older */
    gr_op *ring[GR_EXEC_RING]; /* active operations by number */
    int active;
    gr_op *free_ops;
    gr_op ops[GR_EXEC_OPS_MAX];

    size_t steps_max, views_max, scratch_max; /* what the largest operations needed */

    gr_op *work_head, *work_tail;
    int *posts; /* peers whose next message may have become ready */
    int post_count;
    uint32_t holds; /* views held on all links */

    bool moved;            /* since the last look at the clock */
    int64_t idle_since_us; /* nothing moved since */
    int64_t last_look_us;
    gr_diag diag;
};

static inline gr_op *gr_exec_op_at(gr_exec *exec, uint32_t seq)
{
    return exec->ring[seq & (GR_EXEC_RING - 1)];
}

static inline bool gr_step_is_whole(uint8_t kind)
{
    return kind == GR_STEP_SIGNAL || kind == GR_STEP_AWAIT;
}

/* Segments of a step. */
static inline uint32_t gr_op_segments(const gr_op *op, const gr_program_step *step)
{
    return gr_step_is_whole(step->kind) ? 1 : op->segments;
}

/* exec_move.c */
void gr_exec_step_done(gr_exec *exec, gr_op *op, uint32_t at);
void gr_exec_queue_if_ready(gr_exec *exec, gr_op *op, uint32_t at);
void gr_exec_mark_post(gr_exec *exec, gr_exec_link *link);
void gr_exec_advance(gr_exec *exec, gr_exec_link *link, bool sending);
void gr_exec_drain(gr_exec *exec); /* local steps and the messages they made ready */
void gr_exec_reap(gr_exec *exec, gr_exec_link *link);
void gr_exec_take(gr_exec *exec, gr_exec_link *link);
/* Must something still pass over this link? */
bool gr_exec_needs(gr_exec *exec, const gr_exec_link *link);
/* Copies what is viewed and gives the views back. A plan cannot deadlock as long as what was taken
 * is taken; a view is taken only in part, since its sender waits for it. */
void gr_exec_let_go(gr_exec *exec);

/* exec_fail.c */
void gr_exec_fail(gr_exec *exec, const gr_diag *diag); /* the first cause; ends everything */
/* The link is broken or left in order; fatal if anything still needs it. `op` waits, may be NULL.
 * */
void gr_exec_lost(gr_exec *exec, gr_exec_link *link, gr_status status, const gr_op *op);
void gr_exec_fail_foreign(gr_exec *exec, gr_exec_link *link, const gr_frame *frame,
                          const gr_op *op);
/* gr_mesh_progress tells of a broken link, or of something worse. */
void gr_exec_mesh_failed(gr_exec *exec, gr_status status, const gr_diag *diag);

#endif
