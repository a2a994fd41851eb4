/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/output_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    char path[64];
    int folder_fd;
    gr_output_log *log;
} fixture;

static const uint64_t begin[GR_JOB_STREAMS];

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    gr_diag diag;
    snprintf(f->path, sizeof f->path, "/tmp/gr-output-log-XXXXXX");
    if (mkdtemp(f->path) == NULL) {
        return -1;
    }
    f->folder_fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = f;
    return gr_output_log_create(f->folder_fd, &f->log, &diag) == GR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    gr_output_log_destroy(f->log);
    (void)unlinkat(f->folder_fd, "output", 0);
    (void)unlinkat(f->folder_fd, "output.old", 0);
    close(f->folder_fd);
    (void)rmdir(f->path);
    free(f);
    return 0;
}

static void put(const fixture *f, int stream, const char *text)
{
    gr_output_log_put(f->log, stream, text, strlen(text));
}

static void expect(gr_output_reader *reader, int stream, const char *text)
{
    char data[GR_OUTPUT_RECORD_BYTES];
    int from = -1;
    assert_int_equal(gr_output_reader_next(reader, &from, data), strlen(text));
    assert_int_equal(from, stream);
    assert_memory_equal(data, text, strlen(text));
}

static void expect_nothing(gr_output_reader *reader)
{
    char data[GR_OUTPUT_RECORD_BYTES];
    int from;
    assert_int_equal(gr_output_reader_next(reader, &from, data), 0);
}

static void log_two_streams_are_read_in_their_order(void **state)
{
    const fixture *f = *state;
    gr_output_reader reader;
    put(f, 0, "one ");
    put(f, 0, "two");
    put(f, 1, "err");
    put(f, 0, "three");
    gr_output_log_flush(f->log);
    assert_int_equal(gr_output_log_total(f->log, 0), 12);
    assert_int_equal(gr_output_log_total(f->log, 1), 3);
    gr_output_reader_open(&reader, f->folder_fd, begin);
    expect(&reader, 0, "one two");
    expect(&reader, 1, "err");
    expect(&reader, 0, "three");
    expect_nothing(&reader);
    put(f, 1, "later");
    gr_output_log_flush(f->log);
    expect(&reader, 1, "later");
    assert_int_equal(reader.missing, 0);
    gr_output_reader_close(&reader);
}

static void log_what_was_delivered_is_not_read_again(void **state)
{
    const fixture *f = *state;
    const uint64_t from[GR_JOB_STREAMS] = {5, 3};
    gr_output_reader reader;
    put(f, 0, "one two");
    put(f, 1, "err");
    put(f, 0, "three");
    gr_output_log_flush(f->log);
    gr_output_reader_open(&reader, f->folder_fd, from);
    expect(&reader, 0, "wo");
    expect(&reader, 0, "three");
    expect_nothing(&reader);
    gr_output_reader_close(&reader);
}

/* Numbered records of 1,000 bytes. */
static void put_number(const fixture *f, int number)
{
    char text[1001];
    snprintf(text, sizeof text, "%01000d", number);
    put(f, 0, text);
    gr_output_log_flush(f->log);
}

/* The number of the next record; -1: there is none. */
static int next_number(gr_output_reader *reader)
{
    char data[GR_OUTPUT_RECORD_BYTES];
    int stream;
    size_t size = gr_output_reader_next(reader, &stream, data);
    if (size == 0) {
        return -1;
    }
    assert_int_equal(size, 1000);
    data[size] = '\0';
    return atoi(data);
}

static void log_reader_that_keeps_up_sees_all_over_many_files(void **state)
{
    const fixture *f = *state;
    enum { RECORDS = 3 * GR_OUTPUT_FILE_BYTES / 1000 };
    gr_output_reader reader;
    gr_output_reader_open(&reader, f->folder_fd, begin);
    for (int i = 0; i < RECORDS; i++) {
        put_number(f, i);
        assert_int_equal(next_number(&reader), i);
    }
    assert_int_equal(next_number(&reader), -1);
    assert_int_equal(reader.missing, 0);
    gr_output_reader_close(&reader);
}

static void log_reader_that_is_late_gets_the_last_and_a_count(void **state)
{
    const fixture *f = *state;
    enum { RECORDS = 4 * GR_OUTPUT_FILE_BYTES / 1000 };
    gr_output_reader late, early;
    put_number(f, 0);
    gr_output_reader_open(&early, f->folder_fd, begin);
    for (int i = 1; i < RECORDS; i++) {
        put_number(f, i);
    }
    gr_output_reader_open(&late, f->folder_fd, begin);
    int first = next_number(&late), last = first;
    assert_int_equal(late.missing, (uint64_t)first * 1000);
    for (int number; (number = next_number(&late)) >= 0; last = number) {
        assert_int_equal(number, last + 1);
    }
    assert_int_equal(last, RECORDS - 1);
    assert_true((last - first + 1) * 1016 > GR_OUTPUT_FILE_BYTES); /* with their heads */
    /* The other one still has its own file, and then what is left. */
    int count = 0;
    last = -1;
    for (int number; (number = next_number(&early)) >= 0; last = number) {
        assert_true(number > last);
        count++;
    }
    assert_int_equal(last, RECORDS - 1);
    assert_int_equal(early.missing, (uint64_t)(RECORDS - count) * 1000);
    gr_output_reader_close(&late);
    gr_output_reader_close(&early);
}

static void log_record_that_is_half_there_is_not_read(void **state)
{
    const fixture *f = *state;
    gr_output_reader reader;
    put(f, 0, "whole");
    put(f, 1, "half of this");
    gr_output_log_flush(f->log);
    int fd = openat(f->folder_fd, "output", O_RDWR | O_CLOEXEC);
    off_t size = lseek(fd, 0, SEEK_END);
    assert_int_equal(ftruncate(fd, size - 3), 0);
    gr_output_reader_open(&reader, f->folder_fd, begin);
    expect(&reader, 0, "whole");
    expect_nothing(&reader);
    assert_int_equal(pwrite(fd, "his", 3, size - 3), 3);
    expect(&reader, 1, "half of this");
    close(fd);
    gr_output_reader_close(&reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(log_two_streams_are_read_in_their_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(log_what_was_delivered_is_not_read_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(log_reader_that_keeps_up_sees_all_over_many_files, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(log_reader_that_is_late_gets_the_last_and_a_count, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(log_record_that_is_half_there_is_not_read, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
