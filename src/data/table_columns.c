/* SPDX-License-Identifier: Apache-2.0 */

/* What each column of a CSV file means: from the options and the line of names. */

#include "data/table_internal.h"

#include "base/fail.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES_MAX = 128 << 20 };

static gr_status no_memory(const gr_csv_columns *columns, gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for its columns",
                   columns->table->head.name);
}

/* Texts of the options are borrowed; the table keeps its own. NULL: no memory, or none. */
static const char *const *copy_texts(gr_arena *arena, const char *const *texts, int count)
{
    const char **copy = count > 0 ? gr_arena_alloc(arena, (size_t)count * sizeof *copy) : NULL;
    for (int i = 0; i < count && copy != NULL; i++) {
        copy[i] = gr_arena_strdup(arena, texts[i]);
        copy = copy[i] != NULL ? copy : NULL;
    }
    return copy;
}

gr_status gr_csv_columns_init(gr_csv_columns *columns, gr_csv_table *table,
                              const gr_table_options *options, gr_diag *diag)
{
    *columns =
        (gr_csv_columns){.table = table, .options = options, .label_column = options->label_column};
    gr_arena_init(&table->arena, ARENA_BYTES_MAX);
    columns->class_names =
        copy_texts(&table->arena, options->class_names, options->class_name_count);
    bool whole = columns->class_names != NULL || options->class_name_count == 0;
    size_t bytes = ((size_t)options->category_count + 1) * sizeof *columns->categories;
    columns->categories = gr_arena_alloc(&table->arena, bytes);
    whole = whole && columns->categories != NULL;
    for (int i = 0; i < options->category_count && whole; i++) {
        const gr_table_texts *from = &options->categories[i];
        columns->categories[i] = (gr_table_texts){
            from->column, copy_texts(&table->arena, from->texts, from->count), from->count};
        whole = columns->categories[i].texts != NULL;
    }
    return whole ? GR_OK : no_memory(columns, diag);
}

gr_status gr_csv_columns_read_names(gr_csv_columns *columns, gr_csv_cursor *cursor, gr_diag *diag)
{
    gr_arena *arena = &columns->table->arena;
    int capacity = 0;
    bool last = false;
    while (!last) {
        char name[GR_CSV_FIELD_BYTES_MAX];
        gr_status status = gr_csv_name(cursor, name, &last, diag);
        if (status != GR_OK) {
            return status;
        }
        if (columns->name_count == GR_CSV_COLUMNS_MAX) {
            return gr_fail(diag, GR_E_INVALID, "%s:1: the line has more than %d columns",
                           columns->table->head.name, GR_CSV_COLUMNS_MAX);
        }
        if (columns->name_count == capacity) {
            const char **before = columns->names;
            capacity = capacity > 0 ? 2 * capacity : 32;
            columns->names = gr_arena_alloc(arena, (size_t)capacity * sizeof *columns->names);
            if (columns->names == NULL) {
                return no_memory(columns, diag);
            }
            memcpy(columns->names, before != NULL ? before : columns->names,
                   (size_t)columns->name_count * sizeof *columns->names);
        }
        columns->names[columns->name_count] = gr_arena_strdup(arena, name);
        if (columns->names[columns->name_count++] == NULL) {
            return no_memory(columns, diag);
        }
    }
    return GR_OK;
}

/* Returns true if the job's `text` means column `number`, by its number or by its name. */
static bool is_column(const gr_csv_columns *columns, int number, const char *text)
{
    char *end;
    long written = strtol(text, &end, 10);
    if (end != text && *end == '\0') {
        return written == number;
    }
    return number <= columns->name_count && strcmp(columns->names[number - 1], text) == 0;
}

void gr_csv_columns_of(void *arg, int number, gr_csv_column *column_out, gr_csv_column *last_out)
{
    const gr_csv_columns *columns = arg;
    const gr_table_options *options = columns->options;
    const gr_csv_column label = {.role = GR_CSV_LABEL,
                                 .name = number <= columns->name_count ? columns->names[number - 1]
                                                                       : NULL,
                                 .texts = columns->class_names,
                                 .count = options->class_name_count};
    gr_csv_column column = {.role = GR_CSV_VALUE, .name = label.name};
    for (int i = 0; i < options->skip_count; i++) {
        column.role = is_column(columns, number, options->skip[i]) ? GR_CSV_SKIP : column.role;
    }
    for (int i = 0; i < options->category_count; i++) {
        const gr_table_texts *texts = &columns->categories[i];
        if (is_column(columns, number, texts->column)) {
            column.texts = texts->texts;
            column.count = texts->count;
        }
    }
    *column_out = number == columns->label_column ? label : column;
    *last_out = columns->label_column == 0 ? label : *column_out;
}

/* The column that the job calls `text`; 0: there is none. */
static int find_column(const gr_csv_columns *columns, const char *text, int count)
{
    for (int number = 1; number <= count; number++) {
        if (is_column(columns, number, text)) {
            return number;
        }
    }
    return 0;
}

static gr_status check_named(const gr_csv_columns *columns, const char *key, const char *text,
                             int count, gr_diag *diag)
{
    const char *name = columns->table->head.name;
    int number = find_column(columns, text, count);
    if (number == 0 && columns->name_count == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: there is no column \"%s\" (%s); columns have numbers from 1 to %d, or "
                       "names if the first line holds them: header: true",
                       name, text, key, count);
    }
    if (number == 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: there is no column \"%s\" (%s) among the %d of its first line; write a "
                       "name as it stands there, or a number from 1",
                       name, text, key, columns->name_count);
    }
    if (number == columns->label_column && strcmp(key, "label_column") != 0) {
        return gr_fail(diag, GR_E_INVALID, "%s: column \"%s\" is the label and cannot be in %s%s",
                       name, text, key,
                       strcmp(key, "categories") == 0 ? "; its texts are class_names" : "");
    }
    return GR_OK;
}

gr_status gr_csv_columns_find_label(gr_csv_columns *columns, gr_diag *diag)
{
    const char *text = columns->options->label_name;
    if (text == NULL) {
        return GR_OK;
    }
    gr_status status = check_named(columns, "label_column", text, columns->name_count, diag);
    columns->label_column = find_column(columns, text, columns->name_count);
    return status;
}

/* Fails unless each column has a name: R, say, writes none for the names of its rows. */
static gr_status check_name_count(const gr_csv_columns *columns, int count, gr_diag *diag)
{
    int names = columns->name_count;
    if (names == 0 || names == count) {
        return GR_OK;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "%s:1: the first line has %d name%s, but the line below has %d columns; write a "
                   "name for each column%s",
                   columns->table->head.name, names, names == 1 ? "" : "s", count,
                   names + 1 == count ? " (in R: row.names = FALSE)" : "");
}

gr_status gr_csv_columns_finish(gr_csv_columns *columns, int count, gr_diag *diag)
{
    const gr_table_options *options = columns->options;
    gr_csv_layout *layout = &columns->table->layout;
    gr_status status = check_name_count(columns, count, diag);
    columns->label_column = columns->label_column > 0 ? columns->label_column : count;
    bool plain = columns->name_count == 0 && options->skip_count + options->category_count == 0 &&
                 options->class_name_count == 0;
    layout->columns = count;
    layout->label_column = columns->label_column;
    layout->values = count - 1;
    for (int i = 0; i < options->skip_count && status == GR_OK; i++) {
        status = check_named(columns, "skip", options->skip[i], count, diag);
    }
    for (int i = 0; i < options->category_count && status == GR_OK; i++) {
        status = check_named(columns, "categories", options->categories[i].column, count, diag);
    }
    if (plain || status != GR_OK) {
        return status;
    }
    gr_csv_column *all = gr_arena_alloc(&columns->table->arena, (size_t)count * sizeof *all);
    if (all == NULL) {
        return no_memory(columns, diag);
    }
    int64_t values = 0;
    for (int i = 0; i < count; i++) {
        gr_csv_column if_last;
        gr_csv_columns_of(columns, i + 1, &all[i], &if_last);
        values += gr_csv_column_values(&all[i]);
    }
    if (values < 1 || values > GR_CSV_COLUMNS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: a sample has %" PRId64 " values; it must have 1 to %d",
                       columns->table->head.name, values, GR_CSV_COLUMNS_MAX);
    }
    layout->values = (int)values;
    layout->column = all;
    return GR_OK;
}
