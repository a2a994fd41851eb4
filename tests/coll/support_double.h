/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_DOUBLE_H
#define GR_TESTS_COLL_SUPPORT_DOUBLE_H

/* A double of link.h: the meshes of several ranks inside one thread, with a seed that decides what
 * arrives when, which sends find no room, how much of a payload is there, whether it can be viewed.
 * The executor's sources are compiled a second time against it (support_double_names.h): the
 * product's own calls stay plain. It checks what link.h promises and what it asks of its users: the
 * data of a message must not change before it is sent. */

#include "link/link.h"

typedef struct dbl_net dbl_net;

typedef struct dbl_options {
    uint64_t seed;
    int world_size;
    int room;              /* messages on the way or held on one link; at least 1 */
    bool views;            /* payloads can be viewed (now and then) */
    bool loss_in_progress; /* gr_mesh_progress reports a broken link, too */
} dbl_options;

dbl_net *dbl_create(const dbl_options *options);
void dbl_destroy(dbl_net *net);
gr_mesh *dbl_mesh(dbl_net *net, int rank);
gr_clock dbl_clock(dbl_net *net);
void dbl_advance(dbl_net *net, int64_t us);
uint64_t dbl_random(dbl_net *net, uint64_t below);

/* The process behind `rank` is gone: what it sent may still arrive, nothing more comes. */
void dbl_kill(dbl_net *net, int rank);
/* It has left in order, with a BYE frame. */
void dbl_leave(dbl_net *net, int rank);
/* What was wrong with the use of the links so far; NULL: nothing. */
const char *dbl_complaint(const dbl_net *net);
/* Data that nobody took. */
int dbl_unread(dbl_net *net);
/* Calls of gr_link_peek since the start. */
uint64_t dbl_peeks(const dbl_net *net);
/* Messages accepted since the start. */
uint64_t dbl_accepted(const dbl_net *net);

gr_status dbl_mesh_progress(gr_mesh *mesh, gr_diag *diag);
gr_link *dbl_mesh_link(gr_mesh *mesh, int peer);
gr_link *dbl_mesh_open_link(gr_mesh *mesh, int peer, bool connect);
bool dbl_mesh_next_ready(gr_mesh *mesh, int *peer_out);
bool dbl_mesh_on_demand(const gr_mesh *mesh);
const gr_link_caps *dbl_mesh_capabilities(const gr_mesh *mesh);
const gr_link_caps *dbl_link_capabilities(const gr_link *link);
bool dbl_link_is_up(const gr_link *link);
void dbl_mesh_wait(gr_mesh *mesh, int64_t deadline_us);
gr_status dbl_mesh_alloc(gr_mesh *mesh, size_t size_bytes, void **mem_out);
void dbl_mesh_free(gr_mesh *mesh, void *mem);
void dbl_mesh_keep(gr_mesh *mesh);
gr_status dbl_link_send(gr_link *link, const gr_frame *frame, const void *data,
                        uint64_t *ticket_out);
bool dbl_link_sent(gr_link *link, uint64_t ticket);
gr_status dbl_link_peek(gr_link *link, gr_frame *frame_out);
gr_status dbl_link_view(gr_link *link, const void **data_out);
gr_status dbl_link_read(gr_link *link, void *dst);
void dbl_link_next(gr_link *link, uint64_t *hold_out);
void dbl_link_release(gr_link *link, uint64_t hold);
void dbl_link_discard(gr_link *link);
const gr_diag *dbl_link_diag(const gr_link *link);
bool dbl_link_has_left(const gr_link *link);
void dbl_link_expect(gr_link *link);

#endif
