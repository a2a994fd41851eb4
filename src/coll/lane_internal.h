/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_LANE_INTERNAL_H
#define GR_COLL_LANE_INTERNAL_H

/* Shared by lane.c (life and start), lane_move.c (lines and states), lane_cma.c and lane_windows.c
 * (memory that is not shared: through the kernel, or by way of windows), lane_cores.c (who is on
 * which core), lane_tree.c (the order of additions) and lane_work.c (the additions, and who does
 * which) only. */

#include "coll/lane.h"

#include <stdatomic.h>

enum {
    LANE_LINE = 64,
    LANE_SLOTS = 16,        /* operations of a lane under way; a power of two */
    LANE_FINISHED_MAX = 4,  /* and so many that are finished without a word */
    LANE_INLINE = 48,       /* bytes of contributions within a line */
    LANE_SMALL_MAX = 16384, /* bytes of contributions of one rank beside its line */
    /* So many are packed even if all could be read where they are: that saves the second of two
     * waits. */
    LANE_PACK_MAX = 1024,
    LANE_HALF = 128 << 10, /* bytes of one window, of which there are two */
    LANE_CMA = 512 << 10,  /* bytes that are fetched through the kernel at a time; see lane_cma.c */
    LANE_CHUNK = 8 << 10,  /* bytes that are added at a time, at most ... */
    LANE_CHUNK_MIN = 1 << 10, /* ... and at least, ... */
    LANE_CACHE = 32 << 10,    /* ... so that all of them are in the first cache */
    LANE_BUDGET = 1 << 20,    /* bytes of work in one move */
    LANE_TEMPS = 20,          /* sums under way, and operands times prescale */
    LANE_KNOWN = 16,
    LANE_CMA_LEAVES_MAX = 64,
    LANE_CMA_LEAVES_SHARED = 8, /* where cores are shared, and ... */
    LANE_CMA_MIN = 2 << 10,     /* ... bytes of each contribution, times the square of these */
    LANE_TREES_MAX = 16         /* numbers of shards */
};

/* Of a rank's buffers in an operation. */
enum {
    LANE_IN_HEAP = 1,   /* all are in its heap, at these offsets plus one */
    LANE_BY_KERNEL = 2, /* it reaches everybody through the kernel; so may all reach its buffers,
                           which are at these addresses if they are not in its heap */
    LANE_BESIDE = 4     /* its contributions are in the line, or beside it */
};

/* What a rank says of an operation. `posted` is written last. */
typedef struct lane_line {
    _Alignas(LANE_LINE) _Atomic uint32_t posted; /* number of the operation plus one */
    uint8_t kinds;
    uint8_t unfinished; /* so many before this one it had not finished yet */
    int16_t core;       /* it runs on, where cores are shared */
    uint64_t fingerprint;
    union {
        struct {
            uint64_t out, input; /* the first; further ones: beside the line */
            double prescale;
        } at;
        uint8_t bytes[LANE_INLINE];
    } body;
} lane_line;
_Static_assert(sizeof(lane_line) == LANE_LINE, "one cache line");

/* The line and what is beside it; of a size that does not bring all slots into the same places of a
 * cache. */
typedef struct lane_slot {
    lane_line line;
    uint8_t beside[LANE_SMALL_MAX + LANE_LINE];
} lane_slot;

/* Its share of the work is done. In a line of its own, so that writing it need not wait for those
 * that have just read the other one. */
typedef struct lane_did {
    _Alignas(LANE_LINE) _Atomic uint32_t done; /* number plus one */
} lane_did;

typedef struct lane_windows {
    _Alignas(LANE_LINE) _Atomic uint64_t filled;
    _Alignas(LANE_LINE) _Atomic uint64_t reduced;
    _Alignas(LANE_LINE) _Atomic uint64_t copied;
} lane_windows;

/* A rank's area, which only it writes. */
typedef struct lane_area {
    lane_slot slots[LANE_SLOTS];
    lane_did dids[LANE_SLOTS];
    _Alignas(LANE_LINE) _Atomic uint32_t finished;   /* at least those before this number */
    _Alignas(LANE_LINE) _Atomic uint32_t wants_room; /* it waits for others' `finished` */
    /* Operations that run as plans, by number: the number plus one. */
    _Alignas(LANE_LINE) _Atomic uint32_t notes[LANE_SLOTS];
    lane_windows windows;
    /* It gave an operation up: its memory has other uses. */
    _Alignas(LANE_LINE) _Atomic uint32_t shut;
    /* It writes through the kernel into memory of this rank, plus one: lane_cma.c. */
    _Alignas(LANE_LINE) _Atomic uint32_t writing;
    _Alignas(4096) uint8_t halves[2][LANE_HALF];
} lane_area;
_Static_assert(sizeof(lane_area) <= GR_SHARED_LANE_BYTES, "fits its place");

/* Shares of the work that any rank may take, in the open area of rank 0: a bit for each that was
 * taken, and how many are done. The upper half of each word is the number of the operation plus
 * one. */
typedef struct lane_claim {
    _Alignas(LANE_LINE) _Atomic uint64_t taken;
    _Atomic uint64_t done;
} lane_claim;
_Static_assert(sizeof(lane_claim) * LANE_SLOTS <= GR_SHARED_OPEN_BYTES, "fits its place");

/* The order of additions over one number of shards. Operands below 0 are leaves: ~leaf. */
typedef struct lane_step {
    int32_t dst, a, b; /* dst: a sum under way; of the last step, the result */
} lane_step;

typedef struct lane_leaf {
    int rank, input;
} lane_leaf;

typedef struct lane_tree {
    int shards;
    int leaf_count, step_count;
    int inputs_most; /* of any rank */
    int inputs_own;
    size_t chunk_bytes;
    lane_leaf *leaves;
    lane_step *steps;
} lane_tree;

/* NULL: no memory. */
lane_tree *gr_lane_tree_create(int shards, int size, int rank);
void gr_lane_tree_destroy(lane_tree *tree);

typedef enum lane_state {
    LANE_FREE,
    LANE_QUEUED, /* its slot is still in use */
    LANE_POSTED, /* waits for the lines of the others */
    LANE_PACKED, /* small, and some had not packed: waits until they have */
    LANE_DIRECT, /* adds its share */
    LANE_CLAIM,  /* adds shares that nobody has taken */
    LANE_STAGED, /* goes through windows */
    LANE_DONE,   /* waits for the others to have done theirs */
    LANE_FINISHED,
    LANE_STUCK /* another rank called something else: the executor is told, and fails */
} lane_state;

struct gr_lane_op {
    gr_lane *lane;
    gr_lane_op *next; /* free, or later in the lane */
    lane_state state;
    uint32_t seq;
    int arrived;        /* ranks before this one have come, or have done their share */
    bool small;         /* fits beside the lines */
    bool always_packed; /* and goes there */
    uint8_t kinds;      /* as our line says */
    bool moved, linked;
    bool by_kernel; /* is what is not registered to be reached through the kernel, if it can? */
    bool cma;       /* it is */
    bool said;      /* stored what others wait for, and not looked yet whether it was the last, */
    bool lingers;   /* and its owner, who does nothing else, will do so */
    const lane_tree *tree;
    size_t count, element_bytes;
    size_t chunk;                      /* elements that are added at a time */
    size_t own_begin, own_end;         /* the share of this rank, if each has one */
    size_t begin, end;                 /* elements of the share that are not added yet */
    uint32_t shares, shares_done;      /* LANE_CLAIM: done by this rank, and not counted yet */
    uint64_t window_first, window_end; /* the same: not begun */
    size_t window_elements;
    gr_reduce_fn *reduce;
    gr_reduce_both_fn *reduce_both; /* NULL: there is none, or more is to be done to the result */
    gr_dtype dtype;
    int divisor;
    double prescale, postscale;
    gr_reduce_user *user;
    void *user_arg;
    uint64_t fingerprint;
    const uint8_t **at; /* by leaf: element `origin` of it; room for lanes->leaves_max */
    uint8_t *outs[GR_LANE_RANKS_MAX]; /* where the result goes, ours first; with `cma` these two
                                         hold addresses of their rank */
    int out_count;
    double prescales[GR_LANE_RANKS_MAX]; /* still to be applied to the leaves */
    bool scaled;                         /* none is */
    uint8_t *out;
    const uint8_t *inputs[GR_SHARD_PARTIALS_MAX];
    int input_count;
};

typedef struct lane_peer {
    int world;
    lane_area *area; /* read only, but ours */
    uint8_t *heap;
    size_t heap_bytes;
    int core; /* when it posted last; -1: not known */
} lane_peer;

/* Memory of ours that the kernel copies. */
typedef struct lane_known {
    uintptr_t at;
    size_t size_bytes;
    bool written;
} lane_known;

struct gr_lane {
    gr_lanes *lanes;
    int id, rank, size;
    uint32_t next_seq;       /* of the next operation */
    uint32_t room_until;     /* numbers below have a free slot */
    uint32_t published;      /* what our `finished` says */
    gr_lane_op *head, *tail; /* not finished, in order */
    uint64_t windows_next;   /* of the next staged operation */
    bool roomy;
    bool cma; /* everybody is reached through the kernel */
    lane_known known[LANE_KNOWN];
    uint32_t known_next;
    uint32_t cores;
    uint32_t look_at, look_every; /* lane_cores.c: the operation of the next look */
    bool must_go;                 /* to another core */
    lane_area *own;
    lane_claim *claims;
    lane_tree *trees[LANE_TREES_MAX];
    int tree_count;
    lane_peer peers[]; /* by rank, ourselves as well */
};

struct gr_lanes {
    gr_mesh *mesh;
    gr_lane *open[GR_SHARED_LANES];
    gr_lane_op *free_ops;
    gr_lane_op ops[GR_LANE_OPS_MAX];
    uint8_t *temps; /* LANE_TEMPS chunks, and LANE_CMA bytes */
    int leaves_max;
    gr_isa isa;
};

/* lane_move.c */
void gr_lane_nudge_all(const gr_lane *lane);
void gr_lane_finish(gr_lane_op *op);
bool gr_lane_has_news(const void *lanes); /* would a move of any operation do anything? */

/* lane_cma.c */
bool gr_lane_cma_can(const gr_lane *lane);
/* Says in the line where our buffers are. May everybody reach them? */
bool gr_lane_cma_say_where(gr_lane_op *op, lane_line *line);
/* Bytes of a contribution that are fetched at a time. */
size_t gr_lane_cma_piece(const gr_lane_op *op);
/* Adds elements [begin, end) of all contributions, and gives the sum to all. GR_OK, or the
 * operation is stuck at rank op->arrived: GR_PENDING (that one is about to end), GR_E_PROTOCOL. */
gr_status gr_lane_cma_add(gr_lane_op *op, size_t begin, size_t end);
/* We have shut the lane: returns when nobody writes into our memory any more. */
void gr_lane_cma_wait(const gr_lane *lane);

/* lane_cores.c. All have posted operation `seq`, and where they are is known. */
void gr_lane_look_at_cores(gr_lane *lane, uint32_t seq);
void gr_lane_go(gr_lane *lane); /* this thread, to a core with fewer ranks */

/* lane_windows.c */
bool gr_lane_windows_can_move(const gr_lane_op *op);
void gr_lane_windows_move(gr_lane_op *op); /* one step at most */
bool gr_lane_windows_need(const gr_lane_op *op, int peer);

/* lane_work.c. Adds elements [begin, end) of the leaves `op->at`, in the order of the tree, to
 * `op->outs`; both begin with element `origin`. */
void gr_lane_add(const gr_lane_op *op, size_t begin, size_t end, size_t origin);
/* Elements [begin, end) of our own inputs, times prescale, each `stride` bytes behind the one
 * before. */
void gr_lane_pack(const gr_lane_op *op, size_t begin, size_t end, uint8_t *to, size_t stride);

/* All buffers are reached: cuts the work into shares, and says by the state who takes them. */
void gr_lane_deal(gr_lane_op *op);
/* LANE_DIRECT: some of this rank's share. GR_OK: that was the last of it; GR_PENDING; or as
 * gr_lane_cma_add. */
gr_status gr_lane_add_own(gr_lane_op *op);
/* LANE_CLAIM: a share that nobody has taken; LANE_DONE: none was left. GR_PENDING, or as
 * gr_lane_cma_add. */
gr_status gr_lane_add_free(gr_lane_op *op);

static inline lane_line *gr_lane_line_of(const gr_lane_op *op, int peer)
{
    return &op->lane->peers[peer].area->slots[op->seq % LANE_SLOTS].line;
}

static inline _Atomic uint32_t *gr_lane_done_of(const gr_lane_op *op, int peer)
{
    return &op->lane->peers[peer].area->dids[op->seq % LANE_SLOTS].done;
}

static inline uint8_t *gr_lane_beside(const gr_lane_op *op, int peer)
{
    return op->lane->peers[peer].area->slots[op->seq % LANE_SLOTS].beside;
}

static inline lane_claim *gr_lane_claim_of(const gr_lane_op *op)
{
    return &op->lane->claims[op->seq % LANE_SLOTS];
}

/* LANE_CLAIM: all shares are done. */
static inline bool gr_lane_claims_done(const gr_lane_op *op)
{
    uint64_t done = atomic_load(&gr_lane_claim_of(op)->done);
    return (uint32_t)(done >> 32) == op->seq + 1 && (uint32_t)done >= op->shares;
}

/* Share `part` of `parts` of `count` elements: cut at cache lines. */
static inline size_t gr_lane_cut(size_t count, size_t element_bytes, size_t parts, size_t part)
{
    size_t line = LANE_LINE / element_bytes;
    size_t lines = (count + line - 1) / line;
    size_t at = (lines * part / parts) * line;
    return at < count ? at : count;
}

#endif
