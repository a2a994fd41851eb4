/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_PS_TENSOR_H
#define GR_PS_TENSOR_H

/* What a tensor is to client, server and wire. Pure functions. */

#include <gradus/ps.h>
#include <stdbool.h>

#define GR_PS_ROWS_MAX (UINT32_C(1) << 31) /* of a table */

enum {
    GR_PS_PEERS_MAX = 256,      /* servers and clients together */
    GR_PS_NAME_MAX = 255,       /* bytes of a tensor's name */
    GR_PS_OPTIMIZER_MAX = 4095, /* bytes of an optimizer's description */
    GR_PS_SHARDS_MAX = 65536,
    GR_PS_BLOCK_MAX = 1 << 18,  /* elements: 1 MiB */
    GR_PS_BLOCKS_MAX = 1 << 20, /* of one tensor */
    GR_PS_TENSORS_MAX = 1 << 16,
    GR_PS_STALENESS_BINS = 64
};

typedef enum gr_ps_mode {
    GR_PS_BSP =
        0, /* a step is made when all shards have come; summed as gr_allreduce_shards does */
    GR_PS_BACKUP = 1, /* when `aggregate` workers have pushed; later ones are dropped */
    GR_PS_ASYNC = 2,  /* each push is an update */
    GR_PS_SSP = 3,    /* as async, and a pull waits for workers that are too far behind */
    GR_PS_MODE_COUNT = 4
} gr_ps_mode;
const char *gr_ps_mode_name(gr_ps_mode mode); /* "bsp", "backup", "async", "ssp"; "?" */

/* What a tensor is. All clients declare it alike. */
typedef struct gr_ps_tensor {
    const char *name; /* 1 .. GR_PS_NAME_MAX bytes */
    uint64_t elements;
    uint32_t block; /* elements of each block but the last, 1 .. GR_PS_BLOCK_MAX */
    gr_ps_mode mode;
    int shards;           /* bsp: 1 .. GR_PS_SHARDS_MAX */
    int aggregate, total; /* backup: 1 <= aggregate <= total <= GR_PS_PEERS_MAX */
    int staleness;        /* ssp: clocks that a worker may be ahead of the slowest one */
    bool adapt_rate;      /* async, ssp: the rate is divided by 1 + staleness */
    bool
        refuse_not_finite; /* a push with a NaN or an infinity in it is refused; else it is taken */
    const char *optimizer; /* what gr_ps_updater_ops makes an updater of */
    /* A table, of elements / columns rows: `block` counts for nothing, and each of the
     * GR_PS_TABLE_BLOCKS blocks has those of its rows that were pushed (rows/rows.h). 0: none. */
    uint32_t columns;
    uint64_t seed;
    float deviation;
    gr_dtype gradient_type; /* what is pushed is of this type, widened; so are sums. GR_F32: any */
} gr_ps_tensor;

/* From and to what callers and messages say; the texts are borrowed. */
gr_ps_tensor gr_ps_tensor_of(const gr_ps_spec *spec);
gr_ps_spec gr_ps_spec_of(const gr_ps_tensor *tensor);

uint64_t gr_ps_tensor_key(const char *name);
/* Can a table have so many elements and columns, and begin so? */
bool gr_ps_is_table(const gr_ps_tensor *tensor);
uint32_t gr_ps_tensor_blocks(const gr_ps_tensor *tensor);
/* Elements of block number `block`, which there is. */
uint32_t gr_ps_tensor_block_count(const gr_ps_tensor *tensor, uint32_t block);

#endif
