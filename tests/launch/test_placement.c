/* SPDX-License-Identifier: Apache-2.0 */

/* Placements: which hosts are whose, and a job on one that is added here. */

#include "launch/launch.h"
#include "support_placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A job of one worker on a host of that placement. */
static gr_status run_there(bool all_join, gr_diag *diag)
{
    char *argv[] = {(char *)(uintptr_t) "true", NULL};
    const gr_host_list hosts = {.count = 1, .at[0] = {.name = "nowhere", .slots = 1, .workers = 1}};
    const gr_launch_config config = {.workers = 1,
                                     .command = {.argv = argv, .environment = environ},
                                     .hosts = &hosts,
                                     .remote = {.placement = &placement_nothing,
                                                .program = "/nowhere/gradus",
                                                .host_timeout_us = 1000000},
                                     .all_join = all_join,
                                     .start_timeout_us = 100000,
                                     .grace_us = 10000,
                                     .output = {.out_fd = STDOUT_FILENO, .err_fd = STDERR_FILENO}};
    gr_launch_report report;
    return gr_launch_run(&config, &report, diag);
}

static void placement_that_starts_nothing_is_named_after_the_start_timeout(void **state)
{
    (void)state;
    for (int all_join = 0; all_join < 2; all_join++) {
        gr_diag diag = {0};
        placement_nothing_stops = 0;
        assert_int_equal(run_there(all_join == 1, &diag), GR_E_NOT_FOUND);
        assert_non_null(strstr(diag.text, "host nowhere (nothing) was not ready"));
        assert_true(placement_nothing_stops > 0);
    }
}

static void placement_of_host_is_its_own_or_that_of_the_job(void **state)
{
    (void)state;
    const gr_host here = {.name = "a", .local = true}, other = {.name = "b"};
    const gr_host joined = {.name = "c", .tls = (gr_tls *)(uintptr_t)&here};
    assert_ptr_equal(gr_placement_of(&here, &gr_placement_ssh), &gr_placement_here);
    assert_ptr_equal(gr_placement_of(&joined, &gr_placement_ssh), &gr_placement_joined);
    assert_ptr_equal(gr_placement_of(&other, &gr_placement_slurm), &gr_placement_slurm);
}

static void placement_list_of_an_allocation_names_slurm(void **state)
{
    (void)state;
    char *in[] = {(char *)(uintptr_t) "SLURM_JOB_ID=7",
                  (char *)(uintptr_t) "SLURM_JOB_NODELIST=n[1-2]",
                  (char *)(uintptr_t) "SLURM_JOB_CPUS_PER_NODE=2(x2)", NULL};
    char *out[] = {NULL};
    const gr_placement *found = NULL;
    gr_host_list hosts;
    gr_arena arena;
    gr_arena_init(&arena, 1 << 20);
    assert_int_equal(gr_placement_list(in, &arena, &hosts, &found, NULL), GR_OK);
    assert_ptr_equal(found, &gr_placement_slurm);
    assert_int_equal(hosts.count, 2);
    assert_int_equal(gr_placement_list(out, &arena, &hosts, &found, NULL), GR_E_NOT_FOUND);
    gr_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_that_starts_nothing_is_named_after_the_start_timeout),
        cmocka_unit_test(placement_of_host_is_its_own_or_that_of_the_job),
        cmocka_unit_test(placement_list_of_an_allocation_names_slurm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
