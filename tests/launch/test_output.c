/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of workers whose host never came to life. */
#include "launch/output.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PUT_BYTES = 1 << 16, PUTS = 8 }; /* more than a pipe and the queue before it have room for */

typedef struct world {
    gr_launch_config config;
    gr_output *output;
    uv_loop_t loop;
    int out[2];
    int settled;
} world;

static void on_settled(void *arg)
{
    world *w = arg;
    w->settled++;
}

static void on_lost(void *arg, int error)
{
    (void)arg;
    (void)error;
}

/* A launcher whose stdout and stderr are one pipe. */
static void open_world(world *w)
{
    *w = (world){.config = {.workers = 2}};
    assert_int_equal(pipe2(w->out, O_CLOEXEC), 0);
    w->config.output.out_fd = w->config.output.err_fd = w->out[1];
    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(gr_output_create(&w->config, &w->output, NULL), GR_OK);
    assert_int_equal(
        gr_output_start(w->output, &w->loop,
                        &(gr_output_events){.settled = on_settled, .lost = on_lost, .event_arg = w},
                        NULL),
        GR_OK);
    for (int rank = 0; rank < w->config.workers; rank++) {
        assert_int_equal(gr_output_open(w->output, rank, NULL, NULL), GR_OK);
    }
}

static void close_world(world *w)
{
    gr_output_stop(w->output);
    (void)uv_run(&w->loop, UV_RUN_DEFAULT);
    gr_output_destroy(w->output);
    assert_int_equal(uv_loop_close(&w->loop), 0);
    close(w->out[0]);
    close(w->out[1]);
}

static void output_streams_that_were_never_watched_end_at_once(void **state)
{
    world w;
    (void)state;
    open_world(&w);
    gr_output_close(w.output, 0);
    assert_true(gr_output_is_closed(w.output, 0));
    assert_int_equal(gr_output_read_fd(w.output, 0, 0), -1);
    gr_output_finish(w.output);
    assert_int_equal(w.settled, 1);
    close_world(&w);
}

/* So that no stream may be read: the launcher's own output waits for its reader. */
static void output_streams_that_were_never_watched_end_behind_a_full_pipe(void **state)
{
    static char text[PUT_BYTES];
    world w;
    (void)state;
    open_world(&w);
    memset(text, 'x', sizeof text);
    for (int i = 0; i < PUTS; i++) {
        gr_output_print(w.output, text, sizeof text);
    }
    gr_output_renew(w.output, 0);
    gr_output_finish(w.output);
    assert_int_equal(gr_output_read_fd(w.output, 1, 1), -1);
    assert_false(gr_output_is_settled(w.output));
    assert_int_equal(fcntl(w.out[0], F_SETFL, O_RDONLY | O_NONBLOCK), 0);
    while (w.settled == 0) {
        while (read(w.out[0], text, sizeof text) > 0) {
        }
        (void)uv_run(&w.loop, UV_RUN_NOWAIT);
        gr_output_finish(w.output);
    }
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_streams_that_were_never_watched_end_at_once),
        cmocka_unit_test(output_streams_that_were_never_watched_end_behind_a_full_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
