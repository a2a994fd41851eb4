/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/deputy.h"
#include "launch/agent/takeover.h"

#include "launch/process_tree.h"
#include "sanitized.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* What a supervisor says after each letter that it has read, and when it has become one. */
typedef struct report {
    pid_t pid, deputy;
    int letters;
    char name[16];
    char guard[16]; /* the name of an agent's guard when the agent began to work */
} report;

static void say(int out, const gr_deputy *deputy, int letters)
{
    report now = {.pid = getpid(), .deputy = gr_deputy_pid(deputy), .letters = letters};
    (void)prctl(PR_GET_NAME, now.name, 0L, 0L, 0L);
    /* libc knows its threads, as far as it has to. */
    static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    if (pthread_rwlock_wrlock(&lock) != 0 || pthread_rwlock_unlock(&lock) != 0) {
        _exit(102);
    }
    if (write(out, &now, sizeof now) != (ssize_t)sizeof now) {
        _exit(101);
    }
}

/* It counts letters: after 'w' it works for ever, 'e' is the last. */
_Noreturn static void supervise(int in, int out)
{
    (void)prctl(PR_SET_NAME, "the-chief", 0L, 0L, 0L);
    gr_deputy *deputy = gr_deputy_create();
    if (deputy == NULL) {
        _exit(100);
    }
    say(out, deputy, 0);
    char letter = 0;
    for (int letters = 0; letter != 'e';) {
        bool moved = gr_deputy_wait(deputy, &in, 1, -1), came = read(in, &letter, 1) == 1;
        letters += came;
        if (moved || came) {
            say(out, deputy, letters);
        }
        while (letter == 'w') {
            (void)pause();
        }
    }
    gr_deputy_destroy(deputy);
    _exit(0);
}

typedef struct supervised {
    int in, out;
    report last;
} supervised;

static report next_report(supervised *of)
{
    memset(&of->last, 0, sizeof of->last);
    assert_int_equal(read(of->out, &of->last, sizeof of->last), sizeof of->last);
    return of->last;
}

static report tell(supervised *of, char letter)
{
    assert_int_equal(write(of->in, &letter, 1), 1);
    return next_report(of);
}

static supervised start(void)
{
    int in[2], out[2];
    assert_int_equal(gr_process_tree_adopt(), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(fcntl(in[0], F_SETFL, O_NONBLOCK), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(in[1]);
        close(out[0]);
        supervise(in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    supervised of = {.in = in[1], .out = out[0]};
    assert_int_equal(next_report(&of).pid, pid);
    return of;
}

static void finish(supervised *of)
{
    close(of->in);
    close(of->out);
    assert_int_equal(waitpid(-1, NULL, 0), -1); /* nobody is left */
    assert_int_equal(errno, ECHILD);
}

static char state_of(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        assert_int_equal(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
    }
    return state;
}

/* Sleep is where it waits: it does nothing else that takes time. */
static void kill_asleep(pid_t pid)
{
    while (state_of(pid) != 'S') {
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
}

static void the_deputy_goes_on_again_and_again(void **state)
{
    (void)state;
    supervised of = start();
    for (int turn = 0; turn < 5; turn++) {
        report before = tell(&of, 'x');
        assert_int_equal(before.letters, turn + 1);
        assert_true(before.deputy > 0 && before.deputy != before.pid);
        kill_asleep(before.pid);
        report after = next_report(&of);
        int status;
        assert_int_equal(waitpid(before.pid, &status, 0), before.pid);
        assert_int_equal(after.pid, before.deputy);
        assert_int_equal(after.letters, before.letters);
        assert_string_equal(after.name, "the-chief");
    }
    pid_t last = of.last.pid;
    (void)tell(&of, 'e');
    int status;
    assert_int_equal(waitpid(last, &status, 0), last);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    finish(&of);
}

static void a_deputy_that_was_killed_is_replaced(void **state)
{
    (void)state;
    supervised of = start();
    report before = tell(&of, 'x');
    kill_asleep(before.deputy);
    while (kill(before.deputy, 0) == 0) { /* until the supervisor has reaped it */
        (void)poll(NULL, 0, 1);
    }
    report after = tell(&of, 'x');
    assert_int_equal(after.pid, before.pid);
    assert_true(after.deputy > 0 && after.deputy != before.deputy);
    kill_asleep(after.pid);
    assert_int_equal(next_report(&of).pid, after.deputy);
    (void)tell(&of, 'e');
    for (int ended = 0; ended < 2; ended++) {
        assert_true(waitpid(-1, NULL, 0) > 0);
    }
    finish(&of);
}

static void what_was_at_work_ends_with_its_deputy(void **state)
{
    (void)state;
    supervised of = start();
    report before = tell(&of, 'w');
    char more;
    assert_int_equal(kill(before.pid, SIGKILL), 0);
    assert_int_equal(read(of.out, &more, 1), 0); /* its end: nobody has it any more */
    for (int ended = 0; ended < 2; ended++) {
        assert_true(waitpid(-1, NULL, 0) > 0);
    }
    finish(&of);
}

/* ---- The guard of an agent ------------------------------------------------------------------- */

enum { AGENT_CODE = 7 };

static int guarded[2]; /* in, out */

static void name_of(pid_t pid, char name_out[16])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)!fscanf(file, "%15s", name_out);
        fclose(file);
    }
}

/* As supervise(), with a child, which is told of as the deputy. It ends that one in the end. */
static void look_after(gr_deputy *deputy, void *none)
{
    (void)none;
    report now = {.letters = 0};
    char letter = 0;
    name_of(getppid(), now.guard);
    (void)gr_process_tree_adopt();
    pid_t child = fork();
    while (child == 0) {
        (void)pause();
    }
    bool moved = deputy != NULL;
    for (bool came = false; letter != 'e'; came = read(guarded[0], &letter, 1) == 1) {
        now.letters += came;
        if (moved || came) {
            now.pid = getpid();
            now.deputy = child;
            (void)prctl(PR_GET_NAME, now.name, 0L, 0L, 0L);
            (void)!write(guarded[1], &now, sizeof now);
        }
        while (letter == 'w') {
            (void)pause();
        }
        moved = gr_deputy_wait(deputy, &guarded[0], 1, -1);
    }
    (void)kill(child, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    _exit(kill(child, 0) == 0 ? 1 : AGENT_CODE);
}

/* *guard_out is the child of the caller. */
static supervised start_guarded(pid_t *guard_out)
{
    int in[2], out[2];
    if (SANITIZED) { /* there is none */
        skip();
    }
    assert_int_equal(gr_process_tree_adopt(), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(fcntl(in[0], F_SETFL, O_NONBLOCK), 0);
    *guard_out = fork();
    if (*guard_out == 0) {
        close(in[1]);
        close(out[0]);
        guarded[0] = in[0];
        guarded[1] = out[1];
        (void)prctl(PR_SET_NAME, "the-chief", 0L, 0L, 0L);
        (void)gr_process_tree_adopt();
        gr_deputy_guard("the-guard", look_after, NULL);
    }
    close(in[0]);
    close(out[1]);
    supervised of = {.in = in[1], .out = out[0]};
    assert_int_not_equal(next_report(&of).pid, *guard_out);
    assert_string_equal(of.last.guard, "the-guard");
    assert_string_equal(of.last.name, "the-chief");
    return of;
}

static void await_code(pid_t pid, int code)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void guard_ends_as_the_agent_does(void **state)
{
    (void)state;
    pid_t guard;
    supervised of = start_guarded(&guard);
    assert_int_equal(tell(&of, 'x').letters, 1);
    assert_int_equal(write(of.in, "e", 1), 1);
    await_code(guard, AGENT_CODE);
    finish(&of);
}

static void guard_of_a_killed_agent_goes_on_with_its_children(void **state)
{
    (void)state;
    pid_t guard;
    supervised of = start_guarded(&guard);
    report before = tell(&of, 'x');
    assert_string_equal(before.name, "the-chief");
    kill_asleep(before.pid);
    report after = next_report(&of);
    assert_int_equal(after.pid, guard);
    assert_int_equal(after.letters, 1);
    assert_int_equal(after.deputy, before.deputy);
    assert_string_equal(after.name, "the-chief");
    assert_int_equal(tell(&of, 'x').letters, 2);
    assert_int_equal(write(of.in, "e", 1), 1);
    await_code(guard, AGENT_CODE);
    finish(&of);
}

static void agent_of_a_killed_guard_goes_on(void **state)
{
    (void)state;
    pid_t guard;
    supervised of = start_guarded(&guard);
    pid_t agent = tell(&of, 'x').pid;
    kill_asleep(guard);
    assert_int_equal(waitpid(guard, NULL, 0), guard);
    assert_int_equal(tell(&of, 'x').letters, 2);
    assert_int_equal(write(of.in, "e", 1), 1);
    await_code(agent, AGENT_CODE);
    finish(&of);
}

static void guard_of_an_agent_that_is_killed_at_work_is_killed(void **state)
{
    (void)state;
    pid_t guard;
    int status;
    supervised of = start_guarded(&guard);
    report before = tell(&of, 'w');
    assert_int_equal(kill(before.pid, SIGKILL), 0);
    assert_int_equal(waitpid(guard, &status, 0), guard);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(kill(before.deputy, SIGKILL), 0); /* the launcher's to end */
    while (waitpid(-1, NULL, 0) > 0) {
    }
    finish(&of);
}

static void a_signal_for_one_that_has_ended_is_none(void **state)
{
    (void)state;
    siginfo_t end;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(0);
    }
    gr_process process = gr_process_open(pid);
    assert_int_equal(waitid(P_PID, (id_t)pid, &end, WEXITED | WNOWAIT), 0);
    assert_false(gr_process_signal(&process, SIGTERM)); /* nobody has waited for it yet */
    gr_process_close(&process);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_deputy_goes_on_again_and_again),
        cmocka_unit_test(a_deputy_that_was_killed_is_replaced),
        cmocka_unit_test(what_was_at_work_ends_with_its_deputy),
        cmocka_unit_test(guard_ends_as_the_agent_does),
        cmocka_unit_test(guard_of_a_killed_agent_goes_on_with_its_children),
        cmocka_unit_test(agent_of_a_killed_guard_goes_on),
        cmocka_unit_test(guard_of_an_agent_that_is_killed_at_work_is_killed),
        cmocka_unit_test(a_signal_for_one_that_has_ended_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
