/* SPDX-License-Identifier: Apache-2.0 */
/* A rank waits for one that is gone, and has no connection to it: the coordinator says so. */
#include "support_ranks.h"

#include <errno.h>
#include <gradus/coll.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, WAITS = 1 };

typedef enum when { BEFORE, MEANWHILE } when;

/* In shared memory, as a collective would make connections. */
typedef struct board {
    when when;
    int gone;
    bool leaves; /* in order; else it is killed */
    _Atomic int32_t pids[RANKS];
} board;

static int32_t pid_of(board *b, int rank)
{
    while (atomic_load(&b->pids[rank]) == 0) {
        poll(NULL, 0, 1);
    }
    return atomic_load(&b->pids[rank]);
}

static int go(gr_comm *comm, board *b)
{
    if (b->when == MEANWHILE) {
        int32_t pids[RANKS] = {0};
        for (int rank = 0; rank < RANKS; rank++) {
            pids[rank] = pid_of(b, rank);
        }
        ranks_wait_until_others_sleep(comm, pids);
    }
    if (!b->leaves) {
        raise(SIGKILL);
    }
    gr_comm_destroy(comm);
    return 0;
}

static int run(gr_comm *comm, const ranks_job *job)
{
    board *b = (board *)(uintptr_t)job->arg;
    int rank = gr_comm_rank(comm);
    int32_t word = 0;
    atomic_store(&b->pids[rank], (int32_t)getpid());
    if (rank == b->gone) {
        return go(comm, b);
    }
    if (b->when == BEFORE) {
        int32_t pid = pid_of(b, b->gone);
        while (kill(pid, 0) == 0) {
            poll(NULL, 0, 1);
        }
    }
    /* 3 waits for 0, 0 for 1, 1 for 2; or 3 for 2, 2 for 1, 1 for 0 */
    int from = rank == WAITS ? b->gone : b->gone == 0 ? rank - 1 : rank == 0 ? WAITS : 0;
    gr_status status = gr_recv(comm, &word, 1, GR_I32, from);
    const gr_diag *diag = gr_comm_diag(comm);
    EXPECT(diag->status == GR_E_PEER_LOST || rank != WAITS);
    if (rank != WAITS) { /* told by who waited for it, or missing a rank that has failed so */
        EXPECT(status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN);
    } else {
        EXPECT(status == GR_E_PEER_LOST && diag->peer_rank == b->gone);
        EXPECT(strstr(diag->text, b->leaves      ? "rank 2 has left in order"
                                  : b->gone == 0 ? "rank 0"
                                                 : "rank 2"));
    }
    gr_comm_destroy(comm);
    return 0;
}

static void rank_that_is_gone_is_missed_without_a_connection(void **state)
{
    static const char *const links[] = {"tcp", "auto"};
    (void)state;
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    for (int i = 0; i < 6; i++) {
        bool leaves = i % 3 == 2;
        memset((void *)b, 0, sizeof *b);
        b->when = i % 3 == 1 ? MEANWHILE : BEFORE;
        b->gone = 2;
        b->leaves = leaves;
        const ranks_job job = {.size = RANKS,
                               .link = links[i / 3],
                               .per_host = i < 3 ? 0 : 1,
                               .tune = "off",
                               .on_demand = true,
                               .arg = b};
        assert_int_equal(ranks_run(&job, run, leaves ? 0 : 1U << b->gone), 0);
    }
    munmap(b, sizeof *b);
}

/* Nobody can say so. The time of an operation is less than a rank waits for a connection of one
 * that lives. */
static void host_of_the_coordinator_is_missed_without_a_connection(void **state)
{
    static const char *const links[] = {"tcp", "auto"};
    (void)state;
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(b != MAP_FAILED);
    for (int i = 0; i < 4; i++) {
        memset((void *)b, 0, sizeof *b);
        b->when = i % 2 == 1 ? MEANWHILE : BEFORE;
        const ranks_job job = {.size = RANKS,
                               .link = links[i / 2],
                               .per_host = i < 2 ? 0 : 1,
                               .tune = "off",
                               .on_demand = true,
                               .hosted = true,
                               .op_timeout_us = 8000000,
                               .arg = b};
        assert_int_equal(ranks_run(&job, run, 1U << b->gone), 0);
    }
    munmap(b, sizeof *b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_that_is_gone_is_missed_without_a_connection),
        cmocka_unit_test(host_of_the_coordinator_is_missed_without_a_connection)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
