/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_PLAN_H
#define GR_COLL_PLAN_PLAN_H

/* Collectives as plans. An algorithm is a pure function from a shape (rank, world size,
 * assignment of the contributions) to a plan: the list of steps that one rank takes. A plan knows
 * no bytes and no sockets: the executor (exec.h) runs it over any link, segment by segment; the
 * verifier (verify.h) proves it for all ranks at once; a simulator can give it time.
 *
 * Operands. A plan sees buffers cut into `blocks` parts, alike on all ranks; in reduce-scatter,
 * allgather, gather, scatter and alltoall block b is rank b's, elsewhere the algorithm chooses how
 * many there are. GR_SPACE_USER slot 0 is where the result must end; in place it also holds the
 * rank's contribution, with further slots for further partials. Out of place the contributions are
 * the slots of GR_SPACE_INPUT, which is only read. GR_SPACE_SCRATCH slots belong to the executor.
 * A scratch slot that a RECV writes is written by RECVs only, so that the executor may give it a
 * view of the peer's memory. What is in scratch at the end is lost.
 *   Only what the caller must have is used: out of place, reduce-scatter and scatter have no block
 * of the result but their own, a rank that is not the root of a reduce or gather has no result at
 * all. In place, such a rank's contribution stays as it is; the other blocks of a reduce-scatter's
 * buffer do not. Which messages pass does not depend on who is in place.
 *
 * Order. A plan is a sequential program. Steps may run out of order as far as their operands allow:
 * gr_plan_finish derives the dependencies (read after write, write after read, write after write).
 * Messages between two ranks are matched by order: the i-th send to a peer meets the peer's i-th
 * receive from us. The executor sends and takes them in this order, with no more room on the way
 * than one message; the verifier shows that this cannot deadlock. */

#include "coll/plan/counts.h"
#include "group/topology.h"

#include <gradus/coll.h>
#include <gradus/shards.h>
#include <stdbool.h>

typedef enum gr_space {
    GR_SPACE_USER = 0,
    GR_SPACE_SCRATCH = 1,
    GR_SPACE_INPUT = 2 /* read only; exists if the shape is not in place */
} gr_space;

typedef struct gr_operand {
    uint8_t space; /* gr_space */
    uint16_t slot;
    uint32_t block; /* in scratch: the block whose part of a buffer it holds, hence its size */
} gr_operand;

typedef enum gr_step_kind {
    GR_STEP_SEND = 0,   /* a -> peer */
    GR_STEP_RECV = 1,   /* peer -> dst; into scratch it may be a view of the peer's memory */
    GR_STEP_REDUCE = 2, /* dst = a (+) b; dst may be a or b */
    GR_STEP_COPY = 3,   /* dst = a */
    GR_STEP_SIGNAL = 4, /* an empty message to peer */
    GR_STEP_AWAIT = 5,  /* an empty message from peer; later steps depend on it, all earlier SIGNALs
                           may go before it */
    GR_STEP_PRESCALE = 6, /* dst = a times the factor of the contributions; dst may be a */
    GR_STEP_SCALE = 7     /* dst, a finished part of the result: the division of GR_AVERAGE, and the
                             factor of the result */
} gr_step_kind;

typedef struct gr_step {
    uint8_t kind;
    int32_t peer;
    gr_operand dst, a, b;
    uint32_t message;     /* SEND, RECV, SIGNAL, AWAIT: index on the link to or from peer */
    uint32_t after_first; /* dependencies: plan->after[after_first .. + after_count) */
    uint32_t after_count;
    int32_t last_reader; /* RECV into scratch: the last step that reads what was received */
} gr_step;

static inline bool gr_step_gives(const gr_step *step)
{
    return step->kind == GR_STEP_SEND || step->kind == GR_STEP_SIGNAL;
}

static inline bool gr_step_takes(const gr_step *step)
{
    return step->kind == GR_STEP_RECV || step->kind == GR_STEP_AWAIT;
}

typedef struct gr_plan_shape {
    gr_coll coll;
    int rank, world_size;
    int shards; /* contributions, see gr_shard_range; world_size unless gr_allreduce_shards */
    int root;
    bool out_of_place; /* contributions lie in GR_SPACE_INPUT and stay as they are */
    bool uneven;       /* blocks have sizes of their own (counts by rank); some may be empty */
    bool shared;       /* the ranks reach each other's memory (shm_coll.h) */
    uint32_t lines;    /* of a buffer that is cut on cache lines: no more of them; 0: not known */
    const gr_topology *topology; /* NULL: all on one host */
} gr_plan_shape;

typedef struct gr_plan {
    gr_plan_shape shape;
    uint32_t blocks;     /* parts of a user buffer */
    uint16_t user_slots; /* 0: no result here, and the contribution (if any) is an input */
    uint16_t input_slots;
    uint16_t scratch_slots;
    gr_step *steps;
    uint32_t step_count, step_capacity;
    uint32_t *after;
    uint32_t after_count, after_capacity;
    gr_status failed; /* first failure of an emitting call, reported by gr_plan_finish */
} gr_plan;

enum {
    GR_PLAN_STEPS_MAX = 1 << 20,
    GR_PLAN_SLOTS_MAX = UINT16_MAX,
    GR_SHARED_RANKS_MAX = 64 /* that have a place in each other's control slots (shm_coll.h) */
};

void gr_plan_init(gr_plan *plan, const gr_plan_shape *shape);
void gr_plan_fini(gr_plan *plan);

gr_operand gr_user(int slot, int block);
gr_operand gr_scratch(int slot, int block);
gr_operand gr_input(int slot, int block);
/* This rank's contribution: an input if the plan is out of place, else the user's buffer. */
gr_operand gr_contribution(const gr_plan *plan, int slot, int block);
/* Emitters; failures are kept for gr_plan_finish, so that algorithms read as programs. */
void gr_plan_send(gr_plan *plan, int peer, gr_operand a);
void gr_plan_recv(gr_plan *plan, int peer, gr_operand dst);
void gr_plan_reduce(gr_plan *plan, gr_operand dst, gr_operand a, gr_operand b);
void gr_plan_copy(gr_plan *plan, gr_operand dst, gr_operand a);
void gr_plan_signal(gr_plan *plan, int peer);
void gr_plan_await(gr_plan *plan, int peer);
/* For a plan whose steps are all there but not finished. The first: contributions are multiplied by
 * the caller's factor before anything else happens to them: in place in the user's buffer; out of
 * place each block that is used on its way into scratch; `from_input`: the plan is in place, and
 * the contributions come out of GR_SPACE_INPUT. The second: a SCALE step behind each block of
 * the result. */
void gr_plan_scale_contributions(gr_plan *plan, bool from_input);
void gr_plan_scale_result(gr_plan *plan);
/* Leaves out the steps of blocks that get none of the shape's lines: they would move nothing. */
void gr_plan_drop_empty(gr_plan *plan);
/* Numbers the messages and derives the dependencies. */
gr_status gr_plan_finish(gr_plan *plan) GR_MUST_CHECK;

/* How many slots the plan has of a space; 0: there is no such space. */
int gr_plan_slots(const gr_plan *plan, uint8_t space);
/* Blocks of slots as numbers: 0 .. gr_plan_places - 1. A scratch slot is one place. */
size_t gr_plan_places(const gr_plan *plan);
size_t gr_plan_place(const gr_plan *plan, gr_operand operand);

/* ---- Algorithms ------------------------------------------------------------------------------ */
typedef struct gr_algorithm {
    const char *name; /* "direct" */
    gr_coll coll;
    bool canonical;                           /* adds in the order of the shard tree */
    const char *description;                  /* one line, with its source */
    bool (*fits)(const gr_plan_shape *shape); /* the shapes that it can plan for */
    /* For gr_plan_emit; worlds of one never get here. NULL: no plan, but a schedule in shared
     * memory (shm_coll.h), which fits shapes that are `shared` only. */
    void (*plan)(const gr_plan_shape *shape, gr_plan *plan);
} gr_algorithm;

/* Ends with name NULL; those without a plan stand first. */
extern const gr_algorithm gr_algorithms[];
/* NULL if there is none. "canonical" also says that a reduction which is not commutative gets the
 * lower ranks on its left. */
const gr_algorithm *gr_algorithm_find(gr_coll coll, const char *name);
/* Begins the plan of an algorithm that has plans, for a shape that fits; gr_plan_finish is the
 * caller's. A world of one gets an empty plan in place, copies out of place. */
void gr_plan_emit(const gr_algorithm *algorithm, const gr_plan_shape *shape, gr_plan *plan_out);
const char *gr_coll_name(gr_coll coll);

/* ---- The shard tree (tree.c) --------------------------------------------------------------------
 * The node of a range [first, first + count) is a leaf if count is 1; else its left child has the
 * largest power of two below count, its right child the rest. */
int gr_tree_left_count(int count);

typedef struct gr_tree_range {
    int first, count;
} gr_tree_range;
/* The children of a node of two shards or more. */
gr_tree_range gr_tree_left(gr_tree_range node);
gr_tree_range gr_tree_right(gr_tree_range node);
/* The largest whole subtrees of the tree over `shards` inside [first, first + count), left to
 * right; returns how many (at most GR_SHARD_PARTIALS_MAX). */
int gr_tree_cover(int shards, int first, int count, gr_tree_range *ranges_out);
/* Returns true if these two adjacent nodes are the children of one node of the tree over
 * `shards`. */
bool gr_tree_siblings(int shards, gr_tree_range left, gr_tree_range right);

#endif
