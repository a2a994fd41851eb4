/* SPDX-License-Identifier: Apache-2.0 */

/* Rows that come to be when they are pushed, against a whole table updated plainly; and what a few
 * rows of ten million cost. */

#include "ps/rows/rows.h"

#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Momentum, and a state that counts the updates of each element. */
static int two_states(void *updater)
{
    (void)updater;
    return 2;
}

static int no_states(void *updater)
{
    (void)updater;
    return 0;
}

static bool update(void *updater, uint64_t step, double rate, float factor, float *values,
                   float *const *states, const float *gradient, size_t count)
{
    (void)updater;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        states[0][i] = gradient[i] * factor + 0.5f * states[0][i];
        states[1][i] += (float)(step + 1);
        values[i] -= (float)rate * states[0][i];
        finite &= isfinite(gradient[i]) != 0;
    }
    return finite;
}

static bool update_plainly(void *updater, uint64_t step, double rate, float factor, float *values,
                           float *const *states, const float *gradient, size_t count)
{
    (void)updater;
    (void)step;
    (void)states;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        values[i] -= (float)rate * factor * gradient[i];
        finite &= isfinite(gradient[i]) != 0;
    }
    return finite;
}

static const gr_ps_updater_ops momentum = {.states = two_states, .update = update};
static const gr_ps_updater_ops plain = {.states = no_states, .update = update_plainly};

static gr_ps_rows *opened(gr_ps_rows_config config)
{
    gr_ps_rows *rows = NULL;
    gr_diag diag;
    if (gr_ps_rows_create(&config, &rows, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return rows;
}

static void push(gr_ps_rows *rows, uint64_t step, const uint32_t *indices, size_t count,
                 const float *gradients)
{
    gr_diag diag;
    bool finite = false;
    if (gr_ps_rows_push(rows, step, 0.25, 0.5f, indices, count, gradients, &finite, &diag) !=
        GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_true(finite);
}

static void pull(const gr_ps_rows *rows, const uint32_t *indices, size_t count, float *values)
{
    gr_diag diag;
    if (gr_ps_rows_pull(rows, indices, count, values, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
}

/* ---- Against a whole table ------------------------------------------------------------------- */

enum { ROWS = 300, COLUMNS = 7, PUSHES = 60, LONGEST = 90 };

typedef struct whole {
    float values[ROWS][COLUMNS], momentum[ROWS][COLUMNS], updates[ROWS][COLUMNS];
} whole;

static void push_whole(whole *w, uint64_t step, const uint32_t *indices, size_t count,
                       const float *gradients)
{
    bool done[ROWS] = {false};
    for (size_t i = 0; i < count; i++) {
        uint32_t row = indices[i];
        if (done[row]) {
            continue;
        }
        done[row] = true;
        float sum[COLUMNS] = {0};
        for (size_t k = i; k < count; k++) {
            for (int c = 0; c < COLUMNS && indices[k] == row; c++) {
                sum[c] = k == i ? gradients[k * COLUMNS + (size_t)c]
                                : sum[c] + gradients[k * COLUMNS + (size_t)c];
            }
        }
        float *states[] = {w->momentum[row], w->updates[row]};
        assert_true(update(NULL, step, 0.25, 0.5f, w->values[row], states, sum, COLUMNS));
    }
}

static void test_the_rows_of_a_whole_table(void **state)
{
    (void)state;
    gr_ps_rows *rows = opened((gr_ps_rows_config){
        .rows = ROWS, .columns = COLUMNS, .seed = 5, .deviation = 0.5f, .updaters = momentum});
    whole *w = calloc(1, sizeof *w);
    uint32_t all[ROWS], words[2 * LONGEST];
    float gradients[LONGEST * COLUMNS], got[ROWS][COLUMNS];
    bool touched[ROWS] = {false};
    uint64_t count = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        all[i] = i;
        gr_philox_normal(5, i, 0, w->values[i], COLUMNS);
        for (int c = 0; c < COLUMNS; c++) {
            w->values[i][c] *= 0.5f;
        }
    }
    for (uint64_t step = 0; step < PUSHES; step++) {
        gr_philox_fill(6, step, 0, words, 2 * LONGEST);
        gr_philox_normal(7, step, 0, gradients, LONGEST * COLUMNS);
        size_t length = words[0] % LONGEST;
        for (size_t i = 0; i < length; i++) {
            /* Often one of few rows: they stand there several times. */
            words[i] = words[LONGEST + i] % (i % 3 == 0 ? 5 : ROWS);
            count += !touched[words[i]];
            touched[words[i]] = true;
        }
        push(rows, step, words, length, gradients);
        push_whole(w, step, words, length, gradients);
        pull(rows, all, ROWS, got[0]);
        assert_memory_equal(got, w->values, sizeof got);
        assert_int_equal(gr_ps_rows_count(rows), count);
    }
    gr_ps_row row;
    for (uint64_t at = 0; gr_ps_rows_get(rows, at, &row); at++) {
        assert_true(at < count && touched[row.index]);
        touched[row.index] = false; /* each row once */
        assert_memory_equal(row.values, w->values[row.index], sizeof *got);
        assert_memory_equal(row.state[0], w->momentum[row.index], sizeof *got);
        assert_memory_equal(row.state[1], w->updates[row.index], sizeof *got);
    }
    assert_false(gr_ps_rows_get(rows, count, &row));
    free(w);
    gr_ps_rows_destroy(rows);
}

/* A second table that is given the rows of the first one goes on as that does. */
static void test_rows_are_handed_over(void **state)
{
    (void)state;
    const gr_ps_rows_config config = {
        .rows = ROWS, .columns = COLUMNS, .seed = 5, .deviation = 1.0f, .updaters = momentum};
    gr_ps_rows *from = opened(config), *to = opened(config);
    static const uint32_t indices[] = {7, 299, 7, 0, 12};
    float gradients[5 * COLUMNS], a[5 * COLUMNS], b[5 * COLUMNS];
    gr_philox_normal(8, 0, 0, gradients, 5 * COLUMNS);
    push(from, 0, indices, 5, gradients);
    gr_ps_row row;
    gr_diag diag;
    for (uint64_t at = 0; gr_ps_rows_get(from, at, &row); at++) {
        assert_int_equal(gr_ps_rows_put(to, &row, &diag), GR_OK);
        assert_int_equal(gr_ps_rows_put(to, &row, &diag), GR_OK); /* again: no harm */
    }
    assert_int_equal(gr_ps_rows_count(to), 4);
    push(from, 1, indices, 5, gradients);
    push(to, 1, indices, 5, gradients);
    pull(from, indices, 5, a);
    pull(to, indices, 5, b);
    assert_memory_equal(a, b, sizeof a);
    row.index = ROWS;
    assert_int_equal(gr_ps_rows_put(to, &row, &diag), GR_E_INVALID);
    gr_ps_rows_destroy(from);
    gr_ps_rows_destroy(to);
}

/* ---- Ten million rows ------------------------------------------------------------------------ */

enum { MANY = 10000000, WIDE = 64, BATCH = 4096, BATCHES = 12 };

static void expect_memory_of_touched_rows(const gr_ps_rows *rows, size_t row_bytes)
{
    double wanted = (double)gr_ps_rows_count(rows) * (double)row_bytes;
    double taken = (double)gr_ps_rows_bytes(rows);
    if (taken > 1.2 * wanted) {
        fail_msg("%.0f bytes for %llu rows of %zu bytes: %.3f times", taken,
                 (unsigned long long)gr_ps_rows_count(rows), row_bytes, taken / wanted);
    }
}

static void test_few_rows_of_ten_million(void **state)
{
    (void)state;
    static const gr_ps_updater_ops *const updaters[] = {&plain, &momentum};
    uint32_t *indices = malloc(BATCH * sizeof *indices);
    float *gradients = malloc((size_t)BATCH * WIDE * sizeof *gradients), *got = malloc(WIDE * 4);
    gr_philox_normal(1, 0, 0, gradients, (size_t)BATCH * WIDE);
    for (int with = 0; with < 2; with++) {
        gr_ps_rows *rows = opened((gr_ps_rows_config){.rows = MANY,
                                                      .columns = WIDE,
                                                      .seed = 5,
                                                      .deviation = 0.01f,
                                                      .updaters = *updaters[with]});
        for (uint64_t step = 0; step < BATCHES; step++) {
            gr_philox_fill(9, step, 0, indices, BATCH);
            for (size_t i = 0; i < BATCH; i++) {
                indices[i] %= MANY;
            }
            push(rows, step, indices, BATCH, gradients);
            expect_memory_of_touched_rows(rows, WIDE * sizeof(float) * (with ? 3 : 1));
        }
        assert_true(gr_ps_rows_count(rows) > BATCH * BATCHES / 100 * 99);
        /* To look takes no memory. */
        uint64_t bytes = gr_ps_rows_bytes(rows), count = gr_ps_rows_count(rows);
        for (uint32_t i = 0; i < 1000; i++) {
            pull(rows, &(uint32_t){MANY - 1 - i}, 1, got);
        }
        assert_int_equal(gr_ps_rows_bytes(rows), bytes);
        assert_int_equal(gr_ps_rows_count(rows), count);
        gr_ps_rows_destroy(rows);
    }
    free(indices);
    free(gradients);
    free(got);
}

/* ---- What cannot be -------------------------------------------------------------------------- */

static void test_a_table_that_is_full_goes_on(void **state)
{
    (void)state;
    enum { LIMIT = 64 << 10 };
    gr_ps_rows *rows = opened(
        (gr_ps_rows_config){.rows = MANY, .columns = WIDE, .updaters = plain, .bytes_max = LIMIT});
    float gradients[2 * WIDE], before[WIDE], after[WIDE];
    for (int i = 0; i < 2 * WIDE; i++) {
        gradients[i] = 1.0f;
    }
    gr_diag diag = {0};
    bool finite = true;
    gr_status status = GR_OK;
    uint32_t last = 0;
    while (status == GR_OK) {
        last++;
        pull(rows, &(uint32_t){0}, 1, before);
        status =
            gr_ps_rows_push(rows, 0, 1, 1, (uint32_t[]){0, last}, 2, gradients, &finite, &diag);
        assert_true(gr_ps_rows_bytes(rows) <= LIMIT);
    }
    assert_int_equal(status, GR_E_NO_MEMORY);
    assert_non_null(strstr(diag.text, "no memory for more rows: "));
    assert_true(last > 100);
    pull(rows, &(uint32_t){0}, 1, after);
    assert_memory_equal(before, after, sizeof before); /* also the row that is there */
    push(rows, 0, (uint32_t[]){0, last - 1}, 2, gradients);
    pull(rows, &(uint32_t){0}, 1, after);
    assert_memory_not_equal(before, after, sizeof before);
    gr_ps_rows_destroy(rows);
}

static void test_what_is_wrong_changes_nothing(void **state)
{
    (void)state;
    gr_ps_rows_config config = {.rows = 10, .columns = 2, .updaters = plain};
    gr_ps_rows *rows = opened(config);
    gr_diag diag = {0};
    bool finite = true;
    const float gradients[4] = {1, 2, NAN, 4};
    float got[2];
    assert_int_equal(
        gr_ps_rows_push(rows, 0, 1, 1, (uint32_t[]){3, 10}, 2, gradients, &finite, &diag),
        GR_E_INVALID);
    assert_string_equal(diag.text, "there is no row 10: the table has 10 rows");
    assert_int_equal(gr_ps_rows_pull(rows, &(uint32_t){10}, 1, got, &diag), GR_E_INVALID);
    assert_int_equal(
        gr_ps_rows_push(rows, 0, 1, 1, NULL, GR_PS_ROWS_OF_A_PUSH + 1, NULL, &finite, &diag),
        GR_E_INVALID);
    assert_int_equal(gr_ps_rows_count(rows), 0);
    assert_int_equal(
        gr_ps_rows_push(rows, 0, 1, 1, (uint32_t[]){3, 4}, 2, gradients, &finite, &diag), GR_OK);
    assert_false(finite);
    gr_ps_rows_destroy(rows);
    rows = NULL;
    config.rows = 0;
    assert_int_equal(gr_ps_rows_create(&config, &rows, &diag), GR_E_INVALID);
    config.rows = GR_PS_ROWS_MAX + 1;
    assert_int_equal(gr_ps_rows_create(&config, &rows, &diag), GR_E_INVALID);
    config.rows = 10;
    config.columns = GR_PS_COLUMNS_MAX + 1;
    assert_int_equal(gr_ps_rows_create(&config, &rows, &diag), GR_E_INVALID);
    config.columns = 2;
    config.deviation = NAN;
    assert_int_equal(gr_ps_rows_create(&config, &rows, &diag), GR_E_INVALID);
    config.deviation = 0;
    config.bytes_max = 100;
    assert_int_equal(gr_ps_rows_create(&config, &rows, &diag), GR_E_NO_MEMORY);
    assert_null(rows);
    gr_ps_rows_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rows_of_a_whole_table),
        cmocka_unit_test(test_rows_are_handed_over),
        cmocka_unit_test(test_few_rows_of_ten_million),
        cmocka_unit_test(test_a_table_that_is_full_goes_on),
        cmocka_unit_test(test_what_is_wrong_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
