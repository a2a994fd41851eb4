/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/launch_job.h"

#include <stdio.h>
#include <sys/wait.h>

enum {
    /* Between a failure and the end of the others: the time in which a likelier cause may show. */
    SETTLE_FAILED_MS = 50,
    SETTLE_PEER_MS = 2000,
    /* What the coordinator says of a member: its process has not ended, as far as that knows; its
     * connection broke. */
    STATE_JOINED = 1,
    STATE_BROKEN = 3
};

int gr_launch_job_count_busy(const gr_launch_job *job)
{
    int count = 0;
    for (int i = 0; i < job->slots; i++) {
        count += job->places[i].busy;
    }
    return count;
}

/* Without those that were asked to go. */
static int count_staying(const gr_launch_job *job)
{
    int count = 0;
    for (int i = 0; i < job->slots; i++) {
        count += job->places[i].busy && !job->places[i].agent->leaving;
    }
    return count;
}

int gr_launch_job_count_busy_of(const gr_host_agent *agent)
{
    int count = 0;
    for (int i = 0; i < agent->seats; i++) {
        count += agent->job->places[agent->host.first + i].busy;
    }
    return count;
}

/* Returns true if a worker runs that has been in a generation: only such a worker can give its
 * state to those that join. */
static bool anybody_serves(const gr_launch_job *job)
{
    for (int i = 0; i < job->slots; i++) {
        if (job->places[i].busy && gr_coordinator_has_served(job->coordinator, i) &&
            gr_coordinator_member_state(job->coordinator, i) != STATE_BROKEN) {
            return true;
        }
    }
    return false;
}

static void start_another(gr_launch_job *job, int slot)
{
    job->places[slot].busy = job->places[slot].joining = true;
    job->ends[slot] = (gr_worker_end){.spared = true}; /* until it has started */
    gr_output_renew(job->output, slot);
    gr_records_begun(job->records, slot);
    gr_coordinator_reserve(job->coordinator, slot);
    gr_launch_job_notify_worker(job, slot, GR_AGENT_SPAWN, 0);
}

/* What the coordinator has to know of it: how many are wanted, and whether more will come. */
void gr_launch_job_set_target(gr_launch_job *job)
{
    int busy = count_staying(job);
    bool missing = busy < job->want + job->spares && busy < gr_launch_job_room(job);
    gr_coordinator_set_target_size(job->coordinator, job->want);
    gr_coordinator_expect_joining(job->coordinator, missing || job->restarts_left > 0);
}

/* One is lost: is another one started? If not, the job needs no more than are left. Of a host that
 * is lost this is not counted for each worker, since the host is not tried for ever. */
static bool replace(gr_launch_job *job, bool with_host)
{
    int left = gr_launch_job_count_busy(job);
    bool can = with_host ? job->config->restarts > 0 && gr_launch_job_room(job) > left
                         : job->restarts_left > 0;
    if (can && !gr_coordinator_is_over(job->coordinator)) {
        job->restarts_left -= !with_host;
        return true;
    }
    int staying = count_staying(job);
    job->want = staying < job->want ? staying : job->want;
    job->spares = staying - job->want;
    job->asked = with_host ? job->asked : job->want; /* another host may come */
    return false;
}

void gr_launch_job_fill(gr_launch_job *job)
{
    int missing = job->want + job->spares - count_staying(job);
    if (missing <= 0 || !gr_launch_elastic(job->config) || job->phase != GR_PHASE_RUNNING ||
        !job->everybody_joined || gr_coordinator_is_over(job->coordinator) ||
        !gr_coordinator_at_rest(job->coordinator) || !anybody_serves(job)) {
        return;
    }
    for (int slot = 0; slot < job->slots && missing > 0; slot++) {
        const gr_host_agent *agent = job->places[slot].agent;
        if (agent != NULL && agent->state == GR_HOST_UP && !agent->leaving &&
            !job->places[slot].busy) {
            start_another(job, slot);
            missing--;
        }
    }
    gr_launch_job_set_target(job);
    gr_launch_job_call_hosts(job, missing);
}

bool gr_launch_job_spare(gr_launch_job *job, int rank)
{
    const gr_launch_config *config = job->config;
    gr_worker_end *end = &job->ends[rank];
    bool served = gr_coordinator_has_served(job->coordinator, rank);
    int left = gr_launch_job_count_busy(job);
    if (!gr_launch_elastic(config) || job->phase != GR_PHASE_RUNNING || left == 0 ||
        (served && !anybody_serves(job))) {
        return false;
    }
    bool again = replace(job, end->lost);
    if ((again ? job->want : left) < config->workers_min) {
        return false;
    }
    char what[GR_DIAG_TEXT_BYTES];
    gr_root_cause_describe("rank", rank, end, what, sizeof what);
    int with = left < job->want ? left : job->want;
    gr_log_write(config->log, GR_LOG_WARN, "launch", "%s; the job goes on with %d worker%s%s%s",
                 what, with, with == 1 ? "" : "s",
                 served && again && left >= job->want ? ", a standby among them" : "",
                 again ? ", and another one is started" : "");
    end->spared = true;
    job->spared_absent += gr_coordinator_member_state(job->coordinator, rank) == 0;
    gr_coordinator_member_ended(job->coordinator, rank);
    gr_launch_job_set_target(job);
    gr_launch_job_progress(job);
    return true;
}

/* Keeps the crash of `rank` in mind. True: it has come before, and would come again. */
static bool crash_repeats(gr_launch_job *job, int rank)
{
    const gr_worker_end *end = &job->ends[rank];
    job->crash_before = job->crash;
    job->crash = (gr_crash){.signal_number = WTERMSIG(end->wait_status),
                            .rank = rank,
                            .beginning = job->config->beginning,
                            .place = gr_records_place(job->records, rank)};
    snprintf(job->crash.host, sizeof job->crash.host, "%s", end->host != NULL ? end->host : "");
    job->repeats = gr_crash_repeats(&job->crash_before, &job->crash);
    return job->repeats;
}

/* Has it lost the others without the coordinator having heard why? Then it was cut off from that
 * one, by which the others go on. Who fails as they do takes leave of it. */
static bool was_cut_off(const gr_launch_job *job, int rank)
{
    int state = gr_coordinator_member_state(job->coordinator, rank);
    return gr_root_cause_class(&job->ends[rank]) == GR_END_PEER &&
           (state == STATE_JOINED || state == STATE_BROKEN);
}

static void weigh_end(gr_launch_job *job, const gr_agent_message *message)
{
    gr_worker_end *end = &job->ends[message->rank];
    if (job->phase == GR_PHASE_RUNNING) {
        gr_launch_job_progress(job); /* its last message may still be unread */
    }
    end->ended = true;
    end->wait_status = message->value;
    end->order = job->ended++;
    end->end_us = gr_launch_job_now_us();
    gr_records_ended(job->records, message->rank);
    end->was_asked = job->told;
    job->places[message->rank].busy = false;
    /* Nobody depends on a joining worker that has not come in. */
    bool idle = job->places[message->rank].joining &&
                !gr_coordinator_has_served(job->coordinator, message->rank);
    bool unneeded = idle && gr_coordinator_is_over(job->coordinator);
    gr_end_class class = gr_root_cause_class(end);
    if (class == GR_END_FINE || class == GR_END_ASKED || unneeded) {
        end->spared = idle;
        if (job->phase == GR_PHASE_RUNNING) {
            gr_launch_job_progress(job); /* others may wait for it in vain */
        }
        return;
    }
    if (job->phase > GR_PHASE_SETTLING) {
        return;
    }
    bool repeats = !idle && gr_root_cause_crashed(end) && crash_repeats(job, message->rank);
    bool harmless = class == GR_END_KILLED || idle || was_cut_off(job, message->rank);
    if (!repeats && harmless && gr_launch_job_spare(job, message->rank)) {
        return;
    }
    gr_launch_job_blame(job, GR_REASON_WORKER, GR_E_PEER_LOST);
    if (class == GR_END_KILLED) {
        gr_launch_job_end_after_failure(job);
    } else if (class == GR_END_FAILED) {
        gr_launch_job_enter(job, GR_PHASE_SETTLING, SETTLE_FAILED_MS);
    } else if (job->phase == GR_PHASE_RUNNING) {
        gr_launch_job_enter(job, GR_PHASE_SETTLING, SETTLE_PEER_MS);
    }
}

void gr_launch_job_worker_ended(gr_launch_job *job, const gr_agent_message *message)
{
    const gr_host_agent *agent = job->places[message->rank].agent;
    weigh_end(job, message);
    if (agent->leaving && gr_launch_job_count_busy_of(agent) == 0) {
        gr_launch_job_notify_worker(job, message->rank, GR_AGENT_KILL, 0);
    }
    if (job->phase < GR_PHASE_ENDING && gr_launch_job_may_change(job) &&
        gr_launch_job_count_busy(job) == 0) { /* agents that would wait for others end, too */
        gr_launch_job_notify(job, GR_AGENT_KILL, 0);
    }
}

void gr_launch_job_do_without(gr_launch_job *job, int slot, const gr_diag *why)
{
    job->places[slot].busy = false;
    job->restarts_left = 0;
    (void)replace(job, false);
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "%s; the job goes on with the %d that run", why->text, job->want);
    gr_coordinator_member_ended(job->coordinator, slot);
    gr_launch_job_set_target(job);
    gr_launch_job_progress(job);
}
