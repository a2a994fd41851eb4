/* SPDX-License-Identifier: Apache-2.0 */

/* A group of as many members as there can be: the coordinator's rules alone,
 * members that do what they are told, and some that die. */

#include "group/membership.h"
#include "group/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMBERS = GR_GROUP_WORLD_MAX, DEAD_EVERY = 100 };

typedef struct crowd {
    gr_membership rules;
    int named[MEMBERS]; /* by number: size of the last MEMBERS that it was told */
    gr_assignment assigned[MEMBERS];
    int told; /* MEMBERS and ASSIGN, since it was last set to 0 */
} crowd;

static void keep(void *arg, int number, const gr_word *word)
{
    crowd *c = arg;
    if (word->kind == GR_MESSAGE_MEMBERS) {
        c->named[number] = word->size;
        c->told++;
    } else if (word->kind == GR_MESSAGE_ASSIGN) {
        c->assigned[number] = word->assignment;
        c->told++;
    }
}

static void hello(crowd *c, int number, int size, uint64_t generation)
{
    const gr_hello said = {.world_size = (uint32_t)size,
                           .pid = (uint64_t)number + 1,
                           .generation = generation,
                           .member = {.host = (uint64_t)number / 8}};
    assert_int_equal(gr_membership_hello(&c->rules, number, &said), GR_OK);
}

static bool is_dead(int number)
{
    return number % DEAD_EVERY == 7;
}

static void membership_of_4096_members_survives_many_deaths(void **state)
{
    (void)state;
    crowd *c = calloc(1, sizeof *c);
    assert_non_null(c);
    const gr_membership_config config = {.world_size = MEMBERS,
                                         .first_size = MEMBERS,
                                         .members_min = 1,
                                         .successor = -1,
                                         .send = keep,
                                         .send_arg = c};
    gr_diag diag;
    assert_int_equal(gr_membership_init(&c->rules, &config, &diag), GR_OK);
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(c->told, 0); /* all wait for the last one */
        hello(c, MEMBERS - 1 - i, MEMBERS, 1);
    }
    assert_int_equal(c->told, MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(c->named[i], MEMBERS);
        assert_int_equal(gr_membership_ready(&c->rules, i, 1), GR_OK);
    }
    c->told = 0;
    int left = 0;
    for (int i = 0; i < MEMBERS; i++) {
        if (is_dead(i)) {
            gr_membership_lost(&c->rules, i, "it was killed");
            gr_membership_ended(&c->rules, i);
        }
    }
    for (int i = 0; i < MEMBERS; i++) {
        if (!is_dead(i)) {
            assert_int_equal(gr_membership_renew(&c->rules, i), GR_OK);
            left++;
        }
    }
    assert_int_equal(c->told, left);
    uint32_t rank = 0;
    for (int i = 0; i < MEMBERS; i++) {
        if (!is_dead(i)) { /* in the order in which they were */
            assert_int_equal(c->assigned[i].rank, rank++);
            assert_int_equal(c->assigned[i].world_size, left);
            hello(c, i, left, c->assigned[i].generation);
        }
    }
    for (int i = 0; i < MEMBERS; i++) {
        if (!is_dead(i)) {
            assert_int_equal(c->named[i], left);
            assert_int_equal(gr_membership_ready(&c->rules, i, c->assigned[i].generation), GR_OK);
        }
    }
    assert_true(gr_membership_at_rest(&c->rules));
    gr_membership_fini(&c->rules);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(membership_of_4096_members_survives_many_deaths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
