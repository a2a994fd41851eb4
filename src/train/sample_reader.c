/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sample_reader.h"

#include "base/fail.h"
#include "data/idx.h"
#include "data/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 64 << 10 };

/* How the samples of a format are read from front to back. */
typedef struct sample_format {
    const gr_reader_ops *trained_by;
    gr_status (*open)(gr_sample_reader *r, const char *path, gr_diag *diag);
    gr_status (*next)(gr_sample_reader *r, float *x_out, bool *more_out, gr_diag *diag);
} sample_format;

struct gr_sample_reader {
    const gr_inference *inference;
    const sample_format *format;
    gr_input_stream *source;
    int64_t samples; /* read so far */

    gr_csv_cursor cursor;
    locale_t locale;
    gr_csv_layout layout; /* of this file; its columns are heap memory */
    gr_csv_column *columns;
    int *place;     /* where the values of a column of this file stand in a sample */
    int *trained;   /* the same of the columns of the training data */
    float *in_file; /* a sample, in the order of this file */
    char buffer[BUFFER_BYTES];

    gr_idx_stream idx;
    uint8_t *record; /* idx: a sample as in the file */
};

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory to read samples");
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static gr_status refill(void *refill_arg, uint64_t offset, char *buffer, size_t size,
                        size_t *got_out, gr_diag *diag)
{
    (void)offset; /* forward only */
    const gr_sample_reader *r = refill_arg;
    return gr_input_stream_read(r->source, buffer, size, got_out, diag);
}

static gr_status begin_text(gr_sample_reader *r, const char *path, gr_diag *diag)
{
    gr_input_stream_close(r->source);
    r->source = NULL;
    gr_status status = gr_input_stream_open(path, &r->source, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_csv_cursor_init(&r->cursor, gr_input_stream_name(r->source), r->locale, r->buffer,
                       sizeof r->buffer, refill, r);
    r->cursor.delimiter = r->inference->delimiter;
    return gr_csv_begin(&r->cursor, diag);
}

/* Whatever stands in a line counts as a column. */
static void any_column(void *arg, int number, gr_csv_column *column_out, gr_csv_column *last_out)
{
    (void)arg;
    (void)number;
    *column_out = *last_out = (gr_csv_column){.role = GR_CSV_SKIP};
}

static gr_status fail_empty(const gr_sample_reader *r, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID, "%s: the file is empty; it must hold a sample a line",
                   r->cursor.name);
}

/* Adds a column of this file: the `number`-th, from 0, of the training data. */
static void add_column(gr_sample_reader *r, int number)
{
    const gr_csv_layout *trained = &r->inference->layout;
    gr_csv_column *column = &r->columns[r->layout.columns];
    *column = trained->column[number];
    column->role = column->role == GR_CSV_LABEL ? GR_CSV_SKIP : column->role; /* nobody asks */
    r->place[r->layout.columns++] = r->trained[number];
}

/* Without names: all columns, or all but the label. */
static gr_status match_by_place(gr_sample_reader *r, const char *path, gr_diag *diag)
{
    const gr_csv_layout *trained = &r->inference->layout;
    double *values = NULL;
    int count = 0;
    bool more = false;
    gr_status status = gr_csv_more(&r->cursor, &more, diag);
    if (status == GR_OK && !more) {
        status = fail_empty(r, diag);
    }
    if (status == GR_OK) {
        status = gr_csv_first(&r->cursor, any_column, NULL, &values, &count, diag);
        free(values);
    }
    if (status == GR_OK && count != trained->columns && count != trained->columns - 1) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s:1: the line has %d columns; the model was trained with %d and the "
                         "label: give these, with a label or without",
                         r->cursor.name, count, trained->columns - 1);
    }
    for (int i = 0; i < trained->columns && status == GR_OK; i++) {
        if (count == trained->columns || i + 1 != trained->label_column) {
            add_column(r, i);
        }
    }
    return status == GR_OK ? begin_text(r, path, diag) : status;
}

/* The column of the training data that has this name, from 0; -1: none. Looks at `first` first, and
 * around: mostly the order is the same. */
static int find_name(const gr_csv_layout *trained, const char *name, int first)
{
    for (int i = 0; i < trained->columns; i++) {
        int at = (first + i) % trained->columns;
        if (trained->column[at].name != NULL && strcmp(trained->column[at].name, name) == 0) {
            return at;
        }
    }
    return -1;
}

static gr_status add_named(gr_sample_reader *r, const char *name, bool *seen, gr_diag *diag)
{
    const gr_csv_layout *trained = &r->inference->layout;
    int number = find_name(trained, name, r->layout.columns);
    if (number < 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:1: the data that the model was trained with has no column \"%.60s\"; "
                       "remove it%s",
                       r->cursor.name, name,
                       r->layout.columns == 0 ? ", or write the names into the first line" : "");
    }
    if (seen[number]) {
        return gr_fail(diag, GR_E_INVALID, "%s:1: column \"%.60s\" stands there twice; remove one",
                       r->cursor.name, name);
    }
    seen[number] = true;
    add_column(r, number);
    return GR_OK;
}

static gr_status match_by_name(gr_sample_reader *r, gr_diag *diag)
{
    const gr_csv_layout *trained = &r->inference->layout;
    bool *seen = calloc((size_t)trained->columns, sizeof *seen);
    bool last = false, more = false;
    gr_status status = seen != NULL ? gr_csv_more(&r->cursor, &more, diag) : no_memory(diag);
    if (status == GR_OK && !more) {
        status = fail_empty(r, diag);
    }
    while (status == GR_OK && !last) {
        char name[GR_CSV_FIELD_BYTES_MAX];
        status = gr_csv_name(&r->cursor, name, &last, diag);
        if (status == GR_OK) {
            status = add_named(r, name, seen, diag);
        }
    }
    for (int i = 0; i < trained->columns && status == GR_OK; i++) {
        if (!seen[i] && trained->column[i].role == GR_CSV_VALUE) {
            status = gr_fail(diag, GR_E_INVALID,
                             "%s:1: there is no column \"%.60s\", which the model needs; add it",
                             r->cursor.name, trained->column[i].name);
        }
    }
    free(seen);
    return status;
}

static gr_status open_csv(gr_sample_reader *r, const char *path, gr_diag *diag)
{
    const gr_inference *inference = r->inference;
    size_t columns = (size_t)inference->layout.columns + 1;
    r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    r->columns = calloc(columns, sizeof *r->columns);
    r->place = calloc(columns, sizeof *r->place);
    r->trained = calloc(columns, sizeof *r->trained);
    r->in_file = calloc((size_t)inference->values, sizeof *r->in_file);
    if (r->locale == (locale_t)0 || r->columns == NULL || r->place == NULL || r->trained == NULL ||
        r->in_file == NULL) {
        return no_memory(diag);
    }
    for (int i = 0; i < inference->layout.columns; i++) {
        const gr_csv_column *column = &inference->layout.column[i];
        r->trained[i + 1] = r->trained[i] + gr_csv_column_values(column);
    }
    gr_status status = begin_text(r, path, diag);
    if (status == GR_OK) {
        status = inference->header ? match_by_name(r, diag) : match_by_place(r, path, diag);
    }
    r->layout.column = r->columns;
    r->layout.regression = true; /* there is no label, whose range would matter */
    return status;
}

static gr_status next_csv(gr_sample_reader *r, float *x_out, bool *more_out, gr_diag *diag)
{
    double label = 0;
    gr_status status = gr_csv_more(&r->cursor, more_out, diag);
    if (status == GR_OK && *more_out) {
        status = gr_csv_record(&r->cursor, &r->layout, r->in_file, &label, diag);
    }
    if (status != GR_OK || !*more_out) {
        return status;
    }
    const float *from = r->in_file;
    for (int i = 0; i < r->layout.columns; i++) {
        int count = gr_csv_column_values(&r->columns[i]);
        memcpy(x_out + r->place[i], from, (size_t)count * sizeof *from);
        from += count;
    }
    gr_scaler_apply(&r->inference->scaler, x_out, r->inference->values);
    return GR_OK;
}

/* ---- IDX ------------------------------------------------------------------------------------- */

static gr_status open_idx(gr_sample_reader *r, const char *path, gr_diag *diag)
{
    const gr_idx_header *header = &r->idx.header;
    gr_status status = gr_input_stream_open(path, &r->source, diag);
    if (status == GR_OK) {
        status = gr_idx_stream_begin(&r->idx, r->source, diag);
    }
    if (status == GR_OK && header->record_values != r->inference->values) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s: a sample has %" PRId64 " values; the model was trained with %" PRId64,
                         path, header->record_values, r->inference->values);
    }
    if (status != GR_OK) {
        return status;
    }
    r->record = malloc(header->record_bytes);
    return r->record != NULL ? GR_OK : no_memory(diag);
}

static gr_status next_idx(gr_sample_reader *r, float *x_out, bool *more_out, gr_diag *diag)
{
    const char *name = gr_input_stream_name(r->source);
    bool bytes = r->idx.header.type == GR_IDX_U8;
    size_t size = r->idx.header.record_bytes, got = 0;
    *more_out = r->samples < r->idx.header.dim[0];
    if (!*more_out) {
        return GR_OK;
    }
    gr_status status = gr_idx_stream_read(&r->idx, r->record, size, &got, diag);
    if (status == GR_OK && got < size) {
        status = gr_fail(diag, GR_E_INVALID, "%s: the file ends within sample %" PRId64 " (from 0)",
                         name, r->samples);
    }
    for (int64_t i = 0; i < r->inference->values && status == GR_OK; i++) {
        const uint8_t *at = r->record + (bytes ? i : 4 * i);
        if (bytes) {
            x_out[i] = r->inference->scaler.of_byte[*at];
            continue;
        }
        x_out[i] = gr_idx_float(at);
        if (!isfinite(x_out[i])) {
            status = gr_fail(diag, GR_E_INVALID,
                             "%s: value %" PRId64 " of sample %" PRId64 " (from 0) is not a finite "
                             "number",
                             name, i, r->samples);
        }
    }
    if (status == GR_OK && !bytes) {
        gr_scaler_apply(&r->inference->scaler, x_out, r->inference->values);
    }
    return status;
}

/* ---- Any format ------------------------------------------------------------------------------ */

static const sample_format formats[] = {
    {.trained_by = &gr_csv_reader, .open = open_csv, .next = next_csv},
    {.trained_by = &gr_idx_reader, .open = open_idx, .next = next_idx}};

static gr_status find_format(const char *name, const sample_format **format_out, gr_diag *diag)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i].trained_by->name, name) == 0) {
            *format_out = &formats[i];
            return GR_OK;
        }
    }
    return gr_fail(diag, GR_E_INVALID,
                   "the model was trained with data of format %.60s, by a reader that is its "
                   "program's own; gradus predict reads csv and idx: predict in that program",
                   name);
}

gr_status gr_sample_reader_open(const gr_inference *inference, const char *path,
                                gr_sample_reader **reader_out, gr_diag *diag)
{
    gr_sample_reader *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return no_memory(diag);
    }
    r->inference = inference;
    gr_status status = find_format(inference->format, &r->format, diag);
    status = status == GR_OK ? r->format->open(r, path, diag) : status;
    if (status != GR_OK) {
        gr_sample_reader_close(r);
        return status;
    }
    *reader_out = r;
    return GR_OK;
}

void gr_sample_reader_close(gr_sample_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    gr_input_stream_close(reader->source);
    if (reader->locale != (locale_t)0) {
        freelocale(reader->locale);
    }
    free(reader->columns);
    free(reader->place);
    free(reader->trained);
    free(reader->in_file);
    free(reader->record);
    free(reader);
}

gr_status gr_sample_reader_next(gr_sample_reader *reader, float *x_out, bool *more_out,
                                gr_diag *diag)
{
    const gr_inference *inference = reader->inference;
    gr_status status = reader->format->next(reader, x_out, more_out, diag);
    if (status == GR_OK && *more_out) {
        gr_scale_columns(inference->column_mean, inference->column_factor, x_out,
                         inference->values);
        reader->samples++;
    }
    return status;
}
