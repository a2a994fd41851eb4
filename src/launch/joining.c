/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/gang.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIST_BYTES = 160 };

/* ---- Joining --------------------------------------------------------------------------------- */

static void fail_absent(gr_gang *gang, const bool *absent, const char *waited)
{
    char list[LIST_BYTES];
    gr_verdict_list(absent, gang->config->workers, list, sizeof list);
    gr_gang_blame(gang, GR_REASON_NOT_JOINED, GR_E_TIMEOUT);
    (void)gr_fail(&gang->verdict, GR_E_TIMEOUT, "%s did not join the group %s", list, waited);
    gr_gang_end_after_failure(gang);
}

static bool *absent_ranks(const gr_gang *gang)
{
    bool *absent = calloc((size_t)gang->config->workers, sizeof *absent);
    for (int rank = 0; absent != NULL && rank < gang->config->workers; rank++) {
        absent[rank] = gr_coordinator_member_state(gang->coordinator, rank) == 0;
    }
    return absent;
}

static void on_join_timeout(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    bool *absent = absent_ranks(gang);
    char waited[200];
    snprintf(
        waited, sizeof waited,
        "within %.0f s %s; is it stuck, or does it never call gr_comm_create? (--start-timeout "
        "sets the time)",
        (double)gang->config->start_timeout_us * 1e-6,
        gang->config->all_join ? "of the start" : "of the first that did");
    if (absent != NULL && gang->phase == GR_PHASE_RUNNING) {
        fail_absent(gang, absent, waited);
    }
    free(absent);
}

void gr_gang_time_joining(gr_gang *gang)
{
    if (!gang->join_timing && gang->config->start_timeout_us > 0) {
        gang->join_timing = true;
        (void)uv_timer_start(&gang->join_timer, on_join_timeout,
                             (uint64_t)gang->config->start_timeout_us / 1000, 0);
    }
}

void gr_gang_check_joining(gr_gang *gang)
{
    int joined = gr_coordinator_joined(gang->coordinator);
    if (gang->everybody_joined || gang->phase != GR_PHASE_RUNNING) {
        return;
    }
    if (joined + gang->spared_absent >= gang->config->workers) {
        gang->everybody_joined = true;
        gr_gang_aim(gang);
        uv_timer_stop(&gang->join_timer);
        return;
    }
    if (joined == 0) {
        return;
    }
    gr_gang_time_joining(gang);
    bool *absent = absent_ranks(gang);
    bool any = false;
    for (int rank = 0; absent != NULL && rank < gang->config->workers; rank++) {
        absent[rank] = absent[rank] && gang->ends[rank].ended && !gang->ends[rank].spared;
        any = any || absent[rank];
    }
    if (any) {
        fail_absent(gang, absent,
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
    gr_gang *gang = timer->data;
    for (int rank = 0; rank < gang->slots && gang->phase == GR_PHASE_RUNNING; rank++) {
        if (!gang->ends[rank].ended && gr_coordinator_waits_for(gang->coordinator, rank)) {
            gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                         "rank %d (pid %d) kept the others waiting for %g s: it is fenced "
                         "(--fence-after)",
                         rank, (int)gang->ends[rank].pid, (double)gang->config->fence_us * 1e-6);
            gr_gang_tell_worker(gang, rank, GR_AGENT_FAULT, SIGKILL);
        }
    }
}

/* By now the others have waited in vain for most of the time. */
void gr_gang_watch_renewal(gr_gang *gang)
{
    bool waits = false;
    for (int rank = 0; rank < gang->slots && !waits; rank++) {
        waits = gr_coordinator_waits_for(gang->coordinator, rank);
    }
    if (!waits) {
        uv_timer_stop(&gang->fence_timer);
    } else if (!uv_is_active((uv_handle_t *)&gang->fence_timer)) {
        int64_t left_us = gang->config->fence_us - gr_launch_stall_us(gang->config->fence_us);
        (void)uv_timer_start(&gang->fence_timer, on_fence_timer, (uint64_t)left_us / 1000, 0);
    }
}
