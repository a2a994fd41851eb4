/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_CSV_H
#define GR_DATA_CSV_H

/* CSV: one sample a line, fields separated by commas (or another delimiter) and quoted or not,
 * blanks around a field allowed, lines ended by LF or CR LF. Numbers are read strictly and without
 * the locale; texts must be listed. */

#include <gradus/status.h>
#include <locale.h>
#include <stdbool.h>

enum {
    GR_CSV_COLUMNS_MAX = 1 << 20,
    GR_CSV_FIELD_BYTES_MAX = 256, /* of one field with its blanks and quotes */
    GR_CSV_LABEL_MAX = (1 << 24) - 1
};

/* Up to `size` bytes of the text from `offset` on; fewer only at the end. */
typedef gr_status gr_csv_refill(void *refill_arg, uint64_t offset, char *buffer, size_t size,
                                size_t *got_out, gr_diag *diag);

/* A place in a text. */
typedef struct gr_csv_cursor {
    const char *name;
    gr_csv_refill *refill;
    void *refill_arg;
    locale_t locale; /* "C", for the rare numbers that strtod must read */
    char *buffer;    /* capacity + 1 bytes */
    size_t capacity; /* at least 2 * GR_CSV_FIELD_BYTES_MAX */
    size_t begin, end;
    uint64_t offset; /* of buffer[0] in the text */
    bool ended;      /* the text ends at buffer[end] */
    int64_t line;    /* of buffer[begin], from 1 */
    int column;      /* from 1 */
    char delimiter;  /* ',' at first */
} gr_csv_cursor;

/* The delimiter that `text` names, which may be a word (tab); NULL: a comma. Returns 0: none. */
char gr_csv_delimiter(const char *text);

/* `buffer` has buffer_bytes and stays the caller's. */
void gr_csv_cursor_init(gr_csv_cursor *cursor, const char *name, locale_t locale, char *buffer,
                        size_t buffer_bytes, gr_csv_refill *refill, void *refill_arg);
void gr_csv_cursor_seek(gr_csv_cursor *cursor, uint64_t offset, int64_t line);
static inline uint64_t gr_csv_cursor_at(const gr_csv_cursor *cursor)
{
    return cursor->offset + cursor->begin;
}

/* Steps over a byte order mark at the start of the text. */
gr_status gr_csv_begin(gr_csv_cursor *cursor, gr_diag *diag) GR_MUST_CHECK;

/* Sets *more_out if there is a further line. Empty lines at the end do not count; in between they
 * are an error. */
gr_status gr_csv_more(gr_csv_cursor *cursor, bool *more_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_csv_skip_line(gr_csv_cursor *cursor, gr_diag *diag) GR_MUST_CHECK;

typedef enum gr_csv_role {
    GR_CSV_VALUE =
        0,        /* a number; with texts: as many values as there are texts, of which the one of
                       * this text is 1 and the others are 0 */
    GR_CSV_LABEL, /* a number; with texts: the place in the list */
    GR_CSV_SKIP   /* anything */
} gr_csv_role;

typedef struct gr_csv_column {
    gr_csv_role role;
    const char *name;         /* NULL: unknown */
    const char *const *texts; /* what may stand in it */
    int count;                /* 0: numbers */
} gr_csv_column;

/* How many values of a sample a column makes. */
static inline int gr_csv_column_values(const gr_csv_column *column)
{
    return column->role != GR_CSV_VALUE ? 0 : column->count > 0 ? column->count : 1;
}

/* What the columns of a text mean. */
typedef struct gr_csv_layout {
    int columns;
    int values;                  /* of a sample */
    const gr_csv_column *column; /* [columns]; NULL: numbers without names */
    int label_column;            /* from 1 */
    bool regression;             /* the label is any number, not a class */
    int64_t classes;             /* labels are below it; 0: any */
} gr_csv_layout;

/* A line of `layout`: x_out its values, label_out the label. */
gr_status gr_csv_record(gr_csv_cursor *cursor, const gr_csv_layout *layout, float *x_out,
                        double *label_out, gr_diag *diag) GR_MUST_CHECK;

/* The column of this number, and the one that it is if it is the last. */
typedef void gr_csv_column_of(void *arg, int number, gr_csv_column *column_out,
                              gr_csv_column *last_out);

/* The first line: how many columns there are, and what stands in them (heap, free): numbers, and
 * places in lists of texts. */
gr_status gr_csv_first(gr_csv_cursor *cursor, gr_csv_column_of *column_of, void *arg,
                       double **values_out, int *count_out, gr_diag *diag) GR_MUST_CHECK;
/* The values of a column in a sample: returns the place behind them. */
float *gr_csv_spread(const gr_csv_column *column, double value, float *x_out);

/* One field. */
typedef struct gr_csv_cell {
    const char *text; /* without quotes and the blanks around it; in quotes "" is one of them */
    size_t bytes;
    bool quoted;
} gr_csv_cell;

/* The place of the character behind the one at `at`. */
static inline size_t gr_csv_cell_next(const gr_csv_cell *cell, size_t at)
{
    return at + (cell->quoted && cell->text[at] == '"' ? 2 : 1);
}

/* The field from `begin` on, which lies in the buffer; *behind_out is the delimiter or line end. */
gr_status gr_csv_find_cell(gr_csv_cursor *cursor, const char *begin, gr_csv_cell *cell_out,
                           const char **behind_out, gr_diag *diag) GR_MUST_CHECK;
/* What a field means; else a sentence that says what to do. */
gr_status gr_csv_cell_value(const gr_csv_cursor *cursor, const gr_csv_column *column,
                            const gr_csv_cell *cell, double *value_out,
                            gr_diag *diag) GR_MUST_CHECK;
/* The next field of a line of names, into name_out (UTF-8, cut if it is too long); *last_out: it
 * ended its line. */
gr_status gr_csv_name(gr_csv_cursor *cursor, char name_out[GR_CSV_FIELD_BYTES_MAX], bool *last_out,
                      gr_diag *diag) GR_MUST_CHECK;

/* Checks that this number is a label of `layout`. `line` is for the message. */
gr_status gr_csv_check_label(const char *name, int64_t line, const gr_csv_layout *layout,
                             double label, gr_diag *diag) GR_MUST_CHECK;

gr_status gr_csv_check_value(const char *name, int64_t line, int column, double value,
                             gr_diag *diag) GR_MUST_CHECK;

/* A decimal number at `at` (sign, digits, point, exponent; no blanks): its end, or NULL if there is
 * none. The text must be ended by a character that belongs to no number. */
const char *gr_csv_number(const char *at, locale_t locale, double *value_out);

#endif
