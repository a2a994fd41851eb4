/* SPDX-License-Identifier: Apache-2.0 */
/* Reading models: what is inferred, and the sentence for each thing that can be wrong. */
#include "support_nn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct bad {
    const char *layers;
    gr_shape input;
    int line;            /* where the sentence must point */
    const char *says[3]; /* what it must contain */
} bad;

static const bad bads[] = {
    {"[]", {.dims = 1, .dim = {4}}, 1, {"at least one"}},
    {"hello", {.dims = 1, .dim = {4}}, 1, {"list of layers"}},
    {"- linear: 3\n- rely\n", {.dims = 1, .dim = {4}}, 2, {"'rely'", "did you mean 'relu'"}},
    {"- linear: 3\n- zzzzzzzzzz\n", {.dims = 1, .dim = {4}}, 2, {"'zzzzzzzzzz'", "conv2d"}},
    {"- conv2d: {chanels: 3, kernel: 3}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"chanels", "channels"}},
    {"- conv2d: {channels: 3}\n", {.dims = 3, .dim = {1, 8, 8}}, 1, {"'kernel'", "add it"}},
    {"- relu\n- linear\n", {.dims = 1, .dim = {4}}, 2, {"'units'"}},
    {"- linear: many\n", {.dims = 1, .dim = {4}}, 1, {"many"}},
    {"- linear: 0\n", {.dims = 1, .dim = {4}}, 1, {"0"}},
    {"- linear: -3\n", {.dims = 1, .dim = {4}}, 1, {"-3"}},
    {"- linear: {units: 3, bias: perhaps}\n", {.dims = 1, .dim = {4}}, 1, {"perhaps"}},
    {"- linear: [3]\n", {.dims = 1, .dim = {4}}, 1, {"map of keys"}},
    {"- conv2d: 5\n", {.dims = 3, .dim = {1, 8, 8}}, 1, {"map of keys"}},
    {"- relu\n- linear: 3\n",
     {.dims = 3, .dim = {1, 8, 8}},
     2,
     {"linear1", "1x8x8", "add flatten"}},
    {"- flatten\n- conv2d: {channels: 3, kernel: 3}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     2,
     {"conv1", "before flatten"}},
    {"- flatten\n- global_pool\n", {.dims = 3, .dim = {1, 8, 8}}, 2, {"before flatten"}},
    {"- relu\n- conv2d: {channels: 3, kernel: 9}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     2,
     {"kernel 9", "1x8x8", "smaller"}},
    {"- max_pool: 2\n- max_pool: 2\n- max_pool: 2\n- max_pool: 2\n",
     {.dims = 3, .dim = {1, 8, 8}},
     4,
     {"kernel 2", "1x1x1"}},
    {"- conv2d: {channels: 3, kernel: 3, padding: 3}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"padding 3", "kernel 3"}},
    {"- conv2d: {channels: 3, kernel: 4, padding: same}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"odd kernel"}},
    {"- conv2d: {channels: 3, kernel: 3, padding: valid}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"'same'", "valid"}},
    {"- conv2d: {channels: 3, kernel: 3, padding: -1}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"'same'", "-1"}},
    {"- max_pool\n", {.dims = 3, .dim = {1, 8, 8}}, 1, {"'kernel'", "add it"}},
    {"- relu: {nam: x}\n", {.dims = 1, .dim = {4}}, 1, {"nam", "name"}},
    {"- linear: 1\n- softmax\n",
     {.dims = 1, .dim = {4}},
     2,
     {"softmax1 has the shape 1", "at least two features", "sigmoid"}},
    {"- softmax: 2\n", {.dims = 1, .dim = {4}}, 1, {"map of keys"}},
    {"- sigmoid: {slope: 2}\n", {.dims = 1, .dim = {4}}, 1, {"slope", "name"}},
    {"- tahn\n", {.dims = 1, .dim = {4}}, 1, {"did you mean 'tanh'"}},
    {"- relu: 3\n", {.dims = 1, .dim = {4}}, 1, {"map of keys"}},
    {"- conv2d: {channels: 3, kernel: 3, stride: 0}\n",
     {.dims = 3, .dim = {1, 8, 8}},
     1,
     {"stride"}},
    {"- dropout: 1.5\n", {.dims = 1, .dim = {4}}, 1, {"1.5"}},
    {"- batch_norm: {epsilon: 0}\n", {.dims = 1, .dim = {4}}, 1, {"epsilon"}},
    {"- linear: {units: 3, name: a}\n- linear: {units: 3, name: a}\n",
     {.dims = 1, .dim = {4}},
     2,
     {"'a' is taken", "line 1"}},
    {"- linear: {units: 3, name: a b}\n", {.dims = 1, .dim = {4}}, 1, {"letters"}},
    {"- linear: {units: 3, name: input}\n", {.dims = 1, .dim = {4}}, 1, {"the model's input"}},
    {"- linear: {units: 3, name: first}\n- relu\n- add: {from: fist}\n",
     {.dims = 1, .dim = {4}},
     3,
     {"'fist'", "did you mean 'first'"}},
    {"- linear: {units: 3, name: first}\n- linear: 5\n- add: {from: first}\n",
     {.dims = 1, .dim = {4}},
     3,
     {"adds 3 to 5", "same shape"}},
    {"- add\n", {.dims = 1, .dim = {4}}, 1, {"'from'"}},
    {"- linear: 4\n- add: {form: linear1}\n", {.dims = 1, .dim = {4}}, 2, {"form", "from"}},
    {"- residual: relu\n", {.dims = 1, .dim = {4}}, 1, {"list of its branch"}},
    {"- residual: [linear: 5]\n", {.dims = 1, .dim = {4}}, 1, {"adds 4 to 5"}},
    {"- linear: 4\n  relu:\n", {.dims = 1, .dim = {4}}, 2, {"'relu' stands beside 'linear'"}},
    {"- [relu]\n", {.dims = 1, .dim = {4}}, 1, {"expected a layer"}},
    {"- name: x\n", {.dims = 1, .dim = {4}}, 1, {"expected a layer"}},
    {"- linear: 16000000\n", {.dims = 1, .dim = {100000}}, 1, {"2^31 parameters"}},
    {"- relu\n", {.dims = 8, .dim = {1, 1, 1, 1, 1, 1, 1, 2}}, 0, {"1 to 7 dimensions", "have 8"}},
    {"- relu\n", {0}, 0, {"1 to 7 dimensions", "have 0"}},
    {"- linear: 3\n", {.dims = 2, .dim = {4, 4}}, 1, {"4x4", "add flatten"}},
};

static void test_bad_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        gr_diag diag;
        gr_status status = spec_status(bads[i].layers, &bads[i].input, &diag);
        if (status != GR_E_INVALID) {
            fail_msg("accepted (%s): %s", gr_status_name(status), bads[i].layers);
        }
        char where[32];
        snprintf(where, sizeof where, "job.yaml:%d:", bads[i].line);
        if (bads[i].line > 0 && strncmp(diag.text, where, strlen(where)) != 0) {
            fail_msg("not at line %d: %s", bads[i].line, diag.text);
        }
        for (int part = 0; part < 3 && bads[i].says[part]; part++) {
            if (!strstr(diag.text, bads[i].says[part])) {
                fail_msg("no '%s' in: %s", bads[i].says[part], diag.text);
            }
        }
    }
}

static void test_residuals_nest_to_a_limit(void **state)
{
    (void)state;
    char text[1024] = "[";
    for (int i = 0; i < 17; i++) {
        strcat(text, "residual: [");
    }
    strcat(text, "relu");
    for (int i = 0; i < 17; i++) {
        strcat(text, "]");
    }
    strcat(text, "]");
    gr_diag diag;
    gr_shape input = FEATURES(4);
    assert_int_equal(spec_status(text, &input, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "nested deeper"));
}

static void test_too_many_layers(void **state)
{
    (void)state;
    char *text = malloc(8 * 1001 + 1);
    char *at = text;
    for (int i = 0; i < 1001; i++) {
        at += sprintf(at, "- relu\n");
    }
    gr_diag diag;
    gr_shape input = FEATURES(4);
    assert_int_equal(spec_status(text, &input, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "job.yaml:1001:"));
    text[7 * 1000] = 0;
    assert_int_equal(spec_status(text, &input, &diag), GR_OK);
    free(text);
}

typedef struct layer_is {
    const char *name, *kind, *shape;
    int64_t parameters;
} layer_is;

static void check_layers(const char *layers, gr_shape input, const layer_is *expected)
{
    net n;
    net_open(&n, &(net_options){.layers = layers, .input = input, .batch = 1, .loss = GR_LOSS_MSE});
    int count = 0;
    for (; expected[count].name; count++) {
        assert_true(count < gr_model_spec_layers(n.spec));
        const gr_layer_info *info = gr_model_spec_layer(n.spec, count);
        char shape[64];
        gr_shape_format(&info->output, shape, sizeof shape);
        assert_string_equal(info->name, expected[count].name);
        assert_string_equal(info->kind, expected[count].kind);
        assert_string_equal(shape, expected[count].shape);
        assert_int_equal(info->parameters, expected[count].parameters);
    }
    assert_int_equal(gr_model_spec_layers(n.spec), count);
    net_close(&n);
}

static void test_shapes_names_and_parameters(void **state)
{
    (void)state;
    check_layers("- conv2d: {channels: 16, kernel: 5, padding: 2, name: stem}\n"
                 "- relu:\n"
                 "- max_pool: {kernel: 3, stride: 2, padding: same}\n"
                 "- conv2d: {channels: 8, kernel: 3, stride: 2, padding: same, bias: no}\n"
                 "  name: conv1\n"
                 "- conv2d: {channels: 8, kernel: 1}\n"
                 "- batch_norm\n"
                 "- residual: [gelu, dropout: 0.1]\n"
                 "- avg_pool: 2\n"
                 "- add: {from: avg_pool1}\n"
                 "- global_pool\n"
                 "- flatten\n"
                 "- linear: {units: 10}\n",
                 IMAGE(1, 28, 27),
                 (const layer_is[]){{"stem", "conv2d", "16x28x27", 16 * 25 + 16},
                                    {"relu1", "relu", "16x28x27", 0},
                                    {"max_pool1", "max_pool", "16x14x14", 0},
                                    {"conv1", "conv2d", "8x7x7", 8 * 16 * 9},
                                    {"conv3", "conv2d", "8x7x7", 8 * 8 + 8},
                                    {"bn1", "batch_norm", "8x7x7", 16},
                                    {"gelu1", "gelu", "8x7x7", 0},
                                    {"dropout1", "dropout", "8x7x7", 0},
                                    {"add1", "add", "8x7x7", 0},
                                    {"avg_pool1", "avg_pool", "8x3x3", 0},
                                    {"add2", "add", "8x3x3", 0},
                                    {"global_pool1", "global_pool", "8", 0},
                                    {"flatten1", "flatten", "8", 0},
                                    {"linear1", "linear", "10", 90},
                                    {0}});
}

static void test_models_that_cannot_be_made(void **state)
{
    (void)state;
    net n;
    net_open(&n, &(net_options){.layers = "[conv2d: {channels: 2, kernel: 1}]",
                                .input = IMAGE(1, 4, 4),
                                .batch = 1,
                                .loss = GR_LOSS_MSE});
    gr_model *model = NULL;
    gr_diag diag;
    gr_model_config config = {.spec = n.spec, .batch = 1, .training = true};
    assert_int_equal(gr_model_create(&config, &model, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "2x4x4"));
    assert_non_null(strstr(diag.text, "flatten"));
    config.loss = GR_LOSS_MSE;
    config.batch = 0;
    assert_int_equal(gr_model_create(&config, &model, &diag), GR_E_INVALID);
    assert_null(model);
    net_close(&n);
}

static void test_types_without_a_kernel(void **state)
{
    (void)state;
    static const struct {
        gr_dtype type;
        gr_memory_kind memory;
        const char *says;
    } refused[] = {
        {GR_I64, GR_MEMORY_HOST,
         "layer first (linear) has no kernel for type i64 of its tensor 'input'"},
        {GR_BF16, GR_MEMORY_HOST, "(linear) has no kernel for type bf16"},
        {GR_F32, GR_MEMORY_CUDA, "computes in the memory of the host, but its tensor 'input'"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        net n;
        gr_model *model = NULL;
        gr_model_spec *spec = NULL;
        net_open(&n, &(net_options){.layers = "[{linear: 3, name: first}, relu]",
                                    .input = FEATURES(4),
                                    .batch = 2});
        gr_shape input = {
            .dims = 1, .dim = {4}, .type = refused[i].type, .memory = refused[i].memory};
        assert_int_equal(gr_model_spec_read(gr_doc_root(n.doc), &input, &n.arena, &spec, &n.diag),
                         GR_OK);
        gr_model_config config = {.spec = spec, .batch = 2};
        assert_int_equal(gr_model_create(&config, &model, &n.diag), GR_E_UNSUPPORTED);
        assert_non_null(strstr(n.diag.text, refused[i].says));
        assert_null(model);
        net_close(&n);
    }
}

/* Two and seven dimensions: the same with oneDNN as with the reference. */
static void test_samples_of_other_dimensions(void **state)
{
    (void)state;
    static const gr_shape inputs[] = {{.dims = 2, .dim = {5, 6}},
                                      {.dims = 7, .dim = {2, 1, 3, 1, 2, 1, 2}}};
    for (int i = 0; i < 2; i++) {
        net fast, slow;
        net_options options = {.layers = "[relu, gelu, dropout: 0.2, flatten, linear: 3]",
                               .input = inputs[i],
                               .batch = 4};
        net_open(&fast, &options);
        options.backend = "reference";
        net_open(&slow, &options);
        double a = net_step(&fast), b = net_step(&slow);
        assert_true(a - b < 1e-5 * b && b - a < 1e-5 * b);
        assert_true(relative_distance(fast.gradients, slow.gradients, fast.values_count) < 1e-5);
        net_close(&fast);
        net_close(&slow);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_residuals_nest_to_a_limit),
        cmocka_unit_test(test_too_many_layers),
        cmocka_unit_test(test_shapes_names_and_parameters),
        cmocka_unit_test(test_models_that_cannot_be_made),
        cmocka_unit_test(test_types_without_a_kernel),
        cmocka_unit_test(test_samples_of_other_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
