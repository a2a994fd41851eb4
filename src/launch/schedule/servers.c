/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/schedule/internal.h"

#include <signal.h>
#include <sys/wait.h>

bool gr_scheduler_serves(const gr_scheduler *schedule, int host)
{
    return host >= schedule->config.host_room;
}

/* They have to be there before the first worker, and after the last. */
void gr_scheduler_start_servers(gr_scheduler *schedule)
{
    for (int i = 0; i < schedule->config.servers; i++) {
        schedule->slots[schedule->config.slots + i].busy = true;
        gr_scheduler_start_agent(schedule, schedule->config.host_room + i);
    }
    if (schedule->config.start_timeout_us > 0) {
        gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, schedule->config.start_timeout_us);
    }
}

/* One that came in place of another, and that the others do not count among them yet. */
static bool is_idle(const gr_scheduler_server *server)
{
    return server->replaces && !server->met;
}

void gr_scheduler_server_ready(gr_scheduler *schedule, int slot)
{
    gr_scheduler_server *server = &schedule->servers[slot - schedule->config.slots];
    bool all = schedule->phase == GR_PHASE_RUNNING;
    server->ready = true;
    if (server->replaces) {
        gr_scheduler_act(schedule, GR_ACTION_SERVER_MOVED, -1, slot, 0);
        return;
    }
    for (int i = 0; i < schedule->config.servers; i++) {
        all = all && schedule->servers[i].ready;
    }
    if (all) {
        gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, -1);
        gr_scheduler_act(schedule, GR_ACTION_PUBLISH_SERVERS, -1, -1, 0);
    }
}

/* Returns true if the remaining servers can agree that server `number` is dead. On its host they
 * know it; on others they must be a quorum of those that lived: more than half, or half with the
 * lowest number (ps/server/membership_view.h). */
static bool can_agree(const gr_scheduler *schedule, int number)
{
    int left = 0, lowest = number;
    for (int i = 0; i < schedule->config.servers; i++) {
        if (!schedule->slots[schedule->config.slots + i].busy || is_idle(&schedule->servers[i])) {
            continue;
        }
        if (schedule->servers[i].site == schedule->servers[number].site) {
            return true;
        }
        left++;
        lowest = i < lowest ? i : lowest;
    }
    return left > 1 || (left == 1 && lowest != number);
}

/* Another one is to be started in its place, so many times at most. */
static bool renew(gr_scheduler *schedule, gr_scheduler_server *server)
{
    server->again = schedule->config.servers_again &&
                    server->restarts < schedule->config.restarts && !schedule->server.told;
    server->restarts += server->again;
    return server->again;
}

/* A server is gone. Does the job go on without it, with so many others? */
static bool spare(gr_scheduler *schedule, int slot, int least)
{
    const gr_scheduler_config *config = &schedule->config;
    gr_scheduler_server *lost = &schedule->servers[slot - config->slots];
    int left = 0;
    bool met = true;
    for (int i = 0; i < config->servers; i++) {
        const gr_scheduler_server *server = &schedule->servers[i];
        left += schedule->slots[config->slots + i].busy && !is_idle(server);
        met = met && (server->met || server->replaces);
    }
    bool on = config->servers_spare && met && left >= (is_idle(lost) ? 1 : least) &&
              schedule->phase == GR_PHASE_RUNNING;
    if (on) {
        schedule->server.spared += !is_idle(lost);
        gr_scheduler_act(schedule, GR_ACTION_GO_ON_SERVERS, -1, slot, left)->flag =
            renew(schedule, lost);
    }
    return on;
}

void gr_scheduler_start_servers_again(gr_scheduler *schedule)
{
    for (int i = 0; i < schedule->config.servers; i++) {
        gr_scheduler_server *server = &schedule->servers[i];
        int host = schedule->config.host_room + i, slot = schedule->config.slots + i;
        if (server->again && schedule->hosts[host].state == GR_HOST_AWAY &&
            !schedule->server.told && schedule->phase == GR_PHASE_RUNNING) {
            server->again = server->ready = server->met = false;
            server->replaces = true;
            schedule->slots[slot].busy = true;
            schedule->ends[slot] = (gr_worker_end){0};
            gr_scheduler_start_agent(schedule, host);
        }
    }
}

bool gr_scheduler_server_refused(gr_scheduler *schedule, int slot)
{
    if (!schedule->servers[slot - schedule->config.slots].replaces) {
        return false;
    }
    schedule->slots[slot].busy = false;
    gr_scheduler_act(schedule, GR_ACTION_HOST_FAILED, schedule->slots[slot].host, slot, 0);
    return true;
}

void gr_scheduler_servers_timeout(gr_scheduler *schedule)
{
    int number = 0;
    while (number + 1 < schedule->config.servers && schedule->servers[number].ready) {
        number++;
    }
    if (schedule->reason == GR_REASON_NONE) {
        schedule->reason = GR_REASON_NOT_JOINED;
        gr_scheduler_act(schedule, GR_ACTION_REPORT, -1, schedule->config.slots + number,
                         GR_REASON_NOT_JOINED);
    }
    gr_scheduler_end_after_failure(schedule);
}

void gr_scheduler_server_ended(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    int number = event->slot - schedule->config.slots, status = event->value;
    gr_scheduler_note_end(schedule, event->slot, status);
    bool asked = WIFEXITED(status) || WTERMSIG(status) == SIGTERM;
    if (schedule->server.told && (asked || schedule->phase >= GR_PHASE_KILLING)) {
        return;
    }
    bool agreed = is_idle(&schedule->servers[number]) || can_agree(schedule, number);
    if (agreed && spare(schedule, event->slot, 1)) {
        return;
    }
    /* Workers that fail do so because of it, also those that were heard of before it. */
    schedule->server.lost = schedule->server.lost < 0 ? event->slot : schedule->server.lost;
    if (schedule->phase <= GR_PHASE_SETTLING) {
        gr_scheduler_blame(schedule, GR_REASON_SERVER);
        gr_scheduler_end_after_failure(schedule);
    }
}

void gr_scheduler_server_lost(gr_scheduler *schedule, int host)
{
    /* Servers that see nothing of others but their silence wait, unless they are the majority. */
    int majority = schedule->config.servers / 2 + 1, slot = schedule->hosts[host].first;
    if (!schedule->slots[slot].busy) {
        return; /* it had ended before */
    }
    schedule->slots[slot].busy = false;
    if (schedule->server.told || schedule->phase > GR_PHASE_SETTLING ||
        spare(schedule, slot, majority)) {
        return;
    }
    gr_scheduler_blame_loss(schedule, gr_scheduler_may_follow(schedule, true));
    gr_scheduler_end_after_failure(schedule);
}

bool gr_scheduler_end_servers(gr_scheduler *schedule)
{
    bool any = false;
    for (int i = 0; i < schedule->config.servers; i++) {
        any = any || gr_scheduler_is_active(&schedule->hosts[schedule->config.host_room + i]);
    }
    /* The end of one of them may be why the workers failed, and be heard of in a moment. */
    if (any && !schedule->server.told && schedule->phase != GR_PHASE_SETTLING) {
        schedule->server.told = true;
        gr_scheduler_act(schedule, GR_ACTION_SIGNAL_SERVERS, -1, -1, SIGTERM);
        gr_scheduler_wait_for_end(schedule, schedule->config.grace_us);
    }
    return any;
}
