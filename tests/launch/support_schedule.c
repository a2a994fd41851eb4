/* SPDX-License-Identifier: Apache-2.0 */
#include "support_schedule_world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Actions --------------------------------------------------------------------------------- */

void world_end_process(world *w, int slot, int status)
{
    process *of = &w->now.processes[slot];
    of->state = PROCESS_ENDED;
    of->stopped = of->fenced = false;
    of->status = (int16_t)status;
    if (status == 0 && !world_is_server(w, slot) && of->member == GR_MEMBER_JOINED) {
        of->member = GR_MEMBER_LEFT;
    } else if (of->member == GR_MEMBER_JOINED) {
        of->member = GR_MEMBER_LOST;
        w->now.at_rest = false;
    }
}

static void fence(world *w, int slot, const gr_scheduler_event *event)
{
    if (event->kind != GR_EVENT_TIMER || event->value != GR_TIMER_FENCE ||
        !world_is_awaited(w, slot)) {
        search_wrong(w->why, "slot %d is fenced, and nobody has waited for it", slot);
    }
    if (w->schedule.phase != GR_PHASE_RUNNING) {
        search_wrong(w->why, "slot %d is fenced while the job ends", slot);
    }
    w->now.processes[slot].fenced = true;
}

static void run_agent(world *w, int host)
{
    agent *of = &w->now.agents[host];
    const gr_scheduler_host *known = &w->schedule.hosts[host];
    if (of->state != AGENT_READY) {
        search_wrong(w->why, "START went to the agent of host %d, which is not ready", host);
        return;
    }
    of->state = AGENT_RUNS;
    for (int i = 0; i < of->begin && !of->ending && !of->killing; i++) {
        process *began = &w->now.processes[known->first + i];
        if (began->state != PROCESS_NONE) {
            search_wrong(w->why, "two processes begin in slot %d", known->first + i);
        }
        began->state = PROCESS_SPAWNED;
    }
}

static void tell_agents(world *w, bool servers, bool kill)
{
    for (int host = 0; host < world_host_end(w); host++) {
        agent *of = &w->now.agents[host];
        const gr_scheduler_host *known = &w->schedule.hosts[host];
        if (world_host_serves(w, host) != servers || of->state == AGENT_NONE ||
            of->state >= AGENT_CLOSING) {
            continue;
        }
        of->stays = false;
        of->ending = of->ending || !kill;
        of->killing = of->killing || kill;
        for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
            process *at = &w->now.processes[slot];
            at->told = at->told || world_lives(at);
            if (kill && world_lives(at)) {
                world_end_process(w, slot, SIGKILL);
            }
        }
    }
}

static void start_agent(world *w, int host)
{
    agent *of = &w->now.agents[host];
    const gr_scheduler_host *known = &w->schedule.hosts[host];
    if (of->state != AGENT_NONE) {
        search_wrong(w->why, "a second agent is started on host %d", host);
    }
    if (known->given_up || known->leaving || known->removed) {
        search_wrong(w->why, "host %d is called, which is given up, leaving or gone", host);
    }
    if (!world_host_serves(w, host) && w->setting.config.servers > 0 && !w->now.published) {
        search_wrong(w->why, "host %d is called before the servers are there", host);
    }
    if (w->schedule.phase > GR_PHASE_SETTLING) {
        search_wrong(w->why, "host %d is called while the job ends", host);
    }
    int starts = of->starts + world_host_serves(w, host);
    if (starts > 1 && !of->promised) {
        search_wrong(w->why, "a server is started again on host %d, which nobody was told", host);
    }
    if (starts > 1 + w->setting.config.restarts) {
        search_wrong(w->why, "a server is started %d times on host %d", starts, host);
    }
    if (world_host_serves(w, host)) {
        w->now.processes[known->first] = (process){.served = true};
    }
    *of = (agent){
        .state = AGENT_FORKED,
        .starts = (uint8_t)starts,
        .begin = (uint8_t)(w->schedule.going && !world_host_serves(w, host) ? 0 : known->workers),
        .stays = w->setting.config.elastic && !world_host_serves(w, host)};
}

static void start_worker(world *w, int slot)
{
    const gr_scheduler_slot *known = &w->schedule.slots[slot];
    process *of = &w->now.processes[slot];
    int host = known->host;
    if (host < 0 || w->now.agents[host].state != AGENT_RUNS || w->schedule.hosts[host].leaving ||
        w->schedule.hosts[host].removed) {
        search_wrong(w->why, "a worker is started in slot %d, whose host is lost or leaving", slot);
        return;
    }
    if (of->state != PROCESS_NONE) {
        search_wrong(w->why, "a second worker is started in slot %d", slot);
    }
    if (w->now.over || w->schedule.phase != GR_PHASE_RUNNING) {
        search_wrong(w->why, "a worker is started in slot %d while the job ends", slot);
    }
    *of = (process){.state = PROCESS_SPAWNED, .member = GR_MEMBER_RESERVED, .joining = true};
    w->now.starts++;
    if (w->now.agents[host].ending || w->now.agents[host].killing) {
        *of = (process){.member = GR_MEMBER_RESERVED}; /* the agent does not obey any more */
    }
}

/* Only the first cause is reported; one that may have been a mere consequence gives way to the loss
 * of an agent, and any to a process that does not end. */
static void report(world *w, int reason, const gr_scheduler_event *event)
{
    static const gr_scheduler_event_kind kinds[] = {
        [GR_REASON_WORKER] = GR_EVENT_WORKER_ENDED, [GR_REASON_SERVER] = GR_EVENT_WORKER_ENDED,
        [GR_REASON_SIGNAL] = GR_EVENT_SIGNAL,       [GR_REASON_STUCK] = GR_EVENT_TIMER,
        [GR_REASON_OUTPUT_LOST] = GR_EVENT_FAILED,
    };
    bool again = w->now.reason != GR_REASON_NONE;
    bool gives_way = reason == GR_REASON_STUCK ||
                     (reason == GR_REASON_AGENT_LOST && w->now.reason == GR_REASON_WORKER);
    bool kind_known = reason < (int)(sizeof kinds / sizeof kinds[0]) && kinds[reason] != 0;
    if (again && !gives_way) {
        search_wrong(w->why, "after reason %d reason %d is reported", w->now.reason, reason);
    }
    if (kind_known && event->kind != kinds[reason]) {
        search_wrong(w->why, "event %d is reported as reason %d", (int)event->kind, reason);
    }
    int slot = w->schedule.hosts[event->host].first;
    slot = event->kind == GR_EVENT_WORKER_ENDED || event->kind == GR_EVENT_WORKER_NOT_STARTED
               ? event->slot
               : slot;
    if ((reason == GR_REASON_SERVER || reason == GR_REASON_AGENT_LOST ||
         reason == GR_REASON_NOT_STARTED) &&
        world_is_idle(w, slot)) {
        search_wrong(w->why, "slot %d is the cause, although no server knows it", slot);
    }
    w->now.first_reason = again ? w->now.first_reason : (int16_t)reason;
    w->now.reason = (int16_t)reason;
}

static bool any_worker_agent(const world *w)
{
    bool any = false;
    for (int host = 0; host < w->setting.config.host_room; host++) {
        any = any || (w->now.agents[host].state != AGENT_NONE &&
                      w->now.agents[host].state < AGENT_CLOSING);
    }
    return any;
}

static void finish(world *w, const gr_scheduler_event *event)
{
    bool cut_short = w->now.reason == GR_REASON_STUCK;
    for (int slot = 0; slot < world_slot_count(w) && !cut_short; slot++) {
        if (w->now.processes[slot].state != PROCESS_NONE) {
            search_wrong(w->why, "the job is over, and slot %d is not", slot);
        }
    }
    if (w->now.draining && event->kind != GR_EVENT_SIGNAL) {
        search_wrong(w->why, "the job is over before its output is written");
    }
    if (w->now.reason != (int)w->schedule.reason) {
        search_wrong(w->why, "reason %d was reported, reason %d is kept", w->now.reason,
                     (int)w->schedule.reason);
    }
    if (w->now.harmed != (w->now.reason != GR_REASON_NONE) && !w->now.settles_cause) {
        search_wrong(w->why, w->now.harmed ? "the job ends well, but something was wrong"
                                           : "the job fails, but nothing was wrong");
    }
    w->now.finished = true;
}

static void act_on_host(world *w, const gr_scheduler_action *action)
{
    agent *of = &w->now.agents[action->host];
    if (action->kind == GR_ACTION_START_AGENT) {
        start_agent(w, action->host);
    } else if (action->kind == GR_ACTION_RUN) {
        run_agent(w, action->host);
    } else if (action->kind == GR_ACTION_CLOSE_AGENT) {
        of->state = AGENT_CLOSING;
    } else if (action->kind == GR_ACTION_READ_OUTPUT) {
        of->state = AGENT_READING;
    } else if (action->kind == GR_ACTION_END_AGENT) {
        const gr_scheduler_host *known = &w->schedule.hosts[action->host];
        of->stays = false;
        of->killing = true;
        for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
            if (world_lives(&w->now.processes[slot])) {
                search_wrong(w->why, "host %d is ended, and slot %d runs there", action->host,
                             slot);
            }
        }
    } else if (action->kind == GR_ACTION_ADD_HOST && of->state != AGENT_NONE) {
        search_wrong(w->why, "a new host takes the entry of host %d, which is there", action->host);
    }
}

static void act_on_group(world *w, const gr_scheduler_action *action)
{
    process *of = &w->now.processes[action->slot];
    w->now.touched = true;
    if (action->kind == GR_ACTION_START_WORKER) {
        start_worker(w, action->slot);
    } else if (action->kind == GR_ACTION_SET_TARGET) {
        w->now.target = (int16_t)action->value;
    } else if (action->kind == GR_ACTION_ANSWER) {
        w->answer = action->value;
        w->answers++;
    } else if (action->kind == GR_ACTION_DRAIN_MEMBER) {
        of->drained = true;
    } else if (action->kind == GR_ACTION_MEMBER_ENDED) {
        of->member = of->member == GR_MEMBER_LEFT ? GR_MEMBER_LEFT : GR_MEMBER_LOST;
        w->now.at_rest = false;
    } else {
        w->now.touched = false;
    }
}

/* They all have met, others are left, and a lost one that comes again is said to. */
static void go_on_without_server(world *w, const gr_scheduler_action *action)
{
    int left = 0;
    bool met = true;
    for (int slot = w->setting.config.slots; slot < world_slot_count(w); slot++) {
        bool gone = slot == action->slot || !w->schedule.slots[slot].busy;
        left += !gone && !world_is_idle(w, slot);
        met = met && (w->now.processes[slot].met || world_is_idle(w, slot));
    }
    if (!w->setting.config.servers_spare || left < 1 || left != action->value || !met ||
        w->schedule.phase != GR_PHASE_RUNNING) {
        search_wrong(w->why, "the servers go on without slot %d, %d are left, %d are said to be",
                     action->slot, left, action->value);
    }
    w->now.agents[w->schedule.slots[action->slot].host].promised = action->flag;
}

static void act_on_job(world *w, const gr_scheduler_action *action, const gr_scheduler_event *event)
{
    int timer = action->value;
    if (action->kind == GR_ACTION_RUN_ALL) {
        for (int host = 0; host < w->setting.config.host_room; host++) {
            if (w->now.agents[host].state == AGENT_FORKED) {
                search_wrong(w->why, "workers begin while host %d is not ready", host);
            } else if (w->now.agents[host].state == AGENT_READY) {
                run_agent(w, host);
            }
        }
    } else if (action->kind == GR_ACTION_SIGNAL_WORKERS) {
        for (int slot = 0; slot < w->setting.config.slots && !w->now.harmed; slot++) {
            if (w->now.processes[slot].state != PROCESS_NONE && !world_helps(w, slot)) {
                search_wrong(w->why, "workers are told to end, and slot %d is not through", slot);
            }
        }
        tell_agents(w, false, false);
    } else if (action->kind == GR_ACTION_SIGNAL_SERVERS) {
        if (any_worker_agent(w)) {
            search_wrong(w->why, "servers are told to end before the workers have ended");
        }
        tell_agents(w, true, false);
    } else if (action->kind == GR_ACTION_GO_ON_SERVERS) {
        go_on_without_server(w, action);
    } else if (action->kind == GR_ACTION_FENCE) {
        fence(w, action->slot, event);
    } else if (action->kind == GR_ACTION_KILL_WORKERS || action->kind == GR_ACTION_KILL_SERVERS) {
        tell_agents(w, action->kind == GR_ACTION_KILL_SERVERS, true);
    } else if (action->kind == GR_ACTION_PUBLISH_SERVERS) {
        for (int slot = w->setting.config.slots; slot < world_slot_count(w); slot++) {
            if (!w->now.processes[slot].ready) {
                search_wrong(w->why, "servers are published before slot %d is ready", slot);
            }
        }
        w->now.publishing = true;
    } else if (action->kind == GR_ACTION_REPORT) {
        report(w, action->value, event);
    } else if (action->kind == GR_ACTION_SET_TIMER) {
        w->now.timers[timer] = (int32_t)(action->after_us / 1000);
    } else if (action->kind == GR_ACTION_STOP_TIMER) {
        w->now.timers[timer] = -1;
    } else if (action->kind == GR_ACTION_DRAIN_OUTPUT) {
        if (any_worker_agent(w)) {
            search_wrong(w->why, "the output is drained while an agent runs");
        }
        w->now.draining = true;
    } else if (action->kind == GR_ACTION_FINISH) {
        finish(w, event);
    }
}

static void decide(world *w, gr_scheduler_event event)
{
    event.now_us = event.now_us > 0 ? event.now_us : NOW_US;
    int count = gr_scheduler_decide(&w->schedule, &event);
    for (int i = 0; i < count; i++) {
        gr_scheduler_action action = w->schedule.call.actions[i];
        bool touched = w->now.touched;
        action.host = action.host < 0 ? 0 : action.host;
        int slot = action.slot;
        action.slot = slot < 0 ? 0 : slot;
        act_on_host(w, &action);
        act_on_group(w, &action);
        act_on_job(w, &action, &event);
        w->now.touched = w->now.touched || touched;
    }
}

void world_look_at_group(world *w)
{
    do {
        w->now.touched = false;
        for (int slot = 0; slot < w->setting.config.slots; slot++) {
            const process *of = &w->now.processes[slot];
            const gr_scheduler_slot *known = &w->schedule.slots[slot];
            bool awaited = world_is_awaited(w, slot);
            if (of->member != known->member || of->served != known->served ||
                awaited != known->awaited) {
                decide(w, (gr_scheduler_event){.kind = GR_EVENT_MEMBER,
                                               .slot = slot,
                                               .value = of->member,
                                               .flag = of->served,
                                               .awaited = awaited});
            }
        }
        decide(w, (gr_scheduler_event){.kind = GR_EVENT_GROUP,
                                       .value = w->now.joined,
                                       .flag = w->now.at_rest,
                                       .over = w->now.over});
    } while (w->now.touched && w->why[0] == '\0');
}

void world_forget_times(world *w, int64_t passed_us)
{
    for (int host = 0; host < world_host_end(w); host++) {
        gr_scheduler_host *of = &w->schedule.hosts[host];
        of->try_us = of->try_us > NOW_US + passed_us ? of->try_us - passed_us : 0;
        of->up_us = of->up_us > 0 ? NOW_US : 0;
    }
    for (int slot = 0; slot < world_slot_count(w); slot++) {
        w->schedule.ends[slot].start_us = w->schedule.ends[slot].end_us = 0;
    }
    w->schedule.signal.at_us = 0;
}

void world_tell(world *w, gr_scheduler_event event)
{
    int64_t passed_us = event.now_us > 0 ? event.now_us - NOW_US : 0;
    world_look_at_group(w);
    decide(w, event);
    world_look_at_group(w);
    world_forget_times(w, passed_us);
}

/* ---- What must hold -------------------------------------------------------------------------- */

static bool slots_agree(world *w)
{
    const gr_scheduler *schedule = &w->schedule;
    int staying = 0;
    for (int slot = 0; slot < world_slot_count(w); slot++) {
        int host = schedule->slots[slot].host;
        const gr_scheduler_host *of = &schedule->hosts[host < 0 ? 0 : host];
        bool within = host < 0 || (slot >= of->first && slot < of->first + of->slot_count);
        bool runs = w->now.processes[slot].state != PROCESS_NONE;
        if (!within || (runs && host < 0)) {
            return search_wrong(w->why, "slot %d is host %d's, which does not have it", slot, host);
        }
        if (host >= 0 && of->leaving && world_lives(&w->now.processes[slot]) &&
            !w->now.processes[slot].drained) {
            return search_wrong(w->why, "the worker in slot %d is not asked to leave", slot);
        }
        if (runs && !schedule->slots[slot].busy) {
            return search_wrong(w->why, "a process runs in slot %d, which counts as free", slot);
        }
        staying += runs && !world_is_server(w, slot) && !of->leaving;
    }
    if (staying > schedule->config.workers_max + schedule->config.spares) {
        return search_wrong(w->why, "%d workers run, %d may", staying,
                            schedule->config.workers_max + schedule->config.spares);
    }
    return true;
}

bool world_agrees(void *of)
{
    world *w = of;
    const gr_scheduler *schedule = &w->schedule;
    const gr_scheduler_config *config = &schedule->config;
    if (w->why[0] != '\0' || !slots_agree(w)) {
        return false;
    }
    if (schedule->want > config->workers_max || schedule->want + schedule->spares < 0) {
        return search_wrong(w->why, "%d workers are wanted", schedule->want);
    }
    if (schedule->restarts_left < 0 ||
        (!w->now.crowded && w->now.starts > config->restarts * config->workers + config->spares)) {
        return search_wrong(w->why, "%d workers were started, with %d restarts", w->now.starts,
                            config->restarts * config->workers);
    }
    if (w->now.target != schedule->group.target) {
        return search_wrong(w->why, "the coordinator was told %d workers, not %d", w->now.target,
                            schedule->group.target);
    }
    if (schedule->phase == GR_PHASE_RUNNING &&
        world_any_awaited(w) != (w->now.timers[GR_TIMER_FENCE] >= 0)) {
        return search_wrong(w->why, "a renewal waits for somebody, and no time is set, or none");
    }
    for (int host = 0; host < schedule->host_count; host++) {
        const agent *at = &w->now.agents[host];
        if (schedule->hosts[host].leaving && at->state == AGENT_RUNS && at->stays &&
            gr_scheduler_count_busy_of(schedule, host) == 0) {
            return search_wrong(w->why, "host %d leaves, and its agent is not ended", host);
        }
    }
    for (int host = 0; host < world_host_end(w); host++) {
        const agent *at = &w->now.agents[host];
        if (at->state == AGENT_NONE && at->promised && schedule->phase == GR_PHASE_RUNNING &&
            !schedule->server.told) {
            return search_wrong(w->why, "the server of host %d is not started again", host);
        }
        static const gr_host_state states[] = {GR_HOST_AWAY, GR_HOST_STARTING, GR_HOST_UP,
                                               GR_HOST_UP,   GR_HOST_CLOSING,  GR_HOST_READING};
        if (schedule->hosts[host].state != states[w->now.agents[host].state]) {
            return search_wrong(w->why, "host %d is not as the scheduler takes it to be", host);
        }
    }
    return true;
}

bool world_rests(void *of)
{
    world *w = of;
    return w->now.finished || search_wrong(w->why, "nothing happens any more, and the job does not "
                                                   "end");
}

/* ---- States ---------------------------------------------------------------------------------- */

size_t world_state_bytes(void)
{
    return sizeof(world_state);
}

const void *world_keep(void *of)
{
    world *w = of;
    world_state *now = &w->now;
    size_t slots = (size_t)world_slot_count(w), hosts = (size_t)world_host_end(w);
    memcpy(now->schedule, &w->schedule, KEPT_BYTES);
    memcpy(now->slots, w->schedule.slots, slots * sizeof *now->slots);
    memcpy(now->ends, w->schedule.ends, slots * sizeof *now->ends);
    memcpy(now->hosts, w->schedule.hosts, hosts * sizeof *now->hosts);
    memcpy(now->servers, w->schedule.servers,
           (size_t)w->setting.config.servers * sizeof *now->servers);
    return now;
}

void world_restore(void *of, const void *state)
{
    world *w = of;
    world_state *now = &w->now;
    size_t slots = (size_t)world_slot_count(w), hosts = (size_t)world_host_end(w);
    *now = *(const world_state *)state;
    memcpy(&w->schedule, now->schedule, KEPT_BYTES);
    memcpy(w->schedule.slots, now->slots, slots * sizeof *now->slots);
    memcpy(w->schedule.ends, now->ends, slots * sizeof *now->ends);
    memcpy(w->schedule.hosts, now->hosts, hosts * sizeof *now->hosts);
    memcpy(w->schedule.servers, now->servers,
           (size_t)w->setting.config.servers * sizeof *now->servers);
    w->why[0] = '\0';
}

const gr_scheduler *world_schedule(const world *w)
{
    return &w->schedule;
}

const char *world_why(void *of)
{
    return ((world *)of)->why;
}

world *world_create(const world_setting *setting)
{
    static const int sites[WORLD_HOSTS] = {0, 1, 2};
    world *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return NULL;
    }
    w->setting = *setting;
    gr_arena_init(&w->arena, 1 << 20);
    if (gr_scheduler_init(&w->schedule, &setting->config, sites, &w->arena, NULL) != GR_OK) {
        world_destroy(w);
        return NULL;
    }
    for (int i = 0; i < WORLD_HOSTS && setting->host_slots[i] > 0; i++) {
        assert_int_equal(
            gr_scheduler_add(&w->schedule, setting->host_slots[i], setting->host_workers[i], false),
            i);
    }
    for (int slot = 0; slot < setting->config.slots; slot++) {
        w->now.processes[slot].served = true; /* as the coordinator says of its first generation */
    }
    for (int timer = 0; timer < GR_TIMER_KINDS; timer++) {
        w->now.timers[timer] = -1;
    }
    w->now.at_rest = true;
    w->now.crowded = setting->config.changing;
    w->now.budget = setting->budget;
    world_tell(w, (gr_scheduler_event){.kind = GR_EVENT_BEGIN});
    return w;
}

void world_destroy(world *w)
{
    if (w != NULL) {
        gr_arena_fini(&w->arena);
        free(w);
    }
}
