/* SPDX-License-Identifier: Apache-2.0 */

/* The rules of membership where a member takes over when the coordinator dies: in every order in
 * which messages come, members and coordinators die, connections between them break and waits end,
 * for small groups. There are never two generations that could both take a step, none that knows
 * nothing of the last step, and, unless the network broke, no majority that stands still or ends.
 * Workers join meanwhile, in the places of those that were lost or beside the others. */

#include "support_failover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "long.h"

static void explore_all(const failover_setting *settings, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        failover_explore(&settings[i]);
    }
}

static void failover_two_members_keep_rules(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 2, .ends = 1, .crashes = 2, .cuts = 2, .hurries = 2, .leaves = 1},
        {.size = 2, .early = true, .ends = 1, .crashes = 1, .cuts = 1, .hurries = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_three_members_keep_rules(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 3, .ends = 1, .crashes = 2},
        {.size = 3, .ends = 1, .crashes = 1, .leaves = 1},
        {.size = 3, .ends = 1, .crashes = 1, .cuts = 1},
        {.size = 3, .early = true, .ends = 1, .cuts = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_three_members_keep_rules_long(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 3, .ends = 1, .cuts = 2},
        {.size = 3, .ends = 1, .crashes = 1, .cuts = 1, .hurries = 1},
        {.size = 3, .early = true, .ends = 1, .crashes = 1, .cuts = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_joining_worker_takes_a_place_and_rules_are_kept(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 2, .numbers = 3, .ends = 1, .crashes = 1, .joins = 1},
        {.size = 2, .numbers = 3, .crashes = 2, .joins = 1},
        {.size = 2, .numbers = 3, .crashes = 1, .cuts = 1, .joins = 1},
        {.size = 2, .numbers = 4, .crashes = 1, .joins = 2},
        {.size = 2, .numbers = 3, .crashes = 1, .leaves = 1, .joins = 1},
        {.size = 3, .numbers = 4, .crashes = 1, .joins = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

/* A generation that is larger than the one before it. */
static void failover_group_grows_and_rules_are_kept(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 1, .numbers = 2, .want = 2, .ends = 1, .crashes = 1, .cuts = 1, .joins = 1},
        {.size = 1, .numbers = 3, .want = 3, .ends = 1, .crashes = 1, .joins = 2},
        {.size = 2, .numbers = 3, .want = 3, .ends = 1, .crashes = 1, .joins = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_group_grows_and_rules_are_kept_long(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 1, .numbers = 3, .want = 3, .ends = 1, .cuts = 1, .joins = 2},
        {.size = 2, .numbers = 3, .want = 3, .ends = 1, .cuts = 1, .hurries = 1, .joins = 1},
        {.size = 2, .numbers = 3, .want = 3, .ends = 1, .crashes = 1, .cuts = 1, .joins = 1},
        {.size = 3, .numbers = 4, .want = 4, .ends = 1, .crashes = 1, .joins = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_joining_workers_keep_rules_long(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 2, .numbers = 3, .ends = 1, .crashes = 1, .cuts = 1, .joins = 1},
        {.size = 2, .numbers = 4, .ends = 1, .crashes = 2, .joins = 2},
        {.size = 3, .numbers = 4, .cuts = 1, .joins = 1},
        {.size = 3, .numbers = 4, .ends = 1, .crashes = 1, .joins = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

static void failover_four_members_keep_rules_long(void **unused)
{
    static const failover_setting settings[] = {
        {.size = 4, .ends = 1, .crashes = 1},
        {.size = 4, .crashes = 2},
        {.size = 4, .cuts = 1},
        {.size = 4, .ends = 1, .crashes = 2},
        {.size = 4, .ends = 1, .hurries = 1},
    };
    (void)unused;
    explore_all(settings, sizeof settings / sizeof settings[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failover_two_members_keep_rules),
        cmocka_unit_test(failover_three_members_keep_rules),
        cmocka_unit_test(failover_three_members_keep_rules_long),
        cmocka_unit_test(failover_joining_worker_takes_a_place_and_rules_are_kept),
        cmocka_unit_test(failover_joining_workers_keep_rules_long),
        cmocka_unit_test(failover_group_grows_and_rules_are_kept),
        cmocka_unit_test(failover_group_grows_and_rules_are_kept_long),
        cmocka_unit_test(failover_four_members_keep_rules_long)};
    test_choose();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
