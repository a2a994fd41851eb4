/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_GANG_H
#define GR_LAUNCH_GANG_H

/* What the launcher knows of the processes that it looks after: launch.c runs them, crew.c counts
 * and starts those that come later, report.c says what came of all. */

#include "base/clock.h"
#include "group/group.h"
#include "launch/launch.h"
#include "launch/output.h"
#include "launch/spawn.h"
#include "launch/verdict.h"

#include <uv.h>

enum { GR_GANG_SIGNALS = 3 };

typedef enum gang_phase {
    PHASE_RUNNING,  /* nothing is wrong */
    PHASE_SETTLING, /* a worker failed; perhaps another one is the cause */
    PHASE_ENDING,   /* a signal asks the others to end */
    PHASE_KILLING,  /* SIGKILL is out */
    PHASE_DRAINING, /* no process is left, output may be */
    PHASE_OVER
} gang_phase;

typedef enum gang_reason {
    REASON_NONE,
    REASON_WORKER,      /* one failed: see the ends */
    REASON_SIGNAL,      /* somebody told us to end */
    REASON_NOT_JOINED,  /* `absent` names them */
    REASON_NOT_STARTED, /* `verdict` holds the sentence, as below */
    REASON_OUTPUT_LOST,
    REASON_AGENT_LOST,
    REASON_STUCK,
    REASON_COORDINATOR
} gang_reason;

/* The agent of one host, or the relay that stands for it. */
typedef struct gr_host_agent {
    struct gr_gang *gang;
    const gr_host *host;
    pid_t pid;
    int control_fd;
    int words_fd; /* of a relay: why its host is lost */
    bool over;    /* DONE, or lost */
    uv_poll_t poll;
} gr_host_agent;

/* Where a worker runs, or may run. */
typedef struct gr_place {
    bool busy;     /* a process is there, or on its way */
    bool newcomer; /* not of those that the job began with */
} gr_place;

typedef struct gr_gang {
    const gr_launch_config *config;
    int slots; /* places, and ends */
    gr_place *places;
    int want, spares;  /* workers, and those that wait beside them */
    int restarts_left; /* in place of lost ones */
    const gr_hosts *hosts;
    gang_phase phase;
    gang_reason reason;
    gr_status status; /* of reasons other than REASON_WORKER */
    gr_diag verdict;  /* their sentence */
    gr_worker_end *ends;
    int started, ended;
    int spared_absent; /* killed before they had joined, and the job goes on */
    int signal_number; /* the one that told us to end */
    int64_t signal_us; /* and when */
    int output_error;
    bool told; /* a signal went out to the workers */
    bool everybody_joined;
    bool join_timing;
    int64_t start_us;

    gr_output *output;
    gr_coordinator *coordinator;
    gr_records *records;
    gr_arena arena;
    uint8_t secret[GR_SECRET_BYTES];
    char secret_hex[2 * GR_SECRET_BYTES + 1];
    char ***environment, ***newcomer; /* of workers at the start, of others later */
    gr_spawn *spawns;
    gr_cores *parts;
    int null_fd;
    gr_host_agent *agents; /* one a host */
    int agents_begun, agents_ready, agents_over;
    bool any_lost; /* of the agents: what it looked after is ours */

    uv_loop_t loop;
    bool loop_open;
    uv_signal_t signals[GR_GANG_SIGNALS];
    uv_poll_t coordinator_poll, scale_poll;
    int scale_fd; /* requests for another number of workers; -1: none are listened to */
    uv_timer_t phase_timer, join_timer, coordinator_timer, fault_timer, expel_timer;
    int faults_done;
} gr_gang;

static inline int64_t gr_gang_now_us(void)
{
    return gr_now_ns() / 1000;
}

int gr_gang_count_busy(const gr_gang *gang);
/* Does somebody run who has been in a generation? */
bool gr_gang_anybody_serves(const gr_gang *gang);
void gr_gang_start_another(gr_gang *gang, int slot);
/* To the coordinator: how many are wanted, and whether more will come. */
void gr_gang_tell_wanted(gr_gang *gang);
/* One is lost: is another one started? */
bool gr_gang_replace(gr_gang *gang);

/* What came of it, when nothing runs any more: as gr_launch_run returns it. */
gr_status gr_gang_report(const gr_gang *gang, gr_launch_report *report_out,
                         gr_diag *diag) GR_MUST_CHECK;

#endif
