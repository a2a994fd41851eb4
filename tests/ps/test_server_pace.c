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

#include <cmocka.h>

/* A busy server may be silent for seconds; the end of one closes its connections. */
enum { ELEMENTS = 3 << 20, WORKERS = 2, SILENCE_US = 60000000 };

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
    int number, steps;
    bool late; /* it pushes when all that the other one pushes has come */
    int step;
    pthread_mutex_t lock;
    pthread_cond_t stepped;
    pthread_t thread;
} worker;

/* Of this step: until the servers have what the other worker pushes, although they give nothing
 * back. */
static void be_late(gr_ps *ps, int step)
{
    gr_ps_entry tensor;
    expect_ok(ps, gr_ps_list(ps, 0, &tensor));
    uint64_t wanted = (uint64_t)(WORKERS * step + 1) * tensor.blocks, came = 0;
    while (came < wanted) {
        came = 0;
        for (int server = 0; server < 2; server++) {
            gr_ps_counters counters;
            expect_ok(ps, gr_ps_read_counters(ps, server, &counters));
            came += counters.pushes;
        }
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    gr_ps *ps = test_connect(w->servers, w->number);
    float *gradient = memory(), *values = memory();
    int id = declare(ps, "large", values);
    fill(gradient, w->number);
    for (int step = 0; step < w->steps; step++) {
        const gr_ps_gradient push = {
            .values = gradient, .step = (uint64_t)step, .first = w->number, .count = 1};
        if (w->late) {
            be_late(ps, step);
        }
        expect_ok(ps, gr_ps_push_pull_run(ps, id, &push, values, NULL));
        pthread_mutex_lock(&w->lock);
        w->step = step + 1;
        pthread_cond_signal(&w->stepped);
        pthread_mutex_unlock(&w->lock);
    }
    check(values, w->steps);
    gr_ps_close(ps);
    free(gradient);
    free(values);
    return NULL;
}

static void start(worker *workers, const test_servers *servers, int steps, bool late)
{
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.servers = servers,
                              .number = i,
                              .steps = steps,
                              .late = late && i == 1,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .stepped = PTHREAD_COND_INITIALIZER};
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
    start(workers, &servers, 3, true);
    end(workers);
    test_servers_stop(&servers);
}

static void server_lost_while_pushes_are_held_others_go_on(void **state)
{
    (void)state;
    for (int victim = 0, rounds = process_rounds(2); victim < rounds; victim++) {
        processes servers;
        worker workers[WORKERS];
        processes_start(&servers, 3, true, SILENCE_US);
        start(workers, &servers.reached, 12, false);
        pthread_mutex_lock(&workers[0].lock);
        while (workers[0].step < 1 + victim % 10) {
            pthread_cond_wait(&workers[0].stepped, &workers[0].lock);
        }
        pthread_mutex_unlock(&workers[0].lock);
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
        cmocka_unit_test(server_lost_while_pushes_are_held_others_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
