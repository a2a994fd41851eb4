/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/gang.h"

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

int gr_gang_count_busy(const gr_gang *gang)
{
    int count = 0;
    for (int i = 0; i < gang->slots; i++) {
        count += gang->places[i].busy;
    }
    return count;
}

/* Without those that were asked to go. */
static int count_staying(const gr_gang *gang)
{
    int count = 0;
    for (int i = 0; i < gang->slots; i++) {
        count += gang->places[i].busy && !gang->places[i].agent->leaving;
    }
    return count;
}

int gr_gang_count_busy_of(const gr_host_agent *agent)
{
    int count = 0;
    for (int i = 0; i < agent->seats; i++) {
        count += agent->gang->places[agent->host.first + i].busy;
    }
    return count;
}

/* Returns true if a worker runs that has been in a generation: only such a worker can give its
 * state to those that join. */
static bool anybody_serves(const gr_gang *gang)
{
    for (int i = 0; i < gang->slots; i++) {
        if (gang->places[i].busy && gr_coordinator_has_served(gang->coordinator, i) &&
            gr_coordinator_member_state(gang->coordinator, i) != STATE_BROKEN) {
            return true;
        }
    }
    return false;
}

static void start_another(gr_gang *gang, int slot)
{
    gang->places[slot].busy = gang->places[slot].joining = true;
    gang->ends[slot] = (gr_worker_end){.spared = true}; /* until it has started */
    gr_output_renew(gang->output, slot);
    gr_records_begun(gang->records, slot);
    gr_coordinator_reserve(gang->coordinator, slot);
    gr_gang_tell_worker(gang, slot, GR_AGENT_SPAWN, 0);
}

/* What the coordinator has to know of it: how many are wanted, and whether more will come. */
void gr_gang_tell_wanted(gr_gang *gang)
{
    int busy = count_staying(gang);
    bool missing = busy < gang->want + gang->spares && busy < gr_gang_room(gang);
    gr_coordinator_set_target_size(gang->coordinator, gang->want);
    gr_coordinator_expect_joining(gang->coordinator, missing || gang->restarts_left > 0);
}

/* One is lost: is another one started? If not, the job needs no more than are left. Of a host that
 * is lost this is not counted for each worker, since the host is not tried for ever. */
static bool replace(gr_gang *gang, bool with_host)
{
    int left = gr_gang_count_busy(gang);
    bool can = with_host ? gang->config->restarts > 0 && gr_gang_room(gang) > left
                         : gang->restarts_left > 0;
    if (can && !gr_coordinator_is_over(gang->coordinator)) {
        gang->restarts_left -= !with_host;
        return true;
    }
    int staying = count_staying(gang);
    gang->want = staying < gang->want ? staying : gang->want;
    gang->spares = staying - gang->want;
    gang->asked = with_host ? gang->asked : gang->want; /* another host may come */
    return false;
}

void gr_gang_fill(gr_gang *gang)
{
    int missing = gang->want + gang->spares - count_staying(gang);
    if (missing <= 0 || !gr_launch_elastic(gang->config) || gang->phase != GR_PHASE_RUNNING ||
        !gang->everybody_joined || gr_coordinator_is_over(gang->coordinator) ||
        !gr_coordinator_at_rest(gang->coordinator) || !anybody_serves(gang)) {
        return;
    }
    for (int slot = 0; slot < gang->slots && missing > 0; slot++) {
        const gr_host_agent *agent = gang->places[slot].agent;
        if (agent != NULL && agent->state == GR_HOST_UP && !agent->leaving &&
            !gang->places[slot].busy) {
            start_another(gang, slot);
            missing--;
        }
    }
    gr_gang_tell_wanted(gang);
    gr_gang_call_hosts(gang, missing);
}

bool gr_gang_spare(gr_gang *gang, int rank)
{
    const gr_launch_config *config = gang->config;
    gr_worker_end *end = &gang->ends[rank];
    bool served = gr_coordinator_has_served(gang->coordinator, rank);
    int left = gr_gang_count_busy(gang);
    if (!gr_launch_elastic(config) || gang->phase != GR_PHASE_RUNNING || left == 0 ||
        (served && !anybody_serves(gang))) {
        return false;
    }
    bool again = replace(gang, end->lost);
    if ((again ? gang->want : left) < config->workers_min) {
        return false;
    }
    char what[GR_DIAG_TEXT_BYTES];
    gr_verdict_describe("rank", rank, end, what, sizeof what);
    int with = left < gang->want ? left : gang->want;
    gr_log_write(config->log, GR_LOG_WARN, "launch", "%s; the job goes on with %d worker%s%s%s",
                 what, with, with == 1 ? "" : "s",
                 served && again && left >= gang->want ? ", a standby among them" : "",
                 again ? ", and another one is started" : "");
    end->spared = true;
    gang->spared_absent += gr_coordinator_member_state(gang->coordinator, rank) == 0;
    gr_coordinator_member_ended(gang->coordinator, rank);
    gr_gang_tell_wanted(gang);
    gr_gang_progress(gang);
    return true;
}

/* Keeps the crash of `rank` in mind. True: it has come before, and would come again. */
static bool crash_repeats(gr_gang *gang, int rank)
{
    const gr_worker_end *end = &gang->ends[rank];
    gang->crash_before = gang->crash;
    gang->crash = (gr_crash){.signal_number = WTERMSIG(end->wait_status),
                             .rank = rank,
                             .beginning = gang->config->beginning,
                             .place = gr_records_place(gang->records, rank)};
    snprintf(gang->crash.host, sizeof gang->crash.host, "%s", end->host != NULL ? end->host : "");
    gang->repeats = gr_crash_repeats(&gang->crash_before, &gang->crash);
    return gang->repeats;
}

/* Has it lost the others without the coordinator having heard why? Then it was cut off from that
 * one, by which the others go on. Who fails as they do takes leave of it. */
static bool was_cut_off(const gr_gang *gang, int rank)
{
    int state = gr_coordinator_member_state(gang->coordinator, rank);
    return gr_verdict_class(&gang->ends[rank]) == GR_END_PEER &&
           (state == STATE_JOINED || state == STATE_BROKEN);
}

static void weigh_end(gr_gang *gang, const gr_agent_message *message)
{
    gr_worker_end *end = &gang->ends[message->rank];
    if (gang->phase == GR_PHASE_RUNNING) {
        gr_gang_progress(gang); /* its last message may still be unread */
    }
    end->ended = true;
    end->wait_status = message->value;
    end->order = gang->ended++;
    end->end_us = gr_gang_now_us();
    gr_records_ended(gang->records, message->rank);
    end->was_asked = gang->told;
    gang->places[message->rank].busy = false;
    /* Nobody depends on a joining worker that has not come in. */
    bool idle = gang->places[message->rank].joining &&
                !gr_coordinator_has_served(gang->coordinator, message->rank);
    bool unneeded = idle && gr_coordinator_is_over(gang->coordinator);
    gr_end_class class = gr_verdict_class(end);
    if (class == GR_END_FINE || class == GR_END_ASKED || unneeded) {
        end->spared = idle;
        if (gang->phase == GR_PHASE_RUNNING) {
            gr_gang_progress(gang); /* others may wait for it in vain */
        }
        return;
    }
    if (gang->phase > GR_PHASE_SETTLING) {
        return;
    }
    bool repeats = !idle && gr_verdict_crashed(end) && crash_repeats(gang, message->rank);
    bool harmless = class == GR_END_KILLED || idle || was_cut_off(gang, message->rank);
    if (!repeats && harmless && gr_gang_spare(gang, message->rank)) {
        return;
    }
    gr_gang_blame(gang, GR_REASON_WORKER, GR_E_PEER_LOST);
    if (class == GR_END_KILLED) {
        gr_gang_end_after_failure(gang);
    } else if (class == GR_END_FAILED) {
        gr_gang_enter(gang, GR_PHASE_SETTLING, SETTLE_FAILED_MS);
    } else if (gang->phase == GR_PHASE_RUNNING) {
        gr_gang_enter(gang, GR_PHASE_SETTLING, SETTLE_PEER_MS);
    }
}

void gr_gang_worker_ended(gr_gang *gang, const gr_agent_message *message)
{
    const gr_host_agent *agent = gang->places[message->rank].agent;
    weigh_end(gang, message);
    if (agent->leaving && gr_gang_count_busy_of(agent) == 0) {
        gr_gang_tell_worker(gang, message->rank, GR_AGENT_KILL, 0);
    }
    if (gang->phase < GR_PHASE_ENDING && gr_gang_may_change(gang) &&
        gr_gang_count_busy(gang) == 0) { /* agents that would wait for others end, too */
        gr_gang_tell(gang, GR_AGENT_KILL, 0);
    }
}

void gr_gang_do_without(gr_gang *gang, int slot, const gr_diag *why)
{
    gang->places[slot].busy = false;
    gang->restarts_left = 0;
    (void)replace(gang, false);
    gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                 "%s; the job goes on with the %d that run", why->text, gang->want);
    gr_coordinator_member_ended(gang->coordinator, slot);
    gr_gang_tell_wanted(gang);
    gr_gang_progress(gang);
}
