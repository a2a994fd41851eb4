/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_TABLE_INTERNAL_H
#define GR_DATA_TABLE_INTERNAL_H

/* What the readers of the formats share; for src/data/table*.c only. */

#include "base/arena.h"
#include "data/csv.h"
#include "data/store.h"
#include "data/table.h"

typedef enum gr_table_kind_id {
    GR_TABLE_CSV_RECORDS = 0, /* parsed: values and label as 32-bit numbers in `records` */
    GR_TABLE_CSV_TEXT = 1,    /* parsed again at each read */
    GR_TABLE_IDX = 2,         /* unpacked: as in the file, in `records` */
    GR_TABLE_IDX_FILE = 3     /* `records` reads the plain file itself */
} gr_table_kind_id;

struct gr_table {
    char *name;
    gr_table_kind_id kind;
    int64_t count;
    int dims;
    int64_t dim[GR_TABLE_DIMS_MAX];
    int64_t values;
    int64_t label_max;
    gr_store *records;
    gr_store *labels; /* idx */
    bool bytes;       /* idx: uint8, not float32 */

    gr_arena arena; /* csv: of the layout */
    gr_csv_layout layout;
    char delimiter;
    bool header;
    locale_t locale;

    /* GR_TABLE_CSV_TEXT: where every stride-th line begins. The index has a maximum: when it is
     * full, every other entry goes and the stride doubles: memory does not grow with the file. */
    int fd;
    gr_file_mark mark;
    uint64_t *index;
    uint32_t index_count, index_max;
    uint64_t index_stride;
    size_t line_bytes_max;
};

/* What the columns of a table mean, while it is opened. */
typedef struct gr_csv_columns {
    gr_table *table;
    const gr_table_options *options;
    const char **names; /* in the table's arena, as what follows */
    int name_count;     /* 0: no header */
    const char *const *class_names;
    gr_table_texts *categories;
    int label_column; /* 0: the last, whose number is not known yet */
} gr_csv_columns;

gr_status gr_csv_columns_init(gr_csv_columns *columns, gr_table *table,
                              const gr_table_options *options, gr_diag *diag) GR_MUST_CHECK;
/* The header line. */
gr_status gr_csv_columns_read_names(gr_csv_columns *columns, gr_csv_cursor *cursor,
                                    gr_diag *diag) GR_MUST_CHECK;
gr_status gr_csv_columns_find_label(gr_csv_columns *columns, gr_diag *diag) GR_MUST_CHECK;
/* A gr_csv_column_of; `arg` is the gr_csv_columns. */
void gr_csv_columns_of(void *arg, int number, gr_csv_column *column_out, gr_csv_column *last_out);
/* There are so many: fills columns, values and label_column of the layout. */
gr_status gr_csv_columns_finish(gr_csv_columns *columns, int count, gr_diag *diag) GR_MUST_CHECK;

gr_table *gr_table_new(const char *name);
void gr_csv_text_fini(gr_table *table);
gr_status gr_csv_read_record(const gr_table *table, int64_t number, float *x_out, double *label_out,
                             gr_diag *diag) GR_MUST_CHECK;
gr_status gr_csv_read_text(const gr_table *table, int64_t number, float *x_out, double *label_out,
                           gr_diag *diag) GR_MUST_CHECK;
/* Bytes are scaled while they are read; float32 is not. */
gr_status gr_idx_read(const gr_table *table, int64_t number, const gr_scaler *scaler, float *x_out,
                      double *label_out, gr_diag *diag) GR_MUST_CHECK;

#endif
