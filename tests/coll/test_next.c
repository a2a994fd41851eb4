/* SPDX-License-Identifier: Apache-2.0 */
/* The next generation is prepared by a thread while this one goes on; it is gone over to, or given
 * up in the middle of an operation. */
#include "base/clock.h"
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMBERS = 2, ALL = 3, SOON_US = 5000000, PIPE_READ = 0, PIPE_WRITE = 1 };

typedef struct made {
    _Atomic int entered, dropped;
} made;

/* Collective: the newcomer does as much when it has its communicator, or never. */
static gr_status make(void *arg, gr_comm *next, gr_diag *diag)
{
    made *of = arg;
    (void)diag;
    atomic_fetch_add(&of->entered, 1);
    return gr_barrier(next);
}

static void drop(void *arg)
{
    made *of = arg;
    atomic_fetch_add(&of->dropped, 1);
}

/* Steps of this generation until all of its members say so. */
static int step_until(gr_comm *comm, const made *of, bool change)
{
    int32_t said = 0;
    while (said < (change ? 1 : gr_comm_size(comm))) {
        int wanted = gr_comm_change_wanted(comm);
        said = change ? wanted : atomic_load(&of->entered) > 0;
        EXPECT(gr_allreduce(comm, &said, 1, GR_I32, GR_SUM) == GR_OK);
    }
    return 0;
}

static bool comes_later(const ranks_job *job)
{
    return job->config->newcomer;
}

static int go_over(gr_comm *comm, const ranks_job *job)
{
    made of = {0};
    const gr_comm_ahead ahead = {.make = make, .drop = drop, .arg = &of};
    if (comes_later(job)) {
        EXPECT(gr_barrier(comm) == GR_OK); /* as in make */
    } else {
        gr_comm_set_ahead(comm, &ahead);
        if (step_until(comm, &of, true) != 0 ||
            gr_comm_renew_from(job->config, &comm, NULL) != GR_OK) {
            return 1;
        }
        EXPECT(of.entered == 1 && of.dropped == 0);
    }
    int64_t sum = gr_comm_rank(comm);
    EXPECT(gr_comm_size(comm) == ALL);
    EXPECT(gr_allreduce(comm, &sum, 1, GR_I64, GR_SUM) == GR_OK && sum == 0 + 1 + 2);
    gr_comm_destroy(comm);
    return 0;
}

static int give_up(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    char byte = 0;
    made of = {0};
    const gr_comm_ahead ahead = {.make = make, .drop = drop, .arg = &of};
    if (comes_later(job)) { /* the others wait for it in vain */
        EXPECT(read(fds[PIPE_READ], &byte, 1) == 1);
        gr_comm_destroy(comm);
        return 0;
    }
    gr_comm_set_ahead(comm, &ahead);
    if (step_until(comm, &of, false) != 0) {
        return 1;
    }
    int64_t begin_us = gr_now_ns() / 1000;
    gr_comm_drop_ahead(comm);
    EXPECT(gr_now_ns() / 1000 - begin_us < SOON_US);
    EXPECT(of.dropped == 0);           /* it was not made */
    EXPECT(gr_barrier(comm) == GR_OK); /* and this generation has not noticed */
    if (gr_comm_rank(comm) == 0) {
        EXPECT(write(fds[PIPE_WRITE], &byte, 1) == 1);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void run(ranks_function *function, const int *fds)
{
    const char *const links[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        const ranks_job job = {.size = ALL,
                               .newcomers = ALL - MEMBERS,
                               .members_min = 1,
                               .link = links[i],
                               .tune = "off",
                               .arg = fds};
        assert_int_equal(ranks_run(&job, function, 0), 0);
    }
}

static void test_all_go_over(void **state)
{
    (void)state;
    run(go_over, NULL);
}

static void test_given_up_in_an_operation(void **state)
{
    int fds[2];
    (void)state;
    assert_int_equal(pipe(fds), 0);
    run(give_up, fds);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_go_over),
        cmocka_unit_test(test_given_up_in_an_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
