/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_POD_PROCESS_H
#define GR_OPERATOR_LOCAL_POD_PROCESS_H

/* The process that stands for a pod: the parent of its containers, a subreaper, what kubelet would
 * be for this pod. It is forked without exec, and speaks with the cluster over a socket; when that
 * closes, however it went, everything that stems from the pod is killed. */

#include "operator/local/room.h"

typedef enum gr_pod_word {
    GR_POD_PLAIN = 1, /* the system permits no namespaces: the text says why */
    GR_POD_BEGUN,     /* a container runs */
    GR_POD_ENDED,     /* with that exit code; 128 + N: by signal N */
    GR_POD_REFUSED,   /* it could not be started, the text says why; it counts as ENDED, 128 */
    GR_POD_AGAIN,     /* it starts again after so many seconds */
    GR_POD_OVER,      /* all have ended for good, the pod's last word. 1: one that counts failed */
    GR_POD_END,       /* to the pod: end within so many seconds; once more, with 0: at once */
} gr_pod_word;

enum { GR_POD_TEXT_BYTES = 512, GR_CONTAINER_START_ERROR = 128 };

/* Both ends are the same program. */
typedef struct gr_pod_message {
    int word, container, value;
    char text[GR_POD_TEXT_BYTES];
} gr_pod_message;

typedef struct gr_pod_start {
    const gr_pod_plan *plan;
    const gr_room *room;
    bool is_contained; /* an engine makes a room for each container: the pod's process needs none */
    const char *exec;  /* where commands come (exec.h) */
    const char *address; /* of the pod */
    int control_fd;
    const int *output_fds; /* stdout and stderr of each container */
} gr_pod_start;

/* Is called in the forked process. */
_Noreturn void gr_pod_process_run(const gr_pod_start *start);

#endif
