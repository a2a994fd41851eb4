/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong plans are refused, each with the sentence that it deserves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support_plans.h"

/* ---- Wrong plans ----------------------------------------------------------------------------- */
/* Refused, with a sentence that names this rank, this step (-1: none) and what is wrong. */
static void assert_refused(plans_world *w, bool canonical, int rank, long step, const char *words)
{
    char text[64];
    assert_int_equal(plans_verify(w, canonical, -1), GR_E_BUG);
    assert_int_equal(w->diag.status, GR_E_BUG);
    assert_int_equal(w->diag.peer_rank, rank);
    if (step < 0) {
        snprintf(text, sizeof text, "rank %d of %d, after its last step: ", rank, w->size);
    } else {
        snprintf(text, sizeof text, "rank %d of %d, step %ld (", rank, w->size, step);
    }
    if (!strstr(w->diag.text, text) || !strstr(w->diag.text, words)) {
        fail_msg("expected \"%s\" and \"%s\" in: %s", text, words, w->diag.text);
    }
    plans_close(w);
}

static void test_a_lost_block(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 4, 4, 0);
    uint32_t at = plans_find_step(&w, 1, GR_STEP_REDUCE, 0);
    w.plans[1].steps[at].kind = GR_STEP_COPY; /* the other operand is forgotten */
    plans_finish(&w);
    /* Block 1 is wrong everywhere; rank 0 is looked at first, where the block came by a receive. */
    assert_refused(&w, true, 0, plans_find_step(&w, 0, GR_STEP_RECV, 5),
                   "lacks the contribution of rank 1");
}

static void test_a_block_added_twice(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_REDUCE_SCATTER, "ring", 3, 3, 0);
    gr_step last = w.plans[2].steps[plans_find_step(&w, 2, GR_STEP_REDUCE, 1)];
    gr_plan_reduce(&w.plans[2], last.dst, last.a, last.b);
    plans_finish(&w);
    uint32_t at = plans_find_step(&w, 2, GR_STEP_REDUCE, 2);
    assert_refused(&w, false, 2, at, "more than once");
}

static void test_a_block_doubled_again_and_again(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_REDUCE_SCATTER, "direct", 3, 3, 0);
    for (int i = 0; i < 200; i++) { /* 2^200 contributions must not be walked one by one */
        gr_plan_reduce(&w.plans[0], gr_user(0, 0), gr_user(0, 0), gr_user(0, 0));
    }
    plans_finish(&w);
    assert_refused(&w, true, 0, w.plans[0].step_count - 1, "more than once");
}

static void test_wrong_order_of_operands(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    uint32_t at = plans_find_step(&w, 2, GR_STEP_REDUCE, 1);
    gr_step *step = &w.plans[2].steps[at];
    gr_operand a = step->a;
    step->a = step->b;
    step->b = a;
    plans_finish(&w);
    assert_int_equal(plans_verify(&w, false, -1), GR_OK); /* the same numbers, in another order */
    assert_refused(&w, true, 2, w.plans[2].step_count - 1, "order of the shard tree");
}

static void test_deadlock_of_two_who_wait_for_each_other(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open_blank(&w, GR_COLL_ALLGATHER, 2, PLANS_IN_PLACE);
    for (int rank = 0; rank < 2; rank++) {
        gr_plan_recv(&w.plans[rank], 1 - rank, gr_user(0, 1 - rank));
        gr_plan_send(&w.plans[rank], 1 - rank, gr_user(0, 1 - rank)); /* what it has yet to get */
    }
    plans_finish(&w);
    assert_refused(&w, true, 0, 0, "deadlock: it waits for step");
}

/* The second message waits in the link behind the first, whose reader waits for the second. */
static void test_deadlock_inside_one_link(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open_blank(&w, GR_COLL_ALLREDUCE, 2, PLANS_IN_PLACE);
    gr_plan_send(&w.plans[0], 1, gr_user(0, 0));
    gr_plan_send(&w.plans[0], 1, gr_user(0, 0));
    gr_plan_recv(&w.plans[1], 0, gr_scratch(0, 0));
    gr_plan_recv(&w.plans[1], 0, gr_scratch(1, 0));
    gr_plan_reduce(&w.plans[1], gr_user(0, 0), gr_scratch(0, 0), gr_scratch(1, 0));
    plans_finish(&w);
    assert_refused(&w, false, 0, 0, "deadlock");
}

/* Each adds what it sees in the other's memory to its own, in place: neither may begin. */
static void test_deadlock_of_two_views(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open_blank(&w, GR_COLL_ALLREDUCE, 2, PLANS_IN_PLACE);
    for (int rank = 0; rank < 2; rank++) {
        gr_operand own = gr_user(0, 0);
        gr_operand other = gr_scratch(0, 0);
        gr_plan_send(&w.plans[rank], 1 - rank, own);
        gr_plan_recv(&w.plans[rank], 1 - rank, other);
        gr_plan_reduce(&w.plans[rank], own, rank == 0 ? own : other, rank == 0 ? other : own);
    }
    plans_finish(&w);
    assert_refused(&w, true, 0, 0, "deadlock");
}

static void test_unmatched_messages(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLREDUCE, "ring", 4, 4, 0);
    plans_drop_step(&w.plans[3], plans_find_step(&w, 3, GR_STEP_SEND, 5));
    plans_finish(&w);
    assert_refused(&w, false, 0, plans_find_step(&w, 0, GR_STEP_RECV, 5), "it never comes");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 4, 4, 0);
    gr_plan_send(&w.plans[2], 1, gr_user(0, 0));
    uint32_t last = w.plans[2].step_count - 1;
    plans_finish(&w);
    assert_refused(&w, true, 2, last, "nobody takes it");

    plans_open(&w, GR_COLL_BROADCAST, "direct", 2, 2, 0);
    w.plans[1].steps[0].kind = GR_STEP_AWAIT;
    plans_finish(&w);
    assert_refused(&w, true, 1, 0, "of the other kind");
}

static void test_reading_what_nobody_wrote(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLGATHER, "ring", 4, 4, 0);
    w.plans[2].steps[0].a.block = 0; /* its first gift is rank 0's block, not yet here */
    plans_finish(&w);
    assert_refused(&w, true, 2, 0, "reads what nobody wrote");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 4, 2, 0);
    gr_plan_reduce(&w.plans[3], gr_scratch(9, 0), gr_scratch(8, 0), gr_user(0, 0));
    plans_finish(&w);
    assert_refused(&w, true, 3, w.plans[3].step_count - 1, "reads what nobody wrote");
}

static void test_blocks_in_the_wrong_place(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLGATHER, "direct", 4, 4, 0);
    uint32_t at = plans_find_step(&w, 1, GR_STEP_RECV, 0);
    w.plans[1].steps[at].dst.block = 3; /* rank 0 sends block 0 */
    plans_finish(&w);
    assert_refused(&w, true, 1, at, "puts block 0 in the place of block 3");

    plans_open(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    at = plans_find_step(&w, 1, GR_STEP_REDUCE, 0);
    w.plans[1].steps[at].b.block = 2;
    plans_finish(&w);
    assert_refused(&w, true, 1, at, "adds block 2 to block 1");
}

static void test_a_missing_result(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open_blank(&w, GR_COLL_BROADCAST, 2, PLANS_IN_PLACE);
    plans_finish(&w);
    assert_refused(&w, true, 1, -1, "nobody wrote block 0 of the result");
}

static void test_a_view_overwritten(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    uint32_t at = plans_find_step(&w, 3, GR_STEP_REDUCE, 0);
    w.plans[3].steps[at].dst = w.plans[3].steps[at].a;
    plans_finish(&w);
    assert_refused(&w, true, 3, at, "view of a peer's memory");
}

static void test_barriers_that_do_not_hold(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_BARRIER, "dissemination", 5, 5, 0);
    for (int rank = 0; rank < 5; rank++) {
        w.plans[rank].step_count -= 2; /* the last round */
    }
    plans_finish(&w);
    assert_refused(&w, true, 0, -1, "it may leave the barrier before rank 1");

    /* Each tells the second before it has heard the first: all signals go out at once. */
    plans_open_blank(&w, GR_COLL_BARRIER, 4, PLANS_IN_PLACE);
    for (int rank = 0; rank < 4; rank++) {
        gr_plan_signal(&w.plans[rank], (rank + 1) % 4);
        gr_plan_signal(&w.plans[rank], (rank + 2) % 4);
        gr_plan_await(&w.plans[rank], (rank + 3) % 4);
        gr_plan_await(&w.plans[rank], (rank + 2) % 4);
    }
    plans_finish(&w);
    assert_refused(&w, true, 0, -1, "it may leave the barrier before rank 1");
}

/* ---- Inputs, roots and blocks of pairs ------------------------------------------------------- */
static void open_out_of_place(plans_world *w, gr_coll coll, const char *name, int size, int root)
{
    gr_plan_shape shape = {.coll = coll, .world_size = size, .shards = size, .root = root};
    plans_open_shaped(w, gr_algorithm_find(coll, name), &shape, PLANS_OUT_OF_PLACE);
}

static void test_writing_to_an_input(void **unused)
{
    (void)unused;
    plans_world w;
    open_out_of_place(&w, GR_COLL_ALLREDUCE, "direct", 3, 0);
    uint32_t at = plans_find_step(&w, 1, GR_STEP_REDUCE, 0);
    w.plans[1].steps[at].dst = gr_input(0, 1); /* gr_plan_finish would refuse it */
    assert_refused(&w, true, 1, at, "it writes to an input");
}

static void test_blocks_that_the_caller_has_not(void **unused)
{
    (void)unused;
    plans_world w;
    open_out_of_place(&w, GR_COLL_REDUCE_SCATTER, "ring", 4, 0);
    uint32_t at = plans_find_step(&w, 2, GR_STEP_REDUCE, 0);
    w.plans[2].steps[at].dst = gr_user(0, (int)w.plans[2].steps[at].dst.block);
    plans_finish(&w);
    assert_refused(&w, false, 2, at, "the caller has no such block");

    plans_open(&w, GR_COLL_GATHER, "binomial", 4, 4, 0);
    at = plans_find_step(&w, 1, GR_STEP_RECV, 0); /* what it hands on from rank 3 */
    w.plans[1].steps[at].dst = gr_user(0, 3);
    plans_finish(&w);
    assert_refused(&w, true, 1, at, "the caller has no such block");

    open_out_of_place(&w, GR_COLL_REDUCE, "binomial", 4, 0);
    w.plans[3].user_slots = 1;
    assert_refused(&w, true, 3, -1, "the plan is for 1 buffers and 1 inputs, the rank has 0 and 1");
}

static void test_a_contribution_that_is_not_kept(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_REDUCE, "binomial", 4, 4, 0);
    uint32_t at = plans_find_step(&w, 2, GR_STEP_REDUCE, 0);
    w.plans[2].steps[at].dst = gr_user(0, 0);
    w.plans[2].steps[plans_find_step(&w, 2, GR_STEP_SEND, 0)].a = gr_user(0, 0);
    plans_finish(&w);
    assert_refused(&w, true, 2, at, "overwrites the contribution");
}

static void test_a_root_without_everything(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_GATHER, "direct", 3, 3, 1);
    plans_drop_step(&w.plans[1], plans_find_step(&w, 1, GR_STEP_RECV, 1));
    plans_drop_step(&w.plans[0], 0);
    plans_finish(&w);
    assert_refused(&w, true, 1, -1, "nobody wrote block 0 of the result");

    plans_open(&w, GR_COLL_REDUCE, "chain", 4, 4, 2);
    uint32_t at = plans_find_step(&w, 3, GR_STEP_REDUCE, 0);
    w.plans[3].steps[at].kind = GR_STEP_COPY;
    plans_finish(&w);
    uint32_t last = plans_find_step(&w, 2, GR_STEP_REDUCE, 0);
    assert_refused(&w, false, 2, last, "lacks the contribution of rank 0");

    plans_open(&w, GR_COLL_REDUCE, "chain", 4, 4, 2);
    assert_int_equal(plans_verify(&w, false, -1), GR_OK);
    assert_refused(&w, true, 2, last, "order of the shard tree");

    plans_open(&w, GR_COLL_SCATTER, "direct", 3, 3, 0);
    at = plans_find_step(&w, 0, GR_STEP_SEND, 1);
    w.plans[0].steps[at].a.block = 1; /* to rank 2 */
    plans_finish(&w);
    assert_refused(&w, true, 2, 0, "puts block 1 in the place of block 2");
}

static void test_blocks_of_the_wrong_pair(void **unused)
{
    (void)unused;
    for (int uneven = 0; uneven < 2; uneven++) {
        plans_world w;
        gr_plan_shape shape = {
            .coll = GR_COLL_ALLTOALL, .world_size = 4, .shards = 4, .uneven = uneven == 1};
        plans_open_shaped(&w, gr_algorithm_find(GR_COLL_ALLTOALL, "pairwise"), &shape,
                          PLANS_OUT_OF_PLACE);
        uint32_t at = plans_find_step(&w, 0, GR_STEP_SEND, 0);
        w.plans[0].steps[at].a.block = 3; /* to rank 1 */
        plans_finish(&w);
        uint32_t taken = plans_find_step(&w, 1, GR_STEP_RECV, 0);
        /* Uneven, the sizes do not agree; else only the content is wrong. */
        assert_refused(&w, true, 1, taken,
                       uneven ? "puts block 3 in the place of block 0"
                              : "block 0 of the result is not rank 0's");
    }
}

static void test_a_host_left_out(void **unused)
{
    (void)unused;
    static const int host_of[] = {0, 0, 1, 1}, local_rank[] = {0, 1, 0, 1}, local_size[] = {2, 2};
    static const gr_topology topology = {2, host_of, local_rank, local_size};
    gr_plan_shape shape = {
        .coll = GR_COLL_REDUCE_SCATTER, .world_size = 4, .shards = 4, .topology = &topology};
    plans_world w;
    plans_open_shaped(&w, gr_algorithm_find(GR_COLL_REDUCE_SCATTER, "hierarchical"), &shape,
                      PLANS_IN_PLACE);
    /* Rank 3 hands on its own share instead of what its host has added. */
    uint32_t at = plans_find_step(&w, 3, GR_STEP_REDUCE, 0);
    w.plans[3].steps[at].kind = GR_STEP_COPY;
    w.plans[3].steps[at].a = w.plans[3].steps[at].b;
    plans_finish(&w);
    uint32_t last = w.plans[1].step_count - 1;
    assert_refused(&w, true, 1, last, "lacks the contribution of rank 2");
}

/* ---- Plans that gr_plan_finish cannot have made ---------------------------------------------- */
/* Takes each dependency away in turn: every one is needed, as long as no slot takes a message from
 * the same rank twice in a row: then who reads it waits for the reader before it as well. */
static void check_each_dependency(gr_coll coll, const char *name, int n, int shards)
{
    plans_world w;
    plans_open(&w, coll, name, n, shards, 0);
    for (int rank = 0; rank < n; rank++) {
        gr_plan *plan = &w.plans[rank];
        for (uint32_t i = 0; i < plan->step_count; i++) {
            gr_step *step = &plan->steps[i];
            for (uint32_t k = 0; k < step->after_count; k++) {
                uint32_t *taken = &plan->after[step->after_first + k];
                uint32_t *last = &plan->after[step->after_first + --step->after_count];
                uint32_t kept = *taken;
                *taken = *last;
                if (plans_verify(&w, false, -1) != GR_E_BUG || !strstr(w.diag.text, "a race")) {
                    fail_msg("%s, rank %d, step %u does not need to wait for step %u", name, rank,
                             i, kept);
                }
                *last = *taken;
                *taken = kept;
                step->after_count++;
            }
        }
    }
    assert_int_equal(plans_verify(&w, false, -1), GR_OK);
    plans_close(&w);
}

static void test_every_derived_dependency_is_needed(void **unused)
{
    (void)unused;
    check_each_dependency(GR_COLL_ALLREDUCE, "direct", 4, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "direct", 3, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "ring", 4, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "tree", 4, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "recursive-doubling", 3, 3);
    check_each_dependency(GR_COLL_ALLREDUCE, "double-tree", 6, 6);
    check_each_dependency(GR_COLL_REDUCE_SCATTER, "recursive-halving", 5, 5);
    check_each_dependency(GR_COLL_ALLTOALL, "pairwise", 4, 4);
    check_each_dependency(GR_COLL_ALLTOALL, "bruck", 5, 5);
    check_each_dependency(GR_COLL_GATHER, "binomial", 4, 4);
    check_each_dependency(GR_COLL_BARRIER, "dissemination", 5, 5);
}

static void test_a_race_is_named(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 2, 2, 0);
    uint32_t at = plans_find_step(&w, 1, GR_STEP_RECV, 1); /* the result overwrites what was sent */
    w.plans[1].steps[at].after_count = 0;
    assert_refused(&w, true, 1, at, "a race: it overwrites what step 0 still reads");
}

static void test_malformed_plans(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[1].steps[0].a.slot = 5;
    assert_refused(&w, true, 1, 0, "outside the plan's");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[1].steps[0].peer = 1;
    assert_refused(&w, true, 1, 0, "rank 1 is no peer of rank 1");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    uint32_t at = plans_find_step(&w, 2, GR_STEP_REDUCE, 0);
    w.plans[2].after[w.plans[2].steps[at].after_first] = at;
    assert_refused(&w, true, 2, at, "which is not earlier");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    at = plans_find_step(&w, 0, GR_STEP_RECV, 0);
    w.plans[0].steps[at].last_reader = -1;
    assert_refused(&w, true, 0, at, "last reader");

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    at = plans_find_step(&w, 1, GR_STEP_SEND, 3);
    w.plans[1].steps[at].message++;
    assert_int_equal(plans_verify(&w, true, -1), GR_E_BUG);
    assert_non_null(strstr(w.diag.text, "is numbered"));
    plans_close(&w);

    plans_open(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[2].shape.shards = 4;
    assert_refused(&w, true, 2, -1, "not that of rank 0's plan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lost_block),
        cmocka_unit_test(test_a_block_added_twice),
        cmocka_unit_test(test_a_block_doubled_again_and_again),
        cmocka_unit_test(test_wrong_order_of_operands),
        cmocka_unit_test(test_deadlock_of_two_who_wait_for_each_other),
        cmocka_unit_test(test_deadlock_inside_one_link),
        cmocka_unit_test(test_deadlock_of_two_views),
        cmocka_unit_test(test_unmatched_messages),
        cmocka_unit_test(test_reading_what_nobody_wrote),
        cmocka_unit_test(test_blocks_in_the_wrong_place),
        cmocka_unit_test(test_a_missing_result),
        cmocka_unit_test(test_a_view_overwritten),
        cmocka_unit_test(test_barriers_that_do_not_hold),
        cmocka_unit_test(test_writing_to_an_input),
        cmocka_unit_test(test_blocks_that_the_caller_has_not),
        cmocka_unit_test(test_a_contribution_that_is_not_kept),
        cmocka_unit_test(test_a_root_without_everything),
        cmocka_unit_test(test_blocks_of_the_wrong_pair),
        cmocka_unit_test(test_a_host_left_out),
        cmocka_unit_test(test_every_derived_dependency_is_needed),
        cmocka_unit_test(test_a_race_is_named),
        cmocka_unit_test(test_malformed_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
