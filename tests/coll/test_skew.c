/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes late to operations, as gr_comm_skew tells it. */
#include "base/clock.h"
#include "coll/late.h"
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Every rank has a block of COUNT elements, so that something goes from each to each. */
enum { LATE_RANK = 2, ROUNDS = 12, LATE_US = 10000, COUNT = 1024 };

/* Busy elsewhere, as a rank with more to compute is. */
static void compute_us(int64_t us)
{
    int64_t end_ns = gr_now_ns() + us * 1000;
    while (gr_now_ns() < end_ns) {
    }
}

/* After each of them comes a barrier, so that lateness does not carry over. */
static gr_status late_rounds(gr_comm *comm)
{
    int64_t values[COUNT] = {0};
    gr_status status = gr_barrier(comm);
    for (int i = 0; i < ROUNDS && status == GR_OK; i++) {
        if (gr_comm_rank(comm) == LATE_RANK) {
            compute_us(LATE_US);
        }
        status = gr_allreduce(comm, values, COUNT, GR_I64, GR_SUM);
        if (status == GR_OK) {
            status = gr_barrier(comm);
        }
    }
    return status;
}

static int late_rank(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    EXPECT(late_rounds(comm) == GR_OK);
    int rank = gr_comm_rank(comm);
    gr_skew skew;
    EXPECT(gr_comm_skew(comm, LATE_RANK, &skew) == GR_OK);
    if (rank == LATE_RANK) {
        EXPECT(skew.operations == 0 && skew.mean_us == 0 && skew.max_us == 0);
        return 0;
    }
    EXPECT(skew.operations >= ROUNDS);
    EXPECT(skew.max_us >= LATE_US * 0.5); /* we may have been late ourselves */
    EXPECT(skew.mean_us <= skew.max_us && skew.recent_us <= skew.max_us);
    EXPECT(skew.mean_us * (double)skew.operations >= ROUNDS * LATE_US * 0.5);
    return 0;
}

static int late_rank_waits_least(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    EXPECT(late_rounds(comm) == GR_OK);
    double worst[4] = {0};
    int rank = gr_comm_rank(comm);
    for (int peer = 0; peer < gr_comm_size(comm); peer++) {
        gr_skew skew;
        EXPECT(gr_comm_skew(comm, peer, &skew) == GR_OK);
        worst[rank] = skew.mean_us > worst[rank] ? skew.mean_us : worst[rank];
    }
    EXPECT(gr_allreduce(comm, worst, 4, GR_F64, GR_SUM) == GR_OK);
    for (int peer = 0; peer < gr_comm_size(comm); peer++) {
        EXPECT(peer == LATE_RANK || worst[LATE_RANK] < worst[peer]);
    }
    return 0;
}

static int late_rank_is_found(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_skew before[4];
    gr_late late;
    EXPECT(late_rounds(comm) == GR_OK);
    EXPECT(gr_late_find(comm, NULL, 1000, &late) == GR_OK);
    EXPECT(late.rank == LATE_RANK && late.total_us > ROUNDS * LATE_US * 0.5);
    EXPECT(late.mean_us > 1000 && late.mean_us < late.total_us);
    EXPECT(gr_late_find(comm, NULL, 1e12, &late) == GR_OK && late.rank == -1);
    /* What was before counts no more. */
    EXPECT(gr_late_begin(comm, before) == GR_OK);
    EXPECT(gr_barrier(comm) == GR_OK);
    EXPECT(gr_late_find(comm, before, ROUNDS * LATE_US * 0.5, &late) == GR_OK && late.rank == -1);
    return 0;
}

static int wrong_arguments(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_skew skew = {.operations = 7};
    EXPECT(gr_comm_skew(NULL, 0, &skew) == GR_E_INVALID);
    EXPECT(gr_comm_skew(comm, 0, NULL) == GR_E_INVALID);
    EXPECT(gr_comm_skew(comm, -1, &skew) == GR_E_INVALID);
    EXPECT(gr_comm_skew(comm, gr_comm_size(comm), &skew) == GR_E_INVALID);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "there is no rank") != NULL);
    EXPECT(skew.operations == 7);
    EXPECT(gr_barrier(comm) == GR_OK);
    return 0;
}

/* In a sub-group ranks are its own; what is counted is that of the job. */
static int in_a_sub_group(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_comm *half = NULL;
    int rank = gr_comm_rank(comm);
    EXPECT(gr_comm_split(comm, rank % 2, rank, &half, NULL) == GR_OK);
    for (int i = 0; i < ROUNDS; i++) {
        EXPECT(gr_barrier(half) == GR_OK);
    }
    gr_skew in_half, in_all;
    int other = 1 - gr_comm_rank(half);
    EXPECT(gr_comm_skew(half, other, &in_half) == GR_OK);
    EXPECT(gr_comm_skew(comm, 2 * other + rank % 2, &in_all) == GR_OK);
    EXPECT(in_half.operations >= ROUNDS && in_half.operations == in_all.operations);
    gr_comm_destroy(half);
    return 0;
}

/* In `direct` every rank hears of every other one. */
static void over(const char *link, const char *algorithm, ranks_function *function)
{
    ranks_job job = {.size = 4, .link = link, .algorithm = algorithm, .tune = "off"};
    assert_int_equal(ranks_run(&job, function, 0), 0);
}

static void test_late_rank_in_the_lane(void **state)
{
    (void)state;
    over("shm", NULL, late_rank);
    over("shm", NULL, late_rank_waits_least);
    over("shm", NULL, late_rank_is_found);
}

static void test_late_rank_in_plans(void **state)
{
    (void)state;
    over("shm", "allreduce=direct", late_rank);
    over("shm", "allreduce=direct", late_rank_waits_least);
    over("tcp", "allreduce=direct", late_rank);
    over("tcp", "allreduce=direct", late_rank_waits_least);
    over("tcp", "allreduce=direct", late_rank_is_found);
}

static void test_sub_group(void **state)
{
    (void)state;
    over("shm", NULL, in_a_sub_group);
    over("tcp", NULL, in_a_sub_group);
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    over("shm", NULL, wrong_arguments);
}

static void test_alone(void **state)
{
    (void)state;
    gr_comm *comm = NULL;
    gr_diag diag;
    gr_skew skew = {.operations = 7};
    assert_int_equal(gr_comm_create(&comm, &diag), GR_OK);
    assert_int_equal(gr_barrier(comm), GR_OK);
    assert_int_equal(gr_comm_skew(comm, 0, &skew), GR_OK);
    assert_true(skew.operations == 0);
    assert_int_equal(gr_comm_skew(comm, 1, &skew), GR_E_INVALID);
    gr_comm_destroy(comm);
}

static void test_judgement(void **state)
{
    (void)state;
    /* Rank 1 is late, and rank 0, which waits for it before it sends, looks late as well. */
    gr_late_sums chain[] = {{2, 80, 8000, 4000}, {2, 82, 8200, 10}, {2, 1, 100, 4000}};
    gr_late late = gr_late_judge(chain, 3, 1000);
    assert_int_equal(late.rank, 1);
    assert_true(late.mean_us == 41 && late.total_us == 4100);
    assert_int_equal(gr_late_judge(chain, 3, 5000).rank, -1);
    gr_late_sums two[] = {{2, 80, 8000, 0}, {2, 82, 8200, 10}, {2, 1, 100, 4000}};
    assert_int_equal(gr_late_judge(two, 3, 1000).rank, -1); /* one as much as the other */
    gr_late_sums none[] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    assert_int_equal(gr_late_judge(none, 2, 0).rank, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_rank_in_the_lane),
        cmocka_unit_test(test_late_rank_in_plans),
        cmocka_unit_test(test_sub_group),
        cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_judgement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
