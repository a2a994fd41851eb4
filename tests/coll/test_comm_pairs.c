/* SPDX-License-Identifier: Apache-2.0 */
/* The last rank calls another kind of operation than all others, each kind against each, with so
 * few bytes that they fit in on the way, and with more than any link takes before the peer reads:
 * also ranks that only send, or only receive, are told of it, long before they give up a peer that
 * does not come (support_ranks.c). */
#include "base/clock.h"
#include "coll/plan/plan.h"
#include "sanitized.h"
#include "support_ranks.h"
#include <gradus/coll.h>

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KINDS = GR_COLL_RECV + 1, LARGE = 2 << 20 };

static const int64_t PATIENCE_NS = INT64_C(60000000000);

typedef struct pairs {
    gr_coll ours, theirs;
    size_t count; /* f32 */
} pairs;

static size_t count_of(gr_coll coll, size_t count, int size)
{
    switch (coll) {
    case GR_COLL_BARRIER:
        return 0;
    case GR_COLL_ALLREDUCE:
    case GR_COLL_BROADCAST:
    case GR_COLL_REDUCE:
    case GR_COLL_SEND:
    case GR_COLL_RECV:
        return count;
    default:
        return count / (size_t)size; /* of each block */
    }
}

static bool both_sides(const gr_diag *diag, const pairs *pair)
{
    return strstr(diag->text, gr_coll_name(pair->ours)) &&
           strstr(diag->text, gr_coll_name(pair->theirs)) && strstr(diag->text, "ours.c:1") &&
           strstr(diag->text, "theirs.c:2");
}

/* Nobody calls anything else, but all look in. */
static int run_pair(gr_comm *comm, const ranks_job *job)
{
    const pairs *pair = job->arg;
    int rank = gr_comm_rank(comm), last = gr_comm_size(comm) - 1;
    float *memory = calloc(2 * pair->count, sizeof *memory);
    EXPECT(memory != NULL);
    gr_call call = {.coll = rank == last ? pair->theirs : pair->ours,
                    .site = rank == last ? "theirs.c:2" : "ours.c:1",
                    .in = memory,
                    .out = memory + pair->count};
    call.count = count_of(call.coll, pair->count, last + 1);
    if (call.coll >= GR_COLL_SEND) {
        call.root = rank == last ? 0 : last;
    }
    gr_status status = gr_barrier(comm); /* others may have failed behind it already */
    int64_t begun_ns = gr_now_ns();
    if (status == GR_OK) {
        status = gr_run(comm, &call, 1);
    }
    while ((status == GR_OK || status == GR_PENDING) && gr_now_ns() - begun_ns < PATIENCE_NS) {
        status = gr_comm_poll(comm);
        sched_yield();
    }
    free(memory);
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(both_sides(gr_comm_diag(comm), pair));
    gr_comm_destroy(comm);
    return 0;
}

/* A send that fits in on the way is over before it can be wrong; and over tcp nothing overtakes
 * what a send has on the way, and the system takes some megabytes of it. */
static bool is_seen(const ranks_job *job, const pairs *pair)
{
    bool sends = pair->ours == GR_COLL_SEND || pair->theirs == GR_COLL_SEND;
    bool meet = pair->ours >= GR_COLL_SEND && pair->theirs >= GR_COLL_SEND;
    bool taken = strcmp(job->link, "tcp") == 0 || pair->count < LARGE;
    /* Who has sent all that others need to be done waits for nobody. */
    bool rooted = pair->ours == GR_COLL_BROADCAST || pair->ours == GR_COLL_SCATTER;
    bool over = taken && rooted && pair->theirs == GR_COLL_RECV && job->size > 2;
    /* Nor does who has put a small part into shared memory, and that is all that it has to give. */
    bool small = strcmp(job->link, "shm") == 0 && pair->count < LARGE;
    over |= small && ((rooted && pair->theirs == GR_COLL_RECV) ||
                      (pair->ours == GR_COLL_RECV &&
                       (pair->theirs == GR_COLL_REDUCE || pair->theirs == GR_COLL_GATHER)));
    return !(sends && taken) && !over && (!meet || (pair->ours == pair->theirs && job->size == 2));
}

static void test_pairs(const char *link, size_t count)
{
    for (int ours = 0; ours < KINDS; ours++) {
        for (int theirs = SANITIZED ? ours % 3 : 0; theirs < KINDS; theirs += SANITIZED ? 3 : 1) {
            pairs pair = {.ours = (gr_coll)ours, .theirs = (gr_coll)theirs, .count = count};
            int order = (ours + theirs) % 2; /* half of the orders with two ranks, half with four */
            ranks_job job = {.size = (ours < theirs) == (order == 0) ? 2 : 4,
                             .link = link,
                             .tune = "off",
                             .progress = 2,
                             .threads = GR_THREADS_ONE,
                             .arg = &pair};
            bool differ = ours != theirs || ours >= GR_COLL_SEND;
            bool asked = job.size == 2 || ours < GR_COLL_SEND;
            if (differ && asked && is_seen(&job, &pair) && ranks_run(&job, run_pair, 0)) {
                fail_msg("%d ranks over %s, %zu elements: %s against %s", job.size, link, count,
                         gr_coll_name(pair.ours), gr_coll_name(pair.theirs));
            }
        }
    }
}

static void test_shm(void **state)
{
    (void)state;
    test_pairs("shm", LARGE);
}

static void test_tcp(void **state)
{
    (void)state;
    test_pairs("tcp", LARGE);
}

static void test_small(void **state)
{
    (void)state;
    test_pairs("tcp", 100);
    test_pairs("shm", 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shm), cmocka_unit_test(test_tcp),
                                       cmocka_unit_test(test_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
