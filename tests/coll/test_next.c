/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that joins a running job enters by a renewal: all members agree on a step, and everybody
 * joins the next generation. */
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { MEMBERS = 2, ALL = 3 };

/* Steps of this generation until one of its members is asked to change it. */
static int step_until_change(gr_comm *comm)
{
    int32_t wanted = 0;
    while (wanted == 0) {
        wanted = gr_comm_change_wanted(comm);
        EXPECT(gr_allreduce(comm, &wanted, 1, GR_I32, GR_SUM) == GR_OK);
    }
    return 0;
}

static int change(gr_comm *comm, const ranks_job *job)
{
    if (!job->config->joining) {
        EXPECT(gr_comm_size(comm) == MEMBERS);
        if (step_until_change(comm) != 0 || gr_comm_renew(&comm, NULL) != GR_OK) {
            return 1;
        }
    }
    int64_t sum = gr_comm_rank(comm);
    EXPECT(gr_comm_size(comm) == ALL);
    EXPECT((gr_comm_rank(comm) == ALL - 1) == job->config->joining);
    EXPECT(gr_comm_change_wanted(comm) == 0);
    EXPECT(gr_allreduce(comm, &sum, 1, GR_I64, GR_SUM) == GR_OK && sum == 0 + 1 + 2);
    gr_comm_destroy(comm);
    return 0;
}

static void joining_worker_enters_between_two_steps(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const ranks_job job = {.size = ALL,
                               .joining = ALL - MEMBERS,
                               .members_min = 1,
                               .link = links[i],
                               .tune = "off"};
        assert_int_equal(ranks_run(&job, change, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(joining_worker_enters_between_two_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
