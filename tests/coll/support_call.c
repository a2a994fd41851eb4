/* SPDX-License-Identifier: Apache-2.0 */
#include "support_call.h"
#include "support_values.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

static void *get(size_t size_bytes)
{
    void *memory = calloc(1, size_bytes + GUARD);
    if (!memory) {
        abort();
    }
    return memory;
}

gr_plan_shape call_shape(const call_spec *spec, int rank, int size)
{
    return (gr_plan_shape){.coll = spec->algorithm->coll,
                           .rank = rank,
                           .world_size = size,
                           .shards = spec->shards,
                           .root = spec->root};
}

void call_fill(const call_spec *spec, int rank, int size, void *user[GR_SHARD_PARTIALS_MAX])
{
    size_t bytes = spec->count * gr_dtype_bytes(spec->dtype);
    memset(user, 0, GR_SHARD_PARTIALS_MAX * sizeof *user);
    user[0] = get(bytes);
    memset(user[0], 0x5a, bytes);
    switch (spec->algorithm->coll) {
    case GR_COLL_ALLREDUCE: {
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        int first, count;
        gr_shard_range(spec->shards, size, rank, &first, &count);
        int covers = count > 0 ? gr_tree_cover(spec->shards, first, count, ranges) : 0;
        for (int i = 0; i < covers; i++) {
            user[i] = i > 0 ? get(bytes) : user[0];
            vals_subtree(user[i], spec->dtype, spec->op, spec->count, spec->seed, ranges[i].first,
                         ranges[i].count, spec->small);
        }
        break;
    }
    case GR_COLL_REDUCE_SCATTER:
        vals_fill(user[0], spec->dtype, spec->count, spec->seed, rank, spec->small);
        break;
    case GR_COLL_BROADCAST:
        if (rank == spec->root) {
            vals_fill(user[0], spec->dtype, spec->count, spec->seed, 0, false);
        }
        break;
    case GR_COLL_ALLGATHER: {
        size_t block = spec->count / (size_t)size;
        vals_fill((uint8_t *)user[0] + block * (size_t)rank * gr_dtype_bytes(spec->dtype),
                  spec->dtype, block, spec->seed, rank, false);
        break;
    }
    default:
        break;
    }
}

void call_free(void *user[GR_SHARD_PARTIALS_MAX])
{
    for (int i = 0; i < GR_SHARD_PARTIALS_MAX; i++) {
        free(user[i]);
        user[i] = NULL;
    }
}

bool call_right(const call_spec *spec, int rank, int size, void *const *user)
{
    size_t element = gr_dtype_bytes(spec->dtype);
    size_t block = spec->count / (size_t)size;
    uint8_t *want = get(spec->count * element);
    size_t first = 0;
    size_t count = spec->count;
    switch (spec->algorithm->coll) {
    case GR_COLL_ALLREDUCE:
        vals_expect(want, spec->dtype, spec->op, count, spec->seed, spec->shards, spec->small);
        break;
    case GR_COLL_REDUCE_SCATTER:
        vals_expect(want, spec->dtype, spec->op, count, spec->seed, size, spec->small);
        first = block * (size_t)rank;
        count = block;
        break;
    case GR_COLL_BROADCAST:
        vals_fill(want, spec->dtype, count, spec->seed, 0, false);
        break;
    case GR_COLL_ALLGATHER:
        for (int from = 0; from < size; from++) {
            vals_fill(want + (size_t)from * block * element, spec->dtype, block, spec->seed, from,
                      false);
        }
        break;
    default:
        count = 0;
        break;
    }
    bool right = memcmp(want + first * element, (const uint8_t *)user[0] + first * element,
                        count * element) == 0;
    free(want);
    return right;
}

gr_status call_start(const call_spec *spec, int rank, int size, void *const *user,
                     gr_programs *programs, gr_exec *exec, gr_op **op_out, gr_diag *diag)
{
    gr_plan_shape shape = call_shape(spec, rank, size);
    bool reduces = shape.coll == GR_COLL_ALLREDUCE || shape.coll == GR_COLL_REDUCE_SCATTER;
    gr_exec_request request = {.user = user,
                               .desc = {.coll = shape.coll,
                                        .dtype = spec->dtype,
                                        .op = spec->op,
                                        .algorithm = (int)(spec->algorithm - gr_algorithms),
                                        .root = spec->root,
                                        .shards = spec->shards,
                                        .count = spec->count},
                               .total_count = spec->count,
                               .fixed_blocks = shape.coll == GR_COLL_REDUCE_SCATTER ||
                                               shape.coll == GR_COLL_ALLGATHER,
                               .user_only = -1,
                               .input_only = -1,
                               .divisor = spec->shards};
    gr_status status =
        gr_programs_get(programs, spec->algorithm, &shape, reduces && spec->op == GR_AVERAGE, false,
                        &request.program, diag);
    return status == GR_OK ? gr_exec_start(exec, &request, 1, op_out, diag) : status;
}
