/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_REPAIR_H
#define GR_KUBE_REPAIR_H

/* JSON that an API server stores and sends, and that jansson refuses: one user's object must not
 * keep those of all others from being read. */

#include <stddef.h>

/* Changes the text of an object in place, in as many bytes: an integer that no int64_t holds
 * becomes a number with an exponent, \u0000 in a key becomes the replacement character. */
void gr_kube_repair(char *text, size_t size_bytes);

/* Finds "namespace/name", "name" or "" in the text of an object, or of a watch event about one. The
 * text may be no JSON. */
enum { GR_KUBE_NAME_BYTES = 520 };
void gr_kube_find_name(const char *text, size_t size_bytes, char name_out[GR_KUBE_NAME_BYTES]);

#endif
