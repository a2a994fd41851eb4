/* SPDX-License-Identifier: Apache-2.0 */
/* A layer, a backend and an optimizer of the program's own, in this file alone: a row each. */
#include "support_nn.h"

#include "doc/config_node.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- scale: y = by * w * x, w a parameter of each feature or channel's pixel ----------------- */

typedef struct scale_settings {
    double by;
    bool wide, half;
} scale_settings;

static const gr_config_field scale_fields[] = {
    {.key = "by",
     .type = GR_CONFIG_DOUBLE,
     .offset = offsetof(scale_settings, by),
     .min = 0.5,
     .max = 2,
     .help = "factor"},
    {.key = "wide",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(scale_settings, wide),
     .default_text = "false",
     .help = "twice the factor"},
    {.key = "half",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(scale_settings, half),
     .default_text = "false",
     .help = "parameters of type bf16, for which there are no kernels"},
    {0}};
static const gr_config_table scale_table = {
    .name = "scale", .fields = scale_fields, .struct_bytes = sizeof(scale_settings)};

static float factor_of(const gr_layer *layer)
{
    const scale_settings *set = layer->spec->set;
    return (float)(set->wide ? 2 * set->by : set->by);
}

static gr_status scale_shape(gr_layer_spec *spec, const gr_node *node, gr_diag *diag)
{
    (void)node, (void)diag;
    spec->info.parameters = gr_shape_count(&spec->shape_in);
    return GR_OK;
}

static int scale_tensors(const gr_layer_spec *spec, gr_tensor_need needs[GR_LAYER_TENSORS_MAX])
{
    needs[0] = (gr_tensor_need){
        .role = GR_ROLE_WEIGHT, .suffix = "weight", .shape = spec->shape_in, .decay = true};
    needs[0].shape.type = ((const scale_settings *)spec->set)->half ? GR_BF16 : GR_F32;
    return 1;
}

static void scale_init(const gr_model *model, const gr_layer *layer, float *values)
{
    (void)model;
    for (int64_t i = 0; i < gr_shape_count(&layer->spec->shape_in); i++) {
        values[layer->offset[GR_ROLE_WEIGHT] + (size_t)i] = 1.0f;
    }
}

static gr_status scale_forward(gr_model *model, gr_layer *layer, const gr_pass *pass, gr_diag *diag)
{
    (void)diag;
    size_t width = (size_t)gr_shape_count(&layer->spec->shape_in);
    const float *w = pass->values + layer->offset[GR_ROLE_WEIGHT], *x = gr_layer_x(model, layer);
    float *y = gr_layer_y(model, layer);
    for (size_t i = 0; i < width * (size_t)model->config.batch; i++) {
        y[i] = factor_of(layer) * w[i % width] * x[i];
    }
    return GR_OK;
}

static gr_status scale_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                gr_diag *diag)
{
    (void)diag;
    size_t width = (size_t)gr_shape_count(&layer->spec->shape_in);
    const float *w = pass->values + layer->offset[GR_ROLE_WEIGHT], *x = gr_layer_x(model, layer);
    const float *dy = gr_layer_dy(model, layer);
    float *dx = gr_layer_dx(model, layer), *dw = pass->gradients + layer->offset[GR_ROLE_WEIGHT];
    memset(dw, 0, width * sizeof *dw);
    for (size_t i = 0; i < width * (size_t)model->config.batch; i++) {
        dw[i % width] += factor_of(layer) * x[i] * dy[i];
        if (dx) {
            dx[i] = factor_of(layer) * w[i % width] * dy[i];
        }
    }
    return GR_OK;
}

static const gr_layer_ops scale_ops = {
    .kind = "scale",
    .prefix = "scale",
    .help = "each value times a parameter",
    .settings = &scale_table,
    .main = "by",
    .needs_input_back = true,
    .shape = scale_shape,
    .tensors = scale_tensors,
    .init = scale_init,
    .reference = {.forward = scale_forward, .backward = scale_backward},
};

const gr_layer_ops *const gr_extra_layers[] = {&scale_ops, NULL};

/* ---- A backend with a kernel for linear alone ------------------------------------------------ */

static int counted; /* forward passes of the kernel below */

static gr_status counting_forward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                  gr_diag *diag)
{
    counted++;
    return gr_linear_ops.reference.forward(model, layer, pass, diag);
}

static gr_status counting_backward(gr_model *model, gr_layer *layer, const gr_pass *pass,
                                   gr_diag *diag)
{
    return gr_linear_ops.reference.backward(model, layer, pass, diag);
}

static const gr_kernels counting_linear = {.forward = counting_forward,
                                           .backward = counting_backward};
static const gr_backend_kernels counting_kernels[] = {{&gr_linear_ops, &counting_linear},
                                                      {NULL, NULL}};
static const gr_backend counting = {.name = "counting", .kernels = counting_kernels};

const gr_backend *const gr_extra_backends[] = {&counting, NULL};

/* ---- sign_sgd: a step of one size against the sign of the gradient --------------------------- */

typedef struct sign_settings {
    double size;
    bool twice;
} sign_settings;
#define OWN(type, member) (offsetof(gr_optimizer_config, own) + offsetof(type, member))

static const gr_config_field sign_fields[] = {{.key = "size",
                                               .type = GR_CONFIG_DOUBLE,
                                               .offset = OWN(sign_settings, size),
                                               .default_text = "0.25",
                                               .min = 0,
                                               .max = 1,
                                               .help = "sign_sgd: step"},
                                              {.key = "twice",
                                               .type = GR_CONFIG_BOOL,
                                               .offset = OWN(sign_settings, twice),
                                               .help = "sign_sgd: two steps"},
                                              {0}};

typedef struct sign_numbers {
    float by;
} sign_numbers;

static void sign_prepare(const gr_optimizer_config *config, const gr_optimizer_now *now,
                         unsigned char numbers_out[GR_OPTIMIZER_NUMBERS_BYTES])
{
    sign_settings set;
    memcpy(&set, config->own, sizeof set);
    sign_numbers numbers = {(float)(now->learning_rate * set.size * (set.twice ? 2 : 1))};
    memcpy(numbers_out, &numbers, sizeof numbers);
}

static bool sign_update(const unsigned char numbers[GR_OPTIMIZER_NUMBERS_BYTES], float *values,
                        float *const *states, const float *gradients, size_t count)
{
    sign_numbers n;
    memcpy(&n, numbers, sizeof n);
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        states[0][i] += 1.0f;
        values[i] -= gradients[i] > 0 ? n.by : gradients[i] < 0 ? -n.by : 0.0f;
        finite = finite && isfinite(gradients[i]);
    }
    return finite;
}

static const gr_optimizer_ops sign_sgd = {.name = "sign_sgd",
                                          .settings = sign_fields,
                                          .states = {"updates"},
                                          .prepare = sign_prepare,
                                          .update = sign_update};

/* Its setting lies where one of sign_sgd lies. */
static const gr_config_field other_fields[] = {{.key = "length",
                                                .type = GR_CONFIG_DOUBLE,
                                                .offset = OWN(sign_settings, size),
                                                .default_text = "4",
                                                .help = "other"},
                                               {0}};
static const gr_optimizer_ops other = {
    .name = "other", .settings = other_fields, .prepare = sign_prepare, .update = sign_update};

const gr_optimizer_ops *const gr_extra_optimizers[] = {&sign_sgd, &other, NULL};

/* ---- Tests ----------------------------------------------------------------------------------- */

static const char *const images = "- conv2d: {channels: 5, kernel: 3, padding: same}\n"
                                  "- scale: 0.75\n"
                                  "- relu\n"
                                  "- scale: {by: 1.5, wide: true, name: last}\n"
                                  "- max_pool: 2\n"
                                  "- flatten\n"
                                  "- scale: 2\n"
                                  "- linear: 4\n";

static void open_images(net *n, const char *backend)
{
    net_open(n, &(net_options){
                    .layers = images, .input = IMAGE(2, 6, 6), .batch = 3, .backend = backend});
}

static void own_layer_among_blocked_layouts_computes_as_the_reference(void **state)
{
    (void)state;
    net fast, slow;
    open_images(&fast, "onednn");
    open_images(&slow, "reference");
    assert_int_equal(fast.values_count, slow.values_count);
    assert_string_equal(gr_model_spec_layer(fast.spec, 1)->name, "scale1");
    assert_string_equal(gr_model_spec_layer(fast.spec, 3)->name, "last");
    assert_int_equal(gr_model_spec_layer(fast.spec, 3)->parameters, 5 * 6 * 6);
    double a = net_step(&fast), b = net_step(&slow);
    assert_true(fabs(a - b) < 1e-5 * fabs(b));
    assert_true(relative_distance(fast.gradients, slow.gradients, fast.values_count) < 1e-5);
    net_close(&fast);
    net_close(&slow);
}

static void own_layer_has_the_gradient_of_finite_differences(void **state)
{
    (void)state;
    net n;
    open_images(&n, "onednn");
    net_step(&n);
    int checked = 0, off = 0;
    for (int t = 0; t < gr_model_tensors(n.model); t++) {
        const gr_tensor_info *info = gr_model_tensor(n.model, t);
        if (strstr(info->name, "scale3.weight") == NULL) {
            continue;
        }
        for (size_t i = info->offset; i < info->offset + info->count; i++) {
            float kept = n.values[i], h = 2e-3f;
            n.values[i] = kept + h;
            double above = net_loss(&n);
            n.values[i] = kept - h;
            double below = net_loss(&n);
            n.values[i] = kept;
            double slope = (above - below) / (2 * (double)h), own = (double)n.gradients[i];
            off += fabs(slope - own) > 2e-2 * fmax(fabs(own), 0.05);
            checked++;
        }
    }
    assert_int_equal(checked, 5 * 3 * 3);
    assert_true(off * 20 <= checked);
    net_close(&n);
}

static void own_layer_with_bad_settings_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *says[2];
    } bad[] = {
        {"- relu\n- scale\n", {"job.yaml:2: ", "scale needs the setting 'by'"}},
        {"- scale: 3\n", {"job.yaml:1: ", "a number from 0.5 to 2, not \"3\""}},
        {"- scale: {by: 1, wid: true}\n", {"wid", "wide"}},
        {"- scael: 1\n", {"'scael'", "did you mean 'scale'?"}},
        {"- zzzzzzzzzz\n", {"layers are linear", "add, scale or residual"}},
    };
    gr_shape input = FEATURES(4);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gr_diag diag;
        assert_int_equal(spec_status(bad[i].layers, &input, &diag), GR_E_INVALID);
        for (int part = 0; part < 2; part++) {
            if (strstr(diag.text, bad[i].says[part]) == NULL) {
                fail_msg("no '%s' in: %s", bad[i].says[part], diag.text);
            }
        }
    }
}

static void own_layer_of_a_type_without_kernels_is_refused(void **state)
{
    (void)state;
    net n;
    gr_doc *doc = NULL;
    gr_model_spec *spec = NULL;
    gr_model *model = NULL;
    static const char layers[] = "- scale: {by: 1, half: true, name: thin}\n";
    open_images(&n, NULL);
    assert_int_equal(gr_doc_parse_yaml("job.yaml", layers, strlen(layers), &doc, &n.diag), GR_OK);
    assert_int_equal(gr_model_spec_read(gr_doc_root(doc), &FEATURES(4), &n.arena, &spec, &n.diag),
                     GR_OK);
    gr_model_config config = {.spec = spec, .batch = 2};
    assert_int_equal(gr_model_create(&config, &model, &n.diag), GR_E_UNSUPPORTED);
    assert_non_null(strstr(
        n.diag.text, "layer thin (scale) has no kernel for type bf16 of its tensor 'weight'"));
    gr_doc_destroy(doc);
    net_close(&n);
}

static void own_layer_stands_in_the_reference_page(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    gr_layers_print_markdown(file);
    fclose(file);
    assert_non_null(strstr(text, "## layer scale\n\neach value times a parameter\n"));
    assert_non_null(strstr(text, "| `wide` |  |  | `false` | true, false | twice the factor |\n"));
    assert_non_null(strstr(text, "## layer linear\n"));
    free(text);
}

static void backend_without_a_kernel_falls_back_to_the_reference(void **state)
{
    (void)state;
    net own, slow;
    open_images(&own, "counting");
    open_images(&slow, "reference");
    counted = 0;
    assert_true(fabs(net_step(&own) - net_step(&slow)) <= 0.0);
    assert_int_equal(counted, 1);
    assert_memory_equal(own.gradients, slow.gradients, own.values_count * sizeof(float));
    net_close(&own);
    net_close(&slow);
}

static void backend_of_an_unknown_name_is_refused(void **state)
{
    (void)state;
    net n;
    gr_model *model = NULL;
    open_images(&n, NULL);
    gr_model_config config = n.model->config;
    config.backend = "cuda";
    assert_int_equal(gr_model_create(&config, &model, &n.diag), GR_E_INVALID);
    assert_string_equal(n.diag.text,
                        "there is no backend named 'cuda'; take onednn, reference or counting");
    assert_null(model);
    net_close(&n);
}

/* The status of reading an `optimizer:` part. */
static gr_status read_optimizer(const char *text, gr_optimizer_config *config, gr_diag *diag)
{
    gr_arena arena;
    gr_doc *doc = NULL;
    gr_arena_init(&arena, 1 << 16);
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, strlen(text), &doc, diag), GR_OK);
    assert_int_equal(gr_config_defaults(&gr_optimizer_config_table, config, &arena, diag), GR_OK);
    gr_status status =
        gr_config_from_node(&gr_optimizer_config_table, config, gr_doc_root(doc), &arena, diag);
    if (status == GR_OK) {
        status = gr_optimizer_settle(config, gr_doc_root(doc), &arena, diag);
    }
    gr_doc_destroy(doc);
    gr_arena_fini(&arena);
    return status;
}

static void own_optimizer_trains_with_its_settings(void **state)
{
    (void)state;
    gr_optimizer_config config;
    gr_optimizer *optimizer = NULL;
    net n;
    open_images(&n, "onednn");
    assert_int_equal(
        read_optimizer("{kind: sign_sgd, learning_rate: 0.01, twice: true}", &config, &n.diag),
        GR_OK);
    assert_int_equal(gr_optimizer_states(&config), 1);
    assert_string_equal(gr_optimizer_state_name(&config, 0), "updates");
    assert_int_equal(gr_optimizer_create(&config, n.model, &optimizer, &n.diag), GR_OK);
    double first = net_step(&n), last = first;
    float before = n.values[gr_model_tensor(n.model, 0)->offset];
    for (uint64_t step = 0; step < 20; step++) {
        last = net_step(&n);
        gr_optimizer_begin(optimizer, step, config.learning_rate, 1.0f);
        assert_true(gr_optimizer_update(optimizer, n.values, n.gradients, 0, n.values_count));
        if (step == 0) {
            float moved = fabsf(n.values[gr_model_tensor(n.model, 0)->offset] - before);
            assert_true(fabsf(moved - 0.005f) < 1e-6f); /* 0.01 * 0.25, twice */
        }
    }
    assert_true(last < first / 2);
    const char *name = NULL;
    const float *updates = gr_optimizer_state(optimizer, 0, &name);
    assert_true(updates[gr_model_tensor(n.model, 0)->offset] == 20.0f);
    gr_optimizer_destroy(optimizer);
    net_close(&n);
}

static void own_optimizer_with_bad_settings_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{kind: sign_sgd, momentum: 0.9}",
         "sign_sgd has no such setting; its own are size and twice"},
        {"{kind: sign_sgd, size: 2}", "size: must be a number from 0 to 1, not \"2\""},
        {"{kind: sgd, twice: true}", "remove the line, or take kind: sign_sgd"},
        {"{kind: sign_sgt}", "must be sgd, adam, adamw, sign_sgd or other, not \"sign_sgt\"; did "
                             "you mean \"sign_sgd\"?"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gr_optimizer_config config;
        gr_diag diag = {0};
        assert_int_equal(read_optimizer(bad[i].text, &config, &diag), GR_E_INVALID);
        if (strstr(diag.text, bad[i].says) == NULL) {
            fail_msg("no '%s' in: %s", bad[i].says, diag.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_layer_among_blocked_layouts_computes_as_the_reference),
        cmocka_unit_test(own_layer_has_the_gradient_of_finite_differences),
        cmocka_unit_test(own_layer_with_bad_settings_is_refused_with_its_place),
        cmocka_unit_test(own_layer_of_a_type_without_kernels_is_refused),
        cmocka_unit_test(own_layer_stands_in_the_reference_page),
        cmocka_unit_test(backend_without_a_kernel_falls_back_to_the_reference),
        cmocka_unit_test(backend_of_an_unknown_name_is_refused),
        cmocka_unit_test(own_optimizer_trains_with_its_settings),
        cmocka_unit_test(own_optimizer_with_bad_settings_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
