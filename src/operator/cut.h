/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_CUT_H
#define GR_OPERATOR_CUT_H

/* Most of what an API server sends is never read: parsing that would take the longest part of a
 * restart. */

#include "operator/resource.h"

/* A gr_kube_cut; `resource` is a gr_operator_resource. Takes out of the JSON text of an object, or
 * of an event of a watch about one, what gr_operator_resource_trim leaves out, or most of it, and
 * moves the rest together. Returns how long that is. What is cut out is not looked at but for its
 * end; what is no JSON else stays so. */
size_t gr_operator_resource_cut(const void *resource, char *text, size_t size_bytes);

#endif
