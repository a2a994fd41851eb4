/* SPDX-License-Identifier: Apache-2.0 */
#include "support_nn.h"

#include "base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void must(gr_status status, const gr_diag *diag)
{
    if (status != GR_OK) {
        fail_msg("%s: %s", gr_status_name(status), diag->text);
    }
}

static void *aligned_zero(size_t count, size_t element_bytes)
{
    size_t bytes = (count * element_bytes + 64) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

/* Biases and scales that are all zero or one would hide mistakes. */
static void stir(net *n)
{
    float *noise = aligned_zero(n->values_count, sizeof *noise);
    gr_philox_normal(99, 5, 6, noise, n->values_count);
    for (int i = 0; i < gr_model_tensors(n->model); i++) {
        const gr_tensor_info *info = gr_model_tensor(n->model, i);
        for (size_t at = info->offset; at < info->offset + info->count; at++) {
            n->values[at] += (info->statistic ? fabsf(noise[at]) : noise[at]) * 0.1f;
        }
    }
    free(noise);
}

void net_open(net *n, const net_options *options)
{
    memset(n, 0, sizeof *n);
    gr_arena_init(&n->arena, 16 << 20);
    must(gr_doc_parse_yaml("job.yaml", options->layers, strlen(options->layers), &n->doc, &n->diag),
         &n->diag);
    must(gr_model_spec_read(gr_doc_root(n->doc), &options->input, &n->arena, &n->spec, &n->diag),
         &n->diag);
    gr_model_config config = {.spec = n->spec,
                              .batch = options->batch,
                              .loss = options->loss,
                              .gradient_scale = 1.0f,
                              .seed = 42,
                              .backend = options->backend,
                              .training = !options->evaluation};
    must(gr_model_create(&config, &n->model, &n->diag), &n->diag);
    size_t samples = (size_t)options->batch;
    size_t width = (size_t)gr_shape_count(gr_model_spec_output(n->spec));
    n->values_count = gr_model_values(n->model);
    n->x_count = samples * (size_t)gr_shape_count(&options->input);
    n->outputs_count = samples * width;
    n->values = aligned_zero(n->values_count, sizeof(float));
    n->gradients = aligned_zero(n->values_count, sizeof(float));
    n->x = aligned_zero(n->x_count, sizeof(float));
    n->targets = aligned_zero(n->outputs_count, sizeof(float));
    n->labels = aligned_zero(samples, sizeof(int32_t));
    gr_model_init_weights(n->model, n->values);
    stir(n);
    gr_philox_normal(7, 1, 0, n->x, n->x_count);
    gr_philox_normal(7, 2, 0, n->targets, n->outputs_count);
    for (size_t i = 0; i < samples; i++) {
        n->labels[i] = (int32_t)(i * 7 % width);
    }
    n->batch = (gr_batch){.x = n->x, .labels = n->labels, .targets = n->targets, .step = 3};
}

void net_close(net *n)
{
    gr_model_destroy(n->model);
    gr_doc_destroy(n->doc);
    gr_arena_fini(&n->arena);
    free(n->values);
    free(n->gradients);
    free(n->x);
    free(n->targets);
    free(n->labels);
}

double net_loss(net *n)
{
    gr_batch_result result;
    must(gr_model_forward(n->model, n->values, &n->batch, &result, &n->diag), &n->diag);
    return result.loss;
}

double net_step(net *n)
{
    double loss = net_loss(n);
    must(gr_model_backward(n->model, n->values, &n->batch, n->gradients, NULL, NULL, &n->diag),
         &n->diag);
    return loss;
}

double net_outputs(net *n, float *out)
{
    gr_batch_result result;
    must(gr_model_evaluate(n->model, n->values, &n->batch, n->model->config.batch, &result, out,
                           &n->diag),
         &n->diag);
    return result.loss;
}

gr_status spec_status(const char *layers, const gr_shape *input, gr_diag *diag)
{
    gr_arena arena;
    gr_doc *doc = NULL;
    gr_model_spec *spec = NULL;
    memset(diag, 0, sizeof *diag);
    gr_arena_init(&arena, 16 << 20);
    must(gr_doc_parse_yaml("job.yaml", layers, strlen(layers), &doc, diag), diag);
    gr_status status = gr_model_spec_read(gr_doc_root(doc), input, &arena, &spec, diag);
    gr_doc_destroy(doc);
    gr_arena_fini(&arena);
    return status;
}

double relative_distance(const float *a, const float *b, size_t count)
{
    double norm_a = 0, norm_b = 0, distance = 0;
    for (size_t i = 0; i < count; i++) {
        double x = (double)a[i], y = (double)b[i];
        norm_a += x * x;
        norm_b += y * y;
        distance += (x - y) * (x - y);
    }
    double larger = norm_a > norm_b ? norm_a : norm_b;
    return larger > 0 || !(distance <= 0) ? sqrt(distance / (larger > 0 ? larger : 1)) : 0.0;
}
