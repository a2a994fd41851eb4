/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void *gr_zeros(size_t size_bytes)
{
    size_t size = size_bytes == 0 ? 64 : size_bytes / 64 * 64 + (size_bytes % 64 != 0 ? 64 : 0);
    void *memory = size >= size_bytes ? aligned_alloc(64, size) : NULL;
    return memory != NULL ? memset(memory, 0, size) : NULL;
}
