/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_PLACEMENT_PLACEMENT_H
#define GR_LAUNCH_PLACEMENT_PLACEMENT_H

/* Where the processes of a job run, and how the launcher gets there. Whatever the placement, the
 * launcher has a process of its own for each host: it watches that one's socket, on which messages
 * of agent.h come, and the pipes of the workers. A placement is one file here and one row in
 * gr_placements. */

#include "launch/remote.h"

/* What the launcher knows of a host whose process has ended without DONE. */
typedef struct gr_placement_loss {
    const gr_remote_shell *shell; /* of the placement */
    const gr_host *host;
    const char *program; /* gradus there */
    const char *what;    /* that ran there: "its 2 workers", "parameter server 0" */
    const char *words;   /* what that process has left; "": nothing */
    bool starting;       /* its agent was not READY */
    bool going;          /* workers run elsewhere */
    bool serves;         /* a parameter server ran there */
    pid_t pid;
} gr_placement_loss;

typedef struct gr_placement {
    const char *name;             /* for sentences */
    bool here;                    /* on this host: workers share its memory and its files */
    bool once;                    /* the launcher cannot start an agent there again */
    const gr_remote_shell *shell; /* for gr_remote_run; NULL: none is needed */
    /* Returns true for a host of this placement; NULL: it has those that are nobody else's. */
    bool (*takes)(const gr_host *host);
    /* The hosts that there are, when the user names none. GR_E_NOT_FOUND without a sentence: this
     * placement has none. NULL: it never has. */
    gr_status (*list)(char *const *environment, gr_arena *arena, gr_host_list *hosts_out,
                      gr_diag *diag);
    /* In the process that was forked for the host, which it ends: is the agent, or stands for it,
     * until the agent has ended, or the launcher's end of the socket is closed. */
    void (*start)(const gr_remote_config *config);
    /* Lets go of what the launcher holds of a host; NULL: nothing. May come twice. */
    void (*stop)(gr_host *host);
    /* What has become of a host, as a sentence, when the socket says that it is lost. */
    void (*watch)(const gr_placement_loss *loss, gr_diag *diag);
} gr_placement;

extern const gr_placement gr_placement_here;   /* this host */
extern const gr_placement gr_placement_joined; /* hosts whose agents came by themselves */
extern const gr_placement gr_placement_slurm;  /* nodes of an allocation, by srun */
extern const gr_placement gr_placement_ssh;    /* hosts that the user names */

/* All, ended by NULL. */
extern const gr_placement *const gr_placements[];

/* The placement of a host; `other`: of hosts that need a way there. */
const gr_placement *gr_placement_of(const gr_host *host, const gr_placement *other);

/* The hosts of the first placement that has any, in *placement_out. GR_E_NOT_FOUND: none has. */
gr_status gr_placement_list(char *const *environment, gr_arena *arena, gr_host_list *hosts_out,
                            const gr_placement **placement_out, gr_diag *diag) GR_MUST_CHECK;

/* A `watch`: of a host that could not be had, or was lost. */
void gr_placement_describe_loss(const gr_placement_loss *loss, gr_diag *diag);

#endif
