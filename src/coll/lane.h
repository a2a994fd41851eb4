/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_LANE_H
#define GR_COLL_LANE_H

/* The lane: allreduce and barrier among ranks of one host without messages. Each rank posts a line
 * in its own memory, reads the lines of all others, and then either adds everything itself (small),
 * or its share of all contributions, and writes the sum straight into the result buffers of all
 * ranks (registered memory), or goes through windows of shared memory (any other memory). The order
 * of additions is that of the shard tree: the bits are those of the canonical plans.
 *
 * Every rank of a communicator must start the same operations in the same order; whether the lane
 * takes one depends only on what all ranks say alike. Operations are numbered: those that run as
 * plans are noted, so that a rank in the lane learns of one that is not.
 *
 * Threads: the lanes of a mesh belong to the thread that the mesh belongs to. Nothing blocks, and
 * nothing allocates but the first operation over a new number of shards. */

#include "coll/reduce.h"
#include "link/shared.h"
#include <gradus/coll.h>

typedef struct gr_lanes gr_lanes; /* of one mesh */
typedef struct gr_lane gr_lane;   /* of one communicator */
typedef struct gr_lane_op gr_lane_op;

enum {
    GR_LANE_RANKS_MAX = 64,
    GR_LANE_OPS_MAX = 128,
    GR_LANE_ALGORITHM = 255 /* in descriptions, where plans have their algorithm */
};

/* NULL: no memory. */
gr_lanes *gr_lanes_create(gr_mesh *mesh);
/* Before the mesh is destroyed. Frees lanes that are still open. NULL ok. */
void gr_lanes_destroy(gr_lanes *lanes);

/* The lane of the communicator with number `id` (never used again in this mesh), of which this is
 * rank `rank` of `size`; world[r]: the mesh's rank of r, borrowed for the call. NULL: this
 * communicator has none, which is so on all its ranks. (Without memory there is none either: then
 * *no_memory_out is set, since that is not so on all ranks.) */
gr_lane *gr_lane_open(gr_lanes *lanes, int id, int rank, int size, const int *world,
                      bool *no_memory_out);
void gr_lane_close(gr_lane *lane); /* NULL ok */

typedef struct gr_lane_request {
    gr_coll coll; /* GR_COLL_ALLREDUCE, GR_COLL_BARRIER */
    gr_dtype dtype;
    gr_redop op;
    size_t count;
    int shards;                /* one a rank: the size */
    const void *const *inputs; /* gr_shard_partials of this rank; copied, the buffers borrowed */
    void *out;                 /* may be inputs[0] */
    int divisor;               /* of the result; 1: none */
    double prescale, postscale;
    gr_reduce_user *user; /* with GR_USER */
    void *user_arg;
} gr_lane_request;

/* How it does it. */
typedef enum gr_lane_way {
    GR_LANE_BESIDE, /* contributions lie beside the lines, and every rank adds all */
    GR_LANE_OWN,    /* each rank adds its share of all buffers, and writes it into all results */
    GR_LANE_FREE,   /* whoever runs adds a share: fewer cores than ranks */
    GR_LANE_KERNEL, /* as these two; what is not shared is reached through the kernel */
    GR_LANE_WINDOWS /* each rank adds its share of what passes through windows of shared memory */
} gr_lane_way;

/* Is it one for the lane of `size` ranks of one host? */
bool gr_lane_does(gr_coll coll, int size);
/* `most_bytes`: contributions of the rank that has most of them, of `leaves` in all; `registered`:
 * all buffers of all ranks are gr_alloc memory; `kernel`: the kernel lets all ranks reach all other
 * buffers; `roomy`: there is a core for every rank. */
gr_lane_way gr_lane_way_of(size_t most_bytes, int leaves, bool registered, bool kernel, bool roomy);

/* Does the lane do it? Alike on all ranks. */
bool gr_lane_takes(const gr_lane *lane, gr_coll coll, size_t count, int shards);

/* GR_E_NO_MEMORY: too many are not finished, or memory. To be posted next. */
gr_status gr_lane_start(gr_lane *lane, const gr_lane_request *request,
                        gr_lane_op **op_out) GR_MUST_CHECK;
/* Starts one that is finished, was not released, and had one input once more, in place at `buf`. */
void gr_lane_repeat(gr_lane_op *op, void *buf);
/* Says to the others that this rank has come, with the fingerprint of what all must agree on.
 * gr_lane_ready, gr_lane_move or gr_lane_linger must follow, and wake those that sleep. */
void gr_lane_post(gr_lane_op *op, uint64_t fingerprint);
/* Move it on. GR_PENDING; GR_OK: finished; GR_E_MISMATCH: rank gr_lane_late called something else;
 * GR_E_PROTOCOL: it posted nonsense. After a failure the communicator cannot go on. */
gr_status gr_lane_move(gr_lane_op *op) GR_MUST_CHECK;
/* Has it moved since the last call? */
bool gr_lane_moved(gr_lane_op *op);
/* Ranks before this one have come. */
int gr_lane_arrived(const gr_lane_op *op);
/* Is any of [at, at + size_bytes) in its result, or (`to_write`) in what it reads? */
bool gr_lane_uses(const gr_lane_op *op, const void *at, size_t size_bytes, bool to_write);
/* Would a move do anything? Whoever waits for what was stored here last is woken. */
bool gr_lane_ready(gr_lane_op *op);
/* The same for who has nothing else to do: looks for a moment, in which others have the core if
 * there are too few. False: sleep instead. */
bool gr_lane_linger(gr_lane_op *op);
/* Must this rank still do something for it? */
bool gr_lane_needs(const gr_lane_op *op, int peer);
/* The first rank that must; -1: none. */
int gr_lane_late(const gr_lane_op *op);
/* Gives the object back, finished, or the last one that was started, not posted; or given up: then
 * the lane must not be used again. */
void gr_lane_release(gr_lane_op *op);

/* The communicator's next operation runs as a plan. */
void gr_lane_note(gr_lane *lane);

#endif
