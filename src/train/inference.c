/* SPDX-License-Identifier: Apache-2.0 */
#include "train/inference.h"

#include "base/fail.h"
#include "data/reader.h"
#include "doc/node_json.h"
#include "nn/loss.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for what predictions need");
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A number or a truth value stays one, so that it can be read as one again. */
static json_t *scalar_json(const gr_node *node)
{
    char *end;
    const char *text = node->text;
    if (node->quoted || strspn(text, "+-.0123456789eE") != strlen(text) || text[0] == '\0') {
        bool yes = strcmp(text, "true") == 0, no = strcmp(text, "false") == 0;
        return !node->quoted && (yes || no) ? json_boolean(yes) : json_string(text);
    }
    long long whole = strtoll(text, &end, 10);
    if (*end == '\0') {
        return json_integer(whole);
    }
    double number = strtod(text, &end);
    return *end == '\0' && isfinite(number) ? json_real(number) : json_string(text);
}

static json_t *texts_json(const char *const *texts, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        if (json_array_append_new(list, json_string(texts[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *numbers_json(const double *numbers, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) {
        if (json_array_append_new(list, json_real(numbers[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static const char *role_name(const gr_csv_column *column)
{
    return column->role == GR_CSV_LABEL  ? "label"
           : column->role == GR_CSV_SKIP ? "skip"
           : column->count > 0           ? "category"
                                         : "value";
}

/* The columns of a file, each with all that is known of it; NULL: no memory. */
static json_t *columns_json(const gr_csv_layout *layout)
{
    json_t *list = json_array();
    for (int i = 0; i < layout->columns; i++) {
        bool label = i + 1 == layout->label_column;
        const gr_csv_column plain = {.role = label ? GR_CSV_LABEL : GR_CSV_VALUE};
        const gr_csv_column *column = layout->column != NULL ? &layout->column[i] : &plain;
        json_t *json = json_pack("{s:s}", "role", role_name(column));
        int failed = json == NULL;
        if (column->name != NULL) {
            failed = json_object_set_new(json, "name", json_string(column->name)) || failed;
        }
        if (column->count > 0 && !label) {
            failed = json_object_set_new(json, "texts", texts_json(column->texts, column->count)) ||
                     failed;
        }
        if (json_array_append_new(list, json) != 0 || failed) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int add_csv(const gr_job *job, json_t *root)
{
    const gr_csv_layout *layout = gr_dataset_layout(job->dataset);
    if (layout == NULL) {
        return 0;
    }
    const gr_csv_column *label =
        layout->column != NULL ? &layout->column[layout->label_column - 1] : NULL;
    const char delimiter[] = {gr_csv_delimiter(job->data.delimiter), '\0'};
    int failed = json_object_set_new(root, "header", json_boolean(job->data.header));
    failed = json_object_set_new(root, "delimiter", json_string(delimiter)) || failed;
    failed = json_object_set_new(root, "columns", columns_json(layout)) || failed;
    if (label != NULL && label->count > 0) {
        failed = json_object_set_new(root, "class_names", texts_json(label->texts, label->count)) ||
                 failed;
    }
    return failed;
}

static int add_scaling(const gr_job *job, json_t *root)
{
    const double *factors, *means = gr_dataset_column_means(job->dataset, &factors);
    double mean, deviation;
    gr_dataset_scaling(job->dataset, &mean, &deviation);
    if (means != NULL) { /* each has its own */
        mean = 0;
        deviation = 1;
    }
    int failed = json_object_set_new(root, "scale", json_real(job->data.scale));
    failed = json_object_set_new(root, "mean", json_real(mean)) || failed;
    failed = json_object_set_new(root, "deviation", json_real(deviation)) || failed;
    if (means != NULL) {
        int64_t values = gr_dataset_sample_values(job->dataset);
        failed = json_object_set_new(root, "column_mean", numbers_json(means, values)) || failed;
        failed =
            json_object_set_new(root, "column_factor", numbers_json(factors, values)) || failed;
    }
    return failed;
}

static json_t *shape_json(const gr_shape *shape)
{
    json_t *list = json_array();
    for (int i = 0; i < shape->dims; i++) {
        if (json_array_append_new(list, json_integer(shape->dim[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

gr_status gr_inference_print(const gr_job *job, gr_arena *arena, const char **text_out,
                             gr_diag *diag)
{
    *text_out = "";
    if (gr_dataset_sample_values(job->dataset) > GR_INFERENCE_VALUES_MAX) {
        return GR_OK;
    }
    const char *format = gr_reader_ops_at(job->data.format)->name;
    json_t *root = json_pack("{s:s, s:s, s:o, s:o}", "format", format, "loss",
                             gr_loss_name((int)job->config.loss), "input", shape_json(&job->input),
                             "model", gr_node_json(job->config.model, scalar_json));
    int failed = root == NULL || add_scaling(job, root) || add_csv(job, root);
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    *text_out = text != NULL ? gr_arena_strdup(arena, text) : NULL;
    free(text);
    return *text_out != NULL ? GR_OK : no_memory(diag);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static const gr_node empty = {.kind = GR_NODE_NULL};

/* A member that is missing reads as null, which no typed read takes. */
static const gr_node *member(const gr_node *map, const char *key)
{
    const gr_node *node = gr_node_get(map, key);
    return node != NULL ? node : &empty;
}

static gr_status read_texts(const gr_node *list, gr_arena *arena, const char *const **texts_out,
                            int *count_out, gr_diag *diag)
{
    const char **texts = gr_arena_alloc(arena, ((size_t)list->count + 1) * sizeof *texts);
    gr_status status = texts != NULL ? GR_OK : no_memory(diag);
    int count = 0;
    for (const gr_node *at = list->child; at != NULL && status == GR_OK; at = at->next) {
        status = gr_node_text(at, &texts[count++], diag);
    }
    *texts_out = texts;
    *count_out = count;
    return status;
}

static gr_status read_numbers(const gr_node *list, int64_t count, gr_arena *arena,
                              const double **numbers_out, gr_diag *diag)
{
    double *numbers = gr_arena_alloc(arena, (size_t)count * sizeof *numbers);
    gr_status status = numbers != NULL ? GR_OK : no_memory(diag);
    if (status == GR_OK && list->count != count) {
        status = gr_node_fail(list, diag, GR_E_INVALID, "must have %lld numbers", (long long)count);
    }
    int64_t i = 0;
    for (const gr_node *at = list->child; at != NULL && status == GR_OK; at = at->next) {
        status = gr_node_double(at, -INFINITY, INFINITY, &numbers[i++], diag);
    }
    *numbers_out = numbers;
    return status;
}

static gr_status read_column(const gr_node *node, gr_arena *arena, gr_csv_column *column,
                             gr_diag *diag)
{
    const char *role;
    const gr_node *name = gr_node_get(node, "name"), *texts = gr_node_get(node, "texts");
    gr_status status = gr_node_text(member(node, "role"), &role, diag);
    if (status == GR_OK && name != NULL) {
        status = gr_node_text(name, &column->name, diag);
    }
    if (status == GR_OK && texts != NULL) {
        status = read_texts(texts, arena, &column->texts, &column->count, diag);
    }
    if (status == GR_OK) {
        column->role = strcmp(role, "label") == 0  ? GR_CSV_LABEL
                       : strcmp(role, "skip") == 0 ? GR_CSV_SKIP
                                                   : GR_CSV_VALUE;
    }
    return status;
}

static gr_status read_columns(const gr_node *list, gr_arena *arena, gr_csv_layout *layout,
                              gr_diag *diag)
{
    gr_csv_column *all = gr_arena_alloc(arena, ((size_t)list->count + 1) * sizeof *all);
    gr_status status = all != NULL ? GR_OK : no_memory(diag);
    for (const gr_node *at = list->child; at != NULL && status == GR_OK; at = at->next) {
        gr_csv_column *column = &all[layout->columns++];
        status = read_column(at, arena, column, diag);
        layout->label_column =
            column->role == GR_CSV_LABEL ? layout->columns : layout->label_column;
        layout->values += gr_csv_column_values(column);
    }
    layout->column = all;
    return status;
}

static gr_status read_csv(const gr_node *node, gr_arena *arena, gr_inference *inference,
                          gr_diag *diag)
{
    const char *delimiter = "";
    const gr_node *columns = member(node, "columns"), *names = gr_node_get(node, "class_names");
    gr_status status = gr_node_bool(member(node, "header"), &inference->header, diag);
    if (status == GR_OK) {
        status = gr_node_text(member(node, "delimiter"), &delimiter, diag);
        inference->delimiter = delimiter[0];
    }
    if (status == GR_OK) {
        status = read_columns(columns, arena, &inference->layout, diag);
    }
    if (status == GR_OK && inference->layout.values != inference->values) {
        status = gr_node_fail(columns, diag, GR_E_INVALID, "do not make the %lld values of input",
                              (long long)inference->values);
    }
    int count = (int)inference->outputs;
    if (status == GR_OK && names != NULL) {
        status = read_texts(names, arena, &inference->class_names, &count, diag);
    }
    return status == GR_OK && count != inference->outputs
               ? gr_node_fail(names, diag, GR_E_INVALID, "must be %lld names",
                              (long long)inference->outputs)
               : status;
}

static gr_status read_scaling(const gr_node *node, gr_arena *arena, gr_inference *inference,
                              gr_diag *diag)
{
    static const char *const keys[] = {"scale", "mean", "deviation"};
    double numbers[3] = {0};
    gr_status status = GR_OK;
    for (int i = 0; i < 3 && status == GR_OK; i++) {
        status = gr_node_double(member(node, keys[i]), -INFINITY, INFINITY, &numbers[i], diag);
    }
    gr_scaler_init(&inference->scaler, numbers[0], numbers[1], numbers[2]);
    const gr_node *means = gr_node_get(node, "column_mean");
    if (status == GR_OK && means != NULL) {
        status = read_numbers(means, inference->values, arena, &inference->column_mean, diag);
    }
    if (status == GR_OK && means != NULL) {
        status = read_numbers(member(node, "column_factor"), inference->values, arena,
                              &inference->column_factor, diag);
    }
    return status;
}

static gr_status read_model(const gr_node *node, gr_arena *arena, gr_inference *inference,
                            gr_diag *diag)
{
    const gr_node *input = member(node, "input");
    const char *loss = "";
    gr_status status = gr_node_text(member(node, "loss"), &loss, diag);
    int kind = 0;
    while (status == GR_OK && gr_loss_name(kind) != NULL && strcmp(gr_loss_name(kind), loss) != 0) {
        kind++;
    }
    if (status == GR_OK && gr_loss_name(kind) == NULL) {
        status = gr_node_fail(member(node, "loss"), diag, GR_E_INVALID, "names no loss");
    }
    inference->loss = (gr_loss_kind)kind;
    if (status == GR_OK && (input->count < 1 || input->count > GR_SAMPLE_DIMS_MAX)) {
        status = gr_node_fail(input, diag, GR_E_INVALID, "must be the shape of a sample");
    }
    inference->values = 1;
    for (const gr_node *at = input->child; at != NULL && status == GR_OK; at = at->next) {
        int64_t *dim = &inference->input.dim[inference->input.dims++];
        status = gr_node_int(at, 1, GR_INFERENCE_VALUES_MAX / inference->values, dim, diag);
        inference->values *= status == GR_OK ? *dim : 1;
    }
    if (status == GR_OK) {
        status = gr_model_spec_read(member(node, "model"), &inference->input, arena,
                                    &inference->spec, diag);
    }
    if (status == GR_OK) {
        inference->outputs = gr_shape_count(gr_model_spec_output(inference->spec));
    }
    return status;
}

gr_status gr_inference_read(const gr_node *node, gr_arena *arena, gr_inference *inference_out,
                            gr_diag *diag)
{
    *inference_out = (gr_inference){.format = ""};
    gr_status status = gr_node_text(member(node, "format"), &inference_out->format, diag);
    if (status == GR_OK) {
        status = read_model(node, arena, inference_out, diag);
    }
    if (status == GR_OK) {
        status = read_scaling(node, arena, inference_out, diag);
    }
    bool csv = strcmp(inference_out->format, gr_csv_reader.name) == 0;
    return status == GR_OK && csv ? read_csv(node, arena, inference_out, diag) : status;
}
