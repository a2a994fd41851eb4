/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors that leave their servers with their optimizers' states, and go on elsewhere. */

#include "support_servers.h"
#include "train/updater.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, HALF = 2, TENSORS = 2, STATES_MAX = 2, ELEMENTS_MAX = 90001 };
static const uint64_t sizes[TENSORS] = {5, ELEMENTS_MAX};
#define ADAM_NUMBERS .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8
static const gr_optimizer_config momentum = {.kind = GR_OPT_SGD, .momentum = 0.9, ADAM_NUMBERS};
static const gr_optimizer_config adam = {.kind = GR_OPT_ADAM, ADAM_NUMBERS};

static void start(test_servers *servers, int count, bool tcp)
{
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.updaters = gr_updater_ops();
    test_servers_start(servers, count, tcp, &config);
}

/* All of one tensor. */
typedef struct whole {
    float *values, *states[STATES_MAX];
} whole;

static void whole_make(whole *all, uint64_t elements)
{
    all->values = calloc(elements, sizeof(float));
    for (int s = 0; s < STATES_MAX; s++) {
        all->states[s] = calloc(elements, sizeof(float));
    }
}

static void whole_free(whole *all)
{
    free(all->values);
    for (int s = 0; s < STATES_MAX; s++) {
        free(all->states[s]);
    }
}

static int declare(gr_ps *ps, int tensor, const gr_optimizer_config *optimizer)
{
    char name[32], text[GR_UPDATER_TEXT_BYTES];
    int id = -1;
    snprintf(name, sizeof name, "layer %d", tensor);
    gr_updater_text(optimizer, true, text);
    const gr_ps_spec spec = {.name = name,
                             .elements = sizes[tensor],
                             .consistency = GR_BSP,
                             .shards = 1,
                             .optimizer = text};
    assert_int_equal(gr_ps_declare(ps, &spec, &id), GR_OK);
    return id;
}

static void steps(gr_ps *ps, int id, uint64_t elements, uint64_t from, uint64_t to, float *values)
{
    float *gradient = calloc(elements, sizeof(float));
    for (uint64_t step = from; step < to; step++) {
        for (uint64_t i = 0; i < elements; i++) {
            gradient[i] = (float)((i * 31 + step * 17) % 101) * 0.01f - 0.4f;
        }
        const gr_ps_gradient push = {.values = gradient, .step = step, .count = 1, .rate = 0.1};
        uint64_t version = 0;
        assert_int_equal(gr_ps_push_pull_run(ps, id, &push, values, &version), GR_OK);
        assert_int_equal(version, step + 1);
    }
    free(gradient);
}

static void pull_whole(gr_ps *ps, int id, int states, uint64_t version, whole *out)
{
    uint64_t is = 0;
    assert_int_equal(gr_ps_pull_run(ps, id, version, out->values, &is), GR_OK);
    assert_int_equal(is, version);
    gr_ps_op *ops[STATES_MAX];
    for (int s = 0; s < states; s++) {
        assert_int_equal(gr_ps_pull_state_start(ps, id, s, version, out->states[s], &ops[s]),
                         GR_OK);
    }
    for (int s = 0; s < states; s++) {
        is = 0;
        assert_int_equal(gr_ps_wait(ops[s], 60000000, &is), GR_OK);
        assert_int_equal(is, version);
    }
}

static void set_initial(gr_ps *ps, int id, uint64_t elements)
{
    float *initial = calloc(elements, sizeof(float));
    for (uint64_t i = 0; i < elements; i++) {
        initial[i] = (float)(i % 13);
    }
    assert_int_equal(gr_ps_set(ps, id, initial), GR_OK);
    free(initial);
}

/* Half of the steps here, the other half there, against all of them at one place. */
static void try_move(int from, int to, bool tcp, const gr_optimizer_config *optimizer)
{
    int states = gr_optimizer_states(optimizer);
    test_servers old, new;
    start(&old, from, tcp);
    gr_ps *ps = test_connect(&old, 0);
    whole half[TENSORS], expected[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        int id = declare(ps, t, optimizer);
        whole_make(&half[t], sizes[t]);
        whole_make(&expected[t], sizes[t]);
        set_initial(ps, id, sizes[t]);
        steps(ps, id, sizes[t], 0, HALF, half[t].values);
        pull_whole(ps, id, states, HALF, &half[t]);
        steps(ps, id, sizes[t], HALF, STEPS, expected[t].values);
        pull_whole(ps, id, states, STEPS, &expected[t]);
        assert_memory_not_equal(half[t].states[0], expected[t].states[0], sizes[t]);
    }
    gr_ps_close(ps);
    test_servers_stop(&old);

    start(&new, to, tcp);
    ps = test_connect(&new, 0);
    for (int t = 0; t < TENSORS; t++) {
        int id = declare(ps, t, optimizer);
        whole got;
        gr_ps_op *waiting;
        uint64_t version = 0;
        size_t bytes = sizes[t] * sizeof(float);
        whole_make(&got, sizes[t]);
        assert_int_equal(gr_ps_pull_start(ps, id, 0, got.values, &waiting), GR_OK);
        const float *const given[STATES_MAX] = {half[t].states[0], half[t].states[1]};
        assert_int_equal(gr_ps_restore(ps, id, HALF, half[t].values, given, states), GR_OK);
        assert_int_equal(gr_ps_wait(waiting, 60000000, &version), GR_OK);
        assert_int_equal(version, HALF);
        assert_memory_equal(got.values, half[t].values, bytes);
        pull_whole(ps, id, states, HALF, &got);
        assert_memory_equal(got.states[0], half[t].states[0], bytes);
        steps(ps, id, sizes[t], HALF, STEPS, got.values);
        pull_whole(ps, id, states, STEPS, &got);
        assert_memory_equal(got.values, expected[t].values, bytes);
        for (int s = 0; s < states; s++) {
            assert_memory_equal(got.states[s], expected[t].states[s], bytes);
        }
        whole_free(&got);
        whole_free(&half[t]);
        whole_free(&expected[t]);
    }
    gr_ps_close(ps);
    test_servers_stop(&new);
}

static void tensors_go_on_elsewhere_with_the_same_bits(void **state)
{
    (void)state;
    try_move(1, 3, false, &adam);
    try_move(3, 2, false, &momentum);
    try_move(2, 1, true, &adam);
}

static void what_cannot_be_restored_has_a_sentence(void **state)
{
    (void)state;
    test_servers servers;
    start(&servers, 2, false);
    gr_ps *ps = test_connect(&servers, 0), *reader = test_connect(&servers, -1);
    int id = declare(ps, 1, &adam), seen = declare(reader, 1, &adam);
    whole w;
    whole_make(&w, sizes[1]);
    const float *const given[STATES_MAX] = {w.states[0], w.states[1]};

    expect_failure(ps, gr_ps_restore(ps, 99, 1, w.values, given, 2), GR_E_INVALID, "no tensor 99");
    expect_failure(ps, gr_ps_restore(ps, id, 1, w.values, given, 1), GR_E_INVALID, "1 states");
    expect_failure(ps, gr_ps_restore(ps, id, 1, w.values, given, GR_PS_STATES_MAX + 1),
                   GR_E_INVALID, "at most 4");
    expect_failure(reader, gr_ps_restore(reader, seen, 1, w.values, given, 2), GR_E_INVALID,
                   "reads only");
    gr_ps_op *op;
    assert_int_equal(gr_ps_pull_state_start(ps, id, 0, 0, w.values, &op), GR_OK);
    assert_int_equal(gr_ps_test(op, NULL), GR_PENDING); /* none of these gave it values */

    assert_int_equal(gr_ps_restore(ps, id, 7, w.values, given, 2), GR_OK);
    assert_int_equal(gr_ps_wait(op, 60000000, NULL), GR_OK);
    steps(ps, id, sizes[1], 7, 9, w.values);
    uint64_t version = 0;
    assert_int_equal(gr_ps_restore(ps, id, 8, w.values, given, 2), GR_OK); /* dropped */
    assert_int_equal(gr_ps_set(ps, id, w.values), GR_OK);                  /* as well */
    assert_int_equal(gr_ps_pull_state_run(reader, seen, 1, 0, w.states[1], &version), GR_OK);
    assert_int_equal(version, 9);
    expect_failure(ps, gr_ps_restore(ps, id, 10, w.values, given, 2), GR_E_INVALID,
                   "has values of version 9 already");
    expect_failure(ps, gr_ps_pull_state_run(ps, id, 0, 8, w.values, NULL), GR_E_INVALID,
                   "states of version 8 are gone");
    expect_failure(ps, gr_ps_pull_state_run(ps, id, 2, 0, w.values, NULL), GR_E_INVALID,
                   "has 2 vectors of its optimizer's state, and no number 2");
    expect_failure(ps, gr_ps_pull_state_run(ps, id, -1, 0, w.values, NULL), GR_E_INVALID,
                   "-1 cannot be");
    gr_ps_entry entry;
    assert_int_equal(gr_ps_list(ps, 0, &entry), GR_OK);
    assert_int_equal(entry.states, 2);
    steps(ps, id, sizes[1], 9, 10, w.values);
    whole_free(&w);
    gr_ps_close(ps);
    gr_ps_close(reader);
    test_servers_stop(&servers);
}

enum { PUSHES = 200 };

/* A worker whose n-th gradient is n, for all elements. */
static void *push_all(void *arg)
{
    gr_ps *ps = arg;
    float *gradient = calloc(ELEMENTS_MAX, sizeof *gradient);
    for (int n = 1; n <= PUSHES; n++) {
        for (uint64_t i = 0; i < ELEMENTS_MAX; i++) {
            gradient[i] = (float)n;
        }
        const gr_ps_gradient push = {.values = gradient, .sequence = (uint64_t)n, .rate = 1.0};
        if (gr_ps_push_run(ps, 0, &push) != GR_OK) {
            break;
        }
    }
    free(gradient);
    return NULL;
}

/* Each value has the momentum that it had together with it. */
static void check_moments(const whole *w)
{
    float moved[PUSHES + 1] = {0}, momenta[PUSHES + 1] = {0};
    for (int n = 1; n <= PUSHES; n++) {
        momenta[n] = 0.5f * momenta[n - 1] + (float)n;
        moved[n] = moved[n - 1] - momenta[n];
    }
    for (uint64_t i = 0; i < ELEMENTS_MAX; i += 97) {
        int n = 0;
        while (n < PUSHES && moved[n] > w->values[i]) {
            n++;
        }
        if (w->values[i] != moved[n] || w->states[0][i] != momenta[n]) {
            fail_msg("element %d: %g with momentum %g", (int)i, (double)w->values[i],
                     (double)w->states[0][i]);
        }
    }
}

static void whole_pulls_are_of_one_moment(void **state)
{
    (void)state;
    static const gr_optimizer_config half = {.kind = GR_OPT_SGD, .momentum = 0.5, ADAM_NUMBERS};
    char text[GR_UPDATER_TEXT_BYTES];
    test_servers servers;
    start(&servers, 2, false);
    gr_ps *worker = test_connect(&servers, 0), *reader = test_connect(&servers, -1);
    gr_updater_text(&half, false, text);
    const gr_ps_spec spec = {
        .name = "async", .elements = ELEMENTS_MAX, .consistency = GR_ASYNC, .optimizer = text};
    int id;
    assert_int_equal(gr_ps_declare(worker, &spec, &id), GR_OK);
    assert_int_equal(id, 0);
    assert_int_equal(gr_ps_declare(reader, &spec, &id), GR_OK);
    whole w;
    whole_make(&w, ELEMENTS_MAX);
    assert_int_equal(gr_ps_set(worker, 0, w.values), GR_OK);
    pthread_t pusher;
    assert_int_equal(pthread_create(&pusher, NULL, push_all, worker), 0);
    uint64_t version = 0;
    while (version < PUSHES) { /* each pull for one update more */
        assert_int_equal(
            gr_ps_pull_whole_run(reader, id, version + 1, w.values, w.states, 1, &version), GR_OK);
        check_moments(&w);
    }
    assert_int_equal(pthread_join(pusher, NULL), 0);
    assert_int_equal(version, PUSHES);
    expect_failure(reader, gr_ps_pull_whole_run(reader, id, 0, w.values, w.states, 2, NULL),
                   GR_E_INVALID, "has 1 vectors");
    whole_free(&w);
    gr_ps_close(worker);
    gr_ps_close(reader);
    test_servers_stop(&servers);
}

enum { TURNS = 8, WORKERS = 3, SMALL = 3000 };

/* What a worker computes from the values that it has. */
static void compute(const float *values, float *gradient)
{
    for (int i = 0; i < SMALL; i++) {
        gradient[i] = 0.3f * values[i] + (float)(i % 7) - 3.0f;
    }
}

/* Workers take turns, so that each gradient is as stale as there are others: the same numbers as
 * one process computes that uses old values on purpose. */
static void try_staleness(int adapt_rate, const float *expected[TURNS * WORKERS + 1])
{
    test_servers servers;
    start(&servers, 2, false);
    char text[GR_UPDATER_TEXT_BYTES];
    gr_updater_text(&momentum, true, text);
    const gr_ps_spec spec = {.name = "stale",
                             .elements = SMALL,
                             .consistency = GR_ASYNC,
                             .adapt_rate = adapt_rate,
                             .optimizer = text};
    gr_ps *workers[WORKERS];
    static const float zeros[SMALL];
    float values[WORKERS][SMALL] = {0}, gradient[SMALL];
    uint64_t versions[WORKERS] = {0}, turn = 0;
    for (int w = 0; w < WORKERS; w++) {
        int id;
        workers[w] = test_connect(&servers, w);
        assert_int_equal(gr_ps_declare(workers[w], &spec, &id), GR_OK);
        assert_int_equal(gr_ps_set(workers[w], id, zeros), GR_OK);
    }
    for (int n = 0; n < TURNS * WORKERS; n++) {
        int w = n % WORKERS;
        compute(values[w], gradient);
        const gr_ps_gradient push = {
            .values = gradient, .version = versions[w], .sequence = ++turn, .rate = 0.1};
        assert_int_equal(gr_ps_push_pull_run(workers[w], 0, &push, values[w], &versions[w]), GR_OK);
        assert_int_equal(versions[w], n + 1);
        assert_memory_equal(values[w], expected[n + 1], SMALL * sizeof(float));
    }
    for (int w = 0; w < WORKERS; w++) {
        gr_ps_close(workers[w]);
    }
    test_servers_stop(&servers);
}

static void stale_gradients_do_what_they_do_in_one_process(void **state)
{
    (void)state;
    for (int adapt_rate = 0; adapt_rate < 2; adapt_rate++) {
        float(*all)[SMALL] = calloc(TURNS * WORKERS + 1, sizeof *all);
        float states[SMALL] = {0}, *const of[1] = {states}, gradient[SMALL];
        const float *expected[TURNS * WORKERS + 1] = {all[0]};
        for (int n = 0; n < TURNS * WORKERS; n++) {
            int stale = n < WORKERS ? n : WORKERS - 1;
            double rate = adapt_rate ? 0.1 / (1.0 + stale) : 0.1;
            gr_optimizer_step now;
            gr_optimizer_step_init(&now, &momentum, (uint64_t)n, rate, 1.0f, true);
            compute(all[n - stale], gradient);
            memcpy(all[n + 1], all[n], sizeof *all);
            assert_true(gr_optimizer_apply(&now, all[n + 1], of, gradient, SMALL));
            expected[n + 1] = all[n + 1];
        }
        try_staleness(adapt_rate, expected);
        free(all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_go_on_elsewhere_with_the_same_bits),
        cmocka_unit_test(what_cannot_be_restored_has_a_sentence),
        cmocka_unit_test(whole_pulls_are_of_one_moment),
        cmocka_unit_test(stale_gradients_do_what_they_do_in_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
