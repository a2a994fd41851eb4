/* SPDX-License-Identifier: Apache-2.0 */
#include "group/membership.h"
#include "launch/schedule/internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum {
    /* Between a failure and the end of the others: the time in which a likelier cause may show. */
    SETTLE_FAILED_US = 50000,
    SETTLE_PEER_US = 2000000,
    LAST_WORDS_US = 2000000
};

int gr_scheduler_count_busy(const gr_scheduler *schedule)
{
    int count = 0;
    for (int i = 0; i < schedule->config.slots; i++) {
        count += schedule->slots[i].busy;
    }
    return count;
}

int gr_scheduler_count_busy_of(const gr_scheduler *schedule, int host)
{
    const gr_scheduler_host *of = &schedule->hosts[host];
    int count = 0;
    for (int i = 0; i < of->slot_count; i++) {
        count += schedule->slots[of->first + i].busy;
    }
    return count;
}

/* Without those that were asked to go. */
static int count_staying(const gr_scheduler *schedule)
{
    int count = 0;
    for (int i = 0; i < schedule->config.slots; i++) {
        const gr_scheduler_slot *slot = &schedule->slots[i];
        count += slot->busy && !schedule->hosts[slot->host].leaving;
    }
    return count;
}

/* Returns true if a worker runs that has been in a generation: only such a worker can give its
 * state to those that join. */
static bool anybody_serves(const gr_scheduler *schedule)
{
    bool any = false;
    for (int i = 0; i < schedule->config.slots && !any; i++) {
        const gr_scheduler_slot *slot = &schedule->slots[i];
        any = slot->busy && slot->served && slot->member != GR_MEMBER_LOST;
    }
    return any;
}

/* ---- How many -------------------------------------------------------------------------------- */

void gr_scheduler_set_target(gr_scheduler *schedule)
{
    int busy = count_staying(schedule);
    bool missing = busy < schedule->want + schedule->spares && busy < gr_scheduler_room(schedule);
    bool expecting = missing || schedule->restarts_left > 0;
    if (schedule->want != schedule->group.target || expecting != schedule->group.expecting) {
        schedule->group.target = schedule->want;
        schedule->group.expecting = expecting;
        gr_scheduler_act(schedule, GR_ACTION_SET_TARGET, -1, -1, schedule->want)->flag = expecting;
    }
}

/* As many workers as were asked for, as far as there are slots for them. */
void gr_scheduler_aim(gr_scheduler *schedule)
{
    int room = gr_scheduler_room(schedule), least = schedule->config.workers_min;
    int want = schedule->asked < room ? schedule->asked : room;
    if (schedule->config.changing && schedule->group.complete) {
        schedule->want = want > least ? want : least;
        gr_scheduler_set_target(schedule);
    }
}

/* One is lost. Returns true if another one is started; else the job needs no more than are left. Of
 * a lost host this is not counted for each worker, since the host is not tried for ever. */
static bool replace(gr_scheduler *schedule, bool with_host)
{
    int left = gr_scheduler_count_busy(schedule);
    bool can = with_host ? schedule->config.restarts > 0 && gr_scheduler_room(schedule) > left
                         : schedule->restarts_left > 0;
    if (can && !schedule->group.over) {
        schedule->restarts_left -= !with_host;
        return true;
    }
    int staying = count_staying(schedule);
    schedule->want = staying < schedule->want ? staying : schedule->want;
    schedule->spares = staying - schedule->want;
    schedule->asked = with_host ? schedule->asked : schedule->want; /* another host may come */
    return false;
}

static void start_worker(gr_scheduler *schedule, int number)
{
    gr_scheduler_slot *slot = &schedule->slots[number];
    slot->busy = slot->joining = true;
    slot->served = false;
    slot->member = GR_MEMBER_RESERVED;
    schedule->ends[number] = (gr_worker_end){.spared = true}; /* until it has started */
    gr_scheduler_act(schedule, GR_ACTION_START_WORKER, -1, number, 0);
}

/* As many as are wanted, and those that wait beside them. Not while the others are on their way
 * from one generation to the next: they need the cores. */
void gr_scheduler_fill(gr_scheduler *schedule)
{
    int missing = schedule->want + schedule->spares - count_staying(schedule);
    if (missing <= 0 || !schedule->config.elastic || schedule->phase != GR_PHASE_RUNNING ||
        !schedule->group.complete || schedule->group.over || !schedule->group.at_rest ||
        !anybody_serves(schedule)) {
        return;
    }
    for (int i = 0; i < schedule->config.slots && missing > 0; i++) {
        const gr_scheduler_slot *slot = &schedule->slots[i];
        if (slot->host >= 0 && !slot->busy && schedule->hosts[slot->host].state == GR_HOST_UP &&
            !schedule->hosts[slot->host].leaving) {
            start_worker(schedule, i);
            missing--;
        }
    }
    gr_scheduler_set_target(schedule);
    gr_scheduler_call_hosts(schedule, missing);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

void gr_scheduler_note_end(gr_scheduler *schedule, int slot, int wait_status)
{
    gr_worker_end *end = &schedule->ends[slot];
    end->ended = true;
    end->wait_status = wait_status;
    end->order = schedule->ended++;
    end->end_us = schedule->call.now_us;
    schedule->slots[slot].busy = false;
}

bool gr_scheduler_spare(gr_scheduler *schedule, int slot)
{
    const gr_scheduler_config *config = &schedule->config;
    bool served = schedule->slots[slot].served;
    int left = gr_scheduler_count_busy(schedule);
    if (schedule->phase == GR_PHASE_RUNNING && schedule->group.done) {
        schedule->ends[slot].spared = true;
        (void)gr_scheduler_act(schedule, GR_ACTION_GO_ON, -1, slot, 0);
        (void)gr_scheduler_act(schedule, GR_ACTION_MEMBER_ENDED, -1, slot, 0);
        return true;
    }
    if (!config->elastic || schedule->phase != GR_PHASE_RUNNING || left == 0 ||
        (served && !anybody_serves(schedule))) {
        return false;
    }
    bool again = replace(schedule, schedule->ends[slot].lost);
    if ((again ? schedule->want : left) < config->workers_min) {
        return false;
    }
    schedule->ends[slot].spared = true;
    schedule->spared_absent += schedule->slots[slot].member == GR_MEMBER_ABSENT;
    int with = left < schedule->want ? left : schedule->want;
    gr_scheduler_action *action = gr_scheduler_act(schedule, GR_ACTION_GO_ON, -1, slot, with);
    action->flag = again;
    action->standby = served && again && left >= schedule->want;
    gr_scheduler_act(schedule, GR_ACTION_MEMBER_ENDED, -1, slot, 0);
    gr_scheduler_set_target(schedule);
    return true;
}

/* Keeps the crash in mind. Returns true if it has come before, and would come again. */
static bool crash_repeats(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    const gr_worker_end *end = &schedule->ends[event->slot];
    schedule->crash.before = schedule->crash.last;
    schedule->crash.last = (gr_crash){.signal_number = WTERMSIG(end->wait_status),
                                      .rank = event->slot,
                                      .attempt = schedule->config.attempt,
                                      .place = event->place};
    snprintf(schedule->crash.last.host, sizeof schedule->crash.last.host, "%s",
             end->host != NULL ? end->host : "");
    schedule->crash.repeats = gr_crash_repeats(&schedule->crash.before, &schedule->crash.last);
    return schedule->crash.repeats;
}

static void weigh_end(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    const gr_scheduler_slot *slot = &schedule->slots[event->slot];
    gr_worker_end *end = &schedule->ends[event->slot];
    gr_scheduler_note_end(schedule, event->slot, event->value);
    /* On a busy host a death can be told here after others have noticed it, failed and ended. */
    bool killed = WIFSIGNALED(event->value) && WTERMSIG(event->value) == SIGKILL;
    end->was_asked = schedule->told != 0 && (!killed || schedule->told == SIGKILL);
    /* Nobody depends on a joining worker that has not come in. */
    bool idle = slot->joining && !slot->served;
    gr_end_class class = gr_root_cause_class(end);
    /* One that fails leaves the group, too, and one that was sent away ends well. */
    schedule->group.done =
        schedule->group.done || (schedule->config.left_is_done && schedule->group.over &&
                                 slot->served && class == GR_END_FINE && !end->spared);
    if (class == GR_END_FINE || class == GR_END_ASKED || (idle && schedule->group.over)) {
        end->spared = idle;
        return;
    }
    if (schedule->phase > GR_PHASE_SETTLING) {
        return;
    }
    /* A worker that misses others although the coordinator has not heard why was cut off from the
     * coordinator, by which the others go on. One that fails as they do takes leave of it. */
    bool cut_off = class == GR_END_PEER &&
                   (slot->member == GR_MEMBER_JOINED || slot->member == GR_MEMBER_LOST);
    bool repeats = !idle && gr_root_cause_crashed(end) && crash_repeats(schedule, event);
    bool harmless = class == GR_END_KILLED || idle || cut_off;
    if (!repeats && harmless && gr_scheduler_spare(schedule, event->slot)) {
        return;
    }
    gr_scheduler_blame(schedule, GR_REASON_WORKER);
    if (class == GR_END_KILLED) {
        gr_scheduler_end_after_failure(schedule);
    } else if (class == GR_END_FAILED) {
        gr_scheduler_enter(schedule, GR_PHASE_SETTLING, SETTLE_FAILED_US);
    } else if (schedule->phase == GR_PHASE_RUNNING) {
        gr_scheduler_enter(schedule, GR_PHASE_SETTLING, SETTLE_PEER_US);
    }
}

/* Those that would wait for other workers. */
static void end_unused_agents(gr_scheduler *schedule)
{
    if (schedule->phase < GR_PHASE_ENDING && schedule->config.elastic &&
        gr_scheduler_count_busy(schedule) == 0) {
        gr_scheduler_act(schedule, GR_ACTION_KILL_WORKERS, -1, -1, 0);
    }
}

/* Returns true if only processes that help the others still run. */
static bool only_helpers_run(const gr_scheduler *schedule)
{
    int others = schedule->config.workers - schedule->config.helpers;
    bool any = false;
    for (int i = 0; i < others && !any; i++) {
        any = schedule->slots[i].busy;
    }
    return schedule->config.helpers > 0 && !any;
}

void gr_scheduler_worker_ended(gr_scheduler *schedule, const gr_scheduler_event *event)
{
    int host = schedule->slots[event->slot].host;
    weigh_end(schedule, event);
    if (schedule->phase == GR_PHASE_RUNNING && only_helpers_run(schedule)) {
        gr_scheduler_end_helpers(schedule);
    }
    if (schedule->hosts[host].leaving && gr_scheduler_count_busy_of(schedule, host) == 0) {
        gr_scheduler_act(schedule, GR_ACTION_END_AGENT, host, -1, 0);
    }
    end_unused_agents(schedule);
}

void gr_scheduler_worker_not_started(gr_scheduler *schedule, int slot)
{
    if (schedule->going && !schedule->slots[slot].busy) { /* the agent itself: it is DONE then */
        gr_scheduler_act(schedule, GR_ACTION_HOST_FAILED, schedule->slots[slot].host, -1, 0);
    } else if (slot >= schedule->config.slots && gr_scheduler_server_refused(schedule, slot)) {
        return; /* the others go on */
    } else if (slot < schedule->config.slots && schedule->slots[slot].joining) {
        /* Those that run go on. So that this is not tried for ever, no others are started. */
        schedule->slots[slot].busy = false;
        schedule->restarts_left = 0;
        (void)replace(schedule, false);
        gr_scheduler_act(schedule, GR_ACTION_GO_ON_WITHOUT, -1, slot, schedule->want);
        gr_scheduler_act(schedule, GR_ACTION_MEMBER_ENDED, -1, slot, 0);
        gr_scheduler_set_target(schedule);
        end_unused_agents(schedule);
    } else {
        gr_scheduler_blame(schedule, GR_REASON_NOT_STARTED);
        gr_scheduler_kill_all(schedule);
    }
}

/* ---- Joining --------------------------------------------------------------------------------- */

bool gr_scheduler_is_absent(const gr_scheduler *schedule, int slot, bool ended)
{
    const gr_worker_end *end = &schedule->ends[slot];
    return schedule->slots[slot].member == GR_MEMBER_ABSENT &&
           (!ended || (end->ended && !end->spared));
}

static void fail_absent(gr_scheduler *schedule, int host, bool ended)
{
    if (schedule->reason == GR_REASON_NONE) {
        schedule->reason = GR_REASON_NOT_JOINED;
        gr_scheduler_act(schedule, GR_ACTION_REPORT, host, -1, GR_REASON_NOT_JOINED)->flag = ended;
    }
    gr_scheduler_end_after_failure(schedule);
}

static void set_join_timer(gr_scheduler *schedule, int64_t after_us)
{
    if (schedule->config.start_timeout_us > 0) {
        gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, after_us);
    }
}

void gr_scheduler_time_joining(gr_scheduler *schedule)
{
    if (!schedule->group.timed) {
        schedule->group.timed = true;
        set_join_timer(schedule, schedule->config.start_timeout_us);
    }
}

void gr_scheduler_all_ready(gr_scheduler *schedule)
{
    if (!schedule->config.all_join || schedule->config.workers == 1) {
        schedule->group.timed = false; /* until the first joins */
        gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, -1);
    }
}

void gr_scheduler_join_timeout(gr_scheduler *schedule)
{
    int host = 0;
    if (schedule->phase != GR_PHASE_RUNNING || schedule->group.complete) {
        return;
    }
    if (schedule->going) {
        fail_absent(schedule, -1, false);
    } else if (!schedule->group.late) { /* whoever waits for a host may tell why it is not ready */
        schedule->group.late = true;
        set_join_timer(schedule, LAST_WORDS_US);
    } else {
        while (host + 1 < schedule->host_count && schedule->hosts[host].state != GR_HOST_STARTING) {
            host++;
        }
        fail_absent(schedule, host, false);
    }
}

/* A worker has joined: the others have to come as well, and one that has ended cannot. */
void gr_scheduler_check_joining(gr_scheduler *schedule)
{
    int workers = schedule->config.workers;
    if (schedule->group.complete || schedule->phase != GR_PHASE_RUNNING) {
        return;
    }
    if (schedule->group.joined + schedule->spared_absent >= workers) {
        schedule->group.complete = true;
        gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, -1);
        gr_scheduler_aim(schedule);
        return;
    }
    if (schedule->group.joined == 0) {
        return;
    }
    gr_scheduler_time_joining(schedule);
    bool any = false;
    for (int slot = 0; slot < workers; slot++) {
        any = any || gr_scheduler_is_absent(schedule, slot, true);
    }
    if (any) {
        fail_absent(schedule, -1, true);
    }
}

/* ---- Fencing --------------------------------------------------------------------------------- */

static bool is_late(const gr_scheduler_slot *slot)
{
    return slot->busy && slot->awaited;
}

void gr_scheduler_watch_renewal(gr_scheduler *schedule)
{
    bool late = false;
    for (int i = 0; i < schedule->config.slots && schedule->config.fence_us > 0 && !late; i++) {
        late = is_late(&schedule->slots[i]);
    }
    if (late != schedule->group.fencing) {
        schedule->group.fencing = late;
        gr_scheduler_set_timer(schedule, GR_TIMER_FENCE, late ? schedule->config.fence_us : -1);
    }
}

/* Those that the others still wait for: stopped, or stuck. They are killed, not only left out: who
 * wakes up later must not write what somebody else writes by now. */
void gr_scheduler_fence_timeout(gr_scheduler *schedule)
{
    schedule->group.fencing = false;
    for (int i = 0; i < schedule->config.slots && schedule->phase == GR_PHASE_RUNNING; i++) {
        if (is_late(&schedule->slots[i])) {
            gr_scheduler_act(schedule, GR_ACTION_FENCE, -1, i, 0);
        }
    }
}
