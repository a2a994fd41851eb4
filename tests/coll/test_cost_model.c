/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model against times worked out by hand. */
#include "coll/select/cost_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static gr_cost *walk_of(gr_coll coll, const char *name, int world_size)
{
    gr_plan_shape shape = {.coll = coll, .world_size = world_size, .shards = world_size};
    gr_cost *walk = NULL;
    assert_int_equal(gr_cost_create(gr_algorithm_find(coll, name), &shape, &walk), GR_OK);
    return walk;
}

static double time_of(gr_coll coll, const char *name, int world_size, const gr_cost_model *model,
                      size_t size_bytes, size_t segment_bytes)
{
    gr_cost *walk = walk_of(coll, name, world_size);
    double time_us = gr_cost_time(walk, model, GR_F32, size_bytes, segment_bytes);
    gr_cost_destroy(walk);
    return time_us;
}

/* Plenty of cores; only what a test sets costs anything. */
static gr_cost_model free_of_cost(void)
{
    gr_cost_model model = {.cores = 1e6, .cache_bytes = 1e18};
    return model;
}

static void expect_time(double is_us, double wanted_us)
{
    if (is_us < wanted_us * 0.999999 || is_us > wanted_us * 1.000001) {
        print_error("%g us, wanted %g us\n", is_us, wanted_us);
        fail();
    }
}

static void test_latency(void **state)
{
    (void)state;
    gr_cost_model model = free_of_cost();
    model.link[GR_MODEL_INSIDE].latency_us = 10;
    expect_time(time_of(GR_COLL_BROADCAST, "binomial", 8, &model, 1000, 0), 30);
    expect_time(time_of(GR_COLL_BROADCAST, "direct", 8, &model, 1000, 0), 10);
    expect_time(time_of(GR_COLL_BARRIER, "dissemination", 8, &model, 0, 0), 30);
    expect_time(time_of(GR_COLL_BARRIER, "dissemination", 9, &model, 0, 0), 40);
    expect_time(time_of(GR_COLL_ALLREDUCE, "ring", 5, &model, 1 << 20, 0), 80);
    expect_time(time_of(GR_COLL_ALLREDUCE, "direct", 5, &model, 1 << 20, 0), 20);
    expect_time(time_of(GR_COLL_ALLREDUCE, "gather", 5, &model, 1 << 20, 0), 10);
    model.start_us = 7;
    expect_time(time_of(GR_COLL_BROADCAST, "direct", 1, &model, 1000, 0), 7);
}

static void test_bytes(void **state)
{
    (void)state;
    const size_t size = 1 << 20;
    gr_cost_model model = free_of_cost();
    model.link[GR_MODEL_INSIDE].wire_byte_us = 0.001;
    double whole = 0.001 * (double)size;
    /* 2 (n - 1) blocks of a quarter, one behind the other. */
    expect_time(time_of(GR_COLL_ALLREDUCE, "ring", 4, &model, size, 0), whole * 6 / 4);
    /* A chain of two hops in 4 segments: the second begins behind the first segment. */
    expect_time(time_of(GR_COLL_BROADCAST, "binomial", 4, &model, size, 0), 2 * whole);
    expect_time(time_of(GR_COLL_BROADCAST, "binomial", 4, &model, size, size / 4), 1.25 * whole);
    /* The sender's processor does one copy after the other. */
    model = free_of_cost();
    model.link[GR_MODEL_INSIDE].send_byte_us = 0.001;
    expect_time(time_of(GR_COLL_BROADCAST, "direct", 4, &model, size, 0), 3 * whole);
    /* Adding: of its block each rank adds n - 1 others. */
    model = free_of_cost();
    model.add_byte_us[GR_F32] = 0.001;
    expect_time(time_of(GR_COLL_ALLREDUCE, "direct", 4, &model, size, 0), whole * 3 / 4);
    expect_time(time_of(GR_COLL_ALLREDUCE, "gather", 4, &model, size, 0), whole * 3);
}

/* Of four ranks the root sends two blocks to one that hands one of them on. */
static void test_short_messages_leave_together(void **state)
{
    (void)state;
    gr_cost_model model = free_of_cost();
    gr_link_cost *link = &model.link[GR_MODEL_INSIDE];
    *link = (gr_link_cost){.send_us = 10, .next_share = 0.5, .together_share = 0.1};
    expect_time(time_of(GR_COLL_SCATTER, "binomial", 4, &model, 4 * 64, 0), 10 + 1 + 10);
    expect_time(time_of(GR_COLL_SCATTER, "binomial", 4, &model, 4 << 20, 0), 10 + 5 + 10);
    /* A second message behind something that was waited for: an allgather in a ring of three. */
    *link =
        (gr_link_cost){.send_us = 10, .latency_us = 1, .next_share = 0.5, .together_share = 0.1};
    expect_time(time_of(GR_COLL_ALLGATHER, "ring", 3, &model, 3 * 64, 0), 10 + 1 + 5 + 1);
}

static void test_shared(void **state)
{
    (void)state;
    const size_t size = 1 << 20;
    gr_cost_model model = free_of_cost();
    model.add_byte_us[GR_F32] = 0.001;
    double whole = 0.001 * (double)size;
    /* All ranks together add n times the work on two cores. */
    model.cores = 2;
    expect_time(time_of(GR_COLL_ALLREDUCE, "gather", 4, &model, size, 0), whole * 12 / 2);
    /* A host's interface: two ranks on each of two hosts send half of all they have twice over. */
    static const int host_of[] = {0, 0, 1, 1}, local_rank[] = {0, 1, 0, 1}, local_size[] = {2, 2};
    gr_topology topology = {2, host_of, local_rank, local_size};
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLGATHER, .world_size = 4, .shards = 4, .topology = &topology};
    gr_cost *walk = NULL;
    assert_int_equal(gr_cost_create(gr_algorithm_find(GR_COLL_ALLGATHER, "direct"), &shape, &walk),
                     GR_OK);
    model = free_of_cost();
    model.link[GR_MODEL_BETWEEN].host_byte_us = 0.001;
    gr_prediction p = gr_cost_predict(walk, &model, GR_F32, size, 0);
    expect_time(p.time_us, whole);
    assert_string_equal(p.bound, "network");
    assert_int_equal(p.messages, 3);
    assert_int_equal(p.bytes_sent, 3 * size / 4);
    gr_cost_destroy(walk);
}

static void test_parts(void **state)
{
    (void)state;
    gr_cost_model model;
    for (int link = 0; link < 2; link++) {
        gr_cost_model_defaults(&model, (gr_link_kind)link);
        for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
            gr_plan_shape shape = {.coll = at->coll, .world_size = 8, .shards = 8};
            gr_cost *walk = NULL;
            if (!at->fits(&shape)) {
                continue;
            }
            assert_int_equal(gr_cost_create(at, &shape, &walk), GR_OK);
            double before_us = 0;
            for (size_t bytes = 64; bytes < (64u << 20); bytes *= 4) {
                gr_prediction p = gr_cost_predict(walk, &model, GR_F32, bytes, 256 << 10);
                expect_time(p.latency_us + p.bandwidth_us + p.reduction_us, p.time_us);
                assert_true(p.latency_us > 0 && p.bandwidth_us >= 0 && p.reduction_us >= 0);
                /* More bytes, fewer waits: where at last no block is empty, that can be faster. */
                if (p.time_us < 0.6 * before_us || p.time_us > 1e7) {
                    print_error("%s=%s, %zu bytes: %g us behind %g us\n", gr_coll_name(at->coll),
                                at->name, bytes, p.time_us, before_us);
                    fail();
                }
                before_us = p.time_us;
            }
            gr_cost_destroy(walk);
        }
    }
}

/* Where a few ranks stand for all, the time is what theory says. */
static void test_many_ranks(void **state)
{
    (void)state;
    gr_cost_model model = free_of_cost();
    model.link[GR_MODEL_INSIDE].latency_us = 1;
    gr_cost *walk = walk_of(GR_COLL_ALLREDUCE, "ring", 1000);
    gr_prediction p = gr_cost_predict(walk, &model, GR_F32, 100 << 20, 0);
    assert_true(p.ranks_walked < 10);
    expect_time(p.time_us, 1998);
    gr_cost_destroy(walk);
    expect_time(time_of(GR_COLL_ALLREDUCE, "direct", 1000, &model, 100 << 20, 0), 2);
    expect_time(time_of(GR_COLL_BARRIER, "dissemination", 1000, &model, 0, 0), 10);
    expect_time(time_of(GR_COLL_BROADCAST, "binomial", 500, &model, 4, 0), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latency),    cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_shared),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_many_ranks), cmocka_unit_test(test_short_messages_leave_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
