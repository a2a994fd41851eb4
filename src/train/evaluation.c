/* SPDX-License-Identifier: Apache-2.0 */
#include "train/evaluation.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

enum { NAME_COLUMNS = 16, COUNT_COLUMNS = 6, PRINTED_CLASSES_MAX = 20, NUMBER_BYTES = 24 };

gr_evaluation gr_evaluation_none(void)
{
    const double none = (double)NAN;
    return (gr_evaluation){.loss = none, .rmse = none, .mae = none, .r2 = none};
}

double gr_evaluation_accuracy(const gr_evaluation *evaluation)
{
    bool known = evaluation->samples > 0 && evaluation->correct >= 0;
    return known ? (double)evaluation->correct / (double)evaluation->samples : (double)NAN;
}

/* ---- Classes --------------------------------------------------------------------------------- */

typedef struct class_numbers {
    const char *name;
    double samples, precision, recall;
} class_numbers;

static class_numbers numbers_of(const gr_confusion *confusion, int64_t index,
                                char number_out[NUMBER_BYTES])
{
    int64_t classes = confusion->classes;
    double actual = 0, predicted = 0, right = confusion->counts[index * classes + index];
    for (int64_t i = 0; i < classes; i++) {
        actual += confusion->counts[index * classes + i];
        predicted += confusion->counts[i * classes + index];
    }
    snprintf(number_out, NUMBER_BYTES, "%lld", (long long)index);
    return (class_numbers){.name = confusion->names != NULL ? confusion->names[index] : number_out,
                           .samples = actual,
                           .precision = predicted > 0 ? right / predicted : (double)NAN,
                           .recall = actual > 0 ? right / actual : (double)NAN};
}

/* ---- JSON ------------------------------------------------------------------------------------ */

json_t *gr_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *classes_json(const gr_confusion *confusion)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < confusion->classes; i++) {
        char text[NUMBER_BYTES];
        class_numbers c = numbers_of(confusion, i, text);
        json_t *object = json_pack("{s:s, s:o, s:o, s:I}", "class", c.name, "precision",
                                   gr_json_number(c.precision), "recall", gr_json_number(c.recall),
                                   "samples", (json_int_t)c.samples);
        if (json_array_append_new(list, object) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *confusion_json(const gr_confusion *confusion)
{
    json_t *rows = json_array();
    for (int64_t i = 0; i < confusion->classes; i++) {
        json_t *row = json_array();
        bool whole = true;
        for (int64_t k = 0; k < confusion->classes; k++) {
            json_t *count = json_integer((json_int_t)confusion->counts[i * confusion->classes + k]);
            whole = json_array_append_new(row, count) == 0 && whole;
        }
        whole = json_array_append_new(rows, row) == 0 && whole;
        if (!whole) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows;
}

bool gr_evaluation_json(const gr_evaluation *evaluation, int64_t classes_max, json_t *object)
{
    const gr_confusion *confusion = &evaluation->confusion;
    bool listed = confusion->classes > 0 && confusion->classes <= classes_max;
    json_t *const values[] = {gr_json_number(gr_evaluation_accuracy(evaluation)),
                              gr_json_number(evaluation->loss),
                              gr_json_number(evaluation->rmse),
                              gr_json_number(evaluation->mae),
                              gr_json_number(evaluation->r2),
                              listed ? classes_json(confusion) : json_null(),
                              listed ? confusion_json(confusion) : json_null()};
    static const char *const keys[] = {"test_accuracy", "test_loss", "test_rmse", "test_mae",
                                       "test_r2",       "classes",   "confusion"};
    bool whole = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        whole = json_object_set_new(object, keys[i], values[i]) == 0 && whole;
    }
    return whole;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void print_share(FILE *out, double share)
{
    if (isnan(share)) {
        fprintf(out, "  %10s", "-");
    } else {
        fprintf(out, "  %8.2f %%", 100 * share);
    }
}

/* So many characters: bytes may be more, and end within one. */
static void print_name(FILE *out, const char *name, int columns, bool right)
{
    size_t size = strlen(name), bytes = 0;
    int pad = columns;
    for (; pad > 0 && bytes < size; pad--) {
        size_t length = gr_text_character(name + bytes, size - bytes);
        bytes += length > 0 ? length : 1;
    }
    fprintf(out, "%*s%.*s%*s", right ? pad : 0, "", (int)bytes, name, right ? 0 : pad, "");
}

static void print_classes(const gr_confusion *confusion, FILE *out)
{
    char number_text[NUMBER_BYTES];
    fprintf(out, "%-*s   precision      recall   samples\n", NAME_COLUMNS, "class");
    for (int64_t i = 0; i < confusion->classes; i++) {
        class_numbers c = numbers_of(confusion, i, number_text);
        print_name(out, c.name, NAME_COLUMNS, false);
        print_share(out, c.precision);
        print_share(out, c.recall);
        fprintf(out, "  %8.0f\n", c.samples);
    }
    fprintf(out, "%-*s", NAME_COLUMNS, "predicted as");
    for (int64_t i = 0; i < confusion->classes; i++) {
        fputc(' ', out);
        print_name(out, numbers_of(confusion, i, number_text).name, COUNT_COLUMNS, true);
    }
    for (int64_t i = 0; i < confusion->classes; i++) {
        fputc('\n', out);
        print_name(out, numbers_of(confusion, i, number_text).name, NAME_COLUMNS, false);
        for (int64_t k = 0; k < confusion->classes; k++) {
            fprintf(out, " %*.0f", COUNT_COLUMNS, confusion->counts[i * confusion->classes + k]);
        }
    }
    fputc('\n', out);
}

void gr_evaluation_print(const gr_evaluation *evaluation, FILE *out)
{
    if (evaluation->samples == 0) {
        return;
    }
    const gr_confusion *confusion = &evaluation->confusion;
    double accuracy = gr_evaluation_accuracy(evaluation);
    if (isnan(accuracy)) {
        fprintf(out, "test loss %.6f (%lld samples), RMSE %.6g, MAE %.6g, R2 ", evaluation->loss,
                (long long)evaluation->samples, evaluation->rmse, evaluation->mae);
        fprintf(out, isnan(evaluation->r2) ? "-\n" : "%.6f\n", evaluation->r2);
        return;
    }
    if (confusion->classes > 0 && confusion->classes <= PRINTED_CLASSES_MAX) {
        print_classes(confusion, out);
    }
    fprintf(out, "test accuracy %.2f %% (%lld of %lld), loss %.4f\n", accuracy * 100.0,
            (long long)evaluation->correct, (long long)evaluation->samples, evaluation->loss);
}
