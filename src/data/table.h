/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_TABLE_H
#define GR_DATA_TABLE_H

/* The samples that a reader has opened, by number. Opening reads what must be checked; afterwards a
 * table does not change and any thread may read it. */

#include "data/csv.h"
#include "data/input_stream.h"

#include <stdbool.h>

/* The texts that may stand in a column. */
typedef struct gr_table_texts {
    const char *column; /* its name, or its number from 1 */
    const char *const *texts;
    int count;
} gr_table_texts;

/* Texts are borrowed for the call that opens. */
typedef struct gr_table_options {
    bool header;            /* csv: the first line is names */
    char delimiter;         /* csv; 0: a comma */
    int label_column;       /* csv: from 1; 0: the last */
    const char *label_name; /* csv: its name in the first line; NULL: label_column says it */
    const char *const *class_names; /* csv: the texts of the labels 0, 1, ... */
    int class_name_count;
    const gr_table_texts *categories; /* csv: columns of texts */
    int category_count;
    const char *const *skip; /* csv: columns that are left out, by name or number */
    int skip_count;
    bool regression;     /* csv: the label is a number to predict */
    int64_t classes;     /* labels are below it; 0: any */
    uint64_t memory_max; /* bytes of samples that may stay in memory */
    uint32_t index_max;  /* csv: entries of the index of lines, a power of two */
} gr_table_options;
gr_table_options gr_table_options_default(void);

typedef struct gr_table gr_table;

/* Sources are borrowed for the call (a descriptor that is needed later is duplicated). */
gr_status gr_table_open_csv(gr_input_stream *source, const gr_table_options *options,
                            gr_table **table_out, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_table_open_idx(gr_input_stream *images, gr_input_stream *labels,
                            const gr_table_options *options, gr_table **table_out,
                            gr_diag *diag) GR_MUST_CHECK;
void gr_table_close(gr_table *table); /* NULL ok */

const char *gr_table_name(const gr_table *table);
int64_t gr_table_count(const gr_table *table);
int gr_table_dims(const gr_table *table, int64_t *dim_out); /* at most GR_SAMPLE_DIMS_MAX */
int64_t gr_table_values(const gr_table *table);
int64_t gr_table_label_max(const gr_table *table); /* the largest class; -1 for regression */
const gr_csv_layout *gr_table_layout(const gr_table *table); /* what its columns mean; NULL: idx */
const char *gr_table_kind(const gr_table *table); /* how it is kept, for people and tests */
uint64_t gr_table_memory(const gr_table *table);  /* bytes of heap that it holds, about */

/* How raw values become the model's input: x = (raw * scale - mean) / deviation. */
typedef struct gr_scaler {
    double scale, mean, factor; /* factor: 1 / deviation */
    bool identity;
    float of_byte[256];
} gr_scaler;
void gr_scaler_init(gr_scaler *scaler, double scale, double mean, double deviation);
/* Scales values that are numbers already. */
void gr_scaler_apply(const gr_scaler *scaler, float *x, int64_t count);
/* x[k] = (x[k] - mean[k]) * factor[k]; mean NULL: as they are. */
void gr_scale_columns(const double *mean, const double *factor, float *x, int64_t count);

/* Checks that each sample has what training takes, in a type that training accepts. */
gr_status gr_table_check_values(const gr_table *table, bool regression,
                                gr_diag *diag) GR_MUST_CHECK;
/* Once before a batch: are the files still as they were? */
gr_status gr_table_check(const gr_table *table, gr_diag *diag) GR_MUST_CHECK;

/* Sample `number`: values into x_out, its class into label_out or its number into target_out (NULL:
 * not wanted). No heap. */
gr_status gr_table_read(const gr_table *table, int64_t number, const gr_scaler *scaler,
                        float *x_out, int32_t *label_out, float *target_out,
                        gr_diag *diag) GR_MUST_CHECK;

#endif
