/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/schedule/internal.h"

#include "base/fail.h"

gr_status gr_scheduler_init(gr_scheduler *schedule, const gr_scheduler_config *config,
                            const int *sites, gr_arena *arena, gr_diag *diag)
{
    int slots = config->slots + config->servers, hosts = config->host_room + config->servers;
    *schedule = (gr_scheduler){.config = *config,
                               .want = config->workers,
                               .asked = config->changing ? config->workers_max : config->workers,
                               .spares = config->spares,
                               .restarts_left = config->restarts * config->workers,
                               .server.lost = -1,
                               .crash.last = config->crash,
                               .call.max = 3 * slots + 4 * hosts + 32};
    schedule->slots = gr_arena_alloc(arena, (size_t)slots * sizeof *schedule->slots);
    schedule->ends = gr_arena_alloc(arena, (size_t)slots * sizeof *schedule->ends);
    schedule->hosts = gr_arena_alloc(arena, (size_t)hosts * sizeof *schedule->hosts);
    schedule->servers =
        gr_arena_alloc(arena, (size_t)(config->servers + 1) * sizeof *schedule->servers);
    schedule->call.actions =
        gr_arena_alloc(arena, (size_t)schedule->call.max * sizeof *schedule->call.actions);
    if (schedule->slots == NULL || schedule->ends == NULL || schedule->hosts == NULL ||
        schedule->servers == NULL || schedule->call.actions == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", config->workers);
    }
    for (int i = 0; i < slots; i++) {
        schedule->slots[i] = (gr_scheduler_slot){.host = -1, .busy = i < config->workers};
        schedule->ends[i].spared = i >= config->workers && i < config->slots;
    }
    for (int i = 0; i < config->servers; i++) {
        int host = config->host_room + i, slot = config->slots + i;
        schedule->servers[i].site = sites[i];
        schedule->slots[slot].host = host;
        schedule->hosts[host] =
            (gr_scheduler_host){.offered = 1, .workers = 1, .first = slot, .slot_count = 1};
    }
    return GR_OK;
}

gr_scheduler_action *gr_scheduler_act(gr_scheduler *schedule, gr_scheduler_action_kind kind,
                                      int host, int slot, int value)
{
    GR_CHECK(schedule->call.count < schedule->call.max);
    gr_scheduler_action *action = &schedule->call.actions[schedule->call.count++];
    *action = (gr_scheduler_action){.kind = kind, .host = host, .slot = slot, .value = value};
    return action;
}

void gr_scheduler_set_timer(gr_scheduler *schedule, gr_scheduler_timer timer, int64_t after_us)
{
    gr_scheduler_action_kind kind = after_us >= 0 ? GR_ACTION_SET_TIMER : GR_ACTION_STOP_TIMER;
    gr_scheduler_act(schedule, kind, -1, -1, (int)timer)->after_us = after_us;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void on_agent_event(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    bool known = (event->host >= 0 && event->host < schedule->host_count) ||
                 (gr_scheduler_serves(schedule, event->host) &&
                  event->host < schedule->config.host_room + schedule->config.servers);
    gr_host_state state = known ? schedule->hosts[event->host].state : GR_HOST_AWAY;
    bool active = state == GR_HOST_STARTING || state == GR_HOST_UP;
    if (event->kind == GR_EVENT_AGENT_READY && state == GR_HOST_STARTING) {
        gr_scheduler_agent_ready(schedule, event->host);
    } else if (event->kind == GR_EVENT_START_REFUSED && state == GR_HOST_STARTING) {
        gr_scheduler_start_refused(schedule, event->host);
    } else if (event->kind == GR_EVENT_AGENT_DONE && active) {
        gr_scheduler_agent_done(schedule, event->host);
    } else if (event->kind == GR_EVENT_AGENT_LOST && active) {
        gr_scheduler_agent_lost(schedule, event);
    } else if (event->kind == GR_EVENT_AGENT_GONE && state == GR_HOST_CLOSING) {
        gr_scheduler_agent_gone(schedule, event->host);
    } else if (event->kind == GR_EVENT_OUTPUT_READ && state == GR_HOST_READING) {
        gr_scheduler_output_read(schedule, event->host);
    }
}

/* What comes from another host is not taken for sound: each worker begins once, and ends once. */
static void on_worker_event(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    bool known = event->slot >= 0 &&
                 event->slot < schedule->config.slots + schedule->config.servers &&
                 schedule->slots[event->slot].host >= 0;
    bool busy = known && schedule->slots[event->slot].busy;
    bool runs = busy && schedule->ends[event->slot].started;
    if (event->kind == GR_EVENT_WORKER_STARTED && busy && !runs) {
        gr_worker_end *end = &schedule->ends[event->slot];
        end->started = true;
        end->spared = false;
        end->pid = event->pid;
        end->host = event->label;
        end->start_us = event->now_us;
    } else if (event->kind == GR_EVENT_WORKER_ENDED && runs) {
        if (event->slot < schedule->config.slots) {
            gr_scheduler_worker_ended(schedule, event);
        } else {
            gr_scheduler_server_ended(schedule, event);
        }
    } else if (event->kind == GR_EVENT_WORKER_NOT_STARTED && known && !runs) {
        gr_scheduler_worker_not_started(schedule, event->slot);
    }
}

static void on_server_event(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    if (event->kind == GR_EVENT_SERVER_READY) {
        gr_scheduler_server_ready(schedule, event->slot);
    } else if (event->kind == GR_EVENT_SERVER_MET) {
        schedule->servers[event->slot - schedule->config.slots].met = true;
    } else if (schedule->phase == GR_PHASE_RUNNING && !schedule->server.published) {
        schedule->server.published = true;
        gr_scheduler_start_workers(schedule);
    }
}

static void on_group_event(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    if (event->kind == GR_EVENT_MEMBER) {
        schedule->slots[event->slot].member = event->value;
        schedule->slots[event->slot].served = event->flag;
        schedule->slots[event->slot].awaited = event->awaited;
        return;
    }
    schedule->group.joined = event->value;
    schedule->group.at_rest = event->flag;
    schedule->group.over = event->over;
    gr_scheduler_check_joining(schedule);
    gr_scheduler_fill(schedule);
    gr_scheduler_watch_renewal(schedule);
}

static void on_timer(gr_scheduler *schedule, int timer)
{
    if (timer == GR_TIMER_PHASE) {
        gr_scheduler_phase_timeout(schedule);
    } else if (timer == GR_TIMER_HOSTS) {
        gr_scheduler_fill(schedule);
    } else if (timer == GR_TIMER_FENCE) {
        gr_scheduler_fence_timeout(schedule);
    } else if (schedule->config.servers > 0 && !schedule->server.published) {
        gr_scheduler_servers_timeout(schedule);
    } else {
        gr_scheduler_join_timeout(schedule);
    }
}

static void begin(gr_scheduler *schedule)
{
    gr_scheduler_set_target(schedule);
    if (schedule->config.servers > 0) {
        gr_scheduler_start_servers(schedule);
    } else {
        gr_scheduler_start_workers(schedule);
    }
}

static gr_scheduler_word judge(const gr_scheduler *schedule, int workers)
{
    const gr_scheduler_config *config = &schedule->config;
    bool possible = workers >= config->workers_min && workers <= gr_scheduler_most(schedule);
    return !possible                                                     ? GR_WORD_NEVER
           : !schedule->group.complete                                   ? GR_WORD_STARTING
           : schedule->phase != GR_PHASE_RUNNING || schedule->group.over ? GR_WORD_ENDING
                                                                         : GR_WORD_GRANTED;
}

static void scale(gr_scheduler *schedule, int workers)
{
    gr_scheduler_word word = judge(schedule, workers);
    gr_scheduler_act(schedule, GR_ACTION_ANSWER, -1, -1, (int)word);
    if (word == GR_WORD_GRANTED) {
        schedule->want = schedule->asked = workers;
        gr_scheduler_set_target(schedule);
        gr_scheduler_fill(schedule);
    }
}

static void fail(gr_scheduler *schedule, int reason)
{
    if (schedule->phase == GR_PHASE_RUNNING || reason != GR_REASON_COORDINATOR) {
        gr_scheduler_blame(schedule, (gr_scheduler_reason)reason);
        gr_scheduler_end_after_failure(schedule);
    }
}

int gr_scheduler_decide(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    typedef void handler(gr_scheduler *, const gr_scheduler_event *);
    static handler *const handlers[] = {[GR_EVENT_AGENT_READY] = on_agent_event,
                                        [GR_EVENT_AGENT_DONE] = on_agent_event,
                                        [GR_EVENT_AGENT_LOST] = on_agent_event,
                                        [GR_EVENT_AGENT_GONE] = on_agent_event,
                                        [GR_EVENT_START_REFUSED] = on_agent_event,
                                        [GR_EVENT_OUTPUT_READ] = on_agent_event,
                                        [GR_EVENT_WORKER_STARTED] = on_worker_event,
                                        [GR_EVENT_WORKER_ENDED] = on_worker_event,
                                        [GR_EVENT_WORKER_NOT_STARTED] = on_worker_event,
                                        [GR_EVENT_SERVER_READY] = on_server_event,
                                        [GR_EVENT_SERVER_MET] = on_server_event,
                                        [GR_EVENT_SERVERS_PUBLISHED] = on_server_event,
                                        [GR_EVENT_MEMBER] = on_group_event,
                                        [GR_EVENT_GROUP] = on_group_event,
                                        [GR_EVENT_HOSTS] = gr_scheduler_apply_hosts,
                                        [GR_EVENT_KINDS] = NULL};
    schedule->call.count = 0;
    schedule->call.now_us = event->now_us;
    if (schedule->phase == GR_PHASE_OVER) {
        return 0;
    }
    if (handlers[event->kind] != NULL) {
        handlers[event->kind](schedule, event);
    } else if (event->kind == GR_EVENT_BEGIN) {
        begin(schedule);
    } else if (event->kind == GR_EVENT_SCALE) {
        scale(schedule, event->value);
    } else if (event->kind == GR_EVENT_SIGNAL) {
        gr_scheduler_on_signal(schedule, event->value);
    } else if (event->kind == GR_EVENT_TIMER) {
        on_timer(schedule, event->value);
    } else if (event->kind == GR_EVENT_FAILED) {
        fail(schedule, event->value);
    } else if (schedule->phase == GR_PHASE_DRAINING) { /* the output is written */
        gr_scheduler_finish(schedule);
    }
    return schedule->call.count;
}
