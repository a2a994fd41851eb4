/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_NET_SIM_H
#define GR_SIM_NET_SIM_H

/* A network inside one process, on a simulated clock. The meshes of all ranks are made with
 * GR_LINK_SIM and the same net; then they are used as any other mesh. A seed decides when a message
 * arrives, what finds no room, which payload comes in pieces, and what a dying rank had still sent.
 * The same seed and the same calls give the same run.
 *
 * Time stands still while anybody computes: whoever runs the ranks asks gr_sim_next_us when each of
 * them may have news, and moves the clock there (gr_sim_advance). A rank that waits inside
 * gr_mesh_wait hands over to the function of gr_sim_on_wait.
 *
 * The net also holds its users to the promises of link.h: gr_sim_complaint. Payloads are borrowed
 * as on any link; those of a rank that died or left must stay in place until the net is destroyed,
 * as the memory file of a dead process does.
 *
 * Threads: the net and all its meshes belong to one thread. */

#include "link/link.h"

typedef struct gr_sim_net gr_sim_net;
/* gr_mesh_config.ops of a simulated mesh; gr_mesh_config.net is the gr_sim_net. */
extern const gr_link_ops gr_sim_ops;

typedef struct gr_sim_config {
    uint64_t seed;
    int world_size;
    int room;           /* messages sent and not yet released on one link, 1 .. GR_SIM_ROOM_MAX */
    int64_t delay_us;   /* of a message, and of the word that one was released */
    int64_t jitter_us;  /* up to so much more, for each message; never one before an earlier one */
    int stall_percent;  /* messages that hold up their link... */
    int64_t stall_us;   /* ...for up to so long */
    int refuse_percent; /* sends that find no room although there is some */
    int pieces_percent; /* reads that find only a part of the payload */
    int view_percent;   /* payloads that can be viewed; 0: as on a socket */
    bool copies;        /* a payload is taken over by gr_link_send, as small ones are by sockets */
    int64_t notice_us;  /* a death is noticed after up to so long */
    int64_t silence_us; /* a partition of this length breaks a link */
} gr_sim_config;

enum { GR_SIM_ROOM_MAX = 128 };

gr_status gr_sim_net_create(const gr_sim_config *config, gr_sim_net **net_out,
                            gr_diag *diag) GR_MUST_CHECK;
/* After its meshes; NULL ok. */
void gr_sim_net_destroy(gr_sim_net *net);

gr_clock gr_sim_clock(gr_sim_net *net);
int64_t gr_sim_now_us(const gr_sim_net *net);
void gr_sim_advance(gr_sim_net *net, int64_t to_us); /* never backwards */
/* The net's own random numbers, so that a run has one seed: 0 .. below - 1. */
uint64_t gr_sim_random(gr_sim_net *net, uint64_t below);
/* When the mesh of `rank` may have something to do: now or earlier, or a time to come; GR_NEVER. */
int64_t gr_sim_next_us(gr_sim_net *net, int rank);

/* Called for a rank inside gr_mesh_wait: moves the clock on, at most to `until_us`; may let other
 * ranks run meanwhile. Without one the clock goes to the next event of the rank. */
typedef void gr_sim_wait(void *wait_arg, int rank, int64_t until_us);
void gr_sim_on_wait(gr_sim_net *net, gr_sim_wait *wait, void *wait_arg);

/* The process of `rank` vanishes: of what it sent, some of the last messages on each link are lost,
 * one of them half way. Its mesh must not be used any more, except to destroy it. */
void gr_sim_kill(gr_sim_net *net, int rank);
/* From now on nothing passes between ranks of different sides; gr_sim_heal ends it, and what was
 * sent meanwhile is on its way then. */
void gr_sim_partition(gr_sim_net *net, const uint8_t *side_of_rank);
void gr_sim_heal(gr_sim_net *net);
/* What `from` sends from now on need not come: `to` sees the connection end soon, as when a machine
 * between them forgets it. The other direction goes on until `to` leaves. Only for a net that
 * copies, as sockets do: a broken link lends nothing any more. */
void gr_sim_break(gr_sim_net *net, int from, int to);

/* The first wrong use of a link so far, NULL if there was none. */
const char *gr_sim_complaint(const gr_sim_net *net);
uint64_t gr_sim_messages(const gr_sim_net *net); /* accepted since the start */

#endif
