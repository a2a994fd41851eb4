/* SPDX-License-Identifier: Apache-2.0 */

/* bsp: thousands of seeded schedules of pushes in any cut and order, repeats, stale and future
 * steps, deaths of clients, pulls, loans, loss of the leading server, against a plain evaluation of
 * the shard tree and one update after the other. */

#include "support_store.h"

#include "coll/plan/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 3, STEPS_MAX = 7, BLOCK = 16, ELEMENTS = 2 * BLOCK + 5 };

/* Large and small numbers of both signs: (a + b) + c is rarely a + (b + c). */
static float contribution(uint64_t step, int shard, uint32_t element)
{
    uint64_t state = step * 1000003u + (uint64_t)shard * 7919u + element;
    uint32_t mixed = random_next(&state);
    float scale = mixed % 3 == 0 ? 1e6f : mixed % 3 == 1 ? 1.0f : 1e-4f;
    return ((float)(mixed % 20011) - 10005.0f) / 7.0f * scale;
}

/* The definition: a leaf, or left + right where the left child has the largest power of two
 * below. */
static float tree(uint64_t step, int first, int count, uint32_t element)
{
    if (count == 1) {
        return contribution(step, first, element);
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return tree(step, first, left, element) + tree(step, first + left, count - left, element);
}

static double rate_of(uint64_t step)
{
    return 0.125 / (double)(step + 1);
}

/* values[v][e]: after v updates. */
typedef struct oracle {
    float values[STEPS_MAX + 1][ELEMENTS];
} oracle;

static void oracle_init(oracle *o, int shards)
{
    float momentum[ELEMENTS] = {0};
    float gradient[ELEMENTS];
    for (uint32_t e = 0; e < ELEMENTS; e++) {
        o->values[0][e] = (float)e * 0.5f - 3.0f;
    }
    for (uint64_t step = 0; step < STEPS_MAX; step++) {
        for (uint32_t e = 0; e < ELEMENTS; e++) {
            gradient[e] = tree(step, 0, shards, e);
        }
        memcpy(o->values[step + 1], o->values[step], sizeof o->values[step]);
        momentum_apply(step, rate_of(step), 0.25f, o->values[step + 1], momentum, gradient,
                       ELEMENTS);
    }
}

typedef struct schedule {
    ps_world world;
    oracle oracle;
    uint64_t random;
    bool replicas;
    int shards;
    int steps;
    /* Pushes of the running step that are there, as it should be. */
    struct {
        int client;
        bool lasting;
        uint32_t shards; /* a bit each */
    } live[BLOCKS][TICKETS_MAX];
    int live_count[BLOCKS];
} schedule;

static void check_pulled(ps_world *world, const ticket *t, const gr_ps_pulled *answer)
{
    const schedule *s = world->arg;
    assert_true(answer->version <= (uint64_t)s->steps);
    assert_memory_equal(answer->values, s->oracle.values[answer->version] + t->block * BLOCK,
                        answer->count * sizeof(float));
    /* Nobody sees what may be lost. */
    if (world->follows != NULL) {
        assert_true(world_version(world->follows, world->key, t->block) >= answer->version);
    }
}

static void check_pushed(ps_world *world, const ticket *t, const gr_ps_pushed *answer)
{
    const schedule *s = world->arg;
    uint64_t needs = t->initial ? 0 : t->wanted + 1;
    assert_true(answer->version >= needs);
    if (world->follows != NULL) {
        assert_true(world_version(world->follows, world->key, t->block) >= needs);
    }
    assert_int_not_equal(answer->outcome, GR_PS_LATE);
    if (answer->put) {
        assert_memory_equal(t->out, s->oracle.values[answer->version] + t->block * BLOCK,
                            gr_ps_block_count(&world->tensor.cut, t->block) * sizeof(float));
    }
}

static int client_of(schedule *s)
{
    return FIRST_CLIENT + random_below(&s->random, CLIENTS);
}

/* A whole subtree: what covers some random range begins with one. */
static gr_tree_range subtree_of(schedule *s)
{
    gr_tree_range cover[GR_SHARD_PARTIALS_MAX];
    int first = random_below(&s->random, s->shards);
    int count = 1 + random_below(&s->random, s->shards - first);
    int found = gr_tree_cover(s->shards, first, count, cover);
    return cover[random_below(&s->random, found)];
}

/* client < 0: everybody's. */
static void forget_live(schedule *s, int client)
{
    for (int b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < s->live_count[b]; i++) {
            if (client < 0 || (s->live[b][i].client == client && !s->live[b][i].lasting)) {
                s->live[b][i--] = s->live[b][--s->live_count[b]];
            }
        }
    }
}

/* A step is made with the push that completes it, and not before. */
static void check_step(schedule *s, uint32_t block, uint64_t step, int client, bool lasting,
                       gr_tree_range range)
{
    int at = s->live_count[block]++;
    s->live[block][at].client = client;
    s->live[block][at].lasting = lasting;
    s->live[block][at].shards = (((uint32_t)1 << range.count) - 1) << range.first;
    uint32_t there = 0;
    for (int i = 0; i <= at; i++) {
        there |= s->live[block][i].shards;
    }
    bool complete = there == ((uint32_t)1 << s->shards) - 1;
    assert_int_equal(world_version(s->world.leads, s->world.key, block), step + complete);
    s->live_count[block] = complete ? 0 : s->live_count[block];
}

static int push_as(schedule *s, int client, uint32_t block, uint64_t step, gr_tree_range range,
                   bool garbage, bool lasting)
{
    float values[BLOCK];
    uint32_t count = gr_ps_block_count(&s->world.tensor.cut, block);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = garbage ? NAN : tree(step, range.first, range.count, block * BLOCK + i);
    }
    return world_push(&s->world,
                      (gr_ps_push){.client = client,
                                   .block = block,
                                   .count = count,
                                   .step = step,
                                   .first = range.first,
                                   .shards = range.count,
                                   .rate = rate_of(step),
                                   .factor = 0.25f},
                      values, lasting);
}

static int push(schedule *s, int client, uint32_t block, uint64_t step, gr_tree_range range,
                bool garbage)
{
    bool lasting = random_below(&s->random, 3) == 0;
    bool now = step == world_version(s->world.leads, s->world.key, block);
    int token = push_as(s, client, block, step, range, garbage, lasting);
    if (now) {
        check_step(s, block, step, client, lasting, range);
    }
    return token;
}

static void push_somehow(schedule *s)
{
    uint32_t block = (uint32_t)random_below(&s->random, BLOCKS);
    uint64_t version = world_version(s->world.leads, s->world.key, block);
    int kind = random_below(&s->random, 12);
    if (kind == 0) {
        int token =
            push(s, client_of(s), block, version + 1 + (uint64_t)(kind % 2), subtree_of(s), true);
        assert_int_equal(s->world.tickets[token].status, GR_E_INVALID);
        assert_int_equal(s->world.tickets[token].answers, 1);
    } else if (kind == 1 && version > 0) {
        int token = push(s, client_of(s), block, (uint64_t)random_below(&s->random, (int)version),
                         subtree_of(s), true);
        const ticket *t = &s->world.tickets[token];
        assert_true(t->answers == 0 || (t->status == GR_OK && t->outcome == GR_PS_REPEATED));
    } else if (version < (uint64_t)s->steps) {
        push(s, client_of(s), block, version, subtree_of(s), false);
    }
}

static void set_all(schedule *s)
{
    for (uint32_t block = 0; block < BLOCKS; block++) {
        int token = world_set(&s->world, client_of(s), block, s->oracle.values[0] + block * BLOCK);
        s->world.tickets[token].clock = 1;
    }
}

static void act(schedule *s)
{
    ps_world *w = &s->world;
    int kind = random_below(&s->random, 40);
    if (kind < 24) {
        push_somehow(s);
    } else if (kind < 30) {
        uint32_t block = (uint32_t)random_below(&s->random, BLOCKS);
        uint64_t version = world_version(w->leads, w->key, block);
        version = version + 1 < (uint64_t)s->steps ? version + 1 : (uint64_t)s->steps;
        world_pull(w, client_of(s), block, (uint64_t)random_below(&s->random, (int)version + 1), 0);
    } else if (kind < 33 && w->loan_count > 0) {
        world_give_back(w, random_below(&s->random, w->loan_count));
    } else if (kind < 35) {
        int client = client_of(s);
        world_gone(w, client);
        forget_live(s, client);
    } else if (kind < 37 && w->follows != NULL) {
        world_deliver(w);
    } else if (kind < 39 && w->follows != NULL) {
        world_ack(w);
    } else if (kind == 39 && w->follows == NULL && s->replicas) {
        world_new_replica(w);
    } else if (kind == 39 && s->replicas && random_below(&s->random, 2) == 0) {
        world_lose_replica(w, random_below(&s->random, 2) == 0);
    } else if (kind == 39 && w->follows != NULL) {
        forget_live(s, -1);
        world_promote(w, random_below(&s->random, 4), random_below(&s->random, 3) > 0);
        set_all(s); /* initial values that were not answered may be lost */
    }
}

/* Whatever happened, every step can be made by somebody who is there. */
static void finish(schedule *s)
{
    ps_world *w = &s->world;
    world_flush(w);
    for (uint32_t block = 0; block < BLOCKS; block++) {
        uint64_t version;
        while ((version = world_version(w->leads, w->key, block)) < (uint64_t)s->steps) {
            push(s, client_of(s), block, version, (gr_tree_range){0, s->shards}, false);
            assert_int_equal(world_version(w->leads, w->key, block), version + 1);
        }
        world_pull(w, client_of(s), block, (uint64_t)s->steps, 0);
    }
    world_flush(w);
    for (int i = 0; i < w->ticket_count; i++) {
        assert_true(w->tickets[i].gone || w->tickets[i].answers == 1);
    }
    gr_ps_stats stats;
    gr_ps_store_get_stats(w->leads, &stats);
    assert_int_equal(stats.waiting, 0);
    for (uint32_t block = 0; block < BLOCKS && w->follows != NULL; block++) {
        gr_ps_image led, followed;
        gr_diag diag;
        assert_int_equal(gr_ps_store_image(w->leads, w->key, block, &led, &diag), GR_OK);
        assert_int_equal(gr_ps_store_image(w->follows, w->key, block, &followed, &diag), GR_OK);
        assert_int_equal(led.version, followed.version);
        assert_memory_equal(led.values, followed.values, led.count * sizeof(float));
        assert_memory_equal(led.state[0], followed.state[0], led.count * sizeof(float));
    }
}

static void open_world(schedule *s, bool replica)
{
    world_prepare(&s->world,
                  &(gr_ps_spec){.name = "weights",
                                .elements = ELEMENTS,
                                .consistency = GR_BSP,
                                .shards = s->shards,
                                .optimizer = "momentum"},
                  BLOCK);
    world_start(&s->world, replica);
    s->world.arg = s;
    s->world.check_pulled = check_pulled;
    s->world.check_pushed = check_pushed;
}

static void run_schedule(schedule *s, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->random = seed;
    s->shards = 1 + random_below(&s->random, 13);
    s->steps = 1 + random_below(&s->random, STEPS_MAX);
    oracle_init(&s->oracle, s->shards);
    s->replicas = random_below(&s->random, 3) > 0;
    open_world(s, s->replicas);
    set_all(s);
    int acts = random_below(&s->random, 300);
    for (int i = 0; i < acts; i++) {
        act(s);
    }
    finish(s);
    world_close(&s->world);
}

static void any_schedule_gives_the_bits(void **state)
{
    (void)state;
    schedule *s = malloc(sizeof *s);
    assert_non_null(s);
    const char *one = getenv("GR_TEST_SEED");
    uint64_t from = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t to = one != NULL ? from : 3000;
    long puts = 0;
    for (uint64_t seed = from; seed <= to; seed++) {
        s->world.ticket_count = 0;
        run_schedule(s, seed);
        puts += s->world.puts;
    }
    assert_true(one != NULL || puts > 1000);
    free(s);
}

/* A sum of the server's own memory needs one buffer for each level of the tree, not for each shard;
 * what the clients' memory holds is read at the end. */
static void lasting_data_become_sums(void **state)
{
    (void)state;
    schedule *s = malloc(sizeof *s);
    assert_non_null(s);
    for (int lasting = 0; lasting < 2; lasting++) {
        memset(s, 0, sizeof *s);
        s->shards = 64;
        s->steps = 1;
        oracle_init(&s->oracle, s->shards);
        open_world(s, false);
        set_all(s); /* initial values that were not answered may be lost */
        int most = 0;
        for (int shard = 0; shard < 64; shard++) {
            push_as(s, FIRST_CLIENT, 0, 0, (gr_tree_range){shard, 1}, false, lasting == 1);
            most = s->world.leases_out > most ? s->world.leases_out : most;
        }
        assert_int_equal(most, lasting == 1 ? 6 : 63);
        world_pull(&s->world, FIRST_CLIENT, 0, 1, 0);
        assert_int_equal(s->world.loan_count, 1);
        world_close(&s->world);
    }
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_gives_the_bits),
        cmocka_unit_test(lasting_data_become_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
