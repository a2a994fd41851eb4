/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOOK_H
#define GR_OPERATOR_LOOK_H

/* One look at one job: what the kinds share. Functions that make or write objects note a failed
 * allocation in no_memory. */

#include "operator/operator.h"

typedef struct gr_look {
    const gr_operator_view *view;
    gr_operator_result *result;
    const char *api_version, *kind; /* of the job */
    const char *name, *space, *uid;
    json_t *job;    /* as observed, with defaults; owned */
    json_t *status; /* as it becomes; owned */
    json_t *index;  /* of the view's objects by what they are called; NULL: not made yet */
    bool no_memory;
    bool is_stopped; /* another's object is in the way */
} gr_look;

void gr_look_open(gr_look *l, const gr_operator_view *view, const gr_operator_kind *kind,
                  gr_operator_result *result);
/* Writes the status of the job, if it is another than was seen. */
void gr_look_write_status(gr_look *l);
/* GR_OK, or GR_E_NO_MEMORY: then the result is empty. */
gr_status gr_look_close(gr_look *l, gr_diag *diag);

void gr_look_event(gr_look *l, const char *type, const char *reason, const char *message);
/* Takes the object over. */
void gr_look_write(gr_look *l, const char *verb, json_t *object);
/* Creates the object, which is taken over: events from the index `first_event` on are about it;
 * `counter` (NULL: none) of the status counts it. */
void gr_look_create(gr_look *l, json_t *object, size_t first_event, const char *counter);
/* False: it goes already. */
bool gr_look_delete(gr_look *l, const json_t *object);
/* The job's own object of that name, NULL if there is none. Another's object is in the way: then
 * nothing more is made. */
json_t *gr_look_find_own(gr_look *l, const char *api_version, const char *kind, const char *name);
/* Tells that this object is another's and in the way. */
void gr_look_stop(gr_look *l, const json_t *object);
/* Creates the object, or repairs what stands there: those keys of its map `part` (NULL-terminated;
 * none: the whole part; no part: nothing) are as in the new one. */
void gr_look_keep(gr_look *l, json_t *wanted, const char *part, const char *const *keys);
/* {name, namespace, ownerReferences}. */
json_t *gr_look_metadata(gr_look *l, const char *name);
/* The init container that brings gradus into a pod by `image`, as restricted as a namespace may ask
 * for; NULL: no memory. The caller's. */
json_t *gr_look_gradus_container(const char *image);
/* Sets a condition; false: it is so already. Running and Restarting replace each other; with
 * Failed or Succeeded nothing runs or restarts any more. */
bool gr_look_set_condition(gr_look *l, const char *type, bool holds, const char *reason,
                           const char *message);

#endif
