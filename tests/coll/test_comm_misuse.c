/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are wrong: each gives its sentence, and the communicator is as good as before. */
#include "coll/comm_internal.h"
#include "support_ranks.h"
#include <gradus/coll.h>
#include <gradus/elastic.h>
#include <gradus/shards.h>
#include <gradus/stats.h>

#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SAYS(words) (strstr(gr_comm_last_error(comm)->text, words) != NULL)

static void count_done(gr_status status, void *arg)
{
    *(int *)arg += status == GR_OK;
}

/* Does everything still work? */
static int check_sound(gr_comm *comm)
{
    int64_t word = 1;
    EXPECT(gr_allreduce(comm, &word, 1, GR_I64, GR_SUM) == GR_OK);
    EXPECT(word == gr_comm_size(comm) && gr_comm_diag(comm)->status == GR_OK);
    return 0;
}

/* ---- Wrong arguments ------------------------------------------------------------------------- */
static int run_arguments(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float buf[8] = {1, 2, 3, 4};
    int done = 0;
    gr_op *op = NULL;
    EXPECT(gr_comm_last_error(comm)->status == GR_OK);
    gr_call wrong = {.coll = GR_COLL_BROADCAST,
                     .out = buf,
                     .count = 1,
                     .root = 64,
                     .name = "weights",
                     .site = "train.c:88"};
    EXPECT(gr_run(comm, &wrong, 1) == GR_E_INVALID);
    EXPECT(gr_comm_last_error(comm)->status == GR_E_INVALID);
    EXPECT(SAYS("broadcast \"weights\" at train.c:88") && SAYS("the root is 64"));
    gr_call fine = {.out = buf, .count = 2};
    EXPECT(gr_run(comm, NULL, 1) == GR_E_INVALID && SAYS("1 .. 64 calls"));
    EXPECT(gr_run(comm, &fine, 0) == GR_E_INVALID && SAYS("not 0"));
    EXPECT(gr_run(comm, &fine, 65) == GR_E_INVALID && SAYS("not 65"));
    EXPECT(gr_run(NULL, &fine, 1) == GR_E_INVALID);
    EXPECT(gr_start(NULL, &fine, 1, &op) == GR_E_INVALID);
    EXPECT(gr_start(comm, &fine, 1, NULL) == GR_E_INVALID && SAYS("no callback either"));
    gr_call calling = {.out = buf, .count = 2, .done = count_done, .done_arg = &done};
    EXPECT(gr_run(comm, &calling, 1) == GR_E_INVALID && SAYS("use gr_start"));
    EXPECT(gr_start(comm, &calling, 1, &op) == GR_E_INVALID && SAYS("op_out must be NULL"));
    gr_call two[2] = {{.out = buf, .count = 2},
                      {.out = buf + 2, .count = 2, .done = count_done, .done_arg = &done}};
    EXPECT(gr_start(comm, two, 2, &op) == GR_E_INVALID && SAYS("call 1"));
    EXPECT(done == 0 && !op);
    /* All or nothing. */
    gr_call group[3] = {{.out = buf, .count = 2},
                        {.coll = GR_COLL_BARRIER},
                        {.out = buf + 2, .count = 2, .dtype = (gr_dtype)77}};
    EXPECT(gr_run(comm, group, 3) == GR_E_INVALID && SAYS("77"));
    EXPECT(buf[0] == 1 && buf[1] == 2);
    EXPECT(gr_test(NULL) == GR_E_INVALID && gr_wait(NULL) == GR_E_INVALID);
    EXPECT(gr_comm_poll(NULL) == GR_E_INVALID && gr_comm_drain(NULL) == GR_E_INVALID);
    if (check_sound(comm) != 0) {
        return 1;
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_arguments(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_sizes(run_arguments, 1, 2), 0);
}

/* One rank calls what is wrong, between operations that are right: nobody else hears of it. */
static int run_one_wrong(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    float room[64] = {0};
    const size_t counts[4] = {1, SIZE_MAX, 1, 1};
    const struct {
        gr_call call;
        const char *words;
    } wrong[] = {
        {{.coll = (gr_coll)77, .out = room, .count = 1}, "gr_coll"},
        {{.out = room, .count = 1, .dtype = (gr_dtype)GR_DTYPE_COUNT}, "gr_dtype"},
        {{.out = room, .count = 1, .op = (gr_redop)-1}, "gr_redop"},
        {{.out = room, .count = SIZE_MAX / 2}, "too large"},
        {{.coll = GR_COLL_ALLGATHER, .out = room, .counts = counts}, "at rank 1"},
        {{.coll = GR_COLL_REDUCE, .in = room, .out = room + 8, .count = 1, .root = -1}, "root"},
        {{.coll = GR_COLL_RECV, .out = room, .count = 1, .root = 9}, "peer"},
        {{.in = room, .out = room + 1, .count = 2}, "overlap"},
        {{.coll = GR_COLL_ALLTOALL, .in = room, .out = room + 1, .count = 1}, "overlap"},
        {{.count = 1}, "out is NULL"},
    };
    int last = gr_comm_size(comm) - 1;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        float sum[4] = {1};
        gr_op *op = NULL;
        EXPECT(gr_allreduce_start(comm, sum, 4, GR_F32, GR_SUM, &op) == GR_OK);
        if (gr_comm_rank(comm) == last) {
            EXPECT(gr_run(comm, &wrong[i].call, 1) == GR_E_INVALID && SAYS(wrong[i].words));
        }
        EXPECT(gr_wait(op) == GR_OK && sum[0] == (float)(last + 1));
        EXPECT(gr_comm_diag(comm)->status == GR_OK);
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_one_wrong(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ranks_job job = {
            .size = 2 + i / 2, .link = i % 2 ? "tcp" : "shm", .progress = i > 1 ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_one_wrong, 0), 0);
    }
}

/* ---- Memory in use --------------------------------------------------------------------------- */
static int run_memory(gr_comm *comm, const ranks_job *job)
{
    const int *fds = job->arg;
    char byte = 0;
    enum { COUNT = 1000 };
    void *mem = NULL;
    EXPECT(gr_alloc(comm, 0, &mem) == GR_E_INVALID && SAYS("the size is 0"));
    EXPECT(gr_alloc(comm, 8, NULL) == GR_E_INVALID && SAYS("mem_out is NULL"));
    EXPECT(gr_alloc(comm, SIZE_MAX - 100, &mem) == GR_E_NO_MEMORY && SAYS("no memory for"));
    EXPECT(gr_alloc(comm, COUNT * sizeof(int32_t), &mem) == GR_OK);
    int32_t *words = mem;
    if (gr_comm_rank(comm) == 0) {
        gr_op *ops[2];
        int32_t other = 0;
        EXPECT(gr_recv_start(comm, words, COUNT, GR_I32, 1, &ops[0]) == GR_OK);
        gr_free(comm, words);
        EXPECT(gr_comm_last_error(comm)->status == GR_E_INVALID);
        EXPECT(SAYS("gr_free on rank 0") && SAYS("recv") && SAYS("stays allocated"));
        EXPECT(gr_recv_start(comm, words + COUNT - 1, 1, GR_I32, 1, &ops[1]) == GR_E_INVALID);
        EXPECT(SAYS("is still used by a message") && SAYS("recv of 1000 i32"));
        EXPECT(gr_send_start(comm, words, 1, GR_I32, 1, &ops[1]) == GR_E_INVALID);
        EXPECT(gr_recv_start(comm, &other, 1, GR_I32, 1, &ops[1]) == GR_OK);
        EXPECT(write(fds[1], &byte, 1) == 1); /* now the other one sends */
        EXPECT(gr_wait(ops[1]) == GR_OK && gr_wait(ops[0]) == GR_OK);
        EXPECT(words[0] == 7 && words[COUNT - 1] == 9 && other == 7);
    } else {
        EXPECT(read(fds[0], &byte, 1) == 1);
        words[0] = 7;
        words[COUNT - 1] = 9;
        gr_op *ops[2]; /* reading the same memory twice is fine */
        EXPECT(gr_send_start(comm, words, COUNT, GR_I32, 0, &ops[0]) == GR_OK);
        EXPECT(gr_send_start(comm, words, 1, GR_I32, 0, &ops[1]) == GR_OK);
        EXPECT(gr_wait(ops[0]) == GR_OK && gr_wait(ops[1]) == GR_OK);
    }
    /* The same for a collective: rank 1 comes late. */
    int32_t sums[2] = {0};
    gr_op *both[2] = {NULL};
    gr_call reads[2] = {{.dtype = GR_I32, .in = words, .out = &sums[0], .count = 1},
                        {.dtype = GR_I32, .in = words, .out = &sums[1], .count = 1}};
    if (gr_comm_rank(comm) == 1) {
        EXPECT(read(fds[0], &byte, 1) == 1);
    }
    EXPECT(gr_start(comm, &reads[0], 1, &both[0]) == GR_OK);
    if (gr_comm_rank(comm) == 0) {
        gr_free(comm, words);
        EXPECT(SAYS("gr_free on rank 0: ") && SAYS("allreduce of 1 i32"));
        gr_call spoils = {.dtype = GR_I32, .out = words, .count = 1};
        EXPECT(gr_start(comm, &spoils, 1, &both[1]) == GR_E_INVALID && SAYS("is still used by"));
        EXPECT(write(fds[1], &byte, 1) == 1);
    }
    EXPECT(gr_start(comm, &reads[1], 1, &both[1]) == GR_OK);
    EXPECT(gr_wait(both[0]) == GR_OK && gr_wait(both[1]) == GR_OK);
    EXPECT(sums[0] == 14 && sums[1] == 14);
    gr_free(comm, words + 1);
    EXPECT(SAYS("no memory of gr_alloc"));
    gr_free(comm, words);
    gr_free(comm, words);
    EXPECT(SAYS("or was freed already"));
    gr_free(comm, NULL);
    if (check_sound(comm) != 0) {
        return 1;
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_memory(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(run_memory), 0);
}

/* ---- Too many -------------------------------------------------------------------------------- */
static int run_too_many(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { MORE = GR_EXEC_OPS_MAX + 1 };
    int32_t words[MORE + 2] = {0};
    gr_op *ops[MORE] = {NULL};
    int begun = 0;
    gr_status status = GR_OK;
    while (begun < MORE && status == GR_OK) {
        words[begun] = begun;
        status = gr_allreduce_start(comm, &words[begun], 1, GR_I32, GR_MAX, &ops[begun]);
        begun += status == GR_OK;
        if (status == GR_OK && begun == GR_EXEC_OPS_MAX - 1) { /* all or nothing */
            gr_call two[2] = {{.dtype = GR_I32, .out = &words[MORE], .count = 1},
                              {.dtype = GR_I32, .out = &words[MORE + 1], .count = 1}};
            gr_op *none = NULL;
            EXPECT(gr_start(comm, two, 2, &none) == GR_E_NO_MEMORY && !none);
        }
    }
    EXPECT(status == GR_E_NO_MEMORY && begun == GR_EXEC_OPS_MAX && SAYS("too many operations"));
    for (int i = 0; i < begun; i++) {
        EXPECT(gr_wait(ops[i]) == GR_OK && words[i] == i);
    }
    if (check_sound(comm) != 0) {
        return 1;
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_too_many(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2, .link = i % 2 ? "tcp" : "shm", .progress = 2};
        assert_int_equal(ranks_run(&job, run_too_many, 0), 0);
    }
}

/* ---- A reduction that calls Gradus ----------------------------------------------------------- */
typedef struct meddler {
    gr_comm *comm;
    int calls, refused;
} meddler;

static void meddle(void *dst, const void *a, const void *b, size_t count, void *arg)
{
    meddler *m = arg;
    m->calls++;
    m->refused += gr_barrier(m->comm) == GR_E_INVALID &&
                  strstr(gr_comm_last_error(m->comm)->text, "reduction function") != NULL;
    const int32_t *left = a;
    const int32_t *right = b;
    for (size_t i = 0; i < count; i++) {
        ((int32_t *)dst)[i] = 10 * left[i] + right[i];
    }
}

static int run_meddler(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    meddler m = {.comm = comm};
    int32_t word = gr_comm_rank(comm) + 1;
    gr_call call = {.dtype = GR_I32,
                    .op = GR_USER,
                    .out = &word,
                    .count = 1,
                    .reduce = meddle,
                    .reduce_arg = &m};
    EXPECT(gr_run(comm, &call, 1) == GR_OK);
    EXPECT(word == 12 && m.refused == m.calls);
    if (check_sound(comm) != 0) {
        return 1;
    }
    gr_comm_destroy(comm);
    return 0;
}

static void test_meddler(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2, .link = "shm", .progress = i ? 1 : 2};
        assert_int_equal(ranks_run(&job, run_meddler, 0), 0);
    }
}

/* ---- NULL ------------------------------------------------------------------------------------ */
static void null_communicator_is_refused_everywhere(void **state)
{
    (void)state;
    gr_op *op = NULL;
    gr_comm *none = NULL;
    gr_diag diag;
    gr_skew skew;
    gr_rows rows = {.count = 0};
    const gr_call call = {.coll = GR_COLL_BARRIER};
    void *mem = NULL;
    int fd = -1, index = 0, first = -1;
    float word = 0;
    assert_int_equal(gr_comm_rank(NULL), -1);
    assert_int_equal(gr_comm_local_rank(NULL), -1);
    assert_int_equal(gr_comm_size(NULL) + gr_comm_local_size(NULL), 0);
    assert_int_equal(gr_comm_diag(NULL)->status, GR_E_INVALID);
    assert_non_null(strstr(gr_comm_last_error(NULL)->text, "NULL"));
    const gr_status refused[] = {
        gr_comm_renew(NULL, &diag),
        gr_comm_renew(&none, &diag),
        gr_comm_renew(&none, NULL),
        gr_comm_abort(NULL, "reason"),
        gr_comm_event_fd(NULL, &fd),
        gr_comm_split(NULL, 0, 0, &none, &diag),
        gr_comm_subgroup(NULL, &fd, 1, &none, NULL),
        gr_comm_skew(NULL, 0, &skew),
        gr_comm_poll(NULL),
        gr_comm_drain(NULL),
        gr_alloc(NULL, 8, &mem),
        gr_register(NULL, &word, 4),
        gr_unregister(NULL, &word),
        gr_op_create(NULL, &call, &op),
        gr_op_start(NULL),
        gr_run(NULL, &call, 1),
        gr_start(NULL, &call, 1, &op),
        gr_allreduce(NULL, &word, 1, GR_F32, GR_SUM),
        gr_send(NULL, &word, 1, GR_F32, 0),
        gr_recv_start(NULL, &word, 1, GR_F32, 0, &op),
        gr_barrier(NULL),
        gr_allreduce_rows(NULL, &rows, GR_SUM, &rows),
        gr_test(NULL),
        gr_wait(NULL),
        gr_wait_for(NULL, 1),
        gr_wait_any(NULL, 1, &index),
        gr_wait_any(&op, 1, &index),
        gr_wait_any(&op, 1, NULL),
        gr_comm_create(NULL, NULL, &diag),
        gr_comm_create(NULL, NULL, NULL),
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (refused[i] != GR_E_INVALID) {
            fail_msg("call %zu: %s", i, gr_status_name(refused[i]));
        }
    }
    gr_comm_destroy(NULL);
    gr_op_destroy(NULL);
    gr_free(NULL, &word);
    gr_rows_release(NULL);
    gr_comm_event_clear(NULL);
    gr_comm_config_init(NULL);
    assert_int_equal(gr_comm_change_wanted(NULL), 0);
    gr_shard_range(4, 2, 1, &first, NULL);
    assert_int_equal(first, 2);
    assert_int_equal(gr_shard_partials(-1, 2, 1) + gr_shard_partials(4, 0, 0), 0);
}

/* Of a communicator that there is. */
static int run_null(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_diag diag = {.status = GR_OK};
    gr_op *op = NULL;
    const gr_call call = {.coll = GR_COLL_BARRIER};
    float word = 1;
    EXPECT(gr_comm_event_fd(comm, NULL) == GR_E_INVALID && SAYS("fd_out is NULL"));
    EXPECT(gr_comm_skew(comm, 0, NULL) == GR_E_INVALID && SAYS("skew_out is NULL"));
    EXPECT(gr_op_create(comm, NULL, &op) == GR_E_INVALID && SAYS("call is NULL"));
    EXPECT(gr_op_create(comm, &call, NULL) == GR_E_INVALID && SAYS("op_out is NULL"));
    EXPECT(gr_allreduce_rows(comm, NULL, GR_SUM, NULL) == GR_E_INVALID && SAYS("in is NULL"));
    EXPECT(gr_comm_split(comm, 0, 0, NULL, &diag) == GR_E_INVALID);
    EXPECT(strstr(diag.text, "comm_out is NULL"));
    EXPECT(gr_recv(comm, &word, 1, GR_F32, -2) == GR_E_INVALID && SAYS("is -2"));
    EXPECT(gr_send(comm, &word, 1, GR_F32, GR_ANY_SOURCE) == GR_E_INVALID && SAYS("is -1"));
    EXPECT(gr_send(comm, NULL, 1, GR_F32, 0) == GR_E_INVALID && SAYS("NULL"));
    EXPECT(gr_send(comm, &word, SIZE_MAX, GR_F32, 0) == GR_E_INVALID && SAYS("too large"));
    EXPECT(gr_recv(comm, &word, 1, (gr_dtype)-1, 0) == GR_E_INVALID && SAYS("gr_dtype"));
    EXPECT(gr_alltoall(comm, &word, NULL, SIZE_MAX / 2, GR_F32) == GR_E_INVALID);
    EXPECT(gr_register(comm, &word, SIZE_MAX) == GR_E_INVALID && SAYS("size"));
    EXPECT(gr_comm_diag(comm)->status == GR_OK);
    if (gr_comm_size(comm) > 1) {
        EXPECT(check_sound(comm) == 0);
    }
    gr_comm *same = comm;
    EXPECT(gr_comm_abort(comm, NULL) == GR_OK && gr_comm_abort(comm, "again") == GR_OK);
    EXPECT(gr_comm_diag(comm)->status == GR_E_ABORTED);
    pid_t child = fork();
    if (child == 0) { /* of a group of one as well; the sentence comes in the diag, too */
        bool fine = gr_send(comm, &word, 1, GR_F32, 0) == GR_E_INVALID && SAYS("forked") &&
                    gr_comm_renew(&same, &diag) == GR_E_INVALID && strstr(diag.text, "forked");
        gr_comm_destroy(comm);
        _exit(fine ? 0 : 1);
    }
    int how = 1;
    EXPECT(waitpid(child, &how, 0) == child && how == 0);
    gr_comm_destroy(comm);
    return 0;
}

static void null_argument_of_a_communicator_has_its_sentence(void **state)
{
    (void)state;
    ranks_job job = {.size = 1, .link = "shm", .progress = 2};
    assert_int_equal(ranks_run(&job, run_null, 0), 0);
}

/* ---- Configs --------------------------------------------------------------------------------- */
static int count_files(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) {
        count++;
    }
    closedir(dir);
    return count;
}

static int gather_nothing(void *arg, const void *mine, size_t size_bytes, void *all_out)
{
    (void)arg;
    (void)mine;
    (void)size_bytes;
    (void)all_out;
    return -1;
}

/* What is extreme is refused with a sentence, or works; either way nothing is left behind. */
static void config_with_extreme_values_is_refused_or_works(void **state)
{
    (void)state;
    enum { LONG = 100000 };
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'x', LONG);
    text[LONG] = '\0';
    const char *const wrong_value[] = {"GRADUS_SPIN=soon", NULL};
    const char *const unknown[] = {"GRADUS_NOTHING_LIKE_IT=1", NULL};
    const char *const long_setting[] = {text, NULL};
    int files = 0;
    for (int i = 0; i < 15; i++) {
        gr_comm_config config;
        gr_comm *comm = NULL;
        gr_diag diag = {.status = GR_OK};
        gr_comm_config_init(&config);
        config.size = i < 10 ? 2 : 1;
        config.bootstrap = gather_nothing;
        config.join_timeout_us = i % 2 ? INT64_MAX : INT64_MIN;
        config.op_timeout_us = i % 2 ? INT64_MIN : INT64_MAX;
        config.struct_size = i == 0   ? SIZE_MAX
                             : i == 1 ? 17 * sizeof config
                             : i == 2 ? 1
                                      : config.struct_size;
        config.size = i == 3 ? 4097 : i == 4 ? INT_MAX : i == 5 ? INT_MIN : config.size;
        config.rank = i == 6 ? INT_MIN : i == 7 ? INT_MAX : 0;
        config.link = i == 8 || i == 10 ? text : NULL;
        config.settings = i == 11 ? wrong_value : i == 12 ? long_setting : i == 13 ? unknown : NULL;
        gr_status status = gr_comm_create(&config, &comm, &diag);
        if (i == 14) { /* alone, with these timeouts: it works */
            double word = 2;
            assert_int_equal(status, GR_OK);
            assert_int_equal(gr_send(comm, &word, 1, GR_F64, 0), GR_OK);
            assert_int_equal(gr_recv(comm, &word, 1, GR_F64, 0), GR_OK);
            gr_comm_destroy(comm);
        } else if (status == GR_OK || comm || diag.status != status || strlen(diag.text) < 10) {
            fail_msg("config %d: %s, %s", i, gr_status_name(status), diag.text);
        }
        files = i == 9 ? count_files() : files; /* a callback has failed once */
    }
    assert_int_equal(count_files(), files);
    free(text);
}

/* What the program says counts, whatever the environment says of stalls. */
static void timeout_of_a_config_is_kept(void **state)
{
    (void)state;
    static const char *const stall[] = {"GRADUS_STALL_FAIL=7s", NULL};
    static const char *const other[] = {"GRADUS_SPIN=0", NULL};
    static const struct {
        int64_t op_timeout_us;
        const char *const *settings;
        int64_t want_us, want_stall_us; /* 0: never, and as the other one */
    } cases[] = {
        {0, NULL, 9000000, 5000000},        {3000000, NULL, 3000000, 0},
        {3000000, other, 3000000, 0},       {-1, NULL, 0, 0},
        {3000000, stall, 3000000, 7000000}, {0, stall, 9000000, 7000000},
    };
    setenv("GRADUS_OP_TIMEOUT", "9s", 1);
    setenv("GRADUS_STALL_FAIL", "5s", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_comm_config config;
        gr_comm *comm = NULL;
        gr_comm_config_init(&config);
        config.size = 1;
        config.op_timeout_us = cases[i].op_timeout_us;
        config.settings = cases[i].settings;
        assert_int_equal(gr_comm_create(&config, &comm, NULL), GR_OK);
        assert_int_equal(comm->context->config.op_timeout_us, cases[i].want_us);
        assert_int_equal(comm->context->config.stall_fail_us, cases[i].want_stall_us);
        gr_comm_destroy(comm);
    }
    unsetenv("GRADUS_OP_TIMEOUT");
    unsetenv("GRADUS_STALL_FAIL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_one_wrong),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_meddler),
        cmocka_unit_test(null_communicator_is_refused_everywhere),
        cmocka_unit_test(null_argument_of_a_communicator_has_its_sentence),
        cmocka_unit_test(timeout_of_a_config_is_kept),
        cmocka_unit_test(config_with_extreme_values_is_refused_or_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
