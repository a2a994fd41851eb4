/* SPDX-License-Identifier: Apache-2.0 */

/* What does not make sense, and no memory: a clear status, nothing changed, the store lives on. */

#include "support_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 16, ELEMENTS = BLOCK + 4, SHARDS = 5 };

static gr_ps_spec tensor_of(int mode)
{
    return (gr_ps_spec){.name = "conv1/weights",
                        .elements = ELEMENTS,
                        .consistency = mode,
                        .shards = SHARDS,
                        .aggregate = 2,
                        .total = 3,
                        .staleness = 1,
                        .optimizer = "momentum"};
}

static const float zeros[BLOCK];

static void open_tensor(ps_world *w, gr_ps_spec tensor, bool replica)
{
    world_prepare(w, &tensor, BLOCK);
    world_start(w, replica);
    world_set(w, 16, 0, zeros);
    world_set(w, 17, 1, zeros);
    world_flush(w);
}

static gr_ps_push push_of(int client, uint64_t step, int first, int shards)
{
    return (gr_ps_push){.client = client,
                        .block = 0,
                        .count = BLOCK,
                        .step = step,
                        .first = first,
                        .shards = shards,
                        .sequence = step,
                        .rate = 0.5,
                        .factor = 1};
}

static void expect(const ps_world *w, int token, gr_status status, const char *word)
{
    assert_int_equal(w->tickets[token].answers, 1);
    assert_int_equal(w->tickets[token].status, status);
    if (strstr(w->text, word) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", word, w->text);
    }
}

/* The step that everybody waits for is made all the same. */
static void expect_alive(ps_world *w)
{
    uint64_t version = world_version(w->leads, w->key, 0);
    world_push(w, push_of(20, version, 0, SHARDS), zeros, false);
    world_flush(w);
    assert_int_equal(world_version(w->leads, w->key, 0), version + 1);
    int token = world_pull(w, 20, 0, version + 1, 0);
    assert_int_equal(w->tickets[token].answers, 1);
}

/* ---- Declarations ---------------------------------------------------------------------------- */
static void expect_declare(ps_world *w, const gr_ps_spec *tensor, gr_status status, const char *one,
                           const char *other)
{
    const gr_ps_tensor declared = small_tensor(tensor, BLOCK);
    gr_diag diag = {0};
    assert_int_equal(gr_ps_store_declare(w->leads, 21, &declared, &diag), status);
    if (status != GR_OK && (strstr(diag.text, one) == NULL || strstr(diag.text, other) == NULL)) {
        fail_msg("\"%s\" or \"%s\" is not in \"%s\"", one, other, diag.text);
    }
}

static void declarations_must_agree(void **state)
{
    (void)state;
    ps_world w;
    open_tensor(&w, tensor_of(GR_BSP), false);
    gr_ps_spec t = tensor_of(GR_BSP);
    expect_declare(&w, &t, GR_OK, "", "");
    t.staleness = 7; /* means nothing in bsp */
    expect_declare(&w, &t, GR_OK, "", "");
    t.elements = 21;
    expect_declare(&w, &t, GR_E_INVALID, "worker 5", "21 elements");
    expect_declare(&w, &t, GR_E_INVALID, "20 elements", "conv1/weights");
    t = tensor_of(GR_BSP);
    t.shards = 4;
    expect_declare(&w, &t, GR_E_INVALID, "4 shards", "5 shards");
    t = tensor_of(GR_SSP);
    expect_declare(&w, &t, GR_E_INVALID, "ssp", "bsp");
    t = tensor_of(GR_BSP);
    t.optimizer = "adam";
    expect_declare(&w, &t, GR_E_INVALID, "adam", "momentum");
    t = tensor_of(GR_BSP);
    t.refuse_not_finite = true;
    expect_declare(&w, &t, GR_E_INVALID, "NaN refused", "NaN taken");
    expect_alive(&w);
    world_close(&w);
}

static void what_no_updater_is_made_of_is_not_declared(void **state)
{
    (void)state;
    ps_world w;
    open_tensor(&w, tensor_of(GR_BSP), false);
    gr_ps_spec t = tensor_of(GR_BSP);
    t.name = "another";
    t.optimizer = "unheard of";
    expect_declare(&w, &t, GR_E_INVALID, "no such optimizer", "");
    gr_ps_stats stats;
    gr_ps_store_get_stats(w.leads, &stats);
    assert_int_equal(stats.tensors, 1);
    t.optimizer = "momentum";
    expect_declare(&w, &t, GR_OK, "", "");
    expect_alive(&w);
    world_close(&w);
}

/* Many tensors: the table grows, all are found, in their order. */
static void many_tensors(void **state)
{
    (void)state;
    ps_world w;
    open_tensor(&w, tensor_of(GR_BSP), false);
    char name[32];
    gr_ps_spec t = tensor_of(GR_ASYNC);
    t.name = name;
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "layer%d/bias", i);
        expect_declare(&w, &t, GR_OK, "", "");
    }
    gr_ps_tensor_info info;
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "layer%d/bias", i);
        const gr_ps_tensor *found = gr_ps_store_tensor(w.leads, gr_ps_tensor_key(name));
        assert_non_null(found);
        assert_string_equal(found->spec.name, name);
        assert_true(gr_ps_store_info(w.leads, (uint64_t)i + 1, &info));
        assert_ptr_equal(info.tensor, found);
        assert_int_equal(info.led, 0);
    }
    assert_false(gr_ps_store_info(w.leads, 301, &info));
    assert_null(gr_ps_store_tensor(w.leads, gr_ps_tensor_key("layer300/bias")));
    expect_alive(&w);
    assert_true(gr_ps_store_info(w.leads, 0, &info));
    assert_int_equal(info.led, 2);
    assert_int_equal(info.version_min, 0);
    assert_int_equal(info.version_max, 1);
    world_close(&w);
}

/* ---- Pushes and pulls ------------------------------------------------------------------------ */
static void pushes_must_make_sense(void **state)
{
    (void)state;
    ps_world w;
    open_tensor(&w, tensor_of(GR_BSP), false);
    uint64_t key = w.key;
    gr_ps_push push = push_of(18, 0, 0, SHARDS);
    push.block = 2;
    expect(&w, world_push(&w, push, zeros, false), GR_E_INVALID, "no block 2");
    push = push_of(18, 0, 0, SHARDS);
    push.count = BLOCK - 1;
    expect(&w, world_push(&w, push, zeros, false), GR_E_INVALID, "sends 15 elements");
    expect(&w, world_push(&w, push_of(18, 1, 0, SHARDS), zeros, false), GR_E_INVALID,
           "pushes step 1");
    const int wrong[][2] = {{0, 3}, {1, 2}, {0, 6}, {-1, 1}, {5, 1}, {2, 0}, {4, 2}, {0, -1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        expect(&w, world_push(&w, push_of(18, 0, wrong[i][0], wrong[i][1]), zeros, false),
               GR_E_INVALID, "no whole subtree");
    }
    w.key = 12345;
    expect(&w, world_push(&w, push_of(18, 0, 0, SHARDS), zeros, false), GR_E_NOT_FOUND,
           "declare it first");
    expect(&w, world_pull(&w, 18, 0, 0, 0), GR_E_NOT_FOUND, "declare it first");
    expect(&w, world_set(&w, 18, 0, zeros), GR_E_NOT_FOUND, "declare it first");
    w.key = key;
    expect(&w, world_pull(&w, 18, 2, 0, 0), GR_E_INVALID, "no block 2");
    gr_ps_stats stats;
    gr_ps_store_get_stats(w.leads, &stats);
    assert_int_equal(stats.waiting, 0);
    expect_alive(&w);
    world_close(&w);
}

static void values_come_first(void **state)
{
    (void)state;
    ps_world w;
    gr_ps_spec tensor = tensor_of(GR_BSP);
    world_prepare(&w, &tensor, BLOCK);
    world_start(&w, false);
    expect(&w, world_push(&w, push_of(18, 0, 0, SHARDS), zeros, false), GR_E_INVALID,
           "no initial values");
    int pull = world_pull(&w, 18, 0, 0, 0);
    assert_int_equal(w.tickets[pull].answers, 0);
    float ones[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        ones[i] = 1;
    }
    int first = world_set(&w, 18, 0, ones);
    int second = world_set(&w, 19, 0, zeros);
    assert_int_equal(w.tickets[first].outcome, GR_PS_TAKEN);
    assert_int_equal(w.tickets[second].outcome, GR_PS_REPEATED);
    assert_int_equal(w.tickets[pull].answers, 1);
    assert_true(w.loans[0].copy[0] == 1);
    expect_alive(&w);
    world_close(&w);
}

static void not_finite_is_refused_where_that_is_the_policy(void **state)
{
    (void)state;
    const int modes[] = {GR_BSP, GR_ASYNC};
    for (int m = 0; m < 2; m++) {
        for (int refuse = 0; refuse < 2; refuse++) {
            ps_world w;
            gr_ps_spec tensor = tensor_of(modes[m]);
            tensor.refuse_not_finite = refuse == 1;
            open_tensor(&w, tensor, false);
            const float bad[] = {NAN, INFINITY, -INFINITY};
            for (int i = 0; i < 3; i++) {
                float values[BLOCK] = {0};
                values[i * 7] = bad[i];
                int token =
                    world_push(&w, push_of(18, refuse ? 0 : (uint64_t)i, 0, SHARDS), values, false);
                if (refuse) {
                    expect(&w, token, GR_E_NOT_FINITE, "worker 2 sends NaN or infinity");
                } else {
                    assert_int_equal(w.tickets[token].status, GR_OK);
                }
            }
            gr_ps_stats stats;
            gr_ps_store_get_stats(w.leads, &stats);
            assert_int_equal(stats.updates, refuse ? 0 : 3);
            assert_int_equal(stats.not_finite, refuse ? 0 : 3);
            expect_alive(&w);
            world_close(&w);
        }
    }
}

static void who_does_not_lead_says_so(void **state)
{
    (void)state;
    ps_world w;
    gr_diag diag = {0};
    open_tensor(&w, tensor_of(GR_BSP), true);
    /* A part of a step, a pull, and an answer that waits for the replica, when the role goes. */
    int part = world_push(&w, push_of(18, 0, 0, 1), zeros, false);
    int pull = world_pull(&w, 18, 0, 1, 0);
    gr_ps_push whole = push_of(19, 0, 0, SHARDS);
    whole.block = 1;
    whole.count = 4;
    int unsafe = world_push(&w, whole, zeros, false);
    assert_int_equal(w.tickets[unsafe].answers, 0);
    for (uint32_t b = 0; b < 2; b++) {
        assert_int_equal(gr_ps_store_hold(w.leads, w.key, b, GR_PS_FOLLOWS, &diag), GR_OK);
    }
    assert_int_equal(w.tickets[part].status, GR_E_AGAIN);
    assert_int_equal(w.tickets[pull].status, GR_E_AGAIN);
    assert_int_equal(w.tickets[unsafe].status, GR_E_AGAIN);
    assert_int_equal(w.leases_out, 0);
    expect(&w, world_push(&w, push_of(18, 0, 0, 1), zeros, false), GR_E_AGAIN, "only its replica");
    expect(&w, world_pull(&w, 18, 0, 0, 0), GR_E_AGAIN, "only its replica");
    assert_int_equal(gr_ps_store_hold(w.leads, w.key, 0, GR_PS_ABSENT, &diag), GR_OK);
    expect(&w, world_push(&w, push_of(18, 0, 0, 1), zeros, false), GR_E_AGAIN,
           "not on this server");
    gr_ps_image image;
    assert_int_equal(gr_ps_store_image(w.leads, w.key, 0, &image, &diag), GR_E_AGAIN);
    assert_int_equal(gr_ps_store_hold(w.leads, w.key, 2, GR_PS_ALONE, &diag), GR_E_INVALID);
    assert_int_equal(gr_ps_store_hold(w.leads, 1, 0, GR_PS_ALONE, &diag), GR_E_NOT_FOUND);
    /* A word of the replica for what is not led any more. */
    gr_ps_store_replicated(w.leads, w.key, 0, 1);
    gr_ps_store_replicated(w.leads, w.key, 1, 1);
    gr_ps_store_replicated(w.leads, w.key, 9, 1);
    gr_ps_store_replicated(w.leads, 1, 0, 1);
    world_cut(&w);
    assert_int_equal(gr_ps_store_hold(w.leads, w.key, 0, GR_PS_ALONE, &diag), GR_OK);
    world_set(&w, 16, 0, zeros);
    expect_alive(&w);
    world_close(&w);
}

static void a_replica_takes_what_fits(void **state)
{
    (void)state;
    ps_world w;
    gr_diag diag = {0};
    open_tensor(&w, tensor_of(GR_BSP), true);
    gr_ps_update update = {
        .key = w.key, .block = 0, .count = BLOCK, .version = 0, .rate = 1, .values = zeros};
    assert_int_equal(gr_ps_store_follow(w.leads, &update, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "this server leads"));
    update.version = 1;
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "lacks updates"));
    update.version = 0;
    update.count = 4;
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_E_INVALID);
    update.count = BLOCK;
    update.client_count = GR_PS_PEERS_MAX + 1;
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_E_INVALID);
    const int nobody = GR_PS_PEERS_MAX;
    update.clients = &nobody;
    update.client_count = 1;
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "clients that cannot be"));
    update.client_count = 0;
    update.initial = true; /* it has them */
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_OK);
    assert_int_equal(world_version(w.follows, w.key, 0), 0);
    gr_ps_image image;
    assert_int_equal(gr_ps_store_image(w.leads, w.key, 0, &image, &diag), GR_OK);
    assert_int_equal(gr_ps_store_restore(w.leads, &image, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "in use"));
    image.states = 2;
    assert_int_equal(gr_ps_store_restore(w.follows, &image, &diag), GR_E_INVALID);
    world_flush(&w);
    expect_alive(&w);
    update.initial = false; /* nor what it has followed already */
    assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_OK);
    assert_int_equal(world_version(w.follows, w.key, 0), 1);
    /* What no primary sends, and must do no harm: a client twice, numbers far apart and back. */
    const int twice[2] = {20, 20};
    const uint64_t sequences[] = {5, 500, 500, 436, 435, 0, UINT64_MAX, 1};
    update.clients = twice;
    update.client_count = 2;
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
        update.version = 1 + i;
        update.sequence = sequences[i];
        assert_int_equal(gr_ps_store_follow(w.follows, &update, &diag), GR_OK);
    }
    world_close(&w);
}

/* ---- No memory ------------------------------------------------------------------------------- */
/* GR_OK also while there is no answer. */
static gr_status status_of(const ps_world *w, int token)
{
    gr_status status = w->tickets[token].answers == 1 ? w->tickets[token].status : GR_OK;
    assert_true(status == GR_OK || status == GR_E_NO_MEMORY);
    return status;
}

static gr_status one_round(ps_world *w, int round)
{
    uint64_t version = world_version(w->leads, w->key, 0);
    if (round == 0) {
        return status_of(w, world_set(w, 16, 0, zeros));
    }
    if (round % 3 == 0) {
        return status_of(w, world_pull(w, 16, 0, version, 0));
    }
    if (w->tensor.spec.consistency == GR_BSP) {
        gr_status status = status_of(w, world_push(w, push_of(17, version, 0, 4), zeros, false));
        if (status != GR_OK) {
            return status;
        }
    }
    int client = w->tensor.spec.consistency == GR_BSP ? 18 : 17 + round;
    int token = world_push(w, push_of(client, version, 4, 1), zeros, true);
    gr_status status = status_of(w, token);
    assert_true(status == GR_OK || world_version(w->leads, w->key, 0) == version);
    return status;
}

/* What has just failed, fails again and leaves nothing behind. (In bsp the other half of the step
 * has been taken once more.) */
static void expect_no_leak(ps_world *w, int round)
{
    if (w->tensor.spec.consistency == GR_BSP) {
        return;
    }
    gr_ps_stats before, after;
    gr_ps_store_get_stats(w->leads, &before);
    assert_int_equal(one_round(w, round), GR_E_NO_MEMORY);
    gr_ps_store_get_stats(w->leads, &after);
    assert_true(after.bytes <= before.bytes);
    assert_int_equal(after.waiting, before.waiting);
}

/* Returns how often something failed for lack of memory. Loans come back then, and life goes on. */
static int live_with(uint64_t limit, int mode, bool replica)
{
    ps_world *w = malloc(sizeof *w);
    assert_non_null(w);
    gr_ps_spec tensor = tensor_of(mode);
    gr_diag diag = {0};
    world_prepare(w, &tensor, BLOCK);
    w->config.bytes_max = limit;
    assert_int_equal(gr_ps_store_create(&w->config, &w->leads, &diag), GR_OK);
    gr_status status = gr_ps_store_declare(w->leads, 16, &w->tensor, &diag);
    for (uint32_t b = 0; status == GR_OK && b < w->blocks; b++) {
        status = gr_ps_store_hold(w->leads, w->key, b, replica ? GR_PS_LEADS : GR_PS_ALONE, &diag);
    }
    assert_true(status == GR_OK || (status == GR_E_NO_MEMORY && diag.status == GR_E_NO_MEMORY));
    int failed = status != GR_OK;
    for (int round = 0; status == GR_OK && round < 16; round++) {
        if (one_round(w, round) == GR_OK) {
            continue;
        }
        failed++;
        expect_no_leak(w, round);
        while (w->loan_count > 0) {
            world_give_back(w, 0);
        }
        round = round == 0 ? 16 : round; /* without initial values there is nothing to go on with */
    }
    gr_ps_stats stats;
    gr_ps_store_get_stats(w->leads, &stats);
    assert_true(failed > 0 || stats.updates > 0);
    world_close(w);
    free(w);
    return failed;
}

static void no_memory_anywhere(void **state)
{
    (void)state;
    const int modes[] = {GR_BSP, GR_ASYNC, GR_BSP_BACKUP};
    for (int m = 0; m < 3; m++) {
        for (int replica = 0; replica < 2; replica++) {
            int failures = 0;
            uint64_t limit = 1;
            while (live_with(limit, modes[m], replica == 1) > 0) {
                failures++;
                limit += limit < 4000 ? 500 : 16;
                assert_true(limit < 1 << 20);
            }
            assert_true(failures > 20);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(declarations_must_agree),
        cmocka_unit_test(what_no_updater_is_made_of_is_not_declared),
        cmocka_unit_test(many_tensors),
        cmocka_unit_test(pushes_must_make_sense),
        cmocka_unit_test(values_come_first),
        cmocka_unit_test(not_finite_is_refused_where_that_is_the_policy),
        cmocka_unit_test(who_does_not_lead_says_so),
        cmocka_unit_test(a_replica_takes_what_fits),
        cmocka_unit_test(no_memory_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
