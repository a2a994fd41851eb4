/* SPDX-License-Identifier: Apache-2.0 */
#include "support_schedule_world.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <cmocka.h>

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

static bool can_stop(const world *w, int slot)
{
    bool others = false;
    for (int i = 0; i < w->setting.config.slots; i++) {
        const process *of = &w->now.processes[i];
        others = others || (i != slot && of->state == PROCESS_RUNS && of->served && !of->stopped &&
                            of->member == GR_MEMBER_JOINED);
    }
    return others && w->setting.config.elastic && w->setting.config.fence_us > 0 && !w->now.over &&
           w->now.budget.others > 0;
}

static bool can_slot(const world *w, world_event kind, int slot)
{
    const process *of = &w->now.processes[slot];
    bool server = world_is_server(w, slot), runs = of->state == PROCESS_RUNS && !of->stopped;
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
        return runs && !server && w->now.over && !world_helps(w, slot);
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
    case WORLD_FENCED:
        return of->fenced;
    case WORLD_STOPS:
        return member && can_stop(w, slot);
    case WORLD_WAKES:
        return of->stopped && !of->fenced;
    case WORLD_KILLED:
        return of->state == PROCESS_RUNS && w->now.budget.deaths > 0;
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
    case WORLD_READ:
        return of->state == AGENT_READING;
    case WORLD_LOST:
        return of->state != AGENT_NONE && of->state < AGENT_CLOSING && w->now.budget.deaths > 0;
    case WORLD_REFUSED:
        return of->state == AGENT_FORKED && w->now.budget.refusals > 0;
    case WORLD_DROPPED:
        return !world_host_serves(w, host) && host < w->schedule.host_count && !known->removed &&
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
               number <= w->setting.config.workers_max + 1;
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
        return !w->now.at_rest && count_served(w, false) > 0 && !world_any_awaited(w);
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
           ((number < world_slot_count(w) && can_slot(w, kind, number)) ||
            (number < world_host_end(w) && can_host(w, kind, number)) || can_job(w, kind, number));
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
        [WORLD_STRANDED] = EXITED_PEER, [WORLD_FENCED] = SIGKILL,  [WORLD_OBEYS] = SIGTERM,
        [WORLD_KILLED] = SIGKILL,       [WORLD_CRASHES] = SIGSEGV, [WORLD_FAILS] = EXITED_1,
        [WORLD_MISSES] = EXITED_PEER};
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
    } else if (kind == WORLD_STOPS || kind == WORLD_WAKES) {
        of->stopped = kind == WORLD_STOPS;
        w->now.budget.others -= of->stopped;
        w->now.at_rest = w->now.at_rest && !of->stopped;
        harm(w, false);
        world_look_at_group(w);
        world_forget_times(w, 0);
        return;
    } else if (kind == WORLD_JOINS) {
        w->now.joined = (int16_t)(w->now.joined + (of->member == GR_MEMBER_ABSENT));
        w->now.at_rest = w->now.at_rest && of->member == GR_MEMBER_ABSENT;
        of->member = GR_MEMBER_JOINED;
        world_look_at_group(w);
        world_forget_times(w, 0);
        return;
    } else {
        if (kind >= WORLD_FAULTS && kind != WORLD_OBEYS) {
            bool death = kind != WORLD_MISSES;
            w->now.budget.deaths -= death;
            w->now.budget.others -= !death;
            harm(w,
                 !w->setting.config.elastic && !world_is_server(w, slot) && !world_helps(w, slot));
        }
        if (kind == WORLD_STRANDED) {
            harm(w, false);
        }
        bool well = kind == WORLD_OBEYS && world_is_server(w, slot);
        world_end_process(w, slot, well ? 0 : statuses[kind]);
        world_look_at_group(w);
        world_forget_times(w, 0);
        return;
    }
    world_tell(w, event);
}

static void lose_host(world *w, int host)
{
    const gr_scheduler_host *known = &w->schedule.hosts[host];
    for (int slot = known->first; slot < known->first + known->slot_count; slot++) {
        process *of = &w->now.processes[slot];
        if (world_lives(of)) {
            world_end_process(w, slot, SIGKILL);
        }
        of->state = PROCESS_NONE;
        of->drained = of->told = false;
    }
    w->now.agents[host].state = AGENT_CLOSING;
    w->now.budget.deaths--;
    w->now.crowded = true;
    harm(w, false);
    world_tell(w, (gr_scheduler_event){.kind = GR_EVENT_AGENT_LOST, .host = host});
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
    world_tell(w, (gr_scheduler_event){
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
    } else if (kind == WORLD_READ) {
        w->now.agents[host].state = AGENT_NONE;
        event.kind = GR_EVENT_OUTPUT_READ;
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
    }
    world_tell(w, event);
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
    world_tell(w, (gr_scheduler_event){
                      .kind = GR_EVENT_TIMER, .value = timer, .now_us = NOW_US + passed_us});
}

/* It is granted if there can be so many, and while the job neither begins nor ends. */
static void scale(world *w, int workers)
{
    const gr_scheduler *schedule = &w->schedule;
    world_look_at_group(w);
    int before = w->now.target;
    bool possible = workers >= schedule->config.workers_min &&
                    workers <= schedule->config.workers_max &&
                    workers <= gr_scheduler_room(schedule);
    bool ends = schedule->phase != GR_PHASE_RUNNING || w->now.over;
    gr_scheduler_word word = !possible                   ? GR_WORD_NEVER
                             : !schedule->group.complete ? GR_WORD_STARTING
                             : ends                      ? GR_WORD_ENDING
                                                         : GR_WORD_GRANTED;
    bool granted = word == GR_WORD_GRANTED;
    w->now.budget.scales--;
    w->now.crowded = w->now.crowded || granted;
    w->answers = 0;
    world_tell(w, (gr_scheduler_event){.kind = GR_EVENT_SCALE, .value = workers});
    if (w->answers != 1 || w->answer != (int)word) {
        search_wrong(w->why, "who asks for %d workers gets %d answers, the last is %d", workers,
                     w->answers, w->answer);
    }
    if (w->now.target != (granted ? workers : before)) {
        search_wrong(w->why, "%d workers are asked for instead of %d, and %d are to be", workers,
                     before, w->now.target);
    }
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
    if (kind == WORLD_SCALE) {
        scale(w, number);
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
        world_look_at_group(w);
        world_forget_times(w, 0);
        return;
    }
    if (kind == WORLD_ARRIVES) {
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
    world_tell(w, event);
}

void world_happen(void *of, int event)
{
    world *w = of;
    world_event kind = (world_event)(event / WORLD_TARGETS);
    int number = event % WORLD_TARGETS;
    w->why[0] = '\0';
    if (number < world_slot_count(w) && can_slot(w, kind, number)) {
        happen_to_slot(w, kind, number);
    } else if (number < world_host_end(w) && can_host(w, kind, number)) {
        happen_to_host(w, kind, number);
    } else {
        happen_to_job(w, kind, number);
    }
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
                                                   "has its output read (host)",
                                                   "starts",
                                                   "has its end reported",
                                                   "joins",
                                                   "is left alone and fails",
                                                   "dies of being fenced",
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
                                                   "goes on after it was stopped",
                                                   "is lost (host)",
                                                   "cannot be started (host)",
                                                   "cannot be started",
                                                   "is killed",
                                                   "crashes",
                                                   "fails",
                                                   "misses others",
                                                   "is stopped",
                                                   "SIGINT",
                                                   "workers are wanted",
                                                   "slots has the host that comes",
                                                   "is dropped (host)",
                                                   "the output is lost",
                                                   "servers cannot be published"};
    print_error("  %d %s\n", event % WORLD_TARGETS, names[event / WORLD_TARGETS]);
}
