/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SHM_SHM_COLL_INTERNAL_H
#define GR_COLL_SHM_SHM_COLL_INTERNAL_H

/* Shared by shm_coll.c (life and start), progress.c (lines and states), kernel_copy.c and bounce.c
 * (memory that is not shared: through the kernel, or by way of windows), addition_tree.c (the order
 * of additions) and work.c (the additions, and who does which) only. */

#include "base/stream.h"
#include "coll/plan/traits.h"
#include "coll/shm/shm_area.h"
#include "coll/shm/shm_coll.h"

#include <gradus/shards.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SHM_COLL_FINISHED_MAX = 8, /* operations that are finished without a word */
    SHM_COLL_PACK_ROOTED_MAX = 2048,
    SHM_COLL_WINDOW = 32 << 10,     /* bytes of one window, ... */
    SHM_COLL_WINDOW_PART = 2 << 10, /* ... and of each part of it, at least */
    SHM_COLL_CMA = 1 << 20,         /* bytes that are fetched through the kernel at a time */
    SHM_COLL_COPY = 256 << 10,      /* bytes that are copied twice while they are in a cache */
    SHM_COLL_SWAP = 4 << 10,        /* bytes of two buffers that change places at a time */
    SHM_COLL_CHUNK = 8 << 10,       /* bytes that are added at a time, at most ... */
    SHM_COLL_CHUNK_MIN = 1 << 10,   /* ... and at least, ... */
    SHM_COLL_CACHE = 32 << 10,      /* ... so that all of them are in the first cache */
    SHM_COLL_BUDGET = 1 << 20,      /* bytes of work in one move */
    SHM_COLL_TEMPS = 20,            /* sums under way, and operands times prescale */
    SHM_COLL_KNOWN = 16,
    SHM_COLL_CMA_LEAVES_MAX = 64,
    SHM_COLL_CMA_LEAVES_SHARED = 8, /* where cores are shared, and ... */
    SHM_COLL_CMA_MIN = 2 << 10,     /* ... bytes of each contribution, times the square of these */
    SHM_COLL_CMA_BLOCK_MIN = 32 << 10, /* bytes of each block of an alltoall there */
    SHM_COLL_CMA_REDUCE_MAX = 1 << 20 /* bytes: the sum of a reduce leaves the caches beyond that */
};

/* The order of additions over one number of shards. Operands below 0 are leaves: ~leaf. */
typedef struct shm_step {
    int32_t dst, a, b; /* dst: a sum under way; of the last step, the result */
} shm_step;

typedef struct shm_leaf {
    int rank, input;
} shm_leaf;

typedef struct shm_tree shm_tree;
struct shm_tree {
    shm_tree *next; /* of the same communicator */
    int shards;
    int leaf_count, step_count;
    int inputs_most; /* of any rank */
    int inputs_own;
    size_t chunk_bytes;
    shm_leaf *leaves;
    shm_step *steps;
};

/* NULL: no memory. */
shm_tree *gr_shm_coll_tree_create(int shards, int size, int rank);
void gr_shm_coll_tree_destroy(shm_tree *tree);

typedef enum shm_state {
    SHM_COLL_FREE,
    SHM_COLL_QUEUED, /* its slot is still in use */
    SHM_COLL_POSTED, /* waits for the lines of the others */
    SHM_COLL_PACKED, /* small, and some had not packed: waits until they have */
    SHM_COLL_DIRECT, /* adds its share */
    SHM_COLL_CLAIM,  /* adds shares that nobody has taken */
    SHM_COLL_STAGED, /* goes through windows */
    SHM_COLL_DONE,   /* waits for the others to have done theirs */
    SHM_COLL_FINISHED,
    SHM_COLL_FAILED /* another rank called something else: the executor learns of it, and fails */
} shm_state;

/* The ranks that an operation waits for before it does anything. */
typedef enum shm_waits { SHM_COLL_FOR_ALL, SHM_COLL_FOR_ROOT, SHM_COLL_FOR_NOBODY } shm_waits;

struct gr_shm_coll_op {
    gr_shm_coll *shm;
    gr_shm_coll_op *next; /* free, or started later */
    shm_state state;
    uint32_t seq;
    int arrived;        /* ranks before this one have come, or have done their share */
    bool small;         /* fits into the slots */
    bool always_packed; /* and goes there */
    uint32_t depth;     /* of slots or of places: it uses what the one so many before it used */
    uint8_t kinds;      /* as our slot says */
    bool moved, linked;
    bool kept;      /* memory of its own, also `at` */
    bool cma;       /* it is */
    bool unflushed; /* stored what others wait for, and not looked yet whether it was the last, */
    bool spins;     /* and its owner, who does nothing else, will do so */
    gr_coll coll;
    int root, blocks;
    shm_waits waits;
    shm_waits waits_packed;    /* `waits`, where this rank packs */
    bool is_rooted;            /* not all ranks wait for all */
    bool is_silent;            /* nobody waits for this rank, which then writes no control slot */
    bool gives_own;            /* each rank contributes its own block alone */
    size_t given, given_count; /* elements that this rank contributes, from the first on, ... */
    size_t taken, taken_end;   /* ... and that it gets */
    const shm_tree *tree;      /* NULL: nothing is added up */
    size_t count, largest;     /* elements of all blocks, and of the largest one */
    size_t work;               /* length of the row that is assigned to the ranks: transfer.c */
    bool skips_root;           /* the row has nothing for the block that stays where it is */
    bool claims;               /* whoever runs takes a share; else each rank has its own: */
    size_t packed_bytes;       /* contributions of the rank that has most of them */
    size_t element_bytes;
    size_t firsts[GR_SHM_COLL_RANKS_MAX + 1]; /* where each block begins, and where the last ends */
    size_t chunk;                             /* elements that are added at a time */
    size_t own_begin, own_end;                /* this rank's share of a row that skips nothing */
    size_t begin, end;                        /* elements of its share that are not added yet */
    uint32_t shares, shares_done;      /* SHM_COLL_CLAIM: done by this rank, and not counted yet */
    uint64_t window_first, window_end; /* the same: not begun */
    size_t window_elements, window_bytes;
    gr_reduce_fn *reduce;
    gr_reduce_both_fn *reduce_both; /* NULL: there is none, or more is to be done to the result */
    gr_dtype dtype;
    int divisor;
    double prescale, postscale;
    gr_reduce_user *user;
    void *user_arg;
    uint64_t fingerprint;
    const uint8_t **at; /* by leaf: element `origin` of it; room for shms->leaves_max */
    uint8_t *outs[GR_SHM_COLL_RANKS_MAX]; /* where the result goes, ours first; with `cma` these two
                                         hold addresses of their rank */
    int out_ranks[GR_SHM_COLL_RANKS_MAX]; /* whose they are */
    double out_factors[GR_SHM_COLL_RANKS_MAX]; /* where `factors_differ`: of each of them */
    int out_count;
    double factor;       /* of all results: postscale, where it is the same on all ranks */
    bool factors_differ; /* then `factor` is 1 */
    /* By rank: where the whole buffer begins, as seen from here or, through the kernel, from
     * there. */
    uintptr_t ins[GR_SHM_COLL_RANKS_MAX], results[GR_SHM_COLL_RANKS_MAX];
    double prescales[GR_SHM_COLL_RANKS_MAX]; /* still to be applied to the leaves */
    bool scaled;                             /* none is */
    double postscales[GR_SHM_COLL_RANKS_MAX];
    uint8_t peer_kinds[GR_SHM_COLL_RANKS_MAX]; /* copies: a peer's memory is read once */
    uint32_t cores;                            /* that all ranks see */
    uint8_t *out;
    const uint8_t *inputs[GR_SHARD_PARTIALS_MAX];
    int input_count;
};

typedef struct shm_peer {
    int world;
    shm_area *area; /* read only, but ours */
    uint8_t *heap;
    size_t heap_bytes;
    int core; /* when it posted last; -1: not known */
} shm_peer;

/* Memory of ours that the kernel copies. */
typedef struct shm_known {
    uintptr_t at;
    size_t size_bytes;
    bool written;
} shm_known;

/* An operation that ended here before all others had come to it: do they call the same there? */
typedef struct shm_unchecked {
    uint64_t fingerprint, peers; /* bits: ranks that had not come */
    uint32_t seq;
} shm_unchecked;

typedef struct shm_difference {
    uint64_t fingerprint; /* of this rank's call */
    uint32_t seq;
    int peer;
} shm_difference;

struct gr_shm_coll {
    gr_shm_colls *shms;
    int id, rank, size;
    uint32_t next_seq;              /* of the next operation */
    uint32_t all_finished;          /* all ranks have finished those before it, at least */
    uint32_t published;             /* what our `finished` says */
    gr_shm_coll_op *head, *tail;    /* not finished, in order */
    uint64_t windows_next;          /* of the next staged operation */
    uint64_t windows_bytes;         /* of all that this rank has filled */
    gr_stream to_windows, to_slots; /* how it writes into them */
    shm_unchecked unchecked[SHM_COLL_SLOTS];
    uint64_t unchecked_slots; /* bits */
    bool differs;             /* one of them was called differently, and nobody was notified: */
    shm_difference difference;
    bool not_oversubscribed;
    bool cma; /* everybody is reached through the kernel */
    shm_known known[SHM_COLL_KNOWN];
    uint32_t known_next;
    uint32_t cores;
    shm_area *own;
    shm_work_bitmap *work_bitmaps;
    shm_tree *trees;
    shm_peer peers[]; /* by rank, ourselves as well */
};

struct gr_shm_colls {
    gr_mesh *mesh;
    gr_shm_coll *open[GR_SHARED_COLLS];
    gr_shm_coll_op *free_ops;
    gr_shm_coll_op ops[GR_SHM_COLL_OPS_MAX];
    uint8_t *temps; /* SHM_COLL_TEMPS chunks, and SHM_COLL_CMA bytes */
    int leaves_max;
    gr_isa isa;
    double kernel_cost, kernel_ns; /* gr_cma_cost */
};

/* progress.c */
void gr_shm_coll_wake_all(const gr_shm_coll *shm);
void gr_shm_coll_finish(gr_shm_coll_op *op);
bool gr_shm_coll_has_news(const void *shms); /* would a move of any operation do anything? */

void gr_shm_coll_prepare_waits(gr_shm_coll_op *op);

/* shm_coll.c. Is what is not registered to be reached through the kernel, if all ranks can and want
 * to? */
bool gr_shm_coll_wants_kernel(const gr_shm_coll_op *op);

/* buffers.c */
/* Says in the slot where our buffers are; returns of what kinds they are. */
uint8_t gr_shm_coll_publish_buffers(const gr_shm_coll_op *op, shm_control *control);
/* All ranks have published theirs: which factors do their results have? */
void gr_shm_coll_learn_postscales(gr_shm_coll_op *op);
/* Finds the buffers of all ranks. False: outside the heap of rank op->arrived. */
bool gr_shm_coll_locate(gr_shm_coll_op *op);

/* transfer.c */
/* Elements of the whole buffer that this rank contributes, or (`result`) gets. */
void gr_shm_coll_extent(const gr_shm_coll_op *op, int rank, bool result, size_t *first,
                        size_t *end);
/* How long the row of work is, and which part of it is this rank's, as far as the shape tells. */
void gr_shm_coll_measure_row(gr_shm_coll_op *op);
/* All buffers are known: the row, and as begin and end this rank's own share. */
void gr_shm_coll_share_row(gr_shm_coll_op *op);
/* Positions [begin, end) of the row of work; as gr_shm_coll_cma_add. */
gr_status gr_shm_coll_do(gr_shm_coll_op *op, size_t begin, size_t end);
/* Our result, from the eager data. */
void gr_shm_coll_do_small(gr_shm_coll_op *op);

/* kernel_copy.c */
/* Returns true if only the kernel can reach the buffers of `peer`. */
bool gr_shm_coll_is_far(const gr_shm_coll_op *op, int peer);
/* SHM_COLL_CMA bytes. */
uint8_t *gr_shm_coll_room(const gr_shm_coll_op *op);
bool gr_shm_coll_cma_can(const gr_shm_coll *shm);
/* Returns true if the kernel can copy this memory of ours for others. */
bool gr_shm_coll_cma_usable(gr_shm_coll *shm, const void *mem, size_t size_bytes, bool written);
/* Copies from `src` of rank `from` to `dst` of rank `to`, each of which may be this one. As
 * gr_shm_coll_cma_add. */
gr_status gr_shm_coll_cma_copy(gr_shm_coll_op *op, int from, const uint8_t *src, int to,
                               uint8_t *dst, size_t size_bytes);
/* Bytes of a contribution that are fetched at a time. */
size_t gr_shm_coll_cma_piece(const gr_shm_coll_op *op);
/* Adds elements [begin, end) of all contributions, and gives the sum to all. GR_OK, or the
 * operation cannot go on at rank op->arrived: GR_PENDING (that rank is about to end),
 * GR_E_PROTOCOL. */
gr_status gr_shm_coll_cma_add(gr_shm_coll_op *op, size_t begin, size_t end);
/* We have revoked our memory: returns when nobody writes into our memory any more. */
void gr_shm_coll_cma_wait(const gr_shm_coll *shm);

/* bounce.c */
bool gr_shm_coll_windows_can_move(const gr_shm_coll_op *op);
void gr_shm_coll_windows_move(gr_shm_coll_op *op); /* one step at most */
bool gr_shm_coll_windows_need(const gr_shm_coll_op *op, int peer);

/* work.c. Adds elements [begin, end) of the leaves `op->at`, in the order of the tree, to
 * `op->outs`; both begin with element `origin`. */
void gr_shm_coll_add(const gr_shm_coll_op *op, size_t begin, size_t end, size_t origin);
/* Elements [begin, end) of our own inputs, times prescale, each `stride` bytes behind the one
 * before; `stream` and `round` belong to that memory. */
void gr_shm_coll_pack(const gr_shm_coll_op *op, size_t begin, size_t end, uint8_t *to,
                      size_t stride, gr_stream *stream, uint64_t round);

/* Share `part` of `parts` of `count` elements: cut at cache lines. */
size_t gr_shm_coll_cut(size_t count, size_t element_bytes, size_t parts, size_t part);
/* All buffers are reached: cuts the work into shares, and says by the state who takes them. */
void gr_shm_coll_assign(gr_shm_coll_op *op);
shm_work_bitmap *gr_shm_coll_claim_of(const gr_shm_coll_op *op);
/* SHM_COLL_DIRECT: some of this rank's share. GR_OK: that was the last of it; GR_PENDING; or as
 * gr_shm_coll_cma_add. */
gr_status gr_shm_coll_add_own(gr_shm_coll_op *op);
/* SHM_COLL_CLAIM: a share that nobody has taken; SHM_COLL_DONE: none was left. GR_PENDING, or as
 * gr_shm_coll_cma_add. */
gr_status gr_shm_coll_add_free(gr_shm_coll_op *op);

static inline shm_control *gr_shm_coll_control_of(const gr_shm_coll_op *op, int peer)
{
    return &op->shm->peers[peer].area->slots[op->seq % SHM_COLL_SLOTS].control;
}

static inline _Atomic uint32_t *gr_shm_coll_done_of(const gr_shm_coll_op *op, int peer)
{
    return &op->shm->peers[peer].area->done_flags[op->seq % SHM_COLL_SLOTS].done;
}

/* Where an operation like this one with number `seq` has its eager data. */
static inline uint8_t *gr_shm_coll_eager_of(const gr_shm_coll_op *op, int peer, uint32_t seq)
{
    shm_area *area = op->shm->peers[peer].area;
    return op->depth == SHM_COLL_SLOTS ? area->slots[seq % SHM_COLL_SLOTS].eager
                                       : area->places[seq % SHM_COLL_PLACES].eager;
}

static inline uint8_t *gr_shm_coll_eager(const gr_shm_coll_op *op, int peer)
{
    return gr_shm_coll_eager_of(op, peer, op->seq);
}

/* Small contributions fit the control slot itself. */
static inline bool gr_shm_coll_in_line(const gr_shm_coll_op *op)
{
    return op->packed_bytes <= SHM_COLL_INLINE;
}

/* The small contributions of a rank. */
static inline uint8_t *gr_shm_coll_packed(const gr_shm_coll_op *op, int peer)
{
    return gr_shm_coll_in_line(op) ? gr_shm_coll_control_of(op, peer)->body.bytes
                                   : gr_shm_coll_eager(op, peer);
}

/* Few bytes, most often one element, for which a call would cost more than the copy. */
static inline void gr_shm_coll_copy(uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    if (size_bytes == sizeof(uint32_t)) {
        memcpy(to, from, sizeof(uint32_t));
    } else if (size_bytes == sizeof(uint64_t)) {
        memcpy(to, from, sizeof(uint64_t));
    } else {
        memcpy(to, from, size_bytes);
    }
}

#endif
