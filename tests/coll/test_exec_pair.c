/* SPDX-License-Identifier: Apache-2.0 */
/* Two executors over the double of the links: ranks that call different things, ranks that stand
 * still, operations that something else moves on, memory that runs out. */
#include "support_double_names.h"

/* The executor's memory may fail. */
static long allocations_left = -1; /* -1: no end */

static void *count_allocation(void *memory)
{
    if (allocations_left == 0) {
        free(memory);
        return NULL;
    }
    allocations_left -= allocations_left > 0;
    return memory;
}
#define malloc(size) count_allocation((malloc)(size))
#define calloc(count, size) count_allocation((calloc)(count, size))
#define aligned_alloc(align, size) count_allocation((aligned_alloc)(align, size))

#include "../../src/coll/diagnose/diagnosis.c"
#include "../../src/coll/diagnose/mismatch.c"
#include "../../src/coll/diagnose/stall.c"
#include "../../src/coll/engine/exec.c"
#include "../../src/coll/engine/exec_fail.c"
#include "../../src/coll/engine/exec_group_end.c"
#include "../../src/coll/engine/exec_message.c"
#include "../../src/coll/engine/exec_message_move.c"
#include "../../src/coll/engine/exec_move.c"
#include "../../src/coll/engine/exec_start.c"
#include "../../src/coll/engine/exec_view.c"

#undef malloc
#undef calloc
#undef aligned_alloc

#include "coll/diagnose/exec_view.h"
#include "coll/engine/schedule_store.h"
#include "support_board.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static bool has_blocks(gr_coll coll)
{
    return coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
}

static void note_done(gr_status status, void *arg)
{
    *(gr_status *)arg = status;
}

/* ---- Ranks that call different things -------------------------------------------------------- */
typedef struct pair {
    dbl_net *net;
    board board;
    gr_exec *execs[2];
    gr_schedules schedules[2][2]; /* by rank, by group */
    gr_exec_group groups[2][2];
    int64_t user[2][2][64];
    char log[2048];
} pair;

static const int both_ranks[2] = {0, 1};

static void keep_log(void *arg, gr_log_level level, const char *component, const char *line)
{
    (void)level;
    (void)component;
    char *text = arg;
    snprintf(text + strlen(text), 2048 - strlen(text), "%s\n", line);
}

static const char *host_name(const void *host_arg, int rank)
{
    (void)host_arg;
    return rank == 1 ? "otter" : NULL;
}

static void open_pair(pair *p, gr_log *log)
{
    memset(p, 0, sizeof *p);
    dbl_options options = {.seed = 5, .world_size = 2, .room = 20, .views = true};
    p->net = dbl_create(&options);
    board_open(&p->board, 2, dbl_clock(p->net));
    *log = (gr_log){.level = GR_LOG_WARN, .sink = keep_log, .sink_arg = p->log};
    for (int rank = 0; rank < 2; rank++) {
        gr_exec_config config = {.mesh = dbl_mesh(p->net, rank),
                                 .rank = rank,
                                 .world_size = 2,
                                 .op_timeout_us = 60000000,
                                 .stall_warn_us = 10000000,
                                 .segment_bytes = 256,
                                 .clock = dbl_clock(p->net),
                                 .log = log,
                                 .host_name = host_name,
                                 .channel = board_channel(&p->board, rank)};
        assert_int_equal(gr_exec_create(&config, &p->execs[rank], NULL), GR_OK);
        for (int g = 0; g < 2; g++) {
            p->groups[rank][g] = (gr_exec_group){
                .id = (uint16_t)(3 * g), .rank = rank, .size = 2, .world = both_ranks};
        }
    }
}

static void close_pair(pair *p)
{
    dbl_destroy(p->net);
    board_close(&p->board);
    for (int rank = 0; rank < 2; rank++) {
        gr_exec_destroy(p->execs[rank]);
        gr_schedules_fini(&p->schedules[rank][0]);
        gr_schedules_fini(&p->schedules[rank][1]);
    }
}

/* What one rank calls; `counts`: by rank. */
typedef struct plain {
    gr_op_desc desc;
    int group;
    bool uneven;
    size_t counts[2];
} plain;

static gr_status start_plain(pair *p, int rank, int slot, const plain *c, gr_op **op_out,
                             gr_diag *diag)
{
    gr_coll coll = c->desc.coll;
    const char *name = coll == GR_COLL_BARRIER    ? "dissemination"
                       : coll == GR_COLL_ALLTOALL ? "pairwise"
                                                  : "direct";
    gr_plan_shape shape = {.coll = coll,
                           .rank = rank,
                           .world_size = 2,
                           .shards = 2,
                           .root = c->desc.root,
                           .uneven = c->uneven};
    void *user = p->user[rank][slot];
    gr_exec_request request = {.group = &p->groups[rank][c->group],
                               .user = &user,
                               .desc = c->desc,
                               .total_count = c->desc.count * (has_blocks(coll) ? 2 : 1),
                               .fixed_blocks = has_blocks(coll),
                               .user_counts = c->uneven ? c->counts : NULL,
                               .user_only = -1,
                               .input_only = -1};
    if (coll >= GR_COLL_SEND) { /* messages have no plan */
        return gr_exec_start(p->execs[rank], &request, 1, op_out, diag);
    }
    const gr_algorithm *algorithm = gr_algorithm_find(coll, name);
    assert_non_null(algorithm);
    request.desc.algorithm = (int)(algorithm - gr_algorithms);
    gr_status status = gr_schedules_get(&p->schedules[rank][c->group], algorithm, &shape,
                                        (gr_scaling){.result = false}, &request.schedule, diag);
    return status == GR_OK ? gr_exec_start(p->execs[rank], &request, 1, op_out, diag) : status;
}

static plain call_of(gr_coll coll, size_t count, const char *site)
{
    return (plain){
        .desc = {.coll = coll, .dtype = GR_I64, .shards = 2, .count = count, .site = site}};
}

static void move_pair(pair *p, int64_t for_us)
{
    gr_clock clock = dbl_clock(p->net);
    int64_t end_us = gr_clock_now_us(&clock) + for_us;
    while (gr_clock_now_us(&clock) < end_us &&
           gr_exec_active(p->execs[0]) + gr_exec_active(p->execs[1]) > 0) {
        for (int rank = 0; rank < 2; rank++) {
            if (!gr_exec_progress(p->execs[rank])) {
                (void)gr_exec_poll_timers(p->execs[rank], true);
            }
        }
        dbl_advance(p->net, 500);
    }
}

static void expect_mismatch(const plain *first, int first_count, const plain *second,
                            int second_count, const char *mine, const char *theirs)
{
    pair p;
    gr_log log;
    open_pair(&p, &log);
    gr_op *op;
    gr_diag diag;
    for (int i = 0; i < first_count; i++) {
        assert_int_equal(start_plain(&p, 0, i, &first[i], &op, &diag), GR_OK);
    }
    for (int i = 0; i < second_count; i++) {
        assert_int_equal(start_plain(&p, 1, i, &second[i], &op, &diag), GR_OK);
    }
    move_pair(&p, 1000000);
    for (int rank = 0; rank < 2; rank++) {
        const gr_diag *cause = gr_exec_diag(p.execs[rank]);
        if (cause->status != GR_E_MISMATCH || !strstr(cause->text, mine) ||
            !strstr(cause->text, theirs)) {
            print_error("rank %d, %s and %s: %d %s\n", rank, mine, theirs, cause->status,
                        cause->text);
        }
        assert_int_equal(cause->status, GR_E_MISMATCH);
        assert_non_null(strstr(cause->text, mine));
        assert_non_null(strstr(cause->text, theirs));
        assert_int_equal(gr_exec_active(p.execs[rank]), 0);
    }
    assert_null(dbl_complaint(p.net));
    close_pair(&p);
}

static void test_every_mismatch(void **state)
{
    (void)state;
    const plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1");
    plain other = call_of(GR_COLL_ALLREDUCE, 20, "b.c:2");
    const char *a = "at a.c:1", *b = "at b.c:2";
    other.desc.dtype = GR_F64;
    expect_mismatch(&sum, 1, &other, 1, a, b);
    other = call_of(GR_COLL_ALLREDUCE, 21, "b.c:2");
    expect_mismatch(&sum, 1, &other, 1, a, b);
    other = call_of(GR_COLL_ALLREDUCE, 20, "b.c:2");
    other.desc.op = GR_MAX;
    expect_mismatch(&sum, 1, &other, 1, a, b);
    other = call_of(GR_COLL_ALLREDUCE, 20, "b.c:2");
    other.desc.name = "weights";
    expect_mismatch(&sum, 1, &other, 1, a, "\"weights\" at b.c:2");
    other = call_of(GR_COLL_ALLREDUCE, 20, "b.c:2");
    other.group = 1;
    expect_mismatch(&sum, 1, &other, 1, a, "at b.c:2 as operation 1 of sub-group 3");
    other = call_of(GR_COLL_BARRIER, 0, "b.c:2");
    expect_mismatch(&sum, 1, &other, 1, a, b);
    other = call_of(GR_COLL_ALLTOALL, 20, "b.c:2");
    expect_mismatch(&sum, 1, &other, 1, a, b);
    const plain here[2] = {sum, call_of(GR_COLL_BARRIER, 0, "a.c:2")};
    const plain there[2] = {call_of(GR_COLL_BARRIER, 0, "b.c:2"), sum};
    expect_mismatch(here, 2, there, 2, a, b);
    const plain messages[2] = {call_of(GR_COLL_SEND, 9, "a.c:1"),
                               call_of(GR_COLL_RECV, 9, "b.c:2")};
    plain to = messages[0], from = messages[1];
    to.desc.root = 1;
    to.desc.tag = from.desc.tag = 4;
    from.desc.dtype = GR_F64;
    expect_mismatch(&to, 1, &from, 1, "to rank 1 (tag 4) at a.c:1", "from rank 0 (tag 4) at b.c:2");
    from = messages[1];
    from.desc.tag = 4;
    from.desc.count = 8;
    expect_mismatch(&to, 1, &from, 1, "send of 9", "recv of 8");
    to.desc.count = 0; /* a message of nothing is a message */
    expect_mismatch(&to, 1, &from, 1, "send of 0", "recv of 8");
    plain blocks = call_of(GR_COLL_ALLGATHER, 0, "a.c:1"), others = blocks;
    blocks.uneven = others.uneven = true;
    blocks.counts[0] = others.counts[1] = 5;
    others.desc.site = "b.c:2";
    expect_mismatch(&blocks, 1, &others, 1, a, b);
}

/* Both wait for the other's data: nothing would ever pass. */
static void test_roots_that_differ(void **state)
{
    (void)state;
    plain first = call_of(GR_COLL_BROADCAST, 20, "a.c:1");
    plain second = call_of(GR_COLL_BROADCAST, 20, "b.c:2");
    first.desc.root = 1;
    expect_mismatch(&first, 1, &second, 1, "from rank 1 by direct at a.c:1",
                    "from rank 0 by direct at b.c:2");
    first = call_of(GR_COLL_REDUCE, 20, "a.c:1");
    second = call_of(GR_COLL_REDUCE, 20, "b.c:2");
    second.desc.root = 1;
    expect_mismatch(&first, 1, &second, 1, "to rank 0", "to rank 1");
}

/* What alltoall sends to a rank is known to its sender alone: the sizes must agree. */
static void test_counts_of_alltoall(void **state)
{
    (void)state;
    for (size_t wrong = 0; wrong < 2; wrong++) {
        pair p;
        gr_log log;
        open_pair(&p, &log);
        plain c = call_of(GR_COLL_ALLTOALL, 0, "a.c:1");
        c.uneven = true;
        c.counts[0] = c.counts[1] = 3;
        gr_op *op;
        gr_diag diag;
        assert_int_equal(start_plain(&p, 0, 0, &c, &op, &diag), GR_OK);
        c = call_of(GR_COLL_ALLTOALL, 0, "b.c:2");
        c.uneven = true;
        c.counts[0] = 4 * wrong; /* 0 or 4 */
        c.counts[1] = 3;
        assert_int_equal(start_plain(&p, 1, 0, &c, &op, &diag), GR_OK);
        move_pair(&p, 1000000);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(gr_exec_diag(p.execs[rank])->status, GR_E_MISMATCH);
            const char *text = gr_exec_diag(p.execs[rank])->text;
            assert_non_null(strstr(text, "at a.c:1"));
            assert_non_null(strstr(text, "at b.c:2"));
            assert_non_null(strstr(text, ", to get "));
        }
        close_pair(&p);
    }
}

/* ---- Standing still -------------------------------------------------------------------------- */
static void test_stall(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    open_pair(&p, &log);
    plain barrier = call_of(GR_COLL_BARRIER, 0, "a.c:1");
    plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:2");
    gr_op *ops[2], *late;
    gr_diag diag;
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(start_plain(&p, rank, 0, &barrier, &ops[rank], &diag), GR_OK);
    }
    move_pair(&p, 1000000);
    assert_int_equal(gr_op_release(ops[0]), GR_OK);
    assert_int_equal(start_plain(&p, 0, 1, &sum, &late, &diag), GR_OK);
    move_pair(&p, 9000000);
    assert_string_equal(p.log, "");
    move_pair(&p, 20000000);
    assert_non_null(strstr(p.log, "operation 2 (allreduce of 20 i64"));
    assert_non_null(strstr(p.log, "at a.c:2) on rank 0 has waited 10.0 s for rank 1 (host otter)"));
    assert_non_null(strstr(p.log, "the last that came from it was of operation 1 (barrier"));
    assert_int_equal(strchr(p.log, '\n') - p.log, (long)strlen(p.log) - 1); /* one line */
    assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_OK);
    move_pair(&p, 60000000);
    assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_E_PEER_SLOW);
    assert_non_null(strstr(gr_exec_diag(p.execs[0])->text, "has waited 60.0 s for rank 1"));
    assert_non_null(strstr(gr_exec_diag(p.execs[0])->text, "GRADUS_STALL_FAIL"));
    gr_exec_skew skew;
    gr_exec_get_skew(p.execs[0], 1, &skew);
    assert_int_equal(skew.count, 1);
    assert_true(skew.mean_us >= 0 && skew.mean_us <= skew.max_us);
    close_pair(&p);
}

/* ---- Reports that come late ------------------------------------------------------------------ */
static void tell(pair *p, int rank, const gr_op_report *report)
{
    board_rank *to = &p->board.ranks[rank];
    to->inbox[to->count++] = *report;
    move_pair(p, 100000);
}

/* Rank 0 waits. What answers another of its waits is not about this one. */
static void exec_in_another_wait_than_a_verdict_names_goes_on(void **state)
{
    (void)state;
    const gr_op_report verdicts[] = {{.kind = GR_REPORT_WAITS, .deadlock = true, .via = -1},
                                     {.kind = GR_REPORT_MISMATCH, .via = -1}};
    const plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1");
    for (int i = 0; i < 2; i++) {
        pair p;
        gr_log log;
        gr_op *op;
        gr_diag diag;
        open_pair(&p, &log);
        assert_int_equal(start_plain(&p, 0, 0, &sum, &op, &diag), GR_OK);
        move_pair(&p, 300000);
        uint32_t seq = p.board.graph.nodes[0].report.seq;
        assert_true(seq != 0);
        gr_op_report verdict = verdicts[i];
        verdict.rank = 1;
        snprintf(verdict.text, sizeof verdict.text, "barrier at b.c:2 as operation 1");
        verdict.answers = seq + 1;
        tell(&p, 0, &verdict);
        assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_OK);
        verdict.answers = seq;
        tell(&p, 0, &verdict);
        assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_E_MISMATCH);
        assert_non_null(strstr(gr_exec_diag(p.execs[0])->text, "at a.c:1 as operation 1; rank 1"));
        assert_non_null(strstr(gr_exec_diag(p.execs[0])->text, "barrier at b.c:2"));
        close_pair(&p);
    }
}

/* A report of rank 0 in the first operation of a sub-group comes when the sub-group is gone, and
 * another one has its number. */
static void exec_with_a_number_of_a_sub_group_used_again_compares_the_new_one(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    gr_op *ops[2];
    gr_diag diag;
    const plain whole = call_of(GR_COLL_BARRIER, 0, "a.c:1");
    open_pair(&p, &log);
    gr_op_report late = {.kind = GR_REPORT_WAITS, .seq = 1, .peer = -1, .via = -1};
    for (int turn = 0; turn < 2; turn++) {
        plain call = call_of(turn == 0 ? GR_COLL_BARRIER : GR_COLL_ALLREDUCE, 20, "a.c:2");
        call.group = 1;
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(start_plain(&p, rank, turn, &call, &ops[rank], &diag), GR_OK);
        }
        late.op = turn == 0 ? gr_op_identity(ops[0]) : late.op;
        move_pair(&p, 1000000);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(gr_op_release(ops[rank]), GR_OK);
            assert_int_equal(gr_exec_group_close(p.execs[rank], &p.groups[rank][1]), 0);
        }
        gr_schedules_fini(&p.schedules[0][1]);
        gr_schedules_fini(&p.schedules[1][1]);
        memset(&p.schedules[0][1], 0, sizeof p.schedules[0][1]);
        memset(&p.schedules[1][1], 0, sizeof p.schedules[1][1]);
    }
    plain next = call_of(GR_COLL_ALLREDUCE, 20, "a.c:3");
    next.group = 1;
    assert_int_equal(start_plain(&p, 1, 0, &next, &ops[1], &diag), GR_OK);
    tell(&p, 1, &late);
    move_pair(&p, 1000000);
    assert_int_equal(start_plain(&p, 0, 0, &next, &ops[0], &diag), GR_OK);
    assert_int_equal(start_plain(&p, 0, 1, &whole, &ops[0], &diag), GR_OK);
    assert_int_equal(start_plain(&p, 1, 1, &whole, &ops[1], &diag), GR_OK);
    move_pair(&p, 1000000);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(gr_exec_diag(p.execs[rank])->status, GR_OK);
        assert_int_equal(gr_exec_active(p.execs[rank]), 0);
    }
    close_pair(&p);
}

/* ---- A group that ends alone ----------------------------------------------------------------- */
static void open_groups(pair *p, gr_exec_outcome outcomes[2], uint32_t serial)
{
    for (int rank = 0; rank < 2; rank++) {
        gr_exec_group *group = &p->groups[rank][1];
        memset(&outcomes[rank], 0, sizeof outcomes[rank]);
        group->outcome = &outcomes[rank];
        group->serial = serial;
        assert_int_equal(gr_exec_group_open(p->execs[rank], group, NULL), GR_OK);
    }
}

static const gr_diag group_cause = {
    .status = GR_E_ABORTED, .peer_rank = 0, .text = "rank 0 had enough"};

/* Of rank 0 alone. */
static void move_first(pair *p, int64_t for_us)
{
    gr_clock clock = dbl_clock(p->net);
    int64_t end_us = gr_clock_now_us(&clock) + for_us;
    while (gr_clock_now_us(&clock) < end_us) {
        if (!gr_exec_progress(p->execs[0])) {
            (void)gr_exec_poll_timers(p->execs[0], true);
        }
        dbl_advance(p->net, 500);
    }
}

static void exec_group_that_all_have_ended_leaves_the_others(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    gr_exec_outcome outcomes[2];
    gr_op *ops[2], *whole[2];
    gr_diag diag;
    plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1"),
          other = call_of(GR_COLL_BARRIER, 0, "a.c:2");
    sum.group = 1;
    open_pair(&p, &log);
    for (uint32_t serial = 1; serial <= 40; serial++) { /* the number is used again each time */
        open_groups(&p, outcomes, serial);
        assert_int_equal(start_plain(&p, 0, 0, &sum, &ops[0], &diag), GR_OK);
        if (serial % 2) {
            assert_int_equal(start_plain(&p, 1, 0, &sum, &ops[1], &diag), GR_OK);
        }
        gr_exec_end_group(p.execs[0], 3, &group_cause);
        assert_true(outcomes[0].ended && !outcomes[1].ended);
        move_first(&p, 100000);
        assert_false(gr_op_finished(ops[0])); /* rank 1 may use its buffer */
        assert_int_equal(start_plain(&p, 0, 1, &sum, &whole[0], &diag), GR_E_COMM_BROKEN);
        for (int rank = 1; rank >= 0; rank--) { /* rank 1 waits, and so hears of it */
            assert_int_equal(start_plain(&p, rank, 1, &other, &whole[rank], &diag), GR_OK);
            move_pair(&p, 300000);
        }
        for (int rank = 0; rank < 2; rank++) {
            assert_true(outcomes[rank].ended);
            assert_string_equal(outcomes[rank].diag.text,
                                "sub-group 3 of ranks 0 and 1 has ended: rank 0 had enough");
            assert_int_equal(outcomes[rank].diag.status, GR_E_ABORTED);
            assert_int_equal(gr_op_release(whole[rank]), GR_OK);
            assert_int_equal(gr_exec_diag(p.execs[rank])->status, GR_OK);
            assert_int_equal(gr_exec_active(p.execs[rank]), 0);
        }
        assert_true(gr_op_finished(ops[0]) && gr_op_release(ops[0]) == GR_E_ABORTED);
        assert_true(serial % 2 == 0 ||
                    (gr_op_finished(ops[1]) && gr_op_release(ops[1]) == GR_E_ABORTED));
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(gr_exec_group_close(p.execs[rank], &p.groups[rank][1]), 0);
        }
    }
    close_pair(&p);
}

static void exec_group_that_a_rank_does_not_confirm_ends_all(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    gr_exec_outcome outcomes[2];
    gr_op *op;
    gr_diag diag;
    plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1");
    sum.group = 1;
    open_pair(&p, &log);
    open_groups(&p, outcomes, 1);
    assert_int_equal(start_plain(&p, 0, 0, &sum, &op, &diag), GR_OK);
    gr_exec_end_group(p.execs[0], 3, &group_cause);
    move_first(&p, 9900000);
    assert_false(gr_op_finished(op));
    assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_OK);
    move_first(&p, 200000);
    assert_int_equal(gr_exec_diag(p.execs[0])->status, GR_E_ABORTED);
    assert_non_null(
        strstr(gr_exec_diag(p.execs[0])->text, "rank 1 has not confirmed that for 10 s"));
    assert_true(gr_op_finished(op) && gr_op_release(op) == GR_E_ABORTED);
    assert_string_equal(outcomes[0].diag.text,
                        "sub-group 3 of ranks 0 and 1 has ended: rank 0 had enough");
    close_pair(&p);
}

/* Rank 1 is still in gr_comm_split. */
static void exec_group_that_is_not_made_yet_is_not_confirmed(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    gr_exec_outcome outcomes[2];
    gr_op *op, *whole[2];
    gr_diag diag;
    plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1"),
          other = call_of(GR_COLL_BARRIER, 0, "a.c:2");
    sum.group = 1;
    open_pair(&p, &log);
    open_groups(&p, outcomes, 1);
    assert_int_equal(gr_exec_group_close(p.execs[1], &p.groups[1][1]), 0);
    open_groups(&p, outcomes, 2);
    p.execs[1]->members[3].group = NULL;
    p.execs[1]->serial_seen = 1;
    assert_int_equal(start_plain(&p, 0, 0, &sum, &op, &diag), GR_OK);
    gr_exec_end_group(p.execs[0], 3, &group_cause);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(start_plain(&p, rank, 1, &other, &whole[rank], &diag), GR_OK);
    }
    move_pair(&p, 1000000);
    assert_false(gr_op_finished(op) || outcomes[1].ended);
    assert_int_equal(gr_exec_group_open(p.execs[1], &p.groups[1][1], NULL), GR_OK);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(gr_op_release(whole[rank]), GR_OK);
        assert_int_equal(start_plain(&p, rank, 1, &other, &whole[rank], &diag), GR_OK);
    }
    move_pair(&p, 1000000);
    assert_true(gr_op_finished(op) && gr_op_release(op) == GR_E_ABORTED);
    assert_true(outcomes[1].ended);
    close_pair(&p);
}

/* ---- Operations that something else moves on ------------------------------------------------- */
typedef struct counted {
    int moves, moves_left;
    gr_status result;
    bool over, cancelled;
} counted;

static gr_status move_counted(void *state, bool *moved_out, gr_diag *diag)
{
    counted *d = state;
    d->moves++;
    *moved_out = true;
    if (--d->moves_left > 0) {
        return GR_PENDING;
    }
    d->over = d->result == GR_OK;
    return d->result == GR_OK ? GR_OK : gr_fail(diag, d->result, "shared memory is broken");
}

static void cancel_counted(void *state)
{
    counted *d = state;
    assert_false(d->over);
    d->cancelled = true;
}

static bool counted_needs(const void *state, int peer)
{
    (void)state;
    return peer == 1;
}

static const gr_op_ops counted_ops = {
    .progress = move_counted, .cancel = cancel_counted, .waits_for = counted_needs};

static gr_status start_custom(gr_exec *exec, const gr_exec_request *like, const gr_op_ops *ops,
                              void *state, gr_op **op_out, gr_diag *diag)
{
    gr_exec_request request = *like;
    request.ops = ops;
    request.state = state;
    return gr_exec_start(exec, &request, 1, op_out, diag);
}

static void exec_custom_operations_run_beside_plans(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    open_pair(&p, &log);
    counted quick = {.moves_left = 2}, slow = {.moves_left = 1000};
    gr_op *quick_op, *slow_op, *plan_op;
    gr_diag diag;
    char what[256];
    gr_status called = GR_PENDING;
    const gr_exec_group *group = &p.groups[0][0];
    gr_exec *exec = p.execs[0];
    gr_exec_request request = {.desc = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1").desc,
                               .group = group};
    const gr_call_memory memory = {
        .reads = {.first = (uintptr_t)&slow, .end = (uintptr_t)(&slow + 1)}};
    const gr_call_memory written = {.writes = memory.reads};
    request.memory = &memory;
    assert_int_equal(start_custom(exec, &request, &counted_ops, &slow, &slow_op, &diag), GR_OK);
    request.memory = NULL;
    gr_exec_request telling = request;
    telling.done = note_done;
    telling.done_arg = &called;
    assert_int_equal(start_custom(exec, &telling, &counted_ops, &quick, &quick_op, &diag), GR_OK);
    assert_int_equal(gr_op_number(slow_op), 0);
    assert_int_equal(gr_op_number(quick_op), 1);
    assert_true(gr_op_fingerprint(slow_op) == gr_op_fingerprint(quick_op));
    assert_int_equal(quick.moves + slow.moves, 0);
    assert_int_equal(gr_exec_active(exec), 2);
    assert_true(gr_exec_uses(exec, &written, what, sizeof what));
    assert_non_null(strstr(what, "operation 1 (allreduce of 20 i64"));
    assert_false(gr_exec_uses(exec, &memory, what, sizeof what));
    assert_true(gr_exec_progress(exec));
    assert_false(gr_exec_done_pending(exec));
    assert_true(gr_exec_progress_custom(quick_op));
    assert_true(quick.over && !quick.cancelled);
    gr_exec_done due = {.done = NULL};
    assert_true(gr_exec_take_done(exec, &due));
    due.done(due.status, due.arg);
    assert_int_equal(called, GR_OK);
    assert_false(gr_exec_take_done(exec, &due));
    assert_int_equal(slow.moves, 1);
    /* Numbers go on with plans; a failure ends all. */
    plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:2");
    assert_int_equal(start_plain(&p, 0, 0, &sum, &plan_op, &diag), GR_OK);
    assert_int_equal(gr_op_number(plan_op), 2);
    assert_int_equal(gr_exec_group_close(exec, group), 2);
    counted bad = {.moves_left = 1, .result = GR_E_PROTOCOL};
    gr_op *bad_op;
    assert_int_equal(start_custom(exec, &request, &counted_ops, &bad, &bad_op, &diag), GR_OK);
    (void)gr_exec_progress(exec);
    assert_string_equal(gr_exec_diag(exec)->text, "shared memory is broken");
    assert_true(slow.cancelled && bad.cancelled && !quick.cancelled);
    assert_int_equal(gr_op_release(slow_op), GR_E_PROTOCOL);
    assert_int_equal(gr_op_release(bad_op), GR_E_PROTOCOL);
    assert_int_equal(gr_op_release(plan_op), GR_E_PROTOCOL);
    assert_int_equal(start_plain(&p, 0, 0, &sum, &plan_op, &diag), GR_E_COMM_BROKEN);
    close_pair(&p);
}

/* The hang report knows who came to operations that something else moved on. */
static gr_status move_never(void *state, bool *moved_out, gr_diag *diag)
{
    (void)state;
    (void)diag;
    *moved_out = false;
    return GR_PENDING;
}

static void exec_custom_operation_that_stalls_names_who_came(void **state)
{
    (void)state;
    static const gr_op_ops never_ops = {.progress = move_never, .waits_for = counted_needs};
    pair p;
    gr_log log;
    open_pair(&p, &log);
    counted quick = {.moves_left = 1};
    gr_op *op;
    gr_diag diag;
    gr_exec_request request = {.desc = call_of(GR_COLL_BARRIER, 0, "a.c:1").desc,
                               .group = &p.groups[0][0]};
    gr_exec *exec = p.execs[0];
    assert_int_equal(start_custom(exec, &request, &counted_ops, &quick, &op, &diag), GR_OK);
    gr_op_arrived(op, 1, true);
    assert_true(gr_exec_progress_custom(op));
    assert_int_equal(gr_op_release(op), GR_OK);
    assert_int_equal(start_custom(exec, &request, &never_ops, NULL, &op, &diag), GR_OK);
    move_pair(&p, 70000000);
    const char *text = gr_exec_diag(exec)->text;
    assert_non_null(strstr(text, "operation 2 (barrier"));
    assert_non_null(strstr(text, "for rank 1 (host otter) to send its part"));
    assert_non_null(strstr(text, "the last that came from it was of operation 1 (barrier"));
    close_pair(&p);
}

/* ---- Scratch --------------------------------------------------------------------------------- */
static int pieces_used(const gr_exec *exec)
{
    int used = 0;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        used += exec->pieces[i].used;
    }
    return used;
}

/* A rank that is away holds up all; sub-groups may hold up each other. */
static void exec_scratch_of_one_communicator_stays_in_its_limit_while_a_peer_is_away(void **state)
{
    (void)state;
    for (int groups = 1; groups <= 2; groups++) {
        pair p;
        gr_log log;
        open_pair(&p, &log);
        gr_op *op;
        gr_diag diag;
        p.execs[0]->own_scratch_max = 0;
        p.execs[0]->scratch_limit = 1; /* one piece */
        for (int i = 0; i < 4; i++) {
            plain sum = call_of(GR_COLL_ALLREDUCE, 20, "a.c:1");
            sum.group = i % groups;
            assert_int_equal(start_plain(&p, 0, i % 2, &sum, &op, &diag), GR_OK);
        }
        assert_int_equal(pieces_used(p.execs[0]), 1);
        move_pair(&p, 1000000);
        assert_true(groups == 1 ? pieces_used(p.execs[0]) == 1 : pieces_used(p.execs[0]) > 1);
        close_pair(&p);
    }
}

/* ---- All or nothing -------------------------------------------------------------------------- */
static gr_status start_many(pair *p, int rank, int count, gr_op **op_out, gr_diag *diag)
{
    const gr_algorithm *algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct");
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .rank = rank, .world_size = 2, .shards = 2};
    const gr_schedule *schedule;
    assert_int_equal(gr_schedules_get(&p->schedules[rank][0], algorithm, &shape,
                                      (gr_scaling){.result = false}, &schedule, diag),
                     GR_OK);
    static gr_exec_request requests[GR_EXEC_OPS_MAX + 1];
    void *user = p->user[rank][0];
    for (int i = 0; i < count; i++) {
        requests[i] = (gr_exec_request){.schedule = schedule,
                                        .group = &p->groups[rank][0],
                                        .user = &user,
                                        .desc = call_of(GR_COLL_ALLREDUCE, 0, NULL).desc,
                                        .total_count = i == count - 1 ? 60 : 8,
                                        .user_only = -1,
                                        .input_only = -1};
    }
    return gr_exec_start(p->execs[rank], requests, count, op_out, diag);
}

static void test_all_or_nothing(void **state)
{
    (void)state;
    pair p;
    gr_log log;
    open_pair(&p, &log);
    gr_exec *exec = p.execs[0];
    gr_op *op = NULL;
    gr_diag diag;
    assert_int_equal(start_many(&p, 0, GR_EXEC_OPS_MAX + 1, &op, &diag), GR_E_NO_MEMORY);
    assert_non_null(strstr(diag.text, "too many operations"));
    assert_int_equal(exec->free_count, GR_EXEC_OPS_MAX);
    /* Each allocation fails in turn: nothing has begun, and the next call is as the first. */
    long fails = 0;
    for (;; fails++) {
        allocations_left = fails;
        gr_status status = start_many(&p, 0, 3, &op, &diag);
        allocations_left = -1;
        if (status == GR_OK) {
            break;
        }
        assert_int_equal(status, GR_E_NO_MEMORY);
        assert_int_equal(exec->free_count, GR_EXEC_OPS_MAX);
        assert_int_equal(gr_exec_active(exec), 0);
        assert_int_equal(exec->next_seq, 0);
        assert_true(gr_exec_record(exec)->begun == 0);
        assert_true(dbl_accepted(p.net) == 0);
    }
    assert_true(fails >= 3);
    gr_op *other;
    assert_int_equal(start_many(&p, 1, 3, &other, &diag), GR_OK);
    move_pair(&p, 1000000);
    assert_true(gr_op_finished(op) && gr_op_finished(other));
    assert_int_equal(gr_op_release(op), GR_OK);
    assert_int_equal(exec->free_count, GR_EXEC_OPS_MAX);
    /* What was forgotten is released with its group. */
    assert_int_equal(gr_exec_group_close(p.execs[1], &p.groups[1][0]), 0);
    assert_int_equal(p.execs[1]->free_count, GR_EXEC_OPS_MAX);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_mismatch),
        cmocka_unit_test(test_roots_that_differ),
        cmocka_unit_test(test_counts_of_alltoall),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(exec_in_another_wait_than_a_verdict_names_goes_on),
        cmocka_unit_test(exec_with_a_number_of_a_sub_group_used_again_compares_the_new_one),
        cmocka_unit_test(exec_group_that_all_have_ended_leaves_the_others),
        cmocka_unit_test(exec_group_that_a_rank_does_not_confirm_ends_all),
        cmocka_unit_test(exec_group_that_is_not_made_yet_is_not_confirmed),
        cmocka_unit_test(exec_custom_operations_run_beside_plans),
        cmocka_unit_test(exec_custom_operation_that_stalls_names_who_came),
        cmocka_unit_test(exec_scratch_of_one_communicator_stays_in_its_limit_while_a_peer_is_away),
        cmocka_unit_test(test_all_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
