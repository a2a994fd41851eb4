/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "coll/comm_internal.h"
#include "coll/reduce.h"

enum { SHARDS_MAX = (1 << 14) - 1 };
#define COUNT_MAX ((UINT64_C(1) << 38) - 1)

/* What a caller asked for, checked. */
typedef struct call {
    gr_coll coll;
    gr_dtype dtype;
    gr_redop op;
    int root, shards;
    size_t count;       /* as the caller said it */
    size_t total_count; /* of one buffer */
    void *const *user;
} call;

/* ---- Checking -------------------------------------------------------------------------------- */
static gr_status refuse(const gr_comm *comm, gr_coll coll, const char *why)
{
    gr_log_write(&comm->log, GR_LOG_ERROR, "coll", "%s on rank %d: %s", gr_coll_name(coll),
                 comm->rank, why);
    return GR_E_INVALID;
}

static gr_status check(const gr_comm *comm, const call *r)
{
    if (!comm) {
        return GR_E_INVALID;
    }
    if ((unsigned)r->dtype >= GR_DTYPE_COUNT) {
        return refuse(comm, r->coll, "the type of the elements is no gr_dtype");
    }
    if ((unsigned)r->op >= GR_REDOP_COUNT) {
        return refuse(comm, r->coll, "the operation is no gr_redop");
    }
    if (r->op == GR_USER) {
        return refuse(comm, r->coll, "this call takes no function of the caller's");
    }
    if (r->root < 0 || r->root >= comm->size) {
        return refuse(comm, r->coll, "the root is no rank of this communicator");
    }
    if (r->shards < 1 || r->shards > SHARDS_MAX) {
        return refuse(comm, r->coll, "the number of shards must be 1 .. 16383");
    }
    if (r->count > COUNT_MAX / (size_t)comm->size) {
        return refuse(comm, r->coll, "the count is too large: at most 2^38 - 1 elements in all");
    }
    return GR_OK;
}

static gr_status check_buffers(const gr_comm *comm, const call *r)
{
    int buffers =
        r->coll == GR_COLL_ALLREDUCE ? gr_shard_partials(r->shards, comm->size, comm->rank) : 1;
    buffers = buffers > 1 ? buffers : 1; /* the result needs one */
    for (int i = 0; i < buffers && r->count > 0; i++) {
        if (!r->user || !r->user[i]) {
            return refuse(comm, r->coll, "a buffer is NULL though the count is not 0");
        }
    }
    return GR_OK;
}

/* ---- Starting and ending --------------------------------------------------------------------- */
static bool order_free(const call *r)
{
    return (r->dtype >= GR_I32 && r->dtype < GR_DTYPE_COUNT) || r->coll == GR_COLL_ALLGATHER ||
           r->coll == GR_COLL_BROADCAST || r->coll == GR_COLL_BARRIER;
}

/* Under the lock. */
static gr_status start(gr_comm *comm, const call *r, gr_op **op_out)
{
    if (gr_exec_diag(comm->exec)->status != GR_OK) {
        return GR_E_COMM_BROKEN;
    }
    gr_plan_shape shape = {.coll = r->coll,
                           .rank = comm->rank,
                           .world_size = comm->size,
                           .shards = r->shards,
                           .root = r->root};
    size_t size_bytes = r->total_count * gr_dtype_bytes(r->dtype);
    const gr_algorithm *algorithm =
        gr_select(&comm->selection, &shape, r->dtype, size_bytes, order_free(r)).algorithm;
    if (!algorithm) {
        return refuse(comm, r->coll, "no algorithm can do it for this number of ranks");
    }
    bool reduces = r->coll == GR_COLL_ALLREDUCE || r->coll == GR_COLL_REDUCE_SCATTER;
    bool scale = reduces && r->op == GR_AVERAGE && r->shards > 1;
    gr_exec_request request = {.user = r->user,
                               .desc = {.coll = r->coll,
                                        .dtype = r->dtype,
                                        .op = r->op,
                                        .algorithm = (int)(algorithm - gr_algorithms),
                                        .root = r->root,
                                        .shards = r->shards,
                                        .count = r->count},
                               .total_count = r->total_count,
                               .fixed_blocks = r->coll == GR_COLL_REDUCE_SCATTER ||
                                               r->coll == GR_COLL_ALLGATHER,
                               .user_only = -1,
                               .input_only = -1,
                               .divisor = r->shards};
    gr_diag diag;
    gr_status status = gr_programs_get(&comm->programs, algorithm, &shape, scale,
                                       gr_exec_active(comm->exec) == 0, &request.program, &diag);
    if (status == GR_OK) {
        status = gr_exec_start(comm->exec, &request, 1, op_out, &diag);
    }
    if (status != GR_OK) {
        gr_log_write(&comm->log, GR_LOG_ERROR, "coll", "%s", diag.text);
    }
    return status;
}

static gr_status run_alone(const call *r)
{
    if (r->op == GR_AVERAGE && r->coll == GR_COLL_ALLREDUCE && r->shards > 1 && r->count > 0) {
        gr_scale_inverse(r->user[0], r->count, r->dtype, r->shards);
    }
    return GR_OK;
}

static gr_status run(gr_comm *comm, const call *r)
{
    gr_status status = check(comm, r);
    if (status == GR_OK) {
        status = check_buffers(comm, r);
    }
    if (status != GR_OK || !comm->exec) {
        return status == GR_OK ? run_alone(r) : status;
    }
    gr_op *op = NULL;
    gr_comm_lock(comm);
    status = start(comm, r, &op);
    if (status == GR_OK) {
        gr_exec_wait(comm->exec, op, NULL);
        status = gr_op_release(op);
    }
    gr_comm_unlock(comm);
    return status;
}

static gr_status run_start(gr_comm *comm, const call *r, gr_op **op_out)
{
    gr_status status = op_out ? check(comm, r) : GR_E_INVALID;
    if (status == GR_OK) {
        status = check_buffers(comm, r);
    }
    if (status != GR_OK) {
        return status;
    }
    if (!comm->exec) {
        *op_out = comm->alone;
        return run_alone(r);
    }
    gr_comm_lock(comm);
    status = start(comm, r, op_out);
    gr_comm_unlock(comm);
    return status;
}

gr_status gr_test(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_comm *comm = gr_op_owner(op);
    if (!comm) {
        return gr_op_release(op);
    }
    gr_comm_lock(comm);
    gr_status status = GR_PENDING;
    if (!gr_op_finished(op) && !gr_exec_progress(comm->exec)) {
        (void)gr_exec_look(comm->exec, false);
    }
    if (gr_op_finished(op)) {
        status = gr_op_release(op);
    }
    gr_comm_unlock(comm);
    return status;
}

gr_status gr_wait(gr_op *op)
{
    if (!op) {
        return GR_E_INVALID;
    }
    gr_comm *comm = gr_op_owner(op);
    if (!comm) {
        return gr_op_release(op);
    }
    gr_comm_lock(comm);
    gr_exec_wait(comm->exec, op, NULL);
    gr_status status = gr_op_release(op);
    gr_comm_unlock(comm);
    return status;
}

/* ---- The public operations ------------------------------------------------------------------- */
static int size_of(const gr_comm *comm)
{
    return comm ? comm->size : 1;
}

static call allreduce(void *const *user, int shards, size_t count, gr_dtype dtype, gr_redop op)
{
    return (call){.coll = GR_COLL_ALLREDUCE,
                  .dtype = dtype,
                  .op = op,
                  .shards = shards,
                  .count = count,
                  .total_count = count,
                  .user = user};
}

gr_status gr_allreduce(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, gr_redop op)
{
    call r = allreduce(&buf, size_of(comm), count, dtype, op);
    return run(comm, &r);
}

gr_status gr_allreduce_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, gr_redop op,
                             gr_op **op_out)
{
    call r = allreduce(&buf, size_of(comm), count, dtype, op);
    return run_start(comm, &r, op_out);
}

gr_status gr_allreduce_shards(gr_comm *comm, void *const *partials, int shards, size_t count,
                              gr_dtype dtype, gr_redop op)
{
    call r = allreduce(partials, shards, count, dtype, op);
    return run(comm, &r);
}

gr_status gr_allreduce_shards_start(gr_comm *comm, void *const *partials, int shards, size_t count,
                                    gr_dtype dtype, gr_redop op, gr_op **op_out)
{
    call r = allreduce(partials, shards, count, dtype, op);
    return run_start(comm, &r, op_out);
}

/* Operations on world size blocks of `block_count` elements. */
static call by_block(const gr_comm *comm, gr_coll coll, void *const *user, size_t block_count,
                     gr_dtype dtype, gr_redop op)
{
    return (call){.coll = coll,
                  .dtype = dtype,
                  .op = op,
                  .shards = size_of(comm),
                  .count = block_count,
                  .total_count = block_count * (size_t)size_of(comm),
                  .user = user};
}

gr_status gr_reduce_scatter(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                            gr_redop op)
{
    call r = by_block(comm, GR_COLL_REDUCE_SCATTER, &buf, block_count, dtype, op);
    return run(comm, &r);
}

gr_status gr_reduce_scatter_start(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                                  gr_redop op, gr_op **op_out)
{
    call r = by_block(comm, GR_COLL_REDUCE_SCATTER, &buf, block_count, dtype, op);
    return run_start(comm, &r, op_out);
}

gr_status gr_allgather(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype)
{
    call r = by_block(comm, GR_COLL_ALLGATHER, &buf, block_count, dtype, GR_SUM);
    return run(comm, &r);
}

gr_status gr_allgather_start(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                             gr_op **op_out)
{
    call r = by_block(comm, GR_COLL_ALLGATHER, &buf, block_count, dtype, GR_SUM);
    return run_start(comm, &r, op_out);
}

static call broadcast(const gr_comm *comm, void *const *user, size_t count, gr_dtype dtype,
                      int root)
{
    return (call){.coll = GR_COLL_BROADCAST,
                  .dtype = dtype,
                  .root = root,
                  .shards = size_of(comm),
                  .count = count,
                  .total_count = count,
                  .user = user};
}

gr_status gr_broadcast(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int root)
{
    call r = broadcast(comm, &buf, count, dtype, root);
    return run(comm, &r);
}

gr_status gr_broadcast_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int root,
                             gr_op **op_out)
{
    call r = broadcast(comm, &buf, count, dtype, root);
    return run_start(comm, &r, op_out);
}

static call barrier(const gr_comm *comm)
{
    return (call){.coll = GR_COLL_BARRIER, .dtype = GR_F32, .shards = size_of(comm)};
}

gr_status gr_barrier(gr_comm *comm)
{
    call r = barrier(comm);
    return run(comm, &r);
}

gr_status gr_barrier_start(gr_comm *comm, gr_op **op_out)
{
    call r = barrier(comm);
    return run_start(comm, &r, op_out);
}
