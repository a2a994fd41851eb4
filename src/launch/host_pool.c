/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/launch_job.h"

#include <stdio.h>
#include <string.h>

enum {
    PAUSE_MIN_US = 1000000, /* before a lost host is tried again; doubled each time */
    PAUSE_MAX_US = 60000000,
    COOL_DOWN_MAX_US = 300000000, /* where hosts come and go, none is given up */
    SOUND_US = 60000000           /* a host that was there for so long is no bad one */
};

/* Do hosts come and go that nobody named at the start? */
static bool changing(const gr_launch_job *job)
{
    return job->config->discovery != NULL || job->config->acceptor != NULL;
}

static bool takes_part(const gr_host_agent *agent)
{
    return !agent->given_up && !agent->leaving && !agent->struck;
}

int gr_launch_job_room(const gr_launch_job *job)
{
    int room = 0;
    for (int i = 0; i < job->agent_count; i++) {
        const gr_host_agent *agent = &job->agents[i];
        int seats = agent->seats > 0 ? agent->seats : agent->host.slots;
        room += takes_part(agent) ? seats : 0;
    }
    return room;
}

/* Numbers for the workers of a host that has none yet. False: there are not enough. */
static bool find_places(gr_launch_job *job, gr_host_agent *agent)
{
    int at_once = gr_launch_at_once(job->config), run = 0;
    int seats = agent->host.slots < at_once ? agent->host.slots : at_once;
    for (int slot = 0; slot < job->slots && run < seats; slot++) {
        run = job->places[slot].agent == NULL ? run + 1 : 0;
        if (run == seats) {
            agent->host.first = slot + 1 - seats;
        }
    }
    agent->seats = run == seats ? seats : 0;
    for (int seat = 0; seat < agent->seats; seat++) {
        job->places[agent->host.first + seat].agent = agent;
    }
    return agent->seats > 0;
}

gr_status gr_launch_job_register(gr_launch_job *job, gr_diag *diag)
{
    const gr_host_list here = {.count = 1,
                               .at[0] = {.slots = gr_launch_at_once(job->config),
                                         .workers = job->config->workers,
                                         .local = true}};
    const gr_host_list *hosts = job->config->hosts != NULL ? job->config->hosts : &here;
    job->agent_room = changing(job) ? GR_HOSTS_MAX : hosts->count;
    job->agents = gr_arena_alloc(&job->arena, (size_t)job->agent_room * sizeof *job->agents);
    if (job->agents == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d hosts", job->agent_room);
    }
    job->first_host = hosts->at[0];
    for (int i = 0; i < hosts->count; i++) {
        gr_host_agent *agent = &job->agents[job->agent_count];
        *agent =
            (gr_host_agent){.job = job, .host = hosts->at[i], .control_fd = -1, .words_fd = -1};
        if (!gr_launch_job_may_change(job)) {
            agent->host.slots = agent->host.workers; /* nobody comes later */
        }
        job->agent_count += agent->host.slots > 0;
        if (agent->host.workers > 0 && !find_places(job, agent)) {
            return gr_fail(diag, GR_E_INVALID, "run: there are no more than %d places for workers",
                           job->slots);
        }
    }
    job->name_hosts = job->config->hosts != NULL && (job->agent_count > 1 || changing(job));
    return GR_OK;
}

void gr_launch_job_note_loss(gr_host_agent *agent)
{
    const gr_launch_job *job = agent->job;
    int64_t now = gr_launch_job_now_us(), pause_us = PAUSE_MIN_US;
    int64_t most_us = changing(job) ? COOL_DOWN_MAX_US : PAUSE_MAX_US;
    bool sound = agent->state == GR_HOST_UP && now - agent->up_us >= SOUND_US;
    agent->losses = sound ? 1 : agent->losses + 1;
    for (int i = 1; i < agent->losses && pause_us < most_us; i++) {
        pause_us *= 2;
    }
    agent->try_us = now + (pause_us < most_us ? pause_us : most_us);
    agent->given_up = !gr_launch_job_may_change(job) || agent->host.joined ||
                      (!changing(job) && agent->losses > job->config->restarts);
}

static void on_roster_timer(uv_timer_t *timer)
{
    gr_launch_job_fill(timer->data);
}

/* Its pipes may hold what our reader has not taken yet. */
static bool is_clear(const gr_launch_job *job, const gr_host_agent *agent)
{
    bool clear = true;
    for (int seat = 0; seat < agent->seats && clear; seat++) {
        clear = gr_output_is_closed(job->output, agent->host.first + seat);
    }
    return clear;
}

/* Hosts that are on their way count as if they were there: one that cannot be had is lost, and then
 * the next one is called. */
void gr_launch_job_call_hosts(gr_launch_job *job, int missing)
{
    int64_t now = gr_launch_job_now_us(), next_us = INT64_MAX;
    for (int i = 0; i < job->agent_count; i++) {
        missing -= job->agents[i].state == GR_HOST_STARTING ? job->agents[i].seats : 0;
    }
    for (int i = 0; i < job->agent_count && missing > 0; i++) {
        gr_host_agent *agent = &job->agents[i];
        gr_diag diag;
        if (agent->state != GR_HOST_AWAY || !takes_part(agent)) {
            continue;
        }
        if (now >= agent->try_us && (agent->seats > 0 || find_places(job, agent)) &&
            is_clear(job, agent)) {
            if (gr_launch_job_start_agent(agent, &diag) == GR_OK) {
                missing -= agent->seats;
                continue;
            }
            gr_launch_job_note_loss(agent);
            gr_log_write(job->config->log, GR_LOG_WARN, "launch", "host %s: %s",
                         gr_host_label(&agent->host), diag.text);
        }
        int64_t again_us = agent->try_us > now ? agent->try_us : now + PAUSE_MIN_US;
        next_us = again_us < next_us ? again_us : next_us;
    }
    if (next_us != INT64_MAX) {
        (void)uv_timer_start(&job->roster_timer, on_roster_timer,
                             (uint64_t)(next_us - now) / 1000 + 1, 0);
    }
}

/* ---- Hosts that come and go ------------------------------------------------------------------ */

void gr_launch_job_remove(gr_host_agent *agent)
{
    for (int seat = 0; seat < agent->seats; seat++) {
        agent->job->places[agent->host.first + seat].agent = NULL;
    }
    agent->seats = agent->losses = 0;
    agent->struck = true;
    agent->leaving = false;
}

static gr_host_agent *find_host(gr_launch_job *job, const char *name)
{
    for (int i = 0; i < job->agent_count; i++) {
        if (!job->agents[i].struck && strcmp(job->agents[i].host.name, name) == 0) {
            return &job->agents[i];
        }
    }
    return NULL;
}

void gr_launch_job_add_host(gr_launch_job *job, const gr_host *host)
{
    gr_host_agent *agent = NULL;
    for (int i = 0; i < job->agent_count && agent == NULL; i++) {
        agent = job->agents[i].struck ? &job->agents[i] : NULL;
    }
    if (agent == NULL && job->agent_count < job->agent_room) {
        agent = &job->agents[job->agent_count++];
    }
    if (agent == NULL) {
        gr_host refused = *host;
        gr_join_refuse(&refused);
        return; /* until another one goes */
    }
    *agent = (gr_host_agent){.job = job, .host = *host, .control_fd = -1, .words_fd = -1};
    snprintf(agent->name, sizeof agent->name, "%s", host->name);
    agent->host.name = agent->name;
    gr_log_write(job->config->log, GR_LOG_WARN, "launch", "host %s has come, for %d worker%s",
                 gr_host_label(host), host->slots, host->slots == 1 ? "" : "s");
}

static void dismiss_host(gr_host_agent *agent)
{
    gr_launch_job *job = agent->job;
    int busy = gr_launch_job_count_busy_of(agent);
    agent->leaving = true;
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "host %s is not named any more: its %d worker%s leave%s",
                 gr_host_label(&agent->host), busy, busy == 1 ? "" : "s", busy == 1 ? "s" : "");
    for (int seat = 0; seat < agent->seats; seat++) {
        int rank = agent->host.first + seat;
        if (job->places[rank].busy) {
            gr_coordinator_drain(job->coordinator, rank);
        }
    }
    if (agent->state == GR_HOST_AWAY) {
        gr_launch_job_remove(agent);
    } else if (busy == 0) {
        gr_launch_job_notify_worker(job, agent->host.first, GR_AGENT_KILL, 0);
    }
}

void gr_launch_job_apply_hosts(gr_launch_job *job, const gr_host_list *hosts)
{
    if (!job->everybody_joined) {
        return; /* all that it begins with are still on their way */
    }
    for (int i = 0; i < job->agent_count; i++) {
        gr_host_agent *agent = &job->agents[i];
        bool named = false;
        for (int at = 0; at < hosts->count && !named; at++) {
            named = strcmp(hosts->at[at].name, agent->host.name) == 0;
        }
        if (!named && !agent->leaving && !agent->struck) {
            dismiss_host(agent);
        }
    }
    for (int at = 0; at < hosts->count; at++) {
        gr_host_agent *known = find_host(job, hosts->at[at].name);
        if (known == NULL) {
            gr_launch_job_add_host(job, &hosts->at[at]);
        } else {
            known->host.slots = hosts->at[at].slots; /* once it is started anew */
        }
    }
    gr_launch_job_aim(job);
    gr_launch_job_progress(job);
}

void gr_launch_job_aim(gr_launch_job *job)
{
    int room = gr_launch_job_room(job), least = job->config->workers_min;
    int want = job->asked < room ? job->asked : room;
    if (changing(job) && job->everybody_joined) {
        job->want = want > least ? want : least;
        gr_launch_job_set_target(job);
    }
}
