/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_PLAN_BINOMIAL_H
#define GR_COLL_PLAN_BINOMIAL_H

/* The binomial tree of operations with a root. Ranks are counted from the root.
 *
 *   on one host:   0                    on several:   0
 *                / | \                              / | \
 *               1  2  4                            4  2  1
 *              /|  |                              /|  |
 *             3 5  6                             6 5  3
 *             |                                  |
 *             7                                  7
 *
 * A rank's parent is its number without one bit. On one host that is the highest: ranks that hand
 * on are neighbours, and where ranks are dealt out to fewer cores one by one, each core has its
 * share of them. On several hosts it is the lowest: a subtree is one run of ranks, and few messages
 * leave a host. (Those that hand on are even then: all on one core of two.) */

#include "coll/plan/plan.h"

typedef struct gr_binomial {
    int self, parent; /* counted from the root, which has no parent */
    int root, count;  /* of ranks */
    bool runs;        /* subtrees are runs of ranks */
} gr_binomial;

/* The children of `at` are at these distances, as far as there are such ranks; the first one has
 * the largest subtree. 0: no more. */
static inline int gr_binomial_first(const gr_binomial *t, int at)
{
    int bit = 1;
    if (t->runs) {
        while (bit < t->count && (at & bit) == 0) {
            bit *= 2;
        }
        return bit / 2;
    }
    while (bit <= at) {
        bit *= 2;
    }
    return bit < t->count ? bit : 0;
}

static inline int gr_binomial_next(const gr_binomial *t, int last)
{
    if (t->runs) {
        return last / 2;
    }
    return 2 * last < t->count ? 2 * last : 0;
}

static inline gr_binomial gr_binomial_of(const gr_plan_shape *shape, int root)
{
    int count = shape->world_size;
    gr_binomial t = {.root = root, .count = count, .self = (shape->rank + count - root) % count};
    t.runs = shape->topology != NULL && shape->topology->host_count > 1;
    int bit = t.self;
    while ((bit & (bit - 1)) != 0) { /* down to one bit, the highest or the lowest */
        bit = t.runs ? bit & -bit : bit & (bit - 1);
    }
    t.parent = t.self - bit;
    return t;
}

static inline int gr_binomial_rank(const gr_binomial *t, int from_root)
{
    return (from_root + t->root) % t->count;
}

#endif
