/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of layer: the reference against finite differences, oneDNN against the reference, the
 * same bits from dirty memory, and a memory plan without overlaps. */
#include "support_nn.h"

#include "nn/memory_planner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const net_options cases[] = {
    {.layers = "[linear: 5]", .input = {.dims = 1, .dim = {7}}, .batch = 3},
    {.layers = "[linear: {units: 5, bias: false}]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 3,
     .loss = 1},
    {.layers = "[linear: 9, relu, linear: 20, relu, linear: 4]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 5},
    {.layers = "[linear: 37, relu, linear: {units: 9, bias: no}, relu, linear: 4]",
     .input = {.dims = 1, .dim = {19}},
     .batch = 13},
    {.layers = "[linear: 9, gelu, linear: 4]", .input = {.dims = 1, .dim = {7}}, .batch = 4},
    {.layers = "[flatten, linear: 6, dropout: 0.4, linear: 4]",
     .input = {.dims = 3, .dim = {2, 3, 3}},
     .batch = 5},
    {.layers = "[conv2d: {channels: 4, kernel: 3, padding: same}, flatten, linear: 3]",
     .input = {.dims = 3, .dim = {1, 6, 5}},
     .batch = 3},
    {.layers =
         "[conv2d: {channels: 16, kernel: 3}, relu, conv2d: {channels: 20, kernel: 3, stride: "
         "2, padding: 1, bias: false}, gelu, flatten, linear: 3]",
     .input = {.dims = 3, .dim = {3, 9, 8}},
     .batch = 2},
    {.layers = "[conv2d: {channels: 16, kernel: 5, padding: 2}, relu, max_pool: 2, conv2d: "
               "{channels: 32, kernel: 3, padding: 1}, relu, max_pool: {kernel: 3, stride: 2, "
               "padding: 1}, flatten, linear: 8, relu, linear: 5]",
     .input = {.dims = 3, .dim = {1, 8, 8}},
     .batch = 3},
    {.layers = "[conv2d: {channels: 5, kernel: 3}, avg_pool: {kernel: 3, stride: 2, padding: 1}, "
               "conv2d: {channels: 6, kernel: 1}, global_pool, linear: 3]",
     .input = {.dims = 3, .dim = {2, 7, 7}},
     .batch = 3},
    {.layers = "[linear: 12, batch_norm, relu, linear: 4]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 8},
    {.layers =
         "[batch_norm, conv2d: {channels: 17, kernel: 3, bias: false}, batch_norm: {momentum: "
         "0.3, epsilon: 0.001}, relu, max_pool: 2, global_pool, linear: 3]",
     .input = {.dims = 3, .dim = {2, 8, 8}},
     .batch = 4},
    {.layers = "[linear: {units: 6, name: a}, relu, linear: 6, add: {from: a}, relu, linear: 3]",
     .input = {.dims = 1, .dim = {5}},
     .batch = 4},
    {.layers = "[conv2d: {channels: 16, kernel: 3, padding: same}, relu, residual: [conv2d: "
               "{channels: 16, kernel: 3, padding: same}, batch_norm, relu, conv2d: {channels: 16, "
               "kernel: 3, padding: same}], relu, residual: [batch_norm, gelu], global_pool, "
               "linear: 3]",
     .input = {.dims = 3, .dim = {1, 6, 6}},
     .batch = 3},
    {.layers = "[conv2d: {channels: 3, kernel: 3, padding: same, name: c}, add: {from: input}, "
               "dropout: 0.3, add: {from: c}, add: {from: add2}, flatten, relu, linear: 3]",
     .input = {.dims = 3, .dim = {3, 5, 5}},
     .batch = 3},
    {.layers = "[conv2d: {channels: 4, kernel: 3}, relu, conv2d: {channels: 2, kernel: 3}]",
     .input = {.dims = 3, .dim = {1, 6, 6}},
     .batch = 2,
     .loss = 1},
    {.layers = "[relu, flatten, linear: 20, residual: [relu, linear: 20, dropout: 0.5], relu, "
               "residual: [residual: [linear: 20], gelu], linear: 4]",
     .input = {.dims = 3, .dim = {1, 4, 4}},
     .batch = 4},
    {.layers = "[batch_norm, relu, residual: [batch_norm, gelu], dropout: 0.2, softmax, flatten, "
               "linear: 3]",
     .input = {.dims = 2, .dim = {3, 5}},
     .batch = 4},
    {.layers = "[batch_norm, relu, batch_norm, tanh, flatten, linear: 3]",
     .input = {.dims = 7, .dim = {3, 2, 1, 2, 1, 2, 2}},
     .batch = 4},
    {.layers = "[linear: 9, sigmoid, linear: 4, sigmoid]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 4,
     .loss = 1},
    {.layers = "[linear: 9, tanh, linear: 4, tanh]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 4,
     .loss = 1},
    {.layers = "[linear: 6, softmax, linear: 5, softmax]",
     .input = {.dims = 1, .dim = {7}},
     .batch = 4,
     .loss = 1},
    {.layers = "[conv2d: {channels: 5, kernel: 3}, sigmoid, conv2d: {channels: 6, kernel: 3}, "
               "tanh, conv2d: {channels: 3, kernel: 1}, softmax, flatten, linear: 4]",
     .input = {.dims = 3, .dim = {2, 7, 7}},
     .batch = 3},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void open_case(net *n, int index, const char *backend)
{
    net_options options = cases[index];
    options.backend = backend;
    net_open(n, &options);
}

/* Is the gradient of one weight the central difference of the loss? */
static bool derivative_fits(net *n, size_t at, double norm, float step)
{
    float kept = n->values[at];
    n->values[at] = kept + step;
    double above = net_loss(n), high = (double)n->values[at];
    n->values[at] = kept - step;
    double below = net_loss(n), low = (double)n->values[at];
    n->values[at] = kept;
    double expected = (above - below) / (high - low);
    double error = fabs(expected - (double)n->gradients[at]);
    return error < 2e-2 * (fabs(expected) + 0.2 * norm);
}

/* Weights and activations are f32, so the quotient is good to about three digits. Where a ReLU or a
 * maximum changes over within the step it is not good at all: then a smaller step is tried, and a
 * few outliers may be left. */
static void test_finite_differences(void **state)
{
    (void)state;
    for (int run = 0; run < 2 * CASES; run++) {
        int index = run / 2, checked = 0, off = 0;
        net n;
        open_case(&n, index, run % 2 ? "reference" : "onednn");
        net_step(&n);
        double norm = sqrt(gr_gradient_square_sum(n.model, n.gradients) /
                           (double)gr_model_parameters(n.model));
        for (int t = 0; t < gr_model_tensors(n.model); t++) {
            const gr_tensor_info *info = gr_model_tensor(n.model, t);
            size_t stride = info->count > 24 ? info->count / 24 : 1;
            size_t end = info->statistic ? 0 : info->offset + info->count;
            for (size_t i = info->offset; i < end; i += stride) {
                checked++;
                off += !derivative_fits(&n, i, norm, 4e-3f) && !derivative_fits(&n, i, norm, 6e-4f);
            }
        }
        assert_true(checked > 0);
        if (off * 40 > checked) {
            fail_msg("case %d (%s) backend %s: %d of %d derivatives are off", index,
                     cases[index].layers, run % 2 ? "reference" : "onednn", off, checked);
        }
        net_close(&n);
    }
}

static void test_onednn_is_as_the_reference(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net fast, slow;
        open_case(&fast, index, "onednn");
        open_case(&slow, index, "reference");
        assert_int_equal(fast.values_count, slow.values_count);
        assert_memory_equal(fast.values, slow.values, fast.values_count * sizeof(float));
        float *a = calloc(fast.outputs_count, sizeof *a),
              *b = calloc(fast.outputs_count, sizeof *b);
        double evaluated = net_outputs(&fast, a), expected = net_outputs(&slow, b);
        assert_true(fabs(evaluated - expected) < 1e-4 * (1 + fabs(expected)));
        assert_true(relative_distance(a, b, fast.outputs_count) < 1e-5);
        double loss = net_step(&fast), slow_loss = net_step(&slow);
        assert_true(fabs(loss - slow_loss) < 1e-5 * (1 + fabs(slow_loss)));
        for (int t = 0; t < gr_model_tensors(fast.model); t++) {
            const gr_tensor_info *info = gr_model_tensor(fast.model, t);
            double distance = relative_distance(fast.gradients + info->offset,
                                                slow.gradients + info->offset, info->count);
            /* A bias before a batch norm has no gradient: only rounding is left to compare. */
            double size = 0;
            for (size_t i = 0; i < info->count; i++) {
                size += fabs((double)slow.gradients[info->offset + i]);
            }
            if (distance > 2e-5 && size > 1e-4 * (double)info->count) {
                fail_msg("case %d (%s), %s: relative distance %g", index, cases[index].layers,
                         info->name, distance);
            }
        }
        free(a);
        free(b);
        net_close(&fast);
        net_close(&slow);
    }
}

static void test_same_bits_from_dirty_memory(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net n;
        open_case(&n, index, "onednn");
        double first = net_step(&n);
        float *kept = malloc(n.values_count * sizeof *kept);
        memcpy(kept, n.gradients, n.values_count * sizeof *kept);
        for (int byte = 0; byte < 256; byte += 255) { /* 255: each float is NaN */
            gr_memory_planner_fill(n.model->memory, byte);
            memset(n.gradients, 255, n.values_count * sizeof(float));
            double again = net_step(&n);
            assert_memory_equal(&first, &again, sizeof first);
            if (memcmp(kept, n.gradients, n.values_count * sizeof *kept) != 0) {
                fail_msg("case %d (%s): other bits from memory full of %d", index,
                         cases[index].layers, byte);
            }
        }
        /* Evaluation in between leaves nothing behind. */
        net_outputs(&n, NULL);
        net_step(&n);
        assert_memory_equal(kept, n.gradients, n.values_count * sizeof *kept);
        free(kept);
        net_close(&n);
    }
}

/* Another place of the flat vectors and samples, as far as 64 bytes go. */
static void test_same_bits_at_other_addresses(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net n;
        open_case(&n, index, "onednn");
        net_step(&n);
        size_t shift = 16, count = n.values_count + n.x_count + 4 * shift;
        float *space = aligned_alloc(4096, (2 * count * sizeof *space + 4095) / 4096 * 4096);
        float *values = space + shift;
        float *x = space + (n.values_count + 63) / 16 * 16 + 3 * shift;
        float *gradients = aligned_alloc(64, (n.values_count * sizeof *space + 63) / 64 * 64);
        memcpy(values, n.values, n.values_count * sizeof *values);
        memcpy(x, n.x, n.x_count * sizeof *x);
        gr_batch batch = n.batch;
        batch.x = x;
        gr_batch_result result;
        assert_int_equal(gr_model_forward(n.model, values, &batch, &result, &n.diag), GR_OK);
        assert_int_equal(gr_model_backward(n.model, values, &batch, gradients, NULL, NULL, &n.diag),
                         GR_OK);
        assert_memory_equal(gradients, n.gradients, n.values_count * sizeof *space);
        free(space);
        free(gradients);
        net_close(&n);
    }
}

static void test_memory_that_lives_together_lies_apart(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net n;
        open_case(&n, index, "onednn");
        const gr_memory_planner *memory = n.model->memory;
        size_t sum = 0;
        for (int i = 0; i < gr_memory_planner_count(memory); i++) {
            gr_memory_planner_span a = gr_memory_planner_span_of(memory, i);
            assert_true(a.offset % GR_MEMORY_ALIGN == 0);
            assert_true(a.offset + a.size_bytes <= gr_memory_planner_bytes(memory));
            sum += a.size_bytes;
            for (int j = 0; j < i; j++) {
                gr_memory_planner_span b = gr_memory_planner_span_of(memory, j);
                bool together = a.first <= b.last && b.first <= a.last;
                bool apart =
                    a.offset + a.size_bytes <= b.offset || b.offset + b.size_bytes <= a.offset;
                assert_true(!together || apart);
            }
        }
        if (n.model->layer_count > 4) {
            assert_true(gr_memory_planner_bytes(memory) < sum); /* something is reused */
        }
        net_close(&n);
    }
}

/* An evaluation-only model gives the same outputs in less memory. */
static void test_evaluation_model(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net training, evaluation;
        open_case(&training, index, "onednn");
        net_options options = cases[index];
        options.evaluation = true;
        net_open(&evaluation, &options);
        size_t count = training.outputs_count;
        float *a = calloc(count, sizeof *a), *b = calloc(count, sizeof *b);
        net_outputs(&training, a);
        net_outputs(&evaluation, b);
        assert_memory_equal(a, b, count * sizeof *a);
        assert_true(gr_model_arena_bytes(evaluation.model) <= gr_model_arena_bytes(training.model));
        gr_batch_result result;
        assert_int_equal(gr_model_forward(evaluation.model, evaluation.values, &evaluation.batch,
                                          &result, &evaluation.diag),
                         GR_E_BUG);
        free(a);
        free(b);
        net_close(&training);
        net_close(&evaluation);
    }
}

typedef struct heard {
    const net *n;
    size_t end;
    int calls;
    float *seen;
} heard;

static void hear(void *ready_arg, size_t end)
{
    heard *h = ready_arg;
    assert_true(end > h->end);
    memcpy(h->seen + h->end, h->n->gradients + h->end, (end - h->end) * sizeof *h->seen);
    h->end = end;
    h->calls++;
}

/* What was announced as final did not change afterwards. */
static void test_ready_prefix_is_final(void **state)
{
    (void)state;
    for (int index = 0; index < CASES; index++) {
        net n;
        open_case(&n, index, "onednn");
        heard h = {.n = &n, .seen = calloc(n.values_count, sizeof(float))};
        net_loss(&n);
        memset(n.gradients, 255, n.values_count * sizeof(float));
        assert_int_equal(
            gr_model_backward(n.model, n.values, &n.batch, n.gradients, hear, &h, &n.diag), GR_OK);
        int with_parameters = 0;
        for (int i = 0; i < gr_model_spec_layers(n.spec); i++) {
            with_parameters += gr_model_spec_layer(n.spec, i)->parameters > 0;
        }
        assert_int_equal(h.calls, with_parameters);
        assert_int_equal(h.end, n.values_count);
        assert_memory_equal(h.seen, n.gradients, n.values_count * sizeof(float));
        assert_false(gr_any_not_finite(n.gradients, n.values_count));
        /* A second backward pass needs a second forward pass. */
        assert_int_equal(
            gr_model_backward(n.model, n.values, &n.batch, n.gradients, NULL, NULL, &n.diag),
            GR_E_BUG);
        free(h.seen);
        net_close(&n);
    }
}

static void test_layout_of_the_flat_vector(void **state)
{
    (void)state;
    net n;
    open_case(&n, 11, "onednn");
    static const char *const names[] = {"bn1.running_mean", "bn1.running_var", "bn2.running_mean",
                                        "bn2.running_var",  "linear1.weight",  "linear1.bias",
                                        "bn2.weight",       "bn2.bias",        "conv1.weight",
                                        "bn1.weight",       "bn1.bias"};
    assert_int_equal(gr_model_tensors(n.model), 11);
    size_t end = 0, parameters = 0;
    for (int i = 0; i < 11; i++) {
        const gr_tensor_info *info = gr_model_tensor(n.model, i);
        assert_string_equal(info->name, names[i]);
        assert_int_equal(info->offset % 16, 0);
        assert_true(info->offset >= end && info->offset < end + 16);
        assert_int_equal(info->statistic, i < 4);
        assert_int_equal(info->decay, i == 4 || i == 8);
        assert_int_equal(info->count, gr_shape_count(&info->shape));
        end = info->offset + info->count;
        parameters += info->statistic ? 0 : info->count;
    }
    assert_int_equal(gr_model_parameters(n.model), parameters);
    char text[64];
    gr_shape_format(&gr_model_tensor(n.model, 8)->shape, text, sizeof text);
    assert_string_equal(text, "17x2x3x3");
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_onednn_is_as_the_reference),
        cmocka_unit_test(test_same_bits_from_dirty_memory),
        cmocka_unit_test(test_same_bits_at_other_addresses),
        cmocka_unit_test(test_memory_that_lives_together_lies_apart),
        cmocka_unit_test(test_evaluation_model),
        cmocka_unit_test(test_ready_prefix_is_final),
        cmocka_unit_test(test_layout_of_the_flat_vector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
