/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_CACHE_H
#define GR_OPERATOR_CACHE_H

/* What an operator knows of a cluster: the objects of its jobs, trimmed to what reconcilers read,
 * and packed. What belongs to no job of a kind is not kept. A group is all that belongs to the jobs
 * of one name in one namespace. */

#include "operator/operator.h"

#include <stdint.h>

typedef struct gr_cache gr_cache;
typedef struct gr_cache_entry gr_cache_entry;
typedef struct gr_controller_job gr_controller_job;

/* What stands in a hash table: the first member of whatever it is. */
typedef struct gr_cache_node {
    struct gr_cache_node *next;
    uint64_t hash;
} gr_cache_node;

typedef struct gr_cache_group {
    gr_cache_node node;
    gr_cache_entry *entries;
    gr_controller_job *jobs; /* of the controller; a group with jobs or entries stays */
    const char *name;        /* in `space`, behind its zero */
    char space[];
} gr_cache_group;

/* Told of each change, while the group is as it is after it. `resource` is an index of
 * gr_operator_resources; `is_there` says whether the object is there now. */
typedef gr_status gr_cache_changed(void *changed_arg, gr_cache_group *group, size_t resource,
                                   bool is_there);

gr_status gr_cache_create(const gr_operator_kind *const *kinds, gr_cache_changed *changed,
                          void *changed_arg, gr_cache **cache_out, gr_diag *diag) GR_MUST_CHECK;
void gr_cache_destroy(gr_cache *cache);

typedef enum gr_cache_source { GR_FROM_LIST, GR_FROM_WATCH, GR_FROM_ANSWER } gr_cache_source;

/* An object as a list, a watch, or an answer to a write has it (borrowed). One that is older than
 * what the cache has is passed over. *is_doubtful_out is set, and nothing put, where a watch or an
 * answer shows an object that is not there and is not newer than what a watch has shown of its
 * resource: it may have been deleted since, which only a new list can tell. GR_E_NO_MEMORY. */
gr_status gr_cache_put(gr_cache *cache, size_t resource, const json_t *object,
                       gr_cache_source source, bool *is_doubtful_out) GR_MUST_CHECK;
/* The object is gone; one that is newer than `object` stays. */
gr_status gr_cache_remove(gr_cache *cache, size_t resource, const json_t *object) GR_MUST_CHECK;
/* Between both calls, all objects of a resource are put that there are; the end removes the others,
 * but for those that are newer than the list's `version` (NULL: it has none). */
void gr_cache_begin_list(gr_cache *cache, size_t resource);
gr_status gr_cache_end_list(gr_cache *cache, size_t resource, const char *version) GR_MUST_CHECK;
/* Returns true if the group is where the object is, or would be, kept. */
bool gr_cache_is_of(const gr_cache *cache, const gr_cache_group *group, const json_t *object);

/* New values, whole but for what was trimmed; NULL: no memory, or no such object. */
json_t *gr_cache_get(gr_cache *cache, const gr_cache_group *group, size_t resource,
                     const char *name);
/* The version of the entry, 0: there is none, or it is no number. */
uint64_t gr_cache_version(const gr_cache *cache, const gr_cache_group *group, size_t resource,
                          const char *name);
/* Removes the entry if `version` still is its version. */
gr_status gr_cache_forget(gr_cache *cache, const gr_cache_group *group, size_t resource,
                          const char *name, uint64_t version) GR_MUST_CHECK;
/* An array: the objects of the group but for the jobs, and those that belong to no namespace. */
json_t *gr_cache_objects(gr_cache *cache, const gr_cache_group *group);

/* Frees a group that has neither jobs nor entries. */
void gr_cache_tidy(gr_cache *cache, gr_cache_group *group);
/* The group after this one, in no order; NULL begins, and ends. */
gr_cache_group *gr_cache_next_group(const gr_cache *cache, const gr_cache_group *group);

#endif
