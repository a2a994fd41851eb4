/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_DATA_DATASET_H
#define GR_DATA_DATASET_H

/* Samples by number, whatever the format of the files. */

#include "base/config.h"
#include "data/csv.h"
#include "doc/doc.h"

/* Of a sample; a batch has one more. */
enum { GR_SAMPLE_DIMS_MAX = 7, GR_DATA_OWN_MAX = 8 };

/* A setting of a reader that a program adds. */
typedef union gr_data_own {
    double number;
    int64_t whole;
    bool flag;
    const char *text;
} gr_data_own;

/* The `data:` part of a job file. Relative paths are relative to the job file. */
typedef struct gr_data_config {
    const gr_node *section;      /* the part itself, for file and line in messages; NULL: none */
    int format;                  /* a row of gr_reader_ops_at */
    const char *file;            /* csv: the samples; .gz is recognised by content */
    const char *images, *labels; /* idx */
    const char *test_file, *test_images, *test_labels; /* a test set of its own; NULL: split */
    const gr_node *shape;     /* [1, 8, 8], say; default: as in the file, csv: flat */
    const char *label_column; /* csv: "last" (default), "first", a number from 1, or a name */
    const char *delimiter;    /* csv: one character, or "tab"; NULL: a comma */
    const gr_node *class_names, *categories, *skip; /* csv: see their help; NULL: none */
    bool header;                                    /* csv: the first line is names */
    int64_t classes;                                /* 0: the largest label + 1 */
    double scale;                                   /* x = (raw * scale - mean) / deviation */
    double mean, deviation;
    int normalize;      /* none, standard: of the training part; flat samples: of each column */
    int64_t test_count; /* samples held out when there is no test set of its own */
    int split;          /* last, random (keyed by the job's seed) */
    bool regression;    /* csv: the label column is a number to predict, not a class */
    gr_data_own own[GR_DATA_OWN_MAX]; /* of readers that a program adds */
} gr_data_config;
extern const gr_config_table gr_data_config_table;

typedef enum gr_split { GR_SPLIT_TRAIN = 0, GR_SPLIT_TEST = 1 } gr_split;

typedef struct gr_dataset gr_dataset;

/* Opens and checks everything that can be checked without training: files present, whole, numeric
 * (with file and line), labels in range. `job_path` is where relative paths start. */
gr_status gr_dataset_open(const gr_data_config *config, const char *job_path, uint64_t seed,
                          gr_dataset **dataset_out, gr_diag *diag) GR_MUST_CHECK;
void gr_dataset_close(gr_dataset *dataset);

int64_t gr_dataset_count(const gr_dataset *dataset, gr_split part);
int gr_dataset_dims(const gr_dataset *dataset, int64_t dim_out[GR_SAMPLE_DIMS_MAX]);
int64_t gr_dataset_sample_values(const gr_dataset *dataset);
int64_t gr_dataset_classes(const gr_dataset *dataset); /* 0 for regression */

/* For people: how the training samples are kept, heap that the data set holds, normalisation (where
 * each column has its own, the means of all columns'). */
const char *gr_dataset_kind(const gr_dataset *dataset);
uint64_t gr_dataset_memory(const gr_dataset *dataset);
void gr_dataset_scaling(const gr_dataset *dataset, double *mean_out, double *deviation_out);

bool gr_dataset_scales_by_column(const gr_dataset *dataset);
/* Where each value of a sample has a mean of its own: the means, and in *factor_out the reciprocals
 * of the deviations; else NULL. Both live as long as the data set. */
const double *gr_dataset_column_means(const gr_dataset *dataset, const double **factor_out);
/* csv: what the columns of the training samples' file mean; else NULL. As long as the data set. */
const gr_csv_layout *gr_dataset_layout(const gr_dataset *dataset);

/* Fills `count` samples: x_out count x values; labels_out (classes) or targets_out (regression,
 * one a sample), the other may be NULL. Thread-safe; no heap. */
gr_status gr_dataset_read(const gr_dataset *dataset, gr_split part, const int64_t *numbers,
                          int count, float *x_out, int32_t *labels_out, float *targets_out,
                          gr_diag *diag) GR_MUST_CHECK;

#endif
