/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation, against its definition: all types and operations, in place and out of place,
 * even and by rank, blocking, asynchronous, grouped, with callbacks; on real links, a process a
 * rank. */
#include "base/float_mode.h"
#include "sanitized.h"
#include "support_oracle.h"
#include "support_ranks.h"
#include "support_values.h"

#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- One after the other --------------------------------------------------------------------- */
static bool run_case(gr_comm *comm, const oracle_case *c, bool blocking)
{
    oracle_part part;
    if (!oracle_begin(&part, c, comm)) {
        return false;
    }
    gr_status status = GR_OK;
    if (!part.idle && blocking) {
        status = gr_run(comm, &part.call, 1);
    } else if (!part.idle) {
        gr_op *op = NULL;
        status = gr_start(comm, &part.call, 1, &op);
        status = status == GR_OK ? gr_wait(op) : status;
    }
    if (status != GR_OK) {
        char text[256];
        oracle_describe(c, text, sizeof text);
        fprintf(stderr, "rank %d of %d: %s: %s (%s; %s)\n", part.rank, part.size, text,
                gr_status_name(status), gr_comm_diag(comm)->text, gr_comm_last_error(comm)->text);
    }
    return oracle_end(&part) && status == GR_OK;
}

static void vary(oracle_case *c, int turn, int size)
{
    static const size_t counts[] = {0, 1, 7, 100, 4097};
    c->count = counts[turn % 5];
    c->root = turn % size;
    c->peer = (c->root + 1 + turn % 3) % size;
    c->peer = c->peer == c->root ? (c->root + 1) % size : c->peer;
    c->offset_in = turn % 3 == 0 ? 0 : turn % 7;
    c->offset_out = turn % 2 == 0 ? 0 : turn % 5;
    c->shared = turn / 2 % 2;
    c->seed = (uint64_t)turn;
    for (int i = 0; i < size; i++) {
        for (int k = 0; k < size; k++) {
            c->counts[i][k] = (size_t)((i + k) * (turn % 4) * 5 % 23);
        }
    }
}

static int run_every(gr_comm *comm, const ranks_job *job)
{
    int size = gr_comm_size(comm);
    int turn = 0;
    oracle_case c = {.coll = GR_COLL_BARRIER};
    for (int coll = 0; coll < GR_COLL_RECV; coll++) {
        bool reduces =
            coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE || coll == GR_COLL_REDUCE_SCATTER;
        bool blocks = coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER ||
                      coll == GR_COLL_GATHER || coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
        if (coll == GR_COLL_SEND && size == 1) {
            continue;
        }
        for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < (reduces ? GR_REDOP_COUNT : 1); op++) {
                bool has = !reduces || vals_reducible((gr_dtype)dtype, (gr_redop)op);
                for (int how = 0; has && how < (blocks ? 4 : 2); how++) {
                    c = (oracle_case){.coll = (gr_coll)coll,
                                      .dtype = (gr_dtype)dtype,
                                      .op = (gr_redop)op,
                                      .in_place = how & 1,
                                      .uneven = how & 2};
                    vary(&c, turn, size);
                    bool scales = reduces && dtype != GR_BOOL;
                    c.prescale = scales && turn % 5 == 1 ? 0.25 : 0;
                    c.postscale = scales && turn % 7 == 1 ? -3 : 0;
                    EXPECT(run_case(comm, &c, turn % 2 == 0));
                    turn++;
                }
            }
        }
    }
    EXPECT(gr_comm_diag(comm)->status == GR_OK && gr_comm_last_error(comm)->status == GR_OK);
    (void)job;
    gr_comm_destroy(comm);
    return 0;
}

static void test_every(void **state)
{
    (void)state;
    static const char *const links[2] = {"shm", "tcp"};
#if SANITIZED
    static const int sizes[] = {1, 3};
#else
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int link = 0; link < 2; link++) {
            ranks_job job = {.size = sizes[i],
                             .link = links[link],
                             .progress = i % 2 ? 1 : 2,
                             .segment_bytes = 4096};
            assert_int_equal(ranks_run(&job, run_every, 0), 0);
        }
    }
}

/* Ranks on several hosts: plans that know them, links of both kinds. */
static void test_hosts(void **state)
{
    (void)state;
#if SANITIZED
    static const int sizes[] = {3};
#else
    static const int sizes[] = {3, 4, 7};
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ranks_job job = {
            .size = sizes[i], .link = "auto", .per_host = 2, .progress = 2, .segment_bytes = 4096};
        assert_int_equal(ranks_run(&job, run_every, 0), 0);
        job.algorithm = "allreduce=hierarchical;reduce=hierarchical;reduce-scatter=hierarchical;"
                        "allgather=hierarchical;broadcast=hierarchical";
        assert_int_equal(ranks_run(&job, run_every, 0), 0);
    }
}

/* What a type cannot be reduced by is refused on each rank, with one sentence, and nothing else
 * changes. */
static int run_undefined(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    static const gr_coll colls[3] = {GR_COLL_ALLREDUCE, GR_COLL_REDUCE, GR_COLL_REDUCE_SCATTER};
    uint64_t buf[64] = {0};
    int refused = 0;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < GR_REDOP_COUNT; op++) {
            if (vals_reducible((gr_dtype)dtype, (gr_redop)op)) {
                continue;
            }
            char words[64];
            snprintf(words, sizeof words, "%s cannot be reduced by %s",
                     gr_dtype_name((gr_dtype)dtype), gr_redop_name((gr_redop)op));
            gr_call call = {.coll = colls[refused++ % 3],
                            .dtype = (gr_dtype)dtype,
                            .op = (gr_redop)op,
                            .out = buf,
                            .count = 2};
            EXPECT(gr_run(comm, &call, 1) == GR_E_INVALID);
            EXPECT(strstr(gr_comm_last_error(comm)->text, words));
            EXPECT(gr_allreduce(comm, buf, 2, call.dtype, call.op) == GR_E_INVALID);
            EXPECT(gr_allreduce(comm, buf, 2, GR_U64, GR_BOR) == GR_OK && buf[0] == 0);
        }
    }
    EXPECT(refused == 4 * 3 + 1 + 2 * 5);
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void what_a_type_has_not_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_job job = {.size = 1 + i, .link = i == 2 ? "tcp" : "shm"};
        assert_int_equal(ranks_run(&job, run_undefined, 0), 0);
    }
}

/* A reduction of the caller's own gets the lower ranks on its left, even where sums need not. */
static int run_ordered(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    uint64_t state = 5;
    for (int i = 0; i < 100; i++) {
        oracle_case c;
        oracle_random(&c, &state, gr_comm_size(comm), 3000);
        c.coll = (gr_coll[]){GR_COLL_ALLREDUCE, GR_COLL_REDUCE, GR_COLL_REDUCE_SCATTER}[i % 3];
        c.op = GR_USER;
        c.uneven = c.uneven && c.coll == GR_COLL_REDUCE_SCATTER;
        EXPECT(run_case(comm, &c, i % 2));
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_ordered(void **state)
{
    (void)state;
    for (int size = 3; size <= 5; size++) {
        ranks_job job = {.size = size,
                         .link = "shm",
                         .inexact = true,
                         .algorithm = "allreduce=ring;reduce-scatter=ring;reduce=chain"};
        assert_int_equal(ranks_run(&job, run_ordered, 0), 0);
    }
}

/* ---- Grouped --------------------------------------------------------------------------------- */
enum { GROUP = 6 };

static int run_groups(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    uint64_t state = 11;
    for (int round = 0; round < 60; round++) {
        oracle_case cases[GROUP];
        oracle_part parts[GROUP];
        gr_call calls[GROUP];
        int count = 0;
        for (int i = 0; i < GROUP; i++) {
            oracle_random(&cases[i], &state, gr_comm_size(comm), 3000);
            EXPECT(oracle_begin(&parts[i], &cases[i], comm));
            if (!parts[i].idle) {
                calls[count++] = parts[i].call;
            }
        }
        if (count > 0 && round % 2) {
            EXPECT(gr_run(comm, calls, count) == GR_OK);
        } else if (count > 0) {
            gr_op *op = NULL;
            EXPECT(gr_start(comm, calls, count, &op) == GR_OK);
            EXPECT(gr_wait(op) == GR_OK);
        }
        for (int i = 0; i < GROUP; i++) {
            EXPECT(oracle_end(&parts[i]));
        }
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_groups(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {.size = 1 + i, .link = i % 2 ? "shm" : "tcp", .segment_bytes = 1024};
        assert_int_equal(ranks_run(&job, run_groups, 0), 0);
    }
}

/* ---- Callbacks ------------------------------------------------------------------------------- */
typedef struct chain {
    gr_comm *comm;
    int32_t word;
    int left;
    int called;
    bool inside_start; /* gr_start has not come back */
    gr_status worst;
} chain;

static void next_of_chain(gr_status status, void *arg);

static void start_chain(chain *c)
{
    gr_call call = {.coll = GR_COLL_ALLREDUCE,
                    .dtype = GR_I32,
                    .op = GR_MAX,
                    .out = &c->word,
                    .count = 1,
                    .done = next_of_chain,
                    .done_arg = c};
    c->inside_start = true;
    gr_status status = gr_start(c->comm, &call, 1, NULL);
    c->inside_start = false;
    c->worst = c->worst == GR_OK ? status : c->worst;
}

static void next_of_chain(gr_status status, void *arg)
{
    chain *c = arg;
    c->called++;
    if (c->inside_start) {
        c->worst = GR_E_BUG;
    }
    if (status != GR_OK) {
        c->worst = status;
        return;
    }
    c->word++;
    if (gr_barrier(c->comm) != GR_E_INVALID) { /* a callback must not wait */
        c->worst = GR_E_BUG;
    }
    if (--c->left > 0) {
        start_chain(c);
    }
}

static int run_callbacks(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    chain c = {.comm = comm, .left = 20};
    start_chain(&c);
    EXPECT(gr_comm_drain(comm) == GR_OK);
    EXPECT(c.worst == GR_OK && c.called == 20 && c.word == 20);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "a callback must not wait"));
    /* Without a wait. */
    c = (chain){.comm = comm, .left = 5};
    start_chain(&c);
    gr_status status = GR_PENDING;
    while (c.called < 5 && status != GR_E_INVALID) {
        status = gr_comm_poll(comm);
    }
    EXPECT(c.worst == GR_OK && c.word == 5);
    gr_comm_destroy(comm);
    return 0;
}

static void test_callbacks(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {.size = 1 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = 2};
        assert_int_equal(ranks_run(&job, run_callbacks, 0), 0);
    }
}

static void count_done(gr_status status, void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, status == GR_OK ? 1 : 1000);
}

/* With a thread, callbacks come without anybody asking. */
static int run_background_callbacks(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { CALLS = 10 };
    _Atomic int done = 0;
    int64_t words[CALLS] = {0};
    for (int i = 0; i < CALLS; i++) {
        gr_call call = {.coll = GR_COLL_ALLREDUCE,
                        .dtype = GR_I64,
                        .out = &words[i],
                        .count = 1,
                        .done = count_done,
                        .done_arg = &done};
        words[i] = i;
        EXPECT(gr_start(comm, &call, 1, NULL) == GR_OK);
    }
    while (atomic_load(&done) < CALLS) {
    }
    EXPECT(atomic_load(&done) == CALLS);
    for (int i = 0; i < CALLS; i++) {
        EXPECT(words[i] == (int64_t)i * gr_comm_size(comm));
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void test_background_callbacks(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2 + i, .link = i % 2 ? "tcp" : "shm", .progress = 1};
        assert_int_equal(ranks_run(&job, run_background_callbacks, 0), 0);
    }
}

/* ---- Factors --------------------------------------------------------------------------------- */
/* Scaled contributions that stand in memory of the communicator: it is given back, whichever way an
 * operation ends. */
static int run_factors(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { BLOCK = 20, RANKS = 3 };
    float in[RANKS * BLOCK], out[BLOCK];
    float want = 0.5f * (float)gr_comm_size(comm);
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < RANKS * BLOCK; k++) {
            in[k] = 1;
        }
        int index = 0;
        _Atomic int done = 0;
        gr_op *op = NULL;
        gr_call call = {
            .coll = GR_COLL_REDUCE_SCATTER, .in = in, .out = out, .count = BLOCK, .prescale = 0.5};
        if (i % 3 == 0) {
            EXPECT(gr_run(comm, &call, 1) == GR_OK);
        } else if (i % 3 == 1) {
            EXPECT(gr_start(comm, &call, 1, &op) == GR_OK);
            EXPECT(gr_wait_any(&op, 1, &index) == GR_OK);
        } else {
            call.done = count_done;
            call.done_arg = &done;
            EXPECT(gr_start(comm, &call, 1, NULL) == GR_OK);
            EXPECT(gr_comm_drain(comm) == GR_OK && atomic_load(&done) == 1);
        }
        EXPECT(out[0] == want && out[BLOCK - 1] == want && in[0] == 1);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_factors(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_sizes(run_factors, 1, 3), 0);
}

/* Factors of its own on each rank: of reduce, the root's alone counts for the result. */
static int run_factors_by_rank(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { MOST = 200001 };
    static const gr_coll colls[] = {GR_COLL_ALLREDUCE, GR_COLL_REDUCE, GR_COLL_REDUCE_SCATTER};
    static const size_t counts[] = {5, 1001, 30001, MOST};
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), root = size - 1;
    void *memory = NULL;
    EXPECT(gr_alloc(comm, (size_t)size * MOST * sizeof(float), &memory) == GR_OK);
    float *shared = memory;
    float *plain = malloc((size_t)size * MOST * sizeof *plain);
    float *apart = malloc(MOST * sizeof *apart);
    EXPECT(plain && apart);
    for (int i = 0; i < 48; i++) {
        gr_coll coll = colls[i % 3];
        size_t count = counts[i / 3 % 4];
        float *out = i / 12 % 2 ? plain : shared;
        bool in_place = i < 24, scatters = coll == GR_COLL_REDUCE_SCATTER;
        size_t all = scatters ? (size_t)size * count : count;
        gr_call call = {.coll = coll,
                        .out = in_place ? out : apart,
                        .in = in_place ? NULL : out,
                        .count = count,
                        .root = root,
                        .prescale = rank + 2,
                        .postscale = coll == GR_COLL_REDUCE && rank != root ? 7 : rank + 1};
        float factor = 0;
        for (int peer = 0; peer < size; peer++) {
            factor += (float)((peer + 1) * (peer + 2) * (rank + 1));
        }
        for (size_t k = 0; k < all; k++) {
            out[k] = (float)((rank + 1) * (int)(k % 7 + 1));
        }
        EXPECT(gr_run(comm, &call, 1) == GR_OK);
        const float *result = call.out;
        size_t first = scatters ? (size_t)rank * count : 0;
        if (scatters && in_place) {
            result += first;
        }
        for (size_t k = 0; k < count && (coll != GR_COLL_REDUCE || rank == root); k++) {
            EXPECT(result[k] == factor * (float)((first + k) % 7 + 1));
        }
        for (size_t k = 0; k < count && coll == GR_COLL_REDUCE && rank != root; k++) {
            EXPECT(out[k] == (float)((rank + 1) * (int)(k % 7 + 1)));
        }
    }
    free(apart);
    free(plain);
    gr_free(comm, memory);
    gr_comm_destroy(comm);
    return 0;
}

static void factors_count_for_their_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {.size = 2 + i % 2,
                         .link = i < 4 ? "shm" : "tcp",
                         .cma = i / 2 % 2 ? GR_CMA_ON : GR_CMA_OFF};
        assert_int_equal(ranks_run(&job, run_factors_by_rank, 0), 0);
    }
}

/* A call that was refused for want of room has changed nothing. */
static int run_refused(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { OPS = 128 };
    gr_op *ops[OPS], *op = NULL;
    float values[OPS] = {0}, in_place = 8, want = 4 * (float)gr_comm_size(comm);
    for (int i = 0; i < OPS; i++) {
        EXPECT(gr_allreduce_start(comm, &values[i], 1, GR_F32, GR_SUM, &ops[i]) == GR_OK);
    }
    gr_call call = {.coll = GR_COLL_ALLREDUCE, .out = &in_place, .count = 1, .prescale = 0.5};
    EXPECT(gr_start(comm, &call, 1, &op) == GR_E_NO_MEMORY && in_place == 8);
    for (int i = 0; i < OPS; i++) {
        EXPECT(gr_wait(ops[i]) == GR_OK);
    }
    EXPECT(gr_run(comm, &call, 1) == GR_OK && in_place == want);
    gr_comm_destroy(comm);
    return 0;
}

static void calls_that_were_refused_leave_their_buffers(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2, .link = i ? "tcp" : "shm"};
        assert_int_equal(ranks_run(&job, run_refused, 0), 0);
    }
}

/* ---- Subnormal numbers ----------------------------------------------------------------------- */
/* A program that flushes them in its own thread gets the sums of one that does not. */
static int run_flushing(gr_comm *comm, const ranks_job *job)
{
    enum { MOST = 20000 };
    static uint32_t bits[MOST]; /* of floats: a number below 2^23 is subnormal */
    static const size_t counts[] = {1, 300, MOST};
#if defined(__x86_64__)
    gr_float_mode flushing = gr_float_mode_get() | 0x8040;
#else
    gr_float_mode flushing = gr_float_mode_get() | 1 << 24;
#endif
    (void)job;
    gr_float_mode_set(flushing);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            bits[k] = (uint32_t)(k + 1);
        }
        EXPECT(gr_allreduce(comm, (float *)(void *)bits, counts[i], GR_F32, GR_SUM) == GR_OK);
        for (size_t k = 0; k < counts[i]; k++) {
            EXPECT(bits[k] == (uint32_t)((int)(k + 1) * gr_comm_size(comm)));
        }
        EXPECT((gr_float_mode_get() & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS) ==
               (flushing & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS));
    }
    gr_comm_destroy(comm);
    return 0;
}

static void sums_do_not_depend_on_the_mode_of_the_thread(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 3, .link = i % 2 ? "tcp" : "shm", .progress = 1 + i / 2};
        assert_int_equal(ranks_run(&job, run_flushing, 0), 0);
    }
}

/* ---- An end with nothing under way ----------------------------------------------------------- */
/* Rank 1 aborts when rank 0 has nothing to do but to ask for news. */
static int end_idle(gr_comm *comm, const ranks_job *job, bool by_event)
{
    enum { EVENT_MS = 60000 }; /* an event that does not come is a failure */
    const int *fds = job->arg;
    struct pollfd event = {.fd = -1, .events = POLLIN};
    char byte = 0;
    EXPECT(!by_event || gr_comm_event_fd(comm, &event.fd) == GR_OK);
    EXPECT(gr_barrier(comm) == GR_OK);
    if (gr_comm_rank(comm) == 1) {
        EXPECT(read(fds[0], &byte, 1) == 1);
        EXPECT(gr_comm_abort(comm, "enough") == GR_OK);
        gr_comm_destroy(comm);
        return 0;
    }
    EXPECT(gr_comm_poll(comm) == GR_OK);
    gr_comm_event_clear(comm);
    EXPECT(write(fds[1], "x", 1) == 1);
    while (by_event && gr_comm_diag(comm)->status == GR_OK) {
        EXPECT(poll(&event, 1, EVENT_MS) == 1); /* the first one may be of the barrier */
        gr_comm_event_clear(comm);
    }
    while (!by_event && gr_comm_poll(comm) == GR_OK) {
        sched_yield();
    }
    EXPECT(gr_comm_diag(comm)->status == GR_E_ABORTED && gr_comm_diag(comm)->peer_rank == 1);
    EXPECT(strstr(gr_comm_diag(comm)->text, "enough"));
    gr_comm_destroy(comm);
    return 0;
}

static int run_end_by_event(gr_comm *comm, const ranks_job *job)
{
    return end_idle(comm, job, true);
}

static int run_end_by_poll(gr_comm *comm, const ranks_job *job)
{
    return end_idle(comm, job, false);
}

static void abort_is_told_though_nothing_is_under_way(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_end_by_event), 0);
    assert_int_equal(ranks_run_pairs(run_end_by_poll), 0);
}

/* ---- Any of several -------------------------------------------------------------------------- */
static int run_wait_any(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { OPS = 8, COUNT = 5000 };
    gr_op *ops[OPS] = {NULL};
    float *bufs[OPS] = {NULL};
    int index = 7;
    EXPECT(gr_wait_any(ops, OPS, &index) == GR_E_INVALID && index == -1);
    EXPECT(gr_wait_any(NULL, 0, &index) == GR_E_INVALID);
    for (int i = 0; i < OPS - 1; i++) {
        bufs[i] = calloc(COUNT, sizeof(float));
        EXPECT(bufs[i]);
        bufs[i][COUNT - 1] = (float)i;
        EXPECT(gr_allreduce_start(comm, bufs[i], COUNT, GR_F32, GR_SUM, &ops[i]) == GR_OK);
    }
    unsigned seen = 0;
    for (int i = 0; i < OPS - 1; i++) {
        EXPECT(gr_wait_any(ops, OPS, &index) == GR_OK);
        EXPECT(index >= 0 && index < OPS - 1 && !(seen >> index & 1) && !ops[index]);
        seen |= 1u << index;
        EXPECT(bufs[index][COUNT - 1] == (float)(index * gr_comm_size(comm)));
        free(bufs[index]);
    }
    EXPECT(gr_wait_any(ops, OPS, &index) == GR_E_INVALID);
    float word = 1;
    EXPECT(gr_allreduce_start(comm, &word, 1, GR_F32, GR_SUM, &ops[0]) == GR_OK);
    gr_op *over = ops[1] = ops[0];
    EXPECT(gr_wait_any(ops, OPS, &index) == GR_OK && index == 0);
    EXPECT(gr_comm_size(comm) == 1 || gr_wait(over) == GR_E_INVALID);
    EXPECT(gr_comm_size(comm) == 1 || gr_test(over) == GR_E_INVALID);
    EXPECT(gr_comm_size(comm) == 1 || gr_wait_any(ops, OPS, &index) == GR_E_INVALID);
    EXPECT(gr_comm_size(comm) == 1 ||
           (index == -1 && strstr(gr_comm_last_error(comm)->text, "waited for already")));
    gr_op *late[1];
    EXPECT(gr_op_create(comm, &(gr_call){.out = &word, .count = 1}, &late[0]) == GR_OK);
    over = late[0];
    gr_comm_destroy(comm);
    index = 7;
    EXPECT(gr_wait_any(late, 1, &index) == GR_E_INVALID && index == -1 && late[0] == over);
    gr_op_destroy(over);
    return 0;
}

static void test_wait_any(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {
            .size = 1 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = i > 3 ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_wait_any, 0), 0);
    }
}

/* ---- Many at once, then something else ------------------------------------------------------- */
/* More started operations than shared memory has slots, then one of another kind: all ranks call
 * the same. */
static int run_many(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { OPS = 40 };
    gr_op *ops[OPS];
    float values[OPS], word = gr_comm_rank(comm) == 0 ? 7 : 0;
    for (int i = 0; i < OPS; i++) {
        values[i] = (float)i;
        EXPECT(gr_allreduce_start(comm, &values[i], 1, GR_F32, GR_SUM, &ops[i]) == GR_OK);
    }
    EXPECT(gr_broadcast(comm, &word, 1, GR_F32, 0) == GR_OK && word == 7);
    for (int i = 0; i < OPS; i++) {
        EXPECT(gr_wait(ops[i]) == GR_OK && values[i] == (float)(i * gr_comm_size(comm)));
    }
    gr_comm_destroy(comm);
    return 0;
}

static void many_started_operations_and_a_broadcast_match(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {
            .size = i % 2 ? 4 : 2, .link = "shm", .algorithm = i < 2 ? "broadcast=binomial" : NULL};
        assert_int_equal(ranks_run(&job, run_many, 0), 0);
    }
}

/* Ranks run ahead of each other as far as they may, and look at what the others have called. */
static int run_rooted(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { TURNS = 20000 };
    int size = gr_comm_size(comm), rank = gr_comm_rank(comm);
    for (int i = 0; i < TURNS; i++) {
        int root = i / 3 % size;
        float value = (float)(i + rank), sum = 0;
        if (i % 2 == 0) {
            EXPECT(gr_broadcast(comm, &value, 1, GR_F32, root) == GR_OK);
            EXPECT(value == (float)(i + root));
        } else {
            EXPECT(gr_reduce(comm, &value, &sum, 1, GR_F32, GR_SUM, root) == GR_OK);
            EXPECT(rank != root || sum == (float)(i * size + size * (size - 1) / 2));
        }
        EXPECT(i % 3 != rank % 3 || gr_comm_poll(comm) == GR_OK);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void many_rooted_operations_are_no_mismatch(void **state)
{
    (void)state;
    for (int size = 2; size < 5; size++) {
        ranks_job job = {.size = size, .link = "shm", .progress = 1 + size % 2};
        assert_int_equal(ranks_run(&job, run_rooted, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(what_a_type_has_not_is_refused),
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_callbacks),
        cmocka_unit_test(test_background_callbacks),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(factors_count_for_their_rank),
        cmocka_unit_test(abort_is_told_though_nothing_is_under_way),
        cmocka_unit_test(test_wait_any),
        cmocka_unit_test(sums_do_not_depend_on_the_mode_of_the_thread),
        cmocka_unit_test(calls_that_were_refused_leave_their_buffers),
        cmocka_unit_test(many_rooted_operations_are_no_mismatch),
        cmocka_unit_test(many_started_operations_and_a_broadcast_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
