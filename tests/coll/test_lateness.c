/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes late to operations, as gr_comm_skew tells it. */
#include "base/clock.h"
#include "coll/diagnose/lateness.h"
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Every rank has a block of COUNT elements, so that something goes from each to each. */
enum { RANKS = 4, LATE_RANK = 2, ROUNDS = 12, COUNT = 1024 };

/* On a busy machine other ranks come late as well: what holds of a rank that is clearly later than
 * the machine makes the others is asked again with twice the lateness. */
enum { LATE_FIRST_US = 10000, LATE_LAST_US = 640000 };

/* Busy elsewhere, as a rank with more to compute is. */
static void compute_us(int64_t us)
{
    int64_t end_ns = gr_now_ns() + us * 1000;
    while (gr_now_ns() < end_ns) {
    }
}

/* After each of them comes a barrier, so that lateness does not carry over. */
static gr_status late_rounds(gr_comm *comm, int64_t late_us)
{
    int64_t values[COUNT] = {0};
    gr_status status = gr_barrier(comm);
    for (int i = 0; i < ROUNDS && status == GR_OK; i++) {
        if (gr_comm_rank(comm) == LATE_RANK) {
            compute_us(late_us);
        }
        status = gr_allreduce(comm, values, COUNT, GR_I64, GR_SUM);
        if (status == GR_OK) {
            status = gr_barrier(comm);
        }
    }
    return status;
}

/* What is to hold on every rank after rounds that have cost each of the others `total_us`. */
typedef bool holds_function(gr_comm *comm, double total_us);

static int holds_of_a_late_rank(gr_comm *comm, holds_function *holds)
{
    for (int64_t late_us = LATE_FIRST_US; late_us <= LATE_LAST_US; late_us *= 2) {
        EXPECT(late_rounds(comm, late_us) == GR_OK);
        int32_t all = holds(comm, (double)(ROUNDS * late_us));
        EXPECT(gr_allreduce(comm, &all, 1, GR_I32, GR_MIN) == GR_OK);
        if (all) {
            return 0;
        }
    }
    fprintf(stderr, "rank %d: it never holds\n", gr_comm_rank(comm));
    return 1;
}

static bool is_seen(gr_comm *comm, double total_us)
{
    gr_skew skew;
    return gr_comm_rank(comm) == LATE_RANK ||
           (gr_comm_skew(comm, LATE_RANK, &skew) == GR_OK && skew.max_us >= total_us / ROUNDS / 2 &&
            skew.mean_us * (double)skew.operations >= total_us / 2);
}

static int late_rank(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_skew skew;
    if (holds_of_a_late_rank(comm, is_seen) != 0) {
        return 1;
    }
    EXPECT(gr_comm_skew(comm, LATE_RANK, &skew) == GR_OK);
    if (gr_comm_rank(comm) == LATE_RANK) {
        EXPECT(skew.operations == 0 && skew.mean_us == 0 && skew.max_us == 0);
        return 0;
    }
    EXPECT(skew.operations >= ROUNDS);
    EXPECT(skew.mean_us <= skew.max_us && skew.recent_us <= skew.max_us);
    return 0;
}

/* Nobody waits for it, so whoever else waits longest waits longer than it does. */
static bool waits_least(gr_comm *comm, double total_us)
{
    (void)total_us;
    double worst[RANKS] = {0};
    int rank = gr_comm_rank(comm);
    bool holds = true;
    for (int peer = 0; peer < RANKS; peer++) {
        gr_skew skew;
        holds &= gr_comm_skew(comm, peer, &skew) == GR_OK;
        worst[rank] = skew.mean_us > worst[rank] ? skew.mean_us : worst[rank];
    }
    holds &= gr_allreduce(comm, worst, RANKS, GR_F64, GR_SUM) == GR_OK;
    for (int peer = 0; peer < RANKS; peer++) {
        holds &= peer == LATE_RANK || worst[LATE_RANK] < worst[peer];
    }
    return holds;
}

static int late_rank_waits_least(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    return holds_of_a_late_rank(comm, waits_least);
}

static bool is_found(gr_comm *comm, double total_us)
{
    gr_lateness late;
    return gr_lateness_find(comm, NULL, 1000, &late) == GR_OK && late.rank == LATE_RANK &&
           late.total_us > total_us / 2 && late.mean_us > 1000 && late.mean_us < late.total_us;
}

static bool counts_no_more(gr_comm *comm, double total_us)
{
    gr_skew before[RANKS];
    gr_lateness late;
    return gr_lateness_begin(comm, before) == GR_OK && gr_barrier(comm) == GR_OK &&
           gr_lateness_find(comm, before, total_us / 2, &late) == GR_OK && late.rank == -1;
}

static int late_rank_is_found(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_lateness late;
    if (holds_of_a_late_rank(comm, is_found) != 0 ||
        holds_of_a_late_rank(comm, counts_no_more) != 0) {
        return 1;
    }
    EXPECT(gr_lateness_find(comm, NULL, 1e12, &late) == GR_OK && late.rank == -1);
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
    ranks_job job = {.size = RANKS, .link = link, .algorithm = algorithm, .tune = "off"};
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
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
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
    gr_lateness_sums chain[] = {{2, 800, 8000, 4000}, {2, 820, 8200, 10}, {2, 10, 100, 4000}};
    gr_lateness late = gr_lateness_judge(chain, 3, 1000);
    assert_int_equal(late.rank, 1);
    assert_true(late.mean_us == 410 && late.total_us == 4100);
    assert_int_equal(gr_lateness_judge(chain, 3, 5000).rank, -1);
    gr_lateness_sums two[] = {{2, 800, 8000, 0}, {2, 820, 8200, 10}, {2, 10, 100, 4000}};
    assert_int_equal(gr_lateness_judge(two, 3, 1000).rank, -1);  /* one as much as the other */
    gr_lateness_sums often[] = {{1, 0, 0, 0}, {1, 40, 8000, 0}}; /* 0.0 ms, but many times */
    assert_int_equal(gr_lateness_judge(often, 2, 1000).rank, -1);
    gr_lateness_sums none[] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    assert_int_equal(gr_lateness_judge(none, 2, 0).rank, -1);
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
