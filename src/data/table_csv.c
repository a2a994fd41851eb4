/* SPDX-License-Identifier: Apache-2.0 */
#include "data/table_internal.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CSV_SCAN_BYTES = 64 << 10, CSV_READ_BYTES = 16 << 10 };

/* Everything that the one validating pass over the text needs. */
typedef struct csv_scan {
    gr_table *table;
    gr_input_stream *source;
    const gr_table_options *options;
    gr_csv_cursor cursor;
    gr_csv_columns columns;
    char *buffer;
    uint8_t *record; /* the values, then the label, all 32-bit */
    bool plain;      /* the text can be read again at any place */
} csv_scan;

static gr_status refill_from_source(void *refill_arg, uint64_t offset, char *buffer, size_t size,
                                    size_t *got_out, gr_diag *diag)
{
    (void)offset; /* the scan goes forward only */
    const csv_scan *scan = refill_arg;
    gr_diag why;
    gr_diag_clear(&why);
    gr_status status = gr_input_stream_read(scan->source, buffer, size, got_out, &why);
    if (status == GR_OK) {
        return GR_OK;
    }
    /* "name: what is wrong" becomes "name:line: what is wrong". */
    const char *name = scan->table->name;
    size_t length = strlen(name);
    bool named = strncmp(why.text, name, length) == 0;
    return gr_fail(diag, status, "%s:%" PRId64 "%s%s", name, scan->cursor.line, named ? "" : ": ",
                   named ? why.text + length : why.text);
}

static gr_status refill_from_file(void *refill_arg, uint64_t offset, char *buffer, size_t size,
                                  size_t *got_out, gr_diag *diag)
{
    const gr_table *table = refill_arg;
    /* Mostly a single line is wanted, not all that the buffer could hold. */
    size = table->line_bytes_max < size ? table->line_bytes_max : size;
    ssize_t n;
    do {
        n = pread(table->fd, buffer, size, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return gr_fail(diag, GR_E_IO, "%s: cannot be read: %s", table->name, strerror(errno));
    }
    *got_out = (size_t)n;
    return GR_OK;
}

static void index_add(gr_table *table, uint64_t offset)
{
    uint64_t number = (uint64_t)table->count;
    if (number % table->index_stride != 0) {
        return;
    }
    if (table->index_count == table->index_max) {
        table->index_count /= 2;
        for (uint32_t i = 0; i < table->index_count; i++) {
            table->index[i] = table->index[2 * i];
        }
        table->index_stride *= 2;
        if (number % table->index_stride != 0) {
            return;
        }
    }
    table->index[table->index_count++] = offset;
}

static gr_status layout_setup(csv_scan *scan, int columns, int64_t line, gr_diag *diag)
{
    gr_table *table = scan->table;
    gr_csv_layout *layout = &table->layout;
    layout->regression = scan->options->regression;
    layout->classes = scan->options->class_name_count > 0 ? scan->options->class_name_count
                                                          : scan->options->classes;
    if (columns < 2) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64 ": the line has one column; a sample has at least one value "
                       "and a label, separated by commas (or see delimiter)",
                       table->name, line);
    }
    if (scan->columns.label_column > columns) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64
                       ": the line has %d columns, so column %d (label_column) cannot "
                       "be the label",
                       table->name, line, columns, scan->columns.label_column);
    }
    gr_status status = gr_csv_columns_finish(&scan->columns, columns, diag);
    table->dims = 1;
    table->values = layout->values;
    table->dim[0] = table->values;
    return status;
}

static size_t record_bytes_of(const gr_table *table)
{
    return ((size_t)table->values + 1) * 4;
}

/* Keeps a sample that has been read: as a record, and as an entry of the index of lines as long
 * as it is open whether the records will stay in memory. */
static gr_status keep(csv_scan *scan, double label, uint64_t offset, uint64_t line_bytes,
                      gr_diag *diag)
{
    gr_table *table = scan->table;
    size_t record_bytes = record_bytes_of(table);
    gr_status status = GR_OK;
    if (table->layout.regression) {
        float target = (float)label;
        memcpy(scan->record + record_bytes - 4, &target, 4);
    } else {
        int32_t class_number = (int32_t)label;
        memcpy(scan->record + record_bytes - 4, &class_number, 4);
        table->label_max = class_number > table->label_max ? class_number : table->label_max;
    }
    if (scan->plain) {
        index_add(table, offset);
        table->line_bytes_max =
            line_bytes > table->line_bytes_max ? (size_t)line_bytes : table->line_bytes_max;
        if (table->records != NULL &&
            ((uint64_t)table->count + 1) * record_bytes > scan->options->memory_max) {
            gr_store_destroy(table->records);
            table->records = NULL;
        }
    }
    if (table->records != NULL) {
        status = gr_store_append(table->records, scan->record, diag);
    }
    table->count++;
    return status;
}

/* The first line of data decides the number of columns. */
static gr_status scan_first(csv_scan *scan, gr_diag *diag)
{
    gr_table *table = scan->table;
    gr_csv_cursor *cursor = &scan->cursor;
    uint64_t offset = gr_csv_cursor_at(cursor);
    int64_t line = cursor->line;
    double *values = NULL;
    int columns;
    gr_status status =
        gr_csv_first(cursor, gr_csv_columns_of, &scan->columns, &values, &columns, diag);
    if (status != GR_OK) {
        return status;
    }
    status = layout_setup(scan, columns, line, diag);
    if (status != GR_OK) {
        goto undo_values;
    }
    size_t record_bytes = record_bytes_of(table);
    scan->record = malloc(record_bytes);
    if (scan->record == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for a line", table->name);
        goto undo_values;
    }
    status = gr_store_create(table->name, record_bytes, scan->options->memory_max, &table->records,
                             diag);
    if (status != GR_OK) {
        goto undo_values;
    }
    float *x = (float *)scan->record;
    double label = values[table->layout.label_column - 1];
    for (int i = 0; i < columns && status == GR_OK; i++) {
        if (i + 1 == table->layout.label_column) {
            status = gr_csv_check_label(table->name, line, &table->layout, label, diag);
        } else {
            static const gr_csv_column number = {.role = GR_CSV_VALUE};
            status = gr_csv_check_value(table->name, line, i + 1, values[i], diag);
            x = gr_csv_spread(table->layout.column != NULL ? &table->layout.column[i] : &number,
                              status == GR_OK ? values[i] : 0, x);
        }
    }
    if (status == GR_OK) {
        status = keep(scan, label, offset, gr_csv_cursor_at(cursor) - offset, diag);
    }
undo_values:
    free(values);
    return status;
}

static gr_status scan_all(csv_scan *scan, gr_diag *diag)
{
    gr_table *table = scan->table;
    gr_csv_cursor *cursor = &scan->cursor;
    bool more;
    gr_status status = gr_csv_begin(cursor, diag);
    if (status == GR_OK && table->header) {
        status = gr_csv_columns_read_names(&scan->columns, cursor, diag);
    }
    if (status == GR_OK) {
        status = gr_csv_columns_find_label(&scan->columns, diag);
    }
    if (status == GR_OK) {
        status = gr_csv_more(cursor, &more, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (!more) {
        return gr_fail(diag, GR_E_INVALID, "%s: the file is empty%s; it must hold a sample a line",
                       table->name, table->header ? " behind its header line" : "");
    }
    status = scan_first(scan, diag);
    while (status == GR_OK) {
        status = gr_csv_more(cursor, &more, diag);
        if (status != GR_OK || !more) {
            break;
        }
        uint64_t offset = gr_csv_cursor_at(cursor);
        double label;
        status = gr_csv_record(cursor, &table->layout, (float *)scan->record, &label, diag);
        if (status == GR_OK) {
            status = keep(scan, label, offset, gr_csv_cursor_at(cursor) - offset, diag);
        }
    }
    return status;
}

static gr_status scan_prepare(csv_scan *scan, gr_diag *diag)
{
    gr_table *table = scan->table;
    table->header = scan->options->header;
    table->delimiter = scan->options->delimiter != '\0' ? scan->options->delimiter : ',';
    gr_status status = gr_csv_columns_init(&scan->columns, table, scan->options, diag);
    if (status != GR_OK) {
        return status;
    }
    table->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    scan->buffer = malloc(CSV_SCAN_BYTES);
    if (table->locale == (locale_t)0 || scan->buffer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to read it", table->name);
    }
    gr_csv_cursor_init(&scan->cursor, table->name, table->locale, scan->buffer, CSV_SCAN_BYTES,
                       refill_from_source, scan);
    scan->cursor.delimiter = table->delimiter;
    uint64_t size;
    int fd = gr_input_stream_seekable(scan->source, &size);
    scan->plain = fd >= 0;
    if (!scan->plain) {
        return GR_OK;
    }
    table->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (table->fd < 0) {
        return gr_fail(diag, GR_E_IO, "%s: cannot be kept open: %s", table->name, strerror(errno));
    }
    table->index_max = scan->options->index_max;
    table->index_stride = 1;
    table->index = malloc(table->index_max * sizeof *table->index);
    if (table->index == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its index of lines", table->name);
    }
    return gr_file_mark_take(table->name, table->fd, &table->mark, diag);
}

gr_status gr_table_open_csv(gr_input_stream *source, const gr_table_options *options,
                            gr_table **table_out, gr_diag *diag)
{
    gr_table *table = gr_table_new(gr_input_stream_name(source));
    if (table == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it",
                       gr_input_stream_name(source));
    }
    csv_scan scan = {.table = table, .source = source, .options = options};
    gr_status status = scan_prepare(&scan, diag);
    if (status == GR_OK) {
        status = scan_all(&scan, diag);
    }
    if (status == GR_OK && table->records != NULL) {
        gr_csv_text_fini(table); /* all is in the records */
        table->kind = GR_TABLE_CSV_RECORDS;
        status = gr_store_seal(table->records, diag);
    } else if (status == GR_OK) {
        table->kind = GR_TABLE_CSV_TEXT;
        /* The cursor wants a whole field in sight up to the line's end: one system call a line. */
        table->line_bytes_max += GR_CSV_FIELD_BYTES_MAX;
        status = gr_file_mark_check(table->name, table->fd, &table->mark, diag);
    }
    free(scan.record);
    free(scan.buffer);
    if (status != GR_OK) {
        gr_table_close(table);
        return status;
    }
    *table_out = table;
    return GR_OK;
}

void gr_csv_text_fini(gr_table *table)
{
    if (table->fd >= 0) {
        close(table->fd);
        table->fd = -1;
    }
    free(table->index);
    table->index = NULL;
    if (table->locale != (locale_t)0) {
        freelocale(table->locale);
        table->locale = (locale_t)0;
    }
}

gr_status gr_csv_read_record(const gr_table *table, int64_t number, float *x_out, double *label_out,
                             gr_diag *diag)
{
    size_t values_bytes = (size_t)table->values * sizeof *x_out;
    gr_status status = gr_store_get(table->records, (uint64_t)number, 0, values_bytes, x_out, diag);
    uint8_t word[4];
    if (status == GR_OK) {
        status = gr_store_get(table->records, (uint64_t)number, values_bytes, 4, word, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (table->layout.regression) {
        float target;
        memcpy(&target, word, 4);
        *label_out = (double)target;
    } else {
        int32_t class_number;
        memcpy(&class_number, word, 4);
        *label_out = class_number;
    }
    return GR_OK;
}

gr_status gr_csv_read_text(const gr_table *table, int64_t number, float *x_out, double *label_out,
                           gr_diag *diag)
{
    char buffer[CSV_READ_BYTES];
    uint64_t entry = (uint64_t)number / table->index_stride;
    uint64_t skip = (uint64_t)number % table->index_stride;
    gr_csv_cursor cursor;
    gr_csv_cursor_init(&cursor, table->name, table->locale, buffer, sizeof buffer, refill_from_file,
                       (void *)table);
    cursor.delimiter = table->delimiter;
    gr_csv_cursor_seek(&cursor, table->index[entry],
                       number - (int64_t)skip + (table->header ? 2 : 1));
    for (uint64_t i = 0; i < skip; i++) {
        gr_status status = gr_csv_skip_line(&cursor, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    gr_status status = gr_csv_record(&cursor, &table->layout, x_out, label_out, diag);
    if (status == GR_OK && !table->layout.regression) {
        *label_out = (int32_t)*label_out; /* "-0" is the class 0, as in the records */
    }
    return status;
}
