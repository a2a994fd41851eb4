/* SPDX-License-Identifier: Apache-2.0 */
#include "support_schedule.h"

#include "group/membership.h"
#include "launch/launch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    KEPT_BYTES = offsetof(gr_scheduler, call),
    NOW_US = 1000000000, /* between two timers no time passes */
    EXITED_1 = 1 << 8,
    EXITED_PEER = GR_LAUNCH_EXIT_PEER << 8
};

typedef enum agent_state {
    AGENT_NONE = 0,
    AGENT_FORKED,
    AGENT_READY, /* waits for START */
    AGENT_RUNS,
    AGENT_CLOSING
} agent_state;

typedef enum process_state {
    PROCESS_NONE = 0,
    PROCESS_SPAWNED,
    PROCESS_RUNS, /* the scheduler knows */
    PROCESS_ENDED /* and does not know it yet */
} process_state;

typedef struct agent {
    uint8_t state;
    uint8_t begin; /* workers that it starts with START */
    bool stays, ending, killing;
} agent;

typedef struct process {
    uint8_t state, member;
    bool served, told, drained, joining;
    bool met, ready; /* of a server */
    int16_t status;
} process;

/* What can be told from each other is in here, and nothing else: it is compared by its bytes. */
typedef struct world_state {
    uint8_t schedule[KEPT_BYTES];
    gr_scheduler_slot slots[WORLD_SLOTS];
    gr_scheduler_host hosts[WORLD_HOSTS];
    gr_scheduler_server servers[WORLD_HOSTS];
    gr_worker_end ends[WORLD_SLOTS];
    agent agents[WORLD_HOSTS];
    process processes[WORLD_SLOTS];
    int32_t timers[GR_TIMER_KINDS]; /* in milliseconds; -1: it is not set */
    int16_t joined, target, starts, first_reason, reason;
    bool at_rest, over, publishing, published, draining, touched, finished, settles_cause;
    bool harmed;  /* something went wrong that may end the job */
    bool crowded; /* restarts are no limit to what is started: hosts came, or more are wanted */
    world_budget budget;
} world_state;

struct world {
    gr_scheduler schedule;
    gr_arena arena;
    world_setting setting;
    world_state now;
    char why[SEARCH_WHY_BYTES];
};

static bool is_server(const world *w, int slot)
{
    return slot >= w->setting.config.slots;
}

static int slot_count(const world *w)
{
    return w->setting.config.slots + w->setting.config.servers;
}

static int host_end(const world *w)
{
    return w->setting.config.host_room + w->setting.config.servers;
}

static bool host_serves(const world *w, int host)
{
    return host >= w->setting.config.host_room;
}

static bool lives(const process *of)
{
    return of->state == PROCESS_SPAWNED || of->state == PROCESS_RUNS;
}

/* ---- Actions --------------------------------------------------------------------------------- */

static void end_process(world *w, int slot, int status)
{
    process *of = &w->now.processes[slot];
    of->state = PROCESS_ENDED;
    of->status = (int16_t)status;
    if (status == 0 && !is_server(w, slot) && of->member == GR_MEMBER_JOINED) {
        of->member = GR_MEMBER_LEFT;
    } else if (of->member == GR_MEMBER_JOINED) {
        of->member = GR_MEMBER_LOST;
        w->now.at_rest = false;
    }
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
    for (int host = 0; host < host_end(w); host++) {
        agent *of = &w->now.agents[host];
        const gr_scheduler_host *known = &w->schedule.hosts[host];
        if (host_serves(w, host) != servers || of->state == AGENT_NONE ||
            of->state == AGENT_CLOSING) {
            continue;
        }
        of->stays = false;
        of->ending = of->ending || !kill;
        of->killing = of->killing || kill;
        for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
            process *at = &w->now.processes[slot];
            at->told = at->told || lives(at);
            if (kill && lives(at)) {
                end_process(w, slot, SIGKILL);
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
    if (!host_serves(w, host) && w->setting.config.servers > 0 && !w->now.published) {
        search_wrong(w->why, "host %d is called before the servers are there", host);
    }
    if (w->schedule.phase > GR_PHASE_SETTLING) {
        search_wrong(w->why, "host %d is called while the job ends", host);
    }
    *of =
        (agent){.state = AGENT_FORKED,
                .begin = (uint8_t)(w->schedule.going && !host_serves(w, host) ? 0 : known->workers),
                .stays = w->setting.config.elastic && !host_serves(w, host)};
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
    w->now.first_reason = again ? w->now.first_reason : (int16_t)reason;
    w->now.reason = (int16_t)reason;
}

static bool any_worker_agent(const world *w)
{
    bool any = false;
    for (int host = 0; host < w->setting.config.host_room; host++) {
        any = any || (w->now.agents[host].state != AGENT_NONE &&
                      w->now.agents[host].state != AGENT_CLOSING);
    }
    return any;
}

static void finish(world *w, const gr_scheduler_event *event)
{
    bool cut_short = w->now.reason == GR_REASON_STUCK;
    for (int slot = 0; slot < slot_count(w) && !cut_short; slot++) {
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
    } else if (action->kind == GR_ACTION_END_AGENT) {
        const gr_scheduler_host *known = &w->schedule.hosts[action->host];
        of->stays = false;
        of->killing = true;
        for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
            if (lives(&w->now.processes[slot])) {
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
    } else if (action->kind == GR_ACTION_DRAIN_MEMBER) {
        of->drained = true;
    } else if (action->kind == GR_ACTION_MEMBER_ENDED) {
        of->member = of->member == GR_MEMBER_LEFT ? GR_MEMBER_LEFT : GR_MEMBER_LOST;
        w->now.at_rest = false;
    } else {
        w->now.touched = false;
    }
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
        tell_agents(w, false, false);
    } else if (action->kind == GR_ACTION_SIGNAL_SERVERS) {
        if (any_worker_agent(w)) {
            search_wrong(w->why, "servers are told to end before the workers have ended");
        }
        tell_agents(w, true, false);
    } else if (action->kind == GR_ACTION_KILL_WORKERS || action->kind == GR_ACTION_KILL_SERVERS) {
        tell_agents(w, action->kind == GR_ACTION_KILL_SERVERS, true);
    } else if (action->kind == GR_ACTION_PUBLISH_SERVERS) {
        for (int slot = w->setting.config.slots; slot < slot_count(w); slot++) {
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

static void look_at_group(world *w)
{
    do {
        w->now.touched = false;
        for (int slot = 0; slot < w->setting.config.slots; slot++) {
            const process *of = &w->now.processes[slot];
            if (of->member != w->schedule.slots[slot].member ||
                of->served != w->schedule.slots[slot].served) {
                decide(w, (gr_scheduler_event){.kind = GR_EVENT_MEMBER,
                                               .slot = slot,
                                               .value = of->member,
                                               .flag = of->served});
            }
        }
        decide(w, (gr_scheduler_event){.kind = GR_EVENT_GROUP,
                                       .value = w->now.joined,
                                       .flag = w->now.at_rest,
                                       .over = w->now.over});
    } while (w->now.touched && w->why[0] == '\0');
}

/* What has passed is as if it had never been, so that states are the same again. */
static void forget_times(world *w, int64_t passed_us)
{
    for (int host = 0; host < host_end(w); host++) {
        gr_scheduler_host *of = &w->schedule.hosts[host];
        of->try_us = of->try_us > NOW_US + passed_us ? of->try_us - passed_us : 0;
        of->up_us = of->up_us > 0 ? NOW_US : 0;
    }
    for (int slot = 0; slot < slot_count(w); slot++) {
        w->schedule.ends[slot].start_us = w->schedule.ends[slot].end_us = 0;
    }
    w->schedule.signal.at_us = 0;
}

static void tell(world *w, gr_scheduler_event event)
{
    int64_t passed_us = event.now_us > 0 ? event.now_us - NOW_US : 0;
    look_at_group(w);
    decide(w, event);
    look_at_group(w);
    forget_times(w, passed_us);
}

/* ---- What can happen ------------------------------------------------------------------------- */

static int count_served(const world *w, bool staying)
{
    int count = 0;
    for (int slot = 0; slot < w->setting.config.slots; slot++) {
        const process *of = &w->now.processes[slot];
        count += of->state == PROCESS_RUNS && of->served && of->member == GR_MEMBER_JOINED &&
                 !(staying && of->drained);
    }
    return count;
}

static bool is_last(const world *w, int slot)
{
    for (int other = slot + 1; other < w->setting.config.slots; other++) {
        const process *of = &w->now.processes[other];
        if (of->state == PROCESS_RUNS && of->member == GR_MEMBER_JOINED) {
            return false;
        }
    }
    return true;
}

static bool can_slot(const world *w, world_event kind, int slot)
{
    const process *of = &w->now.processes[slot];
    bool server = is_server(w, slot), runs = of->state == PROCESS_RUNS;
    bool member = runs && !server && of->member == GR_MEMBER_JOINED;
    switch (kind) {
    case WORLD_STARTED:
        return of->state == PROCESS_SPAWNED;
    case WORLD_EXITED:
        return of->state == PROCESS_ENDED;
    case WORLD_JOINS:
        return runs && !server && !of->told && !w->now.over &&
               (of->member == GR_MEMBER_ABSENT || of->member == GR_MEMBER_RESERVED);
    case WORLD_STRANDED:
        return member && !w->now.over && count_served(w, false) == 0;
    case WORLD_EXITS:
        return runs && !server && w->now.over;
    case WORLD_DISMISSED:
        return member && of->served && w->now.at_rest && is_last(w, slot) &&
               count_served(w, true) > w->now.target;
    case WORLD_DRAINED:
        return runs && !server && of->drained &&
               (!of->served || count_served(w, true) >= w->setting.config.workers_min) &&
               (!of->served || count_served(w, true) > 0);
    case WORLD_SERVER_READY:
        return server && runs && !of->ready;
    case WORLD_SERVER_MET:
        return server && runs && of->ready && !of->met && w->now.published;
    case WORLD_OBEYS:
        return runs && of->told;
    case WORLD_NOT_STARTED:
        return of->state == PROCESS_SPAWNED && w->now.budget.others > 0;
    case WORLD_KILLED:
    case WORLD_CRASHES:
    case WORLD_FAILS:
        return runs && w->now.budget.deaths > 0;
    case WORLD_MISSES:
        return member && w->now.harmed && w->now.budget.others > 0;
    default:
        return false;
    }
}

static bool can_host(const world *w, world_event kind, int host)
{
    const agent *of = &w->now.agents[host];
    const gr_scheduler_host *known = &w->schedule.hosts[host];
    bool quiet =
        of->state == AGENT_RUNS || (of->state == AGENT_READY && (of->ending || of->killing));
    switch (kind) {
    case WORLD_READY:
        return of->state == AGENT_FORKED;
    case WORLD_DONE:
        for (int slot = known->first; quiet && slot < known->first + known->slot_count; slot++) {
            quiet = w->now.processes[slot].state == PROCESS_NONE;
        }
        return quiet && !of->stays;
    case WORLD_GONE:
        return of->state == AGENT_CLOSING;
    case WORLD_LOST:
        return of->state != AGENT_NONE && of->state != AGENT_CLOSING && w->now.budget.deaths > 0;
    case WORLD_REFUSED:
    case WORLD_EARLY:
        return of->state == AGENT_FORKED && w->now.budget.refusals > 0;
    case WORLD_DROPPED:
        return !host_serves(w, host) && host < w->schedule.host_count && !known->removed &&
               !known->leaving && w->schedule.group.complete && w->setting.config.changing &&
               !w->setting.joined_hosts && w->now.budget.drops > 0;
    default:
        return false;
    }
}

static bool can_job(const world *w, world_event kind, int number)
{
    const gr_scheduler *schedule = &w->schedule;
    const world_budget *budget = &w->now.budget;
    bool all = true;
    switch (kind) {
    case WORLD_TIMER:
        return number < GR_TIMER_KINDS && w->now.timers[number] >= 0;
    case WORLD_SCALE:
        return budget->scales > 0 && w->setting.config.elastic &&
               number >= w->setting.config.workers_min && number <= w->setting.config.workers_max &&
               number != schedule->want && number <= gr_scheduler_room(schedule) &&
               schedule->group.complete;
    case WORLD_ARRIVES:
        return budget->arrivals > 0 && number >= 1 && number <= 2 && w->setting.config.changing &&
               gr_scheduler_is_open(schedule) &&
               (w->setting.joined_hosts || schedule->group.complete);
    default:
        break;
    }
    if (number != 0) {
        return false;
    }
    switch (kind) {
    case WORLD_PUBLISHED:
        return w->now.publishing;
    case WORLD_PUBLISH_FAILS:
        return w->now.publishing && budget->others > 0;
    case WORLD_RENEWS:
        return !w->now.at_rest && count_served(w, false) > 0;
    case WORLD_OVER:
        for (int slot = 0; slot < w->setting.config.workers; slot++) {
            all = all && w->now.processes[slot].member != GR_MEMBER_ABSENT;
        }
        return all && !w->now.over && w->now.at_rest && count_served(w, false) > 0;
    case WORLD_WRITTEN:
        return w->now.draining;
    case WORLD_SIGNAL:
        return budget->signals > 0;
    case WORLD_OUTPUT_LOST:
        return budget->others > 0;
    default:
        return false;
    }
}

bool world_can(void *of, int event)
{
    const world *w = of;
    world_event kind = (world_event)(event / WORLD_TARGETS);
    int number = event % WORLD_TARGETS;
    return !w->now.finished &&
           ((number < slot_count(w) && can_slot(w, kind, number)) ||
            (number < host_end(w) && can_host(w, kind, number)) || can_job(w, kind, number));
}

/* ---- Happening ------------------------------------------------------------------------------- */

static void harm(world *w, bool certainly)
{
    w->now.harmed = true;
    w->now.settles_cause = w->now.settles_cause || !certainly;
}

static void happen_to_slot(world *w, world_event kind, int slot)
{
    static const int statuses[WORLD_KINDS] = {
        [WORLD_STRANDED] = EXITED_PEER, [WORLD_OBEYS] = SIGTERM,  [WORLD_KILLED] = SIGKILL,
        [WORLD_CRASHES] = SIGSEGV,      [WORLD_FAILS] = EXITED_1, [WORLD_MISSES] = EXITED_PEER};
    process *of = &w->now.processes[slot];
    gr_scheduler_event event = {.slot = slot, .value = of->status};
    if (kind == WORLD_STARTED) {
        of->state = PROCESS_RUNS;
        event.kind = GR_EVENT_WORKER_STARTED;
    } else if (kind == WORLD_EXITED) {
        of->state = PROCESS_NONE;
        of->drained = of->told = false;
        event.kind = GR_EVENT_WORKER_ENDED;
    } else if (kind == WORLD_NOT_STARTED) {
        w->now.budget.others--;
        harm(w, !of->joining);
        of->state = PROCESS_NONE;
        event.kind = GR_EVENT_WORKER_NOT_STARTED;
    } else if (kind == WORLD_SERVER_READY) {
        of->ready = true;
        event.kind = GR_EVENT_SERVER_READY;
    } else if (kind == WORLD_SERVER_MET) {
        of->met = true;
        event.kind = GR_EVENT_SERVER_MET;
    } else if (kind == WORLD_JOINS) {
        w->now.joined = (int16_t)(w->now.joined + (of->member == GR_MEMBER_ABSENT));
        w->now.at_rest = w->now.at_rest && of->member == GR_MEMBER_ABSENT;
        of->member = GR_MEMBER_JOINED;
        look_at_group(w);
        forget_times(w, 0);
        return;
    } else {
        if (kind >= WORLD_FAULTS && kind != WORLD_OBEYS) {
            bool death = kind != WORLD_MISSES;
            w->now.budget.deaths -= death;
            w->now.budget.others -= !death;
            harm(w, !w->setting.config.elastic && !is_server(w, slot));
        }
        if (kind == WORLD_STRANDED) {
            harm(w, false);
        }
        bool well = kind == WORLD_OBEYS && is_server(w, slot);
        end_process(w, slot, well ? 0 : statuses[kind]);
        look_at_group(w);
        forget_times(w, 0);
        return;
    }
    tell(w, event);
}

static void lose_host(world *w, int host)
{
    const gr_scheduler_host *known = &w->schedule.hosts[host];
    for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
        process *of = &w->now.processes[slot];
        if (lives(of)) {
            end_process(w, slot, SIGKILL);
        }
        of->state = PROCESS_NONE;
        of->drained = of->told = false;
    }
    w->now.agents[host].state = AGENT_CLOSING;
    w->now.budget.deaths--;
    w->now.crowded = true;
    harm(w, false);
    tell(w, (gr_scheduler_event){.kind = GR_EVENT_AGENT_LOST, .host = host});
}

static void drop_host(world *w, int host)
{
    gr_scheduler_offer offers[WORLD_HOSTS];
    int count = 0;
    for (int i = 0; i < w->schedule.host_count; i++) {
        if (i != host && !w->schedule.hosts[i].removed) {
            offers[count++] =
                (gr_scheduler_offer){.host = i, .slots = w->schedule.hosts[i].offered};
        }
    }
    w->now.budget.drops--;
    w->now.crowded = true;
    tell(w, (gr_scheduler_event){
                .kind = GR_EVENT_HOSTS, .offers = offers, .value = count, .flag = true});
}

static void happen_to_host(world *w, world_event kind, int host)
{
    gr_scheduler_event event = {.host = host};
    if (kind == WORLD_READY) {
        w->now.agents[host].state = AGENT_READY;
        event.kind = GR_EVENT_AGENT_READY;
    } else if (kind == WORLD_DONE) {
        w->now.agents[host].state = AGENT_CLOSING;
        event.kind = GR_EVENT_AGENT_DONE;
    } else if (kind == WORLD_GONE) {
        w->now.agents[host].state = AGENT_NONE;
        event.kind = GR_EVENT_AGENT_GONE;
    } else if (kind == WORLD_LOST) {
        lose_host(w, host);
        return;
    } else if (kind == WORLD_DROPPED) {
        drop_host(w, host);
        return;
    } else {
        w->now.budget.refusals--;
        harm(w, false);
        w->now.agents[host].state = AGENT_NONE;
        event.kind = GR_EVENT_START_REFUSED;
        event.flag = kind == WORLD_REFUSED;
    }
    tell(w, event);
}

static void fire(world *w, int timer)
{
    int64_t passed_us = (int64_t)w->now.timers[timer] * 1000;
    w->now.timers[timer] = -1;
    for (int other = 0; other < GR_TIMER_KINDS; other++) {
        int32_t left = w->now.timers[other] - (int32_t)(passed_us / 1000);
        w->now.timers[other] = w->now.timers[other] < 0 ? -1 : left > 0 ? left : 0;
    }
    if (timer == GR_TIMER_JOIN || w->schedule.phase == GR_PHASE_KILLING) {
        harm(w, false);
    }
    tell(w, (gr_scheduler_event){
                .kind = GR_EVENT_TIMER, .value = timer, .now_us = NOW_US + passed_us});
}

static void happen_to_job(world *w, world_event kind, int number)
{
    gr_scheduler_event event = {.value = number};
    const gr_scheduler_offer offer = {
        .host = -1, .slots = number, .joined = w->setting.joined_hosts};
    if (kind == WORLD_TIMER) {
        fire(w, number);
        return;
    }
    if (kind == WORLD_OVER || kind == WORLD_RENEWS) {
        w->now.over = w->now.over || kind == WORLD_OVER;
        int members = count_served(w, false); /* who comes in addition waits */
        for (int slot = 0; slot < w->setting.config.slots && kind == WORLD_RENEWS; slot++) {
            process *of = &w->now.processes[slot];
            bool enters = of->state == PROCESS_RUNS && of->member == GR_MEMBER_JOINED &&
                          !of->served && members < w->now.target;
            of->served = of->served || enters;
            members += enters;
        }
        w->now.at_rest = true;
        look_at_group(w);
        forget_times(w, 0);
        return;
    }
    if (kind == WORLD_SCALE) {
        w->now.budget.scales--;
        w->now.crowded = true;
        event.kind = GR_EVENT_SCALE;
    } else if (kind == WORLD_ARRIVES) {
        w->now.budget.arrivals--;
        w->now.crowded = true;
        event = (gr_scheduler_event){.kind = GR_EVENT_HOSTS, .offers = &offer, .value = 1};
    } else if (kind == WORLD_PUBLISHED) {
        w->now.publishing = false;
        w->now.published = true;
        event.kind = GR_EVENT_SERVERS_PUBLISHED;
    } else if (kind == WORLD_PUBLISH_FAILS) {
        w->now.publishing = false;
        w->now.budget.others--;
        harm(w, true);
        event.kind = GR_EVENT_FAILED;
        event.value = GR_REASON_NOT_STARTED;
    } else if (kind == WORLD_WRITTEN) {
        w->now.draining = false;
        event.kind = GR_EVENT_OUTPUT_WRITTEN;
    } else if (kind == WORLD_SIGNAL) {
        w->now.budget.signals--;
        harm(w, false);
        event.kind = GR_EVENT_SIGNAL;
        event.value = SIGINT;
    } else {
        w->now.budget.others--;
        harm(w, false);
        event.kind = GR_EVENT_FAILED;
        event.value = GR_REASON_OUTPUT_LOST;
    }
    tell(w, event);
}

void world_happen(void *of, int event)
{
    world *w = of;
    world_event kind = (world_event)(event / WORLD_TARGETS);
    int number = event % WORLD_TARGETS;
    w->why[0] = '\0';
    if (number < slot_count(w) && can_slot(w, kind, number)) {
        happen_to_slot(w, kind, number);
    } else if (number < host_end(w) && can_host(w, kind, number)) {
        happen_to_host(w, kind, number);
    } else {
        happen_to_job(w, kind, number);
    }
}

/* ---- What must hold -------------------------------------------------------------------------- */

static bool slots_agree(world *w)
{
    const gr_scheduler *schedule = &w->schedule;
    int staying = 0;
    for (int slot = 0; slot < slot_count(w); slot++) {
        int host = schedule->slots[slot].host;
        const gr_scheduler_host *of = &schedule->hosts[host < 0 ? 0 : host];
        bool within = host < 0 || (slot >= of->first && slot < of->first + of->slot_count);
        bool runs = w->now.processes[slot].state != PROCESS_NONE;
        if (!within || (runs && host < 0)) {
            return search_wrong(w->why, "slot %d is host %d's, which does not have it", slot, host);
        }
        if (host >= 0 && of->leaving && lives(&w->now.processes[slot]) &&
            !w->now.processes[slot].drained) {
            return search_wrong(w->why, "the worker in slot %d is not asked to leave", slot);
        }
        if (runs && !schedule->slots[slot].busy) {
            return search_wrong(w->why, "a process runs in slot %d, which counts as free", slot);
        }
        staying += runs && !is_server(w, slot) && !of->leaving;
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
    for (int host = 0; host < schedule->host_count; host++) {
        const agent *at = &w->now.agents[host];
        if (schedule->hosts[host].leaving && at->state == AGENT_RUNS && at->stays &&
            gr_scheduler_count_busy_of(schedule, host) == 0) {
            return search_wrong(w->why, "host %d leaves, and its agent is not ended", host);
        }
    }
    for (int host = 0; host < host_end(w); host++) {
        static const gr_host_state states[] = {GR_HOST_AWAY, GR_HOST_STARTING, GR_HOST_UP,
                                               GR_HOST_UP, GR_HOST_CLOSING};
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
    size_t slots = (size_t)slot_count(w), hosts = (size_t)host_end(w);
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
    size_t slots = (size_t)slot_count(w), hosts = (size_t)host_end(w);
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

search_class world_class_of(int event)
{
    int kind = event / WORLD_TARGETS;
    return kind == WORLD_TIMER    ? SEARCH_TIMER
           : kind >= WORLD_FAULTS ? SEARCH_FAULT
                                  : SEARCH_BY_ITSELF;
}

void world_print_event(int event)
{
    static const char *const names[WORLD_KINDS] = {"is ready (host)",
                                                   "is done (host)",
                                                   "is gone (host)",
                                                   "starts",
                                                   "has its end reported",
                                                   "joins",
                                                   "is left alone and fails",
                                                   "exits with 0",
                                                   "is dismissed",
                                                   "leaves with its host",
                                                   "is ready (server)",
                                                   "has met the others (server)",
                                                   "servers are published",
                                                   "the group renews",
                                                   "the training is over",
                                                   "the output is written",
                                                   "fires (timer)",
                                                   "ends as asked",
                                                   "is lost (host)",
                                                   "cannot be started (host)",
                                                   "cannot be started yet (host)",
                                                   "cannot be started",
                                                   "is killed",
                                                   "crashes",
                                                   "fails",
                                                   "misses others",
                                                   "SIGINT",
                                                   "workers are wanted",
                                                   "slots has the host that comes",
                                                   "is dropped (host)",
                                                   "the output is lost",
                                                   "servers cannot be published"};
    print_error("  %d %s\n", event % WORLD_TARGETS, names[event / WORLD_TARGETS]);
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
    tell(w, (gr_scheduler_event){.kind = GR_EVENT_BEGIN});
    return w;
}

void world_destroy(world *w)
{
    if (w != NULL) {
        gr_arena_fini(&w->arena);
        free(w);
    }
}
