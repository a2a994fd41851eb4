/* SPDX-License-Identifier: Apache-2.0 */
/* The shard tree against its definition, and the dealing of shards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "coll/plan/plan.h"

enum { SHARDS_MAX = 70 };

static void test_left_child_is_the_largest_power_of_two_below(void **unused)
{
    (void)unused;
    static const int expected[] = {0, 0, 1, 2, 2, 4, 4, 4, 4, 8, 8};
    for (int count = 2; count <= 10; count++) {
        assert_int_equal(gr_tree_left_count(count), expected[count]);
    }
    assert_int_equal(gr_tree_left_count(1 << 20), 1 << 19);
    assert_int_equal(gr_tree_left_count((1 << 20) + 1), 1 << 20);
    assert_int_equal(gr_tree_left_count(INT_MAX), 1 << 30);
}

/* All nodes of the tree, by the definition. */
typedef struct nodes {
    gr_tree_range all[2 * SHARDS_MAX];
    int parent[2 * SHARDS_MAX];
    int count;
} nodes;

static void add_nodes(nodes *n, int first, int count, int parent)
{
    int own = n->count++;
    n->all[own] = (gr_tree_range){first, count};
    n->parent[own] = parent;
    if (count > 1) {
        int left = 1;
        while (2 * left < count) {
            left *= 2;
        }
        add_nodes(n, first, left, own);
        add_nodes(n, first + left, count - left, own);
    }
}

static bool inside(gr_tree_range node, int first, int count)
{
    return first <= node.first && node.first + node.count <= first + count;
}

/* A node belongs to the cover if it is inside and its parent is not. */
static void check_cover(const nodes *n, int shards, int first, int count)
{
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    int found = gr_tree_cover(shards, first, count, ranges);
    int expected = 0;
    int end = first;
    for (int i = 0; i < n->count; i++) {
        bool largest = inside(n->all[i], first, count) &&
                       (n->parent[i] < 0 || !inside(n->all[n->parent[i]], first, count));
        if (!largest) {
            continue;
        }
        assert_true(expected < found);
        assert_int_equal(ranges[expected].first, n->all[i].first);
        assert_int_equal(ranges[expected].count, n->all[i].count);
        assert_int_equal(ranges[expected].first, end);
        end += ranges[expected++].count;
    }
    assert_int_equal(found, expected);
    assert_int_equal(end, first + count);
}

static void test_cover_is_the_largest_whole_subtrees(void **unused)
{
    (void)unused;
    for (int shards = 1; shards <= SHARDS_MAX; shards++) {
        nodes n = {.count = 0};
        add_nodes(&n, 0, shards, -1);
        for (int first = 0; first < shards; first++) {
            for (int count = 1; first + count <= shards; count++) {
                check_cover(&n, shards, first, count);
            }
        }
    }
}

static void test_cover_of_nothing_and_of_very_much(void **unused)
{
    (void)unused;
    gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
    assert_int_equal(gr_tree_cover(8, 0, 0, ranges), 0);
    assert_int_equal(gr_tree_cover(8, 4, 5, ranges), 0);
    assert_int_equal(gr_tree_cover(8, -1, 3, ranges), 0);
    assert_int_equal(gr_tree_cover(0, 0, 1, ranges), 0);
    int found = gr_tree_cover(INT_MAX, 1, INT_MAX - 2, ranges);
    assert_in_range(found, 1, GR_SHARD_PARTIALS_MAX);
    assert_int_equal(gr_tree_cover(INT_MAX, 0, INT_MAX, ranges), 1);
}

static void test_siblings_are_the_children_of_one_node(void **unused)
{
    (void)unused;
    for (int shards = 1; shards <= 20; shards++) {
        nodes n = {.count = 0};
        add_nodes(&n, 0, shards, -1);
        for (int i = 0; i < n.count; i++) {
            for (int k = 0; k < n.count; k++) {
                bool expected = i != k && n.parent[i] >= 0 && n.parent[i] == n.parent[k] &&
                                n.all[i].first < n.all[k].first;
                assert_int_equal(gr_tree_siblings(shards, n.all[i], n.all[k]), expected);
            }
        }
    }
    assert_false(gr_tree_siblings(4, (gr_tree_range){1, 1}, (gr_tree_range){2, 1}));
    assert_false(gr_tree_siblings(4, (gr_tree_range){0, 0}, (gr_tree_range){0, 1}));
    assert_false(gr_tree_siblings(4, (gr_tree_range){4, 4}, (gr_tree_range){8, 4}));
}

static void test_shards_are_dealt_evenly_and_completely(void **unused)
{
    (void)unused;
    for (int shards = 1; shards <= SHARDS_MAX; shards++) {
        for (int n = 1; n <= 20; n++) {
            int next = 0;
            int before = INT_MAX;
            for (int rank = 0; rank < n; rank++) {
                gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
                int first, count;
                gr_shard_range(shards, n, rank, &first, &count);
                assert_int_equal(first, next);
                assert_in_range(count, shards / n, (shards + n - 1) / n);
                assert_true(count <= before); /* the first ranks get one more */
                int held = gr_tree_cover(shards, first, count, ranges);
                assert_int_equal(gr_shard_partials(shards, n, rank), held ? held : 1);
                next += count;
                before = count;
            }
            assert_int_equal(next, shards);
        }
    }
}

static void test_bad_arguments_deal_nothing(void **unused)
{
    (void)unused;
    static const int bad[][3] = {{0, 1, 0}, {-3, 1, 0}, {4, 0, 0}, {4, 2, 2}, {4, 2, -1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int first = 7, count = 7;
        gr_shard_range(bad[i][0], bad[i][1], bad[i][2], &first, &count);
        assert_int_equal(first, 0);
        assert_int_equal(count, 0);
        assert_int_equal(gr_shard_partials(bad[i][0], bad[i][1], bad[i][2]), 0);
        assert_int_equal(gr_shard_buffers(bad[i][0], bad[i][1], bad[i][2]), 0);
        assert_int_equal(gr_shard_slot(bad[i][0], bad[i][1], bad[i][2], 0, &count), -1);
        assert_int_equal(count, 0);
    }
    int merges = 7;
    assert_int_equal(gr_shard_slot(8, 2, 0, 4, &merges), -1); /* the other rank's */
    assert_int_equal(merges, 0);
    assert_int_equal(gr_shard_slot(8, 2, 1, 3, &merges), -1);
    assert_int_equal(gr_shard_slot(8, 2, 1, INT_MAX, &merges), -1);
}

/* The buffers in the end are what the tree's cover says, and every addition is one of siblings. */
static void test_own_shards_are_added_in_the_order_of_the_tree(void **unused)
{
    (void)unused;
    for (int shards = 1; shards <= SHARDS_MAX; shards++) {
        for (int n = 1; n <= 20; n++) {
            for (int rank = 0; rank < n; rank++) {
                gr_tree_range buffers[GR_SHARD_PARTIALS_MAX], ranges[GR_SHARD_PARTIALS_MAX];
                int first, count, merges = 0, used = 0, most = 1;
                gr_shard_range(shards, n, rank, &first, &count);
                for (int s = first; s < first + count; s++) {
                    int slot = gr_shard_slot(shards, n, rank, s, &merges);
                    assert_int_equal(slot, used);
                    buffers[used++] = (gr_tree_range){s, 1};
                    most = used > most ? used : most;
                    for (; merges > 0; merges--, used--) {
                        assert_true(gr_tree_siblings(shards, buffers[used - 2], buffers[used - 1]));
                        buffers[used - 2].count += buffers[used - 1].count;
                    }
                }
                assert_int_equal(used, gr_tree_cover(shards, first, count, ranges));
                assert_memory_equal(buffers, ranges, (size_t)used * sizeof *ranges);
                assert_int_equal(gr_shard_buffers(shards, n, rank), most);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_child_is_the_largest_power_of_two_below),
        cmocka_unit_test(test_cover_is_the_largest_whole_subtrees),
        cmocka_unit_test(test_cover_of_nothing_and_of_very_much),
        cmocka_unit_test(test_siblings_are_the_children_of_one_node),
        cmocka_unit_test(test_shards_are_dealt_evenly_and_completely),
        cmocka_unit_test(test_bad_arguments_deal_nothing),
        cmocka_unit_test(test_own_shards_are_added_in_the_order_of_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
