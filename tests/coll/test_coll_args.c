/* SPDX-License-Identifier: Apache-2.0 */
/* Calls checked and put into the terms of plans. */
#include "coll/engine/coll_args.h"
#include "coll/plan/counts.h"
#include "support_values.h"

#include <gradus/shards.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANK = 1, SIZE = 4, ROOM = 64 };

static float room[ROOM];

static void reduce_none(void *dst, const void *a, const void *b, size_t count, void *arg)
{
    (void)dst;
    (void)a;
    (void)b;
    (void)count;
    (void)arg;
}

static void refused(const gr_call *call, const char *in_sentence)
{
    gr_coll_args task;
    gr_diag diag = {.text = ""};
    gr_status status = gr_coll_args_init(&task, call, RANK, SIZE, &diag);
    if (status != GR_E_INVALID || !strstr(diag.text, in_sentence)) {
        print_error("%d: %s (wanted: %s)\n", (int)status, diag.text, in_sentence);
    }
    assert_int_equal(status, GR_E_INVALID);
    assert_non_null(strstr(diag.text, in_sentence));
    assert_non_null(strstr(diag.text, "rank 1"));
}

static gr_coll_args taken(const gr_call *call, int rank)
{
    gr_coll_args task;
    gr_diag diag = {.text = ""};
    gr_status status = gr_coll_args_init(&task, call, rank, SIZE, &diag);
    if (status != GR_OK) {
        print_error("%s\n", diag.text);
    }
    assert_int_equal(status, GR_OK);
    return task;
}

static void test_wrong_kinds(void **state)
{
    (void)state;
    refused(&(gr_call){.coll = (gr_coll)11, .out = room, .count = 1}, "no gr_coll");
    refused(&(gr_call){.coll = (gr_coll)-1, .out = room, .count = 1}, "no gr_coll");
    refused(&(gr_call){.dtype = (gr_dtype)GR_DTYPE_COUNT, .out = room, .count = 1}, "no gr_dtype");
    refused(&(gr_call){.op = (gr_redop)GR_REDOP_COUNT, .out = room, .count = 1}, "no gr_redop");
    refused(&(gr_call){.coll = GR_COLL_BROADCAST, .out = room, .count = 1, .root = 4},
            "ranks are 0 .. 3");
    refused(&(gr_call){.coll = GR_COLL_GATHER, .in = room, .count = 1, .root = -1},
            "the root is -1");
    refused(&(gr_call){.coll = GR_COLL_SEND, .in = room, .count = 1, .root = 9}, "the peer");
    refused(&(gr_call){.coll = GR_COLL_SEND, .in = room, .count = 1, .root = GR_ANY_SOURCE},
            "the peer");
    refused(&(gr_call){.coll = GR_COLL_SEND, .in = room, .count = 1, .tag = GR_ANY_TAG},
            "GR_ANY_TAG");
    gr_message_source source;
    refused(&(gr_call){.coll = GR_COLL_SEND, .in = room, .count = 1, .source_out = &source},
            "source_out");
    (void)taken(&(gr_call){.coll = GR_COLL_SEND, .in = room, .count = 1, .root = RANK}, RANK);
    (void)taken(&(gr_call){.coll = GR_COLL_RECV,
                           .out = room,
                           .count = 1,
                           .root = GR_ANY_SOURCE,
                           .tag = GR_ANY_TAG,
                           .source_out = &source},
                RANK);
    refused(&(gr_call){.coll = GR_COLL_BARRIER, .tag = 1}, "tag");
    (void)taken(&(gr_call){.coll = GR_COLL_BARRIER, .op = (gr_redop)GR_REDOP_COUNT}, RANK);
    refused(&(gr_call){.op = GR_USER, .out = room, .count = 1}, "needs a function");
    refused(&(gr_call){.op = GR_SUM, .out = room, .count = 1, .reduce = reduce_none},
            "not GR_USER");
    refused(&(gr_call){.coll = GR_COLL_ALLGATHER,
                       .op = GR_USER,
                       .out = room,
                       .count = 1,
                       .reduce = reduce_none},
            "not GR_USER");
    refused(&(gr_call){.out = room, .count = 1, .prescale = NAN}, "prescale is not finite");
    refused(&(gr_call){.out = room, .count = 1, .postscale = INFINITY}, "postscale");
    refused(&(gr_call){.coll = GR_COLL_BROADCAST, .out = room, .count = 1, .postscale = 2},
            "nothing is reduced");
    const size_t out[SIZE] = {1, 1, 1, 1}, in[SIZE] = {2, 2, 2, 2};
    refused(&(gr_call){.coll = GR_COLL_ALLTOALL,
                       .in = room,
                       .out = room + ROOM / 2,
                       .counts = out,
                       .recv_counts = in},
            "own block has 1 elements on its way out and 2");
    /* The call says who it is. */
    refused(&(gr_call){.op = GR_USER, .out = room, .count = 1, .name = "grads", .site = "a.c:7"},
            "allreduce \"grads\" at a.c:7 on rank 1");
}

static void every_type_is_reduced_as_the_header_says(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < GR_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < GR_REDOP_COUNT; op++) {
            gr_call call = {.coll = GR_COLL_REDUCE_SCATTER,
                            .dtype = (gr_dtype)dtype,
                            .op = (gr_redop)op,
                            .out = room,
                            .count = 1,
                            .reduce = op == GR_USER ? reduce_none : NULL};
            char words[64];
            snprintf(words, sizeof words, "%s cannot be reduced by %s, only by",
                     gr_dtype_name(call.dtype), gr_redop_name(call.op));
            if (vals_reducible(call.dtype, call.op)) {
                (void)taken(&call, RANK);
            } else {
                refused(&call, words);
            }
            call.coll = GR_COLL_ALLGATHER; /* which takes all types, and no op */
            call.reduce = NULL;
            (void)taken(&call, RANK);
        }
    }
    gr_call call = {.dtype = GR_COMPLEX64, .op = GR_MAX, .out = room, .count = 1};
    refused(&call, "complex64 cannot be reduced by max, only by sum, average or product");
    call = (gr_call){.dtype = GR_BOOL, .op = GR_MAX, .out = room, .count = 1};
    call.prescale = 2;
    refused(&call, "prescale is given, but bool cannot be multiplied");
    call.prescale = 1;
    call.postscale = 0.5;
    refused(&call, "postscale is given, but bool cannot be multiplied");
    call.postscale = 1;
    (void)taken(&call, RANK);
}

static void test_wrong_counts(void **state)
{
    (void)state;
    const size_t counts[SIZE] = {1, 2, 3, 4};
    const size_t others[SIZE] = {1, 2, 4, 4};
    const size_t huge[SIZE] = {1, SIZE_MAX, 1, 1};
    refused(&(gr_call){.out = room, .count = SIZE_MAX / 2}, "too large");
    refused(&(gr_call){.coll = GR_COLL_ALLGATHER, .out = room, .count = UINT64_C(1) << 37},
            "too large");
    refused(&(gr_call){.coll = GR_COLL_ALLGATHER, .out = room, .counts = huge}, "at rank 1");
    refused(&(gr_call){.out = room, .counts = counts}, "make no sense");
    refused(&(gr_call){.coll = GR_COLL_ALLTOALL, .out = room, .counts = counts}, "recv_counts too");
    refused(
        &(gr_call){.coll = GR_COLL_ALLGATHER, .out = room, .counts = counts, .recv_counts = counts},
        "alltoall with counts only");
    refused(
        &(gr_call){.coll = GR_COLL_ALLTOALL, .out = room, .counts = counts, .recv_counts = others},
        "rank 2 (3 elements) must be as much as what comes from it (4)");
    void *partials[1] = {NULL};
    refused(&(gr_call){.count = 1, .shards = -1, .partials = partials}, "must be 1 .. 16383");
    refused(&(gr_call){.count = 1, .shards = 16384, .partials = partials}, "must be 1 .. 16383");
    refused(&(gr_call){.count = 1, .shards = 4, .partials = partials}, "partials[0] is NULL");
    refused(&(gr_call){.count = 1, .shards = 4}, "`partials` is NULL");
    void *twice[2] = {room + 8, room + 7};
    assert_int_equal(gr_shard_partials(13, SIZE, RANK), 2);
    refused(&(gr_call){.count = 2, .shards = 13, .partials = twice},
            "partials[0] and partials[1] overlap");
    refused(&(gr_call){.count = 1, .shards = 4, .partials = partials, .out = room}, "must be NULL");
    refused(&(gr_call){.coll = GR_COLL_REDUCE, .out = room, .count = 1, .shards = 4},
            "only allreduce");
}

static void test_wrong_buffers(void **state)
{
    (void)state;
    refused(&(gr_call){.count = 1}, "out is NULL");
    refused(&(gr_call){.in = room, .count = 1}, "out is NULL");
    refused(&(gr_call){.coll = GR_COLL_SEND, .count = 1}, "in is NULL");
    refused(&(gr_call){.coll = GR_COLL_RECV, .count = 1}, "out is NULL");
    refused(&(gr_call){.coll = GR_COLL_GATHER, .in = room, .count = 1, .root = RANK},
            "out is NULL");
    refused(&(gr_call){.coll = GR_COLL_SCATTER, .in = room, .count = 1, .root = RANK},
            "out is NULL");
    refused(&(gr_call){.in = room, .out = room + 1, .count = 2}, "overlap");
    refused(&(gr_call){.in = room + 1, .out = room, .count = 2}, "overlap");
    /* A byte is enough. */
    refused(&(gr_call){.in = room, .out = (char *)room + 7, .count = 2}, "overlap");
    refused(&(gr_call){.coll = GR_COLL_ALLGATHER, .in = room, .out = room, .count = 2}, "overlap");
    refused(&(gr_call){.coll = GR_COLL_REDUCE_SCATTER, .in = room, .out = room, .count = 2},
            "overlap");
}

static void test_places(void **state)
{
    (void)state;
    const size_t counts[SIZE] = {5, 2, 3, 2};
    gr_coll_args task = taken(&(gr_call){.out = room, .count = 3}, RANK);
    assert_true(!task.out_of_place && task.user == room && task.user_only == -1);
    assert_int_equal(task.memory.writes.end - task.memory.writes.first, 12);
    task = taken(&(gr_call){.in = room, .out = room, .count = 3}, RANK);
    assert_true(!task.out_of_place && task.user == room);
    task = taken(&(gr_call){.in = room, .out = room + 3, .count = 3}, RANK);
    assert_true(task.out_of_place && task.input == room && task.user == room + 3);
    /* Own block in its place is in place. */
    gr_call gather = {
        .coll = GR_COLL_ALLGATHER, .in = room + 12 - 7, .out = room, .counts = counts};
    task = taken(&gather, RANK);
    assert_true(!task.out_of_place && task.uneven && task.user_elements == 12);
    gr_call scatter = {.coll = GR_COLL_REDUCE_SCATTER, .in = room, .out = room + 5, .count = 5};
    task = taken(&scatter, RANK);
    assert_true(!task.out_of_place && task.user == room && task.user_only == -1);
    assert_int_equal(task.user_elements, 20);
    scatter.out = room + 30;
    task = taken(&scatter, RANK);
    assert_true(task.out_of_place && task.user_only == RANK && task.user_elements == 5);
    assert_int_equal(task.input_elements, 20);
    /* An own block of nothing stands nowhere, also where `out` follows on `in`. */
    const size_t none_last[SIZE] = {5, 3, 4, 0};
    gr_call last = {
        .coll = GR_COLL_REDUCE_SCATTER, .in = room, .out = room + 12, .counts = none_last};
    task = taken(&last, SIZE - 1);
    assert_true(task.out_of_place && task.input == room && task.user_elements == 0);
    last.coll = GR_COLL_SCATTER;
    last.root = SIZE - 1;
    task = taken(&last, SIZE - 1);
    assert_true(task.out_of_place && task.input == room && task.user_elements == 0);
    gr_call nothing = {
        .coll = GR_COLL_GATHER, .in = room + 12, .out = room, .counts = none_last, .root = 0};
    task = taken(&nothing, SIZE - 1);
    assert_true(task.out_of_place && !task.user && task.input_elements == 0);
    /* Who is not the root has its own data alone. */
    gr_call to_root = {.coll = GR_COLL_GATHER, .in = room, .count = 4, .root = 0};
    task = taken(&to_root, RANK);
    assert_true(task.out_of_place && !task.user && task.input_only == RANK);
    assert_int_equal(task.input_elements, 4);
    to_root.out = room + 8;
    to_root.in = NULL;
    task = taken(&to_root, 0);
    assert_true(!task.out_of_place && task.user == room + 8 && task.user_elements == 16);
    gr_call from_root = {.coll = GR_COLL_SCATTER, .out = room, .count = 4, .root = 0};
    task = taken(&from_root, RANK);
    assert_true(!task.out_of_place && task.user_only == RANK && task.user_elements == 4);
    task = taken(&from_root, 0);
    assert_true(!task.out_of_place && task.user_only == -1 && task.user_elements == 16);
    from_root.in = room + 16;
    task = taken(&from_root, 0);
    assert_true(task.out_of_place && task.user_only == 0 && task.user_elements == 4);
    gr_call reduce = {.coll = GR_COLL_REDUCE, .in = room, .count = 4, .root = 0};
    task = taken(&reduce, RANK);
    assert_true(task.out_of_place && !task.user && task.user_elements == 0);
    /* A broadcast reads at its root and writes elsewhere. */
    gr_call broadcast = {.coll = GR_COLL_BROADCAST, .out = room, .count = 4, .root = 0};
    task = taken(&broadcast, 0);
    assert_true(task.memory.reads.first == (uintptr_t)room &&
                task.memory.writes.first == task.memory.writes.end);
    task = taken(&broadcast, RANK);
    assert_true(task.memory.writes.first == (uintptr_t)room &&
                task.memory.reads.first == task.memory.reads.end);
}

static void test_nothing_needs_no_memory(void **state)
{
    (void)state;
    const size_t zeros[SIZE] = {0};
    for (int coll = 0; coll < GR_COLL_COUNT; coll++) {
        gr_call call = {.coll = (gr_coll)coll};
        (void)taken(&call, RANK);
        if (coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER || coll == GR_COLL_SCATTER ||
            coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLTOALL) {
            call.counts = zeros;
            call.recv_counts = coll == GR_COLL_ALLTOALL ? zeros : NULL;
            assert_true(taken(&call, RANK).uneven);
        }
    }
    /* A rank that gives nothing has no buffer for it, which is not the same as in place. */
    const size_t none_here[SIZE] = {5, 0, 3, 4};
    gr_call to_root = {.coll = GR_COLL_GATHER, .counts = none_here, .root = 0};
    gr_coll_args task = taken(&to_root, RANK);
    assert_true(task.out_of_place && !task.user && task.input_elements == 0);
    gr_call takes = {
        .coll = GR_COLL_ALLTOALL, .counts = zeros, .recv_counts = none_here, .out = room};
    task = taken(&takes, RANK);
    assert_true(task.out_of_place && task.user == room && task.user_elements == 12);
    void *none[GR_SHARD_PARTIALS_MAX] = {NULL};
    (void)taken(&(gr_call){.shards = 3, .partials = none}, RANK);
}

static void test_factors(void **state)
{
    (void)state;
    gr_coll_args task = taken(&(gr_call){.out = room, .count = 1}, RANK);
    assert_true(task.prescale == 1 && task.postscale == 1);
    task = taken(&(gr_call){.out = room, .count = 1, .prescale = -2, .postscale = 0.5}, RANK);
    assert_true(task.prescale == -2 && task.postscale == 0.5);
    task =
        taken(&(gr_call){.coll = GR_COLL_BROADCAST, .out = room, .count = 1, .prescale = 1}, RANK);
    assert_true(task.prescale == 1);
    const gr_dtype in_f32[] = {GR_F32, GR_F16, GR_BF16, GR_COMPLEX64};
    for (int i = 0; i < 4; i++) {
        refused(&(gr_call){.dtype = in_f32[i], .out = room, .count = 1, .postscale = 1e39},
                "postscale is 1e+39, but");
        refused(&(gr_call){.dtype = in_f32[i], .out = room, .count = 1, .prescale = -1e50},
                "is multiplied in f32, where that is -inf");
        refused(&(gr_call){.dtype = in_f32[i], .out = room, .count = 1, .prescale = 1e-60},
                "is multiplied in f32, where that is 0");
        (void)taken(&(gr_call){.dtype = in_f32[i], .out = room, .count = 1, .prescale = 1e-40},
                    RANK);
    }
    task = taken(&(gr_call){.dtype = GR_F64, .out = room, .count = 1, .prescale = 1e50}, RANK);
    assert_true(task.prescale == 1e50);
    (void)taken(&(gr_call){.dtype = GR_I64, .out = room, .count = 1, .postscale = 1e-60}, RANK);
}

static gr_status apart(const gr_call *calls, int count, gr_diag *diag)
{
    gr_coll_args tasks[4];
    for (int i = 0; i < count; i++) {
        tasks[i] = taken(&calls[i], RANK);
    }
    return gr_coll_args_apart(tasks, count, RANK, SIZE, diag);
}

static void test_groups(void **state)
{
    (void)state;
    gr_diag diag;
    gr_call fine[3] = {{.out = room, .count = 4},
                       {.in = room + 4, .out = room + 8, .count = 4},
                       {.coll = GR_COLL_SEND, .in = room + 4, .count = 4}};
    assert_int_equal(apart(fine, 3, &diag), GR_OK); /* two may read the same */
    gr_call clash[3] = {{.coll = GR_COLL_SEND, .in = room + 3, .count = 4},
                        {.coll = GR_COLL_BARRIER},
                        {.out = room, .count = 4}};
    assert_int_equal(apart(clash, 3, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "call 2 of the group writes memory that call 0 uses"));
    void *partials[3] = {room, room + 4, room + 8};
    gr_call shards[2] = {{.shards = 7, .partials = partials, .count = 4},
                         {.out = room + 20, .count = 4}};
    assert_int_equal(gr_shard_partials(7, SIZE, RANK), 1);
    assert_int_equal(apart(shards, 2, &diag), GR_OK);
    shards[1].out = room + 3;
    assert_int_equal(apart(shards, 2, &diag), GR_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_kinds),
        cmocka_unit_test(every_type_is_reduced_as_the_header_says),
        cmocka_unit_test(test_wrong_counts),
        cmocka_unit_test(test_wrong_buffers),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_nothing_needs_no_memory),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
