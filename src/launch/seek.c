/* SPDX-License-Identifier: Apache-2.0 */

/* Hosts that come and go while the job runs: the script that says which there are, run again and
 * again, and the door at which their agents come by themselves. */

#include "base/fail.h"
#include "launch/launch_job.h"

#include <stdio.h>
#include <string.h>

enum { ARENA_BYTES_MAX = 4 << 20 };

static void on_seek_timer(uv_timer_t *timer);

static void wait_for_next(gr_launch_job *job, int64_t wait_us)
{
    (void)uv_timer_start(&job->seek_timer, on_seek_timer, (uint64_t)wait_us / 1000, 0);
}

/* The hosts stay as they are. The same is said once, not every second. */
static void warn(gr_launch_job *job, const gr_diag *why)
{
    if (strcmp(job->seek_said.text, why->text) != 0) {
        job->seek_said = *why;
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "--host-discovery-script: %s; the job stays on the hosts that it knows",
                     why->text);
    }
}

/* Nothing watches the script any more: what has it said? */
static void on_seek_closed(uv_handle_t *handle)
{
    gr_launch_job *job = handle->data;
    gr_host_list hosts;
    gr_diag why = {0};
    gr_arena arena;
    if (job->phase != GR_PHASE_RUNNING) {
        return;
    }
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if (gr_discovery_end(&job->discovery, job->seek_late, &arena, &hosts, &why) != GR_OK) {
        warn(job, &why);
    } else {
        job->seek_said.text[0] = '\0';
        gr_launch_job_apply_hosts(job, &hosts);
    }
    gr_arena_fini(&arena);
    wait_for_next(job, job->config->discovery_us);
}

static void on_script_end(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    gr_launch_job *job = poll->data;
    job->seek_late = false;
    uv_timer_stop(&job->seek_timer);
    uv_close((uv_handle_t *)poll, on_seek_closed);
}

static void on_seek_timer(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    gr_diag why = {0};
    if (job->phase != GR_PHASE_RUNNING) {
        return;
    }
    if (job->discovery.pid > 0) {
        job->seek_late = true;
        uv_close((uv_handle_t *)&job->seek_poll, on_seek_closed);
        return;
    }
    if (gr_discovery_begin(&job->discovery, &why) != GR_OK) {
        warn(job, &why);
        wait_for_next(job, job->config->discovery_us);
        return;
    }
    job->seek_poll.data = job;
    if (uv_poll_init(&job->loop, &job->seek_poll, job->discovery.pid_fd) != 0 ||
        uv_poll_start(&job->seek_poll, UV_READABLE, on_script_end) != 0) {
        gr_discovery_stop(&job->discovery);
        wait_for_next(job, job->config->discovery_us);
        return;
    }
    wait_for_next(job, GR_DISCOVERY_LIMIT_US);
}

/* ---- The acceptor ---------------------------------------------------------------------------- */

static void on_acceptor_timer(uv_timer_t *timer);

static void accept_agents(gr_launch_job *job)
{
    gr_acceptor *acceptor = job->config->acceptor;
    char name[GR_HOSTS_NAME_BYTES];
    gr_host host;
    gr_diag diag = {0};
    bool came = false;
    (void)!gr_acceptor_progress(acceptor, &diag); /* only a dial can fail, and there is none */
    /* Who comes while all end waits at the door: the job may be begun anew. */
    bool open = job->phase == GR_PHASE_RUNNING && gr_launch_job_count_busy(job) > 0;
    while (open && gr_join_take(acceptor, name, &host)) {
        if (gr_launch_job_may_change(job)) {
            gr_launch_job_add_host(job, &host);
            came = true;
        } else {
            gr_join_refuse(&host);
        }
    }
    int64_t next_us = gr_acceptor_next_us(acceptor), now = gr_launch_job_now_us();
    uv_timer_stop(&job->acceptor_timer);
    if (next_us != GR_NEVER) {
        (void)uv_timer_start(&job->acceptor_timer, on_acceptor_timer,
                             next_us > now ? (uint64_t)(next_us - now) / 1000 + 1 : 0, 0);
    }
    if (came) {
        gr_launch_job_aim(job);
        gr_launch_job_progress(job);
    }
}

static void on_acceptor_timer(uv_timer_t *timer)
{
    accept_agents(timer->data);
}

static void on_door(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    accept_agents(poll->data);
}

gr_status gr_launch_job_discover_hosts(gr_launch_job *job, gr_diag *diag)
{
    if (job->config->discovery != NULL) {
        job->discovery = (gr_discovery){.script = job->config->discovery,
                                        .environment = job->config->environment,
                                        .slots_per_host = job->config->discovery_slots};
        wait_for_next(job, job->config->discovery_us);
    }
    if (job->config->acceptor == NULL) {
        return GR_OK;
    }
    int error =
        uv_poll_init(&job->loop, &job->acceptor_poll, gr_acceptor_fd(job->config->acceptor));
    job->acceptor_poll.data = job;
    if (error == 0) {
        error = uv_poll_start(&job->acceptor_poll, UV_READABLE, on_door);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "--listen: the door cannot be watched: %s",
                       uv_strerror(error));
    }
    accept_agents(job);
    return GR_OK;
}
