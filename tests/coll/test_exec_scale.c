/* SPDX-License-Identifier: Apache-2.0 */
/* What a pass of the executor costs depends on how many links are busy, not on how many ranks there
 * are. */
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

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { BUSY = 3, COUNT = 64, OPERATIONS = 50, PASSES_MAX = 100000 };

static const int busy_ranks[BUSY] = {0, 1, 2};

typedef struct crowd {
    dbl_net *net;
    gr_exec *execs[BUSY]; /* of the others nobody runs */
    gr_schedules schedules[BUSY];
    gr_exec_group groups[BUSY];
    int64_t user[BUSY][COUNT];
} crowd;

static void crowd_open(crowd *c, int world_size)
{
    memset(c, 0, sizeof *c);
    dbl_options options = {.seed = 9, .world_size = world_size, .room = 20, .views = true};
    c->net = dbl_create(&options);
    for (int rank = 0; rank < BUSY; rank++) {
        gr_exec_config config = {.mesh = dbl_mesh(c->net, rank),
                                 .rank = rank,
                                 .world_size = world_size,
                                 .op_timeout_us = 60000000,
                                 .clock = dbl_clock(c->net)};
        assert_int_equal(gr_exec_create(&config, &c->execs[rank], NULL), GR_OK);
        c->groups[rank] = (gr_exec_group){.id = 1, .rank = rank, .size = BUSY, .world = busy_ranks};
    }
}

static void crowd_close(crowd *c)
{
    dbl_destroy(c->net);
    for (int rank = 0; rank < BUSY; rank++) {
        gr_exec_destroy(c->execs[rank]);
        gr_schedules_fini(&c->schedules[rank]);
    }
}

static gr_op *start(crowd *c, int rank)
{
    const gr_algorithm *algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, "direct");
    gr_plan_shape shape = {
        .coll = GR_COLL_ALLREDUCE, .rank = rank, .world_size = BUSY, .shards = BUSY};
    void *user = c->user[rank];
    gr_op *op = NULL;
    gr_diag diag;
    gr_exec_request request = {
        .group = &c->groups[rank],
        .user = &user,
        .desc = {.coll = GR_COLL_ALLREDUCE, .dtype = GR_I64, .shards = BUSY, .count = COUNT},
        .total_count = COUNT,
        .user_only = -1,
        .input_only = -1};
    request.desc.algorithm = (int)(algorithm - gr_algorithms);
    assert_int_equal(gr_schedules_get(&c->schedules[rank], algorithm, &shape,
                                      (gr_scaling){.result = false}, &request.schedule, &diag),
                     GR_OK);
    assert_int_equal(gr_exec_start(c->execs[rank], &request, 1, &op, &diag), GR_OK);
    return op;
}

/* Calls of gr_link_peek for the same work, in a world of that size. */
static uint64_t count_peeks(int world_size)
{
    static crowd c;
    crowd_open(&c, world_size);
    for (int i = 0; i < OPERATIONS; i++) {
        gr_op *ops[BUSY];
        for (int rank = 0; rank < BUSY; rank++) {
            c.user[rank][0] = rank + i;
            ops[rank] = start(&c, rank);
        }
        int over = 0;
        for (int pass = 0; over < BUSY; pass++) {
            assert_true(pass < PASSES_MAX);
            over = 0;
            for (int rank = 0; rank < BUSY; rank++) {
                (void)gr_exec_progress(c.execs[rank]);
                over += gr_op_finished(ops[rank]);
            }
        }
        for (int rank = 0; rank < BUSY; rank++) {
            assert_int_equal(gr_op_release(ops[rank]), GR_OK);
            assert_int_equal(c.user[rank][0], 3 * i + 3);
        }
    }
    assert_null(dbl_complaint(c.net));
    uint64_t peeks = dbl_peeks(c.net);
    crowd_close(&c);
    return peeks;
}

static void exec_cost_of_a_pass_does_not_grow_with_the_world(void **state)
{
    (void)state;
    uint64_t few = count_peeks(BUSY), many = count_peeks(64);
    assert_true(few > 0);
    assert_true(many < 2 * few); /* what arrives when is up to chance */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exec_cost_of_a_pass_does_not_grow_with_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
