/* SPDX-License-Identifier: Apache-2.0 */
/* A process that does not end by being killed. */
#include "base/clock.h"
#include "launch/process_tree.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT_US = 200000, PATIENCE_S = 30 };

/* In a process of its own, whose child is another one's to wait for (a tracer): until that has, the
 * child is dead, and there. */
_Noreturn static void end_tree(int ready_fd, int go_fd, int64_t limit_us)
{
    pid_t child = gr_process_tree_adopt() == 0 ? fork() : -1;
    char byte;
    alarm(PATIENCE_S);
    if (child == 0) {
        for (;;) {
            pause();
        }
    }
    if (child < 0 || write(ready_fd, &child, sizeof child) != sizeof child ||
        read(go_fd, &byte, 1) != 1) {
        _exit(3);
    }
    _exit(gr_process_tree_end_within(0, limit_us) ? 0 : 1);
}

static void process_tree_what_does_not_end_is_left_after_the_limit(void **state)
{
    int ready[2], go[2], wait_status = 0;
    pid_t child = 0;
    (void)state;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork();
    if (pid == 0) {
        end_tree(ready[1], go[0], LIMIT_US);
    }
    assert_int_equal(read(ready[0], &child, sizeof child), sizeof child);
    if (ptrace(PTRACE_SEIZE, child, NULL, NULL) != 0) {
        (void)kill(pid, SIGKILL);
        (void)kill(child, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        skip(); /* nobody may be traced here */
    }
    int64_t begin_us = gr_now_ns() / 1000;
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_true(gr_now_ns() / 1000 - begin_us >= LIMIT_US);
    assert_int_equal(waitpid(child, NULL, __WALL), child);
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), 1);
}

static void process_tree_what_ends_ends_within_the_limit(void **state)
{
    int ready[2], go[2], wait_status = 0;
    (void)state;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork();
    if (pid == 0) {
        end_tree(ready[1], go[0], GR_NEVER);
    }
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_int_equal(wait_status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(process_tree_what_does_not_end_is_left_after_the_limit),
        cmocka_unit_test(process_tree_what_ends_ends_within_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
