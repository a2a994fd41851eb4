/* SPDX-License-Identifier: Apache-2.0 */

/* The rules of membership in every order in which things can happen to small groups: each message
 * is delivered now or later, members die, are cut off from the coordinator, lose a link or give up
 * at any moment. */

#include "support_membership.h"
#include "support_search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "long.h"

/* ---- All of it ------------------------------------------------------------------------------- */

/* An event is kind * MODEL_MEMBERS_MAX + number. */
static const void *keep(void *model_arg)
{
    model *m = model_arg;
    model_keep(m);
    return &m->now;
}

static void restore(void *model_arg, const void *from)
{
    model_restore(model_arg, from);
}

static search_class class_of(int event)
{
    return event / MODEL_MEMBERS_MAX < (int)EVENT_FAULTS ? SEARCH_BY_ITSELF : SEARCH_FAULT;
}

static bool can(void *model_arg, int event)
{
    const model *m = model_arg;
    int number = event % MODEL_MEMBERS_MAX;
    return number < m->size && model_can(m, (event_kind)(event / MODEL_MEMBERS_MAX), number);
}

static void happen(void *model_arg, int event)
{
    model_happen(model_arg, (event_kind)(event / MODEL_MEMBERS_MAX), event % MODEL_MEMBERS_MAX);
}

static bool agrees(void *model_arg)
{
    return model_agrees(model_arg);
}

static bool rests(void *model_arg)
{
    return model_rests(model_arg);
}

static const char *why(void *model_arg)
{
    return ((model *)model_arg)->why;
}

static void print_event(int event)
{
    print_error("  member %d %s\n", event % MODEL_MEMBERS_MAX,
                model_event_name((event_kind)(event / MODEL_MEMBERS_MAX)));
}

/* ---- The tests ------------------------------------------------------------------------------- */

typedef enum start { FROM_THE_START, WHEN_ALL_HAVE_CALLED_IN, WHEN_ALL_RUN } start;

typedef struct setting {
    int size, members_min;
    start from;
    uint8_t crashes, cuts, breaks, surrenders, leaves, invites, wants, releases;
    int first_size; /* 0: size */
} setting;

static void begin(model *m, start from)
{
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_HAVE_CALLED_IN; i++) {
        model_happen(m, EVENT_CALL_IN, i);
        model_happen(m, EVENT_HEAR_UP, i);
    }
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_RUN; i++) {
        model_happen(m, EVENT_HEAR_DOWN, i);
    }
    for (int i = 0; i < m->first_size && from >= WHEN_ALL_RUN; i++) {
        model_happen(m, EVENT_WIRE, i);
        model_happen(m, EVENT_HEAR_UP, i);
    }
}

static void explore(const setting *with)
{
    static const char *const starts[] = {"from the start", "called in", "running"};
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    int first_size = with->first_size > 0 ? with->first_size : with->size;
    assert_true(model_init(m, with->size, first_size, with->members_min));
    m->now.crashes = with->crashes;
    m->now.cuts = with->cuts;
    m->now.breaks = with->breaks;
    m->now.surrenders = with->surrenders;
    m->now.leaves = with->leaves;
    m->now.invites = with->invites;
    m->now.wants = with->wants;
    m->now.releases = with->releases;
    begin(m, with->from);
    const search_model all = {.model = m,
                              .event_count = EVENT_KINDS * MODEL_MEMBERS_MAX,
                              .state_bytes = sizeof m->now,
                              .keep = keep,
                              .restore = restore,
                              .class_of = class_of,
                              .can = can,
                              .happen = happen,
                              .agrees = agrees,
                              .rests = rests,
                              .why = why,
                              .print_event = print_event};
    search_counts counts;
    bool right = search_all(&all, &counts);
    print_message("%d members, at least %d, %s: up to %u crashes, %u cut off, %u links, %u give "
                  "up, %u leave, %u come, %u changes, %u released: %u states, %u at rest\n",
                  first_size, with->members_min, starts[with->from], with->crashes, with->cuts,
                  with->breaks, with->surrenders, with->leaves, with->invites, with->wants,
                  with->releases, counts.states, counts.rests);
    model_fini(m);
    free(m);
    assert_true(right);
}

static void test_two(void **state)
{
    (void)state;
    for (int least = 1; least <= 2; least++) {
        explore(&(setting){.size = 2,
                           .members_min = least,
                           .crashes = 2,
                           .cuts = 2,
                           .breaks = 2,
                           .surrenders = 1,
                           .leaves = 2});
    }
}

static void test_three(void **state)
{
    (void)state;
    for (int least = 1; least <= 3; least++) {
        explore(&(setting){.size = 3, .members_min = least, .crashes = 2, .leaves = 3});
        explore(&(setting){.size = 3, .members_min = least, .cuts = 1, .surrenders = 1});
        explore(&(setting){.size = 3, .members_min = least, .crashes = 1, .breaks = 1});
    }
    explore(&(setting){
        .size = 3, .members_min = 1, .from = WHEN_ALL_RUN, .crashes = 2, .breaks = 2, .leaves = 3});
    explore(&(setting){
        .size = 3, .members_min = 2, .from = WHEN_ALL_RUN, .crashes = 1, .cuts = 1, .leaves = 3});
}

/* Others come, in new places and in those of the dead; more or fewer are wanted; and all that goes
 * wrong beside. */
static void test_joining_members(void **state)
{
    static const setting settings[] = {
        {.size = 2, .first_size = 1, .invites = 2, .wants = 2, .crashes = 1, .leaves = 2},
        {.size = 2, .invites = 2, .crashes = 2, .leaves = 1},
        {.size = 2, .invites = 1, .wants = 2, .cuts = 1, .breaks = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 2, .wants = 1, .crashes = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 1, .wants = 2, .leaves = 1},
        {.size = 3, .from = WHEN_ALL_RUN, .invites = 1, .wants = 1, .crashes = 1},
        {.size = 3, .first_size = 2, .from = WHEN_ALL_RUN, .invites = 1, .wants = 1, .cuts = 1},
        {.size = 3, .first_size = 1, .from = WHEN_ALL_RUN, .invites = 2, .wants = 2},
        {.size = 3,
         .first_size = 2,
         .from = WHEN_ALL_RUN,
         .invites = 1,
         .wants = 1,
         .surrenders = 2},
        {.size = 2, .invites = 1, .releases = 2, .crashes = 1, .leaves = 1},
        {.size = 3, .from = WHEN_ALL_RUN, .invites = 1, .releases = 1, .crashes = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        setting with = settings[i];
        with.members_min = 1;
        explore(&with);
    }
}

static void membership_four_members_keep_rules_long(void **state)
{
    (void)state;
    for (int least = 1; least <= 3; least++) {
        explore(&(setting){
            .size = 4, .members_min = least, .from = WHEN_ALL_RUN, .crashes = 2, .leaves = 1});
    }
    explore(&(setting){.size = 4, .members_min = 2, .from = WHEN_ALL_RUN, .cuts = 1, .breaks = 1});
    explore(&(setting){.size = 4, .members_min = 1, .from = WHEN_ALL_HAVE_CALLED_IN, .crashes = 2});
    explore(&(setting){.size = 4, .members_min = 1, .crashes = 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two), cmocka_unit_test(test_three),
                                       cmocka_unit_test(test_joining_members),
                                       cmocka_unit_test(membership_four_members_keep_rules_long)};
    test_choose();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
