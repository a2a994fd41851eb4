/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_BLOCKS_H
#define GR_LINK_BLOCKS_H

/* What gr_mesh_alloc gives on kinds of links whose peers do not read it directly: plain memory,
 * each block in a ring through its owner, which frees what is left. */

#include <gradus/status.h>
#include <stddef.h>

typedef struct gr_block {
    struct gr_block *previous, *next;
} gr_block;

void gr_blocks_init(gr_block *ring);
void gr_blocks_fini(gr_block *ring); /* a ring of zeros is empty, too */
/* Zeroed, on a cache line of its own. */
gr_status gr_block_alloc(gr_block *ring, size_t size_bytes, void **mem_out);
void gr_block_free(void *mem);

#endif
