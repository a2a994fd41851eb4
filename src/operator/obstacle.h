/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_OBSTACLE_H
#define GR_OPERATOR_OBSTACLE_H

/* Objects that no watch shows, where those of a job are to be: another's, or one without the label
 * by which its resource is watched. The next look sees them. */

#include <gradus/status.h>
#include <jansson.h>

/* Adds the object that is where `wanted` is to be, in place of an older one of its name. *list
 * (NULL: none) is an array. GR_E_NO_MEMORY. */
gr_status gr_obstacle_add(json_t **list, const json_t *wanted, const json_t *object) GR_MUST_CHECK;
/* The event about an object of the job's own that lacks `label`. NULL: no memory. */
json_t *gr_obstacle_event(const json_t *wanted, const char *label);

#endif
