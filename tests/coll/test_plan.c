/* SPDX-License-Identifier: Apache-2.0 */
/* What gr_plan_finish derives, and the list of algorithms. That the dependencies are complete is
 * test_verify.c's matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "coll/plan/plan.h"

static gr_plan new_plan(int blocks)
{
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .world_size = 4, .shards = 4};
    gr_plan plan;
    gr_plan_init(&plan, &shape);
    plan.blocks = (uint32_t)blocks;
    return plan;
}

static void assert_after(const gr_plan *plan, uint32_t step, size_t count, const uint32_t *expected)
{
    const gr_step *at = &plan->steps[step];
    assert_int_equal(at->after_count, count);
    for (size_t i = 0; i < count; i++) {
        bool found = false;
        for (uint32_t k = 0; k < at->after_count; k++) {
            found |= plan->after[at->after_first + k] == expected[i];
        }
        assert_true(found);
    }
}

#define ASSERT_AFTER(plan, step, ...)                                                              \
    assert_after(plan, step, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),                 \
                 (uint32_t[]){__VA_ARGS__})

static void test_dependencies_are_the_hazards(void **unused)
{
    (void)unused;
    gr_plan plan = new_plan(2);
    gr_operand a = gr_user(0, 0);
    gr_operand b = gr_user(0, 1);
    gr_operand s = gr_scratch(0, 0);
    gr_plan_send(&plan, 1, a);      /* 0 */
    gr_plan_send(&plan, 2, a);      /* 1 */
    gr_plan_recv(&plan, 1, s);      /* 2 */
    gr_plan_reduce(&plan, a, a, s); /* 3: reads what 2 wrote, writes what 0 and 1 read */
    gr_plan_recv(&plan, 2, b);      /* 4 */
    gr_plan_recv(&plan, 1, s);      /* 5: writes what 3 read */
    gr_plan_reduce(&plan, a, s, a); /* 6: reads 5 and 3 */
    gr_plan_copy(&plan, a, b);      /* 7: reads 4, overwrites 6, which nobody read */
    gr_plan_reduce(&plan, a, a, a); /* 8 */
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    assert_int_equal(plan.scratch_slots, 1);
    assert_after(&plan, 0, 0, NULL);
    assert_after(&plan, 1, 0, NULL);
    assert_after(&plan, 2, 0, NULL);
    ASSERT_AFTER(&plan, 3, 0, 1, 2);
    assert_after(&plan, 4, 0, NULL);
    ASSERT_AFTER(&plan, 5, 3);
    ASSERT_AFTER(&plan, 6, 3, 5);
    ASSERT_AFTER(&plan, 7, 4, 6);
    ASSERT_AFTER(&plan, 8, 7);
    assert_int_equal(plan.steps[2].last_reader, 3);
    assert_int_equal(plan.steps[4].last_reader, -1); /* not scratch */
    assert_int_equal(plan.steps[5].last_reader, 6);
    gr_plan_fini(&plan);
}

static void test_messages_are_numbered_by_link_and_direction(void **unused)
{
    (void)unused;
    gr_plan plan = new_plan(1);
    gr_plan_send(&plan, 1, gr_user(0, 0));    /* 0 */
    gr_plan_signal(&plan, 1);                 /* 1 */
    gr_plan_send(&plan, 2, gr_user(0, 0));    /* 2 */
    gr_plan_recv(&plan, 1, gr_scratch(0, 0)); /* 3 */
    gr_plan_await(&plan, 1);                  /* 4 */
    gr_plan_send(&plan, 1, gr_user(0, 0));    /* 5 */
    static const uint32_t expected[] = {0, 1, 0, 0, 1, 2};
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    for (uint32_t i = 0; i < plan.step_count; i++) {
        assert_int_equal(plan.steps[i].message, expected[i]);
    }
    /* Finishing again, with a step more, begins afresh. */
    gr_plan_send(&plan, 1, gr_user(0, 0));
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    assert_int_equal(plan.steps[6].message, 3);
    assert_int_equal(plan.steps[1].message, 1);
    gr_plan_fini(&plan);
}

static void test_await_orders_what_follows(void **unused)
{
    (void)unused;
    gr_plan plan = new_plan(1);
    gr_plan_signal(&plan, 1);                             /* 0 */
    gr_plan_await(&plan, 1);                              /* 1 */
    gr_plan_signal(&plan, 2);                             /* 2 */
    gr_plan_await(&plan, 2);                              /* 3 */
    gr_plan_copy(&plan, gr_scratch(0, 0), gr_user(0, 0)); /* 4 */
    gr_plan_send(&plan, 2, gr_scratch(0, 0));             /* 5: after 4, hence after 3 */
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    assert_after(&plan, 0, 0, NULL);
    assert_after(&plan, 1, 0, NULL);
    ASSERT_AFTER(&plan, 2, 1);
    ASSERT_AFTER(&plan, 3, 1);
    ASSERT_AFTER(&plan, 4, 3);
    ASSERT_AFTER(&plan, 5, 4);
    gr_plan_fini(&plan);
}

static gr_status finish_with(gr_step_kind kind, int peer, gr_operand dst, gr_operand a)
{
    gr_plan plan = new_plan(2);
    switch (kind) {
    case GR_STEP_SEND:
        gr_plan_send(&plan, peer, a);
        break;
    case GR_STEP_RECV:
        gr_plan_recv(&plan, peer, dst);
        break;
    case GR_STEP_COPY:
        gr_plan_copy(&plan, dst, a);
        break;
    default:
        gr_plan_reduce(&plan, dst, a, a);
        break;
    }
    gr_status status = gr_plan_finish(&plan);
    gr_plan_fini(&plan);
    return status;
}

static void test_steps_outside_the_plan_are_refused(void **unused)
{
    (void)unused;
    gr_operand good = gr_user(0, 1);
    assert_int_equal(finish_with(GR_STEP_COPY, 0, good, gr_user(0, 0)), GR_OK);
    assert_int_equal(finish_with(GR_STEP_COPY, 0, good, gr_user(0, 2)), GR_E_BUG);
    assert_int_equal(finish_with(GR_STEP_COPY, 0, gr_user(1, 0), good), GR_E_BUG);
    assert_int_equal(finish_with(GR_STEP_REDUCE, 0, gr_scratch(0, 2), good), GR_E_BUG);
    assert_int_equal(finish_with(GR_STEP_SEND, 3, good, good), GR_OK);
    assert_int_equal(finish_with(GR_STEP_SEND, 4, good, good), GR_E_BUG);
    assert_int_equal(finish_with(GR_STEP_SEND, 0, good, good), GR_E_BUG); /* to itself */
    assert_int_equal(finish_with(GR_STEP_RECV, -1, good, good), GR_E_BUG);
}

static void test_too_many_steps_are_a_failure_kept_for_the_end(void **unused)
{
    (void)unused;
    gr_plan plan = new_plan(1);
    for (uint32_t i = 0; i <= GR_PLAN_STEPS_MAX; i++) {
        gr_plan_signal(&plan, 1);
    }
    assert_int_equal(plan.step_count, GR_PLAN_STEPS_MAX);
    assert_int_equal(gr_plan_finish(&plan), GR_E_NO_MEMORY);
    gr_plan_fini(&plan);
}

static void test_finding_algorithms(void **unused)
{
    (void)unused;
    static const struct {
        gr_coll coll;
        const char *name;
        bool canonical;
    } known[] = {
        {GR_COLL_ALLREDUCE, "direct", true},     {GR_COLL_ALLREDUCE, "ring", false},
        {GR_COLL_REDUCE_SCATTER, "ring", false}, {GR_COLL_ALLGATHER, "ring", true},
        {GR_COLL_BROADCAST, "binomial", true},   {GR_COLL_BARRIER, "dissemination", true},
        {GR_COLL_REDUCE, "binomial", true},      {GR_COLL_ALLTOALL, "pairwise", true},
    };
    size_t count = sizeof known / sizeof known[0];
    for (size_t i = 0; i < count; i++) {
        const gr_algorithm *found = gr_algorithm_find(known[i].coll, known[i].name);
        assert_non_null(found);
        assert_int_equal(found->canonical, known[i].canonical);
    }
    assert_null(gr_algorithm_find(GR_COLL_BARRIER, "direct"));
    /* Each name once, and something for each collective. */
    unsigned seen = 0;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        assert_ptr_equal(gr_algorithm_find(at->coll, at->name), at);
        seen |= 1u << at->coll;
    }
    assert_int_equal(seen, (1u << GR_COLL_SEND) - 1); /* messages have none */
    assert_string_equal(gr_coll_name(GR_COLL_REDUCE_SCATTER), "reduce-scatter");
    assert_string_equal(gr_coll_name((gr_coll)GR_COLL_COUNT), "?");
}

static void test_shapes_that_do_not_fit_are_declined(void **unused)
{
    (void)unused;
    static const struct {
        const char *name;
        int world_size, shards;
        bool fits;
    } shapes[] = {
        {"direct", 3, 5, true},
        {"direct", 3, 1, true},
        {"direct", 3, 0, false},
        {"direct", 0, 1, false},
        {"direct", 100000, 100000, true},
        {"direct", 100001, 100001, false},
        {"ring", 4, 4, true},
        {"ring", 100000, 100000, true},
        {"segmented-ring", 100000, 100000, false}, /* too many steps */
        {"ring", 4, 8, false},
        {"halving-doubling", 4, 4, true},
        {"halving-doubling", 4, 8, true},
        {"halving-doubling", 4, 12, false},
        {"halving-doubling", 4, 5, false},
        {"halving-doubling", 3, 3, true},
        {"halving-doubling", 6, 12, true},
        {"halving-doubling", 6, 24, true},
        {"halving-doubling", 6, 13, false},
        {"halving-doubling", 4, 2, false},
        {"halving-doubling", 2, 3, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE,
                               .world_size = shapes[i].world_size,
                               .shards = shapes[i].shards};
        const gr_algorithm *algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, shapes[i].name);
        assert_int_equal(algorithm->fits(&shape), shapes[i].fits);
    }
    gr_plan_shape bad_root = {.coll = GR_COLL_BROADCAST, .world_size = 2, .shards = 2, .root = 2};
    assert_false(gr_algorithm_find(GR_COLL_BROADCAST, "binomial")->fits(&bad_root));
    gr_plan_shape bad_rank = {.coll = GR_COLL_BROADCAST, .rank = 2, .world_size = 2, .shards = 2};
    assert_false(gr_algorithm_find(GR_COLL_BROADCAST, "binomial")->fits(&bad_rank));
}

static bool is_message(gr_coll coll)
{
    return coll == GR_COLL_SEND || coll == GR_COLL_RECV;
}

static void test_alone_there_is_nothing_to_do_but_to_copy(void **unused)
{
    (void)unused;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int out_of_place = 0; out_of_place < 2; out_of_place++) {
            gr_plan_shape shape = {
                .coll = at->coll, .world_size = 1, .shards = 1, .out_of_place = out_of_place == 1};
            bool copies = out_of_place == 1 && at->coll != GR_COLL_BARRIER;
            gr_plan plan;
            if (is_message(at->coll) || !at->plan) {
                assert_false(at->fits(&shape)); /* nobody sends to himself */
                continue;
            }
            assert_true(at->fits(&shape));
            gr_plan_emit(at, &shape, &plan);
            assert_int_equal(gr_plan_finish(&plan), GR_OK);
            assert_int_equal(plan.step_count, copies);
            assert_true(!copies || plan.steps[0].kind == GR_STEP_COPY);
            assert_int_equal(plan.scratch_slots, 0);
            gr_plan_fini(&plan);
        }
    }
}

/* A thousand ranks must not take noticeable time: the derivation is linear. Counted in dependencies
 * rather than in seconds, so that a slow machine does not fail. */
static void test_dependencies_stay_linear_in_the_steps(void **unused)
{
    (void)unused;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int out_of_place = 0; at->plan && out_of_place < 2; out_of_place++) {
            gr_plan_shape shape = {.coll = at->coll,
                                   .rank = 512,
                                   .world_size = 1024,
                                   .shards = 1024,
                                   .out_of_place = out_of_place == 1};
            gr_plan plan;
            gr_plan_emit(at, &shape, &plan);
            assert_int_equal(gr_plan_finish(&plan), GR_OK);
            assert_true(plan.step_count <= 20 * 1024);
            assert_true(plan.after_count <= 3 * plan.step_count);
            gr_plan_fini(&plan);
        }
    }
}

static void test_inputs_are_only_read(void **unused)
{
    (void)unused;
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .world_size = 4, .shards = 4, .out_of_place = true};
    gr_plan plan;
    gr_plan_init(&plan, &shape);
    assert_int_equal(plan.user_slots, 1);
    assert_int_equal(plan.input_slots, 1);
    gr_plan_copy(&plan, gr_user(0, 0), gr_input(0, 0));
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    gr_plan_copy(&plan, gr_input(0, 0), gr_user(0, 0));
    assert_int_equal(gr_plan_finish(&plan), GR_E_BUG);
    gr_plan_fini(&plan);

    gr_plan_init(&plan, &shape);
    gr_plan_send(&plan, 1, gr_input(1, 0)); /* there is one */
    assert_int_equal(gr_plan_finish(&plan), GR_E_BUG);
    gr_plan_fini(&plan);
}

/* Who has which buffers, in place and out of place. */
static void test_buffers_of_each_collective(void **unused)
{
    (void)unused;
    static const struct {
        gr_coll coll;
        int root_user, root_input, other_user, other_input; /* out of place */
        int other_user_in_place;
    } expected[] = {
        {GR_COLL_ALLREDUCE, 1, 1, 1, 1, 1}, {GR_COLL_REDUCE_SCATTER, 1, 1, 1, 1, 1},
        {GR_COLL_ALLGATHER, 1, 1, 1, 1, 1}, {GR_COLL_BROADCAST, 1, 1, 1, 0, 1},
        {GR_COLL_BARRIER, 1, 0, 1, 0, 1},   {GR_COLL_REDUCE, 1, 1, 0, 1, 1},
        {GR_COLL_GATHER, 1, 1, 0, 1, 1},    {GR_COLL_SCATTER, 1, 1, 1, 0, 1},
        {GR_COLL_ALLTOALL, 1, 1, 1, 1, 1},  {GR_COLL_SEND, 0, 1, 0, 1, 1},
        {GR_COLL_RECV, 1, 0, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        gr_plan_shape shape = {.coll = expected[i].coll, .world_size = 3, .shards = 3, .root = 1};
        for (shape.rank = 0; shape.rank < 2; shape.rank++) {
            bool is_root = shape.rank == 1;
            gr_plan plan;
            shape.out_of_place = true;
            gr_plan_init(&plan, &shape);
            assert_int_equal(plan.user_slots,
                             is_root ? expected[i].root_user : expected[i].other_user);
            assert_int_equal(plan.input_slots,
                             is_root ? expected[i].root_input : expected[i].other_input);
            shape.out_of_place = false;
            gr_plan_init(&plan, &shape);
            assert_int_equal(plan.user_slots, is_root ? 1 : expected[i].other_user_in_place);
            assert_int_equal(plan.input_slots, 0);
        }
    }
    gr_plan_shape shards = {
        .coll = GR_COLL_ALLREDUCE, .world_size = 2, .shards = 6, .out_of_place = true};
    gr_plan plan;
    gr_plan_init(&plan, &shards); /* shards 0, 1 and 2: two subtrees */
    assert_int_equal(plan.user_slots, 1);
    assert_int_equal(plan.input_slots, 2);
}

/* A rank whose block is empty sends its part to the first rank and gets the sum; signals stay. */
static void test_steps_of_empty_blocks_are_left_out(void **unused)
{
    (void)unused;
    const gr_algorithm *direct = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct");
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .rank = 2, .world_size = 4, .shards = 4, .lines = 1};
    gr_plan plan;
    gr_plan_emit(direct, &shape, &plan);
    gr_plan_scale_result(&plan);
    gr_plan_signal(&plan, 3);
    uint32_t all = plan.step_count;
    gr_plan_drop_empty(&plan);
    assert_int_equal(gr_plan_finish(&plan), GR_OK);
    assert_true(plan.step_count == 4 && all > 4);
    assert_true(plan.steps[0].kind == GR_STEP_SEND && plan.steps[0].peer == 0);
    assert_true(plan.steps[1].kind == GR_STEP_RECV && plan.steps[1].peer == 0);
    assert_int_equal(plan.steps[2].kind, GR_STEP_SCALE);
    assert_int_equal(plan.steps[3].kind, GR_STEP_SIGNAL);
    gr_plan_fini(&plan);
    shape.lines = 0; /* not known: all may have something */
    gr_plan_emit(direct, &shape, &plan);
    uint32_t before = plan.step_count;
    gr_plan_drop_empty(&plan);
    assert_int_equal(plan.step_count, before);
    gr_plan_fini(&plan);
}

/* Whom the ranks of a broadcast send to, in their order. */
static void expect_children(const gr_topology *topology, const int wanted[8][4])
{
    const gr_algorithm *binomial = gr_algorithm_find(GR_COLL_BROADCAST, "binomial");
    for (int rank = 0; rank < 8; rank++) {
        gr_plan_shape shape = {.coll = GR_COLL_BROADCAST,
                               .rank = rank,
                               .world_size = 8,
                               .shards = 8,
                               .topology = topology};
        gr_plan plan;
        gr_plan_emit(binomial, &shape, &plan);
        int found = 0;
        for (uint32_t i = 0; i < plan.step_count; i++) {
            if (plan.steps[i].kind == GR_STEP_SEND) {
                assert_int_equal(plan.steps[i].peer, wanted[rank][found]);
                found++;
            }
        }
        assert_int_equal(wanted[rank][found], -1);
        gr_plan_fini(&plan);
    }
}

/* On one host odd and even ranks both hand on; from host to host goes one message. */
static void test_the_binomial_tree_goes_by_the_hosts(void **unused)
{
    (void)unused;
    static const int near[8][4] = {{1, 2, 4, -1}, {3, 5, -1}, {6, -1}, {7, -1},
                                   {-1},          {-1},       {-1},    {-1}};
    static const int far[8][4] = {{4, 2, 1, -1}, {-1}, {3, -1}, {-1},
                                  {6, 5, -1},    {-1}, {7, -1}, {-1}};
    static const int host_of[] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const int local_rank[] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const int local_size[] = {4, 4};
    gr_topology topology = {2, host_of, local_rank, local_size};
    expect_children(NULL, near);
    expect_children(&topology, far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dependencies_are_the_hazards),
        cmocka_unit_test(test_messages_are_numbered_by_link_and_direction),
        cmocka_unit_test(test_await_orders_what_follows),
        cmocka_unit_test(test_steps_outside_the_plan_are_refused),
        cmocka_unit_test(test_too_many_steps_are_a_failure_kept_for_the_end),
        cmocka_unit_test(test_finding_algorithms),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_declined),
        cmocka_unit_test(test_alone_there_is_nothing_to_do_but_to_copy),
        cmocka_unit_test(test_inputs_are_only_read),
        cmocka_unit_test(test_buffers_of_each_collective),
        cmocka_unit_test(test_dependencies_stay_linear_in_the_steps),
        cmocka_unit_test(test_steps_of_empty_blocks_are_left_out),
        cmocka_unit_test(test_the_binomial_tree_goes_by_the_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
