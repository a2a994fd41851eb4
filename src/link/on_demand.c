/* SPDX-License-Identifier: Apache-2.0 */

/* Links that are made when they are first needed.
 *
 *             gr_mesh_open_link(connect: false)
 *     no link ---------------------------------> waits for the peer
 *        |                                         |            |
 *        | gr_mesh_open_link(connect: true)        | a time, or | the peer's connection
 *        v                                         | connect    | proved itself
 *     connects <-----------------------------------+            |
 *        |   |                                                  v
 *        |   +--- the connection of a peer of higher rank --> attaching --> up --> ended
 *        +------- ours is through --------------------------->
 *
 * Both sides may begin to connect at once. Then the connection of the higher rank counts: the lower
 * rank accepts it and gives its own up, and the higher rank keeps the other one waiting until its
 * own is through or has failed. A peer's connection that was answered comes before one that is not
 * begun: with TLS the peer takes it for a link before this side does. Whether a peer answers soon
 * is not known, since it answers only while it is inside the library: a connection has no time
 * limit of its own, and the operation that needs it has one. A peer that is gone refuses it, or
 * whoever knows better says so (gr_mesh_peer_gone). */

#include "base/fail.h"
#include "link/mesh.h"

enum {
    WAIT_FOR_PEER_US = 10000000, /* for the other side to connect, before this side does, ... */
    WAIT_UNTOLD_US = 100000,     /* ... where nobody would tell that the other one is gone */
    NO_PLACE_US = 1000           /* until a connection more can be made */
};

void gr_mesh_set_router(gr_mesh *mesh, gr_mesh_router *router, void *arg, int local_ranks)
{
    mesh->router = router;
    mesh->router_arg = arg;
    mesh->local_ranks = local_ranks;
    if (mesh->ops->learn != NULL) {
        mesh->ops->learn(mesh);
    }
}

/* The link ends before it was up, for a reason that names the peer. */
static void give_up(gr_link *link, const gr_diag *why)
{
    gr_acceptor_cancel(link->mesh->acceptor, link->peer);
    gr_link_break(link, false, (gr_status)why->status, "%s", why->text);
}

static void connect_rails(gr_link *link, const gr_peer_route *route, int64_t now)
{
    gr_mesh *mesh = link->mesh;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    gr_auth_rail rail = {.index = 0, .count = (uint8_t)route->rails};
    for (; status == GR_OK && rail.index < rail.count; rail.index++) {
        status = gr_acceptor_connect(mesh->acceptor, link->peer, rail, route->addresses[rail.index],
                                     &diag);
    }
    link->connecting = status == GR_OK;
    link->rails = route->rails;
    link->by_us = GR_NEVER;
    if (status == GR_E_NO_MEMORY) { /* too many are under way */
        gr_acceptor_cancel(mesh->acceptor, link->peer);
        link->by_us = now + NO_PLACE_US;
    } else if (status != GR_OK) {
        give_up(link, &diag);
    }
    mesh->acceptor_ready = true; /* it may be through, or have failed, before any socket tells */
}

void gr_mesh_connect_waiting(gr_link *link, int64_t now)
{
    gr_diag diag = {0};
    gr_peer_route route;
    if (link->connecting || link->rails_here > 0 || now < link->by_us ||
        gr_acceptor_promised(link->mesh->acceptor, link->peer)) {
        return;
    }
    if (link->mesh->router(link->mesh->router_arg, link->peer, &route, &diag) == GR_OK) {
        connect_rails(link, &route, now);
    } else {
        give_up(link, &diag);
    }
}

gr_link *gr_mesh_open_link(gr_mesh *mesh, int peer, bool connect)
{
    gr_diag diag = {0};
    gr_peer_route route = {.kind = GR_LINK_TCP, .rails = 1};
    gr_link *link = peer >= 0 && peer < mesh->world_size ? mesh->links[peer] : NULL;
    int64_t now = gr_clock_now_us(&mesh->clock);
    if (mesh->router == NULL || peer < 0 || peer >= mesh->world_size || peer == mesh->rank) {
        return link;
    }
    if (link == NULL) {
        gr_status status = mesh->router(mesh->router_arg, peer, &route, &diag);
        const gr_link_ops *ops = route.kind == GR_LINK_SHM ? &gr_shm_ops : &gr_tcp_ops;
        link = gr_mesh_create_link(mesh, ops, peer, route.rails, now);
        if (link == NULL) {
            return NULL;
        }
        link->by_us = now + (mesh->no_notice ? WAIT_UNTOLD_US : WAIT_FOR_PEER_US);
        if (status != GR_OK) {
            give_up(link, &diag);
        }
    }
    if (connect && link->state == GR_LINK_ATTACHING && link->by_us != GR_NEVER) {
        link->by_us = now;
        gr_mesh_connect_waiting(link, now);
    }
    return link;
}

bool gr_mesh_accepts(const gr_mesh *mesh, const gr_link *link, gr_auth_rail rail)
{
    if (link->connecting) {
        return link->rails_here == 0 && link->peer > mesh->rank;
    }
    return link->rails_here == 0 || link->rails == rail.count;
}

bool gr_mesh_take_connection(gr_link *link, gr_auth_rail rail, bool outgoing)
{
    if (outgoing) {
        return link->connecting && link->rails == rail.count;
    }
    if (!gr_mesh_accepts(link->mesh, link, rail)) {
        return false;
    }
    if (link->connecting) {
        gr_acceptor_cancel(link->mesh->acceptor, link->peer);
        link->connecting = false;
    }
    link->rails = rail.count;
    link->by_us = GR_NEVER;
    return true;
}

bool gr_mesh_cannot_connect(gr_mesh *mesh, const gr_diag *why)
{
    int peer = why->peer_rank;
    gr_link *link = peer >= 0 && peer < mesh->world_size ? mesh->links[peer] : NULL;
    if (mesh->router == NULL || link == NULL || !link->connecting) {
        return false;
    }
    give_up(link, why);
    return true;
}

void gr_mesh_peer_gone(gr_mesh *mesh, int peer, bool left, const char *why)
{
    gr_link *link = peer >= 0 && peer < mesh->world_size ? mesh->links[peer] : NULL;
    if (!mesh->on_demand || link == NULL || link->state != GR_LINK_ATTACHING ||
        link->rails_here > 0) {
        return;
    }
    gr_diag diag;
    if (left && !link->missed) {
        link->missed = true; /* its last message may stand in a connection that is not taken yet */
    } else if (left) {
        gr_acceptor_cancel(mesh->acceptor, peer);
        gr_link_left(link);
    } else {
        (void)gr_fail_peer(&diag, GR_E_PEER_LOST, peer, "%s", why);
        give_up(link, &diag);
    }
}

void gr_mesh_expect_no_notice(gr_mesh *mesh)
{
    int64_t by_us = gr_clock_now_us(&mesh->clock) + WAIT_UNTOLD_US;
    mesh->no_notice = true;
    for (int i = 0; mesh->on_demand && i < mesh->present_count; i++) {
        gr_link *link = mesh->present[i];
        if (link->state == GR_LINK_ATTACHING && link->by_us != GR_NEVER && link->by_us > by_us) {
            link->by_us = by_us;
        }
    }
}

bool gr_mesh_on_demand(const gr_mesh *mesh)
{
    return mesh->on_demand;
}

bool gr_link_is_up(const gr_link *link)
{
    return link->state == GR_LINK_UP;
}

/* ---- Links that have something --------------------------------------------------------------- */

void gr_link_set_ready(gr_link *link)
{
    link->mesh->ready[link->peer / 64] |= UINT64_C(1) << link->peer % 64;
}

bool gr_mesh_next_ready(gr_mesh *mesh, int *peer_out)
{
    for (int word = 0; word * 64 < mesh->world_size; word++) {
        if (mesh->ready[word] != 0) {
            *peer_out = word * 64 + __builtin_ctzll(mesh->ready[word]);
            mesh->ready[word] &= mesh->ready[word] - 1;
            return true;
        }
    }
    return false;
}
