/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_WATCH_H
#define GR_KUBE_WATCH_H

/* All objects of a resource, and whatever happens to them from then on: a list, then a watch from
 * its resourceVersion.
 *
 *   LISTING ──list ends: SYNCED──► WATCHING ──stream ends, breaks or is silent──► PAUSING
 *      ▲  begins: RESYNC             ▲  │ ADDED, MODIFIED, DELETED, BOOKMARK         │ │
 *      │                             └──┼──────────back-off is over─────────────────┘ │
 *      └────────────────────────────────┴──410, as HTTP or as an ERROR event──────────┘
 */

#include "kube/client.h"

typedef enum gr_kube_watch_kind {
    GR_KUBE_WATCH_RESYNC,   /* a list begins: what is not ADDED until SYNCED does not exist */
    GR_KUBE_WATCH_SYNCED,   /* the list is complete */
    GR_KUBE_WATCH_ADDED,    /* also of what is listed, known or not: without kind and
                        * apiVersion there, as the server has it */
    GR_KUBE_WATCH_MODIFIED, /* may come twice */
    GR_KUBE_WATCH_DELETED,  /* the last state; may be of an object that is not known */
    GR_KUBE_WATCH_BOOKMARK, /* nothing but a newer resourceVersion */
    GR_KUBE_WATCH_SKIPPED,  /* an object cannot be read: `diag` says which; all else goes on */
    GR_KUBE_WATCH_TROUBLE   /* `diag` says what; the watch tries again by itself */
} gr_kube_watch_kind;

typedef struct gr_kube_watch_event {
    gr_kube_watch_kind kind;
    json_t *object; /* borrowed for the call, a reference keeps it; NULL: RESYNC, SYNCED, TROUBLE */
    const char *version; /* SYNCED: the list's resourceVersion */
    const gr_diag *diag;
} gr_kube_watch_event;

/* May call gr_kube_watch_stop and gr_kube_submit, not gr_kube_destroy or gr_kube_run. */
typedef void gr_kube_watch_handler(void *arg, const gr_kube_watch_event *event);

typedef struct gr_kube_watch gr_kube_watch;

typedef struct gr_kube_watch_options {
    gr_kube_resource resource;
    const char *space; /* namespace; NULL: all */
    const char *label_selector, *field_selector;
    int64_t
        silence_us; /* a stream that says nothing for so long is taken for dead; 0: 150 s. Servers
                         * send a bookmark each minute. */
    gr_kube_watch_handler *handler;
    void *arg;
    /* Of objects in lists and of events about them, {"type", "object"}: it leaves
     * metadata.resourceVersion and what tells of errors. NULL: none. */
    gr_kube_cut *cut;
    const void *cut_arg; /* borrowed for the life of the watch */
} gr_kube_watch_options;

/* Texts are copied. Failures of the server come as TROUBLE. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_kube_watch_start(gr_kube *kube, const gr_kube_watch_options *options,
                              gr_kube_watch **watch_out, gr_diag *diag) GR_MUST_CHECK;
/* No event comes any more; before gr_kube_destroy. NULL: nothing. */
void gr_kube_watch_stop(gr_kube_watch *watch);

#endif
