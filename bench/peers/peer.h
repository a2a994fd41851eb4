/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BENCH_PEER_H
#define GR_BENCH_PEER_H

/* What the programs for the peers share, in C and C++: how operations are timed, checked and
 * reported. The same is done by `gradus bench` for Gradus, so that figures can be compared: every
 * operation is timed on every rank, and averaged over the ranks.
 *
 *   program OPERATION SIZES TIME_US      sizes in bytes with commas between; f32, in place */

#ifndef __cplusplus
#include <stdbool.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PEER_SAMPLES_MAX = 65536, PEER_SIZES_MAX = 64, PEER_PERIOD = 1021 };

typedef struct peer_case {
    const char *operation;
    int rank, size;
    float *in, *out; /* equal where the operation is in place */
    size_t count;    /* of a block */
} peer_case;

/* What each program brings. Failures end the program. */
typedef struct peer_calls {
    void *arg;
    bool (*prepare)(void *arg, peer_case *c); /* before a size; false: there is no such operation */
    void (*run)(void *arg, peer_case *c);
    void (*sum)(void *arg, double *values, int count); /* over all ranks */
    void (*finish)(void *arg);                         /* after a size; may be NULL */
} peer_calls;

static inline double peer_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static inline bool peer_is(const peer_case *c, const char *operation)
{
    return strcmp(c->operation, operation) == 0;
}

/* Operations with a block for each rank; root is rank 0. */
static inline bool peer_many_in(const peer_case *c)
{
    return peer_is(c, "reduce-scatter") || peer_is(c, "alltoall") || peer_is(c, "scatter");
}

static inline bool peer_many_out(const peer_case *c)
{
    return peer_is(c, "allgather") || peer_is(c, "alltoall") || peer_is(c, "gather");
}

static inline bool peer_reduces(const peer_case *c)
{
    return peer_is(c, "allreduce") || peer_is(c, "reduce") || peer_is(c, "reduce-scatter") ||
           peer_is(c, "reduce-broadcast");
}

static inline float peer_value(int rank, size_t i)
{
    return (float)((i % PEER_PERIOD * 7 + (size_t)rank * 3) % 13);
}

static inline size_t peer_blocks(const peer_case *c)
{
    return peer_many_in(c) || peer_many_out(c) ? (size_t)c->size : 1;
}

static inline float *peer_input(const peer_case *c)
{
    bool own = c->in == c->out && peer_many_out(c) && !peer_many_in(c);
    return c->in + (own ? (size_t)c->rank * c->count : 0);
}

static inline void peer_fill(peer_case *c)
{
    size_t blocks = peer_blocks(c);
    for (size_t i = 0; i < blocks * c->count; i++) {
        c->out[i] = -1;
    }
    if (c->count == 0 || (c->rank != 0 && (peer_is(c, "broadcast") || peer_is(c, "scatter")))) {
        return;
    }
    size_t count = c->count * (peer_many_in(c) ? (size_t)c->size : 1);
    float *to = peer_input(c);
    for (size_t i = 0; i < count; i++) {
        to[i] = peer_value(c->rank, i);
    }
}

/* Elements of this rank's result that are not what they must be. */
static inline double peer_wrong(const peer_case *c)
{
    if (c->rank != 0 && (peer_is(c, "reduce") || peer_is(c, "gather"))) {
        return 0;
    }
    bool own = c->in == c->out && peer_many_in(c) && !peer_many_out(c);
    const float *found = c->out + (own && !peer_is(c, "scatter") ? (size_t)c->rank * c->count : 0);
    int source = peer_many_out(c)         ? -1
                 : peer_is(c, "sendrecv") ? (c->rank + c->size - 1) % c->size
                                          : 0;
    double wrong = 0;
    for (size_t block = 0; block < (peer_many_out(c) ? (size_t)c->size : 1); block++) {
        for (size_t i = 0; i < c->count; i++) {
            size_t at = i + (peer_many_in(c) ? (size_t)c->rank * c->count : 0);
            float want = peer_value(source >= 0 ? source : (int)block, at);
            for (int rank = 1; peer_reduces(c) && rank < c->size; rank++) {
                want += peer_value(rank, at);
            }
            wrong += found[block * c->count + i] != want;
        }
    }
    return wrong;
}

static inline double peer_repeat(const peer_calls *calls, peer_case *c, int iterations,
                                 double *samples)
{
    double nothing = 0;
    calls->sum(calls->arg, &nothing, 1); /* all begin together */
    double start_us = peer_now_us(), before_us = start_us;
    for (int i = 0; i < iterations; i++) {
        calls->run(calls->arg, c);
        double now_us = peer_now_us();
        samples[i] = now_us - before_us;
        before_us = now_us;
    }
    return (before_us - start_us) / iterations;
}

static inline int peer_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* So many operations that they fill the time, agreed between the ranks. */
static inline int peer_calibrate(const peer_calls *calls, peer_case *c, double time_us,
                                 double *samples)
{
    double iterations = 1;
    for (int step = 0; step < 2; step++) {
        double mean_us = peer_repeat(calls, c, (int)iterations, samples);
        calls->sum(calls->arg, &mean_us, 1);
        iterations = (step == 0 ? 0.1 : 1) * time_us / (mean_us / c->size + 0.01);
        iterations = iterations < 1 ? 1 : iterations;
        iterations = iterations > PEER_SAMPLES_MAX ? PEER_SAMPLES_MAX : iterations;
    }
    return (int)iterations;
}

static inline void peer_measure(const peer_calls *calls, peer_case *c, double time_us,
                                double *samples)
{
    peer_fill(c);
    calls->run(calls->arg, c);
    double wrong = peer_wrong(c);
    memset(c->out, 0, peer_blocks(c) * c->count * sizeof *c->out);
    int iterations = peer_calibrate(calls, c, time_us, samples);
    double mean_us = peer_repeat(calls, c, iterations, samples);
    calls->sum(calls->arg, samples, iterations);
    calls->sum(calls->arg, &mean_us, 1);
    peer_fill(c);
    calls->run(calls->arg, c);
    wrong += peer_wrong(c);
    calls->sum(calls->arg, &wrong, 1);
    if (c->rank == 0) {
        qsort(samples, (size_t)iterations, sizeof *samples, peer_by_value);
        printf("{\"op\": \"%s\", \"size_bytes\": %zu, \"ranks\": %d, \"time_us_mean\": %.3f, "
               "\"time_us_median\": %.3f, \"wrong\": %.0f}\n",
               c->operation, c->count * peer_blocks(c) * sizeof(float), c->size, mean_us / c->size,
               samples[iterations / 2] / c->size, wrong);
        fflush(stdout);
    }
}

static inline void *peer_buffer(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes + 64) != 0) {
        fprintf(stderr, "peer: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

/* All sizes; `separate`: input and output are two buffers. Returns the exit code. */
static inline int peer_main(int argc, char **argv, const peer_calls *calls, int rank, int size,
                            bool separate)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s OPERATION SIZES TIME_US\n", argv[0]);
        return 2;
    }
    size_t sizes[PEER_SIZES_MAX], most = 64;
    int size_count = 0;
    for (char *word = strtok(argv[2], ","); word != NULL && size_count < PEER_SIZES_MAX;
         word = strtok(NULL, ",")) {
        sizes[size_count] = (size_t)strtoull(word, NULL, 10);
        most = sizes[size_count] > most ? sizes[size_count] : most;
        size_count++;
    }
    peer_case c = {argv[1], rank, size, NULL, NULL, 0};
    most += (size_t)size * sizeof(float);
    c.out = (float *)peer_buffer(most);
    c.in = separate ? (float *)peer_buffer(most) : c.out;
    double *samples = (double *)peer_buffer(PEER_SAMPLES_MAX * sizeof *samples);
    int code = 0;
    for (int i = 0; i < size_count && code == 0; i++) {
        c.count = sizes[i] / sizeof(float) / peer_blocks(&c);
        c.count = peer_is(&c, "barrier") ? 0 : c.count > 0 ? c.count : 1;
        if (!calls->prepare(calls->arg, &c)) {
            fprintf(stderr, "%s: there is no %s here\n", argv[0], c.operation);
            code = 3;
            break;
        }
        peer_measure(calls, &c, atof(argv[3]), samples);
        if (calls->finish != NULL) {
            calls->finish(calls->arg);
        }
    }
    if (c.in != c.out) {
        free(c.in);
    }
    free(c.out);
    free(samples);
    return code;
}

#endif
