/* SPDX-License-Identifier: Apache-2.0 */

/* A table's block on its way to a new replica, piece by piece, while it is pushed to: who takes
 * over in the end has every row with its states, and knows every push. */

#include "support_store.h"

#include "ps/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    COLUMNS = 3,
    BLOCK = 5,
    ROWS = 600,
    BATCH = 9,
    QUEUE = 4096,
    PIECE = 7,
    FLOATS = 2 * COLUMNS
};

/* What is on the way to the replica, in its order. */
typedef struct parcel {
    gr_ps_update update;
    gr_ps_image image; /* with `is_image` */
    bool is_image;
    int client;
    gr_ps_seen seen[CLIENTS];
    uint32_t rows[BATCH + PIECE];
    float values[(BATCH + PIECE) * FLOATS];
} parcel;

typedef struct world {
    gr_ps_store *leads, *follows;
    uint64_t key;
    uint32_t rows[ROWS]; /* of the block */
    int row_count;
    parcel *queue;
    int first, count;
    uint64_t answered; /* pushes */
} world;

static parcel *queue_one(world *w)
{
    assert_true(w->count < QUEUE);
    parcel *one = &w->queue[(w->first + w->count++) % QUEUE];
    memset(one, 0, sizeof *one);
    return one;
}

static void on_pushed(void *arg, const gr_ps_pushed *answer)
{
    world *w = arg;
    assert_int_equal(answer->status, GR_OK);
    w->answered++;
}

static void on_release(void *arg, void *values)
{
    (void)arg;
    free(values);
}

static void on_forward(void *arg, const gr_ps_update *update)
{
    parcel *one = queue_one(arg);
    one->update = *update;
    one->client = update->clients[0];
    if (update->count > 0) {
        memcpy(one->rows, update->rows, update->count * sizeof *one->rows);
        memcpy(one->values, update->values, update->count * COLUMNS * sizeof *one->values);
    }
}

static gr_ps_store *make_store(world *w, gr_ps_role role)
{
    const gr_ps_store_config config = {
        .ops = {.pushed = on_pushed, .release = on_release, .forward = on_forward},
        .ops_arg = w,
        .updaters = momentum_updaters};
    const gr_ps_spec spec = {.name = "words",
                             .elements = (uint64_t)COLUMNS << 20,
                             .consistency = GR_ASYNC,
                             .optimizer = "momentum",
                             .columns = COLUMNS,
                             .seed = 3,
                             .deviation = 1};
    const gr_ps_tensor table = gr_ps_tensor_of(&spec);
    gr_ps_store *store = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_create(&config, &store, &diag), GR_OK);
    assert_int_equal(gr_ps_store_declare(store, 0, &table, &diag), GR_OK);
    assert_int_equal(gr_ps_store_hold(store, gr_ps_tensor_key("words"), BLOCK, role, &diag), GR_OK);
    return store;
}

static void push(world *w, gr_ps_store *store, uint64_t *random, int client, uint64_t sequence)
{
    float *values = calloc(BATCH * COLUMNS, sizeof *values);
    uint32_t rows[BATCH];
    int at = random_below(random, 4), count = 0;
    for (; at < w->row_count && count < BATCH; at += 1 + random_below(random, w->row_count / 4)) {
        rows[count++] = w->rows[at];
    }
    for (int i = 0; i < count * COLUMNS; i++) {
        values[i] = (float)random_below(random, 17) - 8.0f;
    }
    const gr_ps_push push = {.client = client,
                             .key = w->key,
                             .block = BLOCK,
                             .count = (uint64_t)count * COLUMNS,
                             .sequence = sequence,
                             .rate = 0.125,
                             .factor = 1};
    const gr_ps_data data = {.values = values,
                             .lease = values,
                             .lasting = true,
                             .rows = rows,
                             .row_count = (uint32_t)count};
    gr_ps_store_push(store, &push, &data);
}

/* Its beginning, or more rows of it; true: that was all. */
static bool queue_piece(world *w, uint32_t *next, uint32_t *end, bool begins)
{
    parcel *one = queue_one(w);
    gr_diag diag;
    one->is_image = true;
    assert_int_equal(gr_ps_store_image(w->leads, w->key, BLOCK, &one->image, &diag), GR_OK);
    if (begins) {
        *next = 0;
        *end = one->image.count;
        memcpy(one->seen, one->image.seen, (size_t)one->image.seen_count * sizeof *one->seen);
    }
    uint32_t left = *end - *next, count = begins ? 0 : left < PIECE ? left : PIECE;
    one->image.count = count;
    one->image.begins = begins;
    one->image.ends = count == left;
    one->image.seen_count = begins ? one->image.seen_count : 0;
    gr_ps_store_image_rows(w->leads, w->key, BLOCK, *next, count, one->rows, one->values);
    *next += count;
    return one->image.ends;
}

static void deliver(world *w)
{
    parcel *one = &w->queue[w->first];
    gr_diag diag = {0};
    w->first = (w->first + 1) % QUEUE;
    w->count--;
    one->image.seen = one->seen;
    one->image.rows = one->update.rows = one->rows;
    one->image.values = one->update.values = one->values;
    one->update.clients = &one->client;
    gr_status status = one->is_image ? gr_ps_store_restore(w->follows, &one->image, &diag)
                                     : gr_ps_store_follow(w->follows, &one->update, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    uint64_t version = one->is_image ? one->image.version : one->update.version + 1;
    gr_ps_store_replicated(w->leads, w->key, BLOCK, version);
}

static int by_row(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* All rows that exist, sorted: number, values, states. */
static uint32_t dump(const world *w, const gr_ps_store *store, float **out)
{
    gr_ps_image image;
    gr_diag diag;
    assert_int_equal(gr_ps_store_image(store, w->key, BLOCK, &image, &diag), GR_OK);
    uint32_t *rows = calloc(image.count + 1, sizeof *rows);
    float *values = calloc((size_t)(image.count + 1) * FLOATS, sizeof *values);
    float *all = calloc((size_t)(image.count + 1) * (1 + FLOATS), sizeof *all);
    gr_ps_store_image_rows(store, w->key, BLOCK, 0, image.count, rows, values);
    for (uint32_t i = 0; i < image.count; i++) {
        memcpy(all + i * (1 + FLOATS), &rows[i], sizeof *rows);
        memcpy(all + i * (1 + FLOATS) + 1, values + i * FLOATS, FLOATS * sizeof *values);
    }
    qsort(all, image.count, (1 + FLOATS) * sizeof *all, by_row);
    free(rows);
    free(values);
    *out = all;
    return image.count;
}

static void expect_equal(const world *w)
{
    float *a, *b;
    uint32_t count = dump(w, w->leads, &a);
    assert_int_equal(dump(w, w->follows, &b), count);
    assert_true(count > 0);
    assert_memory_equal(a, b, count * (1 + FLOATS) * sizeof *a);
    free(a);
    free(b);
}

static void try_schedule(uint64_t seed)
{
    world w = {.key = gr_ps_tensor_key("words"), .queue = calloc(QUEUE, sizeof *w.queue)};
    uint64_t random = seed, pushed = 0, sequence[CLIENTS] = {0};
    for (uint32_t row = 0; w.row_count < 60 + (int)(seed % 3) * 100; row++) {
        if (gr_ps_row_block(w.key, row) == BLOCK) {
            w.rows[w.row_count++] = row;
        }
    }
    w.leads = make_store(&w, GR_PS_LEADS);
    w.follows = make_store(&w, GR_PS_FOLLOWS);
    uint32_t next = 0, end = 0;
    bool streaming = false;
    for (int move = 0; move < 500; move++) {
        int what = random_below(&random, 10), client = random_below(&random, CLIENTS);
        if (what < 4) {
            push(&w, w.leads, &random, client, ++sequence[client]);
            pushed++;
        } else if (what < 6 && streaming) {
            streaming = !queue_piece(&w, &next, &end, false);
        } else if (what == 6 && random_below(&random, 20) == 0) {
            /* A new one: what was on the way to the old one is lost with it. */
            w.first = w.count = 0;
            gr_ps_store_destroy(w.follows);
            w.follows = make_store(&w, GR_PS_FOLLOWS);
            streaming = !queue_piece(&w, &next, &end, true);
        } else if (w.count > 0) {
            deliver(&w);
        }
    }
    while (streaming) {
        streaming = !queue_piece(&w, &next, &end, false);
    }
    while (w.count > 0) {
        deliver(&w);
    }
    assert_int_equal(w.answered, pushed);
    expect_equal(&w);
    gr_diag diag;
    assert_int_equal(gr_ps_store_hold(w.follows, w.key, BLOCK, GR_PS_ALONE, &diag), GR_OK);
    for (int client = 0; client < CLIENTS; client++) {
        if (sequence[client] > 0) { /* again, to who has taken over */
            push(&w, w.follows, &random, client, sequence[client]);
        }
    }
    expect_equal(&w);
    gr_ps_store_destroy(w.leads);
    gr_ps_store_destroy(w.follows);
    free(w.queue);
}

static void a_new_replica_gets_all_rows_while_pushes_go_on(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        try_schedule(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_replica_gets_all_rows_while_pushes_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
