/* SPDX-License-Identifier: Apache-2.0 */

/* The weights' file: the writer's bytes against a golden file, the round trip, and every way in
 * which a file can be wrong that the format's description names. */

#include "train/safetensors.h"

#include "base/codec.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const float weight[6] = {0.0f, -1.5f, 2.25f, 1e-38f, 3.0e38f, -0.0f};
static const float bias[3] = {1.0f, 2.0f, 3.0f};
static const float one[1] = {42.0f};

static void fill_parts(gr_safetensors_part parts[3])
{
    parts[0] =
        (gr_safetensors_part){.name = "fc.weight", .values = weight, .dims = 2, .dim = {3, 2}};
    parts[1] = (gr_safetensors_part){.name = "fc.bias", .values = bias, .dims = 1, .dim = {3}};
    parts[2] = (gr_safetensors_part){.name = "a\"q", .values = one, .dims = 0};
}

static void golden_bytes(void **state)
{
    (void)state;
    gr_safetensors_part parts[3];
    gr_diag diag;
    char *data = NULL, *golden = NULL;
    size_t size = 0, golden_size = 0;
    fill_parts(parts);
    assert_int_equal(gr_safetensors_format(parts, 3, &data, &size, &diag), GR_OK);
    assert_int_equal(gr_file_read(GR_TEST_SOURCE_DIR "/tests/train/golden/small.safetensors",
                                  1 << 20, &golden, &golden_size, &diag),
                     GR_OK);
    assert_int_equal(size, golden_size);
    assert_memory_equal(data, golden, size);
    assert_int_equal(gr_get_u64((const uint8_t *)data) % 8, 0);
    free(golden);
    free(data);
}

static void round_trip(void **state)
{
    (void)state;
    gr_safetensors_part parts[3];
    gr_diag diag;
    char path[] = "/tmp/gradus-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    fill_parts(parts);
    assert_int_equal(gr_safetensors_write(path, parts, 3, &diag), GR_OK);
    gr_safetensors *file = NULL;
    assert_int_equal(gr_safetensors_open(path, &file, &diag), GR_OK);
    assert_int_equal(gr_safetensors_count(file), 3);
    const gr_safetensors_entry *entry = gr_safetensors_find(file, "fc.weight");
    assert_non_null(entry);
    assert_string_equal(entry->dtype, "F32");
    assert_int_equal(entry->dims, 2);
    assert_int_equal(entry->dim[0], 3);
    assert_int_equal(entry->dim[1], 2);
    assert_int_equal(entry->count, 6);
    assert_memory_equal(entry->data, weight, sizeof weight);
    assert_memory_equal(gr_safetensors_find(file, "fc.bias")->data, bias, sizeof bias);
    assert_memory_equal(gr_safetensors_find(file, "a\"q")->data, one, sizeof one);
    assert_null(gr_safetensors_find(file, "fc"));
    assert_null(gr_safetensors_at(file, 3));
    assert_string_equal(gr_safetensors_at(file, 0)->name, "a\"q");
    gr_safetensors_close(file);
    unlink(path);
}

static void same_name_is_refused(void **state)
{
    (void)state;
    gr_safetensors_part parts[3];
    gr_diag diag;
    char *data = NULL;
    size_t size = 0;
    fill_parts(parts);
    parts[2].name = "fc.bias";
    assert_int_equal(gr_safetensors_format(parts, 3, &data, &size, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "fc.bias"));
}

/* SHA-256 of the bytes of one, bias, weight in this order (computed with sha256sum). */
static void hash_by_name(void **state)
{
    (void)state;
    gr_safetensors_part parts[3];
    gr_diag diag;
    char text[65], again[65];
    fill_parts(parts);
    assert_int_equal(gr_safetensors_sha256(parts, 3, text, &diag), GR_OK);
    assert_string_equal(text, "964572e2e3c39450d15969240cfde56357ca8aeb9e533ffea43944c255945254");
    gr_safetensors_part swapped[3] = {parts[2], parts[0], parts[1]};
    assert_int_equal(gr_safetensors_sha256(swapped, 3, again, &diag), GR_OK);
    assert_string_equal(text, again);
}

/* Every cut of the golden file is refused, as is a byte too many. */
static void every_length(void **state)
{
    (void)state;
    gr_diag diag;
    char *golden = NULL;
    size_t size = 0;
    assert_int_equal(gr_file_read(GR_TEST_SOURCE_DIR "/tests/train/golden/small.safetensors",
                                  1 << 20, &golden, &size, &diag),
                     GR_OK);
    for (size_t length = 0; length <= size + 1; length++) {
        char *copy = calloc(1, length + 1);
        memcpy(copy, golden, length < size ? length : size);
        gr_safetensors *file = NULL;
        gr_status status = gr_safetensors_parse("cut", copy, length, &file, &diag);
        assert_int_equal(status, length == size ? GR_OK : GR_E_INVALID);
        if (status != GR_OK) {
            assert_memory_equal(diag.text, "cut: ", 5);
            free(copy);
        }
        gr_safetensors_close(file);
    }
    free(golden);
}

typedef struct bad_file {
    const char *header;
    size_t data_bytes;
    const char *says;
} bad_file;

static const bad_file bad_files[] = {
    {"", 0, "no valid JSON"},
    {"{", 0, "no valid JSON"},
    {"[]", 0, "map"},
    {"{\"a\":1}", 0, "must have"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "must have"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "must have"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown type \"F31\""},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "must have"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     "shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "64 bits"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
     "bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "[begin, end]"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "1 values"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0, "truncated"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "belong to none"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, "overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "no valid JSON"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "text"},
    {"{\"__metadata__\":[]}", 0, "map"},
};

static void bad_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const bad_file *bad = &bad_files[i];
        size_t header = strlen(bad->header), size = 8 + header + bad->data_bytes;
        char *data = calloc(1, size + 1);
        gr_put_u64((uint8_t *)data, header);
        memcpy(data + 8, bad->header, header);
        gr_safetensors *file = NULL;
        gr_diag diag = {0};
        gr_status status = gr_safetensors_parse("bad", data, size, &file, &diag);
        if (status != GR_E_INVALID || strstr(diag.text, bad->says) == NULL) {
            fail_msg("%s: status %d, \"%s\" does not say \"%s\"", bad->header, status, diag.text,
                     bad->says);
        }
        free(data);
    }
}

static void huge_header_length(void **state)
{
    (void)state;
    gr_diag diag;
    gr_safetensors *file = NULL;
    char data[16];
    memset(data, 0xff, sizeof data);
    assert_int_equal(gr_safetensors_parse("bad", data, sizeof data, &file, &diag), GR_E_INVALID);
    assert_int_equal(gr_safetensors_open("/tmp/gradus-no-such-file", &file, &diag), GR_E_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),         cmocka_unit_test(round_trip),
        cmocka_unit_test(same_name_is_refused), cmocka_unit_test(hash_by_name),
        cmocka_unit_test(every_length),         cmocka_unit_test(bad_headers),
        cmocka_unit_test(huge_header_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
