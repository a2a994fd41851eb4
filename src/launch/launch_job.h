/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_LAUNCH_JOB_H
#define GR_LAUNCH_LAUNCH_JOB_H

/* A running job, as the launcher's files see it. What is to happen the scheduler decides
 * (schedule/schedule.h); here is what has to do with the operating system. launch.c runs the loop,
 * carry_out.c takes events to the scheduler and carries its actions out, prepare.c makes what the
 * workers get, agents.c starts the agents and receives what they report, servers.c reads what
 * parameter servers write, seek.c finds hosts that come and go, report.c says what came of it. */

#include "base/clock.h"
#include "group/group.h"
#include "launch/agent/deputy.h"
#include "launch/agent/takeover.h"
#include "launch/agent_queue.h"
#include "launch/discover.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/root_cause.h"
#include "launch/schedule/schedule.h"
#include "launch/spawn.h"

#include <uv.h>

/* The agent of a host, or the relay that stands for it. */
typedef struct gr_host_agent {
    struct gr_launch_job *job;
    int number; /* in the schedule */
    gr_host host;
    const gr_placement *placement;
    char name[GR_HOSTS_NAME_BYTES]; /* of a host that came later */
    pid_t pid;                      /* 0: none, or it is not waited for; the guard of an agent */
    pid_t guarded;                  /* the agent below it on this host; 0: not known */
    gr_process process;
    int control_fd;
    int words_fd; /* of a relay: why its host is lost */
    uv_poll_t poll;
    gr_agent_queue unsent;
} gr_host_agent;

/* What a parameter server has written to stdout. */
enum { GR_SERVER_SAID_BYTES = 1024 };
typedef struct gr_server {
    char said[GR_SERVER_SAID_BYTES]; /* the line that has begun */
    size_t said_bytes;
    const char *address; /* NULL: it is not ready yet */
} gr_server;

/* Fixed when the job starts. */
typedef struct gr_launch_setup {
    int64_t start_us;
    gr_host first_host;
    bool name_hosts; /* there are several */
    int master_port;
    int stdin_fd, server_stdin_fd;
    int records_max;    /* so many workers may have a record */
    rlim_t descriptors; /* the soft limit that workers get; 0: as the launcher */
} gr_launch_setup;

typedef struct gr_launch_loop {
    uv_loop_t loop;
    bool open;
    gr_deputy *deputy; /* of the supervisor; NULL: none */
    uv_poll_t signal_poll, coordinator_poll;
    int signal_fd; /* of those that ask for an end */
    uv_timer_t timers[GR_TIMER_KINDS];
    uv_timer_t coordinator_timer, fault_timer, orphan_timer;
} gr_launch_loop;

/* Hosts that come and go. */
typedef struct gr_launch_seek {
    uv_poll_t script_poll, acceptor_poll;
    uv_timer_t script_timer, acceptor_timer;
    gr_discovery discovery;
    bool late;
    gr_host *came; /* the offers of the event, by number */
    gr_diag said;  /* what was wrong with the script last; "": nothing */
} gr_launch_seek;

/* Events that wait for the scheduler, each with its sentence. */
typedef struct gr_launch_event {
    gr_scheduler_event event;
    gr_diag why;
} gr_launch_event;
typedef struct gr_launch_events {
    gr_launch_event *at; /* a ring */
    int first, count, max;
    bool busy;    /* they are being taken */
    bool touched; /* the coordinator may have news */
} gr_launch_events;

typedef struct gr_launch_job {
    const gr_launch_config *config;
    gr_scheduler schedule;
    gr_launch_events events;
    gr_diag cause; /* why the job ends; without a sentence where a worker, or a server, failed */
    gr_launch_setup setup;
    gr_arena arena;
    gr_output *output;
    gr_coordinator *coordinator;
    gr_records *records;
    uint8_t *secret;       /* gr_secret_keep; NULL: nobody else gets it */
    gr_host_agent *agents; /* by number of the schedule: of workers, then of servers */
    gr_server *servers;
    const char *server_list; /* GRADUS_SERVERS; NULL: none, or they are not all ready */
    bool servers_filed;      /* config->server.file is there */
    bool coordinator_failed;
    gr_scheduler_word scale_word; /* to the last request for another number of workers */
    int64_t *fault_next_us;       /* of each fault, after the start; INT64_MAX: never again */
    gr_launch_loop loop;
    gr_launch_seek seek;
} gr_launch_job;

static inline int64_t gr_launch_job_now_us(void)
{
    return gr_now_ns() / 1000;
}

/* Returns true if hosts join and leave that were not named at the start. */
static inline bool gr_launch_changing(const gr_launch_config *config)
{
    return config->discovery.script != NULL || config->discovery.acceptor != NULL;
}

static inline const gr_scheduler_host *gr_launch_job_host(const gr_host_agent *agent)
{
    return &agent->job->schedule.hosts[agent->number];
}

/* prepare.c: descriptors enough for all workers; GR_E_INVALID: there can be no such limit. */
gr_status gr_launch_job_raise_limit(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* prepare.c: the coordinator, the schedule, and the hosts. */
gr_status gr_launch_job_prepare(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* The agent of a host, that is not there yet. */
void gr_launch_job_add_agent(gr_launch_job *job, int number, const gr_host *host);
/* For each worker of a host, now or later, or for its server, its environment, its cores, the ends
 * of its pipes; what is made is the arena's, and holds the secret. */
gr_status gr_launch_job_set_up(const gr_launch_job *job, const gr_host_agent *agent,
                               gr_arena *arena, gr_agent_config *config_out,
                               gr_diag *diag) GR_MUST_CHECK;

/* carry_out.c: from the loop, also while actions are carried out. `why`: the sentence, if the event
 * may be the cause of the end; NULL. Without now_us: it is now. */
void gr_launch_job_happen(gr_launch_job *job, const gr_scheduler_event *event, const gr_diag *why);
/* Pipes of an agent that is gone may have been read to their ends. */
void gr_launch_job_check_output(const gr_host_agent *agent);
/* The coordinator may have news. */
void gr_launch_job_progress(gr_launch_job *job);
void gr_launch_job_play_faults(gr_launch_job *job);

/* seek.c: from now on the script is asked, if there is one, and hosts may join. GR_E_IO */
gr_status gr_launch_job_discover_hosts(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;

/* supervise.c: from now on the launcher may go, and another one come. 0 or a number of libuv. */
int gr_launch_job_supervise(gr_launch_job *job);
/* The loop, until the job is over: by this process, and by each that comes in its place. */
void gr_launch_job_loop(gr_launch_job *job);
/* Our stdout or stderr cannot be written. True: the job goes on without its launcher. */
bool gr_launch_job_outlives(gr_launch_job *job, int error);

/* servers.c */
static inline int gr_launch_job_server_number(const gr_launch_job *job, int slot)
{
    return slot - job->schedule.config.slots;
}
/* Returns true if this is the agent of a server. */
static inline bool gr_launch_job_serves(const gr_host_agent *agent)
{
    return agent->number >= agent->job->schedule.config.host_room;
}
/* Where server `number` runs. */
gr_host gr_launch_job_server_host(const gr_launch_config *config, int number);
void gr_launch_job_receive_server(gr_launch_job *job, int slot, const char *text,
                                  size_t size_bytes);
/* All are ready: their addresses for the workers, and for config->server.file. */
gr_status gr_launch_job_publish_servers(gr_launch_job *job, gr_diag *diag) GR_MUST_CHECK;
/* One that came in place of another is ready. */
void gr_launch_job_republish_servers(gr_launch_job *job);
void gr_launch_job_remove_servers(gr_launch_job *job);

/* agents.c: from the loop. */
gr_status gr_launch_job_start_agent(gr_host_agent *agent, gr_diag *diag) GR_MUST_CHECK;
/* All were started that there will be, unless hosts come: nobody else gets the secret. */
void gr_launch_job_seal(gr_launch_job *job);
/* Then GR_EVENT_AGENT_GONE. */
void gr_launch_job_close_agent(gr_host_agent *agent);
/* They end everything when their sockets close, and then themselves: waits for that. */
void gr_launch_job_stop_agents(gr_launch_job *job);
/* If it is gone, its poll says so. */
void gr_launch_job_notify_agent(gr_host_agent *agent, int kind, int rank, int value);
/* To all of workers, or of servers. */
void gr_launch_job_notify(gr_launch_job *job, bool servers, int kind, int value);
/* To the agent of that worker, or server. */
void gr_launch_job_notify_worker(gr_launch_job *job, int slot, int kind, int value);

/* report.c */
/* What came of it, when nothing runs any more: as gr_launch_run returns it. */
gr_status gr_launch_job_report(const gr_launch_job *job, gr_launch_report *report_out,
                               gr_diag *diag) GR_MUST_CHECK;

#endif
