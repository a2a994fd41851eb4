/* SPDX-License-Identifier: Apache-2.0 */
#include "data/table_internal.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

gr_table_options gr_table_options_default(void)
{
    return (gr_table_options){.memory_max = UINT64_C(64) << 20, .index_max = 1u << 20};
}

gr_table *gr_table_new(const char *name)
{
    gr_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return NULL;
    }
    table->fd = -1;
    table->label_max = -1;
    table->name = strdup(name);
    if (table->name == NULL) {
        free(table);
        return NULL;
    }
    return table;
}

void gr_table_close(gr_table *table)
{
    if (table == NULL) {
        return;
    }
    gr_csv_text_fini(table);
    gr_arena_fini(&table->arena);
    gr_store_destroy(table->records);
    gr_store_destroy(table->labels);
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

int gr_table_dims(const gr_table *table, int64_t dim_out[GR_TABLE_DIMS_MAX])
{
    for (int i = 0; i < table->dims; i++) {
        dim_out[i] = table->dim[i];
    }
    return table->dims;
}

int64_t gr_table_values(const gr_table *table)
{
    return table->values;
}

int64_t gr_table_label_max(const gr_table *table)
{
    return table->label_max;
}

const gr_csv_layout *gr_table_layout(const gr_table *table)
{
    bool csv = table->kind == GR_TABLE_CSV_RECORDS || table->kind == GR_TABLE_CSV_TEXT;
    return csv ? &table->layout : NULL;
}

const char *gr_table_kind(const gr_table *table)
{
    if (table->kind == GR_TABLE_CSV_TEXT) {
        return "read line by line from the file";
    }
    if (table->kind == GR_TABLE_IDX_FILE) {
        return "read from the file";
    }
    return gr_store_in_memory(table->records) ? "in memory" : "in a temporary file";
}

uint64_t gr_table_memory(const gr_table *table)
{
    uint64_t bytes = table->index != NULL ? table->index_count * sizeof *table->index : 0;
    bytes += table->records != NULL ? gr_store_memory(table->records) : 0;
    bytes += table->labels != NULL ? gr_store_memory(table->labels) : 0;
    return bytes;
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

gr_status gr_table_check(const gr_table *table, gr_diag *diag)
{
    if (table->kind == GR_TABLE_CSV_TEXT) {
        return gr_file_mark_check(table->name, table->fd, &table->mark, diag);
    }
    gr_status status = gr_store_check(table->records, diag);
    if (status == GR_OK && table->labels != NULL) {
        status = gr_store_check(table->labels, diag);
    }
    return status;
}

gr_status gr_table_read(const gr_table *table, int64_t number, const gr_scaler *scaler,
                        float *x_out, int32_t *label_out, float *target_out, gr_diag *diag)
{
    double label = 0;
    gr_status status;
    bool scaled = false;
    switch (table->kind) {
    case GR_TABLE_CSV_RECORDS:
        status = gr_csv_read_record(table, number, x_out, &label, diag);
        break;
    case GR_TABLE_CSV_TEXT:
        status = gr_csv_read_text(table, number, x_out, &label, diag);
        break;
    default:
        status = gr_idx_read(table, number, scaler, x_out, &label, diag);
        scaled = table->bytes;
        break;
    }
    if (status != GR_OK) {
        return status;
    }
    if (!scaled) {
        gr_scaler_apply(scaler, x_out, table->values);
    }
    if (label_out != NULL) {
        *label_out = (int32_t)label;
    }
    if (target_out != NULL) {
        *target_out = (float)label;
    }
    return GR_OK;
}
