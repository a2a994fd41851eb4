/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_LAUNCH_SUPPORT_SCHEDULE_H
#define GR_TESTS_LAUNCH_SUPPORT_SCHEDULE_H

/* A job as far as its scheduling goes: the scheduler as it is, and a model of what it steers:
 * agents, processes, the group, the servers, timers. Whoever uses it decides what happens next. */

#include "group/support_search.h"
#include "launch/schedule/schedule.h"

enum { WORLD_HOSTS = 8, WORLD_SLOTS = 16, WORLD_TARGETS = 16 };

typedef enum world_event {
    WORLD_READY, /* host: its agent says READY */
    WORLD_DONE,  /* host: nothing is left there */
    WORLD_GONE,  /* host: its agent is closed */
    WORLD_READ,  /* host: and its output is read */
    WORLD_STARTED,
    WORLD_EXITED, /* slot: its end is reported */
    WORLD_JOINS,
    WORLD_STRANDED, /* slot: nobody is left that knows the job */
    WORLD_FENCED,   /* slot: it dies of it */
    WORLD_EXITS,    /* slot: its work is done */
    WORLD_DISMISSED,
    WORLD_DRAINED,
    WORLD_SERVER_READY,
    WORLD_SERVER_MET,
    WORLD_PUBLISHED,
    WORLD_RENEWS, /* the group is at rest again */
    WORLD_OVER,   /* the training is done */
    WORLD_WRITTEN,
    WORLD_TIMERS,
    WORLD_TIMER = WORLD_TIMERS, /* the number of a timer; only if nothing else happens */
    WORLD_FAULTS,               /* from here on they may happen, but need not */
    WORLD_OBEYS = WORLD_FAULTS, /* slot: it ends as it was asked to */
    WORLD_WAKES,                /* slot, after it was stopped */
    WORLD_LOST,                 /* host, with its agent */
    WORLD_REFUSED,              /* host: its agent cannot be started */
    WORLD_NOT_STARTED,
    WORLD_KILLED,
    WORLD_CRASHES,
    WORLD_FAILS,
    WORLD_MISSES, /* slot: it fails because another one did */
    WORLD_STOPS,  /* slot: it stands still, and a renewal of the group waits for it */
    WORLD_SIGNAL,
    WORLD_SCALE,   /* the number of workers that are wanted */
    WORLD_ARRIVES, /* the number of slots of a new host */
    WORLD_DROPPED, /* host: it is not named any more */
    WORLD_OUTPUT_LOST,
    WORLD_PUBLISH_FAILS,
    WORLD_KINDS
} world_event;

/* So many may still happen; by event from WORLD_FAULTS on, but for those that need none. */
typedef struct world_budget {
    uint8_t deaths; /* of workers, servers and hosts: LOST, KILLED, CRASHES, FAILS */
    uint8_t refusals, signals, scales, arrivals, drops, others;
} world_budget;

typedef struct world_setting {
    gr_scheduler_config config;
    int host_slots[WORLD_HOSTS], host_workers[WORLD_HOSTS]; /* up to the first without slots */
    bool joined_hosts; /* hosts that arrive have joined by themselves, else a script names them */
    world_budget budget;
} world_setting;

typedef struct world world;

/* NULL: no memory. The job has begun. */
world *world_create(const world_setting *setting);
void world_destroy(world *w);

size_t world_state_bytes(void);
const void *world_keep(void *of);
void world_restore(void *of, const void *state);
bool world_can(void *of, int event);
void world_happen(void *of, int event);
bool world_agrees(void *of);
bool world_rests(void *of);
const char *world_why(void *of);
search_class world_class_of(int event);
void world_print_event(int event);
const gr_scheduler *world_schedule(const world *w);

#endif
