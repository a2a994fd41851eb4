/* SPDX-License-Identifier: Apache-2.0 */
#include "train/buckets.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdlib.h>

enum {
    BUCKETS_MAX = 96, /* below what a communicator takes at a time */
    CUT_ALIGN = 16    /* 64 bytes: neighbours share no cache line */
};

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

int gr_buckets_cut(const size_t *ends, int end_count, size_t first_values, size_t values,
                   size_t *cuts_out, int capacity)
{
    int count = 0;
    size_t begin = 0;
    size_t total = end_count > 0 ? ends[end_count - 1] : 0;
    for (int i = 0; i < end_count && count < capacity; i++) {
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

gr_status gr_buckets_init(gr_buckets *buckets, const gr_buckets_config *config, gr_diag *diag)
{
    if (config->partial_count < 1 || config->partial_count > GR_SHARD_PARTIALS_MAX) {
        return gr_fail(diag, GR_E_BUG, "%d partial sums for the buckets", config->partial_count);
    }
    size_t cuts[BUCKETS_MAX];
    size_t values = config->values;
    int count = gr_buckets_cut(config->ends, config->end_count, config->first_values, values, cuts,
                               BUCKETS_MAX);
    while (count == BUCKETS_MAX && values < SIZE_MAX / 4) {
        /* A large model gets larger buckets, not one huge bucket in the end. */
        values *= 2;
        count = gr_buckets_cut(config->ends, config->end_count, config->first_values, values, cuts,
                               BUCKETS_MAX);
    }
    gr_buckets made = {.comm = config->comm, .shards = config->shards, .exact = config->exact};
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
    *buckets = made;
    return GR_OK;
}

void gr_buckets_fini(gr_buckets *buckets)
{
    free(buckets->list);
    *buckets = (gr_buckets){0};
}

void gr_buckets_begin(gr_buckets *buckets)
{
    buckets->started = 0;
    buckets->finished = 0;
}

static gr_status start_one(gr_buckets *buckets, gr_bucket *bucket)
{
    size_t count = bucket->end - bucket->begin;
    bucket->status = GR_PENDING;
    if (buckets->exact) {
        return gr_allreduce_shards_start(buckets->comm, bucket->pointers, buckets->shards, count,
                                         GR_F32, GR_SUM, &bucket->op);
    }
    return gr_allreduce_start(buckets->comm, bucket->pointers[0], count, GR_F32, GR_SUM,
                              &bucket->op);
}

/* Operations end in any order; whoever has ended keeps its result for gr_buckets_wait. */
void gr_buckets_poll(gr_buckets *buckets)
{
    for (int i = buckets->finished; i < buckets->started; i++) {
        gr_bucket *bucket = &buckets->list[i];
        if (bucket->op != NULL) {
            bucket->status = gr_test(bucket->op);
            if (bucket->status != GR_PENDING) {
                bucket->op = NULL;
            }
        }
    }
    while (buckets->finished < buckets->started && buckets->list[buckets->finished].op == NULL) {
        buckets->finished++;
    }
}

static void wait_one(gr_buckets *buckets, gr_bucket *bucket)
{
    if (bucket->op == NULL) {
        return;
    }
    int64_t begin_ns = gr_now_ns();
    bucket->status = gr_wait(bucket->op);
    bucket->op = NULL;
    buckets->wait_ns += gr_now_ns() - begin_ns;
}

gr_status gr_buckets_ready(gr_buckets *buckets, size_t end)
{
    while (buckets->started < buckets->count && buckets->list[buckets->started].end <= end) {
        gr_status status = start_one(buckets, &buckets->list[buckets->started]);
        if (status == GR_E_NO_MEMORY && buckets->finished < buckets->started) {
            /* Too many in flight: the oldest makes room. */
            wait_one(buckets, &buckets->list[buckets->finished]);
            gr_buckets_poll(buckets);
            continue;
        }
        if (status != GR_OK) {
            return status;
        }
        buckets->started++;
    }
    gr_buckets_poll(buckets);
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
