/* SPDX-License-Identifier: Apache-2.0 */

/* A cell that is more than a bare number: quoted, one of a list of texts, or wrong. */

#include "data/csv.h"

#include "base/fail.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { EXCERPT_BYTES = 40, WHERE_BYTES = 120, LIST_BYTES = 100 };

/* ---- Sentences ------------------------------------------------------------------------------- */

static void excerpt(const gr_csv_cell *cell, char text[EXCERPT_BYTES])
{
    size_t count = 0, at = 0;
    for (; at < cell->bytes && count < EXCERPT_BYTES - 4; at = gr_csv_cell_next(cell, at)) {
        text[count++] = cell->text[at] >= ' ' && cell->text[at] <= '~' ? cell->text[at] : '?';
    }
    memcpy(text + count, at < cell->bytes ? "..." : "", at < cell->bytes ? 4 : 1);
}

/* "wine.csv:3: column 2 ("alcohol")" */
static gr_status fail_cell(const gr_csv_cursor *cursor, const gr_csv_column *column, gr_diag *diag,
                           const char *what)
{
    bool named = column->name != NULL && column->name[0] != '\0';
    return gr_fail(diag, GR_E_INVALID, "%s:%" PRId64 ": column %d%s%.40s%s%s", cursor->name,
                   cursor->line, cursor->column, named ? " (\"" : "", named ? column->name : "",
                   named ? "\")" : "", what);
}

static bool is_one_of(const gr_csv_cell *cell, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strlen(*words) == cell->bytes && strncasecmp(*words, cell->text, cell->bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* The number of a cell without what people and spreadsheets add. */
static bool is_number(const gr_csv_cursor *cursor, const char *text, size_t bytes)
{
    char copy[GR_CSV_FIELD_BYTES_MAX];
    double value;
    if (bytes == 0 || bytes >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return gr_csv_number(copy, cursor->locale, &value) == copy + bytes;
}

/* What a cell holds in place of a number, and what to do about it. */
static gr_status fail_number(const gr_csv_cursor *cursor, const gr_csv_column *column,
                             const gr_csv_cell *cell, gr_diag *diag)
{
    static const char *const missing[] = {"nan",  "na",       "n/a", "null", "none", "inf", "+inf",
                                          "-inf", "infinity", "?",   "-",    "-nan", ".",   NULL};
    char text[EXCERPT_BYTES], what[512];
    excerpt(cell, text);
    const char *comma = memchr(cell->text, ',', cell->bytes);
    char other = memchr(cell->text, ';', cell->bytes) != NULL    ? ';'
                 : memchr(cell->text, '\t', cell->bytes) != NULL ? '\t'
                                                                 : '\0';
    if (cell->bytes == 0) {
        snprintf(what, sizeof what,
                 " is empty; a number must stand there: fill it in, remove the line, or leave the "
                 "column out (skip)");
    } else if (is_one_of(cell, missing)) {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number but stands for a missing value: fill it in, remove the "
                 "line, or leave the column out (skip)",
                 text);
    } else if (cell->text[cell->bytes - 1] == '%' &&
               is_number(cursor, cell->text, cell->bytes - 1)) {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number; write it without the percent sign, in all lines", text);
    } else if (cursor->delimiter == ',' && other != '\0' && !cell->quoted) {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number; if %s separates the columns, set delimiter: %s", text,
                 other == ';' ? "a semicolon" : "a tab", other == ';' ? "\";\"" : "tab");
    } else if (comma != NULL && is_number(cursor, cell->text, (size_t)(comma - cell->text)) &&
               is_number(cursor, comma + 1, cell->bytes - (size_t)(comma + 1 - cell->text))) {
        snprintf(what, sizeof what, ": \"%s\" is not a number; write a point in place of the comma",
                 text);
    } else if (cursor->line == 1) {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number; if the first line holds names, set header: true", text);
    } else if (column->role == GR_CSV_LABEL) {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number; if it is the name of a class, list all names: "
                 "class_names: [%s, ...]",
                 text, text);
    } else {
        snprintf(what, sizeof what,
                 ": \"%s\" is not a number; if it is one of several kinds, list them "
                 "(categories: {%s: [%s, ...]}), or leave the column out (skip)",
                 text, column->name != NULL && column->name[0] != '\0' ? column->name : "COLUMN",
                 text);
    }
    return fail_cell(cursor, column, diag, what);
}

static const char *list_name(const gr_csv_column *column)
{
    return column->role == GR_CSV_LABEL ? "class names" : "categories";
}

static gr_status fail_listed(const gr_csv_cursor *cursor, const gr_csv_column *column,
                             const gr_csv_cell *cell, gr_diag *diag)
{
    char text[EXCERPT_BYTES], list[LIST_BYTES] = "", what[512];
    size_t used = 0;
    excerpt(cell, text);
    for (int i = 0; i < column->count && used < sizeof list; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 column->texts[i]);
    }
    if (used >= sizeof list) {
        memcpy(list + sizeof list - 4, "...", 4);
    }
    const char *key = column->role == GR_CSV_LABEL ? "class_names" : "categories";
    snprintf(what, sizeof what,
             ": \"%s\" is none of its %s (%s); add it to %s, or correct the cell", text,
             list_name(column), list, key);
    return fail_cell(cursor, column, diag, what);
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static bool is_blank(const gr_csv_cursor *cursor, char c)
{
    return (c == ' ' || c == '\t') && c != cursor->delimiter;
}

static gr_status fail_too_long(const gr_csv_cursor *cursor, const gr_csv_cell *cell, gr_diag *diag)
{
    static const gr_csv_column any = {.role = GR_CSV_VALUE};
    char text[EXCERPT_BYTES], what[160];
    const gr_csv_cell begin = {.text = cell->text, .bytes = EXCERPT_BYTES};
    excerpt(&begin, text);
    snprintf(what, sizeof what, ": \"%s\" is longer than %d bytes; leave the column out (skip)",
             text, GR_CSV_FIELD_BYTES_MAX);
    return fail_cell(cursor, &any, diag, what);
}

/* Behind the closing quote; NULL: there is none in this line, or not near enough. */
static const char *closing_quote(const char *at, const char *limit)
{
    for (; at < limit && *at != '\n'; at++) {
        if (*at == '"' && at[1] != '"') {
            return at;
        }
        at += *at == '"'; /* a doubled quote is one that belongs to the text */
    }
    return NULL;
}

gr_status gr_csv_find_cell(gr_csv_cursor *cursor, const char *begin, gr_csv_cell *cell_out,
                           const char **behind_out, gr_diag *diag)
{
    static const gr_csv_column any = {.role = GR_CSV_VALUE};
    const char *at = begin, *limit = cursor->buffer + cursor->end;
    while (at < limit && is_blank(cursor, *at)) {
        at++;
    }
    gr_csv_cell cell = {.text = at};
    if (*at == '"') {
        const char *close = closing_quote(at + 1, limit);
        if (close == NULL) {
            return fail_cell(cursor, &any, diag,
                             ": a quote is not closed in its line; close it, or remove it");
        }
        cell = (gr_csv_cell){.text = at + 1, .bytes = (size_t)(close - at - 1), .quoted = true};
        at = close + 1;
        while (at < limit && is_blank(cursor, *at)) {
            at++;
        }
        if (at < limit && *at != cursor->delimiter && *at != '\n' && *at != '\r') {
            return fail_cell(cursor, &any, diag,
                             ": something follows the closing quote; the whole cell must stand in "
                             "the quotes");
        }
    } else {
        while (at < limit && *at != cursor->delimiter && *at != '\n' &&
               !(*at == '\r' && (at[1] == '\n' || (at + 1 == limit && cursor->ended)))) {
            at++;
        }
        if (at == limit && !cursor->ended) {
            return fail_too_long(cursor, &cell, diag);
        }
        cell.bytes = (size_t)(at - cell.text);
        while (cell.bytes > 0 && is_blank(cursor, cell.text[cell.bytes - 1])) {
            cell.bytes--;
        }
    }
    *cell_out = cell;
    *behind_out = at;
    return GR_OK;
}

static bool is_text(const gr_csv_cell *cell, const char *text)
{
    size_t at = 0;
    while (at < cell->bytes && *text != '\0' && cell->text[at] == *text) {
        at = gr_csv_cell_next(cell, at);
        text++;
    }
    return at == cell->bytes && *text == '\0';
}

/* The first text from number `from` on that is this one as a number; -1: none is. */
static int find_number(const gr_csv_cursor *cursor, const gr_csv_column *column, double number,
                       int from)
{
    for (int i = from; i < column->count; i++) {
        const char *text = column->texts[i];
        double listed;
        if (is_number(cursor, text, strlen(text)) &&
            gr_csv_number(text, cursor->locale, &listed) != NULL && listed == number) {
            return i;
        }
    }
    return -1;
}

static gr_status fail_several(const gr_csv_cursor *cursor, const gr_csv_column *column,
                              const gr_csv_cell *cell, int one, int other, gr_diag *diag)
{
    char text[EXCERPT_BYTES], what[512];
    excerpt(cell, text);
    snprintf(what, sizeof what,
             ": \"%s\" could be each of \"%.60s\" and \"%.60s\" of its %s; write it as it is "
             "listed",
             text, column->texts[one], column->texts[other], list_name(column));
    return fail_cell(cursor, column, diag, what);
}

/* The place of a cell in its column's list: a text is compared as it is, and "1.0" is the "1" of a
 * list that has no "1.0". */
static gr_status find_listed(const gr_csv_cursor *cursor, const gr_csv_column *column,
                             const gr_csv_cell *cell, double *place_out, gr_diag *diag)
{
    for (int i = 0; i < column->count; i++) {
        if (is_text(cell, column->texts[i])) {
            *place_out = i;
            return GR_OK;
        }
    }
    double number = 0;
    bool numeric = is_number(cursor, cell->text, cell->bytes) &&
                   gr_csv_number(cell->text, cursor->locale, &number) != NULL;
    int place = numeric ? find_number(cursor, column, number, 0) : -1;
    if (place < 0) {
        return fail_listed(cursor, column, cell, diag);
    }
    int other = find_number(cursor, column, number, place + 1);
    *place_out = place;
    return other < 0 ? GR_OK : fail_several(cursor, column, cell, place, other, diag);
}

gr_status gr_csv_cell_value(const gr_csv_cursor *cursor, const gr_csv_column *column,
                            const gr_csv_cell *cell, double *value_out, gr_diag *diag)
{
    *value_out = 0;
    if (column->count > 0) {
        return find_listed(cursor, column, cell, value_out, diag);
    }
    const char *end = cell->bytes > 0 ? gr_csv_number(cell->text, cursor->locale, value_out) : NULL;
    return end == cell->text + cell->bytes && end != NULL ? GR_OK
                                                          : fail_number(cursor, column, cell, diag);
}
