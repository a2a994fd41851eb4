/* SPDX-License-Identifier: Apache-2.0 */
/* A sub-group ends, its parent and its siblings go on. */
#include "sanitized.h"
#include "support_ranks.h"

#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 4, ROUNDS = 20, WARM_ROUNDS = 20, LARGE = 1 << 18, OPS = 3 };

/* Every rank adds its number plus one: the sum is right on all ranks. */
static bool sums_are_right(gr_comm *comm, int times)
{
    int size = gr_comm_size(comm);
    for (int i = 0; i < times; i++) {
        int32_t words[3] = {gr_comm_rank(comm) + 1, i, -1};
        if (gr_allreduce(comm, words, 3, GR_I32, GR_SUM) != GR_OK ||
            words[0] != size * (size + 1) / 2 || words[1] != size * i || words[2] != -size) {
            return false;
        }
    }
    return true;
}

static gr_comm *make_pair(gr_comm *comm)
{
    gr_comm *pair = NULL;
    return gr_comm_split(comm, gr_comm_rank(comm) / 2, 0, &pair, NULL) == GR_OK ? pair : NULL;
}

/* Ranks 0 and 1 call different operations: until both know. */
static void call_differently(gr_comm *pair)
{
    int32_t words[5] = {1, 2, 3, 4, 5};
    gr_status status = gr_comm_rank(pair) == 0 ? gr_allreduce(pair, words, 5, GR_I32, GR_SUM)
                                               : gr_broadcast(pair, words, 5, GR_I32, 1);
    while (status == GR_OK) {
        status = gr_barrier(pair);
    }
}

static bool has_ended(gr_comm *pair, gr_status status)
{
    const gr_diag *diag = gr_comm_diag(pair);
    return diag->status == (int)status && strstr(diag->text, "sub-group") &&
           strstr(diag->text, "ranks 0 and 1") && gr_barrier(pair) == GR_E_COMM_BROKEN &&
           strstr(gr_comm_last_error(pair)->text, "ranks 0 and 1");
}

/* ---- Callbacks of one that is destroyed ------------------------------------------------------ */
typedef struct last_call {
    gr_comm *comm;
    gr_status status, of_start;
    int calls;
} last_call;

static void call_last(gr_status status, void *arg)
{
    last_call *last = arg;
    float word = 1;
    gr_op *op = NULL;
    last->status = status;
    last->of_start = gr_allreduce_start(last->comm, &word, 1, GR_F32, GR_SUM, &op);
    last->calls++;
}

static int run_callbacks(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float word = 1;
    last_call last = {.calls = 0};
    EXPECT(gr_comm_split(comm, gr_comm_rank(comm), 0, &last.comm, NULL) == GR_OK);
    gr_call call = {.out = &word, .count = 1, .done = call_last, .done_arg = &last};
    EXPECT(gr_start(last.comm, &call, 1, NULL) == GR_OK && last.calls == 0);
    gr_comm_destroy(last.comm);
    EXPECT(last.calls == 1 && last.status == GR_OK && last.of_start == GR_E_INVALID);
    EXPECT(sums_are_right(comm, 5));
    gr_comm_destroy(comm);
    return 0;
}

static void callbacks_of_a_sub_group_are_called_before_its_end(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm", .progress = 2};
    assert_int_equal(ranks_run(&job, run_callbacks, 0), 0);
}

/* ---- Different calls ------------------------------------------------------------------------- */
static int run_mismatch(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *pair = make_pair(comm);
    EXPECT(pair);
    if (rank < 2) {
        call_differently(pair);
        EXPECT(has_ended(pair, GR_E_MISMATCH));
        EXPECT(gr_comm_diag(pair)->peer_rank == 0 || gr_comm_diag(pair)->peer_rank == 1);
    } else {
        EXPECT(sums_are_right(pair, 50));
    }
    EXPECT(sums_are_right(comm, 50));
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    if (rank >= 2) {
        EXPECT(sums_are_right(pair, 5) && gr_comm_diag(pair)->status == GR_OK);
    }
    gr_comm *again = make_pair(comm);
    EXPECT(again && sums_are_right(again, 5));
    gr_comm_destroy(pair);
    EXPECT(sums_are_right(again, 5) && sums_are_right(comm, 5));
    gr_comm_destroy(again);
    gr_comm_destroy(comm);
    return 0;
}

/* Over each link, with and without a progress thread, and as plans over shared memory. */
static void run_everywhere(ranks_function *function)
{
    for (int i = 0; i < 6; i++) {
        ranks_job job = {.size = SIZE,
                         .link = i % 2 ? "tcp" : "shm",
                         .progress = i % 4 < 2 ? 2 : 1,
                         .threads = 2,
                         .algorithm = i > 3 ? "allreduce=direct" : NULL};
        assert_int_equal(ranks_run(&job, function, 0), 0);
    }
}

static void group_mismatch_ends_it_alone(void **state)
{
    (void)state;
    run_everywhere(run_mismatch);
}

/* ---- Abort ----------------------------------------------------------------------------------- */
static void *abort_it(void *pair)
{
    gr_status status = gr_comm_abort(pair, "the user wants it");
    return status == GR_OK ? NULL : pair;
}

static int run_abort(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *pair = make_pair(comm);
    EXPECT(pair);
    pthread_t thread;
    void *failed = NULL;
    if (rank == 1) {
        EXPECT(pthread_create(&thread, NULL, abort_it, pair) == 0);
    }
    if (rank < 2) {
        int32_t word = 0;
        gr_status status = gr_recv(pair, &word, 1, GR_I32, 1 - rank); /* nobody sends */
        EXPECT(status == GR_E_ABORTED || status == GR_E_COMM_BROKEN);
        EXPECT(has_ended(pair, GR_E_ABORTED));
        EXPECT(gr_comm_diag(pair)->peer_rank == 1);
        EXPECT(strstr(gr_comm_diag(pair)->text, "rank 1 aborted"));
        EXPECT(strstr(gr_comm_diag(pair)->text, "the user wants it"));
    }
    if (rank == 1) {
        EXPECT(pthread_join(thread, &failed) == 0 && !failed);
    }
    EXPECT(sums_are_right(comm, 50));
    gr_comm_destroy(pair);
    EXPECT(sums_are_right(comm, 5));
    gr_comm_destroy(comm);
    return 0;
}

static void group_abort_from_a_thread_leaves_the_parent(void **state)
{
    (void)state;
    run_everywhere(run_abort);
}

/* ---- Nothing is under way -------------------------------------------------------------------- */
/* Rank 1 aborts the pair, with operations under way there that rank 0 never calls, and waits until
 * rank 0 has confirmed the end. It tells so by the pipe job->arg. */
static int abort_with_operations(gr_comm *comm, gr_comm *pair, const ranks_job *job)
{
    const int *fds = job->arg;
    int32_t word = 0;
    float *large = calloc(2 * LARGE, sizeof *large);
    gr_op *ops[OPS] = {NULL};
    EXPECT(large && gr_recv_start(pair, &word, 1, GR_I32, 0, &ops[0]) == GR_OK);
    EXPECT(gr_allreduce_start(pair, large, LARGE, GR_F32, GR_SUM, &ops[1]) == GR_OK);
    EXPECT(gr_send_start(pair, large + LARGE, LARGE, GR_F32, 0, &ops[2]) == GR_OK);
    EXPECT(gr_comm_abort(pair, "the user wants it") == GR_OK);
    for (int i = 0; i < OPS; i++) {
        EXPECT(gr_wait(ops[i]) == GR_E_ABORTED);
    }
    EXPECT(write(fds[1], "x", 1) == 1);
    free(large);
    return 0;
}

/* What rank 0 does meanwhile: it polls the pair or the parent, computes beside a progress thread,
 * or waits for the event. */
typedef enum pastime { POLLS_PAIR, POLLS_PARENT, COMPUTES, WAITS_FOR_EVENT, PASTIMES } pastime;

static bool learns_of_the_end(gr_comm *comm, gr_comm *pair, const ranks_job *job, pastime how)
{
    const int *fds = job->arg;
    int event = -1;
    char byte;
    if (how == WAITS_FOR_EVENT && gr_comm_event_fd(pair, &event) != GR_OK) {
        return false;
    }
    while (how == WAITS_FOR_EVENT && gr_comm_diag(pair)->status == GR_OK) {
        struct pollfd raised = {.fd = event, .events = POLLIN};
        (void)poll(&raised, 1, -1);
        gr_comm_event_clear(pair);
    }
    struct pollfd told = {.fd = fds[0], .events = POLLIN};
    while (how < COMPUTES && poll(&told, 1, 1) == 0) {
        (void)!gr_comm_poll(how == POLLS_PAIR ? pair : comm);
    }
    return read(fds[0], &byte, 1) == 1;
}

static int run_idle(gr_comm *comm, const ranks_job *job)
{
    for (pastime how = POLLS_PAIR; how < PASTIMES; how++) {
        if (how == COMPUTES && job->progress != 1) {
            continue;
        }
        gr_comm *pair = make_pair(comm);
        EXPECT(pair && sums_are_right(pair, 2) && gr_barrier(comm) == GR_OK);
        if (gr_comm_rank(comm) == 1) {
            EXPECT(abort_with_operations(comm, pair, job) == 0);
        } else {
            EXPECT(learns_of_the_end(comm, pair, job, how));
        }
        EXPECT(sums_are_right(comm, 5) && gr_comm_diag(comm)->status == GR_OK);
        EXPECT(has_ended(pair, GR_E_ABORTED));
        gr_comm_destroy(pair);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void group_that_ends_is_noticed_where_nothing_is_under_way(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_idle), 0);
}

/* ---- Operations in flight -------------------------------------------------------------------- */
/* What failed in the pair is used at once by the parent: nobody else may write there any more, and
 * a sum that came must be right. */
static int run_in_flight(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    float *bufs[OPS];
    for (int i = 0; i < OPS; i++) {
        if (i == 0) {
            EXPECT((bufs[i] = malloc(LARGE * sizeof(float))) != NULL);
        } else {
            EXPECT(gr_alloc(comm, LARGE * sizeof(float), (void **)&bufs[i]) == GR_OK);
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        gr_comm *pair = make_pair(comm);
        gr_op *ops[OPS] = {NULL};
        EXPECT(pair);
        for (int i = 0; i < OPS && rank < 2; i++) {
            for (int k = 0; k < LARGE; k++) {
                bufs[i][k] = (float)(rank + 1);
            }
            gr_status status = gr_allreduce_start(pair, bufs[i], LARGE, GR_F32, GR_SUM, &ops[i]);
            EXPECT(status == GR_OK || (rank == 0 && status == GR_E_COMM_BROKEN));
        }
        if (rank == 1) {
            EXPECT(gr_comm_abort(pair, NULL) == GR_OK);
        }
        for (int i = 0; i < OPS; i++) {
            gr_status status = ops[i] ? gr_wait(ops[i]) : GR_E_ABORTED;
            EXPECT(status == GR_E_ABORTED || (status == GR_OK && bufs[i][LARGE - 1] == 3));
        }
        for (int i = 0; i < OPS; i++) {
            for (int k = 0; k < LARGE; k++) {
                bufs[i][k] = (float)(10 * rank);
            }
        }
        for (int i = 0; i < OPS; i++) {
            EXPECT(gr_allreduce_start(comm, bufs[i], LARGE, GR_F32, GR_SUM, &ops[i]) == GR_OK);
        }
        for (int i = 0; i < OPS; i++) {
            EXPECT(gr_wait(ops[i]) == GR_OK);
            for (int k = 0; k < LARGE; k++) {
                EXPECT(bufs[i][k] == 60);
            }
        }
        /* Rank 0 may have had all that it needed, and hears of it now. */
        EXPECT(rank > 1 || (gr_barrier(pair) != GR_OK && has_ended(pair, GR_E_ABORTED)));
        gr_comm_destroy(pair);
    }
    free(bufs[0]);
    gr_comm_destroy(comm);
    return 0;
}

static void group_with_operations_in_flight_gives_the_buffers_back(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {
            .size = SIZE, .link = i % 2 ? "tcp" : "shm", .progress = i < 2 ? 2 : 1, .threads = 2};
        assert_int_equal(ranks_run(&job, run_in_flight, 0), 0);
    }
}

static bool begins(gr_status status)
{
    return status == GR_OK || status == GR_E_COMM_BROKEN;
}

/* Messages: kept, announced, on their way, asked for. */
static int run_messages(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    float *out = calloc(LARGE, sizeof *out), *in = calloc(2 * LARGE, sizeof *in);
    EXPECT(out && in);
    for (int round = 0; round < ROUNDS; round++) {
        gr_comm *pair = make_pair(comm);
        gr_op *ops[4] = {NULL};
        int32_t small = 7, sum = rank;
        EXPECT(pair);
        if (rank == 0) {
            EXPECT(gr_send_start(pair, &small, 1, GR_I32, 1, &ops[0]) == GR_OK);
            /* Rank 1 has the first one, and may have ended the pair by now. */
            EXPECT(begins(gr_send_start(pair, out, LARGE, GR_F32, 1, &ops[1])));
            EXPECT(begins(gr_send_start(pair, out, LARGE, GR_F32, 1, &ops[2])));
            EXPECT(begins(gr_recv_start(pair, in, LARGE, GR_F32, GR_ANY_SOURCE, &ops[3])));
        } else if (rank == 1) {
            int32_t got;
            gr_status status = gr_recv(pair, &got, 1, GR_I32, 0);
            EXPECT(status == GR_OK && got == 7);
            if (round % 2 == 0) {
                EXPECT(gr_recv_start(pair, in, LARGE, GR_F32, 0, &ops[0]) == GR_OK);
            }
            if (round % 3 == 0) {
                (void)!gr_test(ops[0]);
                ops[0] = NULL;
            }
            EXPECT(gr_comm_abort(pair, NULL) == GR_OK);
        }
        for (int i = 0; i < 4; i++) {
            gr_status status = ops[i] ? gr_wait(ops[i]) : GR_OK;
            EXPECT(status == GR_OK || status == GR_E_ABORTED);
        }
        /* Messages between the same ranks: they are counted, whatever became of those. */
        if (rank < 2) {
            gr_op *op = NULL;
            out[0] = (float)round;
            EXPECT(gr_send_start(comm, out, LARGE, GR_F32, 1 - rank, &op) == GR_OK);
            EXPECT(gr_recv(comm, in + LARGE, LARGE, GR_F32, 1 - rank) == GR_OK);
            EXPECT(in[LARGE] == (float)round && gr_wait(op) == GR_OK);
            for (int i = 0; i < 40; i++) {
                EXPECT(gr_send_start(comm, &rank, 1, GR_I32, 1 - rank, &op) == GR_OK);
                EXPECT(gr_recv(comm, &sum, 1, GR_I32, 1 - rank) == GR_OK && sum == 1 - rank);
                EXPECT(gr_wait(op) == GR_OK);
            }
        }
        EXPECT(sums_are_right(comm, 2));
        gr_comm_destroy(pair);
    }
    free(out);
    free(in);
    gr_comm_destroy(comm);
    return 0;
}

static void group_with_messages_on_their_way_leaves_those_of_the_parent(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {
            .size = SIZE, .link = i % 2 ? "tcp" : "shm", .progress = i < 2 ? 2 : 1, .threads = 2};
        assert_int_equal(ranks_run(&job, run_messages, 0), 0);
    }
}

/* ---- Again and again ------------------------------------------------------------------------- */
static int count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir && readdir(dir)) {
        count++;
    }
    if (dir) {
        closedir(dir);
    }
    return count;
}

static size_t heap_bytes(void)
{
    return SANITIZED ? 0 : mallinfo2().uordblks;
}

static int run_again(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm), descriptors = 0;
    size_t bytes = 0;
    for (int round = 0; round < WARM_ROUNDS + ROUNDS; round++) {
        gr_comm *pair = make_pair(comm);
        EXPECT(pair);
        if (rank < 2) {
            call_differently(pair);
            EXPECT(has_ended(pair, GR_E_MISMATCH));
        }
        EXPECT(sums_are_right(comm, 2));
        gr_comm_destroy(pair);
        if (round == WARM_ROUNDS) {
            descriptors = count_descriptors();
            bytes = heap_bytes();
        }
    }
    EXPECT(count_descriptors() <= descriptors); /* others may leave */
    EXPECT(heap_bytes() <= bytes + 4096);
    gr_comm_destroy(comm);
    return 0;
}

static void group_that_ends_again_and_again_holds_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = SIZE, .link = i % 2 ? "tcp" : "shm", .progress = 2, .threads = 2};
        assert_int_equal(ranks_run(&job, run_again, 0), 0);
    }
}

/* ---- Rows and columns ------------------------------------------------------------------------ */
static int run_grid(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *row = make_pair(comm), *column = NULL;
    EXPECT(row && gr_comm_split(comm, rank % 2, 0, &column, NULL) == GR_OK);
    for (int round = 0; round < 3; round++) {
        int64_t before[2] = {rank, 1}, after[2] = {rank, 2};
        gr_op *op = NULL, *later = NULL;
        EXPECT(gr_allreduce_start(column, before, 2, GR_I64, GR_SUM, &op) == GR_OK);
        if (round == 1 && rank < 2) {
            call_differently(row);
            EXPECT(has_ended(row, GR_E_MISMATCH));
        } else if (rank >= 2 || round == 0) {
            EXPECT(sums_are_right(row, 3));
        }
        EXPECT(gr_allreduce_start(column, after, 2, GR_I64, GR_SUM, &later) == GR_OK);
        EXPECT(gr_wait(later) == GR_OK && gr_wait(op) == GR_OK);
        EXPECT(before[0] == 2 * (rank % 2) + 2 && before[1] == 2);
        EXPECT(after[0] == 2 * (rank % 2) + 2 && after[1] == 4);
        EXPECT(sums_are_right(comm, 2));
    }
    gr_comm_destroy(comm);
    EXPECT(sums_are_right(column, 2));
    comm = column;
    gr_comm_destroy(row);
    EXPECT(sums_are_right(column, 2));
    gr_comm_destroy(column);
    return 0;
}

static void group_row_ends_and_columns_go_on(void **state)
{
    (void)state;
    run_everywhere(run_grid);
}

/* ---- Destroyed before its operations were waited for ----------------------------------------- */
static int run_destroy(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    float *buf = NULL;
    EXPECT(gr_alloc(comm, LARGE * sizeof *buf, (void **)&buf) == GR_OK);
    for (int round = 0; round < 5; round++) {
        gr_comm *pair = make_pair(comm);
        gr_op *op = NULL;
        EXPECT(pair);
        if (rank == 0) {
            gr_status status = gr_allreduce_start(pair, buf, LARGE, GR_F32, GR_SUM, &op);
            EXPECT(status == GR_OK || status == GR_E_COMM_BROKEN);
        }
        if (rank < 2) {
            EXPECT(gr_comm_abort(pair, NULL) == GR_OK);
        }
        gr_comm_destroy(pair);
        EXPECT(gr_allreduce(comm, buf, LARGE, GR_F32, GR_SUM) == GR_OK);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void group_that_ended_is_destroyed_with_what_it_began(void **state)
{
    (void)state;
    run_everywhere(run_destroy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callbacks_of_a_sub_group_are_called_before_its_end),
        cmocka_unit_test(group_mismatch_ends_it_alone),
        cmocka_unit_test(group_abort_from_a_thread_leaves_the_parent),
        cmocka_unit_test(group_that_ends_is_noticed_where_nothing_is_under_way),
        cmocka_unit_test(group_with_operations_in_flight_gives_the_buffers_back),
        cmocka_unit_test(group_with_messages_on_their_way_leaves_those_of_the_parent),
        cmocka_unit_test(group_that_ends_again_and_again_holds_nothing),
        cmocka_unit_test(group_row_ends_and_columns_go_on),
        cmocka_unit_test(group_that_ended_is_destroyed_with_what_it_began),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
