/* SPDX-License-Identifier: Apache-2.0 */
#include "train/predict.h"

#include "base/fail.h"
#include "base/memory.h"
#include "nn/loss.h"
#include "train/sample_reader.h"
#include "train/weights.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, ARENA_BYTES_MAX = 256 << 20, PROBABILITY_DIGITS = 6, VALUE_DIGITS = 9 };

typedef struct prediction_run {
    gr_inference inference;
    gr_model *model;
    gr_sample_reader *reader;
    float *values, *x, *outputs;
    int32_t *labels; /* of no meaning: the model wants to compare with some */
    float *targets;
    int64_t done; /* samples */
    gr_predict_format format;
    const char *data;
    FILE *out;
    const char *out_name;
} prediction_run;

/* ---- Lines ----------------------------------------------------------------------------------- */

static const char *class_name(const gr_inference *inference, int64_t index, char number_out[24])
{
    if (inference->class_names != NULL) {
        return inference->class_names[index];
    }
    snprintf(number_out, 24, "%lld", (long long)index);
    return number_out;
}

/* In quotes where CSV needs them. */
static void print_cell(FILE *out, const char *before, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fprintf(out, "%s%s", before, text);
        return;
    }
    fprintf(out, "\"%s", before);
    for (; *text != '\0'; text++) {
        fprintf(out, *text == '"' ? "\"%c" : "%c", *text);
    }
    fputc('"', out);
}

static void print_header(const prediction_run *r)
{
    if (r->format != GR_PREDICT_CSV) {
        return;
    }
    fputs(gr_loss_ops_at((int)r->inference.loss)->classes ? "class" : "value", r->out);
    for (int64_t i = 0; gr_loss_ops_at((int)r->inference.loss)->classes && i < r->inference.outputs;
         i++) {
        char number[24];
        fputc(',', r->out);
        print_cell(r->out, "probability_", class_name(&r->inference, i, number));
    }
    fputc('\n', r->out);
}

static int print_json(const prediction_run *r, json_t *object, int digits)
{
    size_t flags = JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION((unsigned)digits);
    int failed = object == NULL || json_dumpf(object, r->out, flags) != 0;
    json_decref(object);
    fputc('\n', r->out);
    return failed;
}

static int print_value(const prediction_run *r, const float *output)
{
    if (r->format == GR_PREDICT_CSV) {
        return fprintf(r->out, "%.*g\n", VALUE_DIGITS, (double)*output) < 0;
    }
    return print_json(r, json_pack("{s:f}", "value", (double)*output), VALUE_DIGITS);
}

/* The first of the largest outputs is the class, as in the evaluation. */
static int print_classes(const prediction_run *r, const float *outputs, double *probabilities)
{
    int64_t count = r->inference.outputs, best = 0;
    double sum = 0;
    char number[24];
    for (int64_t i = 1; i < count; i++) {
        best = outputs[i] > outputs[best] ? i : best;
    }
    for (int64_t i = 0; i < count; i++) {
        probabilities[i] = exp((double)outputs[i] - (double)outputs[best]);
        sum += probabilities[i];
    }
    if (r->format == GR_PREDICT_CSV) {
        print_cell(r->out, "", class_name(&r->inference, best, number));
        for (int64_t i = 0; i < count; i++) {
            fprintf(r->out, ",%.*g", PROBABILITY_DIGITS, probabilities[i] / sum);
        }
        return fputc('\n', r->out) == EOF;
    }
    json_t *all = json_object();
    int failed = 0;
    for (int64_t i = 0; i < count; i++) {
        failed = json_object_set_new(all, class_name(&r->inference, i, number),
                                     json_real(probabilities[i] / sum)) ||
                 failed;
    }
    json_t *object = json_pack("{s:s, s:f, s:o}", "class", class_name(&r->inference, best, number),
                               "probability", probabilities[best] / sum, "probabilities", all);
    return print_json(r, object, PROBABILITY_DIGITS) || failed;
}

/* ---- Batches --------------------------------------------------------------------------------- */

static gr_status print_batch(prediction_run *r, int count, double *probabilities, gr_diag *diag)
{
    bool value = !gr_loss_ops_at((int)r->inference.loss)->classes;
    for (int n = 0; n < count; n++, r->done++) {
        const float *outputs = r->outputs + n * r->inference.outputs;
        for (int64_t i = 0; i < r->inference.outputs; i++) {
            if (!isfinite(outputs[i])) {
                return gr_fail(diag, GR_E_NOT_FINITE,
                               "%s: the model's output for sample %lld (from 1) is %s: its values "
                               "are far from those of the training",
                               r->data, (long long)r->done + 1,
                               isnan(outputs[i]) ? "NaN" : "infinite");
            }
        }
        if (value ? print_value(r, outputs) : print_classes(r, outputs, probabilities)) {
            return gr_fail(diag, GR_E_IO, "%s: a prediction could not be written: %s", r->out_name,
                           strerror(errno));
        }
    }
    return GR_OK;
}

static gr_status run_batches(prediction_run *r, double *probabilities, gr_diag *diag)
{
    bool more = true;
    while (more) {
        int count = 0;
        gr_diag bad = {0};
        gr_status read = GR_OK, status = GR_OK;
        while (count < BATCH && more && read == GR_OK) {
            float *x = r->x + count * r->inference.values;
            read = gr_sample_reader_next(r->reader, x, &more, &bad);
            count += read == GR_OK && more;
        }
        if (r->done == 0 && (count > 0 || read == GR_OK)) {
            print_header(r);
        }
        const gr_batch batch = {.x = r->x, .labels = r->labels, .targets = r->targets};
        gr_batch_result result;
        if (count > 0) {
            status =
                gr_model_evaluate(r->model, r->values, &batch, count, &result, r->outputs, diag);
        }
        if (status == GR_OK) {
            status = print_batch(r, count, probabilities, diag);
        }
        if (status == GR_OK && read != GR_OK) {
            *diag = bad;
            status = read;
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_OK;
}

static gr_status load(prediction_run *r, const gr_checkpoint *checkpoint, gr_diag *diag)
{
    const gr_model_config config = {
        .spec = r->inference.spec, .batch = BATCH, .loss = r->inference.loss};
    gr_status status = gr_model_create(&config, &r->model, diag);
    if (status != GR_OK) {
        return status;
    }
    size_t values = (size_t)r->inference.values, outputs = (size_t)r->inference.outputs;
    r->values = gr_zeros(gr_model_values(r->model) * sizeof *r->values);
    r->x = gr_zeros(BATCH * values * sizeof *r->x);
    r->outputs = gr_zeros(BATCH * outputs * sizeof *r->outputs);
    r->targets = gr_zeros(BATCH * outputs * sizeof *r->targets);
    r->labels = gr_zeros(BATCH * sizeof *r->labels);
    if (r->values == NULL || r->x == NULL || r->outputs == NULL || r->targets == NULL ||
        r->labels == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to predict in batches of %d", BATCH);
    }
    gr_safetensors *file = NULL;
    status = gr_checkpoint_read(checkpoint, GR_CHECKPOINT_MODEL, &file, diag);
    if (status == GR_OK) {
        status = gr_weights_fill(r->model, file, GR_CHECKPOINT_MODEL, r->values, diag);
    }
    gr_safetensors_close(file);
    return status;
}

gr_status gr_predict_run(const gr_checkpoint *checkpoint, const char *data,
                         gr_predict_format format, FILE *out, const char *out_name, gr_diag *diag)
{
    const gr_node *described = gr_checkpoint_inference_of(checkpoint);
    if (described == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s does not say how samples are read: it was written by an earlier Gradus, "
                       "or a sample has more than %d values; go on from it (--resume) to write a "
                       "new one",
                       gr_checkpoint_path_of(checkpoint), GR_INFERENCE_VALUES_MAX);
    }
    gr_arena arena;
    prediction_run r = {.format = format, .data = data, .out = out, .out_name = out_name};
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = gr_inference_read(described, &arena, &r.inference, diag);
    if (status == GR_OK) {
        status = load(&r, checkpoint, diag);
    }
    if (status == GR_OK) {
        status = gr_sample_reader_open(&r.inference, data, &r.reader, diag);
    }
    double *probabilities =
        status == GR_OK ? calloc((size_t)r.inference.outputs, sizeof *probabilities) : NULL;
    if (status == GR_OK && probabilities == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for %lld probabilities",
                         (long long)r.inference.outputs);
    }
    if (status == GR_OK) {
        status = run_batches(&r, probabilities, diag);
    }
    free(probabilities);
    gr_sample_reader_close(r.reader);
    gr_model_destroy(r.model);
    free(r.values);
    free(r.x);
    free(r.outputs);
    free(r.targets);
    free(r.labels);
    gr_arena_fini(&arena);
    return status;
}
