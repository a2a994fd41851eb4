/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_NAMES_H
#define GR_OPERATOR_LOCAL_NAMES_H

/* Addresses on loopback, one for each pod, and the file /etc/hosts of all pods, which gives them
 * the names that pods and Services have in a cluster. It only grows: whoever reads it while a pod
 * comes sees whole lines. */

#include "operator/local/store.h"

enum { GR_ADDRESS_OF_POD_BYTES = 48 };

typedef struct gr_names gr_names;

/* Makes the file, with what stands in /etc/hosts. GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_names_create(const char *path, const char *cluster_domain, gr_names **names_out,
                          gr_diag *diag) GR_MUST_CHECK;
void gr_names_destroy(gr_names *names);
/* That of a pod of this name, also of one that comes later; no other run on this host has it.
 * GR_E_NO_MEMORY; GR_E_INVALID: there are too many. */
gr_status gr_names_address(gr_names *names, const char *space, const char *pod,
                           char address_out[GR_ADDRESS_OF_POD_BYTES], gr_diag *diag) GR_MUST_CHECK;
/* From now on the pod can be found, by its own names and those of the Services that select it. */
gr_status gr_names_publish(gr_names *names, const gr_store *store, const json_t *pod,
                           gr_diag *diag) GR_MUST_CHECK;
/* `text` with each name of a pod or Service in it replaced by its address, on the heap; NULL: no
 * memory. `hosts`: what stands in the file. For where names cannot be had. */
char *gr_names_replace(const char *hosts, const char *text);

#endif
