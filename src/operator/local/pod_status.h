/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_POD_STATUS_H
#define GR_OPERATOR_LOCAL_POD_STATUS_H

/* What is known of a pod's containers, as the status of the pod says it. */

#include "operator/local/pod_plan.h"
#include "operator/local/pod_process.h"

typedef struct gr_container_view {
    int state; /* 0: waits, 1: runs, 2: has ended */
    int code, restarts;
    bool is_refused;
    char began[32], ended[32];
    char text[GR_POD_TEXT_BYTES];
} gr_container_view;

typedef struct gr_pod_view {
    const gr_pod_plan *plan;
    const char *address, *began;
    gr_container_view *containers;
    bool is_over, has_failed;
    const char *message; /* NULL: none */
} gr_pod_view;

/* What the pod's process says becomes part of the view. */
void gr_pod_view_receive(gr_pod_view *view, const gr_pod_message *message, const char *now);
/* A new value; NULL: no memory. */
json_t *gr_pod_view_status(const gr_pod_view *view);

#endif
