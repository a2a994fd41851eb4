/* SPDX-License-Identifier: Apache-2.0 */
#include "train/buckets.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdlib.h>

enum {
    CUT_ALIGN = 16 /* 64 bytes: neighbours share no cache line */
};

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

int gr_buckets_cut(const size_t *ends, int end_count, size_t begin, size_t first_values,
                   size_t values, size_t *cuts_out, int capacity)
{
    int count = 0;
    size_t total = end_count > 0 ? ends[end_count - 1] : 0;
    for (int i = 0; i < end_count && count < capacity; i++) {
        if (ends[i] <= begin) {
            continue;
        }
        size_t wanted = count == 0 ? first_values : values;
        wanted = wanted < CUT_ALIGN ? CUT_ALIGN : wanted;
        if (ends[i] - begin < wanted && ends[i] != total) {
            continue;
        }
        /* Only a piece of more than twice the size is worth cutting, into equal parts. */
        size_t larger = values > wanted ? values : wanted;
        size_t size = ends[i] - begin;
        size_t parts = size > 2 * larger ? (size + larger - 1) / larger : 1;
        size_t part = round_up((size + parts - 1) / parts, CUT_ALIGN);
        while (begin < ends[i] && count < capacity) {
            begin = ends[i] - begin > part ? begin + part : ends[i];
            cuts_out[count++] = begin;
        }
    }
    if (count > 0) {
        cuts_out[count - 1] = total;
    }
    return count;
}

int gr_buckets_cut_all(const gr_buckets_config *config, size_t cuts_out[GR_BUCKETS_MAX])
{
    size_t values = config->values;
    size_t plain = config->compression != GR_COMPRESSION_NONE ? config->plain : 0;
    int apart = plain > 0 ? 1 : 0;
    cuts_out[0] = plain;
    for (;;) {
        int room = GR_BUCKETS_MAX - apart;
        int count = gr_buckets_cut(config->ends, config->end_count, plain, config->first_values,
                                   values, cuts_out + apart, room);
        if (count < room || values >= SIZE_MAX / 4) {
            return apart + count;
        }
        /* A large model gets larger buckets, not one huge bucket in the end. */
        values *= 2;
    }
}

static size_t largest_compressed(const gr_buckets *buckets)
{
    size_t largest = 1;
    for (int i = 1; i < buckets->count; i++) {
        size_t size = buckets->list[i].end - buckets->list[i].begin;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* What the compressed buckets need. */
static gr_status make_compressed(gr_buckets *buckets, gr_diag *diag)
{
    size_t length = buckets->list[buckets->count - 1].end;
    size_t piece = gr_compression_piece(buckets->compression);
    if (piece > 0) {
        int shards = buckets->exact ? buckets->shards : gr_comm_size(buckets->comm);
        return gr_sparse_init(&buckets->sparse, buckets->comm, shards, largest_compressed(buckets),
                              piece, diag);
    }
    if (gr_compression_dtype(buckets->compression) == GR_F32) {
        return GR_OK;
    }
    for (int p = 0; p < buckets->partial_count; p++) {
        void *memory = NULL;
        gr_status status = gr_alloc(buckets->comm, length * sizeof(uint16_t), &memory);
        if (status != GR_OK) {
            return gr_fail(diag, status, "no memory for compressed gradients, %zu bytes",
                           length * sizeof(uint16_t));
        }
        buckets->narrow[p] = memory;
    }
    return GR_OK;
}

gr_status gr_buckets_init(gr_buckets *buckets, const gr_buckets_config *config, gr_diag *diag)
{
    if (config->partial_count < 1 || config->partial_count > GR_SHARD_PARTIALS_MAX) {
        return gr_fail(diag, GR_E_BUG, "%d partial sums for the buckets", config->partial_count);
    }
    size_t cuts[GR_BUCKETS_MAX];
    int count = gr_buckets_cut_all(config, cuts);
    gr_buckets made = {.comm = config->comm,
                       .shards = config->shards,
                       .exact = config->exact,
                       .compression = config->compression,
                       .partial_count = config->partial_count};
    made.list = calloc((size_t)count + 1, sizeof *made.list);
    if (made.list == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d buckets", count);
    }
    made.count = count;
    for (int i = 0; i < count; i++) {
        gr_bucket *bucket = &made.list[i];
        bucket->begin = i == 0 ? 0 : cuts[i - 1];
        bucket->end = cuts[i];
        for (int p = 0; p < config->partial_count; p++) {
            bucket->pointers[p] = config->partials[p] + bucket->begin;
        }
    }
    gr_status status = make_compressed(&made, diag);
    if (status != GR_OK) {
        gr_buckets_fini(&made);
        return status;
    }
    *buckets = made;
    return GR_OK;
}

void gr_buckets_fini(gr_buckets *buckets)
{
    for (int p = 0; p < buckets->partial_count; p++) {
        gr_free(buckets->comm, buckets->narrow[p]);
    }
    gr_sparse_fini(&buckets->sparse);
    free(buckets->list);
    *buckets = (gr_buckets){0};
}

void gr_buckets_begin(gr_buckets *buckets)
{
    buckets->started = 0;
    buckets->finished = 0;
}

static bool is_compressed(const gr_buckets *buckets, const gr_bucket *bucket)
{
    return buckets->compression != GR_COMPRESSION_NONE && bucket != buckets->list;
}

static gr_status start_sum(gr_buckets *buckets, void *const *partials, size_t count, gr_dtype dtype,
                           gr_op **op_out)
{
    if (buckets->exact) {
        return gr_allreduce_shards_start(buckets->comm, partials, buckets->shards, count, dtype,
                                         GR_SUM, op_out);
    }
    return gr_allreduce_start(buckets->comm, partials[0], count, dtype, GR_SUM, op_out);
}

static gr_status start_one(gr_buckets *buckets, gr_bucket *bucket)
{
    size_t count = bucket->end - bucket->begin;
    gr_dtype dtype = gr_compression_dtype(buckets->compression);
    bucket->status = GR_PENDING;
    if (!is_compressed(buckets, bucket)) {
        return start_sum(buckets, bucket->pointers, count, GR_F32, &bucket->op);
    }
    if (dtype == GR_F32) {
        bucket->deferred = true;
        return GR_OK;
    }
    void *narrow[GR_SHARD_PARTIALS_MAX];
    for (int p = 0; p < buckets->partial_count; p++) {
        narrow[p] = buckets->narrow[p] + bucket->begin;
        gr_cast_down(dtype, narrow[p], bucket->pointers[p], count);
    }
    return start_sum(buckets, narrow, count, dtype, &bucket->op);
}

/* It has come: as f32 into vector 0. */
static void take_one(gr_buckets *buckets, gr_bucket *bucket)
{
    gr_dtype dtype = gr_compression_dtype(buckets->compression);
    bucket->op = NULL;
    if (bucket->status == GR_OK && is_compressed(buckets, bucket) && dtype != GR_F32) {
        gr_cast_up(dtype, bucket->pointers[0], buckets->narrow[0] + bucket->begin,
                   bucket->end - bucket->begin);
    }
}

/* Operations end in any order; whoever has ended keeps its result for gr_buckets_wait. */
static void poll_buckets(gr_buckets *buckets)
{
    for (int i = buckets->finished; i < buckets->started; i++) {
        gr_bucket *bucket = &buckets->list[i];
        if (bucket->op != NULL) {
            bucket->status = gr_test(bucket->op);
            if (bucket->status != GR_PENDING) {
                take_one(buckets, bucket);
            }
        }
    }
    while (buckets->finished < buckets->started && buckets->list[buckets->finished].op == NULL &&
           !buckets->list[buckets->finished].deferred) {
        buckets->finished++;
    }
}

static void wait_one(gr_buckets *buckets, gr_bucket *bucket)
{
    if (bucket->op == NULL && !bucket->deferred) {
        return;
    }
    int64_t begin_ns = gr_now_ns();
    if (bucket->deferred) {
        float *partials[GR_SHARD_PARTIALS_MAX];
        for (int p = 0; p < buckets->partial_count; p++) {
            partials[p] = bucket->pointers[p];
        }
        bucket->status = gr_sparse_sum(&buckets->sparse, partials, bucket->end - bucket->begin);
        bucket->deferred = false;
    } else {
        bucket->status = gr_wait(bucket->op);
        take_one(buckets, bucket);
    }
    buckets->wait_ns += gr_now_ns() - begin_ns;
}

gr_status gr_buckets_ready(gr_buckets *buckets, size_t end)
{
    while (buckets->started < buckets->count && buckets->list[buckets->started].end <= end) {
        gr_status status = start_one(buckets, &buckets->list[buckets->started]);
        if (status == GR_E_NO_MEMORY && buckets->finished < buckets->started) {
            /* Too many in flight: the oldest makes room. */
            wait_one(buckets, &buckets->list[buckets->finished]);
            poll_buckets(buckets);
            continue;
        }
        if (status != GR_OK) {
            return status;
        }
        buckets->started++;
    }
    poll_buckets(buckets);
    return GR_OK;
}

gr_status gr_buckets_wait(gr_buckets *buckets, int index)
{
    gr_bucket *bucket = &buckets->list[index];
    wait_one(buckets, bucket);
    if (buckets->finished <= index) {
        buckets->finished = index + 1;
    }
    return bucket->status;
}

void gr_buckets_drain(gr_buckets *buckets)
{
    for (int i = buckets->finished; i < buckets->started; i++) {
        wait_one(buckets, &buckets->list[i]);
    }
    buckets->finished = buckets->started;
}
