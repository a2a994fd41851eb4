/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/binomial.h"

/* Gather and scatter along a binomial tree (Thakur, Rabenseifner and Gropp 2005, section 4): the
 * root has log2 n neighbours instead of n - 1. A rank takes the blocks of its subtree in the order
 * of a walk that ends with one child before it begins the next: what belongs to a child then leaves
 * (or arrives) together. */

/* What is handed on is in scratch only until it has gone. */
enum { SLOTS = 16 };

typedef struct walk {
    gr_plan *plan;
    gr_binomial tree;
    void (*pass)(struct walk *walk, int child, int block);
    int passed;
} walk;

/* Passes on the blocks of the ranks below `at`. `child`: whose subtree they are in; 0: `at` is this
 * rank. */
static void walk_below(walk *w, int at, int child)
{
    const gr_binomial *t = &w->tree;
    for (int far = gr_binomial_first(t, at); far > 0; far = gr_binomial_next(t, far)) {
        int owner = at + far;
        if (owner < t->count) {
            int by = child > 0 ? child : owner;
            w->pass(w, gr_binomial_rank(t, by), gr_binomial_rank(t, owner));
            walk_below(w, owner, by);
        }
    }
}

static void pass_up(walk *w, int child, int block)
{
    if (w->tree.self == 0) {
        gr_plan_recv(w->plan, child, gr_user(0, block));
        return;
    }
    gr_operand passed = gr_scratch(w->passed++ % SLOTS, block);
    gr_plan_recv(w->plan, child, passed);
    gr_plan_send(w->plan, gr_binomial_rank(&w->tree, w->tree.parent), passed);
}

static void pass_down(walk *w, int child, int block)
{
    if (w->tree.self == 0) {
        gr_plan_send(w->plan, child, gr_contribution(w->plan, 0, block));
        return;
    }
    gr_operand passed = gr_scratch(w->passed++ % SLOTS, block);
    gr_plan_recv(w->plan, gr_binomial_rank(&w->tree, w->tree.parent), passed);
    gr_plan_send(w->plan, child, passed);
}

void gr_binomial_gather(const gr_plan_shape *shape, gr_plan *plan)
{
    walk w = {.plan = plan, .tree = gr_binomial_of(shape, shape->root), .pass = pass_up};
    gr_operand own = gr_contribution(plan, 0, shape->rank);
    if (w.tree.self != 0) {
        gr_plan_send(plan, gr_binomial_rank(&w.tree, w.tree.parent), own);
    } else if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), own);
    }
    walk_below(&w, w.tree.self, 0);
}

void gr_binomial_scatter(const gr_plan_shape *shape, gr_plan *plan)
{
    walk w = {.plan = plan, .tree = gr_binomial_of(shape, shape->root), .pass = pass_down};
    if (w.tree.self != 0) {
        gr_plan_recv(plan, gr_binomial_rank(&w.tree, w.tree.parent), gr_user(0, shape->rank));
    } else if (shape->out_of_place) {
        gr_plan_copy(plan, gr_user(0, shape->rank), gr_input(0, shape->rank));
    }
    walk_below(&w, w.tree.self, 0);
}
