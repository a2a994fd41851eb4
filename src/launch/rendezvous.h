/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_RENDEZVOUS_H
#define GR_LAUNCH_RENDEZVOUS_H

/* Where the workers of all hosts meet: the address of the coordinator and MASTER_ADDR, as each host
 * receives them. */

#include "group/group.h"
#include "launch/environ.h"
#include "launch/host_list.h"

typedef struct gr_rendezvous {
    bool here_only;           /* no other host takes part, now or later */
    const gr_host *first;     /* of rank 0 */
    char *const *environment; /* that the workers inherit: GRADUS_INTERFACE counts */
    const char *coordinator;  /* where it listens */
} gr_rendezvous;

/* Where the coordinator is to listen: in memory of this host, or everywhere, on GRADUS_PORTS. */
gr_status gr_rendezvous_listen(bool here_only, char *const *environment,
                               gr_coordinator_config *config, gr_diag *diag) GR_MUST_CHECK;
/* Sets `coordinator` and `master` for the workers of `host`. The address by which another host
 * reaches us is known to it alone, and a star stands for it (launch/launch_spec.h), unless
 * GRADUS_INTERFACE says which it is. */
gr_status gr_rendezvous_find(const gr_rendezvous *rendezvous, const gr_host *host, gr_arena *arena,
                             gr_environ_config *environ_out, gr_diag *diag) GR_MUST_CHECK;
/* A port that was free a moment ago, for programs that open MASTER_PORT themselves. It takes them
 * seconds: the port is none of those that the kernel gives to others meanwhile. */
gr_status gr_rendezvous_free_port(int *port_out, gr_diag *diag) GR_MUST_CHECK;

#endif
