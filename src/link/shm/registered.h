/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SHM_REGISTERED_H
#define GR_LINK_SHM_REGISTERED_H

/* Memory of the program that peers reach as they do the heap. Its pages are replaced by pages of
 * the heap with the same contents, at the same address; so there are two addresses of it here, the
 * program's and the heap's. One thread at a time. */

#include "link/shm/heap.h"

#include <stdbool.h>

typedef struct gr_shm_registration {
    uint8_t *at;   /* the program's address; whole pages */
    uint8_t *heap; /* where the same pages are in the heap */
    void *block;   /* of gr_shm_heap_alloc; `heap` is in it */
    size_t size_bytes;
    bool split; /* some is private again, some could not be: no longer found */
} gr_shm_registration;

typedef struct gr_shm_registered {
    gr_shm_registration *list; /* by address, without overlaps */
    size_t count, capacity;
} gr_shm_registered;

/* Restores what is still mapped; frees the list. */
void gr_shm_registered_fini(gr_shm_registered *registered, gr_shm_heap *heap);

/* `at` and `size_bytes` are multiples of the page size; nothing of it is registered. GR_OK;
 * GR_E_INVALID: some of it is no memory; GR_E_UNSUPPORTED: it is no private memory that may be read
 * and written, or the kernel does not replace it; GR_E_IO: what is mapped cannot be read;
 * GR_E_NO_MEMORY. After a failure all is as before. */
gr_status gr_shm_register(gr_shm_registered *registered, gr_shm_heap *heap, void *at,
                          size_t size_bytes, gr_diag *diag) GR_MUST_CHECK;
/* Private memory with the same contents is at the address again, where a registration begins. What
 * the program has unmapped meanwhile is left alone. GR_E_NO_MEMORY, GR_E_IO: it stays registered.
 * `kept`: its pages in the heap stay in use until the heap goes. */
gr_status gr_shm_unregister(gr_shm_registered *registered, gr_shm_heap *heap, void *at, bool kept,
                            gr_diag *diag) GR_MUST_CHECK;
/* Where the heap has these bytes of the program; NULL: they are not registered, or not all. */
const uint8_t *gr_shm_registered_find(const gr_shm_registered *registered, const void *at,
                                      size_t size_bytes);

#endif
