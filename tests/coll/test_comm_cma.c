/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies while the kernel copies between it and another one. */
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

enum { COUNT = 1 << 20, DEATHS = 12 };

static int say(gr_comm *comm, gr_status status, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, gr_status_name(status), gr_comm_diag(comm)->text);
    return 1;
}

/* Rank 1 dies in the middle of an operation, or between two. What the others were told is done is
 * right. One of them may not have come out of the barrier by then, and hears of the death there. */
static int run_until_death(gr_comm *comm, const ranks_job *job)
{
    const int64_t *after_ns = job->arg;
    float *values = malloc(COUNT * sizeof *values);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_nsec = *after_ns}};
    gr_status status = gr_barrier(comm);
    if (!values) {
        return say(comm, status, "no memory");
    }
    if (gr_comm_rank(comm) == 1 && (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
                                    timer_settime(timer, 0, &when, NULL) != 0)) {
        return 1;
    }
    while (status == GR_OK) {
        for (int i = 0; i < COUNT; i++) {
            values[i] = (float)(i % 1000);
        }
        status = gr_allreduce(comm, values, COUNT, GR_F32, GR_SUM);
        for (int i = 0; status == GR_OK && i < COUNT; i++) {
            if (values[i] != (float)(job->size * (i % 1000))) {
                return say(comm, status, "wrong");
            }
        }
    }
    /* Seen, or heard of. */
    bool expected = (status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN) &&
                    gr_comm_diag(comm)->peer_rank == 1;
    if (!expected) {
        return say(comm, status, "not as rank 1 died");
    }
    free(values);
    gr_comm_destroy(comm);
    return 0;
}

static void test_death_in_the_middle(void **state)
{
    (void)state;
    for (int i = 0; i < DEATHS; i++) {
        int64_t after_ns = 1000 + i * INT64_C(370000);
        /* Four have no core each on small machines: then whoever runs reads and writes. */
        ranks_job job = {
            .size = i % 4 < 2 ? 2 : 4, .link = "shm", .progress = 1 + i % 2, .arg = &after_ns};
        assert_int_equal(ranks_run(&job, run_until_death, 2), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
