/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_SERVE_SERVE_H
#define GR_OPERATOR_SERVE_SERVE_H

/* An operator at work: the controller (operator/controller.h) on an API server (kube/client.h).
 *
 *   STARTING ──which kinds there are, what is permitted──► STANDING BY ──leads──► WORKING
 *      │                                                       │                     │
 *      └──it cannot work: a sentence                           ├──stop_fd: ENDING────┤
 *                                                              │                     │
 *                                          in order: GR_OK ◄───┘   lease lost: a sentence
 */

#include "base/log.h"
#include "kube/lease.h"

/* All is borrowed for the call of gr_operator_serve. Texts: NULL or "" where there is none. */
typedef struct gr_serve_options {
    const char *kubeconfig, *context; /* as in kube/access.h */
    const char *server;               /* in place of what the configuration says */
    const char *space;                /* the only namespace whose jobs it looks at; NULL: all */
    const char *const *kinds;         /* "MPIJob", "tfjob.v1"; NULL: those that there are */
    const char *cluster_domain, *gang_scheduler;
    const char *pytorch_init_image, *kubectl_delivery_image; /* as in gr_operator_view */
    const char *launch_agent_image;
    int64_t pytorch_init_tries;
    double requests_a_second;
    int burst;
    int jobs_at_once;                     /* of which writes are on their way */
    bool elects;                          /* it works only while it holds the lease */
    const char *lease_space, *lease_name; /* lease_space NULL: that of the configuration */
    gr_kube_lease_times lease_times;
    const char *const *listen;     /* addresses of its pages (serve/web.h), NULL-terminated */
    int64_t ask_every_us;          /* a worker of each GradusJob how far it has come; 0: never */
    int64_t wait_for_resources_us; /* for those that are not installed as it starts */
    int stop_fd;                   /* readable: it is to end */
    const gr_log *log;
} gr_serve_options;

/* Works until it is stopped (GR_OK) or cannot work. *began_out: it has stood by or worked before
 * it failed; otherwise what it was given is wrong. Without it: GR_E_INVALID, GR_E_NOT_FOUND,
 * GR_E_AUTH (also: a permission is missing), GR_E_PEER_LOST and the like (no connection). With it:
 * GR_E_PEER_LOST (the lease is lost), GR_E_NO_MEMORY. */
gr_status gr_operator_serve(const gr_serve_options *options, bool *began_out,
                            gr_diag *diag) GR_MUST_CHECK;

#endif
