/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BENCH_BARE_H
#define GR_BENCH_BARE_H

/* The reduction that others are measured against: each rank's buffer lies in memory that all of
 * them map; a barrier; rank r adds slice r of all buffers and writes the sum into all of them; a
 * barrier. */

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    RANKS_MAX = 16,
    LINE = 64,
    PIECE = 2048, /* elements that stay in the first cache */
    SPINS = 200   /* before a yield, where cores are shared */
};

typedef struct bare {
    _Alignas(LINE) atomic_long arrived;
    _Alignas(LINE) char end;
} bare;

typedef struct place {
    bare *shared;
    float *buf[RANKS_MAX];
    int rank, size;
    bool yields;
    long passed;            /* arrivals that the last barrier needed */
    int sockets[RANKS_MAX]; /* by tcp alone: by partner; -1: none */
    float *received; /* what a partner sent: half as much as there is, or all that is small */
} place;

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

static inline void barrier(place *at)
{
    at->passed += at->size;
    atomic_fetch_add(&at->shared->arrived, 1);
    for (int i = 0; atomic_load_explicit(&at->shared->arrived, memory_order_acquire) < at->passed;
         i++) {
        if (at->yields && i % SPINS == 0) {
            sched_yield();
        }
    }
}

FOR_EVERY_PROCESSOR
static inline void add_two(float *restrict x, float *restrict y, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float sum = x[i] + y[i];
        x[i] = sum;
        y[i] = sum;
    }
}

FOR_EVERY_PROCESSOR
static inline void add_to(float *restrict sum, const float *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sum[i] += x[i];
    }
}

static inline void add_many(const place *at, size_t begin, size_t end)
{
    float sum[PIECE];
    for (; begin < end; begin += PIECE) {
        size_t count = end - begin < PIECE ? end - begin : PIECE;
        memcpy(sum, at->buf[0] + begin, count * sizeof *sum);
        for (int rank = 1; rank < at->size; rank++) {
            add_to(sum, at->buf[rank] + begin, count);
        }
        for (int rank = 0; rank < at->size; rank++) {
            memcpy(at->buf[rank] + begin, sum, count * sizeof *sum);
        }
    }
}

static inline void reduce_bare(place *at, size_t count)
{
    size_t lines = (count * sizeof(float) + LINE - 1) / LINE, each = LINE / sizeof(float);
    size_t begin = lines * (size_t)at->rank / (size_t)at->size * each;
    size_t end = lines * ((size_t)at->rank + 1) / (size_t)at->size * each;
    end = end < count ? end : count;
    barrier(at);
    if (at->size == 2) {
        add_two(at->buf[0], at->buf[1], begin, end);
    } else {
        add_many(at, begin, end);
    }
    barrier(at);
}

#endif
