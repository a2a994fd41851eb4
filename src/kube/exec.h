/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_EXEC_H
#define GR_KUBE_EXEC_H

/* A command in a container of a pod that runs, as `kubectl exec` has it: over WebSocket (RFC 6455),
 * by the protocol v4.channel.k8s.io. A file may be its standard input. */

#include "base/clock.h"
#include "kube/access.h"

typedef struct gr_kube_exec gr_kube_exec;

/* All is borrowed until gr_kube_exec_destroy, but the command. */
typedef struct gr_kube_exec_options {
    const gr_kube_access *access; /* refreshed: another request has just been made by it */
    gr_clock clock;
    const char *space, *pod, *container;
    const char *const *command; /* NULL-terminated */
    int input_fd;               /* read by pread, any number of execs at once; -1: there is none */
    int64_t input_bytes;        /* that are sent. The command gets no end of its input: it counts */
} gr_kube_exec_options;

/* Blocks until the connection stands, 10 s at most. Fails as gr_http_bytes_open does. */
gr_status gr_kube_exec_start(const gr_kube_exec_options *options, gr_kube_exec **exec_out,
                             gr_diag *diag) GR_MUST_CHECK;
void gr_kube_exec_destroy(gr_kube_exec *exec); /* NULL: nothing. The command may go on */

/* What to wait for with poll, before gr_kube_exec_run. */
int gr_kube_exec_fd(const gr_kube_exec *exec);
short gr_kube_exec_events(const gr_kube_exec *exec);

/* GR_PENDING: the command goes on. GR_OK: it has ended with 0. GR_E_ABORTED: it has failed; the
 * sentence has the last that it wrote. GR_E_AUTH: it is not permitted; GR_E_NOT_FOUND: no such pod
 * or container; GR_E_TIMEOUT: nothing has moved for ten minutes; GR_E_PEER_LOST, GR_E_PROTOCOL. */
gr_status gr_kube_exec_run(gr_kube_exec *exec, gr_diag *diag) GR_MUST_CHECK;

#endif
