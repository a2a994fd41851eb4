/* SPDX-License-Identifier: Apache-2.0 */

/* Where the job's secret may come from, and where it stays. */

#include "link/secret.h"
#include "sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DIGITS "00112233445566778899aabbccddeeff0123456789abcdef001122334455667"
static const char hex[] = DIGITS "7";

typedef struct place {
    char folder[64], path[96];
} place;

static int make_place(void **state)
{
    place *at = calloc(1, sizeof *at);
    assert_non_null(at);
    snprintf(at->folder, sizeof at->folder, "/tmp/gradus-secret-XXXXXX");
    assert_non_null(mkdtemp(at->folder));
    snprintf(at->path, sizeof at->path, "%s/secret", at->folder);
    *state = at;
    return 0;
}

static int remove_place(void **state)
{
    place *at = *state;
    unlink(at->path);
    rmdir(at->folder);
    free(at);
    return 0;
}

static void put(const place *at, const char *text, mode_t mode)
{
    unlink(at->path);
    FILE *file = fopen(at->path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(at->path, mode), 0);
}

static void expect_refused(const char *path, gr_status status, const char *words)
{
    uint8_t secret[GR_SECRET_BYTES];
    gr_diag diag = {0};
    assert_int_equal(gr_secret_read(path, secret, &diag), status);
    assert_non_null(strstr(diag.text, words));
    assert_non_null(strstr(diag.text, path));
    assert_null(strstr(diag.text, "0011223344")); /* what stands in it is not told */
}

static void test_a_file_of_digits_is_read(void **state)
{
    const place *at = *state;
    static const char *const ends[] = {"", "\n", "\r\n"};
    static const mode_t modes[] = {0600, 0400, 0700};
    uint8_t expected[GR_SECRET_BYTES], secret[GR_SECRET_BYTES];
    char text[80];
    assert_int_equal(gr_unhex(hex, expected, sizeof expected), GR_OK);
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s%s", hex, ends[i]);
        put(at, text, modes[i]);
        memset(secret, 0, sizeof secret);
        assert_int_equal(gr_secret_read(at->path, secret, NULL), GR_OK);
        assert_memory_equal(secret, expected, sizeof secret);
    }
}

static void test_a_file_that_others_may_use_is_refused(void **state)
{
    const place *at = *state;
    static const mode_t modes[] = {0644, 0640, 0604, 0620, 0602, 0610, 0601};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put(at, hex, modes[i]);
        expect_refused(at->path, GR_E_INVALID, "chmod 600");
    }
    if (geteuid() == 0) {
        put(at, hex, 0600);
        assert_int_equal(chown(at->path, 12345, 12345), 0);
        expect_refused(at->path, GR_E_INVALID, "another user (uid 12345)");
    }
}

static void test_what_is_no_secret_is_refused(void **state)
{
    const place *at = *state;
    static const char *const wrong[] = {"",
                                        "\n",
                                        "beef\n",
                                        " " DIGITS "7",
                                        DIGITS "78",
                                        DIGITS "7 0",
                                        DIGITS "7\n" DIGITS "7\n",
                                        "x" DIGITS,
                                        DIGITS};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        put(at, wrong[i], 0600);
        expect_refused(at->path, GR_E_INVALID, "64 hexadecimal digits and nothing else");
    }
    unlink(at->path);
    expect_refused(at->path, GR_E_NOT_FOUND, "cannot read the secret in");
    expect_refused(at->folder, GR_E_INVALID, "no regular file");
    assert_int_equal(mkfifo(at->path, 0600), 0); /* nobody writes: it must not be waited for */
    expect_refused(at->path, GR_E_INVALID, "no regular file");
}

static void test_a_new_file_is_for_this_user_only(void **state)
{
    const place *at = *state;
    uint8_t secret[GR_SECRET_BYTES], back[GR_SECRET_BYTES];
    struct stat info;
    gr_diag diag = {0};
    mode_t before = umask(0);
    assert_int_equal(gr_random_bytes(secret, sizeof secret, NULL), GR_OK);
    assert_int_equal(gr_secret_write(at->path, secret, &diag), GR_OK);
    umask(before);
    assert_int_equal(stat(at->path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(gr_secret_read(at->path, back, &diag), GR_OK);
    assert_memory_equal(secret, back, sizeof secret);
    /* Neither a file that is there nor what a link leads to is written to. */
    assert_int_equal(gr_secret_write(at->path, secret, &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, at->path));
    unlink(at->path);
    assert_int_equal(symlink("elsewhere", at->path), 0);
    assert_int_equal(gr_secret_write(at->path, secret, &diag), GR_E_IO);
}

/* What the kernel says of the memory at an address: "VmFlags:" of /proc/self/smaps. */
static void find_flags(const void *address, char *flags_out, size_t size)
{
    char line[512];
    bool here = false;
    FILE *file = fopen("/proc/self/smaps", "r");
    assert_non_null(file);
    flags_out[0] = '\0';
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            here = (unsigned long)address >= begin && (unsigned long)address < end;
        } else if (here && strncmp(line, "VmFlags:", 8) == 0) {
            snprintf(flags_out, size, "%s", line);
        }
    }
    fclose(file);
}

static void test_what_is_kept_is_in_no_dump_and_no_child(void **state)
{
    static const uint8_t zeros[GR_SECRET_BYTES];
    uint8_t secret[GR_SECRET_BYTES];
    char flags[512];
    (void)state;
    assert_int_equal(gr_unhex(hex, secret, sizeof secret), GR_OK);
    uint8_t *kept = gr_secret_keep(secret);
    assert_non_null(kept);
    assert_memory_equal(kept, secret, sizeof secret);
    find_flags(kept, flags, sizeof flags);
    assert_non_null(strstr(flags, " dd")); /* not in a dump */
    assert_non_null(strstr(flags, " wf")); /* wiped on fork */
    /* Locked; sanitizers lock no memory. */
#if !SANITIZED
    assert_non_null(strstr(flags, " lo"));
#endif
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(memcmp(kept, zeros, sizeof zeros) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_memory_equal(kept, secret, sizeof secret);
    gr_secret_forget(kept);
    gr_secret_forget(NULL);
}

/* The block that the kernel made for us is what /proc shows: a program of our own. */
static int look_at_own_environment(void)
{
    char block[8192];
    gr_secret_clear_environment();
    const char *left = getenv("GRADUS_SECRET"), *other = getenv("GRADUS_SECRET_FILE");
    FILE *file = fopen("/proc/self/environ", "rb");
    size_t size = file != NULL ? fread(block, 1, sizeof block, file) : 0;
    if (size == 0 || left == NULL || left[0] != '\0' || other == NULL ||
        strcmp(other, "kept") != 0) {
        return 1;
    }
    fclose(file);
    return memmem(block, size, "0011223344", 10) == NULL ? 0 : 2;
}

static void test_the_environment_is_cleared(void **state)
{
    (void)state;
    char entry[96];
    snprintf(entry, sizeof entry, "GRADUS_SECRET=%s", hex);
    char *environment[] = {"BEFORE=1", entry, "GRADUS_SECRET_FILE=kept", NULL};
    char *arguments[] = {"test_link_secret", "look", NULL};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execve("/proc/self/exe", arguments, environment);
        _exit(3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "look") == 0) {
        return look_at_own_environment();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_file_of_digits_is_read, make_place, remove_place),
        cmocka_unit_test_setup_teardown(test_a_file_that_others_may_use_is_refused, make_place,
                                        remove_place),
        cmocka_unit_test_setup_teardown(test_what_is_no_secret_is_refused, make_place,
                                        remove_place),
        cmocka_unit_test_setup_teardown(test_a_new_file_is_for_this_user_only, make_place,
                                        remove_place),
        cmocka_unit_test(test_what_is_kept_is_in_no_dump_and_no_child),
        cmocka_unit_test(test_the_environment_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
