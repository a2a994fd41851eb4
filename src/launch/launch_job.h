/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_LAUNCH_JOB_H
#define GR_LAUNCH_LAUNCH_JOB_H

/* What the launcher knows of the processes that it supervises. launch.c runs the loop, prepare.c
 * makes what the workers get, host_pool.c knows the hosts, agents.c starts the agents there and
 * receives what they report, servers.c has parameter servers ready before the workers start,
 * joining.c waits until all have joined, workers.c counts the workers and starts those that come
 * later, ending.c brings all to an end, report.c says what came of it. */

#include "base/clock.h"
#include "group/group.h"
#include "launch/agent.h"
#include "launch/discover.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/root_cause.h"
#include "launch/spawn.h"

#include <uv.h>

typedef enum gr_launch_job_phase {
    GR_PHASE_RUNNING,  /* nothing is wrong */
    GR_PHASE_SETTLING, /* a worker failed; perhaps another one is the cause */
    GR_PHASE_ENDING,   /* a signal asks the others to end */
    GR_PHASE_KILLING,  /* SIGKILL is out */
    GR_PHASE_DRAINING, /* no process is left, output may be */
    GR_PHASE_OVER
} gr_launch_job_phase;

typedef enum gr_launch_job_reason {
    GR_REASON_NONE,
    GR_REASON_WORKER,      /* one failed: see the ends */
    GR_REASON_SERVER,      /* a parameter server ended: see the ends */
    GR_REASON_SIGNAL,      /* somebody told us to end */
    GR_REASON_NOT_JOINED,  /* `absent` names them */
    GR_REASON_NOT_STARTED, /* `cause` holds the sentence, as below */
    GR_REASON_OUTPUT_LOST,
    GR_REASON_AGENT_LOST,
    GR_REASON_STUCK,
    GR_REASON_COORDINATOR
} gr_launch_job_reason;

typedef enum gr_host_state {
    GR_HOST_AWAY = 0, /* no agent is there: it was not needed yet, or is lost */
    GR_HOST_STARTING, /* its agent is not READY */
    GR_HOST_UP,
    GR_HOST_CLOSING /* the agent is DONE or lost */
} gr_host_state;

/* A host, and its agent, or the relay that stands for it. */
typedef struct gr_host_agent {
    struct gr_launch_job *job;
    gr_host host;
    bool serves;                    /* its one seat is a parameter server's */
    char name[GR_HOSTS_NAME_BYTES]; /* of a host that came later */
    gr_host_state state;
    int seats;     /* its places are host.first and so many; 0: it has none yet */
    int losses;    /* in a row */
    bool given_up; /* lost once too often */
    bool leaving;  /* its workers are asked to go, and no other one is started there */
    bool struck;   /* it is no host of ours any more: the entry is free */
    int64_t up_us, try_us;
    pid_t pid;
    int control_fd;
    int words_fd; /* of a relay: why its host is lost */
    uv_poll_t poll;
} gr_host_agent;

/* Where a worker runs, or may run. */
typedef struct gr_place {
    gr_host_agent *agent; /* NULL: nobody's place */
    bool busy;            /* a process is there, or on its way */
    bool joining;         /* not of those that the job began with */
} gr_place;

/* A parameter server: an agent with one place, behind those of the workers. */
enum { GR_SERVER_SAID_BYTES = 1024 };
typedef struct gr_server {
    gr_host_agent agent;
    char said[GR_SERVER_SAID_BYTES]; /* on stdout: the line that has begun */
    size_t said_bytes;
    const char *address; /* NULL: it is not ready yet */
    bool met;            /* it has met the others */
} gr_server;

typedef struct gr_launch_job {
    const gr_launch_config *config;
    int slots;         /* numbers of workers */
    gr_place *places;  /* and ends: so many, and behind them one for each server */
    int want, spares;  /* workers, and those that wait beside them */
    int asked;         /* as many are wanted as there are places, but no more than this */
    int restarts_left; /* in place of lost ones */
    gr_launch_job_phase phase;
    gr_launch_job_reason reason;
    gr_status status; /* of reasons other than GR_REASON_WORKER */
    gr_diag cause;    /* their sentence */
    gr_worker_end *ends;
    int started, ended;
    gr_crash crash, crash_before; /* the last two */
    bool repeats;                 /* they are one and the same */
    int spared_absent;            /* killed before they had joined, and the job goes on */
    int signal_number;            /* the one that told us to end */
    int64_t signal_us;            /* and when */
    int output_error;
    bool told; /* a signal went out to the workers */
    bool everybody_joined;
    bool join_timing;
    int64_t start_us;

    gr_output *output;
    gr_coordinator *coordinator;
    gr_records *records;
    gr_arena arena;
    uint8_t *secret; /* gr_secret_keep; NULL: nobody else gets it */
    int master_port;
    int stdin_fd;
    gr_host_agent *agents; /* one a host */
    int agent_count, agent_room;
    gr_host first_host;
    bool name_hosts; /* there are several */
    gr_server *servers;
    const char *server_list; /* GRADUS_SERVERS; NULL: none, or they are not all ready */
    int lost_server;         /* the first that ended before its time; -1: none has */
    int servers_spared;      /* the job went on without so many */
    bool servers_told;       /* to end, since no worker needs them any more */
    bool servers_filed;      /* config->servers_file is there */
    bool going;    /* all that were there at the start were READY, and were told to start */
    bool any_lost; /* of the agents: what it looked after is ours */

    uv_loop_t loop;
    bool loop_open;
    uv_poll_t signal_poll, coordinator_poll, scale_poll;
    int signal_fd;      /* of those that ask for an end */
    int scale_fd;       /* requests for another number of workers; -1: none are listened to */
    int records_max;    /* so many workers may have a record */
    rlim_t descriptors; /* the soft limit that workers get; 0: as the launcher */
    uv_timer_t phase_timer, join_timer, coordinator_timer, fault_timer, fence_timer;
    uv_timer_t roster_timer, seek_timer;
    uv_poll_t seek_poll, acceptor_poll;
    uv_timer_t acceptor_timer;
    gr_discovery discovery;
    bool seek_late;
    gr_diag seek_said;      /* what was wrong with the script last; "": nothing */
    int64_t *fault_next_us; /* of each fault, after the start; INT64_MAX: never again */
} gr_launch_job;

static inline int64_t gr_launch_job_now_us(void)
{
    return gr_now_ns() / 1000;
}

/* prepare.c: descriptors enough for all workers; GR_E_INVALID: there can be no such limit. */
gr_status gr_launch_job_raise_limit(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* prepare.c: the coordinator, and the places of the workers. */
gr_status gr_launch_job_prepare(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* For each worker of a host, now or later, its environment, its cores, the ends of its pipes; what
 * is made is the arena's, and holds the secret. */
gr_status gr_launch_job_set_up(const gr_launch_job *job, const gr_host_agent *agent,
                               gr_arena *arena, gr_agent_config *config_out,
                               gr_diag *diag) GR_MUST_CHECK;
/* May workers be started while the job runs? */
bool gr_launch_job_may_change(const gr_launch_job *job);

/* host_pool.c: the hosts, with places for the workers that they begin with. */
gr_status gr_launch_job_register(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* For so many workers the hosts have places, or will have when they are there again. */
int gr_launch_job_room(const gr_launch_job *job);
/* A host is lost, or could not be had: when is it tried again, if at all? */
void gr_launch_job_note_loss(gr_host_agent *agent);
/* So many workers have no place: hosts that are not there are called. */
void gr_launch_job_call_hosts(gr_launch_job *job, int missing);

/* These are the hosts from now on: who is new may be called, who is not among them leaves. */
void gr_launch_job_apply_hosts(gr_launch_job *job, const gr_host_list *hosts);
/* Its agent has ended, and it was leaving. */
void gr_launch_job_remove(gr_host_agent *agent);

/* Another one has come by itself. */
void gr_launch_job_add_host(gr_launch_job *job, const gr_host *host);
/* As many workers as were asked for, as far as there are places for them. */
void gr_launch_job_aim(gr_launch_job *job);

/* seek.c: from now on the script is asked, if there is one, and the door is open. GR_E_IO */
gr_status gr_launch_job_discover_hosts(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;

/* servers.c: where there are servers they are started, and the workers when all of them have said
 * where they are; else the workers at once. */
gr_status gr_launch_job_start_all(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* What the one server gets, as gr_launch_job_set_up. */
gr_status gr_launch_job_set_up_server(const gr_launch_job *job, const gr_host_agent *agent,
                                      gr_arena *arena, gr_agent_config *config_out,
                                      gr_diag *diag) GR_MUST_CHECK;
void gr_launch_job_receive_server(gr_launch_job *job, int place, const char *text,
                                  size_t size_bytes);
void gr_launch_job_server_ended(gr_launch_job *job, const gr_agent_message *message);
/* Its host, or its agent, is gone. */
void gr_launch_job_server_lost(gr_host_agent *agent, const gr_diag *why);
/* No worker runs any more: servers may end. False: none runs. */
bool gr_launch_job_end_servers(gr_launch_job *job);
void gr_launch_job_kill_servers(gr_launch_job *job);
void gr_launch_job_remove_servers(gr_launch_job *job);
static inline int gr_launch_job_server_number(const gr_launch_job *job, int place)
{
    return place - job->slots;
}

/* agents.c: from the loop. */
/* Runs there what was started, or is about to? */
bool gr_launch_job_is_active(const gr_host_agent *agent);
gr_status gr_launch_job_start_agent(gr_host_agent *agent, gr_diag *diag) GR_MUST_CHECK;
/* Those of the hosts that workers begin on. */
gr_status gr_launch_job_start_agents(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* They end everything when their sockets close, and then themselves: waits for that. */
void gr_launch_job_stop_agents(gr_launch_job *job);
/* To those of workers. If one is gone, its poll says so. */
void gr_launch_job_notify(gr_launch_job *job, int kind, int value);
void gr_launch_job_notify_agent(const gr_host_agent *agent, int kind, int rank, int value);
/* Does an agent of workers run? */
bool gr_launch_job_any_agent(const gr_launch_job *job);
/* To the agent of that worker, or server. */
void gr_launch_job_notify_worker(gr_launch_job *job, int rank, int kind, int value);

/* joining.c */
void gr_launch_job_time_joining(gr_launch_job *job);
/* Somebody has joined: the others have to come as well, and whoever has ended cannot. */
void gr_launch_job_check_joining(gr_launch_job *job);
void gr_launch_job_watch_renewal(gr_launch_job *job);

/* launch.c: what the coordinator has heard; faults that are due. */
void gr_launch_job_progress(gr_launch_job *job);
void gr_launch_job_play_faults(gr_launch_job *job);

/* ending.c: by a signal and a time of grace, or at once. The first reason counts. */
void gr_launch_job_enter(gr_launch_job *job, gr_launch_job_phase phase, int64_t timeout_ms);
void gr_launch_job_blame(gr_launch_job *job, gr_launch_job_reason reason, gr_status status);
/* The same with a sentence: that of the first cause stays. */
void gr_launch_job_blame_for(gr_launch_job *job, gr_launch_job_reason reason, const gr_diag *why);
/* An agent is lost with its processes. That is the cause also where ranks have failed before only
 * because they miss others, which they may be quicker to tell; where it `serves`, a parameter
 * server, also where they have failed in any other way but by a signal. */
void gr_launch_job_blame_loss(gr_launch_job *job, bool serves, const gr_diag *why);
void gr_launch_job_on_signal(gr_launch_job *job, int signal_number);
void gr_launch_job_end_after_failure(gr_launch_job *job);
/* All that runs was asked to end: not longer than the time of grace. */
void gr_launch_job_wait_for_end(gr_launch_job *job, int64_t grace_ms);
void gr_launch_job_kill_all(gr_launch_job *job);
/* Nothing runs any more: what is left of the output is written. */
void gr_launch_job_drain(gr_launch_job *job);
void gr_launch_job_finish(gr_launch_job *job);

/* workers.c */
int gr_launch_job_count_busy(const gr_launch_job *job);
int gr_launch_job_count_busy_of(const gr_host_agent *agent);
/* To the coordinator: how many are wanted, and whether more will come. */
void gr_launch_job_set_target(gr_launch_job *job);
/* As many as are wanted, and those that wait beside them. Not while the others are on their way
 * from one generation to the next: they need the cores. */
void gr_launch_job_fill(gr_launch_job *job);
void gr_launch_job_worker_ended(gr_launch_job *job, const gr_agent_message *message);
/* A worker was killed: do the others go on? */
bool gr_launch_job_spare(gr_launch_job *job, int rank);
/* None could be started there. Those that run go on; so that this is not tried for ever, no others
 * are started any more. */
void gr_launch_job_do_without(gr_launch_job *job, int slot, const gr_diag *why);

/* report.c */
/* What came of it, when nothing runs any more: as gr_launch_run returns it. */
gr_status gr_launch_job_report(const gr_launch_job *job, gr_launch_report *report_out,
                               gr_diag *diag) GR_MUST_CHECK;

#endif
