/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_BASE_POOL_H
#define GR_BASE_POOL_H

#include <gradus/status.h>

/* A fixed number of equal objects, allocated once: get and put never touch the heap. One thread at
 * a time. */
typedef struct gr_pool {
    void *memory;
    void *free_list;
    size_t object_bytes;
    size_t capacity;
    size_t in_use;
} gr_pool;

/* Objects are `align`-aligned (a power of two). */
gr_status gr_pool_init(gr_pool *pool, size_t object_bytes, size_t align, size_t capacity,
                       gr_diag *diag) GR_MUST_CHECK;
void gr_pool_fini(gr_pool *pool);
void *gr_pool_get(gr_pool *pool); /* contents undefined; NULL when all are in use */
void gr_pool_put(gr_pool *pool, void *object);

#endif
