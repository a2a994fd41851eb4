/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_ROOM_H
#define GR_OPERATOR_LOCAL_ROOM_H

/* What a pod sees of the host: its own name, its own /etc/hosts, and its volumes where it mounts
 * them. A mount namespace does that; a user who is not root gets one in a user namespace, with the
 * same ids. The rest of the file system is the host's own. */

#include "operator/local/pod_plan.h"

typedef struct gr_room {
    const char *root;   /* folder of the run, on this host: no volume hides it */
    const char *folder; /* the pod's own */
    const char *hosts;  /* the file that is its /etc/hosts */
    const char *sshd;   /* a file that stands where programs look for sshd */
} gr_room;

/* With its parents; those that are there stay. 0, or errno. */
int gr_room_make_folders(const char *path);
/* Before the first pod, in the process whose children become pods: who is not root enters one user
 * namespace for all of them, for ranks in several could not share memory. */
void gr_room_prepare(void);
/* The calling process, which has one thread, becomes the pod's. GR_E_UNSUPPORTED: the system
 * permits no such namespaces, nothing has changed. GR_E_IO: a volume cannot be mounted. */
gr_status gr_room_enter(const gr_pod_plan *plan, const gr_room *room, gr_diag *diag) GR_MUST_CHECK;

#endif
