/* SPDX-License-Identifier: Apache-2.0 */
#include "data/reader.h"

#define AT(field) offsetof(gr_data_config, field)

static const char *const normalizations[] = {"none", "standard", NULL};
static const char *const splits[] = {"last", "random", NULL};

static const gr_reader_ops *const readers[] = {&gr_csv_reader, &gr_idx_reader};
enum { READER_COUNT = sizeof readers / sizeof readers[0] };

const gr_reader_ops *gr_reader_ops_at(int index)
{
    return index < READER_COUNT ? readers[index] : gr_extra_readers[index - READER_COUNT];
}

static const char *format_name(int index)
{
    const gr_reader_ops *ops = gr_reader_ops_at(index);
    return ops != NULL ? ops->name : NULL;
}

static const gr_config_field *format_fields(int index)
{
    return gr_reader_ops_at(index)->settings;
}

/* Of counts: what a double can hold exactly, so that bounds compare exactly. */
#define COUNT_MAX 9007199254740992.0

static const gr_config_field fields[] = {
    {.key = "format",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(format),
     .default_text = "csv",
     .choice = format_name,
     .choice_fields = format_fields,
     .result = "",
     .help = "of the files: csv has a sample a line, values and label separated by commas; idx is "
             "the format of MNIST"},
    {.key = "shape",
     .type = GR_CONFIG_NODE,
     .offset = AT(shape),
     .value_name = "[N, ...]",
     .result = "",
     .help = "of a sample: 1 to 7 numbers, [values] or [channels, height, width], say; default: as "
             "the file says"},
    {.key = "classes",
     .type = GR_CONFIG_INT,
     .offset = AT(classes),
     .default_text = "0",
     .min = 0,
     .max = 1 << 24,
     .result = "",
     .help = "labels go from 0 to classes - 1; 0: the largest label + 1"},
    {.key = "scale",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(scale),
     .default_text = "1",
     .min = -1e30,
     .max = 1e30,
     .result = "",
     .help = "the model sees (value * scale - mean) / deviation"},
    {.key = "mean",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(mean),
     .default_text = "0",
     .min = -1e30,
     .max = 1e30,
     .result = "",
     .help = "see scale"},
    {.key = "deviation",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(deviation),
     .default_text = "1",
     .min = 1e-30,
     .max = 1e30,
     .result = "",
     .help = "see scale"},
    {.key = "normalize",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(normalize),
     .default_text = "none",
     .choices = normalizations,
     .result = "",
     .help = "standard: mean and deviation are computed from the training samples: of each column, "
             "or of all values where a sample has more than one dimension"},
    {.key = "test_count",
     .type = GR_CONFIG_INT,
     .offset = AT(test_count),
     .default_text = "0",
     .min = 0,
     .max = COUNT_MAX,
     .unit = "samples",
     .result = "",
     .help = "so many samples are held out for the test"},
    {.key = "split",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(split),
     .default_text = "last",
     .choices = splits,
     .result = "",
     .help = "which samples are held out: the last ones, or a random choice that the seed fixes"},
    {.key = "regression",
     .type = GR_CONFIG_BOOL,
     .offset = AT(regression),
     .default_text = "false",
     .result = "",
     .help = "csv: the label is a number to predict (loss: mse), not a class"},
    {0}};

const gr_config_table gr_data_config_table = {
    .name = "data",
    .title = "The data part of a job file: samples, labels, split and scaling",
    .fields = fields,
    .struct_bytes = sizeof(gr_data_config)};
