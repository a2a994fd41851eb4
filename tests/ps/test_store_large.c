/* SPDX-License-Identifier: Apache-2.0 */

/* Blocks of several pieces, and of sizes that are no multiple of anything: the same bits as an
 * update of the whole; and a step that is like the last one takes no more memory than it. */

#include "support_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHARDS = 6, BLOCK = 10000, ELEMENTS = BLOCK + 4321, STEPS = 14 };

/* Of six shards: the left child has four of them, the right one two. */
static const int cuts[][7] = {
    {6}, {4, 2}, {4, 1, 1}, {2, 2, 2}, {2, 1, 1, 2}, {1, 1, 1, 1, 1, 1}, {1, 1, 2, 1, 1}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

typedef struct large {
    ps_world world;
    float shard[SHARDS][ELEMENTS];
    float values[ELEMENTS], momentum[ELEMENTS];
    float sum[ELEMENTS];
    uint64_t random;
} large;

static void fill(large *l)
{
    for (int s = 0; s < SHARDS; s++) {
        for (int e = 0; e < ELEMENTS; e++) {
            uint32_t mixed = random_next(&l->random);
            l->shard[s][e] = ((float)(mixed % 20011) - 10005.0f) * (mixed % 2 == 0 ? 1e3f : 1e-3f);
        }
    }
}

/* The tree over six, evaluated by hand. */
static float tree_of(const large *l, int first, int count, int e)
{
    switch (count) {
    case 1:
        return l->shard[first][e];
    case 2:
        return l->shard[first][e] + l->shard[first + 1][e];
    case 4:
        return tree_of(l, first, 2, e) + tree_of(l, first + 2, 2, e);
    default:
        return tree_of(l, 0, 4, e) + tree_of(l, 4, 2, e);
    }
}

static void push_block(large *l, uint32_t block, uint64_t step, const int *cut)
{
    uint32_t count = gr_ps_block_count(&l->world.tensor.cut, block);
    int from = random_below(&l->random, 7); /* the order: each once, from somewhere on */
    int starts[8] = {0};
    int parts = 0;
    while (starts[parts] < SHARDS) {
        starts[parts + 1] = starts[parts] + cut[parts];
        parts++;
    }
    for (int k = 0; k < parts; k++) {
        int part = (from + k) % parts;
        for (uint32_t i = 0; i < count; i++) {
            l->sum[i] = tree_of(l, starts[part], cut[part], (int)(block * BLOCK + i));
        }
        world_push(&l->world,
                   (gr_ps_push){.client = FIRST_CLIENT + part,
                                .block = block,
                                .count = count,
                                .step = step,
                                .first = starts[part],
                                .shards = cut[part],
                                .rate = 0.5,
                                .factor = 0.125f},
                   l->sum, random_below(&l->random, 2) == 0);
    }
}

static void check_server(large *l, const gr_ps_store *store, uint64_t version)
{
    for (uint32_t b = 0; b < l->world.blocks; b++) {
        gr_ps_image image;
        gr_diag diag;
        assert_int_equal(gr_ps_store_image(store, l->world.key, b, &image, &diag), GR_OK);
        assert_int_equal(image.version, version);
        assert_memory_equal(image.values, l->values + b * BLOCK, image.count * sizeof(float));
        assert_memory_equal(image.state[0], l->momentum + b * BLOCK, image.count * sizeof(float));
    }
}

/* `lent`: values are still on loan when they change. */
static void run(bool replica, bool lent)
{
    large *l = calloc(1, sizeof *l);
    assert_non_null(l);
    const gr_ps_spec tensor = {.name = "large",
                               .elements = ELEMENTS,
                               .consistency = GR_BSP,
                               .shards = SHARDS,
                               .optimizer = "momentum"};
    world_prepare(&l->world, &tensor, BLOCK);
    world_start(&l->world, replica);
    uint64_t bytes = 0;
    long allocated = 0;
    for (uint32_t b = 0; b < l->world.blocks; b++) {
        world_set(&l->world, FIRST_CLIENT, b, l->values + b * BLOCK);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        fill(l);
        for (uint32_t b = 0; b < l->world.blocks; b++) {
            world_pull(&l->world, FIRST_CLIENT, b, step, 0);
        }
        world_flush(&l->world);
        while (!lent && l->world.loan_count > 0) {
            world_give_back(&l->world, 0);
        }
        int cut = (int)(step + 5) % CUTS; /* the one of most pushes first */
        for (uint32_t b = 0; b < l->world.blocks; b++) {
            push_block(l, b, step, cuts[cut]);
        }
        while (l->world.loan_count > 0) {
            world_give_back(&l->world, 0);
        }
        world_flush(&l->world);
        for (int e = 0; e < ELEMENTS; e++) {
            l->sum[e] = tree_of(l, 0, SHARDS, e);
        }
        momentum_apply(step, 0.5, 0.125f, l->values, l->momentum, l->sum, ELEMENTS);
        check_server(l, l->world.leads, step + 1);
        if (replica) {
            check_server(l, l->world.follows, step + 1);
        }
        gr_ps_stats stats;
        gr_ps_store_get_stats(l->world.leads, &stats);
        assert_int_equal(stats.copies, lent ? (step + 1) * l->world.blocks : 0);
        if (step >= CUTS) {
            assert_int_equal(stats.bytes, bytes);
            assert_int_equal(l->world.allocated, allocated);
        }
        bytes = stats.bytes;
        allocated = l->world.allocated;
    }
    world_close(&l->world);
    free(l);
}

static void pieces_make_the_whole(void **state)
{
    (void)state;
    run(false, false);
}

static void values_on_loan_stay(void **state)
{
    (void)state;
    run(false, true);
}

static void replicas_are_equal(void **state)
{
    (void)state;
    run(true, false);
    run(true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_make_the_whole),
        cmocka_unit_test(values_on_loan_stay),
        cmocka_unit_test(replicas_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
