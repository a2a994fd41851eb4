/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_MEMORY_H
#define GR_BASE_MEMORY_H

#include <stddef.h>

/* Heap memory (free) of zeros on cache lines of its own, all of it touched; NULL: there is none. */
void *gr_zeros(size_t size_bytes);

#endif
