/* SPDX-License-Identifier: Apache-2.0 */
/* The public communicator: alone, and over the real links with a process for each rank. */
#include "coll/plan/plan.h"
#include "sanitized.h"
#include "support_ranks.h"
#include "support_values.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Every allocation of the process is counted, where no sanitizer has put its own in place. */
#if !SANITIZED
#define COUNTS_ALLOCATIONS 1
static _Atomic long allocations;
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t align, size_t size);

void *malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(align, size);
}
#endif

/* ---- Right results --------------------------------------------------------------------------- */
static int check_allreduce(gr_comm *comm, gr_dtype dtype, gr_redop op, size_t count, bool shared,
                           uint64_t seed)
{
    size_t bytes = count * gr_dtype_bytes(dtype);
    void *want = malloc(bytes + 1);
    void *buf = malloc(bytes + 1);
    void *memory = NULL;
    if (shared) {
        EXPECT(gr_alloc(comm, bytes, &memory) == GR_OK);
    } else {
        memory = malloc(bytes + 1);
    }
    EXPECT(want && buf && memory);
    vals_fill(memory, dtype, count, seed, gr_comm_rank(comm), false);
    vals_expect(want, dtype, op, count, seed, gr_comm_size(comm), false);
    EXPECT(gr_allreduce(comm, memory, count, dtype, op) == GR_OK);
    EXPECT(memcmp(memory, want, bytes) == 0);
    if (shared) {
        gr_free(comm, memory);
    } else {
        free(memory);
    }
    free(want);
    free(buf);
    return 0;
}

static int check_shards(gr_comm *comm, int shards, gr_redop op, size_t count, uint64_t seed)
{
    int rank = gr_comm_rank(comm);
    int size = gr_comm_size(comm);
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    void *partials[GR_SHARD_PARTIALS_MAX] = {NULL};
    int first, dealt;
    gr_shard_range(shards, size, rank, &first, &dealt);
    int covers = dealt > 0 ? gr_tree_cover(shards, first, dealt, ranges) : 0;
    int buffers = gr_shard_partials(shards, size, rank);
    EXPECT(buffers == (covers > 0 ? covers : 1));
    for (int i = 0; i < buffers; i++) {
        EXPECT(gr_alloc(comm, count * sizeof(float), &partials[i]) == GR_OK);
        if (i < covers) {
            vals_subtree(partials[i], GR_F32, op, count, seed, ranges[i].first, ranges[i].count,
                         false);
        }
    }
    float *want = malloc(count * sizeof *want);
    EXPECT(want != NULL);
    vals_expect(want, GR_F32, op, count, seed, shards, false);
    EXPECT(gr_allreduce_shards(comm, partials, shards, count, GR_F32, op) == GR_OK);
    EXPECT(memcmp(partials[0], want, count * sizeof *want) == 0);
    for (int i = 0; i < buffers; i++) {
        gr_free(comm, partials[i]);
    }
    free(want);
    return 0;
}

static int check_others(gr_comm *comm, size_t block)
{
    int rank = gr_comm_rank(comm);
    int size = gr_comm_size(comm);
    size_t count = block * (size_t)size;
    float *buf = malloc(count * sizeof *buf);
    float *want = malloc(count * sizeof *want);
    EXPECT(buf && want);
    vals_fill(buf, GR_F32, count, 3, rank, false);
    vals_expect(want, GR_F32, GR_AVERAGE, count, 3, size, false);
    EXPECT(gr_reduce_scatter(comm, buf, block, GR_F32, GR_AVERAGE) == GR_OK);
    EXPECT(memcmp(buf + block * (size_t)rank, want + block * (size_t)rank, block * sizeof *buf) ==
           0);
    EXPECT(gr_allgather(comm, buf, block, GR_F32) == GR_OK);
    EXPECT(memcmp(buf, want, count * sizeof *buf) == 0);
    for (int root = 0; root < size; root++) {
        vals_fill(buf, GR_F32, count, 4, rank, false);
        vals_fill(want, GR_F32, count, 4, root, false);
        EXPECT(gr_broadcast(comm, buf, count, GR_F32, root) == GR_OK);
        EXPECT(memcmp(buf, want, count * sizeof *buf) == 0);
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    /* The same, asynchronous. */
    gr_op *op = NULL;
    vals_fill(buf, GR_F32, count, 3, rank, false);
    vals_expect(want, GR_F32, GR_SUM, count, 3, size, false);
    EXPECT(gr_reduce_scatter_start(comm, buf, block, GR_F32, GR_SUM, &op) == GR_OK);
    EXPECT(gr_wait(op) == GR_OK);
    EXPECT(gr_allgather_start(comm, buf, block, GR_F32, &op) == GR_OK);
    EXPECT(gr_wait(op) == GR_OK);
    EXPECT(memcmp(buf, want, count * sizeof *buf) == 0);
    EXPECT(gr_comm_local_rank(comm) == rank && gr_comm_local_size(comm) == size);
    free(want);
    free(buf);
    return 0;
}

static int run_operations(gr_comm *comm, const ranks_job *job)
{
    static const size_t counts[] = {1, 7, 64, 1000, SANITIZED ? 9001 : 40001};
    enum { SEVERAL = SANITIZED ? 150003 : 400003 };
    (void)job;
    uint64_t seed = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            gr_redop op = (gr_redop)((i + (size_t)dtype) % GR_REDOP_COUNT);
            if (op == GR_USER || !vals_reducible((gr_dtype)dtype, op)) {
                op = GR_SUM;
            }
            if (check_allreduce(comm, (gr_dtype)dtype, op, counts[i], seed % 2 == 0, seed) != 0) {
                return 1;
            }
            seed++;
        }
        if (check_allreduce(comm, GR_F32, GR_SUM, counts[i], true, seed++) != 0 ||
            check_others(comm, counts[i] / 8 + 1) != 0) {
            return 1;
        }
    }
    if (check_allreduce(comm, GR_F32, GR_SUM, SEVERAL, true, seed++) != 0 ||
        check_allreduce(comm, GR_BF16, GR_AVERAGE, SEVERAL, false, seed++) != 0) {
        return 1; /* several segments a block */
    }
    static const int shards[] = {1, 2, 3, 5, 8, 12, 16, 29};
    for (size_t i = 0; i < sizeof shards / sizeof shards[0]; i++) {
        if (check_shards(comm, shards[i], i % 2 ? GR_SUM : GR_AVERAGE, 5000, i) != 0 ||
            check_shards(comm, shards[i], GR_SUM, 3, i) != 0) {
            return 1;
        }
    }
    EXPECT(gr_allreduce(comm, NULL, 0, GR_F32, GR_SUM) == GR_OK);
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void test_operations(void **state)
{
    (void)state;
    static const char *const links[2] = {"shm", "tcp"};
#if SANITIZED
    static const int sizes[] = {1, 3};
#else
    static const int sizes[] = {1, 2, 3, 4, 8};
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int link = 0; link < 2; link++) {
            int size = sizes[i];
            ranks_job job = {
                .size = size, .link = links[link], .progress = 2, .segment_bytes = 100000};
            assert_int_equal(ranks_run(&job, run_operations, 0), 0);
        }
    }
}

static void test_progress_thread(void **state)
{
    (void)state;
    static const char *const links[2] = {"shm", "tcp"};
    for (int size = 2; size <= 4; size += 2) {
        for (int link = 0; link < 2; link++) {
            ranks_job job = {.size = size, .link = links[link], .progress = 1};
            assert_int_equal(ranks_run(&job, run_operations, 0), 0);
        }
    }
}

static void test_algorithms(void **state)
{
    (void)state;
    static const char *const choices[] = {
        "allreduce=direct", "allreduce=halving-doubling,broadcast=direct",
        "allreduce=tree,allgather=ring", "allreduce=gather,broadcast=binomial"};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i += SANITIZED ? 3 : 1) {
        ranks_job job = {.size = 4,
                         .link = i % 2 ? "shm" : "tcp",
                         .algorithm = choices[i],
                         .segment_bytes = 32768};
        assert_int_equal(ranks_run(&job, run_operations, 0), 0);
    }
}

/* ---- Several at once ------------------------------------------------------------------------- */
enum { FLIGHT = 12, FLIGHT_COUNT = 30000 };

static int run_flight(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float *bufs[FLIGHT];
    gr_op *ops[FLIGHT];
    float *want = malloc(FLIGHT_COUNT * sizeof *want);
    EXPECT(want != NULL);
    for (int round = 0; round < THOROUGH(20); round++) {
        for (int i = 0; i < FLIGHT; i++) {
            void *memory = NULL;
            EXPECT(gr_alloc(comm, FLIGHT_COUNT * sizeof(float), &memory) == GR_OK);
            bufs[i] = memory;
            vals_fill(bufs[i], GR_F32, FLIGHT_COUNT, (uint64_t)i, gr_comm_rank(comm), false);
            EXPECT(gr_allreduce_start(comm, bufs[i], FLIGHT_COUNT / (size_t)(i + 1), GR_F32, GR_SUM,
                                      &ops[i]) == GR_OK);
        }
        /* The newest first; some by test. */
        for (int i = FLIGHT - 1; i >= 0; i--) {
            gr_status status = GR_PENDING;
            while (i % 3 == 0 && status == GR_PENDING) {
                status = gr_test(ops[i]);
            }
            status = status == GR_PENDING ? gr_wait(ops[i]) : status;
            EXPECT(status == GR_OK);
            size_t count = FLIGHT_COUNT / (size_t)(i + 1);
            vals_expect(want, GR_F32, GR_SUM, count, (uint64_t)i, gr_comm_size(comm), false);
            EXPECT(memcmp(bufs[i], want, count * sizeof *want) == 0);
            gr_free(comm, bufs[i]);
        }
    }
    free(want);
    gr_comm_destroy(comm);
    return 0;
}

static void test_several_in_flight(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        ranks_job job = {
            .size = i & 1 ? 3 : 2, .link = i & 2 ? "tcp" : "shm", .progress = i & 4 ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_flight, 0), 0);
    }
}

/* With a thread, an operation ends without anybody asking. */
static int run_background(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    void *memory = NULL;
    EXPECT(gr_alloc(comm, 1 << 20, &memory) == GR_OK);
    float *buf = memory;
    buf[(1 << 18) - 1] = 1.0f;
    gr_op *op;
    EXPECT(gr_allreduce_start(comm, buf, 1 << 18, GR_F32, GR_SUM, &op) == GR_OK);
    if (rank == 1) {
        /* Only the other rank's thread can bring this one to its end. */
        EXPECT(gr_wait(op) == GR_OK);
    }
    int32_t word = 7;
    if (rank == 0) {
        volatile const float *last = &buf[(1 << 18) - 1];
        while (*last != 2.0f) {
        }
        EXPECT(gr_wait(op) == GR_OK);
    }
    EXPECT(gr_broadcast(comm, &word, 1, GR_I32, 0) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void test_background(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("skipped because it looks at memory that another thread writes, on purpose\n");
    skip();
#endif
    ranks_job job = {.size = 2, .link = "tcp", .progress = 1};
    assert_int_equal(ranks_run(&job, run_background, 0), 0);
}

/* ---- The order of additions ------------------------------------------------------------------ */
static int run_order(gr_comm *comm, const ranks_job *job)
{
    enum { COUNT = 5000 };
    float buf[COUNT], want[COUNT];
    bool same = true;
    for (uint64_t seed = 0; seed < 4; seed++) {
        vals_fill(buf, GR_F32, COUNT, seed, gr_comm_rank(comm), false);
        vals_expect(want, GR_F32, GR_SUM, COUNT, seed, gr_comm_size(comm), false);
        EXPECT(gr_allreduce(comm, buf, COUNT, GR_F32, GR_SUM) == GR_OK);
        same = same && memcmp(buf, want, sizeof buf) == 0;
        for (int i = 0; i < COUNT; i++) {
            float off = buf[i] - want[i];
            EXPECT(off < 1e-4f && off > -1e-4f);
        }
    }
    EXPECT(same == (job->arg == NULL));
    gr_comm_destroy(comm);
    return 0;
}

static void test_ring_breaks_the_order(void **state)
{
    (void)state;
    for (int size = 3; size <= 5; size++) {
        ranks_job exact = {.size = size, .link = "shm", .algorithm = "allreduce=direct"};
        assert_int_equal(ranks_run(&exact, run_order, 0), 0);
        ranks_job ring = {.size = size,
                          .link = "shm",
                          .algorithm = "allreduce=ring",
                          .inexact = true,
                          .arg = "other bits"};
        assert_int_equal(ranks_run(&ring, run_order, 0), 0);
    }
}

/* ---- Failures -------------------------------------------------------------------------------- */
static int run_mismatch(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float buf[100] = {0};
    /* A rank may still be in the first operation when the others are through it and fail. */
    gr_status status = gr_allreduce(comm, buf, 100, GR_F32, GR_SUM);
    if (status == GR_OK) {
        status = gr_comm_rank(comm) == 1 ? gr_allreduce(comm, buf, 50, GR_F64, GR_MAX)
                                         : gr_allreduce(comm, buf, 100, GR_F32, GR_SUM);
    }
    EXPECT(status == GR_E_MISMATCH || status == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "allreduce of 100 f32 (sum"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "allreduce of 50 f64 (max"));
    EXPECT(gr_barrier(comm) == GR_E_COMM_BROKEN);
    gr_comm_destroy(comm);
    return 0;
}

static void test_mismatch(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {
            .size = 2 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = i > 3 ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_mismatch, 0), 0);
    }
}

static int run_death(gr_comm *comm, const ranks_job *job)
{
    const int *after = job->arg;
    int rank = gr_comm_rank(comm);
    void *memory = NULL;
    EXPECT(gr_alloc(comm, 4 << 20, &memory) == GR_OK);
    if (gr_barrier(comm) != GR_OK) { /* all have joined when anybody is through */
        EXPECT(gr_comm_diag(comm)->status != GR_OK);
        gr_comm_destroy(comm);
        return 0;
    }
    for (int i = 0; i < 1000; i++) {
        gr_op *op = NULL;
        gr_status status = gr_allreduce_start(comm, memory, 1 << 20, GR_F32, GR_SUM, &op);
        if (rank == 1 && i == *after) {
            raise(SIGKILL);
        }
        status = status == GR_OK ? gr_wait(op) : status;
        if (status != GR_OK) {
            EXPECT(i >= *after - 1);
            EXPECT(status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN);
            /* Over tcp the word of those who saw it may stand behind data that cannot be taken any
             * more; then the end of one of them is what this rank sees. */
            EXPECT(strcmp(job->link, "tcp") == 0 || gr_comm_diag(comm)->peer_rank == 1);
            EXPECT(strstr(gr_comm_diag(comm)->text, "died") ||
                   strstr(gr_comm_diag(comm)->text, "left"));
            EXPECT(gr_barrier(comm) == GR_E_COMM_BROKEN);
            gr_comm_destroy(comm);
            return 0;
        }
    }
    return 2;
}

static void test_death(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i += SANITIZED ? 5 : 1) { /* each link, inline and with a thread */
        int after = i;
        ranks_job job = {.size = 2 + i % 3,
                         .link = i & 1 ? "tcp" : "shm",
                         .progress = i & 4 ? 1 : 2,
                         .arg = &after};
        assert_int_equal(ranks_run(&job, run_death, 2), 0);
    }
}

static int run_slow(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    char byte;
    if (gr_comm_rank(comm) == 1) {
        /* Alive but elsewhere until the others have given up. */
        for (int i = 1; i < job->size; i++) {
            EXPECT(read(fds[0], &byte, 1) == 1);
        }
        gr_comm_destroy(comm);
        return 0;
    }
    float buf[8] = {0};
    gr_status status = gr_allreduce(comm, buf, 8, GR_F32, GR_SUM);
    EXPECT(status == GR_E_PEER_SLOW || (job->size > 2 && status == GR_E_COMM_BROKEN));
    EXPECT(strstr(gr_comm_diag(comm)->text, "for rank 1 (host ") &&
           strstr(gr_comm_diag(comm)->text, "to send its part"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "has waited "));
    EXPECT(gr_comm_diag(comm)->peer_rank == 1);
    EXPECT(write(fds[1], "x", 1) == 1);
    gr_comm_destroy(comm);
    return 0;
}

enum {
    SLOW_JOBS = 8,
    SLOW_US = 3000000 /* longer than a rank on a busy machine waits for a core */
};

static bool is_slow_named(int i)
{
    int fds[2];
    /* Everybody waits for rank 1 itself: nobody's time is over before he knows whom to name. */
    ranks_job job = {.size = i & 4 ? 3 : 2,
                     .link = i & 1 ? "tcp" : "shm",
                     .algorithm = i & 1 ? "allreduce=gather" : NULL,
                     .tune = "off",
                     .progress = i & 2 ? 1 : 2,
                     .op_timeout_us = SLOW_US,
                     .arg = fds};
    return pipe(fds) == 0 && ranks_run(&job, run_slow, 0) == 0;
}

/* All at the same time: they only wait. */
static void test_slow(void **state)
{
    pid_t pids[SLOW_JOBS];
    bool all = true;
    (void)state;
    for (int i = 0; i < SLOW_JOBS; i++) {
        fflush(NULL);
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            _exit(is_slow_named(i) ? 0 : 1);
        }
    }
    for (int i = 0; i < SLOW_JOBS; i++) {
        int how = 0;
        assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
        all = all && how == 0;
    }
    assert_true(all);
}

static void fill(float *at, size_t count, float value)
{
    for (size_t i = count; i > 0; i--) { /* as a peer writes its share, it comes to the end last */
        at[i - 1] = value;
    }
}

static bool is_full(const float *at, size_t count, float value)
{
    size_t same = 0;
    while (same < count && at[same] == value) {
        same++;
    }
    return same == count;
}

typedef struct leaving_job {
    int fds[2]; /* a byte from each of the others, when it does nothing any more */
    bool frees; /* who goes does not wait for them */
} leaving_job;

/* Whoever goes may use its memory for anything at once, or give it back: nobody writes there, and
 * nobody takes what it finds there for a contribution. */
static int run_early_destroy(gr_comm *comm, const ranks_job *job)
{
    const leaving_job *leaving = job->arg;
    enum { COUNT = SANITIZED ? 1 << 20 : 2 << 20 }; /* to start it does less than a rank's share */
    void *memory = NULL;
    EXPECT(gr_alloc(comm, COUNT * sizeof(float), &memory) == GR_OK);
    float *plain = malloc(COUNT * sizeof *plain);
    fill(memory, COUNT, 1);
    fill(plain, COUNT, 1);
    gr_op *ops[2];
    EXPECT(gr_barrier(comm) == GR_OK || gr_comm_rank(comm) != 0);
    gr_status first = gr_allreduce_start(comm, memory, COUNT, GR_F32, GR_SUM, &ops[0]);
    gr_status second =
        first == GR_OK ? gr_allreduce_start(comm, plain, COUNT, GR_F32, GR_SUM, &ops[1]) : first;
    if (gr_comm_rank(comm) == 0) {
        gr_comm_destroy(comm);
        if (!leaving->frees) {
            char done;
            fill(plain, COUNT, 7);
            for (int peer = 1; peer < job->size; peer++) {
                EXPECT(read(leaving->fds[0], &done, 1) == 1);
            }
            EXPECT(is_full(plain, COUNT, 7));
        }
        free(plain);
        return 0;
    }
    if (first == GR_OK) {
        first = gr_wait(ops[0]);
        second = second == GR_OK ? gr_wait(ops[1]) : second;
    }
    EXPECT(write(leaving->fds[1], "", 1) == 1);
    EXPECT(first == GR_OK || first == GR_E_PEER_LOST || first == GR_E_COMM_BROKEN);
    /* The thread of a rank may have finished both before its owner destroys the communicator. */
    EXPECT(second == GR_E_PEER_LOST || second == GR_E_COMM_BROKEN ||
           (second == GR_OK && job->progress == 1));
    EXPECT(first != GR_OK || is_full(memory, COUNT, (float)job->size));
    EXPECT(second != GR_OK || is_full(plain, COUNT, (float)job->size));
    gr_comm_destroy(comm);
    free(plain);
    return 0;
}

static void test_destroy_in_flight(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i += SANITIZED ? 3 : 1) {
        leaving_job leaving = {.frees = (i & 8) != 0};
        ranks_job job = {.size = 2 + (i & 1),
                         .link = i & 2 ? "tcp" : "shm",
                         .progress = i & 4 ? 1 : 2,
                         .arg = &leaving};
        assert_int_equal(pipe(leaving.fds), 0);
        assert_int_equal(ranks_run(&job, run_early_destroy, 0), 0);
        close(leaving.fds[0]);
        close(leaving.fds[1]);
    }
}

static int run_misuse(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float buf[64] = {0};
    void *none[1] = {NULL};
    gr_op *op = NULL;
    EXPECT(gr_allreduce(comm, NULL, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce(comm, buf, 1, (gr_dtype)GR_DTYPE_COUNT, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce(comm, buf, 1, (gr_dtype)-1, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce(comm, buf, 1, GR_F32, GR_USER) == GR_E_INVALID);
    EXPECT(gr_allreduce(comm, buf, SIZE_MAX / 4, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce_start(comm, buf, 1, GR_F32, GR_SUM, NULL) == GR_E_INVALID);
    EXPECT(gr_allreduce_shards(comm, NULL, 4, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce_shards(comm, none, 4, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce_shards(comm, none, 0, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allreduce_shards(comm, none, 1 << 20, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_broadcast(comm, buf, 1, GR_F32, gr_comm_size(comm)) == GR_E_INVALID);
    EXPECT(gr_broadcast(comm, buf, 1, GR_F32, -1) == GR_E_INVALID);
    EXPECT(gr_reduce_scatter(comm, NULL, 1, GR_F32, GR_SUM) == GR_E_INVALID);
    EXPECT(gr_allgather(comm, NULL, 1, GR_F32) == GR_E_INVALID);
    EXPECT(gr_barrier_start(comm, NULL) == GR_E_INVALID);
    void *memory = NULL;
    EXPECT(gr_alloc(comm, 0, &memory) == GR_E_INVALID && !memory);
    EXPECT(gr_alloc(comm, SIZE_MAX - 100, &memory) == GR_E_NO_MEMORY && !memory);
    gr_free(comm, NULL);
    /* Nothing of this has done any harm. */
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    buf[0] = 1;
    EXPECT(gr_allreduce_start(comm, buf, 1, GR_F32, GR_SUM, &op) == GR_OK);
    EXPECT(gr_wait(op) == GR_OK);
    EXPECT(buf[0] == (float)gr_comm_size(comm));
    EXPECT(gr_barrier(comm) == GR_OK);
    EXPECT(gr_reduce_scatter(comm, NULL, 0, GR_F32, GR_SUM) == GR_OK);
    EXPECT(gr_allreduce_shards(comm, none, 3, 0, GR_F32, GR_SUM) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void test_misuse(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) {
        ranks_job job = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&job, run_misuse, 0), 0);
    }
    assert_int_equal(gr_allreduce(NULL, NULL, 0, GR_F32, GR_SUM), GR_E_INVALID);
    assert_int_equal(gr_test(NULL), GR_E_INVALID);
    assert_int_equal(gr_wait(NULL), GR_E_INVALID);
    gr_comm_destroy(NULL);
}

/* ---- No heap --------------------------------------------------------------------------------- */
#ifdef COUNTS_ALLOCATIONS
/* More operations at once than a round has, of both kinds: first each object that runs one gets
 * scratch, then the steps of a plan over every link. */
static int fill_pool(gr_comm *comm, float *memory)
{
    enum { OPS = 12, SHARE = 1000 };
    gr_op *ops[OPS];
    for (int k = 0; k < OPS; k++) {
        EXPECT(gr_allreduce_start(comm, memory + k * SHARE, SHARE, GR_F32, GR_SUM, &ops[k]) ==
               GR_OK);
    }
    for (int k = 0; k < OPS; k++) {
        EXPECT(gr_wait(ops[k]) == GR_OK);
    }
    for (int k = 0; k < OPS; k++) {
        EXPECT(gr_broadcast_start(comm, memory + k * SHARE, SHARE, GR_F32, 0, &ops[k]) == GR_OK);
    }
    for (int k = 0; k < OPS; k++) {
        EXPECT(gr_wait(ops[k]) == GR_OK);
    }
    return 0;
}

static int run_round(gr_comm *comm, void *shared, float *plain, size_t count)
{
    gr_op *ops[3];
    EXPECT(gr_allreduce_start(comm, shared, count, GR_F32, GR_SUM, &ops[0]) == GR_OK);
    EXPECT(gr_allreduce_start(comm, plain, count, GR_F32, GR_AVERAGE, &ops[1]) == GR_OK);
    EXPECT(gr_barrier_start(comm, &ops[2]) == GR_OK);
    for (int k = 0; k < 3; k++) {
        EXPECT(gr_wait(ops[k]) == GR_OK);
    }
    EXPECT(gr_allreduce(comm, plain, 1, GR_F32, GR_SUM) == GR_OK);
    EXPECT(gr_broadcast(comm, plain, 100, GR_F32, 0) == GR_OK);
    return 0;
}

/* Steps, views and scratch grow with the number of operations in flight, which depends on who is
 * late: a round may need more than all before. But there is an end to that, and then come twenty
 * rounds in which no rank allocates anything. If each round allocated, no such twenty came. */
static int run_counted(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { COUNT = 70000, ROUNDS = 20, WINDOWS = 50 };
    void *shared = NULL;
    float *plain = malloc(COUNT * sizeof *plain);
    EXPECT(plain && gr_alloc(comm, COUNT * sizeof *plain, &shared) == GR_OK);
    memset(plain, 0, COUNT * sizeof *plain);
    EXPECT(run_round(comm, shared, plain, COUNT) == 0 && fill_pool(comm, plain) == 0);
    int64_t allocated = 1;
    for (int window = 0; window < WINDOWS && allocated > 0; window++) {
        int64_t before = atomic_load(&allocations);
        for (int i = 0; i < ROUNDS; i++) {
            EXPECT(run_round(comm, shared, plain, COUNT) == 0);
        }
        allocated = atomic_load(&allocations) - before;
        EXPECT(gr_allreduce(comm, &allocated, 1, GR_I64, GR_MAX) == GR_OK);
    }
    EXPECT(allocated == 0);
    gr_comm_destroy(comm);
    free(plain);
    return 0;
}

static void test_comm_same_rounds_allocate_nothing(void **state)
{
    (void)state;
    long before = atomic_load(&allocations);
    void *volatile one = malloc(100);
    free(one);
    assert_true(atomic_load(&allocations) > before); /* they are counted */
    for (int size = 1; size <= 4; size++) {
        ranks_job job = {
            .size = size, .link = size % 2 ? "shm" : "tcp", .progress = size == 2 ? 1 : 0};
        assert_int_equal(ranks_run(&job, run_counted, 0), 0);
        job.link = size % 2 ? "tcp" : "shm";
        assert_int_equal(ranks_run(&job, run_counted, 0), 0);
    }
}
#endif

/* ---- Alone ----------------------------------------------------------------------------------- */
static void test_alone(void **state)
{
    (void)state;
    gr_comm *comm = NULL;
    gr_diag diag;
    unsetenv("GRADUS_RANK");
    setenv("GRADUS_ALGORITHM", "allreduce=magic", 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "magic"));
    assert_null(comm);
    unsetenv("GRADUS_ALGORITHM");
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(gr_comm_rank(comm), 0);
    assert_int_equal(gr_comm_size(comm), 1);
    assert_int_equal(gr_comm_local_size(comm), 1);
    assert_string_equal(gr_comm_link_name(comm), "none");
    void *blocks[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gr_alloc(comm, 100, &blocks[i]), GR_OK);
        assert_int_equal((uintptr_t)blocks[i] % 64, 0);
        assert_int_equal(((char *)blocks[i])[99], 0);
    }
    gr_free(comm, blocks[1]);
    float *buf = blocks[0];
    buf[0] = 8;
    assert_int_equal(gr_allreduce(comm, buf, 1, GR_F32, GR_AVERAGE), GR_OK);
    assert_true(buf[0] == 8);
    assert_int_equal(gr_allreduce_shards(comm, blocks, 4, 1, GR_F32, GR_AVERAGE), GR_OK);
    assert_true(buf[0] == 2); /* one subtree holds the sum of all four */
    gr_op *op = NULL;
    assert_int_equal(gr_barrier_start(comm, &op), GR_OK);
    assert_int_equal(gr_test(op), GR_OK);
    assert_int_equal(gr_broadcast_start(comm, buf, 1, GR_F32, 0, &op), GR_OK);
    assert_int_equal(gr_wait(op), GR_OK);
    gr_comm_destroy(comm); /* frees the other blocks */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_progress_thread),
        cmocka_unit_test(test_several_in_flight),
        cmocka_unit_test(test_background),
        cmocka_unit_test(test_ring_breaks_the_order),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_destroy_in_flight),
#ifdef COUNTS_ALLOCATIONS
        cmocka_unit_test(test_comm_same_rounds_allocate_nothing),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
