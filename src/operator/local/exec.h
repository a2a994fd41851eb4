/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_EXEC_H
#define GR_OPERATOR_LOCAL_EXEC_H

/* Commands in pods that run, as `kubectl exec` and ssh give them: over a socket of the pod's
 * process, with the caller's own stdin, stdout and stderr. Both ends are the same program. */

#include <gradus/status.h>
#include <stdbool.h>

enum { GR_EXEC_BYTES_MAX = 128 * 1024 };

/* One that was received. */
typedef struct gr_exec_order {
    char *text;            /* on the heap; the words point into it */
    const char *container; /* "": the first */
    char **argv;           /* on the heap */
    int fds[3];
} gr_exec_order;

/* In `root`, a folder of the run, by the names of the pod and of its host. Returns a descriptor to
 * listen at; -1, errno. Other users of a container may connect; nobody else reaches the folder. */
int gr_exec_listen(const char *root, const char *space, const char *pod, const char *host);
/* Takes what a connection brings. False: nothing that could be carried out. */
bool gr_exec_receive(int fd, gr_exec_order *request_out);
void gr_exec_order_fini(gr_exec_order *request);
/* The caller's exit code; nothing is sent to a caller that is gone. */
void gr_exec_answer(int fd, int code);

/* Runs the command in a pod, for whose start it waits a while, and gives its exit code.
 * GR_E_INVALID: the command is too long; GR_E_NOT_FOUND: there is no such pod; GR_E_PEER_LOST: it
 * ended meanwhile. */
gr_status gr_exec_run(const char *root, const char *space, const char *pod, const char *container,
                      char *const *argv, int *code_out, gr_diag *diag) GR_MUST_CHECK;

#endif
