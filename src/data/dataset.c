/* SPDX-License-Identifier: Apache-2.0 */
#include "data/dataset_internal.h"

#include "base/fail.h"
#include "data/idx.h"
#include "data/reader.h"
#include "data/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The epoch number of the order that splits: no epoch of training reaches it. */
#define SPLIT_EPOCH UINT64_MAX

enum { SHAPE_TEXT_BYTES = 80 };

struct gr_dataset {
    gr_table *samples;
    gr_table *test; /* a test set of its own, or NULL */
    bool random;
    gr_sampler split; /* random: position -> sample; the training part comes first */
    int64_t train_count, test_count;
    int dims;
    int64_t dim[GR_SAMPLE_DIMS_MAX];
    int64_t values;
    int64_t classes;
    double mean, deviation; /* of all values; of columns: the means of theirs */
    gr_scaler scaler;
    double *column_mean,
        *column_factor; /* normalize: standard of flat samples; NULL: one for all */
};

/* Opening one. */
typedef struct opening {
    const gr_data_config *config;
    const char *job_path;
    gr_table_options limits;
    gr_diag *diag;
} opening;

static void shape_text(int dims, const int64_t *dim, char text[SHAPE_TEXT_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < dims && used < SHAPE_TEXT_BYTES; i++) {
        used += (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, "%s%" PRId64,
                                 i > 0 ? " x " : "", dim[i]);
    }
}

static gr_status check_settings(const gr_data_config *config, gr_diag *diag)
{
    const gr_reader_ops *ops = gr_reader_ops_at(config->format);
    gr_status status = ops->check_settings != NULL ? ops->check_settings(config, diag) : GR_OK;
    if (status != GR_OK) {
        return status;
    }
    if (config->regression && config->classes > 0) {
        return gr_node_fail(gr_node_setting(config->section, "classes"), diag, GR_E_INVALID,
                            "regression predicts numbers, which have no classes; remove one of the "
                            "two");
    }
    if (config->normalize == 1 && (config->mean != 0 || config->deviation != 1)) {
        return gr_node_fail(gr_node_setting(config->section, "normalize"), diag, GR_E_INVALID,
                            "standard computes mean and deviation itself; remove them or use "
                            "normalize: none");
    }
    return GR_OK;
}

static gr_status open_tables(const opening *open, gr_dataset *dataset)
{
    const gr_data_config *config = open->config;
    const gr_reader_ops *ops = gr_reader_ops_at(config->format);
    gr_reader_open how = {
        .config = config, .job_path = open->job_path, .limits = open->limits, .test = false};
    gr_status status = ops->open(&how, &dataset->samples, open->diag);
    if (status == GR_OK) {
        how.test = true;
        status = ops->open(&how, &dataset->test, open->diag);
    }
    if (status == GR_OK) {
        status = gr_table_check_values(dataset->samples, config->regression, open->diag);
    }
    if (status == GR_OK && dataset->test != NULL) {
        status = gr_table_check_values(dataset->test, config->regression, open->diag);
    }
    return status;
}

/* The shape of the file, or the one of the job if it has as many values. */
static gr_status resolve_shape(const opening *open, gr_dataset *dataset)
{
    const gr_table *table = dataset->samples;
    const gr_node *node = open->config->shape;
    dataset->values = gr_table_values(table);
    dataset->dims = gr_table_dims(table, dataset->dim);
    if (node == NULL) {
        return GR_OK;
    }
    if (node->kind != GR_NODE_LIST || node->count < 1 || node->count > GR_SAMPLE_DIMS_MAX) {
        return gr_node_fail(node, open->diag, GR_E_INVALID,
                            "must be a list of 1 to %d numbers: [64], or [1, 8, 8] (channels, "
                            "height, width), say",
                            GR_SAMPLE_DIMS_MAX);
    }
    int64_t product = 1;
    dataset->dims = 0;
    for (const gr_node *at = node->child; at != NULL; at = at->next) {
        int64_t value;
        gr_status status = gr_node_int(at, 1, GR_IDX_RECORD_VALUES_MAX, &value, open->diag);
        if (status != GR_OK) {
            return status;
        }
        dataset->dim[dataset->dims++] = value;
        product = product <= GR_IDX_RECORD_VALUES_MAX ? product * value : product;
    }
    if (product == dataset->values) {
        return GR_OK;
    }
    char given[SHAPE_TEXT_BYTES];
    shape_text(dataset->dims, dataset->dim, given);
    return gr_node_fail(node, open->diag, GR_E_INVALID,
                        "%s are %" PRId64 " values, but a sample of %s has %" PRId64 "%s", given,
                        product, gr_table_name(table), dataset->values,
                        gr_reader_ops_at(open->config->format)->note
                            ? gr_reader_ops_at(open->config->format)->note
                            : "");
}

/* The place of the next column with values, from 0; `columns` behind the last. */
static int next_value_column(const gr_csv_layout *layout, int at)
{
    while (at < layout->columns && layout->column[at].role != GR_CSV_VALUE) {
        at++;
    }
    return at;
}

/* Both files name their columns: values of the same place must have the same name. */
static gr_status check_names(const gr_dataset *dataset, gr_diag *diag)
{
    const gr_csv_layout *train = gr_table_layout(dataset->samples);
    const gr_csv_layout *test = gr_table_layout(dataset->test);
    if (train == NULL || test == NULL || train->column == NULL || test->column == NULL) {
        return GR_OK;
    }
    int at = next_value_column(train, 0), also = next_value_column(test, 0);
    while (at < train->columns && also < test->columns) {
        const char *name = train->column[at].name, *other = test->column[also].name;
        if (name != NULL && other != NULL && strcmp(name, other) != 0) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s:1: column %d is \"%.60s\", but in %s it is \"%.60s\"; write the "
                           "columns of both files in one order, with the same names",
                           gr_table_name(dataset->test), also + 1, other,
                           gr_table_name(dataset->samples), name);
        }
        at = next_value_column(train, at + 1);
        also = next_value_column(test, also + 1);
    }
    return GR_OK;
}

static gr_status resolve_parts(const opening *open, uint64_t seed, gr_dataset *dataset)
{
    const gr_data_config *config = open->config;
    int64_t count = gr_table_count(dataset->samples);
    if (dataset->test != NULL && config->test_count > 0) {
        return gr_node_fail(gr_node_setting(config->section, "test_count"), open->diag,
                            GR_E_INVALID,
                            "there is a test set of its own already; remove one of the two");
    }
    dataset->train_count = count - config->test_count;
    dataset->test_count = config->test_count;
    if (dataset->train_count < 1) {
        return gr_node_fail(gr_node_setting(config->section, "test_count"), open->diag,
                            GR_E_INVALID,
                            "%" PRId64 " samples for the test leave none to train with: %s has "
                            "%" PRId64,
                            config->test_count, gr_table_name(dataset->samples), count);
    }
    dataset->random = config->split == 1;
    gr_sampler_init(&dataset->split, seed, SPLIT_EPOCH, (uint64_t)count);
    if (dataset->test == NULL) {
        return GR_OK;
    }
    dataset->test_count = gr_table_count(dataset->test);
    if (gr_table_values(dataset->test) != dataset->values) {
        return gr_fail(open->diag, GR_E_INVALID,
                       "%s: a sample has %" PRId64 " values, but one of %s has %" PRId64
                       "; training and test must have the same shape",
                       gr_table_name(dataset->test), gr_table_values(dataset->test),
                       gr_table_name(dataset->samples), dataset->values);
    }
    return check_names(dataset, open->diag);
}

static void resolve_classes(const gr_data_config *config, gr_dataset *dataset)
{
    if (config->regression) {
        return;
    }
    int64_t largest = gr_table_label_max(dataset->samples);
    if (dataset->test != NULL && gr_table_label_max(dataset->test) > largest) {
        largest = gr_table_label_max(dataset->test);
    }
    int64_t named = config->class_names != NULL ? config->class_names->count : 0;
    dataset->classes = named > 0 ? named : config->classes > 0 ? config->classes : largest + 1;
}

/* The sample behind a number of a part, and the table where it lies. */
static const gr_table *locate(const gr_dataset *dataset, gr_split part, int64_t number,
                              int64_t *record_out)
{
    if (part == GR_SPLIT_TEST && dataset->test != NULL) {
        *record_out = number;
        return dataset->test;
    }
    int64_t position = part == GR_SPLIT_TEST ? dataset->train_count + number : number;
    *record_out =
        dataset->random ? (int64_t)gr_sampler_at(&dataset->split, (uint64_t)position) : position;
    return dataset->samples;
}

/* Sums of one column, or of all values. Combined as in Chan, Golub, LeVeque, "Updating formulae and
 * a pairwise algorithm for computing sample variances" (1979), in double, sample by sample in the
 * order of the training part: the same bits in every process. */
typedef struct moments {
    double mean, squares, seen;
} moments;

static void moments_add(moments *m, const float *x, int64_t count)
{
    double sum = 0, around = 0, values = (double)count;
    for (int64_t k = 0; k < count; k++) {
        sum += (double)x[k];
    }
    double own = sum / values;
    for (int64_t k = 0; k < count; k++) {
        around += ((double)x[k] - own) * ((double)x[k] - own);
    }
    double delta = own - m->mean;
    m->squares += around + delta * delta * m->seen * values / (m->seen + values);
    m->mean += delta * values / (m->seen + values);
    m->seen += values;
}

/* Flat samples are columns of a table, each with a scale of its own; an image's values have one. */
static bool scales_by_column(const gr_data_config *config, const gr_dataset *dataset)
{
    return config->normalize == 1 && dataset->dims == 1;
}

static gr_status fail_constant(const opening *open, const gr_dataset *dataset)
{
    return gr_node_fail(
        gr_node_setting(open->config->section, "normalize"), open->diag, GR_E_INVALID,
        "all training values of %s are equal%s, so their deviation is 0; use "
        "normalize: none",
        gr_table_name(dataset->samples), dataset->dims == 1 ? " in each column" : "");
}

/* A column that is the same in all samples becomes 0 everywhere. */
static gr_status set_columns(const opening *open, gr_dataset *dataset, const moments *columns)
{
    int64_t varying = 0;
    dataset->column_mean = malloc((size_t)dataset->values * sizeof *dataset->column_mean);
    dataset->column_factor = malloc((size_t)dataset->values * sizeof *dataset->column_factor);
    if (dataset->column_mean == NULL || dataset->column_factor == NULL) {
        return gr_fail(open->diag, GR_E_NO_MEMORY,
                       "%s: no memory for the means of %" PRId64 " columns",
                       gr_table_name(dataset->samples), dataset->values);
    }
    dataset->mean = dataset->deviation = 0;
    for (int64_t k = 0; k < dataset->values; k++) {
        double deviation = sqrt(columns[k].squares / columns[k].seen);
        dataset->column_mean[k] = columns[k].mean;
        dataset->column_factor[k] = deviation > 0 ? 1.0 / deviation : 1.0;
        dataset->mean += columns[k].mean / (double)dataset->values;
        dataset->deviation += deviation / (double)dataset->values;
        varying += deviation > 0;
    }
    return varying > 0 ? GR_OK : fail_constant(open, dataset);
}

/* Means and deviations over the training part. */
static gr_status measure(const opening *open, gr_dataset *dataset)
{
    bool by_column = scales_by_column(open->config, dataset);
    int64_t groups = by_column ? dataset->values : 1, each = dataset->values / groups;
    float *x = malloc((size_t)dataset->values * sizeof *x);
    moments *all = calloc((size_t)groups, sizeof *all);
    gr_scaler scaler;
    gr_scaler_init(&scaler, open->config->scale, 0, 1);
    gr_status status = GR_OK;
    if (x == NULL || all == NULL) {
        status = gr_fail(open->diag, GR_E_NO_MEMORY, "%s: no memory for a sample",
                         gr_table_name(dataset->samples));
    }
    for (int64_t i = 0; i < dataset->train_count && status == GR_OK; i++) {
        int64_t record;
        const gr_table *table = locate(dataset, GR_SPLIT_TRAIN, i, &record);
        status = gr_table_read(table, record, &scaler, x, NULL, NULL, open->diag);
        for (int64_t group = 0; group < groups && status == GR_OK; group++) {
            moments_add(&all[group], x + group * each, each);
        }
    }
    if (status == GR_OK && by_column) {
        status = set_columns(open, dataset, all);
    } else if (status == GR_OK) {
        dataset->mean = all[0].mean;
        dataset->deviation = sqrt(all[0].squares / all[0].seen);
        status = dataset->deviation > 0 ? GR_OK : fail_constant(open, dataset);
    }
    free(all);
    free(x);
    return status;
}

static gr_status open_dataset(const opening *open, uint64_t seed, gr_dataset **dataset_out)
{
    const gr_data_config *config = open->config;
    gr_status status = GR_OK;
    gr_dataset *dataset = calloc(1, sizeof *dataset);
    if (dataset == NULL) {
        return gr_fail(open->diag, GR_E_NO_MEMORY, "no memory to open the data");
    }
    dataset->mean = config->mean;
    dataset->deviation = config->deviation;
    status = open_tables(open, dataset);
    if (status == GR_OK) {
        status = resolve_shape(open, dataset);
    }
    if (status == GR_OK) {
        status = resolve_parts(open, seed, dataset);
    }
    if (status == GR_OK) {
        resolve_classes(config, dataset);
        status = config->normalize == 1 ? measure(open, dataset) : GR_OK;
    }
    if (status != GR_OK) {
        gr_dataset_close(dataset);
        return status;
    }
    bool columns = dataset->column_mean != NULL; /* scaled behind the scaler */
    gr_scaler_init(&dataset->scaler, config->scale, columns ? 0 : dataset->mean,
                   columns ? 1 : dataset->deviation);
    *dataset_out = dataset;
    return GR_OK;
}

gr_status gr_dataset_open_limited(const gr_data_config *config, const char *job_path, uint64_t seed,
                                  const gr_table_options *limits, gr_dataset **dataset_out,
                                  gr_diag *diag)
{
    opening open = {.config = config, .job_path = job_path, .limits = *limits, .diag = diag};
    gr_status status = check_settings(config, diag);
    return status == GR_OK ? open_dataset(&open, seed, dataset_out) : status;
}

gr_status gr_dataset_open(const gr_data_config *config, const char *job_path, uint64_t seed,
                          gr_dataset **dataset_out, gr_diag *diag)
{
    gr_table_options limits = gr_table_options_default();
    return gr_dataset_open_limited(config, job_path, seed, &limits, dataset_out, diag);
}

void gr_dataset_close(gr_dataset *dataset)
{
    if (dataset == NULL) {
        return;
    }
    gr_table_close(dataset->samples);
    gr_table_close(dataset->test);
    free(dataset->column_mean);
    free(dataset->column_factor);
    free(dataset);
}

int64_t gr_dataset_count(const gr_dataset *dataset, gr_split part)
{
    return part == GR_SPLIT_TEST ? dataset->test_count : dataset->train_count;
}

int gr_dataset_dims(const gr_dataset *dataset, int64_t dim_out[GR_SAMPLE_DIMS_MAX])
{
    for (int i = 0; i < dataset->dims; i++) {
        dim_out[i] = dataset->dim[i];
    }
    return dataset->dims;
}

int64_t gr_dataset_sample_values(const gr_dataset *dataset)
{
    return dataset->values;
}

int64_t gr_dataset_classes(const gr_dataset *dataset)
{
    return dataset->classes;
}

const char *gr_dataset_kind(const gr_dataset *dataset)
{
    return gr_table_kind(dataset->samples);
}

uint64_t gr_dataset_memory(const gr_dataset *dataset)
{
    return gr_table_memory(dataset->samples) +
           (dataset->test != NULL ? gr_table_memory(dataset->test) : 0);
}

void gr_dataset_scaling(const gr_dataset *dataset, double *mean_out, double *deviation_out)
{
    *mean_out = dataset->mean;
    *deviation_out = dataset->deviation;
}

bool gr_dataset_scales_by_column(const gr_dataset *dataset)
{
    return dataset->column_mean != NULL;
}

const double *gr_dataset_column_means(const gr_dataset *dataset, const double **factor_out)
{
    *factor_out = dataset->column_factor;
    return dataset->column_mean;
}

const gr_csv_layout *gr_dataset_layout(const gr_dataset *dataset)
{
    return gr_table_layout(dataset->samples);
}

gr_status gr_dataset_read(const gr_dataset *dataset, gr_split part, const int64_t *numbers,
                          int count, float *x_out, int32_t *labels_out, float *targets_out,
                          gr_diag *diag)
{
    const gr_table *table =
        part == GR_SPLIT_TEST && dataset->test != NULL ? dataset->test : dataset->samples;
    for (int i = 0; i < count; i++) {
        if (numbers[i] < 0 || numbers[i] >= gr_dataset_count(dataset, part)) {
            return gr_fail(diag, GR_E_INVALID, "%s: there is no sample %" PRId64 " in this part",
                           gr_table_name(table), numbers[i]);
        }
    }
    gr_status status = gr_table_check(table, diag);
    if (status != GR_OK) {
        return status;
    }
    for (int i = 0; i < count && status == GR_OK; i++) {
        int64_t record;
        const gr_table *from = locate(dataset, part, numbers[i], &record);
        status = gr_table_read(from, record, &dataset->scaler, x_out + i * dataset->values,
                               labels_out != NULL ? labels_out + i : NULL,
                               targets_out != NULL ? targets_out + i : NULL, diag);
        gr_scale_columns(dataset->column_mean, dataset->column_factor, x_out + i * dataset->values,
                         dataset->values);
    }
    if (status != GR_OK) {
        /* All was sound when it was opened: if the file has changed since, that is the reason. */
        gr_status changed = gr_table_check(table, diag);
        status = changed != GR_OK ? changed : status;
    }
    return status;
}
