/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_PACK_H
#define GR_OPERATOR_PACK_H

/* JSON values in few bytes, for caches of many small objects that look alike: strings that all of
 * them have are a byte each, and large values are deflated. A pod of a job takes some 150 bytes. */

#include <gradus/status.h>
#include <jansson.h>

/* One thread at a time uses a packer. */
typedef struct gr_packer gr_packer;

gr_status gr_packer_create(gr_packer **packer_out, gr_diag *diag) GR_MUST_CHECK;
void gr_packer_destroy(gr_packer *packer);

/* The bytes of a value (whose keys have no zero byte); the same value, with its keys in the same
 * order, gives the same bytes. They belong to the packer and stay until its next call. NULL: no
 * memory. */
const unsigned char *gr_pack(gr_packer *packer, const json_t *value, size_t *size_bytes_out);
/* A new value of such bytes; NULL: no memory. */
json_t *gr_unpack(gr_packer *packer, const unsigned char *packed, size_t size_bytes);

#endif
