/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/spawn.h"

#include "launch/process_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 4096 };

/* Runs a command and returns all that it writes to stdout; its wait status in *status_out. */
static void run_command(char *const *argv, const gr_cores *cores, int *status_out, char *text_out)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(null_fd >= 0);
    gr_spawn spawn = {.argv = argv,
                      .environment = environ,
                      .stdin_fd = null_fd,
                      .stdout_fd = ends[1],
                      .stderr_fd = null_fd,
                      .cores = cores};
    gr_spawn_error error;
    pid_t pid = gr_spawn_start(&spawn, &error);
    assert_true(pid > 0);
    assert_int_equal(error.step, 0);
    close(ends[1]);
    close(null_fd);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], text_out + used, TEXT_BYTES - 1 - used)) > 0;) {
        used += (size_t)got;
    }
    text_out[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, status_out, 0), pid);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static void a_program_runs_in_a_group_of_its_own(void **state)
{
    (void)state;
    int before = open_descriptors();
    int stray = open("/dev/null", O_RDONLY); /* without CLOEXEC */
    char *const argv[] = {"sh", "-c",
                          "set -- $(cat /proc/$$/stat); [ $5 = $$ ] && echo group; "
                          "for fd in 0 1 2 3 4 5 6 7 8 9; do "
                          "readlink /proc/self/fd/$fd >/dev/null && echo $fd; done; exit 7",
                          NULL};
    char text[TEXT_BYTES];
    int status;
    run_command(argv, NULL, &status, text);
    assert_string_equal(text, "group\n0\n1\n2\n");
    assert_int_equal(WEXITSTATUS(status), 7);
    close(stray);
    assert_int_equal(open_descriptors(), before);
}

static void stdin_is_the_document_for_each_reader(void **state)
{
    (void)state;
    char text[TEXT_BYTES];
    gr_diag diag = {0};
    int fd = -1;
    assert_int_equal(gr_spawn_make_stdin("a document\n", &fd, &diag), GR_OK);
    for (int reader = 0; reader < 2; reader++) { /* they share the descriptor's position */
        assert_int_equal(pread(fd, text, sizeof text, 0), 11);
        assert_memory_equal(text, "a document\n", 11);
    }
    close(fd);
    assert_int_equal(gr_spawn_make_stdin(NULL, &fd, &diag), GR_OK);
    assert_int_equal(read(fd, text, sizeof text), 0);
    close(fd);
}

/* A kernel before 5.9, or a filter of system calls: close_range, as the linker wraps it. */
static int refused_with;
int __real_close_range(unsigned int first, unsigned int last, int flags);
int __wrap_close_range(unsigned int first, unsigned int last, int flags);
int __wrap_close_range(unsigned int first, unsigned int last, int flags)
{
    if (refused_with != 0) {
        errno = refused_with;
        return -1;
    }
    return __real_close_range(first, last, flags);
}

static void spawn_without_close_range_leaves_no_descriptor(void **state)
{
    (void)state;
    static const int refusals[] = {ENOSYS, EPERM};
    int stray = open("/dev/null", O_RDONLY); /* without CLOEXEC */
    int far = fcntl(stray, F_DUPFD, 200);
    assert_true(far >= 200);
    char *const argv[] = {"sh", "-c", "ls /proc/$$/fd", NULL};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char text[TEXT_BYTES];
        int status;
        refused_with = refusals[i];
        run_command(argv, NULL, &status, text);
        refused_with = 0;
        assert_string_equal(text, "0\n1\n2\n");
    }
    close(far);
    close(stray);
}

static void signals_are_as_for_a_new_program(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    char *const argv[] = {"sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status", NULL};
    char text[TEXT_BYTES];
    int status;
    run_command(argv, NULL, &status, text);
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGPIPE, SIG_DFL);
    assert_string_equal(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

static void a_worker_is_bound(void **state)
{
    (void)state;
    gr_cores cores;
    assert_int_equal(gr_cores_allowed(&cores, NULL), GR_OK);
    gr_cores last = {.count = 1, .id = {cores.id[cores.count - 1]}};
    char *const argv[] = {"sh", "-c", "grep Cpus_allowed_list /proc/self/status", NULL};
    char text[TEXT_BYTES], expected[64];
    int status;
    run_command(argv, &last, &status, text);
    snprintf(expected, sizeof expected, "Cpus_allowed_list:\t%d\n", last.id[0]);
    assert_string_equal(text, expected);
}

static void check_error(const char *command, const gr_cores *cores, int step, int number,
                        gr_status expected, const char *says)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    char *const argv[] = {(char *)(uintptr_t)command, NULL};
    gr_spawn spawn = {.argv = argv,
                      .environment = environ,
                      .stdin_fd = null_fd,
                      .stdout_fd = null_fd,
                      .stderr_fd = null_fd,
                      .cores = cores};
    gr_spawn_error error;
    int before = open_descriptors();
    assert_int_equal(gr_spawn_start(&spawn, &error), -1);
    assert_int_equal(error.step, step);
    assert_int_equal(error.error, number);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left */
    assert_int_equal(open_descriptors(), before);
    gr_diag diag;
    assert_int_equal(gr_spawn_fail(command, &error, &diag), expected);
    assert_non_null(strstr(diag.text, says));
    close(null_fd);
}

static void what_cannot_start_says_why(void **state)
{
    (void)state;
    check_error("no-such-command", NULL, GR_SPAWN_EXEC, ENOENT, GR_E_NOT_FOUND,
                "command not found: \"no-such-command\"");
    check_error("/no/such/file", NULL, GR_SPAWN_EXEC, ENOENT, GR_E_NOT_FOUND, "there is no file");
    check_error("/", NULL, GR_SPAWN_EXEC, EACCES, GR_E_INVALID, "chmod +x");
    const gr_cores absent = {.count = 1, .id = {GR_CORES_MAX - 1}};
    check_error("true", &absent, GR_SPAWN_BIND, EINVAL, GR_E_IO, "bound to its cores");
}

/* A process tree of three generations, one of them in a session of its own, ends. */
static void a_descent_ends(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        if (gr_process_tree_adopt() != 0) {
            _exit(2);
        }
        int ends[2];
        if (pipe(ends) != 0) {
            _exit(3);
        }
        if (fork() == 0) {
            setsid();
            if (fork() == 0) {
                signal(SIGTERM, SIG_IGN);
                if (fork() == 0) {
                    pause();
                }
                (void)!write(ends[1], "up", 2);
                pause();
            }
            _exit(0); /* its child is an orphan now */
        }
        char text[2];
        if (read(ends[0], text, 2) != 2 || gr_process_tree_signal(0) < 2) {
            _exit(4);
        }
        gr_process_tree_end(0);
        _exit(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : 5);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_runs_in_a_group_of_its_own),
        cmocka_unit_test(stdin_is_the_document_for_each_reader),
        cmocka_unit_test(spawn_without_close_range_leaves_no_descriptor),
        cmocka_unit_test(signals_are_as_for_a_new_program),
        cmocka_unit_test(a_worker_is_bound),
        cmocka_unit_test(what_cannot_start_says_why),
        cmocka_unit_test(a_descent_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
