/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_POD_GROUP_H
#define GR_OPERATOR_POD_GROUP_H

/* The PodGroup of a job, by which a scheduler places all of its pods or none: that of volcano, or
 * that of scheduler-plugins. Only with a gang_scheduler. */

#include "operator/look.h"

#include <stdint.h>

/* The contents of a group; a text that is NULL or empty is left out. */
typedef struct gr_pod_group {
    int64_t min_member;
    const char *queue, *priority_class; /* volcano alone */
    json_t *timeout_s;                  /* scheduler-plugins alone; NULL: not given */
    json_t *resources;                  /* NULL: not given */
} gr_pod_group;

bool gr_pod_group_is_volcano(const gr_look *l);
/* The object; takes timeout_s and resources over. */
json_t *gr_pod_group_object(gr_look *l, const gr_pod_group *group);
/* Creates or repairs the group, which is taken over. */
void gr_pod_group_keep(gr_look *l, json_t *group);
/* The job's group, NULL: there is none. */
json_t *gr_pod_group_find(gr_look *l);
/* False: there is none, or it goes already. */
bool gr_pod_group_delete(gr_look *l);
/* Makes the pods of this template members of the group, all but for the schedulerName. */
void gr_pod_group_join(gr_look *l, json_t *template);

/* Of pods with this spec, by their PriorityClass. */
int64_t gr_pod_priority(const gr_look *l, const json_t *pod_spec);
/* sums += what `count` such pods ask for. */
void gr_pod_resources_add(gr_look *l, json_t *sums, const json_t *pod_spec, int64_t count);
/* A quantity of a resource, an integer or a text, in the one form in which Kubernetes writes it: a
 * new reference. What is no quantity stays as it is. */
json_t *gr_pod_quantity(json_t *value);

#endif
