/* SPDX-License-Identifier: Apache-2.0 */

/* Servers are killed while workers push, and new ones come in their places: one after the other,
 * more often than there are replicas. By steps the values have the bits of a run in which nothing
 * happened. What claims to be such a server, and is none, changes nothing. */

#include "support_processes.h"
#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_US INT64_C(60000000)
enum { WORKERS = 2, SHARDS = 4, TENSORS = 2, ELEMENTS_MAX = 40001 };
static const uint64_t sizes[TENSORS] = {700, ELEMENTS_MAX};

/* ---- Workers --------------------------------------------------------------------------------- */

/* All make the same steps, until they are told which one is the last. */
typedef struct job {
    const test_servers *servers;
    pthread_mutex_t lock;
    pthread_cond_t step_made;
    int done, last; /* under the lock: steps of worker 0; a negative last one: not known */
    float values[TENSORS][ELEMENTS_MAX];
} job;

static int last_of(job *j)
{
    pthread_mutex_lock(&j->lock);
    int last = j->last;
    pthread_mutex_unlock(&j->lock);
    return last;
}

typedef struct worker {
    job *job;
    int number;
    pthread_t thread;
} worker;

static float gradient_of(int tensor, int step, int shard, uint64_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u + (uint32_t)shard * 40503u + (uint32_t)step * 977u +
                            (uint32_t)tensor * 131u);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((float)(x & 0xffff) - 32768.0f) * (shard % 2 != 0 ? 1e-4f : 3.0f);
}

static int declare(gr_ps *ps, int tensor)
{
    static const float zeros[ELEMENTS_MAX];
    char name[16];
    int id = -1;
    snprintf(name, sizeof name, "tensor %d", tensor);
    const gr_ps_spec spec = {.name = name,
                             .elements = sizes[tensor],
                             .consistency = GR_BSP,
                             .shards = SHARDS,
                             .optimizer = tensor == 1 ? "kind: sgd\nmomentum: 0.9" : ""};
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    expect_ok(ps, gr_ps_set(ps, id, zeros));
    return id;
}

/* One gradient of each shard that the worker has, values behind the last. */
static void push_step(gr_ps *ps, int number, int tensor, int id, int step, float *gradient,
                      float *values)
{
    gr_ps_op *ops[SHARDS];
    int count = 0;
    for (int shard = number; shard < SHARDS; shard += WORKERS) {
        for (uint64_t i = 0; i < sizes[tensor]; i++) {
            gradient[i] = gradient_of(tensor, step, shard, i);
        }
        const gr_ps_gradient push = {.values = gradient,
                                     .step = (uint64_t)step,
                                     .first = shard,
                                     .count = 1,
                                     .rate = 0.05,
                                     .factor = -0.01f};
        expect_ok(ps, shard + WORKERS < SHARDS
                          ? gr_ps_push_start(ps, id, &push, &ops[count])
                          : gr_ps_push_pull_start(ps, id, &push, values, &ops[count]));
        count++;
        gradient += sizes[tensor];
    }
    for (int i = 0; i < count; i++) {
        expect_ok(ps, gr_ps_wait(ops[i], WAIT_US, NULL));
    }
}

static float *memory(gr_ps *ps, size_t count)
{
    void *mem = NULL;
    expect_ok(ps, gr_ps_alloc(ps, count * sizeof(float), &mem));
    return mem;
}

static void *work(void *arg)
{
    const worker *w = arg;
    job *j = w->job;
    gr_ps *ps = test_connect(j->servers, w->number);
    float *gradient = memory(ps, (size_t)SHARDS / WORKERS * ELEMENTS_MAX);
    float *values = memory(ps, ELEMENTS_MAX);
    int ids[TENSORS], last = -1;
    for (int t = 0; t < TENSORS; t++) {
        ids[t] = declare(ps, t);
    }
    for (int step = 0; step == 0 || step - 1 != last; step++) {
        last = last_of(j);
        for (int t = 0; t < TENSORS; t++) {
            push_step(ps, w->number, t, ids[t], step, gradient, values);
            if (w->number == 0) {
                memcpy(j->values[t], values, sizes[t] * sizeof(float));
            }
        }
        if (w->number == 0) {
            pthread_mutex_lock(&j->lock);
            j->done = step + 1;
            pthread_cond_signal(&j->step_made);
            pthread_mutex_unlock(&j->lock);
        }
    }
    gr_ps_close(ps);
    return NULL;
}

static void start_job(job *j, worker *workers, const test_servers *servers, int last)
{
    memset(j, 0, sizeof *j);
    j->servers = servers;
    j->last = last;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->step_made, NULL);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.job = j, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

/* So many more steps are made. */
static void wait_for_steps(job *j, int more)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_US / 1000000;
    pthread_mutex_lock(&j->lock);
    for (int steps = j->done + more; j->done < steps;) {
        assert_int_equal(pthread_cond_timedwait(&j->step_made, &j->lock, &until), 0);
    }
    pthread_mutex_unlock(&j->lock);
}

static void join_workers(job *j, worker *workers)
{
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    pthread_cond_destroy(&j->step_made);
    pthread_mutex_destroy(&j->lock);
}

/* Neither worker is more than a step ahead of the other. Its steps. */
static int end_job(job *j, worker *workers)
{
    pthread_mutex_lock(&j->lock);
    int last = j->last = j->done + 3;
    pthread_mutex_unlock(&j->lock);
    join_workers(j, workers);
    return last;
}

/* What as many steps make without any disturbance. */
static void expect_undisturbed(const job *j, int last)
{
    static job alone;
    worker workers[WORKERS];
    test_servers servers;
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.updaters = gr_updater_ops();
    test_servers_start(&servers, 1, false, &config);
    start_job(&alone, workers, &servers, last);
    join_workers(&alone, workers);
    for (int t = 0; t < TENSORS; t++) {
        assert_memory_equal(j->values[t], alone.values[t], sizes[t] * sizeof(float));
    }
    test_servers_stop(&servers);
}

/* ---- One after the other --------------------------------------------------------------------- */

static const replacement as_it_should = {.secret = NULL};

static void servers_are_killed_in_turn(int count, bool tcp)
{
    static job j;
    processes servers;
    worker workers[WORKERS];
    processes_start(&servers, count, tcp, WAIT_US);
    const test_servers first = servers.reached;
    gr_ps *ps = test_connect(&servers.reached, -1);
    start_job(&j, workers, &first, -1);
    wait_for_steps(&j, 2);
    for (int round = 0; round < 2 * count + 1; round++) {
        int victim = round % count;
        process_kill(&servers, victim);
        processes_replace(&servers, victim, &as_it_should);
        processes_wait_until_whole(ps);
        wait_for_steps(&j, 2);
    }
    /* A client that comes now finds the new ones by their addresses, or is told of them. */
    gr_ps_close(test_connect(&servers.reached, -1));
    int last = end_job(&j, workers);
    gr_ps_close(ps);
    processes_stop(&servers);
    expect_undisturbed(&j, last);
}

static void two_servers_are_killed_in_turn(void **state)
{
    (void)state;
    servers_are_killed_in_turn(2, false);
    servers_are_killed_in_turn(2, true);
}

static void three_servers_are_killed_in_turn(void **state)
{
    (void)state;
    servers_are_killed_in_turn(3, false);
    servers_are_killed_in_turn(3, true);
}

/* A list of addresses from before: one of them is nobody's any more. */
static void a_client_with_an_old_list_finds_the_new_server(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        processes servers;
        float *values;
        processes_start(&servers, 2, tcp != 0, WAIT_US);
        const test_servers old = servers.reached;
        gr_ps *ps = test_connect(&old, 0);
        (void)declare(ps, 0);
        process_kill(&servers, 1);
        processes_replace(&servers, 1, &as_it_should);
        processes_wait_until_whole(ps);
        gr_ps *late = test_connect(&old, 1);
        processes_wait_until_whole(late);
        values = memory(late, ELEMENTS_MAX);
        expect_ok(late, gr_ps_pull_run(late, declare(late, 0), 0, values, NULL));
        gr_ps_close(late);
        gr_ps_close(ps);
        processes_stop(&servers);
    }
}

/* ---- In each phase --------------------------------------------------------------------------- */

/* A job on servers of which number 1 is killed and replaced, by a process that has stopped itself
 * in the servers' table, before it has any copy. */
typedef struct scene {
    processes servers;
    test_servers first;
    gr_ps *ps;
    worker workers[WORKERS];
} scene;

static job scene_job;

static void set_scene(scene *s, int count, bool tcp)
{
    const replacement stops = {.stops = true};
    processes_start(&s->servers, count, tcp, WAIT_US);
    s->first = s->servers.reached;
    s->ps = test_connect(&s->first, -1);
    start_job(&scene_job, s->workers, &s->first, -1);
    wait_for_steps(&scene_job, 2);
    process_kill(&s->servers, 1);
    if (count > 2) {
        processes_wait_for_replicas(s->ps);
    }
    processes_replace(&s->servers, 1, &stops);
    process_wait_for_stop(&s->servers, 1);
}

static void end_scene(scene *s)
{
    processes_wait_until_whole(s->ps);
    wait_for_steps(&scene_job, 2);
    int last = end_job(&scene_job, s->workers);
    gr_ps_close(s->ps);
    processes_stop(&s->servers);
    expect_undisturbed(&scene_job, last);
}

static void a_new_server_that_stands_still_goes_on(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        scene s;
        set_scene(&s, 2, tcp != 0);
        kill(s.servers.pid[1], SIGCONT);
        end_scene(&s);
    }
}

static void a_new_server_that_dies_before_it_has_copies_is_replaced(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        scene s;
        set_scene(&s, 2 + tcp, tcp != 0);
        process_kill(&s.servers, 1);
        wait_for_steps(&scene_job, 2);
        processes_replace(&s.servers, 1, &as_it_should);
        end_scene(&s);
    }
}

/* With it dies what only it had: that is said, and no value is given that is not the right one. */
static void what_only_the_source_had_is_lost_with_it(void **state)
{
    (void)state;
    const replacement stops = {.stops = true};
    for (int tcp = 0; tcp < 2; tcp++) {
        processes servers;
        float values[700];
        processes_start(&servers, 2, tcp != 0, WAIT_US);
        gr_ps *ps = test_connect(&servers.reached, 0);
        int id = declare(ps, 0);
        process_kill(&servers, 1);
        processes_replace(&servers, 1, &stops);
        process_wait_for_stop(&servers, 1);
        process_kill(&servers, 0);
        kill(servers.pid[1], SIGCONT);
        gr_status status = gr_ps_pull_run(ps, id, 0, values, NULL);
        if (status != GR_OK) {
            expect_failure(ps, status, GR_E_PEER_LOST, "lost");
        }
        for (int i = 0; i < 700 && status == GR_OK; i++) {
            assert_true(values[i] == 0.0f);
        }
        gr_ps_close(ps);
        processes_stop(&servers);
    }
}

/* Each block is on two servers when the third one comes: one of the two may go. */
static void the_peer_of_the_primaries_dies_while_a_new_server_comes(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        scene s;
        set_scene(&s, 3, tcp != 0);
        process_kill(&s.servers, tcp != 0 ? 2 : 0);
        kill(s.servers.pid[1], SIGCONT);
        processes_replace(&s.servers, tcp != 0 ? 2 : 0, &as_it_should);
        end_scene(&s);
    }
}

static void two_servers_are_replaced_at_once(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        static job j;
        processes servers;
        worker workers[WORKERS];
        processes_start(&servers, 4, tcp != 0, WAIT_US);
        const test_servers first = servers.reached;
        gr_ps *ps = test_connect(&first, -1);
        start_job(&j, workers, &first, -1);
        wait_for_steps(&j, 2);
        process_kill(&servers, 3);
        processes_wait_for_replicas(ps);
        process_kill(&servers, 1);
        processes_replace(&servers, 3, &as_it_should); /* it is told where server 1 comes to be */
        processes_replace(&servers, 1, &as_it_should);
        processes_wait_until_whole(ps);
        int last = end_job(&j, workers);
        gr_ps_close(ps);
        processes_stop(&servers);
        expect_undisturbed(&j, last);
    }
}

/* ---- What is no replacement ------------------------------------------------------------------ */

static void expect_end(processes *servers, int number, int code)
{
    int status = process_end(servers, number);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void a_liar_with_another_secret_or_run_is_refused(void **state)
{
    (void)state;
    static const uint8_t other_secret[GR_SECRET_BYTES] = "thirty-two bytes that were guess";
    const replacement lies[] = {{.secret = other_secret, .timeout_us = 100000}, {.run = "second"}};
    const replacement truth = {.run = "first"};
    for (int tcp = 0; tcp < 2; tcp++) {
        processes servers;
        gr_ps *ps;
        gr_diag diag = {0};
        processes_start(&servers, 2, tcp != 0, WAIT_US);
        const gr_ps_config config = {
            .servers = servers.reached.addresses, .secret = test_secret, .run = "first"};
        assert_int_equal(gr_ps_connect(&config, &ps, &diag), GR_OK);
        float *values = memory(ps, 700);
        int id = declare(ps, 0);
        process_kill(&servers, 1);
        for (int i = 0; i < 2; i++) {
            processes_replace(&servers, 1, &lies[i]);
            expect_end(&servers, 1, i == 0 ? 43 : 1);
            expect_ok(ps, gr_ps_pull_run(ps, id, 0, values, NULL));
        }
        processes_replace(&servers, 1, &truth);
        processes_wait_until_whole(ps);
        gr_ps_close(ps);
        processes_stop(&servers);
    }
}

/* As long as that lives it waits, and disturbs nobody. */
static void a_replacement_of_a_server_that_lives_waits_for_its_end(void **state)
{
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        static job j;
        processes servers;
        worker workers[WORKERS];
        processes_start(&servers, 2, tcp != 0, WAIT_US);
        const test_servers first = servers.reached;
        gr_ps *ps = test_connect(&first, -1);
        start_job(&j, workers, &first, -1);
        wait_for_steps(&j, 2);
        pid_t lives = servers.pid[1];
        int out = servers.out[1];
        servers.pid[1] = 0;
        processes_replace(&servers, 1, &as_it_should);
        wait_for_steps(&j, 5);
        kill(lives, SIGKILL);
        assert_int_equal(waitpid(lives, NULL, 0), lives);
        close(out);
        processes_wait_until_whole(ps);
        wait_for_steps(&j, 2);
        int last = end_job(&j, workers);
        gr_ps_close(ps);
        processes_stop(&servers);
        expect_undisturbed(&j, last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_servers_are_killed_in_turn),
        cmocka_unit_test(three_servers_are_killed_in_turn),
        cmocka_unit_test(a_client_with_an_old_list_finds_the_new_server),
        cmocka_unit_test(a_new_server_that_stands_still_goes_on),
        cmocka_unit_test(a_new_server_that_dies_before_it_has_copies_is_replaced),
        cmocka_unit_test(what_only_the_source_had_is_lost_with_it),
        cmocka_unit_test(the_peer_of_the_primaries_dies_while_a_new_server_comes),
        cmocka_unit_test(two_servers_are_replaced_at_once),
        cmocka_unit_test(a_liar_with_another_secret_or_run_is_refused),
        cmocka_unit_test(a_replacement_of_a_server_that_lives_waits_for_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
