/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_SERVE_SERVE_INTERNAL_H
#define GR_OPERATOR_SERVE_SERVE_INTERNAL_H

/* What the files of serve/ share. */

#include "kube/event.h"
#include "kube/watch.h"
#include "operator/controller.h"
#include "operator/serve/asker.h"
#include "operator/serve/serve.h"
#include "operator/serve/web.h"

enum { GR_SERVE_KINDS_MAX = 16, GR_SERVE_SAID = 32 };

typedef struct gr_serve gr_serve;

/* A resource as requests name it. */
typedef struct gr_serve_resource {
    char group[64], version[32];
    gr_kube_resource name; /* points to these */
} gr_serve_resource;

/* A resource of the controller's, and its watch. */
typedef struct gr_serve_watch {
    gr_serve *serve;
    size_t index; /* of gr_operator_resources */
    gr_serve_resource resource;
    gr_kube_watch *watch; /* NULL: it is not watched */
    bool is_listing, is_synced;
} gr_serve_watch;

/* An action that is on its way. */
typedef struct gr_serve_write {
    gr_serve *serve;
    gr_controller_job *job; /* NULL: free */
    size_t number;          /* of the job's writes */
    const char *verb;
    size_t resource;
} gr_serve_write;

/* Counted since the start, for /metrics. */
typedef struct gr_serve_counts {
    uint64_t pods_created, pods_deleted;
    uint64_t services_created, services_failed;
    uint64_t groups_created, groups_deleted;
} gr_serve_counts;

/* A sentence of the log, by its hash, and when it was logged. */
typedef struct gr_serve_said {
    uint64_t hash;
    int64_t at_us;
} gr_serve_said;

struct gr_serve {
    const gr_serve_options *options;
    gr_clock clock;
    const gr_log *log;
    gr_web *web;
    /* The lease has a client of its own, so that it never waits behind other requests. */
    gr_kube_access *access, *lease_access;
    gr_kube *kube, *lease_kube; /* NULL: not there, or no more */
    const gr_operator_kind *kinds[GR_SERVE_KINDS_MAX + 1];
    gr_kube_events *events[GR_SERVE_KINDS_MAX]; /* of each kind */
    gr_controller *controller;
    gr_serve_watch *watches; /* gr_operator_resource_count */
    gr_serve_write *writes;  /* as many as the controller has on their way at most */
    int writes_count;        /* on their way */
    gr_asker *asker;         /* NULL: workers are not asked how far they have come */
    gr_kube_lease *lease;
    char leader[128];
    int64_t resources_due_us; /* until then what is not installed is waited for */
    bool leads, is_released;
    bool is_stopped;  /* it is to end in order */
    gr_status status; /* not GR_OK: it is to end at once, with this sentence */
    gr_diag diag;
    gr_serve_counts counts;
    gr_serve_said said[GR_SERVE_SAID];
};

/* ---- serve.c ---- */
/* Waits until `until_us` at most, and does what there is to do but for the controller. */
void gr_serve_pump(gr_serve *serve, int64_t until_us);
/* Returns true if nothing is left to do but to end. */
bool gr_serve_is_over(const gr_serve *serve);
/* It is to end at once; the first one counts. NULL: no memory. */
void gr_serve_fail(gr_serve *serve, gr_status status, const gr_diag *diag);
/* Warns; the same sentence again only after a minute. */
void gr_serve_warn(gr_serve *serve, const char *sentence);

/* ---- startup.c ---- */
/* Fills `kinds`: those that were asked for, or those that the cluster has and permits.
 * GR_E_NOT_FOUND: one that was asked for is not installed, or none is, and none came. */
gr_status gr_serve_find_kinds(gr_serve *serve, gr_diag *diag) GR_MUST_CHECK;
/* GR_E_NOT_FOUND: something that the controller reads is not installed. The controller is there. */
gr_status gr_serve_find_resources(gr_serve *serve, gr_diag *diag) GR_MUST_CHECK;
/* GR_E_AUTH: a role misses something without which no work can be done; each thing that it misses
 * is logged. The controller is there. */
gr_status gr_serve_check_rights(gr_serve *serve, gr_diag *diag) GR_MUST_CHECK;

/* ---- carry_out.c ---- */
void gr_serve_name_resource(size_t index, gr_serve_resource *resource_out);
/* Begins a list and a watch, or begins them anew. */
gr_status gr_serve_watch_again(gr_serve *serve, size_t index, gr_diag *diag) GR_MUST_CHECK;
/* Asks the controller, and begins what it wants. Returns when to ask again at the latest. */
int64_t gr_serve_act(gr_serve *serve);
/* Asks the workers that are to be asked now. Returns when to call it again at the latest. */
int64_t gr_serve_ask(gr_serve *serve);
/* A gr_asker_done, with the gr_serve. */
void gr_serve_take_progress(void *arg, const gr_question *question, const char *body,
                            size_t size_bytes);

#endif
