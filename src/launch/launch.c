/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch_job.h"

#include "base/fail.h"
#include "launch/agent/supervisor.h"
#include "launch/process_tree.h"
#include "launch/signals.h"
#include "link/secret.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { ARENA_BYTES_MAX = 256 << 20 };

/* ---- What the coordinator says --------------------------------------------------------------- */

static void on_coordinator(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    gr_launch_job_progress(poll->data);
}

/* ---- Fault injection ------------------------------------------------------------------------- */

static void on_fault_timer(uv_timer_t *timer)
{
    gr_launch_job_play_faults(timer->data);
}

/* Those that are due, and a timer for the next. */
void gr_launch_job_play_faults(gr_launch_job *job)
{
    const gr_launch_config *config = job->config;
    int64_t now_us = gr_launch_job_now_us() - job->setup.start_us;
    while (config->fault_count > 0 && job->schedule.phase == GR_PHASE_RUNNING) {
        int next = 0;
        for (int i = 1; i < config->fault_count; i++) {
            next = job->fault_next_us[i] < job->fault_next_us[next] ? i : next;
        }
        int64_t *at_us = &job->fault_next_us[next];
        if (*at_us > now_us) {
            if (*at_us < INT64_MAX) {
                (void)uv_timer_start(&job->loop.fault_timer, on_fault_timer,
                                     (uint64_t)(*at_us - now_us) / 1000 + 1, 0);
            }
            return;
        }
        const gr_launch_fault *fault = &config->faults[next];
        int slot = fault->number + (fault->of_server ? job->schedule.config.slots : 0);
        gr_launch_job_notify_worker(job, slot, GR_AGENT_FAULT, fault->what);
        *at_us = fault->every_us > 0 ? *at_us + fault->every_us : INT64_MAX;
    }
}

/* ---- Output --------------------------------------------------------------------------------- */

static void on_output_settled(void *event_arg)
{
    gr_launch_job_happen(event_arg, &(gr_scheduler_event){.kind = GR_EVENT_OUTPUT_WRITTEN}, NULL);
}

static void on_output_closed(void *event_arg, int slot)
{
    gr_launch_job *job = event_arg;
    int host = job->schedule.slots[slot].host;
    if (host >= 0) {
        gr_launch_job_check_output(&job->agents[host]);
    }
}

static void on_output_lost(void *event_arg, int error)
{
    gr_launch_job *job = event_arg;
    if (gr_launch_job_outlives(job, error)) {
        return;
    }
    gr_diag why = {0};
    (void)gr_fail(&why, GR_E_IO, "the output cannot be written any more (%s), so the job was ended",
                  strerror(error));
    gr_launch_job_happen(
        job, &(gr_scheduler_event){.kind = GR_EVENT_FAILED, .value = GR_REASON_OUTPUT_LOST}, &why);
}

static void on_server_text(void *event_arg, int slot, const char *text, size_t size_bytes)
{
    gr_launch_job_receive_server(event_arg, slot, text, size_bytes);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* One that comes when all is over stays where it is: it is for whoever would restart. */
static void on_signals(uv_poll_t *poll, int status, int events)
{
    gr_launch_job *job = poll->data;
    int signal_number;
    (void)status;
    (void)events;
    while (job->schedule.phase != GR_PHASE_OVER &&
           (signal_number = gr_signals_take(job->loop.signal_fd)) != 0) {
        gr_launch_job_happen(
            job, &(gr_scheduler_event){.kind = GR_EVENT_SIGNAL, .value = signal_number}, NULL);
    }
}

static int watch_signals(gr_launch_job *job)
{
    job->loop.signal_fd = gr_signals_open();
    if (job->loop.signal_fd < 0) {
        return uv_translate_sys_error(errno);
    }
    job->loop.signal_poll.data = job;
    int error = uv_poll_init(&job->loop.loop, &job->loop.signal_poll, job->loop.signal_fd);
    return error == 0 ? uv_poll_start(&job->loop.signal_poll, UV_READABLE, on_signals) : error;
}

static int start_handles(gr_launch_job *job)
{
    uv_loop_t *loop = &job->loop.loop;
    int error = watch_signals(job);
    gr_launch_loop *of = &job->loop;
    uv_timer_t *const timers[] = {
        &of->timers[GR_TIMER_PHASE], &of->timers[GR_TIMER_JOIN], &of->timers[GR_TIMER_HOSTS],
        &of->timers[GR_TIMER_FENCE], &of->coordinator_timer,     &of->fault_timer,
        &of->orphan_timer,           &job->seek.script_timer,    &job->seek.acceptor_timer};
    for (size_t i = 0; i < sizeof timers / sizeof timers[0] && error == 0; i++) {
        error = uv_timer_init(loop, timers[i]);
        timers[i]->data = job;
    }
    job->loop.coordinator_poll.data = job;
    if (error == 0) {
        error =
            uv_poll_init(loop, &job->loop.coordinator_poll, gr_coordinator_fd(job->coordinator));
    }
    if (error == 0) {
        error = uv_poll_start(&job->loop.coordinator_poll, UV_READABLE, on_coordinator);
    }
    return error;
}

static gr_status start_loop(gr_launch_job *job, gr_diag *diag)
{
    int error = uv_loop_init(&job->loop.loop);
    if (error == 0) {
        job->loop.open = true;
        error = start_handles(job);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "the event loop cannot be made: %s", uv_strerror(error));
    }
    const gr_output_events events = {.settled = on_output_settled,
                                     .lost = on_output_lost,
                                     .closed = on_output_closed,
                                     .server_text = on_server_text,
                                     .event_arg = job};
    gr_status status = gr_output_start(job->output, &job->loop.loop, &events, diag);
    error = status == GR_OK ? gr_launch_job_supervise(job) : 0;
    return error == 0
               ? status
               : gr_fail(diag, GR_E_IO, "the launcher cannot be watched: %s", uv_strerror(error));
}

static void close_handle(uv_handle_t *handle, void *walk_arg)
{
    (void)walk_arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void stop_loop(gr_launch_job *job)
{
    if (!job->loop.open) {
        return;
    }
    if (job->config->supervisor != NULL) {
        gr_supervisor_stop(job->config->supervisor);
    }
    gr_output_stop(job->output);
    uv_walk(&job->loop.loop, close_handle, NULL);
    while (uv_run(&job->loop.loop, UV_RUN_NOWAIT) != 0) {
    }
    GR_CHECK(uv_loop_close(&job->loop.loop) == 0);
}

static void clean_up(gr_launch_job *job)
{
    stop_loop(job);
    gr_launch_job_stop_agents(job);
    gr_launch_job_remove_servers(job);
    gr_discovery_stop(&job->seek.discovery);
    gr_coordinator_destroy(job->coordinator);
    gr_output_destroy(job->output);
    gr_records_destroy(job->records);
    if (job->setup.stdin_fd >= 0) {
        close(job->setup.stdin_fd);
    }
    if (job->setup.server_stdin_fd >= 0) {
        close(job->setup.server_stdin_fd);
    }
    if (job->loop.signal_fd >= 0) {
        close(job->loop.signal_fd);
    }
    gr_secret_forget(job->secret);
    gr_arena_fini(&job->arena);
}

static gr_status run_gang(gr_launch_job *job, gr_launch_report *report, gr_diag *diag)
{
    gr_status status = gr_launch_job_raise_limit(job, diag);
    if (status == GR_OK) {
        status = gr_output_create(job->config, &job->output, diag);
    }
    if (status == GR_OK) {
        status = gr_launch_job_prepare(job, diag);
    }
    if (status == GR_OK) {
        status = start_loop(job, diag);
    }
    if (status == GR_OK) {
        gr_launch_job_happen(job, &(gr_scheduler_event){.kind = GR_EVENT_BEGIN}, NULL);
        status = gr_launch_job_discover_hosts(job, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_launch_job_loop(job);
    return gr_launch_job_report(job, report, diag);
}

gr_status gr_launch_run(const gr_launch_config *config, gr_launch_report *report_out, gr_diag *diag)
{
    gr_launch_job job = {
        .config = config,
        .setup = {.start_us = gr_launch_job_now_us(), .stdin_fd = -1, .server_stdin_fd = -1},
        .loop = {.signal_fd = -1}};
    *report_out = (gr_launch_report){.rank = -1};
    if (config->workers < 1 || gr_launch_slots(config) > GR_LAUNCH_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "-np: %d workers cannot be started here; 1 to %d can",
                       config->workers, GR_LAUNCH_WORKERS_MAX);
    }
    int error = gr_process_tree_adopt();
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "orphans cannot be adopted: %s", strerror(error));
    }
    /* A reader that is gone is a status of write here, not the end of this process. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigset_t before_set;
    (void)sigaction(SIGPIPE, &ignore, &before);
    gr_signals_hold(&before_set);
    gr_arena_init(&job.arena, ARENA_BYTES_MAX);
    gr_status status = run_gang(&job, report_out, diag);
    clean_up(&job);
    report_out->signal_number = job.schedule.signal.number;
    (void)sigprocmask(SIG_SETMASK, &before_set, NULL);
    (void)sigaction(SIGPIPE, &before, NULL);
    return status;
}
