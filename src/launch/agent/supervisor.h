/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_SUPERVISOR_H
#define GR_LAUNCH_AGENT_SUPERVISOR_H

/* The supervisor: the process of a job that starts the agents and looks after them, holds the
 * coordinator, and outlives its launcher. A launcher (`gradus run`, `gradus attach`) is connected
 * to it, has lent it its stdout and stderr, hands it signals by kill, and receives the exit code:
 *
 *                    the connection ends
 *        ATTACHED ------------------------> ALONE ---- no launcher in time ----> as after SIGTERM
 *           ^                                |
 *           +--------- GR_JOB_ATTACH --------+
 *
 * A job without a time to outlive its launcher has no such process: the launcher is its own
 * supervisor, and always attached.
 *
 * One supervisor object lasts from the first start of a job to its end, over restarts of all its
 * workers; it is served while gr_supervisor_start has given it a loop. */

#include "launch/agent/job_message.h"
#include "launch/agent/output_log.h"

#include <uv.h>

typedef struct gr_supervisor gr_supervisor;

enum { GR_OUTLIVE_FOREVER = -1 };

typedef struct gr_supervisor_events {
    void (*left)(void *arg, int launcher); /* it is gone, and descriptors 1 and 2 lead nowhere */
    void (*came)(void *arg, int launcher); /* 1 and 2 are those of a new launcher */
    void (*expired)(void *arg);            /* none has come in time */
    void (*kill)(void *arg);               /* everything shall end now */
    int (*scale)(void *arg, int workers);  /* it shall have so many; a gr_scheduler_word */
    void (*print)(void *arg, const char *text, size_t size_bytes); /* write this to stderr */
    void (*describe)(void *arg, gr_job_status *status);            /* but code and launcher */
    void *arg;
} gr_supervisor_events;

typedef struct gr_supervisor_config {
    int launcher_fd;    /* the connection, which becomes the supervisor's; -1: the launcher is this
                           process */
    pid_t launcher;     /* its process number */
    int64_t outlive_us; /* or GR_OUTLIVE_FOREVER */
} gr_supervisor_config;

/* NULL: no memory. */
gr_supervisor *gr_supervisor_create(const gr_supervisor_config *config);
void gr_supervisor_destroy(gr_supervisor *supervisor); /* NULL ok */
/* Makes the job's folder, after which it can be found. `record`: but supervisor and launcher. As
 * gr_job_folder_create. Without a folder nobody can attach, and the job ends with its launcher.
 * GR_E_CANCELLED: the launcher was gone before, and nothing of the job was ever started; the same
 * line, given once more meanwhile, has not found this job and starts another one. */
gr_status gr_supervisor_publish(gr_supervisor *supervisor, const char *name,
                                const gr_job_record *record, gr_diag *diag) GR_MUST_CHECK;

/* Before the first process of the job is started: from now on a supervisor that is killed costs the
 * job a restart, as launcher and record are notified. Again: does nothing. NULL ok. */
void gr_supervisor_begin(gr_supervisor *supervisor);
/* The job is begun once more: another supervisor that continues it must know. `record` as above.
 * NULL ok. */
void gr_supervisor_note_attempt(gr_supervisor *supervisor, const gr_job_record *record);
/* Who inherits it is a part of the job. NULL ok; -1: it has no folder. */
int gr_supervisor_lock_fd(const gr_supervisor *supervisor);

bool gr_supervisor_is_attached(const gr_supervisor *supervisor);
int64_t gr_supervisor_outlive_us(const gr_supervisor *supervisor);
/* Of the job; "": it has no folder. */
const char *gr_supervisor_name(const gr_supervisor *supervisor);
/* NULL: it has no folder. */
gr_output_log *gr_supervisor_log(const gr_supervisor *supervisor);
/* Reads the log from the first byte that no launcher has written. */
void gr_supervisor_read(const gr_supervisor *supervisor, gr_output_reader *reader);
/* The launcher that has gone had written so much. */
void gr_supervisor_note_delivered(gr_supervisor *supervisor,
                                  const uint64_t delivered[GR_JOB_STREAMS]);

/* From now on events come from `loop`; returns 0 or a number of libuv. */
int gr_supervisor_start(gr_supervisor *supervisor, uv_loop_t *loop,
                        const gr_supervisor_events *events);
/* The supervisor is another process from now on, this one (deputy.h): whoever speaks to it must
 * know. */
void gr_supervisor_moved(const gr_supervisor *supervisor);
/* The launcher is to end what an agent has left that another supervisor had started. NULL ok. */
void gr_supervisor_leave_orphans(const gr_supervisor *supervisor);
/* Before the loop is closed, which must run once more. */
void gr_supervisor_stop(gr_supervisor *supervisor);

/* A line of our own: into the log, and to the launcher's stderr. */
void gr_supervisor_print(gr_supervisor *supervisor, const char *text, size_t size_bytes);
/* The launcher's output cannot be written any more. True: it will be taken for gone, by an event;
 * false: the job cannot do without it, or, with `if_gone`, it is there. */
bool gr_supervisor_drop_launcher(gr_supervisor *supervisor, bool if_gone);
/* The job has ended: hands over the exit code, or keeps it in the folder. `end`: but its time and
 * what was delivered. Nothing follows. */
void gr_supervisor_end(gr_supervisor *supervisor, const gr_job_end *end);

#endif
