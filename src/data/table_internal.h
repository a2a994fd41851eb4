/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_TABLE_INTERNAL_H
#define GR_DATA_TABLE_INTERNAL_H

/* What the files of the CSV reader share; for src/data/table*.c only. */

#include "base/arena.h"
#include "data/csv.h"
#include "data/reader.h"
#include "data/record_cache.h"
#include "data/table.h"

/* A CSV file: parsed records (values and label as 32-bit numbers), or, with `records` NULL, the
 * text, parsed again at each read. */
typedef struct gr_csv_table {
    gr_table head;
    int64_t values;
    gr_record_cache *records;
    gr_arena arena; /* of the layout */
    gr_csv_layout layout;
    char delimiter;
    bool header;
    locale_t locale;

    /* Of the text: where every stride-th line begins. The index has a maximum: when it is full,
     * every other entry goes and the stride doubles: memory does not grow with the file. */
    int fd;
    gr_file_mark mark;
    uint64_t *index;
    uint32_t index_count, index_max;
    uint64_t index_stride;
    size_t line_bytes_max;
} gr_csv_table;

/* What the columns of a table mean, while it is opened. */
typedef struct gr_csv_columns {
    gr_csv_table *table;
    const gr_table_options *options;
    const char **names; /* in the table's arena, as what follows */
    int name_count;     /* 0: no header */
    const char *const *class_names;
    gr_table_texts *categories;
    int label_column; /* 0: the last, whose number is not known yet */
} gr_csv_columns;

gr_status gr_csv_columns_init(gr_csv_columns *columns, gr_csv_table *table,
                              const gr_table_options *options, gr_diag *diag) GR_MUST_CHECK;
/* The header line. */
gr_status gr_csv_columns_read_names(gr_csv_columns *columns, gr_csv_cursor *cursor,
                                    gr_diag *diag) GR_MUST_CHECK;
gr_status gr_csv_columns_find_label(gr_csv_columns *columns, gr_diag *diag) GR_MUST_CHECK;
/* A gr_csv_column_of; `arg` is the gr_csv_columns. */
void gr_csv_columns_of(void *arg, int number, gr_csv_column *column_out, gr_csv_column *last_out);
/* There are so many: fills columns, values and label_column of the layout. */
gr_status gr_csv_columns_finish(gr_csv_columns *columns, int count, gr_diag *diag) GR_MUST_CHECK;

#endif
