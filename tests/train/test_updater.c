/* SPDX-License-Identifier: Apache-2.0 */

/* What a server does to blocks has the bits of what the trainer does to its
 * weights. */

#include "support_train.h"

#include "base/fail.h"
#include "ps/place.h"
#include "train/step.h"
#include "train/updater.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, TENSORS_MAX = 32 };

/* A server's view of a training: values, states and an updater for each tensor.
 */
typedef struct server {
    gr_ps_updater_ops ops;
    const gr_trainer *trainer;
    void *updaters[TENSORS_MAX];
    float *values, *states[GR_OPTIMIZER_STATES_MAX];
    uint32_t piece; /* elements that a block has; 0: as placement cuts */
} server;

static void server_open(server *s, const gr_trainer *trainer, uint32_t piece)
{
    *s = (server){.ops = gr_updater_ops(), .trainer = trainer, .piece = piece};
    size_t bytes = gr_model_values(trainer->model) * sizeof(float);
    assert_true(gr_model_tensors(trainer->model) <= TENSORS_MAX);
    s->values = malloc(bytes);
    assert_non_null(s->values);
    memcpy(s->values, trainer->values, bytes);
    for (int i = 0; i < GR_OPTIMIZER_STATES_MAX; i++) {
        s->states[i] = calloc(1, bytes);
        assert_non_null(s->states[i]);
    }
    for (int i = 0; i < gr_model_tensors(trainer->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(trainer->model, i);
        char text[GR_UPDATER_TEXT_BYTES];
        gr_diag diag;
        gr_updater_text(&trainer->job->optimizer, info->decay, text);
        gr_ps_spec tensor = {.name = info->name, .elements = info->count, .optimizer = text};
        if (s->ops.create(NULL, &tensor, &s->updaters[i], &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
    }
}

static void server_close(server *s)
{
    for (int i = 0; i < gr_model_tensors(s->trainer->model); i++) {
        s->ops.destroy(s->updaters[i]);
    }
    free(s->values);
    for (int i = 0; i < GR_OPTIMIZER_STATES_MAX; i++) {
        free(s->states[i]);
    }
}

static void server_update(server *s, uint64_t step, double rate, float factor)
{
    const float *gradients = s->trainer->gen.vectors[0] + GR_STEP_HEADER;
    for (int i = 0; i < gr_model_tensors(s->trainer->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(s->trainer->model, i);
        size_t stop = info->statistic ? 0 : info->offset + info->count;
        size_t piece = s->piece > 0 ? s->piece : gr_ps_cut_of(info->count).block;
        for (size_t at = info->offset, count; at < stop; at += count) {
            count = piece < stop - at ? piece : stop - at;
            float *states[] = {s->states[0] + at, s->states[1] + at};
            assert_true(s->ops.update(s->updaters[i], step, rate, factor, s->values + at, states,
                                      gradients + at, count));
        }
    }
}

static void expect_trainer_values(const server *s)
{
    for (int i = 0; i < gr_model_tensors(s->trainer->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(s->trainer->model, i);
        if (!info->statistic) {
            assert_memory_equal(s->values + info->offset, s->trainer->values + info->offset,
                                info->count * sizeof(float));
        }
    }
}

static void train(const char *optimizer, int states)
{
    char folder[SUPPORT_PATH_BYTES];
    gr_diag diag = {0};
    gr_comm *comm = NULL;
    gr_trainer trainer;
    gr_meter meter = {0};
    support_folder(folder);
    const support_job shape = {.model = support_cnn,
                               .optimizer = optimizer,
                               .shards = 3,
                               .steps = STEPS,
                               .global_batch = 24};
    gr_job *job = support_open(folder, &shape, 1);
    assert_int_equal(gr_comm_create(NULL, &comm, &diag), GR_OK);
    assert_int_equal(support_trainer_init(&trainer, job, comm, &diag), GR_OK);
    server servers[3];
    for (int i = 0; i < 3; i++) {
        server_open(&servers[i], &trainer, (uint32_t[]){0, 1, 37}[i]);
        assert_int_equal(servers[i].ops.states(servers[i].updaters[0]), states);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        if (gr_trainer_step(&trainer, step, &meter, &diag) != GR_OK) {
            fail_msg("%s", diag.text);
        }
        double rate = gr_learning_rate(&job->optimizer, step, (double)job->steps_per_epoch,
                                       job->total_steps, job->config.global_batch);
        double limit = job->optimizer.clip_norm, norm = 0.0;
        if (limit > 0.0) {
            norm = sqrt(
                gr_gradient_square_sum(trainer.model, trainer.gen.vectors[0] + GR_STEP_HEADER));
            assert_true(norm > limit); /* else nothing is tested */
        }
        for (int i = 0; i < 3; i++) {
            server_update(&servers[i], step, rate, limit > 0.0 ? (float)(limit / norm) : 1.0f);
            expect_trainer_values(&servers[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        server_close(&servers[i]);
    }
    gr_trainer_fini(&trainer);
    gr_comm_destroy(comm);
    gr_job_close(job);
    support_clean(folder);
}

static void servers_train_like_the_trainer(void **state)
{
    (void)state;
    train("  kind: sgd\n  momentum: 0\n", 1);
    train("  kind: sgd\n  momentum: 0.9\n  weight_decay: 0.01\n", 1);
    train("  kind: sgd\n  nesterov: true\n  weight_decay: 0.01\n  clip_norm: "
          "0.001\n",
          1);
    train("  kind: adam\n  weight_decay: 0.01\n  schedule: cosine\n", 2);
    train("  kind: adamw\n  weight_decay: 0.01\n  beta2: 0.98\n  epsilon: 1e-7\n", 2);
}

static gr_status created(const char *text, gr_diag *diag)
{
    gr_ps_updater_ops ops = gr_updater_ops();
    gr_ps_spec tensor = {.name = "fc1.weight", .elements = 10, .optimizer = text};
    void *updater = NULL;
    gr_status status = ops.create(NULL, &tensor, &updater, diag);
    assert_true((updater != NULL) == (status == GR_OK));
    ops.destroy(updater);
    return status;
}

static void expect_refused(const char *text, const char *said)
{
    gr_diag diag = {0};
    assert_int_equal(created(text, &diag), GR_E_INVALID);
    if (strstr(diag.text, said) == NULL || strstr(diag.text, "fc1.weight") == NULL) {
        fail_msg("%s", diag.text);
    }
}

static void texts_are_read_or_refused(void **state)
{
    (void)state;
    gr_diag diag = {0};
    assert_int_equal(created("", &diag), GR_OK);
    assert_int_equal(created(NULL, &diag), GR_OK);
    assert_int_equal(created("kind: adam\nlearning_rate: 0.1\nschedule: cosine\n", &diag), GR_OK);
    assert_int_equal(created("{\"kind\": \"sgd\", \"nesterov\": true}", &diag), GR_OK);
    expect_refused("{kind: adamm}", "adam");
    expect_refused("{momentun: 0.9}", "momentum");
    expect_refused("{momentum: 2}", "momentum");
    expect_refused("{momentum: ", "fc1.weight");
    expect_refused("[1, 2]", "fc1.weight");
    expect_refused("{clip_norm: 1}", "clip_norm needs the norm of the whole gradient");
}

/* Whatever was there before, and however it is cut. */
static void a_sum_is_the_gradient_itself(void **state)
{
    (void)state;
    gr_ps_updater_ops ops = gr_updater_ops();
    gr_ps_spec tensor = {.name = "fc1.weight", .optimizer = GR_UPDATER_SUM};
    gr_diag diag;
    void *updater = NULL;
    float values[3] = {5.0f, 6.0f, 7.0f};
    const float gradient[3] = {1.0f, -2.0f, 0.5f}, infinite[1] = {INFINITY};
    assert_int_equal(ops.create(NULL, &tensor, &updater, &diag), GR_OK);
    assert_int_equal(ops.states(updater), 0);
    assert_true(ops.update(updater, 9, 0.1, 2.0f, values, NULL, gradient, 2));
    assert_true(values[0] == 2.0f && values[1] == -4.0f && values[2] == 7.0f);
    assert_false(ops.update(updater, 9, 0.1, 1.0f, values, NULL, infinite, 1));
    ops.destroy(updater);
    assert_null(gr_updater_state_name(GR_UPDATER_SUM, 0));
}

static void a_text_says_what_the_config_does(void **state)
{
    (void)state;
    gr_optimizer_config config = {.kind = GR_OPT_ADAMW,
                                  .learning_rate = 0.1,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1 / 3,
                                  .clip_norm = 5};
    char text[GR_UPDATER_TEXT_BYTES], again[GR_UPDATER_TEXT_BYTES];
    gr_diag diag = {0};
    gr_updater_text(&config, false, text);
    assert_string_equal(text,
                        "{kind: adamw, weight_decay: 0, beta1: 0.9, beta2: 0.999, epsilon: 1e-08}");
    assert_int_equal(created(text, &diag), GR_OK);
    gr_updater_text(&config, true, text);
    assert_non_null(strstr(text, "weight_decay: 0.03333333333333333"));
    config.learning_rate = 7; /* each push names its own */
    gr_updater_text(&config, true, again);
    assert_string_equal(text, again);
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    gr_ps_updater_ops ops = gr_updater_ops();
    gr_ps_spec tensor = {.name = "bias", .elements = 3, .optimizer = "{momentum: 0}"};
    gr_diag diag;
    void *updater = NULL;
    assert_int_equal(ops.create(NULL, &tensor, &updater, &diag), GR_OK);
    float values[3] = {1, 2, 3}, momentum[3] = {0}, gradient[3] = {1, INFINITY, NAN};
    float *states[] = {momentum};
    assert_true(ops.update(updater, 0, 0.5, 1, values, states, gradient, 1));
    assert_true(values[0] > 0.49f && values[0] < 0.51f);
    assert_false(ops.update(updater, 0, 0.5, 1, values + 1, states, gradient + 1, 1));
    assert_false(ops.update(updater, 0, 0.5, 1, values + 2, states, gradient + 2, 1));
    ops.destroy(updater);
}

int main(int argc, char **argv)
{
    (void)argc;
    support_one_thread(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_train_like_the_trainer),
        cmocka_unit_test(texts_are_read_or_refused),
        cmocka_unit_test(a_sum_is_the_gradient_itself),
        cmocka_unit_test(a_text_says_what_the_config_does),
        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
