/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_STORE_H
#define GR_OPERATOR_LOCAL_STORE_H

/* The objects of a cluster that exists in this process alone, with the answers of an API server:
 * uids, resourceVersions, conflicts, and owners whose end is the end of what they own. */

#include "operator/controller.h"

typedef struct gr_store gr_store;

/* Told of each change; the object is borrowed. It may not change the store. */
typedef void gr_store_changed(void *changed_arg, const json_t *object, bool is_there);

/* NULL: no memory. */
gr_store *gr_store_create(gr_store_changed *changed, void *changed_arg);
void gr_store_destroy(gr_store *store);
/* The time that objects get from now on. */
void gr_store_set_time(gr_store *store, int64_t wall_s);
/* That time as objects have it. */
const char *gr_store_now(const gr_store *store);
/* True: an object is not as it should be, for there was no memory. */
bool gr_store_no_memory(const gr_store *store);

/* "create", "update", "status", "delete", "get" of gr_controller_action. *answer_out is borrowed
 * until the next call; NULL: there is none. A pod that is deleted stays, with a deletionTimestamp,
 * until gr_store_remove. */
gr_api_answer gr_store_ask(gr_store *store, const char *verb, const json_t *object,
                           const json_t **answer_out);
/* Gives the object another status; takes it over. */
void gr_store_set_status(gr_store *store, const json_t *object, json_t *status);
/* The object ends, and what it owns. */
void gr_store_remove(gr_store *store, const json_t *object);

/* NULL: it is not there. */
json_t *gr_store_find(const gr_store *store, const char *api_version, const char *kind,
                      const char *space, const char *name);
/* All objects, in the order of their creation, as an array that calls may change. */
const json_t *gr_store_objects(const gr_store *store);
/* A new array of those of a kind; NULL: no memory. */
json_t *gr_store_list(gr_store *store, const char *api_version, const char *kind);

#endif
