/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_LAUNCHER_H
#define GR_GROUP_LAUNCHER_H

/* What other launchers (torchrun, mpirun, srun) put into the environment of the processes that they
 * start. */

#include <gradus/status.h>
#include <stdint.h>

enum { GR_LAUNCH_TEXT_BYTES = 256 };

typedef struct gr_launch {
    const char *name;   /* of the launcher; NULL: the environment shows none */
    const char *marker; /* a variable that the launcher sets for its processes alone */
    int64_t rank, world_size;
    int64_t local_rank, local_size;  /* local_size 0: unknown */
    char job[GR_LAUNCH_TEXT_BYTES];  /* the same on all hosts, another one for each start; "":
                                       * the launcher has no such name */
    char host[GR_LAUNCH_TEXT_BYTES]; /* where rank 0 runs; "": unknown */
    int port;                        /* of that host, for the coordinator; 0: unknown */
} gr_launch;

/* Reads `env` (as `environ`). GR_OK: `launch_out` is filled; its name is NULL if no other launcher
 * has started this process. GR_E_INVALID: a launcher's variable is missing or no number; the
 * sentence names the variable. */
gr_status gr_launch_read(char *const *env, gr_launch *launch_out, gr_diag *diag) GR_MUST_CHECK;

/* A number that all processes of one host that come from the same launcher process share, and that
 * no other launch on this host has: made of the process id and the start time of the nearest
 * ancestor whose environment lacks `marker`. */
uint64_t gr_launch_local_id(const char *marker);

#endif
