/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/comm_internal.h"

/* The short forms of comm.h: each fills a gr_call. */

#define CALLER __builtin_return_address(0)

/* A store for each member: compilers clear a struct of this size in one slow instruction, which
 * would be a tenth of a small operation. */
static inline void clear(gr_call *call)
{
    call->coll = GR_COLL_ALLREDUCE;
    call->dtype = GR_F32;
    call->op = GR_SUM;
    call->in = NULL;
    call->out = NULL;
    call->count = 0;
    call->counts = NULL;
    call->recv_counts = NULL;
    call->root = 0;
    call->tag = 0;
    call->prescale = 0;
    call->postscale = 0;
    call->reduce = NULL;
    call->reduce_arg = NULL;
    call->shards = 0;
    call->memory = GR_MEMORY_HOST;
    call->partials = NULL;
    call->name = NULL;
    call->site = NULL;
    call->done = NULL;
    call->done_arg = NULL;
    call->source_out = NULL;
}
_Static_assert(sizeof(gr_call) == 152 || sizeof(void *) != 8, "a new member is to be cleared too");

static gr_call by_count(gr_coll coll, void *buf, size_t count, gr_dtype dtype, gr_redop op)
{
    gr_call call;
    clear(&call);
    call.coll = coll;
    call.dtype = dtype;
    call.op = op;
    call.out = buf;
    call.count = count;
    return call;
}

gr_status gr_allreduce(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, gr_redop op)
{
    gr_call call = by_count(GR_COLL_ALLREDUCE, buf, count, dtype, op);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_allreduce_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, gr_redop op,
                             gr_op **op_out)
{
    gr_call call = by_count(GR_COLL_ALLREDUCE, buf, count, dtype, op);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

/* 0 shards would mean one a rank: -1 is refused with the sentence that fits. */
static gr_call over_shards(void *const *partials, int shards, size_t count, gr_dtype dtype,
                           gr_redop op)
{
    gr_call call = by_count(GR_COLL_ALLREDUCE, NULL, count, dtype, op);
    call.shards = shards == 0 ? -1 : shards;
    call.partials = partials;
    return call;
}

gr_status gr_allreduce_shards(gr_comm *comm, void *const *partials, int shards, size_t count,
                              gr_dtype dtype, gr_redop op)
{
    gr_call call = over_shards(partials, shards, count, dtype, op);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_allreduce_shards_start(gr_comm *comm, void *const *partials, int shards, size_t count,
                                    gr_dtype dtype, gr_redop op, gr_op **op_out)
{
    gr_call call = over_shards(partials, shards, count, dtype, op);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_reduce_scatter(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                            gr_redop op)
{
    gr_call call = by_count(GR_COLL_REDUCE_SCATTER, buf, block_count, dtype, op);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_reduce_scatter_start(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                                  gr_redop op, gr_op **op_out)
{
    gr_call call = by_count(GR_COLL_REDUCE_SCATTER, buf, block_count, dtype, op);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_allgather(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype)
{
    gr_call call = by_count(GR_COLL_ALLGATHER, buf, block_count, dtype, GR_SUM);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_allgather_start(gr_comm *comm, void *buf, size_t block_count, gr_dtype dtype,
                             gr_op **op_out)
{
    gr_call call = by_count(GR_COLL_ALLGATHER, buf, block_count, dtype, GR_SUM);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

static gr_call with_root(gr_coll coll, const void *in, void *out, size_t count, gr_dtype dtype,
                         int root)
{
    gr_call call = by_count(coll, out, count, dtype, GR_SUM);
    call.in = in;
    call.root = root;
    return call;
}

gr_status gr_broadcast(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int root)
{
    gr_call call = with_root(GR_COLL_BROADCAST, NULL, buf, count, dtype, root);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_broadcast_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int root,
                             gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_BROADCAST, NULL, buf, count, dtype, root);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_reduce(gr_comm *comm, const void *in, void *out, size_t count, gr_dtype dtype,
                    gr_redop op, int root)
{
    gr_call call = with_root(GR_COLL_REDUCE, in, out, count, dtype, root);
    call.op = op;
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_reduce_start(gr_comm *comm, const void *in, void *out, size_t count, gr_dtype dtype,
                          gr_redop op, int root, gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_REDUCE, in, out, count, dtype, root);
    call.op = op;
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_gather(gr_comm *comm, const void *in, void *out, size_t block_count, gr_dtype dtype,
                    int root)
{
    gr_call call = with_root(GR_COLL_GATHER, in, out, block_count, dtype, root);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_gather_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                          gr_dtype dtype, int root, gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_GATHER, in, out, block_count, dtype, root);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_scatter(gr_comm *comm, const void *in, void *out, size_t block_count, gr_dtype dtype,
                     int root)
{
    gr_call call = with_root(GR_COLL_SCATTER, in, out, block_count, dtype, root);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_scatter_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                           gr_dtype dtype, int root, gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_SCATTER, in, out, block_count, dtype, root);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_alltoall(gr_comm *comm, const void *in, void *out, size_t block_count, gr_dtype dtype)
{
    gr_call call = with_root(GR_COLL_ALLTOALL, in, out, block_count, dtype, 0);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_alltoall_start(gr_comm *comm, const void *in, void *out, size_t block_count,
                            gr_dtype dtype, gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_ALLTOALL, in, out, block_count, dtype, 0);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_send(gr_comm *comm, const void *buf, size_t count, gr_dtype dtype, int to)
{
    gr_call call = with_root(GR_COLL_SEND, buf, NULL, count, dtype, to);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_send_start(gr_comm *comm, const void *buf, size_t count, gr_dtype dtype, int to,
                        gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_SEND, buf, NULL, count, dtype, to);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_recv(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int from)
{
    gr_call call = with_root(GR_COLL_RECV, NULL, buf, count, dtype, from);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_recv_start(gr_comm *comm, void *buf, size_t count, gr_dtype dtype, int from,
                        gr_op **op_out)
{
    gr_call call = with_root(GR_COLL_RECV, NULL, buf, count, dtype, from);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}

gr_status gr_barrier(gr_comm *comm)
{
    gr_call call = by_count(GR_COLL_BARRIER, NULL, 0, GR_F32, GR_SUM);
    return gr_comm_run(comm, &call, 1, CALLER);
}

gr_status gr_barrier_start(gr_comm *comm, gr_op **op_out)
{
    gr_call call = by_count(GR_COLL_BARRIER, NULL, 0, GR_F32, GR_SUM);
    return gr_comm_start(comm, &call, 1, CALLER, op_out);
}
