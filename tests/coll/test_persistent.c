/* SPDX-License-Identifier: Apache-2.0 */
/* Persistent operations: results as of the calls they stand for, however often they are started,
 * whatever stands between the starts; what is refused; what they outlive. */
#include "coll/comm_internal.h"
#include "coll/shm/shm_coll_internal.h"
#include "support_ranks.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZES = 4, ROUNDS = 40, RANKS = 4, KINDS = 5 };
static const size_t sizes[SIZES] = {1, 200, 5000, 70000};

/* What a start of operation `kind` must leave in element 0 and in the last one. */
static float wanted(int kind, int size, int round)
{
    float sum = 0;
    for (int rank = 0; rank < size; rank++) {
        sum += (float)(rank + round);
    }
    return kind == 0 ? sum : kind == 1 ? 2 * sum : (float)round;
}

/* 0: allreduce in place; 1: out of place with a factor; 2: broadcast from 0; 3: barrier; 4:
 * allgather with counts by rank. */
static gr_call call_of(const gr_comm *comm, int kind, float *in, float *out, size_t count,
                       const size_t *counts)
{
    static const gr_coll colls[KINDS] = {GR_COLL_ALLREDUCE, GR_COLL_ALLREDUCE, GR_COLL_BROADCAST,
                                         GR_COLL_BARRIER, GR_COLL_ALLGATHER};
    gr_call call = {.coll = colls[kind], .out = out, .count = count};
    call.in = kind == 1 || kind == 4 ? in : NULL;
    call.prescale = kind == 1 ? 2 : 0;
    call.counts = kind == 4 ? counts : NULL;
    (void)comm;
    return call;
}

static int run_kind(gr_comm *comm, int kind, size_t count, bool shared)
{
    int size = gr_comm_size(comm), rank = gr_comm_rank(comm);
    size_t counts[RANKS], total = 0;
    for (int i = 0; i < size; i++) {
        counts[i] = count + (size_t)i;
        total += counts[i];
    }
    void *memory[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        if (shared) {
            EXPECT(gr_alloc(comm, (total + 1) * sizeof(float), &memory[i]) == GR_OK);
        } else {
            memory[i] = malloc((total + 1) * sizeof(float));
            EXPECT(memory[i]);
        }
    }
    float *in = memory[0], *out = memory[1];
    gr_op *op = NULL;
    gr_call call = call_of(comm, kind, in, out, count, counts);
    EXPECT(gr_op_create(comm, &call, &op) == GR_OK && op);
    counts[0] = SIZE_MAX; /* was copied */
    for (int round = 0; round < ROUNDS; round++) {
        float mine = kind < 2 ? (float)(rank + round) : kind == 4 || rank == 0 ? (float)round : -1;
        size_t own = kind == 4 ? count + (size_t)rank : count;
        for (size_t i = 0; i < own; i++) {
            (call.in ? in : out)[i] = mine;
        }
        int index = -1;
        EXPECT(gr_op_start(op) == GR_OK);
        if (round % 4 == 1) {
            float other = 1; /* one that is waited for earlier */
            EXPECT(gr_allreduce(comm, &other, 1, GR_F32, GR_SUM) == GR_OK && other == (float)size);
        }
        if (round % 4 == 2) {
            gr_status status;
            while ((status = gr_test(op)) == GR_PENDING) {
            }
            EXPECT(status == GR_OK);
        } else if (round % 4 == 3) {
            gr_op *ops[2] = {NULL, op};
            EXPECT(gr_wait_any(ops, 2, &index) == GR_OK && index == 1 && !ops[1]);
        } else {
            EXPECT(gr_wait(op) == GR_OK);
        }
        size_t last = kind == 4 ? total - 1 : count - 1;
        EXPECT(kind == 3 || (out[0] == wanted(kind, size, round) && out[last] == out[0]));
    }
    gr_op_destroy(op);
    for (int i = 0; i < 2; i++) {
        if (shared) {
            gr_free(comm, memory[i]);
        } else {
            free(memory[i]);
        }
    }
    return 0;
}

static int run_starts(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < SIZES; i++) {
            if (run_kind(comm, kind, sizes[i], i % 2 == 0) ||
                run_kind(comm, kind, sizes[i], i % 2)) {
                return 1;
            }
        }
    }
    gr_comm_destroy(comm);
    return 0;
}

static void starts_give_the_results_of_calls(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS; size++) {
        for (int link = 0; link < 2; link++) {
            ranks_job job = {.size = size, .link = link ? "tcp" : "shm", .progress = size % 2};
            assert_int_equal(ranks_run(&job, run_starts, 0), 0);
        }
    }
}

/* Some ranks start what others call, and many are kept at once. */
static int run_mixed(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { MANY = 200 };
    gr_op *ops[MANY];
    float values[MANY];
    int size = gr_comm_size(comm);
    for (int i = 0; i < MANY; i++) {
        gr_call call = {.coll = GR_COLL_ALLREDUCE, .out = &values[i], .count = 1};
        values[i] = (float)i;
        EXPECT(gr_op_create(comm, &call, &ops[i]) == GR_OK);
    }
    for (int i = 0; i < MANY; i++) {
        if ((i + gr_comm_rank(comm)) % 2 == 0) {
            EXPECT(gr_op_start(ops[i]) == GR_OK && gr_wait(ops[i]) == GR_OK);
        } else {
            EXPECT(gr_allreduce(comm, &values[i], 1, GR_F32, GR_SUM) == GR_OK);
        }
        EXPECT(values[i] == (float)(i * size));
    }
    for (int i = 0; i < MANY; i++) {
        gr_op_destroy(ops[i]);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void starts_match_calls_of_other_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 1 + i % 3, .link = i < 2 ? "shm" : "tcp"};
        assert_int_equal(ranks_run(&job, run_mixed, 0), 0);
    }
}

static void no_callback(gr_status status, void *arg)
{
    (void)status;
    (void)arg;
}

static int run_refused(gr_comm *comm, const ranks_job *job)
{
    enum { PAGE = 4096 };
    (void)job;
    float value = 1, other = 1;
    gr_op *op = NULL, *plain = NULL, *late = NULL, *same = NULL;
    gr_call call = {.coll = GR_COLL_ALLREDUCE, .out = &value, .count = 1};
    EXPECT(gr_op_create(NULL, &call, &op) == GR_E_INVALID && !op);
    EXPECT(gr_op_create(comm, NULL, &op) == GR_E_INVALID && !op);
    call.done = no_callback;
    EXPECT(gr_op_create(comm, &call, &op) == GR_E_INVALID && !op);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "has no callback"));
    call.done = NULL;
    call.out = NULL;
    EXPECT(gr_op_create(comm, &call, &op) == GR_E_INVALID && !op);
    call.out = &value;
    call.memory = GR_MEMORY_CUDA;
    EXPECT(gr_op_create(comm, &call, &op) == GR_E_UNSUPPORTED && !op);
    call.memory = GR_MEMORY_HOST;
    void *unreadable = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(unreadable != MAP_FAILED);
    call.in = unreadable;
    EXPECT(gr_op_create(comm, &call, &op) == GR_E_UNSUPPORTED && !op);
    call.in = NULL;
    EXPECT(munmap(unreadable, PAGE) == 0);
    EXPECT(gr_op_create(comm, &call, &op) == GR_OK);
    EXPECT(gr_op_create(comm, &call, &same) == GR_OK);
    EXPECT(gr_wait(op) == GR_E_INVALID && gr_test(op) == GR_E_INVALID);
    EXPECT(gr_op_start(op) == GR_OK && gr_op_start(op) == GR_E_INVALID);
    EXPECT(gr_wait(op) == GR_OK && value == (float)gr_comm_size(comm));
    EXPECT(gr_allreduce_start(comm, &other, 1, GR_F32, GR_SUM, &plain) == GR_OK);
    EXPECT(gr_op_start(plain) == GR_E_INVALID && gr_wait(plain) == GR_OK);
    EXPECT(gr_op_start(NULL) == GR_E_INVALID);
    gr_comm *half = NULL;
    EXPECT(gr_comm_split(comm, 0, 0, &half, NULL) == GR_OK);
    EXPECT(gr_op_create(half, &call, &late) == GR_OK && gr_op_start(late) == GR_OK);
    EXPECT(gr_wait(late) == GR_OK);
    gr_comm_destroy(half);
    EXPECT(gr_op_start(late) == GR_E_INVALID && gr_wait(late) == GR_E_INVALID);
    gr_op_destroy(late);
    gr_op_destroy(NULL);
    gr_op_destroy(same);
    gr_comm_destroy(comm);
    EXPECT(gr_op_start(op) == GR_E_INVALID);
    gr_op_destroy(op);
    return 0;
}

static void wrong_uses_are_refused_and_ends_are_survived(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 2 - i % 2, .link = i < 2 ? "shm" : "tcp"};
        assert_int_equal(ranks_run(&job, run_refused, 0), 0);
    }
}

static void destroy_it(gr_status status, void *arg)
{
    (void)status;
    gr_op_destroy(arg);
}

/* One that runs, and one that does not. */
static int run_destroying_callback(gr_comm *comm, const ranks_job *job)
{
    enum { LARGE = 1 << 18 };
    static float values[LARGE];
    (void)job;
    gr_op *ops[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        float word = 1;
        gr_call call = {.out = values, .count = LARGE};
        EXPECT(gr_op_create(comm, &call, &ops[i]) == GR_OK);
        EXPECT(i == 1 || gr_op_start(ops[i]) == GR_OK);
        gr_call last = {.out = &word, .count = 1, .done = destroy_it, .done_arg = ops[i]};
        EXPECT(gr_start(comm, &last, 1, NULL) == GR_OK && gr_comm_drain(comm) == GR_OK);
        EXPECT(i == 0 || gr_op_start(ops[i]) == GR_OK);
        EXPECT(gr_wait(ops[i]) == GR_OK);
        gr_op_destroy(ops[i]);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void destroy_in_a_callback_has_no_effect(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_job job = {.size = i == 0 ? 1 : 2, .link = i == 1 ? "shm" : "tcp"};
        assert_int_equal(ranks_run(&job, run_destroying_callback, 0), 0);
    }
}

/* Whoever is late must not write into a buffer that its owner has back. */
static int run_death(gr_comm *comm, const ranks_job *job)
{
    static float values[1 << 18];
    (void)job;
    gr_op *op = NULL;
    gr_call call = {.coll = GR_COLL_ALLREDUCE, .out = values, .count = 1 << 18};
    EXPECT(gr_op_create(comm, &call, &op) == GR_OK);
    EXPECT(gr_op_start(op) == GR_OK && gr_wait(op) == GR_OK);
    if (gr_comm_rank(comm) == 1) {
        (void)kill(getpid(), SIGKILL);
    }
    gr_status status = gr_op_start(op);
    EXPECT((status == GR_OK ? gr_wait(op) : status) < 0);
    EXPECT(status != GR_OK || atomic_load(&comm->shm->own->revoked) == 1);
    gr_op_destroy(op);
    gr_comm_destroy(comm);
    return 0;
}

static void a_start_that_fails_closes_its_buffers(void **state)
{
    (void)state;
    ranks_job job = {.size = 3, .link = "shm"};
    assert_int_equal(ranks_run(&job, run_death, UINT64_C(1) << 1), 0);
}

/* Rank 0 looks at an operation that all have finished only when it can hear, too, that the next one
 * has failed. */
typedef struct late_look {
    int started[2], failed[2]; /* pipes */
} late_look;

static int run_late_look(gr_comm *comm, const ranks_job *job)
{
    const late_look *look = job->arg;
    float value = 1;
    char byte = 0;
    gr_op *op = NULL;
    EXPECT(gr_barrier(comm) == GR_OK); /* the operations before have left room */
    if (gr_comm_rank(comm) == 0) {
        EXPECT(gr_allreduce_start(comm, &value, 1, GR_F32, GR_SUM, &op) == GR_OK);
        EXPECT(write(look->started[1], "12", 2) == 2 && read(look->failed[0], &byte, 1) == 1);
        EXPECT(gr_test(op) == GR_OK && value == 3);
        EXPECT(gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) < 0);
    } else {
        EXPECT(read(look->started[0], &byte, 1) == 1);
        EXPECT(gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) == GR_OK && value == 3);
        if (gr_comm_rank(comm) == 1) {
            (void)kill(getpid(), SIGKILL);
        }
        EXPECT(gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) < 0);
        EXPECT(write(look->failed[1], "1", 1) == 1);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void an_operation_that_all_have_finished_survives_the_failure_of_the_next(void **state)
{
    (void)state;
    late_look look;
    assert_int_equal(pipe2(look.started, O_CLOEXEC), 0);
    assert_int_equal(pipe2(look.failed, O_CLOEXEC), 0);
    ranks_job job = {.size = 3, .link = "shm", .arg = &look};
    assert_int_equal(ranks_run(&job, run_late_look, UINT64_C(1) << 1), 0);
    for (int i = 0; i < 2; i++) {
        close(look.started[i]);
        close(look.failed[i]);
    }
}

/* Rank 1 gives an operation up and uses its buffer for something else; rank 0 learns of that before
 * it has done its share. There is no other operation, which a busy machine might make late. */
enum { REUSED = 16384, NONSENSE = 1000 };

static int run_reuse(gr_comm *comm, const ranks_job *job)
{
    const late_look *look = job->arg;
    void *memory = NULL;
    char outcome = 0;
    gr_op *op = NULL;
    EXPECT(gr_alloc(comm, REUSED * sizeof(float), &memory) == GR_OK);
    float *values = memory;
    for (int i = 0; i < REUSED; i++) {
        values[i] = 1;
    }
    if (gr_comm_rank(comm) == 0) {
        EXPECT(gr_allreduce_start(comm, values, REUSED, GR_F32, GR_SUM, &op) == GR_OK);
        EXPECT(write(look->started[1], "1", 1) == 1 && read(look->failed[0], &outcome, 1) == 1);
        gr_status status = gr_test(op);
        /* With one core rank 1 has done all the work. */
        EXPECT(outcome == 'f' ? status < 0 : status == GR_OK && values[REUSED - 1] == 2);
    } else {
        EXPECT(read(look->started[0], &outcome, 1) == 1);
        bool failed = gr_allreduce(comm, values, REUSED, GR_F32, GR_SUM) < 0;
        for (int i = 0; i < REUSED; i++) {
            values[i] = NONSENSE;
        }
        EXPECT(write(look->failed[1], failed ? "f" : "d", 1) == 1);
        EXPECT(read(look->started[0], &outcome, 1) == 1); /* rank 0 has looked */
        for (int i = 0; i < REUSED; i++) {
            EXPECT(values[i] == NONSENSE);
        }
        gr_comm_destroy(comm);
        return 0;
    }
    EXPECT(write(look->started[1], "1", 1) == 1);
    gr_comm_destroy(comm);
    return 0;
}

static void an_operation_that_a_rank_gives_up_touches_its_buffer_no_more(void **state)
{
    (void)state;
    late_look look;
    assert_int_equal(pipe2(look.started, O_CLOEXEC), 0);
    assert_int_equal(pipe2(look.failed, O_CLOEXEC), 0);
    ranks_job job = {
        .size = 2, .link = "shm", .tune = "off", .op_timeout_us = 300000, .arg = &look};
    assert_int_equal(ranks_run(&job, run_reuse, 0), 0);
    for (int i = 0; i < 2; i++) {
        close(look.started[i]);
        close(look.failed[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_give_the_results_of_calls),
        cmocka_unit_test(starts_match_calls_of_other_ranks),
        cmocka_unit_test(wrong_uses_are_refused_and_ends_are_survived),
        cmocka_unit_test(destroy_in_a_callback_has_no_effect),
        cmocka_unit_test(a_start_that_fails_closes_its_buffers),
        cmocka_unit_test(an_operation_that_all_have_finished_survives_the_failure_of_the_next),
        cmocka_unit_test(an_operation_that_a_rank_gives_up_touches_its_buffer_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
