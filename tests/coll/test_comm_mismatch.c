/* SPDX-License-Identifier: Apache-2.0 */
/* The last rank calls something else than all others: each rank has the sentence, with both sides,
 * long before it gives up a peer that does not come (support_ranks.c), whether it waits, has
 * finished and looks in again, or computes beside a progress thread. Every plan over a simulated
 * network: test_mismatch.c. */
#include "base/clock.h"
#include "support_ranks.h"
#include <gradus/coll.h>

#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 100, BLOCKS = 4, CALLS = 2 };

static const int64_t PATIENCE_NS = INT64_C(60000000000), A_WHILE_NS = 500000000;

typedef struct kind {
    gr_call ours[CALLS], theirs[CALLS]; /* no count: of no more calls */
    const char *our_words, *their_words;
} kind;

#define ONE(what, more)                                                                            \
    {                                                                                              \
        .coll = GR_COLL_##what, .count = COUNT, more                                               \
    }
#define NAMED(text) .name = (text)

static const size_t threes[BLOCKS] = {3, 3, 3, 3}, four_of_first[BLOCKS] = {4, 3, 3, 3};

static const kind kinds[] = {
    {{ONE(ALLREDUCE, )}, {ONE(ALLREDUCE, .dtype = GR_F64)}, "of 100 f32", "of 100 f64"},
    {{ONE(ALLREDUCE, )}, {ONE(ALLREDUCE, .op = GR_MAX)}, "(sum over", "(max over"},
    {{ONE(ALLREDUCE, NAMED("grads"))}, {ONE(ALLREDUCE, NAMED("loss"))}, "\"grads\"", "\"loss\""},
    {{ONE(ALLREDUCE, )}, {ONE(ALLTOALL, )}, "allreduce of 100", "alltoall of 100"},
    {{ONE(ALLREDUCE, )}, {ONE(GATHER, )}, "allreduce of 100", "gather of 100"},
    {{ONE(BARRIER, )}, {ONE(REDUCE, )}, "barrier", "reduce of 100"},
    {{ONE(BROADCAST, )}, {ONE(BROADCAST, .root = 1)}, "from rank 0", "from rank 1"},
    {{ONE(GATHER, .root = 1)}, {ONE(REDUCE, )}, "gather of 100", "reduce of 100"},
    {{ONE(REDUCE, .root = 1)}, {ONE(BROADCAST, .root = 1)}, "reduce of 100", "broadcast of 100"},
    {{ONE(SCATTER, )}, {ONE(ALLGATHER, )}, "scatter of 100", "allgather of 100"},
    {{ONE(ALLREDUCE, ), ONE(BARRIER, )},
     {ONE(BARRIER, ), ONE(ALLREDUCE, )},
     "allreduce of 100",
     "barrier"},
    {{ONE(REDUCE, ), ONE(GATHER, )},
     {ONE(GATHER, ), ONE(REDUCE, )},
     "reduce of 100",
     "gather of 100"},
    {{{.coll = GR_COLL_ALLTOALL, .count = COUNT, .counts = threes, .recv_counts = threes}},
     {{.coll = GR_COLL_ALLTOALL, .count = COUNT, .counts = threes, .recv_counts = four_of_first}},
     "alltoall of f32 by",
     ", to get 16 bytes from rank 0, not 12"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static bool both_sides(const gr_diag *diag, const kind *k)
{
    return strstr(diag->text, k->our_words) && strstr(diag->text, k->their_words) &&
           strstr(diag->text, "ours.c:1") && strstr(diag->text, "theirs.c:2");
}

/* Nobody calls anything else, but all look in. */
static int run_kind(gr_comm *comm, const ranks_job *job)
{
    const kind *k = job->arg;
    double memory[2 * BLOCKS * COUNT] = {0};
    bool differs = gr_comm_rank(comm) == gr_comm_size(comm) - 1;
    const gr_call *calls = differs ? k->theirs : k->ours;
    gr_status status = gr_barrier(comm); /* others may have failed behind it already */
    int64_t begun_ns = gr_now_ns();
    for (int i = 0; i < CALLS && calls[i].count > 0 && status == GR_OK; i++) {
        gr_call call = calls[i];
        call.site = differs ? "theirs.c:2" : "ours.c:1";
        call.in = memory;
        call.out = memory + (size_t)BLOCKS * COUNT;
        status = gr_run(comm, &call, 1);
    }
    while ((status == GR_OK || status == GR_PENDING) && gr_now_ns() - begun_ns < PATIENCE_NS) {
        status = gr_comm_poll(comm);
        sched_yield();
    }
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(both_sides(gr_comm_diag(comm), k));
    /* Behind the barrier, the program's first operation. */
    EXPECT(calls[1].count > 0 || strstr(gr_comm_diag(comm)->text, "as operation 2"));
    EXPECT(gr_barrier(comm) == GR_E_COMM_BROKEN);
    gr_comm_destroy(comm);
    return 0;
}

static void test_kinds(const char *link, const char *algorithm)
{
    for (int i = 0; i < KINDS; i++) {
        for (int size = 2; size <= BLOCKS; size++) {
            ranks_job job = {.size = size,
                             .link = link,
                             .algorithm = algorithm,
                             .tune = "off",
                             .progress = 2,
                             .threads = GR_THREADS_ONE,
                             .arg = &kinds[i]};
            if (ranks_run(&job, run_kind, 0) != 0) {
                fail_msg("%d ranks over %s: %s against %s", size, link, kinds[i].our_words,
                         kinds[i].their_words);
            }
        }
    }
}

static void test_shm(void **state)
{
    (void)state;
    test_kinds("shm", NULL);
}

static void test_plans(void **state)
{
    (void)state;
    test_kinds("shm", "allreduce=tree;barrier=dissemination");
}

static void test_tcp(void **state)
{
    (void)state;
    test_kinds("tcp", NULL);
}

/* Rank 1 has sent, and makes no call any more: its progress thread tells rank 0 what that was. */
static int run_busy(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    float in[COUNT] = {0}, out[2 * COUNT];
    char byte = 0;
    gr_call call = {
        .coll = GR_COLL_GATHER, .in = in, .out = out, .count = COUNT, .site = "ours.c:1"};
    if (gr_comm_rank(comm) == 1) {
        call.coll = GR_COLL_REDUCE;
        call.site = "theirs.c:2";
        gr_status sent = gr_run(comm, &call, 1); /* rank 0 may have called before, or not */
        EXPECT(sent == GR_OK || sent == GR_E_MISMATCH);
        EXPECT(read(fds[0], &byte, 1) == 1); /* as if it computed */
    } else {
        EXPECT(gr_run(comm, &call, 1) == GR_E_MISMATCH);
        EXPECT(write(fds[1], &byte, 1) == 1);
    }
    static const kind expected = {.our_words = "gather of 100", .their_words = "reduce of 100"};
    EXPECT(gr_barrier(comm) == GR_E_COMM_BROKEN);
    EXPECT(both_sides(gr_comm_diag(comm), &expected));
    gr_comm_destroy(comm);
    return 0;
}

static void test_busy(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        ranks_job job = {.size = 2,
                         .link = i % 2 ? "tcp" : "shm",
                         .tune = "off",
                         .progress = 1,
                         .threads = GR_THREADS_ONE,
                         .arg = fds};
        assert_int_equal(ranks_run(&job, run_busy, 0), 0);
        close(fds[0]);
        close(fds[1]);
    }
}

/* The last rank waits for a message that rank 0 would send behind the operation in which it waits
 * for the last rank. Neither has anything to send. */
static int run_crossed(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm), last = gr_comm_size(comm) - 1;
    float words[COUNT] = {0};
    const gr_call sum = {.out = words, .count = COUNT, .site = "sum.c:1"};
    const gr_call receive = {
        .coll = GR_COLL_RECV, .out = words, .count = COUNT, .root = 0, .site = "message.c:2"};
    gr_status status = gr_barrier(comm);
    if (status == GR_OK) {
        status = gr_run(comm, rank == last ? &receive : &sum, 1);
    }
    EXPECT(status == GR_E_MISMATCH || status == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_diag(comm)->status == GR_E_MISMATCH);
    EXPECT(strstr(gr_comm_diag(comm)->text, "at sum.c:1") &&
           strstr(gr_comm_diag(comm)->text, "at message.c:2"));
    gr_comm_destroy(comm);
    return 0;
}

/* The same calls, but not blocked: rank 0 sends, since its wait is for the message. */
static int run_not_crossed(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm), last = gr_comm_size(comm) - 1;
    float words[COUNT] = {0}, message[COUNT] = {3};
    gr_op *op = NULL;
    if (rank != last) {
        EXPECT(gr_allreduce_start(comm, words, COUNT, GR_F32, GR_SUM, &op) == GR_OK);
    }
    if (rank == 0) {
        int64_t until_ns = gr_now_ns() + A_WHILE_NS;
        while (gr_now_ns() < until_ns) { /* both wait for a time in which blocked ones are told */
            EXPECT(gr_test(op) == GR_PENDING);
        }
        EXPECT(gr_send(comm, message, COUNT, GR_F32, last) == GR_OK);
    } else if (rank == last) {
        EXPECT(gr_recv(comm, message, COUNT, GR_F32, 0) == GR_OK && message[0] == 3);
        EXPECT(gr_allreduce_start(comm, words, COUNT, GR_F32, GR_SUM, &op) == GR_OK);
    }
    EXPECT(gr_wait(op) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void test_crossed(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        ranks_job job = {.size = 2 + i % 3,
                         .link = "shm",
                         .tune = "off",
                         .progress = 1 + i / 3,
                         .threads = GR_THREADS_ONE};
        assert_int_equal(ranks_run(&job, run_crossed, 0), 0);
        assert_int_equal(ranks_run(&job, run_not_crossed, 0), 0);
    }
}

/* Beside another communicator, of which the progress thread starts nothing. */
static int run_beside_another(gr_comm *comm, const ranks_job *job)
{
    gr_comm *other = NULL;
    int event;
    EXPECT(gr_comm_create_from(job->config, &other, NULL) == GR_OK);
    EXPECT(gr_comm_event_fd(other, &event) == GR_OK);
    int result = run_crossed(comm, job);
    gr_comm_destroy(other);
    return result;
}

typedef struct answer {
    gr_comm *comm;
    gr_op *op;
    float word;
    gr_status status;
} answer;

static void send_answer(gr_status status, void *arg)
{
    answer *a = arg;
    a->status = status == GR_OK ? gr_send_start(a->comm, &a->word, 1, GR_F32, 1, &a->op) : status;
}

/* The same, but the other one's progress thread does start something: what rank 1 waits for, when
 * rank 2 lets it, after a time in which blocked ranks are told. */
static int run_called_back(gr_comm *comm, const ranks_job *job)
{
    gr_comm *other = NULL;
    int event;
    float word = 0, signal = 1;
    answer a = {.comm = comm, .word = 3};
    EXPECT(gr_comm_create_from(job->config, &other, NULL) == GR_OK);
    EXPECT(gr_comm_event_fd(other, &event) == GR_OK);
    if (gr_comm_rank(comm) == 0) {
        gr_call call = {.coll = GR_COLL_RECV,
                        .out = &signal,
                        .count = 1,
                        .root = 2,
                        .done = send_answer,
                        .done_arg = &a};
        EXPECT(gr_start(other, &call, 1, NULL) == GR_OK);
        EXPECT(gr_recv(comm, &word, 1, GR_F32, 1) == GR_OK && word == 4);
        EXPECT(a.status == GR_OK && gr_wait(a.op) == GR_OK);
    } else if (gr_comm_rank(comm) == 1) {
        EXPECT(gr_recv(comm, &word, 1, GR_F32, 0) == GR_OK && word == 3);
        word = 4;
        EXPECT(gr_send(comm, &word, 1, GR_F32, 0) == GR_OK);
    } else {
        (void)poll(NULL, 0, (int)(A_WHILE_NS / 1000000));
        EXPECT(gr_send(other, &signal, 1, GR_F32, 0) == GR_OK);
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(other);
    gr_comm_destroy(comm);
    return 0;
}

/* A message of rank 0 to itself that nothing else of its process can send. */
static int run_alone_with_itself(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float word = 0;
    if (gr_comm_rank(comm) == 0) {
        EXPECT(gr_recv(comm, &word, 1, GR_F32, 0) == GR_E_INVALID);
        EXPECT(strstr(gr_comm_last_error(comm)->text, "no such message was sent"));
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

/* Ranks that promise nothing: the library counts their threads, but for its own, of which rank 0
 * has one that hosts the coordinator. */
static void test_counted(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("skipped because ThreadSanitizer has a thread of its own\n");
    skip();
#endif
    for (int progress = 1; progress <= 2; progress++) {
        ranks_job job = {.size = 2, .link = "shm", .tune = "off", .progress = progress};
        assert_int_equal(ranks_run(&job, run_crossed, 0), 0);
        job.hosted = true;
        assert_int_equal(ranks_run(&job, run_crossed, 0), 0);
        assert_int_equal(ranks_run(&job, run_alone_with_itself, 0), 0);
        assert_int_equal(ranks_run(&job, run_beside_another, 0), 0);
        job.size = 3;
        assert_int_equal(ranks_run(&job, run_called_back, 0), 0);
    }
}

/* ---- Names ----------------------------------------------------------------------------------- */
static int run_empty_name(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float word = 1;
    const gr_call call = {.out = &word, .count = 1, .name = gr_comm_rank(comm) == 0 ? "" : NULL};
    EXPECT(gr_run(comm, &call, 1) == GR_OK && word == (float)gr_comm_size(comm));
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void call_with_an_empty_name_is_one_without_a_name(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_empty_name), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_crossed),
        cmocka_unit_test(test_counted),
        cmocka_unit_test(call_with_an_empty_name_is_one_without_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
