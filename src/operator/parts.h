/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_PARTS_H
#define GR_OPERATOR_PARTS_H

/* Objects, and parts of containers, that several kinds make alike. */

#include "operator/look.h"

/* A new object JOB<suffix> with the label app: JOB. NULL, or one with a part missing, where there
 * is no memory. The caller's. */
json_t *gr_parts_object(gr_look *l, const char *api_version, const char *kind, const char *suffix);
/* An empty value stays out. */
void gr_parts_add_env(gr_look *l, json_t *container, const char *name, const char *value);
void gr_parts_add_mount(gr_look *l, json_t *container, const char *volume, const char *path);

#endif
