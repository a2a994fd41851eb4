/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/schedule/internal.h"

#include <signal.h>

enum {
    GRACE_FAILED_US_MAX = 2000000, /* what the others get after a failure */
    KILL_PATIENCE_US =
        10000000, /* a killed process that is still there by then is stuck in the kernel */
    SAME_SIGNAL_US = 1000000,
    NO_TIME = -1
};

void gr_scheduler_enter(gr_scheduler *schedule, gr_scheduler_phase phase, int64_t after_us)
{
    schedule->phase = phase;
    gr_scheduler_set_timer(schedule, GR_TIMER_PHASE, after_us);
}

void gr_scheduler_kill_all(gr_scheduler *schedule)
{
    if (schedule->phase < GR_PHASE_KILLING) {
        schedule->told = SIGKILL;
        schedule->server.told = true;
        gr_scheduler_act(schedule, GR_ACTION_KILL_WORKERS, -1, -1, 0);
        gr_scheduler_act(schedule, GR_ACTION_KILL_SERVERS, -1, -1, 0);
        gr_scheduler_enter(schedule, GR_PHASE_KILLING, KILL_PATIENCE_US);
        gr_scheduler_end_if_idle(schedule);
    }
}

void gr_scheduler_wait_for_end(gr_scheduler *schedule, int64_t grace_us)
{
    if (schedule->phase >= GR_PHASE_ENDING) {
        return;
    }
    if (grace_us < 1000) { /* the loop's timers count milliseconds */
        gr_scheduler_kill_all(schedule);
    } else {
        gr_scheduler_enter(schedule, GR_PHASE_ENDING, grace_us);
    }
}

static void end_all(gr_scheduler *schedule, int signal_number, int64_t grace_us)
{
    if (schedule->phase < GR_PHASE_ENDING && grace_us >= 1000) {
        schedule->told = signal_number;
        gr_scheduler_act(schedule, GR_ACTION_SIGNAL_WORKERS, -1, -1, signal_number);
    }
    gr_scheduler_wait_for_end(schedule, grace_us);
    gr_scheduler_end_if_idle(schedule);
}

void gr_scheduler_end_after_failure(gr_scheduler *schedule)
{
    int64_t grace_us = schedule->config.grace_us;
    end_all(schedule, SIGTERM, grace_us < GRACE_FAILED_US_MAX ? grace_us : GRACE_FAILED_US_MAX);
}

void gr_scheduler_end_helpers(gr_scheduler *schedule)
{
    end_all(schedule, SIGTERM, schedule->config.grace_us);
}

void gr_scheduler_end_if_idle(gr_scheduler *schedule)
{
    bool any = false;
    for (int i = 0; i < schedule->host_count && !any; i++) {
        any = gr_scheduler_is_active(&schedule->hosts[i]);
    }
    if (any || schedule->phase >= GR_PHASE_DRAINING || gr_scheduler_end_servers(schedule)) {
        return;
    }
    if (schedule->any_lost) { /* what its workers had started fell to the launcher */
        gr_scheduler_act(schedule, GR_ACTION_END_TREE, -1, -1, 0);
    }
    gr_scheduler_enter(schedule, GR_PHASE_DRAINING, NO_TIME);
    gr_scheduler_set_timer(schedule, GR_TIMER_JOIN, -1);
    gr_scheduler_act(schedule, GR_ACTION_DRAIN_OUTPUT, -1, -1, 0);
}

void gr_scheduler_blame(gr_scheduler *schedule, gr_scheduler_reason reason)
{
    if (schedule->reason == GR_REASON_NONE) {
        schedule->reason = reason;
        gr_scheduler_act(schedule, GR_ACTION_REPORT, -1, -1, (int)reason);
    }
}

bool gr_scheduler_may_follow(const gr_scheduler *schedule, bool serves)
{
    int root = gr_root_cause_root(schedule->ends, schedule->config.slots);
    gr_end_class class = root >= 0 ? gr_root_cause_class(&schedule->ends[root]) : GR_END_PEER;
    bool follows = class == GR_END_PEER || (serves && class == GR_END_FAILED);
    return schedule->reason == GR_REASON_WORKER && follows && !schedule->crash.repeats;
}

void gr_scheduler_blame_loss(gr_scheduler *schedule, bool followed)
{
    schedule->reason = followed ? GR_REASON_NONE : schedule->reason;
    gr_scheduler_blame(schedule, GR_REASON_AGENT_LOST);
}

void gr_scheduler_finish(gr_scheduler *schedule)
{
    gr_scheduler_enter(schedule, GR_PHASE_OVER, NO_TIME);
    gr_scheduler_act(schedule, GR_ACTION_FINISH, -1, -1, 0);
}

void gr_scheduler_phase_timeout(gr_scheduler *schedule)
{
    if (schedule->phase == GR_PHASE_SETTLING) {
        gr_scheduler_end_after_failure(schedule);
    } else if (schedule->phase == GR_PHASE_ENDING) {
        gr_scheduler_kill_all(schedule);
    } else if (schedule->phase == GR_PHASE_KILLING) {
        schedule->reason = GR_REASON_NONE; /* this one matters more than what came before */
        gr_scheduler_blame(schedule, GR_REASON_STUCK);
        gr_scheduler_finish(schedule);
    }
}

void gr_scheduler_on_signal(gr_scheduler *schedule, int number)
{
    /* Some (timeout(1), a batch system that means every process of a job) send SIGTERM twice in a
     * moment and mean one. */
    bool again =
        number == SIGINT || number == SIGKILL ||
        (number == SIGTERM && schedule->call.now_us - schedule->signal.at_us > SAME_SIGNAL_US);
    if (schedule->signal.number == 0) {
        schedule->signal.number = number;
        schedule->signal.at_us = schedule->call.now_us;
    }
    if (schedule->phase < GR_PHASE_ENDING) {
        gr_scheduler_blame(schedule, GR_REASON_SIGNAL);
        end_all(schedule, number, schedule->config.grace_us);
    } else if (schedule->phase == GR_PHASE_DRAINING) {
        /* Whoever should read the output does not, and somebody is tired of waiting. */
        gr_scheduler_blame(schedule, GR_REASON_SIGNAL);
        gr_scheduler_finish(schedule);
    } else if (again) {
        gr_scheduler_kill_all(schedule);
    }
}
