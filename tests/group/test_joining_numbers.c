/* SPDX-License-Identifier: Apache-2.0 */

/* Which numbers workers get that join a job without a launcher, and who is refused: a process that
 * lies about its number, a second one for the same place, one that was cut off and whose place was
 * taken. Every order of events is test_failover.c's. */

#include "group/membership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef struct told {
    gr_message_kind kind; /* what was said last to each number */
    gr_assignment assignment;
} told;

static void note(void *told_arg, int number, const gr_word *word)
{
    told *of = (told *)told_arg + number;
    of->kind = word->kind == GR_MESSAGE_HISTORY ? of->kind : word->kind;
    of->assignment = word->kind == GR_MESSAGE_ASSIGN ? word->assignment : of->assignment;
}

static void say_hello(gr_membership *m, int number, uint64_t generation, int size)
{
    const gr_hello hello = {
        .world_size = (uint32_t)size, .pid = 1, .generation = generation, .link = 0};
    assert_int_equal(gr_membership_hello(m, number, &hello), GR_OK);
}

/* All of these agree to the generation, and run in it. */
static void form(gr_membership *m, const int *numbers, int count, uint64_t generation)
{
    for (int i = 0; i < count; i++) {
        say_hello(m, numbers[i], generation, count);
    }
    for (int i = 0; i < count; i++) {
        assert_int_equal(gr_membership_ready(m, numbers[i], generation), GR_OK);
    }
}

/* Members 0 and 1 of a job run, and there are numbers for `numbers` less 2 that join. */
static void open_pair(gr_membership *m, int numbers, told *said)
{
    const gr_membership_config config = {.world_size = numbers,
                                         .first_size = 2,
                                         .members_min = 1,
                                         .failover = true,
                                         .successor = -1,
                                         .send = note,
                                         .send_arg = said};
    memset(said, 0, (size_t)numbers * sizeof *said);
    assert_int_equal(gr_membership_init(m, &config, NULL), GR_OK);
    form(m, (const int[]){0, 1}, 2, 1);
}

/* The place of member 1 is taken by number 2. */
static void replace_second(gr_membership *m, const told *said)
{
    gr_membership_lost(m, 1, "it was killed");
    assert_int_equal(gr_membership_renew(m, 0), GR_OK);
    form(m, (const int[]){0}, 1, 2);
    gr_membership_reserve(m, 2);
    assert_int_equal(gr_membership_renew(m, 2), GR_OK);
    assert_int_equal(said[0].kind, GR_MESSAGE_CHANGE);
    assert_int_equal(gr_membership_renew(m, 0), GR_OK);
    assert_int_equal(said[2].kind, GR_MESSAGE_ASSIGN);
    assert_int_equal(said[2].assignment.number, 2);
    assert_int_equal(said[2].assignment.rank, 1);
    form(m, (const int[]){0, 2}, 2, 3);
}

static void failover_number_that_a_process_has_had_is_never_free_again(void **unused)
{
    (void)unused;
    gr_membership m;
    told said[4];
    open_pair(&m, 4, said);
    assert_false(gr_membership_is_free(&m, 0));
    gr_membership_lost(&m, 1, "it was killed");
    assert_false(gr_membership_is_free(&m, 1)); /* it may live, cut off from here */
    assert_true(gr_membership_is_free(&m, 2) && gr_membership_is_free(&m, 3));
    gr_membership_fini(&m);
    open_pair(&m, 4, said);
    replace_second(&m, said);
    gr_membership_lost(&m, 2, "it was killed");
    assert_false(gr_membership_is_free(&m, 1) || gr_membership_is_free(&m, 2));
    assert_true(gr_membership_is_free(&m, 3));
    gr_membership_fini(&m);
}

/* It has had no rank: nothing of it is in any generation. */
static void failover_joining_worker_lost_while_it_waits_gives_its_number_back(void **unused)
{
    (void)unused;
    gr_membership m;
    told said[3];
    open_pair(&m, 3, said);
    gr_membership_reserve(&m, 2);
    assert_int_equal(gr_membership_renew(&m, 2), GR_OK);
    assert_false(gr_membership_is_free(&m, 2));
    assert_int_equal(said[0].kind, GR_MESSAGE_MEMBERS); /* all places are taken: it waits */
    gr_membership_lost(&m, 2, "it was killed");
    assert_true(gr_membership_is_free(&m, 2));
    gr_membership_fini(&m);
}

static void failover_newcomer_that_claims_a_number_is_refused(void **unused)
{
    (void)unused;
    gr_membership m;
    told said[4];
    open_pair(&m, 4, said);
    gr_membership_lost(&m, 1, "it was killed");
    assert_int_equal(gr_membership_renew(&m, 1), GR_E_PROTOCOL); /* of a member that is lost */
    assert_int_equal(gr_membership_renew(&m, 3), GR_OK);         /* that was never reserved... */
    assert_int_equal(m.members[3].state, GR_MEMBER_LEFT);        /* ...so that it counts as gone */
    const gr_history history = {.committed = 1,
                                .accepted = 1,
                                .committed_members = {.bits = {3}},
                                .accepted_members = {.bits = {3}}};
    gr_membership_reserve(&m, 2); /* it says that it was a member */
    assert_int_equal(gr_membership_switch(&m, 2, &history), GR_E_PROTOCOL);
    gr_membership_fini(&m);
}

static void failover_two_newcomers_for_one_place_one_waits(void **unused)
{
    (void)unused;
    gr_membership m;
    told said[5];
    open_pair(&m, 5, said);
    replace_second(&m, said);
    gr_membership_reserve(&m, 3);
    assert_int_equal(gr_membership_renew(&m, 3), GR_OK);
    assert_int_equal(said[0].kind, GR_MESSAGE_MEMBERS);
    gr_membership_lost(&m, 0, "it was killed"); /* with the state of the job on the other */
    assert_int_equal(gr_membership_renew(&m, 2), GR_OK);
    assert_int_equal(said[3].kind, GR_MESSAGE_ASSIGN);
    assert_int_equal(said[2].assignment.rank, 0);
    gr_membership_fini(&m);
}

static void failover_worker_that_joins_when_the_job_is_done_is_dismissed(void **unused)
{
    (void)unused;
    for (int waits_before = 0; waits_before < 2; waits_before++) {
        gr_membership m;
        told said[4];
        open_pair(&m, 4, said);
        gr_membership_reserve(&m, 2);
        if (waits_before) {
            assert_int_equal(gr_membership_renew(&m, 2), GR_OK);
        }
        assert_int_equal(gr_membership_leave(&m, 0), GR_OK);
        assert_false(gr_membership_is_free(&m, 3));
        assert_int_equal(gr_membership_renew(&m, 2), GR_OK);
        assert_int_equal(said[2].kind, GR_MESSAGE_DISMISS);
        gr_membership_fini(&m);
    }
}

/* The member whose place was taken was only cut off, and comes to the successor of the coordinator:
 * it has no vote, and no place. Its number is not given to anybody, nor is that of the other. */
static void failover_member_whose_place_was_taken_comes_back_and_is_fenced(void **unused)
{
    (void)unused;
    gr_membership m;
    told said[5] = {0};
    const gr_membership_config config = {.world_size = 5,
                                         .first_size = 2,
                                         .members_min = 1,
                                         .failover = true,
                                         .successor = 0,
                                         .send = note,
                                         .send_arg = said};
    const gr_history old = {.committed = 1,
                            .accepted = 1,
                            .committed_members = {.bits = {3}},
                            .accepted_members = {.bits = {3}},
                            .used = {.bits = {3}}};
    const gr_history now = {.committed = 3,
                            .accepted = 3,
                            .committed_members = {.bits = {5}},
                            .accepted_members = {.bits = {5}},
                            .used = {.bits = {0xf}}};
    assert_int_equal(gr_membership_init(&m, &config, NULL), GR_OK);
    assert_false(gr_membership_is_free(&m, 4)); /* nobody joins before it is known who is there */
    assert_int_equal(gr_membership_switch(&m, 1, &old), GR_OK);
    assert_int_equal(gr_membership_switch(&m, 0, &now), GR_OK);
    assert_int_equal(gr_membership_switch(&m, 2, &now), GR_OK);
    gr_membership_gathered(&m);
    assert_int_equal(said[1].kind, GR_MESSAGE_FAIL);
    assert_int_equal(said[0].kind, GR_MESSAGE_ASSIGN);
    assert_int_equal(said[2].kind, GR_MESSAGE_ASSIGN);
    assert_int_equal(said[0].assignment.world_size, 2);
    for (int number = 0; number < 4; number++) {
        assert_false(gr_membership_is_free(&m, number));
    }
    assert_true(gr_membership_is_free(&m, 4));
    gr_membership_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failover_number_that_a_process_has_had_is_never_free_again),
        cmocka_unit_test(failover_joining_worker_lost_while_it_waits_gives_its_number_back),
        cmocka_unit_test(failover_newcomer_that_claims_a_number_is_refused),
        cmocka_unit_test(failover_two_newcomers_for_one_place_one_waits),
        cmocka_unit_test(failover_worker_that_joins_when_the_job_is_done_is_dismissed),
        cmocka_unit_test(failover_member_whose_place_was_taken_comes_back_and_is_fenced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
