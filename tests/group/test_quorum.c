/* SPDX-License-Identifier: Apache-2.0 */

/* Which members may go on where a member takes over when the coordinator dies. */

#include "group/quorum.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void tell(gr_quorum *quorum, int number, uint64_t committed, uint8_t members)
{
    gr_history history = {.committed = committed, .accepted = committed};
    history.committed_members.bits[0] = history.accepted_members.bits[0] = members;
    assert_int_equal(gr_quorum_add_history(quorum, number, &history), GR_OK);
}

static bool enough(const gr_quorum *quorum, uint8_t members)
{
    const gr_numbers here = {.bits = {members}};
    return gr_quorum_is_enough(quorum, &here);
}

/* Half of the members are enough for the coordinator that has made their generation. */
static void test_half(void **unused)
{
    (void)unused;
    gr_quorum first, next;
    const gr_numbers all = {.bits = {3}};
    gr_quorum_init_first(&first, 2);
    assert_true(enough(&first, 1) && enough(&first, 2) && !enough(&first, 4));
    assert_int_equal(gr_quorum_init_successor(&next, 0, 4, NULL), GR_OK);
    tell(&next, 0, 1, 3);
    tell(&next, 1, 1, 3);
    gr_quorum_unite(&next, &all);
    assert_true(enough(&next, 3) && !enough(&next, 1));
    gr_quorum_assign(&next, gr_quorum_next(&next, 1), &all);
    assert_false(enough(&next, 1));
    gr_quorum_commit(&next);
    assert_true(enough(&next, 1) && enough(&next, 2));
    gr_quorum_fini(&next);
}

/* Where joining workers have made a generation larger, some of the one before may not know of it,
 * and go on with more than half of that: without half of it nobody else does, before all know. */
static void quorum_larger_generation_needs_half_of_the_one_before_until_settled(void **unused)
{
    (void)unused;
    gr_quorum one, next;
    const gr_numbers all = {.bits = {15}}, three = {.bits = {14}};
    gr_quorum_init_first(&one, 1);
    gr_quorum_assign(&one, 2, &all);
    assert_true(enough(&one, 1)); /* nobody knows yet whether it comes about */
    gr_quorum_commit(&one);
    assert_true(enough(&one, 3) && !enough(&one, 1) && !enough(&one, 14));
    assert_int_equal(gr_quorum_init_successor(&next, 1, 4, NULL), GR_OK);
    for (int number = 1; number < 4; number++) {
        assert_int_equal(gr_quorum_add_history(&next, number, &one.known), GR_OK);
    }
    gr_quorum_unite(&next, &three);
    assert_false(enough(&next, 14));
    assert_false(gr_quorum_is_settled(&one));
    gr_quorum_settle(&one);
    assert_true(gr_quorum_is_settled(&one));
    assert_true(enough(&one, 14) && enough(&one, 6) && !enough(&one, 2));
    assert_int_equal(gr_quorum_add_history(&next, 2, &one.known),
                     GR_OK); /* one that knows is enough */
    gr_quorum_unite(&next, &three);
    assert_true(enough(&next, 14) && !enough(&next, 6));
    gr_quorum_fini(&next);
}

/* Of two coordinators that know the same each makes generations of its own, after all that were. */
static void test_numbers(void **unused)
{
    (void)unused;
    gr_quorum one, other;
    const gr_numbers all = {.bits = {7}};
    assert_int_equal(gr_quorum_init_successor(&one, 0, 4, NULL), GR_OK);
    assert_int_equal(gr_quorum_init_successor(&other, 1, 4, NULL), GR_OK);
    tell(&one, 2, 5, 7);
    tell(&other, 2, 5, 7);
    gr_quorum_unite(&one, &all);
    gr_quorum_unite(&other, &all);
    uint64_t by_one = gr_quorum_next(&one, 1), by_other = gr_quorum_next(&other, 1);
    assert_true(by_one > 5 && by_other > 5 && by_one != by_other);
    gr_quorum_assign(&one, by_one, &all);
    uint64_t again = gr_quorum_next(&one, by_one);
    assert_true(again > by_one && again != by_other);
    tell(&other, 2, again, 7);
    gr_quorum_unite(&other, &all);
    assert_true(gr_quorum_next(&other, 1) > again);
    gr_quorum_fini(&one);
    gr_quorum_fini(&other);
}

/* Who is in no generation, or not in the one that it names, is told so. */
static void test_strange_histories(void **unused)
{
    (void)unused;
    gr_quorum quorum;
    gr_history history = {.committed = 0, .accepted = 1, .accepted_members = {.bits = {1}}};
    assert_int_equal(gr_quorum_init_successor(&quorum, 0, 4, NULL), GR_OK);
    assert_int_equal(gr_quorum_add_history(&quorum, 0, &history), GR_E_PROTOCOL);
    history.committed = 1;
    history.committed_members.bits[0] = 2;
    assert_int_equal(gr_quorum_add_history(&quorum, 0, &history), GR_E_PROTOCOL);
    history.committed_members.bits[0] = 3;
    assert_int_equal(gr_quorum_add_history(&quorum, 0, &history), GR_OK);
    assert_int_equal(gr_quorum_add_history(&quorum, 1, &history), GR_E_PROTOCOL);
    gr_quorum_fini(&quorum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half),
        cmocka_unit_test(quorum_larger_generation_needs_half_of_the_one_before_until_settled),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_strange_histories)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
