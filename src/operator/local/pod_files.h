/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_POD_FILES_H
#define GR_OPERATOR_LOCAL_POD_FILES_H

/* The volumes of a pod as folders of this host. */

#include "operator/local/pod_plan.h"

/* Writes them below `folder`, which is the pod's own, and sets the mounts' sources. Once more: what
 * ConfigMaps and Secrets hold by now. *stand_in_out: a volume that is only an empty folder here;
 * NULL: there is none. GR_E_NOT_FOUND: an object that it names is not there; GR_E_IO,
 * GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_pod_files_write(const gr_store *store, const json_t *pod, const char *folder,
                             gr_arena *arena, gr_pod_plan *plan, const char **stand_in_out,
                             gr_diag *diag) GR_MUST_CHECK;

#endif
