/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_RESOURCE_H
#define GR_OPERATOR_RESOURCE_H

/* The resources of a cluster that an operator reads and writes. */

#include "operator/operator.h"

#include <stddef.h>

typedef enum gr_trim {
    GR_TRIM_LITTLE, /* whole but for managedFields */
    GR_TRIM_STATUS, /* and but for the status, which nobody reads and which changes all the time */
    GR_TRIM_POD,    /* what gr_operator_view says of pods */
    GR_TRIM_SECRET, /* the values of its data are empty: only the names of keys are read */
} gr_trim;

/* With which gang scheduler a resource is read. */
typedef enum gr_gang {
    GR_GANG_ALWAYS, /* also without one */
    GR_GANG_ANY,
    GR_GANG_VOLCANO,
    GR_GANG_OTHER, /* of scheduler-plugins */
} gr_gang;

typedef struct gr_operator_resource {
    const char *api_version, *kind;
    const char *plural;                     /* in the paths of the API */
    const char *selector;                   /* a label that all objects of jobs have; NULL: none */
    const gr_operator_kind *const *readers; /* the kinds that read it, ends with NULL; NULL: all */
    gr_gang gang;
    gr_trim trim;
    bool is_global; /* belongs to no namespace */
    bool is_job;    /* of one of gr_operator_kinds */
} gr_operator_resource;

extern const gr_operator_resource gr_operator_resources[]; /* ends with kind NULL */
extern const size_t gr_operator_resource_count;

/* The index of a resource; gr_operator_resource_count: there is none. */
size_t gr_operator_resource_find(const char *api_version, const char *kind);
/* Returns true if an operator of these kinds (ends with NULL) and this gang_scheduler ("": none)
 * reads the resource. */
bool gr_operator_resource_used(const gr_operator_resource *resource,
                               const gr_operator_kind *const *kinds, const char *gang_scheduler);
/* What of an object is kept, without apiVersion, kind and namespace; it shares values with it.
 * NULL: no memory. */
json_t *gr_operator_resource_trim(const gr_operator_resource *resource, const json_t *object);

#endif
