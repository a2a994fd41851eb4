/* SPDX-License-Identifier: Apache-2.0 */
#include "data/csv.h"

#include "base/fail.h"
#include "base/text.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const gr_csv_column plain_value = {.role = GR_CSV_VALUE};
static const gr_csv_column plain_label = {.role = GR_CSV_LABEL};

char gr_csv_delimiter(const char *text)
{
    if (text == NULL) {
        return ',';
    }
    if (strcmp(text, "tab") == 0 || strcmp(text, "\\t") == 0) {
        return '\t';
    }
    return strlen(text) == 1 && strchr(",;|:\t", text[0]) != NULL ? text[0] : '\0';
}

void gr_csv_cursor_init(gr_csv_cursor *cursor, const char *name, locale_t locale, char *buffer,
                        size_t buffer_bytes, gr_csv_refill *refill, void *refill_arg)
{
    *cursor = (gr_csv_cursor){.name = name,
                              .refill = refill,
                              .refill_arg = refill_arg,
                              .locale = locale,
                              .buffer = buffer,
                              .capacity = buffer_bytes - 1,
                              .delimiter = ','};
    gr_csv_cursor_seek(cursor, 0, 1);
}

void gr_csv_cursor_seek(gr_csv_cursor *cursor, uint64_t offset, int64_t line)
{
    cursor->begin = cursor->end = 0;
    cursor->offset = offset;
    cursor->ended = false;
    cursor->line = line;
    cursor->column = 1;
    cursor->buffer[0] = '\0';
}

/* Makes room for a whole field behind `begin`, or for the rest of the text. */
static gr_status csv_fill(gr_csv_cursor *cursor, gr_diag *diag)
{
    while (cursor->end - cursor->begin < GR_CSV_FIELD_BYTES_MAX && !cursor->ended) {
        size_t kept = cursor->end - cursor->begin;
        memmove(cursor->buffer, cursor->buffer + cursor->begin, kept);
        cursor->offset += cursor->begin;
        cursor->begin = 0;
        cursor->end = kept;
        size_t got;
        gr_status status =
            cursor->refill(cursor->refill_arg, cursor->offset + kept, cursor->buffer + kept,
                           cursor->capacity - kept, &got, diag);
        if (status != GR_OK) {
            return status;
        }
        cursor->end += got;
        cursor->ended = got == 0;
        cursor->buffer[cursor->end] = '\0'; /* stops the number reader */
    }
    return GR_OK;
}

/* Length of the line end at `at`: 1, 2, or 0 if there is none. */
static size_t line_end(const char *at)
{
    return at[0] == '\n' ? 1 : at[0] == '\r' && at[1] == '\n' ? 2 : 0;
}

gr_status gr_csv_begin(gr_csv_cursor *cursor, gr_diag *diag)
{
    gr_status status = csv_fill(cursor, diag);
    if (status == GR_OK && cursor->end - cursor->begin >= 3 &&
        memcmp(cursor->buffer + cursor->begin, "\xef\xbb\xbf", 3) == 0) {
        cursor->begin += 3;
    }
    return status;
}

gr_status gr_csv_more(gr_csv_cursor *cursor, bool *more_out, gr_diag *diag)
{
    int64_t empty_line = 0;
    for (;;) {
        gr_status status = csv_fill(cursor, diag);
        if (status != GR_OK) {
            return status;
        }
        size_t length = line_end(cursor->buffer + cursor->begin);
        if (length == 0) {
            break;
        }
        empty_line = empty_line == 0 ? cursor->line : empty_line;
        cursor->begin += length;
        cursor->line++;
    }
    *more_out = cursor->begin < cursor->end;
    if (*more_out && empty_line != 0) {
        return gr_fail(diag, GR_E_INVALID, "%s:%" PRId64 ": the line is empty; remove it",
                       cursor->name, empty_line);
    }
    return GR_OK;
}

gr_status gr_csv_skip_line(gr_csv_cursor *cursor, gr_diag *diag)
{
    for (;;) {
        gr_status status = csv_fill(cursor, diag);
        if (status != GR_OK) {
            return status;
        }
        char *at = cursor->buffer + cursor->begin;
        char *newline = memchr(at, '\n', cursor->end - cursor->begin);
        cursor->begin = newline != NULL ? (size_t)(newline + 1 - cursor->buffer) : cursor->end;
        if (newline != NULL || cursor->ended) {
            break;
        }
    }
    cursor->line++;
    cursor->column = 1;
    return GR_OK;
}

static gr_status have_field(gr_csv_cursor *cursor, gr_diag *diag)
{
    return cursor->end - cursor->begin < GR_CSV_FIELD_BYTES_MAX && !cursor->ended
               ? csv_fill(cursor, diag)
               : GR_OK;
}

/* Goes on behind a field that ends at `at`; false: neither a delimiter nor the line's end. */
static bool go_behind(gr_csv_cursor *cursor, const char *at, bool *last_out)
{
    const char *limit = cursor->buffer + cursor->end;
    if (*at == cursor->delimiter && at < limit) {
        cursor->begin = (size_t)(at + 1 - cursor->buffer);
        cursor->column++;
        *last_out = false;
        return true;
    }
    size_t length = line_end(at);
    if (length == 0 && at < limit && *at == '\r' && at + 1 == limit && cursor->ended) {
        length = 1; /* CR at the very end */
    }
    if (length == 0 && (at < limit || !cursor->ended)) {
        return false;
    }
    cursor->begin = (size_t)(at - cursor->buffer) + length;
    cursor->line++;
    cursor->column = 1;
    *last_out = true;
    return true;
}

/* A field that is no bare number. `if_last` (NULL: none) is its column if it ends the line. */
static gr_status read_cell(gr_csv_cursor *cursor, const gr_csv_column *column,
                           const gr_csv_column *if_last, double *value_out, bool *last_out,
                           gr_diag *diag)
{
    gr_csv_cell cell;
    const char *behind;
    gr_status status =
        gr_csv_find_cell(cursor, cursor->buffer + cursor->begin, &cell, &behind, diag);
    if (status == GR_OK) {
        bool ends = behind == cursor->buffer + cursor->end || *behind != cursor->delimiter;
        column = ends && if_last != NULL ? if_last : column;
        status = gr_csv_cell_value(cursor, column, &cell, value_out, diag);
    }
    if (status == GR_OK && !go_behind(cursor, behind, last_out)) {
        status =
            gr_fail(diag, GR_E_INVALID, "%s:%" PRId64 ": column %d ends in a control character",
                    cursor->name, cursor->line, cursor->column);
    }
    return status;
}

/* A field that nobody wants, of any length. */
static gr_status skip_cell(gr_csv_cursor *cursor, bool *last_out, gr_diag *diag)
{
    bool begins = true, opens = false, quoted = false;
    for (;;) {
        gr_status status = have_field(cursor, diag);
        if (status != GR_OK) {
            return status;
        }
        const char *at = cursor->buffer + cursor->begin, *limit = cursor->buffer + cursor->end;
        for (; at < limit && *at != '\n'; at++) {
            if (!quoted && (*at == cursor->delimiter || line_end(at) > 0)) {
                break;
            }
            opens = opens || (begins && *at == '"');
            quoted = quoted != (opens && *at == '"');
            begins = begins && *at == ' ';
        }
        cursor->begin = (size_t)(at - cursor->buffer);
        if (at == limit && !cursor->ended) {
            continue;
        }
        if (quoted || !go_behind(cursor, at, last_out)) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s:%" PRId64
                           ": column %d: a quote is not closed in its line; close it, "
                           "or remove it",
                           cursor->name, cursor->line, cursor->column);
        }
        return GR_OK;
    }
}

/* The next field of `column`; *last_out: it ended its line. */
static gr_status read_field(gr_csv_cursor *cursor, const gr_csv_column *column,
                            const gr_csv_column *if_last, double *value_out, bool *last_out,
                            gr_diag *diag)
{
    gr_status status = have_field(cursor, diag);
    if (status != GR_OK) {
        return status;
    }
    if (column->role == GR_CSV_SKIP) {
        *value_out = 0;
        return skip_cell(cursor, last_out, diag);
    }
    bool number = column->count == 0 && (if_last == NULL || if_last->count == 0);
    const char *at = cursor->buffer + cursor->begin;
    while (number && (*at == ' ' || *at == '\t') && *at != cursor->delimiter) {
        at++;
    }
    at = number ? gr_csv_number(at, cursor->locale, value_out) : NULL;
    while (at != NULL && (*at == ' ' || *at == '\t') && *at != cursor->delimiter) {
        at++;
    }
    return at != NULL && go_behind(cursor, at, last_out)
               ? GR_OK
               : read_cell(cursor, column, if_last, value_out, last_out, diag);
}

gr_status gr_csv_name(gr_csv_cursor *cursor, char name_out[GR_CSV_FIELD_BYTES_MAX], bool *last_out,
                      gr_diag *diag)
{
    gr_csv_cell cell;
    const char *behind;
    gr_status status = have_field(cursor, diag);
    if (status == GR_OK) {
        status = gr_csv_find_cell(cursor, cursor->buffer + cursor->begin, &cell, &behind, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    size_t bytes = 0, at = 0;
    while (at < cell.bytes) {
        size_t length = gr_text_character(cell.text + at, cell.bytes - at);
        if (length == 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s:%" PRId64 ": the name of column %d is not UTF-8; convert the file: "
                           "iconv -f latin1 -t utf-8, say",
                           cursor->name, cursor->line, cursor->column);
        }
        if (bytes + length >= GR_CSV_FIELD_BYTES_MAX) {
            break;
        }
        memcpy(name_out + bytes, cell.text + at, length);
        bytes += length;
        at = length > 1 ? at + length : gr_csv_cell_next(&cell, at);
    }
    name_out[bytes] = '\0';
    return go_behind(cursor, behind, last_out)
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "%s:%" PRId64 ": name %d ends in a control character",
                         cursor->name, cursor->line, cursor->column);
}

float *gr_csv_spread(const gr_csv_column *column, double value, float *x_out)
{
    if (column->role != GR_CSV_VALUE) {
        return x_out;
    }
    if (column->count == 0) {
        *x_out = (float)value;
        return x_out + 1;
    }
    for (int i = 0; i < column->count; i++) {
        x_out[i] = i == (int)value ? 1.0F : 0.0F;
    }
    return x_out + column->count;
}

static gr_status columns_fail(const gr_csv_cursor *cursor, int64_t line, int columns,
                              const char *what, gr_diag *diag)
{
    return gr_fail(diag, GR_E_INVALID,
                   "%s:%" PRId64 ": the line has %s columns than the first line of data, which "
                   "has %d",
                   cursor->name, line, what, columns);
}

gr_status gr_csv_check_label(const char *name, int64_t line, const gr_csv_layout *layout,
                             double label, gr_diag *diag)
{
    if (layout->regression) {
        if (fabs(label) <= (double)FLT_MAX) {
            return GR_OK;
        }
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64 ": column %d: the number to predict is too large for 32 bits",
                       name, line, layout->label_column);
    }
    int64_t limit = layout->classes > 0 ? layout->classes : GR_CSV_LABEL_MAX + 1;
    if (label >= 0 && label < (double)limit && label == floor(label)) {
        return GR_OK;
    }
    const char *where = layout->classes > 0 ? " (classes in the job file)" : "";
    if (label != floor(label)) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64 ": column %d: the label %.9g is not a whole number; a number "
                       "to predict needs regression: true",
                       name, line, layout->label_column, label);
    }
    bool from_one = layout->classes > 0 && label == (double)limit;
    return gr_fail(diag, GR_E_INVALID,
                   "%s:%" PRId64 ": column %d: the label %.9g is out of range: labels go from 0 to "
                   "%" PRId64 "%s%s",
                   name, line, layout->label_column, label, limit - 1, where,
                   from_one ? "; if those of the file go from 1 on, list them in place of classes: "
                              "class_names: [1, 2, ...]"
                            : "");
}

gr_status gr_csv_check_value(const char *name, int64_t line, int column, double value,
                             gr_diag *diag)
{
    if (fabs(value) <= (double)FLT_MAX) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s:%" PRId64 ": column %d: the number is too large for 32 bits", name, line,
                   column);
}

gr_status gr_csv_record(gr_csv_cursor *cursor, const gr_csv_layout *layout, float *x_out,
                        double *label_out, gr_diag *diag)
{
    int64_t line = cursor->line;
    for (int number = 1; number <= layout->columns; number++) {
        double value;
        bool last;
        const gr_csv_column *column = layout->column != NULL           ? &layout->column[number - 1]
                                      : number == layout->label_column ? &plain_label
                                                                       : &plain_value;
        gr_status status = read_field(cursor, column, NULL, &value, &last, diag);
        if (status != GR_OK) {
            return status;
        }
        if (last != (number == layout->columns)) {
            return columns_fail(cursor, line, layout->columns, last ? "fewer" : "more", diag);
        }
        if (column->role == GR_CSV_LABEL) {
            *label_out = value;
        } else {
            status = gr_csv_check_value(cursor->name, line, number, value, diag);
            if (status != GR_OK) {
                return status;
            }
            x_out = gr_csv_spread(column, value, x_out);
        }
    }
    return gr_csv_check_label(cursor->name, line, layout, *label_out, diag);
}

gr_status gr_csv_first(gr_csv_cursor *cursor, gr_csv_column_of *column_of, void *arg,
                       double **values_out, int *count_out, gr_diag *diag)
{
    double *values = NULL;
    int count = 0, capacity = 0;
    gr_status status = GR_OK;
    bool last = false;
    int64_t line = cursor->line;
    while (!last) {
        if (count == GR_CSV_COLUMNS_MAX) {
            status =
                gr_fail(diag, GR_E_INVALID, "%s:%" PRId64 ": the line has more than %d columns",
                        cursor->name, line, GR_CSV_COLUMNS_MAX);
            goto undo_values;
        }
        if (count == capacity) {
            capacity = capacity > 0 ? capacity * 2 : 128;
            double *grown = realloc(values, (size_t)capacity * sizeof *values);
            if (grown == NULL) {
                status = gr_fail(diag, GR_E_NO_MEMORY, "%s:%" PRId64 ": no memory for the line",
                                 cursor->name, line);
                goto undo_values;
            }
            values = grown;
        }
        gr_csv_column column, if_last;
        column_of(arg, count + 1, &column, &if_last);
        status = read_field(cursor, &column, &if_last, &values[count], &last, diag);
        if (status != GR_OK) {
            goto undo_values;
        }
        count++;
    }
    *values_out = values;
    *count_out = count;
    return GR_OK;
undo_values:
    free(values);
    return status;
}
