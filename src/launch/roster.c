/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/gang.h"

#include <string.h>

enum {
    PAUSE_MIN_US = 1000000, /* before a lost host is tried again; doubled each time */
    PAUSE_MAX_US = 60000000,
    SOUND_US = 60000000 /* a host that was there for so long is no bad one */
};

static bool takes_part(const gr_host_agent *agent)
{
    return !agent->given_up && !agent->leaving;
}

int gr_gang_room(const gr_gang *gang)
{
    int room = 0;
    for (int i = 0; i < gang->agent_count; i++) {
        const gr_host_agent *agent = &gang->agents[i];
        int seats = agent->seats > 0 ? agent->seats : agent->host.slots;
        room += takes_part(agent) ? seats : 0;
    }
    return room;
}

/* Numbers for the workers of a host that has none yet. False: there are not enough. */
static bool find_places(gr_gang *gang, gr_host_agent *agent)
{
    int crew = gr_launch_crew(gang->config), run = 0;
    int seats = agent->host.slots < crew ? agent->host.slots : crew;
    for (int slot = 0; slot < gang->slots && run < seats; slot++) {
        run = gang->places[slot].agent == NULL ? run + 1 : 0;
        if (run == seats) {
            agent->host.first = slot + 1 - seats;
        }
    }
    agent->seats = run == seats ? seats : 0;
    for (int seat = 0; seat < agent->seats; seat++) {
        gang->places[agent->host.first + seat].agent = agent;
    }
    return agent->seats > 0;
}

gr_status gr_gang_enrol(gr_gang *gang, gr_diag *diag)
{
    const gr_hosts here = {.count = 1,
                           .at[0] = {.slots = gr_launch_crew(gang->config),
                                     .workers = gang->config->workers,
                                     .local = true}};
    const gr_hosts *hosts = gang->config->hosts != NULL ? gang->config->hosts : &here;
    gang->agents = gr_arena_alloc(&gang->arena, (size_t)hosts->count * sizeof *gang->agents);
    if (gang->agents == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d hosts", hosts->count);
    }
    for (int i = 0; i < hosts->count; i++) {
        gr_host_agent *agent = &gang->agents[gang->agent_count];
        *agent =
            (gr_host_agent){.gang = gang, .host = hosts->at[i], .control_fd = -1, .words_fd = -1};
        if (!gr_gang_may_change(gang)) {
            agent->host.slots = agent->host.workers; /* nobody comes later */
        }
        gang->agent_count += agent->host.slots > 0;
        if (agent->host.workers > 0 && !find_places(gang, agent)) {
            return gr_fail(diag, GR_E_INVALID, "run: there are no more than %d places for workers",
                           gang->slots);
        }
    }
    gang->name_hosts = gang->config->hosts != NULL && gang->agent_count > 1;
    return GR_OK;
}

void gr_gang_note_loss(gr_host_agent *agent)
{
    const gr_gang *gang = agent->gang;
    int64_t now = gr_gang_now_us(), pause_us = PAUSE_MIN_US;
    bool sound = agent->state == GR_HOST_UP && now - agent->up_us >= SOUND_US;
    agent->losses = sound ? 1 : agent->losses + 1;
    for (int i = 1; i < agent->losses && pause_us < PAUSE_MAX_US; i++) {
        pause_us *= 2;
    }
    agent->try_us = now + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
    agent->given_up = !gr_gang_may_change(gang) || agent->losses > gang->config->restarts;
}

static void on_roster_timer(uv_timer_t *timer)
{
    gr_gang_fill(timer->data);
}

/* Its pipes may hold what our reader has not taken yet. */
static bool is_clear(const gr_gang *gang, const gr_host_agent *agent)
{
    bool clear = true;
    for (int seat = 0; seat < agent->seats && clear; seat++) {
        clear = gr_output_is_closed(gang->output, agent->host.first + seat);
    }
    return clear;
}

/* Hosts that are on their way count as if they were there: one that cannot be had is lost, and then
 * the next one is called. */
void gr_gang_call_hosts(gr_gang *gang, int missing)
{
    int64_t now = gr_gang_now_us(), next_us = INT64_MAX;
    for (int i = 0; i < gang->agent_count; i++) {
        missing -= gang->agents[i].state == GR_HOST_STARTING ? gang->agents[i].seats : 0;
    }
    for (int i = 0; i < gang->agent_count && missing > 0; i++) {
        gr_host_agent *agent = &gang->agents[i];
        gr_diag diag;
        if (agent->state != GR_HOST_AWAY || !takes_part(agent)) {
            continue;
        }
        if (now >= agent->try_us && (agent->seats > 0 || find_places(gang, agent)) &&
            is_clear(gang, agent)) {
            if (gr_gang_start_agent(agent, &diag) == GR_OK) {
                missing -= agent->seats;
                continue;
            }
            gr_gang_note_loss(agent);
            gr_log_write(gang->config->log, GR_LOG_WARN, "launch", "host %s: %s",
                         gr_host_label(&agent->host), diag.text);
        }
        int64_t again_us = agent->try_us > now ? agent->try_us : now + PAUSE_MIN_US;
        next_us = again_us < next_us ? again_us : next_us;
    }
    if (next_us != INT64_MAX) {
        (void)uv_timer_start(&gang->roster_timer, on_roster_timer,
                             (uint64_t)(next_us - now) / 1000 + 1, 0);
    }
}
