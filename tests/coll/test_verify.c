/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm proved for 1 to 64 ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "coll/engine/schedule.h"
#include "long.h"
#include "sanitized.h"
#include "support_plans.h"

/* What the sanitizers look for is in the plans of fewer ranks as well. */
enum { WORLD_MAX = SANITIZED ? 20 : 33, WORLD_MAX_LONG = PLANS_WORLD_MAX };

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

/* The executor has a slice of a block for each scratch slot in use: memory grows with the peers. */
static void count_scratch(const plans_world *w)
{
    enum { SLOTS_A_PEER = 3 };
    for (int rank = 0; rank < w->size; rank++) {
        gr_schedule *schedule;
        assert_int_equal(gr_schedule_create(&w->plans[rank], &schedule, NULL), GR_OK);
        if (schedule->places > (uint32_t)(SLOTS_A_PEER * (w->size - 1))) {
            fail_msg("%s of %d ranks, rank %d: %u scratch slots", w->algorithm->name, w->size, rank,
                     schedule->places);
        }
        gr_schedule_destroy(schedule);
    }
}

static void prove(const gr_algorithm *algorithm, int n, int shards, int root, plans_placing where)
{
    plans_world w;
    gr_plan_shape shape = {
        .coll = algorithm->coll, .world_size = n, .shards = shards, .root = root, .uneven = true};
    if (!algorithm->fits(&shape)) {
        shape.uneven = false;
    }
    if (!algorithm->fits(&shape)) {
        return;
    }
    plans_open_shaped(&w, algorithm, &shape, where);
    long most = bound(algorithm, n, shards);
    if (plans_verify(&w, algorithm->canonical, most) != GR_OK) {
        fail_msg("%s, %d ranks, %d shards, root %d, placing %d: %s", algorithm->name, n, shards,
                 root, (int)where, w.diag.text);
    }
    count_scratch(&w);
    plans_close(&w);
}

static bool has_root(gr_coll coll)
{
    return coll == GR_COLL_BROADCAST || coll == GR_COLL_REDUCE || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER;
}

static void prove_sizes(int first, int last)
{
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int n = first; n <= last; n++) {
            const int shards[] = {
                n, 2 * n,       8,   1 << log2_up(n), 2 << log2_up(n), n + 1, 3 * n + 1, 2 * n - 1,
                1, (n + 1) / 2, 1000};
            size_t count = at->coll == GR_COLL_ALLREDUCE ? sizeof shards / sizeof shards[0] : 1;
            for (size_t i = 0; i < count; i++) {
                prove(at, n, shards[i], 0, (plans_placing)((i + (size_t)n) % PLANS_PLACINGS));
            }
            for (int where = 0; where < PLANS_PLACINGS; where++) {
                if (n < 24 || n % PLANS_PLACINGS == where) {
                    prove(at, n, n, n * (where + 1) / (PLANS_PLACINGS + 1), (plans_placing)where);
                }
            }
        }
    }
}

static void verify_every_algorithm_and_size_is_right(void **unused)
{
    (void)unused;
    prove_sizes(1, WORLD_MAX);
}

static void verify_every_algorithm_and_size_is_right_long(void **unused)
{
    (void)unused;
    prove_sizes(WORLD_MAX + 1, WORLD_MAX_LONG);
}

static void prove_roots(int last)
{
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        for (int n = 1; n <= last && has_root(at->coll); n += n < 17 ? 1 : 9) {
            for (int root = 0; root < n; root++) {
                prove(at, n, n, root, (plans_placing)(root % PLANS_PLACINGS));
            }
        }
    }
}

static void verify_every_root_is_right(void **unused)
{
    (void)unused;
    prove_roots(WORLD_MAX);
}

static void verify_every_root_is_right_long(void **unused)
{
    (void)unused;
    prove_roots(WORLD_MAX_LONG);
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
        {GR_COLL_ALLREDUCE, "segmented-ring"},
        {GR_COLL_REDUCE_SCATTER, "recursive-halving"},
        {GR_COLL_ALLGATHER, "recursive-doubling"},
        {GR_COLL_ALLGATHER, "bruck"},
        {GR_COLL_ALLTOALL, "pairwise"},
        {GR_COLL_ALLTOALL, "bruck"},
        {GR_COLL_BROADCAST, "chain"},
        {GR_COLL_REDUCE, "chain"},
        {GR_COLL_REDUCE, "direct"},
        {GR_COLL_REDUCE, "binomial"},
        {GR_COLL_GATHER, "direct"},
        {GR_COLL_GATHER, "binomial"},
        {GR_COLL_SCATTER, "direct"},
        {GR_COLL_SCATTER, "binomial"},
        {GR_COLL_REDUCE_SCATTER, "hierarchical"},
        {GR_COLL_ALLREDUCE, "hierarchical"},
        {GR_COLL_ALLGATHER, "hierarchical"},
    };
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        plans_world w;
        plans_open(&w, exact[i].coll, exact[i].name, 8, 8, 0);
        assert_int_equal(plans_verify(&w, false, bound(w.algorithm, 8, 8)), GR_OK);
        assert_int_equal(plans_verify(&w, false, bound(w.algorithm, 8, 8) - 1), GR_E_BUG);
        assert_non_null(strstr(w.diag.text, "blocks, where"));
        plans_close(&w);
    }
}

static void test_ring_is_complete_but_not_canonical(void **unused)
{
    (void)unused;
    plans_world w;
    plans_open(&w, GR_COLL_ALLREDUCE, "ring", 3, 3, 0);
    assert_int_equal(plans_verify(&w, false, -1), GR_OK);
    assert_int_equal(plans_verify(&w, true, -1), GR_E_BUG);
    assert_non_null(strstr(w.diag.text, "order of the shard tree"));
    plans_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify_every_algorithm_and_size_is_right),
        cmocka_unit_test(verify_every_algorithm_and_size_is_right_long),
        cmocka_unit_test(verify_every_root_is_right),
        cmocka_unit_test(verify_every_root_is_right_long),
        cmocka_unit_test(test_bounds_are_tight),
        cmocka_unit_test(test_ring_is_complete_but_not_canonical),
    };
    test_choose();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
