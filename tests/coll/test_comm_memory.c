/* SPDX-License-Identifier: Apache-2.0 */
/* Small operations with a root, where each rank takes memory of gr_alloc or of malloc as it likes.
 * Ranks that have given what they have to give go on, in front of those that sleep. */
#include "support_ranks.h"

#include "base/clock.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OPS = 3000, BYTES_MAX = 20000, RANKS_MAX = 4, COUNT_MAX = BYTES_MAX / 4 };
/* A machine whose cores are busy otherwise does as many as it can: ranks that take longer than two
 * minutes count as stuck. */
enum { LOOK_EVERY = 64, OPS_MIN = 320, ENOUGH_US = 40000000 };

/* What a rank does in operation `op`: the same number on all ranks. */
static uint32_t draw(int op, int what, int rank)
{
    uint64_t x = (uint64_t)op * 0x9e3779b97f4a7c15 + (uint64_t)what * 0xbf58476d1ce4e5b9 +
                 (uint64_t)rank * 0x94d049bb133111eb;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (uint32_t)(x >> 33);
}

static int32_t value(int op, int rank, size_t at)
{
    return (int32_t)((unsigned)op * 31 + (unsigned)rank * 7 + (unsigned)at % 1000);
}

static void fill(int32_t *to, int op, int rank, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = value(op, rank, i);
    }
}

typedef struct call_shape {
    gr_coll coll;
    int root;
    size_t count; /* of the buffer, or of a block */
    size_t in, out;
} call_shape;

static call_shape shape_of(int op, int rank, int size)
{
    static const gr_coll colls[] = {GR_COLL_BROADCAST, GR_COLL_REDUCE, GR_COLL_GATHER,
                                    GR_COLL_SCATTER};
    static const size_t bytes[] = {8, 1024, 1500, 6000, 16384, BYTES_MAX};
    size_t all = bytes[draw(op, 1, 0) % 6] / 4;
    call_shape s = {.coll = colls[draw(op, 0, 0) % 4],
                    .root = (int)(draw(op, 2, 0) % (unsigned)size)};
    bool root = rank == s.root, blocks = s.coll == GR_COLL_GATHER || s.coll == GR_COLL_SCATTER;
    s.count = blocks ? all / (size_t)size : all;
    size_t whole = blocks ? s.count * (size_t)size : s.count;
    bool root_gives = s.coll == GR_COLL_BROADCAST || s.coll == GR_COLL_SCATTER;
    s.in = !root_gives ? s.count : root ? whole : 0;
    s.out = root_gives ? s.count : root ? whole : 0;
    return s;
}

static int check(const int32_t *out, const call_shape *s, int op, int rank, int size)
{
    for (size_t i = 0; i < s->out; i++) {
        int32_t want = 0;
        switch (s->coll) {
        case GR_COLL_BROADCAST:
            want = value(op, s->root, i);
            break;
        case GR_COLL_SCATTER:
            want = value(op, s->root, (size_t)rank * s->count + i);
            break;
        case GR_COLL_GATHER:
            want = value(op, (int)(i / s->count), i % s->count);
            break;
        default:
            for (int from = 0; from < size; from++) {
                want += value(op, from, i);
            }
        }
        if (out[i] != want) {
            fprintf(stderr, "operation %d, element %zu: %d, not %d\n", op, i, out[i], want);
            return 1;
        }
    }
    return 0;
}

/* The same answer on all ranks. */
static bool is_enough(gr_comm *comm, int op, int64_t since_us)
{
    int32_t any = gr_now_ns() / 1000 - since_us > ENOUGH_US;
    return op >= OPS_MIN && op % LOOK_EVERY == 0 &&
           gr_allreduce(comm, &any, 1, GR_I32, GR_MAX) == GR_OK && any != 0;
}

static int run_mixed(gr_comm *comm, const ranks_job *job)
{
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), bad = 0;
    void *shared[2] = {NULL, NULL};
    int32_t *own[2] = {malloc(BYTES_MAX), malloc(BYTES_MAX)};
    (void)job;
    int32_t pids[RANKS_MAX] = {0};
    if (!own[0] || !own[1] || ranks_get_pids(comm, pids) != GR_OK ||
        gr_alloc(comm, BYTES_MAX, &shared[0]) != GR_OK ||
        gr_alloc(comm, BYTES_MAX, &shared[1]) != GR_OK) {
        return 1;
    }
    int64_t since_us = gr_now_ns() / 1000;
    for (int op = 0; op < OPS && !bad && !is_enough(comm, op, since_us); op++) {
        call_shape s = shape_of(op, rank, size);
        bool mine = draw(op, 3, rank) % 2;
        int32_t *in = mine ? own[0] : shared[0], *out = mine ? own[1] : shared[1];
        fill(in, op, rank, s.in);
        gr_call call = {.coll = s.coll,
                        .dtype = GR_I32,
                        .op = GR_SUM,
                        .in = s.in > 0 ? in : NULL,
                        .out = s.out > 0 ? out : NULL,
                        .count = s.count,
                        .root = s.root};
        if (draw(op, 4, rank) % 16 == 0) {
            ranks_wait_until_others_sleep(comm, pids);
        }
        bad = gr_run(comm, &call, 1) != GR_OK;
        if (bad) {
            fprintf(stderr, "operation %d: %s\n", op, gr_comm_diag(comm)->text);
        }
        bad = bad || check(out, &s, op, rank, size);
    }
    free(own[0]);
    free(own[1]);
    gr_comm_destroy(comm);
    return bad;
}

static void rooted_operations_on_mixed_memory_give_the_same(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++) {
        ranks_job job = {.size = size, .link = "shm"};
        assert_int_equal(ranks_run(&job, run_mixed, 0), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rooted_operations_on_mixed_memory_give_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
