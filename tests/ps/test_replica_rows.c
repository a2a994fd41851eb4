/* SPDX-License-Identifier: Apache-2.0 */

/* Tables of rows whose servers are killed at any moment: no row that was answered is lost, nothing
 * counts twice, and by steps the bits are those of a run in which nothing happened. */

#include "ps/place.h"
#include "support_processes.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum {
    ROWS = 4000,
    COLUMNS = 6,
    BATCH = 700,
    SHARDS = 4,
    STEPS = 8,
    WORKERS_MAX = 3,
    KILLS_MAX = 2,
    ROUNDS = 8 /* of each kind; more with GRADUS_TEST_KILLS in the environment */
};
#define WAIT_US INT64_C(60000000)

typedef struct event {
    int at, server;
    int64_t spin_ns; /* and so much later */
} event;

/* The workers count what they do; who does number `at` kills the server. */
typedef struct plan {
    processes servers;
    int workers;
    gr_consistency consistency;
    event events[KILLS_MAX];
    int event_count;
    atomic_int ticks, kills;
    uint64_t random;
} plan;

static int below(plan *p, int limit)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((p->random >> 33) % (uint64_t)limit);
}

static void tick(plan *p, gr_ps *ps)
{
    int now = atomic_fetch_add(&p->ticks, 1);
    for (int i = 0; i < p->event_count; i++) {
        if (p->events[i].at != now) {
            continue;
        }
        if (i > 0) {
            while (atomic_load(&p->kills) < i) { /* by another worker, which is slow */
                sched_yield();
            }
            processes_wait_for_replicas(ps);
        }
        int64_t until_ns = gr_now_ns() + p->events[i].spin_ns;
        while (gr_now_ns() < until_ns) {
        }
        kill(p->servers.pid[p->events[i].server], SIGKILL);
        atomic_fetch_add(&p->kills, 1);
    }
}

static int declare(gr_ps *ps, gr_consistency consistency)
{
    bool bsp = consistency == GR_BSP;
    const gr_ps_spec spec = {.name = "words",
                             .elements = (uint64_t)ROWS * COLUMNS,
                             .consistency = (int)consistency,
                             .shards = SHARDS,
                             .columns = COLUMNS,
                             .seed = 5,
                             .deviation = bsp ? 0.5f : 0,
                             .optimizer = bsp ? "kind: sgd\nmomentum: 0.9" : ""};
    int id = -1;
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    return id;
}

/* Some rows stand there several times. */
static uint32_t row_of(int step, int shard, int i)
{
    uint32_t x = (uint32_t)(step * 977 + shard * 40503 + i / 2 * 7919);
    x ^= x >> 15;
    x *= 2246822519u;
    return (x >> 7) % ROWS;
}

static float gradient_of(gr_consistency consistency, int step, int shard, int i)
{
    return consistency != GR_BSP ? (float)(1 + (i + shard) % 3)
                                 : (float)((i * 31 + step * 17 + shard) % 101) * 0.37f - 13.0f;
}

typedef struct worker {
    plan *plan;
    int number;
    pthread_t thread;
} worker;

static gr_ps_op *push_shard(plan *p, gr_ps *ps, int id, int step, int shard)
{
    uint32_t rows[BATCH];
    float gradients[BATCH * COLUMNS];
    for (int i = 0; i < BATCH; i++) {
        rows[i] = row_of(step, shard, i);
        for (int c = 0; c < COLUMNS; c++) {
            gradients[i * COLUMNS + c] = gradient_of(p->consistency, step, shard, i) * (float)c;
        }
    }
    const gr_ps_gradient push = {.values = gradients,
                                 .step = (uint64_t)step,
                                 .first = shard,
                                 .count = 1,
                                 .sequence = (uint64_t)(step * SHARDS + shard + 1),
                                 .rate = 0.01,
                                 .factor = p->consistency == GR_BSP ? 0.25f : 1.0f};
    gr_ps_op *op = NULL;
    expect_ok(ps, gr_ps_push_rows_start(ps, id, &push, rows, BATCH, &op));
    return op;
}

static void *work(void *arg)
{
    worker *w = arg;
    plan *p = w->plan;
    gr_ps *ps = test_connect(&p->servers.reached, w->number);
    int id = declare(ps, p->consistency);
    for (int step = 0; step < STEPS; step++) {
        gr_ps_op *ops[SHARDS];
        int count = 0;
        for (int shard = w->number; shard < SHARDS; shard += p->workers) {
            ops[count++] = push_shard(p, ps, id, step, shard);
            tick(p, ps);
        }
        uint32_t rows[] = {0, 1, ROWS - 1};
        float values[3 * COLUMNS];
        uint64_t version = p->consistency == GR_BSP ? (uint64_t)step + 1 : 0;
        expect_ok(ps, gr_ps_pull_rows_run(ps, id, version, rows, 3, values, NULL));
        tick(p, ps);
        while (count > 0) {
            expect_ok(ps, gr_ps_wait(ops[--count], WAIT_US, NULL));
        }
    }
    gr_ps_close(ps);
    return NULL;
}

/* All rows in the end; heap. */
static float *run(plan *p)
{
    worker workers[WORKERS_MAX];
    for (int i = 0; i < p->workers; i++) {
        workers[i] = (worker){.plan = p, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < p->workers; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    gr_ps *ps = test_connect(&p->servers.reached, -1);
    int id = declare(ps, p->consistency);
    uint32_t rows[ROWS];
    float *values = calloc((size_t)ROWS * COLUMNS, sizeof *values);
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = i;
    }
    uint64_t version = 0;
    expect_ok(ps, gr_ps_pull_rows_run(ps, id, 0, rows, ROWS, values, &version));
    assert_int_equal(version, p->consistency == GR_BSP ? STEPS : STEPS * SHARDS);
    gr_ps_close(ps);
    return values;
}

/* When and whom; a worker has SHARDS / workers and one ticks for each step. */
static void choose(plan *p, int count, int kills)
{
    int all = (SHARDS + p->workers) * STEPS;
    p->event_count = kills;
    for (int i = 0; i < kills; i++) {
        p->events[i] = (event){.at = below(p, all / (2 * kills)) + i * all / 2,
                               .server = below(p, count),
                               .spin_ns = below(p, 400000)};
    }
    if (kills == 2 && p->events[1].server == p->events[0].server) {
        p->events[1].server = (p->events[0].server + 1) % count;
    }
}

static float *run_with_kills(int round, int kills, gr_consistency consistency)
{
    plan p = {.workers = 1 + round % WORKERS_MAX,
              .consistency = consistency,
              .random = (uint64_t)round * 7919 + (uint64_t)kills};
    int count = kills + 1 + below(&p, PROCESSES_MAX - kills);
    atomic_init(&p.ticks, 0);
    atomic_init(&p.kills, 0);
    processes_start(&p.servers, count, round % 3 == 2, WAIT_US);
    choose(&p, count, kills);
    float *values = run(&p);
    processes_stop(&p.servers);
    return values;
}

static void every_answered_push_counts_once(void **state)
{
    (void)state;
    float *expected = calloc((size_t)ROWS * COLUMNS, sizeof *expected);
    for (int n = 0; n < STEPS * SHARDS * BATCH; n++) {
        int i = n % BATCH, shard = n / BATCH % SHARDS, step = n / BATCH / SHARDS;
        for (int c = 0; c < COLUMNS; c++) {
            expected[row_of(step, shard, i) * COLUMNS + (uint32_t)c] +=
                gradient_of(GR_ASYNC, step, shard, i) * (float)c;
        }
    }
    for (int round = 0; round < process_rounds(ROUNDS); round++) {
        float *values = run_with_kills(round, 1 + round % 2, GR_ASYNC);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            assert_true(values[i] == expected[i]);
        }
        free(values);
    }
    free(expected);
}

static void a_killed_server_changes_no_bit(void **state)
{
    (void)state;
    plan alone = {.workers = 1, .consistency = GR_BSP};
    atomic_init(&alone.ticks, 0);
    atomic_init(&alone.kills, 0);
    processes_start(&alone.servers, 1, false, WAIT_US);
    float *expected = run(&alone);
    processes_stop(&alone.servers);
    for (int round = 0; round < process_rounds(ROUNDS); round++) {
        float *values = run_with_kills(round, 1 + round % 2, GR_BSP);
        assert_memory_equal(values, expected, (size_t)ROWS * COLUMNS * sizeof *values);
        free(values);
    }
    free(expected);
}

/* Rows of one block that are too many for one message between servers: first their replica dies,
 * then, when there is a new one, who leads them. */
static void rows_go_to_a_new_replica_in_pieces(void **state)
{
    (void)state;
    enum { WIDE = 1 << 15, MANY = 30, SERVERS = 3 };
    processes servers;
    gr_ps_table table;
    const gr_ps_spec spec = {
        .name = "wide", .elements = (uint64_t)WIDE << 13, .consistency = GR_ASYNC, .columns = WIDE};
    uint32_t rows[MANY], found = 0;
    float *values = calloc((size_t)MANY * WIDE, sizeof *values);
    uint64_t key = gr_ps_tensor_key(spec.name);
    for (uint32_t row = 0; found < MANY; row++) {
        if (gr_ps_row_block(key, row) == 7) {
            rows[found++] = row;
        }
    }
    assert_true(rows[MANY - 1] < 1 << 13);
    for (size_t i = 0; i < (size_t)MANY * WIDE; i++) {
        values[i] = (float)(i % 1009);
    }
    processes_start(&servers, SERVERS, false, WAIT_US);
    gr_ps *ps = test_connect(&servers.reached, 0);
    int id = -1;
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    gr_ps_table_init(&table, SERVERS);
    int victims[] = {table.replica[gr_ps_slot(key, 7)], table.primary[gr_ps_slot(key, 7)]};
    uint64_t pushed = 0;
    for (int kills = 0; kills <= 2; kills++) {
        for (int n = 0; n < 3; n++) { /* the first of them while the copy is made */
            const gr_ps_gradient push = {.values = values, .sequence = ++pushed};
            expect_ok(ps, gr_ps_push_rows_run(ps, id, &push, rows, MANY));
        }
        if (kills < 2) {
            processes_wait_for_replicas(ps);
            kill(servers.pid[victims[kills]], SIGKILL);
            process_end(&servers, victims[kills]);
        }
    }
    float *got = calloc((size_t)MANY * WIDE, sizeof *got);
    uint64_t version = 0;
    expect_ok(ps, gr_ps_pull_rows_run(ps, id, 0, rows, MANY, got, &version));
    assert_int_equal(version, pushed);
    for (size_t i = 0; i < (size_t)MANY * WIDE; i++) {
        assert_true(got[i] == (float)pushed * values[i]);
    }
    free(got);
    free(values);
    gr_ps_close(ps);
    processes_stop(&servers);
}

/* What only two had is lost with both, and that is said. */
static void two_at_once_take_along_what_only_they_had(void **state)
{
    (void)state;
    processes servers;
    const uint32_t rows[] = {1, 2, 3, ROWS - 1};
    float values[4 * COLUMNS] = {1};
    processes_start(&servers, 3, false, WAIT_US);
    gr_ps *ps = test_connect(&servers.reached, 0);
    int id = declare(ps, GR_ASYNC);
    for (int victim = 0; victim < 2; victim++) {
        kill(servers.pid[victim], SIGSTOP); /* so that neither sees the other die */
    }
    for (int victim = 0; victim < 2; victim++) {
        kill(servers.pid[victim], SIGKILL);
        process_end(&servers, victim);
    }
    const gr_ps_gradient push = {.values = values, .sequence = 1};
    assert_int_equal(gr_ps_push_rows_run(ps, id, &push, rows, 4), GR_E_PEER_LOST);
    assert_non_null(strstr(gr_ps_last_error(ps)->text, "blocks of the tensor are lost"));
    assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, 4, values, NULL), GR_E_PEER_LOST);
    gr_ps_close(ps);
    processes_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answered_push_counts_once),
        cmocka_unit_test(a_killed_server_changes_no_bit),
        cmocka_unit_test(rows_go_to_a_new_replica_in_pieces),
        cmocka_unit_test(two_at_once_take_along_what_only_they_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
