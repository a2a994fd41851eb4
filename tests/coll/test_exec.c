/* SPDX-License-Identifier: Apache-2.0 */
/* The executor over the double of the links: every algorithm, type and operation under hundreds of
 * interleavings, against a serial evaluation of the shard tree; failures at every point. */
#include "sanitized.h"
#include "support_double_names.h"

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

#include "coll/engine/schedule_store.h"
#include "support_board.h"
#include "support_values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { WORLD_MAX = 64, OPS_MAX = 8, GUARD = 64 };

/* One operation as all ranks call it. */
typedef struct call {
    const gr_algorithm *algorithm;
    gr_dtype dtype;
    gr_redop op;
    size_t count; /* of one buffer */
    int root, shards;
    uint64_t seed;
    bool small;
} call;

typedef struct rank_state {
    gr_exec *exec;
    gr_schedules schedules;
    void *user[OPS_MAX][GR_SHARD_PARTIALS_MAX];
    gr_op *ops[OPS_MAX];
    gr_status result[OPS_MAX];
    int started, finished;
} rank_state;

typedef struct world {
    dbl_net *net;
    board board;
    int size;
    rank_state ranks[WORLD_MAX];
    const call *calls;
    int call_count;
    bool stopped[WORLD_MAX]; /* takes no part any more */
    bool leaves;             /* a rank leaves as soon as it has finished */
} world;

static void *get(size_t size_bytes)
{
    void *memory = calloc(1, size_bytes + GUARD);
    assert_non_null(memory);
    return memory;
}

static gr_plan_shape shape_of(const call *c, int rank, int size)
{
    return (gr_plan_shape){.coll = c->algorithm->coll,
                           .rank = rank,
                           .world_size = size,
                           .shards = c->shards,
                           .root = c->root};
}

static bool has_block_each(gr_coll coll)
{
    return coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
}

/* ---- Buffers --------------------------------------------------------------------------------- */
static void fill_user(const call *c, int rank, int size, void **user)
{
    size_t bytes = c->count * gr_dtype_bytes(c->dtype);
    user[0] = get(bytes);
    memset(user[0], 0x5a, bytes);
    if (c->algorithm->coll == GR_COLL_ALLREDUCE) {
        gr_tree_range ranges[GR_SHARD_PARTIALS_MAX];
        int first, count;
        gr_shard_range(c->shards, size, rank, &first, &count);
        int covers = count > 0 ? gr_tree_cover(c->shards, first, count, ranges) : 0;
        for (int i = 0; i < covers; i++) {
            user[i] = i > 0 ? get(bytes) : user[0];
            vals_subtree(user[i], c->dtype, c->op, c->count, c->seed, ranges[i].first,
                         ranges[i].count, c->small);
        }
    } else if (c->algorithm->coll == GR_COLL_REDUCE_SCATTER) {
        vals_fill(user[0], c->dtype, c->count, c->seed, rank, c->small);
    } else if (c->algorithm->coll == GR_COLL_BROADCAST && rank == c->root) {
        vals_fill(user[0], c->dtype, c->count, c->seed, 0, false);
    } else if (c->algorithm->coll == GR_COLL_ALLGATHER) {
        size_t block = c->count / (size_t)size * gr_dtype_bytes(c->dtype);
        vals_fill((uint8_t *)user[0] + block * (size_t)rank, c->dtype, c->count / (size_t)size,
                  c->seed, rank, false);
    }
}

static bool result_right(const call *c, int rank, int size, void *const *user)
{
    size_t element = gr_dtype_bytes(c->dtype);
    size_t block = c->count / (size_t)size;
    uint8_t *want = get(c->count * element);
    const uint8_t *have = user[0];
    size_t first = 0;
    size_t count = c->count;
    switch (c->algorithm->coll) {
    case GR_COLL_ALLREDUCE:
        vals_expect(want, c->dtype, c->op, c->count, c->seed, c->shards, c->small);
        break;
    case GR_COLL_REDUCE_SCATTER:
        vals_expect(want, c->dtype, c->op, c->count, c->seed, size, c->small);
        first = block * (size_t)rank;
        count = block;
        break;
    case GR_COLL_BROADCAST:
        vals_fill(want, c->dtype, c->count, c->seed, 0, false);
        break;
    case GR_COLL_ALLGATHER:
        for (int from = 0; from < size; from++) {
            vals_fill(want + (size_t)from * block * element, c->dtype, block, c->seed, from, false);
        }
        break;
    default:
        count = 0;
        break;
    }
    bool right = memcmp(want + first * element, have + first * element, count * element) == 0;
    free(want);
    return right;
}

/* ---- Running --------------------------------------------------------------------------------- */
static void open_world(world *w, const dbl_options *options, size_t segment_bytes,
                       const call *calls, int call_count)
{
    memset(w, 0, sizeof *w);
    w->net = dbl_create(options);
    w->size = options->world_size;
    w->calls = calls;
    w->call_count = call_count;
    board_open(&w->board, w->size, dbl_clock(w->net));
    for (int rank = 0; rank < w->size; rank++) {
        gr_exec_config config = {.mesh = dbl_mesh(w->net, rank),
                                 .rank = rank,
                                 .world_size = w->size,
                                 .op_timeout_us = 60000000,
                                 .segment_bytes = (int64_t)segment_bytes,
                                 .slice_bytes = (int64_t)(segment_bytes * (options->seed % 4)),
                                 .scratch_bytes = options->seed % 3 == 0 ? 1 : 0,
                                 .clock = dbl_clock(w->net),
                                 .channel = board_channel(&w->board, rank)};
        assert_int_equal(gr_exec_create(&config, &w->ranks[rank].exec, NULL), GR_OK);
        for (int i = 0; i < call_count; i++) {
            fill_user(&calls[i], rank, w->size, w->ranks[rank].user[i]);
        }
    }
}

static void close_world(world *w)
{
    dbl_destroy(w->net);
    board_close(&w->board);
    for (int rank = 0; rank < w->size; rank++) {
        gr_exec_destroy(w->ranks[rank].exec);
        gr_schedules_fini(&w->ranks[rank].schedules);
        for (int i = 0; i < w->call_count; i++) {
            for (int k = 0; k < GR_SHARD_PARTIALS_MAX; k++) {
                free(w->ranks[rank].user[i][k]);
            }
        }
    }
}

static gr_status start_next(world *w, int rank)
{
    rank_state *r = &w->ranks[rank];
    const call *c = &w->calls[r->started];
    gr_plan_shape shape = shape_of(c, rank, w->size);
    bool blocks = has_block_each(shape.coll);
    size_t bytes = c->count * gr_dtype_bytes(c->dtype);
    shape.lines = blocks || c->count % 2 ? 0 : (uint32_t)((bytes + 63) / 64);
    bool scale = c->op == GR_AVERAGE &&
                 (shape.coll == GR_COLL_ALLREDUCE || shape.coll == GR_COLL_REDUCE_SCATTER);
    gr_exec_request request = {.user = r->user[r->started],
                               .desc = {.coll = shape.coll,
                                        .dtype = c->dtype,
                                        .op = c->op,
                                        .algorithm = (int)(c->algorithm - gr_algorithms),
                                        .root = c->root,
                                        .shards = c->shards,
                                        .count = c->count},
                               .total_count = c->count,
                               .fixed_blocks = blocks,
                               .user_only = -1,
                               .input_only = -1,
                               .divisor = c->shards};
    gr_status status = gr_schedules_get(&r->schedules, c->algorithm, &shape,
                                        (gr_scaling){.result = scale}, &request.schedule, NULL);
    assert_int_equal(status, GR_OK);
    status = gr_exec_start(r->exec, &request, 1, &r->ops[r->started], NULL);
    r->started++;
    return status;
}

static void collect(rank_state *r)
{
    for (int i = 0; i < r->started; i++) {
        if (r->ops[i] && gr_op_finished(r->ops[i])) {
            r->result[i] = gr_op_release(r->ops[i]);
            r->ops[i] = NULL;
            r->finished++;
        }
    }
}

static bool all_finished(const world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        if (!w->stopped[rank] && w->ranks[rank].finished < w->call_count) {
            return false;
        }
    }
    return true;
}

/* One turn of a random rank: a new operation now and then, one pass, the clock if nothing moved. */
static void turn(world *w)
{
    int rank = (int)dbl_random(w->net, (uint64_t)w->size);
    rank_state *r = &w->ranks[rank];
    if (w->stopped[rank] || r->finished == w->call_count) {
        return;
    }
    if (r->started < w->call_count && dbl_random(w->net, 4) == 0) {
        if (gr_exec_diag(r->exec)->status != GR_OK) {
            r->result[r->started++] = GR_E_COMM_BROKEN;
            r->finished++;
        } else {
            assert_int_equal(start_next(w, rank), GR_OK);
        }
    }
    if (!gr_exec_progress(r->exec)) {
        (void)gr_exec_poll_timers(r->exec, true);
        dbl_advance(w->net, 500);
    }
    collect(r);
    if (w->leaves && r->finished == w->call_count) {
        dbl_leave(w->net, rank);
    }
}

static bool run_world(world *w)
{
    for (long i = 0; i < 400000 && !all_finished(w); i++) {
        turn(w);
    }
    return all_finished(w) && !dbl_complaint(w->net);
}

static void print_failure(const world *w, const call *c, uint64_t seed)
{
    print_error("seed %llu, %d ranks, %s=%s, %s %s, %zu elements, root %d, %d shards: %s\n",
                (unsigned long long)seed, w->size, gr_coll_name(c->algorithm->coll),
                c->algorithm->name, gr_dtype_name(c->dtype), gr_redop_name(c->op), c->count,
                c->root, c->shards, dbl_complaint(w->net) ? dbl_complaint(w->net) : "-");
    for (int rank = 0; rank < w->size; rank++) {
        print_error("  rank %d: %d started, %d finished: %s\n", rank, w->ranks[rank].started,
                    w->ranks[rank].finished, gr_exec_diag(w->ranks[rank].exec)->text);
    }
}

static void expect_right(const dbl_options *options, size_t segment_bytes, const call *calls,
                         int call_count)
{
    world w;
    open_world(&w, options, segment_bytes, calls, call_count);
    bool finished = run_world(&w);
    for (int i = 0; i < call_count; i++) {
        for (int rank = 0; rank < w.size; rank++) {
            bool right = finished && w.ranks[rank].result[i] == GR_OK &&
                         result_right(&calls[i], rank, w.size, w.ranks[rank].user[i]);
            if (!right) {
                print_failure(&w, &calls[i], options->seed);
            }
            assert_true(right);
        }
    }
    assert_int_equal(dbl_unread(w.net), 0);
    close_world(&w);
}

static dbl_options random_options(uint64_t seed, int world_size)
{
    static const int rooms[5] = {1, 2, 3, 8, 60};
    return (dbl_options){.seed = seed,
                         .world_size = world_size,
                         .room = rooms[seed % 5],
                         .views = seed % 3 != 0,
                         .loss_in_progress = seed % 4 < 2};
}

static call random_call(const gr_algorithm *algorithm, uint64_t seed, int size)
{
    static const size_t counts[] = {0, 1, 2, 3, 16, 17, 63, 100, 1000, 1023, 4099};
    uint64_t pick = seed * UINT64_C(0x9e3779b97f4a7c15) >> 20;
    call c = {.algorithm = algorithm,
              .dtype = (gr_dtype)(pick % GR_DTYPE_COUNT),
              .op = (gr_redop)(pick / 7 % GR_REDOP_COUNT),
              .count = counts[pick / 31 % (sizeof counts / sizeof counts[0])],
              .root = (int)(pick / 411 % (uint64_t)size),
              .shards = size,
              .seed = seed,
              .small = !algorithm->canonical};
    if (algorithm->coll == GR_COLL_ALLREDUCE && algorithm->canonical && pick % 3 > 0) {
        c.shards = 1 + (int)(pick / 5003 % 20);
    }
    if (has_block_each(algorithm->coll)) {
        c.count = c.count / (size_t)size * (size_t)size;
    }
    bool ordered = c.op == GR_AVERAGE || (c.op == GR_PRODUCT && vals_complex(c.dtype));
    if (c.op == GR_USER || !vals_reducible(c.dtype, c.op) || (ordered && !algorithm->canonical)) {
        c.op = GR_SUM;
    }
    return c;
}

/* ---- Tests ----------------------------------------------------------------------------------- */
static void test_every_algorithm(void **state)
{
    (void)state;
    for (const gr_algorithm *a = gr_algorithms; a->name; a++) {
        for (uint64_t seed = 1; a->plan && seed <= THOROUGH(250); seed++) {
            int size = 2 + (int)(seed % 8);
            call c = random_call(a, seed, size);
            gr_plan_shape shape = shape_of(&c, 0, size);
            if (!a->fits(&shape)) {
                size = 2 << (seed % 3);
                c = random_call(a, seed, size);
                c.shards = size;
            }
            dbl_options options = random_options(seed, size);
            expect_right(&options, seed % 2 ? 256 : 1024, &c, 1);
        }
    }
}

static void test_large_worlds(void **state)
{
    (void)state;
    for (const gr_algorithm *a = gr_algorithms; a->name; a++) {
        for (int size = 31; size <= 64; size += 33) {
            call c = random_call(a, (uint64_t)size, size);
            c.count = 1000 / (size_t)size * (size_t)size;
            c.dtype = GR_F32;
            c.op = vals_reducible(c.dtype, c.op) ? c.op : GR_SUM;
            c.shards = size;
            gr_plan_shape shape = shape_of(&c, 0, size);
            if (a->fits(&shape)) {
                dbl_options options = random_options((uint64_t)size, size);
                expect_right(&options, 256, &c, 1);
            }
        }
    }
}

static void test_several_in_flight(void **state)
{
    (void)state;
    const gr_algorithm *plans = gr_algorithms;
    while (!plans->plan) {
        plans++;
    }
    for (uint64_t seed = 1; seed <= THOROUGH(200); seed++) {
        int size = 2 + (int)(seed % 5);
        call calls[OPS_MAX];
        for (int i = 0; i < OPS_MAX; i++) {
            uint64_t own = seed * 100 + (uint64_t)i;
            const gr_algorithm *a = &plans[own * 7 % 12];
            call c = random_call(a, own, size);
            gr_plan_shape shape = shape_of(&c, 0, size);
            calls[i] = a->fits(&shape) ? c : random_call(plans, own, size);
        }
        dbl_options options = random_options(seed, size);
        expect_right(&options, 512, calls, OPS_MAX);
    }
}

static call plain_call(int size, size_t count)
{
    return (call){.algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct"),
                  .dtype = GR_F32,
                  .op = GR_SUM,
                  .count = count,
                  .shards = size,
                  .seed = 5};
}

/* Every rank must end, with the same status or with what follows from it. */
static void expect_all_fail(world *w, gr_status status, const char *text)
{
    int seen_by = 0; /* those that saw it themselves; the others were told */
    for (long i = 0; i < 400000 && !all_finished(w); i++) {
        turn(w);
    }
    assert_null(dbl_complaint(w->net));
    assert_true(all_finished(w));
    for (int rank = 0; rank < w->size; rank++) {
        const gr_diag *diag = gr_exec_diag(w->ranks[rank].exec);
        if (!w->stopped[rank]) {
            seen_by += diag->status == status;
            if (diag->status != GR_E_COMM_BROKEN) {
                assert_int_equal(diag->status, status);
            }
            assert_non_null(strstr(diag->text, text));
            assert_int_equal(gr_exec_active(w->ranks[rank].exec), 0);
            assert_false(gr_exec_progress(w->ranks[rank].exec));
        }
    }
    assert_true(seen_by > 0);
}

static void test_mismatch(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= THOROUGH(60); seed++) {
        int size = 2 + (int)(seed % 4);
        call calls[2] = {plain_call(size, 1000), plain_call(size, 1001)};
        dbl_options options = random_options(seed, size);
        world w;
        open_world(&w, &options, 512, calls, 2);
        /* The last rank calls the second one first. */
        w.ranks[size - 1].started = 1;
        w.ranks[size - 1].finished = 1;
        expect_all_fail(&w, GR_E_MISMATCH, "allreduce of 100");
        int both = 0;
        for (int rank = 0; rank < size; rank++) {
            const char *text = gr_exec_diag(w.ranks[rank].exec)->text;
            both += strstr(text, "allreduce of 1000 f32 (sum over") &&
                    strstr(text, "allreduce of 1001 f32 (sum over");
        }
        /* Where no sentence finds room behind the data, who starts late does not hear it. */
        assert_true(options.room >= 8 ? both == size : both > 0);
        close_world(&w);
    }
}

static void test_other_segments(void **state)
{
    (void)state;
    call c = plain_call(2, 1000);
    dbl_options options = random_options(3, 2);
    world w;
    open_world(&w, &options, 512, &c, 1);
    w.ranks[1].exec->segment_bytes = 1024;
    expect_all_fail(&w, GR_E_MISMATCH, "is GRADUS_SEGMENT the same on all ranks?");
    close_world(&w);
}

static void test_peer_loss_at_every_point(void **state)
{
    (void)state;
    for (uint64_t point = 0; point < THOROUGH(120); point++) {
        int size = 2 + (int)(point % 3);
        call c = plain_call(size, 5000);
        dbl_options options = random_options(point + 1, size);
        world w;
        open_world(&w, &options, 512, &c, 1);
        while (dbl_accepted(w.net) < point && !all_finished(&w)) {
            turn(&w);
        }
        w.stopped[size - 1] = true;
        dbl_kill(w.net, size - 1);
        for (long i = 0; i < 400000 && !all_finished(&w); i++) {
            turn(&w);
        }
        assert_true(all_finished(&w));
        assert_null(dbl_complaint(w.net));
        for (int rank = 0; rank < size - 1; rank++) {
            if (w.ranks[rank].result[0] == GR_OK) {
                assert_true(result_right(&c, rank, size, w.ranks[rank].user[0]));
            } else {
                const gr_diag *diag = gr_exec_diag(w.ranks[rank].exec);
                /* Seen by this rank, or told by another one. */
                assert_true(diag->status == GR_E_PEER_LOST || diag->status == GR_E_COMM_BROKEN);
                assert_int_equal(w.ranks[rank].result[0], diag->status);
                assert_int_equal(diag->peer_rank, size - 1);
                assert_non_null(strstr(diag->text, "died"));
                assert_non_null(strstr(diag->text, "allreduce of 5000 f32"));
            }
        }
        close_world(&w);
    }
}

/* Whoever has finished may leave at once: nothing is missing to the others. */
static void test_leaving_when_finished(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= THOROUGH(400); seed++) {
        int size = 2 + (int)(seed % 7);
        call c = plain_call(size, seed % 4 ? seed % 40 : 1000); /* most blocks are empty */
        c.shards = 1 + (int)(seed % 29);
        dbl_options options = random_options(seed, size);
        world w;
        open_world(&w, &options, 512, &c, 1);
        w.leaves = true;
        assert_true(run_world(&w));
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(w.ranks[rank].result[0], GR_OK);
            assert_true(result_right(&c, rank, size, w.ranks[rank].user[0]));
        }
        close_world(&w);
    }
}

/* The second message is read first, and there is room for one: the first must not stay a view. (Of
 * one segment each: no plan may count on more room.) */
static void test_views_are_let_go(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        dbl_options options = {.seed = seed, .world_size = 2, .room = 1, .views = true};
        world w;
        open_world(&w, &options, 64, NULL, 0);
        float values[2][16], sum[16] = {0};
        gr_schedule *schedules[2];
        gr_op *ops[2];
        for (int rank = 0; rank < 2; rank++) {
            gr_plan plan;
            gr_plan_init(
                &plan, &(gr_plan_shape){
                           .coll = GR_COLL_BROADCAST, .rank = rank, .world_size = 2, .shards = 2});
            if (rank == 0) {
                gr_plan_send(&plan, 1, gr_user(0, 0));
                gr_plan_send(&plan, 1, gr_user(0, 0));
            } else {
                gr_plan_recv(&plan, 0, gr_scratch(0, 0));
                gr_plan_recv(&plan, 0, gr_scratch(1, 0));
                gr_plan_reduce(&plan, gr_user(0, 0), gr_user(0, 0), gr_scratch(1, 0));
                gr_plan_reduce(&plan, gr_user(0, 0), gr_user(0, 0), gr_scratch(0, 0));
            }
            assert_int_equal(gr_plan_finish(&plan), GR_OK);
            assert_int_equal(gr_schedule_create(&plan, &schedules[rank], NULL), GR_OK);
            gr_plan_fini(&plan);
            vals_fill(values[rank], GR_F32, 16, 1, rank, true);
            for (int i = 0; i < 16; i++) {
                sum[i] += (rank == 0 ? 2.0f : 1.0f) * values[rank][i];
            }
        }
        for (int rank = 0; rank < 2; rank++) {
            void *user = values[rank];
            gr_exec_request request = {.schedule = schedules[rank],
                                       .user = &user,
                                       .user_only = -1,
                                       .input_only = -1,
                                       .total_count = 16};
            assert_int_equal(gr_exec_start(w.ranks[rank].exec, &request, 1, &ops[rank], NULL),
                             GR_OK);
        }
        for (int i = 0; i < 10000 && gr_exec_active(w.ranks[1].exec) > 0; i++) {
            for (int rank = 0; rank < 2; rank++) {
                if (!gr_exec_progress(w.ranks[rank].exec)) {
                    (void)gr_exec_poll_timers(w.ranks[rank].exec, true);
                    dbl_advance(w.net, 100);
                }
            }
        }
        assert_true(gr_op_finished(ops[1]));
        assert_memory_equal(values[1], sum, sizeof sum);
        assert_null(dbl_complaint(w.net));
        close_world(&w);
        gr_schedule_destroy(schedules[0]);
        gr_schedule_destroy(schedules[1]);
    }
}

static void test_peer_leaves(void **state)
{
    (void)state;
    call c = plain_call(3, 100);
    dbl_options options = random_options(7, 3);
    world w;
    open_world(&w, &options, 512, &c, 1);
    w.stopped[2] = true;
    dbl_leave(w.net, 2);
    expect_all_fail(&w, GR_E_PEER_LOST, "has left in order");
    close_world(&w);
}

static void test_late_peer(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        call c = plain_call(3, 100);
        dbl_options options = random_options(seed, 3);
        options.room = 8;
        world w;
        open_world(&w, &options, 512, &c, 1);
        w.stopped[1] = true; /* alive, but it never calls */
        expect_all_fail(&w, GR_E_PEER_SLOW, "for rank 1 to send its part");
        assert_non_null(strstr(gr_exec_diag(w.ranks[0].exec)->text, "has waited 60."));
        close_world(&w);
    }
}

/* Time that the caller spends elsewhere is not the peer's fault. */
static void test_own_time_does_not_count(void **state)
{
    (void)state;
    call c = plain_call(2, 100);
    dbl_options options = random_options(1, 2);
    options.room = 8;
    world w;
    open_world(&w, &options, 512, &c, 1);
    assert_int_equal(start_next(&w, 0), GR_OK);
    for (int i = 0; i < 100; i++) {
        dbl_advance(w.net, 50000000);
        if (!gr_exec_progress(w.ranks[0].exec)) {
            (void)gr_exec_poll_timers(w.ranks[0].exec, false);
        }
    }
    assert_int_equal(gr_exec_diag(w.ranks[0].exec)->status, GR_OK);
    assert_true(run_world(&w));
    assert_int_equal(w.ranks[0].result[0], GR_OK);
    close_world(&w);
}

/* What an operation uses stays however many there are, until nobody uses any. */
static void schedules_are_forgotten_between_operations_alone(void **state)
{
    (void)state;
    enum { MOST = 1100 };
    gr_schedules schedules = {.count = 0};
    const gr_algorithm *algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct");
    const gr_schedule *first = NULL, *found = NULL;
    for (int shards = 2; shards < MOST + 2; shards++) {
        gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .world_size = 2, .shards = shards};
        assert_int_equal(gr_schedules_get(&schedules, algorithm, &shape,
                                          (gr_scaling){.result = false}, &found, NULL),
                         GR_OK);
        first = first ? first : found;
        if (shards == 3) {
            gr_schedules_trim(&schedules); /* they are few */
        }
    }
    assert_int_equal(schedules.count, MOST);
    assert_ptr_equal(schedules.entries[0].schedule, first);
    gr_schedules_trim(&schedules);
    assert_int_equal(schedules.count, 0);
    gr_schedules_fini(&schedules);
}

static void test_too_many(void **state)
{
    (void)state;
    call c = plain_call(2, 0);
    dbl_options options = random_options(1, 2);
    world w;
    open_world(&w, &options, 512, &c, 1);
    gr_plan_shape shape = shape_of(&c, 0, 2);
    gr_exec_request request = {.user = w.ranks[0].user[0], .user_only = -1, .input_only = -1};
    assert_int_equal(gr_schedules_get(&w.ranks[0].schedules, c.algorithm, &shape,
                                      (gr_scaling){.result = false}, &request.schedule, NULL),
                     GR_OK);
    gr_op *ops[GR_EXEC_OPS_MAX];
    gr_diag diag;
    for (int i = 0; i < GR_EXEC_OPS_MAX; i++) {
        assert_int_equal(gr_exec_start(w.ranks[0].exec, &request, 1, &ops[i], &diag), GR_OK);
    }
    gr_op *one_more;
    assert_int_equal(gr_exec_start(w.ranks[0].exec, &request, 1, &one_more, &diag), GR_E_NO_MEMORY);
    assert_non_null(strstr(diag.text, "too many operations"));
    assert_int_equal(gr_op_release(ops[0]), GR_OK);
    assert_int_equal(gr_exec_start(w.ranks[0].exec, &request, 1, &one_more, &diag), GR_OK);
    close_world(&w);
}

/* The numbers of operations wrap. */
static void test_wrap(void **state)
{
    (void)state;
    call calls[OPS_MAX];
    for (int i = 0; i < OPS_MAX; i++) {
        calls[i] = plain_call(3, 700);
    }
    dbl_options options = random_options(4, 3);
    world w;
    open_world(&w, &options, 512, calls, OPS_MAX);
    for (int rank = 0; rank < 3; rank++) {
        gr_exec *exec = w.ranks[rank].exec;
        exec->next_seq = exec->oldest_seq = UINT32_MAX - 3;
        for (int peer = 0; peer < 3; peer++) {
            exec->links[peer].send.seq = exec->links[peer].recv.seq = UINT32_MAX - 3;
        }
    }
    assert_true(run_world(&w));
    for (int rank = 0; rank < 3; rank++) {
        assert_true(result_right(&calls[7], rank, 3, w.ranks[rank].user[7]));
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm),
        cmocka_unit_test(test_large_worlds),
        cmocka_unit_test(test_several_in_flight),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_other_segments),
        cmocka_unit_test(test_peer_loss_at_every_point),
        cmocka_unit_test(test_peer_leaves),
        cmocka_unit_test(test_leaving_when_finished),
        cmocka_unit_test(test_views_are_let_go),
        cmocka_unit_test(test_late_peer),
        cmocka_unit_test(test_own_time_does_not_count),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(schedules_are_forgotten_between_operations_alone),
        cmocka_unit_test(test_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
