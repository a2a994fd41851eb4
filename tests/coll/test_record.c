/* SPDX-License-Identifier: Apache-2.0 */

/* The record of operations as another process reads it: from a file, whole, half written, or not a
 * record at all. */

#include "coll/record.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static gr_record_entry *begin(gr_record *record, uint32_t number, const char *name)
{
    gr_record_entry *entry = gr_record_begin(record);
    uint64_t started = entry->started;
    *entry = (gr_record_entry){.started = started,
                               .number = number,
                               .count = 100,
                               .coll = GR_COLL_ALLREDUCE,
                               .dtype = GR_F32,
                               .op = GR_SUM,
                               .shards = 4,
                               .peer = -1,
                               .status = GR_PENDING};
    gr_record_copy(entry->name, name);
    gr_record_copy(entry->site, "train.c:88");
    gr_record_commit(record);
    return entry;
}

static void end(gr_record_entry *entry, gr_status status)
{
    entry->ended = gr_record_now();
    entry->status = status;
}

typedef struct file {
    int fd;
    char path[64];
    gr_record *record;
    gr_record copy;
} file;

static void open_file(file *f)
{
    char why[128];
    f->fd = memfd_create("record", MFD_CLOEXEC);
    assert_true(f->fd >= 0);
    snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
    f->record = gr_record_create(f->path, why);
    assert_non_null(f->record);
    assert_string_equal(why, "");
}

static void close_file(file *f)
{
    gr_record_destroy(f->record);
    close(f->fd);
}

static void expect_last(file *f, const char *says)
{
    char text[2 * GR_RECORD_TEXT_BYTES];
    assert_int_equal(gr_record_read(f->fd, &f->copy), GR_OK);
    gr_record_last(&f->copy, gr_record_now(), text, sizeof text);
    if (!strstr(text, says)) {
        print_error("%s\n", text);
    }
    assert_non_null(strstr(text, says));
}

static void test_last(void **state)
{
    static file f;
    (void)state;
    open_file(&f);
    assert_int_equal(gr_record_read(f.fd, &f.copy), GR_E_NOT_FOUND);
    for (uint32_t i = 0; i < 3000; i++) {
        end(begin(f.record, i, "grads"), GR_OK);
    }
    expect_last(&f, "between operations, 0.0 s after number 2999, allreduce of 100 f32");
    gr_record_entry *oldest = begin(f.record, 3000, "a");
    begin(f.record, 3001, "b");
    expect_last(&f, "in operation 3000, allreduce of 100 f32 (sum over 4)");
    expect_last(&f, "\"a\" at train.c:88, for 0.0 s");
    end(oldest, GR_OK);
    expect_last(&f, "in operation 3001");
    gr_record_entry *open = begin(f.record, 3002, "c");
    end(&f.record->entries[3001 % GR_RECORD_ENTRIES], GR_OK);
    end(open, GR_E_PEER_LOST);
    expect_last(&f, "after operation 3002, ");
    close_file(&f);
}

static void test_place(void **state)
{
    static file f;
    (void)state;
    open_file(&f);
    gr_record_place place = gr_record_read_place(f.fd);
    assert_true(place.generation == 0 && place.step == 0 && place.operations == 0);
    end(begin(f.record, 0, "grads"), GR_OK);
    gr_record_note(f.record, 3, 0);
    end(begin(f.record, 1, "grads"), GR_OK);
    gr_record_note(f.record, 3, 50);
    place = gr_record_read_place(f.fd);
    assert_true(place.generation == 3 && place.step == 50 && place.operations == 1);
    f.record->magic = 0;
    place = gr_record_read_place(f.fd);
    assert_true(place.generation == 0 && place.step == 0 && place.operations == 0);
    close_file(&f);
}

static void test_caller_of_another_process(void **state)
{
    static file f;
    (void)state;
    open_file(&f);
    gr_record_entry *entry = begin(f.record, 1, NULL);
    entry->site[0] = '\0';
    entry->caller = f.record->program_at + 0x123;
    char wanted[128];
    snprintf(wanted, sizeof wanted, " at %.28s+0x123", program_invocation_short_name);
    expect_last(&f, wanted);
    entry->caller = 16; /* nowhere */
    assert_int_equal(gr_record_read(f.fd, &f.copy), GR_OK);
    assert_int_equal(f.copy.entries[0].caller, 0);
    close_file(&f);
}

static void test_no_file(void **state)
{
    (void)state;
    char why[128];
    gr_record *record = gr_record_create("/nowhere/at/all", why);
    assert_non_null(record); /* it records all the same */
    assert_non_null(strstr(why, "No such file"));
    end(begin(record, 7, "x"), GR_OK);
    assert_non_null(gr_record_find(record, 0, 7));
    gr_record_destroy(record);
    gr_record_destroy(NULL);
}

/* Whatever stands in the file, reading and describing it stays within bounds and prints text. */
static void test_garbage(void **state)
{
    static gr_record written, copy;
    (void)state;
    uint32_t seed = 20261121;
    int fd = memfd_create("record", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(gr_record_read(fd, &copy), GR_E_NOT_FOUND);
    assert_int_equal(pwrite(fd, "short", 5, 0), 5);
    assert_int_equal(gr_record_read(fd, &copy), GR_E_INVALID);
    assert_int_equal(gr_record_read(-1, &copy), GR_E_IO);
    for (int round = 0; round < 200; round++) {
        uint8_t *bytes = (uint8_t *)&written;
        for (size_t i = 0; i < sizeof written; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(seed >> 24);
        }
        assert_int_equal(pwrite(fd, &written, sizeof written, 0), sizeof written);
        assert_int_equal(gr_record_read(fd, &copy), GR_E_INVALID);
        written.magic = GR_RECORD_MAGIC;
        written.version = GR_RECORD_VERSION;
        written.begun = round % 4 == 0 ? (uint64_t)round : written.begun;
        assert_int_equal(pwrite(fd, &written, sizeof written, 0), sizeof written);
        if (gr_record_read(fd, &copy) != GR_OK) {
            assert_int_equal(written.begun, 0);
            continue;
        }
        for (int i = 0; i < GR_RECORD_ENTRIES; i++) {
            char text[GR_RECORD_TEXT_BYTES];
            gr_record_describe(&copy.entries[i], text, sizeof text);
            assert_true(strlen(text) < sizeof text);
            for (const char *at = text; *at; at++) {
                assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
            }
        }
        char last[300];
        gr_record_last(&copy, gr_record_now(), last, sizeof last);
        assert_true(strlen(last) < sizeof last);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_caller_of_another_process),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
