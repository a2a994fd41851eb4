/* SPDX-License-Identifier: Apache-2.0 */

/* Tables of rows on servers: what workers push and pull of them. */

#include "base/philox.h"
#include "coll/plan/plan.h"
#include "support_servers.h"
#include "train/updater.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 1000, COLUMNS = 5, BATCH = 300, WORKERS = 3, STEPS = 4, SHARDS = 6 };

static const gr_ps_spec integers = {.name = "words",
                                    .elements = (uint64_t)ROWS * COLUMNS,
                                    .consistency = GR_ASYNC,
                                    .columns = COLUMNS};

static int declare(gr_ps *ps, const gr_ps_spec *spec)
{
    int id = -1;
    if (gr_ps_declare(ps, spec, &id) != GR_OK) {
        fail_msg("%s", gr_ps_last_error(ps)->text);
    }
    return id;
}

static void start(test_servers *servers, int count, bool tcp)
{
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.updaters = gr_updater_ops();
    test_servers_start(servers, count, tcp, &config);
}

/* Which row a worker's i-th of a step is: some come again, in no order. */
static uint32_t row_of(int worker, uint64_t step, uint32_t i)
{
    return (uint32_t)((i * 7919u + (uint64_t)worker * 104729u + step * 31u) * 2654435761u >> 7) %
           (ROWS / 2);
}

/* ---- async ----------------------------------------------------------------------------------- */

typedef struct worker {
    const test_servers *servers;
    int number;
    pthread_t thread;
} worker;

/* Adds number + 1 to its rows, every second push twice. */
static void *push_integers(void *arg)
{
    const worker *w = arg;
    gr_ps *ps = test_connect(w->servers, w->number);
    int id = declare(ps, &integers);
    float gradients[BATCH * COLUMNS], values[BATCH * COLUMNS];
    uint32_t rows[BATCH];
    for (int i = 0; i < BATCH * COLUMNS; i++) {
        gradients[i] = (float)(w->number + 1);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            rows[i] = row_of(w->number, step, i);
        }
        const gr_ps_gradient push = {.values = gradients, .sequence = step, .rate = 1};
        for (uint64_t again = 0; again <= step % 2; again++) {
            assert_int_equal(gr_ps_push_rows_run(ps, id, &push, rows, BATCH), GR_OK);
        }
        uint64_t version = 0;
        assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, BATCH, values, &version), GR_OK);
        assert_true(version >= step + 1 && values[0] >= gradients[0]); /* its own is in */
    }
    gr_ps_close(ps);
    return NULL;
}

/* No push is lost or applied twice, and a row that stands in one several times counts as often. */
static void rows_are_the_sums_of_what_was_pushed(void **state)
{
    (void)state;
    float expected[ROWS] = {0};
    for (int w = 0; w < WORKERS; w++) {
        for (uint64_t step = 0; step < STEPS; step++) {
            for (uint32_t i = 0; i < BATCH; i++) {
                expected[row_of(w, step, i)] += (float)(w + 1);
            }
        }
    }
    uint64_t touched = 0;
    for (int i = 0; i < ROWS; i++) {
        touched += expected[i] != 0.0f;
    }
    for (int round = 0; round < 3; round++) {
        test_servers servers;
        worker all[WORKERS];
        start(&servers, 1 + round, round == 2);
        for (int i = 0; i < WORKERS; i++) {
            all[i] = (worker){.servers = &servers, .number = i};
            assert_int_equal(pthread_create(&all[i].thread, NULL, push_integers, &all[i]), 0);
        }
        for (int i = 0; i < WORKERS; i++) {
            pthread_join(all[i].thread, NULL);
        }
        gr_ps *ps = test_connect(&servers, -1);
        int id = declare(ps, &integers);
        uint32_t rows[2 * ROWS]; /* each row twice */
        for (uint32_t i = 0; i < 2 * ROWS; i++) {
            rows[i] = i * 7 % ROWS;
        }
        float *values = calloc((size_t)2 * ROWS * COLUMNS, sizeof(float));
        uint64_t version = 0;
        assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, 2 * ROWS, values, &version), GR_OK);
        assert_int_equal(version, WORKERS * STEPS);
        for (int i = 0; i < 2 * ROWS * COLUMNS; i++) {
            assert_true(values[i] == expected[rows[i / COLUMNS]]);
        }
        gr_ps_entry entry;
        assert_int_equal(gr_ps_list(ps, 0, &entry), GR_OK);
        assert_int_equal(entry.rows, touched);
        assert_int_equal(entry.tensor.columns, COLUMNS);
        assert_int_equal(entry.version_least, WORKERS * STEPS);
        assert_int_equal(entry.version_most, WORKERS * STEPS);
        free(values);
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
}

/* ---- A worker that dies --------------------------------------------------------------------- */

/* Adds 1 to all rows as often as it may, counts what was acknowledged, and says so each time. */
static void push_until_killed(const char *addresses, _Atomic uint64_t *acknowledged, int told)
{
    test_servers servers = {0};
    float ones[ROWS * COLUMNS];
    uint32_t rows[ROWS];
    memcpy(servers.addresses, addresses, sizeof servers.addresses);
    gr_ps *ps = test_connect(&servers, 0);
    int id = declare(ps, &integers);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        ones[i] = 1.0f;
        rows[i / COLUMNS] = i / COLUMNS;
    }
    for (uint64_t n = 0;; n++) {
        const gr_ps_gradient push = {.values = ones, .sequence = n};
        if (gr_ps_push_rows_run(ps, id, &push, rows, ROWS) != GR_OK) {
            _exit(1);
        }
        atomic_store(acknowledged, n + 1);
        if (write(told, "", 1) != 1) {
            _exit(1);
        }
    }
}

/* Its successor repeats the push that may or may not have counted, on each server. */
static void a_push_of_a_worker_that_dies_counts_once(void **state)
{
    (void)state;
    struct shared {
        _Atomic uint64_t acknowledged;
        char addresses[TEST_ADDRESSES_BYTES];
    } *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    for (uint64_t round = 0; round < 6; round++) {
        int ends[2], told[2];
        char byte = 0;
        test_servers servers;
        atomic_store(&shared->acknowledged, 0);
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(pipe(told), 0);
        pid_t child = test_fork(); /* before there are threads */
        if (child == 0) {
            close(ends[1]);
            close(told[0]);
            if (read(ends[0], &byte, 1) == 1) {
                setenv("GRADUS_LINK", round % 2 != 0 ? "tcp" : "auto", 1);
                push_until_killed(shared->addresses, &shared->acknowledged, told[1]);
            }
            _exit(1);
        }
        close(ends[0]);
        close(told[1]);
        test_servers_start(&servers, 3, round % 2 != 0, NULL);
        memcpy(shared->addresses, servers.addresses, sizeof shared->addresses);
        assert_int_equal(write(ends[1], &byte, 1), 1);
        for (uint64_t pushes = 0; pushes < 1 + round / 2; pushes++) {
            assert_int_equal(read(told[0], &byte, 1), 1); /* nothing comes of one that has ended */
        }
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        uint64_t acknowledged = atomic_load(&shared->acknowledged);
        assert_true(acknowledged >= 1 + round / 2);

        gr_ps *ps = test_connect(&servers, 0);
        int id = declare(ps, &integers);
        float values[ROWS * COLUMNS];
        uint32_t rows[ROWS];
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
            values[i] = 1.0f;
            rows[i / COLUMNS] = i / COLUMNS;
        }
        const gr_ps_gradient push = {.values = values, .sequence = acknowledged};
        assert_int_equal(gr_ps_push_rows_run(ps, id, &push, rows, ROWS), GR_OK);
        assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, ROWS, values, NULL), GR_OK);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            assert_true(values[i] == (float)(acknowledged + 1));
        }
        gr_ps_close(ps);
        test_servers_stop(&servers);
        close(ends[1]);
        close(told[0]);
    }
    munmap(shared, sizeof *shared);
}

/* ---- bsp ------------------------------------------------------------------------------------- */

#define ADAM_NUMBERS .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8
static const gr_optimizer_config adam = {.kind = GR_OPT_ADAM, ADAM_NUMBERS};
#define DEVIATION 0.1f
#define FACTOR 0.5f
#define RATE 0.05
enum { SEED = 77 };

static gr_ps_spec bsp_spec(char text_out[GR_UPDATER_TEXT_BYTES])
{
    gr_updater_text(&adam, true, text_out);
    return (gr_ps_spec){.name = "words",
                        .elements = (uint64_t)ROWS * COLUMNS,
                        .consistency = GR_BSP,
                        .shards = SHARDS,
                        .optimizer = text_out,
                        .columns = COLUMNS,
                        .seed = SEED,
                        .deviation = DEVIATION};
}

/* A shard has every third row or so, and not the same one in each step. Any order of additions but
 * the right one shows. */
static bool has_row(uint64_t step, int shard, uint32_t row)
{
    return row < ROWS / 2 && (row + step + (uint32_t)shard * (row % 5)) % 3 == 0;
}

static float gradient_of(uint64_t step, int shard, uint32_t row, uint32_t column)
{
    uint32_t x = row * 2654435761u + column * 97u + (uint32_t)shard * 40503u + (uint32_t)step * 977;
    x ^= x >> 15;
    x *= 2246822519u;
    return ((float)(x >> 16) - 32768.0f) * (shard % 2 != 0 ? 1e-4f : 3.0f);
}

/* The sum of a row over a node of the shard tree; false: no shard of it has the row. */
static bool node_sum(uint64_t step, gr_tree_range node, uint32_t row, uint32_t column, float *out)
{
    if (node.count == 1) {
        *out = has_row(step, node.first, row) ? gradient_of(step, node.first, row, column) : 0;
        return has_row(step, node.first, row);
    }
    int left_count = gr_tree_left_count(node.count);
    gr_tree_range left = {node.first, left_count};
    gr_tree_range right = {node.first + left_count, node.count - left_count};
    float a, b;
    bool in_left = node_sum(step, left, row, column, &a);
    bool in_right = node_sum(step, right, row, column, &b);
    *out = in_left && in_right ? a + b : in_left ? a : b;
    return in_left || in_right;
}

static void fill_expected(float *values)
{
    float *moments[2] = {calloc((size_t)ROWS * COLUMNS, sizeof(float)),
                         calloc((size_t)ROWS * COLUMNS, sizeof(float))};
    for (uint32_t row = 0; row < ROWS; row++) {
        float *at = values + row * COLUMNS;
        gr_philox_normal(SEED, row, 0, at, COLUMNS);
        for (int c = 0; c < COLUMNS; c++) {
            at[c] *= DEVIATION;
        }
        for (uint64_t step = 0; step < STEPS; step++) {
            float sum[COLUMNS];
            bool any = false;
            for (uint32_t c = 0; c < COLUMNS; c++) {
                any = node_sum(step, (gr_tree_range){0, SHARDS}, row, c, &sum[c]);
            }
            gr_optimizer_step now;
            float *states[2] = {moments[0] + row * COLUMNS, moments[1] + row * COLUMNS};
            gr_optimizer_step_init(&now, &adam, step, RATE, FACTOR, true);
            assert_true(!any || gr_optimizer_apply(&now, at, states, sum, COLUMNS));
        }
    }
    free(moments[0]);
    free(moments[1]);
}

/* The rows of a node of the tree, in descending order, so that the client has to sort. */
static uint32_t fill_node(uint64_t step, gr_tree_range node, uint32_t *rows, float *gradients)
{
    uint32_t count = 0;
    float one;
    for (uint32_t row = ROWS; row-- > 0;) {
        if (node_sum(step, node, row, 0, &one)) {
            for (uint32_t c = 0; c < COLUMNS; c++) {
                (void)node_sum(step, node, row, c, &gradients[count * COLUMNS + c]);
            }
            rows[count++] = row;
        }
    }
    return count;
}

typedef struct bsp_worker {
    const test_servers *servers;
    int number, workers;
    pthread_t thread;
} bsp_worker;

static void *run_steps(void *arg)
{
    const bsp_worker *w = arg;
    char text[GR_UPDATER_TEXT_BYTES];
    gr_ps *ps = test_connect(w->servers, w->number);
    gr_ps_spec spec = bsp_spec(text);
    int id = declare(ps, &spec), first, count;
    uint32_t *rows = calloc(ROWS, sizeof *rows);
    float *gradients = calloc((size_t)ROWS * COLUMNS, sizeof *gradients);
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    gr_shard_range(SHARDS, w->workers, w->number, &first, &count);
    int nodes = count > 0 ? gr_tree_cover(SHARDS, first, count, ranges) : 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        gr_ps_op *ops[GR_SHARD_PARTIALS_MAX + 1];
        int started = 0;
        for (int n = 0; n < nodes; n++) {
            uint32_t found = fill_node(step, ranges[n], rows, gradients);
            const gr_ps_gradient push = {.values = gradients,
                                         .step = step,
                                         .first = ranges[n].first,
                                         .count = ranges[n].count,
                                         .rate = RATE,
                                         .factor = FACTOR};
            for (uint64_t again = 0; again <= (n == 0 ? step % 2 : 0); again++) {
                assert_int_equal(gr_ps_push_rows_start(ps, id, &push, rows, found, &ops[started++]),
                                 GR_OK);
            }
        }
        float one[COLUMNS];
        uint64_t version = 0;
        assert_int_equal(gr_ps_pull_rows_run(ps, id, step + 1, rows, 1, one, &version), GR_OK);
        assert_int_equal(version, step + 1);
        while (started > 0) {
            assert_int_equal(gr_ps_wait(ops[--started], 60000000, NULL), GR_OK);
        }
    }
    free(rows);
    free(gradients);
    gr_ps_close(ps);
    return NULL;
}

static void bsp_has_the_same_bits_for_any_workers_and_servers(void **state)
{
    (void)state;
    float *expected = calloc((size_t)ROWS * COLUMNS, sizeof(float));
    float *values = calloc((size_t)ROWS * COLUMNS, sizeof(float));
    uint32_t *rows = calloc(ROWS, sizeof *rows);
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = i;
    }
    fill_expected(expected);
    for (int workers = 1; workers <= WORKERS + 1; workers++) {
        test_servers servers;
        bsp_worker all[WORKERS + 1];
        char text[GR_UPDATER_TEXT_BYTES];
        start(&servers, 1 + workers % 3, workers == 2);
        for (int i = 0; i < workers; i++) {
            all[i] = (bsp_worker){.servers = &servers, .number = i, .workers = workers};
            assert_int_equal(pthread_create(&all[i].thread, NULL, run_steps, &all[i]), 0);
        }
        for (int i = 0; i < workers; i++) {
            pthread_join(all[i].thread, NULL);
        }
        gr_ps *ps = test_connect(&servers, -1);
        gr_ps_spec spec = bsp_spec(text);
        int id = declare(ps, &spec);
        assert_int_equal(gr_ps_pull_rows_run(ps, id, STEPS, rows, ROWS, values, NULL), GR_OK);
        assert_memory_equal(values, expected, (size_t)ROWS * COLUMNS * sizeof(float));
        gr_ps_close(ps);
        test_servers_stop(&servers);
    }
    free(expected);
    free(values);
    free(rows);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

static void what_is_wrong_has_a_sentence(void **state)
{
    (void)state;
    test_servers servers;
    start(&servers, 2, false);
    gr_ps *ps = test_connect(&servers, 0), *reader = test_connect(&servers, -1);
    gr_ps_spec spec = integers, dense = {.name = "dense", .elements = 10, .consistency = GR_ASYNC};
    spec.refuse_not_finite = 1;
    int id = declare(ps, &spec), seen = declare(reader, &spec), other = declare(ps, &dense);
    float values[3 * COLUMNS] = {0}, *all = calloc((size_t)ROWS * COLUMNS, sizeof(float));
    uint32_t rows[3] = {1, ROWS, 2};
    gr_ps_gradient push = {.values = values, .sequence = 1};
    int none = -1;

    expect_failure(ps, gr_ps_push_rows_run(ps, id, &push, rows, 3), GR_E_INVALID, "no row 1000");
    expect_failure(ps, gr_ps_pull_rows_run(ps, id, 0, rows, 3, values, NULL), GR_E_INVALID,
                   "it has 1000 rows");
    rows[1] = 5;
    expect_failure(ps, gr_ps_push_run(ps, id, &push), GR_E_INVALID, "is a table");
    expect_failure(ps, gr_ps_pull_run(ps, id, 0, all, NULL), GR_E_INVALID, "is a table");
    expect_failure(ps, gr_ps_set(ps, id, all), GR_E_INVALID, "is a table");
    expect_failure(ps, gr_ps_restore(ps, id, 1, all, NULL, 0), GR_E_INVALID, "is a table");
    expect_failure(ps, gr_ps_push_rows_run(ps, other, &push, rows, 1), GR_E_INVALID, "no table");
    expect_failure(ps, gr_ps_pull_rows_run(ps, other, 0, rows, 1, values, NULL), GR_E_INVALID,
                   "no table");
    expect_failure(reader, gr_ps_push_rows_run(reader, seen, &push, rows, 3), GR_E_INVALID,
                   "reads only");
    values[7] = NAN;
    expect_failure(ps, gr_ps_push_rows_run(ps, id, &push, rows, 3), GR_E_NOT_FINITE, "element 7");

    gr_ps_spec wide = spec, uneven = spec, same_name = dense;
    wide.columns = 10;
    expect_failure(ps, gr_ps_declare(ps, &wide, &none), GR_E_INVALID, "of 10 columns");
    uneven.columns = 7;
    expect_failure(ps, gr_ps_declare(ps, &uneven, &none), GR_E_INVALID, "whole rows");
    same_name.name = spec.name;
    expect_failure(ps, gr_ps_declare(ps, &same_name, &none), GR_E_INVALID, "1000 rows");

    uint64_t version = 99;
    assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, 0, values, &version), GR_OK);
    assert_int_equal(version, 0); /* none of these did anything */
    gr_ps_entry entry;
    assert_int_equal(gr_ps_list(ps, 0, &entry), GR_OK);
    assert_int_equal(entry.rows, 0);
    free(all);
    gr_ps_close(reader);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

/* More rows than one message holds are refused, and more than a server has memory for. */
static void what_is_too_much_is_refused(void **state)
{
    (void)state;
    enum { WIDE = 4096, MANY = 1100 };
    test_servers servers;
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.bytes_max = 12 << 20;
    test_servers_start(&servers, 1, false, &config);
    gr_ps *ps = test_connect(&servers, 0);
    const gr_ps_spec spec = {
        .name = "wide", .elements = (uint64_t)WIDE << 20, .consistency = GR_ASYNC, .columns = WIDE};
    int id = declare(ps, &spec);
    float *values = calloc((size_t)MANY * WIDE, sizeof(float));
    uint32_t *rows = calloc(MANY, sizeof *rows);
    for (uint32_t i = 0; i < MANY; i++) {
        rows[i] = i * 900;
    }
    gr_ps_gradient push = {.values = values, .sequence = 1};
    expect_failure(ps, gr_ps_push_rows_run(ps, id, &push, rows, MANY), GR_E_INVALID, "fewer rows");
    expect_failure(ps, gr_ps_pull_rows_run(ps, id, 0, rows, MANY, values, NULL), GR_E_INVALID,
                   "fewer rows");
    expect_failure(ps, gr_ps_push_rows_run(ps, id, &push, rows, MANY - 200), GR_E_NO_MEMORY,
                   "no memory");
    push.sequence = 2;
    assert_int_equal(gr_ps_push_rows_run(ps, id, &push, rows, 100), GR_OK);
    push.sequence = 3;
    gr_status status = GR_OK;
    for (uint32_t i = 100; i + 100 <= MANY && status == GR_OK; i += 100, push.sequence++) {
        status = gr_ps_push_rows_run(ps, id, &push, rows + i, 100);
    }
    expect_failure(ps, status, GR_E_NO_MEMORY, "no memory");
    assert_int_equal(gr_ps_pull_rows_run(ps, id, 0, rows, 100, values, NULL), GR_OK);
    free(values);
    free(rows);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_push_of_a_worker_that_dies_counts_once), /* first: it forks */
        cmocka_unit_test(rows_are_the_sums_of_what_was_pushed),
        cmocka_unit_test(bsp_has_the_same_bits_for_any_workers_and_servers),
        cmocka_unit_test(what_is_wrong_has_a_sentence),
        cmocka_unit_test(what_is_too_much_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
