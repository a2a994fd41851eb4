/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_AGENT_H
#define GR_LAUNCH_AGENT_H

/* The agent: a process between the launcher and the workers of one host. It is the workers' parent
 * and adopts every orphan among what they start, so it can end all of them, and does so at once
 * when the launcher is gone. It speaks with the launcher over one socket, in messages; those of an
 * agent on another host are carried there and back (remote.h, serve.h). Ranks are counted from 0 on
 * each host.
 *
 * Its parent is the guard (agent/deputy.h), which goes on in its place when it is killed. */

#include "launch/spawn.h"

typedef enum gr_agent_message_kind {
    /* agent to launcher */
    GR_AGENT_STARTED = 1, /* rank, pid */
    GR_AGENT_NOT_STARTED, /* rank, value: gr_spawn_step, error: errno; then DONE follows */
    GR_AGENT_EXITED,      /* rank, pid, value: the wait status */
    GR_AGENT_DONE,        /* nothing of the job runs any more; the agent ends */
    /* launcher to agent */
    GR_AGENT_SIGNAL, /* value: a signal for the process groups of all workers; from now on what
                        outlives its worker is left alone until it ends or KILL comes */
    GR_AGENT_KILL,   /* everything ends now */
    GR_AGENT_FAULT,  /* rank, value: a signal for that worker's group alone, or a gr_agent_fault;
                        back: rank, value, error: that one could not be done, 0: to no socket */
    GR_AGENT_READY,  /* agent to launcher, first of all, with its pid: it waits for START */
    /* launcher to agent, with its own pid */
    GR_AGENT_START, /* the workers may run */
    GR_AGENT_SPAWN, /* rank; start another one where none runs any more */
    /* agent to launcher, with its pid */
    GR_AGENT_MOVED, /* value: the pid of the agent that was killed, in whose place it is */
    GR_AGENT_KIND_END
} gr_agent_message_kind;

/* What is done to a worker beside signals (link/fault.h). */
typedef enum gr_agent_fault {
    GR_AGENT_FAULT_CUT = 1000,
    GR_AGENT_FAULT_HEAL,
    GR_AGENT_FAULT_GARBAGE
} gr_agent_fault;

typedef struct gr_agent_message {
    int kind;
    int rank;
    pid_t pid;
    int value;
    int error;
} gr_agent_message;

enum { GR_AGENT_MESSAGE_BYTES = 24 };

void gr_agent_encode(const gr_agent_message *message, uint8_t bytes_out[GR_AGENT_MESSAGE_BYTES]);
/* GR_E_PROTOCOL: wrong size, magic, version or kind. */
gr_status gr_agent_decode(const uint8_t *bytes, size_t size_bytes,
                          gr_agent_message *message_out) GR_MUST_CHECK;

/* One message over the socket: 0 or errno. EAGAIN: none there (non-blocking socket); EPIPE: the
 * other side is gone. */
int gr_agent_send(int socket_fd, const gr_agent_message *message);
int gr_agent_receive(int socket_fd, gr_agent_message *message_out);

typedef struct gr_agent_config {
    int workers;         /* to start now */
    int slots;           /* SPAWN may name any of so many, and the agent stays until it is told to
                            end; 0: nobody comes later, and it ends with its last worker */
    gr_spawn *spawns;    /* one a slot; descriptors are the agent's to close */
    char ***environment; /* one list a worker or slot, with room for one entry; the secret in it is
                            wiped once the worker has started */
    int control_fd;
    int lock_fd; /* of the job's folder, held for as long as the agent runs; -1 or 0: none */
    /* When the launcher is gone the workers get SIGTERM and so long to end, before SIGKILL; 0: no
     * time. Meanwhile what they write is read and dropped, so that they can write. */
    int64_t orphan_grace_us;
    const int *read_fds; /* the other ends of their pipes; non-blocking */
    int read_count;      /* 0 without orphan_grace_us */
} gr_agent_config;

/* So many run at most. */
static inline int gr_agent_slot_count(const gr_agent_config *config)
{
    return config->slots > config->workers ? config->slots : config->workers;
}

/* What every process begins with that was forked to look after workers: signals blocked, a session
 * of its own, orphans adopted, /dev/null as 0, 1, 2, and no descriptor of the launcher but those of
 * `config` and `keep` (-1: none). 0 or errno. */
enum { GR_AGENT_KEEP = 2 };
int gr_agent_settle(const gr_agent_config *config, const char *name, const int keep[GR_AGENT_KEEP]);

/* Runs in the process that was forked for it, and ends it. */
_Noreturn void gr_agent_run(const gr_agent_config *config);

#endif
