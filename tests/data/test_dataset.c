/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include "base/fail.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS GR_TEST_SOURCE_DIR "/examples/digits/digits.csv.gz"

enum { COUNT = 50 };

/* Sample i: value i, label i % 3. */
static void put_numbers(void **state, char *path)
{
    char text[COUNT * 8];
    size_t size = 0;
    for (int i = 0; i < COUNT; i++) {
        size += (size_t)sprintf(text + size, "%d,%d\n", i, i % 3);
    }
    file_put(state, "numbers.csv", text, size, path);
}

static gr_dataset *open_ok(const gr_data_config *config, uint64_t seed)
{
    gr_dataset *dataset = NULL;
    gr_diag diag;
    gr_diag_clear(&diag);
    gr_status status = gr_dataset_open(config, "job.yaml", seed, &dataset, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return dataset;
}

static float value_at(const gr_dataset *dataset, gr_split part, int64_t number)
{
    float x;
    int32_t label;
    assert_int_equal(gr_dataset_read(dataset, part, &number, 1, &x, &label, NULL, NULL), GR_OK);
    return x;
}

/* The first value of the first test sample, which has two. */
static float value_at_first(const gr_dataset *dataset)
{
    float x[2];
    int32_t label;
    int64_t number = 0;
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TEST, &number, 1, x, &label, NULL, NULL),
                     GR_OK);
    return x[0];
}

static void test_split_last(void **state)
{
    char path[300];
    put_numbers(state, path);
    gr_data_config config = config_csv(path);
    config.test_count = 20;
    gr_dataset *dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TRAIN), 30);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TEST), 20);
    assert_int_equal(gr_dataset_classes(dataset), 3);
    assert_true(value_at(dataset, GR_SPLIT_TRAIN, 29) == 29);
    assert_true(value_at(dataset, GR_SPLIT_TEST, 0) == 30);
    float x[2];
    int32_t labels[2];
    gr_diag diag;
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, (const int64_t[]){0, 30}, 2, x,
                                     labels, NULL, &diag),
                     GR_E_INVALID);
    gr_dataset_close(dataset);
}

/* Every sample is in one part, once; another seed chooses others. */
static void test_split_random(void **state)
{
    char path[300];
    put_numbers(state, path);
    gr_data_config config = config_csv(path);
    config.test_count = 20;
    config.split = 1;
    int in_test[2] = {0, 0};
    int same = 0;
    bool test_of_first[COUNT] = {false};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        gr_dataset *dataset = open_ok(&config, seed);
        bool seen[COUNT] = {false};
        for (int i = 0; i < COUNT; i++) {
            gr_split part = i < 30 ? GR_SPLIT_TRAIN : GR_SPLIT_TEST;
            int value = (int)value_at(dataset, part, i < 30 ? i : i - 30);
            assert_in_range(value, 0, COUNT - 1);
            assert_false(seen[value]);
            seen[value] = true;
            if (part == GR_SPLIT_TEST) {
                in_test[seed - 1] += value >= 30;
                same += seed == 2 && test_of_first[value];
                test_of_first[value] = seed == 1;
            }
        }
        gr_dataset_close(dataset);
    }
    assert_true(in_test[0] < 20 && in_test[1] < 20 && same < 20);
}

static void test_own_test_file(void **state)
{
    char path[300], test[300];
    put_numbers(state, path);
    file_put(state, "test.csv", "7,4\n8,0\n", 8, test);
    gr_data_config config = config_csv(path);
    config.test_file = test;
    gr_dataset *dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TRAIN), COUNT);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TEST), 2);
    assert_int_equal(gr_dataset_classes(dataset), 5);
    assert_true(value_at(dataset, GR_SPLIT_TEST, 1) == 8);
    gr_dataset_close(dataset);
    config.test_count = 3;
    must_fail(&config, GR_E_INVALID, "there is a test set of its own already", "remove one");
    config.test_count = 0;
    file_put(state, "test.csv", "7,4,1\n", 6, test);
    must_fail(&config, GR_E_INVALID, "test.csv: a sample has 2 values", "same shape");
}

/* Columns are never guessed: another order of the same names would be other values. */
static void test_file_with_columns_in_another_order_is_refused(void **state)
{
    static const char train[] = "length,width,id,kind\n1,2,7,0\n3,4,8,1\n";
    static const char swapped[] = "width,length,id,kind\n2,1,7,0\n";
    static const char moved[] = "id,length,width,sort\n7,5,6,1\n";
    char path[300], test[300];
    gr_node id = {.kind = GR_NODE_SCALAR, .text = "id"};
    gr_node skip = {.kind = GR_NODE_LIST, .child = &id, .count = 1};
    file_put(state, "train.csv", train, sizeof train - 1, path);
    file_put(state, "test.csv", swapped, sizeof swapped - 1, test);
    gr_data_config config = config_csv(path);
    config.test_file = test;
    config.header = true;
    must_fail(&config, GR_E_INVALID, "test.csv:1: column 1 is \"width\", but in ",
              "train.csv it is \"length\"; write the columns of both files in one order");
    config.skip = &skip;
    must_fail(&config, GR_E_INVALID, "test.csv:1: column 1 is \"width\"", "");
    /* What is left out may stand anywhere, and the label's name is nobody's matter. */
    file_put(state, "test.csv", moved, sizeof moved - 1, test);
    gr_dataset *dataset = open_ok(&config, 1);
    assert_true(value_at_first(dataset) == 5);
    gr_dataset_close(dataset);
    config.skip = NULL;
    must_fail(&config, GR_E_INVALID, "test.csv:1: column 1 is \"id\"", "");
}

static void test_standard(void **state)
{
    char path[300];
    put_numbers(state, path);
    gr_data_config config = config_csv(path);
    config.test_count = 20;
    config.normalize = 1;
    config.scale = 2;
    gr_dataset *dataset = open_ok(&config, 1);
    double mean, deviation, sum = 0, squares = 0;
    gr_dataset_scaling(dataset, &mean, &deviation);
    assert_true(fabs(mean - 29) < 1e-12); /* of 0, 2, .. 58: the test part does not count */
    assert_true(fabs(deviation - sqrt(4 * 899 / 12.0)) < 1e-12);
    for (int i = 0; i < 30; i++) {
        double x = (double)value_at(dataset, GR_SPLIT_TRAIN, i);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum) < 1e-5 && fabs(squares / 30 - 1) < 1e-6);
    gr_dataset_close(dataset);
    config.mean = 1;
    must_fail(&config, GR_E_INVALID, "standard computes mean and deviation itself", "none");
    config.mean = 0;
    char flat[300];
    file_put(state, "flat.csv", "3,0\n3,1\n", 8, flat);
    config.file = flat;
    config.test_count = 0;
    must_fail(&config, GR_E_INVALID, "flat.csv are equal", "use normalize: none");
}

/* A table of columns as different as wine's: one in thousands, one in hundredths, one constant. */
static void normalize_standard_of_flat_samples_is_by_column(void **state)
{
    (void)state;
    enum { SAMPLES = 8, COLUMNS = 3 };
    static const char text[] = "1000,0.01,5,0\n2000,0.03,5,1\n3000,0.02,5,0\n4000,0.04,5,1\n"
                               "5000,0.01,5,0\n6000,0.03,5,1\n7000,0.02,5,0\n8000,0.04,5,1\n"
                               "9999,0.09,5,1\n";
    char path[300];
    file_put(state, "wine.csv", text, sizeof text - 1, path);
    gr_data_config config = config_csv(path);
    config.normalize = 1;
    config.test_count = 1;
    gr_dataset *dataset = open_ok(&config, 1);
    assert_true(gr_dataset_scales_by_column(dataset));
    static const int64_t numbers[SAMPLES] = {0, 1, 2, 3, 4, 5, 6, 7};
    float x[SAMPLES * COLUMNS];
    int32_t labels[SAMPLES];
    assert_int_equal(
        gr_dataset_read(dataset, GR_SPLIT_TRAIN, numbers, SAMPLES, x, labels, NULL, NULL), GR_OK);
    for (int column = 0; column < COLUMNS; column++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < SAMPLES; i++) {
            double value = (double)x[i * COLUMNS + column];
            sum += value;
            squares += value * value;
        }
        assert_true(fabs(sum) < 1e-5);
        assert_true(column == 2 ? squares == 0 : fabs(squares / SAMPLES - 1) < 1e-6);
    }
    /* The test part is seen with the means of the training part: 4500 and sqrt(5250000). */
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TEST, numbers, 1, x, labels, NULL, NULL),
                     GR_OK);
    assert_true(fabs((double)x[0] - 5499 / sqrt(5250000)) < 1e-5 && x[2] == 0);
    gr_dataset_close(dataset);
}

static void test_regression(void **state)
{
    char path[300];
    file_put(state, "r.csv", "-0.5,1,2\n1e3,3,4\n", 17, path);
    gr_data_config config = config_csv(path);
    config.regression = true;
    config.label_column = "first";
    gr_dataset *dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_classes(dataset), 0);
    float x[4], targets[2];
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, (const int64_t[]){1, 0}, 2, x, NULL,
                                     targets, NULL),
                     GR_OK);
    assert_true(targets[0] == 1000 && targets[1] == -0.5F && x[0] == 3 && x[3] == 2);
    gr_dataset_close(dataset);
    config.classes = 3;
    must_fail(&config, GR_E_INVALID, "regression predicts numbers", "remove one");
}

static void test_settings(void **state)
{
    char path[300];
    put_numbers(state, path);
    gr_data_config config = config_csv(NULL);
    must_fail(&config, GR_E_INVALID, "data of format csv needs file: FILE", "");
    config.file = "nowhere/none.csv";
    must_fail(&config, GR_E_NOT_FOUND, "nowhere/none.csv: there is no such file", "");
    config = config_csv(path);
    config.label_column = "second";
    must_fail(&config, GR_E_INVALID, "must be first, last or a number", "\"second\"");
    config.label_column = "0";
    must_fail(&config, GR_E_INVALID, "must be first, last or a number", "\"0\"");
    config = config_csv(path);
    config.test_count = COUNT;
    must_fail(&config, GR_E_INVALID, "50 samples for the test leave none to train", "has 50");
    config = config_idx(path, NULL);
    must_fail(&config, GR_E_INVALID, "data of format idx needs labels: FILE", "");
    config = config_idx(path, path);
    config.regression = true;
    must_fail(&config, GR_E_INVALID, "labels of idx files are classes", "format: csv");
}

/* Settings that come from a file are named with their place in it. */
static void test_shape(void **state)
{
    (void)state;
    static const char text[] =
        "data:\n  good: [1, 8, 8]\n  flat: [64]\n  wrong: [1, 8, 9]\n"
        "  many: [2, 2, 2, 2, 2, 2, 1, 1]\n  zero: [0]\n  huge: [67108864, 67108864, 67108864]\n"
        "  seven: [2, 2, 2, 2, 2, 2, 1]\n";
    gr_doc *doc;
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, strlen(text), &doc, NULL), GR_OK);
    const gr_node *section = gr_node_get(gr_doc_root(doc), "data");
    gr_data_config config = config_csv(DIGITS);
    config.section = section;
    int64_t dim[GR_SAMPLE_DIMS_MAX];
    config.shape = gr_node_get(section, "good");
    gr_dataset *dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_dims(dataset, dim), 3);
    assert_true(dim[0] == 1 && dim[1] == 8 && dim[2] == 8);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TRAIN), 1797);
    assert_int_equal(gr_dataset_classes(dataset), 10);
    gr_dataset_close(dataset);
    config.shape = gr_node_get(section, "flat");
    dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_dims(dataset, dim), 1);
    gr_dataset_close(dataset);
    config.shape = gr_node_get(section, "wrong");
    must_fail(&config, GR_E_INVALID,
              "job.yaml:4: data.wrong: 1 x 8 x 9 are 72 values, but a sample of ",
              "has 64 (its columns without the label)");
    config.shape = gr_node_get(section, "many");
    must_fail(&config, GR_E_INVALID, "job.yaml:5: data.many: must be a list of 1 to 7 numbers", "");
    config.shape = gr_node_get(section, "seven");
    dataset = open_ok(&config, 1);
    assert_int_equal(gr_dataset_dims(dataset, dim), 7);
    assert_true(dim[0] == 2 && dim[5] == 2 && dim[6] == 1);
    gr_dataset_close(dataset);
    config.shape = gr_node_get(section, "zero");
    must_fail(&config, GR_E_INVALID, "job.yaml:6", "");
    config.shape = gr_node_get(section, "huge");
    must_fail(&config, GR_E_INVALID, "job.yaml:7: data.huge: ", "values, but a sample");
    gr_doc_destroy(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_last),
        cmocka_unit_test(test_split_random),
        cmocka_unit_test(test_own_test_file),
        cmocka_unit_test(test_file_with_columns_in_another_order_is_refused),
        cmocka_unit_test(test_standard),
        cmocka_unit_test(normalize_standard_of_flat_samples_is_by_column),
        cmocka_unit_test(test_regression),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_shape)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
