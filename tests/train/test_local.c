/* SPDX-License-Identifier: Apache-2.0 */

/* Strategy local: against a naive loop, bit for bit; against allreduce, where both must do the same
 * thing; and in groups of any size. */

#include "support_train.h"

#include "base/fail.h"
#include "train/step.h"
#include "train/strategy/local.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOCAL(every) "  strategy: local\n  sync_every: " every "\n"

enum { SHARDS_MAX = 8, STEPS = 10 };

/* Four steps an epoch: rounds of three steps end with these. */
enum { BATCH_OF_FOUR = 352 };
static const int ends_of_three[] = {3, 4, 7, 8, STEPS};

/* ---- Rounds ---------------------------------------------------------------------------------- */

static void rounds_end_with_epochs(void **state)
{
    (void)state;
    gr_job job = {.steps_per_epoch = 4, .sync_steps = 3, .total_steps = STEPS};
    int at = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_int_equal(gr_local_round_end(&job, step), ends_of_three[at]);
        at += (int)step + 1 == ends_of_three[at];
    }
    job.sync_steps = 1;
    assert_int_equal(gr_local_round_end(&job, 0), 1);
    assert_int_equal(gr_local_round_end(&job, 3), 4);
    job.sync_steps = 4;
    assert_int_equal(gr_local_round_end(&job, 0), 4);
    assert_int_equal(gr_local_round_end(&job, 7), 8);
    assert_int_equal(gr_local_round_end(&job, 8), STEPS);
}

/* ---- One worker against a naive loop --------------------------------------------------------- */

/* All parts of the state of a model: the weights, then the optimizer's vectors. */
enum { PARTS_MAX = 3 };

typedef struct model_state {
    float *part[PARTS_MAX];
    gr_optimizer *optimizer;
} model_state;

typedef struct naive_run {
    support_naive naive;
    int parts, averaged; /* of these the first so many */
    size_t length;
    model_state shard[SHARDS_MAX];
    float *weights, *outer; /* what all have alike */
    double loss;
} naive_run;

static float *new_vector(size_t length)
{
    float *made = aligned_alloc(64, (length * sizeof *made + 127) / 64 * 64);
    memset(made, 0, length * sizeof *made);
    return made;
}

static void naive_init(naive_run *n, const gr_job *job)
{
    gr_diag diag = {0};
    support_naive_init(&n->naive, job, job->shard_batch);
    n->parts = 1 + gr_optimizer_states(&job->optimizer);
    n->averaged = job->distribution.local_state == GR_LOCAL_KEEP ? 1 : n->parts;
    n->length = gr_model_values(n->naive.model);
    n->weights = new_vector(n->length);
    n->outer = new_vector(n->length);
    gr_model_init_weights(n->naive.model, n->weights);
    for (int s = 0; s < job->shards; s++) {
        model_state *shard = &n->shard[s];
        assert_int_equal(
            gr_optimizer_create(&job->optimizer, n->naive.model, &shard->optimizer, &diag), GR_OK);
        shard->part[0] = new_vector(n->length);
        memcpy(shard->part[0], n->weights, n->length * sizeof *n->weights);
        for (int p = 1; p < n->parts; p++) {
            const char *name;
            shard->part[p] = gr_optimizer_state(shard->optimizer, p - 1, &name);
        }
    }
}

static void naive_fini(naive_run *n)
{
    for (int s = 0; s < SHARDS_MAX; s++) {
        gr_optimizer_destroy(n->shard[s].optimizer);
        free(n->shard[s].part[0]);
    }
    free(n->weights);
    free(n->outer);
    support_naive_fini(&n->naive);
}

static void naive_step(naive_run *n, int step)
{
    const gr_job *job = n->naive.job;
    float *gradient = new_vector(n->length);
    for (int s = 0; s < job->shards; s++) {
        model_state *shard = &n->shard[s];
        n->loss += support_naive_gradient(&n->naive, shard->part[0], (uint64_t)step, s, gradient) /
                   (double)job->config.global_batch;
        gr_optimizer_begin(shard->optimizer, (uint64_t)step,
                           gr_learning_rate(&job->optimizer, (uint64_t)step,
                                            (double)job->steps_per_epoch, job->total_steps,
                                            job->config.global_batch),
                           1.0f);
        gr_optimizer_update(shard->optimizer, shard->part[0], gradient, 0, n->length);
        gr_model_update_statistics(n->naive.model, shard->part[0], gradient, 1.0f);
    }
    free(gradient);
}

/* One element of a part, added over shards [first, first + count) in the order of the tree. */
static float tree_sum(const naive_run *n, int part, size_t at, int first, int count)
{
    if (count == 1) {
        return n->shard[first].part[part][at];
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return tree_sum(n, part, at, first, left) + tree_sum(n, part, at, first + left, count - left);
}

static void naive_average(naive_run *n)
{
    const gr_job *job = n->naive.job;
    int tensor = 0;
    while (gr_model_tensor(n->naive.model, tensor)->statistic) {
        tensor++;
    }
    size_t parameters = gr_model_tensor(n->naive.model, tensor)->offset;
    for (int part = 0; part < n->averaged; part++) {
        for (size_t at = 0; at < n->length; at++) {
            float value = tree_sum(n, part, at, 0, job->shards) / (float)job->shards;
            if (part == 0 && job->outer.wanted && at >= parameters) {
                n->outer[at] = (float)job->outer.momentum * n->outer[at] + (n->weights[at] - value);
                value = n->weights[at] - (float)job->outer.learning_rate * n->outer[at];
            }
            if (part == 0) {
                n->weights[at] = value;
            }
            for (int s = 0; s < job->shards; s++) {
                n->shard[s].part[part][at] = value;
            }
        }
    }
}

static void compare(const float *values, const float *wanted, size_t length, double tolerance)
{
    for (size_t i = 0; i < length; i++) {
        double difference = fabs((double)values[i] - (double)wanted[i]);
        if (difference > tolerance * (1 + fabs((double)wanted[i]))) {
            fail_msg("value %zu is %g, not %g", i, (double)values[i], (double)wanted[i]);
        }
    }
}

static void against_naive(const support_job *shape)
{
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_trainer trainer;
    gr_meter meter = {0};
    naive_run n = {.loss = 0};
    support_folder(folder);
    gr_job *job = support_open(folder, shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
    naive_init(&n, job);
    int at = 0;
    for (int step = 0; step < shape->steps; step++) {
        if (gr_trainer_step(&trainer, (uint64_t)step, &meter, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
        naive_step(&n, step);
        bool ends = step + 1 == ends_of_three[at];
        at += ends;
        assert_int_equal(trainer.step.inside_round, !ends);
        if (ends) {
            naive_average(&n);
        }
        compare(trainer.values, n.weights, n.length, 0);
    }
    for (int part = 1; part < n.averaged; part++) {
        const char *name;
        compare(gr_trainer_state(&trainer, part - 1, &name), n.shard[0].part[part], n.length, 0);
    }
    assert_true(fabs(meter.loss - n.loss) < 1e-5 * n.loss);
    assert_int_equal(meter.samples, (int64_t)shape->steps * shape->global_batch);
    naive_fini(&n);
    gr_trainer_fini(&trainer);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

static const char adam[] = "  kind: adam\n  learning_rate: 0.002\n";

static void one_worker_is_the_naive_loop(void **state)
{
    (void)state;
    support_job job = {
        .shards = 4, .steps = STEPS, .global_batch = BATCH_OF_FOUR, .distribution = LOCAL("3")};
    against_naive(&job);
    job.optimizer = adam;
    job.model = support_cnn;
    against_naive(&job);
    job.distribution = LOCAL("3") "  local_state: keep\n";
    against_naive(&job);
    job.optimizer = NULL;
    job.distribution = LOCAL("3 steps") "  outer: {momentum: 0.5, learning_rate: 0.8}\n";
    against_naive(&job);
    job.distribution = LOCAL("0.75 epochs"); /* three of four steps */
    job.shards = 1;
    against_naive(&job);
}

/* ---- What must be like allreduce ------------------------------------------------------------- */

/* A copy of the weights after all steps with one worker; the caller's. */
static float *train_alone(const support_job *shape, size_t *length_out)
{
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_trainer trainer;
    gr_meter meter = {0};
    support_folder(folder);
    gr_job *job = support_open(folder, shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
    for (int step = 0; step < shape->steps; step++) {
        assert_int_equal(gr_trainer_step(&trainer, (uint64_t)step, &meter, &diag), GR_OK);
    }
    *length_out = gr_model_values(trainer.model);
    float *values = new_vector(*length_out);
    memcpy(values, trainer.values, *length_out * sizeof *values);
    gr_trainer_fini(&trainer);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
    return values;
}

/* The mean of steps along the shards' gradients is a step along the mean gradient. */
static void averaged_in_each_step_sgd_is_allreduce(void **state)
{
    (void)state;
    static const char *const momenta[] = {"  kind: sgd\n  learning_rate: 0.1\n  momentum: 0\n",
                                          "  kind: sgd\n  learning_rate: 0.05\n  momentum: 0.9\n"};
    for (int i = 0; i < 2; i++) {
        support_job job = {.model = support_cnn,
                           .optimizer = momenta[i],
                           .shards = 5,
                           .steps = 12,
                           .global_batch = 80};
        size_t length = 0;
        float *wanted = train_alone(&job, &length);
        job.distribution = LOCAL("1");
        float *values = train_alone(&job, &length);
        compare(values, wanted, length, 2e-5);
        job.distribution = LOCAL("2"); /* the comparison can tell */
        float *others = train_alone(&job, &length);
        double most = 0;
        for (size_t at = 0; at < length; at++) {
            most = fmax(most, fabs((double)others[at] - (double)wanted[at]));
        }
        assert_true(most > 1e-3);
        free(others);
        free(values);
        free(wanted);
    }
}

/* One shard has nobody to be averaged with. */
static void one_shard_is_allreduce(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES], other[SUPPORT_SHA_BYTES];
    support_job job = {.model = support_cnn,
                       .shards = 1,
                       .steps = STEPS,
                       .global_batch = 64,
                       .micro_batches = 2,
                       .optimizer = "  kind: adamw\n  learning_rate: 0.002\n  clip_norm: 0.5\n"};
    support_train_group(&job, 1, "shm", sha);
    job.distribution = LOCAL("4 steps");
    support_train_group(&job, 1, "shm", other);
    assert_string_equal(sha, other);
}

/* ---- The end of a round ---------------------------------------------------------------------- */

static void step_through(gr_trainer *trainer, uint64_t first, uint64_t end)
{
    gr_meter meter = {0};
    gr_diag diag = {0};
    for (uint64_t step = first; step < end; step++) {
        assert_int_equal(gr_trainer_step(trainer, step, &meter, &diag), GR_OK);
    }
}

/* A round is as if it had never begun; where shards keep what would have to be taken back, it is
 * finished. A checkpoint that is due within it comes with its end. */
static void who_is_asked_to_end_does_not_wait(void **state)
{
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        char folder[SUPPORT_PATH_BYTES];
        gr_diag diag = {0};
        gr_comm *comm = NULL;
        gr_trainer trainer;
        support_job shape = {.shards = 2, .steps = 22, .global_batch = 64};
        shape.distribution = keep ? LOCAL("8") "  local_state: keep\n" : LOCAL("8");
        support_folder(folder);
        gr_job *job = support_open(folder, &shape, 1);
        assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
        assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
        step_through(&trainer, 0, 3);
        trainer.step.asks_save = true;
        step_through(&trainer, 3, 4);
        trainer.step.asks_save = false;
        step_through(&trainer, 4, 7);
        assert_false(trainer.step.save || trainer.step.stop);
        step_through(&trainer, 7, 8);
        assert_true(trainer.step.save && !trainer.step.stop && !trainer.step.inside_round);
        size_t length = gr_model_values(trainer.model);
        float *before = new_vector(length);
        memcpy(before, trainer.values, length * sizeof *before);
        step_through(&trainer, 8, 10);
        trainer.step.asks_stop = true;
        step_through(&trainer, 10, 11);
        trainer.step.asks_stop = false;
        assert_int_equal(trainer.step.stop, !keep);
        assert_int_equal(trainer.step.rolled_back, !keep);
        assert_int_equal(trainer.step.inside_round, keep);
        assert_memory_equal(trainer.values, before, length * sizeof *before);
        if (keep) {
            step_through(&trainer, 11, 16);
            assert_true(trainer.step.stop && !trainer.step.rolled_back &&
                        !trainer.step.inside_round);
        }
        free(before);
        gr_trainer_fini(&trainer);
        gr_comm_destroy(comm);
        gr_job_close(job);
        support_clean(folder);
    }
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static void same_bits_for_any_number_of_workers(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES], other[SUPPORT_SHA_BYTES];
    support_job job = {.model = support_cnn,
                       .shards = 4,
                       .steps = STEPS,
                       .global_batch = BATCH_OF_FOUR,
                       .distribution = LOCAL("3 steps")};
    support_same_for_all(&job, (const int[]){2, 3, 4}, 3, "shm", sha);
    support_train_group(&job, 2, "tcp", other);
    assert_string_equal(sha, other);
    job.distribution = LOCAL("epoch");
    support_train_group(&job, 2, "shm", other);
    assert_string_not_equal(sha, other);
    job.distribution = LOCAL("3 steps") "  local_state: keep\n";
    support_same_for_all(&job, (const int[]){3}, 1, "shm", other);
    assert_string_not_equal(sha, other);
}

static void same_bits_in_other_settings(void **state)
{
    (void)state;
    char sha[SUPPORT_SHA_BYTES];
    support_job job = {.shards = 7,
                       .steps = STEPS,
                       .global_batch = 56,
                       .micro_batches = 2,
                       .optimizer = "  kind: adam\n  learning_rate: 0.002\n  clip_norm: 0.5\n",
                       .distribution = LOCAL("4 steps") "  outer: {nesterov: yes}\n"
                                                        "  bucket_bytes: 2048\n"};
    support_same_for_all(&job, (const int[]){2, 5}, 2, "shm", sha);
    job.distribution = LOCAL("4 steps") "  exact: false\n"; /* the end compares the ranks */
    support_train_group(&job, 3, "shm", sha);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

/* A NaN in the middle of a round is told of at its end, with the step and the place where it
 * was. */
static void a_nan_is_told_of_with_its_step(void **state)
{
    (void)state;
    char first[SUPPORT_SENTENCE_BYTES] = "";
    for (int workers = 1; workers <= 3; workers++) {
        char folder[SUPPORT_PATH_BYTES], text[SUPPORT_SENTENCE_BYTES];
        int codes[3] = {0};
        support_folder(folder);
        support_job job = {.model = "  - flatten\n  - linear: 32\n  - linear: 10\n",
                           .shards = 4,
                           .steps = 22,
                           .global_batch = 64,
                           .optimizer = "  kind: sgd\n  learning_rate: 1e6\n",
                           .distribution = LOCAL("epoch")};
        support_write(folder, &job);
        support_group(workers, "shm", support_train_member, folder, codes);
        for (int rank = 0; rank < workers; rank++) {
            assert_int_equal(codes[rank], 1);
            assert_int_equal(support_read_end(folder, rank, text), GR_E_NOT_FINITE);
            char *who = strstr(text, " on rank "), *shard = strstr(text, " (shard ");
            assert_true(who != NULL && shard != NULL && who < shard);
            memmove(who, shard, strlen(shard) + 1); /* the shard has another rank each time */
            if (first[0] == '\0') {
                snprintf(first, sizeof first, "%s", text);
            }
            assert_string_equal(first, text);
        }
        support_clean(folder);
    }
    int step = 0;
    assert_int_equal(sscanf(first, "step %d: the loss became ", &step), 1);
    assert_in_range(step, 2, 21); /* not the last one, with which the round ends */
    assert_non_null(strstr(first, "first seen in the output of layer \"linear"));
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_end_with_epochs),
        cmocka_unit_test(one_worker_is_the_naive_loop),
        cmocka_unit_test(averaged_in_each_step_sgd_is_allreduce),
        cmocka_unit_test(one_shard_is_allreduce),
        cmocka_unit_test(who_is_asked_to_end_does_not_wait),
        cmocka_unit_test(same_bits_for_any_number_of_workers),
        cmocka_unit_test(same_bits_in_other_settings),
        cmocka_unit_test(a_nan_is_told_of_with_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
