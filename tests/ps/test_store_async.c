/* SPDX-License-Identifier: Apache-2.0 */

/* async, ssp, backup: whole numbers whose sum is known, clocks, late gradients; under seeded
 * schedules with repeats, deaths and loss of the leading server. */

#include "support_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 2, BLOCK = 8, ELEMENTS = BLOCK + 3, PUSHES_MAX = 40, SEEDS = 2000 };

/* ---- Sums of whole numbers ------------------------------------------------------------------- */
static gr_status count_create(void *arg, const gr_ps_spec *tensor, void **updater_out,
                              gr_diag *diag)
{
    (void)arg, (void)tensor, (void)diag;
    *updater_out = NULL;
    return GR_OK;
}

static void count_destroy(void *updater)
{
    (void)updater;
}

static int count_states(void *updater)
{
    (void)updater;
    return 0;
}

/* The rate is not 1 only where the staleness is in it. */
static bool count_update(void *updater, uint64_t step, double rate, float factor, float *values,
                         float *const *states, const float *gradient, size_t count)
{
    (void)updater, (void)step, (void)states;
    for (size_t i = 0; i < count; i++) {
        values[i] += (float)rate * factor * gradient[i];
    }
    return true;
}

static const gr_ps_updater_ops count_updaters = {.create = count_create,
                                                 .destroy = count_destroy,
                                                 .states = count_states,
                                                 .update = count_update};

static const float zeros[BLOCK];

static gr_ps_spec tensor_of(int mode)
{
    return (gr_ps_spec){.name = "counts",
                        .elements = ELEMENTS,
                        .consistency = mode,
                        .aggregate = 2,
                        .total = 3,
                        .staleness = 2,
                        .optimizer = ""};
}

static void open_counts(ps_world *w, gr_ps_spec tensor, bool replica)
{
    world_prepare(w, &tensor, BLOCK);
    w->config.updaters = count_updaters;
    world_start(w, replica);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        world_set(w, FIRST_CLIENT, b, zeros);
    }
    world_flush(w);
}

static int push_number(ps_world *w, int client, uint32_t block, uint64_t sequence,
                       uint64_t based_on, float number)
{
    float values[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        values[i] = number + (float)i;
    }
    return world_push(w,
                      (gr_ps_push){.client = client,
                                   .block = block,
                                   .count = gr_ps_block_count(&w->tensor.cut, block),
                                   .step = based_on,
                                   .sequence = sequence,
                                   .rate = 1,
                                   .factor = 1},
                      values, false);
}

static float first_value(const gr_ps_store *store, uint64_t key, uint32_t block)
{
    gr_ps_image image;
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_image(store, key, block, &image, &diag), GR_OK);
    return image.values[0];
}

/* Each client pushes numbers of its own, in order, up to 8 without an answer, and again what was
 * not answered when the leading server is lost. */
typedef struct pusher {
    uint64_t next[BLOCKS];     /* sequence of the next push */
    uint64_t answered[BLOCKS]; /* all below are */
    int token[BLOCKS][PUSHES_MAX];
} pusher;

typedef struct counting {
    ps_world world;
    pusher pushers[CLIENTS];
    uint64_t random;
    bool replicas;
    int pushes; /* of each client and block */
} counting;

static float number_of(int client, uint32_t block, uint64_t sequence)
{
    return (float)(1 + client * 100 + (int)block * 10 + (int)(sequence % 7));
}

static void look_at_answers(counting *c, int client, uint32_t block)
{
    pusher *p = &c->pushers[client];
    while (p->answered[block] < p->next[block]) {
        const ticket *t = &c->world.tickets[p->token[block][p->answered[block]]];
        if (t->answers == 0 || t->gone) {
            break;
        }
        assert_int_equal(t->status, GR_OK);
        p->answered[block]++;
    }
}

static void push_next(counting *c, int client, uint32_t block)
{
    pusher *p = &c->pushers[client];
    look_at_answers(c, client, block);
    if (p->next[block] >= (uint64_t)c->pushes || p->next[block] - p->answered[block] >= 8) {
        return;
    }
    uint64_t sequence = p->next[block]++;
    p->token[block][sequence] = push_number(&c->world, FIRST_CLIENT + client, block, sequence, 0,
                                            number_of(client, block, sequence));
}

/* What was not answered is pushed again, in order. */
static void push_again(counting *c, int client, uint32_t block)
{
    pusher *p = &c->pushers[client];
    look_at_answers(c, client, block);
    for (uint64_t s = p->answered[block]; s < p->next[block]; s++) {
        p->token[block][s] =
            push_number(&c->world, FIRST_CLIENT + client, block, s, 0, number_of(client, block, s));
    }
}

static void everybody_again(counting *c)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (int client = 0; client < CLIENTS; client++) {
            push_again(c, client, b);
        }
    }
}

static void counting_act(counting *c)
{
    ps_world *w = &c->world;
    int client = random_below(&c->random, CLIENTS);
    uint32_t block = (uint32_t)random_below(&c->random, BLOCKS);
    int kind = random_below(&c->random, 40);
    if (kind < 20) {
        push_next(c, client, block);
    } else if (kind < 22 && c->pushers[client].next[block] > 0) {
        /* A repeat of one that was answered, with other numbers in it: not taken. */
        look_at_answers(c, client, block);
        if (c->pushers[client].answered[block] > 0) {
            uint64_t s = c->pushers[client].answered[block] - 1;
            int token = push_number(w, FIRST_CLIENT + client, block, s, 0, 1e6f);
            assert_true(w->tickets[token].answers == 0 ||
                        w->tickets[token].outcome == GR_PS_REPEATED);
        }
    } else if (kind < 25) {
        world_pull(w, FIRST_CLIENT + client, block, 0, 0);
    } else if (kind < 27 && w->loan_count > 0) {
        world_give_back(w, random_below(&c->random, w->loan_count));
    } else if (kind < 29) {
        world_gone(w, FIRST_CLIENT + client);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            push_again(c, client, b);
        }
    } else if (kind < 33 && w->follows != NULL) {
        world_deliver(w);
    } else if (kind < 38 && w->follows != NULL) {
        world_ack(w);
    } else if (kind == 38 && w->follows == NULL && c->replicas) {
        world_new_replica(w);
    } else if (kind == 38 && c->replicas) {
        world_lose_replica(w, random_below(&c->random, 2) == 0);
    } else if (kind == 39 && w->follows != NULL) {
        world_promote(w, random_below(&c->random, 6), random_below(&c->random, 3) > 0);
        everybody_again(c);
    }
}

static void run_counting(counting *c, uint64_t seed, int mode)
{
    memset(c, 0, sizeof *c);
    c->random = seed;
    c->pushes = 1 + random_below(&c->random, PUSHES_MAX / 4);
    c->replicas = random_below(&c->random, 3) > 0;
    open_counts(&c->world, tensor_of(mode), c->replicas);
    for (int acts = random_below(&c->random, 400); acts > 0; acts--) {
        counting_act(c);
    }
    bool more = true;
    while (more) {
        more = false;
        world_flush(&c->world);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            for (int client = 0; client < CLIENTS; client++) {
                push_next(c, client, b);
                more |= c->pushers[client].answered[b] < (uint64_t)c->pushes;
            }
        }
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        float sum = 0;
        for (int client = 0; client < CLIENTS; client++) {
            for (int s = 0; s < c->pushes; s++) {
                sum += number_of(client, b, (uint64_t)s);
            }
        }
        assert_true(first_value(c->world.leads, c->world.key, b) == sum);
        assert_int_equal(world_version(c->world.leads, c->world.key, b), CLIENTS * c->pushes);
        if (c->world.follows != NULL) {
            assert_true(first_value(c->world.follows, c->world.key, b) == sum);
        }
    }
    world_close(&c->world);
}

static void nothing_is_lost_or_doubled(void **state)
{
    (void)state;
    counting *c = malloc(sizeof *c);
    assert_non_null(c);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_counting(c, seed, seed % 2 == 0 ? GR_ASYNC : GR_SSP);
    }
    free(c);
}

static void sequences_may_come_in_any_order(void **state)
{
    (void)state;
    ps_world w;
    open_counts(&w, tensor_of(GR_ASYNC), false);
    bool taken[3000] = {0};
    float sum = 0;
    uint64_t random = 7;
    uint64_t newest = 0;
    for (int i = 0; i < 900; i++) {
        uint64_t back = (uint64_t)random_below(&random, 80);
        uint64_t s = i % 60 == 59 ? newest + 62 + back % 4
                     : i % 4 == 0 ? newest + 1 + back % 3
                                  : (newest > back ? newest - back : 0);
        bool old = newest > s && newest - s > GR_PS_SEQUENCES_KEPT;
        int token = push_number(&w, FIRST_CLIENT, 0, s, 0, 1);
        if (old) {
            assert_int_equal(w.tickets[token].status, GR_E_INVALID);
        } else {
            assert_int_equal(w.tickets[token].status, GR_OK);
            assert_int_equal(w.tickets[token].outcome, taken[s] ? GR_PS_REPEATED : GR_PS_TAKEN);
            sum += taken[s] ? 0 : 1;
            taken[s] = true;
            newest = s > newest ? s : newest;
        }
    }
    assert_true(newest > 300);
    assert_true(first_value(w.leads, w.key, 0) == sum);
    world_close(&w);
}

static void staleness_is_counted_and_adapts_the_rate(void **state)
{
    (void)state;
    ps_world w;
    gr_ps_spec tensor = tensor_of(GR_ASYNC);
    tensor.adapt_rate = true;
    open_counts(&w, tensor, false);
    push_number(&w, 16, 0, 0, 0, 4); /* of version 0, which it is: 4 */
    push_number(&w, 17, 0, 0, 0, 4); /* one behind: 2 */
    push_number(&w, 18, 0, 0, 1, 4); /* one behind: 2 */
    push_number(&w, 19, 0, 0, 0, 8); /* three behind: 2 */
    push_number(&w, 20, 0, 0, 9, 4); /* of a version that was lost: 4 */
    assert_true(first_value(w.leads, w.key, 0) == 14);
    gr_ps_stats stats;
    gr_ps_store_get_stats(w.leads, &stats);
    assert_int_equal(stats.staleness[0], 2);
    assert_int_equal(stats.staleness[1], 2);
    assert_int_equal(stats.staleness[3], 1);
    world_close(&w);
}

/* ---- Clocks ---------------------------------------------------------------------------------- */
/* A worker pulls at its clock, and when it has been answered pushes and goes on. */
typedef struct worker {
    bool here, waits;
    uint64_t clock;
    int token;
} worker;

static uint64_t slowest_of(const worker *workers)
{
    uint64_t slowest = UINT64_MAX;
    for (int i = 0; i < CLIENTS; i++) {
        slowest = workers[i].here && workers[i].clock < slowest ? workers[i].clock : slowest;
    }
    return slowest;
}

/* Who waits has a reason, and who has gone on had none to wait. */
static void check_workers(const ps_world *w, worker *workers, uint64_t bound)
{
    uint64_t slowest = slowest_of(workers);
    bool somebody = false;
    bool free_to_go = false;
    for (int i = 0; i < CLIENTS; i++) {
        if (!workers[i].here) {
            continue;
        }
        somebody = true;
        bool answered = !workers[i].waits || w->tickets[workers[i].token].answers == 1;
        assert_int_equal(answered, workers[i].clock <= slowest + bound);
        free_to_go |= answered;
    }
    assert_true(!somebody || free_to_go);
}

static void run_clocks(ps_world *w, uint64_t seed)
{
    worker workers[CLIENTS] = {0};
    uint64_t random = seed;
    gr_ps_spec tensor = tensor_of(GR_SSP);
    tensor.staleness = random_below(&random, 4);
    open_counts(w, tensor, false);
    for (int act = random_below(&random, 150); act > 0; act--) {
        int i = random_below(&random, CLIENTS);
        worker *me = &workers[i];
        if (!me->here) {
            uint64_t slowest = 0;
            int who;
            me->here = true;
            me->waits = false;
            me->clock = gr_ps_store_slowest(w->leads, &slowest, &who) ? slowest : 0;
            assert_true(slowest_of(workers) == me->clock);
            gr_ps_store_clock(w->leads, FIRST_CLIENT + i, me->clock);
        } else if (random_below(&random, 12) == 0) {
            me->here = false;
            world_gone(w, FIRST_CLIENT + i);
        } else if (!me->waits) {
            me->token = world_pull(w, FIRST_CLIENT + i, 0, 0, me->clock);
            me->waits = true;
        } else if (w->tickets[me->token].answers == 1) {
            me->waits = false;
            me->clock++;
            gr_ps_store_clock(w->leads, FIRST_CLIENT + i, me->clock);
        }
        /* A worker that has not pulled at its clock yet is not held: its clock may be one past. */
        for (int k = 0; k < CLIENTS; k++) {
            assert_true(!workers[k].here ||
                        workers[k].clock <= slowest_of(workers) + (uint64_t)tensor.staleness + 1);
        }
        worker pulled[CLIENTS];
        memcpy(pulled, workers, sizeof pulled);
        for (int k = 0; k < CLIENTS; k++) {
            if (workers[k].here && !workers[k].waits) {
                pulled[k].clock = slowest_of(workers); /* not asked for: nothing to check */
            }
        }
        check_workers(w, pulled, (uint64_t)tensor.staleness);
    }
    for (int i = 0; i < CLIENTS; i++) {
        world_gone(w, FIRST_CLIENT + i);
    }
    world_close(w);
}

static void nobody_is_too_far_ahead_nor_waits_for_nothing(void **state)
{
    (void)state;
    ps_world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_clocks(w, seed);
    }
    free(w);
}

/* ---- Backup workers -------------------------------------------------------------------------- */
/* The first two of three count, whoever they are; they are summed in the order of their numbers. */
static void the_first_ones_count(void **state)
{
    (void)state;
    ps_world *w = malloc(sizeof *w);
    assert_non_null(w);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        uint64_t random = seed;
        open_counts(w, tensor_of(GR_BSP_BACKUP), random_below(&random, 2) == 0);
        float sum = 0;
        uint64_t late[3] = {0};
        for (uint64_t step = 0; step < 6; step++) {
            int order[3] = {0, 1, 2};
            for (int i = 2; i > 0; i--) {
                int k = random_below(&random, i + 1);
                int other = order[k];
                order[k] = order[i];
                order[i] = other;
            }
            int again = random_below(&random, 3);
            for (int i = 0; i < 3; i++) {
                int client = FIRST_CLIENT + order[i];
                float number = (float)(1 << order[i]);
                if (i == 0 && again == 0) { /* dies: does not count, and comes again */
                    push_number(w, client, 0, 0, step, 1000);
                    world_gone(w, client);
                }
                int token = push_number(w, client, 0, 0, step, number);
                if (i == 0 && again == 1) { /* twice does not count twice */
                    push_number(w, client, 0, 0, step, number);
                    assert_int_equal(world_version(w->leads, w->key, 0), step);
                }
                world_flush(w);
                assert_int_equal(w->tickets[token].answers, i > 0);
                assert_int_equal(w->tickets[token].outcome, i == 2 ? GR_PS_LATE : GR_PS_TAKEN);
                sum += i < 2 ? number : 0;
                late[order[i]] += i == 2;
            }
            int token = push_number(w, FIRST_CLIENT + order[0], 0, 0, step, 1000);
            world_flush(w);
            assert_int_equal(w->tickets[token].outcome, GR_PS_REPEATED);
            assert_true(first_value(w->leads, w->key, 0) == sum);
        }
        gr_ps_stats stats;
        gr_ps_store_get_stats(w->leads, &stats);
        assert_int_equal(stats.pushes_late, 6);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(stats.late[FIRST_CLIENT + i], late[i]);
        }
        world_close(w);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_or_doubled),
        cmocka_unit_test(sequences_may_come_in_any_order),
        cmocka_unit_test(staleness_is_counted_and_adapts_the_rate),
        cmocka_unit_test(nobody_is_too_far_ahead_nor_waits_for_nothing),
        cmocka_unit_test(the_first_ones_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
