/* SPDX-License-Identifier: Apache-2.0 */
#include "data/dataset_internal.h"
#include "data/table_internal.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CSV_SCAN_BYTES = 64 << 10, CSV_READ_BYTES = 16 << 10, TEXTS_BYTES_MAX = 64 << 20 };

/* Everything that the one validating pass over the text needs. */
typedef struct csv_scan {
    gr_csv_table *table;
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
    const char *name = scan->table->head.name;
    size_t length = strlen(name);
    bool named = strncmp(why.text, name, length) == 0;
    return gr_fail(diag, status, "%s:%" PRId64 "%s%s", name, scan->cursor.line, named ? "" : ": ",
                   named ? why.text + length : why.text);
}

static gr_status refill_from_file(void *refill_arg, uint64_t offset, char *buffer, size_t size,
                                  size_t *got_out, gr_diag *diag)
{
    const gr_csv_table *table = refill_arg;
    /* Mostly a single line is wanted, not all that the buffer could hold. */
    size = table->line_bytes_max < size ? table->line_bytes_max : size;
    ssize_t n;
    do {
        n = pread(table->fd, buffer, size, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return gr_fail(diag, GR_E_IO, "%s: cannot be read: %s", table->head.name, strerror(errno));
    }
    *got_out = (size_t)n;
    return GR_OK;
}

static void index_add(gr_csv_table *table, uint64_t offset)
{
    uint64_t number = (uint64_t)table->head.count;
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
    gr_csv_table *table = scan->table;
    gr_csv_layout *layout = &table->layout;
    layout->regression = scan->options->regression;
    layout->classes = scan->options->class_name_count > 0 ? scan->options->class_name_count
                                                          : scan->options->classes;
    if (columns < 2) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64 ": the line has one column; a sample has at least one value "
                       "and a label, separated by commas (or see delimiter)",
                       table->head.name, line);
    }
    if (scan->columns.label_column > columns) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:%" PRId64
                       ": the line has %d columns, so column %d (label_column) cannot "
                       "be the label",
                       table->head.name, line, columns, scan->columns.label_column);
    }
    gr_status status = gr_csv_columns_finish(&scan->columns, columns, diag);
    table->values = layout->values;
    gr_table_add_value(&table->head, "x", GR_F32, 1, &table->values);
    gr_table_add_value(&table->head, layout->regression ? "target" : "label",
                       layout->regression ? GR_F32 : GR_I32, 0, NULL);
    return status;
}

static size_t record_bytes_of(const gr_csv_table *table)
{
    return ((size_t)table->values + 1) * 4;
}

/* Keeps a sample that has been read: as a record, and as an entry of the index of lines as long
 * as it is open whether the records will stay in memory. */
static gr_status keep(csv_scan *scan, double label, uint64_t offset, uint64_t line_bytes,
                      gr_diag *diag)
{
    gr_csv_table *table = scan->table;
    size_t record_bytes = record_bytes_of(table);
    gr_status status = GR_OK;
    if (table->layout.regression) {
        float target = (float)label;
        memcpy(scan->record + record_bytes - 4, &target, 4);
    } else {
        int32_t class_number = (int32_t)label;
        memcpy(scan->record + record_bytes - 4, &class_number, 4);
        table->head.label_max =
            class_number > table->head.label_max ? class_number : table->head.label_max;
    }
    if (scan->plain) {
        index_add(table, offset);
        table->line_bytes_max =
            line_bytes > table->line_bytes_max ? (size_t)line_bytes : table->line_bytes_max;
        if (table->records != NULL &&
            ((uint64_t)table->head.count + 1) * record_bytes > scan->options->memory_max) {
            gr_record_cache_destroy(table->records);
            table->records = NULL;
        }
    }
    if (table->records != NULL) {
        status = gr_record_cache_append(table->records, scan->record, diag);
    }
    table->head.count++;
    return status;
}

/* The first line of data decides the number of columns. */
static gr_status scan_first(csv_scan *scan, gr_diag *diag)
{
    gr_csv_table *table = scan->table;
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
        status = gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for a line", table->head.name);
        goto undo_values;
    }
    status = gr_record_cache_create(table->head.name, record_bytes, scan->options->memory_max,
                                    &table->records, diag);
    if (status != GR_OK) {
        goto undo_values;
    }
    float *x = (float *)scan->record;
    double label = values[table->layout.label_column - 1];
    for (int i = 0; i < columns && status == GR_OK; i++) {
        if (i + 1 == table->layout.label_column) {
            status = gr_csv_check_label(table->head.name, line, &table->layout, label, diag);
        } else {
            static const gr_csv_column number = {.role = GR_CSV_VALUE};
            status = gr_csv_check_value(table->head.name, line, i + 1, values[i], diag);
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
    gr_csv_table *table = scan->table;
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
                       table->head.name, table->header ? " behind its header line" : "");
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
    gr_csv_table *table = scan->table;
    table->header = scan->options->header;
    table->delimiter = scan->options->delimiter != '\0' ? scan->options->delimiter : ',';
    gr_status status = gr_csv_columns_init(&scan->columns, table, scan->options, diag);
    if (status != GR_OK) {
        return status;
    }
    table->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    scan->buffer = malloc(CSV_SCAN_BYTES);
    if (table->locale == (locale_t)0 || scan->buffer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to read it", table->head.name);
    }
    gr_csv_cursor_init(&scan->cursor, table->head.name, table->locale, scan->buffer, CSV_SCAN_BYTES,
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
        return gr_fail(diag, GR_E_IO, "%s: cannot be kept open: %s", table->head.name,
                       strerror(errno));
    }
    table->index_max = scan->options->index_max;
    table->index_stride = 1;
    table->index = malloc(table->index_max * sizeof *table->index);
    if (table->index == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its index of lines",
                       table->head.name);
    }
    return gr_file_mark_take(table->head.name, table->fd, &table->mark, diag);
}

static void text_fini(gr_csv_table *table)
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

gr_status gr_table_open_csv(gr_input_stream *source, const gr_table_options *options,
                            gr_table **table_out, gr_diag *diag)
{
    const char *name = gr_input_stream_name(source);
    gr_csv_table *table = gr_table_new(&gr_csv_reader, name, sizeof *table);
    if (table == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory to open it", name);
    }
    table->fd = -1;
    csv_scan scan = {.table = table, .source = source, .options = options};
    gr_status status = scan_prepare(&scan, diag);
    if (status == GR_OK) {
        status = scan_all(&scan, diag);
    }
    if (status == GR_OK && table->records != NULL) {
        text_fini(table); /* all is in the records */
        status = gr_record_cache_seal(table->records, diag);
    } else if (status == GR_OK) {
        /* The cursor wants a whole field in sight up to the line's end: one system call a line. */
        table->line_bytes_max += GR_CSV_FIELD_BYTES_MAX;
        status = gr_file_mark_check(name, table->fd, &table->mark, diag);
    }
    free(scan.record);
    free(scan.buffer);
    if (status != GR_OK) {
        gr_table_close(&table->head);
        return status;
    }
    *table_out = &table->head;
    return GR_OK;
}

/* ---- The reader ------------------------------------------------------------------------------ */

static gr_status csv_check_settings(const gr_data_config *config, gr_diag *diag)
{
    return gr_data_need(&gr_csv_reader, config, "file", config->file, diag);
}

static gr_status csv_open(const gr_reader_open *how, gr_table **table_out, gr_diag *diag)
{
    const char *file = how->test ? how->config->test_file : how->config->file;
    gr_input_stream *source = NULL;
    if (file == NULL) {
        *table_out = NULL;
        return GR_OK;
    }
    gr_table_options options = how->limits;
    gr_arena arena;
    gr_arena_init(&arena, TEXTS_BYTES_MAX);
    gr_status status = gr_dataset_columns(how->config, &arena, &options, diag);
    if (status == GR_OK) {
        status = gr_reader_open_file(how, how->test ? "test_file" : "file", file, &source, diag);
    }
    if (status == GR_OK) {
        status = gr_table_open_csv(source, &options, table_out, diag);
    }
    gr_input_stream_close(source);
    gr_arena_fini(&arena);
    return status;
}

static void csv_close(gr_table *head)
{
    gr_csv_table *table = (gr_csv_table *)head;
    text_fini(table);
    gr_arena_fini(&table->arena);
    gr_record_cache_destroy(table->records);
}

static gr_status csv_check(const gr_table *head, gr_diag *diag)
{
    const gr_csv_table *table = (const gr_csv_table *)head;
    return table->records != NULL ? gr_record_cache_check(table->records, diag)
                                  : gr_file_mark_check(head->name, table->fd, &table->mark, diag);
}

static gr_status read_record(const gr_csv_table *table, int64_t number, float *x_out,
                             void *label_out, gr_diag *diag)
{
    size_t bytes = (size_t)table->values * sizeof *x_out;
    gr_status status = GR_OK;
    if (x_out != NULL) {
        status = gr_record_cache_get(table->records, (uint64_t)number, 0, bytes, x_out, diag);
    }
    if (status == GR_OK && label_out != NULL) {
        status = gr_record_cache_get(table->records, (uint64_t)number, bytes, 4, label_out, diag);
    }
    return status;
}

static gr_status read_text(const gr_csv_table *table, int64_t number, float *x_out, void *label_out,
                           gr_diag *diag)
{
    char buffer[CSV_READ_BYTES];
    uint64_t entry = (uint64_t)number / table->index_stride;
    uint64_t skip = (uint64_t)number % table->index_stride;
    double label = 0;
    gr_csv_cursor cursor;
    gr_csv_cursor_init(&cursor, table->head.name, table->locale, buffer, sizeof buffer,
                       refill_from_file, (void *)table);
    cursor.delimiter = table->delimiter;
    gr_csv_cursor_seek(&cursor, table->index[entry],
                       number - (int64_t)skip + (table->header ? 2 : 1));
    for (uint64_t i = 0; i < skip; i++) {
        gr_status status = gr_csv_skip_line(&cursor, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    gr_status status = gr_csv_record(&cursor, &table->layout, x_out, &label, diag);
    if (status == GR_OK && label_out != NULL && table->layout.regression) {
        float target = (float)label;
        memcpy(label_out, &target, sizeof target);
    } else if (status == GR_OK && label_out != NULL) {
        int32_t class_number = (int32_t)label;
        memcpy(label_out, &class_number, sizeof class_number);
    }
    return status;
}

static gr_status csv_read(const gr_table *head, int64_t number, void *const *values_out,
                          gr_diag *diag)
{
    const gr_csv_table *table = (const gr_csv_table *)head;
    return table->records != NULL ? read_record(table, number, values_out[0], values_out[1], diag)
                                  : read_text(table, number, values_out[0], values_out[1], diag);
}

static const gr_csv_layout *csv_layout(const gr_table *head)
{
    return &((const gr_csv_table *)head)->layout;
}

static const char *csv_kept(const gr_table *head)
{
    const gr_csv_table *table = (const gr_csv_table *)head;
    return table->records == NULL ? "read line by line from the file"
                                  : gr_record_cache_kept(table->records);
}

static uint64_t csv_memory(const gr_table *head)
{
    const gr_csv_table *table = (const gr_csv_table *)head;
    uint64_t bytes = table->index != NULL ? table->index_count * sizeof *table->index : 0;
    return bytes + (table->records != NULL ? gr_record_cache_memory(table->records) : 0);
}

#define AT(field) offsetof(gr_data_config, field)
static const gr_config_field fields[] = {
    {.key = "file",
     .type = GR_CONFIG_TEXT,
     .offset = AT(file),
     .value_name = "FILE",
     .is_file = true,
     .help = "csv: the samples, plain or gzip; relative to the job file"},
    {.key = "test_file",
     .type = GR_CONFIG_TEXT,
     .offset = AT(test_file),
     .value_name = "FILE",
     .is_file = true,
     .help = "csv: a test set of its own, instead of test_count"},
    {.key = "label_column",
     .type = GR_CONFIG_TEXT,
     .offset = AT(label_column),
     .default_text = "last",
     .value_name = "COLUMN",
     .help = "csv: where the label stands: first, last, a number from 1, or a name of the header"},
    {.key = "delimiter",
     .type = GR_CONFIG_TEXT,
     .offset = AT(delimiter),
     .value_name = "CHARACTER",
     .help =
         "csv: what separates the columns: a comma if nothing is said; \";\", \"|\", \":\" or tab"},
    {.key = "class_names",
     .type = GR_CONFIG_NODE,
     .offset = AT(class_names),
     .value_name = "[NAME, ...]",
     .help = "csv: what stands in the label column for the classes 0, 1, ...: names or numbers"},
    {.key = "categories",
     .type = GR_CONFIG_NODE,
     .offset = AT(categories),
     .value_name = "{COLUMN: [TEXT, ...]}",
     .help = "csv: columns of texts, by name or number; each text becomes a value that is 0 or 1"},
    {.key = "skip",
     .type = GR_CONFIG_NODE,
     .offset = AT(skip),
     .value_name = "[COLUMN, ...]",
     .help = "csv: columns that are left out, by name or number"},
    {.key = "header",
     .type = GR_CONFIG_BOOL,
     .offset = AT(header),
     .default_text = "false",
     .help = "csv: the first line holds names"},
    {0}};

const gr_reader_ops gr_csv_reader = {
    .name = "csv",
    .settings = fields,
    .note = " (its columns without the label)",
    .check_settings = csv_check_settings,
    .open = csv_open,
    .close = csv_close,
    .check = csv_check,
    .read = csv_read,
    .kept = csv_kept,
    .memory = csv_memory,
    .layout = csv_layout,
};
