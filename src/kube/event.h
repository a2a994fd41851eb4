/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_EVENT_H
#define GR_KUBE_EVENT_H

/* Events of objects, aggregated as client-go does it: the same event again only counts up; where a
 * reason comes with a tenth message within ten minutes, that and the following ones become one; an
 * object has 25 events at once (`burst`), then one in five minutes. */

#include "kube/client.h"

typedef struct gr_kube_events gr_kube_events;

typedef struct gr_kube_events_options {
    const char *component; /* "mpi-job-controller" */
    int burst;             /* events of an object at once; 0: 25 */
    const gr_log *log;
} gr_kube_events_options;

enum {
    GR_KUBE_EVENTS_KEPT = 4096,    /* things known about events: the oldest one is forgotten */
    GR_KUBE_EVENTS_WAITING = 1000, /* to be sent */
    GR_KUBE_EVENTS_AT_ONCE = 4     /* of these on their way; of one object one after the other */
};

/* `kube` NULL: nothing is sent, for gr_kube_events_next. Texts are copied. */
gr_status gr_kube_events_create(gr_kube *kube, const gr_kube_events_options *options,
                                gr_kube_events **events_out, gr_diag *diag) GR_MUST_CHECK;
void gr_kube_events_destroy(gr_kube_events *events); /* before the client */

/* Sends an event about `object` (its apiVersion, kind, metadata), `type` being "Normal" or
 * "Warning". What cannot be sent is logged, and lost: events are advice. */
void gr_kube_events_record(gr_kube_events *events, const json_t *object, const char *type,
                           const char *reason, const char *message);

/* How many are to be sent still. */
int gr_kube_events_waiting(const gr_kube_events *events);

typedef enum gr_kube_event_write {
    GR_KUBE_EVENT_DROPPED, /* too many, or no memory */
    GR_KUBE_EVENT_CREATE,
    GR_KUBE_EVENT_PATCH /* it is there already: count, lastTimestamp and message are new */
} gr_kube_event_write;

/* What is to be sent at that time of the wall clock: *event_out is the Event, a new reference. For
 * event.c, and for tests. */
gr_kube_event_write gr_kube_events_next(gr_kube_events *events, const json_t *object,
                                        const char *type, const char *reason, const char *message,
                                        int64_t wall_us, json_t **event_out);

#endif
