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

gr_status gr_mesh_register(gr_mesh *mesh, void *mem, size_t size_bytes, gr_diag *diag)
{
    if (mesh->ops != &gr_shm_ops) {
        return GR_OK;
    }
    gr_shm_mesh *shm = (gr_shm_mesh *)mesh;
    return gr_shm_register(&shm->registered, &shm->heap, mem, size_bytes, diag);
}

gr_status gr_mesh_unregister(gr_mesh *mesh, void *mem, gr_diag *diag)
{
    if (mesh->ops != &gr_shm_ops) {
        return GR_OK;
    }
    gr_shm_mesh *shm = (gr_shm_mesh *)mesh;
    return gr_shm_unregister(&shm->registered, &shm->heap, mem, mesh->keeps, diag);
}

const void *gr_mesh_find_registered(const gr_mesh *mesh, const void *at, size_t size_bytes)
{
    return mesh->ops == &gr_shm_ops
               ? gr_shm_registered_find(&((const gr_shm_mesh *)mesh)->registered, at, size_bytes)
               : NULL;
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
