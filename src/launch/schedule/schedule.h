/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SCHEDULE_SCHEDULE_H
#define GR_LAUNCH_SCHEDULE_SCHEDULE_H

/* The scheduler of a job: which worker runs in which slot, which hosts have an agent, what happens
 * when one is lost, and when and why the job ends. Pure: no clock, no I/O, no memory but its own.
 * An event is what has happened; the actions are what must be done about it, in their order.
 *
 * A slot is the place of one worker; its number is the worker's. A host has a range of slots.
 * Behind the slots of the workers is one for each parameter server, and behind the hosts of the
 * workers one host for each server: the agent that looks after that server alone.
 *
 * A host, that is its agent:
 *
 *           START_AGENT           AGENT_READY        AGENT_DONE, AGENT_LOST
 *     AWAY ------------> STARTING ------------> UP -------------------------> CLOSING
 *      ^                    | START_REFUSED                                     | AGENT_GONE
 *      |                    v                                                   |
 *      +--------------- READING <-----------------------------------------------+
 *         OUTPUT_READ
 *
 * The job:
 *
 *     RUNNING --> SETTLING: a worker failed; perhaps another one is the cause
 *        |            |
 *        +------------+--> ENDING --> KILLING --> DRAINING --> OVER */

#include "base/arena.h"
#include "launch/root_cause.h"

typedef enum gr_scheduler_phase {
    GR_PHASE_RUNNING,  /* nothing is wrong */
    GR_PHASE_SETTLING, /* a worker failed; perhaps another one is the cause */
    GR_PHASE_ENDING,   /* a signal asks the others to end */
    GR_PHASE_KILLING,  /* SIGKILL is out */
    GR_PHASE_DRAINING, /* no process is left, output may be */
    GR_PHASE_OVER
} gr_scheduler_phase;

typedef enum gr_scheduler_reason {
    GR_REASON_NONE,
    GR_REASON_WORKER,     /* one failed: see the ends */
    GR_REASON_SERVER,     /* a parameter server ended: see the ends */
    GR_REASON_SIGNAL,     /* the user asked for an end */
    GR_REASON_NOT_JOINED, /* a worker, or a server, was not ready in time */
    GR_REASON_NOT_STARTED,
    GR_REASON_OUTPUT_LOST,
    GR_REASON_AGENT_LOST,
    GR_REASON_STUCK, /* a killed process does not end */
    GR_REASON_COORDINATOR
} gr_scheduler_reason;

typedef enum gr_host_state {
    GR_HOST_AWAY = 0, /* no agent is there: it was not needed yet, or is lost */
    GR_HOST_STARTING, /* its agent is not READY */
    GR_HOST_UP,
    GR_HOST_CLOSING, /* the agent is DONE or lost */
    GR_HOST_READING  /* and gone; what was written there is not read to its end */
} gr_host_state;

/* ---- State ----------------------------------------------------------------------------------- */

typedef struct gr_scheduler_config {
    int workers, workers_min, workers_max; /* workers_min 0: the job needs all */
    int spares, restarts;
    int helpers;       /* the last so many workers are asked to end when the others have */
    int slots;         /* numbers of workers */
    int servers;       /* parameter servers */
    int host_room;     /* hosts of workers at a time */
    int attempt;       /* how often the job was begun before */
    bool elastic;      /* workers come and go */
    bool changing;     /* so do hosts */
    bool left_is_done; /* who leaves the group and ends with 0 has seen all work done and written */
    bool all_join;     /* every worker joins the group: time counts from the start */
    bool servers_spare; /* the job goes on without one of them */
    bool servers_again; /* in place of a lost one another one is started, in its slot */
    int64_t start_timeout_us, grace_us;
    int64_t fence_us; /* whom a renewal of the group waits for so long is killed; 0: never */
    gr_crash crash;   /* the last one of an earlier attempt */
} gr_scheduler_config;

typedef struct gr_scheduler_slot {
    int host;     /* -1: no host has it */
    bool busy;    /* a process is there, or on its way */
    bool joining; /* not of those that the job began with */
    bool served;  /* it has been in a generation: it can give its state to others */
    bool awaited; /* by a renewal of the group */
    int member;   /* gr_member_state */
} gr_scheduler_slot;

typedef struct gr_scheduler_host {
    gr_host_state state;
    int offered, workers;  /* slots that it offers; workers that begin there */
    int first, slot_count; /* its slots; slot_count 0: it has none yet */
    int losses;            /* in a row */
    bool joined;           /* it came by itself, and can come again only by itself */
    bool given_up;         /* lost once too often */
    bool leaving;          /* its workers are asked to go, and no other one is started there */
    bool removed;          /* it is no host of the job any more: the entry is free */
    int64_t up_us, try_us; /* READY since; not called before */
} gr_scheduler_host;

typedef struct gr_scheduler_server {
    int site;        /* the same number: on the same host */
    bool ready, met; /* its address is known; it has met the others */
    bool replaces;   /* it came in place of a lost one; until it has met the others nothing is
                        lost with it */
    bool again;      /* another one is started as soon as nothing of it is left */
    int restarts;    /* so many times one was */
} gr_scheduler_server;

typedef struct gr_scheduler_action gr_scheduler_action;

/* Written by gr_scheduler_decide alone; everybody may read it. */
typedef struct gr_scheduler {
    gr_scheduler_config config;
    gr_scheduler_slot *slots;     /* of workers, then of servers */
    gr_scheduler_host *hosts;     /* host_count of workers; of servers from config.host_room on */
    gr_scheduler_server *servers; /* by number */
    gr_worker_end *ends;          /* by slot */
    int host_count;
    int want, spares;  /* workers, and those that wait beside them */
    int asked;         /* as many are wanted as there are slots, but no more than this */
    int restarts_left; /* in place of lost ones */
    int spared_absent; /* killed before they had joined, and the job goes on */
    int ended;
    gr_scheduler_phase phase;
    gr_scheduler_reason reason;
    int told;      /* the signal that went out to the workers last; 0: none */
    bool going;    /* all hosts of the start were READY, and the workers may run */
    bool any_lost; /* of the agents: what it looked after is the launcher's */
    struct {
        int joined; /* in the first generation */
        bool complete, timed, late, at_rest, over;
        bool done;      /* a worker has seen the work done */
        bool fencing;   /* the time of those that a renewal waits for runs */
        int target;     /* as sent to the coordinator */
        bool expecting; /* joining workers */
    } group;
    struct {
        int number; /* the first that asked for an end; 0: none */
        int64_t at_us;
    } signal;
    struct {
        int lost, spared; /* slot of the first that ended before its time, -1: none; how many the
                             job went on without */
        bool told;        /* to end, since no worker needs them any more */
        bool published;   /* workers can find them */
    } server;
    struct {
        gr_crash last, before;
        bool repeats; /* they are one and the same */
    } crash;
    struct {
        int64_t now_us;
        gr_scheduler_action *actions;
        int count, max;
    } call; /* of gr_scheduler_decide */
} gr_scheduler;

/* ---- Events ---------------------------------------------------------------------------------- */

typedef enum gr_scheduler_event_kind {
    GR_EVENT_BEGIN,              /* the first */
    GR_EVENT_AGENT_READY,        /* host */
    GR_EVENT_AGENT_DONE,         /* host: nothing of the job is left there */
    GR_EVENT_AGENT_LOST,         /* host: with all that ran there; label */
    GR_EVENT_AGENT_GONE,         /* host: after CLOSE_AGENT */
    GR_EVENT_START_REFUSED,      /* host */
    GR_EVENT_OUTPUT_READ,        /* host: after READ_OUTPUT */
    GR_EVENT_WORKER_STARTED,     /* slot, pid, label: also of servers, as the next two */
    GR_EVENT_WORKER_ENDED,       /* slot, value: wait status, place */
    GR_EVENT_WORKER_NOT_STARTED, /* slot */
    GR_EVENT_SERVER_READY,       /* slot */
    GR_EVENT_SERVER_MET,         /* slot */
    GR_EVENT_SERVERS_PUBLISHED,  /* workers can find them */
    GR_EVENT_MEMBER,             /* slot, value: gr_member_state, flag: served, awaited */
    GR_EVENT_GROUP,              /* value: how many have joined, flag: at rest, over */
    GR_EVENT_SCALE,              /* value: so many workers are wanted */
    GR_EVENT_HOSTS,              /* offers, value: so many; flag: those are all */
    GR_EVENT_SIGNAL,             /* value: its number; SIGKILL: at once, after another one */
    GR_EVENT_TIMER,              /* value: gr_scheduler_timer */
    GR_EVENT_FAILED,             /* value: gr_scheduler_reason */
    GR_EVENT_OUTPUT_WRITTEN,     /* after DRAIN_OUTPUT */
    GR_EVENT_KINDS
} gr_scheduler_event_kind;

typedef enum gr_scheduler_timer {
    GR_TIMER_PHASE,
    GR_TIMER_JOIN,
    GR_TIMER_HOSTS,
    GR_TIMER_FENCE,
    GR_TIMER_KINDS
} gr_scheduler_timer;

/* A host that there is. */
typedef struct gr_scheduler_offer {
    int host; /* -1: it is new */
    int slots;
    bool joined;
} gr_scheduler_offer;

typedef struct gr_scheduler_event {
    gr_scheduler_event_kind kind;
    int host, slot, value;
    bool flag, over, awaited;
    pid_t pid;
    const char *label;                /* of the host, for sentences; lives as long as the job */
    gr_flight_recorder_place place;   /* where the worker was */
    const gr_scheduler_offer *offers; /* borrowed for the call */
    int64_t now_us;
} gr_scheduler_event;

/* ---- Actions --------------------------------------------------------------------------------- */

typedef enum gr_scheduler_action_kind {
    GR_ACTION_START_AGENT,     /* host */
    GR_ACTION_WORKERS_CALLED,  /* START_AGENT was there for all hosts that workers begin on */
    GR_ACTION_RUN,             /* host: what begins there may run */
    GR_ACTION_RUN_ALL,         /* on all hosts */
    GR_ACTION_CLOSE_AGENT,     /* host: then AGENT_GONE */
    GR_ACTION_READ_OUTPUT,     /* host: to its end; then OUTPUT_READ */
    GR_ACTION_END_AGENT,       /* host: its agent ends, with what is left there */
    GR_ACTION_ADD_HOST,        /* host: the entry of this offer, value: its number */
    GR_ACTION_REFUSE_HOST,     /* value: the offer */
    GR_ACTION_HOST_LEAVES,     /* host, value: so many workers run there */
    GR_ACTION_HOST_LEFT,       /* host: it is lost and the job goes on; value: gr_scheduler_next */
    GR_ACTION_HOST_FAILED,     /* host: nothing can be started there now */
    GR_ACTION_START_WORKER,    /* slot */
    GR_ACTION_MEMBER_ENDED,    /* slot: the group goes on without it */
    GR_ACTION_DRAIN_MEMBER,    /* slot: it is to leave the group */
    GR_ACTION_SET_TARGET,      /* value: so many workers are wanted, flag: more will come */
    GR_ACTION_ANSWER,          /* to SCALE: value, a gr_scheduler_word */
    GR_ACTION_GO_ON,           /* slot: without it; value: with so many, 0: the work was done; flag:
                                 another one is started, standby: one that waited takes its place */
    GR_ACTION_GO_ON_WITHOUT,   /* slot: none could be started there; value: so many are left */
    GR_ACTION_GO_ON_SERVERS,   /* slot: without it; value: with so many others, flag: another one is
                                 started in its place */
    GR_ACTION_PUBLISH_SERVERS, /* all are ready; then SERVERS_PUBLISHED */
    GR_ACTION_SERVER_MOVED,    /* slot: one that came in place of another is ready */
    GR_ACTION_FENCE,           /* slot: it is killed */
    GR_ACTION_SIGNAL_WORKERS,  /* value: the signal */
    GR_ACTION_SIGNAL_SERVERS,
    GR_ACTION_KILL_WORKERS,
    GR_ACTION_KILL_SERVERS,
    GR_ACTION_REPORT, /* value: gr_scheduler_reason: the event is the cause; of NOT_JOINED host: is
                         not ready, or -1; slot: of the server that is not, or -1; flag: the absent
                         have ended */
    GR_ACTION_SET_TIMER,    /* value: gr_scheduler_timer, after_us */
    GR_ACTION_STOP_TIMER,   /* value */
    GR_ACTION_END_TREE,     /* what lost agents left to the launcher ends */
    GR_ACTION_DRAIN_OUTPUT, /* nothing runs: what is left is written */
    GR_ACTION_FINISH
} gr_scheduler_action_kind;

typedef enum gr_scheduler_next {
    GR_NEXT_NONE,    /* it is gone for good, as was known */
    GR_NEXT_TRY,     /* it is tried again at its try_us */
    GR_NEXT_GIVEN_UP /* it was lost once too often */
} gr_scheduler_next;

/* To a request for another number of workers. */
typedef enum gr_scheduler_word {
    GR_WORD_NONE = 0, /* nobody has asked */
    GR_WORD_GRANTED,
    GR_WORD_NEVER, /* more or fewer than there can be */
    GR_WORD_STARTING,
    GR_WORD_ENDING
} gr_scheduler_word;

struct gr_scheduler_action {
    gr_scheduler_action_kind kind;
    int host, slot, value;
    bool flag, standby;
    int64_t after_us;
};

/* ---- Functions ------------------------------------------------------------------------------- */

/* Allocates the state in `arena`, with no host yet. `sites`: of each server. */
gr_status gr_scheduler_init(gr_scheduler *schedule, const gr_scheduler_config *config,
                            const int *sites, gr_arena *arena, gr_diag *diag) GR_MUST_CHECK;
/* Before BEGIN: a host of the start, on which so many workers begin. Returns its number; -1: there
 * are not slots enough. */
int gr_scheduler_add(gr_scheduler *schedule, int offered, int workers, bool joined);
/* Returns the number of actions, which stand in schedule->call.actions until the next call. */
int gr_scheduler_decide(gr_scheduler *schedule, const gr_scheduler_event *event);

/* ---- Questions ------------------------------------------------------------------------------- */

/* Runs there an agent, or is one about to? */
bool gr_scheduler_is_active(const gr_scheduler_host *host);
int gr_scheduler_count_busy(const gr_scheduler *schedule);
int gr_scheduler_count_busy_of(const gr_scheduler *schedule, int host);
/* For so many workers the hosts have slots, or will have when they are there again. */
int gr_scheduler_room(const gr_scheduler *schedule);
/* So many workers can be asked for. */
int gr_scheduler_most(const gr_scheduler *schedule);
/* Returns true if a worker of the start is missing. `ended`: for good. */
bool gr_scheduler_is_absent(const gr_scheduler *schedule, int slot, bool ended);
/* Returns true if hosts may join. */
bool gr_scheduler_is_open(const gr_scheduler *schedule);

#endif
