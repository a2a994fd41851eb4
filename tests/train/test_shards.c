/* SPDX-License-Identifier: Apache-2.0 */

/* The shard plan against a naive recursion over the tree, with numbers whose sum depends on the
 * order, for every number of shards up to 64 and of workers up to 16. */

#include "train/shards.h"

#include "coll/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHARDS_MAX = 64, WORLD_MAX = 16, VALUES = 5 };

/* Large and small numbers of both signs: (a + b) + c is rarely a + (b + c). */
static float contribution(int shard, int at)
{
    unsigned mixed = (unsigned)shard * 2654435761u + (unsigned)at * 40503u + 12345u;
    mixed ^= mixed >> 13;
    mixed *= 2246822519u;
    mixed ^= mixed >> 16;
    float scale = mixed % 3 == 0 ? 1e6f : mixed % 3 == 1 ? 1.0f : 1e-4f;
    return ((float)(mixed % 20011) - 10005.0f) / 7.0f * scale;
}

/* The definition: a leaf, or left + right where the left child has the largest power of two
 * below. */
static float naive(int first, int count, int at)
{
    if (count == 1) {
        return contribution(first, at);
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return naive(first, left, at) + naive(first + left, count - left, at);
}

static void run_plan(const gr_shard_plan *plan, float *const *vectors, size_t piece)
{
    for (int i = 0; i < plan->count; i++) {
        float *own = vectors[plan->entries[i].slot];
        for (int at = 0; at < VALUES; at++) {
            own[at] = contribution(plan->first + i, at);
        }
        for (size_t begin = 0; begin < VALUES; begin += piece) {
            size_t end = begin + piece < VALUES ? begin + piece : VALUES;
            gr_shard_merge(plan, i, vectors, begin, end, NULL, NULL);
        }
    }
}

static void check_rank(int shards, int world_size, int rank)
{
    gr_shard_plan plan;
    gr_diag diag;
    float memory[SHARDS_MAX][VALUES];
    float *vectors[SHARDS_MAX];
    for (int i = 0; i < SHARDS_MAX; i++) {
        vectors[i] = memory[i];
    }
    assert_int_equal(gr_shard_plan_init(&plan, shards, world_size, rank, false, &diag), GR_OK);
    assert_int_equal(plan.partials, gr_shard_partials(shards, world_size, rank));
    /* A counter's digits and no more: one vector a level, and the ragged right edge of the tree. */
    assert_true(plan.slots <= 2 * 7);
    run_plan(&plan, vectors, rank % 2 == 0 ? VALUES : 2);
    gr_tree_range cover[GR_SHARD_PARTIALS_MAX];
    int count = gr_tree_cover(shards, plan.first, plan.count, cover);
    assert_int_equal(count, plan.partials);
    for (int p = 0; p < count; p++) {
        for (int at = 0; at < VALUES; at++) {
            float wanted = naive(cover[p].first, cover[p].count, at);
            assert_memory_equal(&vectors[p][at], &wanted, sizeof wanted);
        }
    }
    gr_shard_plan_fini(&plan);
}

static void every_shape(void **state)
{
    (void)state;
    for (int shards = 1; shards <= SHARDS_MAX; shards++) {
        for (int world = 1; world <= WORLD_MAX && world <= shards; world++) {
            for (int rank = 0; rank < world; rank++) {
                check_rank(shards, world, rank);
            }
        }
    }
}

/* The numbers above do depend on the order: else the test could not fail. */
static void order_matters(void **state)
{
    (void)state;
    int different = 0;
    for (int at = 0; at < VALUES; at++) {
        float in_order = 0.0f;
        for (int shard = 0; shard < 16; shard++) {
            in_order += contribution(shard, at);
        }
        different += in_order != naive(0, 16, at);
    }
    assert_true(different > 0);
}

static void collapse_leaves_one(void **state)
{
    (void)state;
    gr_shard_plan plan;
    gr_diag diag;
    float memory[SHARDS_MAX][VALUES];
    float *vectors[SHARDS_MAX];
    for (int i = 0; i < SHARDS_MAX; i++) {
        vectors[i] = memory[i];
    }
    /* Rank 1 of 3 with 11 shards holds [4, 8): a whole subtree; rank 0 of 4 with 11 has [0, 3). */
    assert_int_equal(gr_shard_plan_init(&plan, 11, 4, 0, false, &diag), GR_OK);
    assert_int_equal(plan.partials, 2);
    gr_shard_plan_fini(&plan);
    assert_int_equal(gr_shard_plan_init(&plan, 11, 4, 0, true, &diag), GR_OK);
    assert_int_equal(plan.partials, 1);
    run_plan(&plan, vectors, VALUES);
    for (int at = 0; at < VALUES; at++) {
        float wanted = (contribution(0, at) + contribution(1, at)) + contribution(2, at);
        assert_true(vectors[0][at] == wanted);
    }
    gr_shard_plan_fini(&plan);
}

static void refuses_nonsense(void **state)
{
    (void)state;
    gr_shard_plan plan;
    gr_diag diag;
    assert_int_equal(gr_shard_plan_init(&plan, 0, 1, 0, false, &diag), GR_E_INVALID);
    assert_int_equal(gr_shard_plan_init(&plan, 4, 2, 2, false, &diag), GR_E_INVALID);
    assert_int_equal(gr_shard_plan_init(&plan, 4, 2, -1, false, &diag), GR_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(order_matters),
        cmocka_unit_test(collapse_leaves_one),
        cmocka_unit_test(refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
