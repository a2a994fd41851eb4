/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_READER_H
#define GR_DATA_READER_H

/* What reads samples: a gr_reader_ops for each format, in one array (dataset_config.c). */

#include "data/dataset.h"
#include "data/table.h"

#include <gradus/comm.h>

enum { GR_SAMPLE_VALUES_MAX = 8 };

/* One of the named values that each sample has. Training takes `x` (f32 or u8), the model's input,
 * and `label` (i32), a class, or `target` (f32), a number to predict. */
typedef struct gr_sample_value {
    const char *name;
    gr_dtype type;
    int dims; /* 0: a single number */
    int64_t dim[GR_SAMPLE_DIMS_MAX];
} gr_sample_value;

/* What a reader is opened with; borrowed for the call. */
typedef struct gr_reader_open {
    const gr_data_config *config;
    const char *job_path; /* where relative paths start */
    gr_table_options limits;
    bool test; /* the test set of its own */
} gr_reader_open;

typedef struct gr_reader_ops {
    const char *name;                /* of the format, as in the job file */
    const gr_config_field *settings; /* of gr_data_config; NULL: none */
    const char *note;                /* behind the number of values in a sentence, or NULL */
    /* Checks the settings before anything is opened. Or NULL. */
    gr_status (*check_settings)(const gr_data_config *config, gr_diag *diag);
    /* Opens and checks all that can be checked without training. *table_out: a struct of the
     * reader's own that begins with a gr_table, whose name, count and values it has filled; NULL
     * where there is no test set of its own. */
    gr_status (*open)(const gr_reader_open *how, gr_table **table_out, gr_diag *diag);
    /* What belongs to the reader, but for the gr_table itself. Or NULL. */
    void (*close)(gr_table *table);
    /* Fails if the files have changed. May be NULL. */
    gr_status (*check)(const gr_table *table, gr_diag *diag);
    /* Sample `number`: each value to its place in values_out, in the order of table->value; NULL:
     * not wanted. Any thread; no heap. */
    gr_status (*read)(const gr_table *table, int64_t number, void *const *values_out,
                      gr_diag *diag);
    const char *(*kept)(const gr_table *table); /* where the samples lie, for people. Or NULL */
    uint64_t (*memory)(const gr_table *table);  /* bytes of heap. Or NULL */
    /* What the columns of a CSV file mean. Or NULL: samples have no columns. */
    const struct gr_csv_layout *(*layout)(const gr_table *table);
} gr_reader_ops;

/* What every open reader begins with. */
struct gr_table {
    const gr_reader_ops *ops;
    char *name; /* of the samples in messages; heap */
    int64_t count;
    int value_count;
    gr_sample_value value[GR_SAMPLE_VALUES_MAX];
    int64_t label_max;    /* the largest class; -1: none */
    int x, label, target; /* places of these values; -1: there is none */
    int64_t x_count;      /* numbers of `x` */
};

/* Row `index`: the built-in readers, then gr_extra_readers. NULL behind the last. */
const gr_reader_ops *gr_reader_ops_at(int index);
extern const gr_reader_ops *const gr_extra_readers[]; /* ends with NULL; a program may define it */

/* A zeroed struct of `size_bytes` with a gr_table at its start; NULL without memory. */
void *gr_table_new(const gr_reader_ops *ops, const char *name, size_t size_bytes);
/* Adds a value; dim may be NULL for a single number. */
void gr_table_add_value(gr_table *table, const char *name, gr_dtype type, int dims,
                        const int64_t *dim);

/* Opens the file of setting `key`; failures name where the setting stands. */
gr_status gr_reader_open_file(const gr_reader_open *how, const char *key, const char *file,
                              gr_input_stream **source_out, gr_diag *diag) GR_MUST_CHECK;
/* Fails unless the setting is given. */
gr_status gr_data_need(const gr_reader_ops *ops, const gr_data_config *config, const char *key,
                       const char *value, gr_diag *diag) GR_MUST_CHECK;

extern const gr_reader_ops gr_csv_reader, gr_idx_reader;

#endif
