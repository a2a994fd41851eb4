/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers against the plain formula in double, schedules, and the vector passes of each
 * instruction set against the portable ones, bit by bit. */
#include "support_nn.h"

#include "base/philox.h"
#include "doc/config_node.h"
#include "nn/passes.h"
#include "nn/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 7 };

static const net_options model = {
    .layers = "[linear: 19, batch_norm, relu, linear: 5]", .input = {1, {7}}, .batch = 4};

typedef struct truth {
    double *w, *m, *v;
} truth;

static void expect_step(const gr_optimizer_config *c, const net *n, truth *t,
                        const float *gradients, int step, double rate, double factor)
{
    for (int i = 0; i < gr_model_tensors(n->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(n->model, i);
        double decay = info->decay ? c->weight_decay : 0.0;
        for (size_t at = info->offset; !info->statistic && at < info->offset + info->count; at++) {
            double g = (double)gradients[at] * factor;
            if (c->kind == GR_OPT_SGD) {
                g += decay * t->w[at];
                t->m[at] = c->momentum * t->m[at] + g;
                t->w[at] -= rate * (c->nesterov ? g + c->momentum * t->m[at] : t->m[at]);
                continue;
            }
            g += c->kind == GR_OPT_ADAM ? decay * t->w[at] : 0.0;
            t->m[at] = c->beta1 * t->m[at] + (1 - c->beta1) * g;
            t->v[at] = c->beta2 * t->v[at] + (1 - c->beta2) * g * g;
            double mean = t->m[at] / (1 - pow(c->beta1, step + 1));
            double square = t->v[at] / (1 - pow(c->beta2, step + 1));
            double kept = c->kind == GR_OPT_ADAMW ? t->w[at] * (1 - rate * decay) : t->w[at];
            t->w[at] = kept - rate * mean / (sqrt(square) + c->epsilon);
        }
    }
}

/* Values and states that belong to nobody's model, a few elements at a time, at any alignment. */
static void apply_loosely(const gr_optimizer_config *c, const net *n, float *values, float *first,
                          float *second, int step, double rate, double factor)
{
    enum { PIECE = 37, SHIFT = 16 };
    for (int i = 0; i < gr_model_tensors(n->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(n->model, i);
        gr_optimizer_step now;
        gr_optimizer_step_init(&now, c, (uint64_t)step, rate, (float)factor, info->decay);
        size_t stop = info->statistic ? 0 : info->offset + info->count;
        for (size_t at = info->offset, count; at < stop; at += count) {
            float memory[4][PIECE + SHIFT];
            float *w = memory[0] + at % SHIFT, *g = memory[1] + at % 7;
            float *states[] = {memory[2] + at % 5, memory[3] + at % 3};
            count = 1 + at % PIECE < stop - at ? 1 + at % PIECE : stop - at;
            memcpy(w, values + at, count * sizeof *w);
            memcpy(g, n->gradients + at, count * sizeof *g);
            memcpy(states[0], first + at, count * sizeof *w);
            memcpy(states[1], second + at, count * sizeof *w);
            assert_true(gr_optimizer_apply(&now, w, states, g, count));
            memcpy(values + at, w, count * sizeof *w);
            memcpy(first + at, states[0], count * sizeof *w);
            memcpy(second + at, states[1], count * sizeof *w);
        }
    }
}

static void expect_states(gr_optimizer *optimizer, const gr_optimizer_config *c,
                          float *const *states, size_t count)
{
    int known = 0;
    const char *name = NULL;
    for (float *own; (own = gr_optimizer_state(optimizer, known, &name)) != NULL; known++) {
        assert_memory_equal(own, states[known], count * sizeof *own);
        assert_string_equal(name, gr_optimizer_state_name(c, known));
    }
    assert_int_equal(known, gr_optimizer_states(c));
    assert_null(gr_optimizer_state_name(c, known));
    assert_null(gr_optimizer_state_name(c, -1));
}

static void follow(gr_optimizer_config config)
{
    net n;
    net_open(&n, &model);
    gr_optimizer *optimizer = NULL, *pieces = NULL;
    assert_int_equal(gr_optimizer_create(&config, n.model, &optimizer, &n.diag), GR_OK);
    assert_int_equal(gr_optimizer_create(&config, n.model, &pieces, &n.diag), GR_OK);
    size_t count = n.values_count, bytes = count * sizeof(float);
    float *cut = malloc(bytes), *loose = malloc(bytes), *start = malloc(bytes);
    float *states[] = {calloc(count, sizeof(float)), calloc(count, sizeof(float))};
    memcpy(cut, n.values, bytes);
    memcpy(loose, n.values, bytes);
    memcpy(start, n.values, bytes);
    truth t = {calloc(count, 8), calloc(count, 8), calloc(count, 8)};
    for (size_t i = 0; i < count; i++) {
        t.w[i] = (double)n.values[i];
    }
    for (int step = 0; step < STEPS; step++) {
        double rate = 0.01 * (1 + step), factor = step == 3 ? 0.25 : 1.0;
        gr_philox_normal(5, (uint64_t)step, 0, n.gradients, count);
        gr_optimizer_begin(optimizer, (uint64_t)step, rate, (float)factor);
        gr_optimizer_update(optimizer, n.values, n.gradients, 0, count);
        gr_optimizer_begin(pieces, (uint64_t)step, rate, (float)factor);
        for (size_t at = 0, end; at < count; at = end) {
            end = at + 1 + at % 23 < count ? at + 1 + at % 23 : count;
            gr_optimizer_update(pieces, cut, n.gradients, at, end);
        }
        apply_loosely(&config, &n, loose, states[0], states[1], step, rate, factor);
        expect_step(&config, &n, &t, n.gradients, step, rate, factor);
    }
    assert_memory_equal(cut, n.values, bytes);
    assert_memory_equal(loose, n.values, bytes);
    expect_states(optimizer, &config, states, count);
    for (int i = 0; i < gr_model_tensors(n.model); i++) {
        const gr_tensor_info *info = gr_model_tensor(n.model, i);
        for (size_t at = info->offset; at < info->offset + info->count; at++) {
            if (info->statistic) {
                assert_true(n.values[at] >= start[at] && n.values[at] <= start[at]);
            } else {
                assert_true(fabs((double)n.values[at] - t.w[at]) < 3e-6 * (1 + fabs(t.w[at])));
            }
        }
    }
    free(t.w);
    free(t.m);
    free(t.v);
    free(cut);
    free(loose);
    free(states[0]);
    free(states[1]);
    free(start);
    gr_optimizer_destroy(optimizer);
    gr_optimizer_destroy(pieces);
    net_close(&n);
}

static void test_sgd(void **state)
{
    (void)state;
    follow((gr_optimizer_config){.kind = GR_OPT_SGD});
    follow((gr_optimizer_config){.kind = GR_OPT_SGD, .momentum = 0.9, .weight_decay = 0.03});
    follow((gr_optimizer_config){
        .kind = GR_OPT_SGD, .momentum = 0.9, .weight_decay = 0.03, .nesterov = true});
}

static void test_adam(void **state)
{
    (void)state;
    gr_optimizer_config config = {
        .kind = GR_OPT_ADAM, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.05};
    follow(config);
    config.kind = GR_OPT_ADAMW;
    follow(config);
}

static void test_state_has_names_and_an_end(void **state)
{
    (void)state;
    net n;
    net_open(&n, &model);
    gr_optimizer_config config = {.kind = GR_OPT_ADAM, .beta1 = 0.9, .beta2 = 0.99};
    gr_optimizer *optimizer = NULL;
    const char *name = NULL;
    assert_int_equal(gr_optimizer_create(&config, n.model, &optimizer, &n.diag), GR_OK);
    assert_non_null(gr_optimizer_state(optimizer, 0, &name));
    assert_string_equal(name, "first_moment");
    assert_non_null(gr_optimizer_state(optimizer, 1, &name));
    assert_string_equal(name, "second_moment");
    assert_null(gr_optimizer_state(optimizer, 2, &name));
    gr_optimizer_destroy(optimizer);
    config.kind = GR_OPT_SGD;
    assert_int_equal(gr_optimizer_create(&config, n.model, &optimizer, &n.diag), GR_OK);
    assert_non_null(gr_optimizer_state(optimizer, 0, &name));
    assert_string_equal(name, "momentum");
    assert_null(gr_optimizer_state(optimizer, 1, &name));
    gr_optimizer_destroy(optimizer);
    net_close(&n);
}

static double rate_of(const gr_optimizer_config *config, uint64_t step)
{
    return gr_learning_rate(config, step, 10.0, 100, 64);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-12 * (1 + fabs(b)))) {
        fail_msg("%.17g is not %.17g", a, b);
    }
}

static void test_schedules(void **state)
{
    (void)state;
    gr_optimizer_config config = {.learning_rate = 0.4};
    near(rate_of(&config, 0), 0.4);
    near(rate_of(&config, 99), 0.4);
    config.warmup_epochs = 2; /* 20 steps */
    near(rate_of(&config, 0), 0.4 / 20);
    near(rate_of(&config, 9), 0.2);
    near(rate_of(&config, 19), 0.4);
    config.schedule = GR_SCHEDULE_STEP;
    config.step_epochs = 3;
    config.step_factor = 0.1;
    near(rate_of(&config, 29), 0.4);
    near(rate_of(&config, 30), 0.04);
    near(rate_of(&config, 59), 0.04);
    near(rate_of(&config, 60), 0.004);
    config.schedule = GR_SCHEDULE_COSINE;
    config.final_factor = 0.1;
    for (uint64_t step = 20; step < 100; step++) {
        double share = 0.5 * (1 + cos(3.14159265358979323846 * (double)(step - 20) / 80.0));
        near(rate_of(&config, step), 0.4 * (0.1 + 0.9 * share));
    }
    near(rate_of(&config, 100), 0.04);
    near(rate_of(&config, 1000), 0.04);
    config.linear_scaling = true;
    config.reference_batch = 16;
    near(rate_of(&config, 100), 0.16);
}

static void test_config_table(void **state)
{
    (void)state;
    gr_arena arena;
    gr_diag diag;
    gr_doc *doc = NULL;
    gr_optimizer_config config;
    const char text[] = "{kind: adamw, learning_rate: 3e-4, schedule: cosine, nesterov: true}";
    gr_arena_init(&arena, 1 << 20);
    assert_int_equal(gr_config_defaults(&gr_optimizer_config_table, &config, &arena, &diag), GR_OK);
    assert_int_equal(config.kind, GR_OPT_SGD);
    near(config.momentum, 0.9);
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, strlen(text), &doc, &diag), GR_OK);
    assert_int_equal(
        gr_config_from_node(&gr_optimizer_config_table, &config, gr_doc_root(doc), &arena, &diag),
        GR_OK);
    assert_int_equal(config.kind, GR_OPT_ADAMW);
    assert_int_equal(config.schedule, GR_SCHEDULE_COSINE);
    assert_true(config.nesterov);
    near(config.learning_rate, 3e-4);
    gr_doc_destroy(doc);
    gr_arena_fini(&arena);
}

static void test_sums_and_checks(void **state)
{
    (void)state;
    net n;
    net_open(&n, &model);
    gr_philox_normal(3, 0, 0, n.gradients, n.values_count);
    double expected = 0;
    for (int i = 0; i < gr_model_tensors(n.model); i++) {
        const gr_tensor_info *info = gr_model_tensor(n.model, i);
        for (size_t at = info->offset; !info->statistic && at < info->offset + info->count; at++) {
            expected += (double)n.gradients[at] * (double)n.gradients[at];
        }
    }
    assert_true(fabs(gr_gradient_square_sum(n.model, n.gradients) - expected) < 1e-12 * expected);
    for (size_t count = 0; count < 70; count++) {
        assert_false(gr_any_not_finite(n.gradients, count));
        for (int kind = 0; kind < 2 && count > 0; kind++) {
            float kept = n.gradients[count - 1];
            n.gradients[count - 1] = kind ? NAN : -INFINITY;
            assert_true(gr_any_not_finite(n.gradients, count));
            assert_false(gr_any_not_finite(n.gradients, count - 1));
            assert_int_equal(gr_first_not_finite(n.gradients, 0, count), count - 1);
            assert_int_equal(gr_first_not_finite(n.gradients, 0, count - 1), count - 1);
            n.gradients[count - 1] = kept;
        }
    }
    net_close(&n);
}

/* ---- Instruction sets ------------------------------------------------------------------------ */

enum { N = 1003 };

typedef struct vectors {
    float a[N], b[N], c[N], d[N], out[N], pooled[N], unpooled[N];
    uint32_t words[N];
    uint8_t mask[N];
    double sum;
    bool finite;
} vectors;

static void run_all(const gr_passes *p, vectors *v)
{
    memset(v, 0, sizeof *v);
    gr_philox_normal(1, 0, 0, v->a, N);
    gr_philox_normal(2, 0, 0, v->b, N);
    gr_philox_normal(3, 0, 0, v->c, N);
    gr_philox_normal(4, 0, 0, v->d, N);
    gr_philox_fill(5, 0, 0, v->words, N);
    const gr_sgd_numbers sgd = {0.7f, 0.01f, 0.9f, 0.1f, false};
    const gr_sgd_numbers nesterov = {0.7f, 0.01f, 0.9f, 0.1f, true};
    const gr_adam_numbers adam = {0.7f, 0.01f, 0.002f, 0.9f, 0.99f, 1e-8f, 0.05f, 1.3f};
    p->relu(v->out, v->a, N);
    p->relu_backward(v->b, v->b, v->out, N);
    p->add(v->out, v->out, v->b, N);
    p->column_sums(v->a, 17, 59, v->out);
    p->transpose_add(v->a, 19, 33, v->b, true, v->out);
    p->transpose_add(v->a, 33, 19, NULL, false, v->out);
    p->row_means(v->a, 17, 59, v->out + 100);
    p->dropout(v->out + 200, v->mask, v->a, v->words, 1u << 22, 1.5f, 800);
    p->dropout_backward(v->out + 500, v->b, v->mask, 1.5f, 500);
    for (size_t inner = 1; inner <= 16; inner += inner == 1 ? 7 : 8) {
        const gr_pool_numbers pool = {.outer = 48 / inner / 3,
                                      .inner = inner,
                                      .height_in = 7,
                                      .width_in = 8,
                                      .height_out = 4,
                                      .width_out = 4,
                                      .kernel = 3,
                                      .stride = 2,
                                      .padding = 1};
        p->max_pool(&pool, v->a, v->pooled, v->mask);
        p->max_pool_backward(&pool, v->b, v->pooled, v->mask, v->unpooled);
    }
    p->blend(v->b, v->out, 0.9f, 0.3f, N);
    p->sgd(v->a, v->b, v->c, &sgd, N);
    p->sgd(v->a, v->b, v->c, &nesterov, N);
    p->relu(v->d, v->d, N);
    p->adam(v->a, v->b, v->d, v->c, &adam, N);
    v->sum = p->square_sum(v->a, N);
    v->finite = !p->any_not_finite(v->a, N);
}

static void test_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    vectors *expected = malloc(sizeof *expected), *got = malloc(sizeof *got);
    run_all(&gr_passes_portable, expected);
    assert_true(expected->finite && expected->sum > 1);
    run_all(gr_passes_best(), got);
    assert_memory_equal(expected, got, sizeof *got);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        run_all(&gr_passes_avx2, got);
        assert_memory_equal(expected, got, sizeof *got);
    }
#endif
    free(expected);
    free(got);
}

static void test_transposition(void **state)
{
    (void)state;
    float x[33 * 19], y[33 * 19], bias[33];
    gr_philox_normal(9, 0, 0, x, 33 * 19);
    gr_philox_normal(9, 1, 0, bias, 33);
    for (size_t rows = 1; rows <= 33; rows += 4) {
        for (int relu = 0; relu < 2; relu++) {
            gr_transpose_add(x, rows, 19, relu ? bias : NULL, relu, y);
            for (size_t i = 0; i < rows * 19; i++) {
                float value = x[i % rows * 19 + i / rows] + (relu ? bias[i % rows] : 0.0f);
                float expected = relu && value < 0 ? 0.0f : value;
                assert_memory_equal(&y[i], &expected, sizeof expected);
            }
        }
    }
}

/* Against the reference, with windows over the edge; NaN is larger than all. */
static void test_max_pooling_of_any_block(void **state)
{
    (void)state;
    const gr_conv_shape shape = {.batch = 1,
                                 .channels_in = 16,
                                 .height_in = 7,
                                 .width_in = 8,
                                 .channels_out = 16,
                                 .height_out = 4,
                                 .width_out = 4,
                                 .kernel = 3,
                                 .stride = 2,
                                 .padding = 1};
    enum { IN = 16 * 56, OUT = 16 * 16 };
    float x[IN], blocked[IN], y[OUT], expected[OUT], dx[IN], expected_dx[IN];
    uint8_t at[OUT];
    int32_t expected_at[OUT];
    gr_philox_normal(8, 0, 0, x, IN);
    gr_ref_max_pool_forward(&shape, x, expected, expected_at);
    gr_ref_max_pool_backward(&shape, expected, expected_at, expected_dx);
    for (int inner = 1; inner <= 16; inner += inner == 1 ? 7 : 8) {
        gr_pool_numbers n = {(size_t)(16 / inner), (size_t)inner, 7, 8, 4, 4, 3, 2, 1};
        for (int i = 0; i < IN; i++) {
            blocked[(i / 56 / inner * 56 + i % 56) * inner + i / 56 % inner] = x[i];
        }
        gr_max_pool_f32(&n, blocked, y, at);
        gr_max_pool_backward_f32(&n, y, NULL, at, dx);
        for (int i = 0; i < OUT; i++) {
            int here = (i / 16 / inner * 16 + i % 16) * inner + i / 16 % inner;
            assert_memory_equal(&y[here], &expected[i], sizeof *y);
        }
        for (int i = 0; i < IN; i++) {
            int here = (i / 56 / inner * 56 + i % 56) * inner + i / 56 % inner;
            assert_memory_equal(&dx[here], &expected_dx[i], sizeof *dx);
        }
        blocked[0] = NAN;
        gr_max_pool_f32(&n, blocked, y, at);
        assert_true(isnan(y[0]) && !gr_any_not_finite(y + 1, OUT - 1));
    }
}

static void test_relu_does_not_hide_nan(void **state)
{
    (void)state;
    float x[3] = {NAN, -1.0f, 2.0f}, y[3];
    gr_relu_f32(y, x, 3);
    assert_true(isnan(y[0]));
    assert_true(y[1] >= 0 && y[1] <= 0 && y[2] > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_state_has_names_and_an_end),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_config_table),
        cmocka_unit_test(test_sums_and_checks),
        cmocka_unit_test(test_same_bits_on_every_instruction_set),
        cmocka_unit_test(test_transposition),
        cmocka_unit_test(test_max_pooling_of_any_block),
        cmocka_unit_test(test_relu_does_not_hide_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
