/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_JOB_MESSAGE_H
#define GR_LAUNCH_AGENT_JOB_MESSAGE_H

/* What launchers, `gradus ls`, `gradus stop` and `gradus scale` exchange with the supervisor of a
 * job, over a SOCK_SEQPACKET socket: messages of one size. */

#include <gradus/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum gr_job_message_kind {
    /* to the supervisor */
    GR_JOB_ATTACH = 1, /* with two descriptors, stdout and stderr: the sender is the launcher from
                          now on */
    GR_JOB_STATUS,     /* STATUS_IS follows */
    GR_JOB_KILL,       /* everything ends now; STATUS_IS follows */
    GR_JOB_SCALE,      /* it shall have status.want workers; STATUS_IS follows, as it was before,
                          with the scheduler's word */
    GR_JOB_RECEIVED,   /* by a launcher: END has come */
    /* from the supervisor */
    GR_JOB_ATTACHED, /* the supervisor is process status.code */
    GR_JOB_TAKEN,    /* no: there is a launcher, status.launcher */
    GR_JOB_STATUS_IS,
    GR_JOB_DROPPED, /* to a launcher: its output cannot be written, and the job goes on without */
    GR_JOB_END,     /* to a launcher: status.code */
    GR_JOB_MOVED,   /* to a launcher: the supervisor is process status.code from now on; status says
                     * whether it has received a signal */
    GR_JOB_ORPHANS, /* to a launcher: an agent that another supervisor had started is gone, and what
                     * it may have left is no child of this one */
    GR_JOB_MESSAGE_KINDS
} gr_job_message_kind;

typedef struct gr_job_status {
    int code;
    int workers;     /* that run */
    int launcher;    /* process number; 0: none */
    bool ending;     /* it was asked to end, or has failed */
    uint64_t step;   /* that was begun last; 0: unknown */
    int want;        /* workers that it shall have, */
    int least, most; /* and may have; most 0: it neither grows nor shrinks */
    int word;        /* to SCALE: a gr_scheduler_word */
} gr_job_status;

typedef struct gr_job_message {
    int kind;
    gr_job_status status;
} gr_job_message;

/* 0 or errno. EPIPE: the other side is gone. `fds` NULL: without descriptors, else two. */
int gr_job_send(int socket_fd, const gr_job_message *message, const int *fds);
/* 0 or errno. EPIPE: the other side is gone; EPROTO: no such message. `fds_out` NULL: descriptors
 * that come are closed; else two, close-on-exec and the caller's to close, or -1. */
int gr_job_receive(int socket_fd, gr_job_message *message_out, int *fds_out);
/* Of the other side, as the kernel says. false: unknown. */
bool gr_job_peer(int socket_fd, pid_t *pid_out, uid_t *uid_out);

#endif
