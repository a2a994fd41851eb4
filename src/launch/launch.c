/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/gang.h"

#include "base/fail.h"
#include "launch/descent.h"
#include "launch/scale.h"
#include "launch/signals.h"
#include "link/secret.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 256 << 20 };

/* ---- What the coordinator, and the user, say ------------------------------------------------- */

static void scale(gr_gang *gang, int workers, gr_scale_reply *reply)
{
    int most = gr_launch_most(gang->config), room = gr_gang_room(gang);
    const gr_scale_limits limits = {.least = gang->config->workers_min,
                                    .most = most < room ? most : room,
                                    .has = gang->want,
                                    .starting = !gang->everybody_joined,
                                    .ending = gang->phase != GR_PHASE_RUNNING ||
                                              gr_coordinator_is_over(gang->coordinator)};
    if (gr_scale_judge(&limits, workers, reply)) {
        gang->want = gang->asked = workers;
        gr_gang_tell_wanted(gang);
        gr_gang_progress(gang);
    }
}

static void on_scale(uv_poll_t *poll, int status, int events)
{
    gr_gang *gang = poll->data;
    gr_scale_request request;
    (void)status;
    (void)events;
    while (gr_scale_receive(gang->scale_fd, &request)) {
        gr_scale_reply reply;
        scale(gang, request.workers, &reply);
        gr_scale_answer(gang->scale_fd, &request, &reply);
    }
}

static void on_coordinator_timer(uv_timer_t *timer)
{
    gr_gang_progress(timer->data);
}

void gr_gang_progress(gr_gang *gang)
{
    gr_diag diag = {0};
    if (gr_coordinator_progress(gang->coordinator, &diag) != GR_OK) {
        uv_poll_stop(&gang->coordinator_poll);
        if (gang->phase == GR_PHASE_RUNNING) {
            gr_gang_blame_for(gang, GR_REASON_COORDINATOR, &diag);
            gr_gang_end_after_failure(gang);
        }
        return;
    }
    int64_t next_us = gr_coordinator_next_us(gang->coordinator);
    uv_timer_stop(&gang->coordinator_timer);
    if (next_us != GR_NEVER) {
        int64_t wait_us = next_us - gr_gang_now_us();
        (void)uv_timer_start(&gang->coordinator_timer, on_coordinator_timer,
                             wait_us > 0 ? (uint64_t)wait_us / 1000 + 1 : 0, 0);
    }
    gr_gang_check_joining(gang);
    if (gang->config->fence_us > 0) {
        gr_gang_watch_renewal(gang);
    }
    gr_gang_fill(gang);
}

static void on_coordinator(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    gr_gang_progress(poll->data);
}

/* ---- Fault injection ------------------------------------------------------------------------- */

static void on_fault_timer(uv_timer_t *timer)
{
    gr_gang_play_faults(timer->data);
}

/* Those that are due, and a timer for the next. */
void gr_gang_play_faults(gr_gang *gang)
{
    const gr_launch_config *config = gang->config;
    while (gang->faults_done < config->fault_count && gang->phase == GR_PHASE_RUNNING) {
        const gr_launch_fault *fault = &config->faults[gang->faults_done];
        int64_t wait_us = gang->start_us + fault->at_us - gr_gang_now_us();
        if (wait_us > 0) {
            (void)uv_timer_start(&gang->fault_timer, on_fault_timer, (uint64_t)wait_us / 1000 + 1,
                                 0);
            return;
        }
        gang->faults_done++;
        int place = fault->number + (fault->of_server ? gang->slots : 0);
        gr_gang_tell_worker(gang, place, GR_AGENT_FAULT, fault->signal_number);
    }
}

/* ---- Output --------------------------------------------------------------------------------- */

static void on_output_settled(void *event_arg)
{
    gr_gang *gang = event_arg;
    if (gang->phase == GR_PHASE_DRAINING) {
        gr_gang_finish(gang);
    }
}

static void on_output_lost(void *event_arg, int error)
{
    gr_gang *gang = event_arg;
    gr_gang_blame(gang, GR_REASON_OUTPUT_LOST, GR_E_IO);
    if (gang->reason == GR_REASON_OUTPUT_LOST) {
        (void)gr_fail(&gang->verdict, GR_E_IO,
                      "the output cannot be written any more (%s), so the job was ended",
                      strerror(error));
    }
    gr_gang_end_after_failure(gang);
}

static void on_output_told(void *event_arg, int place, const char *text, size_t size_bytes)
{
    gr_gang_hear_server(event_arg, place, text, size_bytes);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void on_signals(uv_poll_t *poll, int status, int events)
{
    gr_gang *gang = poll->data;
    int signal_number;
    (void)status;
    (void)events;
    while ((signal_number = gr_signals_take(gang->signal_fd)) != 0) {
        gr_gang_on_signal(gang, signal_number);
    }
}

static int watch_signals(gr_gang *gang)
{
    gang->signal_fd = gr_signals_open();
    if (gang->signal_fd < 0) {
        return uv_translate_sys_error(errno);
    }
    gang->signal_poll.data = gang;
    int error = uv_poll_init(&gang->loop, &gang->signal_poll, gang->signal_fd);
    return error == 0 ? uv_poll_start(&gang->signal_poll, UV_READABLE, on_signals) : error;
}

static int start_handles(gr_gang *gang)
{
    uv_loop_t *loop = &gang->loop;
    int error = watch_signals(gang);
    uv_timer_t *const timers[] = {
        &gang->phase_timer, &gang->join_timer,   &gang->coordinator_timer, &gang->fault_timer,
        &gang->fence_timer, &gang->roster_timer, &gang->seek_timer,        &gang->acceptor_timer};
    for (size_t i = 0; i < sizeof timers / sizeof timers[0] && error == 0; i++) {
        error = uv_timer_init(loop, timers[i]);
        timers[i]->data = gang;
    }
    gang->coordinator_poll.data = gang;
    if (error == 0) {
        error = uv_poll_init(loop, &gang->coordinator_poll, gr_coordinator_fd(gang->coordinator));
    }
    if (error == 0) {
        error = uv_poll_start(&gang->coordinator_poll, UV_READABLE, on_coordinator);
    }
    if (error == 0 && gr_gang_may_change(gang)) {
        gang->scale_fd = gr_scale_listen();
    }
    if (error == 0 && gang->scale_fd >= 0) {
        gang->scale_poll.data = gang;
        error = uv_poll_init(loop, &gang->scale_poll, gang->scale_fd);
    }
    if (error == 0 && gang->scale_fd >= 0) {
        error = uv_poll_start(&gang->scale_poll, UV_READABLE, on_scale);
    }
    return error;
}

static gr_status start_loop(gr_gang *gang, gr_diag *diag)
{
    int error = uv_loop_init(&gang->loop);
    if (error == 0) {
        gang->loop_open = true;
        error = start_handles(gang);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "the event loop cannot be made: %s", uv_strerror(error));
    }
    gr_gang_tell_wanted(gang);
    const gr_output_events events = {.settled = on_output_settled,
                                     .lost = on_output_lost,
                                     .told = on_output_told,
                                     .event_arg = gang};
    return gr_output_start(gang->output, &gang->loop, &events, diag);
}

static void close_handle(uv_handle_t *handle, void *walk_arg)
{
    (void)walk_arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void stop_loop(gr_gang *gang)
{
    if (!gang->loop_open) {
        return;
    }
    gr_output_stop(gang->output);
    uv_walk(&gang->loop, close_handle, NULL);
    while (uv_run(&gang->loop, UV_RUN_NOWAIT) != 0) {
    }
    GR_CHECK(uv_loop_close(&gang->loop) == 0);
}

static void clean_up(gr_gang *gang)
{
    stop_loop(gang);
    gr_gang_stop_agents(gang);
    gr_gang_forget_servers(gang);
    gr_discovery_stop(&gang->discovery);
    gr_coordinator_destroy(gang->coordinator);
    gr_output_destroy(gang->output);
    gr_records_destroy(gang->records);
    if (gang->null_fd >= 0) {
        close(gang->null_fd);
    }
    if (gang->scale_fd >= 0) {
        close(gang->scale_fd);
    }
    if (gang->signal_fd >= 0) {
        close(gang->signal_fd);
    }
    gr_secret_forget(gang->secret);
    gr_arena_fini(&gang->arena);
}

static gr_status run_gang(gr_gang *gang, gr_launch_report *report, gr_diag *diag)
{
    gr_status status = gr_gang_raise_limit(gang, diag);
    if (status == GR_OK) {
        status = gr_output_create(gang->config, &gang->output, diag);
    }
    if (status == GR_OK) {
        status = gr_gang_prepare(gang, diag);
    }
    if (status == GR_OK) {
        status = gr_gang_enrol(gang, diag);
    }
    if (status == GR_OK) {
        status = start_loop(gang, diag);
    }
    if (status == GR_OK) {
        status = gr_gang_start_all(gang, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    status = gr_gang_seek_hosts(gang, diag);
    if (status != GR_OK) {
        return status;
    }
    while (gang->phase != GR_PHASE_OVER) {
        (void)uv_run(&gang->loop, UV_RUN_DEFAULT);
    }
    return gr_gang_report(gang, report, diag);
}

gr_status gr_launch_run(const gr_launch_config *config, gr_launch_report *report_out, gr_diag *diag)
{
    gr_gang gang = {.config = config,
                    .slots = gr_launch_slots(config),
                    .want = config->workers,
                    .asked = config->discovery != NULL || config->acceptor != NULL
                                 ? gr_launch_most(config)
                                 : config->workers,
                    .spares = config->spares,
                    .crash = config->crash,
                    .restarts_left = config->restarts * config->workers,
                    .lost_server = -1,
                    .null_fd = -1,
                    .scale_fd = -1,
                    .signal_fd = -1,
                    .start_us = gr_gang_now_us()};
    *report_out = (gr_launch_report){.rank = -1};
    if (config->workers < 1 || gang.slots > GR_LAUNCH_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "-np: %d workers cannot be started here; 1 to %d can",
                       config->workers, GR_LAUNCH_WORKERS_MAX);
    }
    int error = gr_descent_adopt();
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "orphans cannot be adopted: %s", strerror(error));
    }
    /* A reader that is gone is a status of write here, not the end of this process. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigset_t before_set;
    (void)sigaction(SIGPIPE, &ignore, &before);
    gr_signals_hold(&before_set);
    gr_arena_init(&gang.arena, ARENA_BYTES_MAX);
    gr_status status = run_gang(&gang, report_out, diag);
    clean_up(&gang);
    report_out->signal_number = gang.signal_number;
    (void)sigprocmask(SIG_SETMASK, &before_set, NULL);
    (void)sigaction(SIGPIPE, &before, NULL);
    return status;
}
