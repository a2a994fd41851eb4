/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include "data/input_stream.h"
#include "data/record_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SAMPLE_BYTES = 300000 };

static uint8_t *sample_bytes(void)
{
    uint8_t *data = malloc(SAMPLE_BYTES);
    assert_non_null(data);
    uint32_t x = 1;
    for (size_t i = 0; i < SAMPLE_BYTES; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (uint8_t)(x >> 28);
    }
    return data;
}

static void read_all(gr_input_stream *source, const uint8_t *expected, size_t size, size_t piece)
{
    uint8_t *buffer = malloc(piece);
    assert_non_null(buffer);
    size_t done = 0, got;
    do {
        assert_int_equal(gr_input_stream_read(source, buffer, piece, &got, NULL), GR_OK);
        assert_true(done + got <= size);
        assert_memory_equal(buffer, expected + done, got);
        done += got;
    } while (got == piece);
    assert_int_equal(done, size);
    free(buffer);
}

static void test_plain_and_gzip(void **state)
{
    uint8_t *data = sample_bytes();
    char plain[300], packed[300];
    file_put(state, "a", data, SAMPLE_BYTES, plain);
    file_put_gzip(state, "b", data, SAMPLE_BYTES, packed);
    static const size_t pieces[] = {777, 65536, 1 << 20};
    for (size_t i = 0; i < 3; i++) {
        for (int kind = 0; kind < 2; kind++) {
            gr_input_stream *source;
            uint64_t size = 0;
            gr_diag diag;
            assert_int_equal(gr_input_stream_open(kind ? packed : plain, &source, &diag), GR_OK);
            assert_int_equal(gr_input_stream_seekable(source, &size) >= 0, !kind);
            assert_int_equal(size, kind ? 0 : SAMPLE_BYTES);
            read_all(source, data, SAMPLE_BYTES, pieces[i]);
            gr_input_stream_close(source);
        }
    }
    free(data);
}

/* gzip files may be concatenated. */
static void test_two_members(void **state)
{
    uint8_t *data = sample_bytes();
    char path[300];
    file_put_gzip(state, "two.gz", data, 1000, path);
    gzFile file = gzopen(path, "ab");
    assert_int_equal(gzwrite(file, data + 1000, SAMPLE_BYTES - 1000), SAMPLE_BYTES - 1000);
    gzclose(file);
    gr_input_stream *source;
    assert_int_equal(gr_input_stream_open(path, &source, NULL), GR_OK);
    read_all(source, data, SAMPLE_BYTES, 4096);
    gr_input_stream_close(source);
    free(data);
}

static gr_status drain(gr_input_stream *source, gr_diag *diag)
{
    uint8_t buffer[4096];
    size_t got;
    gr_status status;
    do {
        status = gr_input_stream_read(source, buffer, sizeof buffer, &got, diag);
    } while (status == GR_OK && got > 0);
    return status;
}

/* Tapes and block devices fill the last block with zeros, and gunzip takes no offence. */
static void input_stream_of_gzip_with_zero_padding_ends_with_the_data(void **state)
{
    uint8_t *data = sample_bytes();
    static const uint8_t zeros[100000];
    char path[300];
    file_put_gzip(state, "padded.gz", data, 5000, path);
    FILE *file = fopen(path, "ab");
    assert_int_equal(fwrite(zeros, 1, sizeof zeros, file), sizeof zeros);
    fclose(file);
    gr_input_stream *source;
    gr_diag diag;
    assert_int_equal(gr_input_stream_open(path, &source, NULL), GR_OK);
    read_all(source, data, 5000, 4096);
    assert_int_equal(drain(source, &diag), GR_OK);
    gr_input_stream_close(source);
    free(data);
}

/* Cut anywhere, a packed file says so; with a wrong byte anywhere it is never taken for sound. */
static void test_damaged_gzip(void **state)
{
    uint8_t *data = sample_bytes();
    char path[300];
    file_put_gzip(state, "c", data, 5000, path);
    uint8_t packed[8000];
    FILE *file = fopen(path, "rb");
    size_t size = fread(packed, 1, sizeof packed, file);
    fclose(file);
    gr_diag diag;
    gr_input_stream *source;
    for (size_t cut = 2; cut < size; cut++) {
        assert_int_equal(gr_input_stream_open_memory("c.gz", packed, cut, &source, &diag), GR_OK);
        assert_int_equal(drain(source, &diag), GR_E_INVALID);
        assert_non_null(strstr(diag.text, "c.gz: the gzip data ends in the middle"));
        gr_input_stream_close(source);
    }
    for (size_t at = 10; at < size; at += 7) { /* behind the header, whose flags may be free */
        packed[at] ^= 0x10;
        assert_int_equal(gr_input_stream_open_memory("c.gz", packed, size, &source, &diag), GR_OK);
        assert_int_equal(drain(source, &diag), GR_E_INVALID);
        gr_input_stream_close(source);
        packed[at] ^= 0x10;
    }
    packed[size] = 'x';
    assert_int_equal(gr_input_stream_open_memory("c.gz", packed, size + 1, &source, &diag), GR_OK);
    assert_int_equal(drain(source, &diag), GR_E_INVALID);
    gr_input_stream_close(source);
    free(data);
}

static void test_no_file(void **state)
{
    gr_input_stream *source = NULL;
    gr_diag diag;
    char path[300];
    snprintf(path, sizeof path, "%s/none", (const char *)*state);
    assert_int_equal(gr_input_stream_open(path, &source, &diag), GR_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "there is no such file"));
    assert_int_equal(gr_input_stream_open(*state, &source, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "is a folder"));
    snprintf(path, sizeof path, "%s/pipe", (const char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gr_input_stream_open(path, &source, &diag),
                     GR_E_INVALID); /* and does not wait */
    assert_null(source);
}

static void check_record_cache(uint64_t memory_max, bool in_memory)
{
    gr_record_cache *cache;
    uint8_t record[100], back[100];
    assert_int_equal(gr_record_cache_create("x", sizeof record, memory_max, &cache, NULL), GR_OK);
    for (int i = 0; i < 20000; i++) {
        memset(record, i % 251, sizeof record);
        assert_int_equal(gr_record_cache_append(cache, record, NULL), GR_OK);
    }
    assert_int_equal(gr_record_cache_seal(cache, NULL), GR_OK);
    assert_string_equal(gr_record_cache_kept(cache),
                        in_memory ? "in memory" : "in a temporary file");
    for (int i = 19999; i >= 0; i -= 13) {
        assert_int_equal(gr_record_cache_get(cache, (uint64_t)i, 10, 90, back, NULL), GR_OK);
        memset(record, i % 251, sizeof record);
        assert_memory_equal(back, record, 90);
    }
    gr_record_cache_destroy(cache);
}

static void record_cache_gives_back_what_was_appended(void **state)
{
    (void)state;
    check_record_cache(2000000, true);
    check_record_cache(1999999, false);
    check_record_cache(0, false);
}

/* No room for the temporary file: a sentence that says what to do. */
static void record_cache_without_room_fails(void **state)
{
    (void)state;
    const char *before = getenv("TMPDIR");
    char *kept = before != NULL ? strdup(before) : NULL;
    setenv("TMPDIR", "/nonexistent/folder", 1);
    gr_record_cache *cache;
    gr_diag diag;
    assert_int_equal(gr_record_cache_create("big.csv.gz", 8, 8, &cache, &diag), GR_OK);
    assert_int_equal(gr_record_cache_append(cache, "12345678", &diag), GR_OK);
    assert_int_equal(gr_record_cache_append(cache, "12345678", &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, "big.csv.gz"));
    assert_non_null(strstr(diag.text, "set TMPDIR"));
    gr_record_cache_destroy(cache);
    if (kept != NULL) {
        setenv("TMPDIR", kept, 1);
        free(kept);
    } else {
        unsetenv("TMPDIR");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_gzip),
        cmocka_unit_test(test_two_members),
        cmocka_unit_test(test_damaged_gzip),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(input_stream_of_gzip_with_zero_padding_ends_with_the_data),
        cmocka_unit_test(record_cache_gives_back_what_was_appended),
        cmocka_unit_test(record_cache_without_room_fails)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
