/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_TABLE_INTERNAL_H
#define GR_DATA_TABLE_INTERNAL_H

/* What the readers of the formats share; for src/data/table*.c only. */

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

    gr_csv_layout layout;
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
