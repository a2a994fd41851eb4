/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors that are larger than what a client has on the way, by tcp: pushes that wait for each
 * other, for a late worker, and for servers of which one is lost. */

#include "support_processes.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

enum { ELEMENTS = 3 << 20, WORKERS = 2 };

static float *memory(void)
{
    float *mem = calloc(ELEMENTS, sizeof *mem);
    assert_non_null(mem);
    return mem;
}

static void fill(float *gradient, int shard)
{
    for (int i = 0; i < ELEMENTS; i++) {
        gradient[i] = (float)((shard + 1) * (i % 7 + 1));
    }
}

/* After so many steps, of both shards. */
static void check(const float *values, int steps)
{
    for (int i = 0; i < ELEMENTS; i++) {
        assert_true(values[i] == (float)(3 * steps * (i % 7 + 1)));
    }
}

static int declare(gr_ps *ps, const char *name, float *zeros)
{
    int id = -1;
    const gr_ps_spec spec = {
        .name = name, .elements = ELEMENTS, .consistency = GR_BSP, .shards = WORKERS};
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    expect_ok(ps, gr_ps_set(ps, id, zeros));
    return id;
}

/* The values of the first push come with the second one, which is behind it. */
static void pushes_that_wait_for_later_ones_end(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, true, NULL);
    gr_ps *ps = test_connect(&servers, 0);
    float *gradients[] = {memory(), memory()}, *values[] = {memory(), memory()};
    int id = declare(ps, "large", values[0]);
    for (int shard = 0; shard < 2; shard++) {
        fill(gradients[shard], shard);
    }
    for (int step = 0; step < 2; step++) {
        gr_ps_gradient push = {.values = gradients[0], .step = (uint64_t)step, .count = 1};
        gr_ps_op *op;
        expect_ok(ps, gr_ps_push_pull_start(ps, id, &push, values[0], &op));
        push.values = gradients[1];
        push.first = 1;
        expect_ok(ps, gr_ps_push_pull_run(ps, id, &push, values[1], NULL));
        expect_ok(ps, gr_ps_wait(op, 60000000, NULL));
        check(values[0], step + 1);
        check(values[1], step + 1);
    }
    gr_ps_close(ps);
    test_servers_stop(&servers);
    for (int i = 0; i < 2; i++) {
        free(gradients[i]);
        free(values[i]);
    }
}

typedef struct worker {
    const test_servers *servers;
    int number, steps, late_us;
    atomic_int step;
    pthread_t thread;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    gr_ps *ps = test_connect(w->servers, w->number);
    float *gradient = memory(), *values = memory();
    const struct timespec late = {.tv_nsec = w->late_us * 1000L};
    int id = declare(ps, "large", values);
    fill(gradient, w->number);
    for (int step = 0; step < w->steps; step++) {
        const gr_ps_gradient push = {
            .values = gradient, .step = (uint64_t)step, .first = w->number, .count = 1};
        nanosleep(&late, NULL);
        expect_ok(ps, gr_ps_push_pull_run(ps, id, &push, values, NULL));
        w->step = step + 1;
    }
    check(values, w->steps);
    gr_ps_close(ps);
    free(gradient);
    free(values);
    return NULL;
}

static void start(worker *workers, const test_servers *servers, int steps, int late_us)
{
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){
            .servers = servers, .number = i, .steps = steps, .late_us = i == 1 ? late_us : 0};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

static void end(worker *workers)
{
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

static void who_is_early_waits_for_who_is_late(void **state)
{
    (void)state;
    test_servers servers;
    worker workers[WORKERS];
    test_servers_start(&servers, 2, true, NULL);
    start(workers, &servers, 3, 150000);
    end(workers);
    test_servers_stop(&servers);
}

static void a_server_is_lost_while_pushes_are_held(void **state)
{
    (void)state;
    for (int victim = 0, rounds = process_rounds(2); victim < rounds; victim++) {
        processes servers;
        worker workers[WORKERS];
        processes_start(&servers, 3, true, 1000000);
        start(workers, &servers.reached, 12, 0);
        while (workers[0].step < 1 + victim % 10) {
            const struct timespec some = {.tv_nsec = 1000000};
            nanosleep(&some, NULL);
        }
        kill(servers.pid[victim % 3], SIGKILL);
        end(workers);
        (void)process_end(&servers, victim % 3);
        processes_stop(&servers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_that_wait_for_later_ones_end),
        cmocka_unit_test(who_is_early_waits_for_who_is_late),
        cmocka_unit_test(a_server_is_lost_while_pushes_are_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
