/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_ENGINE_EXEC_INTERNAL_H
#define GR_COLL_ENGINE_EXEC_INTERNAL_H

/* Shared by exec.c (life, groups, progress), exec_start.c (how operations begin), exec_move.c
 * (what plans send, and local steps), exec_message.c (messages between two ranks), exec_scratch.c
 * (memory for what is on its way), exec_view.c (what diagnosis sees), exec_fail.c (failure and
 * its spreading) and exec_group_end.c (the end of one group) only. */

#include "coll/diagnose/diagnosis.h"
#include "coll/diagnose/exec_view.h"
#include "coll/engine/exec.h"
#include "coll/engine/exec_mailbox.h"
#include "coll/plan/cut.h"
#include "coll/reduce/reduce.h"

#include <stdatomic.h>

enum {
    GR_EXEC_RING = 256,      /* numbers between the oldest and the newest operation; power of two */
    GR_EXEC_TICKETS = 256,   /* messages on their way on one link; power of two */
    GR_EXEC_FACTS = 6,       /* that ranks must agree on */
    GR_EXEC_HOLDS_MAX = 128, /* views held on one link */
    GR_EXEC_ABORT_FLUSH_US = 100000, /* for the living to take the cause of a failure, */
    GR_EXEC_ABORT_NOW_US = 10000     /* or that of gr_comm_abort */
};

/* A segment of what was received into scratch. */
typedef struct gr_exec_view {
    const uint8_t *at;
    uint64_t hold;
    uint32_t readers; /* that have not read yet */
    int32_t peer;     /* whose memory it is, if held */
    uint32_t block, segment;
    bool held;
} gr_exec_view;

typedef struct gr_exec_scratch {
    uint8_t *at;
    size_t capacity;
    bool shared; /* from gr_mesh_alloc: what is sent from there needs no copy */
    bool used;
} gr_exec_scratch;

typedef enum gr_op_state { GR_OP_FREE, GR_OP_ACTIVE, GR_OP_FINISHED } gr_op_state;

/* Several requests that began as one operation are parts: the first one is the head, which the
 * caller holds. A part is over when its own steps are; `state` and `status` of the head are those
 * of the whole. */
struct gr_op {
    gr_exec *exec;
    void *handle_state; /* of a handle, of which nothing else is set but `exec` and: */
    gr_op *running;
    gr_op_state state;
    gr_status status;
    gr_op *head, *next_part;
    int parts_left; /* at the head */
    bool over;      /* this part */
    bool stopped;   /* its group has ended: it moves no more, and is over when nobody uses it */
    gr_done *done;  /* at the head */
    void *done_arg;
    gr_op *next_done;

    uint32_t seq; /* in the order of starts here; not of those with `ops` */
    /* In its communicator. Messages: on their link and direction; that of a receive is known when
     * it has met its message, and is GR_FLIGHT_RECORDER_NO_NUMBER before. */
    uint32_t number;
    uint16_t comm;
    bool is_message, sends;
    int partner;      /* of a message: the rank of the job at its other end, if it is known */
    bool matches;     /* when it is over, all ranks of the job have begun it */
    int needs;        /* cannot be over here before this rank has begun it; or a GR_NEEDS_* */
    bool sends_empty; /* also what has no bytes makes a message */
    uint64_t fingerprint;
    uint64_t record; /* index of its entry */
    uint64_t started;
    uint64_t waited;          /* ticks until the first word of the last peer came, ... */
    int waited_for;           /* which was this one; -1: nothing came late */
    gr_timeline_op *timeline; /* NULL: not written there */
    const int *world;         /* by group rank; NULL: the same */
    const int *local; /* by rank of the job: the group rank, -1: no member; NULL: the same */

    gr_op_watch watch;
    gr_call_memory memory; /* the partials are in `user` */

    gr_op_message message; /* if `is_message`, and then neither ops nor schedule */
    const gr_op_ops *ops;  /* NULL: a schedule is run, and all that follows is set */
    void *ops_state;

    const gr_schedule *schedule;
    void *user[GR_SHARD_PARTIALS_MAX];
    const uint8_t *input[GR_SHARD_PARTIALS_MAX];
    /* How buffers are cut. Even: `cut`. Uneven: tables, by block, of [0] what user buffers
     * and scratch hold, [1] inputs. All blocks have the same number of segments, the shorter ones
     * have empty ones at their end. */
    gr_cut cut;
    size_t total_bytes;
    uint32_t segments;       /* of a block */
    uint32_t slice_segments; /* at least one: see exec.h */
    size_t segment_bytes;
    bool uneven;
    size_t *offsets[2];  /* blocks + 1 */
    size_t cut_capacity; /* blocks */
    size_t base[2];      /* where the block that a buffer begins with stands */
    size_t element_bytes;
    gr_reduce_fn *reduce;
    gr_reduce_user *user_reduce; /* instead, if not NULL */
    void *reduce_arg;
    gr_dtype dtype;
    int divisor;
    double prescale, postscale;
    uint64_t left; /* segments of steps that are not done */

    /* By step; grown on first use. */
    uint32_t *queue;     /* ring of local steps that can run */
    uint32_t *step_done; /* segments that are finished; one piece of memory with queue, and */
    uint8_t *queued;     /* stands in `queue`: this, which begins where the steps end */
    uint32_t queue_head, queue_count;
    size_t step_capacity;
    /* Scratch: for each place of the schedule a slice of a block. */
    size_t slice_stride;
    gr_exec_view *views; /* [receiving place * slice_segments + segment in the slice] */
    size_t view_capacity;
    uint8_t *scratch;       /* NULL while it waits for a piece */
    size_t scratch_bytes;   /* that it needs */
    gr_exec_scratch *piece; /* of those that all share; NULL: it has none */
    gr_exec_scratch own_scratch;

    gr_op *next_work; /* list of operations with a non-empty queue */
    bool in_work;
    gr_op *next_free;
};

/* Where a link stands in the messages of an operation. Always at an operation that has messages
 * left on this link, or at the next one to be started. */
typedef struct gr_exec_cursor {
    uint32_t seq;
    uint32_t slice;   /* its first segment */
    uint32_t index;   /* in the schedule's list for this link */
    uint32_t segment; /* in the block */
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
    uint32_t messages_sent; /* GR_COLL_SEND that were started */
    gr_exec_mailbox mail;
    bool reading;  /* gr_link_read has returned GR_PENDING for the head */
    bool busy;     /* stands in exec->busy */
    bool to_post;  /* stands in exec->posts */
    bool to_flush; /* stands in exec->flushes */
    bool closed;   /* broken or left, and nothing needed it so far */
    bool abort_posted, abort_done;
    uint64_t abort_ticket;
    uint32_t holds; /* views held */
    uint32_t ticket_head, ticket_count;
    gr_exec_ticket *tickets; /* ring of GR_EXEC_TICKETS */
} gr_exec_link;

/* A communicator, by number. Made when its first operation starts. */
typedef struct gr_exec_members {
    const gr_exec_group *group;
    uint32_t next_number;
    bool same; /* group ranks are ranks of the job */
    int *local;
    uint32_t ended_serial; /* of the last group with this number that has ended; 0: none has */
} gr_exec_members;

typedef struct gr_exec_ending gr_exec_ending; /* exec_group_end.h */

struct gr_exec {
    gr_mesh *mesh;
    int rank, world_size;
    size_t segment_bytes, slice_bytes;
    bool shares_memory; /* with a peer: shm */
    gr_clock clock;
    const gr_log *log;
    void *owner;
    void (*compare)(void *arg); /* NULL: nothing is to be compared */
    void *compare_arg;
    bool (*may_start)(const void *owner);

    gr_exec_link *links;       /* by rank */
    gr_exec_ticket *tickets;   /* of all links */
    uint32_t next_seq;         /* of the next operation */
    uint32_t oldest_seq;       /* no active operation is older */
    gr_op *ring[GR_EXEC_RING]; /* active operations by seq */
    int active;
    gr_op *free_ops;
    int free_count;
    gr_op ops[GR_EXEC_OPS_MAX];
    int ops_used; /* those from here on were never taken: blocking calls need one */
    gr_op *custom[GR_EXEC_OPS_MAX]; /* in the order of their start */
    int custom_count;
    gr_op *done_head, *done_tail; /* finished, with a callback to be called */
    uint64_t finished;            /* see gr_exec_finished */
    gr_exec_members members[GR_EXEC_GROUPS_MAX];
    gr_exec_ending *endings;
    bool any_ended;       /* a group has ended by itself: frames of it may come, ... */
    bool sweeps;          /* ... and what is here already is to be dropped */
    uint32_t serial_seen; /* the largest of a group that was opened */
    gr_exec_queue posted; /* receives that nothing has matched, in the order of their start */
    int any_source;       /* of these, those that may match any rank */
    int next_source;      /* the rank of the job at which such a one looks first */

    size_t steps_max, views_max, scratch_max, blocks_max; /* what the largest operations needed */
    gr_exec_scratch pieces[GR_EXEC_OPS_MAX];
    size_t scratch_limit, own_scratch_max;
    int scratch_waits; /* operations that wait for a piece */

    gr_op *work_head, *work_tail;
    int *busy; /* peers whose links a pass looks at: in use, or a message stands there */
    int busy_count;
    int *posts; /* peers whose next message may have become ready */
    int post_count;
    int *flushes; /* peers to whom messages are queued that may not have left */
    int flush_count;
    uint32_t holds; /* views held on all links */

    /* What the last fingerprint was made of: most operations are like the one before. */
    uint64_t facts[GR_EXEC_FACTS], facts_hash;

    const gr_op *blocked;  /* the caller can start nothing until this one is over; NULL: it can */
    bool moved;            /* since the last look at the clock */
    int64_t idle_since_us; /* nothing moved since */
    int64_t last_look_us;
    /* Entries of the record, plus one: of the newest operation that may end without a word from
     * some rank, and of the newest one that ended and had one from all. */
    uint64_t unmatched, matched;
    uint64_t polled_ticks,
        poll_every_ticks;    /* the last look between operations; how often there is one */
    const gr_op *arrived_op; /* to which a peer came last in this pass; NULL: to none */
    uint64_t arrived;        /* when, in ticks */
    gr_diagnosis *diagnosis;
    bool arbitrating; /* gr_exec_set_arbitrating */
    gr_diag diag;
    _Atomic bool ended; /* `diag` has the first failure, and does not change any more */
    gr_flight_recorder *record;
    gr_timeline *timeline; /* NULL: none */
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
static inline uint32_t gr_op_segments(const gr_op *op, const gr_schedule_step *step)
{
    return gr_step_is_whole(step->kind) ? 1 : op->segments;
}

/* The first message of an operation has not passed. */
static inline bool gr_exec_at_first(const gr_exec_cursor *cursor)
{
    return cursor->slice == 0 && cursor->index == 0;
}

/* Both in the same operation. */
static inline bool gr_exec_is_behind(const gr_exec_cursor *cursor, const gr_exec_cursor *other)
{
    return cursor->slice != other->slice ? cursor->slice < other->slice
                                         : cursor->index < other->index;
}

static inline bool gr_op_lacks_scratch(const gr_op *op)
{
    return op->scratch_bytes > 0 && !op->scratch;
}

static inline int gr_op_world(const gr_op *op, int peer)
{
    return op->world ? op->world[peer] : peer;
}

static inline int gr_op_local(const gr_op *op, int world)
{
    return op->local ? op->local[world] : world;
}

/* Fingerprints of messages have this bit, others do not: their numbers count something else. */
#define GR_FINGERPRINT_MESSAGE (UINT64_C(1) << 63)
/* These bits distinguish groups that have the same number at different times. */
#define GR_FINGERPRINT_SERIAL (UINT64_C(127) << 56)
static inline uint64_t gr_exec_serial_bits(uint32_t serial)
{
    return (uint64_t)serial << 56 & GR_FINGERPRINT_SERIAL;
}

/* Whose coming an operation needs by its kind alone: of nobody, of all members; else a rank. */
enum { GR_NEEDS_NONE = -1, GR_NEEDS_ALL = -2 };

/* exec.c */
void gr_exec_part_over(gr_exec *exec, gr_op *op);           /* its last step is done */
void gr_exec_remove_custom(gr_exec *exec, const gr_op *op); /* custom[] does not hold it any more */
void gr_exec_finish(gr_exec *exec, gr_op *head, gr_status status);
void gr_exec_record_end(gr_exec *exec, const gr_op *op, gr_status status);
/* An operation was started at `now` (ticks), and may be over as well. If ranks may have called
 * something else before, or may end a sub-group, looks at what they sent, from time to time. */
void gr_exec_periodic_poll(gr_exec *exec, uint64_t now);

/* exec_start.c */
uint64_t gr_exec_fingerprint(gr_exec *exec, const gr_exec_group *group, const gr_op_desc *desc,
                             const size_t *counts);
gr_flight_recorder_entry *gr_exec_write_entry(gr_exec *exec, const gr_op_desc *desc);
void gr_exec_grow_fini(gr_op *op);

/* Makes the link if there is none; the side that sends connects. */
void gr_exec_open_link(gr_exec *exec, gr_exec_link *link, bool sends, bool receives);

/* exec_message.c */
void gr_exec_messages_init(gr_exec *exec);
void gr_exec_messages_fini(gr_exec *exec);
/* All operations have ended. */
void gr_exec_messages_end(gr_exec *exec);
/* Messages of this communicator that nobody has received. */
void gr_exec_messages_drop(gr_exec *exec, uint16_t comm);
/* As gr_exec_plan_stop and gr_exec_plan_is_read. */
void gr_exec_message_stop(gr_exec *exec, gr_op *op);
bool gr_exec_message_is_read(const gr_exec *exec, const gr_op *op);
/* The head of the link is a message of a group that has ended: takes it off. */
void gr_exec_message_skip(gr_exec *exec, gr_exec_link *link, const gr_frame *frame);
/* An operation that has begun. */
void gr_exec_message_enter(gr_exec *exec, gr_op *op);
/* The head of the link is such a frame. Returns true if it was taken. */
bool gr_exec_is_message_frame(const gr_frame *frame);
bool gr_exec_message_take(gr_exec *exec, gr_exec_link *link, const gr_frame *frame);
/* Hands the link what it has room for. */
void gr_exec_messages_push(gr_exec *exec, gr_exec_link *link);
/* Ends sends that the link has done with. */
void gr_exec_messages_reap(gr_exec *exec, gr_exec_link *link);
/* Something is to be handed to the link, or comes from it. */
bool gr_exec_messages_busy(const gr_exec_link *link);
/* An unfinished message needs the peer, which is gone. */
bool gr_exec_messages_need(const gr_exec *exec, const gr_exec_link *link);
/* One of them that is not over; NULL: none. */
const gr_op *gr_exec_message_that_needs(const gr_exec *exec, int peer);
/* The peer's message of that number has met its receive here. */
bool gr_exec_message_is_matched(const gr_exec_link *link, uint32_t number);
/* The same, and it has not: it is kept here. */
bool gr_exec_message_is_kept(const gr_exec_link *link, uint32_t number);

/* exec_scratch.c */
void gr_exec_scratch_init(gr_exec *exec, int64_t limit_bytes);
void gr_exec_scratch_fini(gr_exec *exec);
/* Before the operation begins; false: no memory. */
bool gr_exec_scratch_prepare(gr_exec *exec, gr_op *op, size_t size_bytes);
void gr_exec_scratch_enter(gr_exec *exec, gr_op *op);
void gr_exec_scratch_leave(gr_exec *exec, gr_op *op);
/* Lets one beyond the limit if nothing has moved for long. Returns when to look again. */
int64_t gr_exec_scratch_look(gr_exec *exec, int64_t now_us);

/* exec_move.c */
void gr_exec_step_done(gr_exec *exec, gr_op *op, uint32_t at);
void gr_exec_queue_if_ready(gr_exec *exec, gr_op *op, uint32_t at);
void gr_exec_mark_busy(gr_exec *exec, gr_exec_link *link); /* the next passes look at it */
void gr_exec_mark_post(gr_exec *exec, gr_exec_link *link);
void gr_exec_advance(gr_exec *exec, gr_exec_link *link, bool sending);
void gr_exec_drain(gr_exec *exec); /* local steps and the messages they made ready */
/* Sends what is queued. So small messages that became ready at once go to a peer in one call. */
void gr_exec_flush(gr_exec *exec);
void gr_exec_reap(gr_exec *exec, gr_exec_link *link);
void gr_exec_take(gr_exec *exec, gr_exec_link *link);
/* Returns true if something must still pass over this link. */
bool gr_exec_needs(gr_exec *exec, const gr_exec_link *link);
/* Copies what is viewed and gives the views back. A plan cannot deadlock as long as what was taken
 * is taken; a view is taken only in part, since its sender waits for it. */
void gr_exec_release_views(gr_exec *exec);

/* It moves no more, and the links have no more of it than what they read already. */
void gr_exec_plan_stop(gr_exec *exec, gr_op *op);
/* A link still reads what the operation sent. */
bool gr_exec_plan_is_read(const gr_exec *exec, const gr_op *op);

/* exec_fail.c */
/* The link is broken or left; fatal if anything still needs it. `op` waits, may be NULL. */
void gr_exec_lost(gr_exec *exec, gr_exec_link *link, gr_status status, const gr_op *op);
/* Data are of no use any more: behind those that nobody took there may stand what explains the
 * failure. That sentence, or NULL. */
const gr_diag *gr_exec_discard_all(gr_exec *exec);
/* gr_mesh_progress tells of a broken link, or of something worse. */
void gr_exec_mesh_failed(gr_exec *exec, gr_status status, const gr_diag *diag);

#endif
