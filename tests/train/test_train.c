/* SPDX-License-Identifier: Apache-2.0 */

/* Whole runs: one worker in this process against a naive loop, and groups of forked workers against
 * one worker, bit for bit. */

#include "support_train.h"

#include "base/fail.h"
#include "base/file.h"
#include "data/order.h"
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

enum { SHA_BYTES = 65, WORKERS_MAX = 8 };

static const gr_train_options quiet = {.style = GR_REPORT_NONE};

/* ---- Helpers --------------------------------------------------------------------------------- */

typedef struct member_arg {
    const char *folder;
    const support_job *job;
} member_arg;

/* Trains, and leaves status and sentence of this rank in <folder>/rank.<rank>. */
static int train_member(int rank, gr_comm *comm, void *arg)
{
    const member_arg *in = arg;
    char path[SUPPORT_PATH_BYTES + 32];
    gr_job_overrides overrides = {.workers = gr_comm_size(comm)};
    gr_job *job = NULL;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/job.yaml", in->folder);
    gr_status status = gr_job_open(path, &overrides, &job, &diag);
    if (status == GR_OK) {
        status = gr_train_run(job, &comm, &quiet, &diag);
        gr_job_close(job);
    }
    snprintf(path, sizeof path, "%s/rank.%d", in->folder, rank);
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        fprintf(file, "%d %s\n", status, diag.text);
        fclose(file);
    }
    return status == GR_OK ? 0 : 1;
}

/* The value of a key in the last line of <folder>/out/metrics.jsonl; a new reference. */
static json_t *end_value(const char *folder, const char *key)
{
    char path[SUPPORT_PATH_BYTES + 32];
    char *text = NULL;
    size_t size = 0;
    gr_diag diag = {0};
    snprintf(path, sizeof path, "%s/out/metrics.jsonl", folder);
    assert_int_equal(gr_file_read(path, 1 << 20, &text, &size, &diag), GR_OK);
    assert_true(size > 1 && text[size - 1] == '\n');
    text[size - 1] = '\0';
    char *line = strrchr(text, '\n');
    json_t *object = json_loads(line != NULL ? line + 1 : text, 0, NULL);
    assert_non_null(object);
    json_t *value = json_incref(json_object_get(object, key));
    assert_non_null(value);
    json_decref(object);
    free(text);
    return value;
}

static void end_sha(const char *folder, char sha_out[SHA_BYTES])
{
    json_t *value = end_value(folder, "weights_sha256");
    snprintf(sha_out, SHA_BYTES, "%s", json_string_value(value));
    assert_int_equal(strlen(sha_out), 64);
    json_decref(value);
}

static void train_group(const support_job *job, int workers, const char *link,
                        char sha_out[SHA_BYTES])
{
    char folder[SUPPORT_PATH_BYTES];
    int codes[WORKERS_MAX] = {0};
    support_folder(folder);
    support_write(folder, job);
    support_group(workers, link, train_member, &(member_arg){folder, job}, codes);
    for (int rank = 0; rank < workers; rank++) {
        if (codes[rank] != 0) {
            fail_msg("rank %d of %d over %s ended with %d; see %s", rank, workers, link,
                     codes[rank], folder);
        }
    }
    end_sha(folder, sha_out);
    support_clean(folder);
}

static void same_for_all(const support_job *job, const int *worlds, int count, const char *link,
                         char sha_out[SHA_BYTES])
{
    train_group(job, 1, link, sha_out);
    for (int i = 0; i < count; i++) {
        char sha[SHA_BYTES];
        train_group(job, worlds[i], link, sha);
        if (strcmp(sha, sha_out) != 0) {
            fail_msg("%d workers over %s end with other weights than one", worlds[i], link);
        }
    }
}

/* ---- One worker against a naive loop --------------------------------------------------------- */

typedef struct naive_run {
    gr_job *job;
    gr_model *model;
    float *x;
    int32_t *labels;
    int64_t *numbers;
    double loss; /* of the last step, added in f32 in tree order */
} naive_run;

/* The gradient of shards [first, first + count), the tree's way, written down as it is defined. */
static float *naive_sum(naive_run *n, const float *values, uint64_t step, int first, int count,
                        float *loss_out)
{
    size_t length = gr_model_values(n->model);
    gr_diag diag = {0};
    float *sum = aligned_alloc(64, (length * sizeof(float) + 127) / 64 * 64);
    memset(sum, 0, length * sizeof *sum);
    if (count > 1) {
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
    const gr_job *job = n->job;
    gr_order order;
    gr_order_init(&order, (uint64_t)job->config.seed, step / job->steps_per_epoch,
                  (uint64_t)gr_dataset_count(job->dataset, GR_PART_TRAIN));
    uint64_t at = (uint64_t)first * (uint64_t)job->shard_batch;
    uint64_t position = step % job->steps_per_epoch * (uint64_t)job->config.global_batch + at;
    for (int64_t i = 0; i < job->shard_batch; i++) {
        n->numbers[i] = (int64_t)gr_order_at(&order, position + (uint64_t)i);
    }
    assert_int_equal(gr_dataset_read(job->dataset, GR_PART_TRAIN, n->numbers, (int)job->shard_batch,
                                     n->x, n->labels, NULL, &diag),
                     GR_OK);
    gr_batch batch = {.x = n->x, .labels = n->labels, .step = step, .sample_first = at};
    gr_batch_result result;
    assert_int_equal(gr_model_forward(n->model, values, &batch, &result, &diag), GR_OK);
    assert_int_equal(gr_model_backward(n->model, values, &batch, sum, NULL, NULL, &diag), GR_OK);
    *loss_out = (float)(result.loss / (double)job->config.global_batch);
    return sum;
}

static void naive_train(gr_job *job, float *values, int steps, gr_meter *meter)
{
    naive_run n = {.job = job};
    gr_diag diag = {0};
    gr_optimizer *optimizer = NULL;
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->shard_batch,
                              .gradient_scale = (float)(1.0 / (double)job->config.global_batch),
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    assert_int_equal(gr_model_create(&config, &n.model, &diag), GR_OK);
    assert_int_equal(gr_optimizer_create(&job->optimizer, n.model, &optimizer, &diag), GR_OK);
    n.x = calloc((size_t)job->shard_batch * 64, sizeof *n.x);
    n.labels = calloc((size_t)job->shard_batch, sizeof *n.labels);
    n.numbers = calloc((size_t)job->shard_batch, sizeof *n.numbers);
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
    gr_model_destroy(n.model);
    free(n.x);
    free(n.labels);
    free(n.numbers);
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
    assert_int_equal(gr_comm_create(&comm, &diag), GR_OK);
    assert_int_equal(gr_trainer_init(&trainer, job, comm, &diag), GR_OK);
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

static void a_run_and_its_evaluation(void **state)
{
    (void)state;
    char folder[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 32], sha[SHA_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_eval_result result;
    support_folder(folder);
    support_job shape = {.shards = 4, .steps = 150, .global_batch = 64};
    gr_job *job = support_open(folder, &shape, 1);
    assert_int_equal(gr_comm_create(&comm, &diag), GR_OK);
    if (gr_train_run(job, &comm, &quiet, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    json_t *accuracy = end_value(folder, "test_accuracy");
    json_t *loss = end_value(folder, "test_loss");
    end_sha(folder, sha);
    assert_true(json_real_value(accuracy) > 0.85);
    snprintf(path, sizeof path, "%s/out/model.safetensors", folder);
    if (gr_eval_run(job, path, &result, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(result.samples, 360);
    assert_true(result.accuracy == json_real_value(accuracy));
    assert_true(result.loss == json_real_value(loss));
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
    assert_int_equal(gr_train_run(job, &comm, &quiet, &diag), GR_OK);
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
    char sha[SHA_BYTES];
    support_job job = {.model = support_cnn, .shards = 8, .steps = 12, .global_batch = 64};
    same_for_all(&job, worlds, 4, "shm", sha);
}

static void same_bits_over_tcp(void **state)
{
    (void)state;
    char sha[SHA_BYTES], other[SHA_BYTES];
    support_job job = {.model = support_cnn, .shards = 8, .steps = 12, .global_batch = 64};
    same_for_all(&job, (const int[]){3, 8}, 2, "tcp", sha);
    train_group(&job, 2, "shm", other);
    assert_string_equal(sha, other);
}

/* Ragged trees, gradient accumulation, clipping, Adam; small buckets or none on the way. */
static void same_bits_in_other_settings(void **state)
{
    (void)state;
    char sha[SHA_BYTES], other[SHA_BYTES];
    support_job job = {.shards = 7,
                       .steps = 10,
                       .global_batch = 56,
                       .micro_batches = 2,
                       .optimizer = "  kind: adam\n  learning_rate: 0.002\n  clip_norm: 0.5\n"};
    same_for_all(&job, (const int[]){2, 5}, 2, "shm", sha);
    job.distribution = "  overlap: false\n";
    train_group(&job, 3, "shm", other);
    assert_string_equal(sha, other);
    job.distribution = "  bucket_bytes_first: 1024\n  bucket_bytes: 2048\n";
    train_group(&job, 4, "shm", other);
    assert_string_equal(sha, other);
    job.optimizer = NULL;
    job.distribution = "  bucket_bytes_first: 1024\n  bucket_bytes: 2048\n";
    same_for_all(&job, (const int[]){4}, 1, "shm", other);
    assert_string_not_equal(sha, other);
}

/* Without exactness all ranks still end with the same weights: the run itself compares them. */
static void inexact_runs_agree(void **state)
{
    (void)state;
    char sha[SHA_BYTES];
    support_job job = {
        .shards = 6, .steps = 8, .global_batch = 48, .distribution = "  exact: false\n"};
    train_group(&job, 4, "shm", sha);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

static void read_sentence(const char *folder, int rank, int *status_out, char *text_out,
                          size_t size)
{
    char path[SUPPORT_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/rank.%d", folder, rank);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d ", status_out), 1);
    assert_non_null(fgets(text_out, (int)size, file));
    fclose(file);
}

static void all_ranks_name_the_nan(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; workers++) {
        char folder[SUPPORT_PATH_BYTES], first[600], text[600];
        int codes[WORKERS_MAX] = {0}, status = 0;
        support_folder(folder);
        /* Without a relu that could die, the weights of two layers drive each other up. */
        support_job job = {.model = "  - flatten\n  - linear: 32\n  - linear: 10\n",
                           .shards = 4,
                           .steps = 100,
                           .global_batch = 64,
                           .optimizer = "  kind: sgd\n  learning_rate: 1e6\n"};
        support_write(folder, &job);
        support_group(workers, "shm", train_member, &(member_arg){folder, &job}, codes);
        for (int rank = 0; rank < workers; rank++) {
            assert_int_equal(codes[rank], 1);
            read_sentence(folder, rank, &status, rank == 0 ? first : text, sizeof text);
            assert_int_equal(status, GR_E_NOT_FINITE);
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
    gr_order order;
    gr_order_init(&order, 3, 0, CROOKED_SAMPLES);
    int position = 0;
    while (gr_order_at(&order, (uint64_t)position) != CROOKED) {
        position++;
    }
    int shard = position / (CROOKED_SAMPLES / CROOKED_SHARDS), owner = -1;
    for (int rank = 0; rank < 3; rank++) {
        int first, count;
        gr_shard_range(CROOKED_SHARDS, 3, rank, &first, &count);
        owner = shard >= first && shard < first + count ? rank : owner;
    }
    char folder[SUPPORT_PATH_BYTES], text[600], wanted[200];
    int codes[WORKERS_MAX] = {0}, status = 0;
    support_folder(folder);
    write_crooked(folder);
    support_group(3, "shm", train_member, &(member_arg){folder, NULL}, codes);
    snprintf(
        wanted, sizeof wanted,
        "in the output of layer \"first\" on rank %d (shard %d); lower the learning rate (0.5)",
        owner, shard);
    for (int rank = 0; rank < 3; rank++) {
        read_sentence(folder, rank, &status, text, sizeof text);
        assert_int_equal(status, GR_E_NOT_FINITE);
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
    assert_int_equal(gr_comm_create(&comm, &diag), GR_OK);
    assert_int_equal(gr_trainer_init(&trainer, job, comm, &diag), GR_OK);
    assert_int_equal(gr_trainer_step(&trainer, 0, &meter, &diag), GR_OK);
    const gr_tensor_info *tensor = gr_model_tensor(trainer.model, 0);
    size_t at = GR_STEP_HEAD + tensor->offset + tensor->count - 1;
    trainer.vectors[0][at] = (float)INFINITY;
    assert_int_equal(gr_not_finite_fail(&trainer, 1, INT64_MAX, trainer.vectors[0], at, &diag),
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
        cmocka_unit_test(one_worker_is_the_naive_loop), cmocka_unit_test(a_run_and_its_evaluation),
        cmocka_unit_test(same_bits_over_shm),           cmocka_unit_test(same_bits_over_tcp),
        cmocka_unit_test(same_bits_in_other_settings),  cmocka_unit_test(inexact_runs_agree),
        cmocka_unit_test(all_ranks_name_the_nan),       cmocka_unit_test(the_right_shard_is_named),
        cmocka_unit_test(an_overflowing_sum_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
