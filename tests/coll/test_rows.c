/* SPDX-License-Identifier: Apache-2.0 */

/* Sparse sums against dense ones made by hand in the order of the shard tree. */

#include "base/float_mode.h"
#include "coll/sparse/sparse.h"
#include "support_ranks.h"
#include "support_values.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MATRIX_ROWS = 40, WIDTH = 3, GIVEN_MAX = 60, SIZE_MAX_TESTED = 5 };

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d, line %d: %s (%s)\n", gr_comm_rank(comm), __LINE__,           \
                    #condition, gr_comm_diag(comm)->text);                                         \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Values whose sums depend on the order of the additions. */
static float next_value(uint32_t *seed)
{
    return (float)next_random(seed) * (next_random(seed) % 2 ? 1e-7f : 3.1f) - 1e5f;
}

typedef struct given {
    size_t count;
    uint32_t indices[GIVEN_MAX];
    float values[GIVEN_MAX][WIDTH];
} given;

/* What a rank gives in a round: known to all, so that each can make the sum by itself. */
static void give(given *g, int rank, int round)
{
    uint32_t seed = (uint32_t)(rank * 977 + round * 13 + 5);
    g->count = round == 0 ? 0 : next_random(&seed) % (rank == 1 ? 3 : GIVEN_MAX);
    for (size_t i = 0; i < g->count; i++) {
        g->indices[i] = next_random(&seed) % MATRIX_ROWS * (round % 2 ? 1 : 100000007u);
        for (int k = 0; k < WIDTH; k++) {
            g->values[i][k] = next_value(&seed);
        }
    }
}

/* The row of one rank: those with this index in their order. False: it has none. */
static bool own_row(const given *g, uint32_t index, float row[WIDTH])
{
    bool found = false;
    for (size_t i = 0; i < g->count; i++) {
        for (int k = 0; g->indices[i] == index && k < WIDTH; k++) {
            row[k] = found ? row[k] + g->values[i][k] : g->values[i][k];
        }
        found = found || g->indices[i] == index;
    }
    return found;
}

static bool tree_row(const given *all, int first, int count, uint32_t index, float row[WIDTH])
{
    if (count == 1) {
        return own_row(&all[first], index, row);
    }
    int left = gr_tree_left_count(count);
    float right_row[WIDTH];
    bool has_left = tree_row(all, first, left, index, row);
    bool has_right = tree_row(all, first + left, count - left, index, right_row);
    for (int k = 0; has_right && k < WIDTH; k++) {
        row[k] = has_left ? row[k] + right_row[k] : right_row[k];
    }
    return has_left || has_right;
}

static int check_round(gr_comm *comm, int round, gr_redop op)
{
    static given all[SIZE_MAX_TESTED];
    int size = gr_comm_size(comm);
    for (int rank = 0; rank < size; rank++) {
        give(&all[rank], rank, round);
    }
    const given *own = &all[gr_comm_rank(comm)];
    gr_rows in = {own->count, WIDTH, GR_F32, own->indices, own->values};
    gr_rows sum;
    NEED(gr_allreduce_rows(comm, &in, op, &sum) == GR_OK);
    NEED(sum.width == WIDTH && sum.dtype == GR_F32);
    size_t expected = 0;
    for (size_t i = 0; i < sum.count; i++) {
        NEED(i == 0 || sum.indices[i - 1] < sum.indices[i]);
        float row[WIDTH];
        NEED(tree_row(all, 0, size, sum.indices[i], row));
        for (int k = 0; k < WIDTH; k++) {
            row[k] = op == GR_AVERAGE ? row[k] / (float)size : row[k];
        }
        NEED(memcmp(row, (const float *)sum.values + i * WIDTH, sizeof row) == 0);
    }
    for (uint32_t i = 0; i < MATRIX_ROWS; i++) {
        float row[WIDTH];
        expected += tree_row(all, 0, size, i * (round % 2 ? 1 : 100000007u), row);
    }
    NEED(sum.count == expected);
    gr_rows_release(&sum);
    NEED(sum.count == 0 && sum.indices == NULL);
    return 0;
}

/* Every rank has the same row, of numbers of its own. */
static int check_type(gr_comm *comm, gr_dtype dtype, gr_redop op)
{
    uint64_t values[2 * WIDTH], expected[2 * WIDTH];
    uint32_t index = 5;
    vals_fill(values, dtype, WIDTH, 9, gr_comm_rank(comm), false);
    vals_expect(expected, dtype, op, WIDTH, 9, gr_comm_size(comm), false);
    gr_rows in = {1, WIDTH, dtype, &index, values};
    gr_rows sum;
    NEED(gr_allreduce_rows(comm, &in, op, &sum) == GR_OK);
    NEED(sum.count == 1 && sum.indices[0] == 5);
    NEED(memcmp(sum.values, expected, WIDTH * gr_dtype_bytes(dtype)) == 0);
    gr_rows_release(&sum);
    return 0;
}

static int types_function(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        NEED(check_type(comm, (gr_dtype)dtype, GR_SUM) == 0);
        NEED(dtype == GR_BOOL || check_type(comm, (gr_dtype)dtype, GR_AVERAGE) == 0);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void rows_of_every_type_are_added(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) {
        const ranks_job job = {.size = size, .link = size == 2 ? "tcp" : "shm"};
        assert_int_equal(ranks_run(&job, types_function, 0), 0);
    }
}

static int rows_function(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    for (int round = 0; round < 8; round++) {
        NEED(check_round(comm, round, round % 3 == 2 ? GR_AVERAGE : GR_SUM) == 0);
    }
    gr_rows none = {.width = 1, .dtype = GR_F32, .count = 1}; /* without indices */
    gr_rows sum;
    NEED(gr_allreduce_rows(comm, &none, GR_SUM, &sum) == GR_E_INVALID);
    NEED(strstr(gr_comm_last_error(comm)->text, "indices or values are NULL"));
    none.count = 0;
    NEED(gr_allreduce_rows(comm, &none, GR_MAX, &sum) == GR_E_INVALID);
    NEED(strstr(gr_comm_last_error(comm)->text,
                "rows of f32 cannot be reduced by max, only by sum or average"));
    none.dtype = GR_BOOL;
    NEED(gr_allreduce_rows(comm, &none, GR_AVERAGE, &sum) == GR_E_INVALID);
    NEED(strstr(gr_comm_last_error(comm)->text, "rows of bool cannot be reduced by average"));
    NEED(gr_allreduce_rows(comm, NULL, GR_SUM, &sum) == GR_E_INVALID);
    NEED(gr_allreduce_rows(comm, &(gr_rows){.dtype = GR_F32}, GR_SUM, &sum) == GR_E_INVALID);
    NEED(gr_allreduce_rows(NULL, &none, GR_SUM, &sum) == GR_E_INVALID);
    NEED(gr_allreduce_rows(comm, &none, GR_SUM, &sum) == GR_OK && sum.count == 0);
    gr_rows_release(&sum);
    gr_rows_release(NULL);
    return 0;
}

static void test_rows(void **state)
{
    (void)state;
    for (int size = 1; size <= SIZE_MAX_TESTED; size++) {
        const ranks_job shm = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&shm, rows_function, 0), 0);
    }
    const ranks_job tcp = {.size = 3, .link = "tcp"};
    assert_int_equal(ranks_run(&tcp, rows_function, 0), 0);
}

/* Which calls they are, the program knows by its own places, not by those in the library. */
static int differing_function(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float value = 1;
    uint32_t index = 3;
    const gr_rows in = {.count = 1,
                        .width = 1,
                        .dtype = gr_comm_rank(comm) == 0 ? GR_F32 : GR_I32,
                        .indices = &index,
                        .values = &value};
    gr_rows sum;
    NEED(gr_allreduce_rows(comm, &in, GR_SUM, &sum) == GR_E_MISMATCH);
    const char *text = gr_comm_diag(comm)->text;
    NEED(strstr(text, "\"rows\" at test_coll_rows+") && !strstr(text, "gr_allreduce_rows"));
    gr_comm_destroy(comm);
    return 0;
}

static void test_differing(void **state)
{
    (void)state;
    const ranks_job job = {.size = 2, .link = "shm"};
    assert_int_equal(ranks_run(&job, differing_function, 0), 0);
}

/* The last rank makes the calls that gr_allreduce_rows makes, and says that it has so many rows. */
typedef struct lie {
    uint64_t rows;
    const char *says;
} lie;

static int rows_from_a_liar(gr_comm *comm, const ranks_job *job)
{
    const lie *l = job->arg;
    float value = 1;
    uint32_t index = 3;
    const gr_rows in = {
        .count = 1, .width = 1, .dtype = GR_F32, .indices = &index, .values = &value};
    gr_rows sum;
    if (gr_comm_rank(comm) < gr_comm_size(comm) - 1) {
        /* With three ranks, one may hear it from another before it has all the counts. */
        gr_status status = gr_allreduce_rows(comm, &in, GR_SUM, &sum);
        NEED(status == GR_E_PROTOCOL || (status == GR_E_COMM_BROKEN && gr_comm_size(comm) > 2));
        const gr_diag *diag = gr_comm_diag(comm);
        NEED(diag->status == (int)status && diag->peer_rank == gr_comm_size(comm) - 1);
        NEED(strstr(diag->text, l->says));
    } else {
        int32_t room = 1;
        uint64_t rows[SIZE_MAX_TESTED] = {0};
        rows[gr_comm_rank(comm)] = l->rows;
        const gr_call first = {
            .dtype = GR_I32, .op = GR_MIN, .out = &room, .count = 1, .name = "room for rows"};
        const gr_call second = {.coll = GR_COLL_ALLGATHER,
                                .dtype = GR_I64,
                                .out = rows,
                                .count = 1,
                                .name = "numbers of rows"};
        NEED(gr_run(comm, &first, 1) == GR_OK);
        NEED(gr_run(comm, &first, 1) == GR_OK);
        gr_status status = gr_run(comm, &second, 1);
        (void)status; /* the others may be through, and have ended it */
    }
    gr_comm_destroy(comm);
    return 0;
}

static void rows_of_a_lying_peer_are_refused(void **state)
{
    (void)state;
    static const lie lies[] = {{UINT64_MAX, "says that it has 18446744073709551615 rows"},
                               {UINT64_C(1) << 62, "says that it has 4611686018427387904 rows"},
                               {UINT64_C(1) << 32, "says that it has 4294967296 rows"}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        for (int size = 2; size <= 3; size++) {
            const ranks_job job = {.size = size, .link = i % 2 ? "tcp" : "shm", .arg = &lies[i]};
            assert_int_equal(ranks_run(&job, rows_from_a_liar, 0), 0);
        }
    }
}

/* ---- Dense vectors that are mostly zero ------------------------------------------------------ */
enum { COUNT = 1000, SHARDS = 8, ROUNDS = 8 };

static void make_shard(float *vector, int shard, int round)
{
    uint32_t seed = (uint32_t)(shard * 31 + round * 7 + 1);
    memset(vector, 0, COUNT * sizeof *vector);
    static const size_t fills[ROUNDS] = {0, 5, 20, 30, 40, 50, 60, 600};
    size_t filled = fills[round];
    for (size_t i = 0; i < filled; i++) {
        vector[next_random(&seed) % (i % 2 ? COUNT : 50)] = next_value(&seed);
    }
}

static void sum_shards(float *sum, int first, int count, int round)
{
    if (count == 1) {
        make_shard(sum, first, round);
        return;
    }
    static float rights[8][COUNT]; /* by depth, that is by number of shards below */
    int left = gr_tree_left_count(count);
    float *right = rights[count - 1];
    sum_shards(sum, first, left, round);
    sum_shards(right, first + left, count - left, round);
    for (int i = 0; i < COUNT; i++) {
        sum[i] += right[i];
    }
}

static int dense_function(gr_comm *comm, const ranks_job *job)
{
    size_t width = *(const size_t *)job->arg;
    int first, count;
    gr_shard_range(SHARDS, gr_comm_size(comm), gr_comm_rank(comm), &first, &count);
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int units = gr_tree_cover(SHARDS, first, count, ranges);
    gr_sparse sparse;
    NEED(gr_sparse_init(&sparse, comm, SHARDS, COUNT, width, NULL) == GR_OK);
    for (int round = 0; round < ROUNDS; round++) {
        static float partials[SHARDS][COUNT], wanted[COUNT];
        float *pointers[SHARDS];
        for (int i = 0; i < SHARDS; i++) {
            pointers[i] = partials[i];
        }
        for (int i = 0; i < units; i++) {
            sum_shards(partials[i], ranges[i].first, ranges[i].count, round);
        }
        sum_shards(wanted, 0, SHARDS, round);
        NEED(gr_sparse_sum(&sparse, pointers, COUNT) == GR_OK);
        NEED(memcmp(partials[0], wanted, sizeof wanted) == 0);
    }
    /* The last round is dense, as soon as there is more than one to send; the others are not. */
    uint64_t dense = gr_comm_size(comm) > 1 ? 1 : 0;
    NEED(sparse.dense_sums == dense && sparse.sparse_sums == ROUNDS - dense);
    gr_sparse_fini(&sparse);
    return 0;
}

static void test_dense(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 3};
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 6; i++) {
            const ranks_job job = {
                .size = sizes[i], .link = i == 2 ? "tcp" : "shm", .arg = &widths[w]};
            assert_int_equal(ranks_run(&job, dense_function, 0), 0);
        }
    }
}

/* A program that flushes subnormal numbers in its own thread. */
static int flushing_function(gr_comm *comm, const ranks_job *job)
{
    (void)job;
#if defined(__x86_64__)
    gr_float_mode flushing = gr_float_mode_get() | 0x8040;
#else
    gr_float_mode flushing = gr_float_mode_get() | 1 << 24;
#endif
    uint32_t size = (uint32_t)gr_comm_size(comm);
    uint32_t bits[3] = {1, 2, 4}, sums[2]; /* of floats: a number below 2^23 is subnormal */
    uint32_t indices[3] = {7, 7, 9};
    gr_rows in = {.count = 3, .width = 1, .dtype = GR_F32, .indices = indices, .values = bits};
    gr_rows sum;
    gr_float_mode_set(flushing);
    for (int average = 0; average < 2; average++) {
        uint32_t times = average ? 1 : size;
        NEED(gr_allreduce_rows(comm, &in, average ? GR_AVERAGE : GR_SUM, &sum) == GR_OK);
        NEED(sum.count == 2);
        memcpy(sums, sum.values, sizeof sums);
        NEED(sums[0] == 3 * times && sums[1] == 4 * times);
        gr_rows_release(&sum);
    }
    uint32_t vector[COUNT] = {0};
    vector[COUNT - 1] = 4;
    float *partials[1] = {(float *)(void *)vector};
    gr_sparse sparse;
    NEED(gr_sparse_init(&sparse, comm, (int)size, COUNT, 4, NULL) == GR_OK);
    NEED(gr_sparse_sum(&sparse, partials, COUNT) == GR_OK && sparse.sparse_sums == 1);
    NEED(vector[COUNT - 1] == 4 * size);
    NEED((gr_float_mode_get() & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS) ==
         (flushing & ~(gr_float_mode)GR_FLOAT_MODE_FLAGS));
    gr_sparse_fini(&sparse);
    gr_comm_destroy(comm);
    return 0;
}

static void sums_of_rows_do_not_depend_on_the_mode_of_the_thread(void **state)
{
    (void)state;
    const ranks_job job = {.size = 3, .link = "shm"};
    assert_int_equal(ranks_run(&job, flushing_function, 0), 0);
}

/* Two counts of the last rank that wrap around to a small sum: it would be written far behind what
 * was allocated. */
static int pieces_from_a_liar(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float vectors[2][COUNT] = {{0}};
    float *pointers[2] = {vectors[0], vectors[1]};
    gr_sparse sparse;
    NEED(gr_sparse_init(&sparse, comm, 4, COUNT, 1, NULL) == GR_OK);
    if (gr_comm_rank(comm) == 0) {
        NEED(gr_sparse_sum(&sparse, pointers, COUNT) == GR_E_PROTOCOL);
        const gr_diag *diag = gr_comm_diag(comm);
        NEED(diag->status == GR_E_PROTOCOL && diag->peer_rank == 1);
        NEED(strstr(diag->text, "rank 1 says that it has 9223372036854775808 pieces"));
    } else {
        uint64_t rows[2] = {0, UINT64_C(1) << 63};
        static const size_t counts[2] = {1, 1};
        const gr_call call = {.coll = GR_COLL_ALLGATHER,
                              .dtype = GR_I64,
                              .out = rows,
                              .counts = counts,
                              .name = "counts of a sparse sum"};
        gr_status status = gr_run(comm, &call, 1);
        (void)status; /* rank 0 may be through, and have ended it */
    }
    gr_sparse_fini(&sparse);
    gr_comm_destroy(comm);
    return 0;
}

static void pieces_of_a_lying_peer_are_refused(void **state)
{
    (void)state;
    const ranks_job job = {.size = 2, .link = "shm"};
    assert_int_equal(ranks_run(&job, pieces_from_a_liar, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(rows_of_every_type_are_added),
        cmocka_unit_test(test_differing),
        cmocka_unit_test(sums_of_rows_do_not_depend_on_the_mode_of_the_thread),
        cmocka_unit_test(rows_of_a_lying_peer_are_refused),
        cmocka_unit_test(pieces_of_a_lying_peer_are_refused),
        cmocka_unit_test(test_dense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
