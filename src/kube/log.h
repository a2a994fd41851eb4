/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_LOG_H
#define GR_KUBE_LOG_H

/* What a container writes, from its beginning: each line once, whatever connections do. A line
 * comes with its time from the server, by which one that comes again is known.
 *
 *   READING ──stream ends or breaks──► PAUSING ──begins again a second before the newest line──┐
 *      ▲  │                                                                                    │
 *      │  └──ends well, and had begun when the container was over; or the pod is gone──► ENDED │
 *      └───────────────────────────────────────────────────────────────────────────────────────┘
 */

#include "kube/client.h"

typedef struct gr_kube_log gr_kube_log;

typedef struct gr_kube_log_options {
    const char *space, *pod, *container; /* copied */
    /* Parts of lines, without the server's time. */
    void (*text)(void *arg, const char *bytes, size_t size_bytes);
    void (*ended)(void *arg); /* once: nothing comes any more */
    /* The stream broke, or the server refuses; it goes on by itself, or `ended` comes. Told once
     * for failures without anything between them. */
    void (*trouble)(void *arg, const gr_diag *diag);
    void *arg;
} gr_kube_log_options;

/* The container runs, or has ended. Callbacks come from gr_kube_run; they must not stop the log.
 * GR_E_NO_MEMORY. */
gr_status gr_kube_log_start(gr_kube *kube, const gr_kube_log_options *options,
                            gr_kube_log **log_out, gr_diag *diag) GR_MUST_CHECK;
/* The container has ended for good: `ended` comes when all of it is read. */
void gr_kube_log_finish(gr_kube_log *log);
/* The container was started again: the rest of what the former one wrote is read now, also where
 * what the new one writes is read already. */
void gr_kube_log_restarted(gr_kube_log *log);
/* Nothing is called any more; before gr_kube_destroy. NULL: nothing. */
void gr_kube_log_stop(gr_kube_log *log);

#endif
