/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include "data/csv.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* Every way to keep a CSV file gives the same samples. */
typedef enum way { WAY_MEMORY, WAY_TEXT, WAY_TEXT_STRIDE, WAY_GZIP, WAY_GZIP_SPILLED, WAYS } way;

static gr_table *open_text(void **state, const char *text, size_t size, way how,
                           gr_table_options options)
{
    char path[300];
    if (how >= WAY_GZIP) {
        file_put_gzip(state, "t.csv", text, size, path);
    } else {
        file_put(state, "t.csv", text, size, path);
    }
    options.memory_max = how == WAY_MEMORY || how == WAY_GZIP ? 1 << 20 : 8;
    options.index_max = how == WAY_TEXT_STRIDE ? 4 : 1 << 16;
    gr_input_stream *source;
    gr_table *table = NULL;
    gr_diag diag;
    assert_int_equal(gr_input_stream_open(path, &source, &diag), GR_OK);
    gr_status status = gr_table_open_csv(source, &options, &table, &diag);
    gr_input_stream_close(source);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return table;
}

static void check_samples(const gr_table *table, int count)
{
    gr_scaler scaler;
    gr_scaler_init(&scaler, 1, 0, 1);
    assert_int_equal(gr_table_count(table), count);
    assert_int_equal(gr_table_values(table), 3);
    for (int i = count - 1; i >= 0; i--) {
        float x[3];
        int32_t label = -1;
        gr_diag diag;
        gr_status status = gr_table_read(table, i, &scaler, x, &label, NULL, &diag);
        if (status != GR_OK) {
            fail_msg("%s", diag.text);
        }
        assert_true(x[0] == (float)i && x[1] == -0.5F * (float)i && x[2] == 1e-3F);
        assert_int_equal(label, i % 10);
    }
}

static void test_ways(void **state)
{
    enum { COUNT = 1000 };
    static const char *const ends[] = {"\n", "\r\n"};
    char *text = malloc(COUNT * 64);
    assert_non_null(text);
    for (int variant = 0; variant < 6; variant++) {
        size_t size = 0;
        bool header = variant % 3 == 1;
        if (variant % 3 == 2) {
            size += (size_t)sprintf(text, "\xef\xbb\xbf");
        }
        size += header ? (size_t)sprintf(text, "a,\"b\",c,label\n") : 0;
        for (int i = 0; i < COUNT; i++) {
            size += (size_t)sprintf(text + size, "%d, %.1f ,\t1e-3,%d%s", i, -0.5 * i, i % 10,
                                    variant < 3 && i == COUNT - 1 ? "" : ends[variant % 2]);
        }
        size += variant > 3 ? (size_t)sprintf(text + size, "\n\r\n") : 0;
        for (way how = 0; how < WAYS; how++) {
            gr_table *table =
                open_text(state, text, size, how, (gr_table_options){.header = header});
            check_samples(table, COUNT);
            assert_int_equal(gr_table_label_max(table), 9);
            static const char *const kinds[WAYS] = {"in memory", "read line by line from the file",
                                                    "read line by line from the file", "in memory",
                                                    "in a temporary file"};
            assert_string_equal(gr_table_kind(table), kinds[how]);
            gr_table_close(table);
        }
    }
    free(text);
}

/* Lines longer than every buffer. */
static void test_wide(void **state)
{
    enum { COLUMNS = 30000, LINES = 5 };
    char *text = malloc(LINES * COLUMNS * 8);
    float *x = malloc(COLUMNS * sizeof *x);
    assert_true(text != NULL && x != NULL);
    size_t size = 0;
    for (int line = 0; line < LINES; line++) {
        for (int i = 0; i < COLUMNS; i++) {
            size += (size_t)sprintf(text + size, "%d%c", i == 0 ? line : (i * 7 + line) % 100000,
                                    i + 1 < COLUMNS ? ',' : '\n');
        }
    }
    gr_scaler scaler;
    gr_scaler_init(&scaler, 1, 0, 1);
    for (way how = 0; how < WAYS; how++) {
        gr_table *table = open_text(state, text, size, how, (gr_table_options){.label_column = 1});
        for (int line = 0; line < LINES; line++) {
            int32_t label;
            assert_int_equal(gr_table_read(table, line, &scaler, x, &label, NULL, NULL), GR_OK);
            assert_int_equal(label, line);
            for (int i = 1; i < COLUMNS; i++) {
                assert_true(x[i - 1] == (float)((i * 7 + line) % 100000));
            }
        }
        gr_table_close(table);
    }
    free(x);
    free(text);
}

static void bad(const char *text, size_t size, gr_table_options options, const char *sentence)
{
    gr_input_stream *source;
    gr_table *table = NULL;
    gr_diag diag;
    options.memory_max = 1 << 20;
    options.index_max = 64;
    assert_int_equal(gr_input_stream_open_memory("d.csv", text, size, &source, &diag), GR_OK);
    assert_int_equal(gr_table_open_csv(source, &options, &table, &diag), GR_E_INVALID);
    gr_input_stream_close(source);
    assert_null(table);
    if (strncmp(diag.text, sentence, strlen(sentence)) != 0) {
        fail_msg("expected: %s\nis: %s", sentence, diag.text);
    }
}

static void test_sentences(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "d.csv: the file is empty"},
        {"\n\n", "d.csv: the file is empty"},
        {"1,2\n1,abc\n", "d.csv:2: column 2: \"abc\" is not a number"},
        {"a,b\n1,2\n", "d.csv:1: column 1: \"a\" is not a number; if the first line holds names, "
                       "set header: true"},
        {"1,2\n1,\n", "d.csv:2: column 2 is empty; a number must stand there"},
        {"1,2\n,1\n", "d.csv:2: column 1 is empty"},
        {"1,2\n1, \t\r\n", "d.csv:2: column 2 is empty"},
        {"1,2\n1,2,3\n", "d.csv:2: the line has more columns than the first line of data, which "
                         "has 2"},
        {"1,2,3\n1,2\n", "d.csv:2: the line has fewer columns than"},
        {"1,2,3\n1,2,3,\n", "d.csv:2: the line has more columns than"},
        {"1,2\n\n1,2\n", "d.csv:2: the line is empty; remove it"},
        {"1,2\n1,2.5\n", "d.csv:2: column 2: the label 2.5 is not a whole number"},
        {"1,2\n1,-1\n", "d.csv:2: column 2: the label -1 is out of range: labels go from 0 to"},
        {"1,2\n1,1e300\n", "d.csv:2: column 2: the label 1e+300 is out of range"},
        {"1,2\n1e39,1\n", "d.csv:2: column 1: the number is too large for 32 bits"},
        {"1e39,2\n", "d.csv:1: column 1: the number is too large for 32 bits"},
        {"1,2\n1e,1\n", "d.csv:2: column 1: \"1e\" is not a number"},
        {"1,2\n0x10,1\n", "d.csv:2: column 1: \"0x10\" is not a number"},
        {"1,2\nnan,1\n", "d.csv:2: column 1: \"nan\" is not a number"},
        {"1,2\ninf,1\n", "d.csv:2: column 1: \"inf\" is not a number"},
        {"1,2\n--1,1\n", "d.csv:2: column 1: \"--1\" is not a number"},
        {"1,2\n.,1\n", "d.csv:2: column 1: \".\" is not a number"},
        {"1,2\n1 2,1\n", "d.csv:2: column 1: \"1 2\" is not a number"},
        {"1,2\n\x01\xff,1\n", "d.csv:2: column 1: \"??\" is not a number"},
        {"1;2\n", "d.csv:1: column 1: \"1;2\" is not a number"},
        {"1\n2\n", "d.csv:1: the line has one column"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bad(cases[i].text, strlen(cases[i].text), (gr_table_options){0}, cases[i].sentence);
    }
    bad("x,y\n", 4, (gr_table_options){.header = true},
        "d.csv: the file is empty behind its header");
    bad("1,2\n1,4\n", 8, (gr_table_options){.classes = 4},
        "d.csv:2: column 2: the label 4 is out of range: labels go from 0 to 3 (classes");
    bad("1,2\n", 4, (gr_table_options){.label_column = 3},
        "d.csv:1: the line has 2 columns, so column 3 (label_column) cannot be the label");
    bad("1,2\n1\0,2\n", 9, (gr_table_options){0}, "d.csv:2: column 1: \"1?\" is not a number");
    char wide[600];
    memset(wide, '1', sizeof wide);
    memcpy(wide, "1,2\n", 4);
    bad(wide, sizeof wide, (gr_table_options){0}, "d.csv:2: column 1: \"1111");
}

static void test_truncated_gzip(void **state)
{
    char path[300];
    enum { LINES = 2000, LINE = 9 };
    char text[LINES * LINE];
    for (int i = 0; i < LINES; i++) {
        char line[32];
        snprintf(line, sizeof line, "%04d,%03d\n", i * 7919 % 10000, i * i % 1000);
        memcpy(text + i * LINE, line, LINE);
    }
    file_put_gzip(state, "cut.csv.gz", text, LINES * LINE, path);
    assert_int_equal(truncate(path, 2000), 0);
    gr_data_config config = config_csv(path);
    gr_dataset *dataset;
    gr_diag diag;
    assert_int_equal(gr_dataset_open(&config, "job.yaml", 1, &dataset, &diag), GR_E_INVALID);
    const char *at = strstr(diag.text, "cut.csv.gz:");
    assert_non_null(at);
    int line = 0;
    assert_int_equal(sscanf(at, "cut.csv.gz:%d: the gzip data ends in the middle", &line), 1);
    /* What could still be unpacked: some of the lines, more than none. */
    assert_in_range(line, 100, LINES - 100);
}

/* Correctly rounded, like strtod, whatever the locale. */
static void test_numbers(void **state)
{
    (void)state;
    static const char *const texts[] = {"0",
                                        "-0",
                                        "1",
                                        "+1.5",
                                        ".5",
                                        "5.",
                                        "123456789012345678901234567890",
                                        "0.1",
                                        "3.14159265358979323846264338327950288",
                                        "9007199254740993",
                                        "9007199254740992",
                                        "1e22",
                                        "1e23",
                                        "1e-22",
                                        "1e-23",
                                        "4.9e-324",
                                        "1.7976931348623157e308",
                                        "1e400",
                                        "-1e-400",
                                        "1e99999999999999999999",
                                        "0.000000000000000000000000000000000000000001",
                                        "000000000000000000000000000000001.25",
                                        "1E5"};
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        double value = 77;
        const char *end = gr_csv_number(texts[i], c, &value);
        assert_ptr_equal(end, texts[i] + strlen(texts[i]));
        double expected = strtod_l(texts[i], NULL, c);
        assert_memory_equal(&value, &expected, sizeof value);
    }
    uint32_t x = 5;
    for (int i = 0; i < 50000; i++) {
        char text[64];
        x = x * 1664525 + 1013904223;
        int digits = (int)(x >> 8) % 18;
        x = x * 1664525 + 1013904223;
        snprintf(text, sizeof text, "%.*e", digits,
                 ((double)x - 2e9) * pow(10, (int)(x % 60) - 30));
        double value;
        assert_non_null(gr_csv_number(text, c, &value));
        double expected = strtod_l(text, NULL, c);
        assert_memory_equal(&value, &expected, sizeof value);
    }
    freelocale(c);
}

/* A file that changes under our hands is noticed, not misread. */
static void test_changed(void **state)
{
    char path[300];
    file_put(state, "live.csv", "1,0\n2,1\n", 8, path);
    gr_data_config config = config_csv(path);
    gr_table_options limits = gr_table_options_default();
    limits.memory_max = 8;
    gr_dataset *dataset;
    gr_diag diag;
    assert_int_equal(gr_dataset_open_limited(&config, "job.yaml", 1, &limits, &dataset, &diag),
                     GR_OK);
    float x;
    int32_t label;
    int64_t number = 1;
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, &number, 1, &x, &label, NULL, &diag),
                     GR_OK);
    file_put(state, "live.csv", "1,0\n20,1\n", 9, path);
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, &number, 1, &x, &label, NULL, &diag),
                     GR_E_IO);
    assert_non_null(strstr(diag.text, "live.csv: the file was changed"));
    gr_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ways),      cmocka_unit_test(test_wide),
        cmocka_unit_test(test_sentences), cmocka_unit_test(test_truncated_gzip),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_changed)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
