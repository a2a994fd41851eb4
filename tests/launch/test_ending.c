/* SPDX-License-Identifier: Apache-2.0 */

/* Of several things that end a job the first that is no consequence of another one is the cause. */

#include "base/fail.h"
#include "launch/launch_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RANKS = 2 };

static int exited(int code)
{
    return code << 8;
}

/* Rank 1 has ended so; the other one runs. */
static gr_launch_job job_with(gr_worker_end ends[RANKS], int wait_status)
{
    for (int rank = 0; rank < RANKS; rank++) {
        ends[rank] = (gr_worker_end){.started = true};
    }
    ends[1].ended = true;
    ends[1].wait_status = wait_status;
    gr_launch_job job = {.slots = RANKS, .ends = ends, .lost_server = -1};
    gr_launch_job_blame(&job, GR_REASON_WORKER, GR_E_PEER_LOST);
    return job;
}

static gr_diag loss(const char *host)
{
    gr_diag why = {0};
    (void)gr_fail(&why, GR_E_PEER_LOST, "host %s is lost", host);
    return why;
}

static void a_rank_that_failed_before_an_agent_was_lost_is_the_cause(void **state)
{
    (void)state;
    gr_worker_end ends[RANKS];
    gr_launch_job job = job_with(ends, exited(3));
    gr_diag why = loss("a");
    gr_launch_job_blame_loss(&job, false, &why);
    assert_int_equal(job.reason, GR_REASON_WORKER);
    job = job_with(ends, 9); /* killed */
    gr_launch_job_blame_loss(&job, false, &why);
    assert_int_equal(job.reason, GR_REASON_WORKER);
}

static void a_rank_that_missed_others_is_no_cause(void **state)
{
    (void)state;
    gr_worker_end ends[RANKS];
    gr_launch_job job = job_with(ends, exited(76));
    gr_diag why = loss("a");
    gr_launch_job_blame_loss(&job, false, &why);
    assert_int_equal(job.reason, GR_REASON_AGENT_LOST);
    assert_int_equal(job.status, GR_E_PEER_LOST);
    assert_string_equal(job.cause.text, "host a is lost");
}

static void a_rank_that_failed_for_want_of_a_server_is_no_cause(void **state)
{
    (void)state;
    gr_worker_end ends[RANKS];
    gr_launch_job job = job_with(ends, exited(1));
    gr_diag why = loss("a");
    gr_launch_job_blame_loss(&job, true, &why);
    assert_int_equal(job.reason, GR_REASON_AGENT_LOST);
    job = job_with(ends, 9);
    gr_launch_job_blame_loss(&job, true, &why);
    assert_int_equal(job.reason, GR_REASON_WORKER);
}

static void of_two_lost_agents_the_first_is_the_cause(void **state)
{
    (void)state;
    gr_worker_end ends[RANKS] = {{.started = true}, {.started = true}};
    gr_launch_job job = {.slots = RANKS, .ends = ends, .lost_server = -1};
    gr_diag first = loss("a"), second = loss("b");
    gr_launch_job_blame_loss(&job, false, &first);
    gr_launch_job_blame_loss(&job, false, &second);
    assert_string_equal(job.cause.text, "host a is lost");
    gr_launch_job_blame_for(&job, GR_REASON_COORDINATOR, &second);
    assert_int_equal(job.reason, GR_REASON_AGENT_LOST);
    assert_string_equal(job.cause.text, "host a is lost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_failed_before_an_agent_was_lost_is_the_cause),
        cmocka_unit_test(a_rank_that_missed_others_is_no_cause),
        cmocka_unit_test(a_rank_that_failed_for_want_of_a_server_is_no_cause),
        cmocka_unit_test(of_two_lost_agents_the_first_is_the_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
