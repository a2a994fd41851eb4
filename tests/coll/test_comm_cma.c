/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies while the kernel copies between it and another one. */
#include "link/shared.h"
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 1 << 20, DEATHS = 12 };

static int say(gr_comm *comm, gr_status status, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", what, gr_status_name(status), gr_comm_diag(comm)->text);
    return 1;
}

typedef struct death {
    int64_t after_ns;
    gr_coll coll;
} death;

/* What element i of rank `rank` is before. */
static float given(const ranks_job *job, const death *d, int rank, int i)
{
    int block = i / (COUNT / job->size);
    return (float)(d->coll == GR_COLL_ALLREDUCE ? i % 1000 : rank * job->size + block);
}

static float expected(const ranks_job *job, const death *d, int rank, int i)
{
    int block = i / (COUNT / job->size);
    switch (d->coll) {
    case GR_COLL_ALLREDUCE:
        return (float)(job->size * (i % 1000));
    case GR_COLL_ALLTOALL:
        return (float)(block * job->size + rank);
    default: /* a gather at rank 0 */
        return given(job, d, rank == 0 ? block : rank, i);
    }
}

static gr_status call(gr_comm *comm, const ranks_job *job, const death *d, float *values)
{
    size_t block = COUNT / (size_t)job->size;
    int rank = gr_comm_rank(comm);
    switch (d->coll) {
    case GR_COLL_ALLREDUCE:
        return gr_allreduce(comm, values, COUNT, GR_F32, GR_SUM);
    case GR_COLL_ALLTOALL:
        return gr_alltoall(comm, NULL, values, block, GR_F32);
    default:
        return gr_gather(comm, rank == 0 ? NULL : values + (size_t)rank * block,
                         rank == 0 ? values : NULL, block, GR_F32, 0);
    }
}

/* Rank 1 dies in the middle of an operation, or between two. What the others were told is done is
 * right. One of them may not have come out of the barrier by then, and hears of the death there. */
static int run_until_death(gr_comm *comm, const ranks_job *job)
{
    const death *d = job->arg;
    int rank = gr_comm_rank(comm);
    float *values = malloc(COUNT * sizeof *values);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_nsec = d->after_ns}};
    gr_status status = gr_barrier(comm);
    if (!values) {
        return say(comm, status, "no memory");
    }
    if (rank == 1 && (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
                      timer_settime(timer, 0, &when, NULL) != 0)) {
        return 1;
    }
    while (status == GR_OK) {
        for (int i = 0; i < COUNT; i++) {
            values[i] = given(job, d, rank, i);
        }
        status = call(comm, job, d, values);
        for (int i = 0; status == GR_OK && i < COUNT; i++) {
            if (values[i] != expected(job, d, rank, i)) {
                return say(comm, status, "wrong");
            }
        }
    }
    /* Seen, or heard of. */
    bool seen = (status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN) &&
                gr_comm_diag(comm)->peer_rank == 1;
    if (!seen) {
        return say(comm, status, "not as rank 1 died");
    }
    free(values);
    gr_comm_destroy(comm);
    return 0;
}

static void test_death_in_the_middle(void **state)
{
    static const gr_coll colls[] = {GR_COLL_ALLREDUCE, GR_COLL_ALLTOALL, GR_COLL_GATHER};
    (void)state;
    for (int i = 0; i < DEATHS; i++) {
        const death d = {.after_ns = 1000 + i / 3 * INT64_C(370000), .coll = colls[i % 3]};
        /* Four have no core each on small machines: then whoever runs reads and writes. */
        ranks_job job = {.size = i / 3 % 4 < 2 ? 2 : 4,
                         .link = "shm",
                         .progress = 1 + i / 3 % 2,
                         .cma = GR_CMA_ON,
                         .arg = &d};
        assert_int_equal(ranks_run(&job, run_until_death, 2), 0);
    }
}

/* The kernel tries the ends of a buffer alone, and the first time alone. */
static int run_with_a_hole(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size_bytes = 64 * page;
    uint8_t *mem =
        mmap(NULL, 2 * size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(mem != MAP_FAILED);
    for (int i = 0; i < 4; i++) {
        EXPECT(gr_gather(comm, rank == 0 ? NULL : mem, rank == 0 ? mem : NULL, size_bytes, GR_U8,
                         0) == GR_OK);
    }
    EXPECT(rank == 0 || munmap(mem + 8 * page, page) == 0); /* of what rank 0 fetches */
    gr_status status =
        gr_gather(comm, rank == 0 ? NULL : mem, rank == 0 ? mem : NULL, size_bytes, GR_U8, 0);
    EXPECT(rank == 1 || status == GR_E_PROTOCOL);
    EXPECT(rank == 1 || gr_comm_diag(comm)->peer_rank == 1);
    EXPECT(status != GR_OK);
    munmap(mem, 2 * size_bytes);
    gr_comm_destroy(comm);
    return 0;
}

static void memory_that_is_freed_later_ends_the_call(void **state)
{
    (void)state;
    if (gr_cma_try() != 0) {
        skip(); /* the call copies it itself */
    }
    for (int progress = 1; progress <= 2; progress++) {
        const ranks_job job = {.size = 2, .link = "shm", .progress = progress, .cma = GR_CMA_ON};
        assert_int_equal(ranks_run(&job, run_with_a_hole, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_in_the_middle),
        cmocka_unit_test(memory_that_is_freed_later_ends_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
