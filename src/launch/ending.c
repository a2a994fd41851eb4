/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/agent.h"
#include "launch/launch_job.h"

#include <signal.h>

enum {
    GRACE_FAILED_MS_MAX = 2000, /* what the others get after a failure */
    KILL_PATIENCE_MS =
        10000, /* a killed process that is still there by then is stuck in the kernel */
    SAME_SIGNAL_US = 1000000
};

static void on_phase_timer(uv_timer_t *timer);

void gr_launch_job_enter(gr_launch_job *job, gr_launch_job_phase phase, int64_t timeout_ms)
{
    job->phase = phase;
    uv_timer_stop(&job->phase_timer);
    if (timeout_ms >= 0) {
        (void)uv_timer_start(&job->phase_timer, on_phase_timer, (uint64_t)timeout_ms, 0);
    }
}

void gr_launch_job_kill_all(gr_launch_job *job)
{
    if (job->phase < GR_PHASE_KILLING) {
        job->told = true;
        gr_launch_job_notify(job, GR_AGENT_KILL, 0);
        gr_launch_job_kill_servers(job);
        gr_launch_job_enter(job, GR_PHASE_KILLING, KILL_PATIENCE_MS);
    }
}

void gr_launch_job_wait_for_end(gr_launch_job *job, int64_t grace_ms)
{
    if (job->phase >= GR_PHASE_ENDING) {
        return;
    }
    if (grace_ms <= 0) {
        gr_launch_job_kill_all(job);
    } else {
        gr_launch_job_enter(job, GR_PHASE_ENDING, grace_ms);
    }
}

static void end_all(gr_launch_job *job, int signal_number, int64_t grace_ms)
{
    if (job->phase < GR_PHASE_ENDING && grace_ms > 0) {
        job->told = true;
        gr_launch_job_notify(job, GR_AGENT_SIGNAL, signal_number);
    }
    gr_launch_job_wait_for_end(job, grace_ms);
    if (!gr_launch_job_any_agent(job)) { /* servers were on their way, and no worker */
        (void)gr_launch_job_end_servers(job);
    }
}

void gr_launch_job_end_after_failure(gr_launch_job *job)
{
    int64_t grace_ms = job->config->grace_us / 1000;
    end_all(job, SIGTERM, grace_ms < GRACE_FAILED_MS_MAX ? grace_ms : GRACE_FAILED_MS_MAX);
}

void gr_launch_job_blame(gr_launch_job *job, gr_launch_job_reason reason, gr_status status)
{
    if (job->reason == GR_REASON_NONE) {
        job->reason = reason;
        job->status = status;
    }
}

void gr_launch_job_blame_for(gr_launch_job *job, gr_launch_job_reason reason, const gr_diag *why)
{
    if (job->reason == GR_REASON_NONE) {
        gr_launch_job_blame(job, reason, (gr_status)why->status);
        job->cause = *why;
    }
}

void gr_launch_job_blame_loss(gr_launch_job *job, bool serves, const gr_diag *why)
{
    int root = gr_root_cause_root(job->ends, job->slots);
    gr_end_class class = root >= 0 ? gr_root_cause_class(&job->ends[root]) : GR_END_PEER;
    bool follows = class == GR_END_PEER || (serves && class == GR_END_FAILED);
    if (job->reason == GR_REASON_WORKER && follows && !job->repeats) {
        job->reason = GR_REASON_NONE;
    }
    gr_launch_job_blame_for(job, GR_REASON_AGENT_LOST, why);
}

void gr_launch_job_finish(gr_launch_job *job)
{
    gr_launch_job_enter(job, GR_PHASE_OVER, -1);
    uv_stop(&job->loop);
}

void gr_launch_job_drain(gr_launch_job *job)
{
    gr_launch_job_enter(job, GR_PHASE_DRAINING, -1);
    uv_timer_stop(&job->join_timer);
    gr_output_finish(job->output);
}

static void on_phase_timer(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    if (job->phase == GR_PHASE_SETTLING) {
        gr_launch_job_end_after_failure(job);
    } else if (job->phase == GR_PHASE_ENDING) {
        gr_launch_job_kill_all(job);
    } else if (job->phase == GR_PHASE_KILLING) {
        gr_launch_job_blame(job, GR_REASON_STUCK, GR_E_IO);
        (void)gr_fail(&job->cause, GR_E_IO,
                      "a process of the job does not end although it was killed; it waits for the "
                      "kernel (a disk or a network file system that does not answer?)");
        job->reason = GR_REASON_STUCK;
        gr_launch_job_finish(job);
    }
}

void gr_launch_job_on_signal(gr_launch_job *job, int signal_number)
{
    /* Some (timeout(1), a batch system that means every process of a job) send SIGTERM twice in a
     * moment and mean one. */
    bool again =
        signal_number == SIGINT ||
        (signal_number == SIGTERM && gr_launch_job_now_us() - job->signal_us > SAME_SIGNAL_US);
    if (job->signal_number == 0) {
        job->signal_number = signal_number;
        job->signal_us = gr_launch_job_now_us();
    }
    if (job->phase == GR_PHASE_DRAINING) {
        /* Whoever should read the output does not, and somebody is tired of waiting. */
        gr_launch_job_blame(job, GR_REASON_SIGNAL, GR_E_CANCELLED);
        gr_launch_job_finish(job);
    } else if (job->phase >= GR_PHASE_ENDING) {
        if (again) {
            gr_launch_job_kill_all(job);
        }
    } else {
        gr_launch_job_blame(job, GR_REASON_SIGNAL, GR_E_CANCELLED);
        end_all(job, signal_number, job->config->grace_us / 1000);
    }
}
