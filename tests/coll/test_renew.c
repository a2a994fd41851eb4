/* SPDX-License-Identifier: Apache-2.0 */
/* Members die at any moment; the others go on in the next generation. */
#include "base/fail.h"
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#undef EXPECT /* there is no one communicator here */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: member %d: not so: %s\n", __FILE__, __LINE__, number,          \
                    #condition);                                                                   \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

enum { STEPS = 300, COUNT = 5000, MEMBERS = 4 };

/* Which members die, and when, counted from their joining. */
typedef struct deaths {
    int64_t after_us[MEMBERS]; /* 0: never */
    int left;
} deaths;

static void die_after(int64_t us)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
        timer_settime(timer, 0, &when, NULL) != 0) {
        _exit(7);
    }
}

/* A counter that all members raise together stands for a model: each step needs an exact sum over
 * the members, and who did not finish the step takes the counter from one that did. */
static gr_status raise_counter(gr_comm *comm, int64_t *counter, int64_t *values)
{
    for (int i = 0; i < COUNT; i++) {
        values[i] = *counter + i;
    }
    gr_status status = gr_allreduce(comm, values, COUNT, GR_I64, GR_SUM);
    if (status != GR_OK) {
        return status;
    }
    for (int i = 0; i < COUNT; i++) {
        if (values[i] != (*counter + i) * gr_comm_size(comm)) {
            return GR_E_BUG;
        }
    }
    *counter += 1;
    return GR_OK;
}

/* The most that any has finished, which is at most one step more than the least. */
static gr_status agree(gr_comm *comm, int64_t *counter)
{
    int64_t most = *counter;
    gr_status status = gr_allreduce(comm, &most, 1, GR_I64, GR_MAX);
    if (status == GR_OK && most > *counter + 1) {
        return GR_E_BUG;
    }
    *counter = status == GR_OK ? most : *counter;
    return status;
}

static int survive(gr_comm *comm, const ranks_job *job)
{
    const deaths *plan = job->arg;
    int number = (int)job->config->rank; /* its rank may be another one by now */
    int64_t counter = 0, *values = malloc(COUNT * sizeof *values);
    gr_diag diag;
    if (plan->after_us[number] > 0) {
        die_after(plan->after_us[number]);
    }
    bool agreed = false; /* in this generation, on who has finished what */
    while (counter < STEPS || gr_comm_size(comm) > plan->left) {
        gr_status status = agreed ? raise_counter(comm, &counter, values) : agree(comm, &counter);
        agreed = status == GR_OK;
        if (agreed) {
            continue;
        }
        if (!gr_fault_of_peer(status)) {
            fprintf(stderr, "member %d: %s: %s\n", number, gr_status_name(status),
                    gr_comm_diag(comm)->text);
            return 1;
        }
        if (gr_comm_renew(&comm, &diag) != GR_OK) {
            fprintf(stderr, "member %d: %s\n", number, diag.text);
            return 1;
        }
    }
    if (gr_comm_size(comm) != plan->left) {
        fprintf(stderr, "member %d: %d members are left, not %d\n", number, gr_comm_size(comm),
                plan->left);
        return 1;
    }
    /* All have the same. */
    int64_t least = counter, most = counter;
    EXPECT(gr_allreduce(comm, &least, 1, GR_I64, GR_MIN) == GR_OK);
    EXPECT(gr_allreduce(comm, &most, 1, GR_I64, GR_MAX) == GR_OK);
    EXPECT(least == most);
    gr_comm_destroy(comm);
    free(values);
    return 0;
}

static void run(const char *link, const deaths *plan, uint64_t may_die)
{
    const ranks_job job = {
        .size = MEMBERS, .members_min = 1, .link = link, .tune = "off", .arg = plan};
    if (ranks_run(&job, survive, may_die) != 0) {
        fail_msg("over %s, deaths after %lld, %lld, %lld, %lld us", link,
                 (long long)plan->after_us[0], (long long)plan->after_us[1],
                 (long long)plan->after_us[2], (long long)plan->after_us[3]);
    }
}

static void test_one_dies(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 16; i++) {
        deaths plan = {.left = MEMBERS - 1};
        plan.after_us[i / 2 % MEMBERS] = 1 + i * 700;
        run(links[i % 2], &plan, UINT64_C(1) << (i / 2 % MEMBERS));
    }
}

static void test_two_die(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 16; i++) {
        deaths plan = {.left = MEMBERS - 2};
        int first = i / 2 % MEMBERS, second = (first + 1 + i / 8) % MEMBERS;
        plan.after_us[first] = 3000 + i * 100;
        plan.after_us[second] = 3000 + i * 100 + i * i * 40; /* from at once to in recovery */
        run(links[i % 2], &plan, UINT64_C(1) << first | UINT64_C(1) << second);
    }
}

static void test_only_one_is_left(void **state)
{
    (void)state;
    deaths plan = {.after_us = {2000, 2500, 0, 4000}, .left = 1};
    run("shm", &plan, 0xb);
    run("tcp", &plan, 0xb);
}

/* ---- Reports of a generation that is over ---------------------------------------------------- */
enum {
    FIRST_COUNT = 64,
    GIVE_UP_US = 3000000 /* longer than a rank on a busy machine waits for a core */
};

/* Rank 0 waits for rank 1, which calls nothing, and gives up. The coordinator has told rank 1 of
 * that, which reads it only on its way to the next generation. There the place of that operation
 * has another one. */
static int renew_without_having_listened(gr_comm *comm, const ranks_job *job)
{
    const int *given_up = job->arg;
    int number = (int)job->config->rank;
    float values[FIRST_COUNT] = {0};
    int64_t word = 1;
    char byte = 0;
    gr_diag diag;
    for (int i = 0; i < FIRST_COUNT; i++) {
        EXPECT(gr_allreduce(comm, &word, 1, GR_I64, GR_MAX) == GR_OK);
    }
    if (number == 0) {
        EXPECT(gr_allreduce(comm, values, FIRST_COUNT, GR_F32, GR_SUM) == GR_E_PEER_SLOW);
        EXPECT(write(given_up[1], &byte, 1) == 1);
    } else {
        EXPECT(read(given_up[0], &byte, 1) == 1);
    }
    EXPECT(gr_comm_renew(&comm, &diag) == GR_OK);
    for (int i = 0; i < 4 * FIRST_COUNT; i++) {
        EXPECT(gr_allreduce(comm, &word, 1, GR_I64, GR_MAX) == GR_OK);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void renew_with_unread_reports_compares_nothing_with_them(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        int given_up[2];
        assert_int_equal(pipe(given_up), 0);
        const ranks_job job = {.size = 2,
                               .members_min = 1,
                               .link = links[i],
                               .tune = "off",
                               .progress = 2,
                               .op_timeout_us = GIVE_UP_US,
                               .arg = given_up};
        assert_int_equal(ranks_run(&job, renew_without_having_listened, 0), 0);
        close(given_up[0]);
        close(given_up[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_dies),
        cmocka_unit_test(test_two_die),
        cmocka_unit_test(test_only_one_is_left),
        cmocka_unit_test(renew_with_unread_reports_compares_nothing_with_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
