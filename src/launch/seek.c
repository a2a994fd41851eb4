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
    (void)uv_timer_start(&job->seek.script_timer, on_seek_timer, (uint64_t)wait_us / 1000, 0);
}

/* The hosts stay as they are. The same is said once, not every second. */
static void warn(gr_launch_job *job, const gr_diag *why)
{
    if (strcmp(job->seek.said.text, why->text) != 0) {
        job->seek.said = *why;
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "--host-discovery-script: %s; the job stays on the hosts that it knows",
                     why->text);
    }
}

/* The number of the host with that name; -1: it is new. */
static int find_host(const gr_launch_job *job, const char *name)
{
    for (int i = 0; i < job->schedule.host_count; i++) {
        if (!job->schedule.hosts[i].removed && strcmp(job->agents[i].host.name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static void offer_hosts(gr_launch_job *job, gr_host *hosts, int count, bool all)
{
    gr_scheduler_offer offers[GR_HOSTS_MAX];
    for (int i = 0; i < count; i++) {
        offers[i] = (gr_scheduler_offer){
            .host = all ? find_host(job, hosts[i].name) : -1,
            .slots = hosts[i].slots,
            .joined = gr_placement_of(&hosts[i], job->config->remote.placement)->once};
    }
    job->seek.came = hosts;
    gr_launch_job_happen(job,
                         &(gr_scheduler_event){
                             .kind = GR_EVENT_HOSTS, .offers = offers, .value = count, .flag = all},
                         NULL);
}

/* Nothing watches the script any more: what has it said? */
static void on_seek_closed(uv_handle_t *handle)
{
    gr_launch_job *job = handle->data;
    gr_host_list hosts;
    gr_diag why = {0};
    gr_arena arena;
    if (job->schedule.phase != GR_PHASE_RUNNING) {
        return;
    }
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if (gr_discovery_end(&job->seek.discovery, job->seek.late, &arena, &hosts, &why) != GR_OK) {
        warn(job, &why);
    } else {
        job->seek.said.text[0] = '\0';
        offer_hosts(job, hosts.at, hosts.count, true);
    }
    gr_arena_fini(&arena);
    wait_for_next(job, job->config->discovery.pause_us);
}

/* The script cannot be watched; its handle is gone, and another one may take its place. */
static void on_unwatched_closed(uv_handle_t *handle)
{
    gr_launch_job *job = handle->data;
    gr_discovery_stop(&job->seek.discovery);
    if (job->schedule.phase == GR_PHASE_RUNNING) {
        wait_for_next(job, job->config->discovery.pause_us);
    }
}

static void on_script_end(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    gr_launch_job *job = poll->data;
    job->seek.late = false;
    uv_timer_stop(&job->seek.script_timer);
    uv_close((uv_handle_t *)poll, on_seek_closed);
}

static void on_seek_timer(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    gr_diag why = {0};
    if (job->schedule.phase != GR_PHASE_RUNNING) {
        return;
    }
    if (job->seek.discovery.pid > 0) {
        job->seek.late = true;
        uv_close((uv_handle_t *)&job->seek.script_poll, on_seek_closed);
        return;
    }
    if (gr_discovery_begin(&job->seek.discovery, &why) != GR_OK) {
        warn(job, &why);
        wait_for_next(job, job->config->discovery.pause_us);
        return;
    }
    uv_poll_t *poll = &job->seek.script_poll;
    poll->data = job;
    if (uv_poll_init(&job->loop.loop, poll, job->seek.discovery.pid_fd) != 0) {
        gr_discovery_stop(&job->seek.discovery);
        wait_for_next(job, job->config->discovery.pause_us);
        return;
    }
    if (uv_poll_start(poll, UV_READABLE, on_script_end) != 0) {
        uv_close((uv_handle_t *)poll, on_unwatched_closed);
        return;
    }
    wait_for_next(job, GR_DISCOVERY_LIMIT_US);
}

/* ---- The acceptor ---------------------------------------------------------------------------- */

static void on_acceptor_timer(uv_timer_t *timer);

static void accept_agents(gr_launch_job *job)
{
    gr_acceptor *acceptor = job->config->discovery.acceptor;
    char name[GR_HOSTS_NAME_BYTES];
    gr_host host;
    gr_diag diag = {0};
    (void)!gr_acceptor_progress(acceptor, &diag); /* only a dial can fail, and there is none */
    /* Who comes while all end waits at the door: the job may be restarted. */
    while (gr_scheduler_is_open(&job->schedule) && gr_join_take(acceptor, name, &host)) {
        if (gr_launch_elastic(job->config)) {
            offer_hosts(job, &host, 1, false);
        } else {
            gr_join_refuse(&host);
        }
    }
    int64_t next_us = gr_acceptor_next_us(acceptor), now = gr_launch_job_now_us();
    uv_timer_stop(&job->seek.acceptor_timer);
    if (next_us != GR_NEVER) {
        (void)uv_timer_start(&job->seek.acceptor_timer, on_acceptor_timer,
                             next_us > now ? (uint64_t)(next_us - now) / 1000 + 1 : 0, 0);
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
    if (job->config->discovery.script != NULL) {
        job->seek.discovery = (gr_discovery){.script = job->config->discovery.script,
                                             .environment = job->config->command.environment,
                                             .slots_per_host = job->config->discovery.slots};
        wait_for_next(job, job->config->discovery.pause_us);
    }
    if (job->config->discovery.acceptor == NULL) {
        return GR_OK;
    }
    int error = uv_poll_init(&job->loop.loop, &job->seek.acceptor_poll,
                             gr_acceptor_fd(job->config->discovery.acceptor));
    job->seek.acceptor_poll.data = job;
    if (error == 0) {
        error = uv_poll_start(&job->seek.acceptor_poll, UV_READABLE, on_door);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "--listen: the door cannot be watched: %s",
                       uv_strerror(error));
    }
    accept_agents(job);
    return GR_OK;
}
