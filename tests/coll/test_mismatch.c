/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that call different things, over a simulated network: one rank calls something else than
 * all others, each way in which two calls can differ, and nobody calls anything after it. Within
 * seconds every rank has the sentence, with both sides and both places: each takes up to two to
 * spread it. */
#include "coll/engine/exec.h"
#include "coll/engine/schedule_store.h"
#include "sim/net/sim.h"
#include "support_board.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE_MAX_RANKS = 4, STEP_US = 2000, LIMIT_US = 10000000, COUNT = 24, SEGMENT_BYTES = 64 };

/* What a rank calls: up to two operations, one behind the other. */
typedef struct say {
    gr_op_desc desc[2];
    int count;
} say;

typedef struct one_rank {
    gr_mesh *mesh;
    gr_exec *exec;
    gr_schedules *schedules; /* of all tests */
    gr_op *ops[2];
    int64_t user[2][SIZE_MAX_RANKS * COUNT];
} one_rank;

typedef struct world {
    gr_sim_net *net;
    board board;
    int size;
    one_rank ranks[SIZE_MAX_RANKS];
} world;

/* ---- A world --------------------------------------------------------------------------------- */
static void open_world(world *w, int size, gr_schedules *schedules)
{
    gr_sim_config net = {
        .seed = 7, .world_size = size, .room = 8, .delay_us = 50, .view_percent = 50};
    memset(w, 0, sizeof *w);
    w->size = size;
    assert_int_equal(gr_sim_net_create(&net, &w->net, NULL), GR_OK);
    board_open(&w->board, size, gr_sim_clock(w->net));
    for (int rank = 0; rank < size; rank++) {
        one_rank *r = &w->ranks[rank];
        static const uint8_t secret[GR_SECRET_BYTES] = {1};
        gr_mesh_config mesh;
        gr_mesh_config_init(&mesh);
        mesh.kind = GR_LINK_SIM;
        mesh.ops = &gr_sim_ops;
        mesh.rank = rank;
        mesh.world_size = size;
        mesh.secret = secret;
        mesh.clock = gr_sim_clock(w->net);
        mesh.net = w->net;
        assert_int_equal(gr_mesh_create(&mesh, &r->mesh, NULL), GR_OK);
        gr_exec_config exec = {.mesh = r->mesh,
                               .rank = rank,
                               .world_size = size,
                               .segment_bytes = SEGMENT_BYTES,
                               .clock = gr_sim_clock(w->net),
                               .channel = board_channel(&w->board, rank)};
        assert_int_equal(gr_exec_create(&exec, &r->exec, NULL), GR_OK);
        r->schedules = &schedules[rank];
    }
}

static void close_world(world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        gr_mesh_destroy(w->ranks[rank].mesh);
    }
    gr_sim_net_destroy(w->net);
    board_close(&w->board);
    for (int rank = 0; rank < w->size; rank++) {
        gr_exec_destroy(w->ranks[rank].exec);
    }
}

static bool has_blocks(gr_coll coll)
{
    return coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
}

static void start(world *w, int rank, int at, const gr_op_desc *desc)
{
    one_rank *r = &w->ranks[rank];
    const gr_algorithm *algorithm = &gr_algorithms[desc->algorithm];
    gr_plan_shape shape = {.coll = desc->coll,
                           .rank = rank,
                           .world_size = w->size,
                           .shards = w->size,
                           .root = desc->root};
    void *user = r->user[at];
    gr_exec_request request = {.user = &user,
                               .desc = *desc,
                               .total_count =
                                   desc->count * (has_blocks(desc->coll) ? (size_t)w->size : 1),
                               .fixed_blocks = has_blocks(desc->coll),
                               .user_only = -1,
                               .input_only = -1};
    request.desc.shards = w->size;
    assert_int_equal(gr_schedules_get(r->schedules, algorithm, &shape,
                                      (gr_scaling){.result = false}, &request.schedule, NULL),
                     GR_OK);
    gr_diag diag;
    gr_status status = gr_exec_start(r->exec, &request, 1, &r->ops[at], &diag);
    /* The first call may have been found to be wrong before the second one. */
    assert_true(status == GR_OK || (at > 0 && status == GR_E_COMM_BROKEN));
}

static bool all_failed(const world *w)
{
    for (int rank = 0; rank < w->size; rank++) {
        if (gr_exec_diag(w->ranks[rank].exec)->status == GR_OK) {
            return false;
        }
    }
    return true;
}

/* All are looked after, as by a background thread, those as well that have finished. */
static void run_for(world *w, int64_t for_us)
{
    int64_t until_us = gr_sim_now_us(w->net) + for_us;
    while (gr_sim_now_us(w->net) < until_us && !all_failed(w)) {
        for (int rank = 0; rank < w->size; rank++) {
            if (!gr_exec_progress(w->ranks[rank].exec)) {
                (void)gr_exec_poll_timers(w->ranks[rank].exec, true);
            }
        }
        gr_sim_advance(w->net, gr_sim_now_us(w->net) + STEP_US);
    }
}

static void call_all(world *w, const say *ours, const say *theirs, int odd, int at)
{
    for (int rank = 0; rank < w->size; rank++) {
        const say *own = rank == odd ? theirs : ours;
        if (at < own->count) {
            start(w, rank, at, &own->desc[at]);
        }
    }
}

static void print_case(const world *w, const say *ours, const say *theirs, int odd)
{
    for (int i = 0; i < 2; i++) {
        const gr_op_desc *a = &ours->desc[i], *b = &theirs->desc[i];
        print_error("%d ranks, rank %d differs: %s by %s (root %d) and %s by %s (root %d)\n",
                    w->size, odd, gr_coll_name(a->coll), gr_algorithms[a->algorithm].name, a->root,
                    gr_coll_name(b->coll), gr_algorithms[b->algorithm].name, b->root);
    }
    for (int rank = 0; rank < w->size; rank++) {
        print_error("  rank %d: %s\n", rank, gr_exec_diag(w->ranks[rank].exec)->text);
    }
}

/* Rank `odd` calls `theirs`, all others call `ours`. */
static void expect_mismatch(int size, gr_schedules *schedules, const say *ours, const say *theirs,
                            int odd)
{
    world w;
    char other[32];
    open_world(&w, size, schedules);
    snprintf(other, sizeof other, "rank %d called", odd);
    for (int at = 0; at < 2; at++) {
        call_all(&w, ours, theirs, odd, at);
    }
    run_for(&w, LIMIT_US);
    bool right = true;
    for (int rank = 0; rank < size; rank++) {
        const gr_diag *diag = gr_exec_diag(w.ranks[rank].exec);
        right = right && diag->status == GR_E_MISMATCH && strstr(diag->text, "ours.c:1") &&
                strstr(diag->text, "theirs.c:2") && strstr(diag->text, other);
    }
    right = right && !gr_sim_complaint(w.net);
    if (!right) {
        print_case(&w, ours, theirs, odd);
    }
    assert_null(gr_sim_complaint(w.net));
    assert_true(right);
    close_world(&w);
}

/* ---- What can differ ------------------------------------------------------------------------- */
static gr_op_desc desc_of(int algorithm)
{
    return (gr_op_desc){.coll = gr_algorithms[algorithm].coll,
                        .dtype = GR_I64,
                        .algorithm = algorithm,
                        .count = gr_algorithms[algorithm].coll == GR_COLL_BARRIER ? 0 : COUNT};
}

static say say_once(gr_op_desc desc, const char *site)
{
    say s = {.desc = {desc}, .count = 1};
    s.desc[0].site = site;
    return s;
}

static bool fits(int algorithm, int size)
{
    gr_plan_shape shape = {
        .coll = gr_algorithms[algorithm].coll, .world_size = size, .shards = size};
    return shape.coll < GR_COLL_SEND && gr_algorithms[algorithm].fits(&shape);
}

typedef void pair_test(int size, gr_schedules *schedules, int odd);

static void for_all(pair_test *test)
{
    for (int size = 2; size <= SIZE_MAX_RANKS; size++) {
        gr_schedules schedules[SIZE_MAX_RANKS];
        memset(schedules, 0, sizeof schedules);
        for (int odd = 0; odd < size; odd++) {
            test(size, schedules, odd);
        }
        for (int rank = 0; rank < size; rank++) {
            gr_schedules_fini(&schedules[rank]);
        }
    }
}

/* Any operation by any algorithm against any other one, and against the same by another one. */
static void differ_in_kind(int size, gr_schedules *schedules, int odd)
{
    for (int a = 0; gr_algorithms[a].name; a++) {
        for (int b = 0; gr_algorithms[b].name; b++) {
            if (a != b && fits(a, size) && fits(b, size)) {
                say ours = say_once(desc_of(a), "ours.c:1");
                say theirs = say_once(desc_of(b), "theirs.c:2");
                theirs.desc[0].root = (a + b) % size;
                expect_mismatch(size, schedules, &ours, &theirs, odd);
            }
        }
    }
}

static void test_kinds(void **state)
{
    (void)state;
    for_all(differ_in_kind);
}

static bool reduces(gr_coll coll)
{
    return coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_REDUCE;
}

static bool has_root(gr_coll coll)
{
    return coll == GR_COLL_BROADCAST || coll == GR_COLL_REDUCE || coll == GR_COLL_GATHER ||
           coll == GR_COLL_SCATTER;
}

/* One operation: type, count (none as well), root, reduction, name. */
static void differ_in_detail(int size, gr_schedules *schedules, int odd)
{
    for (int a = 0; gr_algorithms[a].name; a++) {
        if (!fits(a, size)) {
            continue;
        }
        const say ours = say_once(desc_of(a), "ours.c:1"),
                  same = say_once(desc_of(a), "theirs.c:2");
        gr_coll coll = gr_algorithms[a].coll;
        say theirs = same;
        theirs.desc[0].name = "weights";
        expect_mismatch(size, schedules, &ours, &theirs, odd);
        if (coll == GR_COLL_BARRIER) {
            continue;
        }
        theirs = same;
        theirs.desc[0].dtype = GR_F64;
        expect_mismatch(size, schedules, &ours, &theirs, odd);
        for (size_t count = 0; count < COUNT; count += COUNT - 1) {
            theirs = same;
            theirs.desc[0].count = count;
            expect_mismatch(size, schedules, &ours, &theirs, odd);
            theirs = ours;
            theirs.desc[0].count = count;
            expect_mismatch(size, schedules, &theirs, &same, odd);
        }
        for (int root = 1; root < size && has_root(coll); root++) {
            theirs = same;
            theirs.desc[0].root = root;
            expect_mismatch(size, schedules, &ours, &theirs, odd);
        }
        if (reduces(coll)) {
            theirs = same;
            theirs.desc[0].op = GR_MAX;
            expect_mismatch(size, schedules, &ours, &theirs, odd);
        }
    }
}

static void test_details(void **state)
{
    (void)state;
    for_all(differ_in_detail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds),
                                       cmocka_unit_test(test_details)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
