/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_GROUP_BOOTSTRAP_INTERNAL_H
#define GR_GROUP_BOOTSTRAP_INTERNAL_H

/* What the files of the bootstrap share: bootstrap.c (backends, the coordinator of rank 0),
 * bootstrap_gather.c (callback), bootstrap_file.c (file). */

#include "group/bootstrap.h"
#include "group/failover.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A backend. */
typedef struct gr_bootstrap_ops {
    const char *name;
    bool (*applies)(const gr_group_config *config);
    bool hosted;     /* rank 0 hosts the coordinator */
    bool retries;    /* the coordinator may start later than a rank that looks for it */
    bool fixed_port; /* the launcher's variables name the coordinator's port */
    /* Which ranks share this host. NULL: the configuration says so. */
    gr_status (*find_hosts)(gr_joining *join, gr_bootstrap *bootstrap, gr_diag *diag);
    /* All ranks together. NULL: rank 0 publishes, the others look up. */
    gr_status (*exchange)(gr_joining *join, gr_diag *diag);
    gr_status (*publish)(gr_joining *join, gr_diag *diag); /* NULL: nothing to do */
    /* Sets the address of the coordinator. GR_PENDING: not known yet. */
    gr_status (*lookup)(gr_joining *join, gr_diag *diag);
} gr_bootstrap_ops;

struct gr_bootstrap {
    const gr_bootstrap_ops *ops;
    int64_t local_rank, local_size;
    char coordinator[GR_REMOTE_BYTES]; /* "": the configuration names it */
    gr_failover *host;                 /* the coordinator that runs here; NULL: elsewhere */
    char path[PATH_MAX];               /* of the file backend */
    bool written;
    _Atomic bool complete; /* all ranks have called in; set by the coordinator's thread */
    int64_t wait_us;       /* the last pause between two looks */
    size_t next_at;        /* of a joining worker: the next of the coordinator's addresses... */
    int rounds;            /* ...and how often all of them were tried */
    int64_t nobody_us;     /* since when nobody was at any of them; 0: somebody was, at last */
};

/* Rank 0: makes the secret and starts the coordinator. */
gr_status gr_bootstrap_host(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;

/* bootstrap_gather.c */
gr_status gr_bootstrap_gather_hosts(gr_joining *join, gr_bootstrap *bootstrap,
                                    gr_diag *diag) GR_MUST_CHECK;
gr_status gr_bootstrap_gather_coordinator(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;

/* bootstrap_file.c */
gr_status gr_bootstrap_write_file(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;
gr_status gr_bootstrap_read_file(gr_joining *join, gr_diag *diag) GR_MUST_CHECK;

#endif
