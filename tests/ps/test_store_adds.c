/* SPDX-License-Identifier: Apache-2.0 */

/* Values to which two workers' gradients are added, and nothing else: what is then made in one pass
 * has the bits of a sum and an update, wherever data and values lie. */

#include "support_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 2, ELEMENTS = 2337, STEPS = 60 };

static gr_status create(void *arg, const gr_ps_tensor *tensor, void **updater_out, gr_diag *diag)
{
    (void)tensor;
    (void)diag;
    *updater_out = arg;
    return GR_OK;
}

static void destroy(void *updater)
{
    (void)updater;
}

static int no_states(void *updater)
{
    (void)updater;
    return 0;
}

static bool add(void *updater, uint64_t step, double rate, float factor, float *values,
                float *const *states, const float *gradient, size_t count)
{
    (void)updater;
    (void)step;
    (void)rate;
    (void)states;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite &= (bool)isfinite(gradient[i]);
        float change = factor * gradient[i];
        values[i] += change;
    }
    return finite;
}

static bool only_adds(void *updater)
{
    (void)updater;
    return true;
}

static const gr_ps_updater_ops adding = {.create = create,
                                         .destroy = destroy,
                                         .states = no_states,
                                         .update = add,
                                         .only_adds = only_adds};

static void check(const ps_world *world, const gr_ps_store *store, const float *values)
{
    gr_ps_image image;
    gr_diag diag;
    assert_int_equal(gr_ps_store_image(store, world->key, 0, &image, &diag), GR_OK);
    assert_memory_equal(image.values, values, sizeof(float) * ELEMENTS);
}

/* `lent`: values are on loan when they change. */
static void run(int shards, bool in_place, bool replica, bool lent)
{
    ps_world world;
    float values[ELEMENTS] = {0}, gradient[WORKERS][ELEMENTS];
    uint64_t random = (uint64_t)(10 * shards + 2 * replica + lent), not_finite = 0;
    const gr_ps_tensor tensor = {.name = "adds",
                                 .elements = ELEMENTS,
                                 .block = ELEMENTS,
                                 .mode = GR_PS_BSP,
                                 .shards = shards,
                                 .optimizer = ""};
    world_prepare(&world, &tensor);
    world.config.updaters = adding;
    world.in_place = in_place;
    world_start(&world, replica);
    world_set(&world, FIRST_CLIENT, 0, values);
    world_flush(&world);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (lent) {
            world_pull(&world, FIRST_CLIENT, 0, step, 0);
            world_flush(&world);
        }
        bool bad = step % 16 == 15; /* the value stays infinite */
        for (int e = 0; e < WORKERS * ELEMENTS; e++) {
            gradient[e / ELEMENTS][e % ELEMENTS] =
                ((float)(random_next(&random) % 20011) - 10005.0f) * 1e-3f;
        }
        gradient[1][ELEMENTS - 1] = bad ? INFINITY : 1.0f;
        for (int e = 0; e < ELEMENTS; e++) {
            float sum = gradient[0][e] + gradient[1][e];
            float change = 0.3f * sum;
            values[e] += change;
        }
        for (int k = 0, first = random_below(&random, 2); k < WORKERS; k++) {
            int worker = (k + first) % WORKERS;
            world_push(&world,
                       (gr_ps_push){.client = FIRST_CLIENT + worker,
                                    .count = ELEMENTS,
                                    .step = step,
                                    .first = worker * shards / WORKERS,
                                    .shards = shards / WORKERS,
                                    .factor = 0.3f},
                       gradient[worker], random_below(&random, 4) == 0);
        }
        while (world.loan_count > 0) {
            world_give_back(&world, 0);
        }
        world_flush(&world);
        check(&world, world.leads, values);
        if (replica) {
            check(&world, world.follows, values);
        }
        gr_ps_stats stats;
        gr_ps_store_get_stats(world.leads, &stats);
        not_finite += bad;
        assert_int_equal(stats.not_finite, not_finite);
    }
    world_close(&world);
}

static void two_gradients_are_added_wherever_they_lie(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        run(i & 1 ? 2 : 4, i & 2, i & 4, i & 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_gradients_are_added_wherever_they_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
