/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/file.h"
#include "support_base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SYNCED_MAX = 16 };

static ino_t synced[SYNCED_MAX]; /* what fsync was called for */
static int synced_count;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    struct stat info;
    if (fstat(fd, &info) == 0 && synced_count < SYNCED_MAX) {
        synced[synced_count++] = info.st_ino;
    }
    return __real_fsync(fd);
}

static bool has_links = true;

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);

int __wrap_link(const char *from, const char *to)
{
    errno = EPERM;
    return has_links ? __real_link(from, to) : -1;
}

static bool was_synced(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (int i = 0; i < synced_count; i++) {
        if (synced[i] == info.st_ino) {
            return true;
        }
    }
    return false;
}

static int count_entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

static void file_after_replace_is_read_back(void **state)
{
    char path[PATH_MAX];
    support_path(*state, "weights", path);
    gr_diag diag;
    char *data = NULL;
    size_t size = 0;
    assert_int_equal(gr_file_replace(path, "a\0b", 3, &diag), GR_OK);
    assert_int_equal(gr_file_read(path, 3, &data, &size, &diag), GR_OK);
    assert_int_equal(size, 3);
    assert_memory_equal(data, "a\0b", 4);
    free(data);

    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(gr_file_replace(path, "", 0, &diag), GR_OK);
    assert_int_equal(gr_file_read(path, 0, &data, &size, &diag), GR_OK);
    assert_int_equal(size, 0);
    assert_int_equal(data[0], '\0');
    free(data);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* private stays private */
    assert_int_equal(count_entries(*state), 1);  /* nothing left beside it */
}

static void file_that_cannot_be_read_is_explained(void **state)
{
    char path[PATH_MAX];
    char expected[PATH_MAX + 128];
    gr_diag diag;
    char *data = NULL;
    size_t size = 0;
    support_path(*state, "absent", path);
    assert_int_equal(gr_file_read(path, 10, &data, &size, &diag), GR_E_NOT_FOUND);
    snprintf(expected, sizeof expected, "cannot open %s: No such file or directory; check the path",
             path);
    assert_string_equal(diag.text, expected);
    assert_int_equal(gr_file_read(*state, 10, &data, &size, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "is a folder"));
    support_path(*state, "big", path);
    assert_int_equal(gr_file_replace(path, "12345", 5, &diag), GR_OK);
    assert_int_equal(gr_file_read(path, 4, &data, &size, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "is larger than the limit of 4 bytes"));
    assert_null(data);
}

/* A file that tells no size: all of it is read, and the limit holds. */
static void file_of_unknown_size_is_read_whole(void **state)
{
    (void)state;
    gr_diag diag;
    char *data = NULL;
    size_t size = 0;
    assert_int_equal(gr_file_read("/proc/self/status", 1 << 20, &data, &size, &diag), GR_OK);
    assert_true(size > 100);
    assert_int_equal(strlen(data), size);
    free(data);
    assert_int_equal(gr_file_read("/proc/self/status", 100, &data, &size, &diag), GR_E_INVALID);
    assert_int_equal(gr_file_read("/dev/zero", 100000, &data, &size, &diag), GR_E_INVALID);
}

typedef struct new_file {
    const char *path;
    gr_status status;
} new_file;

static gr_status write_new(void *arg, int fd, gr_diag *diag)
{
    const new_file *file = arg;
    assert_int_not_equal(access(file->path, F_OK), 0); /* a killed process leaves no part of it */
    assert_int_equal(write(fd, "new", 3), 3);
    return file->status == GR_OK ? GR_OK : gr_fail(diag, file->status, "not now");
}

static void make_and_keep(const char *folder)
{
    char path[PATH_MAX];
    support_path(folder, "new.txt", path);
    gr_diag diag = {0};
    new_file file = {path, GR_E_IO};
    assert_int_equal(gr_file_make_by(path, write_new, &file, &diag), GR_E_IO);
    assert_string_equal(diag.text, "not now");
    assert_int_equal(count_entries(folder), 0);
    file.status = GR_OK;
    assert_int_equal(gr_file_make_by(path, write_new, &file, &diag), GR_OK);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_size, 3);
    assert_int_equal(count_entries(folder), 1);

    assert_int_equal(gr_file_replace(path, "another", 7, &diag), GR_OK);
    file.path = "/no/such/file";
    assert_int_equal(gr_file_make_by(path, write_new, &file, &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, "File exists"));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 7);
    assert_int_equal(count_entries(folder), 1);
}

static void a_new_file_is_there_whole_or_not_at_all(void **state)
{
    make_and_keep(*state);
}

static void a_new_file_needs_no_links(void **state)
{
    has_links = false;
    make_and_keep(*state);
    has_links = true;
}

static void file_replace_that_fails_leaves_the_old_file(void **state)
{
    char path[PATH_MAX];
    support_path(*state, "weights", path);
    gr_diag diag;
    char *data = NULL;
    size_t size = 0;
    assert_int_equal(gr_file_replace(path, "old", 3, &diag), GR_OK);

    /* No room: the limit on the size of files stands in for a full disk. */
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
    static const char large[5000];
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    gr_status status = gr_file_replace(path, large, sizeof large, &diag);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, GR_E_IO);
    assert_non_null(strstr(diag.text, "File too large"));

    assert_int_equal(gr_file_read(path, 10, &data, &size, &diag), GR_OK);
    assert_string_equal(data, "old");
    free(data);
    assert_int_equal(count_entries(*state), 1);

    support_path(*state, "no/such/folder", path);
    assert_int_equal(gr_file_replace(path, "x", 1, &diag), GR_E_NOT_FOUND);
    assert_int_equal(gr_file_replace(*state, "x", 1, &diag), GR_E_IO);
}

static void fifo_takes_the_bytes_and_stays(void **state)
{
    char path[PATH_MAX], byte = 0;
    struct stat is;
    gr_diag diag;
    support_path(*state, "fifo", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(gr_file_replace(path, "x", 1, &diag), GR_OK);
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    assert_true(lstat(path, &is) == 0 && S_ISFIFO(is.st_mode));
    close(fd);
}

/* A file that somebody else has written into, as by ">> log". */
static void file_of_an_own_descriptor_is_written_on(void **state)
{
    static const char *const folders[] = {"/dev/fd", "/proc/self/fd", NULL}; /* NULL: by a link */
    char path[PATH_MAX], link_path[PATH_MAX], name[64];
    gr_diag diag = {0};
    support_path(*state, "log", path);
    support_path(*state, "link", link_path);
    for (int appends = 0; appends < 2; appends++) {
        for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
            char *data;
            size_t size;
            int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | (appends ? O_APPEND : 0), 0600);
            assert_true(fd >= 0);
            assert_int_equal(write(fd, "before ", 7), 7);
            snprintf(name, sizeof name, "%s/%d", folders[i] ? folders[i] : folders[0], fd);
            (void)unlink(link_path);
            assert_int_equal(symlink(name, link_path), 0);
            assert_int_equal(gr_file_replace(folders[i] ? name : link_path, "now ", 4, &diag),
                             GR_OK);
            assert_int_equal(write(fd, "behind", 6), 6);
            close(fd);
            assert_int_equal(gr_file_read(path, 100, &data, &size, &diag), GR_OK);
            assert_string_equal(data, "before now behind");
            free(data);
        }
    }
    assert_int_equal(count_entries(*state), 2);
}

static void file_of_the_longest_name_is_replaced(void **state)
{
    char path[PATH_MAX], name[NAME_MAX + 1];
    gr_diag diag = {0};
    for (int size = 230; size <= NAME_MAX; size++) {
        char *data;
        size_t got;
        memset(name, 0, sizeof name);
        for (int i = 0; i < size; i++) { /* characters of two bytes, cut at either */
            name[i] = (size - i) % 2 == 0 ? '\xc3' : i == 0 ? 'x' : '\xa4';
        }
        support_path(*state, name, path);
        for (int round = 0; round < 2; round++) { /* new, and there already */
            assert_int_equal(gr_file_replace(path, "x", 1, &diag), GR_OK);
        }
        assert_int_equal(gr_file_read(path, 1, &data, &got, &diag), GR_OK);
        assert_int_equal(got, 1);
        free(data);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(count_entries(*state), 0);
}

static void file_in_an_unwritable_folder_is_refused_with_its_name(void **state)
{
    (void)state;
    gr_diag diag;
    assert_int_equal(gr_file_replace("/proc/gradus-test", "x", 1, &diag), GR_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "cannot write /proc/gradus-test: "));
}

static void dir_create_without_parents_creates_them(void **state)
{
    char path[PATH_MAX];
    gr_diag diag;
    struct stat info;
    support_path(*state, "a/b//c/", path);
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    support_path(*state, "file", path);
    assert_int_equal(gr_file_replace(path, "x", 1, &diag), GR_OK);
    assert_int_equal(gr_dir_create(path, &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, "is no folder"));
    support_path(*state, "file/below", path);
    assert_int_equal(gr_dir_create(path, &diag), GR_E_IO);
    assert_int_equal(gr_dir_create("", &diag), GR_E_INVALID);
    assert_int_equal(gr_dir_create("/", &diag), GR_OK);
}

static void path_beside_a_file_is_in_its_folder(void **state)
{
    (void)state;
    static const char *const cases[][3] = {{"jobs/a.yaml", "data.csv", "jobs/data.csv"},
                                           {"a.yaml", "data.csv", "data.csv"},
                                           {"jobs/a.yaml", "/x/data.csv", "/x/data.csv"},
                                           {"/a.yaml", "data.csv", "/data.csv"},
                                           {"jobs/a.yaml", "../d", "jobs/../d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = gr_path_beside(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        free(path);
    }
}

static void path_join_beyond_the_room_names_the_folder(void **state)
{
    (void)state;
    char path[8];
    gr_diag diag;
    assert_int_equal(gr_path_join("abc", "def", path, sizeof path, &diag), GR_OK);
    assert_string_equal(path, "abc/def");
    assert_int_equal(gr_path_join("abcd", "def", path, sizeof path, &diag), GR_E_INVALID);
    assert_string_equal(diag.text, "abcd: the name of the folder is too long");
}

static void folder_that_is_new_is_durable_in_its_parent(void **state)
{
    char top[PATH_MAX], path[PATH_MAX];
    gr_diag diag;
    support_path(*state, "new", top);
    support_path(*state, "new/in/it", path);
    synced_count = 0;
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    assert_true(was_synced(*state));
    assert_true(was_synced(top));
    support_path(*state, "new/in", path);
    assert_true(was_synced(path));
    synced_count = 0;
    assert_int_equal(gr_dir_create(path, &diag), GR_OK);
    assert_int_equal(synced_count, 0); /* nothing is new */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_after_replace_is_read_back, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test_setup_teardown(file_that_cannot_be_read_is_explained, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test(file_of_unknown_size_is_read_whole),
        cmocka_unit_test_setup_teardown(a_new_file_is_there_whole_or_not_at_all,
                                        support_setup_folder, support_teardown_folder),
        cmocka_unit_test_setup_teardown(a_new_file_needs_no_links, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test_setup_teardown(file_replace_that_fails_leaves_the_old_file,
                                        support_setup_folder, support_teardown_folder),
        cmocka_unit_test_setup_teardown(fifo_takes_the_bytes_and_stays, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test_setup_teardown(file_of_an_own_descriptor_is_written_on,
                                        support_setup_folder, support_teardown_folder),
        cmocka_unit_test_setup_teardown(file_of_the_longest_name_is_replaced, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test(file_in_an_unwritable_folder_is_refused_with_its_name),
        cmocka_unit_test_setup_teardown(dir_create_without_parents_creates_them,
                                        support_setup_folder, support_teardown_folder),
        cmocka_unit_test_setup_teardown(folder_that_is_new_is_durable_in_its_parent,
                                        support_setup_folder, support_teardown_folder),
        cmocka_unit_test(path_beside_a_file_is_in_its_folder),
        cmocka_unit_test(path_join_beyond_the_room_names_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
