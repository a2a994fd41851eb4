/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"

/* Two binary trees at once (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan", Parallel Computing 35 (2009)). Each carries half of the buffer,
 * and a rank that has children in one is a leaf of the other: everybody sends and receives about as
 * much as the buffer holds, in 2 log2 n hops. The order of the additions differs from tree to tree:
 * not canonical. */

enum { TREES = 2, RECEIVE_SLOTS = 2, SUM_SLOT = TREES * RECEIVE_SLOTS };

/* The root is apart, at place 0; the others are at places 1 .. count, an in-order binary tree in
 * which the number of zeros at the end of a place is its height. */
typedef struct node {
    int parent; /* 0: the root */
    int children[2];
    int child_count;
} node;

static node node_at(int count, int place)
{
    node at = {.parent = 0};
    int low = place & -place;
    if (place == 0) {
        int top = 1;
        while (top <= count / 2) {
            top *= 2;
        }
        at.children[at.child_count++] = top;
        return at;
    }
    at.parent = (place ^ low) | 2 * low;
    if (at.parent > count) {
        at.parent = place ^ low;
    }
    if (low > 1) {
        at.children[at.child_count++] = place - low / 2;
    }
    for (int step = low / 2; step >= 1; step /= 2) {
        if (place + step <= count) {
            at.children[at.child_count++] = place + step;
            break;
        }
    }
    return at;
}

/* The second tree is the first one mirrored if the count is even, else moved on by one: so leaves,
 * which are odd, become inner nodes. */
static int to_tree(int tree, int count, int place)
{
    if (tree == 0 || place == 0) {
        return place;
    }
    return count % 2 == 0 ? count + 1 - place : place % count + 1;
}

static int from_tree(int tree, int count, int place)
{
    if (tree == 0 || place == 0) {
        return place;
    }
    return count % 2 == 0 ? count + 1 - place : (place + count - 2) % count + 1;
}

/* The same with ranks instead of places. */
static node node_of(const gr_plan_shape *shape, int root, int tree)
{
    int n = shape->world_size;
    int place = to_tree(tree, n - 1, (shape->rank + n - root) % n);
    node at = node_at(n - 1, place);
    at.parent = (from_tree(tree, n - 1, at.parent) + root) % n;
    for (int i = 0; i < at.child_count; i++) {
        at.children[i] = (from_tree(tree, n - 1, at.children[i]) + root) % n;
    }
    return at;
}

static void send_down(int root, gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    for (int tree = 0; tree < TREES; tree++) {
        node at = node_of(shape, root, tree);
        bool has_origin = shape->rank == root && shape->coll == GR_COLL_BROADCAST;
        gr_operand half = has_origin ? gr_contribution(plan, 0, tree) : gr_user(0, tree);
        if (shape->rank != root) {
            gr_plan_recv(plan, at.parent, half);
        }
        for (int i = 0; i < at.child_count; i++) {
            gr_plan_send(plan, at.children[i], half);
        }
    }
}

static void add_up(int root, gr_plan *plan)
{
    const gr_plan_shape *shape = &plan->shape;
    bool has_result = shape->coll == GR_COLL_ALLREDUCE || shape->rank == root;
    for (int tree = 0; tree < TREES; tree++) {
        node at = node_of(shape, root, tree);
        gr_operand sum = gr_contribution(plan, 0, tree);
        for (int i = 0; i < at.child_count; i++) {
            gr_operand other = gr_scratch(tree * RECEIVE_SLOTS + i, tree);
            gr_operand own = sum;
            sum = has_result ? gr_user(0, tree) : gr_scratch(SUM_SLOT + tree, tree);
            gr_plan_recv(plan, at.children[i], other);
            gr_plan_reduce(plan, sum, i == 0 ? other : own, i == 0 ? own : other);
        }
        if (shape->rank != root) {
            gr_plan_send(plan, at.parent, sum);
        }
    }
}

void gr_double_tree_broadcast(const gr_plan_shape *shape, gr_plan *plan)
{
    plan->blocks = TREES;
    send_down(shape->root, plan);
    for (int tree = 0; tree < TREES && shape->rank == shape->root && shape->out_of_place; tree++) {
        gr_plan_copy(plan, gr_user(0, tree), gr_input(0, tree));
    }
}

void gr_double_tree_reduce(const gr_plan_shape *shape, gr_plan *plan)
{
    plan->blocks = TREES;
    add_up(shape->root, plan);
}

void gr_double_tree_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    (void)shape;
    plan->blocks = TREES;
    add_up(0, plan);
    send_down(0, plan);
}
