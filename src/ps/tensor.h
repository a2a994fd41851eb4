/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_TENSOR_H
#define GR_PS_TENSOR_H

/* What a tensor is to client, server, store and wire. Pure functions. */

#include "ps/place.h"

#include <gradus/ps.h>

#define GR_PS_ROWS_MAX (UINT32_C(1) << 31) /* of a table */

enum {
    GR_PS_PEERS_MAX = 256, /* servers and clients together */
    GR_PS_SHARDS_MAX = 65536,
    GR_PS_BLOCK_MAX = 1 << 18, /* elements: 1 MiB */
    GR_PS_TENSORS_MAX = 1 << 16,
    GR_PS_STALENESS_BINS = 64
};

typedef struct gr_ps_tensor {
    gr_ps_spec spec; /* as clients declare it, all of them alike */
    uint64_t key;    /* a hash of the name: by it a tensor is known */
    gr_ps_cut cut;   /* its blocks. Each of a table has those of its rows that were pushed */
} gr_ps_tensor;

uint64_t gr_ps_tensor_key(const char *name);
/* Of a spec that gr_ps_check_spec has found good. Its texts stay borrowed, */
gr_ps_tensor gr_ps_tensor_of(const gr_ps_spec *spec);
/* until they are copied to `texts`, which has gr_ps_texts_bytes. */
size_t gr_ps_texts_bytes(const gr_ps_spec *spec);
void gr_ps_copy_texts(gr_ps_spec *spec, char *texts);

/* A tensor that a caller or a peer describes: GR_OK, or GR_E_INVALID and what is wrong with it. */
gr_status gr_ps_check_spec(const gr_ps_spec *spec, gr_diag *diag) GR_MUST_CHECK;

#endif
