/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/agent.h"
#include "launch/gang.h"

#include <signal.h>

enum {
    GRACE_FAILED_MS_MAX = 2000, /* what the others get after a failure */
    KILL_PATIENCE_MS =
        10000, /* a killed process that is still there by then is stuck in the kernel */
    SAME_SIGNAL_US = 1000000
};

static void on_phase_timer(uv_timer_t *timer);

void gr_gang_enter(gr_gang *gang, gr_gang_phase phase, int64_t timeout_ms)
{
    gang->phase = phase;
    uv_timer_stop(&gang->phase_timer);
    if (timeout_ms >= 0) {
        (void)uv_timer_start(&gang->phase_timer, on_phase_timer, (uint64_t)timeout_ms, 0);
    }
}

void gr_gang_kill_all(gr_gang *gang)
{
    if (gang->phase < GR_PHASE_KILLING) {
        gang->told = true;
        gr_gang_tell(gang, GR_AGENT_KILL, 0);
        gr_gang_kill_servers(gang);
        gr_gang_enter(gang, GR_PHASE_KILLING, KILL_PATIENCE_MS);
    }
}

void gr_gang_wait_for_end(gr_gang *gang, int64_t grace_ms)
{
    if (gang->phase >= GR_PHASE_ENDING) {
        return;
    }
    if (grace_ms <= 0) {
        gr_gang_kill_all(gang);
    } else {
        gr_gang_enter(gang, GR_PHASE_ENDING, grace_ms);
    }
}

static void end_all(gr_gang *gang, int signal_number, int64_t grace_ms)
{
    if (gang->phase < GR_PHASE_ENDING && grace_ms > 0) {
        gang->told = true;
        gr_gang_tell(gang, GR_AGENT_SIGNAL, signal_number);
    }
    gr_gang_wait_for_end(gang, grace_ms);
    if (!gr_gang_any_agent(gang)) { /* servers were on their way, and no worker */
        (void)gr_gang_end_servers(gang);
    }
}

void gr_gang_end_after_failure(gr_gang *gang)
{
    int64_t grace_ms = gang->config->grace_us / 1000;
    end_all(gang, SIGTERM, grace_ms < GRACE_FAILED_MS_MAX ? grace_ms : GRACE_FAILED_MS_MAX);
}

void gr_gang_blame(gr_gang *gang, gr_gang_reason reason, gr_status status)
{
    if (gang->reason == GR_REASON_NONE) {
        gang->reason = reason;
        gang->status = status;
    }
}

void gr_gang_blame_for(gr_gang *gang, gr_gang_reason reason, const gr_diag *why)
{
    if (gang->reason == GR_REASON_NONE) {
        gr_gang_blame(gang, reason, (gr_status)why->status);
        gang->verdict = *why;
    }
}

void gr_gang_blame_loss(gr_gang *gang, bool serves, const gr_diag *why)
{
    int root = gr_verdict_root(gang->ends, gang->slots);
    gr_end_class class = root >= 0 ? gr_verdict_class(&gang->ends[root]) : GR_END_PEER;
    bool follows = class == GR_END_PEER || (serves && class == GR_END_FAILED);
    if (gang->reason == GR_REASON_WORKER && follows && !gang->repeats) {
        gang->reason = GR_REASON_NONE;
    }
    gr_gang_blame_for(gang, GR_REASON_AGENT_LOST, why);
}

void gr_gang_finish(gr_gang *gang)
{
    gr_gang_enter(gang, GR_PHASE_OVER, -1);
    uv_stop(&gang->loop);
}

void gr_gang_drain(gr_gang *gang)
{
    gr_gang_enter(gang, GR_PHASE_DRAINING, -1);
    uv_timer_stop(&gang->join_timer);
    gr_output_finish(gang->output);
}

static void on_phase_timer(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    if (gang->phase == GR_PHASE_SETTLING) {
        gr_gang_end_after_failure(gang);
    } else if (gang->phase == GR_PHASE_ENDING) {
        gr_gang_kill_all(gang);
    } else if (gang->phase == GR_PHASE_KILLING) {
        gr_gang_blame(gang, GR_REASON_STUCK, GR_E_IO);
        (void)gr_fail(&gang->verdict, GR_E_IO,
                      "a process of the job does not end although it was killed; it waits for the "
                      "kernel (a disk or a network file system that does not answer?)");
        gang->reason = GR_REASON_STUCK;
        gr_gang_finish(gang);
    }
}

void gr_gang_on_signal(gr_gang *gang, int signal_number)
{
    /* Some (timeout(1), a batch system that means every process of a job) send SIGTERM twice in a
     * moment and mean one. */
    bool again = signal_number == SIGINT ||
                 (signal_number == SIGTERM && gr_gang_now_us() - gang->signal_us > SAME_SIGNAL_US);
    if (gang->signal_number == 0) {
        gang->signal_number = signal_number;
        gang->signal_us = gr_gang_now_us();
    }
    if (gang->phase == GR_PHASE_DRAINING) {
        /* Whoever should read the output does not, and somebody is tired of waiting. */
        gr_gang_blame(gang, GR_REASON_SIGNAL, GR_E_CANCELLED);
        gr_gang_finish(gang);
    } else if (gang->phase >= GR_PHASE_ENDING) {
        if (again) {
            gr_gang_kill_all(gang);
        }
    } else {
        gr_gang_blame(gang, GR_REASON_SIGNAL, GR_E_CANCELLED);
        end_all(gang, signal_number, gang->config->grace_us / 1000);
    }
}
