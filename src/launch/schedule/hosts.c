/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/schedule/internal.h"

#include <signal.h>

enum {
    PAUSE_MIN_US = 1000000, /* before a lost host is tried again; doubled each time */
    PAUSE_MAX_US = 60000000,
    COOL_DOWN_MAX_US = 300000000, /* where hosts come and go, none is given up */
    SOUND_US = 60000000           /* a host that was there for so long is no bad one */
};

bool gr_scheduler_is_active(const gr_scheduler_host *host)
{
    return host->state == GR_HOST_STARTING || host->state == GR_HOST_UP;
}

static bool takes_part(const gr_scheduler_host *host)
{
    return !host->given_up && !host->leaving && !host->removed;
}

int gr_scheduler_room(const gr_scheduler *schedule)
{
    int room = 0;
    for (int i = 0; i < schedule->host_count; i++) {
        const gr_scheduler_host *host = &schedule->hosts[i];
        int slots = host->slot_count > 0 ? host->slot_count : host->offered;
        room += takes_part(host) ? slots : 0;
    }
    return room;
}

int gr_scheduler_most(const gr_scheduler *schedule)
{
    int most = schedule->config.workers_max, room = gr_scheduler_room(schedule);
    return most < room ? most : room;
}

bool gr_scheduler_is_open(const gr_scheduler *schedule)
{
    return schedule->phase == GR_PHASE_RUNNING && gr_scheduler_count_busy(schedule) > 0;
}

/* Numbers for the workers of a host that has none yet. Returns false if there are not enough. */
static bool find_slots(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    int at_once = schedule->config.workers_max + schedule->config.spares, run = 0;
    int count = host->offered < at_once ? host->offered : at_once;
    for (int slot = 0; slot < schedule->config.slots && run < count; slot++) {
        run = schedule->slots[slot].host < 0 ? run + 1 : 0;
        if (run == count) {
            host->first = slot + 1 - count;
        }
    }
    host->slot_count = run == count ? count : 0;
    for (int i = 0; i < host->slot_count; i++) {
        schedule->slots[host->first + i].host = number;
    }
    return host->slot_count > 0;
}

int gr_scheduler_add(gr_scheduler *schedule, int offered, int workers, bool joined)
{
    int number = schedule->host_count++;
    schedule->hosts[number] =
        (gr_scheduler_host){.offered = offered, .workers = workers, .joined = joined};
    return workers == 0 || find_slots(schedule, number) ? number : -1;
}

/* ---- Agents ---------------------------------------------------------------------------------- */

void gr_scheduler_start_agent(gr_scheduler *schedule, int host)
{
    schedule->hosts[host].state = GR_HOST_STARTING;
    gr_scheduler_act(schedule, GR_ACTION_START_AGENT, host, -1, 0);
}

void gr_scheduler_start_workers(gr_scheduler *schedule)
{
    gr_scheduler_time_joining(schedule);
    for (int i = 0; i < schedule->host_count; i++) {
        if (schedule->hosts[i].workers > 0) {
            gr_scheduler_start_agent(schedule, i);
        }
    }
    gr_scheduler_act(schedule, GR_ACTION_WORKERS_CALLED, -1, -1, 0);
}

/* A host is lost, or could not be had: when is it tried again, if at all? */
static void note_loss(gr_scheduler *schedule, gr_scheduler_host *host)
{
    bool changing = schedule->config.changing;
    int64_t now = schedule->call.now_us, pause_us = PAUSE_MIN_US;
    int64_t most_us = changing ? COOL_DOWN_MAX_US : PAUSE_MAX_US;
    bool sound = host->state == GR_HOST_UP && now - host->up_us >= SOUND_US;
    host->losses = sound ? 1 : host->losses + 1;
    for (int i = 1; i < host->losses && pause_us < most_us; i++) {
        pause_us *= 2;
    }
    host->try_us = now + (pause_us < most_us ? pause_us : most_us);
    host->given_up = !schedule->config.elastic || host->joined ||
                     (!changing && host->losses > schedule->config.restarts);
}

/* Hosts that are on their way count as if they were there: one that cannot be had is lost, and then
 * the next one is called. */
void gr_scheduler_call_hosts(gr_scheduler *schedule, int missing)
{
    int64_t now = schedule->call.now_us, next_us = INT64_MAX;
    for (int i = 0; i < schedule->host_count; i++) {
        const gr_scheduler_host *host = &schedule->hosts[i];
        missing -= host->state == GR_HOST_STARTING ? host->slot_count : 0;
    }
    for (int i = 0; i < schedule->host_count && missing > 0; i++) {
        gr_scheduler_host *host = &schedule->hosts[i];
        if (host->state != GR_HOST_AWAY || !takes_part(host)) {
            continue;
        }
        if (now >= host->try_us && (host->slot_count > 0 || find_slots(schedule, i))) {
            gr_scheduler_start_agent(schedule, i);
            missing -= host->slot_count;
            continue;
        }
        int64_t again_us = host->try_us > now ? host->try_us : now + PAUSE_MIN_US;
        next_us = again_us < next_us ? again_us : next_us;
    }
    if (next_us != INT64_MAX) {
        gr_scheduler_set_timer(schedule, GR_TIMER_HOSTS, next_us - now);
    }
}

/* What there is of it is gone; another agent needs its pipes. */
void gr_scheduler_agent_gone(gr_scheduler *schedule, int number)
{
    bool needed = schedule->phase < GR_PHASE_DRAINING;
    schedule->hosts[number].state = needed ? GR_HOST_READING : GR_HOST_AWAY;
    if (needed) {
        gr_scheduler_act(schedule, GR_ACTION_READ_OUTPUT, number, -1, 0);
    }
}

void gr_scheduler_start_refused(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    bool serves = gr_scheduler_serves(schedule, number);
    if (!serves) {
        note_loss(schedule, host);
    }
    gr_scheduler_agent_gone(schedule, number);
    bool begins = serves ? !gr_scheduler_server_refused(schedule, host->first) : !schedule->going;
    if (begins) {
        gr_scheduler_blame(schedule, GR_REASON_NOT_STARTED);
        gr_scheduler_end_after_failure(schedule);
    } else if (!serves) {
        gr_scheduler_act(schedule, GR_ACTION_HOST_FAILED, number, -1, 0);
        gr_scheduler_fill(schedule);
    }
    gr_scheduler_end_if_idle(schedule);
}

/* Nothing runs anywhere until all hosts are there; who comes later starts at once. */
void gr_scheduler_agent_ready(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    host->state = GR_HOST_UP;
    host->up_us = schedule->call.now_us;
    if (schedule->going || gr_scheduler_serves(schedule, number)) {
        gr_scheduler_act(schedule, GR_ACTION_RUN, number, -1, 0);
        gr_scheduler_fill(schedule);
        return;
    }
    schedule->going = schedule->phase == GR_PHASE_RUNNING;
    for (int i = 0; i < schedule->host_count; i++) {
        schedule->going = schedule->going && schedule->hosts[i].state != GR_HOST_STARTING;
    }
    if (schedule->going) {
        gr_scheduler_act(schedule, GR_ACTION_RUN_ALL, -1, -1, 0);
        gr_scheduler_all_ready(schedule);
    }
}

static void close_agent(gr_scheduler *schedule, int number)
{
    schedule->hosts[number].state = GR_HOST_CLOSING;
    gr_scheduler_act(schedule, GR_ACTION_CLOSE_AGENT, number, -1, 0);
    gr_scheduler_end_if_idle(schedule);
}

void gr_scheduler_agent_done(gr_scheduler *schedule, int number)
{
    if (schedule->hosts[number].state == GR_HOST_STARTING &&
        !gr_scheduler_serves(schedule, number)) {
        note_loss(schedule, &schedule->hosts[number]);
    }
    close_agent(schedule, number);
}

/* Its workers are dead. Returns true if the others go on. */
static bool lose_workers(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    const gr_scheduler_host *host = &schedule->hosts[event->host];
    bool on = schedule->host_count > 1;
    for (int slot = host->first; slot < host->first + host->slot_count; slot++) {
        gr_worker_end *end = &schedule->ends[slot];
        if (end->ended || !schedule->slots[slot].busy) {
            continue;
        }
        end->started = end->lost = true;
        end->host = event->label;
        end->was_asked = schedule->told != 0;
        gr_scheduler_note_end(schedule, slot, SIGKILL);
        on = on && schedule->told == 0 && gr_scheduler_spare(schedule, slot);
    }
    return on;
}

/* The agent, or the way to it, is gone, and its workers with it. */
void gr_scheduler_agent_lost(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    gr_scheduler_host *host = &schedule->hosts[event->host];
    schedule->any_lost = true;
    if (gr_scheduler_serves(schedule, event->host)) {
        host->state = GR_HOST_CLOSING;
        gr_scheduler_server_lost(schedule, event->host);
        close_agent(schedule, event->host);
        return;
    }
    note_loss(schedule, host);
    host->state = GR_HOST_CLOSING; /* nobody is started there */
    bool followed = gr_scheduler_may_follow(schedule, false);
    bool on =
        schedule->going && lose_workers(schedule, event) &&
        (!host->given_up || gr_scheduler_count_busy(schedule) >= schedule->config.workers_min);
    if (on && schedule->told == 0) {
        bool known = host->leaving || host->joined;
        gr_scheduler_next next = host->given_up ? GR_NEXT_GIVEN_UP : GR_NEXT_TRY;
        gr_scheduler_act(schedule, GR_ACTION_HOST_LEFT, event->host, -1,
                         (int)(known ? GR_NEXT_NONE : next));
        gr_scheduler_set_target(schedule);
    } else if (schedule->told == 0) {
        gr_scheduler_blame_loss(schedule, followed);
        gr_scheduler_end_after_failure(schedule);
    }
    close_agent(schedule, event->host);
}

static void remove_host(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    for (int i = 0; i < host->slot_count; i++) {
        schedule->slots[host->first + i].host = -1;
    }
    host->slot_count = host->losses = 0;
    host->removed = true;
    host->leaving = false;
}

void gr_scheduler_output_read(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    host->state = GR_HOST_AWAY;
    if (schedule->phase >= GR_PHASE_DRAINING) {
        return;
    }
    if (gr_scheduler_serves(schedule, number)) {
        gr_scheduler_start_servers_again(schedule);
        return;
    }
    if (schedule->going && (host->leaving || host->joined)) {
        remove_host(schedule, number); /* an agent that has joined may join again */
    }
    gr_scheduler_fill(schedule);
}

/* ---- Hosts that come and go ------------------------------------------------------------------ */

static void add_host(gr_scheduler *schedule, const gr_scheduler_event *event, int offer)
{
    int number = 0;
    while (number < schedule->host_count && !schedule->hosts[number].removed) {
        number++;
    }
    if (number == schedule->config.host_room) { /* until another one goes */
        gr_scheduler_act(schedule, GR_ACTION_REFUSE_HOST, -1, -1, offer);
        return;
    }
    schedule->host_count += number == schedule->host_count;
    schedule->hosts[number] = (gr_scheduler_host){.offered = event->offers[offer].slots,
                                                  .joined = event->offers[offer].joined};
    gr_scheduler_act(schedule, GR_ACTION_ADD_HOST, number, -1, offer);
}

static void dismiss_host(gr_scheduler *schedule, int number)
{
    gr_scheduler_host *host = &schedule->hosts[number];
    int busy = gr_scheduler_count_busy_of(schedule, number);
    host->leaving = true;
    gr_scheduler_act(schedule, GR_ACTION_HOST_LEAVES, number, -1, busy);
    for (int slot = host->first; slot < host->first + host->slot_count; slot++) {
        if (schedule->slots[slot].busy) {
            gr_scheduler_act(schedule, GR_ACTION_DRAIN_MEMBER, -1, slot, 0);
        }
    }
    if (host->state == GR_HOST_AWAY) {
        remove_host(schedule, number);
    } else if (busy == 0) {
        gr_scheduler_act(schedule, GR_ACTION_END_AGENT, number, -1, 0);
    }
}

void gr_scheduler_apply_hosts(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    int known = schedule->host_count;
    if (event->flag && !schedule->group.complete) {
        return; /* all that it begins with are still on their way */
    }
    for (int i = 0; i < known && event->flag; i++) {
        bool named = false;
        for (int at = 0; at < event->value && !named; at++) {
            named = event->offers[at].host == i;
        }
        if (!named && !schedule->hosts[i].leaving && !schedule->hosts[i].removed) {
            dismiss_host(schedule, i);
        }
    }
    for (int at = 0; at < event->value; at++) {
        if (event->offers[at].host < 0) {
            add_host(schedule, event, at);
        } else { /* once it is restarted */
            schedule->hosts[event->offers[at].host].offered = event->offers[at].slots;
        }
    }
    gr_scheduler_aim(schedule);
}
