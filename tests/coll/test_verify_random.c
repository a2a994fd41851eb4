/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier held against runs in random order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support_plans.h"

enum { GOOD_PLANS = 400, BROKEN_PLANS = 20000, SCHEDULES = 3 };

/* A second, simple meaning of plans: numbers instead of expressions, any step that may run runs.
 * The sum of two numbers depends on their order, so that a wrong one is seen. */
typedef struct run {
    const plans_world *w;
    uint64_t *values[PLANS_WORLD_MAX]; /* by place */
    bool *done[PLANS_WORLD_MAX];
    bool ordered; /* else sums do not depend on their order */
    uint64_t random;
} run;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t next_random(uint64_t *state)
{
    return mix(*state += 0x9e3779b97f4a7c15u);
}

static uint64_t contribution(int rank, int slot, int block)
{
    return mix((uint64_t)(rank * 1000003 + slot * 1009 + block + 1));
}

static uint64_t add(const run *r, uint64_t a, uint64_t b)
{
    return r->ordered ? mix(a * 3 + b * 5 + 1) : a + b;
}

static size_t places_of(const gr_plan *plan)
{
    return (size_t)(plan->user_slots + plan->input_slots) * plan->blocks + plan->scratch_slots;
}

static uint64_t *value_at(const run *r, int rank, gr_operand operand)
{
    const gr_plan *plan = &r->w->plans[rank];
    size_t inputs = (size_t)plan->user_slots * plan->blocks;
    size_t scratch = inputs + (size_t)plan->input_slots * plan->blocks;
    size_t at = (size_t)operand.slot * plan->blocks + operand.block;
    switch (operand.space) {
    case GR_SPACE_USER:
        return &r->values[rank][at];
    case GR_SPACE_INPUT:
        return &r->values[rank][inputs + at];
    default:
        return &r->values[rank][scratch + operand.slot];
    }
}

static bool ready(const run *r, int rank, uint32_t index)
{
    const gr_plan *plan = &r->w->plans[rank];
    const gr_step *step = &plan->steps[index];
    for (uint32_t i = 0; i < step->after_count; i++) {
        if (!r->done[rank][plan->after[step->after_first + i]]) {
            return false;
        }
    }
    return !r->done[rank][index];
}

/* The first message on the link that has not passed; GR_PLAN_STEPS_MAX if there is none. */
static uint32_t next_message(const run *r, int rank, int peer, gr_step_kind kind)
{
    const gr_plan *plan = &r->w->plans[rank];
    for (uint32_t i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].kind == kind && plan->steps[i].peer == peer && !r->done[rank][i]) {
            return i;
        }
    }
    return GR_PLAN_STEPS_MAX;
}

static bool try_step(run *r, int rank, uint32_t index)
{
    const gr_step *step = &r->w->plans[rank].steps[index];
    if (!ready(r, rank, index)) {
        return false;
    }
    if (step->kind == GR_STEP_REDUCE) {
        *value_at(r, rank, step->dst) =
            add(r, *value_at(r, rank, step->a), *value_at(r, rank, step->b));
    } else if (step->kind == GR_STEP_COPY) {
        *value_at(r, rank, step->dst) = *value_at(r, rank, step->a);
    } else if (step->kind == GR_STEP_RECV) {
        uint32_t sender = next_message(r, step->peer, rank, GR_STEP_SEND);
        if (next_message(r, rank, step->peer, GR_STEP_RECV) != index ||
            sender == GR_PLAN_STEPS_MAX || !ready(r, step->peer, sender)) {
            return false;
        }
        *value_at(r, rank, step->dst) =
            *value_at(r, step->peer, r->w->plans[step->peer].steps[sender].a);
        r->done[step->peer][sender] = true;
    } else {
        return false; /* a send goes with its receive */
    }
    r->done[rank][index] = true;
    return true;
}

static uint64_t expected_sum(const run *r, gr_tree_range node, int *rank, int *slot, int block)
{
    const gr_plan_shape *shape = &r->w->plans[0].shape;
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int first, count;
    gr_shard_range(shape->shards, shape->world_size, *rank, &first, &count);
    int held = gr_tree_cover(shape->shards, first, count, ranges);
    if (*slot == held) {
        ++*rank;
        *slot = 0;
        return expected_sum(r, node, rank, slot, block);
    }
    if (ranges[*slot].first == node.first && ranges[*slot].count == node.count) {
        return contribution(*rank, (*slot)++, block);
    }
    int left = gr_tree_left_count(node.count);
    uint64_t a = expected_sum(r, (gr_tree_range){node.first, left}, rank, slot, block);
    uint64_t b =
        expected_sum(r, (gr_tree_range){node.first + left, node.count - left}, rank, slot, block);
    return add(r, a, b);
}

/* What the result of a rank must be; false: it has none for this block. What a rank without a
 * result has in place must stay. */
static bool expected_value(const run *r, int rank, int block, uint64_t *value_out)
{
    const gr_plan_shape *shape = &r->w->plans[rank].shape;
    int holder = 0, slot = 0;
    switch (shape->coll) {
    case GR_COLL_GATHER:
        *value_out = contribution(block, 0, block);
        return rank == shape->root || (block == rank && !shape->out_of_place);
    case GR_COLL_ALLGATHER:
        *value_out = contribution(block, 0, block);
        return true;
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
        *value_out = contribution(shape->root, 0, block);
        return shape->coll == GR_COLL_BROADCAST || rank == block;
    case GR_COLL_ALLTOALL:
        *value_out = contribution(block, 0, rank);
        return true;
    case GR_COLL_REDUCE:
        if (rank != shape->root) {
            *value_out = contribution(rank, 0, block);
            return !shape->out_of_place;
        }
        break;
    default:
        break;
    }
    *value_out = expected_sum(r, (gr_tree_range){0, shape->shards}, &holder, &slot, block);
    return shape->coll != GR_COLL_REDUCE_SCATTER || rank == block;
}

static bool results_right(const run *r)
{
    for (int block = 0; block < (int)r->w->plans[0].blocks; block++) {
        for (int rank = 0; rank < r->w->size; rank++) {
            uint64_t expected;
            if (expected_value(r, rank, block, &expected) &&
                *value_at(r, rank, gr_user(0, block)) != expected) {
                return false;
            }
        }
    }
    return true;
}

static void fill_values(run *r, int rank)
{
    const gr_plan *plan = &r->w->plans[rank];
    for (size_t place = 0; place < places_of(plan); place++) {
        r->values[rank][place] = mix(place * 77 + (uint64_t)rank); /* nobody's */
    }
    int slots = plan->shape.out_of_place ? plan->input_slots : plan->user_slots;
    for (int slot = 0; slot < slots; slot++) {
        for (int block = 0; block < (int)plan->blocks; block++) {
            *value_at(r, rank, gr_contribution(plan, slot, block)) =
                contribution(rank, slot, block);
        }
    }
}

/* Runs the plans in a random order; false if they stop or end with a wrong result. */
static bool run_randomly(const plans_world *w, bool ordered, uint64_t seed)
{
    run r = {.w = w, .ordered = ordered, .random = seed};
    uint32_t left = 0;
    for (int rank = 0; rank < w->size; rank++) {
        const gr_plan *plan = &w->plans[rank];
        r.values[rank] = test_calloc(places_of(plan) + 1, sizeof(uint64_t));
        r.done[rank] = test_calloc((size_t)plan->step_count + 1, sizeof(bool));
        fill_values(&r, rank);
        for (uint32_t i = 0; i < plan->step_count; i++) {
            left += plan->steps[i].kind != GR_STEP_SEND;
        }
    }
    /* Ten thousand misses in a row: nothing can run any more. */
    for (int misses = 0; left > 0 && misses < 10000;) {
        int rank = (int)(next_random(&r.random) % (uint64_t)w->size);
        uint32_t count = w->plans[rank].step_count;
        bool ran =
            count > 0 && try_step(&r, rank, (uint32_t)(next_random(&r.random) % (uint64_t)count));
        misses = ran ? 0 : misses + 1;
        left -= ran;
    }
    bool right = left == 0 && results_right(&r);
    for (int rank = 0; rank < w->size; rank++) {
        test_free(r.values[rank]);
        test_free(r.done[rank]);
    }
    return right;
}

static void break_operand(gr_operand *operand, const gr_plan *plan, uint64_t random)
{
    switch (random % 3) {
    case 0:
        operand->block = (uint32_t)((random >> 8) % plan->blocks);
        break;
    case 1:
        operand->slot = (uint16_t)((random >> 8) % (uint64_t)(plan->scratch_slots + 1));
        break;
    default:
        operand->space = (uint8_t)((random >> 8) % 3);
        break;
    }
}

/* One random change to one rank's plan. */
static void break_plan(plans_world *w, uint64_t *random)
{
    gr_plan *plan = &w->plans[next_random(random) % (uint64_t)w->size];
    if (plan->step_count == 0) {
        plan->failed = GR_E_BUG;
        return;
    }
    uint32_t index = (uint32_t)(next_random(random) % (uint64_t)plan->step_count);
    gr_step *step = &plan->steps[index];
    gr_step kept = *step;
    uint64_t more = next_random(random);
    switch (next_random(random) % 8) {
    case 0:
        plans_drop_step(plan, index);
        break;
    case 1:
        gr_plan_copy(plan, step->dst, step->a);
        break;
    case 2:
        if (index + 1 < plan->step_count) {
            *step = step[1];
            step[1] = kept;
        }
        break;
    case 3:
        break_operand(&step->dst, plan, more);
        break;
    case 4:
        break_operand(&step->a, plan, more);
        break;
    case 5:
        step->a = step->b;
        step->b = kept.a;
        break;
    case 6:
        step->peer = (int32_t)(more % (uint64_t)w->size);
        break;
    default:
        if (step->after_count > 0) {
            step->after_count--; /* not to be finished again */
            return;
        }
        break;
    }
    if (gr_plan_finish(plan) != GR_OK) {
        plan->failed = GR_E_BUG;
    }
}

/* Any algorithm for a few ranks on up to three hosts. */
static void open_random(plans_world *w, size_t pick, uint64_t random, const gr_topology *topology)
{
    const gr_algorithm *algorithm = gr_algorithms;
    while (pick-- > 0) {
        algorithm = algorithm[1].name ? algorithm + 1 : gr_algorithms;
    }
    while (!algorithm->plan || algorithm->coll == GR_COLL_BARRIER) {
        algorithm = algorithm[1].name ? algorithm + 1 : gr_algorithms;
    }
    int n = 2 + (int)(random % 5);
    bool any_shards = algorithm->canonical && algorithm->coll == GR_COLL_ALLREDUCE;
    gr_plan_shape shape = {.coll = algorithm->coll,
                           .world_size = n,
                           .shards =
                               any_shards && random >> 8 & 1 ? 1 + (int)(random >> 9 & 15) : n,
                           .root = (int)((random >> 16) % (uint64_t)n),
                           .uneven = random >> 24 & 1,
                           .topology = random >> 25 & 1 ? topology : NULL};
    if (!algorithm->fits(&shape)) {
        shape.shards = n;
        shape.uneven = false;
    }
    plans_open_shaped(w, algorithm, &shape, (plans_placing)((random >> 32) % PLANS_PLACINGS));
}

static void test_what_is_accepted_runs_right_in_any_order(void **unused)
{
    (void)unused;
    static const int host_of[] = {0, 0, 0, 1, 2, 2}, local_rank[] = {0, 1, 2, 0, 0, 1},
                     local_size[] = {3, 1, 2};
    uint64_t random = 5;
    int accepted = 0;
    for (int i = 0; i < BROKEN_PLANS; i++) {
        plans_world w;
        uint64_t shape = next_random(&random);
        int n = 2 + (int)(shape % 5);
        int last_size[] = {n < 3 ? n : 3, 1, n - 4};
        const gr_topology topology = {n <= 3   ? 1
                                      : n == 4 ? 2
                                               : 3,
                                      host_of, local_rank, n == 6 ? local_size : last_size};
        open_random(&w, (size_t)i, shape, &topology);
        if (i >= GOOD_PLANS) { /* the first are as they should be */
            break_plan(&w, &random);
        }
        bool ordered = w.algorithm->canonical;
        bool good = plans_verify(&w, ordered, -1) == GR_OK;
        accepted += good;
        if (!good && i < GOOD_PLANS) {
            fail_msg("%s", w.diag.text);
        }
        for (int k = 0; good && k < SCHEDULES; k++) {
            if (!run_randomly(&w, ordered, next_random(&random))) {
                fail_msg("the verifier accepts a broken plan: %s %s, number %d",
                         gr_coll_name(w.algorithm->coll), w.algorithm->name, i);
            }
        }
        plans_close(&w);
    }
    /* Many changes change nothing: steps that may stand in any order, say. */
    assert_in_range(accepted, GOOD_PLANS, BROKEN_PLANS * 2 / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_accepted_runs_right_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
