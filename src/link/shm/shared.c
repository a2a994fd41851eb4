/* SPDX-License-Identifier: Apache-2.0 */
#include "link/shared.h"
#include "link/shm/shm.h"

static const gr_shm_segment *segment_of(const gr_mesh *mesh, int peer)
{
    if (mesh->ops != &gr_shm_ops || peer < 0 || peer >= mesh->world_size) {
        return NULL;
    }
    if (peer == mesh->rank) {
        return &((const gr_shm_mesh *)mesh)->own;
    }
    const gr_shm_link *link = (const gr_shm_link *)mesh->links[peer];
    return link != NULL && link->base.ops == &gr_shm_ops && link->base.state != GR_LINK_ATTACHING &&
                   link->theirs.base != NULL
               ? &link->theirs
               : NULL;
}

bool gr_mesh_shared(gr_mesh *mesh, int peer, gr_shared *shared_out)
{
    const gr_shm_segment *segment = segment_of(mesh, peer);
    if (segment == NULL) {
        return false;
    }
    *shared_out = (gr_shared){.shms = segment->base + gr_shm_colls_offset(mesh->world_size),
                              .open = segment->base + GR_SHM_OPEN_AT,
                              .heap = segment->base + segment->heap_offset,
                              .heap_bytes = segment->size_bytes - segment->heap_offset};
    return true;
}

void gr_mesh_wake_peer(gr_mesh *mesh, int peer)
{
    gr_shm_link *link = (gr_shm_link *)mesh->links[peer];
    if (gr_shm_link_wake(link)) {
        mesh->stats.system_calls++;
    }
}

void gr_mesh_set_poll_hook(gr_mesh *mesh, gr_mesh_poll_hook *poll_hook, const void *arg)
{
    mesh->poll_hook = poll_hook;
    mesh->poll_hook_arg = arg;
}

bool gr_mesh_not_oversubscribed(const gr_mesh *mesh)
{
    return mesh->spin.allowed;
}
