/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/algorithms.h"
#include "coll/plan/binary_groups.h"

/* Recursive doubling of whole vectors (Thakur, Rabenseifner and Gropp 2005, section 4.5): log2 n
 * exchanges of all, for small messages. In each binary group all members come to know its sum; the
 * sums of smaller groups are added from the smallest up, which keeps them canonical, and the first
 * group tells the others. */

/* The next sum never goes where the one before is still being sent. */
enum { RECEIVE_SLOTS = 2, SUM_SLOTS = 2 };

typedef struct doubling {
    gr_plan *plan;
    gr_operand sum; /* of what has been added so far */
    int added, additions;
    bool has_result; /* the last addition gives the result */
} doubling;

static void exchange_and_add(doubling *d, int from, bool own_is_left)
{
    gr_plan *plan = d->plan;
    gr_operand other = gr_scratch(d->added % RECEIVE_SLOTS, 0);
    gr_operand to = gr_scratch(RECEIVE_SLOTS + d->added % SUM_SLOTS, 0);
    bool last = ++d->added == d->additions && d->has_result;
    /* Where this addition reads the partner's buffer while the partner reads ours, neither can
     * write over what the other has yet to read. */
    bool is_only_one = d->additions == 1 && !plan->shape.out_of_place;
    if (last && !is_only_one) {
        to = gr_user(0, 0);
    }
    gr_plan_recv(plan, from, other);
    gr_plan_reduce(plan, to, own_is_left ? d->sum : other, own_is_left ? other : d->sum);
    if (last && is_only_one) {
        gr_plan_copy(plan, gr_user(0, 0), to);
    }
    d->sum = to;
}

void gr_recursive_doubling_allreduce(const gr_plan_shape *shape, gr_plan *plan)
{
    int n = shape->world_size;
    gr_binary_group group = gr_binary_group_of(n, shape->rank);
    gr_binary_group behind = gr_binary_group_behind(n, group);
    gr_binary_group before = gr_binary_group_before(n, group);
    int place = shape->rank - group.first;
    doubling d = {.plan = plan, .sum = gr_contribution(plan, 0, 0), .has_result = before.size == 0};
    for (int distance = 1; distance < group.size; distance *= 2) {
        d.additions++;
    }
    d.additions += behind.size > 0;
    for (int distance = 1; distance < group.size; distance *= 2) {
        int partner = place ^ distance;
        gr_plan_send(plan, group.first + partner, d.sum);
        exchange_and_add(&d, group.first + partner, place < partner);
    }
    if (behind.size > 0) {
        exchange_and_add(&d, behind.first + place % behind.size, true);
    }
    for (int to = place; to < before.size; to += group.size) {
        gr_plan_send(plan, before.first + to, d.sum);
    }
    if (before.size > 0) {
        gr_plan_recv(plan, shape->rank - gr_binary_group_of(n, 0).size, gr_user(0, 0));
    } else if (shape->rank + group.size < n) {
        gr_plan_send(plan, shape->rank + group.size, gr_user(0, 0));
    }
}
