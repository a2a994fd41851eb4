/* SPDX-License-Identifier: Apache-2.0 */

/* Links that come and go while their mesh lives. */

#include "base/fail.h"
#include "link/frame.h"
#include "link/mesh.h"
#include "link/socket.h"

#include <string.h>

/* ---- Changes --------------------------------------------------------------------------------- */

void gr_link_changed(gr_link *link)
{
    gr_mesh *mesh = link->mesh;
    if (!mesh->dynamic_peers || link->changed) {
        return;
    }
    link->changed = true;
    link->next = NULL;
    if (mesh->changes == NULL) {
        mesh->changes = link;
    } else {
        mesh->last_change->next = link;
    }
    mesh->last_change = link;
}

/* Take `link` out of the changes; `before` is the one before it there, NULL: none. */
static void unlink_change(gr_mesh *mesh, gr_link *before, gr_link *link)
{
    if (before == NULL) {
        mesh->changes = link->next;
    } else {
        before->next = link->next;
    }
    if (mesh->last_change == link) {
        mesh->last_change = before;
    }
    link->changed = false;
}

bool gr_mesh_next_change(gr_mesh *mesh, int *peer_out, bool *ended_out)
{
    gr_link *link = mesh->changes;
    if (link == NULL) {
        return false;
    }
    /* One that came and has ended since is reported twice. */
    bool came = link->was_up && !link->up_reported;
    link->up_reported = link->up_reported || came;
    *peer_out = link->peer;
    *ended_out = !came;
    if (!came || link->state != GR_LINK_ENDED) {
        unlink_change(mesh, NULL, link);
    }
    return true;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

_Static_assert((int)GR_DIAG_TEXT_BYTES <= (int)GR_FRAME_ABORT_MAX, "any sentence fits");

void gr_link_close(gr_link *link, gr_status status, const char *sentence)
{
    uint64_t ticket;
    if (link->state != GR_LINK_UP || link->closing) {
        return;
    }
    gr_link_discard(link);
    if (link->state != GR_LINK_UP) {
        return; /* its end was behind data that were not read */
    }
    (void)gr_fail_peer(&link->diag, status, link->peer, "%s", sentence);
    const gr_frame frame = {.kind = GR_FRAME_ABORT,
                            .message = (uint32_t) - (int32_t)status,
                            .segment = (uint32_t)link->peer,
                            .size_bytes = (uint32_t)strlen(link->diag.text)};
    /* Where there is no room even for that, the peer does not listen. */
    (void)!link->ops->send(link, &frame, link->diag.text, &ticket);
    link->closing = true;
    link->by_us = gr_clock_deadline_us(&link->mesh->clock, GR_LINK_CLOSE_US);
    link->mesh->timed++;
}

static void leave_place(gr_mesh *mesh, gr_link *link)
{
    gr_link *last = mesh->present[--mesh->present_count];
    mesh->present[link->present_at] = last;
    last->present_at = link->present_at;
    mesh->links[link->peer] = NULL;
    if (link->was_up && link->ops != mesh->ops && --mesh->others == 0) {
        mesh->other = NULL;
    }
}

void gr_mesh_remove(gr_mesh *mesh, int peer)
{
    gr_link *link = peer >= 0 && peer < mesh->world_size ? mesh->links[peer] : NULL;
    if (mesh->dynamic_peers && link == NULL && mesh->acceptor != NULL) {
        gr_acceptor_cancel(mesh->acceptor, peer); /* or its failure would be that of the next */
    }
    if (!mesh->dynamic_peers || link == NULL || link->state != GR_LINK_ENDED) {
        return;
    }
    for (gr_link *at = mesh->changes, *before = NULL; at != NULL && link->changed; at = at->next) {
        if (at == link) {
            unlink_change(mesh, before, link);
        }
        before = at;
    }
    leave_place(mesh, link);
    if (link->ops->recycle != NULL) {
        link->ops->recycle(link);
    }
    if (link->ops->holds(link)) {
        link->removed = true;
        link->next = mesh->removed;
        mesh->removed = link;
    } else {
        gr_link_free(link);
    }
    if (mesh->ops->learn != NULL) {
        mesh->ops->learn(mesh);
    }
    mesh->acceptor_ready = true; /* somebody may wait there for this number */
}

void gr_link_unref(gr_link *link)
{
    if (link->ops->holds(link)) {
        return;
    }
    gr_link **at = &link->mesh->removed;
    while (*at != link) {
        at = &(*at)->next;
    }
    *at = link->next;
    gr_link_free(link);
}

bool gr_link_same_host(gr_link *link)
{
    int fd = *gr_link_fd(link, 0);
    return fd >= 0 && gr_socket_same_host(fd);
}
