/* SPDX-License-Identifier: Apache-2.0 */
/* The library as a language binding sees it: communicators made and ended by a program that has
 * threads, callbacks and little memory of its own. */
#include "base/clock.h"
#include "sanitized.h"
#include "support_ranks.h"
#include "support_threads.h"
#include <gradus/coll.h>

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- No memory ------------------------------------------------------------------------------- */
/* The allocation that fails, on the thread that says so; where no sanitizer has its own heap. */
#if !SANITIZED
static _Thread_local long fails_at; /* 0: none; counts down to 1 */
static _Atomic long living;         /* blocks that were not freed */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *memory);

static bool fails(void)
{
    return fails_at > 0 && --fails_at == 0;
}

static void *counted(void *memory)
{
    atomic_fetch_add(&living, memory != NULL);
    return memory;
}

void *malloc(size_t size)
{
    return fails() ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size)
{
    if (fails()) {
        return NULL;
    }
    void *moved = __libc_realloc(memory, size);
    atomic_fetch_add(&living, !memory && moved);
    return moved;
}

void *aligned_alloc(size_t align, size_t size)
{
    return fails() ? NULL : counted(__libc_memalign(align, size));
}

void free(void *memory)
{
    atomic_fetch_sub(&living, memory != NULL);
    __libc_free(memory);
}

enum { ALLOCATIONS_MAX = 5000 };

/* Returns 1 if the allocation `at` was made, and so failed; else 0, or -1 for a wrong result. */
static int create_failing(bool alone, long at)
{
    threads_host host;
    if (threads_host_start(&host, 1, "shm") != 0) {
        return -1;
    }
    gr_group_config config = host.config;
    config.rank = alone ? -1 : 0;
    gr_comm *comm = NULL;
    gr_diag diag = {.status = GR_OK};
    long before = atomic_load(&living);
    fails_at = at;
    gr_status status = gr_comm_create_from(&config, &comm, &diag);
    bool failed = fails_at == 0;
    fails_at = 0;
    bool right = status == GR_OK ? comm != NULL : !comm && diag.status == status && diag.text[0];
    gr_comm_destroy(comm);
    long left = atomic_load(&living) - before;
    threads_host_stop(&host);
    if (!right || left != 0) {
        fprintf(stderr, "allocation %ld: %s, %ld blocks left\n", at, diag.text, left);
        return -1;
    }
    return failed;
}

static void comm_create_without_memory_fails_and_leaks_nothing(void **state)
{
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        long at = 1;
        int result = 1;
        for (; result == 1 && at < ALLOCATIONS_MAX; at++) {
            result = create_failing(alone, at);
        }
        assert_int_equal(result, 0);
        assert_true(at > 5); /* it does allocate */
    }
}
#endif

/* ---- The diagnosis --------------------------------------------------------------------------- */
typedef struct two_ranks {
    int fds[2]; /* from rank 0: it is about to look */
} two_ranks;

/* A thread of the library finds the failure, and this one looks for it without a call that moves
 * anything on: what TSan sees here is the publication of the sentence. */
static int run_looking(gr_comm *comm, void *arg)
{
    two_ranks *two = arg;
    char byte = 0;
    if (gr_comm_rank(comm) == 1) {
        int result = read(two->fds[0], &byte, 1) == 1 ? 0 : 1;
        gr_comm_destroy(comm);
        return result;
    }
    int32_t word = 0;
    gr_op *op = NULL;
    EXPECT(gr_recv_start(comm, &word, 1, GR_I32, 1, &op) == GR_OK);
    EXPECT(write(two->fds[1], &byte, 1) == 1);
    while (gr_comm_diag(comm)->status == GR_OK) {
        sched_yield();
    }
    EXPECT(gr_comm_diag(comm)->peer_rank == 1);
    EXPECT(strstr(gr_comm_diag(comm)->text, "rank 1") != NULL);
    EXPECT(gr_wait(op) != GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void comm_diag_is_read_while_the_progress_thread_fails(void **state)
{
    (void)state;
    two_ranks two;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe(two.fds), 0);
        assert_int_equal(threads_run(2, i ? "tcp" : "shm", 1, run_looking, &two), 0);
        close(two.fds[0]);
        close(two.fds[1]);
    }
}

/* ---- Callbacks ------------------------------------------------------------------------------- */
typedef struct called {
    gr_comm *comm;
    int calls;
    gr_status status, inside;
} called;

static void note_call(gr_status status, void *arg)
{
    called *c = arg;
    int32_t word = 0;
    gr_op *op = NULL;
    c->calls++;
    c->status = status;
    c->inside = gr_allreduce_start(c->comm, &word, 1, GR_I32, GR_SUM, &op);
}

static int run_destroyed(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    char byte = 0;
    int32_t words[2] = {1, 1};
    called calls[2] = {{.comm = comm}, {.comm = comm}};
    if (gr_comm_rank(comm) == 1) { /* takes part in nothing */
        EXPECT(read(fds[0], &byte, 1) == 1);
        gr_comm_destroy(comm);
        return 0;
    }
    /* A group of one has no operation that does not finish at once. */
    for (int i = 0; i < 2; i++) {
        gr_call call = {.coll = i == 0 || gr_comm_size(comm) == 1 ? GR_COLL_BARRIER : GR_COLL_RECV,
                        .dtype = GR_I32,
                        .out = &words[i],
                        .count = (size_t)i,
                        .root = 1,
                        .done = note_call,
                        .done_arg = &calls[i]};
        EXPECT(gr_start(comm, &call, 1, NULL) == GR_OK);
    }
    bool alone = gr_comm_size(comm) == 1;
    gr_comm_destroy(comm);
    if (write(fds[1], &byte, 1) != 1) {
        return 1;
    }
    for (int i = 0; i < 2; i++) {
        if (calls[i].calls != 1 || calls[i].inside != GR_E_INVALID ||
            calls[i].status != (alone ? GR_OK : GR_E_CANCELLED)) {
            fprintf(stderr, "callback %d: %d calls, %s, inside %s\n", i, calls[i].calls,
                    gr_status_name(calls[i].status), gr_status_name(calls[i].inside));
            return 1;
        }
    }
    return 0;
}

static void comm_destroy_with_callbacks_left_calls_them(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        ranks_job job = {.size = 1 + (i > 0),
                         .link = i & 1 ? "shm" : "tcp",
                         .progress = i > 2 ? 1 : 2,
                         .arg = fds};
        assert_int_equal(ranks_run(&job, run_destroyed, 0), 0);
        close(fds[0]);
        close(fds[1]);
    }
}

/* ---- Threads --------------------------------------------------------------------------------- */
typedef struct caller {
    gr_comm *comm;
    int number;
    int go[2]; /* a pipe to the other rank */
    gr_status status;
    int32_t word;
} caller;

static void *send_word(void *arg)
{
    caller *c = arg;
    int32_t word = 7;
    char byte;
    if (read(c->go[0], &byte, 1) != 1) {
        return NULL;
    }
    c->status = gr_send(c->comm, &word, 1, GR_I32, 1);
    return NULL;
}

/* Longer than the ranks take to tell each other that each waits for the other. */
enum { TELLING_US = 400000 };

/* The other rank answers only what a second thread sends while the first one waits. That both wait
 * for each other first is no hang, since there is a thread that has not called yet. */
static int run_waiting(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    int32_t word = 0;
    if (gr_comm_rank(comm) == 1) {
        EXPECT(gr_recv(comm, &word, 1, GR_I32, 0) == GR_OK && word == 7);
        word = 8;
        EXPECT(gr_send(comm, &word, 1, GR_I32, 0) == GR_OK);
    } else {
        caller second = {.comm = comm, .go = {fds[0], fds[1]}, .status = GR_E_IO};
        pthread_t thread;
        gr_op *op = NULL;
        EXPECT(pthread_create(&thread, NULL, send_word, &second) == 0);
        EXPECT(gr_recv_start(comm, &word, 1, GR_I32, 1, &op) == GR_OK);
        EXPECT(gr_wait_for(op, 0) == GR_E_TIMEOUT && gr_wait_for(op, TELLING_US) == GR_E_TIMEOUT);
        EXPECT(gr_comm_last_error(comm)->status == GR_OK);
        EXPECT(write(fds[1], "x", 1) == 1);
        EXPECT(gr_wait(op) == GR_OK && word == 8);
        pthread_join(thread, NULL);
        EXPECT(second.status == GR_OK);
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void wait_on_one_thread_lets_another_start(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_waiting), 0);
}

static void *send_word_later(void *arg)
{
    caller *c = arg;
    int32_t word = 7;
    struct pollfd told = {.fd = c->go[0], .events = POLLIN};
    (void)poll(&told, 1, c->number == GR_THREADS_ONE ? -1 : TELLING_US / 1000);
    c->status = gr_send(c->comm, &word, 1, GR_I32, 1);
    return NULL;
}

/* The first threads of both ranks wait for each other, without a limit. Whether rank 0 has a thread
 * that sends what rank 1 waits for, only the program knows. */
static int run_both_receive(gr_comm *comm, const ranks_job *job)
{
    int32_t word = 0, other = 1 - gr_comm_rank(comm);
    bool one = job->threads == GR_THREADS_ONE;
    const int *fds = job->arg;
    caller second = {.comm = comm, .number = job->threads, .go = {fds[0], fds[1]}};
    pthread_t thread;
    if (other == 1) {
        EXPECT(pthread_create(&thread, NULL, send_word_later, &second) == 0);
    }
    gr_status status = gr_recv(comm, &word, 1, GR_I32, other);
    EXPECT(status == (one ? GR_E_MISMATCH : GR_OK));
    if (other == 0 && !one) {
        EXPECT(word == 7 && gr_send(comm, &word, 1, GR_I32, 0) == GR_OK);
    }
    if (other == 1) {
        EXPECT(write(fds[1], "x", 1) == 1);
        pthread_join(thread, NULL);
        EXPECT(second.status == (one ? GR_E_COMM_BROKEN : GR_OK));
    }
    gr_comm_destroy(comm);
    return 0;
}

static void threads_of_a_rank_tell_whether_it_may_be_in_a_deadlock(void **state)
{
    (void)state;
    for (int threads = GR_THREADS_AUTO; threads <= GR_THREADS_MANY; threads++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        const ranks_job job = {
            .size = 2, .link = "shm", .progress = 2, .threads = threads, .arg = fds};
        assert_int_equal(ranks_run(&job, run_both_receive, 0), 0);
        close(fds[0]);
        close(fds[1]);
    }
}

/* Both ranks wait for each other, one of them for a limited time: it sends after that. */
static int run_limited(gr_comm *comm, const ranks_job *job)
{
    int32_t word = 0;
    (void)job;
    if (gr_comm_rank(comm) == 1) {
        EXPECT(gr_recv(comm, &word, 1, GR_I32, 0) == GR_OK && word == 7);
        word = 8;
        EXPECT(gr_send(comm, &word, 1, GR_I32, 0) == GR_OK);
    } else {
        gr_op *op = NULL;
        int32_t sent = 7;
        EXPECT(gr_recv_start(comm, &word, 1, GR_I32, 1, &op) == GR_OK);
        EXPECT(gr_wait_for(op, TELLING_US) == GR_E_TIMEOUT);
        EXPECT(gr_send(comm, &sent, 1, GR_I32, 1) == GR_OK);
        EXPECT(gr_wait(op) == GR_OK && word == 8);
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void wait_for_a_limited_time_is_no_deadlock(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_limited), 0);
}

enum { CALLERS = 4, CALLS = THOROUGH(400) };

typedef struct own_group {
    gr_comm *whole, *own; /* own NULL: none */
    int failed;
} own_group;

static void count_call(gr_status status, void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, status == GR_OK ? 1 : 1 << 20);
}

/* All ranks' threads call the same on the whole communicator, so that it does not matter which
 * thread comes first; in a sub-group each thread has an order of its own. */
static void *call_much(void *arg)
{
    own_group *g = arg;
    int size = gr_comm_size(g->whole);
    _Atomic int done = 0;
    int64_t words[CALLS];
    for (int i = 0; i < CALLS && !g->failed; i++) {
        int64_t word = 1;
        gr_op *op = NULL;
        words[i] = i;
        gr_call call = {
            .dtype = GR_I64, .out = &words[i], .count = 1, .done = count_call, .done_arg = &done};
        switch (g->own ? i % 4 : i % 2) {
        case 0:
            g->failed |= gr_allreduce(g->whole, &word, 1, GR_I64, GR_SUM) != GR_OK || word != size;
            break;
        case 1:
            g->failed |= gr_allreduce_start(g->whole, &word, 1, GR_I64, GR_SUM, &op) != GR_OK;
            g->failed = g->failed || gr_wait(op) != GR_OK || word != size;
            break;
        case 2:
            g->failed |= gr_allreduce(g->own, &word, 1, GR_I64, GR_SUM) != GR_OK || word != size;
            break;
        default:
            g->failed |= gr_start(g->own, &call, 1, NULL) != GR_OK;
            while (!g->failed && atomic_load(&done) <= i / 4) {
                g->failed |= gr_status_scope(gr_comm_poll(g->own)) != GR_SCOPE_NONE;
                sched_yield();
            }
            g->failed |= words[i] != (int64_t)i * size;
            break;
        }
    }
    /* Each has called as often as the others on the other ranks. */
    g->failed |= g->own && atomic_load(&done) != CALLS / 4;
    return NULL;
}

static int run_callers(gr_comm *comm, void *arg)
{
    const bool *with_groups = arg;
    own_group groups[CALLERS];
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        gr_diag diag;
        groups[i] = (own_group){.whole = comm};
        if (*with_groups) {
            EXPECT(gr_comm_split(comm, 0, gr_comm_rank(comm), &groups[i].own, &diag) == GR_OK);
        }
        EXPECT(gr_barrier(comm) == GR_OK);
    }
    for (int i = 0; i < CALLERS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, call_much, &groups[i]) == 0);
    }
    int failed = 0;
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        failed |= groups[i].failed;
    }
    EXPECT(!failed);
    EXPECT(gr_barrier(comm) == GR_OK);
    for (int i = 0; i < CALLERS; i++) {
        gr_comm_destroy(groups[i].own);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void comm_with_four_threads_and_their_groups_sums_right(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) { /* over tcp the order in all sub-groups would be one */
        bool with_groups = i < 2;
        assert_int_equal(
            threads_run(2, with_groups ? "shm" : "tcp", 1 + i % 2, run_callers, &with_groups), 0);
    }
}

/* ---- Abort ----------------------------------------------------------------------------------- */
static void *abort_twice(void *arg)
{
    caller *c = arg;
    char byte;
    c->status = GR_OK;
    for (int i = 0; i < gr_comm_size(c->comm); i++) { /* all ranks have begun what never ends */
        c->status = read(c->go[0], &byte, 1) == 1 ? c->status : GR_E_IO;
    }
    for (int i = 0; i < 2 && c->status == GR_OK; i++) {
        c->status = gr_comm_abort(c->comm, i ? "another reason" : "the user pressed stop");
    }
    return NULL;
}

/* All ranks wait for what never comes. */
static int run_aborted(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    caller stopper = {.comm = comm, .go = {fds[0], fds[1]}};
    pthread_t thread;
    int32_t words[2] = {0};
    gr_op *op = NULL;
    bool stops = gr_comm_rank(comm) == 0;
    EXPECT(!stops || pthread_create(&thread, NULL, abort_twice, &stopper) == 0);
    if (gr_comm_size(comm) > 1) {
        EXPECT(gr_recv_start(comm, words, 2, GR_I32, 1 - gr_comm_rank(comm), &op) == GR_OK);
        EXPECT(gr_wait_for(op, 0) == GR_E_TIMEOUT);
    }
    EXPECT(write(fds[1], "x", 1) == 1);
    EXPECT(!op || gr_wait(op) == GR_E_ABORTED);
    if (stops) {
        pthread_join(thread, NULL);
        EXPECT(stopper.status == GR_OK);
    }
    EXPECT(gr_comm_diag(comm)->status == GR_E_ABORTED && gr_comm_diag(comm)->peer_rank == 0);
    EXPECT(strstr(gr_comm_diag(comm)->text, "rank 0") != NULL);
    EXPECT(strstr(gr_comm_diag(comm)->text, "the user pressed stop") != NULL);
    EXPECT(gr_allreduce(comm, words, 1, GR_I32, GR_SUM) == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_poll(comm) == GR_E_ABORTED && gr_comm_abort(comm, NULL) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void comm_abort_on_another_thread_ends_all_waits(void **state)
{
    (void)state;
    assert_int_equal(gr_comm_abort(NULL, "x"), GR_E_INVALID);
    for (int i = 0; i < 5; i++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        ranks_job job = {.size = 1 + (i > 0),
                         .link = i & 1 ? "shm" : "tcp",
                         .progress = i > 2 ? 1 : 2,
                         .arg = fds};
        assert_int_equal(ranks_run(&job, run_aborted, 0), 0);
        close(fds[0]);
        close(fds[1]);
    }
}

/* ---- The event ------------------------------------------------------------------------------- */
static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, timeout_ms) == 1 && (entry.revents & POLLIN) != 0;
}

enum { EVENT_MS = 60000 }; /* an event that does not come is a failure */

/* Rank 0 only polls; rank 1 sends when it is told to. */
static int run_polling(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    char byte = 0;
    int32_t word = 9;
    int fd = -1;
    if (gr_comm_rank(comm) == 1) {
        EXPECT(read(fds[0], &byte, 1) == 1);
        EXPECT(gr_send(comm, &word, 1, GR_I32, 0) == GR_OK);
        EXPECT(read(fds[0], &byte, 1) == 1);
        EXPECT(gr_comm_abort(comm, "enough") == GR_OK);
        gr_comm_destroy(comm);
        return 0;
    }
    EXPECT(gr_comm_event_fd(comm, NULL) == GR_E_INVALID);
    EXPECT(gr_comm_event_fd(comm, &fd) == GR_OK && is_readable(fd, 0));
    gr_op *op = NULL, *never = NULL;
    EXPECT(gr_recv_start(comm, &word, 1, GR_I32, 1, &op) == GR_OK);
    gr_comm_event_clear(comm);
    EXPECT(!is_readable(fd, 0) && gr_test(op) == GR_PENDING);
    EXPECT(write(fds[1], "x", 1) == 1);
    EXPECT(is_readable(fd, EVENT_MS) && is_readable(fd, 0));
    gr_comm_event_clear(comm);
    EXPECT(gr_test(op) == GR_OK && word == 9 && !is_readable(fd, 0));
    EXPECT(gr_recv_start(comm, &word, 1, GR_I32, 1, &never) == GR_OK);
    EXPECT(write(fds[1], "x", 1) == 1);
    EXPECT(is_readable(fd, EVENT_MS));
    EXPECT(gr_test(never) == GR_E_ABORTED && gr_comm_diag(comm)->status == GR_E_ABORTED);
    gr_comm_destroy(comm);
    return 0;
}

static void comm_event_is_readable_when_something_has_finished(void **state)
{
    (void)state;
    gr_comm_event_clear(NULL);
    assert_int_equal(ranks_run_pairs(run_polling), 0);
}

/* ---- Fork ------------------------------------------------------------------------------------ */
static int refused_in_child(gr_comm *comm, gr_op *op)
{
    int32_t word = 1;
    void *memory = NULL;
    int fd;
    int index;
    gr_comm *other = NULL;
    gr_diag diag;
    gr_op *ops[1] = {op};
    bool refused = gr_allreduce(comm, &word, 1, GR_I32, GR_SUM) == GR_E_INVALID &&
                   strstr(gr_comm_last_error(comm)->text, "forked") != NULL &&
                   gr_alloc(comm, 64, &memory) == GR_E_INVALID && gr_test(op) == GR_E_INVALID &&
                   gr_wait(op) == GR_E_INVALID && gr_wait_for(op, 1) == GR_E_INVALID &&
                   gr_wait_any(ops, 1, &index) == GR_E_INVALID &&
                   gr_comm_poll(comm) == GR_E_INVALID && gr_comm_drain(comm) == GR_E_INVALID &&
                   gr_comm_abort(comm, "child") == GR_E_INVALID &&
                   gr_comm_event_fd(comm, &fd) == GR_E_INVALID &&
                   gr_comm_split(comm, 0, 0, &other, &diag) == GR_E_INVALID && !other &&
                   strstr(diag.text, "forked") != NULL && gr_comm_change_wanted(comm) == 0;
    gr_comm *own = comm;
    refused = refused && gr_comm_renew(&own, &diag) == GR_E_INVALID && own == comm;
    gr_comm_destroy(comm);
    return refused ? 0 : 1;
}

/* A child that tries everything, destroys and exits, while an operation is in flight, and another
 * that lives on until the parent has finished. */
static int run_forking(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int32_t words[2] = {1, 1};
    gr_op *op = NULL;
    int how = 0, fds[2];
    EXPECT(pipe(fds) == 0);
    bool forks = gr_comm_rank(comm) == 0;
    EXPECT(!forks || gr_recv_start(comm, words, 1, GR_I32, 1, &op) == GR_OK);
    pid_t lives = forks ? fork() : 0;
    if (forks && lives == 0) {
        char byte;
        close(fds[1]);
        exit(read(fds[0], &byte, 1) == 0 ? 0 : 1);
    }
    pid_t child = forks ? fork() : 0;
    if (forks && child == 0) {
        exit(refused_in_child(comm, op));
    }
    if (forks) {
        EXPECT(waitpid(child, &how, 0) == child && how == 0);
        EXPECT(gr_wait(op) == GR_OK && words[0] == 5);
    } else {
        words[0] = 5;
        EXPECT(gr_send(comm, words, 1, GR_I32, 0) == GR_OK);
    }
    EXPECT(gr_allreduce(comm, &words[1], 1, GR_I32, GR_SUM) == GR_OK && words[1] == 2);
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    gr_comm_destroy(comm);
    if (forks) {
        close(fds[1]);
        if (waitpid(lives, &how, 0) != lives || how != 0) {
            return 1;
        }
    }
    return 0;
}

static void forked_child_that_destroys_and_exits_disturbs_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 2, .link = i & 1 ? "tcp" : "shm", .progress = 1 + (i > 1)};
        assert_int_equal(ranks_run(&job, run_forking, 0), 0);
    }
}

/* ---- Creation by a config -------------------------------------------------------------------- */
enum { STORE_RANKS = 4, STORE_BYTES = 4096 };

/* A key-value store of the caller's: what the ranks of one communicator gather. */
typedef struct gather_store {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int size, arrived, rounds;
    uint8_t bytes[2][STORE_RANKS * STORE_BYTES]; /* a rank may be one round behind */
} gather_store;

typedef enum callback_kind { GATHERS, FAILS, LIES, HANGS } callback_kind;

typedef struct callback_rank {
    gather_store *store;
    int rank, fds[2];
    callback_kind kind;
    _Atomic int returned; /* HANGS: the callback is past its read */
} callback_rank;

static int gather(void *arg, const void *mine, size_t size_bytes, void *all_out)
{
    callback_rank *own = arg;
    gather_store *store = own->store;
    char byte;
    if (own->kind == FAILS) {
        return 5;
    }
    if (own->kind == HANGS) { /* until the test lets it go */
        int result = read(own->fds[0], &byte, 1) == 0 ? 5 : 6;
        atomic_store(&own->returned, 1);
        return result;
    }
    if (size_bytes > STORE_BYTES) {
        return 7;
    }
    pthread_mutex_lock(&store->lock);
    int round = store->rounds;
    uint8_t *bytes = store->bytes[round % 2];
    memcpy(bytes + (size_t)own->rank * size_bytes, mine, size_bytes);
    if (++store->arrived == store->size) {
        store->arrived = 0;
        store->rounds++;
        pthread_cond_broadcast(&store->all_here);
    }
    while (store->rounds == round) {
        pthread_cond_wait(&store->all_here, &store->lock);
    }
    memcpy(all_out, bytes, (size_t)store->size * size_bytes);
    if (own->kind == LIES) { /* as one that takes the size for another */
        memset((uint8_t *)all_out + size_bytes / 2, 0, (size_t)store->size * size_bytes / 2);
    }
    pthread_mutex_unlock(&store->lock);
    return 0;
}

typedef struct root_rank {
    gr_comm_config config;
    callback_rank callback;
    gr_status status;
    int64_t sum;
    gr_diag diag;
} root_rank;

static void *join_root(void *arg)
{
    root_rank *own = arg;
    gr_comm *comm = NULL;
    own->status = gr_comm_create(&own->config, &comm, &own->diag);
    if (own->status == GR_OK) {
        own->sum = gr_comm_rank(comm) + 1;
        own->status = gr_allreduce(comm, &own->sum, 1, GR_I64, GR_SUM);
    }
    gr_comm_destroy(comm);
    return NULL;
}

static void store_init(gather_store *store, int size)
{
    memset(store, 0, sizeof *store);
    store->size = size;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->all_here, NULL);
}

static void store_fini(gather_store *store)
{
    pthread_cond_destroy(&store->all_here);
    pthread_mutex_destroy(&store->lock);
}

static root_rank root_of(gather_store *store, int rank, const char *link)
{
    root_rank root = {.callback = {.store = store, .rank = rank, .kind = GATHERS}};
    gr_comm_config_init(&root.config);
    root.config.rank = rank;
    root.config.size = store->size;
    root.config.bootstrap = gather;
    root.config.link = link;
    return root;
}

/* Two communicators at a time in one process, of two and of three ranks, which are threads. */
static void comm_create_by_callback_makes_two_roots_in_one_process(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        gather_store stores[2];
        root_rank ranks[5];
        pthread_t threads[5];
        store_init(&stores[0], 2);
        store_init(&stores[1], 3);
        for (int k = 0; k < 5; k++) {
            ranks[k] = root_of(&stores[k > 1], k > 1 ? k - 2 : k, i ? "tcp" : "shm");
            ranks[k].config.bootstrap_arg = &ranks[k].callback;
            assert_int_equal(pthread_create(&threads[k], NULL, join_root, &ranks[k]), 0);
        }
        for (int k = 0; k < 5; k++) {
            pthread_join(threads[k], NULL);
            if (ranks[k].status != GR_OK) {
                fprintf(stderr, "rank %d: %s\n", k, ranks[k].diag.text);
            }
            assert_int_equal(ranks[k].status, GR_OK);
            assert_int_equal(ranks[k].sum, k > 1 ? 6 : 3);
        }
        store_fini(&stores[0]);
        store_fini(&stores[1]);
    }
}

static int count_entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir)) {
        count++;
    }
    closedir(dir);
    return count;
}

/* Rank 0's callback is of this kind, and rank 1's gathers. */
static void check_wrong_callback(callback_kind kind)
{
    gather_store store;
    root_rank ranks[2];
    pthread_t threads[2];
    store_init(&store, 2);
    int fds[2];
    int files = count_entries("/proc/self/fd"), running = count_entries("/proc/self/task");
    assert_int_equal(pipe(fds), 0);
    for (int k = 0; k < 2; k++) {
        ranks[k] = root_of(&store, k, "tcp");
        ranks[k].config.join_timeout_us = 300000;
        ranks[k].config.bootstrap_arg = &ranks[k].callback;
        ranks[k].callback.kind = kind;
        ranks[k].callback.fds[0] = fds[0];
        assert_int_equal(pthread_create(&threads[k], NULL, join_root, &ranks[k]), 0);
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(threads[k], NULL);
        assert_true(ranks[k].status != GR_OK && ranks[k].status == ranks[k].diag.status);
        assert_true(strlen(ranks[k].diag.text) > 10);
        assert_int_equal(gr_status_scope(ranks[k].status) == GR_SCOPE_PROCESS, 0);
    }
    assert_true(kind != HANGS || ranks[0].status == GR_E_TIMEOUT);
    close(fds[1]); /* a callback that hangs returns, and its thread ends */
    for (int k = 0; k < 2; k++) {
        while (kind == HANGS && !atomic_load(&ranks[k].callback.returned)) {
            sched_yield();
        }
    }
    while (count_entries("/proc/self/task") > running) {
        sched_yield();
    }
    close(fds[0]);
    assert_int_equal(count_entries("/proc/self/fd"), files);
    store_fini(&store);
}

static void comm_create_by_a_wrong_callback_fails_and_leaks_nothing(void **state)
{
    (void)state;
    check_wrong_callback(FAILS);
    check_wrong_callback(LIES);
    check_wrong_callback(HANGS);
}

static void comm_create_by_a_wrong_config_says_what_is_wrong(void **state)
{
    (void)state;
    gr_comm_config right;
    gr_comm_config_init(NULL);
    gr_comm_config_init(&right);
    right.size = 2;
    right.bootstrap = gather;
    const char *const settings[] = {"GRADUS_RANK=1", NULL};
    const char *const no_settings[] = {"SPIN=1", NULL};
    const char *const misspelt[] = {"GRADUS_SPINN=1us", NULL};
    const struct {
        size_t struct_size;
        int rank, size;
        const char *coordinator, *secret, *link;
        const char *const *settings;
        int inexact, log_level;
        const char *words;
        int threads;
    } wrong[] = {
        {0, 0, 2, NULL, NULL, NULL, NULL, 0, 0, "struct_size is 0", 0},
        {sizeof right - 1, 0, 2, NULL, NULL, NULL, NULL, 0, 0, "struct_size", 0},
        {sizeof right, 2, 2, NULL, NULL, NULL, NULL, 0, 0, "the rank is 2", 0},
        {sizeof right, -1, 2, NULL, NULL, NULL, NULL, 0, 0, "the rank is -1", 0},
        {sizeof right, 0, -3, NULL, NULL, NULL, NULL, 0, 0, "the size is -3", 0},
        {sizeof right, 0, 0, NULL, NULL, NULL, NULL, 0, 0, "the size is 0", 0},
        {sizeof right, 0, 2, "tcp:127.0.0.1:1", NULL, NULL, NULL, 0, 0, "one of the two", 0},
        {sizeof right, 0, 2, NULL, "abc", NULL, NULL, 0, 0, "64 hexadecimal", 0},
        {sizeof right, 0, 2, NULL, NULL, "rdma", NULL, 0, 0, "\"rdma\" is no link", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, settings, 0, 0, "GRADUS_RANK=1", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, no_settings, 0, 0, "SPIN=1", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, misspelt, 0, 0, "did you mean GRADUS_SPIN", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, NULL, 7, 0, "inexact is 7", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, NULL, 0, 99, "gr_log_level", 0},
        {sizeof right, 0, 2, NULL, NULL, NULL, NULL, 0, 0, "gr_threads", 3},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gr_comm_config config = right;
        config.struct_size = wrong[i].struct_size;
        config.rank = wrong[i].rank;
        config.size = wrong[i].size;
        config.coordinator = wrong[i].coordinator;
        config.secret = wrong[i].secret;
        config.link = wrong[i].link;
        config.settings = wrong[i].settings;
        config.inexact = wrong[i].inexact;
        config.log_level = (gr_log_level)wrong[i].log_level;
        config.threads = (gr_threads)wrong[i].threads;
        gr_comm *comm = NULL;
        gr_diag diag = {.status = GR_OK};
        assert_int_equal(gr_comm_create(&config, &comm, &diag), GR_E_INVALID);
        assert_null(comm);
        assert_int_equal(diag.status, GR_E_INVALID);
        if (!strstr(diag.text, wrong[i].words)) {
            fail_msg("%zu: %s", i, diag.text);
        }
    }
    struct {
        gr_comm_config config;
        int newer[2];
    } newer = {.config = right};
    gr_comm *comm = NULL;
    gr_diag diag;
    newer.config.struct_size = sizeof newer;
    newer.config.size = 1;
    newer.newer[0] = 1;
    assert_int_equal(gr_comm_create(&newer.config, &comm, &diag), GR_E_UNSUPPORTED);
    newer.newer[0] = 0; /* it is not used: a newer program runs with an older library */
    assert_int_equal(gr_comm_create(&newer.config, &comm, &diag), GR_OK);
    gr_comm_destroy(comm);
    assert_int_equal(gr_comm_create(&right, NULL, &diag), GR_E_INVALID);
}

static void keep_line(void *arg, gr_log_level level, const char *component, const char *line)
{
    (void)component;
    if (level == GR_LOG_ERROR) {
        snprintf(arg, GR_DIAG_TEXT_BYTES, "%s", line);
    }
}

static void comm_with_a_log_function_says_there_what_is_wrong(void **state)
{
    (void)state;
    char line[GR_DIAG_TEXT_BYTES] = "";
    gr_comm_config config;
    gr_comm_config_init(&config);
    config.size = 1;
    config.log = keep_line;
    config.log_arg = line;
    gr_comm *comm = NULL;
    gr_diag diag;
    for (int i = 0; i < 2; i++) {
        config.log_level = i ? GR_LOG_ERROR : GR_LOG_OFF;
        assert_int_equal(gr_comm_create(&config, &comm, &diag), GR_OK);
        assert_int_equal(gr_allreduce(comm, NULL, 1, GR_F32, GR_SUM), GR_E_INVALID);
        assert_int_equal(line[0] != '\0', i);
        gr_comm_destroy(comm);
    }
}

/* ---- Memory of a device ---------------------------------------------------------------------- */
/* A CUDA device's memory has addresses that the kernel has reserved and that nobody can read. */
static int run_device_pointer(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { PAGES = 4, PAGE = 4096 };
    uint8_t *reserved = mmap(NULL, (size_t)PAGES * PAGE, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT(reserved != MAP_FAILED);
    float *device = (float *)reserved;
    float words[2] = {1, 1};
    for (int round = 0; round < 3; round++) { /* one like those before, at another place */
        EXPECT(gr_allreduce(comm, words, 1, GR_F32, GR_SUM) == GR_OK);
        EXPECT(gr_allreduce(comm, device, 1, GR_F32, GR_SUM) == GR_E_UNSUPPORTED);
        EXPECT(strstr(gr_comm_last_error(comm)->text, "copy device memory to the host") != NULL);
    }
    gr_call out = {.in = words, .out = device, .count = 2};
    gr_call in = {.in = device, .out = words, .count = 2};
    gr_call cuda = {.out = words, .count = 2, .memory = GR_MEMORY_CUDA};
    EXPECT(gr_run(comm, &out, 1) == GR_E_UNSUPPORTED && gr_run(comm, &in, 1) == GR_E_UNSUPPORTED);
    EXPECT(gr_run(comm, &cuda, 1) == GR_E_UNSUPPORTED);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "kind 1") != NULL);
    munmap(reserved, (size_t)PAGES * PAGE);
    words[0] = 1;
    EXPECT(gr_allreduce(comm, words, 1, GR_F32, GR_SUM) == GR_OK);
    EXPECT(words[0] == (float)gr_comm_size(comm) && gr_comm_diag(comm)->status == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void call_with_memory_of_a_device_is_refused(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_sizes(run_device_pointer, 1, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if !SANITIZED
        cmocka_unit_test(comm_create_without_memory_fails_and_leaks_nothing),
#endif
        cmocka_unit_test(comm_diag_is_read_while_the_progress_thread_fails),
        cmocka_unit_test(comm_destroy_with_callbacks_left_calls_them),
        cmocka_unit_test(wait_on_one_thread_lets_another_start),
        cmocka_unit_test(threads_of_a_rank_tell_whether_it_may_be_in_a_deadlock),
        cmocka_unit_test(wait_for_a_limited_time_is_no_deadlock),
        cmocka_unit_test(comm_with_four_threads_and_their_groups_sums_right),
        cmocka_unit_test(comm_abort_on_another_thread_ends_all_waits),
        cmocka_unit_test(comm_event_is_readable_when_something_has_finished),
        cmocka_unit_test(forked_child_that_destroys_and_exits_disturbs_nobody),
        cmocka_unit_test(comm_create_by_callback_makes_two_roots_in_one_process),
        cmocka_unit_test(comm_create_by_a_wrong_callback_fails_and_leaks_nothing),
        cmocka_unit_test(comm_create_by_a_wrong_config_says_what_is_wrong),
        cmocka_unit_test(comm_with_a_log_function_says_there_what_is_wrong),
        cmocka_unit_test(call_with_memory_of_a_device_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
