/* SPDX-License-Identifier: Apache-2.0 */
/* Losses, dropout, batch statistics, the search for a number that is not finite, and learning. */
#include "support_nn.h"

#include "nn/loss.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Losses ---------------------------------------------------------------------------------- */

static gr_status cross_entropy(const float *outputs, const int32_t *labels, int64_t samples,
                               int64_t width, float scale, float *gradient,
                               gr_batch_result *result_out, gr_diag *diag)
{
    gr_batch batch = {.labels = labels};
    return gr_loss_ops_at(GR_LOSS_CROSS_ENTROPY)
        ->run(outputs, &batch, samples, width, scale, gradient, result_out, diag);
}

static void test_cross_entropy_is_stable(void **state)
{
    (void)state;
    const float logits[] = {1e4f,  0,      -1e4f, -1e4f,   0,       1e4f,
                            3e38f, -3e38f, 0,     1000.0f, 1001.0f, 999.0f};
    const int32_t labels[] = {0, 0, 1, 1};
    float gradient[12];
    gr_batch_result result;
    gr_diag diag;
    assert_int_equal(cross_entropy(logits, labels, 4, 3, 1.0f, gradient, &result, &diag), GR_OK);
    double last = log(1 + exp(-1) + exp(-2));
    assert_true(fabs(result.loss - (0.0 + 2e4 + 6e38 + last)) < 1e-6 * 6e38);
    assert_int_equal(result.correct, 2);
    assert_false(gr_any_not_finite(gradient, 12));
    assert_int_equal(cross_entropy(logits + 9, labels + 3, 1, 3, 2.0f, gradient, &result, &diag),
                     GR_OK);
    assert_true(fabs(result.loss - last) < 1e-12);
    double sum = 1 + exp(-1) + exp(-2);
    assert_true(fabs((double)gradient[0] - 2 * exp(-1) / sum) < 1e-7);
    assert_true(fabs((double)gradient[1] - 2 * (1 / sum - 1)) < 1e-7);
    assert_true(fabs((double)gradient[2] - 2 * exp(-2) / sum) < 1e-7);
}

static void test_cross_entropy_shows_nan(void **state)
{
    (void)state;
    const float logits[][3] = {{NAN, 1, 2}, {1, NAN, 2}, {1, 2, NAN}, {1, INFINITY, 2}};
    for (int i = 0; i < 4; i++) {
        const int32_t label = 0;
        gr_batch_result result;
        gr_diag diag;
        assert_int_equal(cross_entropy(logits[i], &label, 1, 3, 1.0f, NULL, &result, &diag), GR_OK);
        assert_false(result.loss < INFINITY);
    }
}

static void test_labels_outside_are_refused(void **state)
{
    (void)state;
    const float logits[3] = {0};
    for (int32_t label = -1; label <= 3; label += 4) {
        gr_batch_result result;
        gr_diag diag;
        assert_int_equal(cross_entropy(logits, &label, 1, 3, 1.0f, NULL, &result, &diag),
                         GR_E_INVALID);
        assert_non_null(strstr(diag.text, label < 0 ? "label -1" : "label 3"));
    }
}

static void test_mean_squared_error(void **state)
{
    (void)state;
    const float outputs[] = {1, 2, 3, 4}, targets[] = {1, 0, 3, 8};
    float gradient[4];
    gr_batch_result result;
    gr_batch batch = {.targets = targets};
    assert_int_equal(
        gr_loss_ops_at(GR_LOSS_MSE)->run(outputs, &batch, 2, 2, 0.5f, gradient, &result, NULL),
        GR_OK);
    assert_true(fabs(result.loss - (2.0 + 8.0)) < 1e-12);
    const float expected[] = {0, 1, 0, -2};
    assert_memory_equal(gradient, expected, sizeof expected);
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* Forward through dropout alone: which values stayed, scaled. */
static void drop(net *n, uint64_t step, uint64_t first, float *out)
{
    gr_batch_result result;
    n->batch.step = step;
    n->batch.sample_first = first;
    assert_int_equal(gr_model_forward(n->model, n->values, &n->batch, &result, &n->diag), GR_OK);
    memcpy(out, gr_model_output_of(n->model, n->model->layer_count - 1),
           n->outputs_count * sizeof *out);
}

static void open_dropout(net *n, const char *layers, int batch)
{
    net_open(n,
             &(net_options){
                 .layers = layers, .input = FEATURES(1000), .batch = batch, .loss = GR_LOSS_MSE});
    for (size_t i = 0; i < n->x_count; i++) {
        n->x[i] = 1.0f;
    }
}

static void test_dropout_rate_and_scale(void **state)
{
    (void)state;
    net n;
    open_dropout(&n, "[dropout: 0.3]", 40);
    float *out = malloc(n.outputs_count * sizeof *out);
    drop(&n, 1, 0, out);
    size_t kept = 0;
    for (size_t i = 0; i < n.outputs_count; i++) {
        bool stays = out[i] > 0;
        assert_true(!stays || fabsf(out[i] - 1.0f / 0.7f) < 1e-6f);
        kept += stays;
    }
    /* 40,000 draws: the deviation of the share is 0.0023. */
    assert_true(fabs((double)kept / 40000.0 - 0.7) < 0.01);
    net_outputs(&n, out);
    assert_memory_equal(out, n.x, n.outputs_count * sizeof *out);
    free(out);
    net_close(&n);
}

/* The mask of a sample goes by its place in the global batch, whoever computes it. */
static void test_dropout_does_not_know_shards(void **state)
{
    (void)state;
    net whole, part;
    open_dropout(&whole, "[dropout: 0.5]", 8);
    open_dropout(&part, "[dropout: 0.5]", 2);
    float *a = malloc(whole.outputs_count * sizeof *a),
          *b = malloc(whole.outputs_count * sizeof *b);
    drop(&whole, 5, 100, a);
    for (size_t shard = 0; shard < 4; shard++) {
        drop(&part, 5, 100 + 2 * shard, b + shard * part.outputs_count);
    }
    assert_memory_equal(a, b, whole.outputs_count * sizeof *a);
    assert_memory_not_equal(a, a + 1000, 1000 * sizeof *a); /* samples differ */
    drop(&whole, 6, 100, b);
    assert_memory_not_equal(a, b, whole.outputs_count * sizeof *a); /* steps differ */
    free(a);
    free(b);
    net_close(&whole);
    net_close(&part);
}

static void test_dropout_layers_and_seeds_differ(void **state)
{
    (void)state;
    net n;
    open_dropout(&n, "[dropout: 0.5, dropout: 0.5]", 4);
    float *a = malloc(n.outputs_count * sizeof *a), *b = malloc(n.outputs_count * sizeof *b);
    drop(&n, 1, 0, a);
    size_t kept = 0;
    for (size_t i = 0; i < n.outputs_count; i++) {
        kept += a[i] > 0;
    }
    assert_true(kept > 800 && kept < 1200); /* a quarter of 4,000: not the same mask twice */
    n.model->config.seed++;
    drop(&n, 1, 0, b);
    assert_memory_not_equal(a, b, n.outputs_count * sizeof *a);
    free(a);
    free(b);
    net_close(&n);
}

/* ---- Batch norm ------------------------------------------------------------------------------ */

static const gr_tensor_info *tensor_named(const net *n, const char *name)
{
    for (int i = 0; i < gr_model_tensors(n->model); i++) {
        if (strcmp(gr_model_tensor(n->model, i)->name, name) == 0) {
            return gr_model_tensor(n->model, i);
        }
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void test_batch_statistics(void **state)
{
    (void)state;
    for (int backend = 0; backend < 2; backend++) {
        net n;
        net_open(&n, &(net_options){.layers = "[batch_norm: {momentum: 0.25}, flatten, linear: 3]",
                                    .input = IMAGE(2, 3, 3),
                                    .batch = 5,
                                    .backend = backend ? "reference" : "onednn"});
        net_step(&n);
        const gr_tensor_info *mean = tensor_named(&n, "bn1.running_mean");
        const gr_tensor_info *variance = tensor_named(&n, "bn1.running_var");
        double before_mean = (double)n.values[mean->offset + 1];
        double before_variance = (double)n.values[variance->offset + 1];
        double sum = 0, squares = 0;
        for (int i = 0; i < 45; i++) {
            sum += (double)n.x[i / 9 * 18 + 9 + i % 9];
        }
        for (int i = 0; i < 45; i++) {
            double d = (double)n.x[i / 9 * 18 + 9 + i % 9] - sum / 45;
            squares += d * d;
        }
        assert_true(fabs((double)n.gradients[mean->offset + 1] - sum / 45) < 1e-6);
        assert_true(fabs((double)n.gradients[variance->offset + 1] - squares / 44) < 1e-5);
        /* As if two shards with the same samples had been added. */
        for (size_t i = 0; i < n.values_count; i++) {
            n.gradients[i] *= 2;
        }
        float weight = n.values[tensor_named(&n, "linear1.weight")->offset];
        gr_model_update_statistics(n.model, n.values, n.gradients, 0.5f);
        double now_mean = (double)n.values[mean->offset + 1];
        double now_variance = (double)n.values[variance->offset + 1];
        assert_true(fabs(now_mean - (0.75 * before_mean + 0.25 * sum / 45)) < 1e-6);
        assert_true(fabs(now_variance - (0.75 * before_variance + 0.25 * squares / 44)) < 1e-5);
        assert_memory_equal(&weight, &n.values[tensor_named(&n, "linear1.weight")->offset],
                            sizeof weight);
        net_close(&n);
    }
}

/* Evaluation uses the running statistics: a sample's outputs do not depend on its neighbours. */
static void test_evaluation_looks_at_one_sample(void **state)
{
    (void)state;
    net n;
    net_open(&n, &(net_options){.layers = "[linear: 8, batch_norm, relu, dropout: 0.5, linear: 3]",
                                .input = FEATURES(4),
                                .batch = 4});
    float a[12], b[12];
    net_outputs(&n, a);
    for (size_t i = 4; i < n.x_count; i++) {
        n.x[i] = 77.0f;
    }
    gr_batch_result one, all;
    assert_int_equal(gr_model_evaluate(n.model, n.values, &n.batch, 1, &one, b, &n.diag), GR_OK);
    assert_memory_equal(a, b, 3 * sizeof *a);
    assert_int_equal(gr_model_evaluate(n.model, n.values, &n.batch, 4, &all, b, &n.diag), GR_OK);
    assert_true(one.loss < all.loss && one.correct <= 1);
    net_close(&n);
}

/* ---- Not finite ------------------------------------------------------------------------------ */

static void expect_found(net *n, int layer, bool backward)
{
    int found = 77;
    bool back = !backward;
    assert_int_equal(gr_model_find_not_finite(n->model, n->values, &n->batch, n->gradients, &found,
                                              &back, &n->diag),
                     GR_OK);
    assert_int_equal(found, layer);
    assert_int_equal(back, backward);
}

static void test_finds_what_is_not_finite(void **state)
{
    (void)state;
    for (int backend = 0; backend < 2; backend++) {
        net n;
        net_open(&n, &(net_options){.layers = "[conv2d: {channels: 16, kernel: 3}, relu, flatten, "
                                              "linear: 8, relu, linear: 3]",
                                    .input = IMAGE(1, 5, 5),
                                    .batch = 3,
                                    .backend = backend ? "reference" : "onednn"});
        expect_found(&n, -1, false);
        float *weight = &n.values[tensor_named(&n, "linear1.weight")->offset], kept = *weight;
        *weight = NAN;
        expect_found(&n, 3, false);
        *weight = 3e38f; /* finite, but not its products */
        weight[1] = weight[2] = weight[3] = weight[4] = 3e38f;
        n.x[0] = n.x[1] = n.x[2] = 1e20f;
        expect_found(&n, 3, false);
        *weight = weight[1] = weight[2] = weight[3] = weight[4] = kept;
        n.x[0] = INFINITY;
        expect_found(&n, 0, false);
        n.x[0] = n.x[1] = n.x[2] = 1.0f;
        expect_found(&n, -1, false);
        n.model->config.gradient_scale = INFINITY;
        expect_found(&n, 5, true);
        n.model->config.gradient_scale = 3e38f;
        for (size_t i = 0; i < n.x_count; i++) {
            n.x[i] *= 1e10f;
        }
        int found = -1;
        bool back = false;
        assert_int_equal(gr_model_find_not_finite(n.model, n.values, &n.batch, n.gradients, &found,
                                                  &back, &n.diag),
                         GR_OK);
        assert_true(found >= 0 && back);
        net_close(&n);
    }
}

/* A NaN in weights or samples shows in the loss or the gradients, whatever stands between. */
static void test_nan_is_not_hidden(void **state)
{
    (void)state;
    static const char *const names[] = {"conv1.weight", "conv2.weight", "linear1.weight",
                                        "linear2.bias", "conv1.bias",   NULL};
    for (int i = 0; i < 6; i++) {
        net n;
        net_open(&n,
                 &(net_options){.layers = "[conv2d: {channels: 16, kernel: 3, padding: 1}, relu, "
                                          "max_pool: 2, conv2d: {channels: 16, kernel: 3}, relu, "
                                          "flatten, linear: 8, relu, linear: 3]",
                                .input = IMAGE(1, 8, 8),
                                .batch = 3});
        if (names[i]) {
            n.values[tensor_named(&n, names[i])->offset] = NAN;
        } else {
            n.x[20] = NAN;
        }
        double loss = net_step(&n);
        if (isfinite(loss) && !gr_any_not_finite(n.gradients, n.values_count)) {
            fail_msg("a NaN in %s went unseen", names[i] ? names[i] : "the samples");
        }
        net_close(&n);
    }
}

/* A large first layer is looked at in parts: all of it within 16 steps. */
static void test_nan_in_a_large_first_layer(void **state)
{
    (void)state;
    for (size_t at = 0; at < 300 * 400; at += 300 * 400 / 7) {
        net n;
        net_open(&n, &(net_options){.layers = "[linear: 400, relu, linear: 3]",
                                    .input = FEATURES(300),
                                    .batch = 2});
        n.values[tensor_named(&n, "linear1.weight")->offset + at] = NAN;
        bool seen = false;
        for (uint64_t step = 40; step < 56; step++) {
            n.batch.step = step;
            net_step(&n);
            seen = seen || gr_any_not_finite(n.gradients, n.values_count);
        }
        assert_true(seen);
        expect_found(&n, 0, false);
        net_close(&n);
    }
}

/* ---- Together -------------------------------------------------------------------------------- */

static void test_learns(void **state)
{
    (void)state;
    net n;
    net_open(&n,
             &(net_options){.layers = "[conv2d: {channels: 8, kernel: 3, padding: same, bias: no}, "
                                      "batch_norm, relu, residual: [conv2d: {channels: 8, kernel: "
                                      "3, padding: same}, relu], max_pool: 2, flatten, dropout: "
                                      "0.1, linear: 4]",
                            .input = IMAGE(1, 6, 6),
                            .batch = 16});
    gr_optimizer_config sgd = {.kind = GR_OPT_SGD, .momentum = 0.9};
    gr_optimizer *optimizer = NULL;
    assert_int_equal(gr_optimizer_create(&sgd, n.model, &optimizer, &n.diag), GR_OK);
    double first = net_step(&n), last = first;
    for (uint64_t step = 0; step < 120; step++) {
        n.batch.step = step;
        last = net_step(&n);
        gr_optimizer_begin(optimizer, step, 0.003, 1.0f);
        gr_optimizer_update(optimizer, n.values, n.gradients, 0, n.values_count);
        gr_model_update_statistics(n.model, n.values, n.gradients, 1.0f);
    }
    assert_true(last < 0.2 * first);
    gr_batch_result result;
    assert_int_equal(gr_model_evaluate(n.model, n.values, &n.batch, 16, &result, NULL, &n.diag),
                     GR_OK);
    assert_int_equal(result.correct, 16);
    gr_optimizer_destroy(optimizer);
    net_close(&n);
}

/* Gradient of a batch = sum of the gradients of its halves, without batch norm. */
static void test_gradients_add_up(void **state)
{
    (void)state;
    net whole, half;
    const char *layers = "[linear: 9, gelu, dropout: 0.2, linear: 4]";
    net_open(&whole, &(net_options){.layers = layers, .input = FEATURES(6), .batch = 8});
    net_open(&half, &(net_options){.layers = layers, .input = FEATURES(6), .batch = 4});
    double loss = net_step(&whole), sum = 0;
    float *gradients = calloc(whole.values_count, sizeof *gradients);
    for (size_t part = 0; part < 2; part++) {
        memcpy(half.x, whole.x + part * half.x_count, half.x_count * sizeof *half.x);
        memcpy(half.labels, whole.labels + part * 4, 4 * sizeof *half.labels);
        half.batch.sample_first = 4 * part;
        sum += net_step(&half);
        gr_add_f32(gradients, gradients, half.gradients, whole.values_count);
    }
    assert_true(fabs(loss - sum) < 1e-5 * loss);
    assert_true(relative_distance(gradients, whole.gradients, whole.values_count) < 1e-6);
    free(gradients);
    net_close(&whole);
    net_close(&half);
}

static void test_initial_weights(void **state)
{
    (void)state;
    net a, b;
    net_options options = {.layers = "[linear: 400, batch_norm, relu, linear: 300]",
                           .input = FEATURES(200),
                           .batch = 1};
    net_open(&a, &options);
    net_open(&b, &options);
    gr_model_init_weights(a.model, a.values);
    gr_model_init_weights(b.model, b.values);
    assert_memory_equal(a.values, b.values, a.values_count * sizeof *a.values);
    const gr_tensor_info *he = tensor_named(&a, "linear1.weight");
    const gr_tensor_info *glorot = tensor_named(&a, "linear2.weight");
    double squares[2] = {0};
    for (size_t i = 0; i < 80000; i++) {
        squares[0] += pow((double)a.values[he->offset + i], 2);
    }
    for (size_t i = 0; i < 120000; i++) {
        squares[1] += pow((double)a.values[glorot->offset + i], 2);
    }
    assert_true(fabs(squares[0] / 80000 / (2.0 / 200) - 1) < 0.03);
    assert_true(fabs(squares[1] / 120000 / (2.0 / 700) - 1) < 0.03);
    b.model->config.seed++;
    gr_model_init_weights(b.model, b.values);
    assert_memory_not_equal(a.values, b.values, a.values_count * sizeof *a.values);
    net_close(&a);
    net_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy_is_stable),
        cmocka_unit_test(test_cross_entropy_shows_nan),
        cmocka_unit_test(test_labels_outside_are_refused),
        cmocka_unit_test(test_mean_squared_error),
        cmocka_unit_test(test_dropout_rate_and_scale),
        cmocka_unit_test(test_dropout_does_not_know_shards),
        cmocka_unit_test(test_dropout_layers_and_seeds_differ),
        cmocka_unit_test(test_batch_statistics),
        cmocka_unit_test(test_evaluation_looks_at_one_sample),
        cmocka_unit_test(test_finds_what_is_not_finite),
        cmocka_unit_test(test_nan_is_not_hidden),
        cmocka_unit_test(test_nan_in_a_large_first_layer),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_gradients_add_up),
        cmocka_unit_test(test_initial_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
