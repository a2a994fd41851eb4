/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include "base/fail.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A free object begins with a pointer to the next free one. */

gr_status gr_pool_init(gr_pool *pool, size_t object_bytes, size_t align, size_t capacity,
                       gr_diag *diag)
{
    *pool = (gr_pool){0};
    if (object_bytes == 0 || align == 0 || (align & (align - 1)) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "a pool needs objects of at least one byte and an alignment that is a power "
                       "of two, not %zu and %zu",
                       object_bytes, align);
    }
    if (align < sizeof(void *)) {
        align = sizeof(void *);
    }
    size_t stride = object_bytes + (align - 1);
    size_t total = 0;
    bool overflow = stride < object_bytes;
    stride &= ~(align - 1);
    overflow = overflow || __builtin_mul_overflow(stride, capacity, &total);
    if (overflow || total > PTRDIFF_MAX) {
        return gr_fail(diag, GR_E_NO_MEMORY, "a pool of %zu objects of %zu bytes is too large",
                       capacity, object_bytes);
    }
    if (capacity > 0) {
        pool->memory = aligned_alloc(align, total);
        if (pool->memory == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "not enough memory for a pool of %zu objects of %zu bytes", capacity,
                           object_bytes);
        }
    }
    pool->object_bytes = stride;
    pool->capacity = capacity;
    for (size_t i = capacity; i > 0; i--) { /* so that the first get is the lowest address */
        void *object = (char *)pool->memory + (i - 1) * stride;
        memcpy(object, &pool->free_list, sizeof pool->free_list);
        pool->free_list = object;
    }
    return GR_OK;
}

void gr_pool_fini(gr_pool *pool)
{
    free(pool->memory);
    *pool = (gr_pool){0};
}

void *gr_pool_get(gr_pool *pool)
{
    void *object = pool->free_list;
    if (object != NULL) {
        memcpy(&pool->free_list, object, sizeof pool->free_list);
        pool->in_use++;
    }
    return object;
}

void gr_pool_put(gr_pool *pool, void *object)
{
    if (object == NULL) {
        return;
    }
    size_t offset = (size_t)((char *)object - (char *)pool->memory);
    GR_CHECK(pool->in_use > 0);
    GR_CHECK(offset < pool->capacity * pool->object_bytes && offset % pool->object_bytes == 0);
    memcpy(object, &pool->free_list, sizeof pool->free_list);
    pool->free_list = object;
    pool->in_use--;
}
