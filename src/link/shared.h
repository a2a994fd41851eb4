/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SHARED_H
#define GR_LINK_SHARED_H

/* Memory that the processes of one host have in common, for those who move data without messages:
 * areas of a process that its peers read, areas and heap that they write as well, and the waking of
 * a peer that sleeps. Only links of the kind shm have it.
 *
 * Order of memory is the user's affair: store what is news sequentially consistently, then
 * gr_mesh_wake_peer; have gr_mesh_set_poll_hook's function load it sequentially consistently. Then
 * either the sleeper sees the news before it sleeps, or the wake sees that it sleeps. */

#include "link/link.h"

enum {
    GR_SHARED_COLLS = 8,               /* areas of each kind in a process */
    GR_SHARED_COLL_BYTES = 1152 << 10, /* sparse: what is never touched takes no memory */
    GR_SHARED_OPEN_BYTES = 1024
};

typedef struct gr_shared {
    uint8_t *shms; /* GR_SHARED_COLLS areas, zero at first; only their process may write there */
    uint8_t *open; /* GR_SHARED_COLLS areas, zero at first; every peer may write there */
    uint8_t *heap; /* memory of gr_mesh_alloc; every peer may write there */
    size_t heap_bytes;
} gr_shared;

/* What `peer` (or this process) shares, as it is mapped here until the mesh is destroyed, or the
 * peer removed (gr_mesh_remove). False: there is no link of the kind shm. */
bool gr_mesh_shared(gr_mesh *mesh, int peer, gr_shared *shared_out);

/* Memory of the program that peers on this host reach from now on as they do the heap: whole pages,
 * private to this process and not registered, which no other thread uses during the call. Address
 * and contents stay. GR_OK (also if no peer shares memory); GR_E_INVALID: some of it is no memory;
 * GR_E_UNSUPPORTED: another kind of memory; GR_E_NO_MEMORY; GR_E_IO. */
gr_status gr_mesh_register(gr_mesh *mesh, void *mem, size_t size_bytes,
                           gr_diag *diag) GR_MUST_CHECK;
/* What was registered from `mem` on is private again, as by the end of the mesh. GR_E_NO_MEMORY,
 * GR_E_IO: it stays registered. */
gr_status gr_mesh_unregister(gr_mesh *mesh, void *mem, gr_diag *diag) GR_MUST_CHECK;
/* The address of the same bytes in the heap; NULL: not all of it is registered. */
const void *gr_mesh_find_registered(const gr_mesh *mesh, const void *at, size_t size_bytes);

/* Wake `peer` if it sleeps in gr_mesh_wait. */
void gr_mesh_wake_peer(gr_mesh *mesh, int peer);

/* gr_mesh_wait asks `news` before it sleeps, and while it spins: true ends the waiting. NULL: never
 * again. */
typedef bool gr_mesh_poll_hook(const void *arg);
void gr_mesh_set_poll_hook(gr_mesh *mesh, gr_mesh_poll_hook *poll_hook, const void *arg);

/* Memory that a peer does not share, by way of the kernel (process_vm_readv): is it permitted?
 * Found out when the link is made, by an attempt. `peer` may be this process, here and below. */
bool gr_mesh_cma(const gr_mesh *mesh, int peer);
/* How many times as long as a plain copy of 64 KiB within the caches the kernel's takes, which is
 * measured now, in 0.1 ms (5 and 10 were seen). 0: GR_CMA_ON asks for it whatever it costs;
 * HUGE_VAL: GR_CMA_OFF, or it fails. *ns_out (NULL ok): what a byte takes; 0: not measured. */
double gr_cma_cost(gr_cma cma, double *ns_out);
/* The mesh's setting; GR_CMA_OFF: it has no shared memory. */
gr_cma gr_mesh_cma_setting(const gr_mesh *mesh);
/* Copy from, and to, the address `at` in `peer`, for which gr_mesh_cma is true. GR_OK;
 * GR_E_PEER_LOST: it has ended, as its link will say; GR_E_PROTOCOL: it has no such memory. */
gr_status gr_mesh_cma_read(gr_mesh *mesh, int peer, uint64_t at, void *dst,
                           size_t size_bytes) GR_MUST_CHECK;
gr_status gr_mesh_cma_write(gr_mesh *mesh, int peer, uint64_t at, const void *src,
                            size_t size_bytes) GR_MUST_CHECK;
/* Its process has not ended. Asks the kernel; needs gr_mesh_cma. */
bool gr_mesh_cma_alive(gr_mesh *mesh, int peer);
/* Returns 0 if the ranks of a job on this host may copy each other's memory (CMA), or an error
 * number. */
int gr_cma_try(void);

/* Every process that may be waited for has a core of its own. The same for all when all links are
 * up. */
bool gr_mesh_not_oversubscribed(const gr_mesh *mesh);

/* Between two looks at a line: who stores there had better not find it in use by us. */
static inline void gr_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
