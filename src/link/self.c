/* SPDX-License-Identifier: Apache-2.0 */

/* The mesh of a group of one: no peers, no sockets, no door. It gives memory, and sleeps until it
 * is woken. */

#include "base/fair_lock.h"
#include "link/mesh.h"

typedef struct self_mesh {
    gr_mesh base;
    _Atomic uint32_t news; /* a sleeper is woken */
} self_mesh;

static void progress_self(gr_mesh *mesh)
{
    (void)mesh;
}

static void wait_self(gr_mesh *mesh, int64_t now_us, int64_t deadline_us)
{
    self_mesh *self = (self_mesh *)mesh;
    uint32_t seen = atomic_load(&self->news);
    if (!atomic_load(&mesh->woken)) {
        gr_counter_sleep(&self->news, seen, deadline_us == GR_NEVER ? -1 : deadline_us - now_us);
    }
}

static void wake_self(gr_mesh *mesh)
{
    gr_counter_raise(&((self_mesh *)mesh)->news);
}

/* What concerns links is never called. */
static const gr_link_ops self_ops = {.name = "none",
                                     .mesh_bytes = sizeof(self_mesh),
                                     .inside = true,
                                     .progress = progress_self,
                                     .wait = wait_self,
                                     .wake = wake_self};

gr_status gr_mesh_create_self(const gr_log *log, gr_mesh **mesh_out, gr_diag *diag)
{
    static const uint8_t nobody_asks[GR_SECRET_BYTES];
    gr_mesh_config config;
    gr_mesh_config_init(&config);
    config.secret = nobody_asks;
    config.log = log;
    config.ops = &self_ops;
    return gr_mesh_create(&config, mesh_out, diag);
}
