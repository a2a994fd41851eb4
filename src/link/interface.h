/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_INTERFACE_H
#define GR_LINK_INTERFACE_H

/* The network interfaces of this host: which of them a job uses, under which addresses a rank
 * announces itself, and over which of them, and how often, it connects to a peer. */

#include "link/acceptor.h"

enum {
    GR_PATH_SLOWER = 8,     /* a path so much slower than another is left alone */
    GR_STREAM_MBPS = 25000, /* what one connection carries */
    GR_INTERFACES_MAX = 16, /* addresses; more are left out, slowest first */
    GR_INTERFACE_TEXT_BYTES = 128,
    GR_REMOTE_BYTES = 512 /* all addresses of a rank as one text */
};

typedef struct gr_interface {
    char name[16];
    char host[48];     /* its address as a number */
    uint8_t bytes[16]; /* the address: 4 or 16 bytes */
    int size;
    int prefix; /* bits of the address that belong to its network */
    bool loopback;
    int64_t speed_mbps; /* what the driver says; 0: unknown */
} gr_interface;

typedef struct gr_interfaces {
    int count;
    gr_interface at[GR_INTERFACES_MAX]; /* the fastest first, loopback last */
} gr_interfaces;

/* All that are up, or those that `wanted` (GRADUS_INTERFACE) lists: names and subnets, "eth0,ib0"
 * or "10.0.0.0/8". GR_E_INVALID: it names none of this host; the sentence tells which there are. */
gr_status gr_interfaces_find(const char *wanted, gr_interfaces *out, gr_diag *diag) GR_MUST_CHECK;

/* "eth0 10.0.0.1/24, 10000 Mbit/s" */
void gr_interface_describe(const gr_interface *of, char text_out[GR_INTERFACE_TEXT_BYTES]);

/* What to listen on: the address if there is only one, else "*". Lives as long as `of`. */
const char *gr_interfaces_listen_host(const gr_interfaces *of);

/* The addresses under which a listener is reached: with its port each of this host's, or the one
 * that it listens at alone. */
void gr_interfaces_announce(const gr_interfaces *of, const char *listener,
                            char remote_out[GR_REMOTE_BYTES]);

/* The way of one connection to a peer. */
typedef struct gr_route {
    const gr_interface *by;          /* our interface for the first address; NULL: a router, or
                                      * loopback */
    char addresses[GR_REMOTE_BYTES]; /* of the peer, blanks between, in the order to be tried */
} gr_route;

/* The connections to a peer that announced `remote`; how many, 0: it cannot be reached.
 *
 * An address is the better the faster our interface in its network is; then come those that only a
 * router reaches, and loopback only if there is nothing else; of a peer on this host loopback is
 * the first. Each interface of ours that has a network in common with the peer is a path, except
 * those with less than 1/GR_PATH_SLOWER of the fastest one's speed. `rails` connections are striped
 * over the paths by their speeds (as many to each if some are unknown), at least one to each while
 * there are enough; 0: as many as there are paths, and more on a path that one does not fill. Each
 * tries its own path first, the others behind it. */
int gr_interfaces_route(const gr_interfaces *own, const char *remote, bool same_host, int rails,
                        gr_route routes_out[GR_LINK_RAILS_MAX]);

/* How many of these go over `of->at[index]` if the peer is in all of our networks and nothing else
 * is wished for; 0: it is left alone, or another address of its interface stands for it. */
int gr_interfaces_share(const gr_interfaces *of, int index);

/* The most that gr_interfaces_route answers, whoever the peer is. */
int gr_interfaces_rails_max(const gr_interfaces *own, int rails);

#endif
