/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm proved for 1 to 64 ranks; wrong plans refused, each with the sentence that it
 * deserves; and the verifier itself held against runs in random order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/verify.h"

enum { WORLD_MAX = 64, BROKEN_PLANS = 3000, SCHEDULES = 3 };

/* The plans of all ranks. */
typedef struct world {
    gr_plan plans[WORLD_MAX];
    int size;
    const gr_algorithm *algorithm;
    gr_diag diag;
} world;

/* Which ranks are in place. */
typedef enum placing { IN_PLACE, OUT_OF_PLACE, MIXED, PLACINGS } placing;

static gr_plan_shape shape_of_rank(const gr_plan_shape *of_all, int rank, placing where)
{
    gr_plan_shape shape = *of_all;
    shape.rank = rank;
    shape.out_of_place = where == OUT_OF_PLACE || (where == MIXED && rank % 3 != 1);
    return shape;
}

static void open_shaped(world *w, const gr_algorithm *algorithm, const gr_plan_shape *of_all,
                        placing where)
{
    w->algorithm = algorithm;
    w->size = of_all->world_size;
    for (int rank = 0; rank < w->size; rank++) {
        gr_plan_shape shape = shape_of_rank(of_all, rank, where);
        assert_true(algorithm->fits(&shape));
        gr_plan_init(&w->plans[rank], &shape);
        algorithm->plan(&shape, &w->plans[rank]);
        assert_int_equal(gr_plan_finish(&w->plans[rank]), GR_OK);
    }
}

static void open_world(world *w, gr_coll coll, const char *name, int size, int shards, int root)
{
    const gr_algorithm *algorithm = gr_algorithm_find(coll, name);
    gr_plan_shape shape = {.coll = coll, .world_size = size, .shards = shards, .root = root};
    assert_non_null(algorithm);
    open_shaped(w, algorithm, &shape, IN_PLACE);
}

/* Plans of two or more ranks without any step yet. */
static void open_blank(world *w, gr_coll coll, int size)
{
    w->algorithm = NULL;
    w->size = size;
    for (int rank = 0; rank < size; rank++) {
        gr_plan_shape shape = {.coll = coll, .rank = rank, .world_size = size, .shards = size};
        gr_plan_init(&w->plans[rank], &shape);
    }
}

static void finish_world(world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        assert_int_equal(gr_plan_finish(&w->plans[rank]), GR_OK);
    }
}

static void close_world(world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        gr_plan_fini(&w->plans[rank]);
    }
}

static gr_status verify(world *w, bool canonical, long max_blocks)
{
    memset(&w->diag, 0, sizeof w->diag);
    return gr_plan_verify(w->plans, w->size, canonical, max_blocks, &w->diag);
}

/* ---- Every algorithm, every world size ------------------------------------------------------- */
static int log2_up(int n)
{
    int bits = 0;
    while (1 << bits < n) {
        bits++;
    }
    return bits;
}

typedef struct holdings {
    long least, most, all; /* contributions: of a rank, of all ranks */
} holdings;

static holdings holdings_of(int shards, int n)
{
    holdings h = {GR_SHARD_PARTIALS_MAX, 0, 0};
    for (int rank = 0; rank < n; rank++) {
        int first, count;
        gr_shard_range(shards, n, rank, &first, &count);
        long own = count > 0 ? gr_shard_partials(shards, n, rank) : 0;
        h.least = own < h.least ? own : h.least;
        h.most = own > h.most ? own : h.most;
        h.all += own;
    }
    return h;
}

static long larger(long a, long b)
{
    return a > b ? a : b;
}

/* The most members of a group of a power of two that one of the next smaller group has to tell. */
static long widest_step(int n)
{
    long widest = 0;
    for (int left = n; left & (left - 1); left &= left - 1) {
        int small = left & -left;
        int rest = left ^ small;
        widest = larger(widest, (rest & -rest) / small);
    }
    return widest;
}

/* Each block goes as many ways as its distance has bits. */
static long bits_below(int n)
{
    long bits = 0;
    for (int distance = 1; distance < n; distance++) {
        bits += __builtin_popcount((unsigned)distance);
    }
    return bits;
}

/* What the theory allows a rank to send and to receive, in blocks. */
static long bound(const gr_algorithm *algorithm, int n, int shards)
{
    holdings h = holdings_of(shards, n);
    long to_one = larger(h.most * (n - 1), h.all - h.least);
    int power = 1 << (log2_up(n + 1) - 1);
    const struct {
        gr_coll coll;
        const char *name;
        long blocks;
    } bounds[] = {
        {GR_COLL_ALLREDUCE, "direct", to_one + n - 1},
        {GR_COLL_ALLREDUCE, "halving-doubling", 2 * power - (power == n ? 2 : 0)},
        {GR_COLL_ALLREDUCE, "recursive-doubling", log2_up(power) + widest_step(n) + 1},
        /* Hosts have bounds of their own, see there; without any it is as direct. */
        {GR_COLL_ALLREDUCE, "hierarchical", to_one + n - 1},
        {GR_COLL_ALLREDUCE, "hierarchical-any-order", 2 * (n - 1)},
        {GR_COLL_REDUCE_SCATTER, "hierarchical", n - 1},
        {GR_COLL_REDUCE_SCATTER, "hierarchical-any-order", n - 1},
        {GR_COLL_ALLGATHER, "hierarchical", n - 1},
        {GR_COLL_BROADCAST, "hierarchical", (long)n * (n - 1)}, /* n blocks */
        {GR_COLL_REDUCE, "hierarchical", 2 * (n - 1)},
        {GR_COLL_REDUCE, "hierarchical-any-order", 2 * (n - 1)},
        {GR_COLL_ALLREDUCE, "segmented-ring", 2 * 4 * (n - 1)},
        {GR_COLL_ALLREDUCE, "double-tree", 2 * 3},
        {GR_COLL_REDUCE_SCATTER, "recursive-halving", power == n ? n - 1 : n + log2_up(n)},
        {GR_COLL_ALLGATHER, "recursive-doubling", power == n ? n - 1 : n + log2_up(n)},
        {GR_COLL_ALLGATHER, "bruck", n - 1},
        {GR_COLL_BROADCAST, "chain", 1},
        {GR_COLL_BROADCAST, "double-tree", 2},
        {GR_COLL_REDUCE, "chain", 1},
        {GR_COLL_REDUCE, "double-tree", 3},
        {GR_COLL_GATHER, "binomial", n - 1},
        {GR_COLL_SCATTER, "binomial", n - 1},
        {GR_COLL_ALLTOALL, "bruck", bits_below(n)},
        {GR_COLL_ALLREDUCE, "tree", h.all == n ? log2_up(n) + 1 : h.all + log2_up(n)},
        {GR_COLL_ALLREDUCE, "gather", to_one},
        {GR_COLL_ALLREDUCE, "ring", 2 * (n - 1)},
        {GR_COLL_REDUCE_SCATTER, "direct", n - 1},
        {GR_COLL_REDUCE_SCATTER, "ring", n - 1},
        {GR_COLL_ALLGATHER, "direct", n - 1},
        {GR_COLL_ALLGATHER, "ring", n - 1},
        {GR_COLL_BROADCAST, "binomial", log2_up(n)},
        {GR_COLL_BROADCAST, "direct", n - 1},
        {GR_COLL_BARRIER, "dissemination", 0},
        {GR_COLL_REDUCE, "direct", n - 1},
        {GR_COLL_REDUCE, "binomial", log2_up(n)},
        {GR_COLL_GATHER, "direct", n - 1},
        {GR_COLL_SCATTER, "direct", n - 1},
        {GR_COLL_ALLTOALL, "pairwise", n - 1},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        if (bounds[i].coll == algorithm->coll && strcmp(bounds[i].name, algorithm->name) == 0) {
            return n == 1 ? 0 : bounds[i].blocks;
        }
    }
    fail_msg("%s %s: no bound on what it sends", gr_coll_name(algorithm->coll), algorithm->name);
    return 0;
}

static void prove(const gr_algorithm *algorithm, int n, int shards, int root, placing where)
{
    world w;
    gr_plan_shape shape = {
        .coll = algorithm->coll, .world_size = n, .shards = shards, .root = root, .uneven = true};
    if (!algorithm->fits(&shape)) {
        shape.uneven = false;
    }
    if (!algorithm->fits(&shape)) {
        return;
    }
    open_shaped(&w, algorithm, &shape, where);
    long most = bound(algorithm, n, shards);
    if (verify(&w, algorithm->canonical, most) != GR_OK) {
        fail_msg("%s, %d ranks, %d shards, root %d, placing %d: %s", algorithm->name, n, shards,
                 root, (int)where, w.diag.text);
    }
    close_world(&w);
}

static bool is_message(gr_coll coll)
{
    return coll == GR_COLL_SEND || coll == GR_COLL_RECV;
}

static bool has_root(gr_coll coll)
{
    return coll == GR_COLL_BROADCAST || coll == GR_COLL_REDUCE || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER;
}

static void test_every_algorithm_for_every_world_size(void **unused)
{
    (void)unused;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int n = 1; n <= WORLD_MAX && !is_message(at->coll); n++) {
            const int shards[] = {
                n, 2 * n,       8,   1 << log2_up(n), 2 << log2_up(n), n + 1, 3 * n + 1, 2 * n - 1,
                1, (n + 1) / 2, 1000};
            size_t count = at->coll == GR_COLL_ALLREDUCE ? sizeof shards / sizeof shards[0] : 1;
            for (size_t i = 0; i < count; i++) {
                prove(at, n, shards[i], 0, (placing)((i + (size_t)n) % PLACINGS));
            }
            prove(at, n, n, n / 2, IN_PLACE);
            prove(at, n, n, n - 1, OUT_OF_PLACE);
            prove(at, n, n, n / 3, MIXED);
        }
    }
}

static void test_every_root(void **unused)
{
    (void)unused;
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int n = 1; n <= WORLD_MAX && has_root(at->coll); n += n < 17 ? 1 : 9) {
            for (int root = 0; root < n; root++) {
                prove(at, n, n, root, (placing)(root % PLACINGS));
            }
        }
    }
}

/* Every rank has one partner; one of each pair sends. */
static void test_messages_between_pairs(void **unused)
{
    (void)unused;
    for (int where = 0; where < PLACINGS; where++) {
        world w = {.size = 6};
        for (int rank = 0; rank < w.size; rank++) {
            bool sends = (rank < 3) == (where % 2 == 0);
            gr_plan_shape all = {.coll = sends ? GR_COLL_SEND : GR_COLL_RECV,
                                 .world_size = w.size,
                                 .shards = w.size,
                                 .root = (rank + 3) % 6};
            gr_plan_shape shape = shape_of_rank(&all, rank, (placing)where);
            w.algorithm = gr_algorithm_find(shape.coll, "direct");
            assert_true(w.algorithm->fits(&shape));
            gr_plan_init(&w.plans[rank], &shape);
            w.algorithm->plan(&shape, &w.plans[rank]);
        }
        finish_world(&w);
        assert_int_equal(verify(&w, true, 1), GR_OK);
        w.plans[where].steps[0].peer = (where + 4) % 6;
        finish_world(&w);
        assert_int_equal(verify(&w, true, 1), GR_E_BUG);
        close_world(&w);
    }
}

/* The bounds are not idle: with one block less every one of these fails. */
static void test_bounds_are_tight(void **unused)
{
    (void)unused;
    static const struct {
        gr_coll coll;
        const char *name;
    } exact[] = {
        {GR_COLL_ALLREDUCE, "direct"},
        {GR_COLL_ALLREDUCE, "ring"},
        {GR_COLL_ALLREDUCE, "halving-doubling"},
        {GR_COLL_REDUCE_SCATTER, "direct"},
        {GR_COLL_REDUCE_SCATTER, "ring"},
        {GR_COLL_ALLGATHER, "direct"},
        {GR_COLL_ALLGATHER, "ring"},
        {GR_COLL_BROADCAST, "binomial"},
        {GR_COLL_ALLREDUCE, "gather"},
    };
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        world w;
        open_world(&w, exact[i].coll, exact[i].name, 8, 8, 0);
        assert_int_equal(verify(&w, false, bound(w.algorithm, 8, 8)), GR_OK);
        assert_int_equal(verify(&w, false, bound(w.algorithm, 8, 8) - 1), GR_E_BUG);
        assert_non_null(strstr(w.diag.text, "blocks, where"));
        close_world(&w);
    }
}

static void test_ring_is_complete_but_not_canonical(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLREDUCE, "ring", 3, 3, 0);
    assert_int_equal(verify(&w, false, -1), GR_OK);
    assert_int_equal(verify(&w, true, -1), GR_E_BUG);
    assert_non_null(strstr(w.diag.text, "order of the shard tree"));
    close_world(&w);
}

/* ---- Wrong plans ----------------------------------------------------------------------------- */
/* Refused, with a sentence that names this rank, this step (-1: none) and what is wrong. */
static void assert_refused(world *w, bool canonical, int rank, long step, const char *words)
{
    char text[64];
    assert_int_equal(verify(w, canonical, -1), GR_E_BUG);
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
    close_world(w);
}

static uint32_t find_step(const world *w, int rank, gr_step_kind kind, int which)
{
    const gr_plan *plan = &w->plans[rank];
    for (uint32_t i = 0; i < plan->step_count; i++) {
        if (plan->steps[i].kind == kind && which-- == 0) {
            return i;
        }
    }
    fail_msg("rank %d has no such step", rank);
    return 0;
}

static void drop_step(gr_plan *plan, uint32_t index)
{
    memmove(&plan->steps[index], &plan->steps[index + 1],
            (plan->step_count - index - 1) * sizeof *plan->steps);
    plan->step_count--;
}

static void test_a_lost_block(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLREDUCE, "direct", 4, 4, 0);
    uint32_t at = find_step(&w, 1, GR_STEP_REDUCE, 0);
    w.plans[1].steps[at].kind = GR_STEP_COPY; /* the other operand is forgotten */
    finish_world(&w);
    /* Block 1 is wrong everywhere; rank 0 is looked at first, where the block came by a receive. */
    assert_refused(&w, true, 0, find_step(&w, 0, GR_STEP_RECV, 5),
                   "lacks the contribution of rank 1");
}

static void test_a_block_added_twice(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_REDUCE_SCATTER, "ring", 3, 3, 0);
    gr_step last = w.plans[2].steps[find_step(&w, 2, GR_STEP_REDUCE, 1)];
    gr_plan_reduce(&w.plans[2], last.dst, last.a, last.b);
    finish_world(&w);
    uint32_t at = find_step(&w, 2, GR_STEP_REDUCE, 2);
    assert_refused(&w, false, 2, at, "more than once");
}

static void test_a_block_doubled_again_and_again(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_REDUCE_SCATTER, "direct", 3, 3, 0);
    for (int i = 0; i < 200; i++) { /* 2^200 contributions must not be walked one by one */
        gr_plan_reduce(&w.plans[0], gr_user(0, 0), gr_user(0, 0), gr_user(0, 0));
    }
    finish_world(&w);
    assert_refused(&w, true, 0, w.plans[0].step_count - 1, "more than once");
}

static void test_wrong_order_of_operands(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    uint32_t at = find_step(&w, 2, GR_STEP_REDUCE, 1);
    gr_step *step = &w.plans[2].steps[at];
    gr_operand a = step->a;
    step->a = step->b;
    step->b = a;
    finish_world(&w);
    assert_int_equal(verify(&w, false, -1), GR_OK); /* the same numbers, in another order */
    assert_refused(&w, true, 2, w.plans[2].step_count - 1, "order of the shard tree");
}

static void test_deadlock_of_two_who_wait_for_each_other(void **unused)
{
    (void)unused;
    world w;
    open_blank(&w, GR_COLL_ALLGATHER, 2);
    for (int rank = 0; rank < 2; rank++) {
        gr_plan_recv(&w.plans[rank], 1 - rank, gr_user(0, 1 - rank));
        gr_plan_send(&w.plans[rank], 1 - rank, gr_user(0, 1 - rank)); /* what it has yet to get */
    }
    finish_world(&w);
    assert_refused(&w, true, 0, 0, "deadlock: it waits for step");
}

/* The second message waits in the link behind the first, whose reader waits for the second. */
static void test_deadlock_inside_one_link(void **unused)
{
    (void)unused;
    world w;
    open_blank(&w, GR_COLL_ALLREDUCE, 2);
    gr_plan_send(&w.plans[0], 1, gr_user(0, 0));
    gr_plan_send(&w.plans[0], 1, gr_user(0, 0));
    gr_plan_recv(&w.plans[1], 0, gr_scratch(0, 0));
    gr_plan_recv(&w.plans[1], 0, gr_scratch(1, 0));
    gr_plan_reduce(&w.plans[1], gr_user(0, 0), gr_scratch(0, 0), gr_scratch(1, 0));
    finish_world(&w);
    assert_refused(&w, false, 0, 0, "deadlock");
}

/* Each adds what it sees in the other's memory to its own, in place: neither may begin. */
static void test_deadlock_of_two_views(void **unused)
{
    (void)unused;
    world w;
    open_blank(&w, GR_COLL_ALLREDUCE, 2);
    for (int rank = 0; rank < 2; rank++) {
        gr_operand own = gr_user(0, 0);
        gr_operand other = gr_scratch(0, 0);
        gr_plan_send(&w.plans[rank], 1 - rank, own);
        gr_plan_recv(&w.plans[rank], 1 - rank, other);
        gr_plan_reduce(&w.plans[rank], own, rank == 0 ? own : other, rank == 0 ? other : own);
    }
    finish_world(&w);
    assert_refused(&w, true, 0, 0, "deadlock");
}

/* Rank 1 passes a message on and keeps it until an answer comes that rank 2 gives only after it has
 * sent the whole message back: with room for a part of it, the rest never arrives. */
static void test_deadlock_of_a_message_larger_than_its_window(void **unused)
{
    (void)unused;
    world w;
    open_blank(&w, GR_COLL_ALLREDUCE, 3);
    gr_plan_send(&w.plans[0], 1, gr_user(0, 0));
    gr_plan_recv(&w.plans[1], 0, gr_scratch(0, 0));
    gr_plan_send(&w.plans[1], 2, gr_scratch(0, 0));
    gr_plan_recv(&w.plans[1], 2, gr_scratch(1, 0));
    gr_plan_recv(&w.plans[1], 2, gr_scratch(2, 0));
    gr_plan_reduce(&w.plans[1], gr_user(0, 0), gr_scratch(0, 0), gr_scratch(2, 0));
    gr_plan_recv(&w.plans[2], 1, gr_user(0, 0));
    gr_plan_send(&w.plans[2], 1, gr_user(0, 0));
    gr_plan_send(&w.plans[2], 1, gr_user(0, 0));
    finish_world(&w);
    assert_refused(&w, false, 0, 0, "deadlock");
}

static void test_unmatched_messages(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLREDUCE, "ring", 4, 4, 0);
    drop_step(&w.plans[3], find_step(&w, 3, GR_STEP_SEND, 5));
    finish_world(&w);
    assert_refused(&w, false, 0, find_step(&w, 0, GR_STEP_RECV, 5), "it never comes");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 4, 4, 0);
    gr_plan_send(&w.plans[2], 1, gr_user(0, 0));
    uint32_t last = w.plans[2].step_count - 1;
    finish_world(&w);
    assert_refused(&w, true, 2, last, "nobody takes it");

    open_world(&w, GR_COLL_BROADCAST, "direct", 2, 2, 0);
    w.plans[1].steps[0].kind = GR_STEP_AWAIT;
    finish_world(&w);
    assert_refused(&w, true, 1, 0, "of the other kind");
}

static void test_reading_what_nobody_wrote(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLGATHER, "ring", 4, 4, 0);
    w.plans[2].steps[0].a.block = 0; /* its first gift is rank 0's block, not yet here */
    finish_world(&w);
    assert_refused(&w, true, 2, 0, "reads what nobody wrote");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 4, 2, 0);
    gr_plan_reduce(&w.plans[3], gr_scratch(9, 0), gr_scratch(8, 0), gr_user(0, 0));
    finish_world(&w);
    assert_refused(&w, true, 3, w.plans[3].step_count - 1, "reads what nobody wrote");
}

static void test_blocks_in_the_wrong_place(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLGATHER, "direct", 4, 4, 0);
    uint32_t at = find_step(&w, 1, GR_STEP_RECV, 0);
    w.plans[1].steps[at].dst.block = 3; /* rank 0 sends block 0 */
    finish_world(&w);
    assert_refused(&w, true, 1, at, "puts block 0 in the place of block 3");

    open_world(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    at = find_step(&w, 1, GR_STEP_REDUCE, 0);
    w.plans[1].steps[at].b.block = 2;
    finish_world(&w);
    assert_refused(&w, true, 1, at, "adds block 2 to block 1");
}

static void test_a_missing_result(void **unused)
{
    (void)unused;
    world w;
    open_blank(&w, GR_COLL_BROADCAST, 2);
    finish_world(&w);
    assert_refused(&w, true, 1, -1, "nobody wrote block 0 of the result");
}

static void test_a_view_overwritten(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_REDUCE_SCATTER, "direct", 4, 4, 0);
    uint32_t at = find_step(&w, 3, GR_STEP_REDUCE, 0);
    w.plans[3].steps[at].dst = w.plans[3].steps[at].a;
    finish_world(&w);
    assert_refused(&w, true, 3, at, "view of a peer's memory");
}

static void test_barriers_that_do_not_hold(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_BARRIER, "dissemination", 5, 5, 0);
    for (int rank = 0; rank < 5; rank++) {
        w.plans[rank].step_count -= 2; /* the last round */
    }
    finish_world(&w);
    assert_refused(&w, true, 0, -1, "it may leave the barrier before rank 1");

    /* Each tells the second before it has heard the first: all signals go out at once. */
    open_blank(&w, GR_COLL_BARRIER, 4);
    for (int rank = 0; rank < 4; rank++) {
        gr_plan_signal(&w.plans[rank], (rank + 1) % 4);
        gr_plan_signal(&w.plans[rank], (rank + 2) % 4);
        gr_plan_await(&w.plans[rank], (rank + 3) % 4);
        gr_plan_await(&w.plans[rank], (rank + 2) % 4);
    }
    finish_world(&w);
    assert_refused(&w, true, 0, -1, "it may leave the barrier before rank 1");
}

/* ---- Plans that gr_plan_finish cannot have made ---------------------------------------------- */
/* Takes each dependency away in turn: every one is needed. */
static void check_each_dependency(gr_coll coll, const char *name, int n, int shards)
{
    world w;
    open_world(&w, coll, name, n, shards, 0);
    for (int rank = 0; rank < n; rank++) {
        gr_plan *plan = &w.plans[rank];
        for (uint32_t i = 0; i < plan->step_count; i++) {
            gr_step *step = &plan->steps[i];
            for (uint32_t k = 0; k < step->after_count; k++) {
                uint32_t *taken = &plan->after[step->after_first + k];
                uint32_t *last = &plan->after[step->after_first + --step->after_count];
                uint32_t kept = *taken;
                *taken = *last;
                if (verify(&w, false, -1) != GR_E_BUG || !strstr(w.diag.text, "a race")) {
                    fail_msg("%s, rank %d, step %u does not need to wait for step %u", name, rank,
                             i, kept);
                }
                *last = *taken;
                *taken = kept;
                step->after_count++;
            }
        }
    }
    assert_int_equal(verify(&w, false, -1), GR_OK);
    close_world(&w);
}

static void test_every_derived_dependency_is_needed(void **unused)
{
    (void)unused;
    check_each_dependency(GR_COLL_ALLREDUCE, "direct", 4, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "direct", 3, 7);
    check_each_dependency(GR_COLL_ALLREDUCE, "ring", 4, 4);
    check_each_dependency(GR_COLL_ALLREDUCE, "tree", 4, 4);
    check_each_dependency(GR_COLL_BARRIER, "dissemination", 5, 5);
}

static void test_a_race_is_named(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLREDUCE, "direct", 2, 2, 0);
    uint32_t at = find_step(&w, 1, GR_STEP_RECV, 1); /* the result overwrites what was sent */
    w.plans[1].steps[at].after_count = 0;
    assert_refused(&w, true, 1, at, "a race: it overwrites what step 0 still reads");
}

static void test_malformed_plans(void **unused)
{
    (void)unused;
    world w;
    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[1].steps[0].a.slot = 5;
    assert_refused(&w, true, 1, 0, "outside the plan's");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[1].steps[0].peer = 1;
    assert_refused(&w, true, 1, 0, "rank 1 is no peer of rank 1");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    uint32_t at = find_step(&w, 2, GR_STEP_REDUCE, 0);
    w.plans[2].after[w.plans[2].steps[at].after_first] = at;
    assert_refused(&w, true, 2, at, "which is not earlier");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    at = find_step(&w, 0, GR_STEP_RECV, 0);
    w.plans[0].steps[at].last_reader = -1;
    assert_refused(&w, true, 0, at, "last reader");

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    at = find_step(&w, 1, GR_STEP_SEND, 3);
    w.plans[1].steps[at].message++;
    assert_int_equal(verify(&w, true, -1), GR_E_BUG);
    assert_non_null(strstr(w.diag.text, "is numbered"));
    close_world(&w);

    open_world(&w, GR_COLL_ALLREDUCE, "direct", 3, 3, 0);
    w.plans[2].shape.shards = 4;
    assert_refused(&w, true, 2, -1, "not that of rank 0's plan");
}

/* ---- The verifier against random runs -------------------------------------------------------- */
/* A second, simple meaning of plans: numbers instead of expressions, any step that may run runs.
 * The sum of two numbers depends on their order, so that a wrong one is seen. */
typedef struct run {
    const world *w;
    uint64_t *values[WORLD_MAX]; /* by place */
    bool *done[WORLD_MAX];
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

static uint64_t add(uint64_t a, uint64_t b)
{
    return mix(a * 3 + b * 5 + 1);
}

static uint64_t *value_at(const run *r, int rank, gr_operand operand)
{
    const gr_plan *plan = &r->w->plans[rank];
    size_t place = operand.space == GR_SPACE_USER
                       ? (size_t)operand.slot * plan->blocks + operand.block
                       : (size_t)plan->user_slots * plan->blocks + operand.slot;
    return &r->values[rank][place];
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
            add(*value_at(r, rank, step->a), *value_at(r, rank, step->b));
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

static uint64_t expected_sum(gr_tree_range node, int *rank, int *slot, const gr_plan_shape *shape,
                             int block)
{
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int first, count;
    gr_shard_range(shape->shards, shape->world_size, *rank, &first, &count);
    int held = gr_tree_cover(shape->shards, first, count, ranges);
    if (*slot == held) {
        ++*rank;
        *slot = 0;
        return expected_sum(node, rank, slot, shape, block);
    }
    if (ranges[*slot].first == node.first && ranges[*slot].count == node.count) {
        return contribution(*rank, (*slot)++, block);
    }
    int left = gr_tree_left_count(node.count);
    uint64_t a = expected_sum((gr_tree_range){node.first, left}, rank, slot, shape, block);
    uint64_t b = expected_sum((gr_tree_range){node.first + left, node.count - left}, rank, slot,
                              shape, block);
    return add(a, b);
}

static bool results_right(const run *r)
{
    const gr_plan_shape *shape = &r->w->plans[0].shape;
    for (int block = 0; block < (int)r->w->plans[0].blocks; block++) {
        int holder = 0, slot = 0;
        uint64_t expected;
        if (shape->coll == GR_COLL_ALLGATHER) {
            expected = contribution(block, 0, block);
        } else if (shape->coll == GR_COLL_BROADCAST) {
            expected = contribution(shape->root, 0, block);
        } else {
            expected =
                expected_sum((gr_tree_range){0, shape->shards}, &holder, &slot, shape, block);
        }
        for (int rank = 0; rank < r->w->size; rank++) {
            bool due = shape->coll != GR_COLL_REDUCE_SCATTER || rank == block;
            if (due && *value_at(r, rank, gr_user(0, block)) != expected) {
                return false;
            }
        }
    }
    return true;
}

static void fill_values(run *r, int rank)
{
    const gr_plan *plan = &r->w->plans[rank];
    for (int slot = 0; slot < plan->user_slots; slot++) {
        for (int block = 0; block < (int)plan->blocks; block++) {
            *value_at(r, rank, gr_user(slot, block)) = contribution(rank, slot, block);
        }
    }
}

/* Runs the plans in a random order; false if they stop or end with a wrong result. */
static bool run_randomly(const world *w, uint64_t seed)
{
    run r = {.w = w, .random = seed};
    uint32_t left = 0;
    for (int rank = 0; rank < w->size; rank++) {
        const gr_plan *plan = &w->plans[rank];
        size_t places = (size_t)plan->user_slots * plan->blocks + plan->scratch_slots;
        r.values[rank] = test_calloc(places + 1, sizeof(uint64_t));
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
        operand->space ^= 1;
        break;
    }
}

/* One random change to one rank's plan. */
static void break_plan(world *w, uint64_t *random)
{
    gr_plan *plan = &w->plans[next_random(random) % (uint64_t)w->size];
    uint32_t index = (uint32_t)(next_random(random) % (uint64_t)plan->step_count);
    gr_step *step = &plan->steps[index];
    gr_step kept = *step;
    uint64_t more = next_random(random);
    switch (next_random(random) % 8) {
    case 0:
        drop_step(plan, index);
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

static void test_what_is_accepted_runs_right_in_any_order(void **unused)
{
    (void)unused;
    static const struct {
        gr_coll coll;
        const char *name;
        int world_size, shards;
    } pool[] = {
        {GR_COLL_ALLREDUCE, "direct", 3, 3},
        {GR_COLL_ALLREDUCE, "direct", 3, 7},
        {GR_COLL_ALLREDUCE, "tree", 5, 5},
        {GR_COLL_ALLREDUCE, "gather", 3, 4},
        {GR_COLL_ALLREDUCE, "halving-doubling", 4, 4},
        {GR_COLL_REDUCE_SCATTER, "direct", 4, 4},
        {GR_COLL_ALLGATHER, "ring", 3, 3},
        {GR_COLL_BROADCAST, "binomial", 5, 5},
        {GR_COLL_ALLREDUCE, "direct", 4, 2},
        {GR_COLL_ALLREDUCE, "tree", 4, 11},
    };
    uint64_t random = 5;
    int accepted = 0;
    for (int i = 0; i < BROKEN_PLANS; i++) {
        size_t pick = (size_t)i % (sizeof pool / sizeof pool[0]);
        world w;
        open_world(&w, pool[pick].coll, pool[pick].name, pool[pick].world_size, pool[pick].shards,
                   0);
        if (i >= 50) { /* the first are as they should be */
            break_plan(&w, &random);
        }
        bool good = verify(&w, true, -1) == GR_OK;
        accepted += good;
        assert_true(good || i >= 50);
        for (int k = 0; good && k < SCHEDULES; k++) {
            if (!run_randomly(&w, next_random(&random))) {
                fail_msg("the verifier accepts a broken plan: %s, number %d", pool[pick].name, i);
            }
        }
        close_world(&w);
    }
    assert_in_range(accepted, 50, BROKEN_PLANS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_for_every_world_size),
        cmocka_unit_test(test_every_root),
        cmocka_unit_test(test_messages_between_pairs),
        cmocka_unit_test(test_bounds_are_tight),
        cmocka_unit_test(test_ring_is_complete_but_not_canonical),
        cmocka_unit_test(test_a_lost_block),
        cmocka_unit_test(test_a_block_added_twice),
        cmocka_unit_test(test_a_block_doubled_again_and_again),
        cmocka_unit_test(test_wrong_order_of_operands),
        cmocka_unit_test(test_deadlock_of_two_who_wait_for_each_other),
        cmocka_unit_test(test_deadlock_inside_one_link),
        cmocka_unit_test(test_deadlock_of_two_views),
        cmocka_unit_test(test_deadlock_of_a_message_larger_than_its_window),
        cmocka_unit_test(test_unmatched_messages),
        cmocka_unit_test(test_reading_what_nobody_wrote),
        cmocka_unit_test(test_blocks_in_the_wrong_place),
        cmocka_unit_test(test_a_missing_result),
        cmocka_unit_test(test_a_view_overwritten),
        cmocka_unit_test(test_barriers_that_do_not_hold),
        cmocka_unit_test(test_every_derived_dependency_is_needed),
        cmocka_unit_test(test_a_race_is_named),
        cmocka_unit_test(test_malformed_plans),
        cmocka_unit_test(test_what_is_accepted_runs_right_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
