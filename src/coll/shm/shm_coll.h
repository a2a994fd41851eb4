/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SHM_SHM_COLL_H
#define GR_COLL_SHM_SHM_COLL_H

/* Collectives among ranks of one host without messages. Each rank publishes a control slot in
 * its own memory and reads the slots of the others. Small contributions are eager data,
 * and every rank computes its own result from them. Else each rank computes a share of all
 * results straight from the contributions: in registered memory directly, in other memory
 * through the kernel, or by way of memory that is shared. The order of additions is that of the
 * shard tree: the bits are those of the canonical plans.
 *
 * Every rank of a communicator must start the same operations in the same order; whether one runs
 * here depends only on what all ranks pass alike. An operation has the number that the executor
 * gives it: operations that run as plans have numbers of the same sequence.
 *
 * Threads: all of a mesh belongs to the thread that the mesh belongs to. Nothing blocks, and
 * nothing allocates but the first operation over a new number of shards. */

#include "coll/plan/plan.h"
#include "coll/reduce/reduce.h"
#include "link/shared.h"
#include <gradus/coll.h>

typedef struct gr_shm_colls gr_shm_colls; /* of one mesh */
typedef struct gr_shm_coll gr_shm_coll;   /* of one communicator */
typedef struct gr_shm_coll_op gr_shm_coll_op;

enum { GR_SHM_COLL_RANKS_MAX = GR_SHARED_RANKS_MAX, GR_SHM_COLL_OPS_MAX = 128 };

/* NULL: no memory. */
gr_shm_colls *gr_shm_colls_create(gr_mesh *mesh);
/* Before the mesh is destroyed. Frees those that are still open. NULL ok. */
void gr_shm_colls_destroy(gr_shm_colls *shms);

/* How the ranks of a communicator meet in shared memory. */
typedef enum gr_shm_meeting {
    GR_SHM_APART, /* not at all: their links are of other kinds, or they are too many */
    GR_SHM_MEET,
    GR_SHM_MEET_ON_CORES /* each has a core of its own */
} gr_shm_meeting;

/* As this rank sees it by the links that it has: the same on all ranks unless links are made when
 * they are first needed. world[r]: the mesh's rank of r. */
gr_shm_meeting gr_shm_coll_meet(gr_mesh *mesh, int size, const int *world);

/* Of the communicator with number `id` (never used again in this mesh), of which this is rank
 * `rank` of `size`; `world`: borrowed for the call; `meeting`: the same on all ranks, and no more
 * than this one sees. NULL: this communicator has none, which is so on all its ranks. (Without
 * memory there is none either: then *no_memory_out is set, since that is not so on all ranks.) */
gr_shm_coll *gr_shm_coll_open(gr_shm_colls *shms, int id, int rank, int size, const int *world,
                              gr_shm_meeting meeting, bool *no_memory_out);
void gr_shm_coll_close(gr_shm_coll *shm); /* NULL ok */

typedef struct gr_shm_coll_request {
    gr_coll coll; /* no message; not an alltoall with counts by rank */
    gr_dtype dtype;
    gr_redop op;
    size_t count;         /* elements of the buffer, or of each block */
    const size_t *counts; /* of each block, the same on all ranks; copied. NULL: `count` each */
    int root;
    int shards; /* one a rank: the size */
    /* Where the whole buffer of all blocks begins, or would begin if this rank held all of it.
     * One input, or gr_shard_partials of this rank in an allreduce; the pointers are copied, the
     * buffers borrowed. `out` may be inputs[0]: in place. */
    const void *const *inputs;
    void *out;
    int divisor; /* of the result; 1: none */
    double prescale, postscale;
    gr_reduce_user *user; /* with GR_USER */
    void *user_arg;
} gr_shm_coll_request;

/* How it does it. */
typedef enum gr_shm_coll_way {
    GR_SHM_COLL_EAGER, /* contributions are in the slots, and every rank adds all */
    GR_SHM_COLL_OWN,   /* each rank adds its share of all buffers, and writes it into all results */
    GR_SHM_COLL_FREE,  /* whoever runs adds a share: fewer cores than ranks */
    GR_SHM_COLL_KERNEL, /* as these two; what is not shared is reached through the kernel */
    GR_SHM_COLL_WINDOWS /* each rank adds its share of what passes through bounce buffers */
} gr_shm_coll_way;

/* `most_bytes`: contributions of the rank that has most of them, of `leaves` in all; `registered`:
 * all buffers of all ranks are gr_alloc memory; `kernel_cost`: gr_cma_cost, or HUGE_VAL where
 * the kernel does not let all ranks reach all other buffers; `not_oversubscribed`: there is a core
 * for every rank. */
gr_shm_coll_way gr_shm_coll_way_of(gr_coll coll, size_t most_bytes, int leaves, bool registered,
                                   double kernel_cost, bool not_oversubscribed);

/* GR_E_NO_MEMORY: too many are not finished, or memory. To be posted next. */
gr_status gr_shm_coll_start(gr_shm_coll *shm, const gr_shm_coll_request *request,
                            gr_shm_coll_op **op_out) GR_MUST_CHECK;
/* The same for one that is posted any number of times, and does not count among those that are
 * unfinished. Released before the communicator's memory is closed. */
gr_status gr_shm_coll_keep(gr_shm_coll *shm, const gr_shm_coll_request *request,
                           gr_shm_coll_op **op_out) GR_MUST_CHECK;
/* One that is finished, and was not released, is in place at `buf` when it is posted once more. */
void gr_shm_coll_use(gr_shm_coll_op *op, void *buf);
/* Tells the others that this rank has come to operation `number` of the communicator (larger than
 * all before it), with the fingerprint of what all must agree on. gr_shm_coll_ready,
 * gr_shm_coll_move or gr_shm_coll_spin must follow: they wake sleepers. */
void gr_shm_coll_post(gr_shm_coll_op *op, uint32_t number, uint64_t fingerprint);
/* Directly after gr_shm_coll_post, for who waits for this operation: looks for a moment. True: it
 * was small, and is finished; *waited_out: a rank had not come yet. False: it is to be moved on. */
bool gr_shm_coll_try(gr_shm_coll_op *op, bool *waited_out);
/* Bits: the ranks that it cannot end before, once it is posted. */
uint64_t gr_shm_coll_awaited(const gr_shm_coll_op *op);
/* gr_shm_coll_mismatch would find what was found already. */
bool gr_shm_coll_differs(const gr_shm_coll *shm);
/* Moves it on. Returns GR_PENDING; GR_OK if it is finished; GR_E_MISMATCH if the rank
 * gr_shm_coll_late called something else; GR_E_PROTOCOL if that rank posted nonsense. After a
 * failure the communicator cannot go on. */
gr_status gr_shm_coll_move(gr_shm_coll_op *op) GR_MUST_CHECK;
/* An operation that has ended here was called differently by rank *peer_out. What only some
 * ranks wait for, a small broadcast, say, may end before all have come: their calls are compared
 * when they come. */
bool gr_shm_coll_mismatch(gr_shm_coll *shm, uint32_t *number_out, uint64_t *fingerprint_out,
                          int *peer_out);
/* Returns true if the operation has advanced since the last call. */
bool gr_shm_coll_moved(gr_shm_coll_op *op);
/* Ranks before this one have come. */
int gr_shm_coll_arrived(const gr_shm_coll_op *op);
/* Returns true if gr_shm_coll_move would do anything. Wakes the ranks that wait for what was last
 * stored here. */
bool gr_shm_coll_ready(gr_shm_coll_op *op);
/* The same for who has nothing else to do: looks for a moment, in which others have the core if
 * there are too few. False: sleep instead. */
bool gr_shm_coll_spin(gr_shm_coll_op *op);
/* Returns true if `peer` must still do something for the operation. */
bool gr_shm_coll_needs(const gr_shm_coll_op *op, int peer);
/* Returns true if the next move ends the operation without a look at what other ranks have outside
 * of their slots. */
bool gr_shm_coll_is_complete(const gr_shm_coll_op *op);
/* The first rank that must; -1: none. */
int gr_shm_coll_late(const gr_shm_coll_op *op);
/* It called something else, in which nobody waits for it. */
bool gr_shm_coll_called_other(const gr_shm_coll_op *op, int peer);
/* Gives the object back: finished, or never posted; or given up: then the communicator's shared
 * memory must not be used again. */
void gr_shm_coll_release(gr_shm_coll_op *op);

#endif
