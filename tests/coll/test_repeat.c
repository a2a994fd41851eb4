/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking calls that are like one of the last few take a shorter way (comm_shm.c): results,
 * errors and records are as if each had been the first, whatever stands between them. */
#include "coll/comm_internal.h"
#include "link/mesh.h"
#include "support_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    MOST = 5000,
    ROUNDS = 400,
    TURNS = 5,
    REPEATS = 30,
    DEAD_RANK = 1,
    RANKS = 4,
    SLEEP_US = 1000000
};

/* ---- Results --------------------------------------------------------------------------------- */
typedef struct variant {
    gr_redop op;
    size_t count;
    double prescale, postscale;
} variant;

/* Beside the line, in it, and too large for that. */
static const variant variants[] = {{GR_SUM, 1, 0, 0},     {GR_SUM, 3, 0, 0},   {GR_SUM, 3, 2, 0},
                                   {GR_MAX, 3, 0, 0},     {GR_SUM, 3, 1, -1},  {GR_SUM, 200, 0, 0},
                                   {GR_AVERAGE, 3, 0, 0}, {GR_SUM, MOST, 0, 0}};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct scene {
    gr_comm *comm, *half;
    float *buffers[3]; /* two that are shared, one that is not */
    uint64_t seed;
    float step; /* what ranks contribute differs from call to call */
} scene;

/* The same on all ranks. */
static unsigned draw(scene *s, unsigned below)
{
    s->seed = s->seed * 6364136223846793005U + 1442695040888963407U;
    return (unsigned)(s->seed >> 33) % below;
}

static float wanted(const variant *v, int size, float step)
{
    float sum = 0;
    for (int rank = 0; rank < size; rank++) {
        float part = ((float)rank + step) * (float)(v->prescale == 0 ? 1 : v->prescale);
        sum = v->op == GR_MAX ? part : sum + part;
    }
    sum = v->op == GR_AVERAGE ? sum / (float)size : sum;
    return sum * (float)(v->postscale == 0 ? 1 : v->postscale);
}

/* The average of few small integers over 2 to 4 ranks: within what a product with 1/3 is off. */
static bool is_near(float found, float want)
{
    float off = found > want ? found - want : want - found;
    return off <= 1e-5F * (want > 0 ? want : -want);
}

static int reduce(scene *s, gr_comm *comm, const variant *v, bool blocking)
{
    float *buf = s->buffers[draw(s, 3)];
    float mine = (float)gr_comm_rank(comm) + ++s->step;
    gr_call call = {.coll = GR_COLL_ALLREDUCE,
                    .op = v->op,
                    .out = buf,
                    .count = v->count,
                    .prescale = v->prescale,
                    .postscale = v->postscale};
    for (size_t i = 0; i < v->count; i++) {
        buf[i] = mine;
    }
    if (blocking) {
        EXPECT(gr_run(comm, &call, 1) == GR_OK);
    } else {
        gr_op *op = NULL;
        EXPECT(gr_start(comm, &call, 1, &op) == GR_OK && gr_wait(op) == GR_OK);
    }
    float want = wanted(v, gr_comm_size(comm), s->step);
    EXPECT(is_near(buf[0], want) && is_near(buf[v->count - 1], want));
    return 0;
}

/* What is started stays under way, or is not waited for, while others are called. */
static int meddle(scene *s, const variant *v)
{
    gr_comm *comm = s->comm;
    float value = 1, root = gr_comm_rank(comm) == 0 ? 7 : 0;
    gr_op *op = NULL;
    switch (draw(s, 6)) {
    case 0:
        EXPECT(gr_broadcast(comm, &root, 1, GR_F32, 0) == GR_OK && root == 7);
        return 0;
    case 1:
        EXPECT(gr_barrier(comm) == GR_OK && gr_barrier(comm) == GR_OK);
        return 0;
    case 2:
        EXPECT(gr_allreduce_start(comm, &value, 1, GR_F32, GR_SUM, &op) == GR_OK);
        EXPECT(reduce(s, comm, v, true) == 0 && reduce(s, comm, v, true) == 0);
        EXPECT(gr_wait(op) == GR_OK && value == (float)gr_comm_size(comm));
        return 0;
    case 3:
        return reduce(s, s->half, v, true) || reduce(s, s->half, v, true);
    case 4:
        gr_comm_destroy(s->half); /* the next one may take its place in memory, or its number */
        EXPECT(gr_comm_split(comm, gr_comm_rank(comm) % 2, 0, &s->half, NULL) == GR_OK);
        return 0;
    default:
        EXPECT(gr_allreduce(comm, NULL, v->count, GR_F32, v->op) == GR_E_INVALID);
        return 0;
    }
}

/* Another sub-group takes the place of one that did the same. */
static int renew(scene *s)
{
    gr_comm *comm = s->comm;
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        const variant *first = &variants[turn % 2 * 3], *second = &variants[3 - turn % 2 * 3];
        EXPECT(reduce(s, s->half, first, true) == 0 && reduce(s, s->half, first, true) == 0);
        EXPECT(reduce(s, s->half, second, true) == 0);
        gr_comm_destroy(s->half);
        EXPECT(gr_comm_split(comm, gr_comm_rank(comm) % 2, 0, &s->half, NULL) == GR_OK);
    }
    return 0;
}

static int run_mixed(gr_comm *comm, const ranks_job *job)
{
    static float plain[MOST];
    scene s = {.comm = comm, .buffers = {NULL, NULL, plain}, .seed = 1};
    (void)job;
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        EXPECT(gr_alloc(comm, sizeof plain, &memory) == GR_OK);
        s.buffers[i] = memory;
    }
    EXPECT(gr_comm_split(comm, gr_comm_rank(comm) % 2, 0, &s.half, NULL) == GR_OK);
    EXPECT(renew(&s) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        const variant *v = &variants[draw(&s, VARIANTS)];
        for (unsigned left = draw(&s, 4) + 1; left > 0; left--) {
            EXPECT(reduce(&s, comm, v, draw(&s, 4) > 0) == 0);
        }
        EXPECT(draw(&s, 2) == 0 || meddle(&s, v) == 0);
    }
    gr_comm_destroy(s.half);
    gr_comm_destroy(comm);
    return 0;
}

static void test_results(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        for (int progress = 1; progress <= 2; progress++) {
            ranks_job job = {.size = size, .link = "shm", .progress = progress};
            assert_int_equal(ranks_run(&job, run_mixed, 0), 0);
        }
    }
    ranks_job job = {.size = 3, .link = "tcp"};
    assert_int_equal(ranks_run(&job, run_mixed, 0), 0);
}

/* ---- What is kept of them -------------------------------------------------------------------- */
static int run_recorded(gr_comm *comm, const ranks_job *job)
{
    static const char *const sites[2] = {"here.c:1", "there.c:2"};
    float value = 0;
    (void)job;
    EXPECT(gr_barrier(comm) == GR_OK);
    const gr_flight_recorder *record = gr_exec_record(comm->context->exec);
    uint64_t before = record->begun;
    for (int i = 0; i < REPEATS; i++) {
        gr_call call = {.coll = GR_COLL_ALLREDUCE, .out = &value, .count = 1, .site = sites[i % 2]};
        EXPECT(gr_run(comm, &call, 1) == GR_OK);
    }
    EXPECT(record->begun == before + REPEATS);
    const gr_flight_recorder_entry *first = gr_flight_recorder_at(record, before);
    for (unsigned i = 0; i < REPEATS; i++) {
        const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, before + i);
        EXPECT(entry->number == first->number + i && entry->fingerprint == first->fingerprint);
        EXPECT(entry->coll == GR_COLL_ALLREDUCE && entry->count == 1 && entry->shards == 2);
        EXPECT(entry->status == GR_OK && entry->ended >= entry->started && entry->peer == -1);
        EXPECT(!gr_algorithms[entry->algorithm].plan && entry->name[0] == '\0');
        EXPECT(strcmp(entry->site, sites[i % 2]) == 0);
    }
    gr_skew skew;
    EXPECT(gr_comm_skew(comm, 1 - gr_comm_rank(comm), &skew) == GR_OK);
    EXPECT(skew.operations >= REPEATS);
    gr_comm_destroy(comm);
    return 0;
}

static void test_record(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm"};
    assert_int_equal(ranks_run(&job, run_recorded, 0), 0);
}

/* ---- What goes wrong ------------------------------------------------------------------------- */
static int run_mismatch(gr_comm *comm, const ranks_job *job)
{
    float values[4] = {0};
    (void)job;
    for (int i = 0; i < REPEATS; i++) {
        EXPECT(gr_allreduce(comm, values, 3, GR_F32, GR_SUM) == GR_OK);
    }
    size_t count = gr_comm_rank(comm) == 0 ? 4 : 3;
    EXPECT(gr_allreduce(comm, values, count, GR_F32, GR_SUM) == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "allreduce of 3 f32"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "allreduce of 4 f32"));
    EXPECT(gr_allreduce(comm, values, 3, GR_F32, GR_SUM) == GR_E_COMM_BROKEN);
    gr_comm_destroy(comm);
    return 0;
}

static void test_mismatch(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        ranks_job job = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&job, run_mismatch, 0), 0);
    }
}

/* Ranks take themselves for the root, and wait for nobody; what follows is alike. */
static int run_two_roots(gr_comm *comm, const ranks_job *job)
{
    const unsigned *before = job->arg;
    float value = 1;
    for (unsigned i = 0; i < REPEATS + *before; i++) {
        EXPECT(gr_broadcast(comm, &value, 1, GR_F32, 0) == GR_OK);
        EXPECT(gr_broadcast(comm, &value, 1, GR_F32, 1) == GR_OK);
    }
    EXPECT(gr_barrier(comm) == GR_OK && gr_barrier(comm) == GR_OK);
    gr_status status = gr_broadcast(comm, &value, 1, GR_F32, gr_comm_rank(comm));
    for (int i = 0; i < 2 && status == GR_OK; i++) {
        status = gr_barrier(comm);
    }
    EXPECT(status == GR_E_MISMATCH || status == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "broadcast of 1 f32 from rank 0"));
    EXPECT(strstr(gr_comm_diag(comm)->text, "broadcast of 1 f32 from rank 1"));
    gr_comm_destroy(comm);
    return 0;
}

static void two_roots_among_repeated_calls_are_a_mismatch(void **state)
{
    (void)state;
    for (unsigned before = 0; before < 4; before++) {
        ranks_job job = {.size = 2, .link = "shm", .arg = &before};
        assert_int_equal(ranks_run(&job, run_two_roots, 0), 0);
    }
}

static int run_death(gr_comm *comm, const ranks_job *job)
{
    float value = 0;
    (void)job;
    for (int i = 0; i < REPEATS; i++) {
        EXPECT(gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) == GR_OK);
    }
    if (gr_comm_rank(comm) == DEAD_RANK) {
        (void)kill(getpid(), SIGKILL);
    }
    EXPECT(gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) < 0); /* found out here, or told of */
    EXPECT(gr_comm_diag(comm)->peer_rank == DEAD_RANK);
    EXPECT(strstr(gr_comm_diag(comm)->text, "rank 1 died"));
    gr_comm_destroy(comm);
    return 0;
}

static void test_death(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        ranks_job job = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&job, run_death, UINT64_C(1) << DEAD_RANK), 0);
    }
}

static uint64_t unwoken(const gr_comm *comm)
{
    gr_mesh_stats stats;
    gr_mesh_get_stats(comm->context->mesh, &stats);
    return stats.unwoken;
}

/* Who sleeps is woken, whoever stores last: else its sleep ends by itself each time. The longer it
 * is, the less it matters how long anybody waits for a core. */
static int run_sleepers(gr_comm *comm, const ranks_job *job)
{
    int size = gr_comm_size(comm), rank = gr_comm_rank(comm);
    bool woken[2] = {false, false};
    int32_t pids[RANKS] = {0};
    void *memory = NULL;
    (void)job;
    EXPECT(ranks_get_pids(comm, pids) == GR_OK);
    EXPECT(gr_alloc(comm, MOST * sizeof(float), &memory) == GR_OK);
    comm->context->mesh->sleep_us = SLEEP_US;
    for (int i = 0; i < REPEATS / 3 * size; i++) {
        bool large = i / size % 2 != 0, late = i % size == rank;
        if (late) {
            ranks_wait_until_others_sleep(comm, pids);
        }
        uint64_t before = unwoken(comm);
        EXPECT(gr_allreduce(comm, memory, large ? MOST : 1, GR_F32, GR_SUM) == GR_OK);
        woken[large] |= !late && unwoken(comm) == before;
    }
    EXPECT(woken[0] && woken[1]);
    gr_comm_destroy(comm);
    return 0;
}

static void test_sleepers(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        ranks_job job = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&job, run_sleepers, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_sleepers),
        cmocka_unit_test(two_roots_among_repeated_calls_are_a_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
