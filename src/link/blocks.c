/* SPDX-License-Identifier: Apache-2.0 */
#include "link/blocks.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>

enum { HEAD_BYTES = 64 };
_Static_assert(sizeof(gr_block) <= HEAD_BYTES, "the head keeps the memory aligned");

void gr_blocks_init(gr_block *ring)
{
    ring->previous = ring->next = ring;
}

void gr_blocks_fini(gr_block *ring)
{
    gr_block *block = ring->next;
    while (block != NULL && block != ring) {
        gr_block *next = block->next;
        free(block);
        block = next;
    }
}

gr_status gr_block_alloc(gr_block *ring, size_t size_bytes, void **mem_out)
{
    if (size_bytes > SIZE_MAX / 2) {
        return GR_E_NO_MEMORY;
    }
    gr_block *block = gr_zeros(HEAD_BYTES + size_bytes);
    if (block == NULL) {
        return GR_E_NO_MEMORY;
    }
    block->previous = ring;
    block->next = ring->next;
    block->next->previous = block;
    ring->next = block;
    *mem_out = (uint8_t *)block + HEAD_BYTES;
    return GR_OK;
}

void gr_block_free(void *mem)
{
    gr_block *block = (gr_block *)(void *)((uint8_t *)mem - HEAD_BYTES);
    block->previous->next = block->next;
    block->next->previous = block->previous;
    free(block);
}
