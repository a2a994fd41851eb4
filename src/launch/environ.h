/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_ENVIRON_H
#define GR_LAUNCH_ENVIRON_H

/* What a worker finds in its environment. */

#include "base/arena.h"
#include "link/link.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct gr_environ_config {
    char *const *inherited; /* the launcher's own environment */
    bool reads_document;    /* a parameter server, on its stdin */
    bool serves;            /* a parameter server, with that number in place of a rank */
    int rank, world_size;
    int local_rank, local_size;
    const char *host;           /* its name, as the job's hosts were named */
    int cross_rank, cross_size; /* this host among those that have a worker of that local rank */
    int restarts;               /* how often all workers were begun anew */
    int workers_min;            /* the job goes on with so many; 0: it needs all */
    int workers_max;            /* ranks that it may get; 0: no others */
    const char *coordinator;
    const char *secret_hex;
    const char *master;
    int master_port;
    const char *record;          /* GRADUS_RECORD; NULL: none */
    const char *servers;         /* GRADUS_SERVERS; NULL: as it was inherited. A server: it comes
                                  * in place of one of these; NULL: it does not */
    const char *const *set;      /* "NAME=value", whatever was inherited; NULL-terminated */
    const char *const *defaults; /* "NAME=value", unless it was inherited; NULL-terminated */
} gr_environ_config;

/* A NULL-terminated list in `arena`, with room for one entry more; entries that were inherited are
 * borrowed. GR_E_NO_MEMORY. */
gr_status gr_environ_build(const gr_environ_config *config, gr_arena *arena, char ***entries_out,
                           gr_diag *diag) GR_MUST_CHECK;

/* For a worker that comes into a job that runs: uses the room, once. */
void gr_environ_mark_joining(char **entries);

/* The file of GRADUS_RECORD is a descriptor of process `owner` now, with the same number. */
void gr_environ_move_record(char **entries, pid_t owner);

/* The value of `name` in such a list; NULL: it is not there. */
const char *gr_environ_find(char *const *entries, const char *name);

/* The job's secret in such a list: false: there is none, or it is no secret. */
bool gr_environ_secret(char *const *entries, uint8_t secret_out[GR_SECRET_BYTES]);
/* Overwrites it, */
void gr_environ_wipe(char **entries);
/* and writes it there again: to a list in which gr_environ_secret has found one. */
void gr_environ_fill(char **entries, const uint8_t secret[GR_SECRET_BYTES]);

#endif
