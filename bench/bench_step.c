/* SPDX-License-Identifier: Apache-2.0 */
/* The bare training step of the engine: forward, backward, optimizer; no data, no distribution.
 * torch_step.py measures the same step in PyTorch. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/philox.h"
#include "doc/doc.h"
#include "nn/layer.h"
#include "nn/model.h"
#include "nn/optimizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char mlp[] = "[flatten, linear: 512, relu, linear: 512, relu, linear: 10]";
static const char cnn[] = "[conv2d: {channels: 16, kernel: 5, padding: 2}, relu, max_pool: 2, "
                          "conv2d: {channels: 32, kernel: 5, padding: 2}, relu, max_pool: 2, "
                          "flatten, linear: 128, relu, linear: 10]";

enum { LAPS_MAX = 1 << 20, WARM_UP = 10 };

typedef struct options {
    const char *model;
    int batch;
    double seconds;
    bool json, phases, kernels;
} options;

typedef struct bench {
    gr_arena arena;
    gr_doc *doc;
    gr_model *model;
    gr_optimizer *optimizer;
    float *values, *gradients, *x;
    int32_t *labels;
    int64_t *laps_ns;
    gr_diag diag;
} bench;

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.model = "mlp", .batch = 128, .seconds = 2.0};
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            o->json = true;
        } else if (strcmp(argv[i], "--phases") == 0) {
            o->phases = true;
        } else if (strcmp(argv[i], "--kernels") == 0) {
            o->kernels = true;
        } else if (strcmp(argv[i], "--model") == 0 && more) {
            o->model = argv[++i];
        } else if (strcmp(argv[i], "--batch") == 0 && more) {
            o->batch = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seconds") == 0 && more) {
            o->seconds = atof(argv[++i]);
        } else {
            return false;
        }
    }
    return (strcmp(o->model, "mlp") == 0 || strcmp(o->model, "cnn") == 0) && o->batch > 0 &&
           o->seconds > 0;
}

static void *aligned(size_t count, size_t element_bytes)
{
    void *memory = aligned_alloc(64, (count * element_bytes + 63) / 64 * 64);
    if (memory) {
        memset(memory, 0, count * element_bytes);
    }
    return memory;
}

static gr_status set_up(bench *b, const options *o)
{
    const char *text = strcmp(o->model, "mlp") == 0 ? mlp : cnn;
    const gr_shape input = {.dims = 3, .dim = {1, 28, 28}};
    gr_model_spec *spec = NULL;
    gr_arena_init(&b->arena, 16 << 20);
    gr_status status = gr_doc_parse_yaml("bench", text, strlen(text), &b->doc, &b->diag);
    if (status == GR_OK) {
        status = gr_model_spec_read(gr_doc_root(b->doc), &input, &b->arena, &spec, &b->diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_model_config config = {.spec = spec,
                              .batch = o->batch,
                              .gradient_scale = 1.0f / (float)o->batch,
                              .seed = 1,
                              .training = true};
    status = gr_model_create(&config, &b->model, &b->diag);
    if (status != GR_OK) {
        return status;
    }
    gr_optimizer_config sgd = {.kind = GR_OPT_SGD, .learning_rate = 1e-3, .momentum = 0.9};
    status = gr_optimizer_create(&sgd, b->model, &b->optimizer, &b->diag);
    size_t samples = (size_t)o->batch;
    b->values = aligned(gr_model_values(b->model), sizeof(float));
    b->gradients = aligned(gr_model_values(b->model), sizeof(float));
    b->x = aligned(samples * 784, sizeof(float));
    b->labels = aligned(samples, sizeof(int32_t));
    b->laps_ns = malloc(LAPS_MAX * sizeof *b->laps_ns);
    if (!b->values || !b->gradients || !b->x || !b->labels || !b->laps_ns) {
        return GR_E_NO_MEMORY;
    }
    gr_model_init_weights(b->model, b->values);
    gr_philox_normal(7, 0, 0, b->x, samples * 784);
    for (size_t i = 0; i < samples; i++) {
        b->labels[i] = (int32_t)(i * 7 % 10);
    }
    return status;
}

static void tear_down(bench *b)
{
    gr_optimizer_destroy(b->optimizer);
    gr_model_destroy(b->model);
    gr_doc_destroy(b->doc);
    gr_arena_fini(&b->arena);
    free(b->values);
    free(b->gradients);
    free(b->x);
    free(b->labels);
    free(b->laps_ns);
}

/* One step; phase_ns: what forward, backward and optimizer took. */
static gr_status step(bench *b, uint64_t number, gr_batch_result *result, int64_t phase_ns[3])
{
    gr_batch batch = {.x = b->x, .labels = b->labels, .step = number};
    int64_t start = gr_now_ns();
    gr_status status = gr_model_forward(b->model, b->values, &batch, result, &b->diag);
    int64_t forward = gr_now_ns();
    if (status == GR_OK) {
        status = gr_model_backward(b->model, b->values, &batch, b->gradients, NULL, NULL, &b->diag);
    }
    int64_t backward = gr_now_ns();
    if (status == GR_OK) {
        gr_optimizer_begin(b->optimizer, number, 1e-3, 1.0f);
        gr_optimizer_update(b->optimizer, b->values, b->gradients, 0, gr_model_values(b->model));
    }
    phase_ns[0] = forward - start;
    phase_ns[1] = backward - forward;
    phase_ns[2] = gr_now_ns() - backward;
    return status;
}

/* ---- What oneDNN alone takes for the matrix products and convolutions of a step -------------- */

enum { KERNEL_RUNS = 30, SPACES = 4 };

/* Memory for the operands, large enough for any layer; written once, so that it is there. */
typedef struct spaces {
    float *at[SPACES];
} spaces;

static double least_product_us(bool transpose, int64_t m, int64_t n, int64_t k, const spaces *s)
{
    int64_t least_ns = INT64_MAX;
    for (int run = 0; run < KERNEL_RUNS; run++) {
        int64_t start = gr_now_ns();
        if (gr_dnn_sgemm(transpose, false, m, n, k, s->at[0], transpose ? m : k, s->at[1], n,
                         s->at[2], n, NULL) != GR_OK) {
            return 0;
        }
        int64_t took = gr_now_ns() - start;
        least_ns = took < least_ns ? took : least_ns;
    }
    return (double)least_ns * 1e-3;
}

static double least_op_us(gr_dnn *dnn, gr_dnn_op *op, const spaces *s)
{
    static const gr_slot operands[][2] = {{GR_SLOT_SRC, 0},          {GR_SLOT_WEIGHTS, 1},
                                          {GR_SLOT_DST, 2},          {GR_SLOT_BIAS, 3},
                                          {GR_SLOT_DIFF_DST, 1},     {GR_SLOT_DIFF_SRC, 2},
                                          {GR_SLOT_DIFF_WEIGHTS, 2}, {GR_SLOT_DIFF_BIAS, 3}};
    void *scratch = aligned_alloc(64, gr_dnn_op_bytes(op, GR_SLOT_SCRATCH) / 64 * 64 + 64);
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
        gr_dnn_op_bind(op, operands[i][0], s->at[operands[i][1]]);
    }
    gr_dnn_op_bind(op, GR_SLOT_SCRATCH, scratch);
    int64_t least_ns = INT64_MAX;
    for (int run = 0; scratch && run < KERNEL_RUNS; run++) {
        int64_t start = gr_now_ns();
        if (gr_dnn_op_run(dnn, op, NULL) != GR_OK) {
            break;
        }
        int64_t took = gr_now_ns() - start;
        least_ns = took < least_ns ? took : least_ns;
    }
    free(scratch);
    return least_ns == INT64_MAX ? 0 : (double)least_ns * 1e-3;
}

static double conv_us(gr_dnn *dnn, const gr_conv_shape *shape, bool dx, const spaces *s)
{
    gr_dnn_op *op[3] = {NULL};
    double sum = 0;
    gr_status status = gr_dnn_conv_forward(dnn, shape, false, &op[0], NULL);
    if (status == GR_OK) {
        status = gr_dnn_conv_backward_weights(dnn, shape, op[0], &op[1], NULL);
    }
    if (status == GR_OK && dx) {
        status = gr_dnn_conv_backward_data(dnn, shape, op[0], &op[2], NULL);
    }
    for (int i = 0; i < 3; i++) {
        sum += op[i] && status == GR_OK ? least_op_us(dnn, op[i], s) : 0;
    }
    for (int i = 2; i >= 0; i--) {
        gr_dnn_op_destroy(op[i]);
    }
    return sum;
}

/* Each kernel by itself, operands in its cache, in oneDNN's best order of the operands: no step can
 * be faster than their sum. */
static double kernels_us(const gr_model *model)
{
    spaces s = {{NULL}};
    double sum = 0;
    bool enough = true;
    for (int i = 0; i < SPACES; i++) {
        size_t count = gr_model_arena_bytes(model) / sizeof(float) + gr_model_values(model) +
                       (size_t)model->config.batch * 1024;
        s.at[i] = aligned(count, sizeof(float));
        enough = enough && s.at[i];
    }
    for (int i = 0; enough && i < model->layer_count; i++) {
        const gr_layer *layer = &model->layers[i];
        bool dx = layer->dx_mode != GR_DX_NONE;
        if (layer->spec->ops == &gr_linear_ops) {
            int64_t n = model->config.batch, in = layer->spec->shape_in.dim[0];
            int64_t out = layer->spec->info.output.dim[0];
            sum += least_product_us(false, n, out, in, &s) +
                   least_product_us(true, out, in, n, &s) +
                   (dx ? least_product_us(false, n, in, out, &s) : 0);
        } else if (layer->spec->ops == &gr_conv2d_ops) {
            gr_conv_shape shape = gr_layer_window(model, layer);
            sum += conv_us(model->dnn, &shape, dx, &s);
        }
    }
    for (int i = 0; i < SPACES; i++) {
        free(s.at[i]);
    }
    return sum;
}

static int by_size(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

static double cpu_seconds(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0
               ? (double)now.tv_sec + (double)now.tv_nsec * 1e-9
               : 0.0;
}

static void report(const bench *b, const options *o, int laps, double total_s, double cpu_s,
                   const int64_t least_ns[3], double loss)
{
    double median_s = (double)b->laps_ns[laps / 2] * 1e-9;
    double best_us = (double)b->laps_ns[0] * 1e-3, rate = (double)o->batch / median_s;
    double mean_rate = (double)o->batch * laps / total_s;
    double kernels = o->kernels ? kernels_us(b->model) : 0;
    if (o->json) {
        printf("{\"engine\": \"gradus\", \"model\": \"%s\", \"batch\": %d, \"workers\": 1, "
               "\"steps\": %d, \"step_us\": %.1f, \"step_us_min\": %.1f, \"samples_per_s\": %.1f, "
               "\"samples_per_s_mean\": %.1f, \"cpu_us\": %.1f, \"kernels_us\": %.1f, \"loss\": "
               "%.6f}\n",
               o->model, o->batch, laps, median_s * 1e6, best_us, rate, mean_rate,
               cpu_s / laps * 1e6, kernels, loss / o->batch);
    } else {
        printf("gradus %s batch %d: %d steps, %.1f us a step (best %.1f), %.1f samples/s (mean "
               "%.1f), %.1f us of processor, "
               "loss %.6f\n",
               o->model, o->batch, laps, median_s * 1e6, best_us, rate, mean_rate,
               cpu_s / laps * 1e6, loss / o->batch);
    }
    if (o->kernels && !o->json) {
        printf(
            "oneDNN's matrix products and convolutions alone: %.1f us, %.0f %% of the best step\n",
            kernels, kernels / best_us * 100);
    }
    if (o->phases) {
        printf(
            "best of each: forward %.1f us, backward %.1f us, optimizer %.1f us; %zu parameters, "
            "%.1f MiB of activations\n",
            (double)least_ns[0] * 1e-3, (double)least_ns[1] * 1e-3, (double)least_ns[2] * 1e-3,
            gr_model_parameters(b->model), (double)gr_model_arena_bytes(b->model) / 1048576.0);
    }
}

static gr_status measure(bench *b, const options *o)
{
    gr_batch_result result = {0};
    int64_t phase_ns[3], least_ns[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    gr_status status = GR_OK;
    uint64_t number = 0;
    for (int i = 0; i < WARM_UP && status == GR_OK; i++) {
        status = step(b, number++, &result, phase_ns);
    }
    double cpu_s = cpu_seconds();
    int64_t begin = gr_now_ns(), now = begin;
    int64_t end = begin + (int64_t)(o->seconds * 1e9);
    int laps = 0;
    while (status == GR_OK && now < end && laps < LAPS_MAX) {
        status = step(b, number++, &result, phase_ns);
        int64_t after = gr_now_ns();
        b->laps_ns[laps++] = after - now;
        now = after;
        for (int i = 0; i < 3; i++) {
            least_ns[i] = phase_ns[i] < least_ns[i] ? phase_ns[i] : least_ns[i];
        }
    }
    if (status == GR_OK) {
        qsort(b->laps_ns, (size_t)laps, sizeof *b->laps_ns, by_size);
        report(b, o, laps, (double)(now - begin) * 1e-9, cpu_seconds() - cpu_s, least_ns,
               result.loss);
    }
    return status;
}

int main(int argc, char **argv)
{
    options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_step [--model mlp|cnn] [--batch N] [--seconds S] [--phases] "
                        "[--kernels] [--json]\n");
        return 2;
    }
    bench b = {0};
    gr_status status = set_up(&b, &o);
    if (status == GR_OK) {
        status = measure(&b, &o);
    }
    if (status != GR_OK) {
        fprintf(stderr, "bench_step: %s\n", b.diag.text[0] ? b.diag.text : gr_status_text(status));
    }
    tear_down(&b);
    return status == GR_OK ? 0 : 1;
}
