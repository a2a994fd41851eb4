/* SPDX-License-Identifier: Apache-2.0 */
/* One rank is stopped while the others call operations: whoever it is and however far they are from
 * it in the algorithm, and also where some are an operation further than others, all survivors have
 * a sentence that names this one, its host, and an operation that it is missing. */
#include "sanitized.h"
#include "support_ranks.h"
#include <gradus/coll.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    RANKS_MAX = 8,
    COUNT = 100,
    BEFORE = 3,
    AT_ONCE = SANITIZED ? 4 : 7,
    STALL_US = 3000000 /* longer than a rank on a busy machine waits for a core */
};

typedef struct victim_of {
    int victim;
    bool gathers; /* rank 0 waits in a gather, in which the others have nothing to wait for */
    atomic_int *through; /* of all ranks: those that have said what they have to say */
} victim_of;

static int call_late(gr_comm *comm, const victim_of *what, int64_t *pids)
{
    int victim = what->victim, rank = gr_comm_rank(comm);
    float words[COUNT] = {0};
    EXPECT(gr_allgather(comm, pids, 1, GR_I64) == GR_OK);
    gr_call call = {
        .out = words, .count = COUNT, .op = GR_MAX, .name = "early", .site = "loop.c:1"};
    for (int i = 0; i < BEFORE; i++) {
        EXPECT(gr_run(comm, &call, 1) == GR_OK);
    }
    if (rank == victim) {
        raise(SIGSTOP);
        return 1; /* it is not woken, but killed */
    }
    call.name = "late";
    call.site = "loop.c:9";
    float all[RANKS_MAX * COUNT];
    gr_call gather = {.coll = GR_COLL_GATHER,
                      .in = words,
                      .out = all,
                      .count = COUNT,
                      .name = "late",
                      .site = "loop.c:9"};
    gr_status status = what->gathers ? gr_run(comm, &gather, 1) : GR_OK;
    status = status == GR_OK ? gr_run(comm, &call, 1) : status;
    const char *text = gr_comm_diag(comm)->text;
    char who[32];
    snprintf(who, sizeof who, "for rank %d (host ", victim);
    EXPECT(status == GR_E_PEER_SLOW || status == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_diag(comm)->peer_rank == victim && strstr(text, who));
    EXPECT(strstr(text, "\"late\" at loop.c:9") && strstr(text, "GRADUS_STALL_FAIL"));
    /* Who waits for it itself knows what it did last. */
    EXPECT(strstr(text, "the last that came from it was of operation") ||
           strstr(text, "through which it would come here"));
    return 0;
}

static int run_stopped(gr_comm *comm, const ranks_job *job)
{
    const victim_of *what = job->arg;
    int survivors = gr_comm_size(comm) - 1;
    int64_t pids[RANKS_MAX] = {0};
    pids[gr_comm_rank(comm)] = getpid();
    int result = call_late(comm, what, pids);
    gr_comm_destroy(comm);
    /* Not before: to a rank that was held up it would have died, not stopped. */
    bool last = atomic_fetch_add(what->through, 1) + 1 == survivors;
    return last && pids[what->victim] > 0 && kill((pid_t)pids[what->victim], SIGKILL) != 0 ? 1
                                                                                           : result;
}

typedef struct way {
    const char *link, *algorithm; /* NULL: shared memory */
    bool gathers;
} way;

static const way ways[] = {
    {"shm", NULL, false},
    {"shm", "allreduce=direct", false},
    {"shm", "allreduce=ring", false},
    {"tcp", "allreduce=ring", false},
    {"tcp", "allreduce=tree", false},
    {"shm", "allreduce=halving-doubling", false},
    {"shm", NULL, true},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static bool stop_one(const way *w, int size, int victim)
{
    atomic_int *through =
        mmap(NULL, sizeof *through, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (through == MAP_FAILED) {
        return false;
    }
    victim_of what = {.victim = victim, .gathers = w->gathers, .through = through};
    ranks_job job = {.size = size,
                     .link = w->link,
                     .algorithm = w->algorithm,
                     .tune = "off",
                     .inexact = true,
                     .progress = 2,
                     .op_timeout_us = STALL_US,
                     .arg = &what};
    if (ranks_run(&job, run_stopped, UINT64_C(1) << victim) != 0) {
        fprintf(stderr, "rank %d of %d over %s by %s\n", victim, size, w->link,
                w->algorithm ? w->algorithm : "shm");
        return false;
    }
    return true;
}

typedef struct stop {
    const way *way;
    int size, victim;
} stop;

/* Many at the same time: they only wait. */
static void stop_each(const stop *stops, int count)
{
    pid_t pids[AT_ONCE];
    for (int first = 0; first < count; first += AT_ONCE) {
        int several = count - first < AT_ONCE ? count - first : AT_ONCE;
        bool all = true;
        for (int i = 0; i < several; i++) {
            const stop *one = &stops[first + i];
            fflush(NULL);
            pids[i] = fork();
            assert_true(pids[i] >= 0);
            if (pids[i] == 0) {
                _exit(stop_one(one->way, one->size, one->victim) ? 0 : 1);
            }
        }
        for (int i = 0; i < several; i++) {
            int status = 0;
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            all = all && status == 0;
        }
        assert_true(all);
    }
}

static void test_comm_any_of_four_stops_is_named(void **state)
{
    (void)state;
    stop stops[4 * WAYS];
    for (int i = 0; i < 4 * WAYS; i++) {
        stops[i] = (stop){.way = &ways[i / 4], .size = 4, .victim = i % 4};
    }
    stop_each(stops, 4 * WAYS);
}

static void test_comm_one_of_eight_stops_is_named(void **state)
{
    (void)state;
    stop stops[WAYS];
    for (int i = 0; i < WAYS; i++) {
        stops[i] = (stop){.way = &ways[i], .size = RANKS_MAX, .victim = (5 * i + 2) % RANKS_MAX};
    }
    stop_each(stops, WAYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_comm_any_of_four_stops_is_named),
                                       cmocka_unit_test(test_comm_one_of_eight_stops_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
