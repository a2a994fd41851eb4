/* SPDX-License-Identifier: Apache-2.0 */
/* What members of a new generation tell each other: their progress, as bytes, and their state. */
#include "support_train.h"

#include "base/codec.h"
#include "train/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const gr_training_progress example = {
    .steps = 0x0102030405060708,
    .epochs = 2,
    .first_step = 3,
    .seconds_before = 4.5,
    .epoch = {.loss = 5, .correct = 6, .steps = 7, .samples = 8, .step_ns = 9, .wait_ns = 10},
    .total = {.loss = 11, .correct = 12, .steps = 13, .samples = 14, .step_ns = 15, .wait_ns = 16},
    .last_loss = 17,
    .best = {.value = 35, .step = 36, .wait = 37},
    .run = 34,
    .reported = {.epoch = 21,
                 .epochs = 22,
                 .step = 23,
                 .total_steps = 24,
                 .loss = 25,
                 .accuracy = 26,
                 .test_loss = 27,
                 .test_accuracy = 28,
                 .test_rmse = 18,
                 .test_mae = 19,
                 .test_r2 = 20,
                 .samples_per_s = 29,
                 .comm_wait_share = 30,
                 .learning_rate = 31,
                 .late_rank = -1,
                 .late_us = 32,
                 .staleness = 33},
};

static void progress_as_bytes_is_little_endian_without_gaps(void **state)
{
    (void)state;
    static const uint8_t begin[] = {3, 0, 8, 7, 6, 5, 4, 3, 2, 1, 2, 0};
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_progress_put(&example, bytes);
    assert_memory_equal(bytes, begin, sizeof begin);
    assert_true(gr_get_f64(bytes + GR_PROGRESS_BYTES - 8) == 33);
    assert_int_equal(gr_get_u32(bytes + GR_PROGRESS_BYTES - 20), UINT32_MAX);
}

static void progress_that_was_sent_is_read_whole(void **state)
{
    (void)state;
    uint8_t bytes[GR_PROGRESS_BYTES], again[GR_PROGRESS_BYTES];
    gr_training_progress read = {.steps = 0};
    gr_progress_put(&example, bytes);
    assert_true(gr_progress_get(bytes, &read));
    assert_true(read.reported.test_mae == 19);
    assert_true(read.best.value == 35 && read.best.step == 36 && read.best.wait == 37);
    assert_int_equal(read.reported.late_rank, -1);
    assert_int_equal(read.run, 34);
    assert_true(read.total.loss == 11 && read.reported.late_us == 32);
    gr_progress_put(&read, again);
    assert_memory_equal(again, bytes, sizeof bytes);
}

static void progress_of_another_version_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[GR_PROGRESS_BYTES];
    gr_training_progress read = {.steps = 77};
    gr_progress_put(&example, bytes);
    bytes[0]++;
    assert_false(gr_progress_get(bytes, &read));
    assert_int_equal(read.steps, 77);
}

/* ---- The state ------------------------------------------------------------------------------- */

void __wrap_gr_saver_settle(gr_saver *saver);

static const gr_trainer *watched; /* whose saver is one of this test's own */
static int settled;               /* its values had not changed yet */

void __wrap_gr_saver_settle(gr_saver *saver)
{
    settled += watched != NULL && saver == watched->saver && watched->values[0] == 5;
}

/* Rank 0 is a step behind, while a checkpoint of its values is being copied. Returns what is wrong
 * on this rank, 0: nothing. */
static int recover_member(int rank, gr_comm *comm, void *arg)
{
    char path[SUPPORT_PATH_BYTES + 16], saver = 0;
    gr_job_overrides overrides = {.run = {.workers = 2}};
    gr_training_progress progress = {.steps = rank == 0 ? 3 : 4};
    gr_job *job = NULL;
    gr_trainer trainer;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/job.yaml", (const char *)arg);
    if (gr_job_open(path, &overrides, &job, &diag) != GR_OK ||
        support_trainer_init(&trainer, job, comm, &diag) != GR_OK) {
        return 1;
    }
    trainer.values[0] = rank == 0 ? 5 : 7;
    trainer.saver = rank == 0 ? (gr_saver *)(void *)&saver : NULL;
    watched = rank == 0 ? &trainer : NULL;
    gr_status status = gr_recover_agree(&trainer, &progress, &diag);
    int wrong = status != GR_OK             ? 2
                : progress.steps != 4       ? 3
                : trainer.values[0] != 7    ? 4
                : rank == 0 && settled == 0 ? 5
                                            : 0;
    trainer.saver = NULL;
    gr_trainer_fini(&trainer);
    gr_job_close(job);
    return wrong;
}

static void state_that_is_received_waits_for_the_checkpoint_of_the_old_one(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES];
    int codes[2] = {-1, -1};
    const support_job job = {.shards = 4, .steps = 10, .global_batch = 32};
    support_folder(folder);
    support_write(folder, &job);
    support_group(2, "shm", recover_member, folder, codes);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);
    support_clean(folder);
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_as_bytes_is_little_endian_without_gaps),
        cmocka_unit_test(progress_that_was_sent_is_read_whole),
        cmocka_unit_test(progress_of_another_version_is_refused),
        cmocka_unit_test(state_that_is_received_waits_for_the_checkpoint_of_the_old_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
