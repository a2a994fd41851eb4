/* SPDX-License-Identifier: Apache-2.0 */
/* How long a job goes on without a launcher (--outlive), whatever took the launcher away. */
#include "launch/agent/supervisor.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { OUTLIVE_US = 20000, PATIENCE_MS = 20000 };

typedef struct world {
    char runtime[32];
    uv_loop_t loop;
    uv_timer_t patience;
    uv_poll_t broken; /* ready: the launcher's output cannot be written */
    int broken_fds[2], launcher_fd, output_fds[2];
    gr_supervisor *supervisor;
    int left, expired;
} world;

static void on_left(void *arg, int launcher)
{
    world *w = arg;
    (void)launcher;
    w->left++;
}

static void on_expired(void *arg)
{
    world *w = arg;
    w->expired++;
    uv_stop(&w->loop);
}

static void on_patience(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

static void on_broken(uv_poll_t *poll, int status, int events)
{
    world *w = poll->data;
    (void)status;
    (void)events;
    assert_true(gr_supervisor_drop_launcher(w->supervisor, false));
    assert_int_equal(uv_poll_stop(poll), 0);
}

static void open_world(world *w)
{
    static const gr_job_record record = {.start_s = 1, .run = "run", .command = "gradus run"};
    int launcher[2];
    *w = (world){.runtime = "/tmp/gradus-test-XXXXXX"};
    assert_non_null(mkdtemp(w->runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", w->runtime, 1), 0);
    for (int i = 0; i < 2; i++) { /* which a lost launcher takes with it */
        w->output_fds[i] = dup(STDOUT_FILENO + i);
        assert_true(w->output_fds[i] >= 0);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, launcher), 0);
    assert_int_equal(pipe2(w->broken_fds, O_NONBLOCK), 0);
    w->launcher_fd = launcher[1];
    w->supervisor = gr_supervisor_create(&(gr_supervisor_config){
        .launcher_fd = launcher[0], .launcher = getpid(), .outlive_us = OUTLIVE_US});
    assert_non_null(w->supervisor);
    assert_int_equal(gr_supervisor_publish(w->supervisor, "job", &record, NULL), GR_OK);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(uv_timer_init(&w->loop, &w->patience), 0);
    assert_int_equal(uv_timer_start(&w->patience, on_patience, PATIENCE_MS, 0), 0);
    assert_int_equal(uv_poll_init(&w->loop, &w->broken, w->broken_fds[0]), 0);
    w->broken.data = w;
    assert_int_equal(uv_poll_start(&w->broken, UV_READABLE, on_broken), 0);
    assert_int_equal(gr_supervisor_start(
                         w->supervisor, &w->loop,
                         &(gr_supervisor_events){.left = on_left, .expired = on_expired, .arg = w}),
                     0);
}

static void close_one(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* It has lost its launcher, and its time is over: each has been told once. */
static void close_expired_world(world *w)
{
    char path[64];
    gr_supervisor_stop(w->supervisor);
    uv_walk(&w->loop, close_one, NULL);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    for (int i = 0; i < 2; i++) {
        assert_true(dup2(w->output_fds[i], STDOUT_FILENO + i) >= 0);
        close(w->output_fds[i]);
        close(w->broken_fds[i]);
    }
    gr_supervisor_destroy(w->supervisor);
    snprintf(path, sizeof path, "rm -r '%s'", w->runtime);
    assert_int_equal(system(path), 0);
    assert_int_equal(w->left, 1);
    assert_int_equal(w->expired, 1);
}

static void supervisor_launcher_that_is_killed_expires(void **state)
{
    world w;
    (void)state;
    open_world(&w);
    close(w.launcher_fd);
    (void)uv_run(&w.loop, UV_RUN_DEFAULT);
    close_expired_world(&w);
}

static void supervisor_launcher_that_is_dropped_expires(void **state)
{
    world w;
    (void)state;
    open_world(&w);
    assert_int_equal(write(w.broken_fds[1], "x", 1), 1);
    (void)uv_run(&w.loop, UV_RUN_DEFAULT);
    close(w.launcher_fd);
    close_expired_world(&w);
}

/* Both in one turn of the loop, its output first. */
static void supervisor_launcher_that_is_killed_while_dropped_expires(void **state)
{
    world w;
    (void)state;
    open_world(&w);
    assert_int_equal(write(w.broken_fds[1], "x", 1), 1);
    close(w.launcher_fd);
    (void)uv_run(&w.loop, UV_RUN_DEFAULT);
    close_expired_world(&w);
}

static void supervisor_launcher_that_is_dropped_once_more_expires(void **state)
{
    world w;
    (void)state;
    open_world(&w);
    close(w.launcher_fd);
    while (w.left == 0) {
        (void)uv_run(&w.loop, UV_RUN_ONCE);
    }
    assert_true(gr_supervisor_drop_launcher(w.supervisor, true));
    assert_true(gr_supervisor_drop_launcher(w.supervisor, false));
    (void)uv_run(&w.loop, UV_RUN_DEFAULT);
    close_expired_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supervisor_launcher_that_is_killed_expires),
        cmocka_unit_test(supervisor_launcher_that_is_dropped_expires),
        cmocka_unit_test(supervisor_launcher_that_is_killed_while_dropped_expires),
        cmocka_unit_test(supervisor_launcher_that_is_dropped_once_more_expires),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
