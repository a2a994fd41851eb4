/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include "base/fail.h"
#include "data/idx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 500, HEIGHT = 7, WIDTH = 5, PIXELS = HEIGHT * WIDTH };

static uint8_t pixel(int sample, int at)
{
    return (uint8_t)(sample * 31 + at * 7);
}

/* An image file and a label file, plain or packed. */
static void put_pair(void **state, bool floats, bool packed, char *images, char *labels)
{
    static const uint32_t dim[] = {COUNT, HEIGHT, WIDTH};
    uint8_t *payload = malloc(COUNT * PIXELS * 4);
    assert_non_null(payload);
    uint8_t classes[COUNT];
    for (int i = 0; i < COUNT; i++) {
        classes[i] = (uint8_t)(i % 11);
        for (int k = 0; k < PIXELS; k++) {
            if (!floats) {
                payload[i * PIXELS + k] = pixel(i, k);
                continue;
            }
            float value = (float)pixel(i, k) / 8;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            for (int b = 0; b < 4; b++) {
                payload[(i * PIXELS + k) * 4 + b] = (uint8_t)(bits >> (24 - 8 * b));
            }
        }
    }
    void (*put)(void **, const char *, const void *, size_t, char *) =
        packed ? file_put_gzip : file_put;
    uint8_t *data;
    size_t size = idx_make(floats ? GR_IDX_F32 : GR_IDX_U8, 3, dim, payload,
                           COUNT * PIXELS * (floats ? 4 : 1), &data);
    put(state, "images", data, size, images);
    free(data);
    size = idx_make(GR_IDX_U8, 1, dim, classes, COUNT, &data);
    put(state, "labels", data, size, labels);
    free(data);
    free(payload);
}

static void check_pair(void **state, bool floats, bool packed, uint64_t memory_max)
{
    char images[300], labels[300];
    put_pair(state, floats, packed, images, labels);
    gr_data_config config = config_idx(images, labels);
    config.scale = 0.5;
    config.mean = 3;
    config.deviation = 4;
    config.test_count = 100;
    gr_table_options limits = gr_table_options_default();
    limits.memory_max = memory_max;
    gr_dataset *dataset;
    gr_diag diag;
    gr_status status = gr_dataset_open_limited(&config, "job.yaml", 1, &limits, &dataset, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    assert_string_equal(gr_dataset_kind(dataset), !packed          ? "read from the file"
                                                  : memory_max > 0 ? "in memory"
                                                                   : "in a temporary file");
    int64_t dim[GR_SAMPLE_DIMS_MAX];
    assert_int_equal(gr_dataset_dims(dataset, dim), 3);
    assert_true(dim[0] == 1 && dim[1] == HEIGHT && dim[2] == WIDTH);
    assert_int_equal(gr_dataset_classes(dataset), 11);
    assert_int_equal(gr_dataset_count(dataset, GR_SPLIT_TRAIN), 400);
    int64_t numbers[3] = {99, 0, 57};
    float x[3 * PIXELS];
    int32_t classes[3];
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TEST, numbers, 3, x, classes, NULL, &diag),
                     GR_OK);
    for (int i = 0; i < 3; i++) {
        int sample = 400 + (int)numbers[i];
        assert_int_equal(classes[i], sample % 11);
        for (int k = 0; k < PIXELS; k++) {
            double raw = floats ? pixel(sample, k) / 8.0 : pixel(sample, k);
            assert_true(x[i * PIXELS + k] == (float)((raw * 0.5 - 3) / 4));
        }
    }
    gr_dataset_close(dataset);
}

static void test_pairs(void **state)
{
    for (int floats = 0; floats < 2; floats++) {
        check_pair(state, floats, false, 0);
        check_pair(state, floats, true, 1 << 20);
        check_pair(state, floats, true, 0);
    }
}

/* A sample has all the dimensions behind the count, but for an image of one channel. */
static void samples_of_any_dimensions_are_read(void **state)
{
    static const uint32_t dim[] = {2, 3, 1, 2, 2, 1, 1, 2};
    static const uint8_t classes[] = {1, 0};
    for (int dims = 2; dims <= GR_IDX_DIMS_MAX; dims++) {
        uint8_t payload[48], *data;
        int64_t got[GR_SAMPLE_DIMS_MAX], values = 1, number = 1;
        char images[300], labels[300];
        gr_diag diag;
        for (int i = 1; i < dims; i++) {
            values *= dim[i];
        }
        for (int i = 0; i < 2 * values; i++) {
            payload[i] = (uint8_t)(3 * i);
        }
        size_t size = idx_make(GR_IDX_U8, dims, dim, payload, 2 * (size_t)values, &data);
        file_put(state, "images", data, size, images);
        free(data);
        size = idx_make(GR_IDX_U8, 1, dim, classes, 2, &data);
        file_put(state, "labels", data, size, labels);
        free(data);
        gr_data_config config = config_idx(images, labels);
        gr_dataset *dataset = NULL;
        assert_int_equal(gr_dataset_open(&config, "job.yaml", 1, &dataset, &diag), GR_OK);
        assert_int_equal(gr_dataset_dims(dataset, got), dims == 3 ? 3 : dims - 1);
        assert_int_equal(gr_dataset_sample_values(dataset), values);
        for (int i = 1; i < dims; i++) {
            assert_int_equal(got[dims == 3 ? i : i - 1], dim[i]);
        }
        float x[24];
        int32_t label;
        assert_int_equal(
            gr_dataset_read(dataset, GR_SPLIT_TRAIN, &number, 1, x, &label, NULL, &diag), GR_OK);
        assert_true(x[0] == (float)(3 * values) && x[values - 1] == (float)(3 * (2 * values - 1)));
        gr_dataset_close(dataset);
    }
}

static void header_case(const char *bytes, size_t size, const char *text)
{
    gr_idx_header header;
    gr_diag diag;
    gr_diag_clear(&diag);
    assert_int_equal(gr_idx_parse("i", (const uint8_t *)bytes, size, &header, &diag), GR_E_INVALID);
    if (strstr(diag.text, text) == NULL) {
        fail_msg("expected: %s\nis: %s", text, diag.text);
    }
}

static void test_headers(void **state)
{
    (void)state;
    header_case("", 0, "i: the file is empty");
    header_case("\0\0", 2, "too short for an IDX header");
    header_case("\x89PNG", 4, "this is no IDX file: it begins with the bytes 89 50");
    header_case("\0\0\x0b\1\0\0\0\1", 8, "16-bit integers (type 0x0b)");
    header_case("\0\0\x77\1\0\0\0\1", 8, "unknown type");
    header_case("\0\0\x08\0", 4, "names 0 dimensions");
    header_case("\0\0\x08\x9\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1", 20,
                "names 9 dimensions; 1 to 8 can be read");
    header_case("\0\0\x08\2\0\0\0\1", 8, "ends inside its IDX header");
    header_case("\0\0\x08\2\0\0\0\1\0\0\0\0", 12, "dimension 2 of the IDX header is 0");
    header_case("\0\0\x08\4\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 20, "limit");
}

static void must_fail_pair(const char *images, const char *labels, const char *text,
                           const char *also)
{
    gr_data_config config = config_idx(images, labels);
    must_fail(&config, GR_E_INVALID, text, also);
}

static void test_sizes(void **state)
{
    char images[300], labels[300];
    for (int packed = 0; packed < 2; packed++) {
        put_pair(state, false, packed != 0, images, labels);
        static const uint32_t wrong[] = {COUNT + 1, HEIGHT, WIDTH};
        uint8_t *payload = calloc(1, (COUNT + 1) * PIXELS), *data;
        char path[300];
        void (*put)(void **, const char *, const void *, size_t, char *) =
            packed ? file_put_gzip : file_put;
        size_t size = idx_make(GR_IDX_U8, 3, wrong, payload, COUNT * PIXELS, &data);
        put(state, "short", data, size, path);
        free(data);
        gr_data_config config = config_idx(path, labels);
        must_fail(&config, GR_E_INVALID, "short: the header promises 501 samples of 35 bytes",
                  "only 17500 follow: the file is truncated");
        size = idx_make(GR_IDX_U8, 3, (const uint32_t[]){COUNT, HEIGHT, WIDTH}, payload,
                        COUNT * PIXELS + 1, &data);
        put(state, "long", data, size, path);
        free(data);
        must_fail_pair(path, labels, "long: the header promises 500", "at least 17501 follow");
        size = idx_make(GR_IDX_U8, 3, wrong, payload, (COUNT + 1) * PIXELS, &data);
        put(state, "more", data, size, path);
        free(data);
        must_fail_pair(path, labels, "labels has 500 labels, but ", "more has 501 samples");
        must_fail_pair(labels, labels, "looks like labels", "two to");
        must_fail_pair(images, images, "labels are one byte each", "");
        config = config_idx(images, labels);
        config.classes = 10;
        must_fail(&config, GR_E_INVALID, "the label of sample 10 (from 0) is 10, out of range",
                  "labels go from 0 to 9");
        free(payload);
    }
}

/* What is unpacked is checked at once; of a large plain file each sample when it is read. */
static void float_file_with_nan_is_refused(void **state)
{
    static const uint8_t payload[] = {0x3f, 0x80, 0, 0, 0x7f, 0xc0, 0, 0};
    static const char sentence[] = "value 0 of sample 1 (from 0) is not a number; correct it";
    uint8_t *data;
    char images[300], packed[300], labels[300];
    size_t size = idx_make(GR_IDX_F32, 2, (const uint32_t[]){2, 1}, payload, 8, &data);
    file_put(state, "images", data, size, images);
    file_put_gzip(state, "packed", data, size, packed);
    free(data);
    size = idx_make(GR_IDX_U8, 1, (const uint32_t[]){2}, "\0\1", 2, &data);
    file_put(state, "labels", data, size, labels);
    free(data);
    must_fail_pair(images, labels, "images: ", sentence);
    must_fail_pair(packed, labels, "packed: ", sentence);
    gr_data_config config = config_idx(images, labels);
    gr_table_options limits = gr_table_options_default();
    limits.memory_max = 0;
    gr_dataset *dataset;
    gr_diag diag;
    assert_int_equal(gr_dataset_open_limited(&config, "job.yaml", 1, &limits, &dataset, &diag),
                     GR_OK);
    float x;
    int32_t label;
    int64_t number = 0;
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, &number, 1, &x, &label, NULL, &diag),
                     GR_OK);
    assert_true(x == 1.0F);
    number = 1;
    assert_int_equal(gr_dataset_read(dataset, GR_SPLIT_TRAIN, &number, 1, &x, &label, NULL, &diag),
                     GR_E_INVALID);
    assert_non_null(strstr(diag.text, sentence));
    gr_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(samples_of_any_dimensions_are_read),
                                       cmocka_unit_test(test_headers), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(float_file_with_nan_is_refused)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
