/* SPDX-License-Identifier: Apache-2.0 */

/* Hosts that come and go while the job runs: the script that says which there are, run again and
 * again, and the door at which their agents come by themselves. */

#include "base/fail.h"
#include "launch/gang.h"

#include <stdio.h>
#include <string.h>

enum { ARENA_BYTES_MAX = 4 << 20 };

static void on_seek_timer(uv_timer_t *timer);

static void wait_for_next(gr_gang *gang, int64_t wait_us)
{
    (void)uv_timer_start(&gang->seek_timer, on_seek_timer, (uint64_t)wait_us / 1000, 0);
}

/* The hosts stay as they are. The same is said once, not every second. */
static void warn(gr_gang *gang, const gr_diag *why)
{
    if (strcmp(gang->seek_said.text, why->text) != 0) {
        gang->seek_said = *why;
        gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                     "--host-discovery-script: %s; the job stays on the hosts that it knows",
                     why->text);
    }
}

/* Nothing watches the script any more: what has it said? */
static void on_seek_closed(uv_handle_t *handle)
{
    gr_gang *gang = handle->data;
    gr_host_list hosts;
    gr_diag why = {0};
    gr_arena arena;
    if (gang->phase != GR_PHASE_RUNNING) {
        return;
    }
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if (gr_discovery_end(&gang->discovery, gang->seek_late, &arena, &hosts, &why) != GR_OK) {
        warn(gang, &why);
    } else {
        gang->seek_said.text[0] = '\0';
        gr_gang_apply_hosts(gang, &hosts);
    }
    gr_arena_fini(&arena);
    wait_for_next(gang, gang->config->discovery_us);
}

static void on_script_end(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    gr_gang *gang = poll->data;
    gang->seek_late = false;
    uv_timer_stop(&gang->seek_timer);
    uv_close((uv_handle_t *)poll, on_seek_closed);
}

static void on_seek_timer(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    gr_diag why = {0};
    if (gang->phase != GR_PHASE_RUNNING) {
        return;
    }
    if (gang->discovery.pid > 0) {
        gang->seek_late = true;
        uv_close((uv_handle_t *)&gang->seek_poll, on_seek_closed);
        return;
    }
    if (gr_discovery_begin(&gang->discovery, &why) != GR_OK) {
        warn(gang, &why);
        wait_for_next(gang, gang->config->discovery_us);
        return;
    }
    gang->seek_poll.data = gang;
    if (uv_poll_init(&gang->loop, &gang->seek_poll, gang->discovery.pid_fd) != 0 ||
        uv_poll_start(&gang->seek_poll, UV_READABLE, on_script_end) != 0) {
        gr_discovery_stop(&gang->discovery);
        wait_for_next(gang, gang->config->discovery_us);
        return;
    }
    wait_for_next(gang, GR_DISCOVERY_LIMIT_US);
}

/* ---- The acceptor ---------------------------------------------------------------------------- */

static void on_acceptor_timer(uv_timer_t *timer);

static void accept_agents(gr_gang *gang)
{
    gr_acceptor *acceptor = gang->config->acceptor;
    char name[GR_HOSTS_NAME_BYTES];
    gr_host host;
    gr_diag diag = {0};
    bool came = false;
    (void)!gr_acceptor_progress(acceptor, &diag); /* only a dial can fail, and there is none */
    /* Who comes while all end waits at the door: the job may be begun anew. */
    bool open = gang->phase == GR_PHASE_RUNNING && gr_gang_count_busy(gang) > 0;
    while (open && gr_join_take(acceptor, name, &host)) {
        if (gr_gang_may_change(gang)) {
            gr_gang_add_host(gang, &host);
            came = true;
        } else {
            gr_join_refuse(&host);
        }
    }
    int64_t next_us = gr_acceptor_next_us(acceptor), now = gr_gang_now_us();
    uv_timer_stop(&gang->acceptor_timer);
    if (next_us != GR_NEVER) {
        (void)uv_timer_start(&gang->acceptor_timer, on_acceptor_timer,
                             next_us > now ? (uint64_t)(next_us - now) / 1000 + 1 : 0, 0);
    }
    if (came) {
        gr_gang_aim(gang);
        gr_gang_progress(gang);
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

gr_status gr_gang_seek_hosts(gr_gang *gang, gr_diag *diag)
{
    if (gang->config->discovery != NULL) {
        gang->discovery = (gr_discovery){.script = gang->config->discovery,
                                         .environment = gang->config->environment,
                                         .slots_per_host = gang->config->discovery_slots};
        wait_for_next(gang, gang->config->discovery_us);
    }
    if (gang->config->acceptor == NULL) {
        return GR_OK;
    }
    int error =
        uv_poll_init(&gang->loop, &gang->acceptor_poll, gr_acceptor_fd(gang->config->acceptor));
    gang->acceptor_poll.data = gang;
    if (error == 0) {
        error = uv_poll_start(&gang->acceptor_poll, UV_READABLE, on_door);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "--listen: the door cannot be watched: %s",
                       uv_strerror(error));
    }
    accept_agents(gang);
    return GR_OK;
}
