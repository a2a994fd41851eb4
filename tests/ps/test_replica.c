/* SPDX-License-Identifier: Apache-2.0 */

/* Servers are processes that are killed, or stopped, at any moment while workers push: nothing that
 * was answered is lost, nothing counts twice, and by steps the bits are those of a run in which
 * nothing happened. */

#include "support_processes.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    WORKERS_MAX = 4,
    TENSORS = 2,
    SHARDS = 4,
    KILLS_MAX = 2,
    ROUNDS = 12 /* of each kind; more with GRADUS_TEST_KILLS in the environment */
};
#define WAIT_US INT64_C(60000000)
static const uint64_t sizes[TENSORS] = {700, 40001};

/* ---- What happens when ----------------------------------------------------------------------- */

/* The workers count what they do; who does number `at` does it to the server. */
typedef struct event {
    int at, server, signal;
    int64_t spin_ns; /* and so much later */
} event;

typedef struct plan {
    processes servers;
    int workers, steps;
    gr_consistency consistency;
    bool plain;
    event events[KILLS_MAX];
    int event_count;
    atomic_int ticks;
    uint64_t random;
} plan;

static int below(plan *p, int limit)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((p->random >> 33) % (uint64_t)limit);
}

static void tick(plan *p)
{
    int now = atomic_fetch_add(&p->ticks, 1);
    for (int i = 0; i < p->event_count; i++) {
        if (p->events[i].at == now) {
            int64_t until_ns = gr_now_ns() + p->events[i].spin_ns;
            while (gr_now_ns() < until_ns) {
            }
            kill(p->servers.pid[p->events[i].server], p->events[i].signal);
        }
    }
}

/* ---- Workers --------------------------------------------------------------------------------- */

typedef struct worker {
    plan *plan;
    int number;
    pthread_t thread;
    float *values[TENSORS]; /* in the end */
} worker;

static float gradient_of(const plan *p, int tensor, int step, int shard, uint64_t i)
{
    if (p->consistency != GR_BSP) {
        return (float)(1 + (i + (uint64_t)shard) % 3);
    }
    uint32_t x = (uint32_t)(i * 2654435761u + (uint32_t)shard * 40503u + (uint32_t)step * 977u +
                            (uint32_t)tensor * 131u);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((float)(x & 0xffff) - 32768.0f) * (shard % 2 != 0 ? 1e-4f : 3.0f);
}

static void *memory(gr_ps *ps, bool plain, uint64_t elements)
{
    void *mem = NULL;
    if (plain) {
        mem = calloc(elements, sizeof(float));
    } else {
        assert_int_equal(gr_ps_alloc(ps, elements * sizeof(float), &mem), GR_OK);
    }
    assert_non_null(mem);
    return mem;
}

static int declare(gr_ps *ps, const plan *p, int tensor, float *values)
{
    char name[32];
    int id = -1;
    snprintf(name, sizeof name, "tensor %d", tensor);
    const gr_ps_spec spec = {
        .name = name,
        .elements = sizes[tensor],
        .consistency = (int)p->consistency,
        .shards = SHARDS,
        .staleness = 2,
        .optimizer = p->consistency == GR_BSP && tensor == 1 ? "kind: sgd\nmomentum: 0.9" : ""};
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    memset(values, 0, sizes[tensor] * sizeof(float));
    expect_ok(ps, gr_ps_set(ps, id, values));
    return id;
}

/* All pushes of one step of one tensor, values behind the last. */
static int start_step(worker *w, gr_ps *ps, int tensor, int id, int step, float *const *gradients,
                      float *values, gr_ps_op **ops)
{
    const plan *p = w->plan;
    bool bsp = p->consistency == GR_BSP;
    int count = 0;
    for (int shard = w->number; shard < SHARDS; shard += p->workers) {
        for (uint64_t i = 0; i < sizes[tensor]; i++) {
            gradients[shard][i] = gradient_of(p, tensor, step, shard, i);
        }
        const gr_ps_gradient push = {.values = gradients[shard],
                                     .step = bsp ? (uint64_t)step : 0,
                                     .first = shard,
                                     .count = 1,
                                     .sequence = (uint64_t)(step * SHARDS + shard + 1),
                                     .rate = 0.05,
                                     .factor = bsp ? -0.01f : 1.0f};
        bool last = shard + p->workers >= SHARDS;
        expect_ok(ps, last ? gr_ps_push_pull_start(ps, id, &push, values, &ops[count])
                           : gr_ps_push_start(ps, id, &push, &ops[count]));
        count++;
        tick(w->plan);
    }
    return count;
}

static void *work(void *arg)
{
    worker *w = arg;
    plan *p = w->plan;
    gr_ps *ps = test_connect(&p->servers.reached, w->number);
    float *gradients[TENSORS][SHARDS], *values[TENSORS];
    int ids[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        values[t] = memory(ps, p->plain, sizes[t]);
        ids[t] = declare(ps, p, t, values[t]);
        for (int s = 0; s < SHARDS; s++) {
            gradients[t][s] = memory(ps, p->plain, sizes[t]);
        }
        /* Values may come in the place of the last gradient. */
        int last = SHARDS - 1 - (SHARDS - 1 - w->number) % p->workers;
        if (t == 1 && p->consistency == GR_BSP && !p->plain) {
            values[t] = gradients[t][last];
        }
    }
    for (int step = 0; step < p->steps; step++) {
        gr_ps_op *ops[TENSORS][SHARDS];
        int counts[TENSORS];
        if (p->consistency == GR_SSP) {
            expect_ok(ps, gr_ps_clock(ps, (uint64_t)step));
        }
        for (int t = 0; t < TENSORS; t++) {
            counts[t] = start_step(w, ps, t, ids[t], step, gradients[t], values[t], ops[t]);
        }
        for (int t = 0; t < TENSORS; t++) {
            for (int n = 0; n < counts[t]; n++) {
                expect_ok(ps, gr_ps_wait(ops[t][n], WAIT_US, NULL));
            }
            tick(p);
        }
    }
    for (int t = 0; t < TENSORS; t++) {
        w->values[t] = calloc(sizes[t], sizeof(float));
        memcpy(w->values[t], values[t], sizes[t] * sizeof(float));
        for (int s = 0; p->plain && s < SHARDS; s++) {
            free(gradients[t][s]);
        }
        if (p->plain) {
            free(values[t]);
        }
    }
    gr_ps_close(ps);
    return NULL;
}

static void run_workers(plan *p, worker *workers)
{
    for (int i = 0; i < p->workers; i++) {
        workers[i] = (worker){.plan = p, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < p->workers; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

static void free_values(plan *p, worker *workers)
{
    for (int i = 0; i < p->workers; i++) {
        for (int t = 0; t < TENSORS; t++) {
            free(workers[i].values[t]);
        }
    }
}

/* ---- By steps -------------------------------------------------------------------------------- */

enum { STEPS = 6 };

/* Somebody who has none of it left behind computes it alone. */
static void expect_bits(plan *p, const worker *workers)
{
    plan alone = {.workers = 1, .steps = p->steps, .consistency = p->consistency, .plain = true};
    worker one;
    atomic_init(&alone.ticks, 0);
    processes_start(&alone.servers, 1, false, WAIT_US);
    run_workers(&alone, &one);
    processes_stop(&alone.servers);
    for (int t = 0; t < TENSORS; t++) {
        for (int i = 0; i < p->workers; i++) {
            assert_memory_equal(workers[i].values[t], one.values[t], sizes[t] * sizeof(float));
        }
    }
    free_values(&alone, &one);
}

static void kill_in_bsp(int round, int kills)
{
    plan p = {.workers = 1 + round % 3,
              .steps = STEPS,
              .consistency = GR_BSP,
              .plain = round % 4 == 3,
              .random = (uint64_t)round * 7919 + (uint64_t)kills};
    worker workers[WORKERS_MAX];
    int count = kills + 1 + below(&p, PROCESSES_MAX - kills);
    atomic_init(&p.ticks, 0);
    processes_start(&p.servers, count, round % 3 == 2, WAIT_US);
    /* A worker has SHARDS / workers and one ticks for each tensor and step. */
    int each = (SHARDS + p.workers) * TENSORS;
    for (int i = 0; i < kills; i++) {
        p.events[i] = (event){.at = below(&p, each * STEPS / (2 * kills)) + i * each * STEPS / 2,
                              .server = below(&p, count),
                              .signal = SIGKILL,
                              .spin_ns = below(&p, 300000)};
    }
    if (kills == 2 && p.events[1].server == p.events[0].server) {
        p.events[1].server = (p.events[0].server + 1) % count;
    }
    p.event_count = kills;
    run_workers(&p, workers);
    processes_stop(&p.servers);
    expect_bits(&p, workers);
    free_values(&p, workers);
}

static void a_killed_server_changes_no_bit(void **state)
{
    (void)state;
    for (int round = 0; round < process_rounds(ROUNDS); round++) {
        kill_in_bsp(round, 1);
    }
}

/* What the first one had has replicas again when a whole step has been made since: its sums were
 * acknowledged by the new ones. A worker that kills the first one has ticked less than one and a
 * half steps, and pushes to step 2 only behind that; so step 2 is made without the first one. Three
 * steps of ticks are counted only when a worker has the answers of all blocks to step 2. */
static void so_does_one_after_the_other(void **state)
{
    (void)state;
    for (int round = 0; round < process_rounds(ROUNDS); round++) {
        kill_in_bsp(round, 2);
    }
}

/* ---- One by one ------------------------------------------------------------------------------ */

static void expect_sums(plan *p)
{
    gr_ps *ps = test_connect(&p->servers.reached, WORKERS_MAX);
    for (int t = 0; t < TENSORS; t++) {
        float *values = calloc(sizes[t], sizeof(float));
        int id = declare(ps, p, t, values);
        expect_ok(ps, gr_ps_pull_run(ps, id, 0, values, NULL));
        for (uint64_t i = 0; i < sizes[t]; i++) {
            float sum = 0;
            for (int shard = 0; shard < SHARDS; shard++) {
                sum += (float)p->steps * gradient_of(p, t, 0, shard, i);
            }
            assert_true(values[i] == sum);
        }
        free(values);
    }
    gr_ps_close(ps);
}

static void every_answered_push_counts_once(void **state)
{
    (void)state;
    for (int round = 0; round < process_rounds(ROUNDS); round++) {
        plan p = {.workers = 1 + round % WORKERS_MAX,
                  .steps = 2 * STEPS,
                  .consistency = round % 2 == 0 ? GR_ASYNC : GR_SSP,
                  .plain = round % 3 == 1,
                  .random = (uint64_t)round * 104729};
        worker workers[WORKERS_MAX];
        int count = 2 + below(&p, PROCESSES_MAX - 1);
        atomic_init(&p.ticks, 0);
        processes_start(&p.servers, count, round % 5 == 3, WAIT_US);
        p.events[0] = (event){.at = below(&p, (SHARDS + p.workers) * TENSORS * p.steps),
                              .server = below(&p, count),
                              .signal = SIGKILL,
                              .spin_ns = below(&p, 300000)};
        p.event_count = 1;
        run_workers(&p, workers);
        expect_sums(&p);
        free_values(&p, workers);
        processes_stop(&p.servers);
    }
}

/* ---- Silence, and the last one --------------------------------------------------------------- */

static void who_was_silent_for_too_long_learns_that_it_is_out(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        plan p = {.workers = 2, .steps = STEPS, .consistency = GR_BSP};
        worker workers[WORKERS_MAX];
        atomic_init(&p.ticks, 0);
        processes_start(&p.servers, 3, tcp != 0, 3000000);
        p.events[0] = (event){.at = 20 + 7 * tcp, .server = 2 * tcp, .signal = SIGSTOP};
        p.event_count = 1;
        run_workers(&p, workers);
        kill(p.servers.pid[2 * tcp], SIGCONT);
        int status = process_end(&p.servers, 2 * tcp);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 42);
        processes_stop(&p.servers);
        expect_bits(&p, workers);
        free_values(&p, workers);
    }
}

static void who_is_silent_for_less_is_waited_for(void **state)
{
    (void)state;
    plan p = {.workers = 2, .steps = STEPS, .consistency = GR_BSP};
    worker workers[WORKERS_MAX];
    atomic_init(&p.ticks, 0);
    processes_start(&p.servers, 2, false, WAIT_US);
    p.events[0] = (event){.at = 20, .server = 0, .signal = SIGSTOP};
    p.events[1] = (event){.at = 21, .server = 0, .signal = SIGCONT, .spin_ns = 200000000};
    p.event_count = 2;
    run_workers(&p, workers);
    assert_int_equal(waitpid(p.servers.pid[0], NULL, WNOHANG), 0);
    processes_stop(&p.servers);
    expect_bits(&p, workers);
    free_values(&p, workers);
}

static void the_last_one_is_missed(void **state)
{
    (void)state;
    plan p = {.workers = 1, .consistency = GR_ASYNC};
    gr_diag diag;
    atomic_init(&p.ticks, 0);
    processes_start(&p.servers, 2, false, WAIT_US);
    gr_ps *ps = test_connect(&p.servers.reached, 0);
    float *values = calloc(sizes[1], sizeof(float));
    int id = declare(ps, &p, 1, values);
    const gr_ps_gradient push = {.values = values, .sequence = 1};
    kill(p.servers.pid[0], SIGKILL);
    process_end(&p.servers, 0);
    expect_ok(ps, gr_ps_push_run(ps, id, &push));
    gr_ps_counters counters;
    assert_int_equal(gr_ps_read_counters(ps, 0, &counters), GR_E_PEER_LOST);
    expect_ok(ps, gr_ps_read_counters(ps, 1, &counters));
    /* Who comes later finds those that are left. */
    gr_ps *late = test_connect(&p.servers.reached, 1);
    gr_ps_entry entry;
    expect_ok(late, gr_ps_list(late, 0, &entry));
    gr_ps_close(late);
    kill(p.servers.pid[1], SIGKILL);
    process_end(&p.servers, 1);
    assert_int_equal(gr_ps_push_run(ps, id, &push), GR_E_PEER_LOST);
    diag = *gr_ps_last_error(ps);
    assert_non_null(strstr(diag.text, "server 1"));
    free(values);
    gr_ps_close(ps);
    processes_stop(&p.servers);
}

static void two_at_once_take_along_what_only_they_had(void **state)
{
    (void)state;
    plan p = {.workers = 1, .consistency = GR_ASYNC};
    atomic_init(&p.ticks, 0);
    processes_start(&p.servers, 3, false, WAIT_US);
    gr_ps *ps = test_connect(&p.servers.reached, 0);
    float *values = calloc(sizes[1], sizeof(float));
    int id = declare(ps, &p, 1, values);
    const gr_ps_gradient push = {.values = values, .sequence = 1};
    for (int victim = 0; victim < 2; victim++) {
        kill(p.servers.pid[victim], SIGSTOP); /* so that neither sees the other die */
    }
    for (int victim = 0; victim < 2; victim++) {
        kill(p.servers.pid[victim], SIGKILL);
        process_end(&p.servers, victim);
    }
    assert_int_equal(gr_ps_push_run(ps, id, &push), GR_E_PEER_LOST);
    assert_non_null(strstr(gr_ps_last_error(ps)->text, "blocks of the tensor are lost"));
    free(values);
    gr_ps_close(ps);
    processes_stop(&p.servers);
}

/* A restored tensor goes to its replicas in the background; a push behind it waits for that. */
static void what_was_restored_has_replicas(void **state)
{
    (void)state;
    plan p = {.workers = 1, .consistency = GR_ASYNC};
    char optimizer[] = "kind: sgd\nmomentum: 0.5";
    atomic_init(&p.ticks, 0);
    processes_start(&p.servers, 3, false, WAIT_US);
    gr_ps *ps = test_connect(&p.servers.reached, 0);
    uint64_t size = sizes[1];
    float *values = calloc(size, sizeof(float)), *state_values = calloc(size, sizeof(float));
    const gr_ps_spec spec = {
        .name = "w", .elements = size, .consistency = GR_ASYNC, .optimizer = optimizer};
    const float *states[] = {state_values};
    int id = -1;
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    for (uint64_t i = 0; i < size; i++) {
        values[i] = (float)(i % 100);
        state_values[i] = 8;
    }
    expect_ok(ps, gr_ps_restore(ps, id, 7, values, states, 1));
    memset(values, 0, size * sizeof(float));
    const gr_ps_gradient push = {.values = values, .sequence = 1, .rate = 1};
    expect_ok(ps, gr_ps_push_run(ps, id, &push)); /* momentum: 4, values: 4 less */
    kill(p.servers.pid[1], SIGKILL);
    process_end(&p.servers, 1);
    uint64_t version = 0;
    expect_ok(ps, gr_ps_pull_run(ps, id, 8, values, &version));
    assert_int_equal(version, 8);
    expect_ok(ps, gr_ps_pull_state_run(ps, id, 0, 8, state_values, NULL));
    for (uint64_t i = 0; i < size; i++) {
        assert_true(values[i] == (float)(i % 100) - 4 && state_values[i] == 4);
    }
    free(values);
    free(state_values);
    gr_ps_close(ps);
    processes_stop(&p.servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_server_changes_no_bit),
        cmocka_unit_test(so_does_one_after_the_other),
        cmocka_unit_test(every_answered_push_counts_once),
        cmocka_unit_test(who_was_silent_for_too_long_learns_that_it_is_out),
        cmocka_unit_test(who_is_silent_for_less_is_waited_for),
        cmocka_unit_test(the_last_one_is_missed),
        cmocka_unit_test(two_at_once_take_along_what_only_they_had),
        cmocka_unit_test(what_was_restored_has_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
