/* SPDX-License-Identifier: Apache-2.0 */

/* A strategy that no other file knows: nothing asks which one a job has. */

#include "support_train.h"
#include "train/strategy/strategy.h"
#include "train/train.h"

#include <gradus/ps.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Sums over all ranks, as allreduce does, and counts how often it was asked for. */
static int entered, left, begun, met, updated;

static gr_status enter(gr_trainer *t, gr_diag *diag)
{
    entered++;
    return gr_strategy_allreduce.enter(t, diag);
}

static void leave(gr_trainer *t)
{
    left++;
    gr_strategy_allreduce.leave(t);
}

static uint64_t begin(gr_trainer *t, uint64_t step)
{
    begun++;
    return gr_strategy_allreduce.begin(t, step);
}

static gr_status ready(gr_trainer *t, size_t end)
{
    return gr_strategy_allreduce.ready(t, end);
}

static gr_status wait_all(gr_trainer *t, gr_diag *diag)
{
    met++;
    return gr_strategy_allreduce.wait(t, diag);
}

static gr_status update(gr_trainer *t, uint64_t step, int64_t key, gr_meter *now, gr_diag *diag)
{
    updated++;
    return gr_strategy_allreduce.update(t, step, key, now, diag);
}

static const gr_strategy counting = {.name = "counting",
                                     .enter = enter,
                                     .leave = leave,
                                     .begin = begin,
                                     .ready = ready,
                                     .wait = wait_all,
                                     .update = update};

static void train(const gr_strategy *strategy, const support_job *shape,
                  char sha[SUPPORT_SHA_BYTES])
{
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    support_folder(folder);
    gr_job *job = support_open(folder, shape, 1);
    job->strategy = strategy != NULL ? strategy : job->strategy;
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    if (gr_train_run(job, &comm, &support_quiet, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    support_end_sha(folder, sha);
    gr_job_close(job);
    gr_comm_destroy(comm);
    support_clean(folder);
}

static void strategy_of_a_file_of_its_own_trains_a_job(void **state)
{
    (void)state;
    char own[SUPPORT_SHA_BYTES], usual[SUPPORT_SHA_BYTES];
    const support_job shape = {.shards = 4, .steps = 12, .global_batch = 64};
    train(&counting, &shape, own);
    assert_int_equal(entered, 1);
    assert_true(left >= 1);
    assert_true(begun == 12 && met == 12 && updated == 12);
    train(NULL, &shape, usual);
    assert_string_equal(own, usual);
}

/* The same functions, but an update is said to be of one shard: its gradients are divided by less,
 * and the weights are others. */
static void strategy_properties_decide_how_gradients_are_scaled(void **state)
{
    (void)state;
    char own[SUPPORT_SHA_BYTES], usual[SUPPORT_SHA_BYTES];
    const support_job shape = {.shards = 4, .steps = 12, .global_batch = 64};
    gr_strategy by_shard = gr_strategy_allreduce;
    by_shard.updates_by_shard = true;
    train(&by_shard, &shape, own);
    train(NULL, &shape, usual);
    assert_string_not_equal(own, usual);
}

static void strategy_names_are_those_of_the_strategies(void **state)
{
    (void)state;
    gr_job job = {.consistency = GR_BSP};
    for (int i = 0; gr_strategy_name(i) != NULL; i++) {
        job.distribution.strategy = i;
        assert_string_equal(gr_strategy_of(&job)->name, gr_strategy_name(i));
        assert_false(gr_strategy_of(&job)->asynchronous);
    }
    job.consistency = GR_ASYNC;
    assert_true(gr_strategy_of(&job)->asynchronous);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategy_of_a_file_of_its_own_trains_a_job),
        cmocka_unit_test(strategy_properties_decide_how_gradients_are_scaled),
        cmocka_unit_test(strategy_names_are_those_of_the_strategies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
