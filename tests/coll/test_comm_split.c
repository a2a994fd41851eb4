/* SPDX-License-Identifier: Apache-2.0 */
/* Sub-groups: what they are, what they cost, how they end; and long sequences of any operations on
 * any of them, compared with their definition. */
#include "coll/comm_internal.h"
#include "sanitized.h"
#include "support_oracle.h"
#include "support_ranks.h"

#include <dirent.h>
#include <fcntl.h>
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
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static int count_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}

/* ---- What they are --------------------------------------------------------------------------- */
static int run_split(gr_comm *comm, const ranks_job *job)
{
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm);
    int files = count_files();
    gr_diag diag;
    gr_comm *half = NULL, *same = NULL, *none = comm, *back = NULL;
    /* Even and odd, in falling order. */
    EXPECT(gr_comm_split(comm, rank % 2, -rank, &half, &diag) == GR_OK);
    int members = (size + 1 - rank % 2) / 2;
    EXPECT(gr_comm_size(half) == members && gr_comm_rank(half) == members - 1 - rank / 2);
    EXPECT(gr_comm_local_size(half) == members && gr_comm_local_rank(half) == gr_comm_rank(half));
    int32_t sum = rank;
    EXPECT(gr_allreduce(half, &sum, 1, GR_I32, GR_SUM) == GR_OK);
    int32_t want = 0;
    for (int i = rank % 2; i < size; i += 2) {
        want += i;
    }
    EXPECT(sum == want);
    bool shared = strcmp(job->link, "shm") == 0;
    EXPECT((half->shm != NULL) == (shared && members > 1)); /* as fast as the whole group */
    /* Of a sub-group; several at once; equal keys keep the order of the ranks. */
    EXPECT(gr_comm_split(half, 5, 0, &same, &diag) == GR_OK);
    EXPECT(gr_comm_rank(same) == gr_comm_rank(half) && gr_comm_size(same) == members);
    gr_op *ops[3];
    int32_t words[3] = {1, 10, 100};
    EXPECT(gr_allreduce_start(comm, &words[0], 1, GR_I32, GR_SUM, &ops[0]) == GR_OK);
    EXPECT(gr_allreduce_start(half, &words[1], 1, GR_I32, GR_SUM, &ops[1]) == GR_OK);
    EXPECT(gr_allreduce_start(same, &words[2], 1, GR_I32, GR_SUM, &ops[2]) == GR_OK);
    for (int i = 2; i >= 0; i--) {
        EXPECT(gr_wait(ops[i]) == GR_OK);
    }
    EXPECT(words[0] == size && words[1] == 10 * members && words[2] == 100 * members);
    /* Nobody, and one. */
    EXPECT(gr_comm_split(comm, -1, 0, &none, &diag) == GR_OK && !none);
    EXPECT(gr_comm_split(comm, rank, 0, &back, &diag) == GR_OK);
    EXPECT(gr_comm_size(back) == 1 && gr_allreduce(back, &sum, 1, GR_I32, GR_SUM) == GR_OK);
    EXPECT(sum == want && gr_barrier(back) == GR_OK);
    fprintf(stderr, "%d %d\n", count_files(), files);
    EXPECT(count_files() <= files); /* a listener may be closed by then */
    /* Parents first. */
    gr_comm_destroy(comm);
    comm = same;
    gr_comm_destroy(half);
    EXPECT(gr_allreduce(same, &sum, 1, GR_I32, GR_MAX) == GR_OK && sum == want);
    gr_comm_destroy(back);
    EXPECT(gr_barrier(same) == GR_OK);
    gr_comm_destroy(same);
    return 0;
}

static void test_split(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        ranks_job job = {
            .size = 1 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = i % 3 ? 2 : 1};
        assert_int_equal(ranks_run(&job, run_split, 0), 0);
    }
}

static int run_subgroup(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm);
    gr_diag diag = {.text = ""};
    gr_comm *sub = comm;
    const int backwards[4] = {3, 2, 1, 0};
    EXPECT(gr_comm_subgroup(comm, backwards, 4, &sub, &diag) == GR_OK);
    if (rank < 4) {
        EXPECT(gr_comm_rank(sub) == 3 - rank && gr_comm_size(sub) == 4);
        int32_t all[4] = {0};
        all[3 - rank] = rank;
        EXPECT(gr_allgather(sub, all, 1, GR_I32) == GR_OK);
        EXPECT(all[0] == 3 && all[1] == 2 && all[2] == 1 && all[3] == 0);
    } else {
        EXPECT(!sub);
    }
    gr_comm_destroy(sub);
    /* What is wrong on one rank is told to all, and harms nothing. */
    const int twice[3] = {0, 1, 1};
    gr_comm *wrong = NULL;
    EXPECT(gr_comm_subgroup(comm, twice, rank == 1 ? 3 : 2, &wrong, &diag) == GR_E_INVALID);
    EXPECT(strstr(diag.text, rank == 1 ? "holds a rank twice" : "the arguments of rank 1"));
    EXPECT(strcmp(gr_comm_last_error(comm)->text, diag.text) == 0);
    EXPECT(gr_comm_subgroup(comm, twice, rank == 1 ? 1 : 2, &wrong, &diag) == GR_E_INVALID);
    EXPECT(strstr(diag.text, "different lists") && !wrong);
    const int far[2] = {0, 99};
    EXPECT(gr_comm_subgroup(comm, far, 2, &wrong, &diag) == GR_E_INVALID && !wrong);
    EXPECT(gr_comm_subgroup(comm, NULL, 0, &wrong, &diag) == GR_E_INVALID && !wrong);
    EXPECT(gr_comm_split(comm, 0, 0, rank == 0 ? NULL : &wrong, &diag) == GR_E_INVALID && !wrong);
    EXPECT((rank == 0 ? gr_comm_split(comm, 0, 0, &wrong, &diag)
                      : gr_comm_subgroup(comm, twice, 2, &wrong, &diag)) == GR_E_INVALID);
    EXPECT(strstr(diag.text, "gr_comm_split") && strstr(diag.text, "gr_comm_subgroup"));
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    int32_t one = 1;
    EXPECT(gr_allreduce(comm, &one, 1, GR_I32, GR_SUM) == GR_OK && one == size);
    gr_comm_destroy(comm);
    return 0;
}

static void test_subgroup(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 4 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = 2};
        assert_int_equal(ranks_run(&job, run_subgroup, 0), 0);
    }
    gr_comm *none = NULL;
    gr_diag diag;
    assert_int_equal(gr_comm_split(NULL, 0, 0, &none, &diag), GR_E_INVALID);
    assert_int_equal(gr_comm_subgroup(NULL, NULL, 0, &none, &diag), GR_E_INVALID);
}

/* Numbers of communicators are used again; there is an end to how many exist at a time. */
static int run_many(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int32_t word = 1;
    for (int i = 0; i < 2 * GR_COMMS_MAX + 10; i++) {
        gr_comm *sub = NULL;
        EXPECT(gr_comm_split(comm, 0, 0, &sub, NULL) == GR_OK);
        word = 1;
        EXPECT(gr_allreduce(sub, &word, 1, GR_I32, GR_SUM) == GR_OK);
        EXPECT(word == gr_comm_size(comm));
        gr_comm_destroy(sub);
    }
    gr_comm **subs = calloc(GR_COMMS_MAX, sizeof(gr_comm *));
    EXPECT(subs);
    int made = 0;
    gr_diag diag;
    gr_status status = GR_OK;
    while (made < GR_COMMS_MAX && status == GR_OK) {
        status = gr_comm_split(comm, 0, 0, &subs[made], &diag);
        made += status == GR_OK;
    }
    EXPECT(status == GR_E_NO_MEMORY && made == GR_COMMS_MAX - 1);
    EXPECT(strstr(diag.text, "1024"));
    EXPECT(!subs[made - 1]->shm); /* there are few of them */
    EXPECT(gr_barrier(subs[made - 1]) == GR_OK && gr_barrier(comm) == GR_OK);
    for (int i = 0; i < made; i++) {
        gr_comm_destroy(subs[i]);
    }
    free(subs);
    gr_comm_destroy(comm);
    return 0;
}

static void test_many(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_sizes(run_many, 1, 2), 0);
}

/* Each rank starts first what another one starts last, and more than there is scratch for. */
static int run_circle(gr_comm *comm, const ranks_job *job)
{
    enum { OPS = 8, COUNT = 1 << 18 };
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *pairs[3];
    for (int i = 0; i < 3; i++) {
        const int members[2] = {i, (i + 1) % 3};
        EXPECT(gr_comm_subgroup(comm, members, 2, &pairs[i], NULL) == GR_OK);
    }
    gr_comm *const mine[2] = {pairs[rank], pairs[(rank + 2) % 3]};
    float *buf = malloc((size_t)2 * OPS * COUNT * sizeof *buf);
    EXPECT(buf);
    for (int i = 0; i < 2 * OPS * COUNT; i++) {
        buf[i] = (float)rank;
    }
    gr_op *ops[2 * OPS];
    for (int i = 0; i < 2 * OPS; i++) {
        EXPECT(gr_allreduce_start(mine[i / OPS], buf + (size_t)i * COUNT, COUNT, GR_F32, GR_SUM,
                                  &ops[i]) == GR_OK);
    }
    for (int i = 0; i < 2 * OPS; i++) {
        EXPECT(gr_wait(ops[i]) == GR_OK);
    }
    for (int i = 0; i < 2 * OPS * COUNT; i++) {
        int other = i < OPS * COUNT ? (rank + 1) % 3 : (rank + 2) % 3;
        EXPECT(buf[i] == (float)(rank + other));
    }
    free(buf);
    for (int i = 0; i < 3; i++) {
        gr_comm_destroy(pairs[i]);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_circle(void **state)
{
    (void)state;
    ranks_job job = {.size = 3, .link = "tcp", .algorithm = "allreduce=direct"};
    assert_int_equal(ranks_run(&job, run_circle, 0), 0);
}

/* ---- How they end ---------------------------------------------------------------------------- */
/* Rank 2 dies; the sub-group of ranks 0 and 1 breaks too, since nobody can tell what else depended
 * on it. */
static int run_death(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *pair = NULL;
    EXPECT(gr_comm_split(comm, rank < 2 ? 0 : -1, 0, &pair, NULL) == GR_OK);
    gr_status status = gr_barrier(comm);
    if (rank == 2) {
        raise(SIGKILL);
    }
    int32_t word = 1;
    while (status == GR_OK) {
        status = gr_allreduce(comm, &word, 1, GR_I32, GR_MAX);
    }
    EXPECT(status == GR_E_PEER_LOST || status == GR_E_COMM_BROKEN);
    EXPECT(gr_comm_diag(pair)->status != GR_OK && gr_comm_diag(pair)->peer_rank == 2);
    EXPECT(gr_barrier(pair) == GR_E_COMM_BROKEN);
    EXPECT(strstr(gr_comm_last_error(pair)->text, gr_comm_diag(comm)->text));
    gr_comm *more = NULL;
    gr_diag diag = {.text = ""};
    EXPECT(gr_comm_split(pair, 0, 0, &more, &diag) == GR_E_COMM_BROKEN && !more);
    EXPECT(strlen(diag.text) > 0);
    gr_comm_destroy(comm);
    EXPECT(gr_comm_diag(pair)->status != GR_OK);
    gr_comm_destroy(pair);
    return 0;
}

static void test_death(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 3, .link = i % 2 ? "tcp" : "shm", .progress = i > 1 ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_death, 4), 0);
    }
}

/* A sub-group destroyed with an unfinished operation ends its relatives, with a sentence. */
static int run_unfinished(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *sub = NULL;
    EXPECT(gr_comm_split(comm, 0, 0, &sub, NULL) == GR_OK);
    gr_op *op = NULL;
    int32_t word = 1;
    /* Who is through it may be far ahead of who is not. */
    gr_status status = gr_barrier(sub);
    EXPECT(status == GR_OK || (rank != 0 && status == GR_E_COMM_BROKEN));
    if (rank == 0) {
        EXPECT(gr_recv_start(sub, &word, 1, GR_I32, 1, &op) == GR_OK);
        gr_comm_destroy(sub);
        status = gr_barrier(comm);
    } else {
        while (status == GR_OK) { /* rank 1 never sends */
            status = gr_recv(comm, &word, 1, GR_I32, 0);
        }
        gr_comm_destroy(sub);
    }
    EXPECT(status == GR_E_COMM_BROKEN);
    EXPECT(strstr(gr_comm_diag(comm)->text, "rank 0 destroyed a sub-group"));
    gr_comm_destroy(comm);
    return 0;
}

static void test_unfinished(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 2 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = 2};
        assert_int_equal(ranks_run(&job, run_unfinished, 0), 0);
    }
}

/* ---- Two threads that destroy the last two --------------------------------------------------- */
typedef struct destroyer {
    gr_comm *comm; /* destroyed by the other thread, ... */
    pthread_t thread;
    _Atomic int id; /* ... which has begun */
} destroyer;

static void *destroy(void *arg)
{
    destroyer *d = arg;
    atomic_store(&d->id, (int)syscall(SYS_gettid));
    gr_comm_destroy(d->comm);
    return NULL;
}

static bool is_asleep(int thread)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) {
        fclose(file);
    }
    text[got] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[2] == 'S';
}

/* The last callback of one communicator, while it is destroyed: the other thread waits for its end
 * inside gr_comm_destroy. */
static void begin_to_destroy(gr_status status, void *arg)
{
    destroyer *d = arg;
    if (status != GR_OK || pthread_create(&d->thread, NULL, destroy, d) != 0) {
        exit(2);
    }
    while (atomic_load(&d->id) == 0 || !is_asleep(atomic_load(&d->id))) {
        sched_yield();
    }
}

static int run_two_destroyers(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    destroyer d = {.comm = NULL};
    int event_fd = -1;
    float word = 1;
    EXPECT(gr_comm_split(comm, 0, 0, &d.comm, NULL) == GR_OK);
    EXPECT(gr_comm_event_fd(comm, &event_fd) == GR_OK && fcntl(event_fd, F_GETFD) >= 0);
    gr_call call = {.coll = GR_COLL_ALLREDUCE,
                    .out = &word,
                    .count = 1,
                    .done = begin_to_destroy,
                    .done_arg = &d};
    EXPECT(gr_start(comm, &call, 1, NULL) == GR_OK);
    gr_comm_destroy(comm);
    if (atomic_load(&d.id) == 0 || pthread_join(d.thread, NULL) != 0) {
        return 2;
    }
    return fcntl(event_fd, F_GETFD) < 0 ? 0 : 3; /* the context is gone */
}

static void last_two_communicators_end_their_context(void **state)
{
    (void)state;
    ranks_job job = {.size = 1, .link = "shm", .progress = 2};
    assert_int_equal(ranks_run(&job, run_two_destroyers, 0), 0);
}

/* ---- Alone ----------------------------------------------------------------------------------- */
/* A sub-group of one does without the others, but not with what its relatives use, nor beyond their
 * end. */
static int run_alone(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    int rank = gr_comm_rank(comm);
    gr_comm *own = NULL;
    EXPECT(gr_comm_split(comm, rank, 0, &own, NULL) == GR_OK && gr_comm_size(own) == 1);
    float words[4] = {1, 2, 3, 4}, more[4] = {0};
    gr_op *op = NULL;
    if (rank == 0) {
        EXPECT(gr_recv_start(comm, words, 4, GR_F32, 1, &op) == GR_OK);
        EXPECT(gr_allreduce(own, words, 4, GR_F32, GR_SUM) == GR_E_INVALID);
        EXPECT(strstr(gr_comm_last_error(own)->text, "still used by a message"));
        EXPECT(gr_allreduce(own, more, 4, GR_F32, GR_SUM) == GR_OK);
        EXPECT(gr_send(comm, more, 4, GR_F32, 1) == GR_OK);
        EXPECT(gr_wait(op) == GR_OK && words[3] == 8);
    } else {
        EXPECT(gr_recv(comm, more, 4, GR_F32, 0) == GR_OK);
        words[3] = 8;
        EXPECT(gr_send(comm, words, 4, GR_F32, 0) == GR_OK);
    }
    EXPECT(gr_allreduce(own, words, 4, GR_F32, GR_SUM) == GR_OK);
    gr_status status = rank == 0 ? gr_barrier(comm) : gr_broadcast(comm, words, 4, GR_F32, 1);
    status = status == GR_OK ? gr_barrier(comm) : status;
    EXPECT(status != GR_OK);
    EXPECT(gr_allreduce(own, words, 4, GR_F32, GR_SUM) == GR_E_COMM_BROKEN);
    gr_comm_destroy(own);
    gr_comm_destroy(comm);
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {.size = 2, .link = i % 2 ? "tcp" : "shm", .progress = 1 + i / 2};
        assert_int_equal(ranks_run(&job, run_alone, 0), 0);
    }
}

/* ---- Anything on anything -------------------------------------------------------------------- */
enum { COMMS = 6, FLIGHT_MAX = 12 };

typedef struct flight {
    oracle_case c;
    oracle_part part;
    gr_op *op;
} flight;

/* All ranks draw the same random numbers; who is not in a sub-group passes over its operations. */
static int run_anything(gr_comm *comm, const ranks_job *job)
{
    uint64_t state = *(const uint64_t *)job->arg;
    int size = gr_comm_size(comm);
    gr_comm *comms[COMMS] = {comm};
    int sizes[COMMS] = {size};
    for (int i = 1; i < COMMS; i++) {
        int list[ORACLE_RANKS_MAX], count = 0;
        int from = (int)(oracle_next(&state) % (uint64_t)i);
        for (int k = 0; k < sizes[from]; k++) {
            if (oracle_next(&state) % 3) {
                int at = count++;
                int swap = (int)(oracle_next(&state) % (uint64_t)count);
                list[at] = list[swap < at ? swap : at];
                list[swap < at ? swap : at] = k;
            }
        }
        count = count > 0 ? count : (list[0] = 0, 1);
        sizes[i] = count;
        if (comms[from]) {
            EXPECT(gr_comm_subgroup(comms[from], list, count, &comms[i], NULL) == GR_OK);
        }
    }
    flight flights[FLIGHT_MAX];
    int flying = 0;
    for (int round = 0; round < 150; round++) {
        int which = (int)(oracle_next(&state) % COMMS);
        oracle_case c;
        oracle_random(&c, &state, sizes[which], 4000);
        uint64_t how = oracle_next(&state) % 4;
        if (comms[which]) {
            flight *f = &flights[flying];
            f->c = c;
            f->op = NULL;
            EXPECT(oracle_begin(&f->part, &f->c, comms[which]));
            if (!f->part.idle && how > 0) {
                EXPECT(gr_start(comms[which], &f->part.call, 1, &f->op) == GR_OK);
            } else if (!f->part.idle) {
                EXPECT(gr_run(comms[which], &f->part.call, 1) == GR_OK);
            }
            flying++;
        }
        uint64_t land = oracle_next(&state);
        while (flying == FLIGHT_MAX || (flying > 0 && land % 3 == 0)) {
            int index = (int)(land / 3 % (uint64_t)flying);
            flight *f = &flights[index];
            EXPECT(!f->op || gr_wait(f->op) == GR_OK);
            EXPECT(oracle_end(&f->part));
            *f = flights[--flying];
            f->part.c = &f->c;
            land /= 3;
        }
    }
    for (int i = 0; i < flying; i++) {
        EXPECT(!flights[i].op || gr_wait(flights[i].op) == GR_OK);
        EXPECT(oracle_end(&flights[i].part));
    }
    for (int i = COMMS - 1; i >= 0; i--) {
        gr_comm_destroy(comms[i]);
    }
    return 0;
}

/* GRADUS_TEST_SEED=n repeats one. */
static void test_anything(void **state)
{
    (void)state;
    uint64_t seeds = THOROUGH(40);
    const char *text = getenv("GRADUS_TEST_SEED");
    uint64_t first = text ? strtoull(text, NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + (text ? 1 : seeds); seed++) {
        uint64_t drawn = seed;
        uint64_t bits = oracle_next(&drawn);
        ranks_job job = {.size = 1 + (int)(bits % 6),
                         .link = bits & 64 ? "tcp" : "shm",
                         .progress = bits & 128 ? 1 : 2,
                         .segment_bytes = 256 << (bits >> 8) % 8,
                         .arg = &seed};
        uint64_t failed = ranks_run(&job, run_anything, 0);
        if (failed != 0) {
            print_error("seed %llu: repeat it with GRADUS_TEST_SEED=%llu\n",
                        (unsigned long long)seed, (unsigned long long)seed);
        }
        assert_int_equal(failed, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_subgroup),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_circle),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_unfinished),
        cmocka_unit_test(last_two_communicators_end_their_context),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
