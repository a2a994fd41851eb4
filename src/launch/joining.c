/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/launch_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIST_BYTES = 160 };

/* ---- Joining --------------------------------------------------------------------------------- */

static void fail_absent(gr_launch_job *job, const bool *absent, const char *waited)
{
    char list[LIST_BYTES];
    gr_root_cause_list(absent, job->config->workers, list, sizeof list);
    gr_launch_job_blame(job, GR_REASON_NOT_JOINED, GR_E_TIMEOUT);
    (void)gr_fail(&job->cause, GR_E_TIMEOUT, "%s did not join the group %s", list, waited);
    gr_launch_job_end_after_failure(job);
}

static bool *absent_ranks(const gr_launch_job *job)
{
    bool *absent = calloc((size_t)job->config->workers, sizeof *absent);
    for (int rank = 0; absent != NULL && rank < job->config->workers; rank++) {
        absent[rank] = gr_coordinator_member_state(job->coordinator, rank) == 0;
    }
    return absent;
}

static void on_join_timeout(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    bool *absent = absent_ranks(job);
    char waited[200];
    snprintf(
        waited, sizeof waited,
        "within %.0f s %s; is it stuck, or does it never call gr_comm_create? (--start-timeout "
        "sets the time)",
        (double)job->config->start_timeout_us * 1e-6,
        job->config->all_join ? "of the start" : "of the first that did");
    if (absent != NULL && job->phase == GR_PHASE_RUNNING) {
        fail_absent(job, absent, waited);
    }
    free(absent);
}

void gr_launch_job_time_joining(gr_launch_job *job)
{
    if (!job->join_timing && job->config->start_timeout_us > 0) {
        job->join_timing = true;
        (void)uv_timer_start(&job->join_timer, on_join_timeout,
                             (uint64_t)job->config->start_timeout_us / 1000, 0);
    }
}

void gr_launch_job_check_joining(gr_launch_job *job)
{
    int joined = gr_coordinator_joined(job->coordinator);
    if (job->everybody_joined || job->phase != GR_PHASE_RUNNING) {
        return;
    }
    if (joined + job->spared_absent >= job->config->workers) {
        job->everybody_joined = true;
        gr_launch_job_aim(job);
        uv_timer_stop(&job->join_timer);
        return;
    }
    if (joined == 0) {
        return;
    }
    gr_launch_job_time_joining(job);
    bool *absent = absent_ranks(job);
    bool any = false;
    for (int rank = 0; absent != NULL && rank < job->config->workers; rank++) {
        absent[rank] = absent[rank] && job->ends[rank].ended && !job->ends[rank].spared;
        any = any || absent[rank];
    }
    if (any) {
        fail_absent(job, absent,
                    "that the others wait in: it has ended, with exit code 0; all ranks must call "
                    "gr_comm_create, or none");
    }
    free(absent);
}

/* ---- Expulsion ------------------------------------------------------------------------------- */

/* Those that the others still wait for: stopped, or stuck. They are killed, not only left out: who
 * wakes up later must not write what somebody else writes by now. */
static void on_fence_timer(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    for (int rank = 0; rank < job->slots && job->phase == GR_PHASE_RUNNING; rank++) {
        if (!job->ends[rank].ended && gr_coordinator_waits_for(job->coordinator, rank)) {
            gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                         "rank %d (pid %d) kept the others waiting for %g s: it is fenced "
                         "(--fence-after)",
                         rank, (int)job->ends[rank].pid, (double)job->config->fence_us * 1e-6);
            gr_launch_job_notify_worker(job, rank, GR_AGENT_FAULT, SIGKILL);
        }
    }
}

/* By now the others have waited in vain for most of the time. */
void gr_launch_job_watch_renewal(gr_launch_job *job)
{
    bool waits = false;
    for (int rank = 0; rank < job->slots && !waits; rank++) {
        waits = gr_coordinator_waits_for(job->coordinator, rank);
    }
    if (!waits) {
        uv_timer_stop(&job->fence_timer);
    } else if (!uv_is_active((uv_handle_t *)&job->fence_timer)) {
        int64_t left_us = job->config->fence_us - gr_launch_stall_us(job->config->fence_us);
        (void)uv_timer_start(&job->fence_timer, on_fence_timer, (uint64_t)left_us / 1000, 0);
    }
}
