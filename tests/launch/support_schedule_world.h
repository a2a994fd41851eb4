/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_LAUNCH_SUPPORT_SCHEDULE_WORLD_H
#define GR_TESTS_LAUNCH_SUPPORT_SCHEDULE_WORLD_H

/* What the files of the model share. */

#include "support_schedule.h"

#include "group/membership.h"
#include "launch/launch.h"

enum {
    KEPT_BYTES = offsetof(gr_scheduler, call),
    NOW_US = 1000000000, /* between two timers no time passes */
    EXITED_1 = 1 << 8,
    EXITED_PEER = GR_LAUNCH_EXIT_PEER << 8
};

typedef enum agent_state {
    AGENT_NONE = 0,
    AGENT_FORKED,
    AGENT_READY, /* waits for START */
    AGENT_RUNS,
    AGENT_CLOSING,
    AGENT_READING
} agent_state;

typedef enum process_state {
    PROCESS_NONE = 0,
    PROCESS_SPAWNED,
    PROCESS_RUNS, /* the scheduler knows */
    PROCESS_ENDED /* and does not know it yet */
} process_state;

typedef struct agent {
    uint8_t state;
    uint8_t begin; /* workers that it starts with START */
    bool stays, ending, killing;
    uint8_t starts; /* of a server's: so many */
    bool promised;  /* another one is to come */
} agent;

typedef struct process {
    uint8_t state, member;
    bool served, told, drained, joining, stopped, fenced;
    bool met, ready; /* of a server */
    int16_t status;
} process;

/* What can be told from each other is in here, and nothing else: it is compared by its bytes. */
typedef struct world_state {
    uint8_t schedule[KEPT_BYTES];
    gr_scheduler_slot slots[WORLD_SLOTS];
    gr_scheduler_host hosts[WORLD_HOSTS];
    gr_scheduler_server servers[WORLD_HOSTS];
    gr_worker_end ends[WORLD_SLOTS];
    agent agents[WORLD_HOSTS];
    process processes[WORLD_SLOTS];
    int32_t timers[GR_TIMER_KINDS]; /* in milliseconds; -1: it is not set */
    int16_t joined, target, starts, first_reason, reason;
    bool at_rest, over, publishing, published, draining, touched, finished, settles_cause;
    bool harmed;  /* something went wrong that may end the job */
    bool crowded; /* restarts are no limit to what is started: hosts came, or more are wanted */
    world_budget budget;
} world_state;

struct world {
    gr_scheduler schedule;
    gr_arena arena;
    world_setting setting;
    world_state now;
    int answer, answers; /* the last one, and how many there were to a question */
    char why[SEARCH_WHY_BYTES];
};

static inline bool world_is_server(const world *w, int slot)
{
    return slot >= w->setting.config.slots;
}

/* It never ends by itself, and whether its death harms depends on what runs then. */
static inline bool world_helps(const world *w, int slot)
{
    const gr_scheduler_config *config = &w->setting.config;
    return config->helpers > 0 && !world_is_server(w, slot) &&
           slot >= config->workers - config->helpers;
}

static inline int world_slot_count(const world *w)
{
    return w->setting.config.slots + w->setting.config.servers;
}

static inline int world_host_end(const world *w)
{
    return w->setting.config.host_room + w->setting.config.servers;
}

static inline bool world_host_serves(const world *w, int host)
{
    return host >= w->setting.config.host_room;
}

static inline bool world_lives(const process *of)
{
    return of->state == PROCESS_SPAWNED || of->state == PROCESS_RUNS;
}

/* Does a renewal of the group wait for it? */
static inline bool world_is_awaited(const world *w, int slot)
{
    const process *of = &w->now.processes[slot];
    return of->stopped && of->member == GR_MEMBER_JOINED && !w->now.at_rest;
}

static inline bool world_any_awaited(const world *w)
{
    bool any = false;
    for (int slot = 0; slot < w->setting.config.slots; slot++) {
        any = any || world_is_awaited(w, slot);
    }
    return any;
}

/* It came in place of another one, and the others do not know it: nothing is lost with it. */
static inline bool world_is_idle(const world *w, int slot)
{
    int host = w->schedule.slots[slot].host;
    return world_is_server(w, slot) && w->now.agents[host].starts > 1 &&
           !w->now.processes[slot].met;
}

void world_end_process(world *w, int slot, int status);
/* The scheduler hears of the group what it has not heard yet. */
void world_look_at_group(world *w);
/* What has passed is as if it had never been, so that states are the same again. */
void world_forget_times(world *w, int64_t passed_us);
/* The scheduler hears of it, and what it decides is done. */
void world_tell(world *w, gr_scheduler_event event);

#endif
