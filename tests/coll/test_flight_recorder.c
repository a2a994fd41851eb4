/* SPDX-License-Identifier: Apache-2.0 */

/* The record of operations as another process reads it: from a file, whole, half written, or not a
 * record at all. */

#include "coll/diagnose/flight_recorder.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* All happens now, however long the processor does something else meanwhile. */
static uint64_t now;

static gr_flight_recorder_entry *begin(gr_flight_recorder *record, uint32_t number,
                                       const char *name)
{
    gr_flight_recorder_entry *entry = gr_flight_recorder_begin(record);
    *entry = (gr_flight_recorder_entry){.started = now,
                                        .number = number,
                                        .count = 100,
                                        .coll = GR_COLL_ALLREDUCE,
                                        .dtype = GR_F32,
                                        .op = GR_SUM,
                                        .shards = 4,
                                        .peer = -1,
                                        .status = GR_PENDING};
    gr_flight_recorder_copy(entry->name, name);
    gr_flight_recorder_copy(entry->site, "train.c:88");
    gr_flight_recorder_commit(record);
    return entry;
}

static void end(gr_flight_recorder_entry *entry, gr_status status)
{
    entry->ended = now;
    entry->status = status;
}

typedef struct file {
    int fd;
    char path[64];
    gr_flight_recorder *record;
    gr_flight_recorder copy;
} file;

static void open_file(file *f)
{
    char why[128];
    f->fd = memfd_create("record", MFD_CLOEXEC);
    assert_true(f->fd >= 0);
    snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
    f->record = gr_flight_recorder_create(f->path, why);
    assert_non_null(f->record);
    assert_string_equal(why, "");
    now = gr_flight_recorder_now();
}

static void close_file(file *f)
{
    gr_flight_recorder_destroy(f->record);
    close(f->fd);
}

static void expect_last(file *f, const char *says)
{
    char text[2 * GR_FLIGHT_RECORDER_TEXT_BYTES];
    assert_int_equal(gr_flight_recorder_read(f->fd, &f->copy), GR_OK);
    gr_flight_recorder_last(&f->copy, now, text, sizeof text);
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
    assert_int_equal(gr_flight_recorder_read(f.fd, &f.copy), GR_E_NOT_FOUND);
    for (uint32_t i = 0; i < 3000; i++) {
        end(begin(f.record, i, "grads"), GR_OK);
    }
    expect_last(&f, "between operations, 0.0 s after operation 3000, allreduce of 100 f32");
    gr_flight_recorder_entry *oldest = begin(f.record, 3000, "a");
    begin(f.record, 3001, "b");
    expect_last(&f, "in operation 3001, allreduce of 100 f32 (sum over 4)");
    expect_last(&f, "\"a\" at train.c:88, for 0.0 s");
    end(oldest, GR_OK);
    expect_last(&f, "in operation 3002");
    gr_flight_recorder_entry *open = begin(f.record, 3002, "c");
    end(&f.record->entries[3001 % GR_FLIGHT_RECORDER_ENTRIES], GR_OK);
    end(open, GR_E_PEER_LOST);
    expect_last(&f, "after operation 3003, ");
    close_file(&f);
}

/* In a child with a file system of its own, which is full: 0: as it must be; 77: not permitted. */
static int record_on_a_full_disk(const char *folder)
{
    char path[96], why[128];
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", 0, "size=64k") != 0) {
        return 77;
    }
    snprintf(path, sizeof path, "%s/record", folder);
    gr_flight_recorder *record = gr_flight_recorder_create(path, why);
    if (!record || !strstr(why, strerror(ENOSPC))) {
        return 1;
    }
    for (uint32_t i = 0; i < 2 * GR_FLIGHT_RECORDER_ENTRIES; i++) {
        end(begin(record, i, "grads"), GR_OK);
    }
    gr_flight_recorder_destroy(record);
    return 0;
}

static void flight_recorder_on_a_full_disk_stays_in_memory(void **state)
{
    char folder[] = "/tmp/gradus-record-XXXXXX";
    int how = 0;
    (void)state;
    assert_non_null(mkdtemp(folder));
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(record_on_a_full_disk(folder));
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(rmdir(folder), 0);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 77) {
        skip(); /* file systems may not be mounted here */
    }
    assert_int_equal(how, 0);
}

static void test_place(void **state)
{
    static file f;
    (void)state;
    open_file(&f);
    gr_flight_recorder_place place = gr_flight_recorder_read_place(f.fd);
    assert_true(place.generation == 0 && place.step == 0 && place.operations == 0);
    end(begin(f.record, 0, "grads"), GR_OK);
    gr_flight_recorder_note(f.record, 3, 0);
    end(begin(f.record, 1, "grads"), GR_OK);
    gr_flight_recorder_note(f.record, 3, 50);
    place = gr_flight_recorder_read_place(f.fd);
    assert_true(place.generation == 3 && place.step == 50 && place.operations == 1);
    f.record->magic = 0;
    place = gr_flight_recorder_read_place(f.fd);
    assert_true(place.generation == 0 && place.step == 0 && place.operations == 0);
    close_file(&f);
}

static void test_caller_of_another_process(void **state)
{
    static file f;
    (void)state;
    open_file(&f);
    gr_flight_recorder_entry *entry = begin(f.record, 1, NULL);
    entry->site[0] = '\0';
    entry->caller = f.record->program_at + 0x123;
    char wanted[128];
    snprintf(wanted, sizeof wanted, " at %.28s+0x123", program_invocation_short_name);
    expect_last(&f, wanted);
    entry->caller = 16; /* nowhere */
    assert_int_equal(gr_flight_recorder_read(f.fd, &f.copy), GR_OK);
    assert_int_equal(f.copy.entries[0].caller, 0);
    close_file(&f);
}

static void test_no_file(void **state)
{
    (void)state;
    char why[128];
    gr_flight_recorder *record = gr_flight_recorder_create("/nowhere/at/all", why);
    assert_non_null(record); /* it records all the same */
    assert_non_null(strstr(why, "No such file"));
    end(begin(record, 7, "x"), GR_OK);
    assert_non_null(gr_flight_recorder_find(record, 0, 7));
    gr_flight_recorder_destroy(record);
    gr_flight_recorder_destroy(NULL);
}

/* Whatever stands in the file, reading and describing it stays within bounds and prints text. */
static void test_garbage(void **state)
{
    static gr_flight_recorder written, copy;
    (void)state;
    uint32_t seed = 20261121;
    int fd = memfd_create("record", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(gr_flight_recorder_read(fd, &copy), GR_E_NOT_FOUND);
    assert_int_equal(pwrite(fd, "short", 5, 0), 5);
    assert_int_equal(gr_flight_recorder_read(fd, &copy), GR_E_INVALID);
    assert_int_equal(gr_flight_recorder_read(-1, &copy), GR_E_IO);
    for (int round = 0; round < 200; round++) {
        uint8_t *bytes = (uint8_t *)&written;
        for (size_t i = 0; i < sizeof written; i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(seed >> 24);
        }
        assert_int_equal(pwrite(fd, &written, sizeof written, 0), sizeof written);
        assert_int_equal(gr_flight_recorder_read(fd, &copy), GR_E_INVALID);
        written.magic = GR_FLIGHT_RECORDER_MAGIC;
        written.version = GR_FLIGHT_RECORDER_VERSION;
        written.begun = round % 4 == 0 ? (uint64_t)round : written.begun;
        assert_int_equal(pwrite(fd, &written, sizeof written, 0), sizeof written);
        if (gr_flight_recorder_read(fd, &copy) != GR_OK) {
            assert_int_equal(written.begun, 0);
            continue;
        }
        for (int i = 0; i < GR_FLIGHT_RECORDER_ENTRIES; i++) {
            char text[GR_FLIGHT_RECORDER_TEXT_BYTES];
            gr_flight_recorder_describe(&copy.entries[i], text, sizeof text);
            assert_true(strlen(text) < sizeof text);
            for (const char *at = text; *at; at++) {
                assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
            }
        }
        char last[300];
        gr_flight_recorder_last(&copy, gr_flight_recorder_now(), last, sizeof last);
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
        cmocka_unit_test(flight_recorder_on_a_full_disk_stays_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
