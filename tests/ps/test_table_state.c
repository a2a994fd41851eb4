/* SPDX-License-Identifier: Apache-2.0 */

/* Tables of rows that leave their servers with their optimizers' states, and go on elsewhere. */

#include "support_processes.h"
#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 5000, COLUMNS = 5, BATCH = 900, STEPS = 4, HALF = 2, STATES_MAX = 2 };
#define WAIT_US INT64_C(60000000)
#define ADAM_NUMBERS .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8
static const gr_optimizer_config momentum = {.kind = GR_OPT_SGD, .momentum = 0.9, ADAM_NUMBERS};
static const gr_optimizer_config adam = {.kind = GR_OPT_ADAM, ADAM_NUMBERS};

/* All rows that exist. */
typedef struct whole {
    size_t count;
    uint32_t rows[ROWS];
    float values[ROWS * COLUMNS], states[STATES_MAX][ROWS * COLUMNS];
} whole;

static int declare(gr_ps *ps, const gr_optimizer_config *optimizer)
{
    char text[GR_UPDATER_TEXT_BYTES];
    int id = -1;
    gr_updater_text(optimizer, true, text);
    const gr_ps_spec spec = {.name = "words",
                             .elements = (uint64_t)ROWS * COLUMNS,
                             .consistency = GR_BSP,
                             .shards = 1,
                             .optimizer = text,
                             .columns = COLUMNS,
                             .seed = 11,
                             .deviation = 0.25f};
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    return id;
}

static gr_status push_step(gr_ps *ps, int id, uint64_t step)
{
    uint32_t rows[BATCH];
    float gradients[BATCH * COLUMNS];
    for (uint32_t i = 0; i < BATCH; i++) {
        rows[i] = (i * 7919 + (uint32_t)step * 104729) * 2654435761u % ROWS;
        for (uint32_t c = 0; c < COLUMNS; c++) {
            gradients[i * COLUMNS + c] = (float)((i * 31 + step * 17 + c) % 101) * 0.01f - 0.4f;
        }
    }
    const gr_ps_gradient push = {.values = gradients, .step = step, .count = 1, .rate = 0.1};
    return gr_ps_push_rows_run(ps, id, &push, rows, BATCH);
}

/* False: a server was lost meanwhile. */
static bool scan_once(gr_ps *ps, int id, int states, uint64_t version, whole *out)
{
    gr_ps_scan scan = {.version = version, .state_count = states};
    out->count = 0;
    do {
        size_t at = out->count * COLUMNS;
        float *const to[STATES_MAX] = {out->states[0] + at, out->states[1] + at};
        scan.room = ROWS - out->count < 13 ? ROWS - out->count : 13; /* in many pieces */
        scan.room = scan.room > 0 ? scan.room : 1;
        scan.rows = out->rows + out->count;
        scan.values = out->values + at;
        scan.states = to;
        gr_status status = gr_ps_scan_rows(ps, id, &scan);
        if (status == GR_E_AGAIN) {
            return false;
        }
        expect_ok(ps, status);
        assert_true(scan.count == 0 || version == 0 || scan.version_least == version);
        out->count += scan.count;
    } while (scan.count > 0);
    return true;
}

static void scan_all(gr_ps *ps, int id, int states, uint64_t version, whole *out)
{
    while (!scan_once(ps, id, states, version, out)) {
    }
}

/* The same rows, whatever their order. */
static void expect_equal(const whole *a, const whole *b, int states)
{
    uint32_t at[ROWS];
    memset(at, 0xff, sizeof at);
    assert_int_equal(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        assert_true(a->rows[i] < ROWS && at[a->rows[i]] == UINT32_MAX);
        at[a->rows[i]] = i;
    }
    for (uint32_t i = 0; i < b->count; i++) {
        assert_true(b->rows[i] < ROWS && at[b->rows[i]] != UINT32_MAX);
        size_t from = (size_t)at[b->rows[i]] * COLUMNS, to = (size_t)i * COLUMNS;
        assert_memory_equal(a->values + from, b->values + to, COLUMNS * sizeof(float));
        for (int s = 0; s < states; s++) {
            assert_memory_equal(a->states[s] + from, b->states[s] + to, COLUMNS * sizeof(float));
        }
        at[b->rows[i]] = UINT32_MAX;
    }
}

static void start(test_servers *servers, int count, bool tcp)
{
    gr_ps_server_config config;
    gr_ps_server_config_init(&config);
    config.updaters = gr_updater_ops();
    test_servers_start(servers, count, tcp, &config);
}

/* Half of the steps here, the other half there, against all of them at one place. */
static void try_move(int from, int to, bool tcp, const gr_optimizer_config *optimizer)
{
    int states = gr_optimizer_states(optimizer);
    test_servers servers;
    whole *half = calloc(1, sizeof *half), *expected = calloc(1, sizeof *expected),
          *got = calloc(1, sizeof *got);
    start(&servers, from, tcp);
    gr_ps *ps = test_connect(&servers, 0);
    int id = declare(ps, optimizer);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step == HALF) {
            scan_all(ps, id, states, HALF, half);
        }
        expect_ok(ps, push_step(ps, id, step));
    }
    scan_all(ps, id, states, STEPS, expected);
    assert_true(half->count > BATCH / 2 && expected->count > half->count);
    gr_ps_close(ps);
    test_servers_stop(&servers);

    start(&servers, to, tcp);
    ps = test_connect(&servers, 0);
    id = declare(ps, optimizer);
    const float *const given[STATES_MAX] = {half->states[0], half->states[1]};
    for (int again = 0; again < 2; again++) { /* the second one is dropped */
        expect_ok(ps, gr_ps_restore_rows(ps, id, HALF, half->rows, half->count, half->values, given,
                                         states));
        scan_all(ps, id, states, HALF, got);
        expect_equal(half, got, states);
    }
    for (uint64_t step = HALF; step < STEPS; step++) {
        expect_ok(ps, push_step(ps, id, step));
    }
    scan_all(ps, id, states, STEPS, got);
    expect_equal(expected, got, states);
    gr_ps_close(ps);
    test_servers_stop(&servers);
    free(half);
    free(expected);
    free(got);
}

static void tables_go_on_elsewhere_with_the_same_bits(void **state)
{
    (void)state;
    try_move(1, 3, false, &adam);
    try_move(3, 2, true, &momentum);
}

static void what_cannot_be_restored_has_a_sentence(void **state)
{
    (void)state;
    enum { FEW = 3 };
    test_servers servers;
    start(&servers, 2, false);
    gr_ps *ps = test_connect(&servers, 0), *reader = test_connect(&servers, -1);
    int id = declare(ps, &momentum), seen = declare(reader, &momentum);
    uint32_t rows[FEW] = {7, 8, 7};
    float values[FEW * COLUMNS] = {0};
    const float *const given[STATES_MAX] = {values, values};
    expect_failure(ps, gr_ps_restore_rows(ps, 99, 1, rows, FEW, values, given, 1), GR_E_INVALID,
                   "no table 99");
    expect_failure(ps, gr_ps_restore_rows(ps, id, 1, rows, FEW, values, given, 1), GR_E_INVALID,
                   "row 7 of table \"words\" is to be restored twice");
    rows[2] = ROWS;
    expect_failure(ps, gr_ps_restore_rows(ps, id, 1, rows, FEW, values, given, 1), GR_E_INVALID,
                   "no row 5000");
    rows[2] = 9;
    expect_failure(ps, gr_ps_restore_rows(ps, id, 1, rows, FEW, values, given, 2), GR_E_INVALID,
                   "2 states");
    expect_failure(reader, gr_ps_restore_rows(reader, seen, 1, rows, FEW, values, given, 1),
                   GR_E_INVALID, "reads only");
    expect_ok(ps, gr_ps_restore_rows(ps, id, 3, rows, FEW, values, given, 1));
    expect_ok(ps, push_step(ps, id, 3));
    expect_failure(ps, gr_ps_restore_rows(ps, id, 5, rows, FEW, values, given, 1), GR_E_INVALID,
                   "has values of version 4 already");
    gr_ps_scan scan = {.version = 3, .room = FEW, .rows = rows, .values = values};
    expect_failure(reader, gr_ps_scan_rows(reader, seen, &scan), GR_E_INVALID,
                   "rows of version 3 are gone");
    scan.version = 0;
    scan.state_count = 2;
    float *const to[STATES_MAX] = {values, values};
    scan.states = to;
    expect_failure(reader, gr_ps_scan_rows(reader, seen, &scan), GR_E_INVALID, "has 1 vectors");
    gr_ps_close(ps);
    gr_ps_close(reader);
    test_servers_stop(&servers);
}

/* More than one message holds. */
static void a_large_table_is_restored_in_pieces(void **state)
{
    (void)state;
    enum { WIDE = 8192, MANY = 300 };
    test_servers servers;
    start(&servers, 2, false);
    gr_ps *ps = test_connect(&servers, 0);
    const gr_ps_spec spec = {
        .name = "wide", .elements = (uint64_t)WIDE << 12, .consistency = GR_ASYNC, .columns = WIDE};
    int id = -1;
    uint32_t rows[MANY];
    float *values = calloc((size_t)MANY * WIDE, sizeof *values),
          *got = calloc((size_t)MANY * WIDE, sizeof *got);
    for (uint32_t i = 0; i < MANY * WIDE; i++) {
        rows[i / WIDE] = i / WIDE * 13;
        values[i] = (float)(i % 10007);
    }
    expect_ok(ps, gr_ps_declare(ps, &spec, &id));
    expect_ok(ps, gr_ps_restore_rows(ps, id, 5, rows, MANY, values, NULL, 0));
    uint64_t version = 0;
    expect_ok(ps, gr_ps_pull_rows_run(ps, id, 5, rows, MANY, got, &version));
    assert_int_equal(version, 5);
    assert_memory_equal(got, values, (size_t)MANY * WIDE * sizeof *got);
    gr_ps_entry entry;
    expect_ok(ps, gr_ps_list(ps, 0, &entry));
    assert_int_equal(entry.rows, MANY);
    free(values);
    free(got);
    gr_ps_close(ps);
    test_servers_stop(&servers);
}

/* Each server may die when the new replicas are there; a scan that has begun before says so. */
static void what_was_restored_has_replicas(void **state)
{
    (void)state;
    processes servers;
    whole *half = calloc(1, sizeof *half), *got = calloc(1, sizeof *got);
    for (uint32_t i = 0; i < ROWS / 2; i++) {
        half->rows[i] = 2 * i;
        for (uint32_t c = 0; c < COLUMNS; c++) {
            half->values[i * COLUMNS + c] = (float)(i + c);
            half->states[0][i * COLUMNS + c] = (float)(i * c);
        }
    }
    half->count = ROWS / 2;
    const float *const given[STATES_MAX] = {half->states[0]};
    processes_start(&servers, 3, false, WAIT_US);
    gr_ps *ps = test_connect(&servers.reached, 0);
    int id = declare(ps, &momentum);
    expect_ok(ps, gr_ps_restore_rows(ps, id, 9, half->rows, half->count, half->values, given, 1));
    gr_ps_scan begun = {.room = 1, .rows = got->rows, .values = got->values};
    expect_ok(ps, gr_ps_scan_rows(ps, id, &begun));
    assert_int_equal(begun.count, 1);
    processes_wait_for_replicas(ps);
    kill(servers.pid[1], SIGKILL);
    process_end(&servers, 1);
    scan_all(ps, id, 1, 9, got);
    expect_equal(half, got, 1);
    assert_int_equal(gr_ps_scan_rows(ps, id, &begun), GR_E_AGAIN);
    free(half);
    free(got);
    gr_ps_close(ps);
    processes_stop(&servers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_go_on_elsewhere_with_the_same_bits),
        cmocka_unit_test(what_cannot_be_restored_has_a_sentence),
        cmocka_unit_test(a_large_table_is_restored_in_pieces),
        cmocka_unit_test(what_was_restored_has_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
