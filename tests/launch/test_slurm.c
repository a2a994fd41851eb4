/* SPDX-License-Identifier: Apache-2.0 */

/* The hosts of a Slurm job, from the variables that it sets. */

#include "launch/slurm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA_BYTES_MAX = 1 << 20 };

static gr_status read_hosts(const char *const *environment, gr_host_list *hosts, gr_arena *arena,
                            gr_diag *diag)
{
    gr_arena_init(arena, ARENA_BYTES_MAX);
    *diag = (gr_diag){0};
    return gr_slurm_hosts((char *const *)(uintptr_t)environment, arena, hosts, diag);
}

/* `hosts`: "name:slots" of each with a blank behind it, "*" for the one that is here. */
static void expect_hosts(const char *const *environment, const char *hosts)
{
    gr_arena arena;
    gr_diag diag;
    gr_host_list *found = calloc(1, sizeof *found);
    char text[512] = "";
    assert_non_null(found);
    assert_int_equal(read_hosts(environment, found, &arena, &diag), GR_OK);
    for (int i = 0; i < found->count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s:%d%s ", found->at[i].name, found->at[i].slots,
                 found->at[i].local ? "*" : "");
    }
    assert_string_equal(text, hosts);
    gr_arena_fini(&arena);
    free(found);
}

static void expect_refused(const char *const *environment, gr_status wanted, const char *words)
{
    gr_arena arena;
    gr_diag diag;
    gr_host_list *found = calloc(1, sizeof *found);
    assert_non_null(found);
    assert_int_equal(read_hosts(environment, found, &arena, &diag), wanted);
    assert_non_null(strstr(diag.text, words));
    gr_arena_fini(&arena);
    free(found);
}

#define JOB "SLURM_JOB_ID=7"
#define NODES "SLURM_JOB_NODELIST=n[1-3]"

static void job_with_tasks_has_their_number_of_slots(void **state)
{
    (void)state;
    expect_hosts((const char *const[]){JOB, NODES, "SLURM_NTASKS=5", "SLURMD_NODENAME=n1",
                                       "SLURM_TASKS_PER_NODE=2(x2),1",
                                       "SLURM_JOB_CPUS_PER_NODE=8(x3)", NULL},
                 "n1:2* n2:2 n3:1 ");
}

static void job_without_tasks_has_a_slot_for_each_core(void **state)
{
    (void)state;
    expect_hosts((const char *const[]){JOB, NODES, "SLURM_TASKS_PER_NODE=1(x3)",
                                       "SLURM_JOB_CPUS_PER_NODE=8(x2),4", NULL},
                 "n1:8 n2:8 n3:4 ");
    expect_hosts((const char *const[]){JOB, "SLURM_JOB_NODELIST=n1", NULL}, "n1:1 ");
}

/* The counts of tasks are those of the step in which the launcher is the only one. */
static void launcher_in_a_step_has_the_nodes_of_the_job(void **state)
{
    (void)state;
    expect_hosts((const char *const[]){JOB, NODES, "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1",
                                       "SLURM_NTASKS=1", "SLURM_TASKS_PER_NODE=1",
                                       "SLURM_JOB_CPUS_PER_NODE=4(x3)", "SLURMD_NODENAME=n2", NULL},
                 "n1:4 n2:4* n3:4 ");
}

static void launcher_outside_a_job_has_no_nodes(void **state)
{
    (void)state;
    expect_refused((const char *const[]){"HOME=/", NULL}, GR_E_NOT_FOUND, "");
    expect_refused((const char *const[]){NODES, NULL}, GR_E_NOT_FOUND, "");
    expect_refused((const char *const[]){JOB, NULL}, GR_E_NOT_FOUND, "");
}

static void variables_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    expect_refused((const char *const[]){JOB, NODES, "SLURM_STEP_NUM_TASKS=4", NULL}, GR_E_INVALID,
                   "srun starts this launcher 4 times");
    expect_refused((const char *const[]){JOB, "SLURM_JOB_NODELIST=n[1-", NULL}, GR_E_INVALID,
                   "names no node");
    expect_refused((const char *const[]){JOB, "SLURM_JOB_NODELIST=-oProxyCommand=x", NULL},
                   GR_E_INVALID, "SLURM_JOB_NODELIST");
    expect_refused((const char *const[]){JOB, NODES, "SLURM_JOB_CPUS_PER_NODE=8(x2)", NULL},
                   GR_E_INVALID, "no number for node n3");
    expect_refused((const char *const[]){JOB, "SLURM_JOB_NODELIST=n[1-257]", NULL}, GR_E_INVALID,
                   "more than 256 nodes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_with_tasks_has_their_number_of_slots),
        cmocka_unit_test(job_without_tasks_has_a_slot_for_each_core),
        cmocka_unit_test(launcher_in_a_step_has_the_nodes_of_the_job),
        cmocka_unit_test(launcher_outside_a_job_has_no_nodes),
        cmocka_unit_test(variables_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
