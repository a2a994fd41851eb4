/* SPDX-License-Identifier: Apache-2.0 */

/* Servers and clients together, over both kinds of link. */

#include "coll/plan/plan.h"
#include "coll/sparse/cast.h"
#include "support_servers.h"
#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, SHARDS = 6, TENSORS = 3, WORKERS_MAX = 4 };
static const uint64_t sizes[TENSORS] = {5, 4100, 90001};

/* ---- What the values must be ----------------------------------------------------------------- */

/* Any order of additions but the right one shows. */
static float gradient_of(int tensor, uint64_t step, int shard, uint64_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u + (uint64_t)shard * 40503u + step * 977u +
                            (uint64_t)tensor * 131u);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((float)(x & 0xffff) - 32768.0f) * (shard % 2 != 0 ? 1e-4f : 0.3f);
}

static float rounded(gr_dtype type, float value)
{
    if (type != GR_F32) {
        gr_round_cast(type, &value, 1);
    }
    return value;
}

/* The sum of a node of the shard tree. */
static float node_sum(gr_dtype type, int tensor, uint64_t step, int first, int count, uint64_t i)
{
    if (count == 1) {
        return rounded(type, gradient_of(tensor, step, first, i));
    }
    int left = gr_tree_left_count(count);
    return rounded(type, node_sum(type, tensor, step, first, left, i) +
                             node_sum(type, tensor, step, first + left, count - left, i));
}

static float initial_of(int tensor, uint64_t i)
{
    return (float)(i % 13) - (float)tensor;
}

/* The first one: none, factor times the gradient is added up. */
#define ADAM_NUMBERS .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8
static const gr_optimizer_config optimizers[] = {
    {.kind = -1},
    {.kind = GR_OPT_SGD, ADAM_NUMBERS},
    {.kind = GR_OPT_SGD, .momentum = 0.9, .weight_decay = 0.01, ADAM_NUMBERS},
    {.kind = GR_OPT_ADAM, ADAM_NUMBERS},
};
enum { OPTIMIZERS = sizeof optimizers / sizeof optimizers[0] };
#define FACTOR (-0.01f)
#define RATE 0.05

static void fill_expected(gr_dtype type, int tensor, const gr_optimizer_config *optimizer,
                          float *values)
{
    uint64_t size = sizes[tensor];
    float *sum = calloc(size, sizeof(float)), *states[GR_OPTIMIZER_STATES_MAX];
    for (int i = 0; i < GR_OPTIMIZER_STATES_MAX; i++) {
        states[i] = calloc(size, sizeof(float));
    }
    for (uint64_t i = 0; i < size; i++) {
        values[i] = initial_of(tensor, i);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < size; i++) {
            sum[i] = node_sum(type, tensor, step, 0, SHARDS, i);
            values[i] += optimizer->kind < 0 ? FACTOR * sum[i] : 0;
        }
        if (optimizer->kind >= 0) {
            gr_optimizer_step now;
            gr_optimizer_step_init(&now, optimizer, step, RATE, FACTOR, true);
            assert_true(gr_optimizer_apply(&now, values, states, sum, size));
        }
    }
    free(sum);
    for (int i = 0; i < GR_OPTIMIZER_STATES_MAX; i++) {
        free(states[i]);
    }
}

/* ---- Workers --------------------------------------------------------------------------------- */

typedef struct worker {
    const test_servers *servers;
    int number, workers;
    const gr_optimizer_config *optimizer;
    gr_dtype type; /* of gradients on their way */
    bool plain;    /* memory that servers do not read */
    pthread_t thread;
    float *values[TENSORS]; /* in the end */
} worker;

static void *memory(gr_ps *ps, bool plain, uint64_t elements)
{
    void *mem = NULL;
    if (plain) {
        mem = calloc(elements, sizeof(float));
    } else if (gr_ps_alloc(ps, elements * sizeof(float), &mem) != GR_OK) {
        mem = NULL;
    }
    assert_non_null(mem);
    return mem;
}

static void release(gr_ps *ps, bool plain, void *mem)
{
    if (plain) {
        free(mem);
    } else {
        gr_ps_free(ps, mem);
    }
}

typedef struct spec_texts {
    char name[32], optimizer[GR_UPDATER_TEXT_BYTES];
} spec_texts;

static gr_ps_spec bsp_spec(const worker *w, int tensor, spec_texts *texts)
{
    const gr_optimizer_config *optimizer = w->optimizer;
    snprintf(texts->name, sizeof texts->name, "layer %d", tensor);
    texts->optimizer[0] = '\0';
    if (optimizer->kind >= 0) {
        gr_updater_text(optimizer, true, texts->optimizer);
    }
    return (gr_ps_spec){.name = texts->name,
                        .elements = sizes[tensor],
                        .consistency = GR_BSP,
                        .shards = SHARDS,
                        .optimizer = texts->optimizer,
                        .gradient_type = (int)w->type};
}

/* Pushes of one tensor, and the pull behind the last of them. */
static int start_step(const worker *w, gr_ps *ps, int tensor, int id, uint64_t step,
                      float *const *gradients, float *values, gr_ps_op **ops)
{
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int first, count;
    gr_shard_range(SHARDS, w->workers, w->number, &first, &count);
    int nodes = count > 0 ? gr_tree_cover(SHARDS, first, count, ranges) : 0;
    for (int n = 0; n < nodes; n++) {
        for (uint64_t i = 0; i < sizes[tensor]; i++) {
            gradients[n][i] =
                ranges[n].count == 1
                    ? gradient_of(tensor, step, ranges[n].first, i) /* rounded on its way */
                    : node_sum(w->type, tensor, step, ranges[n].first, ranges[n].count, i);
        }
        const gr_ps_gradient push = {.values = gradients[n],
                                     .step = step,
                                     .first = ranges[n].first,
                                     .count = ranges[n].count,
                                     .rate = RATE,
                                     .factor = FACTOR};
        gr_status status = n + 1 < nodes ? gr_ps_push_start(ps, id, &push, &ops[n])
                                         : gr_ps_push_pull_start(ps, id, &push, values, &ops[n]);
        assert_int_equal(status, GR_OK);
    }
    return nodes;
}

static void *work(void *arg)
{
    worker *w = arg;
    gr_ps *ps = test_connect(w->servers, w->number);
    float *gradients[TENSORS][SHARDS], *values[TENSORS];
    int ids[TENSORS];
    spec_texts texts;
    for (int t = 0; t < TENSORS; t++) {
        const gr_ps_spec spec = bsp_spec(w, t, &texts);
        assert_int_equal(gr_ps_declare(ps, &spec, &ids[t]), GR_OK);
        values[t] = memory(ps, w->plain, sizes[t]);
        for (int s = 0; s < SHARDS; s++) {
            gradients[t][s] = memory(ps, w->plain, sizes[t]);
        }
        for (uint64_t i = 0; i < sizes[t]; i++) {
            values[t][i] = initial_of(t, i);
        }
        assert_int_equal(gr_ps_set(ps, ids[t], values[t]), GR_OK);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        gr_ps_op *ops[TENSORS][SHARDS];
        int counts[TENSORS];
        for (int t = 0; t < TENSORS; t++) {
            counts[t] = start_step(w, ps, t, ids[t], step, gradients[t], values[t], ops[t]);
        }
        for (int t = 0; t < TENSORS; t++) {
            for (int n = 0; n < counts[t]; n++) {
                uint64_t version = 0;
                assert_int_equal(gr_ps_wait(ops[t][n], 30000000, &version), GR_OK);
                assert_true(version == step + 1);
            }
        }
    }
    for (int t = 0; t < TENSORS; t++) {
        w->values[t] = calloc(sizes[t], sizeof(float));
        memcpy(w->values[t], values[t], sizes[t] * sizeof(float));
        release(ps, w->plain, values[t]);
        for (int s = 0; s < SHARDS; s++) {
            release(ps, w->plain, gradients[t][s]);
        }
    }
    gr_ps_close(ps);
    return NULL;
}

static void try_bsp(int workers, int server_count, bool tcp, bool plain,
                    const gr_optimizer_config *optimizer, gr_dtype type)
{
    test_servers servers;
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.updaters = gr_updater_ops();
    config.replicas = (workers + tcp) % 2;
    worker all[WORKERS_MAX];
    test_servers_start(&servers, server_count, tcp, &config);
    for (int i = 0; i < workers; i++) {
        all[i] = (worker){.servers = &servers,
                          .number = i,
                          .workers = workers,
                          .optimizer = optimizer,
                          .type = type,
                          .plain = plain};
        assert_int_equal(pthread_create(&all[i].thread, NULL, work, &all[i]), 0);
    }
    for (int i = 0; i < workers; i++) {
        pthread_join(all[i].thread, NULL);
    }
    for (int t = 0; t < TENSORS; t++) {
        float *expected = calloc(sizes[t], sizeof(float));
        fill_expected(type, t, optimizer, expected);
        for (int i = 0; i < workers; i++) {
            assert_memory_equal(all[i].values[t], expected, sizes[t] * sizeof(float));
            free(all[i].values[t]);
        }
        free(expected);
    }
    test_servers_stop(&servers);
}

/* Whoever computes the shards, and whatever way they take: the sum of the shard tree, and what the
 * trainer's optimizer makes of it. */
static void bsp_has_the_bits_of_the_tree(void **state)
{
    (void)state;
    for (int workers = 1; workers <= WORKERS_MAX; workers++) {
        for (int servers = 1; servers <= 3; servers++) {
            int by = workers + servers;
            const gr_optimizer_config *three[] = {&optimizers[by % OPTIMIZERS],
                                                  &optimizers[(by + 1) % OPTIMIZERS],
                                                  &optimizers[(by + 2) % OPTIMIZERS]};
            gr_dtype narrow = by % 2 != 0 ? GR_F16 : GR_BF16;
            try_bsp(workers, servers, false, false, three[0], servers == 2 ? narrow : GR_F32);
            try_bsp(workers, servers, false, true, three[1], GR_F32);
            try_bsp(workers, servers, true, false, three[2], servers == 3 ? narrow : GR_F32);
        }
    }
}

/* Blocks of all kinds: nothing but zeros, few others, many. Over shared memory, where the pushed
 * one lies elsewhere, and tcp. */
static void zeros_need_not_travel(void **state)
{
    (void)state;
    enum { ELEMENTS = 50000 };
    float *gradient = calloc(ELEMENTS, sizeof(float)), *values = calloc(ELEMENTS, sizeof(float));
    for (int i = 0; i < ELEMENTS; i++) {
        bool kept = i < 10000 || (i > 30000 && i % 50 == 0);
        gradient[i] = kept ? (float)(i % 97 + 1) : 0.0f;
    }
    for (int tcp = 0; tcp < 2; tcp++) {
        test_servers servers;
        uint64_t came[2];
        test_servers_start(&servers, 2, tcp != 0, NULL);
        gr_ps *ps = test_connect(&servers, 0);
        const gr_ps_spec spec = {
            .name = "mostly zeros", .elements = ELEMENTS, .consistency = GR_ASYNC};
        int id;
        memset(values, 0, ELEMENTS * sizeof(float));
        assert_int_equal(gr_ps_declare(ps, &spec, &id), GR_OK);
        assert_int_equal(gr_ps_set(ps, id, values), GR_OK);
        for (int sparse = 0; sparse < 2; sparse++) {
            const gr_ps_gradient push = {
                .values = gradient, .sequence = (uint64_t)sparse, .sparse = sparse};
            assert_int_equal(gr_ps_push_pull_run(ps, id, &push, values, NULL), GR_OK);
            came[sparse] = 0;
            for (int s = 0; s < 2; s++) {
                gr_ps_counters counters;
                assert_int_equal(gr_ps_read_counters(ps, s, &counters), GR_OK);
                came[sparse] += counters.bytes_in;
            }
        }
        for (int i = 0; i < ELEMENTS; i++) {
            assert_true(values[i] == 2.0f * gradient[i]);
        }
        uint64_t set_and_whole = came[0], sparse_alone = came[1] - came[0];
        assert_true(set_and_whole == 2 * ELEMENTS * sizeof(float));
        assert_true(sparse_alone < ELEMENTS * sizeof(float) / 3);
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
    free(gradient);
    free(values);
}

/* An element that 16 bits do not hold, where infinity is refused. */
static void what_is_too_large_for_its_type_is_refused(void **state)
{
    (void)state;
    test_servers servers;
    test_servers_start(&servers, 2, false, NULL);
    gr_ps *ps = test_connect(&servers, 0);
    for (int round = 0; round < 2; round++) {
        gr_dtype type = round == 0 ? GR_F16 : GR_BF16;
        float gradient[] = {1.0f, round == 0 ? -65520.0f : 3.4e38f, 2.0f}, values[3] = {0};
        const gr_ps_spec spec = {.name = gr_dtype_name(type),
                                 .elements = 3,
                                 .consistency = GR_ASYNC,
                                 .refuse_not_finite = 1,
                                 .gradient_type = (int)type};
        int id;
        assert_int_equal(gr_ps_declare(ps, &spec, &id), GR_OK);
        assert_int_equal(gr_ps_set(ps, id, values), GR_OK);
        gr_ps_gradient push = {.values = gradient, .sequence = 1};
        assert_int_equal(gr_ps_push_run(ps, id, &push), GR_E_NOT_FINITE);
        assert_non_null(strstr(gr_ps_last_error(ps)->text, "element 1"));
        gradient[1] = 1024.25f; /* eleven bits of it are left, or eight */
        assert_int_equal(gr_ps_push_pull_run(ps, id, &push, values, NULL), GR_OK);
        assert_true(values[0] == 1.0f && values[1] == 1024.0f && values[2] == 2.0f);
    }
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bsp_has_the_bits_of_the_tree),
        cmocka_unit_test(zeros_need_not_travel),
        cmocka_unit_test(what_is_too_large_for_its_type_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
