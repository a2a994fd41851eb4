/* SPDX-License-Identifier: Apache-2.0 */

/* Whole runs: one worker in this process against a naive loop, and groups of forked workers against
 * one worker, bit for bit. */

#include "support_train.h"

#include "base/fail.h"
#include "data/sampler.h"
#include "train/evaluate.h"
#include "train/step.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKERS_MAX = 8 };

/* ---- One worker against a naive loop --------------------------------------------------------- */

/* The gradient of shards [first, first + count), the tree's way, written down as it is defined. */
static float *naive_sum(support_naive *n, const float *values, uint64_t step, int first, int count,
                        float *loss_out)
{
    size_t length = gr_model_values(n->model);
    float *sum = aligned_alloc(64, (length * sizeof(float) + 127) / 64 * 64);
    memset(sum, 0, length * sizeof *sum);
    if (count == 1) {
        *loss_out = (float)(support_naive_gradient(n, values, step, first, sum) /
                            (double)n->job->config.global_batch);
        return sum;
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    float left_loss, right_loss;
    float *a = naive_sum(n, values, step, first, left, &left_loss);
    float *b = naive_sum(n, values, step, first + left, count - left, &right_loss);
    for (size_t i = 0; i < length; i++) {
        sum[i] = a[i] + b[i];
    }
    *loss_out = left_loss + right_loss;
    free(a);
    free(b);
    return sum;
}

static void naive_train(gr_job *job, float *values, int steps, gr_meter *meter)
{
    support_naive n;
    gr_diag diag = {0};
    gr_optimizer *optimizer = NULL;
    support_naive_init(&n, job, job->config.global_batch);
    assert_int_equal(gr_optimizer_create(&job->optimizer, n.model, &optimizer, &diag), GR_OK);
    gr_model_init_weights(n.model, values);
    for (int step = 0; step < steps; step++) {
        float loss = 0.0f;
        float *sum = naive_sum(&n, values, (uint64_t)step, 0, job->shards, &loss);
        meter->loss += (double)loss;
        gr_optimizer_begin(optimizer, (uint64_t)step,
                           gr_learning_rate(&job->optimizer, (uint64_t)step,
                                            (double)job->steps_per_epoch, job->total_steps,
                                            job->config.global_batch),
                           1.0f);
        gr_optimizer_update(optimizer, values, sum, 0, gr_model_values(n.model));
        gr_model_update_statistics(n.model, values, sum, (float)(1.0 / job->shards));
        free(sum);
    }
    gr_optimizer_destroy(optimizer);
    support_naive_fini(&n);
}

static void against_naive(const support_job *shape)
{
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_trainer trainer;
    gr_meter meter = {0}, wanted = {0};
    support_folder(folder);
    gr_job *job = support_open(folder, shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
    for (int step = 0; step < shape->steps; step++) {
        if (gr_trainer_step(&trainer, (uint64_t)step, &meter, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
    }
    size_t bytes = gr_model_values(trainer.model) * sizeof(float);
    float *values = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(values, 0, bytes);
    naive_train(job, values, shape->steps, &wanted);
    assert_memory_equal(values, trainer.values, bytes);
    assert_true(meter.loss == wanted.loss);
    assert_int_equal(meter.samples, (int64_t)shape->steps * shape->global_batch);
    assert_int_equal(meter.wait_ns, 0);
    free(values);
    gr_trainer_fini(&trainer);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

static void one_worker_is_the_naive_loop(void **state)
{
    (void)state;
    against_naive(&(support_job){.shards = 8, .steps = 5, .global_batch = 64});
    against_naive(&(support_job){.shards = 11, .steps = 3, .global_batch = 55});
    against_naive(
        &(support_job){.model = support_cnn, .shards = 6, .steps = 4, .global_batch = 48});
}

/* ---- The whole of it ------------------------------------------------------------------------- */

/* Columns count characters, of which some have several bytes, and none is cut. */
static void class_names_are_cut_between_characters(void **state)
{
    (void)state;
    const char *const names[] = {"ab\u00e9d\u00e9fgh", "\u65e5\u672c"};
    const double counts[] = {3, 0, 1, 2};
    const gr_evaluation evaluation = {
        .samples = 6, .correct = 5, .confusion = {.classes = 2, .names = names, .counts = counts}};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    gr_evaluation_print(&evaluation, out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "\nab\u00e9d\u00e9fgh             75.00 %"));
    assert_non_null(strstr(text, "\npredicted as     ab\u00e9d\u00e9f     \u65e5\u672c\n"));
    assert_non_null(strstr(text, "\n\u65e5\u672c                    1      2\n"));
    free(text);
}

static void a_run_and_its_evaluation(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 32], sha[SUPPORT_SHA_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_eval_result result;
    support_folder(folder);
    support_job shape = {.shards = 4, .steps = 150, .global_batch = 64};
    gr_job *job = support_open(folder, &shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    if (gr_train_run(job, &comm, &support_quiet, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    json_t *accuracy = support_end_value(folder, "test_accuracy");
    json_t *loss = support_end_value(folder, "test_loss");
    support_end_sha(folder, sha);
    assert_true(json_real_value(accuracy) > 0.85);
    snprintf(path, sizeof path, "%s/out/model.safetensors", folder);
    if (gr_eval_run(job, path, &result, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(result.evaluation.samples, 360);
    assert_true(gr_evaluation_accuracy(&result.evaluation) == json_real_value(accuracy));
    assert_true(result.evaluation.loss == json_real_value(loss));
    json_decref(loss);
    assert_string_equal(result.weights_sha256, sha);
    json_decref(accuracy);
    assert_int_equal(truncate(path, 200), 0);
    assert_int_equal(gr_eval_run(job, path, &result, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, path));
    gr_job_close(job);

    /* Another model's weights are refused by name and shape. */
    support_clean(folder);
    support_folder(folder);
    job = support_open(folder, &shape, 1);
    assert_int_equal(gr_train_run(job, &comm, &support_quiet, &diag), GR_OK);
    gr_job_close(job);
    snprintf(path, sizeof path, "%s/out/model.safetensors", folder);
    shape.model = "  - flatten\n  - linear: {units: 33}\n  - relu\n  - linear: {units: 10}\n";
    job = support_open(folder, &shape, 1);
    assert_int_equal(gr_eval_run(job, path, &result, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "has the shape"));
    gr_job_close(job);
    shape.model = "  - flatten\n  - linear: {units: 10, name: other}\n";
    job = support_open(folder, &shape, 1);
    assert_int_equal(gr_eval_run(job, path, &result, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "has no tensor \"other."));
    gr_job_close(job);
    gr_comm_destroy(comm);
    support_clean(folder);
}

static const int worlds[] = {2, 3, 4, 8};

static void same_bits_over_shm(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES];
    support_job job = {.model = support_cnn, .shards = 8, .steps = 12, .global_batch = 64};
    support_same_for_all(&job, worlds, 4, "shm", sha);
}

static void same_bits_over_tcp(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES], other[SUPPORT_SHA_BYTES];
    support_job job = {.model = support_cnn, .shards = 8, .steps = 12, .global_batch = 64};
    support_same_for_all(&job, (const int[]){3, 8}, 2, "tcp", sha);
    support_train_group(&job, 2, "shm", other);
    assert_string_equal(sha, other);
}

/* Ragged trees, gradient accumulation, clipping, Adam; small buckets or none on the way. */
static void same_bits_in_other_settings(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES], other[SUPPORT_SHA_BYTES];
    support_job job = {.shards = 7,
                       .steps = 10,
                       .global_batch = 56,
                       .micro_batches = 2,
                       .optimizer = "  kind: adam\n  learning_rate: 0.002\n  clip_norm: 0.5\n"};
    support_same_for_all(&job, (const int[]){2, 5}, 2, "shm", sha);
    job.distribution = "  overlap: false\n";
    support_train_group(&job, 3, "shm", other);
    assert_string_equal(sha, other);
    job.distribution = "  bucket_bytes_first: 1024\n  bucket_bytes: 2048\n";
    support_train_group(&job, 4, "shm", other);
    assert_string_equal(sha, other);
    job.optimizer = NULL;
    job.distribution = "  bucket_bytes_first: 1024\n  bucket_bytes: 2048\n";
    support_same_for_all(&job, (const int[]){4}, 1, "shm", other);
    assert_string_not_equal(sha, other);
}

/* Without exactness all ranks still end with the same weights: the run itself compares them. */
static void inexact_runs_agree(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES];
    support_job job = {
        .shards = 6, .steps = 8, .global_batch = 48, .distribution = "  exact: false\n"};
    support_train_group(&job, 4, "shm", sha);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

static void all_ranks_name_the_nan(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; workers++) {
        char folder[SUPPORT_PATH_BYTES], first[SUPPORT_SENTENCE_BYTES],
            text[SUPPORT_SENTENCE_BYTES];
        int codes[WORKERS_MAX] = {0};
        support_folder(folder);
        /* Without a relu that could die, the weights of two layers drive each other up. */
        support_job job = {.model = "  - flatten\n  - linear: 32\n  - linear: 10\n",
                           .shards = 4,
                           .steps = 100,
                           .global_batch = 64,
                           .optimizer = "  kind: sgd\n  learning_rate: 1e6\n"};
        support_write(folder, &job);
        support_group(workers, "shm", support_train_member, folder, codes);
        for (int rank = 0; rank < workers; rank++) {
            assert_int_equal(codes[rank], 1);
            assert_int_equal(support_read_end(folder, rank, rank == 0 ? first : text),
                             GR_E_NOT_FINITE);
            assert_string_equal(first, rank == 0 ? first : text);
        }
        assert_non_null(strstr(first, "step "));
        assert_non_null(strstr(first, "layer \""));
        assert_non_null(strstr(first, "on rank 0 (shard 0)"));
        assert_non_null(strstr(first, "lower the learning rate (1e+06) or clip"));
        support_clean(folder);
    }
}

enum { CROOKED_SAMPLES = 40, CROOKED = 17, CROOKED_SHARDS = 8 };

/* Forty samples, one of which is so large that the first layer's sums overflow. */
static void write_crooked(const char *folder)
{
    char path[SUPPORT_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/data.csv", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < CROOKED_SAMPLES; i++) {
        for (int v = 0; v < 64; v++) {
            fprintf(file, "%s,", i == CROOKED ? "3e38" : v % 7 == i % 7 ? "1" : "0");
        }
        fprintf(file, "%d\n", i % 10);
    }
    fclose(file);
    snprintf(path, sizeof path, "%s/job.yaml", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "name: crooked\nmodel: [{linear: 16, name: first}, {linear: 10}]\n"
            "data: {format: csv, file: data.csv}\noptimizer: {kind: sgd, learning_rate: 0.5}\n"
            "loss: cross_entropy\nseed: 3\nsteps: 2\nglobal_batch: %d\noutput: %s/out\n"
            "distribution: {shards: %d}\n",
            CROOKED_SAMPLES, folder, CROOKED_SHARDS);
    fclose(file);
}

/* The sentence names the rank and the shard that had the sample, whoever that is. */
static void the_right_shard_is_named(void **state)
{
    (void)state;
    gr_sampler sampler;
    gr_sampler_init(&sampler, 3, 0, CROOKED_SAMPLES);
    int position = 0;
    while (gr_sampler_at(&sampler, (uint64_t)position) != CROOKED) {
        position++;
    }
    int shard = position / (CROOKED_SAMPLES / CROOKED_SHARDS), owner = -1;
    for (int rank = 0; rank < 3; rank++) {
        int first, count;
        gr_shard_range(CROOKED_SHARDS, 3, rank, &first, &count);
        owner = shard >= first && shard < first + count ? rank : owner;
    }
    char folder[SUPPORT_PATH_BYTES], text[SUPPORT_SENTENCE_BYTES], wanted[200];
    int codes[WORKERS_MAX] = {0};
    support_folder(folder);
    write_crooked(folder);
    support_group(3, "shm", support_train_member, folder, codes);
    snprintf(
        wanted, sizeof wanted,
        "in the output of layer \"first\" on rank %d (shard %d); lower the learning rate (0.5)",
        owner, shard);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(support_read_end(folder, rank, text), GR_E_NOT_FINITE);
        assert_memory_equal(text, "step 1: the loss became ", 24);
        if (strstr(text, wanted) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", text, wanted);
        }
    }
    support_clean(folder);
}

/* Shards that are finite each, with a sum that is not: no rank is to blame, the tensor is named. */
static void an_overflowing_sum_is_named(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_trainer trainer;
    gr_meter meter = {0};
    support_folder(folder);
    gr_job *job =
        support_open(folder, &(support_job){.shards = 2, .steps = 3, .global_batch = 16}, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
    assert_int_equal(gr_trainer_step(&trainer, 0, &meter, &diag), GR_OK);
    const gr_tensor_info *tensor = gr_model_tensor(trainer.model, 0);
    size_t at = GR_STEP_HEADER + tensor->offset + tensor->count - 1;
    trainer.gen.vectors[0][at] = (float)INFINITY;
    assert_int_equal(gr_not_finite_fail(&trainer, 1, INT64_MAX, trainer.gen.vectors[0], at, &diag),
                     GR_E_NOT_FINITE);
    assert_non_null(strstr(diag.text, "step 2: the gradient of "));
    assert_non_null(strstr(diag.text, tensor->name));
    assert_non_null(strstr(diag.text, "became infinite when the shards' finite ones were added"));
    gr_trainer_fini(&trainer);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_is_the_naive_loop),
        cmocka_unit_test(a_run_and_its_evaluation),
        cmocka_unit_test(class_names_are_cut_between_characters),
        cmocka_unit_test(same_bits_over_shm),
        cmocka_unit_test(same_bits_over_tcp),
        cmocka_unit_test(same_bits_in_other_settings),
        cmocka_unit_test(inexact_runs_agree),
        cmocka_unit_test(all_ranks_name_the_nan),
        cmocka_unit_test(the_right_shard_is_named),
        cmocka_unit_test(an_overflowing_sum_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
