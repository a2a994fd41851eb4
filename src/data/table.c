/* SPDX-License-Identifier: Apache-2.0 */
#include "data/reader.h"

#include "base/fail.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

gr_table_options gr_table_options_default(void)
{
    return (gr_table_options){.memory_max = UINT64_C(64) << 20, .index_max = 1u << 20};
}

void *gr_table_new(const gr_reader_ops *ops, const char *name, size_t size_bytes)
{
    gr_table *table = calloc(1, size_bytes);
    char *copy = strdup(name);
    if (table == NULL || copy == NULL) {
        free(copy);
        free(table);
        return NULL;
    }
    table->ops = ops;
    table->name = copy;
    table->label_max = table->x = table->label = table->target = -1;
    return table;
}

gr_status gr_data_need(const gr_reader_ops *ops, const gr_data_config *config, const char *key,
                       const char *value, gr_diag *diag)
{
    if (value != NULL && value[0] != '\0') {
        return GR_OK;
    }
    return gr_node_fail(gr_node_setting(config->section, key), diag, GR_E_INVALID,
                        "data of format %s needs %s: FILE", ops->name, key);
}

gr_status gr_reader_open_file(const gr_reader_open *how, const char *key, const char *file,
                              gr_input_stream **source_out, gr_diag *diag)
{
    char *path = gr_path_beside(how->job_path, file);
    if (path == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it", file);
    }
    gr_diag why;
    gr_diag_clear(&why);
    gr_status status = gr_input_stream_open(path, source_out, &why);
    if (status != GR_OK) {
        gr_node_fail(gr_node_setting(how->config->section, key), diag, status, "%s", why.text);
    }
    free(path);
    return status;
}

/* The value of this name; -1: the reader has none. */
static int find_value(const gr_table *table, const char *name)
{
    int at = table->value_count - 1;
    while (at >= 0 && strcmp(table->value[at].name, name) != 0) {
        at--;
    }
    return at;
}

void gr_table_add_value(gr_table *table, const char *name, gr_dtype type, int dims,
                        const int64_t *dim)
{
    GR_CHECK(table->value_count < GR_SAMPLE_VALUES_MAX && dims <= GR_SAMPLE_DIMS_MAX);
    gr_sample_value *value = &table->value[table->value_count++];
    *value = (gr_sample_value){.name = name, .type = type, .dims = dims};
    for (int i = 0; i < dims; i++) {
        value->dim[i] = dim[i];
    }
    table->x = find_value(table, "x");
    table->label = find_value(table, "label");
    table->target = find_value(table, "target");
    table->x_count = table->x >= 0 ? gr_table_values(table) : 0;
}

void gr_table_close(gr_table *table)
{
    if (table == NULL) {
        return;
    }
    if (table->ops->close != NULL) {
        table->ops->close(table);
    }
    free(table->name);
    free(table);
}

const char *gr_table_name(const gr_table *table)
{
    return table->name;
}

int64_t gr_table_count(const gr_table *table)
{
    return table->count;
}

int gr_table_dims(const gr_table *table, int64_t *dim_out)
{
    const gr_sample_value *x = &table->value[find_value(table, "x")];
    for (int i = 0; i < x->dims; i++) {
        dim_out[i] = x->dim[i];
    }
    return x->dims;
}

int64_t gr_table_values(const gr_table *table)
{
    int64_t dim[GR_SAMPLE_DIMS_MAX], count = 1;
    for (int i = gr_table_dims(table, dim) - 1; i >= 0; i--) {
        count *= dim[i];
    }
    return count;
}

int64_t gr_table_label_max(const gr_table *table)
{
    return table->label_max;
}

const gr_csv_layout *gr_table_layout(const gr_table *table)
{
    return table->ops->layout != NULL ? table->ops->layout(table) : NULL;
}

const char *gr_table_kind(const gr_table *table)
{
    return table->ops->kept != NULL ? table->ops->kept(table) : table->ops->name;
}

uint64_t gr_table_memory(const gr_table *table)
{
    return table->ops->memory != NULL ? table->ops->memory(table) : 0;
}

/* One value that training takes must be there in one of the types that it is taken in. */
static gr_status check_value(const gr_table *table, const char *name, gr_dtype type, gr_dtype other,
                             gr_diag *diag)
{
    int at = find_value(table, name);
    if (at < 0) {
        return gr_fail(diag, GR_E_INVALID, "%s: samples of format %s have no value '%s'",
                       table->name, table->ops->name, name);
    }
    gr_dtype has = table->value[at].type;
    if (has != type && has != other) {
        return gr_fail(diag, GR_E_UNSUPPORTED,
                       "%s: value '%s' of format %s has type %s, but training takes it as %s%s%s",
                       table->name, name, table->ops->name, gr_dtype_name(has), gr_dtype_name(type),
                       other != type ? " or " : "", other != type ? gr_dtype_name(other) : "");
    }
    return GR_OK;
}

gr_status gr_table_check_values(const gr_table *table, bool regression, gr_diag *diag)
{
    gr_status status = check_value(table, "x", GR_F32, GR_U8, diag);
    if (status != GR_OK) {
        return status;
    }
    return regression ? check_value(table, "target", GR_F32, GR_F32, diag)
                      : check_value(table, "label", GR_I32, GR_I32, diag);
}

void gr_scaler_init(gr_scaler *scaler, double scale, double mean, double deviation)
{
    scaler->scale = scale;
    scaler->mean = mean;
    scaler->factor = 1.0 / deviation;
    scaler->identity = scale == 1.0 && mean == 0.0 && deviation == 1.0;
    for (int i = 0; i < 256; i++) {
        scaler->of_byte[i] = (float)((i * scale - mean) * scaler->factor);
    }
}

void gr_scaler_apply(const gr_scaler *scaler, float *x, int64_t count)
{
    if (scaler->identity) {
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(((double)x[i] * scaler->scale - scaler->mean) * scaler->factor);
    }
}

void gr_scale_columns(const double *mean, const double *factor, float *x, int64_t count)
{
    for (int64_t k = 0; mean != NULL && k < count; k++) {
        x[k] = (float)(((double)x[k] - mean[k]) * factor[k]);
    }
}

gr_status gr_table_check(const gr_table *table, gr_diag *diag)
{
    return table->ops->check != NULL ? table->ops->check(table, diag) : GR_OK;
}

gr_status gr_table_read(const gr_table *table, int64_t number, const gr_scaler *scaler,
                        float *x_out, int32_t *label_out, float *target_out, gr_diag *diag)
{
    int x = table->x, label = table->label, target = table->target;
    int64_t count = table->x_count;
    bool bytes = table->value[x].type == GR_U8;
    /* Bytes are read into the end of the room and become numbers from its start on: number i is
     * written to bytes [4i, 4i + 4), none of which is read after byte i. */
    uint8_t *raw = (uint8_t *)x_out + 3 * count;
    void *values[GR_SAMPLE_VALUES_MAX] = {NULL};
    values[x] = bytes ? (void *)raw : x_out;
    if (label >= 0) {
        values[label] = label_out;
    }
    if (target >= 0) {
        values[target] = target_out;
    }
    gr_status status = table->ops->read(table, number, values, diag);
    if (status != GR_OK) {
        return status;
    }
    if (!bytes) {
        gr_scaler_apply(scaler, x_out, count);
    }
    for (int64_t i = 0; bytes && i < count; i++) {
        x_out[i] = scaler->of_byte[raw[i]];
    }
    return GR_OK;
}
