/* SPDX-License-Identifier: Apache-2.0 */
/* Whose the exit code of a job is: its launcher's while its supervisor lives, whoever asks next
 * after that. What is left of supervisors that were killed. */
#include "launch/agent/job_folder.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static gr_job_state state_of(const char *name, int *code_out)
{
    gr_job_folder folder;
    gr_job_end end = {.code = -1};
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_OK);
    gr_job_state state = gr_job_folder_state(&folder, &end);
    gr_job_folder_close(&folder);
    *code_out = end.code;
    return state;
}

static void job_folder_keeps_an_end_for_its_launcher(void **state)
{
    (void)state;
    char runtime[] = "/tmp/gradus-test-XXXXXX", path[64], name[GR_JOB_NAME_BYTES];
    assert_non_null(mkdtemp(runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    const gr_job_record record = {
        .start_s = 1, .identity = 2, .run = "run", .command = "gradus run"};
    const gr_job_end end = {
        .code = 7, .end_s = 9, .content = 0xfedcba9876543210, .output = " out/\noutput x "};
    gr_job_end told;
    gr_job_folder folder;
    int listen_fd, code;
    assert_int_equal(gr_job_folder_create(NULL, &record, &folder, &listen_fd, NULL), GR_OK);
    snprintf(name, sizeof name, "%s", folder.name);
    assert_int_equal(state_of(name, &code), GR_JOB_RUNS);
    assert_int_equal(gr_job_folder_write_end(&folder, &end), 0);
    assert_int_equal(state_of(name, &code), GR_JOB_RUNS);
    close(listen_fd);
    gr_job_folder_close(&folder); /* and with it the lock */
    assert_int_equal(state_of(name, &code), GR_JOB_ENDED);
    assert_int_equal(code, 7);
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_OK);
    assert_int_equal(gr_job_folder_state(&folder, &told), GR_JOB_ENDED);
    assert_true(told.content == end.content && told.end_s == 9);
    assert_string_equal(told.output, end.output);
    gr_job_folder_remove(&folder);
    assert_int_equal(gr_job_folder_state(&folder, &(gr_job_end){0}), GR_JOB_LOST);
    gr_job_folder_close(&folder);
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_E_NOT_FOUND);
    snprintf(path, sizeof path, "%s/gradus", runtime);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(runtime), 0);
}

/* What a launcher sees that has found the folder just before, at each moment of its removal. */
static const gr_job_folder *seen;
static int removals, ends_seen, killed_after;

int unlinkat(int folder_fd, const char *name, int flags)
{
    int result = (int)syscall(SYS_unlinkat, folder_fd, name, flags);
    removals++;
    if (seen != NULL) {
        ends_seen += gr_job_folder_state(seen, &(gr_job_end){0}) == GR_JOB_ENDED;
    }
    if (removals == killed_after) {
        (void)raise(SIGKILL);
    }
    return result;
}

static void job_folder_that_is_removed_shows_no_end(void **state)
{
    (void)state;
    char runtime[] = "/tmp/gradus-test-XXXXXX", base[64];
    const gr_job_record record = {.run = "run", .command = "gradus run"};
    const gr_job_end end = {.code = 0};
    gr_job_folder folder, found;
    int listen_fd;
    assert_non_null(mkdtemp(runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    assert_int_equal(gr_job_folder_create(NULL, &record, &folder, &listen_fd, NULL), GR_OK);
    assert_int_equal(gr_job_folder_open(folder.name, &found, NULL), GR_OK);
    assert_int_equal(gr_job_folder_write_end(&folder, &end), 0);
    removals = ends_seen = 0;
    seen = &found;
    gr_job_folder_remove(&folder);
    seen = NULL;
    assert_true(removals > 1);
    assert_int_equal(ends_seen, 0);
    gr_job_folder_close(&found);
    gr_job_folder_close(&folder);
    close(listen_fd);
    snprintf(base, sizeof base, "%s/gradus", runtime);
    assert_int_equal(rmdir(base), 0);
    assert_int_equal(rmdir(runtime), 0);
}

static void job_folder_that_a_killed_one_was_removing_gives_its_name_to_a_new_job(void **state)
{
    (void)state;
    const gr_job_record record = {.run = "run", .command = "gradus run"};
    gr_job_folder folder;
    int listen_fd, status = 0;
    for (int after = 1; after == 1 || WIFSIGNALED(status); after++) {
        char runtime[] = "/tmp/gradus-test-XXXXXX", base[64];
        assert_non_null(mkdtemp(runtime));
        assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
        pid_t pid = fork();
        if (pid == 0) {
            if (gr_job_folder_create("up", &record, &folder, &listen_fd, NULL) != GR_OK) {
                _exit(1);
            }
            removals = 0;
            killed_after = after;
            gr_job_folder_remove(&folder);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        assert_int_equal(gr_job_folder_create("up", &record, &folder, &listen_fd, NULL), GR_OK);
        gr_job_folder_remove(&folder);
        gr_job_folder_close(&folder);
        close(listen_fd);
        snprintf(base, sizeof base, "%s/gradus", runtime);
        assert_int_equal(rmdir(base), 0);
        assert_int_equal(rmdir(runtime), 0);
    }
}

static void make_unfinished(const char *base, int pid, char path_out[64])
{
    char lock[80];
    snprintf(path_out, 64, "%s/.new-%d", base, pid);
    snprintf(lock, sizeof lock, "%s/lock", path_out);
    assert_int_equal(mkdir(path_out, S_IRWXU), 0);
    FILE *file = fopen(lock, "w");
    assert_non_null(file);
    fclose(file);
}

static void job_folder_removes_what_a_killed_supervisor_has_not_finished(void **state)
{
    (void)state;
    char runtime[] = "/tmp/gradus-test-XXXXXX", base[48], dead[64], alive[64], lock[80];
    const gr_job_record record = {.run = "run", .command = "gradus run"};
    gr_job_folder folder;
    int listen_fd;
    assert_non_null(mkdtemp(runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    snprintf(base, sizeof base, "%s/gradus", runtime);
    assert_int_equal(mkdir(base, S_IRWXU), 0);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    make_unfinished(base, (int)pid, dead);
    make_unfinished(base, (int)getppid(), alive);
    assert_int_equal(gr_job_folder_create(NULL, &record, &folder, &listen_fd, NULL), GR_OK);
    assert_int_equal(access(dead, F_OK), -1);
    snprintf(lock, sizeof lock, "%s/lock", alive);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(alive), 0);
    close(listen_fd);
    gr_job_folder_remove(&folder);
    gr_job_folder_close(&folder);
    assert_int_equal(rmdir(base), 0);
    assert_int_equal(rmdir(runtime), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_folder_keeps_an_end_for_its_launcher),
        cmocka_unit_test(job_folder_that_is_removed_shows_no_end),
        cmocka_unit_test(job_folder_that_a_killed_one_was_removing_gives_its_name_to_a_new_job),
        cmocka_unit_test(job_folder_removes_what_a_killed_supervisor_has_not_finished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
